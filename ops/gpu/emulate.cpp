/* SPDX-License-Identifier: Apache-2.0
 * Threads of an emulated block as fibers. Those that may go on stand in a queue; one that waits for the others of its
 * block or of its warp hands over to one of them, and the last to arrive puts all into the queue. A fiber is made once,
 * by ucontext, and waits for its part in the next block when it has ended one. Between fibers go jumps, which ask
 * nothing of the kernel, as swapcontext does; the address sanitizer knows of stacks that are changed by swapcontext
 * only. */
#undef _FORTIFY_SOURCE /* its longjmp takes another stack for a broken one */
#include "ops/gpu/emulate.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdlib.h>
#include <ucontext.h>

#if defined __SANITIZE_ADDRESS__
#define HAVE_ASAN 1
#elif defined __has_feature
#if __has_feature(address_sanitizer)
#define HAVE_ASAN 1
#endif
#endif
#ifdef HAVE_ASAN
#include <sanitizer/common_interface_defs.h>
#endif

#define MOST 1024
#define WARP 32
#define STACK ((size_t)128 * 1024)
#define MOST_SHARED 16

void (*inv_emu_guard)(bool begin);
void (*inv_emu_queue)(void *stream, const inv_emu_kernel *k);
uint64_t inv_emu_seed;
thread_local inv_dim3 inv_emu_thread, inv_emu_block, inv_emu_threads, inv_emu_blocks;

typedef struct fiber {
    ucontext_t context;
    jmp_buf at;
    bool made, started;
    unsigned shuffles;
    const void *stack; /* for the sanitizer: where it is, what it remembers of it */
    size_t stack_nbytes;
    void *remembered;
} fiber;

typedef struct pool {
    fiber *fibers; /* the last is where the kernel was started */
    char *stacks;
    unsigned char slot[2][MOST][8];
    int n, left;                             /* threads of the block, those that have not ended */
    int queue[MOST], nqueue;                 /* those that may go on */
    int at_barrier, at_shuffle[MOST / WARP]; /* those that wait */
    void (*body)(const void *);
    const void *call;
} pool;

static thread_local pool *here;

/* Freed at the end of the thread, by the C library: a destructor would need C++'s. */
static thread_local pool mine;
static thread_local bool failed;
static thread_local const void *shared[MOST_SHARED]; /* shared memory that the block at hand has come by */
static thread_local int nshared;
static thread_local uint64_t state; /* of the random order */
static pthread_key_t key;
static bool has_key;
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void give_back(void *p)
{
    free(static_cast<pool *>(p)->fibers);
    free(static_cast<pool *>(p)->stacks);
}

static void make_key(void) { has_key = pthread_key_create(&key, give_back) == 0; }

bool inv_emu_failed(void)
{
    bool was = failed;
    failed = false;
    return was;
}

#ifdef HAVE_ASAN
static void arrived(fiber *f, bool first)
{
    fiber *home = &mine.fibers[MOST];
    const void *stack;
    size_t nbytes;
    __sanitizer_finish_switch_fiber(first ? NULL : f->remembered, &stack, &nbytes);
    if (!first || home->stack) return;
    home->stack = stack; /* the first fiber of a thread is begun from there */
    home->stack_nbytes = nbytes;
}

static void change(fiber *from, fiber *to)
{
    to->started = true;
    __sanitizer_start_switch_fiber(&from->remembered, to->stack, to->stack_nbytes);
    swapcontext(&from->context, &to->context);
    arrived(from, false);
}
#else
static void arrived(fiber *, bool) {}

static void change(fiber *from, fiber *to)
{
    if (_setjmp(from->at)) return;
    if (to->started) _longjmp(to->at, 1);
    to->started = true;
    setcontext(&to->context);
}
#endif

/* Random below n; always 0 where the order is the rising one. */
static int draw(int n)
{
    if (inv_emu_seed == 0) return 0;
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (int)((state >> 33) % (uint64_t)n);
}

static void turn_to(fiber *from, int to)
{
    inv_emu_thread = {(unsigned)to, 0, 0};
    change(from, &here->fibers[to]);
    if (from != &here->fibers[MOST]) inv_emu_thread = {(unsigned)(from - here->fibers), 0, 0};
}

/* To one that may go on. Where there is none, some wait for others that will not come: a defect of the kernel. */
static void hand_over(fiber *from)
{
    if (here->nqueue == 0) {
        failed = failed || here->left > 0;
        return turn_to(from, MOST);
    }
    const int at = here->nqueue - 1 - draw(here->nqueue), to = here->queue[at];
    here->queue[at] = here->queue[--here->nqueue];
    if (from != &here->fibers[to]) turn_to(from, to);
}

/* Threads [first, first + n) may go on; what stands last in the queue is next. */
static void release(int first, int n)
{
    for (int t = first + n - 1; t >= first; t--) here->queue[here->nqueue++] = t;
}

