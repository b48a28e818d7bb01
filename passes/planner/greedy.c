/* SPDX-License-Identifier: Apache-2.0
 * Builds one plan at given prices of memory, greedily: it goes through backward once, and gets each value that a step
 * reads in the cheaper of two ways. To keep it since it was live last costs its bytes times the prices of the steps
 * between; to derive it costs the cheapest hyperpath (Knuth 1977, Dijkstra's algorithm for B-edges) from values that
 * are live, or are kept at their own price. What one reader had rematerialised is live for the next, so nothing is
 * evaluated twice for one gradient. With a warm start, values that an earlier plan kept cost nothing more, and
 * derivations from them pay that did not pay alone.
 * The search for a hyperpath looks at a cone only: the edges that can take part in a derivation of at most `cap`, found
 * backwards from the target by lower bounds, with a cap that grows. The bounds are the costs of the cheapest hyperpaths
 * to all values at the turn from forward to backward: later it costs more to keep a value, and where one has become
 * available, its bound and those behind it are lowered. Most values of a recurrent network can only be kept, which is
 * seen at once so. A source costs no less, either, than its cheapest edge that is not circular for who reads it, which
 * these bounds do not know. An edge whose estimated error would exceed the limit is banned, and the search repeated. A
 * pass takes some tens of visits per step of backward.
 * requires: inv_problem, prices.
 * gives: rematerialisations, some of which nobody may read. */
#include <math.h>
#include <string.h>

#include "passes/planner/heap.h"
#include "passes/planner/problem.h"

enum { MAX_CONE = 20000, NEXT_CAP = 4 };
enum { MANY_VISITS = 100000, PER_EDGE = 8 }; /* visits after which bounds are found anew, the larger of both */
#define KEEP UINT32_MAX                      /* stands for an edge: the value is kept since it was live last */
#define SETTLED (UINT32_MAX - 1)

/* A way that is still to be followed, the cheapest first. */
typedef struct queued_value {
    double cost;
    uint32_t v;
} queued_value;
INV_HEAP(value_queue, queued_value, cost)

/* A list entry: this edge of the cone reads the value. */
typedef struct cone_link {
    uint32_t edge, next;
} cone_link;
/* An edge of the cone, which gives `gives`, with what its sources cost so far. */
typedef struct cone_edge {
    uint32_t id, open, gives; /* open: number of sources whose cost is not known yet */
    double cost;
} cone_edge;

typedef INV_VEC(uint32_t) id_list;

/* A value, as the pass has it so far. */
typedef struct greedy_value {
    uint32_t live_until; /* last step at which it is live so far */
    bool inplace;        /* that step may write in its place, so keeping it longer costs that step, too */
    uint32_t remat;      /* the rematerialisation that gave it last; INV_NO_REMAT: forward did */
    double err;          /* estimated relative error */
    double bound;        /* no way to have it costs less, be it kept or derived */
    bool checkpoint;     /* deriving it would have added up too much error, so derivations start from it: they may keep
                          * it at next to no charge */
    /* of the derivation under way, valid if `stamp` is g->now */
    uint32_t stamp;
    bool live;     /* it is available */
    double keep;   /* what keeping it up to now costs; 0 if it is live */
    uint32_t head; /* the first of the cone's edges that read it, in g->links; SETTLED once its cost is known */
    uint32_t via;  /* index in g->cone of the edge that gives it at cost `dist` */
    double dist;   /* the least cost found so far */
    bool tried;    /* its edges are in the cone or left out for good */
    uint8_t visit; /* while picks are listed: 1 on the stack, 2 listed */
} greedy_value;

/* An edge, as far as a derivation looks at it, in one cache line. */
typedef struct greedy_edge {
    const uint32_t *source, *target;
    double cost; /* with the tick */
    size_t side;
    uint32_t nsource, ntarget;
    uint32_t read; /* number of its first read: reads are numbered, edge by edge */
    bool usable;   /* neither an inverse, where these may not be used, nor off by more than is allowed */
} greedy_edge;

