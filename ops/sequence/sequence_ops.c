/* SPDX-License-Identifier: Apache-2.0
 * Smaller parts of sequence models, by operators that exist: RotaryEmbedding, SwiGLU, CausalConvWithState,
 * LinearAttention (its steps unrolled) and FlexAttention without functions of its user. Sources: the ONNX operator
 * specifications. */
#include "ops/base/emit.h"
#include "ops/base/families.h"
#include "ops/base/rows.h"

static inv_id emit_concat(inv_graph *g, uint32_t n, const inv_id *v, int axis)
{
    for (uint32_t i = 0; i < n; i++)
        if (v[i] == INV_NONE) return INV_NONE;
    return n == 1 ? v[0] : inv_emit1(g, "Concat", n, v, INV_ATTRS(inv_attr_of_int("axis", axis)));
}

/* --- RotaryEmbedding --- */

/* The cache's rows of all positions, as [batch or 1, positions, 1, half]. */
static inv_status emit_angles(inv_graph *g, const inv_node *n, uint32_t i, int64_t batch, int64_t len, int64_t half,
                              inv_id *out)
{
    inv_id v = n->in[i];
    if (inv_has_in(n, 3)) v = inv_emit1(g, "Gather", INV_IN(v, n->in[3]), INV_ATTRS(inv_attr_of_int("axis", 0)));
    if (v == INV_NONE) return inv_failed(g);
    const inv_shape s = *inv_shape_of_value(g, v);
    if (s.rank != 3 || (s.dim[0] != batch && s.dim[0] != 1) || s.dim[1] != len || s.dim[2] != half)
        return inv_node_fail(g, n, INV_E_SHAPE, "input %u must give [%lld,%lld,%lld] numbers", i, (long long)batch,
                             (long long)len, (long long)half);
    const inv_shape wide = inv_shape_of(4, (int64_t[]){s.dim[0], len, 1, half});
    *out = inv_emit_view(g, v, &wide);
    return *out == INV_NONE ? inv_failed(g) : INV_OK;
}

/* x [batch, positions, heads, size]: its first 2 * half entries rotated. */
static inv_id emit_rotated(inv_graph *g, inv_id x, int64_t half, bool interleaved, inv_id cosine, inv_id sine)
{
    const inv_shape s = *inv_shape_of_value(g, x);
    inv_shape pairs = inv_shape_of(5, (int64_t[]){s.dim[0], s.dim[1], s.dim[2], half, 2}), flat = s, single = s;
    const inv_id turned = inv_emit_part(g, x, 3, 0, 2 * half);
    inv_id part[2], y[2], all[2];
    flat.dim[3] = 2 * half, single.dim[3] = half;
    const inv_id apart = interleaved ? inv_emit_view(g, turned, &pairs) : turned;
    for (int i = 0; i < 2; i++)
        part[i] = interleaved ? inv_emit_view(g, inv_emit_part(g, apart, 4, i, 1), &single)
                              : inv_emit_part(g, turned, 3, i * half, half);
    y[0] = inv_emit_pair(g, "Sub", inv_emit_pair(g, "Mul", part[0], cosine), inv_emit_pair(g, "Mul", part[1], sine));
    y[1] = inv_emit_pair(g, "Add", inv_emit_pair(g, "Mul", part[0], sine), inv_emit_pair(g, "Mul", part[1], cosine));
    pairs.dim[4] = 1;
    for (int i = 0; i < 2 && interleaved; i++) y[i] = inv_emit_view(g, y[i], &pairs);
    all[0] = inv_emit_view(g, emit_concat(g, 2, y, interleaved ? 4 : 3), &flat);
    if (s.dim[3] == 2 * half) return all[0];
    all[1] = inv_emit_part(g, x, 3, 2 * half, s.dim[3] - 2 * half);
    return emit_concat(g, 2, all, 3);
}

