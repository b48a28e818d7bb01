/* SPDX-License-Identifier: Apache-2.0
 * Strided copies and fills on the device. Where both sides are contiguous along the last axis, elements are moved in
 * larger units; where the last axis of the source is another one (a transposition), through tiles in shared memory. */
#include "ops/gpu/copy_gpu.h"
#include "ops/gpu/device.cuh"

#define TILE 32
#define TILE_THREADS 256 /* TILE x TILE_STEP */
#define TILE_STEP 8
#define TILE_MIN 16 /* extents from which tiles are worth it */

/* I is what indices are divided in: 32 bits are several times as fast as 64. */
template <class T, class I> INV_KERNEL copy_kernel(inv_loop l, T *dst, const T *src)
{
    INV_EACH(i, l.rows * l.inner)
    {
        I left = (I)i;
        int64_t to = 0, from = 0;
        for (int k = l.rank - 1; k > 0; k--) {
            I q = left / (I)l.dim[k], at = left - q * (I)l.dim[k];
            left = q;
            to += (int64_t)at * l.stride[0][k];
            from += (int64_t)at * l.stride[1][k];
        }
        to += (int64_t)left * l.stride[0][0];
        from += (int64_t)left * l.stride[1][0];
        dst[to] = src[from];
    }
}

/* Neighbours in dst are neighbours along the last axis, neighbours in src along axis a. A block moves squares of the
 * two axes, at each position of the others: read along a, written along the last axis. */
template <class T> INV_KERNEL tile_kernel(inv_loop l, int a, T *dst, const T *src)
{
    INV_SHARED(T, tile, [TILE][TILE + 1]);
    const int b = l.rank - 1;
    const int64_t na = l.dim[a], nb = l.dim[b], ta = (na + TILE - 1) / TILE, tb = (nb + TILE - 1) / TILE,
                  tiles = l.rows * l.inner / (na * nb) * ta * tb;
    const int64_t x = threadIdx.x % TILE, y = threadIdx.x / TILE;
    for (int64_t t = blockIdx.x; t < tiles; t += gridDim.x) {
        const int64_t b0 = t % tb * TILE, a0 = t / tb % ta * TILE;
        int64_t left = t / tb / ta, to = 0, from = 0;
        for (int k = b - 1; k >= 0; k--) {
            if (k == a) continue;
            to += left % l.dim[k] * l.stride[0][k];
            from += left % l.dim[k] * l.stride[1][k];
            left /= l.dim[k];
        }
        for (int64_t j = y; j < TILE; j += TILE_STEP) {
            if (a0 + x < na && b0 + j < nb) tile[j][x] = src[from + a0 + x + (b0 + j) * l.stride[1][b]];
        }
        __syncthreads();
        for (int64_t j = y; j < TILE; j += TILE_STEP) {
            if (a0 + j < na && b0 + x < nb) dst[to + (a0 + j) * l.stride[0][a] + b0 + x] = tile[x][j];
        }
        __syncthreads();
    }
}

template <class T> INV_KERNEL fill_kernel(int64_t n, T *dst, T value)
{
    INV_EACH(i, n) dst[i] = value;
}

/* Can two neighbours be moved as one? */
static bool pairs(const inv_loop *l, size_t esize, const void *dst, const void *src)
{
    const int last = l->rank - 1;
    if (esize >= 16 || last < 0 || l->step[0] != 1 || l->step[1] != 1 || l->inner % 2 != 0) return false;
    for (int i = 0; i < last; i++) {
        if (l->stride[0][i] % 2 != 0 || l->stride[1][i] % 2 != 0) return false;
    }
    return (uintptr_t)dst % (2 * esize) == 0 && (uintptr_t)src % (2 * esize) == 0;
}

static void pair(inv_loop *l)
{
    const int last = l->rank - 1;
    l->dim[last] /= 2;
    l->inner /= 2;
    for (int i = 0; i < last; i++) {
        l->stride[0][i] /= 2;
        l->stride[1][i] /= 2;
    }
}

/* The axis to read along in tiles, or -1. */
static int tile_axis(const inv_loop *l)
{
    if (l->rank < 2 || l->step[0] != 1 || l->step[1] == 0 || l->step[1] == 1 || l->inner < TILE_MIN) return -1;
    for (int i = 0; i + 1 < l->rank; i++) {
        if (l->stride[1][i] == 1 && l->dim[i] >= TILE_MIN) return i;
    }
    return -1;
}

template <class T> static void copy_as(const inv_gpu *gpu, const inv_loop *l, void *dst, const void *src)
{
    const int a = tile_axis(l);
    const int64_t n = l->rows * l->inner;
    if (a >= 0) {
        int64_t tiles = (n / (TILE * TILE / 4)) + 1;
        inv_start_sync(gpu, tile_kernel<T>, tiles < 16384 ? tiles : 16384, TILE_THREADS, *l, a, (T *)dst,
                       (const T *)src);
    } else if (n <= INT32_MAX) {
        inv_start(gpu, copy_kernel<T, uint32_t>, inv_blocks(n), INV_THREADS, *l, (T *)dst, (const T *)src);
    } else {
        inv_start(gpu, copy_kernel<T, int64_t>, inv_blocks(n), INV_THREADS, *l, (T *)dst, (const T *)src);
    }
}

extern "C" void INV_GPU_NAME(copy)(const inv_gpu *gpu, const inv_loop *loop, size_t esize, void *dst, const void *src)
{
    inv_loop l = *loop;
    for (; pairs(&l, esize, dst, src); esize *= 2) pair(&l);
    switch (esize) {
    case 1: copy_as<uint8_t>(gpu, &l, dst, src); break;
    case 2: copy_as<uint16_t>(gpu, &l, dst, src); break;
    case 4: copy_as<uint32_t>(gpu, &l, dst, src); break;
    case 8: copy_as<uint64_t>(gpu, &l, dst, src); break;
    default: copy_as<inv_quad>(gpu, &l, dst, src);
    }
}

template <class T> static void fill_as(const inv_gpu *gpu, int64_t n, void *dst, uint64_t bits)
{
    inv_start(gpu, fill_kernel<T>, inv_blocks(n), INV_THREADS, n, (T *)dst, (T)bits);
}

extern "C" void INV_GPU_NAME(fill)(const inv_gpu *gpu, int64_t n, size_t esize, void *dst, uint64_t bits)
{
    for (; esize < 8 && n % 2 == 0 && n > 0 && (uintptr_t)dst % (2 * esize) == 0; esize *= 2, n /= 2) {
        const uint64_t unit = (uint64_t)1 << 8 * esize;
        bits = bits % unit * (unit + 1);
    }
    switch (esize) {
    case 1: fill_as<uint8_t>(gpu, n, dst, bits); break;
    case 2: fill_as<uint16_t>(gpu, n, dst, bits); break;
    case 4: fill_as<uint32_t>(gpu, n, dst, bits); break;
    default: fill_as<uint64_t>(gpu, n, dst, bits);
    }
}
