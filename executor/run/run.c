/* SPDX-License-Identifier: Apache-2.0
 * A plan made ready: addresses of every operand, in order; and the walk over it. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "executor/executor.h"
#include "executor/run/agree.h"
#include "executor/run/node_times.h"
#include "importer/model_file.h"

void *inv_value_address(const inv_session *s, const inv_value *v)
{
    if (v->mem == INV_MEM_HOST) return NULL;                  /* no kernel sees it */
    if (v->in_place) return (void *)(uintptr_t)v->data.bytes; /* no kernel writes to it */
    return (v->role == INV_ROLE_NODE ? s->transient : s->persistent) + v->offset;
}

const void *inv_storage_address(const inv_session *s, const inv_storage *h)
{
    return h->in_place ? h->data.bytes : s->persistent + h->offset;
}

static inv_tensor value_tensor(const inv_session *s, const inv_graph *g, inv_id id)
{
    if (id == INV_NONE) return (inv_tensor){0};
    const inv_value *v = inv_val(g, id);
    return (inv_tensor){inv_value_address(s, v), v->dtype, v->shape, inv_shape_nelem(&v->shape)};
}

static inv_status ready_node(inv_session *s, const inv_graph *g, inv_id id, inv_ready *r)
{
    const inv_node *n = inv_nod(g, id);
    inv_tensor *in = INV_ARENA_NEW(&s->memory, inv_tensor, n->nin + 1),
               *out = INV_ARENA_NEW(&s->memory, inv_tensor, n->nout + 1);
    if (!in || !out) return INV_E_NOMEM;
    for (uint32_t k = 0; k < n->nin; k++) in[k] = value_tensor(s, g, n->in[k]);
    for (uint32_t k = 0; k < n->nout; k++) out[k] = value_tensor(s, g, n->out[k]);
    r->node = n;
    r->call = (inv_call){.node = n, .in = in, .out = out, .nin = n->nin, .nout = n->nout, .step = &s->step};
    r->call.ws_nbytes = n->ws_nbytes;
    if (r->call.ws_nbytes) r->call.ws = s->transient + n->ws_offset;
    return INV_OK;
}

typedef struct life {
    uint32_t from, to;
} life;

/* When buffers begin and end, for devices that watch memory. */
static inv_status note_events(inv_session *s, const inv_graph *g, inv_runnable *r)
{
    life *lives = INV_ARENA_NEW(&s->memory, life, g->value.n + 1);
    r->event = INV_ARENA_NEW(&s->memory, inv_event, 2 * g->value.n + 2 * r->n + 2);
    if (!lives || !r->event) return INV_E_NOMEM;
    for (size_t v = 0; v < g->value.n; v++) lives[v] = (life){UINT32_MAX, 0};
    for (uint32_t i = 0; i < r->n; i++) {
        const inv_node *n = r->node[i].node;
        for (uint32_t k = 0; k < n->nin + n->nout; k++) {
            inv_id v = k < n->nin ? n->in[k] : n->out[k - n->nin];
            if (v == INV_NONE || inv_val(g, v)->role != INV_ROLE_NODE || inv_val(g, v)->mem == INV_MEM_HOST) continue;
            life *l = &lives[inv_val(g, v)->buffer];
            if (l->from == UINT32_MAX) l->from = i;
            l->to = inv_val(g, v)->keep ? UINT32_MAX : l->to == UINT32_MAX ? l->to : i;
        }
    }
    for (uint32_t i = 0; i < r->n; i++) {
        const inv_node *n = r->node[i].node;
        r->node[i].first_event = (uint32_t)r->nevent;
        for (int end = 0; end < 2; end++) {
            for (size_t v = 0; v < g->value.n; v++) {
                if (lives[v].from == UINT32_MAX || (end ? lives[v].to : lives[v].from) != i) continue;
                const inv_value *x = inv_val(g, (inv_id)v);
                r->event[r->nevent++] = (inv_event){x->offset, inv_round64(inv_value_nbytes(x)), !end};
            }
            if (r->node[i].call.ws_nbytes)
                r->event[r->nevent++] = (inv_event){n->ws_offset, inv_round64(r->node[i].call.ws_nbytes), !end};
        }
        r->node[i].nevents = (uint32_t)r->nevent - r->node[i].first_event;
    }
    return INV_OK;
}

