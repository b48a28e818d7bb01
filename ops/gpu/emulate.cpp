/* SPDX-License-Identifier: Apache-2.0
 * Threads of an emulated block as fibers. They take turns in rising order: each runs until its next barrier and hands
 * over to the next, so when the turn is back at the first, all have arrived. A fiber is made once, by ucontext, and waits
 * for its part in the next block when it has ended one. Between fibers go jumps, which ask nothing of the kernel, as
 * swapcontext does; the address sanitizer knows of stacks that are changed by swapcontext only. */
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
#define STACK ((size_t)128 * 1024)

void (*inv_emu_guard)(bool begin);
thread_local inv_dim3 inv_emu_thread, inv_emu_block, inv_emu_threads, inv_emu_blocks;

typedef struct fiber {
    ucontext_t context;
    jmp_buf at;
    bool made, started, done;
    unsigned shuffles, barriers;
    const void *stack; /* for the sanitizer: where it is, what it remembers of it */
    size_t stack_nbytes;
    void *remembered;
} fiber;

typedef struct pool {
    fiber *fibers; /* the last is where the kernel was started */
    char *stacks;
    unsigned char slot[2][MOST][8];
    int n, left;
    void (*body)(void *);
    void *arg;
} pool;

static thread_local pool *here;

/* Freed at the end of the thread, by the C library: a destructor would need C++'s. */
static thread_local pool mine;
static thread_local bool failed;
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

static void turn_to(fiber *from, int to)
{
    inv_emu_thread = {(unsigned)to, 0, 0};
    change(from, &here->fibers[to]);
    if (from != &here->fibers[MOST]) inv_emu_thread = {(unsigned)(from - here->fibers), 0, 0};
}

static void next(int self)
{
    for (int k = 1; k < here->n; k++) {
        const int to = (self + k) % here->n;
        if (!here->fibers[to].done) return turn_to(&here->fibers[self], to);
    }
}

/* Does not come back. */
static void run(void)
{
    const int self = (int)inv_emu_thread.x;
    fiber *f = &here->fibers[self];
    arrived(f, true);
    for (;;) {
        here->body(here->arg);
        f->done = true;
        if (--here->left > 0)
            next(self);
        else
            turn_to(f, MOST);
    }
}

/* In a kernel that was started without fibers, a barrier is a defect of it. */
void inv_emu_barrier(void)
{
    failed = failed || !here;
    if (!here) return;
    here->fibers[inv_emu_thread.x].barriers++;
    next((int)inv_emu_thread.x);
}

void inv_emu_shuffle_xor(const void *v, void *other, size_t nbytes, int mask)
{
    memcpy(other, v, nbytes);
    if (!here) return inv_emu_barrier();
    unsigned self = inv_emu_thread.x, parity = here->fibers[self].shuffles++ % 2;
    memcpy(here->slot[parity][self], v, nbytes);
    inv_emu_barrier();
    memcpy(other, here->slot[parity][self ^ (unsigned)mask], nbytes);
}

/* Apart, since getcontext may return twice. */
static void make_fiber(fiber *f, char *stack)
{
    f->done = false;
    f->shuffles = f->barriers = 0;
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

void inv_emu_fibers(int threads, void (*body)(void *arg), void *arg)
{
    failed = failed || threads > MOST || !get_ready();
    if (failed) return;
    here = &mine;
    here->n = here->left = threads;
    here->body = body;
    here->arg = arg;
    for (int t = 0; t < threads; t++) make_fiber(&here->fibers[t], here->stacks + static_cast<size_t>(t) * STACK);
    here->fibers[MOST].started = true;
    turn_to(&here->fibers[MOST], 0);
    for (int t = 1; t < threads; t++) failed = failed || here->fibers[t].barriers != here->fibers[0].barriers;
    here = NULL;
}
