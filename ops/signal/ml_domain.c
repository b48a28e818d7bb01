/* SPDX-License-Identifier: Apache-2.0
 * Of ai.onnx.ml what is a gather or a comparison. Sources: the ONNX-ML operator specifications. */
#include "ops/base/families.h"
#include "ops/base/util.h"

static inv_status array_feature_extractor_lower(inv_graph *g, const inv_node *n, inv_id *out)
{
    inv_shape s = *inv__in_shape(g, n, 0);
    const int64_t count = inv_shape_nelem(inv__in_shape(g, n, 1));
    const inv_shape flat = inv_shape_of(1, &count);
    if (s.rank < 1) return inv_node_fail(g, n, INV_E_SHAPE, "one axis or more is wanted");
    const inv_id v = inv_emit1(g, "Gather", INV_IN(n->in[0], inv__emit_view(g, n->in[1], &flat)),
                               INV_ATTRS(inv_attr_of_int("axis", s.rank - 1)));
    if (s.rank == 1) s = inv_shape_of(2, (int64_t[]){1, count});
    s.dim[s.rank - 1] = count;
    out[0] = inv__emit_view(g, v, &s);
    return inv__done(g);
}

static inv_status binarizer_lower(inv_graph *g, const inv_node *n, inv_id *out)
{
    INV_TRY(inv__need_real(g, n, 0));
    const inv_dtype t = inv__in_dtype(g, n, 0);
    const inv_id limit = inv_graph_const_real(g, t, inv_attr_float(n, "threshold", 0));
    out[0] = inv_emit1(g, "Cast", INV_IN(inv_emit1(g, "Greater", INV_IN(n->in[0], limit), INV_NOATTR)),
                       INV_ATTRS(inv_attr_of_int("to", t)));
    return inv__done(g);
}

/* clang-format off */
/* --- rows --- */
#define LOWERED(id, op, ins, bits, text, ...)                                                                         \
    static const char *const id##_cases[] = {__VA_ARGS__, NULL};                                                      \
    static const inv_op_def id##_row = {                                                                              \
        .size = sizeof(inv_op_def), .domain = "ai.onnx.ml", .name = op, .since = 1, .in = ins, .out = "Y",            \
        .flags = bits, .lower = id##_lower, .cases = id##_cases, .doc = text};
/* clang-format on */
LOWERED(array_feature_extractor, "ArrayFeatureExtractor", "X Y", 0,
        "parts along the last axis by index; to Gather. ONNX-ML ArrayFeatureExtractor-1",
        "y = ai.onnx.ml.ArrayFeatureExtractor(float[2,3] x, int64[2]{2,0})",
        "y = ai.onnx.ml.ArrayFeatureExtractor(float[3] x, int64[1,2]{1,1})")
LOWERED(binarizer, "Binarizer", "X", INV_OP_NO_GRAD, "1 above the threshold, else 0. ONNX-ML Binarizer-1",
        "y = ai.onnx.ml.Binarizer<threshold = 0.5>(float[2,3] x)", "y = ai.onnx.ml.Binarizer(float[1] x)")

const inv_op_def *const inv_ops_ml[] = {&array_feature_extractor_row, &binarizer_row, NULL};
