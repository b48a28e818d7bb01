/* SPDX-License-Identifier: Apache-2.0
 * Comparisons in one or two bits per element, packed along one axis: bit 0 of a byte belongs to the first of 8 or 4
 * neighbours on that axis, and all other axes stay. So a mask is an image like what it was made of, in either order of
 * axes. Shared by host and device. */
#ifndef INV_OPS_ELEMENTWISE_BITS_GPU_H
#define INV_OPS_ELEMENTWISE_BITS_GPU_H

#include "ops/gpu/gpu.h"
#include "ops/gpu/loop.h"

/* l: over the bytes of the mask. Its last operand is the place on the axis of a byte's first element. */
typedef struct inv_bits_walk {
    inv_loop l;
    int64_t along[INV_LOOP_OPS]; /* from an element to the next on the axis */
    int64_t extent;              /* of the axis */
    int bits, per;               /* per element; elements per byte */
} inv_bits_walk;

typedef struct inv_bits_factors {
    double of[4];
} inv_bits_factors;

/* How many elements the byte has whose first one is at `from`. */
INV_HD int inv_bits_in(const inv_bits_walk *w, int64_t from)
{
    return w->extent - from < w->per ? (int)(w->extent - from) : w->per;
}

/* One bit: whether it is inside. Two: 0 below, 1 inside, 2 above, 3 none of these (NaN). */
INV_HD int inv_bits_code(int bits, bool below, bool inside, bool above)
{
    if (bits == 1) return inside;
    return below ? 0 : above ? 2 : inside ? 1 : 3;
}

#ifdef __cplusplus
extern "C" {
#endif
/* Operands of type t: float32, float64, or bool. */
INV_LAUNCHER(compare_bits, inv_dtype t, const inv_bits_walk *w, uint8_t *mask, const void *x, const void *low,
             const void *high);
/* y = f gy with the factor of each element's code. Operands of w: gy, y. y may be gy where they have one shape. */
INV_LAUNCHER(select_bits, inv_dtype t, const inv_bits_walk *w, const inv_bits_factors *f, void *y, const void *gy,
             const uint8_t *mask);
#ifdef __cplusplus
}
#endif

#endif
