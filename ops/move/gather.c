/* SPDX-License-Identifier: Apache-2.0
 * Gather along an axis. Constant indices lower to SliceRange (evenly spaced) or Permute (every index once), both of
 * which have inverses. Sources: the ONNX operator specifications. */
#include "core/edits/onnx_body.h"
#include "ops/base/bounds.h"
#include "ops/base/families.h"
#include "ops/base/rows.h"
#include "ops/base/strided_copy.h"
#include "ops/move/gather_gpu.h"

#define COLUMNS 64 /* that a thread adds up at a time */

static int call_axis(const inv_call *c, int rank)
{
    int64_t axis = inv_attr_int(c->node, "axis", 0);
    return (int)(axis < 0 ? axis + rank : axis);
}

/* The gathering along `axis` of a tensor of shape s by k indices of type t. */
static inv_gather gather_of(const inv_shape *s, int axis, int64_t k, inv_dtype t)
{
    return (inv_gather){.rows = inv_prod(s, 0, axis),
                        .d = s->dim[axis],
                        .k = k,
                        .block = inv_prod(s, axis + 1, s->rank),
                        .extent = s->dim[axis],
                        .wide = t == INV_I64};
}

/* An element that device code can move. */
static bool movable(inv_dtype t) { return inv_dtype_size(t) > 0 && inv_dtype_size(t) <= 16; }

/* --- Permute<axis,indices>(x): out[.., i, ..] = x[.., indices[i], ..], indices a permutation --- */
static inv_status permute_infer(inv_graph *g, inv_node *n)
{
    int axis;
    size_t count;
    INV_TRY(inv_infer_same(g, n));
    const inv_shape *in = inv_in_shape(g, n, 0);
    INV_TRY(inv_axis(g, n, inv_attr_int(n, "axis", 0), in->rank, &axis));
    const int64_t *index = inv_attr_ints(n, "indices", &count);
    if ((int64_t)count != in->dim[axis])
        return inv_node_fail(g, n, INV_E_SHAPE, "%zu indices for axis %d", count, axis);
    for (size_t i = 0; i < count; i++) {
        if (index[i] < 0 || index[i] >= (int64_t)count)
            return inv_node_fail(g, n, INV_E_SHAPE, "index %lld is outside axis %d", (long long)index[i], axis);
    }
    return INV_OK;
}

/* The indices go to the device in scratch memory. */
static inv_status permute_on_device(const inv_call *c)
{
    size_t count;
    const int64_t *index = inv_attr_ints(c->node, "indices", &count);
    const inv_shape *s = &c->out[0].shape;
    if (c->out[0].n == 0) return INV_OK;
    if (!movable(c->out[0].dtype)) return INV_E_UNSUPPORTED_TYPE;
    if (c->ws == NULL || c->ws_nbytes < count * sizeof *index) return INV_E_INTERNAL;
    const inv_gather g = gather_of(s, call_axis(c, s->rank), (int64_t)count, INV_I64);
    INV_GPU(c->gpu, integers, g.k, c->ws, index);
    INV_GPU(c->gpu, gather, c->node, &g, inv_dtype_size(c->out[0].dtype), c->out[0].data, c->in[0].data, c->ws);
    return INV_OK;
}

static inv_status permute_run(const inv_call *c)
{
    if (c->gpu) return permute_on_device(c);
    const inv_shape *s = &c->out[0].shape;
    const int axis = call_axis(c, s->rank);
    const int64_t rows = inv_prod(s, 0, axis), d = s->dim[axis];
    const size_t block = (size_t)inv_prod(s, axis + 1, s->rank) * inv_dtype_size(c->out[0].dtype);
    size_t count;
    const int64_t *index = inv_attr_ints(c->node, "indices", &count);
    char *out = c->out[0].data;
    const char *in = c->in[0].data;
    if (c->out[0].n == 0) return INV_OK;
#pragma omp parallel for schedule(static) if (c->out[0].n > INV_OMP_STREAM)
    for (int64_t r = 0; r < rows; r++) {
        char *to = out + (size_t)(r * d) * block;
        const char *from = in + (size_t)(r * d) * block;
        if (block == 4) { /* a copy of known size is no call */
            for (int64_t i = 0; i < d; i++) memcpy(to + 4 * i, from + 4 * index[i], 4);
            continue;
        }
        for (int64_t i = 0; i < d; i++) memcpy(to + (size_t)i * block, from + (size_t)index[i] * block, block);
    }
    return INV_OK;
}

