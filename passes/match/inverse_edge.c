/* SPDX-License-Identifier: Apache-2.0
 * Makes inverse edges. An edge is one way to get a value back: a rule's solve text, instantiated as nodes outside of
 * the order where the rule's pattern was found. It carries what a planner has to know: what it computes, what forward
 * has to keep for it, how much it magnifies errors, and what it contributes to a log-determinant. An edge is added only
 * if the nodes give values of the type and shape of what they are to free, as texts of rules may come from plugins.
 * requires: a pattern that is bound and whose conditions hold.  gives: inv_matches.edge, and its index by value. Time:
 * nodes of the template times their operands; the index takes the values and edges. */
#include <string.h>

#include "core/program/cost.h"
#include "core/rules/condition.h"
#include "passes/match/match.h"

/* Puts the nodes that lead to no result behind the others, and counts the others: log-determinants may take those. */
static uint32_t part_template(inv_matcher *m, inv_template *t)
{
    inv_graph *g = m->g;
    inv_id *list = INV_ARENA_NEW(&g->arena, inv_id, t->nnode + 1);
    bool *needed = INV_ARENA_NEW(&m->scratch, bool, t->nnode + 1);
    uint32_t n = 0, count = 0;
    if (!list || !needed) return t->nnode; /* the arena has failed, which the pass asks for in the end */
    for (uint32_t i = t->nnode; i-- > 0;) {
        const inv_node *x = inv_nod(g, t->node[i]);
        needed[i] = i < t->nsave;
        for (uint32_t k = 0; k < x->nout && !needed[i]; k++) {
            needed[i] = inv_ids_have(t->result, t->nresult, x->out[k]);
            for (uint32_t j = i + 1; j < t->nnode && !needed[i]; j++)
                needed[i] =
                    needed[j] && inv_ids_have(inv_nod(g, t->node[j])->in, inv_nod(g, t->node[j])->nin, x->out[k]);
        }
        count += needed[i];
    }
    for (int pass = 1; pass >= 0; pass--)
        for (uint32_t i = 0; i < t->nnode; i++)
            if (needed[i] == (pass == 1)) list[n++] = t->node[i];
    t->node = list;
    return count;
}

static double template_flops(const inv_graph *g, const inv_id *nodes, uint32_t n)
{
    double sum = 0;
    for (uint32_t i = 0; i < n; i++) sum += inv_node_flops(g, inv_nod(g, nodes[i]));
    return sum;
}

/* Counts the bytes of results of the saving nodes that the solving nodes read, each as often as it is read. */
static double kept_bytes(const inv_graph *g, const inv_template *t)
{
    double sum = 0;
    for (uint32_t i = t->nsave; i < t->nnode; i++) {
        const inv_node *n = inv_nod(g, t->node[i]);
        for (uint32_t k = 0; k < n->nin; k++) {
            if (n->in[k] == INV_NONE || !inv_nodes_give(g, t->node, t->nsave, n->in[k])) continue;
            sum += (double)inv_value_nbytes(inv_val(g, n->in[k]));
        }
    }
    return sum;
}

static bool is_read_by(const inv_graph *g, const inv_id *nodes, uint32_t n, inv_id v)
{
    for (uint32_t i = 0; i < n; i++)
        if (inv_ids_have(inv_nod(g, nodes[i])->in, inv_nod(g, nodes[i])->nin, v)) return true;
    return false;
}

static int64_t count_elements(const inv_graph *g, const inv_id *list, size_t n)
{
    int64_t sum = 0;
    for (size_t i = 0; i < n; i++) sum += list[i] == INV_NONE ? 0 : inv_shape_nelem(&inv_val(g, list[i])->shape);
    return sum;
}

/* Adds those of the values `out` that the solving nodes read. */
static bool add_read(inv_graph *g, const inv_template *made, const inv_id *out, uint32_t n, inv_ids *to)
{
    bool ok = true;
    for (uint32_t k = 0; k < n && ok; k++)
        if (out[k] != INV_NONE && is_read_by(g, made->node + made->nsave, made->nnode - made->nsave, out[k]))
            ok = inv_vec_push(&g->arena, to, out[k]);
    return ok;
}

/* Finds the results of the pattern's operators that solving starts from. If they have more elements than what is freed,
 * some of them only repeat what the results of the solved node tell, so only the latter are taken: a log-determinant is
 * of a map between equally many elements. */
