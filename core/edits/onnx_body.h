/* SPDX-License-Identifier: Apache-2.0
 * A function body of ONNX nodes under construction, and what the functions in operators' rows write it with (column
 * `raise` of core/graph/op.h). What writes gives the name of its result, NULL once something has failed, so that calls
 * nest (but never two that write in one argument list: C does not say which comes first, and the file is to be the same
 * everywhere). */
#ifndef INV_CORE_ONNX_BODY_H
#define INV_CORE_ONNX_BODY_H

#include "core/edits/rewriting.h"
#include "core/graph/ir.h"

typedef struct inv_onnx_body {
    const inv_graph *g;      /* canonical graph with the nodes to raise */
    inv_arena *a;            /* of everything that is written */
    int64_t opset;           /* of ai.onnx, that the body is written for */
    inv_dtype real;          /* type of the operands and of what is computed */
    const char *const *name; /* per value of g: its name in the body, NULL: none (yet) */
    inv_outline_nodes *node; /* appended to */
    uint32_t fresh;          /* for inv_onnx_fresh */
    const inv_graph *names;  /* no value between is called as one here, but for those of nodes that are gone; ... */
    const bool *gone;        /* ... per value of it. NULL: any name will do */
    const char *reserved;    /* nor as this; may be NULL */
    bool by_operator;        /* what solves equations stays the operator that it is, which only this library knows */
    const char *reason;      /* set when something has failed: in words, why. NULL then: out of memory */
} inv_onnx_body;

/* One canonical node that is to be written. */
typedef struct inv_raising {
    inv_onnx_body *r;
    const inv_node *n;
    /* Names, one per input and output of the node. NULL: an input is omitted, an output not wanted. An input that the
     * row says is inverted (column `inverts`) has the name of its (pseudo-)inverse instead. */
    const char **in, **out;
} inv_raising;

static inline const inv_shape *inv_raising_shape(const inv_raising *b, uint32_t i)
{
    return &inv_val(b->r->g, b->n->in[i])->shape;
}

/* A name for a value between: "_v0", "_v1", ... NULL: out of memory. */
const char *inv_onnx_fresh(inv_onnx_body *r);

/* Notes the reason, unless there is one already; false. */
bool inv_onnx_refuse(inv_onnx_body *r, const char *reason);

/* The reason why an operator that is younger than the body's operator set is refused. */
const char *inv_onnx_too_old(inv_onnx_body *r, const char *op, int since);

/* Appends a node. The names and attributes are copied; what attributes point to is not. false: a name is NULL, out of
 * memory, or the operator is younger than the operator set. */
bool inv_onnx_nodes(inv_onnx_body *r, const char *op, uint32_t nout, const char *const *out, uint32_t nin,
                    const char *const *in, uint32_t nattr, const inv_attr *attr);

#define INV_NAMES(...) \
    (uint32_t)(sizeof((const char *[]){__VA_ARGS__}) / sizeof(char *)), (const char *const[]) { __VA_ARGS__ }

/* The same with one output; its name. */
const char *inv_onnx_node(inv_onnx_body *r, const char *out, const char *op, uint32_t nin, const char *const *in,
                          uint32_t nattr, const inv_attr *attr);

/* A fresh value op(x), op(x, y). */
const char *inv_onnx1(inv_onnx_body *r, const char *op, const char *x);
const char *inv_onnx2(inv_onnx_body *r, const char *op, const char *x, const char *y);

const char *inv_onnx_cast(inv_onnx_body *r, const char *x, inv_dtype to);
/* x in the body's type. `like` is a value of that type; the cast goes by it where operators can (from 15 on), so that
 * it still holds in a file that was converted to another type. NULL: the type is stated. */
const char *inv_onnx_as_real(inv_onnx_body *r, const char *x, const char *like);

/* Constants. `data` is borrowed; inv_onnx_real makes a scalar of the body's type, inv_onnx_ints a list of int64. */
const char *inv_onnx_constant(inv_onnx_body *r, const inv_data *data);
const char *inv_onnx_real(inv_onnx_body *r, double v);
const char *inv_onnx_ints(inv_onnx_body *r, size_t n, const int64_t *v);

/* For attributes of what is written. NULL: out of memory. */
const int64_t *inv_onnx_copy(inv_onnx_body *r, size_t n, const int64_t *v);

/* x from one index along an axis to another, not included. Slice takes these as inputs from operator set 10 on. */
enum { INV_ONNX_INPUTS_OF_SLICE = 10 };
const char *inv_onnx_slice(inv_onnx_body *r, const char *out, const char *x, int64_t axis, int64_t from, int64_t to);

/* ReduceSum or ReduceMean (`op`) over axes, which it takes as an input from operator set `since` on. */
enum { INV_ONNX_INPUTS_OF_REDUCE_SUM = 13, INV_ONNX_INPUTS_OF_REDUCE_MEAN = 18 };
const char *inv_onnx_reduced(inv_onnx_body *r, const char *out, const char *op, int64_t since, const char *x, size_t n,
                             const int64_t *axes, bool keep);

/* m with its last two axes exchanged. */
const char *inv_onnx_transposed(inv_onnx_body *r, const char *m, int rank);

#endif
