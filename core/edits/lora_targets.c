/* SPDX-License-Identifier: Apache-2.0
 * Which weights of a graph low-rank adapters can be put beside (lora.h). */
#include <string.h>

#include "core/edits/edited.h"
#include "core/edits/lora.h"
#include "core/graph/node.h"
#include "core/weights/weight_origin.h"

typedef struct finder {
    const inv_graph *g;
    inv_arena *a;
    inv_id *at; /* per value: 1 + its target */
    inv_lora_targets *out;
} finder;

/* The input's axis of W, where this is the first use. */
static bool meets_first_axis(inv_lora_form form, bool turned)
{
    return ((form == INV_LORA_RIGHT || form == INV_LORA_WHOLE) && !turned) || (form == INV_LORA_LEFT && turned);
}

static inv_status add_use(finder *f, inv_id node, const inv_origin *o, int64_t group, inv_lora_form form, uint32_t x)
{
    const inv_lora_use use = {node, form, o->turned, x};
    if (!inv_dtype_is_float(o->dtype) || group < 1 || o->shape.dim[0] % group) return INV_OK;
    for (int i = 0; i < o->shape.rank; i++)
        if (o->shape.dim[i] < 1) return INV_OK;
    if (!f->at[o->weight]) {
        const inv_lora_target t = {.weight = o->weight,
                                   .shape = o->shape,
                                   .group = group,
                                   .dtype = o->dtype,
                                   .quantized = o->quantized,
                                   .in_first = meets_first_axis(form, o->turned)};
        if (!inv_vec_push(f->a, f->out, t)) return INV_E_NOMEM;
        f->at[o->weight] = (inv_id)f->out->n;
    }
    inv_lora_target *t = &f->out->at[f->at[o->weight] - 1];
    if (!inv_shape_equal(&t->shape, &o->shape) || t->group != group || t->dtype != o->dtype) return INV_OK;
    return inv_vec_push(f->a, &t->use, use) ? INV_OK : INV_E_NOMEM;
}

/* Whether an operand is a vector of the file: what a matrix makes of that is no layer, but something about the matrix,
 * as the norm that spectral normalization divides it by. */
static bool is_vector_of_file(const inv_graph *g, inv_id operand)
{
    const inv_origin o = inv_weight_origin(g, operand);
    return o.weight != INV_NONE && o.shape.rank == 1;
}

/* A product of matrices: of its two operands the one that is a weight. */
static inv_status look_at_product(finder *f, inv_id node)
{
    const inv_node *n = inv_nod(f->g, node);
    const bool gemm = inv_node_is(n, "Gemm");
    if (gemm && inv_graph_opset(f->g, "") < 11 && inv_attr_float(n, "alpha", 1) != 1) return INV_OK; /* inv_lora_add */
    for (uint32_t k = 2; k-- > 0 && n->nin >= 2;) {
        inv_origin o = inv_weight_origin(f->g, n->in[k]);
        if (o.weight == INV_NONE || o.shape.rank != 2) continue;
        if (n->in[1 - k] != INV_NONE && is_vector_of_file(f->g, n->in[1 - k])) return INV_OK;
        if (gemm && inv_attr_int(n, k ? "transB" : "transA", 0)) o.turned = !o.turned;
        return add_use(f, node, &o, 1, k ? INV_LORA_RIGHT : INV_LORA_LEFT, 1 - k);
    }
    return INV_OK;
}

/* The product with a transposed weight that onnxruntime's optimizers write. */
static inv_status look_at_fused(finder *f, inv_id node)
{
    const inv_node *n = inv_nod(f->g, node);
    inv_origin o = n->nin >= 2 ? inv_weight_origin(f->g, n->in[1]) : (inv_origin){.weight = INV_NONE};
    const bool plain = inv_attr_float(n, "alpha", 1) == 1 && !inv_attr_int(n, "transA", 0) &&
                       !inv_attr_int(n, "transBatchA", 0) && !inv_attr_int(n, "transBatchB", 0);
    if (!plain || o.weight == INV_NONE || o.shape.rank != 2) return INV_OK;
    if (inv_attr_int(n, "transB", 0)) o.turned = !o.turned;
    return add_use(f, node, &o, 1, INV_LORA_RIGHT, 0);
}

static inv_status look_at_lookup(finder *f, inv_id node)
{
    const inv_node *n = inv_nod(f->g, node);
    const int64_t axis = inv_attr_int(n, "axis", 0);
    const inv_origin o = n->nin >= 2 ? inv_weight_origin(f->g, n->in[0]) : (inv_origin){.weight = INV_NONE};
    if (o.weight == INV_NONE || o.shape.rank != 2 || o.turned || (axis != 0 && axis != -2)) return INV_OK;
    return add_use(f, node, &o, 1, INV_LORA_LOOKUP, 1);
}

static inv_status look_at_conv(finder *f, inv_id node)
{
    const inv_node *n = inv_nod(f->g, node);
    const inv_origin o = n->nin >= 2 ? inv_weight_origin(f->g, n->in[1]) : (inv_origin){.weight = INV_NONE};
    if (o.weight == INV_NONE || o.shape.rank < 3) return INV_OK;
    return add_use(f, node, &o, inv_attr_int(n, "group", 1), INV_LORA_CONV, 0);
}

