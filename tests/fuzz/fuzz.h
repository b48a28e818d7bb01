/* SPDX-License-Identifier: Apache-2.0
 * What the fuzz targets share: a context of limited memory, and the input as a file. */
#ifndef INV_TESTS_FUZZ_H
#define INV_TESTS_FUZZ_H

#define _GNU_SOURCE
#include <malloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "invonnx/invonnx.h"

enum { FUZZ_MEMORY = 64 << 20 };

/* One for all inputs. Refusing more than FUZZ_MEMORY bytes tests that as well; what is not given back is a finding. */
typedef struct fuzz_context {
    inv_context *ctx;
    size_t used, first; /* bytes; first: by the context alone */
    size_t fails;       /* the allocation from now on that fails, from 1 on; 0: none */
    volatile int stop;  /* as inv_context_options.stop */
} fuzz_context;

static void *fuzz_alloc(void *opaque, size_t nbytes)
{
    fuzz_context *f = opaque;
    if (f->used > FUZZ_MEMORY || nbytes > FUZZ_MEMORY - f->used) return NULL;
    if (f->fails && --f->fails == 0) return NULL;
    void *p = malloc(nbytes);
    if (p) f->used += malloc_usable_size(p);
    return p;
}

static void fuzz_free(void *opaque, void *p)
{
    if (p) ((fuzz_context *)opaque)->used -= malloc_usable_size(p);
    free(p);
}

static inline fuzz_context *fuzz_open(void)
{
    static fuzz_context f;
    if (!f.ctx) {
        const inv_allocator allocator = {fuzz_alloc, fuzz_free, &f};
        const inv_context_options options = {.size = sizeof options, .allocator = &allocator, .stop = &f.stop};
        if (inv_context_create(&options, &f.ctx) != INV_OK) abort();
        f.first = f.used;
    }
    inv_model *none;
    if (inv_model_load(f.ctx, "", &none) == INV_OK) abort(); /* its message stands for: none yet */
    return &f;
}

/* The context keeps its newest message. */
static inline void fuzz_close(const fuzz_context *f)
{
    enum { LONGEST_MESSAGE = 1 << 16 };
    if (f->used > f->first + LONGEST_MESSAGE) abort();
}

/* A refusal must say why. */
static inline bool fuzz_ok(const fuzz_context *f, inv_status s)
{
    const char *why = inv_context_message(f->ctx);
    if (s != INV_OK && (!*why || strcmp(why, "inv_model_load: no path given") == 0)) abort();
    return s == INV_OK;
}

/* A file of that content, without a name in any folder; close(*fd) when done. */
static inline bool fuzz_load(fuzz_context *f, const uint8_t *data, size_t size, int *fd, inv_model **model)
{
    char path[64];
    *fd = memfd_create("model", 0);
    if (*fd < 0 || write(*fd, data, size) != (ssize_t)size) abort();
    (void)snprintf(path, sizeof path, "/proc/self/fd/%d", *fd);
    *model = NULL;
    return fuzz_ok(f, inv_model_load(f->ctx, path, model));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#endif
