/* SPDX-License-Identifier: Apache-2.0
 * Brings the graph to a canonical form, in which one meaning has one form, so that rules and gradients are written
 * once: peepholes, and operators that were spelled out in several. */
#ifndef INV_PASSES_CANONICAL_CANONICAL_H
#define INV_PASSES_CANONICAL_CANONICAL_H

#include "core/program/program.h"

/* Makes parameters that are trained ones of type g->small, which is some (small_weights.c). */
inv_status inv_pass_small_weights(inv_graph *g);
/* Applies peepholes to canonical operators until nothing changes (simplify.c). */
inv_status inv_pass_simplify(inv_graph *g);
/* Replaces what is written in several operators by the one that says it, by a table (spelling.c). */
inv_status inv_pass_spelling(inv_graph *g);

/* A sweep of inv_pass_simplify. */
typedef struct inv_simplifier {
    inv_graph *g;
    inv_arena *scratch;
    size_t fresh;    /* values from `fresh` on were made by this sweep */
    inv_uses uses;   /* of values before `fresh`, as the sweep began */
    uint32_t *place; /* of nodes before the sweep: in the order */
    bool moved;      /* this sweep has put another value in the place of the node's first operand */
    bool changed;
} inv_simplifier;
void inv_simplify_replace(inv_simplifier *s, inv_id from, inv_id to);
/* The node's axis; its output must have its input's rank. */
static inline int inv_simplify_axis(const inv_graph *g, const inv_node *n)
{
    int64_t axis = inv_attr_int(n, "axis", 0);
    return (int)(axis < 0 ? axis + inv_val(g, n->in[0])->shape.rank : axis);
}
/* slices.c: put what stands for a SplitSizes, and for a SliceRange or Gather, in its place; *done: something does. */
void inv_simplify_split(inv_simplifier *s, inv_id id, bool *done);
inv_status inv_simplify_piece(inv_simplifier *s, inv_id id, bool *done);
/* slices.c: emits n entries of x along an axis: x, a SliceRange or a Gather of it; INV_NONE: g->failed. */
inv_id inv_simplify_range(inv_graph *g, inv_id x, int axis, int64_t start, int64_t step, int64_t n);
inv_id inv_simplify_entries(inv_graph *g, inv_id x, int axis, const int64_t *entry, int64_t n);
/* Emits what stands for an update in place (ScatterNDN); INV_NONE: nothing does, or g->failed (overwrite.c). */
inv_id inv_simplify_overwrite(inv_graph *g, const inv_node *n, inv_arena *scratch);
/* The same for an Add, Sub, Mul or Div whose operand changes a part of a tensor only. */
inv_id inv_simplify_join(inv_graph *g, const inv_node *n, inv_arena *scratch);
/* Emits what reads a quantized constant packed, in place of n, which reads an Unpack of it: products, gathering, rows.
 * INV_NONE: nothing does, or g->failed (unpack.c). */
inv_id inv_simplify_unpack(inv_graph *g, const inv_node *n);

#endif
