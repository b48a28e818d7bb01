/* SPDX-License-Identifier: Apache-2.0
 * Fits a row of the table of spellings to a node. Statements are bound from the last one back (passes/match/pattern.c):
 * every other statement gives what a later one reads, so its node is the one that gives the bound value and nothing has
 * to be searched for; only the order of two operands may have to be tried both ways, 2^n for n commutative operators.
 * When all are bound, what speaks of several values is judged, and that nobody outside reads what lies between.
 * requires: compiled rows.  gives: the binding in inv_attempt. */
#include <string.h>

#include "core/graph/node.h"
#include "passes/canonical/spelling.h"
#include "passes/match/match.h"

/* count(x, axes): v is the number of elements of x along the axes, by which means are divided; share: v is 1 / that. */
static bool is_count(const inv_attempt *a, const inv_term *t, inv_id v, bool share)
{
    double c, n;
    return inv_value_uniform(a->s->g, v, &c) && inv_term_count(a->s->g, &a->value, NULL, t, &n) &&
           inv_number_near(c, share ? 1 / n : n);
}

/* inverse(c): v is 1 / c, of a number c of the pattern. */
static bool is_inverse(const inv_attempt *a, const inv_term *t, inv_id v)
{
    double c;
    const int at = inv_binding_find(&a->value, t->arg[0]);
    return at >= 0 && a->value.at[at].is_number && inv_value_uniform(a->s->g, v, &c) &&
           inv_number_near(c, 1 / a->value.at[at].number);
}

/* row(v, x, axis): v has the extents of x from axis on; ones before them make no difference. */
static bool is_row(const inv_attempt *a, const inv_term *t, inv_id v)
{
    const inv_attr *axis = inv_binding_attr(a->s->g, &a->value, NULL, t->arg[2]);
    inv_id x = inv_binding_get(&a->value, t->arg[1]);
    if (!axis || x == INV_NONE) return false;
    const inv_shape *wide = &inv_val(a->s->g, x)->shape;
    inv_shape s = inv_val(a->s->g, v)->shape;
    if (axis->i < 0 || axis->i > wide->rank) return false;
    const inv_shape want = inv_shape_of(wide->rank - (int)axis->i, wide->dim + axis->i);
    while (s.rank > want.rank && s.dim[0] == 1) s = inv_shape_of(s.rank - 1, s.dim + 1);
    return inv_shape_equal(&s, &want);
}

/* v holds numbers of the model itself, whatever their extents. */
static bool is_stored(const inv_graph *g, inv_id v)
{
    return inv_val(g, inv_seen_through_views(g, v))->role != INV_ROLE_NODE;
}

static const inv_node *maker(const inv_graph *g, inv_id v)
{
    const inv_id def = inv_val(g, v)->def;
    return inv_val(g, v)->role == INV_ROLE_NODE && def != INV_NONE ? inv_nod(g, def) : NULL;
}

static bool is_made_by(const inv_graph *g, inv_id v, const char *op)
{
    const inv_node *n = maker(g, v);
    return n && strcmp(n->op->name, op) == 0;
}

/* v is no difference to a maximum, whose powers are at most 1 already. */
static bool is_free(const inv_graph *g, inv_id v)
{
    const inv_node *n = maker(g, v);
    if (!n || strcmp(n->op->name, "Sub") != 0) return true;
    return !is_made_by(g, n->in[1], "Detach") && !is_made_by(g, n->in[1], "ReduceMaxAxes");
}

static bool is_positive(const inv_graph *g, inv_id v)
{
    double c;
    return inv_value_uniform(g, v, &c) && c > 0;
}

/* v is e^x, a sum of such powers, or one times a positive number. *left: how many values may still be looked at. */
static bool are_powers(const inv_graph *g, inv_id v, int *left)
{
    const inv_node *n = maker(g, v);
    if (!n || --*left < 0) return false;
    if (strcmp(n->op->name, "Exp") == 0) return is_free(g, n->in[0]);
    if (strcmp(n->op->name, "Add") == 0) return are_powers(g, n->in[0], left) && are_powers(g, n->in[1], left);
    if (strcmp(n->op->name, "Mul") == 0 || strcmp(n->op->name, "Div") == 0) {
        const uint32_t number = is_positive(g, n->in[1]) || strcmp(n->op->name, "Div") == 0;
        return is_positive(g, n->in[number]) && are_powers(g, n->in[1 - number], left);
    }
    return (strcmp(n->op->name, "ReduceSumAxes") == 0 || strcmp(n->op->name, "ReduceMeanAxes") == 0) &&
           is_made_by(g, n->in[0], "Exp") && are_powers(g, n->in[0], left);
}

