/* SPDX-License-Identifier: Apache-2.0
 * Arithmetic in lowerings, as in a formula. After a failure every call gives INV_NONE; inv_done says why. */
#ifndef INV_OPS_BASE_EMIT_H
#define INV_OPS_BASE_EMIT_H

#include "ops/base/util.h"

static inline inv_id inv_unary(inv_graph *g, const char *op, inv_id x)
{
    return inv_emit1(g, op, INV_IN(x), INV_NOATTR);
}

static inline inv_id inv_emit_pair(inv_graph *g, const char *op, inv_id a, inv_id b)
{
    return inv_emit1(g, op, INV_IN(a, b), INV_NOATTR);
}

/* The matrix product of a and b, each transposed or not. */
static inline inv_id inv_emit_product(inv_graph *g, bool ta, inv_id a, bool tb, inv_id b)
{
    return inv_emit1(g, "MatMulT", INV_IN(a, b),
                     INV_ATTRS(inv_attr_of_int("transA", ta), inv_attr_of_int("transB", tb)));
}

/* A scalar of the type of `like`. */
static inline inv_id inv_number(inv_graph *g, inv_id like, double v)
{
    return like == INV_NONE ? INV_NONE : inv_graph_const_real(g, inv_val(g, like)->dtype, v);
}

static inline inv_id inv_cast(inv_graph *g, inv_id x, inv_dtype to)
{
    if (x == INV_NONE || inv_val(g, x)->dtype == to) return x;
    return inv_emit1(g, "Cast", INV_IN(x), INV_ATTRS(inv_attr_of_int("to", (int64_t)to)));
}

/* a where the condition holds, else b */
static inline inv_id inv_choose(inv_graph *g, inv_id condition, inv_id a, inv_id b)
{
    return inv_emit1(g, "Where", INV_IN(condition, a, b), INV_NOATTR);
}

/* Input i of n has lengths, from `least` to `most`: others are refused, given ones here, fed ones with their batch
 * (emit.c). What is computed from other values is what it is. */
inv_status inv_takes_lengths(inv_graph *g, const inv_node *n, uint32_t i, int64_t least, int64_t most);

/* What ONNX's operator `op` gives for these inputs and attributes; messages are about node n, of which it is a part.
 * emit.c: out[nout] gets the results, those whose bit in `wanted` is set. After a failure they are INV_NONE. */
void inv_onnx_results(inv_graph *g, const inv_node *n, const char *op, uint32_t nin, const inv_id *in, uint32_t nattr,
                      const inv_attr *attr, uint32_t nout, uint32_t wanted, inv_id *out);

static inline inv_id inv_onnx(inv_graph *g, const inv_node *n, const char *op, uint32_t nin, const inv_id *in,
                              uint32_t nattr, const inv_attr *attr)
{
    inv_id y;
    inv_onnx_results(g, n, op, nin, in, nattr, attr, 1, 1, &y);
    return y;
}

#endif
