/* SPDX-License-Identifier: Apache-2.0
 * Normalizations of one value. Its variance is 0, so the output is the bias whatever comes in: nothing before the node
 * learns, and running statistics are spoilt. Training refuses them, as PyTorch does. Where ranks have their statistics
 * together, it hangs on all of them: plan->lone, which a step looks at. O(nodes). */
#include <string.h>

#include "core/graph/node.h"
#include "core/program/exchange.h"
#include "passes/autodiff/autodiff.h"

/* How many values of x a statistic of the node is of; 0: it is no such node. */
static int64_t values_of(const inv_graph *g, const inv_node *n)
{
    const bool batch = inv_op_is(n, "BatchStats");
    if (!batch && !inv_op_is(n, "GroupNormApply")) return 0;
    const inv_shape *x = &inv_val(g, n->in[0])->shape;
    const int64_t all = inv_shape_nelem(x), channels = x->dim[1];
    const int64_t statistics = batch ? channels : x->dim[0] * inv_attr_int(n, "groups", 1);
    return statistics > 0 ? all / statistics : 0;
}

static inv_status refuse(const inv_graph *g, const inv_request *rq, const inv_node *n)
{
    char shape[INV_SHAPE_TEXT];
    const inv_value *x = inv_val(g, n->in[0]);
    const char *name = inv_node_called(g, n);
    inv_shape_text(&x->shape, shape);
    if (!inv_op_is(n, "BatchStats"))
        return inv_fail(
            g->ctx, INV_E_ARG,
            "node '%s' normalizes groups of one value: its input %s%s has one value per channel or group, so its "
            "variance is 0 and nothing before it learns. Train with larger inputs, or remove the node",
            name, inv_dtype_name(x->dtype), shape);
    return inv_fail(
        g->ctx, INV_E_ARG,
        "batch normalization '%s' has one value per channel in a batch of one row, %s%s: its variance is 0, so "
        "nothing before it learns and running statistics are spoiled. %sleave out a last batch of one row "
        "({tail_batch})",
        name, inv_dtype_name(x->dtype), shape,
        rq->batch ? "Use another batch size, or " : "Use batches of two rows or more, and ");
}

inv_status inv_check_norms(inv_graph *g, const inv_request *rq, inv_plan *plan)
{
    const inv_session_options *o = rq->options;
    const bool together = o->sync_bn && rq->optimize && inv_world_several(o->world);
    for (size_t i = 0; i < g->order.n && rq->purpose == INV_FOR_TRAIN; i++) {
        const inv_node *n = inv_nod(g, g->order.at[i]);
        if (values_of(g, n) != 1) continue;
        if (!together || !inv_op_is(n, "BatchStats")) return refuse(g, rq, n);
        if (plan->lone == INV_NONE) plan->lone = g->order.at[i];
    }
    return INV_OK;
}
