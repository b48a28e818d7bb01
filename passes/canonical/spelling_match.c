/* SPDX-License-Identifier: Apache-2.0
 * Whether a row of the table of spellings fits at a node. From its last statement back, as every other one gives what a
 * later one reads. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/text.h"
#include "passes/canonical/spelling.h"
#include "passes/match/match.h"

const inv_given *inv_given_find(const inv_attempt *a, const char *name)
{
    for (uint32_t i = 0; i < a->ngiven; i++)
        if (strcmp(a->given[i].name, name) == 0) return &a->given[i];
    return NULL;
}

/* What exporters round to float32 on the way is the same number. */
static bool near(double a, double b) { return a == b || fabs(a - b) <= 0x1p-23 * fabs(b); }

static bool same_value(const inv_attr *a, const inv_attr *b)
{
    bool numbers = (a->kind == INV_ATTR_INT || a->kind == INV_ATTR_FLOAT) &&
                   (b->kind == INV_ATTR_INT || b->kind == INV_ATTR_FLOAT);
    if (numbers)
        return near(a->kind == INV_ATTR_INT ? (double)a->i : a->f, b->kind == INV_ATTR_INT ? (double)b->i : b->f);
    return a->kind == INV_ATTR_INTS && b->kind == INV_ATTR_INTS && a->n == b->n &&
           (a->n == 0 || memcmp(a->ints, b->ints, a->n * sizeof *a->ints) == 0);
}

static bool give(inv_attempt *a, const char *name, const inv_attr *attr, double number, inv_id constant)
{
    const inv_given *old = inv_given_find(a, name);
    if (old) return attr && old->attr ? same_value(attr, old->attr) : !attr && !old->attr && number == old->number;
    if (a->ngiven == INV_SPELLING_GIVEN) return false;
    a->given[a->ngiven++] = (inv_given){name, attr, number, constant};
    return true;
}

/* A constant whose entries are all one number: a Constant, or an initializer of rank 0, which nothing trains. */
bool inv_spelling_uniform(const inv_graph *g, inv_id v, double *out)
{
    const inv_value *x = inv_val(g, v);
    bool fixed = x->role == INV_ROLE_CONST || (x->role == INV_ROLE_PARAM && x->shape.rank == 0 && !x->state);
    int64_t n = fixed && x->data.bytes && inv_dtype_is_float(x->dtype) ? inv_shape_nelem(&x->data.shape) : 0;
    for (int64_t i = 0; i < n; i++) {
        double e = inv_elem_double(x->data.bytes, x->data.dtype, (size_t)i);
        if (i == 0) *out = e;
        else if (e != *out) return false;
    }
    return n > 0;
}

/* --- attributes as functions of what is bound --- */

static bool extents(inv_attr *out, int64_t *ints, const int64_t *dim, int n)
{
    for (int i = 0; i < n; i++) ints[i] = dim[i];
    *out = inv_attr_of_ints(out->name, (size_t)n, ints);
    return true;
}

static const inv_attr *list_of(const inv_attempt *a, const char *name)
{
    const inv_given *g = inv_given_find(a, name);
    return g && g->attr && g->attr->kind == INV_ATTR_INTS && g->attr->n > 0 ? g->attr : NULL;
}

static bool call_value(const inv_attempt *a, const inv_term *t, inv_attr *out, int64_t *ints)
{
    const inv_attr *axes = list_of(a, t->arg[0]);
    if (strcmp(t->what, "only") == 0) { /* the one axis of a list */
        if (!axes || axes->n != 1) return false;
        *out = inv_attr_of_int(out->name, axes->ints[0]);
        return true;
    }
    if (strcmp(t->what, "at") == 0) { /* entry of a list */
        const inv_given *k = inv_given_find(a, t->arg[1]);
        if (!axes || !k || !k->attr || k->attr->i < 0 || (size_t)k->attr->i >= axes->n) return false;
        *out = inv_attr_of_int(out->name, axes->ints[k->attr->i]);
        return true;
    }
    inv_id v = inv_binding_get(&a->value, t->arg[t->nargs - 1]);
    if (v == INV_NONE) return false;
    const inv_shape *x = &inv_val(a->s->g, v)->shape;
    if (strcmp(t->what, "shape") == 0) return extents(out, ints, x->dim, x->rank);
    if (x->rank < 1) return false;
    if (strcmp(t->what, "last") == 0) {
        *out = inv_attr_of_int(out->name, x->rank - 1);
        return true;
    }
    if (strcmp(t->what, "trailing") == 0) { /* the first of axes that are all from there on */
        for (size_t i = 0; axes && i < axes->n; i++)
            if (axes->ints[i] != x->rank - (int64_t)axes->n + (int64_t)i) return false;
        if (!axes) return false;
        *out = inv_attr_of_int(out->name, axes->ints[0]);
        return true;
    }
    if (x->rank < 2) return false;
    if (strcmp(t->what, "column") == 0) return x->dim[1] == 1 && extents(out, ints, x->dim, 1);
    if (strcmp(t->what, "channels") == 0) return extents(out, ints, &x->dim[1], 1);
    if (strcmp(t->what, "all_but_channels") != 0) return false;
    for (int d = 0; d < x->rank; d++) ints[d > 1 ? d - 1 : 0] = d > 1 ? d : 0;
    *out = inv_attr_of_ints(out->name, (size_t)x->rank - 1, ints);
    return true;
}

