/* SPDX-License-Identifier: Apache-2.0
 * Rules from pairs of local functions, NAME and NAME_inverse, of an ONNX file. The file's graph is an example: it
 * calls NAME once. What it gives there as initializers are parameters of the pattern, and its shapes serve the
 * lowering. A call of NAME_inverse is put behind that of NAME, both are lowered as every model is, and what stands
 * there then is written down as an ordinary rule: match what NAME became, solve what its inverse added to it. */
#include <stdio.h>
#include <string.h>

#include "core/graph/node.h"
#include "core/rules/plugin.h"
#include "importer/model_file.h"
#include "passes/front/front.h"
#include "passes/function_pair.h"
#include "passes/match/pattern.h"

static inv_status refuse_pair(const inv_pair *p, const char *why, const char *name)
{
    return inv_fail(p->ctx, INV_E_NOT_INVERTIBLE, "pair '%s': %s%s%s", p->f->name, why, *name ? ", " : "", name);
}

static const inv_function *partner(const inv_graph *g, const inv_function *f)
{
    size_t n = strlen(f->name);
    for (size_t i = 0; i < g->function.n; i++) {
        const inv_function *o = &g->function.at[i];
        if (strcmp(o->domain, f->domain) == 0 && strncmp(o->name, f->name, n) == 0 &&
            strcmp(o->name + n, "_inverse") == 0)
            return o;
    }
    return NULL;
}

static int formal_named(const inv_graph *body, const inv_ids *list, const char *name)
{
    for (size_t i = 0; i < list->n; i++)
        if (strcmp(inv_val(body, list->at[i])->name, name) == 0) return (int)i;
    return -1;
}

/* --- the example with both calls --- */

static bool refers_to(const inv_graph *body, const char *name)
{
    for (size_t i = 0; i < body->node.n; i++)
        for (uint32_t k = 0; k < body->node.at[i].nattr; k++) {
            const char *ref = body->node.at[i].attr[k].ref;
            if (ref && strcmp(ref, name) == 0) return true;
        }
    return false;
}

static bool has_attr(const inv_attr *list, uint32_t n, const char *name)
{
    for (uint32_t i = 0; i < n; i++)
        if (strcmp(list[i].name, name) == 0) return true;
    return false;
}

/* What the inverse is called with: all that the body of NAME refers to has the same value there. */
static inv_status inverse_attrs(inv_pair *p, const inv_node *call, inv_attr **attr, uint32_t *n)
{
    const inv_function *f = p->f, *back = p->inverse;
    *attr = INV_ARENA_NEW(&p->g->arena, inv_attr, call->nattr + f->ndefaults + 1);
    if (!*attr) return INV_E_NOMEM;
    for (*n = 0; *n < call->nattr; ++*n) (*attr)[*n] = call->attr[*n];
    for (uint32_t i = 0; i < f->ndefaults; i++)
        if (!has_attr(call->attr, call->nattr, f->defaults[i].name)) (*attr)[(*n)++] = f->defaults[i];
    for (uint32_t i = 0; i < back->ndefaults; i++) {
        const char *name = back->defaults[i].name;
        if (refers_to(f->body, name) && !has_attr(*attr, *n, name))
            return refuse_pair(p, "an attribute that the example leaves out has a default in the inverse only", name);
    }
    return INV_OK;
}

