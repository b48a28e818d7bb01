/* SPDX-License-Identifier: Apache-2.0
 * What modules call their parameters (module_names.h). */
#include "core/weights/module_names.h"

#include <string.h>

#include "core/graph/node.h"
#include "core/weights/exported.h"
#include "core/weights/shared_weights.h"

/* Of one parameter; of a list that is searched once per reader. Files have far fewer. */
enum { MOST_NAMES = 1024, MOST_LISTED = 8192, LONGEST_GLOB = 1024 };

/* --- asking --- */

/* A copy of what the exporter has merged (passes/front/untie.c) is named after another module's parameter. */
static bool has_name_of_another(const inv_value *v) { return v->nalso && strstr(v->name, "_untied_"); }

bool inv_module_fits(const char *glob, const char *name)
{
    char dotted[LONGEST_GLOB];
    const size_t n = strlen(glob);
    if (inv_glob_fits(glob, name)) return true;
    if (n >= sizeof dotted || !memchr(glob, '/', n)) return false;
    for (size_t i = 0; i <= n; i++) dotted[i] = glob[i] == '/' ? '.' : glob[i];
    return inv_glob_fits(dotted, name);
}

static bool some_fits(const char *const *globs, size_t n, const char *name)
{
    for (size_t i = 0; i < n; i++)
        if (inv_module_fits(globs[i], name)) return true;
    return false;
}

bool inv_param_fits(const char *glob, const inv_value *v)
{
    for (uint32_t i = 0; i < v->nalso; i++)
        if (inv_module_fits(glob, v->also[i])) return true;
    return has_name_of_another(v) ? !strcmp(glob, v->name) : inv_glob_fits(glob, v->name);
}

bool inv_param_fits_any(const char *const *globs, size_t n, const inv_value *v)
{
    for (size_t i = 0; i < n; i++)
        if (inv_param_fits(globs[i], v)) return true;
    return false;
}

bool inv_param_fits_in_full(const char *const *globs, size_t n, const inv_value *v)
{
    for (uint32_t i = 0; i < v->nalso; i++)
        if (!some_fits(globs, n, v->also[i])) return false;
    return has_name_of_another(v) || inv_glob_fits_any(globs, n, v->name);
}

bool inv_param_is_called(const char *name, const inv_value *v)
{
    for (uint32_t i = 0; i < v->nalso; i++)
        if (!strcmp(name, v->also[i])) return true;
    return !strcmp(name, v->name);
}

void inv_param_look(inv_near *near, const inv_value *v)
{
    inv_near_look(near, v->name);
    for (uint32_t i = 0; i < v->nalso; i++) inv_near_look(near, v->also[i]);
}

size_t inv_module_length(const char *name)
{
    const char *dot = strrchr(name, '.');
    return dot ? (size_t)(dot - name) : 0;
}

/* --- finding --- */

inv_status inv_param_call(inv_graph *g, inv_id v, const char *name)
{
    inv_value *x = inv_val(g, v);
    if (x->nalso == MOST_NAMES || inv_param_is_called(name, x)) return INV_OK;
    const char **names = (const char **)(uintptr_t)x->also;
    if ((x->nalso & (x->nalso - 1)) == 0) { /* the array is full: room for twice as many */
        names = INV_ARENA_NEW(&g->arena, const char *, x->nalso ? 2 * (size_t)x->nalso : 1);
        if (!names) return INV_E_NOMEM;
        for (uint32_t i = 0; i < x->nalso; i++) names[i] = x->also[i];
    }
    names[x->nalso++] = name;
    x->also = names;
    return INV_OK;
}

/* Of operators whose inputs have other names in modules than their parts tell. */
static const char *part_by_slot(const inv_node *n, uint32_t slot)
{
    static const char *const recurrent[] = {"RNN", "GRU", "LSTM", NULL};
    if (inv_node_is(n, "BatchNormalization") && slot >= 3) return slot == 3 ? "running_mean" : "running_var";
    if (inv_node_is_any(n, recurrent) && slot <= 2) return slot == 1 ? "weight_ih" : "weight_hh";
    return NULL;
}

