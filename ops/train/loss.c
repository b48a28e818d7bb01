/* SPDX-License-Identifier: Apache-2.0
 * Losses of single elements: float64 scalars, whatever the type of their operands; their gradient operators take the
 * scalar's gradient g. Those of classes are in class_loss.c.
 *   MseMean(o, t), BceMean(logits, t), HuberMean<delta>(o, t)    means over all elements; with ignore_index over those
 *       whose target is neither that nor NaN. How many count is the second output, and input 3 of the gradients
 *   NllMean<batch>(logdet?, z...)    mean over the batch of sum (z^2 / 2 + ln(2 pi) / 2) - logdet */
#include "ops/train/loss.h"
#include "ops/base/families.h"
#include "ops/base/parallel.h"
#include "ops/base/util.h"
#include "ops/train/loss_gpu.h"

#define PARTS 64

typedef inv_loss_term kind;
static const kind SQUARE = {.kind = INV_TERM_SQUARE}, PLAIN = {.kind = INV_TERM_PLAIN};

#define INV_BOTH "ops/train/loss_kernels.inc"
#include "ops/base/both_reals.inc"

static const double half_ln_2pi = 0.91893853320467274178;

/* Room for the sums of blocks on a device, two each. */
static size_t part_workspace(const inv_graph *g, const inv_node *n)
{
    (void)n;
    return g->gpu ? 2 * INV_LOSS_PARTS * sizeof(double) : 0;
}

static inv_status scalar_out(inv_graph *g, const inv_node *n)
{
    inv_shape s = inv_shape_scalar();
    inv_set_out(g, n, 0, INV_F64, &s);
    return INV_OK;
}

/* --- means over all elements --- */

static inv_status pair_operands(const inv_graph *g, const inv_node *n)
{
    INV_TRY(inv_need_reals(g, n, 2));
    if (inv_shape_equal(inv_in_shape(g, n, 0), inv_in_shape(g, n, 1))) return INV_OK;
    return inv_node_fail(g, n, INV_E_SHAPE, "output and target must have one shape");
}

static inv_status pair_infer(inv_graph *g, inv_node *n)
{
    const inv_shape s = inv_shape_scalar();
    INV_TRY(pair_operands(g, n));
    inv_set_out(g, n, 1, INV_F64, &s);
    return scalar_out(g, n);
}

static inv_status pair_grad_infer(inv_graph *g, inv_node *n)
{
    INV_TRY(pair_operands(g, n));
    INV_TRY(inv_need_loss_grad(g, n, 2));
    if (inv_has_in(n, 3)) INV_TRY(inv_need_loss_grad(g, n, 3));
    return inv_infer_same(g, n);
}

/* MseMean, BceMean, HuberMean and their gradients. */
static kind loss_kind(const inv_node *n)
{
    kind k = {.kind = INV_TERM_HUBER,
              .delta = inv_attr_float(n, "delta", 1),
              .ignores = inv_attr_find(n, "ignore_index") != NULL,
              .ignore = (double)inv_attr_int(n, "ignore_index", 0)};
    if (n->op_type[0] == 'M') k.kind = INV_TERM_SQUARE;
    if (n->op_type[0] == 'B') k.kind = INV_TERM_LOGISTIC;
    return k;
}

static double sum_of(kind k, const inv_tensor *x, const inv_tensor *t, int64_t *all)
{
    const void *target = t ? t->data : NULL;
    return INV_REAL(x->dtype, sum_terms, k, x->n, x->data, target, all);
}

static void scaled_grad(kind k, double factor, const inv_tensor *x, const inv_tensor *t, inv_tensor *out)
{
    const void *target = t ? t->data : NULL;
    INV_REAL(x->dtype, grad_terms, k, x->n, factor, x->data, target, out->data);
}

/* The device's part: out = ((add ? out : 0) + factor * sum + constant) / divide. */
static void sum_on_device(const inv_call *c, kind k, uint32_t x, uint32_t t, inv_loss_sum s, double *all)
{
    const inv_tensor *in = &c->in[x];
    INV_GPU(c->gpu, loss_terms, in->dtype, k, in->n, in->data, t ? c->in[t].data : NULL, &s, c->ws, c->out[0].data,
            all);
}

static inv_status pair_run(const inv_call *c)
{
    const kind k = loss_kind(c->node);
    const double n = (double)c->in[0].n;
    double *all = c->nout > 1 ? c->out[1].data : NULL;
    int64_t count = 0;
    if (c->gpu) {
        sum_on_device(c, k, 0, 1, (inv_loss_sum){.factor = 1, .divide = n}, all);
        return INV_OK;
    }
    const double sum = sum_of(k, &c->in[0], &c->in[1], &count);
    *(double *)c->out[0].data = sum / (double)count;
    if (all) *all = (double)count;
    return INV_OK;
}

