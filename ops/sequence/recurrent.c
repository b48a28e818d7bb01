/* SPDX-License-Identifier: Apache-2.0
 * ONNX's RNN, GRU and LSTM, to a product of all steps with the weights of the input and an operator per direction that
 * does the steps (recurrent_core.c). Sources: the ONNX operator specifications. */
#include "ops/sequence/recurrent.h"
#include "ops/base/emit.h"
#include "ops/base/families.h"
#include "ops/base/rows.h"

enum { X, W, R, B, LENGTHS, INITIAL_H, INITIAL_C, P };

/* One layer while it is lowered. */
typedef struct layer {
    inv_graph *g;
    const inv_node *n;
    int64_t steps, batch, hidden, gates;
    int directions;
    bool reverse, batch_first, lstm, linear; /* linear: the reset gate of a GRU works on a product */
    inv_id x, lengths, seen;                 /* seen: bool [steps, batch, 1], INV_NONE: all */
} layer;

/* Entry d of the first axis of input i, with the shape given. */
static inv_id of_direction(const layer *y, uint32_t i, int d, int rank, const int64_t *dim)
{
    const inv_shape shape = inv_shape_of(rank, dim);
    const inv_id v = inv_emit_part(y->g, y->n->in[i], 0, d, 1);
    return inv_emit_view(y->g, v, &shape);
}

static inv_status need_shape(const layer *y, uint32_t i, int rank, const int64_t *dim)
{
    const inv_shape want = inv_shape_of(rank, dim);
    char text[INV_SHAPE_TEXT];
    if (!inv_has_in(y->n, i) || inv_shape_equal(inv_in_shape(y->g, y->n, i), &want)) return INV_OK;
    inv_note_shapes(y->g, 1 + (int)i * INV_MAX_RANK, inv_in_shape(y->g, y->n, i), &want, false);
    return inv_node_fail(y->g, y->n, INV_E_SHAPE, "input %u must be %s", i, inv_shape_text(&want, text));
}

/* An LSTM whose states are projected to fewer numbers than its cells have: PyTorch's `proj_size`. ONNX has no operator
 * for that, and PyTorch's exporter leaves the projection out, and what of the other weights belongs to it. */
static inv_status refuse_projection(const layer *y, int64_t state)
{
    if (!inv_has_in(y->n, INITIAL_C) || inv_in_shape(y->g, y->n, INITIAL_C)->rank != 3) return INV_OK;
    const int64_t cell = inv_in_shape(y->g, y->n, INITIAL_C)->dim[2], wanted = inv_attr_int(y->n, "hidden_size", cell);
    if (cell == state || (wanted != state && wanted != cell)) return INV_OK;
    return inv_node_fail(y->g, y->n, INV_E_UNSUPPORTED_OP,
                         "its states have %lld numbers and its cells %lld: an LSTM with projections (proj_size), "
                         "which ONNX does not support, so weights are missing in the file. Export it without "
                         "proj_size",
                         (long long)state, (long long)cell);
}

