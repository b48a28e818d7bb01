/* SPDX-License-Identifier: Apache-2.0
 * The list of passes, in order (its first half is front/frontend.c), with the checker between; the graph before
 * recovery, and one plan from it. The program around its plans is in compile.c. */
#include <string.h>

#include "core/graph/node.h"
#include "core/program/options.h"
#include "core/program/pass.h"
#include "core/weights/trained.h"
#include "importer/model_file.h"
#include "passes/autodiff/autodiff.h"
#include "passes/front/front.h"
#include "passes/match/match.h"
#include "passes/pipeline.h"
#include "passes/recover/recover.h"
#include "passes/schedule/schedule.h"

/* What `run` would have given, in words. */
static inv_status say_left(const inv_graph *g, const inv_plan *plan)
{
    for (size_t i = 0; i < plan->left.n; i++)
        inv_log(g->ctx, "output '%s' is left out: it is of type %s, which is not supported", plan->left.at[i].name,
                plan->left.at[i].type);
    if (plan->output.n || !plan->left.n) return INV_OK;
    return inv_fail(g->ctx, INV_E_UNSUPPORTED_TYPE,
                    "nothing to compute: no output is of a supported type; '%s', for example, is of type %s",
                    plan->left.at[0].name, plan->left.at[0].type);
}

static inv_status passes(const inv_model *model, inv_graph *g, const inv_request *rq, inv_plan *plan)
{
    if (rq->update) {
        INV_PASS(rq, g, INV_LEFT_CANONICAL, "reduce_gradients", inv_pass_reduce_gradients(g, rq, plan));
        INV_PASS(rq, g, INV_LEFT_CANONICAL, "update", inv_pass_update(g, rq, plan));
        INV_PASS(rq, g, INV_LEFT_CANONICAL, "order", inv_pass_order(g));
        return INV_OK;
    }
    INV_TRY(inv_compile_front(g, rq, plan));
    if (model) inv_model_forget(model); /* the weights that conditions of inverses were about */
    if (rq->purpose == INV_FOR_RUN) INV_TRY(say_left(g, plan));
    if (rq->purpose == INV_FOR_CHECK) INV_PASS(rq, g, INV_LEFT_CANONICAL, "check", inv_pass_check(g, plan));
    INV_PASS(rq, g, INV_LEFT_CANONICAL, "loss", inv_pass_loss(g, rq, plan));
    INV_PASS(rq, g, INV_LEFT_CANONICAL, "split_head", inv_pass_split_head(g, rq, plan));
    INV_TRY(inv_check_norms(g, rq, plan));
    INV_PASS(rq, g, INV_LEFT_CANONICAL, "sync_norms", inv_pass_sync_norms(g, rq, plan));
    INV_PASS(rq, g, INV_LEFT_CANONICAL, "grad", inv_pass_grad(g, rq, plan));
    INV_PASS(rq, g, INV_LEFT_CANONICAL, "unpack_again", inv_pass_unpack_again(g));
    INV_PASS(rq, g, INV_LEFT_CANONICAL, "place_head", inv_pass_place_head(g, plan));
    INV_PASS(rq, g, INV_LEFT_CANONICAL, "sum_in_place", inv_pass_sum_in_place(g, plan));
    INV_PASS(rq, g, INV_LEFT_CANONICAL, "grad_rows", inv_pass_grad_rows(g, rq, plan));
    INV_PASS(rq, g, INV_LEFT_CANONICAL, "hold", inv_pass_hold(g, plan));
    INV_PASS(rq, g, INV_LEFT_CANONICAL, "reduce_gradients", inv_pass_reduce_gradients(g, rq, plan));
    INV_PASS(rq, g, INV_LEFT_CANONICAL, "update", inv_pass_update(g, rq, plan));
    INV_PASS(rq, g, INV_LEFT_CANONICAL, "prune", inv_graph_prune(g));
    INV_PASS(rq, g, INV_LEFT_CANONICAL, "layout", inv_pass_layout(g));
    if (rq->purpose == INV_FOR_TRAIN) INV_PASS(rq, g, INV_LEFT_MATCHED, "fuse_inverse", inv_pass_fuse_inverse(g));
    INV_PASS(rq, g, INV_LEFT_CANONICAL, "order", inv_pass_order(g));
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
        inv_str_init(&text, p->ctx);
        inv_str_add(&text,
                    "%s. The model was exported for a batch of %lld, but gets %lld. Use a batch of %lld ({inputs}, "
                    "{tail_batch}), or export it with a dynamic batch axis",
                    inv_context_message(p->ctx), (long long)v->shape.dim[0], (long long)batch,
                    (long long)v->shape.dim[0]);
        st = inv_fail(p->ctx, INV_E_SHAPE, "%s", text.s);
        inv_str_fini(&text);
        return st;
    }
    return st;
}

