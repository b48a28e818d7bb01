/* SPDX-License-Identifier: Apache-2.0
 * Which node of a graph is its head (head_find.h). */
#include "core/edits/head_find.h"

#include <string.h>

#include "core/graph/node.h"
#include "core/weights/module_names.h"
#include "core/weights/shared_weights.h"
#include "core/weights/weight_origin.h"

static bool is_microsoft(const inv_node *n, const char *op_type)
{
    return !strcmp(n->domain, "com.microsoft") && !strcmp(n->op_type, op_type);
}

/* Products of quantized operands, by their inputs; 0: it has no such. */
typedef struct quantized_product {
    const char *domain, *op_type, *plain;
    uint8_t scale, zero; /* of input 0; without: that is of floating point, or quantized by the node before */
    uint8_t weight, weight_scale, bias;
    uint8_t result_scale;
} quantized_product;

#define MICROSOFT "com.microsoft"
static const quantized_product products[] = {{MICROSOFT, "MatMulNBits", "MatMul", 0, 0, 1, 2, 5, 0},
                                             {MICROSOFT, "DynamicQuantizeMatMul", "MatMul", 0, 0, 1, 2, 4, 0},
                                             {MICROSOFT, "MatMulIntegerToFloat", "MatMul", 2, 4, 1, 3, 6, 0},
                                             {MICROSOFT, "QGemm", "Gemm", 1, 2, 3, 4, 6, 7},
                                             {"", "QLinearMatMul", "MatMul", 1, 2, 3, 4, 0, 6},
                                             {"", "QLinearConv", "Conv", 1, 2, 3, 4, 8, 6},
                                             {"", "MatMulInteger", "MatMul", 0, 0, 1, 0, 0, 0},
                                             {"", "ConvInteger", "Conv", 0, 0, 1, 0, 0, 0}};

static const inv_head_twin twins[] = {{"QLinearAdd", "Add", 3},
                                      {"QLinearSigmoid", "Sigmoid", 0},
                                      {"QLinearSoftmax", "Softmax", 0},
                                      {"QLinearLeakyRelu", "LeakyRelu", 0},
                                      {"QLinearGlobalAveragePool", "GlobalAveragePool", 0}};

const inv_head_twin *inv_head_twin_of(const inv_node *n)
{
    for (size_t i = 0; i < sizeof twins / sizeof *twins; i++)
        if (is_microsoft(n, twins[i].quantized)) return &twins[i];
    return NULL;
}

static inv_id input_of(const inv_node *n, uint32_t k) { return k && k < n->nin ? n->in[k] : INV_NONE; }

static const quantized_product *quantized_product_of(const inv_node *n)
{
    for (size_t i = 0; i < sizeof products / sizeof *products; i++)
        if (!strcmp(n->domain, products[i].domain) && !strcmp(n->op_type, products[i].op_type)) return &products[i];
    return NULL;
}

static bool is_sum_of_integers(const inv_node *n)
{
    return inv_node_is(n, "MatMulInteger") || inv_node_is(n, "ConvInteger");
}

/* The axis of classes in the weight of such an operator; -1: it is no product. */
static int axis_of(const inv_node *n, const char *op_type, int rank)
{
    if (!strcmp(op_type, "Gemm")) return inv_attr_int(n, "transB", 0) ? 0 : 1;
    if (!strcmp(op_type, "MatMul")) return rank - (inv_attr_int(n, "transB", 0) ? 2 : 1);
    return !strcmp(op_type, "Conv") && inv_attr_int(n, "group", 1) == 1 ? 0 : -1;
}

