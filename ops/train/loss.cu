/* SPDX-License-Identifier: Apache-2.0
 * Losses on the device, computed and summed in float64 as on the host. Rows of few classes get one thread each, rows of
 * many a block each; which of the two depends on the shape only. */
#include "ops/gpu/device.cuh"
#include "ops/train/loss_gpu.h"

#include "ops/reduce/argmax_device.inc"

/* --- sums --- */

static int64_t parts_of(int64_t n, int64_t each)
{
    int64_t b = (n + each - 1) / each;
    return b < INV_LOSS_PARTS ? b : INV_LOSS_PARTS;
}

INV_KERNEL finish_sum(int64_t count, const double *part, inv_loss_sum s, double *out)
{
    double sum = 0;
    for (int64_t i = threadIdx.x; i < count; i += blockDim.x) sum += part[i];
    sum = inv_block_sum(sum);
    if (threadIdx.x == 0) *out = ((s.add ? *out : 0) + s.factor * sum + s.constant) / s.divide;
}

/* part: of the losses, then of what the rows count. */
INV_KERNEL finish_mean(int64_t count, const double *part, double total, double *out, double *all)
{
    double sum = 0, weight = 0;
    for (int64_t i = threadIdx.x; i < count; i += blockDim.x) {
        sum += part[i];
        weight += part[INV_LOSS_PARTS + i];
    }
    sum = inv_block_sum(sum);
    weight = inv_block_sum(weight);
    if (threadIdx.x == 0) {
        total = total > 0 ? total : weight;
        *out = sum / total;
        if (all) *all = total;
    }
}

INV_KERNEL finish_count(int64_t count, const int64_t *part, int64_t *out)
{
    int64_t sum = 0, rows = 0;
    for (int64_t i = threadIdx.x; i < count; i += blockDim.x) {
        sum += part[i];
        rows += part[INV_LOSS_PARTS + i];
    }
    sum = inv_block_sum(sum);
    rows = inv_block_sum(rows);
    if (threadIdx.x == 0) {
        out[0] = sum;
        out[1] = rows;
    }
}

/* --- classes --- */

/* Threads per row; 0: one thread takes whole rows. A row whose elements lie apart gets a block only if there are too
 * few rows to keep the device busy. */
static int row_threads(const inv_loss_rows *r)
{
    if (r->len < 32 || (r->inner > 1 && r->outer * r->inner >= 4096)) return 0;
    return r->len < 512 ? 32 : r->len < 4096 ? INV_SYNC_THREADS : 8 * INV_SYNC_THREADS;
}

static int64_t row_blocks(const inv_loss_rows *r, int64_t most)
{
    int64_t n = r->outer * r->inner;
    return n < most ? n : most;
}

/* First element of a row. */
INV_DEVICE int64_t row_at(const inv_loss_rows &r, int64_t row)
{
    int64_t q = row / r.inner;
    return q * r.len * r.inner + (row - q * r.inner);
}

/* Sums over a row are taken by one thread (Alone) or by all threads of the block. */
struct Alone {
    INV_DEVICE int64_t first() { return 0; }
    INV_DEVICE int64_t step() { return 1; }
    template <class T> INV_DEVICE T sum(T v) { return v; }
    template <class T> INV_DEVICE T max(T v) { return v; }
    template <class T> INV_DEVICE inv_best<T> best(inv_best<T> v) { return v; }
};
struct Together {
    INV_DEVICE int64_t first() { return threadIdx.x; }
    INV_DEVICE int64_t step() { return blockDim.x; }
    template <class T> INV_DEVICE T sum(T v) { return inv_block_sum(v); }
    template <class T> INV_DEVICE T max(T v) { return inv_block_max(v); }
    template <class T> INV_DEVICE inv_best<T> best(inv_best<T> v) { return inv_block_best(v); }
};
#define EACH_CLASS(W, i, len) for (int64_t i = W::first(); i < (len); i += W::step())

