/* SPDX-License-Identifier: Apache-2.0
 * What operators on quantized tensors share. */
#ifndef INV_OPS_MICROSOFT_MS_QLINEAR_H
#define INV_OPS_MICROSOFT_MS_QLINEAR_H

#include "ops/base/util.h"

/* x rounded to uint8 by a scale and a zero point from its range, and back. Those are taken for constants by gradients,
 * which pass straight through. */
inv_id inv_rounded_by_range(inv_graph *g, inv_id x);

/* Input i is of 8 bits. */
static inline inv_status inv_need_bytes(const inv_graph *g, const inv_node *n, uint32_t i)
{
    const inv_dtype t = inv_in_dtype(g, n, i);
    if (t == INV_U8 || t == INV_I8) return INV_OK;
    return inv_node_fail(g, n, INV_E_UNSUPPORTED_TYPE, "input %u is %s; it must be uint8 or int8", i,
                         inv_dtype_name(t));
}

#endif
