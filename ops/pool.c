/* SPDX-License-Identifier: Apache-2.0
 * Pooling: ONNX MaxPool, AveragePool and GlobalMaxPool lower to MaxPoolN and AveragePoolN with explicit pads. A
 * window's maximum is its first one (rising index) and takes the whole gradient; MaxPoolGrad finds it again from x. */
#include "ops/builtin.h"
#include "ops/parallel.h"
#include "ops/pool_gpu.h"
#include "ops/util.h"

#define INV_BOTH "ops/pool_kernels.inc"
#include "ops/both_reals.inc"

/* NULL, or what is wrong. */
static const char *pool_of(const inv_node *n, const inv_shape *x, inv_window *w)
{
    size_t count;
    const int64_t *kernel = inv_attr_ints(n, "kernel_shape", &count);
    if (x->rank < 3 || x->rank > 5) return "the input needs one batch, one channel and 1 to 3 spatial axes";
    if (count != (size_t)(x->rank - 2)) return "kernel_shape needs one entry per spatial axis";
    return inv__window_of(n, x->rank - 2, x->dim + 2, kernel, inv_attr_int(n, "ceil_mode", 0) != 0, w);
}

static inv_shape pooled(const inv_shape *x, const inv_window *w)
{
    inv_shape s = *x;
    for (int i = 0; i < w->sd; i++) s.dim[2 + i] = w->out[3 - w->sd + i];
    return s;
}

/* Shape of x: operand 0, or the attribute of AveragePoolGrad, which does not read x. */
static inv_shape input_shape(const inv_graph *g, const inv_node *n)
{
    return inv_attr_find(n, "shape") ? inv__attr_shape(n, "shape") : *inv__in_shape(g, n, 0);
}

static inv_status pool_infer(inv_graph *g, inv_node *n)
{
    inv_window w;
    INV_TRY(inv__need(g, n, 1));
    INV_TRY(inv__need_real(g, n, 0));
    inv_shape x = input_shape(g, n);
    const char *why = pool_of(n, &x, &w);
    if (why) return inv_node_fail(g, n, INV_E_SHAPE, "%s", why);
    inv_shape y = pooled(&x, &w);
    inv__set_out(g, n, 0, inv__in_dtype(g, n, 0), &y);
    return INV_OK;
}

static inv_status pool_grad_infer(inv_graph *g, inv_node *n)
{
    inv_window w;
    uint32_t last = inv_attr_find(n, "shape") ? 0 : 1; /* gy */
    INV_TRY(inv__need(g, n, last + 1));
    INV_TRY(inv__need_real(g, n, 0));
    INV_TRY(inv__need_same_type(g, n, last + 1));
    inv_shape x = input_shape(g, n);
    const char *why = pool_of(n, &x, &w);
    if (why) return inv_node_fail(g, n, INV_E_SHAPE, "%s", why);
    inv_shape y = pooled(&x, &w);
    if (!inv_shape_equal(&y, inv__in_shape(g, n, last)))
        return inv_node_fail(g, n, INV_E_SHAPE, "the gradient has not the shape of the pooled output");
    inv__set_out(g, n, 0, inv__in_dtype(g, n, 0), &x);
    return INV_OK;
}

static double pool_flops(const inv_graph *g, const inv_node *n)
{
    inv_window w;
    inv_shape x = input_shape(g, n);
    if (pool_of(n, &x, &w)) return 0;
    return (double)inv__prod(&x, 0, 2) * (double)w.outvol * (double)w.kvol;
}

static size_t max_grad_workspace(const inv_graph *g, const inv_node *n)
{
    inv_window w;
    const inv_shape *x = inv__in_shape(g, n, 0);
    if (!g->gpu || pool_of(n, x, &w)) return 0;
    return inv__max_pool_workspace(&w, inv__prod(x, 0, 2));
}

