/* SPDX-License-Identifier: Apache-2.0
 * What onnxruntime's optimizers join into one operator, taken apart again: activations with a bias, products and
 * convolutions with an activation, and the inverse of a matrix. Sources: the operator schemas of onnxruntime 1.31
 * (domain com.microsoft). */
#include "ops/base/emit.h"
#include "ops/base/families.h"
#include "ops/base/rows.h"

static inv_id plus(inv_graph *g, const inv_node *n, inv_id x, uint32_t i)
{
    return inv_has_in(n, i) ? inv_emit_pair(g, "Add", x, n->in[i]) : x;
}

/* --- activations --- */

/* Gelu, BiasGelu, FastGelu. */
static inv_status ms_gelu_lower(inv_graph *g, const inv_node *n, inv_id *out)
{
    const bool fast = strcmp(n->op_type, "FastGelu") == 0;
    INV_TRY(inv_need_reals(g, n, n->nin));
    out[0] = inv_unary(g, fast ? "GeluTanh" : "GeluErf", plus(g, n, n->in[0], 1));
    return inv_done(g);
}

static inv_status quick_gelu_lower(inv_graph *g, const inv_node *n, inv_id *out)
{
    INV_TRY(inv_need_real(g, n, 0));
    const double alpha = inv_attr_float(n, "alpha", 1.702F);
    out[0] = inv_emit1(g, "Swish", INV_IN(n->in[0]), INV_ATTRS(inv_attr_of_float("alpha", alpha)));
    return inv_done(g);
}

static inv_status bias_split_gelu_lower(inv_graph *g, const inv_node *n, inv_id *out)
{
    INV_TRY(inv_need_reals(g, n, 2));
    const inv_shape x = *inv_in_shape(g, n, 0);
    if (x.rank < 1 || x.dim[x.rank - 1] % 2 != 0)
        return inv_node_fail(g, n, INV_E_SHAPE, "the last axis of X must have an even extent, to be split in two");
    const int64_t half = x.dim[x.rank - 1] / 2;
    const inv_id sum = plus(g, n, n->in[0], 1), left = inv_emit_part(g, sum, x.rank - 1, 0, half);
    out[0] = inv_emit_pair(g, "Mul", left, inv_unary(g, "GeluErf", inv_emit_part(g, sum, x.rank - 1, half, half)));
    return inv_done(g);
}

/* --- products and convolutions with an activation --- */

/* Activations, with the attributes of theirs that the file may give, in order. */
static const struct activation {
    const char *name, *op;
    const char *real[2];
} activations[] = {
    {"Clip", "ClipRange", {"min", "max"}},
    {"Elu", "Elu", {"alpha"}},
    {"HardSigmoid", "HardSigmoid", {"alpha", "beta"}},
    {"HardSwish", "HardSwish", {NULL}},
    {"LeakyRelu", "LeakyRelu", {"alpha"}},
    {"Relu", "Relu", {NULL}},
    {"Selu", "Selu", {"alpha", "gamma"}},
    {"Sigmoid", "Sigmoid", {NULL}},
    {"Softplus", "Softplus", {NULL}},
    {"Softsign", "Softsign", {NULL}},
    {"Tanh", "Tanh", {NULL}},
    {"ThresholdedRelu", "ThresholdedRelu", {"alpha"}},
};

/* The number of an activation's attribute i: FusedConv lists them, FusedGemm has an attribute for each. */
static const double *activation_number(const inv_node *n, const struct activation *a, size_t i, double *room)
{
    char name[32] = "activation_";
    const inv_attr *list = inv_attr_find(n, "activation_params");
    if (list) return list->kind == INV_ATTR_FLOATS && i < list->n ? &list->floats[i] : NULL;
    strncat(name, a->real[i], sizeof name - strlen(name) - 1);
    if (!inv_attr_find(n, name)) return NULL;
    *room = inv_attr_float(n, name, 0);
    return room;
}

