/* SPDX-License-Identifier: Apache-2.0
 * A flow's own log-determinant beside that of the rules, once, before the first step. Exporters fold what depends on
 * parameters alone into constants, and the loss is then right for the weights that were exported and wrong for all
 * others; so values are compared, and how they follow the weights. What differs by one number for all samples and
 * weights (the scaling of data) trains as it should, and is told. */
#include <math.h>
#include <string.h>

#include "executor/executor.h"

typedef struct comparison {
    inv_context *ctx;
    const inv_program *p;
    const inv_session_options *o; /* complete */
    inv_volumes v;
    inv_model model; /* with v.g */
    inv_arena a;
    inv_array *in;
    size_t nin;
    bool float64;
    size_t peak;         /* of the session that asks: what may be taken before it */
    double *own, *rules; /* [nown], [rows] */
    int64_t rows, nown;
    double *by_rules, *off; /* per initializer: norms of the gradients of v.sum, v.difference */
} comparison;

/* --- rows --- */

/* Of an open batch half the rows, in float64, and no more than a few: it takes no more memory than a step. */
static inv_status take_rows(comparison *c, const inv_session_options *given)
{
    enum { MOST = 8 };
    const inv_graph *g = c->v.g;
    int64_t batch = c->nin && given->inputs[0].rank > 0 ? given->inputs[0].dims[0] : 0;
    c->in = INV_ARENA_NEW(&c->a, inv_array, c->nin + 1);
    if (!c->in) return INV_E_NOMEM;
    for (size_t i = 0; i < c->nin; i++) {
        const inv_array *x = &given->inputs[i];
        const inv_id v = inv_graph_find(g, x->name);
        const inv_shape *s = v == INV_NONE ? NULL : &inv_val(g, v)->shape;
        if (!s || s->rank < 1 || s->dim[0] >= 0 || x->rank < 1 || x->dims[0] != batch) batch = 0;
        c->in[i] = *x;
    }
    const int64_t rows = batch / 2 < MOST ? batch / 2 : MOST;
    c->float64 = c->o->float64 || rows > 0;
    for (size_t i = 0; i < c->nin && rows > 0; i++) {
        int64_t *dims = INV_ARENA_NEW(&c->a, int64_t, (size_t)c->in[i].rank);
        if (!dims) return INV_E_NOMEM;
        memcpy(dims, c->in[i].dims, (size_t)c->in[i].rank * sizeof *dims);
        dims[0] = rows;
        c->in[i].dims = dims;
    }
    return INV_OK;
}

/* --- running --- */

static inv_session_options options_for(const comparison *c, const char *const *loss)
{
    inv_session_options o = inv_forward_options(c->o);
    o.purpose = loss ? INV_FOR_TRAIN : INV_FOR_EVAL;
    o.inputs = c->in;
    o.ninputs = c->nin;
    o.loss = loss ? INV_LOSS_OUTPUT : INV_LOSS_NONE;
    o.loss_outputs = loss;
    o.nloss_outputs = loss != NULL;
    o.float64 = c->float64;
    return o;
}

static inv_status read_output(comparison *c, inv_session *s, const char *name, double **to, int64_t *n)
{
    const void *data;
    inv_dtype t;
    int rank;
    int64_t dims[INV_MAX_RANK];
    INV_TRY(inv_session_get(s, INV_GET_OUTPUT, name, &data, &t, &rank, dims));
    *n = rank ? dims[0] : 1;
    *to = INV_ARENA_NEW(&c->a, double, (size_t)*n + 1);
    for (int64_t i = 0; *to && i < *n; i++) (*to)[i] = inv_elem_double(data, t, (size_t)i);
    return *to ? INV_OK : INV_E_NOMEM;
}

static inv_status run_values(comparison *c)
{
    const inv_session_options o = options_for(c, NULL);
    static double zero;
    inv_session *s;
    inv_result r;
    c->own = &zero;
    c->nown = 1;
    INV_TRY(inv_session_create(&c->model, &o, &s));
    inv_status st = inv_session_eval(s, c->in, c->nin, NULL, &r);
    if (st == INV_OK) st = read_output(c, s, c->v.by_rules, &c->rules, &c->rows);
    if (st == INV_OK && c->v.own) st = read_output(c, s, c->v.own, &c->own, &c->nown);
    inv_session_destroy(s);
    return st;
}

