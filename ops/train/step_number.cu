/* SPDX-License-Identifier: Apache-2.0
 * Numbers of a step on the device. */
#include "ops/gpu/device.cuh"
#include "ops/train/step_number_gpu.h"

template <class T> INV_KERNEL step_number_kernel(const inv_gpu_step *s, inv_step_number k, const double *norm, T *out)
{
    INV_EACH(i, 1) out[i] = (T)inv_step_number_at(&k, s->lr, s->group_lr, s->step, norm);
}

extern "C" void INV_GPU_NAME(step_number)(const inv_gpu *gpu, inv_dtype t, const inv_step_number *k,
                                          const double *norm, void *out)
{
    INV_REAL_AS(t, T, inv_start(gpu, step_number_kernel<T>, 1, 1, gpu->step, *k, norm, (T *)out));
}
