/* SPDX-License-Identifier: Apache-2.0
 * Retains values instead of rematerialising them, in what a plan leaves of its budget: a rematerialisation is taken out
 * if the bytes allow its targets to be kept from where they were live last, and what was only computed for it goes with
 * it. Or it is moved ahead to where one of its sources was live last, so that this source need not be given again: an
 * inverse is then run while what it reads is at hand for the gradients. Those that save most cost per byte and step
 * come first. Some rounds are made, since one change may make room for another; in large problems, where a change takes
 * long, as many as so many visits allow. plan_state.c tells what each comes to, and undoes those that do not fit.
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

/* A plan that is being filled up. */
typedef struct filler {
    inv_plan_state *ps;
    inv_error_estimate *errors; /* NULL: they are too large already, so nothing is moved */
    double floor;               /* bytes that inverses rebuild at least */
} filler;

/* Makes the changes since the last commit final if they cost less and are within the limits, else undoes them. */
static bool take_if_cheaper(filler *x, double cost, int64_t excess, uint32_t kept_no_store)
{
    inv_plan_state *ps = x->ps;
    const bool good = ps->excess <= excess && ps->kept_no_store <= kept_no_store && ps->cost < cost &&
                      ps->inverted >= x->floor && !ps->a->failed &&
                      (!x->errors || inv_error_estimate_update(x->errors));
    if (good) inv_plan_state_commit(ps);
    else inv_plan_state_undo(ps);
    return good;
}

/* Takes a rematerialisation out, or moves it ahead to where one of its sources was live last. */
static bool try_candidate(filler *x, uint32_t remat)
{
    inv_plan_state *ps = x->ps;
    const double cost = ps->cost;
    const int64_t excess = ps->excess;
    const uint32_t n = ps->p->edge[ps->event[remat].edge].nsource, kept = ps->kept_no_store;
    inv_plan_state_remove(ps, remat);
    bool taken = take_if_cheaper(x, cost, excess, kept);
    for (uint32_t i = 0; i < n && !taken && x->errors; i++)
        taken = inv_plan_state_hoist(ps, remat, i) && take_if_cheaper(x, cost, excess, kept);
    return taken;
}

inv_status inv_plan_retain(inv_plan_state *ps, inv_error_estimate *errors, inv_arena *scratch, size_t budget,
                           double floor)
{
    filler x = {ps, errors, floor};
    candidate *list = INV_ARENA_NEW(scratch, candidate, ps->nremat + 1);
    if (!list) return INV_E_NOMEM;
    inv_plan_state_set_budget(ps, (int64_t)budget);
    const double most = ps->work + VISITS_PER_STEP * (double)ps->p->nstep;
    bool any = true;
    if (!inv_error_estimate_load(errors)) x.errors = NULL;
    for (int round = 0; round < ROUNDS && any; round++) {
        const size_t n = list_candidates(ps, list);
        qsort(list, n, sizeof *list, by_worth);
        any = false;
        for (size_t i = 0; i < n && ps->work < most; i++) { /* one that was read only for another is gone with that */
            const inv_plan_event *ev = &ps->event[list[i].remat];
            if (ev->place != INV_NO_EVENT && ev->active) any |= try_candidate(&x, list[i].remat);
        }
    }
    return ps->a->failed ? INV_E_NOMEM : INV_OK;
}
