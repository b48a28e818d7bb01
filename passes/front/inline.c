/* SPDX-License-Identifier: Apache-2.0
 * Expands calls of model-local functions, and puts bodies of control flow in place (unroll.c).
 *
 * requires  a sorted graph as imported; g->function with bodies
 * gives     no call of a model-local function is left in the order. The nodes of a body are named "CALL/NODE" and
 *           have as origins that name and, outermost first, the functions "DOMAIN::NAME" they come from; their source
 *           and module are those of the outermost call. Functions of domain ai.invonnx, the blocks of a rewritten
 * model, leave no trace: nodes and values are called, and come from, what they did before the model was rewritten
 * breaks    nothing: values keep their names; those inside a body are named "CALL/VALUE"
 *
 * Sweeps over the order until nothing is left to expand; nothing recurses. Before the first sweep the calls between
 * functions are followed once: a cycle is refused by its chain, and so is a model that would grow without measure. */
#include <string.h>

#include "core/edits/rewriting.h"
#include "core/graph/model.h"
#include "core/graph/node.h"
#include "core/rules/plugin.h"
#include "passes/front/front.h"

/* --- calls between functions --- */

typedef struct visit {
    inv_id function;
    size_t next; /* position in the body's order */
} visit;

static inv_status refuse_cycle(const inv_graph *g, const visit *stack, size_t depth, inv_id again)
{
    inv_str chain;
    size_t from = 0;
    while (stack[from].function != again) from++;
    inv_str_init(&chain, g->ctx);
    for (size_t i = from; i < depth; i++) inv_str_add(&chain, "'%s' calls ", g->function.at[stack[i].function].name);
    inv_status s = inv_fail(g->ctx, INV_E_GRAPH, "a model-local function calls itself: %s'%s'", chain.s,
                            g->function.at[again].name);
    inv_str_fini(&chain);
    return s;
}

/* Nodes of each function when all is expanded; 0: not known yet. */
static inv_status measure_body(const inv_callees *c, inv_arena *scratch, inv_id root, double *size)
{
    const inv_graph *g = c->g;
    size_t nf = g->function.n, depth = 0;
    visit *stack = INV_ARENA_NEW(scratch, visit, nf + 1);
    bool *open = INV_ARENA_NEW(scratch, bool, nf + 1);
    double *sum = INV_ARENA_NEW(scratch, double, nf + 1);
    if (!stack || !open || !sum) return INV_E_NOMEM;
    stack[depth++] = (visit){root, 0};
    open[root] = true;
    while (depth) {
        visit *v = &stack[depth - 1];
        const inv_graph *body = g->function.at[v->function].body;
        if (v->next == body->order.n) {
            size[v->function] = sum[v->function] + 1;
            open[v->function] = false;
            depth--;
            continue;
        }
        inv_id callee = inv_callee(c, inv_nod(body, body->order.at[v->next]));
        if (callee != INV_NONE && open[callee]) return refuse_cycle(g, stack, depth, callee);
        if (callee != INV_NONE && size[callee] == 0) {
            stack[depth++] = (visit){callee, 0};
            open[callee] = true;
            continue;
        }
        sum[v->function] += callee == INV_NONE ? 1 : size[callee];
        v->next++;
    }
    return INV_OK;
}

static inv_status check_calls(const inv_callees *c, const inv_ids *list, inv_arena *scratch)
{
    const inv_graph *g = c->g;
    double *size = INV_ARENA_NEW(scratch, double, g->function.n + 1), total = 0;
    if (!size) return INV_E_NOMEM;
    for (size_t i = 0; i < list->n; i++) {
        inv_id f = inv_callee(c, inv_nod(g, list->at[i]));
        if (f != INV_NONE && size[f] == 0) INV_TRY(measure_body(c, scratch, f, size));
        total += f == INV_NONE ? 1 : size[f];
    }
    if (total > INV_MAX_NODES)
        return inv_fail(g->ctx, INV_E_GRAPH, "the model's functions expand to %.0f nodes; at most %d are supported",
                        total, INV_MAX_NODES);
    return INV_OK;
}

