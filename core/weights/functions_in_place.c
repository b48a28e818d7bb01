/* SPDX-License-Identifier: Apache-2.0
 * Roles of parameters as they would be if the nodes of functions stood in the graph (shared_weights.h), those of blocks
 * of a rewriting and of the file's own. What tells a weight from a constant may be in another function than the node
 * that reads it. */
#include "core/graph/node.h"
#include "core/weights/shared_weights.h"

/* A function that is being put in place, or the main graph. */
typedef struct level {
    const inv_graph *body;
    inv_id *map; /* per value of the body: that of the copy; NULL: the same */
    size_t at;   /* the next of its nodes */
} level;

typedef struct opener {
    const inv_graph *g;
    inv_graph *h; /* the copy */
    inv_arena *a;
    inv_callees callees;
    bool *opened; /* per function: its first call is; others stay */
    INV_VEC(level) stack;
    inv_ids order;
} opener;

static inv_id there(const level *l, inv_id v) { return v == INV_NONE || !l->map ? v : l->map[v]; }

/* What the body has of its own. */
static inv_id own_value(opener *x, const inv_value *v)
{
    const inv_id id =
        inv_graph_value(x->h, "", v->role == INV_ROLE_INPUT ? INV_ROLE_NODE : v->role, v->dtype, &v->shape);
    if (id == INV_NONE) return INV_NONE;
    inv_val(x->h, id)->data = v->data;
    inv_val(x->h, id)->init = v->init;
    return id;
}

static inv_status open_call(opener *x, const level *l, const inv_node *call, const inv_graph *body)
{
    inv_id *map = INV_ARENA_NEW(x->a, inv_id, body->value.n + 1);
    if (!map) return INV_E_NOMEM;
    for (inv_id v = 0; v < body->value.n; v++) map[v] = INV_NONE;
    for (uint32_t k = 0; k < call->nin && k < body->inputs.n; k++) map[body->inputs.at[k]] = there(l, call->in[k]);
    for (uint32_t k = 0; k < call->nout && k < body->outputs.n; k++) {
        const inv_id out = there(l, call->out[k]);
        if (out == INV_NONE || map[body->outputs.at[k]] != INV_NONE) continue;
        inv_val(x->h, out)->def = INV_NONE;
        map[body->outputs.at[k]] = out;
    }
    for (inv_id v = 0; v < body->value.n; v++)
        if (map[v] == INV_NONE && (map[v] = own_value(x, inv_val(body, v))) == INV_NONE) return x->h->failed;
    return inv_vec_push(x->a, &x->stack, ((level){body, map, 0})) ? INV_OK : INV_E_NOMEM;
}

static inv_status put_node(opener *x, const level *l, inv_id id)
{
    const inv_node *n = inv_nod(l->body, id);
    if (l->map) {
        inv_id *in = INV_ARENA_NEW(x->a, inv_id, n->nin + 1), *out = INV_ARENA_NEW(x->a, inv_id, n->nout + 1);
        if (!in || !out) return INV_E_NOMEM;
        for (uint32_t k = 0; k < n->nin; k++) in[k] = there(l, n->in[k]);
        for (uint32_t k = 0; k < n->nout; k++) out[k] = there(l, n->out[k]);
        id = inv_graph_node(x->h, n->domain, n->op_type, n->name, n->nin, in, n->nout, out, n->nattr, n->attr);
        if (id == INV_NONE) return x->h->failed;
        inv_nod(x->h, id)->op = n->op; /* functions have operator sets of their own */
    }
    return inv_vec_push(x->a, &x->order, id) ? INV_OK : INV_E_NOMEM;
}

static inv_status open_functions(opener *x)
{
    if (!inv_vec_push(x->a, &x->stack, ((level){x->g, NULL, 0}))) return INV_E_NOMEM;
    while (x->stack.n) {
        level *top = &x->stack.at[x->stack.n - 1];
        if (top->at == top->body->order.n) {
            x->stack.n--;
            continue;
        }
        const inv_id id = top->body->order.at[top->at++];
        const level l = *top;
        const inv_id fn = inv_callee(&x->callees, inv_nod(l.body, id));
        if (fn == INV_NONE || x->opened[fn]) {
            INV_TRY(put_node(x, &l, id));
            continue;
        }
        x->opened[fn] = true;
        INV_TRY(open_call(x, &l, inv_nod(l.body, id), x->g->function.at[fn].body));
    }
    x->h->order.n = 0;
    for (size_t i = 0; i < x->order.n; i++)
        if (!inv_vec_push(&x->h->arena, &x->h->order, x->order.at[i])) return INV_E_NOMEM;
    return INV_OK;
}

static inv_status roles_in_place(opener *x, bool train_bn, uint32_t **out)
{
    INV_TRY(inv_callees_init(&x->callees, x->g, x->a));
    if (!(x->opened = INV_ARENA_NEW(x->a, bool, x->g->function.n + 1))) return INV_E_NOMEM;
    INV_TRY(open_functions(x));
    INV_TRY(inv_plain_roles(x->h, train_bn, x->a, out));
    for (size_t v = x->g->value.n; v < x->h->value.n; v++)
        if (inv_val(x->h, (inv_id)v)->role == INV_ROLE_PARAM)
            (*out)[inv_graph_param(x->g, inv_val(x->h, (inv_id)v))] |= (*out)[v];
    return INV_OK;
}

inv_status inv_param_roles(const inv_graph *g, bool train_bn, inv_arena *a, uint32_t **out)
{
    if (!g->function.n) return inv_plain_roles(g, train_bn, a, out);
    opener x = {.g = g, .a = a};
    INV_TRY(inv_graph_variant(g, &x.h));
    const inv_status s = roles_in_place(&x, train_bn, out);
    inv_graph_destroy(x.h);
    return s;
}
