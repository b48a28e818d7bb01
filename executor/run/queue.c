/* SPDX-License-Identifier: Apache-2.0
 * Steps on devices with queues. What a step needs from the host is put into pinned memory, and all that follows is
 * queued at once, the update too:
 *
 *     send control -> compute part -> judge -> fetch loss, verdicts -> tell -> commit part
 *
 * The host waits for `tell` and reads what was found; the device has judged it by then by itself, and the commit part
 * does nothing if the step is refused. So the host prepares the next step while this one is committed. Of several
 * ranks none commits what another refuses: there the host queues the commit part, when all have agreed. Feeds, and
 * values that go to host memory and back, are copied beside the compute part (transfer.c), or feeds come before their
 * step (ahead.c). The first run of a plan is
 * queued node by node, which loads libraries and kernels; from the second on the step is a recorded graph, queued as a
 * whole. Nothing that changes from step to step may therefore be an argument of a kernel: it stands in `control`. */
#include <string.h>

#include "executor/executor.h"
#include "executor/run/agree.h"

enum { RESULTS = 16 * INV_FETCHED, NOT_YET = 0xff }; /* bytes for fetched values; what they are before they come */

/* Where in pinned memory values are fetched to, and the verdicts: a copy of `control`. Before both, what is sent. */
static size_t values_at(const inv_session *s) { return s->program->control; }
static size_t found_at(const inv_session *s) { return s->program->control + RESULTS; }
/* The word that is fetched before something is told: the fault, of which it matters behind all else what it is. */
static size_t word_at(const inv_session *s, inv_told what)
{
    return found_at(s) + (what == INV_TOLD_FOUND ? INV_CONTROL_FAULT : s->program->control);
}

inv_status inv_queues_ready(inv_session *s)
{
    if (s->device->host) return INV_OK;
    const inv_plan *plan = s->program->plan;
    const size_t host = inv_round64(word_at(s, INV_TOLD_FED) + sizeof(uint64_t));
    size_t need = s->staged = host + s->program->host;
    void *pinned;
    for (int k = 0; k < INV_PLAN_KINDS; k++) {
        if (!plan[k].g) continue;
        const size_t end = s->staged + inv_plan_feed_at(&plan[k], plan[k].feed.n);
        INV_TRY(inv_transfers_note(s, k, host));
        if (end > need) need = end;
    }
    INV_TRY(s->device->pin(s->self, need, &pinned));
    s->pinned = pinned;
    s->device->bind(s->self, s->control, s->program->options.precision);
    return INV_OK;
}

void inv_queues_drain(inv_session *s)
{
    if (s->device->host) return;
    const inv_error why = inv_error_take(s->ctx); /* of what made this necessary; it stays */
    (void)s->device->finish(s->self);
    inv_error_put(s->ctx, &why);
}

void inv_queues_forget(inv_session *s)
{
    inv_queues_drain(s); /* what is queued reads what goes */
    inv_ahead_forget(s);
    for (int k = 0; k < INV_PLAN_KINDS; k++) {
        if (s->run[k].graph) s->device->forget(s->self, s->run[k].graph);
        s->run[k].graph = NULL;
    }
    if (s->pinned) s->device->unpin(s->self, s->pinned);
    s->pinned = NULL;
}

/* What kernels read of the step, and behind the places for the guards' verdicts their limits. */
static void put_control(inv_session *s, const inv_plan *plan)
{
    _Static_assert(sizeof(inv_gpu_step) <= INV_CONTROL_TURN, "the values of a step fit before the others");
    const inv_step *from = &s->step;
    inv_gpu_step *to = (inv_gpu_step *)(void *)s->pinned;
    double *limit = (double *)(void *)(s->pinned + INV_CONTROL_STEP) + plan->guarded.n;
    memset(s->pinned, 0, s->program->control);
    *to = (inv_gpu_step){.seed = from->seed,
                         .step = from->step,
                         .micro = from->micro,
                         .first_sample = from->first_sample,
                         .mixed = from->mixed,
                         .batch = from->batch,
                         .absent = from->absent,
                         .lr = from->lr,
                         .kept = from->kept,
                         .added = from->added,
                         .own = s->own,
                         .weight = from->weight};
    memcpy(to->group_lr, from->group_lr, sizeof to->group_lr);
    for (size_t i = 0; i < plan->guarded.n; i++)
        limit[i] = inv_guard_limit(&plan->guarded.at[i], s->program->max_drift);
}

