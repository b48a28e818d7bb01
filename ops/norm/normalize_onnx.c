/* SPDX-License-Identifier: Apache-2.0
 * Normalisations of ONNX that lower to other operators: MeanVarianceNormalization, LpNormalization, LRN, Hardmax. */
#include "ops/base/emit.h"
#include "ops/base/families.h"
#include "ops/base/rows.h"

static inv_id emit_axes(inv_graph *g, const char *op, inv_id x, size_t n, const int64_t *axes)
{
    return inv_emit1(g, op, INV_IN(x), INV_ATTRS(inv_attr_of_ints("axes", n, axes), inv_attr_of_int("keepdims", 1)));
}

/* --- MeanVarianceNormalization --- */

#define MVN_EPSILON 1e-9 /* added to the standard deviation, as the specification has it */

/* Bit i: axis i is normalised over. */
static inv_status mvn_axes(const inv_graph *g, const inv_node *n, int rank, uint32_t *gone)
{
    size_t count;
    const int64_t *axes = inv_attr_ints(n, "axes", &count), dflt[3] = {0, 2, 3};
    if (axes == NULL) {
        axes = dflt;
        count = 3;
    }
    *gone = 0;
    for (size_t i = 0; i < count; i++) {
        int at;
        INV_TRY(inv_axis(g, n, axes[i], rank, &at));
        *gone |= 1u << at;
    }
    return INV_OK;
}

/* The axes go behind all others, so that a row of layer normalisation is what they span. Its epsilon stands under the
 * root: the square of the specified one differs from it only where the deviation itself is as small. */
static inv_status mvn_lower(inv_graph *g, const inv_node *n, inv_id *out)
{
    uint32_t gone;
    int64_t perm[INV_MAX_RANK] = {0}, back[INV_MAX_RANK] = {0};
    int kept = 0, at;
    INV_TRY(inv_need_real(g, n, 0));
    const inv_shape x = *inv_in_shape(g, n, 0);
    INV_TRY(mvn_axes(g, n, x.rank, &gone));
    for (int i = 0; i < x.rank; i++) kept += !(gone >> i & 1);
    at = 0;
    for (int behind = 0; behind < 2; behind++) {
        for (int i = 0; i < x.rank; i++)
            if ((int)(gone >> i & 1) == behind) perm[at++] = i;
    }
    for (int i = 0; i < x.rank; i++) back[perm[i]] = i;
    if (kept == x.rank) return inv_node_fail(g, n, INV_E_SHAPE, "no axis to normalise over");
    const inv_id moved = inv_emit_transpose(g, n->in[0], x.rank, perm);
    if (moved == INV_NONE) return inv_done(g);
    inv_shape row = inv_shape_scalar();
    for (int i = kept; i < x.rank; i++) row.dim[row.rank++] = inv_shape_of_value(g, moved)->dim[i];
    const inv_id one =
        inv_emit1(g, "BroadcastTo", INV_IN(inv_number(g, moved, 1)), INV_ATTRS(inv_attr_of_shape("shape", &row)));
    const inv_id y =
        inv_emit1(g, "LayerNormApply", INV_IN(moved, one),
                  INV_ATTRS(inv_attr_of_int("axis", kept), inv_attr_of_float("epsilon", MVN_EPSILON * MVN_EPSILON)));
    out[0] = inv_emit_transpose(g, y, x.rank, back);
    return inv_done(g);
}

/* --- LpNormalization: x / norm, and the constant 0 where that is 0 / 0 --- */
static inv_status lp_lower(inv_graph *g, const inv_node *n, inv_id *out)
{
    int axis;
    INV_TRY(inv_need_real(g, n, 0));
    const int64_t p = inv_attr_int(n, "p", 2);
    INV_TRY(inv_axis(g, n, inv_attr_int(n, "axis", -1), inv_in_shape(g, n, 0)->rank, &axis));
    if (p != 1 && p != 2) return inv_node_fail(g, n, INV_E_UNSUPPORTED_OP, "p must be 1 or 2, not %lld", (long long)p);
    const int64_t at = axis;
    const inv_id x = n->in[0], terms = p == 1 ? inv_unary(g, "Abs", x) : inv_emit_pair(g, "Mul", x, x);
    inv_id sum = emit_axes(g, "ReduceSumAxes", terms, 1, &at);
    const inv_id none = inv_emit_pair(g, "Equal", sum, inv_number(g, x, 0));
    sum = inv_choose(g, none, inv_number(g, x, 1), sum);
    out[0] =
        inv_emit_pair(g, "Div", inv_choose(g, none, inv_number(g, x, 0), x), p == 1 ? sum : inv_unary(g, "Sqrt", sum));
    return inv_done(g);
}

