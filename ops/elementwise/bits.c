/* SPDX-License-Identifier: Apache-2.0
 * CompareBits, EqualBits: a comparison in one or two bits per element. SelectBits: gradients times factors that such
 * bits choose. What Abs, Max, Clip, Where, ReduceMax and their like keep for backward, in place of their operands. */
#include "ops/elementwise/bits.h"
#include "ops/base/rows.h"

#include "ops/base/families.h"
#include "ops/base/parallel.h"
#include "ops/base/util.h"
#include "ops/elementwise/bits_gpu.h"

#define BITS_PIECE 8192 /* bytes in a row on one thread */

#define INV_BOTH "ops/elementwise/bits_kernels.inc"
#include "ops/base/both_reals.inc"
#define REAL uint8_t
#define FN(x) x##_u8
#include "ops/elementwise/bits_kernels.inc"
#undef REAL
#undef FN
#define INV_BOTH "ops/elementwise/bits_select.inc"
#include "ops/base/both_reals.inc"

/* --- shapes --- */

static inv_shape packed_shape(const inv_shape *s, int axis, int bits)
{
    inv_shape p = *s;
    if (s->rank > 0) p.dim[axis] = (s->dim[axis] * bits + 7) / 8;
    return p;
}

/* The axis to pack: the first, if that takes no byte more, since then all that an image holds lies side by side; else
 * one along which few bits are left over; if that costs no more than a quarter, not the last, nor the one that is last
 * with channels last, so that rows of neighbours are packed together. */
static int best_axis(const inv_shape *s, int bits)
{
    int64_t nbytes[INV_MAX_RANK], least = INT64_MAX;
    for (int i = 0; i < s->rank; i++) {
        const inv_shape p = packed_shape(s, i, bits);
        nbytes[i] = inv_shape_nelem(&p);
        least = nbytes[i] < least ? nbytes[i] : least;
    }
    if (s->rank > 1 && nbytes[0] == least) return 0;
    for (int i = s->rank - 2; i >= 0; i--)
        if (nbytes[i] <= least + least / 4) return i;
    return s->rank > 0 ? s->rank - 1 : 0;
}

/* Operands broadcast to `full`; one more, the place on the axis, where the last byte may be partly used. */
static inv_bits_walk walk_of(const inv_node *n, const inv_shape *full, int bits, int nop, const inv_shape *const *s)
{
    inv_bits_walk w = {.bits = bits, .per = 8 / bits, .extent = 1};
    const int axis = (int)inv_attr_int(n, "axis", 0);
    const inv_shape bytes = packed_shape(full, axis, bits);
    int64_t stride[INV_LOOP_OPS][INV_MAX_RANK] = {{0}};
    for (int k = 0; k < nop; k++) inv_broadcast_strides(s[k], full, stride[k]);
    if (full->rank > 0) {
        w.extent = full->dim[axis];
        for (int k = 0; k < nop; k++) {
            w.along[k] = stride[k][axis];
            stride[k][axis] *= w.per;
        }
        if (w.extent % w.per) stride[nop][axis] = w.per;
    }
    inv_loop_strided(&w.l, &bytes, nop + 1, (const int64_t(*)[INV_MAX_RANK])stride);
    return w;
}

/* clang-format off */
#define PIECES(nop, ...)                                                                                              \
    const int64_t cuts = (w->l.inner + BITS_PIECE - 1) / BITS_PIECE, pieces = w->l.rows * cuts;                       \
    _Pragma("omp parallel for schedule(static) if (w->l.rows * w->l.inner * w->per > INV_OMP_STREAM)")                \
    for (int64_t piece = 0; piece < pieces; piece++) {                                                                \
        const int64_t r = piece / cuts, from = (piece - r * cuts) * BITS_PIECE, first = r * w->l.inner + from;        \
        const int64_t n = inv_min64(BITS_PIECE, w->l.inner - from);                                                  \
        int64_t at[INV_LOOP_OPS];                                                                                     \
        inv_loop_row(&w->l, r, at);                                                                                  \
        for (int k = 0; k < (nop); k++) at[k] += from * w->l.step[k];                                                 \
        __VA_ARGS__                                                                                                   \
    }
/* clang-format on */

