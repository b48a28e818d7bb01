/* SPDX-License-Identifier: Apache-2.0
 * Batch normalisation in separate nodes, so that a clone repeats only the normalisation:
 *
 *     mean, var = BatchStats(x)                              always stored (two numbers per channel)
 *     y = BatchNormApply<training = 1>(x, scale, bias, mean, var)
 *     running' = RunningMix<momentum>(running, batch)        written by commit; cumulative: the mean over all batches
 *
 * Where ranks have their statistics together (passes/autodiff/sync_norms.c), what each finds goes to all, who join it
 * in the order of the ranks, so that all have the same bits:
 *
 *     mean, var, count = JoinMoments(AllGather(BatchMoments(x)), there)
 *     dx, ... = BatchNormGrad(x, gy, scale, mean, var, AllGather(NormGradSums(x, gy, mean)), count, there)
 *
 * Arithmetic is in double per element and rounded once; what is kept of the statistics has the type of x, since it is
 * kept per layer and must not grow with depth more than it has to. The gradient treats mean and var as functions of x
 * inside BatchNormGrad (training = 1) or as constants (0), so neither gets a gradient of its own. The variance is
 * biased (divided by n), as ONNX defines it. */
#include "ops/base/rows.h"
#include "ops/norm/softmax.h"

#include "core/edits/onnx_body.h"
#include "core/graph/node.h"
#include "ops/base/families.h"
#include "ops/base/parallel.h"
#include "ops/base/util.h"
#include "ops/norm/norm.h"

#define BLOCK 16       /* channels that are summed at once */
#define TASK_BLOCKS 8  /* of one task */
#define SUMMED_ROWS 32 /* of a block, before the next one */
#define LEAST_ROWS 256 /* of one task, where the channels come last */
#define MOST_PARTS 64
#define TASK_ELEMS 16384 /* of a task that sums nothing */

typedef struct layout {
    int64_t n, c, s; /* batch, channels, spatial */
} layout;

typedef struct affine {
    double *sub, *mul, *add; /* per channel */
} affine;

/* Channels last: in how many parts rows are summed, and how many rows are a task where nothing is summed. */
static int64_t row_parts(const layout *l)
{
    return inv_max64(inv_min64((l->n + LEAST_ROWS - 1) / LEAST_ROWS, MOST_PARTS), 1);
}

static int64_t rows_per_task(const layout *l) { return inv_max64(TASK_ELEMS / inv_max64(l->c, 1), 1); }

#define INV_BOTH "ops/norm/batchnorm_kernels.inc"
#include "ops/base/both_reals.inc"

/* The channels are axis 1, or those of attribute `axis`. */
static int channel_axis(const inv_node *n) { return (int)inv_attr_int(n, "axis", 1); }

static layout channel_layout(const inv_node *n, const inv_shape *x)
{
    const int a = channel_axis(n);
    return (layout){inv_prod(x, 0, a), x->dim[a], inv_prod(x, a + 1, x->rank)};
}

/* On the device, a channel is reduced over all other axes. */
static inv_fold fold_of(const inv_node *n, const inv_shape *x)
{
    bool gone[INV_MAX_RANK] = {false};
    for (int i = 0; i < x->rank; i++) gone[i] = i != channel_axis(n);
    inv_fold f = inv_fold_of(x, gone), fours;
    /* channels last are taken in fours, so there are fewer blocks than that counts on */
    if (f.columns && inv_fold_fours(&f, &fours)) inv_fold_share(&f, (fours.nout + fours.width - 1) / fours.width);
    return f;
}

/* Operand 0 has channels; operands first..last are vectors of one number per channel. */
static inv_status need_channels(const inv_graph *g, const inv_node *n, uint32_t first, uint32_t last)
{
    INV_TRY(inv_norm_need(g, n, last));
    const inv_shape *x = inv_in_shape(g, n, 0);
    const int a = channel_axis(n);
    if (x->rank < 2 || a < 1 || a >= x->rank)
        return inv_node_fail(g, n, INV_E_SHAPE, "the input needs a batch and a channel axis");
    return inv_norm_need_vectors(g, n, first, last, x->dim[a], "channel");
}

static inv_status stats_infer(inv_graph *g, inv_node *n)
{
    INV_TRY(need_channels(g, n, 1, 1));
    inv_shape s = inv_shape_of(1, &inv_in_shape(g, n, 0)->dim[channel_axis(n)]);
    inv_set_out(g, n, 0, inv_in_dtype(g, n, 0), &s);
    inv_set_out(g, n, 1, inv_in_dtype(g, n, 0), &s);
    return INV_OK;
}

