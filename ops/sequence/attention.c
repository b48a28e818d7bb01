/* SPDX-License-Identifier: Apache-2.0
 * ONNX's Attention, to attention of heads (attention_core.c), and Trilu, to Where with a constant mask, which is exact
 * for infinities and NaN. Sources: the ONNX operator specifications. */
#include "ops/sequence/attention.h"
#include "ops/base/emit.h"
#include "ops/base/families.h"
#include "ops/base/rows.h"

/* A constant bool matrix: element [i, j] says whether from <= j - i <= to. */
static inv_id emit_band(inv_graph *g, int64_t rows, int64_t cols, int64_t from, int64_t to)
{
    const inv_shape s = inv_shape_of(2, (int64_t[]){rows, cols});
    size_t nbytes;
    if (!inv_shape_nbytes(&s, INV_BOOL, &nbytes)) return INV_NONE;
    uint8_t *bytes = inv_arena_alloc(&g->arena, nbytes ? nbytes : 1);
    if (bytes == NULL) return INV_NONE;
    for (int64_t i = 0; i < rows; i++) {
        for (int64_t j = 0; j < cols; j++) bytes[i * cols + j] = j - i >= from && j - i <= to;
    }
    return inv_graph_const(g, INV_BOOL, &s, bytes);
}

/* --- Trilu --- */
static inv_status trilu_lower(inv_graph *g, const inv_node *n, inv_id *out)
{
    int64_t k = 0;
    size_t count = 0;
    const double zero[2] = {0, 0}; /* of every type */
    const inv_shape s = *inv_in_shape(g, n, 0), scalar = inv_shape_scalar();
    const inv_dtype t = inv_in_dtype(g, n, 0);
    const bool upper = inv_attr_int(n, "upper", 1) != 0;
    if (s.rank < 2) return inv_node_fail(g, n, INV_E_SHAPE, "the input needs two axes or more");
    const int64_t rows = s.dim[s.rank - 2], cols = s.dim[s.rank - 1];
    if (inv_has_in(n, 1)) INV_TRY(inv_node_need_const(g, n, n->in[1], "k"));
    if (inv_has_in(n, 1) && (!inv_const_ints(g, n->in[1], 1, &k, &count) || count != 1))
        return inv_node_fail(g, n, INV_E_SHAPE, "k must be one integer");
    if (inv_dtype_size(t) == 0 || inv_dtype_size(t) > 8)
        return inv_node_fail(g, n, INV_E_UNSUPPORTED_TYPE, "%s is not supported", inv_dtype_name(t));
    const inv_id mask = emit_band(g, rows, cols, upper ? k : -rows, upper ? cols : k);
    const inv_id none = mask == INV_NONE ? INV_NONE : inv_graph_const(g, t, &scalar, zero);
    if (none == INV_NONE) return inv_failed(g);
    out[0] = inv_emit1(g, "Where", INV_IN(mask, n->in[0], none), INV_NOATTR);
    return inv_done(g);
}

/* --- Attention --- */
typedef struct heads {
    int64_t batch, q, kv;     /* heads of queries, and of keys and values */
    int64_t len, past, total; /* queries; keys before and with those given here */
    int64_t d, dv;
    int64_t band[2];
    bool packed; /* heads lie side by side in the last axis of three */
    double scale, cap;
} heads;

#define FAR ((int64_t)1 << 48) /* no limit of a band */

/* Input i as [batch, heads, length, size]. */
static inv_status emit_heads(inv_graph *g, const inv_node *n, uint32_t i, bool packed, int64_t count, inv_id *out)
{
    const inv_shape s = *inv_in_shape(g, n, i);
    *out = n->in[i];
    if (!packed) return INV_OK;
    if (count <= 0 || s.dim[2] % count != 0)
        return inv_node_fail(g, n, INV_E_SHAPE, "%lld elements per position of input %u are not %lld equal heads",
                             (long long)s.dim[2], i, (long long)count);
    const inv_shape apart = inv_shape_of(4, (int64_t[]){s.dim[0], s.dim[1], count, s.dim[2] / count});
    *out = inv_emit_transpose(g, inv_emit_view(g, n->in[i], &apart), 4, (int64_t[]){0, 2, 1, 3});
    return *out == INV_NONE ? inv_failed(g) : INV_OK;
}

