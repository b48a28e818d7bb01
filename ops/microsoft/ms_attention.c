/* SPDX-License-Identifier: Apache-2.0
 * onnxruntime's attentions, to ONNX's Attention, which becomes attention without a matrix of scores. All have their
 * heads side by side in the last axis; queries, keys and values come in one tensor or in three, and a mask as numbers
 * that say who is seen, as lengths, or as what is added to the scores. Sources: the operator schemas of
 * onnxruntime 1.31 (domain com.microsoft), and what its kernels for the CPU compute where those leave it open. */
#include "ops/base/emit.h"
#include "ops/base/families.h"
#include "ops/base/rows.h"
#include "ops/microsoft/ms_attend.h"
#include "ops/microsoft/ms_qlinear.h"

/* Part i of v [batch, length, heads, parts, size], as [batch, length, heads * size]. */
static inv_id unpacked(inv_graph *g, inv_id v, int64_t i)
{
    const inv_shape s = *inv_shape_of_value(g, v);
    const inv_shape flat = inv_shape_of(3, (int64_t[]){s.dim[0], s.dim[1], s.dim[2] * s.dim[4]});
    return inv_emit_view(g, inv_emit_part(g, v, 3, i, 1), &flat);
}

/* --- Attention --- */

#define SHARED "a cache that is written in place is for generating. Export the model without it to train"

/* Input 4, [2, batch, heads, length, size], as keys and values. */
static inv_status take_joined_past(inv_attending *a)
{
    if (!inv_has_in(a->n, 4)) return INV_OK;
    const inv_shape s = *inv_in_shape(a->g, a->n, 4);
    if (s.rank != 5 || s.dim[0] != 2) return inv_attend_wrong_shape(a, 4, "[2, batch, heads, past length, head size]");
    const inv_shape one = inv_shape_of(4, s.dim + 1);
    for (int i = 0; i < 2; i++) {
        const inv_id past = inv_emit_view(a->g, inv_emit_part(a->g, a->n->in[4], 0, i, 1), &one);
        if (past == INV_NONE) return inv_failed(a->g);
        INV_TRY(inv_attend_past(a, 4, i, i == 0 ? a->k : a->v, past));
    }
    return INV_OK;
}

/* Keys and values one behind the other: [2, batch, heads, length, size]. */
static inv_id joined(inv_graph *g, inv_id k, inv_id v)
{
    if (k == INV_NONE || v == INV_NONE) return INV_NONE;
    const inv_shape s = *inv_shape_of_value(g, k);
    const inv_shape one = inv_shape_of(5, (int64_t[]){1, s.dim[0], s.dim[1], s.dim[2], s.dim[3]});
    const inv_id a = inv_emit_view(g, k, &one), b = inv_emit_view(g, v, &one);
    if (a == INV_NONE || b == INV_NONE) return INV_NONE;
    return inv_emit1(g, "Concat", INV_IN(a, b), INV_ATTRS(inv_attr_of_int("axis", 0)));
}

/* Where queries, keys and values end in the last axis of their product, which is `wide`. */
static inv_status joined_sizes(const inv_attending *a, int64_t wide, int64_t size[3])
{
    size_t count;
    const int64_t *given = inv_attr_ints(a->n, "qkv_hidden_sizes", &count);
    bool within = true;
    for (int i = 0; i < 3; i++) {
        size[i] = count == 3 ? given[i] : wide / 3;
        within = within && size[i] >= 0 && size[i] <= wide;
    }
    if ((count != 0 && count != 3) || !within || size[0] + size[1] + size[2] != wide || size[0] != size[1])
        return inv_node_fail(a->g, a->n, INV_E_SHAPE,
                             "weights have %lld columns, which do not fit queries, keys and values side by side "
                             "(qkv_hidden_sizes)",
                             (long long)wide);
    return INV_OK;
}

