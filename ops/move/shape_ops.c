/* SPDX-License-Identifier: Apache-2.0
 * Operators that make values out of nothing but shapes and constants (Constant, Shape, Size, ConstantOfShape, Range,
 * EyeLike), and sequences of tensors, which exist only while lowering. Sources: the ONNX operator specifications. */
#include "ops/base/families.h"
#include "ops/base/rows.h"
#include "ops/base/util.h"

/* Floating-point constants are of the graph's type. */
static inv_dtype real_of(const inv_graph *g, inv_dtype t) { return inv_dtype_is_float(t) && g->real ? g->real : t; }

static inv_id emit_data(inv_graph *g, const inv_data *d)
{
    const inv_dtype t = inv_dtype_carrier(d->dtype, g->real ? g->real : d->dtype);
    size_t nbytes;
    if (t == d->dtype) return inv_graph_const(g, t, &d->shape, d->bytes);
    if (!inv_shape_nbytes(&d->shape, t, &nbytes)) return INV_NONE;
    void *bytes = inv_arena_alloc(&g->arena, nbytes ? nbytes : 1);
    if (bytes == NULL || !inv_convert(bytes, t, d->bytes, d->dtype, (size_t)inv_shape_nelem(&d->shape)))
        return INV_NONE;
    const inv_id v = inv_graph_const(g, t, &d->shape, bytes);
    if (v != INV_NONE && inv_dtype_bits(d->dtype)) inv_val(g, v)->stated = d->dtype;
    return v;
}

static bool data_is_whole(const inv_data *d)
{
    size_t nbytes;
    if (inv_dtype_bits(d->dtype)) /* packed */
        return d->bytes != NULL && inv_shape_is_static(&d->shape) && inv_shape_nbytes(&d->shape, INV_U8, &nbytes) &&
               (nbytes * inv_dtype_bits(d->dtype) + 7) / 8 <= d->nbytes;
    return inv_dtype_size(d->dtype) != 0 && inv_shape_is_static(&d->shape) &&
           inv_shape_nbytes(&d->shape, d->dtype, &nbytes) && nbytes <= d->nbytes && (d->bytes != NULL || nbytes == 0);
}

/* --- Constant --- */
static inv_status constant_reals(inv_graph *g, const inv_shape *s, const double *v, inv_id *out)
{
    const inv_data d = {INV_F64, *s, v, (size_t)inv_shape_nelem(s) * sizeof *v};
    inv_dtype t = g->real ? g->real : INV_F32;
    float *f = NULL;
    if (t == INV_F64) {
        *out = emit_data(g, &d);
        return inv_done(g);
    }
    f = INV_ARENA_NEW(&g->arena, float, (size_t)inv_shape_nelem(s) + 1);
    if (f == NULL) return INV_E_NOMEM;
    for (int64_t i = 0; i < inv_shape_nelem(s); i++) f[i] = (float)v[i];
    *out = inv_graph_const(g, INV_F32, s, f);
    return inv_done(g);
}

static inv_status constant_lower(inv_graph *g, const inv_node *n, inv_id *out)
{
    const inv_attr *a;
    const inv_shape scalar = inv_shape_scalar();
    if ((a = inv_attr_find(n, "value")) != NULL && a->kind == INV_ATTR_TENSOR) {
        if (!data_is_whole(&a->tensor))
            return inv_node_fail(g, n, INV_E_UNSUPPORTED_TYPE, "a constant of type %s without whole data",
                                 inv_dtype_name(a->tensor.dtype));
        out[0] = emit_data(g, &a->tensor);
        if (out[0] == INV_NONE && g->failed == INV_OK) return INV_E_NOMEM;
    } else if ((a = inv_attr_find(n, "value_int")) != NULL) {
        out[0] = inv_graph_const(g, INV_I64, &scalar, &a->i);
    } else if ((a = inv_attr_find(n, "value_ints")) != NULL) {
        out[0] = inv_graph_const_ints(g, a->n, a->ints);
    } else if ((a = inv_attr_find(n, "value_float")) != NULL) {
        return constant_reals(g, &scalar, &a->f, out);
    } else if ((a = inv_attr_find(n, "value_floats")) != NULL) {
        const int64_t count = (int64_t)a->n;
        const inv_shape s = inv_shape_of(1, &count);
        return constant_reals(g, &s, a->floats, out);
    } else {
        return inv_node_fail(g, n, INV_E_UNSUPPORTED_TYPE, "only dense tensors and numbers are supported");
    }
    return inv_done(g);
}

