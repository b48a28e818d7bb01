/* SPDX-License-Identifier: Apache-2.0
 * A program: a copy of the options, and a plan for each size of batch and for evaluation, made again when guards
 * refuse something or modes change. */
#include <string.h>

#include "core/base/glob.h"
#include "core/program/cost.h"
#include "core/program/options.h"
#include "core/weights/held.h"
#include "core/weights/trained.h"
#include "importer/model_file.h"
#include "passes/export/export.h"
#include "passes/front/front.h"
#include "passes/pipeline.h"
#include "passes/recover/recover.h"
#include "passes/schedule/schedule.h"

static void drop_plans(inv_program *p)
{
    for (int k = 0; k < INV_PLAN_KINDS; k++) {
        inv_graph_destroy(p->plan[k].g);
        inv_graph_destroy(p->plan[k].base);
        memset(&p->plan[k], 0, sizeof p->plan[k]);
    }
}

inv_status inv_program_floor(const inv_program *p, const inv_session_options *options, size_t *nbytes)
{
    inv_program q = {
        .ctx = p->ctx, .divisor = p->divisor, .source = p->source, .options = *options, .max_drift = p->max_drift};
    inv_plan *plan = &q.plan[INV_PLAN_MAIN];
    inv_request rq;
    inv_arena_init(&q.arena, p->ctx);
    (void)inv_request_for(&q, INV_PLAN_MAIN, &rq);
    rq.plan = NULL;
    inv_status s = inv_plan_base(&q, &rq, plan);
    if (s == INV_OK) s = inv_assign_storage(&q, plan->base, INV_ASSIGN_ALL);
    if (s == INV_OK) s = inv_search_floor(plan, &rq, &q, nbytes);
    if (s == INV_OK) *nbytes += q.persistent;
    drop_plans(&q);
    inv_arena_fini(&q.arena);
    return s;
}

static inv_status build_all(inv_program *p)
{
    inv_request rq;
    drop_plans(p);
    inv_bound_persistent(p);
    for (int k = 0; k < INV_PLAN_KINDS; k++) {
        if (!inv_request_for(p, k, &rq)) continue;
        INV_TRY(inv_plan_base(p, &rq, &p->plan[k]));
        INV_TRY(inv_assign_storage(p, p->plan[k].base, INV_ASSIGN_LASTING));
        inv_model_forget(p->model);
    }
    for (int k = 0; k < INV_PLAN_KINDS; k++)
        if (p->plan[k].base) INV_TRY(inv_assign_storage(p, p->plan[k].base, INV_ASSIGN_ALL));
    inv_model_forget(p->model);
    INV_TRY(inv_plan_program(p, p->plan, true));
    if (p->shortfall) return inv_refuse_budget(p);
    inv_tell_early(p);
    return inv_tell_norms(p);
}

/* Drops the graphs of plans that are not the program's own. */
static void drop_replanned(inv_program *p, inv_plan *plan)
{
    for (int k = 0; k < INV_PLAN_KINDS; k++) {
        if (plan[k].g != p->plan[k].g) inv_graph_destroy(plan[k].g);
        plan[k].g = NULL;
    }
}

/* Plans for training again. Evaluation recovers nothing, so its plans stay as they are. */
static inv_status replan(inv_program *p)
{
    inv_plan fresh[INV_PLAN_KINDS];
    inv_request rq;
    memcpy(fresh, p->plan, sizeof fresh);
    for (int k = 0; k < INV_PLAN_KINDS; k++)
        if (inv_request_for(p, k, &rq) && rq.purpose == INV_FOR_TRAIN) fresh[k].g = NULL;
    p->options.plan = p->proposal;
    inv_status s = inv_plan_program(p, fresh, false);
    p->options.plan = p->proposal = NULL;
    if (s == INV_OK && p->shortfall) s = inv_fail(p->ctx, INV_E_NOMEM, "%s", p->shortfall_text);
    if (s == INV_OK) memcpy(p->plan, fresh, sizeof fresh);
    else drop_replanned(p, fresh);
    return s;
}

static void destroy_twin(inv_program *p)
{
    inv_context *ctx = p->ctx;
    for (int k = 0; k < INV_PLAN_KINDS; k++) {
        inv_graph_destroy(p->plan[k].g);
        if (p->plan[k].base) inv_arena_fini(&p->plan[k].base->arena);
    }
    inv_arena_fini(&p->arena);
    inv_dealloc(ctx, p);
}

/* Once a base graph is made, planning notes buffers and scratch memory in its values and nodes, which nobody reads
 * there, and writes nothing else; so one plans at a time. What is made of it takes its context from it. */
