/* SPDX-License-Identifier: Apache-2.0
 * Poses the planner's problem for a graph: forward's values with their bytes, what each node of the order reads, all
 * other bytes over the step, and three kinds of edges. A node of forward computes its outputs again, an inverse edge of
 * the matches solves a reader of a value for it, and a copy in host memory gives a value back.
 * What an edge costs is what the nodes cost that recover.c makes of it, guards of the values that it gives included.
 * Not counted are guards of what backward computes from inexact values or makes views of (insert_guards.c), and the
 * second copies of nodes for guards that decide ahead (check_ahead.c). One pass over the graph per part.
 * requires: base graph with matches and order.
 * gives: inv_recovery. */
#include <math.h>
#include <string.h>

#include "core/program/cost.h"
#include "passes/planner/problem.h"
#include "passes/recover/recover.h"
#include "passes/schedule/schedule.h"

#define FINGERPRINT 64 /* bytes of a guard's fingerprint in the arena */

typedef INV_VEC(uint32_t) id_list;

/* The problem while it is made. */
typedef struct builder {
    inv_recovery *r;
    const inv_graph *g;
    inv_arena *a;
    inv_buffers buffers;
    uint32_t *buffer_of;             /* per value: index in buffers */
    const inv_op_def *guard;         /* GuardSum; GuardCheck costs as much */
    const inv_inverse_def *favoured; /* the rule that a conformance suite tries, or NULL */
    INV_VEC(inv_pb_edge) edge;
} builder;

/* --- values --- */

static bool kept_anyway(const inv_recovery *r, inv_id v)
{
    const inv_policy *p = r->policy;
    const inv_value *val = inv_val(r->base, v);
    return p->value[v].keep || val->keep || inv_nod(r->base, val->def)->op->flags & INV_OP_NO_CLONE;
}

/* What inverse edges say of the node that they solve: whether it only moves elements, so that errors of its outputs
 * count as those of its inputs do; their largest gain. */
typedef struct node_facts {
    bool moves;
    double gain;
} node_facts;

static node_facts *list_facts(const inv_recovery *r, inv_arena *a)
{
    node_facts *f = INV_ARENA_NEW(a, node_facts, r->base->node.n + 1);
    for (size_t i = 0; f && i < r->nedge; i++) {
        const inv_edge *e = &r->edge[i];
        f[e->forward].moves |= e->exact && e->flops <= 0;
        f[e->forward].gain = fmax(f[e->forward].gain, e->gain);
    }
    for (size_t i = 0; f && i < r->base->forward_end; i++) {
        const inv_id id = r->base->order.at[i];
        const inv_node *n = inv_nod(r->base, id);
        f[id].moves |= inv_node_flops(r->base, n) <= 0 && !(n->op->flags & INV_OP_SOURCE);
    }
    return f;
}

/* Notes how errors of the node's outputs count; INV_OP_ATOMS and INV_OP_FROM_OUT say why. */
static void note_sensitivity(inv_recovery *r, inv_id node, const node_facts *f)
{
    const inv_node *n = inv_nod(r->base, node);
    double sensitivity = n->op->flags & INV_OP_ATOMS ? INFINITY : 1;
    for (uint32_t k = 0; f->moves && k < n->nin; k++)
        if (inv_in_forward(r, n->in[k])) sensitivity = fmax(sensitivity, r->sensitivity[n->in[k]]);
    if (n->op->flags & INV_OP_FROM_OUT) sensitivity = fmax(sensitivity, f->gain);
    for (uint32_t k = 0; k < n->nout; k++)
        if (n->out[k] != INV_NONE) r->sensitivity[n->out[k]] = sensitivity;
}

/* Forbids to store what the rule that is tried frees, since storing it may cost nothing in a small case; and likewise
 * what that is rearranged from. */
