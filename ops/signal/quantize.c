/* SPDX-License-Identifier: Apache-2.0
 * Linear quantization, lowered to floating-point operators:
 *
 *     QuantizeLinear            q = cast(saturate(round(x / scale) + zero_point)), halves to even
 *     DequantizeLinear          y = (q - zero_point) scale
 *     DynamicQuantizeLinear     with scale and zero point from the range of x
 *     MatMulInteger, ConvInteger            products of (a - a_zero) and (b - b_zero), exact
 *     QLinearMatMul, QLinearConv            their products, requantized
 *
 * Scale and zero point: one number, one per entry of an axis, or one per block of an axis (block_size).
 * Quantized training: DequantizeLinear of what QuantizeLinear gives, also where the integers are clipped (quantizers of
 * fewer than 8 bits) or moved in between, takes the saturated values as they are, without the
 * two casts, and rounding passes gradients (RoundThrough). So dx = dy where round(x / scale) + zero_point is
 * within the type's range, 0 outside, as in PyTorch's fake_quantize, and scales get the gradient of learned step
 * sizes (Esser et al. 2020).
 * Products of integers are exact: in float32 while every sum stays below 2^24, in float64 else.
 * Sources: ONNX QuantizeLinear-10 to -25, DequantizeLinear-10 to -25, DynamicQuantizeLinear-11, MatMulInteger-10,
 * ConvInteger-10, QLinearMatMul-10, -21, QLinearConv-10. Small types (core/base/shape.h) are those of QuantizeLinear
 * and DequantizeLinear only. */
#include "ops/base/emit.h"
#include "ops/base/families.h"
#include "ops/base/packing.h"
#include "ops/base/parallel.h"
#include "ops/base/rows.h"

/* Each entry of `axis` repeated `block` times, the last one as often as the extent wants. */
static inv_id repeat(inv_graph *g, inv_id v, const inv_shape *x, int axis, int64_t block)
{
    inv_shape one = inv_shape_scalar(), many, flat = *inv_shape_of_value(g, v);
    for (int d = 0; d < flat.rank; d++) {
        one.dim[one.rank++] = flat.dim[d];
        if (d == axis) one.dim[one.rank++] = 1;
    }
    many = one;
    many.dim[axis + 1] = block;
    flat.dim[axis] *= block;
    v = inv_emit1(g, "BroadcastTo", INV_IN(inv_emit_view(g, v, &one)), INV_ATTRS(inv_attr_of_shape("shape", &many)));
    v = inv_emit_view(g, v, &flat);
    return inv_emit_part(g, v, axis, 0, x->dim[axis]);
}

/* Input i, a scale or zero point of a tensor of shape x, in type `to` and of a shape that broadcasts with x. */
static inv_status spread(inv_graph *g, const inv_node *n, uint32_t i, const inv_shape *x, int64_t axis, int64_t block,
                         inv_dtype to, inv_id *out)
{
    const inv_shape s = *inv_in_shape(g, n, i);
    inv_shape to_shape = inv_shape_scalar();
    *out = inv_cast(g, n->in[i], to);
    if (axis < 0) axis += x->rank;
    if (inv_shape_nelem(&s) == 1 && s.rank <= 1) {
        *out = inv_emit_view(g, *out, &to_shape);
        return inv_done(g);
    }
    if (axis < 0 || axis >= x->rank)
        return inv_node_fail(g, n, INV_E_SHAPE, "axis %lld is outside rank %d", (long long)axis, x->rank);
    if (block > x->dim[axis] && x->dim[axis] > 0) block = x->dim[axis]; /* one, however long it could be */
    const bool blocks = s.rank == x->rank && (block > 0 || s.rank > 1);
    if (!blocks && (s.rank != 1 || s.dim[0] != x->dim[axis]))
        return inv_node_fail(g, n, INV_E_SHAPE,
                             "input %u must be one number, one per entry of axis %lld, or one per "
                             "block of it (block_size)",
                             i, (long long)axis);
    to_shape.rank = x->rank;
    for (int d = 0; d < x->rank; d++) {
        const int64_t want = d != axis ? x->dim[d] : block > 0 ? (x->dim[d] + block - 1) / block : x->dim[d];
        if (blocks && s.dim[d] != want && s.dim[d] != 1)
            return inv_node_fail(g, n, INV_E_SHAPE,
                                 "input %u has extent %lld at axis %d; with blocks of %lld it needs "
                                 "%lld",
                                 i, (long long)s.dim[d], d, (long long)block, (long long)want);
        to_shape.dim[d] = d == axis ? s.dim[0] : 1;
    }
    if (!blocks) *out = inv_emit_view(g, *out, &to_shape);
    else if (block > 1 && x->rank < INV_MAX_RANK) *out = repeat(g, *out, x, (int)axis, block);
    else if (block > 1) return inv_node_fail(g, n, INV_E_SHAPE, "blocks of a tensor of rank %d", x->rank);
    return inv_done(g);
}

