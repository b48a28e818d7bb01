/* SPDX-License-Identifier: Apache-2.0
 * The commit part: optimizer and running statistics. It runs only when every guard has passed.
 * With early updates (g->early) every update is told how many entries of the loss and of the gradients up to its own
 * are not finite, and does nothing if any is: a step that goes wrong can no longer be refused as a whole. Where guards
 * check what backward reads, that count begins with how many of them refuse (passes/recover/check_ahead.c).
 * With accumulation (rq->accumulate) the commit part adds gradients to what persists, and the update is a plan of its
 * own, of a graph that has nothing but parameters and these (inv_update_graph).
 * Where ranks share updates, each updates its part of every parameter (shard_update.c).
 * requires: plan->grad.  gives: commit nodes, plan->state, plan->finite, plan->norm. */
#include <stdlib.h>
#include <string.h>

#include "core/program/exchange.h"
#include "core/weights/module_names.h"
#include "core/weights/trained.h"
#include "ops/train/adam8.h"
#include "passes/autodiff/autodiff.h"
#include "passes/autodiff/optimizer_whole_tensor.h"

typedef struct optimizer_row {
    const char *op;       /* every element is for itself: one node per parameter */
    const char *state[2]; /* of such: names of its tensors of the parameter's shape, behind "NAME/" */
    inv_status (*several)(inv_update_site *u); /* of others: what emits the nodes of a parameter */
    size_t states;                             /* tensors of a parameter's size that persist, at least */
    bool in_8_bits;                            /* its states are codes of blocks that have a scale each */
    bool decoupled;                            /* its weight decay is apart from the gradient */
    bool momentum, beta1, beta2, epsilon;      /* what it reads */
    inv_optimizer_numbers numbers;             /* by default */
} optimizer_row;

/* clang-format off */
static const optimizer_row rows[] = {
    [INV_OPT_NONE] = {0},
    [INV_OPT_SGD] = {"SgdUpdate", {NULL}, .numbers = {0}},
    [INV_OPT_MOMENTUM] = {"MomentumUpdate", {"velocity"}, .states = 1, .momentum = true, .numbers = {.momentum = 0.9}},
    [INV_OPT_ADAM] = {"AdamUpdate", {"moment1", "moment2"}, .states = 2, .beta1 = true, .beta2 = true, .epsilon = true,
                      .numbers = {.beta1 = 0.9, .beta2 = 0.999, .epsilon = 1e-8}},
    [INV_OPT_ADAMW] = {"AdamUpdate", {"moment1", "moment2"}, .states = 2, .decoupled = true, .beta1 = true,
                       .beta2 = true, .epsilon = true,
                       .numbers = {.beta1 = 0.9, .beta2 = 0.999, .epsilon = 1e-8}},
    [INV_OPT_ADAMW8] = {"Adam8Update", {"moment1", "moment2"}, .states = 0, .in_8_bits = true, .decoupled = true,
                        .beta1 = true, .beta2 = true, .epsilon = true,
                        .numbers = {.beta1 = 0.9, .beta2 = 0.999, .epsilon = 1e-8}},
    [INV_OPT_LION] = {"LionUpdate", {"moment1"}, .states = 1, .decoupled = true, .beta1 = true, .beta2 = true,
                      .numbers = {.beta1 = 0.9, .beta2 = 0.99}},
    [INV_OPT_RMSPROP] = {"RmspropUpdate", {"moment2"}, .states = 1, .beta2 = true, .epsilon = true,
                         .numbers = {.beta2 = 0.99, .epsilon = 1e-8}},
    [INV_OPT_LAMB] = {.several = inv_update_lamb, .states = 2, .decoupled = true,
                      .numbers = {.beta1 = 0.9, .beta2 = 0.999, .epsilon = 1e-6}},
    [INV_OPT_ADAFACTOR] = {.several = inv_update_adafactor, .states = 0, .decoupled = true,
                           .numbers = {.beta2 = 0.8, .epsilon = 1e-3}},
    [INV_OPT_MUON] = {.several = inv_update_muon, .states = 1, .decoupled = true,
                      .numbers = {.momentum = 0.95, .beta1 = 0.9, .beta2 = 0.999, .epsilon = 1e-8}},
};
/* clang-format on */

inv_optimizer_numbers inv_optimizer_defaults(inv_optimizer optimizer)
{
    const inv_optimizer_numbers none = {0};
    return (unsigned)optimizer < sizeof rows / sizeof *rows ? rows[optimizer].numbers : none;
}

