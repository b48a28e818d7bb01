/* SPDX-License-Identifier: Apache-2.0
 * What writes parameters and what belongs to them: optimizer updates, accumulated gradients, averages of weights,
 * Assign. They write their operands in place and have no outputs. Rules whose every element is for itself are operators
 * here; others are made of several nodes (passes/autodiff/optimizer_whole_tensor.c). */
#include "ops/train/optim.h"

#include "ops/base/parallel.h"
#include "ops/base/util.h"
#include "ops/train/adam8.h"
#include "ops/train/exchanges.h"
#include "ops/train/optim_gpu.h"

#define UPDATE_PIECE 16384 /* elements on one thread */
#define SMALL_PIECE 512    /* of a parameter in bfloat16, which is computed with beside its place */

/* A parameter on the host: float32, float64, or bfloat16 that is rounded by chance. Or a part of one. */
typedef struct inv_parameter {
    void *data;
    bool small;
    uint32_t salt;
    uint32_t first; /* number of its first element, by which chances differ */
} inv_parameter;

#define INV_BOTH "ops/train/optim_kernels.inc"
#include "ops/base/both_reals.inc"

/* --- updates --- */

/* Parameter, gradient and state. Behind them there may be a count of what is wrong with the step so far, and the norm
 * of all gradients. */
static uint32_t noperands(const inv_node *n)
{
    if (n->op == &inv_op_sgd || n->op == &inv_op_accumulate || n->op == &inv_op_average) return 2;
    return n->op == &inv_op_adam8 ? 6 : n->op == &inv_op_adam ? 4 : 3;
}

static inv_status need_number(const inv_graph *g, const inv_node *n, uint32_t i)
{
    if (inv_val(g, n->in[i])->dtype == INV_F64 && inv_in_shape(g, n, i)->rank == 0) return INV_OK;
    return inv_node_fail(g, n, INV_E_SHAPE, "input %u is not one number of type double", i);
}

/* The first two operands: a parameter, which may be kept in bfloat16, and its gradient in the type of computing. */
static inv_status need_parameter(const inv_graph *g, const inv_node *n)
{
    INV_TRY(inv_need_real(g, n, 1));
    if (inv_in_dtype(g, n, 0) == inv_in_dtype(g, n, 1)) return INV_OK;
    if (inv_in_dtype(g, n, 0) == INV_BF16 && inv_in_dtype(g, n, 1) == INV_F32 && !g->gpu) return INV_OK;
    return inv_node_fail(g, n, INV_E_UNSUPPORTED_TYPE, "the parameter is %s and its gradient %s",
                         inv_dtype_name(inv_in_dtype(g, n, 0)), inv_dtype_name(inv_in_dtype(g, n, 1)));
}

/* All operands of one type and shape; those behind them are numbers. */
static inv_status update_infer(inv_graph *g, inv_node *n)
{
    const uint32_t count = noperands(n);
    INV_TRY(need_parameter(g, n));
    for (uint32_t i = 2; i < count; i++)
        if (inv_in_dtype(g, n, i) != inv_in_dtype(g, n, 1))
            return inv_node_fail(g, n, INV_E_UNSUPPORTED_TYPE, "input %u has not the type of the gradient", i);
    for (uint32_t i = count; i < n->nin; i++)
        if (inv_has_in(n, i)) INV_TRY(need_number(g, n, i));
    for (uint32_t i = 1; i < count; i++) {
        if (!inv_shape_equal(inv_in_shape(g, n, i), inv_in_shape(g, n, 0)))
            return inv_node_fail(g, n, INV_E_SHAPE, "input %u has not the shape of the parameter", i);
    }
    return INV_OK;
}

/* Moments in 8 bits: codes of all elements, and a scale for each block of them. */
static inv_status update8_infer(inv_graph *g, inv_node *n)
{
    const int64_t count = inv_shape_nelem(inv_in_shape(g, n, 0));
    const inv_shape codes = inv_shape_of(1, &count);
    const inv_shape scales = inv_shape_of(1, (int64_t[]){(count + INV_BLOCK8 - 1) / INV_BLOCK8});
    INV_TRY(need_parameter(g, n));
    if (!inv_shape_equal(inv_in_shape(g, n, 1), inv_in_shape(g, n, 0)))
        return inv_node_fail(g, n, INV_E_SHAPE, "the gradient has not the shape of the parameter");
    for (uint32_t i = 2; i < 6; i++) {
        const inv_value *v = inv_val(g, n->in[i]);
        if (v->dtype != (i % 2 ? INV_F32 : INV_U8) || !inv_shape_equal(&v->shape, i % 2 ? &scales : &codes))
            return inv_node_fail(g, n, INV_E_SHAPE, "input %u is not what moments in 8 bits are kept in", i);
    }
    for (uint32_t i = 6; i < n->nin; i++)
        if (inv_has_in(n, i)) INV_TRY(need_number(g, n, i));
    return INV_OK;
}

