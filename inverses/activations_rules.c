/* SPDX-License-Identifier: Apache-2.0
 * Strictly monotone activations. Where the derivative comes near zero the gain has no bound: such a rule names its
 * block, and recovery leaves it alone. */
#include "invonnx/plugin.h"

/* clang-format off */
/* x is wanted by the gradient of LeakyRelu, y by that of the product. */
#define CASE(statement) "g(float[4,6] in) => (z) { param float[6,5] B; " \
    "x = LeakyRelu<alpha = 0.9>(in); " statement "; z = MatMul(y, B) }"
/* clang-format on */

#define ACT(id, label, op, condition, magnifies, text, ...)                \
    static const inv_inverse_def id = {.size = sizeof(inv_inverse_def),    \
                                       .name = label,                      \
                                       .priority = 20,                     \
                                       .match = "y = " op "(x)",           \
                                       .solve = "x = " op "Inverse<*>(y)", \
                                       .frees = "x",                       \
                                       .when = condition,                  \
                                       .gain = magnifies,                  \
                                       .logdet = "log_deriv",              \
                                       .cases = INV_CASES(__VA_ARGS__),    \
                                       .doc = text};

/* clang-format off */
ACT(leaky_relu, "leaky_relu", "LeakyRelu", "attr(alpha, 0.01) > 0", "inv_attr(alpha, 0.01)",
    "x = y where y > 0, else y / alpha",
    CASE("y = LeakyRelu<alpha = 0.1>(x)"), CASE("y = LeakyRelu(x)"), CASE("y = LeakyRelu<alpha = 2.0>(x)"))
/* clang-format on */
ACT(elu, "elu", "Elu", "attr(alpha, 1) > 0", "unbounded", "x = y where y > 0, else log(1 + y / alpha)",
    CASE("y = Elu(x)"), CASE("y = Elu<alpha = 0.5>(x)"))
ACT(selu, "selu", "Selu", "attr(alpha, 1.67326) > 0; attr(gamma, 1.0507) > 0", "unbounded", "inverse of gamma * elu",
    CASE("y = Selu(x)"), CASE("y = Selu<alpha = 1.2, gamma = 0.8>(x)"))
ACT(celu, "celu", "Celu", "attr(alpha, 1) > 0", "unbounded", "x = y where y > 0, else alpha * log(1 + y / alpha)",
    CASE("y = Celu(x)"), CASE("y = Celu<alpha = 2.0>(x)"))
ACT(tanh_activation, "tanh", "Tanh", NULL, "unbounded", "x = atanh(y)", CASE("y = Tanh(x)"))
ACT(sigmoid, "sigmoid", "Sigmoid", NULL, "unbounded", "x = log(y / (1 - y))", CASE("y = Sigmoid(x)"))
ACT(softplus, "softplus", "Softplus", NULL, "unbounded", "x = log(exp(y) - 1)", CASE("y = Softplus(x)"))
ACT(exponential, "exp", "Exp", NULL, "unbounded", "x = log(y)", CASE("y = Exp(x)"))

/* Of what is positive, and wanted by the gradient of what gives it. */
#define POSITIVE(statement) \
    "g(float[4,6] in) => (z) { param float[6,5] B; x = Softplus(in); " statement "; z = MatMul(y, B) }"
/* x lies around the middle, as far as the inputs of a test, between -1 and 1, times the size. */
#define AROUND(middle, size, statement)                                                                          \
    "g(float[4,6] in) => (z) { param float[6,5] B; v = Mul(in, float[] {" size "}); u = Add(v, float[] {" middle \
    "}); x = LeakyRelu<alpha = 0.9>(u); " statement "; z = MatMul(y, B) }"
ACT(logarithm, "log", "Log", NULL, "expected_abs(x)", "x = e^y", AROUND("2", "1", "y = Log(x)"))
ACT(square_root, "sqrt", "Sqrt", NULL, "unbounded", "x = y^2", POSITIVE("y = Sqrt(x)"))
ACT(softsign, "softsign", "Softsign", NULL, "unbounded", "x = y / (1 - |y|)", CASE("y = Softsign(x)"))
ACT(sinh_activation, "sinh", "Sinh", NULL, NULL, "x = asinh(y)", CASE("y = Sinh(x)"))
ACT(asinh_activation, "asinh", "Asinh", NULL, "unbounded", "x = sinh(y)", CASE("y = Asinh(x)"))