/* --- CompareBits, EqualBits --- */

static int bits_of(const inv_node *n) { return inv_attr_int(n, "bits", 1) == 2 ? 2 : 1; }

static inv_status check_axis(const inv_graph *g, const inv_node *n, const inv_shape *s)
{
    const int64_t axis = inv_attr_int(n, "axis", 0), bits = inv_attr_int(n, "bits", 1);
    if (axis < 0 || axis >= (s->rank ? s->rank : 1))
        return inv_node_fail(g, n, INV_E_SHAPE, "axis %lld is outside rank %d", (long long)axis, s->rank);
    if (bits != 1 && bits != 2) return inv_node_fail(g, n, INV_E_GRAPH, "bits must be 1 or 2");
    return INV_OK;
}

static inv_status compare_infer(inv_graph *g, inv_node *n)
{
    inv_shape s;
    INV_TRY(inv_need_same_type(g, n, n->nin));
    if (inv_in_dtype(g, n, 0) != INV_BOOL) INV_TRY(inv_need_real(g, n, 0));
    INV_TRY(inv_broadcast_all(g, n, &s));
    INV_TRY(check_axis(g, n, &s));
    const inv_shape p = packed_shape(&s, (int)inv_attr_int(n, "axis", 0), bits_of(n));
    inv_set_out(g, n, 0, INV_U8, &p);
    return INV_OK;
}

static inv_status compare_run(const inv_call *c)
{
    const uint32_t third = c->nin > 2 && c->in[2].data ? 2 : 1;
    const inv_shape *const shape[] = {&c->in[0].shape, &c->in[1].shape, &c->in[third].shape};
    const void *const in[] = {c->in[0].data, c->in[1].data, c->in[third].data};
    inv_shape full = c->in[0].shape;
    if (c->out[0].data == NULL || c->out[0].n == 0) return INV_OK;
    for (int i = 1; i < 3; i++) {
        const inv_shape so_far = full;
        if (!inv_shape_broadcast(&so_far, shape[i], &full)) return INV_E_SHAPE;
    }
    const inv_bits_walk walk = walk_of(c->node, &full, bits_of(c->node), 3, shape), *w = &walk;
    const inv_dtype t = c->in[0].dtype;
    uint8_t *out = c->out[0].data;
    if (c->gpu) {
        INV_GPU(c->gpu, compare_bits, t, w, out, in[0], in[1], in[2]);
        return INV_OK;
    }
    void (*const run)(uint8_t *, const void *const *, const inv_bits_walk *, const int64_t *, int64_t) =
        t == INV_F64   ? compare_piece_f64
        : t == INV_F32 ? compare_piece_f32
                       : compare_piece_u8;
    PIECES(4, run(out + first, in, w, at, n);)
    return INV_OK;
}

/* --- SelectBits --- */

static inv_status select_infer(inv_graph *g, inv_node *n)
{
    inv_shape both;
    INV_TRY(inv_need_real(g, n, 0));
    INV_TRY(inv_infer_attr_shape(g, n));
    const inv_shape s = inv_attr_shape(n, "shape");
    INV_TRY(check_axis(g, n, &s));
    const inv_shape p = packed_shape(&s, (int)inv_attr_int(n, "axis", 0), bits_of(n));
    if (inv_in_dtype(g, n, 1) != INV_U8 || !inv_shape_equal(&p, inv_in_shape(g, n, 1)))
        return inv_node_fail(g, n, INV_E_SHAPE, "input 1 is not a mask of attribute `shape`");
    if (!inv_shape_broadcast(inv_in_shape(g, n, 0), &s, &both) || !inv_shape_equal(&both, &s))
        return inv_node_fail(g, n, INV_E_SHAPE, "input 0 does not broadcast to attribute `shape`");
    return INV_OK;
}

