/* SPDX-License-Identifier: Apache-2.0
 * Movement of parts of tensors: SliceRange (Slice), Concat, SplitSizes (Split), PadRange. Gather is in gather.c.
 * Canonical forms carry all numbers as attributes, one entry per axis. Gradients read shapes only. */
#include "ops/move/slice.h"
#include "ops/base/bounds.h"
#include "ops/base/families.h"
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
    INV_TRY(inv__need(g, n, 1));
    const inv_shape in = *inv__in_shape(g, n, 0);
    const int64_t *starts = ints_per_axis(g, n, "starts", in.rank, &s);
    const int64_t *steps = ints_per_axis(g, n, "steps", in.rank, &s);
    const int64_t *sizes = ints_per_axis(g, n, "sizes", in.rank, &s);
    INV_TRY(s);
    INV_TRY(slice_inside(g, n, &in, starts, steps, sizes));
    const inv_shape out = in.rank ? inv_shape_of(in.rank, sizes) : in;
    inv__set_out(g, n, 0, inv__in_dtype(g, n, 0), &out);
    return INV_OK;
}

/* Offset of the first element and strides of the slice inside the whole tensor. */
static int64_t slice_strides(const inv_node *n, const inv_shape *whole, int64_t stride[INV_MAX_RANK])
{
    size_t ns, nt;
    const int64_t *starts = inv_attr_ints(n, "starts", &ns), *steps = inv_attr_ints(n, "steps", &nt);
    int64_t at = 0;
    inv__strides(whole, stride);
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
    inv__strides(&c->out[0].shape, sd);
    return inv__copy_strided(c, c->out[0].data, sd, src, ss, &c->out[0].shape, esize);
}

/* One index of each of the first axes, a range of the next one, all of the others. */
static bool slice_part(const inv_graph *g, const inv_node *n, uint32_t k, size_t *offset)
{
    size_t nt;
    int64_t stride[INV_MAX_RANK];
    const int64_t *steps = inv_attr_ints(n, "steps", &nt);
    const inv_shape *in = inv__in_shape(g, n, 0), *out = &inv_val(g, n->out[k])->shape;
    int axis = 0;
    while (axis < in->rank && out->dim[axis] == 1) axis++;
    if (axis < in->rank && nt && steps[axis] != 1) return false;
    for (int i = axis + 1; i < in->rank; i++)
        if (out->dim[i] != in->dim[i] || (nt && steps[i] != 1)) return false;
    *offset = (size_t)slice_strides(n, in, stride) * inv_dtype_size(inv__in_dtype(g, n, 0));
    return inv_shape_nelem(out) > 0;
}

static inv_status slice_grad(inv_grad *b)
{
    const inv_node *n = inv_nod(b->g, b->node);
    const inv_attr *starts = inv_attr_find(n, "starts"), *steps = inv_attr_find(n, "steps");
    if (inv_GO(b, 0) == INV_NONE) return INV_OK;
    const inv_shape in = *inv__in_shape(b->g, n, 0);
    inv_grad_set(b, 0,
                 in.rank == 0 ? inv_GO(b, 0)
                              : inv_emit1(b->g, "SliceRangeGrad", INV_IN(inv_GO(b, 0)),
                                          INV_ATTRS(inv__attr_of_shape("shape", &in), *starts, *steps)));
    return inv__grad_done(b);
}

/* --- SliceRangeGrad<shape,starts,steps>(gy), PadRange<shape,starts,value>(x): the input placed in a constant --- */
static inv_status place_infer(inv_graph *g, inv_node *n)
{
    inv_status s = INV_OK;
    static const int64_t ones[INV_MAX_RANK] = {1, 1, 1, 1, 1, 1, 1, 1};
    INV_TRY(inv__infer_attr_shape(g, n));
    const inv_shape in = *inv__in_shape(g, n, 0), whole = inv__attr_shape(n, "shape");
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
        for (int64_t i = 0; i < t->n; i++) inv__put_int(t->data, t->dtype, i, (int64_t)value);
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
    inv__strides(&c->in[0].shape, ss);
    return inv__copy_strided(c, (char *)c->out[0].data + at * (int64_t)esize, sd, c->in[0].data, ss, &c->in[0].shape,
                             esize);
}