static inv_status need_type(const inv_graph *g, const inv_node *n, const char *what, inv_dtype t, uint32_t allowed)
{
    if ((unsigned)t < 32 && allowed >> t & 1) return INV_OK;
    return inv_node_fail(g, n, INV_E_UNSUPPORTED_TYPE, "%s is %s, which is not supported; 8-bit integers are%s", what,
                         inv_dtype_name(t), allowed >> INV_I16 & 1 ? ", and 16-bit ones" : "");
}
#define BIT(t) ((uint32_t)1 << (t))
#define BYTES (BIT(INV_U8) | BIT(INV_I8))
#define QUANTIZED (BYTES | BIT(INV_U16) | BIT(INV_I16))

/* round(v) + zero, saturated to the range of type t; floating point. */
static inv_id saturated(inv_graph *g, inv_id v, inv_id zero, inv_dtype t)
{
    const unsigned bits = inv_dtype_bits(t) ? inv_dtype_bits(t) : 8 * (unsigned)inv_dtype_size(t);
    const inv_dtype as = inv_dtype_carrier(t, INV_F32);
    const double half = (double)(1u << (bits - 1));
    const bool is_signed = as == INV_I8 || as == INV_I16;
    v = inv_emit1(g, "RoundThrough", INV_IN(v), INV_NOATTR);
    if (zero != INV_NONE) v = inv_emit_pair(g, "Add", v, zero);
    return inv_emit1(g, "Saturate", INV_IN(v),
                     INV_ATTRS(inv_attr_of_float("min", is_signed ? -half : 0),
                               inv_attr_of_float("max", is_signed ? half - 1 : 2 * half - 1)));
}

/* The type that value v is of, in words of the file: it may only be carried by another. */
static inv_dtype type_of(const inv_graph *g, inv_id v)
{
    const inv_value *x = inv_val(g, v);
    return x->stated ? x->stated : x->dtype;
}

static bool is_small_float(inv_dtype t)
{
    return inv_dtype_bits(t) && inv_dtype_is_float(inv_dtype_carrier(t, INV_F32));
}