static inv_status add_inverse_call(inv_pair *p, inv_id call)
{
    inv_graph *g = p->g;
    const inv_graph *body = p->f->body, *back = p->inverse->body;
    const inv_node n = *inv_nod(g, call);
    inv_shape unknown = inv_shape_unknown();
    inv_id *in = INV_ARENA_NEW(&p->a, inv_id, back->inputs.n + 1);
    p->nformal = n.nin;
    p->nresult = n.nout;
    p->nfreed = (uint32_t)back->outputs.n;
    p->formal = INV_ARENA_NEW(&p->a, inv_id, n.nin + 1);
    p->result = INV_ARENA_NEW(&p->a, inv_id, n.nout + 1);
    p->freed = INV_ARENA_NEW(&p->a, inv_id, p->nfreed + 1);
    p->freed_name = INV_ARENA_NEW(&p->a, const char *, p->nfreed + 1);
    if (!in || !p->formal || !p->result || !p->freed || !p->freed_name) return INV_E_NOMEM;
    if (n.nin) memcpy(p->formal, n.in, n.nin * sizeof *n.in);
    if (n.nout) memcpy(p->result, n.out, n.nout * sizeof *n.out);
    for (size_t i = 0; i < back->inputs.n; i++) {
        const char *name = inv_val(back, back->inputs.at[i])->name;
        int o = formal_named(body, &body->outputs, name), k = formal_named(body, &body->inputs, name);
        in[i] = o >= 0 && (uint32_t)o < n.nout ? n.out[o] : o < 0 && k >= 0 && (uint32_t)k < n.nin ? n.in[k] : INV_NONE;
        if (in[i] == INV_NONE)
            return refuse_pair(p, "the inverse takes a value that is neither output nor input of the function", name);
    }
    for (uint32_t i = 0; i < p->nfreed; i++) {
        p->freed_name[i] = inv_val(back, back->outputs.at[i])->name;
        if (formal_named(body, &body->inputs, p->freed_name[i]) < 0)
            return refuse_pair(p, "the inverse gives a value that is not an input of the function", p->freed_name[i]);
        const char *fresh = inv_graph_fresh(g, "freed");
        p->freed[i] = fresh ? inv_graph_value(g, fresh, INV_ROLE_NODE, INV_DT_NONE, &unknown) : INV_NONE;
        if (p->freed[i] == INV_NONE || !inv_vec_push(&g->arena, &g->outputs, p->freed[i])) return INV_E_NOMEM;
        inv_val(g, p->freed[i])->is_output = true;
    }
    for (uint32_t i = 0; i < n.nout; i++) { /* all of NAME's outputs stay */
        if (n.out[i] == INV_NONE || inv_val(g, n.out[i])->is_output) continue;
        if (!inv_vec_push(&g->arena, &g->outputs, n.out[i])) return INV_E_NOMEM;
        inv_val(g, n.out[i])->is_output = true;
    }
    inv_attr *attr;
    uint32_t nattr;
    INV_TRY(inverse_attrs(p, &n, &attr, &nattr));
    inv_id id = inv_graph_node(g, p->inverse->domain, p->inverse->name, "inverse", (uint32_t)back->inputs.n, in,
                               p->nfreed, p->freed, nattr, attr);
    return id != INV_NONE && inv_vec_push(&g->arena, &g->order, id) ? INV_OK : INV_E_NOMEM;
}

static void settle(const inv_graph *g, inv_id *list, uint32_t n)
{
    for (uint32_t k = 0; k < n; k++)
        if (list[k] != INV_NONE) list[k] = inv_graph_stands(g, list[k]);
}

static inv_status lower_example(inv_pair *p)
{
    inv_id call = INV_NONE;
    for (size_t i = 0; i < p->g->order.n && call == INV_NONE; i++) {
        const inv_node *n = inv_nod(p->g, p->g->order.at[i]);
        if (strcmp(n->op_type, p->f->name) == 0 && strcmp(n->domain, p->f->domain) == 0) call = p->g->order.at[i];
    }
    if (call == INV_NONE)
        return refuse_pair(p, "the graph of the file does not call it, so its shapes are not known", "");
    INV_TRY(add_inverse_call(p, call));
    const inv_session_options o = {.size = sizeof o};
    const inv_request rq = {.options = &o, .purpose = INV_FOR_RUN};
    inv_plan plan = {0};
    p->g->real = INV_F32;
    INV_TRY(inv_compile_front(p->g, &rq, &plan));
    settle(p->g, p->formal, p->nformal);
    settle(p->g, p->result, p->nresult);
    settle(p->g, p->freed, p->nfreed);
    return INV_OK;
}

