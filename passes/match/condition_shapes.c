/* SPDX-License-Identifier: Apache-2.0
 * The conditions of inverse rules that shapes, types and attributes decide. */
#include <string.h>

#include "core/condition.h"
#include "passes/match/match.h"

static bool is_op(const inv_node *n, const char *name) { return strcmp(n->op->name, name) == 0; }

static bool is_conv(const inv_node *n) { return is_op(n, "ConvN") || is_op(n, "ConvGradX"); }

bool inv_matrix_of(inv_matcher *m, inv_id w, const inv_node *node, inv_matrix *out)
{
    const inv_value *val = inv_val(m->g, w);
    inv_shape s = val->shape;
    const bool conv = is_conv(node);
    out->groups = conv ? inv_attr_int(node, "group", 1) : 1;
    if (conv && s.rank > 1 && s.dim[0] % out->groups == 0)
        s = inv_shape_of(2, (int64_t[]){s.dim[0] / out->groups, inv_shape_nelem(&s) / (s.dim[0] ? s.dim[0] : 1)});
    if (s.rank != 2) return false;
    out->trans = is_op(node, "ConvN") || (!conv && inv_attr_int(node, "transB", 0) != 0);
    out->in = s.dim[out->trans ? 1 : 0];
    out->out = s.dim[out->trans ? 0 : 1];
    out->block = (inv_data){val->dtype, s, NULL, 0};
    return true;
}

/* What keeps each entry of the larger side of a convolution, x of ConvN, from being in one window and no other; those
 * of the padding are not missed. NULL: nothing. */
static const char *patch_flaw(inv_matcher *m, const inv_node *node, inv_id w, const char **remedy)
{
    const inv_graph *g = m->g;
    *remedy = NULL;
    if (!is_conv(node) || node->in[1] != w) return "it is not the filter of a convolution";
    const bool forward = is_op(node, "ConvN");
    const inv_shape *wide = &inv_val(g, forward ? node->in[0] : node->out[0])->shape, *k = &inv_val(g, w)->shape;
    const inv_shape *deep = &inv_val(g, forward ? node->out[0] : node->in[0])->shape;
    size_t ns, np, nd;
    const int64_t *strides = inv_attr_ints(node, "strides", &ns), *pads = inv_attr_ints(node, "pads", &np),
                  *dilations = inv_attr_ints(node, "dilations", &nd);
    const int sd = wide->rank - 2;
    if (sd < 1 || ns != (size_t)sd || np != 2 * (size_t)sd || nd != (size_t)sd) return "it has no windows in space";
    for (int i = 0; i < sd; i++) {
        const int64_t extent = k->dim[2 + i], rest = wide->dim[2 + i] + pads[i] - deep->dim[2 + i] * extent;
        if (strides[i] != extent || (extent > 1 && dilations[i] != 1))
            return inv__arena_printf(&m->g->arena, "windows of %lld with stride %lld%s %s along axis %d",
                                     (long long)extent, (long long)strides[i], dilations[i] != 1 ? ", dilated," : "",
                                     strides[i] < extent ? "overlap" : "do not stand side by side", 2 + i);
        if (forward && rest > 0) {
            *remedy = "pad or crop '$x' so that windows cover it, or set pads so that they do";
            return inv__arena_printf(&m->g->arena, "windows of %lld do not read the last %lld along axis %d",
                                     (long long)extent, (long long)rest, 2 + i);
        }
        if (!forward && (pads[i] || pads[sd + i])) {
            *remedy = "no pads, which cut parts off what was made";
            return inv__arena_printf(&m->g->arena, "pads cut parts off along axis %d", 2 + i);
        }
    }
    return NULL;
}

static bool is_matrix_side(const char *name)
{
    return strcmp(name, "square") == 0 || strcmp(name, "tall") == 0 || strcmp(name, "wide") == 0;
}

const char *inv_condition_flaw(inv_matcher *m, const inv_condition *c, inv_id v, const inv_node *node,
                               const char **remedy)
{
    inv_matrix x;
    *remedy = NULL;
    if (v == INV_NONE) return NULL;
    if (strcmp(c->name, "patches") == 0) return patch_flaw(m, node, v, remedy);
    if (!is_matrix_side(c->name) || inv_matrix_of(m, v, node, &x)) return NULL;
    *remedy = "one matrix of two axes for all rows";
    return inv__arena_printf(&m->g->arena, "'%s' has %d axes, so it is not one matrix", inv_val(m->g, v)->name,
                             inv_val(m->g, v)->shape.rank);
}

/* s, broadcast against x, has one entry per index of axis 1 and is constant along the others. */
static bool per_channel(const inv_shape *s, const inv_shape *x)
{
    if (x->rank < 2 || s->rank > x->rank || s->rank < x->rank - 1) return false;
    for (int d = x->rank - s->rank; d < x->rank; d++)
        if (s->dim[d - (x->rank - s->rank)] != (d == 1 ? x->dim[1] : 1)) return false;
    return true;
}

/* --- space to depth --- */

/* View, Transpose, View from `from` to `to`: the two values between, and the permutation. */
typedef struct shuffle {
    inv_shape from, apart, turned, to;
    const int64_t *perm;
} shuffle;

