/* SPDX-License-Identifier: Apache-2.0
 * Losses on the device (ops/train/loss.c). Means are taken in two stages: blocks leave sums in `part`, one block adds
 * them up in order. x, t: float32 or float64; scalars are float64 in device memory. */
#ifndef INV_OPS_TRAIN_LOSS_GPU_H
#define INV_OPS_TRAIN_LOSS_GPU_H

#include "ops/gpu/device_code.h"
#include "ops/gpu/gpu.h"

#define INV_LOSS_PARTS 1024 /* most entries of `part`, 8 bytes each */

/* Rows of `len` classes, `inner` elements apart: those from `first` on, of `classes`. */
typedef struct inv_loss_rows {
    int64_t outer, len, inner, first, classes;
    bool known;   /* the operand is logarithms of probabilities, else logits */
    bool ignores; /* rows of this label do not count */
    int64_t ignore;
    double smooth; /* this share of a row's target goes to all classes alike */
} inv_loss_rows;
INV_HD bool inv_loss_ignored(const inv_loss_rows *r, int64_t label) { return r->ignores && label == r->ignore; }

/* One of `label` and `soft` is given. weight: per class; NULL: 1 */
typedef struct inv_loss_target {
    const int64_t *label;
    const void *soft, *weight;
} inv_loss_target;

/* (x - t)^2; cross entropy of one logit; Huber's function of x - t; x itself */
typedef struct inv_loss_term {
    enum { INV_TERM_SQUARE, INV_TERM_LOGISTIC, INV_TERM_HUBER, INV_TERM_PLAIN } kind;
    double delta;
    bool ignores; /* elements whose target is this number, or NaN, do not count */
    double ignore;
} inv_loss_term;
INV_HD bool inv_term_missing(const inv_loss_term *k, double target)
{
    return k->ignores && (target != target || target == k->ignore);
}
INV_HD double inv_huber(double d, double delta)
{
    const double a = d < 0 ? -d : d;
    return a > delta ? delta * (a - delta / 2) : d * d / 2;
}

/* What becomes of a sum of terms: out = ((add ? out : 0) + factor * sum + constant) / divide. */
typedef struct inv_loss_sum {
    double factor, constant, divide;
    bool add;
} inv_loss_sum;

#ifdef __cplusplus
extern "C" {
#endif
/* out: sum of the rows' losses over `total`, which is given (above 0) or the sum of what the rows count. part: twice
 * INV_LOSS_PARTS. all: NULL, or where the total goes. lse: NULL, or where each row's log sum exp goes. */
INV_LAUNCHER(cross_entropy, inv_dtype t, const inv_loss_rows *r, const inv_loss_target *y, const void *x, double total,
             double *part, double *out, double *all, double *lse);
/* One loss per row. */
INV_LAUNCHER(cross_entropy_rows, inv_dtype t, const inv_loss_rows *r, const inv_loss_target *y, const void *x,
             void *out);
/* Each row's share is g / total (all: where the total is, or NULL and it is `total`), or, where g is NULL, its gy. lse:
 * of each row, or NULL and it is computed. gx may be x. */
INV_LAUNCHER(cross_entropy_grad, inv_dtype t, const inv_loss_rows *r, const inv_loss_target *y, const void *x,
             double total, const double *all, const double *g, const void *gy, const double *lse, void *gx);
INV_LAUNCHER(correct_count, inv_dtype t, const inv_loss_rows *r, const void *x, const int64_t *label, int64_t *part,
             int64_t *out);
/* The sum of what the rows of labels count. */
INV_LAUNCHER(label_weight, inv_dtype t, const inv_loss_rows *r, const inv_loss_target *y, double *out);
/* `target` NULL: zeros. all: NULL, or where it goes how many elements count, of which `out` is the mean then. part:
 * twice INV_LOSS_PARTS. */
INV_LAUNCHER(loss_terms, inv_dtype t, inv_loss_term k, int64_t n, const void *x, const void *target,
             const inv_loss_sum *s, double *part, double *out, double *all);
/* gx = factor g / divide times x - t, sigmoid(x) - t, x - t within -delta..delta, or 1 (x NULL). all: NULL, or where
 * the divisor is; 0: no element counts. gx may be x or target. */
INV_LAUNCHER(loss_terms_grad, inv_dtype t, inv_loss_term k, int64_t n, double factor, double divide, const double *all,
             const double *g, const void *x, const void *target, void *gx);
#ifdef __cplusplus
}
#endif

#endif
