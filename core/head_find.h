/* SPDX-License-Identifier: Apache-2.0
 * Which node of a graph is its head (head_find.c), for head.c. */
#ifndef INV_CORE_HEAD_FIND_H
#define INV_CORE_HEAD_FIND_H

#include "core/ir.h"

/* A product whose second operand, a weight, has an axis of classes. */
typedef struct inv_head_site {
    inv_id node;
    inv_shape shape; /* of that operand, or of MatMulNBits the matrix that it stands for */
    inv_dtype dtype; /* of that operand */
    int axis;        /* of the classes there; -1: the node is no such product */
    int bias;        /* input for a bias; 0: it has none */
    bool packed;     /* MatMulNBits */
} inv_head_site;

inv_head_site inv_head_site_of(const inv_graph *g, inv_id node);
/* By its name, or the last one before the output. `fixed`: per value, whether it depends on no input. */
inv_status inv_head_find(const inv_graph *g, const inv_head *o, const bool *fixed, inv_arena *a, inv_head_site *out);

#endif
