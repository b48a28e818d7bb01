/* SPDX-License-Identifier: Apache-2.0
 * A plan improved by changes of itself: one firing more, one less, one elsewhere or by another edge, another choice.
 * Any list of firings is a plan, since what it reads is kept for it, so that all plans can be reached; what a list is
 * worth is its arithmetic and, at a price, its bytes over the budget. Changes for the worse are accepted by chance,
 * more seldom as time goes on (simulated annealing, Kirkpatrick et al. 1983), and the price of bytes swings so that
 * the search crosses the budget again and again. A change costs a pass over the step: for problems of up to some
 * thousand steps, beyond which prices (plan.c) do better.
 * requires: inv_problem, a plan.  gives: a plan that is no worse. */
#include <math.h>
#include <string.h>

#include "passes/problem.h"

#define NONE UINT32_MAX
enum { RUNS = 6, MORE = 4 }; /* descents; as many times that while nothing fits */
enum { LESS = 32 };          /* part of the peak that is to go next */

typedef struct draft {
    inv_firing *at; /* by step; `want` is set by measure(); none of choices */
    uint32_t *pick; /* per value: the edge of a choice */
    uint32_t n;
    double worth, cost, excess;
    size_t peak;
    uint32_t kept;   /* shunned values that are */
    bool dead, fits; /* some firing is for nothing; within the budget */
    inv_stretch *stretch;
    int64_t *live; /* per event */
    uint32_t nstretch, nevent;
} draft;

typedef struct annealer {
    const inv_problem *p;
    const inv_goal *goal;
    uint64_t *dice;
    size_t budget;  /* without one: below the best that was found */
    double limit, floor;
    uint32_t kept;  /* shunned values that may be */
    double mean;    /* cost of an edge */
    double rate, dearest; /* what a byte over the budget counts, at most */
    uint32_t most;  /* firings */
    draft now, next, best;
    bool drifts;    /* some edge adds an error */
    uint32_t *choice, nchoice;
    uint32_t *need; /* per value: last event that reads it, while measuring */
    uint32_t *counted, measured; /* per value: the last draft in which it was counted as inverted; of drafts so far */
    double *err;    /* per value */
    double work;
} annealer;

static double chance(annealer *x)
{
    return inv_chance(x->dice);
}

static uint32_t roll(annealer *x, uint32_t n)
{
    const uint32_t r = (uint32_t)(chance(x) * n);
    return r < n ? r : n - 1;
}

/* --- what a draft is worth --- */

static int64_t bytes_of(const annealer *x, uint32_t v)
{
    const inv_pb_value *value = &x->p->value[v];
    return x->goal->activations && value->data ? 0 : (int64_t)value->nbytes;
}

static void stretch_of(annealer *x, uint32_t v, uint32_t from, uint32_t firing)
{
    x->next.live[from] += bytes_of(x, v);
    x->next.live[x->need[v] + 1] -= bytes_of(x, v);
    x->next.stretch[x->next.nstretch++] = (inv_stretch){v, firing, from, x->need[v], 1};
    x->need[v] = NONE;
}

/* Backward in time: the first reader that is met is the last. */
static void read_all(annealer *x, const uint32_t *list, uint32_t n, uint32_t bits, uint32_t event)
{
    for (uint32_t i = 0; i < n && i < 32 && bits; i++) {
        if (!(bits >> i & 1) || x->need[list[i]] != NONE) continue;
        x->next.live[event] -= bytes_of(x, list[i]);
        x->next.live[event + 1] += bytes_of(x, list[i]);
        break;
    }
    for (uint32_t i = 0; i < n; i++) {
        const uint32_t v = list[i];
        if (x->need[v] == NONE) x->need[v] = event;
        if (x->p->value[v].def != INV_NEVER) continue;
        const inv_pb_edge *e = &x->p->edge[x->next.pick[v]];
        for (uint32_t k = 0; k < e->nsource; k++)
            if (x->need[e->source[k]] == NONE) x->need[e->source[k]] = event;
    }
}

static void once(annealer *x, uint32_t event, size_t n)
{
    x->next.live[event] += (int64_t)n;
    x->next.live[event + 1] -= (int64_t)n;
}

