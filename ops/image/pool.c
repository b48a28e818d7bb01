/* SPDX-License-Identifier: Apache-2.0
 * Pooling: MaxPoolN, AveragePoolN and SumPoolN with explicit pads; ONNX's operators, which lower to them, are in
 * pool_onnx.c. A window's maximum is its first one (rising index) and takes the whole gradient, as in PyTorch. Which
 * one it is, is the second output of MaxPoolN: a byte, that the gradient reads in place of the whole input. Averages
 * and the gradients of images with their channels last are oneDNN's in float32, where it is built in. */
#include "ops/image/pool.h"
#include "ops/base/bounds.h"
#include "ops/base/families.h"
#include "ops/base/parallel.h"
#include "ops/base/util.h"
#include "ops/image/pool_gpu.h"
#include "ops/onednn/dnnl.h"

#define PART 128 /* windows of a row that are compared together */
#define LANES 64 /* of one task */

/* Planes are pooled by themselves: images of one channel each, or, channels last, images whose elements are rows of
 * one lane per channel. */
typedef struct planes {
    int64_t n, lanes;
} planes;

/* Notes the kernel elements of n neighbouring maxima from number `at` on; -1: none. */
INV_SIMD static void put_taps(const inv_window *w, int64_t n, const int32_t *tap, void *taps, int64_t at)
{
    if (inv_pool_byte(w)) {
        uint8_t *to = (uint8_t *)taps + at;
        for (int64_t c = 0; c < n; c++) to[c] = (uint8_t)(tap[c] < 0 ? INV_POOL_BYTE : tap[c]);
    } else {
        memcpy((int32_t *)taps + at, tap, (size_t)n * sizeof *tap);
    }
}

/* Of each kernel element from the first, in elements of the input; far outside for the number that means none. */
static void tap_offsets(const inv_window *w, int64_t offset[INV_POOL_BYTE + 1])
{
    for (int64_t t = 0; t <= INV_POOL_BYTE; t++) {
        const int64_t row = t / w->k[2];
        offset[t] = row / w->k[1] * w->dil[0] * w->in[1] * w->in[2] + row % w->k[1] * w->dil[1] * w->in[2] +
                    t % w->k[2] * w->dil[2];
        if (t >= w->kvol) offset[t] = INT64_MIN / 2;
    }
}

static inv_dtype tap_type(const inv_window *w) { return inv_pool_byte(w) ? INV_U8 : INV_I32; }

static inv_pool_divide divide_by(const inv_node *n)
{
    if (strncmp(n->op_type, "Sum", 3) == 0) return INV_POOL_SUM;
    return inv_attr_int(n, "count_include_pad", 0) != 0 ? INV_POOL_PADDED : INV_POOL_INSIDE;
}

#define INV_BOTH "ops/image/pool_kernels.inc"
#include "ops/base/both_reals.inc"

/* The first spatial axis. */
static int space_axis(const inv_node *n) { return inv_attr_int(n, "channels_last", 0) ? 1 : 2; }

const char *inv_pool_of(const inv_node *n, const inv_shape *x, inv_window *w)
{
    size_t count;
    const int64_t *kernel = inv_attr_ints(n, "kernel_shape", &count);
    *w = (inv_window){0};
    if (x->rank < 3 || x->rank > 5) return "the input needs one batch, one channel and 1 to 3 spatial axes";
    if (count != (size_t)(x->rank - 2)) return "kernel_shape needs one entry per spatial axis";
    return inv_window_of(n, x->rank - 2, x->dim + space_axis(n), kernel, inv_attr_int(n, "ceil_mode", 0) != 0, w);
}

static inv_shape pooled(const inv_node *n, const inv_shape *x, const inv_window *w)
{
    inv_shape s = *x;
    for (int i = 0; i < w->sd; i++) s.dim[space_axis(n) + i] = w->out[3 - w->sd + i];
    return s;
}

static planes planes_of(const inv_node *n, const inv_shape *x)
{
    if (space_axis(n) == 1) return (planes){x->dim[0], x->dim[x->rank - 1]};
    return (planes){inv_prod(x, 0, 2), 1};
}

/* Shape of x: operand 0, or the attribute of gradients, which do not read x. */
static inv_shape input_shape(const inv_graph *g, const inv_node *n)
{
    return inv_attr_find(n, "shape") ? inv_attr_shape(n, "shape") : *inv_in_shape(g, n, 0);
}