/* What input `slot` of a node is called in a module; NULL: that has no common name. */
static const char *part_of(const inv_node *n, uint32_t slot, const inv_value *v)
{
    const char *part = part_by_slot(n, slot);
    int axes = 0;
    if (part) return part;
    switch (inv_use_role_at(n, slot, false)) {
    case INV_USE_WEIGHT:
    case INV_USE_TABLE:
    case INV_USE_SCALE: return "weight";
    case INV_USE_BIAS:
    case INV_USE_SHIFT: return "bias";
    case INV_USE_OPERAND: break;
    default: return NULL;
    }
    for (int i = 0; i < v->shape.rank; i++) axes += v->shape.dim[i] != 1;
    if (axes > 1) return NULL;
    return inv_node_is(n, "Add") ? "bias" : inv_node_is(n, "Mul") ? "weight" : NULL;
}

/* Whether a name is that of something in the module, however deep. */
static bool is_inside(const char *name, const char *module)
{
    const size_t n = strlen(module);
    return !strncmp(name, module, n) && name[n] == '.';
}

static bool is_known_by(const inv_value *v, const char *module)
{
    for (uint32_t i = 0; i < v->nalso; i++)
        if (is_inside(v->also[i], module)) return true;
    return !strstr(v->name, "_untied_") && is_inside(v->name, module);
}

/* The module's own parameter of the file's list that is called like the part: "a.in_proj_weight" is a weight. NULL:
 * none that no initializer has the name of, or several. */
static const char *listed(const inv_graph *g, const char *module, const char *part)
{
    const char *found = NULL;
    const size_t n = strlen(module);
    size_t count = 0;
    const inv_exported *e = g->exported;
    for (uint32_t i = 0; e && i < e->nparam && e->nparam <= MOST_LISTED; i++) {
        const char *own = e->param[i] + n + (n > 0);
        if (e->kept[i] == INV_KEPT_NAMED || (n && !is_inside(e->param[i], module))) continue;
        if (!strcmp(own, part)) return e->param[i];
        if (strchr(own, '.') || !strstr(own, part)) continue;
        found = e->param[i];
        count++;
    }
    return count == 1 ? found : NULL;
}

/* Of what the call was given: the initializer's own; else the only one that no initializer has the name of, and that is
 * called like the part. */
uint32_t inv_param_given(const inv_graph *g, const inv_node *n, uint32_t slot, inv_id v)
{
    const inv_exported *e = g->exported;
    const inv_value *x = inv_val(g, v);
    const uint32_t own = e && x->init < e->nof ? e->of[x->init] : UINT32_MAX;
    const char *part = n->ngiven ? part_of(n, slot, x) : NULL;
    uint32_t any = UINT32_MAX, called = UINT32_MAX, nany = 0, ncalled = 0;
    for (uint32_t i = 0; e && i < n->ngiven; i++) {
        const uint32_t p = n->given[i];
        if (p == own) return p;
        if (e->kept[p] == INV_KEPT_NAMED) continue;
        any = p;
        nany++;
        if (!part || !strstr(e->param[p] + inv_module_length(e->param[p]), part)) continue;
        called = p;
        ncalled++;
    }
    return ncalled == 1 ? called : !ncalled && nany == 1 ? any : UINT32_MAX;
}

/* Whether the file says that it is no parameter; of what it says nothing that is so where all of its list are there. */
static bool is_none(const inv_graph *g, const inv_value *v)
{
    if (v->said == INV_SAID_NOTHING) return g->exported && !inv_has_lost(g->exported);
    return inv_said_none(v);
}

