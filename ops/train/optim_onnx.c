/* SPDX-License-Identifier: Apache-2.0
 * Optimizers as operators of a model (domain ai.onnx.preview.training): one step of Momentum, Adagrad or Adam on
 * tensors X1..Xn with gradients G1..Gn, lowered to arithmetic. What the product itself trains with is in optim.c.
 * Inputs are the learning rate R, the number of steps so far T, then all X, all G and the state; outputs are all new X,
 * then the state. */
#include "ops/base/emit.h"
#include "ops/base/families.h"

/* `states` tensors of state per X. *count: how many X there are. */
static inv_status operands(const inv_graph *g, const inv_node *n, uint32_t states, uint32_t *count)
{
    const uint32_t rest = n->nin > 2 ? n->nin - 2 : 0;
    *count = rest / (2 + states);
    if (rest == 0 || rest % (2 + states) != 0 || n->nout > *count * (1 + states))
        return inv_node_fail(g, n, INV_E_GRAPH, "R, T and then %u inputs and at most %u outputs per tensor are wanted",
                             2 + states, 1 + states);
    for (uint32_t i = 0; i < 2; i++) {
        if (inv_shape_nelem(inv_in_shape(g, n, i)) != 1)
            return inv_node_fail(g, n, INV_E_SHAPE, "input %u (%s) must be one number", i, i ? "T" : "R");
    }
    for (uint32_t i = 2; i < n->nin; i++) {
        INV_TRY(inv_need_real(g, n, i));
        if (!inv_shape_equal(inv_in_shape(g, n, i), inv_in_shape(g, n, 2 + (i - 2) % *count)))
            return inv_node_fail(g, n, INV_E_SHAPE, "input %u has not the shape of its tensor", i);
    }
    return INV_OK;
}

/* R or T as a scalar of the type of the tensors. */
static inv_id scalar_of(inv_graph *g, const inv_node *n, uint32_t i)
{
    const inv_shape s = inv_shape_scalar();
    return inv_cast(g, inv_emit_view(g, n->in[i], &s), inv_val(g, n->in[2])->dtype);
}

static inv_id scaled(inv_graph *g, inv_id x, double k)
{
    return k == 1 ? x : inv_emit_pair(g, "Mul", x, inv_number(g, x, k));
}

/* G + norm_coefficient X: the gradient with that of the penalty norm_coefficient / 2 |X|^2 */
static inv_id penalized(inv_graph *g, const inv_node *n, inv_id x, inv_id gradient)
{
    const double k = inv_attr_float(n, "norm_coefficient", 0);
    return k == 0 ? gradient : inv_emit_pair(g, "Add", gradient, scaled(g, x, k));
}

/* X - rate step */
static inv_id stepped(inv_graph *g, inv_id x, inv_id rate, inv_id step)
{
    return inv_emit_pair(g, "Sub", x, inv_emit_pair(g, "Mul", rate, step));
}

/* T > 0, the first step being number 0 */
static inv_id is_later(inv_graph *g, inv_id t) { return inv_emit_pair(g, "Greater", t, inv_number(g, t, 0)); }

static inv_status momentum_lower(inv_graph *g, const inv_node *n, inv_id *out)
{
    uint32_t count;
    INV_TRY(operands(g, n, 1, &count));
    const char *mode = inv_attr_string(n, "mode", "standard");
    const bool nesterov = strcmp(mode, "nesterov") == 0;
    if (!nesterov && strcmp(mode, "standard") != 0)
        return inv_node_fail(g, n, INV_E_UNSUPPORTED_OP, "mode must be standard or nesterov, not %s", mode);
    const double alpha = inv_attr_float(n, "alpha", 0);
    const inv_id rate = scalar_of(g, n, 0), t = scalar_of(g, n, 1);
    const inv_id beta =
        inv_choose(g, is_later(g, t), inv_number(g, t, inv_attr_float(n, "beta", 0)), inv_number(g, t, 1));
    for (uint32_t i = 0; i < count; i++) {
        const inv_id x = n->in[2 + i], d = penalized(g, n, x, n->in[2 + count + i]), v = n->in[2 + 2 * count + i];
        const inv_id next = inv_emit_pair(g, "Add", scaled(g, v, alpha), inv_emit_pair(g, "Mul", beta, d));
        out[i] = stepped(g, x, rate, nesterov ? inv_emit_pair(g, "Add", d, scaled(g, next, alpha)) : next);
        if (count + i < n->nout) out[count + i] = next;
    }
    return inv_done(g);
}

