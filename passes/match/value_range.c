/* SPDX-License-Identifier: Apache-2.0
 * Bounds of the entries of a value, by interval arithmetic over the operators that give it. What it is for: a scale
 * that a branch computes may be divided by if it is positive by construction, as Exp and Sigmoid are. */
#include <math.h>
#include <string.h>

#include "passes/match/match.h"

/* A question: how many nodes it may still look at, and what is taken for anything that no operator bounds. */
enum { MOST_NODES = 256 };
typedef struct question {
    int left;
    inv_range unknown;
} question;

static const inv_range anything = {-INFINITY, INFINITY, false};

static bool positive(inv_range r) { return r.lo > 0 || (r.lo == 0 && r.above); }
static double times(double a, double b) { return a == 0 || b == 0 ? 0 : a * b; }

/* Nowhere falling functions of one operand and the attributes of its operator, as they are named here with what they
 * are if not given. The strict ones never reach their limit at minus infinity. */
static double f_exp(double x, const double *a)
{
    (void)a;
    return exp(x);
}
static double f_sigmoid(double x, const double *a)
{
    (void)a;
    return 1 / (1 + exp(-x));
}
static double f_tanh(double x, const double *a)
{
    (void)a;
    return tanh(x);
}
static double f_softplus(double x, const double *a)
{
    (void)a;
    return x > 30 ? x : log1p(exp(x));
}
static double f_log(double x, const double *a)
{
    (void)a;
    return x > 0 ? log(x) : -INFINITY;
}
static double f_erf(double x, const double *a)
{
    (void)a;
    return erf(x);
}
static double f_sqrt(double x, const double *a)
{
    (void)a;
    return x > 0 ? sqrt(x) : 0;
}
static double f_relu(double x, const double *a)
{
    (void)a;
    return x > 0 ? x : 0;
}
static double f_atan(double x, const double *a)
{
    (void)a;
    return atan(x);
}
static double f_softsign(double x, const double *a)
{
    (void)a;
    return isinf(x) ? copysign(1, x) : x / (1 + fabs(x));
}
static double f_elu(double x, const double *a) { return x > 0 ? x : a[0] * expm1(x); }
static double f_selu(double x, const double *a) { return a[1] * f_elu(x, a); }
static double f_celu(double x, const double *a) { return x > 0 ? x : a[0] * expm1(x / a[0]); }
static double f_leaky(double x, const double *a) { return x > 0 ? x : a[0] * x; }
static double f_clip(double x, const double *a) { return fmin(fmax(x, a[0]), a[1]); }
static double f_hard_sigmoid(double x, const double *a) { return fmin(fmax(a[0] * x + a[1], 0), 1); }

static const struct monotone {
    const char *op;
    double (*f)(double, const double *);
    bool strict;
    const char *attr[2];
    double dflt[2];
} monotones[] = {{"Exp", f_exp, true, {0}, {0}},
                 {"Sigmoid", f_sigmoid, true, {0}, {0}},
                 {"Tanh", f_tanh, true, {0}, {0}},
                 {"Softplus", f_softplus, true, {0}, {0}},
                 {"Log", f_log, true, {0}, {0}},
                 {"Erf", f_erf, true, {0}, {0}},
                 {"Atan", f_atan, true, {0}, {0}},
                 {"Softsign", f_softsign, true, {0}, {0}},
                 {"Sqrt", f_sqrt, false, {0}, {0}},
                 {"Relu", f_relu, false, {0}, {0}},
                 {"Elu", f_elu, false, {"alpha"}, {1}},
                 {"Selu", f_selu, false, {"alpha", "gamma"}, {1.67326319217681884765625, 1.05070102214813232421875}},
                 {"Celu", f_celu, false, {"alpha"}, {1}},
                 {"LeakyRelu", f_leaky, false, {"alpha"}, {0.01}},
                 {"ClipRange", f_clip, false, {"min", "max"}, {-INFINITY, INFINITY}},
                 {"Saturate", f_clip, false, {"min", "max"}, {-INFINITY, INFINITY}},
                 {"HardSigmoid", f_hard_sigmoid, false, {"alpha", "beta"}, {0.2, 0.5}}};

/* clang-format off */
/* Operators whose entries are entries of their first operand, or means of them. */
static const char *const movers[] = {"View",   "Transpose",   "Permute",        "SplitSizes",    "SliceRange",
                                     "Gather", "BroadcastTo", "ReduceMeanAxes", "ReduceMaxAxes", "ReduceMinAxes",
                                     "MaxPoolN"};
/* clang-format on */

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

