/* SPDX-License-Identifier: Apache-2.0
 * Initializers that are others transposed (core/weights/tie.h): nodes read the one that is trained, by a Transpose, so
 * that there is one master and one gradient. The file keeps both (api/save_model.c). requires  an imported graph.
 * gives: program->tie; graphs in which nobody reads the copies.  breaks: nothing */
#include <string.h>

#include "core/weights/exported.h"
#include "core/weights/trained.h"
#include "passes/front/front.h"

/* Whether --untie leaves it: the caller says that it is tied, or the file that the copy was made from the other. The
 * older exporter of PyTorch does so by a name of its own: a layer that has a weight of its own, transposed to the bit,
 * is not met. */
static bool stays(const inv_program *p, const inv_tie *t)
{
    const inv_value *x = inv_val(p->source, t->master), *y = inv_val(p->source, t->copy);
    const inv_exported *o = p->source->exported;
    for (size_t i = 0; i < p->options.ntied; i++)
        if (inv_tied_fits(p->options.tied[i], x) || inv_tied_fits(p->options.tied[i], y)) return true;
    if (x->said == INV_SAID_NAMED && inv_name_is_generated(y->name)) return true;
    return o && x->init < o->nof && y->init < o->nof && o->of[x->init] != UINT32_MAX &&
           o->of[x->init] == o->of[y->init];
}

inv_status inv_pass_ties(inv_program *p)
{
    INV_TRY(inv_ties_find(p->source, &p->options, p->untrained, &p->arena, &p->tie));
    size_t kept = 0;
    for (size_t i = 0; i < p->tie.n; i++)
        if (!p->options.untie || stays(p, &p->tie.at[i])) p->tie.at[kept++] = p->tie.at[i];
    p->tie.n = kept;
    for (size_t i = 0; i < p->tie.n; i++) p->untrained[p->tie.at[i].copy] = INV_UNTRAINED_TIED;
    return INV_OK;
}

/* The Transpose comes first of all: what functions and bodies read is in no list of inputs yet, and they ask what
 * stands for the copy when they are opened. */
static inv_status put_transpose(inv_graph *g, const inv_tie *t)
{
    const inv_value copy = *inv_val(g, t->copy);
    const char *name = inv_graph_fresh(g, copy.name);
    const inv_id v = name ? inv_graph_value(g, name, INV_ROLE_NODE, copy.dtype, &copy.shape) : INV_NONE;
    if (v == INV_NONE) return INV_E_NOMEM;
    for (size_t k = 0; k < g->order.n; k++) {
        inv_node *n = inv_nod(g, g->order.at[k]);
        for (uint32_t s = 0; s < n->nin; s++)
            if (n->in[s] == t->copy) n->in[s] = v;
    }
    const inv_id made = inv_graph_node(g, "", "Transpose", name, 1, &t->master, 1, &v, INV_NOATTR);
    if (made == INV_NONE || !inv_vec_push(&g->arena, &g->order, made)) return INV_E_NOMEM;
    memmove(g->order.at + 1, g->order.at, (g->order.n - 1) * sizeof *g->order.at);
    g->order.at[0] = made;
    inv_nod(g, made)->source = INV_NONE;
    inv_val(g, t->copy)->same = v;
    return INV_OK;
}

inv_status inv_tie_apply(const inv_program *p, inv_graph *g)
{
    for (size_t i = 0; i < p->tie.n; i++) INV_TRY(put_transpose(g, &p->tie.at[i]));
    return INV_OK;
}
