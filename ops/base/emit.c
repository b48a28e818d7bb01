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
