/* SPDX-License-Identifier: Apache-2.0
 * Element-wise operators of one operand: ops/elementwise/elementwise.inc expanded into loops, infer, gradients and
 * rows; and what needs a few lines more (Neg, Gelu, Identity-like forms). Sources: the ONNX operator specifications. */
#include <float.h>

#include "ops/base/bounds.h"
#include "ops/base/families.h"
#include "ops/base/float_math.h"
#include "ops/base/parallel.h"
#include "ops/base/still.h"
#include "ops/elementwise/bits.h"
#include "ops/elementwise/elementwise_gpu.h"
#include "ops/elementwise/fused_gpu.h"

#define EW_PART 16384 /* elements in a row on one thread */
#define V(f) FN(inv_##f)
#define INV_BOTH "ops/elementwise/elementwise_kernels.inc"
#include "ops/base/both_reals.inc"

/* clang-format off */
#define A0 {{NULL, NULL}, {0, 0}}
#define A1(n0, d0) {{n0, NULL}, {d0, 0}}
#define A2(n0, d0, n1, d1) {{n0, n1}, {d0, d1}}
/* clang-format on */

typedef void (*ew_loop)(void *out, const void *x, const void *v, int64_t n, const double *attr, int64_t least);

/* Operators that also take integers. */
static bool takes_ints(const char *op, inv_int1 *f)
{
    static const char *const names[] = {
        [INV_INT_NEG] = "Neg", [INV_INT_ABS] = "Abs", [INV_INT_SIGN] = "Sign", [INV_INT_RELU] = "Relu"};
    for (int i = 0; i < 4; i++) {
        *f = (inv_int1)i;
        if (strcmp(op, names[i]) == 0) return true;
    }
    return false;
}

static inv_status run_ints(const inv_call *c, const inv_tensor *x)
{
    inv_int1 f;
    if (!takes_ints(c->node->op_type, &f)) return INV_E_UNSUPPORTED_TYPE;
    if (c->gpu) {
        INV_GPU(c->gpu, integers1, f, x->dtype, x->n, c->out[0].data, x->data);
        return INV_OK;
    }
    for (int64_t i = 0; i < x->n; i++)
        inv_put_int(c->out[0].data, x->dtype, i,
                    inv_int1_apply(f, x->dtype, inv_elem_int(x->data, x->dtype, (size_t)i)));
    return INV_OK;
}

/* From how many elements on threads are worth it. */
static int64_t threads_from(const inv_node *n)
{
    return n->op->work(NULL, n) == INV_WORK_MATH ? INV_OMP_MIN : INV_OMP_STREAM;
}

static inv_status run_elementwise(const inv_call *c, inv_ew id, ew_loop f32, ew_loop f64)
{
    double a[2];
    const inv_tensor *x = &c->in[0];
    const void *second = c->nin > 1 ? c->in[1].data : NULL;
    if (c->out[0].data == NULL) return INV_OK;
    if (!inv_is_real(x->dtype)) return run_ints(c, x);
    inv_op_reals(c->node, a);
    if (c->gpu) {
        INV_GPU(c->gpu, elementwise, id, x->dtype, x->n, c->out[0].data, x->data, second, a);
        return INV_OK;
    }
    (x->dtype == INV_F64 ? f64 : f32)(c->out[0].data, x->data, second, x->n, a, threads_from(c->node));
    return INV_OK;
}

static inv_status ew_infer(inv_graph *g, inv_node *n)
{
    INV_TRY(inv_infer_same(g, n));
    inv_dtype t = inv_in_dtype(g, n, 0);
    inv_int1 f;
    if (!inv_dtype_is_float(t) && inv_dtype_size(t) != 0 && takes_ints(n->op_type, &f)) return INV_OK;
    return inv_need_real(g, n, 0);
}

/* NAMEGrad(gy, v): both of one shape and type. */
static inv_status ew_grad_infer(inv_graph *g, inv_node *n)
{
    INV_TRY(inv_need_reals(g, n, 2));
    if (!inv_shape_equal(inv_in_shape(g, n, 0), inv_in_shape(g, n, 1)))
        return inv_node_fail(g, n, INV_E_SHAPE, "gradient and operand must have one shape");
    return inv_infer_same(g, n);
}

