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

typedef struct walker {
    inv_arena *a;
    const inv_problem *p;
    const inv_prices *prices;
    inv_remats *out;
    double *sum;     /* per step: prices of those before it */
    uint32_t t;      /* step that is looked at */
    uint32_t *until; /* per value: last step at which it is there */
    bool *taken;     /* per value: whether its bytes are taken over at that step, if it is there no longer */
    uint32_t *remat; /* per value: what gave it; INV_NO_FIRING: forward */
    double *err;     /* per value: estimated relative error */
    double *least;   /* per source of an edge: cost of the cheapest edge that gives it and does not start from what the
                        edge gives */
    uint32_t *cheapest; /* per value: its cheapest edge; KEEP: it has none */
    uint32_t *first;    /* per edge: where its sources are in `least` */
    uint64_t *tried;    /* per value: which of its edges the cone has looked at */
    double *dist, tick, work;
    uint32_t *stamp, *head, *via, now; /* per value */
    uint8_t *state;                    /* per value: while listing picks */
    bool *banned;                      /* per edge: its result would be off by more than is allowed */
    bool *anchor;                      /* per value: rather kept than what is derived from it */
    bool *heeded;                      /* per value: refused by the guard, and what was rebuilt before it marked */
    bool doubting; /* deriving what was to be kept: what that is derived from is not doubted in turn */
    bool shared;   /* the dearest source of an edge counts for all: they are derived from each other, so that the sum
                      would double from state to state; then what was picked is added up, each edge once */
    INV_VEC(cone_link) links;
    INV_VEC(cone_edge) cone;
    heap queue;
} walker;

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

static bool at_hand(const walker *w, uint32_t v)
{
    return w->p->value[v].forced || (w->until[v] >= w->t && w->until[v] != INV_NEVER);
}

/* Of v from where it was last up to step t. */
static double keeping(const walker *w, uint32_t v, uint32_t t)
{
    if (w->until[v] == INV_NEVER) return INFINITY;
    if (w->p->value[v].shunned && w->remat[v] == INV_NO_REMAT) /* dearer than any one way to have it again */
        return w->p->cost + (w->cheapest[v] == KEEP ? 0 : w->p->edge[w->cheapest[v]].cost);
    const double nbytes = (double)w->p->value[v].nbytes;
    const uint32_t from = w->until[v] + !w->taken[v]; /* first step that costs; sum[k] is that of the steps before k */
    return nbytes > 0 ? nbytes * (w->sum[t + 1] - w->sum[from]) : 0;
}

static bool likely(const walker *w, uint32_t v)
{
    const uint32_t *l = w->prices->likely;
    return l && l[v] != UINT32_MAX && w->remat[v] == INV_NO_REMAT && w->t <= l[v];
}

static double edge_cost(const walker *w, uint32_t id, uint32_t v)
{
    if (id == KEEP) return w->anchor[v] || likely(w, v) ? w->tick : keeping(w, v, w->t);
    const inv_pb_edge *e = &w->p->edge[id];
    return w->tick + e->cost + (e->side ? (double)e->side * (w->sum[w->t + 1] - w->sum[w->p->value[v].def]) : 0);
}

static bool usable(const walker *w, uint32_t id)
{
    const inv_pb_edge *e = &w->p->edge[id];
    return !w->banned[id] && (!e->inverse || w->prices->invert);
}

/* --- derivation: cone, then hyperpath --- */

static void fresh(walker *w, uint32_t v)
{
    if (w->stamp[v] == w->now) return;
    w->stamp[v] = w->now;
    w->dist[v] = INFINITY;
    w->tried[v] = 0;
    w->head[v] = w->via[v] = UINT32_MAX;
}

/* What source i of that edge takes at least. */
static double at_least(const walker *w, uint32_t id, uint32_t i)
{
    const uint32_t v = w->p->edge[id].source[i];
    if (at_hand(w, v)) return 0;
    return fmin(w->least[w->first[id] + i], edge_cost(w, KEEP, v));
}

/* What that edge takes at least, together with its sources. */
static double all_at_least(const walker *w, uint32_t id, uint32_t v)
{
    double sum = edge_cost(w, id, v);
    for (uint32_t i = 0; id != KEEP && i < w->p->edge[id].nsource; i++) sum += at_least(w, id, i);
    return sum;
}

