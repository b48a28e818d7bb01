/* SPDX-License-Identifier: Apache-2.0
 * The fixed total order that recovery works against: forward, backward, commit; a Feed stands just before its first
 * reader, so that a target is not held through the whole forward part.
 * requires: nodes in a valid order.  gives: g->forward_end, g->commit_begin. */
#include <string.h>

#include "passes/pass.h"

static inv_status reorder(inv_graph *g, inv_arena *scratch)
{
    inv_ids old = g->order, empty = {0};
    inv_uses uses;
    inv_id *feed_before = INV_ARENA_NEW(scratch, inv_id, old.n + 1);
    if (!feed_before) return INV_E_NOMEM;
    inv_ids sources = {0};
    INV_TRY(inv_graph_uses(g, scratch, &uses));
    for (size_t i = 0; i < old.n; i++) {
        const inv_node *n = inv_nod(g, old.at[i]);
        if (!(n->op->flags & INV_OP_SOURCE)) continue;
        feed_before[sources.n] =
            uses.start[n->out[0]] < uses.start[n->out[0] + 1] ? uses.node[uses.start[n->out[0]]] : INV_NONE;
        if (!inv_vec_push(scratch, &sources, old.at[i])) return INV_E_NOMEM;
    }
    g->order = empty;
    for (size_t i = 0; i < sources.n; i++) /* read by nobody: an output by itself, or unused */
        if (feed_before[i] == INV_NONE && !inv_vec_push(&g->arena, &g->order, sources.at[i])) return INV_E_NOMEM;
    for (int phase = INV_FORWARD; phase <= INV_COMMIT; phase++) {
        if (phase == INV_BACKWARD) g->forward_end = g->order.n;
        if (phase == INV_COMMIT) g->commit_begin = g->order.n;
        for (size_t i = 0; i < old.n; i++) {
            const inv_node *n = inv_nod(g, old.at[i]);
            if (n->phase != phase || n->op->flags & INV_OP_SOURCE) continue;
            for (size_t f = 0; f < sources.n; f++)
                if (feed_before[f] == old.at[i] && !inv_vec_push(&g->arena, &g->order, sources.at[f]))
                    return INV_E_NOMEM;
            if (!inv_vec_push(&g->arena, &g->order, old.at[i])) return INV_E_NOMEM;
        }
    }
    return INV_OK;
}

inv_status inv_pass_order(inv_graph *g)
{
    inv_arena scratch;
    inv__arena_init(&scratch, g->ctx);
    inv_status s = reorder(g, &scratch);
    inv__arena_fini(&scratch);
    return s;
}
