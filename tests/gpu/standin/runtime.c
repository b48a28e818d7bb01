/* SPDX-License-Identifier: Apache-2.0
 * The stand-in's runtime: streams, events, standin_captures, graphs, kernels, faults. */
#define _DEFAULT_SOURCE
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <unistd.h>

#include "ops/gpu/gpu.h"
#include "queues.h"

enum { STAY = 16, MOST_KINDS = 65536, PATIENCE = 600000 };

extern const char __executable_start;
cudaStream_t standin_streams[MOST_STREAMS];
static int turn;
capture *standin_capture;
size_t standin_captures;
static size_t now; /* tasks that have been done */
static _Thread_local int device;
static cudaError_t last;
cudaError_t standin_sticky;
size_t standin_leaks;
static size_t calls, same_name;
static uint64_t state;
static uint64_t loaded[MOST_KINDS];
static size_t nloaded;
static bool working;
static sigjmp_buf fault;

void standin_undefined(const char *format, ...)
{
    va_list args;
    va_start(args, format);
    (void)fprintf(stderr, "stand-in: ");
    (void)vfprintf(stderr, format, args);
    (void)fprintf(stderr, "\n");
    va_end(args);
    _exit(STANDIN_UNDEFINED);
}

static uint64_t seed(void)
{
    const char *said = getenv("STANDIN_SEED");
    return said ? strtoull(said, NULL, 10) : 1;
}

uint64_t standin_random(uint64_t n)
{
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (state >> 33) % n;
}

uint64_t standin_hash(const void *p, size_t nbytes)
{
    uint64_t h = 14695981039346656037u + seed() * 0x9e3779b97f4a7c15u;
    for (size_t i = 0; i < nbytes; i++) h = (h ^ ((const unsigned char *)p)[i]) * 1099511628211u;
    return h ^ h >> 29;
}

static void touched(int sig, siginfo_t *info, void *context)
{
    (void)context;
    if (working) siglongjmp(fault, 1);
    if (standin_any_device(info->si_addr)) {
        (void)fprintf(stderr, "stand-in: the host touched memory of the device\n");
        _exit(STANDIN_HOST_TOUCHED);
    }
    (void)signal(sig, SIG_DFL);
}

static void check_leaks(void)
{
    if (getenv("STANDIN_CALLS")) (void)fprintf(stderr, "stand-in: %zu calls\n", calls);
    if (standin_leaks == 0) return;
    (void)fprintf(stderr, "stand-in: %zu things were not given back\n", standin_leaks);
    _exit(STANDIN_LEAKED);
}

static void queue_kernel(void *stream, const inv_emu_kernel *k);

__attribute__((constructor)) static void set_up(void)
{
    struct sigaction a = {.sa_sigaction = touched, .sa_flags = SA_SIGINFO};
    (void)sigaction(SIGSEGV, &a, NULL);
    (void)atexit(check_leaks);
    state = inv_emu_seed = seed();
    inv_emu_queue = queue_kernel;
}

/* --- doing --- */

void *standin_grown(void *p, size_t nbytes)
{
    void *more = realloc(p, nbytes ? nbytes : 1);
    if (!more) standin_undefined("out of memory");
    return more;
}

void standin_do(const work *w, bool keep)
{
    const struct sigaction ours = {.sa_sigaction = touched, .sa_flags = SA_SIGINFO};
    struct sigaction before; /* tests have their own */
    (void)sigaction(SIGSEGV, &ours, &before);
    standin_protect(true);
    working = true;
    if (sigsetjmp(fault, 1) == 0) {
        w->run(w->arg);
    } else {
        standin_sticky = cudaErrorIllegalAddress;
        inv_emu_abandon();
    }
    working = false;
    standin_protect(false);
    (void)sigaction(SIGSEGV, &before, NULL);
    if (inv_emu_failed()) standin_undefined("the threads of a kernel do not meet at its barriers");
    if (!keep) free(w->arg);
}

static bool ready(cudaStream_t s)
{
    if (!s || s->head == s->n) return false;
    const task *t = &s->task[s->head];
    if (t->kind == WORK) return standin_may_begin(&t->work);
    return t->kind != WAIT || t->event->done >= t->count;
}

static bool do_next(cudaStream_t s)
{
    const task t = s->task[s->head];
    if (t.kind == GRAPH) {
        if (!standin_do_node(s, t.exec->graph)) return false;
        if (s->done) return true; /* others of its nodes are left */
        t.exec->queued--;
    }
    s->head++;
    now++;
    if (t.kind == RECORD) t.event->done = t.count, t.event->at = now;
    if (t.kind == WORK) standin_do(&t.work, false);
    return true;
}

