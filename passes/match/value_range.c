/* SPDX-License-Identifier: Apache-2.0
 * Bounds the entries of a value by interval arithmetic (Moore, Interval Analysis, 1966) over the operators that give
 * it, each by its row (column `bounds`, core/graph/op.h). A scale that a region computes may be divided by if it is
 * positive by construction, as Exp and Sigmoid are, and these bounds show that.
 *
 * Where(c, a, b) takes entries of a where c holds: there p > 20 is known of p, if c is p > 20, and of what p is a shift
 * or multiple of. Such suppositions reach through element-wise operators, which read all operands at one index. A
 * context holds suppositions and the bounds that follow from them. A Where in a context opens a further one.
 * requires: inv_matcher_init.  gives: inv_bounds. Time: without suppositions each node is bounded once. A context
 * bounds each node between what is supposed and its Where once. Contexts in contexts may multiply: one question looks
 * at MOST_LOOKS nodes in contexts. Past that m->looks_spent is set, and refusals say so. The entries of what depends on
 * parameters only are looked at (known_values.c). */
#include <math.h>
#include <string.h>

#include "core/graph/node.h"
#include "passes/match/match.h"

/* MOST_NESTED limits the recursion. */
enum { MOST_LOOKS = 1 << 20, MOST_NESTED = 256 };

/* What is supposed of values, and what follows from it for the nodes from place `first` of the order on. */
typedef struct context {
    const struct context *outer;
    const inv_suppositions *given;
    uint32_t first;
    int nested;
    inv_range *found; /* by place in the order less `first` */
} context;

typedef struct bounds_call {
    inv_bounding ask;
    inv_matcher *m;
    inv_bounds unknown; /* what is taken for anything that no operator bounds */
    inv_range *found;   /* per node, without suppositions */
    const context *in;  /* NULL: nothing is supposed */
    int *looks;
} bounds_call;

/* A node whose bounds are wanted, in a context. */
typedef struct wanted {
    inv_id node;
    const context *in;
} wanted;
typedef INV_VEC(wanted) wanted_nodes;

static inv_bounds bounds_of(const bounds_call *q, inv_id v);

static inv_bounds both(inv_bounds a, inv_bounds b)
{
    const inv_bounds r = {fmax(a.lo, b.lo), fmin(a.hi, b.hi), (a.lo >= b.lo && a.above) || (b.lo >= a.lo && b.above)};
    return r.lo <= r.hi ? r : a;
}

/* --- contexts --- */

static inv_id giver(const inv_matcher *m, inv_id v)
{
    const bool computed = v != INV_NONE && m->active[v] && inv_val(m->g, v)->role == INV_ROLE_NODE;
    return computed && inv_nod(m->g, inv_val(m->g, v)->def)->nin ? inv_val(m->g, v)->def : INV_NONE;
}

/* The innermost context that may tell more of the node. */
static const context *context_of(const inv_matcher *m, const context *in, inv_id node)
{
    if (!(inv_nod(m->g, node)->op->flags & INV_OP_ELEMENTWISE)) return NULL;
    while (in && m->pos[node] < in->first) in = in->outer;
    return in;
}

static inv_range *found_of(const bounds_call *q, const context *in, inv_id node)
{
    return in ? &in->found[q->m->pos[node] - in->first] : &q->found[node];
}

static inv_bounds supposed_of(const context *in, inv_id v, inv_bounds r)
{
    for (; in; in = in->outer)
        for (size_t i = 0; i < in->given->n; i++)
            if (in->given->at[i].v == v) r = both(r, in->given->at[i].in);
    return r;
}

/* Of a value whose node, if any, has been bounded. */
static inv_bounds bounds_found(const bounds_call *q, inv_id v)
{
    inv_matcher *m = q->m;
    inv_extremes x;
    if (v == INV_NONE) return q->unknown;
    const inv_id d = giver(m, v);
    if (d != INV_NONE) {
        const inv_range *r = found_of(q, context_of(m, q->in, d), d);
        m->looks_spent = m->looks_spent || r->wide;
        return supposed_of(q->in, v, r->bounds);
    }
    const bool known = !m->active[v] && inv_known_extremes(m, v, &x);
    return supposed_of(q->in, v, known ? (inv_bounds){x.least, x.most, false} : q->unknown);
}

