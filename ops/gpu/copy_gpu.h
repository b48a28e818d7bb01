/* SPDX-License-Identifier: Apache-2.0
 * Copying and filling on the device: what movement operators are made of (ops/base/strided_copy.h). */
#ifndef INV_OPS_GPU_COPY_GPU_H
#define INV_OPS_GPU_COPY_GPU_H

#include "ops/gpu/gpu.h"
#include "ops/gpu/loop.h"

#ifdef __cplusplus
/* Two words that are moved as one. */
struct alignas(16) inv_quad {
    uint64_t low, high;
};

extern "C" {
#endif
/* Operand 0 of the loop is dst, operand 1 src; elements of 1, 2, 4, 8 or 16 bytes. They must not overlap. */
INV_LAUNCHER(copy, const inv_loop *l, size_t esize, void *dst, const void *src);
/* n elements of 1, 2, 4 or 8 bytes, each with the lowest bytes of `bits`. */
INV_LAUNCHER(fill, int64_t n, size_t esize, void *dst, uint64_t bits);
#ifdef __cplusplus
}
#endif

#endif