/* Something that may be done, if there is anything. */
static bool do_some(void)
{
    if (standin_random(STAY) == 0) turn = (int)standin_random(MOST_STREAMS);
    for (int k = 0; k < MOST_STREAMS; k++) {
        cudaStream_t s = standin_streams[(turn + k) % MOST_STREAMS];
        if (standin_sticky || !ready(s)) continue;
        if (do_next(s)) return true;
    }
    return false;
}

/* Whether anything waits for another process. */
static bool others_may_come(void)
{
    for (int i = 0; i < MOST_STREAMS; i++) {
        const struct CUstream_st *s = standin_streams[i];
        if (!s || s->head == s->n) continue;
        const task *t = &s->task[s->head];
        if (t->kind == WORK && t->work.ready) return true;
        for (size_t k = 0; t->kind == GRAPH && k < t->exec->graph->n; k++)
            if (t->exec->graph->at[k].work.ready) return true;
    }
    return false;
}

void standin_finish(cudaStream_t s)
{
    for (unsigned looks = 0; s->head < s->n && standin_sticky == cudaSuccess;) {
        if (do_some()) looks = 0;
        else if (!others_may_come() || ++looks > PATIENCE) standin_undefined("the streams wait for each other");
        else (void)usleep(100);
    }
    if (standin_random(STAY) == 0) standin_check_blocks();
}

bool standin_enter(const char *name)
{
    const char *fail = getenv("STANDIN_FAIL"), *colon = fail ? strchr(fail, ':') : NULL;
    calls++;
    if (fail && !colon && calls == strtoull(fail, NULL, 10)) standin_sticky = cudaErrorLaunchFailure;
    if (colon && strlen(name) == (size_t)(colon - fail) && strncmp(name, fail, strlen(name)) == 0 &&
        ++same_name == strtoull(colon + 1, NULL, 10))
        return true;
    for (uint64_t n = standin_random(8) ? 0 : standin_random(32); n > 0 && !standin_capture; n--) (void)do_some();
    return standin_sticky != cudaSuccess;
}

cudaError_t standin_failed(void) { return last = standin_sticky ? standin_sticky : cudaErrorUnknown; }

cudaError_t standin_noted(cudaError_t e)
{
    if (e) last = e;
    return e;
}

void standin_check_stream(cudaStream_t s)
{
    for (int i = 0; i < MOST_STREAMS && s; i++)
        if (standin_streams[i] == s) return;
    standin_undefined(s ? "a stream that there is not" : "the legacy stream, which waits for all others");
}

void standin_push(cudaStream_t s, task t)
{
    if (s->n == s->room) {
        memmove(s->task, s->task + s->head, (s->n - s->head) * sizeof *s->task);
        s->n -= s->head;
        s->head = 0;
        s->room = 2 * s->n + 64;
        s->task = standin_grown(s->task, s->room * sizeof *s->task);
    }
    s->task[s->n++] = t;
}

int standin_device(void) { return device; }
int standin_stream_device(cudaStream_t s) { return s->device; }

/* --- capturing --- */

bool standin_in_capture(cudaStream_t s) { return s->capture != NULL; }
void standin_break_capture(cudaStream_t s) { s->capture->broken = true; }

bool standin_capturing(void)
{
    if (!standin_capture || !pthread_equal(standin_capture->thread, pthread_self())) return false;
    standin_capture->broken = true;
    return true;
}

/* Code that is loaded at its first use may need memory, which a capture forbids. */
static void need_loaded(uint64_t what, bool capturing)
{
    uint64_t *at = &loaded[what % MOST_KINDS];
    while (*at && *at != what) at = at + 1 < loaded + MOST_KINDS ? at + 1 : loaded;
    if (*at || what == 0) return;
    if (capturing) standin_undefined("a kernel or an algorithm is used in a capture for the first time");
    if (++nloaded == MOST_KINDS) standin_undefined("too many kernels");
    *at = what;
}

cudaError_t standin_queue(cudaStream_t s, uint64_t what, void (*run)(void *arg), const void *arg, size_t nbytes)
{
    return standin_queue_when(s, what, NULL, run, arg, nbytes);
}

cudaError_t standin_queue_when(cudaStream_t s, uint64_t what, bool (*may)(void *arg), void (*run)(void *arg),
                               const void *arg, size_t nbytes)
{
    standin_check_stream(s);
    if (s->device != device) return standin_noted(cudaErrorInvalidResourceHandle);
    if (s->capture && s->capture->broken) return standin_noted(cudaErrorStreamCaptureInvalidated);
    need_loaded(what, s->capture != NULL);
    const work w = {may, run, memcpy(standin_grown(NULL, nbytes), arg, nbytes)};
    if (!s->capture) {
        standin_push(s, (task){.kind = WORK, .work = w});
        return cudaSuccess;
    }
    return standin_add_node(s, w, NULL);
}

