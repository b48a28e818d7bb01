/* SPDX-License-Identifier: Apache-2.0
 * Finds regions: what `region(x)` stands for in a rule. A region is the subgraph between one entry (`region(xs...)`:
 * several) and up to four exits, whatever operators it has. Most rules with one are couplings: a coupling splits its
 * input into halves and changes one of them by a function of the other, and that function is the region. For the block
 * to be invertible the entry must be recoverable from what leaves the block, and the region must not read the value
 * that the block frees.
 *
 *     x1 ------------------(+)-- y1       exit t = F(x2); entry x2 = a dominator of t;
 *     x2 --+--[ region ]---t               partner = x1: not read inside
 *          +---------------------->        x2 leaves the block: something else lets it be solved for
 *
 * x1 may itself be computed from x2, if it is another half that was changed by steps like this one before:
 * y1 = (x1' + F'(x2)) + F(x2).
 *
 * The search is a walk up from the exits that always opens the value which comes last in the order (a heap of values,
 * by position of what gives them). Whenever one value alone is left to be opened, every path from the inputs to the
 * exits leads through it: it is a dominator of the exits, and a candidate for the entry. On a graph in topological
 * order this finds all dominators of the exits without a tree of them (which Cooper, Harvey and Kennedy, A Simple, Fast
 * Dominance Algorithm, 2001, build for any graph). Opening n values takes O(n log n); each candidate adds walks of its
 * own up the graph, for whether `partner` comes from it and whether it can be recovered, one for each operand of each
 * edge that frees it. All walks spend from the matcher's budget, a unit for each node and each of its inputs.
 * The entry may be `partner` itself (x1 = x2 in the picture) if something outside of the block gives it back.
 *
 * `region(xs...)`: the walk stops at every value that something outside might give back; in the end all of these have
 * to be solvable, one after the other.
 * requires: inverse edges by value (inv_edges_index).  gives: inv_region, or why there is none (query.loss). */
#include <string.h>

#include "passes/match/match.h"

/* The values that are still to be opened, as a heap: the one that comes last in the order is on top. */
typedef struct frontier {
    inv_id *v;
    uint32_t n;
} frontier;

static uint32_t place_in_order(const inv_matcher *m, inv_id v)
{
    inv_id d = v == INV_NONE ? INV_NONE : inv_val(m->g, v)->def;
    return d == INV_NONE ? 0 : m->pos[d] + 1;
}

static void push_frontier(const inv_matcher *m, frontier *f, inv_id v)
{
    uint32_t i = f->n++;
    for (; i > 0 && place_in_order(m, f->v[(i - 1) / 2]) < place_in_order(m, v); i = (i - 1) / 2)
        f->v[i] = f->v[(i - 1) / 2];
    f->v[i] = v;
}

static inv_id pop_last(const inv_matcher *m, frontier *f)
{
    inv_id top = f->v[0], v = f->v[--f->n];
    uint32_t i = 0;
    for (uint32_t k = 1; k < f->n; k = 2 * i + 1) {
        if (k + 1 < f->n && place_in_order(m, f->v[k + 1]) > place_in_order(m, f->v[k])) k++;
        if (place_in_order(m, f->v[k]) <= place_in_order(m, v)) break;
        f->v[i] = f->v[k];
        i = k;
    }
    f->v[i] = v;
    return top;
}

bool inv_region_spend(inv_matcher *m, uint32_t amount)
{
    m->budget -= m->budget < amount ? m->budget : amount;
    return m->budget > 0;
}

/* Opens v: its producer joins the region, its active inputs the frontier. */
static void open_value(inv_matcher *m, frontier *f, inv_region *r, inv_id v)
{
    inv_id d = inv_val(m->g, v)->def;
    if (d == INV_NONE || m->in_region[d] == m->region_stamp) return;
    const inv_node *n = inv_nod(m->g, d);
    inv_region_spend(m, n->nin + 1);
    m->in_region[d] = m->region_stamp;
    r->node[r->nnode++] = d;
    for (uint32_t k = 0; k < n->nin; k++) {
        inv_id in = n->in[k];
        if (in == INV_NONE || !m->active[in] || m->seen[in] == m->region_stamp) continue;
        m->seen[in] = m->region_stamp;
        push_frontier(m, f, in);
    }
}

