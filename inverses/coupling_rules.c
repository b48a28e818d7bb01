/* SPDX-License-Identifier: Apache-2.0
 * Additive and affine couplings, as blocks. What makes them invertible are the local inverses of Add, Sub, Mul and Div;
 * these rules name what was found, and demand that the other half leaves the block intact.
 *
 *     x1 ---------(+)--- y1        y1 = x1 + F(x2)
 *     x2 --[ F ]---'               x1 = y1 - F(x2)      NICE, Dinh et al. 2014 (arXiv 1410.8516)
 *     two of them, G reading y1: one RevNet block, Gomez et al. 2017 (arXiv 1707.04585); of unlike signs: leapfrog
 *
 *     x1 --(*)---(+)--- y1             y1 = x1 s + t, s and t computed from x2, s > 0 by construction
 *           s     t                    x1 = (y1 - t) / s     RealNVP, Dinh et al. 2017 (arXiv 1605.08803)
 *     x2 --[ one region ]              or shifted first, y1 = (x1 + t) s: Glow, Kingma and Dhariwal 2018 */
#include "invonnx/plugin.h"

/* Halves of a value that its own gradient wants; y1 and x2 leave the block. */
#define CASE(statements)                                                                     \
    "g(float[4,6] in) => (z) { param float[3,3] A; param float[3,3] C; param float[6,5] B; " \
    "x = LeakyRelu<alpha = 0.9>(in); "                                                       \
    "x1, x2 = Split<axis = 1, num_outputs = 2>(x); f = MatMul(x2, A); t = Tanh(f); " statements
#define OUT " y = Concat<axis = 1>(y1, x2); z = MatMul(y, B) }"
#define OUT_SWAPPED " y = Concat<axis = 1>(x2, y1); z = MatMul(y, B) }"
#define OUT_BOTH " y = Concat<axis = 1>(y1, y2); z = MatMul(y, B) }"

/* clang-format off */
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
/* clang-format on */

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

/* Three streams: from the other two into the first, and from there on through all of them. */
#define STREAMS(statements, out)                                                                                 \
    "g(float[4,6] in) => (z) { param float[2,2] A; param float[2,2] C; param float[6,5] B; "                     \
    "x = LeakyRelu<alpha = 0.9>(in); x1, x2, x3 = Split<axis = 1, num_outputs = 3>(x); "                         \
    "f = MatMul(x2, A); h = MatMul(x3, C); p = Mul(f, h); t = Tanh(p); " statements " y = Concat<axis = 1>(" out \
    "); z = MatMul(y, B) }"
#define AND_SO_ON                                                                         \
    "k = MatMul(x3, A); l = MatMul(y1, C); q = Mul(k, l); u = Tanh(q); y2 = Add(u, x2); " \
    "m = MatMul(y1, A); n = MatMul(y2, C); r = Mul(m, n); v = Tanh(r); y3 = Sub(x3, v);"

static const inv_inverse_def additive_coupling_streams = {
    .size = sizeof(inv_inverse_def),
    .name = "additive_coupling_streams",
    .kind = "additive_coupling",
    .priority = 95,
    .match = "t = region(xs...); y1 = Add|Sub(x1, t)",
    .frees = "x1",
    .when = "same_shape(x1, y1); has_features(x1)",
    .exactness = INV_BOUNDED,
    .cases = INV_CASES(STREAMS("y1 = Add(x1, t);", "y1, x2, x3"), STREAMS("y1 = Sub(x1, t);", "x3, y1, x2"),
                       STREAMS("y1 = Add(t, x1); " AND_SO_ON, "y1, y2, y3")),
    .doc = "y1 = x1 + F(x2, x3, ...), each of which leaves, or is solved for before: x1 = y1 - F(x2, x3, ...)",
};

/* One half is pushed on by what the other half is, that by what came of it, with the other sign: a step of an
 * integrator of x1' = F(x2), x2' = -G(x1). Step sizes are part of the branches. */
