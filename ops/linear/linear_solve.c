/* SPDX-License-Identifier: Apache-2.0
 * LinearSolve(y, W): the x with x op(W) = y, W constant over the rows of y. Everything in float64 whatever the type of
 * the data. Square: A = op(W)^T = LU with partial pivoting, A x^T = y^T. Tall (fewer columns in x than in y): A = QR,
 * x^T = R^-1 Q^T y^T, the least squares solution, equal to y times the pseudo-inverse. A singular matrix gives NaN in
 * every element, which the guard reports; whether W is well enough conditioned is asked before, by
 * inv_linear_condition. Only the _work forms of LAPACKE are called: in column-major order they allocate nothing. */
#include "ops/linear/linear_solve.h"
#include "core/edits/onnx_body.h"
#include "ops/base/emit.h"

#include <cblas.h>
#include <float.h>
#include <lapacke.h>
#include <limits.h>

#include "ops/base/parallel.h"
#include "ops/linear/linear_solve_gpu.h"

#define SOLVE_ROWS 64       /* right-hand sides per call, at most */
#define QR_BLOCK 32         /* up to so many columns LAPACK takes one at a time and needs a vector; else blocks, */
#define QR_FACTOR (65 * 64) /* whose triangular factor dormqr keeps there, too */

typedef struct solve {
    bool trans;                            /* W is [n,k], as transB of the product was */
    int64_t k, n, rows;                    /* features of x and y, number of right-hand sides */
    int64_t chunk;                         /* right-hand sides per call */
    size_t matrix, rhs, tau, work, pivots; /* doubles (pivots: ints) of scratch memory */
} solve;

static const char *solve_of(const inv_node *node, const inv_shape *y, const inv_shape *w, solve *s)
{
    if (y->rank < 1) return "y needs one axis or more";
    if (w->rank != 2) return "W must be a matrix";
    s->trans = inv_attr_int(node, "transB", 0) != 0;
    s->k = w->dim[s->trans ? 1 : 0];
    s->n = w->dim[s->trans ? 0 : 1];
    s->rows = inv_prod(y, 0, y->rank - 1);
    if (y->dim[y->rank - 1] != s->n) return "the last extent of y is not the number of columns of op(W)";
    if (s->k > s->n) return "op(W) has more rows than columns: x is not determined by y";
    if (s->n > INT_MAX / 64) return "the matrix is too large";
    s->matrix = (size_t)s->n * (size_t)s->k;
    s->chunk = inv_min64(s->rows, SOLVE_ROWS);
    s->rhs = (size_t)(s->n * s->chunk);
    s->tau = s->k == s->n ? 0 : (size_t)s->k;
    s->work = s->k == s->n ? 0 : (size_t)inv_max64(s->k, s->chunk);
    if (s->k > QR_BLOCK && s->work > 0) s->work = QR_BLOCK * s->work + QR_FACTOR;
    s->pivots = s->k == s->n ? (size_t)s->n : 0;
    return NULL;
}

static inv_status solve_infer(inv_graph *g, inv_node *n)
{
    solve s;
    INV_TRY(inv_need_reals(g, n, 2));
    const char *why = solve_of(n, inv_in_shape(g, n, 0), inv_in_shape(g, n, 1), &s);
    if (why) return inv_node_fail(g, n, INV_E_SHAPE, "%s", why);
    inv_shape out = *inv_in_shape(g, n, 0);
    out.dim[out.rank - 1] = s.k;
    inv_set_out(g, n, 0, inv_in_dtype(g, n, 0), &out);
    return INV_OK;
}

/* On a device: more right-hand sides at a time, a quarter of them within 1 and 16 MiB. */
static inv_solve device_solve(const solve *s)
{
    double most = fmin(fmax((double)s->rows * (double)s->n * 2, 1 << 20), 16 << 20);
    int64_t fit = (int64_t)(most / (8 * (double)inv_max64(s->n, 1)));
    return (inv_solve){.trans = s->trans,
                       .k = s->k,
                       .n = s->n,
                       .rows = s->rows,
                       .chunk = inv_min64(s->rows, inv_max64(fit, 4 * SOLVE_ROWS))};
}

