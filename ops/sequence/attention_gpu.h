/* SPDX-License-Identifier: Apache-2.0
 * Attention of heads: what kernels of the host and of the device work on. */
#ifndef INV_OPS_SEQUENCE_ATTENTION_GPU_H
#define INV_OPS_SEQUENCE_ATTENTION_GPU_H

#include "ops/gpu/device_code.h"
#include "ops/gpu/gpu.h"

/* q [heads, rows, d], k [heads / group, cols, d] or with the last two axes exchanged, v [heads / group, cols, dv]. */
typedef struct inv_attention {
    inv_dtype dtype;
    bool tk; /* k is [.., d, cols] */
    int64_t heads, group, rows, cols, d, dv;
    double scale, cap; /* cap 0: scores have none */
    int64_t from, to;  /* row i sees the columns from i + from to i + to */
    int nlead;         /* the mask: axes that the heads are, and its strides along them, rows and columns */
    int64_t lead[INV_MAX_RANK], lead_stride[INV_MAX_RANK], row_stride, col_stride;
    const void *q, *k, *v, *mask; /* mask may be NULL */
} inv_attention;

/* For the gradient: that of o, what came out, where results go (NULL: not wanted). stats: per row the largest score and
 * the sum of e^(score - that); 0 and 0 where nothing is seen. */
typedef struct inv_attention_grad {
    const void *gy, *o, *stats;
    void *dq, *dk, *dv, *ds;
} inv_attention_grad;

/* Elements from the begin of the mask to that of a head. */
INV_HD int64_t inv_attention_mask_at(const inv_attention *a, int64_t head)
{
    int64_t at = 0;
    for (int i = a->nlead - 1; i >= 0; i--) {
        at += head % a->lead[i] * a->lead_stride[i];
        head /= a->lead[i];
    }
    return at;
}

#ifdef __cplusplus
extern "C" {
#endif
INV_LAUNCHER(attention, const inv_attention *a, void *o, void *stats);
/* delta: scratch, a number of the operands' type per head and row */
INV_LAUNCHER(attention_grad, const inv_attention *a, const inv_attention_grad *g, void *delta);
#ifdef __cplusplus
}
#endif

#endif
