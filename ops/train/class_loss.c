/* SPDX-License-Identifier: Apache-2.0
 * Losses of classes: logits (with log = 1 their logarithms of probabilities) along `axis`, and as targets labels of the
 * other axes, or soft ones of the logits' shape. A row's loss is log sum exp(x) - x[label], or the sum of t (lse - x);
 * a class may have a weight, by which it is multiplied, and one label may mean that the row does not count. `smooth`
 * takes that share from a row's target and gives it to all classes alike (Szegedy et al. 2016; as PyTorch): with labels
 * a row still counts the weight of its label.
 *   CrossEntropyMean(logits, target, weight?)    float64 scalar: sum over rows by the sum of what labelled rows count
 *                                                (soft ones count 1), which is its second output; sum = 1: the sum.
 *                                                Its third output is log sum exp(x) of each row, for the gradient
 *   CrossEntropyRows(logits, labels, weight?)    one loss per row
 *   CorrectCount(logits, labels)                 rows whose largest logit (the first one) is the label, and rows
 *   LabelWeight(labels, weight?)                 that sum of what labelled rows count, by itself
 * A label outside the classes makes the loss NaN. ONNX's NegativeLogLikelihoodLoss and SoftmaxCrossEntropyLoss lower to
 * the first two. */
#include "ops/base/emit.h"
#include "ops/base/families.h"
#include "ops/base/float_math.h"
#include "ops/base/parallel.h"
#include "ops/base/rows.h"
#include "ops/train/loss.h"
#include "ops/train/loss_gpu.h"

#define PARTS 64
#define BLOCK 64
#define V(f) FN(inv_##f)

typedef inv_loss_rows rows;
typedef inv_loss_target target;

#define INV_BOTH "ops/train/class_loss_kernels.inc"
#include "ops/base/both_reals.inc"

/* Logits with the class axis, and labels of the other axes (or soft targets of the logits' shape). */
static inv_status class_operands(const inv_graph *g, const inv_node *n, bool soft_too)
{
    int axis = 0;
    INV_TRY(inv_need_real(g, n, 0));
    const inv_shape *x = inv_in_shape(g, n, 0), *t = inv_in_shape(g, n, 1);
    INV_TRY(inv_axis(g, n, inv_attr_int(n, "axis", 1), x->rank, &axis));
    if (x->dim[axis] < 1) return inv_node_fail(g, n, INV_E_SHAPE, "the class axis %d is empty", axis);
    inv_shape labels = *x;
    labels.rank--;
    for (int i = axis; i < labels.rank; i++) labels.dim[i] = x->dim[i + 1];
    if (inv_in_dtype(g, n, 1) == INV_I64 && inv_shape_equal(t, &labels)) return INV_OK;
    if (soft_too && inv_in_dtype(g, n, 1) == inv_in_dtype(g, n, 0) && inv_shape_equal(t, x)) return INV_OK;
    char want[INV_SHAPE_TEXT], soft[INV_SHAPE_TEXT];
    if (!soft_too)
        return inv_node_fail(g, n, INV_E_SHAPE, "the target must be int64%s (labels)", inv_shape_text(&labels, want));
    return inv_node_fail(g, n, INV_E_SHAPE,
                         "the target must be int64%s (labels) or floating point %s (a distribution per row)",
                         inv_shape_text(&labels, want), inv_shape_text(x, soft));
}

/* Input i, if given, has a weight per class. */
static inv_status need_weight(const inv_graph *g, const inv_node *n, uint32_t i)
{
    const inv_shape *x = inv_in_shape(g, n, 0);
    const int64_t axis = inv_attr_int(n, "axis", 1);
    if (!inv_has_in(n, i)) return INV_OK;
    const inv_shape *s = inv_in_shape(g, n, i);
    const int64_t classes = inv_attr_int(n, "classes", x->dim[axis < 0 ? axis + x->rank : axis]);
    if (inv_in_dtype(g, n, i) == inv_in_dtype(g, n, 0) && s->rank == 1 && s->dim[0] == classes) return INV_OK;
    return inv_node_fail(g, n, INV_E_SHAPE, "input %u, the weights, must be [%lld] and of the logits' type", i,
                         (long long)classes);
}

