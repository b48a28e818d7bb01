/* SPDX-License-Identifier: Apache-2.0
 * A ring of batches. The first one is the caller's, or the next that he gets; threads fill those behind it, some rows
 * at a time, so that many threads work on the batch that is needed first. */
#include "data/loader.h"

#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { DEPTH = 3, MANY = 16 << 20 /* bytes of a mapped file worth reading ahead */, AROUND = 2 << 20 };

typedef struct slot {
    uint64_t epoch;
    int64_t start, n;
    int64_t claimed, done; /* rows that threads have taken on, and that are there */
    int64_t *rows;
    void *(*buffer)[DATA_FIELDS];
    char *error; /* of the failed row at the lowest position */
    int64_t failed;
} slot;

struct data_loader {
    data_loader_options o;
    slot ring[DEPTH];
    int depth, first, count; /* slots in use, from `first` on */
    bool held;               /* the caller has the first one */
    bool peeked;             /* and the second */
    int64_t taken;           /* rows of an epoch that are asked for, as far as is known */
    bool per_epoch;          /* rows are not the same in every epoch */
    bool stream;
    int64_t position; /* of a stream: the next row */
    int64_t chunk;
    size_t used; /* bytes of mapped rows since pages were last given back */
    pthread_mutex_t lock;
    pthread_cond_t work, ready;
    pthread_t *thread;
    int nthreads, active;
    bool stop, waited_for;
    data_batch given;
    double step_wait, reading_wait;
};

static double seconds_now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* --- rows of one batch --- */

/* The pages of a row are read here, so that the step finds them in memory. */
static void touch_row(const void *row, size_t nbytes)
{
    const volatile char *p = row;
    for (size_t at = 0; at < nbytes; at += 4096) (void)p[at];
}

static void note_failure(data_loader *l, slot *b, int64_t position, char *text)
{
    pthread_mutex_lock(&l->lock);
    if (!b->error || position < b->failed) {
        free(b->error);
        b->error = text;
        b->failed = position;
        text = NULL;
    }
    pthread_mutex_unlock(&l->lock);
    free(text);
}

static bool fill_row(data_loader *l, slot *b, int64_t i, FILE *why)
{
    const data_draw draw = {l->o.order.seed, b->epoch, &l->o.order, l->o.augment};
    for (size_t k = 0; k < l->o.nsources; k++) {
        const data_source *s = l->o.sources[k];
        void *out[DATA_FIELDS] = {NULL, NULL};
        bool any = false;
        for (int f = 0; f < DATA_FIELDS; f++) {
            if (!l->o.wanted[k][f]) continue;
            const size_t nbytes = s->field[f].nbytes;
            if (s->field[f].base) {
                if (l->nthreads && s->mapped_nbytes > MANY)
                    touch_row((const char *)s->field[f].base + (size_t)b->rows[i] * nbytes, nbytes);
                continue;
            }
            out[f] = (char *)b->buffer[k][f] + (size_t)i * nbytes;
            any = true;
        }
        if (any && !s->calls->fill(s, &draw, b->rows[i], out, why)) return false;
    }
    return true;
}

static void fill_rows(data_loader *l, slot *b, int64_t from, int64_t to)
{
    for (int64_t i = from; i < to; i++) {
        b->rows[i] = data_order_row(&l->o.order, b->epoch, b->start + i);
        char *text = NULL;
        size_t length = 0;
        FILE *why = open_memstream(&text, &length);
        const bool ok = why && fill_row(l, b, i, why);
        if (why) fclose(why);
        if (!ok) note_failure(l, b, i, text ? text : strdup("out of memory"));
        else free(text);
    }
}

/* --- the ring --- */

static slot *slot_at(data_loader *l, int i) { return &l->ring[(l->first + i) % l->depth]; }

static void plan_slot(data_loader *l, uint64_t epoch, int64_t start, int64_t n)
{
    slot *b = slot_at(l, l->count++);
    b->epoch = epoch;
    b->start = start;
    b->n = n;
    b->claimed = b->done = 0;
    free(b->error);
    b->error = NULL;
}

/* The batch behind the last one; false: there is none, or no room. */
static bool plan_next(data_loader *l)
{
    if (l->count == 0 || l->count == l->depth) return false;
    const slot *last = slot_at(l, l->count - 1);
    int64_t start = last->start + (l->o.apart ? l->o.apart : last->n);
    uint64_t epoch = last->epoch;
    if (start >= l->taken) {
        if (l->stream) return false;
        start = l->o.first;
        epoch += l->per_epoch;
    }
    int64_t n = l->o.batch;
    if (n > l->taken - start) n = l->taken - start;
    if (n <= 0) return false; /* a rank that has no rows of any step */
    plan_slot(l, epoch, start, n);
    return true;
}

/* Some rows that nobody has taken on yet, of the first batch that has any. */
static slot *claim_rows(data_loader *l, int64_t *from, int64_t *to)
{
    for (int i = 0; i < l->count; i++) {
        slot *b = slot_at(l, i);
        if (b->claimed == b->n) continue;
        *from = b->claimed;
        *to = b->claimed + l->chunk < b->n ? b->claimed + l->chunk : b->n;
        b->claimed = *to;
        return b;
    }
    return NULL;
}