/* --- streams and events --- */

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *out, unsigned flags)
{
    ENTER;
    if (flags != cudaStreamNonBlocking) standin_undefined("a stream that waits for the legacy stream");
    for (int i = 0; i < MOST_STREAMS; i++) {
        if (standin_streams[i]) continue;
        *out = standin_streams[i] = standin_grown(NULL, sizeof **out);
        *standin_streams[i] = (struct CUstream_st){.device = device};
        standin_leaks++;
        return cudaSuccess;
    }
    standin_undefined("more than %d streams", MOST_STREAMS);
}

cudaError_t cudaStreamDestroy(cudaStream_t s)
{
    (void)standin_enter(__func__);
    standin_check_stream(s);
    if (s->head < s->n && !standin_sticky) standin_undefined("a stream is destroyed that has work to do");
    for (size_t i = s->head; i < s->n; i++)
        if (s->task[i].kind == WORK) free(s->task[i].work.arg);
    for (int i = 0; i < MOST_STREAMS; i++)
        if (standin_streams[i] == s) standin_streams[i] = NULL;
    free(s->task);
    free(s->done);
    free(s->ends.at);
    free(s);
    standin_leaks--;
    return standin_sticky;
}

cudaError_t cudaStreamSynchronize(cudaStream_t s)
{
    ENTER;
    standin_check_stream(s);
    if (s->capture || standin_capturing()) {
        if (s->capture) s->capture->broken = true;
        return standin_noted(cudaErrorStreamCaptureUnsupported);
    }
    standin_finish(s);
    return standin_noted(standin_sticky);
}

/* Something is done between two looks, so that who looks again and again sees it end. */
cudaError_t cudaStreamQuery(cudaStream_t s)
{
    ENTER;
    standin_check_stream(s);
    if (s->capture || standin_capturing()) {
        if (s->capture) s->capture->broken = true;
        return standin_noted(cudaErrorStreamCaptureUnsupported);
    }
    if (s->head < s->n && standin_sticky == cudaSuccess) (void)do_some();
    if (standin_sticky) return standin_noted(standin_sticky);
    return s->head < s->n ? cudaErrorNotReady : cudaSuccess;
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *out, unsigned flags)
{
    ENTER;
    if (flags & ~(unsigned)(cudaEventDisableTiming | cudaEventBlockingSync))
        return standin_noted(cudaErrorInvalidValue);
    *out = standin_grown(NULL, sizeof **out);
    **out = (struct CUevent_st){.timed = !(flags & cudaEventDisableTiming)};
    standin_leaks++;
    return cudaSuccess;
}

cudaError_t cudaEventDestroy(cudaEvent_t e)
{
    (void)standin_enter(__func__);
    for (int i = 0; i < MOST_STREAMS; i++)
        for (size_t k = standin_streams[i] ? standin_streams[i]->head : 0;
             standin_streams[i] && k < standin_streams[i]->n && !standin_sticky; k++)
            if (standin_streams[i]->task[k].event == e)
                standin_undefined("an event is destroyed that is still in a queue");
    if (e->done < e->queued && !standin_sticky) standin_undefined("an event is destroyed that a graph is to record");
    free(e->ends.at);
    free(e);
    standin_leaks--;
    return standin_sticky;
}

/* A millisecond per task. */
cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t first, cudaEvent_t second)
{
    ENTER;
    if (!first->timed || !second->timed || first->capture || second->capture)
        return standin_noted(cudaErrorInvalidResourceHandle);
    if (first->done < first->queued || second->done < second->queued) return standin_noted(cudaErrorNotReady);
    *ms = (float)(second->at - first->at);
    return cudaSuccess;
}

cudaError_t cudaEventRecord(cudaEvent_t e, cudaStream_t s)
{
    ENTER;
    standin_check_stream(s);
    if (s->capture && s->capture->broken) return standin_noted(cudaErrorStreamCaptureInvalidated);
    e->capture = s->capture;
    e->captures = standin_captures;
    free(e->ends.at);
    e->ends = (ends){NULL, 0};
    for (size_t k = 0; k < s->ends.n && s->capture; k++) standin_add_end(&e->ends, s->ends.at[k]);
    if (!s->capture) standin_push(s, (task){.kind = RECORD, .event = e, .count = ++e->queued});
    return cudaSuccess;
}

cudaError_t cudaEventRecordWithFlags(cudaEvent_t e, cudaStream_t s, unsigned flags)
{
    if (flags == cudaEventRecordDefault) return cudaEventRecord(e, s);
    ENTER;
    standin_check_stream(s);
    if (flags != cudaEventRecordExternal || !s->capture) return standin_noted(cudaErrorInvalidValue);
    if (s->capture->broken) return standin_noted(cudaErrorStreamCaptureInvalidated);
    return standin_add_node(s, (work){0}, e);
}

