/* SPDX-License-Identifier: Apache-2.0
 * Backward expands quantized constants itself. What forward has expanded for an operator without a kernel for packed
 * constants would be kept until backward, where everything is stored.
 * requires: backward nodes.  gives: no node of backward reads an Unpack of forward. */
#include <string.h>

#include "passes/autodiff/autodiff.h"

/* The inputs of node `id` that forward has expanded, expanded anew. */
static inv_status expand_inputs(inv_graph *g, inv_id id)
{
    for (uint32_t k = 0; k < inv_nod(g, id)->nin; k++) {
        const inv_node *u = inv_def_node(g, inv_nod(g, id)->in[k]);
        if (!inv_op_is(u, "Unpack") || u->phase != INV_FORWARD) continue;
        const inv_node copy = *u;
        inv_emit_for(g, &copy);
        const inv_id again = inv_emit1(g, "Unpack", copy.nin, copy.in, copy.nattr, copy.attr);
        if (again == INV_NONE) return g->failed;
        inv_nod(g, id)->in[k] = again;
    }
    return INV_OK;
}

inv_status inv_pass_unpack_again(inv_graph *g)
{
    const inv_ids old = g->order;
    const uint8_t phase = g->phase;
    memset(&g->order, 0, sizeof g->order);
    g->phase = INV_BACKWARD;
    for (size_t i = 0; i < old.n; i++) {
        if (inv_nod(g, old.at[i])->phase == INV_BACKWARD) INV_TRY(expand_inputs(g, old.at[i]));
        if (!inv_vec_push(&g->arena, &g->order, old.at[i])) return INV_E_NOMEM;
    }
    g->phase = phase;
    inv_emit_for(g, NULL);
    return INV_OK;
}