static inv_status quantize_lower(inv_graph *g, const inv_node *n, inv_id *out)
{
    const int64_t axis = inv_attr_int(n, "axis", 1), block = inv_attr_int(n, "block_size", 0);
    inv_dtype t = (inv_dtype)inv_attr_int(n, "output_dtype", 0);
    inv_id scale, zero = INV_NONE;
    INV_TRY(inv_need_real(g, n, 1));
    if (inv_in_dtype(g, n, 0) != INV_I32) INV_TRY(inv_need_real(g, n, 0));
    const inv_shape x = *inv_in_shape(g, n, 0);
    if (inv_has_in(n, 2)) t = type_of(g, n->in[2]);
    if (t == INV_DT_NONE) t = INV_U8;
    if (!inv_dtype_bits(t)) INV_TRY(need_type(g, n, "the result", t, QUANTIZED));
    INV_TRY(spread(g, n, 1, &x, axis, block, g->real, &scale));
    if (inv_has_in(n, 2)) INV_TRY(spread(g, n, 2, &x, axis, block, g->real, &zero));
    inv_id v = inv_emit_pair(g, "Div", inv_cast(g, n->in[0], g->real), scale);
    if (is_small_float(t)) {
        if (zero != INV_NONE) v = inv_emit_pair(g, "Add", v, zero);
        out[0] = inv_emit1(g, "RoundSmall", INV_IN(v),
                           INV_ATTRS(inv_attr_of_float("format", (double)t),
                                     inv_attr_of_float("saturate", (double)inv_attr_int(n, "saturate", 1)),
                                     inv_attr_of_int("quantizes", 1)));
    } else {
        out[0] = inv_cast(g, saturated(g, v, zero, t), inv_dtype_carrier(t, g->real));
    }
    if (out[0] != INV_NONE && inv_dtype_bits(t)) inv_val(g, out[0])->stated = t;
    return inv_done(g);
}

/* Whether v is what `saturated` gives, bounded further or not. */
static bool is_saturated(const inv_graph *g, inv_id v)
{
    const inv_id by = inv_val(g, v)->def;
    return by != INV_NONE && (strcmp(inv_nod(g, by)->op_type, "Saturate") == 0);
}

/* Bounds of integers between the two: as those of the type, gradients pass on them. x: the real operand of node n, by
 * the bound `by`. */
static inv_id bounded(inv_graph *g, const inv_node *n, inv_id x, inv_id by)
{
    const bool below = strcmp(n->op_type, "Max") == 0;
    int64_t at;
    size_t count;
    if (inv_shape_nelem(&inv_val(g, by)->shape) != 1 || !inv_const_ints(g, by, 1, &at, &count))
        return inv_emit_pair(g, n->op_type, x, inv_cast(g, by, g->real));
    return inv_emit1(g, "Saturate", INV_IN(x), INV_ATTRS(inv_attr_of_float(below ? "min" : "max", (double)at)));
}

/* What integers v were made of, in floating point: a result of `saturated` that was cast, as it has been moved and
 * bounded since; *type: the type of the first cast. INV_NONE: they are of another kind. */
static inv_id before_cast(inv_graph *g, inv_id v, inv_dtype *type)
{
    static const char *const moves[] = {"View", "Transpose", "SliceRange", "BroadcastTo", "Permute", "Gather", NULL};
    const inv_id def = inv_val(g, v)->def;
    if (inv_val(g, v)->role != INV_ROLE_NODE || def == INV_NONE || inv_val(g, v)->dtype == g->real) return INV_NONE;
    const inv_node n = *inv_nod(g, def);
    if (strcmp(n.op_type, "Cast") == 0) {
        *type = inv_val(g, v)->dtype;
        return is_saturated(g, n.in[0]) ? n.in[0] : before_cast(g, n.in[0], type);
    }
    const bool bounds = strcmp(n.op_type, "Max") == 0 || strcmp(n.op_type, "Min") == 0;
    int at = 0;
    while (moves[at] && strcmp(moves[at], n.op_type) != 0) at++;
    if (!bounds && !moves[at]) return INV_NONE;
    inv_id x = before_cast(g, n.in[0], type);
    if (x == INV_NONE && bounds) {
        x = before_cast(g, n.in[1], type);
        return x == INV_NONE ? x : bounded(g, &n, x, n.in[0]);
    }
    if (x == INV_NONE) return x;
    if (bounds) return bounded(g, &n, x, n.in[1]);
    if (strcmp(n.op_type, "Gather") == 0) return inv_emit1(g, n.op_type, INV_IN(x, n.in[1]), n.nattr, n.attr);
    return inv_emit1(g, n.op_type, INV_IN(x), n.nattr, n.attr);
}

