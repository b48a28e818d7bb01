/* SPDX-License-Identifier: Apache-2.0
 * The verdict of the guards on a step, and what follows when one refuses: the value at fault is kept from then on, and
 * the session is planned again. */
#include <math.h>

#include "executor/run/agree.h"

bool inv_guards_refuse(inv_session *s, int kind, inv_result *result)
{
    const inv_plan *plan = &s->program->plan[kind];
    bool any = false;
    for (size_t i = 0; i < plan->guarded.n; i++) {
        if (s->step.absent) s->drift[i] = 0; /* of zeros in place of rows */
        if (isnan(s->drift[i])) s->drift[i] = INFINITY;
        if (s->drift[i] > result->drift) result->drift = s->drift[i];
        any = any || s->drift[i] > inv_guard_limit(&plan->guarded.at[i], s->program->max_drift);
    }
    return any;
}

static inv_status keep_value(inv_session *s, const inv_plan *plan, size_t slot)
{
    inv_program *p = s->program;
    const inv_guarded_row *row = &plan->guarded.at[slot];
    const bool derived = row->kind != INV_GUARD_REBUILT;
    const char *name = inv_val(plan->g, row->value)->name;
    inv_log(s->ctx,
            derived ? "step %llu: a value computed from a reconstruction is off by %.2g (limit %.2g); '%s' is "
                      "stored from now on"
                    : "step %llu: a reconstruction is off by %.2g (limit %.2g); '%s' is stored from now on",
            (unsigned long long)s->steps, s->drift[slot], inv_guard_limit(row, p->max_drift), name);
    return inv_program_reject(p, name, derived);
}

#define NEAR_LIMIT 0.7
/* Of what has been rebuilt, where that is refused, the earliest checked that came near the limit is kept: what follows
 * may only follow from it, and errors begin anew where there is room for them to grow a little from step to step. Else
 * it is what is computed from it that is off, and all of that which is refused is kept. */
inv_status inv_guards_fall_back(inv_session *s, int kind)
{
    inv_program *p = s->program;
    const inv_plan *plan = &p->plan[kind];
    const inv_program former = *p;
    size_t near = plan->guarded.n;
    bool rebuilt = false;
    for (size_t i = plan->guarded.n; i-- > 0;) {
        if (plan->guarded.at[i].kind != INV_GUARD_REBUILT) continue;
        if (s->drift[i] > NEAR_LIMIT * p->max_drift) near = i;
        rebuilt = rebuilt || s->drift[i] > p->max_drift;
    }
    if (rebuilt) INV_TRY(keep_value(s, plan, near));
    for (size_t i = 0; i < plan->guarded.n && !rebuilt; i++)
        if (s->drift[i] > inv_guard_limit(&plan->guarded.at[i], p->max_drift)) INV_TRY(keep_value(s, plan, i));
    INV_TRY(inv_ranks_join_checkpoints(s, former.checkpoint.n));
    INV_TRY(inv_session_plan_again(s, &former));
    inv_log(s->ctx, "planned again: peak %zu bytes", inv_program_bytes(p));
    s->fallbacks++;
    return INV_OK;
}
