/* SPDX-License-Identifier: Apache-2.0
 * Arithmetic with two operands that broadcast (Add, Mul, Pow, PRelu, Min, Mod, ...), the operators that their gradients
 * need, and the variadic forms that lower to them. float, double, and integers for shape arithmetic. */
#include "ops/base/bounds.h"
#include "ops/base/emit.h"
#include "ops/base/families.h"
#include "ops/base/parallel.h"
#include "ops/base/rows.h"
#include "ops/base/still.h"
#include "ops/elementwise/arith_gpu.h"
#include "ops/elementwise/bits.h"
#include "ops/elementwise/fused_gpu.h"
#include "ops/gpu/integers.h"

#define ARITH_PIECE 16384 /* elements in a row on one thread */
#define INV_BOTH "ops/elementwise/arith_kernels.inc"
#include "ops/base/both_reals.inc"

typedef void (*arith_loop)(void *out, const void *const *in, const inv_loop *l, int64_t least);
/* One element in integers; false: division by zero. */
typedef bool (*arith_int)(int64_t a, int64_t b, int64_t *out);

/* Of numbers without a sign what differs, else f. */
static arith_int unsigned_form(inv_arith id, arith_int f)
{
    switch (id) {
#define UNSIGNED_FORM(f, as) \
    case INV_ARITH_##f: return inv_uint_##as;
        UNSIGNED2_OPS(UNSIGNED_FORM) /* NOLINT: without signs two remainders are one */
#undef UNSIGNED_FORM
    default: return f;
    }
}

static inv_status run_ints(const inv_call *c, const inv_loop *l, arith_int f)
{
    const inv_tensor *x = &c->in[0], *z = &c->in[1];
    if (f == NULL) return INV_E_UNSUPPORTED_TYPE;
    for (int64_t r = 0; r < l->rows; r++) {
        int64_t at[INV_LOOP_OPS];
        inv_loop_row(l, r, at);
        for (int64_t i = 0; i < l->inner; i++) {
            int64_t a = inv_elem_int(x->data, x->dtype, (size_t)(at[0] + i * l->step[0]));
            int64_t b = inv_elem_int(z->data, z->dtype, (size_t)(at[1] + i * l->step[1])), v;
            if (!f(a, b, &v)) return INV_E_NUMERIC;
            inv_put_int(c->out[0].data, c->out[0].dtype, r * l->inner + i, v);
        }
    }
    return INV_OK;
}

