/* SPDX-License-Identifier: Apache-2.0
 * A plan that is being changed (plan_state.c): rematerialisations come, go and move one at a time, and what the plan
 * comes to follows at the price of what that touches. What was changed since the last commit can be undone. */
#ifndef INV_PASSES_PLANNER_PLAN_STATE_H
#define INV_PASSES_PLANNER_PLAN_STATE_H

#include "passes/planner/problem.h"

#define INV_NO_EVENT UINT32_MAX

/* A moment of the step: a step of the problem, by its number, or a rematerialisation before one. */
typedef struct inv_plan_event {
    uint64_t label;              /* grows with time */
    int64_t live, between;       /* bytes while it runs; of what is there from it to the next */
    double err;                  /* of what a rematerialisation gives (error_estimate.c) */
    uint32_t prev, next;         /* in time */
    uint32_t edge, want;         /* of a rematerialisation */
    uint32_t inplace;            /* value whose bytes are taken over there */
    uint32_t place, over_budget; /* in plan state->rematerialisation; in plan state->hot */
    bool active;                 /* a step, or a rematerialisation that somebody reads */
} inv_plan_event;

typedef struct inv_plan_access {
    uint32_t event, target; /* target of the event's edge; INV_NO_SPOT: it reads */
} inv_plan_access;

/* From when to when a value is there. */
typedef struct inv_plan_interval {
    uint32_t value, from, to, next; /* events, both included; the value's next one */
} inv_plan_interval;

typedef struct inv_plan_value {
    INV_VEC(inv_plan_access) access; /* in order of time */
    uint32_t interval;               /* its first */
    uint32_t inverted;               /* rematerialisations of inverses that give it */
    bool kept;                       /* no_store, and there for backward */
    bool dirty, touched;
} inv_plan_value;

typedef struct inv_plan_state {
    inv_arena *a;
    const inv_problem *p;
    bool activations;            /* these bytes alone count */
    int64_t budget, excess;      /* excess: bytes over the budget, added up over events */
    double cost, inverted, work; /* work: visits */
    uint32_t kept;               /* no_store values */
    uint32_t *pick;              /* per value: the edge of a choice */
    inv_plan_event *event;
    uint32_t nevent; /* room for them */
    inv_plan_value *value;
    uint32_t *remat, nremat, *over_budget, nover; /* events; hot: over the budget */
    INV_VEC(inv_plan_interval) interval;          /* those that are not in use have no value */
    INV_VEC(uint32_t) changed;                    /* values that were read or given otherwise since the last commit */
    bool failed;                                  /* out of memory: of no use any more */
    struct inv_plan_state_private *priv;
} inv_plan_state;

/* For at most `most` rematerialisations. INV_E_NOMEM. */
inv_status inv_plan_state_init(inv_plan_state *ps, inv_arena *a, const inv_problem *p, bool activations, uint32_t most);
/* The plan from scratch, choices among its rematerialisations. */
inv_status inv_plan_state_load(inv_plan_state *ps, const inv_remats *plan);
/* The plan as it is, choices last before their steps. */
inv_status inv_plan_state_list(const inv_plan_state *ps, inv_arena *a, inv_remats *plan);
void inv_plan_state_set_budget(inv_plan_state *ps, int64_t budget);

/* Returns the rematerialisation; INV_NO_SPOT: there is no room. `before`: a rematerialisation, or a step of backward.
 */
uint32_t inv_plan_state_insert(inv_plan_state *ps, uint32_t before, uint32_t edge);
void inv_plan_state_remove(inv_plan_state *ps, uint32_t remat);
void inv_plan_state_pick(inv_plan_state *ps, uint32_t choice, uint32_t edge);
void inv_plan_state_undo(inv_plan_state *ps);
/* Rematerialisations that nobody reads are taken out. */
void inv_plan_state_commit(inv_plan_state *ps);

/* Whether v is there just before that event. */
bool inv_plan_state_is_live(const inv_plan_state *ps, uint32_t v, uint32_t event);
/* Who reads v next behind that event; INV_NO_SPOT: nobody. */
uint32_t inv_plan_state_next_reader(const inv_plan_state *ps, uint32_t v, uint32_t event);
/* Where the event reads v, or would. */
uint32_t inv_plan_state_access_index(const inv_plan_state *ps, uint32_t v, uint32_t event);
/* Steps since v was read or given last before that event. */
uint32_t inv_plan_state_steps_since(const inv_plan_state *ps, uint32_t v, uint32_t event);

/* --- error_estimate.c --- */

typedef struct inv_error_estimate inv_error_estimate;
/* INV_E_NOMEM. */
inv_status inv_error_estimate_new(inv_plan_state *ps, inv_error_estimate **out);
/* The errors of all rematerialisations; whether all are small enough. */
bool inv_error_estimate_load(inv_error_estimate *x);
/* Those that changes since the last commit alter. False: too large, and nothing is altered. */
bool inv_error_estimate_update(inv_error_estimate *x);

#endif