static inv_status view_base(inv_program *p, inv_plan *plan)
{
    inv_graph *view = INV_ARENA_NEW(&p->arena, inv_graph, 1);
    if (view) *view = *plan->base;
    if (view) view->ctx = p->ctx;
    if (view) inv_arena_init(&view->arena, p->ctx);
    plan->base = view;
    plan->g = NULL;
    return view ? INV_OK : INV_E_NOMEM;
}

static inv_status twin(const inv_program *p, inv_context *ctx, inv_program **out)
{
    inv_program *q = inv_alloc(ctx, sizeof *q);
    *out = NULL;
    if (!q) return INV_E_NOMEM;
    *q = *p;
    q->ctx = ctx;
    q->destroy = destroy_twin;
    q->options.after_pass = NULL;
    q->storage_index = NULL;
    q->transient = q->control = q->host = 0;
    inv_arena_init(&q->arena, ctx);
    inv_status s = INV_OK;
    for (int k = 0; k < INV_PLAN_KINDS; k++)
        if (q->plan[k].base && view_base(q, &q->plan[k]) != INV_OK) s = INV_E_NOMEM;
    q->storage.cap = p->storage.n; /* what is pushed comes into an array of its own */
    q->storage.at = INV_ARENA_NEW(&q->arena, inv_storage, p->storage.n + 1);
    if (q->storage.at && p->storage.n) memcpy(q->storage.at, p->storage.at, p->storage.n * sizeof *q->storage.at);
    if (s == INV_OK && q->storage.at) *out = q;
    else destroy_twin(q);
    return *out ? INV_OK : INV_E_NOMEM;
}

static void destroy(inv_program *p)
{
    if (!p) return;
    inv_context *ctx = p->ctx;
    drop_plans(p);
    inv_graph_destroy(p->likelihood);
    inv_graph_destroy(p->own);
    inv_arena_fini(&p->arena);
    inv_dealloc(ctx, p);
}

static inv_status copy_names(inv_arena *a, const char *const **names, size_t n)
{
    const char **copy = INV_ARENA_NEW(a, const char *, n + 1);
    if (!copy) return INV_E_NOMEM;
    for (size_t i = 0; i < n; i++)
        if (!(copy[i] = inv_arena_strdup(a, (*names)[i]))) return INV_E_NOMEM;
    *names = copy;
    return INV_OK;
}

static inv_status copy_array_shape(inv_arena *a, inv_array *x)
{
    int64_t *dims = INV_ARENA_NEW(a, int64_t, (size_t)x->rank + 1);
    const char *name = x->name ? inv_arena_strdup(a, x->name) : "target";
    if (a->failed) return INV_E_NOMEM;
    if (x->rank) memcpy(dims, x->dims, (size_t)x->rank * sizeof *dims);
    *x = (inv_array){name, x->dtype, x->rank, dims, NULL, NULL};
    return INV_OK;
}

/* The values of a constant input, its rows in the order of the session's. */
static inv_status copy_data(inv_program *p, const inv_array *from, inv_array *to)
{
    inv_shape s = inv_shape_of(from->rank, from->dims);
    size_t nbytes, nrows = from->rank && from->rows ? (size_t)from->dims[0] : 1;
    INV_CHECK(inv_dtype_size(from->dtype) && inv_shape_nbytes(&s, from->dtype, &nbytes), p->ctx, INV_E_UNSUPPORTED_TYPE,
              "input '%s' of type %s cannot be a constant of the session", from->name, inv_dtype_name(from->dtype));
    char *copy = inv_arena_alloc(&p->arena, nbytes + 1);
    if (!copy) return INV_E_NOMEM;
    const size_t each = nrows ? nbytes / nrows : 0;
    for (size_t r = 0; r < nrows && each; r++)
        memcpy(copy + r * each, (const char *)from->data + (from->rows ? (size_t)from->rows[r] : r) * each, each);
    to->data = copy;
    return INV_OK;
}

/* Every glob of constant_inputs must be about inputs that have values. */
static inv_status check_constant_inputs(const inv_program *p, const inv_session_options *given)
{
    for (size_t k = 0; k < p->options.nconstant_inputs; k++) {
        const char *glob = p->options.constant_inputs[k];
        bool any = false;
        for (size_t i = 0; i < given->ninputs; i++) {
            if (!inv_glob_fits(glob, given->inputs[i].name)) continue;
            any = true;
            INV_CHECK(given->inputs[i].data, p->ctx, INV_E_ARG,
                      "input '%s' is to be a constant of the session, but has no values", given->inputs[i].name);
        }
        INV_CHECK(any, p->ctx, INV_E_ARG, "'%s' is to be a constant of the session, but no such input is given", glob);
    }
    return INV_OK;
}

