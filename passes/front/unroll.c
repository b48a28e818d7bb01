/* SPDX-License-Identifier: Apache-2.0
 * Control flow that is known before the run: of an If with a constant condition the branch taken is put in place, of
 * Loop and Scan the body, once per trip. It happens inside of the sweep that lowers, because conditions and trip counts
 * are mostly shape arithmetic, which is constant only once it is folded:
 *
 *     Loop(M, cond, v)  ->  trip 0 in place and lowered -> is its condition true? -> trip 1 ... -> scan outputs joined
 *
 * Nodes of a body are called "NODE/INNER" (If) or "NODE/TRIP/INNER", as calls of functions are (inline.c). What is not
 * taken is not looked at. What depends on data is refused by name, with what it depends on. */
#include <string.h>

#include "core/graph/node.h"
#include "core/graph/op.h"
#include "passes/front/front.h"

enum { MAX_DEPTH = 64, MAX_UNROLLED = 100000 };

bool inv_is_control(const inv_node *n)
{
    return !n->op && !*n->domain &&
           (!strcmp(n->op_type, "If") || !strcmp(n->op_type, "Loop") || !strcmp(n->op_type, "Scan"));
}

typedef struct unroller {
    inv_lowering *l;
    inv_graph *g;
    inv_node n;        /* a copy, its inputs lowered: g->node moves */
    const inv_id *raw; /* inputs under the names of the model */
    uint32_t listed;
    inv_expansion x;
    const inv_attr *attr; /* the body */
    uint32_t nformal;
    inv_id *constant;        /* per value of the body: its initializers in g */
    inv_id *formal, *result; /* of one trip */
} unroller;

static inv_status read_number(unroller *u, const char *what, const char *called, inv_id v, int64_t *number)
{
    size_t n;
    if (inv_const_ints(u->g, v, 1, number, &n) && n == 1) return INV_OK;
    if (!inv_const_known(u->g, v)) return inv_node_fail_varying(u->g, &u->n, v, what, called);
    return inv_node_fail(u->g, &u->n, INV_E_SHAPE, "its %s '%s' is not one whole number", what, called);
}

/* --- bodies --- */

static inv_status wrong_body(unroller *u, const char *what)
{
    return inv_node_fail(u->g, &u->n, INV_E_GRAPH, "%s", what);
}

/* The initializer that a value of the body stands for. A transposed copy (tied_weights.c) is made here: what was to
 * make it is gone where nobody else reads it. */
static inv_id formal_parameter(unroller *u, const inv_value *from)
{
    const inv_id p = inv_graph_param(u->g, from), copy = inv_val(u->g, p)->same;
    const inv_id def = copy == INV_NONE ? INV_NONE : inv_val(u->g, copy)->def;
    if (def == INV_NONE || !inv_node_is(inv_nod(u->g, def), "Transpose")) return inv_graph_stands(u->g, p);
    return inv_emit1(u->g, "Transpose", INV_IN(inv_graph_stands(u->g, inv_nod(u->g, def)->in[0])),
                     INV_ATTRS(inv_attr_of_ints("perm", 2, ((const int64_t[]){1, 0}))));
}

/* The initializers of the body, once for all trips. Those that are weights are parameters of the model. */
static inv_status make_constants(unroller *u)
{
    const inv_graph *body = u->attr->graph;
    for (inv_id v = 0; v < body->value.n; v++) {
        const inv_value *from = inv_val(body, v);
        u->constant[v] = INV_NONE;
        if (from->role == INV_ROLE_PARAM) u->constant[v] = formal_parameter(u, from);
        if (from->role != INV_ROLE_CONST) continue;
        const char *name = inv_arena_printf(&u->l->scratch, "%s/%s", u->x.label, from->name);
        if (!name) return INV_E_NOMEM;
        if (inv_graph_find(u->g, name) != INV_NONE) name = inv_graph_fresh(u->g, name);
        inv_id c = name ? inv_graph_value(u->g, name, INV_ROLE_CONST, from->dtype, &from->shape) : INV_NONE;
        if (c == INV_NONE) return u->g->failed;
        inv_data data = from->data;
        if (!inv_real_tensor(u->g, &data)) return INV_E_NOMEM;
        inv_val(u->g, c)->data = data;
        inv_val(u->g, c)->dtype = data.dtype;
        u->constant[v] = c;
    }
    return INV_OK;
}

