/* SPDX-License-Identifier: Apache-2.0
 * What batch, layer and group normalisation share (norm.h). */
#include "ops/norm/norm.h"

#include "ops/base/util.h"

static const void *operand(const inv_call *c, uint32_t i) { return i < c->nin ? c->in[i].data : NULL; }

inv_norm inv_norm_of(const inv_call *c, bool grad)
{
    return (inv_norm){.dtype = c->in[0].dtype,
                      .eps = inv_attr_float(c->node, "epsilon", 1e-5),
                      .x = c->in[0].data,
                      .gy = grad ? c->in[1].data : NULL,
                      .scale = operand(c, grad ? 2 : 1),
                      .bias = grad ? NULL : operand(c, 2),
                      .mean = operand(c, 3),
                      .var = operand(c, 4)};
}

void inv_norm_results(const inv_call *c, void *out[3])
{
    for (uint32_t i = 0; i < 3; i++) out[i] = i < c->nout ? c->out[i].data : NULL;
}

inv_status inv_norm_need(const inv_graph *g, const inv_node *n, uint32_t last)
{
    INV_TRY(inv_need_real(g, n, 0));
    return inv_need_same_type(g, n, last);
}

inv_status inv_norm_need_vectors(const inv_graph *g, const inv_node *n, uint32_t first, uint32_t last, int64_t count,
                                 const char *what)
{
    for (uint32_t i = first; i < last; i++) {
        const inv_shape *s = inv_in_shape(g, n, i);
        if (s->rank == 1 && s->dim[0] == count) continue;
        if (s->rank == 1) inv_note_misfit(g, (int)i, count, s->dim[0]);
        return inv_node_fail(g, n, INV_E_SHAPE, "input %u must be [%lld], one number per %s", i, (long long)count,
                             what);
    }
    return INV_OK;
}

inv_status inv_norm_infer_grad(inv_graph *g, const inv_node *n)
{
    if (!inv_shape_equal(inv_in_shape(g, n, 0), inv_in_shape(g, n, 1)))
        return inv_node_fail(g, n, INV_E_SHAPE, "x and gy must have one shape");
    for (uint32_t i = 0; i < 3; i++) inv_set_out(g, n, i, inv_in_dtype(g, n, 0), inv_in_shape(g, n, i ? 2 : 0));
    return INV_OK;
}

inv_status inv_norm_need_stash(const inv_graph *g, const inv_node *n)
{
    const int64_t t = inv_attr_int(n, "stash_type", 1);
    if (t > 0 && inv_dtype_is_float((inv_dtype)t)) return INV_OK;
    return inv_node_fail(g, n, INV_E_UNSUPPORTED_OP, "stash_type %lld is no floating-point type", (long long)t);
}

static bool is_fed(inv_graph *g, inv_id v)
{
    const inv_node *n = inv_def_node(g, v);
    return inv_val(g, v)->role == INV_ROLE_INPUT || (n && n->op && (n->op->flags & INV_OP_SOURCE));
}

bool inv_is_computed(inv_graph *g, inv_id v) { return inv_graph_comes_of(g, v, is_fed); }

inv_id inv_batch_norm_spelled(inv_graph *g, const inv_id in[5], double eps)
{
    const inv_shape x = *inv_shape_of_value(g, in[0]);
    inv_shape s = inv_shape_of(x.rank, (int64_t[INV_MAX_RANK]){1, 1, 1, 1, 1, 1, 1, 1});
    inv_id v[5];
    s.dim[1] = x.dim[1];
    for (int i = 1; i < 5; i++) v[i] = inv_emit_view(g, in[i], &s);
    const inv_id more = inv_emit1(g, "Add", INV_IN(v[4], inv_graph_const_real(g, g->real, eps)), INV_NOATTR);
    const inv_id root = inv_emit1(g, "Sqrt", INV_IN(more), INV_NOATTR);
    const inv_id factor = inv_emit1(g, "Div", INV_IN(v[1], root), INV_NOATTR);
    const inv_id moved = inv_emit1(g, "Sub", INV_IN(in[0], v[3]), INV_NOATTR);
    return inv_emit1(g, "Add", INV_IN(inv_emit1(g, "Mul", INV_IN(moved, factor), INV_NOATTR), v[2]), INV_NOATTR);
}
