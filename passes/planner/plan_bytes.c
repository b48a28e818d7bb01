/* SPDX-License-Identifier: Apache-2.0
 * The bytes of a plan state, per event, and where they exceed the budget. A change adds bytes to all events of a range,
 * which in most cases is long and within the budget. So events are put into blocks, of so many steps with the
 * rematerialisations before them, and a block has a number that is added to the bytes of all its events (square root
 * decomposition with lazy addition). Only blocks at the ends of a range are looked at event by event, and those that
 * may exceed the budget: each has a roof, no less than the most bytes of its events, which is looked up anew when all
 * of the block has been looked at.
 * requires: inv_plan_state.
 * gives: inv_plan_state_live, excess, over_budget. */
#include "passes/planner/plan_state.h"
#include "passes/planner/problem.h"

#define NONE INV_NO_EVENT

/* A range passes over whole blocks, and ends in two of which each event is looked at. Events lie apart in memory, so
 * one takes some EVENT times as long as a block, and blocks of sqrt(nstep / EVENT / 2) steps are best for the longest
 * ranges: powers of two, and not less than 32. */
uint32_t inv_plan_bytes_block_bits(const inv_problem *p)
{
    enum { LEAST = 5, EVENT = 4 };
    uint32_t bits = LEAST;
    while ((uint64_t)2 * EVENT << 2 * bits < p->nstep) bits++;
    return bits;
}

/* The number of the block that a step is in. */
static uint32_t block_at(const inv_plan_state *ps, uint32_t step) { return step >> ps->block_bits; }

/* The last step of a block, which need not be there. Steps are events of their own number. */
static uint32_t last_of(const inv_plan_state *ps, uint32_t k) { return ((k + 1) << ps->block_bits) - 1; }

static inv_plan_block *block_of(const inv_plan_state *ps, uint32_t event)
{
    return &ps->block[block_at(ps, inv_plan_state_step(ps, event))];
}

int64_t inv_plan_state_live(const inv_plan_state *ps, uint32_t event)
{
    return ps->event[event].live + block_of(ps, event)->added;
}

static int64_t excess_of(const inv_plan_state *ps, int64_t live) { return live > ps->budget ? live - ps->budget : 0; }

static void set_over_budget(inv_plan_state *ps, uint32_t at, bool on)
{
    inv_plan_event *ev = &ps->event[at];
    if (on == (ev->over_budget != NONE)) return;
    if (on) {
        ev->over_budget = ps->nover;
        ps->over_budget[ps->nover++] = at;
    } else {
        const uint32_t last = ps->over_budget[--ps->nover];
        ps->over_budget[ev->over_budget] = last;
        ps->event[last].over_budget = ev->over_budget;
        ev->over_budget = NONE;
    }
}

void inv_plan_bytes_set_active(inv_plan_state *ps, uint32_t at, bool on)
{
    inv_plan_event *ev = &ps->event[at];
    const int64_t live = inv_plan_state_live(ps, at);
    ev->active = on;
    ps->excess += on ? excess_of(ps, live) : -excess_of(ps, live);
    set_over_budget(ps, at, on && live > ps->budget);
}

static void add_in_block(inv_plan_state *ps, inv_plan_block *b, uint32_t at, int64_t by)
{
    inv_plan_event *ev = &ps->event[at];
    const int64_t old = ev->live + b->added, now = old + by;
    ev->live += by;
    if (ev->live > b->roof) b->roof = ev->live;
    if (!ev->active || (old <= ps->budget && now <= ps->budget)) return;
    ps->excess += excess_of(ps, now) - excess_of(ps, old);
    set_over_budget(ps, at, now > ps->budget);
}

void inv_plan_bytes_add(inv_plan_state *ps, uint32_t at, int64_t by) { add_in_block(ps, block_of(ps, at), at, by); }

/* Adds bytes to a block's events from `at` on, up to `to` or the last one, which is returned. */
static uint32_t add_to_events(inv_plan_state *ps, inv_plan_block *b, uint32_t at, uint32_t to, uint32_t last,
                              int64_t by)
{
    for (uint32_t n = 1;; n++, at = ps->event[at].next) {
        add_in_block(ps, b, at, by);
        if (at != to) ps->event[at].between += by;
        if (at == to || at == last) {
            ps->work += n / 4.0;
            return at;
        }
    }
}

