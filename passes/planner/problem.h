/* SPDX-License-Identifier: Apache-2.0
 * The planner's problem, which knows no graph: how does backward get the values of forward that it reads, within how
 * many bytes, for how much arithmetic? A training step is a fixed order of steps that read values. Steps [0, forward)
 * are forward; each gives its values, which may be kept in memory for later readers. Before any later step, a value
 * that was not kept can be rematerialised by one of its edges: computed again from its operands, solved from results by
 * an inverse, or copied back from host memory. A plan is nothing but the list of these rematerialisations: a value is
 * live from where it is given to its last reader before it is given again, so what is kept follows from who reads what.
 * Rematerialisation is the word of Checkmate (Jain et al., MLSys 2020) for recomputation, taken here for all three. The
 * values and edges are a directed hypergraph with B-edges (several sources). To rematerialise is to run one edge; to
 * derive a value is to run all edges of a hyperpath to it, from values that are live (Knuth 1977 finds the cheapest).
 * A guard compares what an inverse has rebuilt with a fingerprint of what forward gave, while a step runs, and rejects
 * what is too far off (docs/numerics.md).
 * Time is counted in events: one for each step and one for each rematerialisation. Work and effort are counted in
 * visits: a visit is roughly one inner step of constant time, such as a look at one event or edge, so that results do
 * not depend on how fast the machine is.
 * The parts: search.c asks greedy.c for plans at many prices of a byte; descent.c fills what they leave of the budget,
 * or brings them into fewer bytes, by local changes through all of a plan, and anneal.c makes such changes by chance;
 * prefetch.c moves copies ahead. They count on plan_state.c and plan_bytes.c, which follow a plan's bytes change by
 * change, and on error_estimate.c, which follows its errors. lower_bound.c says what no plan can do better. */
#ifndef INV_PASSES_PLANNER_PROBLEM_H
#define INV_PASSES_PLANNER_PROBLEM_H

#include "core/base/mem.h"

#define INV_NO_REMAT UINT32_MAX

/* A value of forward. Values are numbered in the order of the steps that give them. */
typedef struct inv_pb_value {
    size_t nbytes;      /* bytes as the arena counts them; 0 if it takes none */
    uint32_t def;       /* the step of forward that gives it */
    uint32_t first, n;  /* the edges that give it: problem->edge_of[first], n of them */
    bool pinned;        /* kept until its last reader, whatever that costs; edges that give it are not used */
    bool no_store;      /* rematerialised whatever that costs, if there is a way */
    bool data;          /* a copy of the caller's data, which is not counted as activation */
    bool splittable;    /* it rearranges its operands, so that these can be kept in its place */
    bool offload;       /* may be copied to host memory and back: recovery_problem.c makes an edge of that */
    bool rejected;      /* a guard has rejected what an inverse rebuilt of it, in a run */
    double sensitivity; /* factor by which its relative error counts in gradients; INFINITY: it must be exact */
} inv_pb_value;

/* One way to rematerialise values of forward from others. */
typedef struct inv_pb_edge {
    const uint32_t *source, *target; /* numbers of values */
    uint32_t nsource, ntarget;       /* ntarget <= 32 */
    uint32_t overwrites; /* bit i: the first target may be written in place of source i, if nobody reads that later */
    uint32_t id;         /* the caller's name for it */
    double cost;         /* cost if all targets are wanted, in the unit of inv_problem.cost */
    double max_saving;   /* the most by which it costs less if some targets are not wanted */
    size_t scratch;      /* bytes that are live only while it runs */
    size_t side;         /* bytes of side results, such as a mask: live from the step that gives its first target */
    bool inverse, moves; /* moves: it does no arithmetic */
    bool offload;        /* copies its target from host memory, where forward has put it; it has no sources */
    double error_gain;   /* relative error of the targets = error_gain x the worst of the sources + added_error */
    double added_error;
} inv_pb_edge;

/* One node of the order. */
typedef struct inv_pb_step {
    const uint32_t *read;
    uint32_t nread;
    uint32_t overwrites;       /* bit i: what the step gives may be written in place of read i */
    size_t at, before;         /* fixed bytes, of all that is no value: while it runs; between the step before and it */
    size_t act_at, act_before; /* the part of these that is activations or scratch memory */
    double cost;               /* in the unit of inv_problem.cost */
} inv_pb_step;