static void *prepare_batches(void *opaque)
{
    data_loader *l = opaque;
    pthread_mutex_lock(&l->lock);
    while (!l->stop) {
        int64_t from, to;
        slot *b = claim_rows(l, &from, &to);
        if (!b && plan_next(l)) continue;
        if (!b) {
            const double began = seconds_now();
            const bool counts = l->count == l->depth && !l->waited_for;
            pthread_cond_wait(&l->work, &l->lock);
            if (counts) l->reading_wait += seconds_now() - began;
            continue;
        }
        l->active++;
        pthread_mutex_unlock(&l->lock);
        fill_rows(l, b, from, to);
        pthread_mutex_lock(&l->lock);
        l->active--;
        b->done += to - from;
        pthread_cond_broadcast(&l->ready);
    }
    pthread_mutex_unlock(&l->lock);
    return NULL;
}

/* What was guessed is not wanted. Nobody may write into a batch that is planned anew. */
static void drop_all(data_loader *l)
{
    for (int i = 0; i < l->count; i++) slot_at(l, i)->n = slot_at(l, i)->claimed;
    while (l->active) pthread_cond_wait(&l->ready, &l->lock);
    l->count = 0;
}

static bool is_at(const slot *b, uint64_t epoch, int64_t start, int64_t n)
{
    return b->epoch == epoch && b->start == start && b->n == n;
}

/* Pages of rows that have been used need not stay in the process's memory, or it would grow to the size of the data.
 * With a row the system maps what lies around it, up to a large page: so much more where rows are not in order. */
static void give_back(data_loader *l, int64_t n)
{
    for (size_t k = 0; k < l->o.nsources; k++) {
        const data_source *s = l->o.sources[k];
        size_t row = 0;
        for (int f = 0; f < DATA_FIELDS; f++) row += l->o.wanted[k][f] ? s->field[f].nbytes : 0;
        if (s->mapped_nbytes > MANY) l->used += (size_t)n * (l->o.order.shuffled && row < AROUND ? AROUND : row);
    }
    if (l->used < MANY) return;
    l->used = 0;
    for (size_t k = 0; k < l->o.nsources; k++)
        if (l->o.sources[k]->calls->give_back) l->o.sources[k]->calls->give_back(l->o.sources[k]);
}

/* Puts the batch that is asked for first. */
static bool seek_batch(data_loader *l, uint64_t epoch, int64_t start, int64_t n, FILE *why)
{
    if (l->held) {
        const slot *last = slot_at(l, 0);
        if (start == l->o.first && last->start + last->n < l->taken && !l->stream) l->taken = last->start + last->n;
        l->position = last->start + last->n;
        l->first = (l->first + 1) % l->depth;
        l->count--;
        l->held = false;
    }
    if (l->count && is_at(slot_at(l, 0), epoch, start, n)) return true;
    if (l->stream && (start != l->position || (l->count && slot_at(l, 0)->claimed))) {
        fprintf(why, "a pipe is read once, in order: after %lld rows, row %lld was asked for", (long long)l->position,
                (long long)start);
        return false;
    }
    drop_all(l);
    if (l->peeked) l->first = (l->first + l->depth - 1) % l->depth; /* who has seen it may know it by its place */
    if (start + n > l->taken) l->taken = start + n;
    plan_slot(l, epoch, start, n);
    return true;
}

static void fill_now(data_loader *l, slot *b)
{
    if (b->done == b->n) return;
    const double began = seconds_now();
    fill_rows(l, b, 0, b->n);
    b->claimed = b->done = b->n;
    l->step_wait += seconds_now() - began;
}

static data_batch batch_of(const slot *b)
{
    return (data_batch){b->n, b->rows, (const void *(*)[DATA_FIELDS])b->buffer};
}

bool data_loader_take(data_loader *l, uint64_t epoch, int64_t start, int64_t n, const data_batch **out, FILE *why)
{
    if (!l->per_epoch) epoch = 0;
    pthread_mutex_lock(&l->lock);
    bool ok = true;
    if (!l->held || !is_at(slot_at(l, 0), epoch, start, n)) {
        give_back(l, n);
        ok = seek_batch(l, epoch, start, n, why);
        l->peeked = false;
    }
    slot *b = ok ? slot_at(l, 0) : NULL;
    pthread_cond_broadcast(&l->work);
    if (ok && l->nthreads) {
        const double began = seconds_now();
        l->waited_for = true;
        while (b->done < b->n) pthread_cond_wait(&l->ready, &l->lock);
        l->waited_for = false;
        l->step_wait += seconds_now() - began;
    }
    pthread_mutex_unlock(&l->lock);
    if (!ok) return false;
    if (!l->nthreads) fill_now(l, b);
    l->held = true;
    if (b->error) return fputs(b->error, why), false;
    l->given = batch_of(b);
    *out = &l->given;
    return true;
}

