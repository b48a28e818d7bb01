/* SPDX-License-Identifier: Apache-2.0
 * How far off what a draft rebuilds is estimated to be (greedy.c, edge_fits): each rematerialisation's error follows
 * from those of what it reads. After a change they are computed anew in order of time, beginning with who reads or
 * gives what was changed, and on from each that is another than before. requires: inv_draft.  gives: spot->err; the
 * verdict. */
#include <math.h>

#include "passes/planner/plan_state.h"
#include "passes/planner/problem.h"

#define NONE INV_NO_SPOT

typedef struct old_error {
    uint32_t spot;
    double err;
} old_error;

struct inv_drift {
    inv_draft *d;
    bool any;                /* some edge adds an error */
    uint64_t heed;           /* from that time on, what was rebuilt is as bad as a value that the guard refused */
    const uint32_t *refused; /* those */
    uint32_t nrefused;
    bool *waits;             /* per spot: in the queue */
    INV_VEC(uint32_t) queue; /* a binary heap, the earliest first */
    INV_VEC(old_error) old;
};

/* --- the queue --- */

static bool earlier(const inv_drift *x, uint32_t a, uint32_t b) { return x->d->spot[a].label < x->d->spot[b].label; }

static void enqueue(inv_drift *x, uint32_t f)
{
    if (f < x->d->p->nstep || !x->d->spot[f].counts || x->waits[f]) return;
    if (!inv_vec_push(x->d->a, &x->queue, f)) {
        x->d->failed = true;
        return;
    }
    size_t i = x->queue.n - 1;
    for (; i > 0 && earlier(x, f, x->queue.at[(i - 1) / 2]); i = (i - 1) / 2) x->queue.at[i] = x->queue.at[(i - 1) / 2];
    x->queue.at[i] = f;
    x->waits[f] = true;
}

static uint32_t dequeue(inv_drift *x)
{
    const uint32_t top = x->queue.at[0], f = x->queue.at[--x->queue.n];
    size_t i = 0;
    for (size_t c = 1; c < x->queue.n; c = 2 * i + 1) {
        if (c + 1 < x->queue.n && earlier(x, x->queue.at[c + 1], x->queue.at[c])) c++;
        if (!earlier(x, x->queue.at[c], f)) break;
        x->queue.at[i] = x->queue.at[c];
        i = c;
    }
    if (x->queue.n) x->queue.at[i] = f;
    x->waits[top] = false;
    return top;
}

/* --- errors --- */

/* Of v as that rematerialisation reads it. */
static double error_of(const inv_drift *x, uint32_t v, uint32_t f)
{
    const inv_draft_value *value = &x->d->value[v];
    for (uint32_t i = inv_draft_access(x->d, v, f); i-- > 0;) {
        const inv_access a = value->access.at[i];
        if (a.target != NONE) return a.spot < x->d->p->nstep ? 0 : x->d->spot[a.spot].err;
    }
    return 0;
}

static double worst_source(const inv_drift *x, uint32_t f)
{
    const inv_problem *p = x->d->p;
    const inv_pb_edge *e = &p->edge[x->d->spot[f].edge];
    double worst = 0;
    for (uint32_t i = 0; i < e->nsource; i++) {
        const double err = error_of(x, e->source[i], f);
        worst = fmax(worst, err > 0 && x->d->spot[f].label >= x->heed ? p->max_drift : err);
    }
    return worst;
}

static bool small_enough(const inv_drift *x, uint32_t f, double err)
{
    const inv_problem *p = x->d->p;
    const inv_pb_edge *e = &p->edge[x->d->spot[f].edge];
    if (err > p->max_drift) return false;
    for (uint32_t i = 0; e->inverse && err > 0 && i < e->ntarget; i++)
        if (x->d->spot[f].want >> i & 1 && err * p->value[e->target[i]].steep > p->max_drift) return false;
    return true;
}