/* The pass at step t. */
typedef struct greedy {
    inv_arena *a;
    const inv_problem *p;
    const inv_prices *prices;
    inv_remats *out;
    greedy_value *value;
    greedy_edge *edge;
    double *price_sum; /* per step: sum of the prices of the steps before it */
    uint32_t t;        /* the step that is looked at */
    double *least;     /* per read: what the source's cheapest edge costs that is not circular for the one that reads */
    uint32_t *reader;  /* edges, grouped by the values that they read */
    uint32_t *first;   /* per value: the first of its readers; of the value behind: their end */
    double tick;       /* a small cost for each edge, so that of equal paths the shortest is taken */
    double work;       /* visits */
    double bounded;    /* visits made when bounds were found last */
    uint32_t now;      /* number of the derivation under way */
    bool suspect;      /* a path that was taken reads what the guard has rejected (see error_estimate.c) */
    bool rederiving; /* a value that was to be kept is being derived: what that takes is not derived instead in turn */
    bool combine_by_max; /* An edge costs as much as its dearest source, not as the sum of all: sources of a reversible
                          * chain share ancestors, so a sum would double with each link. path_cost adds up the true
                          * cost of what is picked. */
    INV_VEC(cone_link) links;
    INV_VEC(cone_edge) cone;
    value_queue queue;
} greedy;

/* --- costs --- */

static bool is_available(const greedy *g, uint32_t v)
{
    return g->p->value[v].pinned || g->value[v].live_until >= g->t;
}

/* Returns what the cheapest edge that gives v costs; with `reader` the cheapest that is not circular for it, as
 * one is that reads all that the reader gives. */
static double least_cost(const greedy *g, uint32_t v, const greedy_edge *reader)
{
    double least = INFINITY;
    for (uint32_t i = g->p->value[v].first; i < g->p->value[v].first + g->p->value[v].n; i++) {
        const inv_pb_edge *e = &g->p->edge[g->p->edge_of[i]];
        if (e->cost >= least || (e->inverse && !g->prices->invert)) continue;
        if (!reader || !inv_pb_has_all(e->source, e->nsource, reader->target, reader->ntarget)) least = e->cost;
    }
    return least;
}

/* Returns the cost of keeping v since it was live last up to step t. */
static double keep_cost(const greedy *g, uint32_t v, uint32_t t)
{
    if (g->p->value[v].no_store && g->value[v].remat == INV_NO_REMAT) { /* dearer than any way to rematerialise it */
        const double least = least_cost(g, v, NULL);
        return g->p->cost + (least < INFINITY ? least : 0);
    }
    const double nbytes = (double)g->p->value[v].nbytes;
    const uint32_t from = g->value[v].live_until + !g->value[v].inplace; /* the first step that is to be paid */
    return nbytes > 0 ? nbytes * (g->price_sum[t + 1] - g->price_sum[from]) : 0;
}

static bool was_kept(const greedy *g, uint32_t v)
{
    const uint32_t *l = g->prices->warm_start;
    return l && l[v] != UINT32_MAX && g->value[v].remat == INV_NO_REMAT && g->t <= l[v];
}

static double edge_cost(const greedy *g, uint32_t id, uint32_t v)
{
    if (id == KEEP) return g->value[v].checkpoint || was_kept(g, v) ? g->tick : keep_cost(g, v, g->t);
    const greedy_edge *e = &g->edge[id];
    return e->cost + (e->side ? (double)e->side * (g->price_sum[g->t + 1] - g->price_sum[g->p->value[v].def]) : 0);
}

static bool enqueue_value(greedy *g, double cost, uint32_t v)
{
    return value_queue_push(g->a, &g->queue, (queued_value){cost, v});
}

/* --- bounds --- */

static bool set_bound(greedy *g, uint32_t v, double cost)
{
    if (cost >= g->value[v].bound) return true;
    g->value[v].bound = cost;
    return enqueue_value(g, cost, v);
}

/* Lowers the bounds of what is derived from values whose bounds are lower now (Knuth 1977). */
static bool spread_bounds(greedy *g)
{
    while (g->queue.n) {
        const queued_value it = value_queue_pop(&g->queue);
        if (it.cost > g->value[it.v].bound) continue;
        for (uint32_t k = g->first[it.v]; k < g->first[it.v + 1]; k++) {
            const uint32_t id = g->reader[k];
            const greedy_edge *e = &g->edge[id];
            double sum = 0;
            if (!e->usable) continue;
            for (uint32_t i = 0; i < e->nsource; i++) sum += g->value[e->source[i]].bound;
            for (uint32_t i = 0; i < e->ntarget; i++)
                if (!set_bound(g, e->target[i], sum + edge_cost(g, id, e->target[i]))) return false;
        }
    }
    return true;
}

