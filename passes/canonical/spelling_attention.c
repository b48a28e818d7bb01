/* SPDX-License-Identifier: Apache-2.0
 * Replaces attention that is spelled out by the one operator AttentionCore, which keeps no matrix of scores. Attention
 * is two products with a softmax between, where scores may be scaled, capped and masked in any of the usual ways, in
 * any order; that varies too much for rows of a table. So the search starts at the second product, goes up through the
 * softmax to the first one step by step, and notes what each step does to the scores; in the end all masks become one.
 * Dropout of probabilities stays spelled out. It takes as many steps as STEPS for a product. */
#include <math.h>
#include <string.h>

#include "passes/canonical/spelling.h"

enum { STEPS = 8 };
#define FAR ((int64_t)1 << 48)

/* One step between the product and the softmax: a mask. */
typedef struct masking {
    inv_id cond;     /* INV_NONE: `mask` is added */
    inv_id mask;     /* else what scores are replaced by ... */
    bool where_true; /* ... where cond is so */
    bool finite;     /* that is a finite number */
} masking;

typedef struct found {
    const inv_speller *s;
    inv_graph *g;
    inv_id q, k, v, mask;
    double scale, cap;
    int64_t to;          /* of the band; FAR: none */
    masking step[STEPS]; /* from the softmax to the product */
    uint32_t nstep;
} found;

/* The node that gives v, where nothing but one node reads v; else NULL. */
static const inv_node *only_for(const found *f, inv_id v)
{
    const inv_speller *s = f->s;
    if (v == INV_NONE || v >= s->fresh || s->taken_up[v] || inv_val(f->g, v)->is_output || inv_val(f->g, v)->keep)
        return NULL;
    return s->uses.start[v + 1] - s->uses.start[v] == 1 ? inv_def_node(f->g, v) : NULL;
}

static inv_id emit_if_both(inv_graph *g, const char *op, inv_id a, inv_id b)
{
    return a == INV_NONE || b == INV_NONE ? INV_NONE : inv_emit1(g, op, INV_IN(a, b), INV_NOATTR);
}

/* The node multiplies *x by the number *c, or divides it by 1 / *c. */
static bool scaled_by_number(const inv_graph *g, const inv_node *n, double *c, inv_id *x)
{
    const bool mul = inv_op_is(n, "Mul");
    if (!mul && !inv_op_is(n, "Div")) return false;
    for (uint32_t i = mul ? 0 : 1; i < 2; i++) {
        if (!inv_value_uniform(g, n->in[i], c)) continue;
        const inv_id other = n->in[1 - i];
        if (!inv_shape_equal(&inv_val(g, other)->shape, &inv_val(g, n->out[0])->shape) || (!mul && *c == 0)) continue;
        if (!mul) *c = 1 / *c;
        *x = other;
        return true;
    }
    return false;
}

/* Strips v of the number that it is multiplied by, also where that happens before its axes are rearranged. */
static inv_id without_scale(found *f, inv_id v)
{
    inv_graph *g = f->g;
    inv_id at = v;
    inv_node way[STEPS];
    uint32_t n = 0;
    double c;
    for (const inv_node *d = only_for(f, at); d && n < STEPS; d = only_for(f, at)) {
        if (scaled_by_number(g, d, &c, &at)) {
            f->scale *= c;
            while (n-- > 0 && at != INV_NONE) at = inv_emit1(g, way[n].op->name, 1, &at, way[n].nattr, way[n].attr);
            return at == INV_NONE ? at : without_scale(f, at);
        }
        if (!inv_op_is(d, "View") && !inv_op_is(d, "Transpose")) return v;
        way[n++] = *d;
        at = d->in[0];
    }
    return v;
}

