/* SPDX-License-Identifier: Apache-2.0
 * Layer, RMS and group normalisation on the device: double per element, rounded once, as on the host. A block or a part
 * of one takes a row and reads it again for each pass, which the cache serves. A result may overwrite an operand: every
 * element is read, then written, by one thread, and sums over rows are taken before. */
#include "ops/gpu/device.cuh"
#include "ops/gpu/loop.h"
#include "ops/norm/norm_gpu.h"

#include "ops/reduce/reduce_device.inc"

#define INV_ROW_THREADS INV_SYNC_THREADS
#define COLUMN_THREADS 32 /* join the shares of a column */

/* A row of `h` neighbouring threads: a power of two up to 32, or the whole block. */
struct row_place {
    int64_t row, at, len; /* len 0: past the last row */
    int first;
};

INV_DEVICE row_place row_begin(int h, int64_t rows, int64_t len)
{
    row_place p;
    p.row = (int64_t)blockIdx.x * (INV_ROW_THREADS / h) + (int)threadIdx.x / h;
    p.len = p.row < rows ? len : 0;
    p.at = p.row < rows ? p.row * len : 0;
    p.first = (int)threadIdx.x % h;
    return p;
}

/* Mean, and 1 / sqrt(var + eps); rms: 0 in place of the mean. */
template <class X>
INV_DEVICE void row_stats(int h, const row_place &p, int64_t len, double eps, bool rms, const X *x, double &mean,
                          double &inv)
{
    double sum = 0, square = 0;
    for (int64_t i = p.first; i < p.len && !rms; i += h) sum += (double)x[p.at + i];
    mean = inv_row_sum(sum, h) / (double)len;
    for (int64_t i = p.first; i < p.len; i += h) {
        const double d = (double)x[p.at + i] - mean;
        square += d * d;
    }
    inv = 1 / sqrt(inv_row_sum(square, h) / (double)len + eps);
}

template <class X>
INV_KERNEL apply_kernel(int h, int64_t rows, int64_t len, double eps, bool rms, const X *x, const X *scale,
                        const X *bias, X *y)
{
    const row_place p = row_begin(h, rows, len);
    double mean, inv;
    row_stats(h, p, len, eps, rms, x, mean, inv);
    for (int64_t i = p.first; i < p.len; i += h) {
        const double v = ((double)x[p.at + i] - mean) * inv * (double)scale[i];
        y[p.at + i] = (X)(bias ? v + (double)bias[i] : v);
    }
}

template <class X>
INV_KERNEL stats_kernel(int h, int64_t rows, int64_t len, double eps, bool rms, const X *x, double *stats)
{
    const row_place p = row_begin(h, rows, len);
    double mean, inv;
    row_stats(h, p, len, eps, rms, x, mean, inv);
    if (p.first == 0 && p.row < rows) {
        stats[2 * p.row] = mean;
        stats[2 * p.row + 1] = inv;
    }
}

/* dx = inv (g - mean of g - xhat mean of g xhat) with g = gy scale, xhat = (x - mean) inv */
template <class X>
INV_KERNEL dx_kernel(int h, int64_t rows, int64_t len, bool rms, const X *x, const X *gy, const X *scale,
                     const double *stats, X *dx)
{
    const row_place p = row_begin(h, rows, len);
    const double mean = p.len > 0 ? stats[2 * p.row] : 0, inv = p.len > 0 ? stats[2 * p.row + 1] : 0;
    double sum = 0, product = 0;
    for (int64_t i = p.first; i < p.len; i += h) {
        const double g = (double)gy[p.at + i] * (double)scale[i];
        sum += rms ? 0 : g;
        product += g * ((double)x[p.at + i] - mean);
    }
    const double k0 = inv_row_sum(sum, h) / (double)len, k1 = inv_row_sum(product, h) / (double)len * inv * inv;
    for (int64_t i = p.first; i < p.len; i += h) {
        const double g = (double)gy[p.at + i] * (double)scale[i];
        dx[p.at + i] = (X)(inv * (g - k0 - ((double)x[p.at + i] - mean) * k1));
    }
}

/* Sums over rows of gy and of gy xhat, a share of the rows at a time. */
template <class X> INV_KERNEL columns_kernel(inv_fold f, const X *x, const X *gy, const double *stats, double *share)
{
    fold_place p = fold_begin(f);
    double sum = 0, product = 0;
    while (p.k < p.mine) {
        const int64_t row = p.first + (int64_t)p.k * f.depth;
        int64_t at[FOLD_TAKE];
        X g[FOLD_TAKE], v[FOLD_TAKE];
        fold_take(f, p, at);
        fold_load(gy, at, (X)0, g);
        fold_load(x, at, (X)0, v);
        for (int u = 0; u < FOLD_TAKE; u++) {
            if (at[u] < 0) continue;
            const double *s = stats + 2 * (row + (int64_t)u * f.depth);
            sum += (double)g[u];
            product += (double)g[u] * (((double)v[u] - s[0]) * s[1]);
        }
    }
    sum = fold_join<INV_FOLD_SUM>(f, p, sum);
    product = fold_join<INV_FOLD_SUM>(f, p, product);
    if (p.lane == 0 && p.out < f.nout) {
        double *s = share + (p.out * f.parts + p.part) * 2;
        s[0] = sum;
        s[1] = product;
    }
}