static inv_status batch_norm_infer(inv_graph *g, inv_node *n)
{
    INV_TRY(need_channels(g, n, 1, 5));
    return inv_infer_same(g, n);
}

static inv_status batch_norm_grad_infer(inv_graph *g, inv_node *n)
{
    INV_TRY(need_channels(g, n, 2, 5));
    INV_TRY(inv_norm_infer_grad(g, n));
    if (!inv_has_in(n, 5)) return INV_OK;
    const inv_shape *sums = inv_in_shape(g, n, 5);
    if (sums->rank == 2 && sums->dim[1] == 2 * inv_in_shape(g, n, 2)->dim[0] && inv_in_dtype(g, n, 5) == INV_F64 &&
        inv_has_in(n, 6) && inv_in_dtype(g, n, 6) == INV_F64 && inv_has_in(n, 7))
        return inv_need_weights(g, n, 7, sums->dim[0]);
    return inv_node_fail(g, n, INV_E_SHAPE,
                         "the sums of ranks are double[ranks, 2 channels], with a count, and which are there");
}

static inv_status mix_infer(inv_graph *g, inv_node *n)
{
    const inv_shape *running = inv_in_shape(g, n, 0), *batch = inv_in_shape(g, n, 1);
    INV_TRY(inv_norm_need(g, n, 2));
    inv_shape one = *batch;
    INV_TRY(inv_need_weights(g, n, 2, batch->rank ? batch->dim[0] : 1));
    if (batch->rank == running->rank + 1 && batch->dim[0] > 0) {
        one.rank--;
        memmove(one.dim, one.dim + 1, (size_t)one.rank * sizeof *one.dim);
    }
    if (!inv_shape_equal(running, &one))
        return inv_node_fail(g, n, INV_E_SHAPE, "the running and the batch statistic must have one shape");
    return inv_infer_same(g, n);
}

/* --- of several ranks --- */

/* What one rank sends: how many elements a channel has, their means, sums of squares around these. */
static inv_status moments_infer(inv_graph *g, inv_node *n)
{
    INV_TRY(need_channels(g, n, 1, 1));
    const inv_shape s = inv_shape_of(1, (int64_t[]){1 + 2 * inv_in_shape(g, n, 0)->dim[channel_axis(n)]});
    inv_set_out(g, n, 0, INV_F64, &s);
    return INV_OK;
}

static inv_status moments_run(const inv_call *c)
{
    const layout l = channel_layout(c->node, &c->in[0].shape);
    if (c->gpu) {
        const inv_fold f = fold_of(c->node, &c->in[0].shape);
        INV_GPU(c->gpu, batch_moments, &f, c->in[0].dtype, c->in[0].data, c->ws, c->out[0].data);
        return INV_OK;
    }
    INV_REAL(c->in[0].dtype, batch_moments, &l, c->in[0].data, c->ws, c->out[0].data);
    return INV_OK;
}

static inv_status join_infer(inv_graph *g, inv_node *n)
{
    const inv_shape *parts = inv_in_shape(g, n, 0);
    const inv_dtype t = (inv_dtype)inv_attr_int(n, "to", INV_F32);
    if (inv_in_dtype(g, n, 0) != INV_F64 || parts->rank != 2 || parts->dim[0] < 1 || parts->dim[1] % 2 != 1)
        return inv_node_fail(g, n, INV_E_SHAPE, "moments are double[ranks, 1 + 2 channels]");
    const inv_shape one = inv_shape_of(0, NULL), channels = inv_shape_of(1, (int64_t[]){parts->dim[1] / 2});
    inv_set_out(g, n, 0, t, &channels);
    inv_set_out(g, n, 1, t, &channels);
    inv_set_out(g, n, 2, INV_F64, &one);
    return inv_need_weights(g, n, 1, parts->dim[0]);
}

static inv_status join_run(const inv_call *c)
{
    const int64_t parts = c->in[0].shape.dim[0], channels = c->in[0].shape.dim[1] / 2;
    const inv_dtype t = (inv_dtype)inv_attr_int(c->node, "to", INV_F32);
    void *mean = c->out[0].data, *var = c->nout > 1 ? c->out[1].data : NULL,
         *count = c->nout > 2 ? c->out[2].data : NULL;
    const double *there = c->nin > 1 ? c->in[1].data : NULL;
    if (c->gpu) INV_GPU(c->gpu, join_moments, t, channels, parts, c->in[0].data, there, mean, var, count);
    else INV_REAL(t, join_moments, channels, parts, c->in[0].data, there, mean, var, count);
    return INV_OK;
}

