/* SPDX-License-Identifier: Apache-2.0
 * What belongs to one part, joined in the order of positions (ops/gpu/group_gpu.h). F says what that is:
 *     typedef ... acc;                                of 8 bytes
 *     acc get(uint32_t at, int64_t lane) const        what position `at` gives
 *     acc join(acc a, acc b) const
 *     void put(uint32_t part, int64_t lane, acc v)    joins v to what is there
 * A thread takes a chunk of sorted positions. What it finds of a part that began in an earlier chunk waits for the
 * second kernel, which joins such pieces, so that a part with most of the positions does not keep one thread busy. */
#ifndef INV_OPS_GPU_GROUP_CUH
#define INV_OPS_GPU_GROUP_CUH

#include "ops/gpu/device.cuh"
#include "ops/gpu/group_gpu.h"

#ifdef __CUDACC__
#define INV_GROUP_MEMBER __device__ inline
#else
#define INV_GROUP_MEMBER inline
#endif

template <class F> INV_KERNEL inv_group_chunks_kernel(inv_groups g, int64_t lanes, F f)
{
    typedef typename F::acc acc;
    INV_EACH(e, inv_group_chunks(g.n) * lanes)
    {
        const int64_t c = e / lanes, lane = e - c * lanes, first = c * INV_GROUP_CHUNK;
        const int64_t end = first + INV_GROUP_CHUNK < g.n ? first + INV_GROUP_CHUNK : g.n;
        for (int64_t p = first; p < end && g.key[p] < g.parts;) {
            const uint32_t key = g.key[p];
            const bool begun = p == first && p > 0 && g.key[p - 1] == key;
            acc v = f.get(g.at[p], lane);
            for (p++; p < end && g.key[p] == key; p++) v = f.join(v, f.get(g.at[p], lane));
            if (begun) ((acc *)g.partial)[e] = v;
            else f.put(key, lane, v);
        }
    }
}

template <class F> INV_KERNEL inv_group_join_kernel(inv_groups g, int64_t lanes, F f)
{
    typedef typename F::acc acc;
    const int64_t chunks = inv_group_chunks(g.n);
    INV_EACH(e, chunks * lanes)
    {
        const int64_t c = e / lanes, lane = e - c * lanes, first = c * INV_GROUP_CHUNK;
        const uint32_t key = g.key[first];
        if (c == 0 || key >= g.parts || g.key[first - 1] != key) continue;
        if (c > 1 && g.key[first - INV_GROUP_CHUNK - 1] == key) continue; /* the thread before has it */
        const acc *piece = (const acc *)g.partial + e;
        acc v = *piece;
        for (int64_t d = c + 1; d < chunks && g.key[d * INV_GROUP_CHUNK] == key; d++)
            v = f.join(v, piece[(d - c) * lanes]);
        f.put(key, lane, v);
    }
}

/* Positions must be sorted. */
template <class F> static inline void inv_group_join(const inv_gpu *gpu, const inv_groups *g, int64_t lanes, F f)
{
    const int64_t n = inv_group_chunks(g->n) * lanes;
    inv_start(gpu, inv_group_chunks_kernel<F>, inv_blocks(n), INV_THREADS, *g, lanes, f);
    inv_start(gpu, inv_group_join_kernel<F>, inv_blocks(n), INV_THREADS, *g, lanes, f);
}

/* Sums in double of T, the usual case: x[lane's row, part, lane's column] += gy[row, at, column]. */
template <class T> struct inv_group_rows {
    typedef double acc;
    int64_t parts, n, block; /* parts of x, positions of gy, columns */
    T *x;
    const T *gy;
    INV_GROUP_MEMBER acc get(uint32_t at, int64_t lane) const
    {
        const int64_t r = lane / block;
        return (acc)gy[(r * n + at) * block + (lane - r * block)];
    }
    INV_GROUP_MEMBER acc join(acc a, acc b) const { return a + b; }
    INV_GROUP_MEMBER void put(uint32_t part, int64_t lane, acc v)
    {
        const int64_t r = lane / block;
        T *to = &x[(r * parts + part) * block + (lane - r * block)];
        *to = (T)((acc)*to + v);
    }
};

#endif