static inv_status max_pool_run(const inv_call *c)
{
    inv_window w;
    if (pool_of(c->node, &c->in[0].shape, &w)) return INV_E_SHAPE;
    int64_t planes = inv__prod(&c->in[0].shape, 0, 2);
    if (c->gpu)
        INV_GPU(c->gpu, max_pool)(c->gpu, c->in[0].dtype, &w, planes, c->in[0].data, c->out[0].data);
    else if (c->in[0].dtype == INV_F32)
        max_pool_f32(&w, planes, c->in[0].data, c->out[0].data);
    else
        max_pool_f64(&w, planes, c->in[0].data, c->out[0].data);
    return INV_OK;
}

static inv_status max_pool_grad_run(const inv_call *c)
{
    inv_window w;
    if (pool_of(c->node, &c->in[0].shape, &w)) return INV_E_SHAPE;
    int64_t planes = inv__prod(&c->in[0].shape, 0, 2);
    if (c->gpu)
        INV_GPU(c->gpu, max_pool_grad)(c->gpu, c->in[0].dtype, &w, planes, c->in[0].data, c->in[1].data,
                                       c->out[0].data, c->ws);
    else if (c->in[0].dtype == INV_F32)
        max_pool_grad_f32(&w, planes, c->in[0].data, c->in[1].data, c->out[0].data);
    else
        max_pool_grad_f64(&w, planes, c->in[0].data, c->in[1].data, c->out[0].data);
    return INV_OK;
}

static inv_status average_pool_run(const inv_call *c)
{
    inv_window w;
    if (pool_of(c->node, &c->in[0].shape, &w)) return INV_E_SHAPE;
    int64_t planes = inv__prod(&c->in[0].shape, 0, 2);
    bool pad = inv_attr_int(c->node, "count_include_pad", 0) != 0;
    if (c->gpu)
        INV_GPU(c->gpu, average_pool)(c->gpu, c->in[0].dtype, &w, planes, pad, c->in[0].data,
                                      c->out[0].data);
    else if (c->in[0].dtype == INV_F32)
        average_pool_f32(&w, planes, pad, c->in[0].data, c->out[0].data);
    else
        average_pool_f64(&w, planes, pad, c->in[0].data, c->out[0].data);
    return INV_OK;
}

static inv_status average_pool_grad_run(const inv_call *c)
{
    inv_window w;
    if (pool_of(c->node, &c->out[0].shape, &w)) return INV_E_SHAPE;
    int64_t planes = inv__prod(&c->out[0].shape, 0, 2);
    bool pad = inv_attr_int(c->node, "count_include_pad", 0) != 0;
    if (c->gpu)
        INV_GPU(c->gpu, average_pool_grad)(c->gpu, c->in[0].dtype, &w, planes, pad, c->in[0].data,
                                           c->out[0].data);
    else if (c->in[0].dtype == INV_F32)
        average_pool_grad_f32(&w, planes, pad, c->in[0].data, c->out[0].data);
    else
        average_pool_grad_f64(&w, planes, pad, c->in[0].data, c->out[0].data);
    return INV_OK;
}

/* `op` with the window's attributes, explicit pads, ceil_mode and count_include_pad as given. */
static inv_id emit_pool(inv_graph *g, const char *op, uint32_t nin, const inv_id *in, const inv_window *w,
                        bool ceil_mode, bool pad, const inv_shape *shape)
{
    inv_window_attrs a;
    inv__window_attrs(w, &a);
    inv_attr attr[7] = {a.attr[0], a.attr[1], a.attr[2], a.attr[3], inv_attr_of_int("ceil_mode", ceil_mode),
                        inv_attr_of_int("count_include_pad", pad)};
    if (shape) attr[6] = inv__attr_of_shape("shape", shape);
    return inv_emit1(g, op, nin, in, shape ? 7 : 6, attr);
}

