/* SPDX-License-Identifier: Apache-2.0
 * Channels last where convolutions gain by it. A convolution reads [N,H,W,C] in the order in which its products need
 * it; from [N,C,H,W] every one would have to rearrange its operands. So the values around convolutions get the other
 * order of axes, in place: the same values and nodes, other shapes and attributes, and a Transpose (a View where no
 * element moves) where a node that cannot do with it reads or writes one. Backward nodes and the templates of inverses
 * are nodes like others; nothing behind this pass knows of layouts.
 *
 * Values that nodes have in common are turned together. Such a group is turned if its convolutions gain more than the
 * transposes around it cost. What an operator needs for it is in channels_last_ops.c. INVONNX_CHANNELS_SECOND=1 in the
 * environment turns nothing, for comparisons.
 * requires: forward, backward and update nodes, before order.c, which puts what is emitted here into its phase. */
#include <stdlib.h>
#include <string.h>

#include "core/program/cost.h"
#include "ops/base/util.h"
#include "passes/schedule/channels_last.h"
#include "passes/schedule/schedule.h"

/* The unit of gains and costs: what an element takes that is transposed, of one thread a nanosecond. On a device a
 * library would move elements itself, with the same bandwidth, so there it is elements that are counted. */
#define MOVE_COST 1.0

/* Values that are turned together: what convolutions save, and what moves take. */
typedef struct group {
    double gain, cost;
} group;

/* A node that moves a value from one order of axes to the other. */
typedef struct moved {
    inv_id node;
    bool back; /* it leads from the turned order to the plain one */
} moved;

/* The pass over one graph. */
typedef struct turning {
    inv_graph *g;
    inv_arena scratch;
    size_t nvalue, nnode; /* counts before moves were added */
    bool *fixed;          /* per value: it must not be turned */
    inv_id *parent;       /* per value: towards the value that stands for its group (union-find) */
    inv_id *node_of;      /* per node: a value of the group with which it is turned; INV_NONE: of none */
    group *groups;        /* per value that stands for a group */
    inv_id *other;        /* per value: the same in the other order, if there is one */
    inv_ids doubled;      /* values that are there in both orders */
    INV_VEC(moved) moves;
} turning;

/* --- groups --- */

static inv_id find_group(turning *t, inv_id v)
{
    while (t->parent[v] != v) v = t->parent[v] = t->parent[t->parent[v]];
    return v;
}

static bool may_turn(const turning *t, inv_id v, int rank)
{
    return v != INV_NONE && !t->fixed[v] && inv_layout_rank(t->g, v) == rank;
}

static void join_groups(turning *t, inv_id v, inv_id *with)
{
    if (*with == INV_NONE) *with = find_group(t, v);
    t->parent[find_group(t, v)] = find_group(t, *with);
}

static void join_node(turning *t, inv_id node)
{
    inv_graph *g = t->g;
    const inv_node *n = inv_nod(g, node);
    uint32_t in, out;
    int rank;
    double gain = 0;
    inv_id with = INV_NONE;
    if (!inv_layout_slots(g, n, &rank, &in, &out) || (n->op->channels_last && !n->op->channels_last(g, n, &gain)))
        return;
    for (uint32_t i = 0; i < n->nin; i++)
        if (inv_layout_bit(in, i) && may_turn(t, n->in[i], rank)) join_groups(t, n->in[i], &with);
    for (uint32_t i = 0; i < n->nout; i++)
        if (inv_layout_bit(out, i) && may_turn(t, n->out[i], rank)) join_groups(t, n->out[i], &with);
    if (with == INV_NONE) return;
    t->node_of[node] = with;
    t->groups[with].gain += gain;
}

static bool is_transpose(const inv_node *n) { return strcmp(n->op->name, "Transpose") == 0; }

static bool is_turned(turning *t, inv_id v)
{
    if (v == INV_NONE || v >= t->nvalue || t->fixed[v]) return false;
    const group *s = &t->groups[find_group(t, v)];
    return s->gain > s->cost;
}

static double move_cost(const inv_graph *g, inv_id v, int rank)
{
    const inv_shape s = inv_layout_padded(&inv_val(g, v)->shape, rank);
    return inv_layout_is_still(&s) ? 0 : MOVE_COST * (double)inv_shape_nelem(&s);
}

