/* SPDX-License-Identifier: Apache-2.0
 * Concat, and SplitSizes (Split), its inverse: the parts of a tensor one after the other along an axis. Gradients read
 * shapes only. */
#include "core/edits/onnx_body.h"
#include "ops/base/bounds.h"
#include "ops/base/families.h"
#include "ops/base/rows.h"
#include "ops/base/strided_copy.h"

/* --- Concat<axis>(xs*) --- */
static inv_status concat_axis(const inv_graph *g, const inv_node *n, int *axis)
{
    return inv_axis(g, n, inv_attr_int(n, "axis", 1), inv_in_shape(g, n, 0)->rank, axis); /* opset 1: 1 by default */
}

static inv_status concat_infer(inv_graph *g, inv_node *n)
{
    int axis;
    INV_TRY(inv_need_same_type(g, n, n->nin));
    INV_TRY(concat_axis(g, n, &axis));
    inv_shape s = *inv_in_shape(g, n, 0);
    for (uint32_t k = 1; k < n->nin; k++) {
        const inv_shape *t = inv_in_shape(g, n, k);
        bool fits = t->rank == s.rank;
        for (int i = 0; i < s.rank && fits; i++) fits = i == axis || t->dim[i] == s.dim[i];
        if (!fits) {
            inv_shape rest = *t;
            if (axis < rest.rank) rest.dim[axis] = s.dim[axis];
            if (rest.rank == s.rank) inv_note_shapes(g, 1 + (int)k * INV_MAX_RANK, &rest, &s, false);
            return inv_node_fail(g, n, INV_E_SHAPE, "inputs 0 and %u differ outside axis %d", k, axis);
        }
        if (t->dim[axis] > INT64_MAX - s.dim[axis]) return inv_node_fail(g, n, INV_E_SHAPE, "too large for memory");
        s.dim[axis] += t->dim[axis];
    }
    inv_set_out(g, n, 0, inv_in_dtype(g, n, 0), &s);
    return INV_OK;
}

static inv_status onnx_concat_lower(inv_graph *g, const inv_node *n, inv_id *out)
{
    int axis;
    INV_TRY(concat_infer(g, &(inv_node){.op = n->op,
                                        .op_type = n->op_type,
                                        .name = n->name,
                                        .domain = n->domain,
                                        .in = n->in,
                                        .nin = n->nin,
                                        .attr = n->attr,
                                        .nattr = n->nattr}));
    INV_TRY(concat_axis(g, n, &axis));
    out[0] = n->nin == 1 ? n->in[0] : inv_emit1(g, "Concat", n->nin, n->in, INV_ATTRS(inv_attr_of_int("axis", axis)));
    return inv_done(g);
}

/* Copies between a whole tensor and its part at `at` along an axis: rows of `part` bytes in rows of `whole` bytes. */
static void copy_part(const inv_call *c, char *dst, size_t dst_row, const char *src, size_t src_row, size_t nbytes,
                      int64_t rows)
{
    if (dst == src) return; /* it stands there */
    if (c->gpu) {
        inv_copy_rows_gpu(c->gpu, dst, dst_row, src, src_row, nbytes, rows);
        return;
    }
#pragma omp parallel for schedule(static) if (rows * (int64_t)nbytes > 4 * INV_OMP_STREAM)
    for (int64_t r = 0; r < rows; r++) memcpy(dst + (size_t)r * dst_row, src + (size_t)r * src_row, nbytes);
}

static size_t row_nbytes(const inv_tensor *t, int axis)
{
    return (size_t)inv_prod(&t->shape, axis, t->shape.rank) * inv_dtype_size(t->dtype);
}

static int call_axis(const inv_call *c, int rank)
{
    int64_t axis = inv_attr_int(c->node, "axis", 1);
    return (int)(axis < 0 ? axis + rank : axis);
}

static inv_status concat_run(const inv_call *c)
{
    const int axis = call_axis(c, c->out[0].shape.rank);
    const size_t whole = row_nbytes(&c->out[0], axis);
    const int64_t rows = inv_prod(&c->out[0].shape, 0, axis);
    char *at = c->out[0].data;
    for (uint32_t i = 0; i < c->nin; i++) {
        size_t part = row_nbytes(&c->in[i], axis);
        if (c->in[i].n > 0) copy_part(c, at, whole, c->in[i].data, part, part, rows);
        at += part;
    }
    return INV_OK;
}

