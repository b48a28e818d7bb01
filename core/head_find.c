/* SPDX-License-Identifier: Apache-2.0
 * Which node of a graph is its head (head_find.h). */
#include "core/head_find.h"

#include <string.h>

#include "core/glob.h"
#include "core/node.h"
#include "core/weight_origin.h"

static bool is_microsoft(const inv_node *n, const char *op_type)
{
    return !strcmp(n->domain, "com.microsoft") && !strcmp(n->op_type, op_type);
}

inv_head_site inv_head_site_of(const inv_graph *g, inv_id node)
{
    const inv_node *n = inv_nod(g, node);
    inv_head_site s = {.node = node, .axis = -1};
    if (n->nin < 2 || n->in[1] == INV_NONE || !n->nout || n->out[0] == INV_NONE) return s;
    if (is_microsoft(n, "MatMulNBits") && n->nin > 2 && n->in[2] != INV_NONE) {
        const int64_t dim[] = {inv_attr_int(n, "K", 0), inv_attr_int(n, "N", 0)};
        s.shape = inv_shape_of(2, dim);
        s.dtype = inv_weight_type(g, n->in[2]);
        s.bias = 5;
        s.packed = true;
        s.axis = dim[0] > 0 && dim[1] > 0 && inv_weight_data(g, n->in[1]) ? 1 : -1;
        return s;
    }
    const inv_origin o = inv_weight_origin(g, n->in[1]);
    if (o.weight == INV_NONE || o.shape.rank < 2 || !inv_dtype_is_float(o.dtype)) return s;
    s.shape = o.shape;
    s.dtype = o.dtype;
    if (o.turned) s.shape.dim[0] = o.shape.dim[1], s.shape.dim[1] = o.shape.dim[0];
    if (inv_node_is(n, "Gemm") || is_microsoft(n, "FusedGemm")) {
        s.axis = inv_attr_int(n, "transB", 0) ? 0 : 1;
        s.bias = 2;
    } else if (inv_node_is(n, "MatMul") || is_microsoft(n, "FusedMatMul")) {
        s.axis = s.shape.rank - (inv_attr_int(n, "transB", 0) ? 2 : 1);
    } else if (inv_node_is(n, "Conv") && inv_attr_int(n, "group", 1) == 1) {
        s.axis = 0;
        s.bias = 2;
    }
    return s;
}

static inv_status find_named(const inv_graph *g, const char *name, inv_head_site *out)
{
    inv_near near = inv_near_to(name);
    for (size_t i = 0; i < g->order.n; i++) {
        const inv_node *n = inv_nod(g, g->order.at[i]);
        const char *called = inv_node_called(g, n);
        inv_near_look(&near, called);
        if (strcmp(called, name) != 0) continue;
        *out = inv_head_site_of(g, g->order.at[i]);
        INV_CHECK(out->axis >= 0, g->ctx, INV_E_ARG,
                  "{head}: node '%s' (%s) is no head: that is a Gemm, MatMul, Conv of one group or MatMulNBits whose "
                  "second input is a weight, if quantized behind DequantizeLinear",
                  name, n->op_type);
        return INV_OK;
    }
    return inv__fail(g->ctx, INV_E_ARG, "{head}: the main graph has no node '%s'" INV_NEAR_FORMAT, name,
                     INV_NEAR_ARGS(near));
}

static bool may_be_logits(const inv_value *v)
{
    return v->role == INV_ROLE_NODE && !v->type && (v->dtype == INV_DT_NONE || inv_dtype_is_float(v->dtype));
}

static inv_status find_output(const inv_graph *g, const char *name, inv_id *out)
{
    inv_near near = inv_near_to(name ? name : "");
    size_t n = 0;
    for (size_t i = 0; i < g->outputs.n; i++) {
        const inv_value *v = inv_val(g, g->outputs.at[i]);
        inv_near_look(&near, v->name);
        if (name ? strcmp(v->name, name) != 0 : !may_be_logits(v)) continue;
        *out = g->outputs.at[i];
        n++;
    }
    INV_CHECK(n || !name, g->ctx, INV_E_ARG, "{head}: the model has no output '%s'" INV_NEAR_FORMAT, name,
              INV_NEAR_ARGS(near));
    INV_CHECK(n == 1, g->ctx, INV_E_ARG,
              "{head}: the model has %zu floating-point outputs; say by {loss_outputs} which one the classifier gives, "
              "or name its node",
              n);
    return INV_OK;
}