/* Emits v with its last two axes exchanged. */
static inv_id exchanged(inv_graph *g, inv_id v)
{
    const inv_node *d = inv_def_node(g, v);
    const int rank = inv_val(g, v)->shape.rank;
    int64_t perm[INV_MAX_RANK] = {0};
    size_t n = 0;
    const int64_t *p = inv_op_is(d, "Transpose") ? inv_attr_ints(d, "perm", &n) : NULL;
    bool same = true;
    for (int i = 0; i < rank; i++) {
        const int j = i < rank - 2 ? i : i == rank - 2 ? rank - 1 : rank - 2;
        perm[i] = p ? p[j] : j;
        same = same && perm[i] == i;
    }
    if (p && same) return d->in[0];
    return inv_emit1(g, "Transpose", INV_IN(p ? d->in[0] : v), INV_ATTRS(inv_attr_of_ints("perm", (size_t)rank, perm)));
}

/* Finds keys or values that groups of heads share, where they were written out per head; else INV_NONE. */
static bool shared_heads(const inv_graph *g, inv_id v, inv_id *before, inv_shape *shape)
{
    const inv_node *view = inv_def_node(g, v), *wide = inv_op_is(view, "View") ? inv_def_node(g, view->in[0]) : NULL;
    if (!inv_op_is(wide, "BroadcastTo")) return false;
    const inv_shape *narrow = &inv_val(g, wide->in[0])->shape, *all = &inv_val(g, wide->out[0])->shape;
    *shape = inv_val(g, v)->shape;
    const int r = shape->rank;
    if (all->rank != r + 1 || narrow->rank != r + 1 || narrow->dim[r - 2] != 1) return false;
    for (int i = 0; i < r + 1; i++)
        if (i != r - 2 && narrow->dim[i] != all->dim[i]) return false;
    if (all->dim[r - 3] * all->dim[r - 2] != shape->dim[r - 3]) return false;
    shape->dim[r - 3] = all->dim[r - 3];
    *before = wide->in[0];
    return true;
}

/* --- from the softmax up to the product --- */

/* Such a number in place of a score, or added to one, leaves it no weight. */
static bool forbids(double c) { return c <= -1e9; }

/* Where(c, scores, never) as an addition is the same but in a row that sees nothing: a finite number would give such a
 * row equal weights, without a gradient. */
static bool sees_something(const inv_graph *g, const masking *m, double never)
{
    const inv_value *c = inv_val(g, m->cond);
    const int64_t n = inv_shape_nelem(&c->shape), cols = c->shape.rank ? c->shape.dim[c->shape.rank - 1] : 1;
    if (never == -INFINITY) return true;
    if (!inv_const_known(g, m->cond) || c->dtype != INV_BOOL || !c->data.bytes || cols == 0) return false;
    for (int64_t i = 0; i < n; i += cols) {
        bool any = false;
        for (int64_t j = 0; j < cols; j++) any = any || (((const uint8_t *)c->data.bytes)[i + j] != 0) != m->where_true;
        if (!any) return false;
    }
    return true;
}

static bool at_product(const found *f, inv_id v, uint32_t depth);

/* Goes one step up, from v to scores in *v; false: there is no such step. */
static bool step_up(found *f, const inv_node *d, inv_id *v, uint32_t depth)
{
    const inv_graph *g = f->g;
    double c;
    if (f->nstep == STEPS) return false;
    masking *m = &f->step[f->nstep];
    if (inv_op_is(d, "Add")) {
        for (uint32_t i = 0; i < 2; i++) {
            if (!at_product(f, d->in[i], depth + 1)) continue;
            *m = (masking){.cond = INV_NONE, .mask = d->in[1 - i]};
            f->nstep++;
            *v = d->in[i];
            return true;
        }
        return false;
    }
    if (!inv_op_is(d, "Where")) return false;
    for (uint32_t i = 1; i < 3; i++) {
        if (!inv_value_uniform(g, d->in[i], &c) || !forbids(c)) continue;
        *m = (masking){.cond = d->in[0], .mask = d->in[i], .where_true = i == 1, .finite = isfinite(c)};
        if (!sees_something(g, m, c)) return false;
        f->nstep++;
        *v = d->in[3 - i];
        return true;
    }
    return false;
}

