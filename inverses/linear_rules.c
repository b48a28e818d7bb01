/* SPDX-License-Identifier: Apache-2.0
 * Sums, differences, scales and linear maps (1x1 convolutions among them), solved for one operand. */
#include "invonnx/plugin.h"

/* clang-format off */
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
    .logdet = "0",
    .cases = INV_CASES(PAIR("y = Add(a, b)", "b"), PAIR("y = Add(b, a)", "b"), PAIR("y = Sum(a, b)", "a")),
    .doc = "y = a + b: a = y - b" };
RULE(sub_left)
    .kind = "", .match = "y = Sub(a, b)", .solve = "a = Add(y, b)", .frees = "a", .when = "same_shape(a, y)",
    .logdet = "0",
    .cases = INV_CASES(PAIR("y = Sub(a, b)", "b")),
    .doc = "y = a - b: a = y + b" };
RULE(sub_right)
    .kind = "", .match = "y = Sub(a, b)", .solve = "b = Sub(a, y)", .frees = "b", .when = "same_shape(b, y)",
    .logdet = "0",
    .cases = INV_CASES(PAIR("y = Sub(a, b)", "a")),
    .doc = "y = a - b: b = a - y" };
RULE(neg)
    .kind = "", .match = "y = Neg(x)", .solve = "x = Neg(y)", .frees = "x", .exactness = INV_EXACT,
    .logdet = "0",
    .cases = INV_CASES(CASE("y = Neg(x)")),
    .doc = "y = -x: x = -y" };

RULE(cumulative_sum)
    .kind = "", .match = "y = CumSumAxis(x)", .solve = "x = CumSumInverse<*>(y)", .frees = "x",
    .when = "attr(exclusive, 0) == 0", .gain = "times(2)",
    .logdet = "0",
    .cases = INV_CASES(CASE("const int64[1] a = {1}; y = CumSum(x, a)"),
                       CASE("const int64[1] a = {0}; y = CumSum<reverse = 1>(x, a)")),
    .doc = "y = sums of x along an axis: x = differences of neighbours" };
RULE(scale)
    .priority = 20, .match = "y = Mul(x, param(s))", .solve = "x = Div(y, s)", .frees = "x",
    .when = "same_shape(x, y); away_from_zero(s, 1e-6)", .gain = "max_inv(s)",
    .logdet = "log_abs(s)",
    .cases = INV_CASES(CASE("param float[6] s = {1.5, -2, 0.25, 1, 3, -0.5}; y = Mul(x, s)"),
                       CASE("param float[] s = {-0.125}; y = Mul(s, x)"),
                       CASE("param float[6] log_s; s = Exp(log_s); y = Mul(x, s)"),
                       CASE("param float[8] p = {0, 0, 1.5, -2, 0.25, 1, 3, -0.5}; const int64[2] n = {2, 6}; "
                            "o, s = Split<axis = 0>(p, n); y = Mul(x, s)")),
    .doc = "y = x * s, s from parameters: x = y / s" };
RULE(scale_div)
    .kind = "scale", .priority = 20, .match = "y = Div(x, param(s))", .solve = "x = Mul(y, s)", .frees = "x",
    .when = "same_shape(x, y); away_from_zero(s, 1e-6)", .gain = "max_abs(s)",
    .logdet = "-log_abs(s)",
    .cases = INV_CASES(CASE("param float[6] s = {1.5, -2, 0.25, 1, 3, -0.5}; y = Div(x, s)")),
    .doc = "y = x / s, s from parameters: x = y * s" };

/* By a factor that is computed from inputs: only where operators bound it away from zero, and then by that bound. */
RULE(mul_bounded)
    .kind = "", .priority = 5, .match = "y = Mul(x, s)", .solve = "x = Div(y, s)", .frees = "x",
    .when = "same_shape(x, y); away_from_zero(s, 1e-6)", .gain = "max_inv(s)",
    .logdet = "log_abs(s)",
    .cases = INV_CASES(PAIR("t = Tanh(b); s = Exp(t); y = Mul(a, s)", "s"),
                       PAIR("t = Tanh(b); s = Exp(t); y = Mul(s, a)", "s")),
    .doc = "y = x * s, s bounded away from zero by how it is computed: x = y / s" };