static inv_head_site quantized_site(const inv_graph *g, inv_id node, const quantized_product *p)
{
    const inv_node *n = inv_nod(g, node);
    inv_head_site s = {.node = node, .axis = -1, .plain = p->plain, .x = n->in[0], .dtype = INV_F32};
    const inv_id w = input_of(n, p->weight);
    const inv_data *d = w == INV_NONE ? NULL : inv_weight_data(g, w);
    s.scale = input_of(n, p->scale);
    s.zero = input_of(n, p->zero);
    s.sums = is_sum_of_integers(n);
    s.quantizes = input_of(n, p->result_scale) != INV_NONE;
    s.bias = input_of(n, p->bias) == INV_NONE ? 0 : p->bias;
    if (!d || s.x == INV_NONE || (p->scale && s.scale == INV_NONE)) return s;
    if (p->weight_scale && input_of(n, p->weight_scale) == INV_NONE) return s;
    if (p->weight_scale) s.dtype = inv_weight_type(g, n->in[p->weight_scale]);
    if (s.sums) {
        const inv_id def = inv_val(g, s.x)->def;
        if (def == INV_NONE || !inv_node_is(inv_nod(g, def), "DynamicQuantizeLinear")) return s;
        s.x = inv_nod(g, def)->in[0];
    }
    s.shape = d->shape;
    if (is_microsoft(n, "MatMulNBits"))
        s.shape = inv_shape_of(2, (int64_t[]){inv_attr_int(n, "K", 0), inv_attr_int(n, "N", 0)});
    if (s.shape.rank >= 2 && inv_shape_nelem(&s.shape) > 0) s.axis = axis_of(n, p->plain, s.shape.rank);
    return s;
}

inv_head_site inv_head_site_of(const inv_graph *g, inv_id node)
{
    const inv_node *n = inv_nod(g, node);
    inv_head_site s = {.node = node, .axis = -1};
    if (n->nin < 2 || n->in[1] == INV_NONE || !n->nout || n->out[0] == INV_NONE) return s;
    const quantized_product *quantized = quantized_product_of(n);
    if (quantized) return quantized_site(g, node, quantized);
    const inv_origin o = inv_weight_origin(g, n->in[1]);
    if (o.weight == INV_NONE || o.shape.rank < 2 || !inv_dtype_is_float(o.dtype)) return s;
    s.shape = o.shape;
    s.dtype = o.dtype;
    if (o.turned) s.shape.dim[0] = o.shape.dim[1], s.shape.dim[1] = o.shape.dim[0];
    const char *op_type = is_microsoft(n, "FusedGemm") || is_microsoft(n, "FusedMatMul") ? n->op_type + strlen("Fused")
                          : *n->domain                                                   ? ""
                                                                                         : n->op_type;
    s.axis = axis_of(n, op_type, s.shape.rank);
    s.bias = strcmp(op_type, "MatMul") ? 2 : 0;
    return s;
}

/* The product with the weight of that module. */
static bool find_module(const inv_graph *g, const char *module, inv_arena *a, inv_head_site *out)
{
    const char *weight = inv_arena_printf(a, "%s.weight", module);
    for (size_t i = 0; weight && i < g->order.n; i++) {
        *out = inv_head_site_of(g, g->order.at[i]);
        if (out->axis < 0 || out->plain) continue;
        if (inv_param_is_called(weight, inv_val(g, inv_weight_origin(g, inv_nod(g, out->node)->in[1]).weight)))
            return true;
    }
    return false;
}

