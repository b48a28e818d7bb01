/* SPDX-License-Identifier: Apache-2.0
 * Which weights of a graph low-rank adapters can be put beside (lora.h). */
#include <string.h>

#include "core/lora.h"
#include "core/node.h"

/* Where an operand comes from. */
typedef struct origin {
    inv_id weight; /* INV_NONE: it is no weight */
    inv_shape shape;
    inv_dtype dtype; /* of the operand */
    bool turned, quantized;
} origin;

static bool is_transpose(const inv_node *n)
{
    size_t k;
    const int64_t *perm = inv_attr_ints(n, "perm", &k);
    return inv_node_is(n, "Transpose") && (!perm || (k == 2 && perm[0] == 1 && perm[1] == 0));
}

/* What an initializer or a Constant node of the main graph holds; NULL: v is none. */
static const inv_data *tensor_of(const inv_graph *g, inv_id v)
{
    const inv_value *x = inv_val(g, v);
    if (x->role == INV_ROLE_PARAM) return x->within || x->type ? NULL : &x->data;
    const inv_node *n = x->def == INV_NONE ? NULL : inv_nod(g, x->def);
    const inv_attr *a = n && inv_node_is(n, "Constant") ? inv_attr_find(n, "value") : NULL;
    return a && a->kind == INV_ATTR_TENSOR ? &a->tensor : NULL;
}

static inv_dtype type_of(const inv_graph *g, inv_id v)
{
    const inv_data *d = tensor_of(g, v);
    return d ? d->dtype : inv_val(g, v)->dtype;
}

/* Back from an operand through what changes the type or the order of its elements only. */
static origin origin_of(const inv_graph *g, inv_id v)
{
    origin o = {.weight = INV_NONE};
    while (v != INV_NONE) {
        const inv_value *x = inv_val(g, v);
        const inv_data *d = tensor_of(g, v);
        const inv_dtype known = o.dtype;
        if (d) {
            o.weight = v;
            o.shape = d->shape;
            o.dtype = known == INV_DT_NONE ? d->dtype : known;
            return o;
        }
        const inv_node *n = x->def == INV_NONE ? NULL : inv_nod(g, x->def);
        if (!n || !n->nin || n->in[0] == INV_NONE) return o;
        if (inv_node_is(n, "Cast")) {
            if (known == INV_DT_NONE) o.dtype = (inv_dtype)inv_attr_int(n, "to", INV_DT_NONE);
        } else if (inv_node_is(n, "DequantizeLinear") && n->nin > 1 && n->in[1] != INV_NONE) {
            o.quantized = true;
            const inv_dtype named = (inv_dtype)inv_attr_int(n, "output_dtype", INV_DT_NONE);
            if (known == INV_DT_NONE) o.dtype = named != INV_DT_NONE ? named : type_of(g, n->in[1]);
        } else if (is_transpose(n)) {
            o.turned = !o.turned;
        } else if (!inv_node_is(n, "Identity")) {
            return o;
        }
        v = n->in[0];
    }
    return o;
}

typedef struct finder {
    const inv_graph *g;
    inv_arena *a;
    inv_id *at; /* per value: 1 + its target */
    inv_lora_targets *out;
} finder;

/* The input's axis of W, where this is the first use. */
static bool meets_first_axis(inv_lora_form form, bool turned)
{
    return (form == INV_LORA_RIGHT && !turned) || (form == INV_LORA_LEFT && turned);
}

static inv_status add_use(finder *f, inv_id node, const origin *o, int64_t group, inv_lora_form form, uint32_t x)
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

/* A product of matrices: of its two operands the one that is a weight. */
static inv_status look_at_product(finder *f, inv_id node)
{
    const inv_node *n = inv_nod(f->g, node);
    const bool gemm = inv_node_is(n, "Gemm");
    if (gemm && inv_graph_opset(f->g, "") < 11 && inv_attr_float(n, "alpha", 1) != 1) return INV_OK; /* inv_lora_add */
    for (uint32_t k = 2; k-- > 0 && n->nin >= 2;) {
        origin o = origin_of(f->g, n->in[k]);
        if (o.weight == INV_NONE || o.shape.rank != 2) continue;
        if (gemm && inv_attr_int(n, k ? "transB" : "transA", 0)) o.turned = !o.turned;
        return add_use(f, node, &o, 1, k ? INV_LORA_RIGHT : INV_LORA_LEFT, 1 - k);
    }
    return INV_OK;
}

static inv_status look_at_lookup(finder *f, inv_id node)
{
    const inv_node *n = inv_nod(f->g, node);
    const int64_t axis = inv_attr_int(n, "axis", 0);
    const origin o = n->nin >= 2 ? origin_of(f->g, n->in[0]) : (origin){.weight = INV_NONE};
    if (o.weight == INV_NONE || o.shape.rank != 2 || o.turned || (axis != 0 && axis != -2)) return INV_OK;
    return add_use(f, node, &o, 1, INV_LORA_LOOKUP, 1);
}

static inv_status look_at_conv(finder *f, inv_id node)
{
    const inv_node *n = inv_nod(f->g, node);
    const origin o = n->nin >= 2 ? origin_of(f->g, n->in[1]) : (origin){.weight = INV_NONE};
    if (o.weight == INV_NONE || o.shape.rank < 3) return INV_OK;
    return add_use(f, node, &o, inv_attr_int(n, "group", 1), INV_LORA_CONV, 0);
}

/* Weights of 8 bits and fewer in blocks, whose file has them packed: MatMulNBits has W transposed. */
static inv_status look_at_blocks(finder *f, inv_id node, bool product)
{
    const inv_node *n = inv_nod(f->g, node);
    const uint32_t at = product ? 1 : 0;
    const inv_data *d = n->nin >= 3 && n->in[at] != INV_NONE ? tensor_of(f->g, n->in[at]) : NULL;
    if (!d || n->in[2] == INV_NONE || d->shape.rank < 2) return INV_OK;
    origin o = {.weight = n->in[at], .dtype = type_of(f->g, n->in[2]), .quantized = true, .turned = product};
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
