/* SPDX-License-Identifier: Apache-2.0
 * What may not lie on a gradient's way: operators whose rows have none, and, unless gradients are to pass straight
 * through them, quantizers. All of them are named at once. */
#include <string.h>

#include "core/graph/node.h"
#include "passes/autodiff/autodiff.h"

/* Whether n rounds as a quantizer does: a gradient that passes is a convention. */
static bool is_quantizer(const inv_node *n)
{
    return inv_op_is(n, "RoundThrough") || (inv_op_is(n, "RoundSmall") && inv_attr_int(n, "quantizes", 0));
}

/* Adds the model's node that n is of, unless the newest one in the text is that. */
static void name_node(const inv_graph *g, const inv_node *n, const char **newest, inv_str *text)
{
    const char *name = n->norigin ? n->origin[0] : inv_val(g, n->out[0])->name;
    if (*newest && strcmp(*newest, name) == 0) return;
    *newest = name;
    inv_str_add(text, "; %s (node '%s')", inv_node_kind(n), name);
}

/* What the nodes on the way are refused for, all of them at once. */
static inv_status refuse_named(const inv_graph *g, const inv_str *missing, const inv_str *rounding)
{
    if (missing->failed || rounding->failed) return INV_E_NOMEM;
    INV_CHECK(!missing->n, g->ctx, INV_E_UNSUPPORTED_OP,
              "operators without a gradient are between trained weights and the loss: %s. Freeze what comes before "
              "them ({freeze}), or train only what follows ({train_only})",
              missing->s + 2);
    INV_CHECK(!rounding->n, g->ctx, INV_E_UNSUPPORTED_OP,
              "rounding operators without a gradient are between the loss and trained weights or inputs: %s. Pass "
              "gradients through ({through_quantization}), freeze what comes before ({freeze}), or train only what "
              "follows ({train_only})",
              rounding->s + 2);
    return INV_OK;
}

static bool wants_any(const bool *wanted, const inv_node *n)
{
    for (uint32_t k = 0; k < n->nin; k++)
        if (n->in[k] != INV_NONE && wanted[n->in[k]]) return true;
    return false;
}

inv_status inv_check_way(const inv_graph *g, inv_arena *scratch, const bool *wanted, const inv_ids *from)
{
    bool *on = INV_ARENA_NEW(scratch, bool, g->value.n);
    const char *newest[2] = {NULL, NULL};
    inv_str missing, rounding;
    if (!on) return INV_E_NOMEM;
    inv_str_init(&missing, g->ctx);
    inv_str_init(&rounding, g->ctx);
    for (size_t i = 0; i < from->n; i++) on[from->at[i]] = true;
    for (size_t i = g->order.n; i-- > 0;) {
        const inv_node *n = inv_nod(g, g->order.at[i]);
        bool here = false;
        for (uint32_t k = 0; k < n->nout; k++) here = here || (n->out[k] != INV_NONE && on[n->out[k]]);
        if (!here || !wants_any(wanted, n) || n->op->flags & INV_OP_NO_GRAD) continue;
        if (!n->op->grad) name_node(g, n, &newest[0], &missing);
        if (!g->through_quantization && is_quantizer(n)) name_node(g, n, &newest[1], &rounding);
        for (uint32_t k = 0; k < n->nin; k++)
            if (n->in[k] != INV_NONE && wanted[n->in[k]]) on[n->in[k]] = true;
    }
    const inv_status s = refuse_named(g, &missing, &rounding);
    inv_str_fini(&missing);
    inv_str_fini(&rounding);
    return s;
}
