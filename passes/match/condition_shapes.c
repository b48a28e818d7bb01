/* SPDX-License-Identifier: Apache-2.0
 * Judges the conditions of inverse rules that shapes, types and attributes decide: one function for each row of
 * core/rules/condition.inc that does not ask for values. A candidate that fails one of them does not fit the rule
 * (INV_UNFIT). Each takes time in proportion to the ranks of its shapes.
 * requires: the condition's values are bound.  gives: whether it holds, and words for inv_finding. */
#include <string.h>

#include "passes/match/match.h"

static bool is_conv(const inv_node *n) { return inv_op_is(n, "ConvN") || inv_op_is(n, "ConvGradX"); }

bool inv_matrix_of(inv_matcher *m, inv_id w, const inv_node *node, inv_matrix *out)
{
    const inv_value *val = inv_val(m->g, w);
    inv_shape s = val->shape;
    const bool conv = is_conv(node);
    out->groups = conv ? inv_attr_int(node, "group", 1) : 1;
    if (conv && s.rank > 1 && s.dim[0] % out->groups == 0)
        s = inv_shape_of(2, (int64_t[]){s.dim[0] / out->groups, inv_shape_nelem(&s) / (s.dim[0] ? s.dim[0] : 1)});
    if (s.rank != 2) return false;
    out->trans = inv_op_is(node, "ConvN") || (!conv && inv_attr_int(node, "transB", 0) != 0);
    out->in = s.dim[out->trans ? 1 : 0];
    out->out = s.dim[out->trans ? 0 : 1];
    out->block = (inv_data){val->dtype, s, NULL, 0};
    return true;
}

/* Says why an entry of a convolution's spatial side (x of ConvN, the result of ConvGradX), whose extents are the
 * larger ones, may be in no window or in several; entries of the padding do not count. The other side has the channels:
 * a window becomes one place of it. NULL: every entry is in one. */
static const char *patch_flaw(inv_matcher *m, const inv_node *node, inv_id w, const char **remedy)
{
    const inv_graph *g = m->g;
    *remedy = NULL;
    if (!is_conv(node) || node->in[1] != w) return "it is not the filter of a convolution";
    const bool forward = inv_op_is(node, "ConvN");
    const inv_shape *spatial = &inv_val(g, forward ? node->in[0] : node->out[0])->shape, *k = &inv_val(g, w)->shape;
    const inv_shape *channels = &inv_val(g, forward ? node->out[0] : node->in[0])->shape;
    size_t ns, np, nd;
    const int64_t *strides = inv_attr_ints(node, "strides", &ns), *pads = inv_attr_ints(node, "pads", &np),
                  *dilations = inv_attr_ints(node, "dilations", &nd);
    const int sd = spatial->rank - 2;
    if (sd < 1 || ns != (size_t)sd || np != 2 * (size_t)sd || nd != (size_t)sd) return "it has no windows in space";
    for (int i = 0; i < sd; i++) {
        const int64_t extent = k->dim[2 + i], rest = spatial->dim[2 + i] + pads[i] - channels->dim[2 + i] * extent;
        if (strides[i] != extent || (extent > 1 && dilations[i] != 1))
            return inv_arena_printf(&m->g->arena, "windows of %lld with stride %lld%s %s along axis %d",
                                    (long long)extent, (long long)strides[i], dilations[i] != 1 ? ", dilated," : "",
                                    strides[i] < extent ? "overlap" : "do not tile the input", 2 + i);
        if (forward && rest > 0) {
            *remedy = "pad or crop '$x' so that windows cover it, or set pads so that they do";
            return inv_arena_printf(&m->g->arena, "windows of %lld do not read the last %lld along axis %d",
                                    (long long)extent, (long long)rest, 2 + i);
        }
        if (!forward && (pads[i] || pads[sd + i])) {
            *remedy = "no pads, which cut parts off what was made";
            return inv_arena_printf(&m->g->arena, "pads cut parts off along axis %d", 2 + i);
        }
    }
    return NULL;
}