/* A value between a node that would be turned with it and one that would not has to be there in both orders. */
static void count_costs(turning *t)
{
    inv_graph *g = t->g;
    for (size_t i = 0; i < g->order.n; i++) {
        const inv_id node = g->order.at[i];
        const inv_node *n = inv_nod(g, node);
        uint32_t in = 0, out = 0;
        int rank = 0;
        if (is_transpose(n)) continue;
        (void)inv_layout_slots(g, n, &rank, &in, &out);
        for (uint32_t k = 0; k < n->nin + n->nout; k++) {
            const inv_id v = k < n->nin ? n->in[k] : n->out[k - n->nin];
            const bool slot = k < n->nin ? inv_layout_bit(in, k) : inv_layout_bit(out, k - n->nin);
            if (v == INV_NONE) continue;
            const bool wants = t->node_of[node] != INV_NONE && inv_layout_is_image(g, v, slot, rank);
            if (wants && t->fixed[v]) t->groups[find_group(t, t->node_of[node])].cost += move_cost(g, v, rank);
            if (!wants && !t->fixed[v] && t->other[v] == INV_NONE) {
                t->groups[find_group(t, v)].cost += move_cost(g, v, inv_layout_rank(g, v));
                t->other[v] = v; /* marks it as counted */
            }
        }
    }
    for (size_t v = 0; v < t->nvalue; v++) t->other[v] = INV_NONE;
}

/* Adds up what was noted at the values of a group. */
static void settle_groups(turning *t)
{
    count_costs(t);
    for (inv_id v = 0; v < t->nvalue; v++) {
        const inv_id to = find_group(t, v);
        if (to == v) continue;
        t->groups[to].gain += t->groups[v].gain;
        t->groups[to].cost += t->groups[v].cost;
    }
}

/* --- turning --- */

/* A Transpose is a move itself, of what is turned on either side of it. */
static bool turn_transpose(turning *t, inv_node *n)
{
    inv_graph *g = t->g;
    const int rank = inv_layout_rank(g, n->in[0]);
    int64_t *perm = INV_ARENA_NEW(&g->arena, int64_t, INV_MAX_RANK), old[INV_MAX_RANK];
    size_t count;
    const int64_t *given = inv_attr_ints(n, "perm", &count);
    inv_attr *attr = INV_ARENA_NEW(&g->arena, inv_attr, 1);
    if (g->arena.failed) return false;
    for (int i = 0; i < rank; i++) {
        const int64_t from = given ? given[i] : rank - 1 - i;
        old[i] = is_turned(t, n->in[0]) ? inv_layout_axis_back(rank, (int)from) : from;
    }
    for (int i = 0; i < rank; i++) perm[i] = is_turned(t, n->out[0]) ? old[inv_layout_axis(rank, i)] : old[i];
    const inv_shape *x = &inv_val(g, n->in[0])->shape, *y = &inv_val(g, n->out[0])->shape;
    int64_t last = -1;
    bool still = true;
    for (int i = 0; i < rank; i++) {
        if (x->dim[perm[i]] == 1) continue;
        still = still && perm[i] > last;
        last = perm[i];
    }
    *attr = still ? inv_attr_of_shape("shape", y) : inv_attr_of_ints("perm", (size_t)rank, perm);
    n->attr = attr;
    n->nattr = 1;
    if (still) {
        n->op = inv_registry_op(g->ctx->registry, INV_IR, "View", 0);
        n->op_type = n->op->name;
        n->domain = n->op->domain;
    }
    return true;
}

/* --- moves between the orders --- */

/* The value v in the other order; of fewer axes than `rank`, it is an image first. */
static inv_id twin(turning *t, inv_id v, int rank)
{
    inv_graph *g = t->g;
    const bool back = is_turned(t, v);
    const inv_shape s = inv_layout_padded(&inv_val(g, v)->shape, rank);
    inv_shape shape = s;
    for (int i = 0; i < rank; i++)
        shape.dim[i] = s.dim[back ? inv_layout_axis_back(rank, i) : inv_layout_axis(rank, i)];
    const char *name = inv_graph_fresh(g, inv_val(g, v)->name);
    const inv_id w = name ? inv_graph_value(g, name, INV_ROLE_NODE, inv_val(g, v)->dtype, &shape) : INV_NONE;
    if (w != INV_NONE) inv_val(g, w)->mem = inv_val(g, v)->mem == INV_MEM_PARAM ? INV_MEM_ACT : inv_val(g, v)->mem;
    return w;
}