/* Several steps together may forbid a whole row; sees_something looks at each alone and would not notice. */
static bool replaces_among_others(const found *f)
{
    bool finite = false;
    for (uint32_t i = 0; i < f->nstep; i++) finite = finite || f->step[i].finite;
    return finite && f->nstep > 1;
}

/* Steps lead from v up to a product. */
static bool at_product(const found *f, inv_id v, uint32_t depth)
{
    found look = *f;
    double c;
    for (const inv_node *d = only_for(f, v); d && depth < STEPS; d = only_for(f, v), depth++) {
        if (inv_op_is(d, "MatMulT")) return true;
        if (inv_op_is(d, "Tanh")) v = d->in[0];
        else if (!scaled_by_number(f->g, d, &c, &v) && !step_up(&look, d, &v, depth)) return false;
    }
    return false;
}

/* Finds the product that gives v: scores, perhaps cap tanh(scores / cap), perhaps times a number. NULL: none does. */
static const inv_node *find_product(found *f, inv_id v)
{
    const inv_node *d = only_for(f, v);
    double c, outer = 1;
    for (; d && scaled_by_number(f->g, d, &c, &v); d = only_for(f, v)) outer *= c;
    if (inv_op_is(d, "Tanh")) {
        f->cap = outer;
        v = d->in[0];
        for (d = only_for(f, v); d && scaled_by_number(f->g, d, &c, &v); d = only_for(f, v)) f->scale *= c;
        f->scale *= outer;
        if (!(outer > 0)) return NULL;
    } else {
        f->scale *= outer;
    }
    return inv_op_is(d, "MatMulT") ? d : NULL;
}

/* --- the mask --- */

/* The constant forbids just what lies right of a diagonal, which it gives. */
static bool is_causal(const inv_graph *g, inv_id mask, const inv_shape *scores, int64_t *to)
{
    const inv_value *m = inv_val(g, mask);
    const int64_t rows = scores->dim[scores->rank - 2], cols = scores->dim[scores->rank - 1];
    const int r = m->shape.rank;
    if (!inv_const_known(g, mask) || !m->data.bytes || inv_shape_nelem(&m->shape) != rows * cols || r < 2) return false;
    if (m->shape.dim[r - 1] != cols || m->shape.dim[r - 2] != rows || rows * cols == 0) return false;
    int64_t seen = 0;
    while (seen < cols && inv_elem_double(m->data.bytes, m->data.dtype, (size_t)seen) == 0) seen++;
    if (seen == 0) return false;
    for (int64_t i = 0; i < rows * cols; i++) {
        const double e = inv_elem_double(m->data.bytes, m->data.dtype, (size_t)i);
        if (i % cols < i / cols + seen ? e != 0 : !forbids(e)) return false;
    }
    *to = seen - 1;
    return true;
}

static bool make_mask(found *f, const inv_shape *scores)
{
    inv_graph *g = f->g;
    inv_id mask = INV_NONE;
    f->to = FAR;
    for (uint32_t i = f->nstep; i-- > 0;) {
        const masking *m = &f->step[i];
        const inv_dtype t = inv_val(g, m->mask)->dtype;
        if (m->cond == INV_NONE) {
            mask = mask == INV_NONE ? m->mask : emit_if_both(g, "Add", mask, m->mask);
        } else {
            const inv_id kept = mask == INV_NONE ? inv_graph_const_real(g, t, 0) : mask;
            mask = m->where_true ? inv_emit1(g, "Where", INV_IN(m->cond, m->mask, kept), INV_NOATTR)
                                 : inv_emit1(g, "Where", INV_IN(m->cond, kept, m->mask), INV_NOATTR);
        }
        if (mask == INV_NONE) return false;
    }
    if (mask != INV_NONE && is_causal(g, mask, scores, &f->to)) mask = INV_NONE;
    f->mask = mask;
    return true;
}

/* --- all of it --- */

