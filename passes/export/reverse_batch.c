/* SPDX-License-Identifier: Apache-2.0
 * The inverse direction of a model whose batch is open: made for two batches (batches.c), it must come out the same, or
 * is refused as a whole. */
#include <string.h>

#include "core/graph/node.h"
#include "passes/export/batches.h"
#include "passes/export/export.h"
#include "passes/export/reverse_model.h"

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

/* The value's shape for the extents chosen, by what stands for it. */
static const inv_shape *bound_shape(const inv_rewriting *r, inv_id v)
{
    return &inv_val(r->g, inv_graph_stands(r->g, v))->shape;
}

/* The value's extent on axis d as it was chosen; -1: the file fixes it, or it is of the batch. */
static int64_t chosen_extent(inv_rewriting *const made[3], inv_id v, int d)
{
    const inv_shape *s = bound_shape(made[0], v);
    const inv_shape *other = made[1] ? bound_shape(made[1], v) : s;
    const inv_shape *file = &inv_val(made[0]->flat, v)->shape;
    if (d >= s->rank || other->rank != s->rank || s->dim[d] < 0 || s->dim[d] != other->dim[d]) return -1;
    return file->rank < 0 || file->dim[d] < 0 ? s->dim[d] : -1;
}

/* The value as it is declared for the extents chosen. *any: some are others than the file's. */
static inv_status restated(inv_rewriting *const made[3], inv_id v, inv_outline_port *port, bool *any)
{
    inv_arena *a = &made[0]->a;
    const inv_value *val = inv_val(made[0]->flat, v);
    const inv_shape *bound = bound_shape(made[0], v);
    *any = false;
    if (bound->rank < 0 || (val->shape.rank >= 0 && val->shape.rank != bound->rank)) return INV_OK;
    const char **symbol = INV_ARENA_NEW(a, const char *, (size_t)bound->rank + 1);
    *port = (inv_outline_port){.name = inv_arena_strdup(a, val->name), .symbols = symbol, .shape = val->shape};
    if (!symbol || !port->name) return INV_E_NOMEM;
    port->shape.rank = bound->rank;
    for (int d = 0; d < bound->rank; d++) {
        const int64_t extent = chosen_extent(made, v, d);
        symbol[d] = extent < 0 && val->shape.rank >= 0 && val->dim_param ? val->dim_param[d] : NULL;
        port->shape.dim[d] = extent >= 0 ? extent : val->shape.rank < 0 ? -1 : val->shape.dim[d];
        *any = *any || extent >= 0;
    }
    return INV_OK;
}

/* A port of which the file does not declare a shape is declared anew. */
static void declare_port(inv_outline_port *at, size_t n, const inv_outline_port *port, inv_dtype type)
{
    for (size_t i = 0; i < n; i++)
        if (strcmp(at[i].name, port->name) == 0 && at[i].dtype == INV_DT_NONE) {
            at[i] = *port;
            at[i].dtype = type;
        }
}

/* It may hold for the extents alone that it was made for: these are declared, of the graph in memory, too. */
static inv_status declare_extents(inv_rewriting *const made[3])
{
    inv_outline *o = &made[0]->outline;
    inv_graph *h = made[0]->reversed;
    const size_t n = made[0]->flat->value.n < made[0]->g->value.n ? made[0]->flat->value.n : made[0]->g->value.n;
    for (inv_id v = 0; v < n; v++) {
        const inv_value *val = inv_val(made[0]->flat, v);
        inv_outline_port port;
        bool any;
        if (val->role == INV_ROLE_PARAM || val->role == INV_ROLE_CONST || !*val->name) continue;
        if (made[1] && v >= made[1]->g->value.n) continue;
        INV_TRY(restated(made, v, &port, &any));
        if (!any) continue;
        if (val->shape.rank >= 0 && !inv_vec_push(&made[0]->a, &o->restate, port)) return INV_E_NOMEM;
        if (val->shape.rank < 0 && val->dtype != INV_DT_NONE) {
            declare_port(o->in.at, o->in.n, &port, val->dtype);
            declare_port(o->out.at, o->out.n, &port, val->dtype);
        }
        if (v < h->value.n && (inv_val(h, v)->role == INV_ROLE_INPUT || inv_val(h, v)->is_output))
            inv_val(h, v)->shape = port.shape;
    }
    return INV_OK;
}

/* Says that it was made for these extents. */
static inv_status note_open_extents(inv_rewriting *made)
{
    const char *text =
        inv_arena_printf(&made->a, "dimensions other than the batch are open; the inverse direction is made and "
                                   "declared for the given sizes ({inputs})");
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
        return inv_fail(job->ctx, INV_E_NOT_INVERTIBLE,
                        "the model's batch is open, but its inverse direction would hold for one batch only: "
                        "constants for '%s' depend on it, as the batch leaves the first axis. Export the model with "
                        "a fixed batch",
                        next_known(job->source, g, at));
    const bool narrow = others && (!made[2] || first_difference(g, made[2]->reversed) != SIZE_MAX);
    if (!narrow) return INV_OK;
    INV_TRY(declare_extents(made));
    return note_open_extents(made[0]);
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
