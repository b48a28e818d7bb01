/* SPDX-License-Identifier: Apache-2.0
 * Prefetches values from host memory, so that they are on their way while other nodes run: each such rematerialisation
 * moves towards the beginning of backward, past one event after the other, as long as its bytes fit there, too, until
 * the events that it has passed cost as much as the copy. The plan is counted again in the end, since what may be
 * written in place depends on the order; if it then exceeds the bytes allowed, it stays as it was. O(moves), and four
 * loads of it. requires: inv_problem, a pruned plan. gives: the same rematerialisations, some of them earlier, at a
 * peak of no more than the larger of the budget and the plan's own peak; without a budget, no more activations than the
 * plan's own, either. */
#include "passes/planner/plan_state.h"
#include "passes/planner/problem.h"

/* The plan and its bytes while copies are moved. */
typedef struct mover {
    const inv_problem *p;
    inv_remats *plan;
    size_t *live, *act;    /* per event: bytes of all that is live; of activations and scratch memory */
    size_t most, most_act; /* bytes that are allowed at each event */
} mover;

/* Exchanges rematerialisation *k, a copy from host memory, with the event before it, a step or another
 * rematerialisation, whose cost *cost becomes. False: it stays, since that event reads or gives the value, is a copy as
 * well, or ends forward, or since the bytes do not fit there. */
static bool pass_event(mover *m, size_t *k, double *cost)
{
    inv_remat *r = &m->plan->at[*k], *before = *k > 0 ? r - 1 : NULL;
    const uint32_t v = m->p->edge[r->edge].target[0], event = r->step + (uint32_t)*k;
    const bool remat = before && before->step == r->step;
    const inv_pb_edge *e = remat ? &m->p->edge[before->edge] : NULL;
    const inv_pb_step *s = &m->p->step[r->step - 1];
    const size_t nbytes = m->p->value[v].nbytes, act = m->p->value[v].data ? 0 : nbytes;
    if (!remat && (r->step == m->p->forward || inv_pb_has(s->read, s->nread, v))) return false;
    if (remat && (e->offload || inv_pb_has(e->source, e->nsource, v) || inv_pb_has(e->target, e->ntarget, v)))
        return false;
    if (m->live[event - 1] + nbytes > m->most || m->act[event - 1] + act > m->most_act) return false;
    m->live[event] = m->live[event - 1] += nbytes; /* an upper bound for both in their new places */
    m->act[event] = m->act[event - 1] += act;
    *cost = remat ? e->cost : s->cost;
    if (remat) {
        const inv_remat moved = *r;
        *r = *before;
        *before = moved;
        --*k;
    } else {
        r->step--;
    }
    return true;
}

/* Counts the bytes that are live at each event, of activations alone or of all, and their peak. */
static inv_status count_live(inv_arena *a, const inv_problem *p, const inv_remats *plan, bool activations,
                             size_t **live, size_t *peak)
{
    inv_plan_state ps;
    INV_TRY(inv_plan_state_init(&ps, a, p, activations, (uint32_t)plan->n));
    INV_TRY(inv_plan_state_load(&ps, plan));
    size_t *to = *live = INV_ARENA_NEW(a, size_t, p->nstep + plan->n + 1);
    if (!to) return INV_E_NOMEM;
    for (uint32_t at = 0; at != INV_NO_EVENT; at = ps.event[at].next) *to++ = (size_t)inv_plan_state_live(&ps, at);
    *peak = (size_t)inv_plan_state_peak(&ps, INT64_MAX);
    return INV_OK;
}

inv_status inv_plan_prefetch(inv_arena *a, const inv_problem *p, size_t budget, inv_remats *plan)
{
    bool any = false;
    for (size_t k = 0; k < plan->n; k++) any |= p->edge[plan->at[k].edge].offload;
    if (!any) return INV_OK;
    inv_remats was = {0};
    mover m = {.p = p, .plan = plan};
    size_t peak, peak_act, *unused;
    INV_TRY(inv_plan_copy(a, plan, &was));
    INV_TRY(count_live(a, p, plan, false, &m.live, &peak));
    INV_TRY(count_live(a, p, plan, true, &m.act, &peak_act));
    m.most = peak > budget ? peak : budget;
    m.most_act = budget ? SIZE_MAX : peak_act;
    for (size_t k = 0; k < plan->n; k++) {
        const inv_pb_edge *e = &p->edge[plan->at[k].edge];
        double ahead = 0, cost = 0;
        for (size_t at = k; e->offload && ahead < e->cost && pass_event(&m, &at, &cost);) ahead += cost;
    }
    INV_TRY(count_live(a, p, plan, false, &unused, &peak));
    INV_TRY(count_live(a, p, plan, true, &unused, &peak_act));
    if (peak > m.most || peak_act > m.most_act) *plan = was;
    return INV_OK;
}