/* Attributes, once shapes are known. Row i of the queries stands at position past + i. */
static inv_status settings(const inv_graph *g, const inv_node *n, heads *h)
{
    const int64_t left = inv_attr_int(n, "left_window_size", -1), right = inv_attr_int(n, "right_window_size", -1);
    const int64_t mode = inv_attr_int(n, "qk_matmul_output_mode", 0);
    h->scale = inv_attr_float(n, "scale", 1 / sqrt((double)h->d));
    h->cap = inv_attr_float(n, "softcap", 0);
    h->band[0] = left < 0 ? -FAR : h->past - left;
    h->band[1] = right < 0 ? FAR : h->past + right;
    if (inv_attr_int(n, "is_causal", 0) != 0 && h->band[1] > h->past) h->band[1] = h->past;
    if (left < -1 || right < -1) return inv_node_fail(g, n, INV_E_GRAPH, "window sizes are -1 (none), 0 or more");
    if (mode < 0 || mode > 3)
        return inv_node_fail(g, n, INV_E_UNSUPPORTED_OP, "qk_matmul_output_mode %lld is not one of 0 to 3",
                             (long long)mode);
    if (inv_has_in(n, 6) && inv_has_in(n, 4))
        return inv_node_fail(g, n, INV_E_GRAPH, "nonpad_kv_seqlen and past_key exclude each other");
    return INV_OK;
}

/* Queries, keys (with the past ones) and values in v[0..2], and what their shapes say. */
static inv_status attention_operands(inv_graph *g, const inv_node *n, heads *h, inv_id v[3])
{
    const int rank = inv_in_shape(g, n, 0)->rank;
    memset(h, 0, sizeof *h);
    h->packed = rank == 3;
    if (inv_has_in(n, 4) != inv_has_in(n, 5))
        return inv_node_fail(g, n, INV_E_GRAPH, "past_key and past_value are given together or not at all");
    for (uint32_t i = 0; i < 6; i++) {
        if (!inv_has_in(n, i) || i == 3) continue;
        INV_TRY(inv_need_real(g, n, i));
        if (inv_in_dtype(g, n, i) != inv_in_dtype(g, n, 0))
            return inv_node_fail(g, n, INV_E_UNSUPPORTED_TYPE, "inputs 0 and %u must have one type", i);
        const int r = inv_in_shape(g, n, i)->rank;
        if (i < 3 ? r != rank || (r != 3 && r != 4) : r != 4)
            return inv_node_fail(g, n, INV_E_SHAPE,
                                 "Q, K, V must all have three axes or all four; past inputs need "
                                 "four");
    }
    const int64_t hq = inv_attr_int(n, "q_num_heads", 0), hkv = inv_attr_int(n, "kv_num_heads", 0);
    for (uint32_t i = 0; i < 3; i++) INV_TRY(emit_heads(g, n, i, h->packed, i == 0 ? hq : hkv, &v[i]));
    for (uint32_t i = 1; i < 3 && inv_has_in(n, 4); i++) {
        const inv_shape *a = inv_in_shape(g, n, 3 + i), *b = inv_shape_of_value(g, v[i]);
        if (a->dim[0] != b->dim[0] || a->dim[1] != b->dim[1] || a->dim[3] != b->dim[3])
            return inv_node_fail(g, n, INV_E_SHAPE, "input %u differs from input %u in more than its length", 3 + i, i);
        h->past = a->dim[2];
        v[i] = inv_emit1(g, "Concat", INV_IN(n->in[3 + i], v[i]), INV_ATTRS(inv_attr_of_int("axis", 2)));
        if (v[i] == INV_NONE) return inv_failed(g);
    }
    const inv_shape q = *inv_shape_of_value(g, v[0]), k = *inv_shape_of_value(g, v[1]),
                    w = *inv_shape_of_value(g, v[2]);
    h->batch = q.dim[0], h->q = q.dim[1], h->len = q.dim[2], h->d = q.dim[3];
    h->kv = k.dim[1], h->total = k.dim[2], h->dv = w.dim[3];
    if (k.dim[0] != h->batch || w.dim[0] != h->batch || w.dim[1] != h->kv || w.dim[2] != h->total || k.dim[3] != h->d)
        return inv_node_fail(g, n, INV_E_SHAPE,
                             "Q, K and V do not match: they need one batch, K and V equal heads and length, Q and K "
                             "one head size");
    if (h->kv == 0 || h->q % h->kv != 0)
        return inv_node_fail(g, n, INV_E_SHAPE, "%lld query heads are not a multiple of %lld key heads",
                             (long long)h->q, (long long)h->kv);
    return settings(g, n, h);
}

