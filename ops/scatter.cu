/* SPDX-License-Identifier: Apache-2.0
 * ScatterND, GatherND and their gradients on the device. Which tuple is the last (or first) to name a part is found by
 * a maximum (minimum) of integers, which is the same in whatever order it is taken; sums go along the tuples. */
#include "ops/scatter_gpu.h"

#include "ops/copy_gpu.h"
#include "ops/device.cuh"

#ifdef __CUDACC__
INV_DEVICE void raise_to(uint32_t *at, uint32_t v) { atomicMax(at, v); }
INV_DEVICE void lower_to(uint32_t *at, uint32_t v) { atomicMin(at, v); }
INV_DEVICE void count_up(uint32_t *at) { atomicAdd(at, 1u); }
#else
INV_DEVICE void raise_to(uint32_t *at, uint32_t v) { *at = v > *at ? v : *at; }
INV_DEVICE void lower_to(uint32_t *at, uint32_t v) { *at = v < *at ? v : *at; }
INV_DEVICE void count_up(uint32_t *at) { ++*at; }
#endif

INV_KERNEL clear_kernel(int64_t n, uint32_t *table, uint32_t v)
{
    INV_EACH(i, n) table[i] = v;
}

/* last[part]: 1 + the last tuple that names it. */
INV_KERNEL last_kernel(inv_places p, const int64_t *index, uint32_t *last)
{
    INV_EACH(i, p.count)
    {
        const int64_t at = inv__place(&p, index, i);
        if (at >= 0) raise_to(&last[at], (uint32_t)i + 1);
    }
}

/* first[part]: the first tuple that names it; times[part]: how many do. */
INV_KERNEL first_kernel(inv_places p, const int64_t *index, uint32_t *first, uint32_t *times)
{
    INV_EACH(i, p.count)
    {
        const int64_t at = inv__place(&p, index, i);
        if (at < 0) continue;
        lower_to(&first[at], (uint32_t)i);
        count_up(&times[at]);
    }
}

template <class T>
INV_KERNEL scatter_kernel(inv_places p, T *y, const int64_t *index, const T *u, const uint32_t *last)
{
    INV_EACH(e, p.count * p.block)
    {
        const int64_t i = e / p.block, j = e - i * p.block, at = inv__place(&p, index, i);
        if (at < 0 || last[at] != (uint32_t)i + 1) continue;
        T v;
        memset(&v, 0, sizeof v);
        if (u) v = u[e];
        y[at * p.block + j] = v;
    }
}

template <class T>
INV_KERNEL add_kernel(inv_places p, T *y, const int64_t *index, const T *u, const uint32_t *first,
                      const uint32_t *times)
{
    INV_EACH(e, p.count * p.block)
    {
        const int64_t i = e / p.block, j = e - i * p.block, at = inv__place(&p, index, i);
        if (at < 0 || first[at] != (uint32_t)i) continue;
        T sum = y[at * p.block + j] + u[e];
        uint32_t left = times[at] - 1;
        for (int64_t k = i + 1; left > 0; k++) {
            if (inv__place(&p, index, k) != at) continue;
            sum += u[k * p.block + j];
            left--;
        }
        y[at * p.block + j] = sum;
    }
}

template <class T>
INV_KERNEL gather_kernel(inv_places p, T *y, const T *x, const int64_t *index, const uint32_t *last)
{
    INV_EACH(e, p.count * p.block)
    {
        const int64_t i = e / p.block, j = e - i * p.block, at = inv__place(&p, index, i);
        T v;
        memset(&v, at < 0 ? 0xff : 0, sizeof v);
        if (at >= 0 && (!last || last[at] == (uint32_t)i + 1)) v = x[at * p.block + j];
        y[e] = v;
    }
}

static void find_last(const inv_gpu *gpu, const inv_places *p, const int64_t *index, uint32_t *ws)
{
    const uint32_t zero = 0;
    inv_start(gpu, clear_kernel, inv_blocks(p->parts), INV_THREADS, p->parts, ws, zero);
    inv_start(gpu, last_kernel, inv_blocks(p->count), INV_THREADS, *p, index, ws);
}

