/* SPDX-License-Identifier: Apache-2.0
 * The list of passes, in order, in one function, with the checker between; and the program around its plans: options,
 * anchors. */
#include <string.h>

#include "core/node.h"
#include "passes/pass.h"

/* Names of the outputs are the model's, whatever values come to stand for them. */
static inv_status note_outputs(inv_graph *g, inv_plan *plan)
{
    for (size_t i = 0; i < g->outputs.n; i++) {
        inv_result_slot slot = {inv_val(g, g->outputs.at[i])->name, INV_NONE};
        if (!inv_vec_push(&g->arena, &plan->output, slot)) return INV_E_NOMEM;
    }
    return INV_OK;
}

/* Outputs are read out after a call, except in training steps, which only report the loss. */
static void keep_outputs(inv_graph *g, inv_plan *plan, bool keep)
{
    for (size_t i = 0; i < g->outputs.n; i++) {
        plan->output.at[i].value = g->outputs.at[i];
        inv_val(g, g->outputs.at[i])->keep = keep;
    }
}

/* One pass and the checker after it. */
#define PASS(call, canonical)                                                                                         \
    do {                                                                                                              \
        INV_TRY(call);                                                                                                \
        INV_TRY(inv_graph_check(g, canonical));                                                                       \
    } while (0)

inv_status inv_compile_front(inv_graph *g, const inv_request *rq, inv_plan *plan)
{
    INV_TRY(note_outputs(g, plan));
    INV_TRY(inv_graph_check(g, false));
    PASS(inv_pass_inline(g, false), false);
    PASS(inv_graph_sort(g), false);
    PASS(inv_pass_reach(g, rq, plan), false);
    INV_TRY(inv_pass_types(g));
    PASS(inv_pass_bind(g, rq, plan), false);
    PASS(inv_pass_real(g), false);
    PASS(inv_pass_lower(g), true);
    PASS(inv_pass_reach(g, rq, plan), true); /* outputs whose type the file does not tell */
    INV_TRY(inv_reach_tensors(g));
    PASS(inv_pass_simplify(g), true);
    PASS(inv_pass_spelling(g), true);
    keep_outputs(g, plan, !rq->optimize);
    if (rq->purpose != INV_FOR_EVAL) PASS(inv_pass_match(g), true); /* evaluation recovers nothing */
    return INV_OK;
}

/* What `run` would have given, in words. */
static inv_status say_left(const inv_graph *g, const inv_plan *plan)
{
    for (size_t i = 0; i < plan->left.n; i++)
        inv__log(g->ctx, "output '%s' is left out: it is of type %s, which nothing here computes with",
                 plan->left.at[i].name, plan->left.at[i].type);
    if (plan->output.n || !plan->left.n) return INV_OK;
    return inv__fail(g->ctx, INV_E_UNSUPPORTED_TYPE,
                     "nothing to compute: every output is of a type that nothing here computes with, such as '%s' of "
                     "type %s", plan->left.at[0].name, plan->left.at[0].type);
}

static inv_status passes(inv_graph *g, const inv_request *rq, inv_plan *plan)
{
    INV_TRY(inv_compile_front(g, rq, plan));
    if (rq->purpose == INV_FOR_RUN) INV_TRY(say_left(g, plan));
    if (rq->purpose == INV_FOR_CHECK) PASS(inv_pass_check(g, plan), true);
    PASS(inv_pass_loss(g, rq, plan), true);
    PASS(inv_pass_grad(g, rq, plan), true);
    PASS(inv_pass_update(g, rq, plan), true);
    PASS(inv_graph_prune(g), true);
    PASS(inv_pass_layout(g), true);
    if (rq->purpose == INV_FOR_TRAIN) PASS(inv_pass_join(g), true);
    PASS(inv_pass_order(g), true);
    return INV_OK;
}

