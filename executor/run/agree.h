/* SPDX-License-Identifier: Apache-2.0
 * Sessions that train with those of other processes (agree.c). */
#ifndef INV_EXECUTOR_AGREE_H
#define INV_EXECUTOR_AGREE_H

#include "core/program/exchange.h"
#include "executor/executor.h"

/* What a rank, or all of them, have found in their rows of a step. */
typedef struct inv_verdict {
    double loss, weight; /* the loss is not defined where the weight is 0 */
    double bad;          /* entries of the gradients that are not finite */
    double drift;        /* the largest error of a reconstruction */
    bool refused;        /* a guard refuses the step */
} inv_verdict;

/* agree.c. The ranks that the session trains with; NULL: it trains alone. Then all below does nothing. */
inv_world *inv_ranks_world(const inv_session *s);
/* Before anything is planned: what several ranks do not go with, by name. INV_E_ARG */
inv_status inv_ranks_check(inv_context *ctx, const inv_session_options *o);
/* The rates of the options become those of a machine that these ranks share. */
inv_status inv_ranks_rates(inv_session *s, inv_session_options *o);
/* After planning: graphs, plans and parameters of all ranks are the same. INV_E_RANKS */
inv_status inv_ranks_agree(inv_session *s);
/* Before a batch of so many rows: all ranks are at the same step. Gives s->step its place among all rows, and alone,
 * too. INV_E_RANKS */
inv_status inv_ranks_begin(inv_session *s, int64_t rows);
/* What this rank has found becomes what all have: the loss is their mean, counted as that of micro-batches is. */
inv_status inv_ranks_judge(inv_session *s, inv_verdict *v);
/* s->bad_node becomes that of the first rank that has `found` one, *rank, which is -1 if none has; 0 alone. */
inv_status inv_ranks_share_bad(inv_session *s, bool found, int *rank);
/* The checkpoints from `before` on become those of all ranks, in their order. */
inv_status inv_ranks_join_checkpoints(inv_session *s, size_t before);

#endif
