/* SPDX-License-Identifier: Apache-2.0
 * Sums of parts on the device (parts.cu), and products that are made of such (long_gemm.c). */
#ifndef INV_OPS_GPU_PARTS_GPU_H
#define INV_OPS_GPU_PARTS_GPU_H

#include "ops/gpu/gpu.h"

/* Scratch memory that a matrix product on a device may use: partial results, where the inner extent k is long enough
 * to be shared out and the result (m x n, all of a batch) too small to keep the device busy. On a H200 products of
 * GPT-2's shapes are as fast with 32 MiB as with 256, and with 4 up to twenty times slower (docs/gpu.md). */
static inline size_t inv_gpu_gemm_workspace(int64_t m, int64_t n, int64_t k, inv_dtype t)
{
    size_t parts = k < 128 ? 0 : k < 32 * 128 ? (size_t)k / 128 : 32;
    size_t whole = (size_t)(m * n) * (t == INV_F64 ? 8 : 4) * parts, most = (size_t)32 << 20;
    if (whole == 0) return 0;
    return (whole < most ? (whole + 255) / 256 * 256 : most) + 256; /* so much may go to alignment */
}

/* gpu->gemm, but where k is long and the result small as a batch of products of parts of k, and their sum: for these
 * cuBLASLt 13 takes ways twenty times slower than that. ws: as above. */
inv_status inv_gpu_gemm(const inv_gpu *gpu, const inv_gemm *g, void *ws, size_t ws_nbytes);

#ifdef __cplusplus
extern "C" {
#endif
/* out, n numbers of type t, from the sum of `parts` times n numbers of type `of`: float64, or t. */
INV_LAUNCHER(sum_parts, inv_dtype t, inv_dtype of, int64_t n, int64_t parts, const void *part, inv_onto onto,
             void *out);
#ifdef __cplusplus
}
#endif

#endif
