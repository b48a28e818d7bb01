/* SPDX-License-Identifier: Apache-2.0
 * The monotone rational-quadratic spline (Gregory and Delbourgo 1982; neural spline flows, Durkan et al. 2019), one for
 * each feature. X, Y and D [n,K+1] are the knots of feature i and the slopes there; X and Y grow, D is positive. With
 *
 *     q = (x - X[k]) / (X[k+1] - X[k])    m = (Y[k+1] - Y[k]) / (X[k+1] - X[k])    e = D[k+1] + D[k] - 2 m
 *     y = Y[k] + (Y[k+1] - Y[k]) (m q^2 + D[k] q (1 - q)) / (m + e q (1 - q))
 *
 * between two knots, and straight lines outside. In a bin the inverse is a root of a quadratic equation. That knots
 * grow is in the pattern: they are sums of widths and heights, which `when` asks to be positive. The slope may come as
 * near to zero as these let it, so no bound of the gain can be stated: a training keeps x, and flows are sampled and
 * have densities by this rule. Derivatives are complex steps: f(x + i h) = f(x) + i h f'(x), h = 1e-150. */
#include <complex.h>
#include <math.h>

#include "invonnx/plugin.h"

enum { FLOAT32 = 1, FLOAT64 = 11 };
enum { BIN = 6 }; /* numbers of a bin: X, X of the next knot, Y, Y, D, D */

static double get(const inv_op_tensor *t, int64_t i)
{
    return t->dtype == FLOAT64 ? ((const double *)t->data)[i] : (double)((const float *)t->data)[i];
}

static void put(inv_op_tensor *t, int64_t i, double x)
{
    if (t->dtype == FLOAT64) ((double *)t->data)[i] = x;
    else ((float *)t->data)[i] = (float)x;
}

static int64_t knots(const inv_op_call *c) { return c->in[1].dims[1]; }

static inv_status check(const inv_op_call *c)
{
    const inv_op_tensor *x = &c->in[0];
    if (x->dtype != FLOAT32 && x->dtype != FLOAT64)
        return c->fail(c, INV_E_UNSUPPORTED_TYPE, "x must be float32 or float64");
    for (uint32_t i = 1; i < 4; i++)
        if (c->in[i].dtype != x->dtype || c->in[i].rank != 2 ||
            c->in[i].dims[0] != x->dims[x->rank ? x->rank - 1 : 0] || c->in[i].dims[1] != knots(c) || knots(c) < 2)
            return c->fail(c, INV_E_SHAPE, "X, Y and D must be [n,K+1], with x [...,n] and of its type");
    return INV_OK;
}

static inv_status like_x(const inv_op_call *c)
{
    c->out[0] = c->in[0];
    return c->in[0].rank < 1 ? c->fail(c, INV_E_SHAPE, "x has no axis") : check(c);
}

/* The knots around v of a feature, among those of operand `of`; -1 and K: v is outside. */
static int64_t find(const inv_op_call *c, uint32_t of, int64_t feature, double v)
{
    const int64_t n = knots(c), first = feature * n;
    int64_t k = -1;
    while (k + 1 < n && v >= get(&c->in[of], first + k + 1)) k++;
    return k;
}

static int64_t bin(const inv_op_call *c, int64_t feature, int64_t k, double to[BIN])
{
    const int64_t n = knots(c), at = k < 0 ? 0 : k > n - 2 ? n - 2 : k;
    for (int i = 0; i < BIN; i++) to[i] = get(&c->in[1 + i / 2], feature * n + at + i % 2);
    return at;
}

static double complex curve(double complex x, const double complex b[BIN], int side)
{
    if (side) return b[side < 0 ? 2 : 3] + (x - b[side < 0 ? 0 : 1]) * b[side < 0 ? 4 : 5];
    const double complex q = (x - b[0]) / (b[1] - b[0]), m = (b[3] - b[2]) / (b[1] - b[0]), p = q * (1 - q);
    return b[2] + (b[3] - b[2]) * (m * q * q + b[4] * p) / (m + (b[5] + b[4] - 2 * m) * p);
}