/* v in floating point. */
static inv_id as_real(inv_graph *g, inv_id v)
{
    inv_dtype first = INV_DT_NONE;
    const inv_id x = before_cast(g, v, &first);
    const inv_dtype t = inv_val(g, v)->dtype;
    const bool holds = t == first || inv_dtype_size(t) > inv_dtype_size(first);
    return x != INV_NONE && holds ? x : inv_cast(g, v, g->real);
}

/* Input i, a scale or zero point of a constant of shape x, as what is read packed wants it: as many axes as x. The same
 * shapes are allowed as by `spread`, which tells what is wrong with others. */
static bool packed_part(const inv_graph *g, const inv_node *n, uint32_t i, const inv_shape *x, int axis, int64_t *block,
                        inv_shape *out)
{
    const inv_shape s = *inv_in_shape(g, n, i);
    out->rank = x->rank;
    for (int d = 0; d < x->rank; d++) out->dim[d] = 1;
    if (inv_shape_nelem(&s) == 1 && s.rank <= 1) return true;
    if (s.rank == x->rank && (*block > 0 || s.rank > 1)) {
        const int64_t each = *block > 0 ? inv_min64(*block, x->dim[axis]) : 1;
        *out = s;
        for (int d = 0; d < x->rank; d++) {
            const int64_t want = d == axis ? (x->dim[d] + each - 1) / each : x->dim[d];
            if (s.dim[d] != want && s.dim[d] != 1) return false;
        }
        *block = each;
        return true;
    }
    out->dim[axis] = s.dim[0];
    return s.rank == 1 && s.dim[0] == x->dim[axis] && *block == 0;
}

/* A quantized constant is not expanded here: INV_NONE if it is none, or must be, since its scale is trained. */
static inv_id unpacked(inv_graph *g, const inv_node *n)
{
    inv_packing p = {.bytes = n->in[0], .scale = n->in[1], .zero = inv_has_in(n, 2) ? n->in[2] : INV_NONE};
    const inv_shape x = *inv_in_shape(g, n, 0);
    int64_t block = inv_attr_int(n, "block_size", 0), zeros = block;
    p.axis = inv_attr_int(n, "axis", 1);
    if (p.axis < 0) p.axis += x.rank;
    const bool one = inv_shape_nelem(inv_in_shape(g, n, 1)) == 1;
    if (one && (p.axis < 0 || p.axis >= x.rank)) p.axis = 0;
    if (!inv_can_pack(g, n->in[0], &p.type) || p.axis < 0 || p.axis >= x.rank || block < 0) return INV_NONE;
    if (!inv_stays_as_stored(g, p.scale) || (p.zero != INV_NONE && !inv_stays_as_stored(g, p.zero))) return INV_NONE;
    p.zero_shape.rank = x.rank;
    if (!packed_part(g, n, 1, &x, (int)p.axis, &block, &p.scale_shape)) return INV_NONE;
    if (p.zero != INV_NONE && !packed_part(g, n, 2, &x, (int)p.axis, &zeros, &p.zero_shape)) return INV_NONE;
    if (p.zero == INV_NONE) p.zero_shape = inv_shape_scalar();
    p.shape = x;
    p.width = x.dim[x.rank - 1];
    p.block = inv_max64(block, 1);
    p.bytes = inv_packed_bytes(g, n->in[0]);
    return inv_emit_unpack(g, &p);
}