/* --- Shape, Size --- */
static inv_status shape_lower(inv_graph *g, const inv_node *n, inv_id *out)
{
    const inv_shape s = *inv_in_shape(g, n, 0);
    int64_t from = inv_attr_int(n, "start", 0), to = inv_attr_int(n, "end", s.rank);
    from = from < 0 ? from + s.rank : from;
    to = to < 0 ? to + s.rank : to;
    from = from < 0 ? 0 : from > s.rank ? s.rank : from;
    to = to > s.rank ? s.rank : to;
    out[0] = inv_graph_const_ints(g, to > from ? (size_t)(to - from) : 0, s.dim + from);
    return inv_done(g);
}

static inv_status size_lower(inv_graph *g, const inv_node *n, inv_id *out)
{
    const inv_shape scalar = inv_shape_scalar();
    const int64_t count = inv_shape_nelem(inv_in_shape(g, n, 0));
    out[0] = inv_graph_const(g, INV_I64, &scalar, &count);
    return inv_done(g);
}

/* --- ConstantOfShape, EyeLike, Range --- */
static inv_status constant_of_shape_lower(inv_graph *g, const inv_node *n, inv_id *out)
{
    const inv_attr *a = inv_attr_find(n, "value");
    int64_t dim[INV_MAX_RANK * 2];
    const float zero = 0;
    size_t count;
    bool given;
    INV_TRY(inv_ints_of(g, n, "input", 0, dim, &count, &given));
    if (count > INV_MAX_RANK) return inv_node_fail(g, n, INV_E_SHAPE, "rank above %d", INV_MAX_RANK);
    for (size_t i = 0; i < count; i++) {
        if (dim[i] < 0) return inv_node_fail(g, n, INV_E_SHAPE, "negative extent at axis %zu", i);
    }
    const inv_shape s = count ? inv_shape_of((int)count, dim) : inv_shape_scalar(), scalar = inv_shape_scalar();
    inv_data d = {INV_F32, scalar, &zero, sizeof zero};
    if (a != NULL) {
        if (a->kind != INV_ATTR_TENSOR || !data_is_whole(&a->tensor) || inv_shape_nelem(&a->tensor.shape) != 1)
            return inv_node_fail(g, n, INV_E_UNSUPPORTED_TYPE, "value must be a tensor of one number");
        d = a->tensor;
        d.shape = scalar;
    }
    inv_id one = emit_data(g, &d);
    if (one == INV_NONE) return g->failed != INV_OK ? g->failed : INV_E_NOMEM;
    out[0] = count == 0 ? one : inv_emit1(g, "BroadcastTo", INV_IN(one), INV_ATTRS(inv_attr_of_shape("shape", &s)));
    return inv_done(g);
}

static inv_status eye_like_lower(inv_graph *g, const inv_node *n, inv_id *out)
{
    size_t nbytes;
    const inv_shape s = *inv_in_shape(g, n, 0);
    const inv_dtype t = real_of(g, (inv_dtype)inv_attr_int(n, "dtype", inv_in_dtype(g, n, 0)));
    const int64_t k = inv_attr_int(n, "k", 0);
    if (s.rank != 2) return inv_node_fail(g, n, INV_E_SHAPE, "rank 2 is wanted");
    if (inv_dtype_size(t) == 0 || !inv_shape_nbytes(&s, t, &nbytes))
        return inv_node_fail(g, n, INV_E_UNSUPPORTED_TYPE, "dtype is not a number");
    void *bytes = inv_arena_alloc(&g->arena, nbytes ? nbytes : 1);
    if (bytes == NULL) return INV_E_NOMEM;
    for (int64_t i = 0; i < s.dim[0]; i++) {
        if (i + k >= 0 && i + k < s.dim[1]) inv_put_int(bytes, t, i * s.dim[1] + i + k, 1);
    }
    out[0] = inv_graph_const(g, t, &s, bytes);
    return inv_done(g);
}

