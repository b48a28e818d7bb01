/* SPDX-License-Identifier: Apache-2.0
 * Conformance of an inverse rule over its domain, which is what its `when` accepts: each case again with inputs of
 * other sizes, with a larger batch, and with the parameters of the pattern changed, one by one: an entry that is zero,
 * or just inside of what away_from_zero allows, and all of them negated, larger and smaller. Where the rule is still
 * found, it has to hold. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "core/condition.h"
#include "executor/selftest.h"

/* The case again. */
typedef struct change {
    double size;       /* of the inputs, in those of the case */
    int64_t rows;      /* more along their first axis */
    size_t param;      /* NONE, or which initializer: ... */
    double times, put; /* ... its entries are multiplied; unless `put` is NAN, it is the first one */
    bool wide;
} change;

#define NONE SIZE_MAX

/* --- what is changed --- */

static void more_rows(inv_graph *g, int64_t rows)
{
    for (size_t i = 0; i < g->inputs.n; i++) {
        inv_shape *s = &inv_val(g, g->inputs.at[i])->shape;
        if (s->rank > 0 && s->dim[0] > 0) s->dim[0] += rows;
    }
}

static inv_status change_param(inv_graph *g, const change *ch)
{
    inv_value *v = inv_val(g, g->inits.at[ch->param]);
    const size_t n = (size_t)inv_shape_nelem(&v->shape);
    float *data = INV_ARENA_NEW(&g->arena, float, n + 1);
    if (!data) return INV_E_NOMEM;
    for (size_t i = 0; i < n; i++)
        data[i] =
            (float)(i == 0 && !isnan(ch->put) ? ch->put : ch->times * inv_elem_double(v->data.bytes, v->data.dtype, i));
    v->data = (inv_data){INV_F32, v->shape, data, n * sizeof *data};
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

/* --- one change --- */

static inv_status run_case(inv_tester *t, const inv_inverse_def *rule, inv_test_case *c, const change *ch, double *off,
                           bool *found)
{
    inv_session *s;
    resize_inputs(c, ch->size);
    INV_TRY(inv_test_session(c, (inv_test_how){INV_MEMORY_STORE, "cpu", ch->wide}, &s)); /* nothing is searched for */
    const inv_plan *p = &s->program->plan[INV_PLAN_MAIN];
    *found = is_found(p->base, rule);
    inv_status st = *found ? inv_test_edges(t, p, rule, c, ch->wide, ch->size == 1, off) : INV_OK;
    inv_session_destroy(s);
    return st;
}

/* *found: the rule is; a case that cannot be compiled so is no fault of it. */
static inv_status try_change(inv_tester *t, const inv_inverse_def *rule, const change *ch, double *off, bool *found)
{
    inv_graph *g;
    inv_test_case c;
    *found = false;
    *off = 0;
    INV_TRY(inv_graph_parse(t->ctx, t->text, &g));
    more_rows(g, ch->rows);
    inv_status s = inv_test_open(t, g, &c);
    if (s == INV_OK && ch->param != NONE) s = change_param(g, ch);
    if (s == INV_OK) s = run_case(t, rule, &c, ch, off, found);
    inv_test_close(&c);
    return s == INV_E_NOMEM ? s : INV_OK;
}

/* --- all of them --- */

static inv_status try_sizes(inv_tester *t, const inv_inverse_def *rule)
{
    static const double sizes[] = {1e-3, 0.1, 1, 3, 10, 100, 1e3, 1e4, 1e6};
    char how[64];
    for (int wide = 0; wide < 2; wide++) {
        double largest = 0, lost = 0;
        for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
            const change ch = {.size = sizes[i], .param = NONE, .wide = wide};
            double off;
            bool found;
            snprintf(how, sizeof how, "cpu, float%d, inputs times %g", wide ? 64 : 32, sizes[i]);
            t->how = how;
            const inv_status s = try_change(t, rule, &ch, &off, &found);
            t->how = "";
            INV_TRY(s);
            if (!found || lost > 0) continue;
            if (off <= 1e-3) largest = sizes[i];
            else lost = off;
        }
        if (t->seen.largest[wide] == 0 || largest < t->seen.largest[wide]) {
            t->seen.largest[wide] = largest;
            t->seen.lost[wide] = lost;
        }
    }
    return INV_OK;
}

/* What would help if a change of the parameter shows a mistake. */
static void advise(const change *ch, const char *name, char *to, size_t room)
{
    if (isnan(ch->put) && ch->times > 0)
        snprintf(to, room, "say in `when` how large or small '%s' may be, or state a gain that grows with it", name);
    else if (isnan(ch->put)) snprintf(to, room, "ask for positive of '%s' in `when`, if it may not be negative", name);
    else if (ch->put == 0)
        snprintf(to, room, "ask for away_from_zero of '%s' in `when`, and for max_inv of it in `gain`", name);
    else snprintf(to, room, "state a gain that grows as '%s' nears zero: max_inv of it", name);
}