static inv_status grad_sums_infer(inv_graph *g, inv_node *n)
{
    INV_TRY(need_channels(g, n, 2, 3));
    if (!inv_shape_equal(inv_in_shape(g, n, 0), inv_in_shape(g, n, 1)))
        return inv_node_fail(g, n, INV_E_SHAPE, "x and gy must have one shape");
    const inv_shape s = inv_shape_of(1, (int64_t[]){2 * inv_in_shape(g, n, 0)->dim[channel_axis(n)]});
    inv_set_out(g, n, 0, INV_F64, &s);
    return INV_OK;
}

static inv_status grad_sums_run(const inv_call *c)
{
    const layout l = channel_layout(c->node, &c->in[0].shape);
    const inv_norm a = {.dtype = c->in[0].dtype, .x = c->in[0].data, .gy = c->in[1].data, .mean = c->in[2].data};
    if (c->gpu) {
        const inv_fold f = fold_of(c->node, &c->in[0].shape);
        INV_GPU(c->gpu, grad_sums, &f, &a, c->ws, c->out[0].data);
        return INV_OK;
    }
    INV_REAL(a.dtype, grad_sums, &l, a.x, a.gy, a.mean, c->ws, c->out[0].data);
    return INV_OK;
}

static inv_norm_ranks ranks_of(const inv_call *c)
{
    if (c->nin < 8 || !c->in[5].data) return (inv_norm_ranks){.n = 1};
    return (inv_norm_ranks){c->in[5].shape.dim[0], c->in[5].data, c->in[6].data, c->in[7].data};
}

/* --- of one --- */

static inv_status stats_run(const inv_call *c)
{
    layout l = channel_layout(c->node, &c->in[0].shape);
    void *mean = c->out[0].data, *var = c->nout > 1 ? c->out[1].data : NULL;
    if (c->gpu) {
        const inv_fold f = fold_of(c->node, &c->in[0].shape);
        INV_GPU(c->gpu, batch_stats, &f, c->in[0].dtype, c->in[0].data, c->ws, mean, var);
        return INV_OK;
    }
    INV_REAL(c->in[0].dtype, batch_stats, &l, c->in[0].data, c->ws, mean, var);
    return INV_OK;
}

/* Sums of parts, and `more` numbers per channel. */
static size_t sums_workspace(const inv_graph *g, const inv_node *n, int64_t more)
{
    const layout l = channel_layout(n, inv_in_shape(g, n, 0));
    return (size_t)(l.c * (more + 2 * (l.s == 1 ? row_parts(&l) : 1))) * sizeof(double);
}

static size_t stats_workspace(const inv_graph *g, const inv_node *n)
{
    if (!g->gpu) return sums_workspace(g, n, 1);
    const inv_fold f = fold_of(n, inv_in_shape(g, n, 0));
    return (size_t)f.nout * (size_t)f.parts * 2 * sizeof(double);
}

static size_t batch_norm_grad_workspace(const inv_graph *g, const inv_node *n)
{
    if (!g->gpu) return sums_workspace(g, n, 4);
    const inv_fold f = fold_of(n, inv_in_shape(g, n, 0));
    return (size_t)f.nout * (size_t)(f.parts + 1) * 2 * sizeof(double);
}

static size_t affine_workspace(const inv_graph *g, const inv_node *n)
{
    if (g->gpu) return 0;
    return (size_t)inv_in_shape(g, n, 0)->dim[channel_axis(n)] * 3 * sizeof(double);
}

static inv_status normalise(const inv_call *c, bool inverse)
{
    layout l = channel_layout(c->node, &c->in[0].shape);
    const inv_norm a = inv_norm_of(c, false);
    if (c->gpu) {
        const inv_fold f = fold_of(c->node, &c->in[0].shape);
        INV_GPU(c->gpu, batch_norm, &f, &a, inverse, c->out[0].data);
        return INV_OK;
    }
    INV_REAL(a.dtype, normalise, &l, &a, inverse, c->ws, c->out[0].data);
    return INV_OK;
}

static inv_status batch_norm_run(const inv_call *c) { return normalise(c, false); }
static inv_status inverse_run(const inv_call *c) { return normalise(c, true); }

