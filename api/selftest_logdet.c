/* SPDX-License-Identifier: Apache-2.0
 * Conformance of what an inverse rule says of volumes: the log-determinant that is exported with the inverse of its
 * pattern, run on a case, against that of the pattern's Jacobian, by central differences in float64, sample by sample.
 *
 *     d(results that the solve text starts from) / d(what it frees), what the pattern takes besides held */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "api/selftest.h"
#include "core/edits/rewriting.h"
#include "core/graph/model.h"
#include "core/rules/condition.h"
#include "ops/linear/linear_solve.h"
#include "passes/export/export.h"

typedef struct place {
    inv_id value;
    int64_t at;
} place;

/* Numbers for an input of the pattern alone, then for each of its results. */
typedef struct supply {
    const char *name;
    inv_id value;
    const void *data;
    bool shown; /* to be positive */
} supply;

typedef struct volume {
    inv_test_values *v;
    const inv_edge *e;
    inv_ids freed, run; /* `run`: the nodes between what is freed and the results */
    inv_arena arena;
    int64_t n, rows;  /* elements of either side; samples that do not depend on each other */
    place *x, *y;     /* elements, sample by sample */
    double *jacobian; /* [n,n], a row per y */
    inv_graph *p;     /* the pattern alone; ... */
    inv_id *as;       /* ... per value: what it is there */
    bool *varies;     /* per value: depends on what the caller gives */
    INV_VEC(supply) supply;
    double *stated; /* [nstated], sample by sample */
    int64_t nstated;
} volume;

/* --- what depends on what is freed --- */

/* A solve text may free several values; there is an edge for each. */
static inv_status find_freed(volume *w)
{
    const inv_matches *m = w->v->g->matches;
    for (size_t i = 0; i < m->edge.n; i++)
        if (m->edge.at[i].node == w->e->node && !inv_vec_push(&w->arena, &w->freed, m->edge.at[i].frees))
            return INV_E_NOMEM;
    return INV_OK;
}

/* Outside of the pattern, what is freed leads to its results only through what is held. */
static inv_status find_nodes(volume *w)
{
    const inv_graph *g = w->v->g;
    const inv_volume *vol = w->e->volume;
    bool *moves = INV_ARENA_NEW(&w->arena, bool, g->value.n + 1), last = false;
    if (!moves) return INV_E_NOMEM;
    for (size_t i = 0; i < w->freed.n; i++) moves[w->freed.at[i]] = true;
    for (size_t i = 0; i < g->order.n && !last; i++) {
        const inv_id id = g->order.at[i];
        const inv_node *n = inv_nod(g, id);
        bool depends = false, fixed = false;
        for (uint32_t k = 0; k < n->nin; k++) depends = depends || (n->in[k] != INV_NONE && moves[n->in[k]]);
        for (uint32_t k = 0; k < n->nout; k++)
            fixed = fixed || inv_ids_have(vol->held, vol->nheld, n->out[k]) ||
                    inv_ids_have(w->freed.at, w->freed.n, n->out[k]);
        last = id == w->e->forward;
        if (!depends || fixed) continue;
        for (uint32_t k = 0; k < n->nout; k++)
            if (n->out[k] != INV_NONE) moves[n->out[k]] = true;
        if (!inv_vec_push(&w->arena, &w->run, id)) return INV_E_NOMEM;
    }
    return INV_OK;
}

/* --- elements --- */

static int64_t count_entries_of(const inv_graph *g, const inv_id *v, size_t n, int64_t *rows)
{
    int64_t sum = 0;
    for (size_t i = 0; i < n; i++) {
        const inv_shape *s = &inv_val(g, v[i])->shape;
        if (s->rank < 1 || s->dim[0] != *rows) *rows = 1;
        sum += inv_shape_nelem(s);
    }
    return sum;
}

