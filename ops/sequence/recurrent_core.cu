/* SPDX-License-Identifier: Apache-2.0
 * Recurrent cells on the device, from the code that the host uses (ops/sequence/recurrent_cell.inc), one element per
 * thread, and sums of columns. */
#include "ops/gpu/device.cuh"
#include "ops/sequence/recurrent_gpu.h"

#define LANES 1
#define SUM_THREADS 1024 /* of a block that sums columns */
#define INV_SCALAR INV_DEVICE
#define INV_BOTH "ops/sequence/recurrent_device.inc"
#include "ops/base/both_reals.inc"

extern "C" void INV_GPU_NAME(cell)(const inv_gpu *gpu, const inv_recurrent *r, const inv_cell *s)
{
    INV_REAL(r->dtype, cell, gpu, r, s);
}

extern "C" void INV_GPU_NAME(column_sums)(const inv_gpu *gpu, inv_dtype t, int64_t rows, int64_t n, const void *a,
                                          int64_t lda, const void *b, int64_t ldb, bool add, void *out)
{
    INV_REAL(t, column_sums, gpu, rows, n, a, lda, b, ldb, add, out);
}
