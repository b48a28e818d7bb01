/* SPDX-License-Identifier: Apache-2.0
 * onnxruntime's LSTM with quantized weights. It rounds the whole input to 8 bits by its range, and before every step
 * the state, that of all rows together (it does so on one thread; on several each takes the range of its own rows), so
 * the steps are written out one by one. Gradients pass straight through the rounding. Sources: the
 * operator schemas of onnxruntime 1.31 (domain com.microsoft), and what its kernel for the CPU computes where those
 * leave it open. */
#include "ops/base/emit.h"
#include "ops/base/families.h"
#include "ops/base/rows.h"
#include "ops/microsoft/ms_qlinear.h"

enum { X, W, R, B, LENGTHS, INITIAL_H, INITIAL_C, P, W_SCALE, W_ZERO, R_SCALE, R_ZERO };
enum { MOST_STEPS = 2048 }; /* of some twenty nodes each */

typedef struct layer {
    inv_graph *g;
    const inv_node *n;
    int64_t steps, batch, hidden;
    int directions;
    bool reverse;
} layer;

/* One direction of it. */
typedef struct cell {
    inv_id xw, r, h, c; /* x W and biases [steps, batch, 4 hidden]; states [batch, hidden] */
    inv_id peephole[3]; /* [hidden], for i, o, f; or INV_NONE */
} cell;

static inv_status refuse_forms(const layer *y)
{
    static const char *const usual[] = {"Sigmoid", "Tanh", "Tanh"};
    const inv_attr *f = inv_attr_find(y->n, "activations");
    const char *instead = "leave this LSTM in floating point when the model is quantized";
    for (size_t i = 0; f && f->kind == INV_ATTR_STRINGS && i < f->n; i++)
        if (strcmp(f->strings[i], usual[i % 3]) != 0)
            return inv_node_fail(y->g, y->n, INV_E_UNSUPPORTED_OP,
                                 "activation \"%s\" is not supported, only Sigmoid, Tanh, Tanh are; %s", f->strings[i],
                                 instead);
    if (inv_attr_float(y->n, "clip", 0) > 0)
        return inv_node_fail(y->g, y->n, INV_E_UNSUPPORTED_OP, "attribute clip is not supported; %s", instead);
    if (inv_attr_int(y->n, "input_forget", 0) != 0)
        return inv_node_fail(y->g, y->n, INV_E_UNSUPPORTED_OP, "attribute input_forget is not supported; %s", instead);
    if (inv_has_in(y->n, LENGTHS))
        return inv_node_fail(y->g, y->n, INV_E_UNSUPPORTED_OP, "input %d (sequence_lens) is not supported; %s", LENGTHS,
                             instead);
    if (y->steps < 1 || y->steps > MOST_STEPS)
        return inv_node_fail(y->g, y->n, INV_E_UNSUPPORTED_OP, "%lld steps; 1 to %d are supported", (long long)y->steps,
                             MOST_STEPS);
    return INV_OK;
}

static inv_status need_shape(const layer *y, uint32_t i, int rank, const int64_t *dim)
{
    const inv_shape want = inv_shape_of(rank, dim);
    char text[INV_SHAPE_TEXT];
    if (!inv_has_in(y->n, i) || inv_shape_equal(inv_in_shape(y->g, y->n, i), &want)) return INV_OK;
    return inv_node_fail(y->g, y->n, INV_E_SHAPE, "input %u must be %s", i, inv_shape_text(&want, text));
}

