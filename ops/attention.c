/* SPDX-License-Identifier: Apache-2.0
 * Attention and Trilu. Both lower to operators that exist: a mask is a constant once shapes are known, and Where with
 * it is exact for infinities and NaN. Sources: the ONNX operator specifications. */
#include "ops/builtin.h"
#include "ops/util.h"

/* A constant bool matrix: element [i, j] says whether from <= j - i <= to. */
static inv_id emit_band(inv_graph *g, int64_t rows, int64_t cols, int64_t from, int64_t to)
{
    const inv_shape s = inv_shape_of(2, (int64_t[]){rows, cols});
    size_t nbytes;
    if (!inv_shape_nbytes(&s, INV_BOOL, &nbytes)) return INV_NONE;
    uint8_t *bytes = inv__arena_alloc(&g->arena, nbytes ? nbytes : 1);
    if (bytes == NULL) return INV_NONE;
    for (int64_t i = 0; i < rows; i++) {
        for (int64_t j = 0; j < cols; j++) bytes[i * cols + j] = j - i >= from && j - i <= to;
    }
    return inv_graph_const(g, INV_BOOL, &s, bytes);
}

/* What a lower function returns when a builder gave nothing. */
static inv_status failed(const inv_graph *g) { return g->failed != INV_OK ? g->failed : INV_E_NOMEM; }

/* --- Trilu --- */
static inv_status trilu_lower(inv_graph *g, const inv_node *n, inv_id *out)
{
    int64_t k = 0;
    size_t count = 0;
    const double zero[2] = {0, 0}; /* of every type */
    INV_TRY(inv__need(g, n, 1));
    const inv_shape s = *inv__in_shape(g, n, 0), scalar = inv_shape_scalar();
    const inv_dtype t = inv__in_dtype(g, n, 0);
    const bool upper = inv_attr_int(n, "upper", 1) != 0;
    if (s.rank < 2) return inv_node_fail(g, n, INV_E_SHAPE, "the input needs two axes or more");
    const int64_t rows = s.dim[s.rank - 2], cols = s.dim[s.rank - 1];
    if (inv__has_in(n, 1)) INV_TRY(inv_node_need_const(g, n, n->in[1], "k"));
    if (inv__has_in(n, 1) && (!inv_const_ints(g, n->in[1], 1, &k, &count) || count != 1))
        return inv_node_fail(g, n, INV_E_SHAPE, "k must be one integer");
    if (inv_dtype_size(t) == 0 || inv_dtype_size(t) > 8)
        return inv_node_fail(g, n, INV_E_UNSUPPORTED_TYPE, "%s is not supported", inv_dtype_name(t));
    const inv_id mask = emit_band(g, rows, cols, upper ? k : -rows, upper ? cols : k);
    const inv_id none = mask == INV_NONE ? INV_NONE : inv_graph_const(g, t, &scalar, zero);
    if (none == INV_NONE) return failed(g);
    out[0] = inv_emit1(g, "Where", INV_IN(mask, n->in[0], none), INV_NOATTR);
    return inv__done(g);
}

/* --- Attention --- */
typedef struct heads {
    int64_t batch, q, kv; /* heads of queries, and of keys and values */
    int64_t len, past, total; /* queries; keys before and with those given here */
    int64_t d, dv;
    bool packed; /* heads lie side by side in the last axis of three */
} heads;

/* Input i as [batch, heads, length, size]. */
static inv_status emit_heads(inv_graph *g, const inv_node *n, uint32_t i, bool packed, int64_t count, inv_id *out)
{
    const inv_shape s = *inv__in_shape(g, n, i);
    *out = n->in[i];
    if (!packed) return INV_OK;
    if (count <= 0 || s.dim[2] % count != 0)
        return inv_node_fail(g, n, INV_E_SHAPE, "%lld elements per position of input %u are not %lld equal heads",
                             (long long)s.dim[2], i, (long long)count);
    const inv_shape apart = inv_shape_of(4, (int64_t[]){s.dim[0], s.dim[1], count, s.dim[2] / count});
    *out = inv__emit_transpose(g, inv__emit_view(g, n->in[i], &apart), 4, (int64_t[]){0, 2, 1, 3});
    return *out == INV_NONE ? failed(g) : INV_OK;
}

