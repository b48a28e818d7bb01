/* SPDX-License-Identifier: Apache-2.0
 * Group normalisation: x is [images, channels, space...], a row is `channels / groups` neighbouring channels of one
 * image with all of their space; scale and bias have one element per channel. With a group per channel it is instance
 * normalisation.
 *
 *     y = GroupNormApply<groups, epsilon>(x, scale, bias)
 *     dx, dscale, dbias = GroupNormGrad<groups, epsilon>(x, gy, scale)
 *
 * As in layer normalisation, arithmetic is in double, and the gradient computes mean and variance again. */
#include "ops/base/families.h"
#include "ops/base/parallel.h"
#include "ops/base/rows.h"
#include "ops/base/util.h"
#include "ops/gpu/copy_gpu.h"
#include "ops/norm/norm.h"

typedef inv_groupnorm layout;

#define INV_BOTH "ops/norm/groupnorm_kernels.inc"
#include "ops/base/both_reals.inc"

/* Without the operands. */
static layout group_layout(const inv_node *n, const inv_shape *x)
{
    const int64_t groups = inv_attr_int(n, "groups", 1);
    return (layout){
        .images = x->dim[0], .groups = groups, .channels = x->dim[1] / groups, .area = inv_prod(x, 2, x->rank)};
}

static layout layout_of_call(const inv_call *c, bool grad)
{
    layout l = group_layout(c->node, &c->in[0].shape);
    l.of = inv_norm_of(c, grad);
    return l;
}

/* Operand 0 has channels that make up the groups; operands first..last-1 have an element per channel. */
static inv_status need_groups(const inv_graph *g, const inv_node *n, int64_t groups, uint32_t first, uint32_t last)
{
    INV_TRY(inv_norm_need(g, n, last));
    const inv_shape *x = inv_in_shape(g, n, 0);
    if (x->rank < 2) return inv_node_fail(g, n, INV_E_SHAPE, "the input needs a batch and a channel axis");
    if (groups < 1 || x->dim[1] % groups != 0)
        return inv_node_fail(g, n, INV_E_SHAPE, "%lld channels cannot be dealt out to %lld groups",
                             (long long)x->dim[1], (long long)groups);
    return inv_norm_need_vectors(g, n, first, last, x->dim[1], "channel");
}

static inv_status group_norm_infer(inv_graph *g, inv_node *n)
{
    INV_TRY(need_groups(g, n, inv_attr_int(n, "groups", 1), 1, 3));
    return inv_infer_same(g, n);
}

static inv_status group_norm_grad_infer(inv_graph *g, inv_node *n)
{
    INV_TRY(need_groups(g, n, inv_attr_int(n, "groups", 1), 2, 3));
    return inv_norm_infer_grad(g, n);
}

static inv_status group_norm_run(const inv_call *c)
{
    const layout l = layout_of_call(c, false);
    if (c->in[0].n == 0) return INV_OK;
    if (c->gpu) INV_GPU(c->gpu, group_norm, &l, c->out[0].data);
    else INV_REAL(l.of.dtype, group_norm, &l, c->out[0].data);
    return INV_OK;
}

static void zero(const inv_call *c, const inv_tensor *t)
{
    const size_t each = inv_dtype_size(t->dtype);
    if (t->data == NULL || t->n == 0) return;
    if (c->gpu) INV_GPU(c->gpu, fill, t->n, each, t->data, 0);
    else memset(t->data, 0, (size_t)t->n * each);
}

static inv_status group_norm_grad_run(const inv_call *c)
{
    const layout l = layout_of_call(c, true);
    void *out[3];
    inv_norm_results(c, out);
    if (c->in[0].n == 0) {
        for (uint32_t i = 1; i < c->nout; i++) zero(c, &c->out[i]);
        return INV_OK;
    }
    if (c->gpu) INV_GPU(c->gpu, group_norm_grad, &l, c->ws, out[0], out[1], out[2]);
    else INV_REAL(l.of.dtype, group_norm_grad, &l, c->ws, out);
    return INV_OK;
}

static size_t group_norm_grad_workspace(const inv_graph *g, const inv_node *n)
{
    const layout l = group_layout(n, inv_in_shape(g, n, 0));
    return (size_t)(l.images * l.groups * (2 * l.channels + (g->gpu ? 4 : 0))) * sizeof(double);
}

static double group_norm_flops(const inv_graph *g, const inv_node *n) { return 7 * inv_flops_in(g, n); }
static double group_norm_grad_flops(const inv_graph *g, const inv_node *n) { return 18 * inv_flops_in(g, n); }

static inv_status group_norm_grad(inv_grad *b)
{
    const inv_id gy = inv_GO(b, 0);
    const inv_node *n = inv_nod(b->g, b->node);
    const inv_attr attr[2] = {inv_attr_of_int("groups", inv_attr_int(n, "groups", 1)),
                              inv_attr_of_float("epsilon", inv_attr_float(n, "epsilon", 1e-5))};
    return inv_take_grads(b, inv_emit(b->g, "GroupNormGrad", 3, INV_IN(inv_I(b, 0), gy, inv_I(b, 1)), 2, attr), 3);
}

/* --- ONNX --- */

static inv_status emit_groups(inv_graph *g, const inv_node *n, int64_t groups, inv_id scale, inv_id bias, inv_id *out)
{
    out[0] = inv_emit1(
        g, "GroupNormApply", INV_IN(n->in[0], scale, bias),
        INV_ATTRS(inv_attr_of_int("groups", groups), inv_attr_of_float("epsilon", inv_attr_float(n, "epsilon", 1e-5))));
    return inv_done(g);
}

