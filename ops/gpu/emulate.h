/* SPDX-License-Identifier: Apache-2.0
 * CUDA's vocabulary for a C++ compiler of the host, as far as the .cu files use it. Blocks run one after the other.
 * Threads of a block are a loop, or, where a kernel has barriers (inv_start_sync), fibers that change places at each
 * barrier. Races between blocks are not seen. */
#ifndef INV_OPS_GPU_EMULATE_H
#define INV_OPS_GPU_EMULATE_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "ops/gpu/gpu.h"

struct inv_dim3 {
    unsigned x, y, z;
};
extern thread_local inv_dim3 inv_emu_thread, inv_emu_block, inv_emu_threads, inv_emu_blocks;
#define threadIdx inv_emu_thread
#define blockIdx inv_emu_block
#define blockDim inv_emu_threads
#define gridDim inv_emu_blocks

/* Runs body(arg) once per thread of the block, as fibers. */
void inv_emu_fibers(int threads, void (*body)(void *arg), void *arg);
/* All threads of the block (of the warp) arrive before one goes on. */
void inv_emu_barrier(void);
/* Swaps nbytes (at most 8) with the thread of this warp whose lane differs by `mask`. */
void inv_emu_shuffle_xor(const void *mine, void *other, size_t nbytes, int mask);

static inline void __syncthreads() { inv_emu_barrier(); }
template <class T> static inline T __shfl_xor_sync(unsigned, T v, int mask)
{
    static_assert(sizeof(T) <= 8, "at most 8 bytes");
    T other;
    inv_emu_shuffle_xor(&v, &other, sizeof v, mask);
    return other;
}
/* One block at a time and no preemption: plain arithmetic is atomic. */
template <class T> static inline T atomicAdd(T *at, T v)
{
    T old = *at;
    *at = old + v;
    return old;
}

static inline void inv_emu_grid(int64_t blocks, int threads, bool begin)
{
    if (inv_emu_guard) inv_emu_guard(begin);
    blockDim = {(unsigned)threads, 1, 1};
    gridDim = {(unsigned)blocks, 1, 1};
}

template <class... P, class... A>
static inline void inv_start(const inv_gpu *, void (*kernel)(P...), int64_t blocks, int threads, A... args)
{
    inv_emu_grid(blocks, threads, true);
    for (unsigned b = 0; b < (unsigned)blocks; b++) {
        blockIdx = {b, 0, 0};
        for (unsigned t = 0; t < (unsigned)threads; t++) {
            threadIdx = {t, 0, 0};
            kernel(args...);
        }
    }
    inv_emu_grid(blocks, threads, false);
}

template <class F> static void inv_emu_body(void *f) { (*static_cast<F *>(f))(); }
template <class... P, class... A>
static inline void inv_start_sync(const inv_gpu *, void (*kernel)(P...), int64_t blocks, int threads, A... args)
{
    inv_emu_grid(blocks, threads, true);
    auto body = [=] { kernel(args...); };
    for (unsigned b = 0; b < (unsigned)blocks; b++) {
        blockIdx = {b, 0, 0};
        inv_emu_fibers(threads, inv_emu_body<decltype(body)>, &body);
    }
    inv_emu_grid(blocks, threads, false);
}

#endif
