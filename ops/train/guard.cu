/* SPDX-License-Identifier: Apache-2.0
 * The guard on the device. Of a block of 64 elements, whose signs are one random word, four threads have every fourth
 * group of four neighbours each. So a thread adds up what has the same place in its group first, then makes the four
 * projections of that: eight additions of doubles for four elements are two. */
#include "ops/gpu/device.cuh"
#include "ops/gpu/philox.h"
#include "ops/train/guard_gpu.h"

#define THREADS INV_SYNC_THREADS
#define GROUPS 4 /* of four elements, that a thread has on the way at a time */
#define NSUM INV_GUARD_NSUM

template <class X> INV_DEVICE bool is_finite(X v) { return v - v == 0; }

/* With the sign changed if the top bit of `flip` is set. */
INV_DEVICE double signed_by(float v, uint32_t flip)
{
    uint32_t bits;
    memcpy(&bits, &v, sizeof bits);
    bits ^= flip & 0x80000000u;
    memcpy(&v, &bits, sizeof v);
    return (double)v;
}

INV_DEVICE double signed_by(double v, uint32_t flip)
{
    uint64_t bits;
    memcpy(&bits, &v, sizeof bits);
    bits ^= (uint64_t)(flip & 0x80000000u) << 32;
    memcpy(&v, &bits, sizeof v);
    return v;
}

/* The groups of thread `quarter` in the block of which `left` elements are there; 0 behind them. */
template <class X> INV_DEVICE void guard_load(const X *x, int64_t left, int quarter, bool wide, inv_four<X> v[GROUPS])
{
    INV_UNROLL
    for (int g = 0; g < GROUPS; g++) {
        const int at = 16 * g + 4 * quarter;
        if (wide) v[g] = inv_four_load(x + at);
        for (int c = 0; c < 4 && !wide; c++) v[g].v[c] = at + c < left ? x[at + c] : (X)0;
    }
}

/* Adds one to each sum, given to all threads, in a fixed order. */
INV_DEVICE void guard_together(double sum[NSUM])
{
    INV_SHARED(double, part, [NSUM][THREADS / 32]);
    const int t = (int)threadIdx.x;
    for (int k = 0; k < NSUM; k++) {
        for (int lane = 16; lane > 0; lane /= 2) sum[k] += __shfl_xor_sync(0xffffffffu, sum[k], lane);
        if (t % 32 == 0) part[k][t / 32] = sum[k];
    }
    __syncthreads();
    for (int k = 0; k < NSUM; k++) {
        sum[k] = 0;
        for (int w = 0; w < THREADS / 32; w++) sum[k] += part[k][w];
    }
    __syncthreads();
}

/* This block's tiles. CLEAN: elements that are not finite are counted and taken as 0; otherwise all are taken as
 * finite, and the sum of squares tells if that was wrong. */
template <bool CLEAN, class X>
INV_DEVICE void guard_walk(int64_t n, int64_t every, uint64_t key, const X *x, double sum[NSUM])
{
    const int quarter = (int)threadIdx.x % 4;
    const bool aligned = ((uintptr_t)x & 15) == 0;
    for (int k = 0; k < NSUM; k++) sum[k] = 0;
    for (int64_t b = ((int64_t)blockIdx.x * THREADS + threadIdx.x) / 4; b * 64 < n;
         b += (int64_t)gridDim.x * (THREADS / 4)) {
        inv_four<X> v[GROUPS];
        guard_load(x + inv_guard_place(key, every, b * 64), n - b * 64, quarter, aligned && n - b * 64 >= 64, v);
        const uint64_t word = inv_guard_word_of(key, (uint64_t)b) >> 4 * quarter;
        double a[4] = {0};
        INV_UNROLL
        for (int g = 0; g < GROUPS; g++) {
            for (int c = 0; c < 4; c++) {
                const bool fine = !CLEAN || is_finite(v[g].v[c]);
                const double d = signed_by(fine ? v[g].v[c] : (X)0, (uint32_t)(word >> 16 * g) << (31 - c));
                a[c] += d;
                sum[INV_GUARD_NPROJ] += d * d;
                if (CLEAN && !fine) sum[INV_GUARD_NPROJ + 1] += 1;
            }
        }
        /* signs of inv_guard_pattern over four neighbours: + + + +, + - + -, + + - -, + - - + */
        const double s01 = a[0] + a[1], d01 = a[0] - a[1], s23 = a[2] + a[3], d23 = a[2] - a[3];
        const double p[INV_GUARD_NPROJ] = {s01 + s23, d01 + d23, s01 - s23, d01 - d23};
        const unsigned turned = inv_guard_turned(key, (uint64_t)b);
        for (int k = 0; k < INV_GUARD_NPROJ; k++) sum[k] += signed_by(p[k], turned << (31 - k));
    }
    guard_together(sum);
}