static bool shuffle_of(const inv_matcher *m, inv_id from, inv_id to, shuffle *s)
{
    static const char *const ops[] = {"View", "Transpose", "View"};
    inv_shape *const shapes[] = {&s->to, &s->turned, &s->apart};
    inv_id v = to;
    size_t n = 0;
    for (int i = 0; i < 3; i++) {
        inv_id d = v == INV_NONE ? INV_NONE : inv_val(m->g, v)->def;
        if (d == INV_NONE || !is_op(inv_nod(m->g, d), ops[i])) return false;
        if (i == 1) s->perm = inv_attr_ints(inv_nod(m->g, d), "perm", &n);
        *shapes[i] = inv_val(m->g, v)->shape;
        v = inv_nod(m->g, d)->in[0];
    }
    if (v != from || !s->perm || (int)n != s->turned.rank) return false;
    s->from = inv_val(m->g, from)->shape;
    return true;
}

/* `wide` [N, C, H, W], seen as `blocks` [N, C, H', b, W', b], turned by perm to [N, {C, b, b}, H', W'] is `deep`. */
static bool is_space_to_depth(const inv_shape *wide, const inv_shape *blocks, const int64_t *perm,
                              const inv_shape *deep)
{
    int spatial = wide->rank - 2;
    if (spatial < 1 || blocks->rank != 2 + 2 * spatial || deep->rank != wide->rank || perm[0] != 0) return false;
    int64_t factor = 1;
    if (blocks->dim[0] != wide->dim[0] || blocks->dim[1] != wide->dim[1] || deep->dim[0] != wide->dim[0]) return false;
    for (int i = 0; i < spatial; i++) {
        int64_t coarse = blocks->dim[2 + 2 * i], b = blocks->dim[3 + 2 * i];
        if (perm[2 + spatial + i] != 2 + 2 * i || deep->dim[2 + i] != coarse || wide->dim[2 + i] != coarse * b)
            return false;
        factor *= b;
    }
    return factor > 1 && deep->dim[1] == wide->dim[1] * factor;
}

static bool space_to_depth(const inv_matcher *m, inv_id wide, inv_id deep)
{
    shuffle s;
    if (wide == INV_NONE || deep == INV_NONE) return false;
    if (shuffle_of(m, wide, deep, &s)) return is_space_to_depth(&s.from, &s.apart, s.perm, &s.to);
    if (!shuffle_of(m, deep, wide, &s)) return false;
    int64_t back[INV_MAX_RANK];
    for (int i = 0; i < s.turned.rank; i++) back[s.perm[i]] = i;
    return is_space_to_depth(&s.to, &s.turned, back, &s.from);
}

/* --- the list --- */

/* Of some values of a variadic, not of all, the caller gets to know. */
static bool some_leave(const inv_matcher *m, const inv_binding *b, const char *list)
{
    int at = inv_binding_find(b, list);
    uint32_t n = 0;
    for (uint32_t k = 0; at >= 0 && k < b->n_ids[at]; k++) {
        inv_id v = b->id[at][k];
        n += v != INV_NONE && inv_val(m->g, v)->is_output;
    }
    return n > 0 && n < b->n_ids[at];
}

static bool compare(char relation, double x, double bound)
{
    return relation == '<' ? x < bound : relation == '>' ? x > bound : x == bound;
}

/* All numbers of a list have to meet the condition. */
static bool on_attribute(const inv_graph *g, const inv_condition *c, const inv_binding *b, const inv_node *node)
{
    const inv_attr *at = inv_rule_attr(g, b, node, c->arg[0]);
    if (!at) return c->nargs >= 2 && compare(c->relation, c->number, c->bound);
    if (at->kind == INV_ATTR_INT) return compare(c->relation, (double)at->i, c->bound);
    if (at->kind == INV_ATTR_FLOAT) return compare(c->relation, at->f, c->bound);
    if (at->kind != INV_ATTR_INTS) return false;
    for (size_t i = 0; i < at->n; i++)
        if (!compare(c->relation, (double)at->ints[i], c->bound)) return false;
    return true;
}

bool inv_condition_on_shapes(inv_matcher *m, const inv_condition *c, const inv_binding *b, const inv_node *node,
                             bool *known)
{
    inv_id a = inv_binding_get(b, c->arg[0]), z = inv_binding_get(b, c->arg[1]);
    const inv_value *va = a == INV_NONE ? NULL : inv_val(m->g, a), *vz = z == INV_NONE ? NULL : inv_val(m->g, z);
    const char *remedy;
    *known = true;
    if (strcmp(c->name, "same_shape") == 0) return va && vz && inv_shape_equal(&va->shape, &vz->shape);
    if (strcmp(c->name, "same_rank") == 0) return va && vz && va->shape.rank == vz->shape.rank;
    if (strcmp(c->name, "patches") == 0) return va && !patch_flaw(m, node, a, &remedy);
    if (strcmp(c->name, "same_type") == 0) return va && vz && va->dtype == vz->dtype;
    if (strcmp(c->name, "per_channel") == 0) return va && vz && per_channel(&va->shape, &vz->shape);
    if (strcmp(c->name, "has_features") == 0) return va && va->shape.rank > 1;
    if (strcmp(c->name, "space_to_depth") == 0) return space_to_depth(m, a, z);
    if (strcmp(c->name, "some_leave") == 0) return some_leave(m, b, c->arg[0]);
    if (strcmp(c->name, "attr") == 0) return on_attribute(m->g, c, b, node);
    if (strcmp(c->name, "attr_count") == 0)
        return va && va->def != INV_NONE && (double)inv_nod(m->g, va->def)->nattr == c->bound;
    if (is_matrix_side(c->name)) {
        inv_matrix x;
        if (!va || !inv_matrix_of(m, a, node, &x)) return false;
        return c->name[0] == 's' ? x.in == x.out : c->name[0] == 't' ? x.in < x.out : x.in > x.out;
    }
    *known = false;
    return false;
}