/* Puts those inputs of `d` on the stack of a walk upwards that it has not met yet; the result is the new height. */
static uint32_t push_unvisited_inputs(inv_matcher *m, inv_id d, uint32_t n)
{
    const inv_node *node = inv_nod(m->g, d);
    inv_region_spend(m, node->nin + 1);
    for (uint32_t k = 0; k < node->nin; k++) {
        inv_id in = node->in[k];
        if (in == INV_NONE || !m->active[in] || m->visited[in] == m->visit_stamp) continue;
        m->visited[in] = m->visit_stamp;
        m->stack[n++] = in;
    }
    return n;
}

/* A value that the search for the region has seen and that `v` is computed from; INV_NONE: there is none. Nothing that
 * is made before `lowest` in the order can be. */
static inv_id seen_source(inv_matcher *m, inv_id v, uint32_t lowest)
{
    if (v == INV_NONE) return INV_NONE;
    uint32_t n = 0;
    m->visit_stamp++;
    m->stack[n++] = v;
    m->visited[v] = m->visit_stamp;
    while (n) {
        inv_id x = m->stack[--n], d = inv_val(m->g, x)->def;
        if (m->seen[x] == m->region_stamp) return x;
        if (d == INV_NONE || m->pos[d] + 1 < lowest) continue;
        n = push_unvisited_inputs(m, d, n);
    }
    return INV_NONE;
}

static bool computed_from(inv_matcher *m, inv_id v, uint32_t lowest) { return seen_source(m, v, lowest) != INV_NONE; }

/* A chain of inverses leads from v up to a value that is not computed from what the walk has seen. Then v is another
 * half that was changed by the entry, and not computed from it alone. m->alone is free meanwhile. */
static bool is_changed_half(inv_matcher *m, inv_id v, uint32_t lowest)
{
    uint32_t n = 0;
    m->alone[n++] = v;
    while (n && m->budget) {
        v = m->alone[--n];
        const inv_id d = inv_val(m->g, v)->def;
        if (!computed_from(m, v, lowest)) return true;
        for (uint32_t k = 0; d != INV_NONE && k < inv_nod(m->g, d)->nin; k++) {
            const inv_id x = inv_nod(m->g, d)->in[k];
            bool freed = false;
            if (x == INV_NONE || !m->active[x] || m->seen[x] == m->region_stamp || n > m->nvalue / 2) continue;
            for (uint32_t i = m->edge_start[x]; i < m->edge_start[x + 1] && !freed; i++)
                freed = m->out->edge.at[m->edge_of[i]].forward == d;
            if (freed) m->alone[n++] = x;
        }
    }
    return false;
}

static bool read_outside(const inv_matcher *m, inv_id v)
{
    for (uint32_t u = m->uses.start[v]; u < m->uses.start[v + 1]; u++)
        if (m->in_region[m->uses.node[u]] != m->region_stamp) return true;
    return false;
}

static bool is_exit(const inv_region_query *w, inv_id v)
{
    for (uint32_t i = 0; i < w->nexit; i++)
        if (w->exit[i] == v) return true;
    return false;
}

static bool same_origin(const inv_node *a, const inv_node *b)
{
    return a->norigin && b->norigin && strcmp(a->origin[0], b->origin[0]) == 0;
}

/* v lies between operators that one of the file's nodes has become, so the file has no name for it. */
static bool is_internal(const inv_matcher *m, inv_id v)
{
    const inv_node *def = inv_nod(m->g, inv_val(m->g, v)->def);
    for (uint32_t u = m->uses.start[v]; u < m->uses.start[v + 1]; u++)
        if (same_origin(def, inv_nod(m->g, m->uses.node[u]))) return true;
    return false;
}

/* v is a copy of `of`, or of a part of it. */
static bool is_piece(const inv_matcher *m, inv_id v, inv_id of)
{
    for (uint32_t i = m->edge_start[of]; v != INV_NONE && i < m->edge_start[of + 1]; i++) {
        const inv_edge *e = &m->out->edge.at[m->edge_of[i]];
        /* A plugin's word is enough here: it decides what a block is called, and what it gives is guarded. */
        if (e->rule->exactness == INV_EXACT && e->forward == inv_val(m->g, v)->def) return true;
    }
    return false;
}

