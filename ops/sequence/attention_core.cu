/* SPDX-License-Identifier: Apache-2.0
 * Attention on the device. A block owns a tile of rows, or in backward of columns, and goes along the tiles of the
 * other side that these see; what it owns stays in registers, and it keeps that to itself, so that every sum has one
 * order. Forward is softmax with a running maximum and sum; backward computes the probabilities again from these two.
 * Of wide heads a block has W tiles of the result, and others the rest; each of them computes the scores. */
#include "ops/gpu/tile.cuh"
#include "ops/sequence/attention_gpu.h"

INV_DEVICE float exp_of(float v) { return expf(v); }
INV_DEVICE double exp_of(double v) { return exp(v); }
INV_DEVICE float tanh_of(float v) { return tanhf(v); }
INV_DEVICE double tanh_of(double v) { return tanh(v); }

INV_DEVICE int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }
INV_DEVICE int64_t most(int64_t a, int64_t b) { return a > b ? a : b; }

/* A head of q, k, v or gy: entry (item, e) at p[item * ld + e], turned: at p[e * ld + item]. */
template <class X> struct operand {
    const X *p;
    int64_t ld;
    bool turned;
};
template <class X> INV_DEVICE operand<X> operand_of(const void *p, int64_t head, int64_t items, int64_t size)
{
    return {(const X *)p + head * items * size, size, false};
}
template <class X> INV_DEVICE operand<X> key_of(const inv_attention &a, int64_t kv)
{
    return {(const X *)a.k + kv * a.cols * a.d, a.tk ? a.cols : a.d, a.tk};
}

/* What is known of a head's scores. Own items are the block's, the others those that it goes along. Own item m sees the
 * others from m + low to m + high. */
template <class X> struct scores {
    X scale, cap;
    const X *mask; /* NULL: none */
    int64_t own_step, other_step, own_n, other_n, low, high;
};
template <class X> INV_DEVICE scores<X> scores_of(const inv_attention &a, int64_t head, bool by_rows)
{
    const X *mask = a.mask ? (const X *)a.mask + inv_attention_mask_at(&a, head) : NULL;
    if (by_rows) return {(X)a.scale, (X)a.cap, mask, a.row_stride, a.col_stride, a.rows, a.cols, a.from, a.to};
    return {(X)a.scale, (X)a.cap, mask, a.col_stride, a.row_stride, a.cols, a.rows, -a.to, -a.from};
}

/* Where the block is: a tile of own items, one of the others, and how much of both there is. Nobody has a head of 2^31
 * rows: it has 2^62 scores. */
struct place {
    int own, other, own_n, other_n;
};
template <class X> INV_DEVICE int first_other(const scores<X> &f, const place &at)
{
    return (int)least(f.other_n, most(0, at.own + f.low)) / inv_tile<X>::N * inv_tile<X>::N;
}
template <class X> INV_DEVICE int end_other(const scores<X> &f, const place &at)
{
    return (int)least(f.other_n, at.own + at.own_n + f.high);
}

/* Of a launch of heads x tiles of `items` x parts of the result: which this block is. Where much is seen by the last
 * items, as of causal rows, they come first. */
struct share {
    int head, own, part;
};
template <class X> INV_DEVICE share share_of(int64_t items, int parts, bool last_first)
{
    const int N = inv_tile<X>::N, tiles = (int)((items + N - 1) / N), block = (int)blockIdx.x;
    const int tile = block / parts % tiles;
    return {block / parts / tiles, (last_first ? tiles - 1 - tile : tile) * N, block % parts};
}

/* A tile of an operand, `items_down`: a row per item, else a column per item. */
template <class X>
INV_DEVICE void take(inv_tile<X> &to, const operand<X> &x, int64_t item, int items, int64_t e, int n, bool items_down)
{
    const X *from = x.p + (x.turned ? e * x.ld + item : item * x.ld + e);
    inv_tile_load(to, from, x.ld, x.turned ? n : items, x.turned ? items : n, x.turned == items_down);
}

