/* SPDX-License-Identifier: Apache-2.0
 * Makes nodes of a plan: clones of forward's nodes for what is recomputed, the nodes of an inverse edge's template for
 * what is inverted, and copies from host memory for what was offloaded, each before the node of backward that the plan
 * names. Backward is emitted in its order, and reads the newest rematerialisation of a value, or the original if there
 * is none. Nothing is freed here: liveness in memplan.c follows from who still reads what.
 * requires: inv_recovery, rematerialisations.
 * gives: a copy of the base graph with the new nodes, its guards (insert_guards.c), and a record of each value's
 * choice. */
#include <string.h>

#include "core/program/cost.h"
#include "passes/planner/problem.h"
#include "passes/recover/emitter.h"
#include "passes/recover/recover.h"
#include "passes/schedule/schedule.h"

/* --- the record of choices --- */

static inv_stored_why why_stored(const emitter *x, inv_id v)
{
    const inv_policy *p = x->r->policy;
    const inv_value *val = inv_val(x->r->base, v);
    if (val->keep) return INV_STORED_RESULT;
    if (p->value[v].checkpoint) return INV_STORED_GUARD;
    if (inv_ids_have(x->plan->lost.at, x->plan->lost.n, v)) return INV_STORED_PROOF;
    if (p->value[v].keep) return INV_STORED_ASKED;
    if (!(p->recompute || p->invert)) return INV_STORED_ALL;
    const unsigned flags = inv_nod(x->r->base, val->def)->op->flags;
    if (flags & INV_OP_NO_CLONE) return INV_STORED_ONCE;
    if (flags & INV_OP_SOURCE) return INV_STORED_INPUT;
    return x->for_base ? INV_STORED_BASE : INV_STORED_CHEAPER;
}

/* Records once how backward gets v. */
static bool record_choice(emitter *x, inv_id v, inv_choice choice, const char *by, double flops)
{
    inv_choice_row row = {v, choice, by, flops <= 0, INV_STORED_NOT, x->value[v].way, x->value[v].rule};
    if (x->value[v].noted >> choice & 1) return true;
    x->value[v].noted |= (uint8_t)(1u << choice);
    if (choice == INV_STORED) row.stored = (uint8_t)why_stored(x, v);
    return inv_vec_push(&x->g->arena, &x->plan->choice, row);
}

/* --- what stands for a value --- */

/* A view of `from`, which was rematerialised, in the shape of v. */
static inv_id view_of(emitter *x, inv_id from, inv_id v)
{
    inv_graph *g = x->g;
    const inv_value val = *inv_val(g, v);
    const inv_attr shape = inv_attr_of_ints("shape", (size_t)val.shape.rank, val.shape.dim);
    const inv_id out = inv_emit1(g, "View", INV_IN(from), 1, &shape);
    if (out != INV_NONE) inv_val(g, out)->mem = val.mem;
    return out;
}

/* What backward reads for v, a value of forward or a view of one, from here on. INV_NONE: out of memory. */
static inv_id stands_for(emitter *x, inv_id v)
{
    const uint32_t k = x->value[v].root;
    if (k == INV_NO_NUMBER) return v;
    if (x->root[k].newest == 0)
        return !inv_in_forward(x->r, v) || record_choice(x, v, INV_STORED, "", 0) ? v : INV_NONE;
    if (x->value[v].rep == INV_NONE || x->value[v].version != x->root[k].newest) {
        x->value[v].rep = view_of(x, x->value[x->root[k].stands].rep, v);
        x->value[v].version = x->root[k].newest;
    }
    return x->value[v].rep;
}

/* Notes that a node of backward views a value of forward: who reads the view once that was rematerialised reads a view
 * of the newest, so that the older need not be kept for it. */
static void note_view(emitter *x, const inv_node *n)
{
    const inv_id v = n->nin ? n->in[0] : INV_NONE, out = n->out[0];
    if (!(n->op->flags & INV_OP_VIEW) || v == INV_NONE || out == INV_NONE) return;
    const uint32_t root = x->value[v].root;
    if (root == INV_NO_NUMBER) return;
    x->value[out].root = root;
    x->value[out].rep = out;
    x->value[out].version = x->root[root].newest;
}

