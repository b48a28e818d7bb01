/* SPDX-License-Identifier: Apache-2.0
 * Expands calls of model-local functions.
 *
 * requires  a sorted graph as imported; g->function with bodies
 * gives     no call of a model-local function is left in the order. The nodes of a body are named "CALL/NODE" and
 *           have as origins that name and, outermost first, the functions "DOMAIN::NAME" they come from
 * breaks    nothing: values keep their names; those inside a body are named "CALL/VALUE"
 *
 * Sweeps over the order until nothing is left to expand; nothing recurses. Before the first sweep the calls between
 * functions are followed once: a cycle is refused by its chain, and so is a model that would grow without measure. */
#include <string.h>

#include "core/op.h"
#include "passes/pass.h"

enum { MAX_NODES = 4000000 };

static inv_id function_of(const inv_graph *g, const inv_node *n)
{
    for (size_t i = 0; i < g->function.n; i++)
        if (!strcmp(g->function.at[i].name, n->op_type) && !strcmp(g->function.at[i].domain, n->domain))
            return (inv_id)i;
    return INV_NONE;
}

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
    inv__str_init(&chain, g->ctx);
    for (size_t i = from; i < depth; i++) inv__str_add(&chain, "'%s' calls ", g->function.at[stack[i].function].name);
    inv_status s = inv__fail(g->ctx, INV_E_GRAPH, "a model-local function calls itself: %s'%s'", chain.s,
                             g->function.at[again].name);
    inv__str_fini(&chain);
    return s;
}

