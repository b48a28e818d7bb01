/* SPDX-License-Identifier: Apache-2.0
 * Property: any bytes are either refused with a message or import to a graph that can be inspected. */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "invonnx/invonnx.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static inv_context *ctx;
    if (!ctx && inv_context_create(NULL, &ctx) != INV_OK) abort();
    int fd = memfd_create("model", 0);
    if (fd < 0 || write(fd, data, size) != (ssize_t)size) abort();
    char path[64];
    (void)snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    inv_model *model = NULL;
    if (inv_model_load(ctx, path, &model) == INV_OK) {
        char *json = NULL;
        if (inv_model_inspect(model, &json) == INV_OK) inv_free(ctx, json);
        inv_model_destroy(model);
    } else if (!*inv_context_message(ctx)) {
        abort();
    }
    (void)close(fd);
    return 0;
}
