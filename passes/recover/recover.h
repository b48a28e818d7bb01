/* SPDX-License-Identifier: Apache-2.0
 * Recovery of one graph: its problem (recovery_problem.c), and a plan made into nodes (recover.c). */
#ifndef INV_PASSES_RECOVER_RECOVER_H
#define INV_PASSES_RECOVER_RECOVER_H

#include "core/cost.h"
#include "core/program.h"
#include "passes/planner/problem.h"

/* What may be done with forward values; arrays are per value of the base graph. */
typedef struct inv_policy {
    bool recompute, invert;
    bool feed_again; /* inputs may be copied from the caller again */
    inv_guard guard;
    bool unguarded;    /* nothing that a guard would check */
    bool late;         /* early updates were asked for, and are not made */
    bool guards_aside; /* what they take is not counted */
    double max_drift;
    const bool *keep;           /* pinned */
    const bool *guard_rejected; /* kept because a guard refused what stood for it ... */
    const bool
        *rebuild_rejected; /* ... and that was rebuilt by recovery, so that what was rebuilt up to there is as bad */
    const bool *no_invert, *no_recompute;
    const bool *offload; /* may be copied to host memory and back */
} inv_policy;

/* The problem of a base graph. Views of one value are one value of the problem: its root. */
typedef struct inv_recovery {
    const inv_graph *base;
    const inv_policy *policy;
    const inv_cost_table *costs;
    inv_arena *a;
    inv_problem p;
    uint32_t nnode;       /* ids of edges: below it a forward node, from it on inverse edges; of offloads their value */
    const inv_edge *edge; /* inverse edges */
    size_t nedge;
    bool *forward;       /* per value: computed in the forward part */
    inv_id *root;        /* per forward value: the one whose bytes it is a view of, or itself */
    uint32_t *number;    /* per forward value: the problem's number of its root */
    inv_id *value;       /* per number: the root */
    double *sensitivity; /* per value: what an error of it counts for the gradient's branches */
} inv_recovery;

/* Whether what the edge gives is compared with what forward gave; NULL: not by an inverse. */
static inline bool inv_guarded(const inv_policy *p, const inv_edge *e)
{
    return p->guard == INV_GUARD_FULL || (p->guard == INV_GUARD_ON && e && e->rule->exactness != INV_EXACT);
}
/* unknown_glob.c: fails for a glob of values, nodes or blocks that fits none, with what it may have meant */
inv_status inv_glob_fits_nothing(const inv_graph *g, const char *option, const char *glob);

/* --- budgets that cannot be met (budget_refusal.c) --- */

/* What the problem's peak cannot be below: some step reads and takes that much. */
size_t inv_problem_floor(const inv_problem *p);
/* Notes what is to be said of the budget: the plan `p`, called `what`, needs more. */
inv_status inv_refuse_plan(inv_program *program, const inv_plan *p, size_t need, const char *what, inv_arena *scratch);

/* The node of the base graph that the edge computes again, solves, or copies the result of. */
inv_id inv_edge_node(const inv_recovery *r, const inv_pb_edge *e);
/* The inverse by which that target of the edge is had. */
const inv_edge *inv_edge_for(const inv_recovery *r, const inv_pb_edge *e, uint32_t target);
/* What this inverse edge is good for. */
inv_way inv_way_of(const inv_recovery *r, const inv_edge *edge);

/* requires: base graph with matches and order.  gives: r, in r->a. `costs` NULL: flops. */
inv_status inv_recovery_init(inv_recovery *r, inv_graph *base, const inv_policy *policy, const inv_cost_table *costs,
                             inv_arena *a);
/* A copy of base with the plan's rematerialisations as nodes, choices and guards noted in `plan`. With guards, weights
 * are not updated early: they could not be had back when a step is refused. */
inv_status inv_recover(const inv_recovery *r, const inv_remats *remats, inv_plan *plan, inv_graph **out);

/* --- saved_plan.c --- */

/* Notes the rematerialisations in plan->rematerialised, allocated in plan->g. */
inv_status inv_plan_note(const inv_recovery *r, const inv_remats *remats, inv_plan *plan);
/* The rematerialisations that the saved plan has for these shapes, checked. *found: whether it has any for them; if
 * not, that is INV_OK for a smaller last batch, else INV_E_ARG, as for all that does not fit. */
inv_status inv_plan_load(const inv_recovery *r, const inv_plan *plan, const inv_request *rq, inv_remats *out,
                         bool *found);

/* policy.c: recovers a copy of plan->base in the way that suits the memory mode; sets plan->g */
inv_status inv_pass_search(inv_plan *plan, const inv_request *rq, inv_program *program);
/* policy.c: what no plan of the base graph can take less than, of transient bytes */
inv_status inv_search_floor(inv_plan *plan, const inv_request *rq, inv_program *program, size_t *nbytes);
/* budget_refusal.c: logs that the budget is out of reach: a step takes `least` bytes at least, besides so many that
 * persist, or these alone are more (0) */
void inv_refuse_at_once(const inv_program *program, size_t persistent, size_t least);
/* saved_plan.c: program->save */
inv_status inv_plan_save(const inv_program *program, char **json);

#endif