static inv_status dequantize_lower(inv_graph *g, const inv_node *n, inv_id *out)
{
    const int64_t axis = inv_attr_int(n, "axis", 1), block = inv_attr_int(n, "block_size", 0);
    inv_id scale, zero;
    INV_TRY(inv_need_real(g, n, 1));
    const inv_shape shape = *inv_in_shape(g, n, 0);
    if (inv_in_dtype(g, n, 0) != g->real) /* numbers of 8-bit floating-point types are read as such */
        INV_TRY(need_type(g, n, "x", inv_in_dtype(g, n, 0), QUANTIZED | BIT(INV_I32)));
    out[0] = unpacked(g, n);
    if (out[0] != INV_NONE) return inv_done(g);
    INV_TRY(spread(g, n, 1, &shape, axis, block, g->real, &scale));
    inv_id x = as_real(g, n->in[0]);
    if (inv_has_in(n, 2)) {
        INV_TRY(spread(g, n, 2, &shape, axis, block, g->real, &zero));
        x = inv_emit_pair(g, "Sub", x, zero);
    }
    out[0] = inv_emit_pair(g, "Mul", x, scale);
    return inv_done(g);
}

static inv_id reduced(inv_graph *g, const char *op, inv_id x)
{
    int64_t axes[INV_MAX_RANK] = {0, 1, 2, 3, 4, 5, 6, 7};
    if (x == INV_NONE) return x;
    const size_t rank = (size_t)inv_shape_of_value(g, x)->rank;
    if (rank == 0) return x;
    return inv_emit1(g, op, INV_IN(x), INV_ATTRS(inv_attr_of_ints("axes", rank, axes), inv_attr_of_int("keepdims", 0)));
}

static inv_status dynamic_lower(inv_graph *g, const inv_node *n, inv_id *out)
{
    INV_TRY(inv_need_real(g, n, 0));
    const inv_id x = n->in[0], none = inv_graph_const_real(g, g->real, 0);
    const inv_id still = inv_unary(g, "Detach", x); /* gradients pass as if the range were given */
    const inv_id top = inv_emit_pair(g, "Max", reduced(g, "ReduceMaxAxes", still), none);
    const inv_id bottom = inv_emit_pair(g, "Min", reduced(g, "ReduceMinAxes", still), none);
    const inv_id scale =
        inv_emit_pair(g, "Div", inv_emit_pair(g, "Sub", top, bottom), inv_graph_const_real(g, g->real, 255));
    const inv_id zero =
        saturated(g, inv_emit_pair(g, "Div", inv_emit_pair(g, "Sub", none, bottom), scale), INV_NONE, INV_U8);
    out[0] = inv_cast(g, saturated(g, inv_emit_pair(g, "Div", x, scale), zero, INV_U8), INV_U8);
    out[1] = scale;
    out[2] = inv_cast(g, zero, INV_U8);
    return inv_done(g);
}

/* --- products of integers --- */

/* A type in which sums of k products of 9-bit integers are exact. */
static inv_dtype exact_for(const inv_graph *g, int64_t k)
{
    return g->real == INV_F64 || k > (int64_t)((1 << 24) / (256 * 256)) ? INV_F64 : INV_F32;
}

/* Input i less its zero point, input `zero`, of one number or one per entry of `axis`. */
static inv_status centred(inv_graph *g, const inv_node *n, uint32_t i, uint32_t zero, int64_t axis, inv_dtype t,
                          inv_id *out)
{
    inv_id z;
    const inv_shape s = *inv_in_shape(g, n, i);
    INV_TRY(need_type(g, n, i == 0 ? "input 0" : "the second factor", inv_in_dtype(g, n, i), BYTES));
    *out = inv_cast(g, n->in[i], t);
    if (!inv_has_in(n, zero)) return inv_done(g);
    INV_TRY(spread(g, n, zero, &s, axis, 0, t, &z));
    *out = inv_emit_pair(g, "Sub", *out, z);
    return inv_done(g);
}