inv_status inv_queues_begin(inv_session *s, int kind)
{
    const inv_plan *plan = &s->program->plan[kind];
    for (size_t i = 0; i < plan->guarded.n; i++) s->drift[i] = 0;
    if (s->device->host) return s->device->end ? s->device->end(s->self, 0, s->transient, s->transient_nbytes) : INV_OK;
    INV_TRY(inv_ahead_begin(s, kind));
    put_control(s, plan);
    if (!s->device->end) return INV_OK;
    const size_t before = s->program->control + s->program->landing;
    return s->device->end(s->self, INV_QUEUE_COMPUTE, s->transient, s->transient_nbytes - before);
}

static inv_status send_control(inv_session *s)
{
    return s->device->send(s->self, INV_QUEUE_COMPUTE, s->control, s->pinned, s->program->control);
}

static const void *number_at(const inv_session *s, const inv_graph *g, inv_id v, bool *wide)
{
    *wide = v != INV_NONE && inv_val(g, v)->dtype == INV_F64;
    return v == INV_NONE ? NULL : inv_value_address(s, inv_val(g, v));
}

static inv_status judge(inv_session *s, int kind)
{
    const inv_plan *plan = &s->program->plan[kind];
    inv_judged found = {.guards = (int64_t)plan->guarded.n};
    bool wide;
    found.loss = number_at(s, plan->g, plan->loss, &found.loss_wide);
    found.bad = number_at(s, plan->g, plan->finite, &wide);
    found.weight = number_at(s, plan->g, plan->total, &found.weight_wide);
    return s->device->judge(s->self, &found);
}

static size_t fetched_nbytes(const inv_plan *plan, inv_id v)
{
    const size_t nbytes = inv_value_nbytes(inv_val(plan->g, v));
    return nbytes > 16 ? 16 : nbytes;
}

inv_status inv_queues_tell(inv_session *s, inv_told what)
{
    INV_TRY(s->device->fetch(s->self, INV_QUEUE_COMPUTE, s->pinned + word_at(s, what), s->control + INV_CONTROL_FAULT,
                             sizeof(uint64_t)));
    return s->device->tell(s->self, what);
}

static inv_status fetch_found(inv_session *s, const inv_plan *plan, const inv_id value[INV_FETCHED])
{
    const inv_device *d = s->device;
    unsigned char *found = s->pinned + found_at(s);
    const size_t verdicts = plan->guarded.n * sizeof *s->drift;
    for (size_t i = 0; i < INV_FETCHED; i++)
        if (value[i] != INV_NONE)
            INV_TRY(d->fetch(s->self, INV_QUEUE_COMPUTE, s->pinned + values_at(s) + 16 * i,
                             inv_value_address(s, inv_val(plan->g, value[i])), fetched_nbytes(plan, value[i])));
    if (!verdicts) return INV_OK;
    return d->fetch(s->self, INV_QUEUE_COMPUTE, found + INV_CONTROL_STEP, s->control + INV_CONTROL_STEP, verdicts);
}

/* Whether the device commits by itself what it has judged. */
static bool commits_alone(const inv_session *s, const inv_runnable *r)
{
    return r->commit_begin < r->n && !inv_ranks_world(s);
}

static inv_status queue_step(inv_session *s, int kind, const inv_id value[INV_FETCHED], inv_part *at)
{
    const inv_runnable *r = &s->run[kind];
    const bool commits = commits_alone(s, r);
    *at = INV_PART_COMPUTE;
    INV_TRY(send_control(s));
    INV_TRY(inv_runnable_compute(s, kind, 0, r->commit_begin, NULL));
    if (commits) INV_TRY(judge(s, kind));
    INV_TRY(fetch_found(s, &s->program->plan[kind], value));
    INV_TRY(inv_queues_tell(s, INV_TOLD_FOUND));
    if (!commits) return INV_OK;
    *at = INV_PART_COMMIT;
    return inv_runnable_compute(s, kind, r->commit_begin, r->n, NULL);
}

static inv_status record(inv_session *s, int kind, const inv_id value[INV_FETCHED], inv_part *at)
{
    void *graph = NULL;
    size_t nodes = 0;
    INV_TRY(s->device->record(s->self));
    inv_status st = queue_step(s, kind, value, at);
    const inv_error broke = inv_error_take(s->ctx);
    const inv_status end = s->device->recorded(s->self, &graph, &nodes);
    if (st != INV_OK || end == INV_OK) inv_error_put(s->ctx, &broke); /* what broke a recording is what is told */
    else inv_error_drop(s->ctx, &broke);
    if (st == INV_OK) st = end;
    if (st == INV_OK) s->run[kind].graph_nodes = nodes;
    if (st == INV_OK) s->run[kind].graph = graph;
    else if (graph) s->device->forget(s->self, graph); /* it has a part of the step */
    return st;
}

