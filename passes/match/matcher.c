/* SPDX-License-Identifier: Apache-2.0
 * What matching works on: of every value whether it depends on inputs, and how high its expression is; the rules,
 * compiled; work space of the searches; what statements of a pattern say of one node.
 * requires: canonical forward graph.  gives: inv_matcher. */
#include <string.h>

#include "passes/match/match.h"

/* Both are of the chain that one of the file's nodes became, as a Sum does. */
static bool same_chain(const inv_node *a, const inv_node *b)
{
    return a->op == b->op && a->source == b->source && a->norigin && b->norigin &&
           strcmp(a->origin[0], b->origin[0]) == 0;
}

/* Notes which nodes give no more than a part of what one of the file's nodes gives, some of it being there already. */
static bool find_partial(inv_matcher *m)
{
    enum { MOST_LINKS = 16 };
    const inv_graph *g = m->g;
    uint32_t *links = INV_ARENA_NEW(&m->scratch, uint32_t, g->node.n + 1); /* of its chain, in front of it */
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
    m->partial = INV_ARENA_NEW(&m->scratch, bool, nn);
    m->seen = INV_ARENA_NEW(&m->scratch, uint32_t, nv);
    m->visited = INV_ARENA_NEW(&m->scratch, uint32_t, nv);
    m->in_region = INV_ARENA_NEW(&m->scratch, uint32_t, nn);
    m->height = INV_ARENA_NEW(&m->scratch, uint32_t, nv);
    m->known = INV_ARENA_NEW(&m->scratch, inv_known, nv);
    m->out = INV_ARENA_NEW(&g->arena, inv_matches, 1);
    if (!m->pos || !m->active || !m->front || !m->stack || !m->inside || !m->paired || !m->told || !m->partial ||
        !m->seen || !m->visited || !m->in_region || !m->height || !m->known || !m->out || !find_partial(m))
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
    inv__arena_fini(&m->entries);
    inv__arena_fini(&m->scratch);
}

/* --- statements and nodes --- */

static bool op_matches(const char *alternatives, const char *name)
{
    size_t n = strlen(name);
    for (const char *p = alternatives; p; p = strchr(p, '|'), p = p ? p + 1 : NULL)
        if (strncmp(p, name, n) == 0 && (p[n] == '|' || p[n] == 0)) return true;
    return false;
}

/* Binds a name of the pattern, `param(W)` included, to a value. */
static bool bind_name(inv_matcher *m, inv_binding *b, const char *name, const inv_id *id)
{
    if (strncmp(name, "param(", 6) == 0) {
        if (*id == INV_NONE || m->active[*id]) return false;
        size_t n = strlen(name) - 7;
        char *inner = inv__arena_strndup(&m->scratch, name + 6, n);
        return inner && inv_binding_set(b, inner, id, 1);
    }
    return *id != INV_NONE && inv_binding_set(b, name, id, 1);
}

static bool bind_list(inv_matcher *m, inv_binding *b, const char *const *names, uint32_t n, const inv_id *ids,
                      uint32_t nids)
{
    if (n == 1 && inv_is_variadic(names[0])) return inv_binding_set(b, names[0], ids, nids);
    uint32_t present = nids;
    while (present > 0 && ids[present - 1] == INV_NONE) present--;
    if (n != present) return false;
    for (uint32_t i = 0; i < n; i++)
        if (!bind_name(m, b, names[i], &ids[i])) return false;
    return true;
}

/* Without a domain a pattern speaks of canonical operators, not of somebody else's of that name. */
static bool of_domain(const inv_stmt *s, const inv_node *n)
{
    const char *d = n->op->domain;
    return *s->domain ? strcmp(d, s->domain) == 0 : !*d || strcmp(d, "ai.invonnx.ir") == 0;
}

bool inv_pattern_names(const inv_stmt *s, const inv_node *n)
{
    return op_matches(s->op, n->op->name) && of_domain(s, n);
}

bool inv_pattern_bind(inv_matcher *m, const inv_stmt *s, const inv_node *n, bool swap, inv_binding *b)
{
    if (!inv_pattern_names(s, n)) return false;
    const inv_id *in = n->in;
    if (swap) {
        if (!(n->op->flags & INV_OP_COMMUTATIVE) || n->nin < 2) return false;
        inv_id *turned = INV_ARENA_NEW(&m->scratch, inv_id, n->nin);
        if (!turned) return false;
        memcpy(turned, n->in, n->nin * sizeof *turned);
        turned[0] = n->in[1];
        turned[1] = n->in[0];
        in = turned;
    }
    return bind_list(m, b, (const char *const *)s->out, s->nout, n->out, n->nout) &&
           bind_list(m, b, (const char *const *)s->in, s->nin, in, n->nin);
}