static inv_status choose_body(unroller *u, const char *attribute)
{
    const inv_attr *a = u->attr = inv_attr_find(&u->n, attribute);
    inv_arena *s = &u->l->scratch;
    if (!a || a->kind != INV_ATTR_GRAPH || !a->graph)
        return inv_node_fail(u->g, &u->n, INV_E_GRAPH, "it has no graph of its own as attribute '%s'", attribute);
    u->x = (inv_expansion){.g = u->g,
                           .scratch = s,
                           .body = a->graph,
                           .node = u->x.node,
                           .label = u->x.label,
                           .arg = a->args,
                           .narg = (uint32_t)a->n};
    u->nformal = (uint32_t)a->graph->inputs.n - a->ncaptured;
    u->x.map = INV_ARENA_NEW(s, inv_id, a->graph->value.n + 1);
    u->constant = INV_ARENA_NEW(s, inv_id, a->graph->value.n + 1);
    u->formal = INV_ARENA_NEW(s, inv_id, u->nformal + 1);
    u->result = INV_ARENA_NEW(s, inv_id, a->graph->outputs.n + 1);
    if (!u->x.map || !u->constant || !u->formal || !u->result) return INV_E_NOMEM;
    return make_constants(u);
}

/* Puts the body in place, with u->formal as its inputs, and lowers it; its outputs are u->result then. */
static inv_status run_body(unroller *u)
{
    const inv_graph *body = u->attr->graph;
    inv_lowering *l = u->l;
    inv_ids list = {0};
    memcpy(u->x.map, u->constant, body->value.n * sizeof *u->x.map);
    for (uint32_t i = 0; i < u->nformal; i++) u->x.map[body->inputs.at[i]] = u->formal[i];
    for (uint32_t i = 0; i < u->attr->ncaptured; i++)
        u->x.map[body->inputs.at[u->nformal + i]] = u->n.in[u->attr->captured + i];
    INV_TRY(inv_expand(&u->x, &list));
    INV_TRY(inv_inline_calls(u->g, &l->scratch, &list, false));
    INV_TRY(inv_real_nodes(u->g, &list));
    l->unrolled += list.n + 1 + body->value.n / 64; /* initializers are no work, but all of them are looked at */
    if (l->unrolled > MAX_UNROLLED)
        return inv_node_fail(u->g, &u->n, INV_E_GRAPH, "control flow unrolls to more than %d nodes", MAX_UNROLLED);
    INV_TRY(inv_lower_nodes(l, &list));
    for (size_t i = 0; i < body->outputs.n; i++) {
        u->result[i] = inv_graph_stands(u->g, u->x.map[body->outputs.at[i]]);
        if (u->result[i] == INV_NONE) return wrong_body(u, "its body returns an input that is not given");
    }
    return inv_lower_origin(u->g, &u->n);
}

/* --- If --- */

static inv_status unroll_if(unroller *u, inv_id *out)
{
    int64_t condition;
    if (u->listed != 1 || u->n.in[0] == INV_NONE) return wrong_body(u, "it takes one input, the condition");
    INV_TRY(read_number(u, "condition", inv_val(u->g, u->raw[0])->name, u->n.in[0], &condition));
    INV_TRY(choose_body(u, condition ? "then_branch" : "else_branch"));
    if (u->nformal || u->n.nout > u->attr->graph->outputs.n)
        return wrong_body(u, "its branches have no inputs, and as many outputs as it has");
    INV_TRY(run_body(u));
    memcpy(out, u->result, u->n.nout * sizeof *out);
    return INV_OK;
}

/* --- results of all trips --- */

/* Value v with an axis of extent one put in, or taken out. */
static inv_id with_axis(unroller *u, inv_id v, int axis, bool in)
{
    inv_shape s = inv_val(u->g, v)->shape;
    int64_t dim[INV_MAX_RANK + 1];
    int n = 0;
    for (int i = 0; i < s.rank + (in ? 1 : 0); i++) {
        if (in && i == axis) dim[n++] = 1;
        else if (in || i != axis) dim[n++] = s.dim[in && i > axis ? i - 1 : i];
    }
    return inv_emit1(u->g, "View", INV_IN(v), INV_ATTRS(inv_attr_of_ints("shape", (size_t)n, dim)));
}