static inv_status ms_attention_lower(inv_graph *g, const inv_node *n, inv_id *out)
{
    inv_attending a = {.g = g, .n = n, .causal = inv_attr_int(n, "unidirectional", 0) != 0};
    int64_t size[3];
    const bool wants_present = inv_has_out(n, 1);
    INV_TRY(inv_need_reals(g, n, 2));
    INV_TRY(inv_attend_refuse_attribute(&a, "do_rotary", 0, "write RotaryEmbedding as a node of its own"));
    INV_TRY(inv_attend_refuse_attribute(&a, "past_present_share_buffer", 0, SHARED));
    INV_TRY(inv_attend_refuse_input(&a, 6, "past_sequence_length", SHARED));
    const inv_id product = inv_onnx(g, n, "MatMul", INV_IN(n->in[0], n->in[1]), INV_NOATTR);
    const inv_id all = inv_has_in(n, 2) ? inv_emit_pair(g, "Add", product, n->in[2]) : product;
    if (all == INV_NONE) return inv_failed(g);
    const inv_shape s = *inv_shape_of_value(g, all);
    if (s.rank != 3) return inv_attend_wrong_shape(&a, 0, "[batch, length, hidden size]");
    a.heads = a.kv = inv_attr_int(n, "num_heads", 0);
    INV_TRY(joined_sizes(&a, s.dim[2], size));
    inv_id *part[] = {&a.q, &a.k, &a.v};
    int64_t at = 0;
    for (int i = 0; i < 3; at += size[i++])
        INV_TRY(inv_attend_apart(&a, inv_emit_part(g, all, 2, at, size[i]), a.heads, part[i]));
    INV_TRY(inv_attend_shapes(&a));
    INV_TRY(take_joined_past(&a));
    INV_TRY(inv_attend_mask(&a, 3));
    INV_TRY(inv_attend_bias(&a, 5));
    inv_id k, v;
    INV_TRY(inv_attend(&a, out, wants_present ? &k : NULL, wants_present ? &v : NULL));
    if (wants_present) out[1] = joined(g, k, v);
    return inv_done(g);
}

/* QAttention: the same of a quantized input and quantized weights. */
static inv_status qattention_lower(inv_graph *g, const inv_node *n, inv_id *out)
{
    enum { X, W, B, X_SCALE, W_SCALE, MASK, X_ZERO, W_ZERO, PAST };
    inv_id zero[2], past = inv_has_in(n, PAST) ? n->in[PAST] : INV_NONE;
    for (uint32_t i = 0; i < 2; i++) zero[i] = inv_has_in(n, X_ZERO + i) ? n->in[X_ZERO + i] : INV_NONE;
    for (uint32_t i = X; i <= W; i++) INV_TRY(inv_need_bytes(g, n, i));
    if (inv_shape_nelem(inv_in_shape(g, n, X_SCALE)) != 1)
        return inv_attend_wrong_shape(&(inv_attending){.g = g, .n = n}, X_SCALE, "one number");
    const inv_id x = inv_onnx(g, n, "DequantizeLinear", INV_IN(n->in[X], n->in[X_SCALE], zero[0]), INV_NOATTR);
    const inv_id w = inv_onnx(g, n, "DequantizeLinear", INV_IN(n->in[W], n->in[W_SCALE], zero[1]),
                              INV_ATTRS(inv_attr_of_int("axis", 1)));
    if (x == INV_NONE || w == INV_NONE) return inv_failed(g);
    inv_id in[] = {x, w, n->in[B], inv_has_in(n, MASK) ? n->in[MASK] : INV_NONE, past};
    inv_node m = *n;
    m.in = in, m.nin = sizeof in / sizeof *in;
    return ms_attention_lower(g, &m, out);
}

/* --- MultiHeadAttention --- */
enum { QUERY, KEY, VALUE, BIAS, KEY_MASK, SCORE_BIAS, PAST_KEY, PAST_VALUE, PAST_LENGTH, INDIRECTION };

