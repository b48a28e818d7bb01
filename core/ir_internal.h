/* SPDX-License-Identifier: Apache-2.0
 * What the files of core share and nobody else needs. */
#ifndef INV_CORE_IR_INTERNAL_H
#define INV_CORE_IR_INTERNAL_H

#include "core/ir.h"
#include "core/op.h"

/* The first failure stays. */
void inv__graph_fail(inv_graph *g, inv_status code);
/* As inv_graph_find, but values that a pass renamed are not found; constant time. */
inv_id inv__graph_index_find(const inv_graph *g, const char *name);
/* Deep copy but for tensor bytes; never NULL but on no memory. */
inv_attr *inv__attrs_copy(inv_arena *a, size_t n, const inv_attr *attr);
/* "float[2,3]" appended. */
void inv__str_type(inv_str *b, inv_dtype t, const inv_shape *s);

#endif
