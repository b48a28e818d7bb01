/* SPDX-License-Identifier: Apache-2.0
 * The pass of `check`: it runs every inverse edge beside the forward nodes that it solves, and measures how far the
 * result is off. In float64 it also runs each edge from a start that is moved a little, which shows by how much the
 * edge magnifies errors. Nothing is freed and nothing recovered: each copy of an edge stands where all that it reads
 * has just been computed, so one forward run answers for all edges. Time and nodes grow with the nodes of all edges.
 * requires: canonical forward graph with matches.  gives: plan->check, values that the executor reads. */
#include <string.h>

#include "passes/match/match.h"

/* The share by which a start is moved: far above float64's rounding, and so small that only the first order counts. */
#define SHIFT 0x1p-20

typedef struct checker {
    inv_graph *g;
    inv_plan *plan;
    inv_arena scratch;
    size_t nvalue; /* before any was added */
    inv_id *map;   /* per value: what an emitted copy reads in its place; INV_NONE: itself */
    inv_ids mapped;
} checker;

static bool map_value(checker *c, inv_id v, inv_id by)
{
    c->map[v] = by;
    return inv_vec_push(&c->scratch, &c->mapped, v);
}

static void forget_mapped(checker *c)
{
    for (size_t i = 0; i < c->mapped.n; i++) c->map[c->mapped.at[i]] = INV_NONE;
    c->mapped.n = 0;
}

/* Emits the nodes of an edge once more, in the order, with the values of `map` in place of those that they read. */
static inv_id emit_edge_copy(checker *c, const inv_edge *e)
{
    inv_graph *g = c->g;
    for (uint32_t i = 0; i < e->nnode; i++) {
        const inv_node n = *inv_nod(g, e->node[i]);
        inv_id *in = INV_ARENA_NEW(&c->scratch, inv_id, n.nin + 1),
               *out = INV_ARENA_NEW(&c->scratch, inv_id, n.nout + 1);
        if (!in || !out) return INV_NONE;
        for (uint32_t k = 0; k < n.nin; k++)
            in[k] = n.in[k] != INV_NONE && c->map[n.in[k]] != INV_NONE ? c->map[n.in[k]] : n.in[k];
        if (inv_emit_op(g, n.op, n.nout, n.nin, in, n.nattr, n.attr, out) == INV_NONE) return INV_NONE;
        for (uint32_t k = 0; k < n.nout; k++)
            if (n.out[k] != INV_NONE && !map_value(c, n.out[k], out[k])) return INV_NONE;
    }
    return c->map[e->result];
}

/* Emits the norm of one value and its count of non-finite elements (GuardSum), which the executor reads. */
static inv_id emit_norm(inv_graph *g, inv_id v)
{
    const inv_attr key = inv_attr_of_int("key", 1);
    return v == INV_NONE ? v : inv_emit1(g, "GuardSum", INV_IN(v), 1, &key);
}

static inv_id emit_largest(inv_graph *g, inv_id v)
{
    int64_t axes[INV_MAX_RANK];
    if (v == INV_NONE) return v;
    const int rank = inv_val(g, v)->shape.rank;
    for (int d = 0; d < rank; d++) axes[d] = d;
    const inv_id magnitude = inv_emit1(g, "Abs", INV_IN(v), INV_NOATTR);
    if (magnitude == INV_NONE || rank == 0) return magnitude;
    return inv_emit1(g, "ReduceMaxAxes", INV_IN(magnitude),
                     INV_ATTRS(inv_attr_of_ints("axes", (size_t)rank, axes), inv_attr_of_int("keepdims", 0)));
}

static inv_id emit_sum_with(inv_graph *g, inv_id a, inv_id b)
{
    return a == INV_NONE ? b : inv_emit1(g, "Add", INV_IN(a, b), INV_NOATTR);
}

static inv_id emit_binary(inv_graph *g, const char *op, inv_id a, inv_id b)
{
    return a == INV_NONE || b == INV_NONE ? INV_NONE : inv_emit1(g, op, INV_IN(a, b), INV_NOATTR);
}

static inv_id emit_unary(inv_graph *g, const char *op, inv_id a)
{
    return a == INV_NONE ? a : inv_emit1(g, op, INV_IN(a), INV_NOATTR);
}

/* Emits v with every element moved nearer to zero by a random share of SHIFT times the tensor's root mean square, as
 * errors from elsewhere are not in proportion to single elements; but by half of itself at most, so that no inverse
 * leaves its domain. *shift is what was taken off. */
static inv_id emit_shrunken(checker *c, inv_id v, inv_id *shift)
{
    inv_graph *g = c->g;
    const inv_shape s = inv_val(g, v)->shape;
    int64_t axes[INV_MAX_RANK];
    for (int d = 0; d < s.rank; d++) axes[d] = d;
    const inv_attr all[] = {inv_attr_of_ints("axes", (size_t)s.rank, axes), inv_attr_of_int("keepdims", 0)};
    const inv_attr draw[] = {inv_attr_of_ints("shape", (size_t)s.rank, s.dim), inv_attr_of_float("a", 0),
                             inv_attr_of_float("b", SHIFT), inv_attr_of_int("key", v)};
    const inv_id square = emit_binary(g, "Mul", v, v),
                 mean = s.rank && square != INV_NONE ? inv_emit1(g, "ReduceMeanAxes", INV_IN(square), 2, all) : square,
                 share =
                     emit_binary(g, "Mul", inv_emit1(g, "RandomDraw", 0, NULL, 4, draw), emit_unary(g, "Sqrt", mean)),
                 half = emit_binary(g, "Mul", emit_unary(g, "Abs", v), inv_graph_const_real(g, g->real, 0.5));
    *shift = emit_binary(g, "Mul", emit_binary(g, "Min", share, half), emit_unary(g, "Sign", v));
    return emit_binary(g, "Sub", v, *shift);
}

