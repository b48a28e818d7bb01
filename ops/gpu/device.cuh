/* SPDX-License-Identifier: Apache-2.0
 * What every .cu file begins with: how to name launchers, write kernels and start them, for nvcc and for the host.
 *
 *     INV_KERNEL scale(int64_t n, float *y, float a) { INV_EACH(i, n) y[i] *= a; }
 *     extern "C" void INV_GPU_NAME(scale)(const inv_gpu *gpu, int64_t n, float *y, float a)
 *     { inv_start(gpu, scale, inv_blocks(n), INV_THREADS, n, y, a); }
 *
 * Kernels with barriers or shuffles are started by inv_start_sync, with a multiple of 32 threads. Shared memory is
 * static: INV_SHARED(float, s, [128]). May call only what CUDA and libm both have. */
#ifndef INV_OPS_GPU_DEVICE_CUH
#define INV_OPS_GPU_DEVICE_CUH

#include <math.h>

#include "ops/gpu/gpu.h"
#include "ops/gpu/loop.h"

#define INV_THREADS 256      /* per block of element-wise kernels */
#define INV_SYNC_THREADS 128 /* per block of kernels that reduce */

#ifdef __CUDACC__
#include <cuda_runtime.h>

#define INV_GPU_NAME(name) inv_cuda_##name
#define INV_KERNEL static __global__ void
#define INV_DEVICE static __device__ inline
#define INV_SHARED(T, name, dims) __shared__ T name dims
#define INV_UNROLL _Pragma("unroll")
#define INV_ROLLED _Pragma("unroll 1")
#define INV_BOUNDS(threads, blocks) __launch_bounds__(threads, blocks)

/* The multiplications of products, where no more than one sum depends on their bits: fused. Elsewhere nothing is. */
INV_DEVICE float inv_fma(float a, float b, float c) { return __fmaf_rn(a, b, c); }
INV_DEVICE double inv_fma(double a, double b, double c) { return __fma_rn(a, b, c); }

template <class... P, class... A>
static inline void inv_start(const inv_gpu *gpu, void (*kernel)(P...), int64_t blocks, int threads, A... args)
{
    if (blocks > 0) kernel<<<(unsigned)blocks, (unsigned)threads, 0, (cudaStream_t)gpu->stream>>>(args...);
}
template <class... P, class... A>
static inline void inv_start_sync(const inv_gpu *gpu, void (*kernel)(P...), int64_t blocks, int threads, A... args)
{
    inv_start(gpu, kernel, blocks, threads, args...);
}
#else
#include "ops/gpu/emulate.h"

#define INV_GPU_NAME(name) inv_sim_##name
#define INV_KERNEL static void
#define INV_DEVICE static inline
#define INV_SHARED(T, name, dims)    \
    static thread_local T name dims; \
    inv_emu_shared(&name, sizeof name)
#define INV_UNROLL
#define INV_ROLLED
#define INV_BOUNDS(threads, blocks)

template <class X> INV_DEVICE X inv_fma(X a, X b, X c) { return a * b + c; } /* rounded twice, but not by a call */
#endif

/* Blocks of INV_THREADS for n elements; a thread takes several where there are many. */
static inline int64_t inv_blocks(int64_t n)
{
    int64_t b = (n + INV_THREADS - 1) / INV_THREADS;
    return b < 4096 ? b : 4096;
}

/* By what a kernel reports data that it cannot use: an index outside, a division by zero. The step then fails and names
 * the node; which of several it is does not matter. The node is named by the complement of its address, since addresses
 * of the host have no business on a device. */
typedef struct inv_fault {
    uint64_t *at, node;
} inv_fault;
static inline inv_fault inv_fault_of(const inv_gpu *gpu, const struct inv_node *node)
{
    return inv_fault{gpu->fault, ~(uint64_t)(uintptr_t)node};
}
INV_DEVICE void inv_report(inv_fault f) { *(volatile uint64_t *)f.at = f.node; }

/* This thread's share of 0..n-1. */
#define INV_EACH(i, n) \
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < (n); i += (int64_t)gridDim.x * blockDim.x)