static void note_loss(inv_region_query *w, inv_region_loss loss, inv_id at)
{
    w->loss = (uint8_t)loss;
    w->at = at;
}

static void add_entry(inv_region *r, inv_id v) { r->entry[r->nentry++] = v; }

static void begin_query(inv_matcher *m, inv_region_query *w, frontier *f, inv_region *r)
{
    *r = (inv_region){.entry = m->region_entry, .node = m->region_node};
    m->region_stamp++;
    w->loss = INV_LOST_NO_ENTRY;
    w->at = w->part = INV_NONE;
    for (uint32_t i = 0; i < w->nexit; i++) {
        if (m->seen[w->exit[i]] == m->region_stamp) continue;
        m->seen[w->exit[i]] = m->region_stamp;
        push_frontier(m, f, w->exit[i]);
    }
}

/* A value that the branch and the partner share, where no entry further up can be accepted: the partner is computed
 * from what was seen, and is no half that was changed by it. What is seen later leaves that as it is. */
static inv_id shared_for_good(inv_matcher *m, const inv_region_query *w, uint32_t lowest)
{
    if (w->partner == INV_NONE || m->seen[w->partner] == m->region_stamp) return INV_NONE;
    const inv_id at = seen_source(m, w->partner, lowest);
    return at == INV_NONE || is_changed_half(m, w->partner, lowest) ? INV_NONE : at;
}

inv_status inv_region_find(inv_matcher *m, inv_region_query *w,
                           bool (*accept)(inv_matcher *, const inv_region *, inv_id, void *), void *opaque,
                           inv_region *out, bool *found)
{
    frontier f = {m->front, 0};
    /* An entry was not accepted that is read outside of the region, too. Values further up are still tried, but why one
     * of them is not accepted would say less than this. */
    bool lost = false;
    uint32_t look = 32; /* the size of the region at which to look whether the search is in vain */
    begin_query(m, w, &f, out);
    *found = false;
    while (f.n) {
        inv_id v = pop_last(m, &f);
        if (m->budget == 0) {
            w->loss = INV_LOST_LONG;
            return INV_OK;
        }
        bool alone = f.n == 0 && !is_exit(w, v) && (w->entry == INV_NONE || v == w->entry);
        if (v == w->partner) {
            *found = alone && accept(m, out, v, opaque);
            if (*found) add_entry(out, v);
            else if (!lost) note_loss(w, INV_LOST_FREED, v);
            return INV_OK;
        }
        if (alone) {
            w->changed = computed_from(m, w->partner, place_in_order(m, v));
            if (w->changed && !(is_changed_half(m, w->partner, place_in_order(m, v)) &&
                                inv_region_recoverable(m, v, w->partner, w->combined))) {
                if (!lost) note_loss(w, INV_LOST_SHARED, v);
                if (!is_piece(m, w->part, v)) w->part = INV_NONE;
                return INV_OK;
            }
            if (accept(m, out, v, opaque)) {
                add_entry(out, v);
                *found = true;
                return INV_OK;
            }
            bool named = !is_internal(m, v);
            if (!lost && (named || w->loss != INV_LOST_ENTRY)) note_loss(w, INV_LOST_ENTRY, v);
            if (!lost && named) w->part = v;
            lost = lost || read_outside(m, v);
            if (v == w->entry) return INV_OK;
        } else if (out->nnode >= look) {
            const inv_id shared = shared_for_good(m, w, place_in_order(m, v));
            if (shared != INV_NONE && !lost) note_loss(w, INV_LOST_SHARED, shared);
            if (shared != INV_NONE) return INV_OK;
            look *= 2;
        }
        open_value(m, &f, out, v);
    }
    return INV_OK;
}

/* --- what gives an entry back --- */

/* What is to be shown: the entry x can be solved for without `partner`, once `combined` is there. In a region with
 * several entries those that have been solved for may be used, and so may what comes out of operators that take up an
 * entry and pass it on (edge_carries_on). */
