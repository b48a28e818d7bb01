/* SPDX-License-Identifier: Apache-2.0
 * Functions of the file that hold couplings and the like. A block inside of one may be a part of what a call computes,
 * and a call cannot be a part of a function; then the function is opened up, every call giving way to the nodes inside.
 * What keeps one shut is found first: nodes are copied as the file has them, so bodies of control flow would name
 * values that are called otherwise, and operators would be those of another set.
 *
 * requires  a graph as imported
 * gives     inv_function.open in a copy of it, o->shut, o->out->opened and opset; or all of them opened up in place */
#include <string.h>

#include "core/edits/edited.h"
#include "core/graph/node.h"
#include "passes/export/export.h"
#include "passes/export/outline.h"
#include "passes/front/front.h"

typedef struct opener {
    const inv_graph *source;
    inv_arena *a;      /* of texts */
    const char **shut; /* per function */
    inv_callees callees;
} opener;

/* --- what keeps a function shut --- */

static bool shut_by(opener *x, inv_id f, const char *text)
{
    if (text && f != INV_NONE && !x->shut[f]) x->shut[f] = text;
    return text != NULL;
}

/* The version of a domain that nodes in the main graph are of: the model's, or that of the first function that imports
 * it, which brings it along (open_function); `by`, else NULL. */
static int64_t main_opset(const inv_graph *g, const char *domain, const inv_function **by)
{
    int64_t version = inv_graph_opset(g, domain);
    *by = NULL;
    for (size_t i = 0; i < g->function.n && !version; i++) {
        version = inv_graph_opset(g->function.at[i].body, domain);
        *by = &g->function.at[i];
    }
    return version;
}

/* What a node inside of function f cannot be copied for; NULL: nothing. */
static const char *flaw_of(const opener *x, const inv_function *f, const inv_node *n)
{
    inv_arena *a = x->a;
    bool refers = false, other = false;
    for (uint32_t k = 0; k < n->nattr; k++) {
        refers = refers || n->attr[k].ref;
        other = other || n->attr[k].kind == INV_ATTR_OTHER;
        if (n->attr[k].kind == INV_ATTR_GRAPH)
            return inv_arena_printf(a, "its node '%s' (%s) has a body, which names what it reads",
                                    inv_node_called(f->body, n), n->op_type);
    }
    if (refers && other)
        return inv_arena_printf(a, "an attribute of its node '%s' (%s) cannot be written", inv_node_called(f->body, n),
                                n->op_type);
    const inv_function *by;
    const int64_t own = inv_graph_opset(f->body, n->domain), version = main_opset(x->source, n->domain, &by);
    if (own == version) return NULL;
    return inv_arena_printf(a, "it is of operator set %s%s%lld, %s%s of %lld", n->domain, *n->domain ? " " : "",
                            (long long)own, by ? "function " : "the model", by ? by->name : "", (long long)version);
}

/* Calls from bodies stay what they are. */
static inv_status shut_called(opener *x, const inv_graph *body, const char *from)
{
    for (size_t i = 0; i < body->order.n; i++) {
        const inv_node *n = inv_nod(body, body->order.at[i]);
        if (!shut_by(x, inv_callee(&x->callees, n), from)) return INV_E_NOMEM;
        for (uint32_t k = 0; k < n->nattr; k++)
            if (n->attr[k].kind == INV_ATTR_GRAPH && n->attr[k].graph)
                INV_TRY(shut_called(x, n->attr[k].graph, from)); /* as deep as importing allows */
    }
    return INV_OK;
}

static inv_status shut_from_bodies(opener *x, const inv_graph *g)
{
    for (size_t i = 0; i < g->order.n; i++) {
        const inv_node *n = inv_nod(g, g->order.at[i]);
        for (uint32_t k = 0; k < n->nattr; k++) {
            if (n->attr[k].kind != INV_ATTR_GRAPH || !n->attr[k].graph) continue;
            INV_TRY(shut_called(x, n->attr[k].graph,
                                inv_arena_printf(x->a, "it is called from a body of node '%s' (%s)",
                                                 inv_node_called(g, n), n->op_type)));
        }
    }
    return INV_OK;
}

