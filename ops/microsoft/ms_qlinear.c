/* SPDX-License-Identifier: Apache-2.0
 * Operators on quantized tensors, as onnxruntime's tools write them: what comes in is dequantized, computed with, and
 * quantized again, by the operators of ONNX for each, so gradients pass straight through as they do there
 * (docs/numerics.md). Sources: the operator schemas of onnxruntime 1.31 (domain com.microsoft). */
#include "ops/microsoft/ms_qlinear.h"
#include "ops/base/emit.h"
#include "ops/base/families.h"
#include "ops/base/rows.h"

/* Inputs from x on are a tensor, its scale and its zero point. */
static inv_id dequantized(inv_graph *g, const inv_node *n, uint32_t x, uint32_t scale, uint32_t zero, int64_t axis)
{
    return inv_onnx(g, n, "DequantizeLinear",
                    INV_IN(n->in[x], n->in[scale], inv_has_in(n, zero) ? n->in[zero] : INV_NONE),
                    INV_ATTRS(inv_attr_of_int("axis", axis)));
}

static inv_id quantized(inv_graph *g, const inv_node *n, inv_id y, uint32_t scale, uint32_t zero, inv_dtype type)
{
    return inv_onnx(g, n, "QuantizeLinear", INV_IN(y, n->in[scale], inv_has_in(n, zero) ? n->in[zero] : INV_NONE),
                    INV_ATTRS(inv_attr_of_int("output_dtype", (int64_t)type)));
}

static inv_status need_one(const inv_graph *g, const inv_node *n, uint32_t i, const char *what)
{
    if (!inv_has_in(n, i) || inv_shape_nelem(inv_in_shape(g, n, i)) == 1) return INV_OK;
    return inv_node_fail(g, n, INV_E_UNSUPPORTED_OP,
                         "input %u (%s) must be one number: scales of whole tensors are supported", i, what);
}

/* --- QLinear... --- */
static const struct qlinear {
    const char *name, *op;
    uint32_t operands;
} qlinears[] = {
    {"QLinearAdd", "Add", 2},
    {"QLinearMul", "Mul", 2},
    {"QLinearSigmoid", "Sigmoid", 1},
    {"QLinearLeakyRelu", "LeakyRelu", 1},
    {"QLinearAveragePool", "AveragePool", 1},
    {"QLinearGlobalAveragePool", "GlobalAveragePool", 1},
};

/* x with its channels second, or, `back`, last again. */
static inv_id turned(inv_graph *g, inv_id x, bool back)
{
    int64_t perm[INV_MAX_RANK];
    if (x == INV_NONE) return x;
    const int rank = inv_shape_of_value(g, x)->rank;
    for (int i = 0; i < rank; i++)
        perm[i] = i == 0 ? 0 : back ? (i == rank - 1 ? 1 : i + 1) : i == 1 ? rank - 1 : i - 1;
    return inv_emit_transpose(g, x, rank, perm);
}

static inv_status qlinear_lower(inv_graph *g, const inv_node *n, inv_id *out)
{
    const struct qlinear *q = qlinears;
    inv_id x[2];
    while (strcmp(q->name, n->op_type) != 0) q++;
    const bool last = inv_attr_int(n, "channels_last", 0) != 0;
    const uint32_t scale = 3 * q->operands;
    for (uint32_t i = 0; i < q->operands; i++) {
        INV_TRY(inv_need_bytes(g, n, 3 * i));
        INV_TRY(need_one(g, n, 3 * i + 1, "scale"));
        x[i] = dequantized(g, n, 3 * i, 3 * i + 1, 3 * i + 2, 1);
        if (last) x[i] = turned(g, x[i], false);
    }
    INV_TRY(need_one(g, n, scale, "scale"));
    const inv_id y = inv_onnx(g, n, q->op, q->operands, x, n->nattr, n->attr);
    out[0] = quantized(g, n, last ? turned(g, y, true) : y, scale, scale + 1, inv_in_dtype(g, n, 0));
    return inv_done(g);
}

