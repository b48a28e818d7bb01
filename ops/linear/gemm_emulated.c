/* SPDX-License-Identifier: Apache-2.0
 * Matrix products of the emulated device, by the host's kernels; convolutions are left to the column-matrix form. */
#include "ops/gpu/gpu.h"
#include "ops/linear/gemm.h"

static inv_status gemm(const inv_gpu *gpu, const inv_gemm *g, void *ws, size_t ws_nbytes)
{
    const int64_t size = (int64_t)inv_dtype_size(g->dtype);
    (void)gpu, (void)ws, (void)ws_nbytes;
    if (inv_emu_guard) inv_emu_guard(true);
    for (int64_t i = 0; i < g->batch; i++) {
        const char *a = (const char *)g->a + i * g->step_a * size, *b = (const char *)g->b + i * g->step_b * size;
        INV_REAL(g->dtype, inv__gemm, g->ta, g->tb, g->m, g->n, g->k, (const void *)a, g->lda, (const void *)b, g->ldb,
                 g->add, (void *)((char *)g->c + i * g->step_c * size), g->ldc);
    }
    if (inv_emu_guard) inv_emu_guard(false);
    return INV_OK;
}

void inv__gpu_emulate(inv_gpu *gpu)
{
    gpu->stream = gpu->library = NULL;
    gpu->emulated = true;
    gpu->gemm = gemm;
    gpu->conv = NULL;
}