static const double *number_behind(const inv_call *c, uint32_t which)
{
    const uint32_t at = noperands(c->node) + which;
    return c->nin > at ? c->in[at].data : NULL;
}

static inv_update update_of(const inv_node *n)
{
    const double clip = inv_attr_float(n, "clip_value", 0);
    return (inv_update){.kind = n->op == &inv_op_sgd        ? INV_UPDATE_SGD
                                : n->op == &inv_op_momentum ? INV_UPDATE_MOMENTUM
                                : n->op == &inv_op_rmsprop  ? INV_UPDATE_RMSPROP
                                : n->op == &inv_op_lion     ? INV_UPDATE_LION
                                : n->op == &inv_op_adam8    ? INV_UPDATE_ADAM8
                                                            : INV_UPDATE_ADAM,
                        .group = (int)inv_attr_int(n, "group", 0),
                        .since = (uint64_t)inv_attr_int(n, "since", 0),
                        .momentum = inv_attr_float(n, "momentum", 0.9),
                        .beta1 = inv_attr_float(n, "beta1", 0.9),
                        .beta2 = inv_attr_float(n, "beta2", 0.999),
                        .epsilon = inv_attr_float(n, "epsilon", 1e-8),
                        .decay = inv_attr_float(n, "weight_decay", 0),
                        .clip_value = clip > 0 ? clip : (double)INFINITY,
                        .clip_norm = inv_attr_float(n, "clip_norm", 0),
                        .decoupled = inv_attr_int(n, "decoupled", 0) != 0 || n->op == &inv_op_lion,
                        .nesterov = inv_attr_int(n, "nesterov", 0) != 0};
}

static inv_parameter parameter_of(const inv_call *c)
{
    const bool part = inv_attr_int(c->node, "part", 0) != 0;
    return (inv_parameter){c->in[0].data, c->in[0].dtype == INV_BF16, inv_rounding_salt(c->step->seed, c->step->step),
                           part ? (uint32_t)(inv_exchange_rank(c) * c->in[0].n) : 0};
}

/* The state behind parameter and gradient; NULL: there is none. */
static void *state_of(const inv_call *c, uint32_t i) { return noperands(c->node) > 2 + i ? c->in[2 + i].data : NULL; }

/* Whether one kernel can do both: they differ in their tensors alone. */
static bool same_update(const inv_call *a, const inv_call *b)
{
    const inv_update u = update_of(a->node), v = update_of(b->node);
    return a->in[0].dtype == b->in[0].dtype && number_behind(a, 0) == number_behind(b, 0) &&
           number_behind(a, 1) == number_behind(b, 1) && u.group == v.group && u.since == v.since &&
           u.momentum == v.momentum && u.beta1 == v.beta1 && u.beta2 == v.beta2 && u.epsilon == v.epsilon &&
           u.decay == v.decay && u.clip_value == v.clip_value && u.clip_norm == v.clip_norm &&
           u.decoupled == v.decoupled && u.nesterov == v.nesterov;
}

static inv_status update_many(const inv_gpu *gpu, const inv_call *const *c, size_t n)
{
    for (size_t i = 0, end; i < n; i = end) {
        const inv_update u = update_of(c[i]->node);
        inv_many m;
        inv_many_begin(&m);
        for (end = i; end < n && m.n < INV_MANY && same_update(c[i], c[end]); end++)
            inv_many_add(&m, c[end]->in[0].n, c[end]->in[0].data, c[end]->in[1].data, state_of(c[end], 0),
                         state_of(c[end], 1));
        INV_GPU(gpu, update, c[i]->in[0].dtype, &m, &u, number_behind(c[i], 0), number_behind(c[i], 1));
    }
    return INV_OK;
}

