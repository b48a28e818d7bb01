/* SPDX-License-Identifier: Apache-2.0
 * Threads of an emulated block as fibers (ucontext). They take turns in rising order: each runs until its next barrier
 * and hands over to the next, so when the turn is back at the first, all have arrived. */
#include "ops/emulate.h"

#include <pthread.h>
#include <stdlib.h>
#include <ucontext.h>

#if defined __SANITIZE_ADDRESS__
#include <sanitizer/common_interface_defs.h>
#define BEFORE_SWITCH(save, to) __sanitizer_start_switch_fiber(save, (to)->uc_stack.ss_sp, (to)->uc_stack.ss_size)
#define AFTER_SWITCH(save) __sanitizer_finish_switch_fiber(save, NULL, NULL)
#else
#define BEFORE_SWITCH(save, to) ((void)(save))
#define AFTER_SWITCH(save) ((void)(save))
#endif

#define MOST 1024
#define STACK ((size_t)128 * 1024)

thread_local inv_dim3 inv_emu_thread, inv_emu_block, inv_emu_threads, inv_emu_blocks;

typedef struct fiber {
    ucontext_t context;
    bool done;
    unsigned shuffles, barriers;
    void *asan;
} fiber;

typedef struct pool {
    fiber *fibers;
    char *stacks;
    unsigned char slot[2][MOST][8];
    ucontext_t home;
    void *home_asan;
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

static void go(fiber *from, fiber *to)
{
    BEFORE_SWITCH(from->done ? NULL : &from->asan, &to->context);
    swapcontext(&from->context, &to->context);
    AFTER_SWITCH(from->asan);
    inv_emu_thread = {(unsigned)(from - here->fibers), 0, 0};
}

static void next(int self)
{
    for (int k = 1; k <= here->n; k++) {
        fiber *to = &here->fibers[(self + k) % here->n];
        if (to->done || to == &here->fibers[self]) continue;
        inv_emu_thread = {(unsigned)(to - here->fibers), 0, 0};
        go(&here->fibers[self], to);
        return;
    }
}

static void run(void)
{
    AFTER_SWITCH(NULL);
    int self = (int)inv_emu_thread.x;
    here->body(here->arg);
    here->fibers[self].done = true;
    if (--here->left > 0) next(self); /* does not come back */
    BEFORE_SWITCH(NULL, &here->home);
    setcontext(&here->home);
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
    getcontext(&f->context);
    f->context.uc_stack.ss_sp = stack;
    f->context.uc_stack.ss_size = STACK;
    f->context.uc_link = &here->home;
    makecontext(&f->context, run, 0);
}

/* Memory for the fibers of this thread, once. */
static bool get_ready(void)
{
    if (mine.stacks) return true;
    (void)pthread_once(&once, make_key);
    if (!mine.fibers) mine.fibers = static_cast<fiber *>(calloc(MOST, sizeof(fiber)));
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
    inv_emu_thread = {0, 0, 0};
    BEFORE_SWITCH(&here->home_asan, &here->fibers[0].context);
    swapcontext(&here->home, &here->fibers[0].context);
    AFTER_SWITCH(here->home_asan);
    for (int t = 1; t < threads; t++) failed = failed || here->fibers[t].barriers != here->fibers[0].barriers;
    here = NULL;
}