static inv_status layer_operands(layer *y)
{
    inv_graph *g = y->g;
    const inv_node *n = y->n;
    const char *direction = inv_attr_string(n, "direction", "forward");
    INV_TRY(inv_need_real(g, n, X));
    const inv_shape x = *inv_in_shape(g, n, X), r = *inv_in_shape(g, n, R);
    if (x.rank != 3 || r.rank != 3) return inv_node_fail(g, n, INV_E_SHAPE, "X, W and R need three axes");
    y->directions = strcmp(direction, "bidirectional") == 0 ? 2 : 1;
    y->reverse = strcmp(direction, "reverse") == 0;
    if (y->directions == 1 && !y->reverse && strcmp(direction, "forward") != 0)
        return inv_node_fail(g, n, INV_E_GRAPH, "direction \"%s\" is not known", direction);
    y->batch_first = inv_attr_int(n, "layout", 0) != 0;
    y->lstm = strcmp(n->op_type, "LSTM") == 0;
    y->gates = y->lstm ? 4 : strcmp(n->op_type, "GRU") == 0 ? 3 : 1;
    y->linear = y->gates == 3 && inv_attr_int(n, "linear_before_reset", 0) != 0;
    y->steps = x.dim[y->batch_first ? 1 : 0], y->batch = x.dim[y->batch_first ? 0 : 1], y->hidden = r.dim[2];
    const int64_t d = y->directions, h = y->hidden, b = y->batch;
    const int64_t bd[] = {y->batch_first ? b : d, y->batch_first ? d : b, h};
    INV_TRY(need_shape(y, W, 3, (int64_t[]){d, y->gates * h, x.dim[2]}));
    INV_TRY(need_shape(y, R, 3, (int64_t[]){d, y->gates * h, h}));
    INV_TRY(need_shape(y, B, 2, (int64_t[]){d, 2 * y->gates * h}));
    INV_TRY(need_shape(y, LENGTHS, 1, &b));
    INV_TRY(need_shape(y, INITIAL_H, 3, bd));
    if (!y->lstm) return INV_OK;
    INV_TRY(refuse_projection(y, r.dim[2]));
    INV_TRY(need_shape(y, INITIAL_C, 3, bd));
    return need_shape(y, P, 2, (int64_t[]){d, 3 * h});
}

/* x with steps first, lengths as int64, and which steps take part. */
static inv_status emit_sequence(layer *y)
{
    inv_graph *g = y->g;
    const int64_t turn[] = {1, 0, 2};
    y->x = y->batch_first ? inv_emit_transpose(g, y->n->in[X], 3, turn) : y->n->in[X];
    y->lengths = y->seen = INV_NONE;
    if (y->x == INV_NONE) return inv_failed(g);
    if (!inv_has_in(y->n, LENGTHS)) return INV_OK;
    INV_TRY(inv_takes_lengths(g, y->n, LENGTHS, 0, y->steps));
    const inv_shape ramp = inv_shape_of(3, (int64_t[]){y->steps, 1, 1});
    const inv_shape row = inv_shape_of(3, (int64_t[]){1, y->batch, 1});
    int64_t *t = INV_ARENA_NEW(&g->arena, int64_t, (size_t)y->steps + 1);
    if (!t) return INV_E_NOMEM;
    for (int64_t i = 0; i < y->steps; i++) t[i] = i;
    y->lengths = inv_emit1(g, "Cast", INV_IN(y->n->in[LENGTHS]), INV_ATTRS(inv_attr_of_int("to", 7)));
    if (y->lengths == INV_NONE) return inv_failed(g);
    y->seen = inv_emit_pair(g, "Less", inv_graph_const(g, INV_I64, &ramp, t), inv_emit_view(g, y->lengths, &row));
    return y->seen == INV_NONE ? inv_failed(g) : INV_OK;
}

/* State before the first step: [batch, hidden]. */
static inv_id first_state(const layer *y, uint32_t i, int d)
{
    inv_graph *g = y->g;
    const inv_shape s = inv_shape_of(2, (int64_t[]){y->batch, y->hidden});
    if (!inv_has_in(y->n, i)) {
        const inv_id zero = inv_graph_const_real(g, inv_in_dtype(g, y->n, X), 0);
        return inv_emit1(g, "BroadcastTo", INV_IN(zero), INV_ATTRS(inv_attr_of_shape("shape", &s)));
    }
    if (!y->batch_first) return of_direction(y, i, d, 2, s.dim);
    const int64_t start[] = {0, d, 0}, step[] = {1, 1, 1}, size[] = {y->batch, 1, y->hidden};
    const inv_id v = inv_emit1(g, "SliceRange", INV_IN(y->n->in[i]),
                               INV_ATTRS(inv_attr_of_ints("starts", 3, start), inv_attr_of_ints("steps", 3, step),
                                         inv_attr_of_ints("sizes", 3, size)));
    return inv_emit_view(g, v, &s);
}