static place *places(volume *w, const inv_id *v, size_t n)
{
    place *list = INV_ARENA_NEW(&w->arena, place, (size_t)w->n), *next = list;
    for (int64_t r = 0; list && r < w->rows; r++)
        for (size_t i = 0; i < n; i++) {
            const int64_t each = inv_shape_nelem(&inv_val(w->v->g, v[i])->shape) / w->rows;
            for (int64_t k = 0; k < each; k++) *next++ = (place){v[i], r * each + k};
        }
    return list;
}

/* *n 0: there is no determinant, or it is too large a one. */
static inv_status lay_out(volume *w)
{
    const inv_graph *g = w->v->g;
    const inv_volume *vol = w->e->volume;
    const inv_shape *first = &inv_val(g, w->freed.at[0])->shape;
    w->rows = first->rank > 0 ? first->dim[0] : 1;
    const int64_t nx = count_entries_of(g, w->freed.at, w->freed.n, &w->rows),
                  ny = count_entries_of(g, vol->from, vol->nfrom, &w->rows);
    if (nx != ny || nx == 0 || nx > INV_TEST_LOGDET) return INV_OK;
    w->n = nx;
    w->x = places(w, w->freed.at, w->freed.n);
    w->y = places(w, vol->from, vol->nfrom);
    w->jacobian = INV_ARENA_NEW(&w->arena, double, (size_t)(nx * nx));
    return w->x && w->y && w->jacobian ? INV_OK : INV_E_NOMEM;
}

/* --- measured --- */

static inv_status run_nodes(volume *w)
{
    for (size_t i = 0; i < w->run.n; i++) INV_TRY(inv_test_run(w->v, w->run.at[i]));
    return INV_OK;
}

static inv_status difference_column(volume *w, int64_t j)
{
    const place x = w->x[j];
    const double was = inv_test_get(w->v, x.value, x.at), h = 1e-5 * fmax(fabs(was), 1e-3);
    for (int sign = 1; sign >= -1; sign -= 2) {
        inv_test_put(w->v, x.value, x.at, was + sign * h);
        INV_TRY(run_nodes(w));
        for (int64_t i = 0; i < w->n; i++)
            w->jacobian[i * w->n + j] += sign * inv_test_get(w->v, w->y[i].value, w->y[i].at) / (2 * h);
    }
    inv_test_put(w->v, x.value, x.at, was);
    return INV_OK;
}

static inv_status differentiate(volume *w)
{
    for (int64_t j = 0; j < w->n; j++) INV_TRY(difference_column(w, j));
    return run_nodes(w);
}

/* Whether no sample's results depend on another sample. */
static bool apart(const volume *w)
{
    const int64_t each = w->n / w->rows;
    double most = 0, across = 0;
    for (int64_t i = 0; i < w->n; i++)
        for (int64_t j = 0; j < w->n; j++) {
            double *to = i / each == j / each ? &most : &across;
            *to = fmax(*to, fabs(w->jacobian[i * w->n + j]));
        }
    return across <= 1e-9 * most;
}

static inv_status measure(const volume *w, int64_t row, double *out)
{
    const int64_t each = w->n / w->rows, dims[2] = {each, each};
    double *block = inv_alloc(w->v->g->ctx, (size_t)(each * each) * sizeof *block);
    if (!block) return INV_E_NOMEM;
    for (int64_t i = 0; i < each; i++)
        memcpy(block + i * each, w->jacobian + (row * each + i) * w->n + row * each, (size_t)each * sizeof *block);
    const inv_data matrix = {INV_F64, inv_shape_of(2, dims), block, (size_t)(each * each) * sizeof *block};
    inv_status s = inv_linear_logdet(w->v->g->ctx, &matrix, out);
    inv_dealloc(w->v->g->ctx, block);
    return s;
}

/* --- stated: what the exporter writes for the pattern alone --- */

/* Values that depend on what the caller gives. */
static bool *find_varying(volume *w)
{
    const inv_graph *g = w->v->g;
    bool *varies = INV_ARENA_NEW(&w->arena, bool, g->value.n + 1);
    for (size_t i = 0; varies && i < g->order.n; i++) {
        const inv_node *n = inv_nod(g, g->order.at[i]);
        bool on = n->op->flags & INV_OP_SOURCE;
        for (uint32_t k = 0; k < n->nin; k++) on = on || (n->in[k] != INV_NONE && varies[n->in[k]]);
        for (uint32_t k = 0; k < n->nout; k++)
            if (n->out[k] != INV_NONE) varies[n->out[k]] = on;
    }
    return varies;
}

