/* SPDX-License-Identifier: Apache-2.0
 * What the attentions of onnxruntime have in common (ms_attend.h). */
#include "ops/microsoft/ms_attend.h"
#include "ops/base/emit.h"

inv_status inv_attend_refuse_input(const inv_attending *a, uint32_t i, const char *what, const char *instead)
{
    if (!inv_has_in(a->n, i)) return INV_OK;
    return inv_node_fail(a->g, a->n, INV_E_UNSUPPORTED_OP, "input %u (%s) is not supported; %s", i, what, instead);
}

inv_status inv_attend_refuse_output(const inv_attending *a, uint32_t i, const char *what)
{
    if (!inv_has_out(a->n, i)) return INV_OK;
    return inv_node_fail(a->g, a->n, INV_E_UNSUPPORTED_OP,
                         "output %u (%s) is not supported; leave its name empty, or drop what reads it", i, what);
}

inv_status inv_attend_refuse_attribute(const inv_attending *a, const char *name, int64_t only, const char *instead)
{
    const int64_t v = inv_attr_int(a->n, name, only);
    if (v == only) return INV_OK;
    return inv_node_fail(a->g, a->n, INV_E_UNSUPPORTED_OP, "attribute %s is %lld, only %lld is supported; %s", name,
                         (long long)v, (long long)only, instead);
}

inv_status inv_attend_wrong_shape(const inv_attending *a, uint32_t i, const char *want)
{
    return inv_node_fail(a->g, a->n, INV_E_SHAPE, "input %u must be %s", i, want);
}

inv_status inv_attend_apart(inv_attending *a, inv_id v, int64_t heads, inv_id *out)
{
    const int64_t turn[] = {0, 2, 1, 3};
    if (v == INV_NONE) return inv_failed(a->g);
    const inv_shape s = *inv_shape_of_value(a->g, v);
    if (s.rank != 3 || heads < 1 || s.dim[2] % heads != 0)
        return inv_node_fail(a->g, a->n, INV_E_SHAPE,
                             "queries, keys and values need three axes, the last one of %lld equal heads",
                             (long long)heads);
    const inv_shape wide = inv_shape_of(4, (int64_t[]){s.dim[0], s.dim[1], heads, s.dim[2] / heads});
    *out = inv_emit_transpose(a->g, inv_emit_view(a->g, v, &wide), 4, turn);
    return *out == INV_NONE ? inv_failed(a->g) : INV_OK;
}

void inv_attend_add_to_mask(inv_attending *a, inv_id more)
{
    a->mask = a->mask == INV_NONE ? more : inv_emit_pair(a->g, "Add", a->mask, more);
}

/* 0 where the condition holds, else mask_filter_value. */
static inv_id filtered(const inv_attending *a, inv_id seen)
{
    const double filter = inv_attr_float(a->n, "mask_filter_value", -10000);
    return inv_choose(a->g, seen, inv_number(a->g, a->q, 0), inv_number(a->g, a->q, filter));
}

inv_id inv_attend_columns(const inv_attending *a)
{
    const inv_shape s = inv_shape_of(4, (int64_t[]){1, 1, 1, a->total});
    int32_t *v = INV_ARENA_NEW(&a->g->arena, int32_t, (size_t)a->total + 1);
    for (int64_t i = 0; v && i < a->total; i++) v[i] = (int32_t)i;
    return v ? inv_graph_const(a->g, INV_I32, &s, v) : INV_NONE;
}

inv_status inv_attend_mask(inv_attending *a, uint32_t i)
{
    inv_graph *g = a->g;
    if (!inv_has_in(a->n, i)) return INV_OK;
    const inv_shape s = *inv_in_shape(g, a->n, i), column = inv_shape_of(4, (int64_t[]){a->batch, 1, 1, 1});
    const inv_id mask = inv_cast(g, a->n->in[i], INV_I32);
    const bool both = s.rank == 1 && s.dim[0] == 2 * a->batch;
    if (s.rank == 1 && (s.dim[0] == a->batch || both)) {
        INV_TRY(inv_takes_lengths(g, a->n, i, 0, a->total));
        const inv_id ends = inv_emit_view(g, inv_emit_part(g, mask, 0, 0, a->batch), &column),
                     at = inv_attend_columns(a);
        inv_id seen = inv_emit_pair(g, "Less", at, ends);
        if (both) {
            const inv_id starts = inv_emit_view(g, inv_emit_part(g, mask, 0, a->batch, a->batch), &column);
            seen = inv_emit_pair(g, "And", seen, inv_emit_pair(g, "GreaterOrEqual", at, starts));
        }
        inv_attend_add_to_mask(a, filtered(a, seen));
        return inv_done(g);
    }
    const bool rows = s.rank == 3;
    if ((s.rank != 2 && !rows) || s.dim[0] != a->batch || s.dim[s.rank - 1] != a->total || (rows && s.dim[1] != a->len))
        return inv_attend_wrong_shape(
            a, i,
            "a mask [batch, keys] or [batch, queries, keys], or lengths [batch] or [2 batch]; other "
            "forms are not supported");
    const inv_shape wide = inv_shape_of(4, (int64_t[]){a->batch, 1, rows ? a->len : 1, a->total});
    const inv_id zero = inv_cast(g, inv_graph_const_real(g, g->real, 0), INV_I32);
    inv_attend_add_to_mask(a, filtered(a, inv_emit_view(g, inv_emit_pair(g, "Greater", mask, zero), &wide)));
    return inv_done(g);
}