static inv_status copy_costs(inv_program *p)
{
    inv_session_options *c = &p->options;
    if (!c->costs) return INV_OK;
    const inv_dtype real = c->float64 ? INV_F64 : INV_F32;
    INV_CHECK(c->costs->real == real, p->ctx, INV_E_ARG,
              "the costs are for %s arithmetic, but the session computes in %s. Calibrate for that",
              inv_dtype_name(c->costs->real), inv_dtype_name(real));
    void *room = inv_arena_alloc(&p->arena, inv_cost_table_nbytes(c->costs));
    if (!room) return INV_E_NOMEM;
    c->costs = inv_cost_table_copy(c->costs, room);
    return INV_OK;
}

static inv_status copy_options(inv_program *p, const inv_session_options *o)
{
    inv_arena *a = &p->arena;
    inv_session_options *c = &p->options;
    *c = *o;
    inv_array *inputs = INV_ARENA_NEW(a, inv_array, c->ninputs + 1), *target = INV_ARENA_NEW(a, inv_array, 1);
    inv_mode_rule *modes = INV_ARENA_NEW(a, inv_mode_rule, c->nmodes + 1);
    if (a->failed) return INV_E_NOMEM;
    for (size_t i = 0; i < c->ninputs; i++) {
        inputs[i] = c->inputs[i];
        INV_TRY(copy_array_shape(a, &inputs[i]));
        if (inv_input_is_constant(c, &o->inputs[i])) INV_TRY(copy_data(p, &o->inputs[i], &inputs[i]));
    }
    c->inputs = inputs;
    if (c->target) {
        *target = *c->target;
        INV_TRY(copy_array_shape(a, target));
        c->target = target;
    }
    for (size_t i = 0; i < c->nmodes; i++) {
        modes[i] = c->modes[i];
        if (!(modes[i].glob = inv_arena_strdup(a, modes[i].glob))) return INV_E_NOMEM;
    }
    c->modes = modes;
    inv_param_group *groups = INV_ARENA_NEW(a, inv_param_group, c->ngroups + 1);
    if (!groups) return INV_E_NOMEM;
    for (size_t i = 0; i < c->ngroups; i++) {
        groups[i] = c->groups[i];
        if (!(groups[i].glob = inv_arena_strdup(a, groups[i].glob))) return INV_E_NOMEM;
    }
    c->groups = groups;
    inv_stage *stages = INV_ARENA_NEW(a, inv_stage, c->nstages + 1);
    if (!stages) return INV_E_NOMEM;
    for (size_t i = 0; i < c->nstages; i++) {
        stages[i] = c->stages[i];
        if (!(stages[i].glob = inv_arena_strdup(a, stages[i].glob))) return INV_E_NOMEM;
    }
    c->stages = stages;
    INV_TRY(copy_names(a, &c->loss_outputs, c->nloss_outputs));
    INV_TRY(copy_names(a, &c->keep, c->nkeep));
    INV_TRY(copy_names(a, &c->train_only, c->ntrain_only));
    INV_TRY(copy_names(a, &c->freeze, c->nfreeze));
    INV_TRY(copy_names(a, &c->tied, c->ntied));
    INV_TRY(copy_names(a, &c->hold_zeros, c->nhold_zeros));
    INV_TRY(copy_names(a, &c->hold_rows, c->nhold_rows));
    INV_TRY(copy_names(a, &c->no_hold, c->nno_hold));
    INV_TRY(copy_names(a, &c->constant_inputs, c->nconstant_inputs));
    double *weights = INV_ARENA_NEW(a, double, c->nclass_weights + 1);
    if (!weights) return INV_E_NOMEM;
    if (c->nclass_weights) memcpy(weights, c->class_weights, c->nclass_weights * sizeof *weights);
    c->class_weights = c->nclass_weights ? weights : NULL;
    INV_TRY(copy_costs(p));
    if (c->cost_cache && !(c->cost_cache = inv_arena_strdup(a, c->cost_cache))) return INV_E_NOMEM;
    if (c->logdet && !(c->logdet = inv_arena_strdup(a, c->logdet))) return INV_E_NOMEM;
    if (c->plan && !(c->plan = inv_arena_strdup(a, c->plan))) return INV_E_NOMEM;
    if (c->device && !(c->device = inv_arena_strdup(a, c->device))) return INV_E_NOMEM;
    return INV_OK;
}

