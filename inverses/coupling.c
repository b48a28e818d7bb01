/* SPDX-License-Identifier: Apache-2.0
 * Additive and affine couplings, as blocks. What makes them invertible are the local inverses of Add, Sub, Mul and Div;
 * these rules name what was found, and demand that the other half leaves the block intact.
 *
 *     x1 ---------(+)--- y1        y1 = x1 + F(x2)
 *     x2 --[ F ]---'               x1 = y1 - F(x2)      NICE, Dinh et al. 2014 (arXiv 1410.8516)
 *     two of them, G reading y1: one RevNet block, Gomez et al. 2017 (arXiv 1707.04585)
 *
 *     x1 --(*)---(+)--- y1             y1 = x1 s + t, s and t computed from x2, s > 0 by construction
 *           s     t                    x1 = (y1 - t) / s     RealNVP, Dinh et al. 2017 (arXiv 1605.08803)
 *     x2 --[ one region ]              or shifted first, y1 = (x1 + t) s: Glow, Kingma and Dhariwal 2018 */
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
    .when = "same_shape(x1, y1); has_features(x1); recoverable(x2)",
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
    .when = "same_shape(x1, y1); has_features(x1); recoverable(x2)",
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
    .when = "same_shape(x1, y1); has_features(x1); recoverable(x2)",
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
    .when = "same_shape(x1, y1); same_shape(x2, y2); has_features(x1); recoverable(x2); recoverable(y1)",
    .exactness = INV_BOUNDED,
    .cases = INV_CASES(CASE("y1 = Add(x1, t); g = MatMul(y1, C); u = Tanh(g); y2 = Add(x2, u);" OUT_BOTH),
                       CASE("y1 = Add(t, x1); g = MatMul(y1, C); u = Sigmoid(g); y2 = Add(u, x2);" OUT_BOTH)),
    .doc = "y1 = x1 + F(x2), y2 = x2 + G(y1): x2 = y2 - G(y1), x1 = y1 - F(x2). RevNet, arXiv 1707.04585",
};

/* Scale and shift from two networks, and from one; what log s is made of leaves the block as well. */
#define APART "p = MatMul(x2, A); l = Tanh(p); s = Exp(l); r = MatMul(x2, C); h = Relu(r); "
#define JOINT "param float[3,6] D; p = MatMul(x2, D); u, h = Split<axis = 1, num_outputs = 2>(p); l = Tanh(u); " \
    "s = Exp(l); "
#define POSITIVE "p = MatMul(x2, A); l = Tanh(p); e = Sigmoid(l); o = Exp(l); s = Add(e, o); h = MatMul(x2, C); "

static const inv_inverse_def affine_coupling = {
    .size = sizeof(inv_inverse_def),
    .name = "affine_coupling",
    .priority = 120,
    .match = "s, t = region(x2); m = Mul|Div(x1, s); y1 = Add|Sub(m, t)",
    .frees = "x1",
    .when = "same_shape(x1, y1); has_features(x1); recoverable(x2); positive(s)",
    .exactness = INV_BOUNDED,
    .cases = INV_CASES(CASE(APART "m = Mul(x1, s); y1 = Add(m, h);" OUT),
                       CASE(JOINT "m = Mul(s, x1); y1 = Add(h, m);" OUT_SWAPPED),
                       CASE(POSITIVE "m = Mul(s, x1); y1 = Sub(m, h);" OUT)),
    .doc = "y1 = x1 * s(x2) + t(x2), s > 0: x1 = (y1 - t) / s. RealNVP, arXiv 1605.08803",
};

static const inv_inverse_def affine_coupling_shifted = {
    .size = sizeof(inv_inverse_def),
    .name = "affine_coupling_shifted",
    .kind = "affine_coupling",
    .priority = 119,
    .match = "t, s = region(x2); a = Add|Sub(x1, t); y1 = Mul|Div(a, s)",
    .frees = "x1",
    .when = "same_shape(x1, y1); has_features(x1); recoverable(x2); positive(s)",
    .exactness = INV_BOUNDED,
    .cases = INV_CASES(CASE(APART "a = Add(h, x1); y1 = Mul(s, a);" OUT),
                       CASE(JOINT "a = Sub(x1, h); y1 = Mul(a, s);" OUT_SWAPPED)),
    .doc = "y1 = (x1 + t(x2)) * s(x2), s > 0: x1 = y1 / s - t. Glow, arXiv 1807.03039",
};

INV_INVERSES(coupling, &affine_coupling, &affine_coupling_shifted,
             &additive_coupling, &subtractive_coupling, &negated_coupling, &additive_block_fg)