/* --- a body in place --- */

static inv_id local_value(inv_expansion *x, const inv_value *v)
{
    const char *name = x->block ? v->name : inv_arena_printf(x->scratch, "%s/%s", x->label, v->name);
    if (!name) {
        x->g->failed = INV_E_NOMEM;
        return INV_NONE;
    }
    /* Two calls may have one name; and a file may use any name for anything. */
    if (inv_graph_find(x->g, name) != INV_NONE) name = inv_graph_fresh(x->g, name);
    inv_shape unknown = inv_shape_unknown();
    return name ? inv_graph_value(x->g, name, INV_ROLE_NODE, INV_DT_NONE, &unknown) : INV_NONE;
}

/* What an attribute of the body stands for; NULL: left out, because neither the call nor a default gives it. */
static const inv_attr *resolve(const inv_expansion *x, const inv_attr *a)
{
    if (!a->ref) return a;
    for (uint32_t i = 0; i < x->narg; i++)
        if (!strcmp(x->arg[i].name, a->ref)) return &x->arg[i];
    return NULL;
}

static inv_attr *body_attrs(const inv_expansion *x, const inv_node *b, uint32_t *n)
{
    inv_attr *attr = INV_ARENA_NEW(x->scratch, inv_attr, b->nattr + 1);
    *n = 0;
    for (uint32_t i = 0; attr && i < b->nattr; i++) {
        const inv_attr *from = resolve(x, &b->attr[i]);
        if (!from) continue;
        inv_attr *a = &attr[(*n)++];
        *a = *from;
        a->name = b->attr[i].name;
        if (a->kind != INV_ATTR_GRAPH) continue;
        a->args = x->arg;
        a->n = x->narg;
        if (b->attr[i].ref) a->graph = NULL; /* it captures values where the call is, which the body does not have */
    }
    return attr;
}

static inv_status set_origin(const inv_expansion *x, inv_node *n)
{
    const inv_node *from = inv_nod(x->g, x->node);
    uint32_t outer = from->norigin > 1 ? from->norigin - 1 : 0; /* origin 0 is the call's own name */
    const char **origin = INV_ARENA_NEW(&x->g->arena, const char *, outer + 2);
    if (!origin) return INV_E_NOMEM;
    origin[0] = n->name;
    for (uint32_t i = 0; i < outer; i++) origin[1 + i] = from->origin[1 + i];
    if (x->tag) origin[1 + outer] = x->tag;
    n->origin = origin;
    n->norigin = outer + (x->tag ? 2 : 1);
    return INV_OK;
}

static inv_status push_node(inv_expansion *x, inv_id id, inv_ids *order)
{
    if (id == INV_NONE) return x->g->failed;
    inv_nod(x->g, id)->phase = inv_nod(x->g, x->node)->phase;
    if (!x->block) INV_TRY(set_origin(x, inv_nod(x->g, id)));
    if (!x->block && !x->open) {
        inv_nod(x->g, id)->source = inv_nod(x->g, x->node)->source;
        inv_nod(x->g, id)->module = inv_nod(x->g, x->node)->module;
    }
    return inv_vec_push(x->scratch, order, id) ? INV_OK : INV_E_NOMEM;
}

