/* SPDX-License-Identifier: Apache-2.0
 * Copies between host and device memory, beside the kernels: feeds, values that are offloaded (Offload) and come back
 * (Fetch). They stand in one queue, in the order in which they are queued, so that only the compute queue has to be
 * waited for, and has to wait:
 *   to the device   from where nothing else is in its bytes any more, for the first node that reads it
 *   to the host     from where the value is there, for the first node that writes where it was
 * The plan's order knows no queues. What its bytes allow is found here: a fetch begins as early in backward as it can,
 * and what was offloaded may be on its way until its bytes are taken.
 * In the same way the gradient of a weight, which nobody reads before the end of backward, is computed in a queue of
 * its own beside the nodes that follow, up to the first one that takes the bytes of what it reads. */
#include <stdlib.h>
#include <string.h>

#include "core/program/cost.h"
#include "executor/executor.h"

/* Per transfer, or node beside others: marked by the compute queue, the other one, the compute queue. Event 0 is that
 * of ahead.c. */
enum { READY = 1, COPIED, RELEASED, EVENTS = 3 };

typedef struct range {
    size_t from, to; /* bytes of the arena */
} range;

typedef struct finder {
    const inv_session *s;
    const inv_graph *g;
    inv_runnable *r;
} finder;

static bool on_device(const inv_graph *g, inv_id v)
{
    return v != INV_NONE && inv_val(g, v)->role == INV_ROLE_NODE && inv_val(g, v)->mem != INV_MEM_HOST;
}

static range bytes_of(const inv_graph *g, inv_id v)
{
    const inv_value *x = inv_val(g, v);
    return (range){x->offset, x->offset + inv_round64(inv_value_nbytes(x))};
}

/* Of all that the value lies in. */
static range buffer_of(const inv_graph *g, inv_id v) { return bytes_of(g, inv_val(g, v)->buffer); }

static bool meet(range a, range b) { return a.from < b.to && b.from < a.to; }

static bool works_in(const inv_node *n, range at)
{
    return n->ws_nbytes && meet((range){n->ws_offset, n->ws_offset + inv_round64(n->ws_nbytes)}, at);
}

/* Whether a buffer that the node reads or writes has bytes there. */
static bool touches(const finder *f, size_t i, range at)
{
    const inv_node *n = f->r->node[i].node;
    for (uint32_t k = 0; k < n->nin + n->nout; k++) {
        const inv_id v = k < n->nin ? n->in[k] : n->out[k - n->nin];
        if (on_device(f->g, v) && meet(buffer_of(f->g, v), at)) return true;
    }
    return works_in(n, at);
}

static bool writes(const finder *f, size_t i, range at)
{
    const inv_node *n = f->r->node[i].node;
    if (n->op->flags & INV_OP_VIEW && f->r->node[i].call.out[0].data == f->r->node[i].call.in[0].data) return false;
    for (uint32_t k = 0; k < n->nout; k++)
        if (on_device(f->g, n->out[k]) && meet(bytes_of(f->g, n->out[k]), at)) return true;
    return works_in(n, at);
}

/* The first node behind it that does so; at latest the end of the compute part. */
static size_t first_behind(const finder *f, size_t i, range at, bool (*does)(const finder *, size_t, range))
{
    size_t k = i + 1;
    while (k < f->r->commit_begin && !does(f, k, at)) k++;
    return k;
}

static size_t last_touch(const finder *f, size_t i, range at)
{
    size_t k = i;
    while (k > 0 && !touches(f, k - 1, at)) k--;
    return k; /* behind it; 0: there is none */
}

