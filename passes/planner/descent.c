/* SPDX-License-Identifier: Apache-2.0
 * Local descent: single changes of a plan, the most promising first, as far as they go. plan_state.c tells what each
 * comes to, and undoes those that do not help. Networks have many equal blocks: this treats all alike in a few passes
 * over the plan, while annealing would have to find the same change for each of them by chance.
 * To retain is to use what a plan leaves of its budget: a rematerialisation is taken out if the bytes allow its targets
 * to be kept from where they were live last, and what was only computed for it goes with it. Or it is moved ahead to
 * where one of its sources was live last, so that this source need not be given again: an inverse is then run while
 * what it reads is at hand for the gradients. Those that save most cost per byte come first, and of equal ones the
 * shorter. Some rounds are made, since one change may make room for another; in large problems as many as so many
 * visits allow.
 * To squeeze is to bring a plan into fewer bytes. An event that has too many bytes live is taken out first, if it is
 * a rematerialisation and that helps. If not, values are given up that are kept there without being read: the next
 * reader of one, if that is a rematerialisation, is moved ahead to where an earlier live interval of one of its sources
 * ends, or the value is rematerialised before that reader. Such changes are tried until the event fits, those that cost
 * least per byte first, and each is made by which fewer bytes exceed the budget. The budget is lowered step by step, by
 * half as much where some event does not come within it.
 * requires: inv_plan_state.
 * gives: retained, a plan of less cost or the same one, whose peak is more than the budget only at events where it was
 * before; squeezed, one within the goal's limits, as a rule of a smaller peak. The caller keeps the better one. */
#include <stdlib.h>

#include "passes/planner/plan_state.h"
#include "passes/planner/problem.h"

#define NONE INV_NO_EVENT
enum { VISITS_PER_STEP = 600, ROUNDS = 4 };
/* The budget is lowered by 1/FIRST_DIVISOR of the peak, by less when that is not reached any more, by 1/LAST_DIVISOR in
 * the end. NEARBY: events behind the one in question whose operands are looked at first; a block of a network has
 * fewer. SHALLOW, DEEP: how many rematerialisations in a row may be inserted at first, and where those do not help. */
enum { FIRST_DIVISOR = 32, LAST_DIVISOR = 256, NEARBY = 48, MOST_WAYS = 64, SHALLOW = 3, DEEP = 17 };

/* A plan that is being changed. */
typedef struct descent {
    inv_plan_state *ps;
    inv_error_estimate *errors; /* NULL: they are too large already, so nothing is moved or derived */
    const inv_goal *goal;
    double most;  /* visits after which it ends */
    bool squeeze; /* for fewer bytes; else for less cost */
    bool deep;    /* the second try: all live values are looked at, and ways may be long */
} descent;

/* --- changes --- */

/* What a plan came to before a change. */
typedef struct figures {
    double cost;
    int64_t excess;
    uint32_t kept_no_store;
} figures;

static figures figures_of(const descent *x) { return (figures){x->ps->cost, x->ps->excess, x->ps->kept_no_store}; }

/* Makes the changes since the last commit final if they help and are within the limits, else undoes them. */
static bool take_if_better(descent *x, const figures *was)
{
    inv_plan_state *ps = x->ps;
    const bool better = x->squeeze ? ps->excess < was->excess && ps->cost <= x->goal->limit
                                   : ps->excess <= was->excess && ps->cost < was->cost;
    const bool good = better && ps->kept_no_store <= was->kept_no_store && ps->inverted >= x->goal->learnt.floor &&
                      !ps->a->failed && (!x->errors || inv_error_estimate_update(x->errors));
    if (good) inv_plan_state_commit(ps);
    else inv_plan_state_undo(ps);
    return good;
}

/* Keeps what is rematerialised since it was live last; its sources may not be live any more then. */
static bool try_without(descent *x, uint32_t remat)
{
    const figures was = figures_of(x);
    inv_plan_state_remove(x->ps, remat);
    return take_if_better(x, &was);
}

/* Moves a rematerialisation ahead to where one of its sources was live last. */
static bool try_moving_ahead(descent *x, uint32_t remat)
{
    const figures was = figures_of(x);
    const uint32_t n = x->ps->p->edge[x->ps->event[remat].edge].nsource;
    for (uint32_t i = 0; i < n; i++)
        if (inv_plan_state_hoist(x->ps, remat, i) && take_if_better(x, &was)) return true;
    return false;
}

/* --- retaining --- */

/* A rematerialisation that may be taken out. */
typedef struct candidate {
    uint32_t remat, length; /* its event; steps since its targets were live last */
    double worth;           /* cost saved per byte that is kept */
} candidate;

static int by_worth(const void *a, const void *b)
{
    const candidate *x = a, *y = b;
    if (x->worth < y->worth || x->worth > y->worth) return x->worth < y->worth ? 1 : -1;
    if (x->length != y->length) return x->length > y->length ? 1 : -1;
    return x->remat < y->remat ? 1 : -1;
}

