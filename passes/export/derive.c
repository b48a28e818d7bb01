/* SPDX-License-Identifier: Apache-2.0
 * Deriving values of the model, as ordinary ONNX nodes, from others that are known: forward by the file's own nodes,
 * backward by the local inverses of its operators, the best conditioned first. Blocks (block_inverse.c) and whole
 * models (reverse_model.c) say what is known. A coupling needs no code of its own here either:
 *
 *     y1, x2 known -> the nodes of F run forward -> t known -> Add is solved: x1 = Sub(y1, t) */
#include <string.h>

#include "core/graph/node.h"
#include "passes/export/outline.h"
#include "passes/export/raise.h"

/* --- what is known --- */

const char *inv_derive_name(const inv_derivation *d, inv_id v)
{
    if (d->name[v]) return d->name[v];
    return d->o->carries[v] ? d->name[inv_graph_stands(d->o->g, v)] : NULL;
}

/* Which of them is called. */
static inv_id called(const inv_derivation *d, inv_id v)
{
    return d->name[v] || !d->o->carries[v] ? v : inv_graph_stands(d->o->g, v);
}

static bool ask(inv_derivation *d, uint32_t who)
{
    if (d->asked[who]) return true;
    d->asked[who] = true;
    d->nasked += who < d->cut->nitem;
    return who < d->cut->nitem || inv_vec_push(&d->o->scratch, &d->look, who);
}

/* The candidate is looked at again when v is known. */
static inv_status wait_for(inv_derivation *d, inv_id v, uint32_t who)
{
    const inv_id at = d->o->carries[v] ? inv_graph_stands(d->o->g, v) : v;
    const inv_waiting w = {at, who, d->o->watch[at]};
    if (!inv_vec_push(&d->o->scratch, &d->waiting, w)) return INV_E_NOMEM;
    d->o->watch[at] = (uint32_t)d->waiting.n;
    return INV_OK;
}

static inv_status call(inv_derivation *d, inv_id v, const char *name, inv_dtype type)
{
    inv_outliner *o = d->o;
    if (!name || !inv_vec_push(&o->scratch, &d->named, v)) return INV_E_NOMEM;
    d->name[v] = name;
    o->name_type[v] = type;
    o->other[v] = NULL;
    for (uint32_t i = o->watch[v]; i; i = d->waiting.at[i - 1].next)
        if (!ask(d, d->waiting.at[i - 1].who)) return INV_E_NOMEM;
    o->watch[v] = 0;
    return INV_OK;
}

inv_status inv_derive_call(inv_derivation *d, inv_id v, const char *name)
{
    return call(d, v, name, inv_dtype_is_float(inv_val(d->o->g, v)->dtype) ? d->r.real : INV_DT_NONE);
}

inv_status inv_derive_know(inv_derivation *d, inv_id v, const char *name)
{
    const inv_dtype type = inv_outline_type(d->o, v);
    inv_id c = inv_graph_stands(d->o->g, v);
    INV_TRY(call(d, v, name, type));
    return d->name[c] ? INV_OK : call(d, c, name, type);
}

/* What an inverse gives. */
static inv_status solved(inv_derivation *d, inv_id v, const char *name)
{
    inv_id c = inv_graph_stands(d->o->g, v);
    INV_TRY(inv_derive_call(d, v, name));
    return d->name[c] ? INV_OK : inv_derive_call(d, c, name);
}

/* In a file of one type nothing is cast. */
static bool type_differs(const inv_outliner *o, inv_dtype is, inv_dtype wanted)
{
    return o->type && is != INV_DT_NONE && wanted != INV_DT_NONE && is != wanted;
}

const char *inv_derive_as(inv_derivation *d, inv_id v, inv_dtype type)
{
    inv_outliner *o = d->o;
    const inv_id at = called(d, v);
    const char *name = d->name[at];
    if (!name || !type_differs(o, o->name_type[at], type)) return name;
    if (o->other[at] && o->other_type[at] == type) return o->other[at];
    o->other[at] = inv_onnx_cast(&d->r, name, type);
    o->other_type[at] = type;
    return o->other[at];
}