/* The part of gy where the input was placed. */
static inv_status place_grad(inv_grad *b)
{
    const inv_node *n = inv_nod(b->g, b->node);
    const inv_attr *starts = inv_attr_find(n, "starts"), *given = inv_attr_find(n, "steps");
    static const int64_t ones[INV_MAX_RANK] = {1, 1, 1, 1, 1, 1, 1, 1};
    if (inv_GO(b, 0) == INV_NONE) return INV_OK;
    const inv_shape in = *inv__in_shape(b->g, n, 0);
    const inv_attr steps = given ? *given : inv_attr_of_ints("steps", (size_t)in.rank, ones);
    inv_grad_set(b, 0,
                 in.rank == 0 ? inv_GO(b, 0)
                              : inv_emit1(b->g, "SliceRange", INV_IN(inv_GO(b, 0)),
                                          INV_ATTRS(*starts, steps, inv__attr_of_shape("sizes", &in))));
    return inv__grad_done(b);
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
    INV_TRY(inv__ints_of(g, n, "starts", 1, a->starts, &a->n, &starts));
    INV_TRY(inv__ints_of(g, n, "ends", 2, a->ends, &nends, &ends));
    INV_TRY(inv__ints_of(g, n, "axes", 3, a->axes, &naxes, &axes));
    INV_TRY(inv__ints_of(g, n, "steps", 4, a->steps, &nsteps, &steps));
    if (a->n != nends || (axes && naxes != a->n) || (steps && nsteps != a->n) ||
        a->n > (size_t)inv__in_shape(g, n, 0)->rank)
        return inv_node_fail(g, n, INV_E_SHAPE, "starts, ends, axes and steps differ in length, or exceed the rank");
    for (size_t i = 0; i < a->n; i++) {
        if (!axes) a->axes[i] = (int64_t)i;
        if (!steps) a->steps[i] = 1;
    }
    return INV_OK;
}

static int64_t clamp(int64_t v, int64_t lo, int64_t hi) { return v < lo ? lo : v > hi ? hi : v; }

