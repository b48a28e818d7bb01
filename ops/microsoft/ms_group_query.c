/* SPDX-License-Identifier: Apache-2.0
 * onnxruntime's RotaryEmbedding, to that of ONNX, and GroupQueryAttention, to ONNX's Attention. The latter is that of
 * decoders: training gives it whole sequences, so nothing came before. Then every sequence begins at position 0 and is
 * causal, and how long each is (seqlens_k) makes no difference to the rows that are in it: they see no later ones.
 * Sources: the operator schemas of onnxruntime 1.31 (domain com.microsoft), and what its kernels for the CPU compute
 * where those leave it open. */
#include "ops/base/emit.h"
#include "ops/base/families.h"
#include "ops/base/rows.h"
#include "ops/microsoft/ms_attend.h"

/* --- rotations --- */

/* Where rows of the caches are taken from. */
typedef struct rotation {
    uint32_t cosine, sine, positions; /* inputs */
    bool each;                        /* a position for every row; else that of the first one of all, or 0 */
    bool interleaved;
    int64_t heads, len;
} rotation;

/* int64 [1, len]: 0, 1, 2, ... after the first element of v. */
static inv_id positions_from(inv_graph *g, inv_id v, int64_t len)
{
    const int64_t count = inv_shape_nelem(inv_shape_of_value(g, v));
    const inv_shape flat = inv_shape_of(1, &count), one = inv_shape_of(2, (int64_t[]){1, 1});
    const inv_shape row = inv_shape_of(2, (int64_t[]){1, len});
    int64_t *ramp = INV_ARENA_NEW(&g->arena, int64_t, (size_t)len + 1);
    if (!ramp) return INV_NONE;
    for (int64_t i = 0; i < len; i++) ramp[i] = i;
    const inv_id first = inv_emit_view(g, inv_emit_part(g, inv_emit_view(g, v, &flat), 0, 0, 1), &one);
    return inv_emit_pair(g, "Add", inv_cast(g, first, INV_I64), inv_graph_const(g, INV_I64, &row, ramp));
}

/* Rows of the cache of input i: [batch or 1, len, columns]. */
static inv_status emit_angles(inv_graph *g, const inv_node *n, uint32_t i, const rotation *r, inv_id *out)
{
    const inv_shape s = *inv_in_shape(g, n, i);
    inv_id at = INV_NONE;
    if (s.rank != 2 || s.dim[0] < r->len)
        return inv_node_fail(g, n, INV_E_SHAPE, "input %u must be [positions, columns], of %lld positions at least", i,
                             (long long)r->len);
    if (r->positions && inv_has_in(n, r->positions)) {
        at = r->each ? n->in[r->positions] : positions_from(g, n->in[r->positions], r->len);
        if (at == INV_NONE) return inv_failed(g);
    }
    const inv_shape rows = inv_shape_of(3, (int64_t[]){1, r->len, s.dim[1]});
    *out = at == INV_NONE ? inv_emit_view(g, inv_emit_part(g, n->in[i], 0, 0, r->len), &rows)
                          : inv_emit1(g, "Gather", INV_IN(n->in[i], at), INV_ATTRS(inv_attr_of_int("axis", 0)));
    return inv_done(g);
}

/* x, [batch, len, heads * size] or [batch, heads, len, size], with the first entries of its heads rotated. */
static inv_status emit_rotated(inv_graph *g, const inv_node *n, inv_id x, const rotation *r, inv_id *out)
{
    inv_id cosine, sine;
    const int64_t turned = 2 * inv_in_shape(g, n, r->cosine)->dim[1];
    INV_TRY(emit_angles(g, n, r->cosine, r, &cosine));
    INV_TRY(emit_angles(g, n, r->sine, r, &sine));
    *out = inv_onnx(g, n, "RotaryEmbedding", INV_IN(x, cosine, sine),
                    INV_ATTRS(inv_attr_of_int("num_heads", r->heads), inv_attr_of_int("rotary_embedding_dim", turned),
                              inv_attr_of_int("interleaved", r->interleaved)));
    return inv_done(g);
}

