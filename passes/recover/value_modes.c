/* SPDX-License-Identifier: Apache-2.0
 * What is asked of single values: kept, recomputed, inverted or offloaded, by the globs of --keep and --mode, and kept
 * because a guard has rejected what stood for them.
 * requires: the base graph, with its matches.
 * gives: the arrays of inv_policy. */
#include <string.h>

#include "core/glob.h"
#include "core/node.h"
#include "passes/recover/recover.h"

static bool name_fits(const inv_graph *g, inv_id v, const char *glob)
{
    const inv_value *val = inv_val(g, v);
    if (inv_glob_fits(glob, val->name)) return true;
    const inv_node *n = val->def == INV_NONE ? NULL : inv_nod(g, val->def);
    for (uint32_t i = 0; n && i < n->norigin; i++)
        if (inv_glob_fits(glob, n->origin[i])) return true;
    return false;
}

/* Marks values of the blocks whose name or kind fits: what is computed in them, and what they take. With mode invert
 * only what they take is marked, since what their branches compute has to be recomputed then. */
static bool mark_blocks(const inv_graph *g, const char *glob, inv_memory mode, uint8_t *mark)
{
    bool any = false;
    for (size_t i = 0; g->matches && i < g->matches->block.n; i++) {
        const inv_block *b = &g->matches->block.at[i];
        if (!inv_glob_fits(glob, inv_node_label(inv_nod(g, b->root))) && !inv_glob_fits(glob, b->kind)) continue;
        any = true;
        const uint32_t nin = mode == INV_MEMORY_INVERT ? b->nrule_in : b->nin;
        for (uint32_t k = 0; k < nin; k++)
            if (b->in[k] != INV_NONE) mark[b->in[k]] = (uint8_t)mode;
        for (uint32_t k = 0; k < b->nnode && mode != INV_MEMORY_INVERT; k++) {
            const inv_node *n = inv_nod(g, b->node[k]);
            for (uint32_t j = 0; j < n->nout; j++)
                if (n->out[j] != INV_NONE) mark[n->out[j]] = (uint8_t)mode;
        }
    }
    return any;
}

/* Marks forward values by their own name or that of their node; after "block:", by blocks. */
static bool mark_glob(const inv_graph *g, const char *glob, inv_memory mode, uint8_t *mark)
{
    static const char block[] = "block:";
    bool any = false;
    for (size_t i = 0; i < g->forward_end; i++) {
        const inv_node *n = inv_nod(g, g->order.at[i]);
        for (uint32_t k = 0; k < n->nout; k++) {
            if (n->out[k] == INV_NONE || !name_fits(g, n->out[k], glob)) continue;
            any = true;
            mark[n->out[k]] = (uint8_t)mode;
        }
    }
    if (any || strncmp(glob, block, sizeof block - 1) != 0) return any;
    return mark_blocks(g, glob + sizeof block - 1, mode, mark);
}

/* Stores what guards have rejected, the newest checkpoint first. One that lies before a newer one in forward is given
 * up until it is rejected again: it was found when errors came from further away. What was derived from a
 * reconstruction is always stored. */
static inv_status keep_checkpoints(const inv_graph *b, const inv_program *program, inv_arena *a, inv_policy *policy,
                                   bool *keep)
{
    bool *guard_rejected = INV_ARENA_NEW(a, bool, b->value.n + 1),
         *rebuild_rejected = INV_ARENA_NEW(a, bool, b->value.n + 1);
    if (a->failed) return INV_E_NOMEM;
    size_t after = 0; /* position behind which rebuilt checkpoints still count */
    for (size_t i = program->checkpoint.n; i-- > 0;) {
        const inv_checkpoint *checkpoint = &program->checkpoint.at[i];
        for (size_t at = checkpoint->derived ? 0 : after; at < b->forward_end; at++) {
            const inv_node *n = inv_nod(b, b->order.at[at]);
            for (uint32_t k = 0; k < n->nout; k++) {
                const inv_id v = n->out[k];
                if (v == INV_NONE || strcmp(inv_val(b, v)->name, checkpoint->name) != 0) continue;
                keep[v] = guard_rejected[v] = true;
                if (checkpoint->derived) continue;
                rebuild_rejected[v] = true;
                after = at;
            }
        }
    }
    policy->guard_rejected = guard_rejected;
    policy->rebuild_rejected = rebuild_rejected;
    return INV_OK;
}

