/* SPDX-License-Identifier: Apache-2.0
 * Prepares what matching works on. It finds for each value whether it depends on the model's inputs and how many nodes
 * the longest path to it has, and for each node whether it is a part of a long chain; compiles the rules; and allocates
 * the work space of all searches once, as there is one search for each node and rule. Time and memory grow with nodes
 * and their operands.
 * requires: canonical forward graph.  gives: inv_matcher. */
#include <string.h>

#include "ops/base/packing.h"
#include "passes/match/match.h"

/* Both nodes are links of the chain that one of the file's nodes was lowered to, as a Sum of many is to Adds. */
static bool same_chain(const inv_node *a, const inv_node *b)
{
    return a->op == b->op && a->source == b->source && a->norigin && b->norigin &&
           strcmp(a->origin[0], b->origin[0]) == 0;
}

/* Marks the nodes that give only a part of what one of the file's nodes gives, from the MOST_LINKS-th link of its chain
 * on; shorter sums may be couplings link by link. */
static bool find_partial(inv_matcher *m)
{
    enum { MOST_LINKS = 16 };
    const inv_graph *g = m->g;
    uint32_t *links =
        INV_ARENA_NEW(&m->scratch, uint32_t, g->node.n + 1); /* how many links of its chain are in front of it */
    if (!links) return false;
    for (size_t i = 0; i < g->order.n; i++) {
        const inv_id id = g->order.at[i];
        const inv_node *n = inv_nod(g, id);
        for (uint32_t k = 0; k < n->nin; k++) {
            const inv_id d = n->in[k] == INV_NONE ? INV_NONE : inv_val(g, n->in[k])->def;
            if (d == INV_NONE || !same_chain(inv_nod(g, d), n)) continue;
            m->partial[d] = links[d] >= MOST_LINKS;
            links[id] = links[d] + 1;
        }
    }
    return true;
}

inv_status inv_matcher_init(inv_matcher *m)
{
    inv_graph *g = m->g;
    inv_arena_init(&m->scratch, g->ctx);
    size_t nv = g->value.n + 1, nn = g->node.n + 1;
    m->nvalue = g->value.n;
    INV_TRY(inv_graph_uses(g, &m->scratch, &m->uses));
    m->pos = INV_ARENA_NEW(&m->scratch, uint32_t, nn);
    m->active = INV_ARENA_NEW(&m->scratch, bool, nv);
    m->front = INV_ARENA_NEW(&m->scratch, inv_id, nv);
    m->stack = INV_ARENA_NEW(&m->scratch, inv_id, nv);
    m->region_node = INV_ARENA_NEW(&m->scratch, inv_id, nn);
    m->region_entry = INV_ARENA_NEW(&m->scratch, inv_id, nv);
    m->paired = INV_ARENA_NEW(&m->scratch, bool, nn);
    m->reported = INV_ARENA_NEW(&m->scratch, bool, nn);
    m->partial = INV_ARENA_NEW(&m->scratch, bool, nn);
    m->alone = INV_ARENA_NEW(&m->scratch, inv_id, nv);
    m->vain = INV_ARENA_NEW(&m->scratch, bool, nv);
    m->seen = INV_ARENA_NEW(&m->scratch, uint32_t, nv);
    m->visited = INV_ARENA_NEW(&m->scratch, uint32_t, nv);
    m->in_region = INV_ARENA_NEW(&m->scratch, uint32_t, nn);
    m->stays = INV_ARENA_NEW(&m->scratch, bool, nv);
    m->known = INV_ARENA_NEW(&m->scratch, inv_known, nv);
    m->range = INV_ARENA_NEW(&m->scratch, inv_range, nn);
    m->typical = INV_ARENA_NEW(&m->scratch, inv_range, nn);
    m->out = INV_ARENA_NEW(&g->arena, inv_matches, 1);
    if (!m->pos || !m->active || !m->front || !m->stack || !m->region_node || !m->region_entry || !m->alone ||
        !m->vain || !m->paired || !m->reported || !m->partial || !m->seen || !m->visited || !m->in_region ||
        !m->stays || !m->known || !m->range || !m->typical || !m->out || !find_partial(m))
        return INV_E_NOMEM;
    for (size_t v = 0; v < m->nvalue; v++)
        m->stays[v] = inv_val(g, (inv_id)v)->role != INV_ROLE_NODE && (inv_stays_as_stored(g, (inv_id)v) || !g->train);
    for (size_t i = 0; i < g->order.n; i++) {
        const inv_node *n = inv_nod(g, g->order.at[i]);
        m->pos[g->order.at[i]] = (uint32_t)i;
        bool active = n->op->flags & INV_OP_SOURCE, stays = true;
        for (uint32_t k = 0; k < n->nin; k++) {
            active = active || (n->in[k] != INV_NONE && m->active[n->in[k]]);
            stays = stays && (n->in[k] == INV_NONE || m->stays[n->in[k]]);
        }
        for (uint32_t k = 0; k < n->nout; k++)
            if (n->out[k] != INV_NONE) {
                m->active[n->out[k]] = active;
                m->stays[n->out[k]] = stays && !active;
            }
    }
    inv_rule_sizes most;
    INV_TRY(inv_rules_compile(g->ctx, &g->arena, &m->rule, &m->nrule, &most));
    m->pattern_node = INV_ARENA_NEW(&m->scratch, inv_id, most.stmts + 1);
    m->stmt_done = INV_ARENA_NEW(&m->scratch, bool, most.stmts + 1);
    return m->pattern_node && m->stmt_done && inv_binding_init(&m->pattern, &m->scratch, most.names) &&
                   inv_binding_init(&m->solving, &m->scratch, most.names)
               ? INV_OK
               : INV_E_NOMEM;
}

void inv_matcher_fini(inv_matcher *m)
{
    inv_known_forget(m, 0);
    inv_arena_fini(&m->scratch);
}
