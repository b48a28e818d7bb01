/* SPDX-License-Identifier: Apache-2.0
 * Canonical operators back to ONNX: the solving nodes of inverse rules, and the statistics that they need, as nodes of
 * a function that any runtime runs. Operators can be raised whose rows have a form (columns `onnx` and `raise`). */
#ifndef INV_PASSES_EXPORT_RAISE_H
#define INV_PASSES_EXPORT_RAISE_H

#include "core/edits/onnx_body.h"
#include "core/graph/op.h"

/* Appends the ONNX nodes that compute the outputs of canonical node n that have a name in r->name.
 * Inputs have names, but for the matrix M of what solves equations (inv_raise_matrix): there `solver` is the name of
 * its (pseudo-)inverse M+, [columns of M, rows of M], axes of M behind the first being one; of a filter of several
 * groups [groups, columns, rows of a group]. M is the node's input as it is (not transposed). NULL for other operators.
 * Extents of axis 0 are never written as numbers where another form exists (the batch may have another size when it is
 * run): Reshape copies them (0) or infers them (-1), slices leave full ranges out. After false, node may hold a part.
 * @return false: it cannot be written, r->reason; or out of memory (r->a->failed) */
bool inv_raise_node(inv_onnx_body *r, const inv_node *n, const char *solver);

/* Which input is the matrix that the node solves with (column `inverts`); INV_NONE: it does not solve. */
uint32_t inv_raise_matrix(const inv_node *n);

/* Whether there is an ONNX form of the operator at all. */
static inline bool inv_raise_knows(const inv_op_def *op) { return op->onnx || op->raise; }

/* Canonical operators of a plugin: files have them as they are. */
static inline bool inv_raise_is_of_plugin(const inv_op_def *op)
{
    return *op->domain && strcmp(op->domain, "ai.invonnx.ir") != 0;
}

#endif