static inv_status update8_many(const inv_gpu *gpu, const inv_call *const *c, size_t n)
{
    for (size_t i = 0, end; i < n; i = end) {
        const inv_update u = update_of(c[i]->node);
        inv_many m;
        inv_many_begin(&m);
        for (end = i; end < n && m.n + 1 < INV_MANY && same_update(c[i], c[end]); end++) {
            const inv_tensor *in = c[end]->in;
            if (in[0].n == 0) continue;
            inv_many_add(&m, in[0].n, in[0].data, in[1].data, in[2].data, in[4].data);
            inv_many_more(&m, in[3].data, in[5].data);
        }
        INV_GPU(gpu, update8, c[i]->in[0].dtype, &m, &u, number_behind(c[i], 0), number_behind(c[i], 1));
    }
    return INV_OK;
}

static inv_status update_run(const inv_call *c)
{
    const inv_update u = update_of(c->node);
    const inv_tensor *in = c->in;
    const double *bad = number_behind(c, 0), *norm = number_behind(c, 1);
    if (c->gpu) return update_many(c->gpu, &c, 1);
    if (c->step == NULL) return INV_E_INTERNAL;
    if (bad && *bad > 0) return INV_OK;
    const inv_update_rates r =
        inv_update_rates_of(&u, inv_group_lr(c->step->lr, c->step->group_lr, u.group), c->step->step, norm);
    const inv_parameter w = parameter_of(c);
    INV_REAL(in[1].dtype, update, in[0].n, &u, &r, &w, in[1].data, state_of(c, 0), state_of(c, 1));
    return INV_OK;
}

static inv_status update8_run(const inv_call *c)
{
    const inv_update u = update_of(c->node);
    const inv_tensor *in = c->in;
    const inv_moments8 state = {in[2].data, in[4].data, in[3].data, in[5].data};
    const double *bad = number_behind(c, 0), *norm = number_behind(c, 1);
    if (c->gpu) return update8_many(c->gpu, &c, 1);
    if (c->step == NULL) return INV_E_INTERNAL;
    if (bad && *bad > 0) return INV_OK;
    const inv_update_rates r =
        inv_update_rates_of(&u, inv_group_lr(c->step->lr, c->step->group_lr, u.group), c->step->step, norm);
    const inv_parameter w = parameter_of(c);
    INV_REAL(in[1].dtype, update8, in[0].n, &u, &r, &w, in[1].data, &state);
    return INV_OK;
}

/* --- gradients and weights of several steps --- */

void inv_mean_add(inv_dtype t, int64_t n, double keep, double add, void *y, const void *x)
{
    INV_REAL(t, mix, n, keep, add, y, x);
}

/* As many of the calls c[0..n-1] as go together, their first two operands; returns how many. */
static size_t gather_pairs(inv_many *m, const inv_call *const *c, size_t n,
                           bool (*alike)(const inv_call *, const inv_call *))
{
    size_t end = 0;
    inv_many_begin(m);
    for (; end < n && m->n < INV_MANY && c[end]->in[0].dtype == c[0]->in[0].dtype && alike(c[0], c[end]); end++)
        inv_many_add(m, c[end]->in[0].n, c[end]->in[0].data, c[end]->in[1].data, NULL, NULL);
    return end;
}

/* Of a loss that is a sum gradients are added up, not averaged. */
static bool is_whole(const inv_call *c) { return inv_attr_int(c->node, "whole", 0) != 0; }

static bool same_bad(const inv_call *a, const inv_call *b) { return number_behind(a, 0) == number_behind(b, 0); }

static inv_status accumulate_many(const inv_gpu *gpu, const inv_call *const *c, size_t n)
{
    inv_many m;
    for (size_t i = 0, count; i < n; i += count) {
        count = gather_pairs(&m, c + i, n - i, same_bad);
        INV_GPU(gpu, accumulate, c[i]->in[0].dtype, &m, number_behind(c[i], 0), is_whole(c[i]));
    }
    return INV_OK;
}

static inv_status accumulate_run(const inv_call *c)
{
    const inv_tensor *in = c->in;
    const double *bad = number_behind(c, 0);
    if (c->gpu) return accumulate_many(c->gpu, &c, 1);
    if (c->step == NULL) return INV_E_INTERNAL;
    const bool nothing = c->step->kept > 0 && !(c->step->added > 0); /* of ranks, one whose labels do not count */
    if (!(bad && *bad > 0) && !nothing)
        inv_mean_add(in[0].dtype, in[0].n, inv_accumulated(c->step->kept, is_whole(c)),
                     inv_accumulated(c->step->added, is_whole(c)), in[0].data, in[1].data);
    return INV_OK;
}