/* What is pooled, and to which shape. */
static inv_status shapes_of(const inv_graph *g, const inv_node *n, inv_window *w, inv_shape *x, inv_shape *y)
{
    INV_TRY(inv_need_real(g, n, 0));
    *x = input_shape(g, n);
    const char *why = inv_pool_of(n, x, w);
    if (why) return inv_node_fail(g, n, INV_E_SHAPE, "%s", why);
    if (g->gpu && !inv_pool_fits(w, planes_of(n, x).lanes))
        return inv_node_fail(g, n, INV_E_SHAPE,
                             "pooling on a device supports axes, strides (also their product), dilations, windows, "
                             "their spans and pads of up to 2^29 elements. Use {device} cpu");
    *y = pooled(n, x, w);
    return INV_OK;
}

static inv_status pool_infer(inv_graph *g, inv_node *n)
{
    inv_window w;
    inv_shape x, y;
    INV_TRY(shapes_of(g, n, &w, &x, &y));
    inv_set_out(g, n, 0, inv_in_dtype(g, n, 0), &y);
    inv_set_out(g, n, 1, tap_type(&w), &y);
    return INV_OK;
}

/* Input i says which element of its window each maximum is. */
static inv_status need_taps(const inv_graph *g, const inv_node *n, uint32_t i, const inv_window *w, const inv_shape *x)
{
    const inv_shape y = pooled(n, x, w);
    if (inv_in_dtype(g, n, i) == tap_type(w) && inv_shape_equal(&y, inv_in_shape(g, n, i))) return INV_OK;
    return inv_node_fail(g, n, INV_E_SHAPE, "input %u must be the second output of MaxPoolN", i);
}

static inv_status pool_grad_infer(inv_graph *g, inv_node *n)
{
    inv_window w;
    inv_shape x, y;
    INV_TRY(shapes_of(g, n, &w, &x, &y));
    if (!inv_shape_equal(&y, inv_in_shape(g, n, 0)))
        return inv_node_fail(g, n, INV_E_SHAPE, "the gradient has not the shape of the pooled output");
    if (n->nin > 1) INV_TRY(need_taps(g, n, 1, &w, &x));
    inv_set_out(g, n, 0, inv_in_dtype(g, n, 0), &x);
    return INV_OK;
}

static inv_status indices_infer(inv_graph *g, inv_node *n)
{
    inv_window w;
    inv_shape x = input_shape(g, n);
    const char *why = inv_pool_of(n, &x, &w);
    if (why) return inv_node_fail(g, n, INV_E_SHAPE, "%s", why);
    INV_TRY(need_taps(g, n, 0, &w, &x));
    inv_set_out(g, n, 0, INV_I64, inv_in_shape(g, n, 0));
    return INV_OK;
}

static double pool_flops(const inv_graph *g, const inv_node *n)
{
    inv_window w;
    inv_shape x = input_shape(g, n);
    if (inv_pool_of(n, &x, &w)) return 0;
    const planes l = planes_of(n, &x);
    return (double)l.n * (double)l.lanes * (double)w.outvol * (double)w.kvol;
}

/* What oneDNN is asked for, which is false where it does not serve. x: shape of the input of the pooling. */
static bool library_op(const inv_node *n, inv_dtype t, const inv_shape *x, inv_dnnl_op *o)
{
    const bool grad = strstr(n->op_type, "Grad") != NULL, max = strncmp(n->op_type, "Max", 3) == 0;
    const inv_pool_divide by = divide_by(n);
    const planes l = planes_of(n, x);
    if (t != INV_F32 || space_axis(n) != 1 || by == INV_POOL_SUM || (max && !grad)) return false;
    *o = inv_dnnl_op_of(max    ? INV_DNNL_MAX_POOL_GRAD
                        : grad ? INV_DNNL_AVERAGE_POOL_GRAD
                               : INV_DNNL_AVERAGE_POOL,
                        l.n, l.lanes);
    o->padded = by == INV_POOL_PADDED;
    return inv_pool_of(n, x, &o->w) == NULL && inv_dnnl_has(o);
}

static size_t pool_workspace(const inv_graph *g, const inv_node *n)
{
    inv_dnnl_op o;
    const inv_shape x = input_shape(g, n);
    return !g->gpu && library_op(n, inv_in_dtype(g, n, 0), &x, &o) ? inv_dnnl_op_workspace(&o) : 0;
}

static inv_status max_pool_run(const inv_call *c)
{
    inv_window w;
    if (inv_pool_of(c->node, &c->in[0].shape, &w)) return INV_E_SHAPE;
    const planes l = planes_of(c->node, &c->in[0].shape);
    void *y = c->out[0].data, *taps = c->nout > 1 ? c->out[1].data : NULL;
    if (c->gpu) INV_GPU(c->gpu, max_pool, c->in[0].dtype, &w, l.n, l.lanes, c->in[0].data, y, taps);
    else INV_REAL(c->in[0].dtype, max_pool, &w, &l, c->in[0].data, y, taps);
    return INV_OK;
}