bool inv_spelling_attr(const inv_attempt *a, const inv_spelling_step *st, uint32_t k, inv_attr *out, int64_t *ints)
{
    const inv_attr *written = &st->s->attr[k];
    const char *name = written->name;
    *out = *written;
    if (written->kind != INV_ATTR_OTHER) return true;
    if (st->attr[k].is_call) return call_value(a, &st->attr[k], out, ints);
    const inv_given *g = inv_given_find(a, st->attr[k].text);
    if (!g) return false;
    *out = g->attr ? *g->attr : inv_attr_of_float(name, g->number);
    out->name = name;
    return true;
}

/* --- matching --- */

/* Whether v is a constant as the term wants it; its number becomes known by the name. */
static bool bind_constant(inv_attempt *a, const inv_term *t, inv_id v, double c)
{
    double lo = -INFINITY, hi = INFINITY;
    int exponent;
    if (strcmp(t->what, "power2") == 0) /* whose reciprocal float32 has as well */
        return fabs(frexp(c, &exponent)) == 0.5 && abs(exponent) < 120 && give(a, t->arg[0], NULL, c, v);
    if (t->nargs == 3 && (!inv__word_double(t->arg[1], &lo) || !inv__word_double(t->arg[2], &hi))) return false;
    return c >= lo && c <= hi && give(a, t->arg[0], NULL, c, v);
}

static bool wants_constant(const inv_term *t)
{
    return t->is_call && (strcmp(t->what, "const") == 0 || strcmp(t->what, "power2") == 0);
}

/* Those that speak of other values hold or not once all are bound. */
static bool bind_operand(inv_attempt *a, const inv_term *t, const inv_id *v)
{
    double c;
    if (*v == INV_NONE) return false;
    if (t->is_number) return inv_spelling_uniform(a->s->g, *v, &c) && near(c, t->number);
    if (wants_constant(t)) return inv_spelling_uniform(a->s->g, *v, &c) && bind_constant(a, t, *v, c);
    if (t->is_call && (strcmp(t->what, "count") == 0 || strcmp(t->what, "share") == 0)) return true;
    return inv_binding_set(&a->value, t->is_call ? t->arg[0] : t->text, v, 1);
}

static bool bind_attrs(inv_attempt *a, const inv_spelling_step *st, const inv_node *n)
{
    uint32_t listed = 0;
    for (uint32_t k = 0; k < st->s->nattr; k++) {
        const inv_attr *want = &st->s->attr[k];
        const inv_attr *have = inv_attr_find(n, want->name);
        if (!have) return false;
        listed++;
        if (want->kind != INV_ATTR_OTHER) {
            if (!same_value(have, want)) return false;
        } else if (!st->attr[k].is_call && !give(a, st->attr[k].text, have, 0, INV_NONE)) {
            return false;
        }
    }
    return listed == n->nattr;
}

static bool bind_step(inv_attempt *a, uint32_t i, const inv_node *n, bool swap)
{
    const inv_spelling_step *st = &a->row->match[i];
    if (n->op != st->op || n->nin != st->s->nin || n->nout != st->s->nout) return false;
    if (swap && (!(n->op->flags & INV_OP_COMMUTATIVE) || n->nin != 2 || n->in[0] == n->in[1])) return false;
    a->node[i] = n;
    a->swapped[i] = swap;
    if (!bind_attrs(a, st, n)) return false;
    for (uint32_t k = 0; k < n->nout; k++)
        if (n->out[k] == INV_NONE || !inv_binding_set(&a->value, st->s->out[k], &n->out[k], 1)) return false;
    for (uint32_t k = 0; k < n->nin; k++)
        if (!bind_operand(a, &st->in[k], &n->in[swap ? 1 - k : k])) return false;
    return true;
}

/* Elements of x along the axes, the number that means are divided by; by_mean: the factor instead. */
static bool is_count(const inv_attempt *a, const inv_term *t, inv_id v, bool share)
{
    const inv_attr *axes = list_of(a, t->arg[1]);
    inv_id x = inv_binding_get(&a->value, t->arg[0]);
    double c, n = 1;
    if (!axes || x == INV_NONE || !inv_spelling_uniform(a->s->g, v, &c)) return false;
    for (size_t i = 0; i < axes->n; i++) n *= (double)inv_val(a->s->g, x)->shape.dim[axes->ints[i]];
    return n > 0 && near(c, share ? 1 / n : n);
}

