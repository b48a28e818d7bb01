/* SPDX-License-Identifier: Apache-2.0
 * Of ai.onnx.ml what is a gather, a comparison or linear: what pipelines have in front of a network. Numbers are
 * attributes there, so none of them is trained. Sources: the ONNX-ML operator specifications. */
#include "ops/base/emit.h"
#include "ops/base/families.h"
#include "ops/base/util.h"

static inv_status array_feature_extractor_lower(inv_graph *g, const inv_node *n, inv_id *out)
{
    inv_shape s = *inv_in_shape(g, n, 0);
    const int64_t count = inv_shape_nelem(inv_in_shape(g, n, 1));
    const inv_shape flat = inv_shape_of(1, &count);
    if (s.rank < 1) return inv_node_fail(g, n, INV_E_SHAPE, "one axis or more is wanted");
    const inv_id v = inv_emit1(g, "Gather", INV_IN(n->in[0], inv_emit_view(g, n->in[1], &flat)),
                               INV_ATTRS(inv_attr_of_int("axis", s.rank - 1)));
    if (s.rank == 1) s = inv_shape_of(2, (int64_t[]){1, count});
    s.dim[s.rank - 1] = count;
    out[0] = inv_emit_view(g, v, &s);
    return inv_done(g);
}

static inv_status binarizer_lower(inv_graph *g, const inv_node *n, inv_id *out)
{
    INV_TRY(inv_need_real(g, n, 0));
    const inv_dtype t = inv_in_dtype(g, n, 0);
    const inv_id limit = inv_graph_const_real(g, t, inv_attr_float(n, "threshold", 0));
    out[0] = inv_emit1(g, "Cast", INV_IN(inv_emit1(g, "Greater", INV_IN(n->in[0], limit), INV_NOATTR)),
                       INV_ATTRS(inv_attr_of_int("to", t)));
    return inv_done(g);
}

/* Input 0 as real numbers. */
static inv_id real_input(inv_graph *g, const inv_node *n) { return inv_cast(g, n->in[0], g->real); }

/* Attribute `name`, a list of as many numbers as `s` has, as a constant of that shape; or, where `one` is given and it
 * has one, that. A failure names what is wanted. */
static inv_status listed(inv_graph *g, const inv_node *n, const char *name, inv_shape s, bool one, inv_id *out)
{
    const inv_attr *a = inv_attr_find(n, name);
    const int64_t want = inv_shape_nelem(&s);
    const bool ints = a && a->kind == INV_ATTR_INTS;
    if (one && a && a->n == 1) s = inv_shape_scalar();
    else if (!a || (a->kind != INV_ATTR_FLOATS && !ints) || (int64_t)a->n != want)
        return inv_node_fail(g, n, INV_E_SHAPE, "attribute %s has %zu numbers; %lld are wanted", name, a ? a->n : 0,
                             (long long)want);
    double *wide = INV_ARENA_NEW(&g->arena, double, a->n + 1);
    void *real = INV_ARENA_NEW(&g->arena, double, a->n + 1);
    if (!wide || !real) return INV_E_NOMEM;
    for (size_t i = 0; i < a->n; i++) wide[i] = ints ? (double)a->ints[i] : a->floats[i];
    if (!inv_convert(real, g->real, wide, INV_F64, a->n)) return INV_E_UNSUPPORTED_TYPE;
    *out = inv_graph_const(g, g->real, &s, real);
    return inv_done(g);
}

/* One number per column of input 0. */
static inv_shape columns(const inv_graph *g, const inv_node *n)
{
    const inv_shape *x = inv_in_shape(g, n, 0);
    return x->rank ? inv_shape_of(1, &x->dim[x->rank - 1]) : inv_shape_of(1, (int64_t[]){1});
}

static inv_status scaler_lower(inv_graph *g, const inv_node *n, inv_id *out)
{
    inv_id v = real_input(g, n), offset, scale;
    if (inv_attr_find(n, "offset")) {
        INV_TRY(listed(g, n, "offset", columns(g, n), true, &offset));
        v = inv_emit_pair(g, "Sub", v, offset);
    }
    if (inv_attr_find(n, "scale")) {
        INV_TRY(listed(g, n, "scale", columns(g, n), true, &scale));
        v = inv_emit_pair(g, "Mul", v, scale);
    }
    out[0] = v;
    return inv_done(g);
}

static inv_status imputer_lower(inv_graph *g, const inv_node *n, inv_id *out)
{
    const bool ints = inv_attr_find(n, "imputed_value_int64s") != NULL;
    const double gone =
        ints ? (double)inv_attr_int(n, "replaced_value_int64", 0) : inv_attr_float(n, "replaced_value_float", 0);
    const inv_id x = real_input(g, n);
    inv_id with;
    INV_TRY(listed(g, n, ints ? "imputed_value_int64s" : "imputed_value_floats", columns(g, n), true, &with));
    const inv_id is = isnan(gone) ? inv_unary(g, "Not", inv_emit_pair(g, "Equal", x, x))
                                  : inv_emit_pair(g, "Equal", x, inv_graph_const_real(g, g->real, gone));
    out[0] = inv_cast(g, inv_choose(g, is, with, x), ints ? inv_in_dtype(g, n, 0) : g->real);
    return inv_done(g);
}