static inv_status max_pool_grad_run(const inv_call *c)
{
    inv_window w;
    if (inv_pool_of(c->node, &c->out[0].shape, &w)) return INV_E_SHAPE;
    const planes l = planes_of(c->node, &c->out[0].shape);
    const void *gy = c->in[0].data, *taps = c->in[1].data;
    void *const operands[INV_DNNL_OPERANDS] = {c->in[0].data, c->in[1].data, c->out[0].data};
    inv_dnnl_op o;
    if (!c->gpu && library_op(c->node, c->in[0].dtype, &c->out[0].shape, &o)) return inv_dnnl_run(&o, operands, c->ws);
    if (c->gpu) INV_GPU(c->gpu, max_pool_grad, c->in[0].dtype, &w, l.n, l.lanes, taps, gy, c->out[0].data);
    else INV_REAL(c->in[0].dtype, max_pool_grad, &w, &l, taps, gy, c->out[0].data);
    return INV_OK;
}

static inv_status indices_run(const inv_call *c)
{
    inv_window w;
    const inv_shape x = inv_attr_shape(c->node, "shape");
    const bool first = inv_attr_int(c->node, "storage_order", 0) != 0;
    int64_t *index = c->out[0].data;
    if (inv_pool_of(c->node, &x, &w)) return INV_E_SHAPE;
    const int64_t n = inv_prod(&x, 0, 2);
    if (c->gpu) {
        INV_GPU(c->gpu, pool_indices, &w, n, first, c->in[0].data, index);
        return INV_OK;
    }
    for (int64_t i = 0; i < n * w.outvol; i++) {
        const int64_t tap = inv_pool_tap(&w, c->in[0].data, i), at = inv_pool_position(&w, i % w.outvol, tap, first);
        index[i] = at < 0 ? -1 : i / w.outvol * w.invol + at;
    }
    return INV_OK;
}

/* images: the tensor whose windows are averaged, the operand or, of the gradient, the result. */
static inv_status average(const inv_call *c, const inv_tensor *images, bool grad)
{
    inv_window w;
    if (inv_pool_of(c->node, &images->shape, &w)) return INV_E_SHAPE;
    const planes l = planes_of(c->node, &images->shape);
    const inv_pool_divide by = divide_by(c->node);
    const inv_dtype t = c->in[0].dtype;
    const void *from = c->in[0].data;
    void *to = c->out[0].data, *const operands[INV_DNNL_OPERANDS] = {c->in[0].data, to};
    inv_dnnl_op o;
    if (!c->gpu && library_op(c->node, t, &images->shape, &o)) return inv_dnnl_run(&o, operands, c->ws);
    if (c->gpu && grad) INV_GPU(c->gpu, average_pool_grad, t, &w, l.n, l.lanes, by, from, to);
    else if (c->gpu) INV_GPU(c->gpu, average_pool, t, &w, l.n, l.lanes, by, from, to);
    else if (grad) INV_REAL(t, average_pool_grad, &w, &l, by, from, to);
    else INV_REAL(t, average_pool, &w, &l, by, from, to);
    return INV_OK;
}

static inv_status average_pool_run(const inv_call *c) { return average(c, &c->in[0], false); }
static inv_status average_pool_grad_run(const inv_call *c) { return average(c, &c->out[0], true); }

inv_id inv_emit_pool(inv_graph *g, const char *op, uint32_t nout, uint32_t nin, const inv_id *in, const inv_window *w,
                     bool ceil_mode, uint32_t nmore, const inv_attr *more)
{
    inv_window_attrs a;
    inv_attr attr[8];
    inv_window_attrs_of(w, &a);
    for (uint32_t i = 0; i < 4; i++) attr[i] = a.attr[i];
    attr[4] = inv_attr_of_int("ceil_mode", ceil_mode);
    for (uint32_t i = 0; i < nmore && i < 3; i++) attr[5 + i] = more[i];
    return inv_emit(g, op, nout, nin, in, 5 + nmore, attr);
}