typedef struct goal {
    inv_id x, partner, combined;
    const inv_region *among; /* NULL: it has one entry */
    const bool *solved;      /* per entry of `among`: it has been solved for */
} goal;

static bool node_gives(const inv_node *n, inv_id v)
{
    for (uint32_t k = 0; k < n->nout; k++)
        if (n->out[k] == v) return true;
    return false;
}

static bool is_outside(const inv_matcher *m, const inv_edge *e) { return m->in_region[e->forward] != m->region_stamp; }

/* The operator outside of the region that takes up the freed value passes it on: as it is (the edge is exact), or
 * changed by another value of the model, as another coupling does (then the edge reads that value). An activation does
 * neither, nor does an operator with a parameter; they may only begin another region. */
static bool edge_carries_on(const inv_matcher *m, const inv_edge *e)
{
    const inv_node *user = inv_nod(m->g, e->forward);
    bool on = e->rule->exactness == INV_EXACT;
    for (uint32_t i = e->nsave; i < e->nnode && !on; i++) {
        const inv_node *n = inv_nod(m->g, e->node[i]);
        for (uint32_t k = 0; k < n->nin; k++) {
            const inv_id v = n->in[k];
            on = on || (v != INV_NONE && v < m->nvalue && m->active[v] && !node_gives(user, v));
        }
    }
    return on && is_outside(m, e);
}

static bool is_given_or_solved(const inv_matcher *m, const goal *t, inv_id v)
{
    if (v == t->combined) return true;
    for (uint32_t k = 0; t->among && k < t->among->nentry; k++) {
        const inv_id x = t->among->entry[k];
        if (v == x) return t->solved[k];
        for (uint32_t i = m->edge_start[x]; i < m->edge_start[x + 1]; i++) {
            const inv_edge *e = &m->out->edge.at[m->edge_of[i]];
            if (e->forward == inv_val(m->g, v)->def && edge_carries_on(m, e)) return true;
        }
    }
    return false;
}

/* v can be computed from what is given, without x or partner or what they come from. */
static bool computable(inv_matcher *m, inv_id v, const goal *t)
{
    if (!m->active[v]) return true;
    uint32_t lowest = place_in_order(m, t->x), n = 0;
    if (t->partner != INV_NONE && place_in_order(m, t->partner) < lowest) lowest = place_in_order(m, t->partner);
    m->visit_stamp++;
    m->visited[v] = m->visit_stamp;
    m->stack[n++] = v;
    while (n) {
        v = m->stack[--n];
        if (is_given_or_solved(m, t, v)) continue;
        const inv_id d = inv_val(m->g, v)->def;
        if (v == t->x || v == t->partner || place_in_order(m, v) < lowest || d == INV_NONE) return false;
        n = push_unvisited_inputs(m, d, n);
    }
    return true;
}

/* All that the edge reads, except what it starts from, can be computed. */
static bool solvable(inv_matcher *m, const inv_edge *e, const goal *t)
{
    const inv_node *user = inv_nod(m->g, e->forward);
    for (uint32_t i = e->nsave; i < e->nnode; i++) {
        const inv_node *n = inv_nod(m->g, e->node[i]);
        for (uint32_t k = 0; k < n->nin; k++) {
            inv_id v = n->in[k];
            if (v == INV_NONE || v >= m->nvalue || node_gives(user, v)) continue; /* past nvalue: the template's own */
            if (!computable(m, v, t)) return false;
        }
    }
    return true;
}

/* v is computed from a result of the node. */
static bool is_computed_behind(inv_matcher *m, inv_id v, inv_id node)
{
    uint32_t n = 0;
    if (v == INV_NONE) return false;
    m->visit_stamp++;
    m->visited[v] = m->visit_stamp;
    m->stack[n++] = v;
    while (n) {
        const inv_id d = inv_val(m->g, m->stack[--n])->def;
        if (d == node) return true;
        if (d != INV_NONE && m->pos[d] > m->pos[node]) n = push_unvisited_inputs(m, d, n);
    }
    return false;
}