/* As check_run in guard.c. */
INV_DEVICE double guard_drift(const double *now, const double *then)
{
    double d = 0;
    for (int k = 0; k < INV_GUARD_NPROJ; k++) d += (now[k] - then[k]) * (now[k] - then[k]);
    d = sqrt(d / INV_GUARD_NPROJ);
    const double drift = d == 0 ? 0 : d / fmax(sqrt(then[INV_GUARD_NPROJ]), 1e-30);
    const bool same = now[INV_GUARD_NPROJ + 1] == then[INV_GUARD_NPROJ + 1];
    return !same || drift != drift ? HUGE_VAL : drift;
}

/* Where blocks leave their sums, and what becomes of all: a fingerprint, or else the verdict on one. */
typedef struct guard_end {
    unsigned *turn;
    double *part; /* part[block * NSUM + k] */
    double *fp;
    const double *then;
    double *drift;
    inv_guard_count count;
} guard_end;

/* The block that comes last joins the sums of all of them, in the order of blocks. */
INV_DEVICE void guard_join(const guard_end &e, double sum[NSUM])
{
    const int blocks = (int)gridDim.x;
    const volatile double *part = e.part;
    for (int k = 0; k < NSUM; k++)
        if (threadIdx.x == 0) e.part[blockIdx.x * NSUM + k] = sum[k];
    if (!inv_last_block(e.turn)) return;
    for (int k = 0; k < NSUM; k++) sum[k] = 0;
    for (int b = (int)threadIdx.x; b < blocks; b += THREADS) {
        double v[NSUM]; /* on the way together */
        for (int k = 0; k < NSUM; k++) v[k] = part[b * NSUM + k];
        for (int k = 0; k < NSUM; k++) sum[k] += v[k];
    }
    guard_together(sum);
    if (threadIdx.x != 0) return;
    for (int k = 0; k < NSUM && e.fp; k++) e.fp[k] = sum[k];
    if (e.fp) return;
    *e.drift = guard_drift(sum, e.then);
    if (e.count.over) *e.count.over = (e.count.before ? *e.count.before : 0) + (*e.drift > e.count.limit);
}

template <class X> INV_KERNEL guard_kernel(int64_t n, int64_t every, uint64_t key, const X *x, guard_end e)
{
    double sum[NSUM];
    guard_walk<false>(n, every, key, x, sum);
    if (!is_finite(sum[INV_GUARD_NPROJ])) guard_walk<true>(n, every, key, x, sum); /* the whole block decides alike */
    guard_join(e, sum);
}

/* The same of bits. */
INV_KERNEL guard_bits_kernel(int64_t nbytes, uint64_t key, const uint8_t *x, guard_end e)
{
    double sum[NSUM] = {0};
    INV_EACH(i, (nbytes + 7) / 8)
    {
        const uint64_t w = inv_guard_word(x, nbytes, i);
        const int all = inv_guard_ones(w);
        for (int k = 0; k < INV_GUARD_NPROJ; k++)
            sum[k] += all - 2 * inv_guard_ones(w & inv_guard_signs(key, (uint64_t)i, k));
        sum[INV_GUARD_NPROJ] += all;
    }
    guard_together(sum);
    guard_join(e, sum);
}

template <class X> INV_KERNEL guard_pick_kernel(int64_t n, int64_t every, const X *x, X *out, X *one)
{
    INV_EACH(i, n)
    {
        out[i] = x[inv_guard_place(0, every, i)];
        if (one) one[i] = 1;
    }
}