/* Judges an operand that speaks of other values, when all of them are bound. per_channel(v, x): one number per channel
 * of x; stored(v, x): the same, of numbers of the model itself. */
static bool operand_holds(const inv_attempt *a, const inv_term *t, inv_id v)
{
    if (!t->is_call || inv_term_is(t, "const") || inv_term_is(t, "power2")) return true;
    if (inv_term_is(t, "count")) return is_count(a, t, v, false);
    if (inv_term_is(t, "share")) return is_count(a, t, v, true);
    if (inv_term_is(t, "inverse")) return is_inverse(a, t, v);
    if (inv_term_is(t, "row")) return is_row(a, t, v);
    if (inv_term_is(t, "free")) return is_free(a->s->g, v);
    if (inv_term_is(t, "fixed")) return v < a->s->fresh && !a->s->active[v];
    if (inv_term_is(t, "powers")) return are_powers(a->s->g, v, &(int){INV_SPELLING_STEPS});
    if (inv_term_is(t, "stored") ? !is_stored(a->s->g, v) : !inv_term_is(t, "per_channel")) return false;
    const inv_id x = inv_binding_get(&a->value, t->arg[1]);
    return x != INV_NONE && inv_shape_per_channel(&inv_val(a->s->g, v)->shape, &inv_val(a->s->g, x)->shape);
}

static bool in_match(const inv_attempt *a, inv_id node)
{
    for (uint32_t i = 0; i < a->row->match.n; i++)
        if (a->node[i] == inv_nod(a->s->g, node)) return true;
    return false;
}

/* Nobody else reads what n gives. */
static bool is_hidden(const inv_attempt *a, const inv_node *n)
{
    const inv_speller *s = a->s;
    for (uint32_t k = 0; k < n->nout; k++) {
        inv_id v = n->out[k];
        if (v >= s->fresh || s->taken_up[v] || inv_val(s->g, v)->is_output || inv_val(s->g, v)->keep) return false;
        for (uint32_t u = s->uses.start[v]; u < s->uses.start[v + 1]; u++)
            if (!in_match(a, s->uses.node[u])) return false;
    }
    return true;
}

static bool all_hold(const inv_attempt *a)
{
    for (uint32_t i = 0; i < a->row->match.n; i++) {
        const inv_pattern_stmt *st = &a->row->match.at[i];
        const inv_node *n = a->node[i];
        if (i + 1 < a->row->match.n && !a->row->shared && !is_hidden(a, n)) return false;
        for (uint32_t k = 0; k < n->nin; k++)
            if (!operand_holds(a, &st->in[k], n->in[a->swapped[i] ? 1 - k : k])) return false;
        for (uint32_t k = 0; k < st->s->nattr; k++) {
            inv_attr want;
            if (!st->attr[k].is_call) continue;
            const inv_attr *have = inv_attr_find(n, st->s->attr[k].name);
            if (!inv_pattern_attr(a->s->g, &a->value, NULL, st, k, &want) || !inv_attr_near(have, &want)) return false;
        }
    }
    return true;
}

/* Binds the steps before `left`. What they give is bound by then, as later steps read it. */
static bool match_steps(inv_attempt *a, size_t left)
{
    if (left == 0) return all_hold(a);
    const size_t i = left - 1;
    const inv_graph *g = a->s->g;
    inv_id v = INV_NONE;
    for (uint32_t k = 0; k < a->row->match.at[i].s->nout && v == INV_NONE; k++)
        v = inv_binding_get(&a->value, a->row->match.at[i].s->out[k]);
    if (v == INV_NONE || inv_val(g, v)->def == INV_NONE) return false;
    const inv_attempt before = *a;
    const inv_node *n = inv_nod(g, inv_val(g, v)->def);
    for (int swap = 0; swap < 2; swap++) {
        a->node[i] = n;
        a->swapped[i] = swap;
        if (inv_pattern_bind(g, NULL, &a->row->match.at[i], n, swap, &a->value) && match_steps(a, i)) return true;
        *a = before;
    }
    return false;
}

bool inv_spelling_fits(inv_attempt *a) { return match_steps(a, a->row->match.n); }
