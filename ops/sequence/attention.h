/* SPDX-License-Identifier: Apache-2.0
 * The canonical operators of attention (attention_core.c), for the family's list. */
#ifndef INV_OPS_SEQUENCE_ATTENTION_H
#define INV_OPS_SEQUENCE_ATTENTION_H

#include "core/graph/op.h"

extern const inv_op_def inv_op_attention_core, inv_op_attention_grad;

#endif
