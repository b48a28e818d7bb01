/* SPDX-License-Identifier: Apache-2.0
 * One meaning, one form: simplifying, and operators that were spelled out in several. */
#ifndef INV_PASSES_CANONICAL_CANONICAL_H
#define INV_PASSES_CANONICAL_CANONICAL_H

#include "core/program.h"

/* simplify.c: peepholes on canonical operators, until nothing changes */
inv_status inv_pass_simplify(inv_graph *g);
/* spelling.c: what is written in several operators as the one that says it, by a table */
inv_status inv_pass_spelling(inv_graph *g);
/* overwrite.c: what stands for an update in place (ScatterNDN); INV_NONE: nothing, or g->failed */
inv_id inv_simplify_overwrite(inv_graph *g, const inv_node *n, inv_arena *scratch);

#endif
