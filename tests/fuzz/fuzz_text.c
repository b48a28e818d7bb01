/* SPDX-License-Identifier: Apache-2.0
 * Property: any bytes are either refused or parse to a graph that the checker accepts and whose print parses to the
 * same print. */
#include <stdlib.h>
#include <string.h>

#include "core/graph/op.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static char *printed(inv_context *ctx, const char *text)
{
    inv_graph *g = NULL;
    if (inv_graph_parse(ctx, text, &g) != INV_OK) return NULL;
    inv_str out;
    inv_str_init(&out, ctx);
    if (inv_graph_print(g, &out) != INV_OK || out.failed) abort();
    char *copy = strdup(out.s);
    inv_str_fini(&out);
    inv_graph_destroy(g);
    return copy;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static inv_context *ctx;
    if (!ctx && inv_context_create(NULL, &ctx) != INV_OK) abort();
    char *text = malloc(size + 1);
    if (!text) return 0;
    memcpy(text, data, size);
    text[size] = 0;
    char *once = printed(ctx, text), *twice = once ? printed(ctx, once) : NULL;
    if (once && (!twice || strcmp(once, twice) != 0)) abort();
    free(once);
    free(twice);
    free(text);
    return 0;
}