static inv_status qlinear_concat_lower(inv_graph *g, const inv_node *n, inv_id *out)
{
    const uint32_t count = n->nin < 2 ? 0 : (n->nin - 2) / 3;
    inv_id *x = INV_ARENA_NEW(&g->arena, inv_id, count + 1);
    int axis;
    if (!x) return INV_E_NOMEM;
    if (count < 1 || 3 * count + 2 != n->nin)
        return inv_node_fail(g, n, INV_E_GRAPH, "every tensor needs a scale and a zero point after it");
    for (uint32_t i = 0; i < count; i++) {
        const uint32_t at = 2 + 3 * i;
        INV_TRY(inv_need_bytes(g, n, at));
        INV_TRY(need_one(g, n, at + 1, "scale"));
        x[i] = dequantized(g, n, at, at + 1, at + 2, 1);
        if (x[i] == INV_NONE) return inv_failed(g);
    }
    INV_TRY(inv_axis(g, n, inv_attr_int(n, "axis", 0), inv_in_shape(g, n, 2)->rank, &axis));
    const inv_id all = count == 1 ? x[0] : inv_emit1(g, "Concat", count, x, INV_ATTRS(inv_attr_of_int("axis", axis)));
    out[0] = quantized(g, n, all, 0, 1, inv_in_dtype(g, n, 1));
    return inv_done(g);
}

static inv_status qlinear_softmax_lower(inv_graph *g, const inv_node *n, inv_id *out)
{
    int axis;
    const int rank = inv_in_shape(g, n, 0)->rank;
    INV_TRY(inv_need_bytes(g, n, 0));
    INV_TRY(need_one(g, n, 1, "X_scale"));
    INV_TRY(need_one(g, n, 3, "y_scale"));
    INV_TRY(inv_axis(g, n, inv_attr_int(n, "axis", -1), rank, &axis));
    if (inv_attr_int(n, "opset", 13) < 13 && axis != rank - 1)
        return inv_node_fail(g, n, INV_E_UNSUPPORTED_OP,
                             "axis %d of %d: before operator set 13, all axes from there on count as one, which is "
                             "supported for the last axis only",
                             axis, rank);
    const inv_id y =
        inv_emit1(g, "Softmax", INV_IN(dequantized(g, n, 0, 1, 2, 1)), INV_ATTRS(inv_attr_of_int("axis", axis)));
    out[0] = quantized(g, n, y, 3, 4, inv_in_dtype(g, n, 0));
    return inv_done(g);
}

static inv_status qlinear_where_lower(inv_graph *g, const inv_node *n, inv_id *out)
{
    inv_id x[2];
    for (uint32_t i = 0; i < 2; i++) {
        INV_TRY(inv_need_bytes(g, n, 1 + 3 * i));
        INV_TRY(need_one(g, n, 2 + 3 * i, "scale"));
        x[i] = dequantized(g, n, 1 + 3 * i, 2 + 3 * i, 3 + 3 * i, 1);
        if (x[i] == INV_NONE) return inv_failed(g);
    }
    INV_TRY(need_one(g, n, 7, "z_scale"));
    out[0] =
        quantized(g, n, inv_onnx(g, n, "Where", INV_IN(n->in[0], x[0], x[1]), INV_NOATTR), 7, 8, inv_in_dtype(g, n, 1));
    return inv_done(g);
}

/* --- products --- */

