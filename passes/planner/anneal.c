/* SPDX-License-Identifier: Apache-2.0
 * Improves a plan by simulated annealing (Kirkpatrick et al. 1983). A change inserts or removes a rematerialisation,
 * moves it, or replaces its edge. Any list of rematerialisations in the order of steps is a plan, since what it reads,
 * values of forward, has been given before and is kept for it; so every plan can be reached by such changes. The energy
 * of a state is its cost and, at a price, its bytes over the budget. Changes for the worse are accepted by chance, more
 * seldom as the temperature falls, and the price swings so that the search crosses the budget again and again. Without
 * a budget the aim is some part below the best peak so far. plan_state.c tells what a change comes to, for the price of
 * what it touches; changes over many steps are tried more seldom, so that each takes about the same time. All ends
 * after a given number of visits.
 * requires: inv_problem, a plan.
 * gives: a plan that is no worse. */
#include <math.h>

#include "core/base/chance.h"
#include "passes/planner/plan_state.h"
#include "passes/planner/problem.h"

#define NONE INV_NO_EVENT
enum { RUNS = 6, MORE = 4 }; /* descents from hot to cold; MORE times as many while nothing fits */
/* Where only a plan of some cost is of use, how many descents are made before it is seen whether one comes near, and
 * how near, as a share of the cost of a step: later descents seldom gain more. */
enum { PROBES = 2 };
#define NEAR 0.01
/* Without a budget, the aim is below the best peak by 1/FIRST_DIVISOR of it at first, by 1/LAST_DIVISOR at last. */
enum { FIRST_DIVISOR = 32, LAST_DIVISOR = 2048 };

/* The search: its state, its aim and the best plan so far. */
typedef struct annealer {
    const inv_problem *p;
    const inv_goal *goal;
    uint64_t *dice;
    inv_plan_state state;
    double limit;                /* the most cost, in the problem's unit */
    uint32_t most_kept_no_store; /* the most no_store values that may be kept */
    int64_t peak_divisor;        /* without a budget: the aim is peak - peak / peak_divisor bytes */
    bool done;                   /* without a budget: no smaller peak is aimed at */
    double mean_cost;            /* of an edge */
    double excess_price;         /* cost of a byte over the budget */
    double max_excess_price;
    inv_error_estimate *estimate;
    inv_score best;
    bool fits; /* the best plan is within the goal */
    inv_remats best_plan;
    inv_arena *a;
} annealer;

static double anneal_chance(annealer *x) { return inv_chance(x->dice); }

static uint32_t anneal_roll(annealer *x, uint32_t n)
{
    const uint32_t r = (uint32_t)(anneal_chance(x) * n);
    return r < n ? r : n - 1;
}

/* --- the energy of a state --- */

/* Returns the energy, which annealing minimises: cost, bytes over the budget at their price, cost over the limit. */
static double state_energy(const annealer *x)
{
    const inv_plan_state *ps = &x->state;
    /* cost is to count for little while nothing fits, and without a budget: within the limit all costs are alike */
    const double part = !x->goal->budget ? 0.2 : x->fits ? 1 : 0.05;
    return part * ps->cost + x->excess_price * (double)ps->excess + 4 * fmax(0, ps->cost - x->limit);
}

static bool state_allowed(const annealer *x)
{
    return x->state.inverted >= x->goal->learnt.floor && x->state.kept_no_store <= x->most_kept_no_store;
}

/* --- changes --- */

/* Draws an edge that may give v; NONE: there is none. */
static uint32_t random_edge(annealer *x, uint32_t v)
{
    const inv_pb_value *value = &x->p->value[v];
    uint32_t found = NONE, n = 0;
    if (value->pinned) return NONE;
    for (uint32_t i = value->first; i < value->first + value->n; i++)
        if (anneal_roll(x, ++n) == 0) found = x->p->edge_of[i];
    return found;
}

static uint32_t further_steps(const annealer *x, uint32_t far, uint32_t v, uint32_t event)
{
    const uint32_t n = inv_plan_state_steps_since(&x->state, v, event);
    return n > far ? n : far;
}

/* Tries changes over many steps more seldom, as they take longer. */
static bool is_too_far(annealer *x, uint32_t steps)
{
    enum { FEW_STEPS = 1024 };
    return anneal_chance(x) * steps > FEW_STEPS;
}