static bool add_cone_edge(walker *w, uint32_t id, uint32_t v, double path, double most)
{
    const uint32_t at = (uint32_t)w->cone.n, n = id == KEEP ? 0 : w->p->edge[id].nsource;
    cone_edge e = {id, 0, v, edge_cost(w, id, v)};
    if (w->cone.n >= MAX_CONE) return true;
    if (!inv_vec_push(w->a, &w->cone, e)) return false;
    for (uint32_t i = 0; i < n; i++) {
        uint32_t s = w->p->edge[id].source[i];
        if (at_hand(w, s)) continue;
        fresh(w, s);
        cone_link l = {at, w->head[s]};
        w->head[s] = (uint32_t)w->links.n;
        w->cone.at[at].open++;
        if (!inv_vec_push(w->a, &w->links, l)) return false;
        if (w->tried[s] == ALL) continue;
        if (!heap_push(w->a, &w->queue, path + most - at_least(w, id, i), s, id)) return false;
    }
    return true;
}

static bool reads(const inv_pb_edge *e, uint32_t v)
{
    for (uint32_t i = 0; i < e->nsource; i++)
        if (e->source[i] == v) return true;
    return false;
}

/* Whether the edge starts from all that `other` gives: then it is no way to a source of that one. */
static bool circular(const inv_pb_edge *e, const inv_pb_edge *other)
{
    for (uint32_t i = 0; i < other->ntarget; i++)
        if (!reads(e, other->target[i])) return false;
    return true;
}

/* The ways to a value, beside which the target takes at least it->cost. What takes more than to keep the value is none;
 * neither is what starts from all that the edge gives which wants the value, but it may be one for another edge. */
static bool add_ways(walker *w, const heap_item *it, double cap)
{
    const inv_pb_value *v = &w->p->value[it->v];
    const bool target = it->by == KEEP;
    const uint64_t tried = w->tried[it->v], looked = (uint64_t)1 << MOST_WAYS; /* that bit is all those behind, too */
    const double keep = target ? INFINITY : edge_cost(w, KEEP, it->v);
    uint64_t now = ALL;
    if (!target && !tried && it->cost + keep <= cap && !add_cone_edge(w, KEEP, it->v, it->cost, keep)) return false;
    for (uint32_t i = 0; i < v->n; i++) {
        const uint32_t id = w->p->edge_of[v->first + i];
        const uint64_t bit = i < MOST_WAYS ? (uint64_t)1 << i : looked;
        if (!usable(w, id) || tried & bit) continue;
        if (bit != looked && !target && circular(&w->p->edge[id], &w->p->edge[it->by])) {
            now &= ~bit;
            continue;
        }
        const double most = all_at_least(w, id, it->v);
        if (most < keep && it->cost + most <= cap && !add_cone_edge(w, id, it->v, it->cost, most)) return false;
    }
    w->tried[it->v] = now;
    return true;
}

/* All edges that could take part in deriving `target` for at most `cap`. */
static bool collect_cone(walker *w, uint32_t target, double cap)
{
    w->now++;
    w->links.n = w->cone.n = w->queue.n = 0;
    fresh(w, target);
    if (!heap_push(w->a, &w->queue, 0, target, KEEP)) return false;
    while (w->queue.n) {
        const heap_item it = heap_pop(&w->queue);
        if (w->tried[it.v] == ALL) continue;
        w->work++;
        if (!add_ways(w, &it, cap)) return false;
    }
    return true;
}

static bool relax(walker *w, uint32_t at)
{
    const cone_edge *e = &w->cone.at[at];
    if (e->cost >= w->dist[e->gives]) return true;
    w->dist[e->gives] = e->cost;
    w->via[e->gives] = at;
    return heap_push(w->a, &w->queue, e->cost, e->gives, 0);
}

/* Cheapest derivation of target over the cone: dist and via. */
static bool shortest(walker *w, uint32_t target)
{
    w->queue.n = 0;
    for (uint32_t i = 0; i < w->cone.n; i++)
        if (w->cone.at[i].open == 0 && !relax(w, i)) return false;
    while (w->queue.n) {
        heap_item it = heap_pop(&w->queue);
        if (it.cost > w->dist[it.v] || w->head[it.v] == SETTLED) continue;
        if (it.v == target) return true;
        uint32_t l = w->head[it.v];
        w->head[it.v] = SETTLED;
        for (; l != UINT32_MAX; l = w->links.at[l].next) {
            cone_edge *e = &w->cone.at[w->links.at[l].edge];
            e->cost = w->shared ? fmax(e->cost, edge_cost(w, e->id, e->gives) + it.cost) : e->cost + it.cost;
            if (--e->open == 0 && !relax(w, w->links.at[l].edge)) return false;
        }
    }
    return true;
}

