/* SPDX-License-Identifier: Apache-2.0
 * Normalisations that onnxruntime's optimizers have joined with the sums before them and the activation behind them,
 * taken apart again. Sources: the operator schemas of onnxruntime 1.31 (domain com.microsoft;
 * SimplifiedLayerNormalization is in that of ONNX). */
#include "ops/base/emit.h"
#include "ops/base/families.h"
#include "ops/base/rows.h"

static inv_attr epsilon_of(const inv_node *n, double dflt)
{
    return inv_attr_of_float("epsilon", inv_attr_float(n, "epsilon", dflt));
}

static inv_status refuse_output(const inv_graph *g, const inv_node *n, uint32_t i, const char *what)
{
    if (!inv_has_out(n, i)) return INV_OK;
    return inv_node_fail(g, n, INV_E_UNSUPPORTED_OP,
                         "output %u (%s) is not supported; leave its name empty, or drop what reads it", i, what);
}

#define EPSILON 1e-12F /* of the operators for transformers, as their schemas have it */

/* SkipLayerNormalization, SkipSimplifiedLayerNormalization: the latter has no beta, so its bias is input 3. */
static inv_status skip_norm_lower(inv_graph *g, const inv_node *n, inv_id *out)
{
    const bool rms = strcmp(n->op_type, "SkipSimplifiedLayerNormalization") == 0;
    const uint32_t bias = rms ? 3 : 4;
    const bool wants_sum = inv_has_out(n, 3);
    INV_TRY(inv_need_reals(g, n, n->nin));
    INV_TRY(refuse_output(g, n, 1, "mean"));
    INV_TRY(refuse_output(g, n, 2, "inv_std_var"));
    const inv_shape x = *inv_in_shape(g, n, 0), skip = *inv_in_shape(g, n, 1);
    inv_shape both;
    if (!inv_shape_broadcast(&x, &skip, &both) || !inv_shape_equal(&both, &x))
        return inv_node_fail(g, n, INV_E_SHAPE, "skip does not broadcast to the shape of input");
    inv_id sum = inv_emit_pair(g, "Add", n->in[0], n->in[1]);
    if (inv_has_in(n, bias)) sum = inv_emit_pair(g, "Add", sum, n->in[bias]);
    if (wants_sum) out[3] = sum;
    const inv_id beta = !rms && inv_has_in(n, 3) ? n->in[3] : INV_NONE;
    out[0] = inv_onnx(g, n, rms ? "RMSNormalization" : "LayerNormalization", INV_IN(sum, n->in[2], beta),
                      INV_ATTRS(epsilon_of(n, EPSILON)));
    return inv_done(g);
}

static inv_status simplified_norm_lower(inv_graph *g, const inv_node *n, inv_id *out)
{
    INV_TRY(refuse_output(g, n, 1, "inv_std_var"));
    out[0] = inv_onnx(g, n, "RMSNormalization", INV_IN(n->in[0], n->in[1]),
                      INV_ATTRS(inv_attr_of_int("axis", inv_attr_int(n, "axis", -1)), epsilon_of(n, 1e-5F)));
    return inv_done(g);
}

/* --- EmbedLayerNormalization --- */
enum { WORDS, SEGMENTS, WORD_TABLE, POSITION_TABLE, SEGMENT_TABLE, GAMMA, BETA, MASK, POSITIONS };

static inv_id looked_up(inv_graph *g, const inv_node *n, inv_id table, uint32_t ids)
{
    return inv_emit1(g, "Gather", INV_IN(table, n->in[ids]), INV_ATTRS(inv_attr_of_int("axis", 0)));
}

/* How many of a row's words are there: int32 [batch], summed in floating point, as every device can. */
static inv_id words_of(inv_graph *g, const inv_node *n, int64_t batch)
{
    const int64_t axis = 1;
    const inv_shape row = inv_shape_of(1, &batch);
    if (!inv_has_in(n, MASK)) return inv_emit_zeros(g, INV_I32, &row);
    const inv_id mask = inv_cast(g, n->in[MASK], g->real);
    const inv_id there = inv_cast(g, inv_emit_pair(g, "Equal", mask, inv_graph_const_real(g, g->real, 1)), g->real);
    const inv_attr attr[] = {inv_attr_of_ints("axes", 1, &axis), inv_attr_of_int("keepdims", 0)};
    return inv_cast(g, inv_emit1(g, "ReduceSumAxes", INV_IN(there), 2, attr), INV_I32);
}