/* v has the extents of x from axis on; ones before them make no difference. */
static bool is_row(const inv_attempt *a, const inv_term *t, inv_id v)
{
    const inv_given *axis = inv_given_find(a, t->arg[2]);
    inv_id x = inv_binding_get(&a->value, t->arg[1]);
    if (!axis || !axis->attr || x == INV_NONE) return false;
    const inv_shape *wide = &inv_val(a->s->g, x)->shape;
    inv_shape s = inv_val(a->s->g, v)->shape;
    if (axis->attr->i < 0 || axis->attr->i > wide->rank) return false;
    const inv_shape want = inv_shape_of(wide->rank - (int)axis->attr->i, wide->dim + axis->attr->i);
    while (s.rank > want.rank && s.dim[0] == 1) s = inv_shape_of(s.rank - 1, s.dim + 1);
    return inv_shape_equal(&s, &want);
}

/* Whether the model's own numbers, whatever their extents, are v. */
static bool is_stored(const inv_graph *g, inv_id v)
{
    while (inv_val(g, v)->role == INV_ROLE_NODE && inv_nod(g, inv_val(g, v)->def)->op->flags & INV_OP_VIEW)
        v = inv_nod(g, inv_val(g, v)->def)->in[0];
    return inv_val(g, v)->role != INV_ROLE_NODE;
}

/* per_channel(v, x): one number per channel of x; stored(v, x): and that is the model's own. */
static bool operand_holds(const inv_attempt *a, const inv_term *t, inv_id v)
{
    if (!t->is_call || wants_constant(t)) return true;
    if (strcmp(t->what, "count") == 0) return is_count(a, t, v, false);
    if (strcmp(t->what, "share") == 0) return is_count(a, t, v, true);
    if (strcmp(t->what, "row") == 0) return is_row(a, t, v);
    const bool stored = strcmp(t->what, "stored") == 0;
    if (stored ? !is_stored(a->s->g, v) : strcmp(t->what, "per_channel") != 0) return false;
    const inv_id x = inv_binding_get(&a->value, t->arg[1]);
    return x != INV_NONE && inv_shape_per_channel(&inv_val(a->s->g, v)->shape, &inv_val(a->s->g, x)->shape);
}

static bool among(const inv_attempt *a, inv_id node)
{
    for (uint32_t i = 0; i < a->row->nmatch; i++)
        if (a->node[i] == inv_nod(a->s->g, node)) return true;
    return false;
}

/* Nobody else reads what n gives. */
static bool hidden(const inv_attempt *a, const inv_node *n)
{
    const inv_speller *s = a->s;
    for (uint32_t k = 0; k < n->nout; k++) {
        inv_id v = n->out[k];
        if (v >= s->fresh || s->taken_up[v] || inv_val(s->g, v)->is_output || inv_val(s->g, v)->keep) return false;
        for (uint32_t u = s->uses.start[v]; u < s->uses.start[v + 1]; u++)
            if (!among(a, s->uses.node[u])) return false;
    }
    return true;
}

static bool all_hold(const inv_attempt *a)
{
    for (uint32_t i = 0; i < a->row->nmatch; i++) {
        const inv_spelling_step *st = &a->row->match[i];
        const inv_node *n = a->node[i];
        if (i + 1 < a->row->nmatch && !hidden(a, n)) return false;
        for (uint32_t k = 0; k < n->nin; k++)
            if (!operand_holds(a, &st->in[k], n->in[a->swapped[i] ? 1 - k : k])) return false;
        for (uint32_t k = 0; k < st->s->nattr; k++) {
            int64_t ints[INV_MAX_RANK];
            inv_attr want;
            if (!st->attr[k].is_call) continue;
            const inv_attr *have = inv_attr_find(n, st->s->attr[k].name);
            if (!inv_spelling_attr(a, st, k, &want, ints) || !same_value(have, &want)) return false;
        }
    }
    return true;
}

/* Steps before `left` still have to be found; what they give is bound by then, as later steps read it. */
static bool match_steps(inv_attempt *a, uint32_t left)
{
    if (left == 0) return all_hold(a);
    const uint32_t i = left - 1;
    const inv_graph *g = a->s->g;
    inv_id v = INV_NONE;
    for (uint32_t k = 0; k < a->row->match[i].s->nout && v == INV_NONE; k++)
        v = inv_binding_get(&a->value, a->row->match[i].s->out[k]);
    if (v == INV_NONE || inv_val(g, v)->def == INV_NONE) return false;
    const inv_attempt before = *a;
    for (int swap = 0; swap < 2; swap++) {
        if (bind_step(a, i, inv_nod(g, inv_val(g, v)->def), swap == 1) && match_steps(a, i)) return true;
        *a = before;
    }
    return false;
}

bool inv_spelling_fits(inv_attempt *a) { return match_steps(a, a->row->nmatch); }
