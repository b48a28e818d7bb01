/* SPDX-License-Identifier: Apache-2.0
 * Early updates beside guards. A weight that has moved cannot be had back when a guard refuses the step, so all guards
 * have to decide before the first weight moves. Backward therefore begins with what they compare: the
 * rematerialisations that they hang on are done once, one after the other, and forgotten; their values are those that
 * backward will have, bit for bit, since it does the same again with the same weights. The count of what is not finite,
 * which every update looks at, goes on from the count of guards that refuse, so that none is made of a step that will
 * be refused.
 * requires: an emitter at the end of backward, whose guards count (x->over).
 * gives: backward in another order, with copies of nodes. */
#include "passes/recover/emitter.h"

/* Marks the nodes of backward that guards hang on. Per node. NULL: out of memory. */
static bool *mark_checked(emitter *x)
{
    const inv_graph *g = x->g;
    bool *node = INV_ARENA_NEW(&x->scratch, bool, g->node.n + 1),
         *read = INV_ARENA_NEW(&x->scratch, bool, g->value.n + 1);
    if (x->scratch.failed) return NULL;
    for (size_t i = g->order.n; i-- > 0;) {
        const inv_node *n = inv_nod(g, g->order.at[i]);
        bool wanted = n->guards;
        for (uint32_t k = 0; k < n->nout && !wanted; k++) wanted = n->out[k] != INV_NONE && read[n->out[k]];
        if (!wanted) continue;
        node[g->order.at[i]] = true;
        for (uint32_t k = 0; k < n->nin; k++)
            if (n->in[k] != INV_NONE) read[n->in[k]] = true;
    }
    return node;
}

/* Moves guards into `ahead`, with copies of what they hang on, in the order of backward. */
static bool copy_checked(emitter *x, const bool *checked, inv_ids *ahead, inv_ids *rest)
{
    inv_graph *g = x->g;
    const size_t nvalue = g->value.n;
    inv_id *copy = INV_ARENA_NEW(&x->scratch, inv_id, nvalue + 1);
    if (!copy) return false;
    for (size_t v = 0; v < nvalue; v++) copy[v] = INV_NONE;
    for (size_t i = 0; i < g->order.n; i++) {
        inv_id id = g->order.at[i];
        const inv_node n = *inv_nod(g, id);
        if (!n.guards && !inv_vec_push(&g->arena, rest, id)) return false;
        if (!checked[id]) continue;
        inv_id *in = n.guards ? n.in : INV_ARENA_NEW(&x->scratch, inv_id, n.nin + 1);
        for (uint32_t k = 0; k < n.nin && in; k++)
            in[k] = n.in[k] == INV_NONE || copy[n.in[k]] == INV_NONE ? n.in[k] : copy[n.in[k]];
        if (!n.guards) id = in ? inv_node_again(x, &n, in, NULL, 0) : INV_NONE;
        if (id == INV_NONE || !inv_vec_push(&g->arena, ahead, id)) return false;
        inv_node *made = inv_nod(g, id);
        for (uint32_t k = 0; k < n.nout && !n.guards; k++)
            if (n.out[k] != INV_NONE) copy[n.out[k]] = made->out[k];
        made->guards = true; /* what it costs is for the guards' sake */
    }
    return true;
}

/* Puts the rest of backward behind `ahead`. Those who count on from what is not finite in the loss count on from the
 * guards that refuse, too. */
static bool append_rest(emitter *x, const inv_ids *rest, inv_ids *ahead)
{
    inv_graph *g = x->g;
    const inv_id from = x->plan->loss_finite;
    g->phase = INV_COMMIT;
    const inv_id sum = inv_emit1(g, "Add", INV_IN(from, x->over), INV_NOATTR);
    g->phase = INV_BACKWARD;
    if (sum == INV_NONE) return false;
    for (size_t i = 0; i < rest->n; i++) {
        const inv_id id = rest->at[i];
        inv_node *n = inv_nod(g, id);
        for (uint32_t k = 0; k < n->nin; k++)
            if (n->in[k] == from) n->in[k] = sum;
        if (!inv_vec_push(&g->arena, ahead, id)) return false;
        if (id == inv_val(g, from)->def && !inv_vec_push(&g->arena, ahead, inv_val(g, sum)->def)) return false;
    }
    return true;
}

bool inv_check_ahead(emitter *x)
{
    inv_ids ahead = {0}, rest = {0};
    if (x->over == INV_NONE) return true;
    const bool *checked = mark_checked(x);
    if (!checked || !copy_checked(x, checked, &ahead, &rest) || !append_rest(x, &rest, &ahead)) return false;
    x->g->order = ahead;
    return true;
}
