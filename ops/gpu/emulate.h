/* SPDX-License-Identifier: Apache-2.0
 * CUDA's vocabulary for a C++ compiler of the host, as far as the .cu files use it. Blocks run one after the other.
 * Threads of a block are a loop, or, where a kernel has barriers (inv_start_sync), fibers that change places where they
 * wait for each other: at a barrier for the block, at a shuffle for the warp. Blocks and threads come in rising order,
 * or in a random one (inv_emu_seed). Races between blocks are not seen. */
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

/* All threads of the block arrive before one goes on. */
void inv_emu_barrier(void);
/* Swaps nbytes (at most 8) with the thread of this warp whose lane differs by `mask`; the warp arrives before one goes
 * on. */
void inv_emu_shuffle_xor(const void *mine, void *other, size_t nbytes, int mask);
/* Shared memory of the block at hand: poisoned where its first thread comes by. */
void inv_emu_shared(void *p, size_t nbytes);

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

static inline unsigned atomicInc(unsigned *at, unsigned most)
{
    unsigned old = *at;
    *at = old >= most ? 0 : old + 1;
    return old;
}
static inline void __threadfence() {}

template <class F> static void inv_emu_body(const void *f) { (*static_cast<const F *>(f))(); }
template <class... P, class... A>
static inline void inv_emu_launch(const inv_gpu *gpu, bool fibers, void (*kernel)(P...), int64_t blocks, int threads,
                                  A... args)
{
    if (blocks <= 0) return;
    auto call = [=] { kernel(args...); };
#if defined __has_builtin
#if __has_builtin(__builtin_clear_padding)
    __builtin_clear_padding(&call); /* who looks through the arguments sees nothing else */
#endif
#endif
    const inv_emu_kernel k = {blocks, threads,     fibers,        inv_emu_body<decltype(call)>,
                              &call,  sizeof call, (void *)kernel};
    if (gpu->emulated) inv_emu_run(&k);
    else inv_emu_queue(gpu->stream, &k);
}

template <class... P, class... A>
static inline void inv_start(const inv_gpu *gpu, void (*kernel)(P...), int64_t blocks, int threads, A... args)
{
    inv_emu_launch(gpu, false, kernel, blocks, threads, args...);
}
template <class... P, class... A>
static inline void inv_start_sync(const inv_gpu *gpu, void (*kernel)(P...), int64_t blocks, int threads, A... args)
{
    inv_emu_launch(gpu, true, kernel, blocks, threads, args...);
}

#endif