/* log sum exp of one row, stable. */
template <class W, class T> INV_DEVICE double row_lse(const T *x, int64_t len, int64_t step)
{
    double top = -(double)INFINITY, sum = 0;
    EACH_CLASS(W, i, len) top = fmax(top, (double)x[i * step]);
    top = W::max(top);
    EACH_CLASS(W, i, len) sum += exp((double)x[i * step] - top);
    return top + log(W::sum(sum));
}

template <class T> INV_DEVICE double row_weight(const inv_loss_rows &r, const inv_loss_target &t, int64_t row)
{
    const T *weight = (const T *)t.weight;
    if (!t.label) return 1;
    const int64_t k = t.label[row];
    if (inv_loss_ignored(&r, k)) return 0;
    return weight && k >= 0 && k < r.classes ? (double)weight[k] : 1;
}

/* What the target says of class i but for a label, and that by the class's weight. */
template <class T> INV_DEVICE double soft_share(const inv_loss_rows &r, const inv_loss_target &t, int64_t at, int64_t i)
{
    const T *weight = (const T *)t.weight;
    const double kept = t.soft ? (1 - r.smooth) * (double)((const T *)t.soft)[at + i * r.inner] : 0;
    return (kept + r.smooth / (double)r.classes) * (weight ? (double)weight[i] : 1);
}

template <class W, class T>
INV_DEVICE double row_loss(const inv_loss_rows &r, const inv_loss_target &t, int64_t row, const T *x, double *keep)
{
    const int64_t at = row_at(r, row);
    double loss = 0, own = 0;
    if (keep && W::first() == 0) keep[row] = 0;
    if (t.label && inv_loss_ignored(&r, t.label[row])) return 0;
    const double lse = r.known ? 0 : row_lse<W>(x + at, r.len, r.inner);
    if (keep && W::first() == 0) keep[row] = lse;
    if (t.label) {
        const int64_t k = t.label[row];
        if (k < 0 || k >= r.len) return (double)NAN;
        own = (lse - (double)x[at + k * r.inner]) * row_weight<T>(r, t, row) * (1 - r.smooth);
        if (r.smooth <= 0) return own;
    }
    EACH_CLASS(W, i, r.len)
    {
        const double p = soft_share<T>(r, t, at, i);
        if (p != 0) loss += p * (lse - (double)x[at + i * r.inner]);
    }
    return own + W::sum(loss);
}

template <class T> INV_KERNEL rows_alone(inv_loss_rows r, inv_loss_target t, const T *x, double *part, double *lse)
{
    double sum = 0, weight = 0;
    INV_EACH(row, r.outer * r.inner)
    {
        sum += row_loss<Alone>(r, t, row, x, lse);
        weight += row_weight<T>(r, t, row);
    }
    sum = inv_block_sum(sum);
    weight = inv_block_sum(weight);
    if (threadIdx.x == 0) {
        part[blockIdx.x] = sum;
        part[INV_LOSS_PARTS + blockIdx.x] = weight;
    }
}

template <class T> INV_KERNEL rows_together(inv_loss_rows r, inv_loss_target t, const T *x, double *part, double *lse)
{
    double sum = 0, weight = 0;
    for (int64_t row = blockIdx.x; row < r.outer * r.inner; row += gridDim.x) {
        sum += row_loss<Together>(r, t, row, x, lse);
        weight += row_weight<T>(r, t, row);
    }
    if (threadIdx.x == 0) {
        part[blockIdx.x] = sum;
        part[INV_LOSS_PARTS + blockIdx.x] = weight;
    }
}

template <class T> INV_KERNEL each_alone(inv_loss_rows r, inv_loss_target t, const T *x, T *out)
{
    INV_EACH(row, r.outer * r.inner) out[row] = (T)row_loss<Alone>(r, t, row, x, NULL);
}

template <class T> INV_KERNEL each_together(inv_loss_rows r, inv_loss_target t, const T *x, T *out)
{
    for (int64_t row = blockIdx.x; row < r.outer * r.inner; row += gridDim.x) {
        const double loss = row_loss<Together>(r, t, row, x, NULL);
        if (threadIdx.x == 0) out[row] = (T)loss;
    }
}

