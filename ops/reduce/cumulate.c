/* SPDX-License-Identifier: Apache-2.0
 * CumSum and CumProd along a constant axis. Real numbers are joined in double, integers wrap around.
 * Sources: the ONNX operator specifications. */
#include "core/edits/onnx_body.h"
#include "ops/base/families.h"
#include "ops/base/rows.h"
#include "ops/base/util.h"
#include "ops/reduce/cumulate_gpu.h"

#include "ops/reduce/cumulate_types.inc"

#define PART 64      /* elements of a piece at least, */
#define PIECES 65536 /* and pieces in all, on a device */

static inv_cumulate cumulate_of(const inv_node *n, const inv_shape *s, bool product)
{
    const int axis = (int)inv_attr_int(n, "axis", 0);
    inv_cumulate c = {.rows = inv_prod(s, 0, axis),
                      .d = s->dim[axis],
                      .inner = inv_prod(s, axis + 1, s->rank),
                      .product = product,
                      .exclusive = inv_attr_int(n, "exclusive", 0) != 0,
                      .reverse = inv_attr_int(n, "reverse", 0) != 0};
    const int64_t lines = c.rows * c.inner, want = lines > 0 ? PIECES / lines : 1, can = c.d / PART;
    c.parts = want < can ? want : can;
    if (c.parts < 1) c.parts = 1;
    c.part = (c.d + c.parts - 1) / c.parts;
    return c;
}

static inv_status cumulate_infer(inv_graph *g, inv_node *n)
{
    INV_TRY(inv_infer_same(g, n));
    const inv_shape s = *inv_in_shape(g, n, 0);
    const inv_dtype t = inv_in_dtype(g, n, 0);
    const int64_t axis = inv_attr_int(n, "axis", 0);
    if (axis < 0 || axis >= s.rank)
        return inv_node_fail(g, n, INV_E_SHAPE, "axis %lld is outside rank %d", (long long)axis, s.rank);
    if (t != INV_I32 && t != INV_I64 && t != INV_U32 && t != INV_U64) return inv_need_real(g, n, 0);
    return INV_OK;
}

static size_t cumulate_workspace(const inv_graph *g, const inv_node *n)
{
    const inv_cumulate c = cumulate_of(n, inv_in_shape(g, n, 0), false);
    return g->gpu && c.parts > 1 ? (size_t)(c.rows * c.inner * c.parts) * sizeof(double) : 0;
}

static inv_status cumulate(const inv_call *call, bool product)
{
    const inv_cumulate c = cumulate_of(call->node, &call->in[0].shape, product);
    const void *x = call->in[0].data;
    void *y = call->out[0].data;
    if (call->out[0].n == 0) return INV_OK;
    if (call->gpu) {
        INV_GPU(call->gpu, cumulate, &c, call->in[0].dtype, x, y, call->ws);
        return INV_OK;
    }
#pragma omp parallel for schedule(static) if (call->out[0].n > INV_OMP_MIN)
    for (int64_t line = 0; line < c.rows * c.inner; line++) {
        switch (call->in[0].dtype) {
        case INV_F32: cumulate_line_f32(&c, x, y, line, product, 0, c.d); break;
        case INV_F64: cumulate_line_f64(&c, x, y, line, product, 0, c.d); break;
        case INV_I64:
        case INV_U64: cumulate_line_i64(&c, x, y, line, product, 0, c.d); break;
        default: cumulate_line_i32(&c, x, y, line, product, 0, c.d);
        }
    }
    return INV_OK;
}
static inv_status cumulate_sum_run(const inv_call *c) { return cumulate(c, false); }
static inv_status product_run(const inv_call *c) { return cumulate(c, true); }

static inv_status product_back_infer(inv_graph *g, inv_node *n)
{
    INV_TRY(inv_need_reals(g, n, 2));
    if (!inv_shape_equal(inv_in_shape(g, n, 0), inv_in_shape(g, n, 1)))
        return inv_node_fail(g, n, INV_E_SHAPE, "gy and x must have the same shape");
    return cumulate_infer(g, n);
}

static inv_status product_back_run(const inv_call *call)
{
    const inv_cumulate c = cumulate_of(call->node, &call->in[0].shape, true);
    const void *gy = call->in[0].data, *x = call->in[1].data;
    void *dx = call->out[0].data;
    if (call->out[0].n == 0) return INV_OK;
    if (call->gpu) {
        INV_GPU(call->gpu, cumulate_product_grad, &c, call->in[0].dtype, gy, x, dx);
        return INV_OK;
    }
#pragma omp parallel for schedule(static) if (call->out[0].n > INV_OMP_MIN)
    for (int64_t line = 0; line < c.rows * c.inner; line++) {
        INV_REAL(call->in[0].dtype, cumulate_product_back, &c, gy, x, dx, line);
    }
    return INV_OK;
}