/* One block per column. */
template <class X> INV_KERNEL columns_join_kernel(int parts, const double *share, X *dscale, X *dbias)
{
    const int64_t c = blockIdx.x;
    const double *s = share + c * parts * 2;
    double sum = 0, product = 0;
    for (int p = (int)threadIdx.x; p < parts; p += COLUMN_THREADS) {
        sum += s[2 * p];
        product += s[2 * p + 1];
    }
    sum = inv_block_sum(sum);
    product = inv_block_sum(product);
    if (threadIdx.x == 0) {
        if (dscale) dscale[c] = (X)product;
        if (dbias) dbias[c] = (X)sum;
    }
}

/* --- groups of channels --- */

template <class X>
INV_KERNEL group_apply_kernel(int h, inv_groupnorm a, const X *x, const X *scale, const X *bias, X *y)
{
    const int64_t len = a.channels * a.area;
    const row_place p = row_begin(h, a.images * a.groups, len);
    const int64_t channel = p.row % a.groups * a.channels;
    double mean, inv;
    row_stats(h, p, len, a.of.eps, false, x, mean, inv);
    for (int64_t i = p.first; i < p.len; i += h) {
        const int64_t c = channel + inv_quotient(i, a.area);
        y[p.at + i] = (X)(((double)x[p.at + i] - mean) * (inv * (double)scale[c]) + (double)bias[c]);
    }
}

/* Per image and channel: the sums of gy and of gy xhat. */
template <class X>
INV_KERNEL group_sums_kernel(int h, inv_groupnorm a, const X *x, const X *gy, const double *stats, double *sums)
{
    const int64_t n = a.images * a.groups * a.channels;
    const row_place p = row_begin(h, n, a.area);
    const double *s = stats + 2 * (p.row < n ? p.row / a.channels : 0);
    double sum = 0, product = 0;
    for (int64_t i = p.first; i < p.len; i += h) {
        sum += (double)gy[p.at + i];
        product += (double)gy[p.at + i] * (((double)x[p.at + i] - s[0]) * s[1]);
    }
    sum = inv_row_sum(sum, h);
    product = inv_row_sum(product, h);
    if (p.first == 0 && p.row < n) {
        sums[2 * p.row] = sum;
        sums[2 * p.row + 1] = product;
    }
}

/* Of each row: the means of gy scale and of gy scale xhat. */
template <class X> INV_KERNEL group_means_kernel(inv_groupnorm a, const X *scale, const double *sums, double *means)
{
    INV_EACH(row, a.images * a.groups)
    {
        const double len = (double)(a.channels * a.area);
        const X *s = scale + row % a.groups * a.channels;
        double k0 = 0, k1 = 0;
        for (int64_t j = 0; j < a.channels; j++) {
            k0 += sums[2 * (row * a.channels + j)] * (double)s[j];
            k1 += sums[2 * (row * a.channels + j) + 1] * (double)s[j];
        }
        means[2 * row] = k0 / len;
        means[2 * row + 1] = k1 / len;
    }
}

template <class X>
INV_KERNEL group_dx_kernel(inv_groupnorm a, int64_t n, const X *x, const X *gy, const X *scale, const double *stats,
                           const double *means, X *dx)
{
    INV_EACH(i, n)
    {
        const int64_t plane = inv_quotient(i, a.area), row = inv_quotient(plane, a.channels),
                      image = inv_quotient(row, a.groups);
        const double *s = stats + 2 * row, *k = means + 2 * row;
        const double g = (double)gy[i] * (double)scale[plane - image * a.groups * a.channels];
        dx[i] = (X)(s[1] * (g - k[0] - ((double)x[i] - s[0]) * s[1] * k[1]));
    }
}

/* One block per channel adds up the images. */
template <class X> INV_KERNEL group_join_kernel(inv_groupnorm a, const double *sums, X *dscale, X *dbias)
{
    const int64_t c = blockIdx.x, apart = a.groups * a.channels;
    double sum = 0, product = 0;
    for (int64_t i = threadIdx.x; i < a.images; i += COLUMN_THREADS) {
        sum += sums[2 * (i * apart + c)];
        product += sums[2 * (i * apart + c) + 1];
    }
    sum = inv_block_sum(sum);
    product = inv_block_sum(product);
    if (threadIdx.x == 0) {
        if (dscale) dscale[c] = (X)product;
        if (dbias) dbias[c] = (X)sum;
    }
}

static int row_threads(int64_t len) { return len <= 64 ? 8 : len <= 1024 ? 32 : INV_ROW_THREADS; }

