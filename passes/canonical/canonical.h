/* SPDX-License-Identifier: Apache-2.0
 * Brings the graph to a canonical form, in which one meaning has one form, so that rules and gradients are written
 * once: peepholes, and operators that were spelled out in several. */
#ifndef INV_PASSES_CANONICAL_CANONICAL_H
#define INV_PASSES_CANONICAL_CANONICAL_H

#include "core/program.h"

/* Makes parameters that are trained ones of type g->small, which is some (small_weights.c). */
inv_status inv_pass_small_weights(inv_graph *g);
/* Applies peepholes to canonical operators until nothing changes (simplify.c). */
inv_status inv_pass_simplify(inv_graph *g);
/* Replaces what is written in several operators by the one that says it, by a table (spelling.c). */
inv_status inv_pass_spelling(inv_graph *g);
/* Emits what stands for an update in place (ScatterNDN); INV_NONE: nothing does, or g->failed (overwrite.c). */
inv_id inv_simplify_overwrite(inv_graph *g, const inv_node *n, inv_arena *scratch);
/* Emits what reads a quantized constant packed, in place of n, which reads an Unpack of it: products, gathering, rows.
 * INV_NONE: nothing does, or g->failed (unpack.c). */
inv_id inv_simplify_unpack(inv_graph *g, const inv_node *n);

#endif