/* The products of own items with the others, `size` long. kept: s[0] still has all of the own ones. */
template <class X>
INV_DEVICE void multiply(inv_tile<X> *s, const place &at, const operand<X> &own, const operand<X> &other, int64_t size,
                         bool kept, inv_piece<X> &p)
{
    inv_piece_clear(p);
    for (int64_t e = 0; e < size; e += inv_tile<X>::N) {
        const int n = (int)least(inv_tile<X>::N, size - e);
        if (!kept) take(s[0], own, at.own, at.own_n, e, n, false);
        take(s[1], other, at.other, at.other_n, e, n, false);
        __syncthreads();
        inv_tile_multiply(s[0], s[1], n, at.own_n, at.other_n, p);
        __syncthreads();
    }
}

/* p += s[2]' times the others, from their e-th number on; p is own_n x n. */
template <class X>
INV_DEVICE void gather(inv_tile<X> *s, const place &at, const operand<X> &other, int64_t e, int64_t n, inv_piece<X> &p)
{
    if (n <= 0) return;
    take(s[1], other, at.other, at.other_n, e, (int)n, true);
    __syncthreads();
    inv_tile_multiply(s[2], s[1], at.other_n, at.own_n, (int)n, p);
    __syncthreads();
}

/* How many numbers the block's w-th tile of the result has, of `size`. */
template <class X> INV_DEVICE int64_t width(int64_t size, int64_t first, int w)
{
    return least(inv_tile<X>::N, size - first - w * inv_tile<X>::N);
}

/* Products to what the hyperbolic tangent of the capping gives, or to scores where there is none. */
template <class X> INV_DEVICE void cap_products(const scores<X> &f, inv_piece<X> &p)
{
    INV_UNROLL
    for (int i = 0; i < inv_tile<X>::ROWS; i++) {
        INV_UNROLL
        for (int j = 0; j < 4; j++) p.at[i][j] *= f.scale;
    }
    if (f.cap == 0) return;
    INV_UNROLL
    for (int i = 0; i < inv_tile<X>::ROWS; i++) {
        INV_UNROLL
        for (int j = 0; j < 4; j++) p.at[i][j] = tanh_of(p.at[i][j] / f.cap);
    }
}

/* For a thread's piece of a tile: where the mask of its first pair is, how many items are left, and which pairs see
 * each other, by distances that fit 32 bits. */
template <class X> struct window {
    const X *mask;
    int own_n, other_n, low, high;
};
template <class X> INV_DEVICE window<X> window_of(const scores<X> &f, const place &at)
{
    const int row = inv_piece_row<X>(), col = inv_piece_col<X>(), far = 4 * inv_tile<X>::N;
    const int64_t own = at.own + row, other = at.other + col, shift = own - other;
    return {f.mask ? f.mask + own * f.own_step + other * f.other_step : NULL, at.own_n - row, at.other_n - col,
            (int)most(-far, least(far, f.low + shift)), (int)most(-far, least(far, f.high + shift))};
}

/* The score of the piece's entry (i, j), from the product that cap_products has left. */
template <class X> INV_DEVICE X score_of(const scores<X> &f, const window<X> &w, int i, int j, X product)
{
    const bool seen = i < w.own_n && j < w.other_n && j - i >= w.low && j - i <= w.high;
    X s = f.cap == 0 ? product : f.cap * product;
    if (seen && w.mask) s += w.mask[i * f.own_step + j * f.other_step];
    return seen ? s : (X)-HUGE_VAL;
}

/* --- forward --- */

/* Of the rows of a thread's piece: the largest score so far, the same in all threads of a row, and this thread's part
 * of the sum of e^(score - that). */
template <class X> struct rows_so_far {
    X top[inv_tile<X>::ROWS], sum[inv_tile<X>::ROWS];
};

template <class X> INV_DEVICE X sum_of_row(X v)
{
    INV_UNROLL
    for (int lane = inv_tile<X>::N / 8; lane > 0; lane /= 2) v += __shfl_xor_sync(0xffffffffu, v, lane);
    return v;
}
template <class X> INV_DEVICE X max_of_row(X v)
{
    INV_UNROLL
    for (int lane = inv_tile<X>::N / 8; lane > 0; lane /= 2) {
        const X other = __shfl_xor_sync(0xffffffffu, v, lane);
        v = other > v || other != other ? other : v;
    }
    return v;
}