inv_id inv__emit_slice(inv_graph *g, inv_id v, const int64_t *starts, const int64_t *steps, const int64_t *sizes)
{
    const inv_shape in = *inv__shape(g, v);
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
    INV_TRY(inv__need(g, n, 1));
    INV_TRY(slice_read(g, n, &a));
    const inv_shape in = *inv__in_shape(g, n, 0);
    for (int i = 0; i < in.rank; i++) {
        steps[i] = 1;
        sizes[i] = in.dim[i];
    }
    for (size_t k = 0; k < a.n; k++) {
        int i;
        INV_TRY(inv__axis(g, n, a.axes[k], in.rank, &i));
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
    out[0] = inv__emit_slice(g, n->in[0], starts, steps, sizes);
    return inv__done(g);
}

/* --- Concat<axis>(xs*) --- */
static inv_status concat_axis(const inv_graph *g, const inv_node *n, int *axis)
{
    return inv__axis(g, n, inv_attr_int(n, "axis", 1), inv__in_shape(g, n, 0)->rank, axis); /* opset 1: 1 by default */
}

static inv_status concat_infer(inv_graph *g, inv_node *n)
{
    int axis;
    INV_TRY(inv__need(g, n, n->nin ? n->nin : 1));
    INV_TRY(inv__need_same_type(g, n, n->nin));
    INV_TRY(concat_axis(g, n, &axis));
    inv_shape s = *inv__in_shape(g, n, 0);
    for (uint32_t k = 1; k < n->nin; k++) {
        const inv_shape *t = inv__in_shape(g, n, k);
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
    inv__set_out(g, n, 0, inv__in_dtype(g, n, 0), &s);
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
    return inv__done(g);
}

/* Copies between a whole tensor and its part at `at` along an axis: rows of `part` bytes in rows of `whole` bytes. */
static void copy_part(const inv_call *c, char *dst, size_t dst_row, const char *src, size_t src_row, size_t nbytes,
                      int64_t rows)
{
    if (dst == src) return; /* it stands there */
    if (c->gpu) {
        inv__copy_rows_gpu(c->gpu, dst, dst_row, src, src_row, nbytes, rows);
        return;
    }
#pragma omp parallel for schedule(static) if (rows * (int64_t)nbytes > 4 * INV_OMP_MIN)
    for (int64_t r = 0; r < rows; r++) memcpy(dst + (size_t)r * dst_row, src + (size_t)r * src_row, nbytes);
}

static size_t row_nbytes(const inv_tensor *t, int axis)
{
    return (size_t)inv__prod(&t->shape, axis, t->shape.rank) * inv_dtype_size(t->dtype);
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
    const int64_t rows = inv__prod(&c->out[0].shape, 0, axis);
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
    if (inv_GO(b, 0) == INV_NONE) return INV_OK;
    int64_t *sizes = INV_ARENA_NEW(&b->g->arena, int64_t, n->nin);
    if (sizes == NULL) return INV_E_NOMEM;
    for (uint32_t i = 0; i < n->nin; i++) sizes[i] = inv__in_shape(b->g, n, i)->dim[axis];
    inv_id split = inv_emit(b->g, "SplitSizes", n->nin, INV_IN(inv_GO(b, 0)),
                            INV_ATTRS(inv_attr_of_int("axis", axis), inv_attr_of_ints("sizes", n->nin, sizes)));
    if (split == INV_NONE) return inv__grad_done(b);
    for (uint32_t i = 0; i < inv_nod(b->g, split)->nout; i++) {
        if (inv_wants(b, i)) inv_grad_set(b, i, inv_nod(b->g, split)->out[i]);
        else inv_nod(b->g, split)->out[i] = INV_NONE;
    }
    return inv__grad_done(b);
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
    INV_TRY(inv__need(g, n, 1));
    inv_shape s = *inv__in_shape(g, n, 0);
    INV_TRY(inv__axis(g, n, inv_attr_int(n, "axis", 0), s.rank, &axis));
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
        inv__set_out(g, n, (uint32_t)i, inv__in_dtype(g, n, 0), &s);
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
                 inner = inv_dtype_size(c->in[0].dtype) * (size_t)inv__prod(&c->in[0].shape, axis + 1, rank);
    const int64_t rows = inv__prod(&c->in[0].shape, 0, axis);
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
    const inv_shape *in = inv__in_shape(g, n, 0);
    const int64_t given = inv_attr_int(n, "axis", 0);
    const int axis = (int)(given < 0 ? given + in->rank : given);
    size_t count;
    int64_t before = 0;
    const int64_t *sizes = inv_attr_ints(n, "sizes", &count);
    for (uint32_t i = 0; i < k; i++) before += sizes[i];
    *offset = (size_t)(before * inv__prod(in, axis + 1, in->rank)) * inv_dtype_size(inv__in_dtype(g, n, 0));
    return inv__prod(in, 0, axis) == 1 && inv_shape_nelem(in) > 0 && sizes[k] > 0;
}

static inv_id zeros(inv_graph *g, inv_dtype t, const inv_shape *s)
{
    inv_id zero = inv_graph_const_real(g, t, 0);
    return inv_emit1(g, "BroadcastTo", INV_IN(zero), INV_ATTRS(inv__attr_of_shape("shape", s)));
}

/* The parts' gradients joined; a single one is placed in zeros. */
static inv_status split_grad(inv_grad *b)
{
    inv_graph *g = b->g;
    const inv_node *n = inv_nod(g, b->node);
    int64_t starts[INV_MAX_RANK] = {0}, steps[INV_MAX_RANK] = {1, 1, 1, 1, 1, 1, 1, 1}, offset = 0;
    const inv_shape in = *inv__in_shape(g, n, 0);
    const inv_dtype t = inv__in_dtype(g, n, 0);
    uint32_t have = 0, nout = n->nout, one = 0;
    size_t count;
    int axis;
    const int64_t *sizes = inv_attr_ints(n, "sizes", &count);
    INV_TRY(inv__axis(g, n, inv_attr_int(n, "axis", 0), in.rank, &axis));
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
                      INV_ATTRS(inv__attr_of_shape("shape", &in), inv_attr_of_ints("starts", (size_t)in.rank, starts),
                                inv_attr_of_ints("steps", (size_t)in.rank, steps))));
        return inv__grad_done(b);
    }
    inv_id *parts = INV_ARENA_NEW(&g->arena, inv_id, nout);
    if (parts == NULL) return INV_E_NOMEM;
    for (uint32_t i = 0; i < nout; i++) {
        inv_shape s = in;
        s.dim[axis] = sizes[i];
        parts[i] = b->out_grad[i] != INV_NONE ? b->out_grad[i] : zeros(g, t, &s);
    }
    inv_grad_set(b, 0,
                 nout == 1 ? parts[0] : inv_emit1(g, "Concat", nout, parts, INV_ATTRS(inv_attr_of_int("axis", axis))));
    return inv__grad_done(b);
}