static inv_status ms_rotary_lower(inv_graph *g, const inv_node *n, inv_id *out)
{
    const inv_attending a = {.g = g, .n = n};
    const inv_shape x = *inv_in_shape(g, n, 0), at = *inv_in_shape(g, n, 1), cache = *inv_in_shape(g, n, 2);
    INV_TRY(inv_need_real(g, n, 0));
    INV_TRY(inv_attend_refuse_attribute(&a, "is_packed_batching", 0, "give every sequence a row of its own"));
    if (inv_attr_float(n, "scale", 1) != 1)
        return inv_node_fail(g, n, INV_E_UNSUPPORTED_OP, "attribute scale is not 1; scale the caches instead");
    if ((x.rank != 3 && x.rank != 4) || cache.rank != 2 || cache.dim[1] < 1)
        return inv_node_fail(g, n, INV_E_SHAPE, "input needs three axes or four, cos_cache two");
    rotation r = {.cosine = 2, .sine = 3, .positions = 1, .each = at.rank == 2, .len = x.dim[x.rank - 2]};
    r.interleaved = inv_attr_int(n, "interleaved", 0) != 0;
    r.heads = x.rank == 4 ? x.dim[1] : inv_attr_int(n, "num_heads", 0);
    if (r.heads == 0) r.heads = x.dim[2] / (2 * cache.dim[1]);
    return emit_rotated(g, n, n->in[0], &r, &out[0]);
}

/* --- GroupQueryAttention --- */
enum {
    QUERY,
    KEY,
    VALUE,
    PAST_KEY,
    PAST_VALUE,
    LENGTHS,
    TOTAL,
    COSINE,
    SINE,
    POSITIONS,
    SCORE_BIAS,
    SINK,
    KEY_SCALE,
    VALUE_SCALE,
    QUERY_NORM,
    KEY_NORM
};

static inv_status refuse_forms(const inv_attending *a)
{
    static const char *const types[] = {"k_quant_type", "v_quant_type"};
    const char *const plain = "export the model with a cache in floating point";
    for (int i = 0; i < 2; i++) {
        const char *type = inv_attr_string(a->n, types[i], "NONE");
        if (strcmp(type, "NONE") != 0)
            return inv_node_fail(a->g, a->n, INV_E_UNSUPPORTED_OP, "attribute %s is \"%s\"; %s", types[i], type, plain);
    }
    INV_TRY(inv_attend_refuse_input(a, KEY_SCALE, "k_scale", plain));
    INV_TRY(inv_attend_refuse_input(a, VALUE_SCALE, "v_scale", plain));
    INV_TRY(inv_attend_refuse_attribute(a, "sliding_window_cache", 0, "give a past of length 0 without it"));
    INV_TRY(inv_attend_refuse_output(a, 3, "output_qk"));
    for (uint32_t i = PAST_KEY; i <= PAST_VALUE; i++) {
        if (!inv_has_in(a->n, i)) continue;
        const inv_shape *s = inv_in_shape(a->g, a->n, i);
        if (s->rank != 4) return inv_attend_wrong_shape(a, i, "[batch, heads, past length, head size]");
        if (s->dim[2] != 0) {
            inv_note_misfit(a->g, 1, s->dim[2], 0);
            return inv_node_fail(a->g, a->n, INV_E_UNSUPPORTED_OP,
                                 "%lld positions came before (input %u); training takes whole sequences: give arrays "
                                 "[batch, heads, 0, head size]",
                                 (long long)s->dim[2], i);
        }
    }
    return INV_OK;
}

