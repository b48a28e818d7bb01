/* SPDX-License-Identifier: Apache-2.0
 * Sums, differences, scales and linear maps, solved for one operand. */
#include "invonnx/plugin.h"

/* x is wanted by the gradient of LeakyRelu, y by that of the product. */
#define CASE(statement) "g(float[4,6] in) => (z) { param float[6,5] B; " \
    "x = LeakyRelu<alpha = 0.9>(in); " statement "; z = MatMul(y, B) }"
/* b is an output, so it is at hand. */
#define PAIR(y, given)                                                                                                \
    "g(float[4,6] ina, float[4,6] inb) => (z, " given ") { param float[6,5] B; " \
    "a = LeakyRelu<alpha = 0.9>(ina); b = LeakyRelu<alpha = 0.9>(inb); " y \
    "; z = MatMul(y, B) }"
#define SQUARE "param float[3,3] W = {2, 0.5, 0, -1, 1, 0.25, 0.5, 0, -1.5}; "
#define LINEAR(statements) "g(float[4,3] in) => (z) { x = LeakyRelu<alpha = 0.9>(in); " statements " }"

#define RULE(id) static const inv_inverse_def id = { .size = sizeof(inv_inverse_def), .name = #id,

RULE(add_left)
    .kind = "", .match = "y = Add(a, b)", .solve = "a = Sub(y, b)", .frees = "a", .when = "same_shape(a, y)",
    .cases = INV_CASES(PAIR("y = Add(a, b)", "b"), PAIR("y = Add(b, a)", "b"), PAIR("y = Sum(a, b)", "a")),
    .doc = "y = a + b: a = y - b" };
RULE(sub_left)
    .kind = "", .match = "y = Sub(a, b)", .solve = "a = Add(y, b)", .frees = "a", .when = "same_shape(a, y)",
    .cases = INV_CASES(PAIR("y = Sub(a, b)", "b")),
    .doc = "y = a - b: a = y + b" };
RULE(sub_right)
    .kind = "", .match = "y = Sub(a, b)", .solve = "b = Sub(a, y)", .frees = "b", .when = "same_shape(b, y)",
    .cases = INV_CASES(PAIR("y = Sub(a, b)", "a")),
    .doc = "y = a - b: b = a - y" };
RULE(neg)
    .kind = "", .match = "y = Neg(x)", .solve = "x = Neg(y)", .frees = "x", .exactness = INV_EXACT,
    .cases = INV_CASES(CASE("y = Neg(x)")),
    .doc = "y = -x: x = -y" };

RULE(scale)
    .priority = 20, .match = "y = Mul(x, param(s))", .solve = "x = Div(y, s)", .frees = "x",
    .when = "same_shape(x, y); away_from_zero(s, 1e-6)", .gain = "max_inv(s)",
    .cases = INV_CASES(CASE("param float[6] s = {1.5, -2, 0.25, 1, 3, -0.5}; y = Mul(x, s)"),
                       CASE("param float[] s = {-0.125}; y = Mul(s, x)"),
                       CASE("param float[6] log_s; s = Exp(log_s); y = Mul(x, s)")),
    .doc = "y = x * s, s from parameters: x = y / s" };
RULE(scale_div)
    .kind = "scale", .priority = 20, .match = "y = Div(x, param(s))", .solve = "x = Mul(y, s)", .frees = "x",
    .when = "same_shape(x, y); away_from_zero(s, 1e-6)",
    .cases = INV_CASES(CASE("param float[6] s = {1.5, -2, 0.25, 1, 3, -0.5}; y = Div(x, s)")),
    .doc = "y = x / s, s from parameters: x = y * s" };

RULE(linear_square)
    .priority = 30, .frees = "x",
    .match = "y = MatMulT(x, param(W))", .solve = "x = LinearSolve<transB = transB>(y, W)",
    .when = "attr(transA) == 0; square(W); cond(W) < 1e5", .gain = "inv_norm(W)",
    .cases = INV_CASES(LINEAR(SQUARE "z = MatMul(x, W)"),
                       LINEAR(SQUARE "param float[3] c; z = Gemm<transB = 1>(x, W, c)"),
                       LINEAR(SQUARE "V = Transpose<perm = [1, 0]>(W); z = MatMul(x, V)")),
    .doc = "y = x W: x = y W^-1, by LU with partial pivoting in double" };
RULE(linear_tall)
    .priority = 30, .frees = "x",
    .match = "y = MatMulT(x, param(W))", .solve = "x = LinearSolve<transB = transB>(y, W)",
    .when = "attr(transA) == 0; tall(W); cond(W) < 1e5", .gain = "inv_norm(W)",
    .cases = INV_CASES(LINEAR("param float[3,5] W = {2, 0.5, 0, 1, -1, -1, 1, 0.25, 0, 2, 0.5, 0, -1.5, 1, 1}; "
                              "z = MatMul(x, W)"),
                       LINEAR("param float[4,3] W = {2, 0.5, 0, -1, 1, 0.25, 0.5, 0, -1.5, 1, 1, 1}; "
                              "z = Gemm<transB = 1>(x, W)")),
    .doc = "y = x W, more features out than in: x = y W^+, least squares by QR in double" };
RULE(linear_wide)
    .kind = "linear_wide_not_invertible", .priority = 10, .match = "y = MatMulT(x, param(W))", .frees = "x",
    .when = "attr(transA) == 0; wide(W)",
    .refuse = "the map gives fewer features than it takes, so inputs that differ can give the same output",
    .cases = INV_CASES(LINEAR("param float[3,2] W; z = MatMul(x, W)"),
                       LINEAR("param float[2,3] W; z = Gemm<transB = 1>(x, W)")),
    .doc = "y = x W with fewer features out than in has no inverse" };

INV_INVERSES(linear, &add_left, &sub_left, &sub_right, &neg, &scale, &scale_div, &linear_square, &linear_tall,
             &linear_wide)