/* What gates read of x: x W' and the biases, for all steps. *rbias: that of a product with the state. */
static inv_id emit_reads(const layer *y, int d, inv_id *rbias)
{
    inv_graph *g = y->g;
    const int64_t h = y->hidden, gh = y->gates * h, in = inv_shape_of_value(g, y->x)->dim[2];
    const inv_id w = of_direction(y, W, d, 2, (int64_t[]){gh, in});
    *rbias = INV_NONE;
    if (w == INV_NONE) return INV_NONE;
    const inv_id xw =
        inv_emit1(g, "MatMulT", INV_IN(y->x, w), INV_ATTRS(inv_attr_of_int("transA", 0), inv_attr_of_int("transB", 1)));
    if (!inv_has_in(y->n, B)) return xw;
    const int64_t both = 2 * gh;
    const inv_id b = of_direction(y, B, d, 1, &both), wb = inv_emit_part(g, b, 0, 0, gh);
    const int64_t direct = y->linear ? 2 * h : gh;
    inv_id rb = inv_emit_part(g, b, 0, gh, direct);
    if (y->linear) {
        *rbias = inv_emit_part(g, b, 0, gh + direct, h);
        const inv_id zero = inv_graph_const_real(g, inv_in_dtype(g, y->n, X), 0);
        const inv_id rest = inv_emit1(g, "BroadcastTo", INV_IN(zero), INV_ATTRS(inv_attr_of_ints("shape", 1, &h)));
        if (rb == INV_NONE || rest == INV_NONE) return INV_NONE;
        rb = inv_emit1(g, "Concat", INV_IN(rb, rest), INV_ATTRS(inv_attr_of_int("axis", 0)));
    }
    return inv_emit_pair(g, "Add", xw, inv_emit_pair(g, "Add", wb, rb));
}

/* Activations of direction d, by the names of the canonical operator, where they are not the usual ones. */
static inv_status activation_attrs(const layer *y, int d, inv_attr *out, uint32_t *count)
{
    static const char *const name[] = {"f", "g", "h"}, *const arg[2][3] = {{"f_alpha", "g_alpha", "h_alpha"},
                                                                           {"f_beta", "g_beta", "h_beta"}};
    static const char *const values[2] = {"activation_alpha", "activation_beta"};
    const int per = y->lstm ? 3 : y->gates == 3 ? 2 : 1;
    const inv_attr *list = inv_attr_find(y->n, "activations");
    size_t next[2] = {0, 0};
    if (!list || list->n == 0) return INV_OK;
    if (list->kind != INV_ATTR_STRINGS || list->n != (size_t)per * (size_t)y->directions)
        return inv_node_fail(y->g, y->n, INV_E_GRAPH, "%d activations are wanted", per * y->directions);
    for (int i = 0; i < per * y->directions; i++) { /* numbers are taken in order by those that need them */
        int nargs = 0;
        double v[2];
        if (inv_recurrent_activation(list->strings[i], &nargs, v) < 0)
            return inv_node_fail(y->g, y->n, INV_E_UNSUPPORTED_OP, "activation %s is not known", list->strings[i]);
        const int k = i - d * per;
        const bool mine = k >= 0 && k < per;
        if (mine) out[(*count)++] = inv_attr_of_string(name[k], list->strings[i]);
        for (int a = 0; a < nargs; a++) {
            const inv_attr *given = inv_attr_find(y->n, values[a]);
            if (given && given->kind == INV_ATTR_FLOATS && next[a] < given->n) v[a] = given->floats[next[a]++];
            if (mine) out[(*count)++] = inv_attr_of_float(arg[a][k], v[a]);
        }
    }
    return INV_OK;
}

