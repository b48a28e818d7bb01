/* SPDX-License-Identifier: Apache-2.0
 * One plan for given prices. Backward is walked in order; what a step reads is kept from where it was last, for its
 * bytes times the price of the time between, or derived by the cheapest hyperpath (Knuth 1977, a generalisation of
 * Dijkstra's algorithm) over edges and over values that are kept in the same way. What was computed for one reader is
 * there for the next, so nothing is evaluated twice for the same gradient. A second walk that knows what the first one
 * kept (`likely`) derives from it what did not pay by itself. An edge whose estimated error would exceed the limit is
 * given up, and the next cheapest path is looked for.
 * requires: inv_problem, prices.  gives: rematerialisations. */
#include <math.h>
#include <string.h>

#include "passes/planner/problem.h"

enum { MAX_CONE = 20000, MOST_WAYS = 63 };
#define KEEP UINT32_MAX /* in place of an edge: the value is kept from where it was last */
#define SETTLED (UINT32_MAX - 1)
#define ALL UINT64_MAX

typedef struct heap_item {
    double cost;
    uint32_t v, by; /* a value; of a cone, the edge that wants it */
} heap_item;
typedef INV_VEC(heap_item) heap;

/* One use of a value as source of an edge of the cone. */
typedef struct cone_link {
    uint32_t edge, next;
} cone_link;
typedef struct cone_edge {
    uint32_t id, open, gives; /* open: sources that are not settled */
    double cost;
} cone_edge;

typedef INV_VEC(uint32_t) id_list;

typedef struct greedy {
    inv_arena *a;
    const inv_problem *p;
    const inv_prices *prices;
    inv_remats *out;
    double *price_sum;    /* per step: prices of those before it */
    uint32_t t;           /* step that is looked at */
    uint32_t *live_until; /* per value: last step at which it is there */
    bool *inplace;        /* per value: whether its bytes are taken over at that step, if it is there no longer */
    uint32_t *remat;      /* per value: what gave it; INV_NO_FIRING: forward */
    double *err;          /* per value: estimated relative error */
    double *least; /* per source of an edge: cost of the cheapest edge that gives it and does not start from what the
                      edge gives */
    uint32_t *cheapest; /* per value: its cheapest edge; KEEP: it has none */
    uint32_t *first;    /* per edge: where its sources are in `least` */
    uint64_t *tried;    /* per value: which of its edges the cone has looked at */
    double *dist, tick, work;
    uint32_t *stamp, *head, *via, now; /* per value */
    uint8_t *visit;                    /* per value: while listing picks */
    bool *banned;                      /* per edge: its result would be off by more than is allowed */
    bool *checkpoint;                  /* per value: rather kept than what is derived from it */
    bool *rejection_applied;           /* per value: refused by the guard, and what was rebuilt before it marked */
    bool rederiving; /* deriving what was to be kept: what that is derived from is not doubted in turn */
    bool shared;     /* the dearest source of an edge counts for all: they are derived from each other, so that the sum
                        would double from state to state; then what was picked is added up, each edge once */
    INV_VEC(cone_link) links;
    INV_VEC(cone_edge) cone;
    heap queue;
} greedy;

/* --- a binary heap, least cost first --- */

static bool heap_push(inv_arena *a, heap *h, double cost, uint32_t v, uint32_t by)
{
    heap_item x = {cost, v, by};
    if (!inv_vec_push(a, h, x)) return false;
    size_t i = h->n - 1;
    for (; i > 0 && h->at[(i - 1) / 2].cost > cost; i = (i - 1) / 2) h->at[i] = h->at[(i - 1) / 2];
    h->at[i] = x;
    return true;
}

static heap_item heap_pop(heap *h)
{
    heap_item top = h->at[0], x = h->at[--h->n];
    size_t i = 0;
    for (size_t c = 1; c < h->n; c = 2 * i + 1) {
        if (c + 1 < h->n && h->at[c + 1].cost < h->at[c].cost) c++;
        if (h->at[c].cost >= x.cost) break;
        h->at[i] = h->at[c];
        i = c;
    }
    if (h->n) h->at[i] = x;
    return top;
}

/* --- costs --- */

static bool is_available(const greedy *g, uint32_t v)
{
    return g->p->value[v].pinned || (g->live_until[v] >= g->t && g->live_until[v] != INV_NEVER);
}

