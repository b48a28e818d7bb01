/* SPDX-License-Identifier: Apache-2.0
 * A new head of an imported graph: the last product with a weight gets one for another number of classes.
 *
 *     ... features -----[ W: in x K ]---(+ b: K)---- softmax, flatten, ... ---- y        becomes
 *     ... features -----[ W: in x N ]---(+ b: N)---- softmax, flatten, ... ---- y
 *
 * Weight and bias keep their names where nothing else reads them and they are of floating point; else the head gets
 * some of its own, "HEAD.weight" and "HEAD.bias", HEAD being the node's name. So what is quantized becomes a plain
 * product, also without the quantizers behind it, whose ranges are those of the former classes. What follows and has a
 * number for each class, or shapes with the number of classes, is changed with it or refused. */
#ifndef INV_CORE_HEAD_H
#define INV_CORE_HEAD_H

#include "core/graph/ir.h"

typedef struct inv_head_made {
    inv_id node, weight, bias; /* bias INV_NONE: there is none */
    int64_t before, classes;
} inv_head_made;

/* Weight and bias are drawn evenly from [-b, b], b = 1 / sqrt(fan in), as PyTorch does (Kaiming's uniform rule with a =
 * sqrt(5), arXiv 1502.01852). On failure the graph is of no use any more. */
inv_status inv_head_set(inv_graph *g, const inv_head *o, inv_arena *a, inv_head_made *made);

#endif