/* Products become e^(score - largest so far); what there is of the rows is put to the new scale. */
template <class X, int W>
INV_DEVICE void take_scores(const scores<X> &f, const place &at, inv_piece<X> &p, rows_so_far<X> &r, inv_piece<X> *o)
{
    const window<X> w = window_of(f, at);
    cap_products(f, p);
    INV_UNROLL
    for (int i = 0; i < inv_tile<X>::ROWS; i++) {
        X now = r.top[i], sum = 0;
        INV_UNROLL
        for (int j = 0; j < 4; j++) {
            const X s = score_of(f, w, i, j, p.at[i][j]);
            p.at[i][j] = s;
            now = s > now || s != s ? s : now;
        }
        now = max_of_row(now);
        const X base = now == (X)-HUGE_VAL ? (X)0 : now, factor = exp_of(r.top[i] - base); /* nothing seen: zeros */
        INV_UNROLL
        for (int j = 0; j < 4; j++) sum += p.at[i][j] = exp_of(p.at[i][j] - base);
        INV_UNROLL
        for (int j = 0; j < 4 * W; j++) o[j / 4].at[i][j % 4] *= factor;
        r.sum[i] = r.sum[i] * factor + sum;
        r.top[i] = now;
    }
}

/* Of o and stats either may be NULL: not wanted. */
template <class X, int W>
INV_KERNEL INV_BOUNDS(inv_tile<X>::THREADS, 2) attention_kernel(inv_attention a, int parts, X *o, X *stats)
{
    enum { N = inv_tile<X>::N };
    INV_SHARED(inv_tile<X>, s, [3]);
    const share b = share_of<X>(a.rows, parts, true);
    const int64_t head = b.head, kv = head / a.group;
    const int e0 = b.part * W * N;
    place at = {b.own, 0, (int)least(N, a.rows - b.own), 0};
    const scores<X> f = scores_of<X>(a, head, true);
    const operand<X> q = operand_of<X>(a.q, head, a.rows, a.d), v = operand_of<X>(a.v, kv, a.cols, a.dv);
    inv_piece<X> p, result[W];
    rows_so_far<X> r;
    INV_UNROLL
    for (int w = 0; w < W; w++) inv_piece_clear(result[w]);
    INV_UNROLL
    for (int i = 0; i < inv_tile<X>::ROWS; i++) r.top[i] = (X)-HUGE_VAL, r.sum[i] = 0;
    const int first = first_other(f, at), end = end_other(f, at);
    for (at.other = first; at.other < end; at.other += N) {
        at.other_n = (int)least(N, a.cols - at.other);
        multiply(s, at, q, key_of<X>(a, kv), a.d, a.d <= N && at.other > first, p);
        take_scores<X, W>(f, at, p, r, result);
        inv_tile_put_across(s[2], p);
        INV_UNROLL
        for (int w = 0; w < W; w++)
            if (o) gather(s, at, v, e0 + w * N, width<X>(a.dv, e0, w), result[w]);
    }
    const int row = inv_piece_row<X>();
    INV_UNROLL
    for (int i = 0; i < inv_tile<X>::ROWS; i++) {
        const X sum = sum_of_row(r.sum[i]), factor = sum == 0 ? (X)0 : 1 / sum;
        X *to = stats + 2 * (head * a.rows + b.own + row + i);
        if (stats && b.part == 0 && inv_piece_col<X>() == 0 && row + i < at.own_n) {
            to[0] = sum == 0 ? (X)0 : r.top[i];
            to[1] = sum;
        }
        INV_UNROLL
        for (int j = 0; j < 4 * W; j++) result[j / 4].at[i][j % 4] *= factor;
    }
    X *to = o + (head * a.rows + b.own) * a.dv + e0;
    INV_UNROLL
    for (int w = 0; w < W; w++)
        if (o) inv_piece_store(to + w * N, a.dv, at.own_n, (int)width<X>(a.dv, e0, w), false, result[w]);
}