/* Returns the rematerialisation, or NONE if it was not inserted. */
static uint32_t insert_if_near(annealer *x, uint32_t before, uint32_t edge)
{
    const inv_pb_edge *e = &x->p->edge[edge];
    uint32_t far = 0;
    for (uint32_t i = 0; i < e->nsource; i++)
        if (!inv_plan_state_is_live(&x->state, e->source[i], before)) far = further_steps(x, far, e->source[i], before);
    for (uint32_t i = 0; i < e->ntarget; i++)
        if (inv_plan_state_is_live(&x->state, e->target[i], before)) far = further_steps(x, far, e->target[i], before);
    return is_too_far(x, far) ? NONE : inv_plan_state_insert(&x->state, before, edge);
}

static void remove_if_near(annealer *x, uint32_t r)
{
    const inv_plan_event *ev = &x->state.event[r];
    const inv_pb_edge *e = &x->p->edge[ev->edge];
    uint32_t far = 0;
    for (uint32_t i = 0; i < e->ntarget; i++)
        if (ev->want >> i & 1) far = further_steps(x, far, e->target[i], r);
    if (!is_too_far(x, far)) inv_plan_state_remove(&x->state, r);
}

/* Derives v before that event, and perhaps sources that are not live there. */
static void derive_before(annealer *x, uint32_t v, uint32_t before, int depth)
{
    const uint32_t id = random_edge(x, v);
    if (id == NONE) return;
    const inv_pb_edge *e = &x->p->edge[id];
    for (uint32_t i = 0; depth > 0 && i < e->nsource; i++)
        if (!inv_plan_state_is_live(&x->state, e->source[i], before) && anneal_roll(x, 4))
            derive_before(x, e->source[i], before, depth - 1);
    (void)insert_if_near(x, before, id);
}

/* Draws an event, in most cases one where the budget is exceeded. */
static uint32_t random_event(annealer *x)
{
    const inv_plan_state *ps = &x->state;
    if (ps->nover && anneal_chance(x) < 0.6) return ps->over_budget[anneal_roll(x, ps->nover)];
    const uint32_t back = x->p->nstep - x->p->forward, at = anneal_roll(x, back + ps->nremat);
    return at < back ? x->p->forward + at : ps->remat[at - back];
}

/* A draw of a value from a sequence, with weights by bytes (reservoir sampling, Chao 1982). */
typedef struct weighted_draw {
    uint32_t at; /* the event at which the value has to be live */
    uint32_t v;  /* the value drawn so far */
    double sum;  /* bytes offered so far */
} weighted_draw;

static void offer_value(annealer *x, weighted_draw *b, uint32_t v)
{
    const inv_pb_value *value = &x->p->value[v];
    const double nbytes = x->goal->activations && value->data ? 0 : (double)value->nbytes;
    b->sum += nbytes;
    if (anneal_chance(x) * b->sum < nbytes) b->v = v;
}

static void offer_live(annealer *x, weighted_draw *b)
{
    const inv_plan_state *ps = &x->state;
    const uint64_t label = ps->event[b->at].label;
    for (size_t i = 0; i < ps->interval.n; i++) {
        const inv_plan_interval *s = &ps->interval.at[i];
        if (s->value != NONE && ps->event[s->from].label <= label && label <= ps->event[s->to].label)
            offer_value(x, b, s->value);
    }
    x->state.work += (double)ps->interval.n / 8;
}

/* Offers the live values that are read shortly before and after the event. */
static void offer_read_nearby(annealer *x, weighted_draw *b)
{
    enum { FAR = 48 };
    const inv_plan_state *ps = &x->state;
    uint32_t at = b->at;
    for (int k = 0; k < FAR && ps->event[at].prev != NONE; k++) at = ps->event[at].prev;
    for (int k = 0; k < 2 * FAR && at != NONE; k++, at = ps->event[at].next) {
        uint32_t n;
        const uint32_t *list = inv_plan_state_operands(ps, at, &n);
        for (uint32_t i = 0; i < n; i++)
            if (inv_plan_state_is_live(ps, list[i], b->at)) offer_value(x, b, list[i]);
    }
    x->state.work += FAR / 4; /* NOLINT: a whole number */
}

