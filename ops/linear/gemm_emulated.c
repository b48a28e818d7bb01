/* SPDX-License-Identifier: Apache-2.0
 * Matrix products of the emulated device, by the host's kernels; convolutions are left to the column-matrix form. */
#include "ops/gpu/gpu.h"
#include "ops/linear/gemm.h"

static inv_status gemm(const inv_gpu *gpu, const inv_gemm *g, void *ws, size_t ws_nbytes)
{
    (void)gpu, (void)ws, (void)ws_nbytes;
    if (inv_emu_guard) inv_emu_guard(true);
    for (int64_t i = 0; i < g->batch; i++) {
        if (g->dtype == INV_F64)
            inv__gemm_f64(g->ta, g->tb, g->m, g->n, g->k, (const double *)g->a + i * g->step_a, g->lda,
                          (const double *)g->b + i * g->step_b, g->ldb, g->add, (double *)g->c + i * g->step_c, g->ldc);
        else
            inv__gemm_f32(g->ta, g->tb, g->m, g->n, g->k, (const float *)g->a + i * g->step_a, g->lda,
                          (const float *)g->b + i * g->step_b, g->ldb, g->add, (float *)g->c + i * g->step_c, g->ldc);
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
