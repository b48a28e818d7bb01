/* SPDX-License-Identifier: Apache-2.0
 * What cuBLASLt (cuda_lt.c) and cuDNN (cuda_dnn.c) have in common behind the hooks of inv_gpu. Both are opened when
 * something of theirs is needed, which takes a tenth of a second and more. A way is chosen at the first call of a kind
 * (shapes, bytes of scratch memory, alignment) and kept, so that equal calls have equal bits, and later ones ask
 * nothing: those may be recorded in a CUDA graph. */
#ifndef INV_EXECUTOR_CUDA_KINDS_H
#define INV_EXECUTOR_CUDA_KINDS_H

#include <dlfcn.h>
#include <string.h>

#include "executor/device/cuda_libs.h"

struct inv_lt;
struct inv_dnn;
typedef struct inv_cuda_libs { /* gpu->library */
    inv_context *ctx;
    struct inv_lt *lt;
    struct inv_dnn *dnn;      /* NULL: not wanted, or not in this build */
    const char *convolutions; /* by what; NULL: there was none yet */
} inv_cuda_libs;

inv_status inv_lt_create(inv_cuda_libs *libs, inv_gpu *gpu);
int inv_lt_version(const inv_cuda_libs *libs); /* 0: not open */
void inv_lt_destroy(inv_cuda_libs *libs);
inv_status inv_dnn_create(inv_cuda_libs *libs, inv_gpu *gpu);
int inv_dnn_version(const inv_cuda_libs *libs);
void inv_dnn_destroy(inv_cuda_libs *libs);

/* --- what was chosen --- */

enum { INV_KIND_KEY = 28, INV_KIND_BUCKETS = 256 };
typedef struct inv_call_kind { /* begins what a library keeps for one kind of call */
    struct inv_call_kind *next;
    int64_t key[INV_KIND_KEY];
    bool chosen, usable;
} inv_call_kind;
typedef struct inv_kinds {
    inv_call_kind *bucket[INV_KIND_BUCKETS];
} inv_kinds;
/* That of a key, a new one of `size` bytes, zeros behind the key, if there is none; NULL: no memory. */
void *inv_kind_find(inv_context *ctx, inv_kinds *all, const int64_t key[INV_KIND_KEY], size_t size);
/* Frees all; `fini` first for each, unless NULL. */
void inv_kinds_free(inv_context *ctx, inv_kinds *all, void (*fini)(void *opaque, inv_call_kind *c), void *opaque);

/* --- calls --- */

/* What libraries multiply results by, and what is there before: float or double. */
typedef union inv_factor {
    float f32;
    double f64;
} inv_factor;
typedef struct inv_factors {
    inv_factor product, before;
} inv_factors;
static inline inv_factors inv_factors_of(inv_onto onto, inv_dtype t)
{
    const double product = onto == INV_TAKEN_FROM ? -1 : 1, before = onto == INV_INSTEAD ? 0 : 1;
    inv_factors by;
    if (t == INV_F64) by = (inv_factors){{.f64 = product}, {.f64 = before}};
    else by = (inv_factors){{.f32 = (float)product}, {.f32 = (float)before}};
    return by;
}

#define INV_WS_ALIGN ((uintptr_t)256) /* of scratch memory; the caller's is aligned to 64 */
/* The aligned part of scratch memory; its size does not depend on where it lies. */
static inline void *inv_ws_aligned(void *ws, size_t *nbytes)
{
    *nbytes = *nbytes > INV_WS_ALIGN ? *nbytes - INV_WS_ALIGN : 0;
    if (*nbytes == 0) return NULL;
    return (char *)ws + (INV_WS_ALIGN - (uintptr_t)ws % INV_WS_ALIGN) % INV_WS_ALIGN;
}

#define INV_TEXT_OF(x) #x
#define INV_SO_NAME(name, major) name ".so." INV_TEXT_OF(major)
#define INV_LOOK_UP(f)            \
    at = dlsym(file, #f);         \
    if (at == NULL) return false; \
    memcpy(&d->f, &at, sizeof at);

#define INV_MEMBER(f) __typeof__(f) *f;

#endif