inv_status inv_derive_output(inv_derivation *d, inv_id v)
{
    inv_outliner *o = d->o;
    const inv_dtype type = inv_outline_type(o, v);
    const bool cast = type_differs(o, o->name_type[called(d, v)], type);
    inv_outline_node same = {.source = INV_NONE,
                             .domain = "",
                             .op_type = cast ? "Cast" : "Identity",
                             .name = "",
                             .nin = 1,
                             .nout = 1,
                             .nattr = cast};
    const char **names = INV_ARENA_NEW(o->a, const char *, 2);
    inv_attr *to = INV_ARENA_NEW(o->a, inv_attr, 1);
    if (!names || !to) return INV_E_NOMEM;
    names[0] = inv_derive_name(d, v);
    names[1] = inv_val(o->flat, v)->name;
    *to = inv_attr_of_int("to", (int64_t)type);
    same.in = names;
    same.out = names + 1;
    same.attr = to;
    if (!cast && strcmp(names[0], names[1]) == 0) return INV_OK;
    return inv_vec_push(o->a, &d->node, same) ? INV_OK : INV_E_NOMEM;
}

/* The file's name for a value of g, a freed one first; a fresh one if it has none of the type at hand. What a model
 * gives out is not read in it as well: converters that leave its type alone change the type of all that reads. */
static const char *label(inv_derivation *d, inv_id c)
{
    const inv_outliner *o = d->o;
    for (size_t i = 0; i < d->cut->in.n; i++) {
        const inv_id v = d->cut->in.at[i];
        if (inv_graph_stands(o->g, v) == c && !type_differs(o, inv_outline_type(o, v), d->r.real))
            return o->reverse ? inv_onnx_fresh(&d->r) : inv_val(o->flat, v)->name;
    }
    for (uint32_t k = o->alias_start[c]; k < o->alias_start[c + 1]; k++) {
        inv_id def = inv_val(o->flat, o->alias[k])->def;
        if (type_differs(o, inv_outline_type(o, o->alias[k]), d->r.real)) continue;
        if (def != INV_NONE && inv_derive_within(d, o->item_at[def])) return inv_val(o->flat, o->alias[k])->name;
    }
    return inv_onnx_fresh(&d->r);
}

/* --- forward: one of the file's nodes again --- */

/* A batch normalization by the statistics of the batch. */
static bool in_training(const inv_node *n)
{
    return strcmp(n->op_type, "BatchNormalization") == 0 && (n->nout > 1 || inv_attr_int(n, "training_mode", 0) != 0);
}

/* The same by the running statistics. */
static inv_status put_settled(inv_derivation *d, const inv_node *n, const char **in, const char **out)
{
    inv_attr *attr = INV_ARENA_NEW(d->o->a, inv_attr, 1);
    if (!attr) return INV_E_NOMEM;
    *attr = inv_attr_of_float("epsilon", inv_attr_float(n, "epsilon", 1e-5));
    inv_outline_node settled = {.source = INV_NONE,
                                .domain = "",
                                .op_type = n->op_type,
                                .name = n->name,
                                .in = in,
                                .out = out,
                                .nin = n->nin,
                                .nout = 1,
                                .attr = attr,
                                .nattr = 1};
    return inv_vec_push(d->o->a, &d->node, settled) ? INV_OK : INV_E_NOMEM;
}

static inv_status run_item(inv_derivation *d, uint32_t who)
{
    const uint32_t i = d->cut->item[who];
    const inv_node *n = inv_item(d->o, i);
    bool wanted = false;
    if (d->o->ran[i] == d->o->stamp) return INV_OK;
    for (uint32_t k = 0; k < n->nin; k++)
        if (n->in[k] != INV_NONE && !inv_derive_name(d, n->in[k])) return wait_for(d, n->in[k], who);
    /* Bodies of control flow name what they capture. */
    for (uint32_t k = inv_node_listed(n); k < n->nin; k++)
        if (strcmp(inv_derive_name(d, n->in[k]), inv_val(d->o->flat, n->in[k])->name) != 0) return INV_OK;
    for (uint32_t k = 0; k < n->nout; k++) wanted = wanted || (n->out[k] != INV_NONE && !inv_derive_name(d, n->out[k]));
    if (!wanted) return INV_OK;
    const char **in = INV_ARENA_NEW(d->o->a, const char *, n->nin + 1);
    const char **out = INV_ARENA_NEW(d->o->a, const char *, n->nout + 1);
    if (!in || !out) return INV_E_NOMEM;
    for (uint32_t k = 0; k < n->nin; k++) {
        in[k] = n->in[k] == INV_NONE ? "" : inv_derive_as(d, n->in[k], inv_outline_type(d->o, n->in[k]));
        if (!in[k]) return INV_E_NOMEM;
    }
    for (uint32_t k = 0; k < n->nout; k++) {
        out[k] = "";
        if (n->out[k] == INV_NONE) continue;
        bool known = inv_derive_name(d, n->out[k]) != NULL;
        out[k] = known ? inv_onnx_fresh(&d->r) : inv_val(d->o->flat, n->out[k])->name;
        if (!out[k]) return INV_E_NOMEM;
        if (!known) INV_TRY(inv_derive_know(d, n->out[k], out[k]));
    }
    d->o->ran[i] = d->o->stamp;
    if (d->o->reverse && in_training(n)) return put_settled(d, n, in, out);
    inv_outline_node copy = {
        .source = i, .in = in, .out = out, .nin = n->nin, .nout = n->nout, .ncaptured = n->nin - inv_node_listed(n)};
    return inv_vec_push(d->o->a, &d->node, copy) ? INV_OK : INV_E_NOMEM;
}