/* An edge that starts behind an operator which leads to `partner` does not count: it cannot run before partner is
 * known. */
static bool recoverable(inv_matcher *m, const goal *t)
{
    if (inv_val(m->g, t->x)->is_output) return true;
    for (uint32_t i = m->edge_start[t->x]; i < m->edge_start[t->x + 1]; i++) {
        const inv_edge *e = &m->out->edge.at[m->edge_of[i]];
        if ((t->among ? edge_carries_on(m, e) : is_outside(m, e)) && !is_computed_behind(m, t->partner, e->forward) &&
            solvable(m, e, t))
            return true;
    }
    return false;
}

bool inv_region_recoverable(inv_matcher *m, inv_id x, inv_id partner, inv_id combined)
{
    return recoverable(m, &(goal){x, partner, combined, NULL, NULL});
}

/* --- several entries --- */

static bool may_come_back(const inv_matcher *m, inv_id v)
{
    bool may = inv_val(m->g, v)->is_output;
    for (uint32_t i = m->edge_start[v]; i < m->edge_start[v + 1] && !may; i++)
        may = edge_carries_on(m, &m->out->edge.at[m->edge_of[i]]);
    return may;
}

static bool solved_in_turn(inv_matcher *m, const inv_region_query *w, const inv_region *r)
{
    bool *solved = INV_ARENA_NEW(&m->scratch, bool, r->nentry);
    goal t = {INV_NONE, w->partner, w->combined, r, solved};
    uint32_t n = 0;
    for (uint32_t before = UINT32_MAX; solved && before != n;) {
        before = n;
        for (uint32_t k = 0; k < r->nentry; k++) {
            t.x = r->entry[k];
            if (!solved[k]) n += solved[k] = recoverable(m, &t);
        }
    }
    return n == r->nentry;
}

static uint32_t output_slot(const inv_matcher *m, inv_id v)
{
    const inv_node *n = inv_nod(m->g, inv_val(m->g, v)->def);
    uint32_t k = 0;
    while (k < n->nout && n->out[k] != v) k++;
    return k;
}

/* Inserts an entry among those so far, in the order of the nodes that make them, and then of the outputs of one. */
static void enter_in_order(const inv_matcher *m, inv_region *r, inv_id v)
{
    uint32_t i = r->nentry++;
    for (; i > 0; i--) {
        const inv_id w = r->entry[i - 1];
        if (place_in_order(m, w) != place_in_order(m, v) ? place_in_order(m, w) < place_in_order(m, v)
                                                         : output_slot(m, w) < output_slot(m, v))
            break;
        r->entry[i] = w;
    }
    r->entry[i] = v;
}

/* A walk that comes to the model's inputs finds nothing. What it does from a value on that is all that is left to open
 * depends on that value alone, so each such value is noted, and no walk passes it again. */
static bool in_vain(inv_matcher *m, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) m->vain[m->alone[i]] = true;
    return false;
}

bool inv_region_find_several(inv_matcher *m, inv_region_query *w, inv_region *out)
{
    frontier f = {m->front, 0};
    uint32_t lowest = UINT32_MAX, nalone = 0;
    begin_query(m, w, &f, out);
    while (f.n) {
        const inv_id v = pop_last(m, &f), d = inv_val(m->g, v)->def;
        if (m->budget == 0 || v == w->partner) return false;
        if (d == INV_NONE) return in_vain(m, nalone);
        if (is_exit(w, v) || !may_come_back(m, v)) {
            if (inv_nod(m->g, d)->op->flags & INV_OP_SOURCE) return in_vain(m, nalone);
            const bool alone = f.n == 0 && !is_exit(w, v) && m->in_region[d] != m->region_stamp;
            if (alone && m->vain[v]) return in_vain(m, nalone);
            if (alone) m->alone[nalone++] = v;
            open_value(m, &f, out, v);
            continue;
        }
        enter_in_order(m, out, v);
        lowest = place_in_order(m, v); /* values are opened in falling order, so this is the least so far */
    }
    return out->nentry > 1 && (!computed_from(m, w->partner, lowest) || is_changed_half(m, w->partner, lowest)) &&
           solved_in_turn(m, w, out);
}