static size_t solve_workspace(const inv_graph *g, const inv_node *n)
{
    solve s;
    if (solve_of(n, inv_in_shape(g, n, 0), inv_in_shape(g, n, 1), &s)) return 0;
    if (g->gpu) {
        inv_solve d = device_solve(&s);
        return (size_t)inv_solve_doubles(&d) * sizeof(double);
    }
    return (s.matrix + s.rhs + s.tau + s.work) * sizeof(double) + s.pivots * sizeof(lapack_int);
}

static double solve_flops(const inv_graph *g, const inv_node *n)
{
    solve s;
    if (solve_of(n, inv_in_shape(g, n, 0), inv_in_shape(g, n, 1), &s)) return 0;
    double k = (double)s.k, m = (double)s.n, rows = (double)s.rows;
    if (s.k == s.n) return 2.0 / 3.0 * m * m * m + 2 * rows * m * m;
    return 2 * m * k * k - 2.0 / 3.0 * k * k * k + rows * (4 * m * k - k * k);
}

static double element(const inv_tensor *t, int64_t i)
{
    return t->dtype == INV_F32 ? (double)((const float *)t->data)[i] : ((const double *)t->data)[i];
}

/* a: column-major [n,k] with a(i,j) = op(W)[j,i]. */
static void load_matrix(const inv_tensor *w, const solve *s, double *a)
{
    for (int64_t j = 0; j < s->k; j++)
        for (int64_t i = 0; i < s->n; i++) a[j * s->n + i] = element(w, s->trans ? i * s->k + j : j * s->n + i);
}

/* True if the triangle on the diagonal of a (leading dimension n) is regular as far as float64 can tell. */
static bool regular(const double *a, const solve *s)
{
    double top = 0, low = INFINITY;
    for (int64_t j = 0; j < s->k; j++) {
        double d = fabs(a[j * s->n + j]);
        if (!isfinite(d)) return false;
        top = fmax(top, d);
        low = fmin(low, d);
    }
    return low > top * DBL_EPSILON * (double)s->n;
}

static bool factor(const solve *s, double *a, double *tau, double *work, lapack_int *pivot)
{
    lapack_int n = (lapack_int)s->n, k = (lapack_int)s->k;
    if (s->k == s->n) return LAPACKE_dgetrf_work(LAPACK_COL_MAJOR, n, n, a, n, pivot) == 0 && regular(a, s);
    return LAPACKE_dgeqrf_work(LAPACK_COL_MAJOR, n, k, a, n, tau, work, (lapack_int)s->work) == 0 && regular(a, s);
}

/* rhs: column-major [n,rows], solution in its first k rows. */
static bool apply_solve(const solve *s, lapack_int rows, double *a, double *tau, double *work, lapack_int *pivot,
                        double *rhs)
{
    lapack_int n = (lapack_int)s->n, k = (lapack_int)s->k;
    if (s->k == s->n) return LAPACKE_dgetrs_work(LAPACK_COL_MAJOR, 'N', n, rows, a, n, pivot, rhs, n) == 0;
    return LAPACKE_dormqr_work(LAPACK_COL_MAJOR, 'L', 'T', n, rows, k, a, n, tau, rhs, n, work, (lapack_int)s->work) ==
               0 &&
           LAPACKE_dtrtrs_work(LAPACK_COL_MAJOR, 'U', 'N', 'N', k, rows, a, n, rhs, n) == 0;
}

static void store(inv_tensor *out, int64_t at, double v)
{
    if (out->dtype == INV_F32) ((float *)out->data)[at] = (float)v;
    else ((double *)out->data)[at] = v;
}

