/* SPDX-License-Identifier: Apache-2.0
 * What recover.c and insert_guards.c share while they make nodes of a plan: rematerialisations, and guards that compare
 * what these give with what forward had. */
#ifndef INV_PASSES_RECOVER_EMITTER_H
#define INV_PASSES_RECOVER_EMITTER_H

#include "passes/recover/recover.h"

/* What is known of a value of the base graph while backward is emitted. */
typedef struct emitted_value {
    inv_id rep;       /* what backward reads in place of it, a value of forward or a view of one, ... */
    uint32_t version; /* ... if that is as new as its root's newest */
    uint32_t root;    /* number of its root, also of a view that backward makes; INV_NO_NUMBER */
    inv_id local;     /* of a value of a template: its copy, within one rematerialisation */
    uint8_t noted;    /* bits of the choices that are recorded */
    uint8_t way;      /* the best inv_way that inverse rules have for it */
    const char *rule; /* the rule of that way; NULL: there is none */
} emitted_value;

/* What is known of a root, by its number. */
typedef struct emitted_root {
    uint32_t newest;  /* how often it has been rematerialised so far */
    uint32_t checked; /* the newest rematerialisation that a guard has compared */
    inv_id stands;    /* the value of the base graph that was rematerialised last */
    inv_id copy;      /* its copy in host memory */
    bool inexact;     /* its newest rematerialisation hangs on an inverse that rounds */
} emitted_root;

/* The graph that is made, whose order is that of backward so far, and what stands for each value of forward at this
 * point. */
typedef struct emitter {
    const inv_recovery *r;
    inv_plan *plan;
    inv_graph *g;
    inv_arena scratch;
    emitted_value *value;
    emitted_root *root;
    uint32_t *at;    /* per node of forward: its position in the order */
    bool for_base;   /* what is read now is read by a rematerialisation */
    bool ahead;      /* guards go in front of backward (check_ahead.c) */
    inv_id over;     /* how many of the guards so far refuse; INV_NONE: there are none, or nobody counts */
    inv_ids *behind; /* per node of forward: what comes behind it, guards and what edges save */
} emitter;

/* A node of backward like n, with these operands, not in any order yet. Its results are new values, but for those that
 * n has not, or that are not among `wanted` (NULL: all). INV_NONE: out of memory. */
inv_id inv_node_again(emitter *x, const inv_node *n, const inv_id *in, const inv_id *wanted, uint32_t nwanted);
/* check_ahead.c: has all guards decide before backward begins, and all updates wait for them. False: out of memory. */
bool inv_check_ahead(emitter *x);
/* Moves the newest node from the end of backward into forward, behind the one that gives v. */
bool inv_put_behind(emitter *x, inv_id v);
/* Guards v, which has just been rematerialised: it is compared with what forward had. */
bool inv_guard_rebuilt(emitter *x, inv_id v);
/* Guards what this node of backward, which has just been emitted, reads of inexact values. */
bool inv_guard_reader(emitter *x, inv_id id);
/* Guards the newest rematerialisation of what v, a view that backward makes, is of. */
bool inv_guard_view(emitter *x, inv_id v);

#endif