static inv_status range_lower(inv_graph *g, const inv_node *n, inv_id *out)
{
    double v[3];
    for (uint32_t i = 0; i < 3; i++) {
        const inv_value *x = inv_val(g, n->in[i]);
        INV_TRY(inv_node_need_const(g, n, n->in[i], i == 0 ? "start" : i == 1 ? "limit" : "delta"));
        if (inv_shape_nelem(&x->shape) != 1) return inv_node_fail(g, n, INV_E_SHAPE, "input %u must be a scalar", i);
        v[i] = inv_elem_double(x->data.bytes, x->data.dtype, 0);
    }
    const inv_dtype t = real_of(g, inv_in_dtype(g, n, 0));
    const double steps = v[2] != 0 ? ceil((v[1] - v[0]) / v[2]) : -1;
    if (v[2] == 0 || steps > 1e9) return inv_node_fail(g, n, INV_E_SHAPE, "delta is 0, or the range is too long");
    const int64_t count = steps > 0 ? (int64_t)steps : 0;
    const inv_shape s = inv_shape_of(1, &count);
    char *bytes = inv_arena_alloc(&g->arena, (size_t)count * 8 + 8);
    if (bytes == NULL) return INV_E_NOMEM;
    for (int64_t i = 0; i < count; i++) {
        const double x = v[0] + (double)i * v[2];
        if (inv_is_real(t)) inv_put_real(bytes, t, i, x);
        else inv_put_int(bytes, t, i, (int64_t)x);
    }
    out[0] = inv_graph_const(g, t, &s, bytes);
    return inv_done(g);
}

/* --- sequences and optionals: SequenceOf(parts*) stands for one; whoever takes an element looks at its inputs --- */
static inv_status sequence_infer(inv_graph *g, inv_node *n)
{
    const inv_shape scalar = inv_shape_scalar();
    const char *kind = inv_attr_int(n, "optional", 0) ? "optional" : "seq", *type;
    const inv_value *part = inv_has_in(n, 0) ? inv_val(g, n->in[0]) : NULL;
    inv_set_out(g, n, 0, part ? part->dtype : INV_F32, &scalar);
    if (!part) type = inv_arena_printf(&g->arena, "%s()", kind);
    else if (part->type) type = inv_arena_printf(&g->arena, "%s(%s)", kind, part->type);
    else type = inv_arena_printf(&g->arena, "%s(tensor(%s))", kind, inv_dtype_name(part->dtype));
    inv_val(g, n->out[0])->type = type;
    return type ? INV_OK : INV_E_NOMEM;
}

static inv_status emit_sequence(inv_graph *g, uint32_t count, const inv_id *parts, inv_id *out)
{
    *out = inv_emit1(g, "SequenceOf", count, parts, INV_NOATTR);
    return inv_done(g);
}

/* What made input 0, if it is a sequence (or an optional); else NULL. */
static const inv_node *made_of(const inv_graph *g, const inv_node *n, bool optional)
{
    const inv_id def = inv_has_in(n, 0) ? inv_val(g, n->in[0])->def : INV_NONE;
    const inv_node *made = def == INV_NONE ? NULL : inv_nod(g, def);
    bool fits = made && !strcmp(made->op_type, "SequenceOf") && (inv_attr_int(made, "optional", 0) != 0) == optional;
    return fits ? made : NULL;
}

static inv_status sequence_of(const inv_graph *g, const inv_node *n, const inv_node **seq)
{
    *seq = made_of(g, n, false);
    if (*seq != NULL) return INV_OK;
    return inv_node_fail(g, n, INV_E_UNSUPPORTED_OP,
                         "its input is no sequence made by SequenceConstruct, SplitToSequence and the like");
}

static inv_status sequence_construct_lower(inv_graph *g, const inv_node *n, inv_id *out)
{
    return emit_sequence(g, n->nin, n->in, out);
}