/* By what a row's gradient is multiplied, but for its weight. */
struct shares {
    double total;
    const double *all, *g;
    const void *gy;
    const double *lse; /* of each row; NULL: it is computed */
};
template <class T> INV_DEVICE double share_of(const shares &s, int64_t row)
{
    const double of = s.all ? *s.all : s.total; /* 0: no label counts, and there is no gradient */
    return !s.g ? (double)((const T *)s.gy)[row] : of > 0 ? *s.g / of : 0;
}

template <class W, class T>
INV_DEVICE void row_grad(const inv_loss_rows &r, const inv_loss_target &t, int64_t row, const T *x, const shares &s,
                         T *gx)
{
    const int64_t at = row_at(r, row), k = t.label ? t.label[row] : -1;
    if (t.label && inv_loss_ignored(&r, k)) {
        EACH_CLASS(W, i, r.len) gx[at + i * r.inner] = 0;
        return;
    }
    const bool smooth = r.smooth > 0;
    double lse = r.known ? 0 : s.lse ? s.lse[row] : row_lse<W>(x + at, r.len, r.inner);
    double share = share_of<T>(s, row), total = 0, one = 1;
    if (t.label && (k < 0 || k >= r.classes)) lse = (double)NAN;
    if (smooth) one = (1 - r.smooth) * row_weight<T>(r, t, row); /* other classes have weights of their own */
    else share *= row_weight<T>(r, t, row);
    if (t.soft || smooth) {
        EACH_CLASS(W, i, r.classes) total += soft_share<T>(r, t, at, i);
        total = W::sum(total);
    }
    if (t.label) total += one;
    if (r.known) total = 0;
    EACH_CLASS(W, i, r.len)
    {
        const int64_t j = at + i * r.inner, c = r.first + i;
        const double p = (k == c ? one : 0) + (t.soft || smooth ? soft_share<T>(r, t, at, c) : 0);
        gx[j] = (T)(share * (exp((double)x[j] - lse) * total - p));
    }
}

template <class T> INV_KERNEL rows_grad_alone(inv_loss_rows r, inv_loss_target t, shares s, const T *x, T *gx)
{
    INV_EACH(row, r.outer * r.inner) row_grad<Alone>(r, t, row, x, s, gx);
}

template <class T> INV_KERNEL rows_grad_together(inv_loss_rows r, inv_loss_target t, shares s, const T *x, T *gx)
{
    for (int64_t row = blockIdx.x; row < r.outer * r.inner; row += gridDim.x) row_grad<Together>(r, t, row, x, s, gx);
}

/* Whether the first largest logit is the label. As on the host, a NaN is largest only as element 0. */
template <class W, class T> INV_DEVICE bool row_correct(const inv_loss_rows &r, int64_t row, const T *x, int64_t label)
{
    int64_t at = row_at(r, row);
    inv_best<T> best = {0, -1};
    EACH_CLASS(W, i, r.len)
    {
        inv_best<T> mine = {x[at + i * r.inner], i};
        if ((i == 0 || mine.v == mine.v) && inv_best_before(mine, best)) best = mine;
    }
    return W::best(best).at == label;
}

template <class T> INV_KERNEL count_alone(inv_loss_rows r, const T *x, const int64_t *label, int64_t *part)
{
    int64_t sum = 0, rows = 0;
    INV_EACH(row, r.outer * r.inner)
    {
        if (inv_loss_ignored(&r, label[row])) continue;
        sum += row_correct<Alone>(r, row, x, label[row]);
        rows++;
    }
    sum = inv_block_sum(sum);
    rows = inv_block_sum(rows);
    if (threadIdx.x == 0) {
        part[blockIdx.x] = sum;
        part[INV_LOSS_PARTS + blockIdx.x] = rows;
    }
}

template <class T> INV_KERNEL count_together(inv_loss_rows r, const T *x, const int64_t *label, int64_t *part)
{
    int64_t sum = 0, rows = 0;
    for (int64_t row = blockIdx.x; row < r.outer * r.inner; row += gridDim.x) {
        if (inv_loss_ignored(&r, label[row])) continue;
        sum += row_correct<Together>(r, row, x, label[row]);
        rows++;
    }
    if (threadIdx.x == 0) {
        part[blockIdx.x] = sum;
        part[INV_LOSS_PARTS + blockIdx.x] = rows;
    }
}

