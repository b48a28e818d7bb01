/* SPDX-License-Identifier: Apache-2.0
 * Bounds of the entries of a value, by interval arithmetic over the operators that give it. What it is for: a scale
 * that a branch computes may be divided by if it is positive by construction, as Exp and Sigmoid are. */
#include <math.h>
#include <string.h>

#include "passes/pass.h"

enum { MOST_NODES = 256 }; /* that one question may look at */

static const inv_range anything = {-INFINITY, INFINITY, false};

static bool positive(inv_range r) { return r.lo > 0 || (r.lo == 0 && r.above); }
static double times(double a, double b) { return a == 0 || b == 0 ? 0 : a * b; }

static double sigmoid(double x) { return 1 / (1 + exp(-x)); }
static double softplus(double x) { return x > 30 ? x : log1p(exp(x)); }
static double root(double x) { return x > 0 ? sqrt(x) : 0; }
static double logarithm(double x) { return x > 0 ? log(x) : -INFINITY; }
static double rectified(double x) { return x > 0 ? x : 0; }

/* Nowhere falling functions of one operand; the strict ones never reach their limit at minus infinity. */
static const struct monotone {
    const char *op;
    double (*f)(double);
    bool strict;
} monotones[] = {{"Exp", exp, true},           {"Sigmoid", sigmoid, true}, {"Tanh", tanh, true},
                 {"Softplus", softplus, true}, {"Log", logarithm, true},   {"Erf", erf, true},
                 {"Sqrt", root, false},        {"Relu", rectified, false}};

/* Operators whose entries are entries of their first operand, or means of them. */
static const char *const movers[] = {"View",   "Transpose",   "Permute",        "SplitSizes",    "SliceRange",
                                     "Gather", "BroadcastTo", "ReduceMeanAxes", "ReduceMaxAxes", "MaxPoolN"};

static inv_range hull(inv_range a, inv_range b)
{
    inv_range r = {fmin(a.lo, b.lo), fmax(a.hi, b.hi), true};
    r.above = (a.lo > r.lo || a.above) && (b.lo > r.lo || b.above);
    return r;
}

static inv_range product(inv_range a, inv_range b)
{
    double p[] = {times(a.lo, b.lo), times(a.lo, b.hi), times(a.hi, b.lo), times(a.hi, b.hi)};
    inv_range r = {p[0], p[0], positive(a) && positive(b)};
    for (int i = 1; i < 4; i++) {
        r.lo = fmin(r.lo, p[i]);
        r.hi = fmax(r.hi, p[i]);
    }
    r.above = r.above && (r.lo == 0 || a.above || b.above);
    return r;
}

static inv_range reciprocal(inv_range a)
{
    if (!positive(a)) return anything;
    return (inv_range){1 / a.hi, 1 / a.lo, isinf(a.hi)};
}

static inv_range of_two(const char *op, inv_range a, inv_range b)
{
    if (strcmp(op, "Add") == 0) return (inv_range){a.lo + b.lo, a.hi + b.hi, a.above || b.above};
    if (strcmp(op, "Sub") == 0) return (inv_range){a.lo - b.hi, a.hi - b.lo, a.above};
    if (strcmp(op, "Mul") == 0) return product(a, b);
    if (strcmp(op, "Div") == 0) return positive(b) ? product(a, reciprocal(b)) : anything;
    if (strcmp(op, "Min") == 0) {
        inv_range r = hull(a, b);
        r.hi = fmin(a.hi, b.hi);
        return r;
    }
    if (strcmp(op, "Max") != 0) return anything;
    inv_range r = {fmax(a.lo, b.lo), fmax(a.hi, b.hi), false};
    r.above = (a.above && a.lo == r.lo) || (b.above && b.lo == r.lo);
    return r;
}

static inv_range range_of(inv_matcher *m, inv_id v, int *left);

static inv_range of_node(inv_matcher *m, const inv_node *n, int *left)
{
    const char *op = n->op->name;
    if (strcmp(op, "Softmax") == 0) return (inv_range){0, 1, true};
    for (size_t i = 0; i < sizeof movers / sizeof *movers; i++)
        if (strcmp(op, movers[i]) == 0) return range_of(m, n->in[0], left);
    for (size_t i = 0; i < sizeof monotones / sizeof *monotones; i++) {
        const struct monotone *f = &monotones[i];
        if (strcmp(op, f->op) != 0) continue;
        inv_range a = range_of(m, n->in[0], left);
        bool above = f->strict ? a.above || isinf(a.lo) : a.above && a.lo >= 0;
        return (inv_range){f->f(a.lo), f->f(a.hi), above};
    }
    if (strcmp(op, "Concat") == 0) {
        inv_range r = range_of(m, n->in[0], left);
        for (uint32_t k = 1; k < n->nin; k++) r = hull(r, range_of(m, n->in[k], left));
        return r;
    }
    if (strcmp(op, "Where") == 0) return hull(range_of(m, n->in[1], left), range_of(m, n->in[2], left));
    inv_range a = range_of(m, n->in[0], left);
    if (strcmp(op, "Neg") == 0) return (inv_range){-a.hi, -a.lo, false};
    if (strcmp(op, "Reciprocal") == 0) return reciprocal(a);
    bool square = strcmp(op, "Mul") == 0 && n->in[0] == n->in[1];
    if (square || strcmp(op, "Abs") == 0) {
        double far = fmax(fabs(a.lo), fabs(a.hi)), near = a.lo > 0 ? a.lo : a.hi < 0 ? -a.hi : 0;
        if (square) return (inv_range){near * near, far * far, positive(a) && (near == 0 || a.above)};
        return (inv_range){near, far, positive(a) && a.above};
    }
    return n->nin == 2 ? of_two(op, a, range_of(m, n->in[1], left)) : anything;
}

static inv_range range_of(inv_matcher *m, inv_id v, int *left)
{
    if (v == INV_NONE || --*left < 0) return anything;
    inv_extremes x;
    if (!m->active[v]) return inv_known_extremes(m, v, &x) ? (inv_range){x.least, x.most, false} : anything;
    const inv_value *val = inv_val(m->g, v);
    if (val->role != INV_ROLE_NODE || inv_nod(m->g, val->def)->nin == 0) return anything;
    inv_range r = of_node(m, inv_nod(m->g, val->def), left);
    /* What float32 rounds an entry to; what is near zero by cancellation is then not taken for positive. */
    r.lo -= isfinite(r.lo) ? fabs(r.lo) * 0x1p-22 : 0;
    r.hi += isfinite(r.hi) ? fabs(r.hi) * 0x1p-22 : 0;
    /* infinity less infinity */
    if (isnan(r.lo)) r.lo = -INFINITY;
    if (isnan(r.hi)) r.hi = INFINITY;
    return r;
}

inv_range inv_value_range(inv_matcher *m, inv_id v)
{
    int left = MOST_NODES;
    return range_of(m, v, &left);
}