/* Sizes of the parts: a scalar is the size of each (the last may be smaller), a list the sizes, nothing: 1 each. */
static inv_status sequence_sizes(inv_graph *g, const inv_node *n, int64_t extent, int64_t **sizes, uint32_t *count)
{
    int64_t each = 1;
    size_t have = 0;
    if (inv_has_in(n, 1) && inv_in_shape(g, n, 1)->rank == 1) {
        have = (size_t)inv_in_shape(g, n, 1)->dim[0];
        *sizes = INV_ARENA_NEW(&g->arena, int64_t, have + 1);
        if (*sizes == NULL) return INV_E_NOMEM;
        *count = (uint32_t)have;
        if (inv_const_ints(g, n->in[1], have, *sizes, &have)) return INV_OK;
        return inv_node_need_const(g, n, n->in[1], "split");
    }
    if (inv_has_in(n, 1)) INV_TRY(inv_node_need_const(g, n, n->in[1], "split"));
    if (inv_has_in(n, 1) && (!inv_const_ints(g, n->in[1], 1, &each, &have) || have != 1 || each < 1))
        return inv_node_fail(g, n, INV_E_SHAPE, "the size of the parts (input 1) must be above 0");
    *count = (uint32_t)((extent + each - 1) / each);
    *sizes = INV_ARENA_NEW(&g->arena, int64_t, (size_t)*count + 1);
    if (*sizes == NULL) return INV_E_NOMEM;
    for (uint32_t i = 0; i < *count; i++) (*sizes)[i] = (int64_t)i < extent / each ? each : extent % each;
    return INV_OK;
}

static inv_status split_to_sequence_lower(inv_graph *g, const inv_node *n, inv_id *out)
{
    int axis;
    int64_t *sizes = NULL;
    uint32_t count = 0;
    inv_shape s = *inv_in_shape(g, n, 0);
    INV_TRY(inv_axis(g, n, inv_attr_int(n, "axis", 0), s.rank, &axis));
    INV_TRY(sequence_sizes(g, n, s.dim[axis], &sizes, &count));
    const bool drop = !inv_has_in(n, 1) && inv_attr_int(n, "keepdims", 1) == 0;
    inv_id *parts = INV_ARENA_NEW(&g->arena, inv_id, (size_t)count + 1);
    if (parts == NULL) return INV_E_NOMEM;
    inv_id node = inv_emit(g, "SplitSizes", count, INV_IN(n->in[0]),
                           INV_ATTRS(inv_attr_of_int("axis", axis), inv_attr_of_ints("sizes", count, sizes)));
    if (node == INV_NONE) return g->failed;
    if (drop) {
        for (int i = axis; i + 1 < s.rank; i++) s.dim[i] = s.dim[i + 1];
        s.rank--;
    }
    for (uint32_t i = 0; i < count; i++) {
        inv_id part = inv_nod(g, node)->out[i];
        parts[i] = drop ? inv_emit_view(g, part, &s) : part;
    }
    return emit_sequence(g, count, parts, out);
}

/* Input `slot`, a position from 0 to `count` - 1, counted from the end if negative; without it, the last. */
static inv_status sequence_position(inv_graph *g, const inv_node *n, uint32_t slot, int64_t count, uint32_t *at)
{
    int64_t k = count - 1;
    size_t have = 1;
    if (inv_has_in(n, slot)) INV_TRY(inv_node_need_const(g, n, n->in[slot], "position"));
    if (inv_has_in(n, slot) && (!inv_const_ints(g, n->in[slot], 1, &k, &have) || have != 1))
        return inv_node_fail(g, n, INV_E_SHAPE, "the position (input %u) must be one whole number", slot);
    const int64_t from = k < 0 ? k + count : k;
    if (from < 0 || from >= count)
        return inv_node_fail(g, n, INV_E_SHAPE, "position %lld of %lld", (long long)k, (long long)count);
    *at = (uint32_t)from;
    return INV_OK;
}

static inv_status sequence_at_lower(inv_graph *g, const inv_node *n, inv_id *out)
{
    const inv_node *seq = NULL;
    uint32_t at = 0;
    INV_TRY(sequence_of(g, n, &seq));
    INV_TRY(sequence_position(g, n, 1, seq->nin, &at));
    out[0] = seq->in[at];
    return INV_OK;
}

static inv_status sequence_empty_lower(inv_graph *g, const inv_node *n, inv_id *out)
{
    (void)n;
    return emit_sequence(g, 0, NULL, out);
}

