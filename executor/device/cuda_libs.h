/* SPDX-License-Identifier: Apache-2.0
 * Libraries of device `cuda`: matrix products by cuBLASLt; convolutions by cuDNN where it is installed, which is looked
 * for at run time (INVONNX_NO_CUDNN=1 turns it off). Float32 is rounded to less only where gpu->precision says so,
 * results depend on shapes only, and scratch memory is the caller's. */
#ifndef INV_EXECUTOR_CUDA_LIBS_H
#define INV_EXECUTOR_CUDA_LIBS_H

#include "core/base/mem.h"
#include "executor/executor.h"
#include "ops/gpu/gpu.h"

/* Sets gpu->library, gemm and conv; the stream is set. What was opened before an error is closed again.
 * @return INV_OK; INV_E_NOMEM, INV_E_DEVICE */
inv_status inv_cuda_libs_open(inv_context *ctx, inv_gpu *gpu);
/* What computes convolutions, and the libraries' versions. */
void inv_cuda_libs_facts(const inv_gpu *gpu, inv_device_facts *out);
void inv_cuda_libs_close(inv_context *ctx, inv_gpu *gpu); /* library NULL is fine */

/* cuda_nccl.c. Joins the devices of all ranks; it is a call of all. @return INV_OK; INV_E_DEVICE, INV_E_RANKS,
 * INV_E_NOMEM */
inv_status inv_nccl_open(inv_context *ctx, inv_world *world, inv_gpu_ranks **out);
/* Waits until `look`, a query of the CUDA runtime, finds no work left, and until what was queued of exchanges is done,
 * no longer than ranks wait; INV_E_RANKS. ranks NULL: does nothing. */
inv_status inv_nccl_wait(inv_gpu_ranks *ranks, int (*look)(void *of), void *of);
void inv_nccl_close(inv_gpu_ranks *ranks);

#endif
