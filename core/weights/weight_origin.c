/* SPDX-License-Identifier: Apache-2.0
 * Where operands come from (weight_origin.h). */
#include "core/weights/weight_origin.h"

#include "core/graph/node.h"

static bool is_transpose(const inv_node *n)
{
    size_t k;
    const int64_t *perm = inv_attr_ints(n, "perm", &k);
    return inv_node_is(n, "Transpose") && (!perm || (k == 2 && perm[0] == 1 && perm[1] == 0));
}

const inv_data *inv_weight_data(const inv_graph *g, inv_id v)
{
    const inv_value *x = inv_val(g, v);
    if (x->role == INV_ROLE_PARAM) return x->within || x->type ? NULL : &x->data;
    const inv_node *n = x->def == INV_NONE ? NULL : inv_nod(g, x->def);
    const inv_attr *a = n && inv_node_is(n, "Constant") ? inv_attr_find(n, "value") : NULL;
    return a && a->kind == INV_ATTR_TENSOR ? &a->tensor : NULL;
}

inv_dtype inv_weight_type(const inv_graph *g, inv_id v)
{
    const inv_data *d = inv_weight_data(g, v);
    return d ? d->dtype : inv_val(g, v)->dtype;
}

inv_origin inv_weight_origin(const inv_graph *g, inv_id operand)
{
    inv_id v = operand;
    inv_origin o = {.weight = INV_NONE};
    while (v != INV_NONE) {
        const inv_value *x = inv_val(g, v);
        const inv_data *d = inv_weight_data(g, v);
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
            if (known == INV_DT_NONE) o.dtype = named != INV_DT_NONE ? named : inv_weight_type(g, n->in[1]);
        } else if (is_transpose(n)) {
            o.turned = !o.turned;
        } else if (!inv_node_is(n, "Identity")) {
            return o;
        }
        v = n->in[0];
    }
    return o;
}
