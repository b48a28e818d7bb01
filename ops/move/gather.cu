/* SPDX-License-Identifier: Apache-2.0
 * Gather, its gradient, and Permute on the device. */
#include "ops/move/gather_gpu.h"

#include "ops/gpu/copy_gpu.h"
#include "ops/gpu/group.cuh"

/* Index i as 0..d-1, or -1 where x does not have it. */
INV_DEVICE int64_t inside(const inv_gather *g, const void *index, int64_t i)
{
    int64_t at = g->wide ? ((const int64_t *)index)[i] : ((const int32_t *)index)[i];
    if (at < 0) at += g->extent;
    at -= g->first;
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

INV_KERNEL keys_kernel(inv_gather g, const void *index, uint32_t *key)
{
    INV_EACH(i, g.k)
    {
        const int64_t at = inside(&g, index, i);
        key[i] = (uint32_t)(at < 0 ? g.d : at);
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
static void gather_grad_as(const inv_gpu *gpu, const inv_gather *g, void *x, const void *gy, const inv_groups *groups)
{
    inv_group_join(gpu, groups, g->rows * g->block, inv_group_rows<T>{g->d, g->k, g->block, (T *)x, (const T *)gy});
}

extern "C" void INV_GPU_NAME(gather_grad)(const inv_gpu *gpu, const inv_gather *g, inv_dtype t, void *x,
                                          const void *gy, const void *index, void *ws)
{
    inv_groups groups;
    inv_groups_of(&groups, g->k, g->d, g->rows * g->block, ws);
    inv_start(gpu, keys_kernel, inv_blocks(g->k), INV_THREADS, *g, index, groups.unsorted);
    INV_GPU_NAME(group)(gpu, &groups);
    INV_REAL_AS(t, T, gather_grad_as<T>(gpu, g, x, gy, &groups));
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