/* The problem: steps, the values that they read, and the edges that rematerialise these. */
typedef struct inv_problem {
    inv_pb_value *value;
    inv_pb_edge *edge;
    inv_pb_step *step;
    const uint32_t *edge_of; /* edges, grouped by the values that they give */
    uint32_t nvalue, nedge, nstep, forward;
    double cost;      /* of all steps: seconds or flops, as the caller counts */
    double max_drift; /* the largest relative error that a rematerialised value may be estimated to have */
} inv_problem;

/* One rematerialisation: `edge` runs before step `step`. Bit i of `want` is set if its target i is wanted. */
typedef struct inv_remat {
    uint32_t step, edge, want;
} inv_remat;
typedef INV_VEC(inv_remat) inv_remats;

/* Returns true if v is in a list of values. */
static inline bool inv_pb_has(const uint32_t *list, uint32_t n, uint32_t v)
{
    for (uint32_t i = 0; i < n; i++)
        if (list[i] == v) return true;
    return false;
}

/* Returns true if a list of values has all of another. */
static inline bool inv_pb_has_all(const uint32_t *list, uint32_t n, const uint32_t *others, uint32_t nothers)
{
    uint32_t i = 0;
    while (i < nothers && inv_pb_has(list, n, others[i])) i++;
    return i == nothers;
}

/* Returns the estimated error of what the edge gives from sources of which the worst is off by `worst`: an inverse
 * magnifies that and adds its own rounding, all else passes it on. */
static inline double inv_pb_error(const inv_pb_edge *e, double worst)
{
    return e->inverse ? e->error_gain * worst + e->added_error : worst;
}
/* Says whether v may be off by `err` where the edge gives it. Sensitivity counts for inverses only. What is without
 * an error is allowed whatever its sensitivity: 0 times INFINITY is no number. */
static inline bool inv_pb_error_allowed(const inv_problem *p, const inv_pb_edge *e, uint32_t v, double err)
{
    return err <= p->max_drift && (!e->inverse || err <= 0 || err * p->value[v].sensitivity <= p->max_drift);
}

/* The figures of a plan. */
typedef struct inv_score {
    size_t peak;            /* bytes, the most that are live at one event */
    size_t activations;     /* the same, of activations and scratch memory only; 0 unless the goal asks for it */
    double cost;            /* of the rematerialisations, on top of the steps */
    double inverted;        /* bytes of the values that inverses rebuild by arithmetic */
    uint32_t kept_no_store; /* how many no_store values backward reads as forward gave them */
    double excess;          /* sum over the events of the bytes over the budget, or the aim of annealing; 0: neither
                             * is exceeded, or there is none */
} inv_score;

/* --- greedy.c --- */

/* Prices and options of the greedy pass. */
typedef struct inv_prices {
    const double *step; /* per step: the price of one byte that is live during it */
    const uint32_t
        *warm_start; /* per value: the last step for which an earlier plan kept it, so that keeping it until then costs
                      * nothing more; UINT32_MAX: it was not kept. NULL: there is no earlier plan */
    bool invert;     /* inverses may be used */
    bool split_operands; /* splittable values are had from their operands, which are kept instead */
    bool rederive_kept;  /* values that the warm start has kept are derived if that pays now */
} inv_prices;

/* Builds one plan, step by step through backward: what a step reads is kept since it was live last, or derived by the
 * cheapest hyperpath, whichever costs less at these prices. Some that are made for a value may be read by nobody in the
 * end, and `want` is not set: who loads the plan (plan_state.c) sees that. `work` grows by the visits made.
 * INV_E_NOMEM. */
inv_status inv_plan_greedy(inv_arena *a, const inv_problem *p, const inv_prices *prices, inv_remats *out, double *work);

/* --- plan_state.c --- */

/* Makes `to` a copy of the plan. INV_E_NOMEM. */
inv_status inv_plan_copy(inv_arena *a, const inv_remats *plan, inv_remats *to);
/* Takes out rematerialisations that nobody reads, and sets `want` of the others to what is read. These stay in order,
 * which has to be that of steps. INV_E_NOMEM. */