static inv_bounds operand_bounds(const inv_bounding *ask, uint32_t i)
{
    return bounds_found((const bounds_call *)ask, ask->node->in[i]);
}

/* --- suppositions --- */

typedef struct condition {
    inv_id v;
    bool holds;
} condition;

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
    while (v != INV_NONE && q->m->active[v]) {
        const inv_supposition s = {v, in};
        const inv_value *val = inv_val(q->m->g, v);
        if (!inv_vec_push(&q->m->scratch, to, s)) return;
        if (val->role != INV_ROLE_NODE || !suppose_operand(q, inv_nod(q->m->g, val->def), &in, &v)) return;
        /* what the shift or product may have been rounded by */
        in.lo -= isfinite(in.lo) ? fabs(in.lo) * 0x1p-22 : 0;
        in.hi += isfinite(in.hi) ? fabs(in.hi) * 0x1p-22 : 0;
    }
}

/* What follows where two numbers compare as the node says: the greater one lies above the least of the other, which
 * lies below the most of it. */
static void suppose_order(const bounds_call *q, const inv_node *n, bool holds, inv_suppositions *to)
{
    const char *op = n->op->name;
    const uint32_t more = (*op == 'G') == holds ? 0 : 1;
    const bool strict = (strchr(op, 'O') == NULL) == holds; /* GreaterOrEqual */
    const inv_bounds low = bounds_found(q, n->in[!more]), high = bounds_found(q, n->in[more]);
    suppose_value(q, n->in[more], (inv_bounds){low.lo, INFINITY, strict || low.above}, to);
    suppose_value(q, n->in[!more], (inv_bounds){-INFINITY, high.hi, false}, to);
}

/* Adds what follows where the condition c is as `holds` says. */
static void suppose(const bounds_call *q, inv_id c, bool holds, inv_suppositions *to)
{
    INV_VEC(condition) open = {0};
    bool ok = inv_vec_push(&q->m->scratch, &open, ((condition){c, holds}));
    while (ok && open.n) {
        const condition is = open.at[--open.n];
        const inv_id d = giver(q->m, is.v);
        const inv_node *n = d == INV_NONE ? NULL : inv_nod(q->m->g, d);
        if (!n) continue;
        if (--*q->looks < 0) {
            q->m->looks_spent = true;
            return;
        }
        if (strcmp(n->op->name, "Not") == 0) {
            ok = inv_vec_push(&q->m->scratch, &open, ((condition){n->in[0], !is.holds}));
        } else if (strcmp(n->op->name, is.holds ? "And" : "Or") == 0) {
            for (uint32_t k = 0; k < 2 && ok; k++)
                ok = inv_vec_push(&q->m->scratch, &open, ((condition){n->in[k], is.holds}));
        } else if (strncmp(n->op->name, "Greater", 7) == 0 || strncmp(n->op->name, "Less", 4) == 0) {
            suppose_order(q, n, is.holds, to);
        }
    }
}

/* The place of the first node that any of them is about. */
static uint32_t first_of(const inv_matcher *m, const inv_suppositions *s, uint32_t end)
{
    uint32_t first = end;
    for (size_t i = 0; i < s->n; i++) {
        const inv_id d = giver(m, s->at[i].v);
        const uint32_t at = d == INV_NONE ? 0 : m->pos[d];
        if (at < first) first = at;
    }
    return first;
}

/* Bounds v, which is given before place `end` of the order, where what is given holds as well. */
static inv_bounds bounds_where(const bounds_call *q, inv_id v, const inv_suppositions *given, uint32_t first,
                               uint32_t end)
{
    inv_matcher *m = q->m;
    context in = {q->in, given, first, q->in ? q->in->nested + 1 : 1, NULL};
    bounds_call next = *q;
    if (given->n == 0 || *q->looks <= 0 || in.nested > MOST_NESTED) {
        m->looks_spent = m->looks_spent || given->n > 0;
        return bounds_of(q, v);
    }
    const size_t nbytes = (end - first + 1) * sizeof *in.found;
    if (!(in.found = inv_alloc(m->g->ctx, nbytes))) {
        m->scratch.failed = true;
        return q->unknown;
    }
    memset(in.found, 0, nbytes);
    next.in = &in;
    const inv_bounds r = bounds_of(&next, v);
    inv_dealloc(m->g->ctx, in.found);
    return r;
}

