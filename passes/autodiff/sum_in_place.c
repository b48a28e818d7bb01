/* SPDX-License-Identifier: Apache-2.0
 * Sums of gradients of a parameter that is read more than once, such as an embedding that is the last product's matrix,
 * too. A summand that comes of an operator with an operand `sum` is added in place:
 *
 *     d = GatherGrad(gy, i)   s = Add(t, d)      s = GatherGrad(gy, i, t)
 *
 * so there is one tensor of the parameter's size, not two. The operator moves to where the sum was.
 * requires: plan->grad.  O(nodes). */
#include <string.h>

#include "passes/autodiff/autodiff.h"

enum { SLOT = 2 }; /* of `sum` */

static bool adds_in_place(const inv_node *n)
{
    return (inv_op_is(n, "MatMulT") || inv_op_is(n, "GatherGrad")) && (n->nin <= SLOT || n->in[SLOT] == INV_NONE);
}

/* The operand of the sum that its own node may add: the one that comes later, if nothing else reads it. INV_NONE. */
static inv_id addend(const inv_graph *g, const inv_node *sum, const uint32_t *nreader, const size_t *at)
{
    const inv_id a = inv_val(g, sum->in[0])->def, b = inv_val(g, sum->in[1])->def;
    if (a == INV_NONE || b == INV_NONE || a == b) return INV_NONE;
    const uint32_t k = at[a] < at[b];
    const inv_value *d = inv_val(g, sum->in[k]), *other = inv_val(g, sum->in[1 - k]);
    if (!adds_in_place(inv_nod(g, d->def)) || nreader[sum->in[k]] != 1 || d->keep) return INV_NONE;
    return inv_shape_equal(&d->shape, &other->shape) ? sum->in[k] : INV_NONE;
}

/* The node of v, which becomes part of the sum. */
static inv_status take_sum(inv_graph *g, inv_id sum, inv_id v)
{
    const inv_node *add = inv_nod(g, sum);
    inv_node *n = inv_nod(g, inv_val(g, v)->def);
    inv_id *in = INV_ARENA_NEW(&g->arena, inv_id, SLOT + 1);
    if (!in) return INV_E_NOMEM;
    memcpy(in, n->in, SLOT * sizeof *in);
    in[SLOT] = add->in[add->in[0] == v];
    n->in = in;
    n->nin = SLOT + 1;
    n->out[0] = add->out[0];
    inv_val(g, n->out[0])->def = inv_val(g, v)->def;
    inv_val(g, v)->def = INV_NONE;
    return INV_OK;
}

/* Sums that lead to this gradient; moved: per node, where it goes. */
static inv_status sum_gradient(inv_graph *g, inv_id grad, const uint32_t *nreader, const size_t *at, inv_id *moved)
{
    for (inv_id v = grad;;) {
        const inv_id sum = inv_val(g, v)->def;
        const inv_node *n = inv_def_node(g, v);
        if (!inv_op_is(n, "Add") || n->phase != INV_BACKWARD) return INV_OK;
        const inv_id d = addend(g, n, nreader, at);
        if (d == INV_NONE) return INV_OK;
        v = n->in[n->in[0] == d];
        moved[sum] = inv_val(g, d)->def;
        INV_TRY(take_sum(g, sum, d));
    }
}

static inv_status sum_in_place(inv_graph *g, const inv_plan *plan, inv_arena *scratch)
{
    uint32_t *nreader = INV_ARENA_NEW(scratch, uint32_t, g->value.n + 1);
    size_t *at = INV_ARENA_NEW(scratch, size_t, g->node.n + 1);
    inv_id *moved = INV_ARENA_NEW(scratch, inv_id, g->node.n + 1); /* per node: the one that takes its place */
    bool *moves = INV_ARENA_NEW(scratch, bool, g->node.n + 1);
    if (scratch->failed) return INV_E_NOMEM;
    for (size_t i = 0; i < g->node.n; i++) moved[i] = INV_NONE;
    for (size_t i = 0; i < g->order.n; i++) {
        const inv_node *n = inv_nod(g, g->order.at[i]);
        at[g->order.at[i]] = i;
        for (uint32_t k = 0; k < n->nin; k++)
            if (n->in[k] != INV_NONE) nreader[n->in[k]]++;
    }
    for (size_t i = 0; i < plan->grad.n; i++) INV_TRY(sum_gradient(g, plan->grad.at[i].value, nreader, at, moved));
    for (size_t i = 0; i < g->node.n; i++)
        if (moved[i] != INV_NONE) moves[moved[i]] = true;
    size_t n = 0;
    for (size_t i = 0; i < g->order.n; i++) {
        const inv_id id = g->order.at[i];
        if (moves[id]) continue;
        g->order.at[n++] = moved[id] != INV_NONE ? moved[id] : id;
    }
    g->order.n = n;
    return INV_OK;
}

inv_status inv_pass_sum_in_place(inv_graph *g, const inv_plan *plan)
{
    inv_arena scratch;
    inv_arena_init(&scratch, g->ctx);
    const inv_status s = sum_in_place(g, plan, &scratch);
    inv_arena_fini(&scratch);
    return s;
}
