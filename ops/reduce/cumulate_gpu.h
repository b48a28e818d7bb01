/* SPDX-License-Identifier: Apache-2.0
 * Sums and products along an axis: what host and device share. */
#ifndef INV_OPS_REDUCE_CUMULATE_GPU_H
#define INV_OPS_REDUCE_CUMULATE_GPU_H

#include "core/base/shape.h"
#include "ops/gpu/device_code.h"
#include "ops/gpu/gpu.h"

/* Lines of d elements that lie `inner` apart; a line is taken in `parts` pieces of `part` elements. */
typedef struct inv_cumulate {
    int64_t rows, d, inner, parts, part;
    bool product, exclusive, reverse;
} inv_cumulate;

INV_HD double inv_cumulate_f(const inv_cumulate *c, double a, double b) { return c->product ? a * b : a + b; }
INV_HD int64_t inv_cumulate_i(const inv_cumulate *c, int64_t a, int64_t b)
{
    return (int64_t)(c->product ? (uint64_t)a * (uint64_t)b : (uint64_t)a + (uint64_t)b);
}

/* Where element p of a line stands, in the order of the sum. */
INV_HD int64_t inv_cumulate_at(const inv_cumulate *c, int64_t line, int64_t p)
{
    const int64_t row = line / c->inner;
    return (row * c->d + (c->reverse ? c->d - 1 - p : p)) * c->inner + (line - row * c->inner);
}

#ifdef __cplusplus
extern "C" {
#endif
/* Any numbers; integers by their size. ws: 8 bytes for each piece of a line. */
INV_LAUNCHER(cumulate, const inv_cumulate *c, inv_dtype t, const void *x, void *y, void *ws);
INV_LAUNCHER(cumulate_product_grad, const inv_cumulate *c, inv_dtype t, const void *gy, const void *x, void *dx);
INV_LAUNCHER(cumulate_differences, const inv_cumulate *c, inv_dtype t, const void *y, void *x);
#ifdef __cplusplus
}
#endif

#endif
