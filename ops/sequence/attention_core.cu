/* SPDX-License-Identifier: Apache-2.0
 * Attention on the device. A block takes a row of scores, in backward also a column, a tile of INV_SYNC_THREADS of them
 * at a time: one score per thread, then one entry of the result per thread, summed over the tile in order. */
#include "ops/gpu/device.cuh"
#include "ops/sequence/attention_gpu.h"

#define TILE INV_SYNC_THREADS

INV_DEVICE float exp_of(float v) { return expf(v); }
INV_DEVICE double exp_of(double v) { return exp(v); }
INV_DEVICE float tanh_of(float v) { return tanhf(v); }
INV_DEVICE double tanh_of(double v) { return tanh(v); }

/* Row i of a head against column j: what softmax reads, and in `slope` the derivative of the capping. */
template <class X>
INV_DEVICE X score_of(const inv_attention &a, int64_t head, int64_t i, int64_t j, int64_t mask_at, X &slope)
{
    const X *q = (const X *)a.q + (head * a.rows + i) * a.d;
    const X *k = (const X *)a.k + head / a.group * a.cols * a.d + (a.tk ? j : j * a.d);
    const int64_t step = a.tk ? a.cols : 1;
    slope = 1;
    if (j < i + a.from || j > i + a.to) return (X)-HUGE_VAL;
    X s = 0;
    for (int64_t e = 0; e < a.d; e++) s += q[e] * k[e * step];
    s *= (X)a.scale;
    if (a.cap != 0) {
        const X u = tanh_of(s / (X)a.cap);
        slope = 1 - u * u;
        s = (X)a.cap * u;
    }
    if (a.mask) s += ((const X *)a.mask)[mask_at + i * a.row_stride + j * a.col_stride];
    return s;
}

/* Of o and stats either may be NULL: not wanted. */
template <class X> INV_KERNEL attention_kernel(inv_attention a, X *o, X *stats)
{
    INV_SHARED(X, part, [TILE]);
    const int64_t row = blockIdx.x, head = row / a.rows, i = row % a.rows, t = threadIdx.x;
    const int64_t mask_at = a.mask ? inv__attention_mask_at(&a, head) : 0;
    const X *v = (const X *)a.v + head / a.group * a.cols * a.dv;
    X top = (X)-HUGE_VAL, slope;
    double sum = 0;
    for (int64_t j = t; j < a.cols; j += TILE) {
        const X s = score_of<X>(a, head, i, j, mask_at, slope);
        top = s > top || s != s ? s : top;
    }
    top = inv_block_max(top);
    const bool any = top != (X)-HUGE_VAL;
    for (int64_t e = t; e < a.dv && o; e += TILE) o[row * a.dv + e] = 0;
    for (int64_t j0 = 0; j0 < a.cols && any; j0 += TILE) {
        const int64_t n = a.cols - j0 < TILE ? a.cols - j0 : TILE;
        part[t] = t < n ? exp_of(score_of<X>(a, head, i, j0 + t, mask_at, slope) - top) : (X)0;
        sum += (double)part[t];
        __syncthreads();
        for (int64_t e = t; e < a.dv && o; e += TILE) {
            X y = o[row * a.dv + e];
            for (int64_t j = 0; j < n; j++) y += part[j] * v[(j0 + j) * a.dv + e];
            o[row * a.dv + e] = y;
        }
        __syncthreads();
    }
    sum = inv_block_sum(sum);
    for (int64_t e = t; e < a.dv && any && o; e += TILE) o[row * a.dv + e] *= (X)(1 / sum);
    if (t == 0 && stats) stats[2 * row] = any ? top : (X)0, stats[2 * row + 1] = (X)sum;
}

/* The probability of a score of that row. */
template <class X> INV_DEVICE X probability(const inv_attention_grad &g, int64_t row, X score)
{
    const X *of_row = (const X *)g.stats + 2 * row;
    return of_row[1] == 0 ? (X)0 : exp_of(score - of_row[0]) * (1 / of_row[1]);
}