RULE(div_bounded)
    .kind = "", .priority = 5, .match = "y = Div(x, s)", .solve = "x = Mul(y, s)", .frees = "x",
    .when = "same_shape(x, y); away_from_zero(s, 1e-6)", .gain = "max_abs(s)",
    .logdet = "-log_abs(s)",
    .cases = INV_CASES(PAIR("t = Tanh(b); s = Exp(t); y = Div(a, s)", "s")),
    .doc = "y = x / s, s bounded away from zero by how it is computed: x = y * s" };

/* By a factor of which only the sign is known: solvable, but with no bound on the gain, so recovery leaves it alone. */
RULE(mul_positive)
    .kind = "", .priority = 4, .match = "y = Mul(x, s)", .solve = "x = Div(y, s)", .frees = "x",
    .when = "same_shape(x, y); positive(s)", .gain = "max_inv(s)",
    .logdet = "log_abs(s)",
    .cases = INV_CASES(PAIR("s = Sigmoid(b); y = Mul(a, s)", "s"), PAIR("s = Exp(b); y = Mul(s, a)", "s")),
    .doc = "y = x * s, s > 0: x = y / s" };
RULE(div_positive)
    .kind = "", .priority = 4, .match = "y = Div(x, s)", .solve = "x = Mul(y, s)", .frees = "x",
    .when = "same_shape(x, y); positive(s)", .gain = "max_abs(s)",
    .logdet = "-log_abs(s)",
    .cases = INV_CASES(PAIR("s = Exp(b); y = Div(a, s)", "s")),
    .doc = "y = x / s, s > 0: x = y * s" };

/* x is an image here: the two steps of an ActNorm, in either order. */
#define ACTNORM(statements)                                                                                           \
    "g(float[4,3,2,2] in) => (z) { param float[2,5] B; param float[3,1,1] l; param float[1,3,1,1] b; "                \
    "x = LeakyRelu<alpha = 0.9>(in); s = Exp(l); " statements "; z = MatMul(y, B) }"
RULE(actnorm)
    .priority = 60, .match = "a = Add|Sub(x, param(b)); y = Mul|Div(a, param(s))", .frees = "x",
    .when = "same_shape(x, y); per_channel(b, x); per_channel(s, x); away_from_zero(s, 1e-6)",
    .cases = INV_CASES(ACTNORM("a = Add(x, b); y = Mul(a, s)"), ACTNORM("a = Sub(x, b); y = Mul(s, a)"),
                       ACTNORM("a = Add(b, x); y = Div(a, s)")),
    .doc = "y = (x + b) * s, a number of each per channel: x = y / s - b. Glow, arXiv 1807.03039" };
RULE(actnorm_scaled)
    .kind = "actnorm", .priority = 59, .match = "m = Mul|Div(x, param(s)); y = Add|Sub(m, param(b))", .frees = "x",
    .when = "same_shape(x, y); per_channel(b, x); per_channel(s, x); away_from_zero(s, 1e-6)",
    .cases = INV_CASES(ACTNORM("m = Mul(x, s); y = Add(m, b)")),
    .doc = "y = x * s + b, a number of each per channel: x = (y - b) / s" };
/* clang-format on */

/* clang-format off */
#define CONV1X1(statements) \
    "g(float[4,3,2,2] in) => (z) { param float[2,5] B; param float[3,3] V = {2, 0.5, 0, -1, 1, 0.25, 0.5, 0, -1.5}; " \
    "param float[3] b; const int64[4] k = {3, 3, 1, 1}; W = Reshape(V, k); x = LeakyRelu<alpha = 0.9>(in); " \
    statements "; z = MatMul(y, B) }"
