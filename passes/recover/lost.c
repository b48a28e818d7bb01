/* SPDX-License-Identifier: Apache-2.0
 * Plans that are found to be wrong before they are used. The value that they lose is kept from then on, and a plan is
 * made again (passes/pipeline.c). With everything kept nothing is recovered, so this ends.
 * requires: the base graph.
 * gives: plan->lost. */
#include "core/graph/node.h"
#include "passes/recover/recover.h"

bool inv_plan_lose(inv_plan *plan, inv_id root)
{
    return inv_ids_have(plan->lost.at, plan->lost.n, root) || inv_vec_push(&plan->base->arena, &plan->lost, root);
}

static bool lose_values(inv_plan *plan, const inv_id *v, uint32_t n)
{
    const inv_graph *b = plan->base;
    for (uint32_t k = 0; k < n; k++) {
        const inv_id root =
            v[k] == INV_NONE || inv_val(b, v[k])->role != INV_ROLE_NODE ? INV_NONE : inv_seen_through_views(b, v[k]);
        if (root == INV_NONE || inv_val(b, root)->role != INV_ROLE_NODE) continue;
        if (inv_nod(b, inv_val(b, root)->def)->phase == INV_FORWARD && !inv_plan_lose(plan, root)) return false;
    }
    return true;
}

inv_status inv_plan_lose_for(inv_plan *plan, inv_id v, bool *more)
{
    const inv_graph *b = plan->base;
    const size_t before = plan->lost.n;
    bool ok = true;
    if (v != INV_NONE && v < b->value.n) ok = lose_values(plan, &v, 1);
    else if (v != INV_NONE && inv_val(plan->g, v)->def != INV_NONE) {
        const inv_node *n = inv_nod(plan->g, inv_val(plan->g, v)->def);
        if (n->clone_of != INV_NONE)
            ok = lose_values(plan, inv_nod(b, n->clone_of)->out, inv_nod(b, n->clone_of)->nout);
        else if (n->solves != INV_NONE) ok = lose_values(plan, inv_nod(b, n->solves)->in, inv_nod(b, n->solves)->nin);
    }
    const bool all = plan->lost.n == before; /* nothing more that would help is known */
    for (size_t i = 0; i < b->forward_end && ok && all; i++) {
        const inv_node *n = inv_nod(b, b->order.at[i]);
        ok = lose_values(plan, n->out, n->nout);
    }
    *more = plan->lost.n > before;
    return ok ? INV_OK : INV_E_NOMEM;
}
