/* SPDX-License-Identifier: Apache-2.0
 * Plans apart from steps: the session's own, to be saved, and others that are only tried. */
#include "executor/executor.h"
#include "executor/improve.h"

inv_status inv_session_plan(inv_session *s, char **json)
{
    *json = NULL;
    INV_TRY(inv_session_whole(s));
    return s->program->save(s->program, json);
}

inv_status inv_session_try_budget(inv_session *s, uint64_t budget, inv_trial *out)
{
    INV_TRY(inv_session_whole(s));
    inv_program *p = s->program;
    INV_CHECK(out->size == sizeof *out, s->ctx, INV_E_ABI, "a trial of %zu bytes: this library has them of %zu",
              out->size, sizeof *out);
    INV_CHECK(p->options.purpose == INV_FOR_TRAIN, s->ctx, INV_E_ARG,
              "this session is not for training: nothing is planned that a budget would change");
    inv_improve_halt(s); /* a search reads the same base graphs, and planning counts bytes in them */
    const inv_program former = *p;
    p->options.budget = budget;
    p->options.after_pass = NULL;
    p->smallest = budget == 0;
    p->transient = p->control = p->host = 0;
    const inv_status st = p->replan(p);
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