/* Those that read what the rematerialisation gives. */
static void enqueue_readers(inv_drift *x, uint32_t f)
{
    const inv_pb_edge *e = &x->d->p->edge[x->d->spot[f].edge];
    for (uint32_t i = 0; i < e->ntarget; i++) {
        const inv_draft_value *v = &x->d->value[e->target[i]];
        uint32_t k = inv_draft_access(x->d, e->target[i], f);
        while (k < v->access.n && !(v->access.at[k].spot == f && v->access.at[k].target != NONE)) k++;
        for (k++; k < v->access.n && v->access.at[k].target == NONE; k++) enqueue(x, v->access.at[k].spot);
    }
}

static bool work_off(inv_drift *x)
{
    bool fine = true;
    while (x->queue.n) {
        const uint32_t f = dequeue(x);
        inv_spot *s = &x->d->spot[f];
        const inv_pb_edge *e = &x->d->p->edge[s->edge];
        const double worst = fine ? worst_source(x, f) : 0, err = e->inverse ? e->gain * worst + e->own : worst;
        x->d->work += 1;
        if (!fine) continue;
        fine = small_enough(x, f, err);
        if (!fine || (err <= s->err && err >= s->err)) continue;
        const old_error old = {f, s->err};
        if (!inv_vec_push(x->d->a, &x->old, old)) x->d->failed = true;
        s->err = err;
        enqueue_readers(x, f);
    }
    return fine && !x->d->failed;
}

/* The first rematerialisation that reads a value that the guard has refused. */
static uint64_t heeded_from(const inv_drift *x)
{
    const inv_draft *d = x->d;
    uint64_t first = UINT64_MAX;
    for (uint32_t k = 0; k < x->nrefused; k++) {
        const inv_draft_value *value = &d->value[x->refused[k]];
        for (size_t i = 0; i < value->access.n; i++) {
            const inv_spot *s = &d->spot[value->access.at[i].spot];
            if (value->access.at[i].spot >= d->p->nstep && value->access.at[i].target == NONE && s->counts &&
                s->label < first)
                first = s->label;
        }
    }
    return first;
}

bool inv_drift_load(inv_drift *x)
{
    if (!x->any) return true;
    x->old.n = 0;
    x->heed = heeded_from(x);
    for (uint32_t i = 0; i < x->d->nremat; i++) {
        x->d->spot[x->d->remat[i]].err = 0;
        enqueue(x, x->d->remat[i]);
    }
    return work_off(x);
}

bool inv_drift_follow(inv_drift *x)
{
    const inv_draft *d = x->d;
    if (!x->any) return true;
    const uint64_t heed = x->heed;
    x->old.n = 0;
    x->heed = heeded_from(x);
    for (uint32_t i = 0; x->heed != heed && i < d->nremat; i++) enqueue(x, d->remat[i]);
    for (size_t i = 0; i < d->changed.n; i++) {
        const inv_draft_value *v = &d->value[d->changed.at[i]];
        for (size_t k = 0; k < v->access.n; k++) enqueue(x, v->access.at[k].spot);
    }
    if (work_off(x)) return true;
    for (size_t i = x->old.n; i-- > 0;) d->spot[x->old.at[i].spot].err = x->old.at[i].err;
    x->heed = heed;
    return false;
}

inv_status inv_drift_new(inv_draft *d, inv_drift **out)
{
    inv_drift *x = *out = INV_ARENA_NEW(d->a, inv_drift, 1);
    if (!x) return INV_E_NOMEM;
    x->d = d;
    x->waits = INV_ARENA_NEW(d->a, bool, d->nspot);
    uint32_t *refused = INV_ARENA_NEW(d->a, uint32_t, d->p->nvalue + 1);
    if (!x->waits || !refused) return INV_E_NOMEM;
    for (uint32_t v = 0; v < d->p->nvalue; v++)
        if (d->p->refused && d->p->refused[v]) refused[x->nrefused++] = v;
    x->refused = refused;
    for (uint32_t i = 0; i < d->p->nedge; i++) x->any |= d->p->edge[i].own > 0 || d->p->edge[i].gain > 1;
    return INV_OK;
}
