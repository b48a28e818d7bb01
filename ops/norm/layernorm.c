/* SPDX-License-Identifier: Apache-2.0
 * Layer normalisation: a row is everything from `axis` on, one element of scale and bias for each of its elements. RMS
 * normalisation is the same with 0 in place of the mean.
 *
 *     y = LayerNormApply<axis, epsilon>(x, scale, bias?)
 *     dx, dscale, dbias = LayerNormGrad<axis, epsilon>(x, gy, scale)
 *     y = RmsNormApply<axis, epsilon>(x, scale)
 *     dx, dscale = RmsNormGrad<axis, epsilon>(x, gy, scale)
 *
 * Layer normalisation in float32 is oneDNN's where it is built in; dscale and dbias are sums that it splits among
 * threads. The kernels here, for everything else, compute in double per element and round once. The gradient computes
 * mean and variance again: they cost one pass over a row that is read anyway, and stored they would be a tensor per
 * layer. */
#include "ops/base/families.h"
#include "ops/base/parallel.h"
#include "ops/base/rows.h"
#include "ops/base/util.h"
#include "ops/norm/norm.h"
#include "ops/onednn/dnnl.h"

#define TILE 16    /* rows whose statistics are at hand together */
#define COLUMNS 64 /* elements of a row whose sums over rows are */
#define CHUNKS 16  /* at most so many parts of the rows have sums of their own */

typedef inv_layernorm layout;

/* How rows are dealt out for sums over them, from the shape alone. */
typedef struct chunks {
    int64_t n, rows; /* rows of every chunk but the last */
} chunks;

static chunks chunks_of(const layout *l)
{
    if (l->rows <= TILE) return (chunks){1, l->rows};
    const int64_t rows = ((l->rows + CHUNKS - 1) / CHUNKS + TILE - 1) / TILE * TILE;
    return (chunks){(l->rows + rows - 1) / rows, rows};
}

#define INV_BOTH "ops/norm/layernorm_kernels.inc"
#include "ops/base/both_reals.inc"

static int axis_of(const inv_node *n, const inv_shape *x)
{
    const int64_t axis = inv_attr_int(n, "axis", -1);
    return (int)(axis < 0 ? axis + x->rank : axis);
}

static bool is_rms(const inv_node *n) { return strncmp(n->op_type, "Rms", 3) == 0; }

/* Without the operands. */
static layout row_layout(const inv_node *n, const inv_shape *x)
{
    const int at = axis_of(n, x);
    return (layout){.rows = inv_prod(x, 0, at), .len = inv_prod(x, at, x->rank), .rms = is_rms(n)};
}

static layout layout_of_call(const inv_call *c, bool grad)
{
    layout l = row_layout(c->node, &c->in[0].shape);
    l.of = inv_norm_of(c, grad);
    return l;
}

/* What oneDNN is asked for. Its gradient gives all three results. */
static inv_dnnl_op library_op(const inv_node *n, const inv_shape *x)
{
    const layout l = row_layout(n, x);
    const bool grad = n->nin > 1 && strcmp(n->op_type, "LayerNormGrad") == 0;
    inv_dnnl_op o = inv_dnnl_op_of(grad ? INV_DNNL_LAYER_NORM_GRAD : INV_DNNL_LAYER_NORM, l.rows, l.len);
    o.eps = (float)inv_attr_float(n, "epsilon", 1e-5);
    o.bias = grad || inv_has_in(n, 2);
    return o;
}

static bool library_serves(const inv_node *n, inv_dtype t, const inv_dnnl_op *o)
{
    if (t != INV_F32 || is_rms(n)) return false;
    for (uint32_t i = 0; i < 3 && o->kind == (int)INV_DNNL_LAYER_NORM_GRAD; i++)
        if (!inv_has_out(n, i)) return false;
    return inv_dnnl_has(o);
}

/* The extents of a row. */
static inv_shape row_shape(const inv_shape *x, int axis) { return inv_shape_of(x->rank - axis, x->dim + axis); }

/* On the device, a column is reduced over all rows. */
static inv_fold fold_of(const layout *l)
{
    const inv_shape matrix = inv_shape_of(2, (int64_t[]){l->rows, l->len});
    return inv_fold_of(&matrix, (const bool[INV_MAX_RANK]){true, false});
}

