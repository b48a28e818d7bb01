/* SPDX-License-Identifier: Apache-2.0
 * Recovery: backward gets the values of forward that it reads. A policy per memory mode (policy.c) poses the planner's
 * problem for a graph (recovery_problem.c), and the plan that is found becomes nodes (recover.c). */
#ifndef INV_PASSES_RECOVER_RECOVER_H
#define INV_PASSES_RECOVER_RECOVER_H

#include "core/program/cost.h"
#include "core/program/program.h"
#include "passes/planner/problem.h"

/* What is asked of one value of forward (value_modes.c). */
typedef struct inv_value_policy {
    uint8_t mode; /* inv_memory that --keep and --mode give it; INV_MEMORY_AUTO: none */
    bool keep;    /* is stored */
    bool no_store, no_invert, no_recompute;
    bool offload;    /* may be copied to host memory and back */
    bool checkpoint; /* is stored because a guard has rejected what stood for it ... */
    bool rejected;   /* ... which was rebuilt itself, so that all that was rebuilt before it is suspect */
} inv_value_policy;

/* What may be done with values of forward. */
typedef struct inv_policy {
    bool recompute, invert;
    bool feed_again; /* inputs may be copied from the caller's memory again */
    inv_guard guard;
    bool unguarded;    /* nothing may be used that a guard would have to check */
    bool late;         /* early updates were asked for, but where there are guards updates stay where they are */
    bool guards_aside; /* the bytes and the cost of guards are not counted */
    double max_drift;
    const inv_value_policy *value; /* per value of the base graph */
} inv_policy;

#define INV_NO_NUMBER UINT32_MAX

/* The problem of a base graph. Views of one value are one value of the problem, called their root. */
typedef struct inv_recovery {
    const inv_graph *base;
    const inv_policy *policy;
    const inv_cost_table *costs;
    inv_arena *a;
    inv_problem p;
    const inv_edge *edge; /* the matches' inverse edges: the id of a problem's edge is an index here, or a node's */
    size_t nedge;
    uint32_t *number;    /* per value: the number in the problem of its root; INV_NO_NUMBER: forward does not give it */
    inv_id *value;       /* per number: the root */
    double *sensitivity; /* per value: factor by which its relative error counts in gradients */
} inv_recovery;

/* Effort of searches and of placing buffers, times the usual. */
static inline unsigned inv_effort_of(const inv_request *rq)
{
    return rq->options->effort ? (unsigned)rq->options->effort : 1;
}

static inline bool inv_in_forward(const inv_recovery *r, inv_id v)
{
    return v != INV_NONE && r->number[v] != INV_NO_NUMBER;
}
/* Whether a guard compares what the edge gives with what forward gave. NULL: it is no inverse edge. */
static inline bool inv_guarded(const inv_policy *p, const inv_edge *e)
{
    return p->guard == INV_GUARD_FULL || (p->guard == INV_GUARD_ON && e && !e->exact);
}
/* value_modes.c: what is asked of single values of the base graph becomes policy->value, allocated in `a`.
 * INV_E_ARG: a glob fits nothing, or there is nowhere to offload to; INV_E_NOMEM. */
inv_status inv_apply_modes(const inv_plan *plan, const inv_request *rq, const inv_program *program, inv_arena *a,
                           inv_policy *policy);

/* --- budgets that cannot be met (budget_refusal.c) --- */

/* Logs that the budget is out of reach: a step takes `least` bytes or more besides the persistent ones; 0: these alone
 * exceed it. */
void inv_tell_hopeless(const inv_program *program, size_t persistent, size_t least);
/* Notes in the program that its plans need more than the budget; `p` is the largest of them. */
inv_status inv_note_shortfall(inv_program *program, const inv_plan *p);

/* --- recovery_problem.c, recover.c --- */

/* Whether the inverse edge may be used, and if not, why. */
inv_way inv_way_of(const inv_recovery *r, const inv_edge *edge);

/* Poses the problem, in arena `a`, of a base graph with matches and an order. `costs` NULL: cost is flops. */
inv_status inv_recovery_init(inv_recovery *r, inv_graph *base, const inv_policy *policy, const inv_cost_table *costs,
                             inv_arena *a);
/* Makes a copy of the base graph with the plan's rematerialisations as nodes, and notes choices and guards in
 * `plan`. What cannot be made nodes is noted in plan->lost, and is an error. Where there are guards and weights are
 * updated early, all of them decide before backward begins: when a step is rejected, old weights could not be had back.
 */
inv_status inv_recover(const inv_recovery *r, const inv_remats *remats, inv_plan *plan, inv_graph **out);

/* --- lost.c: what a plan that was wrong had not kept, and the next one keeps --- */

/* Adds a root of the base's forward to plan->lost. */
bool inv_plan_lose(inv_plan *plan, inv_id root);
/* The same of what stands for v, a value of plan->g; INV_NONE: of all that forward gives. *more: some are new. */
inv_status inv_plan_lose_for(inv_plan *plan, inv_id v, bool *more);

/* --- saved_plan.c --- */

/* Notes the rematerialisations in plan->remat, allocated in plan->g. */
inv_status inv_plan_note(const inv_recovery *r, const inv_remats *remats, inv_plan *plan);
/* Reads the rematerialisations that the saved plan has for these shapes, and checks them. If it has none for them,
 * *found is false, and that is an error (INV_E_ARG) but for a smaller last batch. All else that does not fit is one,
 * too. *late: as in inv_policy. */
inv_status inv_plan_load(const inv_recovery *r, const inv_plan *plan, const inv_request *rq, inv_remats *out,
                         bool *late, bool *found);
/* The plans for training as JSON (program->save). */
inv_status inv_plan_save(const inv_program *program, char **json);

/* --- policy.c --- */

/* Sets plan->g to a copy of plan->base that is recovered as the memory mode asks */
inv_status inv_pass_search(inv_plan *plan, const inv_request *rq, inv_program *program);
/* An estimate of the least transient bytes that a plan of the base graph takes */
inv_status inv_search_floor(inv_plan *plan, const inv_request *rq, inv_program *program, size_t *nbytes);

#endif
