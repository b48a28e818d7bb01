/* SPDX-License-Identifier: Apache-2.0
 * Rows of softmax.c, listed by batchnorm.c. */
#ifndef INV_OPS_NORM_SOFTMAX_H
#define INV_OPS_NORM_SOFTMAX_H

#include "core/graph/op.h"

extern const inv_op_def inv_op_softmax, inv_op_log_softmax, inv_op_softmax_12, inv_op_log_softmax_12,
    inv_op_softmax_grad, inv_op_log_softmax_grad;

#endif
