/* SPDX-License-Identifier: Apache-2.0
 * What a node hands on, what a view is of, and which function it calls (node.h), by open addressing. */
#include "core/graph/node.h"

#include "core/graph/op.h"

inv_hands inv_node_hands(const inv_node *n)
{
    static const struct {
        const char *op;
        inv_hands hands;
    } table[] = {
        {"Identity", INV_HANDS_SAME}, {"Cast", INV_HANDS_SAME},     {"CastLike", INV_HANDS_SAME},
        {"Transpose", INV_HANDS_ALL}, {"Reshape", INV_HANDS_ALL},   {"Unsqueeze", INV_HANDS_ALL},
        {"Squeeze", INV_HANDS_ALL},   {"Flatten", INV_HANDS_ALL},   {"Expand", INV_HANDS_SOME},
        {"Tile", INV_HANDS_SOME},     {"Slice", INV_HANDS_SOME},    {"Split", INV_HANDS_SOME},
        {"Gather", INV_HANDS_SOME},   {"GatherND", INV_HANDS_SOME}, {"GatherElements", INV_HANDS_SOME},
    };
    for (size_t i = 0; i < sizeof table / sizeof *table; i++)
        if (inv_node_is(n, table[i].op)) return table[i].hands;
    return INV_HANDS_NOTHING;
}

static size_t hash_of(const char *domain, const char *name)
{
    return (size_t)inv_hash(name, strlen(name), inv_hash(domain, strlen(domain), 0));
}

inv_status inv_callees_init(inv_callees *c, const inv_graph *g, inv_arena *a)
{
    *c = (inv_callees){.g = g, .cap = 16};
    while (c->cap < 2 * g->function.n + 2) c->cap *= 2;
    c->slot = INV_ARENA_NEW(a, inv_id, c->cap);
    for (size_t i = 0; c->slot && i < g->function.n; i++) {
        size_t at = hash_of(g->function.at[i].domain, g->function.at[i].name) & (c->cap - 1);
        while (c->slot[at]) at = (at + 1) & (c->cap - 1);
        c->slot[at] = (inv_id)i + 1;
    }
    return c->slot ? INV_OK : INV_E_NOMEM;
}

inv_id inv_callee(const inv_callees *c, const inv_node *n)
{
    if (!c->g->function.n) return INV_NONE;
    size_t at = hash_of(n->domain, n->op_type) & (c->cap - 1);
    for (; c->slot[at]; at = (at + 1) & (c->cap - 1)) {
        const inv_function *f = &c->g->function.at[c->slot[at] - 1];
        if (!strcmp(f->name, n->op_type) && !strcmp(f->domain, n->domain)) return c->slot[at] - 1;
    }
    return INV_NONE;
}

inv_id inv_seen_through_views(const inv_graph *g, inv_id v)
{
    while (inv_val(g, v)->def != INV_NONE && inv_nod(g, inv_val(g, v)->def)->op->flags & INV_OP_VIEW)
        v = inv_nod(g, inv_val(g, v)->def)->in[0];
    return v;
}
