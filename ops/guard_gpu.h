/* SPDX-License-Identifier: Apache-2.0
 * The guard on the device (ops/guard.c says what it computes). Elements are dealt out by their number alone, so equal
 * values give equal bits. */
#ifndef INV_OPS_GUARD_GPU_H
#define INV_OPS_GUARD_GPU_H

#include "ops/gpu.h"

#define INV_GUARD_NPROJ 4
#define INV_GUARD_NSUM (INV_GUARD_NPROJ + 2)
#define INV_GUARD_TILE 2048 /* elements that a block takes at a time; a multiple of 64 */
#define INV_GUARD_MOST 1024 /* blocks */
#define INV_GUARD_LIST 64   /* tensors per launch of the count */

static inline int64_t inv__guard_blocks(int64_t n)
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

#ifdef __cplusplus
extern "C" {
#endif
/* fp NULL: compares with `then` and writes the relative error to *drift. ws: NSUM * blocks doubles. */
INV_LAUNCHER(guard, inv_dtype t, int64_t n, uint64_t key, const void *x, double *ws, double *fp, const double *then,
             double *drift);
/* Adds the list's count to count[0..blocks-1]; `first` begins at 0. */
INV_LAUNCHER(count_nonfinite, const inv_guard_list *list, int64_t blocks, bool first, double *count);
INV_LAUNCHER(count_nonfinite_end, int64_t blocks, const double *count, double *out);
#ifdef __cplusplus
}
#endif

#endif