static inv_status solve_run(const inv_call *c)
{
    solve s;
    if (solve_of(c->node, &c->in[0].shape, &c->in[1].shape, &s)) return INV_E_SHAPE;
    if (s.rows == 0 || s.k == 0) return INV_OK;
    if (c->gpu) {
        const inv_solve d = device_solve(&s);
        INV_GPU(c->gpu, linear_solve, &d, c->in[0].dtype, c->in[0].data, c->in[1].data, c->out[0].data, c->ws);
        return INV_OK;
    }
    double *a = c->ws, *rhs = a + s.matrix, *tau = rhs + s.rhs, *work = tau + s.tau;
    lapack_int *pivot = (lapack_int *)(void *)(work + s.work);
    load_matrix(&c->in[1], &s, a);
    bool ok = factor(&s, a, tau, work, pivot);
    for (int64_t r0 = 0; r0 < s.rows; r0 += s.chunk) {
        int64_t rows = inv_min64(s.chunk, s.rows - r0);
        for (int64_t i = 0; i < rows * s.n; i++) rhs[i] = element(&c->in[0], r0 * s.n + i);
        bool solved = ok && apply_solve(&s, (lapack_int)rows, a, tau, work, pivot, rhs);
        for (int64_t r = 0; r < rows; r++)
            for (int64_t j = 0; j < s.k; j++)
                store(&c->out[0], (r0 + r) * s.k + j, solved ? rhs[r * s.n + j] : (double)NAN);
    }
    return INV_OK;
}

/* --- gradient --- */

static inv_id solution(inv_graph *g, inv_id y, inv_id w, bool trans)
{
    return inv_emit1(g, "LinearSolve", INV_IN(y, w), INV_ATTRS(inv_attr_of_int("transB", trans)));
}

/* v as a matrix of all its rows. */
static inv_id matrix_of_rows(inv_graph *g, inv_id v)
{
    if (v == INV_NONE) return v;
    const inv_shape *s = inv_shape_of_value(g, v);
    const inv_shape flat = inv_shape_of(2, (int64_t[]){inv_prod(s, 0, s->rank - 1), s->dim[s->rank - 1]});
    return inv_emit_view(g, v, &flat);
}

static inv_id unit(inv_graph *g, inv_dtype t, int64_t n)
{
    const inv_shape shape = inv_shape_of(2, (int64_t[]){n, n});
    const double one = 1;
    uint8_t *entries = inv_arena_alloc(&g->arena, (size_t)(n * n) * inv_dtype_size(t) + 1);
    if (!entries) return INV_NONE;
    memset(entries, 0, (size_t)(n * n) * inv_dtype_size(t));
    for (int64_t i = 0; i < n; i++)
        (void)inv_convert(entries + (size_t)(i * n + i) * inv_dtype_size(t), t, &one, INV_F64, 1);
    return inv_graph_const(g, t, &shape, entries);
}

/* A = op(W), x A = y. Square: gy = gx A^-T, gA = -x^T gy. Tall, with P the pseudo-inverse of A and r = y - x A, the
 * part of y that no x gives: h = gx (A A^T)^-1 = gx P^T P, gy = gx P^T, gA = h^T r - x^T gy. */
static inv_status solve_grad(inv_grad *b)
{
    inv_graph *g = b->g;
    const inv_node *n = inv_nod(g, b->node);
    const bool trans = inv_attr_int(n, "transB", 0) != 0;
    const inv_id y = inv_I(b, 0), w = inv_I(b, 1), x = inv_O(b, 0), gx = inv_GO(b, 0);
    inv_id gy, h = INV_NONE, r = INV_NONE;
    const inv_shape *to = inv_shape_of_value(g, y), *from = inv_shape_of_value(g, x);
    const int64_t k = from->dim[from->rank - 1], m = to->dim[to->rank - 1];
    if (k == m) {
        gy = solution(g, gx, w, !trans);
    } else {
        inv_id eye = unit(g, inv_val(g, w)->dtype, m), p = eye == INV_NONE ? eye : solution(g, eye, w, trans);
        if (p == INV_NONE) return inv_grad_done(b);
        gy = inv_emit_product(g, false, gx, true, p);
        if (inv_wants(b, 1) && gy != INV_NONE) {
            inv_id back = inv_emit_product(g, false, x, trans, w);
            h = matrix_of_rows(g, inv_emit_product(g, false, gy, false, p));
            r = back == INV_NONE ? back : matrix_of_rows(g, inv_emit1(g, "Sub", INV_IN(y, back), INV_NOATTR));
        }
    }
    if (gy == INV_NONE) return inv_grad_done(b);
    if (inv_wants(b, 0)) inv_grad_set(b, 0, gy);
    if (!inv_wants(b, 1)) return inv_grad_done(b);
    const inv_id xs = matrix_of_rows(g, x), gys = matrix_of_rows(g, gy);
    inv_id gw = trans ? inv_emit_product(g, true, gys, false, xs) : inv_emit_product(g, true, xs, false, gys);
    if (gw != INV_NONE && k == m) gw = inv_emit1(g, "Neg", INV_IN(gw), INV_NOATTR);
    if (gw != INV_NONE && k != m) {
        inv_id more = trans ? inv_emit_product(g, true, r, false, h) : inv_emit_product(g, true, h, false, r);
        gw = more == INV_NONE ? more : inv_emit1(g, "Sub", INV_IN(more, gw), INV_NOATTR);
    }
    inv_grad_set(b, 1, gw);
    return inv_grad_done(b);
}