/* --- which nodes are whose --- */

/* The nodes that lead to `to`, back to what NAME computes or takes, in order; `all`: also those of parameters only. */
static inv_status collect_pairs(inv_pair *p, uint32_t n, const inv_id *to, bool all, inv_ids *out)
{
    const bool *stop = p->forward;
    inv_graph *g = p->g;
    bool *need = INV_ARENA_NEW(&p->a, bool, g->value.n + 1), *taken = INV_ARENA_NEW(&p->a, bool, g->node.n + 1);
    if (!need || !taken) return INV_E_NOMEM;
    for (uint32_t k = 0; k < n; k++)
        if (to[k] != INV_NONE && !stop[to[k]]) need[to[k]] = true;
    for (size_t i = g->order.n; i-- > 0;) {
        const inv_node *x = inv_nod(g, g->order.at[i]);
        bool wanted = false;
        for (uint32_t k = 0; k < x->nout; k++) wanted = wanted || (x->out[k] != INV_NONE && need[x->out[k]]);
        if (!wanted) continue;
        taken[g->order.at[i]] = true;
        for (uint32_t k = 0; k < x->nin; k++)
            if (x->in[k] != INV_NONE && !stop[x->in[k]] && (all || p->active[x->in[k]])) need[x->in[k]] = true;
    }
    for (size_t i = 0; i < g->order.n; i++)
        if (taken[g->order.at[i]] && !inv_vec_push(&p->a, out, g->order.at[i])) return INV_E_NOMEM;
    return INV_OK;
}

static inv_status split_parts(inv_pair *p)
{
    inv_graph *g = p->g;
    p->active = INV_ARENA_NEW(&p->a, bool, g->value.n + 1);
    p->forward = INV_ARENA_NEW(&p->a, bool, g->value.n + 1);
    if (!p->active || !p->forward) return INV_E_NOMEM;
    for (size_t i = 0; i < g->order.n; i++) {
        const inv_node *x = inv_nod(g, g->order.at[i]);
        bool on = x->op->flags & INV_OP_SOURCE;
        for (uint32_t k = 0; k < x->nin; k++) on = on || (x->in[k] != INV_NONE && p->active[x->in[k]]);
        for (uint32_t k = 0; k < x->nout; k++)
            if (x->out[k] != INV_NONE) p->active[x->out[k]] = on;
    }
    for (uint32_t k = 0; k < p->nformal; k++)
        if (p->formal[k] != INV_NONE && p->active[p->formal[k]]) p->forward[p->formal[k]] = true;
    INV_TRY(collect_pairs(p, p->nresult, p->result, false, &p->match));
    for (size_t i = 0; i < p->match.n; i++) {
        const inv_node *x = inv_nod(g, p->match.at[i]);
        for (uint32_t k = 0; k < x->nout; k++)
            if (x->out[k] != INV_NONE) p->forward[x->out[k]] = true;
        for (uint32_t k = 0; k < x->nin; k++)
            if (x->in[k] != INV_NONE) p->forward[x->in[k]] = true;
    }
    return collect_pairs(p, p->nfreed, p->freed, true, &p->solve);
}

/* --- texts --- */

static void add_name(const inv_pair *p, inv_str *s, inv_id v, inv_id freed)
{
    inv_str_add(s, p->active[v] || v == freed ? "v%u" : "param(v%u)", (unsigned)v);
}

static void add_pattern_operator(inv_str *s, const inv_node *n)
{
    bool own = strcmp(n->op->domain, "ai.invonnx.ir") == 0;
    inv_str_add(s, "%s%s%s", own ? "" : n->op->domain, own || !*n->op->domain ? "" : ".", n->op->name);
}

static bool is_number(const inv_pair *p, inv_id v, double *number)
{
    return inv_val(p->g, v)->role == INV_ROLE_CONST && inv_value_uniform(p->g, v, number);
}

