/* SPDX-License-Identifier: Apache-2.0
 * What an outline says of a graph alike, whoever makes it (rewriting.h). */
#include "core/edits/rewriting.h"

inv_status inv_outline_opened(const inv_graph *g, size_t nopset, inv_arena *a, inv_outline *o)
{
    for (size_t i = 0; i < g->function.n; i++) {
        const inv_function *f = &g->function.at[i];
        const char *name = f->open ? inv_arena_printf(a, "%s::%s", f->domain, f->name) : "";
        if (!name || (f->open && !inv_vec_push(a, &o->opened, name))) return INV_E_NOMEM;
    }
    for (size_t i = nopset; i < g->opset.n; i++) {
        const inv_opset copy = {inv_arena_strdup(a, g->opset.at[i].domain), g->opset.at[i].version};
        if (!copy.domain || !inv_vec_push(a, &o->opset, copy)) return INV_E_NOMEM;
    }
    return INV_OK;
}