/* x = y M+; if x M' = y, then x = y M+'. */
static bool solve_raise(const inv_raising *b)
{
    const char *m = b->in[1];
    if (inv_attr_int(b->n, "transB", 0)) m = inv_onnx_transposed(b->r, m, 2);
    return inv_onnx_node(b->r, b->out[0], "MatMul", INV_NAMES(b->in[0], m), INV_NOATTR) != NULL;
}

/* clang-format off */
const inv_op_def inv_op_linear_solve = {
    .size = sizeof inv_op_linear_solve,
    .domain = INV_IR,
    .name = "LinearSolve",
    .since = 1,
    .in = "y W",
    .out = "x",
    .infer = solve_infer,
    .grad = solve_grad,
    .raise = solve_raise,
    .inverts = 1 << 1,
    .run = solve_run, .work = inv_work_scalar,
    .workspace = solve_workspace,
    .flops = solve_flops,
    .cases = (const char *const[]){"x = LinearSolve(float[6,4] y, float[4,4] W)",
                                   "x = LinearSolve<transB = 1>(float[2,3,4] y, float[4,4] W)",
                                   "x = LinearSolve(float[6,5] y, float[3,5] W)",
                                   "x = LinearSolve<transB = 1>(float[6,5] y, float[5,3] W)",
                                   /* several panels, every row from another one: w is v + 32 P, P a permutation */
                                   "v = Neg(float[60,60] r)\nl = EyeLike<k = -30>(v)\nu = EyeLike<k = 30>(v)\n"
                                   "p = Add(l, u)\na = Add(p, p)\nb = Add(a, a)\nc = Add(b, b)\nd = Add(c, c)\n"
                                   "e = Add(d, d)\nw = Add(v, e)\nx = LinearSolve(float[7,60] y, w)",
                                   "x = LinearSolve<transB = 1>(float[3,200] y, float[200,40] W)",
                                   "x = LinearSolve(float[300,600] y, float[2,600] W)",
                                   "x = LinearSolve(float[0,4] y, float[4,4] W)", NULL},
    .doc =
        "x with x op(W) = y: LU in float64 for square op(W), least squares by QR when it has more columns than rows"};
/* clang-format on */

/* --- filters: what takes a convolution whose windows do not overlap back, as a filter of the transposed one --- */

/* One group of the filter as a matrix [m,k]; the right-hand sides are the columns of the identity. */
static const char *filter_of(const inv_node *node, const inv_shape *w, solve *s, int64_t *groups)
{
    *groups = inv_attr_int(node, "group", 1);
    if (w->rank < 2) return "the filter needs two axes or more";
    if (*groups < 1 || w->dim[0] % *groups != 0) return "the filter's first extent is not a multiple of group";
    const int64_t m = w->dim[0] / *groups, k = inv_prod(w, 1, w->rank);
    const inv_shape matrix = inv_shape_of(2, (int64_t[]){m, k});
    const inv_shape y = inv_shape_of(2, (int64_t[]){inv_max64(m, k), inv_max64(m, k)});
    inv_attr trans = inv_attr_of_int("transB", m >= k);
    const inv_node as = {.attr = &trans, .nattr = 1};
    return solve_of(&as, &y, &matrix, s);
}

