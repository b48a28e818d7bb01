/* SPDX-License-Identifier: Apache-2.0
 * Rotations by the matrix exponential of skew matrices, R = exp(S - S'), one or a batch of them; and rows of x turned
 * by such an R. The library solves products with parameters by factoring these. Here S may come from the data, a
 * rotation for each sample: then nobody knows R before the run, but exp says that its inverse is its transposed one.
 *
 * The exponential is a Taylor series of A / 2^k, squared k times (Moler and Van Loan 2003). Its derivative in direction
 * G is in the upper right of exp([[A, G], [0, A]]); the gradient by A is the derivative at A' in direction d_R. */
#include <math.h>
#include <string.h>

#include "invonnx/plugin.h"

enum { FLOAT32 = 1, FLOAT64 = 11, TERMS = 18 };

static double get(const inv_op_tensor *t, int64_t i)
{
    return t->dtype == FLOAT64 ? ((const double *)t->data)[i] : (double)((const float *)t->data)[i];
}

static void put(inv_op_tensor *t, int64_t i, double x)
{
    if (t->dtype == FLOAT64) ((double *)t->data)[i] = x;
    else ((float *)t->data)[i] = (float)x;
}

static int64_t width(const inv_op_call *c) { return c->in[0].dims[c->in[0].rank - 1]; }

static inv_status like_input(const inv_op_call *c)
{
    const inv_op_tensor *s = &c->in[0];
    if (s->dtype != FLOAT32 && s->dtype != FLOAT64)
        return c->fail(c, INV_E_UNSUPPORTED_TYPE, "S must be float32 or float64");
    if (s->rank < 2 || s->dims[s->rank - 1] != s->dims[s->rank - 2])
        return c->fail(c, INV_E_SHAPE, "the last two extents of S must be equal");
    c->out[0] = *s;
    return INV_OK;
}

static void multiply(int64_t n, const double *a, const double *b, double *to)
{
    for (int64_t i = 0; i < n; i++)
        for (int64_t j = 0; j < n; j++) {
            double sum = 0;
            for (int64_t k = 0; k < n; k++) sum += a[i * n + k] * b[k * n + j];
            to[i * n + j] = sum;
        }
}

/* exp(a) into sum; both of the others are room for as much. */
static void exponential(int64_t n, double *a, double *sum, double *term, double *next)
{
    const size_t nbytes = (size_t)(n * n) * sizeof *a;
    double norm = 0;
    int squarings = 0;
    for (int64_t i = 0; i < n * n; i++) norm += a[i] * a[i];
    for (norm = sqrt(norm); norm > 0.5 && squarings < 1100; norm /= 2) squarings++;
    for (int64_t i = 0; i < n * n; i++) {
        a[i] = ldexp(a[i], -squarings);
        sum[i] = term[i] = i % (n + 1) == 0;
    }
    for (int k = 1; k <= TERMS; k++) {
        multiply(n, term, a, next);
        for (int64_t i = 0; i < n * n; i++) sum[i] += term[i] = next[i] / k;
    }
    for (; squarings > 0; squarings--) {
        multiply(n, sum, sum, next);
        memcpy(sum, next, nbytes);
    }
}

/* Squaring has magnified rounding, and R would be no rotation any more: Newton's step to the nearest, R (3 I - R' R)
 * / 2. */
static void straighten(int64_t n, double *r, double *product, double *next)
{
    for (int64_t i = 0; i < n; i++)
        for (int64_t j = 0; j < n; j++) {
            double sum = 0;
            for (int64_t k = 0; k < n; k++) sum += r[k * n + i] * r[k * n + j];
            product[i * n + j] = ((i == j ? 3.0 : 0.0) - sum) / 2;
        }
    multiply(n, r, product, next);
    memcpy(r, next, (size_t)(n * n) * sizeof *r);
}

/* Of a matrix of n rows: the exponential works on one twice as high for the gradient. */
static size_t room(const inv_op_call *c, int64_t times)
{
    const size_t n = (size_t)(times * width(c));
    return 4 * n * n * sizeof(double);
}

static size_t room_forward(const inv_op_call *c) { return room(c, 1); }
static size_t room_gradient(const inv_op_call *c) { return room(c, 2); }

