/* SPDX-License-Identifier: Apache-2.0
 * Uses of parts that are cut out of an initializer (shared_weights.h). */
#include <string.h>

#include "core/graph/node.h"
#include "core/weights/shared_weights.h"

uint64_t inv_part_of(const inv_graph *g, const inv_node *n, uint32_t out, uint64_t before)
{
    uint64_t h = inv_hash(n->op_type, strlen(n->op_type), inv_hash(&out, sizeof out, before));
    for (uint32_t k = 1; k < n->nin; k++) {
        const inv_value *v = n->in[k] == INV_NONE ? NULL : inv_val(g, n->in[k]);
        const inv_data *d = v ? &v->data : NULL;
        const inv_attr *a = v && v->def != INV_NONE && inv_node_is(inv_nod(g, v->def), "Constant")
                                ? inv_attr_find(inv_nod(g, v->def), "value")
                                : NULL;
        if (a && a->kind == INV_ATTR_TENSOR) d = &a->tensor;
        if (d && d->bytes) h = inv_hash(d->bytes, d->nbytes, h);
        else h = inv_hash(&n->in[k], sizeof n->in[k], h);
    }
    return h | 1;
}

inv_status inv_parts_number(inv_arena *a, inv_param_use *use, uint32_t n)
{
    uint64_t *number = INV_ARENA_NEW(a, uint64_t, n + 1);
    if (!number) return INV_E_NOMEM;
    for (uint32_t i = 0; i < n; i++)
        if (!use[i].cut) return INV_OK;
    for (uint32_t i = 0; i < n; i++) {
        bool seen = false;
        for (uint32_t k = 0; k < i && !seen; k++) {
            if (use[k].cut != use[i].cut) continue;
            seen = use[k].key == use[i].key;
            if (seen || number[i] <= number[k]) number[i] = number[k] + !seen;
        }
    }
    for (uint32_t i = 0; i < n; i++) use[i].key = number[i] + 100;
    return INV_OK;
}
