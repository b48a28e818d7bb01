/* SPDX-License-Identifier: Apache-2.0
 * Comparisons, And, Or, Xor, Not, IsNaN, IsInf, Where, Cast, CastLike, Clip. Any number types; the result of a
 * comparison is bool, one byte of 0 or 1. Sources: the ONNX operator specifications. */
#include "ops/base/bounds.h"
#include "ops/base/families.h"
#include "ops/base/rows.h"
#include "ops/base/strided_copy.h"
#include "ops/elementwise/bits.h"
#include "ops/elementwise/logic_gpu.h"

/* --- comparisons and logic of two operands --- */
static inv_status compare_infer(inv_graph *g, inv_node *n)
{
    inv_shape s;
    INV_TRY(inv_need_same_type(g, n, 2));
    INV_TRY(inv_broadcast_all(g, n, &s));
    if (inv_dtype_size(inv_in_dtype(g, n, 0)) == 0) return inv_node_fail(g, n, INV_E_UNSUPPORTED_TYPE, "not numbers");
    inv_set_out(g, n, 0, INV_BOOL, &s);
    return INV_OK;
}

/* Numbers that device code reads: all but complex ones. */
static bool is_number(inv_dtype t) { return inv_dtype_size(t) > 0 && t != INV_C64 && t != INV_C128; }

static inv_status compare_on_device(const inv_call *c, inv_compare f)
{
    const inv_dtype t = c->in[0].dtype;
    const inv_shape *shape[2] = {&c->in[0].shape, &c->in[1].shape};
    inv_loop l;
    if (c->out[0].n == 0) return INV_OK;
    if (!is_number(t) || t == INV_F16 || t == INV_BF16) return INV_E_UNSUPPORTED_TYPE;
    inv_loop_init(&l, &c->out[0].shape, 2, shape);
    INV_GPU(c->gpu, compare, f, t, &l, c->out[0].data, c->in[0].data, c->in[1].data);
    return INV_OK;
}

#define COMPARE_AS(T, expr)                                                                     \
    do {                                                                                        \
        const T *pa = (const T *)c->in[0].data + at[0], *pb = (const T *)c->in[1].data + at[1]; \
        for (int64_t i = 0; i < l.inner; i++) {                                                 \
            const T a = pa[i * l.step[0]], b = pb[i * l.step[1]];                               \
            o[i] = (uint8_t)(expr);                                                             \
        }                                                                                       \
    } while (0)
