/* SPDX-License-Identifier: Apache-2.0
 * Batch normalisation on the device: double per element, rounded once, as on the host. A thread keeps its channel, so
 * a channel's numbers are read once per thread. Results may overwrite x or gy: elements are read before they are
 * written, by the same thread. */
#include "ops/gpu/many.cuh"
#include "ops/norm/norm_gpu.h"

#include "ops/reduce/reduce_device.inc"

#define CHANNEL_THREADS 32 /* join the shares of a channel */

INV_DEVICE int64_t share_length(const inv_fold &f, int64_t part)
{
    return part + 1 < f.parts ? f.part : f.n - part * f.part;
}

/* Mean of each share and sum of squares around it, in one pass: around the mean of every thread's first element, which
 * is near enough to the share's mean that nothing cancels. */
template <class X> INV_KERNEL stats_kernel(inv_fold f, const X *x, double *share)
{
    fold_place p = fold_begin(f);
    const double first = p.mine > 0 ? (double)x[p.at] : 0;
    const int64_t firsts = p.count < f.depth ? p.count : f.depth;
    const double shift = fold_join<INV_FOLD_SUM>(f, p, first) / (double)(firsts > 0 ? firsts : 1);
    double sum = 0, square = 0;
    while (p.k < p.mine) {
        int64_t at[FOLD_TAKE];
        X v[FOLD_TAKE];
        fold_take(f, p, at);
        fold_load(x, at, (X)0, v);
        for (int u = 0; u < FOLD_TAKE; u++) {
            const double d = at[u] >= 0 ? (double)v[u] - shift : 0;
            sum += d;
            square += d * d;
        }
    }
    sum = fold_join<INV_FOLD_SUM>(f, p, sum);
    square = fold_join<INV_FOLD_SUM>(f, p, square);
    if (p.lane == 0 && p.out < f.nout) {
        const double off = p.count > 0 ? sum / (double)p.count : 0;
        double *s = share + (p.out * f.parts + p.part) * 2;
        s[0] = shift + off;
        s[1] = square - off * sum;
    }
}

/* One block per channel. */
template <class X> INV_KERNEL stats_join_kernel(inv_fold f, const double *share, X *mean, X *var)
{
    const int64_t c = blockIdx.x;
    const double *s = share + c * f.parts * 2;
    double sum = 0, square = 0;
    for (int64_t p = threadIdx.x; p < f.parts; p += CHANNEL_THREADS) sum += s[2 * p] * (double)share_length(f, p);
    const double m = f.parts == 1 && f.n > 0 ? s[0] : inv_block_sum(sum) / (double)f.n;
    for (int64_t p = threadIdx.x; p < f.parts; p += CHANNEL_THREADS) {
        const double d = s[2 * p] - m;
        square += s[2 * p + 1] + d * d * (double)share_length(f, p);
    }
    square = inv_block_sum(square);
    if (threadIdx.x == 0) {
        if (mean) mean[c] = (X)m;
        if (var) var[c] = (X)((square < 0 ? 0 : square) / (double)f.n);
    }
}

/* y = (x - sub) mul + add */
template <class X>
INV_KERNEL affine_kernel(inv_fold f, double eps, bool inverse, const X *x, const X *scale, const X *bias, const X *mean,
                         const X *var, X *y)
{
    fold_place p = fold_begin(f);
    double sub = 0, mul = 0, add = 0;
    if (p.mine > 0) {
        const double d = sqrt((double)var[p.out] + eps), m = (double)mean[p.out], b = (double)bias[p.out];
        sub = inverse ? b : m;
        mul = inverse ? d / (double)scale[p.out] : (double)scale[p.out] / d;
        add = inverse ? m : b;
    }
    while (p.k < p.mine) {
        int64_t at[FOLD_TAKE];
        X v[FOLD_TAKE];
        fold_take(f, p, at);
        fold_load(x, at, (X)0, v);
        for (int u = 0; u < FOLD_TAKE; u++) {
            if (at[u] >= 0) y[at[u]] = (X)(((double)v[u] - sub) * mul + add);
        }
    }
}