static inv_status select_run(const inv_call *c)
{
    static const char *const name[] = {"zero", "one", "two", "three"};
    const inv_shape *const shape[] = {&c->in[0].shape, &c->out[0].shape};
    const uint8_t *mask = c->in[1].data;
    inv_bits_factors f;
    if (c->out[0].data == NULL || c->out[0].n == 0) return INV_OK;
    for (int i = 0; i < 4; i++) f.of[i] = inv_attr_float(c->node, name[i], 0);
    const inv_bits_walk walk = walk_of(c->node, &c->out[0].shape, bits_of(c->node), 2, shape), *w = &walk;
    const inv_dtype t = c->out[0].dtype;
    void *out = c->out[0].data;
    const void *gy = c->in[0].data;
    if (c->gpu) {
        INV_GPU(c->gpu, select_bits, t, w, &f, out, gy, mask);
        return INV_OK;
    }
    PIECES(3, INV_REAL(t, select_piece, out, gy, mask + first, &f, w, at, n);)
    return INV_OK;
}

/* Linear in gy. */
static inv_status select_grad(inv_grad *b)
{
    inv_graph *g = b->g;
    const inv_node *n = inv_nod(g, b->node);
    const inv_id v = inv_emit1(g, "SelectBits", INV_IN(inv_GO(b, 0), inv_I(b, 1)), n->nattr, n->attr);
    inv_grad_set(b, 0, inv_emit_sum_to(g, v, inv_I(b, 0)));
    return inv_grad_done(b);
}

/* On a device the two stay apart: joined they move as many bytes, since bits are packed, and a H200 took half as long
 * again for it. */
static const inv_pieces compare_codes = {compare_codes_f32, compare_codes_f64, INV_NO_OPCODE},
                        select_codes = {select_codes_f32, select_codes_f64, INV_NO_OPCODE};

/* --- for gradients --- */

static inv_bits emit(inv_graph *g, const char *op, int bits, uint32_t nin, const inv_id *in)
{
    inv_bits m = {.v = INV_NONE, .bits = bits};
    for (uint32_t i = 0; i < nin; i++) {
        if (in[i] == INV_NONE) return m;
        const inv_shape so_far = m.shape;
        if (i == 0) m.shape = *inv_shape_of_value(g, in[0]);
        else if (!inv_shape_broadcast(&so_far, inv_shape_of_value(g, in[i]), &m.shape))
            m.shape = so_far; /* the operator says so */
    }
    m.axis = best_axis(&m.shape, bits);
    const uint8_t phase = g->phase;
    g->phase = INV_FORWARD;
    m.v = inv_emit1(g, op, nin, in, INV_ATTRS(inv_attr_of_int("axis", m.axis), inv_attr_of_int("bits", bits)));
    g->phase = phase;
    return m;
}

inv_bits inv_emit_bits(inv_graph *g, int bits, inv_id x, inv_id low, inv_id high)
{
    return emit(g, "CompareBits", bits, high == INV_NONE ? 2 : 3, (inv_id[]){x, low, high});
}

inv_bits inv_emit_equal_bits(inv_graph *g, inv_id x, inv_id y) { return emit(g, "EqualBits", 1, 2, (inv_id[]){x, y}); }

inv_id inv_emit_select(inv_graph *g, inv_id gy, const inv_bits *m, const double factor[4])
{
    if (gy == INV_NONE || m->v == INV_NONE) return INV_NONE;
    return inv_emit1(g, "SelectBits", INV_IN(gy, m->v),
                     INV_ATTRS(inv_attr_of_shape("shape", &m->shape), inv_attr_of_int("axis", m->axis),
                               inv_attr_of_int("bits", m->bits), inv_attr_of_float("zero", factor[0]),
                               inv_attr_of_float("one", factor[1]), inv_attr_of_float("two", factor[2]),
                               inv_attr_of_float("three", factor[3])));
}

/* --- rows --- */

INV_CASE_LIST(compare, "m = CompareBits<axis = 1>(float[2,17] x, float low, float high)",
              "m = CompareBits<axis = 1, bits = 2>(float[2,9] a, float[9] b)",
              "m = CompareBits<axis = 0, bits = 2>(float[8,1] a, float[4,1,3] b)",
              "m = CompareBits<axis = 1, bits = 2>(float[2,8,3] a, float[2,8,3] b)",
              "m = CompareBits<axis = 0, bits = 2>(float[9,5] a, float b)",
              "m = CompareBits<axis = 1>(float[3,19,8] a, float[19,1] low, float[19,8] high)",
              "m = CompareBits<axis = 0>(float x, float low)", "m = CompareBits<axis = 1>(float[0,4] x, float low)",
              "m = CompareBits<axis = 0>(bool[3,2] x, bool low)",
              "m = CompareBits<axis = 0>(float[19,37] x, float low, float high)")
