/* SPDX-License-Identifier: Apache-2.0
 * Inverse edges: a rule's solve text where its pattern was found, with what it costs and how much it magnifies errors;
 * and the list of them by the value that they free. */
#include <string.h>

#include "passes/outline.h"
#include "passes/pass.h"

static double template_flops(const inv_graph *g, const inv_id *nodes, uint32_t n)
{
    double sum = 0;
    for (uint32_t i = 0; i < n; i++) sum += inv_node_flops(g, inv_nod(g, nodes[i]));
    return sum;
}

/* Bytes of what the nodes that solve read of those that save. */
static double kept_bytes(const inv_graph *g, const inv_template *t)
{
    double sum = 0;
    for (uint32_t i = t->nsave; i < t->nnode; i++) {
        const inv_node *n = inv_nod(g, t->node[i]);
        for (uint32_t k = 0; k < n->nin; k++) {
            size_t nbytes = 0;
            if (n->in[k] == INV_NONE || !inv_nodes_give(g, t->node, t->nsave, n->in[k])) continue;
            (void)inv_shape_nbytes(&inv_val(g, n->in[k])->shape, inv_val(g, n->in[k])->dtype, &nbytes);
            sum += (double)nbytes;
        }
    }
    return sum;
}

static bool is_read(const inv_graph *g, const inv_id *nodes, uint32_t n, inv_id v)
{
    for (uint32_t i = 0; i < n; i++)
        if (inv_ids_have(inv_nod(g, nodes[i])->in, inv_nod(g, nodes[i])->nin, v)) return true;
    return false;
}

/* Values that the pattern's operators give and the solving nodes read. */
static inv_status find_from(inv_graph *g, const inv_rule *rule, const inv_binding *b, const inv_id *nodes, uint32_t n,
                            inv_volume *v)
{
    inv_ids from = {0};
    for (size_t i = 0; i < rule->match.n; i++) {
        const inv_stmt *s = &rule->match.at[i];
        for (uint32_t k = 0; k < s->nout && strcmp(s->op, "region") != 0; k++) {
            int at = inv_binding_find(b, s->out[k]);
            for (uint32_t j = 0; at >= 0 && j < b->n_ids[at]; j++)
                if (is_read(g, nodes, n, b->id[at][j]) && !inv_vec_push(&g->arena, &from, b->id[at][j]))
                    return INV_E_NOMEM;
        }
    }
    v->from = from.at;
    v->nfrom = (uint32_t)from.n;
    return INV_OK;
}

static inv_status volume_of(inv_graph *g, const inv_rule *rule, const inv_binding *b, const inv_id *nodes, uint32_t n,
                            const inv_volume **out)
{
    inv_volume *v = INV_ARENA_NEW(&g->arena, inv_volume, 1);
    const char *p = rule->def->logdet;
    inv_condition c;
    if (!v) return INV_E_NOMEM;
    *out = v;
    INV_TRY(find_from(g, rule, b, nodes, n, v));
    v->known = p != NULL;
    while (p && v->known && inv__condition_next(&p, INV_IN_LOGDET, &c) > 0) {
        if (strcmp(c.name, "0") == 0) continue;
        inv_volume_term t = {inv__arena_strdup(&g->arena, c.name), c.nargs ? inv_binding_get(b, c.arg[0]) : INV_NONE};
        if (!t.form) return INV_E_NOMEM;
        v->known = v->nterm < INV_MAX_VOLUME && (!c.nargs || t.arg != INV_NONE);
        if (v->known) v->term[v->nterm++] = t;
    }
    return INV_OK;
}

/* Texts of rules may come from anywhere: what they give has to be what it is given for. */
static bool fits(const inv_graph *g, const inv_template *t, const inv_id *freed, uint32_t n)
{
    bool same = t->nresult == n;
    for (uint32_t i = 0; i < n && same; i++) {
        const inv_value *x = inv_val(g, freed[i]), *y = inv_val(g, t->result[i]);
        same = x->dtype == y->dtype && inv_shape_equal(&x->shape, &y->shape);
    }
    return same;
}

inv_status inv_edges_add(inv_matcher *m, const inv_rule *rule, const inv_binding *b, inv_id node, bool *made)
{
    inv_graph *g = m->g;
    inv_node n = *inv_nod(g, node);
    inv_edge e = {.rule = rule->def, .forward = node};
    inv_template t;
    INV_TRY(inv_rule_gain(m, rule, b, &n, &e.gain, &e.bound));
    INV_TRY(inv_template_emit(m, rule, b, &n, &t));
    int freed = inv_binding_find(b, rule->def->frees);
    *made = freed >= 0 && fits(g, &t, b->id[freed], b->n_ids[freed]);
    if (!*made) return INV_OK;
    e.node = t.node;
    e.nnode = t.nnode;
    e.nsave = t.nsave;
    e.flops = template_flops(g, t.node, t.nnode);
    e.kept = kept_bytes(g, &t);
    e.cond = inv_known_cond(m, b);
    INV_TRY(volume_of(g, rule, b, t.node + t.nsave, t.nnode - t.nsave, &e.volume));
    for (uint32_t i = 0; i < t.nresult; i++) {
        e.frees = b->id[freed][i];
        e.result = t.result[i];
        if (m->active[e.frees] && !inv_vec_push(&g->arena, &m->out->edge, e)) return INV_E_NOMEM;
    }
    return INV_OK;
}

inv_status inv_edges_index(inv_matcher *m)
{
    size_t n = m->out->edge.n;
    m->edge_start = INV_ARENA_NEW(&m->scratch, uint32_t, m->nvalue + 2);
    m->edge_of = INV_ARENA_NEW(&m->scratch, uint32_t, n + 1);
    if (!m->edge_start || !m->edge_of) return INV_E_NOMEM;
    uint32_t *start = m->edge_start; /* counted two places on, so that filling moves it to where it belongs */
    for (size_t e = 0; e < n; e++) start[m->out->edge.at[e].frees + 2]++;
    for (size_t v = 2; v <= m->nvalue + 1; v++) start[v] += start[v - 1];
    for (size_t e = 0; e < n; e++) m->edge_of[start[m->out->edge.at[e].frees + 1]++] = (uint32_t)e;
    return INV_OK;
}