/* Of v from where it was last up to step t. */
static double keep_cost(const greedy *g, uint32_t v, uint32_t t)
{
    if (g->live_until[v] == INV_NEVER) return INFINITY;
    if (g->p->value[v].no_store && g->remat[v] == INV_NO_REMAT) /* dearer than any one way to have it again */
        return g->p->cost + (g->cheapest[v] == KEEP ? 0 : g->p->edge[g->cheapest[v]].cost);
    const double nbytes = (double)g->p->value[v].nbytes;
    const uint32_t from =
        g->live_until[v] + !g->inplace[v]; /* first step that costs; sum[k] is that of the steps before k */
    return nbytes > 0 ? nbytes * (g->price_sum[t + 1] - g->price_sum[from]) : 0;
}

static bool was_kept(const greedy *g, uint32_t v)
{
    const uint32_t *l = g->prices->warm_start;
    return l && l[v] != UINT32_MAX && g->remat[v] == INV_NO_REMAT && g->t <= l[v];
}

static double edge_cost(const greedy *g, uint32_t id, uint32_t v)
{
    if (id == KEEP) return g->checkpoint[v] || was_kept(g, v) ? g->tick : keep_cost(g, v, g->t);
    const inv_pb_edge *e = &g->p->edge[id];
    return g->tick + e->cost +
           (e->side ? (double)e->side * (g->price_sum[g->t + 1] - g->price_sum[g->p->value[v].def]) : 0);
}

static bool edge_usable(const greedy *g, uint32_t id)
{
    const inv_pb_edge *e = &g->p->edge[id];
    return !g->banned[id] && (!e->inverse || g->prices->invert);
}

/* --- derivation: cone, then hyperpath --- */

static void reset_cone_value(greedy *g, uint32_t v)
{
    if (g->stamp[v] == g->now) return;
    g->stamp[v] = g->now;
    g->dist[v] = INFINITY;
    g->tried[v] = 0;
    g->head[v] = g->via[v] = UINT32_MAX;
}

/* What source i of that edge takes at least. */
static double source_at_least(const greedy *g, uint32_t id, uint32_t i)
{
    const uint32_t v = g->p->edge[id].source[i];
    if (is_available(g, v)) return 0;
    return fmin(g->least[g->first[id] + i], edge_cost(g, KEEP, v));
}

/* What that edge takes at least, together with its sources. */
static double edge_at_least(const greedy *g, uint32_t id, uint32_t v)
{
    double price_sum = edge_cost(g, id, v);
    for (uint32_t i = 0; id != KEEP && i < g->p->edge[id].nsource; i++) price_sum += source_at_least(g, id, i);
    return price_sum;
}

static bool add_cone_edge(greedy *g, uint32_t id, uint32_t v, double path, double most)
{
    const uint32_t at = (uint32_t)g->cone.n, n = id == KEEP ? 0 : g->p->edge[id].nsource;
    cone_edge e = {id, 0, v, edge_cost(g, id, v)};
    if (g->cone.n >= MAX_CONE) return true;
    if (!inv_vec_push(g->a, &g->cone, e)) return false;
    for (uint32_t i = 0; i < n; i++) {
        uint32_t s = g->p->edge[id].source[i];
        if (is_available(g, s)) continue;
        reset_cone_value(g, s);
        cone_link l = {at, g->head[s]};
        g->head[s] = (uint32_t)g->links.n;
        g->cone.at[at].open++;
        if (!inv_vec_push(g->a, &g->links, l)) return false;
        if (g->tried[s] == ALL) continue;
        if (!heap_push(g->a, &g->queue, path + most - source_at_least(g, id, i), s, id)) return false;
    }
    return true;
}

static bool edge_reads(const inv_pb_edge *e, uint32_t v)
{
    for (uint32_t i = 0; i < e->nsource; i++)
        if (e->source[i] == v) return true;
    return false;
}

/* Whether the edge starts from all that `other` gives: then it is no way to a source of that one. */
static bool is_circular(const inv_pb_edge *e, const inv_pb_edge *other)
{
    for (uint32_t i = 0; i < other->ntarget; i++)
        if (!edge_reads(e, other->target[i])) return false;
    return true;
}

