/* SPDX-License-Identifier: Apache-2.0
 * What the nodes of a plan take in the steps of a run, and the corrections of rates that follow. */
#ifndef INV_EXECUTOR_NODE_TIMES_H
#define INV_EXECUTOR_NODE_TIMES_H

#include "core/cost.h"
#include "core/program.h"

struct inv_ready;
enum { INV_WATCHED_LEAST = 4, INV_WATCHED_MOST = 16 }; /* steps that are timed */

typedef struct inv_watch {
    inv_context *ctx;
    size_t n;                       /* nodes of the plan */
    float *took;                    /* seconds, per step and node; owned */
    double whole[INV_WATCHED_MOST]; /* of all nodes, per step; what other programs took is left out, if known */
    double clock;                   /* what reading it takes */
    int steps;                      /* that are noted */
    bool warm;                      /* a step has been made that is not noted: it loads and touches what is new */
} inv_watch;

/* Begins to watch a plan of n nodes. */
inv_status inv_watch_begin(inv_watch *w, inv_context *ctx, size_t n);
void inv_watch_end(inv_watch *w);
/* After a step: each node's `last`, and the processor time that all of them took; 0: that is not known. @return whether
 * it has seen enough */
bool inv_watch_note(inv_watch *w, const struct inv_ready *node, double busy);
/* Seconds of each node, as if there were no other programs. In the arena; NULL: out of memory. */
double *inv_watch_seconds(const inv_watch *w, inv_arena *a);
/* Corrections of the table's rates by these times of the plan's nodes; without those of single shapes first. */
inv_status inv_watch_corrections(const inv_plan *plan, const double *seconds, const inv_cost_table *t, inv_arena *a,
                                 inv_correction **list, size_t *n);
double inv_clock_busy(void); /* processor time of this thread */
double inv_clock_now(void);  /* seconds, from a point that is nowhere in particular */

#endif