static void favour_value(builder *b, inv_id v, const node_facts *facts)
{
    const inv_node *n = inv_nod(b->g, inv_val(b->g, v)->def);
    b->r->p.value[b->r->number[v]].no_store = true;
    for (uint32_t k = 0; facts[inv_val(b->g, v)->def].moves && k < n->nin; k++)
        if (inv_in_forward(b->r, n->in[k])) favour_value(b, n->in[k], facts);
}

static void favour_rule(builder *b, const inv_inverse_def *rule, const node_facts *facts)
{
    const inv_matches *m = b->g->matches;
    b->favoured = rule;
    for (size_t i = 0; rule && m && i < m->edge.n; i++)
        if (m->edge.at[i].rule == rule) favour_value(b, m->edge.at[i].frees, facts);
    for (size_t i = 0; rule && !rule->solve && m && i < m->block.n; i++)
        if (m->block.at[i].rule == rule && inv_in_forward(b->r, m->block.at[i].in[0]))
            favour_value(b, m->block.at[i].in[0], facts);
}

static bool describe_values(builder *b)
{
    inv_recovery *r = b->r;
    const inv_graph *g = b->g;
    const node_facts *facts = list_facts(r, b->a);
    for (size_t i = 0; facts && i < g->forward_end; i++) {
        const inv_node *n = inv_nod(g, g->order.at[i]);
        note_sensitivity(r, g->order.at[i], &facts[g->order.at[i]]);
        for (uint32_t k = 0; k < n->nout; k++) {
            const inv_id v = n->out[k];
            if (v == INV_NONE) continue;
            inv_pb_value *x = &r->p.value[r->number[v]];
            const inv_value_policy *asked = &r->policy->value[v];
            x->no_store |= asked->no_store;
            x->offload |= asked->offload;
            x->rejected |= asked->rejected;
            x->pinned |= kept_anyway(r, v) || !(r->policy->recompute || r->policy->invert);
            x->sensitivity = fmax(x->sensitivity, r->sensitivity[v]);
            if (r->value[r->number[v]] != v) continue; /* a view */
            x->nbytes = inv_round64(inv_value_nbytes(inv_val(g, v)));
            x->def = (uint32_t)i;
            x->data = inv_val(g, v)->mem == INV_MEM_DATA;
        }
    }
    if (facts) favour_rule(b, inv_registry_favoured(g->ctx->registry), facts);
    return facts != NULL;
}

static bool number_values(builder *b)
{
    inv_recovery *r = b->r;
    const inv_graph *g = b->g;
    inv_ids roots = {0};
    for (size_t v = 0; v < g->value.n; v++) r->number[v] = INV_NO_NUMBER;
    for (size_t i = 0; i < g->forward_end; i++) {
        const inv_node *n = inv_nod(g, g->order.at[i]);
        for (uint32_t k = 0; k < n->nout; k++) {
            const inv_id v = n->out[k];
            if (v == INV_NONE) continue;
            const bool view = k == 0 && n->op->flags & INV_OP_VIEW && inv_in_forward(r, n->in[0]);
            r->number[v] = view ? r->number[n->in[0]] : (uint32_t)roots.n;
            if (!view && !inv_vec_push(b->a, &roots, v)) return false;
        }
    }
    r->value = roots.at;
    r->p.nvalue = (uint32_t)roots.n;
    r->p.value = INV_ARENA_NEW(b->a, inv_pb_value, roots.n + 1);
    return r->p.value && describe_values(b);
}
/* --- what nodes read --- */

static bool add_once(const builder *b, id_list *list, uint32_t number)
{
    return inv_pb_has(list->at, (uint32_t)list->n, number) || inv_vec_push(b->a, list, number);
}

/* Lists the roots that a node reads, each once, by the numbers of its operands. */
static bool list_reads(const builder *b, const inv_node *n, const uint32_t *number, id_list *list)
{
    for (uint32_t k = 0; k < n->nin; k++) {
        const uint32_t root = n->in[k] == INV_NONE ? INV_NO_NUMBER : number[n->in[k]];
        if (root != INV_NO_NUMBER && !add_once(b, list, root)) return false;
    }
    return true;
}

