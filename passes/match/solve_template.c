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

/* Where a rule is instantiated: what its pattern is bound to, and with that what its statements give. */
typedef struct instance {
    const inv_binding *b;
    const inv_node *node; /* the matched one */
    inv_binding local;
    uint32_t nfreed;
    inv_dtype real; /* of numbers: the type of what is freed */
} instance;

/* Makes the constant that stands among the inputs of a statement, a literal, a number or count(x). INV_NONE: it is a
 * name, or x does not have these axes. */
static inv_id solve_constant(inv_matcher *m, const inv_pattern_stmt *p, const instance *i, uint32_t k)
{
    const inv_data *d = &p->s->in_type[k];
    const inv_term *t = &p->in[k];
    double number = t->number;
    if (d->bytes) {
        const inv_dtype type = inv_dtype_is_float(d->dtype) ? i->real : d->dtype;
        const size_t n = (size_t)inv_shape_nelem(&d->shape);
        void *bytes = inv_arena_alloc(&m->scratch, n * inv_dtype_size(type) + 1);
        if (!bytes || !inv_convert(bytes, type, d->bytes, d->dtype, n)) return INV_NONE;
        return inv_graph_const(m->g, type, &d->shape, bytes);
    }
    const bool there =
        t->is_number || (inv_term_is(t, "count") && (inv_term_count(m->g, &i->local, i->node, t, &number) ||
                                                     inv_term_count(m->g, i->b, i->node, t, &number)));
    return there ? inv_graph_const_real(m->g, i->real, number) : INV_NONE;
}

/* Lists the inputs of a solving statement; *in stays NULL if one of them is not there. */
static inv_status solve_inputs(inv_matcher *m, const inv_pattern_stmt *p, const instance *i, inv_id **in, uint32_t *nin)
{
    const inv_stmt *s = p->s;
    size_t n = 0;
    *in = NULL;
    *nin = 0;
    for (uint32_t k = 0; k < s->nin; k++) {
        const int at = inv_binding_find(&i->local, s->in[k]);
        n += at < 0 ? 1 : i->local.at[at].n;
    }
    inv_id *list = INV_ARENA_NEW(&m->scratch, inv_id, n + 1);
    if (!list) return INV_E_NOMEM;
    for (uint32_t k = 0; k < s->nin; k++) {
        const bool named = !s->in_type[k].bytes && !p->in[k].is_number && !p->in[k].is_call;
        const int at = named ? inv_binding_find(&i->local, s->in[k]) : -1;
        for (uint32_t j = 0; at >= 0 && j < i->local.at[at].n; j++) list[(*nin)++] = i->local.at[at].id[j];
        if (at >= 0) continue;
        list[*nin] = named ? INV_NONE : solve_constant(m, p, i, k);
        if (list[(*nin)++] == INV_NONE) return INV_OK;
    }
    *in = list;
    return INV_OK;
}

/* Emits statements; false: an operator refuses what is asked of it. The freed list has as many values as b says. */
static inv_status emit_statements(inv_matcher *m, const inv_pattern *list, instance *at, inv_id *to, uint32_t *n,
                                  bool *ok)
{
    for (size_t i = 0; i < list->n && *ok; i++) {
        const inv_stmt *s = list->at[i].s;
        inv_attr *attr;
        uint32_t nattr, nin = 0;
        inv_id *in = NULL;
        *ok = solve_attrs(m, &list->at[i], at->b, at->node, &attr, &nattr);
        if (*ok) INV_TRY(solve_inputs(m, &list->at[i], at, &in, &nin));
        bool list_out = s->nout == 1 && inv_is_variadic(s->out[0]);
        uint32_t nout = list_out ? at->nfreed : s->nout;
        const inv_op_def *row = inv_registry_named(m->g->ctx->registry, s);
        inv_id *fresh = INV_ARENA_NEW(&m->scratch, inv_id, nout + 1);
        const bool fine = in && row && inv_op_computes(row) && fresh;
        inv_id made = fine ? inv_emit_op(m->g, row, nout, nin, in, nattr, attr, fresh) : INV_NONE;
        *ok = made != INV_NONE;
        if (!*ok) break;
        to[(*n)++] = made;
        const inv_id *outs = inv_nod(m->g, made)->out;
        if (list_out) (void)inv_binding_set(&at->local, s->out[0], outs, nout);
        else
            for (uint32_t k = 0; k < nout; k++) (void)inv_binding_set(&at->local, s->out[k], &outs[k], 1);
    }
    return INV_OK;
}

inv_status inv_template_emit(inv_matcher *m, const inv_rule *rule, const inv_binding *b, const inv_node *node,
                             inv_template *out)
{
    inv_graph *g = m->g;
    size_t order = g->order.n;
    const char *frees = rule->def->frees;
    const int freed = inv_binding_find(b, frees);
    instance i = {.b = b, .node = node, .local = m->solving, .nfreed = freed < 0 ? 0 : b->at[freed].n, .real = g->real};
    inv_binding *local = &i.local;
    inv_id *list = INV_ARENA_NEW(&g->arena, inv_id, rule->saves.n + rule->solve.n + 1);
    bool ok = freed >= 0;
    *out = (inv_template){.node = list};
    if (!list) return INV_E_NOMEM;
    if (i.nfreed && b->at[freed].id[0] != INV_NONE && inv_dtype_is_float(inv_val(g, b->at[freed].id[0])->dtype))
        i.real = inv_val(g, b->at[freed].id[0])->dtype;
    for (uint32_t k = 0; k < b->n; k++) (void)inv_binding_set(local, b->at[k].name, b->at[k].id, b->at[k].n);
    INV_TRY(emit_statements(m, &rule->saves, &i, list, &out->nnode, &ok));
    out->nsave = out->nnode;
    if (ok) local->at[freed].name = ""; /* the solve text binds this name to what it computes */
    INV_TRY(emit_statements(m, &rule->solve, &i, list, &out->nnode, &ok));
    g->order.n = order;
    /* If an operator refuses what the template asks of it, the rule does not apply here, and nothing has failed. */
    if (g->failed == INV_E_NOMEM) return g->failed;
    g->failed = INV_OK;
    const int at = inv_binding_find(local, frees);
    out->given = *local;
    if (ok && at >= 0) {
        out->result = local->at[at].id;
        out->nresult = local->at[at].n;
    }
    return INV_OK;
}
