/* SPDX-License-Identifier: Apache-2.0
 * The fixed total order that recovery works with: forward, backward, commit. A feed stands just before its first
 * reader, so that a target is not live through all of forward.
 * After recovery, early updates move into the compute part: each to where its gradient is complete and its parameter
 * has had its last reader, clones and inverses included; that of a section (inv_value.whole) waits for those who read
 * the section and for those who read all of it, not for those of other sections. Where early updates are not
 * asked for, or a guard may reject the step and guards do not decide ahead, updates stay in the commit part, and only
 * the counts of non-finite entries move. O(nodes x feeds).
 * requires: nodes in a valid order.
 * gives: g->forward_end, g->commit_begin. */
#include <string.h>

#include "passes/schedule/schedule.h"

static inv_status order_by_phase(inv_graph *g, inv_arena *scratch)
{
    inv_ids old = g->order, empty = {0};
    inv_uses uses;
    inv_id *feed_before = INV_ARENA_NEW(scratch, inv_id, old.n + 1);
    if (!feed_before) return INV_E_NOMEM;
    inv_ids sources = {0};
    INV_TRY(inv_graph_uses(g, scratch, &uses));
    for (size_t i = 0; i < old.n; i++) {
        const inv_node *n = inv_nod(g, old.at[i]);
        if (!(n->op->flags & INV_OP_SOURCE)) continue;
        feed_before[sources.n] =
            uses.start[n->out[0]] < uses.start[n->out[0] + 1] ? uses.node[uses.start[n->out[0]]] : INV_NONE;
        if (!inv_vec_push(scratch, &sources, old.at[i])) return INV_E_NOMEM;
    }
    g->order = empty;
    for (size_t i = 0; i < sources.n; i++) /* without a reader: an output by itself, or unused */
        if (feed_before[i] == INV_NONE && !inv_vec_push(&g->arena, &g->order, sources.at[i])) return INV_E_NOMEM;
    for (int phase = INV_FORWARD; phase <= INV_COMMIT; phase++) {
        if (phase == INV_BACKWARD) g->forward_end = g->order.n;
        if (phase == INV_COMMIT) g->commit_begin = g->order.n;
        for (size_t i = 0; i < old.n; i++) {
            const inv_node *n = inv_nod(g, old.at[i]);
            if (n->phase != phase || n->op->flags & INV_OP_SOURCE) continue;
            for (size_t f = 0; f < sources.n; f++)
                if (feed_before[f] == old.at[i] && !inv_vec_push(&g->arena, &g->order, sources.at[f]))
                    return INV_E_NOMEM;
            if (!inv_vec_push(&g->arena, &g->order, old.at[i])) return INV_E_NOMEM;
        }
    }
    return INV_OK;
}

inv_status inv_pass_order(inv_graph *g)
{
    inv_arena scratch;
    inv_arena_init(&scratch, g->ctx);
    inv_status s = order_by_phase(g, &scratch);
    inv_arena_fini(&scratch);
    return s;
}

/* --- early updates --- */

/* Where nodes of the commit part may move to. */
typedef struct commit_moves {
    inv_graph *g;
    size_t *at;     /* per value: the position behind which it is there */
    size_t *read;   /* per value: position of its last reader */
    size_t *partly; /* per value: position of the last reader of a section of it */
    bool *moves;    /* per value: a node that moves gives or reads it */
    size_t *behind; /* per commit node: the position behind which it goes; SIZE_MAX: it stays */
} commit_moves;

static bool any_moves(const commit_moves *s, const inv_id *v, uint32_t n)
{
    bool any = false;
    for (uint32_t k = 0; k < n && !any; k++) any = v[k] != INV_NONE && s->moves[v[k]];
    return any;
}

static void set_moves(const commit_moves *s, const inv_id *v, uint32_t n)
{
    for (uint32_t k = 0; k < n; k++)
        if (v[k] != INV_NONE) s->moves[v[k]] = true;
}

/* Finds the nodes that move: counts of non-finite entries; what depends on them, updates only if they are early; and
 * what these read, such as a gradient in its parameter's shape. */