static inv_status forward_cpu(const inv_op_call *c)
{
    const int64_t n = width(c), nn = n * n;
    double *a = c->workspace, *sum = a + nn;
    for (int64_t at = 0; nn && at < c->in[0].count; at += nn) {
        for (int64_t i = 0; i < n; i++)
            for (int64_t j = 0; j < n; j++)
                a[i * n + j] = get(&c->in[0], at + i * n + j) - get(&c->in[0], at + j * n + i);
        exponential(n, a, sum, sum + nn, sum + 2 * nn);
        straighten(n, sum, sum + nn, sum + 2 * nn);
        for (int64_t i = 0; i < nn; i++) put(&c->out[0], at + i, sum[i]);
    }
    return INV_OK;
}

/* From S and d_R. The transposed matrix of a skew one is its negative. */
static inv_status gradient_cpu(const inv_op_call *c)
{
    const int64_t n = width(c), nn = n * n, m = 2 * n, mm = m * m;
    double *a = c->workspace, *sum = a + mm;
    for (int64_t at = 0; nn && at < c->in[0].count; at += nn) {
        memset(a, 0, (size_t)mm * sizeof *a);
        for (int64_t i = 0; i < n; i++)
            for (int64_t j = 0; j < n; j++) {
                const double skew = get(&c->in[0], at + i * n + j) - get(&c->in[0], at + j * n + i);
                a[i * m + j] = a[(n + i) * m + n + j] = -skew;
                a[i * m + n + j] = get(&c->in[1], at + i * n + j);
            }
        exponential(m, a, sum, sum + mm, sum + 2 * mm);
        for (int64_t i = 0; i < n; i++)
            for (int64_t j = 0; j < n; j++) put(&c->out[0], at + i * n + j, sum[i * m + n + j] - sum[j * m + n + i]);
    }
    return INV_OK;
}

static double flops(const inv_op_call *c) { return 2 * (TERMS + 4) * (double)c->in[0].count * (double)width(c); }

static const inv_operator_def gradient = {
    .size = sizeof gradient,
    .domain = "com.example",
    .name = "SkewExpGrad",
    .since = 1,
    .in = "S d_R",
    .out = "d_S",
    .infer = like_input,
    .cpu = gradient_cpu,
    .workspace = room_gradient,
    .flops = flops,
    .cases = INV_CASES("g = com.example.SkewExpGrad(float[2,3,3] S, float[2,3,3] d)"),
    .doc = "the gradient of SkewExp by S",
};

static const inv_operator_def forward = {
    .size = sizeof forward,
    .domain = "com.example",
    .name = "SkewExp",
    .since = 1,
    .in = "S",
    .out = "R",
    .infer = like_input,
    .cpu = forward_cpu,
    .workspace = room_forward,
    .flops = flops,
    .grad = "d_S = com.example.SkewExpGrad(S, d_R)",
    .cases = INV_CASES("R = com.example.SkewExp(float[2,3,3] S)", "R = com.example.SkewExp(float[4,4] S)"),
    .doc = "exp(S - S'), a rotation",
};

static const inv_inverse_def rule = {
    .size = sizeof rule,
    .name = "matrix_exp",
    .priority = 70,
    .match = "R = com.example.SkewExp(S); y = MatMulT(x, R)",
    .solve = "x = MatMulT<transA = 0, transB = 1>(y, R)",
    .frees = "x",
    .when = "same_shape(x, y); attr(y.transA, 0) == 0; attr(y.transB, 0) == 0",
    .gain = "times(1)",
    .logdet = "0",
    .cases =
        INV_CASES("g(float[4,2,3] in, float[4,3,3] S) => (z) { param float[3,5] B; x = LeakyRelu<alpha = 0.9>(in); "
                  "R = com.example.SkewExp(S); y = MatMul(x, R); z = MatMul(y, B) }"),
    .doc = "y = x R of a rotation R = exp(S - S'): x = y R'",
};

INV_PLUGIN(matrix_exp)(const inv_api *api, struct inv_registry *r)
{
    inv_status s = api->add_operator(r, &gradient);
    if (s == INV_OK) s = api->add_operator(r, &forward);
    return s == INV_OK ? api->add_inverse(r, &rule) : s;
}
