/* SPDX-License-Identifier: Apache-2.0
 * What ranks exchange, on the device: kernels before and behind the messages. */
#ifndef INV_OPS_TRAIN_ALL_REDUCE_GPU_H
#define INV_OPS_TRAIN_ALL_REDUCE_GPU_H

#include "ops/gpu/gpu.h"

#ifdef __cplusplus
extern "C" {
#endif
/* out[i], i < n: *own, 0 where step->absent; step->weight where own is NULL. */
INV_LAUNCHER(own_weight, int64_t n, const double *own, double *out);
/* *share = *own over the mean of all, or of those that are there (above 0; NULL: all are); 0 if all are 0. */
INV_LAUNCHER(share_of_ranks, int64_t ranks, const double *own, const double *all, const double *there, double *share);
/* Of parts of n elements, one behind the other, the mean by these weights, in their order; parts of no weight are not
 * read. */
INV_LAUNCHER(mean_of_ranks, inv_dtype t, int64_t n, int64_t ranks, const double *weight, const void *parts, void *out);
#ifdef __cplusplus
}
#endif

#endif