/* Whether another value that the node reads has the bytes of operand k. */
static bool read_by_another(const builder *b, const inv_node *n, uint32_t k)
{
    for (uint32_t j = 0; j < n->nin; j++)
        if (n->in[j] != n->in[k] && inv_in_forward(b->r, n->in[j]) && b->r->number[n->in[j]] == b->r->number[n->in[k]])
            return true;
    return false;
}

/* Which of the listed values the node's output may be written in place of. */
static uint32_t may_overwrite(const builder *b, const inv_node *n, const id_list *list)
{
    uint32_t bits = 0;
    const uint32_t o = n->op->inplace_out;
    if (n->nout <= o || n->out[o] == INV_NONE) return 0;
    const uint32_t inplace = inv_node_inplace(b->g, n, o);
    for (uint32_t k = 0; k < n->nin && k < 32; k++) {
        const inv_id v = n->in[k];
        if (!(inplace >> k & 1)) continue;
        if (inv_in_forward(b->r, v)) {
            if (read_by_another(b, n, k)) continue;
            for (uint32_t i = 0; i < list->n && i < 32; i++)
                if (list->at[i] == b->r->number[v]) bits |= 1u << i;
        } else if (b->buffer_of[v] != UINT32_MAX && b->buffer_of[v] == b->buffer_of[n->out[o]]) {
            return 0;
        }
    }
    return bits;
}

/* Results are live to the end of the step: its last node reads them. */
static bool read_results(const builder *b, id_list *list)
{
    for (inv_id v = 0; v < b->g->value.n; v++)
        if (inv_in_forward(b->r, v) && inv_val(b->g, v)->keep && !add_once(b, list, b->r->number[v])) return false;
    return true;
}

static bool list_steps(builder *b)
{
    inv_recovery *r = b->r;
    const inv_graph *g = b->g;
    uint32_t *number = INV_ARENA_NEW(b->a, uint32_t, g->value.n + 1); /* of views that backward makes, too */
    r->p.nstep = (uint32_t)g->order.n;
    r->p.forward = (uint32_t)g->forward_end;
    r->p.step = INV_ARENA_NEW(b->a, inv_pb_step, g->order.n + 1);
    if (b->a->failed) return false;
    memcpy(number, r->number, g->value.n * sizeof *number);
    for (size_t i = 0; i < g->order.n; i++) {
        const inv_node *n = inv_nod(g, g->order.at[i]);
        id_list list = {0};
        if (!list_reads(b, n, number, &list)) return false;
        if (i + 1 == g->order.n && !read_results(b, &list)) return false;
        if (i >= g->forward_end && n->op->flags & INV_OP_VIEW && list.n == 1 && n->out[0] != INV_NONE)
            number[n->out[0]] = list.at[0];
        r->p.step[i] = (inv_pb_step){.read = list.at,
                                     .nread = (uint32_t)list.n,
                                     .cost = inv_node_cost(r->costs, g, n),
                                     .overwrites = n->op->flags & INV_OP_VIEW ? 0 : may_overwrite(b, n, &list)};
    }
    return true;
}

