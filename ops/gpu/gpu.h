/* SPDX-License-Identifier: Apache-2.0
 * Between the operators' C code and the device code in the .cu files.
 *
 * A .cu file is compiled twice: by nvcc (names inv_cuda_...) and as C++ for the host (names inv_sim_...), where device
 * `sim` and the tests run it. The C code of an operator sets up a call, then starts the kernels through a launcher that
 * both compilations define. Launchers return at once; what they started reads and writes device memory later, so C code
 * on this path must never look into tensors, nor into call->step (which is NULL), only at shapes and attributes. */
#ifndef INV_OPS_GPU_GPU_H
#define INV_OPS_GPU_GPU_H

#include "core/base/shape.h"
#include "ops/gpu/device_code.h"

/* What changes from step to step, in device memory: kernels read it, so that a captured graph stays valid. */
typedef struct inv_gpu_step {
    uint64_t seed, step, micro, first_sample, mixed;
    int64_t batch;
    bool absent;
    double lr, group_lr[INV_MOST_GROUPS], kept, added; /* as in inv_step */
    double own, weight; /* of the gradients so far, and of this batch's: what kept and added come from */
    uint64_t refused;   /* the step must not be committed (judge): what writes parameters and states does nothing */
} inv_gpu_step;

/* What becomes of the numbers that are in the result's place. */
typedef enum inv_onto { INV_TAKEN_FROM = -1, INV_INSTEAD, INV_ADDED_TO } inv_onto;

/* Row-major c[i] = op(a[i]) op(b[i]), i < batch, or c[i] plus or less that: op(a) is m x k, op(b) k x n. float or
 * double. With k = 0 the product is zeros; with m, n or batch 0 there is nothing to do. */
typedef struct inv_gemm {
    inv_dtype dtype;
    bool ta, tb;
    inv_onto onto;
    int64_t m, n, k, lda, ldb, ldc;
    int64_t batch, step_a, step_b, step_c; /* elements between neighbours of the batch; 0 repeats an operand */
    const void *a, *b;
    void *c;
} inv_gemm;

struct inv_conv;
struct inv_node;
typedef enum inv_conv_part { INV_CONV_FORWARD, INV_CONV_GRAD_X, INV_CONV_GRAD_W } inv_conv_part;

struct inv_gpu;

/* inv_reduction (core/program/exchange.h) in device memory. */
typedef struct inv_gpu_reduction {
    const char *what;
    unsigned char *bucket, *parts;
    size_t chunk_nbytes;
    const double *weight; /* per rank */
    inv_dtype dtype;
    void (*fold)(const struct inv_gpu *gpu, const struct inv_gpu_reduction *r, void *out); /* of all parts */
} inv_gpu_reduction;

/* The ranks that train together on devices: what inv_world_calls has, in device memory and behind what is on the
 * compute queue. A gather is done before what is queued behind it, a reduction only before what is behind `reduced`. */
typedef struct inv_gpu_ranks {
    int rank, size;
    inv_status (*gather)(const struct inv_gpu *gpu, const char *what, const void *mine, size_t nbytes, void *all);
    inv_status (*reduce)(const struct inv_gpu *gpu, const inv_gpu_reduction *r);
    inv_status (*reduced)(const struct inv_gpu *gpu, const char *what, const void *bucket);
} inv_gpu_ranks;

typedef struct inv_gpu {
    inv_gpu_ranks *ranks;    /* NULL: one process by itself */
    void *stream;            /* cudaStream_t */
    bool emulated;           /* kernels are those compiled for the host */
    inv_gpu_step *step;      /* device memory */
    double *drift;           /* device memory: guard verdicts by slot */
    uint64_t *fault;         /* device memory: what names the node that met data it cannot use; 0: none */
    unsigned *turn;          /* device memory: for inv_last_block (device.cuh) of one kernel after the other */
    inv_precision precision; /* of products and convolutions in float32 */
    void *library;           /* handles of the backend */
    inv_status (*gemm)(const struct inv_gpu *gpu, const inv_gemm *g, void *ws, size_t ws_nbytes);
    /* Convolution by a library; *done stays false where it has none for this call. NULL: no library. Operands as in
     * ONNX Conv: FORWARD x, filter -> y; GRAD_X gy, filter -> gx; GRAD_W x, gy -> gfilter. */
    inv_status (*conv)(const struct inv_gpu *gpu, inv_conv_part part, const struct inv_conv *c, inv_dtype t,
                       const void *first, const void *second, inv_onto onto, void *out, void *ws, size_t ws_nbytes,
                       bool *done);
} inv_gpu;

#ifdef __cplusplus
extern "C" {
#endif
/* gemm_emulated.c: kernels and libraries of the emulation, on `step` and `drift` that the caller has set. */
void inv_gpu_emulate(inv_gpu *gpu);
/* Called around everything that emulated kernels and libraries do with device memory. NULL: nobody minds. */
extern void (*inv_emu_guard)(bool begin);
/* A kernel as it was started. */
typedef struct inv_emu_kernel {
    int64_t blocks;
    int threads;
    bool fibers;                    /* its threads wait for each other */
    void (*body)(const void *call); /* one thread */
    const void *call;               /* the kernel's arguments, nbytes */
    size_t nbytes;
    const void *kernel;
} inv_emu_kernel;
void inv_emu_run(const inv_emu_kernel *k);
/* Takes what is started on a stream of a device that is not emulated, to run it later; for tests/gpu. */
extern void (*inv_emu_queue)(void *stream, const inv_emu_kernel *k);
/* The order of blocks and threads; 0: rising. */
extern uint64_t inv_emu_seed;
/* After a jump out of a kernel: its threads are forgotten. */
void inv_emu_abandon(void);
/* Whether a kernel of this thread could not be run since the last time this was asked: no memory for its threads'
 * stacks, or they did not all arrive at the same barriers. */
bool inv_emu_failed(void);
#ifdef __cplusplus
}
#endif

/* Declares a launcher. In the .cu file: extern "C" void INV_GPU_NAME(name)(...). In C: INV_GPU(c->gpu, name, ...). */
#define INV_LAUNCHER(name, ...)                            \
    void inv_cuda_##name(const inv_gpu *gpu, __VA_ARGS__); \
    void inv_sim_##name(const inv_gpu *gpu, __VA_ARGS__)
#ifdef INV_HAVE_CUDA
#define INV_GPU(gpu, name, ...) ((gpu)->emulated ? inv_sim_##name : inv_cuda_##name)(gpu, __VA_ARGS__)
#else
#define INV_GPU(gpu, name, ...) inv_sim_##name(gpu, __VA_ARGS__)
#endif

#endif
