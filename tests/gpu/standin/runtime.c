/* SPDX-License-Identifier: Apache-2.0
 * The stand-in's runtime: streams, events, captures, graphs, kernels, faults. */
#define _DEFAULT_SOURCE
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <unistd.h>

#include "ops/gpu/gpu.h"
#include "standin.h"

enum { STAY = 16, MOST_STREAMS = 16, MOST_KINDS = 65536, PATIENCE = 600000 };

typedef struct work {
    bool (*ready)(void *arg); /* NULL: it waits for nothing */
    void (*run)(void *arg);
    void *arg;
} work;

/* A node of a graph comes behind those that it lists. */
typedef struct node {
    work work;
    size_t ndep;
    int *dep;
} node;
struct CUgraph_st {
    int users; /* the graph, what was made of it */
    node *at;
    size_t n;
};
struct CUgraphExec_st {
    struct CUgraph_st *graph;
    int queued;
};

/* A set of nodes of a capture. */
typedef struct ends {
    int *at;
    size_t n;
} ends;
typedef struct capture {
    struct CUgraph_st *graph;
    cudaStream_t origin;
    pthread_t thread;
    bool broken;
} capture;
struct CUevent_st {
    size_t queued, done;
    bool timed;
    size_t at;        /* when it was come by, of a clock that goes on with every task */
    capture *capture; /* it was last recorded in this one, which may have ended */
    ends ends;
    size_t captures; /* that had begun then */
};

typedef enum kind { WORK, RECORD, WAIT, GRAPH } kind;
typedef struct task {
    kind kind;
    work work;
    cudaEvent_t event;
    size_t count;
    cudaGraphExec_t exec;
} task;
struct CUstream_st {
    int device;
    task *task;
    size_t n, head, room;
    bool *done; /* of the graph at the head */
    size_t ndone;
    capture *capture;
    ends ends;
};

extern const char __executable_start;
static cudaStream_t streams[MOST_STREAMS];
static int turn;
static capture *current; /* at most one at a time */
static size_t captures;  /* begun so far */
static size_t now;       /* tasks that have been done */
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

static void *grown(void *p, size_t nbytes)
{
    void *more = realloc(p, nbytes ? nbytes : 1);
    if (!more) standin_undefined("out of memory");
    return more;
}

static void do_work(const work *w, bool keep)
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

static bool may_begin(const work *w) { return !w->ready || w->ready(w->arg); }

/* One node of the graph at the head of a stream; false: all that are left wait. */
static bool do_node(cudaStream_t s, const struct CUgraph_st *g)
{
    const size_t before = s->ndone;
    if (!s->done) s->done = memset(grown(NULL, g->n * sizeof *s->done), 0, g->n * sizeof *s->done);
    const size_t first = g->n ? standin_random(g->n) : 0;
    for (size_t k = 0; k < g->n; k++) {
        const size_t i = (first + k) % g->n;
        bool ready = !s->done[i];
        for (size_t d = 0; d < g->at[i].ndep && ready; d++) ready = s->done[g->at[i].dep[d]];
        if (!ready || !may_begin(&g->at[i].work)) continue;
        do_work(&g->at[i].work, true);
        s->done[i] = true;
        s->ndone++;
        break;
    }
    if (s->ndone < g->n) return s->ndone > before;
    free(s->done);
    s->done = NULL;
    s->ndone = 0;
    return true;
}

static bool ready(cudaStream_t s)
{
    if (!s || s->head == s->n) return false;
    const task *t = &s->task[s->head];
    if (t->kind == WORK) return may_begin(&t->work);
    return t->kind != WAIT || t->event->done >= t->count;
}

static bool do_next(cudaStream_t s)
{
    const task t = s->task[s->head];
    if (t.kind == GRAPH) {
        if (!do_node(s, t.exec->graph)) return false;
        if (s->done) return true; /* others of its nodes are left */
        t.exec->queued--;
    }
    s->head++;
    now++;
    if (t.kind == RECORD) t.event->done = t.count, t.event->at = now;
    if (t.kind == WORK) do_work(&t.work, false);
    return true;
}

/* Something that may be done, if there is anything. */
static bool do_some(void)
{
    if (standin_random(STAY) == 0) turn = (int)standin_random(MOST_STREAMS);
    for (int k = 0; k < MOST_STREAMS; k++) {
        cudaStream_t s = streams[(turn + k) % MOST_STREAMS];
        if (standin_sticky || !ready(s)) continue;
        if (do_next(s)) return true;
    }
    return false;
}

