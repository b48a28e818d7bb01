/* SPDX-License-Identifier: Apache-2.0
 * One derivation of a value from what is at hand: the cheapest hyperpath (Knuth 1977, a generalisation of Dijkstra's
 * algorithm) over forward nodes, inverse edges and values that are kept, whose estimated error is within bounds. An
 * edge that would exceed them is given up, and the next cheapest path is looked for.
 * requires: inv_recovery as the walk fills it.  gives: picks, err. */
#include <math.h>
#include <string.h>

#include "passes/recover.h"

enum { MAX_CONE = 20000 };

/* --- a binary heap, least cost first --- */

static bool heap_push(inv_arena *a, inv_heap *h, double cost, inv_id v)
{
    inv_heap_item x = {cost, v};
    if (!inv_vec_push(a, h, x)) return false;
    size_t i = h->n - 1;
    for (; i > 0 && h->at[(i - 1) / 2].cost > cost; i = (i - 1) / 2) h->at[i] = h->at[(i - 1) / 2];
    h->at[i] = x;
    return true;
}

static inv_heap_item heap_pop(inv_heap *h)
{
    inv_heap_item top = h->at[0], x = h->at[--h->n];
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

/* --- edges --- */

bool inv_at_hand(const inv_recovery *r, inv_id v) { return !r->forward[v] || r->rep[v] != INV_NONE; }

/* Calls f for every forward value that the edge reads. */
static bool for_sources(const inv_recovery *r, uint32_t id, bool (*f)(void *, inv_id), void *opaque)
{
    uint32_t one = id;
    const inv_id *nodes = &one;
    uint32_t n = id == INV_EDGE_KEEP ? 0 : 1;
    if (id >= r->nnode && id != INV_EDGE_KEEP) {
        const inv_edge *e = &r->edge[id - r->nnode];
        nodes = e->node + e->nsave;
        n = e->nnode - e->nsave;
    }
    for (uint32_t i = 0; i < n; i++) {
        const inv_node *node = inv_nod(r->base, nodes[i]);
        for (uint32_t k = 0; k < node->nin; k++)
            if (node->in[k] != INV_NONE && r->forward[node->in[k]] && !f(opaque, node->in[k])) return false;
    }
    return true;
}

double inv_nbytes(const inv_recovery *r, inv_id v)
{
    size_t nbytes = 0;
    (void)inv_shape_nbytes(&inv_val(r->base, v)->shape, inv_val(r->base, v)->dtype, &nbytes);
    return (double)nbytes;
}

double inv_price_of(const inv_recovery *r, inv_id v) { return r->policy->price * inv_nbytes(r, v); }

static double edge_cost(const inv_recovery *r, uint32_t id, inv_id frees)
{
    if (id == INV_EDGE_KEEP) {
        bool anyway = r->anchor[frees] || (r->policy->likely && r->policy->likely[frees]);
        return anyway ? 1 : inv_price_of(r, frees);
    }
    if (id < r->nnode) return 1 + r->flops[id];
    const inv_edge *e = &r->edge[id - r->nnode];
    return 1 + e->flops + (e->kept > 0 && isfinite(r->policy->price) ? r->policy->price * e->kept : 0);
}

static bool may_clone(const inv_recovery *r, inv_id v)
{
    const inv_node *n = inv_nod(r->base, inv_val(r->base, v)->def);
    if (n->op->flags & (INV_OP_NO_CLONE | INV_OP_STEP)) return false;
    if (n->op->flags & INV_OP_SOURCE && !r->policy->feed_again) return false;
    bool rearranges = n->op->flags & INV_OP_VIEW;
    return rearranges || (r->policy->recompute && !r->policy->no_recompute[v]);
}

/* What an edge adds to the error of what it starts from, which it magnifies by e->gain as well. */
static double own_error(const inv_recovery *r, const inv_edge *e)
{
    if (e->rule->exactness == INV_EXACT) return 0;
    return e->gain * (r->g->real == INV_F64 ? 0x1p-52 : 0x1p-23);
}

inv_way inv_way_of(const inv_recovery *r, uint32_t edge)
{
    const inv_edge *e = &r->edge[edge];
    double own = own_error(r, e);
    if (!r->policy->invert || r->policy->no_invert[e->frees]) return INV_WAY_OFF;
    if (!(e->gain < 1e30)) return INV_WAY_UNBOUNDED;
    bool exact = !r->banned[edge] && (own <= 0 || own * r->steep[e->frees] <= r->policy->max_drift);
    return exact ? INV_WAY_OPEN : INV_WAY_INEXACT;
}

/* --- derivation: cone, then hyperpath --- */

typedef struct visit {
    inv_recovery *r;
    uint32_t edge;
    double cost, cap;
    bool failed;
} visit;

static bool fresh(inv_recovery *r, inv_id v)
{
    if (r->stamp[v] == r->now) return false;
    r->stamp[v] = r->now;
    r->dist[v] = INFINITY;
    r->head[v] = UINT32_MAX;
    r->via[v] = UINT32_MAX;
    return true;
}

static bool visit_source(void *opaque, inv_id s)
{
    visit *x = opaque;
    inv_recovery *r = x->r;
    if (inv_at_hand(r, s)) return true;
    bool first = fresh(r, s);
    inv_cone_link l = {x->edge, r->head[s]};
    r->head[s] = (uint32_t)r->links.n;
    r->cone.at[x->edge].open++;
    if (!inv_vec_push(&r->scratch, &r->links, l) || (first && !heap_push(&r->scratch, &r->queue, x->cost, s))) {
        x->failed = true;
        return false;
    }
    return true;
}

static bool add_cone_edge(inv_recovery *r, uint32_t id, inv_id frees, double path, double cap)
{
    double cost = edge_cost(r, id, frees);
    if (path + cost > cap || r->cone.n >= MAX_CONE) return true;
    inv_cone_edge e = {id, 0, cost, frees};
    visit x = {r, (uint32_t)r->cone.n, path + cost, cap, false};
    if (!inv_vec_push(&r->scratch, &r->cone, e)) return false;
    (void)for_sources(r, id, visit_source, &x);
    return !x.failed;
}

/* All edges that could take part in deriving `target` for at most `cap`. */
static bool collect_cone(inv_recovery *r, inv_id target, double cap)
{
    r->now++;
    r->links.n = r->cone.n = r->queue.n = 0;
    (void)fresh(r, target);
    if (!heap_push(&r->scratch, &r->queue, 0, target)) return false;
    while (r->queue.n) {
        inv_heap_item it = heap_pop(&r->queue);
        inv_id v = it.v;
        if (v != target && !add_cone_edge(r, INV_EDGE_KEEP, v, it.cost, cap)) return false;
        if (may_clone(r, v) && !add_cone_edge(r, inv_val(r->base, v)->def, v, it.cost, cap)) return false;
        for (uint32_t i = r->edge_start[v]; i < r->edge_start[v + 1]; i++)
            if (inv_way_of(r, r->edge_of[i]) == INV_WAY_OPEN &&
                !add_cone_edge(r, (uint32_t)r->nnode + r->edge_of[i], v, it.cost, cap))
                return false;
    }
    return true;
}

static bool relax(inv_recovery *r, uint32_t edge)
{
    const inv_cone_edge *e = &r->cone.at[edge];
    if (e->cost >= r->dist[e->frees]) return true;
    r->dist[e->frees] = e->cost;
    r->via[e->frees] = edge;
    return heap_push(&r->scratch, &r->queue, e->cost, e->frees);
}

/* Cheapest derivation of target over the cone: dist and via. */
static bool shortest(inv_recovery *r, inv_id target)
{
    r->queue.n = 0;
    for (uint32_t i = 0; i < r->cone.n; i++)
        if (r->cone.at[i].open == 0 && !relax(r, i)) return false;
    while (r->queue.n) {
        inv_heap_item it = heap_pop(&r->queue);
        if (it.cost > r->dist[it.v] || r->head[it.v] == UINT32_MAX - 1) continue;
        if (it.v == target) return true;
        uint32_t l = r->head[it.v];
        r->head[it.v] = UINT32_MAX - 1; /* settled */
        for (; l != UINT32_MAX; l = r->links.at[l].next) {
            inv_cone_edge *e = &r->cone.at[r->links.at[l].edge];
            e->cost += it.cost;
            if (--e->open == 0 && !relax(r, r->links.at[l].edge)) return false;
        }
    }
    return true;
}

typedef struct worst {
    const inv_recovery *r;
    double err;
} worst;

static bool worst_source(void *opaque, inv_id s)
{
    worst *w = opaque;
    if (w->r->err[s] > w->err) w->err = w->r->err[s];
    return true;
}

/* A value that the guard refused is read: what was rebuilt up to here is as bad as it was, whatever was estimated. */
static bool heed_refusal(void *opaque, inv_id s)
{
    inv_recovery *r = opaque;
    if (!r->policy->refused || !r->policy->refused[s] || r->heeded[s]) return true;
    r->heeded[s] = true;
    for (size_t v = 0; v < r->nvalue; v++)
        if (r->err[v] > 0) r->err[v] = r->policy->max_drift;
    return true;
}

/* Estimated error of what the edge gives. It covers the rules' own gain; what comes through a branch is measured by the
 * guard (docs/numerics.md). */
static double edge_error(inv_recovery *r, uint32_t id)
{
    worst w = {r, 0};
    (void)for_sources(r, id, heed_refusal, r);
    (void)for_sources(r, id, worst_source, &w);
    if (id < r->nnode || id == INV_EDGE_KEEP) return w.err;
    const inv_edge *e = &r->edge[id - r->nnode];
    return e->gain * w.err + own_error(r, e);
}

typedef struct pending {
    inv_recovery *r;
    inv_ids *stack;
    bool failed;
} pending;

static bool push_source(void *opaque, inv_id s)
{
    pending *p = opaque;
    if (inv_at_hand(p->r, s) || p->r->state[s]) return true;
    p->failed = !inv_vec_push(&p->r->scratch, p->stack, s);
    return !p->failed;
}

/* The picked edges below target, sources first. */
static bool list_picks(inv_recovery *r, inv_id target, inv_ids *picks)
{
    inv_ids stack = {0};
    uint8_t *state = r->state;
    if (!inv_vec_push(&r->scratch, &stack, target)) return false;
    while (stack.n) {
        inv_id v = stack.at[stack.n - 1];
        if (state[v]) {
            stack.n--;
            if (state[v] == 1) {
                state[v] = 2;
                if (!inv_vec_push(&r->scratch, picks, v)) return false;
            }
            continue;
        }
        state[v] = 1;
        pending p = {r, &stack, false};
        (void)for_sources(r, r->cone.at[r->via[v]].id, push_source, &p);
        if (p.failed) return false;
    }
    for (size_t i = 0; i < picks->n; i++) state[picks->at[i]] = 0;
    return true;
}

bool inv_edge_fits(inv_recovery *r, inv_id v, uint32_t id)
{
    r->err[v] = edge_error(r, id);
    bool inverse = id >= r->nnode && id != INV_EDGE_KEEP;
    if (r->err[v] > r->policy->max_drift) return false;
    /* An exact inverse passes its source's error on. */
    return !inverse || r->err[v] <= 0 || r->err[v] * r->steep[v] <= r->policy->max_drift;
}

uint32_t inv_hyperpath_edge(const inv_recovery *r, inv_id pick) { return r->cone.at[r->via[pick]].id; }

/* Dist and via of target if it costs no more than cap. Near paths first: the cone of a high cap is large. */
static bool cheapest(inv_recovery *r, inv_id target, double cap)
{
    double near = 16 * (1 + inv_nbytes(r, target) + r->flops[inv_val(r->base, target)->def]);
    for (;; near *= 8) {
        double most = near < cap ? near : cap;
        if (!collect_cone(r, target, most) || !shortest(r, target)) return false;
        if (r->dist[target] <= most || !(near < cap)) return true;
    }
}

bool inv_hyperpath(inv_recovery *r, inv_id target, double cap, inv_ids *picks)
{
    for (;;) {
        picks->n = 0;
        if (!cheapest(r, target, cap)) return false;
        if (!(r->dist[target] <= cap)) return true;
        if (!list_picks(r, target, picks)) return false;
        size_t bad = 0;
        while (bad < picks->n && inv_edge_fits(r, picks->at[bad], inv_hyperpath_edge(r, picks->at[bad]))) bad++;
        if (bad == picks->n) return true;
        inv_id v = picks->at[bad];
        uint32_t edge = inv_hyperpath_edge(r, v) - (uint32_t)r->nnode;
        r->banned[edge] = true;
        /* Errors have added up to this one: kept, it is clean for all that is derived from it later. */
        r->anchor[v] = r->err[v] > r->policy->max_drift;
        for (size_t i = 0; i <= bad; i++) r->err[picks->at[i]] = 0;
    }
}
