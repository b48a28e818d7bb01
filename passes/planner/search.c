/* SPDX-License-Identifier: Apache-2.0
 * The search for a plan. The budget is relaxed by prices of memory (Lagrangian relaxation): at given prices greedy.c
 * builds one plan in one pass, so the search is one over prices.
 * 1. scan_prices tries one price, for a byte that is live at the turn from forward to backward, on a geometric grid;
 * the peak is not monotone in it, so all are tried, but those beyond the ones that are too high in a large problem.
 * Each plan is built again with a warm start, which knows what the last kept. If plans have to invert a share of the
 * most bytes that any trial inverts (goal.share), which is known only then, there is a second scan; in a large problem,
 * of which few other prices are tried, it gives bytes a price over all of backward.
 * 2. try_variants varies the best setting, and ascend_prices goes on with a price per step that rises where too many
 * bytes are live: ascent of the dual by multiplicative weights.
 * 3. What a plan leaves of the budget is used to retain values, and where bytes are to be few, the best plan is
 * squeezed (descent.c). Then it is improved by simulated annealing (anneal.c), unless it is one of a large problem and
 * near the lower bound. For the best balance of bytes and cost, that is done within some more bytes and some fewer, by
 * turns; in a large problem near the lower bound the best plan is squeezed into fewer and fewer bytes instead, without
 * annealing (balance_large).
 * All is deterministic: effort is counted in visits, not in seconds.
 * requires: inv_problem, inv_goal.
 * gives: rematerialisations and their score. */
#include <math.h>
#include <string.h>

#include "core/base/chance.h"
#include "passes/planner/plan_state.h"
#include "passes/planner/problem.h"

/* LARGE: steps of forward, beyond which annealing changes little and prices find nearly all. Only this limit leaves
 * out steps of backward and the update; effort is by all steps. */
enum { MOST_AGAIN = 8, LARGE = 1000, FEW_VISITS = 128 };
/* A large problem's plan that is as near as this share of a step's cost to the lower bound is not annealed. For a
 * balance bytes count as much as cost, so less hangs on the last of it. */
#define GAP 0.005
#define GAP_OF_BALANCE 0.02
/* One part in so many of the smallest peak of activations is given up for less time: the last bytes are the dearest,
 * and took a twelfth of ConvNeXt's step. Peaks are to be as flat in depth as a percent, so it is less than that. */
enum { SPARE_PART = 160 };

/* Prices of one trial, and options of the greedy pass. */
typedef struct setting {
    double *step; /* per step: price of a byte that is live */
    double price; /* sum of step[] */
    bool invert, split_operands, rederive_kept;
} setting;

/* The search: prices, the last plan, and the best so far. */
typedef struct searcher {
    inv_context *ctx;
    const inv_problem *p;
    inv_goal goal;
    inv_arena arena, scratch; /* for the whole search; for one trial */
    setting now, next;
    uint32_t *warm_start; /* per value: until when the last plan kept it */
    size_t *step_peak;    /* per step: most bytes live, by the last plan */
    inv_plan_state state; /* of the last plan, as far as it was loaded */
    inv_error_estimate *errors;
    size_t most_remats; /* that it has room for */
    inv_remats last, best;
    inv_score score, best_score, now_score; /* of the last plan; of the best; of `now` */
    bool found;                             /* there is a best plan */
    double work, most_work;                 /* visits: made so far; allowed before annealing */
    double most_inverted;                   /* the most bytes that any plan has inverted */
    uint64_t dice;                          /* state of inv_chance */
} searcher;

/* Bytes times cost of the whole step: a percent of memory is worth a percent of time. */
static double score_product(const inv_problem *p, const inv_goal *goal, const inv_score *a)
{
    return ((double)goal->persistent + (double)a->peak) * (p->cost + a->cost);
}

