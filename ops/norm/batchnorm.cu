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

/* Of a channel's shares, in thread 0: the mean, and the sum of squares around it. */
INV_DEVICE double join_shares(const inv_fold &f, const double *s, double *squares)
{
    double sum = 0, square = 0;
    for (int64_t p = threadIdx.x; p < f.parts; p += CHANNEL_THREADS) sum += s[2 * p] * (double)share_length(f, p);
    const double m = f.parts == 1 && f.n > 0 ? s[0] : inv_block_sum(sum) / (double)f.n;
    for (int64_t p = threadIdx.x; p < f.parts; p += CHANNEL_THREADS) {
        const double d = s[2 * p] - m;
        square += s[2 * p + 1] + d * d * (double)share_length(f, p);
    }
    square = inv_block_sum(square);
    *squares = square < 0 ? 0 : square;
    return m;
}

/* One block per channel. */
template <class X> INV_KERNEL stats_join_kernel(inv_fold f, const double *share, X *mean, X *var)
{
    const int64_t c = blockIdx.x;
    double squares;
    const double m = join_shares(f, share + c * f.parts * 2, &squares);
    if (threadIdx.x == 0) {
        if (mean) mean[c] = (X)m;
        if (var) var[c] = (X)(squares / (double)f.n);
    }
}

/* Likewise: what ranks exchange. */
INV_KERNEL moments_kernel(inv_fold f, const double *share, double *out)
{
    const int64_t c = blockIdx.x;
    double squares;
    const double m = join_shares(f, share + c * f.parts * 2, &squares);
    if (threadIdx.x == 0) {
        out[1 + c] = m;
        out[1 + f.nout + c] = squares;
        if (c == 0) *out = (double)f.n;
    }
}

template <class X>
INV_KERNEL join_moments_kernel(int64_t channels, int64_t parts, const double *part, X *mean, X *var, double *count)
{
    INV_EACH(c, channels)
    {
        double n = 0, m = 0, squares = 0;
        for (int64_t p = 0; p < parts; p++)
            inv__join_moments(part + p * (1 + 2 * channels), channels, c, &n, &m, &squares);
        if (mean) mean[c] = (X)m;
        if (var) var[c] = (X)(squares / n);
        if (count && c == 0) *count = n;
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

/* Of a channel's shares, all in thread 0. */
INV_DEVICE void join_products(const inv_fold &f, const double *s, double *sum, double *product)
{
    double a = 0, b = 0;
    for (int64_t p = threadIdx.x; p < f.parts; p += CHANNEL_THREADS) {
        a += s[2 * p];
        b += s[2 * p + 1];
    }
    *sum = inv_block_sum(a);
    *product = inv_block_sum(b);
}

/* One block per channel: dscale, dbias, and the two means that dx needs, into `means`. */
template <class X>
INV_KERNEL products_join_kernel(inv_fold f, inv_norm_ranks r, double eps, const X *var, const double *share,
                                double *means, X *dscale, X *dbias)
{
    const int64_t c = blockIdx.x;
    const double inv = 1 / sqrt((double)var[c] + eps), of = 1 / (double)r.n;
    double sum = 0, product = 0;
    if (r.sums) {
        for (int64_t p = 0; p < r.n; p++) {
            sum += r.sums[2 * p * f.nout + c];
            product += r.sums[(2 * p + 1) * f.nout + c];
        }
    } else {
        join_products(f, share + c * f.parts * 2, &sum, &product);
    }
    if (threadIdx.x == 0) {
        const double count = r.sums ? *r.count : (double)f.n;
        means[2 * c] = sum / count;
        means[2 * c + 1] = product / count * inv * inv;
        if (dscale) dscale[c] = (X)(product * inv * of);
        if (dbias) dbias[c] = (X)(sum * of);
    }
}

/* Likewise: what ranks exchange. */
INV_KERNEL sums_kernel(inv_fold f, const double *share, double *out)
{
    const int64_t c = blockIdx.x;
    double sum, product;
    join_products(f, share + c * f.parts * 2, &sum, &product);
    if (threadIdx.x == 0) {
        out[c] = sum;
        out[f.nout + c] = product;
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

template <class X> INV_KERNEL mix_kernel(inv_many m, int64_t batches, double momentum)
{
    const inv_piece_of_many piece = inv_many_piece(m);
    const X *running = (const X *)m.at[piece.at].p[0], *batch = (const X *)m.at[piece.at].p[1];
    X *out = (X *)m.at[piece.at].p[2];
    const int64_t n = m.at[piece.at].n;
    INV_EACH_OF_MANY(i, piece)
    {
        X mixed = running[i];
        for (int64_t k = 0; k < batches; k++)
            mixed = (X)((double)mixed * momentum + (double)batch[k * n + i] * (1 - momentum));
        out[i] = mixed;
    }
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
static void grad(const inv_gpu *gpu, const inv_fold *f, const inv_norm *a, const inv_norm_ranks *r, bool training,
                 double *ws, void *dx, void *dscale, void *dbias)
{
    double *means = training ? ws + f->nout * f->parts * 2 : NULL;
    const X *x = (const X *)a->x, *gy = (const X *)a->gy, *mean = (const X *)a->mean, *var = (const X *)a->var;
    if (training || dscale || dbias) {
        if (!r->sums) fold_launch(gpu, products_kernel<X>, f, x, gy, mean, ws);
        inv_start_sync(gpu, products_join_kernel<X>, f->nout, CHANNEL_THREADS, *f, *r, a->eps, var, (const double *)ws,
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

extern "C" void INV_GPU_NAME(batch_norm_grad)(const inv_gpu *gpu, const inv_fold *f, const inv_norm *a,
                                              const inv_norm_ranks *r, bool training, double *ws, void *dx,
                                              void *dscale, void *dbias)
{
    INV_REAL_AS(a->dtype, T, grad<T>(gpu, f, a, r, training, ws, dx, dscale, dbias));
}

extern "C" void INV_GPU_NAME(batch_moments)(const inv_gpu *gpu, const inv_fold *f, inv_dtype t, const void *x,
                                            double *ws, double *out)
{
    INV_REAL_AS(t, T, fold_launch(gpu, stats_kernel<T>, f, (const T *)x, ws));
    inv_start_sync(gpu, moments_kernel, f->nout, CHANNEL_THREADS, *f, (const double *)ws, out);
}

extern "C" void INV_GPU_NAME(join_moments)(const inv_gpu *gpu, inv_dtype t, int64_t channels, int64_t parts,
                                           const double *part, void *mean, void *var, double *count)
{
    INV_REAL_AS(t, T,
                inv_start(gpu, join_moments_kernel<T>, inv_blocks(channels), INV_THREADS, channels, parts, part,
                          (T *)mean, (T *)var, count));
}

extern "C" void INV_GPU_NAME(grad_sums)(const inv_gpu *gpu, const inv_fold *f, const inv_norm *a, double *ws,
                                        double *out)
{
    INV_REAL_AS(a->dtype, T,
                fold_launch(gpu, products_kernel<T>, f, (const T *)a->x, (const T *)a->gy, (const T *)a->mean, ws));
    inv_start_sync(gpu, sums_kernel, f->nout, CHANNEL_THREADS, *f, (const double *)ws, out);
}

extern "C" void INV_GPU_NAME(running_mix)(const inv_gpu *gpu, inv_dtype t, const inv_many *m, int64_t batches,
                                          double momentum)
{
    INV_REAL_AS(t, T, inv_start(gpu, mix_kernel<T>, m->blocks, INV_THREADS, *m, batches, momentum));
}