static inv_status sequence_insert_lower(inv_graph *g, const inv_node *n, inv_id *out)
{
    const inv_node *seq = NULL;
    uint32_t at = 0;
    INV_TRY(sequence_of(g, n, &seq));
    const uint32_t count = seq->nin;
    /* A negative position counts from the end of the sequence as it is, so -1 is before its last. */
    int64_t from = 0;
    size_t have = 0;
    bool back = inv_has_in(n, 2) && inv_const_ints(g, n->in[2], 1, &from, &have) && have == 1 && from < 0;
    INV_TRY(sequence_position(g, n, 2, (int64_t)count + !back, &at));
    inv_id *parts = INV_ARENA_NEW(&g->arena, inv_id, (size_t)count + 1);
    if (parts == NULL) return INV_E_NOMEM;
    for (uint32_t i = 0; i < count; i++) parts[i + (i >= at)] = seq->in[i];
    parts[at] = n->in[1];
    return emit_sequence(g, count + 1, parts, out);
}

static inv_status sequence_erase_lower(inv_graph *g, const inv_node *n, inv_id *out)
{
    const inv_node *seq = NULL;
    uint32_t at = 0;
    INV_TRY(sequence_of(g, n, &seq));
    const uint32_t count = seq->nin;
    INV_TRY(sequence_position(g, n, 1, count, &at));
    inv_id *parts = INV_ARENA_NEW(&g->arena, inv_id, (size_t)count + 1);
    if (parts == NULL) return INV_E_NOMEM;
    for (uint32_t i = 0; i + 1 < count; i++) parts[i] = seq->in[i + (i >= at)];
    return emit_sequence(g, count - 1, parts, out);
}

static inv_status optional_lower(inv_graph *g, const inv_node *n, inv_id *out)
{
    out[0] = inv_emit1(g, "SequenceOf", inv_has_in(n, 0) ? 1 : 0, n->in, INV_ATTRS(inv_attr_of_int("optional", 1)));
    return inv_done(g);
}

/* From opset 18 on these two also take what is no optional; that has its element. */
static inv_status optional_has_lower(inv_graph *g, const inv_node *n, inv_id *out)
{
    const inv_node *made = made_of(g, n, true);
    const inv_shape scalar = inv_shape_scalar();
    const uint8_t has = inv_has_in(n, 0) && (made == NULL || made->nin > 0);
    out[0] = inv_graph_const(g, INV_BOOL, &scalar, &has);
    return inv_done(g);
}

static inv_status optional_get_lower(inv_graph *g, const inv_node *n, inv_id *out)
{
    const inv_node *made = made_of(g, n, true);
    if (made != NULL && made->nin == 0) return inv_node_fail(g, n, INV_E_SHAPE, "the optional is empty");
    out[0] = made != NULL ? made->in[0] : n->in[0];
    return INV_OK;
}

static inv_status sequence_length_lower(inv_graph *g, const inv_node *n, inv_id *out)
{
    const inv_node *seq = NULL;
    const inv_shape scalar = inv_shape_scalar();
    INV_TRY(sequence_of(g, n, &seq));
    const int64_t count = seq->nin;
    out[0] = inv_graph_const(g, INV_I64, &scalar, &count);
    return inv_done(g);
}

static inv_status concat_from_sequence_lower(inv_graph *g, const inv_node *n, inv_id *out)
{
    const inv_node *seq = NULL;
    int axis;
    const bool fresh = inv_attr_int(n, "new_axis", 0) != 0;
    INV_TRY(sequence_of(g, n, &seq));
    if (seq->nin == 0) return inv_node_fail(g, n, INV_E_SHAPE, "the sequence is empty");
    const uint32_t count = seq->nin;
    inv_id *parts = INV_ARENA_NEW(&g->arena, inv_id, count);
    if (parts == NULL) return INV_E_NOMEM;
    memcpy(parts, seq->in, count * sizeof *parts);
    inv_shape s = *inv_shape_of_value(g, parts[0]);
    if (fresh && s.rank == INV_MAX_RANK) return inv_node_fail(g, n, INV_E_SHAPE, "rank above %d", INV_MAX_RANK);
    INV_TRY(inv_axis(g, n, inv_attr_int(n, "axis", 0), s.rank + (fresh ? 1 : 0), &axis));
    for (uint32_t i = 0; i < count && fresh; i++) {
        s = *inv_shape_of_value(g, parts[i]);
        for (int k = s.rank++; k > axis; k--) s.dim[k] = s.dim[k - 1];
        s.dim[axis] = 1;
        parts[i] = inv_emit_view(g, parts[i], &s);
    }
    out[0] = count == 1 ? parts[0] : inv_emit1(g, "Concat", count, parts, INV_ATTRS(inv_attr_of_int("axis", axis)));
    return inv_done(g);
}