/* What is said of an average that a node updates. */
typedef struct averaging {
    double decay;
    uint64_t from, every;
} averaging;

static averaging averaging_of(const inv_node *n)
{
    return (averaging){inv_attr_float(n, "decay", 0), (uint64_t)inv_attr_int(n, "from", 0),
                       (uint64_t)inv_attr_int(n, "every", 1)};
}

static bool same_averaging(const inv_call *a, const inv_call *b)
{
    const averaging u = averaging_of(a->node), v = averaging_of(b->node);
    return u.decay == v.decay && u.from == v.from && u.every == v.every;
}

static inv_status average_many(const inv_gpu *gpu, const inv_call *const *c, size_t n)
{
    inv_many m;
    for (size_t i = 0, count; i < n; i += count) {
        const averaging k = averaging_of(c[i]->node);
        count = gather_pairs(&m, c + i, n - i, same_averaging);
        INV_GPU(gpu, average, c[i]->in[0].dtype, &m, k.decay, k.from, k.every);
    }
    return INV_OK;
}

static inv_status average_run(const inv_call *c)
{
    const inv_tensor *in = c->in;
    const averaging k = averaging_of(c->node);
    if (c->gpu) return average_many(c->gpu, &c, 1);
    if (c->step == NULL) return INV_E_INTERNAL;
    const double keep = inv_average_keep(k.decay, k.from, k.every, c->step->step);
    if (keep != 1) INV_REAL(in[0].dtype, mix, in[0].n, keep, 1 - keep, in[0].data, in[1].data);
    return INV_OK;
}

static inv_status assign_infer(inv_graph *g, inv_node *n)
{
    INV_TRY(inv_need_same_type(g, n, 2));
    if (!inv_shape_equal(inv_in_shape(g, n, 0), inv_in_shape(g, n, 1)))
        return inv_node_fail(g, n, INV_E_SHAPE, "the value has not the shape of the parameter");
    return inv_has_in(n, 2) ? need_number(g, n, 2) : INV_OK;
}

static size_t assigned_nbytes(const inv_call *c) { return (size_t)c->in[0].n * inv_dtype_size(c->in[0].dtype); }
static const double *assign_bad(const inv_call *c) { return c->nin > 2 ? c->in[2].data : NULL; }

static inv_status assign_many(const inv_gpu *gpu, const inv_call *const *c, size_t n)
{
    for (size_t i = 0, end; i < n; i = end) {
        const bool words = assigned_nbytes(c[i]) % 4 == 0;
        inv_many m;
        inv_many_begin(&m);
        for (end = i; end < n && m.n < INV_MANY && assign_bad(c[end]) == assign_bad(c[i]) &&
                      (assigned_nbytes(c[end]) % 4 == 0) == words;
             end++)
            if (c[end]->in[0].data != c[end]->in[1].data)
                inv_many_add(&m, (int64_t)(assigned_nbytes(c[end]) / (words ? 4 : 1)), c[end]->in[0].data,
                             c[end]->in[1].data, NULL, NULL);
        INV_GPU(gpu, assign, &m, words, assign_bad(c[i]));
    }
    return INV_OK;
}

static inv_status assign_run(const inv_call *c)
{
    const size_t nbytes = assigned_nbytes(c);
    const double *bad = assign_bad(c);
    if (c->gpu) return assign_many(c->gpu, &c, 1);
    if (c->in[0].data == c->in[1].data || (bad && *bad > 0)) return INV_OK;
    if (nbytes > 0) memcpy(c->in[0].data, c->in[1].data, nbytes);
    return INV_OK;
}

static double sgd_flops(const inv_graph *g, const inv_node *n) { return 4 * inv_flops_in(g, n); }
static double adam8_flops(const inv_graph *g, const inv_node *n) { return 40 * inv_flops_in(g, n); }
static double adam_flops(const inv_graph *g, const inv_node *n) { return 12 * inv_flops_in(g, n); }

/* clang-format off */
const inv_op_def inv_op_sgd = {
    .size = sizeof inv_op_sgd, .domain = INV_IR, .name = "SgdUpdate", .since = 1, .in = "w g bad? norm?", .out = "",
    .flags = INV_OP_NO_GRAD, .writes = 1, .infer = update_infer, .run = update_run,
    .run_many = update_many,
    .flops = sgd_flops,
    .doc = "w -= lr (g + weight_decay w), unless bad > 0; g clipped by clip_value or clip_norm; lr of `group`; part "
           "= 1: w is this rank's part"};

