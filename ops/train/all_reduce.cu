/* SPDX-License-Identifier: Apache-2.0
 * Means over ranks on the device, with the roundings of the host (inv_mean_add). */
#include "ops/gpu/device.cuh"
#include "ops/train/all_reduce_gpu.h"

INV_KERNEL own_weight_kernel(int64_t n, const inv_gpu_step *s, const double *own, double *out)
{
    INV_EACH(i, n) out[i] = !own ? s->weight : s->absent ? 0 : *own;
}

INV_KERNEL share_kernel(int64_t ranks, const double *own, const double *all, const double *there, double *share)
{
    double sum = 0, counted = 0;
    for (int64_t r = 0; r < ranks; r++) {
        sum += all[r];
        counted += !there || there[r] > 0 ? 1 : 0;
    }
    if (threadIdx.x == 0) *share = sum > 0 ? *own * counted / sum : 0;
}

template <class T> INV_KERNEL mean_kernel(int64_t n, int64_t ranks, const double *weight, const T *parts, T *out)
{
    INV_EACH(i, n)
    {
        double before = 0;
        T mean = 0;
        for (int64_t r = 0; r < ranks; r++) {
            const double all = before + weight[r];
            if (!(weight[r] > 0)) continue;
            const T keep = (T)(before / all), add = (T)(weight[r] / all);
            mean = before == 0 ? add * parts[r * n + i] : keep * mean + add * parts[r * n + i];
            before = all;
        }
        out[i] = mean;
    }
}

extern "C" void INV_GPU_NAME(own_weight)(const inv_gpu *gpu, int64_t n, const double *own, double *out)
{
    inv_start(gpu, own_weight_kernel, inv_blocks(n), INV_THREADS, n, gpu->step, own, out);
}

extern "C" void INV_GPU_NAME(share_of_ranks)(const inv_gpu *gpu, int64_t ranks, const double *own, const double *all,
                                             const double *there, double *share)
{
    inv_start(gpu, share_kernel, 1, 1, ranks, own, all, there, share);
}

extern "C" void INV_GPU_NAME(mean_of_ranks)(const inv_gpu *gpu, inv_dtype t, int64_t n, int64_t ranks,
                                            const double *weight, const void *parts, void *out)
{
    INV_REAL_AS(
        t, T, inv_start(gpu, mean_kernel<T>, inv_blocks(n), INV_THREADS, n, ranks, weight, (const T *)parts, (T *)out));
}
