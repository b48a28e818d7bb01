/* SPDX-License-Identifier: Apache-2.0
 * StepNumber on the host and on the device alike. */
#ifndef INV_OPS_TRAIN_STEP_NUMBER_GPU_H
#define INV_OPS_TRAIN_STEP_NUMBER_GPU_H

#include "ops/train/optim_gpu.h"
#include "ops/train/step_number.h"

/* The attributes of a StepNumber: add + factor times what `what` says. */
typedef struct inv_step_number {
    inv_step_what what;
    int group;
    uint64_t since; /* as of an update */
    double base, factor, add;
} inv_step_number;

/* step: number of the step, from 0 on; norm: for INV_STEP_CLIP */
INV_HD double inv_step_number_at(const inv_step_number *k, double lr, const double *group_lr, uint64_t step,
                                 const double *norm)
{
    const double t = inv_step_since(step, k->since), group = inv_group_lr(lr, group_lr, k->group), most = 1 / sqrt(t);
    double x = group;
    switch (k->what) {
    case INV_STEP_LR: break;
    case INV_STEP_LR_FALLING: x = group < most ? group : most; break;
    case INV_STEP_UNBIASED: x = 1 / (1 - pow(k->base, t)); break;
    case INV_STEP_POWER: x = pow(t, k->base); break;
    case INV_STEP_CLIP: x = inv_clip_scale(k->base, norm); break;
    }
    return k->add + k->factor * x;
}

#ifdef __cplusplus
extern "C" {
#endif
/* One float32 or float64. norm may be NULL but for INV_STEP_CLIP. */
INV_LAUNCHER(step_number, inv_dtype t, const inv_step_number *k, const double *norm, void *out);
#ifdef __cplusplus
}
#endif

#endif