static double norm(const void *data, inv_dtype t, int rank, const int64_t *dims)
{
    double sum = 0;
    const inv_shape s = inv_shape_of(rank, dims);
    for (int64_t i = 0; i < inv_shape_nelem(&s); i++) {
        const double x = inv_elem_double(data, t, (size_t)i);
        sum += x * x;
    }
    return sqrt(sum);
}

enum { LITTLE = 1 << 20 }; /* bytes that nobody counts */

/* Everything stored, which takes no search, or, where that takes more than a step will, as little as can be. */
static inv_status create(comparison *c, inv_session_options *o, inv_session **out)
{
    o->plan_only = true;
    INV_TRY(inv_session_create(&c->model, o, out));
    const size_t takes = inv_program_bytes((*out)->program);
    const bool fits = takes <= c->peak || takes <= LITTLE;
    inv_session_destroy(*out);
    o->plan_only = false;
    if (!fits) o->memory = INV_MEMORY_RECOMPUTE;
    return inv_session_create(&c->model, o, out);
}

/* Norms of the gradients of an output, by initializer; all zero where no weight reaches it. */
static inv_status run_gradients(comparison *c, const char *output, double **to)
{
    inv_session_options o = options_for(c, &output);
    const inv_graph *g = c->v.g;
    inv_session *s;
    inv_result r;
    *to = INV_ARENA_NEW(&c->a, double, g->inits.n + 1);
    if (!*to) return INV_E_NOMEM;
    inv_status st = create(c, &o, &s);
    if (st == INV_E_ARG) return INV_OK; /* nothing to train */
    INV_TRY(st);
    st = inv_session_grad(s, c->in, c->nin, NULL, &r);
    for (size_t i = 0; i < g->inits.n && st == INV_OK; i++) {
        const void *data;
        inv_dtype t;
        int rank;
        int64_t dims[INV_MAX_RANK];
        if (inv_session_get(s, INV_GET_GRAD, inv_val(g, g->inits.at[i])->name, &data, &t, &rank, dims) == INV_OK)
            (*to)[i] = norm(data, t, rank, dims);
    }
    inv_session_destroy(s);
    return st;
}

/* --- the verdict --- */

static double mean(const double *x, int64_t n)
{
    double sum = 0;
    for (int64_t i = 0; i < n; i++) sum += x[i];
    return sum / (double)n;
}

static const char *option(const comparison *c, const char *field) { return inv_option(c->ctx, field); }

/* What the loss takes, and what the rules say of it, as the begin of a sentence. */
static const char *put_numbers(comparison *c)
{
    const double rules = mean(c->rules, c->rows);
    if (c->o->logdet)
        return inv_arena_printf(&c->a,
                                "the model's log-determinant '%s' is %.6g on average over the first batch, and %.6g "
                                "by the rules of its operators",
                                c->o->logdet, mean(c->own, c->nown), rules);
    return inv_arena_printf(
        &c->a,
        "without %s the log-determinant counts as 0, but it is %.6g on average over the first batch by the rules of "
        "the model's operators",
        option(c, "logdet"), rules);
}

/* Which outputs may be the log-determinant: numbers per sample, or one for all, that the loss does not take, or takes
 * beside others for what is normally distributed. */
static bool may_be_logdet(const inv_program *p, const inv_result_slot *slot)
{
    const inv_plan *plan = &p->plan[INV_PLAN_MAIN];
    const inv_value *v = inv_val(plan->base, slot->value);
    int64_t batch = -1;
    bool taken = !inv_dtype_is_float(v->dtype) || v->stated || v->state;
    if (p->likelihood) taken = taken || !strcmp(slot->name, p->options.logdet);
    for (size_t i = 0; i < plan->loss_output.n && (p->likelihood || plan->loss_output.n == 1); i++)
        taken = taken || !strcmp(plan->loss_output.at[i], slot->name);
    for (size_t i = 0; i < plan->output.n && plan->loss_output.n; i++) {
        const inv_shape *s = &inv_val(plan->base, plan->output.at[i].value)->shape;
        if (!strcmp(plan->output.at[i].name, plan->loss_output.at[0]) && s->rank > 0) batch = s->dim[0];
    }
    const int64_t n = inv_shape_nelem(&v->shape);
    return !taken && (n == 1 || n == batch);
}