#define LEAPFROG(id, prio, first, second, text, ...)                                                          \
    static const inv_inverse_def id = {                                                                       \
        .size = sizeof(inv_inverse_def),                                                                      \
        .name = #id,                                                                                          \
        .kind = "leapfrog",                                                                                   \
        .priority = prio,                                                                                     \
        .match = "t = region(x2); y1 = " first "(x1, t); u = region(y1); y2 = " second "(x2, u)",             \
        .frees = "x1",                                                                                        \
        .when = "same_shape(x1, y1); same_shape(x2, y2); has_features(x1); recoverable(x2); recoverable(y1)", \
        .cases = INV_CASES(__VA_ARGS__),                                                                      \
        .doc = text};
#define STEPS(first, second)                                                                                        \
    CASE("h = Mul(t, float[] {0.25}); y1 = " first "; g = MatMul(y1, C); k = Tanh(g); l = Mul(k, float[] {0.25}); " \
         "y2 = " second ";" OUT_BOTH)
LEAPFROG(leapfrog, 112, "Add", "Sub",
         "y1 = x1 + F(x2), y2 = x2 - G(y1): x2 = y2 + G(y1), x1 = y1 - F(x2). Chang et al. 2018 (arXiv 1709.03698)",
         STEPS("Add(x1, h)", "Sub(x2, l)"),
         CASE("y1 = Add(t, x1); u = Mul(y1, float[] {0.5}); y2 = Sub(x2, u);" OUT_BOTH))
/* clang-format off */
LEAPFROG(leapfrog_down, 111, "Sub", "Add",
         "y1 = x1 - F(x2), y2 = x2 + G(y1): x2 = y2 - G(y1), x1 = y1 + F(x2)",
         STEPS("Sub(x1, h)", "Add(x2, l)"), STEPS("Sub(x1, h)", "Add(l, x2)"))
/* clang-format on */

/* v is what comes of earlier steps, g how much of it stays. */
static const inv_inverse_def momentum_residual = {
    .size = sizeof(inv_inverse_def),
    .name = "momentum_residual",
    .priority = 115,
    .match = "a = Mul(v, param(g)); t = region(x); w = Add|Sub(a, t); y = Add|Sub(x, w)",
    .frees = "v",
    .when = "same_shape(v, w); same_shape(x, y); has_features(v); recoverable(x); away_from_zero(g, 1e-6)",
    .cases = INV_CASES(CASE("a = Mul(x1, float[] {0.9}); l = Mul(t, float[] {0.1}); y1 = Add(a, l); "
                            "y2 = Add(x2, y1);" OUT_BOTH),
                       CASE("a = Mul(float[] {0.5}, x1); y1 = Sub(a, t); y2 = Add(y1, x2);" OUT_BOTH)),
    .doc = "w = g v + (1 - g) F(x), y = x + w: x = y - w, v = (w - (1 - g) F(x)) / g. Sander et al. 2021 "
           "(arXiv 2102.07870)",
};

/* Two copies of the state of an equation y' = f(y): z1 = 2 y - z + h f(z), then y1 = y + h (f(z) + f(z1)) / 2. Since
 * 2 y1 - z1 is z + h f(z1), z is freed; y follows by undoing its sum. The step size stands behind the region, or in
 * it. */
#define HEUN_CASE(statements)                                                                                       \
    "g(float[4,6] in) => (o) { param float[3,3] A; param float[6,5] B; "                                            \
    "x = LeakyRelu<alpha = 0.9>(in); y, z = Split<axis = 1, num_outputs = 2>(x); g0 = MatMul(z, A); f = Tanh(g0); " \
    "d = Mul(y, float[] {2}); e = Sub(d, z); " statements " c = Concat<axis = 1>(y1, z1); o = MatMul(c, B) }"
