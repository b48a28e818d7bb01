/* SPDX-License-Identifier: Apache-2.0
 * Batches that are sent while the step before computes, on devices with queues (inv_session_options.send_ahead). A
 * batch has three places: the caller's arrays, pinned memory, where it is staged in the types of the inputs, and bytes
 * of the device beside the plan's, where it lands:
 *
 *     host            | step k is queued | wait for FED | stage k+1 | wait for FOUND | ...  | step k+1 is queued |
 *     compute queue   |   Feeds of k, FED ... backward, FOUND, commit                       | await, Feeds of k+1 ...
 *     ahead queue                                         | send k+1 |
 *
 * Where it lands no plan has anything, so it may come whatever is computed, but only when the step's own batch has
 * left: Feeds copy it to where the plan has its values, and behind the last of them the host hears that. They stand
 * anywhere in forward and backward, so what a recorded step reads is always at the same address. What was sent is used
 * if the next step is fed the same arrays; else, and after a refusal, that step's batch is sent anew. */
#include "executor/executor.h"

enum { LANDED }; /* the event of the ahead queue; transfer.c has those behind it */

bool inv_lands(const inv_session *s, int kind) { return s->program->landing > 0 && kind <= INV_PLAN_TAIL; }

static inv_status stage(inv_session *s, int kind, const inv_feed *feed)
{
    const inv_plan *plan = &s->program->plan[kind];
    const inv_step step = {.feed = feed};
    for (size_t i = 0; i < plan->feed.n; i++) {
        const inv_value *v = inv_val(plan->g, plan->feed.at[i].value);
        if (v->def == INV_NONE) continue; /* nobody reads it */
        inv_tensor out = {s->pinned + s->staged + inv_plan_feed_at(plan, i), v->dtype, v->shape,
                          inv_shape_nelem(&v->shape)};
        const inv_call c = {.node = inv_nod(plan->g, v->def), .out = &out, .nout = 1, .step = &step};
        INV_TRY(inv_run_on_host(s->ctx, c.node, &c));
    }
    return INV_OK;
}

static inv_status send(inv_session *s, int kind)
{
    const inv_plan *plan = &s->program->plan[kind];
    s->sending = true;
    INV_TRY(s->device->send(s->self, INV_QUEUE_AHEAD, s->landing, s->pinned + s->staged,
                            inv_plan_feed_at(plan, plan->feed.n)));
    return s->device->mark(s->self, INV_QUEUE_AHEAD, LANDED);
}

static bool has_landed(const inv_session *s, int kind)
{
    bool same = s->landed.kind == kind;
    for (size_t i = 0; same && i < s->program->plan[kind].feed.n; i++) {
        const inv_feed *a = &s->landed.feed[i], *b = &s->feed[i];
        same = a->data == b->data && a->dtype == b->dtype && a->rows == b->rows;
    }
    return same;
}

inv_status inv_ahead_begin(inv_session *s, int kind)
{
    const bool lands = inv_lands(s, kind), landed = lands && has_landed(s, kind);
    if (lands) s->landed.kind = -1; /* this step uses it, or overwrites it */
    if (landed || s->program->plan[kind].feed.n == 0) return INV_OK;
    if (s->sending) INV_TRY(s->device->finish(s->self)); /* from where this one is staged */
    s->sending = false;
    INV_TRY(stage(s, kind, s->feed));
    return lands ? send(s, kind) : INV_OK;
}

inv_status inv_ahead_await(inv_session *s, int kind)
{
    return inv_lands(s, kind) ? s->device->wait(s->self, INV_QUEUE_COMPUTE, LANDED) : INV_OK;
}

inv_status inv_ahead_take(inv_session *s, const inv_runnable *r, const inv_ready *n)
{
    const inv_plan *plan = &s->program->plan[r - s->run];
    const inv_tensor *out = &n->call.out[0];
    const unsigned char *from = s->landing + inv_plan_feed_at(plan, (size_t)inv_attr_int(n->node, "slot", 0));
    INV_TRY(inv_buffers_begin(s, r, n, INV_QUEUE_COMPUTE));
    INV_TRY(s->device->copy(s->self, out->data, from, (size_t)out->n * inv_dtype_size(out->dtype)));
    return (size_t)(n - r->node) == r->last_feed ? inv_queues_tell(s, INV_TOLD_FED) : INV_OK;
}

/* What is wrong with the next batch its own step says. */
inv_status inv_ahead_send(inv_session *s, int kind)
{
    const inv_batch next = s->next;
    if (!inv_lands(s, kind) || next.kind < 0) return INV_OK;
    INV_TRY(inv_queues_hear(s, INV_TOLD_FED)); /* its batch has left both places */
    s->sending = false;
    s->next.kind = -1;
    if (stage(s, next.kind, next.feed) != INV_OK) {
        const inv_error why = inv_error_take(s->ctx);
        inv_error_drop(s->ctx, &why);
        return INV_OK;
    }
    INV_TRY(send(s, next.kind));
    s->next.feed = s->landed.feed;
    s->landed = next;
    return INV_OK;
}

void inv_ahead_forget(inv_session *s)
{
    s->next.kind = s->landed.kind = -1;
    s->sending = false;
}
