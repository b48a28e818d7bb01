/* SPDX-License-Identifier: Apache-2.0
 * What a plan comes to, counted plainly from the beginning: the live intervals of values, the bytes at each event, the
 * cost. One pass over the events finds the intervals, a second one sums up their beginnings and ends. Shares nothing
 * with the plan state but the problem's description. */
#ifndef INV_TESTS_PLANNER_REPLAY_H
#define INV_TESTS_PLANNER_REPLAY_H

#include "passes/planner/problem.h"

/* A live interval: the events from the one that gives a value to the last that reads it. */
typedef struct live_interval {
    uint32_t value, remat; /* which gives it; INV_NO_REMAT: forward does */
    uint32_t from, to;     /* events, both included */
    uint32_t nuse;         /* reads */
} live_interval;

typedef struct replay {
    INV_VEC(live_interval) interval;
    uint32_t nevent;
    uint32_t *event_of_step; /* per step: its event */
    size_t *live, *act;      /* per event: bytes of all that is live; of activations and scratch memory */
    uint32_t *kept_until;    /* per value: last step of backward that reads what forward gave; UINT32_MAX: none */
    inv_score score;
} replay;

/* As inv_plan_prune. */
inv_status replay_prune(inv_arena *a, const inv_problem *p, inv_remats *plan);
/* Counts what the plan comes to. One that is not sorted by step is refused, as INV_E_NOMEM. */
inv_status replay_plan(inv_arena *a, const inv_problem *p, const inv_remats *plan, replay *out);

#endif