static inv_status batch_norm_grad_run(const inv_call *c)
{
    layout l = channel_layout(c->node, &c->in[0].shape);
    const inv_norm a = inv_norm_of(c, true);
    const inv_norm_ranks r = ranks_of(c);
    const bool training = inv_attr_int(c->node, "training", 0) != 0;
    void *out[3];
    inv_norm_results(c, out);
    if (c->gpu) {
        const inv_fold f = fold_of(c->node, &c->in[0].shape);
        INV_GPU(c->gpu, batch_norm_grad, &f, &a, &r, training, c->ws, out[0], out[1], out[2]);
        return INV_OK;
    }
    INV_REAL(a.dtype, batch_grad, &l, &a, &r, training, c->ws, out);
    return INV_OK;
}

static inv_mixing mixing_of(const inv_call *c)
{
    return (inv_mixing){.batches = c->in[0].n ? c->in[1].n / c->in[0].n : 0,
                        .weight = c->nin > 2 ? c->in[2].data : NULL,
                        .momentum = inv_attr_float(c->node, "momentum", 0.9),
                        .cumulative = inv_attr_int(c->node, "cumulative", 0)};
}

static bool mixes_alike(const inv_mixing *a, inv_mixing b)
{
    return a->batches == b.batches && a->weight == b.weight && a->momentum == b.momentum &&
           a->cumulative == b.cumulative;
}

static inv_status mix_many(const inv_gpu *gpu, const inv_call *const *c, size_t n)
{
    for (size_t i = 0, end; i < n; i = end) {
        const inv_mixing how = mixing_of(c[i]);
        inv_many m;
        inv_many_begin(&m);
        for (end = i; end < n && m.n < INV_MANY && c[end]->in[0].dtype == c[i]->in[0].dtype; end++) {
            if (!mixes_alike(&how, mixing_of(c[end]))) break;
            inv_many_add(&m, c[end]->in[0].n, c[end]->in[0].data, c[end]->in[1].data, c[end]->out[0].data, NULL);
        }
        INV_GPU(gpu, running_mix, c[i]->in[0].dtype, &m, &how);
    }
    return INV_OK;
}

static inv_status mix_run(const inv_call *c)
{
    if (c->gpu) return mix_many(c->gpu, &c, 1);
    const inv_mixing how = mixing_of(c);
    const uint64_t before = how.cumulative && c->step ? c->step->mixed : 0;
    INV_REAL(c->in[0].dtype, mix, c->in[0].n, &how, before, c->in[0].data, c->in[1].data, c->out[0].data);
    return INV_OK;
}

static double stats_flops(const inv_graph *g, const inv_node *n) { return 3 * inv_flops_in(g, n); }
static double batch_norm_flops(const inv_graph *g, const inv_node *n) { return 2 * inv_flops_in(g, n); }
static double batch_norm_grad_flops(const inv_graph *g, const inv_node *n) { return 7 * inv_flops_in(g, n); }

static inv_status batch_norm_grad(inv_grad *b)
{
    const inv_id gy = inv_GO(b, 0);
    const inv_node *n = inv_nod(b->g, b->node);
    const inv_attr attr[2] = {inv_attr_of_float("epsilon", inv_attr_float(n, "epsilon", 1e-5)),
                              inv_attr_of_int("training", inv_attr_int(n, "training", 0))};
    inv_id in[] = {inv_I(b, 0), gy, inv_I(b, 1), inv_I(b, 3), inv_I(b, 4), INV_NONE, INV_NONE, INV_NONE};
    if (!inv_has_in(n, 5)) return inv_take_grads(b, inv_emit(b->g, "BatchNormGrad", 3, 5, in, 2, attr), 3);
    const inv_attr ranks = inv_attr_of_int("ranks", inv_attr_int(n, "ranks", 1));
    in[6] = n->in[5];
    in[7] = n->in[6];
    in[5] = inv_emit1(b->g, "NormGradSums", INV_IN(in[0], gy, in[3]), INV_NOATTR);
    in[5] = inv_emit1(b->g, "AllGather", 1, &in[5], 1, &ranks);
    return inv_take_grads(b, inv_emit(b->g, "BatchNormGrad", 3, 8, in, 2, attr), 3);
}

/* A node that is made to train leaves its statistics in the initializers that it reads. Where the model computes them,
 * they are no running statistics, and the node stays as it is. */
static bool has_running(const inv_graph *g, const inv_node *n)
{
    return inv_val(g, n->in[3])->role == INV_ROLE_PARAM && inv_val(g, n->in[4])->role == INV_ROLE_PARAM;
}