static inv_status rotary_lower(inv_graph *g, const inv_node *n, inv_id *out)
{
    INV_TRY(inv_need_real(g, n, 0));
    const inv_shape given = *inv_in_shape(g, n, 0);
    const int64_t heads = given.rank == 4 ? given.dim[1] : inv_attr_int(n, "num_heads", 0);
    const bool interleaved = inv_attr_int(n, "interleaved", 0) != 0;
    const int64_t turn[] = {0, 2, 1, 3};
    if ((given.rank != 3 && given.rank != 4) || heads <= 0 || (given.rank == 3 && given.dim[2] % heads != 0))
        return inv_node_fail(g, n, INV_E_SHAPE, "X needs four axes, or three and num_heads that divide the last");
    const int64_t size = given.rank == 4 ? given.dim[3] : given.dim[2] / heads;
    const int64_t batch = given.dim[0], len = given.rank == 4 ? given.dim[2] : given.dim[1];
    const int64_t some = inv_attr_int(n, "rotary_embedding_dim", 0), turned = some ? some : size;
    if (turned <= 0 || turned > size || turned % 2 != 0)
        return inv_node_fail(g, n, INV_E_SHAPE, "%lld of %lld entries cannot be rotated in pairs", (long long)turned,
                             (long long)size);
    const inv_shape apart = inv_shape_of(4, (int64_t[]){batch, len, heads, size});
    inv_id cosine, sine;
    INV_TRY(emit_angles(g, n, 1, batch, len, turned / 2, &cosine));
    INV_TRY(emit_angles(g, n, 2, batch, len, turned / 2, &sine));
    inv_id x = given.rank == 4 ? inv_emit_transpose(g, n->in[0], 4, turn) : inv_emit_view(g, n->in[0], &apart);
    if (x == INV_NONE) return inv_failed(g);
    x = emit_rotated(g, x, turned / 2, interleaved, cosine, sine);
    if (x == INV_NONE) return inv_failed(g);
    out[0] = given.rank == 4 ? inv_emit_transpose(g, x, 4, turn) : inv_emit_view(g, x, &given);
    return inv_done(g);
}

/* --- SwiGLU --- */
static inv_status swiglu_lower(inv_graph *g, const inv_node *n, inv_id *out)
{
    const inv_id gate =
        inv_emit1(g, "Swish", INV_IN(n->in[0]), INV_ATTRS(inv_attr_of_float("alpha", inv_attr_float(n, "alpha", 1))));
    out[0] = inv_emit_pair(g, "Mul", gate, n->in[1]);
    return inv_done(g);
}

/* --- CausalConvWithState --- */
static inv_status causal_conv_lower(inv_graph *g, const inv_node *n, inv_id *out)
{
    INV_TRY(inv_need_real(g, n, 0));
    const inv_shape x = *inv_in_shape(g, n, 0), w = *inv_in_shape(g, n, 1);
    const bool wants[2] = {inv_has_out(n, 0), inv_has_out(n, 1)};
    const char *f = inv_attr_string(n, "activation", "none");
    const bool swish = strcmp(f, "silu") == 0 || strcmp(f, "swish") == 0;
    if (x.rank != 3 || w.rank != 3 || w.dim[0] != x.dim[1] || w.dim[1] != 1 || w.dim[2] < 1)
        return inv_node_fail(g, n, INV_E_SHAPE,
                             "input [batch, channels, length] and weight [channels, 1, k] are "
                             "wanted");
    if (!swish && strcmp(f, "none") != 0)
        return inv_node_fail(g, n, INV_E_UNSUPPORTED_OP, "activation \"%s\" is none of silu, swish, none", f);
    const int64_t past = w.dim[2] - 1, one = 1, none[2] = {0, 0};
    const inv_shape state = inv_shape_of(3, (int64_t[]){x.dim[0], x.dim[1], past});
    if (inv_has_in(n, 3) && !inv_shape_equal(inv_in_shape(g, n, 3), &state))
        return inv_node_fail(g, n, INV_E_SHAPE, "past_state must be [batch, channels, k - 1]");
    const inv_id before = inv_has_in(n, 3) ? n->in[3] : inv_emit_zeros(g, inv_in_dtype(g, n, 0), &state);
    const inv_id all = past == 0 ? n->in[0] : emit_concat(g, 2, (inv_id[]){before, n->in[0]}, 2);
    if (all == INV_NONE) return inv_failed(g);
    if (wants[1]) out[1] = past == 0 ? before : inv_emit_part(g, all, 2, x.dim[2], past);
    if (!wants[0]) return inv_done(g);
    const inv_id in[3] = {all, n->in[1], inv_has_in(n, 2) ? n->in[2] : INV_NONE};
    inv_id y = inv_emit1(g, "ConvN", inv_has_in(n, 2) ? 3 : 2, in,
                         INV_ATTRS(inv_attr_of_ints("strides", 1, &one), inv_attr_of_ints("pads", 2, none),
                                   inv_attr_of_ints("dilations", 1, &one), inv_attr_of_int("group", x.dim[1])));
    out[0] = swish ? inv_unary(g, "Swish", y) : y;
    return inv_done(g);
}