static inv_status concat_grad(inv_grad *b)
{
    const inv_node *n = inv_nod(b->g, b->node);
    int axis;
    INV_TRY(concat_axis(b->g, n, &axis));
    int64_t *sizes = INV_ARENA_NEW(&b->g->arena, int64_t, n->nin);
    if (sizes == NULL) return INV_E_NOMEM;
    for (uint32_t i = 0; i < n->nin; i++) sizes[i] = inv_in_shape(b->g, n, i)->dim[axis];
    inv_id split = inv_emit(b->g, "SplitSizes", n->nin, INV_IN(inv_GO(b, 0)),
                            INV_ATTRS(inv_attr_of_int("axis", axis), inv_attr_of_ints("sizes", n->nin, sizes)));
    if (split == INV_NONE) return inv_grad_done(b);
    for (uint32_t i = 0; i < inv_nod(b->g, split)->nout; i++) {
        if (inv_wants(b, i)) inv_grad_set(b, i, inv_nod(b->g, split)->out[i]);
        else inv_nod(b->g, split)->out[i] = INV_NONE;
    }
    return inv_grad_done(b);
}

/* --- SplitSizes<axis,sizes>(x) -> xs* --- */

/* The axis is to have what all sizes add up to. */
static void note_total(const inv_graph *g, int64_t extent, const int64_t *sizes, size_t count)
{
    int64_t total = 0;
    for (size_t i = 0; i < count && sizes[i] >= 0 && sizes[i] <= INT64_MAX - total; i++) total += sizes[i];
    inv_note_misfit(g, 1, extent, total);
}

static inv_status split_infer(inv_graph *g, inv_node *n)
{
    int axis;
    size_t count;
    int64_t sum = 0;
    inv_shape s = *inv_in_shape(g, n, 0);
    INV_TRY(inv_axis(g, n, inv_attr_int(n, "axis", 0), s.rank, &axis));
    const int64_t extent = s.dim[axis], *sizes = inv_attr_ints(n, "sizes", &count);
    if (count != n->nout) return inv_node_fail(g, n, INV_E_SHAPE, "%zu sizes for %u outputs", count, n->nout);
    for (size_t i = 0; i < count; i++) {
        if (sizes[i] < 0) return inv_node_fail(g, n, INV_E_SHAPE, "negative size of output %zu", i);
        if (sizes[i] > extent - sum) {
            note_total(g, extent, sizes, count);
            return inv_node_fail(g, n, INV_E_SHAPE, "the sizes add up to more than axis %d has, %lld", axis,
                                 (long long)extent);
        }
        sum += sizes[i];
        s.dim[axis] = sizes[i];
        inv_set_out(g, n, (uint32_t)i, inv_in_dtype(g, n, 0), &s);
    }
    if (sum != extent) {
        note_total(g, extent, sizes, count);
        return inv_node_fail(g, n, INV_E_SHAPE, "the sizes add up to %lld, axis %d has %lld", (long long)sum, axis,
                             (long long)extent);
    }
    return INV_OK;
}

static inv_status split_run(const inv_call *c)
{
    const int rank = c->in[0].shape.rank;
    const int64_t given = inv_attr_int(c->node, "axis", 0);
    const int axis = (int)(given < 0 ? given + rank : given);
    const size_t whole = row_nbytes(&c->in[0], axis),
                 inner = inv_dtype_size(c->in[0].dtype) * (size_t)inv_prod(&c->in[0].shape, axis + 1, rank);
    const int64_t rows = inv_prod(&c->in[0].shape, 0, axis);
    size_t count, at = 0;
    const int64_t *sizes = inv_attr_ints(c->node, "sizes", &count);
    if (c->in[0].n == 0) return INV_OK;
    for (uint32_t i = 0; i < c->nout; i++) {
        size_t part = (size_t)sizes[i] * inner;
        if (c->out[i].data != NULL && part > 0)
            copy_part(c, c->out[i].data, part, (const char *)c->in[0].data + at, whole, part, rows);
        at += part;
    }
    return INV_OK;
}

static bool split_part(const inv_graph *g, const inv_node *n, uint32_t k, size_t *offset)
{
    const inv_shape *in = inv_in_shape(g, n, 0);
    const int64_t given = inv_attr_int(n, "axis", 0);
    const int axis = (int)(given < 0 ? given + in->rank : given);
    size_t count;
    int64_t before = 0;
    const int64_t *sizes = inv_attr_ints(n, "sizes", &count);
    for (uint32_t i = 0; i < k; i++) before += sizes[i];
    *offset = (size_t)(before * inv_prod(in, axis + 1, in->rank)) * inv_dtype_size(inv_in_dtype(g, n, 0));
    return inv_prod(in, 0, axis) == 1 && inv_shape_nelem(in) > 0 && sizes[k] > 0;
}

