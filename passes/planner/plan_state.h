/* SPDX-License-Identifier: Apache-2.0
 * A plan that is changed in place, for local search (plan_state.c): rematerialisations are inserted and removed one at
 * a time, and bytes, cost and the rest follow for the price of what a change touches. Changes since the last commit can
 * be undone. When memory runs out, ps->a->failed is set, and the state is of no use any more. */
#ifndef INV_PASSES_PLANNER_PLAN_STATE_H
#define INV_PASSES_PLANNER_PLAN_STATE_H

#include "passes/planner/problem.h"

#define INV_NO_EVENT UINT32_MAX

/* A point of the plan's timeline: a step of the problem, which has the step's number, or a rematerialisation before
 * one. */
typedef struct inv_plan_event {
    uint64_t label;              /* compares events: of two, the later has the larger label */
    int64_t live, between;       /* bytes, less those added to its block: live while it runs; between it and the next */
    double err;                  /* estimated error of what a rematerialisation gives (error_estimate.c) */
    uint32_t prev, next;         /* the events before and behind it */
    uint32_t edge, want;         /* of a rematerialisation, as in inv_remat */
    uint32_t inplace;            /* value in place of which it writes; INV_NO_EVENT: none */
    uint32_t place, over_budget; /* index in ps->remat, and in ps->over_budget; INV_NO_EVENT: not there */
    bool active;                 /* a step, or a rematerialisation that somebody reads; others count for nothing */
} inv_plan_event;

/* Some steps and the rematerialisations before them (plan_bytes.c). */
typedef struct inv_plan_block {
    int64_t added; /* bytes that all its events have besides their own */
    int64_t roof;  /* no less than the most of `live` of its events */
} inv_plan_block;

/* One access of a value: it is given or read there. */
typedef struct inv_plan_access {
    uint32_t event;
    uint32_t target; /* which target of the event's edge is given; INV_NO_EVENT: the event reads the value */
} inv_plan_access;

/* A live interval of a value. */
typedef struct inv_plan_interval {
    uint32_t value, from, to, next; /* its first and last event, both included; the value's next interval */
} inv_plan_interval;

/* The accesses of a value, and what follows from them. */
typedef struct inv_plan_value {
    INV_VEC(inv_plan_access) access; /* who gives and who reads it, in order of time */
    uint32_t interval;               /* the first of its live intervals */
    uint32_t inverted;               /* how many rematerialisations by inverses give it */
    bool kept_no_store;              /* it is no_store, but backward reads it as forward gave it */
    bool dirty;                      /* it is in the private list of this name: its accesses have to be read anew */
    bool touched;                    /* it is in the private list of this name: its intervals have to be made anew */
} inv_plan_value;

/* The plan, what it comes to, and where it has its bytes. */
typedef struct inv_plan_state {
    inv_arena *a;
    const inv_problem *p;
    bool activations;       /* only bytes of activations are counted */
    int64_t budget;         /* bytes */
    int64_t excess;         /* bytes over the budget, summed over events */
    double cost, inverted;  /* of the rematerialisations, as in inv_score */
    double work;            /* visits made so far */
    uint32_t kept_no_store; /* as in inv_score */
    inv_plan_event *event;
    uint32_t nevent;       /* length of the array */
    inv_plan_block *block; /* nblock, of 2^block_bits steps each */
    uint32_t nblock, block_bits;
    bool loading; /* bytes of intervals are noted at their ends only: */
    int64_t *end; /* per event: those of intervals that end there; of those that begin, `between` */
    inv_plan_value *value;
    uint32_t *remat, nremat;             /* the events of rematerialisations */
    uint32_t *over_budget, nover;        /* the events where the budget is exceeded */
    INV_VEC(inv_plan_interval) interval; /* free ones have value INV_NO_EVENT */
    INV_VEC(uint32_t) changed;           /* values whose accesses have changed since the last commit */
    struct inv_plan_state_private *priv;
} inv_plan_state;

/* Prepares a state for at most `most` rematerialisations. INV_E_NOMEM. */
inv_status inv_plan_state_init(inv_plan_state *ps, inv_arena *a, const inv_problem *p, bool activations, uint32_t most);
/* Loads a plan, which has to be sorted by step; what nobody reads is taken out of it. There is no budget then.
 * INV_E_NOMEM. */
inv_status inv_plan_state_load(inv_plan_state *ps, const inv_remats *plan);
/* Lists the plan. INV_E_NOMEM. */
inv_status inv_plan_state_list(const inv_plan_state *ps, inv_arena *a, inv_remats *plan);