/* --- backward: a local inverse --- */

/* Whether the template uses v as a matrix to solve with only. */
static bool used_as_matrix(const inv_graph *g, const inv_edge *e, inv_id v)
{
    bool matrix = false;
    for (uint32_t i = 0; i < e->nnode; i++) {
        const inv_node *n = inv_nod(g, e->node[i]);
        for (uint32_t k = 0; k < n->nin; k++) {
            if (n->in[k] != v) continue;
            inv_id out = n->nout == 1 ? n->out[0] : INV_NONE;
            bool here =
                inv_raise_matrix(n) == k || (out != INV_NONE && out != v && inv_nodes_give(g, e->node, e->nnode, out) &&
                                             (n->op->flags & INV_OP_VIEW) && used_as_matrix(g, e, out));
            if (!here) return false;
            matrix = true;
        }
    }
    return matrix;
}

/* Then it reads the initializer instead. */
static bool is_matrix(const inv_outliner *o, const inv_edge *e, inv_id v)
{
    return !o->by_operator && used_as_matrix(o->g, e, v);
}

static const inv_edge *edge_of(const inv_derivation *d, uint32_t who)
{
    return &d->o->g->matches->edge.at[d->edge.at[who - d->cut->nitem]];
}

/* The edges of one template stand together, and this is the first of those of e's. */
static const inv_edge *first_of_template(const inv_graph *g, const inv_edge *e)
{
    while (e > g->matches->edge.at && e[-1].node == e->node) e--;
    return e;
}

static bool template_frees(const inv_graph *g, const inv_edge *e, inv_id v)
{
    const inv_edge *end = g->matches->edge.at + g->matches->edge.n, *at = first_of_template(g, e);
    while (at < end && at->node == e->node && at->frees != v) at++;
    return at < end && at->node == e->node;
}

/* Whether v is known, or made of what is known by nodes that the operator solved here was lowered to: parameters that
 * its attributes change (beta of Gemm), a bias per channel, what a spelling has put in between. It is not made of what
 * is to be solved for. If not at hand, `who` waits for it, and for what it is made of. */
static bool at_hand(inv_derivation *d, const inv_edge *e, inv_id v, uint32_t who, inv_status *s)
{
    const inv_graph *g = d->o->g;
    const inv_id def = inv_val(g, v)->def;
    uint32_t *seen = &d->o->seen[v]; /* a value may be read by many of those that it is made of */
    if (d->name[v] || inv_val(g, v)->role == INV_ROLE_CONST) return true;
    if (*seen >> 1 == d->o->look) return *seen & 1;
    *seen = d->o->look << 1;
    if (*s == INV_OK) *s = wait_for(d, v, who);
    const bool unnamed = d->o->alias_start[v] == d->o->alias_start[v + 1];
    if ((d->o->carries[v] && !unnamed) || def == INV_NONE || template_frees(g, e, v)) return false;
    const inv_node *n = inv_nod(g, def);
    /* spelling_linear.c, spelling_outer.c; a matrix that MatMul makes of a vector, a number that it makes of two */
    const bool of_parameters = !d->o->carries[v] && (unnamed || n->op->flags & (INV_OP_ELEMENTWISE | INV_OP_VIEW));
    if (!of_parameters && d->o->item_of[def] != d->o->item_of[e->forward]) return false;
    bool all = n->nin > 0 && inv_raise_knows(n->op) && inv_raise_matrix(n) == INV_NONE;
    for (uint32_t k = 0; k < n->nin && all; k++) all = n->in[k] == INV_NONE || at_hand(d, e, n->in[k], who, s);
    *seen |= all;
    return all;
}