/* Does not come back. */
static void run(void)
{
    const int self = (int)inv_emu_thread.x;
    fiber *f = &here->fibers[self];
    arrived(f, true);
    for (;;) {
        here->body(here->call);
        here->left--;
        hand_over(f);
    }
}

/* In a kernel that was started without fibers, a barrier is a defect of it. */
void inv_emu_barrier(void)
{
    failed = failed || !here;
    if (!here) return;
    if (++here->at_barrier == here->n) {
        here->at_barrier = 0;
        release(0, here->n);
    }
    hand_over(&here->fibers[inv_emu_thread.x]);
}

void inv_emu_shuffle_xor(const void *v, void *other, size_t nbytes, int mask)
{
    memcpy(other, v, nbytes);
    if (!here) return inv_emu_barrier();
    const unsigned self = inv_emu_thread.x, parity = here->fibers[self].shuffles++ % 2;
    int *waiting = &here->at_shuffle[self / WARP];
    memcpy(here->slot[parity][self], v, nbytes);
    if (++*waiting == WARP) {
        *waiting = 0;
        release((int)(self / WARP * WARP), WARP);
    }
    hand_over(&here->fibers[self]);
    memcpy(other, here->slot[parity][self ^ (unsigned)mask], nbytes);
}

void inv_emu_shared(void *p, size_t nbytes)
{
    for (int i = 0; i < nshared; i++)
        if (shared[i] == p) return;
    failed = failed || nshared == MOST_SHARED;
    if (nshared < MOST_SHARED) shared[nshared++] = p;
    memset(p, 0xff, nbytes);
}

/* Apart, since getcontext may return twice. */
static void make_fiber(fiber *f, char *stack)
{
    f->shuffles = 0;
    if (f->made) return;
    f->made = true;
    f->stack = stack;
    f->stack_nbytes = STACK;
    getcontext(&f->context);
    f->context.uc_stack.ss_sp = stack;
    f->context.uc_stack.ss_size = STACK;
    f->context.uc_link = NULL;
    makecontext(&f->context, run, 0);
}

/* Memory for the fibers of this thread, once. */
static bool get_ready(void)
{
    if (mine.stacks) return true;
    (void)pthread_once(&once, make_key);
    if (!mine.fibers) mine.fibers = static_cast<fiber *>(calloc(MOST + 1, sizeof(fiber)));
    if (!has_key || !mine.fibers || pthread_setspecific(key, &mine) != 0) return false;
    mine.stacks = static_cast<char *>(malloc(MOST * STACK));
    return mine.stacks != NULL;
}

void inv_emu_abandon(void)
{
    for (int t = 0; t < MOST && mine.fibers; t++) mine.fibers[t].made = mine.fibers[t].started = false;
    here = NULL;
}

/* Runs the threads of a block as fibers. */
static void run_fibers(const inv_emu_kernel *k)
{
    failed = failed || k->threads > MOST || k->threads % WARP || !get_ready();
    if (failed) return;
    here = &mine;
    here->n = here->left = k->threads;
    here->body = k->body;
    here->call = k->call;
    here->nqueue = here->at_barrier = 0;
    memset(here->at_shuffle, 0, sizeof here->at_shuffle);
    for (int t = 0; t < k->threads; t++) make_fiber(&here->fibers[t], here->stacks + static_cast<size_t>(t) * STACK);
    release(0, k->threads);
    here->fibers[MOST].started = true;
    hand_over(&here->fibers[MOST]);
    if (failed) inv_emu_abandon();
    here = NULL;
}

/* i-th of n in an order that is rising, or begins anywhere and goes by steps that have no factor in common with n. */
static int64_t in_order(int64_t i, int64_t n, int64_t from, int64_t step) { return (from + i * step) % n; }

static int64_t step_of(int64_t n)
{
    int64_t step = 1 + draw((int)(n < 1024 ? n : 1024)), a = n, b = step;
    for (int64_t r; b; a = b, b = r) r = a % b;
    return a == 1 ? step : 1;
}

void inv_emu_run(const inv_emu_kernel *k)
{
    if (inv_emu_guard) inv_emu_guard(true);
    state = inv_emu_seed + static_cast<uint64_t>(k->blocks);
    blockDim = {static_cast<unsigned>(k->threads), 1, 1};
    gridDim = {static_cast<unsigned>(k->blocks), 1, 1};
    const int64_t from = draw(1 << 20), block_step = step_of(k->blocks), thread_step = step_of(k->threads);
    for (int64_t b = 0; b < k->blocks; b++) {
        blockIdx = {static_cast<unsigned>(in_order(b, k->blocks, from, block_step)), 0, 0};
        nshared = 0;
        if (k->fibers) run_fibers(k);
        for (int64_t t = 0; t < k->threads && !k->fibers; t++) {
            threadIdx = {static_cast<unsigned>(in_order(t, k->threads, from, thread_step)), 0, 0};
            k->body(k->call);
        }
    }
    if (inv_emu_guard) inv_emu_guard(false);
}
