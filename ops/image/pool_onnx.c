/* SPDX-License-Identifier: Apache-2.0
 * ONNX's pooling operators, lowered to those of pool.c. */
#include "ops/base/emit.h"
#include "ops/base/rows.h"
#include "ops/image/pool.h"

static inv_id first_out(inv_graph *g, inv_id node) { return node == INV_NONE ? INV_NONE : inv_nod(g, node)->out[0]; }

/* The windows of node n over input 0. ceil_mode has a meaning with explicit pads only. */
static inv_status windows(const inv_graph *g, const inv_node *n, inv_window *w, bool *up)
{
    const char *why = inv_pool_of(n, inv_in_shape(g, n, 0), w);
    const char *auto_pad = inv_attr_string(n, "auto_pad", "NOTSET");
    *up = inv_attr_int(n, "ceil_mode", 0) != 0 && strcmp(auto_pad, "NOTSET") == 0;
    if (!why) return INV_OK;
    inv_window_note(g, w);
    return inv_node_fail(g, n, INV_E_SHAPE, "%s", why);
}

/* Small integers are exact in real arithmetic, and nobody differentiates them. */
static inv_status as_real(inv_graph *g, const inv_node *n, inv_id *x)
{
    const inv_dtype t = inv_in_dtype(g, n, 0), real = g->real == INV_F64 ? INV_F64 : INV_F32;
    *x = n->in[0];
    if (inv_dtype_is_float(t)) return INV_OK;
    if (t != INV_I8 && t != INV_U8)
        return inv_node_fail(g, n, INV_E_UNSUPPORTED_TYPE, "input 0 is %s; it must be floating point, int8 or uint8",
                             inv_dtype_name(t));
    *x = inv_cast(g, *x, real);
    return inv_done(g);
}

static inv_status max_pool_lower(inv_graph *g, const inv_node *n, inv_id *out)
{
    inv_window w;
    bool up;
    inv_id x;
    INV_TRY(windows(g, n, &w, &up));
    INV_TRY(as_real(g, n, &x));
    const inv_dtype t = inv_in_dtype(g, n, 0);
    const inv_shape s = *inv_in_shape(g, n, 0);
    const bool indices = inv_has_out(n, 1);
    const inv_id pool = inv_emit_pool(g, "MaxPoolN", indices ? 2 : 1, INV_IN(x), &w, up, 0, NULL);
    out[0] = first_out(g, pool);
    if (indices && pool != INV_NONE) {
        const inv_attr more[2] = {inv_attr_of_shape("shape", &s),
                                  inv_attr_of_int("storage_order", inv_attr_int(n, "storage_order", 0))};
        out[1] = first_out(g, inv_emit_pool(g, "PoolIndices", 1, INV_IN(inv_nod(g, pool)->out[1]), &w, up, 2, more));
    }
    if (!inv_dtype_is_float(t)) out[0] = inv_cast(g, out[0], t);
    return inv_done(g);
}

static inv_status average_pool_lower(inv_graph *g, const inv_node *n, inv_id *out)
{
    inv_window w;
    bool up;
    INV_TRY(windows(g, n, &w, &up));
    const inv_attr pad = inv_attr_of_int("count_include_pad", inv_attr_int(n, "count_include_pad", 0) != 0);
    out[0] = first_out(g, inv_emit_pool(g, "AveragePoolN", 1, INV_IN(n->in[0]), &w, up, 1, &pad));
    return inv_done(g);
}

static inv_status global_max_lower(inv_graph *g, const inv_node *n, inv_id *out)
{
    inv_shape s = *inv_in_shape(g, n, 0);
    if (s.rank < 3 || s.rank > 5)
        return inv_node_fail(g, n, INV_E_SHAPE, "the input needs one batch, one channel and 1 to 3 spatial axes");
    out[0] = inv_emit1(g, "MaxPoolN", INV_IN(n->in[0]),
                       INV_ATTRS(inv_attr_of_ints("kernel_shape", (size_t)s.rank - 2, s.dim + 2)));
    return inv_done(g);
}

/* --- LpPool: the p-th root of the sum of |x|^p --- */

static inv_status order_of(const inv_graph *g, const inv_node *n, double *p)
{
    const inv_attr *a = inv_attr_find(n, "p"); /* a float in opset 1 */
    *p = a == NULL ? 2 : a->kind == INV_ATTR_FLOAT ? a->f : (double)a->i;
    if (*p > 0) return INV_OK;
    return inv_node_fail(g, n, INV_E_UNSUPPORTED_OP, "the order p must be positive, not %g", *p);
}

