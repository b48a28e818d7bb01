/* SPDX-License-Identifier: Apache-2.0
 * Softmax and its gradient on the device, along an axis of `len` elements with `inner` elements between neighbours. */
#ifndef INV_OPS_NORM_SOFTMAX_GPU_H
#define INV_OPS_NORM_SOFTMAX_GPU_H

#include "ops/gpu/gpu.h"

#ifdef __cplusplus
extern "C" {
#endif
/* gy NULL: y = softmax(x), x in `v`; else y is the gradient of x, from gy and the result in `v`. y may be v or gy. */
INV_LAUNCHER(softmax, inv_dtype t, bool log_form, int64_t outer, int64_t len, int64_t inner, const void *gy,
             const void *v, void *y);
#ifdef __cplusplus
}
#endif

#endif