static inv_status emit_grad(inv_grad *b, const char *op, inv_id v)
{
    const inv_node *n = inv_nod(b->g, b->node);
    inv_id slope = inv_emit1(b->g, op, INV_IN(inv_GO(b, 0), v), n->nattr, n->attr);
    /* Infinite where y = sqrt 0 or ln 0: */
    const bool root = strcmp(op, "SqrtGrad") == 0, steep = root || strcmp(op, "LogGrad") == 0;
    if (steep && slope != INV_NONE && inv_stands_still(b->g, inv_I(b, 0)))
        slope = inv_still_where(b->g, v, root ? 0 : -HUGE_VAL, slope);
    inv_grad_set(b, 0, slope);
    return inv_grad_done(b);
}

/* A derivative of three steps. */
typedef struct ew_steps {
    double low, high, below, inside, above;
} ew_steps;
#define STEPS(low, high, below, inside, above) ((ew_steps){low, high, below, inside, above})

/* The next number to v of the graph's type. */
static double next_to(const inv_graph *g, double v, double to)
{
    return g->real == INV_F64 ? nextafter(v, to) : (double)nextafterf((float)v, (float)to);
}
#define OVER(v) next_to(b->g, v, HUGE_VAL)
#define UNDER(v) next_to(b->g, v, -HUGE_VAL)

/* By the bits that tell where v lies. */
static inv_status emit_steps(inv_grad *b, inv_id v, const ew_steps *s)
{
    inv_graph *g = b->g;
    const inv_dtype t = inv_val(g, v)->dtype;
    const inv_id low = inv_graph_const_real(g, t, s->low);
    const inv_id high = s->high == s->low ? low : inv_graph_const_real(g, t, s->high);
    const bool even = s->below == s->above;
    const double f[2][4] = {{s->below, s->inside, s->above, s->inside}, {s->below, s->inside, 0, 0}};
    const inv_bits m = inv_emit_bits(g, even ? 1 : 2, v, low, high == low ? INV_NONE : high);
    inv_grad_set(b, 0, inv_emit_select(g, inv_GO(b, 0), &m, f[even]));
    return inv_grad_done(b);
}

/* How a function goes, from which follows what bounds it (ops/elementwise/elementwise.inc). */
typedef struct ew_course {
    enum { EW_UNKNOWN, EW_RISES, EW_GROWS, EW_FALLS, EW_EVEN, EW_DIPS, EW_WITHIN } how;
    double from, to;
} ew_course;
#define UNKNOWN ((ew_course){EW_UNKNOWN, 0, 0})
#define RISES(c) ((ew_course){EW_RISES, c, 0})
#define RISES_BY(k) ((ew_course){(k) < 0 ? EW_UNKNOWN : EW_RISES, (k) > 0 ? -HUGE_VAL : 0, 0})
#define GROWS_BY(k) ((ew_course){(k) < 0 ? EW_UNKNOWN : EW_GROWS, 0, 0})
#define FALLS(c) ((ew_course){EW_FALLS, c, 0})
#define EVEN ((ew_course){EW_EVEN, 0, 0})
#define DIPS(at, least) ((ew_course){EW_DIPS, at, least})
#define WITHIN(least, most) ((ew_course){EW_WITHIN, least, most})

/* f(x); at infinity the limit. */
static double value_at(ew_loop f, double x, const double *a)
{
    double y;
    f(&y, &x, NULL, 1, a, 1);
    if (isnan(y) && isinf(x)) f(&y, &(double){copysign(DBL_MAX, x)}, NULL, 1, a, 1);
    return y;
}