static size_t permute_workspace(const inv_graph *g, const inv_node *n)
{
    size_t count;
    (void)inv_attr_ints(n, "indices", &count);
    return g->gpu ? count * sizeof(int64_t) : 0;
}

static inv_status permute_grad(inv_grad *b)
{
    const inv_node *n = inv_nod(b->g, b->node);
    size_t count;
    const int64_t *index = inv_attr_ints(n, "indices", &count);
    int64_t *back = INV_ARENA_NEW(&b->g->arena, int64_t, count);
    if (back == NULL) return INV_E_NOMEM;
    for (size_t i = 0; i < count; i++) back[index[i]] = (int64_t)i;
    inv_grad_set(b, 0,
                 inv_emit1(b->g, "Permute", INV_IN(inv_GO(b, 0)),
                           INV_ATTRS(inv_attr_of_int("axis", inv_attr_int(n, "axis", 0)),
                                     inv_attr_of_ints("indices", count, back))));
    return inv_grad_done(b);
}

/* --- Gather<axis>(data, indices), GatherGrad<axis,shape,first,extent>(gy, indices, sum?) --- */
static inv_status indices_type(const inv_graph *g, const inv_node *n)
{
    inv_dtype t = inv_in_dtype(g, n, 1);
    if (t == INV_I64 || t == INV_I32) return INV_OK;
    return inv_node_fail(g, n, INV_E_UNSUPPORTED_TYPE, "indices are %s; int32 or int64 is wanted", inv_dtype_name(t));
}

/* data.shape with the axis replaced by the shape of the indices. */
static inv_status gathered_shape(const inv_graph *g, const inv_node *n, const inv_shape *data, const inv_shape *index,
                                 inv_shape *out)
{
    int axis;
    INV_TRY(inv_axis(g, n, inv_attr_int(n, "axis", 0), data->rank, &axis));
    if (data->rank - 1 + index->rank > INV_MAX_RANK)
        return inv_node_fail(g, n, INV_E_SHAPE, "rank above %d", INV_MAX_RANK);
    *out = inv_shape_scalar();
    for (int i = 0; i < axis; i++) out->dim[out->rank++] = data->dim[i];
    for (int i = 0; i < index->rank; i++) out->dim[out->rank++] = index->dim[i];
    for (int i = axis + 1; i < data->rank; i++) out->dim[out->rank++] = data->dim[i];
    return inv_need_size(g, n, out);
}

static inv_status gather_infer(inv_graph *g, inv_node *n)
{
    inv_shape s;
    INV_TRY(indices_type(g, n));
    INV_TRY(gathered_shape(g, n, inv_in_shape(g, n, 0), inv_in_shape(g, n, 1), &s));
    inv_set_out(g, n, 0, inv_in_dtype(g, n, 0), &s);
    return INV_OK;
}

static inv_status gather_run(const inv_call *c)
{
    const inv_shape *s = &c->in[0].shape;
    const int axis = call_axis(c, s->rank);
    const int64_t rows = inv_prod(s, 0, axis), d = s->dim[axis], k = c->in[1].n;
    const size_t size = inv_dtype_size(c->out[0].dtype), block = (size_t)inv_prod(s, axis + 1, s->rank) * size;
    char *out = c->out[0].data;
    const char *in = c->in[0].data;
    if (c->out[0].n == 0) return INV_OK;
    if (c->gpu) {
        if (!movable(c->out[0].dtype)) return INV_E_UNSUPPORTED_TYPE;
        const inv_gather g = gather_of(s, axis, k, c->in[1].dtype);
        INV_GPU(c->gpu, gather, c->node, &g, size, out, in, c->in[1].data);
        return INV_OK;
    }
    for (int64_t i = 0; i < k; i++) {
        int64_t at = inv_elem_int(c->in[1].data, c->in[1].dtype, (size_t)i);
        if (at < -d || at >= d) return inv_index_outside(c, at, d);
        if (at < 0) at += d;
        for (int64_t r = 0; r < rows; r++)
            memcpy(out + (size_t)(r * k + i) * block, in + (size_t)(r * d + at) * block, block);
    }
    return INV_OK;
}