/* Inputs first..last-1 have the extents of a row. */
static inv_status need_rows(const inv_graph *g, const inv_node *n, uint32_t first, uint32_t last)
{
    int axis = 0;
    INV_TRY(inv_need_reals(g, n, last));
    const inv_shape *x = inv_in_shape(g, n, 0);
    INV_TRY(inv_axis(g, n, inv_attr_int(n, "axis", -1), x->rank, &axis));
    const inv_shape row = row_shape(x, axis);
    for (uint32_t i = first; i < last && i < n->nin; i++) {
        if (!inv_has_in(n, i) || inv_shape_equal(inv_in_shape(g, n, i), &row)) continue;
        inv_note_shapes(g, 1, &row, inv_in_shape(g, n, i), false);
        return inv_node_fail(g, n, INV_E_SHAPE, "input %u must have the extents of input 0 from axis %d on", i, axis);
    }
    return INV_OK;
}

static inv_status layer_norm_infer(inv_graph *g, inv_node *n)
{
    INV_TRY(need_rows(g, n, 1, 3));
    return inv_infer_same(g, n);
}

static inv_status layer_norm_grad_infer(inv_graph *g, inv_node *n)
{
    INV_TRY(need_rows(g, n, 2, 3));
    return inv_norm_infer_grad(g, n);
}

static inv_status layer_norm_run(const inv_call *c)
{
    const layout l = layout_of_call(c, false);
    if (c->in[0].n == 0) return INV_OK;
    if (c->gpu) {
        INV_GPU(c->gpu, layer_norm, &l, c->out[0].data);
        return INV_OK;
    }
    const inv_dnnl_op o = library_op(c->node, &c->in[0].shape);
    void *const operands[INV_DNNL_OPERANDS] = {c->in[0].data, c->in[1].data, (void *)(uintptr_t)l.of.bias,
                                               c->out[0].data};
    if (library_serves(c->node, l.of.dtype, &o)) return inv_dnnl_run(&o, operands, c->ws);
    INV_REAL(l.of.dtype, layer_norm, &l, c->out[0].data);
    return INV_OK;
}

static size_t moments_nbytes(const inv_dnnl_op *o) { return inv_round64((size_t)o->rows * 2 * sizeof(float)); }

/* Mean and variance of the rows, which the library wants to be told; the rest of the workspace is its own. */
static inv_status library_grad(const inv_call *c, const inv_dnnl_op *o)
{
    float *mean = c->ws, *var = mean + o->rows;
    const float *x = c->in[0].data;
#pragma omp parallel for schedule(static) if (o->rows * o->lanes > INV_OMP_MIN)
    for (int64_t i = 0; i < o->rows; i++) {
        const double m = row_sum_f32(x + i * o->lanes, o->lanes) / (double)o->lanes;
        mean[i] = (float)m;
        var[i] = (float)(row_squares_f32(x + i * o->lanes, o->lanes, m) / (double)o->lanes);
    }
    void *const operands[INV_DNNL_OPERANDS] = {c->in[0].data, c->in[1].data,  c->in[2].data,  mean,
                                               var,           c->out[0].data, c->out[1].data, c->out[2].data};
    return inv_dnnl_run(o, operands, (char *)c->ws + moments_nbytes(o));
}

static inv_status layer_norm_grad_run(const inv_call *c)
{
    const layout l = layout_of_call(c, true);
    void *out[3];
    inv_norm_results(c, out);
    if (c->gpu) {
        const inv_fold f = fold_of(&l);
        INV_GPU(c->gpu, layer_norm_grad, &l, &f, c->ws, out[0], out[1], out[2]);
        return INV_OK;
    }
    const inv_dnnl_op o = library_op(c->node, &c->in[0].shape);
    if (c->in[0].n && library_serves(c->node, l.of.dtype, &o)) return library_grad(c, &o);
    INV_REAL(l.of.dtype, layer_norm_grad, &l, c->ws, out);
    return INV_OK;
}