#define HEUN(id, prio, step, pattern, then, ratio, ...)                                               \
    static const inv_inverse_def id = {                                                               \
        .size = sizeof(inv_inverse_def),                                                              \
        .name = #id,                                                                                  \
        .kind = "reversible_heun",                                                                    \
        .priority = prio,                                                                             \
        .match = "d = Mul(y, param(two)); e = Sub(d, z); " pattern                                    \
                 "; f1 = region(z1); s = Add(f, f1); w = Mul(s, param(g)); y1 = Add(y, w)",           \
        .solve = "d1 = Mul(y1, two); e1 = Sub(d1, z1); " then,                                        \
        .frees = "z",                                                                                 \
        .when = "same_shape(y, y1); same_shape(z, z1); has_features(z); number(two) == 2; " ratio,    \
        .gain = "times(4)",                                                                           \
        .cases = INV_CASES(__VA_ARGS__),                                                              \
        .doc = "z1 = 2 y - z + h f(z), y1 = y + h (f(z) + f(z1)) / 2: z = 2 y1 - z1 - h f(z1). " step \
               ". Kidger et al. 2021 (arXiv 2105.13493)"};
HEUN(reversible_heun, 118, "The step size after the region", "t = Mul(f, param(h)); z1 = Add(e, t)",
     "k = Mul(f1, h); z = Sub(e1, k)", "number(g, h) == 0.5",
     HEUN_CASE("t = Mul(f, float[] {0.25}); z1 = Add(e, t); g1 = MatMul(z1, A); f1 = Tanh(g1); s = Add(f, f1); "
               "w = Mul(s, float[] {0.125}); y1 = Add(y, w);"))
HEUN(reversible_heun_within, 117, "The step size in it", "z1 = Add(e, f)", "z = Sub(e1, f1)", "number(g) == 0.5",
     HEUN_CASE("h = Mul(f, float[] {0.25}); z1 = Add(e, h); g1 = MatMul(z1, A); f1 = Tanh(g1); "
               "k = Mul(f1, float[] {0.25}); s = Add(h, k); w = Mul(s, float[] {0.5}); y1 = Add(y, w);"))

/* Scale and shift from one network. */
#define JOINT "param float[3,6] D; p = MatMul(x2, D); u, h = Split<axis = 1, num_outputs = 2>(p); "
/* Of the many forms each has a row: two operators, what takes the second and then the first back, and how that
 * magnifies errors. The scale's bounds are not asked for: where there are none, what is usual is expected of it. */
#define AFFINE(id, prio, first, second, back, then, magnifies, volume, text, ...)                                    \
    static const inv_inverse_def id = {.size = sizeof(inv_inverse_def),                                              \
                                       .name = #id,                                                                  \
                                       .kind = "affine_coupling",                                                    \
                                       .priority = prio,                                                             \
                                       .match = "s, t = region(x2); m = " first "; y1 = " second,                    \
                                       .solve = "n = " back "; x1 = " then,                                          \
                                       .frees = "x1",                                                                \
                                       .when = "same_shape(x1, y1); has_features(x1); recoverable(x2); positive(s)", \
                                       .gain = "expected_" magnifies "(s)",                                          \
                                       .logdet = volume,                                                             \
                                       .cases = INV_CASES(__VA_ARGS__),                                              \
                                       .doc = text};

/* Glow's scale, as likely as not to have no bound: sigmoid(u + 2). */
#define SIGMOID JOINT "k = Add(u, float[] {2}); s = Sigmoid(k); "
#define SCALED(op, second) CASE(SIGMOID "m = " op "; y1 = " second ";" OUT)
#define DIVIDED(op, second) CASE(JOINT "s = Exp(u); m = " op "; y1 = " second ";" OUT)

/* clang-format off */
AFFINE(affine_coupling, 131, "Mul(x1, s)", "Add(m, t)", "Sub(y1, t)", "Div(n, s)", "inv", "log_abs(s)",
       "y1 = x1 * s(x2) + t(x2), s > 0: x1 = (y1 - t) / s. RealNVP, arXiv 1605.08803",
       SCALED("Mul(x1, s)", "Add(m, h)"),
       CASE(JOINT "s = Exp(u); m = Mul(s, x1); y1 = Add(h, m);" OUT_SWAPPED),
       CASE(JOINT "k = Div(u, float[] {2}); l = Atan(k); q = Mul(l, float[] {1.272}); s = Exp(q); "
            "m = Mul(x1, s); y1 = Add(m, h);" OUT),
       CASE(JOINT "k = Softplus(u); s = Add(k, float[] {0.001}); m = Mul(s, x1); y1 = Add(m, h);" OUT),
       CASE("h = MatMul(x2, A); s = Exp(h); m = Mul(x1, s); y1 = Add(m, h);" OUT))
