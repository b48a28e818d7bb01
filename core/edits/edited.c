/* SPDX-License-Identifier: Apache-2.0
 * Graphs that are not as their file has them (edited.h). */
#include "core/edits/edited.h"

#include <string.h>

#include "core/base/chance.h"

inv_id inv_added_find(const inv_graph *g, const char *name)
{
    const inv_id id = inv_graph_find(g, name);
    return id == INV_NONE || inv_val(g, id)->dropped ? INV_NONE : id;
}

/* It is there again, at its place among the initializers. */
static inv_id bring_back(inv_graph *g, inv_id id, inv_dtype dtype, const inv_shape *shape)
{
    inv_val(g, id)->dtype = dtype;
    inv_val(g, id)->dropped = false;
    return inv_added_renew(g, id, shape) ? id : INV_NONE;
}

static inv_id value_for(inv_graph *g, const char *name, inv_dtype dtype, const inv_shape *shape)
{
    if (name && inv_graph_find(g, name) != INV_NONE) name = inv_graph_fresh(g, name);
    return name ? inv_graph_value(g, name, INV_ROLE_PARAM, dtype, shape) : INV_NONE;
}

inv_id inv_added_initializer(inv_graph *g, const char *name, inv_dtype dtype, const inv_shape *shape)
{
    const inv_id gone = name ? inv_graph_find(g, name) : INV_NONE;
    if (gone != INV_NONE && inv_val(g, gone)->dropped) return bring_back(g, gone, dtype, shape);
    const inv_id id = value_for(g, name, dtype, shape);
    if (id == INV_NONE || !inv_added_renew(g, id, shape)) return INV_NONE;
    inv_value *v = inv_val(g, id);
    v->mem = INV_MEM_PARAM;
    v->init = (inv_id)g->inits.n;
    v->source = INV_NONE;
    return inv_vec_push(&g->arena, &g->inits, id) ? id : INV_NONE;
}

void *inv_added_renew(inv_graph *g, inv_id id, const inv_shape *shape)
{
    inv_value *v = inv_val(g, id);
    size_t nbytes;
    const bool fits = inv_shape_nbytes(shape, v->dtype, &nbytes) && nbytes < SIZE_MAX;
    if (!fits) (void)inv_fail(g->ctx, INV_E_NOMEM, "'%s' would be larger than memory can be", v->name);
    void *bytes = fits ? inv_arena_alloc(&g->arena, nbytes + 1) : NULL;
    if (!bytes) return NULL;
    memset(bytes, 0, nbytes);
    v->shape = *shape;
    v->data = (inv_data){v->dtype, *shape, bytes, nbytes};
    v->renewed = g->edited = true;
    return bytes;
}

void inv_added_draw(inv_value *v, uint64_t seed, double bound)
{
    const size_t n = (size_t)inv_shape_nelem(&v->shape), size = inv_dtype_size(v->dtype);
    char *bytes = inv_added_bytes(v);
    uint64_t dice = inv_hash(v->name, strlen(v->name), inv_hash(&seed, sizeof seed, INV_DICE)) | 1;
    for (int i = 0; i < 16; i++) (void)inv_chance(&dice); /* seeds that are alike part */
    for (size_t i = 0; i < n; i++) {
        const double d = bound * (2 * inv_chance(&dice) - 1);
        (void)inv_convert(bytes + i * size, v->dtype, &d, INV_F64, 1);
    }
}

inv_status inv_added_readers(const inv_graph *g, inv_arena *a, uint32_t **count)
{
    *count = INV_ARENA_NEW(a, uint32_t, g->value.n + 1);
    if (!*count) return INV_E_NOMEM;
    for (size_t i = 0; i < g->order.n; i++) {
        const inv_node *n = inv_nod(g, g->order.at[i]);
        for (uint32_t k = 0; k < n->nin; k++)
            if (n->in[k] != INV_NONE) (*count)[n->in[k]]++;
    }
    for (size_t i = 0; i < g->outputs.n; i++) (*count)[g->outputs.at[i]]++;
    return INV_OK;
}

static void drop(inv_value *v)
{
    v->dropped = true;
    v->optional = false;
    v->dim_param = NULL;
}

/* From the last to the first, so that what a node read is looked at behind it. */
static void remove_unread(inv_graph *g, inv_id node, uint32_t *count, bool *goes)
{
    size_t kept = 0;
    goes[node] = true;
    for (size_t i = g->order.n; i-- > 0;) {
        const inv_id id = g->order.at[i];
        const inv_node *n = inv_nod(g, id);
        if (!goes[id]) continue;
        for (uint32_t k = 0; k < n->nout && id != node; k++)
            if (n->out[k] != INV_NONE && count[n->out[k]]) goes[id] = false;
        for (uint32_t k = 0; goes[id] && k < n->nin; k++) {
            if (n->in[k] == INV_NONE || --count[n->in[k]]) continue;
            inv_value *v = inv_val(g, n->in[k]);
            if (v->def != INV_NONE) goes[v->def] = true;
            else if (v->role == INV_ROLE_PARAM) drop(v);
        }
    }
    for (size_t i = 0; i < g->order.n; i++)
        if (!goes[g->order.at[i]]) g->order.at[kept++] = g->order.at[i];
    g->order.n = kept;
    g->edited = true;
}

inv_status inv_added_remove(inv_graph *g, inv_id node)
{
    inv_arena a;
    uint32_t *count;
    inv_arena_init(&a, g->ctx);
    inv_status s = inv_added_readers(g, &a, &count);
    bool *goes = s == INV_OK ? INV_ARENA_NEW(&a, bool, g->node.n + 1) : NULL;
    if (goes) remove_unread(g, node, count, goes);
    inv_arena_fini(&a);
    return goes ? INV_OK : s == INV_OK ? INV_E_NOMEM : s;
}
