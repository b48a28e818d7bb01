/* SPDX-License-Identifier: Apache-2.0
 * Determinants and their gradients on the device: one block per matrix, the arithmetic of det.c in float64. */
#include "ops/linear/det_gpu.h"
#include "ops/gpu/device.cuh"

#define MOST_BLOCKS 65535

struct lu {
    double *a;           /* n x n, row-major: L below the diagonal, U */
    int64_t *row, *col;  /* which row and column of the matrix is here */
    int64_t n;
};

INV_DEVICE lu lu_in(double *ws, int64_t n)
{
    lu f = {ws, (int64_t *)(void *)(ws + n * n), (int64_t *)(void *)(ws + n * n + n), n};
    return f;
}

/* The largest entry from (k, k) on, in column k or in all columns; the first of equals in rising order. */
INV_DEVICE int64_t find_pivot(const lu &f, int64_t k, bool complete)
{
    INV_SHARED(double, best, [INV_SYNC_THREADS]);
    INV_SHARED(int64_t, at, [INV_SYNC_THREADS]);
    const unsigned t = threadIdx.x;
    const int64_t left = f.n - k, width = complete ? left : 1;
    best[t] = -1;
    at[t] = INT64_MAX;
    for (int64_t e = t; e < left * width; e += INV_SYNC_THREADS) {
        const int64_t i = k + e / width, place = i * f.n + k + e % width;
        const double v = fabs(f.a[place]);
        if (v > best[t]) {
            best[t] = v;
            at[t] = place;
        }
    }
    __syncthreads();
    for (unsigned half = INV_SYNC_THREADS / 2; half > 0; half /= 2) {
        if (t < half && (best[t + half] > best[t] || (best[t + half] == best[t] && at[t + half] < at[t]))) {
            best[t] = best[t + half];
            at[t] = at[t + half];
        }
        __syncthreads();
    }
    const int64_t found = at[0] < f.n * f.n ? at[0] : k * f.n + k; /* only NaN: stay */
    __syncthreads();
    return found;
}

template <class I> INV_DEVICE void swap(I *a, I *b)
{
    const I v = *a;
    *a = *b;
    *b = v;
}

/* Returns the sign of the exchanges. */
template <class T> INV_DEVICE double factor(const lu &f, const T *x, bool complete)
{
    double sign = 1;
    const int64_t n = f.n;
    for (int64_t e = threadIdx.x; e < n * n; e += blockDim.x) f.a[e] = (double)x[e];
    for (int64_t i = threadIdx.x; i < n; i += blockDim.x) f.row[i] = f.col[i] = i;
    __syncthreads();
    for (int64_t k = 0; k < n; k++) {
        const int64_t place = find_pivot(f, k, complete), r = place / n, c = place % n;
        for (int64_t j = threadIdx.x; r != k && j < n; j += blockDim.x) swap(&f.a[k * n + j], &f.a[r * n + j]);
        __syncthreads();
        for (int64_t i = threadIdx.x; c != k && i < n; i += blockDim.x) swap(&f.a[i * n + k], &f.a[i * n + c]);
        if (threadIdx.x == 0) {
            swap(&f.row[k], &f.row[r]);
            swap(&f.col[k], &f.col[c]);
        }
        __syncthreads();
        if (r != k) sign = -sign;
        if (c != k) sign = -sign;
        const double pivot = f.a[k * n + k];
        if (pivot == 0) continue;
        for (int64_t i = k + 1 + threadIdx.x; i < n; i += blockDim.x) f.a[i * n + k] /= pivot;
        __syncthreads();
        const int64_t left = n - k - 1;
        for (int64_t e = threadIdx.x; e < left * left; e += blockDim.x) {
            const int64_t i = k + 1 + e / left, j = k + 1 + e % left;
            f.a[i * n + j] -= f.a[i * n + k] * f.a[k * n + j];
        }
        __syncthreads();
    }
    return sign;
}

template <class T> INV_KERNEL det_kernel(int64_t count, int64_t n, const T *x, T *y, double *ws, int64_t each)
{
    for (int64_t m = blockIdx.x; m < count; m += gridDim.x) {
        const lu f = lu_in(ws + m * each, n);
        double det = factor(f, x + m * n * n, false);
        for (int64_t k = 0; k < n; k++) det *= f.a[k * n + k];
        if (threadIdx.x == 0) y[m] = (T)det;
    }
}

/* Column c of adj(U) inv(L) to z; rest: the product of the diagonal without its last. */
INV_DEVICE void adjugate_column(const lu &f, int64_t c, double rest, double *z)
{
    const int64_t n = f.n, last = n - 1;
    const double t = f.a[last * n + last];
    for (int64_t i = 0; i < n; i++) {
        double v = i == c ? 1 : 0;
        for (int64_t j = c; j < i; j++) v -= f.a[i * n + j] * z[j];
        z[i] = v;
    }
    for (int64_t i = last - 1; i >= 0; i--) {
        double v = t * z[i] - f.a[i * n + last] * z[last];
        for (int64_t j = i + 1; j < last; j++) v -= f.a[i * n + j] * z[j];
        z[i] = v / f.a[i * n + i];
    }
    for (int64_t i = 0; i < n; i++) z[i] *= rest;
}

template <class T>
INV_KERNEL det_grad_kernel(int64_t count, int64_t n, const T *gy, const T *x, T *gx, double *ws, int64_t each)
{
    for (int64_t m = blockIdx.x; m < count; m += gridDim.x) {
        const lu f = lu_in(ws + m * each, n);
        const double sign = factor(f, x + m * n * n, true), g = (double)gy[m];
        double rest = 1;
        for (int64_t k = 0; k + 1 < n; k++) rest *= f.a[k * n + k];
        for (int64_t c = threadIdx.x; c < n; c += blockDim.x) {
            double *z = ws + m * each + n * n + 2 * n + c * n;
            if (rest != 0) adjugate_column(f, c, rest, z);
            for (int64_t i = 0; i < n; i++)
                gx[m * n * n + f.row[c] * n + f.col[i]] = (T)(rest != 0 ? g * (sign * z[i]) : 0);
        }
    }
}

static int64_t blocks_for(int64_t count) { return count < MOST_BLOCKS ? count : MOST_BLOCKS; }

template <class T> static void start(const inv_gpu *gpu, int64_t count, int64_t n, const T *x, T *y, double *ws)
{
    inv_start_sync(gpu, det_kernel<T>, blocks_for(count), INV_SYNC_THREADS, count, n, x, y, ws,
                   inv_det_doubles(n, false));
}

template <class T>
static void start_grad(const inv_gpu *gpu, int64_t count, int64_t n, const T *gy, const T *x, T *gx, double *ws)
{
    inv_start_sync(gpu, det_grad_kernel<T>, blocks_for(count), INV_SYNC_THREADS, count, n, gy, x, gx, ws,
                   inv_det_doubles(n, true));
}

extern "C" void INV_GPU_NAME(det)(const inv_gpu *gpu, inv_dtype t, int64_t count, int64_t n, const void *x, void *y,
                                  double *ws)
{
    INV_REAL_AS(t, T, start(gpu, count, n, (const T *)x, (T *)y, ws));
}

extern "C" void INV_GPU_NAME(det_grad)(const inv_gpu *gpu, inv_dtype t, int64_t count, int64_t n, const void *gy,
                                       const void *x, void *gx, double *ws)
{
    INV_REAL_AS(t, T, start_grad(gpu, count, n, (const T *)gy, (const T *)x, (T *)gx, ws));
}
