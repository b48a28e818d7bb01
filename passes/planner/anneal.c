/* SPDX-License-Identifier: Apache-2.0
 * A plan improved by changes of itself: one rematerialisation more, one less, one elsewhere or by another edge, another
 * choice. Any list of rematerialisations is a plan, since what it reads is kept for it, so that all plans can be
 * reached; what a list is worth is its arithmetic and, at a price, its bytes over the budget. Changes for the worse are
 * accepted by chance, more seldom as time goes on (simulated annealing, Kirkpatrick et al. 1983), and the price of
 * bytes swings so that the search crosses the budget again and again. plan_state.c says what a change comes to.
 * requires: inv_problem, a plan.  gives: a plan that is no worse. */
#include <math.h>

#include "passes/planner/plan_state.h"
#include "passes/planner/problem.h"

#define NONE INV_NO_SPOT
enum { RUNS = 6, MORE = 4 };      /* descents; as many times that while nothing fits */
enum { LESS = 32, LEAST = 2048 }; /* parts of the peak that are to go next */

/* What a plan is compared by. */
typedef struct figures {
    double cost;
    int64_t excess, peak;
    bool fits; /* within the budget */
} figures;

typedef struct annealer {
    const inv_problem *p;
    const inv_goal *goal;
    uint64_t *dice;
    inv_draft d;
    double limit, floor;
    uint32_t kept;        /* shunned values that may be */
    int64_t less;         /* without a budget: the part of the peak that is to go next */
    bool done;            /* no smaller peak is looked for */
    double mean;          /* cost of an edge */
    double rate, dearest; /* what a byte over the budget counts, at most */
    uint32_t *choice, nchoice;
    inv_drift *drift;
    figures best;
    inv_remats best_plan;
    inv_arena *a;
} annealer;

static double chance(annealer *x) { return inv_chance(x->dice); }

static uint32_t roll(annealer *x, uint32_t n)
{
    const uint32_t r = (uint32_t)(chance(x) * n);
    return r < n ? r : n - 1;
}

/* --- what a draft is worth --- */

static double worth(const annealer *x)
{
    const inv_draft *d = &x->d;
    /* while nothing fits, arithmetic is to count for little */
    const double part = !x->goal->budget ? 0.2 : x->best.fits ? 1 : 0.05;
    return part * d->cost + x->rate * (double)d->excess + 4 * fmax(0, d->cost - x->limit);
}

static bool enough(const annealer *x) { return x->d.inverted >= x->floor && x->d.kept <= x->kept; }

/* --- changes --- */

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

static uint32_t further(const annealer *x, uint32_t far, uint32_t v, uint32_t spot)
{
    const uint32_t n = inv_draft_steps_since(&x->d, v, spot);
    return n > far ? n : far;
}

/* A change of what is there over so many steps is tried the more seldom the more there are, as it takes as long. */
static bool too_far(annealer *x, uint32_t steps)
{
    enum { NEAR = 256 };
    return chance(x) * steps > NEAR;
}

/* NONE: not done. */
static uint32_t insert(annealer *x, uint32_t before, uint32_t edge)
{
    const inv_pb_edge *e = &x->p->edge[edge];
    uint32_t far = 0;
    for (uint32_t i = 0; i < e->nsource; i++)
        if (!inv_draft_there(&x->d, e->source[i], before)) far = further(x, far, e->source[i], before);
    for (uint32_t i = 0; i < e->ntarget; i++)
        if (inv_draft_there(&x->d, e->target[i], before)) far = further(x, far, e->target[i], before);
    return too_far(x, far) ? NONE : inv_draft_insert(&x->d, before, edge);
}

static void take_out(annealer *x, uint32_t f)
{
    const inv_spot *s = &x->d.spot[f];
    const inv_pb_edge *e = &x->p->edge[s->edge];
    uint32_t far = 0;
    for (uint32_t i = 0; i < e->ntarget; i++)
        if (s->want >> i & 1) far = further(x, far, e->target[i], f);
    if (!too_far(x, far)) inv_draft_remove(&x->d, f);
}

/* v is derived before that spot; so are, perhaps, sources that are not there. */
static void derive(annealer *x, uint32_t v, uint32_t before, int depth)
{
    const uint32_t id = some_edge(x, v);
    if (id == NONE) return;
    const inv_pb_edge *e = &x->p->edge[id];
    for (uint32_t i = 0; depth > 0 && i < e->nsource; i++)
        if (!inv_draft_there(&x->d, e->source[i], before) && roll(x, 4)) derive(x, e->source[i], before, depth - 1);
    (void)insert(x, before, id);
}