/* Dist and via of target if it costs no more than cap. Near paths first: the cone of a high cap is large. */
static bool cheapest(walker *w, uint32_t target, double cap)
{
    const inv_pb_value *v = &w->p->value[target];
    double near = INFINITY;
    for (uint32_t i = v->first; i < v->first + v->n; i++)
        if (usable(w, w->p->edge_of[i])) near = fmin(near, all_at_least(w, w->p->edge_of[i], target));
    for (near = 1.5 * near + 64 * w->tick;; near *= 3) {
        double most = near < cap ? near : cap;
        if (!collect_cone(w, target, most) || !shortest(w, target)) return false;
        if (w->dist[target] <= most || !(near < cap)) return true;
    }
}

/* --- errors --- */

/* A value that the guard refused is read: what was rebuilt up to here is as bad as it was, whatever was estimated. */
static void heed_refusal(walker *w, uint32_t s)
{
    if (!w->p->refused || !w->p->refused[s] || w->heeded[s]) return;
    w->heeded[s] = true;
    for (uint32_t v = 0; v < w->p->nvalue; v++)
        if (w->err[v] > 0) w->err[v] = w->p->max_drift;
}

/* Sets the estimated error of v, derived by that edge; whether it is small enough. It covers the rules' own gain; what
 * comes through a branch is measured by the guard (docs/numerics.md). */
static bool edge_fits(walker *w, uint32_t v, uint32_t id)
{
    if (id == KEEP) return true;
    const inv_pb_edge *e = &w->p->edge[id];
    double worst = 0;
    for (uint32_t i = 0; i < e->nsource; i++) heed_refusal(w, e->source[i]);
    for (uint32_t i = 0; i < e->nsource; i++) worst = fmax(worst, w->err[e->source[i]]);
    w->err[v] = e->inverse ? e->gain * worst + e->own : worst;
    if (w->err[v] > w->p->max_drift) return false;
    /* An exact inverse passes its source's error on. */
    return !e->inverse || w->err[v] <= 0 || w->err[v] * w->p->value[v].steep <= w->p->max_drift;
}

/* The picked values below target, sources first. */
static bool list_picks(walker *w, uint32_t target, id_list *picks)
{
    id_list stack = {0};
    if (!inv_vec_push(w->a, &stack, target)) return false;
    while (stack.n) {
        uint32_t v = stack.at[stack.n - 1];
        if (w->state[v]) {
            stack.n--;
            if (w->state[v] != 1) continue;
            w->state[v] = 2;
            if (!inv_vec_push(w->a, picks, v)) return false;
            continue;
        }
        w->state[v] = 1;
        uint32_t id = w->cone.at[w->via[v]].id;
        for (uint32_t i = 0; id != KEEP && i < w->p->edge[id].nsource; i++) {
            uint32_t s = w->p->edge[id].source[i];
            if (!at_hand(w, s) && !w->state[s] && !inv_vec_push(w->a, &stack, s)) return false;
        }
    }
    for (size_t i = 0; i < picks->n; i++) w->state[picks->at[i]] = 0;
    return true;
}

static double sum_of(const walker *w, const id_list *picks, const id_list *edges)
{
    double sum = 0;
    for (size_t i = 0; i < picks->n; i++) sum += edge_cost(w, edges->at[i], picks->at[i]);
    return sum;
}

static void take_back(walker *w, const id_list *picks, size_t n, const double *err)
{
    for (size_t i = 0; i < n; i++) w->err[picks->at[i]] = err[i];
}

/* Picks and, beside them, the edges; none if target costs more than cap. */
static bool hyperpath(walker *w, uint32_t target, double cap, id_list *picks, id_list *edges)
{
    for (;;) {
        picks->n = edges->n = 0;
        if (!cheapest(w, target, cap)) return false;
        if (!(w->dist[target] <= cap)) return true;
        if (!list_picks(w, target, picks)) return false;
        size_t bad = 0;
        double *old = INV_ARENA_NEW(w->a, double, picks->n + 1);
        if (!old) return false;
        for (size_t i = 0; i < picks->n; i++) {
            old[i] = w->err[picks->at[i]];
            if (!inv_vec_push(w->a, edges, w->cone.at[w->via[picks->at[i]]].id)) return false;
        }
        while (bad < picks->n && edge_fits(w, picks->at[bad], edges->at[bad])) bad++;
        if (bad == picks->n && w->shared && sum_of(w, picks, edges) > cap) {
            take_back(w, picks, bad, old);
            picks->n = 0;
        }
        if (bad >= picks->n) return true;
        uint32_t v = picks->at[bad];
        w->banned[edges->at[bad]] = true;
        /* Errors have added up to this one: kept, it is clean for all that is derived from it later. */
        w->anchor[v] = w->err[v] > w->p->max_drift;
        take_back(w, picks, bad + 1, old);
    }
}