/* The inverse is an operator of its own. What maps infinity to ordinary numbers, as tanh(y) does, is no inverse here: a
 * value that has overflowed is to be seen. */
#define OTHER(id, label, op, back, magnifies, text, ...)                \
    static const inv_inverse_def id = {.size = sizeof(inv_inverse_def), \
                                       .name = label,                   \
                                       .priority = 20,                  \
                                       .match = "y = " op "(x)",        \
                                       .solve = "x = " back "(y)",      \
                                       .frees = "x",                    \
                                       .gain = magnifies,               \
                                       .logdet = "log_deriv",           \
                                       .cases = INV_CASES(__VA_ARGS__), \
                                       .doc = text};
OTHER(arctangent, "atan", "Atan", "Tan", "unbounded", "x = tan(y)", CASE("y = Atan(x)"))

/* y - y is zero, and NaN where y has overflowed. */
static const inv_inverse_def reciprocal = {
    .size = sizeof(inv_inverse_def),
    .name = "reciprocal",
    .priority = 20,
    .match = "y = Reciprocal(x)",
    .solve = "r = Reciprocal(y); z = Sub(y, y); x = Add(r, z)",
    .frees = "x",
    .gain = "unbounded",
    .logdet = "log_deriv",
    .cases = INV_CASES(AROUND("2", "1", "y = Reciprocal(x)")),
    .doc = "x = 1 / y",
};

/* What maps the open interval from 0 to 1 onto all numbers, before the first layer of a flow over pixels.
 * y - y makes what has overflowed NaN, as with the reciprocal. */
#define LOGIT(id, prio, pattern, back, volume, text, statements)                                      \
    static const inv_inverse_def id = {                                                               \
        .size = sizeof(inv_inverse_def),                                                              \
        .name = #id,                                                                                  \
        .kind = "logit",                                                                              \
        .priority = prio,                                                                             \
        .match = pattern,                                                                             \
        .solve = back,                                                                                \
        .frees = "x",                                                                                 \
        .when = "same_shape(x, y); number(k) == 1",                                                   \
        .logdet = volume,                                                                             \
        .cases = INV_CASES("g(float[4,6] in) => (z) { param float[6,5] B; "                           \
                           "h = Sigmoid(in); g = Mul(h, float[] {0.9}); x = Add(g, float[] {0.05}); " \
                           "o = Sub(float[] {1}, x); " statements "; z = MatMul(y, B) }"),            \
        .doc = text};
LOGIT(logit, 74, "o = Sub(param(k), x); a = Log(x); b = Log(o); y = Sub(a, b)",
      "s = Sigmoid(y); u = Sub(y, y); x = Add(s, u)", "-log_abs(x); -log_abs(o)",
      "y = log x - log (1 - x): x = 1 / (1 + e^-y)", "a = Log(x); b = Log(o); y = Sub(a, b)")
LOGIT(logit_negated, 73, "o = Sub(param(k), x); a = Log(x); b = Log(o); y = Sub(b, a)",
      "n = Neg(y); s = Sigmoid(n); u = Sub(y, y); x = Add(s, u)", "-log_abs(x); -log_abs(o)",
      "y = log (1 - x) - log x: x = 1 / (1 + e^y)", "a = Log(x); b = Log(o); y = Sub(b, a)")
LOGIT(logit_of_odds, 72, "o = Sub(param(k), x); q = Div(x, o); y = Log(q)",
      "s = Sigmoid(y); u = Sub(y, y); x = Add(s, u)", "-log_abs(x); -log_abs(o)",
      "y = log(x / (1 - x)): x = 1 / (1 + e^-y)", "q = Div(x, o); y = Log(q)")
LOGIT(odds, 71, "o = Sub(param(k), x); y = Div(x, o)", "d = Add(y, k); x = Div(y, d)", "-log_abs(o); -log_abs(o)",
      "y = x / (1 - x): x = y / (1 + y)", "y = Div(x, o)")

