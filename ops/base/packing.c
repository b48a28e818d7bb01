/* SPDX-License-Identifier: Apache-2.0
 * Which quantized constants stay packed, and the nodes that read them so (packing.h). */
#include "ops/base/packing.h"

#include "core/weights/trained.h"

bool inv_stays_as_stored(const inv_graph *g, inv_id v)
{
    const inv_value *x = inv_val(g, v);
    if (x->def != INV_NONE || !inv_is_stored(g, v)) return false;
    return x->role == INV_ROLE_CONST || !g->train || x->untrained != INV_TRAINED || inv_value_fixed(x);
}

bool inv_can_pack(const inv_graph *g, inv_id v, inv_dtype *type)
{
    const inv_value *x = inv_val(g, v);
    *type = x->data.dtype;
    return !g->gpu && inv_const_known(g, v) && x->shape.rank >= 2 && inv_shape_nelem(&x->shape) > 0 &&
           inv_packed_bits(x->data.dtype);
}

inv_id inv_packed_bytes(inv_graph *g, inv_id v)
{
    const inv_value from = *inv_val(g, v);
    const inv_shape flat = inv_shape_of(1, (int64_t[]){(int64_t)from.data.nbytes});
    const char *name = g->failed ? NULL : inv_graph_fresh(g, from.name);
    const inv_id id = name ? inv_graph_value(g, name, INV_ROLE_CONST, INV_U8, &flat) : INV_NONE;
    if (id == INV_NONE) return id;
    inv_value *x = inv_val(g, id);
    x->mem = INV_MEM_PARAM;
    x->data = (inv_data){INV_U8, flat, from.data.bytes, from.data.nbytes};
    x->of_model = from.of_model || from.role == INV_ROLE_PARAM;
    return id;
}

inv_id inv_emit_unpack(inv_graph *g, const inv_packing *p)
{
    if (p->bytes == INV_NONE || p->scale == INV_NONE) return INV_NONE;
    return inv_emit1(g, "Unpack", INV_IN(p->bytes, p->scale, p->zero),
                     INV_ATTRS(inv_attr_of_int("type", p->type), inv_attr_of_shape("shape", &p->shape),
                               inv_attr_of_int("width", p->width), inv_attr_of_int("axis", p->axis),
                               inv_attr_of_int("block", p->block), inv_attr_of_shape("scale_shape", &p->scale_shape),
                               inv_attr_of_shape("zero_shape", &p->zero_shape),
                               inv_attr_of_int("zero_type", p->zero_type), inv_attr_of_float("zero", p->zero_all)));
}
