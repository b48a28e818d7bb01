/* SPDX-License-Identifier: Apache-2.0
 * Copies between host and device memory, beside the kernels: feeds, values that are offloaded (Offload) and come back
 * (Fetch). They stand in one queue, in the order in which they are queued, so that only the compute queue has to be
 * waited for, and has to wait:
 *   to the device   from where nothing else is in its bytes any more, for the first node that reads it
 *   to the host     from where the value is there, for the first node that writes where it was
 * The plan's order knows no queues. What its bytes allow is found here: a fetch begins as early in backward as it can,
 * and what was offloaded may be on its way until its bytes are taken. */
#include <stdlib.h>
#include <string.h>

#include "executor/executor.h"

enum { READY, COPIED, RELEASED, EVENTS }; /* per transfer: marked by the compute, the copy, the compute queue */

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
    return (range){x->offset, x->offset + inv__round64(inv_value_nbytes(x))};
}

static bool meet(range a, range b) { return a.from < b.to && b.from < a.to; }

static bool works_in(const inv_node *n, range at)
{
    return n->ws_nbytes && meet((range){n->ws_offset, n->ws_offset + inv__round64(n->ws_nbytes)}, at);
}

/* Whether a buffer that the node reads or writes has bytes there. */
static bool touches(const finder *f, size_t i, range at)
{
    const inv_node *n = f->r->node[i].node;
    for (uint32_t k = 0; k < n->nin + n->nout; k++) {
        const inv_id v = k < n->nin ? n->in[k] : n->out[k - n->nin];
        if (on_device(f->g, v) && meet(bytes_of(f->g, inv_val(f->g, v)->buffer), at)) return true;
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

/* Two feeds of one slot share what is staged. */
static void stage_feed(const inv_runnable *r, inv_transfer *t, size_t *from)
{
    const int64_t slot = inv_attr_int(r->node[t->at].node, "slot", 0);
    t->staged = *from;
    for (const inv_transfer *p = r->transfer; p < t && !t->again; p++) {
        const inv_node *n = r->node[p->at].node;
        if (!(n->op->flags & INV_OP_SOURCE) || inv_attr_int(n, "slot", 0) != slot) continue;
        t->staged = p->staged;
        t->again = true;
    }
    if (!t->again) *from += inv__round64(t->nbytes);
}

inv_status inv_transfers_note(inv_session *s, int kind, size_t host, size_t feeds, size_t *need)
{
    inv_runnable *r = &s->run[kind];
    const finder f = {s, s->program->plan[kind].g, r};
    r->transfer = INV_ARENA_NEW(&s->memory, inv_transfer, r->n + 1);
    if (!r->transfer) return INV_E_NOMEM;
    for (size_t i = 0; i < r->n; i++) {
        const inv_node *n = r->node[i].node;
        if (!(n->op->flags & (INV_OP_SOURCE | INV_OP_TRANSFER))) continue;
        inv_transfer *t = &r->transfer[r->ntransfer++];
        const inv_value *x = inv_val(f.g, n->out[0]), *copy = n->nin ? inv_val(f.g, n->in[0]) : NULL;
        *t = (inv_transfer){.out = x->mem == INV_MEM_HOST, .at = i, .from = i, .done = i};
        t->nbytes = inv_value_nbytes(x);
        if (t->out) note_out(&f, t);
        else note_in(&f, t);
        if (n->op->flags & INV_OP_SOURCE) stage_feed(r, t, &feeds);
        else t->staged = host + (t->out ? x : copy)->offset;
    }
    qsort(r->transfer, r->ntransfer, sizeof *r->transfer, by_turn);
    if (feeds > *need) *need = feeds;
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

inv_status inv_transfers_begin(inv_session *s, const inv_runnable *r, size_t from, size_t at)
{
    for (size_t i = 0; i < r->ntransfer; i++)
        if (r->transfer[i].from == at) INV_TRY(queue_copy(s, r, i));
    return inv_transfers_await(s, r, from, at);
}

inv_status inv_transfers_await(inv_session *s, const inv_runnable *r, size_t from, size_t at)
{
    for (size_t i = 0; i < r->ntransfer; i++)
        if (r->transfer[i].at >= from && r->transfer[i].until == at)
            INV_TRY(s->device->wait(s->self, INV_QUEUE_COMPUTE, EVENTS * i + COPIED));
    return INV_OK;
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

inv_status inv_transfers_end(inv_session *s, const inv_runnable *r, size_t at)
{
    const inv_ready *n = &r->node[at];
    const inv_device *d = s->device;
    for (size_t i = 0; i < r->ntransfer; i++) {
        if (!r->transfer[i].watched || r->transfer[i].done != at) continue;
        INV_TRY(d->mark(s->self, INV_QUEUE_COMPUTE, EVENTS * i + RELEASED));
        INV_TRY(d->wait(s->self, INV_QUEUE_COPY, EVENTS * i + RELEASED));
    }
    for (uint32_t k = 0; k < n->nevents; k++) {
        const inv_event *e = &r->event[n->first_event + k];
        const int queue = watching(s, r, at, e) ? INV_QUEUE_COPY : INV_QUEUE_COMPUTE;
        if (!e->begin) INV_TRY(d->end(s->self, queue, s->transient + e->offset, e->nbytes));
    }
    for (size_t i = 0; i < r->ntransfer; i++)
        if (r->transfer[i].watched && r->transfer[i].done == at)
            INV_TRY(d->mark(s->self, INV_QUEUE_COPY, EVENTS * i + COPIED));
    return INV_OK;
}