static const char *put_candidates(comparison *c)
{
    const inv_plan *plan = &c->p->plan[INV_PLAN_MAIN];
    const char *list = "";
    for (size_t i = 0; i < plan->output.n && list; i++)
        if (may_be_logdet(c->p, &plan->output.at[i]))
            list = inv_arena_printf(&c->a, "%s%s'%s'", list, *list ? ", " : "", plan->output.at[i].name);
    return list;
}

/* What to do. */
static const char *put_remedy(comparison *c)
{
    const char *list = put_candidates(c), *logdet = option(c, "logdet"), *trust = option(c, "trust_logdet");
    if (!list) return NULL;
    if (c->o->logdet)
        return inv_arena_printf(&c->a,
                                "Use %s 'rules', which computes it from the current weights, or export without "
                                "constant folding. To accept the output as it is: %s",
                                logdet, trust);
    return inv_arena_printf(&c->a, "Name its output with %s%s%s%s, or compute it with %s 'rules'. To accept 0: %s",
                            logdet, *list ? " (there is " : "", list, *list ? ")" : "", logdet, trust);
}

/* Whether it differs from sample to sample. *by: what it differs by from all of them. */
static inv_status judge_values(comparison *c, double *by)
{
    const double least = c->float64 ? 1e-4 : 1e-3;
    double size = 1, low = INFINITY, high = -INFINITY;
    for (int64_t i = 0; i < c->rows; i++) {
        const double own = c->own[c->nown == c->rows ? i : 0], d = own - c->rules[i];
        if (!isfinite(d)) return INV_OK; /* for the step to tell */
        size = fmax(size, fmax(fabs(own), fabs(c->rules[i])));
        low = fmin(low, d);
        high = fmax(high, d);
    }
    *by = fmax(fabs(low), fabs(high)) > least * size ? (low + high) / 2 : 0;
    if (high - low <= least * size) return INV_OK;
    const char *numbers = put_numbers(c), *remedy = put_remedy(c);
    if (!numbers || !remedy) return INV_E_NOMEM;
    return inv_fail(c->ctx, INV_E_ARG, "%s; the difference varies from sample to sample. %s", numbers, remedy);
}

static inv_status judge_gradients(comparison *c)
{
    const inv_graph *g = c->v.g;
    const double share = c->float64 ? 1e-3 : 1e-2, floor = c->float64 ? 1e-6 : 1e-4;
    double all = 0;
    for (size_t i = 0; i < g->inits.n; i++) all += c->by_rules[i] * c->by_rules[i] + c->off[i] * c->off[i];
    all = sqrt(all);
    size_t worst = SIZE_MAX, n = 0;
    for (size_t i = 0; i < g->inits.n; i++) {
        if (!(c->off[i] > share * c->by_rules[i] + floor * all)) continue;
        n++;
        if (worst == SIZE_MAX || c->off[i] > c->off[worst]) worst = i;
    }
    if (!n) return INV_OK;
    const char *numbers = put_numbers(c), *remedy = put_remedy(c), *first = inv_val(g, g->inits.at[worst])->name;
    if (!numbers || !remedy) return INV_E_NOMEM;
    if (!c->o->logdet)
        return inv_fail(c->ctx, INV_E_ARG, "%s, and it changes with the weights ('%s'%s). %s", numbers, first,
                        n > 1 ? " and others" : "", remedy);
    return inv_fail(c->ctx, INV_E_ARG,
                    "%s. Its gradient for '%s'%s is off by %.3g, where the rules give %.3g: an exporter may have "
                    "folded it into a constant. %s",
                    numbers, first, n > 1 ? " and others" : "", c->off[worst], c->by_rules[worst], remedy);
}

static inv_status compare_likelihood(comparison *c, const inv_session_options *given, bool *compared)
{
    double by = 0;
    INV_TRY(take_rows(c, given));
    INV_TRY(run_values(c));
    *compared = c->rows > 0 && (c->nown == c->rows || c->nown == 1);
    if (!*compared) return INV_OK;
    INV_TRY(judge_values(c, &by));
    if (by == 0 && c->o->purpose == INV_FOR_EVAL) return INV_OK; /* for these weights it is right */
    *compared = false;
    INV_TRY(run_gradients(c, c->v.sum, &c->by_rules));
    if (c->v.own) INV_TRY(run_gradients(c, c->v.difference, &c->off));
    else c->off = c->by_rules;
    *compared = true;
    INV_TRY(judge_gradients(c));
    if (by != 0 && !c->o->logdet)
        inv_log(
            c->ctx,
            "without {logdet} the log-determinant counts as 0. By the rules of the model's operators it is %.6g for "
            "all samples and weights, so the loss is too large by that",
            mean(c->rules, c->rows));
    else if (by != 0)
        inv_log(c->ctx,
                "the model's log-determinant '%s' and the rules of its operators (%.6g) differ by %.6g for all "
                "samples and weights, and so does the loss",
                c->o->logdet, mean(c->rules, c->rows), by);
    return INV_OK;
}