inv_status inv_attend_bias(inv_attending *a, uint32_t i)
{
    const inv_shape scores = inv_shape_of(4, (int64_t[]){a->batch, a->heads, a->len, a->total});
    inv_shape both;
    if (!inv_has_in(a->n, i)) return INV_OK;
    const inv_shape *s = inv_in_shape(a->g, a->n, i);
    if (s->rank != 4 || !inv_shape_broadcast(s, &scores, &both) || !inv_shape_equal(&both, &scores))
        return inv_attend_wrong_shape(a, i, "[batch or 1, heads or 1, queries, keys]");
    inv_attend_add_to_mask(a, a->n->in[i]);
    return inv_done(a->g);
}

inv_status inv_attend_past(inv_attending *a, uint32_t i, int which, inv_id v, inv_id past)
{
    const inv_shape s = *inv_shape_of_value(a->g, past), w = *inv_shape_of_value(a->g, v);
    if (s.rank != 4 || s.dim[0] != w.dim[0] || s.dim[1] != w.dim[1] || s.dim[3] != w.dim[3])
        return inv_attend_wrong_shape(a, i, "[batch, heads, past length, head size], as keys and values");
    if (s.dim[2] > 0) a->past[which] = past;
    a->total = w.dim[2] + s.dim[2];
    return INV_OK;
}

inv_status inv_attend_shapes(inv_attending *a)
{
    const inv_shape q = *inv_shape_of_value(a->g, a->q), k = *inv_shape_of_value(a->g, a->k),
                    v = *inv_shape_of_value(a->g, a->v);
    a->batch = q.dim[0], a->len = q.dim[2], a->total = k.dim[2];
    a->mask = a->past[0] = a->past[1] = INV_NONE;
    a->window = -1;
    a->scale = inv_attr_float(a->n, "scale", 0), a->cap = inv_attr_float(a->n, "softcap", 0);
    if (k.dim[0] != a->batch || v.dim[0] != a->batch || k.dim[2] != v.dim[2] || k.dim[3] != q.dim[3])
        return inv_node_fail(a->g, a->n, INV_E_SHAPE,
                             "queries, keys and values do not match: they need one batch, keys and values one "
                             "length, queries and keys one head size");
    return INV_OK;
}

inv_status inv_attend(inv_attending *a, inv_id *out, inv_id *k, inv_id *v)
{
    inv_graph *g = a->g;
    const int64_t turn[] = {0, 2, 1, 3};
    inv_attr attr[4] = {inv_attr_of_int("is_causal", a->causal)};
    uint32_t nattr = 1;
    inv_id y[3];
    if (g->failed) return g->failed;
    if (a->scale != 0) attr[nattr++] = inv_attr_of_float("scale", a->scale);
    if (a->cap != 0) attr[nattr++] = inv_attr_of_float("softcap", a->cap);
    if (a->window >= 0) attr[nattr++] = inv_attr_of_int("left_window_size", a->window - 1);
    const inv_id in[] = {a->q, a->k, a->v, a->mask, a->past[0], a->past[1]};
    const uint32_t wanted = (inv_has_out(a->n, 0) ? 1 : 0) | (k || v ? 6 : 0);
    inv_onnx_results(g, a->n, "Attention", 6, in, nattr, attr, 3, wanted, y);
    if (g->failed) return g->failed;
    if (k) *k = y[1];
    if (v) *v = y[2];
    if (y[0] == INV_NONE) return INV_OK;
    const inv_shape s = *inv_shape_of_value(g, y[0]);
    const inv_shape flat = inv_shape_of(3, (int64_t[]){s.dim[0], s.dim[2], s.dim[1] * s.dim[3]});
    out[0] = inv_emit_view(g, inv_emit_transpose(g, y[0], 4, turn), &flat);
    return inv_done(g);
}
