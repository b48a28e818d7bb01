/* SPDX-License-Identifier: Apache-2.0
 * Softmax and LogSoftmax along one axis, with gradients from the output. Before opset 13 the axis meant: everything
 * from it on is one row; that form lowers to a view as a matrix. */
#include "ops/norm/softmax.h"
#include "ops/base/bounds.h"
#include "ops/base/float_math.h"
#include "ops/base/parallel.h"
#include "ops/base/util.h"
#include "ops/norm/softmax_gpu.h"

#define BLOCK 64
#define V(f) FN(inv_##f)

typedef struct rows {
    int64_t outer, len, inner;
} rows;

#define INV_BOTH "ops/norm/softmax_kernels.inc"
#include "ops/base/both_reals.inc"

static rows softmax_rows(const inv_shape *s, const inv_node *n)
{
    int64_t axis = inv_attr_int(n, "axis", -1);
    int at = (int)(axis < 0 ? axis + s->rank : axis);
    return (rows){inv_prod(s, 0, at), s->dim[at], inv_prod(s, at + 1, s->rank)};
}

static bool log_form(const inv_node *n) { return strncmp(n->op_type, "Log", 3) == 0; }

static inv_status softmax_infer(inv_graph *g, inv_node *n)
{
    int axis = 0;
    INV_TRY(inv_need_real(g, n, 0));
    INV_TRY(inv_axis(g, n, inv_attr_int(n, "axis", -1), inv_in_shape(g, n, 0)->rank, &axis));
    INV_TRY(inv_need_same_type(g, n, n->nin));
    if (n->nin > 1 && (!inv_has_in(n, 1) || !inv_shape_equal(inv_in_shape(g, n, 0), inv_in_shape(g, n, 1))))
        return inv_node_fail(g, n, INV_E_SHAPE, "gy and y must have one shape");
    return inv_infer_same(g, n);
}

static inv_status softmax_run(const inv_call *c)
{
    if (c->in[0].n == 0) return INV_OK;
    rows r = softmax_rows(&c->in[0].shape, c->node);
    if (c->gpu)
        INV_GPU(c->gpu, softmax, c->in[0].dtype, log_form(c->node), r.outer, r.len, r.inner, NULL, c->in[0].data,
                c->out[0].data);
    else INV_REAL(c->in[0].dtype, softmax, &r, log_form(c->node), c->in[0].data, c->out[0].data);
    return INV_OK;
}

static inv_status softmax_grad_run(const inv_call *c)
{
    if (c->in[0].n == 0) return INV_OK;
    rows r = softmax_rows(&c->in[0].shape, c->node);
    if (c->gpu)
        INV_GPU(c->gpu, softmax, c->in[0].dtype, log_form(c->node), r.outer, r.len, r.inner, c->in[0].data,
                c->in[1].data, c->out[0].data);
    else INV_REAL(c->in[0].dtype, softmax_grad, &r, log_form(c->node), c->in[0].data, c->in[1].data, c->out[0].data);
    return INV_OK;
}

static double softmax_flops(const inv_graph *g, const inv_node *n) { return 4 * inv_flops_in(g, n); }

static inv_status softmax_grad(inv_grad *b)
{
    inv_graph *g = b->g;
    inv_id gy = inv_GO(b, 0);
    if (gy == INV_NONE || !inv_wants(b, 0)) return INV_OK;
    const inv_node *n = inv_nod(g, b->node);
    inv_attr axis = inv_attr_of_int("axis", inv_attr_int(n, "axis", -1));
    inv_grad_set(b, 0, inv_emit1(g, log_form(n) ? "LogSoftmaxGrad" : "SoftmaxGrad", INV_IN(gy, inv_O(b, 0)), 1, &axis));
    return inv_grad_done(b);
}

static inv_status softmax_12_lower(inv_graph *g, const inv_node *n, inv_id *out)
{
    int axis = 0;
    inv_shape s = *inv_in_shape(g, n, 0);
    INV_TRY(inv_axis(g, n, inv_attr_int(n, "axis", 1), s.rank, &axis));
    const char *op = log_form(n) ? "LogSoftmax" : "Softmax";
    inv_shape flat = inv_shape_of(2, (int64_t[]){inv_prod(&s, 0, axis), inv_prod(&s, axis, s.rank)});
    inv_id x = axis + 1 == s.rank ? n->in[0] : inv_emit_view(g, n->in[0], &flat);
    if (x == INV_NONE) return inv_done(g);
    out[0] = inv_emit_view(g, inv_emit1(g, op, INV_IN(x), INV_ATTRS(inv_attr_of_int("axis", -1))), &s);
    return inv_done(g);
}

