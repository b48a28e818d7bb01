/* SPDX-License-Identifier: Apache-2.0
 * Inverting linear maps: the LinearSolve operator and the condition number that decides whether it may be used. */
#ifndef INV_OPS_LINEAR_LINEAR_SOLVE_H
#define INV_OPS_LINEAR_LINEAR_SOLVE_H

#include "core/graph/op.h"

extern const inv_op_def inv_op_linear_solve, inv_op_filter_inverse;

/* Condition number of a matrix (rank 2, any float type, bytes perhaps unaligned) in the 2-norm, by singular values in
 * float64: cond = largest / smallest, inv_norm = 1 / smallest, the norm of the (pseudo-)inverse. Infinity for a
 * singular or non-finite matrix. Above 64 rows and columns the two extreme singular values are estimated, by Cholesky's
 * factor of the products of columns and power iteration: from inside their range, so both results may come out a few
 * percent too small. Where products do not tell, that is beyond condition numbers of 1e7 or singular values of 1e-140
 * to 1e140, they are computed up to 256 rows or columns, and infinity above. `trans` says which way it will be used;
 * neither number depends on it.
 * @return INV_OK; INV_E_SHAPE, INV_E_UNSUPPORTED_TYPE, INV_E_NOMEM, INV_E_NUMERIC */
inv_status inv_linear_condition(inv_context *ctx, const inv_data *w, bool trans, double *cond, double *inv_norm);

/* log |det| of a square matrix, its axes behind the first taken as one; by LU in float64. -inf: singular; NaN: not all
 * entries are finite.
 * @return INV_OK; INV_E_SHAPE, INV_E_NOMEM */
inv_status inv_linear_logdet(inv_context *ctx, const inv_data *w, double *logdet);

#endif