/* clang-format on */
/* W = P L (U + diag(sign(s) |s|)), of which only L, U and log |s| are trained. */
#define PLU                                                                                                        \
    "g(float[4,3,2,2] in) => (z) { param float[2,5] B; param float[3,3] l = {7, 8, 9, 0.5, 7, 8, -0.25, 0.5, 7}; " \
    "param float[3,3] u = {7, 0.5, -1, 8, 9, 0.25, 7, 8, 9}; param float[3] r = {0.5, -0.25, 0.125}; "             \
    "const float[3,3] P = {0, 1, 0, 0, 0, 1, 1, 0, 0}; const float[3,3] E = {1, 0, 0, 0, 1, 0, 0, 0, 1}; "         \
    "const float[3,3] M = {0, 0, 0, 1, 0, 0, 1, 1, 0}; const float[3,3] N = {0, 1, 1, 0, 0, 1, 0, 0, 0}; "         \
    "const float[3] g = {1, -1, 1}; const int64[4] k = {3, 3, 1, 1}; x = LeakyRelu<alpha = 0.9>(in); "             \
    "a = Mul(l, M); L = Add(a, E); b = Mul(u, N); e = Exp(r); d = Mul(g, e); D = Mul(E, d); U = Add(b, D); "       \
    "c = MatMul(L, U); V = MatMul(P, c); W = Reshape(V, k); y = Conv(x, W); z = MatMul(y, B) }"
/* clang-format off */
RULE(invertible_conv1x1)
    .priority = 30, .frees = "x", .match = "y = ConvN(x, param(W))",
    .solve = "t = Transpose<perm = [0, 2, 3, 1]>(y); V = View<shape = matrix(W)>(W); "
             "u = LinearSolve<transB = 1>(t, V); x = Transpose<perm = [0, 3, 1, 2]>(u)",
    .when = "same_shape(x, y); attr(group) == 1; patches(W); attr(pads) == 0; square(W); cond(W) < 1e5",
    .gain = "inv_norm(W)",
    .logdet = "log_det(W)",
    .cases = INV_CASES(CONV1X1("y = Conv(x, W)"), PLU),
    .doc = "y = W x at every place: x = W^-1 y, by LU with partial pivoting in double. Glow, arXiv 1807.03039" };
RULE(invertible_conv1x1_bias)
    .kind = "invertible_conv1x1", .priority = 30, .frees = "x", .match = "y = ConvN(x, param(W), param(b))",
    .solve = "t = Transpose<perm = [0, 2, 3, 1]>(y); V = View<shape = matrix(W)>(W); c = Sub(t, b); "
             "u = LinearSolve<transB = 1>(c, V); x = Transpose<perm = [0, 3, 1, 2]>(u)",
    .when = "same_shape(x, y); attr(group) == 1; patches(W); attr(pads) == 0; square(W); cond(W) < 1e5",
    .gain = "inv_norm(W)",
    .logdet = "log_det(W)",
    .cases = INV_CASES(CONV1X1("y = Conv(x, W, b)")),
    .doc = "y = W x + b at every place: x = W^-1 (y - b)" };

/* Windows side by side: patches, each mapped by the same matrix, whose pseudo-inverse takes them back. */
#define IMAGE(shape, statements) "g(float[" shape "] in) => (y) { x = LeakyRelu<alpha = 0.9>(in); " statements " }"
#define SQUARE4 "param float[4,1,2,2] W = {2, 0.5, 0, -1, 1, 0.25, 0.5, 0, -1.5, 1, 1, 2, 0, -1, 0.5, 1}; "
#define TALL6 "param float[6,1,2,1] W = {2, 0.5, 0, -1, 1, 0.25, 0.5, 0, -1.5, 1, 1, 2}; "
#define PATCHES(id, prio, filter, side, solves, volume, text, ...)                                                    \
    RULE(id)                                                                                                          \
        .kind = "patch_conv", .priority = prio, .frees = "x", .match = "y = " filter,                                 \
        .solve = "P = FilterInverse<group = group>(W); " solves, .when = "patches(W); " side "; cond(W) < 1e5",       \
        .gain = "inv_norm(W)", .logdet = volume, .cases = INV_CASES(__VA_ARGS__), .doc = text };