static inv_status pool_grad(inv_grad *b)
{
    inv_graph *g = b->g;
    inv_window w;
    inv_id gy = inv_GO(b, 0), node;
    if (gy == INV_NONE || !inv_wants(b, 0)) return INV_OK;
    const inv_shape s = *inv_shape_of_value(g, inv_I(b, 0));
    const inv_node *n = inv_nod(g, b->node);
    const char *why = inv_pool_of(n, &s, &w);
    if (why) return inv_node_fail(g, n, INV_E_SHAPE, "%s", why);
    const inv_pool_divide by = divide_by(n);
    const bool up = inv_attr_int(n, "ceil_mode", 0) != 0, max = strcmp(n->op_type, "MaxPoolN") == 0;
    inv_attr more[3] = {inv_attr_of_shape("shape", &s)};
    uint32_t nmore = 1;
    if (!max) more[nmore++] = inv_attr_of_int("count_include_pad", by == INV_POOL_PADDED);
    if (space_axis(n) == 1) more[nmore++] = inv_attr_of_int("channels_last", 1);
    if (max) node = inv_emit_pool(g, "MaxPoolGrad", 1, INV_IN(gy, inv_node_want(g, b->node, 1)), &w, up, nmore, more);
    else
        node = inv_emit_pool(g, by == INV_POOL_SUM ? "SumPoolGrad" : "AveragePoolGrad", 1, INV_IN(gy), &w, up, nmore,
                             more);
    if (node != INV_NONE) inv_grad_set(b, 0, inv_nod(g, node)->out[0]);
    return inv_grad_done(b);
}

/* clang-format off */
static const inv_op_def max_pool_n = {
    .size = sizeof max_pool_n, .domain = INV_IR, .name = "MaxPoolN", .since = 1, .in = "x", .out = "y tap?",
    .images = INV_IMAGES(1, INV_ALL_SLOTS, {"channels_last", INV_MARK}),
    .infer = pool_infer, .grad = pool_grad, .run = max_pool_run, .bounds = inv_bounds_first,
    .work = inv_work_scalar, .flops = pool_flops,
    .cases = (const char *const[]){
        "y = MaxPoolN<kernel_shape = [2,2], strides = [2,2]>(float[2,3,4,6] x)",
        "y = MaxPoolN<kernel_shape = [3,2], strides = [2,1], pads = [1,0,1,1], dilations = [1,2]>(float[1,2,6,5] x)",
        "y = MaxPoolN<kernel_shape = [3], strides = [2], ceil_mode = 1>(float[1,2,6] x)",
        "y = MaxPoolN<kernel_shape = [2,2,2]>(float[1,1,3,3,3] x)",
        "y = MaxPoolN<kernel_shape = [16,17], strides = [3,3], pads = [2,1,2,2]>(float[1,2,16,18] x)",
        "y, tap = MaxPoolN<kernel_shape = [3,2], pads = [1,0,1,1], dilations = [1,2]>(float[1,2,6,5] x)",
        "y = MaxPoolN<kernel_shape = [2], strides = [3]>(float[0,2,6] x)",
        "y, tap = MaxPoolN<kernel_shape = [3,3], strides = [2,2], pads = [1,1,1,1]>(float[2,2,21,9] x)",
        "y, tap = MaxPoolN<kernel_shape = [3,2], strides = [2,1], pads = [1,1,0,1], channels_last = 1>"
        "(float[2,20,6,5] x)", NULL},
    .doc = "largest element of each window, without pads, as ONNX MaxPool. tap: index of the first largest in its "
           "window, or 255 (-1) for none"};

static const inv_op_def max_pool_g = {
    .size = sizeof max_pool_g, .domain = INV_IR, .name = "MaxPoolGrad", .since = 1, .in = "gy tap", .out = "gx",
    .images = INV_IMAGES(INV_ALL_SLOTS, 1, {"channels_last", INV_MARK}, {"shape", INV_PER_AXIS}),
    .infer = pool_grad_infer, .run = max_pool_grad_run, .work = inv_work_scalar,
    .workspace = pool_workspace, .flops = inv_flops_out,
    .cases = (const char *const[]){
        "gx = MaxPoolGrad<kernel_shape = [2,2], strides = [2,2], shape = [2,3,4,6]>(float[2,3,2,3] gy, "
        "uint8[2,3,2,3] tap)",
        "gx = MaxPoolGrad<kernel_shape = [2], strides = [3], shape = [0,2,6]>(float[0,2,2] gy, uint8[0,2,2] tap)",
        NULL},
    .doc = "gradient of MaxPoolN: gy goes to the first maximum of its window"};

static const inv_op_def pool_indices = {
    .size = sizeof pool_indices, .domain = INV_IR, .name = "PoolIndices", .since = 1, .in = "tap", .out = "index",
    .flags = INV_OP_NO_GRAD, .infer = indices_infer, .run = indices_run, .flops = inv_flops_none,
    .cases = (const char *const[]){
        "i = PoolIndices<kernel_shape = [2,2], strides = [2,1], shape = [2,3,4,6]>(uint8[2,3,2,5] var_tap)",
        "i = PoolIndices<kernel_shape = [2,3], strides = [2,1], pads = [1,0,0,2], shape = [1,2,5,6], "
        "storage_order = 1>(uint8[1,2,3,6] var_tap)", NULL},
    .doc = "int64: the number in the whole input of each window's maximum; storage_order 1: column-major in a plane"};

