/* SPDX-License-Identifier: Apache-2.0
 * A strict stand-in for a machine with two GPUs: CUDA's runtime (runtime.c, memory.c), and the halves of cuBLASLt
 * (lt.c) and cuDNN (dnn.c) that run something, over NVIDIA's own functions for descriptors. It is linked with the
 * objects of a CUDA build, whose kernels are those compiled for the host. What is queued is done later, or sooner, in a
 * random order that streams, events and graphs allow. What the real ones refuse is refused with their status; what they
 * leave undefined ends the program with status 96 and a line on stderr.
 *
 * Environment: STANDIN_SEED orders, STANDIN_MEMORY bytes of a device, STANDIN_FAIL=N lets the device fail for good at
 * the N-th call, STANDIN_FAIL=NAME:N lets the N-th call of one function fail, STANDIN_CALLS=1 says at the end how many
 * calls there were, STANDIN_NO_CUDNN=1 and STANDIN_NO_NCCL=1 take these away, STANDIN_PRECISION=tf32 or bf16 is what
 * float32 is multiplied in (nothing is rounded). */
#ifndef STANDIN_H
#define STANDIN_H

#include <cuda_runtime_api.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum { STANDIN_DEVICES = 2, STANDIN_UNDEFINED = 96, STANDIN_HOST_TOUCHED = 97, STANDIN_LEAKED = 98 };

void standin_undefined(const char *format, ...) __attribute__((format(printf, 1, 2), noreturn));

/* Random below n. */
uint64_t standin_random(uint64_t n);
uint64_t standin_hash(const void *p, size_t nbytes); /* of the seed, too */

/* Called first by every function that there is: whether this one is to fail. */
bool standin_enter(const char *name);
extern cudaError_t standin_sticky; /* what the device failed with for good */

/* Queues work: run(arg) later, or a node of a graph. arg, nbytes of it, is copied. `kind` tells what has to be loaded
 * outside of a capture first. */
cudaError_t standin_queue(cudaStream_t stream, uint64_t kind, void (*run)(void *arg), const void *arg, size_t nbytes);

/* The same, of what can wait: it is done once ready(arg) says so, which is asked in vain as often as may be. */
cudaError_t standin_queue_when(cudaStream_t stream, uint64_t kind, bool (*ready)(void *arg), void (*run)(void *arg),
                               const void *arg, size_t nbytes);
/* In what stands for dlsym: returns the function f for the name. */
#define OURS(text, f)                                                                          \
    if (strcmp(name, text) == 0) {                                                             \
        __typeof__(&f) at = f;                                                                 \
        void *out;                                                                             \
        _Static_assert(sizeof at == sizeof out, "functions and objects have addresses alike"); \
        memcpy(&out, &at, sizeof out);                                                         \
        return out;                                                                            \
    }

/* nccl.c: what dlopen and dlsym of the program find of it. */
void *standin_nccl_open(void);
void *standin_nccl_find(const void *file, const char *name);

/* What is done with the device's memory is done between these. A fault in it is the device's. */
void standin_protect(bool open);
bool standin_on_device(const void *p, size_t nbytes, int device); /* all of it in one block */
bool standin_any_device(const void *p);
bool standin_is_pinned(const void *p, size_t nbytes);
bool standin_is_host(const void *p); /* mapped, and no device's */
void standin_check_blocks(void);     /* nothing was written behind them */
size_t standin_allocated(int device);
int standin_device(void); /* the calling thread's */
int standin_stream_device(cudaStream_t s);
void standin_check_stream(cudaStream_t s); /* there is one, and it is not the legacy stream */
bool standin_capturing(void); /* this thread is in a capture that forbids what may wait; it is broken by this */
void standin_finish(cudaStream_t s);
bool standin_in_capture(cudaStream_t s);
void standin_break_capture(cudaStream_t s);
extern size_t standin_leaks;
/* Of a library's call: all of [p, p + nbytes) is memory of the stream's device. */
void standin_needs(const char *what, const void *p, size_t nbytes, cudaStream_t stream);
void standin_host_scalar(const char *what, const void *p);
const char *standin_precision(void); /* full, tf32, bf16 */

#endif