static void add_real(inv_str *s, double v)
{
    char text[INV_DOUBLE_TEXT];
    inv_double_text(v, text);
    inv_str_add(s, "%s%s", text, strpbrk(text, ".en") ? "" : ".0");
}

/* Among operands; `typed`: in a graph, which has no bare numbers. */
static void add_number(inv_str *s, double v, bool typed)
{
    inv_str_add(s, typed ? "float[] {" : "");
    add_real(s, v);
    inv_str_add(s, typed ? "}" : "");
}

/* Extents are those of the example and change with the model. */
static bool is_extent(const char *name) { return strcmp(name, "sizes") == 0 || strcmp(name, "shape") == 0; }

/* Attributes of a matched node as conditions: numbers, lists of one number, and that there are no others. */
static inv_status add_conditions(const inv_pair *p, inv_str *s, const inv_node *n)
{
    double number;
    inv_str_add(s, "%sattr_count(v%u) == %u", s->n ? "; " : "", (unsigned)n->out[0], (unsigned)n->nattr);
    for (uint32_t k = 0; k < n->nin; k++) {
        if (n->in[k] == INV_NONE || !is_number(p, n->in[k], &number)) continue;
        inv_str_add(s, "; number(v%u) == ", (unsigned)n->in[k]);
        add_real(s, number);
    }
    for (uint32_t i = 0; i < n->nattr; i++) {
        const inv_attr *a = &n->attr[i];
        bool same = a->kind == INV_ATTR_INTS && a->n > 0;
        for (size_t k = 1; same && k < a->n; k++) same = a->ints[k] == a->ints[0];
        if (is_extent(a->name)) continue;
        if (a->kind != INV_ATTR_INT && a->kind != INV_ATTR_FLOAT && !same)
            return refuse_pair(p, "an attribute that is no number cannot be compared", a->name);
        inv_str_add(s, "; attr(v%u.%s) == ", (unsigned)n->out[0], a->name);
        if (a->kind == INV_ATTR_FLOAT) add_real(s, a->f);
        else inv_str_add(s, "%lld", (long long)(same ? a->ints[0] : a->i));
    }
    return INV_OK;
}

static bool equal_ints(const inv_attr *a, const inv_attr *b)
{
    return a->kind == INV_ATTR_INTS && b->kind == INV_ATTR_INTS && a->n == b->n &&
           (a->n == 0 || memcmp(a->ints, b->ints, a->n * sizeof *a->ints) == 0);
}

/* Where the extents of a solving node come from: a matched node that has the same, or the shape of a value. */
static bool extent_source(const inv_pair *p, const inv_attr *a, inv_str *s)
{
    const inv_graph *g = p->g;
    for (size_t i = 0; i < p->match.n; i++) {
        const inv_node *n = inv_nod(g, p->match.at[i]);
        const inv_attr *b = inv_attr_find(n, a->name);
        if (!b || !equal_ints(a, b)) continue;
        inv_str_add(s, "v%u.%s", (unsigned)n->out[0], a->name);
        return true;
    }
    for (size_t v = 0; v < g->value.n && strcmp(a->name, "shape") == 0; v++) {
        const inv_shape *x = &inv_val(g, (inv_id)v)->shape;
        if (!p->forward[v] || x->rank != (int)a->n || memcmp(x->dim, a->ints, a->n * sizeof *a->ints) != 0) continue;
        inv_str_add(s, "shape(v%u)", (unsigned)v);
        return true;
    }
    return false;
}