/* Appends a node to the order that gives `to` from `from`, one of which is turned. */
static inv_id move(inv_graph *g, inv_id from, inv_id to, bool back, const inv_node *at)
{
    inv_val(g, to)->def = INV_NONE;
    const int rank = inv_layout_rank(g, back ? from : to);
    const inv_shape plain = inv_layout_padded(&inv_val(g, back ? to : from)->shape, rank);
    int64_t perm[INV_MAX_RANK];
    for (int i = 0; i < rank; i++) perm[i] = back ? inv_layout_axis_back(rank, i) : inv_layout_axis(rank, i);
    const bool view = inv_layout_is_still(&plain);
    const inv_attr attr =
        view ? inv_attr_of_shape("shape", &inv_val(g, to)->shape) : inv_attr_of_ints("perm", (size_t)rank, perm);
    inv_emit_for(g, at);
    const inv_id id = inv_graph_node(g, INV_IR, view ? "View" : "Transpose", NULL, 1, &from, 1, &to, 1, &attr);
    inv_emit_for(g, NULL);
    if (id == INV_NONE || !inv_vec_push(&g->arena, &g->order, id)) return INV_NONE;
    inv_nod(g, id)->phase = at->phase;
    return id;
}

/* Moves v from one order to the other. */
static inv_status double_value(turning *t, inv_id v, inv_id from, inv_id to, bool back, const inv_node *at)
{
    const moved m = {move(t->g, from, to, back, at), back};
    t->other[v] = v == from ? to : from;
    return m.node != INV_NONE && inv_vec_push(&t->scratch, &t->moves, m) && inv_vec_push(&t->scratch, &t->doubled, v)
               ? INV_OK
               : INV_E_NOMEM;
}

static inv_status place_input(turning *t, inv_id node, uint32_t k, int rank)
{
    inv_graph *g = t->g;
    const inv_id v = inv_nod(g, node)->in[k];
    inv_id w = t->other[v];
    if (w == INV_NONE || inv_layout_rank(g, w) != rank) {
        const inv_node at = *inv_nod(g, node);
        if ((w = twin(t, v, rank)) == INV_NONE) return INV_E_NOMEM;
        INV_TRY(double_value(t, v, v, w, is_turned(t, v), &at));
    }
    inv_nod(g, node)->in[k] = w;
    return INV_OK;
}

static inv_status place_turned_output(turning *t, inv_id node, uint32_t k, int rank)
{
    inv_graph *g = t->g;
    const inv_node at = *inv_nod(g, node);
    const inv_id v = at.out[k], w = twin(t, v, rank);
    if (w == INV_NONE) return INV_E_NOMEM;
    at.out[k] = w;
    inv_val(g, w)->def = node;
    return double_value(t, v, w, v, !is_turned(t, v), &at);
}

/* Whether a node that has v in such a slot needs it in the order that v is not in. */
static bool wants_other(turning *t, inv_id v, bool slot, int rank)
{
    return v != INV_NONE && inv_layout_is_image(t->g, v, slot, rank) != is_turned(t, v);
}

/* Appends the node to the order, with the moves before and behind it. */
static inv_status place_turn(turning *t, inv_id node)
{
    inv_graph *g = t->g;
    const inv_node n = *inv_nod(g, node);
    uint32_t in = 0, out = 0;
    int rank = 0;
    const bool with = t->node_of[node] != INV_NONE && is_turned(t, t->node_of[node]);
    if (with) (void)inv_layout_slots(g, &n, &rank, &in, &out);
    if (is_transpose(&n) && (is_turned(t, n.in[0]) || is_turned(t, n.out[0]))) {
        if (!turn_transpose(t, inv_nod(g, node))) return INV_E_NOMEM;
        return inv_vec_push(&g->arena, &g->order, node) ? INV_OK : INV_E_NOMEM;
    }
    for (uint32_t k = 0; k < n.nin; k++)
        if (wants_other(t, n.in[k], inv_layout_bit(in, k), rank))
            INV_TRY(place_input(t, node, k, with && !is_turned(t, n.in[k]) ? rank : inv_layout_rank(g, n.in[k])));
    if (with && !inv_layout_turn_attrs(g, inv_nod(g, node), rank)) return INV_E_NOMEM;
    if (!inv_vec_push(&g->arena, &g->order, node)) return INV_E_NOMEM;
    for (uint32_t k = 0; k < n.nout; k++)
        if (wants_other(t, n.out[k], inv_layout_bit(out, k), rank))
            INV_TRY(
                place_turned_output(t, node, k, with && !is_turned(t, n.out[k]) ? rank : inv_layout_rank(g, n.out[k])));
    return INV_OK;
}

