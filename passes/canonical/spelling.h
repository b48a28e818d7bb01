/* SPDX-License-Identifier: Apache-2.0
 * Private to spellings: rows as they are compiled, and an attempt to fit one (spelling_match.c) and to say it in other
 * words (spelling.c). */
#ifndef INV_PASSES_CANONICAL_SPELLING_H
#define INV_PASSES_CANONICAL_SPELLING_H

#include "passes/match/pattern.h"

enum { INV_SPELLING_STEPS = 12, INV_SPELLING_NAMES = 24 };

typedef struct inv_spelling_row {
    inv_pattern match, solve;
} inv_spelling_row;

typedef struct inv_speller {
    inv_graph *g;
    inv_arena *rows, *scratch;
    INV_VEC(inv_spelling_row) row;
    inv_uses uses;
    size_t fresh;   /* values from `fresh` on were made by this sweep */
    bool *taken_up; /* per older value: stands for others now, so that `uses` misses some of its readers */
    bool changed;
} inv_speller;

typedef struct inv_attempt {
    const inv_speller *s;
    const inv_spelling_row *row;
    inv_binding value;
    const inv_node *node[INV_SPELLING_STEPS];
    bool swapped[INV_SPELLING_STEPS];
} inv_attempt;

/* Fits the row to the node whose output is bound as that of its last step. */
bool inv_spelling_fits(inv_attempt *a);
/* spelling_attention.c: what stands for the output of a node; INV_NONE: nothing */
inv_status inv_spell_attention(const inv_speller *s, const inv_node *node, inv_id *to);

#endif
