/* SPDX-License-Identifier: Apache-2.0
 * The Cayley transform of a skew matrix A = S - S', applied to the rows of x:
 *
 *     y = (I + A)^-1 (I - A) x,    x = (I - A)^-1 (I + A) y, the same with -S
 *
 * It is orthogonal for every S, so errors and volumes keep their size. Gradients: with d_x, which is the same transform
 * of d_y with -S, the gradient by A is -(d_x + d_y) (x + y)' / 2. ONNX has no operator that solves, so it is one of C.
 */
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

static inv_status like_x(const inv_op_call *c)
{
    const inv_op_tensor *x = &c->in[0], *s = &c->in[1];
    if ((x->dtype != FLOAT32 && x->dtype != FLOAT64) || x->dtype != s->dtype)
        return c->fail(c, INV_E_UNSUPPORTED_TYPE, "x and S must be both float32 or both float64");
    if (x->rank != 2 || s->rank != 2 || s->dims[0] != x->dims[1] || s->dims[1] != x->dims[1])
        return c->fail(c, INV_E_SHAPE, "x must be [N,n] and S [n,n]");
    c->out[0] = *x;
    return INV_OK;
}

static size_t workspace(const inv_op_call *c)
{
    const size_t n = (size_t)c->in[0].dims[1];
    return (2 * n * n + n) * sizeof(double);
}

/* Rows of [M | V] until M is the identity: Gauss and Jordan, the largest pivot first. */
static void eliminate(int64_t n, double *m, double *v)
{
    for (int64_t k = 0; k < n; k++) {
        int64_t p = k;
        for (int64_t i = k + 1; i < n; i++)
            if (fabs(m[i * n + k]) > fabs(m[p * n + k])) p = i;
        for (int64_t j = 0; j < n; j++) {
            const double a = m[k * n + j], b = v[k * n + j];
            m[k * n + j] = m[p * n + j], m[p * n + j] = a;
            v[k * n + j] = v[p * n + j], v[p * n + j] = b;
        }
        const double pivot = m[k * n + k];
        for (int64_t j = 0; j < n; j++) m[k * n + j] /= pivot, v[k * n + j] /= pivot;
        for (int64_t i = 0; i < n; i++) {
            const double f = m[i * n + k];
            for (int64_t j = 0; i != k && j < n; j++)
                m[i * n + j] -= f * m[k * n + j], v[i * n + j] -= f * v[k * n + j];
        }
    }
}

static inv_status cayley_cpu(const inv_op_call *c)
{
    const int64_t n = c->in[0].dims[1];
    double *m = c->workspace, *v = m + n * n, *x = v + n * n;
    for (int64_t i = 0; i < n; i++)
        for (int64_t j = 0; j < n; j++) {
            const double a = get(&c->in[1], i * n + j) - get(&c->in[1], j * n + i);
            m[i * n + j] = (i == j) + a;
            v[i * n + j] = (i == j) - a;
        }
    eliminate(n, m, v);
    for (int64_t row = 0; n && row < c->in[0].count; row += n) {
        for (int64_t j = 0; j < n; j++) x[j] = get(&c->in[0], row + j);
        for (int64_t i = 0; i < n; i++) {
            double sum = 0;
            for (int64_t j = 0; j < n; j++) sum += v[i * n + j] * x[j];
            put(&c->out[0], row + i, sum);
        }
    }
    return INV_OK;
}

static double flops(const inv_op_call *c)
{
    const double n = (double)c->in[0].dims[1];
    return 2 * n * (double)c->in[0].count + 2 * n * n * n;
}

static const inv_operator_def cayley = {
    .size = sizeof cayley,
    .domain = "com.example",
    .name = "Cayley",
    .since = 1,
    .in = "x S",
    .out = "y",
    .infer = like_x,
    .cpu = cayley_cpu,
    .workspace = workspace,
    .flops = flops,
    .grad =
        "n = Neg(S); d_x = com.example.Cayley(d_y, n); s = Add(d_x, d_y); t = Add(x, y); "
        "m = MatMulT<transA = 1>(s, t); u = Transpose<perm = [1, 0]>(m); k = Sub(u, m); d_S = Mul(k, float[] {0.5})",
    .cases = INV_CASES("y = com.example.Cayley(float[4,3] x, float[3,3] S)"),
    .doc = "(I + A)^-1 (I - A) x for the rows of x, A = S - S'",
};

static const inv_inverse_def rule = {
    .size = sizeof rule,
    .name = "cayley",
    .priority = 70,
    .match = "y = com.example.Cayley(x, S)",
    .solve = "n = Neg(S); x = com.example.Cayley(y, n)",
    .frees = "x",
    .gain = "times(1)",
    .logdet = "0",
    .cases =
        INV_CASES("g(float[4,3] in) => (z) { param float[3,5] B; param float[3,3] S; x = LeakyRelu<alpha = 0.9>(in); "
                  "y = com.example.Cayley(x, S); z = MatMul(y, B) }"),
    .doc = "the transform with -S",
};

INV_PLUGIN(cayley)(const inv_api *api, struct inv_registry *r)
{
    inv_status s = api->add_operator(r, &cayley);
    return s == INV_OK ? api->add_inverse(r, &rule) : s;
}
