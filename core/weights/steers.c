/* SPDX-License-Identifier: Apache-2.0
 * Initializers of floating point that only steer: thresholds, the value that Pad puts in, a depth, sizes through Mul
 * and Cast, conditions. What they decide must be known before the run, and no gradient passes such a use, so they are
 * constants like integers and single numbers (inv_value_fixed).
 *
 * An initializer steers if it is read where the operator needs what is known (core/weights/use_roles.c), or if what is
 * computed of it goes nowhere else. Inputs may be among what it is computed with, as sizes may depend on them; products
 * with weights may not. One that has other uses, too, is a constant all the same where it is computed with constants
 * alone: the model could not be run otherwise. Functions and bodies are looked at before the nodes that run them. */
#include "core/graph/node.h"
#include "core/graph/op.h"
#include "core/weights/shared_weights.h"

enum {
    STEERS = 1,
    ALONE = 2, /* computed with constants alone */
    USED = 4,  /* in another way, too */
    DEEPEST = 64
};
/* Of what a value is computed. */
typedef enum source { OF_DATA, OF_INPUTS, OF_CONSTANTS } source;

typedef struct looker {
    const inv_graph *g;
    inv_arena *a;
    inv_callees callees;
    uint8_t **function; /* per function: bits per value; NULL: not looked at */
    unsigned depth;
} looker;

static inv_status look(looker *x, const inv_graph *g, uint8_t **out);

/* --- what it is computed of --- */

static source source_of(const looker *x, const inv_node *n, const uint8_t *from)
{
    source least = OF_CONSTANTS;
    if (inv_node_is(n, "Shape") || inv_node_is(n, "Size")) return OF_CONSTANTS;
    if (!n->op || n->op->flags & (INV_OP_RANDOM | INV_OP_PRODUCT) || inv_callee(&x->callees, n) != INV_NONE)
        return OF_DATA;
    for (uint32_t k = 0; k < n->nattr; k++)
        if (n->attr[k].kind == INV_ATTR_GRAPH) return OF_DATA;
    for (uint32_t k = 0; k < n->nin; k++)
        if (n->in[k] != INV_NONE && from[n->in[k]] < least) least = (source)from[n->in[k]];
    return least;
}

static void find_sources(const looker *x, const inv_graph *g, uint8_t *from)
{
    for (inv_id v = 0; v < g->value.n; v++) {
        const inv_role r = (inv_role)inv_val(g, v)->role;
        from[v] = r == INV_ROLE_INPUT ? OF_INPUTS : r == INV_ROLE_NODE ? OF_DATA : OF_CONSTANTS;
    }
    for (size_t i = 0; i < g->order.n; i++) {
        const inv_node *n = inv_nod(g, g->order.at[i]);
        const source s = source_of(x, n, from);
        for (uint32_t k = 0; k < n->nout; k++)
            if (n->out[k] != INV_NONE) from[n->out[k]] = (uint8_t)s;
    }
}

/* --- what it is used for --- */

static uint8_t uses_in_bodies(const inv_node *n, uint32_t slot, uint8_t *const *body)
{
    uint8_t bits = 0;
    for (uint32_t i = 0, at = 0; i < n->nattr; i++) {
        const inv_attr *a = &n->attr[i];
        if (a->kind != INV_ATTR_GRAPH || !a->graph) continue;
        const uint8_t *inside = body[at++];
        if (slot < a->captured || slot - a->captured >= a->ncaptured) continue;
        if (!inside) return USED;
        const inv_ids *in = &a->graph->inputs;
        bits |= inside[in->at[in->n - a->ncaptured + (slot - a->captured)]];
    }
    return bits;
}

