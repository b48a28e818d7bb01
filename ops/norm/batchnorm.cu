/* SPDX-License-Identifier: Apache-2.0
 * Batch normalisation on the device: double per element, rounded once, as on the host. A thread keeps its channel, so
 * a channel's numbers are read once per thread. N: elements that a thread takes side by side, four where they lie so,
 * of C channels: one, or with channels last each its own. Results may overwrite x or gy: elements are read before they
 * are written, by the same thread. */
#include "ops/gpu/many.cuh"
#include "ops/norm/norm_gpu.h"

#include "ops/reduce/reduce_device.inc"

#define CHANNEL_THREADS 32 /* join the shares of a channel */
#define TAKE(N) (N == 4 ? 4 : FOLD_TAKE)

template <class X, int N> struct some {
    X v[N];
};

/* What is at those offsets, zeros where there is nothing. */
template <class X, int N> INV_DEVICE void load_some(const X *x, const int64_t (&at)[TAKE(N)], some<X, N> (&v)[TAKE(N)])
{
    INV_UNROLL
    for (int u = 0; u < TAKE(N); u++) {
        inv_four<X> four = {};
        if (at[u] >= 0 && N == 4) four = inv_four_load(x + at[u]);
        if (at[u] >= 0 && N == 1) four.v[0] = x[at[u]];
        for (int c = 0; c < N; c++) v[u].v[c] = four.v[c];
    }
}

template <class X> INV_DEVICE void store_some(X *y, const some<X, 1> &s) { *y = s.v[0]; }
template <class X> INV_DEVICE void store_some(X *y, const some<X, 4> &s)
{
    inv_four_put(y, inv_four<X>{{s.v[0], s.v[1], s.v[2], s.v[3]}});
}

INV_DEVICE int64_t share_length(const inv_fold &f, int64_t part)
{
    return part + 1 < f.parts ? f.part : f.n - part * f.part;
}

/* Mean of each share and sum of squares around it, in one pass: around the mean of every thread's first element, which
 * is near enough to the share's mean that nothing cancels. */
