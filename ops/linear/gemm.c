/* SPDX-License-Identifier: Apache-2.0
 * Matrix products of float32 by kernels of our own where the processor has AVX2 (gemm_own.c) and they are not too thin
 * or small to be worth packing for, else by OpenBLAS; of float64 by plain blocked loops (gemm_kernels.inc). Which it is
 * depends on processor and extents alone, so that results can be made again. */
#include "ops/linear/gemm.h"

#include <cblas.h>
#include <limits.h>
#include <string.h>

#include "ops/base/parallel.h"
#include "ops/linear/gemm_own.h"

#define TILE_M 32
#define TILE_N 64
#define TILE_K 64

#define PART_LEAST 4e6 /* multiplications that are worth a thread */
/* Whole panels of our kernels and OpenBLAS's: of 4, 8 or 16 columns, of 6 or three times 4 or 8 rows. */
#define COLUMN_PANEL 16
#define ROW_PANEL 48
#define LEAST_ROWS 12
#define SMALL 1e6 /* multiplications */
#define ROWS 2048 /* of a part, or up to twice as many */

#define INV_BOTH "ops/linear/gemm_kernels.inc"
#include "ops/base/both_reals.inc"

/* In how many parts `extent` is cut, at most as many as wanted. None is small, so all take OpenBLAS's path for large
 * products; and what is summed up in which order is that of the whole product, for columns with most kernels (not
 * Haswell's). */
static int64_t panel_parts(int64_t extent, int64_t panel, double work, int64_t wanted)
{
    const int64_t most = inv_min64((int64_t)(work / PART_LEAST), extent / panel);
    return inv_max64(inv_min64(wanted, most), 1);
}

/* On the calling thread alone. OpenBLAS takes threads of its own where OpenMP offers them, and they wait for one
 * another by spinning. It copies some hundred numbers of each row before it computes, to memory of its own that it
 * keeps: so there are not too many rows at a time. */
static void by_blas(INV_GEMM_ARGS(float))
{
    const int64_t parts = panel_parts(m, ROW_PANEL, (double)m * (double)n * (double)k, m / ROWS);
    const int64_t part = m / parts / ROW_PANEL * ROW_PANEL;
    const int threads = inv_take_threads();
    for (int64_t i = 0; i < parts; i++) {
        const int64_t at = i * part, count = i + 1 < parts ? part : m - at;
        cblas_sgemm(CblasRowMajor, ta ? CblasTrans : CblasNoTrans, tb ? CblasTrans : CblasNoTrans, (int)count, (int)n,
                    (int)k, 1.0f, a + (ta ? at : at * lda), (int)lda, b, (int)ldb, add ? 1.0f : 0.0f, c + at * ldc,
                    (int)ldc);
    }
    inv_give_threads(threads);
}

/* The kernels for c, m by n, and k numbers deep; NULL: OpenBLAS's, which has some for AVX-512 that pack nothing. */
static const inv_gemm_own *own_for(int64_t m, int64_t n, int64_t k)
{
    static const char wide[] = "SkylakeX Cooperlake SapphireRapids";
    if (m < LEAST_ROWS || n < INV_TILE_COLUMNS) return NULL;
    if ((double)m * (double)n * (double)k <= SMALL && strstr(wide, openblas_get_corename())) return NULL;
    return inv_gemm_own_find(true);
}

static void alone(const inv_gemm_own *own, INV_GEMM_ARGS(float))
{
    if (!own || !own->product(ta, tb, m, n, k, a, lda, b, ldb, add, c, ldc))
        by_blas(ta, tb, m, n, k, a, lda, b, ldb, add, c, ldc);
}

void inv_gemm_f32(INV_GEMM_ARGS(float))
{
    if (m <= 0 || n <= 0) return;
    bool big = m > INT_MAX || n > INT_MAX || k > INT_MAX || lda > INT_MAX || ldb > INT_MAX || ldc > INT_MAX;
    if (big || k <= 0) {
        inv_gemm_plain_f32(ta, tb, m, n, k, a, lda, b, ldb, add, c, ldc);
        return;
    }
    const inv_gemm_own *own = own_for(m, n, k);
    const double work = (double)m * (double)n * (double)k;
    const int64_t threads = inv_all_threads();
    const int64_t by_rows = panel_parts(m, ROW_PANEL, work, threads);
    const int64_t by_columns = panel_parts(n, COLUMN_PANEL, work, threads);
    const bool rows = by_rows == by_columns ? m >= n : by_rows > by_columns;
    const int64_t parts = rows ? by_rows : by_columns, panel = rows ? ROW_PANEL : COLUMN_PANEL, extent = rows ? m : n;
    const int64_t part = extent / parts / panel * panel;
    if (parts < 2) {
        alone(own, ta, tb, m, n, k, a, lda, b, ldb, add, c, ldc);
        return;
    }
#pragma omp parallel for schedule(static)
    for (int64_t i = 0; i < parts; i++) {
        const int64_t at = i * part, count = i + 1 < parts ? part : extent - at;
        if (rows) alone(own, ta, tb, count, n, k, a + (ta ? at : at * lda), lda, b, ldb, add, c + at * ldc, ldc);
        else alone(own, ta, tb, m, count, k, a, lda, b + (tb ? at * ldb : at), ldb, add, c + at, ldc);
    }
}

void inv_gemm_f64(INV_GEMM_ARGS(double)) { inv_gemm_plain_f64(ta, tb, m, n, k, a, lda, b, ldb, add, c, ldc); }

const char *inv_blas_name(void) { return openblas_get_config(); }
