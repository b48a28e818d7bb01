/* SPDX-License-Identifier: Apache-2.0
 * Products with a long inner extent and a small result. */
#include "core/base/mem.h"
#include "ops/gpu/parts_gpu.h"

enum { LONG = 8192, PART = 2048, MOST_PARTS = 16, TILE = 128, FEW_TILES = 64, WHOLE = 64 };

static int64_t parts_of(const inv_gemm *g, size_t ws_nbytes)
{
    const int64_t tiles = (g->m + TILE - 1) / TILE * ((g->n + TILE - 1) / TILE);
    const size_t each = (size_t)(g->m * g->n) * inv_dtype_size(g->dtype);
    int64_t parts = g->k / PART < MOST_PARTS ? g->k / PART : MOST_PARTS;
    if (g->k < LONG || tiles > FEW_TILES || g->batch != 1 || g->ldc != g->n) return 1;
    while (parts > 1 && (size_t)parts * each > ws_nbytes / 2) parts /= 2; /* the other half is for these products */
    return parts;
}

inv_status inv_gpu_gemm(const inv_gpu *gpu, const inv_gemm *g, void *ws, size_t ws_nbytes)
{
    const int64_t parts = parts_of(g, ws_nbytes), each = g->k / parts / WHOLE * WHOLE, size = g->m * g->n;
    if (parts <= 1) return gpu->gemm(gpu, g, ws, ws_nbytes);
    const size_t element = inv_dtype_size(g->dtype), taken = ((size_t)(parts * size) * element + 255) / 256 * 256;
    inv_gemm some = *g, rest = *g;
    some.k = each;
    some.batch = parts;
    some.step_a = g->ta ? each * g->lda : each;
    some.step_b = g->tb ? each : each * g->ldb;
    some.step_c = size;
    some.c = ws;
    some.onto = INV_INSTEAD;
    INV_TRY(gpu->gemm(gpu, &some, (char *)ws + taken, ws_nbytes - taken));
    INV_GPU(gpu, sum_parts, g->dtype, g->dtype, size, parts, ws, g->onto, g->c);
    rest.k = g->k - parts * each;
    rest.a = (const char *)g->a + (size_t)(parts * some.step_a) * element;
    rest.b = (const char *)g->b + (size_t)(parts * some.step_b) * element;
    rest.onto = g->onto == INV_INSTEAD ? INV_ADDED_TO : g->onto;
    return rest.k ? gpu->gemm(gpu, &rest, (char *)ws + taken, ws_nbytes - taken) : INV_OK;
}