/* The ways to a value, beside which the target takes at least it->cost. What takes more than to keep the value is none;
 * neither is what starts from all that the edge gives which wants the value, but it may be one for another edge. */
static bool add_ways(greedy *g, const heap_item *it, double cap)
{
    const inv_pb_value *v = &g->p->value[it->v];
    const bool target = it->by == KEEP;
    const uint64_t tried = g->tried[it->v], looked = (uint64_t)1 << MOST_WAYS; /* that bit is all those behind, too */
    const double keep = target ? INFINITY : edge_cost(g, KEEP, it->v);
    uint64_t now = ALL;
    if (!target && !tried && it->cost + keep <= cap && !add_cone_edge(g, KEEP, it->v, it->cost, keep)) return false;
    for (uint32_t i = 0; i < v->n; i++) {
        const uint32_t id = g->p->edge_of[v->first + i];
        const uint64_t bit = i < MOST_WAYS ? (uint64_t)1 << i : looked;
        if (!edge_usable(g, id) || tried & bit) continue;
        if (bit != looked && !target && is_circular(&g->p->edge[id], &g->p->edge[it->by])) {
            now &= ~bit;
            continue;
        }
        const double most = edge_at_least(g, id, it->v);
        if (most < keep && it->cost + most <= cap && !add_cone_edge(g, id, it->v, it->cost, most)) return false;
    }
    g->tried[it->v] = now;
    return true;
}

/* All edges that could take part in deriving `target` for at most `cap`. */
static bool collect_cone(greedy *g, uint32_t target, double cap)
{
    g->now++;
    g->links.n = g->cone.n = g->queue.n = 0;
    reset_cone_value(g, target);
    if (!heap_push(g->a, &g->queue, 0, target, KEEP)) return false;
    while (g->queue.n) {
        const heap_item it = heap_pop(&g->queue);
        if (g->tried[it.v] == ALL) continue;
        g->work++;
        if (!add_ways(g, &it, cap)) return false;
    }
    return true;
}

static bool relax_edge(greedy *g, uint32_t at)
{
    const cone_edge *e = &g->cone.at[at];
    if (e->cost >= g->dist[e->gives]) return true;
    g->dist[e->gives] = e->cost;
    g->via[e->gives] = at;
    return heap_push(g->a, &g->queue, e->cost, e->gives, 0);
}

/* Cheapest derivation of target over the cone: dist and via. */
static bool settle_hyperpath(greedy *g, uint32_t target)
{
    g->queue.n = 0;
    for (uint32_t i = 0; i < g->cone.n; i++)
        if (g->cone.at[i].open == 0 && !relax_edge(g, i)) return false;
    while (g->queue.n) {
        heap_item it = heap_pop(&g->queue);
        if (it.cost > g->dist[it.v] || g->head[it.v] == SETTLED) continue;
        if (it.v == target) return true;
        uint32_t l = g->head[it.v];
        g->head[it.v] = SETTLED;
        for (; l != UINT32_MAX; l = g->links.at[l].next) {
            cone_edge *e = &g->cone.at[g->links.at[l].edge];
            e->cost = g->shared ? fmax(e->cost, edge_cost(g, e->id, e->gives) + it.cost) : e->cost + it.cost;
            if (--e->open == 0 && !relax_edge(g, g->links.at[l].edge)) return false;
        }
    }
    return true;
}

/* Dist and via of target if it costs no more than cap. Near paths first: the cone of a high cap is large. */
static bool find_near_path(greedy *g, uint32_t target, double cap)
{
    const inv_pb_value *v = &g->p->value[target];
    double near = INFINITY;
    for (uint32_t i = v->first; i < v->first + v->n; i++)
        if (edge_usable(g, g->p->edge_of[i])) near = fmin(near, edge_at_least(g, g->p->edge_of[i], target));
    for (near = 1.5 * near + 64 * g->tick;; near *= 3) {
        double most = near < cap ? near : cap;
        if (!collect_cone(g, target, most) || !settle_hyperpath(g, target)) return false;
        if (g->dist[target] <= most || !(near < cap)) return true;
    }
}

/* --- errors --- */

/* A value that the guard refused is read: what was rebuilt up to here is as bad as it was, whatever was estimated. */
static void apply_rejection(greedy *g, uint32_t s)
{
    if (!g->p->guard_rejected || !g->p->guard_rejected[s] || g->rejection_applied[s]) return;
    g->rejection_applied[s] = true;
    for (uint32_t v = 0; v < g->p->nvalue; v++)
        if (g->err[v] > 0) g->err[v] = g->p->max_drift;
}