/* SGD with momentum is that, whatever it is called. Momentum is given to the session's optimizer. */
static inv_optimizer with_momentum(const inv_session_options *o, inv_optimizer optimizer)
{
    return optimizer == INV_OPT_SGD && o->optimizer == INV_OPT_SGD && o->momentum > 0 ? INV_OPT_MOMENTUM : optimizer;
}

size_t inv_optimizer_nbytes(const inv_session_options *o, size_t nbytes)
{
    size_t least = rows[with_momentum(o, o->optimizer)].states;
    for (size_t i = 0; i < o->ngroups; i++) {
        const inv_optimizer optimizer = with_momentum(o, o->groups[i].optimizer);
        if (optimizer != INV_OPT_NONE && rows[optimizer].states < least) least = rows[optimizer].states;
    }
    const size_t ranks = inv_shards(o) ? (size_t)o->world->size : 1;
    return least * nbytes / ranks + ((size_t)o->accumulate + o->average) * nbytes;
}

/* The parameter that w is, or is a section of. */
static inv_id whole_of(const inv_graph *g, inv_id w)
{
    return inv_val(g, w)->whole == INV_NONE ? w : inv_val(g, w)->whole;
}

inv_status inv_state_tensor(inv_graph *g, inv_id param, const char *what, inv_mem_class mem, inv_dtype dtype,
                            const inv_shape *shape, inv_id *out)
{
    const inv_value p = *inv_val(g, param);
    const char *name = inv_arena_printf(&g->arena, "%s/%s", p.name, what);
    for (; name; name = inv_arena_printf(&g->arena, "%s/", name)) {
        *out = inv_graph_find(g, name);
        if (*out == INV_NONE) break;
        if (inv_val(g, *out)->role == INV_ROLE_OPTIM) return INV_OK; /* made for another section */
    }
    *out = name ? inv_graph_value(g, name, INV_ROLE_OPTIM, dtype, shape) : INV_NONE;
    if (*out == INV_NONE) return INV_E_NOMEM;
    inv_value *v = inv_val(g, *out);
    v->mem = (uint8_t)mem;
    v->init = p.init;
    return INV_OK;
}

/* One of w's own shape, in the type that is computed with; of a section, that section of one of the parameter's. */
static inv_status state_like(inv_graph *g, inv_id w, const char *what, inv_mem_class mem, inv_id *out)
{
    const inv_value x = *inv_val(g, w);
    const inv_shape whole = inv_val(g, whole_of(g, w))->shape;
    INV_TRY(inv_state_tensor(g, whole_of(g, w), what, mem, g->real, &whole, out));
    if (x.whole != INV_NONE) *out = inv_graph_section(g, *out, x.first, &x.shape);
    return g->failed;
}

/* --- the update of one parameter --- */

/* The group that a parameter is of, counted from 1; 0: none. */
static size_t group_of(const inv_session_options *o, const inv_value *param)
{
    size_t group = 0;
    for (size_t i = 0; i < o->ngroups; i++)
        if (inv_param_fits(o->groups[i].glob, param)) group = i + 1;
    return group;
}

/* A group that fits nothing but what is not trained does nothing, which nobody who gives one means. */
static inv_status check_groups(const inv_graph *g, const inv_session_options *o)
{
    for (size_t i = 0; i < o->ngroups; i++) {
        const inv_value *left_out = NULL;
        bool used = false;
        for (size_t k = 0; k < g->inits.n && !used; k++) {
            const inv_value *v = inv_val(g, g->inits.at[k]);
            if (!inv_param_fits(o->groups[i].glob, v)) continue;
            used = v->trainable || v->untrained == INV_UNTRAINED_LATER;
            if (!left_out) left_out = v;
        }
        INV_CHECK(used || !left_out, g->ctx, INV_E_ARG,
                  "%s %s: no matching parameter is trained; '%s' is not trained: %s. Leave the group out, or train "
                  "its parameters",
                  inv_option(g->ctx, "groups"), o->groups[i].glob, left_out->name,
                  inv_untrained_text((inv_untrained)left_out->untrained));
    }
    return INV_OK;
}

static bool is_vector(const inv_shape *s)
{
    int axes = 0;
    for (int d = 0; d < s->rank; d++) axes += s->dim[d] > 1;
    return axes <= 1;
}