template <class X> INV_DEVICE double sum_in(bool squares, const X *x, int64_t n)
{
    double sum = 0;
    if (squares) INV_EACH(i, n) sum += (double)x[i] * (double)x[i];
    else INV_EACH(i, n) sum += is_finite(x[i]) ? 0 : 1;
    return sum;
}

INV_KERNEL sum_kernel(bool squares, inv_guard_list list, bool first, double *sum)
{
    double mine = 0;
    for (int i = 0; i < list.count; i++) {
        mine += list.wide[i] ? sum_in(squares, (const double *)list.x[i], list.n[i])
                             : sum_in(squares, (const float *)list.x[i], list.n[i]);
    }
    mine = inv_block_sum(mine);
    if (threadIdx.x == 0) sum[blockIdx.x] = (first ? 0 : sum[blockIdx.x]) + mine;
}

INV_KERNEL sum_end_kernel(bool root, int64_t blocks, const double *sum, double *out)
{
    double all = 0;
    for (int64_t b = threadIdx.x; b < blocks; b += THREADS) all += sum[b];
    all = inv_block_sum(all);
    if (threadIdx.x == 0) *out = root ? sqrt(all) : all;
}

INV_DEVICE double number(const void *x, bool wide) { return wide ? *(const double *)x : (double)*(const float *)x; }

/* By thread 0: what the loss, the gradients and the weights of labels say; the mean that this batch goes into. */
INV_DEVICE bool refuses(const inv_judged &found, inv_gpu_step *s)
{
    const double weight = found.weight ? number(found.weight, found.weight_wide) : s->weight, all = s->own + weight;
    s->kept = all > 0 ? s->own / all : 0;
    s->added = all > 0 ? weight / all : 0;
    if (found.weight && weight == 0) return true;
    return (found.loss && !is_finite(number(found.loss, found.loss_wide))) || (found.bad && *found.bad > 0);
}

INV_KERNEL judge_kernel(inv_judged found, const double *drift, const uint64_t *fault, inv_gpu_step *s)
{
    bool refused = threadIdx.x == 0 && (*fault != 0 || refuses(found, s));
    INV_EACH(i, found.guards) refused = refused || !(drift[i] <= drift[found.guards + i]);
    if (refused) s->refused = 1; /* whoever writes it writes the same */
}

extern "C" void INV_GPU_NAME(judge)(const inv_gpu *gpu, const inv_judged *found)
{
    inv_start(gpu, judge_kernel, 1, INV_THREADS, *found, gpu->drift, gpu->fault, gpu->step);
}

extern "C" void INV_GPU_NAME(guard)(const inv_gpu *gpu, inv_dtype t, int64_t n, int64_t every, uint64_t key,
                                    const void *x, double *ws, double *fp, const double *then, double *drift,
                                    const inv_guard_count *count)
{
    const int64_t blocks = inv_guard_blocks(n);
    const guard_end e = {gpu->turn, ws, fp, then, drift, *count};
    if (t == INV_F32 || t == INV_F64)
        INV_REAL_AS(t, T, inv_start_sync(gpu, guard_kernel<T>, blocks, THREADS, n, every, key, (const T *)x, e));
    else inv_start_sync(gpu, guard_bits_kernel, blocks, THREADS, n, key, (const uint8_t *)x, e);
}

extern "C" void INV_GPU_NAME(guard_pick)(const inv_gpu *gpu, inv_dtype t, int64_t n, int64_t every, const void *x,
                                         void *out, void *one)
{
    INV_REAL_AS(
        t, T,
        inv_start(gpu, guard_pick_kernel<T>, inv_blocks(n), INV_THREADS, n, every, (const T *)x, (T *)out, (T *)one));
}

extern "C" void INV_GPU_NAME(sum_over)(const inv_gpu *gpu, bool squares, const inv_guard_list *list, int64_t blocks,
                                       bool first, double *sum)
{
    inv_start_sync(gpu, sum_kernel, blocks, THREADS, squares, *list, first, sum);
}

extern "C" void INV_GPU_NAME(sum_over_end)(const inv_gpu *gpu, bool root, int64_t blocks, const double *sum,
                                           double *out)
{
    inv_start_sync(gpu, sum_end_kernel, 1, THREADS, root, blocks, sum, out);
}