/* delta, and the gradients of a row of q and of its scores */
template <class X> INV_KERNEL rows_kernel(inv_attention a, inv_attention_grad g, X *delta)
{
    INV_SHARED(X, part, [TILE]);
    const int64_t row = blockIdx.x, head = row / a.rows, i = row % a.rows, t = threadIdx.x;
    const int64_t mask_at = a.mask ? inv__attention_mask_at(&a, head) : 0, kv = head / a.group;
    const X *v = (const X *)a.v + kv * a.cols * a.dv, *k = (const X *)a.k + kv * a.cols * a.d;
    const X *gy = (const X *)g.gy + row * a.dv, *o = (const X *)g.o + row * a.dv;
    const int64_t step_j = a.tk ? 1 : a.d, step_e = a.tk ? a.cols : 1;
    X *dq = (X *)g.dq + row * a.d, slope;
    double sum = 0;
    for (int64_t e = t; e < a.dv; e += TILE) sum += (double)gy[e] * (double)o[e];
    sum = inv_block_sum(sum);
    const X d = (X)sum;
    if (t == 0) delta[row] = d;
    if (!g.dq && !g.ds) return;
    for (int64_t e = t; e < a.d && g.dq; e += TILE) dq[e] = 0;
    for (int64_t j0 = 0; j0 < a.cols; j0 += TILE) {
        const int64_t n = a.cols - j0 < TILE ? a.cols - j0 : TILE;
        if (t < n) {
            const X s = score_of<X>(a, head, i, j0 + t, mask_at, slope);
            X dp = 0;
            for (int64_t e = 0; e < a.dv; e++) dp += gy[e] * v[(j0 + t) * a.dv + e];
            const X ds = probability(g, row, s) * (dp - d);
            if (g.ds) ((X *)g.ds)[row * a.cols + j0 + t] = ds;
            part[t] = ds * slope * (X)a.scale;
        }
        __syncthreads();
        for (int64_t e = t; e < a.d && g.dq; e += TILE) {
            X y = dq[e];
            for (int64_t j = 0; j < n; j++) y += part[j] * k[(j0 + j) * step_j + e * step_e];
            dq[e] = y;
        }
        __syncthreads();
    }
}

/* The gradients of a column of k and v, over the heads of queries that share it. */
template <class X> INV_KERNEL columns_kernel(inv_attention a, inv_attention_grad g, const X *delta)
{
    INV_SHARED(X, prob, [TILE]);
    INV_SHARED(X, part, [TILE]);
    const int64_t kv = blockIdx.x / a.cols, j = blockIdx.x % a.cols, t = threadIdx.x;
    const X *v = (const X *)a.v + (kv * a.cols + j) * a.dv;
    const int64_t step = a.tk ? a.cols : 1, n_rows = a.group * a.rows;
    X *dk = (X *)g.dk + kv * a.cols * a.d + (a.tk ? j : j * a.d), *dv = (X *)g.dv + (kv * a.cols + j) * a.dv, slope;
    for (int64_t e = t; e < a.d && g.dk; e += TILE) dk[e * step] = 0;
    for (int64_t e = t; e < a.dv && g.dv; e += TILE) dv[e] = 0;
    const int64_t first = kv * n_rows; /* rows of the heads that share kv lie side by side */
    for (int64_t i0 = 0; i0 < n_rows; i0 += TILE) {
        const int64_t n = n_rows - i0 < TILE ? n_rows - i0 : TILE, row = first + i0 + t;
        if (t < n) {
            const int64_t head = row / a.rows;
            const int64_t mask_at = a.mask ? inv__attention_mask_at(&a, head) : 0;
            const X s = score_of<X>(a, head, row % a.rows, j, mask_at, slope);
            const X *gy = (const X *)g.gy + row * a.dv;
            X dp = 0;
            for (int64_t e = 0; e < a.dv; e++) dp += gy[e] * v[e];
            prob[t] = probability(g, row, s);
            part[t] = prob[t] * (dp - delta[row]) * slope * (X)a.scale;
        }
        __syncthreads();
        for (int64_t e = t; e < a.d && g.dk; e += TILE) {
            X y = dk[e * step];
            for (int64_t i = 0; i < n; i++) y += part[i] * ((const X *)a.q)[(first + i0 + i) * a.d + e];
            dk[e * step] = y;
        }
        for (int64_t e = t; e < a.dv && g.dv; e += TILE) {
            X y = dv[e];
            for (int64_t i = 0; i < n; i++) y += prob[i] * ((const X *)g.gy)[(first + i0 + i) * a.dv + e];
            dv[e] = y;
        }
        __syncthreads();
    }
}

extern "C" void INV_GPU_NAME(attention)(const inv_gpu *gpu, const inv_attention *a, void *o, void *stats)
{
    const int64_t rows = a->heads * a->rows;
    INV_REAL_AS(a->dtype, T, inv_start_sync(gpu, attention_kernel<T>, rows, TILE, *a, (T *)o, (T *)stats));
}

template <class X>
static void attention_grad(const inv_gpu *gpu, const inv_attention *a, const inv_attention_grad *g, X *delta)
{
    inv_start_sync(gpu, rows_kernel<X>, a->heads * a->rows, TILE, *a, *g, delta);
    if (g->dk || g->dv)
        inv_start_sync(gpu, columns_kernel<X>, a->heads / a->group * a->cols, TILE, *a, *g, (const X *)delta);
}

extern "C" void INV_GPU_NAME(attention_grad)(const inv_gpu *gpu, const inv_attention *a, const inv_attention_grad *g,
                                             void *delta)
{
    INV_REAL_AS(a->dtype, T, attention_grad<T>(gpu, a, g, (T *)delta));
}
