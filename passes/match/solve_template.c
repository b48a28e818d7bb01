/* SPDX-License-Identifier: Apache-2.0
 * The nodes that compute a freed value back, from a rule's solve text, at one matched node. */
#include <string.h>

#include "passes/match/match.h"

bool inv_is_variadic(const char *name)
{
    size_t n = strlen(name);
    return n > 3 && strcmp(name + n - 3, "...") == 0;
}

/* Rules may come from anywhere: an attribute may be absent, of another kind, or say what the values do not have. */
static bool is_list(const inv_attr *a) { return a && a->kind == INV_ATTR_INTS; }

/* 0 to `rank`, which stands for no axis at all; -1: there is none of that number. */
static int axis_of(int64_t axis, int rank)
{
    return axis < -rank || axis > rank ? -1 : (int)(axis < 0 ? axis + rank : axis);
}

/* Each of 0 to n - 1 once. */
static bool invert_perm(const int64_t *p, size_t n, int64_t *out)
{
    for (size_t i = 0; i < n; i++) out[i] = -1;
    for (size_t i = 0; i < n; i++) {
        if (p[i] < 0 || (size_t)p[i] >= n || out[p[i]] >= 0) return false;
        out[p[i]] = (int64_t)i;
    }
    return true;
}

static bool ones_of(inv_graph *g, const char *name, const inv_attr *from, inv_attr *out)
{
    int64_t *list = is_list(from) ? INV_ARENA_NEW(&g->arena, int64_t, from->n + 1) : NULL;
    for (size_t k = 0; list && k < from->n; k++) list[k] = 1;
    if (list) *out = inv_attr_of_ints(name, from->n, list);
    return list != NULL;
}

static bool inverted(inv_graph *g, const char *name, const inv_attr *from, inv_attr *out)
{
    int64_t *p = is_list(from) ? INV_ARENA_NEW(&g->arena, int64_t, from->n + 1) : NULL;
    if (!p || !invert_perm(from->ints, from->n, p)) return false;
    *out = inv_attr_of_ints(name, from->n, p);
    return true;
}

/* Extents along `axis` of each value of the list. */
static bool sizes_of(inv_graph *g, const char *name, const char *arg, const inv_binding *b, int64_t axis, inv_attr *out)
{
    char *list = inv__arena_printf(&g->arena, "%s...", arg);
    int at = list ? inv_binding_find(b, list) : -1;
    int64_t *sizes = at < 0 ? NULL : INV_ARENA_NEW(&g->arena, int64_t, b->n_ids[at] + 1);
    for (uint32_t k = 0; sizes && k < b->n_ids[at]; k++) {
        if (b->id[at][k] == INV_NONE) return false;
        const inv_shape *shape = &inv_val(g, b->id[at][k])->shape;
        const int along = axis_of(axis, shape->rank);
        if (along < 0 || along == shape->rank) return false;
        sizes[k] = shape->dim[along];
    }
    if (sizes) *out = inv_attr_of_ints(name, b->n_ids[at], sizes);
    return sizes != NULL;
}

/* A list that the shape of x gives: its extents, those of a matrix or of one number per channel, or the permutation
 * that exchanges the last two axes. */
static bool by_shape(inv_graph *g, const char *name, const char *what, inv_id x, inv_attr *out)
{
    int64_t *d = x == INV_NONE ? NULL : INV_ARENA_NEW(&g->arena, int64_t, INV_MAX_RANK);
    if (!d) return false;
    const inv_shape s = inv_val(g, x)->shape;
    size_t n = (size_t)s.rank;
    memcpy(d, s.dim, n * sizeof *d);
    if (strcmp(what, "matrix") == 0) {
        if (n < 1) return false;
        d[1] = inv_shape_nelem(&s) / (d[0] ? d[0] : 1);
        n = 2;
    } else if (strcmp(what, "channel") == 0) {
        for (size_t k = 0; k < n; k++) d[k] = k == 1 ? d[k] : 1;
    } else if (strcmp(what, "swap") == 0) {
        if (n < 2) return false;
        for (size_t k = 0; k < n; k++) d[k] = (int64_t)(k + 2 == n ? n - 1 : k + 1 == n ? n - 2 : k);
    } else if (strcmp(what, "shape") != 0) {
        return false;
    }
    *out = inv_attr_of_ints(name, n, d);
    return true;
}

/* x as rows: everything from the node's axis on, or the groups that its channels are in. */
static bool rows_of(inv_graph *g, const char *name, const inv_node *node, inv_id x, inv_attr *out)
{
    int64_t *d = x == INV_NONE ? NULL : INV_ARENA_NEW(&g->arena, int64_t, 3);
    if (!d) return false;
    const inv_shape *s = &inv_val(g, x)->shape;
    const int64_t groups = inv_attr_int(node, "groups", 0);
    const int rows = groups ? 1 : axis_of(inv_attr_int(node, "axis", -1), s->rank);
    if (groups < 0 || groups > inv_shape_nelem(s) || rows < 0 || rows > s->rank) return false;
    d[0] = d[1] = 1;
    for (int i = 0; i < rows; i++) d[1] *= s->dim[i];
    d[1] *= groups ? groups : 1;
    d[2] = d[1] ? inv_shape_nelem(s) / d[1] : 0;
    *out = inv_attr_of_ints(name, 3, d);
    return d[2] > 0;
}

