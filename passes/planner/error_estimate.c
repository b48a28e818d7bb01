/* SPDX-License-Identifier: Apache-2.0
 * Estimates how far what a plan state rebuilds is off from what forward had, by the rule of problem.h (inv_pb_error).
 * The estimate is compared with max_drift; drift itself is what guards measure in a run. A rematerialisation that reads
 * a value which the guard has rejected shows that estimates were too low: it, and all behind it, take each source that
 * was rebuilt inexactly at the largest error allowed.
 * After a change, errors are computed anew in order of time: first those of the rematerialisations that read or give a
 * changed value, and then, where an error has changed, those of its readers. A heap holds what is still to be done, so
 * a change costs O(k log k) for k errors that are looked at.
 * requires: inv_plan_state.
 * gives: inv_plan_event.err; whether all errors are allowed. */
#include <math.h>

#include "passes/planner/heap.h"
#include "passes/planner/plan_state.h"
#include "passes/planner/problem.h"

#define NONE INV_NO_EVENT

/* An error as it was before the change, to be put back. */
typedef struct old_error {
    uint32_t event;
    double err;
} old_error;

/* A rematerialisation whose error is still to be computed, the earliest first. */
typedef struct queued_event {
    uint64_t label;
    uint32_t event;
} queued_event;
INV_HEAP(event_queue, queued_event, label)

struct inv_error_estimate {
    inv_plan_state *ps;
    bool any;                 /* some edge adds or magnifies an error; else there is nothing to do */
    uint64_t rejected_from;   /* label: a rebuilt source that is read from here on counts as off by max_drift */
    const uint32_t *rejected; /* the values that the guard rejected */
    uint32_t nrejected;
    bool *waits; /* per event: it is in the queue */
    event_queue queue;
    INV_VEC(old_error) old;
};

static void enqueue_remat(inv_error_estimate *x, uint32_t r)
{
    const inv_plan_event *ev = &x->ps->event[r];
    if (r < x->ps->p->nstep || !ev->active || x->waits[r]) return;
    x->waits[r] = event_queue_push(x->ps->a, &x->queue, (queued_event){ev->label, r});
}

/* Returns the error of v as the rematerialisation reads it: that of the event that gave it last. */
static double error_when_read(const inv_error_estimate *x, uint32_t v, uint32_t r)
{
    const inv_plan_value *value = &x->ps->value[v];
    for (uint32_t i = inv_plan_state_access_index(x->ps, v, r); i-- > 0;) {
        const inv_plan_access a = value->access.at[i];
        if (a.target != NONE) return a.event < x->ps->p->nstep ? 0 : x->ps->event[a.event].err;
    }
    return 0;
}

static double worst_source(const inv_error_estimate *x, uint32_t r)
{
    const inv_problem *p = x->ps->p;
    const inv_pb_edge *e = &p->edge[x->ps->event[r].edge];
    double worst = 0;
    for (uint32_t i = 0; i < e->nsource; i++) {
        const double err = error_when_read(x, e->source[i], r);
        worst = fmax(worst, err > 0 && x->ps->event[r].label >= x->rejected_from ? p->max_drift : err);
    }
    return worst;
}

static bool error_allowed(const inv_error_estimate *x, uint32_t r, double err)
{
    const inv_pb_edge *e = &x->ps->p->edge[x->ps->event[r].edge];
    for (uint32_t i = 0; i < e->ntarget; i++)
        if (x->ps->event[r].want >> i & 1 && !inv_pb_error_allowed(x->ps->p, e, e->target[i], err)) return false;
    return true;
}

/* Enqueues the readers of the targets of this rematerialisation, whose errors may have changed. */
static void enqueue_readers(inv_error_estimate *x, uint32_t r)
{
    const inv_pb_edge *e = &x->ps->p->edge[x->ps->event[r].edge];
    for (uint32_t i = 0; i < e->ntarget; i++) {
        const inv_plan_value *v = &x->ps->value[e->target[i]];
        uint32_t k = inv_plan_state_access_index(x->ps, e->target[i], r);
        while (k < v->access.n && !(v->access.at[k].event == r && v->access.at[k].target != NONE)) k++;
        for (k++; k < v->access.n && v->access.at[k].target == NONE; k++) enqueue_remat(x, v->access.at[k].event);
    }
}

