/* SPDX-License-Identifier: Apache-2.0
 * Batch normalisation on the device. A channel is a result of a fold over batch and space (ops/reduce/reduce_gpu.h). */
#ifndef INV_OPS_NORM_BATCHNORM_GPU_H
#define INV_OPS_NORM_BATCHNORM_GPU_H

#include "ops/reduce/reduce_gpu.h"

typedef struct inv_norm {
    inv_dtype dtype;
    double eps;
    bool training, inverse;
    const void *x, *gy, *scale, *bias, *mean, *var; /* inverse: x is y */
} inv_norm;

#ifdef __cplusplus
extern "C" {
#endif
/* mean, var: either may be NULL. ws: nout * parts * 2 doubles. */
INV_LAUNCHER(batch_stats, const inv_fold *f, inv_dtype t, const void *x, double *ws, void *mean, void *var);
INV_LAUNCHER(batch_norm, const inv_fold *f, const inv_norm *a, void *y);
/* dx, dscale, dbias: each may be NULL. ws: nout * (parts + 1) * 2 doubles. */
INV_LAUNCHER(batch_norm_grad, const inv_fold *f, const inv_norm *a, double *ws, void *dx, void *dscale, void *dbias);
INV_LAUNCHER(running_mix, inv_dtype t, int64_t n, double momentum, const void *running, const void *batch, void *out);
#ifdef __cplusplus
}
#endif

#endif