static void measure_firing(annealer *x, uint32_t k, uint32_t event, double *inverted)
{
    const inv_problem *p = x->p;
    inv_firing *f = &x->next.at[k];
    const inv_pb_edge *e = &p->edge[f->edge];
    const inv_pb_step *s = &p->step[f->step];
    f->want = 0;
    for (uint32_t i = 0; i < e->ntarget; i++)
        if (x->need[e->target[i]] != NONE) f->want |= 1u << i;
    x->next.dead |= !f->want;
    if (!f->want) return;
    for (uint32_t i = 0; i < e->ntarget; i++) {
        if (!(f->want >> i & 1)) continue;
        stretch_of(x, e->target[i], event, k);
        if (e->inverse && !e->moves && x->counted[e->target[i]] != x->measured) {
            x->counted[e->target[i]] = x->measured;
            *inverted += (double)p->value[e->target[i]].nbytes;
        }
    }
    x->next.cost += e->cost;
    once(x, event, (x->goal->activations ? s->act_before : s->before) + e->scratch);
    if (e->side) {
        x->next.live[p->value[e->target[0]].def] += (int64_t)e->side;
        x->next.live[event + 1] -= (int64_t)e->side;
    }
    read_all(x, e->source, e->nsource, e->overwrites, event);
}

/* Whether all that is rebuilt comes close enough (walk.c, edge_fits). */
static bool exact_enough(annealer *x)
{
    const inv_problem *p = x->p;
    if (!x->drifts) return true;
    memset(x->err, 0, p->nvalue * sizeof *x->err);
    bool heeded = false;
    for (uint32_t k = 0; k < x->next.n; k++) {
        const inv_firing *f = &x->next.at[k];
        const inv_pb_edge *e = &p->edge[f->edge];
        double worst = 0;
        for (uint32_t i = 0; i < e->nsource; i++)
            heeded |= p->refused && p->refused[e->source[i]];
        for (uint32_t i = 0; i < e->nsource; i++)
            worst = fmax(worst, heeded && x->err[e->source[i]] > 0 ? p->max_drift : x->err[e->source[i]]);
        if (e->inverse) worst = e->gain * worst + e->own;
        if (worst > p->max_drift) return false;
        for (uint32_t i = 0; i < e->ntarget; i++) {
            if (!(f->want >> i & 1)) continue;
            x->err[e->target[i]] = worst;
            if (e->inverse && worst > 0 && worst * p->value[e->target[i]].steep > p->max_drift) return false;
        }
    }
    return true;
}

static void add_up(annealer *x)
{
    int64_t sum = 0, most = 0;
    double excess = 0;
    for (uint32_t e = 0; e < x->next.nevent; e++) {
        x->next.live[e] = sum += x->next.live[e];
        if (sum > most) most = sum;
        if (sum > (int64_t)x->budget) excess += (double)(sum - (int64_t)x->budget);
    }
    x->next.peak = (size_t)most;
    x->next.excess = excess;
}

static void weigh(annealer *x, draft *d)
{
    d->fits = d->excess <= 0 && d->cost <= x->limit;
    /* while nothing fits, arithmetic is to count for little */
    const double part = x->goal->budget && x->best.fits ? 1 : 0.05;
    d->worth = part * d->cost + x->rate * d->excess + 4 * fmax(0, d->cost - x->limit);
}

/* False: not allowed at all. */
static bool measure(annealer *x)
{
    const inv_problem *p = x->p;
    draft *d = &x->next;
    double inverted = 0;
    x->measured++;
    uint32_t k = d->n, v = p->nvalue;
    while (v > 0 && p->value[v - 1].def == INV_NEVER) v--;
    x->next.nevent = p->nstep + d->n;
    x->next.nstretch = 0;
    memset(x->next.live, 0, (x->next.nevent + 2) * sizeof *x->next.live);
    d->cost = 0;
    d->kept = 0;
    d->dead = false;
    for (uint32_t t = p->nstep; t-- > 0;) {
        const inv_pb_step *s = &p->step[t];
        uint32_t event = t + k;
        once(x, event, x->goal->activations ? s->act_at : s->at);
        read_all(x, s->read, s->nread, s->overwrites, event);
        for (; v > 0 && p->value[v - 1].def == t; v--) {
            if (x->need[v - 1] == NONE) x->need[v - 1] = event;
            else if (p->value[v - 1].shunned && x->need[v - 1] >= p->forward) d->kept++;
            stretch_of(x, v - 1, event, INV_NO_FIRING);
        }
        for (; k > 0 && d->at[k - 1].step == t; k--) measure_firing(x, k - 1, t + k - 1, &inverted);
    }
    for (uint32_t c = 0; c < x->nchoice; c++) x->need[x->choice[c]] = NONE;
    x->work += x->next.nevent + x->next.nstretch;
    add_up(x);
    weigh(x, d);
    return inverted >= x->floor && d->kept <= x->kept && exact_enough(x);
}