static inv_status find_from(inv_graph *g, const inv_rule *rule, const inv_binding *b, const inv_node *solved,
                            const inv_template *made, inv_volume *v)
{
    inv_ids from = {0};
    bool ok = true;
    for (size_t i = 0; i < rule->match.n && ok; i++) {
        const inv_stmt *s = rule->match.at[i].s;
        for (uint32_t k = 0; k < s->nout && ok && strcmp(s->op, "region") != 0; k++) {
            const int at = inv_binding_find(b, s->out[k]);
            ok = at < 0 || add_read(g, made, b->at[at].id, b->at[at].n, &from);
        }
    }
    const int freed = inv_binding_find(b, rule->def->frees);
    if (ok && count_elements(g, from.at, from.n) > count_elements(g, b->at[freed].id, b->at[freed].n)) {
        from.n = 0;
        ok = add_read(g, made, solved->out, solved->nout, &from);
    }
    v->from = from.at;
    v->nfrom = (uint32_t)from.n;
    return ok ? INV_OK : INV_E_NOMEM;
}

static bool pattern_gives(const inv_rule *rule, const char *name)
{
    for (size_t i = 0; i < rule->match.n; i++)
        for (uint32_t k = 0; k < rule->match.at[i].s->nout; k++)
            if (strcmp(rule->match.at[i].s->out[k], name) == 0) return true;
    return false;
}

/* Finds what the pattern takes besides that which is freed: the log-determinant is that of the map with these held. */
static inv_status find_held(inv_graph *g, const inv_rule *rule, const inv_binding *b, inv_volume *v)
{
    const bool tested = inv_registry_favoured(g->ctx->registry) == rule->def;
    inv_ids held = {0};
    INV_VEC(const char *) name = {0};
    for (uint32_t i = 0; i < b->n; i++) {
        if (strcmp(b->at[i].name, rule->def->frees) == 0 || pattern_gives(rule, b->at[i].name)) continue;
        const char *called = tested ? inv_arena_strdup(&g->arena, b->at[i].name) : NULL;
        for (uint32_t j = 0; j < b->at[i].n; j++) {
            if (b->at[i].id[j] == INV_NONE) continue;
            if (!inv_vec_push(&g->arena, &held, b->at[i].id[j])) return INV_E_NOMEM;
            if (tested && (!called || !inv_vec_push(&g->arena, &name, called))) return INV_E_NOMEM;
        }
    }
    v->held = held.at;
    v->held_name = name.at;
    v->nheld = (uint32_t)held.n;
    return INV_OK;
}

static inv_status volume_of(inv_graph *g, const inv_rule *rule, const inv_binding *b, const inv_node *solved,
                            const inv_template *made, uint32_t nmore, const inv_volume **out)
{
    inv_volume *v = INV_ARENA_NEW(&g->arena, inv_volume, 1);
    const char *p = rule->def->logdet;
    inv_condition c;
    if (!v) return INV_E_NOMEM;
    *out = v;
    INV_TRY(find_from(g, rule, b, solved, made, v));
    INV_TRY(find_held(g, rule, b, v));
    v->known = p != NULL;
    v->nmore = nmore;
    size_t most = 0;
    for (const char *q = p; q && *q; q++) most += *q == ';';
    v->term = INV_ARENA_NEW(&g->arena, inv_volume_term, most + 1);
    if (!v->term) return INV_E_NOMEM;
    while (p && v->known && inv_condition_next(&p, INV_IN_LOGDET, &c) > 0) {
        if (strcmp(c.name, "0") == 0) continue;
        inv_volume_term t = {c.name, INV_NONE, INV_NONE};
        if (c.nargs > 0) t.arg = inv_binding_get(b, c.arg[0]);
        if (c.nargs > 0 && t.arg == INV_NONE) t.arg = inv_binding_get(&made->given, c.arg[0]);
        if (c.nargs > 1) t.times = inv_binding_get(b, c.arg[1]);
        v->known = (c.nargs < 1 || t.arg != INV_NONE) && (c.nargs < 2 || t.times != INV_NONE);
        if (v->known) v->term[v->nterm++] = t;
    }
    return INV_OK;
}

/* Finds the variance that `gain` names, if it is known in a run only: a value of the pattern, or one that forward
 * saves. */
