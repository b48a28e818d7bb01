/* SPDX-License-Identifier: Apache-2.0
 * Recovery: backward's reads of forward values are met by the value itself (kept), by clones of forward nodes
 * (recomputed) or by solving nodes (inverted), each inserted just before its first reader. Backward is walked in order;
 * what is not at hand is derived by the cheapest hyperpath from what is (hyperpath.c), if that costs no more than the
 * price of keeping it; otherwise it is kept. Clones stay at hand for the gradient that needs the same values next, so
 * nothing is evaluated a third time. A second walk that knows what the first one kept (`likely`) derives from it what
 * did not pay by itself, and so keeps less. Nothing is marked as freed: liveness sees who still reads what.
 * requires: base graph with matches and order.  gives: a copy with recovery nodes, guards. */
#include <math.h>
#include <string.h>

#include "passes/recover.h"

/* --- emission --- */

static inv_stored_why why_stored(const inv_recovery *r, inv_id v)
{
    const inv_policy *p = r->policy;
    const inv_value *val = inv_val(r->base, v);
    if (val->keep) return INV_STORED_RESULT;
    if (p->refused && p->refused[v]) return INV_STORED_GUARD;
    if (p->keep[v]) return INV_STORED_ASKED;
    if (!(p->recompute || p->invert)) return INV_STORED_ALL;
    const unsigned flags = inv_nod(r->base, val->def)->op->flags;
    if (flags & INV_OP_NO_CLONE) return INV_STORED_ONCE;
    if (flags & INV_OP_SOURCE) return INV_STORED_INPUT;
    if (r->base_of[v]) return INV_STORED_BASE;
    return r->pos[val->def] >= p->late ? INV_STORED_LATE : INV_STORED_CHEAPER;
}

static bool record(inv_recovery *r, inv_id v, inv_choice choice, const char *by, double flops)
{
    inv_choice_row row = {v, choice, by, flops <= 0, INV_STORED_NOT, INV_WAY_NONE, NULL};
    for (uint32_t i = r->edge_start[v]; i < r->edge_start[v + 1]; i++) {
        inv_way way = inv_way_of(r, r->edge_of[i]);
        if (row.rule && way <= row.way) continue;
        row.way = (uint8_t)way;
        row.rule = r->edge[r->edge_of[i]].rule->name;
    }
    if (choice == INV_STORED) row.stored = (uint8_t)why_stored(r, v);
    return inv_vec_push(&r->g->arena, &r->plan->choice, row);
}

/* Something reads what stands for v; the original counts as kept from its first reader on. */
static bool note_read(inv_recovery *r, inv_id v)
{
    if (!r->forward[v] || r->rep[v] != v || r->noted[v]) return true;
    r->noted[v] = true;
    return record(r, v, INV_STORED, "", 0);
}

static inv_id clone_node(inv_recovery *r, inv_id base_node, inv_id *local, inv_id want, inv_id clone_of, inv_id solves)
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
static bool guard(inv_recovery *r, inv_id v)
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

/* A node of a template that belongs to forward: behind the one that gives v, in the order of these calls. It reads
 * forward's own values. */
static bool save_node(inv_recovery *r, inv_id node, inv_id v, inv_id *local)
{
    inv_node n = *inv_nod(r->g, node);
    inv_id id = clone_node(r, node, local, INV_NONE, INV_NONE, INV_NONE);
    if (id == INV_NONE) return false;
    r->backward.n--;
    inv_nod(r->g, id)->phase = INV_FORWARD;
    for (uint32_t k = 0; k < n.nin; k++)
        if (n.in[k] != INV_NONE && r->forward[n.in[k]]) inv_nod(r->g, id)->in[k] = n.in[k];
    return inv_vec_push(&r->scratch, &r->guard_after, inv_val(r->g, v)->def) &&
           inv_vec_push(&r->scratch, &r->guard_after, id);
}

static bool emit_edge(inv_recovery *r, uint32_t id, inv_id frees, inv_id *local)
{
    if (id == INV_EDGE_KEEP) {
        r->rep[frees] = frees;
        r->base_of[frees] = true;
        return true;
    }
    if (id < r->nnode) {
        if (clone_node(r, id, local, frees, id, INV_NONE) == INV_NONE) return false;
        r->rep[frees] = local[frees];
        local[frees] = INV_NONE;
        if (!record(r, frees, INV_RECOMPUTED, inv_nod(r->base, id)->op->name, r->flops[id])) return false;
        return r->policy->guard != INV_GUARD_FULL || guard(r, frees);
    }
    const inv_edge *e = &r->edge[id - r->nnode];
    for (uint32_t i = 0; i < e->nsave; i++)
        if (!save_node(r, e->node[i], frees, local)) return false;
    for (uint32_t i = e->nsave; i < e->nnode; i++)
        if (clone_node(r, e->node[i], local, i + 1 == e->nnode ? e->result : INV_NONE, INV_NONE, e->forward) ==
            INV_NONE)
            return false;
    r->rep[frees] = local[e->result];
    inv_val(r->g, r->rep[frees])->mem = inv_val(r->base, frees)->mem;
    if (!record(r, frees, INV_INVERTED, e->rule->name, e->flops)) return false;
    return r->policy->guard == INV_GUARD_OFF ||
           (r->policy->guard == INV_GUARD_ON && e->rule->exactness == INV_EXACT) || guard(r, frees);
}

static bool need(inv_recovery *r, inv_id v, inv_id *local);

/* Whether a pick that is to be kept is first tried to be derived itself; what that takes is not doubted in turn. */
static bool doubted(const inv_recovery *r, inv_id v, uint32_t edge)
{
    const inv_policy *p = r->policy;
    return edge == INV_EDGE_KEEP && p->lean && p->likely && p->likely[v] && !r->anchor[v] && !r->doubting;
}

