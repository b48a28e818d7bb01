/* SPDX-License-Identifier: Apache-2.0
 * LinearSolve on the device (linear_solve.cu). */
#ifndef INV_OPS_LINEAR_LINEAR_SOLVE_GPU_H
#define INV_OPS_LINEAR_LINEAR_SOLVE_GPU_H

#include "ops/gpu/gpu.h"

typedef struct inv_solve {
    bool trans;         /* W is [n,k] */
    int64_t k, n, rows; /* features of x and y, number of right-hand sides */
    int64_t chunk;      /* right-hand sides at a time */
} inv_solve;

/* Doubles of scratch memory: the factors, right-hand sides, three vectors of factors (pivots are one, too), a flag. */
static inline int64_t inv_solve_matrix(const inv_solve *s) { return s->n * s->k; }
static inline int64_t inv_solve_doubles(const inv_solve *s)
{
    return inv_solve_matrix(s) + s->n * s->chunk + 3 * s->n + 1;
}

/* Elements of the data's type beside: the identity, and a solution. */
static inline int64_t inv_filter_reals(const inv_solve *s) { return s->n * s->n + s->n * s->k; }

#ifdef __cplusplus
extern "C" {
#endif
/* x with x op(W) = y; NaN in every element where W is singular. rows and k are positive. */
INV_LAUNCHER(linear_solve, const inv_solve *s, inv_dtype t, const void *y, const void *w, void *x, double *ws);
/* p, of w's shape: for each of `groups` blocks of w, [m,k] by rows, the transpose of its pseudo-inverse. s: of one
 * block, with max(m,k) right-hand sides, and trans where m is no less than k. ws: that of linear_solve, then
 * inv_filter_reals(s) elements of t. */
INV_LAUNCHER(filter_inverse, const inv_solve *s, int64_t groups, inv_dtype t, const void *w, void *p, double *ws);
#ifdef __cplusplus
}
#endif

#endif
