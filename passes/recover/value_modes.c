/* SPDX-License-Identifier: Apache-2.0
 * What is asked of single values: kept, recomputed, inverted or offloaded, by the globs of --keep and --mode, and kept
 * because a guard has rejected what stood for them, or because a plan without them was wrong.
 * requires: the base graph, with its matches.
 * gives: inv_policy.value. */
#include <string.h>

#include "core/base/glob.h"
#include "core/graph/node.h"
#include "passes/recover/recover.h"

#define BLOCK "block:" /* before the name or kind of a block */

static bool name_fits(const inv_graph *g, inv_id v, const char *glob)
{
    const inv_value *val = inv_val(g, v);
    if (inv_glob_fits(glob, val->name)) return true;
    const inv_node *n = val->def == INV_NONE ? NULL : inv_nod(g, val->def);
    for (uint32_t i = 0; n && i < n->norigin; i++)
        if (inv_glob_fits(glob, n->origin[i])) return true;
    return false;
}

/* A view has the bytes of what it is of: what is asked of one is asked of the other. */
static void ask(const inv_graph *g, inv_id v, inv_memory mode, inv_value_policy *value)
{
    value[inv_seen_through_views(g, v)].mode = (uint8_t)mode;
}

static void share_with_views(const inv_graph *b, inv_value_policy *value)
{
    for (size_t i = 0; i < b->forward_end; i++) {
        const inv_node *n = inv_nod(b, b->order.at[i]);
        if (n->op->flags & INV_OP_VIEW) value[n->out[0]].mode = value[n->in[0]].mode;
    }
}

/* Marks values of the blocks whose name or kind fits: what is computed in them, and what they take. With mode invert
 * only what they take is marked, since what their branches compute has to be recomputed then. */
static bool mark_blocks(const inv_graph *g, const char *glob, inv_memory mode, inv_value_policy *value)
{
    bool any = false;
    for (size_t i = 0; g->matches && i < g->matches->block.n; i++) {
        const inv_block *b = &g->matches->block.at[i];
        if (!inv_glob_fits(glob, inv_node_label(inv_nod(g, b->root))) && !inv_glob_fits(glob, b->kind)) continue;
        any = true;
        const uint32_t nin = mode == INV_MEMORY_INVERT ? b->nrule_in : b->nin;
        for (uint32_t k = 0; k < nin; k++)
            if (b->in[k] != INV_NONE) ask(g, b->in[k], mode, value);
        for (uint32_t k = 0; k < b->nnode && mode != INV_MEMORY_INVERT; k++) {
            const inv_node *n = inv_nod(g, b->node[k]);
            for (uint32_t j = 0; j < n->nout; j++)
                if (n->out[j] != INV_NONE) ask(g, n->out[j], mode, value);
        }
    }
    return any;
}

/* Marks forward values by their own name or that of their node. */
static bool mark_values(const inv_graph *g, const char *glob, inv_memory mode, inv_value_policy *value)
{
    bool any = false;
    for (size_t i = 0; i < g->forward_end; i++) {
        const inv_node *n = inv_nod(g, g->order.at[i]);
        for (uint32_t k = 0; k < n->nout; k++) {
            if (n->out[k] == INV_NONE || !name_fits(g, n->out[k], glob)) continue;
            any = true;
            ask(g, n->out[k], mode, value);
        }
    }
    return any;
}

/* Marks what the glob of this option fits; INV_E_ARG: nothing, and the message names the nearest value, node or block.
 */
static inv_status mark_glob(const inv_graph *g, const char *option, const char *glob, inv_memory mode,
                            inv_value_policy *value)
{
    const char *block = strncmp(glob, BLOCK, sizeof BLOCK - 1) == 0 ? glob + sizeof BLOCK - 1 : NULL;
    if (mark_values(g, glob, mode, value) || (block && mark_blocks(g, block, mode, value))) return INV_OK;
    inv_near near = inv_near_to(block ? block : glob);
    for (size_t i = 0; g->matches && i < g->matches->block.n && block; i++) {
        inv_near_look(&near, inv_node_label(inv_nod(g, g->matches->block.at[i].root)));
        inv_near_look(&near, g->matches->block.at[i].kind);
    }
    for (size_t i = 0; i < g->forward_end && !block; i++) {
        const inv_node *n = inv_nod(g, g->order.at[i]);
        for (uint32_t k = 0; k < n->nout; k++)
            if (n->out[k] != INV_NONE) inv_near_look(&near, inv_val(g, n->out[k])->name);
        for (uint32_t k = 0; k < n->norigin; k++) inv_near_look(&near, n->origin[k]);
    }
    return inv_fail(
        g->ctx, INV_E_ARG,
        "%s %s: no forward value, node or block (block:NAME, as explain calls it) of that name" INV_NEAR_FORMAT,
        inv_option(g->ctx, option), glob, INV_NEAR_ARGS(near));
}