static bool overlap(const inv_tensor *a, const inv_tensor *b)
{
    const unsigned char *p = a->data, *q = b->data;
    return p && q && p < q + (size_t)b->n * inv_dtype_size(b->dtype) && q < p + (size_t)a->n * inv_dtype_size(a->dtype);
}

/* Whether the order of the two matters: one writes what the other reads or writes. */
static bool depend(const inv_call *a, const inv_call *b)
{
    for (uint32_t i = 0; i < a->nin + a->nout; i++)
        for (uint32_t k = 0; k < b->nin + b->nout; k++) {
            const bool writes =
                i >= a->nin || k >= b->nin || a->node->op->writes >> i & 1 || b->node->op->writes >> k & 1;
            if (writes &&
                overlap(i < a->nin ? &a->in[i] : &a->out[i - a->nin], k < b->nin ? &b->in[k] : &b->out[k - b->nin]))
                return true;
        }
    return false;
}

/* Neighbours of one operator in the commit part, where no transfer comes between. */
static inv_status note_many(inv_session *s, inv_runnable *r)
{
    enum { MOST = 256 }; /* what is gained by more is nothing, and each is compared with all others */
    r->many = INV_ARENA_NEW(&s->memory, uint32_t, r->n + 1);
    if (!r->many) return INV_E_NOMEM;
    for (size_t i = r->commit_begin; i < r->n && s->device->run_many; i += r->many[i]) {
        const inv_op_def *op = r->node[i].node->op;
        bool more = op->run_many != NULL;
        r->many[i] = 1;
        for (size_t k = i + 1; more && k < r->n && k < i + MOST; k++) {
            more = r->node[k].node->op == op;
            for (size_t j = i; j < k && more; j++) more = !depend(r->call[j], r->call[k]);
            if (more) r->many[i]++;
        }
    }
    return INV_OK;
}

/* Whose pages go back behind which node: of what is read in the model's file, unless it is read again soon. Steps
 * follow each other, so behind the last node comes the first. */
static inv_status note_reads(inv_session *s, const inv_graph *g, inv_runnable *r)
{
    enum { LEAST = 1 << 20, SOON = 64 };
    size_t *next = INV_ARENA_NEW(&s->memory, size_t, g->value.n + 1);
    if (!next) return INV_E_NOMEM;
    for (size_t v = 0; v < g->value.n; v++) next[v] = SIZE_MAX;
    for (size_t i = 2 * r->n; i-- > 0;) {
        inv_ready *at = &r->node[i % r->n];
        at->first_read = (uint32_t)r->read.n;
        for (uint32_t k = 0; k < at->node->nin; k++) {
            const inv_id v = at->node->in[k];
            if (v == INV_NONE || !inv_val(g, v)->in_place || inv_val(g, v)->data.nbytes < LEAST) continue;
            if (i < r->n && next[v] - i > SOON && !inv_vec_push(&s->memory, &r->read, v)) return INV_E_NOMEM;
            next[v] = i;
        }
        at->nreads = (uint32_t)r->read.n - at->first_read;
    }
    return INV_OK;
}

static void forget_reads(const inv_session *s, int kind, const inv_ready *n)
{
    for (uint32_t k = 0; k < n->nreads; k++) {
        const inv_data *d = &inv_val(s->program->plan[kind].g, s->run[kind].read.at[n->first_read + k])->data;
        inv_model_forget_range(s->model, d->bytes, d->nbytes);
    }
}

inv_status inv_runnable_build(inv_session *s, int kind)
{
    const inv_graph *g = s->program->plan[kind].g;
    inv_runnable *r = &s->run[kind];
    memset(r, 0, sizeof *r);
    r->n = g->order.n;
    r->commit_begin = g->commit_begin;
    r->node = INV_ARENA_NEW(&s->memory, inv_ready, r->n + 1);
    r->call = INV_ARENA_NEW(&s->memory, const inv_call *, r->n + 1);
    if (!r->node || !r->call) return INV_E_NOMEM;
    for (size_t i = 0; i < r->n; i++) {
        INV_TRY(ready_node(s, g, g->order.at[i], &r->node[i]));
        r->call[i] = &r->node[i].call;
        if (r->node[i].node->op->flags & INV_OP_SOURCE) r->last_feed = i;
    }
    INV_TRY(note_many(s, r));
    if (s->device->host) INV_TRY(note_reads(s, g, r));
    return s->device->begin ? note_events(s, g, r) : INV_OK;
}

