/* SPDX-License-Identifier: Apache-2.0
 * StepNumber: a scalar that differs from step to step, such as the learning rate, for updates that are made of several
 * nodes (passes/autodiff/optimizer_whole_tensor.c). */
#include "ops/base/util.h"
#include "ops/train/optim.h"
#include "ops/train/step_number_gpu.h"

static inv_status step_number_infer(inv_graph *g, inv_node *n)
{
    const inv_shape s = inv_shape_scalar();
    const int64_t what = inv_attr_int(n, "what", INV_STEP_LR), group = inv_attr_int(n, "group", 0);
    if (what < INV_STEP_LR || what > INV_STEP_CLIP || group < 0 || group >= INV_MOST_GROUPS)
        return inv_node_fail(g, n, INV_E_GRAPH, "there is no number %lld of group %lld", (long long)what,
                             (long long)group);
    if (inv_has_in(n, 0) != (what == INV_STEP_CLIP))
        return inv_node_fail(g, n, INV_E_GRAPH, "a norm is an input for clipping only");
    if (inv_has_in(n, 0) && (inv_in_dtype(g, n, 0) != INV_F64 || inv_in_shape(g, n, 0)->rank))
        return inv_node_fail(g, n, INV_E_SHAPE, "the norm is not one number of type double");
    inv_set_out(g, n, 0, g->real == INV_F64 ? INV_F64 : INV_F32, &s);
    return INV_OK;
}

static inv_status step_number_run(const inv_call *c)
{
    const inv_step_number k = {.what = (inv_step_what)inv_attr_int(c->node, "what", INV_STEP_LR),
                               .group = (int)inv_attr_int(c->node, "group", 0),
                               .since = (uint64_t)inv_attr_int(c->node, "since", 0),
                               .base = inv_attr_float(c->node, "base", 1),
                               .factor = inv_attr_float(c->node, "factor", 1),
                               .add = inv_attr_float(c->node, "add", 0)};
    const double *norm = c->nin ? c->in[0].data : NULL;
    if (c->gpu) {
        INV_GPU(c->gpu, step_number, c->out[0].dtype, &k, norm, c->out[0].data);
        return INV_OK;
    }
    if (c->step == NULL) return INV_E_INTERNAL;
    inv_put_real(c->out[0].data, c->out[0].dtype, 0,
                 inv_step_number_at(&k, c->step->lr, c->step->group_lr, c->step->step, norm));
    return INV_OK;
}

/* clang-format off */
const inv_op_def inv_op_step_number = {
    .size = sizeof inv_op_step_number, .domain = INV_IR, .name = "StepNumber", .since = 1, .in = "norm?", .out = "y",
    .flags = INV_OP_RANDOM | INV_OP_NO_GRAD, .infer = step_number_infer, .run = step_number_run,
    .flops = inv_flops_none,
    .cases = (const char *const[]){"y = StepNumber<factor = -0.5, add = 1.0>()", "y = StepNumber<what = 1>()",
                                   "y = StepNumber<what = 2, base = 0.9>()", "y = StepNumber<what = 3, base = -0.8>()",
                                   "n = GradientNorm(float[5] x)\ny = StepNumber<what = 4, base = 0.5>(n)", NULL},
    .doc = "add + factor x at step t; what: 0 learning rate, 1 also at most 1/sqrt t, 2 1/(1 - base^t), 3 t^base, 4 "
           "clip scale"};
/* clang-format on */
