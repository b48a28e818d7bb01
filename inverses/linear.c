/* SPDX-License-Identifier: Apache-2.0
 * Sums, differences, scales and linear maps, solved for one operand. */
#include "invonnx/plugin.h"

#define RULE(id) static const inv_inverse_def id = { .size = sizeof(inv_inverse_def), .name = #id,

RULE(add_left)
    .kind = "", .match = "y = Add(a, b)", .solve = "a = Sub(y, b)", .frees = "a", .when = "same_shape(a, y)",
    .doc = "y = a + b: a = y - b" };
RULE(sub_left)
    .kind = "", .match = "y = Sub(a, b)", .solve = "a = Add(y, b)", .frees = "a", .when = "same_shape(a, y)",
    .doc = "y = a - b: a = y + b" };
RULE(sub_right)
    .kind = "", .match = "y = Sub(a, b)", .solve = "b = Sub(a, y)", .frees = "b", .when = "same_shape(b, y)",
    .doc = "y = a - b: b = a - y" };
RULE(neg)
    .kind = "", .match = "y = Neg(x)", .solve = "x = Neg(y)", .frees = "x", .exactness = INV_EXACT,
    .doc = "y = -x: x = -y" };

RULE(scale)
    .priority = 20, .match = "y = Mul(x, param(s))", .solve = "x = Div(y, s)", .frees = "x",
    .when = "same_shape(x, y); away_from_zero(s, 1e-6)", .gain = "max_inv(s)",
    .doc = "y = x * s, s from parameters: x = y / s" };
RULE(scale_div)
    .kind = "scale", .priority = 20, .match = "y = Div(x, param(s))", .solve = "x = Mul(y, s)", .frees = "x",
    .when = "same_shape(x, y); away_from_zero(s, 1e-6)",
    .doc = "y = x / s, s from parameters: x = y * s" };

RULE(linear_square)
    .priority = 30, .match = "y = MatMulT(x, param(W))", .solve = "x = LinearSolve<transB = transB>(y, W)", .frees = "x",
    .when = "attr(transA) == 0; square(W); cond(W) < 1e5", .gain = "inv_norm(W)",
    .doc = "y = x W: x = y W^-1, by LU with partial pivoting in double" };
RULE(linear_tall)
    .priority = 30, .match = "y = MatMulT(x, param(W))", .solve = "x = LinearSolve<transB = transB>(y, W)", .frees = "x",
    .when = "attr(transA) == 0; tall(W); cond(W) < 1e5", .gain = "inv_norm(W)",
    .doc = "y = x W, more features out than in: x = y W^+, least squares by QR in double" };
RULE(linear_wide)
    .kind = "linear_wide_not_invertible", .priority = 10, .match = "y = MatMulT(x, param(W))", .frees = "x",
    .when = "attr(transA) == 0; wide(W)",
    .refuse = "the map gives fewer features than it takes, so inputs that differ can give the same output",
    .doc = "y = x W with fewer features out than in has no inverse" };

INV_INVERSES(linear, &add_left, &sub_left, &sub_right, &neg, &scale, &scale_div, &linear_square, &linear_tall,
             &linear_wide)
