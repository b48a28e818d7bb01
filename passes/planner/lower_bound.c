/* SPDX-License-Identifier: Apache-2.0
 * A lower bound on the cost of rematerialisation within a budget, by Lagrangian relaxation and dual ascent (Wong 1984,
 * for Steiner's problem in graphs). It looks at one step only, at the turn from forward to backward or some time later:
 * whatever is live then for later steps is live at once, whatever it took to be there.
 * Take a set of values of which a later step reads one. An edge enters the set if it gives a member and reads none. In
 * every plan a member is kept at the step, or an edge that enters the set runs behind it: the member that is there
 * first is not had from another. (Edges that give members from one another, in a circle, do not enter, so they do not
 * satisfy this.) These conditions, one per set, are a linear program that every plan satisfies; so every solution of
 * its dual is a lower bound, wherever the ascent ends.
 * In the dual each set has a weight. The weights of the sets that a value is a member of sum up to no more than its
 * bytes times the price, those of the sets that an edge enters to no more than its cost; the sum of all weights, less
 * the price of the bytes that may be kept, is the bound. A value or edge is tight if nothing is left of that. A set
 * begins as one value that is read, and its weight grows until a member or an entering edge is tight. A tight member
 * ends it. A source of each tight edge joins it, so that these edges do not enter any more, and the weight of the
 * larger set grows in turn.
 * requires: inv_problem.
 * gives: a number. Takes O(edges) per set, and one ascent per step and price that is tried. */
#include <math.h>
#include <string.h>

#include "passes/planner/problem.h"

enum { PASSES = 2, SMALL = 4, LARGE = 32, MOST_SET = 64, MOST_ENTRIES = 256 };

/* The dual ascent; `now` is the number of the set that is grown. */
typedef struct ascent {
    const inv_problem *p;
    double *keep;          /* per value: the part of its bytes' price that no weight has used up yet */
    double *room;          /* per edge: the same part of its cost */
    uint32_t *in, *listed; /* equal to `now`: the value is in the set; the edge gives one of the set */
    uint32_t now, set[MOST_SET], entry[MOST_ENTRIES], nset, nentry;
    const uint32_t *needed;
    uint32_t nneeded, *last; /* per value: the last step that reads it */
    double fine;             /* tight: no more than this is left */
} ascent;

static bool enters_set(const ascent *x, uint32_t edge)
{
    const inv_pb_edge *e = &x->p->edge[edge];
    for (uint32_t i = 0; i < e->nsource; i++)
        if (x->in[e->source[i]] == x->now) return false;
    return true;
}

/* Puts v into the set. False: the set is as large as it may be. */
static bool join_set(ascent *x, uint32_t v)
{
    const inv_pb_value *value = &x->p->value[v];
    if (x->nset == MOST_SET || x->nentry + value->n > MOST_ENTRIES) return false;
    x->in[v] = x->now;
    x->set[x->nset++] = v;
    for (uint32_t i = value->first; i < value->first + value->n && !value->pinned; i++) {
        const uint32_t id = x->p->edge_of[i];
        if (x->listed[id] == x->now) continue;
        x->listed[id] = x->now;
        x->entry[x->nentry++] = id;
    }
    return true;
}

/* Returns how far the weight of a set that is v alone could grow. */
static double set_slack(const ascent *x, uint32_t v)
{
    const inv_pb_value *value = &x->p->value[v];
    double least = x->keep[v];
    for (uint32_t i = value->first; i < value->first + value->n && !value->pinned; i++)
        if (enters_set(x, x->p->edge_of[i])) least = fmin(least, x->room[x->p->edge_of[i]]);
    return least;
}

static bool join_source_of(ascent *x, uint32_t edge)
{
    const inv_pb_edge *e = &x->p->edge[edge];
    double most = 0;
    uint32_t found = UINT32_MAX;
    for (uint32_t i = 0; i < e->nsource; i++) {
        const double s = set_slack(x, e->source[i]);
        if (x->keep[e->source[i]] <= x->fine || (found != UINT32_MAX && s <= most)) continue;
        found = e->source[i];
        most = s;
    }
    return found != UINT32_MAX && join_set(x, found);
}

