/* SPDX-License-Identifier: Apache-2.0
 * LinearSolve on the device, in float64 like the host's. Square: LU with partial pivoting in panels of columns; right-
 * hand sides are further columns. Row-major here, so that threads of neighbouring columns touch neighbouring addresses.
 * Tall: Householder QR, column-major, a launch per column and a block per column that changes; then a block per
 * right-hand side. Sums have a fixed order. FilterInverse solves for the columns of the identity. */
#include "ops/gpu/device.cuh"
#include "ops/linear/linear_solve_gpu.h"

#define PANEL 32
#define PANEL_THREADS 256

/* a(i,j) = op(W)[j,i] for i < n, j < k; row-major or column-major. */
template <class T> INV_KERNEL load_matrix(inv_solve s, bool by_rows, const T *w, double *a)
{
    INV_EACH(e, s.n * s.k)
    {
        int64_t i = by_rows ? e / s.k : e % s.n, j = by_rows ? e % s.k : e / s.n;
        a[e] = (double)w[s.trans ? i * s.k + j : j * s.n + i];
    }
}

/* Right-hand sides r0 .. r0 + count as columns (by_rows) or one after the other. */
template <class T> INV_KERNEL load_sides(inv_solve s, bool by_rows, int64_t r0, int64_t count, const T *y, double *b)
{
    INV_EACH(e, s.n * count)
    {
        int64_t i = by_rows ? e / count : e % s.n, r = by_rows ? e % count : e / s.n;
        b[e] = (double)y[(r0 + r) * s.n + i];
    }
}

template <class T>
INV_KERNEL store_sides(inv_solve s, bool by_rows, int64_t r0, int64_t count, const double *b, const double *regular,
                       T *x)
{
    INV_EACH(e, s.k * count)
    {
        int64_t r = e / s.k, j = e - r * s.k;
        x[(r0 + r) * s.k + j] = *regular > 0 ? (T)b[by_rows ? j * count + r : r * s.n + j] : (T)NAN;
    }
}

/* Is the triangle with that diagonal regular as far as float64 can tell? One block. */
INV_KERNEL judge(int64_t n, int64_t k, const double *diagonal, int64_t step, double *regular)
{
    double top = 0, low = -INFINITY;
    for (int64_t j = threadIdx.x; j < k; j += blockDim.x) {
        double d = fabs(diagonal[j * step]);
        top = d > top || d != d ? d : top;
        low = -d > low ? -d : low;
    }
    top = inv_block_max(top);
    low = -inv_block_max(low);
    if (threadIdx.x == 0) *regular = top < (double)INFINITY && low > top * 0x1p-52 * (double)n ? 1 : 0;
}

/* --- square --- */
/* The row, from j on, with the largest entry of column j; the first of equals. All threads of the block get it. */
INV_DEVICE int64_t find_pivot(const double *a, int64_t n, int64_t j)
{
    INV_SHARED(double, best, [PANEL_THREADS]);
    INV_SHARED(int64_t, at, [PANEL_THREADS]);
    unsigned t = threadIdx.x;
    best[t] = -1;
    at[t] = n;
    for (int64_t i = j + t; i < n; i += PANEL_THREADS) {
        double v = fabs(a[i * n + j]);
        if (v > best[t]) {
            best[t] = v;
            at[t] = i;
        }
    }
    __syncthreads();
    for (unsigned half = PANEL_THREADS / 2; half > 0; half /= 2) {
        if (t < half && (best[t + half] > best[t] || (best[t + half] == best[t] && at[t + half] < at[t]))) {
            best[t] = best[t + half];
            at[t] = at[t + half];
        }
        __syncthreads();
    }
    int64_t row = at[0] < n ? at[0] : j; /* only NaN: stay */
    __syncthreads();
    return row;
}

/* Factors columns j0 .. j0 + nb from row j0 on. Rows change places within the panel only. One block. */
INV_KERNEL lu_panel(double *a, int64_t n, int64_t j0, int64_t nb, int64_t *pivot)
{
    for (int64_t j = j0; j < j0 + nb; j++) {
        int64_t row = find_pivot(a, n, j), c = j0 + (int64_t)threadIdx.x;
        if (threadIdx.x == 0) pivot[j] = row;
        if (c < j0 + nb && row != j) {
            double v = a[j * n + c];
            a[j * n + c] = a[row * n + c];
            a[row * n + c] = v;
        }
        __syncthreads();
        for (int64_t i = j + 1 + threadIdx.x; i < n; i += PANEL_THREADS) a[i * n + j] /= a[j * n + j];
        __syncthreads();
        for (int64_t e = threadIdx.x; e < (n - j - 1) * PANEL; e += PANEL_THREADS) {
            int64_t i = j + 1 + e / PANEL;
            c = j0 + e % PANEL;
            if (c > j && c < j0 + nb) a[i * n + c] -= a[i * n + j] * a[j * n + c];
        }
        __syncthreads();
    }
}