static inv_status run_arith(const inv_call *c, inv_arith id, arith_loop f32, arith_loop f64, arith_int ints,
                            int64_t least)
{
    const inv_shape *shape[INV_LOOP_OPS];
    const void *in[INV_LOOP_OPS];
    inv_loop l;
    if (c->out[0].data == NULL) return INV_OK;
    for (uint32_t i = 0; i < c->nin; i++) {
        shape[i] = &c->in[i].shape;
        in[i] = c->in[i].data;
    }
    inv_loop_init(&l, &c->out[0].shape, (int)c->nin, shape);
    if (c->out[0].n == 0) return INV_OK;
    if (f32 == NULL && inv_dtype_is_float(c->out[0].dtype)) return INV_E_UNSUPPORTED_TYPE;
    if (c->gpu) {
        INV_GPU(c->gpu, arith, c->node, id, c->out[0].dtype, &l, c->out[0].data, in);
        return INV_OK;
    }
    if (c->out[0].dtype == INV_F32) return f32(c->out[0].data, in, &l, least), INV_OK;
    if (c->out[0].dtype == INV_F64) return f64(c->out[0].data, in, &l, least), INV_OK;
    return run_ints(c, &l, c->out[0].dtype == INV_U64 ? unsigned_form(id, ints) : ints);
}
/* `least`: elements from which on threads are worth it. */
#define CALL(id, f, ints) CALL_FROM(INV_OMP_STREAM, id, f, ints)
#define CALL_FROM(least, id, f, ints)                                                    \
    static const inv_pieces id##_piece = {f##_piece_f32, f##_piece_f64, INV_OPCODE_##f}; \
    static inv_status id##_run(const inv_call *c)                                        \
    {                                                                                    \
        return run_arith(c, INV_ARITH_##f, f##_loop_f32, f##_loop_f64, ints, least);     \
    }

#define BITS(id) \
    static inv_status id##_run(const inv_call *c) { return run_arith(c, INV_ARITH_##id, NULL, NULL, inv_int_##id, 0); }

static inv_status integers_infer(inv_graph *g, inv_node *n)
{
    const inv_dtype t = inv_in_dtype(g, n, 0);
    if (inv_dtype_is_float(t) || t == INV_BOOL || inv_dtype_size(t) == 0 || inv_dtype_size(t) > 8 || t == INV_C64)
        return inv_node_fail(g, n, INV_E_UNSUPPORTED_TYPE, "integers are wanted, not %s", inv_dtype_name(t));
    return inv_infer_broadcast(g, n);
}

static inv_status numbers_infer(inv_graph *g, inv_node *n)
{
    if (!inv_dtype_is_float(inv_in_dtype(g, n, 0)) && inv_dtype_size(inv_in_dtype(g, n, 0)) != 0)
        return inv_infer_broadcast(g, n);
    INV_TRY(inv_need_real(g, n, 0));
    return inv_infer_broadcast(g, n);
}

/* Pow: the exponent may be of another type; lowering makes it the base's. */
static inv_status reals_infer(inv_graph *g, inv_node *n)
{
    INV_TRY(inv_need_real(g, n, 0));
    return inv_infer_broadcast(g, n);
}

/* --- gradients --- */
static inv_id neg(inv_graph *g, inv_id v) { return inv_emit1(g, "Neg", INV_IN(v), INV_NOATTR); }
static inv_id op3(inv_graph *g, const char *op, inv_id a, inv_id b, inv_id c)
{
    return inv_emit1(g, op, INV_IN(a, b, c), INV_NOATTR);
}
/* The gradient of input i is v, summed down to that input's shape. */
static void give_summed(inv_grad *b, uint32_t i, inv_id v)
{
    inv_grad_set(b, i, inv_emit_sum_to(b->g, v, inv_I(b, i)));
}

static inv_status add_grad(inv_grad *b)
{
    if (inv_wants(b, 0)) give_summed(b, 0, inv_GO(b, 0));
    if (inv_wants(b, 1)) give_summed(b, 1, inv_GO(b, 0));
    return inv_grad_done(b);
}

static inv_status sub_grad(inv_grad *b)
{
    if (inv_wants(b, 0)) give_summed(b, 0, inv_GO(b, 0));
    if (inv_wants(b, 1)) inv_grad_set(b, 1, neg(b->g, inv_emit_sum_to(b->g, inv_GO(b, 0), inv_I(b, 1))));
    return inv_grad_done(b);
}

static inv_status mul_grad(inv_grad *b)
{
    if (inv_wants(b, 0)) give_summed(b, 0, inv_emit_pair(b->g, "Mul", inv_GO(b, 0), inv_I(b, 1)));
    if (inv_wants(b, 1)) give_summed(b, 1, inv_emit_pair(b->g, "Mul", inv_GO(b, 0), inv_I(b, 0)));
    return inv_grad_done(b);
}

static inv_status div_grad(inv_grad *b)
{
    if (inv_wants(b, 0)) give_summed(b, 0, inv_emit_pair(b->g, "Div", inv_GO(b, 0), inv_I(b, 1)));
    if (inv_wants(b, 1)) give_summed(b, 1, op3(b->g, "DivGradB", inv_GO(b, 0), inv_O(b, 0), inv_I(b, 1)));
    return inv_grad_done(b);
}

/* A root of what stands still where it is zero, as norms are. */
static bool is_norm(const inv_grad *b)
{
    const inv_value *e = inv_val(b->g, inv_I(b, 1));
    if (!inv_const_known(b->g, inv_I(b, 1)) || !e->data.bytes || inv_shape_nelem(&e->data.shape) != 1) return false;
    const double p = inv_elem_double(e->data.bytes, e->data.dtype, 0);
    return p > 0 && p < 1 && inv_stands_still(b->g, inv_I(b, 0));
}

static inv_status pow_grad(inv_grad *b)
{
    if (inv_wants(b, 0)) {
        inv_id slope = op3(b->g, "PowGradX", inv_GO(b, 0), inv_I(b, 0), inv_I(b, 1));
        if (slope != INV_NONE && is_norm(b)) slope = inv_still_where(b->g, inv_I(b, 0), 0, slope);
        give_summed(b, 0, slope);
    }
    if (inv_wants(b, 1)) give_summed(b, 1, op3(b->g, "PowGradE", inv_GO(b, 0), inv_I(b, 0), inv_O(b, 0)));
    return inv_grad_done(b);
}

static inv_status prelu_grad(inv_grad *b)
{
    if (inv_wants(b, 0)) give_summed(b, 0, op3(b->g, "PReluGradX", inv_GO(b, 0), inv_I(b, 0), inv_I(b, 1)));
    if (inv_wants(b, 1)) give_summed(b, 1, inv_emit_pair(b->g, "PReluGradSlope", inv_GO(b, 0), inv_I(b, 0)));
    return inv_grad_done(b);
}

/* Factors of the two operands where a < b, a = b, a > b, or one is NaN. */
static inv_status choice_grad(inv_grad *b, bool largest)
{
    static const double lower[4] = {1, 0.5, 0, 1}, upper[4] = {0, 0.5, 1, 1};
    if (!inv_wants(b, 0) && !inv_wants(b, 1)) return INV_OK;
    const inv_bits m = inv_emit_bits(b->g, 2, inv_I(b, 0), inv_I(b, 1), INV_NONE);
    if (inv_wants(b, 0)) give_summed(b, 0, inv_emit_select(b->g, inv_GO(b, 0), &m, largest ? upper : lower));
    if (inv_wants(b, 1)) give_summed(b, 1, inv_emit_select(b->g, inv_GO(b, 0), &m, largest ? lower : upper));
    return inv_grad_done(b);
}
static inv_status max_grad(inv_grad *b) { return choice_grad(b, true); }
static inv_status min_grad(inv_grad *b) { return choice_grad(b, false); }

/* y = x - k z with an integer k that is constant almost everywhere: dz = -gy k = -gy (x - y) / z. */
static inv_status mod_grad(inv_grad *b)
{
    inv_graph *g = b->g;
    if (inv_wants(b, 0)) give_summed(b, 0, inv_GO(b, 0));
    if (inv_wants(b, 1)) {
        inv_id k = inv_emit_pair(g, "Div", inv_emit_pair(g, "Sub", inv_I(b, 0), inv_O(b, 0)), inv_I(b, 1));
        give_summed(b, 1, neg(g, inv_emit_pair(g, "Mul", inv_GO(b, 0), k)));
    }
    return inv_grad_done(b);
}

/* --- lowerings --- */
static inv_status fold_pairs(inv_graph *g, const inv_node *n, const char *op, inv_id *out)
{
    inv_id v = n->in[0];
    for (uint32_t i = 1; i < n->nin; i++) v = inv_emit_pair(g, op, v, n->in[i]);
    out[0] = v;
    return inv_done(g);
}
static inv_status sum_lower(inv_graph *g, const inv_node *n, inv_id *out) { return fold_pairs(g, n, "Add", out); }
static inv_status max_lower(inv_graph *g, const inv_node *n, inv_id *out) { return fold_pairs(g, n, "Max", out); }
static inv_status min_lower(inv_graph *g, const inv_node *n, inv_id *out) { return fold_pairs(g, n, "Min", out); }
static inv_status mean_lower(inv_graph *g, const inv_node *n, inv_id *out)
{
    INV_TRY(inv_need_real(g, n, 0));
    INV_TRY(fold_pairs(g, n, "Add", out));
    if (n->nin > 1) {
        inv_id k = inv_graph_const_real(g, inv_in_dtype(g, n, 0), 1.0 / n->nin);
        out[0] = inv_emit_pair(g, "Mul", out[0], k);
    }
    return inv_done(g);
}

static inv_status pow_lower(inv_graph *g, const inv_node *n, inv_id *out)
{
    inv_id e = n->in[1];
    inv_dtype t = inv_in_dtype(g, n, 0);
    if (inv_in_dtype(g, n, 1) != t) e = inv_emit1(g, "Cast", INV_IN(e), INV_ATTRS(inv_attr_of_int("to", t)));
    out[0] = inv_emit_pair(g, "Pow", n->in[0], e);
    return inv_done(g);
}

static inv_status mod_lower(inv_graph *g, const inv_node *n, inv_id *out)
{
    out[0] = inv_emit_pair(g, inv_attr_int(n, "fmod", 0) ? "ModTruncate" : "ModFloor", n->in[0], n->in[1]);
    return inv_done(g);
}

/* Without a sign, 64 bits: zeros come in. Narrower ones are positive when they are widened. */
static inv_status shift_lower(inv_graph *g, const inv_node *n, inv_id *out)
{
    const char *way = inv_attr_string(n, "direction", "");
    const bool right = strcmp(way, "RIGHT") == 0;
    if (!right && strcmp(way, "LEFT") != 0)
        return inv_node_fail(g, n, INV_E_GRAPH, "direction must be LEFT or RIGHT, not '%s'", way);
    const char *op = inv_in_dtype(g, n, 0) == INV_U64 ? "ShiftRightLogical" : "ShiftRight";
    out[0] = inv_emit_pair(g, right ? op : "ShiftLeft", n->in[0], n->in[1]);
    return inv_done(g);
}

static inv_status bitwise_not_lower(inv_graph *g, const inv_node *n, inv_id *out)
{
    const inv_shape scalar = inv_shape_scalar();
    const int64_t ones = -1;
    out[0] = inv_emit_pair(g, "BitwiseXor", n->in[0], inv_graph_const(g, inv_in_dtype(g, n, 0), &scalar, &ones));
    return inv_done(g);
}

/* --- rows --- */
#define CASES2(op)                                                                        \
    "y = " op "(float[2,3] a, float[2,3] b)", "y = " op "(float[2,3] a, float[3] b)",     \
        "y = " op "(float[2,1] a, float[4,1,3] b)", "y = " op "(float[1] a, float b)",    \
        "y = " op "(float[0,3] a, float[1,3] b)", "y = " op "(int64[2,3] a, int64[3] b)", \
        "y = " op "(int32[2,1] a, int32[4] b)", "y = " op "(int8[5] a, int8[5] b)", NULL
/* Above half of the range, where the sign would be. */
#define UNSIGNED2(op)                                                         \
    "h = Cast<to = 13>(int64[4]{0,-1,5,-9})\na = BitwiseOr(uint64[4] x, h)\n" \
    "i = Cast<to = 13>(int64[4]{1,2,-3,3})\nb = BitwiseOr(uint64[4] z, i)\ny = " op "(a, b)"
static const char *const add_cases[] = {CASES2("Add")};
static const char *const sub_cases[] = {CASES2("Sub")};
static const char *const mul_cases[] = {CASES2("Mul")};
static const char *const max_cases[] = {UNSIGNED2("ai.invonnx.ir.Max"), CASES2("ai.invonnx.ir.Max")};
static const char *const min_cases[] = {UNSIGNED2("ai.invonnx.ir.Min"), CASES2("ai.invonnx.ir.Min")};
#define POSITIVE2(op)                                               \
    "p = Exp(float[2,3] a)\nq = Exp(float[3] b)\ny = " op "(p, q)", \
        "p = Exp(float[1] a)\nq = Exp(float b)\ny = " op "(p, q)", "y = " op "(float[0,3] a, float[1,3] b)", NULL
static const char *const div_cases[] = {UNSIGNED2("Div"), POSITIVE2("Div")};
static const char *const pow_cases[] = {UNSIGNED2("ai.invonnx.ir.Pow"), POSITIVE2("ai.invonnx.ir.Pow")};
static const char *const fmod_cases[] = {UNSIGNED2("ModTruncate"), POSITIVE2("ModTruncate")};
static const char *const pymod_cases[] = {UNSIGNED2("ModFloor"), POSITIVE2("ModFloor")};
static const char *const prelu_cases[] = {
    "y = PRelu(float[2,3] x, float[2,3] s)", "y = PRelu(float[2,3,4] x, float[3,1] s)",
    "y = PRelu(float[1] x, float[1] s)", "y = PRelu(float[0,2] x, float[2] s)", NULL};
static const char *const prelu_inv_cases[] = {
    "s = Exp(float[3,1] u)\ny = PRelu(float[2,3,4] v, s)\nx = PReluInverse(y, s)",
    "s = Exp(float[1] u)\ny = PRelu(float[1] v, s)\nx = PReluInverse(y, s)", NULL};
#define GRAD_CASES(op) \
    "d = " op "(float[2,3] gy, float[2,3] a, float[3] b)", "d = " op "(float[1] gy, float[1] a, float b)", NULL
static const char *const div_db_cases[] = {GRAD_CASES("DivGradB")};
static const char *const pow_dx_cases[] = {"p = Exp(float[2,3] x)\nd = PowGradX(float[2,3] gy, p, float[3] e)",
                                           "p = Exp(float x)\nd = PowGradX(float[1] gy, p, float e)", NULL};
/* clang-format off */
static const char *const pow_de_cases[] = {
    "p = Exp(float[2,3] x)\nd = PowGradE(float[2,3] gy, p, float[2,3] y)",
    "p = Exp(float x)\nd = PowGradE(float[1] gy, p, float y)", NULL};
/* clang-format on */
static const char *const prelu_dx_cases[] = {GRAD_CASES("PReluGradX")};
static const char *const dslope_cases[] = {"d = PReluGradSlope(float[2,3] gy, float[2,3] x)",
                                           "d = PReluGradSlope(float[1] gy, float[1] x)", NULL};

#define BITS2(op)                                                                                                    \
    "y = " op "(int64[2,3] a, int64[3] b)", "y = " op "(uint8[2,3] a, uint8[1] b)", "y = " op "(int8[1] a, int8 b)", \
        "y = " op "(int32[0,3] a, int32[3] b)", NULL
static const char *const and_cases[] = {BITS2("BitwiseAnd")};
static const char *const or_cases[] = {BITS2("BitwiseOr")};
static const char *const xor_cases[] = {BITS2("BitwiseXor")};
static const char *const shl_cases[] = {"y = ShiftLeft(uint8[4]{1,128,3,255},uint8[4]{1,1,7,9})", BITS2("ShiftLeft")};
static const char *const shr_cases[] = {"y = ShiftRight(int8[4]{-128,127,-1,64},int8[4]{1,1,7,-1})",
                                        BITS2("ShiftRight")};
static const char *const shr_logical_cases[] = {"y = ShiftRightLogical(uint64[2] a, uint64[1] b)",
                                                "y = ShiftRightLogical(int64[2]{-1,5},int64[2]{63,1})", NULL};
BITS(and)
BITS(or)
BITS(xor)
BITS(shl)
BITS(shr)
BITS(shr_logical)
CALL(add, add, inv_int_add)
CALL(sub, sub, inv_int_sub)
CALL(mul, mul, inv_int_mul)
CALL(div, div, inv_int_div)
CALL_FROM(INV_OMP_MIN, pow, pow, inv_int_pow)
CALL(max, max, inv_int_max)
CALL(min, min, inv_int_min)
CALL(fmod, fmod, inv_int_fmod)
CALL(pymod, pymod, inv_int_pymod)
CALL(prelu, prelu, NULL)
CALL(prelu_inv, prelu_inv, NULL)
CALL(dslope, prelu_dslope, NULL)
CALL(prelu_dx, prelu_dx, NULL)
CALL(div_db, div_db, NULL)
CALL_FROM(INV_OMP_MIN, pow_dx, pow_dx, NULL)
CALL_FROM(INV_OMP_MIN, pow_de, pow_de, NULL)

inv_status inv_add_or_sub(const inv_call *c, bool minus) { return minus ? sub_run(c) : add_run(c); }

/* --- bounds --- */

static inv_bounds add_bounds(const inv_bounding *q)
{
    const inv_bounds a = q->operand(q, 0), b = q->operand(q, 1);
    return (inv_bounds){a.lo + b.lo, a.hi + b.hi, a.above || b.above};
}

static inv_bounds sub_bounds(const inv_bounding *q)
{
    const inv_bounds a = q->operand(q, 0), b = q->operand(q, 1);
    return (inv_bounds){a.lo - b.hi, a.hi - b.lo, a.above};
}

static inv_bounds hull_of(const double p[4], bool above)
{
    const double lo = fmin(fmin(p[0], p[1]), fmin(p[2], p[3])), hi = fmax(fmax(p[0], p[1]), fmax(p[2], p[3]));
    return (inv_bounds){lo, hi, above};
}

/* Zero times what grows without bounds is zero. */
static double times(double a, double b) { return a == 0 || b == 0 ? 0 : a * b; }

static inv_bounds bounds_product(inv_bounds a, inv_bounds b)
{
    const double p[4] = {times(a.lo, b.lo), times(a.lo, b.hi), times(a.hi, b.lo), times(a.hi, b.hi)};
    inv_bounds r = hull_of(p, inv_bounds_positive(a) && inv_bounds_positive(b));
    r.above = r.above && (r.lo == 0 || a.above || b.above);
    return r;
}

static inv_bounds mul_bounds(const inv_bounding *q)
{
    inv_bounds a = q->operand(q, 0);
    if (q->node->in[0] != q->node->in[1]) return bounds_product(a, q->operand(q, 1));
    a = inv_bounds_size(a);
    return bounds_product(a, a);
}

static inv_bounds div_bounds(const inv_bounding *q)
{
    inv_bounds a = q->operand(q, 0), b = q->operand(q, 1);
    if (b.hi < 0) { /* both with the other sign */
        a = (inv_bounds){-a.hi, -a.lo, false};
        b = (inv_bounds){-b.hi, -b.lo, false};
    }
    if (!inv_bounds_positive(b)) return INV_UNBOUNDED;
    return bounds_product(a, (inv_bounds){1 / b.hi, 1 / b.lo, isinf(b.hi)});
}

/* Powers of what is positive are at their limits where base and exponent are. */
static inv_bounds pow_bounds(const inv_bounding *q)
{
    inv_bounds a = q->operand(q, 0), b = q->operand(q, 1);
    if (b.lo == b.hi && fmod(b.lo, 2) == 0) a = inv_bounds_size(a);
    if (!(a.lo >= 0)) return INV_UNBOUNDED;
    if (a.lo == 0 && !(b.lo >= 0)) return (inv_bounds){0, INFINITY, b.lo > -INFINITY && isfinite(a.hi) && b.hi <= 0};
    const double p[4] = {pow(a.lo, b.lo), pow(a.lo, b.hi), pow(a.hi, b.lo), pow(a.hi, b.hi)};
    return hull_of(p, inv_bounds_positive(a));
}

static inv_bounds min_bounds(const inv_bounding *q)
{
    const inv_bounds a = q->operand(q, 0), b = q->operand(q, 1);
    return (inv_bounds){fmin(a.lo, b.lo), fmin(a.hi, b.hi), inv_bounds_either(a, b).above};
}

static inv_bounds max_bounds(const inv_bounding *q)
{
    const inv_bounds a = q->operand(q, 0), b = q->operand(q, 1);
    const double lo = fmax(a.lo, b.lo);
    return (inv_bounds){lo, fmax(a.hi, b.hi), (a.above && a.lo == lo) || (b.above && b.lo == lo)};
}

/* --- rows --- */
/* The text, and columns that only some have. */
#define ROW(id, dom, op, opset, ins, bits, how, gradient, ...) \
    ROW_OF(stream, id, dom, op, opset, ins, bits, how, gradient, __VA_ARGS__)
/* clang-format off */
#define ROW_OF(load, id, dom, op, opset, ins, bits, how, gradient, ...)                                               \
    ROW_BY(&id##_piece, load, id, dom, op, opset, ins, bits, how, gradient, __VA_ARGS__)
/* Of integers only. */
#define INT_ROW(id, dom, op, opset, bits, text)                                                                       \
    ROW_BY(NULL, stream, id, dom, op, opset, "a b", (bits) | INV_OP_NO_GRAD, integers_infer, NULL, text)
#define ROW_BY(pieces, load, id, dom, op, opset, ins, bits, how, gradient, ...)                                       \
    static const inv_op_def id##_row = {                                                                              \
        .size = sizeof(inv_op_def), .domain = dom, .name = op, .since = opset, .in = ins, .out = "y",                 \
        .flags = INV_OP_ELEMENTWISE | (bits), .inplace = 3, .infer = how, .grad = gradient, .run = id##_run,          \
        .piece = pieces,                                                                                              \
        .flops = inv_flops_out, .work = inv_work_##load, .cases = id##_cases,                                       \
        .doc = __VA_ARGS__};
/* clang-format on */
ROW(add, "", "Add", 7, "a b", INV_OP_COMMUTATIVE, numbers_infer, add_grad, "y = a + b. ONNX Add-7",
    .bounds = add_bounds, .onnx = "")
ROW(sub, "", "Sub", 7, "a b", 0, numbers_infer, sub_grad, "y = a - b. ONNX Sub-7", .bounds = sub_bounds, .onnx = "")
ROW(mul, "", "Mul", 7, "a b", INV_OP_COMMUTATIVE, numbers_infer, mul_grad, "y = a b. ONNX Mul-7", .bounds = mul_bounds,
    .onnx = "")
ROW(div, "", "Div", 7, "a b", INV_OP_SLOPE, numbers_infer, div_grad, "y = a / b; integers truncate. ONNX Div-7",
    .bounds = div_bounds, .onnx = "")
ROW(prelu, "", "PRelu", 7, "x slope", 0, reals_infer, prelu_grad, "y = x for x >= 0, slope x below. ONNX PRelu-7",
    .onnx = "", .log_slope = "Mul(Below(x), Log(slope))")
ROW_OF(math, pow, INV_IR, "Pow", 1, "x e", 0, numbers_infer, pow_grad, "y = x^e, both of one type",
       .bounds = pow_bounds, .onnx = "", .log_slope = "s = Pow(x, Sub(e, 1)); Log(Abs(Mul(e, s)))")
ROW(max, INV_IR, "Max", 1, "a b", INV_OP_COMMUTATIVE, numbers_infer, max_grad,
    "the larger of two; a tie shares the gradient", .bounds = max_bounds)
ROW(min, INV_IR, "Min", 1, "a b", INV_OP_COMMUTATIVE, numbers_infer, min_grad,
    "the smaller of two; a tie shares the gradient", .bounds = min_bounds)
ROW(fmod, INV_IR, "ModTruncate", 1, "a b", 0, numbers_infer, mod_grad, "remainder with the sign of a")
ROW(pymod, INV_IR, "ModFloor", 1, "a b", 0, numbers_infer, mod_grad, "remainder with the sign of b")
ROW(prelu_inv, INV_IR, "PReluInverse", 1, "y slope", 0, reals_infer, NULL, "the x of y = PRelu(x, slope), slope > 0",
    .onnx = "PRelu(y, Reciprocal(slope))")
ROW(dslope, INV_IR, "PReluGradSlope", 1, "gy x", INV_OP_KINK, reals_infer, NULL, "gy x for x <= 0, else 0")
ROW(prelu_dx, INV_IR, "PReluGradX", 1, "gy x slope", INV_OP_KINK, reals_infer, NULL, "gy for x > 0, else gy slope")
ROW(div_db, INV_IR, "DivGradB", 1, "gy y b", INV_OP_SLOPE, reals_infer, NULL, "-gy y / b: gradient of y = a / b by b")
ROW_OF(math, pow_dx, INV_IR, "PowGradX", 1, "gy x e", INV_OP_SLOPE, reals_infer, NULL, "gy e x^(e-1)")
ROW_OF(math, pow_de, INV_IR, "PowGradE", 1, "gy x y", INV_OP_SLOPE, reals_infer, NULL, "gy y ln x; 0 at x = 0")
INT_ROW(and, "", "BitwiseAnd", 18, INV_OP_COMMUTATIVE, "bits of both integers. ONNX BitwiseAnd-18")
INT_ROW(or, "", "BitwiseOr", 18, INV_OP_COMMUTATIVE, "bits of either integer. ONNX BitwiseOr-18")
INT_ROW(xor, "", "BitwiseXor", 18, INV_OP_COMMUTATIVE, "bits of one of two integers. ONNX BitwiseXor-18")
INT_ROW(shl, INV_IR, "ShiftLeft", 1, 0, "a with its bits b places further up")
INT_ROW(shr, INV_IR, "ShiftRight", 1, 0, "a with its bits b places further down; its sign comes in")
INT_ROW(shr_logical, INV_IR, "ShiftRightLogical", 1, 0,
        "a of 64 bits with its bits b places further down; zeros come in")

/* clang-format off */
#define LOWERED(id, op, opset, ins, how, text, ...)                                                                   \
    static const char *const id##_cases[] = {__VA_ARGS__, NULL};                                                      \
    static const inv_op_def id##_row = {                                                                              \
        .size = sizeof(inv_op_def), .domain = "", .name = op, .since = opset, .in = ins, .out = "y",                  \
        .infer = inv_infer_broadcast, .lower = how, .cases = id##_cases, .doc = text};
/* clang-format on */
LOWERED(onnx_sum, "Sum", 1, "x*", sum_lower, "sum of all inputs. ONNX Sum-1, -6, -8",
        "y = Sum(float[2,3] a, float[3] b, float[2,1] c)", "y = Sum(float[1] a)")
LOWERED(onnx_mean, "Mean", 1, "x*", mean_lower, "mean of all inputs. ONNX Mean-1, -6, -8",
        "y = Mean(float[2,3] a, float[3] b, float[2,1] c)", "y = Mean(float[1] a)")
LOWERED(onnx_max, "Max", 1, "x*", max_lower, "largest of all inputs. ONNX Max-1, -6, -8",
        "y = Max(float[2,3] a, float[3] b, float[2,1] c)", "y = Max(float[1] a)")
LOWERED(onnx_min, "Min", 1, "x*", min_lower, "smallest of all inputs. ONNX Min-1, -6, -8",
        "y = Min(float[2,3] a, float[3] b, float[2,1] c)", "y = Min(float[1] a)")
LOWERED(onnx_mod, "Mod", 10, "a b", mod_lower, "remainder; fmod: with the sign of a. ONNX Mod-10",
        "p = Exp(float[3] b)\ny = Mod<fmod = 1>(float[2,3] a, p)", "p = Exp(float b)\ny = Mod<fmod = 1>(float[1] a, p)",
        "y = Mod<fmod = 1>(float[0,3] a, float[1,3] b)")
INV_LOWERED_BY(pow_lower, 0, 0, onnx_pow, "Pow", 7, "x e", "y", "y = x^e. ONNX Pow-7",
               "y = Pow(float[0,3] a, int64[1,3] b)", "p = Exp(float[2,3] a)\ny = Pow(p, float[3] b)",
               "p = Exp(float[1] a)\ny = Pow(p, float b)")

LOWERED(bit_shift, "BitShift", 11, "X Y", shift_lower,
        "to ShiftLeft, ShiftRight or ShiftRightLogical. ONNX BitShift-11",
        "y = BitShift<direction = \"LEFT\">(uint8[3]{16,4,1},uint8[3]{1,2,3})",
        "y = BitShift<direction = \"RIGHT\">(uint32[3]{16,4,1},uint32[3]{1,2,3})",
        "y = BitShift<direction = \"RIGHT\">(uint64[2] a, uint64[1] b)")
LOWERED(bitwise_not, "BitwiseNot", 18, "X", bitwise_not_lower, "to BitwiseXor with ones. ONNX BitwiseNot-18",
        "y = BitwiseNot(int32[3] x)", "y = BitwiseNot(uint16[2]{0,65535})")

/* clang-format off */
const inv_op_def *const inv_ops_arith[] = {
    &and_row,      &or_row,     &xor_row,    &shl_row,      &shr_row,      &shr_logical_row, &bit_shift_row,
    &bitwise_not_row,
    &add_row,      &sub_row,    &mul_row,    &div_row,      &pow_row,      &max_row,       &min_row,
    &fmod_row,     &pymod_row,  &prelu_row,  &prelu_inv_row, &dslope_row,  &prelu_dx_row,  &div_db_row,
    &pow_dx_row,   &pow_de_row, &onnx_sum_row, &onnx_mean_row, &onnx_max_row,
    &onnx_min_row, &onnx_mod_row, &onnx_pow_row, NULL};
/* clang-format on */