static int side_of(const inv_op_call *c, int64_t k) { return k < 0 ? -1 : k >= knots(c) - 1; }

/* dy of x (which < 0) or of a number of the bin; `which` BIN: y itself. */
static double slope(double x, const double b[BIN], int side, int which)
{
    double complex z = x, at[BIN];
    for (int i = 0; i < BIN; i++) at[i] = b[i];
    if (which == BIN) return creal(curve(z, at, side));
    if (which < 0) z += 1e-150 * I;
    else at[which] += 1e-150 * I;
    return cimag(curve(z, at, side)) / 1e-150;
}

static inv_status each(const inv_op_call *c, int which)
{
    const int64_t features = c->in[1].dims[0];
    for (int64_t i = 0; features && i < c->in[0].count; i++) {
        const double x = get(&c->in[0], i);
        const int64_t k = find(c, 1, i % features, x);
        double b[BIN];
        bin(c, i % features, k, b);
        put(&c->out[0], i, slope(x, b, side_of(c, k), which));
    }
    return INV_OK;
}

static inv_status spline_cpu(const inv_op_call *c) { return each(c, BIN); }
static inv_status slope_cpu(const inv_op_call *c) { return each(c, -1); }

static double solve(double y, const double b[BIN], int side)
{
    if (side) return b[side < 0 ? 0 : 1] + (y - b[side < 0 ? 2 : 3]) / b[side < 0 ? 4 : 5];
    const double h = b[3] - b[2], m = h / (b[1] - b[0]), v = y - b[2], e = b[5] + b[4] - 2 * m;
    const double p = h * (m - b[4]) + v * e, q = h * b[4] - v * e, r = -m * v;
    return b[0] + (b[1] - b[0]) * 2 * r / (-q - sqrt(q * q - 4 * p * r));
}

static inv_status solve_cpu(const inv_op_call *c)
{
    const int64_t features = c->in[1].dims[0];
    for (int64_t i = 0; features && i < c->in[0].count; i++) {
        const double y = get(&c->in[0], i);
        const int64_t k = find(c, 2, i % features, y);
        double b[BIN];
        bin(c, i % features, k, b);
        put(&c->out[0], i, solve(y, b, side_of(c, k)));
    }
    return INV_OK;
}

/* The gradients by the knots, of x, X, Y, D and d_y. */
static inv_status like_knots(const inv_op_call *c)
{
    for (int i = 0; i < 3; i++) c->out[i] = c->in[1 + i];
    return check(c);
}

static inv_status knots_cpu(const inv_op_call *c)
{
    const int64_t features = c->in[1].dims[0], n = knots(c);
    for (int o = 0; o < 3; o++)
        for (int64_t i = 0; i < c->in[1].count; i++)
            if (c->out[o].data) put(&c->out[o], i, 0);
    for (int64_t i = 0; features && i < c->in[0].count; i++) {
        const double x = get(&c->in[0], i), d = get(&c->in[4], i);
        const int64_t k = find(c, 1, i % features, x);
        double b[BIN];
        const int64_t at = i % features * n + bin(c, i % features, k, b);
        for (int j = 0; j < BIN; j++) {
            inv_op_tensor *to = &c->out[j / 2];
            if (to->data) put(to, at + j % 2, get(to, at + j % 2) + d * slope(x, b, side_of(c, k), j));
        }
    }
    return INV_OK;
}

#define WIDTHS                                                                                                \
    "param float[3,4] W = {1, 1, 1.5, 1.5, 2, 1, 1, 2, 0.5, 2, 2, 1}; "                                       \
    "param float[3,4] H = {0.5, 0.5, 1.5, 1, 1, 1, 2, 1, 1, 2, 0.5, 2.5}; param float[3,1] l = {3, 3, 3.5}; " \
    "param float[3,4] D = {1, 0.5, 1.5, 1, 0.5, 1, 2, 1, 1, 0.75, 0.5, 2}; param float[3,1] m = {1.5, 3, 3}; "
#define OPERANDS "float[3,4] X, float[3,4] Y, float[3,4] D"