/* Whether all elements are finite. A tensor of another memory is fetched first, when it is there: data that are fed
 * come by a queue of their own. */
static inv_status finite(inv_session *s, const inv_tensor *t, bool *yes)
{
    *yes = true;
    if (!t->data || !inv_dtype_is_float(t->dtype)) return INV_OK;
    const void *data = t->data;
    if (!s->device->host) {
        INV_TRY(s->device->finish(s->self));
        INV_TRY(inv_session_fetch(s, t->data, t->dtype, &t->shape, &data));
    }
    for (int64_t i = 0; i < t->n && *yes; i++) *yes = isfinite(inv_elem_double(data, t->dtype, (size_t)i));
    return INV_OK;
}

/* The operator that users know; of a joint node those of its steps. */
static void print_kind(const inv_node *n, char *to, size_t room)
{
    size_t at = 0;
    if (!n->fused) (void)snprintf(to, room, "%s", inv_node_kind(n));
    for (uint32_t i = 0; n->fused && i < n->fused->nstep && at < room; i++)
        at += (size_t)snprintf(to + at, room - at, "%s%s", i ? ", " : "", n->fused->step[i].op->name);
}

static void name_bad(inv_session *s, int kind, const inv_node *n)
{
    char what[sizeof s->bad_node / 2];
    const char *name = inv_node_label(n), *fed = n->name;
    print_kind(n, what, sizeof what);
    const inv_plan *p = &s->program->plan[kind];
    for (size_t i = 0; i < p->feed.n; i++)
        if (p->feed.at[i].is_target && p->feed.at[i].value == n->out[0]) fed = "the target";
    if (n->op->flags & INV_OP_SOURCE) (void)snprintf(s->bad_node, sizeof s->bad_node, "%s (the data fed)", fed);
    else
        (void)snprintf(s->bad_node, sizeof s->bad_node, "%s (%s%s)", name, what,
                       n->phase == INV_FORWARD ? "" : ", in backward");
}

inv_status inv_buffers_begin(inv_session *s, const inv_runnable *r, const inv_ready *n, int queue)
{
    for (uint32_t k = 0; k < n->nevents; k++) {
        const inv_event *e = &r->event[n->first_event + k];
        if (e->begin) INV_TRY(s->device->begin(s->self, queue, s->transient + e->offset, e->nbytes));
    }
    return INV_OK;
}

static inv_status run_node(inv_session *s, const inv_runnable *r, const inv_ready *n, int queue)
{
    const inv_call *c = &n->call;
    const unsigned copied = INV_OP_SOURCE | INV_OP_TRANSFER;
    if (n->node->op->flags & INV_OP_SOURCE && inv_lands(s, (int)(r - s->run))) return inv_ahead_take(s, r, n);
    if (n->node->op->flags & copied && !s->device->host) return INV_OK; /* by the other queue */
    INV_TRY(inv_buffers_begin(s, r, n, queue));
    if (!(n->node->op->flags & INV_OP_VIEW)) return s->device->run(s->self, queue, n->node, c);
    if (c->out[0].data == c->in[0].data) return INV_OK;
    size_t nbytes = 0; /* of a parameter: the one view that needs bytes of its own */
    (void)inv_shape_nbytes(&c->out[0].shape, c->out[0].dtype, &nbytes);
    return s->device->copy(s->self, c->out[0].data, c->in[0].data, nbytes);
}

/* Nodes that are run at once. */
static inv_status run_together(inv_session *s, const inv_runnable *r, size_t i, size_t n)
{
    for (size_t k = i; k < i + n; k++) INV_TRY(inv_buffers_begin(s, r, &r->node[k], INV_QUEUE_COMPUTE));
    INV_TRY(s->device->run_many(s->self, r->node[i].node, &r->call[i], n));
    for (size_t k = i; k < i + n; k++) INV_TRY(inv_transfers_end(s, r, k));
    return INV_OK;
}

