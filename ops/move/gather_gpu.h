/* SPDX-License-Identifier: Apache-2.0
 * Device kernels of Gather, its gradient, and Permute. */
#ifndef INV_OPS_MOVE_GATHER_GPU_H
#define INV_OPS_MOVE_GATHER_GPU_H

#include "ops/gpu/group_gpu.h"

/* y[r, i, j] = x[r, index[i] - first, j]: r < rows, i < k, j < block. Indices are in -extent..extent-1; x has those
 * from `first` on, d of them. */
typedef struct inv_gather {
    int64_t rows, d, k, block, first, extent;
    bool wide; /* indices are int64, not int32 */
} inv_gather;

/* Integers that a kernel is started with. */
#define INV_FEW 448
typedef struct inv_few {
    int64_t at[INV_FEW];
} inv_few;

/* Scratch memory of gather_grad. */
static inline size_t inv_gather_grad_workspace(const inv_gather *g)
{
    return inv_group_workspace(g->k, g->rows * g->block);
}

#ifdef __cplusplus
extern "C" {
#endif
/* Elements of 1, 2, 4, 8 or 16 bytes. Where an index is outside, `node` is reported. */
INV_LAUNCHER(gather, const struct inv_node *node, const inv_gather *g, size_t esize, void *y, const void *x,
             const void *index);
/* x, all zeros before, gets the sums of gy by index, float32 or float64; nothing for an index outside. */
INV_LAUNCHER(gather_grad, const inv_gather *g, inv_dtype t, void *x, const void *gy, const void *index, void *ws);
/* n integers of the host to device memory, as part of what is captured. */
INV_LAUNCHER(integers, int64_t n, int64_t *dst, const int64_t *host);
#ifdef __cplusplus
}
#endif

#endif