/* a ** b. Powers of what is positive are at their limits where base and exponent are. */
static inv_range power(inv_range a, inv_range b)
{
    const bool even = b.lo == b.hi && fmod(b.lo, 2) == 0;
    if (even && !(a.lo >= 0)) {
        const double far = fmax(fabs(a.lo), fabs(a.hi)), near = a.hi < 0 ? -a.hi : 0;
        a = (inv_range){near, far, false};
    }
    if (!(a.lo >= 0)) return anything;
    if (a.lo == 0 && !(b.lo >= 0)) return (inv_range){0, INFINITY, b.lo > -INFINITY && isfinite(a.hi) && b.hi <= 0};
    const double p[] = {pow(a.lo, b.lo), pow(a.lo, b.hi), pow(a.hi, b.lo), pow(a.hi, b.hi)};
    inv_range r = {p[0], p[0], positive(a)};
    for (int i = 1; i < 4; i++) {
        r.lo = fmin(r.lo, p[i]);
        r.hi = fmax(r.hi, p[i]);
    }
    return r;
}

static inv_range of_two(const char *op, inv_range a, inv_range b)
{
    if (strcmp(op, "Add") == 0) return (inv_range){a.lo + b.lo, a.hi + b.hi, a.above || b.above};
    if (strcmp(op, "Sub") == 0) return (inv_range){a.lo - b.hi, a.hi - b.lo, a.above};
    if (strcmp(op, "Mul") == 0) return product(a, b);
    if (strcmp(op, "Div") == 0) return positive(b) ? product(a, reciprocal(b)) : anything;
    if (strcmp(op, "Pow") == 0) return power(a, b);
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

static inv_range of_monotone(const struct monotone *f, const inv_node *n, inv_range a)
{
    double attr[2];
    for (int i = 0; i < 2; i++) attr[i] = f->attr[i] ? inv_attr_float(n, f->attr[i], f->dflt[i]) : 0;
    if (f->attr[0] && f->f != f_clip && !(attr[0] >= 0)) return anything; /* it falls somewhere */
    bool above = f->strict ? a.above || isinf(a.lo) : a.above && a.lo >= (f->f == f_clip ? attr[0] : 0);
    return (inv_range){f->f(a.lo, attr), f->f(a.hi, attr), above && f->f != f_hard_sigmoid};
}

static inv_range range_of(inv_matcher *m, inv_id v, question *q);

static inv_range of_node(inv_matcher *m, const inv_node *n, question *q)
{
    const char *op = n->op->name;
    if (strcmp(op, "Softmax") == 0) return (inv_range){0, 1, true};
    if (strcmp(op, "LogSoftmax") == 0) return (inv_range){-INFINITY, 0, true};
    if (strcmp(op, "Sin") == 0 || strcmp(op, "Cos") == 0) return (inv_range){-1, 1, false};
    if (strcmp(op, "Cosh") == 0) return (inv_range){1, INFINITY, false};
    for (size_t i = 0; i < sizeof movers / sizeof *movers; i++)
        if (strcmp(op, movers[i]) == 0) return range_of(m, n->in[0], q);
    for (size_t i = 0; i < sizeof monotones / sizeof *monotones; i++)
        if (strcmp(op, monotones[i].op) == 0) return of_monotone(&monotones[i], n, range_of(m, n->in[0], q));
    if (strcmp(op, "Concat") == 0) {
        inv_range r = range_of(m, n->in[0], q);
        for (uint32_t k = 1; k < n->nin; k++) r = hull(r, range_of(m, n->in[k], q));
        return r;
    }
    if (strcmp(op, "Where") == 0) return hull(range_of(m, n->in[1], q), range_of(m, n->in[2], q));
    inv_range a = range_of(m, n->in[0], q);
    if (strcmp(op, "Neg") == 0) return (inv_range){-a.hi, -a.lo, false};
    if (strcmp(op, "Reciprocal") == 0) return reciprocal(a);
    bool square = strcmp(op, "Mul") == 0 && n->in[0] == n->in[1];
    if (square || strcmp(op, "Abs") == 0) {
        double far = fmax(fabs(a.lo), fabs(a.hi)), near = a.lo > 0 ? a.lo : a.hi < 0 ? -a.hi : 0;
        if (square) return (inv_range){near * near, far * far, positive(a) && (near == 0 || a.above)};
        return (inv_range){near, far, positive(a) && a.above};
    }
    if (n->nin != 2) return q->unknown;
    inv_range r = of_two(op, a, range_of(m, n->in[1], q));
    return isinf(r.lo) && isinf(r.hi) ? q->unknown : r;
}

static inv_range range_of(inv_matcher *m, inv_id v, question *q)
{
    if (v == INV_NONE || --q->left < 0) return q->unknown;
    inv_extremes x;
    if (!m->active[v]) return inv_known_extremes(m, v, &x) ? (inv_range){x.least, x.most, false} : q->unknown;
    const inv_value *val = inv_val(m->g, v);
    if (val->role != INV_ROLE_NODE || inv_nod(m->g, val->def)->nin == 0) return q->unknown;
    inv_range r = of_node(m, inv_nod(m->g, val->def), q);
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
    question q = {MOST_NODES, anything};
    return range_of(m, v, &q);
}

inv_range inv_value_typical(inv_matcher *m, inv_id v)
{
    question q = {MOST_NODES, {-2, 2, false}};
    return range_of(m, v, &q);
}