/* --- LinearAttention --- */
typedef struct linear_attention {
    int64_t batch, steps, q, kv, d, dv;
    bool gated, delta;
    inv_id query, key, value, decay, beta; /* [batch, kv, 1, steps, size]; the query [batch, kv, q / kv, steps, d] */
} linear_attention;

/* v [batch, steps, heads * size] as [batch, kv, heads / kv, steps, size]. */
static inv_id emit_apart(inv_graph *g, const linear_attention *a, inv_id v, int64_t heads)
{
    const int64_t groups = heads / a->kv, size = inv_shape_of_value(g, v)->dim[2] / heads;
    const inv_shape s = inv_shape_of(5, (int64_t[]){a->batch, a->steps, a->kv, groups, size});
    return inv_emit_transpose(g, inv_emit_view(g, v, &s), 5, (int64_t[]){0, 2, 3, 1, 4});
}

static inv_status linear_operands(inv_graph *g, const inv_node *n, linear_attention *a)
{
    const char *rule = inv_attr_string(n, "update_rule", "gated_delta");
    for (uint32_t i = 0; i < 3; i++) {
        INV_TRY(inv_need_real(g, n, i));
        if (inv_in_shape(g, n, i)->rank != 3)
            return inv_node_fail(g, n, INV_E_SHAPE, "query, key and value need three axes");
    }
    const inv_shape q = *inv_in_shape(g, n, 0), k = *inv_in_shape(g, n, 1), v = *inv_in_shape(g, n, 2);
    a->gated = strncmp(rule, "gated", 5) == 0;
    a->delta = strcmp(rule, "delta") == 0 || strcmp(rule, "gated_delta") == 0;
    if (!a->gated && !a->delta && strcmp(rule, "linear") != 0)
        return inv_node_fail(g, n, INV_E_UNSUPPORTED_OP, "update_rule \"%s\" is not known", rule);
    a->batch = q.dim[0], a->steps = q.dim[1];
    a->q = inv_attr_int(n, "q_num_heads", 0), a->kv = inv_attr_int(n, "kv_num_heads", 0);
    if (a->kv <= 0 || a->q <= 0 || a->q % a->kv || q.dim[2] % a->q || k.dim[2] % a->kv || v.dim[2] % a->kv ||
        q.dim[2] / a->q != k.dim[2] / a->kv)
        return inv_node_fail(g, n, INV_E_SHAPE, "q_num_heads and kv_num_heads do not divide the last axes into heads");
    a->d = q.dim[2] / a->q, a->dv = v.dim[2] / a->kv;
    a->query = emit_apart(g, a, n->in[0], a->q);
    a->key = emit_apart(g, a, n->in[1], a->kv);
    a->value = emit_apart(g, a, n->in[2], a->kv);
    if ((a->gated && !inv_has_in(n, 4)) || (a->delta && !inv_has_in(n, 5)))
        return inv_node_fail(g, n, INV_E_GRAPH, "update_rule \"%s\" needs decay and beta as its name says", rule);
    if (a->gated) a->decay = inv_unary(g, "Exp", emit_apart(g, a, n->in[4], a->kv));
    if (a->delta) {
        const inv_shape b = *inv_in_shape(g, n, 5);
        const inv_shape one = inv_shape_of(5, (int64_t[]){a->batch, 1, 1, a->steps, 1});
        a->beta = b.dim[2] == 1 ? inv_emit_view(g, n->in[5], &one) : emit_apart(g, a, n->in[5], a->kv);
    }
    return inv_done(g);
}