static inv_status embed_norm_lower(inv_graph *g, const inv_node *n, inv_id *out)
{
    const inv_shape ids = *inv_in_shape(g, n, WORDS);
    const bool wants_words = inv_has_out(n, 1), wants_sum = inv_has_out(n, 2);
    if (ids.rank != 2) return inv_node_fail(g, n, INV_E_SHAPE, "input_ids must be [batch, length]");
    if (inv_has_in(n, SEGMENTS) != inv_has_in(n, SEGMENT_TABLE))
        return inv_node_fail(g, n, INV_E_GRAPH, "segment_ids and segment_embedding are given together or not at all");
    const inv_id places = n->in[POSITION_TABLE];
    if (!inv_has_in(n, POSITIONS) && inv_shape_of_value(g, places)->dim[0] < ids.dim[1])
        return inv_node_fail(g, n, INV_E_SHAPE, "%lld positions, but position_embedding has only %lld",
                             (long long)ids.dim[1], (long long)inv_shape_of_value(g, places)->dim[0]);
    const inv_id at =
        inv_has_in(n, POSITIONS) ? looked_up(g, n, places, POSITIONS) : inv_emit_part(g, places, 0, 0, ids.dim[1]);
    inv_id sum = inv_emit_pair(g, "Add", looked_up(g, n, n->in[WORD_TABLE], WORDS), at);
    if (inv_has_in(n, SEGMENTS)) sum = inv_emit_pair(g, "Add", sum, looked_up(g, n, n->in[SEGMENT_TABLE], SEGMENTS));
    if (wants_words) out[1] = words_of(g, n, ids.dim[0]);
    if (wants_sum) out[2] = sum;
    out[0] =
        inv_onnx(g, n, "LayerNormalization", INV_IN(sum, n->in[GAMMA], n->in[BETA]), INV_ATTRS(epsilon_of(n, EPSILON)));
    return inv_done(g);
}

/* --- GroupNorm, SkipGroupNorm --- */

/* Input i [batch, channels], or as the images themselves, in the shape of one number per image and channel. */
static inv_status skipped(inv_graph *g, const inv_node *n, bool last, inv_id *x)
{
    const inv_shape s = *inv_shape_of_value(g, *x), skip = *inv_in_shape(g, n, 3);
    inv_shape one = s;
    for (int i = 1; i < s.rank; i++) one.dim[i] = 1;
    one.dim[last ? s.rank - 1 : 1] = s.dim[last ? s.rank - 1 : 1];
    const bool whole = inv_shape_equal(&skip, &s);
    if (!whole && inv_shape_nelem(&skip) != inv_shape_nelem(&one))
        return inv_node_fail(g, n, INV_E_SHAPE, "skip must have the shape of X, or one number per image and channel");
    *x = inv_emit_pair(g, "Add", *x, whole ? n->in[3] : inv_emit_view(g, n->in[3], &one));
    if (inv_has_in(n, 4)) {
        one.dim[0] = 1;
        *x = inv_emit_pair(g, "Add", *x, inv_emit_view(g, n->in[4], &one));
    }
    return inv_done(g);
}

static inv_status ms_group_norm_lower(inv_graph *g, const inv_node *n, inv_id *out)
{
    const bool last = inv_attr_int(n, "channels_last", 1) != 0, wants_sum = inv_has_out(n, 1);
    const int64_t activation = inv_attr_int(n, "activation", 0);
    const int rank = inv_in_shape(g, n, 0)->rank;
    int64_t to[INV_MAX_RANK], back[INV_MAX_RANK];
    inv_id x = n->in[0];
    if (rank < 3) return inv_node_fail(g, n, INV_E_SHAPE, "X needs a batch, channels and a spatial axis or more");
    if (activation != 0 && activation != 1)
        return inv_node_fail(g, n, INV_E_UNSUPPORTED_OP, "activation %lld is neither 0 (none) nor 1 (SiLU)",
                             (long long)activation);
    for (int i = 0; i < rank; i++) {
        to[i] = !last || i == 0 ? i : i == 1 ? rank - 1 : i - 1;
        back[i] = !last || i == 0 ? i : i == rank - 1 ? 1 : i + 1;
    }
    if (inv_has_in(n, 3)) INV_TRY(skipped(g, n, last, &x));
    if (wants_sum) out[1] = x;
    const inv_id y =
        inv_onnx(g, n, "GroupNormalization", INV_IN(inv_emit_transpose(g, x, rank, to), n->in[1], n->in[2]),
                 INV_ATTRS(inv_attr_of_int("num_groups", inv_attr_int(n, "groups", 0)), epsilon_of(n, 1e-5F)));
    out[0] = inv_emit_transpose(g, activation ? inv_unary(g, "Swish", y) : y, rank, back);
    return inv_done(g);
}