/* States of direction d after every step: [steps, batch, hidden]. */
static inv_status emit_direction(const layer *y, int d, inv_id *hs, inv_id *cs)
{
    inv_graph *g = y->g;
    inv_attr attr[16] = {inv_attr_of_string("cell", y->lstm         ? "LSTM"
                                                    : y->gates == 1 ? "RNN"
                                                    : y->linear     ? "GRULinear"
                                                                    : "GRU")};
    uint32_t nattr = 1;
    const double clip = inv_attr_float(y->n, "clip", 0);
    const int64_t h = y->hidden, h3 = 3 * h;
    INV_TRY(activation_attrs(y, d, attr, &nattr));
    if (clip > 0) attr[nattr++] = inv_attr_of_float("clip", clip);
    if (y->reverse || d == 1) attr[nattr++] = inv_attr_of_int("reverse", 1);
    if (y->lstm && inv_attr_int(y->n, "input_forget", 0) != 0) attr[nattr++] = inv_attr_of_int("coupled", 1);
    inv_id rbias;
    const inv_id xw = emit_reads(y, d, &rbias);
    const inv_id r = of_direction(y, R, d, 2, (int64_t[]){y->gates * h, h}), h0 = first_state(y, INITIAL_H, d);
    const inv_id c0 = y->lstm ? first_state(y, INITIAL_C, d) : INV_NONE;
    const inv_id p = y->lstm && inv_has_in(y->n, P) ? of_direction(y, P, d, 1, &h3) : INV_NONE;
    if (xw == INV_NONE || r == INV_NONE || h0 == INV_NONE || (y->lstm && c0 == INV_NONE)) return inv_failed(g);
    const inv_id node =
        inv_emit(g, "Recurrent", y->lstm ? 2 : 1, INV_IN(xw, r, h0, c0, p, rbias, y->lengths), nattr, attr);
    if (node == INV_NONE) return inv_failed(g);
    *hs = inv_nod(g, node)->out[0];
    *cs = y->lstm ? inv_nod(g, node)->out[1] : INV_NONE;
    return INV_OK;
}

/* One value per direction, each [.., batch, hidden]: with an axis of directions before these, or after the batch. */
static inv_id joined(const layer *y, const inv_id *v, bool all_steps)
{
    inv_graph *g = y->g;
    inv_id each[2] = {INV_NONE, INV_NONE};
    const int64_t axis = all_steps ? 1 : 0;
    const inv_shape s = all_steps ? inv_shape_of(4, (int64_t[]){y->steps, 1, y->batch, y->hidden})
                                  : inv_shape_of(3, (int64_t[]){1, y->batch, y->hidden});
    for (int d = 0; d < y->directions; d++) {
        each[d] = inv_emit_view(g, v[d], &s);
        if (each[d] == INV_NONE) return INV_NONE;
    }
    const inv_id all =
        y->directions == 1 ? each[0] : inv_emit1(g, "Concat", 2, each, INV_ATTRS(inv_attr_of_int("axis", axis)));
    if (!y->batch_first) return all;
    return all_steps ? inv_emit_transpose(g, all, 4, (int64_t[]){2, 0, 1, 3})
                     : inv_emit_transpose(g, all, 3, (int64_t[]){1, 0, 2});
}

/* The state after the step that is done last. Where sequences end early it goes through the steps that are left. */
static inv_id last_state(const layer *y, inv_id states, int d)
{
    const inv_shape s = inv_shape_of(2, (int64_t[]){y->batch, y->hidden});
    const int64_t start[] = {y->reverse || d == 1 ? 0 : y->steps - 1, 0, 0}, step[] = {1, 1, 1};
    const int64_t size[] = {1, y->batch, y->hidden};
    return inv_emit_view(y->g,
                         inv_emit1(y->g, "SliceRange", INV_IN(states),
                                   INV_ATTRS(inv_attr_of_ints("starts", 3, start), inv_attr_of_ints("steps", 3, step),
                                             inv_attr_of_ints("sizes", 3, size))),
                         &s);
}