/* No trip, no rows: type and rank are what the body declares; an extent that it leaves open is 0. */
static inv_status join_nothing(unroller *u, inv_id declared, int64_t axis, inv_id *out)
{
    const inv_value *v = inv_val(u->attr->graph, declared);
    inv_dtype t = inv_dtype_is_float(v->dtype) ? u->g->real : v->dtype;
    inv_shape s = {.rank = v->shape.rank + 1};
    if (v->dtype == INV_DT_NONE || v->shape.rank < 0 || v->shape.rank >= INV_MAX_RANK)
        return wrong_body(u,
                          "it makes no trip, and its body does not declare type and rank of what would be collected");
    if (axis < 0) axis += s.rank;
    if (axis < 0 || axis >= s.rank) return wrong_body(u, "an axis of its outputs is out of range");
    for (int i = 0; i < s.rank; i++) {
        s.dim[i] = i == axis ? 0 : v->shape.dim[i < axis ? i : i - 1];
        if (s.dim[i] < 0) s.dim[i] = 0; /* of no rows, so it can be anything */
    }
    *out = inv_graph_const(u->g, t, &s, "");
    return *out == INV_NONE ? u->g->failed : INV_OK;
}

/* The values of all trips side by side along a new axis. */
static inv_status join_scanned(unroller *u, const inv_ids *part, inv_id declared, int64_t axis, bool backwards,
                               inv_id *out)
{
    if (!part->n) return join_nothing(u, declared, axis, out);
    int rank = inv_val(u->g, part->at[0])->shape.rank + 1;
    inv_id *row = INV_ARENA_NEW(&u->l->scratch, inv_id, part->n);
    if (!row) return INV_E_NOMEM;
    if (axis < 0) axis += rank;
    if (rank > INV_MAX_RANK || axis < 0 || axis >= rank) return wrong_body(u, "an axis of its outputs is out of range");
    for (size_t i = 0; i < part->n; i++) {
        if (!inv_shape_equal(&inv_val(u->g, part->at[i])->shape, &inv_val(u->g, part->at[0])->shape))
            return wrong_body(u, "the values that it collects change their shape from trip to trip");
        row[backwards ? part->n - 1 - i : i] = with_axis(u, part->at[i], (int)axis, true);
        if (u->g->failed) return u->g->failed;
    }
    *out = part->n == 1 ? row[0]
                        : inv_emit1(u->g, "Concat", (uint32_t)part->n, row, INV_ATTRS(inv_attr_of_int("axis", axis)));
    return *out == INV_NONE ? u->g->failed : INV_OK;
}

static inv_status trip_label(unroller *u, const char *label, int64_t trip)
{
    u->x.label = inv_arena_printf(&u->l->scratch, "%s/%lld", label, (long long)trip);
    return u->x.label ? INV_OK : INV_E_NOMEM;
}

/* --- Loop --- */

/* A constant of type t as the body declares the input that it is for: a scalar, or of one element. */
static inv_id loop_counter(unroller *u, uint32_t formal, inv_dtype t, int64_t number)
{
    const inv_graph *body = u->attr->graph;
    inv_shape s =
        inv_val(body, body->inputs.at[formal])->shape.rank == 1 ? inv_shape_of(1, (int64_t[]){1}) : inv_shape_scalar();
    uint8_t one = number != 0;
    return inv_graph_const(u->g, t, &s, t == INV_BOOL ? (const void *)&one : &number);
}

static inv_status loop_trips(unroller *u, int64_t most, bool conditional, inv_ids *part)
{
    const inv_graph *body = u->attr->graph;
    const char *label = u->x.label, *condition = inv_val(body, body->outputs.at[0])->name;
    uint32_t ncarried = u->nformal - 2;
    int64_t more = 1;
    for (int64_t trip = 0; trip < most && more; trip++) {
        u->formal[0] = loop_counter(u, 0, INV_I64, trip);
        u->formal[1] = loop_counter(u, 1, INV_BOOL, 1);
        if (u->g->failed) return u->g->failed;
        INV_TRY(trip_label(u, label, trip));
        INV_TRY(run_body(u));
        memcpy(u->formal + 2, u->result + 1, ncarried * sizeof *u->formal);
        for (size_t i = 0; i + 1 + ncarried < body->outputs.n; i++)
            if (!inv_vec_push(&u->l->scratch, &part[i], u->result[1 + ncarried + i])) return INV_E_NOMEM;
        if (conditional && trip + 1 < most) INV_TRY(read_number(u, "body's condition", condition, u->result[0], &more));
    }
    u->x.label = label;
    return INV_OK;
}