/* Queries, keys and values, [batch, length, heads * size], from one tensor or from three; size: that of a head. */
static inv_status group_operands(const inv_attending *a, inv_id part[3], int64_t *size)
{
    inv_graph *g = a->g;
    const inv_shape q = *inv_in_shape(g, a->n, QUERY);
    const bool packed = !inv_has_in(a->n, KEY);
    const bool sane = a->heads >= 1 && a->kv >= 1 && a->heads <= INT32_MAX && a->kv <= INT32_MAX;
    const int64_t heads = sane ? a->heads + (packed ? 2 * a->kv : 0) : 1;
    if (q.rank != 3 || !sane || q.dim[2] % heads != 0 || packed == inv_has_in(a->n, VALUE))
        return inv_node_fail(
            g, a->n, INV_E_SHAPE,
            "query must be [batch, length, num_heads * size], and key and value likewise, or query must also hold "
            "them in its last axis; num_heads is %lld, kv_num_heads %lld",
            (long long)a->heads, (long long)a->kv);
    *size = q.dim[2] / heads;
    if (!packed) {
        for (uint32_t i = 0; i < 3; i++) part[i] = a->n->in[i];
        if (inv_in_shape(g, a->n, KEY)->rank != 3 || inv_in_shape(g, a->n, KEY)->dim[1] != q.dim[1])
            return inv_attend_wrong_shape(a, KEY, "as long as query, [batch, length, kv_num_heads * size]");
        return INV_OK;
    }
    const int64_t wide = a->heads * *size, narrow = a->kv * *size;
    part[0] = inv_emit_part(g, a->n->in[QUERY], 2, 0, wide);
    part[1] = inv_emit_part(g, a->n->in[QUERY], 2, wide, narrow);
    part[2] = inv_emit_part(g, a->n->in[QUERY], 2, wide + narrow, narrow);
    return inv_done(g);
}

/* v, [batch, length, heads * size]: each head normalised by the root of its mean square, then rotated. */
static inv_status prepare(const inv_attending *a, uint32_t weight, int64_t heads, int64_t size, inv_id *v)
{
    inv_graph *g = a->g;
    const inv_node *n = a->n;
    if (*v == INV_NONE) return inv_failed(g);
    const inv_shape s = *inv_shape_of_value(g, *v),
                    wide = inv_shape_of(4, (int64_t[]){s.dim[0], s.dim[1], heads, size});
    if (inv_has_in(n, weight)) {
        const inv_id y = inv_onnx(g, n, "RMSNormalization", INV_IN(inv_emit_view(g, *v, &wide), n->in[weight]),
                                  INV_ATTRS(inv_attr_of_float("epsilon", inv_attr_float(n, "qk_norm_epsilon", 1e-6F))));
        *v = inv_emit_view(g, y, &s);
    }
    if (inv_attr_int(n, "do_rotary", 0) == 0) return inv_done(g);
    if (!inv_has_in(n, COSINE) || !inv_has_in(n, SINE))
        return inv_node_fail(g, n, INV_E_GRAPH, "do_rotary is 1, but cos_cache or sin_cache is missing");
    const rotation r = {.cosine = COSINE,
                        .sine = SINE,
                        .positions = POSITIONS,
                        .heads = heads,
                        .len = s.dim[1],
                        .interleaved = inv_attr_int(n, "rotary_interleaved", 0) != 0};
    return emit_rotated(g, n, *v, &r, v);
}

/* Without causality, keys behind a sequence's end are not seen: seqlens_k is its length less one. */
static void hide_ends(inv_attending *a)
{
    inv_graph *g = a->g;
    const inv_shape column = inv_shape_of(4, (int64_t[]){a->batch, 1, 1, 1});
    const inv_id last = inv_emit_view(g, inv_cast(g, a->n->in[LENGTHS], INV_I32), &column);
    const inv_id seen = inv_emit_pair(g, "LessOrEqual", inv_attend_columns(a), last);
    inv_attend_add_to_mask(a, inv_choose(g, seen, inv_number(g, a->q, 0), inv_number(g, a->q, -INFINITY)));
}