/* Moves what the edge starts from, the outputs of the node that it solves. False: it reads none of them. */
static bool move_start(checker *c, const inv_edge *e, inv_check *row)
{
    inv_graph *g = c->g;
    const inv_node forward = *inv_nod(g, e->forward);
    bool any = false;
    for (uint32_t i = 0; i < e->nnode; i++) {
        const inv_node n = *inv_nod(g, e->node[i]);
        for (uint32_t k = 0; k < n.nin; k++) {
            bool given = false;
            for (uint32_t j = 0; j < forward.nout; j++) given = given || forward.out[j] == n.in[k];
            if (!given || n.in[k] == INV_NONE || c->map[n.in[k]] != INV_NONE) continue;
            if (inv_val(g, n.in[k])->dtype != g->real) continue;
            inv_id shift, shrunken = emit_shrunken(c, n.in[k], &shift);
            if (shrunken == INV_NONE || !map_value(c, n.in[k], shrunken)) return false;
            row->start = emit_sum_with(g, row->start, emit_norm(g, n.in[k]));
            row->moved = emit_sum_with(g, row->moved, emit_norm(g, shift));
            any = true;
        }
    }
    return any;
}

static inv_status check_edge(checker *c, uint32_t edge)
{
    inv_graph *g = c->g;
    const inv_edge e = g->matches->edge.at[edge];
    inv_check row = {edge, INV_NONE, INV_NONE, INV_NONE, INV_NONE, INV_NONE, INV_NONE, INV_NONE};
    const inv_id back = emit_edge_copy(c, &e);
    if (e.spread != INV_NONE) row.spread = emit_largest(g, c->map[e.spread] != INV_NONE ? c->map[e.spread] : e.spread);
    forget_mapped(c);
    if (back == INV_NONE) return g->failed ? g->failed : INV_E_NOMEM;
    const inv_id off = inv_emit1(g, "Sub", INV_IN(back, e.frees), INV_NOATTR);
    row.value = emit_norm(g, e.frees);
    row.off = emit_norm(g, off);
    row.most = emit_largest(g, off);
    if (g->real == INV_F64 && !e.exact && move_start(c, &e, &row)) {
        const inv_id other = emit_edge_copy(c, &e);
        if (other != INV_NONE) row.change = emit_norm(g, inv_emit1(g, "Sub", INV_IN(other, back), INV_NOATTR));
    }
    forget_mapped(c);
    INV_TRY(g->failed);
    const inv_id results[] = {row.value, row.off, row.most, row.spread, row.start, row.moved, row.change};
    for (size_t i = 0; i < sizeof results / sizeof *results; i++)
        if (results[i] != INV_NONE) inv_val(g, results[i])->keep = true;
    return inv_vec_push(&g->arena, &c->plan->check, row) ? INV_OK : INV_E_NOMEM;
}

/* The position of the last forward node whose result the edge reads, or that gives what it frees. */
static uint32_t ready_at(const inv_graph *g, const uint32_t *pos, const inv_edge *e)
{
    uint32_t at = pos[e->forward];
    for (uint32_t i = 0; i < e->nnode; i++) {
        const inv_node *n = inv_nod(g, e->node[i]);
        for (uint32_t k = 0; k < n->nin; k++) {
            const inv_id def = n->in[k] == INV_NONE ? INV_NONE : inv_val(g, n->in[k])->def;
            if (def != INV_NONE && pos[def] > at) at = pos[def];
        }
    }
    return at;
}

static inv_status check_all_edges(checker *c)
{
    inv_graph *g = c->g;
    const size_t nedge = g->matches ? g->matches->edge.n : 0;
    const inv_ids old = g->order;
    uint32_t *pos = INV_ARENA_NEW(&c->scratch, uint32_t, g->node.n + 1), /* templates: 0 */
        *first = INV_ARENA_NEW(&c->scratch, uint32_t, old.n + 1),        /* 1 + edge; 0: none */
            *next = INV_ARENA_NEW(&c->scratch, uint32_t, nedge + 1);
    c->map = INV_ARENA_NEW(&c->scratch, inv_id, c->nvalue + 1);
    if (!pos || !first || !next || !c->map) return INV_E_NOMEM;
    for (size_t v = 0; v < c->nvalue; v++) c->map[v] = INV_NONE;
    for (size_t i = 0; i < old.n; i++) pos[old.at[i]] = (uint32_t)i;
    for (size_t i = nedge; i-- > 0;) {
        const inv_edge *e = &g->matches->edge.at[i];
        if (!inv_dtype_is_float(inv_val(g, e->frees)->dtype)) continue;
        const uint32_t at = ready_at(g, pos, e);
        next[i] = first[at];
        first[at] = (uint32_t)i + 1;
    }
    g->order = (inv_ids){0};
    for (size_t i = 0; i < old.n; i++) {
        if (!inv_vec_push(&g->arena, &g->order, old.at[i])) return INV_E_NOMEM;
        inv_emit_for(g, inv_nod(g, old.at[i]));
        for (uint32_t e = first[i]; e; e = next[e - 1]) INV_TRY(check_edge(c, e - 1));
    }
    inv_emit_for(g, NULL);
    return INV_OK;
}

inv_status inv_pass_check(inv_graph *g, inv_plan *plan)
{
    checker c = {.g = g, .plan = plan, .nvalue = g->value.n};
    inv_arena_init(&c.scratch, g->ctx);
    g->phase = INV_FORWARD;
    inv_status s = check_all_edges(&c);
    inv_arena_fini(&c.scratch);
    return s;
}