static inv_status differences_infer(inv_graph *g, inv_node *n)
{
    INV_TRY(inv_need_real(g, n, 0));
    return cumulate_infer(g, n);
}

static inv_status differences_run(const inv_call *call)
{
    const inv_cumulate c = cumulate_of(call->node, &call->in[0].shape, false);
    const void *y = call->in[0].data;
    void *x = call->out[0].data;
    if (call->out[0].n == 0) return INV_OK;
    if (call->gpu) {
        INV_GPU(call->gpu, cumulate_differences, &c, call->in[0].dtype, y, x);
        return INV_OK;
    }
#pragma omp parallel for schedule(static) if (call->out[0].n > INV_OMP_MIN)
    for (int64_t line = 0; line < c.rows * c.inner; line++) {
        for (int64_t p = 0; p < c.d; p++) {
            INV_REAL(call->in[0].dtype, cumulate_difference, &c, y, x, line, p);
        }
    }
    return INV_OK;
}

/* --- gradients --- */
static inv_status emit_like(inv_graph *g, const inv_node *n, const char *op, uint32_t nin, const inv_id *in,
                            bool reverse, inv_id *out)
{
    *out = inv_emit1(g, op, nin, in,
                     INV_ATTRS(inv_attr_of_int("axis", inv_attr_int(n, "axis", 0)),
                               inv_attr_of_int("exclusive", inv_attr_int(n, "exclusive", 0) != 0),
                               inv_attr_of_int("reverse", reverse)));
    return inv_done(g);
}

static inv_status sum_grad(inv_grad *b)
{
    const inv_node n = *inv_nod(b->g, b->node);
    inv_id v = INV_NONE;
    if (inv_GO(b, 0) == INV_NONE || !inv_wants(b, 0)) return INV_OK;
    INV_TRY(emit_like(b->g, &n, "CumSumAxis", INV_IN(inv_GO(b, 0)), inv_attr_int(&n, "reverse", 0) == 0, &v));
    inv_grad_set(b, 0, v);
    return INV_OK;
}

static inv_status product_grad(inv_grad *b)
{
    const inv_node n = *inv_nod(b->g, b->node);
    inv_id v = INV_NONE;
    if (inv_GO(b, 0) == INV_NONE || !inv_wants(b, 0)) return INV_OK;
    INV_TRY(emit_like(b->g, &n, "CumProdGrad", INV_IN(inv_GO(b, 0), n.in[0]), inv_attr_int(&n, "reverse", 0) != 0, &v));
    inv_grad_set(b, 0, v);
    return INV_OK;
}

/* --- ONNX --- */
static inv_status cumulate_lower(inv_graph *g, const inv_node *n, const char *op, inv_id *out)
{
    int64_t at;
    size_t count;
    int axis;
    INV_TRY(inv_node_need_const(g, n, n->in[1], "axis"));
    if (!inv_const_ints(g, n->in[1], 1, &at, &count) || count != 1)
        return inv_node_fail(g, n, INV_E_SHAPE, "the axis (input 1) must be one integer");
    INV_TRY(inv_axis(g, n, at, inv_in_shape(g, n, 0)->rank, &axis));
    out[0] = inv_emit1(g, op, INV_IN(n->in[0]),
                       INV_ATTRS(inv_attr_of_int("axis", axis),
                                 inv_attr_of_int("exclusive", inv_attr_int(n, "exclusive", 0) != 0),
                                 inv_attr_of_int("reverse", inv_attr_int(n, "reverse", 0) != 0)));
    return inv_done(g);
}
static inv_status onnx_sum_lower(inv_graph *g, const inv_node *n, inv_id *out)
{
    return cumulate_lower(g, n, "CumSumAxis", out);
}
static inv_status onnx_product_lower(inv_graph *g, const inv_node *n, inv_id *out)
{
    return cumulate_lower(g, n, "CumProdAxis", out);
}