/* For columns c0 .. c1 of b: the panel's exchanges of rows, then its unit lower triangle. */
INV_KERNEL lower_solve(const double *a, int64_t n, int64_t j0, int64_t nb, const int64_t *pivot, double *b, int64_t ld,
                       int64_t c0, int64_t c1)
{
    INV_EACH(e, c1 - c0)
    {
        double *x = b + c0 + e;
        for (int64_t j = j0; j < j0 + nb; j++) {
            double v = x[j * ld];
            x[j * ld] = x[pivot[j] * ld];
            x[pivot[j] * ld] = v;
        }
        for (int64_t i = j0; i < j0 + nb; i++) {
            double v = x[i * ld];
            for (int64_t p = j0; p < i; p++) v -= a[i * n + p] * x[p * ld];
            x[i * ld] = v;
        }
    }
}

/* The same for the upper triangle on the diagonal. */
INV_KERNEL upper_solve(const double *a, int64_t n, int64_t j0, int64_t nb, double *b, int64_t ld)
{
    INV_EACH(c, ld)
    {
        for (int64_t i = j0 + nb - 1; i >= j0; i--) {
            double v = b[i * ld + c];
            for (int64_t p = i + 1; p < j0 + nb; p++) v -= a[i * n + p] * b[p * ld + c];
            b[i * ld + c] = v / a[i * n + i];
        }
    }
}

/* Rows i0 .. i1, columns c0 .. c1 of b less the panel's columns of a times its rows of b. */
INV_KERNEL subtract(const double *a, int64_t n, int64_t j0, int64_t nb, double *b, int64_t ld, int64_t i0, int64_t i1,
                    int64_t c0, int64_t c1)
{
    INV_EACH(e, (i1 - i0) * (c1 - c0))
    {
        int64_t q = e / (c1 - c0), i = i0 + q, c = c0 + e - q * (c1 - c0);
        double v = b[i * ld + c];
        for (int64_t p = j0; p < j0 + nb; p++) v -= a[i * n + p] * b[p * ld + c];
        b[i * ld + c] = v;
    }
}

static void eliminate(const inv_gpu *gpu, const double *a, int64_t n, int64_t j0, int64_t nb, const int64_t *pivot,
                      double *b, int64_t ld, int64_t c0, int64_t c1)
{
    inv_start(gpu, lower_solve, inv_blocks(c1 - c0), INV_THREADS, a, n, j0, nb, pivot, b, ld, c0, c1);
    inv_start(gpu, subtract, inv_blocks((n - j0 - nb) * (c1 - c0)), INV_THREADS, a, n, j0, nb, b, ld, j0 + nb, n, c0,
              c1);
}

static int64_t panel(int64_t n, int64_t j0) { return n - j0 < PANEL ? n - j0 : PANEL; }

static void lu_factor(const inv_gpu *gpu, int64_t n, double *a, int64_t *pivot)
{
    for (int64_t j0 = 0; j0 < n; j0 += PANEL) {
        int64_t nb = panel(n, j0);
        inv_start_sync(gpu, lu_panel, 1, PANEL_THREADS, a, n, j0, nb, pivot);
        eliminate(gpu, a, n, j0, nb, pivot, a, n, j0 + nb, n);
    }
}

static void lu_solve(const inv_gpu *gpu, int64_t n, const double *a, const int64_t *pivot, double *b, int64_t count)
{
    for (int64_t j0 = 0; j0 < n; j0 += PANEL) eliminate(gpu, a, n, j0, panel(n, j0), pivot, b, count, 0, count);
    for (int64_t j0 = (n - 1) / PANEL * PANEL; j0 >= 0; j0 -= PANEL) {
        int64_t nb = panel(n, j0), zero = 0;
        inv_start(gpu, upper_solve, inv_blocks(count), INV_THREADS, a, n, j0, nb, b, count);
        inv_start(gpu, subtract, inv_blocks(j0 * count), INV_THREADS, a, n, j0, nb, b, count, zero, j0, zero, count);
    }
}

/* --- tall --- */
/* Householder's reflections I - scale v v', v = (head, a(j+1.., j)), in the order of the columns. */
struct reflections {
    double *a; /* R above the diagonal, v below */
    double *diagonal, *head, *scale;
    int64_t n, k;
};

/* x less its reflection by number j; all threads of a block. */
INV_DEVICE void reflect(const reflections &h, int64_t j, double head, double scale, double *x)
{
    const double *v = h.a + j * h.n;
    double dot = 0;
    for (int64_t i = j + 1 + threadIdx.x; i < h.n; i += blockDim.x) dot += v[i] * x[i];
    dot = scale * (inv_block_sum(dot) + head * x[j]);
    for (int64_t i = j + 1 + threadIdx.x; i < h.n; i += blockDim.x) x[i] -= dot * v[i];
    __syncthreads(); /* all have read x[j] */
    if (threadIdx.x == 0) x[j] -= dot * head;
    __syncthreads();
}

/* Column j becomes reflection j, which block c applies to column j + c. Every block finds the reflection for itself
 * (column j stays as it is) and block 0 notes it. */
