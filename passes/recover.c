/* SPDX-License-Identifier: Apache-2.0
 * Recovery: backward's reads of forward values are met by the value itself (kept), by clones of forward nodes
 * (recomputed) or by solving nodes (inverted), each inserted just before its first reader. Backward is walked in order;
 * what is not at hand is derived by the cheapest hyperpath from what is (Knuth 1977, a generalisation of Dijkstra's
 * algorithm), if that costs no more than the price of keeping it; otherwise it is kept. Clones stay at hand for the
 * gradient that needs the same values next, so nothing is evaluated a third time. A second walk that knows what the
 * first one kept (`likely`) derives from it what did not pay by itself, and so keeps less. Nothing is marked as freed:
 * liveness sees who still reads what.
 * requires: base graph with matches and order.  gives: a copy with recovery nodes, guards. */
#include <math.h>
#include <string.h>

#include "passes/pass.h"

enum { MAX_CONE = 20000 };
enum { FREE = 4 }; /* cost of a few edges without arithmetic */
#define KEEP UINT32_MAX /* edge id: the value itself is kept, at the price of its bytes */

typedef struct heap_item {
    double cost;
    inv_id v;
} heap_item;
typedef INV_VEC(heap_item) heap;

/* One use of a value as source of an edge of the cone. */
typedef struct link {
    uint32_t edge, next;
} link;

typedef struct cone_edge {
    uint32_t id; /* < nnode: forward node; KEEP; else nnode + index of the inverse edge */
    uint32_t open;
    double cost;
    inv_id frees;
} cone_edge;

typedef struct recovery {
    const inv_graph *base;
    const inv_policy *policy;
    inv_plan *plan;
    inv_graph *g;
    inv_arena scratch;
    size_t nvalue, nnode, nedge;
    const inv_edge *edge;
    uint32_t *edge_start, *edge_of; /* inverse edges by the value they free */
    uint32_t *pos;                  /* per forward node */
    bool *forward;                  /* per value: computed in the forward part */
    inv_id *rep;                    /* per forward value: what backward reads for it */
    double *err;                    /* per forward value: estimated relative error of rep */
    double *flops;                  /* per forward node */
    double *steep;                  /* per forward value: what an error of it counts for the gradient's branches */
    /* derivation */
    double *dist;
    uint32_t *stamp, *head, *via, now; /* per value */
    INV_VEC(link) links;
    INV_VEC(cone_edge) cone;
    heap queue;
    uint8_t *state;      /* per value: while listing picks */
    bool *noted;         /* per value: recorded as kept */
    inv_ids backward;    /* the new backward order */
    inv_ids guard_after; /* forward nodes' guards: pairs (def node, guard node) */
} recovery;

/* --- a binary heap, least cost first --- */

