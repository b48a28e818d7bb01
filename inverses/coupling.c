/* SPDX-License-Identifier: Apache-2.0
 * Additive couplings, as blocks. What makes them invertible is the local inverse of Add and Sub; these
 * rules name what was found, and demand that the other half leaves the block intact.
 *
 *     x1 ---------(+)--- y1        y1 = x1 + F(x2)
 *     x2 --[ F ]---'               x1 = y1 - F(x2)      NICE, Dinh et al. 2014 (arXiv 1410.8516)
 *     two of them, G reading y1: one RevNet block, Gomez et al. 2017 (arXiv 1707.04585) */
#include "invonnx/plugin.h"

static const char *const additive_cases[] = {
    "g(float[2,3] x1, float[2,3] x2) => (y1, x2) { t = Tanh(x2); y1 = Add(x1, t) }",
    NULL,
};
static const inv_inverse_def additive_coupling = {
    .size = sizeof(inv_inverse_def),
    .name = "additive_coupling",
    .priority = 100,
    .match = "t = region(x2); y1 = Add(x1, t)",
    .frees = "x1",
    .when = "same_shape(x1, y1); recoverable(x2)",
    .exactness = INV_BOUNDED,
    .cases = additive_cases,
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
    .doc = "y1 = F(x2) - x1: x1 = F(x2) - y1",
};

static const char *const fg_cases[] = {
    "g(float[2,3] x1, float[2,3] x2) => (y1, y2) { t = Tanh(x2); y1 = Add(x1, t); u = Tanh(y1); y2 = Add(x2, u) }",
    NULL,
};
static const inv_inverse_def additive_block_fg = {
    .size = sizeof(inv_inverse_def),
    .name = "additive_block_fg",
    .priority = 110,
    .match = "t = region(x2); y1 = Add(x1, t); u = region(y1); y2 = Add(x2, u)",
    .frees = "x1",
    .when = "same_shape(x1, y1); same_shape(x2, y2); recoverable(x2); recoverable(y1)",
    .exactness = INV_BOUNDED,
    .cases = fg_cases,
    .doc = "y1 = x1 + F(x2), y2 = x2 + G(y1): x2 = y2 - G(y1), x1 = y1 - F(x2). RevNet, arXiv 1707.04585",
};

INV_INVERSES(coupling, &additive_coupling, &subtractive_coupling, &negated_coupling, &additive_block_fg)