static bool find_movers(commit_moves *s)
{
    const inv_graph *g = s->g;
    bool any = false;
    for (size_t i = g->commit_begin; i < g->order.n; i++) {
        const inv_node *n = inv_nod(g, g->order.at[i]);
        const bool moves =
            strcmp(n->op->name, "CountNonFinite") == 0 || (any_moves(s, n->in, n->nin) && (g->early || !n->op->writes));
        s->behind[i - g->commit_begin] = moves ? 0 : SIZE_MAX;
        if (moves) set_moves(s, n->out, n->nout);
        any |= moves;
    }
    for (size_t i = g->order.n; i-- > g->commit_begin;) {
        const inv_node *n = inv_nod(g, g->order.at[i]);
        size_t *behind = &s->behind[i - g->commit_begin];
        if (any_moves(s, n->out, n->nout)) *behind = 0;
        if (*behind == 0) set_moves(s, n->in, n->nin);
    }
    return any;
}

/* The position of the last reader of what is written with v: of v, of a section of it, or of what it is a section of.
 */
static size_t last_reader(const commit_moves *s, inv_id v)
{
    const inv_id whole = inv_val(s->g, v)->whole;
    size_t last = s->read[v] > s->partly[v] ? s->read[v] : s->partly[v];
    if (whole != INV_NONE && s->read[whole] > last) last = s->read[whole];
    return last;
}

static void find_places(commit_moves *s)
{
    inv_graph *g = s->g;
    for (size_t i = 0; i < g->order.n; i++) {
        const inv_node *n = inv_nod(g, g->order.at[i]);
        size_t *behind = i < g->commit_begin ? NULL : &s->behind[i - g->commit_begin], at = i;
        for (uint32_t k = 0; k < n->nin && behind && *behind != SIZE_MAX; k++) {
            if (n->in[k] == INV_NONE) continue;
            const bool writes = k < 32 && n->op->writes >> k & 1;
            const size_t there = writes ? last_reader(s, n->in[k]) : s->at[n->in[k]];
            if (there > *behind) *behind = there;
        }
        if (behind && *behind != SIZE_MAX) at = *behind;
        for (uint32_t k = 0; k < n->nout; k++)
            if (n->out[k] != INV_NONE) s->at[n->out[k]] = at;
        for (uint32_t k = 0; k < n->nin; k++) {
            if (n->in[k] == INV_NONE) continue;
            const inv_id whole = inv_val(g, n->in[k])->whole;
            if (at > s->read[n->in[k]]) s->read[n->in[k]] = at;
            if (whole != INV_NONE && at > s->partly[whole]) s->partly[whole] = at;
        }
    }
}

static inv_status advance_commit_nodes(commit_moves *s, inv_arena *scratch)
{
    inv_graph *g = s->g;
    const inv_ids old = g->order;
    const size_t begin = g->commit_begin, ncommit = old.n - begin;
    s->at = INV_ARENA_NEW(scratch, size_t, g->value.n + 1);
    s->read = INV_ARENA_NEW(scratch, size_t, g->value.n + 1);
    s->partly = INV_ARENA_NEW(scratch, size_t, g->value.n + 1);
    s->moves = INV_ARENA_NEW(scratch, bool, g->value.n + 1);
    s->behind = INV_ARENA_NEW(scratch, size_t, ncommit + 1);
    size_t *first = INV_ARENA_NEW(scratch, size_t, begin + 1), *next = INV_ARENA_NEW(scratch, size_t, ncommit + 1);
    if (scratch->failed) return INV_E_NOMEM;
    if (!find_movers(s)) return INV_OK;
    find_places(s);
    for (size_t i = ncommit; i-- > 0;) { /* one list per position, in the former order; 0 ends it */
        if (s->behind[i] == SIZE_MAX) continue;
        next[i] = first[s->behind[i]];
        first[s->behind[i]] = i + 1;
    }
    memset(&g->order, 0, sizeof g->order);
    bool ok = true;
    for (size_t i = 0; i < begin && ok; i++) {
        ok = inv_vec_push(&g->arena, &g->order, old.at[i]);
        for (size_t k = first[i]; k && ok; k = next[k - 1])
            ok = inv_vec_push(&g->arena, &g->order, old.at[begin + k - 1]);
    }
    g->commit_begin = g->order.n;
    for (size_t i = 0; i < ncommit && ok; i++)
        if (s->behind[i] == SIZE_MAX) ok = inv_vec_push(&g->arena, &g->order, old.at[begin + i]);
    return ok ? INV_OK : INV_E_NOMEM;
}

inv_status inv_advance_updates(inv_graph *g)
{
    inv_arena scratch;
    if (!g->commit_begin) return INV_OK;
    inv_arena_init(&scratch, g->ctx);
    inv_status s = advance_commit_nodes(&(commit_moves){.g = g}, &scratch);
    inv_arena_fini(&scratch);
    return s;
}
