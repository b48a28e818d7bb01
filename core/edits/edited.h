/* SPDX-License-Identifier: Apache-2.0
 * A graph that is not as its file has it: initializers that the file does not have, or has with other elements, and
 * nodes that are gone. Low-rank adapters (lora.h) and new heads (head.h) are made with these; api/save_model.c
 * writes what comes of it. */
#ifndef INV_CORE_EDITED_H
#define INV_CORE_EDITED_H

#include "core/graph/ir.h"

/* The value of this name; INV_NONE: there is none, or it is an initializer that is gone. */
inv_id inv_added_find(const inv_graph *g, const char *name);
/* A new initializer, of zeros, behind those of the file; or one of this name that was gone. Where the name is in use it
 * gets another one. */
inv_id inv_added_initializer(inv_graph *g, const char *name, inv_dtype dtype, const inv_shape *shape);
/* An initializer gets this shape, and new elements in its own type, zeros at first. NULL: out of memory. */
void *inv_added_renew(inv_graph *g, inv_id v, const inv_shape *shape);
/* Elements drawn evenly from [-bound, bound], by a generator that the seed and the value's name begin. Of an
 * initializer that one of the above has made. */
void inv_added_draw(inv_value *v, uint64_t seed, double bound);
/* Where the elements of such an initializer are. */
static inline void *inv_added_bytes(const inv_value *v) { return (void *)(uintptr_t)v->data.bytes; }

/* How often each value is read, by nodes and as an output, in `a`. */
inv_status inv_added_readers(const inv_graph *g, inv_arena *a, uint32_t **count);
/* The node leaves the order, and with it all nodes and initializers that nothing reads then. */
inv_status inv_added_remove(inv_graph *g, inv_id node);

#endif