static inv_status filter_infer(inv_graph *g, inv_node *n)
{
    solve s;
    int64_t groups;
    INV_TRY(inv_need_real(g, n, 0));
    const inv_shape *w = inv_in_shape(g, n, 0);
    const char *why = filter_of(n, w, &s, &groups);
    if (why) return inv_node_fail(g, n, INV_E_SHAPE, "%s", why);
    inv_set_out(g, n, 0, inv_in_dtype(g, n, 0), w);
    return INV_OK;
}

static size_t filter_workspace(const inv_graph *g, const inv_node *n)
{
    solve s;
    int64_t groups;
    if (filter_of(n, inv_in_shape(g, n, 0), &s, &groups)) return 0;
    if (!g->gpu) return (s.matrix + s.rhs + s.tau + s.work) * sizeof(double) + s.pivots * sizeof(lapack_int);
    const inv_solve d = device_solve(&s);
    return ((size_t)inv_solve_doubles(&d) + (size_t)inv_filter_reals(&d)) * sizeof(double);
}

static double filter_flops(const inv_graph *g, const inv_node *n)
{
    solve s;
    int64_t groups;
    if (filter_of(n, inv_in_shape(g, n, 0), &s, &groups)) return 0;
    const double m = (double)s.n, k = (double)s.k;
    return (double)groups *
           (s.k == s.n ? 8.0 / 3.0 * m * m * m : 2 * m * k * k - 2.0 / 3.0 * k * k * k + m * (4 * m * k - k * k));
}

/* One group: x of unit row r is row r of the pseudo-inverse of op(W), and that the row or the column r of the block. */
static void invert_block(const solve *s, const inv_tensor *w, inv_tensor *out, int64_t at, double *ws)
{
    double *a = ws, *rhs = a + s->matrix, *tau = rhs + s->rhs, *work = tau + s->tau;
    lapack_int *pivot = (lapack_int *)(void *)(work + s->work);
    load_matrix(w, s, a);
    bool ok = factor(s, a, tau, work, pivot);
    for (int64_t r0 = 0; r0 < s->rows; r0 += s->chunk) {
        const int64_t rows = inv_min64(s->chunk, s->rows - r0);
        for (int64_t i = 0; i < rows * s->n; i++) rhs[i] = i % s->n == r0 + i / s->n;
        bool solved = ok && apply_solve(s, (lapack_int)rows, a, tau, work, pivot, rhs);
        for (int64_t r = 0; r < rows; r++)
            for (int64_t j = 0; j < s->k; j++)
                store(out, at + (s->trans ? (r0 + r) * s->k + j : j * s->n + r0 + r),
                      solved ? rhs[r * s->n + j] : (double)NAN);
    }
}

static inv_status filter_run(const inv_call *c)
{
    solve s;
    int64_t groups;
    if (filter_of(c->node, &c->in[0].shape, &s, &groups)) return INV_E_SHAPE;
    if (s.rows == 0 || s.k == 0) return INV_OK;
    if (c->gpu) {
        const inv_solve d = device_solve(&s);
        INV_GPU(c->gpu, filter_inverse, &d, groups, c->in[0].dtype, c->in[0].data, c->out[0].data, c->ws);
        return INV_OK;
    }
    for (int64_t g = 0; g < groups; g++) {
        const int64_t at = g * s.n * s.k;
        inv_tensor block = c->in[0];
        block.data = inv_elem_at(&block, at);
        invert_block(&s, &block, &c->out[0], at, c->ws);
    }
    return INV_OK;
}

static inv_id minus(inv_graph *g, inv_id a, inv_id b)
{
    return a == INV_NONE || b == INV_NONE ? INV_NONE : inv_emit1(g, "Sub", INV_IN(a, b), INV_NOATTR);
}

/* a b c, of which b may be transposed. */
static inv_id product3(inv_graph *g, inv_id a, bool tb, inv_id b, inv_id c)
{
    const inv_id ab = inv_emit_product(g, false, a, tb, b);
    return ab == INV_NONE ? ab : inv_emit_product(g, false, ab, false, c);
}