bool inv_score_better(const inv_problem *p, const inv_goal *goal, const inv_score *a, const inv_score *b)
{
    if (a->kept_no_store != b->kept_no_store) return a->kept_no_store < b->kept_no_store;
    if (goal->budget) {
        const size_t over_a = a->peak > goal->budget ? a->peak : 0, over_b = b->peak > goal->budget ? b->peak : 0;
        if (over_a != over_b) return over_a < over_b;
        if (over_a && (a->excess < b->excess || a->excess > b->excess)) return a->excess < b->excess;
        if (a->cost < b->cost || a->cost > b->cost) return a->cost < b->cost;
        return a->peak < b->peak;
    }
    const bool fits_a = a->cost <= goal->limit, fits_b = b->cost <= goal->limit;
    const bool enough_a = a->inverted >= goal->learnt.floor, enough_b = b->inverted >= goal->learnt.floor;
    if (enough_a != enough_b) return enough_a;
    if (fits_a != fits_b) return fits_a;
    const size_t act_a = a->activations > goal->learnt.enough ? a->activations : goal->learnt.enough,
                 act_b = b->activations > goal->learnt.enough ? b->activations : goal->learnt.enough;
    if (act_a != act_b) return act_a < act_b;
    if (goal->balanced || goal->learnt.enough) return score_product(p, goal, a) < score_product(p, goal, b);
    if (a->peak != b->peak) return a->peak < b->peak;
    return a->cost < b->cost;
}

static bool score_better(const searcher *s, const inv_score *a, const inv_score *b)
{
    return inv_score_better(s->p, &s->goal, a, b);
}

static inv_status keep_best_plan(searcher *s)
{
    if (s->found && !score_better(s, &s->score, &s->best_score)) return INV_OK;
    INV_TRY(inv_plan_copy(&s->arena, &s->last, &s->best));
    s->best_score = s->score;
    s->found = true;
    return INV_OK;
}

/* Makes a state for as many rematerialisations as there may be. */
static inv_status make_state(searcher *s)
{
    INV_TRY(inv_plan_state_init(&s->state, &s->arena, s->p, s->goal.activations, (uint32_t)s->most_remats));
    return inv_error_estimate_new(&s->state, &s->errors);
}

/* Loads the last plan into the state, and takes out of it what nobody reads. */
static inv_status load_last(searcher *s)
{
    inv_plan_state *ps = &s->state;
    if (s->last.n > s->most_remats) {
        s->most_remats = 2 * s->last.n;
        INV_TRY(make_state(s));
    }
    INV_TRY(inv_plan_state_load(ps, &s->last));
    if (s->goal.budget) inv_plan_state_set_budget(ps, (int64_t)s->goal.budget);
    return inv_plan_state_list(ps, &s->scratch, &s->last);
}

/* Notes where the plan that is loaded has its bytes, and what it keeps, for the next prices. */
static void note_live_bytes(searcher *s)
{
    const inv_plan_state *ps = &s->state;
    memset(s->step_peak, 0, s->p->nstep * sizeof *s->step_peak);
    for (uint32_t at = 0; at != INV_NO_EVENT; at = ps->event[at].next) {
        size_t *most = &s->step_peak[inv_plan_state_step(ps, at)];
        const size_t live = (size_t)inv_plan_state_live(ps, at);
        if (live > *most) *most = live;
    }
    for (uint32_t v = 0; v < s->p->nvalue; v++) s->warm_start[v] = inv_plan_state_kept_until(ps, v);
}

/* Takes the score of the last plan, which is loaded. Of a state that counts activations only, all bytes are counted by
 * loading it once more. The cost is added up anew, since differences leave a rounding behind that makes equal plans
 * unequal. */
static inv_status score_last(searcher *s)
{
    inv_plan_state *ps = &s->state;
    inv_score *x = &s->score;
    *x = (inv_score){.peak = (size_t)inv_plan_state_peak(ps, INT64_MAX),
                     .inverted = ps->inverted,
                     .kept_no_store = ps->kept_no_store,
                     .excess = (double)ps->excess};
    for (size_t k = 0; k < s->last.n; k++) x->cost += s->p->edge[s->last.at[k].edge].cost;
    if (s->goal.activations) {
        x->activations = x->peak;
        ps->activations = false;
        INV_TRY(inv_plan_state_load(ps, &s->last));
        x->peak = (size_t)inv_plan_state_peak(ps, INT64_MAX);
        ps->activations = true;
    }
    s->most_inverted = fmax(s->most_inverted, x->inverted);
    return keep_best_plan(s);
}