/* The exact product of inputs a and b, floating point. Zero points are inputs az and bz. */
static inv_status exact_product(inv_graph *g, const inv_node *n, uint32_t a, uint32_t az, uint32_t b, uint32_t bz,
                                bool conv, inv_id *out)
{
    const inv_shape sa = *inv_in_shape(g, n, a), sb = *inv_in_shape(g, n, b);
    inv_id x, w;
    if (sa.rank < 1 || sb.rank < 1 || (conv && sb.rank != sa.rank))
        return inv_node_fail(g, n, INV_E_SHAPE, "these ranks cannot be multiplied");
    const inv_dtype t = exact_for(g, conv ? inv_prod(&sb, 1, sb.rank) : sa.dim[sa.rank - 1]);
    INV_TRY(centred(g, n, a, az, conv ? 0 : sa.rank - 2, t, &x));
    INV_TRY(centred(g, n, b, bz, conv ? 0 : sb.rank - 1, t, &w));
    *out = inv_onnx(g, n, conv ? "Conv" : "MatMul", INV_IN(x, w), n->nattr, n->attr);
    return inv_done(g);
}

static inv_status matmul_integer_lower(inv_graph *g, const inv_node *n, inv_id *out)
{
    INV_TRY(exact_product(g, n, 0, 2, 1, 3, false, out));
    out[0] = inv_cast(g, out[0], INV_I32);
    return inv_done(g);
}

static inv_status conv_integer_lower(inv_graph *g, const inv_node *n, inv_id *out)
{
    INV_TRY(exact_product(g, n, 0, 2, 1, 3, true, out));
    out[0] = inv_cast(g, out[0], INV_I32);
    return inv_done(g);
}

/* The product times the scales of inputs 1 and 4 over that of input 6, plus zero point 7. */
static inv_status qlinear_lower(inv_graph *g, const inv_node *n, bool conv, inv_id *out)
{
    inv_id sa, sb, sy, zero, acc = INV_NONE;
    static const uint32_t scale[] = {1, 4, 6};
    for (int i = 0; i < 3; i++) INV_TRY(inv_need_real(g, n, scale[i]));
    const inv_dtype t = inv_in_dtype(g, n, 7);
    INV_TRY(need_type(g, n, "the result", t, BYTES));
    INV_TRY(exact_product(g, n, 0, 2, 3, 5, conv, &acc));
    const inv_shape y = *inv_shape_of_value(g, acc);
    if (inv_has_in(n, 8)) {
        inv_id bias;
        INV_TRY(spread(g, n, 8, &y, 1, 0, inv_val(g, acc)->dtype, &bias));
        acc = inv_emit_pair(g, "Add", acc, bias);
    }
    INV_TRY(spread(g, n, 1, &y, conv ? 0 : y.rank - 2, 0, g->real, &sa));
    INV_TRY(spread(g, n, 4, &y, conv ? 1 : y.rank - 1, 0, g->real, &sb));
    INV_TRY(spread(g, n, 6, &y, conv ? 1 : y.rank - 1, 0, g->real, &sy));
    INV_TRY(spread(g, n, 7, &y, conv ? 1 : y.rank - 1, 0, g->real, &zero));
    const inv_id factor = inv_emit_pair(g, "Div", inv_emit_pair(g, "Mul", sa, sb), sy);
    out[0] = inv_cast(g, saturated(g, inv_emit_pair(g, "Mul", inv_cast(g, acc, g->real), factor), zero, t), t);
    return inv_done(g);
}
static inv_status qlinear_matmul_lower(inv_graph *g, const inv_node *n, inv_id *out)
{
    return qlinear_lower(g, n, false, out);
}
static inv_status qlinear_conv_lower(inv_graph *g, const inv_node *n, inv_id *out)
{
    return qlinear_lower(g, n, true, out);
}

/* --- rows --- */
INV_LOWERED_FLAGS(
    quantize, "QuantizeLinear", 10, "x y_scale y_zero_point?", "y", INV_OP_STRAIGHT,
    "round(x / scale) + zero_point, saturated; gradients pass straight through, if DequantizeLinear follows",
    "y = QuantizeLinear(float[2,3] x, float scale, int8 z)",
    "y = QuantizeLinear<axis = 0>(float[2,3] x, float[2] scale, uint8[2] z)",
    "y = QuantizeLinear<axis = 1, block_size = 2>(float[2,5] x, float[2,3] scale, int16[2,3] z)",
    "y = QuantizeLinear<output_dtype = 22>(float[2,3] x, float scale)",
    "y = QuantizeLinear<output_dtype = 4>(float[0,3] x, float[1] scale)",
    "y = QuantizeLinear(int32[2,3] x, float scale)",
    "q = QuantizeLinear(float[2,3] x, float scale, uint8 z)\ny = DequantizeLinear(q, scale, z)")
