/* SPDX-License-Identifier: Apache-2.0
 * The discrete cosine transform (DCT-II) along the last axis, with orthonormal rows, and back:
 *
 *     y[k] = c[k] sum_i x[i] cos(pi (2 i + 1) k / 2 n),    c[0] = sqrt(1 / n), c[k] = sqrt(2 / n)
 *
 * As a product with a matrix the library would solve it by factoring that. As an operator of its own it is opaque, and
 * the rule says what is known of it: the inverse is the transposed one, errors keep their size, and so do volumes. */
#include <math.h>

#include "invonnx/plugin.h"

enum { FLOAT32 = 1, FLOAT64 = 11 };

static double get(const inv_op_tensor *t, int64_t i)
{
    return t->dtype == FLOAT64 ? ((const double *)t->data)[i] : (double)((const float *)t->data)[i];
}

static void put(inv_op_tensor *t, int64_t i, double x)
{
    if (t->dtype == FLOAT64) ((double *)t->data)[i] = x;
    else ((float *)t->data)[i] = (float)x;
}

static inv_status like_input(const inv_op_call *c)
{
    if (c->in[0].dtype != FLOAT32 && c->in[0].dtype != FLOAT64)
        return c->fail(c, INV_E_UNSUPPORTED_TYPE, "the input must be float32 or float64");
    if (c->in[0].rank < 1) return c->fail(c, INV_E_SHAPE, "the input has no axis");
    c->out[0] = c->in[0];
    return INV_OK;
}

static double entry(int64_t n, int64_t k, int64_t i)
{
    const double pi = 3.14159265358979323846;
    return sqrt((k ? 2.0 : 1.0) / (double)n) * cos(pi * (double)((2 * i + 1) * k % (4 * n)) / (double)(2 * n));
}

static inv_status transform(const inv_op_call *c, int back)
{
    const int64_t n = c->in[0].dims[c->in[0].rank - 1];
    for (int64_t row = 0; n && row < c->in[0].count; row += n)
        for (int64_t to = 0; to < n; to++) {
            double sum = 0;
            for (int64_t from = 0; from < n; from++)
                sum += get(&c->in[0], row + from) * (back ? entry(n, from, to) : entry(n, to, from));
            put(&c->out[0], row + to, sum);
        }
    return INV_OK;
}

static inv_status forth_cpu(const inv_op_call *c) { return transform(c, 0); }
static inv_status back_cpu(const inv_op_call *c) { return transform(c, 1); }

static double flops(const inv_op_call *c)
{
    return 2 * (double)c->in[0].count * (double)c->in[0].dims[c->in[0].rank - 1];
}

static const inv_operator_def forth = {
    .size = sizeof forth,
    .domain = "com.example",
    .name = "DCT",
    .since = 1,
    .in = "x",
    .out = "y",
    .infer = like_input,
    .cpu = forth_cpu,
    .flops = flops,
    .grad = "d_x = com.example.InverseDCT(d_y)",
    .cases = INV_CASES("y = com.example.DCT(float[4,6] x)", "y = com.example.DCT(float[5] x)"),
    .doc = "the orthonormal DCT-II along the last axis",
};

static const inv_operator_def back = {
    .size = sizeof back,
    .domain = "com.example",
    .name = "InverseDCT",
    .since = 1,
    .in = "y",
    .out = "x",
    .infer = like_input,
    .cpu = back_cpu,
    .flops = flops,
    .cases = INV_CASES("x = com.example.InverseDCT(float[4,6] y)"),
    .doc = "the transposed one",
};

static const inv_inverse_def rule = {
    .size = sizeof rule,
    .name = "dct",
    .priority = 70,
    .match = "y = com.example.DCT(x)",
    .solve = "x = com.example.InverseDCT(y)",
    .frees = "x",
    .gain = "times(1)",
    .logdet = "0",
    .cases = INV_CASES("g(float[4,6] in) => (z) { param float[6,5] B; x = LeakyRelu<alpha = 0.9>(in); "
                       "y = com.example.DCT(x); z = MatMul(y, B) }"),
    .doc = "an orthonormal transform: x is the transposed one of y",
};

INV_PLUGIN(dct)(const inv_api *api, struct inv_registry *r)
{
    inv_status s = api->add_operator(r, &back); /* which the gradient of the other one names */
    if (s == INV_OK) s = api->add_operator(r, &forth);
    return s == INV_OK ? api->add_inverse(r, &rule) : s;
}
