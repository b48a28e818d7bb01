/* SPDX-License-Identifier: Apache-2.0
 * Movement of parts of tensors: SliceRange (Slice), PadRange. Gather is in gather.c, Split in concat.c.
 * Canonical forms carry all numbers as attributes, one entry per axis. Gradients read shapes only. */
#include "ops/move/slice.h"
#include "core/edits/onnx_body.h"
#include "ops/base/bounds.h"
#include "ops/base/families.h"
#include "ops/base/rows.h"
#include "ops/base/strided_copy.h"

/* --- SliceRange<starts,steps,sizes>(x): out[i] = x[starts + i steps] --- */
static const int64_t *ints_per_axis(const inv_graph *g, const inv_node *n, const char *name, int rank, inv_status *s)
{
    size_t count;
    const int64_t *v = inv_attr_ints(n, name, &count);
    if (count != (size_t)rank && *s == INV_OK)
        *s = inv_node_fail(g, n, INV_E_SHAPE, "attribute %s has %zu entries, the rank is %d", name, count, rank);
    return v;
}

/* Every index that the slice touches lies in `whole`. */
static inv_status slice_inside(const inv_graph *g, const inv_node *n, const inv_shape *whole, const int64_t *starts,
                               const int64_t *steps, const int64_t *sizes)
{
    for (int i = 0; i < whole->rank; i++) {
        int64_t last = starts[i] + (sizes[i] - 1) * steps[i];
        if (sizes[i] > 0 && (starts[i] < 0 || starts[i] >= whole->dim[i] || last < 0 || last >= whole->dim[i]))
            return inv_node_fail(g, n, INV_E_SHAPE, "the slice leaves axis %d of extent %lld", i,
                                 (long long)whole->dim[i]);
        if (sizes[i] < 0) return inv_node_fail(g, n, INV_E_SHAPE, "negative size at axis %d", i);
    }
    return INV_OK;
}

static inv_status slice_infer(inv_graph *g, inv_node *n)
{
    inv_status s = INV_OK;
    const inv_shape in = *inv_in_shape(g, n, 0);
    const int64_t *starts = ints_per_axis(g, n, "starts", in.rank, &s);
    const int64_t *steps = ints_per_axis(g, n, "steps", in.rank, &s);
    const int64_t *sizes = ints_per_axis(g, n, "sizes", in.rank, &s);
    INV_TRY(s);
    INV_TRY(slice_inside(g, n, &in, starts, steps, sizes));
    const inv_shape out = in.rank ? inv_shape_of(in.rank, sizes) : in;
    inv_set_out(g, n, 0, inv_in_dtype(g, n, 0), &out);
    return INV_OK;
}

/* Offset of the first element and strides of the slice inside the whole tensor. */
static int64_t slice_strides(const inv_node *n, const inv_shape *whole, int64_t stride[INV_MAX_RANK])
{
    size_t ns, nt;
    const int64_t *starts = inv_attr_ints(n, "starts", &ns), *steps = inv_attr_ints(n, "steps", &nt);
    int64_t at = 0;
    inv_strides(whole, stride);
    for (int i = 0; i < whole->rank; i++) {
        at += starts[i] * stride[i];
        if (nt) stride[i] *= steps[i];
    }
    return at;
}

static inv_status slice_run(const inv_call *c)
{
    int64_t sd[INV_MAX_RANK], ss[INV_MAX_RANK];
    const size_t esize = inv_dtype_size(c->out[0].dtype);
    if (c->out[0].n == 0) return INV_OK;
    int64_t at = slice_strides(c->node, &c->in[0].shape, ss);
    const char *src = (const char *)c->in[0].data + at * (int64_t)esize;
    if (src == c->out[0].data) return INV_OK; /* slice_part */
    inv_strides(&c->out[0].shape, sd);
    return inv_copy_strided(c, c->out[0].data, sd, src, ss, &c->out[0].shape, esize);
}