/* clang-format on */
#define BACK(y) "x = ConvGradX<*, shape = shape(x)>(" y ", P)"
#define BIAS "B = View<shape = channel(y)>(b); c = Sub(y, B); "
#define AHEAD "x = ConvN<strides = strides, pads = pads, dilations = dilations, group = group>(y, P)"
PATCHES(patch_conv, 25, "ConvN(x, param(W))", "square(W)", BACK("y"), "log_det(W)",
        "y = W x for each patch of x: x = W^-1 y. Stride as large as the kernel; i-UNet, arXiv 2005.05220",
        IMAGE("2,1,4,6", SQUARE4 "y = Conv<strides = [2, 2]>(x, W)"),
        IMAGE("2,1,3,5", SQUARE4 "y = Conv<strides = [2, 2], pads = [0, 0, 1, 1]>(x, W)"),
        IMAGE("2,1,3,5", SQUARE4 "y = Conv<strides = [2, 2], auto_pad = \"SAME_LOWER\">(x, W)"),
        IMAGE("2,4,4,2", "param float[8,2,2,1] W = {1, 1, 1, 1, 1, -1, 1, -1, 1, 1, -1, -1, 1, -1, -1, 1, "
                         "0.5, 0.5, 0.5, 0.5, 0.5, -0.5, 0.5, -0.5, 0.5, 0.5, -0.5, -0.5, 0.5, -0.5, -0.5, 0.5}; "
                         "y = Conv<strides = [2, 1], group = 2>(x, W)"),
        IMAGE("2,1,8", "param float[2,1,2] W = {2, 1, -1, 3}; y = Conv<strides = [2]>(x, W)"),
        IMAGE("2,4,3,2", "param float[4,2,1,1] W = {2, 1, -1, 3, 1, 1, 1, -1}; y = Conv<group = 2>(x, W)"))
PATCHES(patch_conv_tall, 24, "ConvN(x, param(W))", "tall(W)", BACK("y"), NULL,
        "the same with more numbers per patch out than in, by the pseudo-inverse",
        IMAGE("2,1,4,3", TALL6 "y = Conv<strides = [2, 1]>(x, W)"),
        IMAGE("2,2,4,3", TALL6 "y = Conv<strides = [2, 1], group = 2>(x, W)"),
        IMAGE("1,1,4,2,2", "param float[3,1,2,1,1] W = {1, 1, 1, -1, 2, 1}; y = Conv<strides = [2, 1, 1]>(x, W)"))
PATCHES(patch_conv_bias, 25, "ConvN(x, param(W), param(b))", "square(W)", BIAS BACK("c"), "log_det(W)",
        "y = W x + b for each patch",
        IMAGE("2,1,4,6", SQUARE4 "param float[4] b = {1, 2, 3, 4}; y = Conv<strides = [2, 2]>(x, W, b)"))
PATCHES(patch_conv_tall_bias, 24, "ConvN(x, param(W), param(b))", "tall(W)", BIAS BACK("c"), NULL,
        "y = W x + b for each patch, by the pseudo-inverse",
        IMAGE("2,1,4,6", TALL6 "param float[6] b = {1, 2, 3, 4, 5, 6}; y = Conv<strides = [2, 1]>(x, W, b)"))
PATCHES(patch_conv_transposed, 25, "ConvGradX(x, param(W))", "square(W)", AHEAD, "log_det(W)",
        "each place of x gives a patch of y; ConvTranspose with a stride as large as the kernel",
        IMAGE("2,4,2,3", SQUARE4 "y = ConvTranspose<strides = [2, 2]>(x, W)"),
        IMAGE("2,4,2,3", SQUARE4 "param float[1] b; y = ConvTranspose<strides = [2, 2]>(x, W, b)"),
        IMAGE("2,2,4", "param float[2,1,2] W = {2, 1, -1, 3}; y = ConvTranspose<strides = [2], "
                       "output_padding = [1]>(x, W)"))
PATCHES(patch_conv_transposed_tall, 24, "ConvGradX(x, param(W))", "tall(W)", AHEAD, NULL,
        "the same with more numbers per patch than at the place, by the pseudo-inverse",
        IMAGE("2,1,2,3", "param float[1,1,2,2] W = {2, 1, -1, 3}; y = ConvTranspose<strides = [2, 2]>(x, W)"),
        IMAGE("2,4,2,3", "param float[4,2,1,2] W = {2, 1, -1, 3, 1, 1, 1, -1, 2, 0, 1, 5, -1, 0.5, 0.25, 1}; "
                         "y = ConvTranspose<strides = [1, 2], group = 2>(x, W)"))
/* clang-format off */
RULE(patch_conv_wide)
    .kind = "patch_conv", .priority = 10, .match = "y = ConvN|ConvGradX(x, param(W))", .frees = "x",
    .when = "patches(W); wide(W)",
    .refuse = "each patch gives fewer numbers than it takes, so inputs that differ can give the same output",
    .cases = INV_CASES(IMAGE("2,1,4,6", "param float[3,1,2,2] W; y = Conv<strides = [2, 2]>(x, W)"),
                       IMAGE("2,4,2,3", "param float[4,1,1,2] W; y = ConvTranspose<strides = [1, 2]>(x, W)")),
    .doc = "patches with fewer channels than entries have no inverse" };