template <class T> INV_KERNEL labels_weight(inv_loss_rows r, inv_loss_target t, double *out)
{
    double sum = 0;
    for (int64_t row = threadIdx.x; row < r.outer; row += blockDim.x) sum += row_weight<T>(r, t, row);
    sum = inv_block_sum(sum);
    if (threadIdx.x == 0) *out = sum;
}

template <class T>
static void start_mean(const inv_gpu *gpu, const inv_loss_rows *r, const inv_loss_target *t, const void *x,
                       double total, double *part, double *out, double *all, double *lse)
{
    int64_t n = r->outer * r->inner, blocks = parts_of(n, INV_SYNC_THREADS);
    int threads = row_threads(r);
    if (threads > 0) {
        blocks = row_blocks(r, INV_LOSS_PARTS);
        inv_start_sync(gpu, rows_together<T>, blocks, threads, *r, *t, (const T *)x, part, lse);
    } else {
        inv_start_sync(gpu, rows_alone<T>, blocks, INV_SYNC_THREADS, *r, *t, (const T *)x, part, lse);
    }
    inv_start_sync(gpu, finish_mean, 1, INV_SYNC_THREADS, blocks, (const double *)part, total, out, all);
}

template <class T>
static void start_each(const inv_gpu *gpu, const inv_loss_rows *r, const inv_loss_target *t, const void *x, void *out)
{
    int threads = row_threads(r);
    if (threads > 0)
        inv_start_sync(gpu, each_together<T>, row_blocks(r, 1 << 20), threads, *r, *t, (const T *)x, (T *)out);
    else inv_start(gpu, each_alone<T>, inv_blocks(r->outer * r->inner), INV_THREADS, *r, *t, (const T *)x, (T *)out);
}

template <class T>
static void start_grad(const inv_gpu *gpu, const inv_loss_rows *r, const inv_loss_target *t, const void *x,
                       const shares &s, void *gx)
{
    int threads = row_threads(r);
    if (threads > 0)
        inv_start_sync(gpu, rows_grad_together<T>, row_blocks(r, 1 << 20), threads, *r, *t, s, (const T *)x, (T *)gx);
    else
        inv_start(gpu, rows_grad_alone<T>, inv_blocks(r->outer * r->inner), INV_THREADS, *r, *t, s, (const T *)x,
                  (T *)gx);
}

template <class T>
static void start_count(const inv_gpu *gpu, const inv_loss_rows *r, const T *x, const int64_t *label, int64_t *part,
                        int64_t *out)
{
    int64_t n = r->outer * r->inner, blocks = parts_of(n, INV_SYNC_THREADS);
    int threads = row_threads(r);
    if (threads > 0) {
        blocks = row_blocks(r, INV_LOSS_PARTS);
        inv_start_sync(gpu, count_together<T>, blocks, threads, *r, x, label, part);
    } else {
        inv_start_sync(gpu, count_alone<T>, blocks, INV_SYNC_THREADS, *r, x, label, part);
    }
    inv_start_sync(gpu, finish_count, 1, INV_SYNC_THREADS, blocks, (const int64_t *)part, out);
}

extern "C" void INV_GPU_NAME(cross_entropy)(const inv_gpu *gpu, inv_dtype t, const inv_loss_rows *r,
                                            const inv_loss_target *y, const void *x, double total, double *part,
                                            double *out, double *all, double *lse)
{
    INV_REAL_AS(t, T, start_mean<T>(gpu, r, y, x, total, part, out, all, lse));
}

extern "C" void INV_GPU_NAME(cross_entropy_rows)(const inv_gpu *gpu, inv_dtype t, const inv_loss_rows *r,
                                                 const inv_loss_target *y, const void *x, void *out)
{
    INV_REAL_AS(t, T, start_each<T>(gpu, r, y, x, out));
}

extern "C" void INV_GPU_NAME(cross_entropy_grad)(const inv_gpu *gpu, inv_dtype t, const inv_loss_rows *r,
                                                 const inv_loss_target *y, const void *x, double total,
                                                 const double *all, const double *g, const void *gy, const double *lse,
                                                 void *gx)
{
    INV_REAL_AS(t, T, start_grad<T>(gpu, r, y, x, shares{total, all, g, gy, lse}, gx));
}