static inv_status pair_grad_run(const inv_call *c)
{
    const kind k = loss_kind(c->node);
    const double two = k.kind == INV_TERM_SQUARE ? 2.0 : 1.0, *g = c->in[2].data,
                 *all = c->nin > 3 ? c->in[3].data : NULL;
    double n = (double)c->in[0].n;
    if (c->gpu) {
        INV_GPU(c->gpu, loss_terms_grad, c->in[0].dtype, k, c->in[0].n, two, n, all, g, c->in[0].data, c->in[1].data,
                c->out[0].data);
        return INV_OK;
    }
    if (all) n = *all;
    scaled_grad(k, n > 0 ? two * *g / n : 0, &c->in[0], &c->in[1], &c->out[0]); /* none counts: no gradient */
    return INV_OK;
}

static inv_status pair_grad(inv_grad *b)
{
    inv_graph *g = b->g;
    if (inv_GO(b, 0) == INV_NONE || !inv_wants(b, 0)) return INV_OK;
    static const char *const op[] = {
        [INV_TERM_SQUARE] = "MseGrad", [INV_TERM_LOGISTIC] = "BceGrad", [INV_TERM_HUBER] = "HuberGrad"};
    const inv_node n = *inv_nod(g, b->node);
    const kind k = loss_kind(&n);
    const inv_id in[4] = {n.in[0], n.in[1], inv_GO(b, 0), k.ignores ? inv_node_want(g, b->node, 1) : INV_NONE};
    inv_grad_set(b, 0, inv_emit1(g, op[k.kind], k.ignores ? 4 : 3, in, n.nattr, n.attr));
    return inv_grad_done(b);
}

/* --- normalising flows --- */

static inv_status nll_infer(inv_graph *g, inv_node *n)
{
    bool logdet = inv_has_in(n, 0);
    if (n->nin < 2 || !inv_has_in(n, 1)) return inv_node_fail(g, n, INV_E_GRAPH, "at least one z is needed");
    int64_t batch = inv_in_shape(g, n, 1)->rank > 0 ? inv_in_shape(g, n, 1)->dim[0] : 1;
    for (uint32_t i = logdet ? 0 : 1; i < n->nin; i++) {
        if (n->in[i] == INV_NONE) return inv_node_fail(g, n, INV_E_GRAPH, "input %u is missing", i);
        INV_TRY(inv_need_real(g, n, i));
        const inv_shape *s = inv_in_shape(g, n, i);
        if (s->rank < 1 || s->dim[0] != batch)
            return inv_node_fail(g, n, INV_E_SHAPE, "every operand must begin with the batch, %lld", (long long)batch);
        if (i == 0 && inv_shape_nelem(s) != batch)
            return inv_node_fail(g, n, INV_E_SHAPE, "logdet must have one number per sample, [%lld]", (long long)batch);
    }
    return scalar_out(g, n);
}

static double sum_plain(const inv_tensor *x)
{
    double sum = 0;
    for (int64_t i = 0; i < x->n; i++)
        sum += x->dtype == INV_F32 ? (double)((const float *)x->data)[i] : ((const double *)x->data)[i];
    return sum;
}

/* One operand after the other, added up in the output. */
static void nll_on_device(const inv_call *c)
{
    bool logdet = c->in[0].data != NULL;
    double batch = (double)c->in[1].shape.dim[0];
    for (uint32_t i = 1; i < c->nin; i++) {
        bool last = i + 1 == c->nin && !logdet;
        inv_loss_sum s = {0.5, (double)c->in[i].n * half_ln_2pi, last ? batch : 1, i > 1};
        sum_on_device(c, SQUARE, i, 0, s, NULL);
    }
    if (logdet) sum_on_device(c, PLAIN, 0, 0, (inv_loss_sum){-1, 0, batch, true}, NULL);
}

static inv_status nll_run(const inv_call *c)
{
    double sum = 0;
    int64_t all;
    if (c->gpu) return nll_on_device(c), INV_OK;
    for (uint32_t i = 1; i < c->nin; i++)
        sum += 0.5 * sum_of(SQUARE, &c->in[i], NULL, &all) + (double)c->in[i].n * half_ln_2pi;
    if (c->in[0].data) sum -= sum_plain(&c->in[0]);
    *(double *)c->out[0].data = sum / (double)c->in[1].shape.dim[0];
    return INV_OK;
}