/* attn_mask as numbers to add, of all columns; the last ones may be left out and are then not seen. */
static inv_status emit_mask(inv_graph *g, const inv_node *n, const heads *h, inv_id *out)
{
    const inv_dtype t = inv_in_dtype(g, n, 0), m = inv_in_dtype(g, n, 3);
    const inv_shape scores = inv_shape_of(4, (int64_t[]){h->batch, h->q, h->len, h->total});
    inv_shape s = *inv_in_shape(g, n, 3), both;
    const int64_t given = s.rank ? s.dim[s.rank - 1] : 1;
    const inv_id never = inv_graph_const_real(g, t, -INFINITY), zero = inv_graph_const_real(g, t, 0);
    inv_id mask = n->in[3];
    if (m != INV_BOOL && m != t)
        return inv_node_fail(g, n, INV_E_UNSUPPORTED_TYPE, "attn_mask is %s; it must be bool or as Q",
                             inv_dtype_name(m));
    if (m == INV_BOOL) mask = inv_emit1(g, "Where", INV_IN(mask, zero, never), INV_NOATTR);
    if (given != 1 && given < h->total && mask != INV_NONE) {
        s.dim[s.rank - 1] = h->total - given;
        const inv_id rest = inv_emit1(g, "BroadcastTo", INV_IN(never), INV_ATTRS(inv_attr_of_shape("shape", &s)));
        s.dim[s.rank - 1] = h->total;
        if (rest != INV_NONE)
            mask = inv_emit1(g, "Concat", INV_IN(mask, rest), INV_ATTRS(inv_attr_of_int("axis", s.rank - 1)));
    }
    if (!inv_shape_broadcast(&s, &scores, &both) || !inv_shape_equal(&both, &scores))
        return inv_node_fail(g, n, INV_E_SHAPE, "attn_mask does not broadcast to the scores [%lld,%lld,%lld,%lld]",
                             (long long)h->batch, (long long)h->q, (long long)h->len, (long long)h->total);
    *out = mask;
    return mask == INV_NONE ? inv_failed(g) : INV_OK;
}

/* int64 [rows, cols], or [1, cols]: element [i, j] is j + with_row * i + start. */
static inv_id emit_ramp(inv_graph *g, int64_t rows, int64_t cols, int64_t with_row, int64_t start)
{
    const inv_shape s = inv_shape_of(2, (int64_t[]){rows, cols});
    int64_t *v = INV_ARENA_NEW(&g->arena, int64_t, (size_t)(rows * cols) + 1);
    if (v == NULL) return INV_NONE;
    for (int64_t i = 0; i < rows; i++) {
        for (int64_t j = 0; j < cols; j++) v[i * cols + j] = j + with_row * i + start;
    }
    return inv_graph_const(g, INV_I64, &s, v);
}

/* Where a sample has only so many keys, the queries are the last of its positions: query i stands at count - len + i,
 * and the band, which depends on the sample then, becomes a part of the mask. */
static inv_status emit_lengths(inv_graph *g, const inv_node *n, heads *h, inv_id *mask)
{
    const inv_dtype t = inv_in_dtype(g, n, 0);
    const inv_shape *have = inv_in_shape(g, n, 6), column = inv_shape_of(4, (int64_t[]){h->batch, 1, 1, 1});
    if (inv_shape_nelem(have) != h->batch)
        return inv_node_fail(g, n, INV_E_SHAPE, "nonpad_kv_seqlen needs a number per sample, %lld",
                             (long long)h->batch);
    INV_TRY(inv_takes_lengths(g, n, 6, 0, h->total));
    inv_id count = inv_emit1(g, "Cast", INV_IN(n->in[6]), INV_ATTRS(inv_attr_of_int("to", 7)));
    count = inv_emit_view(g, count, &column);
    inv_id seen = inv_emit_pair(g, "Less", emit_ramp(g, 1, h->total, 0, 0), count);
    if (h->band[1] < FAR) { /* j <= i + count - len + band */
        const inv_id ramp = emit_ramp(g, h->len, h->total, -1, h->len - h->band[1]);
        seen = inv_emit_pair(g, "And", seen, inv_emit_pair(g, "LessOrEqual", ramp, count));
    }
    if (h->band[0] > -FAR) {
        const inv_id ramp = emit_ramp(g, h->len, h->total, -1, h->len - h->band[0]);
        seen = inv_emit_pair(g, "And", seen, inv_emit_pair(g, "GreaterOrEqual", ramp, count));
    }
    h->band[0] = -FAR, h->band[1] = FAR;
    const inv_id kept = *mask != INV_NONE ? *mask : inv_graph_const_real(g, t, 0);
    const inv_id never = inv_graph_const_real(g, t, -INFINITY);
    if (seen == INV_NONE || kept == INV_NONE || never == INV_NONE) return inv_failed(g);
    *mask = inv_emit1(g, "Where", INV_IN(seen, kept, never), INV_NOATTR);
    return *mask == INV_NONE ? inv_failed(g) : INV_OK;
}

