/* SPDX-License-Identifier: Apache-2.0
 * The recovery problem apart from any graph: values with bytes, steps in a fixed order that read them, and edges by
 * which a value is had from others. Forward is steps [0, forward); every value is there once its step has run, and may
 * be kept for as long as it is worth it. Before each later step edges may be rematerialised, which computes their
 * targets again from what is there then. A plan is the list of rematerialisations; what is kept follows from who reads
 * what. Formulation: directed hypergraph with B-edges; the derivation of one value is a cheapest hyperpath (Knuth
 * 1977). */
#ifndef INV_PASSES_PLANNER_PROBLEM_H
#define INV_PASSES_PLANNER_PROBLEM_H

#include "core/mem.h"

#define INV_NO_REMAT UINT32_MAX
#define INV_NEVER UINT32_MAX

/* In the order of the steps that give them. One that forward never gives stands for a choice: it is read
 * by one step, has no bytes, and an edge without cost from each of the sets of values of which that step reads one. */
typedef struct inv_pb_value {
    size_t nbytes;      /* as the arena counts them; 0: there for nothing */
    uint32_t def;       /* step that gives it; INV_NEVER: none, only edges do */
    uint32_t first, n;  /* edges that give it: ids in problem->edge_of */
    bool pinned;        /* kept whatever it costs, until its last reader; no edge gives it */
    bool no_store;      /* derived, if it can be, whatever it costs */
    bool data;          /* a copy of the caller's: no activation */
    bool splittable;    /* its operands in another arrangement, so that they can be kept in its place */
    bool offload;       /* may go to host memory and come back */
    double sensitivity; /* what an error of it counts for the gradient's branches; INFINITY: must be exact */
} inv_pb_value;

typedef struct inv_pb_edge {
    const uint32_t *source, *target; /* values */
    uint32_t nsource, ntarget;       /* ntarget at most 32 */
    uint32_t overwrites; /* bit i: the first target may take over the bytes of source i, if that is its last reader */
    uint32_t id;         /* the caller's */
    double cost;         /* if all targets are wanted ... */
    double spare;        /* ... and at most by how much less it is if some are not */
    size_t scratch;      /* bytes while it runs */
    size_t side;         /* bytes that are kept from its first target's step on for it */
    bool inverse, moves; /* moves: without arithmetic */
    bool offload;        /* from a copy on the host, which is there whatever becomes of its target: no sources */
    double error_gain, added_error; /* relative error of the target: gain x the sources' worst + own */
} inv_pb_edge;

typedef struct inv_pb_step {
    const uint32_t *read;
    uint32_t nread;
    uint32_t overwrites;       /* bit i: what it writes may take over the bytes of read i */
    size_t at, before;         /* bytes of other things: while it runs; between the step before it and it */
    size_t act_at, act_before; /* of these, activations and scratch memory */
    double cost;
} inv_pb_step;

typedef struct inv_problem {
    inv_pb_value *value;
    inv_pb_edge *edge;
    inv_pb_step *step;
    const uint32_t *edge_of; /* edges by the value that they give */
    uint32_t nvalue, nedge, nstep, forward;
    double cost;                /* of all steps, in the unit of edges' costs */
    double max_drift;           /* largest error allowed of what is rebuilt */
    const bool *guard_rejected; /* per value: the guard has refused its reconstruction; NULL: of none */
} inv_problem;

/* Edge `edge` is rematerialised before step `step`; bit i of `want`: for target i. */
typedef struct inv_remat {
    uint32_t step, edge, want;
} inv_remat;
typedef INV_VEC(inv_remat) inv_remats;

typedef struct inv_score {
    size_t peak, activations; /* most bytes live at once: of all, of activations and scratch memory */
    double cost;              /* of the rematerialisations */
    double inverted;          /* bytes of the values that inverse edges with arithmetic give back */
    uint32_t kept;            /* no_store values that backward reads as forward gave them */
    double excess;            /* bytes over the budget, added up over events (search.c) */
} inv_score;

/* --- greedy.c --- */

