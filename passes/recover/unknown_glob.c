/* SPDX-License-Identifier: Apache-2.0
 * The message for a glob of {modes} or {keep} that fits nothing: it names the nearest value, node or block. */
#include <string.h>

#include "core/glob.h"
#include "core/node.h"
#include "passes/recover/recover.h"

inv_status inv_glob_fits_nothing(const inv_graph *g, const char *option, const char *glob)
{
    static const char block[] = "block:";
    const bool blocks = strncmp(glob, block, sizeof block - 1) == 0;
    inv_near near = inv_near_to(blocks ? glob + sizeof block - 1 : glob);
    for (size_t i = 0; g->matches && i < g->matches->block.n && blocks; i++) {
        inv_near_look(&near, inv_node_label(inv_nod(g, g->matches->block.at[i].root)));
        inv_near_look(&near, g->matches->block.at[i].kind);
    }
    for (size_t i = 0; i < g->forward_end && !blocks; i++) {
        const inv_node *n = inv_nod(g, g->order.at[i]);
        for (uint32_t k = 0; k < n->nout; k++)
            if (n->out[k] != INV_NONE) inv_near_look(&near, inv_val(g, n->out[k])->name);
        for (uint32_t k = 0; k < n->norigin; k++) inv_near_look(&near, n->origin[k]);
    }
    return inv__fail(g->ctx, INV_E_ARG,
                     "%s %s: no forward value or node of that name, and none of a block "
                     "(block:NAME, as explain calls it)" INV_NEAR_FORMAT,
                     option, glob, INV_NEAR_ARGS(near));
}