static inv_id emit_core(inv_graph *g, const heads *h, inv_id q, inv_id k, inv_id v, inv_id mask)
{
    inv_attr attr[3] = {inv_attr_of_float("scale", h->scale)};
    uint32_t nattr = 1;
    if (q == INV_NONE || k == INV_NONE || v == INV_NONE) return INV_NONE;
    if (h->cap != 0) attr[nattr++] = inv_attr_of_float("softcap", h->cap);
    if (h->band[0] > -FAR || h->band[1] < FAR) attr[nattr++] = inv_attr_of_ints("band", 2, h->band);
    const inv_id n = inv_emit(g, "AttentionCore", 2, mask == INV_NONE ? 3 : 4, (inv_id[]){q, k, v, mask}, nattr, attr);
    return n == INV_NONE ? INV_NONE : inv_nod(g, n)->out[0];
}

/* Products of queries and keys, which are shared among groups of heads, times the scale. */
static inv_id emit_scores(inv_graph *g, const heads *h, inv_id q, inv_id k)
{
    const inv_shape sq = inv_shape_of(5, (int64_t[]){h->batch, h->kv, h->q / h->kv, h->len, h->d});
    const inv_shape sk = inv_shape_of(5, (int64_t[]){h->batch, h->kv, 1, h->total, h->d});
    const inv_shape y = inv_shape_of(4, (int64_t[]){h->batch, h->q, h->len, h->total});
    q = inv_emit_view(g, q, &sq);
    k = inv_emit_view(g, k, &sk);
    if (q == INV_NONE || k == INV_NONE) return INV_NONE;
    const inv_id s =
        inv_emit1(g, "MatMulT", INV_IN(q, k), INV_ATTRS(inv_attr_of_int("transA", 0), inv_attr_of_int("transB", 1)));
    if (s == INV_NONE) return s;
    return inv_emit_view(g, inv_emit_pair(g, "Mul", s, inv_graph_const_real(g, inv_val(g, s)->dtype, h->scale)), &y);
}

/* Probabilities: attention to the rows of an identity matrix. */
static inv_id emit_probabilities(inv_graph *g, const heads *h, inv_id q, inv_id k, inv_id mask)
{
    const inv_shape s = inv_shape_of(4, (int64_t[]){h->batch, h->kv, h->total, h->total});
    const inv_dtype t = inv_val(g, q)->dtype;
    const inv_id one = inv_graph_const_real(g, t, 1), zero = inv_graph_const_real(g, t, 0);
    const inv_id same = emit_band(g, h->total, h->total, 0, 0);
    if (one == INV_NONE || zero == INV_NONE || same == INV_NONE) return INV_NONE;
    inv_id eye = inv_emit1(g, "Where", INV_IN(same, one, zero), INV_NOATTR);
    if (eye != INV_NONE) eye = inv_emit1(g, "BroadcastTo", INV_IN(eye), INV_ATTRS(inv_attr_of_shape("shape", &s)));
    return emit_core(g, h, q, k, eye, mask);
}

/* What Attention shows of its inside on demand: scores, these with softcap, these with the mask, probabilities. */
static inv_status emit_inside(inv_graph *g, const inv_node *n, const heads *h, const inv_id v[3], inv_id mask,
                              inv_id *out)
{
    const int64_t mode = inv_attr_int(n, "qk_matmul_output_mode", 0);
    const inv_dtype t = inv_in_dtype(g, n, 0);
    inv_id y = mode == 3 ? emit_probabilities(g, h, v[0], v[1], mask) : emit_scores(g, h, v[0], v[1]);
    if ((mode == 1 || mode == 2) && h->cap != 0) {
        y = inv_emit_pair(g, "Mul", y, inv_graph_const_real(g, t, 1 / h->cap));
        y = y == INV_NONE ? y : inv_emit1(g, "Tanh", INV_IN(y), INV_NOATTR);
        y = inv_emit_pair(g, "Mul", y, inv_graph_const_real(g, t, h->cap));
    }
    if (mode == 2 && mask != INV_NONE) y = inv_emit_pair(g, "Add", y, mask);
    if (mode == 2 && (h->band[0] > -FAR || h->band[1] < FAR)) {
        const inv_id seen = emit_band(g, h->len, h->total, h->band[0], h->band[1]);
        const inv_id never = inv_graph_const_real(g, t, -INFINITY);
        if (seen == INV_NONE || never == INV_NONE || y == INV_NONE) return inv_failed(g);
        y = inv_emit1(g, "Where", INV_IN(seen, y, never), INV_NOATTR);
    }
    *out = y;
    return y == INV_NONE ? inv_failed(g) : INV_OK;
}