/* Derives a value that is live at an event for its next reader, instead of keeping it. It is drawn from all that are
 * live, or, where that would take long, in most cases from those that are read nearby. */
static void derive_for_next_reader(annealer *x)
{
    enum { FEW = 512 };
    weighted_draw b = {random_event(x), NONE, 0};
    if (anneal_chance(x) * (double)x->state.interval.n < FEW) offer_live(x, &b);
    else offer_read_nearby(x, &b);
    if (b.v == NONE) return;
    const uint32_t turn = x->p->forward - 1,
                   reader = inv_plan_state_next_reader(&x->state, b.v, b.at < turn ? turn : b.at);
    if (reader != NONE) derive_before(x, b.v, reader, 4);
}

/* Draws a rematerialisation, in most cases one near an event where the budget is exceeded; NONE: there is none. */
static uint32_t random_remat(annealer *x)
{
    enum { ABOUT = 8, FAR = 64 };
    const inv_plan_state *ps = &x->state;
    if (!ps->nremat) return NONE;
    if (!ps->nover || anneal_chance(x) < 0.4) return ps->remat[anneal_roll(x, ps->nremat)];
    const uint32_t from = ps->over_budget[anneal_roll(x, ps->nover)];
    const bool up = anneal_roll(x, 2);
    uint32_t nth = 1 + anneal_roll(x, ABOUT), found = from >= x->p->nstep ? from : NONE;
    for (uint32_t at = from, k = 0; k < FAR && nth > 0 && at != NONE; k++) {
        at = up ? ps->event[at].next : ps->event[at].prev;
        if (at != NONE && at >= x->p->nstep) found = at, nth--;
    }
    return found;
}

/* Inserts before it removes, so that targets need not be kept across the gap in between. */
static void replace_remat(annealer *x, uint32_t r, uint32_t before, uint32_t edge)
{
    if (insert_if_near(x, before, edge) != NONE) remove_if_near(x, r);
}

static void shift_remat(annealer *x)
{
    inv_plan_state *ps = &x->state;
    const uint32_t r = random_remat(x), far = 1 + anneal_roll(x, anneal_chance(x) < 0.5 ? 2 : 12);
    if (r == NONE) return;
    const uint32_t edge = ps->event[r].edge, last = x->p->nstep - 1, first = x->p->forward - 1;
    uint32_t before = ps->event[r].next;
    for (uint32_t i = 0, up = anneal_roll(x, 2); i < far; i++) { /* each step of the way is an event */
        if (up && before != last) before = ps->event[before].next;
        else if (!up && ps->event[before].prev != first) before = ps->event[before].prev;
    }
    replace_remat(x, r, before, edge);
}

/* Moves a rematerialisation to an earlier time: right behind the end of a live interval of one of its sources, drawn at
 * random, which then lasts until there. What had given the source again may be unread after that. */
static void hoist_remat(annealer *x)
{
    inv_plan_state *ps = &x->state;
    const uint32_t r = random_remat(x);
    if (r == NONE) return;
    const uint32_t edge = ps->event[r].edge;
    const inv_pb_edge *e = &x->p->edge[edge];
    uint32_t behind = NONE, n = 0;
    for (uint32_t i = 0; i < e->nsource; i++)
        for (uint32_t s = ps->value[e->source[i]].interval; s != NONE; s = ps->interval.at[s].next) {
            const uint32_t to = ps->interval.at[s].to;
            if (to < x->p->forward || ps->event[to].label >= ps->event[r].label) continue;
            if (anneal_roll(x, ++n) == 0) behind = to;
        }
    if (behind == NONE) return;
    replace_remat(x, r, ps->event[behind].next, edge);
}

static void change_edge(annealer *x)
{
    inv_plan_state *ps = &x->state;
    const uint32_t r = random_remat(x);
    if (r == NONE) return;
    const inv_pb_edge *e = &x->p->edge[ps->event[r].edge];
    const uint32_t id = random_edge(x, e->target[anneal_roll(x, e->ntarget)]), before = ps->event[r].next;
    if (id == NONE || id == ps->event[r].edge) return;
    replace_remat(x, r, before, id);
}

static void remove_random_remat(annealer *x)
{
    const uint32_t r = random_remat(x);
    if (r != NONE) remove_if_near(x, r);
}