bool data_loader_peek(data_loader *l, uint64_t epoch, int64_t start, int64_t n, data_batch *out)
{
    if (!l->per_epoch) epoch = 0;
    if (!l->o.peeks || (l->stream && !l->nthreads)) return false;
    pthread_mutex_lock(&l->lock);
    if (l->held && l->count == 1 && !l->stream) plan_slot(l, epoch, start, n);
    slot *b = l->held && l->count > 1 && is_at(slot_at(l, 1), epoch, start, n) ? slot_at(l, 1) : NULL;
    bool there = b && b->done == b->n;
    pthread_mutex_unlock(&l->lock);
    if (b && !l->nthreads) fill_now(l, b);
    there = b && (there || !l->nthreads) && !b->error;
    l->peeked = l->peeked || there;
    if (there) *out = batch_of(b);
    return there;
}

/* --- its life --- */

static bool make_slots(data_loader *l)
{
    for (int i = 0; i < l->depth; i++) {
        slot *b = &l->ring[i];
        b->rows = calloc((size_t)l->o.batch + 1, sizeof *b->rows);
        b->buffer = calloc(l->o.nsources + 1, sizeof *b->buffer);
        if (!b->rows || !b->buffer) return false;
        for (size_t k = 0; k < l->o.nsources; k++) {
            for (int f = 0; f < DATA_FIELDS; f++) {
                const data_field *field = &l->o.sources[k]->field[f];
                if (!l->o.wanted[k][f] || field->base) continue;
                const size_t nbytes = ((size_t)l->o.batch * field->nbytes + 64) / 64 * 64;
                b->buffer[k][f] = aligned_alloc(64, nbytes);
                if (!b->buffer[k][f]) return false;
                memset(b->buffer[k][f], 0, nbytes); /* in the process's memory from now on, which is measured */
            }
        }
    }
    return true;
}

/* Signals are for the thread that runs the program; those of a bad access come where it was. */
static bool start_threads(data_loader *l)
{
    sigset_t all, before;
    sigfillset(&all);
    sigdelset(&all, SIGBUS);
    sigdelset(&all, SIGSEGV);
    sigdelset(&all, SIGFPE);
    pthread_sigmask(SIG_BLOCK, &all, &before);
    while (l->nthreads < l->o.threads && pthread_create(&l->thread[l->nthreads], NULL, prepare_batches, l) == 0)
        l->nthreads++;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return l->nthreads == l->o.threads;
}

bool data_loader_create(const data_loader_options *o, data_loader **out, FILE *why)
{
    data_loader *l = calloc(1, sizeof *l);
    *out = l;
    if (!l) return fputs("out of memory", why), false;
    l->o = *o;
    l->taken = data_order_count(&o->order);
    l->per_epoch = o->order.shuffled;
    bool computes = false;
    for (size_t k = 0; k < o->nsources; k++) {
        l->stream |= o->sources[k]->stream;
        computes |= o->sources[k]->computes;
        l->per_epoch |= o->augment && o->sources[k]->varies;
    }
    if (l->o.threads > 1 && (l->stream || !computes)) l->o.threads = 1;
    l->depth = l->o.threads ? DEPTH : 1 + o->peeks;
    l->chunk = computes ? o->batch / (4 * (l->o.threads + 1)) + 1 : 256;
    pthread_mutex_init(&l->lock, NULL);
    pthread_cond_init(&l->work, NULL);
    pthread_cond_init(&l->ready, NULL);
    l->thread = calloc((size_t)l->o.threads + 1, sizeof *l->thread);
    if (!l->thread || !make_slots(l)) return fputs("out of memory", why), false;
    if (!start_threads(l)) return fputs("no thread can be started that reads data", why), false;
    return true;
}

void data_loader_destroy(data_loader *l)
{
    if (!l) return;
    for (size_t k = 0; k < l->o.nsources; k++) atomic_store(&l->o.sources[k]->stop, true);
    pthread_mutex_lock(&l->lock);
    l->stop = true;
    pthread_cond_broadcast(&l->work);
    pthread_mutex_unlock(&l->lock);
    for (int i = 0; i < l->nthreads; i++) pthread_join(l->thread[i], NULL);
    for (int i = 0; i < l->depth; i++) {
        slot *b = &l->ring[i];
        for (size_t k = 0; b->buffer && k < l->o.nsources; k++)
            for (int f = 0; f < DATA_FIELDS; f++) free(b->buffer[k][f]);
        free(b->buffer);
        free(b->rows);
        free(b->error);
    }
    pthread_mutex_destroy(&l->lock);
    pthread_cond_destroy(&l->work);
    pthread_cond_destroy(&l->ready);
    free(l->thread);
    free(l);
}

data_waits data_loader_waits(data_loader *l)
{
    pthread_mutex_lock(&l->lock);
    const data_waits w = {l->nthreads, l->step_wait, l->nthreads ? l->reading_wait / l->nthreads : 0};
    pthread_mutex_unlock(&l->lock);
    return w;
}