static rows class_rows(const inv_node *n, const inv_shape *s)
{
    const int64_t axis = inv_attr_int(n, "axis", 1);
    const int at = (int)(axis < 0 ? axis + s->rank : axis);
    return (rows){.outer = inv_prod(s, 0, at),
                  .len = s->dim[at],
                  .inner = inv_prod(s, at + 1, s->rank),
                  .first = inv_attr_int(n, "first", 0),
                  .classes = inv_attr_int(n, "classes", s->dim[at]),
                  .known = inv_attr_int(n, "log", 0) != 0,
                  .ignores = inv_attr_find(n, "ignore_index") != NULL,
                  .ignore = inv_attr_int(n, "ignore_index", 0),
                  .smooth = inv_attr_float(n, "smooth", 0)};
}

static target target_of(const inv_call *c, uint32_t weight)
{
    const bool hard = c->in[1].dtype == INV_I64;
    return (target){hard ? c->in[1].data : NULL, hard ? NULL : c->in[1].data,
                    c->nin > weight ? c->in[weight].data : NULL};
}

/* By what the sum over rows is divided; 0: the sum of what the rows count. */
static double total_of(const inv_node *n, const rows *r, bool hard, bool weighted)
{
    if (inv_attr_int(n, "sum", 0) != 0) return 1;
    return hard && (weighted || r->ignores) ? 0 : (double)(r->outer * r->inner);
}

/* Room for the sums of blocks on a device, two each. */
static size_t part_workspace(const inv_graph *g, const inv_node *n)
{
    (void)n;
    return g->gpu ? 2 * INV_LOSS_PARTS * sizeof(double) : 0;
}

/* One number per row. */
static inv_shape each_row_shape(const inv_graph *g, const inv_node *n)
{
    const rows r = class_rows(n, inv_in_shape(g, n, 0));
    const int64_t count = r.outer * r.inner;
    return inv_shape_of(1, &count);
}

static inv_status mean_infer(inv_graph *g, inv_node *n)
{
    const inv_shape s = inv_shape_scalar();
    INV_TRY(class_operands(g, n, true));
    INV_TRY(need_weight(g, n, 2));
    const inv_shape each = each_row_shape(g, n);
    inv_set_out(g, n, 0, INV_F64, &s);
    inv_set_out(g, n, 1, INV_F64, &s);
    inv_set_out(g, n, 2, INV_F64, &each);
    return INV_OK;
}

/* Whether the logits are those of some of the classes, from the attribute `first` on: then what all of them come to is
 * an operand, and targets are labels. */
static inv_status need_classes(const inv_graph *g, const inv_node *n)
{
    const rows r = class_rows(n, inv_in_shape(g, n, 0));
    if (inv_has_in(n, 5)) {
        const inv_shape each = each_row_shape(g, n);
        if (inv_in_dtype(g, n, 5) != INV_F64 || !inv_shape_equal(inv_in_shape(g, n, 5), &each))
            return inv_node_fail(g, n, INV_E_SHAPE, "input 5 must be double, one number for each row");
    }
    if (r.first == 0 && r.classes == r.len) return INV_OK;
    if (r.first >= 0 && r.first + r.len <= r.classes && inv_has_in(n, 5) && inv_in_dtype(g, n, 1) == INV_I64)
        return INV_OK;
    return inv_node_fail(g, n, INV_E_SHAPE, "%lld classes from %lld on, of %lld, with%s labels and with%s input 5",
                         (long long)r.len, (long long)r.first, (long long)r.classes,
                         inv_in_dtype(g, n, 1) == INV_I64 ? "" : "out", inv_has_in(n, 5) ? "" : "out");
}

static inv_status mean_grad_infer(inv_graph *g, inv_node *n)
{
    INV_TRY(class_operands(g, n, true));
    INV_TRY(inv_need_loss_grad(g, n, 2));
    INV_TRY(need_weight(g, n, 3));
    if (inv_has_in(n, 4)) INV_TRY(inv_need_loss_grad(g, n, 4));
    INV_TRY(need_classes(g, n));
    return inv_infer_same(g, n);
}