static inv_status run_greedy(searcher *s, const setting *c, bool again)
{
    const inv_prices prices = {c->step, again ? s->warm_start : NULL, c->invert, c->split_operands, c->rederive_kept};
    memset(&s->last, 0, sizeof s->last);
    INV_TRY(inv_plan_greedy(&s->scratch, s->p, &prices, &s->last, &s->work));
    INV_TRY(load_last(s));
    note_live_bytes(s);
    return score_last(s);
}

static void reset_scratch(searcher *s)
{
    inv_arena_fini(&s->scratch);
    inv_arena_init(&s->scratch, s->ctx);
}

/* Retains within `budget` bytes what the last plan, which is loaded, leaves of them. */
static inv_status retain_in_last(searcher *s, size_t budget)
{
    INV_TRY(inv_plan_retain(&s->state, s->errors, &s->scratch, &s->goal, budget));
    return inv_plan_state_list(&s->state, &s->scratch, &s->last);
}

/* Uses what a plan leaves of the budget, if the plan may become the best. In a large problem one whose prices were far
 * too high is not worth it: it leaves much, and seldom ends with less cost than plans of nearer prices. */
static inv_status retain_within_budget(searcher *s, inv_remats *plan, inv_score *got)
{
    const size_t budget = s->goal.budget;
    const double near = s->p->forward > LARGE ? 0.03 * s->p->cost : INFINITY;
    if (!budget || got->peak > budget || got->cost > s->best_score.cost + near) return INV_OK;
    s->last = *plan;
    INV_TRY(load_last(s));
    INV_TRY(retain_in_last(s, budget));
    INV_TRY(score_last(s));
    s->work += (double)s->last.n;
    *plan = s->last;
    *got = s->score;
    return INV_OK;
}

/* Tries prices: a plan, and then others with a warm start from the one before as long as that helps, since each may
 * drop every second value of a chain that was kept. The first has one from the last plan if that was of near prices
 * (`near`): without, high prices of single steps ask for derivations from far away, which takes long and is undone by
 * the next. In a large problem only the best of them is filled up. */
static inv_status try_prices(searcher *s, const setting *c, int most_again, bool near, inv_score *got)
{
    const bool large = s->p->forward > LARGE;
    reset_scratch(s);
    INV_TRY(inv_check_stop(s->ctx));
    if (s->most_work > 0) inv_progress(s->ctx, s->work / s->most_work);
    else inv_progress(s->ctx, 0.05);
    INV_TRY(run_greedy(s, c, near));
    *got = s->score;
    inv_remats plan = s->last; /* each pass makes a list of its own */
    if (!large) INV_TRY(retain_within_budget(s, &plan, got));
    for (int k = 0; k < most_again; k++) {
        INV_TRY(run_greedy(s, c, true));
        inv_score more = s->score;
        if (!large) INV_TRY(retain_within_budget(s, &s->last, &more));
        if (!score_better(s, &more, got)) break;
        *got = more;
        plan = s->last;
    }
    return large ? retain_within_budget(s, &plan, got) : INV_OK;
}

static void copy_setting(const searcher *s, setting *to, const setting *from)
{
    double *step = to->step;
    *to = *from;
    to->step = step;
    memcpy(step, from->step, s->p->nstep * sizeof *step);
}

/* Tries `next`, which becomes `now` unless it is worse. */
static inv_status try_setting(searcher *s, int most_again, inv_score *got)
{
    INV_TRY(try_prices(s, &s->next, most_again, false, got));
    if (s->now_score.peak && score_better(s, &s->now_score, got)) return INV_OK;
    s->now_score = *got;
    copy_setting(s, &s->now, &s->next);
    return INV_OK;
}

