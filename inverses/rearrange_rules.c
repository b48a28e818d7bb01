/* SPDX-License-Identifier: Apache-2.0
 * Rearrangements: exact, no arithmetic. Those of flows and reversible networks have names. */
#include "invonnx/plugin.h"

/* x is wanted by the gradient of Tanh, y by that of the product. */
#define CASE(type, width, statement)                       \
    "g(" type " in) => (z) { param float[" width ",5] B; " \
    "x = Tanh(in); " statement "; z = MatMul(y, B) }"

#define RULE(id) \
    static const inv_inverse_def id = {.size = sizeof(inv_inverse_def), .exactness = INV_EXACT, .name = #id,

/* clang-format off */
RULE(view) .kind = "",
    .match = "y = View(x)", .solve = "x = View<shape = shape(x)>(y)", .frees = "x",
    .logdet = "0",
    .cases = INV_CASES(CASE("float[4,6]", "8", "const int64[2] s = {3, 8}; y = Reshape(x, s)"),
                       CASE("float[4,1,6]", "6", "const int64[1] s = {1}; y = Squeeze(x, s)"),
                       CASE("float[4,2,3]", "6", "y = Flatten(x)")),
    .doc = "the same elements in another shape" };
RULE(transpose) .kind = "",
    .match = "y = Transpose(x)", .solve = "x = Transpose<perm = invert(perm)>(y)", .frees = "x",
    .logdet = "0",
    .cases = INV_CASES(CASE("float[4,6]", "4", "t = Transpose<perm = [1, 0]>(x); y = Neg(t)"),
                       CASE("float[2,3,4]", "3", "y = Transpose<perm = [2, 0, 1]>(x)"),
                       CASE("float[2,3,4]", "3", "t = Transpose<perm = [0, 2, 1]>(x); y = Neg(t)"),
                       CASE("float[2,3,4]", "2", "t = Transpose(x); y = Neg(t)")),
    .doc = "axes permuted back" };
RULE(permute)
    .kind = "permutation", .match = "y = Permute(x)", .solve = "x = Permute<axis = axis, indices = invert(indices)>(y)",
    .frees = "x",
    .logdet = "0",
    .cases = INV_CASES(CASE("float[4,6]", "6", "const int64[6] p = {3, 0, 5, 1, 2, 4}; y = Gather<axis = 1>(x, p)"),
                       CASE("float[4,6]", "6", "const int64[4] p = {1, 2, 3, 0}; y = Gather(x, p)")),
    .doc = "entries along one axis permuted back" };
RULE(split) .kind = "",
    .match = "ys... = SplitSizes(x)", .solve = "x = Concat<axis = axis>(ys...)", .frees = "x",
    .logdet = "0",
    .cases = INV_CASES("g(float[4,6] in) => (z) { param float[2,5] A; param float[4,5] B; const int64[2] n = {2, 4}; "
                       "x = LeakyRelu<alpha = 0.9>(in); u, v = Split<axis = 1>(x, n); p = MatMul(u, A); "
                       "q = MatMul(v, B); "
                       "z = Add(p, q) }",
                       "g(float[4,6] in) => (z) { param float[3,5] A; param float[3,5] B; "
                       "const int64[1] b = {0}; const int64[1] m = {3}; const int64[1] e = {6}; "
                       "const int64[1] a = {1}; "
                       "x = LeakyRelu<alpha = 0.9>(in); v = Slice(x, m, e, a); u = Slice(x, b, m, a); "
                       "p = MatMul(u, A); q = MatMul(v, B); z = Add(p, q) }"),
    .doc = "the parts cover x" };
RULE(concat) .kind = "",
    .match = "y = Concat(xs...)", .solve = "xs... = SplitSizes<axis = axis, sizes = sizes(xs)>(y)", .frees = "xs...",
    .logdet = "0",
    .cases = INV_CASES("g(float[4,2] ina, float[4,3] inb) => (z) { param float[5,5] B; "
                       "a = LeakyRelu<alpha = 0.9>(ina); "
                       "b = Sigmoid(inb); y = Concat<axis = 1>(a, b); z = MatMul(y, B) }",
                       "g(float[4,2] ina, float[3,2] inb) => (z) { param float[2,5] B; "
                       "a = LeakyRelu<alpha = 0.9>(ina); b = LeakyRelu<alpha = 0.9>(inb); "
                       "y = Concat<axis = -2>(b, a); z = MatMul(y, B) }"),
    .doc = "each part is a piece of y" };

RULE(multiscale_split) .priority = 10,
    .match = "ys... = SplitSizes(x)", .solve = "x = Concat<axis = axis>(ys...)", .frees = "x",
    .when = "some_leave(ys...)",
    .logdet = "0",
    .cases = INV_CASES("g(float[4,6] in) => (z, w) { param float[2,5] B; const int64[2] n = {2, 4}; "
                       "x = LeakyRelu<alpha = 0.9>(in); u, v = Split<axis = 1>(x, n); z = MatMul(u, B); "
                       "w = Identity(v) }"),
    .doc = "some of the parts of x are outputs of the model, the others go on. RealNVP, arXiv 1605.08803" };
RULE(injective_pad) .priority = 10,
    .match = "y = PadRange(x)", .solve = "x = SliceRange<starts = starts, steps = ones(starts), sizes = shape(x)>(y)",
    .frees = "x", .when = "attr(starts) > -1",
    .cases = INV_CASES("g(float[4,3] in) => (y) { const int64[4] p = {0, 0, 0, 3}; x = LeakyRelu<alpha = 0.9>(in); "
                       "y = Pad(x, p) }",
                       "g(float[4,3] in) => (y) { const int64[4] p = {1, 2, 0, 1}; x = LeakyRelu<alpha = 0.9>(in); "
                       "y = Pad(x, p) }"),
    .doc = "x among constants. i-RevNet, arXiv 1802.07088" };

RULE(squeeze) .priority = 60,
    .match = "v = View(x); t = Transpose(v); y = View(t)", .frees = "x", .when = "space_to_depth(x, y)",
    .cases = INV_CASES("g(float[2,3,4,6] in) => (z) { param float[3,5] B; x = LeakyRelu<alpha = 0.9>(in); "
                       "y = SpaceToDepth<blocksize = 2>(x); z = MatMul(y, B) }",
                       "g(float[2,3,4,6] in) => (z) { param float[3,5] B; const int64[6] s = {2, 3, 2, 2, 3, 2}; "
                       "const int64[4] q = {2, 12, 2, 3}; x = LeakyRelu<alpha = 0.9>(in); v = Reshape(x, s); "
                       "t = Transpose<perm = [0, 1, 3, 5, 2, 4]>(v); y = Reshape(t, q); z = MatMul(y, B) }"),
    .doc = "blocks of neighbours in space become channels, in any order. RealNVP, arXiv 1605.08803" };
RULE(unsqueeze) .priority = 60,
    .match = "v = View(x); t = Transpose(v); y = View(t)", .frees = "x", .when = "space_to_depth(y, x)",
    .cases = INV_CASES(CASE("float[2,12,2,3]", "6", "y = DepthToSpace<blocksize = 2>(x)"),
                       CASE("float[2,12,2,3]", "6", "y = DepthToSpace<blocksize = 2, mode = \"CRD\">(x)")),
    .doc = "channels become blocks of neighbours in space: the inverse of squeeze" };
/* clang-format on */

INV_INVERSES(rearrange, &view, &transpose, &permute, &split, &concat, &multiscale_split, &injective_pad, &squeeze,
             &unsqueeze)