/* --- the walk --- */

/* v is read: so it is wanted of what gave it. */
static void want(walker *w, uint32_t v)
{
    if (w->remat[v] == INV_NO_REMAT) return;
    inv_remat *f = &w->out->at[w->remat[v]];
    const inv_pb_edge *e = &w->p->edge[f->edge];
    for (uint32_t i = 0; i < e->ntarget; i++)
        if (e->target[i] == v) f->want |= 1u << i;
}

/* A reader at this step could write over one of these. */
static void take(walker *w, const uint32_t *list, uint32_t n, uint32_t bits)
{
    for (uint32_t i = 0; i < n; i++)
        if (w->until[list[i]] == w->t) w->taken[list[i]] = false;
    for (uint32_t i = 0; i < n && i < 32 && bits; i++)
        if (bits >> i & 1 && w->until[list[i]] == w->t) w->taken[list[i]] = true;
}

static bool add_remat(walker *w, uint32_t v, uint32_t id)
{
    const inv_pb_edge *e = &w->p->edge[id];
    const inv_remat f = {w->t, id, 0};
    for (uint32_t i = 0; i < e->nsource; i++) want(w, e->source[i]);
    take(w, e->source, e->nsource, e->overwrites);
    for (uint32_t i = 0; i < e->ntarget; i++) {
        const uint32_t y = e->target[i];
        if (y != v && at_hand(w, y)) continue;
        w->remat[y] = (uint32_t)w->out->n;
        w->until[y] = w->t;
        w->taken[y] = false;
        w->err[y] = w->err[v];
    }
    if (!inv_vec_push(w->a, w->out, f)) return false;
    want(w, v);
    return true;
}

static bool need(walker *w, uint32_t v);

/* Whether a pick that is to be kept is first tried to be derived itself; what that takes is not doubted in turn. So is
 * a state in which errors have added up. */
static bool doubted(const walker *w, uint32_t v, uint32_t edge)
{
    if (edge != KEEP || w->doubting) return false;
    return w->anchor[v] ? w->remat[v] == INV_NO_REMAT : w->prices->lean && likely(w, v);
}

static bool derive(walker *w, uint32_t target, double cap, bool *done)
{
    id_list picks = {0}, edges = {0};
    *done = false;
    if (!hyperpath(w, target, cap, &picks, &edges)) return false;
    for (size_t i = 0; i < picks.n; i++) {
        uint32_t v = picks.at[i];
        if (at_hand(w, v)) continue;
        if (doubted(w, v, edges.at[i])) {
            w->doubting = true;
            if (!need(w, v)) return false;
            w->doubting = false;
            continue;
        }
        /* what was doubted came with an error */
        if (edges.at[i] != KEEP && !edge_fits(w, v, edges.at[i])) edges.at[i] = KEEP;
        if (edges.at[i] == KEEP) {
            if (w->remat[v] == INV_NO_REMAT) w->err[v] = 0;
            w->until[v] = w->t;
            w->taken[v] = false;
        } else if (!add_remat(w, v, edges.at[i])) {
            return false;
        }
    }
    *done = picks.n > 0;
    return true;
}

static bool need(walker *w, uint32_t v)
{
    const inv_pb_value *value = &w->p->value[v];
    bool done = at_hand(w, v);
    for (uint32_t i = 0; !done && w->prices->apart && value->apart && i < value->n; i++) {
        const inv_pb_edge *e = &w->p->edge[w->p->edge_of[value->first + i]];
        if (e->inverse) continue;
        for (uint32_t k = 0; k < e->nsource; k++)
            if (!need(w, e->source[k])) return false;
    }
    if (!done && value->n) {
        uint32_t last = likely(w, v) ? w->prices->likely[v] : w->t;
        const double cap = keeping(w, v, last);
        if (!derive(w, v, cap, &done)) return false;
        if (!done && w->anchor[v] && w->remat[v] == INV_NO_REMAT) {
            w->shared = true;
            if (!derive(w, v, cap, &done)) return false;
            w->shared = false;
        }
    }
    if (!done) {
        w->until[v] = w->t;
        w->taken[v] = false;
    }
    want(w, v);
    return true;
}

