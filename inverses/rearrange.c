/* SPDX-License-Identifier: Apache-2.0
 * Rearrangements: exact, no arithmetic. */
#include "invonnx/plugin.h"

#define RULE(id) static const inv_inverse_def id = { .size = sizeof(inv_inverse_def), .exactness = INV_EXACT, .name = #id,

RULE(view) .kind = "",
    .match = "y = View(x)", .solve = "x = View<shape = shape(x)>(y)", .frees = "x",
    .doc = "the same elements in another shape" };
RULE(transpose) .kind = "",
    .match = "y = Transpose(x)", .solve = "x = Transpose<perm = invert(perm)>(y)", .frees = "x",
    .doc = "axes permuted back" };
RULE(permute)
    .kind = "permutation", .match = "y = Permute(x)", .solve = "x = Permute<axis = axis, indices = invert(indices)>(y)",
    .frees = "x", .doc = "entries along one axis permuted back" };
RULE(split) .kind = "",
    .match = "ys... = SplitSizes(x)", .solve = "x = Concat<axis = axis>(ys...)", .frees = "x",
    .doc = "the parts cover x" };
RULE(concat) .kind = "",
    .match = "y = Concat(xs...)", .solve = "xs... = SplitSizes<axis = axis, sizes = sizes(xs)>(y)", .frees = "xs...",
    .doc = "each part is a piece of y" };

INV_INVERSES(rearrange, &view, &transpose, &permute, &split, &concat)
