/* SPDX-License-Identifier: Apache-2.0
 * Optimizer updates on the device, n elements of float32 or float64 (ops/train/optim.c). Learning rate and number of
 * the step are read from gpu->step by the kernels. Nothing is written if *bad > 0; NULL: it is not asked. */
#ifndef INV_OPS_TRAIN_OPTIM_GPU_H
#define INV_OPS_TRAIN_OPTIM_GPU_H

#include "ops/gpu/gpu.h"

typedef struct inv_adam {
    double beta1, beta2, epsilon, decay;
    bool decoupled; /* AdamW */
} inv_adam;

#ifdef __cplusplus
extern "C" {
#endif
INV_LAUNCHER(sgd, inv_dtype t, int64_t n, double decay, const double *bad, void *w, const void *g);
INV_LAUNCHER(momentum, inv_dtype t, int64_t n, double decay, double momentum, const double *bad, void *w, const void *g,
             void *v);
INV_LAUNCHER(adam, inv_dtype t, int64_t n, const inv_adam *k, const double *bad, void *w, const void *g, void *m,
             void *v);
#ifdef __cplusplus
}
#endif

#endif
