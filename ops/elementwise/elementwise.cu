/* SPDX-License-Identifier: Apache-2.0
 * Element-wise operators on the device, from the scalar functions that the host uses
 * (ops/elementwise/scalar_functions.h). */
#include "ops/gpu/device.cuh"
#include "ops/elementwise/elementwise_gpu.h"

#define INV_SCALAR INV_DEVICE
#define INV_BOTH "ops/elementwise/elementwise_device.inc"
#include "ops/base/both_reals.inc"

extern "C" void INV_GPU_NAME(elementwise)(const inv_gpu *gpu, inv_ew f, inv_dtype t, int64_t n, void *out,
                                          const void *x, const void *v, const double attr[2])
{
    INV_REAL(t, elementwise, gpu, f, n, out, x, v, attr);
}

INV_KERNEL integers1_kernel(inv_int1 f, inv_dtype t, int64_t n, void *out, const void *x)
{
    INV_EACH(i, n) inv_int_put(out, t, i, inv_int1_apply(f, t, inv_int_at(x, t, i)));
}

extern "C" void INV_GPU_NAME(integers1)(const inv_gpu *gpu, inv_int1 f, inv_dtype t, int64_t n, void *out,
                                        const void *x)
{
    inv_start(gpu, integers1_kernel, inv_blocks(n), INV_THREADS, f, t, n, out, x);
}