static void note_out(const finder *f, inv_transfer *t)
{
    const inv_id v = f->r->node[t->at].node->in[0], buffer = inv_val(f->g, v)->buffer;
    t->device = f->r->node[t->at].call.in[0].data;
    t->until = first_behind(f, t->at, bytes_of(f->g, v), writes);
    for (size_t i = t->at; i < f->r->n; i++) { /* to the end of its life */
        const inv_node *n = f->r->node[i].node;
        for (uint32_t k = 0; k < n->nin + n->nout; k++) {
            const inv_id x = k < n->nin ? n->in[k] : n->out[k - n->nin];
            if (!on_device(f->g, x) || inv_val(f->g, x)->buffer != buffer) continue;
            t->done = inv_val(f->g, x)->keep ? SIZE_MAX : t->done == SIZE_MAX ? t->done : i;
        }
    }
    t->watched = f->s->device->end && t->done < t->until;
}

static void note_in(const finder *f, inv_transfer *t)
{
    const range at = bytes_of(f->g, f->r->node[t->at].node->out[0]);
    const bool feed = f->r->node[t->at].node->op->flags & INV_OP_SOURCE;
    t->device = f->r->node[t->at].call.out[0].data;
    t->until = first_behind(f, t->at, at, touches);
    if (feed) return;
    t->from = last_touch(f, t->at, at);
    if (t->from < f->g->forward_end) t->from = f->g->forward_end; /* forward's own copies first */
}

static int by_turn(const void *a, const void *b)
{
    const inv_transfer *x = a, *y = b;
    return x->from != y->from ? (x->from > y->from ? 1 : -1) : (x->at > y->at) - (x->at < y->at);
}

/* --- nodes beside others --- */

/* Whether node k is to wait for node i, because of bytes that one of them writes. */
static bool in_the_way(const finder *f, size_t i, size_t k)
{
    const inv_node *n = f->r->node[i].node;
    for (uint32_t j = 0; j < n->nin; j++)
        if (on_device(f->g, n->in[j]) && writes(f, k, buffer_of(f->g, n->in[j]))) return true;
    for (uint32_t j = 0; j < n->nout; j++)
        if (on_device(f->g, n->out[j]) && touches(f, k, buffer_of(f->g, n->out[j]))) return true;
    return n->ws_nbytes && touches(f, k, (range){n->ws_offset, n->ws_offset + inv_round64(n->ws_nbytes)});
}

/* Whether a copy that is made between the two positions has bytes of that node. */
static bool copied_meanwhile(const finder *f, size_t at, size_t until)
{
    for (size_t i = 0; i < f->r->ntransfer; i++) {
        const inv_transfer *t = &f->r->transfer[i];
        const size_t offset = (size_t)(t->device - f->s->transient);
        if (t->from < until && t->until > at && touches(f, at, (range){offset, offset + inv_round64(t->nbytes)}))
            return true;
    }
    return false;
}

/* Products and convolutions of backward of which no node that follows has need at once: one that computes something
 * comes between. */
static void note_beside(const finder *f, size_t i)
{
    inv_runnable *r = f->r;
    size_t until = i + 1, between = 0;
    if (f->g->early || !inv_may_run_beside(f->g, r->node[i].node)) return;
    for (; until < r->commit_begin && !in_the_way(f, i, until); until++)
        between += !(r->node[until].node->op->flags & (INV_OP_VIEW | INV_OP_SOURCE | INV_OP_TRANSFER));
    if (between == 0 || copied_meanwhile(f, i, until)) return;
    r->transfer[r->ntransfer + r->nbeside++] = (inv_transfer){.at = i, .from = i, .done = i, .until = until};
}

/* Its place among the transfers; none: behind the last. */
static size_t beside_at(const inv_runnable *r, size_t at)
{
    const size_t none = r->ntransfer + r->nbeside;
    size_t low = r->ntransfer, high = none;
    while (low < high) {
        const size_t middle = (low + high) / 2;
        if (r->transfer[middle].at < at) low = middle + 1;
        else high = middle;
    }
    return low < none && r->transfer[low].at == at ? low : none;
}

bool inv_runs_beside(const inv_runnable *r, size_t at) { return beside_at(r, at) < r->ntransfer + r->nbeside; }