/* Where too much is live, as a rule. */
static uint32_t some_spot(annealer *x)
{
    const inv_draft *d = &x->d;
    if (d->nhot && chance(x) < 0.6) return d->hot[roll(x, d->nhot)];
    const uint32_t back = x->p->nstep - x->p->forward, at = roll(x, back + d->nremat);
    return at < back ? x->p->forward + at : d->remat[at - back];
}

/* One of the values that are there at some time, a large one rather than a small one. */
typedef struct ballot {
    uint32_t at, v;
    double sum;
} ballot;

static void vote(annealer *x, ballot *b, uint32_t v)
{
    const inv_pb_value *value = &x->p->value[v];
    const double nbytes = x->goal->activations && value->data ? 0 : (double)value->nbytes;
    b->sum += nbytes;
    if (chance(x) * b->sum < nbytes) b->v = v;
}

static void vote_all(annealer *x, ballot *b)
{
    const inv_draft *d = &x->d;
    const uint64_t label = d->spot[b->at].label;
    for (size_t i = 0; i < d->stay.n; i++) {
        const inv_stay *s = &d->stay.at[i];
        if (s->value != NONE && d->spot[s->from].label <= label && label <= d->spot[s->to].label) vote(x, b, s->value);
    }
    x->d.work += (double)d->stay.n / 8;
}

/* Of what is read shortly before and after. */
static void vote_near(annealer *x, ballot *b)
{
    enum { FAR = 48 };
    const inv_draft *d = &x->d;
    uint32_t at = b->at;
    for (int k = 0; k < FAR && d->spot[at].prev != NONE; k++) at = d->spot[at].prev;
    for (int k = 0; k < 2 * FAR && at != NONE; k++, at = d->spot[at].next) {
        const inv_pb_edge *e = at < x->p->nstep ? NULL : &x->p->edge[d->spot[at].edge];
        const uint32_t *list = e ? e->source : x->p->step[at].read, n = e ? e->nsource : x->p->step[at].nread;
        for (uint32_t i = 0; i < n; i++)
            if (inv_draft_there(d, list[i], b->at)) vote(x, b, list[i]);
    }
    x->d.work += FAR / 4; /* NOLINT: a whole number */
}

/* A value is derived for its next reader. All that are there are looked at, or where that takes long as a
 * rule those that are read about that time. */
static void cut(annealer *x)
{
    enum { FEW = 512 };
    ballot b = {some_spot(x), NONE, 0};
    if (chance(x) * (double)x->d.stay.n < FEW) vote_all(x, &b);
    else vote_near(x, &b);
    if (b.v == NONE) return;
    const uint32_t turn = x->p->forward - 1, reader = inv_draft_reader(&x->d, b.v, b.at < turn ? turn : b.at);
    if (reader != NONE) derive(x, b.v, reader, 4);
}

/* A rematerialisation: any, or one about where too much is live, as a rule. NONE: there is none. */
static uint32_t random_remat(annealer *x)
{
    enum { ABOUT = 8, FAR = 64 };
    const inv_draft *d = &x->d;
    if (!d->nremat) return NONE;
    if (!d->nhot || chance(x) < 0.4) return d->remat[roll(x, d->nremat)];
    const uint32_t from = d->hot[roll(x, d->nhot)];
    const bool up = roll(x, 2);
    uint32_t nth = 1 + roll(x, ABOUT), found = from >= x->p->nstep ? from : NONE;
    for (uint32_t at = from, k = 0; k < FAR && nth > 0 && at != NONE; k++) {
        at = up ? d->spot[at].next : d->spot[at].prev;
        if (at != NONE && at >= x->p->nstep) found = at, nth--;
    }
    return found;
}

/* In this order what f gives need not be kept from long before in between. */
static void replace(annealer *x, uint32_t f, uint32_t before, uint32_t edge)
{
    if (insert(x, before, edge) != NONE) take_out(x, f);
}

static void shift(annealer *x)
{
    inv_draft *d = &x->d;
    const uint32_t f = random_remat(x), far = 1 + roll(x, chance(x) < 0.5 ? 2 : 12);
    if (f == NONE) return;
    const uint32_t edge = d->spot[f].edge, last = x->p->nstep - 1, first = x->p->forward - 1;
    uint32_t before = d->spot[f].next;
    for (uint32_t i = 0, up = roll(x, 2); i < far; i++) { /* over rematerialisations and steps alike */
        if (up && before != last) before = d->spot[before].next;
        else if (!up && d->spot[before].prev != first) before = d->spot[before].prev;
    }
    replace(x, f, before, edge);
}

/* A rematerialisation moves back to where something that it reads was there before, behind the last reader of that:
 * what was derived once more for it may then be for nothing. */
