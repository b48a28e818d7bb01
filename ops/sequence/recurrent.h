/* SPDX-License-Identifier: Apache-2.0
 * The canonical operators of recurrent networks (recurrent_core.c), and names that their lowering uses as well. */
#ifndef INV_OPS_SEQUENCE_RECURRENT_H
#define INV_OPS_SEQUENCE_RECURRENT_H

#include "core/graph/op.h"

extern const inv_op_def inv_op_recurrent, inv_op_recurrent_grad;

/* The activation of a name, or -1; *nargs: how many of alpha and beta it takes, *dflt: what they are if not given. */
int inv_recurrent_activation(const char *name, int *nargs, double dflt[2]);

#endif