/* P is the transpose of W's pseudo-inverse, G its gradient, for each group [m,k]. Square: gW = -P G' P. Tall:
 * gW = H - W P' H - P G' P with H = G P' P; wide: the same of the transposes, H - H P' W - P G' P with H = P P' G. */
static inv_status filter_grad(inv_grad *b)
{
    inv_graph *g = b->g;
    const inv_node *n = inv_nod(g, b->node);
    const inv_shape shape = *inv_shape_of_value(g, inv_I(b, 0));
    const int64_t groups = inv_attr_int(n, "group", 1), m = shape.dim[0] / groups;
    const inv_shape blocks = inv_shape_of(3, (int64_t[]){groups, m, inv_prod(&shape, 1, shape.rank)});
    inv_id w, p, gp, gw;
    if (inv_GO(b, 0) == INV_NONE || !inv_wants(b, 0)) return inv_grad_done(b);
    w = inv_emit_view(g, inv_I(b, 0), &blocks);
    p = inv_emit_view(g, inv_O(b, 0), &blocks);
    gp = inv_emit_view(g, inv_GO(b, 0), &blocks);
    if (w == INV_NONE || p == INV_NONE || gp == INV_NONE) return inv_grad_done(b);
    gw = product3(g, p, true, gp, p);
    if (m == blocks.dim[2]) {
        if (gw != INV_NONE) gw = inv_emit1(g, "Neg", INV_IN(gw), INV_NOATTR);
    } else {
        const bool tall = m > blocks.dim[2];
        const inv_id h = tall ? product3(g, gp, true, p, p) : product3(g, p, true, p, gp);
        if (h == INV_NONE) return inv_grad_done(b);
        gw = minus(g, minus(g, h, tall ? product3(g, w, true, p, h) : product3(g, h, true, p, w)), gw);
    }
    if (gw != INV_NONE) inv_grad_set(b, 0, inv_emit_view(g, gw, &shape));
    return inv_grad_done(b);
}

/* Of each group the transpose, as a filter. */
static bool filter_raise(const inv_raising *b)
{
    const inv_shape *s = inv_raising_shape(b, 0);
    const char *m = inv_onnx_transposed(b->r, b->in[0], inv_attr_int(b->n, "group", 1) > 1 ? 3 : 2);
    const char *shape = inv_onnx_ints(b->r, (size_t)s->rank, s->dim);
    return inv_onnx_node(b->r, b->out[0], "Reshape", INV_NAMES(m, shape), INV_NOATTR) != NULL;
}

const inv_op_def inv_op_filter_inverse = {
    .size = sizeof inv_op_filter_inverse,
    .domain = INV_IR,
    .name = "FilterInverse",
    .since = 1,
    .in = "W",
    .out = "P",
    .infer = filter_infer,
    .grad = filter_grad,
    .raise = filter_raise,
    .inverts = 1 << 0,
    .run = filter_run,
    .work = inv_work_scalar,
    .workspace = filter_workspace,
    .flops = filter_flops,
    .cases = (const char *const[]){"p = FilterInverse(float[4,4] w)", "p = FilterInverse(float[6,2,2] w)",
                                   "p = FilterInverse<group = 2>(float[6,1,2,1] w)",
                                   "p = FilterInverse<group = 3>(float[6,1,2,2] w)",
                                   "p = FilterInverse(float[2,3,2,1,1] w)", "p = FilterInverse(float[70,5,2] w)", NULL},
    .doc = "per group, a filter as a matrix of output channels: the transpose of its pseudo-inverse, in the filter's "
           "shape; in float64"};

/* --- condition numbers --- */

#define SVD_FEW 64          /* columns up to which all singular values are computed; they take some 20 times as long */
#define SVD_MOST 256        /* columns up to which they are if products of columns do not tell */
#define ROWS_ROOM (4 << 20) /* doubles for rows that are taken together, if its shorter side leaves room for 64 */
#define MOST_TOLD 1e7       /* products of columns square a condition number, and tell it in float64 up to about here */
#define LEAST_TOLD \
    1e-140 /* singular values below it and above its inverse: their squares lose digits, or are no numbers */