/* Offloading is a mode of single values, and needs a device with memory of its own. */
static inv_status check_offload(const inv_graph *b, const inv_session_options *o)
{
    INV_CHECK(o->memory <= INV_MEMORY_INVERT, b->ctx, INV_E_ARG,
              "offload is a mode of single values, not of a session: {modes}, with '*' for all of them");
    for (size_t i = 0; i < o->nmodes; i++)
        INV_CHECK(o->modes[i].mode != INV_MEMORY_OFFLOAD || b->gpu, b->ctx, INV_E_ARG,
                  "{modes}, %s=offload: device %s computes in host memory, so there is nowhere to offload to; use "
                  "device cuda, or another mode",
                  o->modes[i].glob, o->device ? o->device : "cpu");
    return INV_OK;
}

inv_status inv_apply_modes(const inv_graph *b, const inv_request *rq, const inv_program *program, inv_arena *a,
                           inv_policy *policy)
{
    const inv_session_options *o = rq->options;
    const bool store = o->memory == INV_MEMORY_STORE, offload_any = b->gpu && o->memory == INV_MEMORY_AUTO;
    uint8_t *mode = INV_ARENA_NEW(a, uint8_t, b->value.n + 1); /* INV_MEMORY_AUTO, which is 0, where no mode is given */
    bool *keep = INV_ARENA_NEW(a, bool, b->value.n + 1), *no_invert = INV_ARENA_NEW(a, bool, b->value.n + 1),
         *no_recompute = INV_ARENA_NEW(a, bool, b->value.n + 1), *no_store = INV_ARENA_NEW(a, bool, b->value.n + 1),
         *offload = INV_ARENA_NEW(a, bool, b->value.n + 1);
    if (a->failed) return INV_E_NOMEM;
    policy->keep = keep;
    policy->no_store = no_store;
    policy->no_invert = no_invert;
    policy->no_recompute = no_recompute;
    policy->offload = offload;
    if (rq->purpose != INV_FOR_TRAIN)
        return INV_OK; /* without training nothing is recovered, and names may be of values that are not there */
    INV_TRY(check_offload(b, o));
    for (size_t i = 0; i < o->nmodes; i++) { /* the last mode that fits counts */
        const inv_mode_rule *rule = &o->modes[i];
        if (!mark_glob(b, rule->glob, rule->mode, mode))
            return inv_glob_fits_nothing(b, inv__option(b->ctx, "modes"), rule->glob);
    }
    for (size_t i = 0; i < o->nkeep; i++)
        if (!mark_glob(b, o->keep[i], INV_MEMORY_STORE, mode))
            return inv_glob_fits_nothing(b, inv__option(b->ctx, "keep"), o->keep[i]);
    for (size_t v = 0; v < b->value.n; v++) {
        keep[v] = mode[v] == INV_MEMORY_STORE || (store && mode[v] == INV_MEMORY_AUTO);
        /* what may be recomputed is kept where that is cheaper, unless all else is kept anyway */
        no_store[v] =
            mode[v] == INV_MEMORY_INVERT || mode[v] == INV_MEMORY_OFFLOAD || (store && mode[v] == INV_MEMORY_RECOMPUTE);
        no_invert[v] = mode[v] == INV_MEMORY_RECOMPUTE || mode[v] == INV_MEMORY_OFFLOAD;
        no_recompute[v] = mode[v] == INV_MEMORY_INVERT || mode[v] == INV_MEMORY_OFFLOAD;
        offload[v] = mode[v] == INV_MEMORY_OFFLOAD || (offload_any && mode[v] == INV_MEMORY_AUTO);
    }
    /* without inverses, what a guard has rejected is rebuilt exactly */
    return o->memory == INV_MEMORY_RECOMPUTE ? INV_OK : keep_checkpoints(b, program, a, policy, keep);
}