/* One index of each of the first axes, a range of the next one, all of the others. */
static bool slice_part(const inv_graph *g, const inv_node *n, uint32_t k, size_t *offset)
{
    size_t nt;
    int64_t stride[INV_MAX_RANK];
    const int64_t *steps = inv_attr_ints(n, "steps", &nt);
    const inv_shape *in = inv_in_shape(g, n, 0), *out = &inv_val(g, n->out[k])->shape;
    int axis = 0;
    while (axis < in->rank && out->dim[axis] == 1) axis++;
    if (axis < in->rank && nt && steps[axis] != 1) return false;
    for (int i = axis + 1; i < in->rank; i++)
        if (out->dim[i] != in->dim[i] || (nt && steps[i] != 1)) return false;
    *offset = (size_t)slice_strides(n, in, stride) * inv_dtype_size(inv_in_dtype(g, n, 0));
    return inv_shape_nelem(out) > 0;
}

static inv_status slice_grad(inv_grad *b)
{
    const inv_node *n = inv_nod(b->g, b->node);
    const inv_attr *starts = inv_attr_find(n, "starts"), *steps = inv_attr_find(n, "steps");
    const inv_shape in = *inv_in_shape(b->g, n, 0);
    inv_grad_set(b, 0,
                 in.rank == 0 ? inv_GO(b, 0)
                              : inv_emit1(b->g, "SliceRangeGrad", INV_IN(inv_GO(b, 0)),
                                          INV_ATTRS(inv_attr_of_shape("shape", &in), *starts, *steps)));
    return inv_grad_done(b);
}

/* --- SliceRangeGrad<shape,starts,steps>(gy), PadRange<shape,starts,value>(x): the input placed in a constant --- */
static inv_status place_infer(inv_graph *g, inv_node *n)
{
    inv_status s = INV_OK;
    static const int64_t ones[INV_MAX_RANK] = {1, 1, 1, 1, 1, 1, 1, 1};
    INV_TRY(inv_infer_attr_shape(g, n));
    const inv_shape in = *inv_in_shape(g, n, 0), whole = inv_attr_shape(n, "shape");
    if (in.rank != whole.rank) return inv_node_fail(g, n, INV_E_SHAPE, "input and output differ in rank");
    const int64_t *starts = ints_per_axis(g, n, "starts", in.rank, &s);
    const int64_t *steps = inv_attr_find(n, "steps") ? ints_per_axis(g, n, "steps", in.rank, &s) : ones;
    INV_TRY(s);
    return slice_inside(g, n, &whole, starts, steps, in.dim);
}

static void fill_tensor(const inv_tensor *t, double value)
{
    if (value == 0) {
        memset(t->data, 0, (size_t)t->n * inv_dtype_size(t->dtype));
    } else if (t->dtype == INV_F32) {
        for (int64_t i = 0; i < t->n; i++) ((float *)t->data)[i] = (float)value;
    } else if (t->dtype == INV_F64) {
        for (int64_t i = 0; i < t->n; i++) ((double *)t->data)[i] = value;
    } else {
        for (int64_t i = 0; i < t->n; i++) inv_put_int(t->data, t->dtype, i, (int64_t)value);
    }
}

static inv_status fill_gpu(const inv_gpu *gpu, const inv_tensor *t, double value)
{
    uint64_t one[1] = {0}; /* the bytes of one element */
    const inv_tensor element = {.data = one, .dtype = t->dtype, .n = 1};
    const size_t esize = inv_dtype_size(t->dtype);
    if (esize == 0 || esize > 8) return INV_E_UNSUPPORTED_TYPE;
    fill_tensor(&element, value);
    INV_GPU(gpu, fill, t->n, esize, t->data, one[0]);
    return INV_OK;
}

static inv_status place_run(const inv_call *c)
{
    int64_t sd[INV_MAX_RANK], ss[INV_MAX_RANK];
    const size_t esize = inv_dtype_size(c->out[0].dtype);
    const double value = inv_attr_float(c->node, "value", 0);
    if (c->out[0].n == 0) return INV_OK;
    if (c->in[0].n < c->out[0].n && c->gpu) INV_TRY(fill_gpu(c->gpu, &c->out[0], value));
    if (c->in[0].n < c->out[0].n && !c->gpu) fill_tensor(&c->out[0], value);
    if (c->in[0].n == 0) return INV_OK;
    int64_t at = slice_strides(c->node, &c->out[0].shape, sd);
    inv_strides(&c->in[0].shape, ss);
    return inv_copy_strided(c, (char *)c->out[0].data + at * (int64_t)esize, sd, c->in[0].data, ss, &c->in[0].shape,
                            esize);
}

