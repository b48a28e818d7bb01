/* SPDX-License-Identifier: Apache-2.0
 * Retains values instead of rematerialising them, in what a plan leaves of its budget: a rematerialisation is taken out
 * if the bytes allow its targets to be kept from where they were live last, and what was only computed for it goes with
 * it. Those that save most cost per byte come first, of equal ones the shortest gaps. Some rounds are made, since one
 * change may make room for another; in large problems, where a change takes long, as many as so many visits allow.
 * plan_state.c tells what each comes to, and undoes those that do not fit. Errors are not estimated anew: a reader of
 * the value now reads what an earlier reader has read. Where that has a larger error than the value given again had, it
 * is left to the guards.
 * requires: inv_plan_state.
 * gives: a plan of less cost or the same one; its peak is more than the budget only at events where it was before. */
#include <stdlib.h>

#include "passes/planner/plan_state.h"
#include "passes/planner/problem.h"

enum { ROUNDS = 4, VISITS_PER_STEP = 600 };

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

static bool try_candidate(inv_plan_state *ps, uint32_t r, double floor)
{
    const int64_t excess = ps->excess;
    const uint32_t kept = ps->kept_no_store;
    const double cost = ps->cost;
    inv_plan_state_remove(ps, r);
    const bool good =
        ps->excess <= excess && ps->kept_no_store <= kept && ps->cost < cost && ps->inverted >= floor && !ps->a->failed;
    if (good) inv_plan_state_commit(ps);
    else inv_plan_state_undo(ps);
    return good;
}

inv_status inv_plan_retain(inv_plan_state *ps, inv_arena *scratch, size_t budget, double floor)
{
    candidate *list = INV_ARENA_NEW(scratch, candidate, ps->nremat + 1);
    if (!list) return INV_E_NOMEM;
    inv_plan_state_set_budget(ps, (int64_t)budget);
    const double most = ps->work + VISITS_PER_STEP * (double)ps->p->nstep;
    bool any = true;
    for (int round = 0; round < ROUNDS && any; round++) {
        const size_t n = list_candidates(ps, list);
        qsort(list, n, sizeof *list, by_worth);
        any = false;
        for (size_t i = 0; i < n && ps->work < most; i++) { /* one that was read only for another is gone with that */
            const inv_plan_event *ev = &ps->event[list[i].remat];
            if (ev->place != INV_NO_EVENT && ev->active) any |= try_candidate(ps, list[i].remat, floor);
        }
    }
    return ps->a->failed ? INV_E_NOMEM : INV_OK;
}