static void hoist(annealer *x)
{
    inv_draft *d = &x->d;
    const uint32_t f = random_remat(x);
    if (f == NONE) return;
    const uint32_t edge = d->spot[f].edge;
    const inv_pb_edge *e = &x->p->edge[edge];
    uint32_t behind = NONE, n = 0;
    for (uint32_t i = 0; i < e->nsource; i++)
        for (uint32_t s = d->value[e->source[i]].stay; s != NONE; s = d->stay.at[s].next) {
            const uint32_t to = d->stay.at[s].to;
            if (to < x->p->forward || d->spot[to].label >= d->spot[f].label) continue;
            if (roll(x, ++n) == 0) behind = to;
        }
    if (behind == NONE) return;
    replace(x, f, d->spot[behind].next, edge);
}

static void other_edge(annealer *x)
{
    inv_draft *d = &x->d;
    if (x->nchoice && (!d->nremat || roll(x, 3) == 0)) {
        const uint32_t c = x->choice[roll(x, x->nchoice)], id = some_edge(x, c);
        if (id != NONE && id != d->pick[c]) inv_draft_pick(d, c, id);
        return;
    }
    const uint32_t f = random_remat(x);
    if (f == NONE) return;
    const inv_pb_edge *e = &x->p->edge[d->spot[f].edge];
    const uint32_t id = some_edge(x, e->target[roll(x, e->ntarget)]), before = d->spot[f].next;
    if (id == NONE || id == d->spot[f].edge) return;
    replace(x, f, before, id);
}

static void leave_out(annealer *x)
{
    const uint32_t f = random_remat(x);
    if (f != NONE) take_out(x, f);
}

static void change(annealer *x)
{
    const double d = chance(x);
    if (d < 0.35) cut(x);
    else if (d < 0.6) leave_out(x);
    else if (d < 0.77) shift(x);
    else if (d < 0.87) hoist(x);
    else other_edge(x);
}

/* --- the search --- */

/* Most bytes; where they are more than `enough`, that is all that is known. */
static int64_t peak_of(const annealer *x, int64_t enough)
{
    const inv_draft *d = &x->d;
    int64_t most = 0;
    for (uint32_t i = 0; i < d->nhot && most <= enough; i++)
        if (d->spot[d->hot[i]].live > most) most = d->spot[d->hot[i]].live;
    for (uint32_t at = 0; !d->nhot && at != NONE; at = d->spot[at].next)
        if (d->spot[at].counts && d->spot[at].live > most) most = d->spot[at].live;
    return most;
}

static bool beats(const annealer *x, const figures *a, const figures *b)
{
    if (!x->goal->budget && a->cost <= x->limit && b->cost <= x->limit) return a->peak < b->peak;
    if (a->fits != b->fits) return a->fits;
    if (!a->fits) return a->excess < b->excess;
    return a->cost < b->cost || (a->cost <= b->cost && a->peak < b->peak);
}

/* Without a budget of its own, the draft is to come below the best plan: all bytes near its peak count. */
static void lower(annealer *x)
{
    inv_draft_set_budget(&x->d, x->best.peak - x->best.peak / x->less);
    x->best.excess = x->d.excess;
}

/* Smaller steps, down to one beyond which nothing is worth it. */
static void finer(annealer *x)
{
    x->less *= 4;
    x->done = x->less > LEAST;
    if (!x->done) lower(x);
}

static inv_status keep_best(annealer *x)
{
    inv_draft *d = &x->d;
    const bool fits = d->excess <= 0 && d->cost <= x->limit;
    const bool peaks = !x->goal->budget || (fits && d->cost <= x->best.cost);
    const figures now = {d->cost, d->excess, peaks ? peak_of(x, x->best.peak) : INT64_MAX, fits};
    if (!beats(x, &now, &x->best)) return INV_OK;
    x->best = now;
    INV_TRY(inv_draft_list(d, x->a, &x->best_plan));
    x->d.work += d->nremat;
    if (!x->goal->budget && now.cost <= x->limit && now.peak > 0) lower(x);
    return INV_OK;
}

/* The price of bytes swings about the one at which the budget is just met. */
static void swing(annealer *x, int *run)
{
    if (!x->goal->budget || !x->best.fits) return;
    enum { LONG = 40 };
    *run = x->d.excess > 0 ? (*run > 0 ? *run : 0) + 1 : (*run < 0 ? *run : 0) - 1;
    if (*run > LONG) x->rate = fmin(x->rate * 1.3, x->dearest), *run = 0;
    if (*run < -LONG) x->rate = fmax(x->rate / 1.3, x->dearest / 1e4), *run = 0;
}

/* At most, in terms of an edge's cost: a plan of many rematerialisations that is shaken needs as many tries to settle
 * again. */
