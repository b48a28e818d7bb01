/* SPDX-License-Identifier: Apache-2.0
 * Memory of the stand-in's devices: mapped for kernels and copies alone, poisoned, with a red zone and an unmapped page
 * behind it; nothing that frees it waits. Pinned memory is poisoned, too. */
#define _DEFAULT_SOURCE
#include <stdio.h>
#include <sys/mman.h>
#include <unistd.h>

#include "standin.h"

enum { POISON = 0xff, RED = 0xa5, RED_BYTES = 64, MOST = 64, PAGE = 4096 };

typedef struct block {
    unsigned char *p;
    size_t nbytes, mapped;
    int device; /* -1: pinned memory of the host */
} block;
static block blocks[MOST];

static const block *holds(const void *p, size_t nbytes)
{
    for (const block *b = blocks; b < blocks + MOST; b++)
        if (b->p && (const unsigned char *)p >= b->p && (const unsigned char *)p + nbytes <= b->p + b->nbytes) return b;
    return NULL;
}

bool standin_on_device(const void *p, size_t nbytes, int device)
{
    const block *b = holds(p, nbytes);
    return b && b->device == device;
}

bool standin_any_device(const void *p)
{
    const block *b = holds(p, 0);
    return b && b->device >= 0;
}

bool standin_is_pinned(const void *p, size_t nbytes)
{
    const block *b = holds(p, nbytes);
    return b && b->device < 0;
}

bool standin_is_host(const void *p)
{
    unsigned char there;
    const uintptr_t at = (uintptr_t)p;
    if (at < PAGE * 16 || at >> 47 || standin_any_device(p)) return false;
    return mincore((void *)(at / PAGE * PAGE), 1, &there) == 0;
}

/* It is closed at random times only, since that takes long. */
void standin_protect(bool open)
{
    static bool is_open;
    if (open == is_open || (!open && standin_random(16))) return;
    is_open = open;
    for (const block *b = blocks; b < blocks + MOST; b++)
        if (b->p && b->device >= 0) (void)mprotect(b->p, b->mapped, open ? PROT_READ | PROT_WRITE : PROT_NONE);
}

void standin_check_blocks(void)
{
    standin_protect(true);
    for (const block *b = blocks; b < blocks + MOST; b++)
        for (size_t i = b->nbytes; b->p && i < b->mapped; i++)
            if (b->p[i] != RED)
                standin_undefined("byte %zu behind a block of %zu was written", i - b->nbytes, b->nbytes);
    standin_protect(false);
}

size_t standin_allocated(int device)
{
    size_t sum = 0;
    for (const block *b = blocks; b < blocks + MOST; b++)
        if (b->p && b->device == device) sum += b->nbytes;
    return sum;
}

static cudaError_t map(void **out, size_t nbytes, int device)
{
    block *b = blocks;
    *out = NULL;
    while (b < blocks + MOST && b->p) b++;
    if (b == blocks + MOST) standin_undefined("more than %d blocks of memory", MOST);
    const size_t mapped = (nbytes + RED_BYTES + PAGE - 1) / PAGE * PAGE;
    unsigned char *p = mmap(NULL, mapped + PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED) return cudaErrorMemoryAllocation;
    (void)mprotect(p + mapped, PAGE, PROT_NONE);
    memset(p, POISON, nbytes);
    memset(p + nbytes, RED, mapped - nbytes);
    *b = (block){p, nbytes, mapped, device};
    standin_protect(true);
    standin_protect(false);
    *out = p;
    standin_leaks++;
    return cudaSuccess;
}

static cudaError_t unmap(void *p, bool device)
{
    if (!p) return cudaSuccess;
    for (block *b = blocks; b < blocks + MOST; b++) {
        if (b->p != p || (b->device >= 0) != device) continue;
        standin_check_blocks();
        (void)mprotect(p, b->mapped, PROT_NONE); /* stays reserved, so that late users are found */
        (void)madvise(p, b->mapped, MADV_DONTNEED);
        *b = (block){0};
        standin_leaks--;
        return standin_sticky;
    }
    standin_undefined("%s of what was not allocated", device ? "cudaFree" : "cudaFreeHost");
}

#define ENTER                                                                               \
    if (standin_enter(__func__)) return standin_sticky ? standin_sticky : cudaErrorUnknown; \
    if (standin_capturing()) return cudaErrorStreamCaptureUnsupported

static size_t total(void)
{
    const char *said = getenv("STANDIN_MEMORY");
    return said ? strtoull(said, NULL, 10) : (size_t)4 << 30;
}