static double decay_of(const inv_session_options *o, const inv_param_group *group, const optimizer_row *row,
                       const inv_value *w)
{
    if (group && group->weight_decay >= 0) return group->weight_decay;
    return row->decoupled && !o->decay_all && is_vector(&w->shape) ? 0 : o->weight_decay;
}

enum { MOST_ATTRIBUTES = 10 };

static uint32_t update_attributes(const inv_update_site *u, const optimizer_row *row, inv_attr attr[MOST_ATTRIBUTES])
{
    const inv_session_options *o = u->o;
    const inv_optimizer_numbers *k = &u->numbers;
    uint32_t n = 0;
    if (row->momentum) attr[n++] = inv_attr_of_float("momentum", k->momentum);
    if (row->beta1) attr[n++] = inv_attr_of_float("beta1", k->beta1);
    if (row->beta2) attr[n++] = inv_attr_of_float("beta2", k->beta2);
    if (row->epsilon) attr[n++] = inv_attr_of_float("epsilon", k->epsilon);
    attr[n++] = inv_attr_of_float("weight_decay", u->decay);
    if (row->beta1 && row->epsilon) attr[n++] = inv_attr_of_int("decoupled", row->decoupled);
    if (row->beta1 && row->epsilon && u->since) attr[n++] = inv_attr_of_int("since", (int64_t)u->since);
    if (row->momentum && o->nesterov) attr[n++] = inv_attr_of_int("nesterov", 1);
    if (u->group) attr[n++] = inv_attr_of_int("group", (int64_t)u->group);
    if (o->clip_value > 0) attr[n++] = inv_attr_of_float("clip_value", o->clip_value);
    if (o->clip_norm > 0) attr[n++] = inv_attr_of_float("clip_norm", o->clip_norm);
    if (u->length) attr[n++] = inv_attr_of_int("part", 1);
    return n;
}

static inv_status update_average(inv_graph *g, const inv_session_options *o, inv_id w)
{
    inv_id average;
    if (!o->average) return INV_OK;
    INV_TRY(state_like(g, w, INV_STATE_AVERAGE, INV_MEM_OPTIM, &average));
    inv_val(g, whole_of(g, average))->data = inv_val(g, whole_of(g, w))->data; /* before any step they are the same */
    (void)inv_emit(g, "AverageUpdate", 0, INV_IN(average, w),
                   INV_ATTRS(inv_attr_of_float("decay", o->average_decay),
                             inv_attr_of_int("from", (int64_t)o->average_from),
                             inv_attr_of_int("every", o->average_every ? (int64_t)o->average_every : 1)));
    return g->failed ? g->failed : inv_hold_rows(g, w, average);
}

/* Blocks that so many elements are in. */
static int64_t blocks_of(int64_t n) { return (n + INV_BLOCK8 - 1) / INV_BLOCK8; }

/* A state in 8 bits: codes of all elements, and behind them the scales of blocks. Sections begin with a block. */
static inv_status state_in_8_bits(inv_graph *g, inv_id w, const char *what, inv_id out[2])
{
    const inv_value x = *inv_val(g, w);
    const inv_id param = whole_of(g, w);
    const int64_t all = inv_shape_nelem(&inv_val(g, param)->shape), n = inv_shape_nelem(&x.shape);
    const inv_shape codes = inv_shape_of(1, &all), scales = inv_shape_of(1, (int64_t[]){blocks_of(all)});
    const inv_shape some = inv_shape_of(1, &n), few = inv_shape_of(1, (int64_t[]){blocks_of(n)});
    const char *name = inv_arena_printf(&g->arena, "%s_scale", what);
    if (!name) return INV_E_NOMEM;
    INV_TRY(inv_state_tensor(g, param, what, INV_MEM_OPTIM, INV_U8, &codes, &out[0]));
    INV_TRY(inv_state_tensor(g, param, name, INV_MEM_OPTIM, INV_F32, &scales, &out[1]));
    if (x.whole == INV_NONE) return INV_OK;
    out[0] = inv_graph_section(g, out[0], x.first, &some);
    out[1] = inv_graph_section(g, out[1], x.first / INV_BLOCK8, &few);
    return g->failed;
}