static bool heap_push(inv_arena *a, heap *h, double cost, inv_id v)
{
    heap_item x = {cost, v};
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

/* --- edges --- */

static bool at_hand(const recovery *r, inv_id v) { return !r->forward[v] || r->rep[v] != INV_NONE; }

/* Calls f for every forward value that the edge reads. */
static bool for_sources(const recovery *r, uint32_t id, bool (*f)(void *, inv_id), void *opaque)
{
    uint32_t one = id;
    const inv_id *nodes = &one;
    uint32_t n = id == KEEP ? 0 : 1;
    if (id >= r->nnode && id != KEEP) {
        nodes = r->edge[id - r->nnode].node;
        n = r->edge[id - r->nnode].nnode;
    }
    for (uint32_t i = 0; i < n; i++) {
        const inv_node *node = inv_nod(r->base, nodes[i]);
        for (uint32_t k = 0; k < node->nin; k++)
            if (node->in[k] != INV_NONE && r->forward[node->in[k]] && !f(opaque, node->in[k])) return false;
    }
    return true;
}

static double price_of(const recovery *r, inv_id v)
{
    size_t nbytes = 0;
    (void)inv_shape_nbytes(&inv_val(r->base, v)->shape, inv_val(r->base, v)->dtype, &nbytes);
    return r->policy->price * (double)nbytes;
}

static double edge_cost(const recovery *r, uint32_t id, inv_id frees)
{
    if (id == KEEP) return r->policy->likely && r->policy->likely[frees] ? 1 : price_of(r, frees);
    if (id < r->nnode) return 1 + r->flops[id];
    return 1 + r->policy->invert_cost * r->edge[id - r->nnode].flops;
}

static bool may_clone(const recovery *r, inv_id v)
{
    const inv_node *n = inv_nod(r->base, inv_val(r->base, v)->def);
    if (n->op->flags & (INV_OP_NO_CLONE | INV_OP_STEP)) return false;
    if (n->op->flags & INV_OP_SOURCE && !r->policy->feed_again) return false;
    bool rearranges = n->op->flags & INV_OP_VIEW;
    return rearranges || (r->policy->recompute && !r->policy->no_recompute[v]);
}

static bool may_invert(const recovery *r, const inv_edge *e)
{
    return r->policy->invert && !r->policy->no_invert[e->frees] && e->gain < 1e30;
}

/* --- derivation: cone, then hyperpath --- */

typedef struct visit {
    recovery *r;
    uint32_t edge;
    double cost, cap;
    bool failed;
} visit;

static bool fresh(recovery *r, inv_id v)
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
    recovery *r = x->r;
    if (at_hand(r, s)) return true;
    bool first = fresh(r, s);
    link l = {x->edge, r->head[s]};
    r->head[s] = (uint32_t)r->links.n;
    r->cone.at[x->edge].open++;
    if (!inv_vec_push(&r->scratch, &r->links, l) || (first && !heap_push(&r->scratch, &r->queue, x->cost, s))) {
        x->failed = true;
        return false;
    }
    return true;
}

static bool add_cone_edge(recovery *r, uint32_t id, inv_id frees, double path, double cap)
{
    double cost = edge_cost(r, id, frees);
    if (path + cost > cap || r->cone.n >= MAX_CONE) return true;
    cone_edge e = {id, 0, cost, frees};
    visit x = {r, (uint32_t)r->cone.n, path + cost, cap, false};
    if (!inv_vec_push(&r->scratch, &r->cone, e)) return false;
    (void)for_sources(r, id, visit_source, &x);
    return !x.failed;
}

/* All edges that could take part in deriving `target` for at most `cap`. */
static bool collect_cone(recovery *r, inv_id target, double cap)
{
    r->now++;
    r->links.n = r->cone.n = r->queue.n = 0;
    (void)fresh(r, target);
    if (!heap_push(&r->scratch, &r->queue, 0, target)) return false;
    while (r->queue.n) {
        heap_item it = heap_pop(&r->queue);
        inv_id v = it.v;
        if (v != target && !add_cone_edge(r, KEEP, v, it.cost, cap)) return false;
        if (may_clone(r, v) && !add_cone_edge(r, inv_val(r->base, v)->def, v, it.cost, cap)) return false;
        for (uint32_t i = r->edge_start[v]; i < r->edge_start[v + 1]; i++)
            if (may_invert(r, &r->edge[r->edge_of[i]]) &&
                !add_cone_edge(r, (uint32_t)r->nnode + r->edge_of[i], v, it.cost, cap))
                return false;
    }
    return true;
}

static bool relax(recovery *r, uint32_t edge)
{
    const cone_edge *e = &r->cone.at[edge];
    if (e->cost >= r->dist[e->frees]) return true;
    r->dist[e->frees] = e->cost;
    r->via[e->frees] = edge;
    return heap_push(&r->scratch, &r->queue, e->cost, e->frees);
}

/* Cheapest derivation of target over the cone: dist and via. */
static bool shortest(recovery *r, inv_id target)
{
    r->queue.n = 0;
    for (uint32_t i = 0; i < r->cone.n; i++)
        if (r->cone.at[i].open == 0 && !relax(r, i)) return false;
    while (r->queue.n) {
        heap_item it = heap_pop(&r->queue);
        if (it.cost > r->dist[it.v] || r->head[it.v] == UINT32_MAX - 1) continue;
        if (it.v == target) return true;
        uint32_t l = r->head[it.v];
        r->head[it.v] = UINT32_MAX - 1; /* settled */
        for (; l != UINT32_MAX; l = r->links.at[l].next) {
            cone_edge *e = &r->cone.at[r->links.at[l].edge];
            e->cost += it.cost;
            if (--e->open == 0 && !relax(r, r->links.at[l].edge)) return false;
        }
    }
    return true;
}