/* Finds all bounds anew. They stay bounds at later steps, where it costs more to keep a value, but for values that have
 * become available; these lower them (make_available). */
static bool bound_values(greedy *g)
{
    g->queue.n = 0;
    g->bounded = g->work;
    for (uint32_t v = 0; v < g->p->nvalue; v++) g->value[v].bound = INFINITY;
    for (uint32_t v = 0; v < g->p->nvalue; v++)
        if (!set_bound(g, v, is_available(g, v) ? 0 : edge_cost(g, KEEP, v))) return false;
    for (uint32_t id = 0; id < g->p->nedge; id++)
        for (uint32_t i = 0; g->edge[id].nsource == 0 && g->edge[id].usable && i < g->edge[id].ntarget; i++)
            if (!set_bound(g, g->edge[id].target[i], edge_cost(g, id, g->edge[id].target[i]))) return false;
    return spread_bounds(g);
}

static bool lower_bound(greedy *g, uint32_t v, double cost)
{
    g->queue.n = 0;
    return set_bound(g, v, cost) && spread_bounds(g);
}

/* v is available at this step, and for next to nothing at the next ones. */
static bool make_available(greedy *g, uint32_t v)
{
    g->value[v].live_until = g->t;
    g->value[v].inplace = false;
    return lower_bound(g, v, 0);
}

/* --- derivation: cone, then hyperpath --- */

/* The value as the derivation under way has it. */
static greedy_value *cone_value(greedy *g, uint32_t v)
{
    greedy_value *x = &g->value[v];
    if (x->stamp == g->now) return x;
    x->stamp = g->now;
    x->live = is_available(g, v);
    x->keep = x->live ? 0 : edge_cost(g, KEEP, v);
    x->dist = INFINITY;
    x->tried = false;
    x->head = x->via = UINT32_MAX;
    return x;
}

/* Returns a lower bound on the cost of having source i of the edge. */
static double source_at_least(greedy *g, const greedy_edge *e, uint32_t i)
{
    const double keep = cone_value(g, e->source[i])->keep, bound = g->combine_by_max ? 0 : g->value[e->source[i]].bound;
    return fmin(keep, fmax(g->least[e->read + i], bound));
}

/* Returns a lower bound on the cost of having all sources of the edge. */
static double with_sources(greedy *g, const greedy_edge *e, double sum)
{
    for (uint32_t i = 0; i < e->nsource; i++) sum += source_at_least(g, e, i);
    return sum;
}

/* Adds an edge to the cone, whose own cost is `cost` and with its sources `most` at least. */
static bool add_cone_edge(greedy *g, uint32_t id, uint32_t v, double path, double cost, double most)
{
    const uint32_t at = (uint32_t)g->cone.n;
    cone_edge e = {id, 0, v, cost};
    if (g->cone.n >= MAX_CONE) return true;
    for (uint32_t i = 0; id != KEEP && i < g->edge[id].nsource; i++) {
        const greedy_edge *of = &g->edge[id];
        greedy_value *x = cone_value(g, of->source[i]);
        if (x->live) continue;
        const cone_link l = {at, x->head};
        x->head = (uint32_t)g->links.n;
        e.open++;
        if (!inv_vec_push(g->a, &g->links, l)) return false;
        if (!x->tried && !enqueue_value(g, path + most - source_at_least(g, of, i), of->source[i])) return false;
    }
    return inv_vec_push(g->a, &g->cone, e);
}

/* Adds the edges that give a value to the cone, and KEEP, given that the rest of the target's derivation costs at least
 * `path`. An edge is left out if keeping the value costs no more, or if the cap is exceeded. */
static bool add_ways(greedy *g, uint32_t v, double path, bool target, double cap)
{
    const inv_pb_value *value = &g->p->value[v];
    greedy_value *x = cone_value(g, v);
    const double keep = target ? INFINITY : x->keep;
    x->tried = true;
    if (path + keep <= cap && !add_cone_edge(g, KEEP, v, path, keep, keep)) return false;
    for (uint32_t i = value->first; i < value->first + value->n; i++) {
        const uint32_t id = g->p->edge_of[i];
        const greedy_edge *e = &g->edge[id];
        if (!e->usable) continue;
        const double cost = edge_cost(g, id, v), most = with_sources(g, e, cost);
        if (most < keep && path + most <= cap && !add_cone_edge(g, id, v, path, cost, most)) return false;
    }
    return true;
}