/* The update of a parameter as one node. */
static inv_status update_node(const inv_update_site *u, const optimizer_row *row)
{
    inv_id in[8] = {u->part, u->grad};
    uint32_t nin = 2;
    inv_attr attr[MOST_ATTRIBUTES];
    for (int i = 0; i < 2 && row->state[i]; i++, nin += row->in_8_bits ? 2 : 1) {
        INV_TRY(row->in_8_bits ? state_in_8_bits(u->g, u->w, row->state[i], &in[nin])
                               : state_like(u->g, u->w, row->state[i], INV_MEM_OPTIM, &in[nin]));
        if (!u->length) continue;
        INV_TRY(inv_shard_state(u->g, in[nin], u->length));
        if (row->in_8_bits) INV_TRY(inv_shard_state(u->g, in[nin + 1], u->length / INV_BLOCK8));
    }
    in[nin++] = u->bad;
    in[nin++] = u->norm;
    while (in[nin - 1] == INV_NONE) nin--;
    const uint32_t nattr = update_attributes(u, row, attr);
    (void)inv_emit(u->g, row->op, 0, nin, in, nattr, attr);
    return u->g->failed;
}

/* By what a parameter is updated; *group: that which it is of, or 0. */
static inv_optimizer optimizer_of(const inv_session_options *o, const inv_value *param, size_t *group)
{
    *group = group_of(o, param);
    inv_optimizer optimizer = *group ? o->groups[*group - 1].optimizer : INV_OPT_NONE;
    if (optimizer == INV_OPT_NONE) optimizer = o->optimizer;
    optimizer = with_momentum(o, optimizer);
    if (optimizer == INV_OPT_MUON && (!inv_is_matrix(&param->shape) || param->held)) optimizer = INV_OPT_ADAMW;
    if (optimizer == INV_OPT_ADAMW8 && inv_shape_nelem(&param->shape) < INV_LEAST8) optimizer = INV_OPT_ADAMW;
    return optimizer;
}

bool inv_updated_by_element(const inv_graph *g, const inv_session_options *o, inv_id w)
{
    size_t group;
    return !rows[optimizer_of(o, inv_val(g, w), &group)].several;
}

int64_t inv_shard_length(const inv_graph *g, const inv_session_options *o, inv_id w)
{
    size_t group;
    const inv_value *v = inv_val(g, w);
    return inv_part_length(inv_shape_nelem(&v->shape), o->world->size,
                           rows[optimizer_of(o, v, &group)].in_8_bits ? INV_BLOCK8 : 1);
}

/* What the update of a rank's part is of. */
static inv_status take_part(inv_update_site *u, const optimizer_row *row)
{
    const inv_session_options *o = u->o;
    INV_CHECK(!u->g->gpu, u->g->ctx, INV_E_ARG,
              "%s: not available on this device. Ranks share states on cpu; without it each rank has all of them",
              inv_option(u->g->ctx, "shard"));
    INV_CHECK(!row->several, u->g->ctx, INV_E_ARG,
              "%s: the optimizer of '%s' needs the whole tensor, but a rank would have only a part of it. Use sgd, "
              "momentum, adam, adamw, adamw8, lion or rmsprop",
              inv_option(u->g->ctx, "shard"), inv_val(u->g, u->w)->name);
    u->length = inv_shard_length(u->g, o, u->w);
    u->part = inv_shard_part(u->g, o, u->w, u->length);
    if (o->shard == INV_SHARD_OPTIMIZER) u->grad = inv_shard_part(u->g, o, u->grad, u->length);
    if (u->g->failed) return u->g->failed;
    inv_val(u->g, u->part)->mem = INV_MEM_PARAM;
    inv_val(u->g, u->grad)->mem = INV_MEM_GRAD;
    return INV_OK;
}

/* `bad`: a count; INV_NONE: the whole commit part waits for it. `norm`: INV_NONE, or the norm of all gradients.
 * `sharing`: of ranks that share updates. */
