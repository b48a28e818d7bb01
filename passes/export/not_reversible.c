/* SPDX-License-Identifier: Apache-2.0
 * Why a model has no inverse direction: the operators at which the derivation stops, that which is the cause first. */
#include <stdlib.h>

#include "core/graph/node.h"
#include "passes/export/raise.h"
#include "passes/export/reverse_model.h"
#include "passes/match/match.h"

static bool is_unknown_value(const inv_reversal *x, inv_id v)
{
    return v != INV_NONE && x->o->carries[v] && !inv_derive_name(&x->d, v);
}

/* The operand that an operator could be solved for: its conditions and indices come from others. INV_NONE: none. */
static inv_id unknown_operand(const inv_reversal *x, const inv_node *n)
{
    inv_id v = INV_NONE;
    for (uint32_t k = n->nin; k-- > 0;)
        if (is_unknown_value(x, n->in[k]) && (v == INV_NONE || inv_dtype_is_float(inv_val(x->o->g, n->in[k])->dtype)))
            v = n->in[k];
    return v;
}

/* What keeps a local inverse from being written, all of the model's values that it takes being known. */
static const char *reason_of_edge(const inv_reversal *x, const inv_edge *e)
{
    const inv_outliner *o = x->o;
    inv_arena *a = o->a;
    const char *text = NULL;
    for (uint32_t i = 0; i < e->nnode && !text; i++) {
        const inv_node *n = inv_nod(o->g, e->node[i]);
        if (!inv_raise_knows(n->op))
            text = inv_arena_printf(a, "its inverse takes %s, which has no form in ONNX", n->op_type);
        for (uint32_t k = 0; k < n->nin && !text; k++) {
            const inv_id v = n->in[k];
            const bool made = v == INV_NONE || x->d.name[v] || inv_val(o->g, v)->role == INV_ROLE_CONST ||
                              inv_nodes_give(o->g, e->node, i, v);
            if (made || inv_raise_matrix(n) == k) continue;
            if (v == e->frees && i >= e->nsave) text = "both of its operands come from the value that is to be derived";
            else if (o->carries[v])
                text = "its inverse needs values computed from the value to be derived, as the mean and variance of "
                       "a normalization, which its output does not contain. Normalizing by parameters (ActNorm) or "
                       "running statistics (BatchNormalization) can be reversed";
            else
                text = "its inverse needs a factor made of parameters, which has no known value here, as an Expand "
                       "to the shape of a derived value. Without the Expand, the operator broadcasts its operand "
                       "itself";
        }
    }
    return text ? text : "its matrix is not a value of the file";
}

/* The value that an operator gives or takes besides and that is not known either; INV_NONE. */
static inv_id other_unknown(const inv_reversal *x, const inv_node *n, inv_id unknown, bool *given)
{
    *given = true;
    for (uint32_t k = 0; k < n->nout; k++)
        if (n->out[k] != INV_NONE && !inv_derive_name(&x->d, n->out[k])) return n->out[k];
    *given = false;
    for (uint32_t k = 0; k < n->nin; k++)
        if (n->in[k] != unknown && is_unknown_value(x, n->in[k])) return n->in[k];
    return INV_NONE;
}

/* What the file calls v. A value between operators that one of its nodes has become is called by what the node takes.
 */
static const char *name_in_file(const inv_reversal *x, inv_id v)
{
    const inv_outliner *o = x->o;
    for (;;) {
        if (o->alias_start[v] < o->alias_start[v + 1]) return inv_val(o->flat, o->alias[o->alias_start[v]])->name;
        const inv_id def = inv_val(o->g, v)->def;
        const inv_id from = def == INV_NONE ? INV_NONE : unknown_operand(x, inv_nod(o->g, def));
        if (from == INV_NONE) return inv_val(o->g, v)->name;
        v = from;
    }
}

static const inv_edge *edge_for(const inv_reversal *x, inv_id node, inv_id unknown)
{
    const inv_matches *found = x->o->g->matches;
    for (size_t i = 0; i < found->edge.n; i++)
        if (found->edge.at[i].forward == node && found->edge.at[i].frees == unknown) return &found->edge.at[i];
    return NULL;
}

/* Whether v is computed from `source`. Nodes stand in the order behind those that give their operands. */
static bool is_computed_from(const inv_reversal *x, inv_id v, inv_id source)
{
    const inv_graph *g = x->o->g;
    bool *of = INV_ARENA_NEW(&x->o->scratch, bool, g->value.n + 1);
    if (!of) return false;
    of[source] = true;
    for (size_t i = 0; i < g->order.n; i++) {
        const inv_node *n = inv_nod(g, g->order.at[i]);
        bool any = false;
        for (uint32_t k = 0; k < n->nin && !any; k++) any = n->in[k] != INV_NONE && of[n->in[k]];
        for (uint32_t k = 0; k < n->nout && any; k++)
            if (n->out[k] != INV_NONE) of[n->out[k]] = true;
    }
    return of[v];
}