cudaError_t cudaEventSynchronize(cudaEvent_t e)
{
    ENTER;
    if (e->capture) return standin_noted(cudaErrorCapturedEvent);
    if (standin_capturing()) return standin_noted(cudaErrorStreamCaptureUnsupported);
    while (e->done < e->queued && standin_sticky == cudaSuccess)
        if (!do_some()) standin_undefined("an event is waited for that nothing records");
    return standin_noted(standin_sticky);
}

cudaError_t cudaEventQuery(cudaEvent_t e)
{
    ENTER;
    if (e->capture) return standin_noted(cudaErrorCapturedEvent);
    if (standin_capturing()) return standin_noted(cudaErrorStreamCaptureUnsupported);
    if (e->done < e->queued && standin_sticky == cudaSuccess) (void)do_some();
    if (standin_sticky) return standin_noted(standin_sticky);
    return e->done < e->queued ? cudaErrorNotReady : cudaSuccess;
}

cudaError_t cudaStreamWaitEvent(cudaStream_t s, cudaEvent_t e, unsigned flags)
{
    ENTER;
    standin_check_stream(s);
    if (flags) return standin_noted(cudaErrorInvalidValue);
    if (e->capture && (e->capture != standin_capture || e->captures != standin_captures))
        return standin_noted(cudaErrorCapturedEvent);
    if (!e->capture && s->capture) {
        s->capture->broken = true;
        return standin_noted(cudaErrorStreamCaptureIsolation);
    }
    if (!e->capture) {
        standin_push(s, (task){.kind = WAIT, .event = e, .count = e->queued});
        return cudaSuccess;
    }
    if (!s->capture && s->device != e->capture->origin->device) return standin_noted(cudaErrorInvalidResourceHandle);
    s->capture = e->capture;
    for (size_t k = 0; k < e->ends.n; k++) standin_add_end(&s->ends, e->ends.at[k]);
    return cudaSuccess;
}

/* --- kernels --- */

static void run_kernel(void *arg)
{
    inv_emu_kernel k;
    memcpy(&k, arg, sizeof k);
    k.call = (const char *)arg + sizeof k;
    inv_emu_run(&k);
}

static void queue_kernel(void *stream, const inv_emu_kernel *k)
{
    struct {
        inv_emu_kernel k;
        unsigned char call[4096];
    } whole = {.k = *k};
    if (standin_enter("kernel")) {
        last = standin_sticky ? standin_sticky : cudaErrorUnknown;
        return;
    }
    if (k->nbytes > sizeof whole.call || k->threads < 1 || k->threads > 1024 || k->blocks > INT32_MAX) {
        last = cudaErrorInvalidConfiguration;
        return;
    }
    memcpy(whole.call, k->call, k->nbytes);
    for (size_t i = 0; i + sizeof(void *) <= k->nbytes; i += sizeof(void *)) {
        const void *word;
        memcpy(&word, whole.call + i, sizeof word);
        if (word != k->kernel && standin_is_host(word))
            standin_undefined("an argument of the kernel at +%#zx is an address of the host (byte %zu of %zu: %p)",
                              (size_t)((const char *)k->kernel - &__executable_start), i, k->nbytes, word);
    }
    (void)standin_queue(stream, (uint64_t)(uintptr_t)k->kernel, run_kernel, &whole, sizeof whole.k + k->nbytes);
}

/* --- the device, errors --- */

cudaError_t cudaGetDeviceCount(int *out)
{
    ENTER;
    *out = STANDIN_DEVICES;
    return cudaSuccess;
}

cudaError_t cudaSetDevice(int i)
{
    ENTER;
    if (i < 0 || i >= STANDIN_DEVICES) return standin_noted(cudaErrorInvalidDevice);
    device = i;
    return cudaSuccess;
}

cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *out, int i)
{
    ENTER;
    if (i < 0 || i >= STANDIN_DEVICES) return standin_noted(cudaErrorInvalidDevice);
    *out = (struct cudaDeviceProp){.name = "stand-in", .major = 9, .multiProcessorCount = 1};
    return cudaSuccess;
}

cudaError_t cudaDriverGetVersion(int *out)
{
    *out = CUDART_VERSION;
    return cudaSuccess;
}

cudaError_t cudaRuntimeGetVersion(int *out)
{
    *out = CUDART_VERSION;
    return cudaSuccess;
}

cudaError_t cudaGetLastError(void)
{
    cudaError_t e = standin_sticky ? standin_sticky : last;
    last = cudaSuccess;
    return e;
}