static inv_status add_attributes(const inv_pair *p, inv_str *s, const inv_node *n, bool literal)
{
    for (uint32_t i = 0; i < n->nattr; i++) {
        const inv_attr *a = &n->attr[i];
        inv_str_add(s, "%s%s = ", i ? ", " : "<", a->name);
        if (a->kind == INV_ATTR_INT) {
            inv_str_add(s, "%lld", (long long)a->i);
        } else if (a->kind == INV_ATTR_FLOAT) {
            add_real(s, a->f);
        } else if (a->kind == INV_ATTR_INTS && (literal || !is_extent(a->name))) {
            for (size_t k = 0; k < a->n; k++) inv_str_add(s, "%s%lld", k ? ", " : "[", (long long)a->ints[k]);
            inv_str_add(s, "]");
        } else if (a->kind != INV_ATTR_INTS || !extent_source(p, a, s)) {
            return refuse_pair(p, "the inverse has an attribute whose value depends on the example", a->name);
        }
    }
    if (n->nattr) inv_str_add(s, ">");
    return INV_OK;
}

enum { IN_MATCH, IN_SOLVE, IN_CASE };

static inv_status add_statement(const inv_pair *p, inv_str *s, const inv_node *n, int where, inv_id result,
                                inv_id freed)
{
    const inv_graph *g = p->g;
    double number;
    if (s->n) inv_str_add(s, "; ");
    for (uint32_t k = 0; k < n->nout; k++) {
        if (n->out[k] == INV_NONE)
            return refuse_pair(p, "an operator in it has a result that is not used", n->op->name);
        inv_str_add(s, "%sv%u", k ? ", " : "", (unsigned)(n->out[k] == result ? freed : n->out[k]));
    }
    inv_str_add(s, " = ");
    add_pattern_operator(s, n);
    if (where != IN_MATCH) INV_TRY(add_attributes(p, s, n, where == IN_CASE));
    inv_str_add(s, "(");
    for (uint32_t k = 0; k < n->nin; k++) {
        if (n->in[k] == INV_NONE) return refuse_pair(p, "an operator in it leaves out an input", n->op->name);
        const bool one = is_number(p, n->in[k], &number);
        if (inv_val(g, n->in[k])->role == INV_ROLE_CONST && !one)
            return refuse_pair(p, "a constant of several numbers, which a rule cannot compare; make it an input",
                               n->op->name);
        if (k) inv_str_add(s, ", ");
        if (where == IN_MATCH) add_name(p, s, n->in[k], INV_NONE);
        else if (one) add_number(s, number, where == IN_CASE);
        else inv_str_add(s, "v%u", (unsigned)(n->in[k] == result ? freed : n->in[k]));
    }
    inv_str_add(s, ")");
    return INV_OK;
}

/* Matching goes from a node to those that read what it knows already: the first statement, then always one of these. */
static inv_status order_match(inv_pair *p)
{
    inv_ids ordered = {0};
    bool *known = INV_ARENA_NEW(&p->a, bool, p->g->value.n + 1), *done = INV_ARENA_NEW(&p->a, bool, p->match.n + 1);
    if (!known || !done) return INV_E_NOMEM;
    while (ordered.n < p->match.n) {
        size_t next = p->match.n;
        for (size_t i = 0; i < p->match.n && next == p->match.n; i++) {
            const inv_node *n = inv_nod(p->g, p->match.at[i]);
            bool reads = ordered.n == 0;
            for (uint32_t k = 0; k < n->nin && !reads; k++) reads = n->in[k] != INV_NONE && known[n->in[k]];
            if (!done[i] && reads) next = i;
        }
        if (next == p->match.n) return refuse_pair(p, "it is in several pieces that share no value", "");
        const inv_node *n = inv_nod(p->g, p->match.at[next]);
        done[next] = true;
        for (uint32_t k = 0; k < n->nin; k++)
            if (n->in[k] != INV_NONE) known[n->in[k]] = true;
        for (uint32_t k = 0; k < n->nout; k++)
            if (n->out[k] != INV_NONE) known[n->out[k]] = true;
        if (!inv_vec_push(&p->a, &ordered, p->match.at[next])) return INV_E_NOMEM;
    }
    p->match = ordered;
    return INV_OK;
}

static bool is_divisor(const inv_pair *p, inv_id v) { return v != INV_NONE && p->active[v] && p->divisor[v]; }