/* A function that is called from one that stays is needed there, weights and all. */
static inv_status shut_callees(opener *x)
{
    const inv_graph *g = x->source;
    for (bool more = true; more;) {
        more = false;
        for (size_t i = 0; i < g->function.n; i++) {
            const inv_function *f = &g->function.at[i];
            for (size_t k = 0; x->shut[i] && k < f->body->order.n; k++) {
                const inv_id to = inv_callee(&x->callees, inv_nod(f->body, f->body->order.at[k]));
                if (to == INV_NONE || x->shut[to]) continue;
                more = shut_by(
                    x, to,
                    inv_arena_printf(x->a, "it is called from function '%s', which stays: %s", f->name, x->shut[i]));
                if (!more) return INV_E_NOMEM;
            }
        }
    }
    return INV_OK;
}

static inv_status find_shut(opener *x)
{
    const inv_graph *g = x->source;
    INV_TRY(shut_from_bodies(x, g));
    for (size_t i = 0; i < g->function.n; i++) {
        const inv_function *f = &g->function.at[i];
        INV_TRY(shut_from_bodies(x, f->body));
        for (size_t k = 0; k < f->body->order.n && !f->block && !x->shut[i]; k++)
            (void)shut_by(x, (inv_id)i, flaw_of(x, f, inv_nod(f->body, f->body->order.at[k])));
    }
    return shut_callees(x);
}

/* --- which of the others are to be opened --- */

static bool is_tagged(const inv_function *f, const char *tag)
{
    const size_t n = strlen(f->domain);
    return strncmp(tag, f->domain, n) == 0 && strncmp(tag + n, "::", 2) == 0 && strcmp(tag + n + 2, f->name) == 0;
}

/* Blocks of one operator are not worth the file's functions; those that masked.c finds have more. */
static bool holds(const inv_function *f, const inv_graph *g, const inv_block *b)
{
    bool any = false;
    if (b->npattern < 2 && b->rule->match && !strstr(b->rule->match, "region(")) return false;
    for (uint32_t k = 0; k < b->npattern; k++) {
        const inv_node *n = inv_nod(g, b->node[k]);
        for (uint32_t t = 1; t < n->norigin && !any; t++) any = is_tagged(f, n->origin[t]);
    }
    return any;
}

bool inv_outline_wants(const inv_rewriting *r, const inv_graph *source, const inv_ids *barred, bool *open)
{
    bool any = false;
    for (size_t i = 0; i < source->function.n; i++) {
        const inv_function *f = &source->function.at[i];
        for (size_t k = 0; k < r->outline.block.n && !f->block && !open[i]; k++) {
            const inv_outline_block *row = &r->outline.block.at[k];
            if (row->inverse || inv_ids_have(barred->at, barred->n, row->block)) continue;
            open[i] = holds(f, r->g, &r->g->matches->block.at[row->block]);
        }
        any = any || open[i];
    }
    return any;
}

bool inv_outline_gains(const inv_rewriting *r, const inv_rewriting *before, const inv_graph *source, bool *open,
                       bool *all)
{
    bool any = false;
    *all = true;
    for (size_t i = 0; i < source->function.n; i++) {
        if (!open[i]) continue;
        open[i] = false;
        for (size_t k = 0; k < r->outline.block.n && !open[i]; k++) {
            const inv_outline_block *row = &r->outline.block.at[k];
            if (!row->inverse || (k < before->outline.block.n && before->outline.block.at[k].inverse)) continue;
            open[i] = holds(&source->function.at[i], r->g, &r->g->matches->block.at[row->block]);
        }
        any = any || open[i];
        *all = *all && open[i];
    }
    return any;
}

/* --- opening them --- */

