/* SPDX-License-Identifier: Apache-2.0
 * Conformance of an inverse rule over its domain, which is what its `when` accepts: each case again with inputs of
 * other sizes, with a larger batch, and with the numbers that the pattern takes changed, parameters and constants, one
 * by one: all entries one more, an entry that is zero, or just inside of what away_from_zero allows, and all of them
 * negated, larger and smaller. Where the rule is still found, it has to hold. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "api/selftest.h"
#include "core/base/shape.h"
#include "core/rules/condition.h"

/* The case again. */
typedef struct change {
    double size;        /* of the inputs, in those of the case */
    int64_t rows;       /* more along their first axis */
    inv_id operand;     /* INV_NONE, or a parameter or constant of the case, ... */
    double times, plus; /* ... whose entries are multiplied by the first and become more by the other; ... */
    double put;         /* ... unless this is NAN, it is the first entry */
    bool wide;
} change;

/* A value that the pattern takes besides what is freed. */
typedef struct taken {
    const char *name; /* in the pattern */
    uint64_t hash;    /* of its entries */
    bool one, fixed;  /* one: all entries are `number`; fixed: it is a constant */
    double number;
} taken;

typedef struct domain {
    inv_tester *t;
    const inv_inverse_def *rule;
    inv_arena arena;
    INV_VEC(taken) taken; /* of the case as it is, edge by edge */
} domain;

/* --- what is changed --- */

static void more_rows(inv_graph *g, int64_t rows)
{
    for (size_t i = 0; i < g->inputs.n; i++) {
        inv_shape *s = &inv_val(g, g->inputs.at[i])->shape;
        if (s->rank > 0 && s->dim[0] > 0) s->dim[0] += rows;
    }
}

static inv_status change_operand(inv_graph *g, const change *ch)
{
    inv_value *v = inv_val(g, ch->operand);
    const size_t n = (size_t)inv_shape_nelem(&v->shape);
    double *data = INV_ARENA_NEW(&g->arena, double, n + 1);
    void *bytes = inv_arena_alloc(&g->arena, v->data.nbytes + 1);
    if (!data || !bytes) return INV_E_NOMEM;
    for (size_t i = 0; i < n; i++)
        data[i] = i == 0 && !isnan(ch->put) ? ch->put
                                            : ch->times * inv_elem_double(v->data.bytes, v->data.dtype, i) + ch->plus;
    (void)inv_convert(bytes, v->data.dtype, data, INV_F64, n);
    v->data.bytes = bytes;
    return INV_OK;
}

static void resize_inputs(inv_test_case *c, double size)
{
    for (size_t i = 0; i < c->feeds.n; i++) {
        const inv_array *a = &c->feeds.in[i];
        double *data = c->feeds.data[i];
        int64_t n = 1;
        for (int d = 0; d < a->rank; d++) n *= a->dims[d];
        for (int64_t k = 0; a->dtype == INV_F64 && k < n; k++) data[k] *= size;
    }
}

static bool is_found(const inv_graph *g, const inv_inverse_def *rule)
{
    for (size_t i = 0; i < g->matches->edge.n; i++)
        if (g->matches->edge.at[i].rule == rule) return true;
    return false;
}

/* --- what the pattern takes --- */

static taken describe(const inv_test_values *v, const inv_volume *of, uint32_t k)
{
    const inv_value *val = inv_val(v->g, of->held[k]);
    const int64_t n = inv_shape_nelem(&val->shape);
    taken x = {.name = of->held_name[k], .fixed = val->role == INV_ROLE_CONST};
    if (!v->at[of->held[k]]) return x; /* layout has put another in its place */
    x.one = n > 0;
    x.hash = inv_hash(v->at[of->held[k]], inv_value_nbytes(val), 0);
    x.number = n > 0 ? inv_test_get(v, of->held[k], 0) : 0;
    for (int64_t i = 0; i < n && x.one; i++) x.one = inv_test_get(v, of->held[k], i) == x.number;
    return x;
}

/* *other becomes one that is not as it was; a constant rather than another. NULL: all are. If `first`, they are noted.
 */