static inv_status rows_infer(inv_graph *g, inv_node *n)
{
    INV_TRY(class_operands(g, n, false));
    INV_TRY(need_weight(g, n, 2));
    inv_set_out(g, n, 0, inv_in_dtype(g, n, 0), inv_in_shape(g, n, 1));
    return INV_OK;
}

static inv_status rows_grad_infer(inv_graph *g, inv_node *n)
{
    INV_TRY(class_operands(g, n, false));
    INV_TRY(need_weight(g, n, 3));
    if (inv_in_dtype(g, n, 2) != inv_in_dtype(g, n, 0) ||
        !inv_shape_equal(inv_in_shape(g, n, 1), inv_in_shape(g, n, 2)))
        return inv_node_fail(g, n, INV_E_SHAPE, "gy must have the labels' shape and the logits' type");
    return inv_infer_same(g, n);
}

static inv_status mean_run(const inv_call *c)
{
    const rows r = class_rows(c->node, &c->in[0].shape);
    const target t = target_of(c, 2);
    const double total = total_of(c->node, &r, t.label != NULL, t.weight != NULL);
    double *loss = c->out[0].data, *all = c->nout > 1 ? c->out[1].data : NULL,
           *lse = c->nout > 2 ? c->out[2].data : NULL, sum[2];
    if (c->gpu) {
        INV_GPU(c->gpu, cross_entropy, c->in[0].dtype, &r, &t, c->in[0].data, total, c->ws, loss, all, lse);
        return INV_OK;
    }
    INV_REAL(c->in[0].dtype, cross_entropy, &r, &t, c->in[0].data, sum, lse);
    sum[1] = total > 0 ? total : sum[1];
    *loss = sum[0] / sum[1];
    if (all) *all = sum[1];
    return INV_OK;
}

static inv_status rows_run(const inv_call *c)
{
    const rows r = class_rows(c->node, &c->in[0].shape);
    const target t = target_of(c, 2);
    if (c->gpu) INV_GPU(c->gpu, cross_entropy_rows, c->in[0].dtype, &r, &t, c->in[0].data, c->out[0].data);
    else INV_REAL(c->in[0].dtype, each_row, &r, &t, c->in[0].data, c->out[0].data);
    return INV_OK;
}

/* share: of every row, or NULL, and gy has one for each */
static void grad_on_host(const inv_call *c, const rows *r, const target *t, const double *share, const void *gy,
                         const double *lse)
{
    INV_REAL(c->in[0].dtype, cross_entropy_grad, r, t, c->in[0].data, share, gy, lse, c->out[0].data);
}

static inv_status mean_grad_run(const inv_call *c)
{
    const rows r = class_rows(c->node, &c->in[0].shape);
    const target t = target_of(c, 3);
    const double total = total_of(c->node, &r, t.label != NULL, t.weight != NULL), *g = c->in[2].data,
                 *all = c->nin > 4 ? c->in[4].data : NULL, *lse = c->nin > 5 ? c->in[5].data : NULL;
    if (c->gpu) {
        INV_GPU(c->gpu, cross_entropy_grad, c->in[0].dtype, &r, &t, c->in[0].data, total, all, g, NULL, lse,
                c->out[0].data);
        return INV_OK;
    }
    const double of = all ? *all : total, share = of > 0 ? *g / of : 0; /* no label counts: no gradient */
    grad_on_host(c, &r, &t, &share, NULL, lse);
    return INV_OK;
}

static inv_status rows_grad_run(const inv_call *c)
{
    const rows r = class_rows(c->node, &c->in[0].shape);
    const target t = target_of(c, 3);
    if (!c->gpu) {
        grad_on_host(c, &r, &t, NULL, c->in[2].data, NULL);
        return INV_OK;
    }
    INV_GPU(c->gpu, cross_entropy_grad, c->in[0].dtype, &r, &t, c->in[0].data, 0, NULL, NULL, c->in[2].data, NULL,
            c->out[0].data);
    return INV_OK;
}

/* --- LabelWeight --- */