static inv_status need_served(const inv_graph *g, const inv_node *n)
{
    if (inv__has_in(n, 6)) return inv_node_fail(g, n, INV_E_UNSUPPORTED_OP, "nonpad_kv_seqlen is not supported");
    if (inv_attr_int(n, "left_window_size", -1) != -1 || inv_attr_int(n, "right_window_size", -1) != -1)
        return inv_node_fail(g, n, INV_E_UNSUPPORTED_OP, "left_window_size and right_window_size are not supported");
    const int64_t mode = inv_attr_int(n, "qk_matmul_output_mode", 0);
    if (inv__has_out(n, 3) && mode != 0 && mode != 3) /* releases of the specification exchanged 1 and 2 */
        return inv_node_fail(g, n, INV_E_UNSUPPORTED_OP, "qk_matmul_output_mode %lld is not supported, only 0 and 3",
                             (long long)mode);
    if (inv__has_in(n, 4) != inv__has_in(n, 5))
        return inv_node_fail(g, n, INV_E_GRAPH, "past_key and past_value are given together or not at all");
    return INV_OK;
}

/* Queries, keys (with the past ones) and values in v[0..2], and what their shapes say. */
static inv_status operands(inv_graph *g, const inv_node *n, heads *h, inv_id v[3])
{
    INV_TRY(inv__need(g, n, 3));
    const int rank = inv__in_shape(g, n, 0)->rank;
    memset(h, 0, sizeof *h);
    h->packed = rank == 3;
    for (uint32_t i = 0; i < 6; i++) {
        if (!inv__has_in(n, i) || i == 3) continue;
        INV_TRY(inv__need_real(g, n, i));
        if (inv__in_dtype(g, n, i) != inv__in_dtype(g, n, 0))
            return inv_node_fail(g, n, INV_E_UNSUPPORTED_TYPE, "inputs 0 and %u must have one type", i);
        const int r = inv__in_shape(g, n, i)->rank;
        if (i < 3 ? r != rank || (r != 3 && r != 4) : r != 4)
            return inv_node_fail(g, n, INV_E_SHAPE, "Q, K, V need three axes or four alike, what is past needs four");
    }
    const int64_t hq = inv_attr_int(n, "q_num_heads", 0), hkv = inv_attr_int(n, "kv_num_heads", 0);
    for (uint32_t i = 0; i < 3; i++) INV_TRY(emit_heads(g, n, i, h->packed, i == 0 ? hq : hkv, &v[i]));
    for (uint32_t i = 1; i < 3 && inv__has_in(n, 4); i++) {
        const inv_shape *a = inv__in_shape(g, n, 3 + i), *b = inv__shape(g, v[i]);
        if (a->dim[0] != b->dim[0] || a->dim[1] != b->dim[1] || a->dim[3] != b->dim[3])
            return inv_node_fail(g, n, INV_E_SHAPE, "input %u differs from input %u in more than its length", 3 + i, i);
        h->past = a->dim[2];
        v[i] = inv_emit1(g, "Concat", INV_IN(n->in[3 + i], v[i]), INV_ATTRS(inv_attr_of_int("axis", 2)));
        if (v[i] == INV_NONE) return failed(g);
    }
    const inv_shape q = *inv__shape(g, v[0]), k = *inv__shape(g, v[1]), w = *inv__shape(g, v[2]);
    h->batch = q.dim[0], h->q = q.dim[1], h->len = q.dim[2], h->d = q.dim[3];
    h->kv = k.dim[1], h->total = k.dim[2], h->dv = w.dim[3];
    if (k.dim[0] != h->batch || w.dim[0] != h->batch || w.dim[1] != h->kv || w.dim[2] != h->total || k.dim[3] != h->d)
        return inv_node_fail(g, n, INV_E_SHAPE, "Q, K and V do not go together: one batch, K and V of equal heads and "
                                                "length, Q and K of equal head size are wanted");
    if (h->kv == 0 || h->q % h->kv != 0)
        return inv_node_fail(g, n, INV_E_SHAPE, "%lld query heads are not a multiple of %lld key heads",
                             (long long)h->q, (long long)h->kv);
    return INV_OK;
}

/* What is added to the scores, from the mask and is_causal; INV_NONE: nothing. */
static inv_status emit_bias(inv_graph *g, const inv_node *n, const heads *h, inv_id *out)
{
    const inv_dtype t = inv__in_dtype(g, n, 0);
    const bool masked = inv__has_in(n, 3), causal = inv_attr_int(n, "is_causal", 0) != 0;
    const inv_id zero = inv_graph_const_real(g, t, 0), never = inv_graph_const_real(g, t, -INFINITY);
    inv_id bias = zero;
    *out = INV_NONE;
    if (!masked && !causal) return INV_OK;
    if (masked) {
        const inv_shape scores = inv_shape_of(4, (int64_t[]){h->batch, h->q, h->len, h->total});
        const inv_dtype m = inv__in_dtype(g, n, 3);
        inv_shape both;
        if (!inv_shape_broadcast(inv__in_shape(g, n, 3), &scores, &both) || !inv_shape_equal(&both, &scores))
            return inv_node_fail(g, n, INV_E_SHAPE, "attn_mask does not broadcast to the scores [%lld,%lld,%lld,%lld]",
                                 (long long)h->batch, (long long)h->q, (long long)h->len, (long long)h->total);
        if (m != INV_BOOL && m != t)
            return inv_node_fail(g, n, INV_E_UNSUPPORTED_TYPE, "attn_mask is %s; it must be bool or as Q",
                                 inv_dtype_name(m));
        bias = n->in[3];
        if (m == INV_BOOL) bias = inv_emit1(g, "Where", INV_IN(bias, zero, never), INV_NOATTR);
    }
    if (causal && bias != INV_NONE) {
        const inv_id seen = emit_band(g, h->len, h->total, -h->len, h->past);
        bias = seen == INV_NONE ? INV_NONE : inv_emit1(g, "Where", INV_IN(seen, bias, never), INV_NOATTR);
    }
    *out = bias;
    return bias == INV_NONE ? failed(g) : INV_OK;
}

