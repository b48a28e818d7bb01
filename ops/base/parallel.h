/* SPDX-License-Identifier: Apache-2.0
 * Threads and vector code: what the heavy kernels share. */
#ifndef INV_OPS_BASE_PARALLEL_H
#define INV_OPS_BASE_PARALLEL_H

#include <stdint.h>
#ifdef _OPENMP
#include <omp.h>
#endif

/* Compiles a function again for AVX2 and AVX-512, picked at load time. Contraction is off and nothing is reassociated,
 * so all give the same bits. Sanitizers start after the choice is made, hence not there. */
#if defined __x86_64__ && defined __GNUC__ && !defined __clang__ && !defined __SANITIZE_ADDRESS__ && \
    !defined __SANITIZE_THREAD__ && defined __OPTIMIZE__
#if __GNUC__ >= 12
#define INV_SIMD __attribute__((target_clones("arch=x86-64-v4", "avx2", "default")))
#else
#define INV_SIMD __attribute__((target_clones("avx2", "default")))
#endif
#else
#define INV_SIMD
#endif

/* Into its caller, and so compiled as often as that. */
#ifdef __GNUC__
#define INV_INLINE static inline __attribute__((always_inline))
#else
#define INV_INLINE static inline
#endif

/* The first bytes of what is read or written next, far from what is there now, which prefetchers of processors do not
 * know: asked for ahead of time. They find the rest. */
static inline void inv_ask_for(const void *p, int64_t nbytes)
{
#ifdef __GNUC__
    for (int64_t i = 0; i < nbytes && i < 4096; i += 64) __builtin_prefetch((const char *)p + i);
#else
    (void)p, (void)nbytes;
#endif
}

/* A loop over k < n that sums into eight accumulators, `lane` the one whose turn it is: the order of summation is
 * fixed, and the compiler can make vectors of it. */
#define INV_LANES(n, k, lane, ...)                          \
    do {                                                    \
        int64_t k##_from = 0;                               \
        for (; k##_from + 8 <= (n); k##_from += 8) {        \
            for (int lane = 0; lane < 8; lane++) {          \
                const int64_t k = k##_from + lane;          \
                __VA_ARGS__;                                \
            }                                               \
        }                                                   \
        for (int lane = 0; k##_from + lane < (n); lane++) { \
            const int64_t k = k##_from + lane;              \
            __VA_ARGS__;                                    \
        }                                                   \
    } while (0)

INV_INLINE double inv_join_lanes(const double a[8])
{
    return ((a[0] + a[1]) + (a[2] + a[3])) + ((a[4] + a[5]) + (a[6] + a[7]));
}

#define INV_MAX_LANES 8 /* threads that get scratch memory of their own */

/* Threads of the next parallel region; 1 inside of one. */
static inline int inv_all_threads(void)
{
#ifdef _OPENMP
    return omp_in_parallel() ? 1 : omp_get_max_threads();
#else
    return 1;
#endif
}

static inline int inv_threads(void)
{
    const int n = inv_all_threads();
    return n > INV_MAX_LANES ? INV_MAX_LANES : n;
}

static inline int inv_thread(void)
{
#ifdef _OPENMP
    return omp_get_thread_num();
#else
    return 0;
#endif
}

/* Libraries called by this thread start no threads from here on; what it returns undoes that. */
static inline int inv_take_threads(void)
{
#ifdef _OPENMP
    const int n = omp_get_max_threads();
    omp_set_num_threads(1);
    return n;
#else
    return 1;
#endif
}

static inline void inv_give_threads(int n)
{
#ifdef _OPENMP
    omp_set_num_threads(n);
#else
    (void)n;
#endif
}

static inline int64_t inv_min64(int64_t a, int64_t b) { return a < b ? a : b; }
static inline int64_t inv_max64(int64_t a, int64_t b) { return a > b ? a : b; }

#endif
