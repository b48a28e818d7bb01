/* SPDX-License-Identifier: Apache-2.0
 * --tied A=B: what A names is the same weight as what B names, which the file holds once more. Nodes read the first of
 * the two then, and what is written has that alone.
 * requires  an imported graph.  gives: program->own, where there are such pairs.  breaks: nothing */
#include <string.h>

#include "core/graph/node.h"
#include "core/weights/copies.h"
#include "core/weights/module_names.h"
#include "passes/front/front.h"

typedef struct pair {
    const char *left, *right;
    bool joined;
} pair;

bool inv_tied_fits(const char *tied, const inv_value *v)
{
    const char *equals = strchr(tied, '=');
    char left[256];
    if (!equals || inv_param_fits(tied, v)) return inv_param_fits(tied, v);
    if ((size_t)(equals - tied) >= sizeof left) return false;
    memcpy(left, tied, (size_t)(equals - tied));
    left[equals - tied] = '\0';
    return inv_param_fits(left, v);
}

static inv_status join(inv_graph *g, inv_id of, inv_id copy)
{
    inv_value *v = inv_val(g, copy);
    INV_CHECK(!v->is_output, g->ctx, INV_E_ARG,
              "{tied}: '%s' is an output of the model, and has to stay. Swap the two names of the pair", v->name);
    for (size_t i = 0; i < g->order.n; i++) {
        inv_node *n = inv_nod(g, g->order.at[i]);
        for (uint32_t k = 0; k < n->nin; k++) {
            if (n->in[k] != copy) continue;
            INV_CHECK(k < inv_node_listed(n), g->ctx, INV_E_UNSUPPORTED_OP,
                      "{tied}: '%s' is read inside of '%s' (%s), where names cannot be changed. Swap the two names "
                      "of the pair",
                      v->name, inv_node_called(g, n), n->op_type);
            n->in[k] = of;
        }
    }
    v->dropped = true;
    return INV_OK;
}

/* Pairs among equal initializers; who has been joined is no more. */
static inv_status join_fitting(inv_graph *g, const inv_copies *all, pair *p)
{
    for (size_t i = 0; i < all->n; i++) {
        const inv_copy *x = &all->at[i];
        if (!inv_param_fits(p->left, inv_val(g, x->param))) continue;
        for (size_t k = x->of; k < all->n && all->at[k].of == x->of; k++) {
            const inv_id copy = all->at[k].param;
            if (k == i || inv_val(g, copy)->dropped || inv_val(g, x->param)->dropped) continue;
            if (!inv_param_fits(p->right, inv_val(g, copy))) continue;
            INV_TRY(join(g, x->param, copy));
            p->joined = true;
        }
    }
    return INV_OK;
}

static inv_status read_pair(inv_program *p, const char *tied, inv_arena *a, pair *out)
{
    const char *equals = strchr(tied, '=');
    *out = (pair){.left = inv_arena_strndup(a, tied, (size_t)(equals - tied)), .right = equals + 1};
    if (!out->left) return INV_E_NOMEM;
    const char *side[] = {out->left, out->right};
    for (int k = 0; k < 2; k++) {
        inv_near near = inv_near_to(side[k]);
        bool any = false;
        for (size_t i = 0; i < p->source->inits.n && !any; i++) {
            any = inv_param_fits(side[k], inv_val(p->source, p->source->inits.at[i]));
            inv_param_look(&near, inv_val(p->source, p->source->inits.at[i]));
        }
        INV_CHECK(any, p->ctx, INV_E_ARG, "{tied} %s: the model has no initializer '%s'" INV_NEAR_FORMAT, tied, side[k],
                  INV_NEAR_ARGS(near));
    }
    return INV_OK;
}

inv_status inv_pass_join(inv_program *p, inv_arena *scratch)
{
    const inv_session_options *o = &p->options;
    inv_copies all = {0};
    for (size_t i = 0; i < o->ntied; i++) {
        pair named;
        if (!strchr(o->tied[i], '=')) continue;
        INV_TRY(read_pair(p, o->tied[i], scratch, &named));
        if (!p->own) {
            INV_TRY(inv_graph_copy(p->source, &p->own));
            p->source = p->own;
            INV_TRY(inv_copies_find(p->own, scratch, &all));
        }
        INV_TRY(join_fitting(p->own, &all, &named));
        INV_CHECK(named.joined, p->ctx, INV_E_ARG,
                  "{tied} %s: no two initializers of these names are equal, bit for bit, in type, shape and "
                  "elements. Only equal ones can be trained as one",
                  o->tied[i]);
    }
    return INV_OK;
}