/* The product is exact, and quantized again where that is asked for: no gradient reaches A or B. */
static inv_status qgemm_lower(inv_graph *g, const inv_node *n, inv_id *out)
{
    const int64_t turn[] = {1, 0};
    const double alpha = inv_attr_float(n, "alpha", 1);
    INV_TRY(need_one(g, n, 1, "a_scale"));
    if (inv_in_shape(g, n, 0)->rank != 2 || inv_in_shape(g, n, 3)->rank != 2)
        return inv_node_fail(g, n, INV_E_SHAPE, "A and B must be matrices");
    const inv_id a = inv_attr_int(n, "transA", 0) ? inv_emit_transpose(g, n->in[0], 2, turn) : n->in[0];
    const inv_id b = inv_attr_int(n, "transB", 0) ? inv_emit_transpose(g, n->in[3], 2, turn) : n->in[3];
    inv_id y = inv_onnx(g, n, "MatMulInteger", INV_IN(a, b, n->in[2], n->in[5]), INV_NOATTR);
    if (inv_has_in(n, 6)) y = inv_emit_pair(g, "Add", y, n->in[6]);
    const inv_id scale =
        inv_emit_pair(g, "Mul", inv_emit_pair(g, "Mul", n->in[1], n->in[4]), inv_number(g, n->in[1], alpha));
    y = inv_emit_pair(g, "Mul", inv_cast(g, y, g->real), scale);
    out[0] = inv_has_in(n, 7)
                 ? quantized(g, n, y, 7, 8, inv_has_in(n, 8) ? inv_in_dtype(g, n, 8) : inv_in_dtype(g, n, 0))
                 : y;
    return inv_done(g);
}

static inv_status integer_to_float_lower(inv_graph *g, const inv_node *n, inv_id *out)
{
    const int rank = inv_in_shape(g, n, 1)->rank;
    for (uint32_t i = 0; i < 2; i++) INV_TRY(inv_need_bytes(g, n, i));
    INV_TRY(need_one(g, n, 2, "a_scale"));
    INV_TRY(need_one(g, n, 4, "a_zero_point"));
    const inv_id y = inv_onnx(g, n, "MatMul",
                              INV_IN(dequantized(g, n, 0, 2, 4, 1), dequantized(g, n, 1, 3, 5, rank - 1)), INV_NOATTR);
    out[0] = inv_has_in(n, 6) ? inv_emit_pair(g, "Add", y, n->in[6]) : y;
    return inv_done(g);
}

static inv_id over_all(inv_graph *g, const char *op, inv_id x)
{
    int64_t axes[INV_MAX_RANK] = {0, 1, 2, 3, 4, 5, 6, 7};
    if (x == INV_NONE) return x;
    const size_t rank = (size_t)inv_shape_of_value(g, x)->rank;
    if (rank == 0) return x;
    return inv_emit1(g, op, INV_IN(x), INV_ATTRS(inv_attr_of_ints("axes", rank, axes), inv_attr_of_int("keepdims", 0)));
}

inv_id inv_rounded_by_range(inv_graph *g, inv_id x)
{
    if (x == INV_NONE || inv_shape_nelem(inv_shape_of_value(g, x)) == 0) return x;
    const inv_id still = inv_unary(g, "Detach", x), none = inv_number(g, x, 0), one = inv_number(g, x, 1);
    const inv_id top = inv_emit_pair(g, "Max", over_all(g, "ReduceMaxAxes", still), none);
    const inv_id bottom = inv_emit_pair(g, "Min", over_all(g, "ReduceMinAxes", still), none);
    inv_id scale = inv_emit_pair(g, "Div", inv_emit_pair(g, "Sub", top, bottom), inv_number(g, x, 255));
    scale = inv_choose(g, inv_emit_pair(g, "Equal", scale, none), one, scale);
    const inv_attr range[] = {inv_attr_of_float("min", 0), inv_attr_of_float("max", 255)};
    const inv_id from =
        inv_unary(g, "RoundThrough", inv_emit_pair(g, "Div", inv_emit_pair(g, "Sub", none, bottom), scale));
    const inv_id zero = inv_emit1(g, "Saturate", INV_IN(from), 2, range);
    const inv_id at = inv_emit_pair(g, "Add", inv_unary(g, "RoundThrough", inv_emit_pair(g, "Div", x, scale)), zero);
    return inv_emit_pair(g, "Mul", inv_emit_pair(g, "Sub", inv_emit1(g, "Saturate", INV_IN(at), 2, range), zero),
                         scale);
}