static inv_bounds softmax_bounds(const inv_bounding *q)
{
    (void)q;
    return (inv_bounds){0, 1, true};
}

static inv_bounds log_softmax_bounds(const inv_bounding *q)
{
    (void)q;
    return (inv_bounds){-HUGE_VAL, 0, true};
}

/* clang-format off */
const inv_op_def inv_op_softmax = {
    .size = sizeof inv_op_softmax, .domain = "", .name = "Softmax", .since = 13, .in = "input", .out = "output",
    .inplace = 1, .infer = softmax_infer, .grad = softmax_grad, .run = softmax_run,
    .bounds = softmax_bounds, .work = inv_work_math,
    .flops = softmax_flops,
    .cases = (const char *const[]){"y = Softmax(float[3,5] x)", "y = Softmax<axis = 1>(float[2,4,3] x)",
                                   "y = Softmax(float[5,40] x)", "y = Softmax(float[1,1100] x)", NULL},
    .doc = "exp(x) / sum exp(x) along `axis`; gradient from the output"};

const inv_op_def inv_op_log_softmax = {
    .size = sizeof inv_op_log_softmax, .domain = "", .name = "LogSoftmax", .since = 13, .in = "input",
    .out = "output", .inplace = 1, .infer = softmax_infer, .grad = softmax_grad, .run = softmax_run,
    .bounds = log_softmax_bounds, .work = inv_work_math,
    .flops = softmax_flops,
    .cases = (const char *const[]){"y = LogSoftmax(float[3,5] x)", "y = LogSoftmax<axis = 1>(float[2,4,3] x)",
                                   "y = LogSoftmax<axis = 0>(float[70,3] x)", NULL},
    .doc = "x - log sum exp(x) along `axis`; gradient from the output"};

const inv_op_def inv_op_softmax_12 = {
    .size = sizeof inv_op_softmax_12, .domain = "", .name = "Softmax", .since = 1, .until = 12, .in = "input",
    .out = "output", .lower = softmax_12_lower,
    .cases = (const char *const[]){"y = Softmax(float[2,3,2] x)", "y = Softmax<axis = 2>(float[2,3,2] x)", NULL},
    .doc = "softmax over everything from `axis` on; lowers to a view and Softmax"};

const inv_op_def inv_op_log_softmax_12 = {
    .size = sizeof inv_op_log_softmax_12, .domain = "", .name = "LogSoftmax", .since = 1, .until = 12,
    .in = "input", .out = "output", .lower = softmax_12_lower,
    .cases = (const char *const[]){"y = LogSoftmax(float[2,3,2] x)", "y = LogSoftmax<axis = -1>(float[2,3] x)", NULL},
    .doc = "log-softmax over everything from `axis` on; lowers to a view and LogSoftmax"};

const inv_op_def inv_op_softmax_grad = {
    .size = sizeof inv_op_softmax_grad, .domain = INV_IR, .name = "SoftmaxGrad", .since = 1, .in = "gy y",
    .out = "gx", .inplace = 3, .infer = softmax_infer, .run = softmax_grad_run,
    .work = inv_work_sum,
    .flops = softmax_flops,
    .cases = (const char *const[]){"gx = SoftmaxGrad<axis = 1>(float[2,4,3] gy, float[2,4,3] y)", NULL},
    .doc = "y (gy - sum gy y)"};

const inv_op_def inv_op_log_softmax_grad = {
    .size = sizeof inv_op_log_softmax_grad, .domain = INV_IR, .name = "LogSoftmaxGrad", .since = 1, .in = "gy y",
    .out = "gx", .inplace = 3, .infer = softmax_infer, .run = softmax_grad_run,
    .work = inv_work_sum,
    .flops = softmax_flops,
    .cases = (const char *const[]){"gx = LogSoftmaxGrad<axis = 1>(float[2,4,3] gy, float[2,4,3] y)", NULL},
    .doc = "gy - exp(y) sum gy"};
/* clang-format on */
