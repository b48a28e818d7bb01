/* SPDX-License-Identifier: Apache-2.0
 * Matrix products: OpenBLAS for float32, plain blocked loops for float64 (gemm_kernels.inc). */
#include "ops/gemm.h"

#include <cblas.h>
#include <limits.h>
#include <string.h>

#include "ops/parallel.h"

#define TILE_M 32
#define TILE_N 64
#define TILE_K 64

#define INV_BOTH "ops/gemm_kernels.inc"
#include "ops/both_reals.inc"

void inv__gemm_f32(INV_GEMM_ARGS(float))
{
    if (m <= 0 || n <= 0) return;
    bool big = m > INT_MAX || n > INT_MAX || k > INT_MAX || lda > INT_MAX || ldb > INT_MAX || ldc > INT_MAX;
    if (big || k <= 0) {
        inv__gemm_plain_f32(ta, tb, m, n, k, a, lda, b, ldb, add, c, ldc);
        return;
    }
    cblas_sgemm(CblasRowMajor, ta ? CblasTrans : CblasNoTrans, tb ? CblasTrans : CblasNoTrans, (int)m, (int)n, (int)k,
                1.0f, a, (int)lda, b, (int)ldb, add ? 1.0f : 0.0f, c, (int)ldc);
}

void inv__gemm_f64(INV_GEMM_ARGS(double))
{
    inv__gemm_plain_f64(ta, tb, m, n, k, a, lda, b, ldb, add, c, ldc);
}
