/* SPDX-License-Identifier: Apache-2.0
 * What pool.c and pool_onnx.c share: the windows of a pooling node, emitting one, and ONNX's rows. */
#ifndef INV_OPS_IMAGE_POOL_H
#define INV_OPS_IMAGE_POOL_H

#include "ops/base/window.h"

/* NULL, or what is wrong. */
const char *inv_pool_of(const inv_node *n, const inv_shape *x, inv_window *w);
/* `op` with the window's attributes, explicit pads, and at most three more. */
inv_id inv_emit_pool(inv_graph *g, const char *op, uint32_t nout, uint32_t nin, const inv_id *in, const inv_window *w,
                     bool ceil_mode, uint32_t nmore, const inv_attr *more);

#endif