/* Inserts a rematerialisation before another or before a step of backward. Returns its event; INV_NO_EVENT: no room. */
uint32_t inv_plan_state_insert(inv_plan_state *ps, uint32_t before, uint32_t edge);
void inv_plan_state_remove(inv_plan_state *ps, uint32_t remat);
/* Moves a rematerialisation to behind the last reader that its i-th source had before that was given again; what gives
 * it again may be unread then. False: there is none, and nothing has changed. */
bool inv_plan_state_hoist(inv_plan_state *ps, uint32_t remat, uint32_t i);
void inv_plan_state_undo(inv_plan_state *ps);
/* Makes the changes final, and takes out rematerialisations that nobody reads. */
void inv_plan_state_commit(inv_plan_state *ps);

/* Returns the step that the event is, or before which it is. */
static inline uint32_t inv_plan_state_step(const inv_plan_state *ps, uint32_t event)
{
    return (uint32_t)((ps->event[event].label - 1) >> 32);
}
/* Returns the values that the event reads, *n of them. */
static inline const uint32_t *inv_plan_state_operands(const inv_plan_state *ps, uint32_t event, uint32_t *n)
{
    const inv_pb_step *t = event < ps->p->nstep ? &ps->p->step[event] : NULL;
    const inv_pb_edge *e = t ? NULL : &ps->p->edge[ps->event[event].edge];
    *n = t ? t->nread : e->nsource;
    return t ? t->read : e->source;
}
/* Says whether v is live just before the event. */
bool inv_plan_state_is_live(const inv_plan_state *ps, uint32_t v, uint32_t event);
/* Returns the first event behind this one that reads v; INV_NO_EVENT: there is none. */
uint32_t inv_plan_state_next_reader(const inv_plan_state *ps, uint32_t v, uint32_t event);
/* Returns where in the accesses of v a read by the event stands, or would stand. */
uint32_t inv_plan_state_access_index(const inv_plan_state *ps, uint32_t v, uint32_t event);
/* Counts the steps between the event and the last access of v before it; 0: there is none. */
uint32_t inv_plan_state_steps_since(const inv_plan_state *ps, uint32_t v, uint32_t event);

/* Returns the last step of backward for which v is kept as forward gave it; UINT32_MAX: there is none. */
uint32_t inv_plan_state_kept_until(const inv_plan_state *ps, uint32_t v);

/* --- error_estimate.c --- */

typedef struct inv_error_estimate inv_error_estimate;
/* Follows the errors of this state. INV_E_NOMEM. */
inv_status inv_error_estimate_new(inv_plan_state *ps, inv_error_estimate **out);
/* Computes all errors anew. False: some are too large. */
bool inv_error_estimate_load(inv_error_estimate *x);
/* Computes those anew that changes since the last commit alter. False: some are too large; all are as before then. */
bool inv_error_estimate_update(inv_error_estimate *x);

/* --- descent.c --- */

/* Takes out, or moves ahead, rematerialisations whose values can be retained instead within `budget` bytes, those first
 * that save most per byte. What inverses rebuild stays more than the goal's floor. INV_E_NOMEM. */
inv_status inv_plan_retain(inv_plan_state *ps, inv_error_estimate *errors, inv_arena *scratch, const inv_goal *goal,
                           size_t budget);
/* Lowers the peak of a plan within the goal's limits, until it is `enough`. A plan whose errors are too large already
 * stays as it is. INV_E_NOMEM. */
inv_status inv_plan_squeeze(inv_plan_state *ps, inv_error_estimate *errors, const inv_goal *goal, size_t enough);

/* --- plan_bytes.c --- */

void inv_plan_state_set_budget(inv_plan_state *ps, int64_t budget);
/* Returns the bytes that are live while the event runs. */
int64_t inv_plan_state_live(const inv_plan_state *ps, uint32_t event);
/* Returns the peak or, if it is more than `enough`, some number above that. */
int64_t inv_plan_state_peak(const inv_plan_state *ps, int64_t enough);

/* For plan_state.c: the bits of a block's size in steps; an event that begins or ceases to count; bytes of one event,
 * and of all from one to another, both included; the end of an interval of `by` bytes, moved; the bytes of a new event,
 * those behind `prev`; the sums of what was noted while a plan was loaded. */
uint32_t inv_plan_bytes_block_bits(const inv_problem *p);
void inv_plan_bytes_set_active(inv_plan_state *ps, uint32_t at, bool on);
void inv_plan_bytes_add(inv_plan_state *ps, uint32_t at, int64_t by);
void inv_plan_bytes_add_over(inv_plan_state *ps, uint32_t from, uint32_t to, int64_t by);
void inv_plan_bytes_move_end(inv_plan_state *ps, uint32_t old, uint32_t to, int64_t by);
void inv_plan_bytes_begin(inv_plan_state *ps, uint32_t event, uint32_t prev);
void inv_plan_bytes_sum(inv_plan_state *ps);

#endif