/* The part of gy where the input was placed. */
static inv_status place_grad(inv_grad *b)
{
    const inv_node *n = inv_nod(b->g, b->node);
    const inv_attr *starts = inv_attr_find(n, "starts"), *given = inv_attr_find(n, "steps");
    static const int64_t ones[INV_MAX_RANK] = {1, 1, 1, 1, 1, 1, 1, 1};
    const inv_shape in = *inv_in_shape(b->g, n, 0);
    const inv_attr steps = given ? *given : inv_attr_of_ints("steps", (size_t)in.rank, ones);
    inv_grad_set(b, 0,
                 in.rank == 0 ? inv_GO(b, 0)
                              : inv_emit1(b->g, "SliceRange", INV_IN(inv_GO(b, 0)),
                                          INV_ATTRS(*starts, steps, inv_attr_of_shape("sizes", &in))));
    return inv_grad_done(b);
}

/* --- Slice, all opsets --- */
typedef struct slice_args {
    int64_t starts[INV_MAX_RANK * 2], ends[INV_MAX_RANK * 2], axes[INV_MAX_RANK * 2], steps[INV_MAX_RANK * 2];
    size_t n;
} slice_args;

static inv_status slice_read(const inv_graph *g, const inv_node *n, slice_args *a)
{
    size_t nends, naxes, nsteps;
    bool starts, ends, axes, steps;
    INV_TRY(inv_ints_of(g, n, "starts", 1, a->starts, &a->n, &starts));
    INV_TRY(inv_ints_of(g, n, "ends", 2, a->ends, &nends, &ends));
    INV_TRY(inv_ints_of(g, n, "axes", 3, a->axes, &naxes, &axes));
    INV_TRY(inv_ints_of(g, n, "steps", 4, a->steps, &nsteps, &steps));
    if (a->n != nends || (axes && naxes != a->n) || (steps && nsteps != a->n) ||
        a->n > (size_t)inv_in_shape(g, n, 0)->rank)
        return inv_node_fail(g, n, INV_E_SHAPE, "starts, ends, axes and steps differ in length, or exceed the rank");
    for (size_t i = 0; i < a->n; i++) {
        if (!axes) a->axes[i] = (int64_t)i;
        if (!steps) a->steps[i] = 1;
    }
    return INV_OK;
}

static int64_t clamp(int64_t v, int64_t lo, int64_t hi) { return v < lo ? lo : v > hi ? hi : v; }

inv_id inv_emit_slice(inv_graph *g, inv_id v, const int64_t *starts, const int64_t *steps, const int64_t *sizes)
{
    const inv_shape in = *inv_shape_of_value(g, v);
    const size_t rank = (size_t)in.rank;
    bool whole = true;
    for (int i = 0; i < in.rank; i++)
        whole = whole && starts[i] == 0 && sizes[i] == in.dim[i] && (steps[i] == 1 || sizes[i] <= 1);
    if (whole) return v;
    return inv_emit1(g, "SliceRange", INV_IN(v),
                     INV_ATTRS(inv_attr_of_ints("starts", rank, starts), inv_attr_of_ints("steps", rank, steps),
                               inv_attr_of_ints("sizes", rank, sizes)));
}

