/* SPDX-License-Identifier: Apache-2.0
 * Strictly monotone activations. Where the derivative comes near zero the gain has no bound: such a rule names its
 * block, and recovery leaves it alone. */
#include "invonnx/plugin.h"

#define ACT(id, label, op, condition, magnifies, text)                                                                       \
    static const inv_inverse_def id = {.size = sizeof(inv_inverse_def),                                               \
                                       .name = label,                                                                 \
                                       .priority = 20,                                                                \
                                       .match = "y = " op "(x)",                                                      \
                                       .solve = "x = " op "Inverse<*>(y)",                                            \
                                       .frees = "x",                                                                  \
                                       .when = condition,                                                             \
                                       .gain = magnifies,                                                             \
                                       .doc = text};

ACT(leaky_relu, "leaky_relu", "LeakyRelu", "attr(alpha) > 0", "inv_attr(alpha)", "x = y where y > 0, else y / alpha")
ACT(elu, "elu", "Elu", "attr(alpha) > 0", "unbounded", "x = y where y > 0, else log(1 + y / alpha)")
ACT(selu, "selu", "Selu", "attr(alpha) > 0; attr(gamma) > 0", "unbounded", "inverse of gamma * elu")
ACT(celu, "celu", "Celu", "attr(alpha) > 0", "unbounded", "x = y where y > 0, else alpha * log(1 + y / alpha)")
ACT(tanh_activation, "tanh", "Tanh", NULL, "unbounded", "x = atanh(y)")
ACT(sigmoid, "sigmoid", "Sigmoid", NULL, "unbounded", "x = log(y / (1 - y))")
ACT(softplus, "softplus", "Softplus", NULL, "unbounded", "x = log(exp(y) - 1)")
ACT(exponential, "exp", "Exp", NULL, "unbounded", "x = log(y)")

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
    .doc = "x = y where y > 0, else y / slope",
};
static const inv_inverse_def relu = {
    .size = sizeof(inv_inverse_def),
    .name = "relu",
    .priority = 10,
    .match = "y = Relu(x)",
    .frees = "x",
    .refuse = "every negative input gives 0",
    .doc = "not injective",
};

INV_INVERSES(activations, &leaky_relu, &elu, &selu, &celu, &tanh_activation, &sigmoid, &softplus, &exponential, &prelu,
             &relu)
