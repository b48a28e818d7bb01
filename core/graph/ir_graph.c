/* SPDX-License-Identifier: Apache-2.0
 * Analysis of the graph: uses, topological order, dead nodes. Nothing recurses: chains are thousands long. */
#include <string.h>

#include "core/graph/ir_internal.h"

inv_status inv_graph_uses(const inv_graph *g, inv_arena *scratch, inv_uses *out)
{
    size_t nvalue = g->value.n, total = 0;
    *out = (inv_uses){0};
    uint32_t *start = INV_ARENA_NEW(scratch, uint32_t, nvalue + 2);
    if (!start) return INV_E_NOMEM;
    /* counts go one place further on than they end up, so that filling needs no second array */
    for (size_t i = 0; i < g->order.n; i++) {
        const inv_node *n = inv_nod(g, g->order.at[i]);
        for (uint32_t k = 0; k < n->nin; k++)
            if (n->in[k] != INV_NONE) {
                start[n->in[k] + 2]++;
                total++;
            }
    }
    INV_CHECK(total < UINT32_MAX, g->ctx, INV_E_GRAPH, "graph too large");
    for (size_t v = 2; v < nvalue + 2; v++) start[v] += start[v - 1];
    out->node = INV_ARENA_NEW(scratch, inv_id, total);
    out->slot = INV_ARENA_NEW(scratch, uint32_t, total);
    if (!out->node || !out->slot) return INV_E_NOMEM;
    for (size_t i = 0; i < g->order.n; i++) {
        const inv_node *n = inv_nod(g, g->order.at[i]);
        for (uint32_t k = 0; k < n->nin; k++) {
            if (n->in[k] == INV_NONE) continue;
            uint32_t at = start[n->in[k] + 1]++;
            out->node[at] = g->order.at[i];
            out->slot[at] = k;
        }
    }
    out->start = start;
    return INV_OK;
}

/* --- order --- */

enum { UNSEEN, OPEN, DONE, ABSENT };

typedef struct {
    inv_id node;
    uint32_t next; /* input to look at */
} frame;

static const char *name_of(const inv_graph *g, const inv_node *n)
{
    if (*n->name) return n->name;
    return n->nout && n->out[0] != INV_NONE ? inv_val(g, n->out[0])->name : n->op_type;
}

static inv_status cycle(const inv_graph *g, const frame *stack, size_t depth, inv_id again)
{
    inv_str b;
    size_t from = depth;
    while (from > 0 && stack[from - 1].node != again) from--;
    from = from ? from - 1 : 0;
    inv_str_init(&b, g->ctx);
    for (size_t i = depth; i > from && depth - i < 12; i--)
        inv_str_add(&b, "'%s' (%s) -> ", name_of(g, inv_nod(g, stack[i - 1].node)),
                    inv_nod(g, stack[i - 1].node)->op_type);
    if (depth - from > 12) inv_str_add(&b, "... -> ");
    inv_status s =
        b.failed ? INV_E_NOMEM
                 : inv_fail(g->ctx, INV_E_GRAPH, "the graph has a cycle of %zu nodes (each needs the next): %s'%s'",
                            depth - from, b.s, name_of(g, inv_nod(g, stack[depth - 1].node)));
    inv_str_fini(&b);
    return s;
}

/* Depth first from `root` over the nodes that it needs; finished nodes are appended to `sorted`. */
static inv_status visit(const inv_graph *g, inv_id root, uint8_t *mark, frame *stack, inv_id *sorted, size_t *nsorted)
{
    size_t depth = 0;
    stack[depth++] = (frame){root, 0};
    mark[root] = OPEN;
    while (depth) {
        frame *f = &stack[depth - 1];
        const inv_node *n = inv_nod(g, f->node);
        inv_id need = INV_NONE;
        while (f->next < n->nin && need == INV_NONE) {
            inv_id v = n->in[f->next++];
            inv_id def = v == INV_NONE ? INV_NONE : inv_val(g, v)->def;
            if (def != INV_NONE && mark[def] == OPEN) return cycle(g, stack, depth, def);
            if (def != INV_NONE && mark[def] == UNSEEN) need = def;
        }
        if (need != INV_NONE) {
            mark[need] = OPEN;
            stack[depth++] = (frame){need, 0};
        } else {
            mark[f->node] = DONE;
            sorted[(*nsorted)++] = f->node;
            depth--;
        }
    }
    return INV_OK;
}

inv_status inv_graph_sort(inv_graph *g)
{
    inv_arena scratch;
    inv_arena_init(&scratch, g->ctx);
    inv_status s = INV_OK;
    size_t nsorted = 0;
    uint8_t *mark = INV_ARENA_NEW(&scratch, uint8_t, g->node.n);
    frame *stack = INV_ARENA_NEW(&scratch, frame, g->order.n);
    inv_id *sorted = INV_ARENA_NEW(&scratch, inv_id, g->order.n);
    if (!mark || !stack || !sorted) {
        s = INV_E_NOMEM;
        goto done;
    }
    memset(mark, ABSENT, g->node.n);
    for (size_t i = 0; i < g->order.n; i++) {
        if (mark[g->order.at[i]] == UNSEEN) {
            s = inv_fail(g->ctx, INV_E_INTERNAL, "node '%s' appears twice in the order",
                         name_of(g, inv_nod(g, g->order.at[i])));
            goto done;
        }
        mark[g->order.at[i]] = UNSEEN;
    }
    for (size_t i = 0; i < g->order.n && s == INV_OK; i++)
        if (mark[g->order.at[i]] == UNSEEN) s = visit(g, g->order.at[i], mark, stack, sorted, &nsorted);
    if (s == INV_OK && nsorted) memcpy(g->order.at, sorted, nsorted * sizeof *sorted);
done:
    inv_arena_fini(&scratch);
    return s;
}