static inv_status adagrad_lower(inv_graph *g, const inv_node *n, inv_id *out)
{
    uint32_t count;
    INV_TRY(operands(g, n, 1, &count));
    const double epsilon = inv_attr_float(n, "epsilon", 1e-6);
    const inv_id t = scalar_of(g, n, 1), decay = scaled(g, t, inv_attr_float(n, "decay_factor", 0));
    const inv_id rate =
        inv_emit_pair(g, "Div", scalar_of(g, n, 0), inv_emit_pair(g, "Add", decay, inv_number(g, t, 1)));
    for (uint32_t i = 0; i < count; i++) {
        const inv_id x = n->in[2 + i], d = penalized(g, n, x, n->in[2 + count + i]), h = n->in[2 + 2 * count + i];
        const inv_id next = inv_emit_pair(g, "Add", h, inv_emit_pair(g, "Mul", d, d));
        const inv_id root = inv_emit_pair(g, "Add", inv_unary(g, "Sqrt", next), inv_number(g, x, epsilon));
        out[i] = stepped(g, x, rate, inv_emit_pair(g, "Div", d, root));
        if (count + i < n->nout) out[count + i] = next;
    }
    return inv_done(g);
}

/* 1 - k^t */
static inv_id fading(inv_graph *g, double k, inv_id t)
{
    return inv_emit_pair(g, "Sub", inv_number(g, t, 1), inv_emit_pair(g, "Pow", inv_number(g, t, k), t));
}

static inv_status adam_lower(inv_graph *g, const inv_node *n, inv_id *out)
{
    uint32_t count;
    INV_TRY(operands(g, n, 2, &count));
    const double alpha = inv_attr_float(n, "alpha", 0.9f), beta = inv_attr_float(n, "beta", 0.999f),
                 epsilon = inv_attr_float(n, "epsilon", 1e-6), post = inv_attr_float(n, "norm_coefficient_post", 0);
    const inv_id r = scalar_of(g, n, 0), t = scalar_of(g, n, 1);
    /* The correction of a step that is none divides 0 by 0: it is taken of step 1, and not used. */
    const inv_id at = inv_emit_pair(g, "Max", t, inv_number(g, t, 1)), root = inv_unary(g, "Sqrt", fading(g, beta, at));
    const inv_id rate = inv_choose(g, is_later(g, t),
                                   inv_emit_pair(g, "Div", inv_emit_pair(g, "Mul", r, root), fading(g, alpha, at)), r);
    for (uint32_t i = 0; i < count; i++) {
        const inv_id x = n->in[2 + i], d = penalized(g, n, x, n->in[2 + count + i]), v = n->in[2 + 2 * count + i],
                     h = n->in[2 + 3 * count + i];
        const inv_id first = inv_emit_pair(g, "Add", scaled(g, v, alpha), scaled(g, d, 1 - alpha));
        const inv_id second =
            inv_emit_pair(g, "Add", scaled(g, h, beta), scaled(g, inv_emit_pair(g, "Mul", d, d), 1 - beta));
        const inv_id by = inv_emit_pair(g, "Add", inv_unary(g, "Sqrt", second), inv_number(g, x, epsilon));
        out[i] = scaled(g, stepped(g, x, rate, inv_emit_pair(g, "Div", first, by)), 1 - post);
        if (count + i < n->nout) out[count + i] = first;
        if (2 * count + i < n->nout) out[2 * count + i] = second;
    }
    return inv_done(g);
}

/* clang-format off */
#define OPTIMIZER(id, op, text, ...)                                                                                  \
    static const char *const id##_cases[] = {__VA_ARGS__, NULL};                                                      \
    static const inv_op_def id##_row = {                                                                              \
        .size = sizeof(inv_op_def), .domain = "ai.onnx.preview.training", .name = op, .since = 1,                     \
        .in = "R T inputs*", .out = "outputs*", .flags = INV_OP_VARIADIC_OUT,                                         \
        .lower = id##_lower, .cases = id##_cases, .doc = text};
/* clang-format on */
#define TRAINING "ai.onnx.preview.training."
OPTIMIZER(momentum, "Momentum", "gradient step with momentum, standard or nesterov. ONNX Momentum-1 (preview.training)",
          "y, w = " TRAINING "Momentum<alpha = 0.9, beta = 0.8, norm_coefficient = 0.01, mode = \"nesterov\">"
          "(float scale_r, int64 t, float[3] x, float[3] g, float[3] v)")
OPTIMIZER(adagrad, "Adagrad", "gradient step by sums of squares. ONNX Adagrad-1 (preview.training)",
          "y, w = " TRAINING "Adagrad<decay_factor = 0.1, epsilon = 0.01>"
          "(float scale_r, int64 t, float[3] x, float[3] g, float[3] var_h)")
OPTIMIZER(adam, "Adam", "Adam's step (Kingma, Ba 2015). ONNX Adam-1 (preview.training)",
          "y, w, z = " TRAINING "Adam<epsilon = 0.01, norm_coefficient_post = 0.1>"
          "(float scale_r, int64 t, float[3] x, float[3] g, float[3] v, float[3] var_h)")

const inv_op_def *const inv_ops_optim_onnx[] = {&momentum_row, &adagrad_row, &adam_row, NULL};
