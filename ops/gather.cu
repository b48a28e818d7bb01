/* SPDX-License-Identifier: Apache-2.0
 * Gather, its gradient, and Permute on the device. The gradient adds the rows of one index in order, without atomics:
 * positions with one index are a chain, which the thread at its first position walks. */
#include "ops/gather_gpu.h"

#include "ops/copy_gpu.h"
#include "ops/device.cuh"

/* Index i as 0..d-1, or -1 where it is outside. */
INV_DEVICE int64_t inside(const inv_gather *g, const void *index, int64_t i)
{
    int64_t at = g->wide ? ((const int64_t *)index)[i] : ((const int32_t *)index)[i];
    if (at < 0) at += g->d;
    return at >= 0 && at < g->d ? at : -1;
}

/* Element e of y[rows, k, block] as r, i, j. I is what is divided in: 32 bits are several times as fast as 64. */
template <class I> INV_DEVICE void place(const inv_gather *g, int64_t e, int64_t *r, int64_t *i, int64_t *j)
{
    const I q = (I)e / (I)g->block, row = q / (I)g->k;
    *j = (int64_t)((I)e - q * (I)g->block);
    *i = (int64_t)(q - row * (I)g->k);
    *r = (int64_t)row;
}

template <class T, class I> INV_KERNEL gather_kernel(inv_gather g, inv_fault fault, T *y, const T *x, const void *index)
{
    INV_EACH(e, g.rows * g.k * g.block)
    {
        int64_t r, i, j;
        place<I>(&g, e, &r, &i, &j);
        const int64_t at = inside(&g, index, i);
        if (at >= 0)
            y[e] = x[(r * g.d + at) * g.block + j];
        else
            inv_report(fault);
    }
}

INV_KERNEL start_kernel(inv_gather g, const void *index, int64_t *at, int64_t *first)
{
    INV_EACH(i, g.k)
    {
        at[i] = inside(&g, index, i);
        first[i] = at[i] >= 0;
    }
}

/* next[i]: the next position with the index of position i, or k. first[i]: there is none before. */
INV_KERNEL chain_kernel(int64_t k, const int64_t *at, int64_t *first, int64_t *next)
{
    INV_EACH(i, k)
    {
        const int64_t own = at[i];
        int64_t p = own < 0 ? k : i + 1;
        while (p < k && at[p] != own) p++;
        next[i] = p;
        if (p < k) first[p] = 0;
    }
}

template <class T, class I>
INV_KERNEL add_kernel(inv_gather g, T *x, const T *gy, const int64_t *at, const int64_t *first, const int64_t *next)
{
    INV_EACH(e, g.rows * g.k * g.block)
    {
        int64_t r, i, j;
        place<I>(&g, e, &r, &i, &j);
        if (!first[i]) continue;
        T sum = 0;
        for (int64_t p = i; p < g.k; p = next[p]) sum += gy[(r * g.k + p) * g.block + j];
        x[(r * g.d + at[i]) * g.block + j] = sum;
    }
}

INV_KERNEL integers_kernel(int64_t n, int64_t *dst, inv_few few)
{
    INV_EACH(i, n) dst[i] = few.at[i];
}

template <class T>
static void gather_as(const inv_gpu *gpu, const struct inv_node *node, const inv_gather *g, void *y, const void *x,
                      const void *index)
{
    const int64_t n = g->rows * g->k * g->block;
    const inv_fault fault = inv_fault_of(gpu, node);
    if (n <= INT32_MAX)
        inv_start(gpu, gather_kernel<T, uint32_t>, inv_blocks(n), INV_THREADS, *g, fault, (T *)y, (const T *)x, index);
    else
        inv_start(gpu, gather_kernel<T, int64_t>, inv_blocks(n), INV_THREADS, *g, fault, (T *)y, (const T *)x, index);
}

extern "C" void INV_GPU_NAME(gather)(const inv_gpu *gpu, const struct inv_node *node, const inv_gather *from,
                                     size_t esize, void *y, const void *x, const void *index)
{
    inv_gather g = *from;
    /* As large units as the blocks allow. */
    const uintptr_t both = (uintptr_t)x | (uintptr_t)y;
    for (; esize < 16 && g.block > 0 && g.block % 2 == 0 && both % (2 * esize) == 0; esize *= 2) g.block /= 2;
    switch (esize) {
    case 1: gather_as<uint8_t>(gpu, node, &g, y, x, index); break;
    case 2: gather_as<uint16_t>(gpu, node, &g, y, x, index); break;
    case 4: gather_as<uint32_t>(gpu, node, &g, y, x, index); break;
    case 8: gather_as<uint64_t>(gpu, node, &g, y, x, index); break;
    default: gather_as<inv_quad>(gpu, node, &g, y, x, index);
    }
}

template <class T>
static void gather_grad_as(const inv_gpu *gpu, const inv_gather *g, void *x, const void *gy, const void *index,
                           int64_t *ws)
{
    const int64_t n = g->rows * g->k * g->block;
    int64_t *at = ws, *first = ws + g->k, *next = ws + 2 * g->k;
    inv_start(gpu, start_kernel, inv_blocks(g->k), INV_THREADS, *g, index, at, first);
    inv_start(gpu, chain_kernel, (g->k + 63) / 64 < 4096 ? (g->k + 63) / 64 : 4096, 64, g->k, (const int64_t *)at,
              first, next);
    if (n <= INT32_MAX)
        inv_start(gpu, add_kernel<T, uint32_t>, inv_blocks(n), INV_THREADS, *g, (T *)x, (const T *)gy,
                  (const int64_t *)at, (const int64_t *)first, (const int64_t *)next);
    else
        inv_start(gpu, add_kernel<T, int64_t>, inv_blocks(n), INV_THREADS, *g, (T *)x, (const T *)gy,
                  (const int64_t *)at, (const int64_t *)first, (const int64_t *)next);
}

extern "C" void INV_GPU_NAME(gather_grad)(const inv_gpu *gpu, const inv_gather *g, inv_dtype t, void *x,
                                          const void *gy, const void *index, int64_t *ws)
{
    (t == INV_F64 ? gather_grad_as<double> : gather_grad_as<float>)(gpu, g, x, gy, index, ws);
}

extern "C" void INV_GPU_NAME(integers)(const inv_gpu *gpu, int64_t n, int64_t *dst, const int64_t *host)
{
    for (int64_t done = 0; done < n; done += INV_FEW) {
        inv_few few;
        const int64_t count = n - done < INV_FEW ? n - done : INV_FEW;
        memset(&few, 0, sizeof few);
        memcpy(&few, host + done, (size_t)count * sizeof *host);
        inv_start(gpu, integers_kernel, inv_blocks(count), INV_THREADS, count, dst + done, few);
    }
}
