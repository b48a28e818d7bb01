/* SPDX-License-Identifier: Apache-2.0
 * Device kernels of the element-wise operators: one per function that ops/elementwise/elementwise.inc names. */
#ifndef INV_OPS_ELEMENTWISE_ELEMENTWISE_GPU_H
#define INV_OPS_ELEMENTWISE_ELEMENTWISE_GPU_H

#include "ops/gpu/gpu.h"
#include "ops/gpu/integers.h"

typedef enum inv_ew {
#define EW_F(f) INV_EW_##f,
#define EW_G(f) INV_EW_##f,
#define EW_S(f) INV_EW_##f,
#include "ops/elementwise/elementwise_scalars.inc"
#undef EW_F
#undef EW_G
#undef EW_S
} inv_ew;

#ifdef __cplusplus
extern "C" {
#endif
/* n elements of float32 or float64; x is the operand (gy), v the second one of derivatives. out may be either. */
INV_LAUNCHER(elementwise, inv_ew f, inv_dtype t, int64_t n, void *out, const void *x, const void *v,
             const double attr[2]);
/* n integers of any type. */
INV_LAUNCHER(integers1, inv_int1 f, inv_dtype t, int64_t n, void *out, const void *x);
#ifdef __cplusplus
}
#endif

#endif