static inv_status layer_of(layer *y)
{
    const char *direction = inv_attr_string(y->n, "direction", "forward");
    INV_TRY(inv_need_real(y->g, y->n, X));
    for (uint32_t i = W; i <= R; i++) INV_TRY(inv_need_bytes(y->g, y->n, i));
    const inv_shape x = *inv_in_shape(y->g, y->n, X), r = *inv_in_shape(y->g, y->n, R);
    if (x.rank != 3 || r.rank != 3) return inv_node_fail(y->g, y->n, INV_E_SHAPE, "X, W and R need three axes");
    y->steps = x.dim[0], y->batch = x.dim[1], y->hidden = r.dim[1];
    y->directions = strcmp(direction, "bidirectional") == 0 ? 2 : 1;
    y->reverse = strcmp(direction, "reverse") == 0;
    const int64_t d = y->directions, h = y->hidden, b = y->batch;
    INV_TRY(refuse_forms(y));
    INV_TRY(need_shape(y, W, 3, (int64_t[]){d, x.dim[2], 4 * h}));
    INV_TRY(need_shape(y, R, 3, (int64_t[]){d, h, 4 * h}));
    INV_TRY(need_shape(y, B, 2, (int64_t[]){d, 8 * h}));
    INV_TRY(need_shape(y, INITIAL_H, 3, (int64_t[]){d, b, h}));
    INV_TRY(need_shape(y, INITIAL_C, 3, (int64_t[]){d, b, h}));
    return need_shape(y, P, 2, (int64_t[]){d, 3 * h});
}

/* Entry d of the first axis of input i, without that axis. */
static inv_id of_direction(const layer *y, uint32_t i, int d)
{
    inv_shape s = *inv_in_shape(y->g, y->n, i);
    s = inv_shape_of(s.rank - 1, s.dim + 1);
    return inv_emit_view(y->g, inv_emit_part(y->g, y->n->in[i], 0, d, 1), &s);
}

/* A quantized matrix of direction d in floating point. */
static inv_id matrix_of(const layer *y, uint32_t i, uint32_t scale, uint32_t zero, int d)
{
    return inv_onnx(y->g, y->n, "DequantizeLinear",
                    INV_IN(of_direction(y, i, d), of_direction(y, scale, d), of_direction(y, zero, d)),
                    INV_ATTRS(inv_attr_of_int("axis", 1)));
}

static inv_id first_state(const layer *y, uint32_t i, int d)
{
    const inv_shape s = inv_shape_of(2, (int64_t[]){y->batch, y->hidden});
    return inv_has_in(y->n, i) ? of_direction(y, i, d) : inv_emit_zeros(y->g, inv_in_dtype(y->g, y->n, X), &s);
}

static cell cell_of(const layer *y, inv_id x, int d)
{
    inv_graph *g = y->g;
    const int64_t h = y->hidden;
    cell c = {.peephole = {INV_NONE, INV_NONE, INV_NONE}};
    c.xw = inv_onnx(g, y->n, "MatMul", INV_IN(x, matrix_of(y, W, W_SCALE, W_ZERO, d)), INV_NOATTR);
    c.r = matrix_of(y, R, R_SCALE, R_ZERO, d);
    c.h = first_state(y, INITIAL_H, d), c.c = first_state(y, INITIAL_C, d);
    if (inv_has_in(y->n, B)) {
        const inv_id b = of_direction(y, B, d);
        const inv_id sum =
            inv_emit_pair(g, "Add", inv_emit_part(g, b, 0, 0, 4 * h), inv_emit_part(g, b, 0, 4 * h, 4 * h));
        c.xw = inv_emit_pair(g, "Add", c.xw, sum);
    }
    for (int i = 0; i < 3 && inv_has_in(y->n, P); i++)
        c.peephole[i] = inv_emit_part(g, of_direction(y, P, d), 0, i * h, h);
    return c;
}

/* Gate k of the sums, with what it sees of the cells. */
static inv_id gate(const layer *y, inv_id sums, int k, const char *f, inv_id peephole, inv_id cells)
{
    inv_id z = inv_emit_part(y->g, sums, 1, k * y->hidden, y->hidden);
    if (peephole != INV_NONE) z = inv_emit_pair(y->g, "Add", z, inv_emit_pair(y->g, "Mul", peephole, cells));
    return inv_unary(y->g, f, z);
}

/* The states after step t, in order of the gates: i, o, f, c. */
static void do_step(const layer *y, cell *s, int64_t t)
{
    inv_graph *g = y->g;
    const inv_shape row = inv_shape_of(2, (int64_t[]){y->batch, 4 * y->hidden});
    const inv_id read = inv_emit_view(g, inv_emit_part(g, s->xw, 0, t, 1), &row);
    const inv_id sums =
        inv_emit_pair(g, "Add", read, inv_emit_product(g, false, inv_rounded_by_range(g, s->h), false, s->r));
    const inv_id in = gate(y, sums, 0, "Sigmoid", s->peephole[0], s->c);
    const inv_id forget = gate(y, sums, 2, "Sigmoid", s->peephole[2], s->c);
    const inv_id more = gate(y, sums, 3, "Tanh", INV_NONE, INV_NONE);
    s->c = inv_emit_pair(g, "Add", inv_emit_pair(g, "Mul", forget, s->c), inv_emit_pair(g, "Mul", in, more));
    const inv_id out = gate(y, sums, 1, "Sigmoid", s->peephole[1], s->c);
    s->h = inv_emit_pair(g, "Mul", out, inv_unary(g, "Tanh", s->c));
}