#define POWER_STEPS 24

/* Largest and smallest singular value of the triangle r in [k,k]: power iteration on r' r and on its inverse, from a
 * fixed start. x: k doubles. Both come out a little inside of the true range, within a few percent. */
static void triangle_range(const double *r, lapack_int k, double *x, double *most, double *least)
{
    for (int inverse = 0; inverse < 2; inverse++) {
        uint64_t h = 88172645463325252u;
        double norm = 0, was = 0;
        for (lapack_int i = 0; i < k; i++) {
            h ^= h << 13, h ^= h >> 7, h ^= h << 17;
            x[i] = (double)(h >> 11) * 0x1p-53 - 0.5;
        }
        for (int step = 0; step < POWER_STEPS; step++) {
            double scale = cblas_dnrm2(k, x, 1);
            if (!(scale > 0) || !isfinite(scale)) break;
            cblas_dscal(k, 1 / scale, x, 1);
            if (inverse) cblas_dtrsv(CblasColMajor, CblasUpper, CblasTrans, CblasNonUnit, k, r, k, x, 1);
            else cblas_dtrmv(CblasColMajor, CblasUpper, CblasNoTrans, CblasNonUnit, k, r, k, x, 1);
            norm = cblas_dnrm2(k, x, 1); /* of r x (or r^-T x), |x| = 1 */
            if (step > 3 && fabs(norm - was) <= 1e-3 * norm) break;
            was = norm;
            if (inverse) cblas_dtrsv(CblasColMajor, CblasUpper, CblasNoTrans, CblasNonUnit, k, r, k, x, 1);
            else cblas_dtrmv(CblasColMajor, CblasUpper, CblasTrans, CblasNonUnit, k, r, k, x, 1);
        }
        *(inverse ? least : most) = inverse ? 1 / norm : norm;
    }
}

/* Entries as doubles; false: not all are finite. */
static bool load_entries(double *a, const inv_data *w, size_t from, size_t count)
{
    const uint8_t *bytes = (const uint8_t *)w->bytes + from * inv_dtype_size(w->dtype);
    if (!inv_convert(a, INV_F64, bytes, w->dtype, count)) return false;
    for (size_t i = 0; i < count; i++)
        if (!isfinite(a[i])) return false;
    return true;
}

/* Rows [from, from + rows) of w, or of its transpose, whichever is tall with k columns, as they lie in the file: those
 * of w one behind the other, those of the transpose as `rows` elements of each column, ld apart. */
static bool load_rows(double *a, size_t ld, const inv_data *w, bool turned, size_t k, size_t from, size_t rows)
{
    if (!turned) return load_entries(a, w, from * k, rows * k);
    for (size_t j = 0; j < k; j++)
        if (!load_entries(a + j * ld, w, j * (size_t)w->shape.dim[1] + from, rows)) return false;
    return true;
}

/* Extreme singular values from the products of columns, which take as little memory as there is: R' R = W' W. W is
 * taken `room` rows at a time. gram: [k,k]; a: [room,k]; x: k doubles. *least 0: it cannot be told so. */
static lapack_int range_by_products(const inv_data *w, double *gram, size_t k, double *a, size_t room, double *x,
                                    double *most, double *least)
{
    const size_t rows = (size_t)inv_max64(w->shape.dim[0], w->shape.dim[1]);
    const bool turned = (size_t)w->shape.dim[0] == k;
    const lapack_int n = (lapack_int)k;
    *most = *least = 0;
    for (size_t done = 0; done < rows; done += room) {
        const size_t next = room < rows - done ? room : rows - done;
        if (!load_rows(a, room, w, turned, k, done, next)) return 0;
        cblas_dsyrk(CblasColMajor, CblasUpper, turned ? CblasTrans : CblasNoTrans, n, (lapack_int)next, 1, a,
                    (lapack_int)(turned ? room : k), done > 0, gram, n);
    }
    const lapack_int info = LAPACKE_dpotrf_work(LAPACK_COL_MAJOR, 'U', n, gram, n);
    if (info != 0) return info > 0 ? 0 : info; /* above 0: a pivot that is not positive */
    triangle_range(gram, n, x, most, least);
    if (!(*most <= MOST_TOLD * *least && *least >= LEAST_TOLD && *most * LEAST_TOLD <= 1)) *least = 0;
    return 0;
}

