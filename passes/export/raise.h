/* SPDX-License-Identifier: Apache-2.0
 * Canonical operators back to ONNX: the solving nodes of inverse rules, and the statistics that they need, as nodes of
 * a function that any runtime runs. Only what rules' `solve` texts and auxiliary values use can be raised. */
#ifndef INV_PASSES_EXPORT_RAISE_H
#define INV_PASSES_EXPORT_RAISE_H

#include "core/op.h"
#include "core/rewriting.h"

/* A function body under construction. */
typedef struct inv_raise {
    const inv_graph *g;      /* canonical graph with the nodes to raise */
    inv_arena *a;            /* of everything that is written */
    int64_t opset;           /* of ai.onnx, that the body is written for */
    inv_dtype real;          /* type of the operands and of what is computed */
    const char *const *name; /* per value of g: its name in the body, NULL: none (yet) */
    inv_outline_nodes *node; /* appended to */
    uint32_t fresh;          /* for inv_raise_fresh */
    const inv_graph *names;  /* no value between is called as one here, but for those of nodes that are gone; ... */
    const bool *gone;        /* ... per value of it. NULL: any name will do */
    const char *reserved;    /* nor as this; may be NULL */
    bool by_operator;        /* what solves equations stays the operator that it is, which only this library knows */
    const char *reason;      /* set when false is returned: in words, why not */
} inv_raise;

/* A name for a value between: "_v0", "_v1", ... NULL: out of memory. */
const char *inv_raise_fresh(inv_raise *r);

/* Appends the ONNX nodes that compute the outputs of canonical node n that have a name in r->name.
 * Inputs have names, but for the matrix M of what solves equations (inv_raise_matrix): there `solver` is the name of
 * its (pseudo-)inverse M+, [columns of M, rows of M], axes of M behind the first being one; of a filter of several
 * groups [groups, columns, rows of a group]. M is the node's input as it is (not transposed). NULL for other operators.
 * Extents of axis 0 are never written as numbers where another form exists (the batch may have another size when it is
 * run): Reshape copies them (0) or infers them (-1), slices leave full ranges out. After false, node may hold a part.
 * @return false: it cannot be written, r->reason; or out of memory (r->a->failed) */
bool inv_raise_node(inv_raise *r, const inv_node *n, const char *solver);

/* Appends a Cast; the name of what it gives. NULL: out of memory. */
const char *inv_raise_cast(inv_raise *r, const char *x, inv_dtype to);

/* Appends a constant; `data` is borrowed. Its name; NULL: out of memory. */
const char *inv_raise_constant(inv_raise *r, const inv_data *data);

/* Which input is the matrix that the node solves with (LinearSolve, FilterInverse); INV_NONE: it does not solve. */
uint32_t inv_raise_matrix(const inv_node *n);

/* Whether there is an ONNX form of the operator at all. */
bool inv_raise_knows(const inv_op_def *op);

#endif