static inv_status onnx_slice_lower(inv_graph *g, const inv_node *n, inv_id *out)
{
    slice_args a;
    int64_t starts[INV_MAX_RANK] = {0}, steps[INV_MAX_RANK], sizes[INV_MAX_RANK];
    INV_TRY(slice_read(g, n, &a));
    const inv_shape in = *inv_in_shape(g, n, 0);
    for (int i = 0; i < in.rank; i++) {
        steps[i] = 1;
        sizes[i] = in.dim[i];
    }
    for (size_t k = 0; k < a.n; k++) {
        int i;
        INV_TRY(inv_axis(g, n, a.axes[k], in.rank, &i));
        const int64_t d = in.dim[i], step = a.steps[k];
        int64_t from = a.starts[k], to = a.ends[k];
        if (step == 0) return inv_node_fail(g, n, INV_E_SHAPE, "step 0 at axis %d", i);
        if (from < 0) from += d;
        if (to < 0) to += d;
        /* Steps beyond the extent take one element at most; bounding them keeps the sums below in range. */
        steps[i] = clamp(step, -(d + 1), d + 1);
        from = step > 0 ? clamp(from, 0, d) : clamp(from, -1, d - 1);
        to = step > 0 ? clamp(to, 0, d) : clamp(to, -1, d - 1);
        int64_t span = step > 0 ? to - from : from - to, by = step > 0 ? steps[i] : -steps[i];
        sizes[i] = span <= 0 ? 0 : (span + by - 1) / by;
        starts[i] = sizes[i] ? from : 0;
        if (sizes[i] <= 1) steps[i] = 1;
    }
    out[0] = inv_emit_slice(g, n->in[0], starts, steps, sizes);
    return inv_done(g);
}

/* --- SliceRange in ONNX --- */

/* Of operator sets that know no steps: what is stepped over is gathered. */
static bool slice_by_attributes(const inv_raising *b, size_t n, const int64_t *axis)
{
    inv_onnx_body *r = b->r;
    size_t count;
    const int64_t *starts = inv_attr_ints(b->n, "starts", &count), *steps = inv_attr_ints(b->n, "steps", &count);
    const int64_t *sizes = inv_attr_ints(b->n, "sizes", &count);
    const char *x = b->in[0];
    for (size_t i = 0; i < n && x; i++) {
        const int64_t d = axis[i], end = starts[d] + sizes[d];
        const char *to = i + 1 == n ? b->out[0] : inv_onnx_fresh(r);
        if (steps[d] == 1) {
            x = inv_onnx_slice(r, to, x, d, starts[d], end);
            continue;
        }
        int64_t *at = INV_ARENA_NEW(r->a, int64_t, (size_t)sizes[d] + 1);
        if (!at) return false;
        for (int64_t k = 0; k < sizes[d]; k++) at[k] = starts[d] + k * steps[d];
        x = inv_onnx_node(r, to, "Gather", INV_NAMES(x, inv_onnx_ints(r, (size_t)sizes[d], at)),
                          INV_ATTRS(inv_attr_of_int("axis", d)));
    }
    return x != NULL;
}

static bool slice_raise(const inv_raising *b)
{
    inv_onnx_body *r = b->r;
    const inv_shape *s = inv_raising_shape(b, 0);
    int64_t from[INV_MAX_RANK], to[INV_MAX_RANK], axis[INV_MAX_RANK], by[INV_MAX_RANK];
    size_t count, n = 0;
    const int64_t *starts = inv_attr_ints(b->n, "starts", &count), *steps = inv_attr_ints(b->n, "steps", &count);
    const int64_t *sizes = inv_attr_ints(b->n, "sizes", &count);
    for (int i = 0; i < s->rank; i++) {
        if (starts[i] == 0 && sizes[i] == s->dim[i] && (steps[i] == 1 || sizes[i] <= 1)) continue;
        from[n] = starts[i];
        to[n] = starts[i] + sizes[i] * steps[i];
        if (to[n] < 0) to[n] = INT64_MIN; /* past the first element; -1 would be the last one */
        axis[n] = i;
        by[n++] = steps[i];
    }
    if (n == 0) return inv_onnx_node(r, b->out[0], "Identity", INV_NAMES(b->in[0]), INV_NOATTR) != NULL;
    if (r->opset < INV_ONNX_INPUTS_OF_SLICE) return slice_by_attributes(b, n, axis);
    const int64_t *const lists[4] = {from, to, axis, by};
    const char *in[5] = {b->in[0]};
    for (int i = 0; i < 4; i++) in[1 + i] = inv_onnx_ints(r, n, lists[i]);
    return inv_onnx_node(r, b->out[0], "Slice", 5, in, INV_NOATTR) != NULL;
}