/* Input i, [batch, length, heads * size], with its part of the bias. */
static inv_id biased(const inv_attending *a, inv_id v, int64_t *from)
{
    if (v == INV_NONE || !inv_has_in(a->n, BIAS)) return v;
    const inv_shape *s = inv_shape_of_value(a->g, v);
    const int64_t size = s->dim[s->rank - 1], start = *from;
    *from += size;
    return inv_emit_pair(a->g, "Add", v, inv_emit_part(a->g, a->n->in[BIAS], 0, start, size));
}

/* Queries, keys and values from one tensor, two or three; *heads: keys and values have their heads apart already. */
static inv_status multi_head_operands(const inv_attending *a, inv_id part[3], bool *heads)
{
    inv_graph *g = a->g;
    const inv_node *n = a->n;
    const inv_shape q = *inv_in_shape(g, n, QUERY);
    const int packed = q.rank == 5 ? 3 : inv_has_in(n, KEY) && inv_in_shape(g, n, KEY)->rank == 5 ? 2 : 0;
    *heads = false;
    part[0] = n->in[QUERY];
    if (packed) {
        const inv_id from = n->in[packed == 3 ? QUERY : KEY];
        if (inv_shape_of_value(g, from)->dim[3] != packed || inv_has_in(n, VALUE))
            return inv_attend_wrong_shape(a, packed == 3 ? QUERY : KEY,
                                          "[batch, length, heads, 3 or 2, size], without `value`");
        for (int i = 0; i < packed; i++) part[3 - packed + i] = unpacked(g, from, i);
        return inv_done(g);
    }
    if (!inv_has_in(n, KEY) || !inv_has_in(n, VALUE))
        return inv_node_fail(g, n, INV_E_GRAPH,
                             "key and value are missing, and query is not [batch, length, heads, 3, "
                             "size]");
    *heads = inv_in_shape(g, n, KEY)->rank == 4;
    part[1] = n->in[KEY], part[2] = n->in[VALUE];
    if (q.rank != 3 || inv_in_shape(g, n, VALUE)->rank != inv_in_shape(g, n, KEY)->rank)
        return inv_attend_wrong_shape(a, QUERY, "[batch, length, hidden size], and key and value alike");
    return INV_OK;
}

static inv_status multi_head_lower(inv_graph *g, const inv_node *n, inv_id *out)
{
    inv_attending a = {.g = g, .n = n, .causal = inv_attr_int(n, "unidirectional", 0) != 0};
    inv_id part[3], present[2];
    inv_id *to[] = {&a.q, &a.k, &a.v};
    bool heads;
    int64_t from = 0;
    const bool wants_k = inv_has_out(n, 1), wants_v = inv_has_out(n, 2);
    INV_TRY(inv_need_reals(g, n, 4));
    INV_TRY(inv_attend_refuse_input(&a, PAST_LENGTH, "past_sequence_length", SHARED));
    INV_TRY(inv_attend_refuse_input(&a, INDIRECTION, "cache_indirection", SHARED));
    INV_TRY(inv_attend_refuse_output(&a, 3, "qk"));
    a.heads = a.kv = inv_attr_int(n, "num_heads", 0);
    INV_TRY(multi_head_operands(&a, part, &heads));
    for (int i = 0; i < 3; i++) {
        *to[i] = part[i];
        if (i == 0 || !heads) INV_TRY(inv_attend_apart(&a, biased(&a, part[i], &from), a.heads, to[i]));
    }
    INV_TRY(inv_attend_shapes(&a));
    if (inv_has_in(n, PAST_KEY) != inv_has_in(n, PAST_VALUE))
        return inv_node_fail(g, n, INV_E_GRAPH, "past_key and past_value are given together or not at all");
    for (uint32_t i = 0; i < 2 && inv_has_in(n, PAST_KEY); i++)
        INV_TRY(inv_attend_past(&a, PAST_KEY + i, (int)i, i == 0 ? a.k : a.v, n->in[PAST_KEY + i]));
    INV_TRY(inv_attend_mask(&a, KEY_MASK));
    INV_TRY(inv_attend_bias(&a, SCORE_BIAS));
    INV_TRY(inv_attend(&a, out, wants_k || wants_v ? &present[0] : NULL, wants_k || wants_v ? &present[1] : NULL));
    if (wants_k) out[1] = present[0];
    if (wants_v) out[2] = present[1];
    return inv_done(g);
}

