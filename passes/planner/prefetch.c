/* SPDX-License-Identifier: Apache-2.0
 * Prefetches values from host memory, so that they are on their way while other nodes run: each such rematerialisation
 * moves towards the beginning of backward, until the events that it has passed cost as much as the copy. It stays
 * behind the event that read or gave the value last and behind the copy before it, and as far back as its bytes fit:
 * where they do not, half the way is tried, and so on.
 * requires: inv_problem, a pruned plan.
 * gives: the same rematerialisations, some of them earlier, at a peak of no more than the larger of the budget and the
 * plan's own. */
#include "passes/planner/plan_state.h"
#include "passes/planner/problem.h"

static bool is_copy(const inv_plan_state *ps, uint32_t at)
{
    return at >= ps->p->nstep && ps->p->edge[ps->event[at].edge].offload;
}

/* Returns how many events the copy may pass. */
static uint32_t way_ahead(const inv_plan_state *ps, uint32_t copy)
{
    const inv_pb_edge *e = &ps->p->edge[ps->event[copy].edge];
    const uint32_t i = inv_plan_state_access_index(ps, e->target[0], copy),
                   last = i ? ps->value[e->target[0]].access.at[i - 1].event : INV_NO_EVENT;
    double cost = 0;
    uint32_t n = 0;
    for (uint32_t at = ps->event[copy].prev; cost < e->cost && at != last && at != INV_NO_EVENT; n++) {
        if (at + 1 == ps->p->forward || is_copy(ps, at)) break;
        cost += at < ps->p->nstep ? ps->p->step[at].cost : ps->p->edge[ps->event[at].edge].cost;
        at = ps->event[at].prev;
    }
    return n;
}

static void move_ahead(inv_plan_state *ps, uint32_t copy)
{
    for (uint32_t n = way_ahead(ps, copy); n > 0; n /= 2) {
        const int64_t excess = ps->excess;
        uint32_t before = copy;
        for (uint32_t k = 0; k < n; k++) before = ps->event[before].prev;
        if (inv_plan_state_insert(ps, before, ps->event[copy].edge) != INV_NO_EVENT) {
            inv_plan_state_remove(ps, copy);
            if (ps->excess <= excess) {
                inv_plan_state_commit(ps);
                return;
            }
        }
        inv_plan_state_undo(ps);
    }
}

inv_status inv_plan_prefetch(inv_arena *a, const inv_problem *p, size_t budget, inv_remats *plan, size_t *peak)
{
    bool any = false;
    for (size_t k = 0; k < plan->n; k++) any |= p->edge[plan->at[k].edge].offload;
    if (!any) return INV_OK;
    inv_plan_state ps;
    INV_TRY(inv_plan_state_init(&ps, a, p, false, (uint32_t)plan->n + 1));
    INV_TRY(inv_plan_state_load(&ps, plan));
    inv_plan_state_set_budget(&ps, (int64_t)(*peak > budget ? *peak : budget));
    for (uint32_t at = p->forward, next; at != INV_NO_EVENT && !a->failed; at = next) {
        next = ps.event[at].next;
        if (is_copy(&ps, at)) move_ahead(&ps, at);
    }
    *peak = (size_t)inv_plan_state_peak(&ps, INT64_MAX);
    return inv_plan_state_list(&ps, a, plan);
}