static void change_state(annealer *x)
{
    const double d = anneal_chance(x);
    if (d < 0.35) derive_for_next_reader(x);
    else if (d < 0.6) remove_random_remat(x);
    else if (d < 0.77) shift_remat(x);
    else if (d < 0.87) hoist_remat(x);
    else change_edge(x);
}

/* --- the search --- */

/* Returns the score of the state, as far as it decides: the peak is dear to know. With a budget it does not matter how
 * large one over the budget is, since the excess decides then, nor how small that of a dearer plan is. Without, all
 * costs within the limit are alike. */
static inv_score state_score(const annealer *x)
{
    const inv_plan_state *ps = &x->state;
    const size_t budget = x->goal->budget;
    inv_score s = {.cost = budget ? ps->cost : fmax(ps->cost, x->limit),
                   .inverted = ps->inverted,
                   .excess = (double)ps->excess,
                   .peak = ps->excess > 0 ? SIZE_MAX : budget};
    const int64_t enough = x->best.peak < INT64_MAX ? (int64_t)x->best.peak : INT64_MAX;
    if (!budget || (ps->excess <= 0 && ps->cost <= x->best.cost)) s.peak = (size_t)inv_plan_state_peak(ps, enough);
    if (x->goal->activations) s.activations = s.peak;
    return s;
}

/* Without a budget, sets one below the best peak, so that all bytes near the peak count. */
static void aim_below_best(annealer *x)
{
    const int64_t peak = (int64_t)x->best.peak;
    inv_plan_state_set_budget(&x->state, peak - peak / x->peak_divisor);
    x->best.excess = (double)x->state.excess;
}

/* Aims at smaller gains, down to where nothing is worth it. */
static void take_finer_steps(annealer *x)
{
    x->peak_divisor *= 4;
    x->done = x->peak_divisor > LAST_DIVISOR;
    if (!x->done) aim_below_best(x);
}

static inv_status keep_best_state(annealer *x)
{
    inv_plan_state *ps = &x->state;
    const inv_score now = state_score(x);
    if (!inv_score_better(x->p, x->goal, &now, &x->best)) return INV_OK;
    x->best = now;
    x->fits = ps->excess <= 0 && ps->cost <= x->limit;
    INV_TRY(inv_plan_state_list(ps, x->a, &x->best_plan));
    x->state.work += ps->nremat;
    if (!x->goal->budget && now.cost <= x->limit && now.peak > 0) aim_below_best(x);
    return INV_OK;
}

/* Lets the price of bytes swing about the one at which the budget is just met. */
static void swing_price(annealer *x, int *run)
{
    if (!x->goal->budget || !x->fits) return;
    enum { LONG = 40 };
    *run = x->state.excess > 0 ? (*run > 0 ? *run : 0) + 1 : (*run < 0 ? *run : 0) - 1;
    if (*run > LONG) x->excess_price = fmin(x->excess_price * 1.3, x->max_excess_price), *run = 0;
    if (*run < -LONG) x->excess_price = fmax(x->excess_price / 1.3, x->max_excess_price / 1e4), *run = 0;
}

/* Returns the temperature to begin with, in costs of an edge: a plan of many rematerialisations takes more tries to
 * settle again. */
static double first_temperature(const annealer *x, double effort)
{
    const double tries = effort / 16000 / (x->state.nremat + 1);
    return fmax(0.1, fmin(tries, 10));
}

/* Makes one descent from the highest temperature to a hundredth of it. */
static inv_status cool_down(annealer *x, double highest, double effort)
{
    inv_plan_state *ps = &x->state;
    const double begin = ps->work;
    int run = 0;
    for (uint32_t k = 0; ps->work < begin + effort && !ps->a->failed; k++) {
        if (k % 4096 == 0) {
            INV_TRY(inv_check_stop(x->a->ctx));
            inv_progress(x->a->ctx, (ps->work - begin) / effort);
        }
        const double temperature = highest * pow(0.01, (ps->work - begin) / effort), old = state_energy(x);
        do change_state(x);
        while (anneal_chance(x) < 0.4);
        ps->work += 32;
        const double now = state_energy(x);
        if ((now <= old || anneal_chance(x) < exp((old - now) / temperature)) && state_allowed(x) &&
            inv_error_estimate_update(x->estimate)) {
            inv_plan_state_commit(ps);
            INV_TRY(keep_best_state(x));
        } else {
            inv_plan_state_undo(ps);
        }
        swing_price(x, &run);
    }
    return ps->a->failed ? INV_E_NOMEM : INV_OK;
}