static inv_status unroll_loop(unroller *u, inv_id *out)
{
    int64_t most = INT64_MAX, condition = 1;
    bool counted = u->listed > 0 && u->n.in[0] != INV_NONE, conditional = u->listed > 1 && u->n.in[1] != INV_NONE;
    if (counted) INV_TRY(read_number(u, "trip count", inv_val(u->g, u->raw[0])->name, u->n.in[0], &most));
    if (conditional) INV_TRY(read_number(u, "condition", inv_val(u->g, u->raw[1])->name, u->n.in[1], &condition));
    INV_TRY(choose_body(u, "body"));
    const inv_graph *body = u->attr->graph;
    uint32_t ncarried = u->listed < 2 ? 0 : u->listed - 2;
    if (u->nformal != ncarried + 2 || body->outputs.n < ncarried + 1 || u->n.nout > body->outputs.n - 1)
        return wrong_body(u, "inputs and outputs of its body are not those that it has itself");
    inv_ids *part = INV_ARENA_NEW(&u->l->scratch, inv_ids, body->outputs.n);
    if (!part) return INV_E_NOMEM;
    for (uint32_t i = 0; i < ncarried; i++) u->formal[2 + i] = u->n.in[2 + i];
    /* Without a condition, what the body says about it does not count, but then the count has to be given. */
    INV_TRY(loop_trips(u, condition ? most : 0, conditional || !counted, part));
    for (uint32_t i = 0; i < u->n.nout; i++) {
        if (u->n.out[i] == INV_NONE) continue;
        if (i < ncarried) out[i] = u->formal[2 + i];
        else INV_TRY(join_scanned(u, &part[i - ncarried], body->outputs.at[1 + i], 0, false, &out[i]));
        if (out[i] == INV_NONE) return wrong_body(u, "it returns an input that is not given");
    }
    return INV_OK;
}

/* --- Scan --- */

static int64_t listed_int(const unroller *u, const char *attribute, size_t i)
{
    size_t n;
    const int64_t *v = inv_attr_ints(&u->n, attribute, &n);
    return i < n ? v[i] : 0;
}

/* The rows of a scanned input, one per trip. */
static inv_status scan_rows(unroller *u, uint32_t i, inv_id v, int64_t *trips, inv_id **rows)
{
    inv_shape s = inv_val(u->g, v)->shape;
    int64_t axis = listed_int(u, "scan_input_axes", i);
    if (axis < 0) axis += s.rank;
    if (axis < 0 || axis >= s.rank) return wrong_body(u, "an axis of its inputs is out of range");
    int64_t n = s.dim[axis];
    if (*trips >= 0 && *trips != n) return wrong_body(u, "the inputs that it scans have different lengths");
    *trips = n;
    if (n > MAX_UNROLLED)
        return inv_node_fail(u->g, &u->n, INV_E_GRAPH, "control flow unrolls to more than %d nodes", MAX_UNROLLED);
    inv_id *row = *rows = INV_ARENA_NEW(&u->l->scratch, inv_id, (size_t)n + 1);
    int64_t *size = INV_ARENA_NEW(&u->l->scratch, int64_t, (size_t)n + 1);
    if (!row || !size) return INV_E_NOMEM;
    for (int64_t k = 0; k < n; k++) size[k] = 1;
    row[0] = v;
    if (n > 1) {
        inv_id split = inv_emit(u->g, "SplitSizes", (uint32_t)n, INV_IN(v),
                                INV_ATTRS(inv_attr_of_int("axis", axis), inv_attr_of_ints("sizes", (size_t)n, size)));
        if (split == INV_NONE) return u->g->failed;
        memcpy(row, inv_nod(u->g, split)->out, (size_t)n * sizeof *row);
    }
    for (int64_t k = 0; k < n; k++) row[k] = with_axis(u, row[k], (int)axis, false);
    for (int64_t k = 0; k < n / 2 && listed_int(u, "scan_input_directions", i) == 1; k++) {
        inv_id last = row[n - 1 - k];
        row[n - 1 - k] = row[k];
        row[k] = last;
    }
    return u->g->failed;
}