/* The matrix on the left, along the last axis but one, or x turned before or behind the product, which a transposition
 * next to it becomes: as MatMulT has it, `given` and `turned` are its flags of the operand that is W and of x. */
#define LEFT(statements)                                                                                              \
    "g(float[2,3,4] in) => (z) { param float[4,2] B; x = LeakyRelu<alpha = 0.9>(in); " statements                     \
    "; z = MatMul(y, B) }"
#define TURNED(statements)                                                                                            \
    "g(float[2,3,4] in) => (y) { x = LeakyRelu<alpha = 0.9>(in); t = Transpose<perm = [0, 2, 1]>(x); " statements " }"
#define ASIDE(id, label, product, side, flags, steps, volume, text, ...)                                              \
    RULE(id)                                                                                                          \
        .kind = label, .priority = 29, .frees = "x", .match = "y = MatMulT(" product ")", .solve = steps,             \
        .when = "same_rank(x, y); " flags "; " side "; cond(W) < 1e5",                                                \
        .gain = "inv_norm(W)", .logdet = volume, .cases = INV_CASES(__VA_ARGS__), .doc = text };
#define FLAGS(a, b) "attr(transA) == " a "; attr(transB) == " b
#define FROM_LEFT(id, label, side, given, transposed, volume, text, ...)                                              \
    ASIDE(id, label, "param(W), x", side, FLAGS(given, "0"), "t = Transpose<perm = swap(y)>(y); "                     \
          "u = LinearSolve<transB = " transposed ">(t, W); x = Transpose<perm = swap(y)>(u)", volume, text,           \
          __VA_ARGS__)
#define FROM_LEFT_OF_TURNED(id, label, side, given, transposed, volume, text, ...)                                    \
    ASIDE(id, label, "param(W), x", side, FLAGS(given, "1"),                                                          \
          "t = Transpose<perm = swap(y)>(y); x = LinearSolve<transB = " transposed ">(t, W)", volume, text, __VA_ARGS__)
#define OF_TURNED(id, label, side, volume, text, ...)                                                                 \
    ASIDE(id, label, "x, param(W)", side, "attr(transA) == 1",                                                        \
          "u = LinearSolve<transB = transB>(y, W); x = Transpose<perm = swap(y)>(u)", volume, text, __VA_ARGS__)
#define TALL53 "param float[5,3] W = {2, 0.5, 0, 1, -1, -1, 1, 0.25, 0, 2, 0.5, 0, -1.5, 1, 1}; "
#define TALL43 "param float[4,3] W = {2, 0.5, 0, -1, 1, 0.25, 0.5, 0, -1.5, 1, 1, 1}; "
#define FROM_TALL(w, statements)                                                                                      \
    "g(float[2,3,4] in) => (y) { x = LeakyRelu<alpha = 0.9>(in); " w statements " }"
FROM_LEFT(linear_square_left, "linear_square", "square(W)", "0", "1", "log_det(W)",
          "y = W x: x = W^-1 y, columns for rows",
          LEFT(SQUARE "y = MatMul(W, x)"))
/* clang-format on */
FROM_LEFT(linear_square_left_turned, "linear_square", "square(W)", "1", "0", "log_det(W)", "y = W' x: x = W'^-1 y",
          LEFT(SQUARE "V = Transpose<perm = [1, 0]>(W); y = MatMul(V, x)"))
FROM_LEFT_OF_TURNED(linear_square_left_of_turned, "linear_square", "square(W)", "0", "1", "log_det(W)",
                    "y = W x': x = (W^-1 y)'",
                    "g(float[2,4,3] in) => (y) { x = LeakyRelu<alpha = 0.9>(in); " SQUARE
                    "t = Transpose<perm = [0, 2, 1]>(x); y = MatMul(W, t) }")
