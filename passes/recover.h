/* SPDX-License-Identifier: Apache-2.0
 * What recovery's parts share: the walk (recover.c) and the search for one derivation (hyperpath.c). */
#ifndef INV_PASSES_RECOVER_H
#define INV_PASSES_RECOVER_H

#include "passes/pass.h"

#define INV_EDGE_KEEP UINT32_MAX /* edge id: the value itself is kept, at the price of its bytes */
enum { INV_FREE = 4 };           /* cost of a few edges without arithmetic */

typedef struct inv_heap_item {
    double cost;
    inv_id v;
} inv_heap_item;
typedef INV_VEC(inv_heap_item) inv_heap;

/* One use of a value as source of an edge of the cone. */
typedef struct inv_cone_link {
    uint32_t edge, next;
} inv_cone_link;

typedef struct inv_cone_edge {
    uint32_t id; /* < nnode: forward node; INV_EDGE_KEEP; else nnode + index of the inverse edge */
    uint32_t open;
    double cost;
    inv_id frees;
} inv_cone_edge;

typedef struct inv_recovery {
    const inv_graph *base;
    const inv_policy *policy;
    inv_plan *plan;
    inv_graph *g;
    inv_arena scratch;
    size_t nvalue, nnode, nedge;
    const inv_edge *edge;
    uint32_t *edge_start, *edge_of; /* inverse edges by the value they free */
    uint32_t *pos;                  /* per forward node */
    bool *forward;                  /* per value: computed in the forward part */
    inv_id *rep;                    /* per forward value: what backward reads for it */
    double *err;                    /* per forward value: estimated relative error of rep */
    double *flops;                  /* per forward node */
    double *steep;                  /* per forward value: what an error of it counts for the gradient's branches */
    /* derivation */
    bool *banned;                   /* per inverse edge: its result would be off by more than is allowed */
    bool *anchor;                   /* per value: rather kept than what is derived from it */
    bool *heeded;                   /* per value: refused by the guard, and what was rebuilt before it marked */
    double *dist;
    uint32_t *stamp, *head, *via, now; /* per value */
    INV_VEC(inv_cone_link) links;
    INV_VEC(inv_cone_edge) cone;
    inv_heap queue;
    uint8_t *state;      /* per value: while listing picks */
    bool doubting;       /* deriving what was to be kept: what that is derived from is not doubted in turn */
    bool *noted;         /* per value: recorded as kept */
    bool *base_of;       /* per value: kept because others are derived from it */
    inv_ids backward;    /* the new backward order */
    inv_ids guard_after; /* what comes behind forward nodes, guards and what edges save: pairs (def node, new node) */
} inv_recovery;

/* The picked values of the cheapest derivation of target, sources first, with r->err of each; none if it costs more
 * than cap or would be off by too much. false: out of memory. */
bool inv_hyperpath(inv_recovery *r, inv_id target, double cap, inv_ids *picks);
/* The edge by which a pick is derived, until the next search. */
uint32_t inv_hyperpath_edge(const inv_recovery *r, inv_id pick);
/* Sets r->err of v, derived by that edge; whether it is small enough. */
bool inv_edge_fits(inv_recovery *r, inv_id v, uint32_t id);
/* What this inverse edge is good for. */
inv_way inv_way_of(const inv_recovery *r, uint32_t edge);
bool inv_at_hand(const inv_recovery *r, inv_id v);
double inv_nbytes(const inv_recovery *r, inv_id v);
double inv_price_of(const inv_recovery *r, inv_id v); /* of keeping v */

#endif