static inv_status compare_taken(domain *d, const inv_plan *p, const inv_test_case *c, bool first, const taken **other)
{
    inv_test_values v;
    size_t at = 0;
    inv_status s = inv_test_forward(p, c, &v);
    *other = NULL;
    for (size_t i = 0; i < p->base->matches->edge.n && s == INV_OK; i++) {
        const inv_edge *e = &p->base->matches->edge.at[i];
        for (uint32_t k = 0; e->rule == d->rule && k < e->volume->nheld && s == INV_OK; k++, at++) {
            const taken is = describe(&v, e->volume, k);
            if (first && !inv_vec_push(&d->arena, &d->taken, is)) s = INV_E_NOMEM;
            if (first || at >= d->taken.n || d->taken.at[at].hash == is.hash) continue;
            if (!*other || (d->taken.at[at].fixed && !(*other)->fixed)) *other = &d->taken.at[at];
        }
    }
    inv_test_values_fini(&v);
    return s;
}

/* --- one change --- */

/* What a change has come to. */
typedef struct outcome {
    bool found; /* the rule is; a case that cannot be compiled so is no fault of it */
    bool idle;  /* the pattern takes nothing that has changed */
    double off; /* what comes back, relative */
} outcome;

/* What would help if a change of an operand shows a mistake. `was`: what the pattern takes of it. */
static void advise(const change *ch, const taken *was, char *to, size_t room)
{
    const char *name = was->name;
    if (was->fixed && was->one)
        snprintf(to, room,
                 "ask for number(%s) == %.9g in `when`, or let solve, gain and logdet be right for every number '%s'",
                 name, was->number, name);
    else if (isnan(ch->put) && ch->times > 0)
        snprintf(to, room, "say in `when` how large or small '%s' may be, or state a gain that grows with it", name);
    else if (isnan(ch->put)) snprintf(to, room, "ask for positive of '%s' in `when`, if it may not be negative", name);
    else if (ch->put == 0)
        snprintf(to, room, "ask for away_from_zero of '%s' in `when`, and for max_inv of it in `gain`", name);
    else snprintf(to, room, "state a gain that grows as '%s' nears zero: max_inv of it", name);
}

static inv_status run_case(domain *d, inv_test_case *c, const change *ch, outcome *out)
{
    inv_tester *t = d->t;
    const size_t failed = t->failed;
    const taken *was = NULL;
    char remedy[512];
    inv_session *s;
    inv_status st = INV_OK;
    resize_inputs(c, ch->size);
    INV_TRY(inv_test_session(c, (inv_test_how){INV_MEMORY_STORE, "cpu", ch->wide}, &s)); /* nothing is searched for */
    const inv_plan *p = &s->program->plan[INV_PLAN_MAIN];
    out->found = is_found(p->base, d->rule);
    if (out->found && ch->operand != INV_NONE) st = compare_taken(d, p, c, false, &was);
    out->idle = out->found && ch->operand != INV_NONE && !was;
    if (was) {
        advise(ch, was, remedy, sizeof remedy);
        t->remedy = remedy;
    }
    if (st == INV_OK && out->found && !out->idle)
        st = inv_test_edges(t, p, d->rule, c, ch->wide, ch->size == 1, &out->off);
    if (st == INV_OK && was && t->failed == failed)
        (void)inv_test(t, isfinite(out->off), "domain", "`when` accepts this, but the restored value is not finite");
    t->remedy = NULL;
    inv_session_destroy(s);
    return st;
}

static inv_status try_change(domain *d, const change *ch, outcome *out)
{
    inv_graph *g;
    inv_test_case c;
    *out = (outcome){0};
    INV_TRY(inv_graph_parse(d->t->ctx, d->t->text, &g));
    more_rows(g, ch->rows);
    inv_status s = inv_test_open(d->t, g, &c);
    if (s == INV_OK && ch->operand != INV_NONE) s = change_operand(g, ch);
    if (s == INV_OK) s = run_case(d, &c, ch, out);
    inv_test_close(&c);
    return s == INV_E_NOMEM ? s : INV_OK;
}

/* --- all of them --- */

static inv_status try_sizes(domain *d)
{
    static const double sizes[] = {1e-3, 0.1, 1, 3, 10, 100, 1e3, 1e4, 1e6};
    inv_tester *t = d->t;
    char how[64];
    for (int wide = 0; wide < 2; wide++) {
        double largest = 0, lost = 0;
        for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
            const change ch = {.size = sizes[i], .operand = INV_NONE, .wide = wide};
            outcome out;
            snprintf(how, sizeof how, "cpu, float%d, inputs times %g", wide ? 64 : 32, sizes[i]);
            t->how = how;
            const inv_status s = try_change(d, &ch, &out);
            t->how = "";
            INV_TRY(s);
            if (!out.found || lost > 0) continue;
            if (out.off <= 1e-3) largest = sizes[i];
            else lost = out.off;
        }
        if (t->seen.largest[wide] == 0 || largest < t->seen.largest[wide]) {
            t->seen.largest[wide] = largest;
            t->seen.lost[wide] = lost;
        }
    }
    return INV_OK;
}

