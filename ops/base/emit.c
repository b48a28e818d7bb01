/* SPDX-License-Identifier: Apache-2.0
 * Operators that gradients of many families emit. */
#include "ops/base/util.h"

inv_id inv_emit_sum_to(inv_graph *g, inv_id v, inv_id like)
{
    if (g->failed || v == INV_NONE || like == INV_NONE) return INV_NONE;
    const inv_shape to = *inv__shape(g, like), from = *inv__shape(g, v);
    if (inv_shape_equal(&from, &to)) return v;
    if (inv_shape_nelem(&to) == inv_shape_nelem(&from)) return inv__emit_view(g, v, &to);
    return inv_emit1(g, "SumTo", INV_IN(v), INV_ATTRS(inv__attr_of_shape("shape", &to)));
}

inv_id inv__emit_part(inv_graph *g, inv_id v, int axis, int64_t start, int64_t count)
{
    int64_t starts[INV_MAX_RANK] = {0}, steps[INV_MAX_RANK], sizes[INV_MAX_RANK];
    if (v == INV_NONE) return v;
    const inv_shape *s = inv__shape(g, v);
    if (s->dim[axis] == count) return v;
    for (int i = 0; i < s->rank; i++) steps[i] = 1, sizes[i] = i == axis ? count : s->dim[i];
    starts[axis] = start;
    return inv_emit1(g, "SliceRange", INV_IN(v),
                     INV_ATTRS(inv_attr_of_ints("starts", (size_t)s->rank, starts),
                               inv_attr_of_ints("steps", (size_t)s->rank, steps),
                               inv_attr_of_ints("sizes", (size_t)s->rank, sizes)));
}