static inv_bounds bounds_along(const inv_bounding *q, const ew_course *c, ew_loop f, const double *a)
{
    if (c->how == EW_UNKNOWN) return INV_UNBOUNDED;
    if (c->how == EW_WITHIN) return (inv_bounds){c->from, c->to, false};
    inv_bounds x = q->operand(q, 0);
    if (c->how == EW_EVEN) x = inv_bounds_size(x);
    if (c->how == EW_FALLS) {
        if (!(x.lo > c->from || (x.above && x.lo == c->from) || isinf(c->from))) return INV_UNBOUNDED;
        return (inv_bounds){value_at(f, x.hi, a), value_at(f, x.lo, a), isinf(x.hi)};
    }
    if (c->how == EW_DIPS) {
        const double most = fmax(value_at(f, x.lo, a), value_at(f, x.hi, a));
        return (inv_bounds){x.lo > c->from   ? value_at(f, x.lo, a)
                            : x.hi < c->from ? value_at(f, x.hi, a)
                                             : c->to,
                            most, x.above && x.lo > c->from};
    }
    if (c->how == EW_RISES) {
        x.above = (x.above || isinf(x.lo)) && x.lo >= c->from;
        x.lo = fmax(x.lo, c->from);
        x.hi = fmax(x.hi, c->from);
    }
    const double least = value_at(f, x.lo, a), most = value_at(f, x.hi, a);
    return (inv_bounds){least, most, x.above && c->how != EW_GROWS && least < most};
}

/* --- functions per row --- */
#define CALL(id, f)                                                                      \
    static const inv_pieces id##_piece = {f##_piece_f32, f##_piece_f64, INV_OPCODE_##f}; \
    static inv_status id##_run(const inv_call *c) { return run_elementwise(c, INV_EW_##f, f##_loop_f32, f##_loop_f64); }