static bool is_freed(const volume *w, inv_id v) { return inv_ids_have(w->freed.at, w->freed.n, v); }

/* What the pattern alone gets from outside. */
static bool comes_in(const volume *w, inv_id v)
{
    return is_freed(w, v) || (w->varies[v] && inv_ids_have(w->e->volume->held, w->e->volume->nheld, v));
}

static inv_id parameter(inv_graph *p, const inv_data *data)
{
    const inv_id id = inv_graph_value(p, inv_graph_fresh(p, "w"), INV_ROLE_PARAM, data->dtype, &data->shape);
    if (id == INV_NONE) return id;
    inv_val(p, id)->data = *data;
    inv_val(p, id)->init = (inv_id)p->inits.n;
    return inv_vec_push(&p->arena, &p->inits, id) ? id : INV_NONE;
}

/* An input u, and for x that, or softplus(u) + c where all entries of x are positive: rules may ask how that is
 * known. */
static inv_id take_in(volume *w, inv_graph *p, inv_id v)
{
    const inv_value *val = inv_val(w->v->g, v);
    const int64_t n = inv_shape_nelem(&val->shape);
    double least = inv_dtype_is_float(val->dtype) ? INFINITY : 0;
    for (int64_t i = 0; i < n && least > 0; i++) least = fmin(least, inv_test_get(w->v, v, i));
    supply in = {.value = v, .data = w->v->at[v], .shown = n > 0 && least > 0};
    double *u = in.shown ? INV_ARENA_NEW(&w->arena, double, (size_t)n) : NULL;
    for (int64_t i = 0; u && i < n; i++) {
        const double above = inv_test_get(w->v, v, i) - least / 2;
        u[i] = above + log(-expm1(-above));
    }
    if (in.shown) in.data = u;
    in.name = inv_graph_fresh(p, "u");
    if (!in.name || !in.data || !inv_vec_push(&w->arena, &w->supply, in)) return INV_NONE;
    const inv_id x = inv_graph_value(p, in.name, INV_ROLE_INPUT, val->dtype, &val->shape);
    if (x == INV_NONE || !inv_vec_push(&p->arena, &p->inputs, x) || !in.shown) return x;
    double *half = INV_ARENA_NEW(&w->arena, double, 1);
    if (half) *half = least / 2;
    const inv_id c = half ? parameter(p, &(inv_data){INV_F64, inv_shape_scalar(), half, sizeof *half}) : INV_NONE;
    if (c == INV_NONE) return c;
    const inv_id e = inv_emit1(p, "Softplus", INV_IN(x), INV_NOATTR);
    return inv_emit1(p, "Add", INV_IN(e, c), INV_NOATTR);
}

/* The value in the graph of the pattern alone. */
static inv_id stand_in(volume *w, inv_graph *p, inv_id v)
{
    const inv_value *val = inv_val(w->v->g, v);
    if (w->as[v] != INV_NONE) return w->as[v];
    if (comes_in(w, v)) return w->as[v] = take_in(w, p, v);
    const bool computed = val->role == INV_ROLE_NODE;
    const inv_data data = {val->dtype, val->shape, w->v->at[v], inv_value_nbytes(inv_val(w->v->g, v))};
    w->as[v] = computed ? inv_graph_value(p, inv_graph_fresh(p, "v"), INV_ROLE_NODE, val->dtype, &val->shape)
                        : parameter(p, &data);
    return w->as[v];
}