/* The state [batch, kv, 1, d, dv] after step t: its decay per row, and what k writes into it. */
static inv_id linear_step(inv_graph *g, const linear_attention *a, inv_id state, int64_t t)
{
    const inv_id k = inv_emit_part(g, a->key, 3, t, 1);
    inv_id v = inv_emit_part(g, a->value, 3, t, 1), y = state;
    if (a->gated) {
        inv_id decay = inv_emit_part(g, a->decay, 3, t, 1);
        if (decay == INV_NONE) return INV_NONE;
        const inv_shape column =
            inv_shape_of(5, (int64_t[]){a->batch, a->kv, 1, inv_shape_of_value(g, decay)->dim[4], 1});
        y = inv_emit_pair(g, "Mul", y, inv_emit_view(g, decay, &column));
    }
    if (a->delta)
        v = inv_emit_pair(g, "Mul", inv_emit_pair(g, "Sub", v, inv_emit_product(g, false, k, false, y)),
                          inv_emit_part(g, a->beta, 3, t, 1));
    return inv_emit_pair(g, "Add", y, inv_emit_product(g, true, k, false, v));
}

static inv_status linear_attention_lower(inv_graph *g, const inv_node *n, inv_id *out)
{
    linear_attention a = {.decay = INV_NONE, .beta = INV_NONE};
    const bool wants[2] = {inv_has_out(n, 0), inv_has_out(n, 1)};
    INV_TRY(linear_operands(g, n, &a));
    const inv_dtype t = inv_in_dtype(g, n, 0);
    const inv_shape small = inv_shape_of(4, (int64_t[]){a.batch, a.kv, a.d, a.dv});
    const inv_shape wide = inv_shape_of(5, (int64_t[]){a.batch, a.kv, 1, a.d, a.dv});
    const inv_shape y = inv_shape_of(3, (int64_t[]){a.batch, a.steps, a.q * a.dv});
    if (inv_has_in(n, 3) && !inv_shape_equal(inv_in_shape(g, n, 3), &small))
        return inv_node_fail(g, n, INV_E_SHAPE, "past_state must be [batch, kv heads, key size, value size]");
    inv_id state = inv_has_in(n, 3) ? inv_emit_view(g, n->in[3], &wide) : inv_emit_zeros(g, t, &wide);
    inv_id *row = INV_ARENA_NEW(&g->arena, inv_id, (size_t)a.steps + 1);
    double scale = inv_attr_float(n, "scale", 0);
    if (scale == 0) scale = 1 / sqrt((double)a.d);
    if (!row) return INV_E_NOMEM;
    const inv_id q = inv_emit_pair(g, "Mul", a.query, inv_graph_const_real(g, t, scale));
    for (int64_t s = 0; s < a.steps; s++) {
        state = linear_step(g, &a, state, s);
        row[s] = inv_emit_product(g, false, inv_emit_part(g, q, 3, s, 1), false, state);
        if (g->failed != INV_OK) return g->failed;
    }
    if (wants[1]) out[1] = inv_emit_view(g, state, &small);
    if (!wants[0]) return inv_done(g);
    if (a.steps == 0) {
        out[0] = inv_emit_zeros(g, t, &y);
        return inv_done(g);
    }
    const inv_id all = emit_concat(g, (uint32_t)a.steps, row, 3);
    out[0] = inv_emit_view(g, inv_emit_transpose(g, all, 5, (int64_t[]){0, 3, 1, 2, 4}), &y);
    return inv_done(g);
}

