/* SPDX-License-Identifier: Apache-2.0
 * Determinants of square matrices, in float64 by LU with partial pivoting. The gradient of det A is the matrix of
 * cofactors, which exists for every A: by complete pivoting P A Q = L U, where a singular A has its zeros at the end of
 * U's diagonal, and adj(A) = +-Q adj(U) inv(L) P, where adj(U) is formed without dividing by the last pivot t:
 *     U = [U1 u; 0 t], d = det U1:  adj(U) = d [t inv(U1), -inv(U1) u; 0, 1].
 * If d is 0, too, the rank is at most n - 2 and all cofactors are 0. */
#include "ops/base/families.h"
#include "ops/base/rows.h"
#include "ops/base/util.h"
#include "ops/linear/det_gpu.h"

typedef struct lu {
    double *a;          /* n x n, row-major: L below the diagonal, U */
    int64_t *row, *col; /* which row and column of the matrix is here */
    int64_t n;
} lu;

static lu lu_in(double *ws, int64_t n)
{
    return (lu){ws, (int64_t *)(void *)(ws + n * n), (int64_t *)(void *)(ws + n * n + n), n};
}

static void exchange(const lu *f, int64_t k, int64_t r, int64_t c)
{
    const int64_t n = f->n, row = f->row[k], col = f->col[k];
    for (int64_t j = 0; j < n && r != k; j++) {
        const double v = f->a[k * n + j];
        f->a[k * n + j] = f->a[r * n + j];
        f->a[r * n + j] = v;
    }
    for (int64_t i = 0; i < n && c != k; i++) {
        const double v = f->a[i * n + k];
        f->a[i * n + k] = f->a[i * n + c];
        f->a[i * n + c] = v;
    }
    f->row[k] = f->row[r];
    f->row[r] = row;
    f->col[k] = f->col[c];
    f->col[c] = col;
}

/* Factors matrix m of x; returns the sign of the exchanges. */
static double factor_lu(const lu *f, const inv_tensor *x, int64_t m, bool complete)
{
    const int64_t n = f->n;
    double sign = 1;
    for (int64_t e = 0; e < n * n; e++) f->a[e] = inv_elem_double(x->data, x->dtype, (size_t)(m * n * n + e));
    for (int64_t i = 0; i < n; i++) f->row[i] = f->col[i] = i;
    for (int64_t k = 0; k < n; k++) {
        double best = -1;
        int64_t r = k, c = k;
        for (int64_t i = k; i < n; i++) {
            for (int64_t j = k; j < (complete ? n : k + 1); j++) {
                if (!(fabs(f->a[i * n + j]) > best)) continue;
                best = fabs(f->a[i * n + j]);
                r = i;
                c = j;
            }
        }
        exchange(f, k, r, c);
        if (r != k) sign = -sign;
        if (c != k) sign = -sign;
        const double pivot = f->a[k * n + k];
        if (pivot == 0) continue;
        for (int64_t i = k + 1; i < n; i++) {
            const double l = f->a[i * n + k] /= pivot;
            for (int64_t j = k + 1; j < n; j++) f->a[i * n + j] -= l * f->a[k * n + j];
        }
    }
    return sign;
}

/* Column c of adj(U) inv(L) to z; rest: the product of the diagonal without its last. */
static void adjugate_column(const lu *f, int64_t c, double rest, double *z)
{
    const int64_t n = f->n, last = n - 1;
    const double t = f->a[last * n + last];
    for (int64_t i = 0; i < n; i++) {
        double v = i == c ? 1 : 0;
        for (int64_t j = c; j < i; j++) v -= f->a[i * n + j] * z[j];
        z[i] = v;
    }
    for (int64_t i = last - 1; i >= 0; i--) {
        double v = t * z[i] - f->a[i * n + last] * z[last];
        for (int64_t j = i + 1; j < last; j++) v -= f->a[i * n + j] * z[j];
        z[i] = v / f->a[i * n + i];
    }
    for (int64_t i = 0; i < n; i++) z[i] *= rest;
}

static bool det_is_grad(const inv_node *n) { return strcmp(n->op_type, "DetGrad") == 0; }

/* Matrices and their order. */
static int64_t matrices(const inv_shape *x, int64_t *n)
{
    *n = x->dim[x->rank - 1];
    return inv_prod(x, 0, x->rank - 2);
}

static inv_status det_infer(inv_graph *g, inv_node *n)
{
    const uint32_t at = det_is_grad(n) ? 1 : 0; /* x */
    INV_TRY(inv_need_reals(g, n, at + 1));
    const inv_shape *x = inv_in_shape(g, n, at);
    if (x->rank < 2 || x->dim[x->rank - 1] != x->dim[x->rank - 2])
        return inv_node_fail(g, n, INV_E_SHAPE, "the last two extents must form a square matrix");
    if (x->dim[x->rank - 1] > 1 << 15) return inv_node_fail(g, n, INV_E_SHAPE, "the matrix is too large");
    const inv_shape s = inv_shape_of(x->rank - 2, x->dim);
    if (at == 1 && !inv_shape_equal(&s, inv_in_shape(g, n, 0)))
        return inv_node_fail(g, n, INV_E_SHAPE, "the gradient needs one number per matrix");
    inv_set_out(g, n, 0, inv_in_dtype(g, n, 0), at ? x : &s);
    return INV_OK;
}