/* Whatever went wrong for want of memory is that, also where a pass took it for "does not apply". */
static inv_status settle_memory(const inv_graph *g, inv_status s)
{
    if (!g->arena.failed || s == INV_E_NOMEM) return s;
    return inv_fail(g->ctx, INV_E_NOMEM, "out of memory while compiling");
}

/* --- plans --- */

static bool has_kernel(const inv_graph *g, const inv_node *n)
{
    if (n->op->flags & (INV_OP_VIEW | INV_OP_SOURCE | INV_OP_TRANSFER)) return true;
    inv_dtype first = n->nin && n->in[0] != INV_NONE ? inv_val(g, n->in[0])->dtype : INV_F32;
    if (n->op->flags & INV_OP_DEVICE_REAL && first != INV_F32 && first != INV_F64) return false;
    for (uint32_t k = 0; k < n->nin; k++)
        if (n->in[k] != INV_NONE && inv_dtype_size(inv_val(g, n->in[k])->dtype) > 8) return false;
    return inv_op_on_device(n->op);
}

/* Every operator of the plan must have a kernel on its device; those that lack one are named, each with its first
 * node. */
static inv_status check_kernels(const inv_graph *g)
{
    inv_str missing;
    inv_str_init(&missing, g->ctx);
    for (size_t i = 0; g->gpu && i < g->order.n; i++) {
        const inv_node *n = inv_nod(g, g->order.at[i]);
        size_t first = 0;
        if (has_kernel(g, n)) continue;
        while (inv_nod(g, g->order.at[first])->op != n->op || has_kernel(g, inv_nod(g, g->order.at[first]))) first++;
        if (first < i) continue;
        const char *at = n->norigin ? n->origin[0] : n->phase == INV_FORWARD ? "forward" : "backward or update";
        inv_dtype t = n->nin && n->in[0] != INV_NONE ? inv_val(g, n->in[0])->dtype : g->real;
        inv_str_add(&missing, "%s%s of %s (%s)", missing.n ? ", " : "", inv_node_kind(n), inv_dtype_name(t), at);
    }
    inv_status s = INV_OK;
    if (missing.n)
        s = inv_fail(g->ctx, INV_E_UNSUPPORTED_OP,
                     "these operators have no kernel for this device: %s; train on the host with device cpu",
                     missing.s);
    inv_str_fini(&missing);
    return s;
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
        v->held = p->held[g->inits.at[i]];
        if (v->untrained == INV_TRAINED && v->shape.rank == 0) v->said = INV_SAID_PARAMETER;
    }
    return inv_tie_apply(p, g);
}

/* The graph before recovery. */
inv_status inv_plan_base(inv_program *p, const inv_request *rq, inv_plan *plan)
{
    plan->loss = plan->correct = plan->total = plan->seed = plan->weights = INV_NONE;
    plan->divisor = rq->batch && p->plan[INV_PLAN_MAIN].base ? p->plan[INV_PLAN_MAIN].divisor : p->divisor;
    plan->finite = plan->loss_finite = plan->norm = plan->lone = INV_NONE;
    if (rq->update) INV_TRY(inv_update_graph(&p->plan[INV_PLAN_MAIN], plan));
    else INV_TRY(inv_graph_copy(p->source, &plan->base));
    inv_graph *g = plan->base;
    if (!rq->update) INV_TRY(mark_trained(p, g));
    g->real = p->options.float64 ? INV_F64 : INV_F32;
    g->eval = rq->purpose == INV_FOR_EVAL;
    g->train = rq->purpose == INV_FOR_TRAIN || rq->purpose == INV_FOR_CHECK;
    g->no_dropout = p->options.no_dropout;
    g->small = p->options.weights;
    g->through_quantization = p->options.through_quantization;
    g->train_bn = p->options.train_bn && g->train;
    g->gpu = inv_device_queues(p->options.device);
    g->precision = p->options.precision;
    g->early = p->options.early_update && rq->optimize && g->train;
    return explain_rebatch(p, rq, settle_memory(g, passes(p->model, g, rq, plan)));
}