static size_t layer_norm_workspace(const inv_graph *g, const inv_node *n)
{
    const inv_dnnl_op o = library_op(n, inv_in_shape(g, n, 0));
    return !g->gpu && library_serves(n, inv_in_dtype(g, n, 0), &o) ? inv_dnnl_op_workspace(&o) : 0;
}

static size_t layer_norm_grad_workspace(const inv_graph *g, const inv_node *n)
{
    const layout l = row_layout(n, inv_in_shape(g, n, 0));
    const inv_dnnl_op o = library_op(n, inv_in_shape(g, n, 0));
    if (g->gpu) {
        const inv_fold f = fold_of(&l);
        return ((size_t)f.nout * (size_t)f.parts + (size_t)l.rows) * 2 * sizeof(double);
    }
    if (library_serves(n, inv_in_dtype(g, n, 0), &o)) return moments_nbytes(&o) + inv_dnnl_op_workspace(&o);
    const chunks c = chunks_of(&l);
    return c.n == 1 ? 0 : (size_t)c.n * (size_t)l.len * 2 * sizeof(double);
}

static double layer_norm_flops(const inv_graph *g, const inv_node *n) { return 7 * inv_flops_in(g, n); }
static double layer_norm_grad_flops(const inv_graph *g, const inv_node *n) { return 18 * inv_flops_in(g, n); }

static inv_status layer_norm_grad(inv_grad *b)
{
    const inv_id gy = inv_GO(b, 0);
    const inv_node *n = inv_nod(b->g, b->node);
    const bool rms = is_rms(n);
    const uint32_t count = rms ? 2 : 3;
    const inv_attr attr[2] = {inv_attr_of_int("axis", inv_attr_int(n, "axis", -1)),
                              inv_attr_of_float("epsilon", inv_attr_float(n, "epsilon", 1e-5))};
    const inv_id in[] = {inv_I(b, 0), gy, inv_I(b, 1)};
    return inv_take_grads(b, inv_emit(b->g, rms ? "RmsNormGrad" : "LayerNormGrad", count, 3, in, 2, attr), count);
}

/* --- ONNX LayerNormalization --- */

/* Scale or bias in the extents of a row, from what broadcasts to them. */
static inv_status as_row(inv_graph *g, const inv_node *n, uint32_t i, const inv_shape *row, inv_id *out)
{
    inv_shape s = *inv_in_shape(g, n, i), both;
    inv_id v = n->in[i];
    while (s.rank > row->rank && s.dim[0] == 1) s = inv_shape_of(s.rank - 1, s.dim + 1);
    if (!inv_shape_broadcast(&s, row, &both) || !inv_shape_equal(&both, row)) {
        inv_note_shapes(g, 1, row, &s, true);
        return inv_node_fail(g, n, INV_E_SHAPE, "input %u does not broadcast to the extents of X from axis on", i);
    }
    *out = inv_emit_broadcast(g, inv_emit_view(g, v, &s), row);
    return inv_done(g);
}

/* Mean and 1 / sqrt(var + epsilon) per row, as nodes of their own: who asks for them wants them differentiated too. */
static void emit_statistics(inv_graph *g, const inv_node *n, inv_id x, int axis, inv_id *out)
{
    int64_t axes[INV_MAX_RANK];
    const int rank = inv_shape_of_value(g, x)->rank;
    const inv_dtype t = inv_val(g, x)->dtype;
    for (int i = axis; i < rank; i++) axes[i - axis] = i;
    const inv_attr attr[2] = {inv_attr_of_ints("axes", (size_t)(rank - axis), axes), inv_attr_of_int("keepdims", 1)};
    const bool wants_mean = inv_has_out(n, 1), wants_inv = inv_has_out(n, 2);
    const double eps = inv_attr_float(n, "epsilon", 1e-5);
    const inv_id mean = inv_emit1(g, "ReduceMeanAxes", INV_IN(x), 2, attr);
    if (mean == INV_NONE) return;
    if (wants_mean) out[1] = mean;
    if (!wants_inv) return;
    /* Through the mean the variance has no gradient: the sum of x - mean is 0. */
    const inv_id fixed = inv_emit1(g, "Detach", INV_IN(mean), INV_NOATTR);
    inv_id v = fixed == INV_NONE ? INV_NONE : inv_emit1(g, "Sub", INV_IN(x, fixed), INV_NOATTR);
    if (v != INV_NONE) v = inv_emit1(g, "Mul", INV_IN(v, v), INV_NOATTR);
    if (v != INV_NONE) v = inv_emit1(g, "ReduceMeanAxes", INV_IN(v), 2, attr);
    if (v != INV_NONE) v = inv_emit1(g, "Add", INV_IN(v, inv_graph_const_real(g, t, eps)), INV_NOATTR);
    if (v != INV_NONE) v = inv_emit1(g, "Sqrt", INV_IN(v), INV_NOATTR);
    if (v != INV_NONE) out[2] = inv_emit1(g, "Reciprocal", INV_IN(v), INV_NOATTR);
}