/* The parts' gradients joined; a single one is placed in zeros. */
static inv_status split_grad(inv_grad *b)
{
    inv_graph *g = b->g;
    const inv_node *n = inv_nod(g, b->node);
    int64_t starts[INV_MAX_RANK] = {0}, steps[INV_MAX_RANK] = {1, 1, 1, 1, 1, 1, 1, 1}, offset = 0;
    const inv_shape in = *inv_in_shape(g, n, 0);
    const inv_dtype t = inv_in_dtype(g, n, 0);
    uint32_t have = 0, nout = n->nout, one = 0;
    size_t count;
    int axis;
    const int64_t *sizes = inv_attr_ints(n, "sizes", &count);
    INV_TRY(inv_axis(g, n, inv_attr_int(n, "axis", 0), in.rank, &axis));
    for (uint32_t i = 0; i < nout; offset += sizes[i++]) {
        if (b->out_grad[i] == INV_NONE) continue;
        have++;
        one = i;
        starts[axis] = offset;
    }
    if (have == 0) return INV_OK;
    if (have == 1 && nout > 1) {
        inv_grad_set(
            b, 0,
            inv_emit1(g, "SliceRangeGrad", INV_IN(b->out_grad[one]),
                      INV_ATTRS(inv_attr_of_shape("shape", &in), inv_attr_of_ints("starts", (size_t)in.rank, starts),
                                inv_attr_of_ints("steps", (size_t)in.rank, steps))));
        return inv_grad_done(b);
    }
    inv_id *parts = INV_ARENA_NEW(&g->arena, inv_id, nout);
    if (parts == NULL) return INV_E_NOMEM;
    for (uint32_t i = 0; i < nout; i++) {
        inv_shape s = in;
        s.dim[axis] = sizes[i];
        parts[i] = b->out_grad[i] != INV_NONE ? b->out_grad[i] : inv_emit_zeros(g, t, &s);
    }
    inv_grad_set(b, 0,
                 nout == 1 ? parts[0] : inv_emit1(g, "Concat", nout, parts, INV_ATTRS(inv_attr_of_int("axis", axis))));
    return inv_grad_done(b);
}

/* --- Split, all opsets: sizes by attribute (1, 2, 11) or input (13, 18), or equal parts --- */
static inv_status split_sizes(const inv_graph *g, const inv_node *n, int64_t extent, int64_t *sizes)
{
    const bool by_input = inv_has_in(n, 1);
    size_t count = 0;
    if (by_input) {
        INV_TRY(inv_node_need_const(g, n, n->in[1], "split"));
        if (!inv_const_ints(g, n->in[1], n->nout, sizes, &count))
            return inv_node_fail(g, n, INV_E_SHAPE, "more sizes (input 1) than its %u outputs", n->nout);
    } else if (inv_attr_find(n, "split") != NULL) {
        const int64_t *v = inv_attr_ints(n, "split", &count);
        for (size_t i = 0; i < count && i < n->nout; i++) sizes[i] = v[i];
    }
    if (count != 0) {
        if (count != n->nout) return inv_node_fail(g, n, INV_E_SHAPE, "%zu sizes for %u outputs", count, n->nout);
        return INV_OK;
    }
    const int64_t parts = inv_attr_int(n, "num_outputs", (int64_t)n->nout);
    if (parts != (int64_t)n->nout || parts < 1)
        return inv_node_fail(g, n, INV_E_GRAPH, "num_outputs is %lld, outputs are %u", (long long)parts, n->nout);
    const int64_t size = (extent + parts - 1) / parts; /* opset 18: the last may be smaller */
    for (int64_t i = 0, left = extent; i < parts; i++, left -= size)
        sizes[i] = left < 0 ? 0 : left < size ? left : size;
    if (extent % parts != 0 && inv_attr_find(n, "num_outputs") == NULL)
        return inv_node_fail(g, n, INV_E_SHAPE, "extent %lld is no multiple of the %u outputs", (long long)extent,
                             n->nout);
    return INV_OK;
}

static inv_status onnx_split_lower(inv_graph *g, const inv_node *n, inv_id *out)
{
    int axis;
    const inv_shape in = *inv_in_shape(g, n, 0);
    INV_TRY(inv_axis(g, n, inv_attr_int(n, "axis", 0), in.rank, &axis));
    int64_t *sizes = INV_ARENA_NEW(&g->arena, int64_t, n->nout);
    if (sizes == NULL) return INV_E_NOMEM;
    INV_TRY(split_sizes(g, n, in.dim[axis], sizes));
    if (n->nout == 1) {
        out[0] = n->in[0];
        return INV_OK;
    }
    const uint32_t nout = n->nout;
    inv_id node = inv_emit(g, "SplitSizes", nout, INV_IN(n->in[0]),
                           INV_ATTRS(inv_attr_of_int("axis", axis), inv_attr_of_ints("sizes", nout, sizes)));
    for (uint32_t i = 0; i < nout; i++) out[i] = node == INV_NONE ? INV_NONE : inv_nod(g, node)->out[i];
    return inv_done(g);
}

