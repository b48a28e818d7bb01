/* SPDX-License-Identifier: Apache-2.0
 * The libraries behind the hooks of inv_gpu, and what they have chosen. */
#include "executor/device/cuda_libs.h"

#include <stdlib.h>

#include "executor/device/cuda_kinds.h"

void *inv_kind_find(inv_context *ctx, inv_kinds *all, const int64_t key[INV_KIND_KEY], size_t size)
{
    const size_t nbytes = INV_KIND_KEY * sizeof *key;
    inv_call_kind **at = &all->bucket[inv_hash(key, nbytes, 0) % INV_KIND_BUCKETS];
    for (inv_call_kind *c = *at; c; c = c->next) {
        if (memcmp(c->key, key, nbytes) == 0) return c;
    }
    inv_call_kind *c = inv_alloc(ctx, size);
    if (c == NULL) return NULL;
    memcpy(c->key, key, nbytes);
    c->next = *at;
    return *at = c;
}

void inv_kinds_free(inv_context *ctx, inv_kinds *all, void (*fini)(void *opaque, inv_call_kind *c), void *opaque)
{
    for (size_t b = 0; b < INV_KIND_BUCKETS; b++) {
        for (inv_call_kind *c = all->bucket[b], *next; c; c = next) {
            next = c->next;
            if (fini) fini(opaque, c);
            inv_dealloc(ctx, c);
        }
        all->bucket[b] = NULL;
    }
}

inv_status inv_cuda_libs_open(inv_context *ctx, inv_gpu *gpu)
{
    inv_cuda_libs *libs = inv_alloc(ctx, sizeof *libs);
    if (libs == NULL) return INV_E_NOMEM;
    libs->ctx = ctx;
    libs->convolutions = "column matrices and cuBLASLt, as cuDNN is not in this build or turned off";
    gpu->library = libs;
    gpu->conv = NULL;
    const char *no = getenv("INVONNX_NO_CUDNN");
    INV_TRY(inv_lt_create(libs, gpu));
    return no && strcmp(no, "1") == 0 ? INV_OK : inv_dnn_create(libs, gpu);
}

void inv_cuda_libs_facts(const inv_gpu *gpu, inv_device_facts *out)
{
    const inv_cuda_libs *libs = gpu->library;
    out->convolutions = libs->convolutions;
    out->cublaslt = inv_lt_version(libs);
    out->cudnn = inv_dnn_version(libs);
}

void inv_cuda_libs_close(inv_context *ctx, inv_gpu *gpu)
{
    inv_cuda_libs *libs = gpu->library;
    if (libs == NULL) return;
    inv_dnn_destroy(libs);
    inv_lt_destroy(libs);
    inv_dealloc(ctx, libs);
    gpu->library = NULL;
    gpu->gemm = NULL;
    gpu->conv = NULL;
}