static inv_status dynamic_matmul_lower(inv_graph *g, const inv_node *n, inv_id *out)
{
    const int rank = inv_in_shape(g, n, 1)->rank;
    INV_TRY(inv_need_real(g, n, 0));
    INV_TRY(inv_need_bytes(g, n, 1));
    const inv_id w = dequantized(g, n, 1, 2, 3, rank - 1);
    const inv_id y = inv_onnx(g, n, "MatMul", INV_IN(inv_rounded_by_range(g, n->in[0]), w), INV_NOATTR);
    out[0] = inv_has_in(n, 4) ? inv_emit_pair(g, "Add", y, n->in[4]) : y;
    return inv_done(g);
}

/* --- rows --- */
#define QLINEAR(id, op, ins, outs, text, ...)                                                                       \
    INV_MICROSOFT(qlinear_lower, INV_OP_STRAIGHT, id, op, ins, outs, text " of quantized tensors, quantized again", \
                  __VA_ARGS__)
QLINEAR(qlinear_add, "QLinearAdd", "A A_scale A_zero_point? B B_scale B_zero_point? C_scale C_zero_point?", "C", "sum",
        "y = com.microsoft.QLinearAdd(uint8[2,3] a, float sa, uint8 za, uint8[3] b, float sb, uint8 zb, "
        "float sc, uint8 zc)",
        "y = com.microsoft.QLinearAdd(int8[2,3] a, float sa, , int8[2,3] b, float sb, , float sc)")
QLINEAR(qlinear_mul, "QLinearMul", "A A_scale A_zero_point? B B_scale B_zero_point? C_scale C_zero_point?", "C",
        "product",
        "y = com.microsoft.QLinearMul(uint8[2,3] a, float sa, uint8 za, uint8[3] b, float sb, uint8 zb, "
        "float sc, uint8 zc)",
        "y = com.microsoft.QLinearMul(int8[2,3] a, float sa, , int8[2,3] b, float sb, , float sc)")
QLINEAR(qlinear_sigmoid, "QLinearSigmoid", "X X_scale X_zero_point? Y_scale Y_zero_point?", "Y", "Sigmoid",
        "y = com.microsoft.QLinearSigmoid(uint8[2,3] x, float sx, uint8 zx, float sy, uint8 zy)",
        "y = com.microsoft.QLinearSigmoid(int8[2,3] x, float sx, , float sy)")
QLINEAR(qlinear_leaky_relu, "QLinearLeakyRelu", "X X_scale X_zero_point? Y_scale Y_zero_point?", "Y", "LeakyRelu",
        "y = com.microsoft.QLinearLeakyRelu<alpha = 0.2>(uint8[2,3] x, float sx, uint8 zx, float sy, uint8 zy)",
        "y = com.microsoft.QLinearLeakyRelu(int8[2,3] x, float sx, int8 zx, float sy, int8 zy)")
QLINEAR(
    qlinear_average_pool, "QLinearAveragePool", "X x_scale x_zero_point? y_scale y_zero_point?", "Y", "AveragePool",
    "y = com.microsoft.QLinearAveragePool<kernel_shape = [2,2], pads = [1,1,0,0]>("
    "uint8[1,2,4,4] x, float sx, uint8 zx, "
    "float sy, uint8 zy)",
    "y = com.microsoft.QLinearAveragePool<kernel_shape = [2,2], channels_last = 1>(int8[1,4,4,2] x, float sx, int8 zx, "
    "float sy, int8 zy)")
QLINEAR(qlinear_global_pool, "QLinearGlobalAveragePool", "X x_scale x_zero_point y_scale y_zero_point", "Y",
        "GlobalAveragePool",
        "y = com.microsoft.QLinearGlobalAveragePool(uint8[1,2,4,4] x, float sx, uint8 zx, float sy, uint8 zy)",
        "y = com.microsoft.QLinearGlobalAveragePool<channels_last = 1>(int8[1,4,4,2] x, float sx, int8 zx, "
        "float sy, int8 zy)")
INV_MICROSOFT(qlinear_concat_lower, INV_OP_STRAIGHT, qlinear_concat, "QLinearConcat", "Y_scale Y_zero_point inputs*",
              "Y", "quantized tensors joined, quantized again",
              "y = com.microsoft.QLinearConcat<axis = 1>(float sy, uint8 zy, uint8[2,3] a, float sa, uint8 za, "
              "uint8[2,1] b, "
              "float sb, uint8 zb)",
              "y = com.microsoft.QLinearConcat<axis = 0>(float sy, int8 zy, int8[2] a, float sa, int8 za)")