/* x = y - (y moved on by one along the axis, 0 in front). */
static bool differences_raise(const inv_raising *b)
{
    inv_onnx_body *r = b->r;
    const inv_shape *s = inv_raising_shape(b, 0);
    const int64_t axis = inv_attr_int(b->n, "axis", 0), reverse = inv_attr_int(b->n, "reverse", 0) != 0;
    const int64_t from = reverse, to = s->dim[axis] - 1 + reverse;
    int64_t pads[INV_MAX_RANK * 2] = {0};
    pads[axis + (reverse ? s->rank : 0)] = 1;
    const char *y = b->in[0];
    if (s->dim[axis] < 1) return inv_onnx_node(r, b->out[0], "Identity", INV_NAMES(y), INV_NOATTR) != NULL;
    const char *rest = inv_onnx_slice(r, inv_onnx_fresh(r), y, axis, from, to);
    rest = inv_onnx2(r, "Pad", rest, inv_onnx_ints(r, (size_t)s->rank * 2, pads));
    return inv_onnx_node(r, b->out[0], "Sub", INV_NAMES(y, rest), INV_NOATTR) != NULL;
}

/* --- rows --- */
#define LINES(op)                                                                                           \
    "y = " op "<axis = 1>(float[2,3,2] x)", "y = " op "<axis = 0, exclusive = 1>(float[4,2] x)",            \
        "y = " op "<axis = 1, reverse = 1>(float[2,4] x)",                                                  \
        "y = " op "<axis = 0, exclusive = 1, reverse = 1>(float[5] x)", "y = " op "<axis = 0>(float[1] x)", \
        "y = " op "<axis = 1>(float[2,0] x)", "y = " op "<axis = 0>(int32[4,3] x)",                         \
        "y = " op "<axis = 1, exclusive = 1>(int64[2,3] x)"
/* clang-format off */
#define CANONICAL(id, op, ins, form, how, gradient, kernel, scratch, text)                                            \
    static const inv_op_def id##_row = {                                                                              \
        .size = sizeof(inv_op_def), .domain = INV_IR, .name = op, .since = 1, .in = ins, .out = "y",                  \
        .raise = form, .infer = how,    .grad = gradient, .run = kernel,                                              \
        .work = inv_work_scalar, .workspace = scratch,                                                               \
        .flops = inv_flops_in, .cases = id##_cases, .doc = text};
/* clang-format on */
INV_CASE_LIST(sum, LINES("CumSumAxis"), "y = CumSumAxis<axis = 0>(float[300,2] x)",
              "y = CumSumAxis<axis = 1, reverse = 1, exclusive = 1>(float[2,200] x)")
CANONICAL(sum, "CumSumAxis", "x", NULL, cumulate_infer, sum_grad, cumulate_sum_run, cumulate_workspace,
          "sums along axis of all elements up to here (exclusive: before here); reverse: from the end")
INV_CASE_LIST(product, LINES("CumProdAxis"), "y = CumProdAxis<axis = 0>(int64[300,2] x)")
CANONICAL(product, "CumProdAxis", "x", NULL, cumulate_infer, product_grad, product_run, cumulate_workspace,
          "products along axis of all elements up to here (exclusive: before here); reverse: from the end")
INV_CASE_LIST(product_back, "y = CumProdGrad<axis = 1>(float[2,3] gy, float[2,3] x)",
              "y = CumProdGrad<axis = 0, exclusive = 1, reverse = 1>(float[4] gy, float[4] x)")
CANONICAL(product_back, "CumProdGrad", "gy x", NULL, product_back_infer, NULL, product_back_run, NULL,
          "gradient of CumProdAxis, zeros in x included")
INV_CASE_LIST(differences, "y = CumSumInverse<axis = 1>(float[2,3,2] x)",
              "y = CumSumInverse<axis = 0, reverse = 1>(float[4] x)", "y = CumSumInverse<axis = 0>(float[1] x)")
CANONICAL(differences, "CumSumInverse", "y", differences_raise, differences_infer, NULL, differences_run, NULL,
          "the x of y = CumSumAxis(x), not exclusive: differences of neighbours")

/* clang-format off */
#define LOWERED(id, op, opset, text)                                                                                  \
    INV_LOWERED(id, op, opset, "x axis", "y", text,                                                                   \
                "a = Constant<value_int = -1>()\ny = " op "(float[2,3] x, a)",                                        \
                "a = Constant<value_ints = [0]>()\ny = " op "<exclusive = 1, reverse = 1>(float[2,3] x, a)")
/* clang-format on */
LOWERED(onnx_sum, "CumSum", 11, "to CumSumAxis; the axis must be constant. ONNX CumSum-11, -14")
LOWERED(onnx_product, "CumProd", 26, "to CumProdAxis; the axis must be constant. ONNX CumProd-26")

/* clang-format off */
const inv_op_def *const inv_ops_cumulate[] = {&sum_row,         &product_row,      &product_back_row,
                                              &differences_row, &onnx_sum_row, &onnx_product_row, NULL};
/* clang-format on */