/* Adds bytes to all events of a block. `first` and `last` are its first and last event. */
static void add_to_block(inv_plan_state *ps, inv_plan_block *b, uint32_t first, uint32_t last, int64_t by)
{
    ps->work += 1 / 4.0;
    if (b->roof + b->added + (by > 0 ? by : 0) <= ps->budget) {
        b->added += by;
        return;
    }
    b->roof = INT64_MIN / 4;
    (void)add_to_events(ps, b, first, NONE, last, by);
}

void inv_plan_bytes_add_over(inv_plan_state *ps, uint32_t from, uint32_t to, int64_t by)
{
    const uint32_t end = block_at(ps, inv_plan_state_step(ps, to));
    uint32_t k = block_at(ps, inv_plan_state_step(ps, from)), at = from;
    if (ps->loading) {
        ps->event[from].between += by;
        ps->end[to] += by;
        return;
    }
    if (k < end) at = ps->event[add_to_events(ps, &ps->block[k], at, to, last_of(ps, k), by)].next, k++;
    for (; k < end; k++) {
        const uint32_t last = last_of(ps, k);
        add_to_block(ps, &ps->block[k], at, last, by);
        at = ps->event[last].next;
    }
    (void)add_to_events(ps, &ps->block[k], at, to, NONE, by);
}

void inv_plan_bytes_move_end(inv_plan_state *ps, uint32_t old, uint32_t to, int64_t by)
{
    const bool later = ps->event[to].label > ps->event[old].label;
    const uint32_t from = later ? old : to, upto = later ? to : old;
    if (!later) by = -by;
    ps->event[from].between += by;
    inv_plan_bytes_add_over(ps, ps->event[from].next, upto, by);
}

void inv_plan_bytes_begin(inv_plan_state *ps, uint32_t event, uint32_t prev)
{
    inv_plan_event *ev = &ps->event[event];
    inv_plan_block *b = block_of(ps, event);
    ev->live = ev->between = ps->event[prev].between + block_of(ps, prev)->added - b->added;
    if (ev->live > b->roof) b->roof = ev->live;
}

/* Finds the roofs of all blocks. */
static void raise_roofs(inv_plan_state *ps)
{
    for (uint32_t at = 0; at != NONE; at = ps->event[at].next) {
        inv_plan_block *b = block_of(ps, at);
        if (ps->event[at].live > b->roof) b->roof = ps->event[at].live;
    }
}

void inv_plan_bytes_sum(inv_plan_state *ps)
{
    int64_t sum = 0;
    for (uint32_t at = 0; at != NONE; at = ps->event[at].next) {
        inv_plan_event *ev = &ps->event[at];
        ev->live += sum += ev->between;
        ev->between = sum -= ps->end[at];
        ps->end[at] = 0;
    }
    ps->loading = false;
    raise_roofs(ps);
}

void inv_plan_state_set_budget(inv_plan_state *ps, int64_t budget)
{
    ps->budget = budget;
    ps->excess = 0;
    for (uint32_t at = 0; at != NONE; at = ps->event[at].next)
        if (ps->event[at].active) inv_plan_bytes_set_active(ps, at, true);
}

int64_t inv_plan_state_peak(const inv_plan_state *ps, int64_t enough)
{
    int64_t most = 0;
    for (uint32_t i = 0; i < ps->nover && most <= enough; i++) {
        const int64_t live = inv_plan_state_live(ps, ps->over_budget[i]);
        most = live > most ? live : most;
    }
    if (ps->nover) return most;
    for (uint32_t at = 0; at != NONE; at = ps->event[at].next) {
        const uint32_t k = block_at(ps, inv_plan_state_step(ps, at)), last = last_of(ps, k);
        const inv_plan_block *b = &ps->block[k];
        if (b->roof + b->added <= most && last < ps->p->nstep) {
            at = last;
            continue;
        }
        if (ps->event[at].active && ps->event[at].live + b->added > most) most = ps->event[at].live + b->added;
    }
    return most;
}