/* It is looked whether the word has come, since an event that a graph records is believed to count from when the graph
 * is queued, and what the step before told would be taken for this one's. */
inv_status inv_queues_hear(inv_session *s, inv_told what)
{
    unsigned char not_yet[sizeof(uint64_t)];
    memset(not_yet, NOT_YET, sizeof not_yet);
    INV_TRY(s->device->hear(s->self, what));
    return memcmp(s->pinned + word_at(s, what), not_yet, sizeof not_yet) == 0 ? s->device->finish(s->self) : INV_OK;
}

static inv_status step_on_device(inv_session *s, int kind, const inv_id value[INV_FETCHED],
                                 unsigned char bytes[INV_FETCHED][16], inv_part *at)
{
    inv_runnable *r = &s->run[kind];
    uint64_t fault;
    memset(s->pinned + found_at(s), NOT_YET, s->program->control + sizeof fault);
    INV_TRY(inv_ahead_await(s, kind));
    if (!r->warm || s->program->options.profile) INV_TRY(queue_step(s, kind, value, at));
    else {
        if (!r->graph) INV_TRY(record(s, kind, value, at));
        *at = commits_alone(s, r) ? INV_PART_COMMIT : INV_PART_COMPUTE;
        if (r->graph) INV_TRY(s->device->replay(s->self, r->graph)); /* NULL: nothing was recorded */
    }
    r->warm = true;
    INV_TRY(inv_ahead_send(s, kind));
    *at = INV_PART_COMPUTE; /* a step with a fault is not committed */
    INV_TRY(inv_queues_hear(s, INV_TOLD_FOUND));
    if (inv_lands(s, kind) && s->landed.kind < 0) s->sending = false; /* it was this step's own */
    memcpy(&fault, s->pinned + word_at(s, INV_TOLD_FOUND), sizeof fault);
    memcpy(bytes, s->pinned + values_at(s), RESULTS);
    memcpy(s->drift, s->pinned + found_at(s) + INV_CONTROL_STEP, s->program->plan[kind].guarded.n * sizeof *s->drift);
    const inv_node *n = fault ? (const inv_node *)(uintptr_t)~fault : NULL; /* of this plan */
    return n ? inv_node_failed(s->ctx, n, INV_E_NUMERIC) : INV_OK;
}

inv_status inv_queues_step(inv_session *s, int kind, const inv_id value[INV_FETCHED],
                           unsigned char bytes[INV_FETCHED][16], inv_part *at)
{
    const inv_plan *plan = &s->program->plan[kind];
    *at = INV_PART_COMPUTE;
    if (!s->device->host) {
        const inv_status st = step_on_device(s, kind, value, bytes, at);
        if (plan->g->early) *at = INV_PART_COMMIT;
        return st;
    }
    const inv_status st = inv_runnable_compute(s, kind, 0, s->run[kind].commit_begin, NULL);
    if (s->wrote && !s->program->options.accumulate) *at = INV_PART_COMMIT; /* of early updates */
    INV_TRY(st);
    for (int i = 0; i < INV_FETCHED; i++)
        if (value[i] != INV_NONE)
            memcpy(bytes[i], inv_value_address(s, inv_val(plan->g, value[i])), fetched_nbytes(plan, value[i]));
    return INV_OK;
}

inv_status inv_queues_commit(inv_session *s, int kind)
{
    const inv_runnable *r = &s->run[kind];
    if (s->device->host) return inv_runnable_compute(s, kind, r->commit_begin, r->n, NULL);
    if (!inv_ranks_world(s)) return INV_OK;  /* it is in the step already */
    put_control(s, &s->program->plan[kind]); /* what the batch counts for is known now */
    INV_TRY(send_control(s));
    INV_TRY(inv_runnable_compute(s, kind, r->commit_begin, r->n, NULL));
    return s->device->finish(s->self); /* before the next step puts its values there */
}

inv_status inv_queues_find_bad(inv_session *s, int kind, bool *bad)
{
    if (!s->device->host) {
        INV_TRY(inv_ahead_await(s, kind));
        INV_TRY(send_control(s));
    }
    return inv_runnable_compute(s, kind, 0, s->run[kind].commit_begin, bad);
}