template <class X, int N, int C> INV_KERNEL stats_kernel(inv_fold f, const X *x, double *share)
{
    fold_place p = fold_begin(f);
    const int64_t firsts = p.count < f.depth ? p.count : f.depth;
    double shift[C], sum[C] = {0}, square[C] = {0};
    for (int j = 0; j < C; j++) {
        const double first = p.mine > 0 ? (double)x[p.at + j] : 0;
        shift[j] = fold_join<INV_FOLD_SUM>(f, p, first) / (double)(firsts > 0 ? firsts : 1);
    }
    while (p.k < p.mine) {
        int64_t at[TAKE(N)];
        some<X, N> v[TAKE(N)];
        fold_take(f, p, at);
        load_some(x, at, v);
        for (int i = 0; i < TAKE(N) * N; i++) {
            const int j = i % C;
            const double d = at[i / N] >= 0 ? (double)v[i / N].v[i % N] - shift[j] : 0;
            sum[j] += d;
            square[j] += d * d;
        }
    }
    for (int j = 0; j < C; j++) {
        const double all = fold_join<INV_FOLD_SUM>(f, p, sum[j]), squares = fold_join<INV_FOLD_SUM>(f, p, square[j]);
        if (p.lane != 0 || p.out >= f.nout) continue;
        const double off = p.count > 0 ? all / (double)(p.count * (N / C)) : 0;
        double *s = share + ((p.out * C + j) * f.parts + p.part) * 2;
        s[0] = shift[j] + off;
        s[1] = squares - off * all;
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
INV_KERNEL join_moments_kernel(int64_t channels, int64_t parts, const double *part, const double *there, X *mean,
                               X *var, double *count)
{
    INV_EACH(c, channels)
    {
        double n = 0, m = 0, squares = 0;
        for (int64_t p = 0; p < parts; p++) {
            if (there && !(there[p] > 0)) continue;
            inv_join_moments(part + p * (1 + 2 * channels), channels, c, &n, &m, &squares);
        }
        if (mean) mean[c] = (X)m;
        if (var) var[c] = (X)(squares / n);
        if (count && c == 0) *count = n;
    }
}

/* y = (x - sub) mul + add */
template <class X, int N, int C>
INV_KERNEL affine_kernel(inv_fold f, double eps, bool inverse, const X *x, const X *scale, const X *bias, const X *mean,
                         const X *var, X *y)
{
    fold_place p = fold_begin(f);
    double sub[C] = {0}, mul[C] = {0}, add[C] = {0};
    for (int j = 0; j < C && p.mine > 0; j++) {
        const int64_t k = p.out * C + j;
        const double d = sqrt((double)var[k] + eps), m = (double)mean[k], b = (double)bias[k];
        sub[j] = inverse ? b : m;
        mul[j] = inverse ? d / (double)scale[k] : (double)scale[k] / d;
        add[j] = inverse ? m : b;
    }
    while (p.k < p.mine) {
        int64_t at[TAKE(N)];
        some<X, N> v[TAKE(N)];
        fold_take(f, p, at);
        load_some(x, at, v);
        INV_UNROLL
        for (int u = 0; u < TAKE(N); u++) {
            for (int c = 0; c < N; c++) v[u].v[c] = (X)(((double)v[u].v[c] - sub[c % C]) * mul[c % C] + add[c % C]);
            if (at[u] >= 0) store_some(y + at[u], v[u]);
        }
    }
}

/* Sums of gy and of gy (x - mean). */
template <class X, int N, int C>
INV_KERNEL products_kernel(inv_fold f, const X *x, const X *gy, const X *mean, double *share)
{
    fold_place p = fold_begin(f);
    double m[C], sum[C] = {0}, product[C] = {0};
    for (int j = 0; j < C; j++) m[j] = p.out < f.nout ? (double)mean[p.out * C + j] : 0;
    while (p.k < p.mine) {
        int64_t at[TAKE(N)];
        some<X, N> g[TAKE(N)], v[TAKE(N)];
        fold_take(f, p, at);
        load_some(gy, at, g);
        load_some(x, at, v);
        for (int i = 0; i < TAKE(N) * N; i++) { /* where there is none, g is 0 */
            const int j = i % C;
            const double d = (double)g[i / N].v[i % N];
            sum[j] += d;
            product[j] += d * ((double)v[i / N].v[i % N] - m[j]);
        }
    }
    for (int j = 0; j < C; j++) {
        const double all = fold_join<INV_FOLD_SUM>(f, p, sum[j]), products = fold_join<INV_FOLD_SUM>(f, p, product[j]);
        if (p.lane != 0 || p.out >= f.nout) continue;
        double *s = share + ((p.out * C + j) * f.parts + p.part) * 2;
        s[0] = all;
        s[1] = products;
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
    const double inv = 1 / sqrt((double)var[c] + eps);
    double sum = 0, product = 0;
    int64_t ranks = 1;
    if (r.sums) {
        sum = inv_sum_of_ranks(&r, 2 * f.nout, c, &ranks);
        product = inv_sum_of_ranks(&r, 2 * f.nout, f.nout + c, &ranks);
    } else {
        join_products(f, share + c * f.parts * 2, &sum, &product);
    }
    if (threadIdx.x == 0) {
        const double of = 1 / (double)ranks, count = r.sums ? *r.count : (double)f.n;
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
template <class X, int N, int C>
INV_KERNEL grad_kernel(inv_fold f, double eps, const X *x, const X *gy, const X *scale, const X *mean, const X *var,
                       const double *means, X *dx)
{
    fold_place p = fold_begin(f);
    double a[C] = {0}, m[C] = {0}, k0[C] = {0}, k1[C] = {0};
    for (int j = 0; j < C && p.mine > 0; j++) {
        const int64_t k = p.out * C + j;
        a[j] = (double)scale[k] * (1 / sqrt((double)var[k] + eps));
        m[j] = (double)mean[k];
        k0[j] = means ? means[2 * k] : 0;
        k1[j] = means ? means[2 * k + 1] : 0;
    }
    while (p.k < p.mine) {
        int64_t at[TAKE(N)];
        some<X, N> v[TAKE(N)], g[TAKE(N)];
        fold_take(f, p, at);
        load_some(x, at, v);
        load_some(gy, at, g);
        INV_UNROLL
        for (int u = 0; u < TAKE(N); u++) {
            for (int c = 0; c < N; c++) {
                const int j = c % C;
                g[u].v[c] = (X)(a[j] * ((double)g[u].v[c] - k0[j] - ((double)v[u].v[c] - m[j]) * k1[j]));
            }
            if (at[u] >= 0) store_some(dx + at[u], g[u]);
        }
    }
}

template <class X> INV_KERNEL mix_kernel(const inv_gpu_step *s, inv_many m, inv_mixing how)
{
    const inv_piece_of_many piece = inv_many_piece(m);
    const X *running = (const X *)m.at[piece.at].p[0], *batch = (const X *)m.at[piece.at].p[1];
    X *out = (X *)m.at[piece.at].p[2];
    const int64_t n = m.at[piece.at].n;
    INV_EACH_OF_MANY(i, piece)
    {
        X mixed = running[i];
        uint64_t there = (how.cumulative ? s->mixed : 0) * (uint64_t)how.batches;
        for (int64_t k = 0; k < how.batches; k++) {
            if (how.weight && !(how.weight[k] > 0)) continue;
            const double kept = inv_mix_kept(&how, there++);
            mixed = (X)((double)mixed * kept + (double)batch[k * n + i] * (1 - kept));
        }
        out[i] = mixed;
    }
}

/* Which of a kernel's three forms serves, and the walk that it takes. Operands that are NULL: there is none. */
enum { ONE, FOUR_OF_ONE, FOUR_OF_FOUR, FORMS };
static int walk_of(const inv_fold *f, const void *x, const void *gy, const void *y, inv_fold *walk)
{
    const bool aligned = inv_four_aligned(x) && inv_four_aligned(gy) && inv_four_aligned(y);
    *walk = *f;
    return !aligned || !inv_fold_fours(f, walk) ? ONE : f->columns ? FOUR_OF_FOUR : FOUR_OF_ONE;
}

template <class X> static void shares_of_stats(const inv_gpu *gpu, const inv_fold *f, const void *x, double *ws)
{
    void (*const kernel[FORMS])(inv_fold, const X *, double *) = {stats_kernel<X, 1, 1>, stats_kernel<X, 4, 1>,
                                                                  stats_kernel<X, 4, 4>};
    inv_fold walk;
    const int form = walk_of(f, x, NULL, NULL, &walk);
    fold_launch(gpu, kernel[form], &walk, (const X *)x, ws);
}

template <class X> static void shares_of_products(const inv_gpu *gpu, const inv_fold *f, const inv_norm *a, double *ws)
{
    void (*const kernel[FORMS])(inv_fold, const X *, const X *, const X *, double *) = {
        products_kernel<X, 1, 1>, products_kernel<X, 4, 1>, products_kernel<X, 4, 4>};
    inv_fold walk;
    const int form = walk_of(f, a->x, a->gy, NULL, &walk);
    fold_launch(gpu, kernel[form], &walk, (const X *)a->x, (const X *)a->gy, (const X *)a->mean, ws);
}

template <class X>
static void stats(const inv_gpu *gpu, const inv_fold *f, const void *x, double *ws, void *mean, void *var)
{
    shares_of_stats<X>(gpu, f, x, ws);
    inv_start_sync(gpu, stats_join_kernel<X>, f->nout, CHANNEL_THREADS, *f, (const double *)ws, (X *)mean, (X *)var);
}

template <class X> static void affine(const inv_gpu *gpu, const inv_fold *f, const inv_norm *a, bool inverse, void *y)
{
    void (*const kernel[FORMS])(inv_fold, double, bool, const X *, const X *, const X *, const X *, const X *,
                                X *) = {affine_kernel<X, 1, 1>, affine_kernel<X, 4, 1>, affine_kernel<X, 4, 4>};
    inv_fold walk;
    const int form = walk_of(f, a->x, NULL, y, &walk);
    inv_start(gpu, kernel[form], inv_fold_blocks(&walk), INV_FOLD_THREADS, walk, a->eps, inverse, (const X *)a->x,
              (const X *)a->scale, (const X *)a->bias, (const X *)a->mean, (const X *)a->var, (X *)y);
}

template <class X>
static void grad(const inv_gpu *gpu, const inv_fold *f, const inv_norm *a, const inv_norm_ranks *r, bool training,
                 double *ws, void *dx, void *dscale, void *dbias)
{
    double *means = training ? ws + f->nout * f->parts * 2 : NULL;
    const X *var = (const X *)a->var;
    if (training || dscale || dbias) {
        if (!r->sums) shares_of_products<X>(gpu, f, a, ws);
        inv_start_sync(gpu, products_join_kernel<X>, f->nout, CHANNEL_THREADS, *f, *r, a->eps, var, (const double *)ws,
                       ws + f->nout * f->parts * 2, (X *)dscale, (X *)dbias);
    }
    if (dx == NULL) return;
    void (*const kernel[FORMS])(inv_fold, double, const X *, const X *, const X *, const X *, const X *, const double *,
                                X *) = {grad_kernel<X, 1, 1>, grad_kernel<X, 4, 1>, grad_kernel<X, 4, 4>};
    inv_fold walk;
    const int form = walk_of(f, a->x, a->gy, dx, &walk);
    inv_start(gpu, kernel[form], inv_fold_blocks(&walk), INV_FOLD_THREADS, walk, a->eps, (const X *)a->x,
              (const X *)a->gy, (const X *)a->scale, (const X *)a->mean, var, (const double *)means, (X *)dx);
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
    INV_REAL_AS(t, T, shares_of_stats<T>(gpu, f, x, ws));
    inv_start_sync(gpu, moments_kernel, f->nout, CHANNEL_THREADS, *f, (const double *)ws, out);
}

extern "C" void INV_GPU_NAME(join_moments)(const inv_gpu *gpu, inv_dtype t, int64_t channels, int64_t parts,
                                           const double *part, const double *there, void *mean, void *var,
                                           double *count)
{
    INV_REAL_AS(t, T,
                inv_start(gpu, join_moments_kernel<T>, inv_blocks(channels), INV_THREADS, channels, parts, part, there,
                          (T *)mean, (T *)var, count));
}

extern "C" void INV_GPU_NAME(grad_sums)(const inv_gpu *gpu, const inv_fold *f, const inv_norm *a, double *ws,
                                        double *out)
{
    INV_REAL_AS(a->dtype, T, shares_of_products<T>(gpu, f, a, ws));
    inv_start_sync(gpu, sums_kernel, f->nout, CHANNEL_THREADS, *f, (const double *)ws, out);
}

extern "C" void INV_GPU_NAME(running_mix)(const inv_gpu *gpu, inv_dtype t, const inv_many *m, const inv_mixing *how)
{
    INV_REAL_AS(t, T, inv_start(gpu, mix_kernel<T>, m->blocks, INV_THREADS, gpu->step, *m, *how));
}