/* The host takes one matrix after the other. */
static size_t det_workspace(const inv_graph *g, const inv_node *n)
{
    int64_t order;
    const bool grad = det_is_grad(n);
    const int64_t count = matrices(inv_in_shape(g, n, grad ? 1 : 0), &order);
    return (size_t)((g->gpu ? count : 1) * inv_det_doubles(order, grad)) * sizeof(double);
}

static inv_status det_run(const inv_call *c)
{
    int64_t n;
    const int64_t count = matrices(&c->in[0].shape, &n);
    if (count == 0) return INV_OK;
    if (c->gpu) {
        INV_GPU(c->gpu, det, c->in[0].dtype, count, n, c->in[0].data, c->out[0].data, c->ws);
        return INV_OK;
    }
    const lu f = lu_in(c->ws, n);
    for (int64_t m = 0; m < count; m++) {
        double det = factor_lu(&f, &c->in[0], m, false);
        for (int64_t k = 0; k < n; k++) det *= f.a[k * n + k];
        inv_put_real(c->out[0].data, c->out[0].dtype, m, det);
    }
    return INV_OK;
}

static inv_status det_grad_run(const inv_call *c)
{
    int64_t n;
    const int64_t count = matrices(&c->in[1].shape, &n);
    if (count == 0 || n == 0) return INV_OK;
    if (c->gpu) {
        INV_GPU(c->gpu, det_grad, c->in[0].dtype, count, n, c->in[0].data, c->in[1].data, c->out[0].data, c->ws);
        return INV_OK;
    }
    const lu f = lu_in(c->ws, n);
    double *z = (double *)c->ws + n * n + 2 * n;
    for (int64_t m = 0; m < count; m++) {
        const double sign = factor_lu(&f, &c->in[1], m, true),
                     g = inv_elem_double(c->in[0].data, c->in[0].dtype, (size_t)m);
        double rest = 1;
        for (int64_t k = 0; k + 1 < n; k++) rest *= f.a[k * n + k];
        for (int64_t j = 0; j < n; j++) {
            if (rest != 0) adjugate_column(&f, j, rest, z);
            for (int64_t i = 0; i < n; i++)
                inv_put_real(c->out[0].data, c->out[0].dtype, m * n * n + f.row[j] * n + f.col[i],
                             rest != 0 ? g * (sign * z[i]) : 0);
        }
    }
    return INV_OK;
}

static inv_status det_grad(inv_grad *b)
{
    if (inv_GO(b, 0) == INV_NONE || !inv_wants(b, 0)) return INV_OK;
    inv_grad_set(b, 0, inv_emit1(b->g, "DetGrad", INV_IN(inv_GO(b, 0), inv_I(b, 0)), INV_NOATTR));
    return inv_grad_done(b);
}

static double det_flops(const inv_graph *g, const inv_node *n)
{
    int64_t order;
    const bool grad = det_is_grad(n);
    const double count = (double)matrices(inv_in_shape(g, n, grad ? 1 : 0), &order), k = (double)order;
    return count * k * k * k * (grad ? 3 : 2.0 / 3);
}

static inv_status onnx_det_lower(inv_graph *g, const inv_node *n, inv_id *out)
{
    out[0] = inv_emit1(g, "DetN", INV_IN(n->in[0]), INV_NOATTR);
    return inv_done(g);
}

/* clang-format off */
static const char *const det_cases[] = {
    "y = DetN(float[3,4,4] x)",   "y = DetN(float[2,2] x)",   "y = DetN(float[2,1,1] x)",
    "y = DetN(float[1,20,20] x)", "y = DetN(float[0,3,3] x)", NULL};
static const inv_op_def det_row = {
    .size = sizeof(inv_op_def), .domain = INV_IR, .name = "DetN", .since = 1, .in = "x", .out = "y",
    .infer = det_infer, .grad = det_grad, .run = det_run,
    .work = inv_work_scalar, .workspace = det_workspace,
    .flops = det_flops, .cases = det_cases,
    .doc = "determinants of the last two axes, by LU with partial pivoting in float64"};

static const char *const det_grad_cases[] = {"gx = DetGrad(float[2,3] gy, float[2,3,5,5] x)",
                                             "gx = DetGrad(float[1] gy, float[1,1,1] x)", NULL};
static const inv_op_def det_grad_row = {
    .size = sizeof(inv_op_def), .domain = INV_IR, .name = "DetGrad", .since = 1, .in = "gy x", .out = "gx",
    .infer = det_infer, .run = det_grad_run,
    .work = inv_work_scalar, .workspace = det_workspace, .flops = det_flops,
    .cases = det_grad_cases,
    .doc = "gy times the cofactors of x: det(x) inv(x)^T, and its limit where x is singular; nothing divides by zero"};
/* clang-format on */

INV_LOWERED(onnx_det, "Det", 11, "X", "Y", "to DetN. ONNX Det-11, -22", "y = Det(float[2,3,3] x)")

const inv_op_def *const inv_ops_det[] = {&det_row, &det_grad_row, &onnx_det_row, NULL};
