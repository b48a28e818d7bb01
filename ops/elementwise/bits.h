/* SPDX-License-Identifier: Apache-2.0
 * What a gradient that depends on a comparison only keeps of it: one bit per element, or two. The mask is computed in
 * forward, so it is a forward value that backward reads: kept, or computed again, as any other. Where the gradients of
 * others read the operand anyway, it is computed behind them in backward, and nothing is kept of the operand longer
 * than for them. */
#ifndef INV_OPS_ELEMENTWISE_BITS_H
#define INV_OPS_ELEMENTWISE_BITS_H

#include "core/graph/op.h"

/* The mask, and of which elements. v: INV_NONE after a failure. */
typedef struct inv_bits {
    inv_id v;
    inv_shape shape;
    int axis, bits;
} inv_bits;

/* One bit: whether low <= x <= high. Two: 0 below low, 1 inside, 2 above high, 3 NaN. high INV_NONE: low. */
inv_bits inv_emit_bits(inv_graph *g, int bits, inv_id x, inv_id low, inv_id high);
/* One bit: whether x = y. Never computed again. */
inv_bits inv_emit_equal_bits(inv_graph *g, inv_id x, inv_id y);
/* gy, which may have to be broadcast, times the factor of each element's code. */
inv_id inv_emit_select(inv_graph *g, inv_id gy, const inv_bits *m, const double factor[4]);

#endif