/* Sets the estimated error of v, derived by that edge; whether it is small enough. It covers the rules' own gain; what
 * comes through a branch is measured by the guard (docs/numerics.md). */
static bool edge_fits(greedy *g, uint32_t v, uint32_t id)
{
    if (id == KEEP) return true;
    const inv_pb_edge *e = &g->p->edge[id];
    double worst = 0;
    for (uint32_t i = 0; i < e->nsource; i++) apply_rejection(g, e->source[i]);
    for (uint32_t i = 0; i < e->nsource; i++) worst = fmax(worst, g->err[e->source[i]]);
    g->err[v] = e->inverse ? e->error_gain * worst + e->added_error : worst;
    if (g->err[v] > g->p->max_drift) return false;
    /* An exact inverse passes its source's error on. */
    return !e->inverse || g->err[v] <= 0 || g->err[v] * g->p->value[v].sensitivity <= g->p->max_drift;
}

/* The picked values below target, sources first. */
static bool list_picks(greedy *g, uint32_t target, id_list *picks)
{
    id_list stack = {0};
    if (!inv_vec_push(g->a, &stack, target)) return false;
    while (stack.n) {
        uint32_t v = stack.at[stack.n - 1];
        if (g->visit[v]) {
            stack.n--;
            if (g->visit[v] != 1) continue;
            g->visit[v] = 2;
            if (!inv_vec_push(g->a, picks, v)) return false;
            continue;
        }
        g->visit[v] = 1;
        uint32_t id = g->cone.at[g->via[v]].id;
        for (uint32_t i = 0; id != KEEP && i < g->p->edge[id].nsource; i++) {
            uint32_t s = g->p->edge[id].source[i];
            if (!is_available(g, s) && !g->visit[s] && !inv_vec_push(g->a, &stack, s)) return false;
        }
    }
    for (size_t i = 0; i < picks->n; i++) g->visit[picks->at[i]] = 0;
    return true;
}

static double path_cost(const greedy *g, const id_list *picks, const id_list *edges)
{
    double price_sum = 0;
    for (size_t i = 0; i < picks->n; i++) price_sum += edge_cost(g, edges->at[i], picks->at[i]);
    return price_sum;
}

static void restore_errors(greedy *g, const id_list *picks, size_t n, const double *err)
{
    for (size_t i = 0; i < n; i++) g->err[picks->at[i]] = err[i];
}

/* Picks and, beside them, the edges; none if target costs more than cap. */
static bool find_allowed_path(greedy *g, uint32_t target, double cap, id_list *picks, id_list *edges)
{
    for (;;) {
        picks->n = edges->n = 0;
        if (!find_near_path(g, target, cap)) return false;
        if (!(g->dist[target] <= cap)) return true;
        if (!list_picks(g, target, picks)) return false;
        size_t bad = 0;
        double *old = INV_ARENA_NEW(g->a, double, picks->n + 1);
        if (!old) return false;
        for (size_t i = 0; i < picks->n; i++) {
            old[i] = g->err[picks->at[i]];
            if (!inv_vec_push(g->a, edges, g->cone.at[g->via[picks->at[i]]].id)) return false;
        }
        while (bad < picks->n && edge_fits(g, picks->at[bad], edges->at[bad])) bad++;
        if (bad == picks->n && g->shared && path_cost(g, picks, edges) > cap) {
            restore_errors(g, picks, bad, old);
            picks->n = 0;
        }
        if (bad >= picks->n) return true;
        uint32_t v = picks->at[bad];
        g->banned[edges->at[bad]] = true;
        /* Errors have added up to this one: kept, it is clean for all that is derived from it later. */
        g->checkpoint[v] = g->err[v] > g->p->max_drift;
        restore_errors(g, picks, bad + 1, old);
    }
}

/* --- the walk --- */

/* v is read: so it is wanted of what gave it. */
static void want_of_remat(greedy *g, uint32_t v)
{
    if (g->remat[v] == INV_NO_REMAT) return;
    inv_remat *r = &g->out->at[g->remat[v]];
    const inv_pb_edge *e = &g->p->edge[r->edge];
    for (uint32_t i = 0; i < e->ntarget; i++)
        if (e->target[i] == v) r->want |= 1u << i;
}