/* Finds the range of costs per byte of edges. */
static void edge_price_range(const inv_problem *p, double *least, double *most)
{
    *least = INFINITY;
    *most = 0;
    for (uint32_t i = 0; i < p->nedge; i++) {
        double sum = 0;
        for (uint32_t k = 0; k < p->edge[i].ntarget; k++) sum += (double)p->value[p->edge[i].target[k]].nbytes;
        if (!(sum > 0) || !(p->edge[i].cost > 0)) continue;
        *least = fmin(*least, p->edge[i].cost / sum);
        *most = fmax(*most, p->edge[i].cost / sum);
    }
    if (!(*least < *most)) *least = *most;
}

/* Returns a price for each step of backward, half the mean cost of recomputing a byte: a value of mean cost is dropped
 * if nobody reads it within two steps. */
static double holding_price(const inv_problem *p)
{
    double cost = 0, nbytes = 1;
    for (uint32_t i = 0; i < p->nedge; i++) cost += p->edge[i].inverse ? 0 : p->edge[i].cost;
    for (uint32_t v = 0; v < p->nvalue; v++) nbytes += (double)p->value[v].nbytes;
    return cost / nbytes / 2;
}

/* Tries one price at the turn. `hold` is the price of each later step, once the one at the turn is well above it. */
static inv_status try_price(searcher *s, bool invert, double hold, double price, inv_score *got)
{
    const size_t n = s->p->nstep;
    s->next.step[s->p->forward] = s->next.price = price;
    memset(s->next.step, 0, s->p->forward * sizeof *s->next.step);
    for (size_t t = s->p->forward + 1; t < n; t++) s->next.price += s->next.step[t] = fmin(hold, price / 10);
    s->next.invert = invert;
    s->next.split_operands = s->next.rederive_kept = false;
    return try_setting(s, s->p->forward > LARGE ? 1 : MOST_AGAIN, got);
}

/* Tries prices at the turn, up to that of a long run of recomputations; beyond, everything would be derived from the
 * input. In a large problem, where each takes long, they are farther apart, it ends when they have been too high
 * several times, and then those next to the best are tried. */
static inv_status scan_prices(searcher *s, bool invert, double hold)
{
    enum { MOST = 40, MOST_LARGE = 16, TOO_HIGH = 2 };
    const bool large = s->p->forward > LARGE;
    const double run = hold > 0 ? 512 : 64;
    double least, most;
    edge_price_range(s->p, &least, &most);
    if (!(most > 0) || s->p->forward >= s->p->nstep) return INV_OK;
    const double factor = fmax(large ? 4 : 2, pow(run * most / least, 1.0 / (large ? MOST_LARGE : MOST)));
    inv_score got, best = {0};
    int high = 0; /* prices since the best whose plans cost more and are no better */
    for (double price = least / 2; price < run * most && (!large || high < TOO_HIGH); price *= factor) {
        INV_TRY(try_price(s, invert, hold, price, &got));
        high += got.cost > best.cost;
        if (best.peak && !score_better(s, &got, &best)) continue;
        best = got;
        high = 0;
    }
    const double found = s->now.step[s->p->forward];
    if (!large || s->now.invert != invert) return INV_OK;
    INV_TRY(try_price(s, invert, hold, found / sqrt(factor), &got));
    return try_price(s, invert, hold, found * sqrt(factor), &got);
}

/* Tries the best setting with the two options of the greedy pass. */
static inv_status try_variants(searcher *s)
{
    inv_score got;
    for (int k = 1; k < 4; k++) {
        copy_setting(s, &s->next, &s->now);
        s->next.split_operands = k & 1;
        s->next.rederive_kept = k & 2;
        INV_TRY(try_setting(s, MOST_AGAIN, &got));
    }
    return INV_OK;
}

static void scale_prices(searcher *s, double by)
{
    s->next.price *= by;
    for (size_t i = 0; i < s->p->nstep; i++) s->next.step[i] *= by;
}