/* Sums up the bytes of what is no value of forward: gradients, scratch memory, results of the commit part. */
static bool list_other_bytes(builder *b)
{
    const inv_graph *g = b->g;
    const size_t n = g->order.n;
    int64_t *at = INV_ARENA_NEW(b->a, int64_t, 4 * (n + 2)), *before = at + n + 2, *act = before + n + 2,
            *act_before = act + n + 2;
    if (n == 0) return true;
    if (!at) return false;
    for (size_t i = 0; i < b->buffers.n; i++) {
        const inv_buffer *x = &b->buffers.at[i];
        const int64_t size = (int64_t)inv_round64(x->nbytes);
        const size_t to = x->to < n ? x->to : n - 1;
        if (x->from > to || inv_in_forward(b->r, x->value)) continue;
        at[x->from] += size, at[to + 1] -= size;
        before[x->from + 1] += size, before[to + 1] -= size;
        if (x->mem != INV_MEM_ACT) continue;
        act[x->from] += size, act[to + 1] -= size;
        act_before[x->from + 1] += size, act_before[to + 1] -= size;
    }
    int64_t sum[4] = {0};
    for (size_t i = 0; i < n; i++) {
        inv_pb_step *s = &b->r->p.step[i];
        s->at = (size_t)(sum[0] += at[i]);
        s->before = (size_t)(sum[1] += before[i]);
        s->act_at = (size_t)(sum[2] += act[i]);
        s->act_before = (size_t)(sum[3] += act_before[i]);
    }
    return true;
}

/* --- edges --- */

static size_t workspace_nbytes(const inv_graph *g, const inv_node *n)
{
    return n->op->workspace ? inv_round64(n->op->workspace(g, n)) : 0;
}

/* The cost of the node if only these of its outputs are wanted. */
static double node_cost_of(const builder *b, const inv_node *node, const inv_id *wanted, uint32_t nwanted)
{
    inv_node some = *node;
    some.out = INV_ARENA_NEW(b->a, inv_id, node->nout + 1);
    for (uint32_t k = 0; some.out && k < node->nout; k++)
        some.out[k] = inv_ids_have(wanted, nwanted, node->out[k]) ? node->out[k] : INV_NONE;
    return some.out ? inv_node_cost(b->r->costs, b->g, &some) : 0;
}

static bool counts_guard(const builder *b, const inv_edge *e)
{
    return inv_guarded(b->r->policy, e) && !b->r->policy->guards_aside;
}

/* The cost of both halves of a guard of v, but for the few bytes of the fingerprint. */
static double guard_cost(const builder *b, inv_id v)
{
    const inv_node n = {.op = b->guard, .nin = 1, .in = &v};
    return inv_dtype_is_float(inv_val(b->g, v)->dtype) ? 2 * inv_node_cost(b->r->costs, b->g, &n) : 0;
}

/* Adds to the edge what guards of its targets cost and take, if it is guarded. Of their fingerprints, which wait for
 * the rematerialisation, one is counted, since not all values need be wanted. */
static void add_guards(const builder *b, bool guarded, inv_pb_edge *e)
{
    for (uint32_t i = 0; guarded && i < e->ntarget; i++) {
        inv_id v = b->r->value[e->target[i]];
        const inv_node n = {.op = b->guard, .nin = 1, .in = &v};
        const size_t scratch = workspace_nbytes(b->g, &n);
        if (!inv_dtype_is_float(inv_val(b->g, v)->dtype)) continue;
        e->cost += guard_cost(b, v);
        if (scratch > e->scratch) e->scratch = scratch;
        if (i == 0) e->side += FINGERPRINT;
    }
}

/* Sets what the edge costs: the node that gives its targets as these results, which costs less if some are not wanted,
 * what it takes besides, and guards. */
static void set_cost(const builder *b, const inv_node *node, const inv_id *result, double besides, bool guarded,
                     inv_pb_edge *e)
{
    e->cost = besides + node_cost_of(b, node, result, e->ntarget);
    add_guards(b, guarded, e);
    for (uint32_t i = 0; i < e->ntarget; i++) {
        const double guard = guarded ? guard_cost(b, b->r->value[e->target[i]]) : 0;
        e->max_saving = fmax(e->max_saving, e->cost - besides - node_cost_of(b, node, &result[i], 1) - guard);
    }
}