static inv_status gather_grad(inv_grad *b)
{
    const inv_node *n = inv_nod(b->g, b->node);
    if (!inv_wants(b, 0)) return INV_OK;
    inv_grad_set(b, 0,
                 inv_emit1(b->g, "GatherGrad", INV_IN(inv_GO(b, 0), inv_I(b, 1)),
                           INV_ATTRS(inv_attr_of_int("axis", inv_attr_int(n, "axis", 0)),
                                     inv_attr_of_shape("shape", inv_in_shape(b->g, n, 0)))));
    return inv_grad_done(b);
}

/* k indices of type t. Without `extent`, the axis has all that they count. */
static inv_gather gather_back_of(const inv_node *n, int64_t k, inv_dtype t)
{
    const inv_shape s = inv_attr_shape(n, "shape");
    const int64_t axis = inv_attr_int(n, "axis", 0);
    inv_gather f = gather_of(&s, (int)(axis < 0 ? axis + s.rank : axis), k, t);
    f.first = inv_attr_int(n, "first", 0);
    f.extent = inv_attr_int(n, "extent", f.d);
    return f;
}

static inv_status gather_back_infer(inv_graph *g, inv_node *n)
{
    inv_shape s, data;
    INV_TRY(inv_need_real(g, n, 0));
    INV_TRY(indices_type(g, n));
    INV_TRY(inv_infer_attr_shape(g, n));
    data = inv_attr_shape(n, "shape");
    INV_TRY(gathered_shape(g, n, &data, inv_in_shape(g, n, 1), &s));
    if (!inv_shape_equal(&s, inv_in_shape(g, n, 0)))
        return inv_node_fail(g, n, INV_E_SHAPE, "gy is not of the gathered shape");
    if (inv_shape_nelem(inv_in_shape(g, n, 1)) >= UINT32_MAX || inv_shape_nelem(&data) >= UINT32_MAX)
        return inv_node_fail(g, n, INV_E_SHAPE, "more than 4294967294 indices or elements");
    const inv_gather f = gather_back_of(n, 1, INV_I64);
    if (f.first < 0 || f.first + f.d > f.extent)
        return inv_node_fail(g, n, INV_E_SHAPE, "%lld from %lld on are not inside an axis of %lld", (long long)f.d,
                             (long long)f.first, (long long)f.extent);
    return inv_has_in(n, 2) ? inv_need_sum(g, n, 2) : INV_OK;
}

static size_t gather_back_workspace(const inv_graph *g, const inv_node *n)
{
    const inv_gather f = gather_back_of(n, inv_shape_nelem(inv_in_shape(g, n, 1)), inv_in_dtype(g, n, 1));
    return g->gpu ? inv_gather_grad_workspace(&f) : 0;
}

static inv_status gather_back_on_device(const inv_call *c)
{
    const inv_tensor *out = &c->out[0];
    if (!inv_has_sum(c, 2)) INV_GPU(c->gpu, fill, out->n, inv_dtype_size(out->dtype), out->data, 0);
    if (out->n == 0 || c->in[0].n == 0) return INV_OK;
    const inv_gather g = gather_back_of(c->node, c->in[1].n, c->in[1].dtype);
    if (c->ws == NULL || c->ws_nbytes < inv_gather_grad_workspace(&g)) return INV_E_INTERNAL;
    INV_GPU(c->gpu, gather_grad, &g, out->dtype, out->data, c->in[0].data, c->in[1].data, c->ws);
    return INV_OK;
}