static inv_status label_weight_infer(inv_graph *g, inv_node *n)
{
    const inv_shape s = inv_shape_scalar();
    if (inv_in_dtype(g, n, 0) != INV_I64)
        return inv_node_fail(g, n, INV_E_UNSUPPORTED_TYPE, "the labels must be int64");
    if (inv_has_in(n, 1)) {
        INV_TRY(inv_need_real(g, n, 1));
        if (inv_in_shape(g, n, 1)->rank != 1)
            return inv_node_fail(g, n, INV_E_SHAPE, "input 1, the weights, must have one axis");
    }
    inv_set_out(g, n, 0, INV_F64, &s);
    return INV_OK;
}

static inv_status label_weight_run(const inv_call *c)
{
    const bool weighted = c->nin > 1 && c->in[1].data;
    const inv_dtype t = weighted ? c->in[1].dtype : INV_F32;
    const rows r = {.outer = c->in[0].n,
                    .len = weighted ? c->in[1].n : INT64_MAX,
                    .classes = weighted ? c->in[1].n : INT64_MAX,
                    .inner = 1,
                    .ignores = inv_attr_find(c->node, "ignore_index") != NULL,
                    .ignore = inv_attr_int(c->node, "ignore_index", 0)};
    const target y = {.label = c->in[0].data, .weight = weighted ? c->in[1].data : NULL};
    if (c->gpu) INV_GPU(c->gpu, label_weight, t, &r, &y, c->out[0].data);
    else INV_REAL(t, label_weight, &r, &y, c->out[0].data);
    return INV_OK;
}

static inv_status loss_grad(inv_grad *b)
{
    inv_graph *g = b->g;
    const inv_id gy = inv_GO(b, 0);
    if (gy == INV_NONE || !inv_wants(b, 0)) return INV_OK;
    const inv_node n = *inv_nod(g, b->node);
    const bool mean = strcmp(n.op_type, "CrossEntropyMean") == 0, hard = inv_in_dtype(g, &n, 1) == INV_I64;
    const rows r = class_rows(&n, inv_in_shape(g, &n, 0));
    const bool asks = mean && total_of(&n, &r, hard, inv_has_in(&n, 2)) == 0 && r.outer * r.inner > 0;
    const inv_id in[6] = {n.in[0],
                          n.in[1],
                          gy,
                          inv_has_in(&n, 2) ? n.in[2] : INV_NONE,
                          asks ? inv_node_want(g, b->node, 1) : INV_NONE,
                          mean && !r.known ? inv_node_want(g, b->node, 2) : INV_NONE};
    uint32_t nin = 6;
    while (in[nin - 1] == INV_NONE) nin--;
    inv_grad_set(b, 0, inv_emit1(g, mean ? "CrossEntropyGrad" : "CrossEntropyRowsGrad", nin, in, n.nattr, n.attr));
    return inv_grad_done(b);
}

static inv_status correct_infer(inv_graph *g, inv_node *n)
{
    const inv_shape s = inv_shape_of(1, (int64_t[]){2});
    INV_TRY(class_operands(g, n, false));
    inv_set_out(g, n, 0, INV_I64, &s);
    return INV_OK;
}

static inv_status correct_run(const inv_call *c)
{
    const rows r = class_rows(c->node, &c->in[0].shape);
    if (c->gpu) INV_GPU(c->gpu, correct_count, c->in[0].dtype, &r, c->in[0].data, c->in[1].data, c->ws, c->out[0].data);
    else INV_REAL(c->in[0].dtype, correct_count, &r, c->in[0].data, c->in[1].data, c->out[0].data);
    return INV_OK;
}

/* --- ONNX: classes lie along axis 1 --- */

static inv_status emit_loss(inv_graph *g, const inv_node *n, inv_id x, bool known, inv_id *out)
{
    const char *how = inv_attr_string(n, "reduction", "mean");
    const bool mean = strcmp(how, "mean") == 0, sum = strcmp(how, "sum") == 0;
    const inv_attr *ignore = inv_attr_find(n, "ignore_index");
    if (!mean && !sum && strcmp(how, "none") != 0)
        return inv_node_fail(g, n, INV_E_UNSUPPORTED_OP, "reduction must be none, sum or mean, not %s", how);
    inv_attr attr[4] = {inv_attr_of_int("axis", 1), inv_attr_of_int("log", known)};
    uint32_t nattr = 2;
    if (sum) attr[nattr++] = inv_attr_of_int("sum", 1);
    if (ignore) attr[nattr++] = inv_attr_of_int("ignore_index", ignore->i);
    const inv_id in[3] = {x, inv_cast(g, n->in[1], INV_I64), inv_has_in(n, 2) ? n->in[2] : INV_NONE};
    const inv_dtype t = inv_in_dtype(g, n, 0);
    const inv_id loss =
        inv_emit1(g, mean || sum ? "CrossEntropyMean" : "CrossEntropyRows", in[2] == INV_NONE ? 2 : 3, in, nattr, attr);
    out[0] = inv_cast(g, loss, t);
    return inv_done(g);
}