/* Grows sets about v, one inside the other, and returns the sum of their weights. */
static double grow_sets(ascent *x, uint32_t v, uint32_t most)
{
    double sum = 0;
    x->now++;
    x->nset = x->nentry = 0;
    for (bool more = join_set(x, v); more && x->nset <= most;) {
        double least = INFINITY;
        for (uint32_t i = 0; i < x->nset; i++) least = fmin(least, x->keep[x->set[i]]);
        for (uint32_t i = 0; i < x->nentry; i++)
            if (enters_set(x, x->entry[i])) least = fmin(least, x->room[x->entry[i]]);
        if (isinf(least)) break; /* v can neither be kept nor given: there is no plan */
        sum += least;
        for (uint32_t i = 0; i < x->nset; i++) {
            x->keep[x->set[i]] -= least;
            more &= x->keep[x->set[i]] > x->fine;
        }
        for (uint32_t i = 0; i < x->nentry; i++)
            if (enters_set(x, x->entry[i])) x->room[x->entry[i]] -= least;
        for (uint32_t i = 0; more && i < x->nentry; i++)
            if (x->room[x->entry[i]] <= x->fine && enters_set(x, x->entry[i])) more = join_source_of(x, x->entry[i]);
    }
    return sum;
}

size_t inv_pb_step_bytes(const inv_problem *p, uint32_t t)
{
    const inv_pb_step *s = &p->step[t];
    size_t sum = s->at, inplace = 0;
    for (uint32_t i = 0; i < s->nread; i++) {
        const size_t nbytes = p->value[s->read[i]].nbytes;
        sum += nbytes;
        if (i < 32 && s->overwrites >> i & 1 && nbytes > inplace) inplace = nbytes;
    }
    return sum - inplace;
}

/* Returns a lower bound on the cost of steps behind t at this price of a byte that is live at t. Small sets come first:
 * what only near sets can use is left to them. With one pass they come alone, which is enough to find step and price.
 */
static double bound_at(ascent *x, size_t budget, uint32_t t, double price, uint32_t passes)
{
    const inv_problem *p = x->p;
    double sum = -price * ((double)budget - (double)inv_pb_step_bytes(p, t)); /* the bytes that may be kept */
    for (uint32_t v = 0; v < p->nvalue; v++) x->keep[v] = price * (double)p->value[v].nbytes;
    for (uint32_t i = 0; i < p->step[t].nread; i++) x->keep[p->step[t].read[i]] = 0;
    for (uint32_t i = 0; i < p->nedge; i++) {
        const inv_pb_edge *e = &p->edge[i];
        x->room[i] = e->cost - e->max_saving + price * (double)e->side;
    }
    for (uint32_t pass = 0, most = SMALL; pass < passes; pass++, most = LARGE)
        for (uint32_t i = 0; i < x->nneeded; i++)
            if (x->last[x->needed[i]] > t) sum += grow_sets(x, x->needed[i], most);
    return sum;
}

/* --- values of two uses --- */

/* In y = x + f, f is read by two edges: one gives y from x, the other x from y. A plan never needs both behind the same
 * step, since one of x and y is there first. So each edge may read a copy of f of its own: a plan pays for the copy
 * that it needs, and no condition asks for the other one, so the bound stays valid. It can rise, as weights of sets
 * about x and of sets about y no longer share the cost of f. */
typedef struct splitter {
    const inv_problem *p;
    inv_problem *q;
    uint32_t *nuse, *use; /* per value: number of edges that read it; the first two of them */
    uint32_t *source;     /* room for sources of the second edge */
    uint32_t *edge_of, nlist;
} splitter;