static const inv_operator_def spline_knots = {
    .size = sizeof spline_knots,
    .domain = "com.example",
    .name = "SplineKnots",
    .since = 1,
    .in = "x X Y D d_y",
    .out = "d_X d_Y d_D",
    .infer = like_knots,
    .cpu = knots_cpu,
    .cases = INV_CASES("a, b, c = com.example.SplineKnots(float[4,3] x, " OPERANDS ", float[4,3] d)"),
    .doc = "the gradients of Spline by its knots",
};
static const inv_operator_def spline_slope = {
    .size = sizeof spline_slope,
    .domain = "com.example",
    .name = "SplineSlope",
    .since = 1,
    .in = "x X Y D",
    .out = "k",
    .infer = like_x,
    .cpu = slope_cpu,
    .cases = INV_CASES("k = com.example.SplineSlope(float[4,3] x, " OPERANDS ")"),
    .doc = "dy/dx of Spline",
};
static const inv_operator_def spline_inverse = {
    .size = sizeof spline_inverse,
    .domain = "com.example",
    .name = "SplineInverse",
    .since = 1,
    .in = "y X Y D",
    .out = "x",
    .infer = like_x,
    .cpu = solve_cpu,
    .cases = INV_CASES("x = com.example.SplineInverse(float[4,3] y, " OPERANDS ")"),
    .doc = "solves Spline for x",
};
static const inv_operator_def spline = {
    .size = sizeof spline,
    .domain = "com.example",
    .name = "Spline",
    .since = 1,
    .in = "x X Y D",
    .out = "y",
    .infer = like_x,
    .cpu = spline_cpu,
    .grad = "k = com.example.SplineSlope(x, X, Y, D); d_x = Mul(d_y, k); "
            "d_X, d_Y, d_D = com.example.SplineKnots(x, X, Y, D, d_y)",
    .cases = INV_CASES(
        "a = Exp(float[3,4] i)\nb = CumSumAxis<axis = 1>(a)\nX = Sub(b, float[3,1] f)\nc = Exp(float[3,4] j)\n"
        "Y = CumSumAxis<axis = 1>(c)\nD = Exp(float[3,4] k)\ny = com.example.Spline(float[4,3] x, X, Y, D)"),
    .doc = "monotone rational-quadratic splines, one for each feature",
};

static const inv_inverse_def rule = {
    .size = sizeof rule,
    .name = "rational_quadratic_spline",
    .priority = 70,
    .match = "A = CumSumAxis(param(W)); X = Sub(A, param(l)); C = CumSumAxis(param(H)); Y = Sub(C, param(m)); "
             "y = com.example.Spline(x, X, Y, D)",
    .solve = "x = com.example.SplineInverse(y, X, Y, D); k = com.example.SplineSlope(x, X, Y, D)",
    .frees = "x",
    .when = "attr(A.axis) == 1; attr(A.exclusive, 0) == 0; attr(A.reverse, 0) == 0; attr(C.axis) == 1; "
            "attr(C.exclusive, 0) == 0; attr(C.reverse, 0) == 0; positive(W); positive(H); positive(D)",
    .gain = "unbounded",
    .logdet = "log_once(k)",
    .cases =
        INV_CASES("g(float[4,3] in) => (z) { param float[3,5] B; const int64[1] o = {1}; " WIDTHS
                  "x = LeakyRelu<alpha = 0.9>(in); A = CumSum(W, o); X = Sub(A, l); C = CumSum(H, o); Y = Sub(C, m); "
                  "y = com.example.Spline(x, X, Y, D); z = MatMul(y, B) }"),
    .doc = "in each bin x is a root of a quadratic equation",
};

INV_PLUGIN(spline)(const inv_api *api, struct inv_registry *r)
{
    const inv_operator_def *const operators[] = {&spline_knots, &spline_slope, &spline_inverse, &spline};
    inv_status s = INV_OK;
    for (int i = 0; i < 4 && s == INV_OK; i++) s = api->add_operator(r, operators[i]);
    return s == INV_OK ? api->add_inverse(r, &rule) : s;
}