FROM_LEFT_OF_TURNED(linear_square_left_both_turned, "linear_square", "square(W)", "1", "0", NULL,
                    "y = W' x': x = (W'^-1 y)'",
                    "g(float[4,3] in) => (y) { x = LeakyRelu<alpha = 0.9>(in); " SQUARE
                    "y = Gemm<transA = 1, transB = 1>(W, x) }")
OF_TURNED(linear_square_of_turned, "linear_square", "square(W)", "log_det(W)", "y = x' W: x = (y W^-1)'",
          TURNED(SQUARE "y = MatMul(t, W)"),
          "g(float[3,4] in) => (y) { x = LeakyRelu<alpha = 0.9>(in); param float[3] c; " SQUARE
          "y = Gemm<transA = 1, transB = 1, alpha = 2.0>(x, W, c) }")
/* Which of its sides is the longer one is seen by the flag of the second operand, as if W were on the right. */
FROM_LEFT(linear_tall_left, "linear_tall", "wide(W)", "0", "1", NULL,
          "y = W x, W with more rows than columns: x = W^+ y", FROM_TALL(TALL53, "y = MatMul(W, x)"))
FROM_LEFT(linear_tall_left_turned, "linear_tall", "tall(W)", "1", "0", NULL,
          "y = W' x, W with more columns than rows: x = W'^+ y",
          FROM_TALL("param float[3,4] W = {2, -1, 0.5, 1, 0.5, 1, 0, 1, 0, 0.25, -1.5, 1}; ",
                    "V = Transpose(W); y = MatMul(V, x)"))
FROM_LEFT_OF_TURNED(linear_tall_left_of_turned, "linear_tall", "tall(W)", "0", "1", NULL,
                    "y = W x', W with more rows than columns: x = (W^+ y)'",
                    "g(float[4,3] in) => (y) { x = LeakyRelu<alpha = 0.9>(in); " TALL43
                    "t = Transpose(x); y = MatMul(W, t) }")
FROM_LEFT_OF_TURNED(linear_tall_left_both_turned, "linear_tall", "wide(W)", "1", "0", NULL,
                    "y = W' x', W with more columns than rows: x = (W'^+ y)'",
                    "g(float[2,3] in) => (y) { x = LeakyRelu<alpha = 0.9>(in); "
                    "param float[3,4] W = {2, -1, 0.5, 1, 0.5, 1, 0, 1, 0, 0.25, -1.5, 1}; "
                    "y = Gemm<transA = 1, transB = 1>(W, x) }")
OF_TURNED(linear_tall_of_turned, "linear_tall", "tall(W)", NULL, "y = x' W, more features out than in: x = (y W^+)'",
          TURNED("param float[3,4] W = {2, -1, 0.5, 1, 0.5, 1, 0, 1, 0, 0.25, -1.5, 1}; y = MatMul(t, W)"),
          TURNED(TALL43 "V = Transpose(W); y = MatMul(t, V)"))

/* clang-format off */
RULE(linear_square)
    .priority = 30, .frees = "x",
    .match = "y = MatMulT(x, param(W))", .solve = "x = LinearSolve<transB = transB>(y, W)",
    .when = "attr(transA) == 0; square(W); cond(W) < 1e5", .gain = "inv_norm(W)",
    .logdet = "log_det(W)",
    .cases = INV_CASES(LINEAR(SQUARE "z = MatMul(x, W)"),
                       LINEAR(SQUARE "param float[3] c; z = Gemm<transB = 1>(x, W, c)"),
                       LINEAR(SQUARE "V = Transpose<perm = [1, 0]>(W); z = MatMul(x, V)")),
    .doc = "y = x W: x = y W^-1, by LU with partial pivoting in double" };
RULE(linear_solved)
    .kind = "", .priority = 30, .frees = "x",
    .match = "y = LinearSolve(x, param(W))", .solve = "x = MatMulT<*>(y, W)",
    .when = "same_shape(x, y); cond(W) < 1e5", .gain = "norm(W)",
    .logdet = "-log_det(W)",
    .cases = INV_CASES(LINEAR(SQUARE "z = LinearSolve(x, W)"), LINEAR(SQUARE "z = LinearSolve<transB = 1>(x, W)")),
    .doc = "y = x W^-1, of a model in its inverse direction: x = y W" };
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
    .when = "wide(W)",
    .refuse = "the map gives fewer features than it takes, so inputs that differ can give the same output",
    .remedy = "at least as many features out as in",
    .cases = INV_CASES(LINEAR("param float[3,2] W; z = MatMul(x, W)"),
                       LINEAR("param float[2,3] W; z = Gemm<transB = 1>(x, W)"),
                       LINEAR("param float[4,2] W; z = Gemm<transA = 1>(x, W)")),
    .doc = "y = x W with fewer features out than in has no inverse" };

