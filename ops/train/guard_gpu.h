/* SPDX-License-Identifier: Apache-2.0
 * The guard on the device (ops/train/guard.c says what it computes). Elements are dealt out by their number alone, so
 * equal values give equal bits. */
#ifndef INV_OPS_TRAIN_GUARD_GPU_H
#define INV_OPS_TRAIN_GUARD_GPU_H

#include <string.h>

#include "ops/gpu/gpu.h"
#include "ops/gpu/philox.h"

#define INV_GUARD_NPROJ 4
#define INV_GUARD_NSUM (INV_GUARD_NPROJ + 2)
#define INV_GUARD_TILE 2048 /* elements that a block takes at a time; a multiple of 64 */
#define INV_GUARD_MOST 512  /* blocks, which run at once on a large device and are joined in four turns */
#define INV_GUARD_LIST 64   /* tensors per launch of the count */

/* Of how many elements the fingerprint is. With every > 1 it is of a sample: of each run of `every` times 64 elements
 * one piece of 64, drawn by the key; what is left behind the last run is not in it. Bits are never sampled. */
INV_HD int64_t inv_guard_sampled(int64_t n, int64_t every) { return every > 1 ? n / (64 * every) * 64 : n; }

/* Where in the tensor that element of the sample is. */
INV_HD int64_t inv_guard_place(uint64_t key, int64_t every, int64_t at)
{
    if (every <= 1) return at;
    const uint64_t run = (uint64_t)at / 64, drawn = (inv_mix64(~key, run) >> 32) * (uint64_t)every >> 32;
    return (int64_t)((run * (uint64_t)every + drawn) * 64 + (uint64_t)at % 64);
}

/* Signs, a bit each, set: minus. Block b of 64 elements has one random word for all projections, which differ by a
 * pattern over the elements and by a sign of the whole block. So any two elements have the same sign as often as not,
 * and an error within one block is seen by four sums over its quarters. */
INV_HD uint64_t inv_guard_word_of(uint64_t key, uint64_t b) { return inv_mix64(inv_mix64(key, 0), b); }
INV_HD unsigned inv_guard_turned(uint64_t key, uint64_t b) { return inv_mix64(inv_mix64(key, 1), b) & 15; }

/* The pattern of projection k over the elements of a block. */
INV_HD uint64_t inv_guard_pattern(int k)
{
    return (k & 1 ? 0xaaaaaaaaaaaaaaaau : 0) ^ (k & 2 ? 0xccccccccccccccccu : 0);
}

/* The signs of the block in projection k. */
INV_HD uint64_t inv_guard_signs(uint64_t key, uint64_t b, int k)
{
    return inv_guard_word_of(key, b) ^ inv_guard_pattern(k) ^ (0 - (uint64_t)(inv_guard_turned(key, b) >> k & 1));
}

/* Bits set in each byte of a word, by halves: 2, 4, 8 bits at a time. */
INV_HD uint64_t inv_guard_byte_ones(uint64_t w)
{
    w -= w >> 1 & 0x5555555555555555u;
    w = (w & 0x3333333333333333u) + (w >> 2 & 0x3333333333333333u);
    return (w + (w >> 4)) & 0x0f0f0f0f0f0f0f0fu;
}
/* In the whole word: the bytes are added up by a product. */
INV_HD int inv_guard_ones(uint64_t w) { return (int)(inv_guard_byte_ones(w) * 0x0101010101010101u >> 56); }

/* The word of eight bytes, of which the last may have fewer. */
INV_HD uint64_t inv_guard_word(const uint8_t *x, int64_t nbytes, int64_t word)
{
    uint64_t w = 0;
    const int64_t left = nbytes - 8 * word;
    if (left >= 8) memcpy(&w, x + 8 * word, 8);
    for (int b = 0; b < 7; b++) /* of a number that nvcc knows, else it makes an array in memory of w */
        if (left < 8 && b < left) w |= (uint64_t)x[8 * word + b] << 8 * b;
    return w;
}

static inline int64_t inv_guard_blocks(int64_t n)
{
    const int64_t tiles = n > 0 ? (n + INV_GUARD_TILE - 1) / INV_GUARD_TILE : 1;
    const int64_t rounds = (tiles + INV_GUARD_MOST - 1) / INV_GUARD_MOST;
    return (tiles + rounds - 1) / rounds;
}

/* Some tensors, NULL where there are fewer. */
typedef struct inv_guard_list {
    const void *x[INV_GUARD_LIST];
    int64_t n[INV_GUARD_LIST];
    bool wide[INV_GUARD_LIST]; /* float64 */
    int count;
} inv_guard_list;

/* What was found in a step, in device memory; NULL: there is no such. Behind the verdicts of the guards are their
 * limits. */
typedef struct inv_judged {
    const void *loss, *weight; /* a number each, float64 if `wide` and else float32; the weight 0: no label counts */
    bool loss_wide, weight_wide;
    const double *bad; /* how many entries of gradients are not finite */
    int64_t guards;
} inv_judged;

/* Counts guards that have refused: *over is *before (NULL: 0), and 1 if the drift exceeds the limit. over NULL: nobody
 * counts. */
typedef struct inv_guard_count {
    double limit;
    const double *before;
    double *over;
} inv_guard_count;

#ifdef __cplusplus
extern "C" {
#endif
/* step->refused: whether the step must not be committed, as inv_guards_refuse and check_found of the executor say it
 * (and nor with a fault). step->kept and added, for the weight, if there is one. */
INV_LAUNCHER(judge, const inv_judged *found);
/* n: of the sample; for type INV_U8 bytes of eight elements, each 0 or 1. fp NULL: compares with `then`, writes the
 * relative error to *drift, and counts. ws: NSUM * blocks doubles. */
INV_LAUNCHER(guard, inv_dtype t, int64_t n, int64_t every, uint64_t key, const void *x, double *ws, double *fp,
             const double *then, double *drift, const inv_guard_count *count);
/* Elements 0..n-1 of the sample of x, drawn by key 0, into `out`, and n ones into `one`, unless it is NULL. */
INV_LAUNCHER(guard_pick, inv_dtype t, int64_t n, int64_t every, const void *x, void *out, void *one);
/* Adds the list's sum to sum[0..blocks-1]; `first` begins at 0. squares: of the squares; else one for each element
 * that is not finite. */
INV_LAUNCHER(sum_over, bool squares, const inv_guard_list *list, int64_t blocks, bool first, double *sum);
/* *out: all of them; root: its root. */
INV_LAUNCHER(sum_over_end, bool root, int64_t blocks, const double *sum, double *out);
#ifdef __cplusplus
}
#endif

#endif