/* Adds the edge by which a node of forward runs again. */
static bool add_recomputation(builder *b, inv_id node)
{
    const inv_recovery *r = b->r;
    const inv_node *n = inv_nod(b->g, node);
    id_list source = {0}, target = {0}, wanted = {0};
    if (n->op->flags & (INV_OP_NO_CLONE | INV_OP_STEP) || n->nout == 0) return true;
    if (n->op->flags & INV_OP_SOURCE && !r->policy->feed_again) return true;
    if (r->policy->unguarded && inv_guarded(r->policy, NULL)) return true;
    if (n->out[0] != INV_NONE && r->value[r->number[n->out[0]]] != n->out[0]) return true; /* views are their root */
    if (!list_reads(b, n, r->number, &source)) return false;
    for (uint32_t k = 0; k < n->nout && target.n < 32; k++) {
        const inv_id v = n->out[k];
        if (v == INV_NONE || r->policy->value[v].no_recompute || !r->policy->recompute) continue;
        if (r->p.value[r->number[v]].pinned) continue;
        if (b->favoured && r->p.value[r->number[v]].no_store) continue;
        if (!inv_vec_push(b->a, &target, r->number[v]) || !inv_vec_push(b->a, &wanted, v)) return false;
    }
    if (target.n == 0) return true;
    inv_pb_edge e = {.source = source.at,
                     .nsource = (uint32_t)source.n,
                     .target = target.at,
                     .ntarget = (uint32_t)target.n,
                     .id = node,
                     .scratch = workspace_nbytes(b->g, n),
                     .moves = inv_node_flops(b->g, n) <= 0,
                     .overwrites = target.n == 1 ? may_overwrite(b, n, &source) : 0};
    set_cost(b, n, wanted.at, 0, counts_guard(b, NULL), &e);
    return inv_vec_push(b->a, &b->edge, e);
}

/* The bytes that a solution's nodes need besides what they read and give: workspaces, and what all but the last
 * make. */
static size_t solution_scratch(const inv_graph *g, const inv_edge *e)
{
    size_t sum = 0, most = 0;
    for (uint32_t i = e->nsave; i < e->nnode; i++) {
        const inv_node *n = inv_nod(g, e->node[i]);
        const size_t ws = workspace_nbytes(g, n);
        if (ws > most) most = ws;
        for (uint32_t k = 0; i + 1 < e->nnode && k < n->nout; k++)
            if (n->out[k] != INV_NONE && !(n->op->flags & INV_OP_VIEW))
                sum += inv_round64(inv_value_nbytes(inv_val(g, n->out[k])));
    }
    return sum + most;
}

/* The cost of a solution's nodes but the last, those included that save in forward. */
static double cost_before_last(const builder *b, const inv_edge *e)
{
    double sum = 0;
    for (uint32_t i = 0; i + 1 < e->nnode; i++) sum += inv_node_cost(b->r->costs, b->g, inv_nod(b->g, e->node[i]));
    return sum;
}

/* The relative error that an inverse adds by rounding, which its gain magnifies. */
static double added_error_of(const inv_graph *g, const inv_edge *e)
{
    if (e->exact || e->flops <= 0) return 0; /* what only moves elements does not round */
    return e->gain * inv_edge_rounding(g, e);
}

inv_way inv_way_of(const inv_recovery *r, const inv_edge *e)
{
    const double added = added_error_of(r->base, e);
    if (!r->policy->invert || r->policy->value[e->frees].no_invert) return INV_WAY_OFF;
    if (r->policy->unguarded && inv_guarded(r->policy, e)) return INV_WAY_OFF;
    if (!(e->gain < 1e30)) return INV_WAY_UNBOUNDED;
    return added <= 0 || added * r->sensitivity[e->frees] <= r->policy->max_drift ? INV_WAY_OPEN : INV_WAY_INEXACT;
}

static bool edge_may_free(const builder *b, const inv_edge *e)
{
    const inv_recovery *r = b->r;
    if (!inv_in_forward(r, e->frees) || inv_way_of(r, e) != INV_WAY_OPEN) return false;
    if (r->p.value[r->number[e->frees]].pinned) return false;
    return !b->favoured || !b->favoured->solve || e->rule == b->favoured || e->flops <= 0 ||
           !r->p.value[r->number[e->frees]].no_store;
}