static inv_status pool_grad(inv_grad *b)
{
    inv_graph *g = b->g;
    inv_window w;
    inv_id x = inv_I(b, 0), gy = inv_GO(b, 0);
    const inv_node *n = inv_nod(g, b->node);
    if (gy == INV_NONE || !inv_wants(b, 0)) return INV_OK;
    inv_shape s = *inv__shape(g, x);
    const char *why = pool_of(n, &s, &w);
    if (why) return inv_node_fail(g, n, INV_E_SHAPE, "%s", why);
    bool up = inv_attr_int(n, "ceil_mode", 0) != 0, pad = inv_attr_int(n, "count_include_pad", 0) != 0;
    bool max = strcmp(n->op_type, "MaxPoolN") == 0;
    inv_grad_set(b, 0, max ? emit_pool(g, "MaxPoolGrad", INV_IN(x, gy), &w, up, pad, NULL)
                           : emit_pool(g, "AveragePoolGrad", INV_IN(gy), &w, up, pad, &s));
    return inv__grad_done(b);
}

static inv_status pool_lower(inv_graph *g, const inv_node *n, inv_id *out)
{
    inv_window w;
    INV_TRY(inv__need(g, n, 1));
    const char *why = pool_of(n, inv__in_shape(g, n, 0), &w);
    if (why) return inv_node_fail(g, n, INV_E_SHAPE, "%s", why);
    if (inv_attr_int(n, "storage_order", 0) != 0)
        return inv_node_fail(g, n, INV_E_UNSUPPORTED_OP, "storage_order = 1 is not supported");
    if (inv__has_out(n, 1))
        return inv_node_fail(g, n, INV_E_UNSUPPORTED_OP, "the second output (Indices) is not supported");
    const char *auto_pad = inv_attr_string(n, "auto_pad", "NOTSET");
    bool up = inv_attr_int(n, "ceil_mode", 0) != 0 && strcmp(auto_pad, "NOTSET") == 0;
    bool pad = inv_attr_int(n, "count_include_pad", 0) != 0, max = strcmp(n->op_type, "MaxPool") == 0;
    out[0] = emit_pool(g, max ? "MaxPoolN" : "AveragePoolN", INV_IN(n->in[0]), &w, up, pad, NULL);
    return inv__done(g);
}

static inv_status global_max_lower(inv_graph *g, const inv_node *n, inv_id *out)
{
    INV_TRY(inv__need(g, n, 1));
    inv_shape s = *inv__in_shape(g, n, 0);
    if (s.rank < 3 || s.rank > 5)
        return inv_node_fail(g, n, INV_E_SHAPE, "the input needs one batch, one channel and 1 to 3 spatial axes");
    out[0] = inv_emit1(g, "MaxPoolN", INV_IN(n->in[0]),
                       INV_ATTRS(inv_attr_of_ints("kernel_shape", (size_t)s.rank - 2, s.dim + 2)));
    return inv__done(g);
}

static const inv_op_def max_pool_n = {
    .size = sizeof max_pool_n, .domain = INV_IR, .name = "MaxPoolN", .since = 1, .in = "x", .out = "y",
    .infer = pool_infer, .grad = pool_grad, .cpu = max_pool_run, .cuda = max_pool_run, .flops = pool_flops,
    .cases = (const char *const[]){
        "y = MaxPoolN<kernel_shape = [2,2], strides = [2,2]>(float[2,3,4,6] x)",
        "y = MaxPoolN<kernel_shape = [3,2], strides = [2,1], pads = [1,0,1,1], dilations = [1,2]>(float[1,2,6,5] x)",
        "y = MaxPoolN<kernel_shape = [3], strides = [2], ceil_mode = 1>(float[1,2,6] x)",
        "y = MaxPoolN<kernel_shape = [2,2,2]>(float[1,1,3,3,3] x)",
        "y = MaxPoolN<kernel_shape = [16,17], strides = [3,3], pads = [2,1,2,2]>(float[1,2,16,18] x)", NULL},
    .doc = "largest element of each window, pads never win; windows as in ONNX MaxPool with explicit pads"};