inv_status inv_linear_condition(inv_context *ctx, const inv_data *w, bool trans, double *cond, double *inv_norm)
{
    (void)trans;
    *cond = *inv_norm = INFINITY;
    INV_CHECK(w->shape.rank == 2 && inv_shape_is_static(&w->shape), ctx, INV_E_SHAPE,
              "the condition number of a tensor of rank %d was asked for; it needs a matrix", (int)w->shape.rank);
    INV_CHECK(inv_dtype_is_float(w->dtype), ctx, INV_E_UNSUPPORTED_TYPE, "the condition number of a matrix of %s",
              inv_dtype_name(w->dtype));
    int64_t m = w->shape.dim[1], n = w->shape.dim[0], k = inv_min64(m, n); /* row-major as column-major: transposed */
    INV_CHECK(m <= INT_MAX / 64 && n <= INT_MAX / 64, ctx, INV_E_SHAPE, "the matrix [%lld,%lld] is too large",
              (long long)n, (long long)m);
    if (k == 0) {
        *cond = *inv_norm = 1;
        return INV_OK;
    }
    const bool large = k > SVD_MOST || inv_max64(m, n) > ROWS_ROOM / k;
    const int64_t room = inv_min64(inv_max64(m, n), inv_max64(64, ROWS_ROOM / k));
    const lapack_int lwork = (lapack_int)(large ? 0 : 8 * k + 2 * inv_max64(m, n));
    const size_t count = (size_t)k * (size_t)(k + room), nelem = (size_t)(m * n);
    lapack_int info = 0;
    double *a = inv_alloc(ctx, (count + (size_t)k + (size_t)lwork) * sizeof(double)), dummy = 0, top = 0, low = 0;
    if (a == NULL) return INV_E_NOMEM;
    double *sv = a + count, *work = sv + k;
    if (large || k > SVD_FEW)
        info = range_by_products(w, a, (size_t)k, a + (size_t)k * (size_t)k, (size_t)room, sv, &top, &low);
    if (info == 0 && !(low > 0) && !large && load_entries(a, w, 0, nelem)) {
        info = LAPACKE_dgesvd_work(LAPACK_COL_MAJOR, 'N', 'N', (lapack_int)m, (lapack_int)n, a, (lapack_int)m, sv,
                                   &dummy, 1, &dummy, 1, work, lwork);
        top = sv[0];
        low = sv[k - 1];
    }
    if (info == 0 && low > 0) {
        *cond = top / low;
        *inv_norm = 1 / low;
    }
    inv_dealloc(ctx, a);
    if (info != 0)
        return inv_fail(ctx, INV_E_NUMERIC, "the singular values of a matrix [%lld,%lld] did not converge",
                        (long long)n, (long long)m);
    return INV_OK;
}

inv_status inv_linear_logdet(inv_context *ctx, const inv_data *w, double *logdet)
{
    size_t n = w->shape.rank > 0 ? (size_t)w->shape.dim[0] : 0, count = (size_t)inv_shape_nelem(&w->shape);
    INV_CHECK(n > 0 && count == n * n && n <= INT_MAX / 64, ctx, INV_E_SHAPE,
              "the determinant of a matrix that is not square was asked for");
    double *a = inv_alloc(ctx, count * sizeof(double));
    lapack_int *pivot = inv_alloc(ctx, n * sizeof *pivot);
    *logdet = NAN;
    if (a && pivot && load_entries(a, w, 0, count)) {
        *logdet = 0;
        (void)LAPACKE_dgetrf_work(LAPACK_COL_MAJOR, (lapack_int)n, (lapack_int)n, a, (lapack_int)n, pivot);
        for (size_t i = 0; i < n; i++) *logdet += log(fabs(a[i * n + i]));
    }
    bool enough = a && pivot;
    inv_dealloc(ctx, a);
    inv_dealloc(ctx, pivot);
    return enough ? INV_OK : INV_E_NOMEM;
}
