/* SPDX-License-Identifier: Apache-2.0
 * Device `cpu`: host memory, kernels of the operator rows. Device `checked`: the same with memory poisoned by NaN
 * before it is written and after it is freed, and an error when freed memory was written to. */
#include <string.h>

#include "executor/executor.h"

typedef struct host_block {
    struct host_block *next;
    void *p;
    size_t nbytes;
} host_block;

typedef struct host {
    inv_context *ctx;
    size_t now, peak;
    host_block *blocks; /* handed out: an arena, for a moment two, and what views still look at */
} host;

static inv_status host_open(inv_context *ctx, int index, void **self)
{
    (void)index;
    host *h = inv_alloc(ctx, sizeof *h);
    *self = h;
    if (!h) return INV_E_NOMEM;
    h->ctx = ctx;
    return INV_OK;
}

static void host_free(void *self, void *p)
{
    host *h = self;
    host_block **at = &h->blocks;
    while (*at && (*at)->p != p) at = &(*at)->next;
    host_block *b = *at;
    if (!p || !b) return;
    *at = b->next;
    h->now -= b->nbytes;
    inv_free_huge(h->ctx, p, b->nbytes);
    inv_dealloc(h->ctx, b);
}

static void host_close(void *self)
{
    host *h = self;
    if (!h) return;
    while (h->blocks) host_free(h, h->blocks->p);
    inv_dealloc(h->ctx, h);
}

static inv_status host_alloc(void *self, size_t nbytes, void **out)
{
    host *h = self;
    *out = NULL;
    host_block *b = inv_alloc(h->ctx, sizeof *b);
    if (!b) return INV_E_NOMEM;
    void *p = inv_alloc_huge(h->ctx, nbytes ? nbytes : 1);
    if (!p) {
        inv_dealloc(h->ctx, b);
        return inv_fail(h->ctx, INV_E_NOMEM, "out of memory: the arena needs %zu bytes", nbytes);
    }
    *b = (host_block){h->blocks, p, nbytes};
    h->blocks = b;
    h->now += nbytes;
    if (h->now > h->peak) h->peak = h->now;
    *out = p;
    return INV_OK;
}

static inv_status host_copy(void *self, void *dst, const void *src, size_t nbytes)
{
    (void)self;
    if (nbytes) memcpy(dst, src, nbytes);
    return INV_OK;
}

static inv_status host_run(void *self, int queue, const inv_node *node, const inv_call *call)
{
    (void)queue;
    return inv_run_on_host(((host *)self)->ctx, node, call);
}

static size_t host_peak(void *self) { return ((host *)self)->peak; }

const inv_device inv_device_cpu = {.name = "cpu",
                                   .host = true,
                                   .open = host_open,
                                   .close = host_close,
                                   .alloc = host_alloc,
                                   .free = host_free,
                                   .upload = host_copy,
                                   .download = host_copy,
                                   .copy = host_copy,
                                   .run = host_run,
                                   .peak = host_peak};

static inv_status checked_alloc(void *self, size_t nbytes, void **out)
{
    INV_TRY(host_alloc(self, nbytes, out));
    memset(*out, INV_POISON, nbytes);
    return INV_OK;
}

static inv_status checked_begin(void *self, int queue, void *p, size_t nbytes)
{
    (void)queue;
    host *h = self;
    size_t i = inv_first_unpoisoned(p, nbytes);
    INV_CHECK(i == nbytes, h->ctx, INV_E_INTERNAL,
              "memory was written after it was freed (byte %zu of a buffer of %zu)", i, nbytes);
    return INV_OK;
}

static inv_status checked_end(void *self, int queue, void *p, size_t nbytes)
{
    (void)self, (void)queue;
    memset(p, INV_POISON, nbytes);
    return INV_OK;
}

const inv_device inv_device_checked = {.name = "checked",
                                       .host = true,
                                       .open = host_open,
                                       .close = host_close,
                                       .alloc = checked_alloc,
                                       .free = host_free,
                                       .upload = host_copy,
                                       .download = host_copy,
                                       .copy = host_copy,
                                       .run = host_run,
                                       .begin = checked_begin,
                                       .end = checked_end,
                                       .peak = host_peak};
