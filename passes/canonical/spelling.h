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
/* Of expressions in a value that depends on inputs, for the two below. */
static inline bool inv_spell_is_known(const inv_speller *s, inv_id v) { return v < s->fresh && !s->active[v]; }
static inline bool inv_spell_is_factor(const inv_node *n) { return inv_op_is(n, "Mul") || inv_op_is(n, "Div"); }
/* The node that gives v for one reader only; NULL. */
static inline const inv_node *inv_spell_maker(const inv_speller *s, inv_id v)
{
    const inv_value *val = inv_val(s->g, v);
    if (v >= s->fresh || s->taken_up[v] || val->is_output || val->keep) return NULL;
    return s->uses.start[v + 1] - s->uses.start[v] == 1 ? inv_def_node(s->g, v) : NULL;
}
/* The same of a sum of linear maps of one value (spelling_linear.c). */
inv_status inv_spell_linear_sum(const inv_speller *s, const inv_node *node, inv_id *to);
/* The same of a value less an outer product of it and a row (spelling_outer.c). */
inv_status inv_spell_outer(const inv_speller *s, const inv_node *node, inv_id *to);

#endif