/* clang-format off */
static const inv_op_def compare_row = {
    .size = sizeof(inv_op_def), .domain = INV_IR, .name = "CompareBits", .since = 1, .in = "x low high?", .out = "m",
    .images = INV_IMAGES(INV_ALL_SLOTS, 1, {"axis", INV_AXIS}),
    .flags = INV_OP_NO_GRAD | INV_OP_COMPARES, .infer = compare_infer, .run = compare_run,
    .piece = &compare_codes, .real = {{"bits"}, {1}},
    .flops = inv_flops_in, .cases = compare_cases,
    .doc = "per element one bit, whether low <= x <= high, or two: below, inside, above, NaN; packed along `axis`"};
/* clang-format on */

INV_CASE_LIST(equal, "m = EqualBits<axis = 1>(float[2,17] x, float[2,1] y)",
              "y = ReduceMaxAxes<axes = [0]>(float[9,3] x)\nm = EqualBits<axis = 0>(x, y)",
              "m = EqualBits<axis = 0>(float[20,4] x, float[20,4] y)", "m = EqualBits<axis = 0>(float x, float y)")
/* clang-format off */
static const inv_op_def equal_row = {
    .size = sizeof(inv_op_def), .domain = INV_IR, .name = "EqualBits", .since = 1, .in = "x y", .out = "m",
    .images = INV_IMAGES(INV_ALL_SLOTS, 1, {"axis", INV_AXIS}),
    .flags = INV_OP_NO_GRAD | INV_OP_NO_CLONE | INV_OP_COMPARES, .infer = compare_infer, .run = compare_run,
    .piece = &compare_codes, .real = {{"bits"}, {1}},
    .flops = inv_flops_in, .cases = equal_cases,
    .doc = "per element one bit, whether x = y; always stored: rebuilt with rounding they would not be equal"};
/* clang-format on */

INV_CASE_LIST(
    select, "y = SelectBits<shape = [2,17], axis = 1, one = 1.0>(float[2,17] gy, uint8[2,3] m)",
    "y = SelectBits<shape = [2,9], axis = 1, bits = 2, zero = -1.0, two = 1.0, three = 0.5>"
    "(float[2,1] gy, uint8[2,3] m)",
    "y = SelectBits<shape = [8,3], axis = 0, zero = 0.5>(float[3] gy, uint8[1,3] m)",
    "y = SelectBits<shape = [2,8,3], axis = 1, bits = 2, one = 0.5, two = 1.0>(float[2,8,3] gy, uint8[2,2,3] m)",
    "y = SelectBits<shape = [9,5], axis = 0, one = 2.0>(float[1,1] gy, uint8[2,5] m)",
    "y = SelectBits<shape = [3,11,8], axis = 1, bits = 2, one = 1.0, three = 0.5>(float[3,11,8] gy, uint8[3,3,8] m)",
    "y = SelectBits<shape = [16,12], axis = 0, one = 2.0>(float[16,1] gy, uint8[2,12] m)",
    "y = SelectBits<one = 1.0>(float gy, uint8 m)", "y = SelectBits<shape = [0,4], axis = 1>(float gy, uint8[0,1] m)")
/* clang-format off */
static const inv_op_def select_row = {
    .size = sizeof(inv_op_def), .domain = INV_IR, .name = "SelectBits", .since = 1, .in = "gy m", .out = "y",
    .images = INV_IMAGES(INV_ALL_SLOTS, 1, {"axis", INV_AXIS}, {"shape", INV_PER_AXIS}),
    .inplace = 1, .infer = select_infer, .grad = select_grad, .run = select_run,
    .piece = &select_codes, .codes = 1 << 1, .real = {{"zero", "one", "two", "three"}, {0}},
    .flops = inv_flops_out, .cases = select_cases,
    .doc = "gy times zero, one, two or three, as the bits of each element say (CompareBits, EqualBits)"};
/* clang-format on */

const inv_op_def *const inv_ops_bits[] = {&compare_row, &equal_row, &select_row, NULL};