static inv_status recurrent_lower(inv_graph *g, const inv_node *n, inv_id *out)
{
    layer y = {.g = g, .n = n};
    inv_id all[2] = {INV_NONE, INV_NONE}, last[2][2] = {{INV_NONE, INV_NONE}, {INV_NONE, INV_NONE}};
    const bool wants[3] = {inv_has_out(n, 0), inv_has_out(n, 1), inv_has_out(n, 2)};
    INV_TRY(layer_operands(&y));
    INV_TRY(emit_sequence(&y));
    if (y.steps == 0 && (wants[1] || wants[2]))
        return inv_node_fail(g, n, INV_E_SHAPE, "a sequence without steps has no last state");
    for (int d = 0; d < y.directions; d++) {
        inv_id hs, cs;
        INV_TRY(emit_direction(&y, d, &hs, &cs));
        if (wants[1]) last[0][d] = last_state(&y, hs, d);
        if (wants[2]) last[1][d] = last_state(&y, cs, d);
        all[d] = hs;
        const inv_id zero = inv_graph_const_real(g, inv_in_dtype(g, n, X), 0);
        if (y.seen != INV_NONE && wants[0]) all[d] = inv_emit1(g, "Where", INV_IN(y.seen, hs, zero), INV_NOATTR);
        if (g->failed != INV_OK) return g->failed;
    }
    if (wants[0]) out[0] = joined(&y, all, true);
    for (int i = 0; i < 2; i++)
        if (wants[1 + i]) out[1 + i] = joined(&y, last[i], false);
    return inv_done(g);
}

/* --- rows --- */
INV_LOWERED_BY(
    recurrent_lower, 0, 0, rnn, "RNN", 1, "X W R B? sequence_lens? initial_h?", "Y? Y_h?",
    "simple recurrent layer; to Recurrent. ONNX RNN-1 to -22",
    "y, yh = RNN<hidden_size = 4>(float[3,2,3] x, float[1,4,3] w, float[1,4,4] r, float[1,8] b)",
    "y, yh = RNN<hidden_size = 2, direction = \"bidirectional\", activations = [\"Tanh\", \"Softsign\"], layout = "
    "1>(float[2,3,3] x, float[2,2,3] w, float[2,2,2] r, float[2,4] b, int32[2] {3, 1}, float[2,2,2] h)")

INV_LOWERED_BY(recurrent_lower, 0, 0, gru, "GRU", 1, "X W R B? sequence_lens? initial_h?", "Y? Y_h?",
               "gated recurrent layer; to Recurrent. ONNX GRU-1 to -22",
               "y, yh = GRU<hidden_size = 2, linear_before_reset = 1, direction = \"bidirectional\">(float[3,2,3] x, "
               "float[2,6,3] w, float[2,6,2] r, float[2,12] b, int32[2] {2, 3}, float[2,2,2] h)",
               "y, yh = GRU<hidden_size = 2, direction = \"reverse\">(float[3,2,3] x, float[1,6,3] w, float[1,6,2] r, "
               "float[1,12] b)")

INV_LOWERED_BY(
    recurrent_lower, 0, 0, lstm, "LSTM", 1, "X W R B? sequence_lens? initial_h? initial_c? P?", "Y? Y_h? Y_c?",
    "long short-term memory; to Recurrent. ONNX LSTM-1 to -22",
    "y, yh, yc = LSTM<hidden_size = 2>(float[3,2,3] x, float[1,8,3] w, float[1,8,2] r, float[1,16] b)",
    "y, yh, yc = LSTM<hidden_size = 2, direction = \"bidirectional\", layout = 1>(float[2,3,3] x, float[2,8,3] w, "
    "float[2,8,2] r, float[2,16] b, int32[2] {3, 2}, float[2,2,2] h, float[2,2,2] c, float[2,6] p)")

const inv_op_def *const inv_ops_recurrent[] = {&rnn_row, &gru_row, &lstm_row, &inv_op_recurrent, &inv_op_recurrent_grad,
                                               NULL};
