/* SPDX-License-Identifier: Apache-2.0
 * The inverse direction of a model whose batch is open: made for two batches (batches.c), it must come out the same, or
 * is refused as a whole. */
#include <string.h>

#include "core/node.h"
#include "passes/export/batches.h"
#include "passes/export/export.h"
#include "passes/export/reverse.h"

static bool same_names(const inv_graph *g, const inv_id *a, uint32_t na, const inv_graph *h, const inv_id *b,
                       uint32_t nb)
{
    for (uint32_t i = 0; na == nb && i < na; i++) {
        if ((a[i] == INV_NONE) != (b[i] == INV_NONE)) return false;
        if (a[i] != INV_NONE && strcmp(inv_val(g, a[i])->name, inv_val(h, b[i])->name) != 0) return false;
    }
    return na == nb;
}

static bool same_reversed_node(const inv_graph *g, const inv_node *a, const inv_graph *h, const inv_node *b)
{
    if (strcmp(a->op_type, b->op_type) != 0 || a->source != b->source || a->nattr != b->nattr) return false;
    if (!same_names(g, a->in, a->nin, h, b->in, b->nin) || !same_names(g, a->out, a->nout, h, b->out, b->nout))
        return false;
    if (a->source != INV_NONE) return true; /* one node of the file */
    for (uint32_t i = 0; i < a->nattr; i++)
        if (!inv_attr_same(&a->attr[i], &b->attr[i])) return false;
    return true;
}

/* The first value of the model that a node gives from the i-th on. */
static const char *next_known(const inv_graph *source, const inv_graph *g, size_t i)
{
    for (; i < g->order.n; i++) {
        const inv_node *n = inv_nod(g, g->order.at[i]);
        for (uint32_t k = 0; k < n->nout; k++)
            if (n->out[k] != INV_NONE && inv_graph_find(source, inv_val(g, n->out[k])->name) != INV_NONE)
                return inv_val(g, n->out[k])->name;
    }
    return "its output";
}

/* The place of the first node in which they differ; SIZE_MAX: none. */
static size_t first_difference(const inv_graph *g, const inv_graph *h)
{
    for (size_t i = 0; i < g->order.n || i < h->order.n; i++)
        if (i >= g->order.n || i >= h->order.n ||
            !same_reversed_node(g, inv_nod(g, g->order.at[i]), h, inv_nod(h, h->order.at[i])))
            return i;
    return SIZE_MAX;
}

static inv_status make_reversal(const inv_batch_job *job, const inv_session_options *shapes, inv_rewriting **out)
{
    return inv_reverse_as_given(job->ctx, job->source, shapes, job->options, job->in_memory, out);
}

/* Says that it may hold for the extents alone that it was made for. */
static inv_status note_open_extents(inv_rewriting *made)
{
    const char *text = inv__arena_printf(&made->a, "dimensions other than the batch are open: it may hold for the "
                                                   "extents alone that it was made for ({inputs})");
    const char **notes = INV_ARENA_NEW(&made->a, const char *, made->nnotes + 1);
    if (!notes || !text) return INV_E_NOMEM;
    for (size_t i = 0; i < made->nnotes; i++) notes[i] = made->notes[i];
    notes[made->nnotes++] = text;
    made->notes = notes;
    return INV_OK;
}

static inv_status settle_reversal(const inv_batch_job *job, const inv_session_options *shapes, bool others,
                                  inv_rewriting *made[3])
{
    const inv_graph *g = made[0]->reversed;
    const size_t at = made[1] ? first_difference(g, made[1]->reversed) : SIZE_MAX;
    (void)shapes;
    if (at != SIZE_MAX)
        return inv__fail(job->ctx, INV_E_NOT_INVERTIBLE,
                         "the model's batch is open, and its inverse direction would hold for one batch only: what "
                         "gives '%s' has other constants for another batch, since the model does not keep the batch on "
                         "the first axis. Export the model with a fixed batch",
                         next_known(job->source, g, at));
    const bool narrow = others && (!made[2] || first_difference(g, made[2]->reversed) != SIZE_MAX);
    return narrow ? note_open_extents(made[0]) : INV_OK;
}

inv_status inv_reverse_model(inv_context *ctx, const inv_graph *source, const inv_session_options *shapes,
                             const inv_reverse_options *options, bool in_memory, inv_rewriting **out)
{
    const inv_batch_job job = {.ctx = ctx,
                               .source = source,
                               .make = make_reversal,
                               .settle = settle_reversal,
                               .options = options,
                               .in_memory = in_memory};
    return inv_for_every_batch(&job, shapes, out);
}
