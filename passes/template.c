/* SPDX-License-Identifier: Apache-2.0
 * The nodes that compute a freed value back, from a rule's solve text, at one matched node. */
#include <string.h>

#include "passes/pass.h"

bool inv_is_variadic(const char *name)
{
    size_t n = strlen(name);
    return n > 3 && strcmp(name + n - 3, "...") == 0;
}

static bool invert_perm(const int64_t *p, size_t n, int64_t *out)
{
    for (size_t i = 0; i < n; i++) {
        if (p[i] < 0 || (size_t)p[i] >= n) return false;
        out[p[i]] = (int64_t)i;
    }
    return true;
}

/* Attributes of a solving node: copies, `sizes(xs)`, `invert(perm)`, `shape(x)`, `matrix(W)`, `ones(starts)`. */
static bool solve_attrs(inv_matcher *m, const inv_stmt *s, const inv_binding *b, const inv_node *node, inv_attr *out,
                        uint32_t *n)
{
    inv_graph *g = m->g;
    *n = 0;
    for (uint32_t i = 0; i < s->nattr; i++) {
        inv_attr a = s->attr[i];
        if (strcmp(a.name, "*") == 0) {
            for (uint32_t k = 0; k < node->nattr && *n < 16; k++) out[(*n)++] = node->attr[k];
            continue;
        }
        if (a.kind == INV_ATTR_OTHER) {
            const char *open = strchr(a.s, '(');
            char *arg = open ? inv__arena_strndup(&g->arena, open + 1, strlen(open) - 2) : NULL;
            const inv_attr *from = inv_rule_attr(g, b, node, open ? arg : a.s);
            if (!open) {
                if (!from) return false;
                const char *name = a.name;
                a = *from;
                a.name = name;
            } else if (!arg) {
                return false;
            } else if (strncmp(a.s, "invert(", 7) == 0) {
                int64_t *p = from ? INV_ARENA_NEW(&g->arena, int64_t, from->n + 1) : NULL;
                if (!p || !invert_perm(from->ints, from->n, p)) return false;
                a = inv_attr_of_ints(a.name, from->n, p);
            } else if (strncmp(a.s, "ones(", 5) == 0) {
                int64_t *ones = from ? INV_ARENA_NEW(&g->arena, int64_t, from->n + 1) : NULL;
                if (!ones) return false;
                for (size_t k = 0; k < from->n; k++) ones[k] = 1;
                a = inv_attr_of_ints(a.name, from->n, ones);
            } else if (strncmp(a.s, "matrix(", 7) == 0) {
                inv_id w = inv_binding_get(b, arg);
                int64_t *dims = w == INV_NONE ? NULL : INV_ARENA_NEW(&g->arena, int64_t, 2);
                if (!dims || inv_val(g, w)->shape.rank < 1) return false;
                dims[0] = inv_val(g, w)->shape.dim[0];
                dims[1] = inv_shape_nelem(&inv_val(g, w)->shape) / (dims[0] ? dims[0] : 1);
                a = inv_attr_of_ints(a.name, 2, dims);
            } else if (strncmp(a.s, "shape(", 6) == 0) {
                inv_id x = inv_binding_get(b, arg);
                if (x == INV_NONE) return false;
                inv_shape *shape = INV_ARENA_NEW(&g->arena, inv_shape, 1);
                if (!shape) return false;
                *shape = inv_val(g, x)->shape;
                a = inv_attr_of_ints(a.name, (size_t)shape->rank, shape->dim);
            } else if (strncmp(a.s, "sizes(", 6) == 0) {
                char *list = inv__arena_printf(&g->arena, "%s...", arg);
                int at = list ? inv_binding_find(b, list) : -1;
                int64_t axis = inv_attr_int(node, "axis", 0);
                if (at < 0) return false;
                int64_t *sizes = INV_ARENA_NEW(&g->arena, int64_t, b->n_ids[at] + 1);
                if (!sizes) return false;
                for (uint32_t k = 0; k < b->n_ids[at]; k++) {
                    const inv_shape *shape = &inv_val(g, b->id[at][k])->shape;
                    sizes[k] = shape->dim[axis < 0 ? axis + shape->rank : axis];
                }
                a = inv_attr_of_ints(a.name, b->n_ids[at], sizes);
            } else {
                return false;
            }
        }
        if (*n < 16) out[(*n)++] = a;
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

inv_status inv_template_emit(inv_matcher *m, const inv_rule *rule, const inv_binding *b, const inv_node *node,
                             const inv_id **nodes, uint32_t *nnodes, const inv_id **result, uint32_t *nresult)
{
    inv_graph *g = m->g;
    inv_binding local = *b;
    size_t order = g->order.n;
    int freed = inv_binding_find(&local, rule->def->frees);
    if (freed >= 0) local.name[freed] = ""; /* solve defines it anew */
    inv_id *list = INV_ARENA_NEW(&g->arena, inv_id, rule->solve.n + 1);
    if (!list) return INV_E_NOMEM;
    inv_status st = INV_OK;
    bool ok = true;
    *nnodes = 0;
    *nresult = 0;
    for (size_t i = 0; i < rule->solve.n && ok; i++) {
        const inv_stmt *s = &rule->solve.at[i];
        inv_attr attr[16];
        uint32_t nattr, nin = 0;
        inv_id *in = NULL;
        ok = solve_attrs(m, s, b, node, attr, &nattr);
        if (ok) INV_TRY(solve_inputs(m, s, &local, &in, &nin));
        bool list_out = s->nout == 1 && inv_is_variadic(s->out[0]);
        uint32_t nout = list_out && freed >= 0 ? b->n_ids[freed] : s->nout;
        const inv_op_def *row = inv_registry_named(g->ctx->registry, s);
        inv_id *fresh = INV_ARENA_NEW(&m->scratch, inv_id, nout + 1);
        inv_id made = in && row && fresh ? inv_emit_op(g, row, nout, nin, in, nattr, attr, fresh) : INV_NONE;
        ok = made != INV_NONE;
        if (!ok) break;
        list[(*nnodes)++] = made;
        const inv_id *outs = inv_nod(g, made)->out;
        if (list_out) (void)inv_binding_set(&local, s->out[0], outs, nout);
        else
            for (uint32_t k = 0; k < nout; k++) (void)inv_binding_set(&local, s->out[k], &outs[k], 1);
    }
    g->order.n = order;
    /* An operator that refuses what the template asks of it is a rule that does not apply. */
    if (g->failed == INV_E_NOMEM) st = g->failed;
    else g->failed = INV_OK;
    int at = inv_binding_find(&local, rule->def->frees);
    if (st == INV_OK && ok && at >= 0) {
        *result = local.id[at];
        *nresult = local.n_ids[at];
    }
    *nodes = list;
    return st;
}
