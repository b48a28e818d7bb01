/* SPDX-License-Identifier: Apache-2.0
 * Rows of optim.c and step_number.c, listed by dropout.c. */
#ifndef INV_OPS_TRAIN_OPTIM_H
#define INV_OPS_TRAIN_OPTIM_H

#include "core/graph/op.h"

extern const inv_op_def inv_op_sgd, inv_op_momentum, inv_op_rmsprop, inv_op_lion, inv_op_adam, inv_op_adam8,
    inv_op_accumulate, inv_op_average, inv_op_assign, inv_op_step_number, inv_op_hold_rows;

/* y = keep y + add x, n elements of type t (float, double); where keep is 0, y is not read. What Accumulate does. */
void inv_mean_add(inv_dtype t, int64_t n, double keep, double add, void *y, const void *x);

#endif