/* Rows of one index are added in order: the same sums whatever the threads, which share the columns. */
static inv_status gather_back_run(const inv_call *c)
{
    INV_TRY(inv_begin_sum(c, 2));
    if (c->gpu) return gather_back_on_device(c);
    const inv_gather g = gather_back_of(c->node, c->in[1].n, c->in[1].dtype);
    const int64_t rows = g.rows, k = g.k, block = g.block, pieces = (block + COLUMNS - 1) / COLUMNS;
    if (!inv_has_sum(c, 2)) memset(c->out[0].data, 0, (size_t)c->out[0].n * inv_dtype_size(c->out[0].dtype));
    if (c->in[0].n == 0) return INV_OK;
    for (int64_t i = 0; i < k; i++) {
        const int64_t at = inv_elem_int(c->in[1].data, c->in[1].dtype, (size_t)i);
        if (at < -g.extent || at >= g.extent) return inv_index_outside(c, at, g.extent);
    }
#pragma omp parallel for schedule(static) if (c->in[0].n > INV_OMP_MIN)
    for (int64_t piece = 0; piece < rows * pieces; piece++) {
        const int64_t r = piece / pieces, first = piece % pieces * COLUMNS,
                      count = block - first < COLUMNS ? block - first : COLUMNS;
        for (int64_t i = 0; i < k; i++) {
            int64_t at = inv_elem_int(c->in[1].data, c->in[1].dtype, (size_t)i);
            if (at < 0) at += g.extent;
            at -= g.first;
            if (at < 0 || at >= g.d) continue;
            void *to = inv_elem_at(&c->out[0], (r * g.d + at) * block + first);
            const void *from = inv_elem_at(&c->in[0], (r * k + i) * block + first);
            INV_REAL_AS(c->out[0].dtype, T, for (int64_t j = 0; j < count; j++)((T *)to)[j] += ((const T *)from)[j]);
        }
    }
    return INV_OK;
}

/* Linear, so its gradient is the gathering, from 0 where the result has nothing. */
static inv_status gather_back_grad(inv_grad *b)
{
    inv_graph *g = b->g;
    const inv_node *n = inv_nod(g, b->node);
    const int64_t axis = inv_attr_int(n, "axis", 0);
    const inv_gather f = gather_back_of(n, 1, INV_I64);
    inv_id from = inv_GO(b, 0);
    if (inv_has_in(n, 2) && inv_wants(b, 2)) inv_grad_set(b, 2, from);
    if (!inv_wants(b, 0)) return inv_grad_done(b);
    if (f.extent != f.d) {
        int64_t starts[INV_MAX_RANK] = {0};
        inv_shape all = inv_attr_shape(n, "shape");
        const int at = (int)(axis < 0 ? axis + all.rank : axis);
        all.dim[at] = f.extent;
        starts[at] = f.first;
        from =
            inv_emit1(g, "PadRange", INV_IN(from),
                      INV_ATTRS(inv_attr_of_shape("shape", &all), inv_attr_of_ints("starts", (size_t)all.rank, starts),
                                inv_attr_of_float("value", 0)));
    }
    const inv_id in[2] = {from, inv_I(b, 1)};
    inv_grad_set(b, 0, inv_emit1(g, "Gather", 2, in, INV_ATTRS(inv_attr_of_int("axis", axis))));
    return inv_grad_done(b);
}

/* --- ONNX Gather --- */
static bool is_permutation(const int64_t *index, int64_t n, bool *seen)
{
    for (int64_t i = 0; i < n; i++) {
        if (seen[index[i]]) return false;
        seen[index[i]] = true;
    }
    return true;
}

static bool evenly_spaced(const int64_t *index, int64_t n)
{
    for (int64_t i = 2; i < n; i++) {
        if (index[i] - index[i - 1] != index[1] - index[0]) return false;
    }
    return n < 2 || index[1] != index[0];
}