/* Appends the nodes of a list that follow *done. */
static inv_status place_all(turning *t, const inv_id *list, size_t n, inv_ids *done)
{
    inv_graph *g = t->g;
    const inv_ids order = g->order;
    g->order = *done;
    inv_status s = INV_OK;
    for (size_t i = 0; i < n && s == INV_OK; i++) s = place_turn(t, list[i]);
    *done = g->order;
    g->order = order;
    return s;
}

/* Templates make what they need in the other order themselves. */
static inv_status place_templates(turning *t)
{
    inv_matches *m = t->g->matches;
    const inv_id *was = NULL;
    inv_ids now = {0};
    uint32_t nsave = 0;
    for (size_t i = 0; i < m->edge.n; i++) {
        inv_edge *e = &m->edge.at[i];
        if (e->node != was) {
            was = e->node;
            memset(&now, 0, sizeof now);
            INV_TRY(place_all(t, e->node, e->nsave, &now));
            nsave = (uint32_t)now.n;
            INV_TRY(place_all(t, e->node + e->nsave, e->nnode - e->nsave, &now));
            for (size_t k = 0; k < t->doubled.n; k++) t->other[t->doubled.at[k]] = INV_NONE;
            t->doubled.n = 0;
        }
        e->node = now.at;
        e->nnode = (uint32_t)now.n;
        e->nsave = nsave;
    }
    t->moves.n = 0;
    return INV_OK;
}

static const inv_inverse_def *rule_named(const inv_graph *g, const char *name)
{
    const inv_registry *r = g->ctx->registry;
    for (size_t i = 0; i < inv_registry_ninverses(r); i++)
        if (strcmp(inv_registry_inverse_at(r, i)->name, name) == 0) return inv_registry_inverse_at(r, i);
    return NULL;
}

/* Adds the inverse edge of a move, which is the move back, as for a Transpose of the model. */
static inv_status add_edge(turning *t, const moved *m)
{
    inv_graph *g = t->g;
    const inv_node n = *inv_nod(g, m->node);
    const inv_value v = *inv_val(g, n.in[0]);
    const inv_inverse_def *rule = rule_named(g, is_transpose(&n) ? "transpose" : "view");
    if (n.phase != INV_FORWARD || v.role != INV_ROLE_NODE || !rule) return INV_OK;
    const char *name = inv_graph_fresh(g, v.name);
    const inv_id r = name ? inv_graph_value(g, name, INV_ROLE_NODE, v.dtype, &v.shape) : INV_NONE;
    const size_t order = g->order.n;
    inv_id *list = INV_ARENA_NEW(&g->arena, inv_id, 1);
    if (!list || r == INV_NONE || (list[0] = move(g, n.out[0], r, !m->back, &n)) == INV_NONE) return INV_E_NOMEM;
    inv_nod(g, list[0])->phase = INV_BACKWARD;
    g->order.n = order;
    const double flops = inv_node_flops(g, inv_nod(g, list[0]));
    const inv_edge e = {.rule = rule,
                        .frees = n.in[0],
                        .forward = m->node,
                        .result = r,
                        .node = list,
                        .nnode = 1,
                        .flops = flops,
                        .gain = 1,
                        .bound = 1,
                        .spread = INV_NONE};
    return inv_vec_push(&g->arena, &g->matches->edge, e) ? INV_OK : INV_E_NOMEM;
}

/* --- the pass --- */

static bool is_layout_fixed(const inv_graph *g, const inv_value *v)
{
    if (v->role != INV_ROLE_NODE || v->def == INV_NONE || v->keep || v->is_output) return true;
    return v->shape.rank < 3 || v->shape.rank > 5 || inv_nod(g, v->def)->op->flags & INV_OP_SOURCE;
}

static inv_status init(turning *t)
{
    const inv_graph *g = t->g;
    t->nvalue = g->value.n;
    t->nnode = g->node.n;
    t->fixed = INV_ARENA_NEW(&t->scratch, bool, t->nvalue + 1);
    t->parent = INV_ARENA_NEW(&t->scratch, inv_id, t->nvalue + 1);
    t->other = INV_ARENA_NEW(&t->scratch, inv_id, t->nvalue + 1);
    t->groups = INV_ARENA_NEW(&t->scratch, group, t->nvalue + 1);
    t->node_of = INV_ARENA_NEW(&t->scratch, inv_id, t->nnode + 1);
    if (t->scratch.failed) return INV_E_NOMEM;
    for (size_t n = 0; n < t->nnode; n++) t->node_of[n] = INV_NONE;
    for (inv_id v = 0; v < t->nvalue; v++) {
        t->parent[v] = v;
        t->other[v] = INV_NONE;
        t->fixed[v] = true;
    }
    for (size_t i = 0; i < g->order.n; i++) {
        const inv_node *n = inv_nod(g, g->order.at[i]);
        for (uint32_t k = 0; k < n->nout; k++)
            if (n->out[k] != INV_NONE) t->fixed[n->out[k]] = is_layout_fixed(g, inv_val(g, n->out[k]));
    }
    for (size_t i = 0; i < g->outputs.n; i++) t->fixed[g->outputs.at[i]] = true;
    return INV_OK;
}