static const inv_op_def average_pool_n = {
    .size = sizeof average_pool_n,
    .domain = INV_IR,
    .name = "AveragePoolN",
    .images = INV_IMAGES(1, 1, {"channels_last", INV_MARK}),
    .since = 1,
    .in = "x",
    .out = "y",
    .infer = pool_infer,
    .grad = pool_grad,
    .run = average_pool_run, .work = inv_work_scalar,
    .workspace = pool_workspace,
    .flops = pool_flops,
    .cases =
        (const char *const[]){
            "y = AveragePoolN<kernel_shape = [2,2], strides = [2,2]>(float[2,3,4,6] x)",
            "y = AveragePoolN<kernel_shape = [3,3], strides = [2,2], pads = [1,1,1,1]>(float[1,2,5,5] x)",
            "y = AveragePoolN<kernel_shape = [3,3], strides = [2,2], pads = [1,1,1,1], count_include_pad = 1, "
            "ceil_mode = 1>"
            "(float[1,2,6,6] x)",
            "y = AveragePoolN<kernel_shape = [3,2], strides = [2,1], pads = [1,0,1,1], dilations = [1,2]>"
            "(float[1,2,6,5] x)",
            "y = AveragePoolN<kernel_shape = [16,17], strides = [3,3], pads = [2,1,2,2]>(float[1,2,16,18] x)",
            "y = AveragePoolN<kernel_shape = [3,2], strides = [2,1], pads = [1,1,0,1], channels_last = 1>"
            "(float[2,20,6,5] x)",
            NULL},
    .doc = "mean of each window over the elements inside the input (count_include_pad: inside the padded input)"};

static const inv_op_def average_pool_g = {
    .size = sizeof average_pool_g, .domain = INV_IR, .name = "AveragePoolGrad", .since = 1, .in = "gy", .out = "gx",
    .images = INV_IMAGES(1, 1, {"channels_last", INV_MARK}, {"shape", INV_PER_AXIS}),
    .infer = pool_grad_infer, .run = average_pool_grad_run, .work = inv_work_scalar,
    .workspace = pool_workspace, .flops = pool_flops,
    .cases = (const char *const[]){
        "gx = AveragePoolGrad<kernel_shape = [2,2], strides = [2,2], shape = [2,3,4,6]>(float[2,3,2,3] gy)",
        "gx = AveragePoolGrad<kernel_shape = [3,3], strides = [1,2], pads = [1,1,1,1], count_include_pad = 1, "
        "shape = [1,2,4,5]>(float[1,2,4,3] gy)", NULL},
    .doc = "gradient of AveragePoolN to its input, whose shape is an attribute"};

static const inv_op_def sum_pool_n = {
    .size = sizeof sum_pool_n, .domain = INV_IR, .name = "SumPoolN", .since = 1, .in = "x", .out = "y",
    .infer = pool_infer, .grad = pool_grad, .run = average_pool_run,
    .work = inv_work_scalar, .flops = pool_flops,
    .cases = (const char *const[]){
        "y = SumPoolN<kernel_shape = [3,2], strides = [2,1], pads = [1,0,1,1], dilations = [1,2]>(float[1,2,6,5] x)",
        "y = SumPoolN<kernel_shape = [3], strides = [2], ceil_mode = 1>(float[1,2,6] x)", NULL},
    .doc = "sum of each window"};

static const inv_op_def sum_pool_g = {
    .size = sizeof sum_pool_g, .domain = INV_IR, .name = "SumPoolGrad", .since = 1, .in = "gy", .out = "gx",
    .infer = pool_grad_infer, .run = average_pool_grad_run,
    .work = inv_work_scalar, .flops = pool_flops,
    .cases = (const char *const[]){
        "gx = SumPoolGrad<kernel_shape = [3,3], strides = [1,2], pads = [1,1,1,1], shape = [1,2,4,5]>(float[1,2,4,3] "
        "gy)", NULL},
    .doc = "gradient of SumPoolN to its input, whose shape is an attribute"};

const inv_op_def *const inv_ops_pool[] = {
    &max_pool_n, &max_pool_g,   &pool_indices,       &average_pool_n, &average_pool_g,      &sum_pool_n,
    &sum_pool_g, NULL};
/* clang-format on */
