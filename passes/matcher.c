/* SPDX-License-Identifier: Apache-2.0
 * What matching works on: of every value whether it depends on inputs, and how high its expression is; the rules,
 * compiled; work space of the searches.
 * requires: canonical forward graph.  gives: inv_matcher. */
#include "passes/pass.h"

inv_status inv_matcher_init(inv_matcher *m)
{
    inv_graph *g = m->g;
    inv__arena_init(&m->scratch, g->ctx);
    inv__arena_init(&m->entries, g->ctx);
    size_t nv = g->value.n + 1, nn = g->node.n + 1;
    m->nvalue = g->value.n;
    INV_TRY(inv_graph_uses(g, &m->scratch, &m->uses));
    m->pos = INV_ARENA_NEW(&m->scratch, uint32_t, nn);
    m->active = INV_ARENA_NEW(&m->scratch, bool, nv);
    m->front = INV_ARENA_NEW(&m->scratch, inv_id, nv);
    m->stack = INV_ARENA_NEW(&m->scratch, inv_id, nv);
    m->inside = INV_ARENA_NEW(&m->scratch, inv_id, nn);
    m->paired = INV_ARENA_NEW(&m->scratch, bool, nn);
    m->told = INV_ARENA_NEW(&m->scratch, bool, nn);
    m->seen = INV_ARENA_NEW(&m->scratch, uint32_t, nv);
    m->visited = INV_ARENA_NEW(&m->scratch, uint32_t, nv);
    m->in_region = INV_ARENA_NEW(&m->scratch, uint32_t, nn);
    m->height = INV_ARENA_NEW(&m->scratch, uint32_t, nv);
    m->known = INV_ARENA_NEW(&m->scratch, inv_known, nv);
    m->out = INV_ARENA_NEW(&g->arena, inv_matches, 1);
    if (!m->pos || !m->active || !m->front || !m->stack || !m->inside || !m->paired || !m->told || !m->seen ||
        !m->visited || !m->in_region || !m->height || !m->known || !m->out)
        return INV_E_NOMEM;
    for (size_t i = 0; i < g->order.n; i++) {
        const inv_node *n = inv_nod(g, g->order.at[i]);
        m->pos[g->order.at[i]] = (uint32_t)i;
        bool active = n->op->flags & INV_OP_SOURCE;
        for (uint32_t k = 0; k < n->nin; k++) active = active || (n->in[k] != INV_NONE && m->active[n->in[k]]);
        uint32_t height = 0;
        for (uint32_t k = 0; k < n->nin; k++)
            if (n->in[k] != INV_NONE && m->height[n->in[k]] > height) height = m->height[n->in[k]];
        for (uint32_t k = 0; k < n->nout; k++)
            if (n->out[k] != INV_NONE) {
                m->active[n->out[k]] = active;
                m->height[n->out[k]] = height + 1;
            }
    }
    return inv_rules_compile(g->ctx, &g->arena, &m->rule, &m->nrule);
}

void inv_matcher_fini(inv_matcher *m)
{
    inv__arena_fini(&m->entries);
    inv__arena_fini(&m->scratch);
}