/* Scalar or 1-D constant indices, known to lie inside the axis. */
static inv_status gather_constant(inv_graph *g, const inv_node *n, int axis, const int64_t *index, int64_t k,
                                  inv_id *out)
{
    const inv_shape in = *inv_in_shape(g, n, 0);
    int64_t starts[INV_MAX_RANK] = {0}, steps[INV_MAX_RANK] = {1, 1, 1, 1, 1, 1, 1, 1};
    const size_t rank = (size_t)in.rank;
    inv_shape sizes = in, s;
    INV_TRY(gathered_shape(g, n, &in, inv_in_shape(g, n, 1), &s));
    sizes.dim[axis] = k;
    if (k > 0 && evenly_spaced(index, k)) {
        inv_id v = n->in[0];
        starts[axis] = index[0];
        steps[axis] = k > 1 ? index[1] - index[0] : 1;
        if (k != in.dim[axis] || steps[axis] != 1)
            v = inv_emit1(g, "SliceRange", INV_IN(v),
                          INV_ATTRS(inv_attr_of_ints("starts", rank, starts), inv_attr_of_ints("steps", rank, steps),
                                    inv_attr_of_shape("sizes", &sizes)));
        out[0] = inv_emit_view(g, v, &s);
        return inv_done(g);
    }
    bool *seen = INV_ARENA_NEW(&g->arena, bool, (size_t)in.dim[axis]);
    if (seen == NULL) return INV_E_NOMEM;
    if (k == in.dim[axis] && is_permutation(index, k, seen))
        out[0] = inv_emit1(g, "Permute", INV_IN(n->in[0]),
                           INV_ATTRS(inv_attr_of_int("axis", axis), inv_attr_of_ints("indices", (size_t)k, index)));
    else out[0] = inv_emit1(g, "Gather", INV_IN(n->in[0], n->in[1]), INV_ATTRS(inv_attr_of_int("axis", axis)));
    return inv_done(g);
}

static inv_status onnx_gather_lower(inv_graph *g, const inv_node *n, inv_id *out)
{
    int axis;
    size_t count;
    const inv_shape in = *inv_in_shape(g, n, 0), index_shape = *inv_in_shape(g, n, 1);
    INV_TRY(inv_axis(g, n, inv_attr_int(n, "axis", 0), in.rank, &axis));
    const int64_t k = inv_shape_nelem(&index_shape);
    if (index_shape.rank <= 1 && inv_const_known(g, n->in[1]) && k <= (1 << 24)) {
        int64_t *index = INV_ARENA_NEW(&g->arena, int64_t, (size_t)k);
        if (index == NULL) return INV_E_NOMEM;
        if (inv_const_ints(g, n->in[1], (size_t)k, index, &count) && (int64_t)count == k) {
            for (int64_t i = 0; i < k; i++) {
                if (index[i] < -in.dim[axis] || index[i] >= in.dim[axis]) {
                    inv_note_misfit(g, 1, in.dim[axis] - 1, index[i] < 0 ? -(index[i] + 1) : index[i]);
                    return inv_node_fail(g, n, INV_E_SHAPE, "index %lld is outside axis %d, which has %lld",
                                         (long long)index[i], axis, (long long)in.dim[axis]);
                }
                if (index[i] < 0) index[i] += in.dim[axis];
            }
            return gather_constant(g, n, axis, index, k, out);
        }
    }
    out[0] = inv_emit1(g, "Gather", INV_IN(n->in[0], n->in[1]), INV_ATTRS(inv_attr_of_int("axis", axis)));
    return inv_done(g);
}

static bool permute_raise(const inv_raising *b)
{
    size_t n;
    const int64_t *indices = inv_attr_ints(b->n, "indices", &n), axis = inv_attr_int(b->n, "axis", 0);
    return inv_onnx_node(b->r, b->out[0], "Gather", INV_NAMES(b->in[0], inv_onnx_ints(b->r, n, indices)),
                         INV_ATTRS(inv_attr_of_int("axis", axis))) != NULL;
}

/* --- rows --- */
static const char *const permute_cases[] = {"y = Permute<axis = 1, indices = [2,0,1]>(float[2,3] x)",
                                            "y = Permute<axis = 0, indices = [1,0]>(float[2,2,2] x)",
                                            "y = Permute<axis = 0, indices = [0]>(float[1] x)",
                                            "y = Permute<axis = 1, indices = [2,1,0]>(bool[2,3,1] x)", NULL};
/* clang-format off */
static const inv_op_def permute_row = {
    .size = sizeof(inv_op_def), .domain = INV_IR, .name = "Permute", .since = 1, .in = "x", .out = "y",
    .images = INV_IMAGES(1, 1, {"axis", INV_AXIS}),
    .infer = permute_infer, .grad = permute_grad, .run = permute_run, .raise = permute_raise, .work = inv_work_move,
    .bounds = inv_bounds_first, .workspace = permute_workspace, .flops = inv_flops_none, .cases = permute_cases,
    .doc = "y[.., i, ..] = x[.., indices[i], ..] with a permutation"};