/* Notes that v has been rematerialised as `rep`, and guards it if that is asked for. */
static bool note_remat(emitter *x, inv_id v, inv_id rep, bool guarded)
{
    const uint32_t k = x->r->number[v];
    x->value[v].version = ++x->root[k].newest;
    x->root[k].stands = v;
    x->value[v].rep = rep;
    inv_val(x->g, rep)->mem = inv_val(x->r->base, v)->mem;
    return !guarded || inv_guard_rebuilt(x, v);
}

/* --- nodes --- */

inv_id inv_node_again(emitter *x, const inv_node *like, const inv_id *in, const inv_id *wanted, uint32_t nwanted)
{
    inv_graph *g = x->g;
    const inv_node n = *like;
    inv_id *out = INV_ARENA_NEW(&x->scratch, inv_id, n.nout + 1);
    if (!out) return INV_NONE;
    for (uint32_t k = 0; k < n.nout; k++) {
        const inv_id v = n.out[k];
        out[k] = INV_NONE;
        if (v == INV_NONE || (wanted && !inv_ids_have(wanted, nwanted, v))) continue;
        const inv_value val = *inv_val(g, v);
        out[k] = inv_graph_value(g, inv_graph_fresh(g, val.name), INV_ROLE_NODE, val.dtype, &val.shape);
        if (out[k] == INV_NONE) return INV_NONE;
        inv_val(g, out[k])->mem = val.mem;
    }
    const inv_id id = inv_graph_node(g, n.domain, n.op_type, n.name, n.nin, in, n.nout, out, n.nattr, n.attr);
    if (id == INV_NONE) return INV_NONE;
    inv_node *c = inv_nod(g, id);
    c->op = n.op;
    c->phase = INV_BACKWARD;
    c->clone_of = n.clone_of;
    c->solves = n.solves;
    c->origin = n.origin;
    c->norigin = n.norigin;
    c->origin_type = n.origin_type;
    for (uint32_t k = 0; k < c->nout; k++)
        if (c->out[k] != INV_NONE) inv_val(g, c->out[k])->def = id;
    return id;
}

/* Copies a node to the end of backward, with those of its outputs that are wanted (NULL: all). It reads what stands for
 * forward's values, or these themselves if it is going to stand in forward. */
static inv_id emit_copy(emitter *x, inv_id base_node, const inv_id *wanted, uint32_t nwanted, bool in_forward)
{
    inv_graph *g = x->g;
    const inv_node n = *inv_nod(g, base_node);
    inv_id *in = INV_ARENA_NEW(&x->scratch, inv_id, n.nin + 1);
    if (!in) return INV_NONE;
    for (uint32_t k = 0; k < n.nin; k++) {
        const inv_id v = n.in[k], local = v == INV_NONE ? v : x->value[v].local;
        in[k] = local != INV_NONE || v == INV_NONE ? local : in_forward ? v : stands_for(x, v);
        if (v != INV_NONE && in[k] == INV_NONE) return INV_NONE;
    }
    const inv_id id = inv_node_again(x, &n, in, wanted, nwanted);
    if (id == INV_NONE) return INV_NONE;
    const inv_node *c = inv_nod(g, id);
    for (uint32_t k = 0; k < c->nout; k++)
        if (c->out[k] != INV_NONE) x->value[n.out[k]].local = c->out[k];
    return inv_vec_push(&g->arena, &g->order, id) ? id : INV_NONE;
}

bool inv_put_behind(emitter *x, inv_id v)
{
    inv_ids *order = &x->g->order;
    return inv_vec_push(&x->scratch, &x->behind[inv_val(x->g, v)->def], order->at[--order->n]);
}