static inv_status update_one(inv_graph *g, const inv_session_options *o, inv_id w, inv_id grad, inv_id bad, inv_id norm,
                             inv_sharing *sharing)
{
    size_t number;
    const inv_value param = *inv_val(g, whole_of(g, w));
    const inv_optimizer optimizer = optimizer_of(o, &param, &number);
    const inv_param_group *group = number ? &o->groups[number - 1] : NULL;
    const inv_optimizer_numbers given = {o->momentum, o->beta1, o->beta2, o->epsilon, o->weight_decay};
    const bool main = !group || group->optimizer == INV_OPT_NONE || group->optimizer == o->optimizer;
    const inv_optimizer_numbers numbers = main ? given : inv_optimizer_defaults(group->optimizer);
    const optimizer_row *row = &rows[optimizer];
    inv_update_site u = {
        .g = g, .o = o, .w = w, .part = w, .grad = grad, .bad = bad, .group = number, .numbers = numbers};
    u.since = inv_trained_from(o, &param);
    INV_CHECK(!row->several || param.dtype == g->real, g->ctx, INV_E_ARG,
              "%s: the optimizer of '%s' needs the whole tensor and does not support weights in %s. Use sgd, "
              "momentum, adam, adamw, adamw8, lion or rmsprop",
              inv_option(g->ctx, "weights"), param.name, inv_dtype_name(param.dtype));
    u.norm = o->clip_norm > 0 ? norm : INV_NONE;
    u.decay = decay_of(o, group, row, &param);
    if (sharing) INV_TRY(take_part(&u, row));
    INV_TRY(row->several ? row->several(&u) : update_node(&u, row));
    return sharing ? inv_sharing_add(sharing, w, u.part) : INV_OK;
}

/* What becomes of a gradient: it goes into the parameter, or with others into the mean over micro-batches. */
static inv_status use_gradient(inv_graph *g, const inv_request *rq, const inv_plan *plan, inv_id w, inv_id grad,
                               inv_id bad, inv_id norm, inv_sharing *sharing)
{
    inv_id sum;
    if (!rq->accumulate) return update_one(g, rq->options, w, grad, bad, norm, sharing);
    INV_TRY(state_like(g, w, INV_STATE_GRADIENT, INV_MEM_GRAD, &sum));
    const inv_attr whole = inv_attr_of_int("whole", 1);
    (void)inv_emit(g, "Accumulate", 0, bad == INV_NONE ? 2 : 3, (inv_id[]){sum, grad, bad},
                   plan->divisor == INV_BY_NOTHING, &whole);
    return g->failed;
}

/* The node that updates a statistic: another one, where the model itself computes with what this one gives, or where
 * what it mixes in is that of all ranks, in their order, as it would be of micro-batches: not of those of no weight. */
static inv_node *committing(inv_graph *g, const inv_request *rq, inv_plan *plan, inv_node *n, const bool *read)
{
    const inv_world *w = rq->options->world;
    const bool several = inv_world_several(w) && rq->optimize && !rq->options->sync_bn; /* else they are alike */
    if (!read[n->out[0]] && !several) return n;
    const inv_node of = *n;
    inv_id *in = INV_ARENA_NEW(&g->arena, inv_id, of.nin + 1);
    if (!in || (several && inv_rank_weights(g, w->size, plan) != INV_OK)) return NULL;
    for (uint32_t k = 0; k < of.nin; k++) {
        in[k] = of.in[k];
        if (k > 0 && several)
            in[k] = inv_emit1(g, "AllGather", INV_IN(of.in[k]), INV_ATTRS(inv_attr_of_int("ranks", w->size)));
    }
    in[of.nin] = plan->weights;
    const inv_id again = inv_emit1(g, of.op->name, of.nin + several, in, of.nattr, of.attr);
    return again == INV_NONE ? NULL : inv_nod(g, inv_val(g, again)->def);
}