/* Lists those that nothing but bytes stands against. */
static size_t list_candidates(inv_plan_state *ps, candidate *list)
{
    size_t n = 0;
    for (uint32_t i = 0; i < ps->nremat && !ps->a->failed; i++) {
        const uint32_t r = ps->remat[i];
        const inv_pb_edge *e = &ps->p->edge[ps->event[r].edge];
        candidate c = {.remat = r};
        double nbytes = 1;
        bool may = ps->event[r].active;
        for (uint32_t k = 0; k < e->ntarget; k++) {
            const inv_pb_value *v = &ps->p->value[e->target[k]];
            if (!(ps->event[r].want >> k & 1)) continue;
            const uint32_t steps = inv_plan_state_steps_since(ps, e->target[k], r);
            nbytes += (double)v->nbytes;
            may &= !v->no_store;
            c.length = steps > c.length ? steps : c.length;
        }
        c.worth = e->cost / nbytes;
        if (may && e->cost > 0) list[n++] = c;
    }
    return n;
}

inv_status inv_plan_retain(inv_plan_state *ps, inv_error_estimate *errors, inv_arena *scratch, const inv_goal *goal,
                           size_t budget)
{
    descent x = {.ps = ps, .errors = errors, .goal = goal};
    candidate *list = INV_ARENA_NEW(scratch, candidate, ps->nremat + 1);
    if (!list) return INV_E_NOMEM;
    inv_plan_state_set_budget(ps, (int64_t)budget);
    x.most = ps->work + VISITS_PER_STEP * (double)ps->p->nstep;
    bool any = true;
    if (!inv_error_estimate_load(errors)) x.errors = NULL;
    for (int round = 0; round < ROUNDS && any; round++) {
        const size_t n = list_candidates(ps, list);
        qsort(list, n, sizeof *list, by_worth);
        any = false;
        for (size_t i = 0; i < n && ps->work < x.most; i++) { /* one that was read only for another is gone with that */
            const inv_plan_event *ev = &ps->event[list[i].remat];
            if (ev->place == NONE || !ev->active) continue;
            any |= try_without(&x, list[i].remat) || (x.errors && try_moving_ahead(&x, list[i].remat));
        }
    }
    return ps->a->failed ? INV_E_NOMEM : INV_OK;
}

/* --- squeezing --- */

/* A way to end the live interval of a value. */
typedef struct way_out {
    uint32_t value, edge; /* the edge that rematerialises it; NONE: its next reader is moved ahead */
    double price;         /* cost per byte */
} way_out;

static int by_price(const void *a, const void *b)
{
    const way_out *x = a, *y = b;
    if (x->price < y->price || x->price > y->price) return x->price < y->price ? -1 : 1;
    if (x->value != y->value) return x->value < y->value ? -1 : 1;
    return x->edge < y->edge ? -1 : x->edge > y->edge;
}

/* Adds the ways to give up v to a list of n. */
static size_t add_ways(const descent *x, uint32_t v, way_out *list, size_t n)
{
    const inv_problem *p = x->ps->p;
    const inv_pb_value *value = &p->value[v];
    for (size_t i = 0; i < n; i++)
        if (list[i].value == v) return n;
    if (value->pinned || (x->goal->activations && value->data) || !value->nbytes) return n;
    if (n < MOST_WAYS) list[n++] = (way_out){v, NONE, -1};
    for (uint32_t i = value->first; i < value->first + value->n && n < MOST_WAYS; i++) {
        const uint32_t id = p->edge_of[i];
        if (!p->edge[id].offload) list[n++] = (way_out){v, id, p->edge[id].cost / (double)value->nbytes};
    }
    return n;
}

/* Lists ways to have less at an event, the cheapest first: of values that are live there but not read by it. */
static size_t list_ways(descent *x, uint32_t event, way_out *list)
{
    enum { SMALL = 8 }; /* a value of less than this part of what is too much does not help */
    const inv_plan_state *ps = x->ps;
    uint32_t at = ps->event[event].next, nown, m;
    const uint32_t *own = inv_plan_state_operands(ps, event, &nown);
    const int64_t over = inv_plan_state_live(ps, event) - ps->budget;
    size_t n = 0;
    for (int k = 0; k < NEARBY && at != NONE && !x->deep; k++, at = ps->event[at].next) {
        const uint32_t *read = inv_plan_state_operands(ps, at, &m);
        for (uint32_t i = 0; i < m; i++)
            if (!inv_pb_has(own, nown, read[i]) && inv_plan_state_is_live(ps, read[i], event))
                n = add_ways(x, read[i], list, n);
    }
    for (size_t i = 0; i < ps->interval.n && x->deep; i++) {
        const uint32_t v = ps->interval.at[i].value;
        if (v == NONE || (int64_t)ps->p->value[v].nbytes < over / SMALL || inv_pb_has(own, nown, v)) continue;
        if (inv_plan_state_is_live(ps, v, event)) n = add_ways(x, v, list, n);
    }
    x->ps->work += (x->deep ? (double)ps->interval.n : 4 * NEARBY) / 8;
    qsort(list, n, sizeof *list, by_price);
    return n;
}