/* clang-format on */
AFFINE(affine_coupling_minus, 130, "Mul(x1, s)", "Sub(m, t)", "Add(y1, t)", "Div(n, s)", "inv", "log_abs(s)",
       "y1 = x1 * s(x2) - t(x2), s > 0: x1 = (y1 + t) / s", SCALED("Mul(x1, s)", "Sub(m, h)"))
AFFINE(affine_coupling_negated, 129, "Mul(x1, s)", "Sub(t, m)", "Sub(t, y1)", "Div(n, s)", "inv", "log_abs(s)",
       "y1 = t(x2) - x1 * s(x2), s > 0: x1 = (t - y1) / s", SCALED("Mul(x1, s)", "Sub(h, m)"))
AFFINE(affine_coupling_divided, 128, "Div(x1, s)", "Add(m, t)", "Sub(y1, t)", "Mul(n, s)", "abs", "-log_abs(s)",
       "y1 = x1 / s(x2) + t(x2), s > 0: x1 = (y1 - t) * s", DIVIDED("Div(x1, s)", "Add(m, h)"))
AFFINE(affine_coupling_divided_minus, 127, "Div(x1, s)", "Sub(m, t)", "Add(y1, t)", "Mul(n, s)", "abs", "-log_abs(s)",
       "y1 = x1 / s(x2) - t(x2), s > 0: x1 = (y1 + t) * s", DIVIDED("Div(x1, s)", "Sub(m, h)"))
AFFINE(affine_coupling_divided_negated, 126, "Div(x1, s)", "Sub(t, m)", "Sub(t, y1)", "Mul(n, s)", "abs", "-log_abs(s)",
       "y1 = t(x2) - x1 / s(x2), s > 0: x1 = (t - y1) * s", DIVIDED("Div(x1, s)", "Sub(h, m)"))

AFFINE(affine_coupling_shifted, 125, "Add(x1, t)", "Mul(m, s)", "Div(y1, s)", "Sub(n, t)", "inv", "log_abs(s)",
       "y1 = (x1 + t(x2)) * s(x2), s > 0: x1 = y1 / s - t. Glow, arXiv 1807.03039", SCALED("Add(x1, h)", "Mul(m, s)"))
AFFINE(affine_coupling_shifted_minus, 124, "Sub(x1, t)", "Mul(m, s)", "Div(y1, s)", "Add(n, t)", "inv", "log_abs(s)",
       "y1 = (x1 - t(x2)) * s(x2), s > 0: x1 = y1 / s + t", SCALED("Sub(x1, h)", "Mul(s, m)"))
AFFINE(affine_coupling_shifted_negated, 123, "Sub(t, x1)", "Mul(m, s)", "Div(y1, s)", "Sub(t, n)", "inv", "log_abs(s)",
       "y1 = (t(x2) - x1) * s(x2), s > 0: x1 = t - y1 / s", SCALED("Sub(h, x1)", "Mul(m, s)"))
AFFINE(affine_coupling_shifted_divided, 122, "Add(x1, t)", "Div(m, s)", "Mul(y1, s)", "Sub(n, t)", "abs", "-log_abs(s)",
       "y1 = (x1 + t(x2)) / s(x2), s > 0: x1 = y1 * s - t", DIVIDED("Add(x1, h)", "Div(m, s)"))
AFFINE(affine_coupling_normalized, 121, "Sub(x1, t)", "Div(m, s)", "Mul(y1, s)", "Add(n, t)", "abs", "-log_abs(s)",
       "y1 = (x1 - t(x2)) / s(x2), s > 0: x1 = y1 * s + t", DIVIDED("Sub(x1, h)", "Div(m, s)"))
