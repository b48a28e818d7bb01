/* SPDX-License-Identifier: Apache-2.0
 * The verifier: the invariants of core/graph/ir.h, run after every pass. All that is wrong is named at once. */
#include <string.h>

#include "core/graph/ir_internal.h"
#include "core/graph/node.h"

#define LISTED 20u

typedef struct {
    const inv_graph *g;
    inv_arena scratch;
    inv_str text;
    unsigned nproblems;
    uint8_t *defined; /* per value: it can be read at the present position */
    uint8_t *live;    /* per node: it stands in the order */
} checker;

#define PROBLEM(c, ...)                                     \
    do {                                                    \
        if ((c)->nproblems++ < LISTED) {                    \
            if ((c)->text.n) inv_str_add(&(c)->text, "; "); \
            inv_str_add(&(c)->text, __VA_ARGS__);           \
        }                                                   \
    } while (0)

static const char *value_name(const inv_graph *g, inv_id v) { return v < g->value.n ? inv_val(g, v)->name : "?"; }

#define NODE "node '%s' (%s): "
#define NODE_ARGS(c, n) inv_node_called((c)->g, (n)), (n)->op_type

static bool is_source(const inv_value *v) { return v->role != INV_ROLE_NODE; }

static void check_ids(checker *c, const inv_ids *ids, const char *what, bool sources)
{
    for (size_t i = 0; i < ids->n; i++) {
        inv_id v = ids->at[i];
        if (v >= c->g->value.n) PROBLEM(c, "%s %zu: no value %u", what, i, (unsigned)v);
        else if (sources && (inv_val(c->g, v)->def != INV_NONE || !is_source(inv_val(c->g, v))))
            PROBLEM(c, "%s '%s' is computed by a node", what, value_name(c->g, v));
    }
}

/* Whether its elements are some of a value that persists. */
static bool is_section(const inv_graph *g, const inv_value *v)
{
    if (v->whole >= g->value.n) return false;
    const inv_value *whole = inv_val(g, v->whole);
    return whole->whole == INV_NONE && whole->role == v->role && whole->dtype == v->dtype &&
           (v->role == INV_ROLE_PARAM || v->role == INV_ROLE_OPTIM) && v->first >= 0 &&
           v->first + inv_shape_nelem(&v->shape) <= inv_shape_nelem(&whole->shape);
}

static void check_values(checker *c)
{
    const inv_graph *g = c->g;
    for (size_t i = 0; i < g->value.n; i++) {
        const inv_value *v = &g->value.at[i];
        if (!v->name) PROBLEM(c, "value %zu has no name", i);
        if (v->shape.rank > INV_MAX_RANK) PROBLEM(c, "value '%s' has rank %d", v->name, (int)v->shape.rank);
        if (v->whole != INV_NONE && !is_section(g, v)) PROBLEM(c, "value '%s' is a section of nothing", v->name);
        if (v->def == INV_NONE) {
            c->defined[i] = is_source(v);
        } else if (v->def >= g->node.n) {
            PROBLEM(c, "value '%s' is defined by node %u, which does not exist", v->name, (unsigned)v->def);
        } else if (is_source(v)) {
            PROBLEM(c, "value '%s' is an input or a parameter, and a node defines it", v->name);
        }
    }
}

static void check_arity(checker *c, const inv_node *n)
{
    bool optional, variadic;
    for (uint32_t i = 0;; i++) {
        bool slot = inv_op_slot(n->op->in, i, &optional, &variadic);
        if (!slot) {
            if (i < n->nin)
                PROBLEM(c, NODE "takes %u inputs, %u are given", NODE_ARGS(c, n), (unsigned)i, (unsigned)n->nin);
            break;
        }
        if (!optional && (i >= n->nin || n->in[i] == INV_NONE))
            PROBLEM(c, NODE "required input %u is missing", NODE_ARGS(c, n), (unsigned)i);
        if (variadic && i + 1 >= n->nin) break;
    }
    for (uint32_t i = 0;; i++) {
        bool slot = inv_op_slot(n->op->out, i, &optional, &variadic);
        if (!slot) {
            if (i < n->nout)
                PROBLEM(c, NODE "gives %u outputs, %u are listed", NODE_ARGS(c, n), (unsigned)i, (unsigned)n->nout);
            break;
        }
        if (!optional && i >= n->nout)
            PROBLEM(c, NODE "required output %u is not listed", NODE_ARGS(c, n), (unsigned)i);
        if (variadic && i + 1 >= n->nout) break;
    }
}

static void check_canonical(checker *c, size_t pos, const inv_node *n)
{
    const inv_graph *g = c->g;
    if (!n->op) {
        PROBLEM(c, NODE "operator of domain '%s' is not registered", NODE_ARGS(c, n), n->domain);
        return;
    }
    if (n->op->lower) PROBLEM(c, NODE "is not a canonical operator", NODE_ARGS(c, n));
    for (uint32_t i = 0; i < n->nin + n->nout; i++) {
        inv_id id = i < n->nin ? n->in[i] : n->out[i - n->nin];
        if (id >= g->value.n) continue;
        const inv_value *v = inv_val(g, id);
        char text[INV_SHAPE_TEXT];
        if (v->dtype == INV_DT_NONE || !inv_shape_is_static(&v->shape))
            PROBLEM(c, NODE "value '%s' has type %s%s, which is not fixed", NODE_ARGS(c, n), v->name,
                    inv_dtype_name(v->dtype), inv_shape_text(&v->shape, text));
    }
    if (n->op->writes && n->phase != INV_COMMIT)
        PROBLEM(c, NODE "writes, but does not belong to commit", NODE_ARGS(c, n));
    if (g->commit_begin && pos < g->commit_begin && n->op->writes && !g->early)
        PROBLEM(c, NODE "writes before the commit part", NODE_ARGS(c, n));
    if (g->commit_begin && pos >= g->commit_begin && n->phase != INV_COMMIT)
        PROBLEM(c, NODE "computes after commit has begun", NODE_ARGS(c, n));
}

