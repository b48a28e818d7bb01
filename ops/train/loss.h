/* SPDX-License-Identifier: Apache-2.0
 * What loss.c and class_loss.c share. */
#ifndef INV_OPS_TRAIN_LOSS_H
#define INV_OPS_TRAIN_LOSS_H

#include "ops/base/util.h"

/* The gradient of a loss is an operand: a float64 scalar. */
static inline inv_status inv_need_loss_grad(const inv_graph *g, const inv_node *n, uint32_t i)
{
    if (!inv_has_in(n, i)) return inv_node_fail(g, n, INV_E_GRAPH, "input %u is required but missing", i);
    if (inv_in_dtype(g, n, i) == INV_F64 && inv_shape_nelem(inv_in_shape(g, n, i)) == 1) return INV_OK;
    return inv_node_fail(g, n, INV_E_SHAPE, "input %u, the gradient of the loss, must be a double scalar", i);
}

#endif
