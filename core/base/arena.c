/* SPDX-License-Identifier: Apache-2.0
 * Arenas, and arrays that grow in them (mem.h). */
#include <string.h>

#include "core/base/mem.h"

#define BLOCK_MIN ((size_t)4096)
#define BLOCK_MAX ((size_t)1 << 20)

typedef struct inv_arena_block {
    struct inv_arena_block *next;
    size_t used, cap;
    bool alone; /* one allocation is all that it has */
    bool left;  /* nobody reads that any more, from inv_arena_tidy on */
} inv_arena_block;

void inv_arena_init(inv_arena *a, inv_context *ctx)
{
    a->ctx = ctx;
    a->head = NULL;
    a->failed = false;
}

void inv_arena_fini(inv_arena *a)
{
    for (inv_arena_block *b = a->head; b;) {
        inv_arena_block *next = b->next;
        inv_dealloc(a->ctx, b);
        b = next;
    }
    a->head = NULL;
}

/* What points to the block that has p as its only allocation; NULL: none has. */
static inv_arena_block **block_of(inv_arena *a, const void *p)
{
    for (inv_arena_block **at = &a->head; *at; at = &(*at)->next) {
        const uintptr_t first = (uintptr_t)(*at + 1), x = (uintptr_t)p;
        if ((*at)->alone && x >= first && x - first < (*at)->cap) return at;
    }
    return NULL;
}

static void free_block(inv_arena *a, inv_arena_block **at)
{
    inv_arena_block *b = *at;
    *at = b->next;
    inv_dealloc(a->ctx, b);
}

bool inv_arena_drop(inv_arena *a, const void *p)
{
    inv_arena_block **at = block_of(a, p);
    if (at) free_block(a, at);
    return at != NULL;
}

void inv_arena_leave(inv_arena *a, const void *p)
{
    inv_arena_block **at = block_of(a, p);
    if (at) (*at)->left = true;
}

void inv_arena_tidy(inv_arena *a)
{
    for (inv_arena_block **at = &a->head; *at;) {
        if ((*at)->left) free_block(a, at);
        else at = &(*at)->next;
    }
}

static inv_arena_block *new_block(inv_arena *a, size_t cap)
{
    size_t total;
    if (!inv_add_size(cap, sizeof(inv_arena_block), &total)) {
        (void)inv_fail(a->ctx, INV_E_NOMEM, "out of memory: %zu bytes wanted", cap);
        return NULL;
    }
    inv_arena_block *b = inv_alloc(a->ctx, total);
    if (b) b->cap = cap;
    return b;
}

void *inv_arena_alloc(inv_arena *a, size_t nbytes)
{
    if (nbytes == 0) nbytes = 1;
    if (nbytes > PTRDIFF_MAX) {
        (void)inv_fail(a->ctx, INV_E_NOMEM, "out of memory: %zu bytes wanted", nbytes);
        a->failed = true;
        return NULL;
    }
    nbytes = (nbytes + 15) & ~(size_t)15;
    inv_arena_block *b = a->head;
    if (!b || b->cap - b->used < nbytes) {
        size_t cap = b ? b->cap * 2 : BLOCK_MIN;
        if (cap > BLOCK_MAX) cap = BLOCK_MAX;
        bool alone = b && nbytes >= cap / 4; /* a block of its own behind the head keeps the head's rest usable */
        inv_arena_block *fresh = new_block(a, alone || nbytes > cap ? nbytes : cap);
        if (!fresh) {
            a->failed = true;
            return NULL;
        }
        if (alone) {
            fresh->alone = true;
            fresh->next = b->next;
            b->next = fresh;
        } else {
            fresh->next = b;
            a->head = fresh;
        }
        b = fresh;
    }
    char *p = (char *)(b + 1) + b->used;
    b->used += nbytes;
    return p;
}

void *inv_arena_array(inv_arena *a, size_t n, size_t size)
{
    size_t nbytes;
    if (!inv_mul_size(n, size, &nbytes)) {
        (void)inv_fail(a->ctx, INV_E_NOMEM, "out of memory: %zu elements of %zu bytes wanted", n, size);
        a->failed = true;
        return NULL;
    }
    return inv_arena_alloc(a, nbytes);
}

char *inv_arena_strndup(inv_arena *a, const char *s, size_t n)
{
    char *p = n < SIZE_MAX ? inv_arena_alloc(a, n + 1) : NULL;
    if (p && n) memcpy(p, s, n);
    return p;
}

void *inv_arena_copy(inv_arena *a, const void *p, size_t nbytes)
{
    void *copy = inv_arena_alloc(a, nbytes);
    if (copy && nbytes) memcpy(copy, p, nbytes);
    return copy;
}

char *inv_arena_strdup(inv_arena *a, const char *s) { return inv_arena_strndup(a, s, strlen(s)); }

bool inv_vec_grow(inv_arena *a, void **at, size_t *cap, size_t n, size_t size)
{
    size_t want = *cap ? *cap : 8;
    while (want < n) {
        if (want > SIZE_MAX / 2) {
            want = n;
            break;
        }
        want *= 2;
    }
    if (want == *cap) return true;
    void *fresh = inv_arena_array(a, want, size);
    if (!fresh) return false;
    /* `at` is a pointer of another type: its bytes are read and written, not the object */
    void *old;
    memcpy(&old, at, sizeof old);
    if (old && *cap) memcpy(fresh, old, *cap * size);
    memcpy(at, &fresh, sizeof fresh);
    *cap = want;
    return true;
}