/* A model around the example's block: something before it wants what it takes, something behind it what it gives. */
static inv_status add_case(const inv_pair *p, inv_str *s)
{
    const inv_graph *g = p->g;
    char dims[INV_SHAPE_TEXT];
    double number;
    inv_str body;
    inv_str_add(s, "g(");
    for (size_t v = 0, n = 0; v < g->value.n; v++) {
        bool formal = false;
        for (uint32_t k = 0; k < p->nformal; k++) formal = formal || p->formal[k] == v;
        if (formal && p->active[v])
            inv_str_add(s, "%sfloat%s in%zu", n++ ? ", " : "", inv_shape_text(&inv_val(g, (inv_id)v)->shape, dims), v);
    }
    inv_str_add(s, ") => (z");
    for (uint32_t k = 0; k < p->nformal; k++) /* at hand, so that a plan may divide by it */
        if (is_divisor(p, p->formal[k])) inv_str_add(s, ", v%u", (unsigned)p->formal[k]);
    inv_str_add(s, ") { ");
    bool *declared = inv_alloc(g->ctx, g->value.n + 1);
    if (!declared) return INV_E_NOMEM;
    for (uint32_t k = 0; k < p->nformal; k++)
        if (p->formal[k] != INV_NONE && p->active[p->formal[k]])
            inv_str_add(s, "h%u = Tanh(in%u); v%u = %s(h%u); ", (unsigned)p->formal[k], (unsigned)p->formal[k],
                        (unsigned)p->formal[k], is_divisor(p, p->formal[k]) ? "Exp" : "LeakyRelu<alpha = 0.9>",
                        (unsigned)p->formal[k]);
    for (size_t i = 0; i < p->match.n; i++) {
        const inv_node *n = inv_nod(g, p->match.at[i]);
        for (uint32_t k = 0; k < n->nin; k++) {
            if (n->in[k] == INV_NONE || p->active[n->in[k]] || declared[n->in[k]] || is_number(p, n->in[k], &number))
                continue;
            declared[n->in[k]] = true;
            inv_str_add(s, "param float%s v%u; ", inv_shape_text(&inv_val(g, n->in[k])->shape, dims),
                        (unsigned)n->in[k]);
        }
    }
    inv_dealloc(g->ctx, declared);
    inv_str_init(&body, g->ctx);
    inv_status st = INV_OK;
    for (size_t i = 0; i < p->match.n && st == INV_OK; i++)
        st = add_statement(p, &body, inv_nod(g, p->match.at[i]), IN_CASE, INV_NONE, INV_NONE);
    inv_str_add(s, "%s", body.s);
    if (body.failed) st = INV_E_NOMEM;
    inv_str_fini(&body);
    for (uint32_t k = 0; k < p->nresult; k++) inv_str_add(s, "; s%u = Sin(v%u)", k, (unsigned)p->result[k]);
    for (uint32_t k = 0; k < p->nresult; k++) inv_str_add(s, "; l%u = ReduceSumSquare<keepdims = 0>(s%u)", k, k);
    inv_str_add(s, "; z = Sum(");
    for (uint32_t k = 0; k < p->nresult; k++) inv_str_add(s, "%sl%u", k ? ", " : "", k);
    inv_str_add(s, ") }");
    return st;
}

/* --- the rule --- */

/* As the library's own rules ask. */
static void add_divisors(const inv_pair *p, inv_str *s)
{
    for (size_t v = 0; v < p->g->value.n; v++)
        if (p->divisor[v]) inv_str_add(s, p->active[v] ? "; positive(v%zu)" : "; away_from_zero(v%zu, 1e-6)", v);
}