static const inv_op_def max_pool_g = {
    .size = sizeof max_pool_g, .domain = INV_IR, .name = "MaxPoolGrad", .since = 1, .in = "x gy", .out = "gx",
    .infer = pool_grad_infer, .cpu = max_pool_grad_run, .cuda = max_pool_grad_run, .workspace = max_grad_workspace,
    .flops = pool_flops,
    .cases = (const char *const[]){
        "gx = MaxPoolGrad<kernel_shape = [2,2], strides = [2,2]>(float[2,3,4,6] x, float[2,3,2,3] gy)",
        "gx = MaxPoolGrad<kernel_shape = [3,3], dilations = [2,1], pads = [1,2,1,2]>(float[1,2,6,5] x, "
        "float[1,2,4,7] gy)",
        "gx = MaxPoolGrad<kernel_shape = [2], strides = [3]>(float[0,2,6] x, float[0,2,2] gy)", NULL},
    .doc = "gradient of MaxPoolN: gy goes to the first maximum of its window"};

static const inv_op_def average_pool_n = {
    .size = sizeof average_pool_n,
    .domain = INV_IR,
    .name = "AveragePoolN",
    .since = 1,
    .in = "x",
    .out = "y",
    .infer = pool_infer,
    .grad = pool_grad,
    .cpu = average_pool_run,
    .cuda = average_pool_run,
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
            NULL},
    .doc = "mean of each window over the elements inside the input (count_include_pad: inside the padded input)"};

static const inv_op_def average_pool_g = {
    .size = sizeof average_pool_g, .domain = INV_IR, .name = "AveragePoolGrad", .since = 1, .in = "gy", .out = "gx",
    .infer = pool_grad_infer, .cpu = average_pool_grad_run, .cuda = average_pool_grad_run, .flops = pool_flops,
    .cases = (const char *const[]){
        "gx = AveragePoolGrad<kernel_shape = [2,2], strides = [2,2], shape = [2,3,4,6]>(float[2,3,2,3] gy)",
        "gx = AveragePoolGrad<kernel_shape = [3,3], strides = [1,2], pads = [1,1,1,1], count_include_pad = 1, "
        "shape = [1,2,4,5]>(float[1,2,4,3] gy)", NULL},
    .doc = "gradient of AveragePoolN to its input, whose shape is an attribute"};

static const inv_op_def max_pool = {
    .size = sizeof max_pool, .domain = "", .name = "MaxPool", .since = 1, .in = "X", .out = "Y Indices?",
    .infer = inv__infer_lowered, .lower = pool_lower,
    .cases = (const char *const[]){
        "y = MaxPool<kernel_shape = [2,2], strides = [2,2]>(float[2,3,4,6] x)",
        "y = MaxPool<kernel_shape = [3,3], strides = [2,2], auto_pad = \"SAME_UPPER\">(float[1,2,5,6] x)", NULL},
    .doc = "lowers to MaxPoolN; the output Indices is not supported"};

static const inv_op_def average_pool = {
    .size = sizeof average_pool,
    .domain = "",
    .name = "AveragePool",
    .since = 7,
    .in = "X",
    .out = "Y",
    .infer = inv__infer_lowered,
    .lower = pool_lower,
    .cases =
        (const char *const[]){
            "y = AveragePool<kernel_shape = [2,2], strides = [2,2], count_include_pad = 1, pads = "
            "[1,1,1,1]>(float[2,3,4,6] x)",
            "y = AveragePool<kernel_shape = [3,3], strides = [2,2], auto_pad = \"SAME_LOWER\">(float[1,2,5,6] x)",
            NULL},
    .doc = "lowers to AveragePoolN"};

static const inv_op_def global_max_pool = {
    .size = sizeof global_max_pool, .domain = "", .name = "GlobalMaxPool", .since = 1, .in = "X", .out = "Y",
    .infer = inv__infer_lowered, .lower = global_max_lower,
    .cases = (const char *const[]){"y = GlobalMaxPool(float[2,3,4,5] x)", NULL},
    .doc = "lowers to MaxPoolN with a window as large as the input"};

const inv_op_def *const inv_ops_pool[] = {&max_pool_n, &max_pool_g, &average_pool_n, &average_pool_g,
                                          &max_pool, &average_pool, &global_max_pool, NULL};