const inv_op_def inv_op_momentum = {
    .size = sizeof inv_op_momentum, .domain = INV_IR, .name = "MomentumUpdate", .since = 1,
    .in = "w g v bad? norm?", .out = "",
    .flags = INV_OP_NO_GRAD, .writes = 5, .infer = update_infer, .run = update_run,
    .run_many = update_many,
    .flops = sgd_flops,
    .doc = "v = momentum v + g + weight_decay w; w -= lr v (as PyTorch, dampening 0); nesterov = 1: lr (g + momentum "
           "v)"};

const inv_op_def inv_op_rmsprop = {
    .size = sizeof inv_op_rmsprop, .domain = INV_IR, .name = "RmspropUpdate", .since = 1,
    .in = "w g v bad? norm?", .out = "",
    .flags = INV_OP_NO_GRAD, .writes = 5, .infer = update_infer, .run = update_run,
    .run_many = update_many,
    .flops = sgd_flops,
    .doc = "v = beta2 v + (1 - beta2) g^2; w -= lr g / (sqrt(v) + epsilon) (Tieleman, Hinton 2012; as PyTorch)"};

const inv_op_def inv_op_lion = {
    .size = sizeof inv_op_lion, .domain = INV_IR, .name = "LionUpdate", .since = 1,
    .in = "w g m bad? norm?", .out = "",
    .flags = INV_OP_NO_GRAD, .writes = 5, .infer = update_infer, .run = update_run,
    .run_many = update_many,
    .flops = sgd_flops,
    .doc = "Lion (Chen et al. 2023): w -= lr (sign(beta1 m + (1 - beta1) g) + weight_decay w); m = beta2 m + (1 - "
           "beta2) g"};

const inv_op_def inv_op_adam = {
    .size = sizeof inv_op_adam, .domain = INV_IR, .name = "AdamUpdate", .since = 1,
    .in = "w g m v bad? norm?", .out = "",
    .flags = INV_OP_NO_GRAD, .writes = 13, .infer = update_infer, .run = update_run,
    .run_many = update_many,
    .flops = adam_flops,
    .doc = "Adam (Kingma, Ba 2015); decoupled = 1: AdamW (Loshchilov, Hutter 2019)"};

const inv_op_def inv_op_adam8 = {
    .size = sizeof inv_op_adam8, .domain = INV_IR, .name = "Adam8Update", .since = 1,
    .in = "w g m m_scale v v_scale bad? norm?", .out = "",
    .flags = INV_OP_NO_GRAD, .writes = 61, .infer = update8_infer, .run = update8_run,
    .run_many = update8_many,
    .flops = adam8_flops,
    .doc = "AdamUpdate with m and v in 8 bits, of blocks with a scale each (Dettmers et al. 2022)"};

const inv_op_def inv_op_accumulate = {
    .size = sizeof inv_op_accumulate, .domain = INV_IR, .name = "Accumulate", .since = 1, .in = "sum g bad?",
    .out = "",
    .flags = INV_OP_NO_GRAD, .writes = 1, .infer = update_infer, .run = accumulate_run,
    .run_many = accumulate_many,
    .flops = inv_flops_in,
    .doc = "sum = step.kept sum + step.added g, the mean over micro-batches so far, or, with whole = 1, their "
           "sum; nothing if bad > 0"};

const inv_op_def inv_op_average = {
    .size = sizeof inv_op_average, .domain = INV_IR, .name = "AverageUpdate", .since = 1, .in = "average w",
    .out = "",
    .flags = INV_OP_NO_GRAD | INV_OP_AFTER_UPDATE, .writes = 1, .infer = update_infer, .run = average_run,
    .run_many = average_many,
    .flops = inv_flops_in,
    .doc = "the weights' exponential moving average, or their mean over steps from `from` on (Polyak, Juditsky 1992; "
           "SWA: Izmailov et al. 2018)"};

const inv_op_def inv_op_assign = {
    .size = sizeof inv_op_assign, .domain = INV_IR, .name = "Assign", .since = 1,
    .in = "parameter value bad?", .out = "",
    .flags = INV_OP_NO_GRAD, .writes = 1, .infer = assign_infer, .run = assign_run,
    .run_many = assign_many,
    .flops = inv_flops_none, .doc = "parameter = value; nothing if bad > 0"};
/* clang-format on */