static inv_status add_rule(inv_pair *p, inv_registry *r, uint32_t which, uint32_t count)
{
    inv_str text[4];
    const inv_id result = p->freed[which];
    int k = formal_named(p->f->body, &p->f->body->inputs, p->freed_name[which]);
    const inv_id freed = p->formal[k];
    char frees[16];
    const char *gain = NULL;
    inv_status s = INV_OK;
    snprintf(frees, sizeof frees, "v%u", (unsigned)freed);
    const char *name = count ? inv_arena_printf(&p->a, "%s_%u", p->f->name, count) : p->f->name;
    for (int i = 0; i < 4; i++) inv_str_init(&text[i], p->ctx);
    for (size_t i = 0; i < p->match.n && s == INV_OK; i++) {
        s = add_statement(p, &text[0], inv_nod(p->g, p->match.at[i]), IN_MATCH, INV_NONE, INV_NONE);
        if (s == INV_OK) s = add_conditions(p, &text[2], inv_nod(p->g, p->match.at[i]));
    }
    add_divisors(p, &text[2]);
    for (size_t i = 0; i < p->solve.n && s == INV_OK; i++)
        s = add_statement(p, &text[1], inv_nod(p->g, p->solve.at[i]), IN_SOLVE, result, freed);
    if (s == INV_OK) s = inv_pair_gain(p, result, &gain);
    if (s == INV_OK) s = add_case(p, &text[3]);
    for (int i = 0; i < 4; i++)
        if (text[i].failed || !name) s = INV_E_NOMEM;
    if (s == INV_OK) {
        const char *const cases[] = {text[3].s, NULL};
        const inv_inverse_def d = {.size = sizeof d,
                                   .name = name,
                                   .kind = p->f->name,
                                   .priority = 90,
                                   .match = text[0].s,
                                   .solve = text[1].s,
                                   .frees = frees,
                                   .when = text[2].n ? text[2].s : NULL,
                                   .gain = gain,
                                   .cases = cases,
                                   .doc = "a pair of functions of an ONNX file"};
        s = inv_registry_add_inverse(r, &d);
    }
    for (int i = 0; i < 4; i++) inv_str_fini(&text[i]);
    return s;
}

static inv_status rules_of(inv_pair *p, inv_registry *r)
{
    uint32_t count = 0;
    INV_TRY(lower_example(p));
    INV_TRY(split_parts(p));
    INV_TRY(order_match(p));
    INV_TRY(inv_pair_ways(p));
    for (uint32_t i = 0; i < p->nfreed; i++) {
        int k = formal_named(p->f->body, &p->f->body->inputs, p->freed_name[i]);
        if ((uint32_t)k >= p->nformal || p->formal[k] == INV_NONE || !p->active[p->formal[k]])
            return refuse_pair(p, "the inverse gives a parameter of the example", p->freed_name[i]);
        if (p->freed[i] == p->formal[k]) continue; /* it passes through, so it is there anyway */
        if (p->forward[p->freed[i]]) continue;     /* likewise, as an output */
        INV_TRY(add_rule(p, r, i, count++));
    }
    return count ? INV_OK : refuse_pair(p, "the inverse computes nothing", "");
}

inv_status inv_pairs_load(inv_registry *r, const char *path)
{
    inv_context *ctx = inv_registry_context(r);
    inv_model *model;
    size_t pairs = 0;
    INV_TRY(inv_model_load_plain(ctx, path, &model));
    inv_status s = inv_registry_keep_model(r, model);
    for (size_t i = 0; i < model->graph->function.n && s == INV_OK; i++) {
        inv_pair p = {.ctx = ctx, .f = &model->graph->function.at[i]};
        p.inverse = partner(model->graph, p.f);
        if (!p.inverse) continue;
        pairs++;
        inv_arena_init(&p.a, ctx);
        s = inv_graph_copy(model->graph, &p.g);
        if (s == INV_OK) s = rules_of(&p, r);
        inv_graph_destroy(p.g);
        inv_arena_fini(&p.a);
    }
    if (s == INV_OK && !pairs)
        s = inv_fail(ctx, INV_E_PARSE, "it has no local functions in pairs, NAME and NAME_inverse of one domain");
    return s;
}