/* A model exported for one batch size may have it in its reshapes: then say so. */
static inv_status explain_rebatch(inv_program *p, const inv_request *rq, inv_status st)
{
    for (size_t i = 0; i < p->source->inputs.n && rq->rebatch && st == INV_E_SHAPE; i++) {
        const inv_value *v = inv_val(p->source, p->source->inputs.at[i]);
        int64_t batch = rq->batch;
        for (size_t k = 0; k < rq->options->ninputs && !rq->batch; k++)
            if (strcmp(rq->options->inputs[k].name, v->name) == 0 && rq->options->inputs[k].rank > 0)
                batch = rq->options->inputs[k].dims[0];
        if (v->shape.rank < 1 || v->shape.dim[0] < 0 || batch == 0 || v->shape.dim[0] == batch) continue;
        inv_str text;
        inv__str_init(&text, p->ctx);
        inv__str_add(&text, "%s. The model was exported for a batch of %lld and is asked for %lld: use a batch of %lld "
                     "({inputs}, {tail_batch}), or export it with a dynamic batch axis", inv_context_message(p->ctx),
                     (long long)v->shape.dim[0], (long long)batch, (long long)v->shape.dim[0]);
        st = inv__fail(p->ctx, INV_E_SHAPE, "%s", text.s);
        inv__str_fini(&text);
        return st;
    }
    return st;
}

/* Whatever went wrong for want of memory is that, also where a pass took it for "does not apply". */
static inv_status settle(const inv_graph *g, inv_status s)
{
    if (!g->arena.failed || s == INV_E_NOMEM) return s;
    return inv__fail(g->ctx, INV_E_NOMEM, "out of memory while compiling");
}

/* --- plans --- */

static bool has_queues(const inv_session_options *o)
{
    return o->device && (strcmp(o->device, "cuda") == 0 || strcmp(o->device, "sim") == 0);
}

static bool has_kernel(const inv_graph *g, const inv_node *n)
{
    if (n->op->flags & (INV_OP_VIEW | INV_OP_SOURCE | INV_OP_TRANSFER)) return true;
    inv_dtype first = n->nin && n->in[0] != INV_NONE ? inv_val(g, n->in[0])->dtype : INV_F32;
    if (n->op->flags & INV_OP_CUDA_REAL && first != INV_F32 && first != INV_F64) return false;
    for (uint32_t k = 0; k < n->nin; k++)
        if (n->in[k] != INV_NONE && inv_dtype_size(inv_val(g, n->in[k])->dtype) > 8) return false;
    return n->op->cuda != NULL;
}

/* Every operator of the plan must have a kernel on its device; those that lack one are named, each with its first
 * node. */