/* How many nodes of the template are written: those that solve, and for log-determinants those that only give terms. */
static uint32_t written_nodes(const inv_derivation *d, const inv_edge *e)
{
    const bool volumes = d->o->reverse && d->o->reverse->with_logdet;
    return e->nnode + (volumes && e->volume ? e->volume->nmore : 0);
}

static inv_status look_at_inverse(inv_derivation *d, uint32_t who, bool *ready)
{
    const inv_graph *g = d->o->g;
    const inv_edge *e = edge_of(d, who);
    const uint32_t nnode = written_nodes(d, e);
    inv_status s = INV_OK;
    *ready = false;
    d->o->look++;
    if (inv_derive_name(d, e->frees) || !d->o->carries[e->frees]) return INV_OK;
    for (uint32_t i = 0; i < nnode; i++)
        if (!inv_raise_knows(inv_nod(g, e->node[i])->op)) return INV_OK;
    for (uint32_t i = 0; i < nnode; i++) {
        const inv_node *n = inv_nod(g, e->node[i]);
        for (uint32_t k = 0; k < n->nin; k++) {
            inv_id v = n->in[k];
            if (v == INV_NONE || inv_nodes_give(g, e->node, nnode, v) || is_matrix(d->o, e, v)) continue;
            if (!at_hand(d, e, v, who, &s)) return s;
        }
    }
    *ready = s == INV_OK;
    return s;
}

bool inv_derive_raise(inv_derivation *d, const inv_node *n, const char *solver)
{
    const char **kept = INV_ARENA_NEW(&d->o->scratch, const char *, n->nin + 1);
    bool ok = kept != NULL;
    if (!d->o->type) return inv_raise_node(&d->r, n, solver);
    for (uint32_t k = 0; k < n->nin && ok; k++) {
        if (n->in[k] == INV_NONE || !(kept[k] = d->name[n->in[k]])) continue;
        d->name[n->in[k]] = inv_derive_as(d, n->in[k], d->r.real);
        ok = d->name[n->in[k]] != NULL;
    }
    ok = ok && inv_raise_node(&d->r, n, solver);
    for (uint32_t k = n->nin; kept && k-- > 0;)
        if (kept[k]) d->name[n->in[k]] = kept[k];
    return ok;
}

/* A constant that lowering made: as a node of the body. */
static inv_status put_constant(inv_derivation *d, inv_id v)
{
    inv_outliner *o = d->o;
    inv_data data = inv_val(o->g, v)->data;
    size_t nelem = (size_t)inv_shape_nelem(&data.shape);
    inv_dtype to = inv_dtype_is_float(data.dtype) ? d->r.real : data.dtype;
    void *bytes = inv_arena_alloc(o->a, nelem * 8 + 1);
    if (!bytes) return INV_E_NOMEM;
    (void)inv_convert(bytes, to, data.bytes, data.dtype, nelem);
    data = (inv_data){to, data.shape, bytes, nelem * inv_dtype_size(to)};
    return inv_derive_call(d, v, inv_onnx_constant(&d->r, &data));
}

inv_status inv_derive_constant(inv_derivation *d, inv_id v)
{
    return d->name[v] || inv_val(d->o->g, v)->role != INV_ROLE_CONST ? INV_OK : put_constant(d, v);
}

/* A node that is put in gives each of its outputs a name; what had one keeps it, and the node's own goes unread. */
static inv_status put_node(inv_derivation *d, const inv_node *n, bool *ok)
{
    const char **kept = INV_ARENA_NEW(&d->o->scratch, const char *, n->nout + 1);
    if (!kept) return INV_E_NOMEM;
    for (uint32_t k = 0; k < n->nout; k++) {
        kept[k] = n->out[k] == INV_NONE ? NULL : d->name[n->out[k]];
        if (kept[k]) d->name[n->out[k]] = inv_onnx_fresh(&d->r);
        else if (n->out[k] != INV_NONE) INV_TRY(inv_derive_call(d, n->out[k], inv_onnx_fresh(&d->r)));
    }
    *ok = *ok && inv_derive_raise(d, n, NULL);
    for (uint32_t k = 0; k < n->nout; k++)
        if (kept[k]) d->name[n->out[k]] = kept[k];
    return d->o->a->failed ? INV_E_NOMEM : INV_OK;
}