/* clang-format off */
AFFINE(affine_coupling_normalized_negated, 120, "Sub(t, x1)", "Div(m, s)", "Mul(y1, s)", "Sub(t, n)",
       "abs", "-log_abs(s)", "y1 = (t(x2) - x1) / s(x2), s > 0: x1 = t - y1 * s", DIVIDED("Sub(h, x1)", "Div(m, s)"))
/* clang-format on */

/* Without a shift. Solved for by what the product itself has, which asks for bounds of s. */
#define SCALED_RULE(id, prio, op, text, ...)                                                                         \
    static const inv_inverse_def id = {.size = sizeof(inv_inverse_def),                                              \
                                       .name = #id,                                                                  \
                                       .kind = "affine_coupling",                                                    \
                                       .priority = prio,                                                             \
                                       .match = "s = region(x2); y1 = " op "(x1, s)",                                \
                                       .frees = "x1",                                                                \
                                       .when = "same_shape(x1, y1); has_features(x1); recoverable(x2); positive(s)", \
                                       .cases = INV_CASES(__VA_ARGS__),                                              \
                                       .doc = text};
SCALED_RULE(scaled_coupling, 97, "Mul", "y1 = x1 * s(x2), s > 0: x1 = y1 / s",
            CASE("k = Add(t, float[] {1.5}); y1 = Mul(x1, k);" OUT))
SCALED_RULE(divided_coupling, 96, "Div", "y1 = x1 / s(x2), s > 0: x1 = y1 * s",
            CASE("k = Exp(t); y1 = Div(x1, k);" OUT_SWAPPED))

/* Halves by a mask instead of a split: h = b x passes through, for b is 0 or 1 and c = 1 - b. */
#define MASKED(statements)                                                                                        \
    "g(float[4,6] in) => (z) { param float[6,6] F; param float[6,6] G; param float[6,5] B; "                      \
    "const float[6] b = {0, 1, 0, 1, 0, 1}; const float[] one = {1}; c = Sub(one, b); "                           \
    "x = LeakyRelu<alpha = 0.9>(in); h = Mul(x, b); p = MatMul(h, F); l = MatMul(h, G); t = Tanh(l); " statements \
    "; z = MatMul(y, B) }"
#define MASKED_RULE(id, label, solves, name_freed, magnifies, volume, pattern, condition, text, ...) \
    static const inv_inverse_def id = {.size = sizeof(inv_inverse_def),                              \
                                       .name = #id,                                                  \
                                       .kind = label,                                                \
                                       .priority = 140,                                              \
                                       .match = pattern,                                             \
                                       .solve = solves,                                              \
                                       .frees = name_freed,                                          \
                                       .when = "complementary(b, c)" condition,                      \
                                       .gain = magnifies,                                            \
                                       .logdet = volume,                                             \
                                       .cases = INV_CASES(__VA_ARGS__),                              \
                                       .doc = text};
#define MASKED_AFFINE "s = Exp(p); m = Mul(x, s); a = Add(m, t); r = Mul(a, c); y = Add(h, r)"
#define MASKED_ADDITIVE "a = Add(x, t); r = Mul(a, c); y = Add(h, r)"
#define MASKED_INSIDE(shift, scale) "q = Mul(p, c); s = Exp(q); n = Mul(t, c); a = " shift "(x, n); y = " scale "(a, s)"

/* clang-format off */
MASKED_RULE(masked_half, "", "h = Mul(y, b)", "h", NULL, NULL,
            "h = Mul(x, param(b)); y = Add(h, r); r = Mul(a, param(c))", "",
            "y = b x + c a, where b is a mask and c the other half: b x = b y",
            MASKED(MASKED_AFFINE))
/* clang-format on */
/* What s is under the mask, where nothing holds it, is left out: it may have become 0. */
MASKED_RULE(masked_affine_coupling, "affine_coupling",
            "e = Mul(s, c); f = Add(e, b); d = Sub(y, t); u = Div(d, f); v = Mul(u, c); x = Add(h, v)", "x",
            "expected_inv(s)", "log_abs(s, c)",
            "h = Mul(x, param(b)); y = Add(h, r); r = Mul(a, param(c)); m = Mul(x, s); a = Add(m, t); s, t = region(h)",
            "; same_shape(x, y); positive(s)",
            "y = b x + c (x s(b x) + t(b x)), b a mask: x = b x + c (y - t) / s. RealNVP, arXiv 1605.08803",
            MASKED(MASKED_AFFINE))
