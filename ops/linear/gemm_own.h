/* SPDX-License-Identifier: Apache-2.0
 * Matrix products of float32 by kernels of our own, on the calling thread. */
#ifndef INV_OPS_LINEAR_GEMM_OWN_H
#define INV_OPS_LINEAR_GEMM_OWN_H

#include "ops/linear/gemm.h"

enum { INV_TILE_COLUMNS = 16, INV_PACKED_MORE = 8 };

typedef struct inv_gemm_own {
    /* k > 0. @return false: there was no memory to pack into, and c is as it was */
    bool (*product)(INV_GEMM_ARGS(float));
    /* c = a b, where a, m by k, is packed once for several products and b is read as it lies, in a cache. n is a
     * multiple of INV_TILE_COLUMNS. `packed`: m k floats, and INV_PACKED_MORE that may be written behind them. */
    void (*pack)(int64_t m, int64_t k, const float *a, int64_t lda, float *packed);
    void (*by_packed)(int64_t m, int64_t n, int64_t k, const float *packed, const float *b, int64_t ldb, float *c,
                      int64_t ldc);
} inv_gemm_own;

/* Those for vectors of this processor, at most of AVX2 or the widest there are; NULL: it has neither. */
const inv_gemm_own *inv_gemm_own_find(bool widest);

#endif
