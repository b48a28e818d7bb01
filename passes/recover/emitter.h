/* SPDX-License-Identifier: Apache-2.0
 * A plan of rematerialisations on its way to become nodes (recover.c), and the guards that compare what they give
 * (guards.c). */
#ifndef INV_PASSES_RECOVER_EMITTER_H
#define INV_PASSES_RECOVER_EMITTER_H

#include "passes/recover/recover.h"

typedef struct emitter {
    const inv_recovery *r;
    inv_plan *plan;
    inv_graph *g;
    inv_arena scratch;
    inv_id *rep;       /* per forward value: what backward reads for it ... */
    uint32_t *version; /* ... if this is the newest of its root */
    uint32_t *newest;  /* per number: how often it was rematerialised */
    inv_id *stands;    /* per number: the value of the base graph that was rematerialised last */
    inv_id *local;     /* per value of a template: its copy */
    inv_id *copy;      /* per number: on the host */
    bool *inexact;     /* per number: what was rematerialised last comes from an inverse that rounds */
    uint32_t *checked; /* per number: the newest rematerialisation that a guard has looked at */
    uint32_t *at;      /* per node of forward: where it is in the order */
    uint8_t *noted;    /* per value: choices on record */
    uint8_t *way;      /* per value: the best that inverse rules have for it */
    const char **rule;
    bool for_base;    /* what is read now is read by a rematerialisation */
    inv_ids backward; /* the new backward order */
    inv_ids behind;   /* what comes behind forward nodes, guards and what edges save: pairs (def node, new node) */
} emitter;

/* That node of forward comes behind the one that gives v. */
bool inv_put_behind(emitter *x, inv_id v, inv_id node);
/* Compares v, which recovery has just given back, with what forward had. */
bool inv_guard_rebuilt(emitter *x, inv_id v);
/* Compares what this node of backward, which has just been put there, reads of what is inexact. */
bool inv_guard_reader(emitter *x, inv_id id);

#endif
