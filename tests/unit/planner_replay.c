/* SPDX-License-Identifier: Apache-2.0 */
#include "planner_replay.h"

#include <string.h>

/* The replay at one step. */
typedef struct replayer {
    inv_arena *a;
    const inv_problem *p;
    const inv_remats *plan;
    replay *r;
    uint32_t *now; /* per value: the interval that it is in */
    uint32_t step; /* the step that is being replayed */
} replayer;

static void extend_interval(replayer *x, uint32_t value, uint32_t event)
{
    live_interval *s = &x->r->interval.at[x->now[value]];
    s->to = event;
    s->nuse++;
    if (s->remat == INV_NO_REMAT && x->step >= x->p->forward) x->r->kept_until[value] = x->step;
}

static bool begin_interval(replayer *x, uint32_t value, uint32_t remat, uint32_t event)
{
    live_interval s = {value, remat, event, event, 0};
    x->now[value] = (uint32_t)x->r->interval.n;
    return inv_vec_push(x->a, &x->r->interval, s);
}

static bool replay_remat(replayer *x, uint32_t k, uint32_t event)
{
    const inv_remat *r = &x->plan->at[k];
    const inv_pb_edge *e = &x->p->edge[r->edge];
    for (uint32_t i = 0; i < e->nsource; i++) extend_interval(x, e->source[i], event);
    for (uint32_t i = 0; i < e->ntarget; i++)
        if (r->want >> i & 1 && !begin_interval(x, e->target[i], k, event)) return false;
    return true;
}

static bool list_intervals(replayer *x)
{
    const inv_problem *p = x->p;
    uint32_t event = 0, k = 0;
    for (uint32_t t = 0, v = 0; t < p->nstep; t++) {
        x->step = t;
        for (; t >= p->forward && k < x->plan->n && x->plan->at[k].step == t; k++)
            if (!replay_remat(x, k, event++)) return false;
        for (; v < p->nvalue && p->value[v].def == t; v++)
            if (!begin_interval(x, v, INV_NO_REMAT, event)) return false;
        for (uint32_t i = 0; i < p->step[t].nread; i++) extend_interval(x, p->step[t].read[i], event);
        x->r->event_of_step[t] = event++;
    }
    x->r->nevent = event;
    return k == x->plan->n;
}

/* Returns the source in whose place the event writes: the first that may be overwritten and has its last read there.
 * Otherwise the bytes of both would be counted at this event. */
static uint32_t overwritten_in_place(const uint32_t *last, const uint32_t *source, uint32_t n, uint32_t bits,
                                     uint32_t event)
{
    for (uint32_t i = 0; i < n && i < 32; i++)
        if (bits >> i & 1 && last[source[i]] == event) return source[i];
    return UINT32_MAX;
}

static void count_inplace_once(replayer *x, uint32_t value, uint32_t event)
{
    if (value == UINT32_MAX) return;
    x->r->live[event] -= x->p->value[value].nbytes;
    if (!x->p->value[value].data) x->r->act[event] -= x->p->value[value].nbytes;
}

static void add_interval_bytes(size_t *delta, uint32_t from, uint32_t to, size_t nbytes)
{
    delta[from] += nbytes;
    delta[to + 1] -= nbytes;
}

/* Adds the bytes of values, and those that edges keep for themselves: first as changes per event, then as sums. */
static void add_value_bytes(replayer *x)
{
    const inv_problem *p = x->p;
    size_t *live = x->r->live, *act = x->r->act;
    for (size_t i = 0; i < x->r->interval.n; i++) {
        const live_interval *s = &x->r->interval.at[i];
        add_interval_bytes(live, s->from, s->to, p->value[s->value].nbytes);
        if (!p->value[s->value].data) add_interval_bytes(act, s->from, s->to, p->value[s->value].nbytes);
    }
    uint32_t event = p->forward, k = 0;
    for (uint32_t t = p->forward; t < p->nstep; t++, event++) {
        for (; k < x->plan->n && x->plan->at[k].step == t; k++, event++) {
            const inv_pb_edge *e = &p->edge[x->plan->at[k].edge];
            if (!e->side) continue;
            add_interval_bytes(live, p->value[e->target[0]].def, event, e->side);
            add_interval_bytes(act, p->value[e->target[0]].def, event, e->side);
        }
    }
    for (uint32_t e = 1; e < x->r->nevent; e++) {
        live[e] += live[e - 1];
        act[e] += act[e - 1];
    }
}

/* Adds all other bytes. `last`: per value, the end of the interval that it is in. */
static void add_other_bytes(replayer *x, uint32_t *last, const uint32_t *end_of)
{
    const inv_problem *p = x->p;
    replay *r = x->r;
    uint32_t event = 0, k = 0, begun = 0;
    for (uint32_t t = 0; t < p->nstep; t++, event++) {
        const inv_pb_step *s = &p->step[t];
        for (; t >= p->forward && k < x->plan->n && x->plan->at[k].step == t; k++, event++) {
            const inv_pb_edge *e = &p->edge[x->plan->at[k].edge];
            count_inplace_once(x, overwritten_in_place(last, e->source, e->nsource, e->overwrites, event), event);
            r->live[event] += s->before + e->scratch;
            r->act[event] += s->act_before + e->scratch;
            for (; begun < r->interval.n && r->interval.at[begun].from == event; begun++)
                last[r->interval.at[begun].value] = end_of[begun];
        }
        for (; begun < r->interval.n && r->interval.at[begun].from == event; begun++)
            last[r->interval.at[begun].value] = end_of[begun];
        count_inplace_once(x, overwritten_in_place(last, s->read, s->nread, s->overwrites, event), event);
        r->live[event] += s->at;
        r->act[event] += s->act_at;
    }
}

