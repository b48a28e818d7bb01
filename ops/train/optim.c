/* SPDX-License-Identifier: Apache-2.0
 * The commit part of a step: optimizer updates and Assign. They write their operands in place and have no outputs. The
 * learning rate is step->lr; Adam corrects its bias by the number of updates, step->step + 1. */
#include "ops/train/optim.h"

#include "ops/base/parallel.h"
#include "ops/base/strided_copy.h"
#include "ops/base/util.h"
#include "ops/train/optim_gpu.h"

#define UPDATE_PIECE 16384 /* elements on one thread */

typedef struct adam_constants {
    double beta1, beta2, epsilon;
    double l2, keep;   /* weight decay in the gradient; or 1 - lr * decay, decoupled (AdamW) */
    double rate, root; /* lr / (1 - beta1^t); 1 / sqrt(1 - beta2^t) */
} adam_constants;

#define INV_BOTH "ops/train/optim_kernels.inc"
#include "ops/base/both_reals.inc"

/* Parameter, gradient and state. Behind them there may be a count of what is wrong with the step so far. */
static uint32_t noperands(const inv_node *n) { return n->op == &inv__op_sgd ? 2 : n->op == &inv__op_momentum ? 3 : 4; }

/* All operands of one type and shape. */
static inv_status update_infer(inv_graph *g, inv_node *n)
{
    const uint32_t count = noperands(n);
    INV_TRY(inv__need_reals(g, n, count));
    if (inv__has_in(n, count) && (inv_val(g, n->in[count])->dtype != INV_F64 || inv__in_shape(g, n, count)->rank))
        return inv_node_fail(g, n, INV_E_SHAPE, "input %u is not one number of type double", count);
    for (uint32_t i = 1; i < count; i++) {
        if (!inv_shape_equal(inv__in_shape(g, n, i), inv__in_shape(g, n, 0)))
            return inv_node_fail(g, n, INV_E_SHAPE, "input %u has not the shape of the parameter", i);
    }
    return INV_OK;
}

static inv_status assign_infer(inv_graph *g, inv_node *n)
{
    INV_TRY(inv__need_same_type(g, n, 2));
    if (!inv_shape_equal(inv__in_shape(g, n, 0), inv__in_shape(g, n, 1)))
        return inv_node_fail(g, n, INV_E_SHAPE, "the value has not the shape of the parameter");
    return INV_OK;
}

static const double *bad_count(const inv_call *c)
{
    const uint32_t count = noperands(c->node);
    return c->nin > count ? c->in[count].data : NULL;
}

/* Whether the host leaves everything as it is. */
static bool stopped(const inv_call *c)
{
    const double *bad = bad_count(c);
    return !c->gpu && bad && *bad > 0;
}

static inv_status sgd_run(const inv_call *c)
{
    if (stopped(c)) return INV_OK;
    double decay = inv_attr_float(c->node, "weight_decay", 0);
    if (c->gpu) {
        INV_GPU(c->gpu, sgd, c->in[0].dtype, c->in[0].n, decay, bad_count(c), c->in[0].data, c->in[1].data);
        return INV_OK;
    }
    if (c->step == NULL) return INV_E_INTERNAL;
    INV_REAL(c->in[0].dtype, sgd, c->in[0].n, c->step->lr, decay, c->in[0].data, c->in[1].data);
    return INV_OK;
}

static inv_status momentum_run(const inv_call *c)
{
    if (stopped(c)) return INV_OK;
    double decay = inv_attr_float(c->node, "weight_decay", 0), m = inv_attr_float(c->node, "momentum", 0.9);
    const inv_tensor *in = c->in;
    if (c->gpu) {
        INV_GPU(c->gpu, momentum, in[0].dtype, in[0].n, decay, m, bad_count(c), in[0].data, in[1].data, in[2].data);
        return INV_OK;
    }
    if (c->step == NULL) return INV_E_INTERNAL;
    INV_REAL(in[0].dtype, momentum, in[0].n, c->step->lr, decay, m, in[0].data, in[1].data, in[2].data);
    return INV_OK;
}

