/* SPDX-License-Identifier: Apache-2.0
 * Matrix products of the emulated device, by the host's kernels; convolutions are left to the column-matrix form. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "ops/gpu/gpu.h"
#include "ops/linear/gemm.h"

/* Factors as matrix units take them: the bits of the mantissa that they leave out are rounded off, half to even. */
static float rounded(float v, int out)
{
    uint32_t b;
    memcpy(&b, &v, sizeof b);
    if (isnan(v)) return v;
    if (isfinite(v)) b += ((1u << (out - 1)) - 1) + (b >> out & 1);
    b &= ~((1u << out) - 1);
    memcpy(&v, &b, sizeof v);
    return v;
}

/* A matrix as they take it, to be freed; NULL: no memory. */
static float *rounded_copy(const float *p, int64_t rows, int64_t cols, int64_t ld, int out)
{
    float *copy = malloc((size_t)(rows * cols + 1) * sizeof *copy);
    for (int64_t r = 0; r < rows && copy; r++)
        for (int64_t c = 0; c < cols; c++) copy[r * cols + c] = rounded(p[r * ld + c], out);
    return copy;
}

static inv_status rounded_product(const inv_gemm *g, int out, const float *a, const float *b, float *c)
{
    const int64_t ra = g->ta ? g->k : g->m, ca = g->ta ? g->m : g->k, rb = g->tb ? g->n : g->k,
                  cb = g->tb ? g->k : g->n;
    float *x = rounded_copy(a, ra, ca, g->lda, out), *y = rounded_copy(b, rb, cb, g->ldb, out);
    if (x && y) inv_gemm_f32(g->ta, g->tb, g->m, g->n, g->k, x, ca, y, cb, g->onto != INV_INSTEAD, c, g->ldc);
    free(x);
    free(y);
    return x && y ? INV_OK : INV_E_NOMEM;
}

/* Before and after adding to what something is to be taken from: that is -(-c + a b). */
static void negate(const inv_gemm *g, char *c)
{
    for (int64_t i = 0; i < g->m * g->n; i++) {
        const int64_t at = i / g->n * g->ldc + i % g->n;
        if (g->dtype == INV_F64) ((double *)(void *)c)[at] *= -1;
        else ((float *)(void *)c)[at] *= -1;
    }
}

static inv_status gemm(const inv_gpu *gpu, const inv_gemm *g, void *ws, size_t ws_nbytes)
{
    static const int out[] = {[INV_PRECISION_TF32] = 13, [INV_PRECISION_BF16] = 16};
    const int64_t size = (int64_t)inv_dtype_size(g->dtype);
    const bool rounds = g->dtype == INV_F32 && gpu->precision != INV_PRECISION_FULL;
    inv_status st = INV_OK;
    (void)ws, (void)ws_nbytes;
    if (inv_emu_guard) inv_emu_guard(true);
    for (int64_t i = 0; i < g->batch && st == INV_OK; i++) {
        const void *a = (const char *)g->a + i * g->step_a * size, *b = (const char *)g->b + i * g->step_b * size;
        char *c = (char *)g->c + i * g->step_c * size;
        if (g->onto == INV_TAKEN_FROM) negate(g, c);
        if (rounds) st = rounded_product(g, out[gpu->precision], a, b, (void *)c);
        else
            INV_REAL(g->dtype, inv_gemm, g->ta, g->tb, g->m, g->n, g->k, a, g->lda, b, g->ldb, g->onto != INV_INSTEAD,
                     (void *)c, g->ldc);
        if (g->onto == INV_TAKEN_FROM) negate(g, c);
    }
    if (inv_emu_guard) inv_emu_guard(false);
    return st;
}

void inv_gpu_emulate(inv_gpu *gpu)
{
    gpu->stream = gpu->library = NULL;
    gpu->emulated = true;
    gpu->gemm = gemm;
    gpu->conv = NULL;
    gpu->precision = INV_PRECISION_FULL;
}