/* The forward function, and what bounds its result. */
#define FORWARD_FUNCTIONS(id, f, course)                 \
    CALL(id, f)                                          \
    static inv_bounds id##_bounds(const inv_bounding *q) \
    {                                                    \
        double a[2];                                     \
        inv_op_reals(q->node, a);                        \
        const ew_course way = course;                    \
        return bounds_along(q, &way, f##_loop_f64, a);   \
    }
#define GRAD_FROM(name, v) \
    static inv_status name##_grad(inv_grad *b) { return emit_grad(b, #name "Grad", v); }
#define EWN(name, since, attrs, load, f, dom, course, text) FORWARD_FUNCTIONS(name, f, course)
#define EW(name, since, attrs, load, f, d, dom, course, form, slope, text) \
    FORWARD_FUNCTIONS(name, f, course) CALL(name##Grad, d) GRAD_FROM(name, inv_I(b, 0))
#define EWY(name, since, attrs, load, f, d, dom, course, text) \
    FORWARD_FUNCTIONS(name, f, course) CALL(name##Grad, d) GRAD_FROM(name, inv_O(b, 0))
#define EWR(name, since, attrs, load, f, d, inv, dom, course, form, slope, text) \
    FORWARD_FUNCTIONS(name, f, course)                                           \
    CALL(name##Grad, d) GRAD_FROM(name, inv_O(b, 0)) CALL(name##Inverse, inv)
/* clang-format off */
#define EWI(name, since, attrs, load, f, dx, dy, inv, cond, dom, course, form, slope, text)                           \
    FORWARD_FUNCTIONS(name, f, course)                                                                                \
    CALL(name##Grad, dy) CALL(name##GradX, dx) CALL(name##Inverse, inv)                          \
    static inv_status name##_grad(inv_grad *b)                                                                        \
    {                                                                                                                 \
        double a[2];                                                                                                  \
        inv_op_reals(inv_nod(b->g, b->node), a);                                                                      \
        return (cond) ? emit_grad(b, #name "Grad", inv_O(b, 0)) : emit_grad(b, #name "GradX", inv_I(b, 0));           \
    }
/* clang-format on */
/* From bits of v; from the output where `from_out` holds. */
#define GRAD_BY_STEPS(name, steps, from_out, v, from_grad) \
    static inv_status name##_grad(inv_grad *b)             \
    {                                                      \
        double a[2];                                       \
        inv_op_reals(inv_nod(b->g, b->node), a);           \
        if (from_out) return from_grad;                    \
        return emit_steps(b, v, &steps);                   \
    }
#define EWS(name, since, attrs, load, f, steps, dom, course, text) \
    FORWARD_FUNCTIONS(name, f, course) GRAD_BY_STEPS(name, steps, false, inv_I(b, 0), INV_OK)
#define EWT(name, since, attrs, load, f, steps, dom, course, text) \
    FORWARD_FUNCTIONS(name, f, course) GRAD_BY_STEPS(name, steps, false, inv_O(b, 0), INV_OK)
#define EWL(name, since, attrs, load, f, d, inv, steps, cond, dom, course, form, slope, text) \
    FORWARD_FUNCTIONS(name, f, course)                                                        \
    CALL(name##Grad, d)                                                                       \
    CALL(name##Inverse, inv)                                                                  \
    GRAD_BY_STEPS(name, steps, cond, inv_I(b, 0), emit_grad(b, #name "Grad", inv_O(b, 0)))
#include "ops/elementwise/elementwise.inc"
FORWARD_FUNCTIONS(Neg, neg, FALLS(-HUGE_VAL))
FORWARD_FUNCTIONS(RoundThrough, round_even, GROWS_BY(1))
FORWARD_FUNCTIONS(RoundSmall, round_small, UNKNOWN)

/* --- cases: inputs inside the function's domain, sizes 1 and 0 --- */
#define CASES_ANY(name) \
    "y = " name "(float[2,3] x)", "y = " name "(float[1] x)", "y = " name "(float[0,4] x)", "y = " name "(float x)"
#define CASES_POS(name) "p = Exp(float[2,3] x)\ny = " name "(p)", "p = Exp(float[1] x)\ny = " name "(p)"
#define CASES_UNIT(name) "p = Tanh(float[2,3] x)\ny = " name "(p)", "p = Tanh(float[1] x)\ny = " name "(p)"
#define CASES_GE1(name) \
    "p = Softplus(float[2,3] x)\nq = Exp(p)\ny = " name "(q)", "p = Softplus(float[1] x)\nq = Exp(p)\ny = " name "(q)"
#define INVERSE_CASES_ANY(name) \
    "y = " name "(float[2,3] u)\nx = " name "Inverse(y)", "y = " name "(float[1] u)\nx = " name "Inverse(y)"
#define INVERSE_CASES_POS(name)                                       \
    "p = Exp(float[2,3] u)\ny = " name "(p)\nx = " name "Inverse(y)", \
        "p = Exp(float[1] u)\ny = " name "(p)\nx = " name "Inverse(y)"

/* clang-format off */
/* --- rows --- */
#define FORWARD(id, opset, bits, gradient, load, dom, slope, text, ...)                                               \
    FORWARD_AS(id, opset, bits, gradient, load, dom, (opset) ? "" : NULL, slope, text, __VA_ARGS__)
#define FORWARD_AS(id, opset, bits, gradient, load, dom, form, slope, text, ...)                                      \
    static const char *const id##_cases[] = {CASES_##dom(#id), NULL};                                                 \
    static const inv_op_def id##_row = {                                                                              \
        .size = sizeof(inv_op_def), .domain = (opset) ? "" : INV_IR, .name = #id, .since = (opset) ? (opset) : 1,     \
        .in = "x", .out = "y", .inplace = 1, .flags = INV_OP_ELEMENTWISE | (bits), .infer = ew_infer,                 \
        .grad = gradient, .run = id##_run, .piece = &id##_piece, .bounds = id##_bounds,                               \
        .onnx = form, .log_slope = slope,                                                                             \
        .real = __VA_ARGS__,                                                                                          \
        .flops = inv_flops_out, .work = inv_work_##load, .cases = id##_cases,                                       \
        .doc = (opset) ? text ". ONNX " #id "-" #opset : text ". An operator of invonnx"};
#define GRAD_CASES_ANY(name) "dx = " name "(float[2,3] gy, float[2,3] v)", "dx = " name "(float[1] gy, float[1] v)"
#define GRAD_CASES_UNIT(name)                                                                                         \
    "v = Tanh(float[2,3] u)\ndx = " name "(float[2,3] gy, v)", "v = Tanh(float[1] u)\ndx = " name "(float[1] gy, v)"
#define GRAD_ROW(id, bits, load, dom, text, ...)                                                                      \
    static const char *const id##_cases[] = {GRAD_CASES_##dom(#id), NULL};                                            \
    static const inv_op_def id##_row = {                                                                              \
        .size = sizeof(inv_op_def), .domain = INV_IR, .name = #id, .since = 1, .in = "gy v", .out = "dx",             \
        .inplace = 3, .flags = INV_OP_ELEMENTWISE | (bits), .infer = ew_grad_infer,                                   \
        .run = id##_run, .piece = &id##_piece, .real = __VA_ARGS__, .flops = inv_flops_out,                          \
        .work = inv_work_##load, .cases = id##_cases,                                                                \
        .doc = text};
#define INVERSE_ROW(id, of, load, dom, form, ...)                                                                     \
    static const char *const id##_cases[] = {INVERSE_CASES_##dom(#of), NULL};                                         \
    static const inv_op_def id##_row = {                                                                              \
        .size = sizeof(inv_op_def), .domain = INV_IR, .name = #id, .since = 1, .in = "y", .out = "x", .inplace = 1,   \
        .flags = INV_OP_ELEMENTWISE, .infer = ew_infer,                                                               \
        .run = id##_run, .piece = &id##_piece, .real = __VA_ARGS__, .onnx = form,                                     \
        .flops = inv_flops_out, .work = inv_work_##load, .cases = id##_cases,                                       \
        .doc = "the x of y = " #of "(x)"};
/* clang-format on */
#define EWN(name, since, attrs, load, f, dom, course, text) \
    FORWARD(name, since, INV_OP_NO_GRAD, NULL, load, dom, NULL, text, attrs)
#define EW(name, since, attrs, load, f, d, dom, course, form, slope, text)       \
    FORWARD_AS(name, since, 0, name##_grad, load, dom, form, slope, text, attrs) \
    GRAD_ROW(name##Grad, INV_OP_SLOPE, load, dom, "gy times the derivative of " #name " at v = x", attrs)
#define EWY(name, since, attrs, load, f, d, dom, course, text)                    \
    FORWARD(name, since, INV_OP_ATOMS, name##_grad, load, dom, NULL, text, attrs) \
    GRAD_ROW(name##Grad, INV_OP_SLOPE, stream, ANY, "gy times the derivative of " #name ", from v = y", attrs)
#define EWR(name, since, attrs, load, f, d, inv, dom, course, form, slope, text)                               \
    FORWARD(name, since, INV_OP_FROM_OUT, name##_grad, load, dom, slope, text, attrs)                          \
    GRAD_ROW(name##Grad, INV_OP_SLOPE, stream, ANY, "gy times the derivative of " #name ", from v = y", attrs) \
    INVERSE_ROW(name##Inverse, name, load, dom, form, attrs)
#define EWI(name, since, attrs, load, f, dx, dy, inv, cond, dom, course, form, slope, text)                    \
    FORWARD(name, since, INV_OP_FROM_OUT, name##_grad, load, dom, slope, text, attrs)                          \
    GRAD_ROW(name##Grad, INV_OP_SLOPE, stream, ANY, "gy times the derivative of " #name ", from v = y", attrs) \
    GRAD_ROW(name##GradX, INV_OP_SLOPE, load, ANY, "gy times the derivative of " #name " at v = x", attrs)     \
    INVERSE_ROW(name##Inverse, name, load, dom, form, attrs)
#define EWS(name, since, attrs, load, f, steps, dom, course, text) \
    FORWARD(name, since, 0, name##_grad, load, dom, NULL, text, attrs)
#define EWT(name, since, attrs, load, f, steps, dom, course, text) \
    FORWARD(name, since, INV_OP_ATOMS, name##_grad, load, dom, NULL, text, attrs)
#define EWL(name, since, attrs, load, f, d, inv, steps, cond, dom, course, form, slope, text)                 \
    FORWARD(name, since, INV_OP_FROM_OUT, name##_grad, load, dom, slope, text, attrs)                         \
    GRAD_ROW(name##Grad, INV_OP_KINK, stream, ANY, "gy times the derivative of " #name ", from v = y", attrs) \
    INVERSE_ROW(name##Inverse, name, load, dom, form, attrs)
#include "ops/elementwise/elementwise.inc"

/* --- Neg: its gradient reads no value --- */
static inv_status neg_grad(inv_grad *b)
{
    inv_grad_set(b, 0, inv_emit1(b->g, "Neg", INV_IN(inv_GO(b, 0)), INV_NOATTR));
    return inv_grad_done(b);
}
FORWARD(Neg, 6, 0, neg_grad, stream, ANY, NULL, "y = -x", A0)

/* --- RoundThrough: Round for quantized training; by convention (straight-through) the gradient passes --- */
static inv_status through_grad(inv_grad *b)
{
    inv_grad_set(b, 0, inv_GO(b, 0));
    return inv_grad_done(b);
}
FORWARD(RoundThrough, 0, INV_OP_STRAIGHT, through_grad, stream, ANY, NULL,
        "y = the nearest integer, halves to even; its gradient is 1 (Bengio, Leonard, Courville 2013)", A0)

FORWARD(RoundSmall, 0, INV_OP_STRAIGHT, through_grad, stream, ANY, NULL,
        "y = the nearest number of a floating-point type of 8 bits or fewer, given by ONNX's number; its gradient is 1",
        A2("format", 17, "saturate", 1))

/* --- Gelu: one operator per formula --- */
static inv_status gelu_lower(inv_graph *g, const inv_node *n, inv_id *out)
{
    const char *how = inv_attr_string(n, "approximate", "none");
    if (strcmp(how, "none") != 0 && strcmp(how, "tanh") != 0)
        return inv_node_fail(g, n, INV_E_UNSUPPORTED_OP, "approximate must be none or tanh, not %s", how);
    out[0] = inv_emit1(g, strcmp(how, "tanh") == 0 ? "GeluTanh" : "GeluErf", INV_IN(n->in[0]), INV_NOATTR);
    return inv_done(g);
}

static const char *const gelu_cases[] = {"y = Gelu(float[2,3] x)", "y = Gelu<approximate = \"tanh\">(float[2,3] x)",
                                         "y = Gelu(float[1] x)", NULL};
/* clang-format off */
static const inv_op_def gelu_row = {
    .size = sizeof(inv_op_def), .domain = "", .name = "Gelu", .since = 20, .in = "x", .out = "y",
    .infer = inv_infer_same, .lower = gelu_lower, .cases = gelu_cases,
    .doc = "y = x Phi(x), exact or by tanh. ONNX Gelu-20"};

const inv_op_def *const inv_ops_elementwise[] = {
#define EWN(name, since, attrs, load, f, ...) &name##_row,
#define EW(name, since, attrs, load, f, d, ...) &name##_row, &name##Grad_row,
#define EWY(name, since, attrs, load, f, d, ...) &name##_row, &name##Grad_row,
#define EWR(name, since, attrs, load, f, d, inv, ...) &name##_row, &name##Grad_row, &name##Inverse_row,
#define EWI(name, since, attrs, load, f, dx, dy, inv, ...)                                                            \
    &name##_row, &name##Grad_row, &name##GradX_row, &name##Inverse_row,
#define EWS(name, since, attrs, load, f, ...) &name##_row,
#define EWT(name, since, attrs, load, f, ...) &name##_row,
#define EWL(name, since, attrs, load, f, d, inv, ...)                                                                 \
    &name##_row, &name##Grad_row, &name##Inverse_row,
#include "ops/elementwise/elementwise.inc"
    &Neg_row, &RoundThrough_row, &RoundSmall_row, &gelu_row, NULL};
/* clang-format on */