static bool propagate_errors(inv_error_estimate *x)
{
    bool fine = true;
    while (x->queue.n) {
        const uint32_t r = event_queue_pop(&x->queue).event;
        inv_plan_event *ev = &x->ps->event[r];
        const inv_pb_edge *e = &x->ps->p->edge[ev->edge];
        const double err = inv_pb_error(e, fine ? worst_source(x, r) : 0);
        x->waits[r] = false;
        x->ps->work += 1;
        if (!fine) continue;
        fine = error_allowed(x, r, err);
        if (!fine || (err <= ev->err && err >= ev->err)) continue;
        const old_error old = {r, ev->err};
        (void)inv_vec_push(x->ps->a, &x->old, old);
        ev->err = err;
        enqueue_readers(x, r);
    }
    return fine && !x->ps->a->failed;
}

/* Returns the label of the first read of a value that the guard has rejected: a rejection says that estimates were too
 * low before it. UINT64_MAX: none is read. */
static uint64_t first_read_of_rejected(const inv_error_estimate *x)
{
    const inv_plan_state *ps = x->ps;
    uint64_t first = UINT64_MAX;
    for (uint32_t k = 0; k < x->nrejected; k++) {
        const inv_plan_value *value = &ps->value[x->rejected[k]];
        for (size_t i = 0; i < value->access.n; i++) {
            const inv_plan_event *ev = &ps->event[value->access.at[i].event];
            if (value->access.at[i].event >= ps->p->nstep && value->access.at[i].target == NONE && ev->active &&
                ev->label < first)
                first = ev->label;
        }
    }
    return first;
}

bool inv_error_estimate_load(inv_error_estimate *x)
{
    if (!x->any) return true;
    x->old.n = 0;
    x->rejected_from = first_read_of_rejected(x);
    for (uint32_t i = 0; i < x->ps->nremat; i++) {
        x->ps->event[x->ps->remat[i]].err = 0;
        enqueue_remat(x, x->ps->remat[i]);
    }
    return propagate_errors(x);
}

bool inv_error_estimate_update(inv_error_estimate *x)
{
    const inv_plan_state *ps = x->ps;
    if (!x->any) return true;
    const uint64_t rejected_from = x->rejected_from;
    x->old.n = 0;
    x->rejected_from = first_read_of_rejected(x);
    for (uint32_t i = 0; x->rejected_from != rejected_from && i < ps->nremat; i++) enqueue_remat(x, ps->remat[i]);
    for (size_t i = 0; i < ps->changed.n; i++) {
        const inv_plan_value *v = &ps->value[ps->changed.at[i]];
        for (size_t k = 0; k < v->access.n; k++) enqueue_remat(x, v->access.at[k].event);
    }
    if (propagate_errors(x)) return true;
    for (size_t i = x->old.n; i-- > 0;) ps->event[x->old.at[i].event].err = x->old.at[i].err;
    x->rejected_from = rejected_from;
    return false;
}

inv_status inv_error_estimate_new(inv_plan_state *ps, inv_error_estimate **out)
{
    inv_error_estimate *x = *out = INV_ARENA_NEW(ps->a, inv_error_estimate, 1);
    if (!x) return INV_E_NOMEM;
    x->ps = ps;
    x->waits = INV_ARENA_NEW(ps->a, bool, ps->nevent);
    uint32_t *rejected = INV_ARENA_NEW(ps->a, uint32_t, ps->p->nvalue + 1);
    if (ps->a->failed) return INV_E_NOMEM;
    for (uint32_t v = 0; v < ps->p->nvalue; v++)
        if (ps->p->value[v].rejected) rejected[x->nrejected++] = v;
    x->rejected = rejected;
    for (uint32_t i = 0; i < ps->p->nedge; i++)
        x->any |= ps->p->edge[i].added_error > 0 || ps->p->edge[i].error_gain > 1;
    return INV_OK;
}
