/* SPDX-License-Identifier: Apache-2.0
 * Biases of zeros that PyTorch's newer exporter has left out of Gemm, Conv and ConvTranspose, though it lists them as
 * parameters: with --untie they come back, so that all is trained that the program has.
 * requires  program->own, as untie.c makes it.  gives: initializers there, read by these nodes.  breaks: nothing */
#include <string.h>

#include "core/graph/node.h"
#include "core/weights/exported.h"
#include "passes/front/front.h"

/* The initializer that is the node's weight, behind nodes that turn it; INV_NONE. */
static inv_id weight_of(const inv_graph *g, const inv_node *n)
{
    static const char *const turns[] = {"Transpose", "Identity", "Cast", NULL};
    inv_id v = n->nin > 1 ? n->in[1] : INV_NONE;
    while (v != INV_NONE && inv_val(g, v)->def != INV_NONE) {
        const inv_node *by = inv_nod(g, inv_val(g, v)->def);
        if (!inv_node_is_any(by, turns)) return INV_NONE;
        v = by->in[0];
    }
    return v != INV_NONE && inv_val(g, v)->role == INV_ROLE_PARAM ? v : INV_NONE;
}

/* The program's parameter that an initializer is; NULL: none. */
static const char *listed(const inv_graph *g, inv_id v, const inv_stand_ins *s)
{
    const inv_exported *o = g->exported;
    const inv_id init = inv_val(g, v)->init;
    for (size_t i = 0; i < s->n; i++)
        if (s->at[i].param == v) return s->at[i].name;
    return init < o->nof && o->of[init] != UINT32_MAX ? o->param[o->of[init]] : NULL;
}

/* The name of the bias that the node has lost; NULL: none. */
static const char *lost_bias(const inv_graph *g, inv_arena *a, const inv_node *n, const inv_stand_ins *s)
{
    static const char *const biased[] = {"Gemm", "Conv", "ConvTranspose", NULL};
    const inv_exported *o = g->exported;
    if (!inv_node_is_any(n, biased) || (n->nin > 2 && n->in[2] != INV_NONE)) return NULL;
    if (inv_attr_float(n, "beta", 1) != 1) return NULL;
    const inv_id w = weight_of(g, n);
    const char *name = w == INV_NONE ? NULL : listed(g, w, s);
    const size_t len = name ? strlen(name) : 0, tail = strlen("weight");
    if (len < tail || strcmp(name + len - tail, "weight") != 0) return NULL;
    const char *bias = inv_arena_printf(a, "%.*sbias", (int)(len - tail), name);
    for (uint32_t i = 0; bias && i < o->nparam; i++)
        if (o->kept[i] == INV_KEPT_NOT && !strcmp(o->param[i], bias)) return o->param[i];
    return NULL;
}

/* One number for each channel that the node gives. */
static inv_shape bias_shape(const inv_graph *g, const inv_node *n)
{
    const inv_shape *w = &inv_val(g, weight_of(g, n))->shape;
    inv_shape s = {.rank = 1, .dim = {w->dim[0]}};
    const bool turned = n->in[1] != weight_of(g, n);
    if (inv_node_is(n, "Gemm") && !inv_attr_int(n, "transB", 0) != turned) s.dim[0] = w->dim[1];
    if (inv_node_is(n, "ConvTranspose")) s.dim[0] = w->dim[1] * inv_attr_int(n, "group", 1);
    return s;
}

static inv_status put_bias(inv_graph *g, inv_node *n, const char *name)
{
    const inv_shape shape = bias_shape(g, n);
    const inv_dtype dtype = inv_val(g, weight_of(g, n))->dtype;
    const inv_id there = inv_graph_find(g, name);
    inv_id v = there;
    if (there == INV_NONE) {
        size_t nbytes;
        void *zeros = inv_shape_nbytes(&shape, dtype, &nbytes) ? inv_arena_alloc(&g->arena, nbytes + 1) : NULL;
        v = zeros ? inv_graph_value(g, name, INV_ROLE_PARAM, dtype, &shape) : INV_NONE;
        if (v == INV_NONE) return INV_E_NOMEM;
        memset(zeros, 0, nbytes);
        inv_value *x = inv_val(g, v);
        x->mem = INV_MEM_PARAM;
        x->data = (inv_data){dtype, shape, zeros, nbytes};
        x->said = INV_SAID_PARAMETER;
        x->source = INV_NONE;
        x->init = (inv_id)g->inits.n;
        if (!inv_vec_push(&g->arena, &g->inits, v)) return INV_E_NOMEM;
    } else if (inv_val(g, there)->role != INV_ROLE_PARAM || !inv_shape_equal(&inv_val(g, there)->shape, &shape)) {
        return INV_OK;
    }
    inv_id *in = INV_ARENA_NEW(&g->arena, inv_id, 3);
    if (!in) return INV_E_NOMEM;
    in[0] = n->in[0];
    in[1] = n->in[1];
    in[2] = v;
    n->in = in;
    n->nin = 3;
    return INV_OK;
}

bool inv_lost_biases_any(const inv_graph *g, inv_arena *a)
{
    const inv_stand_ins none = {0};
    for (size_t i = 0; g->exported && i < g->order.n; i++)
        if (lost_bias(g, a, inv_nod(g, g->order.at[i]), &none)) return true;
    return false;
}

inv_status inv_lost_biases_put(inv_graph *g, const inv_stand_ins *s, inv_arena *a)
{
    for (size_t i = 0; g->exported && i < g->order.n; i++) {
        inv_node *n = inv_nod(g, g->order.at[i]);
        const char *name = lost_bias(g, a, n, s);
        if (name) INV_TRY(put_bias(g, n, name));
    }
    return a->failed ? INV_E_NOMEM : INV_OK;
}
