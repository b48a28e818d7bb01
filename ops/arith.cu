/* SPDX-License-Identifier: Apache-2.0
 * Operators with two or three operands that broadcast, on the device (ops/scalar.h). */
#include "ops/arith_gpu.h"
#include "ops/device.cuh"

#define INV_SCALAR INV_DEVICE
#define REAL float
#define FN(x) x##_f32
#define M(fn) fn##f
#include "ops/arith_device.inc"
#undef REAL
#undef FN
#undef M
#define REAL double
#define FN(x) x##_f64
#define M(fn) fn
#include "ops/arith_device.inc"

extern "C" void INV_GPU_NAME(arith)(const inv_gpu *gpu, inv_arith f, inv_dtype t, const inv_loop *l, void *out,
                                    const void *const *in)
{
    (t == INV_F64 ? arith_f64 : arith_f32)(gpu, f, l, out, in);
}
