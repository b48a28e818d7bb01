/* SPDX-License-Identifier: Apache-2.0
 * Computes how much a rule's inverse magnifies an error of what it starts from, by the rule's `gain` (the rows GAIN of
 * core/rules/condition.inc). It gives two numbers: `gain` is what to expect and what plans are compared by, `bound`
 * cannot be exceeded. They differ where only bounds of a factor are known, or where errors are relative to the spread
 * of data. requires: a pattern that is bound and whose conditions hold.  gives: gain and bound of an edge. Time: the
 * entries of the value that the gain is about, or of a matrix its condition number (known_values.c). */
#include <math.h>

#include "core/graph/node.h"
#include "passes/match/match.h"

/* A gain that is to be computed, and the two numbers, which are infinite until something is known. */
typedef struct gain_call {
    inv_matcher *m;
    const inv_condition *c;
    const inv_binding *b;
    const inv_node *node;
    inv_id v; /* the first argument, if that is a value */
    bool inverse, expected;
    double gain, bound;
} gain_call;

/* Only bounds are known of a factor that is computed from inputs, and no tensor reaches them in all its entries, block
 * after block. So the geometric mean of the gains at the two bounds is expected, and the guard measures. */
static double expected_gain(inv_bounds r, bool inverse)
{
    double most = fmax(fabs(r.lo), fabs(r.hi)), least = r.lo > 0 ? r.lo : r.hi < 0 ? -r.hi : 0;
    if (least > 0 && isfinite(most)) return inverse ? 1 / sqrt(least * most) : sqrt(least * most);
    return inverse ? 1 / least : most;
}

/* max sqrt(var + epsilon) / |s|, entry by entry: what undoing a normalization by known statistics magnifies. */
static double undone_norm_gain(inv_matcher *m, inv_id var, inv_id s, const inv_node *node)
{
    inv_known_forget(m, INV_MOST_KNOWN);
    const void *v = inv_known_bytes(m, var), *f = inv_known_bytes(m, s);
    int64_t n = inv_shape_nelem(&inv_val(m->g, s)->shape);
    double most = 0;
    if (!v || !f || inv_shape_nelem(&inv_val(m->g, var)->shape) != n) return INFINITY;
    for (int64_t i = 0; i < n; i++) {
        double variance = inv_elem_double(v, inv_val(m->g, var)->dtype, (size_t)i);
        variance += inv_attr_float(node, "epsilon", 1e-5);
        most = fmax(most, sqrt(variance) / fabs(inv_elem_double(f, inv_val(m->g, s)->dtype, (size_t)i)));
    }
    return most;
}

static void find_factor_gain(gain_call *q)
{
    inv_matcher *m = q->m;
    inv_extremes x;
    inv_bounds r = inv_value_range(m, q->v);
    const bool given = !m->active[q->v] && inv_known_extremes(m, q->v, &x);
    if (!q->inverse) q->bound = fmax(fabs(r.lo), fabs(r.hi));
    else if (r.lo > 0 || r.hi < 0) q->bound = r.lo > 0 ? 1 / r.lo : -1 / r.hi;
    else if (given) q->bound = 1 / x.least_abs;
    if (!given && q->expected && !(r.lo > 0 && r.hi < INFINITY)) r = inv_value_typical(m, q->v);
    q->gain = given ? q->bound : expected_gain(r, q->inverse);
    /* A factor below 1 makes an error of the start smaller, but its product is rounded again. */
    if (q->gain < 1 && !q->inverse) q->gain = 1;
    if (q->bound < 1 && !q->inverse) q->bound = 1;
}

void inv_factor_gain(inv_matcher *m, inv_id s, bool inverse, double *gain, double *bound)
{
    gain_call q = {.m = m, .v = s, .inverse = inverse, .expected = true, .gain = INFINITY, .bound = INFINITY};
    find_factor_gain(&q);
    *gain = q.gain;
    *bound = q.bound;
}

static inv_status of_factor(gain_call *q)
{
    if (q->v == INV_NONE) return INV_OK;
    find_factor_gain(q);
    const inv_id var = q->c->nargs == 2 ? inv_binding_get(q->b, q->c->arg[1]) : INV_NONE;
    if (var != INV_NONE && !q->m->active[var]) q->bound = undone_norm_gain(q->m, var, q->v, q->node);
    return INV_OK;
}

/* Where entries are positive the slope is 1. */
static inv_status of_slope(gain_call *q)
{
    INV_TRY(of_factor(q));
    q->gain = fmax(q->gain, 1);
    q->bound = fmax(q->bound, 1);
    return INV_OK;
}

static inv_status of_matrix(gain_call *q)
{
    double cond, norm;
    bool known;
    if (q->v == INV_NONE) return INV_OK;
    INV_TRY(inv_known_matrix(q->m, q->v, q->node, &cond, &norm, &known));
    if (known) q->gain = q->bound = q->inverse ? norm : cond / norm;
    return INV_OK;
}

static inv_status of_attribute(gain_call *q)
{
    const inv_attr *at = inv_binding_attr(q->m->g, q->b, q->node, q->c->arg[0]);
    const double a = fabs(at && at->kind == INV_ATTR_FLOAT ? at->f : q->c->number);
    q->gain = q->bound = a >= 1 ? 1 : 1 / a;
    return INV_OK;
}

static inv_status of_number(gain_call *q)
{
    q->gain = q->bound = q->c->number;
    return INV_OK;
}

static inv_status of_nothing(gain_call *q)
{
    (void)q;
    return INV_OK;
}

static const struct {
    inv_status (*measure)(gain_call *);
    bool inverse, expected;
} gains[] = {
#define GAIN(name, args, measure, inverse, expected) {measure, inverse, expected},
#include "core/rules/condition.inc"
};

inv_status inv_rule_gain(inv_matcher *m, const inv_rule *rule, const inv_binding *b, const inv_node *node, double *gain,
                         double *bound)
{
    const char *p = rule->def->gain;
    inv_condition c;
    *gain = *bound = p ? INFINITY : 1;
    if (!p || inv_condition_next(&p, INV_IN_GAIN, &c) <= 0) return INV_OK;
    gain_call q = {m,        &c,      b, node, inv_binding_get(b, c.arg[0]), gains[c.id].inverse, gains[c.id].expected,
                   INFINITY, INFINITY};
    INV_TRY(gains[c.id].measure(&q));
    *gain = q.gain;
    *bound = q.bound;
    return INV_OK;
}
