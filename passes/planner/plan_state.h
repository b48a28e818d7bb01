/* SPDX-License-Identifier: Apache-2.0
 * A plan that is being changed (plan_state.c): rematerialisations come, go and move one at a time, and what the plan
 * comes to follows at the price of what that touches. What was changed since the last commit can be undone. */
#ifndef INV_PASSES_PLANNER_PLAN_STATE_H
#define INV_PASSES_PLANNER_PLAN_STATE_H

#include "passes/planner/problem.h"

#define INV_NO_SPOT UINT32_MAX

/* A moment of the step: a step of the problem, by its number, or a rematerialisation before one. */
typedef struct inv_spot {
    uint64_t label;       /* grows with time */
    int64_t live, across; /* bytes while it runs; of what is there from it to the next */
    double err;           /* of what a rematerialisation gives (error_estimate.c) */
    uint32_t prev, next;  /* in time */
    uint32_t edge, want;  /* of a rematerialisation */
    uint32_t taken;       /* value whose bytes are taken over there */
    uint32_t place, hot;  /* in draft->rematerialisation; in draft->hot */
    bool counts;          /* a step, or a rematerialisation that somebody reads */
} inv_spot;

typedef struct inv_access {
    uint32_t spot, target; /* target of the spot's edge; INV_NO_SPOT: it reads */
} inv_access;

/* From when to when a value is there. */
typedef struct inv_stay {
    uint32_t value, from, to, next; /* spots, both included; the value's next one */
} inv_stay;

typedef struct inv_draft_value {
    INV_VEC(inv_access) access; /* in order of time */
    uint32_t stay;              /* its first */
    uint32_t inverted;          /* rematerialisations of inverses that give it */
    bool kept;                  /* shunned, and there for backward */
    bool dirty, touched;
} inv_draft_value;

typedef struct inv_draft {
    inv_arena *a;
    const inv_problem *p;
    bool activations;            /* these bytes alone count */
    int64_t budget, excess;      /* excess: bytes over the budget, added up over spots */
    double cost, inverted, work; /* work: visits */
    uint32_t kept;               /* shunned values */
    uint32_t *pick;              /* per value: the edge of a choice */
    inv_spot *spot;
    uint32_t nspot; /* room for them */
    inv_draft_value *value;
    uint32_t *remat, nremat, *hot, nhot; /* spots; hot: over the budget */
    INV_VEC(inv_stay) stay;              /* those that are not in use have no value */
    INV_VEC(uint32_t) changed;           /* values that were read or given otherwise since the last commit */
    bool failed;                         /* out of memory: of no use any more */
    struct inv_draft_own *own;
} inv_draft;

/* For at most `most` rematerialisations. INV_E_NOMEM. */
inv_status inv_draft_init(inv_draft *d, inv_arena *a, const inv_problem *p, bool activations, uint32_t most);
/* The plan from scratch, choices among its rematerialisations. */
inv_status inv_draft_load(inv_draft *d, const inv_remats *plan);
/* The plan as it is, choices last before their steps. */
inv_status inv_draft_list(const inv_draft *d, inv_arena *a, inv_remats *plan);
void inv_draft_set_budget(inv_draft *d, int64_t budget);

/* Returns the rematerialisation; INV_NO_SPOT: there is no room. `before`: a rematerialisation, or a step of backward.
 */
uint32_t inv_draft_insert(inv_draft *d, uint32_t before, uint32_t edge);
void inv_draft_remove(inv_draft *d, uint32_t remat);
void inv_draft_pick(inv_draft *d, uint32_t choice, uint32_t edge);
void inv_draft_undo(inv_draft *d);
/* Rematerialisations that nobody reads are taken out. */
void inv_draft_commit(inv_draft *d);

/* Whether v is there just before that spot. */
bool inv_draft_there(const inv_draft *d, uint32_t v, uint32_t spot);
/* Who reads v next behind that spot; INV_NO_SPOT: nobody. */
uint32_t inv_draft_reader(const inv_draft *d, uint32_t v, uint32_t spot);
/* Where the spot reads v, or would. */
uint32_t inv_draft_access(const inv_draft *d, uint32_t v, uint32_t spot);
/* Steps since v was read or given last before that spot. */
uint32_t inv_draft_steps_since(const inv_draft *d, uint32_t v, uint32_t spot);

/* --- error_estimate.c --- */

typedef struct inv_drift inv_drift;
/* INV_E_NOMEM. */
inv_status inv_drift_new(inv_draft *d, inv_drift **out);
/* The errors of all rematerialisations; whether all are small enough. */
bool inv_drift_load(inv_drift *x);
/* Those that changes since the last commit alter. False: too large, and nothing is altered. */
bool inv_drift_follow(inv_drift *x);

#endif