/* An attribute that the solve text computes, `what(arg)`. */
static bool computed(inv_matcher *m, const inv_attr *a, const inv_binding *b, const inv_node *node, inv_attr *out)
{
    inv_graph *g = m->g;
    const char *open = strchr(a->s, '(');
    char *what = inv__arena_strndup(&g->arena, a->s, (size_t)(open - a->s));
    char *arg = inv__arena_strndup(&g->arena, open + 1, strlen(open) - 2);
    if (!what || !arg) return false;
    const inv_attr *from = inv_rule_attr(g, b, node, arg);
    if (strcmp(what, "invert") == 0) return inverted(g, a->name, from, out);
    if (strcmp(what, "ones") == 0) return ones_of(g, a->name, from, out);
    if (strcmp(what, "sizes") == 0) return sizes_of(g, a->name, arg, b, inv_attr_int(node, "axis", 0), out);
    if (strcmp(what, "rows") == 0) return rows_of(g, a->name, node, inv_binding_get(b, arg), out);
    return by_shape(g, a->name, what, inv_binding_get(b, arg), out);
}

/* Attributes of a solving node: copies, all of them or one by one, and what is computed. */
static bool solve_attrs(inv_matcher *m, const inv_stmt *s, const inv_binding *b, const inv_node *node, inv_attr **list,
                        uint32_t *n)
{
    uint32_t most = 1;
    for (uint32_t i = 0; i < s->nattr; i++) most += strcmp(s->attr[i].name, "*") == 0 ? node->nattr : 1;
    inv_attr *out = *list = INV_ARENA_NEW(&m->scratch, inv_attr, most);
    *n = 0;
    if (!out) return false; /* m->scratch has failed, which the pass asks for in the end */
    for (uint32_t i = 0; i < s->nattr; i++) {
        inv_attr a = s->attr[i];
        if (strcmp(a.name, "*") == 0) {
            for (uint32_t k = 0; k < node->nattr; k++) out[(*n)++] = node->attr[k];
            continue;
        }
        if (a.kind == INV_ATTR_OTHER && strchr(a.s, '(')) {
            if (!computed(m, &s->attr[i], b, node, &a)) return false;
        } else if (a.kind == INV_ATTR_OTHER) {
            const inv_attr *from = inv_rule_attr(m->g, b, node, a.s);
            if (!from) return false;
            a = *from;
            a.name = s->attr[i].name;
        }
        out[(*n)++] = a;
    }
    return true;
}

/* Inputs of one solving statement; *in stays NULL if the pattern does not bind them. */
static inv_status solve_inputs(inv_matcher *m, const inv_stmt *s, const inv_binding *b, inv_id **in, uint32_t *nin)
{
    size_t n = 0;
    *in = NULL;
    *nin = 0;
    for (uint32_t k = 0; k < s->nin; k++) {
        int at = inv_binding_find(b, s->in[k]);
        if (at < 0) return INV_OK;
        n += b->n_ids[at];
    }
    inv_id *list = INV_ARENA_NEW(&m->scratch, inv_id, n + 1);
    if (!list) return INV_E_NOMEM;
    for (uint32_t k = 0; k < s->nin; k++) {
        int at = inv_binding_find(b, s->in[k]);
        for (uint32_t j = 0; j < b->n_ids[at]; j++) list[(*nin)++] = b->id[at][j];
    }
    *in = list;
    return INV_OK;
}

/* Emits statements; false: an operator refuses what is asked of it. The freed list has as many values as b says. */
static inv_status emit_all(inv_matcher *m, const inv_stmts *list, const inv_binding *b, uint32_t nfreed,
                           const inv_node *node, inv_binding *local, inv_id *to, uint32_t *n, bool *ok)
{
    for (size_t i = 0; i < list->n && *ok; i++) {
        const inv_stmt *s = &list->at[i];
        inv_attr *attr;
        uint32_t nattr, nin = 0;
        inv_id *in = NULL;
        *ok = solve_attrs(m, s, b, node, &attr, &nattr);
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
    const uint32_t nfreed = freed < 0 ? 0 : b->n_ids[freed];
    inv_id *list = INV_ARENA_NEW(&g->arena, inv_id, rule->saves.n + rule->solve.n + 1);
    bool ok = freed >= 0;
    *out = (inv_template){.node = list};
    if (!list) return INV_E_NOMEM;
    for (uint32_t i = 0; i < b->n; i++) (void)inv_binding_set(&local, b->name[i], b->id[i], b->n_ids[i]);
    INV_TRY(emit_all(m, &rule->saves, b, nfreed, node, &local, list, &out->nnode, &ok));
    out->nsave = out->nnode;
    if (ok) local.name[freed] = ""; /* solve defines it anew */
    INV_TRY(emit_all(m, &rule->solve, b, nfreed, node, &local, list, &out->nnode, &ok));
    g->order.n = order;
    /* An operator that refuses what the template asks of it is a rule that does not apply. */
    if (g->failed == INV_E_NOMEM) return g->failed;
    g->failed = INV_OK;
    const int at = inv_binding_find(&local, frees);
    if (ok && at >= 0) {
        out->result = local.id[at];
        out->nresult = local.n_ids[at];
    }
    return INV_OK;
}
