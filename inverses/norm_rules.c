/* SPDX-License-Identifier: Apache-2.0
 * Normalisations of rows, solved for their input from mean and variance of each row, which forward saves.
 *     y = (x - mean) / sqrt(var + eps) * scale + bias
 *     x = (y - bias) / scale * sqrt(var + eps) + mean
 * Rows are seen as the channels of one image, so that the statistics and the inverse are those of batch normalisation;
 * its scale and bias are one and zero here. */
#include "invonnx/plugin.h"

#define ROWS(normalized) "w = View<shape = rows(x)>(" normalized "); zero = Sub(m, m); one = Exp(zero); "
/* clang-format off */
#define BACK(mean, var) "r = BatchNormInverse<epsilon = epsilon>(w, one, zero, " mean ", " var "); " \
    "x = View<shape = shape(x)>(r)"
/* clang-format on */
#define MOMENTS "v = View<shape = rows(x)>(x); m, s = BatchStats(v)"

#define NORM(id, label, pattern, keeps, variance, solves, text, ...)       \
    static const inv_inverse_def id = {.size = sizeof(inv_inverse_def),    \
                                       .name = #id,                        \
                                       .kind = label,                      \
                                       .priority = 30,                     \
                                       .match = "y = " pattern,            \
                                       .saves = keeps,                     \
                                       .solve = solves,                    \
                                       .frees = "x",                       \
                                       .when = "away_from_zero(g, 1e-3)",  \
                                       .gain = "max_inv(g, " variance ")", \
                                       .cases = INV_CASES(__VA_ARGS__),    \
                                       .doc = text};

/* x is wanted by the gradient of LeakyRelu, y by that of the product. */
#define CASE(statements)                                                                               \
    "g(float[4,3,6] in) => (z) { param float[6,5] B; param float[6] g = {1.5, -0.5, 0.25, 1, 2, -3}; " \
    "param float[6] b; x = LeakyRelu<alpha = 0.9>(in); " statements "; z = MatMul(y, B) }"
#define IMAGE(statements)                                                                                           \
    "g(float[2,4,3,2] in) => (z) { param float[2,5] B; param float[4] g = {1.5, -0.5, 0.25, 1}; param float[4] b; " \
    "x = LeakyRelu<alpha = 0.9>(in); " statements "; z = MatMul(y, B) }"

NORM(layer_norm, "layernorm", "LayerNormApply(x, param(g), param(b))", MOMENTS, "s",
     "c = Sub(y, b); d = Div(c, g); " ROWS("d") BACK("m", "s"), "from mean and variance of each row",
     CASE("y = LayerNormalization(x, g, b)"), CASE("w = Mul(x, float[] {30}); y = LayerNormalization(w, g, b)"),
     CASE("param float[3,6] G = {1, 2, 1, 2, 1, 2, 1, 2, 1, 2, 1, 2, 1, 2, 1, 2, 1, 2}; param float[3,6] C; "
          "y = LayerNormalization<axis = 1, epsilon = 0.01>(x, G, C)"))
NORM(layer_norm_plain, "layernorm", "LayerNormApply(x, param(g))", MOMENTS, "s",
     "d = Div(y, g); " ROWS("d") BACK("m", "s"), "the same without a bias", CASE("y = LayerNormalization(x, g)"))
/* clang-format off */
NORM(rms_norm, "rmsnorm", "RmsNormApply(x, param(g))", MOMENTS "; q = Mul(m, m); e = Add(s, q)", "e",
     "d = Div(y, g); w = View<shape = rows(x)>(d); zero = Sub(e, e); one = Exp(zero); " BACK("zero", "e"),
     "y = x / sqrt(mean of x^2 + eps) * scale, from the mean square of each row",
     CASE("y = RMSNormalization(x, g)"))
NORM(group_norm, "groupnorm", "GroupNormApply(x, param(g), param(b))", MOMENTS, "s",
     "B = View<shape = channel(y)>(b); G = View<shape = channel(y)>(g); c = Sub(y, B); d = Div(c, G); "
     ROWS("d") BACK("m", "s"),
     "from mean and variance of each group of channels; of one channel: InstanceNormalization",
     IMAGE("y = InstanceNormalization(x, g, b)"),
     IMAGE("const int64[3] k = {2, 2, -1}; const int64[4] l = {2, 4, 3, 2}; param float[2] o = {1, 1}; "
           "param float[2] p = {0, 0}; param float[4,1,1] G = {1.5, -0.5, 0.25, 1}; param float[4,1,1] H; "
           "v = Reshape(x, k); i = InstanceNormalization(v, o, p); w = Reshape(i, l); q = Mul(w, G); y = Add(q, H)"))
/* clang-format on */

INV_INVERSES(norm, &layer_norm, &layer_norm_plain, &rms_norm, &group_norm)