/* --- changes --- */

static void insert(draft *d, uint32_t k, uint32_t step, uint32_t edge)
{
    memmove(d->at + k + 1, d->at + k, (d->n - k) * sizeof *d->at);
    d->at[k] = (inv_firing){step, edge, 0};
    d->n++;
}

static void take_out(draft *d, uint32_t k)
{
    d->n--;
    memmove(d->at + k, d->at + k + 1, (d->n - k) * sizeof *d->at);
}

static bool reads(const inv_problem *p, const draft *d, const uint32_t *list, uint32_t n, uint32_t v)
{
    for (uint32_t i = 0; i < n; i++) {
        if (list[i] == v) return true;
        if (p->value[list[i]].def != INV_NEVER) continue;
        const inv_pb_edge *e = &p->edge[d->pick[list[i]]];
        for (uint32_t k = 0; k < e->nsource; k++)
            if (e->source[k] == v) return true;
    }
    return false;
}

/* An edge that may give v, by chance; NONE if there is none. */
static uint32_t some_edge(annealer *x, uint32_t v)
{
    const inv_pb_value *value = &x->p->value[v];
    uint32_t found = NONE, n = 0;
    if (value->forced) return NONE;
    for (uint32_t i = value->first; i < value->first + value->n; i++) {
        const inv_pb_edge *e = &x->p->edge[x->p->edge_of[i]];
        if (e->inverse && !x->goal->invert) continue;
        if (roll(x, ++n) == 0) found = x->p->edge_of[i];
    }
    return found;
}

static bool there(const annealer *x, uint32_t v, uint32_t event)
{
    for (uint32_t i = 0; i < x->now.nstretch; i++) {
        const inv_stretch *s = &x->now.stretch[i];
        if (s->value == v && s->from < event && event <= s->to) return true;
    }
    return false;
}

/* v is derived before firing k of that step; so are, perhaps, sources that are not there. */
static void derive(annealer *x, uint32_t v, uint32_t k, uint32_t step, uint32_t event, int depth)
{
    const uint32_t id = some_edge(x, v);
    if (id == NONE || x->next.n >= x->most) return;
    const inv_pb_edge *e = &x->p->edge[id];
    insert(&x->next, k, step, id);
    for (uint32_t i = 0; depth > 0 && i < e->nsource; i++)
        if (!there(x, e->source[i], event) && roll(x, 4)) derive(x, e->source[i], k, step, event, depth - 1);
}

/* An event at which too much is live, as a rule. */
static uint32_t some_event(annealer *x)
{
    const uint32_t forward = x->p->forward;
    if (chance(x) < 0.4) return forward + roll(x, x->now.nevent - forward);
    int64_t mark = 0;
    for (uint32_t e = 0; e < x->now.nevent; e++)
        if (x->now.live[e] > mark) mark = x->now.live[e];
    if (mark > (int64_t)x->budget) mark = (int64_t)x->budget;
    else mark -= mark / 8;
    uint32_t found = forward, n = 0;
    for (uint32_t e = 0; e < x->now.nevent; e++)
        if (x->now.live[e] > mark && roll(x, ++n) == 0) found = e;
    return found;
}