inv_status inv_transfers_note(inv_session *s, int kind, size_t host)
{
    inv_runnable *r = &s->run[kind];
    const finder f = {s, s->program->plan[kind].g, r};
    r->transfer = INV_ARENA_NEW(&s->memory, inv_transfer, r->n + 1);
    if (!r->transfer) return INV_E_NOMEM;
    for (size_t i = 0; i < r->n; i++) {
        const inv_node *n = r->node[i].node;
        const bool feed = n->op->flags & INV_OP_SOURCE;
        if (!(n->op->flags & INV_OP_TRANSFER) && (!feed || inv_lands(s, kind))) continue;
        inv_transfer *t = &r->transfer[r->ntransfer++];
        const inv_value *x = inv_val(f.g, n->out[0]), *copy = n->nin ? inv_val(f.g, n->in[0]) : NULL;
        *t = (inv_transfer){.out = x->mem == INV_MEM_HOST, .at = i, .from = i, .done = i};
        t->nbytes = inv_value_nbytes(x);
        if (t->out) note_out(&f, t);
        else note_in(&f, t);
        if (feed) t->staged = s->staged + inv_plan_feed_at(&s->program->plan[kind], (size_t)inv_attr_int(n, "slot", 0));
        else t->staged = host + (t->out ? x : copy)->offset;
    }
    qsort(r->transfer, r->ntransfer, sizeof *r->transfer, by_turn);
    const char *one = getenv("INVONNX_ONE_QUEUE"); /* for comparison: all kernels follow each other */
    for (size_t i = f.g->forward_end; i < r->commit_begin && !(one && *one); i++) note_beside(&f, i);
    return INV_OK;
}

/* --- in a step --- */

static inv_status queue_copy(inv_session *s, const inv_runnable *r, size_t i)
{
    const inv_transfer *t = &r->transfer[i];
    const inv_device *d = s->device;
    unsigned char *staged = s->pinned + t->staged;
    INV_TRY(d->mark(s->self, INV_QUEUE_COMPUTE, EVENTS * i + READY));
    INV_TRY(d->wait(s->self, INV_QUEUE_COPY, EVENTS * i + READY));
    if (t->out) {
        INV_TRY(d->fetch(s->self, INV_QUEUE_COPY, staged, t->device, t->nbytes));
        return t->watched ? INV_OK : d->mark(s->self, INV_QUEUE_COPY, EVENTS * i + COPIED);
    }
    INV_TRY(inv_buffers_begin(s, r, &r->node[t->at], INV_QUEUE_COPY));
    INV_TRY(d->send(s->self, INV_QUEUE_COPY, t->device, staged, t->nbytes));
    return d->mark(s->self, INV_QUEUE_COPY, EVENTS * i + COPIED);
}

/* Waits first: where a copy may begin, a node beside others has given back its bytes. */
inv_status inv_transfers_begin(inv_session *s, const inv_runnable *r, size_t from, size_t at)
{
    INV_TRY(inv_transfers_await(s, r, from, at));
    for (size_t i = 0; i < r->ntransfer; i++)
        if (r->transfer[i].from == at) INV_TRY(queue_copy(s, r, i));
    return INV_OK;
}

/* Where nodes are run one by one, a queue that is empty marks the events of those beside others. */
inv_status inv_transfers_await(inv_session *s, const inv_runnable *r, size_t from, size_t at)
{
    for (size_t i = 0; i < r->ntransfer + r->nbeside; i++)
        if (r->transfer[i].at >= from && r->transfer[i].until == at)
            INV_TRY(s->device->wait(s->self, INV_QUEUE_COMPUTE, EVENTS * i + COPIED));
    return INV_OK;
}

inv_status inv_transfers_fork(inv_session *s, const inv_runnable *r, size_t at)
{
    const size_t i = beside_at(r, at);
    INV_TRY(s->device->mark(s->self, INV_QUEUE_COMPUTE, EVENTS * i + READY));
    return s->device->wait(s->self, INV_QUEUE_BESIDE, EVENTS * i + READY);
}