/* Training: attribute training_mode from opset 14 on, before that the presence of further outputs. */
static bool trains(const inv_graph *g, const inv_node *n)
{
    bool more = false;
    for (uint32_t i = 1; i < n->nout; i++) more = more || n->out[i] != INV_NONE;
    if (g->eval) return false;
    if (g->train_bn && has_running(g, n)) return true;
    return n->op != NULL && n->op->since >= 14 ? inv_attr_int(n, "training_mode", 0) != 0 : more;
}

/* spatial = 0 of opset 7 and 8: every element of a row is a channel, with statistics and parameters of its own. */
static inv_status by_element(inv_graph *g, const inv_node *n, inv_id *out)
{
    const inv_shape x = *inv_in_shape(g, n, 0);
    const inv_shape row = inv_shape_of(x.rank - 1, x.dim + 1),
                    rows = inv_shape_of(2, (int64_t[]){x.dim[0], inv_prod(&x, 1, x.rank)});
    const inv_shape flat = inv_shape_of(1, &rows.dim[1]);
    inv_id in[5];
    char want[INV_SHAPE_TEXT], have[INV_SHAPE_TEXT];
    for (uint32_t i = 1; i < 5; i++) {
        const inv_shape *s = inv_in_shape(g, n, i);
        if (!inv_shape_equal(s, &row))
            return inv_node_fail(g, n, INV_E_SHAPE,
                                 "input %u is %s; with spatial = 0 it must be %s, as a row of the input is", i,
                                 inv_shape_text(s, have), inv_shape_text(&row, want));
        in[i] = inv_emit_view(g, n->in[i], &flat);
    }
    if (trains(g, n))
        return inv_node_fail(g, n, INV_E_UNSUPPORTED_OP,
                             "spatial = 0 has no training form; without {train_bn}, with one output, it is as stored");
    in[0] = inv_emit_view(g, n->in[0], &rows);
    const inv_id y = inv_emit1(
        g, "BatchNormApply", 5, in,
        INV_ATTRS(inv_attr_of_float("epsilon", inv_attr_float(n, "epsilon", 1e-5)), inv_attr_of_int("training", 0)));
    out[0] = inv_emit_view(g, y, &x);
    return inv_done(g);
}

static inv_status batch_norm_lower(inv_graph *g, const inv_node *n, inv_id *out)
{
    if (inv_attr_int(n, "spatial", 1) != 1 && inv_in_shape(g, n, 0)->rank > 2) return by_element(g, n, out);
    INV_TRY(need_channels(g, n, 1, 5));
    double eps = inv_attr_float(n, "epsilon", 1e-5), momentum = inv_attr_float(n, "momentum", 0.9);
    bool training = trains(g, n);
    if (g->train_bn && has_running(g, n)) g->norm.trained++;
    else if (g->train_bn && !g->norm.kept++) g->norm.first_kept = inv_node_called(g, n);
    inv_id in[5];
    uint32_t nout = n->nout;
    for (int i = 0; i < 5; i++) in[i] = n->in[i];
    for (uint32_t i = 1; i < nout && !training; i++) {
        if (i < 5 && n->out[i] != INV_NONE) out[i] = in[i % 2 ? 3 : 4];
    }
    if (!training && !has_running(g, n) &&
        (inv_is_computed(g, in[3]) || inv_is_computed(g, in[4]) ||
         !inv_is_computed(g, in[0]))) { /* weights may be normalized */
        out[0] = inv_batch_norm_spelled(g, in, eps);
        return inv_done(g);
    }
    if (training) {
        /* PyTorch's momentum=None, whose statistics are means, is written as 1 or, in a file for training, as 0 */
        const bool cumulative = momentum <= 0 || momentum >= 1;
        const inv_attr how[2] = {inv_attr_of_float("momentum", momentum), inv_attr_of_int("cumulative", 1)};
        if (cumulative && g->train && !g->norm.means++) g->norm.first_mean = inv_node_called(g, n);
        inv_id running[2] = {in[3], in[4]}, stats = inv_emit(g, "BatchStats", 2, INV_IN(in[0]), INV_NOATTR);
        if (stats == INV_NONE) return inv_done(g);
        for (int i = 0; i < 2; i++) in[3 + i] = inv_nod(g, stats)->out[i];
        for (uint32_t i = 0; i < 2; i++) {
            inv_id mixed = inv_emit1(g, "RunningMix", INV_IN(running[i], in[3 + i]), cumulative ? 2 : 1, how);
            if (1 + i < nout) out[1 + i] = mixed;
            if (3 + i < nout) out[3 + i] = in[3 + i];
        }
    }
    out[0] = inv_emit1(g, "BatchNormApply", 5, in,
                       INV_ATTRS(inv_attr_of_float("epsilon", eps), inv_attr_of_int("training", training)));
    return inv_done(g);
}