/* Shapes are checked by what it lowers to. */
static inv_status onnx_operands(const inv_graph *g, const inv_node *n)
{
    INV_TRY(inv_need_real(g, n, 0));
    const inv_dtype t = inv_in_dtype(g, n, 1);
    if (t == INV_I64 || t == INV_I32) return INV_OK;
    return inv_node_fail(g, n, INV_E_UNSUPPORTED_TYPE, "the labels are %s; int32 or int64 is wanted",
                         inv_dtype_name(t));
}

static inv_status nll_lower(inv_graph *g, const inv_node *n, inv_id *out)
{
    INV_TRY(onnx_operands(g, n));
    return emit_loss(g, n, n->in[0], true, out);
}

/* Who asks for the logarithms of the probabilities gets them, and the loss is computed from them. */
static inv_status sce_lower(inv_graph *g, const inv_node *n, inv_id *out)
{
    INV_TRY(onnx_operands(g, n));
    if (!inv_has_out(n, 1)) return emit_loss(g, n, n->in[0], false, out);
    out[1] = inv_emit1(g, "LogSoftmax", INV_IN(n->in[0]), INV_ATTRS(inv_attr_of_int("axis", 1)));
    return emit_loss(g, n, out[1], true, out);
}

/* --- rows --- */

static double heavy_flops(const inv_graph *g, const inv_node *n) { return 4 * inv_flops_in(g, n); }

/* clang-format off */
static const inv_op_def mean_op = {
    .size = sizeof mean_op, .domain = INV_IR, .name = "CrossEntropyMean", .since = 1, .in = "logits target weight?",
    .out = "loss total? lse?", .flags = INV_OP_NO_CLONE, .infer = mean_infer, .grad = loss_grad, .run = mean_run,
    .work = inv_work_math,
    .workspace = part_workspace, .flops = heavy_flops,
    .cases = (const char *const[]){
        "l = CrossEntropyMean<axis = 1>(float[4,5] x, float[4,5] t)",
        "l = CrossEntropyMean<axis = 1>(float[2,5,3] x, float[2,5,3] t)",
        "l = CrossEntropyMean<axis = 0>(float[40,3] x, float[40,3] var_t)",
        "l = CrossEntropyMean<axis = 1>(float[150,2] x, int64[150] var_label)",
        "l = CrossEntropyMean<axis = -1>(float[2,3,33] x, int64[2,3] var_label)",
        "l = CrossEntropyMean<axis = 1>(float[2,515] x, int64[2] var_label)",
        "l = CrossEntropyMean<axis = 1>(float[2,4100] x, int64[2] var_label)",
        "l = CrossEntropyMean<axis = 1>(float[30,3] x, int64[30] var_label, float[3] var_w)",
        "l, total = CrossEntropyMean<axis = 1, ignore_index = 1>(float[2,3,40] x, int64[2,40] var_label)",
        "l = CrossEntropyMean<axis = 1, ignore_index = 0, sum = 1>(float[9,600] x, int64[9] var_label, "
        "float[600] var_w)",
        "l = CrossEntropyMean<axis = 1, log = 1>(float[4,5] x, int64[4] var_label, float[5] var_w)",
        "l = CrossEntropyMean<axis = 1>(float[2,5,3] x, float[2,5,3] var_t, float[5] var_w)",
        "l = CrossEntropyMean<axis = 1, smooth = 0.1>(float[30,3] x, int64[30] var_label)",
        "l = CrossEntropyMean<axis = -1, smooth = 0.3>(float[2,3,40] x, int64[2,3] var_label, float[40] var_w)",
        "l, total = CrossEntropyMean<axis = 1, ignore_index = 1, smooth = 0.2>(float[2,5,3] x, int64[2,3] var_label, "
        "float[5] var_w)",
        "l = CrossEntropyMean<axis = 1, log = 1, smooth = 0.2>(float[4,5] x, int64[4] var_label, float[5] var_w)",
        "l = CrossEntropyMean<axis = 1, smooth = 0.2>(float[2,5,3] x, float[2,5,3] var_t, float[5] var_w)",
        "l = CrossEntropyMean<axis = 1, smooth = 0.2>(float[2,600] x, float[2,600] var_t)",
        "l = CrossEntropyMean<axis = 1, sum = 1>(float[1,1] x, int64[1] label)", NULL},
    .doc = "cross entropy of softmax(logits) in nats, mean over rows; labels or soft targets, class weights, "
           "ignore_index, smooth; NaN for an unknown label"};