/* --- FlexAttention --- */
static inv_status flex_lower(inv_graph *g, const inv_node *n, inv_id *out)
{
    const inv_shape q = *inv_in_shape(g, n, 0);
    if (q.rank != 4) return inv_node_fail(g, n, INV_E_SHAPE, "Q needs four axes");
    if (inv_attr_find(n, "score_mod") || inv_attr_find(n, "prob_mod"))
        return inv_node_fail(g, n, INV_E_UNSUPPORTED_OP,
                             "score_mod and prob_mod are not supported; write the "
                             "attention out as MatMul, Softmax and MatMul");
    const double scale = inv_attr_float(n, "scale", 1 / sqrt((double)q.dim[3]));
    const inv_id node = inv_emit(g, "AttentionCore", 2, INV_IN(n->in[0], n->in[1], n->in[2]),
                                 INV_ATTRS(inv_attr_of_float("scale", scale)));
    out[0] = node == INV_NONE ? INV_NONE : inv_nod(g, node)->out[0];
    return inv_done(g);
}

/* --- rows --- */
INV_LOWERED_BY(
    rotary_lower, 0, 0, rotary_23, "RotaryEmbedding", 23, "X cos_cache sin_cache position_ids?", "Y",
    "pairs of entries rotated by angles of their position; to Mul, Add, Sub, Concat. ONNX RotaryEmbedding-23",
    "y = RotaryEmbedding(float[2,3,2,4] x, float[7,2] c, float[7,2] s, int64[2,2] {0, 6, 3, 3})",
    "y = RotaryEmbedding<num_heads = 2, interleaved = 1, rotary_embedding_dim = 4>(float[2,3,12] x, "
    "float[2,3,2] c, float[2,3,2] s)")

INV_LOWERED_BY(swiglu_lower, 0, 0, swiglu_28, "SwiGLU", 28, "A B", "Y",
               "a sigmoid(alpha a) b; to Swish and Mul. ONNX SwiGLU-28", "y = SwiGLU(float[2,3] a, float[2,3] b)",
               "y = SwiGLU<alpha = 0.7>(float[4] a, float[4] b)")

INV_LOWERED_BY(
    causal_conv_lower, 0, 0, causal_conv_27, "CausalConvWithState", 27, "input weight bias? past_state?",
    "output present_state?",
    "depthwise convolution with its past inputs; to Concat, ConvN, Swish. ONNX CausalConvWithState-27",
    "y, p = CausalConvWithState<activation = \"silu\">(float[2,3,4] x, float[3,1,3] w, float[3] b, float[2,3,2] s)",
    "y, p = CausalConvWithState(float[1,2,1] x, float[2,1,4] w)")

INV_LOWERED_BY(linear_attention_lower, 0, 0, linear_attention_27, "LinearAttention", 27,
               "query key value past_state? decay? beta?", "output present_state?",
               "attention with a state that every step writes into, step by step; to MatMulT, Mul, Add. ONNX "
               "LinearAttention-27",
               "y, p = LinearAttention<q_num_heads = 4, kv_num_heads = 2>(float[2,3,8] q, float[2,3,4] k, "
               "float[2,3,6] v, float[2,2,2,3] s, float[2,3,4] g, float[2,3,2] b)",
               "y, p = LinearAttention<q_num_heads = 2, kv_num_heads = 2, update_rule = \"linear\", scale = 0.3>("
               "float[1,2,4] q, float[1,2,4] k, float[1,2,4] v)")

/* clang-format off */
static const inv_op_def flex_1 = {
    .size = sizeof flex_1, .domain = "ai.onnx.preview", .name = "FlexAttention", .since = 1, .in = "Q K V", .out = "Y",
    .lower = flex_lower,
    .cases = (const char *const[]){
        "y = ai.onnx.preview.FlexAttention(float[2,4,3,5] q, float[2,2,6,5] k, float[2,2,6,3] v)",
        "y = ai.onnx.preview.FlexAttention<scale = 0.3>(float[1,2,3,4] q, float[1,2,3,4] k, float[1,2,3,4] v)", NULL},
    .doc = "attention, without functions of its user; to AttentionCore. ONNX preview FlexAttention-1"};

const inv_op_def *const inv_ops_sequence[] = {&rotary_23_row, &swiglu_28_row, &causal_conv_27_row,
                                              &linear_attention_27_row, &flex_1, NULL};
/* clang-format on */
