/* SPDX-License-Identifier: Apache-2.0
 * The guard on the device. A block computes the signs of a tile of elements together, one 64-bit word per 64 elements
 * and projection, and shares them; then a warp needs the same four half words for the 32 elements it reads. */
#include "ops/gpu/device.cuh"
#include "ops/gpu/philox.h"
#include "ops/train/guard_gpu.h"

#define THREADS INV_SYNC_THREADS
#define TAKE 8 /* elements that a thread has on the way at a time */
#define NSUM INV_GUARD_NSUM

struct alignas(16) guard_signs { /* of 32 elements: bit i set: projection k takes away element i */
    uint32_t word[INV_GUARD_NPROJ];
};

template <class X> INV_DEVICE bool is_finite(X v) { return v - v == 0; }

/* d with its sign changed if the top bit of `flip` is set. */
INV_DEVICE double signed_by(double d, uint32_t flip)
{
    uint64_t bits;
    memcpy(&bits, &d, sizeof bits);
    bits ^= (uint64_t)(flip & 0x80000000u) << 32;
    memcpy(&d, &bits, sizeof d);
    return d;
}

/* This block's tiles. CLEAN: elements that are not finite are counted and taken as 0; otherwise all are taken as
 * finite, and the sum of squares tells if that was wrong. */
template <bool CLEAN, class X>
INV_DEVICE void guard_walk(int64_t n, int64_t every, uint64_t key, const X *x, double sum[NSUM])
{
    INV_SHARED(guard_signs, signs, [2][INV_GUARD_TILE / 32]);
    const int t = (int)threadIdx.x, k = t % INV_GUARD_NPROJ, shift = 31 - t % 32;
    int turn = 0;
    for (int i = 0; i < NSUM; i++) sum[i] = 0;
    __syncthreads();
    for (int64_t tile = (int64_t)blockIdx.x * INV_GUARD_TILE; tile < n; tile += (int64_t)gridDim.x * INV_GUARD_TILE) {
        for (int b = t / INV_GUARD_NPROJ; b < INV_GUARD_TILE / 64; b += THREADS / INV_GUARD_NPROJ) {
            const uint64_t w = inv__guard_signs(key, (uint64_t)(tile / 64 + b), k);
            signs[turn][2 * b].word[k] = (uint32_t)w;
            signs[turn][2 * b + 1].word[k] = (uint32_t)(w >> 32);
        }
        __syncthreads(); /* one per tile: the other half of `signs` is written next */
        for (int u = 0; u < INV_GUARD_TILE / THREADS; u += TAKE) {
            X v[TAKE];
            for (int i = 0; i < TAKE; i++) {
                const int64_t at = tile + (u + i) * THREADS + t;
                v[i] = at < n ? x[inv__guard_place(key, every, at)] : (X)0;
            }
            for (int i = 0; i < TAKE; i++) {
                const guard_signs s = signs[turn][(u + i) * (THREADS / 32) + t / 32];
                const bool fine = !CLEAN || is_finite(v[i]);
                const double d = fine ? (double)v[i] : 0;
                for (int j = 0; j < INV_GUARD_NPROJ; j++) sum[j] += signed_by(d, s.word[j] << shift);
                sum[INV_GUARD_NPROJ] += d * d;
                if (CLEAN && !fine) sum[INV_GUARD_NPROJ + 1] += 1;
            }
        }
        turn ^= 1;
    }
    for (int i = 0; i < NSUM; i++) sum[i] = inv_block_sum(sum[i]);
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
    double *part; /* part[k * blocks + block] */
    double *fp;
    const double *then;
    double *drift;
    inv_guard_count count;
} guard_end;

/* The block that comes last joins the sums of all of them, in the order of blocks. */
INV_DEVICE void guard_join(const guard_end &e, double sum[NSUM])
{
    const int64_t blocks = gridDim.x;
    const volatile double *part = e.part;
    for (int k = 0; k < NSUM; k++)
        if (threadIdx.x == 0) e.part[k * blocks + blockIdx.x] = sum[k];
    if (!inv_last_block(e.turn)) return;
    for (int k = 0; k < NSUM; k++) {
        sum[k] = 0;
        for (int64_t b = threadIdx.x; b < blocks; b += THREADS) sum[k] += part[k * blocks + b];
    }
    for (int k = 0; k < NSUM; k++) sum[k] = inv_block_sum(sum[k]);
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
        const uint64_t w = inv__guard_word(x, nbytes, i);
        const int all = inv__guard_ones(w);
        for (int k = 0; k < INV_GUARD_NPROJ; k++)
            sum[k] += all - 2 * inv__guard_ones(w & inv__guard_signs(key, (uint64_t)i, k));
        sum[INV_GUARD_NPROJ] += all;
    }
    for (int k = 0; k < NSUM; k++) sum[k] = inv_block_sum(sum[k]);
    guard_join(e, sum);
}

template <class X> INV_KERNEL guard_pick_kernel(int64_t n, int64_t every, const X *x, X *out, X *one)
{
    INV_EACH(i, n)
    {
        out[i] = x[inv__guard_place(0, every, i)];
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
    const int64_t blocks = inv__guard_blocks(n);
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