/* Derives target if it can be had within cap; *done says so. */
static bool derive(inv_recovery *r, inv_id target, double cap, inv_id *local, bool *done)
{
    inv_ids picks = {0};
    *done = false;
    if (!inv_hyperpath(r, target, cap, &picks)) return false;
    uint32_t *edge = INV_ARENA_NEW(&r->scratch, uint32_t, picks.n + 1);
    if (!edge) return false;
    for (size_t i = 0; i < picks.n; i++) edge[i] = inv_hyperpath_edge(r, picks.at[i]);
    for (size_t i = 0; i < picks.n; i++) {
        inv_id v = picks.at[i];
        if (inv_at_hand(r, v)) continue;
        if (doubted(r, v, edge[i])) {
            r->doubting = true;
            if (!need(r, v, local)) return false;
            r->doubting = false;
            continue;
        }
        if (!inv_edge_fits(r, v, edge[i])) { /* what was doubted came with an error */
            edge[i] = INV_EDGE_KEEP;
            r->err[v] = 0;
        }
        if (!emit_edge(r, edge[i], v, local)) return false;
    }
    *done = picks.n > 0;
    return true;
}

static bool kept_anyway(const inv_recovery *r, inv_id v)
{
    const inv_policy *p = r->policy;
    const inv_value *val = inv_val(r->base, v);
    return p->keep[v] || val->keep || !(p->recompute || p->invert) ||
           inv_nod(r->base, val->def)->op->flags & INV_OP_NO_CLONE;
}

/* Whether op only moves elements, so that its outputs are as steep as its inputs. */
static bool moves(const inv_recovery *r, inv_id node)
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

/* Whether v is its node's operands in another arrangement, so that they can be kept in its place. */
static bool rearranged(const inv_recovery *r, inv_id v)
{
    inv_id def = inv_val(r->base, v)->def;
    const inv_node *n = inv_nod(r->base, def);
    double sum = 0;
    for (uint32_t k = 0; k < n->nin; k++)
        if (n->in[k] != INV_NONE && r->forward[n->in[k]]) sum += inv_nbytes(r, n->in[k]);
    return sum > 0 && sum <= inv_nbytes(r, v) && moves(r, def);
}

static bool need(inv_recovery *r, inv_id v, inv_id *local)
{
    if (inv_at_hand(r, v)) return note_read(r, v);
    bool done = false;
    const inv_node *n = inv_nod(r->base, inv_val(r->base, v)->def);
    for (uint32_t k = 0; r->policy->apart && rearranged(r, v) && k < n->nin; k++)
        if (n->in[k] != INV_NONE && !need(r, n->in[k], local)) return false;
    /* What is kept for being late is still not kept twice in two arrangements. */
    double cap = r->pos[inv_val(r->base, v)->def] >= r->policy->late ? INV_FREE : inv_price_of(r, v);
    if (!derive(r, v, cap, local, &done)) return false;
    if (done) return true;
    r->rep[v] = v;
    return note_read(r, v);
}

/* How an error of each output counts: see INV_OP_ATOMS and INV_OP_FROM_OUT. */
static void note_steep(inv_recovery *r, inv_id node)
{
    const inv_node *n = inv_nod(r->base, node);
    double steep = 1;
    if (n->op->flags & INV_OP_ATOMS) steep = INFINITY;
    for (uint32_t k = 0; k < n->nin; k++) {
        inv_id x = n->in[k];
        if (x == INV_NONE || !r->forward[x]) continue;
        if (r->steep[x] > steep && moves(r, node)) steep = r->steep[x];
        for (uint32_t i = r->edge_start[x]; n->op->flags & INV_OP_FROM_OUT && i < r->edge_start[x + 1]; i++) {
            const inv_edge *e = &r->edge[r->edge_of[i]];
            if (e->forward == node && e->gain > steep) steep = e->gain;
        }
    }
    for (uint32_t k = 0; k < n->nout; k++)
        if (n->out[k] != INV_NONE) r->steep[n->out[k]] = steep;
}

/* --- the walk --- */

static bool prepare(inv_recovery *r)
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
    r->base_of = INV_ARENA_NEW(a, bool, r->nvalue + 1);
    r->anchor = INV_ARENA_NEW(a, bool, r->nvalue + 1);
    r->heeded = INV_ARENA_NEW(a, bool, r->nvalue + 1);
    r->banned = INV_ARENA_NEW(a, bool, r->nedge + 1);
    if (!r->edge_start || !r->edge_of || !r->pos || !r->forward || !r->rep || !r->err || !r->flops || !r->steep ||
        !r->dist || !r->stamp || !r->head || !r->via || !r->state || !r->noted || !r->base_of ||
        !r->anchor || !r->heeded || !r->banned)
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

static bool walk(inv_recovery *r)
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

static bool assemble(inv_recovery *r)
{
    inv_graph *g = r->g;
    inv_ids order = {0};
    uint32_t *first = INV_ARENA_NEW(&r->scratch, uint32_t, r->nnode + 1),
             *next = INV_ARENA_NEW(&r->scratch, uint32_t, r->guard_after.n + 2);
    if (!first || !next) return false;
    for (uint32_t k = (uint32_t)r->guard_after.n; k > 0; k -= 2) { /* a list of them per forward node; 0: none */
        next[k / 2 - 1] = first[r->guard_after.at[k - 2]];
        first[r->guard_after.at[k - 2]] = k / 2;
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
    inv_recovery r = {.base = base, .policy = policy, .plan = plan};
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