/* A value that is there at some event is derived for its next reader: a large one rather than a small one. */
static void cut(annealer *x)
{
    const inv_problem *p = x->p;
    draft *d = &x->next;
    const uint32_t event = some_event(x);
    uint32_t i = NONE;
    double sum = 0;
    for (uint32_t s = 0; s < x->now.nstretch; s++) {
        const double nbytes = (double)bytes_of(x, x->now.stretch[s].value);
        if (x->now.stretch[s].from > event || event > x->now.stretch[s].to || !(nbytes > 0)) continue;
        sum += nbytes;
        if (chance(x) * sum < nbytes) i = s;
    }
    if (i == NONE) return;
    const uint32_t v = x->now.stretch[i].value;
    uint32_t t = p->forward, k = 0; /* event of a step: t + firings before it; of a firing k: its step + k */
    for (;; k++) {
        const uint32_t upto = k < d->n ? d->at[k].step : p->nstep;
        for (; t < upto; t++)
            if (t + k > event && reads(p, d, p->step[t].read, p->step[t].nread, v)) goto found;
        if (k == d->n) return;
        const inv_pb_edge *e = &p->edge[d->at[k].edge];
        if (d->at[k].step + k > event && reads(p, d, e->source, e->nsource, v)) goto found;
    }
found:
    if (k < d->n && d->at[k].step <= t) t = d->at[k].step;
    derive(x, v, k, t, t + k, 4);
}

/* The first firing at that event or behind it. */
static uint32_t first_from(const draft *d, uint32_t event)
{
    uint32_t lo = 0, hi = d->n;
    while (lo < hi) {
        const uint32_t k = lo + (hi - lo) / 2;
        if (d->at[k].step + k < event) lo = k + 1;
        else hi = k;
    }
    return lo;
}

/* A firing: any, or one about where too much is live, as a rule. */
static uint32_t some_firing(annealer *x)
{
    enum { ABOUT = 4 };
    const draft *d = &x->next;
    if (chance(x) < 0.4) return roll(x, d->n);
    const uint32_t k = first_from(d, some_event(x)) + roll(x, 2 * ABOUT);
    return k < ABOUT ? 0 : k - ABOUT < d->n ? k - ABOUT : d->n - 1;
}

static void shift(annealer *x)
{
    draft *d = &x->next;
    if (!d->n) return;
    const inv_problem *p = x->p;
    const uint32_t k = some_firing(x), far = 1 + roll(x, chance(x) < 0.5 ? 2 : 12);
    const inv_firing f = d->at[k];
    take_out(d, k);
    const uint32_t base = p->forward, n = p->nstep - base;
    uint32_t at = f.step - base, to = k; /* it may move over firings and steps alike */
    for (uint32_t i = 0, up = roll(x, 2); i < far; i++) {
        if (up && to < d->n && d->at[to].step == at + base) to++;
        else if (up && at + 1 < n) at++;
        else if (!up && to > 0 && d->at[to - 1].step == at + base) to--;
        else if (!up && at > 0) at--;
    }
    insert(d, to, at + base, f.edge);
}

/* A firing moves back to where something that it reads was there before, behind the last reader of that: what was
 * derived once more for it may then be for nothing. */
static void hoist(annealer *x)
{
    draft *d = &x->next;
    if (!d->n) return;
    const uint32_t k = some_firing(x);
    const inv_firing f = d->at[k];
    const inv_pb_edge *e = &x->p->edge[f.edge];
    uint32_t event = 0, n = 0;
    for (uint32_t i = 0; i < x->now.nstretch; i++) {
        const inv_stretch *s = &x->now.stretch[i];
        if (s->to < x->p->forward || s->to >= f.step + k || !reads(x->p, d, e->source, e->nsource, s->value)) continue;
        if (roll(x, ++n) == 0) event = s->to + 1;
    }
    if (!n) return;
    take_out(d, k);
    const uint32_t to = first_from(d, event), at = to < d->n ? d->at[to].step : f.step;
    insert(d, to, event - to < at ? event - to : at, f.edge);
}

static void other_edge(annealer *x)
{
    draft *d = &x->next;
    if (x->nchoice && (!d->n || roll(x, 3) == 0)) {
        const uint32_t c = x->choice[roll(x, x->nchoice)], id = some_edge(x, c);
        if (id != NONE) d->pick[c] = id;
    } else if (d->n) {
        const uint32_t k = some_firing(x);
        const inv_pb_edge *e = &x->p->edge[d->at[k].edge];
        const uint32_t id = some_edge(x, e->target[roll(x, e->ntarget)]);
        if (id != NONE) d->at[k].edge = id;
    }
}