/* --- rows --- */
INV_MICROSOFT(ms_attention_lower, INV_OP_PRODUCT, ms_attention, "Attention",
              "input weights bias? mask_index? past? attention_bias? past_sequence_length?", "output present?",
              "attention with the product that gives queries, keys and values; to AttentionCore",
              "y, p = com.microsoft.Attention<num_heads = 2, unidirectional = 1>(float[2,3,4] x, float[4,12] w, "
              "float[12] b)",
              "y = com.microsoft.Attention<num_heads = 2, mask_filter_value = -3.0>(float[2,3,4] x, float[4,12] w, "
              "float[12] b, int32[2,3]{1,1,0,1,0,1}, , float[1,2,3,3] s)",
              "y, p = com.microsoft.Attention<num_heads = 2, scale = 0.3>(float[2,3,4] x, float[4,12] w, , "
              "int32[4]{5,4,0,1}, float[2,2,2,2,2] past)",
              "y = com.microsoft.Attention<num_heads = 2, qkv_hidden_sizes = [4,4,6]>(float[2,3,4] x, float[4,14] w, "
              "float[14] b, int32[2]{3,1})")
INV_MICROSOFT(
    multi_head_lower, 0, multi_head_attention, "MultiHeadAttention",
    "query key? value? bias? key_padding_mask? attention_bias? past_key? past_value? past_sequence_length? "
    "cache_indirection?",
    "output present_key? present_value? qk?", "attention of heads side by side; to AttentionCore",
    "y, k, v = com.microsoft.MultiHeadAttention<num_heads = 2>(float[2,3,4] q, float[2,5,4] k1, float[2,5,6] "
    "v1, float[14] b, int32[2,5]{1,1,1,0,0,1,1,1,1,1})",
    "y = com.microsoft.MultiHeadAttention<num_heads = 2, unidirectional = 1>(float[2,3,2,3,2] qkv)",
    "y = com.microsoft.MultiHeadAttention<num_heads = 2, scale = 0.4>(float[2,3,4] q, float[2,5,2,2,2] kv, , , "
    ", float[2,1,3,5] s)",
    "y, k, v = com.microsoft.MultiHeadAttention<num_heads = 2>(float[2,3,4] q, float[2,3,4] k1, float[2,3,4] "
    "v1, , , , float[2,2,2,2] pk, float[2,2,2,2] pv)",
    "y = com.microsoft.MultiHeadAttention<num_heads = 2>(float[2,3,4] q, float[2,2,5,2] k1, float[2,2,5,2] v1)")

INV_MICROSOFT(
    qattention_lower, INV_OP_STRAIGHT | INV_OP_PRODUCT, qattention, "QAttention",
    "input weight bias input_scale weight_scale mask_index? input_zero_point? weight_zero_point? past?",
    "output present?", "Attention of a quantized input and quantized weights",
    "x = QuantizeLinear(float[2,3,4] f, float scale_x, uint8 zx)\n"
    "w = QuantizeLinear(float[4,12] e, float scale_w, int8 zw)\n"
    "y = com.microsoft.QAttention<num_heads = 2>(x, w, float[12] b, scale_x, scale_w, "
    "int32[2,3]{1,1,0,1,0,1}, zx, zw)",
    "x = QuantizeLinear(float[2,3,4] f, float scale_x, uint8 zx)\n"
    "w = QuantizeLinear<axis = 1>(float[4,12] e, float[12] scale_w, int8[12] zw)\n"
    "y, p = com.microsoft.QAttention<num_heads = 2, unidirectional = 1>(x, w, float[12] b, scale_x, scale_w, , "
    "zx, zw, float[2,2,2,2,2] past)")

const inv_op_def *const inv_ops_ms_attention[] = {&ms_attention_row, &qattention_row, &multi_head_attention_row, NULL};