static void score_replay(replayer *x)
{
    const inv_problem *p = x->p;
    inv_score *s = &x->r->score;
    memset(s, 0, sizeof *s);
    for (uint32_t v = 0; v < p->nvalue; v++) {
        s->kept_no_store += p->value[v].no_store && x->r->kept_until[v] != UINT32_MAX;
        x->now[v] = 0; /* from here on: whether the value has been counted */
    }
    for (uint32_t e = 0; e < x->r->nevent; e++) {
        if (x->r->live[e] > s->peak) s->peak = x->r->live[e];
        if (x->r->act[e] > s->activations) s->activations = x->r->act[e];
    }
    for (size_t k = 0; k < x->plan->n; k++) {
        const inv_remat *m = &x->plan->at[k];
        const inv_pb_edge *e = &p->edge[m->edge];
        s->cost += e->cost;
        for (uint32_t i = 0; e->inverse && !e->moves && i < e->ntarget; i++)
            if (m->want >> i & 1 && !x->now[e->target[i]]++) s->inverted += (double)p->value[e->target[i]].nbytes;
    }
}

static bool set_up_replay(replayer *x)
{
    const inv_problem *p = x->p;
    memset(x->r, 0, sizeof *x->r);
    x->now = INV_ARENA_NEW(x->a, uint32_t, p->nvalue + 1);
    x->r->event_of_step = INV_ARENA_NEW(x->a, uint32_t, p->nstep + 1);
    x->r->kept_until = INV_ARENA_NEW(x->a, uint32_t, p->nvalue + 1);
    if (x->a->failed) return false;
    for (uint32_t v = 0; v < p->nvalue; v++) x->r->kept_until[v] = UINT32_MAX;
    return true;
}

inv_status replay_plan(inv_arena *a, const inv_problem *p, const inv_remats *plan, replay *out)
{
    replayer x = {a, p, plan, out, NULL, 0};
    if (!set_up_replay(&x) || !list_intervals(&x)) return INV_E_NOMEM;
    uint32_t *last = INV_ARENA_NEW(a, uint32_t, p->nvalue + 1);
    uint32_t *end_of = INV_ARENA_NEW(a, uint32_t, out->interval.n + 1);
    out->live = INV_ARENA_NEW(a, size_t, out->nevent + 2);
    out->act = INV_ARENA_NEW(a, size_t, out->nevent + 2);
    if (a->failed) return INV_E_NOMEM;
    for (size_t i = 0; i < out->interval.n; i++) end_of[i] = out->interval.at[i].to;
    add_value_bytes(&x);
    add_other_bytes(&x, last, end_of);
    score_replay(&x);
    return INV_OK;
}

/* Goes back from the last rematerialisation to the first, so that one whose only readers are taken out goes, too. Which
 * intervals it reads is found as the replay found it, in the opposite order. */
inv_status replay_prune(inv_arena *a, const inv_problem *p, inv_remats *plan)
{
    replay r;
    replayer x = {a, p, plan, &r, NULL, 0};
    if (!set_up_replay(&x) || !list_intervals(&x)) return INV_E_NOMEM;
    /* per rematerialisation, its first interval; per interval, the one that the value had before */
    uint32_t *before = INV_ARENA_NEW(a, uint32_t, r.interval.n + 1), *first = INV_ARENA_NEW(a, uint32_t, plan->n + 1);
    if (a->failed) return INV_E_NOMEM;
    for (uint32_t v = 0; v < p->nvalue; v++) x.now[v] = UINT32_MAX;
    for (uint32_t i = 0; i < r.interval.n; i++) {
        before[i] = x.now[r.interval.at[i].value];
        x.now[r.interval.at[i].value] = i;
    }
    for (uint32_t i = (uint32_t)r.interval.n; i-- > 0;)
        if (r.interval.at[i].remat != INV_NO_REMAT) first[r.interval.at[i].remat] = i;
    for (size_t k = plan->n; k-- > 0;) {
        inv_remat *m = &plan->at[k];
        const inv_pb_edge *e = &p->edge[m->edge];
        uint32_t at = first[k], kept = 0;
        for (uint32_t i = 0; i < e->ntarget; i++) {
            if (!(m->want >> i & 1)) continue;
            if (r.interval.at[at].nuse) kept |= 1u << i;
            x.now[e->target[i]] = before[at++];
        }
        m->want = kept;
        for (uint32_t i = 0; !kept && i < e->nsource; i++) r.interval.at[x.now[e->source[i]]].nuse--;
    }
    size_t n = 0;
    for (size_t k = 0; k < plan->n; k++)
        if (plan->at[k].want) plan->at[n++] = plan->at[k];
    plan->n = n;
    return INV_OK;
}
