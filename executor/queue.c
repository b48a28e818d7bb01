/* SPDX-License-Identifier: Apache-2.0
 * Steps on devices with queues. What a step needs from the host is put into pinned memory, sent, and what it found is
 * fetched and waited for once:
 *
 *     send control -> compute part -> fetch loss, verdicts -> finish -> commit part
 *
 * Feeds, and values that go to host memory and back, are copied beside the compute part (transfer.c).
 * The first run of a plan is queued node by node, which loads libraries and kernels; from the second on each part is a
 * recorded graph, queued as a whole. Nothing that changes from step to step may therefore be an argument of a kernel:
 * it stands in `control`. */
#include <string.h>

#include "executor/executor.h"

enum { RESULTS = 16 * INV_FETCHED }; /* bytes for fetched values */

inv_status inv_queues_ready(inv_session *s)
{
    if (s->device->host) return INV_OK;
    const size_t host = inv__round64(s->program->control + RESULTS), feeds = host + s->program->host;
    size_t need = feeds;
    void *pinned;
    for (int k = 0; k < INV_PLAN_KINDS; k++)
        if (s->program->plan[k].g) INV_TRY(inv_transfers_note(s, k, host, feeds, &need));
    INV_TRY(s->device->pin(s->self, need, &pinned));
    s->pinned = pinned;
    s->device->bind(s->self, s->control, s->program->options.precision);
    return INV_OK;
}

void inv_queues_drain(inv_session *s)
{
    if (s->device->host) return;
    const inv_error why = inv__error_take(s->ctx); /* of what made this necessary; it stays */
    (void)s->device->finish(s->self);
    inv__error_put(s->ctx, &why);
}

void inv_queues_forget(inv_session *s)
{
    inv_queues_drain(s); /* what is queued reads what goes */
    for (int k = 0; k < INV_PLAN_KINDS; k++)
        for (int part = 0; part < 2; part++) {
            if (s->run[k].graph[part]) s->device->forget(s->self, s->run[k].graph[part]);
            s->run[k].graph[part] = NULL;
        }
    if (s->pinned) s->device->unpin(s->self, s->pinned);
    s->pinned = NULL;
}

static void put_step_values(inv_session *s)
{
    const inv_step *from = &s->step;
    inv_gpu_step *to = (inv_gpu_step *)(void *)s->pinned;
    *to = (inv_gpu_step){.seed = from->seed,
                         .step = from->step,
                         .micro = from->micro,
                         .first_sample = from->first_sample,
                         .batch = from->batch,
                         .lr = from->lr,
                         .kept = from->kept,
                         .added = from->added,
                         .weight = from->weight};
    memcpy(to->group_lr, from->group_lr, sizeof to->group_lr);
}

inv_status inv_queues_step_values(inv_session *s)
{
    if (s->device->host) return INV_OK;
    put_step_values(s);
    return s->device->send(s->self, INV_QUEUE_COMPUTE, s->control, s->pinned, sizeof(inv_gpu_step));
}

inv_status inv_queues_begin(inv_session *s, int kind)
{
    _Static_assert(sizeof(inv_gpu_step) <= INV_CONTROL_TURN, "the values of a step fit before the others");
    size_t guards = s->program->plan[kind].guarded.n;
    for (size_t i = 0; i < guards; i++) s->drift[i] = 0;
    if (s->device->host) return s->device->end ? s->device->end(s->self, 0, s->transient, s->transient_nbytes) : INV_OK;
    const inv_runnable *r = &s->run[kind];
    const inv_step *step = &s->step;
    for (size_t i = 0; i < r->ntransfer; i++) {
        const inv_transfer *t = &r->transfer[i];
        inv_tensor out = r->node[t->at].call.out[0];
        if (t->again || !(r->node[t->at].node->op->flags & INV_OP_SOURCE)) continue;
        out.data = s->pinned + t->staged;
        inv_call c = {.node = r->node[t->at].node, .out = &out, .nout = 1, .step = step};
        INV_TRY(inv_run_on_host(s->ctx, c.node, &c));
    }
    memset(s->pinned, 0, s->program->control);
    put_step_values(s);
    INV_TRY(s->device->send(s->self, INV_QUEUE_COMPUTE, s->control, s->pinned, s->program->control));
    if (!s->device->end) return INV_OK;
    return s->device->end(s->self, INV_QUEUE_COMPUTE, s->transient, s->transient_nbytes - s->program->control);
}