/* After a refusal for a value that is not constant. *more: planning again may go further. */
static inv_status fix_varying(inv_program *p, const inv_session_options *given, bool *more)
{
    inv_session_options *c = &p->options;
    const inv_graph *g = NULL;
    for (int k = 0; k < INV_PLAN_KINDS; k++)
        if (p->plan[k].base) g = p->plan[k].base; /* the one that failed came last */
    if (!g) return INV_OK;
    INV_TRY(inv_bind_varying(g, given, &p->arena, c, more));
    inv_array *inputs = INV_ARENA_NEW(&p->arena, inv_array, c->ninputs + 1);
    if (!inputs) return INV_E_NOMEM;
    for (size_t i = 0; i < c->ninputs; i++) {
        inputs[i] = c->inputs[i];
        if (!inputs[i].data && inv_input_is_constant(c, &given->inputs[i]))
            INV_TRY(copy_data(p, &given->inputs[i], &inputs[i]));
    }
    c->inputs = inputs;
    p->storage.n = 0;
    p->persistent = p->in_place = p->transient = p->control = p->host = 0;
    return INV_OK;
}

/* All plans; if the options allow it, with as many inputs as constants as that takes. */
static inv_status build_with_constants(inv_program *p, const inv_session_options *given)
{
    inv_status s = check_constant_inputs(p, given);
    bool more = s == INV_OK;
    while (more) {
        s = build_all(p);
        more = false;
        if (s == INV_E_NOT_CONSTANT && p->options.constants_as_needed) {
            const inv_status fixed = fix_varying(p, given, &more);
            if (fixed != INV_OK) return fixed;
        }
    }
    return s;
}

static inv_status find_trained(inv_program *p)
{
    if (p->options.purpose != INV_FOR_TRAIN) return INV_OK;
    INV_TRY(inv_trained_find(p->source, &p->options, &p->arena, &p->untrained));
    INV_TRY(inv_pass_ties(p));
    INV_TRY(inv_held_find(p->source, &p->options, p->untrained, &p->arena, &p->held));
    inv_model_forget(p->model);
    return INV_OK;
}

static bool has_batch_norm(const inv_graph *g)
{
    bool any = false;
    for (size_t i = 0; i < g->order.n && !any; i++)
        any = !strcmp(inv_nod(g, g->order.at[i])->op_type, "BatchNormalization");
    for (size_t i = 0; i < g->function.n && !any; i++) any = has_batch_norm(g->function.at[i].body);
    for (size_t i = 0; i < g->body.n && !any; i++) any = has_batch_norm(g->body.at[i]);
    return any;
}

/* Weights that the file holds twice, and those that it has merged, are trained as the options say. */
static inv_status settle_shared(inv_program *p)
{
    inv_arena scratch;
    if (p->options.purpose != INV_FOR_TRAIN) return INV_OK;
    inv_arena_init(&scratch, p->ctx);
    inv_status s = inv_pass_join(p, &scratch);
    if (s == INV_OK) s = inv_pass_untie(p, &scratch);
    inv_arena_fini(&scratch);
    return s;
}

static inv_status copy_rejected(inv_program *p, const inv_program *former)
{
    for (size_t i = 0; i < former->checkpoint.n; i++)
        INV_TRY(inv_program_reject(p, former->checkpoint.at[i].name, former->checkpoint.at[i].derived));
    return INV_OK;
}

inv_status inv_compile(const inv_model *model, const inv_session_options *options, const inv_program *former,
                       inv_program **out)
{
    inv_context *ctx = model->ctx;
    *out = NULL;
    inv_program *p = inv_alloc(ctx, sizeof *p);
    if (!p) return INV_E_NOMEM;
    p->ctx = ctx;
    p->model = model;
    p->source = model->graph;
    p->divisor = former ? former->divisor : model->divisor;
    p->replan = replan;
    p->twin = twin;
    p->drop = drop_replanned;
    p->save = inv_plan_save;
    p->destroy = destroy;
    inv_arena_init(&p->arena, ctx);
    inv_status s = copy_options(p, options);
    if (s == INV_OK && former) s = copy_rejected(p, former);
    p->max_drift = p->options.max_drift > 0 ? p->options.max_drift : inv_default_max_drift(p->options.float64);
    if (s == INV_OK && p->options.train_bn && !has_batch_norm(model->graph))
        s = inv_fail(ctx, INV_E_ARG,
                     "{train_bn}: the model has no BatchNormalization. If the exporter folded it into convolutions "
                     "(`inspect` says so), export again without folding");
    if (s == INV_OK) s = settle_shared(p);
    if (s == INV_OK) s = inv_pass_likelihood(p);
    if (s == INV_OK) s = find_trained(p); /* of the values of the graph that is compiled */
    if (s == INV_OK) s = build_with_constants(p, options);
    if (s != INV_OK) {
        destroy(p);
        return s;
    }
    *out = p;
    return INV_OK;
}
