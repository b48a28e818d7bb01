/* SPDX-License-Identifier: Apache-2.0
 * The planar flow (Rezende and Mohamed 2015), of rows of x, with u and w from parameters:
 *
 *     y = x + u tanh(w x + b)
 *
 * Its inverse has no closed form, but only one number for each row is to be found: a = w x + b solves
 * a + (w u) tanh(a) = w y + b, whose left side grows with a where w u > -1. Then x = y - u tanh(a). So the plugin
 * brings an operator that solves this equation, and a rule that calls it; forward is ONNX's own operators.
 *
 * Errors are magnified at most 1 / (1 - |u| |w|) times, so `when` asks that both norms are below 0.7, and `gain`
 * says 2. log |det| is that of k = 1 + (w u) (1 - tanh(a)^2), a number for each row. */
#include <math.h>

#include "invonnx/plugin.h"

enum { FLOAT32 = 1, FLOAT64 = 11 };

static double get(const inv_op_tensor *t, int64_t i)
{
    return t->dtype == FLOAT64 ? ((const double *)t->data)[i] : (double)((const float *)t->data)[i];
}

static inv_status like_r(const inv_op_call *c)
{
    if (c->in[0].dtype != FLOAT32 && c->in[0].dtype != FLOAT64)
        return c->fail(c, INV_E_UNSUPPORTED_TYPE, "r must be float32 or float64");
    if (c->in[1].count != 1) return c->fail(c, INV_E_SHAPE, "c must be one number");
    c->out[0] = c->in[0];
    return INV_OK;
}

/* Newton's steps within an interval that holds the solution; it is halved where a step would leave it. */
static double solve(double r, double c)
{
    double low = r - fabs(c), high = r + fabs(c), a = r;
    for (int i = 0; i < 100 && low < high; i++) {
        const double t = tanh(a), f = a + c * t - r;
        if (f > 0) high = a;
        else low = a;
        double next = a - f / (1 + c * (1 - t * t));
        if (!(next >= low && next <= high)) next = low + (high - low) / 2;
        if (next == a) break;
        a = next;
    }
    return a;
}

static inv_status solve_cpu(const inv_op_call *c)
{
    const double factor = get(&c->in[1], 0);
    for (int64_t i = 0; i < c->in[0].count; i++) {
        const double a = solve(get(&c->in[0], i), factor);
        if (c->out[0].dtype == FLOAT64) ((double *)c->out[0].data)[i] = a;
        else ((float *)c->out[0].data)[i] = (float)a;
    }
    return INV_OK;
}

static double flops(const inv_op_call *c) { return 100 * (double)c->in[0].count; }

static const inv_operator_def planar_solve = {
    .size = sizeof planar_solve,
    .domain = "com.example",
    .name = "PlanarSolve",
    .since = 1,
    .in = "r c",
    .out = "a",
    .infer = like_r,
    .cpu = solve_cpu,
    .flops = flops,
    .cases = INV_CASES("a = com.example.PlanarSolve(float[4,1] r, float[1,1] c)"),
    .doc = "solves a + c tanh(a) = r, c > -1",
};

static const inv_inverse_def rule = {
    .size = sizeof rule,
    .name = "planar_flow",
    .priority = 70,
    .match = "h = MatMulT(x, param(w)); a = Add(h, param(b)); t = Tanh(a); d = MatMulT(t, param(u)); y = Add(x, d)",
    .solve = "g = MatMulT(y, w); r = Add(g, b); c = MatMulT(u, w); s = com.example.PlanarSolve(r, c); v = Tanh(s); "
             "e = MatMulT(v, u); x = Sub(y, e); q = Mul(v, v); f = Sub(1, q); p = Mul(f, c); k = Add(p, 1)",
    .frees = "x",
    .when = "same_shape(x, y); attr(h.transA, 0) == 0; attr(h.transB, 0) == 0; attr(d.transA, 0) == 0; "
            "attr(d.transB, 0) == 0; norm(w) < 0.7; norm(u) < 0.7",
    .gain = "times(2)",
    .logdet = "log_once(k)",
    .cases = INV_CASES("g(float[4,6] in) => (z) { param float[6,5] B; param float[6,1] w; param float[1,6] u; "
                       "param float[1] b; x = LeakyRelu<alpha = 0.9>(in); h = MatMul(x, w); a = Add(h, b); "
                       "t = Tanh(a); d = MatMul(t, u); y = Add(x, d); z = MatMul(y, B) }"),
    .doc = "a solves a + (w u) tanh(a) = w y + b, and x = y - u tanh(a)",
};

INV_PLUGIN(planar)(const inv_api *api, struct inv_registry *r)
{
    inv_status s = api->add_operator(r, &planar_solve);
    return s == INV_OK ? api->add_inverse(r, &rule) : s;
}