/* softmax_precision is not looked at: real types are one type at run time, and sums are float64. */
static inv_status attention_lower(inv_graph *g, const inv_node *n, inv_id *out)
{
    heads h;
    inv_id v[3], mask = INV_NONE;
    const bool wants_y = inv_has_out(n, 0), wants_inside = inv_has_out(n, 3);
    INV_TRY(attention_operands(g, n, &h, v));
    for (uint32_t i = 1; i < 3; i++) {
        if (inv_has_out(n, i)) out[i] = v[i];
    }
    if (inv_has_in(n, 3)) INV_TRY(emit_mask(g, n, &h, &mask));
    if (inv_has_in(n, 6)) INV_TRY(emit_lengths(g, n, &h, &mask));
    if (wants_inside) INV_TRY(emit_inside(g, n, &h, v, mask, &out[3]));
    if (!wants_y) return inv_done(g);
    inv_id y = emit_core(g, &h, v[0], v[1], v[2], mask);
    if (h.packed) {
        const inv_shape s = inv_shape_of(3, (int64_t[]){h.batch, h.len, h.q * h.dv});
        y = inv_emit_view(g, inv_emit_transpose(g, y, 4, (int64_t[]){0, 2, 1, 3}), &s);
    }
    out[0] = y;
    return inv_done(g);
}

/* --- rows --- */
INV_LOWERED_BY(trilu_lower, 0, 0, trilu_14, "Trilu", 14, "input k?", "output",
               "the upper or lower triangle, zeros elsewhere; to Where with a constant. ONNX Trilu-14",
               "y = Trilu(float[2,3,4] x)", "y = Trilu<upper = 0>(float[4,3] x)", "y = Trilu(float[0,3] x)")

INV_LOWERED_BY(
    attention_lower, 0, 0, attention_23, "Attention", 23, "Q K V attn_mask? past_key? past_value? nonpad_kv_seqlen?",
    "Y present_key? present_value? qk_matmul_output?",
    "softmax(q k' scale + mask) v per head; to AttentionCore. ONNX Attention-23 to -25",
    "y = Attention(float[2,2,3,4] q, float[2,2,5,4] k, float[2,2,5,3] v)",
    "y = Attention<is_causal = 1>(float[1,2,4,3] q, float[1,2,4,3] k, float[1,2,4,3] v)",
    "y = Attention<is_causal = 1, q_num_heads = 4, kv_num_heads = 2, softcap = 0.5>(float[2,3,8] q, "
    "float[2,3,4] k, float[2,3,6] v)",
    "y = Attention<is_causal = 1, scale = 0.3>(float[1,2,3,4] q, float[1,1,3,4] k, float[1,1,3,2] v, "
    "float[2,1,3] mask)",
    "y = Attention(float[1,2,3,4] q, float[1,2,3,4] k, float[1,2,3,2] v, bool[3,3] mask)",
    "y, pk, pv = Attention<is_causal = 1>(float[1,2,2,4] q, float[1,2,2,4] k, float[1,2,2,3] v, float[2,5] mask, "
    "float[1,2,3,4] past_k, float[1,2,3,3] past_v)",
    "y, pk, pv, s = Attention<qk_matmul_output_mode = 1, softcap = 0.7, left_window_size = 1>(float[1,2,2,4] q, "
    "float[1,2,2,4] k, float[1,2,2,3] v, float[2,5] mask, float[1,2,3,4] past_k, float[1,2,3,3] past_v)",
    "y, pk, pv, p = Attention<qk_matmul_output_mode = 3>(float[1,2,2,4] q, float[1,1,2,4] k, float[1,1,2,3] v, "
    "float[2,4] mask, float[1,1,3,4] past_k, float[1,1,3,3] past_v)")

/* clang-format off */
const inv_op_def *const inv_ops_attention[] = {&trilu_14_row, &attention_23_row, &inv_op_attention_core,
                                                &inv_op_attention_grad, NULL};
/* clang-format on */