/* Whose first input is what they compute with, the others say how. */
static bool is_of_first(const inv_node *n)
{
    static const char *const ops[] = {"Identity",
                                      "Cast",
                                      "Dropout",
                                      "Flatten",
                                      "Reshape",
                                      "Squeeze",
                                      "Unsqueeze",
                                      "Transpose",
                                      "Softmax",
                                      "LogSoftmax",
                                      "Sigmoid",
                                      "Tanh",
                                      "Relu",
                                      "LeakyRelu",
                                      "Clip",
                                      "GlobalAveragePool",
                                      "GlobalMaxPool",
                                      "AveragePool",
                                      "MaxPool",
                                      "ReduceMean",
                                      "ReduceMax",
                                      "ReduceSum",
                                      "Slice",
                                      "Gather",
                                      "Softplus",
                                      "Neg",
                                      "Exp",
                                      "Log",
                                      "QuantizeLinear",
                                      "DequantizeLinear",
                                      "Mul",
                                      "Add",
                                      "Sub",
                                      "Div",
                                      "HardSigmoid",
                                      "Resize",
                                      NULL};
    return inv_node_is_any(n, ops);
}

/* The one input that depends on the model's inputs. */
static inv_id way_back(const inv_node *n, const bool *fixed)
{
    inv_id way = INV_NONE;
    if (!is_of_first(n)) return INV_NONE;
    if (n->nin && n->in[0] != INV_NONE && !fixed[n->in[0]]) way = n->in[0];
    const bool pair = inv_node_is(n, "Mul") || inv_node_is(n, "Add") || inv_node_is(n, "Sub") || inv_node_is(n, "Div");
    if (!pair || n->nin < 2 || n->in[1] == INV_NONE || fixed[n->in[1]]) return way;
    return way == INV_NONE ? n->in[1] : INV_NONE;
}

/* Why a call has not given way to the function's nodes; "". */
static const char *shut(const inv_graph *g, const inv_node *n, inv_arena *a)
{
    for (size_t i = 0; i < g->function.n; i++) {
        const inv_function *f = &g->function.at[i];
        if (!f->shut || strcmp(f->name, n->op_type) != 0 || strcmp(f->domain, n->domain) != 0) continue;
        const char *text = inv__arena_printf(a, ", a function that cannot be opened up, as %s,", f->shut);
        return text ? text : "";
    }
    return "";
}

inv_status inv_head_find(const inv_graph *g, const inv_head *o, const bool *fixed, inv_arena *a, inv_head_site *out)
{
    inv_id v = INV_NONE;
    if (o->node) return find_named(g, o->node, out);
    INV_TRY(find_output(g, o->output, &v));
    const char *output = inv_val(g, v)->name;
    for (;;) {
        const inv_id def = inv_val(g, v)->def;
        INV_CHECK(def != INV_NONE, g->ctx, INV_E_ARG,
                  "{head}: no product with a weight leads to the output '%s': there is no classifier to replace",
                  output);
        const inv_node *n = inv_nod(g, def);
        *out = inv_head_site_of(g, def);
        if (out->axis >= 0) return INV_OK;
        const inv_id back = way_back(n, fixed);
        INV_CHECK(back != INV_NONE, g->ctx, INV_E_ARG,
                  "{head}: looking for the last classifier from the output '%s' on, node '%s' (%s)%s is met first, "
                  "behind which none is sought; name the node whose weight is to be replaced, by NODE=N",
                  output, inv_node_called(g, n), n->op_type, shut(g, n, a));
        v = back;
    }
}
