/* SPDX-License-Identifier: Apache-2.0
 * What only asks for the extents of a value makes no use of the value. Where a derivation (derive.c) would stop,
 * because a Shape or Size reads what is not known yet, those of another value are taken. requires: a derivation in
 * which nothing else can be done.  gives: the file's node, of another input. */
#include <string.h>

#include "core/graph/node.h"
#include "passes/export/outline.h"

static bool reads_extents(const inv_node *n)
{
    return n->nin == 1 && n->nout == 1 && !*n->domain &&
           (strcmp(n->op_type, "Shape") == 0 || strcmp(n->op_type, "Size") == 0);
}

/* A known value of these extents; INV_NONE. */
static inv_id known_like(const inv_derivation *d, const inv_shape *s)
{
    const inv_graph *flat = d->o->flat;
    for (size_t v = 0; v < flat->value.n; v++) {
        const inv_id is = inv_graph_stands(d->o->g, (inv_id)v);
        if (d->o->carries[is] && inv_derive_name(d, (inv_id)v) && inv_shape_equal(&inv_val(d->o->g, is)->shape, s))
            return (inv_id)v;
    }
    return INV_NONE;
}

/* What only asks for the extents of a value does not need the value: those of another one will do that has the same.
 * That they are the same for every batch is found out by trying (batches.c). */
inv_status inv_derive_extents(inv_derivation *d, bool *ran)
{
    inv_outliner *o = d->o;
    *ran = false;
    for (uint32_t who = 0; who < d->cut->nitem && !*ran; who++) {
        const uint32_t i = d->cut->item[who];
        const inv_node *n = inv_item(o, i);
        if (o->ran[i] == o->stamp || !reads_extents(n) || inv_derive_name(d, n->out[0])) continue;
        const inv_value *is = inv_val(o->g, inv_graph_stands(o->g, n->in[0]));
        if (inv_derive_name(d, n->in[0]) || !inv_shape_is_static(&is->shape)) continue;
        const inv_id like = known_like(d, &is->shape);
        const char **name = INV_ARENA_NEW(o->a, const char *, 2);
        if (!name) return INV_E_NOMEM;
        if (like == INV_NONE) continue;
        name[0] = inv_derive_name(d, like);
        name[1] = inv_val(o->flat, n->out[0])->name;
        INV_TRY(inv_derive_know(d, n->out[0], name[1]));
        o->ran[i] = o->stamp;
        const inv_outline_node copy = {.source = i, .in = name, .out = name + 1, .nin = 1, .nout = 1};
        if (!inv_vec_push(o->a, &d->node, copy)) return INV_E_NOMEM;
        *ran = true;
    }
    return INV_OK;
}
