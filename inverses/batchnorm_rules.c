/* SPDX-License-Identifier: Apache-2.0
 * Batch normalisation, solved for its input from the batch's (kept) or the running statistics.
 *     y = (x - mean) / sqrt(var + eps) * scale + bias
 *     x = (y - bias) / scale * sqrt(var + eps) + mean        In-Place ABN, arXiv 1712.02616 */
#include "invonnx/plugin.h"

#define CASE(attributes) CASE_OF("", "in", attributes)
#define CASE_OF(before, input, attributes)                                                                 \
    "g(float[4,3,2,2] in) => (z) { param float[2,5] B; param float[3] scale = {1.5, -0.5, 0.25}; "         \
    "param float[3] bias; param float[3] mean = {0.1, -0.2, 0}; param float[3] var = {0.5, 1, 2}; " before \
    "x = LeakyRelu<alpha = 0.9>(" input "); "                                                              \
    "y = BatchNormalization<" attributes ">(x, scale, bias, mean, var); z = MatMul(y, B) }"

static const inv_inverse_def batchnorm = {
    .size = sizeof(inv_inverse_def),
    .name = "batchnorm",
    .priority = 30,
    .match = "y = BatchNormApply(x, param(scale), param(bias), mean, var)",
    .solve = "x = BatchNormInverse<epsilon = epsilon>(y, scale, bias, mean, var)",
    .frees = "x",
    .when = "attr(training) == 1; away_from_zero(scale, 1e-3)",
    .gain = "max_inv(scale, var)",
    .cases = INV_CASES(CASE("training_mode = 1"), CASE("training_mode = 1, epsilon = 0.1, momentum = 0.5"),
                       CASE_OF("w = Mul(in, float[] {30}); ", "w", "training_mode = 1")),
    .doc = "training mode, from the batch's mean and variance, which are kept",
};
static const inv_inverse_def batchnorm_eval = {
    .size = sizeof(inv_inverse_def),
    .name = "batchnorm_eval",
    .priority = 30,
    .match = "y = BatchNormApply(x, param(scale), param(bias), param(mean), param(var))",
    .solve = "x = BatchNormInverse<epsilon = epsilon>(y, scale, bias, mean, var)",
    .frees = "x",
    .when = "attr(training) == 0; away_from_zero(scale, 1e-3)",
    .gain = "max_inv(scale, var)",
    .logdet = "log_abs(scale); -log_std(var)",
    .cases = INV_CASES(CASE("epsilon = 0.001")),
    .doc = "inference mode: an affine map per channel",
};

INV_INVERSES(batchnorm, &batchnorm, &batchnorm_eval)
