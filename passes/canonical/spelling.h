/* SPDX-License-Identifier: Apache-2.0
 * Private to spellings: rows as they are compiled, and an attempt to fit one (spelling_match.c) and to say it in other
 * words (spelling.c). */
#ifndef INV_PASSES_CANONICAL_SPELLING_H
#define INV_PASSES_CANONICAL_SPELLING_H

#include "passes/match/match.h"

enum { INV_SPELLING_STEPS = 12, INV_SPELLING_NAMES = 16, INV_SPELLING_GIVEN = 8, INV_SPELLING_ARGS = 3 };

/* An operand or an attribute: a number, a name, or `what(arg, ...)`. */
typedef struct inv_term {
    const char *text;
    bool is_number, is_call;
    double number;
    const char *what, *arg[INV_SPELLING_ARGS];
    uint32_t nargs;
} inv_term;

typedef struct inv_spelling_step {
    const inv_op_def *op;
    const inv_stmt *s;
    inv_term *in, *attr; /* attr: of those that are words */
} inv_spelling_step;

typedef struct inv_spelling_row {
    inv_spelling_step *match, *solve;
    uint32_t nmatch, nsolve;
} inv_spelling_row;

typedef struct inv_speller {
    inv_graph *g;
    inv_arena *rows, *scratch;
    inv_spelling_row *row;
    inv_uses uses;
    size_t fresh;   /* values from `fresh` on were made by this sweep */
    bool *taken_up; /* per older value: stands for others now, so that `uses` misses some of its readers */
    bool changed;
} inv_speller;

/* What a name stands for besides values: an attribute of a matched node, or the number of a constant. */
typedef struct inv_given {
    const char *name;
    const inv_attr *attr;
    double number;
    inv_id constant; /* that has this number */
} inv_given;

typedef struct inv_attempt {
    const inv_speller *s;
    const inv_spelling_row *row;
    inv_binding value;
    inv_given given[INV_SPELLING_GIVEN];
    uint32_t ngiven;
    const inv_node *node[INV_SPELLING_STEPS];
    bool swapped[INV_SPELLING_STEPS];
} inv_attempt;

/* Fits the row to the node whose output is bound as that of its last step. */
bool inv_spelling_fits(inv_attempt *a);
/* Attribute k of a step of either text; *out gets its name. false: it has no value here. `ints`: room for lists. */
bool inv_spelling_attr(const inv_attempt *a, const inv_spelling_step *st, uint32_t k, inv_attr *out, int64_t *ints);
/* Whether v is a constant whose entries are all one number: that. */
bool inv_spelling_uniform(const inv_graph *g, inv_id v, double *out);
/* spelling_attention.c: what stands for the output of a node; INV_NONE: nothing */
inv_status inv_spell_attention(const inv_speller *s, const inv_node *node, inv_id *to);
const inv_given *inv_given_find(const inv_attempt *a, const char *name); /* NULL */

#endif