/* Collects the cone: the edges that could take part in a derivation of `target` for at most `cap`, but no more than
 * MAX_CONE of them. Those of the dearest derivations come last, so it is they that are cut off. */
static bool collect_cone(greedy *g, uint32_t target, double cap)
{
    g->now++;
    g->links.n = g->cone.n = g->queue.n = 0;
    if (!enqueue_value(g, 0, target)) return false;
    while (g->queue.n) {
        const queued_value it = value_queue_pop(&g->queue);
        if (cone_value(g, it.v)->tried) continue;
        g->work++;
        if (!add_ways(g, it.v, it.cost, it.v == target, cap)) return false;
    }
    return true;
}

static bool relax_edge(greedy *g, uint32_t at)
{
    const cone_edge *e = &g->cone.at[at];
    if (e->cost >= g->value[e->gives].dist) return true;
    g->value[e->gives].dist = e->cost;
    g->value[e->gives].via = at;
    return enqueue_value(g, e->cost, e->gives);
}

/* Finds the cheapest derivation of target in the cone. */
static bool settle_hyperpath(greedy *g, uint32_t target)
{
    g->queue.n = 0;
    for (uint32_t i = 0; i < g->cone.n; i++)
        if (g->cone.at[i].open == 0 && !relax_edge(g, i)) return false;
    while (g->queue.n) {
        queued_value it = value_queue_pop(&g->queue);
        if (it.cost > g->value[it.v].dist || g->value[it.v].head == SETTLED) continue;
        if (it.v == target) return true;
        uint32_t l = g->value[it.v].head;
        g->value[it.v].head = SETTLED;
        for (; l != UINT32_MAX; l = g->links.at[l].next) {
            cone_edge *e = &g->cone.at[g->links.at[l].edge];
            e->cost = g->combine_by_max ? fmax(e->cost, edge_cost(g, e->id, e->gives) + it.cost) : e->cost + it.cost;
            if (--e->open == 0 && !relax_edge(g, g->links.at[l].edge)) return false;
        }
    }
    return true;
}

/* Finds the cheapest derivation of target if it costs no more than cap. Near caps come first: a large cap has a large
 * cone. */
static bool find_near_path(greedy *g, uint32_t target, double cap)
{
    const inv_pb_value *v = &g->p->value[target];
    double near = INFINITY;
    if (g->work > g->bounded + fmax(MANY_VISITS, PER_EDGE * (double)g->p->nedge) && !bound_values(g)) return false;
    g->now++;
    for (uint32_t i = v->first; i < v->first + v->n; i++) {
        const uint32_t id = g->p->edge_of[i];
        if (g->edge[id].usable) near = fmin(near, with_sources(g, &g->edge[id], edge_cost(g, id, target)));
    }
    cone_value(g, target)->dist = INFINITY;
    g->work += !(near <= cap);
    if (!(near <= cap)) return true;
    for (near = 1.5 * near + 64 * g->tick;; near *= NEXT_CAP) {
        double most = near < cap ? near : cap;
        if (!collect_cone(g, target, most) || !settle_hyperpath(g, target)) return false;
        if (g->value[target].dist <= most || !(near < cap)) return true;
    }
}

/* --- errors --- */

/* Estimates the error of v, if this edge derives it, and says whether it is allowed. The estimate covers what rules
 * state; what errors grow to on the way through a branch, guards measure in a run (docs/numerics.md). */
static bool edge_fits(greedy *g, uint32_t v, uint32_t id)
{
    if (id == KEEP) return true;
    const inv_problem *p = g->p;
    const inv_pb_edge *e = &p->edge[id];
    double worst = 0;
    for (uint32_t i = 0; i < e->nsource; i++) g->suspect |= p->value[e->source[i]].rejected;
    for (uint32_t i = 0; i < e->nsource; i++) worst = fmax(worst, g->value[e->source[i]].err);
    g->value[v].err = inv_pb_error(e, worst > 0 && g->suspect ? p->max_drift : worst);
    return inv_pb_error_allowed(p, e, v, g->value[v].err);
}