/* Adds the edge that solves a reader for all operands that one solution gives. */
static bool add_inverse(builder *b, uint32_t index)
{
    const inv_recovery *r = b->r;
    const inv_edge *e = &r->edge[index];
    id_list source = {0}, target = {0}, result = {0};
    if (index > 0 && e[-1].node == e->node) return true;
    for (uint32_t i = e->nsave; i < e->nnode; i++)
        if (!list_reads(b, inv_nod(b->g, e->node[i]), r->number, &source)) return false;
    for (uint32_t i = index; i < r->nedge && r->edge[i].node == e->node && target.n < 32; i++) {
        const uint32_t v = r->number[r->edge[i].frees];
        if (!edge_may_free(b, &r->edge[i]) || inv_pb_has(source.at, (uint32_t)source.n, v) ||
            inv_pb_has(target.at, (uint32_t)target.n, v))
            continue; /* or a view of it */
        if (!inv_vec_push(b->a, &target, v) || !inv_vec_push(b->a, &result, r->edge[i].result)) return false;
    }
    if (target.n == 0) return true;
    const inv_node *last = inv_nod(b->g, e->node[e->nnode - 1]);
    const bool alone = target.n == 1 && e->nnode == e->nsave + 1;
    inv_pb_edge x = {.source = source.at,
                     .nsource = (uint32_t)source.n,
                     .target = target.at,
                     .ntarget = (uint32_t)target.n,
                     .id = index,
                     .scratch = solution_scratch(b->g, e),
                     .side = inv_round64((size_t)e->kept),
                     .overwrites = alone ? may_overwrite(b, last, &source) : 0,
                     .inverse = true,
                     .moves = e->flops <= 0,
                     .error_gain = e->gain,
                     .added_error = added_error_of(b->g, e)};
    set_cost(b, last, result.at, cost_before_last(b, e), counts_guard(b, e), &x);
    return inv_vec_push(b->a, &b->edge, x);
}

/* Adds the edge that copies a value from host memory, where forward has put it. */
static bool add_offload(builder *b, uint32_t v)
{
    const inv_recovery *r = b->r;
    const inv_pb_value *x = &r->p.value[v];
    if (!x->offload || x->pinned || !x->nbytes || (b->favoured && x->no_store)) return true;
    if (r->policy->unguarded && inv_guarded(r->policy, NULL)) return true;
    uint32_t *target = INV_ARENA_NEW(b->a, uint32_t, 1);
    if (!target) return false;
    *target = v;
    inv_pb_edge e = {.target = target,
                     .ntarget = 1,
                     .offload = true,
                     .cost = inv_offload_cost(r->costs, (double)inv_value_nbytes(inv_val(b->g, r->value[v])))};
    add_guards(b, counts_guard(b, NULL), &e);
    return inv_vec_push(b->a, &b->edge, e);
}

/* Whether the edge only rearranges its operands to give v, so that they can be kept in its place. */
static bool is_rearranged(const inv_problem *p, uint32_t v, const inv_pb_edge *e)
{
    size_t sum = 0;
    for (uint32_t i = 0; i < e->nsource; i++) sum += p->value[e->source[i]].nbytes;
    return !e->inverse && e->moves && sum > 0 && sum <= p->value[v].nbytes + 64 * e->nsource;
}

static bool index_edges(builder *b)
{
    inv_problem *p = &b->r->p;
    size_t n = 0;
    for (uint32_t i = 0; i < p->nedge; i++) n += p->edge[i].ntarget;
    uint32_t *of = INV_ARENA_NEW(b->a, uint32_t, n + 1);
    if (!of) return false;
    for (uint32_t i = 0; i < p->nedge; i++)
        for (uint32_t k = 0; k < p->edge[i].ntarget; k++) p->value[p->edge[i].target[k]].n++;
    for (uint32_t v = 0, at = 0; v < p->nvalue; v++) {
        p->value[v].first = at;
        at += p->value[v].n;
        p->value[v].n = 0;
    }
    for (uint32_t i = 0; i < p->nedge; i++)
        for (uint32_t k = 0; k < p->edge[i].ntarget; k++) {
            inv_pb_value *v = &p->value[p->edge[i].target[k]];
            v->splittable |= is_rearranged(p, p->edge[i].target[k], &p->edge[i]);
            of[v->first + v->n++] = i;
        }
    p->edge_of = of;
    return true;
}