/* clang-format off */
MASKED_RULE(masked_additive_coupling, "additive_coupling", "d = Sub(y, t); v = Mul(d, c); x = Add(h, v)", "x",
            NULL, "0",
            "h = Mul(x, param(b)); y = Add(h, r); r = Mul(a, param(c)); a = Add(x, t); t = region(h)",
            "; same_shape(x, y)", "y = b x + c (x + t(b x)), b a mask: x = b x + c (y - t)", MASKED(MASKED_ADDITIVE))
MASKED_RULE(masked_half_inside, "", "h = Mul(y, b)", "h", NULL, NULL,
            "h = Mul(x, param(b)); a = Add|Sub(x, n); y = Mul|Div(a, s); n = Mul(t, param(c)); s = Exp(q); "
            "q = Mul(k, param(c))", "",
            "y = (x + c t) e^(c k), where b is a mask and c the other half: b x = b y",
            MASKED(MASKED_INSIDE("Add", "Mul")))
/* clang-format on */

/* Shifted and scaled by one operator each, and what takes them back. */
#define MASKED_INSIDE_RULE(id, shift, scale, back, then, magnifies, volume, text)                                    \
    MASKED_RULE(id, "affine_coupling", "u = " back "(y, s); x = " then "(u, n)", "x", "expected_" magnifies "(s)",   \
                volume "log_abs(s)",                                                                                 \
                "h = Mul(x, param(b)); a = " shift "(x, n); y = " scale "(a, s); n = Mul(t, param(c)); s = Exp(q); " \
                "q = Mul(k, param(c)); k, t = region(h)",                                                            \
                "; same_shape(x, y)", text, MASKED(MASKED_INSIDE(shift, scale)),                                     \
                MASKED("k = Tanh(p); q = Mul(k, c); s = Exp(q); n = Mul(l, c); a = " shift "(x, n); "                \
                       "y = " scale "(a, s)"))
MASKED_INSIDE_RULE(masked_affine_inside, "Add", "Mul", "Div", "Sub", "inv", "",
                   "y = (x + c t(b x)) e^(c k(b x)), b a mask: x = y e^(-c k) - c t")
MASKED_INSIDE_RULE(masked_affine_inside_minus, "Sub", "Mul", "Div", "Add", "inv", "",
                   "y = (x - c t(b x)) e^(c k(b x)), b a mask: x = y e^(-c k) + c t")
MASKED_INSIDE_RULE(masked_affine_inside_divided, "Add", "Div", "Mul", "Sub", "abs", "-",
                   "y = (x + c t(b x)) e^(-c k(b x)), b a mask: x = y e^(c k) - c t")
MASKED_INSIDE_RULE(masked_affine_inside_normalized, "Sub", "Div", "Mul", "Add", "abs", "-",
                   "y = (x - c t(b x)) e^(-c k(b x)), b a mask: x = y e^(c k) + c t")

/* clang-format off */
INV_INVERSES(coupling, &masked_half, &masked_affine_coupling, &masked_additive_coupling, &masked_half_inside,
             &masked_affine_inside, &masked_affine_inside_minus, &masked_affine_inside_divided,
             &masked_affine_inside_normalized, &affine_coupling, &affine_coupling_minus, &affine_coupling_negated,
             &affine_coupling_divided, &affine_coupling_divided_minus, &affine_coupling_divided_negated,
             &affine_coupling_shifted, &affine_coupling_shifted_minus, &affine_coupling_shifted_negated,
             &affine_coupling_shifted_divided, &affine_coupling_normalized, &affine_coupling_normalized_negated,
             &scaled_coupling, &divided_coupling,
             &additive_coupling, &subtractive_coupling, &negated_coupling, &additive_coupling_streams,
             &additive_block_fg, &leapfrog, &leapfrog_down, &momentum_residual, &reversible_heun,
             &reversible_heun_within)
/* clang-format on */