static inv_status layer_norm_lower(inv_graph *g, const inv_node *n, inv_id *out)
{
    const bool rms = strcmp(n->op_type, "RMSNormalization") == 0, has_bias = !rms && inv_has_in(n, 2);
    int axis = 0;
    INV_TRY(inv_need_reals(g, n, rms ? 2 : 3));
    const inv_shape x = *inv_in_shape(g, n, 0);
    INV_TRY(inv_axis(g, n, inv_attr_int(n, "axis", -1), x.rank, &axis));
    INV_TRY(inv_norm_need_stash(g, n));
    const inv_shape row = row_shape(&x, axis);
    const inv_attr attr[2] = {inv_attr_of_int("axis", axis),
                              inv_attr_of_float("epsilon", inv_attr_float(n, "epsilon", 1e-5))};
    inv_id in[3] = {n->in[0], INV_NONE, INV_NONE};
    INV_TRY(as_row(g, n, 1, &row, &in[1]));
    if (has_bias) INV_TRY(as_row(g, n, 2, &row, &in[2]));
    if (!rms && (inv_has_out(n, 1) || inv_has_out(n, 2))) emit_statistics(g, n, in[0], axis, out);
    out[0] = inv_emit1(g, rms ? "RmsNormApply" : "LayerNormApply", has_bias ? 3 : 2, in, 2, attr);
    return inv_done(g);
}

/* clang-format off */
static const inv_op_def apply_op = {
    .size = sizeof apply_op, .domain = INV_IR, .name = "LayerNormApply", .since = 1, .in = "x scale bias?", .out = "y",
    .inplace = 1, .infer = layer_norm_infer, .grad = layer_norm_grad, .run = layer_norm_run,
    .work = inv_work_apply,
    .workspace = layer_norm_workspace, .flops = layer_norm_flops,
    .cases = (const char *const[]){
        "y = LayerNormApply<axis = -1, epsilon = 0.001>(float[2,3,5] x, float[5] scale, float[5] bias)",
        "y = LayerNormApply<axis = 1, epsilon = 0.001>(float[3,4,5] x, float[4,5] scale)",
        "y = LayerNormApply<axis = 1, epsilon = 0.001>(float[40,70] x, float[70] scale, float[70] bias)",
        "y = LayerNormApply<axis = 0, epsilon = 0.001>(float[1100] x, float[1100] scale, float[1100] bias)",
        "y = LayerNormApply(float[0,3] x, float[3] scale, float[3] bias)", NULL},
    .doc = "y = (x - mean) scale / sqrt(var + epsilon) + bias over everything from `axis` on (Ba, Kiros, Hinton 2016)"};

static const inv_op_def grad_op = {
    .size = sizeof grad_op, .domain = INV_IR, .name = "LayerNormGrad", .since = 1, .in = "x gy scale",
    .out = "dx dscale dbias", .inplace = 2, .infer = layer_norm_grad_infer, .run = layer_norm_grad_run,
    .work = inv_work_sum,
    .workspace = layer_norm_grad_workspace, .flops = layer_norm_grad_flops,
    .cases = (const char *const[]){
        "dx, dscale, dbias = LayerNormGrad<axis = -1, epsilon = 0.001>(float[2,3,5] x, float[2,3,5] gy, "
        "float[5] scale)",
        "dx, dscale, dbias = LayerNormGrad<axis = 1, epsilon = 0.001>(float[40,70] x, float[40,70] gy, "
        "float[70] scale)",
        "dx, dscale, dbias = LayerNormGrad<axis = -1, epsilon = 0.001>(float[700,3] x, float[700,3] gy, "
        "float[3] scale)",
        "dx, dscale, dbias = LayerNormGrad<axis = 0, epsilon = 0.001>(float[1100] x, float[1100] gy, "
        "float[1100] scale)",
        "dx, dscale, dbias = LayerNormGrad(float[0,3] x, float[0,3] gy, float[3] scale)", NULL},
    .doc = "gradient of LayerNormApply, mean and variance computed again"};
