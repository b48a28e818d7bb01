/* SPDX-License-Identifier: Apache-2.0
 * A pair of local functions, NAME and NAME_inverse, on the way to a rule: what rules_from_functions.c and pair_gain.c
 * share. */
#ifndef INV_PASSES_FUNCTION_PAIR_H
#define INV_PASSES_FUNCTION_PAIR_H

#include "core/graph/ir.h"

/* How an error of what solving starts from gets to a value: not at all, as it is, through one factor, or otherwise. */
typedef struct inv_error_way {
    enum { INV_ERROR_NONE, INV_ERROR_PLAIN, INV_ERROR_FACTOR, INV_ERROR_OTHER } kind;
    inv_id factor;
    bool divides;
} inv_error_way;

typedef struct inv_pair {
    inv_context *ctx;
    const inv_function *f, *inverse;
    inv_graph *g; /* the example, with both calls, lowered */
    inv_arena a;
    inv_id *formal, *result, *freed; /* values of g: inputs and outputs of NAME, outputs of NAME_inverse */
    const char **freed_name;
    uint32_t nformal, nresult, nfreed;
    bool *active;         /* per value: depends on an input of the graph */
    bool *forward;        /* per value: NAME computes it, or takes it */
    inv_ids match, solve; /* nodes */
    inv_error_way *way;   /* per value: how errors get there */
    bool *divisor;        /* per value that NAME computes or takes: there is no inverse where it is zero */
} inv_pair;

/* How errors get to what solving gives, and what has to be unlike zero: way and divisor (pair_gain.c). */
inv_status inv_pair_ways(inv_pair *p);
/* `gain` of solving for this value. */
inv_status inv_pair_gain(inv_pair *p, inv_id result, const char **gain);

#endif