/* Which keys each query sees as numbers to be added, [1,1,len,total], in place of causality and window. */
static inv_id seen_as_numbers(inv_attending *a)
{
    const inv_shape s = inv_shape_of(4, (int64_t[]){1, 1, a->len, a->total});
    double *v = INV_ARENA_NEW(&a->g->arena, double, (size_t)(a->len * a->total) + 1);
    const inv_dtype t = inv_val(a->g, a->q)->dtype;
    if (!v) return INV_NONE;
    for (int64_t k = 0; k < a->len * a->total; k++) {
        const int64_t i = k / a->total, j = k % a->total;
        const bool seen = (!a->causal || j <= i) && (a->window < 0 || j > i - a->window);
        inv_put_real(v, t, k, seen ? 0 : -INFINITY);
    }
    return inv_graph_const(a->g, t, &s, v);
}

/* An entry in front of v along an axis. */
static inv_id led(inv_graph *g, inv_id first, inv_id v, int axis)
{
    if (first == INV_NONE || v == INV_NONE) return INV_NONE;
    return inv_emit1(g, "Concat", INV_IN(first, v), INV_ATTRS(inv_attr_of_int("axis", axis)));
}

/* A number per head that takes part in the sum of a softmax, and in nothing else: the score of a key in front of all
 * others whose value is zero. */
static inv_status add_sink(inv_attending *a)
{
    inv_graph *g = a->g;
    const inv_dtype t = inv_val(g, a->q)->dtype;
    const bool given = inv_has_in(a->n, SINK);
    inv_shape key = *inv_shape_of_value(g, a->k), value = *inv_shape_of_value(g, a->v);
    const inv_shape per_head = inv_shape_of(4, (int64_t[]){1, a->heads, 1, 1});
    if (!given && inv_attr_int(a->n, "smooth_softmax", -1) <= 0) return INV_OK;
    if (given && inv_shape_nelem(inv_in_shape(g, a->n, SINK)) != a->heads)
        return inv_attend_wrong_shape(a, SINK, "a number per head, [num_heads]");
    key.dim[2] = value.dim[2] = 1;
    inv_attend_add_to_mask(a, seen_as_numbers(a));
    if (a->mask == INV_NONE) return inv_failed(g);
    inv_shape all = inv_shape_of(4, (int64_t[]){inv_shape_of_value(g, a->mask)->dim[0], a->heads, a->len, a->total});
    const inv_id rest = inv_emit_broadcast(g, a->mask, &all);
    all.dim[3] = 1;
    const inv_id sink = given ? inv_emit_view(g, a->n->in[SINK], &per_head) : inv_number(g, a->q, 0);
    a->mask = led(g, inv_emit_broadcast(g, sink, &all), rest, 3);
    a->k = led(g, inv_emit_zeros(g, t, &key), a->k, 2);
    a->v = led(g, inv_emit_zeros(g, t, &value), a->v, 2);
    a->causal = false, a->window = -1;
    return inv_done(g);
}

