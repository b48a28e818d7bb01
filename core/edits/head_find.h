/* SPDX-License-Identifier: Apache-2.0
 * Which node of a graph is its head (head_find.c), for head.c. */
#ifndef INV_CORE_HEAD_FIND_H
#define INV_CORE_HEAD_FIND_H

#include "core/graph/ir.h"

/* A product with a weight that has an axis of classes. */
typedef struct inv_head_site {
    inv_id node;
    inv_shape shape; /* of the weight, or of MatMulNBits the matrix that it stands for */
    inv_dtype dtype; /* in which the head computes */
    int axis;        /* of the classes there; -1: the node is no such product */
    int bias;        /* input for a bias; 0: it has none */

    /* Of a product of quantized operands: the operator of floating point that can take its place, else NULL, and the
     * value that this computes with, to be dequantized by scale and zero point unless scale is INV_NONE. */
    const char *plain;
    inv_id x, scale, zero;
    bool sums;      /* it gives integers that are not scaled: Cast and Mul follow */
    bool quantizes; /* what it gives is quantized */
} inv_head_site;

/* An operator of quantized operands that may stand behind a head, and that of floating point which it is. */
typedef struct inv_head_twin {
    const char *quantized, *plain;
    uint32_t other; /* a second operand, behind the first, its scale and its zero point; 0: there is none */
} inv_head_twin;
const inv_head_twin *inv_head_twin_of(const inv_node *n); /* NULL: it is none */

inv_head_site inv_head_site_of(const inv_graph *g, inv_id node);
/* By its name, or the last one before the output. `fixed`: per value, whether it depends on no input. */
inv_status inv_head_find(const inv_graph *g, const inv_head *o, const bool *fixed, inv_arena *a, inv_head_site *out);

#endif