/* A parameter of one's own name is called otherwise only where the file says so, or by its part. */
static inv_status call_by(inv_graph *g, inv_id v, const inv_node *n, uint32_t slot)
{
    const inv_value *x = inv_val(g, v);
    const uint32_t given = inv_param_given(g, n, slot, v);
    if (given != UINT32_MAX) {
        const char *own = g->exported->param[given];
        INV_TRY(inv_param_call(g, v, own));
        const char *by = part_of(n, slot, x);
        if (!*n->module || is_inside(own, n->module) || is_known_by(x, n->module)) return INV_OK;
        own = inv_arena_printf(&g->arena, "%s.%s", n->module, by ? by : own); /* of another module, that is read here */
        return own ? inv_param_call(g, v, own) : INV_E_NOMEM;
    }
    if (x->said == INV_SAID_PARAMETER && is_known_by(x, n->module)) return INV_OK;
    const char *part = is_none(g, x) ? NULL : part_of(n, slot, x), *name = part ? listed(g, n->module, part) : NULL;
    if (!name && (!*n->module || is_known_by(x, n->module))) return INV_OK;
    if (!name && x->said == INV_SAID_PARAMETER && g->exported && g->exported->nparam) return INV_OK;
    if (!name) name = inv_arena_printf(&g->arena, "%s.%s", n->module, part ? part : x->name);
    return name ? inv_param_call(g, v, name) : INV_E_NOMEM;
}

typedef struct caller {
    inv_graph *g;
    inv_arena *scratch;
    const bool *which;
} caller;

static inv_status call_in(const caller *c, const inv_graph *b, const inv_id *root);

/* In the bodies of a node of graph b: what these read from around them has a place among the node's inputs. */
static inv_status call_in_bodies(const caller *c, const inv_node *n, const inv_id *root)
{
    for (uint32_t i = 0; i < n->nattr; i++) {
        const inv_attr *a = &n->attr[i];
        const inv_graph *body = a->kind == INV_ATTR_GRAPH ? a->graph : NULL;
        inv_id *inner = body ? INV_ARENA_NEW(c->scratch, inv_id, body->value.n + 1) : NULL;
        if (!body) continue;
        if (!inner) return INV_E_NOMEM;
        for (inv_id v = 0; v < body->value.n; v++) {
            const inv_value *x = inv_val(body, v);
            inner[v] = x->role == INV_ROLE_PARAM ? inv_graph_param(c->g, x) : INV_NONE;
        }
        for (uint32_t k = 0; k < a->ncaptured; k++) {
            const inv_id in = n->in[a->captured + k];
            inner[body->inputs.at[body->inputs.n - a->ncaptured + k]] = in == INV_NONE ? INV_NONE : root[in];
        }
        INV_TRY(call_in(c, body, inner));
    }
    return INV_OK;
}

/* root: per value of b, the parameter of the main graph that it comes from. */
static inv_status call_in(const caller *c, const inv_graph *b, const inv_id *root)
{
    inv_graph *g = c->g;
    for (size_t i = 0; i < b->order.n; i++) {
        const inv_node *n = inv_nod(b, b->order.at[i]);
        INV_TRY(call_in_bodies(c, n, root)); /* as deep as messages may be nested */
        for (uint32_t k = 0; n->module && k < n->nin; k++) {
            const inv_id v = n->in[k] == INV_NONE ? INV_NONE : root[n->in[k]];
            const bool hands = v != INV_NONE && n->nout && n->out[0] != INV_NONE && root[n->out[0]] == v;
            if (v == INV_NONE || hands || (c->which && !c->which[v])) continue;
            const inv_value *x = inv_val(g, v);
            if (x->role != INV_ROLE_PARAM || x->type || !inv_dtype_is_float(x->dtype) || inv_value_fixed(x)) continue;
            if ((k < inv_node_listed(n) && n->op) || (!x->nalso && !inv_module_length(x->name)))
                INV_TRY(call_by(g, v, n, k)); /* what bodies and functions read they call themselves, if they can */
        }
    }
    return INV_OK;
}

inv_status inv_module_names_find(inv_graph *g, inv_arena *scratch, const bool *which)
{
    inv_id *root;
    bool any = false;
    const caller c = {g, scratch, which};
    for (size_t i = 0; i < g->order.n && !any; i++) any = inv_nod(g, g->order.at[i])->module != NULL;
    if (!any) return INV_OK;
    INV_TRY(inv_param_roots(g, scratch, &root));
    return call_in(&c, g, root);
}