static void change(annealer *x)
{
    const double d = chance(x);
    if (d < 0.35) cut(x);
    else if (d < 0.6 && x->next.n) take_out(&x->next, some_firing(x));
    else if (d < 0.77) shift(x);
    else if (d < 0.87) hoist(x);
    else other_edge(x);
}

/* --- the search --- */

/* What is fired, not what it comes to. */
static void copy(const annealer *x, draft *to, const draft *from)
{
    memcpy(to->at, from->at, from->n * sizeof *to->at);
    to->n = from->n;
    for (uint32_t c = 0; c < x->nchoice; c++) to->pick[x->choice[c]] = from->pick[x->choice[c]];
}

static void sweep(draft *d)
{
    uint32_t n = 0;
    for (uint32_t k = 0; k < d->n; k++)
        if (d->at[k].want) d->at[n++] = d->at[k];
    d->n = n;
}

static bool beats(const annealer *x, const draft *a, const draft *b)
{
    if (!x->goal->budget && a->cost <= x->limit && b->cost <= x->limit) return a->peak < b->peak;
    if (a->fits != b->fits) return a->fits;
    if (!a->fits) return a->excess < b->excess;
    return a->cost < b->cost || (a->cost <= b->cost && a->peak < b->peak);
}

static void keep_best(annealer *x)
{
    if (!beats(x, &x->now, &x->best)) return;
    copy(x, &x->best, &x->now);
    x->best.cost = x->now.cost;
    x->best.peak = x->now.peak;
    x->best.excess = x->now.excess;
    x->best.fits = x->now.fits;
    if (x->goal->budget || !(x->best.cost <= x->limit) || !x->best.peak) return;
    x->budget = x->best.peak - x->best.peak / LESS; /* and on to a smaller one: all bytes near the peak count */
    x->now.excess = 0;
    for (uint32_t e = 0; e < x->now.nevent; e++)
        if (x->now.live[e] > (int64_t)x->budget) x->now.excess += (double)(x->now.live[e] - (int64_t)x->budget);
}

static void accept(annealer *x)
{
    while (x->next.dead) {
        sweep(&x->next);
        (void)measure(x);
    }
    const draft old = x->now;
    x->now = x->next;
    x->next = old;
    keep_best(x);
}

/* The price of bytes swings about the one at which the budget is just met. */
static void swing(annealer *x, int *run)
{
    if (!x->goal->budget || !x->best.fits) return;
    enum { LONG = 40 };
    *run = x->now.excess > 0 ? (*run > 0 ? *run : 0) + 1 : (*run < 0 ? *run : 0) - 1;
    if (*run > LONG) x->rate = fmin(x->rate * 1.3, x->dearest), *run = 0;
    if (*run < -LONG) x->rate = fmax(x->rate / 1.3, x->dearest / 1e4), *run = 0;
}

/* From hot to cold. */
static void cool(annealer *x, double hot, double effort)
{
    const double begin = x->work;
    int run = 0;
    while (x->work < begin + effort) {
        const double heat = hot * pow(0.01, (x->work - begin) / effort);
        copy(x, &x->next, &x->now);
        do change(x);
        while (chance(x) < 0.4);
        const bool allowed = measure(x);
        weigh(x, &x->now);
        if (allowed && (x->next.worth <= x->now.worth || chance(x) < exp((x->now.worth - x->next.worth) / heat)))
            accept(x);
        swing(x, &run);
    }
}

static bool new_draft(const annealer *x, inv_arena *a, draft *d, size_t nstretch)
{
    d->at = INV_ARENA_NEW(a, inv_firing, x->most + 1);
    d->pick = INV_ARENA_NEW(a, uint32_t, x->p->nvalue + 1);
    d->stretch = INV_ARENA_NEW(a, inv_stretch, nstretch);
    d->live = INV_ARENA_NEW(a, int64_t, x->p->nstep + x->most + 3);
    return d->at && d->pick && d->stretch && d->live;
}