static inv_status set_up_annealer(annealer *x, const inv_remats *plan)
{
    const inv_problem *p = x->p;
    double nbytes = 1;
    for (uint32_t i = 0; i < p->nedge; i++) x->mean_cost += p->edge[i].cost / p->nedge;
    for (uint32_t v = 0; v < p->nvalue; v++) nbytes += (double)p->value[v].nbytes / p->nvalue;
    x->excess_price = x->mean_cost / nbytes;
    x->max_excess_price = 100 * x->excess_price;
    INV_TRY(inv_plan_state_init(&x->state, x->a, p, x->goal->activations, 2 * (uint32_t)plan->n + p->nvalue + 32));
    return inv_error_estimate_new(&x->state, &x->estimate);
}

/* Loads a plan. False: it is not allowed. */
static inv_status load_state(annealer *x, const inv_remats *plan, int64_t budget, bool *fine)
{
    INV_TRY(inv_plan_state_load(&x->state, plan));
    inv_plan_state_set_budget(&x->state, budget);
    *fine = state_allowed(x) && inv_error_estimate_load(x->estimate);
    return x->a->failed ? INV_E_NOMEM : INV_OK;
}

/* Whether it is time to see that no plan of use will be found. */
static bool is_hopeless(const annealer *x, int runs)
{
    const double worth = x->goal->worth;
    return worth > 0 && runs >= PROBES && (!x->fits || x->best.cost > worth + NEAR * x->p->cost);
}

inv_status inv_plan_anneal(inv_arena *a, const inv_problem *p, const inv_goal *goal, double effort, uint64_t *dice,
                           inv_remats *plan)
{
    annealer x = {
        .p = p, .goal = goal, .dice = dice, .most_kept_no_store = UINT32_MAX, .peak_divisor = FIRST_DIVISOR, .a = a};
    bool fine;
    x.limit = goal->budget ? INFINITY : goal->limit;
    x.best = (inv_score){.peak = SIZE_MAX, .activations = SIZE_MAX, .cost = INFINITY, .excess = INFINITY};
    if (p->forward == p->nstep || !p->forward) return INV_OK;
    INV_TRY(set_up_annealer(&x, plan));
    INV_TRY(load_state(&x, plan, goal->budget ? (int64_t)goal->budget : INT64_MAX / 4, &fine));
    if (!fine) return INV_OK;
    x.most_kept_no_store = x.state.kept_no_store;
    INV_TRY(keep_best_state(&x));
    const int most =
        goal->budget || p->nstep >= 500 ? MORE * RUNS : RUNS; /* small plans are done after the first runs */
    const double part = effort / RUNS, highest[] = {1, 0.3, 0.1},
                 first_highest = x.mean_cost * first_temperature(&x, part);
    for (int run = 0, last = 0; run < RUNS || (run < most && !(goal->budget ? x.fits : x.done)); run++) {
        if (is_hopeless(&x, run)) break;
        const size_t peak = x.best.peak;
        /* for the progress that is shown: later runs are seldom all made */
        const double done = run < RUNS ? 0.8 * run / RUNS : 1 - 0.2 / (2 + run - RUNS),
                     next = run + 1 < RUNS ? 0.8 * (run + 1) / RUNS : 1 - 0.2 / (3 + run - RUNS);
        const inv_span around = inv_span_enter(a->ctx, NULL, done, next > done ? next : done);
        const inv_status st = cool_down(&x, first_highest * highest[run % 3], part);
        inv_span_leave(a->ctx, around);
        INV_TRY(st);
        if (x.best.peak < peak) last = run;
        if (!goal->budget && most > RUNS && run - last >= 3) take_finer_steps(&x), last = run;
        if ((double)x.state.excess >= x.best.excess || x.state.cost > x.limit) /* begins from the best once more */
            INV_TRY(load_state(&x, &x.best_plan, x.state.budget, &fine));
    }
    *plan = x.best_plan;
    return INV_OK;
}