static const char *const gather_cases[] = {
    INV_INTS("i", "2, -1, 0, 2") "y = ai.invonnx.ir.Gather<axis = 1>(float[2,3] x, i)",
    INV_INTS("i", "0, 0") "y = ai.invonnx.ir.Gather<axis = 0>(float[1] x, i)",
    INV_INTS("i", "1, -1, 1, 0, 2, 1") "y = ai.invonnx.ir.Gather<axis = 1>(float[2,3,4] x, i)",
    INV_INTS("i", "1, 0, -1") "k = ai.invonnx.ir.Cast<to = 6>(i)\ny = ai.invonnx.ir.Gather<axis = 0>(float[2,3] x, k)",
    INV_INTS("i", "1, 1, 0") "y = ai.invonnx.ir.Gather<axis = 1>(bool[3,2,2] x, i)", NULL};
static const inv_op_def gather_row = {
    .size = sizeof(inv_op_def), .domain = INV_IR, .name = "Gather", .since = 1, .in = "data indices", .out = "y",
    .infer = gather_infer, .grad = gather_grad, .run = gather_run, .bounds = inv_bounds_first, .work = inv_work_move,
    .onnx = "", .flops = inv_flops_none, .cases = gather_cases,
    .doc = "parts of data along axis by index; negative indices count from the end"};
static const char *const gather_back_cases[] = {
    INV_INTS("i", "2, -1, 0, 2") "d = GatherGrad<axis = 1, shape = [2,3]>(float[2,4] gy, i)",
    INV_INTS("i", "0, 0") "d = GatherGrad<axis = 0, shape = [1]>(float[2] gy, i)",
    /* an index with more positions than a chunk and a tile have; several digits */
    "d = GatherGrad<axis = 0, shape = [3,2]>(float[331,2] gy, int64[331] i)",
    "d = GatherGrad<axis = 1, shape = [2,300]>(float[2,700] gy, int64[700] i)",
    INV_INTS("i", "2, -1, 0, 2") "d = GatherGrad<axis = 1, shape = [2,3]>(float[2,4] gy, i, float[2,3] sum)",
    INV_INTS("i", "2, -1, 0, 4, 3, -5, 2")
        "d = GatherGrad<axis = 0, shape = [2,3], first = 2, extent = 5>(float[7,3] gy, i)",
    NULL};
static const inv_op_def gather_back_row = {
    .size = sizeof(inv_op_def), .domain = INV_IR, .name = "GatherGrad", .since = 1, .in = "gy indices sum?",
    .out = "d", .inplace = 1 << 2, .infer = gather_back_infer, .grad = gather_back_grad, .run = gather_back_run,
    .work = inv_work_move,
    .workspace = gather_back_workspace, .flops = inv_flops_in, .cases = gather_back_cases,
    .doc = "gy added up at the indices, onto sum or 0; with extent, the result is the part of it from `first` on"};
static const char *const onnx_gather_cases[] = {INV_INTS("i", "2, 0, 1") "y = Gather<axis = 1>(float[2,3] x, i)",
                                                INV_INTS("i", "0, 2") "y = Gather<axis = -1>(float[2,4] x, i)",
                                                "i = Constant<value_int = -1>()\ny = Gather(float[2,3] x, i)",
                                                INV_INTS("i", "1, 1, 0") "y = Gather(float[2,1] x, i)",
                                                INV_INTS("i", "0") "y = Gather(float[1] x, i)",
                                                NULL};
static const inv_op_def onnx_gather_row = {
    .size = sizeof(inv_op_def), .domain = "", .name = "Gather", .since = 1, .in = "data indices", .out = "y",
    .infer = gather_infer, .lower = onnx_gather_lower, .cases = onnx_gather_cases,
    .doc = "to SliceRange, Permute or Gather. ONNX Gather-1, -11, -13"};
/* clang-format on */

const inv_op_def *const inv_ops_gather[] = {&permute_row, &gather_row, &gather_back_row, &onnx_gather_row, NULL};
