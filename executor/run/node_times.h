/* SPDX-License-Identifier: Apache-2.0
 * What the nodes of a plan take in the steps of a run, and the corrections of rates that follow. */
#ifndef INV_EXECUTOR_NODE_TIMES_H
#define INV_EXECUTOR_NODE_TIMES_H

#include "core/program/cost.h"
#include "core/program/program.h"
#include "executor/device/clock.h"

struct inv_ready;
enum { INV_WATCHED_LEAST = 4, INV_WATCHED_MOST = 16 }; /* steps that are timed */

/* What a step took, all of it, in seconds. */
typedef struct inv_step_times {
    double whole;            /* from its begin to its end, less what this rank did for the exchange with others */
    double busy;             /* processor time of the thread; 0: that is not all, or not known */
    double under_way, moved; /* of several ranks, as in core/program/exchange.h */
} inv_step_times;

typedef struct inv_watch {
    inv_context *ctx;
    size_t n;                               /* nodes of the plan */
    float *took;                            /* seconds, per step and node; owned */
    inv_step_times whole[INV_WATCHED_MOST]; /* per step; without what reading the clock takes */
    double clock;                           /* which is so much */
    int steps;                              /* that are noted */
    bool shared;
    bool warm; /* a step has been made that is not noted: it loads and touches what is new */
} inv_watch;

/* Begins to watch a plan of n nodes. `shared`: the machine is, with ranks for whom its steps wait; that they wait is
 * part of what a step takes then. */
inv_status inv_watch_begin(inv_watch *w, inv_context *ctx, size_t n, bool shared);
void inv_watch_end(inv_watch *w);
/* After a step, of which each node's `last` is known, too. @return whether it has seen enough */
bool inv_watch_note(inv_watch *w, const struct inv_ready *node, const inv_step_times *took);
/* Seconds of each node, as if there were no other programs, and of the exchange with other ranks. What a step takes
 * beside its nodes is shared out among them. In the arena; NULL: out of memory. */
double *inv_watch_seconds(const inv_watch *w, inv_arena *a, inv_step_times *exchange);
/* Corrections of the table's rates by these times of the plan's nodes; without those of single shapes first. */
inv_status inv_watch_corrections(const inv_plan *plan, const double *seconds, const inv_cost_table *t, inv_arena *a,
                                 inv_correction **list, size_t *n);
double inv_correction_bounded(double by); /* within what is believed */

#endif
