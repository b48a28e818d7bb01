/* SPDX-License-Identifier: Apache-2.0
 * Initializers that are equal to the bit: maybe one weight that the file holds several times. */
#ifndef INV_CORE_COPIES_H
#define INV_CORE_COPIES_H

#include "core/graph/ir.h"

typedef struct inv_copy {
    inv_id param;
    uint32_t of; /* the first that is equal to it, as an index in the list; its own: it is the first */
    bool plain;  /* all elements are equal: zeros, ones */
} inv_copy;
typedef INV_VEC(inv_copy) inv_copies;

/* The initializers of g's main graph that are equal to another one of floating point, in groups. */
inv_status inv_copies_find(const inv_graph *g, inv_arena *a, inv_copies *out);
/* Whether the file tells that two are parameters of their own, or a PyTorch exporter names them so. */
bool inv_copies_are_told(const inv_graph *g, const inv_value *x, const inv_value *y);

#endif
