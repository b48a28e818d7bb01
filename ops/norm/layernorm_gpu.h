/* SPDX-License-Identifier: Apache-2.0
 * Layer, RMS and group normalisation on the device: `rows` rows of `len` neighbouring elements. Sums over rows are a
 * fold (ops/reduce/reduce_gpu.h) of a matrix over its first axis. */
#ifndef INV_OPS_NORM_LAYERNORM_GPU_H
#define INV_OPS_NORM_LAYERNORM_GPU_H

#include "ops/reduce/reduce_gpu.h"

typedef struct inv_layernorm {
    inv_dtype dtype;
    double eps;
    int64_t rows, len;
    bool rms;                          /* 0 in place of the mean */
    const void *x, *gy, *scale, *bias; /* bias may be NULL */
} inv_layernorm;

/* Group normalisation: images of `groups` rows, each `channels` of `area` neighbouring elements. */
typedef struct inv_groupnorm {
    inv_dtype dtype;
    double eps;
    int64_t images, groups, channels, area;
    const void *x, *gy, *scale, *bias;
} inv_groupnorm;

#ifdef __cplusplus
extern "C" {
#endif
/* y may be x. */
INV_LAUNCHER(layer_norm, const inv_layernorm *a, void *y);
/* dx, dscale, dbias: each may be NULL; dx may be x or gy. ws: nout * parts * 2 + rows * 2 doubles. */
INV_LAUNCHER(layer_norm_grad, const inv_layernorm *a, const inv_fold *f, double *ws, void *dx, void *dscale,
             void *dbias);
INV_LAUNCHER(group_norm, const inv_groupnorm *a, void *y);
/* ws: images * groups * (2 * channels + 4) doubles. */
INV_LAUNCHER(group_norm_grad, const inv_groupnorm *a, double *ws, void *dx, void *dscale, void *dbias);
#ifdef __cplusplus
}
#endif

#endif