/* --- emission --- */

static bool record(recovery *r, inv_id v, inv_choice choice, const char *by)
{
    inv_choice_row row = {v, choice, by};
    return inv_vec_push(&r->g->arena, &r->plan->choice, row);
}

/* Something reads what stands for v; the original counts as kept from its first reader on. */
static bool note_read(recovery *r, inv_id v)
{
    if (!r->forward[v] || r->rep[v] != v || r->noted[v]) return true;
    r->noted[v] = true;
    return record(r, v, INV_STORED, "");
}

static inv_id clone_node(recovery *r, inv_id base_node, inv_id *local, inv_id want, inv_id clone_of, inv_id solves)
{
    inv_graph *g = r->g;
    inv_node n = *inv_nod(g, base_node);
    inv_id *in = INV_ARENA_NEW(&r->scratch, inv_id, n.nin + 1), *out = INV_ARENA_NEW(&r->scratch, inv_id, n.nout + 1);
    if (!in || !out) return INV_NONE;
    for (uint32_t k = 0; k < n.nin; k++) {
        inv_id v = n.in[k];
        if (v != INV_NONE && !note_read(r, v)) return INV_NONE;
        in[k] = v == INV_NONE ? v : r->forward[v] ? r->rep[v] : local[v] != INV_NONE ? local[v] : v;
    }
    for (uint32_t k = 0; k < n.nout; k++) {
        out[k] = INV_NONE;
        if (n.out[k] == INV_NONE || (want != INV_NONE && n.out[k] != want)) continue;
        inv_value v = *inv_val(g, n.out[k]);
        out[k] = inv_graph_value(g, inv_graph_fresh(g, v.name), INV_ROLE_NODE, v.dtype, &v.shape);
        if (out[k] == INV_NONE) return INV_NONE;
        inv_val(g, out[k])->mem = v.mem;
        local[n.out[k]] = out[k];
    }
    inv_id id = inv_graph_node(g, n.domain, n.op_type, n.name, n.nin, in, n.nout, out, n.nattr, n.attr);
    if (id == INV_NONE) return INV_NONE;
    inv_node *c = inv_nod(g, id);
    c->op = n.op;
    c->phase = INV_BACKWARD;
    c->clone_of = clone_of;
    c->solves = solves;
    c->origin = solves != INV_NONE ? inv_nod(g, solves)->origin : n.origin;
    c->norigin = solves != INV_NONE ? inv_nod(g, solves)->norigin : n.norigin;
    for (uint32_t k = 0; k < c->nout; k++)
        if (c->out[k] != INV_NONE) inv_val(g, c->out[k])->def = id;
    return inv_vec_push(&g->arena, &r->backward, id) ? id : INV_NONE;
}

/* Fingerprint in forward, comparison after the reconstruction. */
static bool guard(recovery *r, inv_id v)
{
    inv_graph *g = r->g;
    if (!inv_dtype_is_float(inv_val(g, v)->dtype)) return true;
    int64_t slot = (int64_t)r->plan->guarded.n;
    size_t order = g->order.n;
    inv_attr key = inv_attr_of_int("key", slot + 1);
    g->phase = INV_FORWARD;
    inv_id sum = inv_emit1(g, "GuardSum", INV_IN(v), 1, &key);
    g->phase = INV_BACKWARD;
    if (sum == INV_NONE) return false;
    inv_val(g, sum)->mem = INV_MEM_GUARD;
    inv_id check = inv_emit(g, "GuardCheck", 0, INV_IN(r->rep[v], sum), INV_ATTRS(key, inv_attr_of_int("slot", slot)));
    g->order.n = order;
    return check != INV_NONE && inv_vec_push(&g->arena, &r->plan->guarded, v) &&
           inv_vec_push(&r->scratch, &r->guard_after, inv_val(g, v)->def) &&
           inv_vec_push(&r->scratch, &r->guard_after, inv_val(g, sum)->def) &&
           inv_vec_push(&g->arena, &r->backward, check);
}