/* Raises prices where the last plan has too many bytes live, and lowers them elsewhere, by a factor of e^sharp at most.
 * A step with too many bytes gets a share of the sum of all prices besides, since a price of 0 would stay 0. */
static void reprice_by_peak(searcher *s, double sharp)
{
    enum { MOST_RISE = 32 }; /* of the sum: beyond, everything would be derived from far away, which takes long */
    const size_t n = s->p->nstep, best = s->goal.activations ? s->best_score.activations : s->best_score.peak;
    const double target = 1 + (double)(s->goal.budget ? s->goal.budget : best - best / 32);
    double sum = 0;
    for (size_t i = 0; i < n; i++) {
        const double off = fmax(-1, fmin((double)s->step_peak[i] / target - 1, 1));
        s->next.step[i] = s->next.step[i] * exp(sharp * off) + 0.1 * sharp * fmax(off, 0) * s->next.price;
        sum += s->next.step[i];
    }
    const double most = MOST_RISE * s->next.price;
    s->next.price = sum;
    if (sum > most) scale_prices(s, most / sum);
}

/* From the best prices on, changes prices by what each plan has too much and too little of, in steps that get smaller
 * (ascent of the Lagrangian dual by multiplicative weights). What lies on the way is often better than the end, so it
 * goes on from worse plans, too, and begins again from the best. */
static inv_status ascend_prices(searcher *s)
{
    const bool large = s->p->forward > LARGE;
    const int steps = large ? 4 : 30, again = large && (s->goal.budget || s->goal.balanced) ? 2 : MOST_AGAIN,
              alike = large ? 1 : 4; /* tries from one setting that may bring nothing */
    int same = 0;
    while (same < alike && s->work < s->most_work) {
        bool better = false;
        const double sharp = 4 * pow(0.25, inv_chance(&s->dice));
        inv_score got;
        copy_setting(s, &s->next, &s->now);
        INV_TRY(try_prices(s, &s->next, again, large, &got));
        if (same & 1) scale_prices(s, exp(2 * inv_chance(&s->dice) - 1));
        for (int k = 0; k < steps && s->work < s->most_work; k++) {
            if (!s->goal.budget && got.cost > s->goal.limit) scale_prices(s, 0.7);
            else reprice_by_peak(s, sharp * (1 - (double)k / steps));
            INV_TRY(try_prices(s, &s->next, again, large, &got));
            if (!score_better(s, &got, &s->now_score)) continue;
            s->now_score = got;
            copy_setting(s, &s->now, &s->next);
            better = true;
        }
        same = better && !large ? 0 : same + 1;
    }
    return INV_OK;
}

/* Makes a copy of `plan` the last plan, to be worked on. */
static inv_status take_plan(searcher *s, const inv_remats *plan)
{
    reset_scratch(s);
    memset(&s->last, 0, sizeof s->last);
    INV_TRY(inv_plan_copy(&s->scratch, plan, &s->last));
    return load_last(s);
}

/* Squeezes the last plan, which is loaded, and keeps what its peak leaves room for, before and after. */
static inv_status squeeze_last(searcher *s, const inv_goal *goal)
{
    INV_TRY(retain_in_last(s, (size_t)inv_plan_state_peak(&s->state, INT64_MAX)));
    INV_TRY(inv_plan_squeeze(&s->state, s->errors, goal, 0));
    return retain_in_last(s, (size_t)inv_plan_state_peak(&s->state, INT64_MAX));
}

/* Improves the best plan, for this goal: single changes first, then annealing. */
static inv_status anneal_best(searcher *s, const inv_goal *goal, double effort)
{
    INV_TRY(take_plan(s, &s->best));
    if (goal->budget && !s->goal.budget) INV_TRY(retain_in_last(s, goal->budget));
    if (!goal->budget) INV_TRY(squeeze_last(s, goal));
    if (effort < FEW_VISITS * (double)s->p->nstep) effort /= 4; /* so few visits for a step bring a percent at most */
    INV_TRY(inv_plan_anneal(&s->scratch, s->p, goal, effort, &s->dice, &s->last));
    INV_TRY(load_last(s));
    return score_last(s);
}