static inv_status nll_grad(inv_grad *b)
{
    inv_graph *g = b->g;
    inv_id gy = inv_GO(b, 0);
    uint32_t nin = inv_nod(g, b->node)->nin;
    int64_t batch = inv_shape_of_value(g, inv_I(b, 1))->dim[0];
    for (uint32_t i = 1; i < nin; i++) {
        if (inv_wants(b, i))
            inv_grad_set(b, i,
                         inv_emit1(g, "NllGradZ", INV_IN(inv_I(b, i), gy), INV_ATTRS(inv_attr_of_int("batch", batch))));
    }
    if (inv_I(b, 0) != INV_NONE && inv_wants(b, 0)) {
        inv_shape s = *inv_shape_of_value(g, inv_I(b, 0));
        int64_t t = (int64_t)inv_val(g, inv_I(b, 0))->dtype;
        inv_grad_set(b, 0,
                     inv_emit1(g, "NllGradLogdet", INV_IN(gy),
                               INV_ATTRS(inv_attr_of_shape("shape", &s), inv_attr_of_int("dtype", t),
                                         inv_attr_of_int("batch", batch))));
    }
    return inv_grad_done(b);
}

static inv_status nll_z_infer(inv_graph *g, inv_node *n)
{
    INV_TRY(inv_need_real(g, n, 0));
    INV_TRY(inv_need_loss_grad(g, n, 1));
    return inv_infer_same(g, n);
}

static inv_status nll_z_run(const inv_call *c)
{
    const double *g = c->in[1].data, batch = (double)inv_attr_int(c->node, "batch", 1);
    if (c->gpu)
        INV_GPU(c->gpu, loss_terms_grad, c->in[0].dtype, SQUARE, c->in[0].n, 1, batch, NULL, g, c->in[0].data, NULL,
                c->out[0].data);
    else scaled_grad(SQUARE, *g / batch, &c->in[0], NULL, &c->out[0]);
    return INV_OK;
}

static inv_status nll_logdet_infer(inv_graph *g, inv_node *n)
{
    INV_TRY(inv_need_loss_grad(g, n, 0));
    inv_shape s = inv_attr_shape(n, "shape");
    int64_t t = inv_attr_int(n, "dtype", INV_F32);
    if (t != INV_F32 && t != INV_F64)
        return inv_node_fail(g, n, INV_E_UNSUPPORTED_TYPE, "dtype must be float or double");
    inv_set_out(g, n, 0, (inv_dtype)t, &s);
    return INV_OK;
}

static inv_status nll_logdet_run(const inv_call *c)
{
    const double *g = c->in[0].data, batch = (double)inv_attr_int(c->node, "batch", 1);
    inv_tensor *out = &c->out[0];
    if (c->gpu) {
        INV_GPU(c->gpu, loss_terms_grad, out->dtype, PLAIN, out->n, -1, batch, NULL, g, NULL, NULL, out->data);
        return INV_OK;
    }
    double v = -*g / batch;
    for (int64_t i = 0; i < out->n; i++) {
        if (out->dtype == INV_F32) ((float *)out->data)[i] = (float)v;
        else ((double *)out->data)[i] = v;
    }
    return INV_OK;
}

/* --- rows --- */

static double heavy_flops(const inv_graph *g, const inv_node *n) { return 4 * inv_flops_in(g, n); }

/* clang-format off */
static const inv_op_def mse_mean = {
    .size = sizeof mse_mean, .domain = INV_IR, .name = "MseMean", .since = 1,
    .in = "output target", .out = "loss count?",
    .flags = INV_OP_NO_CLONE, .infer = pair_infer, .grad = pair_grad, .run = pair_run,
    .work = inv_work_sum,
    .workspace = part_workspace,
    .cases = (const char *const[]){"l = MseMean(float[4,5] o, float[4,5] t)",
                                  "l = MseMean(float[10,60] o, float[10,60] t)",
                                  "l, c = MseMean<ignore_index = 2>(float[2,3] o, float[2,3] t)",
                                  NULL},
    .doc = "mean over all elements of (output - target)^2; with ignore_index, without targets equal to it or NaN"};

static const inv_op_def mse_grad = {
    .size = sizeof mse_grad, .domain = INV_IR, .name = "MseGrad", .since = 1,
    .in = "output target g count?", .out = "go",
    .inplace = 3, .infer = pair_grad_infer, .run = pair_grad_run,
    .cases = (const char *const[]){"go = MseGrad(float[4,5] o, float[4,5] t, double[] g)", NULL},
    .doc = "2 (output - target) g / elements"};