static bool sources_live(const inv_plan_state *ps, uint32_t edge, uint32_t before)
{
    const inv_pb_edge *e = &ps->p->edge[edge];
    for (uint32_t i = 0; i < e->nsource; i++)
        if (!inv_plan_state_is_live(ps, e->source[i], before)) return false;
    return true;
}

/* Chooses the edge that gives a source: the cheapest of those whose own sources are live, else of those that compute it
 * as forward did, so that the way back ends. NONE: there is none. */
static uint32_t choose_edge(const descent *x, uint32_t v, uint32_t before)
{
    const inv_problem *p = x->ps->p;
    const inv_pb_value *value = &p->value[v];
    uint32_t near = NONE, forward = NONE;
    for (uint32_t k = value->first; k < value->first + value->n && !value->pinned; k++) {
        const uint32_t id = p->edge_of[k];
        const double cost = p->edge[id].cost;
        if (p->edge[id].offload) continue;
        if (!p->edge[id].inverse && (forward == NONE || cost < p->edge[forward].cost)) forward = id;
        if ((near == NONE || cost < p->edge[near].cost) && sources_live(x->ps, id, before)) near = id;
    }
    return near != NONE ? near : forward;
}

/* Inserts a rematerialisation, and before it those of sources that are not live: at most `depth` in a row. */
static bool insert_with_sources(descent *x, uint32_t before, uint32_t edge, int depth)
{
    const inv_pb_edge *e = &x->ps->p->edge[edge];
    for (uint32_t i = 0; i < e->nsource; i++) {
        if (inv_plan_state_is_live(x->ps, e->source[i], before)) continue;
        const uint32_t by = depth > 1 ? choose_edge(x, e->source[i], before) : NONE;
        if (by == NONE || !insert_with_sources(x, before, by, depth - 1)) return false;
    }
    return inv_plan_state_insert(x->ps, before, edge) != NONE;
}

static bool try_way(descent *x, const way_out *w, uint32_t event)
{
    const inv_plan_state *ps = x->ps;
    const figures was = figures_of(x);
    const uint32_t turn = ps->p->forward - 1;
    const bool early = ps->event[event].label < ps->event[turn].label;
    const uint32_t reader = inv_plan_state_next_reader(ps, w->value, early ? turn : event);
    if (reader == NONE) return false;
    if (w->edge == NONE) return reader >= ps->p->nstep && try_moving_ahead(x, reader);
    if (insert_with_sources(x, reader, w->edge, x->deep ? DEEP : SHALLOW)) return take_if_better(x, &was);
    inv_plan_state_undo(x->ps);
    return false;
}

static bool relieve_event(descent *x, uint32_t at)
{
    way_out list[MOST_WAYS];
    if (at >= x->ps->p->nstep && try_without(x, at)) return true;
    const size_t n = list_ways(x, at, list);
    bool any = false;
    for (size_t i = 0; i < n && x->ps->event[at].over_budget != NONE; i++) any |= try_way(x, &list[i], at);
    return any;
}

/* Goes through all events once. False: nothing has changed. */
static bool relieve_events(descent *x, bool deep)
{
    const inv_plan_state *ps = x->ps;
    bool any = false;
    x->deep = deep;
    for (uint32_t at = 0; at != NONE && ps->excess > 0 && ps->work < x->most;) {
        const uint32_t step = inv_plan_state_step(ps, at);
        const bool changed = ps->event[at].over_budget != NONE && relieve_event(x, at);
        at = ps->event[changed ? step : at].next; /* a rematerialisation may be gone by now */
        any |= changed;
    }
    return any;
}

/* Brings all events within the budget. False: too many would have to change, or some cannot. */
static bool reach_budget(descent *x)
{
    enum { FEW = 64 }; /* events, for which a look at all live values pays */
    const inv_plan_state *ps = x->ps;
    while (ps->excess > 0 && ps->work < x->most) {
        const uint32_t before = ps->nover;
        if (relieve_events(x, false) && ps->nover <= before / 2) continue;
        if (ps->nover > FEW || !relieve_events(x, true)) return false;
    }
    return !(ps->excess > 0) && !ps->a->failed;
}

inv_status inv_plan_squeeze(inv_plan_state *ps, inv_error_estimate *errors, const inv_goal *goal, size_t enough)
{
    descent x = {.ps = ps, .errors = errors, .goal = goal, .squeeze = true};
    x.most = ps->work + VISITS_PER_STEP * (double)ps->p->nstep;
    if (!inv_error_estimate_load(errors)) return ps->a->failed ? INV_E_NOMEM : INV_OK; /* as anneal.c */
    int64_t peak = inv_plan_state_peak(ps, INT64_MAX);
    for (int64_t divisor = FIRST_DIVISOR; divisor <= LAST_DIVISOR && peak > (int64_t)enough;) {
        inv_plan_state_set_budget(ps, peak - peak / divisor - 1);
        if (!reach_budget(&x)) divisor *= 2;
        peak = inv_plan_state_peak(ps, INT64_MAX);
    }
    return ps->a->failed ? INV_E_NOMEM : INV_OK;
}