/* A reader at this step could write over one of these. */
static void note_inplace(greedy *g, const uint32_t *list, uint32_t n, uint32_t bits)
{
    for (uint32_t i = 0; i < n; i++)
        if (g->live_until[list[i]] == g->t) g->inplace[list[i]] = false;
    for (uint32_t i = 0; i < n && i < 32 && bits; i++)
        if (bits >> i & 1 && g->live_until[list[i]] == g->t) g->inplace[list[i]] = true;
}

static bool add_remat(greedy *g, uint32_t v, uint32_t id)
{
    const inv_pb_edge *e = &g->p->edge[id];
    const inv_remat r = {g->t, id, 0};
    for (uint32_t i = 0; i < e->nsource; i++) want_of_remat(g, e->source[i]);
    note_inplace(g, e->source, e->nsource, e->overwrites);
    for (uint32_t i = 0; i < e->ntarget; i++) {
        const uint32_t y = e->target[i];
        if (y != v && is_available(g, y)) continue;
        g->remat[y] = (uint32_t)g->out->n;
        g->live_until[y] = g->t;
        g->inplace[y] = false;
        g->err[y] = g->err[v];
    }
    if (!inv_vec_push(g->a, g->out, r)) return false;
    want_of_remat(g, v);
    return true;
}

static bool provide_value(greedy *g, uint32_t v);

/* Whether a pick that is to be kept is first tried to be derived itself; what that takes is not doubted in turn. So is
 * a state in which errors have added up. */
static bool is_rederived(const greedy *g, uint32_t v, uint32_t edge)
{
    if (edge != KEEP || g->rederiving) return false;
    return g->checkpoint[v] ? g->remat[v] == INV_NO_REMAT : g->prices->rederive_kept && was_kept(g, v);
}

static bool derive_value(greedy *g, uint32_t target, double cap, bool *done)
{
    id_list picks = {0}, edges = {0};
    *done = false;
    if (!find_allowed_path(g, target, cap, &picks, &edges)) return false;
    for (size_t i = 0; i < picks.n; i++) {
        uint32_t v = picks.at[i];
        if (is_available(g, v)) continue;
        if (is_rederived(g, v, edges.at[i])) {
            g->rederiving = true;
            if (!provide_value(g, v)) return false;
            g->rederiving = false;
            continue;
        }
        /* what was doubted came with an error */
        if (edges.at[i] != KEEP && !edge_fits(g, v, edges.at[i])) edges.at[i] = KEEP;
        if (edges.at[i] == KEEP) {
            if (g->remat[v] == INV_NO_REMAT) g->err[v] = 0;
            g->live_until[v] = g->t;
            g->inplace[v] = false;
        } else if (!add_remat(g, v, edges.at[i])) {
            return false;
        }
    }
    *done = picks.n > 0;
    return true;
}

static bool provide_value(greedy *g, uint32_t v)
{
    const inv_pb_value *value = &g->p->value[v];
    bool done = is_available(g, v);
    for (uint32_t i = 0; !done && g->prices->split_operands && value->splittable && i < value->n; i++) {
        const inv_pb_edge *e = &g->p->edge[g->p->edge_of[value->first + i]];
        if (e->inverse) continue;
        for (uint32_t k = 0; k < e->nsource; k++)
            if (!provide_value(g, e->source[k])) return false;
    }
    if (!done && value->n) {
        uint32_t last = was_kept(g, v) ? g->prices->warm_start[v] : g->t;
        const double cap = keep_cost(g, v, last);
        if (!derive_value(g, v, cap, &done)) return false;
        if (!done && g->checkpoint[v] && g->remat[v] == INV_NO_REMAT) {
            g->shared = true;
            if (!derive_value(g, v, cap, &done)) return false;
            g->shared = false;
        }
    }
    if (!done) {
        g->live_until[v] = g->t;
        g->inplace[v] = false;
    }
    want_of_remat(g, v);
    return true;
}

