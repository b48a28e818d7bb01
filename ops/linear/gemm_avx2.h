/* SPDX-License-Identifier: Apache-2.0
 * Matrix products of float32 on processors that have AVX2 and FMA, but not AVX-512, on the calling thread. */
#ifndef INV_OPS_LINEAR_GEMM_AVX2_H
#define INV_OPS_LINEAR_GEMM_AVX2_H

#include "ops/linear/gemm.h"

/* Whether this processor has what it takes, and c, m by n, is not too thin to be worth packing for: where it is, the
 * BLAS library is quicker. */
bool inv__gemm_avx2_serves(int64_t m, int64_t n);
/* k > 0. @return false: there was no memory to pack into, and c is as it was */
bool inv__gemm_avx2(INV_GEMM_ARGS(float));

enum { INV_TILE_COLUMNS = 16 };

/* c = a b, where a, m by k, is packed once for several products and b is read as it lies, in a cache. m is 3 or more, n
 * a multiple of INV_TILE_COLUMNS. Only where inv__gemm_avx2_serves says yes. `packed`: m k floats. */
void inv__gemm_avx2_pack(int64_t m, int64_t k, const float *a, int64_t lda, float *packed);
void inv__gemm_avx2_by_packed(int64_t m, int64_t n, int64_t k, const float *packed, const float *b, int64_t ldb,
                              float *c, int64_t ldc);

#endif