/* --- rows --- */
/* clang-format off */
/* clang-format on */

INV_LOWERED(constant, "Constant", 1, "", "y", "a constant value. ONNX Constant-1, -9, -11, -12, -13",
            "y = Constant<value_ints = [1, 2]>()", "y = Constant<value_float = 2.5>()")
INV_LOWERED(shape, "Shape", 1, "x", "y", "the extents, a constant. ONNX Shape-1, -13, -15", "y = Shape(float[2,3] x)",
            "y = Shape<start = -2, end = 5>(float[2,3,1] x)", "y = Shape(float x)")
INV_LOWERED(size, "Size", 1, "x", "y", "the number of elements, a constant. ONNX Size-1", "y = Size(float[2,3] x)",
            "y = Size(float[0] x)")
INV_LOWERED(constant_of_shape, "ConstantOfShape", 9, "shape", "y",
            "to BroadcastTo of a constant. ONNX ConstantOfShape-9", INV_INTS("s", "2, 3") "y = ConstantOfShape(s)",
            INV_INTS("s", "1") "y = ConstantOfShape(s)")
INV_LOWERED(eye_like, "EyeLike", 9, "x", "y", "ones on the diagonal k, a constant. ONNX EyeLike-9",
            "y = EyeLike(float[2,3] x)", "y = EyeLike<k = 1>(float[1,2] x)")
INV_LOWERED(range, "Range", 11, "start limit delta", "y", "start + i delta, a constant. ONNX Range-11",
            INV_INT("a", "1") INV_INT("b", "8") INV_INT("c", "3") "y = Range(a, b, c)",
            INV_INT("a", "3") INV_INT("b", "0") INV_INT("c", "-1") "y = Range(a, b, c)")

INV_CASE_LIST(sequence, "q = SequenceOf(float[2] a, float[2] b)", "q = SequenceOf(float[1] a)")
/* clang-format off */
/* Never folded (INV_OP_RANDOM): the node must stay to be found. It has no kernel and is pruned after lowering. */
static const inv_op_def sequence_row = {
    .size = sizeof(inv_op_def), .domain = INV_IR, .name = "SequenceOf", .since = 1, .in = "first? rest*",
    .out = "y", .flags = INV_OP_NO_GRAD | INV_OP_RANDOM, .infer = sequence_infer,
    .flops = inv_flops_none, .cases = sequence_cases,
    .doc = "a sequence of tensors, or an optional, while lowering"};
/* clang-format on */
INV_LOWERED(sequence_construct, "SequenceConstruct", 11, "x*", "y", "ONNX SequenceConstruct-11",
            INV_INT("i", "0") "q = SequenceConstruct(float[2] a, float[2] b)\ny = SequenceAt(q, i)",
            INV_INT("i", "-1") "q = SequenceConstruct(float[1] a)\ny = SequenceAt(q, i)")
INV_LOWERED(split_to_sequence, "SplitToSequence", 11, "x split?", "y", "to SplitSizes. ONNX SplitToSequence-11",
            INV_INT("i", "1")
                INV_INTS("s", "1, 2") "q = SplitToSequence<axis = 1>(float[2,3] x, s)\ny = SequenceAt(q, i)",
            INV_INT("i", "-1")
                INV_INT("s", "2") "q = SplitToSequence<axis = -1>(float[2,3] x, s)\ny = SequenceAt(q, i)",
            INV_INT("i", "0") "q = SplitToSequence<axis = 0, keepdims = 0>(float[2,3] x)\ny = SequenceAt(q, i)")