/* The cheapest edge that gives v and is no way in a circle for `other`; NULL: of any. */
static uint32_t cheapest_edge(const greedy *g, uint32_t v, const inv_pb_edge *other)
{
    const inv_problem *p = g->p;
    uint32_t found = KEEP;
    for (uint32_t i = p->value[v].first; i < p->value[v].first + p->value[v].n; i++) {
        const uint32_t id = p->edge_of[i];
        if (!edge_usable(g, id) || (found != KEEP && p->edge[id].cost >= p->edge[found].cost)) continue;
        if (!other || !is_circular(&p->edge[id], other)) found = id;
    }
    return found;
}

static bool list_least_costs(greedy *g)
{
    const inv_problem *p = g->p;
    uint32_t n = 0, *any = g->cheapest = INV_ARENA_NEW(g->a, uint32_t, p->nvalue + 1);
    for (uint32_t id = 0; id < p->nedge; id++) n += p->edge[id].nsource;
    g->first = INV_ARENA_NEW(g->a, uint32_t, p->nedge + 1);
    g->least = INV_ARENA_NEW(g->a, double, n + 1);
    if (g->a->failed) return false;
    for (uint32_t v = 0; v < p->nvalue; v++) any[v] = cheapest_edge(g, v, NULL);
    n = 0;
    for (uint32_t id = 0; id < p->nedge; id++) {
        const inv_pb_edge *e = &p->edge[id];
        g->first[id] = n;
        for (uint32_t i = 0; i < e->nsource; i++) {
            uint32_t by = any[e->source[i]];
            if (by != KEEP && is_circular(&p->edge[by], e)) by = cheapest_edge(g, e->source[i], e);
            g->least[n++] = by == KEEP ? INFINITY : p->edge[by].cost;
        }
    }
    return true;
}

static bool prepare_greedy(greedy *g)
{
    const inv_problem *p = g->p;
    inv_arena *a = g->a;
    const size_t n = p->nvalue + 1;
    g->tick = p->cost * 1e-10;
    g->price_sum = INV_ARENA_NEW(a, double, p->nstep + 2);
    g->inplace = INV_ARENA_NEW(a, bool, n);
    g->live_until = INV_ARENA_NEW(a, uint32_t, n);
    g->remat = INV_ARENA_NEW(a, uint32_t, n);
    g->err = INV_ARENA_NEW(a, double, n);
    g->dist = INV_ARENA_NEW(a, double, n);
    g->tried = INV_ARENA_NEW(a, uint64_t, n);
    g->stamp = INV_ARENA_NEW(a, uint32_t, n);
    g->head = INV_ARENA_NEW(a, uint32_t, n);
    g->via = INV_ARENA_NEW(a, uint32_t, n);
    g->visit = INV_ARENA_NEW(a, uint8_t, n);
    g->banned = INV_ARENA_NEW(a, bool, p->nedge + 1);
    g->checkpoint = INV_ARENA_NEW(a, bool, n);
    g->rejection_applied = INV_ARENA_NEW(a, bool, n);
    if (a->failed || !list_least_costs(g)) return false;
    for (uint32_t v = 0; v < p->nvalue; v++) {
        g->remat[v] = INV_NO_REMAT;
        g->live_until[v] = p->value[v].def;
    }
    for (g->t = 0; g->t < p->forward; g->t++) {
        const inv_pb_step *s = &p->step[g->t];
        for (uint32_t i = 0; i < s->nread; i++) g->live_until[s->read[i]] = g->t;
        note_inplace(g, s->read, s->nread, s->overwrites);
    }
    for (uint32_t t = 0; t < p->nstep; t++) g->price_sum[t + 1] = g->price_sum[t] + g->prices->step[t];
    return true;
}

inv_status inv_plan_greedy(inv_arena *a, const inv_problem *p, const inv_prices *prices, inv_remats *out, double *work)
{
    greedy g = {.a = a, .p = p, .prices = prices, .out = out};
    out->n = 0;
    bool ok = prepare_greedy(&g);
    for (g.t = p->forward; ok && g.t < p->nstep; g.t++) {
        const inv_pb_step *s = &p->step[g.t];
        for (uint32_t i = 0; ok && i < s->nread; i++) ok = provide_value(&g, s->read[i]);
        if (ok) note_inplace(&g, s->read, s->nread, s->overwrites);
    }
    *work += g.work + p->nstep + p->nvalue;
    return ok ? inv_plan_prune(a, p, out) : INV_E_NOMEM;
}
