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

#define PART_LEAST 4e6 /* multiplications that are worth a thread */
#define PART_ALIGN 16  /* rows or columns: whole panels of OpenBLAS's kernels */

#define INV_BOTH "ops/gemm_kernels.inc"
#include "ops/both_reals.inc"

/* On the calling thread alone. OpenBLAS takes threads of its own where OpenMP offers them, and they wait for one
 * another by spinning. */
static void alone(INV_GEMM_ARGS(float))
{
    const int threads = inv__take_threads();
    cblas_sgemm(CblasRowMajor, ta ? CblasTrans : CblasNoTrans, tb ? CblasTrans : CblasNoTrans, (int)m, (int)n, (int)k,
                1.0f, a, (int)lda, b, (int)ldb, add ? 1.0f : 0.0f, c, (int)ldc);
    inv__give_threads(threads);
}

/* In how many parts `extent` is cut, a thread each. None is small, so all take OpenBLAS's path for large products, and
 * what is summed up in which order is that of the whole product. */
static int64_t parts_of(int64_t extent, double work)
{
    const int64_t most = inv__min64((int64_t)(work / PART_LEAST), extent / PART_ALIGN);
    return inv__max64(inv__min64(inv__all_threads(), most), 1);
}

void inv__gemm_f32(INV_GEMM_ARGS(float))
{
    if (m <= 0 || n <= 0) return;
    bool big = m > INT_MAX || n > INT_MAX || k > INT_MAX || lda > INT_MAX || ldb > INT_MAX || ldc > INT_MAX;
    if (big || k <= 0) {
        inv__gemm_plain_f32(ta, tb, m, n, k, a, lda, b, ldb, add, c, ldc);
        return;
    }
    const bool rows = m >= n;
    const int64_t extent = rows ? m : n, parts = parts_of(extent, (double)m * (double)n * (double)k);
    const int64_t part = extent / parts / PART_ALIGN * PART_ALIGN;
    if (parts < 2) {
        alone(ta, tb, m, n, k, a, lda, b, ldb, add, c, ldc);
        return;
    }
#pragma omp parallel for schedule(static)
    for (int64_t i = 0; i < parts; i++) {
        const int64_t at = i * part, count = i + 1 < parts ? part : extent - at;
        if (rows)
            alone(ta, tb, count, n, k, a + (ta ? at : at * lda), lda, b, ldb, add, c + at * ldc, ldc);
        else
            alone(ta, tb, m, count, k, a, lda, b + (tb ? at * ldb : at), ldb, add, c + at, ldc);
    }
}

void inv__gemm_f64(INV_GEMM_ARGS(double))
{
    inv__gemm_plain_f64(ta, tb, m, n, k, a, lda, b, ldb, add, c, ldc);
}

const char *inv__blas_name(void) { return openblas_get_config(); }