static double heat_for(const annealer *x, double effort)
{
    const double tries = effort / 16000 / (x->d.nremat + 1);
    return fmax(0.1, fmin(tries, 10));
}

/* From hot to cold. */
static inv_status cool(annealer *x, double hot, double effort)
{
    inv_draft *d = &x->d;
    const double begin = d->work;
    int run = 0;
    for (uint32_t k = 0; d->work < begin + effort && !d->failed; k++) {
        if (k % 4096 == 0) inv__progress(x->a->ctx, (d->work - begin) / effort);
        const double heat = hot * pow(0.01, (d->work - begin) / effort), old = worth(x);
        do change(x);
        while (chance(x) < 0.4);
        d->work += 32;
        const double now = worth(x);
        if ((now <= old || chance(x) < exp((old - now) / heat)) && enough(x) && inv_drift_follow(x->drift)) {
            inv_draft_commit(d);
            INV_TRY(keep_best(x));
        } else {
            inv_draft_undo(d);
        }
        swing(x, &run);
    }
    return d->failed ? INV_E_NOMEM : INV_OK;
}

static inv_status set_up(annealer *x, const inv_remats *plan)
{
    const inv_problem *p = x->p;
    double nbytes = 1;
    x->choice = INV_ARENA_NEW(x->a, uint32_t, p->nvalue + 1);
    if (!x->choice) return INV_E_NOMEM;
    for (uint32_t i = 0; i < p->nedge; i++) x->mean += p->edge[i].cost / p->nedge;
    for (uint32_t v = 0; v < p->nvalue; v++) {
        nbytes += (double)p->value[v].nbytes / p->nvalue;
        if (p->value[v].def == INV_NEVER) x->choice[x->nchoice++] = v;
    }
    x->rate = x->mean / nbytes;
    x->dearest = 100 * x->rate;
    INV_TRY(inv_draft_init(&x->d, x->a, p, x->goal->activations, 2 * (uint32_t)plan->n + p->nvalue + 32));
    return inv_drift_new(&x->d, &x->drift);
}

/* False: the plan is not allowed at all. */
static inv_status load(annealer *x, const inv_remats *plan, int64_t budget, bool *fine)
{
    INV_TRY(inv_draft_load(&x->d, plan));
    inv_draft_set_budget(&x->d, budget);
    *fine = enough(x) && inv_drift_load(x->drift);
    return x->d.failed ? INV_E_NOMEM : INV_OK;
}

inv_status inv_plan_anneal(inv_arena *a, const inv_problem *p, const inv_goal *goal, double floor, double effort,
                           uint64_t *dice, inv_remats *plan)
{
    annealer x = {.p = p, .goal = goal, .dice = dice, .floor = floor, .kept = UINT32_MAX, .less = LESS, .a = a};
    bool fine;
    x.limit = goal->budget ? INFINITY : goal->limit;
    x.best = (figures){INFINITY, INT64_MAX, INT64_MAX, false};
    if (p->forward == p->nstep || !p->forward) return INV_OK;
    INV_TRY(set_up(&x, plan));
    INV_TRY(load(&x, plan, goal->budget ? (int64_t)goal->budget : INT64_MAX / 4, &fine));
    if (!fine) return INV_OK;
    x.kept = x.d.kept;
    INV_TRY(keep_best(&x));
    const int most = goal->budget || p->nstep >= 500 ? MORE * RUNS : RUNS; /* small plans are done by then */
    const double part = effort / RUNS, hot[] = {1, 0.3, 0.1}, most_hot = x.mean * heat_for(&x, part);
    for (int run = 0, last = 0; run < RUNS || (run < most && !(goal->budget ? x.best.fits : x.done)); run++) {
        const int64_t peak = x.best.peak;
        /* the first runs are most of it; the others seldom are all made */
        const double done = run < RUNS ? 0.8 * run / RUNS : 1 - 0.2 / (2 + run - RUNS),
                     next = run + 1 < RUNS ? 0.8 * (run + 1) / RUNS : 1 - 0.2 / (3 + run - RUNS);
        const inv_span around = inv__span_enter(a->ctx, NULL, done, next > done ? next : done);
        const inv_status st = cool(&x, most_hot * hot[run % 3], part);
        inv__span_leave(a->ctx, around);
        INV_TRY(st);
        if (x.best.peak < peak) last = run;
        if (!goal->budget && most > RUNS && run - last >= 3) finer(&x), last = run;
        if (x.d.excess >= x.best.excess || x.d.cost > x.limit) /* from the best once more */
            INV_TRY(load(&x, &x.best_plan, x.d.budget, &fine));
    }
    *plan = x.best_plan;
    return INV_OK;
}