/* Ends one rematerialisation, in which copies of the template's values were known by x->local. */
static void forget_local(emitter *x, inv_id node)
{
    const inv_node *n = inv_nod(x->g, node);
    for (uint32_t k = 0; k < n->nout; k++)
        if (n->out[k] != INV_NONE) x->value[n->out[k]].local = INV_NONE;
}

/* Emits a node of a template that saves something in forward, behind the node that gives v. */
static bool emit_saved_node(emitter *x, inv_id node, inv_id v)
{
    const inv_id id = emit_copy(x, node, NULL, 0, true);
    if (id == INV_NONE) return false;
    inv_nod(x->g, id)->phase = INV_FORWARD;
    return inv_put_behind(x, v);
}

/* Emits a node of a template that solves the node `solved`. */
static bool emit_solving_node(emitter *x, inv_id node, const inv_id *wanted, uint32_t nwanted, inv_id solved)
{
    const inv_id id = emit_copy(x, node, wanted, nwanted, false);
    if (id == INV_NONE) return false;
    inv_node *c = inv_nod(x->g, id);
    const inv_node *of = inv_nod(x->g, solved);
    c->solves = solved;
    c->origin = of->origin;
    c->norigin = of->norigin;
    c->origin_type = of->origin_type;
    return true;
}

/* --- rematerialisations --- */

static bool emit_recomputation(emitter *x, const inv_pb_edge *e, uint32_t want)
{
    const inv_recovery *r = x->r;
    inv_id wanted[32], node = (inv_id)e->id;
    uint32_t n = 0;
    for (uint32_t i = 0; i < e->ntarget; i++)
        if (want >> i & 1) wanted[n++] = r->value[e->target[i]];
    const inv_id id = emit_copy(x, node, wanted, n, false);
    if (id == INV_NONE) return false;
    inv_nod(x->g, id)->clone_of = node;
    const inv_node *of = inv_nod(r->base, node);
    for (uint32_t i = 0; i < n; i++)
        if (!record_choice(x, wanted[i], INV_RECOMPUTED, of->op->name, inv_node_flops(r->base, of)) ||
            !note_remat(x, wanted[i], x->value[wanted[i]].local, inv_guarded(r->policy, NULL)))
            return false;
    forget_local(x, node);
    return true;
}

/* The inverse edge that gives this target of the problem's edge. */
static const inv_edge *edge_for(const inv_recovery *r, const inv_pb_edge *e, uint32_t target)
{
    const inv_edge *of = &r->edge[e->id];
    while (r->number[of->frees] != e->target[target]) of++;
    return of;
}

static bool emit_solution(emitter *x, const inv_pb_edge *edge, uint32_t want)
{
    const inv_recovery *r = x->r;
    const inv_edge *e = &r->edge[edge->id], *of[32];
    inv_id wanted[32];
    uint32_t n = 0;
    for (uint32_t i = 0; i < edge->ntarget; i++)
        if (want >> i & 1) of[n] = edge_for(r, edge, i), wanted[n] = of[n]->result, n++;
    for (uint32_t i = 0; i < e->nsave; i++)
        if (!emit_saved_node(x, e->node[i], e->frees)) return false;
    for (uint32_t i = e->nsave; i < e->nnode; i++)
        if (!emit_solving_node(x, e->node[i], i + 1 == e->nnode ? wanted : NULL, n, e->forward)) return false;
    for (uint32_t i = 0; i < n; i++)
        if (!record_choice(x, of[i]->frees, INV_INVERTED, e->rule->name, e->flops) ||
            !note_remat(x, of[i]->frees, x->value[wanted[i]].local, inv_guarded(r->policy, e)))
            return false;
    for (uint32_t i = 0; i < e->nnode; i++) forget_local(x, e->node[i]);
    return true;
}

/* The copy in host memory, made right behind the node that gives v. One copy serves all that come back. */
static inv_id emit_host_copy(emitter *x, inv_id v)
{
    inv_graph *g = x->g;
    inv_id *copy = &x->root[x->r->number[v]].copy;
    if (*copy != INV_NONE) return *copy;
    g->phase = INV_FORWARD;
    *copy = inv_emit1(g, "Offload", INV_IN(v), INV_NOATTR);
    g->phase = INV_BACKWARD;
    return *copy != INV_NONE && inv_put_behind(x, v) ? *copy : INV_NONE;
}