static void say_change(const inv_value *v, const change *ch, char *to, size_t room)
{
    const size_t n = (size_t)inv_shape_nelem(&v->shape);
    const double first = inv_elem_double(v->data.bytes, v->data.dtype, 0);
    if (v->role == INV_ROLE_CONST && n == 1)
        snprintf(to, room, "cpu, float64, %.7g in place of the case's %.7g",
                 isnan(ch->put) ? ch->times * first + ch->plus : ch->put, first);
    else if (!isnan(ch->put)) snprintf(to, room, "cpu, float64, '%s' with %.7g as its first entry", v->name, ch->put);
    else if (ch->plus != 0) snprintf(to, room, "cpu, float64, '%s' plus %g", v->name, ch->plus);
    else snprintf(to, room, "cpu, float64, '%s' times %g", v->name, ch->times);
}

/* *idle: the pattern takes nothing of this operand. */
static inv_status try_operand(domain *d, const inv_value *v, const change *ch, bool *idle)
{
    char how[256];
    outcome out;
    say_change(v, ch, how, sizeof how);
    d->t->how = how;
    const inv_status s = try_change(d, ch, &out);
    d->t->how = "";
    *idle = out.idle;
    d->t->seen.changes += !out.idle;
    d->t->seen.held += out.found && !out.idle;
    return s;
}

/* Just inside of each away_from_zero of the rule. */
static inv_status try_edges(domain *d, const inv_value *v, change ch)
{
    const char *p = d->rule->when;
    inv_condition c;
    bool idle;
    while (p && inv_condition_next(&p, INV_IN_WHEN, &c) > 0) {
        if (c.id != INV_WHEN_away_from_zero) continue;
        ch.put = c.number * 1.001;
        INV_TRY(try_operand(d, v, &ch, &idle));
    }
    return INV_OK;
}

/* The first change, of every entry, shows whether the pattern takes the operand at all. */
static inv_status try_operands(domain *d, const inv_graph *g)
{
    static const double times[] = {-1, 64, 1.0 / 64}; /* a power of two stays one, which simplifying asks for */
    for (inv_id i = 0; i < g->value.n; i++) {
        const inv_value *v = inv_val(g, i);
        bool idle;
        if ((v->role != INV_ROLE_PARAM && v->role != INV_ROLE_CONST) || !inv_dtype_is_float(v->dtype) ||
            !v->data.bytes || inv_shape_nelem(&v->shape) < 1)
            continue;
        change ch = {.size = 1, .operand = i, .times = 1, .plus = 1, .put = (double)NAN, .wide = true};
        INV_TRY(try_operand(d, v, &ch, &idle));
        if (idle) continue;
        ch.plus = 0;
        ch.put = inv_elem_double(v->data.bytes, v->data.dtype, 0) == 0;
        INV_TRY(try_operand(d, v, &ch, &idle));
        INV_TRY(try_edges(d, v, ch));
        ch.put = (double)NAN;
        for (size_t k = 0; k < sizeof times / sizeof *times; k++) {
            ch.times = times[k];
            INV_TRY(try_operand(d, v, &ch, &idle));
        }
    }
    return INV_OK;
}

inv_status inv_test_domain(inv_tester *t, const inv_inverse_def *rule, const inv_plan *p, const inv_test_case *c)
{
    const change batch = {.size = 1, .rows = 1, .operand = INV_NONE, .wide = true};
    domain d = {.t = t, .rule = rule};
    const taken *none;
    outcome out;
    inv_arena_init(&d.arena, t->ctx);
    inv_status s = compare_taken(&d, p, c, true, &none);
    t->changed = true;
    if (s == INV_OK) s = try_sizes(&d);
    t->how = "cpu, float64, a larger batch";
    if (s == INV_OK) s = try_change(&d, &batch, &out);
    t->how = "";
    if (s == INV_OK) s = try_operands(&d, c->model.graph);
    t->changed = false;
    inv_arena_fini(&d.arena);
    return s;
}