/* What is at hand gets its name. *ok false: it cannot be written, d->r.reason. */
static inv_status put_operand(inv_derivation *d, inv_id v, bool *ok)
{
    const inv_graph *g = d->o->g;
    if (!*ok || v == INV_NONE || d->name[v]) return INV_OK;
    if (inv_val(g, v)->role == INV_ROLE_CONST) return put_constant(d, v);
    const inv_node *n = inv_nod(g, inv_val(g, v)->def);
    for (uint32_t k = 0; k < n->nin; k++) INV_TRY(put_operand(d, n->in[k], ok));
    return put_node(d, n, ok);
}

/* Names for the template's outputs: of the values that it frees (a split has several), and fresh ones between. */
static inv_status name_template(inv_derivation *d, const inv_edge *e, inv_ids *freed)
{
    const inv_graph *g = d->o->g;
    const inv_edge *end = g->matches->edge.at + g->matches->edge.n;
    for (const inv_edge *other = first_of_template(g, e); other < end && other->node == e->node; other++) {
        if (inv_derive_name(d, other->frees)) continue;
        const char *name = label(d, other->frees);
        INV_TRY(inv_derive_call(d, other->result, name));
        INV_TRY(solved(d, other->frees, name));
        if (!inv_vec_push(&d->o->scratch, freed, other->frees)) return INV_E_NOMEM;
    }
    for (uint32_t i = 0; i < written_nodes(d, e); i++) {
        const inv_node *n = inv_nod(g, e->node[i]);
        for (uint32_t k = 0; k < n->nout; k++)
            if (n->out[k] != INV_NONE && !d->name[n->out[k]])
                INV_TRY(inv_derive_call(d, n->out[k], inv_onnx_fresh(&d->r)));
    }
    return INV_OK;
}

/* A value of the type at hand that the node takes beside its matrix; NULL: there is none. */
static const char *like_of(inv_derivation *d, const inv_node *n, uint32_t matrix)
{
    const inv_outliner *o = d->o;
    for (uint32_t k = 0; k < n->nin; k++) {
        const inv_id v = n->in[k];
        if (k == matrix || v == INV_NONE || !d->name[v] || !inv_dtype_is_float(inv_val(o->g, v)->dtype)) continue;
        if (!type_differs(o, o->name_type[v], d->r.real)) return d->name[v];
    }
    return NULL;
}

/* The operator sets of plugins that the template takes, where the model does not import them. */
static inv_status import_sets(const inv_derivation *d, const inv_edge *e)
{
    inv_outliner *o = d->o;
    for (uint32_t i = 0; i < written_nodes(d, e); i++) {
        const inv_op_def *op = inv_nod(o->g, e->node[i])->op;
        if (!inv_raise_is_of_plugin(op) || inv_graph_opset(o->flat, op->domain)) continue;
        const inv_opset set = {inv_arena_strdup(&o->flat->arena, op->domain), op->since};
        const inv_opset written = {inv_arena_strdup(o->a, op->domain), op->since};
        if (!set.domain || !written.domain || !inv_vec_push(&o->flat->arena, &o->flat->opset, set) ||
            !inv_vec_push(o->a, &o->out->opset, written))
            return INV_E_NOMEM;
    }
    return INV_OK;
}