static bool emit_fetch(emitter *x, inv_id v)
{
    inv_graph *g = x->g;
    inv_emit_for(g, inv_nod(g, inv_val(g, v)->def));
    const inv_id copy = emit_host_copy(x, v);
    const inv_id back = copy == INV_NONE ? copy : inv_emit1(g, "Fetch", INV_IN(copy), INV_NOATTR);
    inv_emit_for(g, NULL);
    return back != INV_NONE && record_choice(x, v, INV_OFFLOADED, "host memory", 0) &&
           note_remat(x, v, back, inv_guarded(x->r->policy, NULL));
}

/* Whether some source of the edge hangs, as it is now, on an inverse that rounds. */
static bool reads_inexact(const emitter *x, const inv_pb_edge *e)
{
    for (uint32_t i = 0; i < e->nsource; i++)
        if (x->root[e->source[i]].newest && x->root[e->source[i]].inexact) return true;
    return false;
}

static bool emit_remat(emitter *x, const inv_remat *m)
{
    const inv_recovery *r = x->r;
    const inv_pb_edge *e = &r->p.edge[m->edge];
    const bool inexact = !e->offload && ((e->inverse && e->added_error > 0) || reads_inexact(x, e));
    for (uint32_t i = 0; i < e->ntarget; i++)
        if (m->want >> i & 1) x->root[e->target[i]].inexact = inexact;
    x->for_base = true;
    const bool ok = e->offload   ? emit_fetch(x, r->value[e->target[0]])
                    : e->inverse ? emit_solution(x, e, m->want)
                                 : emit_recomputation(x, e, m->want);
    x->for_base = false;
    return ok;
}

/* --- the order --- */

static bool prepare_emitter(emitter *x)
{
    const inv_recovery *r = x->r;
    inv_arena *a = &x->scratch;
    const size_t n = r->base->value.n + 1;
    x->value = INV_ARENA_NEW(a, emitted_value, n);
    x->root = INV_ARENA_NEW(a, emitted_root, r->p.nvalue + 1);
    x->at = INV_ARENA_NEW(a, uint32_t, r->base->node.n + 1);
    x->behind = INV_ARENA_NEW(a, inv_ids, r->base->node.n + 1);
    if (a->failed) return false;
    for (size_t v = 0; v < r->base->value.n; v++)
        x->value[v] = (emitted_value){.root = r->number[v], .rep = INV_NONE, .local = INV_NONE};
    for (uint32_t v = 0; v < r->p.nvalue; v++) x->root[v].copy = INV_NONE;
    for (uint32_t i = 0; i < r->base->forward_end; i++) x->at[r->base->order.at[i]] = i;
    for (size_t i = 0; i < r->nedge; i++) {
        const inv_edge *e = &r->edge[i];
        const inv_way way = inv_way_of(r, e);
        if (x->value[e->frees].rule && way <= x->value[e->frees].way) continue;
        x->value[e->frees].way = (uint8_t)way;
        x->value[e->frees].rule = e->rule->name;
    }
    return true;
}

/* Has this node of backward read what stands for its operands. Where that is another view than the one that it reads
 * in the base graph, what it is of has not met its guard yet. */
static bool replace_operands(emitter *x, inv_id id)
{
    const inv_node *n = inv_nod(x->r->base, id);
    for (uint32_t j = 0; j < n->nin; j++) {
        const inv_id v = n->in[j];
        if (v == INV_NONE) continue;
        const inv_id rep = stands_for(x, v);
        if (rep == INV_NONE) return false;
        inv_nod(x->g, id)->in[j] = rep;
        if (inv_in_forward(x->r, v) || rep == v || x->r->policy->guard == INV_GUARD_OFF) continue;
        if (!inv_guard_view(x, v)) return false;
    }
    return true;
}