/* The transfer to the host that is to be through when this buffer ends behind the node at that position. */
static const inv_transfer *watching(const inv_session *s, const inv_runnable *r, size_t at, const inv_event *e)
{
    for (size_t i = 0; i < r->ntransfer; i++) {
        const inv_transfer *t = &r->transfer[i];
        const size_t offset = (size_t)(t->device - s->transient);
        if (t->watched && t->done == at && offset >= e->offset && offset < e->offset + e->nbytes) return t;
    }
    return NULL;
}

/* Whether the buffer is an operand or a result of the call, or its scratch memory. */
static bool has_buffer(const inv_session *s, const inv_call *c, const inv_event *e)
{
    const unsigned char *first = s->transient + e->offset, *end = first + e->nbytes, *ws = c->ws;
    bool any = ws && ws >= first && ws < end;
    for (uint32_t k = 0; k < c->nin + c->nout && !any; k++) {
        const unsigned char *p = k < c->nin ? c->in[k].data : c->out[k - c->nin].data;
        any = p && p >= first && p < end;
    }
    return any;
}

/* The newest node beside others that may still use the buffer there; none: `ntransfer` + `nbeside`. */
static size_t using(const inv_session *s, const inv_runnable *r, size_t at, const inv_event *e)
{
    const size_t none = r->ntransfer + r->nbeside;
    for (size_t i = none; i-- > r->ntransfer;) {
        const inv_transfer *t = &r->transfer[i];
        if (t->at <= at && at < t->until && has_buffer(s, &r->node[t->at].call, e)) return i;
    }
    return none;
}

/* A buffer ends: told by the queue that is the last to use it. */
static inv_status end_buffer(inv_session *s, const inv_runnable *r, size_t at, const inv_event *e)
{
    const inv_device *d = s->device;
    const size_t i = using(s, r, at, e);
    if (watching(s, r, at, e)) return d->end(s->self, INV_QUEUE_COPY, s->transient + e->offset, e->nbytes);
    if (i == r->ntransfer + r->nbeside) return d->end(s->self, INV_QUEUE_COMPUTE, s->transient + e->offset, e->nbytes);
    INV_TRY(d->mark(s->self, INV_QUEUE_COMPUTE, EVENTS * i + RELEASED));
    INV_TRY(d->wait(s->self, INV_QUEUE_BESIDE, EVENTS * i + RELEASED));
    INV_TRY(d->end(s->self, INV_QUEUE_BESIDE, s->transient + e->offset, e->nbytes));
    return d->mark(s->self, INV_QUEUE_BESIDE, EVENTS * i + COPIED);
}

inv_status inv_transfers_end(inv_session *s, const inv_runnable *r, size_t at)
{
    const inv_ready *n = &r->node[at];
    const inv_device *d = s->device;
    for (size_t i = 0; i < r->ntransfer; i++) {
        if (!r->transfer[i].watched || r->transfer[i].done != at) continue;
        INV_TRY(d->mark(s->self, INV_QUEUE_COMPUTE, EVENTS * i + RELEASED));
        INV_TRY(d->wait(s->self, INV_QUEUE_COPY, EVENTS * i + RELEASED));
    }
    if (inv_runs_beside(r, at)) INV_TRY(d->mark(s->self, INV_QUEUE_BESIDE, EVENTS * beside_at(r, at) + COPIED));
    for (uint32_t k = 0; k < n->nevents; k++) {
        const inv_event *e = &r->event[n->first_event + k];
        if (!e->begin) INV_TRY(end_buffer(s, r, at, e));
    }
    for (size_t i = 0; i < r->ntransfer; i++)
        if (r->transfer[i].watched && r->transfer[i].done == at)
            INV_TRY(d->mark(s->self, INV_QUEUE_COPY, EVENTS * i + COPIED));
    return INV_OK;
}