static inv_status check_kernels(const inv_graph *g)
{
    inv_str missing;
    inv__str_init(&missing, g->ctx);
    for (size_t i = 0; g->gpu && i < g->order.n; i++) {
        const inv_node *n = inv_nod(g, g->order.at[i]);
        size_t first = 0;
        if (has_kernel(g, n)) continue;
        while (inv_nod(g, g->order.at[first])->op != n->op || has_kernel(g, inv_nod(g, g->order.at[first]))) first++;
        if (first < i) continue;
        const char *at = n->norigin ? n->origin[0] : n->phase == INV_FORWARD ? "forward" : "backward or update";
        inv_dtype t = n->nin && n->in[0] != INV_NONE ? inv_val(g, n->in[0])->dtype : g->real;
        inv__str_add(&missing, "%s%s of %s (%s)", missing.n ? ", " : "", inv_node_kind(n), inv_dtype_name(t), at);
    }
    inv_status s = INV_OK;
    if (missing.n)
        s = inv__fail(g->ctx, INV_E_UNSUPPORTED_OP,
                      "these operators have no kernel for this device: %s; train on the host with device cpu",
                      missing.s);
    inv__str_fini(&missing);
    return s;
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

/* What a budget leaves for the transient part, of each plan: what persists for any of them is housed. Where there is
 * nothing, the search refuses it and says what it takes. 0: no budget. */
static size_t budget_left(const inv_program *p)
{
    if (!p->options.budget) return 0;
    return p->options.budget > p->persistent ? (size_t)p->options.budget - p->persistent : 1;
}

/* A number that is to be trained is no constant. */
static inv_status mark_trained(const inv_program *p, inv_graph *g)
{
    if (!p->untrained) return INV_OK;
    for (size_t i = 0; i < g->inits.n; i++) {
        inv_value *v = inv_val(g, g->inits.at[i]);
        v->untrained = p->untrained[g->inits.at[i]];
        if (v->untrained == INV_TRAINED && v->shape.rank == 0) v->said = INV_SAID_PARAMETER;
    }
    return inv_tie_apply(p, g);
}

/* The graph before recovery. */
static inv_status build_base(inv_program *p, const inv_request *rq, inv_plan *plan)
{
    plan->loss = plan->correct = plan->total = plan->finite = INV_NONE;
    INV_TRY(inv_graph_copy(p->source, &plan->base));
    inv_graph *g = plan->base;
    INV_TRY(mark_trained(p, g));
    g->real = p->options.float64 ? INV_F64 : INV_F32;
    g->eval = rq->purpose == INV_FOR_EVAL;
    g->train = rq->purpose == INV_FOR_TRAIN || rq->purpose == INV_FOR_CHECK;
    g->no_dropout = p->options.no_dropout;
    g->train_bn = p->options.train_bn && g->train;
    g->gpu = has_queues(&p->options);
    g->early = p->options.early_update && rq->optimize && g->train;
    return explain_rebatch(p, rq, settle(g, passes(g, rq, plan)));
}

static bool updates_wait(const inv_plan *plan)
{
    return plan->base->early && plan->guarded.n > 0;
}

/* Weights that have been updated cannot be had back when a guard refuses the step. Mode auto has chosen. */
static inv_status check_early(const inv_program *p, const inv_plan *plan)
{
    INV_CHECK(!updates_wait(plan) || p->options.memory == INV_MEMORY_AUTO, p->ctx, INV_E_ARG,
              "early updates: the reconstruction of '%s' is checked by a guard, which may refuse the step when weights "
              "have been updated already; use {memory} %s, or {guard} off",
              inv_val(plan->base, plan->guarded.at[0].value)->name,
              p->options.guard == INV_GUARD_FULL ? "store" : "recompute or store");
    return INV_OK;
}

static void tell_early(const inv_program *p)
{
    bool waits = false;
    for (int k = 0; k < INV_PLAN_KINDS; k++) waits |= p->plan[k].g && updates_wait(&p->plan[k]);
    if (waits)
        inv__log(p->ctx, "weights are not updated early: with what is rebuilt and guards that check it, the step takes "
                 "less; {guard} off has both");
}

/* Batch normalizations that were to train and cannot, because the model computes their statistics. */
static inv_status tell_norms(const inv_program *p)
{
    const inv_graph *g = p->plan[INV_PLAN_MAIN].base;
    if (!g->norm.kept) return INV_OK;
    INV_CHECK(g->norm.trained, p->ctx, INV_E_ARG,
              "{train_bn}: batch normalization cannot train on batches: the mean and variance of '%s' are no "
              "initializers that could be updated, and the model has no other", g->norm.first_kept);
    inv__log(p->ctx, "batch normalization '%s'%s stays as it is: its mean and variance are no initializers that could "
             "be updated", g->norm.first_kept, g->norm.kept > 1 ? ", like others," : "");
    return INV_OK;
}

/* The plan from it, and where its persistent values live. */
static inv_status build_plan(inv_program *p, const inv_request *rq, inv_plan *plan)
{
    p->budget_left = budget_left(p);
    INV_TRY(inv_pass_search(plan, rq, p));
    INV_TRY(check_early(p, plan));
    INV_TRY(check_kernels(plan->g));
    INV_TRY(settle(plan->g, inv_graph_check(plan->g, true)));
    INV_TRY(inv_plan_verify(plan->g, plan));
    INV_TRY(inv_house(p, plan->g));
    INV_TRY(inv_plan_predict(plan, p->options.costs));
    if (plan->transient > p->transient) p->transient = plan->transient;
    if (plan->host > p->host) p->host = plan->host;
    if (plan->store_transient > p->store_peak) p->store_peak = plan->store_transient;
    size_t control = has_queues(&p->options) ? inv_control_nbytes(plan->guarded.n) : 0;
    if (control > p->control) p->control = control;
    return INV_OK;
}

/* --- program --- */

static void drop_plans(inv_program *p)
{
    for (int k = 0; k < INV_PLAN_KINDS; k++) {
        inv_graph_destroy(p->plan[k].g);
        inv_graph_destroy(p->plan[k].base);
        memset(&p->plan[k], 0, sizeof p->plan[k]);
    }
}

/* What plan k is compiled for; false: there is none. */
static bool request_for(const inv_program *p, int k, inv_request *rq)
{
    const inv_session_options *o = &p->options;
    bool train = o->purpose == INV_FOR_TRAIN;
    const struct {
        inv_purpose purpose;
        int64_t batch;
        bool wanted;
    } kinds[INV_PLAN_KINDS] = {
        {o->purpose, 0, true},
        {o->purpose, o->tail_batch, o->tail_batch > 0},
        {INV_FOR_EVAL, o->eval_batch, train && o->eval_batch > 0},
        {INV_FOR_EVAL, o->eval_tail, o->eval_tail > 0},
    };
    bool optimize = kinds[k].purpose == INV_FOR_TRAIN && o->optimizer != INV_OPT_NONE;
    *rq = (inv_request){o, kinds[k].purpose, kinds[k].batch,
                        kinds[k].batch > 0 || optimize || kinds[k].purpose == INV_FOR_EVAL, optimize};
    return kinds[k].wanted;
}

static inv_status within_budget(const inv_program *p)
{
    INV_CHECK(!p->refused, p->ctx, INV_E_NOMEM, "%s", p->refusal);
    const size_t peak = p->persistent + p->control + p->transient;
    INV_CHECK(!p->options.budget || peak <= p->options.budget, p->ctx, INV_E_NOMEM,
              "the budget of %llu bytes cannot be met: the plan needs %zu; raise {budget}, or use a smaller batch",
              (unsigned long long)p->options.budget, peak);
    return INV_OK;
}

inv_status inv_program_floor(const inv_program *p, const inv_session_options *options, size_t *nbytes)
{
    inv_program q = {.ctx = p->ctx, .source = p->source, .options = *options, .max_drift = p->max_drift};
    inv_plan *plan = &q.plan[INV_PLAN_MAIN];
    inv_request rq;
    inv__arena_init(&q.arena, p->ctx);
    (void)request_for(&q, INV_PLAN_MAIN, &rq);
    inv_status s = build_base(&q, &rq, plan);
    if (s == INV_OK) s = inv_house(&q, plan->base);
    if (s == INV_OK) s = inv_search_floor(plan, &rq, &q, nbytes);
    if (s == INV_OK) *nbytes += q.persistent;
    drop_plans(&q);
    inv__arena_fini(&q.arena);
    return s;
}

/* Those for training are searched for, which takes the time. */
static inv_status plan_all(inv_program *p)
{
    inv_request rq;
    const int parts = 1 + (p->options.purpose == INV_FOR_TRAIN && p->options.tail_batch > 0);
    for (int k = 0; k < INV_PLAN_KINDS; k++) {
        if (!request_for(p, k, &rq)) continue;
        const double part = k < parts ? k : parts;
        INV_SPAN_TRY(p->ctx, part / parts, k < parts ? (part + 1) / parts : 1, build_plan(p, &rq, &p->plan[k]));
    }
    return INV_OK;
}

static inv_status build_all(inv_program *p)
{
    inv_request rq;
    drop_plans(p);
    p->store_peak = p->refused = 0;
    inv_refuse_before(p);
    for (int k = 0; k < INV_PLAN_KINDS; k++) {
        if (!request_for(p, k, &rq)) continue;
        INV_TRY(build_base(p, &rq, &p->plan[k]));
        INV_TRY(inv_house(p, p->plan[k].base));
    }
    const inv_span around = inv__span_enter(p->ctx, "searching for a plan", 0, 1);
    const inv_status s = plan_all(p);
    inv__span_leave(p->ctx, around);
    INV_TRY(s);
    if (p->refused) return inv_refuse(p);
    INV_TRY(within_budget(p));
    tell_early(p);
    return tell_norms(p);
}

/* Graphs of plans that are not among the program's. */
static void drop(inv_program *p, inv_plan *plan)
{
    for (int k = 0; k < INV_PLAN_KINDS; k++) {
        if (plan[k].g != p->plan[k].g) inv_graph_destroy(plan[k].g);
        plan[k].g = NULL;
    }
}

/* Evaluation recovers nothing, so its plans stay. */
static inv_status replan(inv_program *p)
{
    inv_plan fresh[INV_PLAN_KINDS];
    inv_request rq;
    inv_status s = INV_OK;
    memcpy(fresh, p->plan, sizeof fresh);
    p->store_peak = p->refused = 0;
    p->options.plan = NULL;
    for (int k = 0; k < INV_PLAN_KINDS && s == INV_OK; k++) {
        if (!request_for(p, k, &rq)) continue;
        if (rq.purpose == INV_FOR_TRAIN) {
            const inv_span around = inv__span_enter(p->ctx, "searching for a plan", 0, 1);
            fresh[k].g = NULL;
            s = build_plan(p, &rq, &fresh[k]);
            inv__span_leave(p->ctx, around);
        } else {
            if (fresh[k].transient > p->transient) p->transient = fresh[k].transient;
            if (fresh[k].store_transient > p->store_peak) p->store_peak = fresh[k].store_transient;
        }
    }
    if (s == INV_OK) s = within_budget(p);
    if (s == INV_OK) memcpy(p->plan, fresh, sizeof fresh);
    else drop(p, fresh);
    return s;
}

static void destroy(inv_program *p)
{
    if (!p) return;
    inv_context *ctx = p->ctx;
    drop_plans(p);
    inv_graph_destroy(p->likely);
    inv_graph_destroy(p->own);
    inv__arena_fini(&p->arena);
    inv__free(ctx, p);
}

static inv_status copy_names(inv_arena *a, const char *const **names, size_t n)
{
    const char **copy = INV_ARENA_NEW(a, const char *, n + 1);
    if (!copy) return INV_E_NOMEM;
    for (size_t i = 0; i < n; i++)
        if (!(copy[i] = inv__arena_strdup(a, (*names)[i]))) return INV_E_NOMEM;
    *names = copy;
    return INV_OK;
}

static inv_status copy_array(inv_arena *a, inv_array *x)
{
    int64_t *dims = INV_ARENA_NEW(a, int64_t, (size_t)x->rank + 1);
    const char *name = x->name ? inv__arena_strdup(a, x->name) : "target";
    if (!dims || !name) return INV_E_NOMEM;
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
    char *copy = inv__arena_alloc(&p->arena, nbytes + 1);
    if (!copy) return INV_E_NOMEM;
    const size_t each = nrows ? nbytes / nrows : 0;
    for (size_t r = 0; r < nrows && each; r++)
        memcpy(copy + r * each, (const char *)from->data + (from->rows ? (size_t)from->rows[r] : r) * each, each);
    to->data = copy;
    return INV_OK;
}

/* Every glob of constant_inputs must be about inputs that have values. */
static inv_status check_constants(const inv_program *p, const inv_session_options *given)
{
    for (size_t k = 0; k < p->options.nconstant_inputs; k++) {
        const char *glob = p->options.constant_inputs[k];
        bool any = false;
        for (size_t i = 0; i < given->ninputs; i++) {
            if (!inv_glob_fits(glob, given->inputs[i].name)) continue;
            any = true;
            INV_CHECK(given->inputs[i].data, p->ctx, INV_E_ARG,
                      "input '%s' is to be a constant of the session, but it is given without values",
                      given->inputs[i].name);
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
              "the costs are those of %s arithmetic, the session computes in %s: calibrate for that",
              inv_dtype_name(c->costs->real), inv_dtype_name(real));
    inv_cost_table *costs = INV_ARENA_NEW(&p->arena, inv_cost_table, 1);
    if (!costs) return INV_E_NOMEM;
    *costs = *c->costs;
    c->costs = costs;
    return INV_OK;
}

static inv_status copy_options(inv_program *p, const inv_session_options *o)
{
    inv_arena *a = &p->arena;
    inv_session_options *c = &p->options;
    *c = *o;
    inv_array *inputs = INV_ARENA_NEW(a, inv_array, c->ninputs + 1), *target = INV_ARENA_NEW(a, inv_array, 1);
    inv_mode_rule *modes = INV_ARENA_NEW(a, inv_mode_rule, c->nmodes + 1);
    if (!inputs || !target || !modes) return INV_E_NOMEM;
    for (size_t i = 0; i < c->ninputs; i++) {
        inputs[i] = c->inputs[i];
        INV_TRY(copy_array(a, &inputs[i]));
        if (inv_input_is_constant(c, &o->inputs[i])) INV_TRY(copy_data(p, &o->inputs[i], &inputs[i]));
    }
    c->inputs = inputs;
    if (c->target) {
        *target = *c->target;
        INV_TRY(copy_array(a, target));
        c->target = target;
    }
    for (size_t i = 0; i < c->nmodes; i++) {
        modes[i] = c->modes[i];
        if (!(modes[i].glob = inv__arena_strdup(a, modes[i].glob))) return INV_E_NOMEM;
    }
    c->modes = modes;
    INV_TRY(copy_names(a, &c->loss_outputs, c->nloss_outputs));
    INV_TRY(copy_names(a, &c->keep, c->nkeep));
    INV_TRY(copy_names(a, &c->train_only, c->ntrain_only));
    INV_TRY(copy_names(a, &c->freeze, c->nfreeze));
    INV_TRY(copy_names(a, &c->tied, c->ntied));
    INV_TRY(copy_names(a, &c->constant_inputs, c->nconstant_inputs));
    double *weights = INV_ARENA_NEW(a, double, c->nclass_weights + 1);
    if (!weights) return INV_E_NOMEM;
    if (c->nclass_weights) memcpy(weights, c->class_weights, c->nclass_weights * sizeof *weights);
    c->class_weights = c->nclass_weights ? weights : NULL;
    INV_TRY(copy_costs(p));
    if (c->logdet && !(c->logdet = inv__arena_strdup(a, c->logdet))) return INV_E_NOMEM;
    if (c->plan && !(c->plan = inv__arena_strdup(a, c->plan))) return INV_E_NOMEM;
    if (c->device && !(c->device = inv__arena_strdup(a, c->device))) return INV_E_NOMEM;
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
    p->home.n = 0;
    p->persistent = p->transient = p->control = p->host = 0;
    return INV_OK;
}

/* All plans; if the options allow it, with as many inputs as constants as that takes. */
static inv_status build_with_constants(inv_program *p, const inv_session_options *given)
{
    inv_status s = check_constants(p, given);
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
    return inv_pass_ties(p);
}

inv_status inv_compile(inv_context *ctx, const inv_graph *source, const inv_session_options *options, inv_program **out)
{
    *out = NULL;
    inv_program *p = inv__alloc(ctx, sizeof *p);
    if (!p) return INV_E_NOMEM;
    p->ctx = ctx;
    p->source = source;
    p->replan = replan;
    p->drop = drop;
    p->save = inv_plan_save;
    p->destroy = destroy;
    inv__arena_init(&p->arena, ctx);
    inv_status s = copy_options(p, options);
    /* docs/numerics.md: above 2e-5 a float32 reconstruction moves gradients by more than a few 1e-3. */
    p->max_drift = p->options.max_drift > 0 ? p->options.max_drift : p->options.float64 ? 1e-8 : 2e-5;
    if (s == INV_OK && p->options.train_bn && !has_batch_norm(source))
        s = inv__fail(ctx, INV_E_ARG, "{train_bn}: the model has no BatchNormalization. If the exporter has folded it "
                      "into convolutions, `inspect` says so, and it has to be exported again without that");
    if (s == INV_OK) s = inv_pass_untie(p);
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