static uint8_t use_of(const looker *x, const inv_node *n, uint32_t slot, const uint8_t *bits, const uint8_t *from,
                      uint8_t *const *body)
{
    const inv_id fn = inv_callee(&x->callees, n), v = n->in[slot];
    if (slot >= inv_node_listed(n)) return uses_in_bodies(n, slot, body);
    if (fn != INV_NONE) {
        const inv_ids *in = &x->g->function.at[fn].body->inputs;
        return !x->function[fn] ? USED : slot < in->n ? x->function[fn][in->at[slot]] : 0;
    }
    if (inv_node_is(n, "Shape") || inv_node_is(n, "Size")) return 0;
    const inv_use_role role = inv_use_role_at(n, slot, false);
    if (role == INV_USE_STEERS) return (uint8_t)(STEERS | (from[v] == OF_CONSTANTS ? ALONE : 0));
    uint8_t of = 0;
    for (uint32_t k = 0; k < n->nout; k++)
        if (n->out[k] != INV_NONE) of |= from[n->out[k]] == OF_DATA ? USED : bits[n->out[k]];
    if (role == INV_USE_CONSTANT && !(of & STEERS)) return 0;
    return of & STEERS || role == INV_USE_CONSTANT ? of : USED;
}

static inv_status look_at_bodies(looker *x, const inv_node *n, uint8_t *const **out)
{
    uint8_t **body = INV_ARENA_NEW(x->a, uint8_t *, n->nattr + 1);
    if (!body) return INV_E_NOMEM;
    for (uint32_t i = 0, at = 0; i < n->nattr; i++) {
        if (n->attr[i].kind != INV_ATTR_GRAPH || !n->attr[i].graph) continue;
        INV_TRY(look(x, n->attr[i].graph, &body[at++]));
    }
    *out = body;
    return INV_OK;
}

static void mark(const looker *x, const inv_graph *g, const uint8_t *bits)
{
    for (inv_id v = 0; v < g->value.n; v++) {
        inv_value *val = inv_val(g, v);
        const bool alone = bits[v] & ALONE && val->said != INV_SAID_PARAMETER;
        if (val->role != INV_ROLE_PARAM || val->type || !inv_dtype_is_float(val->dtype)) continue;
        if (!(bits[v] & STEERS) || (bits[v] & USED && !alone)) continue;
        val->steers = true;
        if (val->init < x->g->inits.n) inv_val(x->g, x->g->inits.at[val->init])->steers = true;
    }
}

static inv_status look_at_nodes(looker *x, const inv_graph *g, uint8_t *bits, const uint8_t *from)
{
    for (size_t i = g->order.n; i-- > 0;) {
        const inv_node *n = inv_nod(g, g->order.at[i]);
        uint8_t *const *body = NULL;
        const inv_id fn = inv_callee(&x->callees, n);
        if (fn != INV_NONE && !x->function[fn]) INV_TRY(look(x, x->g->function.at[fn].body, &x->function[fn]));
        INV_TRY(look_at_bodies(x, n, &body));
        for (uint32_t k = 0; k < n->nin; k++)
            if (n->in[k] != INV_NONE) bits[n->in[k]] |= use_of(x, n, k, bits, from, body);
    }
    return INV_OK;
}

/* *out: NULL: too deep, as functions may call each other in a circle. */
static inv_status look(looker *x, const inv_graph *g, uint8_t **out)
{
    *out = NULL;
    if (x->depth >= DEEPEST) return INV_OK;
    uint8_t *bits = INV_ARENA_NEW(x->a, uint8_t, g->value.n + 1), *from = INV_ARENA_NEW(x->a, uint8_t, g->value.n + 1);
    if (!bits || !from) return INV_E_NOMEM;
    find_sources(x, g, from);
    for (size_t i = 0; i < g->outputs.n; i++) bits[g->outputs.at[i]] = USED;
    x->depth++;
    const inv_status s = look_at_nodes(x, g, bits, from);
    x->depth--;
    INV_TRY(s);
    mark(x, g, bits);
    *out = bits;
    return INV_OK;
}

inv_status inv_mark_steering(const inv_graph *g, inv_arena *a)
{
    looker x = {.g = g, .a = a};
    uint8_t *bits;
    x.function = INV_ARENA_NEW(a, uint8_t *, g->function.n + 1);
    if (!x.function) return INV_E_NOMEM;
    INV_TRY(inv_callees_init(&x.callees, g, a));
    return look(&x, g, &bits);
}