static inv_status group_query_lower(inv_graph *g, const inv_node *n, inv_id *out)
{
    inv_attending a = {.g = g, .n = n, .causal = inv_attr_int(n, "causal", 1) != 0};
    inv_id part[3];
    int64_t size = 0;
    const bool wants[3] = {inv_has_out(n, 0), inv_has_out(n, 1), inv_has_out(n, 2)};
    INV_TRY(inv_need_real(g, n, QUERY));
    INV_TRY(refuse_forms(&a));
    a.heads = inv_attr_int(n, "num_heads", 0), a.kv = inv_attr_int(n, "kv_num_heads", 0);
    INV_TRY(group_operands(&a, part, &size));
    INV_TRY(prepare(&a, QUERY_NORM, a.heads, size, &part[0]));
    INV_TRY(prepare(&a, KEY_NORM, a.kv, size, &part[1]));
    INV_TRY(inv_attend_apart(&a, part[0], a.heads, &a.q));
    INV_TRY(inv_attend_apart(&a, part[1], a.kv, &a.k));
    INV_TRY(inv_attend_apart(&a, part[2], a.kv, &a.v));
    INV_TRY(inv_attend_shapes(&a));
    if (inv_shape_nelem(inv_in_shape(g, n, LENGTHS)) != a.batch)
        return inv_attend_wrong_shape(&a, LENGTHS, "a number per sequence, [batch]");
    INV_TRY(inv_takes_lengths(g, n, LENGTHS, 0, a.total - 1)); /* less one */
    a.window = inv_attr_int(n, "local_window_size", -1);
    if (!a.causal) hide_ends(&a);
    INV_TRY(inv_attend_bias(&a, SCORE_BIAS));
    if (wants[1]) out[1] = a.k;
    if (wants[2]) out[2] = a.v;
    INV_TRY(add_sink(&a));
    return wants[0] ? inv_attend(&a, out, NULL, NULL) : inv_done(g);
}

/* --- rows --- */
INV_MICROSOFT(ms_rotary_lower, 0, ms_rotary, "RotaryEmbedding", "input position_ids cos_cache sin_cache", "output",
              "pairs of entries rotated by angles of their position; to ONNX's RotaryEmbedding",
              "y = com.microsoft.RotaryEmbedding(float[2,3,8] x, int64[2,3]{0,1,2,4,4,0}, float[5,2] c, float[5,2] s)",
              "y = com.microsoft.RotaryEmbedding<interleaved = 1>(float[2,2,3,4] x, int64[1]{2}, float[5,2] c, "
              "float[5,2] s)",
              "y = com.microsoft.RotaryEmbedding<num_heads = 2, rotary_embedding_dim = 2>(float[2,3,8] x, "
              "int64[2,3]{0,1,2,4,4,0}, float[5,1] c, float[5,1] s)")
INV_MICROSOFT(
    group_query_lower, 0, group_query, "GroupQueryAttention",
    "query key? value? past_key? past_value? seqlens_k total_sequence_length cos_cache? sin_cache? position_ids? "
    "attention_bias? head_sink? k_scale? v_scale? q_norm_weight? k_norm_weight?",
    "output present_key? present_value? output_qk?",
    "attention of decoders, of whole sequences, heads sharing keys and values, with rotations; to AttentionCore",
    "y, k, v = com.microsoft.GroupQueryAttention<num_heads = 2, kv_num_heads = 1, do_rotary = 1>(float[2,3,4] q, "
    "float[2,3,2] k1, float[2,3,2] v1, float[2,1,0,2] pk, float[2,1,0,2] pv, int32[2]{2,2}, int32{3}, float[4,1] c, "
    "float[4,1] s)",
    "y = com.microsoft.GroupQueryAttention<num_heads = 2, kv_num_heads = 1, softcap = 2.0, local_window_size = 2>("
    "float[2,3,8] qkv, , , , , int32[2]{2,2}, int32{3}, , , , float[1,2,3,3] b)",
    "y = com.microsoft.GroupQueryAttention<num_heads = 2, kv_num_heads = 2, local_window_size = 2>(float[2,3,4] q, "
    "float[2,3,4] k1, float[2,3,4] v1, , , int32[2]{2,2}, int32{3}, , , , , float[2] h, , , float[2] a, float[2] b)",
    "y = com.microsoft.GroupQueryAttention<num_heads = 2, kv_num_heads = 1, causal = 0, smooth_softmax = 1, "
    "do_rotary = 1, rotary_interleaved = 1>(float[2,3,16] qkv, , , , , int32[2]{0,2}, int32{3}, float[7,2] c, "
    "float[7,2] s, int64[2,3]{3,4,5,0,1,2})")

const inv_op_def *const inv_ops_ms_group_query[] = {&ms_rotary_row, &group_query_row, NULL};
