/* SPDX-License-Identifier: Apache-2.0
 * Bounds the entries of a value by interval arithmetic (Moore, Interval Analysis, 1966) over the operators that give
 * it, each by its row (column `bounds`, core/op.h). A scale that a region computes may be divided by if it is positive
 * by construction, as Exp and Sigmoid are, and these bounds show that.
 *
 * Where(c, a, b) takes entries of a where c holds: there p > 20 is known of p, if c is p > 20, and of what p is a shift
 * or multiple of. Such suppositions reach through element-wise operators, which read all operands at one index.
 * requires: inv_matcher_init.  gives: inv_bounds. Time: each value is bounded once, without suppositions; what follows
 * from one is looked for among MOST_LOOKS operands. The entries of what depends on parameters only are looked at
 * (known_values.c). */
#include <math.h>
#include <string.h>

#include "passes/match/match.h"

/* A deeper chain of operators counts as not bounded, which limits the recursion. */
enum { MOST_LOOKS = 256, MOST_DEPTH = 256 };

typedef struct bounds_call {
    inv_bounding ask;
    inv_matcher *m;
    inv_bounds unknown; /* what is taken for anything that no operator bounds */
    inv_range *found;   /* per value, without suppositions */
    inv_suppositions *given;
    int depth;
} bounds_call;

static inv_bounds bounds_of(const bounds_call *q, inv_id v);

static inv_bounds operand_bounds(const inv_bounding *ask, uint32_t i)
{
    return bounds_of((const bounds_call *)ask, ask->node->in[i]);
}

static bool is_empty(inv_bounds b) { return !(b.lo <= b.hi); }

static inv_bounds both(inv_bounds a, inv_bounds b)
{
    const inv_bounds r = {fmax(a.lo, b.lo), fmin(a.hi, b.hi), (a.lo >= b.lo && a.above) || (b.lo >= a.lo && b.above)};
    return is_empty(r) ? a : r;
}

/* --- suppositions --- */

static bool is_number(const bounds_call *q, inv_id v, double *number)
{
    inv_extremes x;
    if (q->m->active[v] || !inv_known_extremes(q->m, v, &x) || x.least != x.most) return false;
    *number = x.least;
    return true;
}

/* What lies within `in` says so of what it was shifted or multiplied from. false: not known how. */
static bool suppose_operand(const bounds_call *q, const inv_node *n, inv_bounds *in, inv_id *of)
{
    const char *op = n->op->name;
    double c = 0;
    const bool swap = n->nin == 2 && !q->m->active[n->in[0]];
    *of = n->nin ? n->in[swap] : INV_NONE;
    if (strcmp(op, "Neg") == 0) {
        *in = (inv_bounds){-in->hi, -in->lo, false};
        return true;
    }
    if (n->nin != 2 || !is_number(q, n->in[!swap], &c)) return false;
    if (strcmp(op, "Add") == 0 || (strcmp(op, "Sub") == 0 && !swap)) {
        c = *op == 'A' ? -c : c;
        *in = (inv_bounds){in->lo + c, in->hi + c, in->above};
        return true;
    }
    if (strcmp(op, "Div") == 0 && !swap) c = 1 / c;
    else if (strcmp(op, "Mul") != 0) return false;
    if (!(fabs(c) > 0 && fabs(c) < INFINITY)) return false;
    *in = c > 0 ? (inv_bounds){in->lo / c, in->hi / c, in->above} : (inv_bounds){in->hi / c, in->lo / c, false};
    return true;
}

static void suppose_value(const bounds_call *q, inv_id v, inv_bounds in, inv_suppositions *to)
{
    while (to->n < INV_MOST_SUPPOSED && v != INV_NONE && q->m->active[v]) {
        to->at[to->n].v = v;
        to->at[to->n++].in = in;
        const inv_value *val = inv_val(q->m->g, v);
        if (val->role != INV_ROLE_NODE || !suppose_operand(q, inv_nod(q->m->g, val->def), &in, &v)) return;
        /* what the shift or product may have been rounded by */
        in.lo -= isfinite(in.lo) ? fabs(in.lo) * 0x1p-22 : 0;
        in.hi += isfinite(in.hi) ? fabs(in.hi) * 0x1p-22 : 0;
    }
}