/* --- forms in ONNX --- */

/* Mean over all axes but 1. */
static const char *raise_channel_mean(inv_onnx_body *r, const char *x, int rank, bool keep, const char *out)
{
    int64_t axes[INV_MAX_RANK];
    size_t n = 0;
    for (int i = 0; i < rank; i++)
        if (i != 1) axes[n++] = i;
    return inv_onnx_reduced(r, out, "ReduceMean", INV_ONNX_INPUTS_OF_REDUCE_MEAN, x, n, axes, keep);
}

static bool batch_stats_raise(const inv_raising *b)
{
    static const int64_t flat = -1;
    inv_onnx_body *r = b->r;
    const int rank = inv_raising_shape(b, 0)->rank;
    const char *x = b->in[0], *mean = raise_channel_mean(r, x, rank, true, inv_onnx_fresh(r));
    if (mean == NULL) return false;
    if (b->out[0] && !inv_onnx_node(r, b->out[0], "Reshape", INV_NAMES(mean, inv_onnx_ints(r, 1, &flat)), INV_NOATTR))
        return false;
    if (!b->out[1]) return true;
    const char *d = inv_onnx2(r, "Sub", x, mean);
    return raise_channel_mean(r, inv_onnx2(r, "Mul", d, d), rank, false, b->out[1]) != NULL;
}

/* x = (y - bias) (sqrt(var + epsilon) / scale) + mean; the factor is made while it is one number per channel. */
static bool inverse_raise(const inv_raising *b)
{
    static const int64_t to[INV_MAX_RANK] = {-1, 1, 1, 1, 1, 1, 1, 1};
    inv_onnx_body *r = b->r;
    const int rank = inv_raising_shape(b, 0)->rank;
    const char *bias = b->in[2], *mean = b->in[3], *epsilon = inv_onnx_real(r, inv_attr_float(b->n, "epsilon", 1e-5));
    const char *std = inv_onnx1(r, "Sqrt", inv_onnx2(r, "Add", b->in[4], epsilon));
    const char *factor = inv_onnx2(r, "Div", std, b->in[1]);
    if (rank > 2) {
        const char *shape = inv_onnx_ints(r, (size_t)rank - 1, to);
        bias = inv_onnx2(r, "Reshape", bias, shape);
        factor = inv_onnx2(r, "Reshape", factor, shape);
        mean = inv_onnx2(r, "Reshape", mean, shape);
    }
    const char *product = inv_onnx2(r, "Mul", inv_onnx2(r, "Sub", b->in[0], bias), factor);
    return inv_onnx_node(r, b->out[0], "Add", INV_NAMES(product, mean), INV_NOATTR) != NULL;
}

/* clang-format off */
static const inv_op_def batch_stats_op = {
    .size = sizeof batch_stats_op, .domain = INV_IR, .name = "BatchStats", .since = 1, .in = "x", .out = "mean var",
    .images = INV_IMAGES(1, 0, {"axis", INV_LAST_AXIS}),
    .flags = INV_OP_NO_CLONE | INV_OP_NO_GRAD, .infer = stats_infer, .run = stats_run, .raise = batch_stats_raise,
    .work = inv_work_sum,
    .workspace = stats_workspace, .flops = stats_flops,
    .cases = (const char *const[]){
        "mean, var = BatchStats(float[4,3,2,5] x)", "mean, var = BatchStats(float[6,20] x)",
        "mean, var = BatchStats(float[4,3,2] x)", "mean, var = BatchStats(float[3,2,700] x)",
        "mean, var = BatchStats(float[5,3,7,60] x)",
        "mean, var = BatchStats(float[2100,2] x)",
        "mean, var = BatchStats(float[900,12] x)", "mean, var = BatchStats<axis = 3>(float[3,30,7,20] x)", NULL},
    .doc = "mean and biased variance per channel, summed in float64"};

