/* SPDX-License-Identifier: Apache-2.0
 * Scattering, gathering and their gradients on the device. Which tuple is the last to name a part is found by a maximum
 * of integers, which is the same in whatever order it is taken. */
#include "ops/move/scatter_gpu.h"

#include "ops/gpu/copy_gpu.h"
#include "ops/gpu/group.cuh"

#ifdef __CUDACC__
INV_DEVICE void raise_to(uint32_t *at, uint32_t v) { atomicMax(at, v); }
#else
INV_DEVICE void raise_to(uint32_t *at, uint32_t v) { *at = v > *at ? v : *at; }
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
        const int64_t at = inv_file_place(&p, index, i);
        if (at >= 0) raise_to(&last[at], (uint32_t)i + 1);
    }
}

INV_KERNEL keys_kernel(inv_places p, const int64_t *index, uint32_t *key)
{
    INV_EACH(i, p.count)
    {
        const int64_t at = inv_file_place(&p, index, i);
        key[i] = (uint32_t)(at < 0 ? p.parts : at);
    }
}

template <class T>
INV_KERNEL scatter_kernel(inv_places p, T *y, const int64_t *index, const T *u, const uint32_t *last)
{
    INV_EACH(e, p.count * p.block)
    {
        const int64_t i = e / p.block, j = e - i * p.block, at = inv_file_place(&p, index, i);
        if (at < 0 || last[at] != (uint32_t)i + 1) continue;
        T v;
        memset(&v, 0, sizeof v);
        if (u) v = u[e];
        y[at * p.block + j] = v;
    }
}

INV_DEVICE double plus(double a, double b) { return a + b; }
INV_DEVICE double times(double a, double b) { return a * b; }
INV_DEVICE int64_t plus(int64_t a, int64_t b) { return (int64_t)((uint64_t)a + (uint64_t)b); }
INV_DEVICE int64_t times(int64_t a, int64_t b) { return (int64_t)((uint64_t)a * (uint64_t)b); }

/* A is what T is joined in: double, or int64. A NaN stays one. */
template <class T, class A> struct joined {
    typedef A acc;
    inv_joining how;
    int64_t block;
    T *y;
    const T *u;
    INV_GROUP_MEMBER acc get(uint32_t at, int64_t lane) const { return (acc)u[at * block + lane]; }
    INV_GROUP_MEMBER acc join(acc a, acc b) const
    {
        switch (how) {
        case INV_JOIN_MUL: return times(a, b);
        case INV_JOIN_MAX: return b > a || b != b ? b : a;
        case INV_JOIN_MIN: return b < a || b != b ? b : a;
        default: return plus(a, b);
        }
    }
    INV_GROUP_MEMBER void put(uint32_t part, int64_t lane, acc v)
    {
        T *to = &y[part * block + lane];
        *to = (T)join((acc)*to, v);
    }
};

template <class T>
INV_KERNEL gather_kernel(inv_places p, T *y, const T *x, const int64_t *index, const uint32_t *last)
{
    INV_EACH(e, p.count * p.block)
    {
        const int64_t i = e / p.block, j = e - i * p.block, at = inv_file_place(&p, index, i);
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

template <class T, class A>
static void join_as(const inv_gpu *gpu, const inv_places *p, inv_joining how, void *y, const void *u,
                    const inv_groups *groups)
{
    inv_group_join(gpu, groups, p->block, joined<T, A>{how, p->block, (T *)y, (const T *)u});
}

extern "C" void INV_GPU_NAME(scatter_join)(const inv_gpu *gpu, const inv_places *p, inv_joining how, inv_dtype t,
                                           void *y, const int64_t *index, const void *u, void *ws)
{
    inv_groups groups;
    inv_groups_of(&groups, p->count, p->parts, p->block, ws);
    inv_start(gpu, keys_kernel, inv_blocks(p->count), INV_THREADS, *p, index, groups.unsorted);
    INV_GPU_NAME(group)(gpu, &groups);
    switch (t) {
    case INV_F64: join_as<double, double>(gpu, p, how, y, u, &groups); break;
    case INV_F32: join_as<float, double>(gpu, p, how, y, u, &groups); break;
    case INV_I64: join_as<int64_t, int64_t>(gpu, p, how, y, u, &groups); break;
    default: join_as<int32_t, int64_t>(gpu, p, how, y, u, &groups);
    }
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
