/* SPDX-License-Identifier: Apache-2.0
 * Pooling on the device: `planes` images of w->invol elements to w->outvol, float32 or float64. */
#ifndef INV_OPS_POOL_GPU_H
#define INV_OPS_POOL_GPU_H

#include "ops/gpu.h"
#include "ops/window.h"

/* The gradient of a maximum first notes which element of each window it is: in one byte if windows are that small. */
#define INV_POOL_BYTE 255 /* elements of a window */
static inline size_t inv__max_pool_workspace(const inv_window *w, int64_t planes)
{
    return (size_t)(planes * w->outvol) * (w->kvol <= INV_POOL_BYTE ? 1 : 8);
}

#ifdef __cplusplus
extern "C" {
#endif
INV_LAUNCHER(max_pool, inv_dtype t, const inv_window *w, int64_t planes, const void *x, void *y);
INV_LAUNCHER(max_pool_grad, inv_dtype t, const inv_window *w, int64_t planes, const void *x, const void *gy, void *gx,
             void *ws);
/* pad: elements of the pads count. */
INV_LAUNCHER(average_pool, inv_dtype t, const inv_window *w, int64_t planes, bool pad, const void *x, void *y);
INV_LAUNCHER(average_pool_grad, inv_dtype t, const inv_window *w, int64_t planes, bool pad, const void *gy, void *gx);
#ifdef __cplusplus
}
#endif

#endif