/* Statistics that several nodes update are updated one after the other. */
static inv_status running_statistics(inv_graph *g, const inv_request *rq, inv_plan *plan)
{
    const size_t norder = g->order.n;
    bool *read = INV_ARENA_NEW(&g->arena, bool, g->value.n + 1);        /* per value */
    size_t *slot_of = INV_ARENA_NEW(&g->arena, size_t, g->value.n + 1); /* per statistic: one more than its slot */
    if (!read || !slot_of) return INV_E_NOMEM;
    for (size_t i = 0; i < norder; i++) {
        const inv_node *n = inv_nod(g, g->order.at[i]);
        for (uint32_t k = 0; k < n->nin; k++)
            if (n->in[k] != INV_NONE) read[n->in[k]] = true;
    }
    for (size_t i = 0; i < norder; i++) {
        inv_node *n = inv_nod(g, g->order.at[i]);
        if (!(n->op->flags & INV_OP_UPDATE)) continue;
        inv_value *out = inv_val(g, n->out[0]);
        out->keep = false;
        for (size_t k = 0; k < g->outputs.n && !rq->optimize; k++) out->keep |= g->outputs.at[k] == n->out[0];
        if (rq->purpose != INV_FOR_TRAIN || inv_val(g, n->in[0])->role != INV_ROLE_PARAM) continue; /* just a result */
        if (!(n = committing(g, rq, plan, n, read))) return g->failed;
        n->phase = INV_COMMIT;
        inv_val(g, n->out[0])->mem = INV_MEM_PARAM;
        size_t *slot = &slot_of[n->in[0]];
        if (*slot) {
            n->in[0] = plan->state.at[*slot - 1].value;
            plan->state.at[*slot - 1].value = n->out[0];
            continue;
        }
        const inv_result_slot first = {inv_val(g, n->in[0])->name, n->out[0]};
        if (!inv_vec_push(&g->arena, &plan->state, first)) return INV_E_NOMEM;
        *slot = plan->state.n;
    }
    for (size_t k = 0; k < plan->state.n; k++) {
        inv_id param = inv_graph_find(g, plan->state.at[k].name);
        if (rq->optimize) (void)inv_emit(g, "Assign", 0, INV_IN(param, plan->state.at[k].value), INV_NOATTR);
        else inv_val(g, plan->state.at[k].value)->keep = true;
    }
    return g->failed;
}

/* Of all gradients at once, before the commit part: how many entries are not finite, for weights are not updated from
 * such; and the norm, where it is asked for. */
static inv_status look_at_gradients(inv_graph *g, const inv_request *rq, inv_plan *plan)
{
    const inv_session_options *o = rq->options;
    inv_ids in = {0};
    for (size_t i = 0; i < plan->grad.n; i++)
        if (!inv_vec_push(&g->arena, &in, plan->grad.at[i].value)) return INV_E_NOMEM;
    if (in.n == 0) return INV_OK;
    g->phase = INV_BACKWARD;
    plan->finite = inv_emit1(g, "CountNonFinite", (uint32_t)in.n, in.at, INV_NOATTR);
    if ((o->clip_norm > 0 || o->grad_norm) && rq->optimize && !rq->accumulate)
        plan->norm = inv_emit1(g, "GradientNorm", (uint32_t)in.n, in.at, INV_NOATTR);
    if (plan->norm != INV_NONE && inv_shards(o) && o->shard == INV_SHARD_GRADIENTS) {
        const inv_id all =
            inv_emit1(g, "AllGather", INV_IN(plan->norm), INV_ATTRS(inv_attr_of_int("ranks", o->world->size)));
        plan->norm = inv_emit1(g, "GradientNorm", INV_IN(all), INV_NOATTR); /* of the norms of all ranks' parts */
    }
    const inv_id found[] = {plan->finite, plan->norm};
    for (size_t i = 0; i < 2 && !g->failed; i++) {
        if (found[i] == INV_NONE) continue;
        inv_val(g, found[i])->keep = true;
        inv_val(g, found[i])->mem = INV_MEM_GUARD;
    }
    return g->failed;
}

typedef struct arrival {
    size_t at; /* position of the node that completes it */
    inv_id param, grad;
} arrival;

static int by_arrival(const void *a, const void *b)
{
    const arrival *x = a, *y = b;
    if (x->at != y->at) return x->at < y->at ? -1 : 1;
    return x->param < y->param ? -1 : x->param > y->param;
}

/* Updates in the order in which their gradients are complete, with the count up to there. order.c moves them. */
static inv_status update_early(inv_graph *g, const inv_request *rq, inv_plan *plan, inv_arena *scratch)
{
    const size_t n = plan->grad.n;
    size_t *at = INV_ARENA_NEW(scratch, size_t, g->value.n + 1);
    arrival *list = INV_ARENA_NEW(scratch, arrival, n + 1);
    if (!at || !list) return INV_E_NOMEM;
    for (size_t i = 0; i < g->order.n; i++) {
        const inv_node *node = inv_nod(g, g->order.at[i]);
        for (uint32_t k = 0; k < node->nout; k++)
            if (node->out[k] != INV_NONE) at[node->out[k]] = i;
    }
    for (size_t i = 0; i < n; i++) {
        const inv_id grad = plan->grad.at[i].value;
        list[i] = (arrival){at[grad], inv_graph_find(g, plan->grad.at[i].name), grad};
    }
    qsort(list, n, sizeof *list, by_arrival);
    inv_id bad = plan->loss_finite = inv_emit1(g, "CountNonFinite", INV_IN(plan->loss), INV_NOATTR);
    for (size_t i = 0; i < n && !g->failed; i++) {
        const inv_id count = inv_emit1(g, "CountNonFinite", INV_IN(list[i].grad), INV_NOATTR);
        bad = inv_emit1(g, "Add", INV_IN(bad, count), INV_NOATTR);
        if (!g->failed) INV_TRY(use_gradient(g, rq, plan, list[i].param, list[i].grad, bad, INV_NONE, NULL));
        if (!g->failed && !rq->accumulate) INV_TRY(inv_hold_rows(g, list[i].param, list[i].param));
        if (!g->failed && !rq->accumulate) INV_TRY(update_average(g, rq->options, list[i].param));
    }
    if (g->failed) return g->failed;
    plan->finite = bad;
    inv_val(g, bad)->keep = true;
    inv_val(g, bad)->mem = INV_MEM_GUARD;
    return INV_OK;
}