/* Whether there is something to compare, and on what. */
static bool is_asked(const inv_program *p, const inv_session_options *given)
{
    const inv_session_options *o = &p->options;
    bool asked = o->loss == INV_LOSS_NLL && !o->trust_logdet && !o->plan_only && given->ninputs > 0 &&
                 (o->purpose == INV_FOR_EVAL || (o->purpose == INV_FOR_TRAIN && o->optimizer != INV_OPT_NONE));
    for (size_t i = 0; i < given->ninputs; i++) asked = asked && given->inputs[i].data;
    return asked;
}

/* The rules cannot tell it: then an output is trusted, and 0 where no output may be it. */
static inv_status not_told(comparison *c)
{
    const char *why = inv_arena_strdup(&c->a, inv_context_message(c->ctx)), *list = put_candidates(c);
    if (!why || !list) return INV_E_NOMEM;
    if (c->o->logdet) {
        inv_log(c->ctx, "the log-determinant '%s' is used unchecked, because the rules give none: %s", c->o->logdet,
                why);
        return INV_OK;
    }
    INV_CHECK(
        !*list, c->ctx, INV_E_ARG,
        "without {logdet} the log-determinant counts as 0, but it may be an output (%s), and the rules give none. "
        "Name the output with {logdet}, or accept 0 with {trust_logdet}. The rules: %s",
        list, why);
    inv_log(c->ctx, "the log-determinant counts as 0, because the rules give none: %s", why);
    return INV_OK;
}

static inv_status compare(comparison *c, const inv_graph *g, const inv_session_options *given, bool *compared)
{
    *compared = false;
    inv_status st = c->ctx->volumes(c->ctx, g, c->o, true, &c->v);
    if (st == INV_OK) {
        c->model.graph = c->v.g;
        st = compare_likelihood(c, given, compared);
    }
    inv_graph_destroy(c->v.g);
    c->v.g = NULL;
    return st;
}

/* The loss goes by the rules. Whoever runs the written file gets the file's own outputs. */
static inv_status find_stale(inv_session *s, comparison *c, const inv_session_options *given)
{
    const inv_plan *plan = &s->program->plan[INV_PLAN_MAIN];
    if (s->program->options.purpose != INV_FOR_TRAIN) return INV_OK;
    for (size_t i = 0; i < plan->output.n; i++) {
        const char *name = plan->output.at[i].name;
        if (!may_be_logdet(c->p, &plan->output.at[i])) continue;
        inv_session_options o = s->program->options;
        o.logdet = name;
        c->o = &o;
        bool compared;
        const inv_status st = compare(c, s->model->graph, given, &compared);
        if (st == INV_E_NOMEM) return st;
        if (st == INV_OK || !compared) continue;
        const char *own = inv_arena_strdup(&s->lasting, name);
        if (!own || !inv_vec_push(&s->lasting, &s->stale, own)) return INV_E_NOMEM;
    }
    return INV_OK;
}

inv_status inv_compare_logdet(inv_session *s, const inv_session_options *given)
{
    inv_context *ctx = s->ctx;
    const inv_program *p = s->program;
    if (!is_asked(p, given)) return INV_OK;
    comparison c = {.ctx = ctx,
                    .p = p,
                    .o = &p->options,
                    .model = {.ctx = ctx, .path = s->model->path},
                    .nin = given->ninputs,
                    .peak = inv_program_bytes(p)};
    bool compared;
    inv_arena_init(&c.a, ctx);
    inv_status st = p->volumes.stranger ? inv_check_volumes(ctx, p, given) : INV_OK;
    if (st == INV_OK) st = p->likelihood ? find_stale(s, &c, given) : compare(&c, p->source, given, &compared);
    if (!p->likelihood && st != INV_OK && st != INV_E_NOMEM && !compared) st = not_told(&c);
    inv_arena_fini(&c.a);
    return st;
}