static const inv_op_def mean_grad_op = {
    .size = sizeof mean_grad_op, .domain = INV_IR, .name = "CrossEntropyGrad", .since = 1,
    .in = "logits target g weight? total? lse?", .out = "gx", .inplace = 1,
    .infer = mean_grad_infer, .run = mean_grad_run, .work = inv_work_math,
    .flops = heavy_flops,
    .cases = (const char *const[]){
        "gx = CrossEntropyGrad<axis = 1>(float[4,5] x, float[4,5] t, double[] g)",
        "gx = CrossEntropyGrad<axis = 1>(float[2,520] x, float[2,520] t, double[] g)",
        "gx = CrossEntropyGrad<axis = 1>(float[2,5,3] x, int64[2,3] var_label, double[] g)",
        "gx = CrossEntropyGrad<axis = 1>(float[2,40,3] x, int64[2,3] var_label, double[] g)",
        "gx = CrossEntropyGrad<axis = 1, smooth = 0.1>(float[2,520] x, int64[2] var_label, double[] g)",
        "gx = CrossEntropyGrad<axis = 1, smooth = 0.1>(float[2,40,3] x, float[2,40,3] t, double[] g)",
        "gx = CrossEntropyGrad<axis = 1>(float[2,40,3] x, int64[2,3] var_label, double[] g, , , "
        "double[6]{4,5,4.5,4,5,6})",
        "gx = CrossEntropyGrad<axis = 1, first = 30, classes = 600, ignore_index = 31>(float[5,520] x, "
        "int64[5]{29,30,31,549,550}, double[] g, float[600] var_w, double[] total, double[5]{6,7,6.5,6,7})",
        "gx = CrossEntropyGrad<axis = 1, first = 2, classes = 9, smooth = 0.2>(float[4,5] x, int64[4]{1,2,6,7}, "
        "double[] g, float[9] var_w, double[] total, double[4]{2.5,3,2,3})", NULL},
    .doc = "gradient of CrossEntropyMean for its logits; lse: its second output, else recomputed; classes: number of "
           "logits, from `first` on"};

static const inv_op_def rows_op = {
    .size = sizeof rows_op, .domain = INV_IR, .name = "CrossEntropyRows", .since = 1, .in = "logits labels weight?",
    .out = "loss", .infer = rows_infer, .grad = loss_grad, .run = rows_run,
    .work = inv_work_math, .flops = heavy_flops,
    .cases = (const char *const[]){
        "l = CrossEntropyRows<axis = 1>(float[4,5] x, int64[4] var_label)",
        "l = CrossEntropyRows<axis = 1, ignore_index = 1>(float[2,5,3] x, int64[2,3] var_label, float[5] var_w)",
        "l = CrossEntropyRows<axis = 1, ignore_index = 0>(float[9,600] x, int64[9] var_label, float[600] var_w)",
        "l = CrossEntropyRows<axis = 1, log = 1>(float[2,40,3] x, int64[2,3] var_label)",
        "l = CrossEntropyRows<axis = 1>(float[0,5] x, int64[0] label)", NULL},
    .doc = "cross entropy of softmax(logits) along `axis`, nats, for each row; weights of classes, ignore_index"};