/* Lists the values to be derived or kept for target, sources first (depth first, without recursion). */
static bool list_picks(greedy *g, uint32_t target, id_list *picks)
{
    id_list stack = {0};
    if (!inv_vec_push(g->a, &stack, target)) return false;
    while (stack.n) {
        uint32_t v = stack.at[stack.n - 1];
        if (g->value[v].visit) {
            stack.n--;
            if (g->value[v].visit != 1) continue;
            g->value[v].visit = 2;
            if (!inv_vec_push(g->a, picks, v)) return false;
            continue;
        }
        g->value[v].visit = 1;
        uint32_t id = g->cone.at[g->value[v].via].id;
        for (uint32_t i = 0; id != KEEP && i < g->p->edge[id].nsource; i++) {
            uint32_t s = g->p->edge[id].source[i];
            if (!is_available(g, s) && !g->value[s].visit && !inv_vec_push(g->a, &stack, s)) return false;
        }
    }
    for (size_t i = 0; i < picks->n; i++) g->value[picks->at[i]].visit = 0;
    return true;
}

static double path_cost(const greedy *g, const id_list *picks, const id_list *edges)
{
    double sum = 0;
    for (size_t i = 0; i < picks->n; i++) sum += edge_cost(g, edges->at[i], picks->at[i]);
    return sum;
}

/* Forgets what was estimated for a path that is not taken. */
static void restore_errors(greedy *g, const id_list *picks, size_t n, const double *err, bool suspect)
{
    g->suspect = suspect;
    for (size_t i = 0; i < n; i++) g->value[picks->at[i]].err = err[i];
}

/* Finds the cheapest derivation whose errors are allowed: its values and, beside them, the edges. The list is empty if
 * target costs more than cap. */
static bool find_allowed_path(greedy *g, uint32_t target, double cap, id_list *picks, id_list *edges)
{
    for (;;) {
        picks->n = edges->n = 0;
        if (!find_near_path(g, target, cap)) return false;
        if (!(g->value[target].dist <= cap)) return true;
        if (!list_picks(g, target, picks)) return false;
        size_t bad = 0;
        const bool suspect = g->suspect;
        double *old = INV_ARENA_NEW(g->a, double, picks->n + 1);
        if (!old) return false;
        for (size_t i = 0; i < picks->n; i++) {
            old[i] = g->value[picks->at[i]].err;
            if (!inv_vec_push(g->a, edges, g->cone.at[g->value[picks->at[i]].via].id)) return false;
        }
        while (bad < picks->n && edge_fits(g, picks->at[bad], edges->at[bad])) bad++;
        if (bad == picks->n && g->combine_by_max && path_cost(g, picks, edges) > cap) {
            restore_errors(g, picks, bad, old, suspect);
            picks->n = 0;
        }
        if (bad >= picks->n) return true;
        uint32_t v = picks->at[bad];
        g->edge[edges->at[bad]].usable = false;
        /* as forward gave it, it is without an error: all that is derived from it begins anew */
        g->value[v].checkpoint |= g->value[v].err > g->p->max_drift;
        restore_errors(g, picks, bad + 1, old, suspect);
        if (g->value[v].checkpoint && !lower_bound(g, v, g->tick)) return false;
    }
}

/* --- backward, step by step --- */

/* Notes which values a reader at this step could write in place of. */
static void note_inplace(greedy *g, const uint32_t *list, uint32_t n, uint32_t bits)
{
    for (uint32_t i = 0; i < n; i++)
        if (g->value[list[i]].live_until == g->t) g->value[list[i]].inplace = false;
    for (uint32_t i = 0; i < n && i < 32 && bits; i++)
        if (bits >> i & 1 && g->value[list[i]].live_until == g->t) g->value[list[i]].inplace = true;
}

static bool add_remat(greedy *g, uint32_t v, uint32_t id)
{
    const inv_pb_edge *e = &g->p->edge[id];
    const inv_remat r = {g->t, id, 0};
    note_inplace(g, e->source, e->nsource, e->overwrites);
    for (uint32_t i = 0; i < e->ntarget; i++) {
        const uint32_t y = e->target[i];
        if (y != v && is_available(g, y)) continue;
        g->value[y].remat = (uint32_t)g->out->n;
        g->value[y].err = g->value[v].err;
        if (!make_available(g, y)) return false;
    }
    return inv_vec_push(g->a, g->out, r);
}