static bool emit_edge(recovery *r, uint32_t id, inv_id frees, inv_id *local)
{
    if (id == KEEP) {
        r->rep[frees] = frees;
        return true;
    }
    if (id < r->nnode) {
        if (clone_node(r, id, local, frees, id, INV_NONE) == INV_NONE) return false;
        r->rep[frees] = local[frees];
        local[frees] = INV_NONE;
        if (!record(r, frees, INV_RECOMPUTED, inv_nod(r->base, id)->op->name)) return false;
        return r->policy->guard != INV_GUARD_FULL || guard(r, frees);
    }
    const inv_edge *e = &r->edge[id - r->nnode];
    for (uint32_t i = 0; i < e->nnode; i++)
        if (clone_node(r, e->node[i], local, i + 1 == e->nnode ? e->result : INV_NONE, INV_NONE, e->forward) ==
            INV_NONE)
            return false;
    r->rep[frees] = local[e->result];
    inv_val(r->g, r->rep[frees])->mem = inv_val(r->base, frees)->mem;
    if (!record(r, frees, INV_INVERTED, e->rule->name)) return false;
    return r->policy->guard == INV_GUARD_OFF ||
           (r->policy->guard == INV_GUARD_ON && e->rule->exactness == INV_EXACT) || guard(r, frees);
}

typedef struct worst {
    const recovery *r;
    double err;
} worst;

static bool worst_source(void *opaque, inv_id s)
{
    worst *w = opaque;
    if (w->r->err[s] > w->err) w->err = w->r->err[s];
    return true;
}

/* Estimated error of what the edge gives. It covers the rules' own gain; what comes through a branch is measured by the
 * guard (docs/numerics.md). */
static double edge_error(const recovery *r, uint32_t id)
{
    worst w = {r, 0};
    (void)for_sources(r, id, worst_source, &w);
    if (id < r->nnode || id == KEEP) return w.err;
    const inv_edge *e = &r->edge[id - r->nnode];
    double eps = e->rule->exactness == INV_EXACT ? 0 : r->g->real == INV_F64 ? 0x1p-52 : 0x1p-23;
    return e->gain * (w.err + eps);
}

typedef struct pending {
    recovery *r;
    inv_ids *stack;
    bool failed;
} pending;

static bool push_source(void *opaque, inv_id s)
{
    pending *p = opaque;
    if (at_hand(p->r, s) || p->r->state[s]) return true;
    p->failed = !inv_vec_push(&p->r->scratch, p->stack, s);
    return !p->failed;
}

/* The picked edges below target, sources first. */
static bool list_picks(recovery *r, inv_id target, inv_ids *picks)
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

/* Derives target if it can be had within cap; *done says so. */
static bool derive(recovery *r, inv_id target, double cap, inv_id *local, bool *done)
{
    *done = false;
    if (!collect_cone(r, target, cap) || !shortest(r, target)) return false;
    if (!(r->dist[target] <= cap)) return true;
    inv_ids picks = {0};
    if (!list_picks(r, target, &picks)) return false;
    bool good = true;
    for (size_t i = 0; i < picks.n && good; i++) {
        uint32_t id = r->cone.at[r->via[picks.at[i]]].id;
        r->err[picks.at[i]] = edge_error(r, id);
        good = r->err[picks.at[i]] <= r->policy->max_drift;
        if (id >= r->nnode && id != KEEP && r->err[picks.at[i]] > 0) /* an exact inverse passes its source's error on */
            good = good && r->err[picks.at[i]] * r->steep[picks.at[i]] <= r->policy->max_drift;
    }
    for (size_t i = 0; i < picks.n && !good; i++) r->err[picks.at[i]] = 0;
    for (size_t i = 0; i < picks.n && good; i++)
        if (!emit_edge(r, r->cone.at[r->via[picks.at[i]]].id, picks.at[i], local)) return false;
    *done = good;
    return true;
}

static bool kept_anyway(const recovery *r, inv_id v)
{
    const inv_policy *p = r->policy;
    const inv_value *val = inv_val(r->base, v);
    return p->keep[v] || val->keep || !(p->recompute || p->invert) ||
           inv_nod(r->base, val->def)->op->flags & INV_OP_NO_CLONE;
}