static inv_status unroll_scan(unroller *u, inv_id *out)
{
    if (inv_graph_opset(u->g, "") == 8)
        return inv_node_fail(u->g, &u->n, INV_E_UNSUPPORTED_OP,
                             "Scan of opset 8, with sequence_lens and a batch axis, is not supported: export the "
                             "model with opset 9 or later");
    INV_TRY(choose_body(u, "body"));
    const inv_graph *body = u->attr->graph;
    int64_t scanned = inv_attr_int(&u->n, "num_scan_inputs", 0), trips = -1;
    uint32_t nstate = scanned > 0 && scanned <= u->listed ? u->listed - (uint32_t)scanned : u->listed;
    if (nstate == u->listed || u->nformal != u->listed || body->outputs.n < nstate || u->n.nout > body->outputs.n)
        return wrong_body(u, "inputs and outputs of its body are not those that it has itself");
    inv_id **row = INV_ARENA_NEW(&u->l->scratch, inv_id *, u->listed);
    inv_ids *part = INV_ARENA_NEW(&u->l->scratch, inv_ids, body->outputs.n + 1);
    if (!row || !part) return INV_E_NOMEM;
    for (uint32_t i = 0; i < u->listed; i++)
        if (u->n.in[i] == INV_NONE) return wrong_body(u, "an input is omitted");
    for (uint32_t i = nstate; i < u->listed; i++) INV_TRY(scan_rows(u, i - nstate, u->n.in[i], &trips, &row[i]));
    const char *label = u->x.label;
    for (uint32_t i = 0; i < nstate; i++) u->formal[i] = u->n.in[i];
    for (int64_t trip = 0; trip < trips; trip++) {
        for (uint32_t i = nstate; i < u->listed; i++) u->formal[i] = row[i][trip];
        INV_TRY(trip_label(u, label, trip));
        INV_TRY(run_body(u));
        memcpy(u->formal, u->result, nstate * sizeof *u->formal);
        for (size_t i = nstate; i < body->outputs.n; i++)
            if (!inv_vec_push(&u->l->scratch, &part[i], u->result[i])) return INV_E_NOMEM;
    }
    u->x.label = label;
    for (uint32_t i = 0; i < u->n.nout; i++) {
        if (u->n.out[i] == INV_NONE) continue;
        out[i] = i < nstate ? u->formal[i] : INV_NONE;
        if (i >= nstate)
            INV_TRY(join_scanned(u, &part[i], body->outputs.at[i], listed_int(u, "scan_output_axes", i - nstate),
                                 listed_int(u, "scan_output_directions", i - nstate) == 1, &out[i]));
    }
    return INV_OK;
}

inv_status inv_unroll(inv_lowering *l, inv_id node, inv_id *out)
{
    unroller u = {.l = l, .g = l->g, .n = *inv_nod(l->g, node), .x.node = node};
    inv_id *in = INV_ARENA_NEW(&l->scratch, inv_id, u.n.nin + 1);
    if (!in) return INV_E_NOMEM;
    u.raw = u.n.in;
    for (uint32_t i = 0; i < u.n.nin; i++) in[i] = inv_graph_stands(l->g, u.raw[i]);
    u.n.in = in;
    u.listed = inv_node_listed(&u.n);
    u.x.label = inv_expand_label(l->g, &u.n);
    if (l->depth >= MAX_DEPTH)
        return inv_node_fail(l->g, &u.n, INV_E_GRAPH, "more than %d bodies inside each other", MAX_DEPTH);
    for (uint32_t i = 0; i < u.n.nout; i++) out[i] = INV_NONE;
    l->depth++;
    inv_status s = *u.n.op_type == 'I'   ? unroll_if(&u, out)
                   : *u.n.op_type == 'L' ? unroll_loop(&u, out)
                                         : unroll_scan(&u, out);
    l->depth--;
    return s;
}
