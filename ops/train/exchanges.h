/* SPDX-License-Identifier: Apache-2.0
 * What operators that exchange something with other ranks have in common. A process by itself (step->world NULL) is one
 * rank of one. */
#ifndef INV_OPS_TRAIN_EXCHANGES_H
#define INV_OPS_TRAIN_EXCHANGES_H

#include "core/program/exchange.h"
#include "ops/base/util.h"

#define INV_EXCHANGE_FLAGS (INV_OP_EXCHANGES | INV_OP_RANDOM | INV_OP_NO_GRAD | INV_OP_NO_CLONE | INV_OP_EXPLAINS)

static inline int64_t inv_ranks_of(const inv_node *n) { return inv_attr_int(n, "ranks", 1); }

static inline inv_world *inv_exchange_world(const inv_call *c)
{
    return c->step && inv_world_several(c->step->world) ? c->step->world : NULL;
}

static inline int inv_exchange_rank(const inv_call *c)
{
    const inv_world *w = inv_exchange_world(c);
    return w ? w->rank : 0;
}

/* What a message calls it: exchanges of a step are told apart by what they are for. */
static inline const char *inv_exchange_called(const inv_call *c)
{
    return c->node->name && *c->node->name ? c->node->name : c->node->op_type;
}

static inline inv_status inv_need_ranks(inv_graph *g, const inv_node *n)
{
    if (inv_ranks_of(n) >= 1) return INV_OK;
    return inv_node_fail(g, n, INV_E_GRAPH, "it is for %lld ranks", (long long)inv_ranks_of(n));
}

/* all_reduce.c. Input 0 is a weight per rank; inputs from 1 on are real, of one type. */
inv_status inv_need_bucket(inv_graph *g, const inv_node *n);
/* The column `fold`: as micro-batches of one process are added up (Accumulate), one per rank. */
void inv_fold_ranks(const inv_reduction *r, int size, const unsigned char *parts, unsigned char *out);

#endif