/* Sums of gy and of gy (x - mean). */
template <class X> INV_KERNEL products_kernel(inv_fold f, const X *x, const X *gy, const X *mean, double *share)
{
    fold_place p = fold_begin(f);
    const double m = p.out < f.nout ? (double)mean[p.out] : 0;
    double sum = 0, product = 0;
    while (p.k < p.mine) {
        int64_t at[FOLD_TAKE];
        X g[FOLD_TAKE], v[FOLD_TAKE];
        fold_take(f, p, at);
        fold_load(gy, at, (X)0, g);
        fold_load(x, at, (X)0, v);
        for (int u = 0; u < FOLD_TAKE; u++) { /* where there is none, g is 0 */
            sum += (double)g[u];
            product += (double)g[u] * ((double)v[u] - m);
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

/* One block per channel: dscale, dbias, and the two means that dx needs, into `means`. */
template <class X>
INV_KERNEL products_join_kernel(inv_fold f, double eps, const X *var, const double *share, double *means, X *dscale,
                                X *dbias)
{
    const int64_t c = blockIdx.x;
    const double *s = share + c * f.parts * 2, inv = 1 / sqrt((double)var[c] + eps);
    double sum = 0, product = 0;
    for (int64_t p = threadIdx.x; p < f.parts; p += CHANNEL_THREADS) {
        sum += s[2 * p];
        product += s[2 * p + 1];
    }
    sum = inv_block_sum(sum);
    product = inv_block_sum(product);
    if (threadIdx.x == 0) {
        means[2 * c] = sum / (double)f.n;
        means[2 * c + 1] = product / (double)f.n * inv * inv;
        if (dscale) dscale[c] = (X)(product * inv);
        if (dbias) dbias[c] = (X)sum;
    }
}

/* dx = a (gy - k0 - (x - mean) k1); means NULL: k0 = k1 = 0 */
template <class X>
INV_KERNEL grad_kernel(inv_fold f, double eps, const X *x, const X *gy, const X *scale, const X *mean, const X *var,
                       const double *means, X *dx)
{
    fold_place p = fold_begin(f);
    double a = 0, m = 0, k0 = 0, k1 = 0;
    if (p.mine > 0) {
        a = (double)scale[p.out] * (1 / sqrt((double)var[p.out] + eps));
        m = (double)mean[p.out];
        k0 = means ? means[2 * p.out] : 0;
        k1 = means ? means[2 * p.out + 1] : 0;
    }
    while (p.k < p.mine) {
        int64_t at[FOLD_TAKE];
        X v[FOLD_TAKE], g[FOLD_TAKE];
        fold_take(f, p, at);
        fold_load(x, at, (X)0, v);
        fold_load(gy, at, (X)0, g);
        for (int u = 0; u < FOLD_TAKE; u++) {
            if (at[u] >= 0) dx[at[u]] = (X)(a * ((double)g[u] - k0 - ((double)v[u] - m) * k1));
        }
    }
}

template <class X> INV_KERNEL mix_kernel(inv_many m, double momentum)
{
    const inv_piece_of_many piece = inv_many_piece(m);
    const X *running = (const X *)m.at[piece.at].p[0], *batch = (const X *)m.at[piece.at].p[1];
    X *out = (X *)m.at[piece.at].p[2];
    INV_EACH_OF_MANY(i, piece) out[i] = (X)((double)running[i] * momentum + (double)batch[i] * (1 - momentum));
}

template <class X>
static void stats(const inv_gpu *gpu, const inv_fold *f, const void *x, double *ws, void *mean, void *var)
{
    fold_launch(gpu, stats_kernel<X>, f, (const X *)x, ws);
    inv_start_sync(gpu, stats_join_kernel<X>, f->nout, CHANNEL_THREADS, *f, (const double *)ws, (X *)mean, (X *)var);
}

template <class X> static void affine(const inv_gpu *gpu, const inv_fold *f, const inv_norm *a, bool inverse, void *y)
{
    inv_start(gpu, affine_kernel<X>, inv__fold_blocks(f), INV_FOLD_THREADS, *f, a->eps, inverse, (const X *)a->x,
              (const X *)a->scale, (const X *)a->bias, (const X *)a->mean, (const X *)a->var, (X *)y);
}

template <class X>
static void grad(const inv_gpu *gpu, const inv_fold *f, const inv_norm *a, bool training, double *ws, void *dx,
                 void *dscale, void *dbias)
{
    double *means = training ? ws + f->nout * f->parts * 2 : NULL;
    const X *x = (const X *)a->x, *gy = (const X *)a->gy, *mean = (const X *)a->mean, *var = (const X *)a->var;
    if (training || dscale || dbias) {
        fold_launch(gpu, products_kernel<X>, f, x, gy, mean, ws);
        inv_start_sync(gpu, products_join_kernel<X>, f->nout, CHANNEL_THREADS, *f, a->eps, var, (const double *)ws,
                       ws + f->nout * f->parts * 2, (X *)dscale, (X *)dbias);
    }
    if (dx)
        inv_start(gpu, grad_kernel<X>, inv__fold_blocks(f), INV_FOLD_THREADS, *f, a->eps, x, gy, (const X *)a->scale,
                  mean, var, (const double *)means, (X *)dx);
}

extern "C" void INV_GPU_NAME(batch_stats)(const inv_gpu *gpu, const inv_fold *f, inv_dtype t, const void *x, double *ws,
                                          void *mean, void *var)
{
    INV_REAL_AS(t, T, stats<T>(gpu, f, x, ws, mean, var));
}

extern "C" void INV_GPU_NAME(batch_norm)(const inv_gpu *gpu, const inv_fold *f, const inv_norm *a, bool inverse,
                                         void *y)
{
    INV_REAL_AS(a->dtype, T, affine<T>(gpu, f, a, inverse, y));
}

extern "C" void INV_GPU_NAME(batch_norm_grad)(const inv_gpu *gpu, const inv_fold *f, const inv_norm *a, bool training,
                                              double *ws, void *dx, void *dscale, void *dbias)
{
    INV_REAL_AS(a->dtype, T, grad<T>(gpu, f, a, training, ws, dx, dscale, dbias));
}

extern "C" void INV_GPU_NAME(running_mix)(const inv_gpu *gpu, inv_dtype t, const inv_many *m, double momentum)
{
    INV_REAL_AS(t, T, inv_start(gpu, mix_kernel<T>, m->blocks, INV_THREADS, *m, momentum));
}
