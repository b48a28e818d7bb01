/* SPDX-License-Identifier: Apache-2.0
 * Plans apart from steps: the session's own, to be saved, and others that are only tried. */
#include "executor/executor.h"
#include "executor/session/improve.h"

inv_status inv_session_plan(inv_session *s, char **json)
{
    INV_OBJECT(s);
    INV_GIVEN(s->ctx, json);
    *json = NULL;
    INV_TRY(inv_session_whole(s));
    return s->program->save(s->program, json);
}

/* Plans for a budget, 0 being the fewest bytes, and puts all back. *refused: the budget cannot be met. */
static inv_status try_plan(inv_session *s, uint64_t budget, inv_trial *out, bool *refused)
{
    inv_program *p = s->program;
    const inv_program former = *p;
    p->options.budget = budget;
    p->options.after_pass = NULL;
    p->transient = p->control = p->host = 0;
    p->aim = budget ? INV_AIM_OPTIONS : INV_AIM_FEWEST;
    const inv_status st = p->replan(p);
    *refused = st == INV_E_NOMEM && p->shortfall;
    if (st == INV_OK) {
        const inv_plan *plan = &p->plan[INV_PLAN_MAIN];
        out->peak = inv_program_bytes(p);
        out->overhead = plan->overhead;
        out->bound = plan->bound;
    }
    inv_program tried = *p;
    inv_program_restore(p, &former);
    p->drop(p, tried.plan);
    return st;
}

/* What a plan takes is tried as a budget in turn, and the plan for that is the one that is told: a session with that
 * budget has it. Where there is none for it, the budget that was asked for is told, for which there was one. */
inv_status inv_session_try_budget(inv_session *s, uint64_t budget, inv_trial *trial)
{
    INV_OBJECT(s);
    INV_GIVEN(s->ctx, trial);
    enum { TRIES = 4 };
    INV_TRY(inv_session_whole(s));
    INV_CHECK(trial->size == sizeof *trial, s->ctx, INV_E_ABI, "a trial of %zu bytes: this library has them of %zu",
              trial->size, sizeof *trial);
    INV_CHECK(s->program->options.purpose == INV_FOR_TRAIN, s->ctx, INV_E_ARG,
              "this session is not for training: nothing is planned that a budget would change");
    inv_improve_halt(s); /* a search reads the same base graphs, and planning counts bytes in them */
    bool refused;
    INV_TRY(try_plan(s, budget, trial, &refused));
    const bool fewest = budget == 0;
    for (int i = 0; i < (fewest ? TRIES : 1) && trial->peak != budget; i++) {
        inv_trial next = *trial;
        const inv_status st = try_plan(s, trial->peak, &next, &refused);
        if (st != INV_OK && !refused) return st;
        if (refused) break;
        budget = trial->peak;
        *trial = next;
    }
    if (budget) trial->peak = budget;
    return INV_OK;
}