extern "C" void INV_GPU_NAME(correct_count)(const inv_gpu *gpu, inv_dtype t, const inv_loss_rows *r, const void *x,
                                            const int64_t *label, int64_t *part, int64_t *out)
{
    INV_REAL_AS(t, T, start_count(gpu, r, (const T *)x, label, part, out));
}

extern "C" void INV_GPU_NAME(label_weight)(const inv_gpu *gpu, inv_dtype t, const inv_loss_rows *r,
                                           const inv_loss_target *y, double *out)
{
    INV_REAL_AS(t, T, inv_start_sync(gpu, labels_weight<T>, 1, INV_SYNC_THREADS, *r, *y, out));
}

/* --- terms of single elements --- */

INV_DEVICE double term_of(inv_loss_term k, double v, double d)
{
    if (k.kind == inv_loss_term::INV_TERM_PLAIN) return v;
    if (k.kind == inv_loss_term::INV_TERM_SQUARE) return (v - d) * (v - d);
    if (k.kind == inv_loss_term::INV_TERM_HUBER) return inv_huber(v - d, k.delta);
    return fmax(v, 0.0) - v * d + log1p(exp(-fabs(v)));
}

/* part: of the terms, then of how many count. */
template <class T> INV_KERNEL terms(inv_loss_term k, int64_t n, const T *x, const T *t, double *part)
{
    double sum = 0, count = 0;
    INV_EACH(i, n)
    {
        const double d = t ? (double)t[i] : 0;
        if (inv_term_missing(&k, d)) continue;
        sum += term_of(k, (double)x[i], d);
        count++;
    }
    sum = inv_block_sum(sum);
    if (k.ignores) count = inv_block_sum(count);
    if (threadIdx.x == 0) {
        part[blockIdx.x] = sum;
        part[INV_LOSS_PARTS + blockIdx.x] = count;
    }
}

template <class T>
INV_KERNEL terms_grad(inv_loss_term k, int64_t n, double factor, double divide, const double *all, const double *g,
                      const T *x, const T *t, T *gx)
{
    const double of = all ? *all : divide, scale = of > 0 ? factor * *g / of : 0;
    INV_EACH(i, n)
    {
        double v = x ? (double)x[i] : 1, d = t ? (double)t[i] : 0;
        if (inv_term_missing(&k, d)) gx[i] = 0;
        else if (k.kind == inv_loss_term::INV_TERM_HUBER) gx[i] = (T)(scale * fmin(fmax(v - d, -k.delta), k.delta));
        else gx[i] = (T)(scale * ((k.kind == inv_loss_term::INV_TERM_LOGISTIC ? 1 / (1 + exp(-v)) : v) - d));
    }
}

extern "C" void INV_GPU_NAME(loss_terms)(const inv_gpu *gpu, inv_dtype t, inv_loss_term k, int64_t n, const void *x,
                                         const void *target, const inv_loss_sum *s, double *part, double *out,
                                         double *all)
{
    int64_t blocks = parts_of(n, INV_THREADS);
    INV_REAL_AS(t, T, inv_start_sync(gpu, terms<T>, blocks, INV_THREADS, k, n, (const T *)x, (const T *)target, part));
    if (all) inv_start_sync(gpu, finish_mean, 1, INV_SYNC_THREADS, blocks, (const double *)part, 0.0, out, all);
    else inv_start_sync(gpu, finish_sum, 1, INV_SYNC_THREADS, blocks, (const double *)part, *s, out);
}

extern "C" void INV_GPU_NAME(loss_terms_grad)(const inv_gpu *gpu, inv_dtype t, inv_loss_term k, int64_t n,
                                              double factor, double divide, const double *all, const double *g,
                                              const void *x, const void *target, void *gx)
{
    INV_REAL_AS(t, T,
                inv_start(gpu, terms_grad<T>, inv_blocks(n), INV_THREADS, k, n, factor, divide, all, g, (const T *)x,
                          (const T *)target, (T *)gx));
}