/* --- rows --- */
INV_MICROSOFT(skip_norm_lower, 0, skip_norm, "SkipLayerNormalization", "input skip gamma beta? bias?",
              "output mean? inv_std_var? input_skip_bias_sum?", "LayerNormalization of input + skip + bias",
              "y, , , s = com.microsoft.SkipLayerNormalization<epsilon = 0.001>(float[2,3,4] x, float[2,3,4] k, "
              "float[4] g, float[4] b, float[4] c)",
              "y = com.microsoft.SkipLayerNormalization<epsilon = 0.1>(float[2,3,4] x, float[3,4] k, float[4] g)")
INV_MICROSOFT(
    skip_norm_lower, 0, skip_rms_norm, "SkipSimplifiedLayerNormalization", "input skip gamma bias?",
    "output mean? inv_std_var? input_skip_bias_sum?", "RMSNormalization of input + skip + bias",
    "y, , , s = com.microsoft.SkipSimplifiedLayerNormalization<epsilon = 0.001>(float[2,3,4] x, "
    "float[2,3,4] k, float[4] g, float[4] c)",
    "y = com.microsoft.SkipSimplifiedLayerNormalization<epsilon = 0.1>(float[6,4] x, float[6,4] k, float[4] g)")
INV_LOWERED_BY(simplified_norm_lower, 0, 0, simplified_norm, "SimplifiedLayerNormalization", 1, "X scale",
               "Y inv_std_var?", "RMSNormalization as onnxruntime has it in this domain; to RmsNormApply",
               "y = SimplifiedLayerNormalization<epsilon = 0.001>(float[2,3,5] x, float[5] scale)",
               "y = SimplifiedLayerNormalization<axis = 1, epsilon = 0.1>(float[2,3,4] x, float[3,4] scale)")
INV_MICROSOFT(
    embed_norm_lower, 0, embed_norm, "EmbedLayerNormalization",
    "input_ids segment_ids? word_embedding position_embedding segment_embedding? gamma beta mask? position_ids?",
    "output mask_index? embedding_sum?", "LayerNormalization of a sum of embeddings",
    "y, m, s = com.microsoft.EmbedLayerNormalization<epsilon = 0.001>(int32[2,3]{1,0,4,2,2,3}, "
    "int32[2,3]{0,1,1,0,0,1}, float[5,4] w, float[6,4] p, float[2,4] t, float[4] g, float[4] b, "
    "int32[2,3]{1,1,0,1,1,1})",
    "y = com.microsoft.EmbedLayerNormalization<epsilon = 0.001>(int32[1,3]{1,0,4}, , float[5,4] w, float[6,4] p, , "
    "float[4] g, float[4] b, , int32[1,3]{5,3,3})")
INV_MICROSOFT(ms_group_norm_lower, 0, ms_group_norm, "GroupNorm", "X gamma beta", "Y",
              "GroupNormalization, of images with channels last or second, and SiLU",
              "y = com.microsoft.GroupNorm<groups = 2, activation = 1, epsilon = 0.001>(float[2,3,2,4] x, float[4] g, "
              "float[4] b)",
              "y = com.microsoft.GroupNorm<groups = 2, activation = 0, channels_last = 0, epsilon = 0.001>("
              "float[2,4,3,2] x, float[4] g, float[4] b)")
INV_MICROSOFT(ms_group_norm_lower, 0, skip_group_norm, "SkipGroupNorm", "X gamma beta skip bias?", "Y S?",
              "GroupNorm of X + skip + bias",
              "y, s = com.microsoft.SkipGroupNorm<groups = 2, activation = 1, epsilon = 0.001>(float[2,3,2,4] x, "
              "float[4] g, float[4] b, float[2,4] k, float[4] c)",
              "y = com.microsoft.SkipGroupNorm<groups = 1, activation = 0, channels_last = 0, epsilon = 0.001>("
              "float[2,4,3,2] x, float[4] g, float[4] b, float[2,4,3,2] k)")

const inv_op_def *const inv_ops_ms_norm[] = {&skip_norm_row,
                                             &skip_rms_norm_row,
                                             &simplified_norm_row,
                                             &embed_norm_row,
                                             &ms_group_norm_row,
                                             &skip_group_norm_row,
                                             NULL};