inv_status inv_plan_prune(inv_arena *a, const inv_problem *p, inv_remats *plan);

/* --- prefetch.c --- */

/* Moves copies from host memory of a pruned plan ahead of their readers, as long as *peak, which is the plan's and
 * becomes that of what comes of it, is no more than the larger of `budget` bytes and what it was. INV_E_NOMEM. */
inv_status inv_plan_prefetch(inv_arena *a, const inv_problem *p, size_t budget, inv_remats *plan, size_t *peak);

/* --- anneal.c --- */

struct inv_goal;
/* Improves `plan` for the goal, but for a balance, by local changes, for `effort` visits. Goes on for up to four times
 * as many while no plan is within the budget; without a budget, in problems of 500 steps or more, until the peak falls
 * no more, likewise for at most four times as many. INV_E_NOMEM. */
inv_status inv_plan_anneal(inv_arena *a, const inv_problem *p, const struct inv_goal *goal, double effort,
                           uint64_t *dice, inv_remats *plan);

/* --- search.c --- */

/* What a search learns on its way, by which it compares plans from then on. */
typedef struct inv_learnt {
    double floor;  /* bytes that a plan inverts at least, once the goal's share is known in bytes */
    size_t enough; /* peaks of activations up to this one are alike, and the product decides; 0: none are */
} inv_learnt;

/* The aim of a search. */
typedef struct inv_goal {
    size_t
        budget; /* bytes: the least cost within this peak is sought; 0: the smallest peak, or what else is asked for */
    double limit;  /* without a budget: the most cost, besides what no_store values force */
    double share;  /* without a budget: the plan inverts at least this share of the most bytes that any trial inverts */
    double effort; /* visits of annealing, at least 2,000,000 with a budget; it may take four times as many. A part of
                    * them bounds the search for prices. 0: by the size of the problem */
    double worth;  /* with a budget: the most cost of a plan that is of use; 0: any is */
    bool activations;  /* without a budget: the peak of activations decides, then that of all bytes; with a budget: that
                        * is of activations, too */
    bool balanced;     /* without a budget: the least product of bytes and cost of the whole step is sought */
    size_t persistent; /* bytes that are taken besides the peak; for that product */
    inv_learnt learnt; /* by search.c; nothing to begin with */
} inv_goal;
/* Returns true if plan a is better for the goal than b. The first of these in which they differ decides.
 * 1. The plan that keeps fewer no_store values is better.
 * With a budget:
 * 2. A plan within the budget is better than one over it; of two over it, the one of the smaller peak.
 * 3. Of two over the budget, the one of the smaller excess is better.
 * 4. The cheaper one is better, and then the one of the smaller peak.
 * Without a budget:
 * 2. A plan that inverts as many bytes as the floor says is better than one that does not.
 * 3. A plan within the limit of cost is better than one beyond it.
 * 4. The one of the smaller peak of activations is better, if the goal asks for that; peaks up to `enough` are alike.
 * 5. For a balance, or where there is an `enough`, the one of the smaller product of bytes and cost is better.
 * 6. Otherwise the one of the smaller peak is better, and then the cheaper one.
 * All plans are compared by it: those of trials, states of annealing, and what becomes of plans in an arena
 * (policy.c). */
bool inv_score_better(const inv_problem *p, const inv_goal *goal, const inv_score *a, const inv_score *b);
/* Finds the best plan it can, allocated in `out`. If none within the budget was found, it is the one nearest to it. */
inv_status inv_plan_search(inv_context *ctx, inv_arena *out, const inv_problem *p, const inv_goal *goal,
                           inv_remats *plan, inv_score *score);

/* --- lower_bound.c --- */

/* Returns the bytes that step t reads and takes by itself; no plan takes less there. */
size_t inv_pb_step_bytes(const inv_problem *p, uint32_t t);

/* Finds a lower bound: no plan within `budget` bytes costs less than *bound on top of the steps. INV_E_NOMEM. */
inv_status inv_plan_bound(inv_arena *a, const inv_problem *p, size_t budget, double *bound);

#endif