INV_LOWERED(sequence_at, "SequenceAt", 11, "q at", "y", "one tensor of a sequence. ONNX SequenceAt-11",
            INV_INT("i", "1") INV_INT("s", "1") "q = SplitToSequence(float[2,3] x, s)\ny = SequenceAt(q, i)",
            INV_INT("i", "0") "q = SequenceConstruct(float[1] a)\ny = SequenceAt(q, i)")
INV_LOWERED(sequence_empty, "SequenceEmpty", 11, "", "y", "ONNX SequenceEmpty-11",
            "q = SequenceEmpty()\nr = SequenceInsert(q, float[2] x)\ny = ConcatFromSequence<axis = 0>(r)",
            "q = SequenceEmpty()\ny = SequenceLength(q)")
INV_LOWERED(sequence_insert, "SequenceInsert", 11, "q x at?", "y", "ONNX SequenceInsert-11",
            INV_INT("i", "0") "q = SequenceConstruct(float[2] a)\nr = SequenceInsert(q, float[3] b)\n"
                              "s = SequenceInsert(r, float[1] c, i)\ny = ConcatFromSequence<axis = 0>(s)",
            INV_INT("i", "-1") "q = SequenceConstruct(float[2] a, float[1] b)\nr = SequenceInsert(q, float[3] c, i)\n"
                               "y = ConcatFromSequence<axis = 0>(r)")
INV_LOWERED(sequence_erase, "SequenceErase", 11, "q at?", "y", "ONNX SequenceErase-11",
            INV_INT("i", "-2") "q = SequenceConstruct(float[2] a, float[1] b, float[3] c)\nr = SequenceErase(q, i)\n"
                               "y = ConcatFromSequence<axis = 0>(r)",
            "q = SequenceConstruct(float[2] a, float[1] b)\nr = SequenceErase(q)\ny = ConcatFromSequence<axis = 0>(r)")
INV_LOWERED(optional, "Optional", 15, "x?", "y", "ONNX Optional-15",
            "o = Optional(float[2] x)\ny = OptionalGetElement(o)", "o = Optional()\ny = OptionalHasElement(o)")
INV_LOWERED(optional_has, "OptionalHasElement", 15, "x?", "y", "a constant. ONNX OptionalHasElement-15, -18",
            "o = Optional(float[2] x)\ny = OptionalHasElement(o)", "y = OptionalHasElement(float[2] x)")
INV_LOWERED(optional_get, "OptionalGetElement", 15, "x", "y", "ONNX OptionalGetElement-15, -18",
            "q = SequenceConstruct(float[2] a)\no = Optional(q)\nr = OptionalGetElement(o)\n"
            "y = ConcatFromSequence<axis = 0>(r)",
            "y = OptionalGetElement(float[2] x)")
INV_LOWERED(sequence_length, "SequenceLength", 11, "q", "y", "a constant. ONNX SequenceLength-11",
            "q = SequenceConstruct(float[2] a, float[2] b)\ny = SequenceLength(q)",
            "q = SequenceConstruct(float[1] a)\ny = SequenceLength(q)")
INV_LOWERED(concat_from_sequence, "ConcatFromSequence", 11, "q", "y", "to Concat. ONNX ConcatFromSequence-11",
            "q = SequenceConstruct(float[2] a, float[1] b)\ny = ConcatFromSequence<axis = 0>(q)",
            "q = SequenceConstruct(float[2] a, float[2] b)\ny = ConcatFromSequence<axis = -1, new_axis = 1>(q)")

const inv_op_def *const inv_ops_shape[] = {&constant_row,
                                           &shape_row,
                                           &size_row,
                                           &constant_of_shape_row,
                                           &eye_like_row,
                                           &range_row,
                                           &sequence_row,
                                           &sequence_construct_row,
                                           &split_to_sequence_row,
                                           &sequence_at_row,
                                           &sequence_empty_row,
                                           &sequence_insert_row,
                                           &sequence_erase_row,
                                           &optional_row,
                                           &optional_has_row,
                                           &optional_get_row,
                                           &sequence_length_row,
                                           &concat_from_sequence_row,
                                           NULL};