static inv_id power(inv_graph *g, inv_id x, double p)
{
    if (p == 1 || g->failed) return x;
    if (p == 2) return inv_emit_pair(g, "Mul", x, x);
    if (p == 0.5) return inv_unary(g, "Sqrt", x);
    return inv_emit_pair(g, "Pow", x, inv_number(g, x, p));
}

/* |x|^p */
static inv_id terms(inv_graph *g, inv_id x, double p) { return power(g, p == 2 ? x : inv_unary(g, "Abs", x), p); }

static inv_status lp_pool_lower(inv_graph *g, const inv_node *n, inv_id *out)
{
    inv_window w;
    bool up;
    double p;
    INV_TRY(windows(g, n, &w, &up));
    INV_TRY(inv_need_real(g, n, 0));
    INV_TRY(order_of(g, n, &p));
    const inv_id x = terms(g, n->in[0], p), sum = inv_emit_pool(g, "SumPoolN", 1, INV_IN(x), &w, up, 0, NULL);
    out[0] = power(g, first_out(g, sum), 1 / p);
    return inv_done(g);
}

static inv_status global_lp_lower(inv_graph *g, const inv_node *n, inv_id *out)
{
    double p;
    int64_t axes[INV_MAX_RANK];
    INV_TRY(inv_need_real(g, n, 0));
    INV_TRY(order_of(g, n, &p));
    const int rank = inv_in_shape(g, n, 0)->rank;
    if (rank < 3) return inv_node_fail(g, n, INV_E_SHAPE, "rank 3 or more is wanted: batch, channels, space");
    for (int i = 2; i < rank; i++) axes[i - 2] = i;
    const inv_id x = terms(g, n->in[0], p);
    out[0] =
        power(g,
              inv_emit1(g, "ReduceSumAxes", INV_IN(x),
                        INV_ATTRS(inv_attr_of_ints("axes", (size_t)rank - 2, axes), inv_attr_of_int("keepdims", 1))),
              1 / p);
    return inv_done(g);
}

/* --- MaxUnpool: elements go to their places in zeros --- */

/* The shape that a pooling by these windows had as its input, and to which indices refer. */
static inv_status unpooled(const inv_graph *g, const inv_node *n, const inv_shape *x, inv_shape *y)
{
    size_t nkernel, nstride, npad;
    const int64_t *kernel = inv_attr_ints(n, "kernel_shape", &nkernel), *stride = inv_attr_ints(n, "strides", &nstride);
    const int64_t *pad = inv_attr_ints(n, "pads", &npad);
    const size_t sd = x->rank > 2 ? (size_t)x->rank - 2 : 0;
    if (sd == 0 || nkernel != sd || (nstride && nstride != sd) || (npad && npad != 2 * sd))
        return inv_node_fail(g, n, INV_E_SHAPE, "kernel_shape, strides and pads need entries for each spatial axis");
    *y = *x;
    for (size_t i = 0; i < sd; i++) {
        const int64_t step = nstride ? stride[i] : 1, off = npad ? pad[i] + pad[sd + i] : 0;
        y->dim[2 + i] = (x->dim[2 + i] - 1) * step + kernel[i] - off;
        if (y->dim[2 + i] < 0) return inv_node_fail(g, n, INV_E_SHAPE, "the pads leave nothing of axis %zu", 2 + i);
    }
    return INV_OK;
}

