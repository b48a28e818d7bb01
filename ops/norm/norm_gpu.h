/* SPDX-License-Identifier: Apache-2.0
 * Batch, layer, RMS and group normalisation: what a kernel is told, on the host and on the device. Of batch
 * normalisation a channel is a result of a fold over batch and space (ops/reduce/reduce_gpu.h); a row of the others has
 * neighbouring elements, and sums over rows are a fold of a matrix over its first axis. */
#ifndef INV_OPS_NORM_NORM_GPU_H
#define INV_OPS_NORM_NORM_GPU_H

#include "ops/gpu/many.h"
#include "ops/reduce/reduce_gpu.h"

/* Operands, all of one type; NULL for those that a node lacks. */
typedef struct inv_norm {
    inv_dtype dtype;
    double eps;
    const void *x, *gy, *scale, *bias, *mean, *var;
} inv_norm;

/* Ranks whose batch statistics are those of the batches of all. Gradients are each rank's for its part of the loss of
 * all, times the number of ranks that have rows; of scale and bias every one of them has the mean. */
typedef struct inv_norm_ranks {
    int64_t n;
    const double *sums;  /* of each rank: of gy, then of gy (x - mean), per channel. NULL: of this one alone */
    const double *count; /* elements of a channel on all */
    const double *there; /* per rank: above 0 if it has rows */
} inv_norm_ranks;

/* One more part's moments (how many, means, sums of squares around them, of `channels`), joined with those so far. */
INV_HD void inv_join_moments(const double *part, int64_t channels, int64_t channel, double *n, double *mean,
                             double *squares)
{
    const double more = part[0], all = *n + more, off = part[1 + channel] - *mean;
    if (!(more > 0)) return;
    *mean += off * (more / all);
    *squares += part[1 + channels + channel] + off * off * (*n * more / all);
    *n = all;
}

/* The sum of entry i, of n, of all ranks that are there, in their order; *ranks: how many these are. */
INV_HD double inv_sum_of_ranks(const inv_norm_ranks *r, int64_t n, int64_t i, int64_t *ranks)
{
    double sum = 0;
    *ranks = 0;
    for (int64_t p = 0; p < r->n; p++) {
        if (!(r->there[p] > 0)) continue;
        sum = *ranks ? sum + r->sums[p * n + i] : r->sums[p * n + i];
        ++*ranks;
    }
    return sum;
}

/* How running statistics take in those of the batches of so many ranks. */
typedef struct inv_mixing {
    int64_t batches;
    const double *weight; /* per batch: those of 0 are not read; NULL: all have some */
    double momentum;      /* what is kept for each batch */
    int64_t cumulative;   /* 1: instead of it: they are the mean over all batches so far */
} inv_mixing;

/* What is kept for a batch that has `before` others before it. */
INV_HD double inv_mix_kept(const inv_mixing *m, uint64_t before)
{
    return m->cumulative ? (double)before / (double)(before + 1) : m->momentum;
}

typedef struct inv_layernorm {
    inv_norm of;
    int64_t rows, len;
    bool rms; /* 0 in place of the mean */
} inv_layernorm;

/* Images of `groups` rows, each `channels` of `area` neighbouring elements. */
typedef struct inv_groupnorm {
    inv_norm of;
    int64_t images, groups, channels, area;
} inv_groupnorm;

#ifdef __cplusplus
extern "C" {
#endif
/* Results may be written over x or gy. Each of mean and var, and each of dx, dscale and dbias, may be NULL.
 * ws of batch_stats: nout * parts * 2 doubles. */
INV_LAUNCHER(batch_stats, const inv_fold *f, inv_dtype t, const void *x, double *ws, void *mean, void *var);
/* inverse: x is y, and y is x. */
INV_LAUNCHER(batch_norm, const inv_fold *f, const inv_norm *a, bool inverse, void *y);
/* ws: nout * (parts + 1) * 2 doubles. */
INV_LAUNCHER(batch_norm_grad, const inv_fold *f, const inv_norm *a, const inv_norm_ranks *r, bool training, double *ws,
             void *dx, void *dscale, void *dbias);
/* out: 1 + 2 nout doubles, of a part as inv_join_moments takes it; ws as of batch_stats. */
INV_LAUNCHER(batch_moments, const inv_fold *f, inv_dtype t, const void *x, double *ws, double *out);
/* there: per part, above 0 if it is one; NULL: all are. */
INV_LAUNCHER(join_moments, inv_dtype t, int64_t channels, int64_t parts, const double *part, const double *there,
             void *mean, void *var, double *count);
/* out: as inv_norm_ranks has the sums of one rank; ws as of batch_stats. */
INV_LAUNCHER(grad_sums, const inv_fold *f, const inv_norm *a, double *ws, double *out);
/* Of each tensor: the running one, those of so many batches one behind the other, the result. */
INV_LAUNCHER(running_mix, inv_dtype t, const inv_many *m, const inv_mixing *how);

INV_LAUNCHER(layer_norm, const inv_layernorm *a, void *y);
/* ws: nout * parts * 2 + rows * 2 doubles. */
INV_LAUNCHER(layer_norm_grad, const inv_layernorm *a, const inv_fold *f, double *ws, void *dx, void *dscale,
             void *dbias);

INV_LAUNCHER(group_norm, const inv_groupnorm *a, void *y);
/* ws: images * groups * (2 * channels + 4) doubles. */
INV_LAUNCHER(group_norm_grad, const inv_groupnorm *a, double *ws, void *dx, void *dscale, void *dbias);
#ifdef __cplusplus
}
#endif

#endif
