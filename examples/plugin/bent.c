/* SPDX-License-Identifier: Apache-2.0
 * A plugin: the operator com.example.BentIdentity, its inverse as a second operator, and the rule that connects them.
 *
 *     y = (sqrt(x^2 + 1) - 1) / 2 + x          dy/dx = x / (2 sqrt(x^2 + 1)) + 1, between 1/2 and 3/2
 *     x = (2 c - sqrt(c^2 + 3)) / 3, c = 2 y + 1
 *
 *     cc -shared -fPIC -DINV_PLUGIN_SHARED bent.c -o bent.so -lm
 *     invonnx selftest --plugin bent.so
 *
 * For devices too: `nvcc -c -Xcompiler -fPIC bent.cu -o bent.cu.o`, and -DHAVE_CUDA bent.cu.o -lcudart for cc. */
#include <math.h>

#include "invonnx/plugin.h"

enum { FLOAT32 = 1, FLOAT64 = 11 };

static inv_status like_input(const inv_op_call *c)
{
    if (c->in[0].dtype != FLOAT32 && c->in[0].dtype != FLOAT64)
        return c->fail(c, INV_E_UNSUPPORTED_TYPE, "the input must be float32 or float64");
    c->out[0] = c->in[0];
    return INV_OK;
}

static double bend(double x) { return (sqrt(x * x + 1) - 1) / 2 + x; }

static double unbend(double y)
{
    double c = 2 * y + 1;
    return (2 * c - sqrt(c * c + 3)) / 3;
}

static inv_status each(const inv_op_call *c, double (*f)(double))
{
    for (int64_t i = 0; i < c->in[0].count; i++) {
        if (c->in[0].dtype == FLOAT64) ((double *)c->out[0].data)[i] = f(((const double *)c->in[0].data)[i]);
        else ((float *)c->out[0].data)[i] = (float)f((double)((const float *)c->in[0].data)[i]);
    }
    return INV_OK;
}

static inv_status bend_cpu(const inv_op_call *c) { return each(c, bend); }
static inv_status unbend_cpu(const inv_op_call *c) { return each(c, unbend); }

#ifdef HAVE_CUDA
void bent_launch(int wide, int inverse, long long n, const void *x, void *y, void *stream); /* bent.cu */

static inv_status start(const inv_op_call *c, int inverse)
{
    bent_launch(c->in[0].dtype == FLOAT64, inverse, c->in[0].count, c->in[0].data, c->out[0].data, c->stream);
    return INV_OK; /* that a kernel could not be started is seen by whoever called */
}

static inv_status bend_cuda(const inv_op_call *c) { return start(c, 0); }
static inv_status unbend_cuda(const inv_op_call *c) { return start(c, 1); }
#else
#define bend_cuda NULL
#define unbend_cuda NULL
#endif

static double flops(const inv_op_call *c) { return 6 * (double)c->in[0].count; }

static const inv_operator_def bent = {
    .size = sizeof bent,
    .domain = "com.example",
    .name = "BentIdentity",
    .since = 1,
    .inplace = 1,
    .in = "x",
    .out = "y",
    .infer = like_input,
    .cpu = bend_cpu,
    .cuda = bend_cuda,
    .flops = flops,
    .grad = "q = Mul(x, x); r = Add(q, float[] {1}); s = Sqrt(r); h = Div(x, s); k = Mul(h, float[] {0.5}); "
            "m = Add(k, float[] {1}); d_x = Mul(d_y, m)",
    .cases = INV_CASES("y = com.example.BentIdentity(float[4,6] x)", "y = com.example.BentIdentity(float[30] x)"),
    .doc = "(sqrt(x^2 + 1) - 1) / 2 + x",
};

static const inv_operator_def unbent = {
    .size = sizeof unbent,
    .domain = "com.example",
    .name = "BentIdentityInverse",
    .since = 1,
    .inplace = 1,
    .in = "y",
    .out = "x",
    .infer = like_input,
    .cpu = unbend_cpu,
    .cuda = unbend_cuda,
    .flops = flops,
    .cases = INV_CASES("x = com.example.BentIdentityInverse(float[30] y)"),
    .doc = "solves BentIdentity for x",
};

/* x is wanted by the gradients of both activations, y by that of the product. */
static const inv_inverse_def rule = {
    .size = sizeof rule,
    .name = "bent_identity",
    .priority = 20,
    .match = "y = com.example.BentIdentity(x)",
    .solve = "x = com.example.BentIdentityInverse(y)",
    .frees = "x",
    .gain = "times(2)",
    .cases = INV_CASES("g(float[4,6] in) => (z) { param float[6,5] B; x = LeakyRelu<alpha = 0.9>(in); "
                       "y = com.example.BentIdentity(x); z = MatMul(y, B) }"),
    .doc = "x = (2 c - sqrt(c^2 + 3)) / 3, c = 2 y + 1",
};

INV_PLUGIN(bent)(const inv_api *api, struct inv_registry *r)
{
    inv_status s = api->add_operator(r, &bent);
    if (s == INV_OK) s = api->add_operator(r, &unbent);
    return s == INV_OK ? api->add_inverse(r, &rule) : s;
}