void inv_tell_early(const inv_program *p)
{
    bool waits = false;
    for (int k = 0; k < INV_PLAN_KINDS; k++) waits |= p->plan[k].g && inv_updates_wait(&p->plan[k]);
    if (waits)
        inv_log(p->ctx, "weights are not updated early: guards would first have to check all rebuilt values, which "
                        "costs more than it saves");
}

/* Batch normalizations whose running statistics are means, and those that were to train and cannot, because the model
 * computes their statistics. */
inv_status inv_tell_norms(const inv_program *p)
{
    const inv_graph *g = p->plan[INV_PLAN_MAIN].base;
    if (g->norm.means)
        inv_log(p->ctx,
                "batch normalization '%s'%s has momentum 0 or 1 in the file, as from PyTorch's momentum=None: its "
                "running statistics become the means over all batches of this training",
                g->norm.first_mean, g->norm.means > 1 ? ", like others," : "");
    if (!g->norm.kept) return INV_OK;
    INV_CHECK(g->norm.trained, p->ctx, INV_E_ARG,
              "{train_bn}: batch normalization cannot train on batches: the mean and variance of '%s' are not "
              "initializers, so they cannot be updated, and the model has no other",
              g->norm.first_kept);
    inv_log(p->ctx,
            "batch normalization '%s'%s stays as it is: its mean and variance are not initializers, so they cannot "
            "be updated",
            g->norm.first_kept, g->norm.kept > 1 ? ", like others," : "");
    return INV_OK;
}

/* Tells a pass without the offsets that the graph has already. */
static inv_status tell_unplaced(const inv_request *rq, inv_graph *g, const char *pass)
{
    const size_t nbytes = g->arena_nbytes;
    g->arena_nbytes = 0;
    const inv_status s = settle_memory(g, inv_pass_done(rq, g, INV_LEFT_CANONICAL, pass));
    g->arena_nbytes = nbytes;
    return s;
}

/* The search makes graphs of plans to compare them; with a budget it has found out what those take in the end that
 * could win. Of the one it chose all is told, first as it was without offsets. Element-wise nodes are joined in it. */
static inv_status finish_plan(const inv_request *rq, inv_plan *plan)
{
    inv_graph *g = plan->g;
    const inv_fit fit = {inv_effort_of(rq), plan->enough, .measured = false};
    size_t nbytes;
    INV_TRY(tell_unplaced(rq, g, "recover"));
    INV_TRY(settle_memory(g, inv_fuse_plan(plan, &fit, &nbytes)));
    INV_TRY(tell_unplaced(rq, g, "fuse"));
    return settle_memory(g, inv_pass_done(rq, g, INV_LEFT_CANONICAL, "memplan"));
}

/* One try at a plan. *wrong: it is not what it should be, and now more values are kept: another try may be. */
static inv_status try_plan(inv_program *p, const inv_request *rq, inv_plan *plan, bool *wrong)
{
    const size_t lost = plan->lost.n;
    inv_id value = INV_NONE;
    inv_status s = inv_pass_search(plan, rq, p);
    *wrong = s != INV_OK && s != INV_E_NOMEM && plan->lost.n > lost;
    INV_TRY(s);
    INV_TRY(check_kernels(plan->g));
    INV_TRY(finish_plan(rq, plan));
    s = inv_plan_verify(plan->g, plan, &value);
    if (s == INV_E_INTERNAL) INV_TRY(inv_plan_lose_for(plan, value, wrong));
    return s;
}

/* A plan that is proved. */
static inv_status find_plan(inv_program *p, const inv_request *rq, inv_plan *plan)
{
    const inv_plan none = *plan;
    for (;;) {
        bool wrong = false;
        const inv_status s = try_plan(p, rq, plan, &wrong);
        if (!wrong) return s;
        const inv_ids lost = plan->lost;
        if (plan->g != none.g) inv_graph_destroy(plan->g);
        *plan = none;
        plan->lost = lost;
    }
}

/* The plan from it, and where its persistent values live. */
inv_status inv_plan_build(inv_program *p, const inv_request *rq, inv_plan *plan)
{
    p->budget_left = budget_left(p);
    INV_TRY(find_plan(p, rq, plan));
    INV_TRY(inv_assign_storage(p, plan->g, INV_ASSIGN_ALL));
    return inv_plan_predict(plan, p->options.costs);
}
