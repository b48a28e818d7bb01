/* SPDX-License-Identifier: Apache-2.0
 * Where an operand of an imported graph comes from: back through what changes the type or the order of its elements
 * only. */
#ifndef INV_CORE_WEIGHT_ORIGIN_H
#define INV_CORE_WEIGHT_ORIGIN_H

#include "core/graph/ir.h"

typedef struct inv_origin {
    inv_id weight; /* an initializer or what a Constant node gives; INV_NONE: it is none */
    inv_shape shape;
    inv_dtype dtype; /* of the operand */
    bool turned;     /* the operand is the weight transposed */
    bool quantized;  /* ... what the weight's integers stand for */
} inv_origin;

inv_origin inv_weight_origin(const inv_graph *g, inv_id operand);
/* What an initializer or a Constant node of the main graph holds; NULL: v is none. */
const inv_data *inv_weight_data(const inv_graph *g, inv_id v);
/* The type of its elements. */
inv_dtype inv_weight_type(const inv_graph *g, inv_id v);

#endif