static inv_status write_edge(inv_derivation *d, const inv_edge *e, bool *done)
{
    inv_outliner *o = d->o;
    const inv_graph *g = o->g;
    inv_derived used = {.edge = e, .first = d->node.n};
    INV_TRY(name_template(d, e, &used.freed));
    for (uint32_t i = 0; i < written_nodes(d, e); i++) {
        const inv_node *n = inv_nod(g, e->node[i]);
        const char *solver = NULL;
        if (n->nout == 1 && is_matrix(o, e, n->out[0])) continue;
        const uint32_t matrix = o->by_operator ? INV_NONE : inv_raise_matrix(n);
        *done = matrix == INV_NONE || (solver = inv_derive_solver(d, n->in[matrix], inv_attr_int(n, "group", 1), false,
                                                                  like_of(d, n, matrix))) != NULL;
        if (!*done) return o->a->failed || o->scratch.failed ? INV_E_NOMEM : INV_OK;
        for (uint32_t k = 0; k < n->nin; k++)
            if (k != matrix) INV_TRY(put_operand(d, n->in[k], done));
        if (*done && inv_derive_raise(d, n, solver)) continue;
        if (o->a->failed) return INV_E_NOMEM;
        *done = false;
        return INV_OK;
    }
    INV_TRY(import_sets(d, e));
    *done = true;
    used.end = d->node.n;
    return inv_vec_push(&o->scratch, &d->used, used) ? INV_OK : INV_E_NOMEM;
}

/* Whether it only puts entries elsewhere, in whatever type. */
static bool only_moves(const inv_graph *g, const inv_edge *e)
{
    static const char *const movers[] = {"View", "Transpose", "Permute", "SplitSizes", "SliceRange", "Concat"};
    if (!e->exact) return false;
    for (uint32_t i = 0; i < e->nnode; i++)
        if (!inv_texts_have(movers, sizeof movers / sizeof *movers, inv_nod(g, e->node[i])->op_type)) return false;
    return true;
}

/* In which type an inverse is computed: that of the operator that it solves, in place of half precision float32, for
 * which every runtime has all operators. */
static inv_dtype type_of_edge(const inv_outliner *o, const inv_edge *e)
{
    const uint32_t item = o->item_of[e->forward];
    inv_dtype t = INV_DT_NONE;
    if (!o->type || item == INV_NONE) return inv_outline_work(o);
    const inv_node *n = inv_item(o, item);
    for (uint32_t k = 0; k < n->nout && !t; k++) t = n->out[k] == INV_NONE ? t : inv_outline_type(o, n->out[k]);
    const bool half = t == INV_F16 || t == INV_BF16;
    return t == INV_DT_NONE || (half && !only_moves(o->g, e)) ? inv_outline_work(o) : t;
}

static inv_status run_edge(inv_derivation *d, const inv_edge *e, bool *done)
{
    const inv_outliner *o = d->o;
    d->r.real = type_of_edge(o, e);
    inv_status s = write_edge(d, e, done);
    d->r.real = inv_outline_work(o);
    if (s != INV_OK || *done) return s;
    const uint32_t item = o->item_of[e->forward];
    const inv_node *n = item == INV_NONE ? inv_nod(o->g, e->forward) : inv_item(o, item);
    d->r.reason = inv_arena_printf(o->a, "node '%s' (%s): %s", inv_node_called(item == INV_NONE ? o->g : o->flat, n),
                                   n->op_type, d->r.reason ? d->r.reason : "its inverse cannot be written");
    return d->r.reason ? INV_OK : INV_E_NOMEM;
}

/* Where the rule of a coupling by a mask solves an operator it comes first: the steps of a coupling are inverses of one
 * value each only if what the mask keeps is seen with them. Else what only moves entries, then the better conditioned;
 * of a block and an operator in it that are equally so the block, whose rule knows how what it reads hangs together. */
static bool better_inverse(const inv_graph *g, const inv_edge *e, const inv_edge *than)
{
    enum { AS_A_WHOLE = 139 };
    const bool whole = e->rule->priority >= AS_A_WHOLE;
    if (e->forward == than->forward && whole != (than->rule->priority >= AS_A_WHOLE)) return whole;
    if (only_moves(g, e) != only_moves(g, than)) return only_moves(g, e);
    if (e->gain != than->gain) return e->gain < than->gain;
    return e->forward == than->forward && e->rule->priority > than->rule->priority;
}

/* At first everything is looked at. */
static inv_status ask_all(inv_derivation *d)
{
    const inv_outliner *o = d->o;
    for (uint32_t k = 0; k < d->cut->nitem; k++)
        for (uint32_t i = o->edge_start[d->cut->item[k]]; i < o->edge_start[d->cut->item[k] + 1]; i++)
            if (!inv_vec_push(&d->o->scratch, &d->edge, o->edge[i])) return INV_E_NOMEM;
    const uint32_t all = d->cut->nitem + (uint32_t)d->edge.n;
    d->asked = INV_ARENA_NEW(&d->o->scratch, bool, all + 1);
    for (uint32_t who = 0; d->asked && who < all; who++)
        if (!ask(d, who)) return INV_E_NOMEM;
    return d->asked ? INV_OK : INV_E_NOMEM;
}