static inv_status open_function(inv_graph *g, inv_function *f)
{
    f->open = true;
    /* its Constant nodes that are weights become the main graph's */
    for (size_t v = 0; v < f->body->value.n; v++) {
        const inv_value *val = inv_val(f->body, (inv_id)v);
        if (val->role != INV_ROLE_PARAM) continue;
        inv_val(g, inv_graph_param(g, val))->source = val->source;
        inv_val(g, inv_graph_param(g, val))->within = NULL;
    }
    /* and so do domains that only the function imports */
    for (size_t i = 0; i < f->body->opset.n; i++) {
        const inv_opset *own = &f->body->opset.at[i];
        const inv_opset copy = {inv_arena_strdup(&g->arena, own->domain), own->version};
        if (inv_graph_opset(g, own->domain)) continue;
        if (!copy.domain || !inv_vec_push(&g->arena, &g->opset, copy)) return INV_E_NOMEM;
    }
    return INV_OK;
}

inv_status inv_outline_openings(inv_outliner *o, const inv_graph *source, inv_graph *flat)
{
    opener x = {.source = source, .a = o->a};
    size_t own = 0;
    o->source = source;
    x.shut = o->shut = INV_ARENA_NEW(&o->scratch, const char *, source->function.n + 1);
    if (!o->shut) return INV_E_NOMEM;
    for (size_t i = 0; i < source->function.n; i++) own += !source->function.at[i].block;
    if (!own) return INV_OK;
    INV_TRY(inv_callees_init(&x.callees, source, &o->scratch));
    INV_TRY(find_shut(&x));
    for (size_t i = 0; i < source->function.n; i++)
        if (!source->function.at[i].block && !o->shut[i] && (o->reverse || (o->open && o->open[i])))
            INV_TRY(open_function(flat, &flat->function.at[i]));
    return inv_outline_opened(flat, source->opset.n, o->a, o->out);
}

/* --- in the model itself, for who edits it --- */

/* Inverses that only the blocks of an earlier rewriting read. */
static inv_status drop_inverses(inv_graph *g, inv_arena *scratch)
{
    uint32_t *readers;
    INV_TRY(inv_added_readers(g, scratch, &readers));
    for (size_t i = 0; i < g->inits.n; i++) {
        inv_value *v = inv_val(g, g->inits.at[i]);
        v->dropped = v->dropped || (v->inverse_of && !readers[g->inits.at[i]]);
    }
    return INV_OK;
}

static inv_status open_in_place(inv_graph *g, inv_arena *scratch)
{
    opener x = {.source = g, .a = &g->arena};
    x.shut = INV_ARENA_NEW(scratch, const char *, g->function.n + 1);
    if (!x.shut) return INV_E_NOMEM;
    INV_TRY(inv_callees_init(&x.callees, g, scratch));
    INV_TRY(find_shut(&x));
    for (size_t i = 0; i < g->function.n; i++) {
        inv_function *f = &g->function.at[i];
        f->shut = x.shut[i];
        if (!f->shut && !f->open) INV_TRY(open_function(g, f));
    }
    INV_TRY(inv_inline_open(g));
    g->edited = true;
    return drop_inverses(g, scratch);
}

inv_status inv_functions_open(inv_graph *g)
{
    inv_arena scratch;
    bool any = false;
    for (size_t i = 0; i < g->function.n; i++) any = any || !g->function.at[i].open;
    if (!any) return INV_OK;
    inv_arena_init(&scratch, g->ctx);
    inv_status s = open_in_place(g, &scratch);
    inv_arena_fini(&scratch);
    return s;
}

const char *inv_outline_shut(const inv_outliner *o, const inv_cut *cut)
{
    for (uint32_t k = 0; k < cut->nitem; k++) {
        const inv_node *n = inv_item(o, cut->item[k]);
        for (size_t i = 0; i < o->source->function.n; i++) {
            const inv_function *f = &o->source->function.at[i];
            if (o->shut[i] && strcmp(f->name, n->op_type) == 0 && strcmp(f->domain, n->domain) == 0)
                return inv_arena_printf(o->a, "function '%s', which node '%s' calls, cannot be opened up: %s", f->name,
                                        inv_node_called(o->flat, n), o->shut[i]);
        }
    }
    return NULL;
}