/* The cheapest edge that gives v and is no way in a circle for `other`; NULL: of any. */
static uint32_t cheapest_edge(const walker *w, uint32_t v, const inv_pb_edge *other)
{
    const inv_problem *p = w->p;
    uint32_t found = KEEP;
    for (uint32_t i = p->value[v].first; i < p->value[v].first + p->value[v].n; i++) {
        const uint32_t id = p->edge_of[i];
        if (!usable(w, id) || (found != KEEP && p->edge[id].cost >= p->edge[found].cost)) continue;
        if (!other || !circular(&p->edge[id], other)) found = id;
    }
    return found;
}

static bool list_least(walker *w)
{
    const inv_problem *p = w->p;
    uint32_t n = 0, *any = w->cheapest = INV_ARENA_NEW(w->a, uint32_t, p->nvalue + 1);
    for (uint32_t id = 0; id < p->nedge; id++) n += p->edge[id].nsource;
    w->first = INV_ARENA_NEW(w->a, uint32_t, p->nedge + 1);
    w->least = INV_ARENA_NEW(w->a, double, n + 1);
    if (!any || !w->first || !w->least) return false;
    for (uint32_t v = 0; v < p->nvalue; v++) any[v] = cheapest_edge(w, v, NULL);
    n = 0;
    for (uint32_t id = 0; id < p->nedge; id++) {
        const inv_pb_edge *e = &p->edge[id];
        w->first[id] = n;
        for (uint32_t i = 0; i < e->nsource; i++) {
            uint32_t by = any[e->source[i]];
            if (by != KEEP && circular(&p->edge[by], e)) by = cheapest_edge(w, e->source[i], e);
            w->least[n++] = by == KEEP ? INFINITY : p->edge[by].cost;
        }
    }
    return true;
}

static bool prepare(walker *w)
{
    const inv_problem *p = w->p;
    inv_arena *a = w->a;
    const size_t n = p->nvalue + 1;
    w->tick = p->cost * 1e-10;
    w->sum = INV_ARENA_NEW(a, double, p->nstep + 2);
    w->taken = INV_ARENA_NEW(a, bool, n);
    w->until = INV_ARENA_NEW(a, uint32_t, n);
    w->remat = INV_ARENA_NEW(a, uint32_t, n);
    w->err = INV_ARENA_NEW(a, double, n);
    w->dist = INV_ARENA_NEW(a, double, n);
    w->tried = INV_ARENA_NEW(a, uint64_t, n);
    w->stamp = INV_ARENA_NEW(a, uint32_t, n);
    w->head = INV_ARENA_NEW(a, uint32_t, n);
    w->via = INV_ARENA_NEW(a, uint32_t, n);
    w->state = INV_ARENA_NEW(a, uint8_t, n);
    w->banned = INV_ARENA_NEW(a, bool, p->nedge + 1);
    w->anchor = INV_ARENA_NEW(a, bool, n);
    w->heeded = INV_ARENA_NEW(a, bool, n);
    if (!w->sum || !w->taken || !w->until || !w->remat || !w->err || !w->dist || !w->tried || !w->stamp || !w->head ||
        !w->via || !w->state || !w->banned || !w->anchor || !w->heeded || !list_least(w))
        return false;
    for (uint32_t v = 0; v < p->nvalue; v++) {
        w->remat[v] = INV_NO_REMAT;
        w->until[v] = p->value[v].def;
    }
    for (w->t = 0; w->t < p->forward; w->t++) {
        const inv_pb_step *s = &p->step[w->t];
        for (uint32_t i = 0; i < s->nread; i++) w->until[s->read[i]] = w->t;
        take(w, s->read, s->nread, s->overwrites);
    }
    for (uint32_t t = 0; t < p->nstep; t++) w->sum[t + 1] = w->sum[t] + w->prices->step[t];
    return true;
}

inv_status inv_walk_prices(inv_arena *a, const inv_problem *p, const inv_prices *prices, inv_remats *out, double *work)
{
    walker w = {.a = a, .p = p, .prices = prices, .out = out};
    out->n = 0;
    bool ok = prepare(&w);
    for (w.t = p->forward; ok && w.t < p->nstep; w.t++) {
        const inv_pb_step *s = &p->step[w.t];
        for (uint32_t i = 0; ok && i < s->nread; i++) ok = need(&w, s->read[i]);
        if (ok) take(&w, s->read, s->nread, s->overwrites);
    }
    *work += w.work + p->nstep + p->nvalue;
    return ok ? inv_plan_prune(a, p, out) : INV_E_NOMEM;
}
