/* SPDX-License-Identifier: Apache-2.0
 * Operators that gradients and lowerings of many families emit. */
#include "ops/base/emit.h"
#include "core/graph/node.h"

inv_id inv_emit_sum_to(inv_graph *g, inv_id v, inv_id like)
{
    if (g->failed || v == INV_NONE || like == INV_NONE) return INV_NONE;
    const inv_shape to = *inv_shape_of_value(g, like), from = *inv_shape_of_value(g, v);
    if (inv_shape_equal(&from, &to)) return v;
    if (inv_shape_nelem(&to) == inv_shape_nelem(&from)) return inv_emit_view(g, v, &to);
    return inv_emit1(g, "SumTo", INV_IN(v), INV_ATTRS(inv_attr_of_shape("shape", &to)));
}

inv_id inv_emit_part(inv_graph *g, inv_id v, int axis, int64_t start, int64_t count)
{
    int64_t starts[INV_MAX_RANK] = {0}, steps[INV_MAX_RANK], sizes[INV_MAX_RANK];
    if (v == INV_NONE) return v;
    const inv_shape *s = inv_shape_of_value(g, v);
    if (s->dim[axis] == count) return v;
    for (int i = 0; i < s->rank; i++) steps[i] = 1, sizes[i] = i == axis ? count : s->dim[i];
    starts[axis] = start;
    return inv_emit1(g, "SliceRange", INV_IN(v),
                     INV_ATTRS(inv_attr_of_ints("starts", (size_t)s->rank, starts),
                               inv_attr_of_ints("steps", (size_t)s->rank, steps),
                               inv_attr_of_ints("sizes", (size_t)s->rank, sizes)));
}

inv_status inv_takes_lengths(inv_graph *g, const inv_node *n, uint32_t i, int64_t least, int64_t most)
{
    inv_id v = n->in[i];
    while (inv_val(g, v)->def != INV_NONE &&
           (inv_op_is(inv_nod(g, inv_val(g, v)->def), "Cast") || inv_op_is(inv_nod(g, inv_val(g, v)->def), "View")))
        v = inv_nod(g, inv_val(g, v)->def)->in[0];
    inv_value *val = inv_val(g, v);
    const inv_data *d = &val->data;
    if (val->role == INV_ROLE_CONST && d->bytes && !inv_dtype_is_float(d->dtype)) {
        for (int64_t k = 0; k < inv_shape_nelem(&d->shape); k++) {
            const int64_t length = inv_elem_int(d->bytes, d->dtype, (size_t)k);
            if (length < least || length > most)
                return inv_node_fail(g, n, INV_E_ARG, "length %lld of %lld is %lld; they are from %lld to %lld",
                                     (long long)k, (long long)inv_shape_nelem(&d->shape), (long long)length,
                                     (long long)least, (long long)most);
        }
    }
    if (val->def == INV_NONE || !inv_op_is(inv_nod(g, val->def), "Feed") || inv_dtype_is_float(val->dtype))
        return INV_OK;
    inv_lengths *s = INV_ARENA_NEW(&g->arena, inv_lengths, 1);
    if (!s) return INV_E_NOMEM;
    const inv_lengths *was = val->lengths;
    *s = (inv_lengths){was && was->least > least ? was->least : least, was && was->most < most ? was->most : most,
                       inv_arena_printf(&g->arena, "'%s' (%s)", inv_node_label(n), n->op_type)};
    val->lengths = s;
    return s->by ? INV_OK : INV_E_NOMEM;
}

void inv_onnx_results(inv_graph *g, const inv_node *n, const char *op, uint32_t nin, const inv_id *in, uint32_t nattr,
                      const inv_attr *attr, uint32_t nout, uint32_t wanted, inv_id *out)
{
    enum { MOST_IN = 12, MOST_OUT = 4, MOST_ATTR = 16 };
    const inv_op_def *row = inv_registry_op(g->ctx->registry, "", op, 0);
    inv_id ins[MOST_IN], outs[MOST_OUT];
    inv_attr attrs[MOST_ATTR];
    for (uint32_t i = 0; i < nout; i++) out[i] = INV_NONE;
    if (g->failed) return;
    if (!row || nin > MOST_IN || nout > MOST_OUT || nattr > MOST_ATTR) {
        g->failed = INV_E_INTERNAL;
        return;
    }
    for (uint32_t i = 0; i < nin; i++) ins[i] = in[i];
    for (uint32_t i = 0; i < nout; i++)
        outs[i] = wanted >> i & 1 ? in[0] : INV_NONE; /* only looked at for being there */
    for (uint32_t i = 0; i < nattr; i++) attrs[i] = attr[i];
    inv_node m = *n;
    m.origin_type = inv_node_kind(n);
    m.op_type = op, m.op = row;
    m.in = ins, m.nin = nin;
    m.out = outs, m.nout = nout;
    m.attr = attrs, m.nattr = nattr;
    inv_status s = row->lower ? row->lower(g, &m, out) : INV_OK;
    if (!row->lower) out[0] = inv_emit1(g, op, nin, ins, nattr, attrs);
    if (s != INV_OK && g->failed == INV_OK) g->failed = s;
}
