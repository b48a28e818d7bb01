/* SPDX-License-Identifier: Apache-2.0
 * The operator StepNumber: numbers that differ from step to step, for updates that are made of several nodes. */
#ifndef INV_OPS_TRAIN_STEP_NUMBER_H
#define INV_OPS_TRAIN_STEP_NUMBER_H

/* What the number is, t being that of the step counted from 1. */
typedef enum inv_step_what {
    INV_STEP_LR,         /* learning rate of the group */
    INV_STEP_LR_FALLING, /* the same, 1 / sqrt(t) at most */
    INV_STEP_UNBIASED,   /* 1 / (1 - base^t) */
    INV_STEP_POWER,      /* t^base */
    INV_STEP_CLIP        /* by what gradients shrink so that the norm of all together is at most `base` */
} inv_step_what;

#endif