static inv_status normalizer_lower(inv_graph *g, const inv_node *n, inv_id *out)
{
    const char *norm = inv_attr_string(n, "norm", "MAX");
    const bool most = strcmp(norm, "MAX") == 0, squares = strcmp(norm, "L2") == 0;
    const int64_t axis = inv_in_shape(g, n, 0)->rank - 1;
    if (axis < 0 || axis > 1) return inv_node_fail(g, n, INV_E_SHAPE, "rows of numbers are wanted");
    if (!most && !squares && strcmp(norm, "L1") != 0)
        return inv_node_fail(g, n, INV_E_UNSUPPORTED_OP, "norm must be MAX, L1 or L2, not '%s'", norm);
    const inv_id x = real_input(g, n), terms = most      ? x
                                               : squares ? inv_emit_pair(g, "Mul", x, x)
                                                         : inv_unary(g, "Abs", x);
    inv_id size = inv_emit1(g, most ? "ReduceMaxAxes" : "ReduceSumAxes", INV_IN(terms),
                            INV_ATTRS(inv_attr_of_ints("axes", 1, &axis), inv_attr_of_int("keepdims", 1)));
    const inv_id none = inv_emit_pair(g, "Equal", size, inv_number(g, x, 0));
    size = inv_choose(g, none, inv_number(g, x, 1), size); /* a row of zeros stays what it is */
    out[0] = inv_emit_pair(g, "Div", inv_choose(g, none, inv_number(g, x, 0), x),
                           squares ? inv_unary(g, "Sqrt", size) : size);
    return inv_done(g);
}

/* Input 0 by the coefficients of `rows` results, and the intercepts. */
static inv_status linear(inv_graph *g, const inv_node *n, int64_t rows, inv_id *out)
{
    const inv_shape x = *inv_in_shape(g, n, 0);
    inv_id w, b;
    if (x.rank < 1 || x.rank > 2 || rows < 1) return inv_node_fail(g, n, INV_E_SHAPE, "rows of numbers are wanted");
    const inv_shape matrix = inv_shape_of(2, (int64_t[]){x.rank == 2 ? x.dim[0] : 1, x.dim[x.rank - 1]});
    INV_TRY(listed(g, n, "coefficients", inv_shape_of(2, (int64_t[]){rows, matrix.dim[1]}), false, &w));
    *out = inv_emit1(g, "MatMulT", INV_IN(inv_emit_view(g, real_input(g, n), &matrix), w),
                     INV_ATTRS(inv_attr_of_int("transB", 1)));
    if (!inv_attr_find(n, "intercepts")) return inv_done(g);
    INV_TRY(listed(g, n, "intercepts", inv_shape_of(1, &rows), true, &b));
    *out = inv_emit_pair(g, "Add", *out, b);
    return inv_done(g);
}

/* post_transform of scores v, of `classes` classes. */
static inv_status transformed(inv_graph *g, const inv_node *n, bool softmax, inv_id *v)
{
    const char *how = inv_attr_string(n, "post_transform", "NONE");
    if (strcmp(how, "LOGISTIC") == 0) *v = inv_unary(g, "Sigmoid", *v);
    else if (strcmp(how, "SOFTMAX") == 0 || strcmp(how, "SOFTMAX_ZERO") == 0)
        *v = softmax ? inv_emit1(g, "Softmax", INV_IN(*v), INV_ATTRS(inv_attr_of_int("axis", 1))) : *v;
    else if (strcmp(how, "NONE") != 0)
        return inv_node_fail(g, n, INV_E_UNSUPPORTED_OP,
                             "post_transform = %s is not supported; NONE, LOGISTIC and SOFTMAX are", how);
    return inv_done(g);
}

static inv_status linear_regressor_lower(inv_graph *g, const inv_node *n, inv_id *out)
{
    INV_TRY(linear(g, n, inv_attr_int(n, "targets", 1), &out[0]));
    return transformed(g, n, true, &out[0]);
}

/* The labels of places `at`, of shape [rows, 1]. */
static inv_status labels(inv_graph *g, const inv_node *n, inv_id at, inv_id *out)
{
    const inv_attr *a = inv_attr_find(n, "classlabels_ints");
    if (!a || !a->n) { /* left out, as outputs of that type are */
        inv_val(g, n->out[0])->dtype = INV_STRING;
        return INV_OK;
    }
    const inv_shape s = inv_shape_of(1, (int64_t[]){(int64_t)a->n});
    const inv_shape rows = inv_shape_of(1, &inv_shape_of_value(g, at)->dim[0]);
    *out = inv_emit1(g, "Gather", INV_IN(inv_graph_const(g, INV_I64, &s, a->ints), inv_emit_view(g, at, &rows)),
                     INV_ATTRS(inv_attr_of_int("axis", 0)));
    return inv_done(g);
}