INV_MICROSOFT(qlinear_softmax_lower, INV_OP_STRAIGHT, qlinear_softmax, "QLinearSoftmax",
              "X X_scale x_zero_point? y_scale y_zero_point", "Y", "Softmax of a quantized tensor, quantized again",
              "y = com.microsoft.QLinearSoftmax<axis = 1, opset = 13>(uint8[2,3,2] x, float sx, uint8 zx, float sy, "
              "uint8 zy)",
              "y = com.microsoft.QLinearSoftmax<opset = 11>(int8[2,3] x, float sx, , float sy, int8 zy)")
INV_MICROSOFT(
    qlinear_where_lower, INV_OP_STRAIGHT, qlinear_where, "QLinearWhere",
    "condition X x_scale x_zero_point Y y_scale y_zero_point z_scale z_zero_point", "Z",
    "Where of quantized tensors, quantized again",
    "z = com.microsoft.QLinearWhere(bool[2,3] c, uint8[2,3] x, float sx, uint8 zx, uint8[3] y, float sy, "
    "uint8 zy, float sz, uint8 zz)",
    "z = com.microsoft.QLinearWhere(bool[2,1] c, int8[2,3] x, float sx, int8 zx, int8[] y, float sy, int8 zy, "
    "float sz, int8 zz)")
INV_MICROSOFT(
    qgemm_lower, INV_OP_NO_GRAD, qgemm, "QGemm",
    "A a_scale a_zero_point B b_scale b_zero_point C? y_scale? y_zero_point?", "Y",
    "Gemm of quantized matrices, exact, quantized again or not",
    "y = com.microsoft.QGemm<transB = 1, alpha = 0.5>(uint8[2,3] a, float sa, uint8 za, int8[4,3] b, float[4] sb, "
    "int8[4] zb, int32[4] c, float sy, uint8 zy)",
    "y = com.microsoft.QGemm<transA = 1>(int8[3,2] a, float sa, int8 za, int8[3,4] b, float sb, int8 zb)")
INV_MICROSOFT(
    integer_to_float_lower, INV_OP_STRAIGHT | INV_OP_PRODUCT, integer_to_float, "MatMulIntegerToFloat",
    "A B a_scale b_scale a_zero_point? b_zero_point? bias?", "Y", "product of quantized matrices, dequantized",
    "y = com.microsoft.MatMulIntegerToFloat(uint8[2,3] a, int8[3,4] b, float sa, float[4] sb, uint8 za, int8[4] zb, "
    "float[4] c)",
    "y = com.microsoft.MatMulIntegerToFloat(int8[2,2,3] a, int8[3,4] b, float sa, float sb)")
INV_MICROSOFT(dynamic_matmul_lower, INV_OP_STRAIGHT | INV_OP_PRODUCT, dynamic_matmul, "DynamicQuantizeMatMul",
              "A B b_scale b_zero_point? bias?", "Y",
              "A, rounded to 8 bits by its range, times a quantized matrix; gradients pass straight through",
              "y = com.microsoft.DynamicQuantizeMatMul(float[2,3] a, int8[3,4] b, float[4] sb, int8[4] zb, float[4] c)",
              "y = com.microsoft.DynamicQuantizeMatMul(float[2,2,3] a, uint8[3,4] b, float sb)")

const inv_op_def *const inv_ops_ms_qlinear[] = {&qlinear_add_row,
                                                &qlinear_mul_row,
                                                &qlinear_sigmoid_row,
                                                &qlinear_leaky_relu_row,
                                                &qlinear_average_pool_row,
                                                &qlinear_global_pool_row,
                                                &qlinear_concat_row,
                                                &qlinear_softmax_row,
                                                &qlinear_where_row,
                                                &qgemm_row,
                                                &integer_to_float_row,
                                                &dynamic_matmul_row,
                                                NULL};