/* Nodes of each function when all is expanded; 0: not known yet. */
static inv_status measure(const inv_graph *g, inv_arena *scratch, inv_id root, double *size)
{
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
        inv_id callee = function_of(g, inv_nod(body, body->order.at[v->next]));
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

static inv_status check_calls(const inv_graph *g, inv_arena *scratch)
{
    double *size = INV_ARENA_NEW(scratch, double, g->function.n + 1), total = 0;
    if (!size) return INV_E_NOMEM;
    for (size_t i = 0; i < g->order.n; i++) {
        inv_id f = function_of(g, inv_nod(g, g->order.at[i]));
        if (f != INV_NONE && size[f] == 0) INV_TRY(measure(g, scratch, f, size));
        total += f == INV_NONE ? 1 : size[f];
    }
    if (total > MAX_NODES)
        return inv__fail(g->ctx, INV_E_GRAPH, "the model's functions expand to %.0f nodes; at most %d are supported",
                         total, MAX_NODES);
    return INV_OK;
}

/* --- names in use --- */

typedef struct names {
    const char **slot;
    size_t cap, n;
} names;

/* Where the name is or would be. */
static const char **names_slot(const names *t, const char *name)
{
    size_t i = (size_t)inv__hash(name, strlen(name), 0) & (t->cap - 1);
    while (t->slot[i] && strcmp(t->slot[i], name) != 0) i = (i + 1) & (t->cap - 1);
    return &t->slot[i];
}

static bool names_add(inv_arena *a, names *t, const char *name)
{
    if (2 * (t->n + 1) > t->cap) {
        names old = *t;
        t->cap = old.cap ? 2 * old.cap : 256;
        t->slot = INV_ARENA_NEW(a, const char *, t->cap);
        if (!t->slot) return false;
        for (size_t i = 0; i < old.cap; i++)
            if (old.slot[i]) *names_slot(t, old.slot[i]) = old.slot[i];
    }
    const char **slot = names_slot(t, name);
    if (!*slot) t->n++;
    *slot = name;
    return true;
}

/* --- one call --- */

typedef struct call {
    inv_graph *g;
    names *names; /* of all values of g */
    const inv_function *f;
    inv_arena *scratch;
    inv_id node;       /* the call; not a pointer: g->node moves */
    const char *label; /* its name, or what stands for it */
    inv_id *map;       /* value of the body -> value of g */
    const char *tag;
} call;

static inv_status call_label(call *c)
{
    const inv_node *n = inv_nod(c->g, c->node);
    c->label = n->name;
    for (uint32_t i = 0; i < n->nout && !*c->label; i++)
        if (n->out[i] != INV_NONE) c->label = inv_val(c->g, n->out[i])->name;
    c->tag = inv__arena_printf(&c->g->arena, "%s::%s", c->f->domain, c->f->name);
    return c->tag ? INV_OK : INV_E_NOMEM;
}

static inv_status check_arity(const call *c)
{
    const inv_node *n = inv_nod(c->g, c->node);
    const inv_graph *body = c->f->body;
    if (n->nin > body->inputs.n || n->nout > body->outputs.n)
        return inv__fail(c->g->ctx, INV_E_GRAPH,
                         "node '%s' calls function %s with %u inputs and %u outputs, but it has %zu and %zu", c->label,
                         c->tag, n->nin, n->nout, body->inputs.n, body->outputs.n);
    return INV_OK;
}

static inv_id local_value(call *c, const inv_value *v)
{
    const char *name = inv__arena_printf(c->scratch, "%s/%s", c->label, v->name);
    if (!name) {
        c->g->failed = INV_E_NOMEM;
        return INV_NONE;
    }
    /* Two calls may have one name; and a file may use any name for anything. */
    if (c->names->cap && *names_slot(c->names, name)) name = inv_graph_fresh(c->g, name);
    inv_shape unknown = inv_shape_unknown();
    inv_id id = name ? inv_graph_value(c->g, name, INV_ROLE_NODE, INV_DT_NONE, &unknown) : INV_NONE;
    if (id == INV_NONE || names_add(c->scratch, c->names, inv_val(c->g, id)->name)) return id;
    c->g->failed = INV_E_NOMEM;
    return INV_NONE;
}

/* Formal inputs are the call's; results that the call asks for keep the call's names; the rest is new. */
static inv_status map_values(call *c)
{
    const inv_graph *body = c->f->body;
    c->map = INV_ARENA_NEW(c->scratch, inv_id, body->value.n + 1);
    if (!c->map) return INV_E_NOMEM;
    for (size_t i = 0; i < body->value.n; i++) c->map[i] = INV_NONE;
    const inv_node *n = inv_nod(c->g, c->node);
    for (uint32_t i = 0; i < n->nin; i++) c->map[body->inputs.at[i]] = n->in[i];
    for (uint32_t i = 0; i < n->nout; i++) {
        if (n->out[i] == INV_NONE) continue;
        inv_val(c->g, n->out[i])->def = INV_NONE; /* the body defines it now */
        inv_id inner = body->outputs.at[i];
        if (inv_val(body, inner)->def != INV_NONE && c->map[inner] == INV_NONE) c->map[inner] = n->out[i];
    }
    for (inv_id i = 0; i < body->value.n; i++) {
        if (inv_val(body, i)->def == INV_NONE || c->map[i] != INV_NONE) continue;
        c->map[i] = local_value(c, inv_val(body, i));
        if (c->map[i] == INV_NONE) return c->g->failed;
    }
    return INV_OK;
}

/* The value of a reference: the call's attribute, else the default; NULL: left out. */
static const inv_attr *resolve(const call *c, const char *ref)
{
    const inv_attr *a = inv_attr_find(inv_nod(c->g, c->node), ref);
    for (uint32_t i = 0; !a && i < c->f->ndefaults; i++)
        if (!strcmp(c->f->defaults[i].name, ref)) a = &c->f->defaults[i];
    return a;
}

static inv_attr *body_attrs(call *c, const inv_node *b, uint32_t *n)
{
    inv_attr *attr = INV_ARENA_NEW(c->scratch, inv_attr, b->nattr + 1);
    *n = 0;
    for (uint32_t i = 0; attr && i < b->nattr; i++) {
        const inv_attr *a = b->attr[i].ref ? resolve(c, b->attr[i].ref) : &b->attr[i];
        if (!a) continue;
        attr[*n] = *a;
        attr[(*n)++].name = b->attr[i].name;
    }
    return attr;
}

static inv_status set_origin(call *c, inv_node *n)
{
    const inv_node *from = inv_nod(c->g, c->node);
    uint32_t outer = from->norigin > 1 ? from->norigin - 1 : 0; /* origin 0 is the call's own name */
    const char **origin = INV_ARENA_NEW(&c->g->arena, const char *, outer + 2);
    if (!origin) return INV_E_NOMEM;
    origin[0] = n->name;
    for (uint32_t i = 0; i < outer; i++) origin[1 + i] = from->origin[1 + i];
    origin[1 + outer] = c->tag;
    n->origin = origin;
    n->norigin = outer + 2;
    return INV_OK;
}

static inv_status push_node(call *c, inv_id id, inv_ids *order)
{
    if (id == INV_NONE) return c->g->failed;
    inv_nod(c->g, id)->phase = inv_nod(c->g, c->node)->phase;
    INV_TRY(set_origin(c, inv_nod(c->g, id)));
    return inv_vec_push(c->scratch, order, id) ? INV_OK : INV_E_NOMEM;
}

static inv_status copy_node(call *c, size_t at, inv_ids *order)
{
    const inv_node *b = inv_nod(c->f->body, c->f->body->order.at[at]);
    inv_id *in = INV_ARENA_NEW(c->scratch, inv_id, b->nin + 1), *out = INV_ARENA_NEW(c->scratch, inv_id, b->nout + 1);
    uint32_t nattr;
    inv_attr *attr = body_attrs(c, b, &nattr);
    const char *name = *b->name ? inv__arena_printf(c->scratch, "%s/%s", c->label, b->name)
                                : inv__arena_printf(c->scratch, "%s/%s_%zu", c->label, b->op_type, at);
    if (!in || !out || !attr || !name) return INV_E_NOMEM;
    for (uint32_t i = 0; i < b->nin; i++) in[i] = b->in[i] == INV_NONE ? INV_NONE : c->map[b->in[i]];
    for (uint32_t i = 0; i < b->nout; i++) out[i] = b->out[i] == INV_NONE ? INV_NONE : c->map[b->out[i]];
    inv_id id = inv_graph_node(c->g, b->domain, b->op_type, name, b->nin, in, b->nout, out, nattr, attr);
    /* The body has its own operator sets. */
    if (id != INV_NONE) inv_nod(c->g, id)->op = b->op;
    return push_node(c, id, order);
}

/* Results that are a formal input, or the same as another result, need a node of their own. */
static inv_status copy_results(call *c, inv_ids *order)
{
    const inv_graph *body = c->f->body;
    for (uint32_t i = 0; i < inv_nod(c->g, c->node)->nout; i++) {
        inv_id out = inv_nod(c->g, c->node)->out[i], from = c->map[body->outputs.at[i]];
        if (out == INV_NONE || from == out) continue;
        if (from == INV_NONE)
            return inv__fail(c->g->ctx, INV_E_GRAPH,
                             "node '%s' calls function %s without its input '%s', which it returns", c->label,
                             c->tag, inv_val(body, body->outputs.at[i])->name);
        const char *name = inv__arena_printf(c->scratch, "%s/result_%u", c->label, i);
        if (!name) return INV_E_NOMEM;
        INV_TRY(push_node(c, inv_graph_node(c->g, "", "Identity", name, 1, &from, 1, &out, 0, NULL), order));
    }
    return INV_OK;
}

static inv_status expand(call *c, inv_ids *order)
{
    INV_TRY(call_label(c));
    INV_TRY(check_arity(c));
    INV_TRY(map_values(c));
    for (size_t i = 0; i < c->f->body->order.n; i++) INV_TRY(copy_node(c, i, order));
    return copy_results(c, order);
}

static inv_status sweep(inv_graph *g, bool *again)
{
    inv_arena scratch;
    inv_ids order = {0};
    names used = {0};
    inv_status s = INV_OK;
    inv__arena_init(&scratch, g->ctx);
    *again = false;
    for (size_t i = 0; i < g->value.n && s == INV_OK; i++)
        if (!names_add(&scratch, &used, inv_val(g, (inv_id)i)->name)) s = INV_E_NOMEM;
    for (size_t i = 0; i < g->order.n && s == INV_OK; i++) {
        inv_id n = g->order.at[i], f = function_of(g, inv_nod(g, n));
        if (f == INV_NONE) {
            s = inv_vec_push(&scratch, &order, n) ? INV_OK : INV_E_NOMEM;
            continue;
        }
        call c = {.g = g, .names = &used, .f = &g->function.at[f], .scratch = &scratch, .node = n};
        s = expand(&c, &order);
        *again = true;
    }
    g->order.n = 0;
    for (size_t i = 0; i < order.n && s == INV_OK; i++)
        if (!inv_vec_push(&g->arena, &g->order, order.at[i])) s = INV_E_NOMEM;
    inv__arena_fini(&scratch);
    return s;
}

inv_status inv_pass_inline(inv_graph *g)
{
    inv_arena scratch;
    if (!g->function.n) return INV_OK;
    inv__arena_init(&scratch, g->ctx);
    inv_status s = check_calls(g, &scratch);
    inv__arena_fini(&scratch);
    for (bool again = true; again && s == INV_OK;) s = sweep(g, &again);
    return s;
}