/* Where a row of a mask forbids everything, its probabilities are zeros. The condition per row, or INV_NONE where a
 * constant shows that there is no such row. */
static inv_status emit_forbidden(inv_graph *g, const inv_node *n, inv_id bias, inv_id *out)
{
    *out = INV_NONE;
    if (bias == INV_NONE || !inv__has_in(n, 3)) return INV_OK; /* causal alone leaves the first key */
    const inv_shape s = *inv__shape(g, bias);
    if (s.rank == 0 || s.dim[s.rank - 1] == 0) return INV_OK;
    const int64_t last = s.rank - 1;
    const inv_id top = inv_emit1(g, "ReduceMaxAxes", INV_IN(bias),
                                 INV_ATTRS(inv_attr_of_ints("axes", 1, &last), inv_attr_of_int("keepdims", 1)));
    const inv_id never = inv_graph_const_real(g, inv_val(g, bias)->dtype, -INFINITY);
    if (top == INV_NONE || never == INV_NONE) return failed(g);
    const inv_id row = inv_emit1(g, "Equal", INV_IN(top, never), INV_NOATTR);
    if (row == INV_NONE) return failed(g);
    const inv_value *v = inv_val(g, row);
    bool any = !inv_const_known(g, row) || v->data.bytes == NULL;
    for (int64_t i = 0; !any && i < inv_shape_nelem(&v->shape); i++) any = ((const uint8_t *)v->data.bytes)[i] != 0;
    if (any) *out = row;
    return INV_OK;
}

/* Two products with the heads of `b` shared among groups of heads of `a`: [batch, heads, ...] both, and the result. */
static inv_id emit_product(inv_graph *g, const heads *h, inv_id a, inv_id b, bool tb)
{
    if (a == INV_NONE || b == INV_NONE) return INV_NONE;
    const inv_attr attr[2] = {inv_attr_of_int("transA", 0), inv_attr_of_int("transB", tb)};
    if (h->q == h->kv) return inv_emit1(g, "MatMulT", INV_IN(a, b), 2, attr);
    const inv_shape sa = *inv__shape(g, a), sb = *inv__shape(g, b);
    const inv_shape ga = inv_shape_of(5, (int64_t[]){h->batch, h->kv, h->q / h->kv, sa.dim[2], sa.dim[3]});
    const inv_shape gb = inv_shape_of(5, (int64_t[]){h->batch, h->kv, 1, sb.dim[2], sb.dim[3]});
    const inv_shape y = inv_shape_of(4, (int64_t[]){h->batch, h->q, sa.dim[2], sb.dim[tb ? 2 : 3]});
    a = inv__emit_view(g, a, &ga);
    b = inv__emit_view(g, b, &gb);
    if (a == INV_NONE || b == INV_NONE) return INV_NONE;
    return inv__emit_view(g, inv_emit1(g, "MatMulT", INV_IN(a, b), 2, attr), &y);
}

static inv_id emit_two(inv_graph *g, const char *op, inv_id a, inv_id b)
{
    return a == INV_NONE || b == INV_NONE ? INV_NONE : inv_emit1(g, op, INV_IN(a, b), INV_NOATTR);
}

/* Probabilities from scores. softmax_precision is not looked at: real types are one type at run time, and sums are
 * float64. */
