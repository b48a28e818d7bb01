/* SPDX-License-Identifier: Apache-2.0
 * Device `sim`: host memory posing as that of a GPU, kernels being the device code compiled for the host.
 *
 * Nothing is done when it is queued. `finish` takes the queues' heads in a random order that marks and waits allow, one
 * queue running far ahead of the others or lagging far behind, so that a missing wait, a result read too early, or
 * staging memory changed too soon shows. The memory of the device can be touched by kernels and copies only (it is
 * unmapped at all other times), ends in a red zone before an unmapped page, and is poisoned before it is written and
 * after it is freed. Plans run on it as on `cuda`. */
#define _DEFAULT_SOURCE /* MAP_ANONYMOUS */
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "core/program/exchange.h"
#include "executor/device/clock.h"
#include "executor/device/sim.h"
#include "executor/executor.h"
#include "ops/gpu/philox.h"

enum { RED = 0xa5, RED_BYTES = 64, MOST_BLOCKS = 8, STAY = 16 }; /* tasks of one queue in a row, on average */

inv_sim_faults inv_sim_faults_next;

typedef enum kind { RUN, COPY, MARK, WAIT, BEGIN, END, STAMP, TELL, JUDGE } kind;

typedef struct task {
    kind kind;
    int queue;
    const inv_node *node;
    const inv_call *call;
    const inv_call *const *calls; /* RUN: of several nodes, `count` of them; NULL: of one */
    void *dst;
    const void *src;
    size_t nbytes;
    size_t event,
        count; /* MARK: this is the count-th of the event; WAIT: for that one; STAMP, TELL: which one; RUN: calls */
    inv_judged found;
} task;

typedef INV_VEC(task) tasks;

typedef struct event {
    size_t queued, done; /* marks */
} event;

typedef struct graph {
    inv_arena arena;
    tasks task;
} graph;

typedef struct block {
    unsigned char *p; /* of `mapped` bytes and one more page that is never mapped */
    size_t nbytes, mapped;
} block;

typedef struct sim {
    inv_context *ctx;
    inv_gpu gpu;
    inv_sim_faults faults;
    block block[MOST_BLOCKS];
    size_t now, peak, runs;
    inv_arena arena; /* queues and events; emptied by finish */
    tasks queue[INV_QUEUES];
    size_t head[INV_QUEUES];
    INV_VEC(event) event;
    event told[INV_TOLDS];
    inv_arena lasting;
    INV_VEC(double) stamp;
    graph *recording;
    inv_gpu_ranks ranks;
    inv_world *world;
    const inv_gpu_reduction *reducing;
    uint64_t random;
    int turn;           /* the queue that goes on while it can */
    const char *broken; /* why nothing works any more */
} sim;

static _Thread_local sim *current; /* whose memory kernels may touch */

static void protect(const sim *s, bool open)
{
    for (size_t i = 0; i < MOST_BLOCKS; i++)
        if (s->block[i].p) (void)mprotect(s->block[i].p, s->block[i].mapped, open ? PROT_READ | PROT_WRITE : PROT_NONE);
}

static void guard(bool begin)
{
    if (current) protect(current, begin);
}

static inv_status sim_open(inv_context *ctx, int index, void **self)
{
    (void)index;
    sim *s = inv_alloc(ctx, sizeof *s);
    *self = s;
    if (!s) return INV_E_NOMEM;
    s->ctx = ctx;
    s->faults = inv_sim_faults_next;
    s->random = s->faults.seed + 1;
    inv_arena_init(&s->arena, ctx);
    inv_arena_init(&s->lasting, ctx);
    inv_gpu_emulate(&s->gpu);
    inv_emu_guard = guard;
    return INV_OK;
}

/* --- memory --- */

static inv_status check_red(const sim *s, const block *b)
{
    inv_status st = INV_OK;
    protect(s, true);
    for (size_t i = b->nbytes; i < b->mapped && st == INV_OK; i++)
        if (b->p[i] != RED)
            st = inv_fail(s->ctx, INV_E_INTERNAL, "a kernel wrote %zu bytes past the end of a block of %zu",
                          i - b->nbytes + 1, b->nbytes);
    protect(s, false);
    return st;
}