static bool provide_value(greedy *g, uint32_t v);

/* Returns true if a pick that the path would keep is derived itself after all, where that pays: the path had a
 * checkpoint, or what the warm start has kept, at next to no charge, and only provide_value compares a derivation with
 * the full price. A checkpoint is asked about until it is rematerialised once; what the warm start has kept only with
 * prices->rederive_kept. What such a derivation takes is not derived in turn. */
static bool is_rederived(const greedy *g, uint32_t v, uint32_t edge)
{
    if (edge != KEEP || g->rederiving) return false;
    return g->value[v].checkpoint ? g->value[v].remat == INV_NO_REMAT : g->prices->rederive_kept && was_kept(g, v);
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
        /* a value that was derived instead of kept has an error now */
        if (edges.at[i] != KEEP && !edge_fits(g, v, edges.at[i])) edges.at[i] = KEEP;
        if (edges.at[i] == KEEP) {
            if (g->value[v].remat == INV_NO_REMAT) g->value[v].err = 0;
            if (!make_available(g, v)) return false;
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
        if (!done && g->value[v].checkpoint && g->value[v].remat == INV_NO_REMAT) {
            g->combine_by_max = true;
            if (!derive_value(g, v, cap, &done)) return false;
            g->combine_by_max = false;
        }
    }
    return done || make_available(g, v);
}

static bool list_edges(greedy *g)
{
    const inv_problem *p = g->p;
    uint32_t reads = 0;
    g->edge = INV_ARENA_NEW(g->a, greedy_edge, p->nedge + 1);
    g->first = INV_ARENA_NEW(g->a, uint32_t, p->nvalue + 2);
    if (g->a->failed) return false;
    for (uint32_t id = 0; id < p->nedge; id++) {
        const inv_pb_edge *e = &p->edge[id];
        g->edge[id] = (greedy_edge){.source = e->source,
                                    .target = e->target,
                                    .cost = g->tick + e->cost,
                                    .side = e->side,
                                    .nsource = e->nsource,
                                    .ntarget = e->ntarget,
                                    .read = reads,
                                    .usable = !e->inverse || g->prices->invert};
        for (uint32_t i = 0; i < e->nsource; i++) g->first[e->source[i]]++;
        reads += e->nsource;
    }
    for (uint32_t v = 0; v < p->nvalue; v++) g->first[v + 1] += g->first[v];
    g->reader = INV_ARENA_NEW(g->a, uint32_t, reads + (size_t)1);
    g->least = INV_ARENA_NEW(g->a, double, reads + (size_t)1);
    if (g->a->failed) return false;
    for (uint32_t id = p->nedge; id-- > 0;) {
        const greedy_edge *e = &g->edge[id];
        for (uint32_t i = 0; i < e->nsource; i++) {
            g->reader[--g->first[e->source[i]]] = id;
            g->least[e->read + i] = least_cost(g, e->source[i], e);
        }
    }
    return true;
}

static bool prepare_greedy(greedy *g)
{
    const inv_problem *p = g->p;
    g->tick = p->cost * 1e-10;
    g->value = INV_ARENA_NEW(g->a, greedy_value, p->nvalue + 1);
    g->price_sum = INV_ARENA_NEW(g->a, double, p->nstep + 2);
    if (g->a->failed || !list_edges(g)) return false;
    for (uint32_t v = 0; v < p->nvalue; v++) {
        g->value[v].remat = INV_NO_REMAT;
        g->value[v].live_until = p->value[v].def;
    }
    for (g->t = 0; g->t < p->forward; g->t++) {
        const inv_pb_step *s = &p->step[g->t];
        for (uint32_t i = 0; i < s->nread; i++) g->value[s->read[i]].live_until = g->t;
        note_inplace(g, s->read, s->nread, s->overwrites);
    }
    for (uint32_t t = 0; t < p->nstep; t++) g->price_sum[t + 1] = g->price_sum[t] + g->prices->step[t];
    return p->forward >= p->nstep || bound_values(g);
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
    return ok ? INV_OK : INV_E_NOMEM;
}