static bool set_up(annealer *x, inv_arena *a, const inv_firings *plan)
{
    const inv_problem *p = x->p;
    x->most = 2 * (uint32_t)plan->n + p->nvalue + 32;
    uint32_t wide = 1;
    for (uint32_t i = 0; i < p->nedge; i++) {
        if (p->edge[i].ntarget > wide) wide = p->edge[i].ntarget;
        x->drifts |= p->edge[i].own > 0 || p->edge[i].gain > 1;
        x->mean += p->edge[i].cost / p->nedge;
    }
    const size_t nstretch = p->nvalue + (size_t)wide * (x->most + 1);
    x->choice = INV_ARENA_NEW(a, uint32_t, p->nvalue + 1);
    x->need = INV_ARENA_NEW(a, uint32_t, p->nvalue + 1);
    x->counted = INV_ARENA_NEW(a, uint32_t, p->nvalue + 1);
    x->err = INV_ARENA_NEW(a, double, p->nvalue + 1);
    if (!x->choice || !x->need || !x->counted || !x->err || !new_draft(x, a, &x->now, nstretch) ||
        !new_draft(x, a, &x->next, nstretch) || !new_draft(x, a, &x->best, 1))
        return false;
    double nbytes = 1;
    for (uint32_t v = 0; v < p->nvalue; v++) {
        x->need[v] = NONE;
        nbytes += (double)p->value[v].nbytes / p->nvalue;
        if (p->value[v].def == INV_NEVER) x->choice[x->nchoice++] = v;
    }
    x->rate = x->mean / nbytes;
    x->dearest = 100 * x->rate;
    for (size_t k = 0; k < plan->n; k++) {
        const uint32_t v = p->edge[plan->at[k].edge].target[0];
        if (p->value[v].def == INV_NEVER) x->next.pick[v] = plan->at[k].edge;
        else x->next.at[x->next.n++] = plan->at[k];
    }
    return true;
}

/* The best draft as firings, choices last before their steps. */
static bool give(const annealer *x, inv_arena *a, inv_firings *plan)
{
    const inv_problem *p = x->p;
    const draft *d = &x->best;
    uint32_t k = 0;
    plan->n = 0;
    for (uint32_t t = p->forward; t < p->nstep; t++) {
        for (; k < d->n && d->at[k].step == t; k++)
            if (!inv_vec_push(a, plan, d->at[k])) return false;
        for (uint32_t i = 0; i < p->step[t].nread; i++) {
            const uint32_t v = p->step[t].read[i];
            const inv_firing f = {t, p->value[v].def == INV_NEVER ? d->pick[v] : 0, 1};
            if (p->value[v].def == INV_NEVER && !inv_vec_push(a, plan, f)) return false;
        }
    }
    return true;
}

inv_status inv_plan_anneal(inv_arena *a, const inv_problem *p, const inv_goal *goal, double floor, double effort,
                           uint64_t *dice, inv_firings *plan)
{
    annealer x = {.p = p, .goal = goal, .dice = dice, .budget = goal->budget, .floor = floor,
                  .kept = UINT32_MAX};
    x.limit = goal->budget ? INFINITY : goal->limit;
    if (p->forward == p->nstep) return INV_OK;
    if (!set_up(&x, a, plan)) return INV_E_NOMEM;
    x.best.excess = x.best.cost = INFINITY;
    x.best.peak = SIZE_MAX;
    if (!goal->budget) x.budget = SIZE_MAX / 4;
    if (!measure(&x)) return INV_OK;
    x.kept = x.next.kept;
    accept(&x);
    const bool worth_more = goal->budget || p->nstep >= 500; /* small plans are as good as they get by then */
    const double part = effort / RUNS, hot[] = {10, 3, 1}; /* in terms of an edge's cost */
    for (int run = 0; run < RUNS || (!x.best.fits && worth_more && run < MORE * RUNS); run++) {
        cool(&x, x.mean * hot[run % 3], part);
        copy(&x, &x.next, &x.best); /* from the best once more */
        (void)measure(&x);
        accept(&x);
    }
    return give(&x, a, plan) ? INV_OK : INV_E_NOMEM;
}