static inv_status sim_alloc(void *self, size_t nbytes, void **out)
{
    sim *s = self;
    size_t slot = 0, page = (size_t)sysconf(_SC_PAGESIZE), mapped = (nbytes + RED_BYTES + page - 1) / page * page;
    *out = NULL;
    while (slot < MOST_BLOCKS && s->block[slot].p) slot++;
    INV_CHECK(slot < MOST_BLOCKS, s->ctx, INV_E_INTERNAL, "more than %d blocks of device memory", MOST_BLOCKS);
    INV_CHECK(!s->faults.memory || nbytes <= s->faults.memory - s->now, s->ctx, INV_E_NOMEM,
              "out of device memory: %zu bytes are needed, %zu of %zu are free. Use a smaller batch, {budget} or "
              "{memory} auto",
              nbytes, s->faults.memory - s->now, s->faults.memory);
    unsigned char *p = mmap(NULL, mapped + page, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    INV_CHECK(p != MAP_FAILED, s->ctx, INV_E_NOMEM, "out of memory: %zu bytes for the simulated device", mapped);
    s->block[slot] = (block){p, nbytes, mapped};
    protect(s, true);
    memset(p, INV_POISON, nbytes);
    memset(p + nbytes, RED, mapped - nbytes);
    protect(s, false);
    s->now += nbytes;
    if (s->now > s->peak) s->peak = s->now;
    *out = p;
    return INV_OK;
}

static inv_status sim_finish(void *self);

static void sim_free(void *self, void *p)
{
    sim *s = self;
    if (!p) return;
    (void)sim_finish(s);
    for (size_t i = 0; i < MOST_BLOCKS; i++) {
        block *b = &s->block[i];
        if (b->p != p) continue;
        (void)munmap(b->p, b->mapped + (size_t)sysconf(_SC_PAGESIZE));
        s->now -= b->nbytes;
        *b = (block){0};
    }
}

static void sim_close(void *self)
{
    sim *s = self;
    if (!s) return;
    for (size_t i = 0; i < MOST_BLOCKS; i++) sim_free(s, s->block[i].p);
    inv_arena_fini(&s->arena);
    inv_arena_fini(&s->lasting);
    if (current == s) current = NULL;
    inv_dealloc(s->ctx, s);
}

static size_t sim_peak(void *self) { return ((sim *)self)->peak; }

static inv_status sim_pin(void *self, size_t nbytes, void **out)
{
    *out = inv_alloc(((sim *)self)->ctx, nbytes + 1);
    if (!*out) return INV_E_NOMEM;
    memset(*out, INV_POISON, nbytes); /* so that nothing is fetched before it was sent */
    return INV_OK;
}

static void sim_unpin(void *self, void *p) { inv_dealloc(((sim *)self)->ctx, p); }

static void sim_bind(void *self, unsigned char *control, inv_precision precision)
{
    sim *d = self;
    inv_gpu_bind(&d->gpu, control);
    d->gpu.precision = precision;
}

/* --- queueing --- */

static inv_status event_at(sim *s, size_t i, event **out)
{
    while (s->event.n <= i)
        if (!inv_vec_push(&s->arena, &s->event, (event){0})) return INV_E_NOMEM;
    *out = &s->event.at[i];
    return INV_OK;
}

static inv_status enqueue(sim *s, task t)
{
    INV_CHECK(!s->broken, s->ctx, INV_E_DEVICE, "%s", s->broken);
    if (s->recording) return inv_vec_push(&s->recording->arena, &s->recording->task, t) ? INV_OK : INV_E_NOMEM;
    if (t.kind == MARK || t.kind == WAIT) {
        event *e;
        INV_TRY(event_at(s, t.event, &e));
        if (t.kind == WAIT && (s->faults.drop_waits || s->faults.drop_event == t.event + 1)) return INV_OK;
        t.count = t.kind == MARK ? ++e->queued : e->queued;
    }
    if (!inv_vec_push(&s->arena, &s->queue[t.queue], t)) return INV_E_NOMEM;
    if (t.kind == TELL) s->told[t.event].queued++;
    return INV_OK;
}

static inv_status sim_run(void *self, int queue, const inv_node *node, const inv_call *call)
{
    return enqueue(self, (task){.kind = RUN, .queue = queue, .node = node, .call = call});
}

static inv_status sim_run_many(void *self, const inv_node *first, const inv_call *const *calls, size_t n)
{
    return enqueue(self, (task){.kind = RUN, .queue = INV_QUEUE_COMPUTE, .node = first, .calls = calls, .count = n});
}

static inv_status sim_send(void *self, int queue, void *dst, const void *src, size_t nbytes)
{
    return enqueue(self, (task){.kind = COPY, .queue = queue, .dst = dst, .src = src, .nbytes = nbytes});
}

static inv_status sim_copy(void *self, void *dst, const void *src, size_t nbytes)
{
    return sim_send(self, INV_QUEUE_COMPUTE, dst, src, nbytes);
}

static inv_status sim_mark(void *self, int queue, size_t i)
{
    return enqueue(self, (task){.kind = MARK, .queue = queue, .event = i});
}

static inv_status sim_wait(void *self, int queue, size_t i)
{
    return enqueue(self, (task){.kind = WAIT, .queue = queue, .event = i});
}

static inv_status sim_begin(void *self, int queue, void *p, size_t nbytes)
{
    return enqueue(self, (task){.kind = BEGIN, .queue = queue, .dst = p, .nbytes = nbytes});
}

static inv_status sim_end(void *self, int queue, void *p, size_t nbytes)
{
    return enqueue(self, (task){.kind = END, .queue = queue, .dst = p, .nbytes = nbytes});
}

static inv_status sim_stamp(void *self, size_t i)
{
    sim *s = self;
    while (s->stamp.n <= i)
        if (!inv_vec_push(&s->lasting, &s->stamp, 0)) return INV_E_NOMEM;
    return enqueue(s, (task){.kind = STAMP, .queue = INV_QUEUE_COMPUTE, .event = i});
}

static inv_status sim_tell(void *self, inv_told what)
{
    return enqueue(self, (task){.kind = TELL, .queue = INV_QUEUE_COMPUTE, .event = what});
}

static inv_status sim_judge(void *self, const inv_judged *found)
{
    return enqueue(self, (task){.kind = JUDGE, .queue = INV_QUEUE_COMPUTE, .found = *found});
}

static inv_status sim_between(void *self, size_t i, double *seconds)
{
    const sim *s = self;
    *seconds = s->stamp.at[i + 1] - s->stamp.at[i];
    return INV_OK;
}

/* --- doing --- */

static inv_status run_kernel(sim *s, const task *t)
{
    if (++s->runs == s->faults.fail_run) {
        s->broken = "the device has failed before";
        return inv_fail(s->ctx, INV_E_DEVICE, "node '%s' (%s): a kernel failed on the device (injected)",
                        inv_node_label(t->node), t->node->op->name);
    }
    inv_call c = t->calls ? *t->calls[0] : *t->call;
    c.gpu = &s->gpu;
    c.step = NULL;
    current = s;
    inv_status st = t->calls ? t->node->op->run_many(&s->gpu, t->calls, t->count) : t->node->op->run(&c);
    current = NULL;
    if (st == INV_E_UNSUPPORTED_TYPE || st == INV_E_INTERNAL) return inv_node_failed(s->ctx, t->node, st);
    INV_CHECK(!inv_emu_failed(), s->ctx, INV_E_NOMEM,
              "node '%s' (%s): no memory for a simulated kernel's stacks, or its threads did not meet at its barriers",
              inv_node_label(t->node), t->node->op->name);
    return st;
}

static inv_status run_judge(sim *s, const task *t)
{
    current = s;
    INV_GPU(&s->gpu, judge, &t->found);
    current = NULL;
    return INV_OK;
}

static inv_status touch(sim *s, const task *t)
{
    size_t fine = t->nbytes;
    protect(s, true);
    if (t->kind == COPY && t->nbytes) memmove(t->dst, t->src, t->nbytes);
    if (t->kind == END) memset(t->dst, INV_POISON, t->nbytes);
    if (t->kind == BEGIN) fine = inv_first_unpoisoned(t->dst, t->nbytes);
    protect(s, false);
    INV_CHECK(fine == t->nbytes, s->ctx, INV_E_INTERNAL,
              "memory was written after it was freed (byte %zu of a buffer of %zu)", fine, t->nbytes);
    return INV_OK;
}

static bool ready(const sim *s, int queue)
{
    if (s->head[queue] == s->queue[queue].n) return false;
    const task *t = &s->queue[queue].at[s->head[queue]];
    return t->kind != WAIT || s->event.at[t->event].done >= t->count;
}

static inv_status do_next(sim *s, int queue)
{
    const task *t = &s->queue[queue].at[s->head[queue]++];
    if (t->kind == MARK) s->event.at[t->event].done = t->count;
    if (t->kind == STAMP) s->stamp.at[t->event] = inv_clock_now();
    if (t->kind == TELL) s->told[t->event].done++;
    if (t->kind == MARK || t->kind == WAIT || t->kind == STAMP || t->kind == TELL) return INV_OK;
    if (t->kind == JUDGE) return run_judge(s, t);
    return t->kind == RUN ? run_kernel(s, t) : touch(s, t);
}

/* Takes what is queued until it is told, or, INV_TOLDS, until all is done. */
static inv_status go_on(sim *s, inv_told until)
{
    const event *told = until < INV_TOLDS ? &s->told[until] : NULL;
    inv_status st = INV_OK;
    INV_CHECK(!s->recording, s->ctx, INV_E_INTERNAL, "waited for the device while recording");
    for (bool left = true; left && st == INV_OK && (!told || told->done < told->queued);) {
        s->random = inv_mix64(s->random, 1);
        if (s->random % STAY == 0) s->turn = (int)(s->random / STAY % INV_QUEUES);
        int first = s->turn, queue = -1;
        left = false;
        for (int k = 0; k < INV_QUEUES; k++) {
            int q = (first + k) % INV_QUEUES;
            left = left || s->head[q] < s->queue[q].n;
            if (queue < 0 && ready(s, q)) queue = q;
        }
        if (queue >= 0) st = do_next(s, queue);
        else if (left) st = inv_fail(s->ctx, INV_E_INTERNAL, "the queues wait for each other");
    }
    return st;
}

static inv_status sim_hear(void *self, inv_told what)
{
    sim *s = self;
    const inv_status st = go_on(s, what);
    for (int q = 0; q < INV_QUEUES; q++) {
        tasks *left = &s->queue[q];
        if (s->head[q]) memmove(left->at, left->at + s->head[q], (left->n - s->head[q]) * sizeof *left->at);
        left->n -= s->head[q];
        s->head[q] = 0;
    }
    return st;
}

static inv_status sim_finish(void *self)
{
    sim *s = self;
    inv_status st = go_on(s, INV_TOLDS);
    memset(s->told, 0, sizeof s->told);
    for (int q = 0; q < INV_QUEUES; q++) s->queue[q] = (tasks){0}, s->head[q] = 0;
    memset(&s->event, 0, sizeof s->event);
    inv_arena_fini(&s->arena);
    inv_arena_init(&s->arena, s->ctx);
    for (size_t i = 0; i < MOST_BLOCKS && st == INV_OK; i++)
        if (s->block[i].p) st = check_red(s, &s->block[i]);
    return st;
}

static inv_status sim_upload(void *self, void *dst, const void *src, size_t nbytes)
{
    INV_TRY(sim_send(self, INV_QUEUE_COMPUTE, dst, src, nbytes));
    return sim_finish(self);
}

static inv_status sim_fetch(void *self, int queue, void *dst, const void *src, size_t nbytes)
{
    return sim_send(self, queue, dst, src, nbytes);
}

/* --- recording --- */

static inv_status sim_record(void *self)
{
    sim *s = self;
    s->recording = inv_alloc(s->ctx, sizeof *s->recording);
    if (!s->recording) return INV_E_NOMEM;
    inv_arena_init(&s->recording->arena, s->ctx);
    return INV_OK;
}

static inv_status sim_recorded(void *self, void **out, size_t *nodes)
{
    sim *s = self;
    *out = s->recording;
    *nodes = s->recording->task.n;
    s->recording = NULL;
    return INV_OK;
}

static inv_status sim_replay(void *self, void *p)
{
    const graph *g = p;
    for (size_t i = 0; i < g->task.n; i++) INV_TRY(enqueue(self, g->task.at[i]));
    return INV_OK;
}

static void sim_forget(void *self, void *p)
{
    graph *g = p;
    inv_arena_fini(&g->arena);
    inv_dealloc(((sim *)self)->ctx, g);
}

/* --- ranks: by the world of the host, when the queue comes by --- */

static inv_status sim_gather(const inv_gpu *gpu, const char *what, const void *mine, size_t nbytes, void *all)
{
    (void)gpu;
    inv_world *w = current->world;
    protect(current, true);
    const inv_status st = w->calls->gather(w, what, mine, nbytes, all);
    protect(current, false);
    return st;
}

static void sim_fold(const inv_reduction *r, int size, const unsigned char *parts, unsigned char *out)
{
    (void)r, (void)size, (void)parts;
    current->reducing->fold(&current->gpu, current->reducing, out);
    protect(current, true); /* a kernel's end has closed it */
}

static inv_status sim_reduce(const inv_gpu *gpu, const inv_gpu_reduction *of)
{
    (void)gpu;
    inv_world *w = current->world;
    const inv_reduction r = {.what = of->what,
                             .halves = INV_BOTH_HALVES,
                             .bucket = of->bucket,
                             .parts = of->parts,
                             .chunk_nbytes = of->chunk_nbytes,
                             .dtype = of->dtype,
                             .fold = sim_fold};
    current->reducing = of;
    protect(current, true);
    inv_status st = w->calls->reduce(w, &r);
    if (st == INV_OK) st = w->calls->reduced(w, r.bucket);
    protect(current, false);
    return st;
}

static inv_status sim_reduced(const inv_gpu *gpu, const char *what, const void *bucket)
{
    (void)gpu, (void)what, (void)bucket;
    return INV_OK;
}

static inv_status sim_join(void *self, inv_world *world)
{
    sim *s = self;
    s->world = world;
    if (world) s->ranks = (inv_gpu_ranks){world->rank, world->size, sim_gather, sim_reduce, sim_reduced};
    s->gpu.ranks = world ? &s->ranks : NULL;
    return INV_OK;
}

const inv_device inv_device_sim = {.name = "sim",
                                   .open = sim_open,
                                   .close = sim_close,
                                   .alloc = sim_alloc,
                                   .free = sim_free,
                                   .upload = sim_upload,
                                   .download = sim_upload,
                                   .copy = sim_copy,
                                   .run = sim_run,
                                   .run_many = sim_run_many,
                                   .begin = sim_begin,
                                   .end = sim_end,
                                   .peak = sim_peak,
                                   .pin = sim_pin,
                                   .unpin = sim_unpin,
                                   .bind = sim_bind,
                                   .send = sim_send,
                                   .fetch = sim_fetch,
                                   .mark = sim_mark,
                                   .wait = sim_wait,
                                   .finish = sim_finish,
                                   .tell = sim_tell,
                                   .hear = sim_hear,
                                   .judge = sim_judge,
                                   .record = sim_record,
                                   .recorded = sim_recorded,
                                   .replay = sim_replay,
                                   .forget = sim_forget,
                                   .stamp = sim_stamp,
                                   .between = sim_between,
                                   .join = sim_join};
