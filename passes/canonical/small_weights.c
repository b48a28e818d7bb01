/* SPDX-License-Identifier: Apache-2.0
 * Weights that are kept in a small type (inv_session_options.weights) while they are trained. A parameter becomes one
 * of that type, and an Unpack in front of its readers gives its numbers in the type that is computed with; products
 * and gathering then read it packed (unpack.c), so that no copy as a whole is there. Vectors and small parameters,
 * such as biases and gains of norms, stay as they are: they take little, and need their last bits.
 * requires: lowered nodes, inv_value.untrained.  gives: parameters of g->small, each read by one Unpack. */
#include <string.h>

#include "core/graph/node.h"
#include "core/weights/trained.h"
#include "ops/base/packing.h"
#include "ops/train/adam8.h"
#include "passes/canonical/canonical.h"

static bool becomes_small(const inv_graph *g, const inv_value *v)
{
    return v->role == INV_ROLE_PARAM && !v->state && v->untrained == INV_TRAINED && v->dtype == g->real &&
           !inv_value_fixed(v) && v->shape.rank >= 2 && inv_shape_nelem(&v->shape) >= INV_LEAST8;
}

/* Emits the Unpack of parameter v. */
static inv_id emit_numbers(inv_graph *g, inv_id v)
{
    const inv_shape shape = inv_val(g, v)->shape;
    inv_shape one = shape;
    for (int d = 0; d < one.rank; d++) one.dim[d] = 1;
    const inv_packing p = {.type = g->small,
                           .shape = shape,
                           .width = shape.dim[shape.rank - 1],
                           .axis = shape.rank - 1,
                           .block = shape.dim[shape.rank - 1],
                           .bytes = v,
                           .scale = inv_graph_const_real(g, g->real, 1),
                           .zero = INV_NONE,
                           .scale_shape = one,
                           .zero_shape = one};
    return inv_emit_unpack(g, &p);
}

inv_status inv_pass_small_weights(inv_graph *g)
{
    INV_CHECK(!g->gpu, g->ctx, INV_E_UNSUPPORTED_OP,
              "%s: weights in %s can be read only by kernels of the host. Leave it out, or train with device cpu",
              inv_option(g->ctx, "weights"), inv_dtype_name(g->small));
    const inv_ids old = g->order;
    const size_t nvalue = g->value.n;
    inv_id *numbers = INV_ARENA_NEW(&g->arena, inv_id, nvalue + 1);
    if (!numbers) return INV_E_NOMEM;
    for (size_t v = 0; v < nvalue; v++) numbers[v] = INV_NONE;
    memset(&g->order, 0, sizeof g->order);
    for (size_t i = 0; i < g->inits.n; i++) {
        const inv_id v = g->inits.at[i];
        if (!becomes_small(g, inv_val(g, v))) continue;
        inv_val(g, v)->dtype = g->small;
        numbers[v] = emit_numbers(g, v);
        if (numbers[v] == INV_NONE) return g->failed;
    }
    for (size_t i = 0; i < old.n; i++) {
        inv_node *n = inv_nod(g, old.at[i]);
        for (uint32_t k = 0; k < n->nin; k++)
            if (n->in[k] != INV_NONE && n->in[k] < nvalue && numbers[n->in[k]] != INV_NONE)
                n->in[k] = numbers[n->in[k]];
        if (!inv_vec_push(&g->arena, &g->order, old.at[i])) return INV_E_NOMEM;
    }
    for (size_t i = 0; i < g->outputs.n; i++)
        if (numbers[g->outputs.at[i]] != INV_NONE) g->outputs.at[i] = numbers[g->outputs.at[i]];
    return INV_OK;
}