static inv_status record(inv_session *s, int kind, inv_part part, size_t from, size_t to)
{
    void *graph = NULL;
    size_t nodes = 0;
    INV_TRY(s->device->record(s->self));
    inv_status st = inv_runnable_compute(s, kind, from, to, NULL);
    const inv_error broke = inv__error_take(s->ctx);
    const inv_status end = s->device->recorded(s->self, &graph, &nodes);
    if (st != INV_OK || end == INV_OK) inv__error_put(s->ctx, &broke); /* what broke a recording is what is told */
    else inv__error_drop(s->ctx, &broke);
    if (st == INV_OK) st = end;
    if (st == INV_OK) s->run[kind].graph_nodes[part] = nodes;
    if (st == INV_OK) s->run[kind].graph[part] = graph;
    else if (graph) s->device->forget(s->self, graph); /* it has a part of the step */
    return st;
}

inv_status inv_queues_part(inv_session *s, int kind, inv_part part)
{
    inv_runnable *r = &s->run[kind];
    size_t from = part == INV_PART_COMPUTE ? 0 : r->commit_begin;
    size_t to = part == INV_PART_COMPUTE ? r->commit_begin : r->n;
    if (s->device->host || !r->warm[part] || s->program->options.profile) {
        INV_TRY(inv_runnable_compute(s, kind, from, to, NULL));
        r->warm[part] = true;
        return INV_OK;
    }
    if (!r->graph[part]) INV_TRY(record(s, kind, part, from, to));
    return r->graph[part] ? s->device->replay(s->self, r->graph[part]) : INV_OK; /* NULL: nothing was recorded */
}

inv_status inv_queues_results(inv_session *s, int kind, const inv_id value[INV_FETCHED],
                              unsigned char bytes[INV_FETCHED][16])
{
    const inv_plan *plan = &s->program->plan[kind];
    size_t control = s->program->control, guards = plan->guarded.n * sizeof(double);
    for (int i = 0; i < INV_FETCHED; i++) {
        if (value[i] == INV_NONE) continue;
        const inv_value *v = inv_val(plan->g, value[i]);
        size_t nbytes = inv_value_nbytes(v);
        if (nbytes > 16) nbytes = 16;
        if (s->device->host) memcpy(bytes[i], inv_value_address(s, v), nbytes);
        else
            INV_TRY(s->device->fetch(s->self, INV_QUEUE_COMPUTE, s->pinned + control + 16 * i, inv_value_address(s, v),
                                     nbytes));
    }
    if (s->device->host) return INV_OK;
    uint64_t fault;
    size_t found = INV_CONTROL_STEP - INV_CONTROL_FAULT + guards;
    INV_TRY(s->device->fetch(s->self, INV_QUEUE_COMPUTE, s->pinned + INV_CONTROL_FAULT, s->control + INV_CONTROL_FAULT,
                             found));
    INV_TRY(s->device->finish(s->self));
    memcpy(bytes, s->pinned + control, RESULTS);
    memcpy(s->drift, s->pinned + INV_CONTROL_STEP, guards);
    memcpy(&fault, s->pinned + INV_CONTROL_FAULT, sizeof fault);
    const inv_node *n = fault ? (const inv_node *)(uintptr_t)~fault : NULL; /* of this plan */
    return n ? inv_node_failed(s->ctx, n, INV_E_NUMERIC) : INV_OK;
}