static int64_t row_blocks(int64_t rows, int64_t len)
{
    const int64_t per = INV_ROW_THREADS / row_threads(len);
    return (rows + per - 1) / per;
}

template <class X> static void apply(const inv_gpu *gpu, const inv_layernorm *a, void *y)
{
    inv_start_sync(gpu, apply_kernel<X>, row_blocks(a->rows, a->len), INV_ROW_THREADS, row_threads(a->len), a->rows,
                   a->len, a->of.eps, a->rms, (const X *)a->of.x, (const X *)a->of.scale, (const X *)a->of.bias,
                   (X *)y);
}

template <class X>
static void grad(const inv_gpu *gpu, const inv_layernorm *a, const inv_fold *f, double *ws, void *dx, void *dscale,
                 void *dbias)
{
    const int h = row_threads(a->len);
    const X *x = (const X *)a->of.x, *gy = (const X *)a->of.gy;
    double *stats = ws + f->nout * f->parts * 2;
    inv_start_sync(gpu, stats_kernel<X>, row_blocks(a->rows, a->len), INV_ROW_THREADS, h, a->rows, a->len, a->of.eps,
                   a->rms, x, stats);
    if (dscale || dbias) {
        fold_launch(gpu, columns_kernel<X>, f, x, gy, (const double *)stats, ws);
        inv_start_sync(gpu, columns_join_kernel<X>, f->nout, COLUMN_THREADS, f->parts, (const double *)ws, (X *)dscale,
                       (X *)dbias);
    }
    if (dx)
        inv_start_sync(gpu, dx_kernel<X>, row_blocks(a->rows, a->len), INV_ROW_THREADS, h, a->rows, a->len, a->rms, x,
                       gy, (const X *)a->of.scale, (const double *)stats, (X *)dx);
}

template <class X> static void group_apply(const inv_gpu *gpu, const inv_groupnorm *a, void *y)
{
    const int64_t len = a->channels * a->area;
    inv_start_sync(gpu, group_apply_kernel<X>, row_blocks(a->images * a->groups, len), INV_ROW_THREADS,
                   row_threads(len), *a, (const X *)a->of.x, (const X *)a->of.scale, (const X *)a->of.bias, (X *)y);
}

template <class X>
static void group_grad(const inv_gpu *gpu, const inv_groupnorm *a, double *ws, void *dx, void *dscale, void *dbias)
{
    const int64_t rows = a->images * a->groups, planes = rows * a->channels, len = a->channels * a->area;
    const X *x = (const X *)a->of.x, *gy = (const X *)a->of.gy, *scale = (const X *)a->of.scale;
    double *sums = ws, *stats = ws + 2 * planes, *means = stats + 2 * rows;
    inv_start_sync(gpu, stats_kernel<X>, row_blocks(rows, len), INV_ROW_THREADS, row_threads(len), rows, len, a->of.eps,
                   false, x, stats);
    inv_start_sync(gpu, group_sums_kernel<X>, row_blocks(planes, a->area), INV_ROW_THREADS, row_threads(a->area), *a, x,
                   gy, (const double *)stats, sums);
    if (dscale || dbias)
        inv_start_sync(gpu, group_join_kernel<X>, a->groups * a->channels, COLUMN_THREADS, *a, (const double *)sums,
                       (X *)dscale, (X *)dbias);
    if (dx) {
        inv_start(gpu, group_means_kernel<X>, inv_blocks(rows), INV_THREADS, *a, scale, (const double *)sums, means);
        inv_start(gpu, group_dx_kernel<X>, inv_blocks(planes * a->area), INV_THREADS, *a, planes * a->area, x, gy,
                  scale, (const double *)stats, (const double *)means, (X *)dx);
    }
}

extern "C" void INV_GPU_NAME(layer_norm)(const inv_gpu *gpu, const inv_layernorm *a, void *y)
{
    INV_REAL_AS(a->of.dtype, T, apply<T>(gpu, a, y));
}

extern "C" void INV_GPU_NAME(layer_norm_grad)(const inv_gpu *gpu, const inv_layernorm *a, const inv_fold *f, double *ws,
                                              void *dx, void *dscale, void *dbias)
{
    INV_REAL_AS(a->of.dtype, T, grad<T>(gpu, a, f, ws, dx, dscale, dbias));
}

extern "C" void INV_GPU_NAME(group_norm)(const inv_gpu *gpu, const inv_groupnorm *a, void *y)
{
    INV_REAL_AS(a->of.dtype, T, group_apply<T>(gpu, a, y));
}

extern "C" void INV_GPU_NAME(group_norm_grad)(const inv_gpu *gpu, const inv_groupnorm *a, double *ws, void *dx,
                                              void *dscale, void *dbias)
{
    INV_REAL_AS(a->of.dtype, T, group_grad<T>(gpu, a, ws, dx, dscale, dbias));
}