typedef struct inv_prices {
    const double *step;         /* per step: of a byte that lives then */
    const uint32_t *warm_start; /* per value: step until which an earlier walk kept it; so far others have it for
                               nothing. NULL: not known */
    bool invert, split_operands, rederive_kept;
} inv_prices;

/* Backward in order: what a step reads is kept from where it was last, or derived by the cheapest hyperpath from what
 * is kept or can be, whichever costs less. INV_E_NOMEM. `work` counts visits. */
inv_status inv_plan_greedy(inv_arena *a, const inv_problem *p, const inv_prices *prices, inv_remats *out, double *work);

/* --- replay.c --- */

/* One live interval of time in which a value is there: from forward, or from a rematerialisation. */
typedef struct inv_live_interval {
    uint32_t value, remat; /* INV_NO_FIRING: from forward */
    uint32_t from, to;     /* events, inclusive */
    uint32_t nuse;
} inv_live_interval;
typedef struct inv_replay {
    INV_VEC(inv_live_interval) interval;
    uint32_t nevent;
    uint32_t *event_of_step; /* per step */
    size_t *live, *act;      /* per event */
    uint32_t *kept_until;    /* per value: last step that reads what forward gave; UINT32_MAX: none of backward */
    inv_score score;
} inv_replay;

/* Takes out rematerialisations that nobody reads. Their order stays. */
inv_status inv_plan_prune(inv_arena *a, const inv_problem *p, inv_remats *plan);
/* The bytes over a step. Every source of a rematerialisation must be there. INV_E_NOMEM. */
inv_status inv_plan_replay(inv_arena *a, const inv_problem *p, const inv_remats *plan, inv_replay *out);

/* --- retain.c --- */

/* Drops rematerialisations whose values can be kept within `budget` bytes (all; or activations alone), dearest per byte
 * first. Stops at `floor` inverted bytes. */
inv_status inv_plan_retain(inv_arena *a, const inv_problem *p, size_t budget, bool activations, double floor,
                           inv_remats *plan);

/* --- prefetch.c --- */

/* Moves rematerialisations from host memory ahead of their readers, within `budget` bytes or what the plan takes
 * anyway. */
inv_status inv_plan_prefetch(inv_arena *a, const inv_problem *p, size_t budget, inv_remats *plan);

/* --- anneal.c --- */

struct inv_goal;
/* The next of equally likely numbers in [0, 1), the same in every run (xorshift64, Marsaglia 2003). */
static inline double inv_chance(uint64_t *dice)
{
    *dice ^= *dice << 13, *dice ^= *dice >> 7, *dice ^= *dice << 17;
    return (double)(*dice >> 11) * 0x1p-53;
}
/* Makes `plan` better for the goal by changes of itself, as far as `effort` visits go; up to four times that while
 * none is within the budget, or where there is none. Inverts at least `floor` bytes. The rematerialisations' `want` is
 * for inv_plan_prune to set. INV_E_NOMEM. */
inv_status inv_plan_anneal(inv_arena *a, const inv_problem *p, const struct inv_goal *goal, double floor, double effort,
                           uint64_t *dice, inv_remats *plan);

/* --- search.c --- */

typedef struct inv_goal {
    size_t budget;    /* bytes that the peak may take, by the least arithmetic; 0: the smallest peak */
    double limit;     /* without a budget: most arithmetic of the rematerialisations, beside those of no_store values */
    double share;     /* without a budget: of the bytes that any trial inverts, what the plan inverts at least */
    double effort;    /* visits that changing the plan may take, after prices; 0: by the problem's size */
    bool invert;      /* by inverses, too */
    bool activations; /* without a budget: activations decide, then all bytes together */
    const inv_remats *start; /* a plan that is known, to do better than; NULL: none */
} inv_goal;
/* The best plan that was found, in `out`; over the budget if none within it was. */
inv_status inv_plan_search(inv_context *ctx, inv_arena *out, const inv_problem *p, const inv_goal *goal,
                           inv_remats *plan, inv_score *score);

/* --- lower_bound.c --- */

/* No plan within `budget` bytes costs less than this on top of the steps. */
inv_status inv_plan_bound(inv_arena *a, const inv_problem *p, size_t budget, double *bound);

#endif