static inv_status instance_norm_lower(inv_graph *g, const inv_node *n, inv_id *out)
{
    INV_TRY(need_groups(g, n, 1, 1, 3));
    const int64_t channels = inv_in_shape(g, n, 0)->dim[1];
    return emit_groups(g, n, channels > 0 ? channels : 1, n->in[1], n->in[2], out);
}

/* Before opset 21 scale and bias have one element per group: each is repeated for the group's channels. */
static inv_id per_channel(inv_graph *g, inv_id v, int64_t groups, int64_t each)
{
    const inv_shape column = inv_shape_of(2, (int64_t[]){groups, 1}), both = inv_shape_of(2, (int64_t[]){groups, each}),
                    flat = inv_shape_of(1, (int64_t[]){groups * each});
    if (each == 1) return v;
    const inv_id rows = inv_emit_view(g, v, &column);
    return inv_emit_view(g, inv_emit_broadcast(g, rows, &both), &flat);
}

static inv_status group_norm_lower(inv_graph *g, const inv_node *n, inv_id *out)
{
    const bool each = n->op != NULL && n->op->since >= 21;
    const int64_t groups = inv_attr_int(n, "num_groups", 0);
    INV_TRY(need_groups(g, n, groups, 1, each ? 3 : 1));
    INV_TRY(inv_norm_need_stash(g, n));
    if (each) return emit_groups(g, n, groups, n->in[1], n->in[2], out);
    INV_TRY(inv_norm_need_vectors(g, n, 1, 3, groups, "group"));
    const int64_t channels = inv_in_shape(g, n, 0)->dim[1] / groups;
    const inv_id scale = per_channel(g, n->in[1], groups, channels), bias = per_channel(g, n->in[2], groups, channels);
    return emit_groups(g, n, groups, scale, bias, out);
}

/* clang-format off */
static const inv_op_def apply_op = {
    .size = sizeof apply_op, .domain = INV_IR, .name = "GroupNormApply", .since = 1, .in = "x scale bias", .out = "y",
    .inplace = 1, .infer = group_norm_infer, .grad = group_norm_grad, .run = group_norm_run,
    .work = inv_work_apply,
    .flops = group_norm_flops,
    .cases = (const char *const[]){
        "y = GroupNormApply<groups = 2, epsilon = 0.001>(float[2,4,3] x, float[4] scale, float[4] bias)",
        "y = GroupNormApply<groups = 3, epsilon = 0.001>(float[2,3,2,5] x, float[3] scale, float[3] bias)",
        "y = GroupNormApply<groups = 1, epsilon = 0.001>(float[1,3,400] x, float[3] scale, float[3] bias)",
        "y = GroupNormApply<groups = 2, epsilon = 0.001>(float[3,10] x, float[10] scale, float[10] bias)",
        "y = GroupNormApply<groups = 1, epsilon = 0.001>(float[1,1,1] x, float[1] scale, float[1] bias)",
        "y = GroupNormApply<groups = 2>(float[0,4,3] x, float[4] scale, float[4] bias)", NULL},
    .doc = "y = (x - mean) scale / sqrt(var + epsilon) + bias per image and group of channels (Wu, He 2018)"};

static const inv_op_def grad_op = {
    .size = sizeof grad_op, .domain = INV_IR, .name = "GroupNormGrad", .since = 1, .in = "x gy scale",
    .out = "dx dscale dbias", .inplace = 3, .infer = group_norm_grad_infer, .run = group_norm_grad_run,
    .work = inv_work_sum,
    .workspace = group_norm_grad_workspace, .flops = group_norm_grad_flops,
    .cases = (const char *const[]){
        "dx, dscale, dbias = GroupNormGrad<groups = 2, epsilon = 0.001>(float[2,4,3] x, float[2,4,3] gy, "
        "float[4] scale)",
        "dx, dscale, dbias = GroupNormGrad<groups = 3, epsilon = 0.001>(float[20,6,30] x, float[20,6,30] gy, "
        "float[6] scale)",
        "dx, dscale, dbias = GroupNormGrad<groups = 1, epsilon = 0.001>(float[1,2,700] x, float[1,2,700] gy, "
        "float[2] scale)",
        "dx, dscale, dbias = GroupNormGrad<groups = 2>(float[2,4,0] x, float[2,4,0] gy, float[4] scale)", NULL},
    .doc = "gradient of GroupNormApply, mean and variance computed again"};
/* clang-format on */

INV_LOWERED(instance_norm, "InstanceNormalization", 1, "input scale B", "output",
            "to GroupNormApply with a group per channel. ONNX InstanceNormalization-1, -6, -22",
            "y = InstanceNormalization<epsilon = 0.001>(float[2,3,4,2] x, float[3] scale, float[3] b)",
            "y = InstanceNormalization(float[2,0,4] x, float[0] scale, float[0] b)")

/* clang-format off */
static const inv_op_def group_norm_18 = {
    .size = sizeof group_norm_18, .domain = "", .name = "GroupNormalization", .since = 18, .until = 20,
    .in = "X scale bias", .out = "Y", .lower = group_norm_lower,
    .doc = "to GroupNormApply, scale and bias of a group repeated for its channels. ONNX GroupNormalization-18"};
/* clang-format on */

INV_LOWERED_BY(group_norm_lower, 0, 0, group_norm_21, "GroupNormalization", 21, "X scale bias", "Y",
               "to GroupNormApply. ONNX GroupNormalization-21",
               "y = GroupNormalization<num_groups = 2>(float[2,4,3,2] x, float[4] scale, float[4] bias)")

const inv_op_def *const inv_ops_groupnorm[] = {&apply_op,      &grad_op,           &instance_norm_row,
                                               &group_norm_18, &group_norm_21_row, NULL};
