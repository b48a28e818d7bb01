/* SPDX-License-Identifier: Apache-2.0
 * INV_HD marks a function that host and device code share; plain C where no device compiler reads it. */
#ifndef INV_OPS_GPU_DEVICE_CODE_H
#define INV_OPS_GPU_DEVICE_CODE_H

#ifdef __CUDACC__
#define INV_HD static __host__ __device__ inline
#else
#define INV_HD static inline
#endif

#endif
