/* SPDX-License-Identifier: Apache-2.0
 * What the files of spellings share: the compiled rows, and an attempt to fit one to a node (spelling_match.c) and to
 * emit what stands for it (spelling.c). */
#ifndef INV_PASSES_CANONICAL_SPELLING_H
#define INV_PASSES_CANONICAL_SPELLING_H

#include "passes/match/pattern.h"

enum { INV_SPELLING_STEPS = 12, INV_SPELLING_NAMES = 24 };

/* A row of spellings.inc: the pattern, and what stands for its last value. */
typedef struct inv_spelling_row {
    inv_pattern match, solve;
    bool shared;
} inv_spelling_row;

/* The pass over one graph. */
typedef struct inv_speller {
    inv_graph *g;
    inv_arena *rows, *scratch;
    INV_VEC(inv_spelling_row) row;
    inv_uses uses;
    size_t fresh;   /* values from `fresh` on were made by this sweep */
    bool *active;   /* per older value: it depends on inputs */
    bool *taken_up; /* per older value: it stands for others now, so `uses` misses some of its readers */
    bool changed;
} inv_speller;

/* An attempt to fit one row: what its names stand for, and which node each statement is. */
typedef struct inv_attempt {
    const inv_speller *s;
    const inv_spelling_row *row;
    inv_binding value;

    const inv_node *node[INV_SPELLING_STEPS];
    bool swapped[INV_SPELLING_STEPS];
} inv_attempt;

/* Fits the row to the node whose output is bound as that of its last step. */
bool inv_spelling_fits(inv_attempt *a);
/* Finds attention that ends in a node, and emits what stands for its output; *to INV_NONE: it is none
 * (spelling_attention.c). */
inv_status inv_spell_attention(const inv_speller *s, const inv_node *node, inv_id *to);
/* The same of a sum of linear maps of one value (spelling_linear.c). */
inv_status inv_spell_linear_sum(const inv_speller *s, const inv_node *node, inv_id *to);
inv_status inv_spell_outer(const inv_speller *s, const inv_node *node, inv_id *to);

#endif