static bool need(recovery *r, inv_id v, inv_id *local)
{
    if (at_hand(r, v)) return note_read(r, v);
    bool done = false;
    /* What is kept for being late is still not kept twice in two arrangements. */
    double cap = r->pos[inv_val(r->base, v)->def] >= r->policy->late ? FREE : price_of(r, v);
    if (!derive(r, v, cap, local, &done)) return false;
    if (done) return true;
    r->rep[v] = v;
    return note_read(r, v);
}

/* Whether op only moves elements, so that its outputs are as steep as its inputs. */
static bool moves(const recovery *r, inv_id node)
{
    const inv_node *n = inv_nod(r->base, node);
    for (uint32_t k = 0; k < n->nin; k++) {
        if (n->in[k] == INV_NONE || !r->forward[n->in[k]]) continue;
        for (uint32_t i = r->edge_start[n->in[k]]; i < r->edge_start[n->in[k] + 1]; i++) {
            const inv_edge *e = &r->edge[r->edge_of[i]];
            if (e->forward == node && e->rule->exactness == INV_EXACT && e->flops <= 0) return true;
        }
    }
    return r->flops[node] <= 0 && !(n->op->flags & INV_OP_SOURCE);
}

/* How an error of each output counts: see INV_OP_ATOMS and INV_OP_FROM_OUT. */
static void note_steep(recovery *r, inv_id node)
{
    const inv_node *n = inv_nod(r->base, node);
    double steep = 1;
    if (n->op->flags & INV_OP_ATOMS) steep = INFINITY;
    for (uint32_t k = 0; k < n->nin; k++) {
        inv_id x = n->in[k];
        if (x == INV_NONE || !r->forward[x]) continue;
        if (moves(r, node) && r->steep[x] > steep) steep = r->steep[x];
        for (uint32_t i = r->edge_start[x]; n->op->flags & INV_OP_FROM_OUT && i < r->edge_start[x + 1]; i++) {
            const inv_edge *e = &r->edge[r->edge_of[i]];
            if (e->forward == node && e->gain > steep) steep = e->gain;
        }
    }
    for (uint32_t k = 0; k < n->nout; k++)
        if (n->out[k] != INV_NONE) r->steep[n->out[k]] = steep;
}

/* --- the walk --- */

static bool prepare(recovery *r)
{
    const inv_graph *b = r->base;
    inv_arena *a = &r->scratch;
    r->nvalue = b->value.n;
    r->nnode = b->node.n;
    r->edge = b->matches ? b->matches->edge.at : NULL;
    r->nedge = b->matches ? b->matches->edge.n : 0;
    r->edge_start = INV_ARENA_NEW(a, uint32_t, r->nvalue + 2);
    r->edge_of = INV_ARENA_NEW(a, uint32_t, r->nedge + 1);
    r->pos = INV_ARENA_NEW(a, uint32_t, r->nnode + 1);
    r->forward = INV_ARENA_NEW(a, bool, r->nvalue + 1);
    r->rep = INV_ARENA_NEW(a, inv_id, r->nvalue + 1);
    r->err = INV_ARENA_NEW(a, double, r->nvalue + 1);
    r->steep = INV_ARENA_NEW(a, double, r->nvalue + 1);
    r->flops = INV_ARENA_NEW(a, double, r->nnode + 1);
    r->dist = INV_ARENA_NEW(a, double, r->nvalue + 1);
    r->stamp = INV_ARENA_NEW(a, uint32_t, r->nvalue + 1);
    r->head = INV_ARENA_NEW(a, uint32_t, r->nvalue + 1);
    r->via = INV_ARENA_NEW(a, uint32_t, r->nvalue + 1);
    r->state = INV_ARENA_NEW(a, uint8_t, r->nvalue + 1);
    r->noted = INV_ARENA_NEW(a, bool, r->nvalue + 1);
    if (!r->edge_start || !r->edge_of || !r->pos || !r->forward || !r->rep || !r->err || !r->flops || !r->steep ||
        !r->dist || !r->stamp || !r->head || !r->via || !r->state || !r->noted)
        return false;
    for (size_t i = 0; i < r->nedge; i++) r->edge_start[r->edge[i].frees + 1]++;
    for (size_t v = 0; v < r->nvalue; v++) r->edge_start[v + 1] += r->edge_start[v];
    uint32_t *at = INV_ARENA_NEW(a, uint32_t, r->nvalue + 1);
    if (!at) return false;
    for (uint32_t i = 0; i < r->nedge; i++) r->edge_of[r->edge_start[r->edge[i].frees] + at[r->edge[i].frees]++] = i;
    for (size_t v = 0; v < r->nvalue; v++) r->rep[v] = INV_NONE;
    for (size_t i = 0; i < b->forward_end; i++) {
        const inv_node *n = inv_nod(b, b->order.at[i]);
        r->pos[b->order.at[i]] = (uint32_t)i;
        r->flops[b->order.at[i]] = inv_node_flops(b, n);
        for (uint32_t k = 0; k < n->nout; k++)
            if (n->out[k] != INV_NONE) r->forward[n->out[k]] = true;
    }
    for (size_t i = 0; i < b->forward_end; i++) note_steep(r, b->order.at[i]);
    for (size_t v = 0; v < r->nvalue; v++)
        if (r->forward[v] && kept_anyway(r, (inv_id)v)) r->rep[v] = (inv_id)v;
    return true;
}