/* Whether anything waits for another process. */
static bool others_may_come(void)
{
    for (int i = 0; i < MOST_STREAMS; i++) {
        const struct CUstream_st *s = streams[i];
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
    for (uint64_t n = standin_random(8) ? 0 : standin_random(32); n > 0 && !current; n--) (void)do_some();
    return standin_sticky != cudaSuccess;
}

#define ENTER \
    if (standin_enter(__func__)) return last = standin_sticky ? standin_sticky : cudaErrorUnknown

static cudaError_t noted(cudaError_t e)
{
    if (e) last = e;
    return e;
}

void standin_check_stream(cudaStream_t s)
{
    for (int i = 0; i < MOST_STREAMS && s; i++)
        if (streams[i] == s) return;
    standin_undefined(s ? "a stream that there is not" : "the legacy stream, which waits for all others");
}

static void push(cudaStream_t s, task t)
{
    if (s->n == s->room) {
        memmove(s->task, s->task + s->head, (s->n - s->head) * sizeof *s->task);
        s->n -= s->head;
        s->head = 0;
        s->room = 2 * s->n + 64;
        s->task = grown(s->task, s->room * sizeof *s->task);
    }
    s->task[s->n++] = t;
}

int standin_device(void) { return device; }
int standin_stream_device(cudaStream_t s) { return s->device; }

/* --- capturing --- */

static void add_end(ends *e, int i)
{
    for (size_t k = 0; k < e->n; k++)
        if (e->at[k] == i) return;
    e->at = grown(e->at, (e->n + 1) * sizeof *e->at);
    e->at[e->n++] = i;
}

bool standin_in_capture(cudaStream_t s) { return s->capture != NULL; }
void standin_break_capture(cudaStream_t s) { s->capture->broken = true; }

bool standin_capturing(void)
{
    if (!current || !pthread_equal(current->thread, pthread_self())) return false;
    current->broken = true;
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
    if (s->device != device) return noted(cudaErrorInvalidResourceHandle);
    if (s->capture && s->capture->broken) return noted(cudaErrorStreamCaptureInvalidated);
    need_loaded(what, s->capture != NULL);
    const work w = {may, run, memcpy(grown(NULL, nbytes), arg, nbytes)};
    if (!s->capture) {
        push(s, (task){.kind = WORK, .work = w});
        return cudaSuccess;
    }
    struct CUgraph_st *g = s->capture->graph;
    g->at = grown(g->at, (g->n + 1) * sizeof *g->at);
    g->at[g->n] = (node){w, s->ends.n, s->ends.at};
    s->ends = (ends){NULL, 0};
    add_end(&s->ends, (int)g->n++);
    return cudaSuccess;
}

cudaError_t cudaStreamBeginCapture(cudaStream_t s, enum cudaStreamCaptureMode mode)
{
    ENTER;
    standin_check_stream(s);
    if (s->capture || current || mode != cudaStreamCaptureModeThreadLocal) return noted(cudaErrorIllegalState);
    current = grown(NULL, sizeof *current);
    *current = (capture){grown(NULL, sizeof *current->graph), s, pthread_self(), false};
    *current->graph = (struct CUgraph_st){.users = 1};
    s->capture = current;
    captures++;
    standin_leaks += 2;
    return cudaSuccess;
}

static void drop_graph(struct CUgraph_st *g)
{
    if (--g->users > 0) return;
    for (size_t i = 0; i < g->n; i++) free(g->at[i].work.arg), free(g->at[i].dep);
    free(g->at);
    free(g);
    standin_leaks--;
}

/* Whether all of a capture comes before the ends of the stream where it began. */
static bool joined(const capture *c)
{
    const struct CUgraph_st *g = c->graph;
    bool *seen = memset(grown(NULL, g->n), 0, g->n), all = true;
    for (size_t k = 0; k < c->origin->ends.n; k++) seen[c->origin->ends.at[k]] = true;
    for (size_t i = g->n; i-- > 0;) {
        all = all && seen[i];
        for (size_t d = 0; d < g->at[i].ndep && seen[i]; d++) seen[g->at[i].dep[d]] = true;
    }
    free(seen);
    return all;
}

cudaError_t cudaStreamEndCapture(cudaStream_t s, cudaGraph_t *out)
{
    const bool fails = standin_enter(__func__);
    capture *c = s->capture;
    *out = NULL;
    standin_check_stream(s);
    if (!c) return noted(fails ? standin_sticky : cudaErrorIllegalState);
    cudaError_t e = c->origin != s ? cudaErrorStreamCaptureUnmatched
                    : c->broken    ? cudaErrorStreamCaptureInvalidated
                    : !joined(c)   ? cudaErrorStreamCaptureUnjoined
                                   : cudaSuccess;
    if (fails && !e) e = standin_sticky ? standin_sticky : cudaErrorUnknown;
    for (int i = 0; i < MOST_STREAMS; i++) {
        if (!streams[i] || streams[i]->capture != c) continue;
        streams[i]->capture = NULL;
        free(streams[i]->ends.at);
        streams[i]->ends = (ends){NULL, 0};
    }
    if (e) drop_graph(c->graph);
    else *out = c->graph;
    free(c);
    current = NULL;
    standin_leaks--;
    return noted(e);
}

cudaError_t cudaGraphGetNodes(cudaGraph_t g, cudaGraphNode_t *nodes, size_t *n)
{
    ENTER;
    if (nodes) standin_undefined("nodes of a graph are asked for, which there are none of here");
    *n = g->n;
    return cudaSuccess;
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t *out, cudaGraph_t g, unsigned long long flags)
{
    ENTER;
    if (flags) return noted(cudaErrorInvalidValue);
    *out = grown(NULL, sizeof **out);
    **out = (struct CUgraphExec_st){g, 0};
    g->users++;
    standin_leaks++;
    return cudaSuccess;
}

cudaError_t cudaGraphDestroy(cudaGraph_t g)
{
    (void)standin_enter(__func__);
    drop_graph(g);
    return standin_sticky;
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t e)
{
    (void)standin_enter(__func__);
    if (e->queued && !standin_sticky) standin_undefined("a graph is destroyed that has not run yet");
    drop_graph(e->graph);
    free(e);
    standin_leaks--;
    return standin_sticky;
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t e, cudaStream_t s)
{
    ENTER;
    standin_check_stream(s);
    if (s->capture || s->device != device) return noted(cudaErrorInvalidResourceHandle);
    e->queued++;
    push(s, (task){.kind = GRAPH, .exec = e});
    return cudaSuccess;
}

/* --- streams and events --- */

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *out, unsigned flags)
{
    ENTER;
    if (flags != cudaStreamNonBlocking) standin_undefined("a stream that waits for the legacy stream");
    for (int i = 0; i < MOST_STREAMS; i++) {
        if (streams[i]) continue;
        *out = streams[i] = grown(NULL, sizeof **out);
        *streams[i] = (struct CUstream_st){.device = device};
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
        if (streams[i] == s) streams[i] = NULL;
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
        return noted(cudaErrorStreamCaptureUnsupported);
    }
    standin_finish(s);
    return noted(standin_sticky);
}