/* --- backward --- */

/* Of a row: the largest score, 1 / sum of e^(score - that), and the sum of the gradients of its probabilities. They are
 * read again for each tile, since registers are needed for sums. */
template <class X> struct row_stats {
    X top, factor, delta;
};
template <class X> INV_DEVICE row_stats<X> stats_of(const X *stats, const X *delta, int row, int rows)
{
    if (row >= rows) return {0, 0, 0};
    const X sum = stats[2 * row + 1];
    return {stats[2 * row], sum == 0 ? (X)0 : 1 / sum, delta[row]};
}

/* Products of q and k become probabilities; those of gy and v become the gradients of scores, which go to ds unless it
 * is NULL, and then those of the products of q and k. Rows are the own items if OWN, else the others; stats and delta
 * begin with the first one of the tile. */
template <bool OWN, class X>
INV_DEVICE void take_grads(const scores<X> &f, const place &at, const X *stats, const X *delta, X *ds, inv_piece<X> &p,
                           inv_piece<X> &dp)
{
    const window<X> w = window_of(f, at);
    const int row = inv_piece_row<X>(), col = inv_piece_col<X>();
    row_stats<X> r[4];
    INV_UNROLL
    for (int j = 0; j < 4 && !OWN; j++) r[j] = stats_of(stats, delta, col + j, at.other_n);
    cap_products(f, p);
    INV_UNROLL
    for (int i = 0; i < inv_tile<X>::ROWS; i++) {
        if (OWN) r[0] = stats_of(stats, delta, row + i, at.own_n);
        INV_UNROLL
        for (int j = 0; j < 4; j++) {
            const int k = OWN ? 0 : j;
            const X u = p.at[i][j], s = score_of(f, w, i, j, u);
            const X prob = exp_of(s - r[k].top) * r[k].factor, d = prob * (dp.at[i][j] - r[k].delta);
            if (ds && i < w.own_n && j < w.other_n) ds[(row + i) * f.other_n + col + j] = d;
            p.at[i][j] = prob;
            dp.at[i][j] = (f.cap == 0 ? d : d * (1 - u * u)) * f.scale;
        }
    }
}

/* The sums of rows of gy times o, a warp each. */
template <class X> INV_KERNEL delta_kernel(inv_attention a, const X *gy, const X *o, X *delta)
{
    const int64_t row = (int64_t)blockIdx.x * (INV_SYNC_THREADS / 32) + threadIdx.x / 32;
    double sum = 0;
    for (int64_t e = threadIdx.x % 32; e < a.dv && row < a.heads * a.rows; e += 32)
        sum += (double)gy[row * a.dv + e] * (double)o[row * a.dv + e];
    sum = inv_row_sum(sum, 32);
    if (threadIdx.x % 32 == 0 && row < a.heads * a.rows) delta[row] = (X)sum;
}

