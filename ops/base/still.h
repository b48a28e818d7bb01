/* SPDX-License-Identifier: Apache-2.0
 * Gradients of roots and logarithms where their slope is infinite, but what they are of has the gradient 0. */
#ifndef INV_OPS_BASE_STILL_H
#define INV_OPS_BASE_STILL_H

#include "ops/base/util.h"

/* Value v is nowhere below zero, and where it is zero, the gradients of all that it is made of are. Time: at most 64
 * operands are looked at. */
bool inv_stands_still(const inv_graph *g, inv_id v);
/* The gradient `slope`, but 0 where y equals `at`. */
inv_id inv_still_where(inv_graph *g, inv_id y, double at, inv_id slope);

#endif