/* Nodes that lead to the results from what comes in. */
static bool *find_nodes_between(volume *w)
{
    const inv_graph *g = w->v->g;
    bool *need = INV_ARENA_NEW(&w->arena, bool, g->value.n + 1), *taken = INV_ARENA_NEW(&w->arena, bool, g->node.n + 1);
    if (!need || !taken) return NULL;
    for (uint32_t k = 0; k < w->e->volume->nfrom; k++) need[w->e->volume->from[k]] = true;
    for (size_t i = g->order.n; i-- > 0;) {
        const inv_node *n = inv_nod(g, g->order.at[i]);
        bool wanted = false;
        for (uint32_t k = 0; k < n->nout; k++)
            wanted = wanted || (n->out[k] != INV_NONE && need[n->out[k]] && !comes_in(w, n->out[k]));
        taken[g->order.at[i]] = wanted;
        for (uint32_t k = 0; k < n->nin && wanted; k++)
            if (n->in[k] != INV_NONE) need[n->in[k]] = true;
    }
    return taken;
}

static inv_status copy_node(volume *w, inv_graph *p, const inv_node *n)
{
    inv_id *in = INV_ARENA_NEW(&w->arena, inv_id, n->nin + 1), *out = INV_ARENA_NEW(&w->arena, inv_id, n->nout + 1);
    if (!in || !out) return INV_E_NOMEM;
    for (uint32_t k = 0; k < n->nin; k++) in[k] = n->in[k] == INV_NONE ? INV_NONE : stand_in(w, p, n->in[k]);
    for (uint32_t k = 0; k < n->nout; k++) out[k] = n->out[k] == INV_NONE ? INV_NONE : stand_in(w, p, n->out[k]);
    const inv_id id = inv_graph_node(p, n->op->domain, n->op->name, "", n->nin, in, n->nout, out, n->nattr, n->attr);
    return id != INV_NONE && inv_vec_push(&p->arena, &p->order, id) ? p->failed : INV_E_NOMEM;
}

enum { OPSET = 18 }; /* that inverses are written in */

static inv_status pattern_graph(volume *w, inv_graph *p)
{
    const inv_graph *g = w->v->g;
    const inv_volume *vol = w->e->volume;
    const inv_opset written = {.domain = "", .version = OPSET};
    w->varies = find_varying(w);
    w->as = INV_ARENA_NEW(&w->arena, inv_id, g->value.n + 1);
    const bool *taken = w->varies ? find_nodes_between(w) : NULL;
    if (!taken || !w->as || !inv_vec_push(&p->arena, &p->opset, written)) return INV_E_NOMEM;
    p->real = INV_F64;
    for (size_t v = 0; v < g->value.n; v++) w->as[v] = INV_NONE;
    for (size_t i = 0; i < w->freed.n; i++)
        if (stand_in(w, p, w->freed.at[i]) == INV_NONE) return INV_E_NOMEM;
    for (size_t i = 0; i < g->order.n; i++)
        if (taken[g->order.at[i]]) INV_TRY(copy_node(w, p, inv_nod(g, g->order.at[i])));
    for (size_t i = 0; i < p->order.n; i++) inv_nod(p, p->order.at[i])->source = (inv_id)i;
    for (uint32_t k = 0; k < vol->nfrom; k++) {
        const inv_id y = stand_in(w, p, vol->from[k]);
        if (y == INV_NONE || !inv_vec_push(&p->arena, &p->outputs, y)) return INV_E_NOMEM;
        inv_val(p, y)->is_output = true;
        const supply out = {.name = inv_val(p, y)->name, .value = vol->from[k], .data = w->v->at[vol->from[k]]};
        if (!inv_vec_push(&w->arena, &w->supply, out)) return INV_E_NOMEM;
    }
    return p->failed;
}

#define LOGDET "logdet"

/* The inverse of the pattern, from its results and what is held. */
static inv_status reversed(volume *w, inv_rewriting **out)
{
    inv_context *ctx = w->v->g->ctx;
    inv_graph *p;
    size_t n = 0;
    INV_TRY(inv_graph_create(ctx, "pattern", &p));
    inv_status s = pattern_graph(w, p);
    const char **given = s == INV_OK ? INV_ARENA_NEW(&w->arena, const char *, p->inputs.n + 1) : NULL;
    for (size_t i = 0; given && i < w->supply.n - w->e->volume->nfrom; i++)
        if (!is_freed(w, w->supply.at[i].value)) given[n++] = w->supply.at[i].name;
    const inv_reverse_options o = {.size = sizeof o, .given = given, .ngiven = n, .with_logdet = LOGDET};
    const inv_session_options shapes = {.size = sizeof shapes}; /* all are in the graph */
    if (s == INV_OK) s = given ? inv_reverse_model(ctx, p, &shapes, &o, true, out) : INV_E_NOMEM;
    w->p = p; /* which has the names */
    return s;
}

