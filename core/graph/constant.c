/* SPDX-License-Identifier: Apache-2.0
 * Why a value that must be known before the run is not: what it depends on, in words for the message, and the model's
 * inputs among that for who can make them constants of the session. */
#include <string.h>

#include "core/graph/ir_internal.h"
#include "core/graph/node.h"

enum { MAX_CAUSES = 3 };

typedef struct causes {
    const inv_graph *g;
    inv_arena *scratch;
    inv_str text;
    unsigned n;
    inv_ids inputs;
} causes;

static void add_cause(causes *c, const char *what, const char *name)
{
    if (++c->n <= MAX_CAUSES) inv_str_add(&c->text, "%s%s '%s'", c->n > 1 ? ", " : "", what, name);
}

/* Notes v if it is where values come from; else gives the node to look behind. */
static inv_status look_at(causes *c, inv_id v, inv_id *def)
{
    const inv_value *val = inv_val(c->g, v);
    *def = val->def;
    if (val->role == INV_ROLE_PARAM && !inv_const_known(c->g, v)) add_cause(c, "parameter", val->name);
    if (val->def == INV_NONE) return INV_OK;
    const inv_node *n = inv_nod(c->g, val->def);
    if (n->op && n->op->flags & INV_OP_RANDOM) add_cause(c, "random numbers of node", inv_node_called(c->g, n));
    if (!n->op || !(n->op->flags & INV_OP_SOURCE)) return INV_OK;
    add_cause(c, "input", val->name);
    return inv_vec_push(c->scratch, &c->inputs, v) ? INV_OK : INV_E_NOMEM;
}

static inv_status find_causes(causes *c, inv_id v)
{
    bool *seen = INV_ARENA_NEW(c->scratch, bool, c->g->value.n + 1);
    inv_ids open = {0};
    if (!seen || !inv_vec_push(c->scratch, &open, v)) return INV_E_NOMEM;
    seen[v] = true;
    for (size_t at = 0; at < open.n; at++) {
        inv_id def;
        INV_TRY(look_at(c, open.at[at], &def));
        if (def == INV_NONE) continue;
        const inv_node *n = inv_nod(c->g, def);
        for (uint32_t k = 0; k < n->nin; k++) {
            if (n->in[k] == INV_NONE || seen[n->in[k]]) continue;
            seen[n->in[k]] = true;
            if (!inv_vec_push(c->scratch, &open, n->in[k])) return INV_E_NOMEM;
        }
    }
    return c->text.failed ? INV_E_NOMEM : INV_OK;
}

static inv_status say(const causes *c, const inv_node *n, inv_id v, const char *what, const char *called)
{
    const inv_value *val = inv_val(c->g, v);
    const inv_node *by = val->def == INV_NONE ? NULL : inv_nod(c->g, val->def);
    const bool computed = by && by->norigin && !(by->op && by->op->flags & INV_OP_SOURCE);
    const bool given = c->n && c->n == c->inputs.n;
    char remedy[512];
    return inv_node_fail(
        c->g, n, INV_E_NOT_CONSTANT,
        "its %s '%s'%s%s%s is not constant: it depends on %s%s. It decides shapes or branches, so "
        "it must be known before the run: %sexport the model with it as a constant",
        what, called, computed ? ", computed by node '" : "", computed ? by->origin[0] : "", computed ? "'," : "",
        c->n ? c->text.s : "values computed in the run", c->n > MAX_CAUSES ? ", ..." : "",
        given ? inv_spell(c->g->ctx, "give that input a fixed value ({constant_inputs}), or ", remedy, sizeof remedy)
              : "");
}

inv_status inv_node_fail_varying(const inv_graph *g, const inv_node *n, inv_id v, const char *what, const char *called)
{
    inv_arena scratch;
    causes c = {.g = g, .scratch = &scratch};
    inv_arena_init(&scratch, g->ctx);
    inv_str_init(&c.text, g->ctx);
    inv_status s = find_causes(&c, v);
    if (s == INV_OK) s = say(&c, n, v, what, called ? called : inv_val(g, v)->name);
    if (s == INV_E_NOT_CONSTANT) g->ctx->not_constant = v;
    inv_str_fini(&c.text);
    inv_arena_fini(&scratch);
    return s;
}

inv_status inv_node_need_const(const inv_graph *g, const inv_node *n, inv_id v, const char *what)
{
    return inv_const_known(g, v) ? INV_OK : inv_node_fail_varying(g, n, v, what, NULL);
}

inv_status inv_graph_varying(const inv_graph *g, inv_arena *scratch, inv_ids *inputs)
{
    causes c = {.g = g, .scratch = scratch};
    inv_str_init(&c.text, g->ctx);
    inv_status s = g->ctx->not_constant < g->value.n ? find_causes(&c, g->ctx->not_constant) : INV_OK;
    inv_str_fini(&c.text);
    *inputs = c.inputs;
    return s;
}