static inv_id spread_of(const inv_matcher *m, const inv_rule *rule, const inv_binding *b, const inv_template *made)
{
    const char *p = rule->def->gain;
    inv_condition c;
    if (!p || inv_condition_next(&p, INV_IN_GAIN, &c) <= 0 || c.id != INV_GAIN_max_inv || c.nargs < 2) return INV_NONE;
    for (uint32_t i = 0; i < made->nsave; i++)
        for (uint32_t k = 0; k < rule->saves.at[i].s->nout; k++)
            if (strcmp(rule->saves.at[i].s->out[k], c.arg[1]) == 0) return inv_nod(m->g, made->node[i])->out[k];
    const inv_id var = inv_binding_get(b, c.arg[1]);
    return var != INV_NONE && m->active[var] ? var : INV_NONE;
}

static const char remedy[] = "give the operands of the rule one shape; an operand that is broadcast can be expanded "
                             "before";

/* Checks that each result has the type and shape of the value that it stands for; if not, *why has both. */
static inv_status gives_what_is_freed(inv_graph *g, const inv_template *t, const inv_id *freed, uint32_t n, bool *fine,
                                      inv_why *why)
{
    *fine = t->nresult == n;
    *why = (inv_why){.reason = "its solve text cannot be applied here"};
    for (uint32_t i = 0; i < n && *fine; i++) {
        const inv_value *x = inv_val(g, freed[i]), *y = inv_val(g, t->result[i]);
        char want[INV_SHAPE_TEXT], got[INV_SHAPE_TEXT];
        *fine = x->dtype == y->dtype && inv_shape_equal(&x->shape, &y->shape);
        if (*fine) continue;
        inv_shape_text(&x->shape, want);
        inv_shape_text(&y->shape, got);
        why->seen = inv_arena_printf(&g->arena, "'%s' is %s%s", x->name, inv_dtype_name(x->dtype), want);
        why->reason = inv_arena_printf(&g->arena, "its solve text gives %s%s for '%s', which is %s%s",
                                       inv_dtype_name(y->dtype), got, x->name, inv_dtype_name(x->dtype), want);
        why->remedy = x->dtype == y->dtype ? remedy : NULL;
        if (!why->seen || !why->reason) return INV_E_NOMEM;
    }
    return INV_OK;
}

inv_status inv_edges_add(inv_matcher *m, const inv_rule *rule, const inv_binding *b, inv_id node, bool *made,
                         inv_why *why)
{
    inv_graph *g = m->g;
    inv_node n = *inv_nod(g, node);
    inv_edge e = {.rule = rule->def, .forward = node, .plugin = rule->plugin, .exact = rule->exact};
    inv_template t;
    INV_TRY(inv_rule_gain(m, rule, b, &n, &e.gain, &e.bound));
    INV_TRY(inv_template_emit(m, rule, b, &n, &t));
    int freed = inv_binding_find(b, rule->def->frees);
    INV_TRY(gives_what_is_freed(g, &t, freed < 0 ? NULL : b->at[freed].id, freed < 0 ? 1 : b->at[freed].n, made, why));
    if (!*made) return INV_OK;
    const uint32_t all = t.nnode;
    t.nnode = part_template(m, &t);
    e.node = t.node;
    e.nnode = t.nnode;
    e.nsave = t.nsave;
    e.flops = template_flops(g, t.node, t.nnode);
    e.kept = kept_bytes(g, &t);
    e.cond = inv_known_cond(m, b);
    e.spread = spread_of(m, rule, b, &t);
    INV_TRY(volume_of(g, rule, b, &n, &t, all - t.nnode, &e.volume));
    for (uint32_t i = 0; i < t.nresult; i++) {
        e.frees = b->at[freed].id[i];
        e.result = t.result[i];
        if (m->active[e.frees] && !inv_vec_push(&g->arena, &m->out->edge, e)) return INV_E_NOMEM;
    }
    return INV_OK;
}

void inv_edges_prefer(inv_matches *out, const inv_inverse_def *rule)
{
    size_t n = 0;
    for (size_t i = 0; i < out->edge.n; i++) {
        bool own = out->edge.at[i].rule == rule, outdone = false;
        for (size_t k = 0; k < out->edge.n && !own && !outdone; k++)
            outdone = out->edge.at[k].rule == rule && out->edge.at[k].frees == out->edge.at[i].frees;
        if (!outdone) out->edge.at[n++] = out->edge.at[i];
    }
    out->edge.n = n;
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