bool inv_shape_per_channel(const inv_shape *s, const inv_shape *x)
{
    if (x->rank < 2 || s->rank > x->rank || s->rank < x->rank - 1) return false;
    for (int d = x->rank - s->rank; d < x->rank; d++)
        if (s->dim[d - (x->rank - s->rank)] != (d == 1 ? x->dim[1] : 1)) return false;
    return true;
}

/* --- space to depth --- */

/* View, Transpose, View from `from` to `to`: the two values between, and the permutation. */
typedef struct shuffle {
    inv_shape from, split, turned, to;
    const int64_t *perm;
} shuffle;

static bool shuffle_of(const inv_matcher *m, inv_id from, inv_id to, shuffle *s)
{
    static const char *const ops[] = {"View", "Transpose", "View"};
    inv_shape *const shapes[] = {&s->to, &s->turned, &s->split};
    inv_id v = to;
    size_t n = 0;
    for (int i = 0; i < 3; i++) {
        inv_id d = v == INV_NONE ? INV_NONE : inv_val(m->g, v)->def;
        if (d == INV_NONE || !inv_op_is(inv_nod(m->g, d), ops[i])) return false;
        if (i == 1) s->perm = inv_attr_ints(inv_nod(m->g, d), "perm", &n);
        *shapes[i] = inv_val(m->g, v)->shape;
        v = inv_nod(m->g, d)->in[0];
    }
    if (v != from || !s->perm || (int)n != s->turned.rank) return false;
    s->from = inv_val(m->g, from)->shape;
    return true;
}

/* `spatial` [N, C, H, W], seen as `blocks` [N, C, H', b, W', b], is turned by perm to [N, {C, b, b}, H', W'], and that
 * seen as [N, C b b, H', W'] is `channels`. */
static bool is_space_to_depth(const inv_shape *spatial, const inv_shape *blocks, const int64_t *perm,
                              const inv_shape *channels)
{
    const int sd = spatial->rank - 2;
    if (sd < 1 || blocks->rank != 2 + 2 * sd || channels->rank != spatial->rank || perm[0] != 0) return false;
    int64_t factor = 1;
    if (blocks->dim[0] != spatial->dim[0] || blocks->dim[1] != spatial->dim[1] || channels->dim[0] != spatial->dim[0])
        return false;
    for (int i = 0; i < sd; i++) {
        int64_t coarse = blocks->dim[2 + 2 * i], b = blocks->dim[3 + 2 * i];
        if (perm[2 + sd + i] != 2 + 2 * i || channels->dim[2 + i] != coarse || spatial->dim[2 + i] != coarse * b)
            return false;
        factor *= b;
    }
    return factor > 1 && channels->dim[1] == spatial->dim[1] * factor;
}

bool inv_judge_space_to_depth(const inv_question *q, inv_finding *f)
{
    shuffle s;
    (void)f;
    if (shuffle_of(q->m, q->v[0], q->v[1], &s)) return is_space_to_depth(&s.from, &s.split, s.perm, &s.to);
    if (!shuffle_of(q->m, q->v[1], q->v[0], &s)) return false;
    int64_t back[INV_MAX_RANK];
    for (int i = 0; i < s.turned.rank; i++) back[s.perm[i]] = i;
    return is_space_to_depth(&s.to, &s.turned, back, &s.from);
}

/* --- attributes --- */

static bool meets(const inv_condition *c, double x)
{
    return c->relation == '<' ? x < c->bound : c->relation == '>' ? x > c->bound : x == c->bound;
}

/* All numbers of a list have to meet the condition. */
static bool attribute_meets(const inv_condition *c, const inv_attr *at)
{
    if (!at) return c->nargs >= 2 && meets(c, c->number);
    if (at->kind == INV_ATTR_INT) return meets(c, (double)at->i);
    if (at->kind == INV_ATTR_FLOAT) return meets(c, at->f);
    if (at->kind != INV_ATTR_INTS) return false;
    for (size_t i = 0; i < at->n; i++)
        if (!meets(c, (double)at->ints[i])) return false;
    return true;
}

