/* SPDX-License-Identifier: Apache-2.0
 * Rows of softmax.c, listed by batchnorm.c. */
#ifndef INV_OPS_NORM_SOFTMAX_H
#define INV_OPS_NORM_SOFTMAX_H

#include "core/graph/op.h"

extern const inv_op_def inv__op_softmax, inv__op_log_softmax, inv__op_softmax_12, inv__op_log_softmax_12,
    inv__op_softmax_grad, inv__op_log_softmax_grad;

#endif