/* clang-format on */

INV_LOWERED_BY(layer_norm_lower, 0, 0, layer_norm_17, "LayerNormalization", 17, "X Scale B?", "Y Mean? InvStdDev?",
               "to LayerNormApply; Mean and InvStdDev, where wanted, to reductions. ONNX LayerNormalization-17",
               "y = LayerNormalization(float[2,3,5] x, float[5] scale, float[5] bias)",
               "y = LayerNormalization<axis = 1, epsilon = 0.001>(float[2,3,5] x, float[1,1,5] scale)",
               "y, m = LayerNormalization<axis = 1>(float[2,3,5] x, float[3,5] scale, float[5] bias)")

/* clang-format off */
static const inv_op_def rms_apply_op = {
    .size = sizeof rms_apply_op, .domain = INV_IR, .name = "RmsNormApply", .since = 1, .in = "x scale", .out = "y",
    .inplace = 1, .infer = layer_norm_infer, .grad = layer_norm_grad, .run = layer_norm_run,
    .work = inv_work_apply,
    .flops = layer_norm_flops,
    .cases = (const char *const[]){
        "y = RmsNormApply<axis = -1, epsilon = 0.001>(float[2,3,5] x, float[5] scale)",
        "y = RmsNormApply<axis = 1, epsilon = 0.001>(float[3,4,5] x, float[4,5] scale)",
        "y = RmsNormApply<axis = 0, epsilon = 0.001>(float[1100] x, float[1100] scale)",
        "y = RmsNormApply<axis = 0, epsilon = 0.1>(float[1] x, float[1] scale)",
        "y = RmsNormApply(float[0,3] x, float[3] scale)", NULL},
    .doc = "y = x scale / sqrt(mean of x^2 + epsilon) over everything from `axis` on (Zhang, Sennrich 2019)"};

static const inv_op_def rms_grad_op = {
    .size = sizeof rms_grad_op, .domain = INV_IR, .name = "RmsNormGrad", .since = 1, .in = "x gy scale",
    .out = "dx dscale", .inplace = 3, .infer = layer_norm_grad_infer, .run = layer_norm_grad_run, .work = inv_work_sum,
    .workspace = layer_norm_grad_workspace, .flops = layer_norm_grad_flops,
    .cases = (const char *const[]){
        "dx, dscale = RmsNormGrad<axis = -1, epsilon = 0.001>(float[2,3,5] x, float[2,3,5] gy, float[5] scale)",
        "dx, dscale = RmsNormGrad<axis = 1, epsilon = 0.001>(float[40,70] x, float[40,70] gy, float[70] scale)",
        "dx, dscale = RmsNormGrad(float[0,3] x, float[0,3] gy, float[3] scale)", NULL},
    .doc = "gradient of RmsNormApply, the mean square computed again"};
/* clang-format on */

INV_LOWERED_BY(layer_norm_lower, 0, 0, rms_norm_23, "RMSNormalization", 23, "X scale", "Y",
               "to RmsNormApply. ONNX RMSNormalization-23", "y = RMSNormalization(float[2,3,5] x, float[5] scale)",
               "y = RMSNormalization<axis = 1, epsilon = 0.001>(float[2,3,5] x, float[1,1,5] scale)",
               "y = RMSNormalization<axis = 0>(float[2,3] x, float scale)")

const inv_op_def *const inv_ops_layernorm[] = {&apply_op,        &grad_op,           &rms_apply_op, &rms_grad_op,
                                               &rms_norm_23_row, &layer_norm_17_row, NULL};
