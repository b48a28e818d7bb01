/* SPDX-License-Identifier: Apache-2.0
 * Rows of optim.c and step_number.c, listed by dropout.c. */
#ifndef INV_OPS_TRAIN_OPTIM_H
#define INV_OPS_TRAIN_OPTIM_H

#include "core/graph/op.h"

extern const inv_op_def inv__op_sgd, inv__op_momentum, inv__op_rmsprop, inv__op_lion, inv__op_adam, inv__op_adam8,
    inv__op_accumulate, inv__op_average, inv__op_assign, inv__op_step_number, inv__op_hold_rows;

/* y = keep y + add x, n elements of type t (float, double); where keep is 0, y is not read. What Accumulate does. */
void inv__mean_add(inv_dtype t, int64_t n, double keep, double add, void *y, const void *x);

#endif