static inv_bounds concat_bounds(const inv_bounding *q)
{
    inv_bounds r = q->operand(q, 0);
    for (uint32_t k = 1; k < q->node->nin; k++) r = inv_bounds_either(r, q->operand(q, k));
    return r;
}

/* --- SplitSizes in ONNX --- */

/* Equal parts need no sizes. */
static bool split_raise(const inv_raising *b)
{
    inv_onnx_body *r = b->r;
    size_t n;
    const int64_t *sizes = inv_attr_ints(b->n, "sizes", &n);
    const char **out = INV_ARENA_NEW(r->a, const char *, b->n->nout + 1), *in[2] = {b->in[0], NULL};
    inv_attr attr[2] = {inv_attr_of_int("axis", inv_attr_int(b->n, "axis", 0)), {0}};
    uint32_t nin = 1, nattr = 1;
    bool equal = true;
    for (size_t i = 1; i < n; i++) equal = equal && sizes[i] == sizes[0];
    if (out == NULL) return false;
    for (uint32_t i = 0; i < b->n->nout; i++) out[i] = b->out[i] ? b->out[i] : inv_onnx_fresh(r);
    if (equal && r->opset >= 18) attr[nattr++] = inv_attr_of_int("num_outputs", b->n->nout);
    if (!equal && r->opset >= 13) in[nin++] = inv_onnx_ints(r, n, sizes);
    if (!equal && r->opset < 13) {
        const int64_t *copy = inv_onnx_copy(r, n, sizes);
        if (copy == NULL) return false;
        attr[nattr++] = inv_attr_of_ints("split", n, copy);
    }
    return inv_onnx_nodes(r, "Split", b->n->nout, out, nin, in, nattr, attr);
}

/* --- rows --- */

INV_CASE_LIST(concat, "y = ai.invonnx.ir.Concat<axis = 1>(float[2,3] a, float[2,1] b, float[2,0] c)",
              "y = ai.invonnx.ir.Concat<axis = 0>(float[1] a, float[1] b)",
              "y = ai.invonnx.ir.Concat<axis = 1>(float[3,8] a, float[3,4] b)",
              "y = ai.invonnx.ir.Concat<axis = 1>(bool[3,3] a, bool[3,2] b)")
INV_CASE_LIST(split, "a, b, c = SplitSizes<axis = 1, sizes = [1,2,0]>(float[2,3] x)",
              "a, b = SplitSizes<axis = 0, sizes = [1,1]>(float[2] x)")

INV_LOWERED_FLAGS(onnx_split, "Split", 1, "x split?", "y*", INV_OP_VARIADIC_OUT,
                  "to SplitSizes. ONNX Split-1, -2, -11, -13, -18",
                  "a, b = Split<axis = 1, split = [1,3]>(float[2,4] x)",
                  "s = Constant<value_ints = [1, 3]>()\na, b = Split<axis = -1>(float[2,4] x, s)",
                  "a, b = Split<axis = 1>(float[2,4] x)", "a, b = Split<axis = 1, num_outputs = 2>(float[2,3] x)")

/* clang-format off */
static const inv_op_def concat_row = {
    .size = sizeof(inv_op_def),
    .domain = INV_IR,
    .name = "Concat",
    .since = 1,
    .in = "x*",
    .out = "y",
    .infer = concat_infer,
    .grad = concat_grad,
    .run = concat_run,
    .bounds = concat_bounds,
    .onnx = "",
    .images = INV_IMAGES(INV_ALL_SLOTS, 1, {"axis", INV_AXIS}),
    .flops = inv_flops_none,
    .work = inv_work_move,
    .cases = concat_cases,
    .doc = "the inputs one after the other along axis"};

static const inv_op_def split_row = {
    .size = sizeof(inv_op_def),
    .domain = INV_IR,
    .name = "SplitSizes",
    .since = 1,
    .in = "x",
    .out = "y*",
    .flags = INV_OP_VARIADIC_OUT,
    .infer = split_infer,
    .grad = split_grad,
    .run = split_run,
    .part = split_part,
    .bounds = inv_bounds_first,
    .raise = split_raise,
    .images = INV_IMAGES(1, INV_ALL_SLOTS, {"axis", INV_AXIS}),
    .flops = inv_flops_none,
    .work = inv_work_move,
    .cases = split_cases,
    .doc = "x cut along axis in parts of the given sizes"};
/* clang-format on */

INV_LOWERED(onnx_concat, "Concat", 1, "x*", "y", "ONNX Concat-1, -4, -11, -13",
            "y = Concat<axis = -1>(float[2,3] a, float[2,1] b)", "y = Concat<axis = 0>(float[1] a)")

const inv_op_def *const inv_ops_concat[] = {&concat_row, &split_row, &onnx_concat_row, &onnx_split_row, NULL};
