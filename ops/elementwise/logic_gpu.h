/* SPDX-License-Identifier: Apache-2.0
 * Device kernels of comparisons, logic, tests of single numbers, Where and Cast. */
#ifndef INV_OPS_ELEMENTWISE_LOGIC_GPU_H
#define INV_OPS_ELEMENTWISE_LOGIC_GPU_H

#include "ops/gpu/gpu.h"
#include "ops/gpu/loop.h"

typedef enum inv_compare {
    INV_COMPARE_equal,
    INV_COMPARE_less,
    INV_COMPARE_less_or_equal,
    INV_COMPARE_greater,
    INV_COMPARE_greater_or_equal,
    INV_COMPARE_and,
    INV_COMPARE_or,
    INV_COMPARE_xor
} inv_compare;

typedef enum inv_flag { INV_FLAG_NOT, INV_FLAG_NAN, INV_FLAG_PLUS_INF, INV_FLAG_MINUS_INF, INV_FLAG_INF } inv_flag;

#ifdef __cplusplus
extern "C" {
#endif
/* out, contiguous, gets one byte per element: 0 or 1. Integers, bool, float32, float64. */
INV_LAUNCHER(compare, inv_compare f, inv_dtype t, const inv_loop *l, uint8_t *out, const void *a, const void *b);
/* Any numbers but complex ones. */
INV_LAUNCHER(flag, inv_flag f, inv_dtype t, int64_t n, uint8_t *out, const void *x);
/* Operands are the condition, a and b; elements of 1, 2, 4 or 8 bytes. out may be a or b. */
INV_LAUNCHER(where, size_t esize, const inv_loop *l, void *out, const uint8_t *cond, const void *a, const void *b);
/* Any numbers but complex ones, with the results of inv_convert; to bool, all but 0 is true. */
INV_LAUNCHER(cast, int64_t n, inv_dtype to, void *out, inv_dtype from, const void *x);
#ifdef __cplusplus
}
#endif

#endif