INV_KERNEL qr_step(reflections h, int64_t j)
{
    const double *v = h.a + j * h.n;
    double alpha = v[j], below = 0;
    for (int64_t i = j + 1 + threadIdx.x; i < h.n; i += blockDim.x) below += v[i] * v[i];
    below = inv_block_sum(below);
    double beta = alpha > 0 ? -sqrt(alpha * alpha + below) : sqrt(alpha * alpha + below);
    bool needed = below != 0;
    double head = needed ? alpha - beta : 0, scale = needed ? 2 / (head * head + below) : 0;
    if (blockIdx.x > 0) {
        reflect(h, j, head, scale, h.a + (j + (int64_t)blockIdx.x) * h.n);
    } else if (threadIdx.x == 0) {
        h.diagonal[j] = needed ? beta : alpha;
        h.head[j] = head;
        h.scale[j] = scale;
    }
}

/* One block per right-hand side: x = R^-1 Q' b in its first k places. */
INV_KERNEL qr_solve(reflections h, double *b)
{
    double *x = b + (int64_t)blockIdx.x * h.n;
    for (int64_t j = 0; j < h.k; j++) reflect(h, j, h.head[j], h.scale[j], x);
    for (int64_t j = h.k - 1; j >= 0; j--) {
        double v = x[j] / h.diagonal[j];
        __syncthreads();
        for (int64_t i = threadIdx.x; i < j; i += blockDim.x) x[i] -= h.a[j * h.n + i] * v;
        if (threadIdx.x == 0) x[j] = v;
        __syncthreads();
    }
}

template <class T>
static void solve(const inv_gpu *gpu, const inv_solve *s, const T *y, const T *w, T *x, double *ws)
{
    int64_t n = s->n, k = s->k, diagonal_step = 1;
    bool square = n == k;
    double *a = ws, *b = a + inv_solve_matrix(s), *more = b + n * s->chunk, *regular = more + 3 * n;
    int64_t *pivot = (int64_t *)(void *)more;
    reflections h = {a, more, more + n, more + 2 * n, n, k};
    inv_start(gpu, load_matrix<T>, inv_blocks(n * k), INV_THREADS, *s, square, w, a);
    if (square) {
        lu_factor(gpu, n, a, pivot);
        h.diagonal = a;
        diagonal_step = n + 1;
    }
    for (int64_t j = 0; j < k && !square; j++) inv_start_sync(gpu, qr_step, k - j, INV_SYNC_THREADS, h, j);
    inv_start_sync(gpu, judge, 1, INV_SYNC_THREADS, n, k, (const double *)h.diagonal, diagonal_step, regular);
    for (int64_t r0 = 0; r0 < s->rows; r0 += s->chunk) {
        int64_t count = s->rows - r0 < s->chunk ? s->rows - r0 : s->chunk;
        inv_start(gpu, load_sides<T>, inv_blocks(n * count), INV_THREADS, *s, square, r0, count, y, b);
        if (square) lu_solve(gpu, n, a, pivot, b, count);
        else inv_start_sync(gpu, qr_solve, count, INV_SYNC_THREADS, h, b);
        inv_start(gpu, store_sides<T>, inv_blocks(k * count), INV_THREADS, *s, square, r0, count, (const double *)b,
                  (const double *)regular, x);
    }
}

extern "C" void INV_GPU_NAME(linear_solve)(const inv_gpu *gpu, const inv_solve *s, inv_dtype t, const void *y,
                                           const void *w, void *x, double *ws)
{
    INV_REAL_AS(t, T, solve(gpu, s, (const T *)y, (const T *)w, (T *)x, ws));
}

/* --- filters --- */
template <class T> INV_KERNEL fill_identity(int64_t n, T *a)
{
    INV_EACH(e, n * n) a[e] = e / n == e % n ? (T)1 : (T)0;
}

template <class T> INV_KERNEL turn(int64_t rows, int64_t columns, const T *x, T *y)
{
    INV_EACH(e, rows * columns) y[e % columns * rows + e / columns] = x[e];
}

template <class T>
static void invert_filter(const inv_gpu *gpu, const inv_solve *s, int64_t groups, const T *w, T *p, double *ws)
{
    T *unit = (T *)(void *)(ws + inv_solve_doubles(s)), *x = unit + s->n * s->n;
    inv_start(gpu, fill_identity<T>, inv_blocks(s->n * s->n), INV_THREADS, s->n, unit);
    for (int64_t g = 0; g < groups; g++) {
        int64_t at = g * inv_solve_matrix(s);
        solve<T>(gpu, s, unit, w + at, s->trans ? p + at : x, ws);
        if (!s->trans)
            inv_start(gpu, turn<T>, inv_blocks(s->n * s->k), INV_THREADS, s->n, s->k, (const T *)x, p + at);
    }
}

extern "C" void INV_GPU_NAME(filter_inverse)(const inv_gpu *gpu, const inv_solve *s, int64_t groups, inv_dtype t,
                                             const void *w, void *p, double *ws)
{
    INV_REAL_AS(t, T, invert_filter(gpu, s, groups, (const T *)w, (T *)p, ws));
}