static const inv_op_def apply_op = {
    .size = sizeof apply_op, .domain = INV_IR, .name = "BatchNormApply", .since = 1,
    .in = "x scale bias mean var count? there?",
    .images = INV_IMAGES(1, 1, {"axis", INV_LAST_AXIS}),
    .out = "y", .inplace = 1, .state = 3 << 3,
    .infer = batch_norm_infer, .grad = batch_norm_grad, .run = batch_norm_run,
    .work = inv_work_apply,
    .workspace = affine_workspace, .flops = batch_norm_flops,
    .cases = (const char *const[]){
        "y = BatchNormApply<epsilon = 0.001>(float[4,3,2,5] x, float[3] scale, float[3] bias, float[3] mean, "
        "float[3] var)",
        "y = BatchNormApply<epsilon = 0.001>(float[40,3,12] x, float[3] scale, float[3] bias, float[3] mean, "
        "float[3] var)",
        "y = BatchNormApply<epsilon = 0.001>(float[6,20] x, float[20] scale, float[20] bias, float[20] mean, "
        "float[20] var)", NULL},
    .doc = "y = (x - mean) scale / sqrt(var + epsilon) + bias; training: statistics of x, over `ranks` ranks with "
           "`count` elements and flags `there`"};

static const inv_op_def grad_op = {
    .size = sizeof grad_op, .domain = INV_IR, .name = "BatchNormGrad", .since = 1,
    .in = "x gy scale mean var sums? count? there?",
    .images = INV_IMAGES(3, 1, {"axis", INV_LAST_AXIS}),
    .out = "dx dscale dbias", .inplace = 2, .infer = batch_norm_grad_infer, .run = batch_norm_grad_run,
    .work = inv_work_sum,
    .workspace = batch_norm_grad_workspace, .flops = batch_norm_grad_flops,
    .cases = (const char *const[]){
        "dx, dscale, dbias = BatchNormGrad<epsilon = 0.001, training = 1>(float[4,3,2,5] x, float[4,3,2,5] gy, "
        "float[3] scale, float[3] mean, float[3] var)",
        "dx, dscale, dbias = BatchNormGrad<epsilon = 0.001, training = 0>(float[4,3,2,5] x, float[4,3,2,5] gy, "
        "float[3] scale, float[3] mean, float[3] var)",
        "dx, dscale, dbias = BatchNormGrad<epsilon = 0.001, training = 1>(float[3,1,700] x, float[3,1,700] gy, "
        "float[1] scale, float[1] mean, float[1] var)",
        "dx, dscale, dbias = BatchNormGrad<epsilon = 0.001, training = 1>(float[40,3,12] x, float[40,3,12] gy, "
        "float[3] scale, float[3] mean, float[3] var)",
        "dx, dscale, dbias = BatchNormGrad<epsilon = 0.001, training = 1>(float[6,20] x, float[6,20] gy, "
        "float[20] scale, float[20] mean, float[20] var)",
        "dx, dscale, dbias = BatchNormGrad<epsilon = 0.001, training = 1>(float[4,3,5] x, float[4,3,5] gy, "
        "float[3] scale, float[3] mean, float[3] var, double[2,6] sums, double[]{37}, double[2]{1,1})", NULL},
    .doc = "gradient of BatchNormApply; training = 1: also through mean and var (Ioffe, Szegedy 2015); sums: "
           "NormGradSums of ranks whose `there` is above 0"};

static const inv_op_def moments_op = {
    .size = sizeof moments_op, .domain = INV_IR, .name = "BatchMoments", .since = 1, .in = "x", .out = "moments",
    .images = INV_IMAGES(1, 0, {"axis", INV_LAST_AXIS}),
    .flags = INV_OP_NO_CLONE | INV_OP_NO_GRAD, .infer = moments_infer, .run = moments_run, .work = inv_work_sum,
    .workspace = stats_workspace, .flops = stats_flops,
    .cases = (const char *const[]){
        "m = BatchMoments(float[4,3,2,5] x)", "m = BatchMoments(float[6,20] x)",
        "m = BatchMoments<axis = 3>(float[3,30,7,20] x)", NULL},
    .doc = "elements of a channel, their means, and sums of squares around these: the part of one rank"};

static const inv_op_def join_op = {
    .size = sizeof join_op, .domain = INV_IR, .name = "JoinMoments", .since = 1, .in = "parts there?",
    .out = "mean var? count?", .flags = INV_OP_NO_CLONE | INV_OP_NO_GRAD, .infer = join_infer, .run = join_run,
    .flops = inv_flops_none,
    .cases = (const char *const[]){
        "mean, var, n = JoinMoments(double[3,5]{4,1,2,3,2,0,0,0,0,0,7,1.5,2,6,1})",
        "mean, var, n = JoinMoments(double[3,5]{4,1,2,3,2,9,8,7,6,5,7,1.5,2,6,1}, double[3]{1,0,1})",
        "p = BatchMoments(float[6,5] x)\nq = View<shape = [1, 11]>(p)\nmean, var, n = JoinMoments(q)", NULL},
    .doc = "mean and biased variance of all parts, or of those that are `there` (above 0), in their order (Chan, "
           "Golub, LeVeque 1983), as type `to`"};

