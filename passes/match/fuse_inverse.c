/* SPDX-License-Identifier: Apache-2.0
 * Fuses an inverse that is a sum with the operator that gives what is summed. The inverse of y = x + F(h) takes F(h)
 * away again, and F's last operator may be able to add its result onto something (column `onto` of its row,
 * core/graph/op.h). Then one node does both: t = ConvN(h, w)   x = Sub(y, t)      x = ConvN<minus = 1>(h, w, onto y) It
 * is written over y, so that t never takes memory. The fused edge stands beside the other one for the same value, and
 * the planner chooses. One look at each edge. requires: layouts settled.  gives: more of g->matches->edge. */
#include <string.h>

#include "core/program/cost.h"
#include "passes/match/match.h"

static bool same_type_and_shape(const inv_graph *g, inv_id a, inv_id b)
{
    const inv_value *x = inv_val(g, a), *y = inv_val(g, b);
    return x->dtype == y->dtype && inv_shape_equal(&x->shape, &y->shape);
}

/* The node of forward that gives operand k of the sum, if it can add that onto the other one; INV_NONE. */
static inv_id summand_giver(const inv_graph *g, const inv_node *sum, uint32_t k)
{
    const inv_id t = sum->in[k], other = sum->in[1 - k], def = inv_val(g, t)->def;
    if (def == INV_NONE || t == other || !same_type_and_shape(g, t, other) || !same_type_and_shape(g, t, sum->out[0]))
        return INV_NONE;
    const inv_node *n = inv_nod(g, def);
    const uint32_t slot = n->op->onto;
    return slot && n->phase == INV_FORWARD && n->nout == 1 && n->nin <= slot ? def : INV_NONE;
}

static inv_status fuse_edge(inv_graph *g, inv_edge e, const inv_node *sum, uint32_t k)
{
    const inv_node n = *inv_nod(g, summand_giver(g, sum, k));
    const uint32_t slot = n.op->onto;
    const size_t order = g->order.n;
    const uint8_t phase = g->phase;
    inv_id *in = INV_ARENA_NEW(&g->arena, inv_id, slot + 1), *node = INV_ARENA_NEW(&g->arena, inv_id, 1);
    inv_attr *attr = INV_ARENA_NEW(&g->arena, inv_attr, n.nattr + 1);
    if (!in || !node || !attr) return INV_E_NOMEM;
    for (uint32_t i = 0; i < slot; i++) in[i] = i < n.nin ? n.in[i] : INV_NONE;
    in[slot] = sum->in[1 - k];
    if (n.nattr) memcpy(attr, n.attr, n.nattr * sizeof *attr);
    attr[n.nattr] = inv_attr_of_int("minus", inv_op_is(sum, "Sub"));
    g->phase = INV_BACKWARD;
    e.result = inv_emit1(g, n.op->name, slot + 1, in, n.nattr + 1, attr);
    g->phase = phase;
    g->order.n = order;
    if (e.result == INV_NONE) return g->failed;
    node[0] = inv_val(g, e.result)->def;
    e.node = node;
    e.nnode = 1;
    e.flops = inv_node_flops(g, inv_nod(g, node[0]));
    e.fused = true;
    return inv_vec_push(&g->arena, &g->matches->edge, e) ? INV_OK : INV_E_NOMEM;
}

inv_status inv_pass_fuse_inverse(inv_graph *g)
{
    const size_t n = g->matches ? g->matches->edge.n : 0;
    for (size_t i = 0; i < n; i++) {
        const inv_edge e = g->matches->edge.at[i];
        if (e.nnode != 1 || e.nsave > 0) continue;
        const inv_node sum = *inv_nod(g, e.node[0]);
        const bool sub = inv_op_is(&sum, "Sub");
        if (!sub && !inv_op_is(&sum, "Add")) continue;
        for (uint32_t k = sub; k < 2; k++) /* of a difference, what is taken away */
            if (summand_giver(g, &sum, k) != INV_NONE) INV_TRY(fuse_edge(g, e, &sum, k));
    }
    return INV_OK;
}