/* --- rows --- */
/* clang-format off */
#define CANONICAL(id, op, ins, outs, how, gradient, kernel, shown, limits, form, turned, text, ...)                   \
    INV_CASE_LIST(id, __VA_ARGS__)                                                                                    \
    static const inv_op_def id##_row = {                                                                              \
        .size = sizeof(inv_op_def), .domain = INV_IR, .name = op, .since = 1, .in = ins, .out = outs,                 \
        .infer = how, .grad = gradient, .run = kernel, .flops = inv_flops_none, .part = shown, .bounds = limits,     \
        .raise = form, .images = turned,                                                                              \
        .work = inv_work_move, .cases = id##_cases, .doc = text};
/* clang-format on */

CANONICAL(slice, "SliceRange", "x", "y", slice_infer, slice_grad, slice_run, slice_part, inv_bounds_first, slice_raise,
          INV_IMAGES(1, 1, {"starts", INV_PER_AXIS}, {"steps", INV_PER_AXIS}, {"sizes", INV_PER_AXIS}),
          "y[i] = x[starts + i steps], sizes elements per axis",
          "y = SliceRange<starts = [0,1], steps = [1,1], sizes = [2,2]>(float[2,3] x)",
          "y = SliceRange<starts = [3,0], steps = [-2,1], sizes = [2,1]>(float[4,1] x)",
          "y = SliceRange<starts = [0], steps = [1], sizes = [0]>(float[3] x)",
          "y = SliceRange<starts = [1,4], steps = [2,1], sizes = [2,4]>(float[4,8] x)")
CANONICAL(slice_back, "SliceRangeGrad", "gy", "dx", place_infer, place_grad, place_run, NULL, NULL, NULL,
          INV_IMAGES(1, 1, {"shape", INV_PER_AXIS}, {"starts", INV_PER_AXIS}, {"steps", INV_PER_AXIS}),
          "gy at starts + i steps, 0 elsewhere",
          "d = SliceRangeGrad<shape = [2,3], starts = [0,1], steps = [1,1]>(float[2,2] gy)",
          "d = SliceRangeGrad<shape = [4,1], starts = [3,0], steps = [-2,1]>(float[2,1] gy)",
          "d = SliceRangeGrad<shape = [3], starts = [0], steps = [1]>(float[0] gy)")
CANONICAL(pad_range, "PadRange", "x", "y", place_infer, place_grad, place_run, NULL, NULL, NULL,
          INV_IMAGES(1, 1, {"shape", INV_PER_AXIS}, {"starts", INV_PER_AXIS}), "x at starts, value elsewhere",
          "y = PadRange<shape = [3,5], starts = [1,2], value = 0.5>(float[2,3] x)",
          "y = PadRange<shape = [2], starts = [0], value = 0.0>(float[1] x)",
          "y = PadRange<shape = [3,4], starts = [1,2], value = 7.0>(int64[2,2] x)",
          "y = PadRange<shape = [8], starts = [2], value = 1.0>(bool[3] x)")

INV_LOWERED(onnx_slice, "Slice", 1, "x starts? ends? axes? steps?", "y", "to SliceRange. ONNX Slice-1, -10, -11, -13",
            INV_INTS("s", "0, 1") INV_INTS("e", "9223372036854775807, 3") "y = Slice(float[2,3] x, s, e)",
            INV_INTS("s", "-1") INV_INTS("e", "-9223372036854775807") INV_INTS("a", "-1")
                INV_INTS("t", "-1") "y = Slice(float[2,3] x, s, e, a, t)",
            "y = Slice<starts = [1], ends = [-1], axes = [1]>(float[2,4] x)")
/* clang-format off */
const inv_op_def *const inv_ops_slice[] = {&slice_row, &slice_back_row, &pad_range_row, &onnx_slice_row,
                                           &inv_op_pad, NULL};
/* clang-format on */