static inv_status activate(inv_graph *g, const inv_node *n, inv_id x, inv_id *out)
{
    const char *name = inv_attr_string(n, "activation", "");
    const struct activation *a = NULL;
    inv_attr attr[2];
    uint32_t nattr = 0;
    *out = x;
    if (!*name) return inv_done(g);
    for (size_t i = 0; i < sizeof activations / sizeof *activations; i++)
        if (strcmp(activations[i].name, name) == 0) a = &activations[i];
    if (!a)
        return inv_node_fail(g, n, INV_E_UNSUPPORTED_OP,
                             "activation \"%s\" is not supported here (supported: Relu, LeakyRelu, Clip, Sigmoid, "
                             "Tanh, ...). Write the activation as a node of its own",
                             name);
    for (size_t i = 0; i < 2 && a->real[i]; i++) {
        double room;
        const double *v = activation_number(n, a, i, &room);
        if (v) attr[nattr++] = inv_attr_of_float(a->real[i], *v);
    }
    *out = inv_emit1(g, a->op, INV_IN(x), nattr, attr);
    return inv_done(g);
}

static inv_status fused_gemm_lower(inv_graph *g, const inv_node *n, inv_id *out)
{
    return activate(g, n, inv_onnx(g, n, "Gemm", n->nin, n->in, n->nattr, n->attr), &out[0]);
}

static inv_status fused_conv_lower(inv_graph *g, const inv_node *n, inv_id *out)
{
    const inv_id b = inv_has_in(n, 2) ? n->in[2] : INV_NONE;
    const inv_id y = inv_onnx(g, n, "Conv", INV_IN(n->in[0], n->in[1], b), n->nattr, n->attr);
    return activate(g, n, plus(g, n, y, 3), &out[0]);
}

/* Images have their channels last, filters are those of Conv. */
static inv_status nhwc_conv_lower(inv_graph *g, const inv_node *n, inv_id *out)
{
    const int rank = inv_in_shape(g, n, 0)->rank;
    int64_t first[INV_MAX_RANK], last[INV_MAX_RANK];
    if (rank < 3) return inv_node_fail(g, n, INV_E_SHAPE, "X needs a batch, a spatial axis or more, and channels");
    for (int i = 0; i < rank; i++) {
        first[i] = i == 0 ? 0 : i == 1 ? rank - 1 : i - 1;
        last[i] = i == 0 ? 0 : i == rank - 1 ? 1 : i + 1;
    }
    const inv_id x = inv_emit_transpose(g, n->in[0], rank, first), b = inv_has_in(n, 2) ? n->in[2] : INV_NONE;
    const inv_id y = inv_onnx(g, n, "Conv", INV_IN(x, n->in[1], b), n->nattr, n->attr);
    out[0] = inv_emit_transpose(g, y, rank, last);
    return inv_done(g);
}

/* A factor of FusedMatMul: first its batch axes go ahead of its first one, then the last two are exchanged. A vector
 * stays as it is. */
static inv_id factor(inv_graph *g, inv_id v, bool batch, bool *trans)
{
    const int rank = inv_shape_of_value(g, v)->rank;
    int64_t perm[INV_MAX_RANK];
    if (rank < 2) *trans = false;
    if (!batch || rank < 3) return v;
    for (int i = 0; i < rank - 2; i++) perm[i] = i + 1;
    perm[rank - 2] = 0, perm[rank - 1] = rank - 1;
    return inv_emit_transpose(g, v, rank, perm);
}

