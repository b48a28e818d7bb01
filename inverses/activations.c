/* SPDX-License-Identifier: Apache-2.0
 * Strictly monotone activations. Where the derivative comes near zero the gain has no bound: such a rule names its
 * block, and recovery leaves it alone. */
#include "invonnx/plugin.h"

/* x is wanted by the gradient of LeakyRelu, y by that of the product. */
#define CASE(statement) "g(float[4,6] in) => (z) { param float[6,5] B; " \
    "x = LeakyRelu<alpha = 0.9>(in); " statement "; z = MatMul(y, B) }"

#define ACT(id, label, op, condition, magnifies, text, ...)                                                           \
    static const inv_inverse_def id = {.size = sizeof(inv_inverse_def),                                               \
                                       .name = label,                                                                 \
                                       .priority = 20,                                                                \
                                       .match = "y = " op "(x)",                                                      \
                                       .solve = "x = " op "Inverse<*>(y)",                                            \
                                       .frees = "x",                                                                  \
                                       .when = condition,                                                             \
                                       .gain = magnifies,                                                             \
                                       .logdet = "log_deriv",                                                         \
                                       .cases = INV_CASES(__VA_ARGS__),                                               \
                                       .doc = text};

ACT(leaky_relu, "leaky_relu", "LeakyRelu", "attr(alpha, 0.01) > 0", "inv_attr(alpha, 0.01)",
    "x = y where y > 0, else y / alpha",
    CASE("y = LeakyRelu<alpha = 0.1>(x)"), CASE("y = LeakyRelu(x)"), CASE("y = LeakyRelu<alpha = 2.0>(x)"))
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

static const inv_inverse_def prelu = {
    .size = sizeof(inv_inverse_def),
    .name = "prelu",
    .kind = "prelu_positive_slope",
    .priority = 20,
    .match = "y = PRelu(x, param(slope))",
    .solve = "x = PReluInverse(y, slope)",
    .frees = "x",
    .when = "same_shape(x, y); positive(slope)",
    .gain = "max_inv(slope)",
    .logdet = "log_deriv",
    .cases = INV_CASES(CASE("param float[1] a = {0.25}; y = PRelu(x, a)"),
                       CASE("param float[6] a = {0.25, 0.5, 1.5, 0.1, 1, 2}; y = PRelu(x, a)")),
    .doc = "x = y where y > 0, else y / slope",
};
static const inv_inverse_def relu = {
    .size = sizeof(inv_inverse_def),
    .name = "relu",
    .priority = 10,
    .match = "y = Relu(x)",
    .frees = "x",
    .refuse = "every negative input gives 0",
    .remedy = "LeakyRelu with a slope above zero, or PRelu with positive slopes",
    .cases = INV_CASES(CASE("y = Relu(x)")),
    .doc = "not injective",
};

INV_INVERSES(activations, &leaky_relu, &elu, &selu, &celu, &tanh_activation, &sigmoid, &softplus, &exponential, &prelu,
             &relu)