static inv_id emit_attention(found *f)
{
    inv_graph *g = f->g;
    inv_attr attr[3] = {inv_attr_of_float("scale", f->scale)};
    uint32_t nattr = 1;
    const int64_t band[2] = {-FAR, f->to};
    if (f->cap != 0) attr[nattr++] = inv_attr_of_float("softcap", f->cap);
    if (f->to < FAR) attr[nattr++] = inv_attr_of_ints("band", 2, band);
    const inv_id n = inv_emit(g, "AttentionCore", 2, f->mask == INV_NONE ? 3 : 4, (inv_id[]){f->q, f->k, f->v, f->mask},
                              nattr, attr);
    return n == INV_NONE ? INV_NONE : inv_nod(g, n)->out[0];
}

static inv_id as_attention(found *f, const inv_node *product, const inv_node *last)
{
    inv_graph *g = f->g;
    const inv_shape scores = inv_val(g, product->out[0])->shape;
    const bool tq = inv_attr_int(product, "transA", 0) != 0, tk = inv_attr_int(product, "transB", 0) != 0;
    const inv_id q = product->in[0], k = product->in[1];
    f->v = inv_attr_int(last, "transB", 0) != 0 ? exchanged(g, last->in[1]) : last->in[1];
    if (!make_mask(f, &scores)) return INV_NONE;
    f->q = without_scale(f, q);
    f->k = without_scale(f, k);
    if (f->q != INV_NONE && tq) f->q = exchanged(g, f->q);
    if (f->k != INV_NONE && !tk) f->k = exchanged(g, f->k);
    if (f->q == INV_NONE || f->k == INV_NONE || f->v == INV_NONE) return INV_NONE;
    inv_id narrow[2];
    inv_shape shape[2];
    if (shared_heads(g, f->k, &narrow[0], &shape[0]) && shared_heads(g, f->v, &narrow[1], &shape[1])) {
        f->k = inv_emit1(g, "View", INV_IN(narrow[0]),
                         INV_ATTRS(inv_attr_of_ints("shape", (size_t)shape[0].rank, shape[0].dim)));
        f->v = inv_emit1(g, "View", INV_IN(narrow[1]),
                         INV_ATTRS(inv_attr_of_ints("shape", (size_t)shape[1].rank, shape[1].dim)));
        if (f->k == INV_NONE || f->v == INV_NONE) return INV_NONE;
    }
    return emit_attention(f);
}

inv_status inv_spell_attention(const inv_speller *s, const inv_node *node, inv_id *to)
{
    found f = {.s = s, .g = s->g, .scale = 1};
    inv_graph *g = s->g;
    *to = INV_NONE;
    if (!inv_op_is(node, "MatMulT") || inv_attr_int(node, "transA", 0) != 0) return INV_OK;
    const inv_node last = *node, *soft = only_for(&f, last.in[0]);
    if (!inv_op_is(soft, "Softmax")) return INV_OK;
    const inv_shape p = inv_val(g, last.in[0])->shape;
    if (p.rank < 3 || inv_attr_int(soft, "axis", -1) != p.rank - 1) return INV_OK;
    inv_id v = soft->in[0];
    for (const inv_node *d = only_for(&f, v); d && step_up(&f, d, &v, 0);) d = only_for(&f, v);
    const inv_node *at = find_product(&f, v);
    if (!at || replaces_among_others(&f) || !inv_shape_equal(&inv_val(g, at->out[0])->shape, &p)) return INV_OK;
    const inv_node product = *at;
    const size_t order = g->order.n;
    *to = as_attention(&f, &product, &last);
    if (g->failed == INV_E_NOMEM || g->arena.failed) return INV_E_NOMEM;
    if (*to != INV_NONE && inv_shape_equal(&inv_val(g, *to)->shape, &inv_val(g, last.out[0])->shape)) return INV_OK;
    g->order.n = order; /* heads that do not go together so */
    g->failed = INV_OK;
    *to = INV_NONE;
    return INV_OK;
}
