/* SPDX-License-Identifier: Apache-2.0
 * Determinants on the device (det.cu). */
#ifndef INV_OPS_LINEAR_DET_GPU_H
#define INV_OPS_LINEAR_DET_GPU_H

#include "ops/gpu/gpu.h"

/* Doubles of scratch memory for one matrix of n x n. Two numbers more per row are the orders of rows and columns. */
static inline int64_t inv_det_doubles(int64_t n, bool gradient) { return (gradient ? 2 : 1) * n * n + 2 * n; }

#ifdef __cplusplus
extern "C" {
#endif
/* `count` matrices of n x n; ws: inv_det_doubles for each. */
INV_LAUNCHER(det, inv_dtype t, int64_t count, int64_t n, const void *x, void *y, double *ws);
INV_LAUNCHER(det_grad, inv_dtype t, int64_t count, int64_t n, const void *gy, const void *x, void *gx, double *ws);
#ifdef __cplusplus
}
#endif

#endif