static inv_status copy_body_node(inv_expansion *x, size_t at, inv_ids *order)
{
    const inv_node *b = inv_nod(x->body, x->body->order.at[at]);
    inv_id *in = INV_ARENA_NEW(x->scratch, inv_id, b->nin + 1), *out = INV_ARENA_NEW(x->scratch, inv_id, b->nout + 1);
    uint32_t nattr;
    inv_attr *attr = body_attrs(x, b, &nattr);
    const char *name = x->block   ? b->name
                       : *b->name ? inv_arena_printf(x->scratch, "%s/%s", x->label, b->name)
                                  : inv_arena_printf(x->scratch, "%s/%s_%zu", x->label, b->op_type, at);
    if (!in || !out || !attr || !name) return INV_E_NOMEM;
    for (uint32_t i = 0; i < b->nin; i++) in[i] = b->in[i] == INV_NONE ? INV_NONE : x->map[b->in[i]];
    for (uint32_t i = 0; i < b->nout; i++) out[i] = b->out[i] == INV_NONE ? INV_NONE : x->map[b->out[i]];
    inv_id id = inv_graph_node(x->g, b->domain, b->op_type, name, b->nin, in, b->nout, out, nattr, attr);
    /* The body has its own operator sets. */
    if (id != INV_NONE) {
        bool refers = false;
        for (uint32_t i = 0; i < b->nattr; i++) refers = refers || b->attr[i].ref;
        inv_nod(x->g, id)->op = b->op;
        inv_nod(x->g, id)->source = x->open && refers ? INV_NONE : b->source;
    }
    return push_node(x, id, order);
}

inv_status inv_expand(inv_expansion *x, inv_ids *order)
{
    for (inv_id i = 0; i < x->body->value.n; i++) {
        const inv_value *v = inv_val(x->body, i);
        if (v->role == INV_ROLE_PARAM && x->map[i] == INV_NONE)
            x->map[i] = inv_graph_stands(x->g, inv_graph_param(x->g, v));
        if (v->def == INV_NONE || x->map[i] != INV_NONE) continue;
        x->map[i] = local_value(x, inv_val(x->body, i));
        if (x->map[i] == INV_NONE) return x->g->failed;
    }
    for (size_t i = 0; i < x->body->order.n; i++) INV_TRY(copy_body_node(x, i, order));
    return INV_OK;
}

const char *inv_expand_label(const inv_graph *g, const inv_node *n)
{
    for (uint32_t i = 0; i < n->nout && !*n->name; i++)
        if (n->out[i] != INV_NONE) return inv_val(g, n->out[i])->name;
    return n->name;
}

/* --- one call --- */

static inv_status check_call_arity(const inv_expansion *x)
{
    const inv_node *n = inv_nod(x->g, x->node);
    if (n->nin > x->body->inputs.n || n->nout > x->body->outputs.n)
        return inv_fail(x->g->ctx, INV_E_GRAPH,
                        "node '%s' calls function %s with %u inputs and %u outputs, but it has %zu and %zu", x->label,
                        x->tag, n->nin, n->nout, x->body->inputs.n, x->body->outputs.n);
    return INV_OK;
}

/* What references in the body refer to: the call's attributes, and the defaults of those that it does not have. */
static inv_status call_args(inv_expansion *x, const inv_function *f)
{
    const inv_node *n = inv_nod(x->g, x->node);
    inv_attr *arg = INV_ARENA_NEW(x->scratch, inv_attr, n->nattr + f->ndefaults + 1);
    if (!arg) return INV_E_NOMEM;
    if (n->nattr) memcpy(arg, n->attr, n->nattr * sizeof *arg);
    if (f->ndefaults) memcpy(arg + n->nattr, f->defaults, f->ndefaults * sizeof *arg);
    x->arg = arg; /* the first of a name counts */
    x->narg = n->nattr + f->ndefaults;
    return INV_OK;
}

/* Formal inputs are the call's; results that the call asks for keep the call's names; the rest is new. */
static inv_status map_ends(inv_expansion *x)
{
    const inv_graph *body = x->body;
    x->map = INV_ARENA_NEW(x->scratch, inv_id, body->value.n + 1);
    if (!x->map) return INV_E_NOMEM;
    for (size_t i = 0; i < body->value.n; i++) x->map[i] = INV_NONE;
    const inv_node *n = inv_nod(x->g, x->node);
    for (uint32_t i = 0; i < n->nin; i++) x->map[body->inputs.at[i]] = n->in[i];
    for (uint32_t i = 0; i < n->nout; i++) {
        if (n->out[i] == INV_NONE) continue;
        inv_val(x->g, n->out[i])->def = INV_NONE; /* the body defines it now */
        inv_id inner = body->outputs.at[i];
        if (inv_val(body, inner)->def != INV_NONE && x->map[inner] == INV_NONE) x->map[inner] = n->out[i];
    }
    return INV_OK;
}