/* Whether the operator could be solved, and only waits for another value, which `unknown` is not needed for. */
static bool waits(const inv_reversal *x, inv_id node, inv_id unknown)
{
    bool given;
    const inv_id other = other_unknown(x, inv_nod(x->o->g, node), unknown, &given);
    return other != INV_NONE && edge_for(x, node, unknown) && (given || !is_computed_from(x, other, unknown));
}

static bool fits(const inv_refusal *f, inv_id node, inv_id value)
{
    return f->why.reason && (node == INV_NONE || f->node == node) && (value == INV_NONE || f->value == value);
}

/* An operand besides `unknown` that is computed from the model's inputs; INV_NONE. */
static inv_id computed_operand(const inv_reversal *x, const inv_node *n, inv_id unknown)
{
    inv_id v = INV_NONE;
    for (uint32_t k = 0; k < n->nin && v == INV_NONE; k++)
        if (n->in[k] != INV_NONE && n->in[k] != unknown && x->o->carries[n->in[k]]) v = n->in[k];
    return v;
}

/* Whether a rule would solve the operator for `unknown`, if all else that it takes were parameters. */
static bool fits_parameters(const inv_reversal *x, const inv_node *n, inv_id unknown)
{
    const inv_graph *g = x->o->g;
    inv_arena *a = &x->o->scratch;
    inv_rule *rule;
    inv_rule_sizes most;
    inv_binding room;
    size_t nrule;
    bool *active = INV_ARENA_NEW(a, bool, g->value.n + 1), fits = false;
    if (!active || inv_rules_compile(g->ctx, a, &rule, &nrule, &most) != INV_OK ||
        !inv_binding_init(&room, a, most.names))
        return false;
    active[unknown] = true;
    for (size_t i = 0; i < 2 * nrule && !fits; i++) {
        const inv_rule *r = &rule[i / 2];
        inv_binding b = room;
        if (r->match.n != 1 || !r->def->solve) continue;
        fits =
            inv_pattern_bind(g, active, &r->match.at[0], n, i % 2, &b) && inv_binding_get(&b, r->def->frees) == unknown;
    }
    return fits;
}

static const char *computed_from_itself(const inv_reversal *x, inv_id operand, inv_id unknown)
{
    const inv_graph *g = x->o->g;
    return inv_arena_printf(x->o->a, "its other operand '%s' is computed from '%s' itself", inv_val(g, operand)->name,
                            inv_val(g, unknown)->name);
}

/* Why no rule has an inverse of the operator, where none says so. */
static const char *reason_of_none(const inv_reversal *x, const inv_node *n, inv_id unknown)
{
    const inv_id operand = computed_operand(x, n, unknown);
    if (operand == INV_NONE || !fits_parameters(x, n, unknown)) return "no rule inverts this operator in this operand";
    if (is_computed_from(x, operand, unknown)) return computed_from_itself(x, operand, unknown);
    return inv_arena_printf(x->o->a,
                            "its other operand '%s' depends on the batch, and the rules that invert this operator "
                            "take parameters there",
                            name_in_file(x, operand));
}

/* Why the operator that gives known values leaves its input unknown. What is said of the value alone is of an operator
 * that may be the first of a longer pattern. */
static const char *reason_at(const inv_reversal *x, inv_id node, inv_id unknown)
{
    const inv_outliner *o = x->o;
    const inv_matches *found = o->g->matches;
    const inv_edge *edge = edge_for(x, node, unknown);
    const inv_id about[][2] = {{node, unknown}, {node, INV_NONE}, {INV_NONE, unknown}};
    bool given;
    const inv_id other = other_unknown(x, inv_nod(o->g, node), unknown, &given);
    if (edge && other == INV_NONE) return reason_of_edge(x, edge);
    for (int k = 0; k < (edge ? 2 : 3); k++)
        for (size_t i = 0; i < found->refusal.n; i++)
            if (fits(&found->refusal.at[i], about[k][0], about[k][1])) return found->refusal.at[i].why.reason;
    for (size_t i = 0; i < found->overruled.n && !edge; i++)
        if (fits(&found->overruled.at[i], node, unknown)) return found->overruled.at[i].why.reason;
    if (!edge) return reason_of_none(x, inv_nod(o->g, node), unknown);
    if (!given && is_computed_from(x, other, unknown)) return computed_from_itself(x, other, unknown);
    return inv_arena_printf(o->a, "that takes %s'%s', which is not known either", given ? "" : "its other operand ",
                            name_in_file(x, other));
}