static inv_status adam_run(const inv_call *c)
{
    if (stopped(c)) return INV_OK;
    const inv_tensor *in = c->in;
    inv_adam a = {.beta1 = inv_attr_float(c->node, "beta1", 0.9),
                  .beta2 = inv_attr_float(c->node, "beta2", 0.999),
                  .epsilon = inv_attr_float(c->node, "epsilon", 1e-8),
                  .decay = inv_attr_float(c->node, "weight_decay", 0),
                  .decoupled = inv_attr_int(c->node, "decoupled", 0) != 0};
    if (c->gpu) {
        INV_GPU(c->gpu, adam, in[0].dtype, in[0].n, &a, bad_count(c), in[0].data, in[1].data, in[2].data, in[3].data);
        return INV_OK;
    }
    if (c->step == NULL) return INV_E_INTERNAL;
    double t = (double)(c->step->step + 1), lr = c->step->lr;
    adam_constants k = {.beta1 = a.beta1,
                        .beta2 = a.beta2,
                        .epsilon = a.epsilon,
                        .l2 = a.decoupled ? 0 : a.decay,
                        .keep = a.decoupled ? 1 - lr * a.decay : 1};
    k.rate = lr / (1 - pow(k.beta1, t));
    k.root = 1 / sqrt(1 - pow(k.beta2, t));
    INV_REAL(in[0].dtype, adam, in[0].n, &k, in[0].data, in[1].data, in[2].data, in[3].data);
    return INV_OK;
}

static inv_status assign_run(const inv_call *c)
{
    size_t nbytes = (size_t)c->in[0].n * inv_dtype_size(c->in[0].dtype);
    if (c->in[0].data == c->in[1].data) return INV_OK;
    if (c->gpu) inv__copy_rows_gpu(c->gpu, c->in[0].data, nbytes, c->in[1].data, nbytes, nbytes, 1);
    else if (nbytes > 0) memcpy(c->in[0].data, c->in[1].data, nbytes);
    return INV_OK;
}

static double sgd_flops(const inv_graph *g, const inv_node *n) { return 4 * inv__flops_in(g, n); }
static double adam_flops(const inv_graph *g, const inv_node *n) { return 12 * inv__flops_in(g, n); }

/* clang-format off */
const inv_op_def inv__op_sgd = {
    .size = sizeof inv__op_sgd, .domain = INV_IR, .name = "SgdUpdate", .since = 1, .in = "w g bad?", .out = "",
    .flags = INV_OP_NO_GRAD, .writes = 1, .infer = update_infer, .run = sgd_run,
    .flops = sgd_flops,
    .doc = "w -= lr (g + weight_decay w); nothing if bad > 0, as with the other two"};

const inv_op_def inv__op_momentum = {
    .size = sizeof inv__op_momentum, .domain = INV_IR, .name = "MomentumUpdate", .since = 1,
    .in = "w g v bad?", .out = "",
    .flags = INV_OP_NO_GRAD, .writes = 5, .infer = update_infer, .run = momentum_run,
    .flops = sgd_flops,
    .doc = "v = momentum v + g + weight_decay w; w -= lr v (as PyTorch, dampening 0)"};

const inv_op_def inv__op_adam = {
    .size = sizeof inv__op_adam, .domain = INV_IR, .name = "AdamUpdate", .since = 1,
    .in = "w g m v bad?", .out = "",
    .flags = INV_OP_NO_GRAD, .writes = 13, .infer = update_infer, .run = adam_run,
    .flops = adam_flops,
    .doc = "Adam (Kingma, Ba 2015); decoupled = 1: AdamW (Loshchilov, Hutter 2019)"};

const inv_op_def inv__op_assign = {
    .size = sizeof inv__op_assign, .domain = INV_IR, .name = "Assign", .since = 1, .in = "parameter value", .out = "",
    .flags = INV_OP_NO_GRAD, .writes = 1, .infer = assign_infer, .run = assign_run,
    .flops = inv__flops_none, .doc = "parameter = value"};
/* clang-format on */