#define COMPARE(name, expr)                                             \
    static inv_status name##_run(const inv_call *c)                     \
    {                                                                   \
        if (c->gpu) return compare_on_device(c, INV_COMPARE_##name);    \
        const inv_shape *shape[2] = {&c->in[0].shape, &c->in[1].shape}; \
        inv_loop l;                                                     \
        if (c->out[0].n == 0) return INV_OK;                            \
        inv_loop_init(&l, &c->out[0].shape, 2, shape);                  \
        for (int64_t r = 0; r < l.rows; r++) {                          \
            int64_t at[INV_LOOP_OPS];                                   \
            uint8_t *o = (uint8_t *)c->out[0].data + r * l.inner;       \
            inv_loop_row(&l, r, at);                                    \
            switch (c->in[0].dtype) {                                   \
            case INV_F32: COMPARE_AS(float, expr); break;               \
            case INV_F64: COMPARE_AS(double, expr); break;              \
            case INV_I64: COMPARE_AS(int64_t, expr); break;             \
            case INV_I32: COMPARE_AS(int32_t, expr); break;             \
            case INV_BOOL:                                              \
            case INV_U8: COMPARE_AS(uint8_t, expr); break;              \
            case INV_I8: COMPARE_AS(int8_t, expr); break;               \
            case INV_I16: COMPARE_AS(int16_t, expr); break;             \
            case INV_U16: COMPARE_AS(uint16_t, expr); break;            \
            case INV_U32: COMPARE_AS(uint32_t, expr); break;            \
            case INV_U64: COMPARE_AS(uint64_t, expr); break;            \
            default: return INV_E_UNSUPPORTED_TYPE;                     \
            }                                                           \
        }                                                               \
        return INV_OK;                                                  \
    }
COMPARE(equal, a == b)
COMPARE(less, a < b)
COMPARE(less_or_equal, a <= b)
COMPARE(greater, a > b)
COMPARE(greater_or_equal, a >= b)
COMPARE(and, (a != 0) && (b != 0))
COMPARE(or, (a != 0) || (b != 0))
COMPARE(xor, (a != 0) != (b != 0))

/* --- Not, IsNaN, IsInf --- */
static inv_status flag_infer(inv_graph *g, inv_node *n)
{
    inv_set_out(g, n, 0, INV_BOOL, inv_in_shape(g, n, 0));
    return INV_OK;
}

static inv_status flag_on_device(const inv_call *c, inv_flag f)
{
    if (c->out[0].n == 0) return INV_OK;
    if (!is_number(c->in[0].dtype)) return INV_E_UNSUPPORTED_TYPE;
    INV_GPU(c->gpu, flag, f, c->in[0].dtype, c->out[0].n, c->out[0].data, c->in[0].data);
    return INV_OK;
}

static inv_status not_run(const inv_call *c)
{
    if (c->gpu) return flag_on_device(c, INV_FLAG_NOT);
    for (int64_t i = 0; i < c->out[0].n; i++)
        ((uint8_t *)c->out[0].data)[i] = inv_elem_int(c->in[0].data, c->in[0].dtype, (size_t)i) == 0;
    return INV_OK;
}

static inv_status isnan_run(const inv_call *c)
{
    if (c->gpu) return flag_on_device(c, INV_FLAG_NAN);
    for (int64_t i = 0; i < c->out[0].n; i++) {
        const double v = inv_elem_double(c->in[0].data, c->in[0].dtype, (size_t)i);
        ((uint8_t *)c->out[0].data)[i] = v != v;
    }
    return INV_OK;
}

static inv_status isinf_run(const inv_call *c)
{
    const bool plus = inv_attr_int(c->node, "detect_positive", 1) != 0,
               minus = inv_attr_int(c->node, "detect_negative", 1) != 0;
    if (c->gpu && (plus || minus))
        return flag_on_device(c, plus && minus ? INV_FLAG_INF : plus ? INV_FLAG_PLUS_INF : INV_FLAG_MINUS_INF);
    if (c->gpu) {
        INV_GPU(c->gpu, fill, c->out[0].n, 1, c->out[0].data, 0);
        return INV_OK;
    }
    for (int64_t i = 0; i < c->out[0].n; i++) {
        double v = inv_elem_double(c->in[0].data, c->in[0].dtype, (size_t)i);
        ((uint8_t *)c->out[0].data)[i] = isinf(v) && (v > 0 ? plus : minus);
    }
    return INV_OK;
}

/* --- Where --- */
static inv_status where_infer(inv_graph *g, inv_node *n)
{
    inv_shape s;
    if (inv_in_dtype(g, n, 1) != inv_in_dtype(g, n, 2) || inv_in_dtype(g, n, 0) != INV_BOOL)
        return inv_node_fail(g, n, INV_E_UNSUPPORTED_TYPE, "a bool condition and two operands of one type are wanted");
    INV_TRY(inv_broadcast_all(g, n, &s));
    inv_set_out(g, n, 0, inv_in_dtype(g, n, 1), &s);
    return INV_OK;
}

#define WHERE_AS(T)                                                                                          \
    do {                                                                                                     \
        T *o = (T *)c->out[0].data + r * l.inner;                                                            \
        const T *x = (const T *)c->in[1].data + at[1], *z = (const T *)c->in[2].data + at[2];                \
        for (int64_t i = 0; i < l.inner; i++) o[i] = k[i * l.step[0]] ? x[i * l.step[1]] : z[i * l.step[2]]; \
    } while (0)
static inv_status where_run(const inv_call *c)
{
    const inv_shape *shape[3] = {&c->in[0].shape, &c->in[1].shape, &c->in[2].shape};
    const size_t esize = inv_dtype_size(c->out[0].dtype);
    inv_loop l;
    if (c->out[0].n == 0) return INV_OK;
    inv_loop_init(&l, &c->out[0].shape, 3, shape);
    if (c->gpu) {
        if (esize != 1 && esize != 2 && esize != 4 && esize != 8) return INV_E_UNSUPPORTED_TYPE;
        INV_GPU(c->gpu, where, esize, &l, c->out[0].data, c->in[0].data, c->in[1].data, c->in[2].data);
        return INV_OK;
    }
#pragma omp parallel for schedule(static) if (l.rows * l.inner > INV_OMP_STREAM)
    for (int64_t r = 0; r < l.rows; r++) {
        int64_t at[INV_LOOP_OPS];
        inv_loop_row(&l, r, at);
        const uint8_t *k = (const uint8_t *)c->in[0].data + at[0];
        if (esize == 4) WHERE_AS(uint32_t);
        else if (esize == 8) WHERE_AS(uint64_t);
        else if (esize == 2) WHERE_AS(uint16_t);
        else WHERE_AS(uint8_t);
    }
    return INV_OK;
}

/* What a condition says of the entries that it chooses, passes/match/value_range.c adds. */
static inv_bounds where_bounds(const inv_bounding *q) { return inv_bounds_either(q->operand(q, 1), q->operand(q, 2)); }

static inv_status where_grad(inv_grad *b)
{
    inv_graph *g = b->g;
    const inv_id gy = inv_GO(b, 0), cond = inv_I(b, 0);
    const inv_value *y = inv_val(g, inv_O(b, 0)), *c = inv_val(g, cond);
    if (c->role == INV_ROLE_NODE && inv_shape_equal(&c->shape, &y->shape)) {
        const inv_shape scalar = inv_shape_scalar();
        const inv_bits m = inv_emit_bits(g, 1, cond, inv_graph_const(g, INV_BOOL, &scalar, &(bool){true}), INV_NONE);
        const double pick[2][4] = {{0, 1}, {1, 0}};
        for (uint32_t i = 1; i < 3; i++)
            if (inv_wants(b, i))
                inv_grad_set(b, i, inv_emit_sum_to(g, inv_emit_select(g, gy, &m, pick[i - 1]), inv_I(b, i)));
        return inv_grad_done(b);
    }
    const inv_id zero = inv_graph_const_real(g, inv_val(g, gy)->dtype, 0);
    if (inv_wants(b, 1))
        inv_grad_set(b, 1, inv_emit_sum_to(g, inv_emit1(g, "Where", INV_IN(cond, gy, zero), INV_NOATTR), inv_I(b, 1)));
    if (inv_wants(b, 2))
        inv_grad_set(b, 2, inv_emit_sum_to(g, inv_emit1(g, "Where", INV_IN(cond, zero, gy), INV_NOATTR), inv_I(b, 2)));
    return inv_grad_done(b);
}

/* --- Cast<to>: floating-point types other than the graph's do not exist at run time --- */
static inv_status cast_infer(inv_graph *g, inv_node *n)
{
    const inv_dtype to = (inv_dtype)inv_attr_int(n, "to", 0);
    if (inv_dtype_size(to) == 0 || inv_dtype_size(inv_in_dtype(g, n, 0)) == 0)
        return inv_node_fail(g, n, INV_E_UNSUPPORTED_TYPE, "casts between numbers only, not to %s", inv_dtype_name(to));
    inv_set_out(g, n, 0, to, inv_in_shape(g, n, 0));
    return INV_OK;
}

static inv_status cast_on_device(const inv_call *c)
{
    const inv_tensor *x = &c->in[0], *y = &c->out[0];
    const size_t nbytes = (size_t)y->n * inv_dtype_size(y->dtype);
    if (y->n == 0) return INV_OK;
    if (x->dtype == y->dtype && y->dtype != INV_BOOL) {
        inv_copy_rows_gpu(c->gpu, y->data, nbytes, x->data, nbytes, nbytes, 1);
        return INV_OK;
    }
    if (!is_number(x->dtype) || !is_number(y->dtype)) return INV_E_UNSUPPORTED_TYPE;
    INV_GPU(c->gpu, cast, y->n, y->dtype, y->data, x->dtype, x->data);
    return INV_OK;
}

static inv_status cast_run(const inv_call *c)
{
    if (c->gpu) return cast_on_device(c);
    const inv_tensor *x = &c->in[0], *y = &c->out[0];
    if (y->n == 0) return INV_OK;
    if (y->dtype == INV_BOOL) { /* NaN and every fraction are true */
        for (int64_t i = 0; i < y->n; i++)
            ((uint8_t *)y->data)[i] = inv_dtype_is_float(x->dtype) ? inv_elem_double(x->data, x->dtype, (size_t)i) != 0
                                                                   : inv_elem_int(x->data, x->dtype, (size_t)i) != 0;
        return INV_OK;
    }
    return inv_convert(y->data, y->dtype, x->data, x->dtype, (size_t)y->n) ? INV_OK : INV_E_UNSUPPORTED_TYPE;
}

static inv_status cast_grad(inv_grad *b)
{
    const inv_dtype from = inv_val(b->g, inv_I(b, 0))->dtype, to = inv_val(b->g, inv_O(b, 0))->dtype;
    if (inv_dtype_is_float(from) && inv_dtype_is_float(to))
        inv_grad_set(b, 0, inv_emit1(b->g, "Cast", INV_IN(inv_GO(b, 0)), INV_ATTRS(inv_attr_of_int("to", from))));
    return inv_grad_done(b);
}

/* v of integers, wrapped to as many bits. */
static inv_id emit_wrap(inv_graph *g, inv_id v, unsigned bits, bool is_signed)
{
    const inv_shape scalar = inv_shape_scalar();
    const int32_t all = 1 << bits, below = is_signed ? all / 2 : 0;
    v = inv_emit1(g, "Cast", INV_IN(v), INV_ATTRS(inv_attr_of_int("to", INV_I32)));
    const inv_id half = inv_graph_const(g, INV_I32, &scalar, &below);
    const inv_id whole = inv_graph_const(g, INV_I32, &scalar, &all);
    v = inv_emit1(g, "ModFloor", INV_IN(inv_emit1(g, "Add", INV_IN(v, half), INV_NOATTR), whole), INV_NOATTR);
    v = inv_emit1(g, "Sub", INV_IN(v, half), INV_NOATTR);
    return inv_emit1(g, "Cast", INV_IN(v), INV_ATTRS(inv_attr_of_int("to", is_signed ? INV_I8 : INV_U8)));
}

/* To a small type: the same type carries the result, rounded or wrapped. */
static inv_status lower_small_cast(inv_graph *g, const inv_node *n, inv_dtype to, inv_id *out)
{
    const inv_dtype carrier = inv_dtype_carrier(to, g->real ? g->real : INV_F32);
    const char *mode = inv_attr_string(n, "round_mode", "up");
    const int64_t way = strcmp(mode, "down") == 0 ? 2 : strcmp(mode, "nearest") == 0 ? 3 : 1;
    const int64_t saturate = (int)to == INV_F8E8M0 ? way : inv_attr_int(n, "saturate", 1);
    out[0] = n->in[0];
    if (inv_val(g, n->in[0])->stated == to) return INV_OK;
    if (inv_dtype_is_float(carrier)) {
        if (inv_in_dtype(g, n, 0) != carrier)
            out[0] = inv_emit1(g, "Cast", INV_IN(out[0]), INV_ATTRS(inv_attr_of_int("to", carrier)));
        out[0] = inv_emit1(g, "RoundSmall", INV_IN(out[0]),
                           INV_ATTRS(inv_attr_of_float("format", to), inv_attr_of_float("saturate", (double)saturate)));
    } else {
        out[0] = emit_wrap(g, out[0], inv_dtype_bits(to), carrier == INV_I8);
    }
    if (out[0] != INV_NONE) inv_val(g, out[0])->stated = to;
    return inv_done(g);
}

static inv_status lower_cast(inv_graph *g, const inv_node *n, inv_dtype to, inv_id *out)
{
    if (inv_dtype_bits(to)) return lower_small_cast(g, n, to, out);
    if (inv_dtype_is_float(to) && g->real) to = g->real;
    out[0] = to == inv_in_dtype(g, n, 0) ? n->in[0]
                                         : inv_emit1(g, "Cast", INV_IN(n->in[0]), INV_ATTRS(inv_attr_of_int("to", to)));
    return inv_done(g);
}

static inv_status onnx_cast_lower(inv_graph *g, const inv_node *n, inv_id *out)
{
    const inv_attr *to = inv_attr_find(n, "to");
    inv_dtype t = to ? (inv_dtype)to->i : INV_DT_NONE;
    if (to && to->kind == INV_ATTR_STRING && !inv_dtype_parse(to->s, &t)) t = INV_DT_NONE; /* opset 1 */
    if (inv_dtype_size(t) == 0 && inv_dtype_bits(t) == 0)
        return inv_node_fail(g, n, INV_E_UNSUPPORTED_TYPE, "cast to %s", inv_dtype_name(t));
    return lower_cast(g, n, t, out);
}

static inv_status cast_like_lower(inv_graph *g, const inv_node *n, inv_id *out)
{
    const inv_dtype stated = inv_val(g, n->in[1])->stated;
    return lower_cast(g, n, stated ? stated : inv_in_dtype(g, n, 1), out);
}

/* --- BitCastTo<to>: the bytes are taken for another type of the same size --- */
static inv_status bit_cast_infer(inv_graph *g, inv_node *n)
{
    const inv_dtype to = (inv_dtype)inv_attr_int(n, "to", 0), from = inv_in_dtype(g, n, 0);
    if (inv_dtype_size(to) == 0 || inv_dtype_size(to) != inv_dtype_size(from))
        return inv_node_fail(g, n, INV_E_UNSUPPORTED_TYPE, "elements of %s and %s differ in size", inv_dtype_name(from),
                             inv_dtype_name(to));
    inv_set_out(g, n, 0, to, inv_in_shape(g, n, 0));
    return INV_OK;
}

static inv_status bit_cast_run(const inv_call *c)
{
    const size_t nbytes = (size_t)c->out[0].n * inv_dtype_size(c->out[0].dtype);
    if (c->gpu) inv_copy_rows_gpu(c->gpu, c->out[0].data, nbytes, c->in[0].data, nbytes, nbytes, 1);
    else memmove(c->out[0].data, c->in[0].data, nbytes);
    return INV_OK;
}

/* float16 and bfloat16 do not exist here: they are computed with as the graph's type. */
static inv_status bit_cast_lower(inv_graph *g, const inv_node *n, inv_id *out)
{
    const inv_dtype to = (inv_dtype)inv_attr_int(n, "to", 0);
    inv_id v = n->in[0];
    if (to != inv_in_dtype(g, n, 0)) v = inv_emit1(g, "BitCastTo", INV_IN(v), INV_ATTRS(inv_attr_of_int("to", to)));
    if (v != INV_NONE && inv_dtype_is_float(to) && g->real && to != g->real)
        v = inv_emit1(g, "Cast", INV_IN(v), INV_ATTRS(inv_attr_of_int("to", g->real)));
    out[0] = v;
    return inv_done(g);
}

/* --- Clip: constant bounds to ClipRange, others (and integers) to Max and Min --- */
static bool bound(const inv_graph *g, const inv_node *n, const char *attr, uint32_t input, double *v, bool *constant)
{
    const inv_attr *a = inv_attr_find(n, attr);
    *constant = true;
    if (inv_has_in(n, input)) {
        const inv_value *x = inv_val(g, n->in[input]);
        *constant = inv_const_known(g, n->in[input]) && x->data.bytes != NULL && inv_shape_nelem(&x->shape) == 1;
        if (*constant) *v = inv_elem_double(x->data.bytes, x->data.dtype, 0);
        return true;
    }
    if (a == NULL) return false;
    *v = a->f;
    return true;
}

static inv_status clip_lower(inv_graph *g, const inv_node *n, inv_id *out)
{
    double lo = 0, hi = 0;
    bool lo_constant, hi_constant;
    inv_attr attr[2];
    uint32_t nattr = 0;
    const bool has_lo = bound(g, n, "min", 1, &lo, &lo_constant), has_hi = bound(g, n, "max", 2, &hi, &hi_constant);
    out[0] = n->in[0];
    if (has_lo && has_hi && lo > hi) lo = hi; /* all elements become max */
    if (inv_dtype_is_float(inv_in_dtype(g, n, 0)) && lo_constant && hi_constant) {
        if (has_lo) attr[nattr++] = inv_attr_of_float("min", lo);
        if (has_hi) attr[nattr++] = inv_attr_of_float("max", hi);
        if (nattr) out[0] = inv_emit1(g, "ClipRange", INV_IN(n->in[0]), nattr, attr);
        return inv_done(g);
    }
    if (inv_has_in(n, 1)) out[0] = inv_emit1(g, "Max", INV_IN(out[0], n->in[1]), INV_NOATTR);
    if (inv_has_in(n, 2)) out[0] = inv_emit1(g, "Min", INV_IN(out[0], n->in[2]), INV_NOATTR);
    return inv_done(g);
}

/* --- rows --- */
/* clang-format off */
#define COMPARE_ROW(id, op, opset, bits, type, text)                                                                  \
    INV_CASE_LIST(id, "y = " op "(" type "[2,3] a, " type "[3] b)", "y = " op "(" type "[1] a, " type " b)",          \
          "y = " op "(" type "[0,3] a, " type "[1,3] b)", "y = " op "(int64[2,1] a, int64[3] b)")                     \
    static const inv_op_def id##_row = {                                                                              \
        .size = sizeof(inv_op_def), .domain = "", .name = op, .since = opset, .in = "a b", .out = "y",                \
        .flags = INV_OP_ELEMENTWISE | INV_OP_NO_GRAD | (bits), .infer = compare_infer, .run = id##_run,               \
        .onnx = "", .flops = inv_flops_out, .cases = id##_cases, .doc = text ". ONNX " op "-" #opset};
/* clang-format on */
COMPARE_ROW(equal, "Equal", 7, INV_OP_COMMUTATIVE, "float", "a = b")
COMPARE_ROW(less, "Less", 7, 0, "float", "a < b")
COMPARE_ROW(less_or_equal, "LessOrEqual", 12, 0, "float", "a <= b")
COMPARE_ROW(greater, "Greater", 7, 0, "float", "a > b")
COMPARE_ROW(greater_or_equal, "GreaterOrEqual", 12, 0, "float", "a >= b")
COMPARE_ROW(and, "And", 7, INV_OP_COMMUTATIVE, "bool", "both")
COMPARE_ROW(or, "Or", 7, INV_OP_COMMUTATIVE, "bool", "either")
COMPARE_ROW(xor, "Xor", 7, INV_OP_COMMUTATIVE, "bool", "one of the two")

/* clang-format off */
#define FLAG_ROW(id, op, opset, type, text)                                                                           \
    INV_CASE_LIST(id, "y = " op "(" type "[2,3] x)", "y = " op "(" type "[1] x)", "y = " op "(" type "[0] x)")        \
    static const inv_op_def id##_row = {                                                                              \
        .size = sizeof(inv_op_def), .domain = "", .name = op, .since = opset, .in = "x", .out = "y",                  \
        .flags = INV_OP_ELEMENTWISE | INV_OP_NO_GRAD, .infer = flag_infer, .run = id##_run,                           \
        .onnx = "", .flops = inv_flops_out, .cases = id##_cases, .doc = text ". ONNX " op "-" #opset};
/* clang-format on */
FLAG_ROW(not, "Not", 1, "bool", "negation")
FLAG_ROW(isnan, "IsNaN", 9, "float", "x is not a number")
FLAG_ROW(isinf, "IsInf", 10, "float", "x is infinite")

INV_CASE_LIST(where, "k = Greater(float[2,1] c, float[3] d)\ny = Where(k, float[2,3] a, float[4,1,3] b)",
              "k = Greater(float[1] c, float d)\ny = Where(k, float[1] a, float b)",
              "k = Greater(float[0,3] c, float d)\ny = Where(k, float[1,3] a, float b)",
              "y = Where(bool[2,3] k, int32[3] a, int32 b)", "y = Where(bool[3] k, bool[2,1] a, bool[3] b)")
/* clang-format off */
static const inv_op_def where_row = {
    .size = sizeof(inv_op_def), .domain = "", .name = "Where", .since = 9, .in = "cond a b", .out = "y", .inplace = 6,
    .flags = INV_OP_ELEMENTWISE, .infer = where_infer, .grad = where_grad, .run = where_run,
    .bounds = where_bounds, .onnx = "",
    .flops = inv_flops_out,
    .cases = where_cases, .doc = "a where cond holds, else b. ONNX Where-9"};
/* clang-format on */

INV_CASE_LIST(cast, "y = ai.invonnx.ir.Cast<to = 7>(float[2,3] x)", "y = ai.invonnx.ir.Cast<to = 1>(int64[1] x)",
              "y = ai.invonnx.ir.Cast<to = 9>(float[2] x)", "y = ai.invonnx.ir.Cast<to = 1>(bool[5] x)",
              "k = ai.invonnx.ir.Cast<to = 3>(int32[5] x)\ny = ai.invonnx.ir.Cast<to = 7>(k)",
              "k = ai.invonnx.ir.Cast<to = 10>(int64[5] x)\ny = ai.invonnx.ir.Cast<to = 6>(k)")
static const inv_op_def cast_row = {.size = sizeof(inv_op_def),
                                    .domain = INV_IR,
                                    .name = "Cast",
                                    .since = 1,
                                    .in = "x",
                                    .out = "y",
                                    .flags = INV_OP_ELEMENTWISE,
                                    .infer = cast_infer,
                                    .grad = cast_grad,
                                    .run = cast_run,
                                    .flops = inv_flops_out,
                                    .cases = cast_cases,
                                    .doc = "x as another number type"};

INV_CASE_LIST(bits, "y = BitCastTo<to = 12>(int32[2,3] x)", "y = BitCastTo<to = 2>(int8[5] x)",
              "y = BitCastTo<to = 13>(int64[0] x)")
/* clang-format off */
static const inv_op_def bits_row = {
    .size = sizeof(inv_op_def), .domain = INV_IR, .name = "BitCastTo", .since = 1, .in = "x", .out = "y",
    .flags = INV_OP_NO_GRAD, .infer = bit_cast_infer, .run = bit_cast_run,
    .flops = inv_flops_none, .cases = bits_cases, .doc = "the bytes of x as another type of the same size"};
/* clang-format on */

INV_LOWERED(onnx_cast, "Cast", 1, "x", "y", "floating-point types become the graph's. ONNX Cast-1, -6, -9, -13",
            "y = Cast<to = 1>(float[2,3] x)", "y = Cast<to = 1>(int64[1] x)", "y = Cast<to = 6>(float[2] x)")
INV_LOWERED(cast_like, "CastLike", 15, "x like", "y", "to Cast. ONNX CastLike-15",
            "y = CastLike(int64[2,3] x, float[1] z)", "y = CastLike(float[1] x, float z)")
INV_LOWERED(bit_cast, "BitCast", 26, "x", "y", "to BitCastTo. ONNX BitCast-26", "y = BitCast<to = 12>(int32[2,3] x)",
            "y = BitCast<to = 7>(int64[1] x)")
INV_LOWERED(clip, "Clip", 1, "x min? max?", "y", "y = min(max(x, min), max). ONNX Clip-1, -6, -11, -12, -13",
            "a = Constant<value_float = -0.5>()\nb = Constant<value_float = 0.75>()\ny = Clip(float[2,3] x, a, b)",
            "y = Clip<min = 0.0>(float[2,3] x)", "y = Clip(float[1] x, , float b)", "y = Clip(float[2] x)",
            "y = Clip<min = 0.5, max = -0.5>(float[2,3] x)")

/* clang-format off */
const inv_op_def *const inv_ops_logic[] = {
    &equal_row, &less_row,  &less_or_equal_row, &greater_row,   &greater_or_equal_row,
    &and_row,   &or_row,    &xor_row,           &not_row,       &isnan_row,
    &isinf_row, &where_row, &cast_row,          &onnx_cast_row, &cast_like_row,
    &clip_row,  &bits_row,  &bit_cast_row,      NULL};
/* clang-format on */