static const inv_op_def bce_mean = {
    .size = sizeof bce_mean, .domain = INV_IR, .name = "BceMean", .since = 1,
    .in = "logits target", .out = "loss count?",
    .flags = INV_OP_NO_CLONE, .infer = pair_infer, .grad = pair_grad, .run = pair_run,
    .work = inv_work_sum,
    .workspace = part_workspace, .flops = heavy_flops,
    .cases = (const char *const[]){"l = BceMean(float[4,5] x, float[4,5] t)",
                                  "l = BceMean<ignore_index = -1>(float[2,3] x, float[2,3] t)",
                                  NULL},
    .doc = "mean over all elements of max(x,0) - x t + ln(1 + exp(-|x|)), nats"};

static const inv_op_def bce_grad = {
    .size = sizeof bce_grad, .domain = INV_IR, .name = "BceGrad", .since = 1,
    .in = "logits target g count?", .out = "gx",
    .inplace = 3, .infer = pair_grad_infer, .run = pair_grad_run, .flops = heavy_flops,
    .cases = (const char *const[]){"gx = BceGrad(float[4,5] x, float[4,5] t, double[] g)", NULL},
    .doc = "(sigmoid(logits) - target) g / elements"};

static const inv_op_def huber_mean = {
    .size = sizeof huber_mean, .domain = INV_IR, .name = "HuberMean", .since = 1,
    .in = "output target", .out = "loss count?",
    .flags = INV_OP_NO_CLONE, .infer = pair_infer, .grad = pair_grad, .run = pair_run,
    .work = inv_work_sum,
    .workspace = part_workspace,
    .cases = (const char *const[]){"l = HuberMean<delta = 0.4>(float[4,5] o, float[4,5] t)",
                                  "l = HuberMean<delta = 0.4, ignore_index = 3>(float[2,3] o, float[2,3] t)",
                                  NULL},
    .doc = "mean over all elements of d^2/2, and delta (|d| - delta/2) beyond delta, d = output - target (Huber 1964)"};

static const inv_op_def huber_grad = {
    .size = sizeof huber_grad, .domain = INV_IR, .name = "HuberGrad", .since = 1, .in = "output target g count?",
    .out = "go", .inplace = 3, .infer = pair_grad_infer, .run = pair_grad_run,
    .cases = (const char *const[]){"go = HuberGrad<delta = 0.4>(float[4,5] o, float[4,5] t, double[] g)", NULL},
    .doc = "output - target, within -delta and delta, times g / elements"};

static const inv_op_def nll_mean = {
    .size = sizeof nll_mean, .domain = INV_IR, .name = "NllMean", .since = 1, .in = "logdet? z*", .out = "loss",
    .flags = INV_OP_NO_CLONE, .infer = nll_infer, .grad = nll_grad, .run = nll_run,
    .work = inv_work_sum,
    .workspace = part_workspace,
    .cases = (const char *const[]){
        "l = NllMean(float[4] logdet, float[4,5] z, float[4,2,3] w)",
        "l = NllMean(, float[4,5] z, float[4,80] w)", NULL},
    .doc = "mean over the batch of the sum of z^2/2 + ln(2 pi)/2 over all z, minus logdet, nats"};

static const inv_op_def nll_grad_z = {
    .size = sizeof nll_grad_z, .domain = INV_IR, .name = "NllGradZ", .since = 1, .in = "z g", .out = "gz",
    .inplace = 1, .infer = nll_z_infer, .run = nll_z_run,
    .cases = (const char *const[]){"gz = NllGradZ<batch = 4>(float[4,5] z, double[] g)", NULL},
    .doc = "z g / batch"};

static const inv_op_def nll_grad_logdet = {
    .size = sizeof nll_grad_logdet, .domain = INV_IR, .name = "NllGradLogdet", .since = 1, .in = "g", .out = "gl",
    .infer = nll_logdet_infer, .run = nll_logdet_run,
    .cases = (const char *const[]){"gl = NllGradLogdet<batch = 4, shape = [4], dtype = 1>(double[] g)", NULL},
    .doc = "-g / batch in every element"};
/* clang-format on */

const inv_op_def *const inv_ops_loss[] = {&mse_mean,   &mse_grad, &bce_mean,   &bce_grad,        &huber_mean,
                                          &huber_grad, &nll_mean, &nll_grad_z, &nll_grad_logdet, NULL};