static const inv_op_def rows_grad_op = {
    .size = sizeof rows_grad_op, .domain = INV_IR, .name = "CrossEntropyRowsGrad", .since = 1,
    .in = "logits labels gy weight?", .out = "gx", .inplace = 1, .infer = rows_grad_infer, .run = rows_grad_run,
    .work = inv_work_math,
    .flops = heavy_flops,
    .cases = (const char *const[]){
        "gx = CrossEntropyRowsGrad<axis = 1>(float[2,5,3] x, int64[2,3] var_label, float[2,3] gy)", NULL},
    .doc = "gradient of CrossEntropyRows to its logits"};

static const inv_op_def correct_count = {
    .size = sizeof correct_count, .domain = INV_IR, .name = "CorrectCount", .since = 1, .in = "logits labels",
    .out = "count", .flags = INV_OP_NO_CLONE | INV_OP_NO_GRAD, .infer = correct_infer, .run = correct_run,
    .work = inv_work_sum,
    .workspace = part_workspace,
    .cases = (const char *const[]){
        "c = CorrectCount<axis = 1>(float[200,3] x, int64[200] var_label)",
        "c = CorrectCount<axis = 1>(float[2,5,3] x, int64[2,3] var_label)",
        "c = CorrectCount<axis = -1>(float[5,2,3] x, int64[5,2] var_label)",
        "c = CorrectCount<axis = 0, ignore_index = 1>(float[40,7] x, int64[7] var_label)",
        "c = CorrectCount<axis = 1>(float[3,600] x, int64[3] var_label)",
        "c = CorrectCount<axis = 1>(float[0,4] x, int64[0] var_label)", NULL},
    .doc = "int64[2]: rows whose largest logit along `axis` (the first one) is the label, and rows that count"};

static const inv_op_def label_weight = {
    .size = sizeof label_weight, .domain = INV_IR, .name = "LabelWeight", .since = 1, .in = "labels weight?",
    .out = "total", .flags = INV_OP_NO_CLONE | INV_OP_NO_GRAD, .infer = label_weight_infer, .run = label_weight_run,
    .work = inv_work_sum,
    .cases = (const char *const[]){
        "w = LabelWeight<ignore_index = 1>(int64[3,700] var_label)",
        "w = LabelWeight(int64[40] var_label, float[3] var_w)",
        "w = LabelWeight<ignore_index = 2>(int64[5,8] var_label, float[4] var_w)",
        "w = LabelWeight(int64[0] var_label)", NULL},
    .doc = "double: weight of rows with these labels in CrossEntropyMean: the weights of their classes, or 1, and 0 "
           "for ignore_index"};
/* clang-format on */

INV_LOWERED_BY(
    nll_lower, 0, 0, nll_12, "NegativeLogLikelihoodLoss", 12, "input target weight?", "loss",
    "-w x[target]; to CrossEntropyMean or CrossEntropyRows. ONNX NegativeLogLikelihoodLoss-12, -13, -22",
    "l = NegativeLogLikelihoodLoss(float[4,5] x, int64[4] var_t, float[5] var_w)",
    "l = NegativeLogLikelihoodLoss<reduction = \"none\", ignore_index = 0>(float[2,5,3] x, int32[2,3] var_t)",
    "l = NegativeLogLikelihoodLoss<reduction = \"sum\">(float[2,5,3,2] x, int64[2,3,2] var_t)")

INV_LOWERED_BY(sce_lower, 0, 0, sce_12, "SoftmaxCrossEntropyLoss", 12, "scores labels weights?", "output log_prob?",
               "cross entropy of softmax(scores); to CrossEntropyMean or CrossEntropyRows, log_prob, where wanted, to "
               "LogSoftmax. ONNX SoftmaxCrossEntropyLoss-12, -13",
               "l = SoftmaxCrossEntropyLoss(float[4,5] x, int64[4] var_t, float[5] var_w)",
               "l, p = SoftmaxCrossEntropyLoss<ignore_index = 1>(float[2,5,3] x, int32[2,3] var_t)",
               "l = SoftmaxCrossEntropyLoss<reduction = \"none\">(float[2,5,3] x, int64[2,3] var_t)")

const inv_op_def *const inv_ops_class_loss[] = {
    &mean_op, &mean_grad_op, &rows_op, &rows_grad_op, &correct_count, &label_weight, &nll_12_row, &sce_12_row, NULL};