/* Of a template that serves several edges (a Concat undone), the nodes that edge i is the first to have. */
static uint32_t fresh_nodes(const inv_edge *e, size_t i)
{
    return i && e->nnode == 1 && e[-1].nnode == 1 && e->node[0] == e[-1].node[0] ? 0 : e->nnode;
}

/* What is broadcast against images of more axes stays plain; it is made one of them where it is read. */
static void fix_broadcast(turning *t, inv_id node)
{
    const inv_node *n = inv_nod(t->g, node);
    uint32_t in, out;
    int rank;
    if (!inv_layout_slots(t->g, n, &rank, &in, &out)) return;
    for (uint32_t k = 0; k < n->nin + n->nout; k++) {
        const inv_id v = k < n->nin ? n->in[k] : n->out[k - n->nin];
        const bool slot = k < n->nin ? inv_layout_bit(in, k) : inv_layout_bit(out, k - n->nin);
        if (inv_layout_is_image(t->g, v, slot, rank) && inv_layout_rank(t->g, v) < rank) t->fixed[v] = true;
    }
}

/* Makes groups over the order and the templates. The result of a template is in the group of the value that it
 * frees. */
static void make_groups(turning *t)
{
    inv_graph *g = t->g;
    const inv_matches *m = g->matches;
    for (size_t i = 0; i < g->order.n; i++) fix_broadcast(t, g->order.at[i]);
    for (size_t i = 0; m && i < m->edge.n; i++) {
        const inv_edge *e = &m->edge.at[i];
        for (uint32_t j = 0; j < fresh_nodes(e, i); j++) {
            const inv_node *n = inv_nod(g, e->node[j]);
            for (uint32_t k = 0; k < n->nout; k++)
                if (n->out[k] != INV_NONE) t->fixed[n->out[k]] = is_layout_fixed(g, inv_val(g, n->out[k]));
        }
        for (uint32_t j = 0; j < fresh_nodes(e, i); j++) fix_broadcast(t, e->node[j]);
    }
    for (const inv_edge *e = m ? m->edge.at : NULL; e && e < m->edge.at + m->edge.n; e++) {
        if (t->fixed[e->frees] || t->fixed[e->result]) t->fixed[e->frees] = t->fixed[e->result] = true;
        else t->parent[find_group(t, e->result)] = find_group(t, e->frees);
    }
    for (size_t i = 0; i < g->order.n; i++) join_node(t, g->order.at[i]);
    for (size_t i = 0; m && i < m->edge.n; i++)
        for (uint32_t j = 0; j < fresh_nodes(&m->edge.at[i], i); j++) join_node(t, m->edge.at[i].node[j]);
}

static inv_status turn_image(turning *t)
{
    inv_graph *g = t->g;
    inv_ids now = {0};
    for (inv_id v = 0; v < t->nvalue; v++)
        if (is_turned(t, v)) inv_val(g, v)->shape = inv_layout_turn(&inv_val(g, v)->shape);
    if (g->matches) INV_TRY(place_templates(t));
    INV_TRY(place_all(t, g->order.at, g->order.n, &now));
    g->order = now;
    for (size_t i = 0; i < t->moves.n && g->matches; i++) INV_TRY(add_edge(t, &t->moves.at[i]));
    for (size_t i = 0; i < g->order.n; i++) /* the shapes that operators would infer now */
        if (g->order.at[i] < t->nnode && t->node_of[g->order.at[i]] != INV_NONE)
            INV_TRY(inv_node_infer(g, g->order.at[i]));
    return g->failed;
}

inv_status inv_pass_layout(inv_graph *g)
{
    turning t = {.g = g};
    if (getenv("INVONNX_CHANNELS_SECOND")) return INV_OK;
    inv_arena_init(&t.scratch, g->ctx);
    inv_status s = init(&t);
    if (s == INV_OK) {
        make_groups(&t);
        settle_groups(&t);
        bool any = false;
        for (inv_id v = 0; v < t.nvalue && !any; v++) any = is_turned(&t, v);
        if (any) s = turn_image(&t);
    }
    inv_arena_fini(&t.scratch);
    return s;
}