/* As large units as the blocks allow. */
static size_t widen(inv_places *p, size_t esize, uintptr_t all)
{
    while (esize < 16 && p->block > 0 && p->block % 2 == 0 && all % (2 * esize) == 0) {
        esize *= 2;
        p->block /= 2;
    }
    return esize;
}

template <class T>
static void scatter_as(const inv_gpu *gpu, const inv_places *p, void *y, const int64_t *index, const void *u,
                       const uint32_t *ws)
{
    inv_start(gpu, scatter_kernel<T>, inv_blocks(p->count * p->block), INV_THREADS, *p, (T *)y, index, (const T *)u,
              ws);
}

extern "C" void INV_GPU_NAME(scatter)(const inv_gpu *gpu, const inv_places *from, size_t esize, void *y,
                                      const int64_t *index, const void *u, uint32_t *ws)
{
    inv_places p = *from;
    find_last(gpu, &p, index, ws);
    switch (widen(&p, esize, (uintptr_t)y | (uintptr_t)u)) {
    case 1: scatter_as<uint8_t>(gpu, &p, y, index, u, ws); break;
    case 2: scatter_as<uint16_t>(gpu, &p, y, index, u, ws); break;
    case 4: scatter_as<uint32_t>(gpu, &p, y, index, u, ws); break;
    case 8: scatter_as<uint64_t>(gpu, &p, y, index, u, ws); break;
    default: scatter_as<inv_quad>(gpu, &p, y, index, u, ws);
    }
}

template <class T>
static void add_as(const inv_gpu *gpu, const inv_places *p, T *y, const int64_t *index, const T *u, uint32_t *ws)
{
    const uint32_t zero = 0, most = UINT32_MAX;
    uint32_t *first = ws, *times = ws + p->parts;
    inv_start(gpu, clear_kernel, inv_blocks(p->parts), INV_THREADS, p->parts, first, most);
    inv_start(gpu, clear_kernel, inv_blocks(p->parts), INV_THREADS, p->parts, times, zero);
    inv_start(gpu, first_kernel, inv_blocks(p->count), INV_THREADS, *p, index, first, times);
    inv_start(gpu, add_kernel<T>, inv_blocks(p->count * p->block), INV_THREADS, *p, y, index, u,
              (const uint32_t *)first, (const uint32_t *)times);
}

extern "C" void INV_GPU_NAME(scatter_add)(const inv_gpu *gpu, const inv_places *p, inv_dtype t, void *y,
                                          const int64_t *index, const void *u, uint32_t *ws)
{
    if (t == INV_F64) add_as(gpu, p, (double *)y, index, (const double *)u, ws);
    else add_as(gpu, p, (float *)y, index, (const float *)u, ws);
}

template <class T>
static void gather_as(const inv_gpu *gpu, const inv_places *p, void *y, const void *x, const int64_t *index,
                      const uint32_t *ws)
{
    inv_start(gpu, gather_kernel<T>, inv_blocks(p->count * p->block), INV_THREADS, *p, (T *)y, (const T *)x, index,
              ws);
}

extern "C" void INV_GPU_NAME(gather_places)(const inv_gpu *gpu, const inv_places *from, size_t esize, void *y,
                                            const void *x, const int64_t *index, uint32_t *ws)
{
    inv_places p = *from;
    if (ws) find_last(gpu, &p, index, ws);
    switch (widen(&p, esize, (uintptr_t)y | (uintptr_t)x)) {
    case 1: gather_as<uint8_t>(gpu, &p, y, x, index, ws); break;
    case 2: gather_as<uint16_t>(gpu, &p, y, x, index, ws); break;
    case 4: gather_as<uint32_t>(gpu, &p, y, x, index, ws); break;
    case 8: gather_as<uint64_t>(gpu, &p, y, x, index, ws); break;
    default: gather_as<inv_quad>(gpu, &p, y, x, index, ws);
    }
}
