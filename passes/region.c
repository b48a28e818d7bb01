/* SPDX-License-Identifier: Apache-2.0
 * Single-entry regions: what `region(x)` means in a rule.
 *
 *     x1 ------------------(+)-- y1       exit t = F(x2); entry x2 = a dominator of t;
 *     x2 --+--[ region ]---t               apart = x1: not read inside, not computed from x2
 *          +---------------------->        x2 leaves the block: something else lets it be solved for
 *
 * The walk goes up from the exit, always opening the value that comes last in the order; whenever one value alone is
 * left, that value dominates the exit. */
#include <string.h>

#include "passes/pass.h"

typedef struct frontier {
    inv_id *v;
    uint32_t n;
    uint8_t *seen; /* per value */
} frontier;

static uint32_t place(const inv_matcher *m, inv_id v)
{
    inv_id d = inv_val(m->g, v)->def;
    return d == INV_NONE ? 0 : m->pos[d] + 1;
}

static inv_id pop_last(const inv_matcher *m, frontier *f)
{
    uint32_t best = 0;
    for (uint32_t i = 1; i < f->n; i++)
        if (place(m, f->v[i]) > place(m, f->v[best])) best = i;
    inv_id v = f->v[best];
    f->v[best] = f->v[--f->n];
    return v;
}

/* Opens v: its producer joins the region, its active inputs the frontier. */
static void open_value(const inv_matcher *m, frontier *f, inv_region *r, inv_id v)
{
    inv_id d = inv_val(m->g, v)->def;
    if (d == INV_NONE) return;
    const inv_node *n = inv_nod(m->g, d);
    bool listed = false;
    for (uint32_t i = 0; i < r->nnode && !listed; i++) listed = r->node[i] == d;
    if (!listed) r->node[r->nnode++] = d;
    for (uint32_t k = 0; k < n->nin; k++) {
        inv_id in = n->in[k];
        if (in == INV_NONE || !m->active[in] || f->seen[in]) continue;
        f->seen[in] = 1;
        f->v[f->n++] = in;
    }
}

/* Whether `v` is computed from any value marked in `seen` or from `entry`. */
static bool computed_from(inv_matcher *m, inv_id v, inv_id entry, const uint8_t *seen, uint32_t lowest)
{
    inv_id *stack = m->stack;
    uint8_t *visited = m->visited;
    uint32_t n = 0;
    memset(visited, 0, m->nvalue);
    stack[n++] = v;
    visited[v] = 1;
    while (n) {
        inv_id x = stack[--n], d = inv_val(m->g, x)->def;
        if (x == entry || seen[x]) return true;
        if (d == INV_NONE || m->pos[d] + 1 < lowest) continue;
        const inv_node *node = inv_nod(m->g, d);
        for (uint32_t k = 0; k < node->nin; k++) {
            inv_id in = node->in[k];
            if (in == INV_NONE || !m->active[in] || visited[in]) continue;
            visited[in] = 1;
            stack[n++] = in;
        }
    }
    return false;
}

static bool in_region(const inv_region *r, inv_id node)
{
    for (uint32_t i = 0; i < r->nnode; i++)
        if (r->node[i] == node) return true;
    return false;
}

static bool read_outside(const inv_matcher *m, const inv_region *r, inv_id v)
{
    for (uint32_t u = m->uses.start[v]; u < m->uses.start[v + 1]; u++)
        if (!in_region(r, m->uses.node[u])) return true;
    return false;
}

inv_status inv_region_find(inv_matcher *m, inv_id exit, inv_id entry, inv_id apart,
                           bool (*accept)(inv_matcher *, const inv_region *, inv_id, void *), void *opaque,
                           inv_region *out, bool *found, const char **reason)
{
    frontier f = {m->front, 0, m->seen};
    bool lost = false; /* an entry was refused that something else reads: further up is no better reason */
    *out = (inv_region){INV_NONE, m->inside, 0};
    memset(m->seen, 0, m->nvalue);
    *found = false;
    *reason = "no single value feeds the branch";
    f.v[f.n++] = exit;
    f.seen[exit] = 1;
    while (f.n) {
        inv_id v = pop_last(m, &f);
        if (v == apart) {
            if (!lost) *reason = "the branch reads the value that would be freed";
            return INV_OK;
        }
        if (f.n == 0 && v != exit && (entry == INV_NONE || v == entry)) {
            f.seen[v] = 0; /* the entry itself lies outside */
            bool apart_from = !computed_from(m, apart, v, f.seen, place(m, v));
            f.seen[v] = 1;
            if (!apart_from) {
                if (!lost) *reason = "both operands come from the same value, so neither is known without the other";
                return INV_OK;
            }
            if (accept(m, out, v, opaque)) {
                out->entry = v;
                *found = true;
                return INV_OK;
            }
            *reason = "the branch's input does not leave the block in a form that can be solved for";
            lost = lost || read_outside(m, out, v);
            if (v == entry) return INV_OK;
        }
        open_value(m, &f, out, v);
    }
    return INV_OK;
}

/* Whether w can be computed when `known` is, without x or apart or what they come from. */
static bool computable(inv_matcher *m, inv_id w, inv_id x, inv_id apart, inv_id known)
{
    inv_id *stack = m->stack;
    uint8_t *visited = m->visited;
    uint32_t lowest = place(m, x) < place(m, apart) ? place(m, x) : place(m, apart), n = 0;
    memset(visited, 0, m->nvalue);
    if (!m->active[w]) return true;
    if (w == known) return true;
    visited[w] = 1;
    stack[n++] = w;
    while (n) {
        inv_id v = stack[--n];
        if (v == x || v == apart || place(m, v) < lowest) return false;
        inv_id d = inv_val(m->g, v)->def;
        if (d == INV_NONE) return false;
        const inv_node *node = inv_nod(m->g, d);
        for (uint32_t k = 0; k < node->nin; k++) {
            inv_id in = node->in[k];
            if (in == INV_NONE || in == known || !m->active[in] || visited[in]) continue;
            visited[in] = 1;
            stack[n++] = in;
        }
    }
    return true;
}

bool inv_region_recoverable(inv_matcher *m, const inv_region *r, inv_id x, inv_id apart, inv_id known)
{
    const inv_graph *g = m->g;
    if (inv_val(g, x)->is_output) return true;
    for (size_t e = 0; e < m->out->edge.n; e++) {
        const inv_edge *edge = &m->out->edge.at[e];
        if (edge->frees != x || in_region(r, edge->forward)) continue;
        const inv_node *user = inv_nod(g, edge->forward);
        bool solvable = true;
        for (uint32_t k = 0; k < user->nin && solvable; k++) {
            inv_id w = user->in[k];
            if (w == INV_NONE || w == x || strcmp(user->op->name, "Concat") == 0) continue;
            solvable = computable(m, w, x, apart, known);
        }
        if (solvable) return true;
    }
    return false;
}