/* The gradients of rows of q, and of the scores. */
template <class X, int W>
INV_KERNEL INV_BOUNDS(inv_tile<X>::THREADS, 2)
    rows_kernel(inv_attention a, inv_attention_grad g, int parts, const X *delta)
{
    enum { N = inv_tile<X>::N };
    INV_SHARED(inv_tile<X>, s, [3]);
    const share b = share_of<X>(a.rows, parts, true);
    const int64_t head = b.head, kv = head / a.group, row = head * a.rows + b.own;
    const int e0 = b.part * W * N;
    place at = {b.own, 0, (int)least(N, a.rows - b.own), 0};
    const scores<X> f = scores_of<X>(a, head, true);
    const operand<X> q = operand_of<X>(a.q, head, a.rows, a.d), k = key_of<X>(a, kv);
    const operand<X> v = operand_of<X>(a.v, kv, a.cols, a.dv), gy = operand_of<X>(g.gy, head, a.rows, a.dv);
    inv_piece<X> p, dp, result[W];
    INV_UNROLL
    for (int w = 0; w < W; w++) inv_piece_clear(result[w]);
    X *ds = g.ds && b.part == 0 ? (X *)g.ds + row * a.cols : NULL; /* of all scores, also of those that nobody sees */
    const int end = ds ? (int)a.cols : end_other(f, at);
    for (at.other = ds ? 0 : first_other(f, at); at.other < end; at.other += N) {
        at.other_n = (int)least(N, a.cols - at.other);
        multiply(s, at, gy, v, a.dv, false, dp);
        multiply(s, at, q, k, a.d, false, p);
        take_grads<true>(f, at, (const X *)g.stats + 2 * row, delta + row, ds ? ds + at.other : NULL, p, dp);
        inv_tile_put_across(s[2], dp);
        INV_UNROLL
        for (int w = 0; w < W; w++)
            if (g.dq) gather(s, at, k, e0 + w * N, width<X>(a.d, e0, w), result[w]);
    }
    INV_UNROLL
    for (int w = 0; w < W; w++)
        if (g.dq)
            inv_piece_store((X *)g.dq + row * a.d + e0 + w * N, a.d, at.own_n, (int)width<X>(a.d, e0, w), false,
                            result[w]);
}

/* The gradients of columns, over the rows of all heads of queries that share them: of v if V, of k if K. */
template <class X, int W, bool V, bool K>
INV_KERNEL INV_BOUNDS(inv_tile<X>::THREADS, 2)
    columns_kernel(inv_attention a, inv_attention_grad g, int parts, const X *delta)
{
    enum { N = inv_tile<X>::N };
    INV_SHARED(inv_tile<X>, s, [3]);
    const share b = share_of<X>(a.cols, parts, false);
    const int64_t kv = b.head;
    const int e0 = b.part * W * N;
    place at = {b.own, 0, (int)least(N, a.cols - b.own), 0};
    const operand<X> k = key_of<X>(a, kv), v = operand_of<X>(a.v, kv, a.cols, a.dv);
    inv_piece<X> p, dp, dk[W], dv[W];
    INV_UNROLL
    for (int w = 0; w < W; w++) inv_piece_clear(dk[w]), inv_piece_clear(dv[w]);
    for (int64_t head = kv * a.group; head < (kv + 1) * a.group; head++) {
        const scores<X> f = scores_of<X>(a, head, false);
        const operand<X> q = operand_of<X>(a.q, head, a.rows, a.d), gy = operand_of<X>(g.gy, head, a.rows, a.dv);
        const int end = end_other(f, at);
        for (at.other = first_other(f, at); at.other < end; at.other += N) {
            const int64_t row = head * a.rows + at.other;
            at.other_n = (int)least(N, a.rows - at.other);
            if (K) multiply(s, at, v, gy, a.dv, false, dp);
            else inv_piece_clear(dp);
            multiply(s, at, k, q, a.d, false, p);
            take_grads<false>(f, at, (const X *)g.stats + 2 * row, delta + row, (X *)NULL, p, dp);
            if (V) inv_tile_put_across(s[2], p);
            INV_UNROLL
            for (int w = 0; w < W && V; w++) gather(s, at, gy, e0 + w * N, width<X>(a.dv, e0, w), dv[w]);
            if (K) inv_tile_put_across(s[2], dp); /* behind the barrier of gather */
            INV_UNROLL
            for (int w = 0; w < W && K; w++) gather(s, at, q, e0 + w * N, width<X>(a.d, e0, w), dk[w]);
        }
    }
    X *to_k = (X *)g.dk + kv * a.cols * a.d + (a.tk ? e0 * a.cols + b.own : b.own * a.d + e0);
    X *to_v = (X *)g.dv + (kv * a.cols + b.own) * a.dv + e0;
    INV_UNROLL
    for (int w = 0; w < W; w++) {
        if (V && g.dv) inv_piece_store(to_v + w * N, a.dv, at.own_n, (int)width<X>(a.dv, e0, w), false, dv[w]);
        if (K && g.dk)
            inv_piece_store(to_k + w * N * (a.tk ? a.cols : 1), a.tk ? a.cols : a.d, at.own_n,
                            (int)width<X>(a.d, e0, w), a.tk, dk[w]);
    }
}

