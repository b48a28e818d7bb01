/* SPDX-License-Identifier: Apache-2.0
 * An allocator that counts, and fails once. */
#ifndef INVONNX_COUNTING_H
#define INVONNX_COUNTING_H

#include <stdlib.h>

typedef struct failing_memory {
    size_t made, live, fail_at; /* fail_at 0: never */
} failing_memory;

static void *counted_alloc(void *opaque, size_t nbytes)
{
    failing_memory *c = opaque;
    if (++c->made == c->fail_at) return NULL;
    void *p = malloc(nbytes);
    c->live += p != NULL;
    return p;
}

static void counted_free(void *opaque, void *p)
{
    failing_memory *c = opaque;
    c->live -= p != NULL;
    free(p);
}

#endif