static bool is_split_value(const splitter *s, uint32_t v)
{
    const inv_problem *p = s->p;
    const inv_pb_value *value = &p->value[v];
    if (s->nuse[v] != 2 || value->pinned) return false;
    const inv_pb_edge *a = &p->edge[s->use[2 * v]], *b = &p->edge[s->use[2 * v + 1]];
    for (uint32_t i = value->first; i < value->first + value->n; i++)
        if (p->edge[p->edge_of[i]].ntarget > 1) return false;
    return a != b && a->ntarget == 1 && b->ntarget == 1 && inv_pb_has(b->source, b->nsource, a->target[0]) &&
           inv_pb_has(a->source, a->nsource, b->target[0]);
}

/* Counts which edges read a value. One that a step reads counts as having many uses. */
static void count_edge_uses(splitter *s)
{
    const inv_problem *p = s->p;
    for (uint32_t t = p->forward; t < p->nstep; t++)
        for (uint32_t i = 0; i < p->step[t].nread; i++) s->nuse[p->step[t].read[i]] = 3;
    for (uint32_t id = 0; id < p->nedge; id++) {
        const inv_pb_edge *e = &p->edge[id];
        for (uint32_t i = 0; i < e->nsource; i++) {
            const uint32_t v = e->source[i];
            if (s->nuse[v] < 2) s->use[2 * v + s->nuse[v]] = id;
            s->nuse[v]++;
        }
    }
}

/* Makes a second value for the second edge, with edges of its own that give it. */
static void split_value(splitter *s, uint32_t v)
{
    inv_problem *q = s->q;
    const inv_pb_value *value = &q->value[v];
    inv_pb_edge *e = &q->edge[s->use[2 * v + 1]];
    const uint32_t other = q->nvalue++, first = value->first;
    inv_pb_value fresh = *value;
    fresh.first = s->nlist;
    for (uint32_t i = 0; i < value->n; i++) {
        const uint32_t id = q->nedge++;
        q->edge[id] = q->edge[q->edge_of[first + i]];
        s->edge_of[s->nlist++] = id; /* its targets are not asked for any more */
    }
    q->value[other] = fresh;
    for (uint32_t i = 0; i < e->nsource; i++) s->source[i] = e->source[i] == v ? other : e->source[i];
    e->source = s->source;
    s->source += e->nsource;
}

static bool split_values(inv_arena *a, const inv_problem *p, inv_problem *q)
{
    splitter s = {.p = p,
                  .q = q,
                  .nuse = INV_ARENA_NEW(a, uint32_t, p->nvalue + 1),
                  .use = INV_ARENA_NEW(a, uint32_t, 2 * (size_t)p->nvalue + 2)};
    if (a->failed) return false;
    count_edge_uses(&s);
    size_t nvalue = p->nvalue, nedge = p->nedge, nsource = 0;
    uint32_t listed = 0;
    for (uint32_t v = 0; v < p->nvalue; v++) {
        listed = listed > p->value[v].first + p->value[v].n ? listed : p->value[v].first + p->value[v].n;
        if (!is_split_value(&s, v)) continue;
        nvalue++;
        nedge += p->value[v].n;
        nsource += p->edge[s.use[2 * v + 1]].nsource;
    }
    *q = *p;
    q->value = INV_ARENA_NEW(a, inv_pb_value, nvalue + 1);
    q->edge = INV_ARENA_NEW(a, inv_pb_edge, nedge + 1);
    s.edge_of = INV_ARENA_NEW(a, uint32_t, listed + (nedge - p->nedge) + 1);
    s.source = INV_ARENA_NEW(a, uint32_t, nsource + 1);
    if (a->failed) return false;
    memcpy(q->value, p->value, p->nvalue * sizeof *q->value);
    memcpy(q->edge, p->edge, p->nedge * sizeof *q->edge);
    memcpy(s.edge_of, p->edge_of, listed * sizeof *s.edge_of);
    q->edge_of = s.edge_of;
    s.nlist = listed;
    for (uint32_t v = 0; v < p->nvalue; v++)
        if (is_split_value(&s, v)) split_value(&s, v);
    return true;
}

