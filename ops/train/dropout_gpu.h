/* SPDX-License-Identifier: Apache-2.0
 * Dropout on the device; the mask is the host's, bit for bit (ops/train/dropout.c). */
#ifndef INV_OPS_TRAIN_DROPOUT_GPU_H
#define INV_OPS_TRAIN_DROPOUT_GPU_H

#include "ops/gpu/gpu.h"

/* What does not change from step to step. */
typedef struct inv_drop {
    uint64_t key;   /* attribute `key` */
    uint64_t below; /* words below it are dropped */
    double scale;
    int64_t rows, each; /* samples, and elements of one */
} inv_drop;

#ifdef __cplusplus
extern "C" {
#endif
/* y = x mask scale; y may be x. float32 or float64. */
INV_LAUNCHER(dropout, inv_dtype t, const inv_drop *d, const void *x, void *y);
/* The mask as bytes 0 and 1. */
INV_LAUNCHER(dropout_keep, const inv_drop *d, uint8_t *mask);
#ifdef __cplusplus
}
#endif

#endif