INV_LOWERED(dequantize, "DequantizeLinear", 10, "x x_scale x_zero_point?", "y", "(x - zero_point) scale",
            "y = DequantizeLinear<axis = 1>(int8[2,3,2] x, float[3] s, int8[3] z)",
            "y = DequantizeLinear<axis = -2>(uint8[2,3] x, float[2] s)", "y = DequantizeLinear(int32[2,3] x, float s)",
            "y = DequantizeLinear<axis = 0, block_size = 2>(int16[3,2] x, float[2,2] s, int16[2,2] z)")
INV_LOWERED_FLAGS(dynamic, "DynamicQuantizeLinear", 11, "x", "y y_scale y_zero_point", INV_OP_STRAIGHT,
                  "x as uint8, the scale from the range of x and 0; gradient as of QuantizeLinear",
                  "y, s, z = DynamicQuantizeLinear(float[2,3] x)", "y, s, z = DynamicQuantizeLinear(float[4] x)")
INV_LOWERED(matmul_integer, "MatMulInteger", 10, "A B a_zero_point? b_zero_point?", "Y",
            "product of (A - a_zero_point) and (B - b_zero_point), exact",
            "y = MatMulInteger(uint8[2,3] a, int8[3,4] b, uint8[2] az, int8[4] bz)",
            "y = MatMulInteger(int8[2,2,300] a, int8[300,4] b)")
INV_LOWERED(conv_integer, "ConvInteger", 10, "x w x_zero_point? w_zero_point?", "y",
            "convolution of (x - x_zero_point) with (w - w_zero_point), exact; pads are x_zero_point",
            "y = ConvInteger<pads = [1,1,1,1]>(uint8[1,2,3,3] x, int8[2,2,2,2] w, uint8 xz, int8[2] wz)",
            "y = ConvInteger(int8[2,1,4] x, int8[1,1,3] w)")
/* clang-format off */
INV_LOWERED(qlinear_matmul, "QLinearMatMul", 10,
    "a a_scale a_zero_point b b_scale b_zero_point y_scale y_zero_point", "y",
    "product of quantized matrices, quantized again",
    "y = QLinearMatMul(uint8[2,3] a, float scale_a, uint8 az, int8[3,4] b, float[4] scale_b, int8[4] bz, "
    "float scale_y, uint8 yz)",
    "y = QLinearMatMul(int8[2,2,3] a, float[2] scale_a, int8[2] az, int8[2,3,1] b, float[1] scale_b, int8[1] bz, "
    "float scale_y, int8 yz)")
/* clang-format on */
INV_LOWERED(
    qlinear_conv, "QLinearConv", 10, "x x_scale x_zero_point w w_scale w_zero_point y_scale y_zero_point B?", "y",
    "convolution of quantized tensors, quantized again",
    "y = QLinearConv<pads = [1,1,1,1]>(uint8[1,2,3,3] x, float scale_x, uint8 xz, int8[3,2,2,2] w, float[3] scale_w, "
    "int8[3] wz, float scale_y, uint8 yz, int32[3] b)",
    "y = QLinearConv(int8[1,1,4] x, float[1] scale_x, int8[1] xz, int8[1,1,3] w, float scale_w, int8 wz, "
    "float scale_y, int8 yz)")

/* clang-format off */
const inv_op_def *const inv_ops_quantize[] = {&quantize_row,     &dequantize_row,     &dynamic_row,
                                              &matmul_integer_row, &conv_integer_row, &qlinear_matmul_row,
                                              &qlinear_conv_row, NULL};
/* clang-format on */