static bool gives_known(const inv_reversal *x, const inv_node *n)
{
    for (uint32_t k = 0; k < n->nout; k++)
        if (n->out[k] != INV_NONE && x->o->carries[n->out[k]] && inv_derive_name(&x->d, n->out[k])) return true;
    return false;
}

/* --- where it stops --- */

/* An operator that gives a known value and takes one that is not. */
typedef struct stop {
    inv_id node, unknown;
    bool alone;   /* all inputs could be derived if that value were known */
    bool waits;   /* the operator could be solved if another value were known */
    size_t names; /* how many values could be */
    size_t at;    /* place in the order in which they are found */
} stop;

typedef INV_VEC(stop) stops;

static inv_status find_stops(inv_reversal *x, stops *found)
{
    const inv_graph *g = x->o->g;
    for (size_t i = g->order.n; i-- > 0;) {
        const inv_node *n = inv_nod(g, g->order.at[i]);
        stop s = {.node = g->order.at[i], .unknown = unknown_operand(x, n), .at = found->n};
        if (!gives_known(x, n)) continue;
        s.waits = s.unknown != INV_NONE && waits(x, s.node, s.unknown);
        if (s.unknown != INV_NONE && !inv_vec_push(&x->o->scratch, found, s)) return INV_E_NOMEM;
    }
    return INV_OK;
}

static int by_cause(const void *a, const void *b)
{
    const stop *s = a, *t = b;
    if (s->waits != t->waits) return s->waits ? 1 : -1;
    if (s->alone != t->alone) return s->alone ? -1 : 1;
    if (s->names != t->names) return s->names > t->names ? -1 : 1;
    return s->at < t->at ? -1 : 1;
}

/* The cause comes first: what would let the others be solved, if it could be. */
static inv_status put_cause_first(inv_reversal *x, stops *found)
{
    enum { MOST_TRIED = 32 };
    bool ok;
    if (found->n < 2) return INV_OK;
    const size_t n = found->n < MOST_TRIED ? found->n : MOST_TRIED;
    for (size_t i = 0; i < n; i++) {
        stop *s = &found->at[i];
        INV_TRY(inv_reversal_attempt(x, &ok));
        INV_TRY(inv_derive_call(&x->d, s->unknown, inv_val(x->o->g, s->unknown)->name));
        INV_TRY(inv_derive_close(&x->d, &ok));
        s->alone = ok && inv_reversal_done(x);
        s->names = x->d.named.n;
    }
    qsort(found->at, n, sizeof *found->at, by_cause);
    return inv_reversal_attempt(x, &ok);
}

/* One line for each of them. */
static inv_status say_stops(inv_reversal *x, inv_str *text)
{
    enum { MOST = 6 };
    const inv_outliner *o = x->o;
    stops found = {0};
    INV_TRY(find_stops(x, &found));
    INV_TRY(put_cause_first(x, &found));
    for (size_t i = 0; i < found.n && i < MOST; i++) {
        const stop *s = &found.at[i];
        const inv_node *node = inv_nod(o->g, s->node);
        const uint32_t item = o->item_of[s->node];
        const char *op = item == INV_NONE ? node->op_type : inv_item(o, item)->op_type;
        inv_str_add(text, "; node '%s' (%s) cannot be solved for '%s': %s", inv_node_called(o->g, node), op,
                    name_in_file(x, s->unknown), reason_at(x, s->node, s->unknown));
    }
    if (found.n > MOST) inv_str_add(text, "; and %zu more", found.n - MOST);
    if (found.n == 0) inv_str_add(text, "; no output depends on it");
    return INV_OK;
}

inv_status inv_reversal_refuse(inv_reversal *x)
{
    inv_str text;
    inv_status s = INV_OK;
    inv_str_init(&text, x->o->ctx);
    for (size_t i = 0; i < x->wanted.n && !text.n; i++)
        if (!inv_derive_name(&x->d, x->wanted.at[i]))
            inv_str_add(&text, "input '%s' cannot be derived from the outputs",
                        inv_val(x->o->flat, x->wanted.at[i])->name);
    if (x->d.r.reason) inv_str_add(&text, "; an inverse cannot be written: %s", x->d.r.reason);
    else s = say_stops(x, &text);
    inv_str_add(&text, ". Inputs that are conditions can be given ({given})");
    if (text.failed) s = INV_E_NOMEM;
    if (s == INV_OK) s = inv_fail(x->o->ctx, INV_E_NOT_INVERTIBLE, "%s", text.s);
    inv_str_fini(&text);
    return s;
}
