/* SPDX-License-Identifier: Apache-2.0
 * Property: any file that imports compiles or is refused with a message, within the memory that it is given. */
#define _GNU_SOURCE
#include <malloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "invonnx/invonnx.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { MOST = 64 << 20 };

static void *limited_alloc(void *opaque, size_t nbytes)
{
    size_t *used = opaque;
    if (*used > MOST || nbytes > MOST - *used) return NULL;
    void *p = malloc(nbytes);
    if (p) *used += malloc_usable_size(p);
    return p;
}

static void limited_free(void *opaque, void *p)
{
    if (p) *(size_t *)opaque -= malloc_usable_size(p);
    free(p);
}

static void compile(inv_context *ctx, inv_model *model)
{
    inv_session *session = NULL;
    inv_session_options o = {.size = sizeof o, .purpose = INV_FOR_RUN, .plan_only = 1};
    if (inv_session_create(model, &o, &session) == INV_OK)
        inv_session_destroy(session);
    else if (!*inv_context_message(ctx))
        abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    size_t used = 0;
    const inv_allocator allocator = {limited_alloc, limited_free, &used};
    const inv_context_options options = {.size = sizeof options, .allocator = &allocator};
    inv_context *ctx = NULL;
    inv_model *model = NULL;
    if (inv_context_create(&options, &ctx) != INV_OK) abort();
    int fd = memfd_create("model", 0);
    if (fd < 0 || write(fd, data, size) != (ssize_t)size) abort();
    char path[64];
    (void)snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    if (inv_model_load(ctx, path, &model) == INV_OK) compile(ctx, model);
    inv_model_destroy(model);
    inv_context_destroy(ctx);
    (void)close(fd);
    if (used) abort();
    return 0;
}