/* Results that are a formal input, or the same as another result, need a node of their own. */
static inv_status copy_results(inv_expansion *x, inv_ids *order)
{
    const inv_graph *body = x->body;
    for (uint32_t i = 0; i < inv_nod(x->g, x->node)->nout; i++) {
        inv_id out = inv_nod(x->g, x->node)->out[i], from = x->map[body->outputs.at[i]];
        if (out == INV_NONE || from == out) continue;
        if (from == INV_NONE)
            return inv_fail(x->g->ctx, INV_E_GRAPH,
                            "node '%s' calls function %s without its input '%s', which it returns", x->label, x->tag,
                            inv_val(body, body->outputs.at[i])->name);
        const char *name = inv_arena_printf(x->scratch, "%s/result_%u", x->label, i);
        if (!name) return INV_E_NOMEM;
        INV_TRY(push_node(x, inv_graph_node(x->g, "", "Identity", name, 1, &from, 1, &out, 0, NULL), order));
    }
    return INV_OK;
}

static inv_status expand_call(inv_graph *g, inv_arena *scratch, inv_id node, const inv_function *f, inv_ids *order)
{
    inv_expansion x = {.g = g, .body = f->body, .scratch = scratch, .node = node};
    x.label = inv_expand_label(g, inv_nod(g, node));
    x.tag = inv_arena_printf(&g->arena, "%s::%s", f->domain, f->name);
    x.block = f->block;
    x.open = f->open;
    if (!x.tag) return INV_E_NOMEM;
    INV_TRY(check_call_arity(&x));
    INV_TRY(call_args(&x, f));
    INV_TRY(map_ends(&x));
    INV_TRY(inv_expand(&x, order));
    return copy_results(&x, order);
}

/* One sweep over `list`, which is replaced if there is a call in it; *again: there was. */
static inv_status sweep_calls(inv_graph *g, const inv_callees *c, inv_arena *scratch, inv_ids *list, bool blocks_only,
                              bool *again)
{
    inv_ids order = {0};
    *again = false;
    for (size_t i = 0; i < list->n; i++) {
        inv_id n = list->at[i], f = inv_callee(c, inv_nod(g, n));
        bool open = f != INV_NONE && (!blocks_only || g->function.at[f].block || g->function.at[f].open);
        *again = *again || open;
        if (open) INV_TRY(expand_call(g, scratch, n, &g->function.at[f], &order));
        else if (!inv_vec_push(scratch, &order, n)) return INV_E_NOMEM;
    }
    if (*again) *list = order;
    return INV_OK;
}

inv_status inv_inline_calls(inv_graph *g, inv_arena *scratch, inv_ids *list, bool blocks_only)
{
    inv_callees c;
    if (!g->function.n) return INV_OK;
    INV_TRY(inv_callees_init(&c, g, scratch));
    INV_TRY(check_calls(&c, list, scratch));
    for (bool again = true; again;) INV_TRY(sweep_calls(g, &c, scratch, list, blocks_only, &again));
    return INV_OK;
}

/* Blocks are called from the graph and from each other only, functions that are opened up from there and from such
 * ones: nobody needs them any more; there may be many, and every copy of the graph would hold them. */
