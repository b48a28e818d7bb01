/* SPDX-License-Identifier: Apache-2.0
 * Rearrangements: exact, no arithmetic. */
#include "invonnx/plugin.h"

/* x is wanted by the gradient of LeakyRelu, y by that of the product. */
#define CASE(type, width, statement)                                                                                  \
    "g(" type " in) => (z) { param float[" width ",5] B; " \
    "x = LeakyRelu<alpha = 0.9>(in); " statement "; z = MatMul(y, B) }"

#define RULE(id)                                                                                                      \
    static const inv_inverse_def id = { .size = sizeof(inv_inverse_def), .exactness = INV_EXACT, .name = #id,

RULE(view) .kind = "",
    .match = "y = View(x)", .solve = "x = View<shape = shape(x)>(y)", .frees = "x",
    .cases = INV_CASES(CASE("float[4,6]", "8", "const int64[2] s = {3, 8}; y = Reshape(x, s)"),
                       CASE("float[4,1,6]", "6", "const int64[1] s = {1}; y = Squeeze(x, s)"),
                       CASE("float[4,2,3]", "6", "y = Flatten(x)")),
    .doc = "the same elements in another shape" };
RULE(transpose) .kind = "",
    .match = "y = Transpose(x)", .solve = "x = Transpose<perm = invert(perm)>(y)", .frees = "x",
    .cases = INV_CASES(CASE("float[4,6]", "4", "t = Transpose<perm = [1, 0]>(x); y = LeakyRelu<alpha = 0.5>(t)"),
                       CASE("float[2,3,4]", "3", "y = Transpose<perm = [2, 0, 1]>(x)"),
                       CASE("float[2,3,4]", "2", "t = Transpose(x); y = LeakyRelu<alpha = 0.5>(t)")),
    .doc = "axes permuted back" };
RULE(permute)
    .kind = "permutation", .match = "y = Permute(x)", .solve = "x = Permute<axis = axis, indices = invert(indices)>(y)",
    .frees = "x",
    .cases = INV_CASES(CASE("float[4,6]", "6", "const int64[6] p = {3, 0, 5, 1, 2, 4}; y = Gather<axis = 1>(x, p)"),
                       CASE("float[4,6]", "6", "const int64[4] p = {1, 2, 3, 0}; y = Gather(x, p)")),
    .doc = "entries along one axis permuted back" };
RULE(split) .kind = "",
    .match = "ys... = SplitSizes(x)", .solve = "x = Concat<axis = axis>(ys...)", .frees = "x",
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
    .cases = INV_CASES("g(float[4,2] ina, float[4,3] inb) => (z) { param float[5,5] B; "
                       "a = LeakyRelu<alpha = 0.9>(ina); "
                       "b = Sigmoid(inb); y = Concat<axis = 1>(a, b); z = MatMul(y, B) }",
                       "g(float[4,2] ina, float[3,2] inb) => (z) { param float[2,5] B; "
                       "a = LeakyRelu<alpha = 0.9>(ina); b = LeakyRelu<alpha = 0.9>(inb); "
                       "y = Concat<axis = -2>(b, a); z = MatMul(y, B) }"),
    .doc = "each part is a piece of y" };

INV_INVERSES(rearrange, &view, &transpose, &permute, &split, &concat)