static bool walk(recovery *r)
{
    const inv_graph *b = r->base;
    inv_id *local = INV_ARENA_NEW(&r->scratch, inv_id, r->nvalue + 1);
    if (!local) return false;
    for (size_t v = 0; v < r->nvalue; v++) local[v] = INV_NONE;
    for (size_t i = b->forward_end; i < b->order.n; i++) {
        inv_id id = b->order.at[i];
        uint32_t nin = inv_nod(r->g, id)->nin;
        for (uint32_t k = 0; k < nin; k++) {
            inv_id v = inv_nod(b, id)->in[k];
            if (v == INV_NONE || !r->forward[v]) continue;
            if (!need(r, v, local)) return false;
            inv_nod(r->g, id)->in[k] = r->rep[v];
        }
        if (!inv_vec_push(&r->g->arena, &r->backward, id)) return false;
    }
    return true;
}

static bool assemble(recovery *r)
{
    inv_graph *g = r->g;
    inv_ids order = {0};
    uint32_t *first = INV_ARENA_NEW(&r->scratch, uint32_t, r->nnode + 1),
             *next = INV_ARENA_NEW(&r->scratch, uint32_t, r->guard_after.n + 2);
    if (!first || !next) return false;
    for (uint32_t k = 0; k < r->guard_after.n; k += 2) { /* a list of guards per forward node; 0: none */
        next[k / 2] = first[r->guard_after.at[k]];
        first[r->guard_after.at[k]] = k / 2 + 1;
    }
    for (size_t i = 0; i < r->base->forward_end; i++) {
        inv_id id = r->base->order.at[i];
        if (!inv_vec_push(&g->arena, &order, id)) return false;
        for (uint32_t k = first[id]; k; k = next[k - 1])
            if (!inv_vec_push(&g->arena, &order, r->guard_after.at[2 * (k - 1) + 1])) return false;
    }
    g->forward_end = order.n;
    for (size_t i = 0; i < r->backward.n; i++)
        if (!inv_vec_push(&g->arena, &order, r->backward.at[i])) return false;
    g->order = order;
    return true;
}

inv_status inv_recover(const inv_graph *base, const inv_policy *policy, inv_plan *plan, inv_graph **out)
{
    recovery r = {.base = base, .policy = policy, .plan = plan};
    *out = NULL;
    INV_TRY(inv_graph_copy(base, &r.g));
    r.g->phase = INV_BACKWARD;
    r.g->fold = false;
    memset(&plan->choice, 0, sizeof plan->choice);
    memset(&plan->guarded, 0, sizeof plan->guarded);
    inv__arena_init(&r.scratch, base->ctx);
    bool ok = prepare(&r) && walk(&r) && assemble(&r);
    inv__arena_fini(&r.scratch);
    inv_status s = ok            ? INV_OK
                   : r.g->failed ? r.g->failed
                                 : inv__fail(base->ctx, INV_E_NOMEM, "out of memory in recovery");
    if (s == INV_OK) s = inv_pass_order(r.g);
    if (s != INV_OK) {
        inv_graph_destroy(r.g);
        return s;
    }
    *out = r.g;
    return INV_OK;
}