static inv_status find_named(const inv_graph *g, const char *name, inv_arena *a, inv_head_site *out)
{
    inv_near near = inv_near_to(name);
    for (size_t i = 0; i < g->order.n; i++) {
        const inv_node *n = inv_nod(g, g->order.at[i]);
        const char *called = inv_node_called(g, n);
        inv_near_look(&near, called);
        if (strcmp(called, name) != 0) continue;
        *out = inv_head_site_of(g, g->order.at[i]);
        INV_CHECK(
            out->axis >= 0, g->ctx, INV_E_ARG,
            "{head}: node '%s' (%s) is not a head. A head is a Gemm, MatMul or ungrouped Conv whose second operand "
            "is a weight, or its quantized form, as MatMulNBits, QGemm or MatMulInteger",
            name, n->op_type);
        return INV_OK;
    }
    if (find_module(g, name, a, out)) return INV_OK;
    return inv_fail(g->ctx, INV_E_ARG,
                    "{head}: the main graph has no node '%s', and no module of that name" INV_NEAR_FORMAT, name,
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
              "{head}: the model has %zu floating-point outputs. Name the classifier's output with {loss_outputs}, "
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

/* Whether v is a sum of products of integers as a real number, which is multiplied by a scale that depends on the
 * model's inputs. */
static bool is_scaled_sum(const inv_graph *g, inv_id v)
{
    const inv_id cast = inv_val(g, v)->def;
    if (cast == INV_NONE || !inv_node_is(inv_nod(g, cast), "Cast")) return false;
    const inv_id def = inv_nod(g, cast)->in[0] == INV_NONE ? INV_NONE : inv_val(g, inv_nod(g, cast)->in[0])->def;
    return def != INV_NONE && is_sum_of_integers(inv_nod(g, def));
}

/* Whether n is a product with what input k is: behind a residual connection, one with a weight is a layer of its own.
 */
static bool is_product_with(const inv_node *n, uint32_t k)
{
    return inv_use_role_at(n, k, false) == INV_USE_WEIGHT || inv_node_is(n, "Einsum") || quantized_product_of(n);
}

/* Whether v is made of `from` and of constants, without a product, as the largest element and the sum of a softmax that
 * is spelled out. */
static bool is_made_of(const inv_graph *g, inv_id v, inv_id from, const bool *fixed)
{
    enum { FAR = 8 };
    for (unsigned far = 0; far < FAR && v != from; far++) {
        const inv_id def = inv_val(g, v)->def;
        const inv_node *n = def == INV_NONE ? NULL : inv_nod(g, def);
        inv_id next = INV_NONE;
        const uint32_t nin = !n ? 0 : inv_node_hands(n) != INV_HANDS_NOTHING ? 1 : n->nin; /* the others are shapes */
        for (uint32_t k = 0; k < nin; k++) {
            if (n->in[k] == INV_NONE) continue;
            if (fixed[n->in[k]] ? is_product_with(n, k) : next != INV_NONE) return false;
            if (fixed[n->in[k]]) continue;
            next = n->in[k];
        }
        if (next == INV_NONE) return false;
        v = next;
    }
    return v == from;
}

/* The one input that depends on the model's inputs, or leads to what does. */
static inv_id way_back(const inv_graph *g, const inv_node *n, const bool *fixed)
{
    const inv_head_twin *twin = inv_head_twin_of(n);
    inv_id way = INV_NONE;
    if (!is_of_first(n) && !twin) return INV_NONE;
    if (n->nin && n->in[0] != INV_NONE && !fixed[n->in[0]]) way = n->in[0];
    const bool pair = inv_node_is(n, "Mul") || inv_node_is(n, "Add") || inv_node_is(n, "Sub") || inv_node_is(n, "Div");
    const inv_id other = input_of(n, twin ? twin->other : pair);
    if (other == INV_NONE || fixed[other] || (way != INV_NONE && is_made_of(g, other, way, fixed))) return way;
    return way == INV_NONE || is_scaled_sum(g, other) ? other : is_scaled_sum(g, way) ? way : INV_NONE;
}

/* Why a call has not given way to the function's nodes; "". */
static const char *shut(const inv_graph *g, const inv_node *n, inv_arena *a)
{
    for (size_t i = 0; i < g->function.n; i++) {
        const inv_function *f = &g->function.at[i];
        if (!f->shut || strcmp(f->name, n->op_type) != 0 || strcmp(f->domain, n->domain) != 0) continue;
        const char *text = inv_arena_printf(a, ", a function that cannot be inlined: %s", f->shut);
        return text ? text : "";
    }
    return "";
}

inv_status inv_head_find(const inv_graph *g, const inv_head *o, const bool *fixed, inv_arena *a, inv_head_site *out)
{
    inv_id v = INV_NONE;
    if (o->node) return find_named(g, o->node, a, out);
    INV_TRY(find_output(g, o->output, &v));
    const char *output = inv_val(g, v)->name;
    for (;;) {
        const inv_id def = inv_val(g, v)->def;
        INV_CHECK(def != INV_NONE, g->ctx, INV_E_ARG,
                  "{head}: no product with a weight leads to the output '%s', so there is no classifier to replace",
                  output);
        const inv_node *n = inv_nod(g, def);
        *out = inv_head_site_of(g, def);
        if (out->axis >= 0) return INV_OK;
        const inv_id back = way_back(g, n, fixed);
        INV_CHECK(back != INV_NONE, g->ctx, INV_E_ARG,
                  "{head}: no classifier found before output '%s': the search ends at node '%s' (%s)%s. Name the "
                  "node whose weight is to be replaced (NODE=N)",
                  output, inv_node_called(g, n), n->op_type, shut(g, n, a));
        v = back;
    }
}
