/* SPDX-License-Identifier: Apache-2.0
 * Which weights of a graph low-rank adapters can be put beside (lora.h). */
#include <string.h>

#include "core/lora.h"
#include "core/node.h"

/* Where an operand comes from. */
typedef struct origin {
    inv_id weight; /* INV_NONE: it is no weight */
    inv_dtype dtype;
    bool turned, quantized;
} origin;

static bool is_transpose(const inv_node *n)
{
    size_t k;
    const int64_t *perm = inv_attr_ints(n, "perm", &k);
    return inv_node_is(n, "Transpose") && (!perm || (k == 2 && perm[0] == 1 && perm[1] == 0));
}

static bool is_weight(const inv_value *v) { return v->role == INV_ROLE_PARAM && !v->within && !v->type; }

/* Back from an operand through what changes the type or the order of its elements only. */
static origin origin_of(const inv_graph *g, inv_id v)
{
    origin o = {INV_NONE, INV_DT_NONE, false, false};
    while (v != INV_NONE) {
        const inv_value *x = inv_val(g, v);
        const inv_dtype known = o.dtype;
        if (is_weight(x)) {
            o.weight = v;
            o.dtype = known == INV_DT_NONE ? x->dtype : known;
            return o;
        }
        const inv_node *n = x->def == INV_NONE ? NULL : inv_nod(g, x->def);
        if (!n || !n->nin || n->in[0] == INV_NONE) return o;
        if (inv_node_is(n, "Cast")) {
            if (known == INV_DT_NONE) o.dtype = (inv_dtype)inv_attr_int(n, "to", INV_DT_NONE);
        } else if (inv_node_is(n, "DequantizeLinear") && n->nin > 1 && n->in[1] != INV_NONE) {
            o.quantized = true;
            const inv_dtype named = (inv_dtype)inv_attr_int(n, "output_dtype", INV_DT_NONE);
            if (known == INV_DT_NONE) o.dtype = named != INV_DT_NONE ? named : inv_val(g, n->in[1])->dtype;
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

static inv_status add_use(finder *f, inv_id node, const origin *o, inv_shape shape, int64_t group, inv_lora_form form,
                          uint32_t x)
{
    const inv_lora_use use = {node, form, o->turned, x};
    if (!inv_dtype_is_float(o->dtype)) return INV_OK;
    for (int i = 0; i < shape.rank; i++)
        if (shape.dim[i] < 1) return INV_OK;
    if (!f->at[o->weight]) {
        const inv_lora_target t = {.weight = o->weight,
                                   .shape = shape,
                                   .group = group,
                                   .dtype = o->dtype,
                                   .quantized = o->quantized,
                                   .in_first = meets_first_axis(form, o->turned)};
        if (!inv_vec_push(f->a, f->out, t)) return INV_E_NOMEM;
        f->at[o->weight] = (inv_id)f->out->n;
    }
    inv_lora_target *t = &f->out->at[f->at[o->weight] - 1];
    if (!inv_shape_equal(&t->shape, &shape) || t->group != group || t->dtype != o->dtype) return INV_OK;
    return inv_vec_push(f->a, &t->use, use) ? INV_OK : INV_E_NOMEM;
}

/* A product of matrices: of its two operands the one that is a weight. */
static inv_status look_at_product(finder *f, inv_id node, bool gemm)
{
    const inv_node *n = inv_nod(f->g, node);
    const bool old_gemm = gemm && inv_graph_opset(f->g, "") < 11;
    for (uint32_t k = 2; k-- > 0 && n->nin >= 2;) {
        origin o = origin_of(f->g, n->in[k]);
        if (o.weight == INV_NONE || inv_val(f->g, o.weight)->shape.rank != 2) continue;
        if (gemm && inv_attr_int(n, k ? "transB" : "transA", 0)) o.turned = !o.turned;
        if (old_gemm && inv_attr_float(n, "alpha", 1) != 1) continue; /* it has to have a third operand */
        return add_use(f, node, &o, inv_val(f->g, o.weight)->shape, 1, k ? INV_LORA_RIGHT : INV_LORA_LEFT, 1 - k);
    }
    return INV_OK;
}

static inv_status look(finder *f, inv_id node)
{
    const inv_node *n = inv_nod(f->g, node);
    if (n->nout < 1 || n->out[0] == INV_NONE) return INV_OK;
    if (inv_node_is(n, "MatMul")) return look_at_product(f, node, false);
    if (inv_node_is(n, "Gemm")) return look_at_product(f, node, true);
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