cudaError_t cudaMalloc(void **out, size_t nbytes)
{
    ENTER;
    if (nbytes == 0) return cudaErrorInvalidValue;
    if (standin_allocated(standin_device()) + nbytes > total()) return cudaErrorMemoryAllocation;
    return map(out, nbytes, standin_device());
}

cudaError_t cudaFree(void *p)
{
    const bool fails = standin_enter(__func__) && standin_sticky == cudaSuccess;
    if (standin_capturing()) return cudaErrorStreamCaptureUnsupported;
    return fails ? cudaErrorUnknown : unmap(p, true);
}

cudaError_t cudaHostAlloc(void **out, size_t nbytes, unsigned flags)
{
    ENTER;
    if (nbytes == 0 || flags != cudaHostAllocDefault) return cudaErrorInvalidValue;
    return map(out, nbytes, -1);
}

cudaError_t cudaFreeHost(void *p)
{
    (void)standin_enter(__func__);
    if (standin_capturing()) return cudaErrorStreamCaptureUnsupported;
    return unmap(p, false);
}

cudaError_t cudaMemGetInfo(size_t *left, size_t *all)
{
    ENTER;
    const size_t beside = (size_t)48 << 20; /* what a context and loaded code take */
    *all = total() + beside;
    *left = total() - standin_allocated(standin_device());
    return cudaSuccess;
}

void standin_needs(const char *what, const void *p, size_t nbytes, cudaStream_t s)
{
    standin_check_stream(s);
    if (!standin_on_device(p, nbytes, standin_stream_device(s)))
        standin_undefined("%s: %zu bytes are not in the memory of device %d", what, nbytes, standin_stream_device(s));
}

void standin_host_scalar(const char *what, const void *p)
{
    if (!standin_is_host(p)) standin_undefined("%s: a factor that is not in the memory of the host", what);
}

/* --- copies --- */

typedef struct copy {
    void *dst;
    const void *src;
    unsigned char *staged; /* pageable memory is copied before the call returns */
    size_t nbytes;
} copy;

static void do_copy(void *arg)
{
    const copy *c = arg;
    memmove(c->dst, c->staged ? c->staged : c->src, c->nbytes);
    free(c->staged);
}

cudaError_t cudaMemcpyAsync(void *dst, const void *src, size_t nbytes, enum cudaMemcpyKind kind, cudaStream_t s)
{
    if (standin_enter(__func__)) return standin_sticky ? standin_sticky : cudaErrorUnknown;
    const bool to = kind != cudaMemcpyDeviceToHost, from = kind != cudaMemcpyHostToDevice;
    if (kind != cudaMemcpyHostToDevice && kind != cudaMemcpyDeviceToHost && kind != cudaMemcpyDeviceToDevice)
        return cudaErrorInvalidMemcpyDirection;
    if (to) standin_needs("a copy to the device", dst, nbytes, s);
    if (from) standin_needs("a copy from the device", src, nbytes, s);
    const void *host = !to ? dst : !from ? src : NULL;
    if (host && standin_any_device(host)) standin_undefined("a copy has device memory as the host's");
    copy c = {dst, src, NULL, nbytes};
    const bool pageable = host && !standin_is_pinned(host, nbytes);
    if (pageable && standin_in_capture(s)) {
        standin_break_capture(s);
        return cudaErrorStreamCaptureUnsupported;
    }
    if (pageable && to) {
        c.staged = malloc(nbytes);
        if (!c.staged) return cudaErrorMemoryAllocation;
        memcpy(c.staged, src, nbytes);
    }
    cudaError_t e = standin_queue(s, 0, do_copy, &c, sizeof c);
    if (pageable && !to) standin_finish(s);
    return e == cudaSuccess ? standin_sticky : e;
}

typedef struct fill {
    unsigned char *p;
    size_t pitch, width, height;
    int value;
} fill;

static void do_fill(void *arg)
{
    const fill *f = arg;
    for (size_t i = 0; i < f->height; i++) memset(f->p + i * f->pitch, f->value, f->width);
}

cudaError_t cudaMemset2DAsync(void *p, size_t pitch, int value, size_t width, size_t height, cudaStream_t s)
{
    if (standin_enter(__func__)) return standin_sticky ? standin_sticky : cudaErrorUnknown;
    if (width > pitch) return cudaErrorInvalidValue;
    if (width && height) standin_needs("cudaMemset2DAsync", p, (height - 1) * pitch + width, s);
    const fill f = {p, pitch, width, height, value};
    return standin_queue(s, 0, do_fill, &f, sizeof f);
}