/* Stores what guards have rejected, the newest checkpoint first. One that lies before a newer one in forward is given
 * up until it is rejected again: it was found when errors came from further away. What was derived from a
 * reconstruction is always stored. */
static void keep_checkpoints(const inv_graph *b, const inv_program *program, inv_value_policy *value)
{
    size_t after = 0; /* position behind which rebuilt checkpoints still count */
    for (size_t i = program->checkpoint.n; i-- > 0;) {
        const inv_checkpoint *checkpoint = &program->checkpoint.at[i];
        for (size_t at = checkpoint->derived ? 0 : after; at < b->forward_end; at++) {
            const inv_node *n = inv_nod(b, b->order.at[at]);
            for (uint32_t k = 0; k < n->nout; k++) {
                const inv_id v = n->out[k];
                if (v == INV_NONE || strcmp(inv_val(b, v)->name, checkpoint->name) != 0) continue;
                value[v].keep = value[v].checkpoint = true;
                if (checkpoint->derived) continue;
                value[v].rejected = true;
                after = at;
            }
        }
    }
}

/* Offloading is a mode of single values, and needs a device with memory of its own. */
static inv_status check_offload(const inv_graph *b, const inv_session_options *o)
{
    INV_CHECK(
        o->memory <= INV_MEMORY_INVERT, b->ctx, INV_E_ARG,
        "offload is a mode of single values, not of a session. Use {modes}, with '*' for all of them, on a device "
        "with its own memory");
    for (size_t i = 0; i < o->nmodes; i++)
        INV_CHECK(o->modes[i].mode != INV_MEMORY_OFFLOAD || b->gpu, b->ctx, INV_E_ARG,
                  "{modes}, %s=offload: device %s computes in host memory, so there is nowhere to offload to. Use "
                  "device cuda, or another mode",
                  o->modes[i].glob, o->device ? o->device : "cpu");
    return INV_OK;
}

inv_status inv_apply_modes(const inv_plan *plan, const inv_request *rq, const inv_program *program, inv_arena *a,
                           inv_policy *policy)
{
    const inv_graph *b = plan->base;
    const inv_session_options *o = rq->options;
    const bool store = o->memory == INV_MEMORY_STORE, offload_any = b->gpu && o->memory == INV_MEMORY_AUTO;
    inv_value_policy *value = INV_ARENA_NEW(a, inv_value_policy, b->value.n + 1);
    if (!value) return INV_E_NOMEM;
    policy->value = value;
    if (rq->purpose != INV_FOR_TRAIN)
        return INV_OK; /* without training nothing is recovered, and names may be of values that are not there */
    INV_TRY(check_offload(b, o));
    for (size_t i = 0; i < o->nmodes; i++) /* the last mode that fits counts */
        INV_TRY(mark_glob(b, "modes", o->modes[i].glob, o->modes[i].mode, value));
    for (size_t i = 0; i < o->nkeep; i++) INV_TRY(mark_glob(b, "keep", o->keep[i], INV_MEMORY_STORE, value));
    share_with_views(b, value);
    for (size_t v = 0; v < b->value.n; v++) {
        inv_value_policy *x = &value[v];
        const bool none = x->mode == INV_MEMORY_AUTO, offload = x->mode == INV_MEMORY_OFFLOAD;
        x->keep = x->mode == INV_MEMORY_STORE || (store && none);
        /* what may be recomputed is kept where that is cheaper, unless all else is kept anyway */
        x->no_store = x->mode == INV_MEMORY_INVERT || offload || (store && x->mode == INV_MEMORY_RECOMPUTE);
        x->no_invert = x->mode == INV_MEMORY_RECOMPUTE || offload;
        x->no_recompute = x->mode == INV_MEMORY_INVERT || offload;
        x->offload = offload || (offload_any && none);
    }
    /* without inverses, what a guard has rejected is rebuilt exactly */
    if (o->memory != INV_MEMORY_RECOMPUTE) keep_checkpoints(b, program, value);
    for (size_t i = 0; i < plan->lost.n; i++) value[plan->lost.at[i]].keep = true;
    return INV_OK;
}