static const char *attribute_seen(const inv_question *q, const inv_attr *at)
{
    const char *name = q->c->arg[0];
    inv_arena *a = &q->m->g->arena;
    if (!at) return inv_arena_printf(a, "%s is %s", name, q->c->nargs > 1 ? q->c->arg[1] : "absent");
    if (at->kind == INV_ATTR_INT) return inv_arena_printf(a, "%s is %lld", name, (long long)at->i);
    if (at->kind == INV_ATTR_FLOAT) return inv_arena_printf(a, "%s is %g", name, at->f);
    if (at->kind != INV_ATTR_INTS) return NULL;
    inv_str s;
    inv_str_init(&s, q->m->g->ctx);
    for (size_t i = 0; i < at->n; i++) inv_str_add(&s, "%s%lld", i ? ", " : "", (long long)at->ints[i]);
    const char *kept = inv_arena_printf(a, "%s is [%s]", name, s.s);
    inv_str_fini(&s);
    return kept;
}

bool inv_judge_attr(const inv_question *q, inv_finding *f)
{
    const inv_attr *at = inv_binding_attr(q->m->g, q->b, q->node, q->c->arg[0]);
    const bool holds = attribute_meets(q->c, at);
    if (!holds) f->seen = attribute_seen(q, at);
    return holds;
}

bool inv_judge_attr_count(const inv_question *q, inv_finding *f)
{
    (void)f;
    return q->x[0]->def != INV_NONE && meets(q->c, (double)inv_nod(q->m->g, q->x[0]->def)->nattr);
}

/* --- shapes and types --- */

bool inv_judge_same_shape(const inv_question *q, inv_finding *f)
{
    (void)f;
    return inv_shape_equal(&q->x[0]->shape, &q->x[1]->shape);
}

bool inv_judge_same_rank(const inv_question *q, inv_finding *f)
{
    (void)f;
    return q->x[0]->shape.rank == q->x[1]->shape.rank;
}

bool inv_judge_same_type(const inv_question *q, inv_finding *f)
{
    (void)f;
    return q->x[0]->dtype == q->x[1]->dtype;
}

bool inv_judge_per_channel(const inv_question *q, inv_finding *f)
{
    (void)f;
    return inv_shape_per_channel(&q->x[0]->shape, &q->x[1]->shape);
}

bool inv_judge_has_features(const inv_question *q, inv_finding *f)
{
    f->reason = "the value to be freed is one number per row";
    return q->x[0]->shape.rank > 1;
}

bool inv_judge_patches(const inv_question *q, inv_finding *f)
{
    f->seen = patch_flaw(q->m, q->node, q->v[0], &f->remedy);
    return !f->seen;
}

/* Reads the value as a matrix; if it is none, says so. */
static bool find_matrix(const inv_question *q, inv_finding *f, inv_matrix *x)
{
    if (inv_matrix_of(q->m, q->v[0], q->node, x)) return true;
    f->seen = inv_arena_printf(&q->m->g->arena, "'%s' has %d axes, so it is not one matrix", q->x[0]->name,
                               q->x[0]->shape.rank);
    f->remedy = "one matrix of two axes for all rows";
    return false;
}

bool inv_judge_square(const inv_question *q, inv_finding *f)
{
    inv_matrix x;
    return find_matrix(q, f, &x) && x.in == x.out;
}

bool inv_judge_tall(const inv_question *q, inv_finding *f)
{
    inv_matrix x;
    return find_matrix(q, f, &x) && x.in < x.out;
}

bool inv_judge_wide(const inv_question *q, inv_finding *f)
{
    inv_matrix x;
    return find_matrix(q, f, &x) && x.in > x.out;
}

/* --- what leaves --- */

/* The caller gets to know some values of a list, but not all. */
bool inv_judge_some_leave(const inv_question *q, inv_finding *f)
{
    const int at = inv_binding_find(q->b, q->c->arg[0]);
    uint32_t n = 0;
    (void)f;
    for (uint32_t k = 0; at >= 0 && k < q->b->at[at].n; k++) {
        const inv_id v = q->b->at[at].id[k];
        n += v != INV_NONE && inv_val(q->m->g, v)->is_output;
    }
    return n > 0 && n < q->b->at[at].n;
}

/* The search for a region accepts no other entries (match.c), so there is nothing left to judge. */
bool inv_judge_recoverable(const inv_question *q, inv_finding *f)
{
    (void)q, (void)f;
    return true;
}