static inv_status fused_matmul_lower(inv_graph *g, const inv_node *n, inv_id *out)
{
    bool ta = inv_attr_int(n, "transA", 0) != 0, tb = inv_attr_int(n, "transB", 0) != 0;
    const double alpha = inv_attr_float(n, "alpha", 1);
    INV_TRY(inv_need_reals(g, n, 2));
    const inv_id a = factor(g, n->in[0], inv_attr_int(n, "transBatchA", 0) != 0, &ta);
    const inv_id b = factor(g, n->in[1], inv_attr_int(n, "transBatchB", 0) != 0, &tb);
    if (a == INV_NONE || b == INV_NONE) return inv_failed(g);
    const bool vector = inv_shape_of_value(g, a)->rank < 2 || inv_shape_of_value(g, b)->rank < 2;
    if (vector && (ta || tb))
        return inv_node_fail(g, n, INV_E_UNSUPPORTED_OP,
                             "a transposed matrix times a vector is not supported; give "
                             "the vector a second axis");
    const inv_id y = vector ? inv_onnx(g, n, "MatMul", INV_IN(a, b), INV_NOATTR) : inv_emit_product(g, ta, a, tb, b);
    out[0] = alpha == 1 ? y : inv_emit_pair(g, "Mul", y, inv_number(g, y, alpha));
    return inv_done(g);
}

/* --- Inverse --- */
static inv_status inverse_lower(inv_graph *g, const inv_node *n, inv_id *out)
{
    enum { MOST = 4096 };
    const inv_shape s = *inv_in_shape(g, n, 0);
    INV_TRY(inv_need_real(g, n, 0));
    if (s.rank < 2 || s.dim[s.rank - 1] != s.dim[s.rank - 2])
        return inv_node_fail(g, n, INV_E_SHAPE, "the last two axes must form a square matrix");
    const int64_t size = s.dim[s.rank - 1], count = inv_prod(&s, 0, s.rank - 2);
    const inv_shape one = inv_shape_of(2, (int64_t[]){size, size});
    const inv_shape all = inv_shape_of(3, (int64_t[]){count, size, size}),
                    slice = inv_shape_of(3, (int64_t[]){1, size, size});
    if (count < 1 || count > MOST)
        return inv_node_fail(g, n, INV_E_UNSUPPORTED_OP, "%lld matrices; 1 to %d are supported", (long long)count,
                             MOST);
    const inv_id x = inv_emit_view(g, n->in[0], &all);
    inv_id *y = INV_ARENA_NEW(&g->arena, inv_id, (size_t)count);
    if (!y) return INV_E_NOMEM;
    for (int64_t i = 0; i < count && g->failed == INV_OK; i++) {
        const inv_id m = inv_emit_view(g, inv_emit_part(g, x, 0, i, 1), &one);
        const inv_id eye = inv_onnx(g, n, "EyeLike", INV_IN(m), INV_NOATTR);
        y[i] = inv_emit_view(g, inv_emit_pair(g, "LinearSolve", eye, m), &slice);
    }
    if (g->failed != INV_OK) return g->failed;
    const inv_id joined =
        count == 1 ? y[0] : inv_emit1(g, "Concat", (uint32_t)count, y, INV_ATTRS(inv_attr_of_int("axis", 0)));
    out[0] = inv_emit_view(g, joined, &s);
    return inv_done(g);
}

/* --- rows --- */
INV_MICROSOFT(ms_gelu_lower, 0, ms_gelu, "Gelu", "X", "Y", "x Phi(x)", "y = com.microsoft.Gelu(float[2,3] x)",
              "y = com.microsoft.Gelu(float[1] x)")
INV_MICROSOFT(ms_gelu_lower, 0, bias_gelu, "BiasGelu", "A B", "C", "s Phi(s) of s = A + B",
              "y = com.microsoft.BiasGelu(float[2,3,4] a, float[4] b)",
              "y = com.microsoft.BiasGelu(float[3] a, float[3] b)")
INV_MICROSOFT(ms_gelu_lower, 0, fast_gelu, "FastGelu", "X bias?", "Y", "s (1 + tanh(...)) / 2 of s = X + bias",
              "y = com.microsoft.FastGelu(float[2,3,4] x, float[4] b)", "y = com.microsoft.FastGelu(float[2,3] x)")
INV_MICROSOFT(quick_gelu_lower, 0, quick_gelu, "QuickGelu", "X", "Y", "x sigmoid(alpha x); to Swish",
              "y = com.microsoft.QuickGelu(float[2,3] x)", "y = com.microsoft.QuickGelu<alpha = 0.5>(float[2,3] x)")
