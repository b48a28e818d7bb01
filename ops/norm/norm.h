/* SPDX-License-Identifier: Apache-2.0
 * What batch, layer and group normalisation share: their nodes read x, scale and bias, those of their gradients x, gy
 * and scale, and give dx, dscale and dbias. */
#ifndef INV_OPS_NORM_NORM_H
#define INV_OPS_NORM_NORM_H

#include "core/graph/op.h"
#include "ops/norm/norm_gpu.h"

/* The operands of a call; mean and var, where there are any, come last. */
inv_norm inv_norm_of(const inv_call *c, bool grad);

/* dx, dscale, dbias; NULL for those that are not wanted. */
void inv_norm_results(const inv_call *c, void *out[3]);

/* Inputs 0 to last-1 are there and of one floating-point type. */
inv_status inv_norm_need(const inv_graph *g, const inv_node *n, uint32_t last);

/* Inputs first to last-1 have `count` elements, one per `what`. */
inv_status inv_norm_need_vectors(const inv_graph *g, const inv_node *n, uint32_t first, uint32_t last, int64_t count,
                                 const char *what);

/* Of a gradient: x and gy have one shape; dx is like x, dscale and dbias are like scale. */
inv_status inv_norm_infer_grad(inv_graph *g, const inv_node *n);

/* (x - mean) scale / sqrt(var + epsilon) + bias, of x, scale, bias, mean and var, as operators that have gradients to
 * all of these. */
inv_id inv_batch_norm_spelled(inv_graph *g, const inv_id in[5], double eps);

/* Whether v is computed from what is fed: then it is no statistic that was stored, and has a gradient. */
bool inv_is_computed(inv_graph *g, inv_id v);

/* The arithmetic is in double, so that any floating-point `stash_type` of ONNX is served. */
inv_status inv_norm_need_stash(const inv_graph *g, const inv_node *n);

#endif