/* Adds what follows where the condition c is as `holds` says. */
static void suppose(const bounds_call *q, inv_id c, bool holds, inv_suppositions *to)
{
    const inv_value *val = c == INV_NONE ? NULL : inv_val(q->m->g, c);
    if (!val || val->role != INV_ROLE_NODE || to->left-- <= 0) return;
    const inv_node *n = inv_nod(q->m->g, val->def);
    const char *op = n->op->name;
    if (strcmp(op, "Not") == 0) {
        suppose(q, n->in[0], !holds, to);
    } else if (strcmp(op, holds ? "And" : "Or") == 0) {
        for (uint32_t k = 0; k < 2; k++) suppose(q, n->in[k], holds, to);
    } else if (strncmp(op, "Greater", 7) == 0 || strncmp(op, "Less", 4) == 0) {
        /* the greater one lies above the least of the other, which lies below the most of it */
        const uint32_t more = (*op == 'G') == holds ? 0 : 1;
        const bool strict = (strchr(op, 'O') == NULL) == holds; /* GreaterOrEqual */
        const inv_bounds low = bounds_of(q, n->in[!more]), high = bounds_of(q, n->in[more]);
        suppose_value(q, n->in[more], (inv_bounds){low.lo, INFINITY, strict || low.above}, to);
        suppose_value(q, n->in[!more], (inv_bounds){-INFINITY, high.hi, false}, to);
    }
}

static inv_bounds supposed_of(const bounds_call *q, inv_id v, inv_bounds r)
{
    for (uint32_t i = 0; q->given && i < q->given->n; i++)
        if (q->given->at[i].v == v) r = both(r, q->given->at[i].in);
    return r;
}

/* --- values --- */

/* Of Where: each operand where it is taken. */
static inv_bounds chosen_bounds(const bounds_call *q)
{
    inv_bounds r[2];
    for (uint32_t k = 0; k < 2; k++) {
        inv_suppositions more = {.left = MOST_LOOKS};
        bounds_call next = *q;
        if (q->given) more = *q->given;
        suppose(q, q->ask.node->in[0], k == 0, &more);
        if (more.n) next.given = &more;
        r[k] = bounds_of(&next, q->ask.node->in[1 + k]);
        if (q->given) q->given->left = more.left;
    }
    inv_bounds all = {fmin(r[0].lo, r[1].lo), fmax(r[0].hi, r[1].hi), false};
    all.above = (r[0].lo > all.lo || r[0].above) && (r[1].lo > all.lo || r[1].above);
    return all;
}

static inv_bounds node_bounds(const bounds_call *q)
{
    const inv_op_def *op = q->ask.node->op;
    inv_bounds r = !op->bounds                      ? INV_UNBOUNDED
                   : strcmp(op->name, "Where") == 0 ? chosen_bounds(q)
                                                    : op->bounds(&q->ask);
    if (isinf(r.lo) && isinf(r.hi)) r = q->unknown;
    /* What float32 rounds an entry to; what is near zero by cancellation is then not taken for positive. */
    r.lo -= isfinite(r.lo) ? fabs(r.lo) * 0x1p-22 : 0;
    r.hi += isfinite(r.hi) ? fabs(r.hi) * 0x1p-22 : 0;
    /* infinity less infinity */
    if (isnan(r.lo)) r.lo = -INFINITY;
    if (isnan(r.hi)) r.hi = INFINITY;
    return r;
}

static inv_bounds bounds_of(const bounds_call *q, inv_id v)
{
    inv_matcher *m = q->m;
    if (v == INV_NONE || q->depth > MOST_DEPTH) return q->unknown;
    inv_extremes x;
    if (!m->active[v])
        return supposed_of(q, v, inv_known_extremes(m, v, &x) ? (inv_bounds){x.least, x.most, false} : q->unknown);
    const inv_value *val = inv_val(m->g, v);
    bounds_call next = *q;
    next.depth++;
    next.ask.node = val->role == INV_ROLE_NODE ? inv_nod(m->g, val->def) : NULL;
    if (!next.ask.node || next.ask.node->nin == 0) return supposed_of(q, v, q->unknown);
    const bool through = next.ask.node->op->flags & INV_OP_ELEMENTWISE;
    if (q->given && through && q->given->left-- > 0) return supposed_of(q, v, node_bounds(&next));
    next.given = NULL;
    if (!q->found[v].is) q->found[v] = (inv_range){node_bounds(&next), true};
    return supposed_of(q, v, q->found[v].bounds);
}

static inv_bounds bounds_with(inv_matcher *m, inv_id v, inv_bounds unknown, inv_range *found)
{
    bounds_call q = {.ask = {NULL, operand_bounds}, .m = m, .unknown = unknown, .found = found};
    inv_suppositions where;
    if (m->where) {
        where = *m->where;
        where.left = MOST_LOOKS;
        q.given = &where;
    }
    return bounds_of(&q, v);
}

inv_bounds inv_value_range(inv_matcher *m, inv_id v) { return bounds_with(m, v, INV_UNBOUNDED, m->range); }
inv_bounds inv_value_typical(inv_matcher *m, inv_id v)
{
    return bounds_with(m, v, (inv_bounds){-2, 2, false}, m->typical);
}