/* --- LRN: the sum of squares over neighbouring channels is an average pooling along them --- */
static inv_status lrn_lower(inv_graph *g, const inv_node *n, inv_id *out)
{
    INV_TRY(inv_need_real(g, n, 0));
    const inv_shape s = *inv_in_shape(g, n, 0);
    const int64_t size = inv_attr_int(n, "size", 0);
    if (s.rank < 2) return inv_node_fail(g, n, INV_E_SHAPE, "the input needs a batch and a channel axis");
    if (size < 1) return inv_node_fail(g, n, INV_E_SHAPE, "size must be at least 1");
    const double alpha = inv_attr_float(n, "alpha", 0.0001), beta = inv_attr_float(n, "beta", 0.75);
    const inv_shape planes = inv_shape_of(4, (int64_t[]){s.dim[0], 1, s.dim[1], inv_prod(&s, 2, s.rank)});
    const int64_t kernel[2] = {size, 1}, pads[4] = {(size - 1) / 2, 0, size / 2, 0};
    const inv_id x = n->in[0], square = inv_emit_view(g, inv_emit_pair(g, "Mul", x, x), &planes);
    const inv_id mean =
        inv_emit1(g, "AveragePoolN", INV_IN(square),
                  INV_ATTRS(inv_attr_of_ints("kernel_shape", 2, kernel), inv_attr_of_ints("pads", 4, pads),
                            inv_attr_of_int("count_include_pad", 1)));
    inv_id base = inv_emit_pair(g, "Mul", inv_emit_view(g, mean, &s), inv_number(g, x, alpha));
    base = inv_emit_pair(g, "Add", base, inv_number(g, x, inv_attr_float(n, "bias", 1)));
    const inv_id exponent = inv_number(g, x, beta);
    out[0] = inv_emit_pair(g, "Div", x, inv_emit_pair(g, "Pow", base, exponent));
    return inv_done(g);
}

/* --- Hardmax: 1 at the first largest element, 0 elsewhere --- */

/* Positions along axis 1 of a tensor of rank 3, as real numbers: exact up to 2^24 in float. */
static inv_id positions(inv_graph *g, inv_dtype t, int64_t n)
{
    const inv_shape s = inv_shape_of(3, (int64_t[]){1, n, 1});
    double *at = INV_ARENA_NEW(&g->arena, double, (size_t)n + 1);
    if (at == NULL) return INV_NONE;
    for (int64_t i = 0; i < n; i++) inv_put_int(at, t, i, i);
    return inv_graph_const(g, t, &s, at);
}

static inv_status hardmax_lower(inv_graph *g, const inv_node *n, inv_id *out)
{
    int axis;
    const bool flat = n->op != NULL && n->op->since < 13;
    INV_TRY(inv_need_real(g, n, 0));
    const inv_shape s = *inv_in_shape(g, n, 0);
    INV_TRY(inv_axis(g, n, inv_attr_int(n, "axis", flat ? 1 : -1), s.rank, &axis));
    const inv_dtype t = inv_in_dtype(g, n, 0);
    const int last = flat ? s.rank : axis + 1;
    const int64_t len = inv_prod(&s, axis, last), one = 1;
    const inv_shape rows = inv_shape_of(3, (int64_t[]){inv_prod(&s, 0, axis), len, inv_prod(&s, last, s.rank)});
    if (len < 1 || len > 1 << 24)
        return inv_node_fail(g, n, INV_E_SHAPE, "%lld elements in a row; 1 to 2^24 are supported", (long long)len);
    const inv_id x = inv_emit_view(g, inv_unary(g, "Detach", n->in[0]), &rows), at = positions(g, t, len);
    const inv_id top = inv_emit_pair(g, "Equal", x, emit_axes(g, "ReduceMaxAxes", x, 1, &one));
    const inv_id candidates = inv_choose(g, top, at, inv_number(g, n->in[0], (double)len));
    const inv_id first = inv_emit_pair(g, "Equal", at, emit_axes(g, "ReduceMinAxes", candidates, 1, &one));
    out[0] = inv_emit_view(g, inv_cast(g, first, t), &s);
    return inv_done(g);
}

INV_LOWERED(mvn, "MeanVarianceNormalization", 9, "X", "Y",
            "(x - mean) / deviation over `axes`; to LayerNormApply. ONNX MeanVarianceNormalization-9, -13",
            "y = MeanVarianceNormalization(float[3,2,2,4] x)",
            "y = MeanVarianceNormalization<axes = [-1]>(float[2,5] x)")

INV_LOWERED_BY(
    lp_lower, 0, 0, lp_norm, "LpNormalization", 1, "input", "output",
    "x over its norm of order 1 or 2 along `axis`; to Mul, ReduceSum, Sqrt, Div. ONNX LpNormalization-1, -22",
    "y = LpNormalization(float[2,3,4] x)", "y = LpNormalization<axis = 1, p = 1>(float[2,3,4] x)",
    "y = LpNormalization<axis = 0>(float[3,1] x)", "y = LpNormalization(float[0,3] x)")

INV_LOWERED(lrn, "LRN", 1, "X", "Y",
            "x / (bias + alpha mean of x^2 over `size` channels)^beta; to AveragePoolN and Pow. ONNX LRN-1, -13",
            "y = LRN<size = 3, alpha = 0.5, beta = 0.6, bias = 2.0>(float[2,5,2,3] x)",
            "y = LRN<size = 4, alpha = 0.5>(float[2,3] x)", "y = LRN<size = 1>(float[1,1,1] x)")

/* clang-format off */
#define HARDMAX_DOC "1 at the first largest element, else 0; no gradient. ONNX Hardmax-"
static const inv_op_def hardmax_12 = {
    .size = sizeof hardmax_12, .domain = "", .name = "Hardmax", .since = 1, .until = 12, .in = "input",
    .out = "output", .flags = INV_OP_NO_GRAD, .lower = hardmax_lower,
    .doc = HARDMAX_DOC "1, -11"};
/* clang-format on */
INV_LOWERED_BY(hardmax_lower, 0, INV_OP_NO_GRAD, hardmax_13, "Hardmax", 13, "input", "output", HARDMAX_DOC "13",
               "y = Hardmax(float[2,5] x)", "y = Hardmax<axis = 1>(float[2,3,4] x)",
               "y = Hardmax<axis = 0>(float[1] x)")

const inv_op_def *const inv_ops_normalize[] = {&mvn_row, &lp_norm_row, &lrn_row, &hardmax_12, &hardmax_13_row, NULL};