static void drop_blocks(inv_graph *g)
{
    size_t n = 0;
    for (size_t i = 0; i < g->node.n; i++)
        for (uint32_t k = 0; k < g->node.at[i].nattr; k++)
            if (g->node.at[i].attr[k].kind == INV_ATTR_GRAPH) return; /* a body may call one all the same */
    for (size_t i = 0; i < g->function.n; i++) {
        if (g->function.at[i].block || g->function.at[i].open) inv_graph_destroy(g->function.at[i].body);
        else g->function.at[n++] = g->function.at[i];
    }
    g->function.n = n;
}

/* Functions of plugins that the model calls and does not have. */
static inv_status adopt(inv_graph *g)
{
    const inv_model *m;
    for (size_t i = 0; g->ctx->registry && (m = inv_registry_model_at(g->ctx->registry, i)); i++) {
        for (size_t k = 0; k < m->graph->function.n; k++) {
            inv_function f = m->graph->function.at[k];
            bool called = false, own = false;
            for (size_t j = 0; j < g->order.n && !called; j++) {
                const inv_node *n = inv_nod(g, g->order.at[j]);
                called = !n->op && strcmp(n->op_type, f.name) == 0 && strcmp(n->domain, f.domain) == 0;
            }
            for (size_t j = 0; j < g->function.n && !own; j++)
                own = strcmp(g->function.at[j].name, f.name) == 0 && strcmp(g->function.at[j].domain, f.domain) == 0;
            if (!called || own) continue;
            INV_TRY(inv_graph_copy(f.body, &f.body));
            if (!inv_vec_push(&g->arena, &g->function, f)) {
                inv_graph_destroy(f.body);
                return INV_E_NOMEM;
            }
        }
    }
    return INV_OK;
}

static size_t slot_of_name(const char *const *taken, size_t cap, const char *name)
{
    size_t at = (size_t)inv_hash(name, strlen(name), 0) & (cap - 1);
    while (taken[at] && strcmp(taken[at], name) != 0) at = (at + 1) & (cap - 1);
    return at;
}

/* In a file no two nodes may have one name, which "CALL/NODE" can be of a node outside of that call. */
static inv_status name_apart(inv_graph *g, inv_arena *scratch, const inv_ids *list)
{
    size_t cap = 64;
    while (cap < 2 * (list->n + 1)) cap *= 2;
    const char **taken = INV_ARENA_NEW(scratch, const char *, cap);
    if (!taken) return INV_E_NOMEM;
    for (int opened = 0; opened < 2; opened++) { /* those of the file come first, and keep theirs */
        for (size_t i = 0; i < list->n; i++) {
            inv_node *n = inv_nod(g, list->at[i]);
            if ((n->norigin > 0) != opened || !*n->name) continue;
            const char *stem = n->name;
            size_t at = slot_of_name(taken, cap, n->name);
            for (size_t k = 1; opened && taken[at]; k++) {
                n->name = inv_arena_printf(&g->arena, "%s.%zu", stem, k);
                if (!n->name) return INV_E_NOMEM;
                at = slot_of_name(taken, cap, n->name);
            }
            taken[at] = n->name;
        }
    }
    return INV_OK;
}

static inv_status put_bodies(inv_graph *g, bool blocks_only)
{
    inv_arena scratch;
    inv_ids list = g->order;
    inv_arena_init(&scratch, g->ctx);
    inv_status s = inv_inline_calls(g, &scratch, &list, blocks_only);
    if (s == INV_OK && blocks_only) s = name_apart(g, &scratch, &list);
    if (list.at != g->order.at) {
        g->order.n = 0;
        for (size_t i = 0; i < list.n && s == INV_OK; i++)
            if (!inv_vec_push(&g->arena, &g->order, list.at[i])) s = INV_E_NOMEM;
    }
    inv_arena_fini(&scratch);
    return s;
}

inv_status inv_inline_open(inv_graph *g) { return put_bodies(g, true); }

inv_status inv_pass_inline(inv_graph *g, bool blocks_only)
{
    if (!blocks_only) INV_TRY(adopt(g));
    INV_TRY(put_bodies(g, blocks_only));
    drop_blocks(g);
    return INV_OK;
}