static inv_status feed(const volume *w, const inv_graph *g, inv_id input, inv_array *to)
{
    const char *name = inv_val(g, input)->name;
    for (size_t i = 0; i < w->supply.n; i++) {
        const supply *s = &w->supply.at[i];
        const inv_value *val = inv_val(w->v->g, s->value);
        if (strcmp(s->name, name) != 0) continue;
        *to = (inv_array){
            .name = name, .dtype = val->dtype, .rank = val->shape.rank, .dims = val->shape.dim, .data = s->data};
        return INV_OK;
    }
    return inv_fail(g->ctx, INV_E_INTERNAL, "the inverse of the pattern takes '%s', which the pattern has not", name);
}

/* Its log-determinants, of the inverse direction, sample by sample. */
static inv_status run_reversed(volume *w, inv_graph *g)
{
    inv_array in[INV_TEST_INPUTS];
    inv_model model = {.ctx = g->ctx, .path = "pattern", .graph = g};
    inv_session *s;
    inv_result r;
    const void *data;
    inv_dtype dtype;
    int rank;
    int64_t dims[INV_MAX_RANK];
    INV_CHECK(g->inputs.n <= INV_TEST_INPUTS, g->ctx, INV_E_ARG, "it reads more than %d values", INV_TEST_INPUTS);
    for (size_t i = 0; i < g->inputs.n; i++) INV_TRY(feed(w, g, g->inputs.at[i], &in[i]));
    const inv_session_options o = {.size = sizeof o, .inputs = in, .ninputs = g->inputs.n, .float64 = true};
    INV_TRY(inv_session_create(&model, &o, &s));
    inv_status st = inv_session_eval(s, in, g->inputs.n, NULL, &r);
    if (st == INV_OK) st = inv_session_get(s, INV_GET_OUTPUT, LOGDET, &data, &dtype, &rank, dims);
    if (st == INV_OK) {
        w->nstated = rank ? dims[0] : 1;
        w->stated = INV_ARENA_NEW(&w->arena, double, (size_t)w->nstated + 1);
        for (int64_t i = 0; w->stated && i < w->nstated; i++) w->stated[i] = -inv_elem_double(data, dtype, (size_t)i);
    }
    inv_session_destroy(s);
    return st == INV_OK && !w->stated ? INV_E_NOMEM : st;
}

/* Without that of softplus, where take_in has put it: the sum of log sigmoid(u). */
static void leave_out_shown(volume *w)
{
    for (size_t i = 0; i < w->supply.n; i++) {
        const supply *s = &w->supply.at[i];
        const int64_t n = inv_shape_nelem(&inv_val(w->v->g, s->value)->shape) / w->nstated;
        const double *u = s->data;
        for (int64_t k = 0; s->shown && is_freed(w, s->value) && k < n * w->nstated; k++)
            w->stated[k / n] += log1p(exp(-u[k]));
    }
}

static inv_status state(volume *w)
{
    inv_rewriting *r = NULL;
    inv_status s = reversed(w, &r);
    if (s == INV_OK) s = run_reversed(w, r->reversed);
    if (s == INV_OK) leave_out_shown(w);
    inv_rewriting_destroy(r);
    inv_graph_destroy(w->p);
    return s;
}

/* --- both --- */

static double off(double stated, double measured)
{
    return isfinite(stated) && isfinite(measured) ? fabs(stated - measured) : INFINITY;
}

