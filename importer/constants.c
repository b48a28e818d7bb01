/* SPDX-License-Identifier: Apache-2.0
 * Floating-point constants of the model that are not trained, each with the reason: in Constant nodes, and initializers
 * of bodies of control flow. Those that are weights are parameters (weights.c) and listed with the initializers. */
#include "importer/view.h"

/* The node that reads v first. */
static const inv_node *reader_of(const inv_graph *g, const inv_uses *u, inv_id v)
{
    return u->start[v] < u->start[v + 1] ? inv_nod(g, u->node[u->start[v]]) : NULL;
}

static const char *reason(inv_model_view *w, const inv_graph *g, const inv_uses *u, inv_id v, int64_t nelem)
{
    const inv_node *n = reader_of(g, u, v);
    if (nelem == 1) return "a single number";
    if (!n) return inv_val(g, v)->is_output ? "a result by itself" : "nothing reads it";
    const char *text = inv_arena_printf(&w->scratch, "part of a formula, read by %s", n->op_type);
    return text ? text : "";
}

static void add_constant(inv_model_view *w, const inv_graph *g, const inv_uses *u, const char *prefix, inv_id v,
                         inv_dtype dtype, const inv_shape *shape)
{
    const char *name = inv_arena_printf(&w->scratch, "%s%s%s", prefix, *prefix ? "/" : "", inv_val(g, v)->name);
    json_t *o = json_object(), *dims = json_array();
    if (!name) w->failed = true;
    for (int i = 0; i < shape->rank; i++) inv_view_append(w, dims, json_integer(shape->dim[i]));
    inv_view_set(w, o, "name", inv_view_text(w, name ? name : ""));
    inv_view_set(w, o, "dtype", json_string(inv_dtype_name(dtype)));
    inv_view_set(w, o, "shape", dims);
    inv_view_set(w, o, "why", inv_view_text(w, reason(w, g, u, v, inv_shape_nelem(shape))));
    inv_view_append(w, w->constants, o);
}

/* False: it is none of floating-point numbers. */
static bool constant_type(const inv_node *n, inv_dtype *dtype, inv_shape *shape)
{
    const inv_attr *a = n->attr;
    if (!inv_node_is(n, "Constant") || n->nattr != 1 || a->ref || !n->nout || n->out[0] == INV_NONE) return false;
    *dtype = a->kind == INV_ATTR_TENSOR ? a->tensor.dtype : INV_F32;
    *shape = a->kind == INV_ATTR_TENSOR   ? a->tensor.shape
             : a->kind == INV_ATTR_FLOATS ? inv_shape_of(1, (int64_t[]){(int64_t)a->n})
                                          : inv_shape_scalar();
    return a->kind == INV_ATTR_FLOAT || a->kind == INV_ATTR_FLOATS ||
           (a->kind == INV_ATTR_TENSOR && inv_dtype_is_float(*dtype));
}

inv_status inv_constants_look(inv_model_view *w, const inv_graph *g, const char *prefix, bool body)
{
    inv_uses u;
    inv_dtype dtype;
    inv_shape shape;
    INV_TRY(inv_graph_uses(g, &w->scratch, &u));
    for (size_t i = 0; i < g->order.n; i++) {
        const inv_node *n = inv_nod(g, g->order.at[i]);
        if (constant_type(n, &dtype, &shape)) add_constant(w, g, &u, prefix, n->out[0], dtype, &shape);
    }
    for (inv_id v = 0; body && v < g->value.n; v++) {
        const inv_value *val = inv_val(g, v);
        if (val->role == INV_ROLE_CONST && !val->type && inv_dtype_is_float(val->dtype))
            add_constant(w, g, &u, prefix, v, val->dtype, &val->shape);
    }
    return INV_OK;
}