/* In the cut's order, again and again until none is left that can be run. */
static inv_status run_items(inv_derivation *d)
{
    while (d->nasked)
        for (uint32_t who = 0; who < d->cut->nitem && d->nasked; who++) {
            if (!d->asked[who]) continue;
            d->asked[who] = false;
            d->nasked--;
            INV_TRY(run_item(d, who));
        }
    return INV_OK;
}

static inv_status find_ready(inv_derivation *d)
{
    while (d->look.n) {
        const uint32_t who = d->look.at[--d->look.n];
        bool ready;
        d->asked[who] = false;
        INV_TRY(look_at_inverse(d, who, &ready));
        if (!ready) continue;
        if (!inv_vec_push(&d->o->scratch, &d->ready, who)) return INV_E_NOMEM;
        size_t at = d->ready.n - 1;
        for (; at > 0 && d->ready.at[at - 1] > who; at--) d->ready.at[at] = d->ready.at[at - 1];
        d->ready.at[at] = who;
    }
    return INV_OK;
}

/* Of those that are ready; what is known by now is dropped. For one value a rule of a plugin comes before those of
 * lower priority. */
static const inv_edge *best_edge(inv_derivation *d)
{
    const inv_edge *best = NULL, **foremost = d->o->foremost;
    size_t n = 0;
    for (size_t i = 0; i < d->ready.n; i++) {
        const inv_edge *e = edge_of(d, d->ready.at[i]), **own = &foremost[e->frees];
        if (inv_derive_name(d, e->frees)) continue;
        d->ready.at[n++] = d->ready.at[i];
        if (e->plugin && (!*own || e->rule->priority > (*own)->rule->priority)) *own = e;
    }
    d->ready.n = n;
    for (size_t i = 0; i < n; i++) {
        const inv_edge *e = edge_of(d, d->ready.at[i]), *own = foremost[e->frees];
        const bool outdone = own && own->rule->priority > e->rule->priority;
        if (!outdone && (!best || better_inverse(d->o->g, e, best))) best = e;
    }
    for (size_t i = 0; i < n; i++) foremost[edge_of(d, d->ready.at[i])->frees] = NULL;
    return best;
}

/* Derives all that can be derived: by inverses that only move entries, else forward, else by other inverses. So what is
 * put together of parts is taken apart by inverses: the file may read a part of it from the whole (x is written in
 * place, and read again), but forward is only what the canonical graph computes so. */
inv_status inv_derive_close(inv_derivation *d, bool *ok)
{
    *ok = true;
    if (!d->asked) INV_TRY(ask_all(d));
    while (*ok) {
        INV_TRY(find_ready(d));
        const inv_edge *e = best_edge(d);
        if (!e || !only_moves(d->o->g, e)) {
            INV_TRY(run_items(d));
            INV_TRY(find_ready(d));
            e = best_edge(d);
        }
        bool more = e != NULL;
        if (e) INV_TRY(run_edge(d, e, ok));
        else INV_TRY(inv_derive_extents(d, &more));
        if (!more) return INV_OK;
    }
    return INV_OK;
}

void inv_derive_begin(inv_derivation *d)
{
    inv_outliner *o = d->o;
    d->name = o->name;
    o->stamp++;
    for (uint32_t k = 0; k < d->cut->nitem; k++) o->held[d->cut->item[k]] = o->stamp;
    d->r = (inv_onnx_body){.g = o->g,
                           .a = o->a,
                           .opset = inv_graph_opset(o->flat, ""),
                           .real = inv_outline_work(o),
                           .name = d->name,
                           .node = &d->node,
                           .names = o->flat,
                           .gone = o->gone,
                           .by_operator = o->by_operator,
                           .reserved = o->reverse ? o->reverse->with_logdet : NULL};
}

void inv_derive_end(inv_derivation *d)
{
    for (size_t i = 0; i < d->named.n; i++) d->name[d->named.at[i]] = d->o->other[d->named.at[i]] = NULL;
    for (size_t i = 0; i < d->waiting.n; i++) d->o->watch[d->waiting.at[i].v] = 0;
}