INV_MICROSOFT(bias_split_gelu_lower, 0, bias_split_gelu, "BiasSplitGelu", "X bias", "Y",
              "l r Phi(r) of X + bias = [l, r]", "y = com.microsoft.BiasSplitGelu(float[2,3,4] x, float[4] b)",
              "y = com.microsoft.BiasSplitGelu(float[2,6] x, float[6] b)")
INV_MICROSOFT(
    fused_gemm_lower, INV_OP_PRODUCT, fused_gemm, "FusedGemm", "A B C?", "Y", "Gemm with an activation",
    "y = com.microsoft.FusedGemm<activation = \"LeakyRelu\", activation_alpha = 0.2, transB = 1>(float[3,4] a, "
    "float[5,4] b, float[5] c)",
    "y = com.microsoft.FusedGemm<activation = \"Selu\", activation_alpha = 1.5, activation_gamma = 1.1, "
    "alpha = 0.5>(float[3,4] a, float[4,5] b)")
INV_MICROSOFT(
    fused_conv_lower, INV_OP_PRODUCT, fused_conv, "FusedConv", "X W B? Z?", "Y", "Conv, the sum with Z, an activation",
    "y = com.microsoft.FusedConv<pads = [1,1,1,1], activation = \"Tanh\">(float[1,2,4,4] x, float[3,2,3,3] w, "
    "float[3] b, float[1,3,4,4] z)",
    "y = com.microsoft.FusedConv<strides = [2,2], activation = \"LeakyRelu\", activation_params = [0.3]>("
    "float[2,2,4,4] x, float[3,2,2,2] w)",
    "y = com.microsoft.FusedConv<activation = \"HardSigmoid\", activation_params = [0.3, 0.6]>("
    "float[2,2,4] x, float[3,2,2] w, float[3] b)")
INV_MICROSOFT(nhwc_conv_lower, INV_OP_PRODUCT, nhwc_conv, "NhwcConv", "X W B?", "Y",
              "Conv of images that have their channels last",
              "y = com.microsoft.NhwcConv<pads = [1,1,1,1]>(float[1,4,3,2] x, float[3,2,3,3] w, float[3] b)",
              "y = com.microsoft.NhwcConv<group = 2>(float[2,5,4] x, float[2,2,3] w)")
INV_MICROSOFT(fused_matmul_lower, INV_OP_PRODUCT, fused_matmul, "FusedMatMul", "A B", "Y",
              "alpha op(A) op(B), with axes of the batch transposed as well",
              "y = com.microsoft.FusedMatMul<alpha = 0.5, transA = 1>(float[2,4,3] a, float[2,4,5] b)",
              "y = com.microsoft.FusedMatMul<transBatchA = 1, transB = 1>(float[3,2,4] a, float[2,5,4] b)",
              "y = com.microsoft.FusedMatMul<transBatchB = 1, transA = 1, transBatchA = 1>(float[4,2,3] a, "
              "float[4,2,5] b)",
              "y = com.microsoft.FusedMatMul(float[4] a, float[4,5] b)")
INV_MICROSOFT(inverse_lower, 0, inverse, "Inverse", "X", "Y", "the inverse of every matrix; to LinearSolve",
              "e = EyeLike(float[3,3] x)\nd = Add(e, e)\nm = Add(x, d)\ny = com.microsoft.Inverse(m)",
              "e = EyeLike(float[2,2] x)\nd = Add(e, e)\nm = Add(float[1,2,2] z, d)\nn = Add(m, x)\n"
              "y = com.microsoft.Inverse(n)")

const inv_op_def *const inv_ops_ms_fused[] = {&ms_gelu_row,
                                              &bias_gelu_row,
                                              &fast_gelu_row,
                                              &quick_gelu_row,
                                              &bias_split_gelu_row,
                                              &fused_gemm_row,
                                              &fused_conv_row,
                                              &nhwc_conv_row,
                                              &fused_matmul_row,
                                              &inverse_row,
                                              NULL};