static const inv_inverse_def odd_power = {
    .size = sizeof(inv_inverse_def),
    .name = "odd_power",
    .priority = 20,
    .match = "y = Pow(x, param(k))",
    .solve = "e = Reciprocal(k); a = Abs(y); r = Pow(a, e); s = Sign(y); x = Mul(r, s)",
    .frees = "x",
    .when = "same_shape(x, y); odd(k)",
    .gain = "unbounded",
    .logdet = "log_deriv",
    .cases = INV_CASES(CASE("y = Pow(x, float[] {3})"), CASE("const int64[] k = {5}; y = Pow(x, k)")),
    .doc = "y = x^k, k = 1, 3, 5, ...: x = sign(y) |y|^(1/k)",
};
static const inv_inverse_def positive_power = {
    .size = sizeof(inv_inverse_def),
    .name = "positive_power",
    .priority = 19,
    .match = "y = Pow(x, param(k))",
    .solve = "e = Reciprocal(k); x = Pow(y, e)",
    .frees = "x",
    .when = "same_shape(x, y); positive(k); positive(x)",
    .gain = "unbounded",
    .logdet = "log_deriv",
    .cases = INV_CASES(POSITIVE("y = Pow(x, float[] {1.5})")),
    .doc = "y = x^k, x > 0 and k > 0: x = y^(1/k)",
};

static const inv_inverse_def prelu = {
    .size = sizeof(inv_inverse_def),
    .name = "prelu",
    .kind = "prelu_positive_slope",
    .priority = 20,
    .match = "y = PRelu(x, param(slope))",
    .solve = "x = PReluInverse(y, slope)",
    .frees = "x",
    .when = "same_shape(x, y); positive(slope)",
    .gain = "inv_slope(slope)",
    .logdet = "log_deriv",
    .cases = INV_CASES(CASE("param float[1] a = {0.25}; y = PRelu(x, a)"),
                       CASE("param float[6] a = {0.25, 0.5, 1.5, 0.1, 1, 2}; y = PRelu(x, a)")),
    .doc = "x = y where y > 0, else y / slope",
};
/* What gives one result for inputs that differ. */
#define NOT_INJECTIVE(id, label, op, why, advice, text, ...)            \
    static const inv_inverse_def id = {.size = sizeof(inv_inverse_def), \
                                       .name = label,                   \
                                       .priority = 10,                  \
                                       .match = "y = " op "(x)",        \
                                       .frees = "x",                    \
                                       .refuse = why,                   \
                                       .remedy = advice,                \
                                       .cases = INV_CASES(__VA_ARGS__), \
                                       .doc = text};

NOT_INJECTIVE(relu, "relu", "Relu", "every negative input gives 0",
              "LeakyRelu with a slope above zero, or PRelu with positive slopes", "not injective", CASE("y = Relu(x)"))
NOT_INJECTIVE(clip, "clip", "ClipRange", "every input beyond a bound gives the bound",
              "a function that grows everywhere, such as Tanh or Sigmoid", "not injective beyond its bounds",
              CASE("y = Clip<min = -0.5, max = 0.5>(x)"))
NOT_INJECTIVE(absolute, "abs", "Abs", "x and -x give the same output", "the sign as another output", "not injective",
              CASE("y = Abs(x)"))
NOT_INJECTIVE(sine, "sin", "Sin", "it repeats itself every 2 pi, so inputs that differ give the same output",
              "a function that grows everywhere, such as Tanh", "not injective", CASE("y = Sin(x)"))
NOT_INJECTIVE(cosine, "cos", "Cos", "it repeats itself every 2 pi, so inputs that differ give the same output",
              "a function that grows everywhere, such as Tanh", "not injective", CASE("y = Cos(x)"))

INV_INVERSES(activations, &leaky_relu, &elu, &selu, &celu, &tanh_activation, &sigmoid, &softplus, &exponential,
             &logarithm, &square_root, &softsign, &sinh_activation, &asinh_activation, &arctangent, &reciprocal,
             &odd_power, &positive_power, &prelu, &relu, &clip, &absolute, &sine, &cosine, &logit, &logit_negated,
             &logit_of_odds, &odds)