static inv_status try_param(inv_tester *t, const inv_inverse_def *rule, const char *name, const change *ch)
{
    char how[256], remedy[256];
    double off;
    bool found;
    const size_t failed = t->failed;
    if (isnan(ch->put)) snprintf(how, sizeof how, "cpu, float64, '%s' times %g", name, ch->times);
    else snprintf(how, sizeof how, "cpu, float64, '%s' with %.7g as its first entry", name, ch->put);
    advise(ch, name, remedy, sizeof remedy);
    t->how = how;
    t->remedy = remedy;
    inv_status s = try_change(t, rule, ch, &off, &found);
    t->seen.changes++;
    t->seen.held += found;
    if (s == INV_OK && found && t->failed == failed)
        (void)inv_test(t, isfinite(off), "domain", "`when` accepts this, and what comes back is not finite");
    t->remedy = NULL;
    t->how = "";
    return s;
}

/* Just inside of each away_from_zero of the rule. */
static inv_status try_edges(inv_tester *t, const inv_inverse_def *rule, const char *name, change ch)
{
    const char *p = rule->when;
    inv_condition c;
    while (p && inv__condition_next(&p, INV_IN_WHEN, &c) > 0) {
        if (c.id != INV_WHEN_away_from_zero) continue;
        ch.put = c.number * 1.001;
        INV_TRY(try_param(t, rule, name, &ch));
    }
    return INV_OK;
}

static inv_status try_params(inv_tester *t, const inv_inverse_def *rule, const inv_test_case *c, const bool *matters)
{
    static const double times[] = {-1, 100, 0.01};
    const inv_graph *g = c->model.graph;
    for (size_t i = 0; i < g->inits.n; i++) {
        const inv_value *v = inv_val(g, g->inits.at[i]);
        if (!matters[i]) continue;
        change ch = {.size = 1, .param = i, .times = 1, .put = 0, .wide = true};
        INV_TRY(try_param(t, rule, v->name, &ch));
        INV_TRY(try_edges(t, rule, v->name, ch));
        ch.put = (double)NAN;
        for (size_t k = 0; k < sizeof times / sizeof *times; k++) {
            ch.times = times[k];
            INV_TRY(try_param(t, rule, v->name, &ch));
        }
    }
    return INV_OK;
}

/* --- which parameters the pattern takes --- */

static inv_id value_called(const inv_graph *g, const char *name)
{
    for (inv_id v = 0; v < g->value.n; v++)
        if (inv_val(g, v)->role == INV_ROLE_PARAM && strcmp(inv_val(g, v)->name, name) == 0) return v;
    return INV_NONE;
}

/* Marks what is computed of v in forward. */
static bool reaches_held(const inv_graph *g, const inv_inverse_def *rule, inv_id from, bool *mark)
{
    bool reaches = false;
    memset(mark, 0, g->value.n * sizeof *mark);
    mark[from] = true;
    for (size_t i = 0; i < g->order.n; i++) {
        const inv_node *n = inv_nod(g, g->order.at[i]);
        bool on = false;
        for (uint32_t k = 0; k < n->nin; k++) on = on || (n->in[k] != INV_NONE && mark[n->in[k]]);
        for (uint32_t k = 0; k < n->nout && on; k++)
            if (n->out[k] != INV_NONE) mark[n->out[k]] = true;
    }
    for (size_t i = 0; i < g->matches->edge.n; i++) {
        const inv_edge *e = &g->matches->edge.at[i];
        for (uint32_t k = 0; e->rule == rule && k < e->volume->nheld; k++)
            reaches = reaches || mark[e->volume->held[k]];
    }
    return reaches;
}

inv_status inv_test_domain(inv_tester *t, const inv_inverse_def *rule, const inv_plan *p, const inv_test_case *c)
{
    const inv_graph *g = c->model.graph;
    const change batch = {.size = 1, .rows = 1, .param = NONE, .wide = true};
    bool *mark = inv__alloc(t->ctx, p->base->value.n + 1), *matters = inv__alloc(t->ctx, g->inits.n + 1), found;
    double off;
    inv_status s = mark && matters ? INV_OK : INV_E_NOMEM;
    for (size_t i = 0; i < g->inits.n && s == INV_OK; i++) {
        const inv_value *v = inv_val(g, g->inits.at[i]);
        const inv_id is = inv_dtype_is_float(v->dtype) ? value_called(p->base, v->name) : INV_NONE;
        matters[i] = is != INV_NONE && reaches_held(p->base, rule, is, mark);
    }
    t->changed = true;
    if (s == INV_OK) s = try_sizes(t, rule);
    t->how = "cpu, float64, a larger batch";
    if (s == INV_OK) s = try_change(t, rule, &batch, &off, &found);
    t->how = "";
    if (s == INV_OK) s = try_params(t, rule, c, matters);
    t->changed = false;
    inv__free(t->ctx, mark);
    inv__free(t->ctx, matters);
    return s;
}
