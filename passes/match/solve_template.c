/* SPDX-License-Identifier: Apache-2.0
 * Instantiates a rule's solve text at a matched node: emits the nodes that compute the freed value back, and those that
 * forward computes for them (`saves`). They are a template outside of the order; recovery copies it where it is used.
 * Texts may come from plugins: an operator that refuses what is asked of it means that the rule does not apply here.
 * requires: a pattern that is bound.  gives: inv_template. Time: statements times their operands. */
#include <string.h>

#include "passes/match/match.h"

/* Lists the attributes of a solving node: copies of the matched node's (all for "*", or one by one), and what is
 * computed. */
static bool solve_attrs(inv_matcher *m, const inv_pattern_stmt *p, const inv_binding *b, const inv_node *node,
                        inv_attr **list, uint32_t *n)
{
    const inv_stmt *s = p->s;
    uint32_t most = 1;
    for (uint32_t i = 0; i < s->nattr; i++) most += strcmp(s->attr[i].name, "*") == 0 ? node->nattr : 1;
    inv_attr *out = *list = INV_ARENA_NEW(&m->scratch, inv_attr, most);
    *n = 0;
    if (!out) return false; /* m->scratch has failed, which the pass asks for in the end */
    for (uint32_t i = 0; i < s->nattr; i++) {
        if (strcmp(s->attr[i].name, "*") == 0) {
            for (uint32_t k = 0; k < node->nattr; k++) out[(*n)++] = node->attr[k];
        } else if (!inv_pattern_attr(m->g, b, node, p, i, &out[(*n)++])) {
            return false;
        }
    }
    return true;
}

/* Lists the inputs of a solving statement; *in stays NULL if one of their names is not bound. */
static inv_status solve_inputs(inv_matcher *m, const inv_stmt *s, const inv_binding *b, inv_id **in, uint32_t *nin)
{
    size_t n = 0;
    *in = NULL;
    *nin = 0;
    for (uint32_t k = 0; k < s->nin; k++) {
        int at = inv_binding_find(b, s->in[k]);
        if (at < 0) return INV_OK;
        n += b->at[at].n;
    }
    inv_id *list = INV_ARENA_NEW(&m->scratch, inv_id, n + 1);
    if (!list) return INV_E_NOMEM;
    for (uint32_t k = 0; k < s->nin; k++) {
        int at = inv_binding_find(b, s->in[k]);
        for (uint32_t j = 0; j < b->at[at].n; j++) list[(*nin)++] = b->at[at].id[j];
    }
    *in = list;
    return INV_OK;
}

/* Emits statements; false: an operator refuses what is asked of it. The freed list has as many values as b says. */
static inv_status emit_statements(inv_matcher *m, const inv_pattern *list, const inv_binding *b, uint32_t nfreed,
                                  const inv_node *node, inv_binding *local, inv_id *to, uint32_t *n, bool *ok)
{
    for (size_t i = 0; i < list->n && *ok; i++) {
        const inv_stmt *s = list->at[i].s;
        inv_attr *attr;
        uint32_t nattr, nin = 0;
        inv_id *in = NULL;
        *ok = solve_attrs(m, &list->at[i], b, node, &attr, &nattr);
        if (*ok) INV_TRY(solve_inputs(m, s, local, &in, &nin));
        bool list_out = s->nout == 1 && inv_is_variadic(s->out[0]);
        uint32_t nout = list_out ? nfreed : s->nout;
        const inv_op_def *row = inv_registry_named(m->g->ctx->registry, s);
        inv_id *fresh = INV_ARENA_NEW(&m->scratch, inv_id, nout + 1);
        const bool fine = in && row && inv_op_computes(row) && fresh;
        inv_id made = fine ? inv_emit_op(m->g, row, nout, nin, in, nattr, attr, fresh) : INV_NONE;
        *ok = made != INV_NONE;
        if (!*ok) break;
        to[(*n)++] = made;
        const inv_id *outs = inv_nod(m->g, made)->out;
        if (list_out) (void)inv_binding_set(local, s->out[0], outs, nout);
        else
            for (uint32_t k = 0; k < nout; k++) (void)inv_binding_set(local, s->out[k], &outs[k], 1);
    }
    return INV_OK;
}

inv_status inv_template_emit(inv_matcher *m, const inv_rule *rule, const inv_binding *b, const inv_node *node,
                             inv_template *out)
{
    inv_graph *g = m->g;
    inv_binding local = m->solving;
    size_t order = g->order.n;
    const char *frees = rule->def->frees;
    const int freed = inv_binding_find(b, frees);
    const uint32_t nfreed = freed < 0 ? 0 : b->at[freed].n;
    inv_id *list = INV_ARENA_NEW(&g->arena, inv_id, rule->saves.n + rule->solve.n + 1);
    bool ok = freed >= 0;
    *out = (inv_template){.node = list};
    if (!list) return INV_E_NOMEM;
    for (uint32_t i = 0; i < b->n; i++) (void)inv_binding_set(&local, b->at[i].name, b->at[i].id, b->at[i].n);
    INV_TRY(emit_statements(m, &rule->saves, b, nfreed, node, &local, list, &out->nnode, &ok));
    out->nsave = out->nnode;
    if (ok) local.at[freed].name = ""; /* the solve text binds this name to what it computes */
    INV_TRY(emit_statements(m, &rule->solve, b, nfreed, node, &local, list, &out->nnode, &ok));
    g->order.n = order;
    /* If an operator refuses what the template asks of it, the rule does not apply here, and nothing has failed. */
    if (g->failed == INV_E_NOMEM) return g->failed;
    g->failed = INV_OK;
    const int at = inv_binding_find(&local, frees);
    if (ok && at >= 0) {
        out->result = local.at[at].id;
        out->nresult = local.at[at].n;
    }
    return INV_OK;
}
