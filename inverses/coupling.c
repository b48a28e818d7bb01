/* SPDX-License-Identifier: Apache-2.0
 * Additive couplings, as blocks. What makes them invertible is the local inverse of Add and Sub; these
 * rules name what was found, and demand that the other half leaves the block intact.
 *
 *     x1 ---------(+)--- y1        y1 = x1 + F(x2)
 *     x2 --[ F ]---'               x1 = y1 - F(x2)      NICE, Dinh et al. 2014 (arXiv 1410.8516)
 *     two of them, G reading y1: one RevNet block, Gomez et al. 2017 (arXiv 1707.04585) */
#include "invonnx/plugin.h"

/* Halves of a value that its own gradient wants; y1 and x2 leave the block. */
#define CASE(statements)                                                                                              \
    "g(float[4,6] in) => (z) { param float[3,3] A; param float[3,3] C; param float[6,5] B; " \
    "x = LeakyRelu<alpha = 0.9>(in); " \
    "x1, x2 = Split<axis = 1, num_outputs = 2>(x); f = MatMul(x2, A); t = Tanh(f); " statements
#define OUT " y = Concat<axis = 1>(y1, x2); z = MatMul(y, B) }"
#define OUT_SWAPPED " y = Concat<axis = 1>(x2, y1); z = MatMul(y, B) }"
#define OUT_BOTH " y = Concat<axis = 1>(y1, y2); z = MatMul(y, B) }"

static const inv_inverse_def additive_coupling = {
    .size = sizeof(inv_inverse_def),
    .name = "additive_coupling",
    .priority = 100,
    .match = "t = region(x2); y1 = Add(x1, t)",
    .frees = "x1",
    .when = "same_shape(x1, y1); recoverable(x2)",
    .exactness = INV_BOUNDED,
    .cases = INV_CASES(CASE("y1 = Add(x1, t);" OUT), CASE("y1 = Add(t, x1);" OUT_SWAPPED),
                       CASE("y1 = Sum(x1, t);" OUT)),
    .doc = "y1 = x1 + F(x2): x1 = y1 - F(x2). NICE, arXiv 1410.8516",
};

static const inv_inverse_def subtractive_coupling = {
    .size = sizeof(inv_inverse_def),
    .name = "subtractive_coupling",
    .kind = "additive_coupling",
    .priority = 99,
    .match = "t = region(x2); y1 = Sub(x1, t)",
    .frees = "x1",
    .when = "same_shape(x1, y1); recoverable(x2)",
    .exactness = INV_BOUNDED,
    .cases = INV_CASES(CASE("y1 = Sub(x1, t);" OUT), CASE("y1 = Sub(x1, t);" OUT_SWAPPED)),
    .doc = "y1 = x1 - F(x2): x1 = y1 + F(x2)",
};

static const inv_inverse_def negated_coupling = {
    .size = sizeof(inv_inverse_def),
    .name = "negated_coupling",
    .kind = "additive_coupling",
    .priority = 98,
    .match = "t = region(x2); y1 = Sub(t, x1)",
    .frees = "x1",
    .when = "same_shape(x1, y1); recoverable(x2)",
    .exactness = INV_BOUNDED,
    .cases = INV_CASES(CASE("y1 = Sub(t, x1);" OUT)),
    .doc = "y1 = F(x2) - x1: x1 = F(x2) - y1",
};

static const inv_inverse_def additive_block_fg = {
    .size = sizeof(inv_inverse_def),
    .name = "additive_block_fg",
    .priority = 110,
    .match = "t = region(x2); y1 = Add(x1, t); u = region(y1); y2 = Add(x2, u)",
    .frees = "x1",
    .when = "same_shape(x1, y1); same_shape(x2, y2); recoverable(x2); recoverable(y1)",
    .exactness = INV_BOUNDED,
    .cases = INV_CASES(CASE("y1 = Add(x1, t); g = MatMul(y1, C); u = Tanh(g); y2 = Add(x2, u);" OUT_BOTH),
                       CASE("y1 = Add(t, x1); g = MatMul(y1, C); u = Sigmoid(g); y2 = Add(u, x2);" OUT_BOTH)),
    .doc = "y1 = x1 + F(x2), y2 = x2 + G(y1): x2 = y2 - G(y1), x1 = y1 - F(x2). RevNet, arXiv 1707.04585",
};

INV_INVERSES(coupling, &additive_coupling, &subtractive_coupling, &negated_coupling, &additive_block_fg)