/* Updates of one optimizer stand together: a device has one launch for them. */
static inv_status update_late(inv_graph *g, const inv_request *rq, const inv_plan *plan)
{
    const bool shares = inv_shards(rq->options);
    inv_sharing sharing = {.g = g, .o = rq->options, .room = INV_NONE};
    size_t group;
    for (size_t k = 0; k < sizeof rows / sizeof *rows; k++)
        for (size_t i = 0; i < plan->grad.n; i++) {
            const inv_id w = inv_graph_find(g, plan->grad.at[i].name);
            if (optimizer_of(rq->options, inv_val(g, whole_of(g, w)), &group) != (inv_optimizer)k) continue;
            INV_TRY(
                use_gradient(g, rq, plan, w, plan->grad.at[i].value, INV_NONE, plan->norm, shares ? &sharing : NULL));
        }
    if (shares) INV_TRY(inv_sharing_end(&sharing));
    for (size_t i = 0; i < plan->grad.n && !rq->accumulate; i++) {
        const inv_id w = inv_graph_find(g, plan->grad.at[i].name);
        INV_TRY(inv_hold_rows(g, w, w));
    }
    return INV_OK;
}

inv_status inv_pass_update(inv_graph *g, const inv_request *rq, inv_plan *plan)
{
    plan->finite = plan->loss_finite = plan->norm = INV_NONE;
    if (!g->early) INV_TRY(look_at_gradients(g, rq, plan));
    g->phase = INV_COMMIT;
    INV_TRY(running_statistics(g, rq, plan));
    if (!rq->optimize) return INV_OK;
    INV_TRY(check_groups(g, rq->options));
    if (g->early) {
        inv_arena scratch;
        inv_arena_init(&scratch, g->ctx);
        inv_status s = update_early(g, rq, plan, &scratch);
        inv_arena_fini(&scratch);
        return s;
    }
    INV_TRY(update_late(g, rq, plan));
    /* behind all updates, as one launch; on every rank, of parameters that all have by then */
    for (size_t i = 0; i < plan->grad.n && !rq->accumulate; i++)
        INV_TRY(update_average(g, rq->options, inv_graph_find(g, plan->grad.at[i].name)));
    return g->failed;
}

inv_status inv_update_graph(const inv_plan *main, inv_plan *plan)
{
    const inv_graph *from = main->base;
    INV_TRY(inv_graph_create(from->ctx, from->name, &plan->base));
    inv_graph *g = plan->base;
    g->real = from->real;
    for (size_t i = 0; i < main->grad.n; i++) {
        const inv_value *w = inv_val(from, whole_of(from, inv_graph_find(from, main->grad.at[i].name)));
        if (inv_graph_find(g, w->name) != INV_NONE) continue; /* another section of it */
        const inv_id param = inv_graph_value(g, w->name, INV_ROLE_PARAM, w->dtype, &w->shape);
        inv_result_slot slot = {w->name, INV_NONE};
        if (param == INV_NONE) return INV_E_NOMEM;
        inv_value *v = inv_val(g, param);
        v->data = w->data;
        v->init = w->init;
        v->trainable = true;
        v->added = w->added;
        v->held = w->held;
        INV_TRY(state_like(g, param, INV_STATE_GRADIENT, INV_MEM_GRAD, &slot.value));
        if (!inv_vec_push(&g->arena, &plan->grad, slot)) return INV_E_NOMEM;
    }
    return INV_OK;
}