static const inv_op_def grad_sums_op = {
    .size = sizeof grad_sums_op, .domain = INV_IR, .name = "NormGradSums", .since = 1, .in = "x gy mean",
    .images = INV_IMAGES(3, 0, {"axis", INV_LAST_AXIS}),
    .out = "sums", .flags = INV_OP_NO_GRAD, .infer = grad_sums_infer, .run = grad_sums_run, .work = inv_work_sum,
    .workspace = stats_workspace, .flops = stats_flops,
    .cases = (const char *const[]){
        "s = NormGradSums(float[4,3,2,5] x, float[4,3,2,5] gy, float[3] mean)",
        "s = NormGradSums(float[6,20] x, float[6,20] gy, float[20] mean)", NULL},
    .doc = "sums of gy and of gy (x - mean) per channel, in float64: the part of one rank"};

static const inv_op_def inverse_op = {
    .size = sizeof inverse_op, .domain = INV_IR, .name = "BatchNormInverse", .since = 1,
    .images = INV_IMAGES(1, 1, {"axis", INV_LAST_AXIS}),
    .in = "y scale bias mean var", .out = "x", .inplace = 1, .infer = batch_norm_infer, .run = inverse_run,
    .raise = inverse_raise, .work = inv_work_apply,
    .workspace = affine_workspace, .flops = batch_norm_flops,
    .cases = (const char *const[]){
        "x = BatchNormInverse<epsilon = 0.001>(float[4,3,2,5] y, float[3] scale, float[3] bias, float[3] mean, "
        "float[3] var)",
        "x = BatchNormInverse<epsilon = 0.001>(float[3,1,700] y, float[1] scale, float[1] bias, float[1] mean, "
        "float[1] var)", NULL},
    .doc = "x = (y - bias) sqrt(var + epsilon) / scale + mean"};

static const inv_op_def mix_op = {
    .size = sizeof mix_op, .domain = INV_IR, .name = "RunningMix", .since = 1, .in = "running batch weights?",
    .out = "mixed",
    .flags = INV_OP_NO_GRAD | INV_OP_UPDATE, .state = 1, .inplace = 1,
    .infer = mix_infer, .run = mix_run, .run_many = mix_many, .flops = batch_norm_flops,
    .cases = (const char *const[]){"m = RunningMix<momentum = 0.75>(float[5] running, float[5] batch)",
                                   "m = RunningMix<momentum = 0.75>(float[5] running, float[3,5] batch)",
                                   "m = RunningMix<momentum = 0.75>(float[5] running, float[3,5] batch, "
                                   "double[3]{2,0,1})",
                                   "m = RunningMix<cumulative = 1>(float[5] running, float[3,5] batch, "
                                   "double[3]{2,0,1})", NULL},
    .doc = "running * momentum + batch * (1 - momentum), for each batch of an extra first axis with weight above 0. "
           "cumulative = 1: mean over all batches so far"};
/* clang-format on */

INV_LOWERED_BY(batch_norm_lower, 13, 0, batch_norm_7, "BatchNormalization", 7, "X scale B mean var",
               "Y mean? var? saved_mean? saved_var?",
               "lowers to BatchNormApply; with further outputs (training) also to BatchStats and RunningMix",
               "y = BatchNormalization(float[4,3,2] x, float[3] scale, float[3] bias, float[3] mean, float[3] var)")

INV_LOWERED_BY(batch_norm_lower, 0, 0, batch_norm_14, "BatchNormalization", 14, "X scale B input_mean input_var",
               "Y running_mean? running_var?",
               "lowers to BatchNormApply; with training_mode = 1 also to BatchStats and RunningMix",
               "y = BatchNormalization(float[4,3,2,5] x, float[3] scale, float[3] bias, float[3] mean, float[3] var)",
               "y, m, v = BatchNormalization<training_mode = 1, momentum = 0.75>(float[4,3,2,5] x, float[3] scale, "
               "float[3] bias, float[3] mean, float[3] var)")

/* clang-format off */
const inv_op_def *const inv_ops_norm[] = {
    &batch_stats_op, &moments_op, &join_op, &apply_op, &grad_op, &grad_sums_op, &inverse_op, &mix_op,
    &batch_norm_7_row, &batch_norm_14_row, &inv_op_softmax,
    &inv_op_log_softmax, &inv_op_softmax_12, &inv_op_log_softmax_12, &inv_op_softmax_grad,
    &inv_op_log_softmax_grad, NULL};
/* clang-format on */