static bool list_edges(builder *b)
{
    inv_problem *p = &b->r->p;
    for (size_t i = 0; i < b->g->forward_end; i++)
        if (!add_recomputation(b, b->g->order.at[i])) return false;
    for (uint32_t i = 0; i < b->r->nedge; i++)
        if (!add_inverse(b, i)) return false;
    for (uint32_t v = 0; v < p->nvalue; v++)
        if (!add_offload(b, v)) return false;
    p->edge = b->edge.at;
    p->nedge = (uint32_t)b->edge.n;
    for (uint32_t t = 0; t < p->nstep; t++) p->cost += p->step[t].cost;
    return index_edges(b);
}

/* Finds the buffers with updates where order.c will move them: what they read or give ends at, or begins behind, the
 * step of the base graph's order that they are moved behind. */
static inv_status buffers_of_early(builder *b, inv_graph *g)
{
    const inv_ids order = g->order;
    const size_t begin = g->commit_begin, n = order.n;
    const bool early = g->early;
    uint32_t *at = INV_ARENA_NEW(b->a, uint32_t, g->node.n + 1), *step = INV_ARENA_NEW(b->a, uint32_t, n + 1);
    bool *moved = INV_ARENA_NEW(b->a, bool, n + 1);
    if (b->a->failed) return INV_E_NOMEM;
    for (size_t i = 0; i < n; i++) at[order.at[i]] = (uint32_t)i;
    g->early &= !b->r->policy->late;
    inv_status s = inv_advance_updates(g);
    g->early = early;
    if (s == INV_OK) s = inv_buffers_apart(g, b->a, &b->buffers, &b->buffer_of);
    for (size_t i = 0; i < n && s == INV_OK; i++) {
        moved[i] = i < g->commit_begin && at[g->order.at[i]] >= begin;
        step[i] = moved[i] ? step[i - 1] : at[g->order.at[i]];
    }
    g->order = order;
    g->commit_begin = begin;
    for (size_t i = 0; i < b->buffers.n && s == INV_OK; i++) {
        inv_buffer *x = &b->buffers.at[i];
        x->from = step[x->from] + moved[x->from];
        if (x->to < n) x->to = step[x->to];
    }
    return s;
}

inv_status inv_recovery_init(inv_recovery *r, inv_graph *base, const inv_policy *policy, const inv_cost_table *costs,
                             inv_arena *a)
{
    builder b = {.r = r, .g = base, .a = a, .guard = inv_registry_op(base->ctx->registry, "", "GuardSum", 0)};
    const size_t n = base->value.n + 1;
    memset(r, 0, sizeof *r);
    r->base = base;
    r->policy = policy;
    r->costs = costs;
    r->a = a;
    r->edge = base->matches ? base->matches->edge.at : NULL;
    r->nedge = base->matches ? base->matches->edge.n : 0;
    r->p.max_drift = policy->max_drift;
    r->number = INV_ARENA_NEW(a, uint32_t, n);
    r->sensitivity = INV_ARENA_NEW(a, double, n);
    if (a->failed) return INV_E_NOMEM;
    INV_TRY(base->early ? buffers_of_early(&b, base) : inv_buffers_apart(base, a, &b.buffers, &b.buffer_of));
    bool ok = number_values(&b) && list_steps(&b) && list_other_bytes(&b) && list_edges(&b);
    return ok ? INV_OK : INV_E_NOMEM;
}