/* Something is done between two looks, so that who looks again and again sees it end. */
cudaError_t cudaStreamQuery(cudaStream_t s)
{
    ENTER;
    standin_check_stream(s);
    if (s->capture || standin_capturing()) {
        if (s->capture) s->capture->broken = true;
        return noted(cudaErrorStreamCaptureUnsupported);
    }
    if (s->head < s->n && standin_sticky == cudaSuccess) (void)do_some();
    if (standin_sticky) return noted(standin_sticky);
    return s->head < s->n ? cudaErrorNotReady : cudaSuccess;
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *out, unsigned flags)
{
    ENTER;
    if (flags & ~(unsigned)(cudaEventDisableTiming | cudaEventBlockingSync)) return noted(cudaErrorInvalidValue);
    *out = grown(NULL, sizeof **out);
    **out = (struct CUevent_st){.timed = !(flags & cudaEventDisableTiming)};
    standin_leaks++;
    return cudaSuccess;
}

cudaError_t cudaEventDestroy(cudaEvent_t e)
{
    (void)standin_enter(__func__);
    for (int i = 0; i < MOST_STREAMS; i++)
        for (size_t k = streams[i] ? streams[i]->head : 0; streams[i] && k < streams[i]->n && !standin_sticky; k++)
            if (streams[i]->task[k].event == e) standin_undefined("an event is destroyed that is still in a queue");
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
        return noted(cudaErrorInvalidResourceHandle);
    if (first->done < first->queued || second->done < second->queued) return noted(cudaErrorNotReady);
    *ms = (float)(second->at - first->at);
    return cudaSuccess;
}

cudaError_t cudaEventRecord(cudaEvent_t e, cudaStream_t s)
{
    ENTER;
    standin_check_stream(s);
    if (s->capture && s->capture->broken) return noted(cudaErrorStreamCaptureInvalidated);
    e->capture = s->capture;
    e->captures = captures;
    free(e->ends.at);
    e->ends = (ends){NULL, 0};
    for (size_t k = 0; k < s->ends.n && s->capture; k++) add_end(&e->ends, s->ends.at[k]);
    if (!s->capture) push(s, (task){.kind = RECORD, .event = e, .count = ++e->queued});
    return cudaSuccess;
}

cudaError_t cudaStreamWaitEvent(cudaStream_t s, cudaEvent_t e, unsigned flags)
{
    ENTER;
    standin_check_stream(s);
    if (flags) return noted(cudaErrorInvalidValue);
    if (e->capture && (e->capture != current || e->captures != captures)) return noted(cudaErrorCapturedEvent);
    if (!e->capture && s->capture) {
        s->capture->broken = true;
        return noted(cudaErrorStreamCaptureIsolation);
    }
    if (!e->capture) {
        push(s, (task){.kind = WAIT, .event = e, .count = e->queued});
        return cudaSuccess;
    }
    if (!s->capture && s->device != e->capture->origin->device) return noted(cudaErrorInvalidResourceHandle);
    s->capture = e->capture;
    for (size_t k = 0; k < e->ends.n; k++) add_end(&s->ends, e->ends.at[k]);
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
    if (i < 0 || i >= STANDIN_DEVICES) return noted(cudaErrorInvalidDevice);
    device = i;
    return cudaSuccess;
}

cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *out, int i)
{
    ENTER;
    if (i < 0 || i >= STANDIN_DEVICES) return noted(cudaErrorInvalidDevice);
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
