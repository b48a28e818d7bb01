/* SPDX-License-Identifier: Apache-2.0
 * INV_HD marks a function that host and device code share; plain C where no device compiler reads it. */
#ifndef INV_OPS_GPU_DEVICE_CODE_H
#define INV_OPS_GPU_DEVICE_CODE_H

#ifdef __CUDACC__
#define INV_HD static __host__ __device__ inline
#else
#define INV_HD static inline
#endif

/* The one place where float and double choose their code. INV_REAL calls x_f64(...) or x_f32(...), which
 * ops/base/both_reals.inc makes of one text; INV_REAL_AS runs what follows with T standing for the type. */
#define INV_REAL(dtype, x, ...) ((dtype) == INV_F64 ? x##_f64(__VA_ARGS__) : x##_f32(__VA_ARGS__))
#define INV_REAL_AS(dtype, T, ...) \
    do {                           \
        if ((dtype) == INV_F64) {  \
            typedef double T;      \
            __VA_ARGS__;           \
        } else {                   \
            typedef float T;       \
            __VA_ARGS__;           \
        }                          \
    } while (0)

#endif