/* Looks for the best product of bytes and cost: anneals for the smallest peak, then for the least cost within the bytes
 * of the best plan so far, within fewer and within more of them, in steps that get smaller. */
static inv_status balance(searcher *s, double effort)
{
    enum { MOST = 12 };
    static const double steps[] = {0.1, 0.03};
    const size_t tries = s->p->forward > LARGE ? 1 : MOST; /* in a large problem each takes long and changes little */
    inv_goal within = s->goal;
    within.balanced = false;
    INV_SPAN_TRY(s->ctx, 0.3, 0.5, anneal_best(s, &within, effort));
    for (size_t k = 0, i = 0, more = 0; k < tries && i < sizeof steps / sizeof *steps; k++) {
        const double before = score_product(s->p, &s->goal, &s->best_score),
                     by = k ? more ? 1 + steps[i] : 1 - steps[i] : 1;
        within.budget = (size_t)((double)s->best_score.peak * by);
        within.worth = k ? before / ((double)s->goal.persistent + (double)within.budget) - s->p->cost : 0;
        /* no plan of so many bytes could be better, even one that costs nothing */
        const bool vain = k > 0 && within.worth <= 0;
        if (!vain)
            INV_SPAN_TRY(s->ctx, 0.5 + 0.5 * (double)k / (double)tries, 0.5 + 0.5 * (double)(k + 1) / (double)tries,
                         anneal_best(s, &within, effort));
        if (k == 0 || score_product(s->p, &s->goal, &s->best_score) < 0.999 * before) continue;
        i += more;
        more = !more;
    }
    return INV_OK;
}

/* Looks for a better product of bytes and cost in a large problem, where annealing would take long: squeezes the best
 * plan, which is hardly dearer than any within its bytes, into fewer and fewer, as long as that is not much worse. */
static inv_status balance_large(searcher *s)
{
    enum { NOTCHES = 8 };
    static const double notch = 0.04, much = 1.02;
    const double peak = (double)s->best_score.peak;
    INV_TRY(take_plan(s, &s->best));
    for (int k = 1; k <= NOTCHES; k++) {
        const size_t enough = (size_t)(peak * (1 - k * notch));
        INV_TRY(inv_plan_squeeze(&s->state, s->errors, &s->goal, enough));
        INV_TRY(retain_in_last(s, (size_t)inv_plan_state_peak(&s->state, INT64_MAX)));
        INV_TRY(score_last(s));
        if (s->score.peak > enough ||
            score_product(s->p, &s->goal, &s->score) > much * score_product(s->p, &s->goal, &s->best_score))
            break;
    }
    return INV_OK;
}

/* Visits for annealing, by default so many that small problems are solved exactly as a rule: hundreds of passes over
 * the step for each of its steps, within limits. */
static double plan_effort(const searcher *s)
{
    enum { FEW = 2000000, USUAL = 15000000, MOST = 30000000 };
    const double n = s->p->nstep, wanted = s->goal.effort;
    if (wanted > 0) return s->goal.budget ? fmax(wanted, FEW) : wanted;
    return fmin(fmax(400 * n * n, USUAL), MOST);
}

/* Looks for less cost within the smallest peak, of activations within a little more, and keeps what that leaves room
 * for. */
static inv_status cheapen_within_peak(searcher *s)
{
    inv_goal within = s->goal;
    within.budget = s->best_score.peak;
    if (s->goal.activations)
        s->goal.learnt.enough = within.budget = s->best_score.activations + s->best_score.activations / SPARE_PART;
    within.worth = s->best_score.cost;
    INV_TRY(anneal_best(s, &within, plan_effort(s) / 2));
    INV_TRY(take_plan(s, &s->best));
    INV_TRY(retain_in_last(s, within.budget));
    return score_last(s);
}