/* --- dead nodes --- */

static bool is_needed(const inv_graph *g, const inv_node *n, const uint8_t *used)
{
    if (n->op && (n->op->writes || (n->op->flags & INV_OP_STEP))) return true;
    for (uint32_t i = 0; i < n->nout; i++) {
        if (n->out[i] == INV_NONE) continue;
        const inv_value *v = inv_val(g, n->out[i]);
        if (used[n->out[i]] || v->is_output || v->keep) return true;
    }
    return false;
}

/* requires: order is topological. */
inv_status inv_graph_prune(inv_graph *g)
{
    inv_arena scratch;
    inv_arena_init(&scratch, g->ctx);
    uint8_t *used = INV_ARENA_NEW(&scratch, uint8_t, g->value.n), *live = INV_ARENA_NEW(&scratch, uint8_t, g->order.n);
    if (!used || !live) {
        inv_arena_fini(&scratch);
        return INV_E_NOMEM;
    }
    for (size_t i = 0; i < g->outputs.n; i++) used[g->outputs.at[i]] = 1;
    for (size_t i = g->order.n; i-- > 0;) {
        const inv_node *n = inv_nod(g, g->order.at[i]);
        live[i] = is_needed(g, n, used);
        for (uint32_t k = 0; live[i] && k < n->nin; k++)
            if (n->in[k] != INV_NONE) used[n->in[k]] = 1;
    }
    size_t kept = 0, forward_end = 0, commit_begin = 0;
    for (size_t i = 0; i < g->order.n; i++) {
        if (live[i]) g->order.at[kept++] = g->order.at[i];
        if (i + 1 == g->forward_end) forward_end = kept;
        if (i + 1 == g->commit_begin) commit_begin = kept;
    }
    g->order.n = kept;
    g->forward_end = forward_end;
    g->commit_begin = commit_begin;
    inv_arena_fini(&scratch);
    return INV_OK;
}

static bool overlap(const inv_data *a, const inv_data *b)
{
    const uintptr_t x = (uintptr_t)a->bytes, y = (uintptr_t)b->bytes;
    return a->bytes && b->bytes && x < y + b->nbytes && y < x + a->nbytes;
}

/* Whether nothing that is used has some of the constant's bytes. */
static bool is_left_over(const inv_graph *g, const inv_value *c, const bool *used)
{
    bool left = true;
    for (size_t v = 0; v < g->value.n && left; v++) left = !used[v] || !overlap(&c->data, &inv_val(g, (inv_id)v)->data);
    return left;
}

inv_status inv_graph_drop_constants(inv_graph *g)
{
    enum { LARGE = 1 << 16 };
    inv_arena scratch;
    inv_arena_init(&scratch, g->ctx);
    bool *used = INV_ARENA_NEW(&scratch, bool, g->value.n + 1);
    for (size_t i = 0; i < g->order.n && used; i++) {
        const inv_node *n = inv_nod(g, g->order.at[i]);
        for (uint32_t k = 0; k < n->nin; k++)
            if (n->in[k] != INV_NONE) used[n->in[k]] = true;
    }
    for (size_t i = 0; i < g->outputs.n && used; i++) used[g->outputs.at[i]] = true;
    for (inv_id v = 0; v < g->value.n && used; v++) {
        const inv_data d = inv_val(g, v)->data;
        if (inv_val(g, v)->role != INV_ROLE_CONST || used[v] || d.nbytes < LARGE) continue;
        if (!is_left_over(g, inv_val(g, v), used) || !inv_arena_drop(&g->arena, d.bytes)) continue;
        for (inv_id w = 0; w < g->value.n; w++)
            if (overlap(&inv_val(g, w)->data, &d)) inv_val(g, w)->data = (inv_data){.dtype = inv_val(g, w)->data.dtype};
    }
    const bool ok = used != NULL;
    inv_arena_fini(&scratch);
    return ok ? INV_OK : INV_E_NOMEM;
}

bool inv_graph_comes_of(inv_graph *g, inv_id v, bool (*is_such)(inv_graph *g, inv_id v))
{
    inv_arena scratch;
    inv_ids open = {0};
    bool such = false;
    inv_arena_init(&scratch, g->ctx);
    bool *seen = INV_ARENA_NEW(&scratch, bool, g->value.n + 1);
    bool ok = seen && inv_vec_push(&scratch, &open, v);
    while (ok && open.n && !such) {
        v = open.at[--open.n];
        such = is_such(g, v);
        const inv_node *n = inv_def_node(g, v);
        for (uint32_t k = 0; n && k < n->nin && ok; k++) {
            if (n->in[k] == INV_NONE || seen[n->in[k]]) continue;
            seen[n->in[k]] = true;
            ok = inv_vec_push(&scratch, &open, n->in[k]);
        }
    }
    inv_arena_fini(&scratch);
    if (!ok) inv_graph_fail(g, INV_E_NOMEM);
    return such;
}

bool inv_ids_have(const inv_id *list, size_t n, inv_id v)
{
    for (size_t i = 0; i < n; i++)
        if (list[i] == v) return true;
    return false;
}

bool inv_nodes_give(const inv_graph *g, const inv_id *node, size_t n, inv_id v)
{
    for (size_t i = 0; i < n; i++)
        if (inv_ids_have(inv_nod(g, node[i])->out, inv_nod(g, node[i])->nout, v)) return true;
    return false;
}
