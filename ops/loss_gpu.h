/* SPDX-License-Identifier: Apache-2.0
 * Losses on the device (ops/loss.c). Means are taken in two stages: blocks leave sums in `part`, one block adds them up
 * in order. x, t: float32 or float64; scalars are float64 in device memory. */
#ifndef INV_OPS_LOSS_GPU_H
#define INV_OPS_LOSS_GPU_H

#include "ops/gpu.h"

#define INV_LOSS_PARTS 1024 /* most entries of `part`, 8 bytes each */

/* Rows of `len` classes, `inner` elements apart. */
typedef struct inv_loss_rows {
    int64_t outer, len, inner;
} inv_loss_rows;

/* (x - t)^2; cross entropy of one logit; x itself */
typedef enum inv_loss_term { INV_TERM_SQUARE, INV_TERM_LOGISTIC, INV_TERM_PLAIN } inv_loss_term;

/* What becomes of a sum of terms: out = ((add ? out : 0) + factor * sum + constant) / divide. */
typedef struct inv_loss_sum {
    double factor, constant, divide;
    bool add;
} inv_loss_sum;

#ifdef __cplusplus
extern "C" {
#endif
/* One of `label` and `soft` is given. */
INV_LAUNCHER(cross_entropy, inv_dtype t, const inv_loss_rows *r, const void *x, const int64_t *label, const void *soft,
             double *part, double *out);
/* gx may be x. */
INV_LAUNCHER(cross_entropy_grad, inv_dtype t, const inv_loss_rows *r, const void *x, const int64_t *label,
             const void *soft, const double *g, void *gx);
INV_LAUNCHER(correct_count, inv_dtype t, const inv_loss_rows *r, const void *x, const int64_t *label, int64_t *part,
             int64_t *out);
/* `target` NULL: zeros. */
INV_LAUNCHER(loss_terms, inv_dtype t, inv_loss_term k, int64_t n, const void *x, const void *target,
             const inv_loss_sum *s, double *part, double *out);
/* gx = factor g / divide times (x - t), (sigmoid(x) - t) or 1 (x NULL). gx may be x or target. */
INV_LAUNCHER(loss_terms_grad, inv_dtype t, inv_loss_term k, int64_t n, double factor, double divide, const double *g,
             const void *x, const void *target, void *gx);
#ifdef __cplusplus
}
#endif

#endif