/* --- values --- */

/* Of Where: each operand where it is taken. */
static inv_bounds chosen_bounds(const bounds_call *q)
{
    const inv_node *n = q->ask.node;
    const uint32_t here = q->m->pos[inv_val(q->m->g, n->out[0])->def];
    inv_bounds r[2];
    for (uint32_t k = 0; k < 2; k++) {
        inv_suppositions more = {0};
        suppose(q, n->in[0], k == 0, &more);
        r[k] = bounds_where(q, n->in[1 + k], &more, first_of(q->m, &more, here), here);
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

/* Operators without bounds tell nothing of their operands. Conditions have none, but suppositions read theirs. */
static bool reads_operands(const inv_graph *g, const inv_node *n)
{
    return n->op->bounds || (n->op->flags & INV_OP_ELEMENTWISE && inv_val(g, n->out[0])->dtype == INV_BOOL);
}

static bool want(const bounds_call *q, const context *in, inv_id v, wanted_nodes *all)
{
    const inv_id d = giver(q->m, v);
    const wanted w = {d, d == INV_NONE ? NULL : context_of(q->m, in, d)};
    return d == INV_NONE || found_of(q, w.in, d)->is || inv_vec_push(&q->m->scratch, all, w);
}

/* Of a Where the condition first; then what it takes where nothing follows from that, as chosen_bounds wants the others
 * in contexts of their own. */
static bool want_chosen(const bounds_call *q, wanted w, wanted_nodes *all)
{
    const inv_node *n = inv_nod(q->m->g, w.node);
    const size_t before = all->n;
    bounds_call here = *q;
    here.in = w.in;
    if (!want(q, w.in, n->in[0], all)) return false;
    for (uint32_t k = 0; k < 2 && all->n == before; k++) {
        inv_suppositions given = {0};
        suppose(&here, n->in[0], k == 0, &given);
        if (given.n == 0 && !want(q, w.in, n->in[1 + k], all)) return false;
    }
    return true;
}

/* Adds the operands of w that are not bounded yet. */
static bool want_operands(const bounds_call *q, wanted w, wanted_nodes *all)
{
    const inv_node *n = inv_nod(q->m->g, w.node);
    if (inv_op_is(n, "Where")) return want_chosen(q, w, all);
    for (uint32_t k = 0; k < n->nin && reads_operands(q->m->g, n); k++)
        if (!want(q, w.in, n->in[k], all)) return false;
    return true;
}

/* Bounds what gives v, and what that is computed from, operands first. */
static inv_bounds bounds_of(const bounds_call *q, inv_id v)
{
    inv_matcher *m = q->m;
    wanted_nodes all = {0};
    if (!want(q, q->in, v, &all)) return q->unknown;
    while (all.n) {
        const wanted w = all.at[all.n - 1];
        const size_t n = all.n;
        inv_range *r = found_of(q, w.in, w.node);
        if (!r->is && !want_operands(q, w, &all)) return q->unknown;
        if (all.n > n) continue;
        all.n--;
        if (r->is) continue;
        if (w.in) --*q->looks;
        bounds_call next = *q;
        next.in = w.in;
        next.ask.node = inv_nod(m->g, w.node);
        *r = (inv_range){node_bounds(&next), true, m->looks_spent};
    }
    return bounds_found(q, v);
}

static inv_bounds bounds_with(inv_matcher *m, inv_id v, inv_bounds unknown, inv_range *found)
{
    int looks = MOST_LOOKS;
    const bounds_call q = {{NULL, operand_bounds}, m, unknown, found, NULL, &looks};
    const inv_id d = giver(m, v);
    const uint32_t end = d == INV_NONE ? m->where_from : m->pos[d];
    m->looks_spent = false;
    return m->where && end >= m->where_from ? bounds_where(&q, v, m->where, m->where_from, end) : bounds_of(&q, v);
}

inv_bounds inv_value_range(inv_matcher *m, inv_id v) { return bounds_with(m, v, INV_UNBOUNDED, m->range); }
inv_bounds inv_value_typical(inv_matcher *m, inv_id v)
{
    return bounds_with(m, v, (inv_bounds){-2, 2, false}, m->typical);
}
