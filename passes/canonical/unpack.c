/* SPDX-License-Identifier: Apache-2.0
 * Readers of quantized constants. Lowering gives Unpack, the constant as a whole in floating point; what has a kernel
 * that expands it piece by piece reads the constant instead:
 *     MatMulT of an Unpack    -> MatMulPacked
 *     Gather of an Unpack     -> GatherPacked
 *     SliceRange of an Unpack -> Unpack of those rows
 * Where readers of other kinds are left, Unpack is too (ops/linear/packed.h). Backward expands the constant again for
 * each of them (passes/autodiff/unpack_again.c). */
#include <string.h>

#include "passes/canonical/canonical.h"

static const inv_node *unpacks(const inv_graph *g, inv_id v)
{
    const inv_node *d = inv_def_node(g, v);
    return d && inv_op_is(d, "Unpack") ? d : NULL;
}

/* Node `op` of `first` and the constant of unpack node u, with u's attributes and more. */
static inv_id emit_packed(inv_graph *g, const char *op, inv_id first, const inv_node *u, uint32_t nmore,
                          const inv_attr *more)
{
    inv_id in[] = {first, u->in[0], u->in[1], u->nin > 2 ? u->in[2] : INV_NONE};
    inv_attr *attr = INV_ARENA_NEW(&g->arena, inv_attr, u->nattr + nmore + 1);
    if (!attr) return INV_NONE;
    for (uint32_t i = 0; i < u->nattr; i++) attr[i] = u->attr[i];
    for (uint32_t i = 0; i < nmore; i++) attr[u->nattr + i] = more[i];
    const uint32_t skip = first == INV_NONE ? 1 : 0;
    return inv_emit1(g, op, 4 - skip, in + skip, u->nattr + nmore, attr);
}

static inv_id matmul_of(inv_graph *g, const inv_node *n)
{
    const inv_node *a = unpacks(g, n->in[0]), *b = unpacks(g, n->in[1]);
    if (!a == !b) return INV_NONE; /* of two constants one has to be expanded: then both may as well */
    const inv_node u = a ? *a : *b;
    const char *const trans[] = {"transA", "transB"};
    inv_id x = n->in[a ? 1 : 0];
    if (inv_attr_int(n, trans[a ? 1 : 0], 0)) {
        int64_t perm[INV_MAX_RANK];
        const int rank = inv_val(g, x)->shape.rank;
        for (int i = 0; i < rank; i++) perm[i] = i < rank - 2 ? i : 2 * rank - 3 - i;
        x = inv_emit1(g, "Transpose", INV_IN(x), INV_ATTRS(inv_attr_of_ints("perm", (size_t)rank, perm)));
    }
    const inv_attr more[] = {inv_attr_of_int("left", a != NULL),
                             inv_attr_of_int("trans", inv_attr_int(n, trans[a ? 0 : 1], 0))};
    return x == INV_NONE ? x : emit_packed(g, "MatMulPacked", x, &u, 2, more);
}

static inv_id gather_of(inv_graph *g, const inv_node *n)
{
    const inv_node *u = unpacks(g, n->in[0]);
    if (!u) return INV_NONE;
    const inv_node copy = *u;
    const inv_attr more = inv_attr_of_int("gather_axis", inv_attr_int(n, "axis", 0));
    return emit_packed(g, "GatherPacked", n->in[1], &copy, 1, &more);
}

/* Neighbouring entries of the first axis. */
static inv_id rows_of(inv_graph *g, const inv_node *n)
{
    const inv_node *u = unpacks(g, n->in[0]);
    size_t count = 0, steps = 0;
    const int64_t *start = inv_attr_ints(n, "starts", &count), *step = inv_attr_ints(n, "steps", &steps);
    if (!u || !start || !step || count != steps || inv_val(g, u->in[0])->role == INV_ROLE_PARAM) return INV_NONE;
    inv_shape shape = inv_val(g, n->in[0])->shape;
    const inv_shape *y = &inv_val(g, n->out[0])->shape;
    for (int d = 1; d < shape.rank; d++)
        if (y->dim[d] != shape.dim[d] || step[d] != 1) return INV_NONE;
    if (step[0] != 1 && y->dim[0] > 1) return INV_NONE;
    inv_node copy = *u;
    copy.attr = INV_ARENA_NEW(&g->arena, inv_attr, u->nattr + 1);
    if (!copy.attr) return INV_NONE;
    copy.nattr = 0;
    for (uint32_t i = 0; i < u->nattr; i++)
        if (strcmp(u->attr[i].name, "shape") != 0 && strcmp(u->attr[i].name, "first") != 0)
            copy.attr[copy.nattr++] = u->attr[i];
    shape.dim[0] = y->dim[0];
    const inv_attr more[] = {inv_attr_of_ints("shape", (size_t)shape.rank, shape.dim),
                             inv_attr_of_int("first", inv_attr_int(u, "first", 0) + start[0])};
    return emit_packed(g, "Unpack", INV_NONE, &copy, 2, more);
}

inv_id inv_simplify_unpack(inv_graph *g, const inv_node *n)
{
    if (inv_op_is(n, "MatMulT")) return matmul_of(g, n);
    if (inv_op_is(n, "Gather")) return gather_of(g, n);
    return inv_op_is(n, "SliceRange") ? rows_of(g, n) : INV_NONE;
}