static void check_node(checker *c, inv_id id)
{
    const inv_graph *g = c->g;
    const inv_node *n = inv_nod(g, id);
    for (uint32_t i = 0; i < n->nin; i++) {
        inv_id v = n->in[i];
        if (v == INV_NONE) continue;
        if (v >= g->value.n) PROBLEM(c, NODE "input %u: no value %u", NODE_ARGS(c, n), (unsigned)i, (unsigned)v);
        else if (!c->defined[v])
            PROBLEM(c, NODE "reads '%s', which %s", NODE_ARGS(c, n), value_name(g, v),
                    inv_val(g, v)->def == INV_NONE                                  ? "nothing defines"
                    : inv_val(g, v)->def < g->node.n && c->live[inv_val(g, v)->def] ? "is computed only later"
                                                                                    : "is computed by a dead node");
    }
    for (uint32_t i = 0; i < n->nout; i++) {
        inv_id v = n->out[i];
        if (v == INV_NONE) continue;
        if (v >= g->value.n) {
            PROBLEM(c, NODE "output %u: no value %u", NODE_ARGS(c, n), (unsigned)i, (unsigned)v);
            continue;
        }
        if (c->defined[v]) PROBLEM(c, NODE "value '%s' is defined twice", NODE_ARGS(c, n), value_name(g, v));
        if (inv_val(g, v)->def != id)
            PROBLEM(c, NODE "gives '%s', which names another origin", NODE_ARGS(c, n), value_name(g, v));
        c->defined[v] = 1;
    }
    if (n->clone_of != INV_NONE && n->clone_of >= g->node.n) PROBLEM(c, NODE "clone of nothing", NODE_ARGS(c, n));
    if (n->solves != INV_NONE && n->solves >= g->node.n) PROBLEM(c, NODE "solves nothing", NODE_ARGS(c, n));
}

/* Names of all values that can be read at the end, i.e. sources in use and outputs of live nodes. */
static inv_status check_names(checker *c)
{
    const inv_graph *g = c->g;
    size_t cap = 64;
    while (cap < g->value.n * 2) cap *= 2;
    inv_id *slot = INV_ARENA_NEW(&c->scratch, inv_id, cap);
    if (!slot) return INV_E_NOMEM;
    for (inv_id v = 0; v < g->value.n; v++) {
        const char *name = inv_val(g, v)->name;
        if (!c->defined[v] || !name) continue;
        size_t at = (size_t)inv_hash(name, strlen(name), 0) & (cap - 1);
        for (; slot[at]; at = (at + 1) & (cap - 1))
            if (strcmp(value_name(g, slot[at] - 1), name) == 0) {
                PROBLEM(c, "two values are named '%s'", name);
                break;
            }
        if (!slot[at]) slot[at] = v + 1;
    }
    return INV_OK;
}

static inv_status check_all(checker *c, bool canonical)
{
    const inv_graph *g = c->g;
    c->defined = INV_ARENA_NEW(&c->scratch, uint8_t, g->value.n);
    c->live = INV_ARENA_NEW(&c->scratch, uint8_t, g->node.n);
    if (!c->defined || !c->live) return INV_E_NOMEM;
    check_values(c);
    check_ids(c, &g->inputs, "input", false);
    check_ids(c, &g->inits, "initializer", true);
    check_ids(c, &g->outputs, "output", false);
    for (size_t i = 0; i < g->order.n; i++) {
        inv_id id = g->order.at[i];
        if (id >= g->node.n) PROBLEM(c, "position %zu of the order: no node %u", i, (unsigned)id);
        else if (c->live[id]++) PROBLEM(c, NODE "appears twice in the order", NODE_ARGS(c, inv_nod(g, id)));
        if (id < g->node.n && c->live[id] > 2) c->live[id] = 2;
    }
    for (size_t i = 0; i < g->order.n; i++) {
        inv_id id = g->order.at[i];
        if (id >= g->node.n || c->live[id] > 1) continue;
        check_node(c, id);
        if (inv_nod(g, id)->op) check_arity(c, inv_nod(g, id));
        if (canonical) check_canonical(c, i, inv_nod(g, id));
    }
    for (size_t i = 0; i < g->outputs.n; i++)
        if (g->outputs.at[i] < g->value.n && !c->defined[g->outputs.at[i]])
            PROBLEM(c, "output '%s' is computed by nothing", value_name(g, g->outputs.at[i]));
    INV_TRY(check_names(c));
    if (c->nproblems > LISTED) inv_str_add(&c->text, "; and %u more", c->nproblems - LISTED);
    if (c->text.failed) return INV_E_NOMEM;
    if (c->nproblems == 0) return INV_OK;
    return inv_fail(g->ctx, INV_E_GRAPH, "graph '%s': %s", g->name, c->text.s);
}

inv_status inv_graph_check(const inv_graph *g, bool canonical)
{
    checker c = {.g = g};
    inv_arena_init(&c.scratch, g->ctx);
    inv_str_init(&c.text, g->ctx);
    inv_status s = check_all(&c, canonical);
    inv_str_fini(&c.text);
    inv_arena_fini(&c.scratch);
    for (size_t i = 0; i < g->function.n && s == INV_OK; i++) {
        const inv_graph *body = g->function.at[i].body;
        if (body && body != g) s = inv_graph_check(body, false);
    }
    for (size_t i = 0; i < g->body.n && s == INV_OK; i++) s = inv_graph_check(g->body.at[i], false);
    return s;
}