/* All in one, along an axis of extent 1 of the shape s that each is given. */
static inv_id joined(inv_graph *g, inv_id *v, int64_t count, const inv_shape *s, int axis)
{
    for (int64_t i = 0; i < count; i++) {
        v[i] = inv_emit_view(g, v[i], s);
        if (v[i] == INV_NONE) return INV_NONE;
    }
    return count == 1 ? v[0] : inv_emit1(g, "Concat", (uint32_t)count, v, INV_ATTRS(inv_attr_of_int("axis", axis)));
}

static inv_status dynamic_lstm_lower(inv_graph *g, const inv_node *n, inv_id *out)
{
    layer y = {.g = g, .n = n};
    const bool wants[3] = {inv_has_out(n, 0), inv_has_out(n, 1), inv_has_out(n, 2)};
    inv_id all[2] = {INV_NONE, INV_NONE}, last[2][2];
    INV_TRY(layer_of(&y));
    const inv_shape step = inv_shape_of(4, (int64_t[]){1, 1, y.batch, y.hidden}), state = inv_shape_of(3, step.dim + 1);
    const inv_id x = inv_rounded_by_range(g, n->in[X]);
    inv_id *h = INV_ARENA_NEW(&g->arena, inv_id, (size_t)y.steps);
    if (!h) return INV_E_NOMEM;
    for (int d = 0; d < y.directions; d++) {
        const bool back = y.reverse || d == 1;
        cell s = cell_of(&y, x, d);
        for (int64_t i = 0; i < y.steps && g->failed == INV_OK; i++) {
            const int64_t t = back ? y.steps - 1 - i : i;
            do_step(&y, &s, t);
            h[t] = s.h;
        }
        if (g->failed != INV_OK) return g->failed;
        last[0][d] = s.h, last[1][d] = s.c;
        if (wants[0]) all[d] = joined(g, h, y.steps, &step, 0);
    }
    for (int i = 0; i < 2; i++)
        if (wants[1 + i]) out[1 + i] = joined(g, last[i], y.directions, &state, 0);
    if (!wants[0]) return inv_done(g);
    if (all[0] == INV_NONE) return inv_failed(g);
    out[0] = y.directions == 1 ? all[0] : inv_emit1(g, "Concat", 2, all, INV_ATTRS(inv_attr_of_int("axis", 1)));
    return inv_done(g);
}

/* --- rows --- */
INV_MICROSOFT(
    dynamic_lstm_lower, INV_OP_STRAIGHT, dynamic_lstm, "DynamicQuantizeLSTM",
    "X W R B? sequence_lens? initial_h? initial_c? P? W_scale W_zero_point R_scale R_zero_point", "Y? Y_h? Y_c?",
    "LSTM with quantized weights, input and state rounded to 8 bits by their range; gradients pass straight through",
    "y, h, c = com.microsoft.DynamicQuantizeLSTM<hidden_size = 2>(float[3,2,3] x, int8[1,3,8] w, int8[1,2,8] r, "
    "float[1,16] b, , , , float[1,6] p, float[1] sw, int8[1] zw, float[1] sr, int8[1] zr)",
    "y, h, c = com.microsoft.DynamicQuantizeLSTM<hidden_size = 2, direction = \"bidirectional\">(float[3,2,3] x, "
    "int8[2,3,8] w, int8[2,2,8] r, , , float[2,2,2] h0, float[2,2,2] c0, , float[2,8] sw, int8[2,8] zw, "
    "float[2,8] sr, int8[2,8] zr)")

const inv_op_def *const inv_ops_ms_lstm[] = {&dynamic_lstm_row, NULL};