/* A result, of type S, to where something is: rounded once. */
template <class T, class S> INV_DEVICE void inv_put_onto(inv_onto onto, T *to, S v)
{
    *to = (T)(onto == INV_INSTEAD ? v : onto == INV_ADDED_TO ? (S)*to + v : (S)*to - v);
}

/* Four neighbours, which are loaded and stored at once where they lie well. */
template <class X> struct alignas(16) inv_four {
    X v[4];
};
template <class X> INV_DEVICE inv_four<X> inv_four_load(const X *p) { return *(const inv_four<X> *)p; }
template <class X> INV_DEVICE void inv_four_store(X *p, const inv_four<X> &q) { *(inv_four<X> *)p = q; }
/* The same, of several fours at places that are computed alike: by name, since of such assignments nvcc makes four
 * stores each. */
template <class X> INV_DEVICE void inv_four_put(X *p, const inv_four<X> &q) { inv_four_store(p, q); }
#ifdef __CUDACC__
INV_DEVICE void inv_four_put(float *p, const inv_four<float> &q)
{
    __stwb((float4 *)p, make_float4(q.v[0], q.v[1], q.v[2], q.v[3]));
}
#endif
static inline bool inv_four_aligned(const void *p) { return (uintptr_t)p % 16 == 0; } /* NULL is */

/* The loop over four elements at a time, where rows are made of such; operands lie so along them, or are one. */
static inline bool inv_fours_of(const inv_loop *l, const void *out, const void *const *in, inv_loop *quads)
{
    *quads = *l;
    bool wide = l->inner % 4 == 0 && l->inner > 0 && inv_four_aligned(out);
    for (int k = 0; k < l->nop && wide; k++) {
        if (l->step[k] == 0) continue;
        wide = l->step[k] == 1 && inv_four_aligned(in[k]);
        for (int i = 0; i < l->rank - 1; i++) wide = wide && l->stride[k][i] % 4 == 0;
        quads->step[k] = 4;
    }
    quads->inner /= 4;
    return wide;
}

/* Sum over the threads of a block (a multiple of 32, at most 1024), given to all of them; always in the same order. */
template <class T> INV_DEVICE T inv_block_sum(T v)
{
    INV_SHARED(T, part, [32]);
    for (int lane = 16; lane > 0; lane /= 2) v += __shfl_xor_sync(0xffffffffu, v, lane);
    if (threadIdx.x % 32 == 0) part[threadIdx.x / 32] = v;
    __syncthreads();
    T sum = 0;
    for (unsigned w = 0; w < blockDim.x / 32; w++) sum += part[w];
    __syncthreads();
    return sum;
}

/* Sum over `h` neighbouring threads, a power of two up to 32, or the whole block; given to all of them. */
INV_DEVICE double inv_row_sum(double v, int h)
{
    if (h > 32) return inv_block_sum(v);
    for (int lane = h / 2; lane > 0; lane /= 2) v += __shfl_xor_sync(0xffffffffu, v, lane);
    return v;
}

/* Whether this block is the last of its launch to come by: then it sees what all of them have written before, read as
 * volatile. All threads of a block ask together. turn: 0 before the launch, and after it. */
INV_DEVICE bool inv_last_block(unsigned *turn)
{
    INV_SHARED(unsigned, ticket, [1]);
    __threadfence(); /* what this thread has written goes before the ticket is taken */
    __syncthreads();
    if (threadIdx.x == 0) ticket[0] = atomicInc(turn, gridDim.x - 1);
    __syncthreads();
    __threadfence();
    return ticket[0] == gridDim.x - 1;
}

/* The largest over the threads of a block; NaN if any is NaN. */
template <class T> INV_DEVICE T inv_block_max(T v)
{
    INV_SHARED(T, part, [32]);
    for (int lane = 16; lane > 0; lane /= 2) {
        T other = __shfl_xor_sync(0xffffffffu, v, lane);
        v = other > v || other != other ? other : v;
    }
    if (threadIdx.x % 32 == 0) part[threadIdx.x / 32] = v;
    __syncthreads();
    T most = part[0];
    for (unsigned w = 1; w < blockDim.x / 32; w++) most = part[w] > most || part[w] != part[w] ? part[w] : most;
    __syncthreads();
    return most;
}

#endif