/* --- Split, all opsets: sizes by attribute (1, 2, 11) or input (13, 18), or equal parts --- */
static inv_status split_sizes(const inv_graph *g, const inv_node *n, int64_t extent, int64_t *sizes)
{
    const bool by_input = inv__has_in(n, 1);
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
    INV_TRY(inv__need(g, n, 1));
    const inv_shape in = *inv__in_shape(g, n, 0);
    INV_TRY(inv__axis(g, n, inv_attr_int(n, "axis", 0), in.rank, &axis));
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
    return inv__done(g);
}

static inv_bounds concat_bounds(const inv_bounding *q)
{
    inv_bounds r = q->operand(q, 0);
    for (uint32_t k = 1; k < q->node->nin; k++) r = inv__bounds_either(r, q->operand(q, k));
    return r;
}

/* --- rows --- */
#define CASES(id, ...) static const char *const id##_cases[] = {__VA_ARGS__, NULL};
/* clang-format off */
#define CANONICAL(id, op, ins, outs, how, gradient, kernel, bits, shown, limits, form, turned, text, ...)             \
    CASES(id, __VA_ARGS__)                                                                                            \
    static const inv_op_def id##_row = {                                                                              \
        .size = sizeof(inv_op_def), .domain = INV_IR, .name = op, .since = 1, .in = ins, .out = outs, .flags = bits,  \
        .infer = how, .grad = gradient, .run = kernel, .flops = inv__flops_none, .part = shown, .bounds = limits,     \
        .onnx = form, .images = turned,                                                                               \
        .work = inv__work_move, .cases = id##_cases, .doc = text};
#define LOWERED(id, op, opset, ins, outs, bits, text, ...)                                                            \
    CASES(id, __VA_ARGS__)                                                                                            \
    static const inv_op_def id##_row = {                                                                              \
        .size = sizeof(inv_op_def), .domain = "", .name = op, .since = opset, .in = ins, .out = outs, .flags = bits,  \
        .infer = inv__infer_lowered, .lower = id##_lower, .cases = id##_cases, .doc = text};
/* clang-format on */
#define INTS(name, list) name " = Constant<value_ints = [" list "]>()\n"

CANONICAL(slice, "SliceRange", "x", "y", slice_infer, slice_grad, slice_run, 0, slice_part, inv__bounds_first, NULL,
          INV_IMAGES(1, 1, {"starts", INV_PER_AXIS}, {"steps", INV_PER_AXIS}, {"sizes", INV_PER_AXIS}),
          "y[i] = x[starts + i steps], sizes elements per axis",
          "y = SliceRange<starts = [0,1], steps = [1,1], sizes = [2,2]>(float[2,3] x)",
          "y = SliceRange<starts = [3,0], steps = [-2,1], sizes = [2,1]>(float[4,1] x)",
          "y = SliceRange<starts = [0], steps = [1], sizes = [0]>(float[3] x)",
          "y = SliceRange<starts = [1,4], steps = [2,1], sizes = [2,4]>(float[4,8] x)")
