/* SPDX-License-Identifier: Apache-2.0
 * Sums of results that blocks, or products, have computed a part of each; always in the same order. */
#include "ops/gpu/device.cuh"
#include "ops/gpu/parts_gpu.h"

/* A block sums 32 neighbours, each of its warps every eighth part of them. */
template <class T, class P> INV_KERNEL sum_parts(int64_t n, int64_t parts, const P *part, inv_onto onto, T *out)
{
    INV_SHARED(double, some, [INV_THREADS]);
    const int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32, warps = INV_THREADS / 32;
    for (int64_t first = (int64_t)blockIdx.x * 32; first < n; first += (int64_t)gridDim.x * 32) {
        const int64_t i = first + lane;
        double sum = 0;
        for (int64_t k = warp; k < parts && i < n; k += warps) sum += (double)part[k * n + i];
        some[threadIdx.x] = sum;
        __syncthreads();
        for (int w = 1; w < warps && warp == 0; w++) sum += some[32 * w + lane];
        if (warp == 0 && i < n) inv_put_onto(onto, out + i, sum);
        __syncthreads();
    }
}

template <class T, class P>
static void start_sum(const inv_gpu *gpu, int64_t n, int64_t parts, const P *part, inv_onto onto, T *out)
{
    const int64_t blocks = (n + 31) / 32;
    inv_start_sync(gpu, sum_parts<T, P>, blocks < 8192 ? blocks : 8192, INV_THREADS, n, parts, part, onto, out);
}

extern "C" void INV_GPU_NAME(sum_parts)(const inv_gpu *gpu, inv_dtype t, inv_dtype of, int64_t n, int64_t parts,
                                        const void *part, inv_onto onto, void *out)
{
    if (of == INV_F64) INV_REAL_AS(t, T, start_sum(gpu, n, parts, (const double *)part, onto, (T *)out));
    else start_sum(gpu, n, parts, (const float *)part, onto, (float *)out);
}