static inv_status emit_probabilities(inv_graph *g, const inv_node *n, const heads *h, inv_id scores, inv_id *out)
{
    const inv_dtype t = inv__in_dtype(g, n, 0);
    const double cap = inv_attr_float(n, "softcap", 0);
    inv_id bias, row, y = scores;
    INV_TRY(emit_bias(g, n, h, &bias));
    INV_TRY(emit_forbidden(g, n, bias, &row));
    const inv_id zero = inv_graph_const_real(g, t, 0);
    if (cap != 0) {
        y = emit_two(g, "Mul", y, inv_graph_const_real(g, t, 1 / cap));
        y = y == INV_NONE ? y : inv_emit1(g, "Tanh", INV_IN(y), INV_NOATTR);
        y = emit_two(g, "Mul", y, inv_graph_const_real(g, t, cap));
    }
    /* A forbidden row goes through the softmax without its bias, so that nothing on the way back is NaN. */
    if (row != INV_NONE) bias = inv_emit1(g, "Where", INV_IN(row, zero, bias), INV_NOATTR);
    if (bias != INV_NONE) y = emit_two(g, "Add", y, bias);
    if (y == INV_NONE) return failed(g);
    y = inv_emit1(g, "Softmax", INV_IN(y), INV_ATTRS(inv_attr_of_int("axis", -1)));
    if (row != INV_NONE && y != INV_NONE) y = inv_emit1(g, "Where", INV_IN(row, zero, y), INV_NOATTR);
    *out = y;
    return y == INV_NONE ? failed(g) : INV_OK;
}

static inv_status attention_lower(inv_graph *g, const inv_node *n, inv_id *out)
{
    heads h;
    inv_id v[3], p, y;
    INV_TRY(need_served(g, n));
    INV_TRY(operands(g, n, &h, v));
    const inv_attr *given = inv_attr_find(n, "scale");
    const double scale = given ? given->f : 1 / sqrt((double)h.d);
    if (!(scale >= 0)) return inv_node_fail(g, n, INV_E_UNSUPPORTED_OP, "scale must not be negative");
    const bool wants_scores = inv__has_out(n, 3), late = inv_attr_int(n, "qk_matmul_output_mode", 0) == 3;
    const bool wants_y = inv__has_out(n, 0);
    for (uint32_t i = 1; i < 3; i++) {
        if (inv__has_out(n, i)) out[i] = v[i];
    }
    const inv_id root = inv_graph_const_real(g, inv__in_dtype(g, n, 0), sqrt(scale));
    const inv_id scores = emit_product(g, &h, emit_two(g, "Mul", v[0], root), emit_two(g, "Mul", v[1], root), true);
    if (scores == INV_NONE) return failed(g);
    INV_TRY(emit_probabilities(g, n, &h, scores, &p));
    if (wants_scores) out[3] = late ? p : scores;
    if (!wants_y) return inv__done(g);
    y = emit_product(g, &h, p, v[2], false);
    if (h.packed) {
        const inv_shape s = inv_shape_of(3, (int64_t[]){h.batch, h.len, h.q * h.dv});
        y = inv__emit_view(g, inv__emit_transpose(g, y, 4, (int64_t[]){0, 2, 1, 3}), &s);
    }
    out[0] = y;
    return inv__done(g);
}

/* --- rows --- */
static const inv_op_def trilu_14 = {
    .size = sizeof trilu_14, .domain = "", .name = "Trilu", .since = 14, .in = "input k?", .out = "output",
    .infer = inv__infer_lowered, .lower = trilu_lower,
    .cases = (const char *const[]){"y = Trilu(float[2,3,4] x)", "y = Trilu<upper = 0>(float[4,3] x)",
                                   "y = Trilu(float[0,3] x)", NULL},
    .doc = "the upper or lower triangle, zeros elsewhere; to Where with a constant. ONNX Trilu-14"};

static const inv_op_def attention_23 = {
    .size = sizeof attention_23, .domain = "", .name = "Attention", .since = 23,
    .in = "Q K V attn_mask? past_key? past_value? nonpad_kv_seqlen?",
    .out = "Y present_key? present_value? qk_matmul_output?", .infer = inv__infer_lowered, .lower = attention_lower,
    .cases = (const char *const[]){
        "y = Attention(float[2,2,3,4] q, float[2,2,5,4] k, float[2,2,5,3] v)",
        "y = Attention<is_causal = 1>(float[1,2,4,3] q, float[1,2,4,3] k, float[1,2,4,3] v)",
        "y = Attention<is_causal = 1, q_num_heads = 4, kv_num_heads = 2, softcap = 0.5>(float[2,3,8] q, "
        "float[2,3,4] k, float[2,3,6] v)",
        "y = Attention<is_causal = 1, scale = 0.3>(float[1,2,3,4] q, float[1,1,3,4] k, float[1,1,3,2] v, "
        "float[2,1,3] mask)",
        "y = Attention(float[1,2,3,4] q, float[1,2,3,4] k, float[1,2,3,2] v, bool[3,3] mask)",
        "y, pk, pv = Attention<is_causal = 1>(float[1,2,2,4] q, float[1,2,2,4] k, float[1,2,2,3] v, float[2,5] mask, "
        "float[1,2,3,4] past_k, float[1,2,3,3] past_v)", NULL},
    .doc = "softmax(q k' scale + mask) v per head; to MatMulT and Softmax. ONNX Attention-23, -24"};

const inv_op_def *const inv_ops_attention[] = {&trilu_14, &attention_23, NULL};