/* A term that stands twice in the text, as it is written there; false: none does. */
static bool stated_twice(const char *logdet, char *to, size_t room)
{
    inv_condition a, b;
    while (inv_condition_next(&logdet, INV_IN_LOGDET, &a) > 0)
        for (const char *rest = logdet; inv_condition_next(&rest, INV_IN_LOGDET, &b) > 0;) {
            if (a.id != b.id || strcmp(a.arg[0], b.arg[0]) != 0 || strcmp(a.arg[1], b.arg[1]) != 0) continue;
            snprintf(to, room, "%s%s%s%s%s%s", a.name, a.nargs ? "(" : "", a.arg[0], a.nargs > 1 ? ", " : "", a.arg[1],
                     a.nargs ? ")" : "");
            return true;
        }
    return false;
}

static void advise(inv_tester *t, const inv_inverse_def *rule, double stated, double measured, double fair)
{
    char term[2 * INV_MAX_RULE_NAME + 32];
    if (off(-stated, measured) <= fair) inv_test_help(t, "state it with the other sign");
    else if (fabs(measured) <= fair) inv_test_help(t, "state `logdet 0`: it keeps volumes here");
    else if (stated_twice(rule->logdet, term, sizeof term))
        inv_test_help(t, "`logdet` has %s twice, and both count: leave one out", term);
    else
        inv_test_help(t, "it has one term for each factor of dy/dx: log_abs(s), log_det(W), log_deriv. Leave `logdet` "
                         "out if these cannot express it");
}

/* The sample where they differ most. */
static inv_status compare_volumes(inv_tester *t, const volume *w)
{
    double stated = 0, measured = 0, worst = -1;
    int64_t row = 0;
    for (int64_t r = 0; r < w->rows; r++) {
        double says, is;
        says = 0;
        for (int64_t k = 0; k < w->nstated / w->rows; k++) says += w->stated[r * (w->nstated / w->rows) + k];
        INV_TRY(measure(w, r, &is));
        if (off(says, is) <= worst) continue;
        worst = off(says, is);
        stated = says, measured = is, row = r;
    }
    const int64_t each = w->n / w->rows; /* elements of a sample */
    const double fair = 1e-5 * (double)each;
    const bool fine = worst <= fair, first = !t->logdets++;
    if (first || ((!t->changed || !fine) && worst > off(t->stated_logdet, t->measured_logdet))) {
        t->stated_logdet = stated;
        t->measured_logdet = measured;
    }
    char sample[48] = "";
    if (w->rows > 1) snprintf(sample, sizeof sample, "of sample %lld ", (long long)row);
    advise(t, w->e->rule, stated, measured, fair);
    (void)inv_test(t, fine, "log-determinant", "%sit is %.9g by differences, the rule says %.9g", sample, measured,
                   stated);
    return INV_OK;
}

static inv_status check(inv_tester *t, volume *w)
{
    INV_TRY(find_freed(w));
    INV_TRY(find_nodes(w));
    INV_TRY(lay_out(w));
    if (!w->n) return INV_OK;
    INV_TRY(differentiate(w));
    if (!apart(w)) w->rows = 1; /* then only the whole batch has a determinant */
    const inv_status s = state(w);
    if (s == INV_OK) return compare_volumes(t, w);
    if (s == INV_E_NOMEM) return s;
    if (s == INV_E_NOT_INVERTIBLE) { /* in one case, but not in all (selftest_rule.c) */
        snprintf(t->not_exported, sizeof t->not_exported, "%s", inv_context_message(t->ctx));
        return INV_OK;
    }
    (void)inv_test(t, false, "log-determinant", "it cannot be exported: %s", inv_context_message(t->ctx));
    return INV_OK;
}

inv_status inv_test_logdet(inv_tester *t, inv_test_values *v, const inv_edge *e)
{
    volume w = {.v = v, .e = e};
    if (!e->volume || !e->volume->known) return INV_OK;
    for (const inv_edge *other = v->g->matches->edge.at; other < e; other++)
        if (other->node == e->node) return INV_OK; /* done with that */
    inv_arena_init(&w.arena, t->ctx);
    inv_status s = check(t, &w);
    inv_arena_fini(&w.arena);
    return s;
}