static void add_time(inv_ready *n, double seconds)
{
    if (n->runs == 1 && !n->warm) { /* what the first run loads or touches first is not the operator's */
        n->warm = true;
        n->runs = 0;
        n->seconds = 0;
    }
    n->seconds += seconds;
    n->runs++;
}

static inv_status time_node(inv_session *s, const inv_runnable *r, inv_ready *n)
{
    const double began = inv_clock_now();
    INV_TRY(run_node(s, r, n, INV_QUEUE_COMPUTE));
    add_time(n, inv_clock_now() - began);
    return INV_OK;
}

/* On a device with queues the queue tells when it has come by. Reading it waits for what was queued. */
static inv_status read_stamps(inv_session *s, inv_runnable *r, size_t from, size_t to)
{
    INV_TRY(s->device->finish(s->self));
    for (size_t i = from; i < to; i++) {
        double seconds = 0;
        if (r->node[i].node->op->flags & (INV_OP_SOURCE | INV_OP_TRANSFER)) continue; /* another queue's */
        INV_TRY(s->device->between(s->self, i - from, &seconds));
        add_time(&r->node[i], seconds);
    }
    return INV_OK;
}

/* Stands still while this rank does something for the exchange with others, or waits for it. */
static double own_clock(const inv_world *w) { return inv_clock_now() - (w ? w->waited : 0); }

/* From the end of the node before on: what is between them is part of the step, too. */
static void note_time(inv_ready *n, const inv_world *w, double *at)
{
    const double end = own_clock(w);
    n->last = end - *at;
    *at = end;
}

inv_status inv_runnable_compute(inv_session *s, int kind, size_t from, size_t to, bool *bad)
{
    inv_runnable *r = &s->run[kind];
    const bool timed = s->program->options.profile && !bad, profile = timed && s->device->host;
    const bool stamped = timed && !profile, watched = inv_session_watches(s, kind);
    /* What is updated stays so, and gradients that a step has accumulated are used by its update. */
    const bool whole = from >= r->commit_begin || s->program->plan[kind].g->early || kind == INV_PLAN_UPDATE;
    inv_world *w = inv_ranks_world(s);
    double at = watched ? own_clock(w) : 0;
    if (stamped) INV_TRY(s->device->stamp(s->self, 0));
    for (size_t i = from; i < to; i++) {
        inv_ready *n = &r->node[i];
        if (!whole) INV_TRY(inv_check_stop(s->ctx));
        if (w) w->calls->progress(w); /* of what is on its way beside backward */
        INV_TRY(inv_transfers_begin(s, r, from, i));
        if (bad && n->node->op->writes) { /* looking for what is wrong changes nothing */
            INV_TRY(inv_transfers_end(s, r, i));
            continue;
        }
        for (uint32_t k = 0; k < r->many[i] || k == 0; k++) s->wrote |= r->node[i + k].node->op->writes != 0;
        if (r->many[i] > 1 && !bad && !timed) {
            INV_TRY(run_together(s, r, i, r->many[i]));
            i += r->many[i] - 1;
            continue;
        }
        const bool beside = !timed && !bad && inv_runs_beside(r, i);
        if (beside) INV_TRY(inv_transfers_fork(s, r, i));
        INV_TRY(profile ? time_node(s, r, n) : run_node(s, r, n, beside ? INV_QUEUE_BESIDE : INV_QUEUE_COMPUTE));
        forget_reads(s, kind, n);
        if (stamped) INV_TRY(s->device->stamp(s->self, i - from + 1));
        if (watched && !(n->node->op->flags & INV_OP_VIEW)) note_time(n, w, &at);
        for (uint32_t k = 0; bad && !(n->node->op->flags & INV_OP_EXCHANGES) && k < n->call.nout; k++) {
            bool fine;
            INV_TRY(finite(s, &n->call.out[k], &fine));
            if (fine) continue;
            name_bad(s, kind, n->node);
            *bad = true;
            return INV_OK;
        }
        INV_TRY(inv_transfers_end(s, r, i));
    }
    INV_TRY(inv_transfers_await(s, r, from, to));
    return stamped ? read_stamps(s, r, from, to) : INV_OK;
}
