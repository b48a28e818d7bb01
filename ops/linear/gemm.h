/* SPDX-License-Identifier: Apache-2.0
 * Matrix products, row-major: c[m,n] = op(a)[m,k] * op(b)[k,n], added to c if `add`.
 * float32 by kernels of our own or OpenBLAS (gemm.c), float64 by the plain kernel, which exists for float32 too
 * (oracle, very large extents). The plain kernel sums over k in rising order whatever the blocking and the number of
 * threads. */
#ifndef INV_OPS_LINEAR_GEMM_H
#define INV_OPS_LINEAR_GEMM_H

#include <stdbool.h>
#include <stdint.h>

#define INV_GEMM_ARGS(REAL)                                                                                    \
    bool ta, bool tb, int64_t m, int64_t n, int64_t k, const REAL *a, int64_t lda, const REAL *b, int64_t ldb, \
        bool add, REAL *c, int64_t ldc

void inv_gemm_f32(INV_GEMM_ARGS(float));
void inv_gemm_f64(INV_GEMM_ARGS(double));
void inv_gemm_plain_f32(INV_GEMM_ARGS(float));
void inv_gemm_plain_f64(INV_GEMM_ARGS(double));

const char *inv_blas_name(void); /* library, version, kernels; static */

#endif