/* Of v, which is W or, where there is an adapter, W': the weight. Another sum of a weight is none that has one. */
static inv_id whole_weight(finder *f, inv_id v)
{
    const inv_graph *g = f->g;
    const inv_id def = v == INV_NONE ? INV_NONE : inv_val(g, v)->def;
    if (def == INV_NONE || !inv_node_is(inv_nod(g, def), "Add")) return v;
    const inv_id w = inv_nod(g, def)->in[0];
    const char *a = w == INV_NONE ? NULL : inv_arena_printf(f->a, "%s.lora_A", inv_val(g, w)->name);
    return a && inv_added_find(g, a) != INV_NONE ? w : INV_NONE;
}

/* What an operator computes with W at its input 1, of which it gives no plain product: W itself, or W' if it has an
 * adapter. `turned`: the input's axis of W is the last one. */
static inv_status look_at_whole(finder *f, inv_id node, int rank, int64_t group, bool turned)
{
    const inv_node *n = inv_nod(f->g, node);
    const inv_id w = whole_weight(f, n->nin >= 2 ? n->in[1] : INV_NONE);
    inv_origin o = w == INV_NONE ? (inv_origin){.weight = INV_NONE} : inv_weight_origin(f->g, w);
    if (w == INV_NONE || o.weight != w || o.quantized || o.shape.rank < rank) return INV_OK;
    o.turned = turned;
    return add_use(f, node, &o, group, INV_LORA_WHOLE, 1);
}

/* Weights of 8 bits and fewer in blocks, whose file has them packed: MatMulNBits has W transposed. */
static inv_status look_at_blocks(finder *f, inv_id node, bool product)
{
    const inv_node *n = inv_nod(f->g, node);
    const uint32_t at = product ? 1 : 0;
    const inv_data *d = n->nin >= 3 && n->in[at] != INV_NONE ? inv_weight_data(f->g, n->in[at]) : NULL;
    if (!d || n->in[2] == INV_NONE || d->shape.rank < 2) return INV_OK;
    inv_origin o = {
        .weight = n->in[at], .dtype = inv_weight_type(f->g, n->in[2]), .quantized = true, .turned = product};
    const int64_t bits = inv_attr_int(n, "bits", 4), per = d->dtype == INV_U8 && bits > 0 ? 8 / bits : 1;
    const int64_t of_file[] = {d->shape.dim[0], d->shape.dim[1] * per};
    const int64_t of_node[] = {inv_attr_int(n, "N", 0), inv_attr_int(n, "K", 0)};
    if (!product && (inv_attr_int(n, "gather_axis", 0) != 0 || d->shape.rank != 2)) return INV_OK;
    o.shape = inv_shape_of(2, product ? of_node : of_file);
    return add_use(f, node, &o, 1, product ? INV_LORA_RIGHT : INV_LORA_LOOKUP, product ? 0 : 1);
}

static inv_status look(finder *f, inv_id node)
{
    const inv_node *n = inv_nod(f->g, node);
    const bool microsoft = !strcmp(n->domain, "com.microsoft");
    if (n->nout < 1 || n->out[0] == INV_NONE) return INV_OK;
    if (inv_node_is(n, "MatMul") || inv_node_is(n, "Gemm")) return look_at_product(f, node);
    if (inv_node_is(n, "Gather")) return look_at_lookup(f, node);
    if (inv_node_is(n, "Conv")) return look_at_conv(f, node);
    if (microsoft && !strcmp(n->op_type, "FusedMatMul")) return look_at_fused(f, node);
    if (microsoft && !strcmp(n->op_type, "FusedGemm"))
        return look_at_whole(f, node, 2, 1, inv_attr_int(n, "transB", 0) != 0);
    if (microsoft && !strcmp(n->op_type, "FusedConv"))
        return look_at_whole(f, node, 3, inv_attr_int(n, "group", 1), true);
    if (microsoft && !strcmp(n->op_type, "Attention")) return look_at_whole(f, node, 2, 1, false);
    if (microsoft && !strcmp(n->op_type, "MatMulNBits")) return look_at_blocks(f, node, true);
    if (microsoft && !strcmp(n->op_type, "GatherBlockQuantized")) return look_at_blocks(f, node, false);
    return INV_OK;
}

inv_status inv_lora_targets_find(const inv_graph *g, inv_arena *a, inv_lora_targets *out)
{
    finder f = {.g = g, .a = a, .out = out};
    f.at = INV_ARENA_NEW(a, inv_id, g->value.n + 1);
    if (!f.at) return INV_E_NOMEM;
    for (size_t i = 0; i < g->order.n; i++) INV_TRY(look(&f, g->order.at[i]));
    return INV_OK;
}

void inv_lora_matrix(const inv_lora_target *t, int64_t *rows, int64_t *columns)
{
    *rows = t->shape.dim[0] / t->group;
    *columns = 1;
    for (int i = 1; i < t->shape.rank; i++) *columns *= t->shape.dim[i];
}
