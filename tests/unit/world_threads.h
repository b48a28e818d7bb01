/* SPDX-License-Identifier: Apache-2.0
 * Ranks that are threads of a test: what core/program/exchange.h says, over their common memory. Everything is done at
 * once when it begins. A rank that has failed ends the others' waiting. Include it behind cmocka. */
#ifndef WORLD_THREADS_H
#define WORLD_THREADS_H

#include <pthread.h>
#include <string.h>

#include "core/program/exchange.h"

enum { MOST_RANKS = 4 };

typedef struct meeting {
    pthread_mutex_t lock;
    pthread_cond_t met;
    int size, arrived;
    unsigned round;
    bool broken;
    const void *mine[MOST_RANKS];
} meeting;

typedef struct thread_world {
    inv_world base;
    meeting *at;
} thread_world;

/* Waits for all; what each of them brings is there until they meet again. */
static inline inv_status meet(inv_world *w, const void *mine)
{
    meeting *m = ((thread_world *)(void *)w)->at;
    pthread_mutex_lock(&m->lock);
    const unsigned round = m->round;
    if (mine) m->mine[w->rank] = mine;
    if (++m->arrived == m->size) {
        m->arrived = 0;
        m->round++;
        pthread_cond_broadcast(&m->met);
    }
    while (m->round == round && !m->broken) pthread_cond_wait(&m->met, &m->lock);
    const bool broken = m->broken;
    pthread_mutex_unlock(&m->lock);
    return broken ? INV_E_RANKS : INV_OK;
}

static inline void break_up(meeting *m)
{
    pthread_mutex_lock(&m->lock);
    m->broken = true;
    pthread_cond_broadcast(&m->met);
    pthread_mutex_unlock(&m->lock);
}

static inline inv_status threads_gather(inv_world *w, const char *what, const void *mine, size_t nbytes, void *all)
{
    (void)what;
    INV_TRY(meet(w, mine));
    for (int r = 0; r < w->size; r++)
        memcpy((char *)all + (size_t)r * nbytes, ((thread_world *)(void *)w)->at->mine[r], nbytes);
    return meet(w, NULL);
}

static inline inv_status threads_broadcast(inv_world *w, const char *what, int root, void *data, size_t nbytes)
{
    (void)what;
    INV_TRY(meet(w, data));
    if (root != w->rank) memcpy(data, ((thread_world *)(void *)w)->at->mine[root], nbytes);
    return meet(w, NULL);
}

static inline inv_status threads_reduce(inv_world *w, const inv_reduction *r)
{
    const void *const *bucket = ((thread_world *)(void *)w)->at->mine;
    const size_t n = r->chunk_nbytes, own = (size_t)w->rank * n;
    INV_TRY(meet(w, r->bucket));
    for (size_t k = 0; k < (size_t)w->size && r->halves & INV_SCATTER; k++)
        memcpy(r->parts + k * n, (const char *)bucket[k] + own, n);
    INV_TRY(meet(w, NULL));
    if (r->halves & INV_SCATTER) r->fold(r, w->size, r->parts, r->bucket + own);
    INV_TRY(meet(w, NULL));
    for (size_t k = 0; k < (size_t)w->size && r->halves & INV_SPREAD; k++)
        if ((int)k != w->rank) memcpy(r->bucket + k * n, (const char *)bucket[k] + k * n, n);
    return meet(w, NULL);
}

static inline inv_status threads_reduced(inv_world *w, const void *bucket)
{
    (void)w, (void)bucket;
    return INV_OK;
}
static inline void threads_progress(inv_world *w) { (void)w; }
static inline inv_status threads_late(inv_world *w, const char *what) { return (void)w, (void)what, INV_E_RANKS; }
static inline void threads_end(inv_world *w, int status) { (void)w, (void)status; }
static inline void threads_close(inv_world *w) { (void)w; }

static inline int threads_first(inv_world *w, double seconds) { return (void)w, (void)seconds, 1; }

static const inv_world_calls threads_calls = {threads_gather, threads_broadcast, threads_reduce,
                                              threads_first,  threads_progress,  threads_reduced,
                                              threads_late,   threads_end,       threads_close};

/* Runs n ranks, objects of so many bytes that begin with their thread_world, till all have ended. */
static inline void run_threads(int n, void *ranks, size_t nbytes, void *(*run)(void *))
{
    meeting m = {.size = n};
    pthread_t thread[MOST_RANKS];
    pthread_mutex_init(&m.lock, NULL);
    pthread_cond_init(&m.met, NULL);
    for (int r = 0; r < n; r++) {
        thread_world *w = (thread_world *)(void *)((char *)ranks + (size_t)r * nbytes);
        *w = (thread_world){{.calls = &threads_calls, .rank = r, .size = n, .timeout = 60}, &m};
        w->base.latency = 1e-9;
        w->base.bytes_per_second = 1e9;
        assert_int_equal(pthread_create(&thread[r], NULL, run, w), 0);
    }
    for (int r = 0; r < n; r++) pthread_join(thread[r], NULL);
    pthread_mutex_destroy(&m.lock);
    pthread_cond_destroy(&m.met);
}

#endif