CANONICAL(slice_back, "SliceRangeGrad", "gy", "dx", place_infer, place_grad, place_run, 0, NULL, NULL, NULL,
          INV_IMAGES(1, 1, {"shape", INV_PER_AXIS}, {"starts", INV_PER_AXIS}, {"steps", INV_PER_AXIS}),
          "gy at starts + i steps, 0 elsewhere",
          "d = SliceRangeGrad<shape = [2,3], starts = [0,1], steps = [1,1]>(float[2,2] gy)",
          "d = SliceRangeGrad<shape = [4,1], starts = [3,0], steps = [-2,1]>(float[2,1] gy)",
          "d = SliceRangeGrad<shape = [3], starts = [0], steps = [1]>(float[0] gy)")
CANONICAL(pad_range, "PadRange", "x", "y", place_infer, place_grad, place_run, 0, NULL, NULL, NULL,
          INV_IMAGES(1, 1, {"shape", INV_PER_AXIS}, {"starts", INV_PER_AXIS}), "x at starts, value elsewhere",
          "y = PadRange<shape = [3,5], starts = [1,2], value = 0.5>(float[2,3] x)",
          "y = PadRange<shape = [2], starts = [0], value = 0.0>(float[1] x)",
          "y = PadRange<shape = [3,4], starts = [1,2], value = 7.0>(int64[2,2] x)",
          "y = PadRange<shape = [8], starts = [2], value = 1.0>(bool[3] x)")
CANONICAL(concat, "Concat", "x*", "y", concat_infer, concat_grad, concat_run, 0, NULL, concat_bounds, "",
          INV_IMAGES(INV_ALL_SLOTS, 1, {"axis", INV_AXIS}), "the inputs one after the other along axis",
          "y = ai.invonnx.ir.Concat<axis = 1>(float[2,3] a, float[2,1] b, float[2,0] c)",
          "y = ai.invonnx.ir.Concat<axis = 0>(float[1] a, float[1] b)",
          "y = ai.invonnx.ir.Concat<axis = 1>(float[3,8] a, float[3,4] b)",
          "y = ai.invonnx.ir.Concat<axis = 1>(bool[3,3] a, bool[3,2] b)")
CANONICAL(split, "SplitSizes", "x", "y*", split_infer, split_grad, split_run, INV_OP_VARIADIC_OUT, split_part,
          inv__bounds_first, NULL, INV_IMAGES(1, INV_ALL_SLOTS, {"axis", INV_AXIS}),
          "x cut along axis in parts of the given sizes",
          "a, b, c = SplitSizes<axis = 1, sizes = [1,2,0]>(float[2,3] x)",
          "a, b = SplitSizes<axis = 0, sizes = [1,1]>(float[2] x)")

LOWERED(onnx_slice, "Slice", 1, "x starts? ends? axes? steps?", "y", 0, "to SliceRange. ONNX Slice-1, -10, -11, -13",
        INTS("s", "0, 1") INTS("e", "9223372036854775807, 3") "y = Slice(float[2,3] x, s, e)",
        INTS("s", "-1") INTS("e", "-9223372036854775807") INTS("a", "-1")
            INTS("t", "-1") "y = Slice(float[2,3] x, s, e, a, t)",
        "y = Slice<starts = [1], ends = [-1], axes = [1]>(float[2,4] x)")
LOWERED(onnx_concat, "Concat", 1, "x*", "y", 0, "ONNX Concat-1, -4, -11, -13",
        "y = Concat<axis = -1>(float[2,3] a, float[2,1] b)", "y = Concat<axis = 0>(float[1] a)")
LOWERED(onnx_split, "Split", 1, "x split?", "y*", INV_OP_VARIADIC_OUT, "to SplitSizes. ONNX Split-1, -2, -11, -13, -18",
        "a, b = Split<axis = 1, split = [1,3]>(float[2,4] x)",
        INTS("s", "1, 3") "a, b = Split<axis = -1>(float[2,4] x, s)", "a, b = Split<axis = 1>(float[2,4] x)",
        "a, b = Split<axis = 1, num_outputs = 2>(float[2,3] x)")
/* clang-format off */
const inv_op_def *const inv_ops_slice[] = {&slice_row, &slice_back_row, &pad_range_row, &concat_row, &split_row,
                                           &onnx_slice_row, &onnx_concat_row, &onnx_split_row, &inv__op_pad, NULL};
/* clang-format on */