/* --- launchers: heads of more than one tile by two tiles at a time, in float32, where a thread has the registers ---
 */

template <class X> static int64_t tiles_of(int64_t n) { return (n + inv_tile<X>::N - 1) / inv_tile<X>::N; }
template <class X> static int64_t parts_of(int64_t size, int w)
{
    const int64_t parts = (tiles_of<X>(size) + w - 1) / w;
    return parts > 0 ? parts : 1;
}

template <class X, int W> static void attention(const inv_gpu *gpu, const inv_attention *a, X *o, X *stats)
{
    const int64_t parts = o ? parts_of<X>(a->dv, W) : 1;
    inv_start_sync(gpu, attention_kernel<X, W>, a->heads * tiles_of<X>(a->rows) * parts, inv_tile<X>::THREADS, *a,
                   (int)parts, o, stats);
}

extern "C" void INV_GPU_NAME(attention)(const inv_gpu *gpu, const inv_attention *a, void *o, void *stats)
{
    if (a->dtype == INV_F64) attention<double, 1>(gpu, a, (double *)o, (double *)stats);
    else if (a->dv > inv_tile<float>::N) attention<float, 2>(gpu, a, (float *)o, (float *)stats);
    else attention<float, 1>(gpu, a, (float *)o, (float *)stats);
}

template <class X, int W>
static void rows_grad(const inv_gpu *gpu, const inv_attention *a, const inv_attention_grad *g, const X *delta)
{
    const int64_t parts = g->dq ? parts_of<X>(a->d, W) : 1;
    inv_start_sync(gpu, rows_kernel<X, W>, a->heads * tiles_of<X>(a->rows) * parts, inv_tile<X>::THREADS, *a, *g,
                   (int)parts, delta);
}

template <class X, int W, bool V, bool K>
static void columns_grad(const inv_gpu *gpu, const inv_attention *a, const inv_attention_grad *g, const X *delta)
{
    const int64_t size = !K || (V && a->dv > a->d) ? a->dv : a->d, parts = parts_of<X>(size, W);
    inv_start_sync(gpu, columns_kernel<X, W, V, K>, a->heads / a->group * tiles_of<X>(a->cols) * parts,
                   inv_tile<X>::THREADS, *a, *g, (int)parts, delta);
}

template <class X> static void deltas(const inv_gpu *gpu, const inv_attention *a, const inv_attention_grad *g, X *delta)
{
    const int warps = INV_SYNC_THREADS / 32;
    inv_start_sync(gpu, delta_kernel<X>, (a->heads * a->rows + warps - 1) / warps, INV_SYNC_THREADS, *a,
                   (const X *)g->gy, (const X *)g->o, delta);
}

extern "C" void INV_GPU_NAME(attention_grad)(const inv_gpu *gpu, const inv_attention *a, const inv_attention_grad *g,
                                             void *delta)
{
    const bool wide = a->d > inv_tile<float>::N || a->dv > inv_tile<float>::N;
    const float *d = (const float *)delta;
    if (a->dtype == INV_F64) {
        deltas<double>(gpu, a, g, (double *)delta);
        if (g->dq || g->ds) rows_grad<double, 1>(gpu, a, g, (const double *)delta);
        if (g->dk || g->dv) columns_grad<double, 1, true, true>(gpu, a, g, (const double *)delta);
        return;
    }
    deltas<float>(gpu, a, g, (float *)delta);
    if ((g->dq || g->ds) && wide) rows_grad<float, 2>(gpu, a, g, d);
    else if (g->dq || g->ds) rows_grad<float, 1>(gpu, a, g, d);
    if ((g->dk || g->dv) && !wide) columns_grad<float, 1, true, true>(gpu, a, g, d);
    if (g->dv && wide) columns_grad<float, 2, true, false>(gpu, a, g, d);
    if (g->dk && wide) columns_grad<float, 2, false, true>(gpu, a, g, d);
}