static inv_status max_unpool_lower(inv_graph *g, const inv_node *n, inv_id *out)
{
    inv_shape y, whole;
    int64_t dims[INV_MAX_RANK * 2], starts[INV_MAX_RANK] = {0};
    size_t count = 0;
    bool given = false;
    INV_TRY(inv_need_real(g, n, 0));
    const inv_shape x = *inv_in_shape(g, n, 0);
    if (inv_in_dtype(g, n, 1) != INV_I64 || !inv_shape_equal(inv_in_shape(g, n, 1), &x))
        return inv_node_fail(g, n, INV_E_SHAPE, "the indices must be int64 of the shape of input 0");
    INV_TRY(unpooled(g, n, &x, &y));
    INV_TRY(inv_ints_of(g, n, "output_shape", 2, dims, &count, &given));
    whole = given && count == (size_t)y.rank ? inv_shape_of(y.rank, dims) : y;
    bool fits = !given || count == (size_t)y.rank;
    for (int i = 0; i < y.rank; i++) fits = fits && whole.dim[i] >= y.dim[i];
    if (!fits) return inv_node_fail(g, n, INV_E_SHAPE, "output_shape is smaller than what the windows give");
    INV_TRY(inv_need_size(g, n, &whole));
    const inv_shape flat = inv_shape_of(1, (int64_t[]){inv_shape_nelem(&y)}),
                    list = inv_shape_of(1, (int64_t[]){inv_shape_nelem(&x)}),
                    column = inv_shape_of(2, (int64_t[]){inv_shape_nelem(&x), 1});
    const inv_id zeros =
        inv_emit1(g, "BroadcastTo", INV_IN(inv_number(g, n->in[0], 0)), INV_ATTRS(inv_attr_of_shape("shape", &flat)));
    const inv_id index = inv_emit_view(g, n->in[1], &column), updates = inv_emit_view(g, n->in[0], &list);
    out[0] = inv_emit_view(g, inv_emit1(g, "ScatterNDN", INV_IN(zeros, index, updates), INV_NOATTR), &y);
    if (!inv_shape_equal(&y, &whole))
        out[0] =
            inv_emit1(g, "PadRange", INV_IN(out[0]),
                      INV_ATTRS(inv_attr_of_shape("shape", &whole), inv_attr_of_ints("starts", (size_t)y.rank, starts),
                                inv_attr_of_float("value", 0)));
    return inv_done(g);
}

INV_LOWERED(max_pool, "MaxPool", 1, "X", "Y Indices?",
            "to MaxPoolN; Indices, where wanted, to PoolIndices. ONNX MaxPool-1, -8, -10, -11, -12, -22",
            "y = MaxPool<kernel_shape = [2,2], strides = [2,2]>(float[2,3,4,6] x)",
            "y = MaxPool<kernel_shape = [3,3], strides = [2,2], auto_pad = \"SAME_UPPER\">(float[1,2,5,6] x)",
            "y, i = MaxPool<kernel_shape = [2,2], storage_order = 1>(float[1,2,3,4] x)")

INV_LOWERED(average_pool, "AveragePool", 1, "X", "Y", "to AveragePoolN. ONNX AveragePool-1, -7, -10, -11, -19, -22",
            "y = AveragePool<kernel_shape = [2,2], strides = [2,2], count_include_pad = 1, pads = [1,1,1,1]>"
            "(float[2,3,4,6] x)",
            "y = AveragePool<kernel_shape = [3,3], strides = [2,2], auto_pad = \"SAME_LOWER\">(float[1,2,5,6] x)")

INV_LOWERED_BY(global_max_lower, 0, 0, global_max_pool, "GlobalMaxPool", 1, "X", "Y",
               "to MaxPoolN with a window as large as the input. ONNX GlobalMaxPool-1, -22",
               "y = GlobalMaxPool(float[2,3,4,5] x)")

INV_LOWERED(lp_pool, "LpPool", 1, "X", "Y",
            "p-th root of the sum of |x|^p over each window; to SumPoolN. ONNX LpPool-1, -2, -11, -18, -22",
            "y = LpPool<kernel_shape = [2,2], strides = [2,2]>(float[2,3,4,6] x)",
            "y = LpPool<kernel_shape = [3], strides = [2], pads = [1,1], p = 3>(float[1,2,5] x)",
            "y = LpPool<kernel_shape = [2,3], dilations = [2,1], p = 1>(float[1,2,5,4] x)")

INV_LOWERED_BY(global_lp_lower, 0, 0, global_lp_pool, "GlobalLpPool", 1, "X", "Y",
               "p-th root of the sum of |x|^p over space; to ReduceSumAxes. ONNX GlobalLpPool-1, -2, -22",
               "y = GlobalLpPool(float[2,3,4,5] x)", "y = GlobalLpPool<p = 3>(float[1,2,5] x)")

INV_LOWERED(
    max_unpool, "MaxUnpool", 9, "X I output_shape?", "output",
    "elements at their indices in zeros; to ScatterNDN. output_shape must be a constant. ONNX MaxUnpool-9, -11, "
    "-22",
    "y = MaxUnpool<kernel_shape = [2,2], strides = [2,2]>(float[1,1,1,1] x, int64[1,1,1,1] i)")

const inv_op_def *const inv_ops_pool_onnx[] = {
    &max_pool_row, &average_pool_row, &global_max_pool_row, &lp_pool_row, &global_lp_pool_row, &max_unpool_row, NULL};