/* d is one number per row, or several for several directions at once. V U = 2 holds as exactly as the weights are
 * rounded, or trained since; what is missing is seen in r, which else is 2 p, and taken back to first order:
 * (1 - U V)^-1 = 1 - U (V U - 1)^-1 V, and (1 + E)^-1 is 1 - E but for E^2. */
#define REFLECTED(statements)                                                                                         \
    "g(float[4,3] in) => (z) { param float[3,5] B; param float[3,1] v = {0.5, -1, 2}; "                               \
    "x = LeakyRelu<alpha = 0.9>(in); q = Mul(v, v); n = ReduceSum<keepdims = 0>(q); w = Div(v, n); "                   \
    "u = Add(w, w); " statements "; z = MatMul(y, B) }"
RULE(householder)
    .priority = 70, .frees = "x",
    .match = "d = MatMulT(x, param(U)); o = MatMulT(d, param(V)); y = Sub(x, o)",
    .solve = "p = MatMulT<transB = d.transB>(y, U); q = MatMulT<transB = o.transB>(p, V); "
             "r = MatMulT<transB = d.transB>(q, U); e = Sub(r, p); f = Sub(e, p); c = Sub(p, f); "
             "w = MatMulT<transB = o.transB>(c, V); x = Sub(y, w)",
    .when = "attr(d.transA) == 0; attr(o.transA) == 0; reflects(d, o)",
    .logdet = "0",
    .cases = INV_CASES(REFLECTED("d = MatMul(x, u); t = Transpose(v); o = MatMul(d, t); y = Sub(x, o)"),
                       REFLECTED("d = MatMul(x, v); o = Gemm<transB = 1>(d, u); y = Sub(x, o)")),
    .doc = "y = x - 2 (x v) v' / |v|^2, a reflection: x comes of y in the same way. Tomczak and Welling 2016 "
           "(arXiv 1611.09630)" };
RULE(householder_outer)
    .kind = "householder", .priority = 69, .frees = "x",
    .match = "d = MatMulT(x, param(u)); o = Mul(d, param(v)); y = Sub(x, o)",
    .solve = "p = MatMulT<transB = d.transB>(y, u); q = Mul(p, v); r = MatMulT<transB = d.transB>(q, u); "
             "e = Sub(r, p); f = Sub(e, p); c = Sub(p, f); w = Mul(c, v); x = Sub(y, w)",
    .when = "attr(d.transA) == 0; reflects(d, o)",
    .logdet = "0",
    .cases = INV_CASES(REFLECTED("d = MatMul(x, v); t = Transpose(u); o = Mul(d, t); y = Sub(x, o)"),
                       REFLECTED("const int64[1] k = {3}; const int64[1] l = {1}; f = Reshape(v, k); "
                                 "h = Reshape(u, k); d = MatMul(x, f); c = Unsqueeze(d, l); o = Mul(c, h); "
                                 "y = Sub(x, o)")),
    .doc = "the same with the outer product as a product of a column and a row" };

INV_INVERSES(linear, &householder, &householder_outer, &add_left, &sub_left, &sub_right, &neg, &cumulative_sum, &scale,
             &scale_div, &mul_bounded, &div_bounded, &mul_positive, &div_positive, &actnorm, &actnorm_scaled,
             &invertible_conv1x1, &invertible_conv1x1_bias, &linear_square, &linear_solved, &linear_tall,
             &linear_wide, &patch_conv, &patch_conv_tall, &patch_conv_bias, &patch_conv_tall_bias,
             &patch_conv_transposed, &patch_conv_transposed_tall, &patch_conv_wide, &linear_square_left,
             &linear_square_left_turned, &linear_square_left_of_turned, &linear_square_left_both_turned,
             &linear_square_of_turned, &linear_tall_left, &linear_tall_left_turned, &linear_tall_left_of_turned,
             &linear_tall_left_both_turned, &linear_tall_of_turned)
/* clang-format on */