/* --- the bound --- */

static bool set_up_ascent(ascent *x, inv_arena *a)
{
    const inv_problem *p = x->p;
    bool *seen = INV_ARENA_NEW(a, bool, p->nvalue + 1);
    uint32_t *needed = INV_ARENA_NEW(a, uint32_t, p->nvalue + 1);
    x->keep = INV_ARENA_NEW(a, double, p->nvalue + 1);
    x->room = INV_ARENA_NEW(a, double, p->nedge + 1);
    x->in = INV_ARENA_NEW(a, uint32_t, p->nvalue + 1);
    x->listed = INV_ARENA_NEW(a, uint32_t, p->nedge + 1);
    x->last = INV_ARENA_NEW(a, uint32_t, p->nvalue + 1);
    if (a->failed) return false;
    for (uint32_t t = p->forward; t < p->nstep; t++)
        for (uint32_t i = 0; i < p->step[t].nread; i++) {
            const uint32_t v = p->step[t].read[i];
            if (!seen[v]) needed[x->nneeded++] = v;
            seen[v] = true;
            x->last[v] = t;
        }
    x->needed = needed;
    return true;
}

/* Finds the price of the best bound at step t by steps that get smaller: the bound is concave in the price, but for
 * what the ascent misses. */
static double search_price(ascent *x, size_t budget, uint32_t t, double *price, double width, int tries,
                           uint32_t passes)
{
    double best = bound_at(x, budget, t, *price, passes);
    for (int k = 0; k < tries; k++, width *= 0.6)
        for (int side = -1; side <= 1; side += 2) {
            const double other = *price * exp(side * width), got = bound_at(x, budget, t, other, passes);
            if (got <= best) continue;
            best = got;
            *price = other;
            break;
        }
    return best;
}

/* Finds a price in the middle of those of edges, and the logarithm of the factor up to the outermost. */
static bool bound_price_range(const inv_problem *p, double *price, double *width)
{
    double least = INFINITY, most = 0, nbytes = 0;
    for (uint32_t v = 0; v < p->nvalue; v++) nbytes = fmax(nbytes, (double)p->value[v].nbytes);
    for (uint32_t i = 0; i < p->nedge; i++) {
        if (!(p->edge[i].cost > 0)) continue;
        least = fmin(least, p->edge[i].cost);
        most = fmax(most, p->edge[i].cost);
    }
    *price = most / nbytes;
    *width = log(most / least) / 2 + 2;
    return most > 0 && nbytes > 0;
}

inv_status inv_plan_bound(inv_arena *a, const inv_problem *p, size_t budget, double *bound)
{
    enum { FIRST = 4, LATER = 4, TRIES = 8 };
    inv_problem split_problem;
    ascent x = {.p = &split_problem, .fine = p->cost * 1e-12};
    double price, width;
    *bound = 0;
    if (p->forward >= p->nstep || !bound_price_range(p, &price, &width)) return INV_OK;
    if (!split_values(a, p, &split_problem) || !set_up_ascent(&x, a)) return INV_E_NOMEM;
    uint32_t at = p->forward - (p->forward > 0);
    double best = search_price(&x, budget, at, &price, width, TRIES, 1);
    const uint32_t first = at, n = p->nstep - at;
    for (uint32_t k = 1; k < FIRST + LATER; k++) { /* the first few steps, and some over all of backward */
        const uint32_t t = first + (k < FIRST ? k : (uint32_t)((uint64_t)n * (k - FIRST + 1) / (LATER + 1)));
        if (t >= p->nstep) continue;
        const double got = bound_at(&x, budget, t, price, 1);
        if (got > best) best = got, at = t;
    }
    best = search_price(&x, budget, at, &price, 0.3, TRIES / 2, PASSES);
    if (best > 0) *bound = best;
    return INV_OK;
}