/* Notes as lost what the rematerialisation gives, which cannot be made nodes. */
static void lose_targets(emitter *x, const inv_remat *m)
{
    const inv_pb_edge *e = &x->r->p.edge[m->edge];
    for (uint32_t i = 0; i < e->ntarget; i++)
        if (m->want >> i & 1) (void)inv_plan_lose(x->plan, x->r->value[e->target[i]]);
}

/* The same of what stands for operands of this node of backward. */
static void lose_operands(emitter *x, inv_id id)
{
    const inv_node *n = inv_nod(x->r->base, id);
    for (uint32_t j = 0; j < n->nin; j++) {
        const uint32_t k = n->in[j] == INV_NONE ? INV_NO_NUMBER : x->value[n->in[j]].root;
        if (k != INV_NO_NUMBER && x->root[k].newest) (void)inv_plan_lose(x->plan, x->r->value[k]);
    }
}

/* Emits a node of backward, and guards of what it reads. */
static bool emit_reader(emitter *x, inv_id id)
{
    if (!replace_operands(x, id) || !inv_vec_push(&x->g->arena, &x->g->order, id)) return false;
    note_view(x, inv_nod(x->r->base, id));
    return x->r->policy->guard == INV_GUARD_OFF || inv_guard_reader(x, id);
}

static bool emit_backward(emitter *x, const inv_remats *remats)
{
    const inv_graph *b = x->r->base;
    for (size_t i = b->forward_end, k = 0; i < b->order.n; i++) {
        const inv_id id = b->order.at[i];
        for (; k < remats->n && remats->at[k].step == i; k++) {
            if (emit_remat(x, &remats->at[k])) continue;
            lose_targets(x, &remats->at[k]);
            return false;
        }
        if (emit_reader(x, id)) continue;
        lose_operands(x, id);
        return false;
    }
    return true;
}

/* Puts forward, with the nodes that have come into it, before backward. */
static bool assemble_order(emitter *x)
{
    inv_graph *g = x->g;
    const inv_ids backward = g->order;
    bool ok = true;
    g->order = (inv_ids){0};
    for (size_t i = 0; i < x->r->base->forward_end && ok; i++) {
        const inv_id id = x->r->base->order.at[i];
        ok = inv_vec_push(&g->arena, &g->order, id);
        for (size_t k = 0; k < x->behind[id].n && ok; k++) ok = inv_vec_push(&g->arena, &g->order, x->behind[id].at[k]);
    }
    g->forward_end = g->order.n;
    for (size_t i = 0; i < backward.n && ok; i++) ok = inv_vec_push(&g->arena, &g->order, backward.at[i]);
    return ok;
}

inv_status inv_recover(const inv_recovery *r, const inv_remats *remats, inv_plan *plan, inv_graph **out)
{
    emitter x = {.r = r, .plan = plan, .over = INV_NONE, .ahead = r->base->early && !r->policy->late};
    inv_context *ctx = r->base->ctx;
    *out = NULL;
    INV_TRY(inv_graph_variant(r->base, &x.g));
    x.g->phase = INV_BACKWARD;
    x.g->fold = false;
    x.g->order = (inv_ids){0};
    memset(&plan->choice, 0, sizeof plan->choice);
    memset(&plan->guarded, 0, sizeof plan->guarded);
    inv_arena_init(&x.scratch, ctx);
    bool ok =
        prepare_emitter(&x) && emit_backward(&x, remats) && (!x.ahead || inv_check_ahead(&x)) && assemble_order(&x);
    inv_arena_fini(&x.scratch);
    inv_status s = ok ? INV_OK : x.g->failed ? x.g->failed : inv_fail(ctx, INV_E_NOMEM, "out of memory in recovery");
    x.g->early &= x.ahead || plan->guarded.n == 0;
    /* the commit part begins later now, and a feed that runs again goes to its first reader */
    if (s == INV_OK) s = inv_pass_order(x.g);
    if (s != INV_OK) {
        inv_graph_destroy(x.g);
        return s;
    }
    *out = x.g;
    return INV_OK;
}