static inv_status linear_classifier_lower(inv_graph *g, const inv_node *n, inv_id *out)
{
    const inv_attr *a = inv_attr_find(n, "intercepts"), *w = inv_attr_find(n, "coefficients");
    const inv_shape *x = inv_in_shape(g, n, 0);
    const int64_t width = x->rank ? x->dim[x->rank - 1] : 1;
    const int64_t rows = a ? (int64_t)a->n : w && width ? (int64_t)w->n / width : 0;
    inv_id v, at;
    INV_TRY(linear(g, n, rows, &v));
    if (rows == 1) { /* of two classes: the score of the second one */
        const inv_id zero = inv_number(g, v, 0);
        at = inv_cast(g, inv_emit_pair(g, "Greater", v, zero), INV_I64);
        INV_TRY(transformed(g, n, false, &v));
        v = inv_emit1(g, "Concat", INV_IN(inv_emit_pair(g, "Sub", inv_number(g, v, 1), v), v),
                      INV_ATTRS(inv_attr_of_int("axis", 1)));
    } else {
        const inv_id top =
            inv_emit(g, "TopKN", 2, INV_IN(v), INV_ATTRS(inv_attr_of_int("axis", 1), inv_attr_of_int("k", 1)));
        if (top == INV_NONE) return inv_done(g);
        at = inv_nod(g, top)->out[1];
        INV_TRY(transformed(g, n, true, &v));
    }
    if (n->out[0] != INV_NONE) INV_TRY(labels(g, n, at, &out[0]));
    if (n->nout > 1) out[1] = v;
    return inv_done(g);
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

LOWERED(scaler, "Scaler", "X", 0, "(x - offset) scale, by columns. ONNX-ML Scaler-1",
        "y = ai.onnx.ml.Scaler<offset = [1.0,2.0,3.0], scale = [0.5,2.0,1.0]>(float[2,3] x)",
        "y = ai.onnx.ml.Scaler<offset = [1.0], scale = [2.0]>(int64[2,3] x)")
LOWERED(imputer, "Imputer", "X", 0, "one number in place of another, by columns. ONNX-ML Imputer-1",
        "y = ai.onnx.ml.Imputer<imputed_value_floats = [1.0,2.0,3.0], replaced_value_float = 0.5>(float[2,3] x)",
        "y = ai.onnx.ml.Imputer<imputed_value_floats = [1.0]>(float[2,3] x)")
LOWERED(normalizer, "Normalizer", "X", 0, "rows over their largest element or their norm. ONNX-ML Normalizer-1",
        "y = ai.onnx.ml.Normalizer<norm = \"L2\">(float[2,3] x)",
        "y = ai.onnx.ml.Normalizer<norm = \"L1\">(float[2,3] x)")
LOWERED(linear_regressor, "LinearRegressor", "X", 0,
        "linear map with its numbers in attributes. ONNX-ML LinearRegressor-1",
        "y = ai.onnx.ml.LinearRegressor<coefficients = [1.0,2.0,3.0], intercepts = [0.5]>(float[2,3] x)",
        "y = ai.onnx.ml.LinearRegressor<coefficients = [1.0,2.0,3.0,4.0], targets = 2>(float[3,2] x)")
#undef LOWERED
static const char *const linear_classifier_cases[] = {
    "l, y = ai.onnx.ml.LinearClassifier<coefficients = [1.0,2.0,3.0,4.0], intercepts = [0.5,0.1], "
    "classlabels_ints = [3,5], post_transform = \"SOFTMAX\">(float[3,2] x)",
    "l, y = ai.onnx.ml.LinearClassifier<coefficients = [1.0,2.0], intercepts = [0.5], classlabels_ints = [0,1], "
    "post_transform = \"LOGISTIC\">(float[3,2] x)",
    NULL};
/* clang-format off */
static const inv_op_def linear_classifier_row = {
    .size = sizeof(inv_op_def), .domain = "ai.onnx.ml", .name = "LinearClassifier", .since = 1, .in = "X",
    .out = "Y Z", .lower = linear_classifier_lower, .cases = linear_classifier_cases,
    .doc = "labels and scores by a linear map with its numbers in attributes. ONNX-ML LinearClassifier-1"};
/* clang-format on */

const inv_op_def *const inv_ops_ml[] = {
    &array_feature_extractor_row, &binarizer_row,         &scaler_row, &imputer_row, &normalizer_row,
    &linear_regressor_row,        &linear_classifier_row, NULL};