/* Asks the lower bound whether a large problem's plan can still be much too dear. */
static inv_status near_bound(searcher *s, bool *good)
{
    const size_t budget = s->goal.balanced ? s->best_score.peak : s->goal.budget;
    double bound;
    *good = false;
    if (s->p->forward <= LARGE || s->best_score.peak > budget) return INV_OK;
    reset_scratch(s);
    INV_TRY(inv_plan_bound(&s->scratch, s->p, budget, &bound));
    *good = s->best_score.cost - bound <= (s->goal.balanced ? GAP_OF_BALANCE : GAP) * (s->p->cost + bound);
    return INV_OK;
}

/* Finds the best prices. */
static inv_status search_prices(searcher *s)
{
    const inv_problem *p = s->p;
    bool inverse = false; /* without any, the second scan would be the first again */
    for (uint32_t i = 0; i < p->nedge; i++) inverse |= p->edge[i].inverse;
    /* Where trials are cheap, plans without inverses are tried, too. Where they are not, or where inverses are asked
     * for, a scan without them is made only if the one with them has inverted nothing. */
    const bool recompute_first = !(inverse && (s->goal.share > 0 || p->forward > LARGE));
    if (recompute_first) INV_TRY(scan_prices(s, false, 0));
    if (inverse) INV_TRY(scan_prices(s, true, 0));
    if (!recompute_first && !(s->most_inverted > 0)) INV_TRY(scan_prices(s, false, 0));
    if (s->goal.share > 0 && s->most_inverted > 0) { /* only now is it known how much any trial inverts */
        s->goal.learnt.floor = s->goal.share * s->most_inverted;
        s->found = false;
        s->now_score.peak = 0;
        INV_TRY(scan_prices(s, true, p->forward > LARGE ? holding_price(p) : 0));
    }
    if (s->best.n == 0 && !s->now_score.peak) return INV_OK;
    INV_TRY(try_variants(s));
    s->most_work = s->work + fmax(s->work, plan_effort(s) / 4);
    return ascend_prices(s);
}

static inv_status search_plan(searcher *s)
{
    const inv_problem *p = s->p;
    const size_t n = p->nstep + 1;
    inv_arena *a = &s->arena;
    s->warm_start = INV_ARENA_NEW(a, uint32_t, p->nvalue + 1);
    s->step_peak = INV_ARENA_NEW(a, size_t, n);
    s->now.step = INV_ARENA_NEW(a, double, n);
    s->next.step = INV_ARENA_NEW(a, double, n);
    if (a->failed) return INV_E_NOMEM;
    s->now.invert = true;
    s->most_remats = 2 * (size_t)p->nvalue + 32;
    INV_TRY(make_state(s));
    INV_TRY(run_greedy(s, &s->now, false)); /* keeps whatever may be kept */
    s->goal.limit += s->score.cost;         /* the cost that no_store values force is not limited */
    if (s->goal.budget && s->best_score.peak <= s->goal.budget) return INV_OK;
    INV_SPAN_TRY(s->ctx, 0, 0.3, search_prices(s));
    if (s->best.n == 0 && !s->now_score.peak) return INV_OK; /* there is nothing to try */
    bool good;
    INV_TRY(near_bound(s, &good));
    if (s->goal.balanced) return good ? balance_large(s) : balance(s, plan_effort(s));
    if (!good) INV_SPAN_TRY(s->ctx, 0.3, 0.8, anneal_best(s, &s->goal, plan_effort(s)));
    return s->goal.budget ? INV_OK : cheapen_within_peak(s);
}

inv_status inv_plan_search(inv_context *ctx, inv_arena *out, const inv_problem *p, const inv_goal *goal,
                           inv_remats *plan, inv_score *score)
{
    searcher s = {.ctx = ctx, .p = p, .goal = *goal, .dice = INV_DICE};
    inv_arena_init(&s.arena, ctx);
    inv_arena_init(&s.scratch, ctx);
    inv_status st = search_plan(&s);
    memset(plan, 0, sizeof *plan);
    if (st == INV_OK) st = inv_plan_copy(out, &s.best, plan);
    *score = s.best_score;
    inv_arena_fini(&s.scratch);
    inv_arena_fini(&s.arena);
    return st;
}
