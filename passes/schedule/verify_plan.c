/* SPDX-License-Identifier: Apache-2.0
 * Checks a finished plan by going through its order with the offsets. What a node writes is a content: bytes from an
 * offset on, live until the last node that reads them, by itself or through views. No two live contents may share a
 * byte, but for an output that its operator may write in place of an operand that nobody reads later. Live contents are
 * the leaves of a binary tree by offset, so a new one is compared with its neighbours only: O(n log n). Nothing but
 * the operators' rows is shared with what made the plan (memplan.c, place.c): the check would repeat its mistakes.
 * requires: offsets.
 * gives: INV_E_INTERNAL with node and values if the plan is wrong. */
#include <stdlib.h>
#include <string.h>

#include "passes/schedule/schedule.h"

/* What a node has written. */
typedef struct content {
    size_t from, to; /* bytes; `to` is the first behind it */
    size_t needed;   /* how many of them count as live: of a workspace what its node asks for at least */
    uint32_t last;   /* position of its last reader, or else of its writer */
    uint32_t slot;   /* index of `from` among the beginnings of all contents */
    inv_id value;    /* the value that was written; INV_NONE: a workspace */
    bool held;
} content;

/* The order, verified up to some node. */
typedef struct verifier {
    const inv_graph *g;
    inv_arena scratch;
    INV_VEC(content) content;
    uint32_t *of;     /* per value: index of its content; UINT32_MAX: it is not written yet */
    uint32_t *work;   /* per position: content of the node's workspace; UINT32_MAX: it has none */
    uint32_t *read;   /* per value: position of its last reader; behind the order, if the caller reads it */
    uint8_t *changed; /* per value that persists: 1: an update has written it; 2: one has written a section of it */
    uint32_t slots;   /* number of leaves, a power of two */
    uint32_t
        *held; /* tree; a leaf: index of the content that is live there + 1, or 0; above: how many are live below */
    size_t live, most;
    inv_id lost; /* the value that is not there where it is read, or is overwritten before; INV_NONE */
} verifier;

static const char *content_name(const verifier *r, const content *c)
{
    return c->value == INV_NONE ? "the workspace" : inv_val(r->g, c->value)->name;
}

static bool is_node_value(const inv_graph *g, inv_id v)
{
    return v != INV_NONE && inv_val(g, v)->role == INV_ROLE_NODE;
}

static bool on_host(const inv_graph *g, inv_id v) { return v != INV_NONE && inv_val(g, v)->mem == INV_MEM_HOST; }

static size_t value_size(const inv_graph *g, inv_id v)
{
    size_t nbytes = 0;
    return inv_shape_nbytes(&inv_val(g, v)->shape, inv_val(g, v)->dtype, &nbytes) ? nbytes : SIZE_MAX;
}

/* --- contents, and until when they are live --- */

static void note_reads(verifier *r)
{
    const inv_graph *g = r->g;
    for (uint32_t i = 0; i < g->order.n; i++) {
        const inv_node *n = inv_nod(g, g->order.at[i]);
        for (uint32_t k = 0; k < n->nin; k++)
            if (is_node_value(g, n->in[k])) r->read[n->in[k]] = i;
    }
    for (size_t v = 0; v < g->value.n; v++)
        if (g->value.at[v].keep) r->read[v] = (uint32_t)g->order.n;
}

static inv_status add_content(verifier *r, const inv_node *n, inv_id value, size_t offset, size_t nbytes, uint32_t at)
{
    const bool host = on_host(r->g, value);
    const size_t room = host ? r->g->host_nbytes : r->g->arena_nbytes, size = inv_round64(nbytes);
    const size_t base = host ? inv_round64(r->g->arena_nbytes) : 0; /* host memory comes behind the arena */
    const content c = {base + offset, base + offset + size, size, at, 0, value, false};
    if (offset % 64 || offset > room || size > room - offset)
        return inv_node_fail(r->g, n, INV_E_INTERNAL, "the plan puts %s at bytes %zu to %zu of an arena of %zu",
                             content_name(r, &c), offset, offset + nbytes, room);
    return inv_vec_push(&r->scratch, &r->content, c) ? INV_OK : INV_E_NOMEM;
}

/* Whether the output has the content of input 0: a view has, and a part that stands in the whole. */
static bool shows(const inv_graph *g, const inv_node *n, uint32_t k)
{
    size_t offset = 0;
    if (n->nin == 0 || !is_node_value(g, n->in[0])) return false;
    if (n->op->flags & INV_OP_VIEW) return k == 0;
    return n->op->part && n->op->part(g, n, k, &offset) &&
           inv_val(g, n->out[k])->offset == inv_val(g, n->in[0])->offset + offset;
}

static inv_status write_output(verifier *r, const inv_node *n, uint32_t k, uint32_t at)
{
    const inv_graph *g = r->g;
    const inv_id out = n->out[k];
    const uint32_t last = r->read[out] != UINT32_MAX ? r->read[out] : at;
    if (r->of[out] != UINT32_MAX)
        return inv_node_fail(g, n, INV_E_INTERNAL, "the plan writes '%s' a second time", inv_val(g, out)->name);
    if (shows(g, n, k)) {
        const inv_value *from = inv_val(g, n->in[0]);
        if (n->op->flags & INV_OP_VIEW && inv_val(g, out)->offset != from->offset)
            return inv_node_fail(g, n, INV_E_INTERNAL, "the plan puts the view '%s' elsewhere than '%s'",
                                 inv_val(g, out)->name, from->name);
        r->of[out] = r->of[n->in[0]];
    } else {
        INV_TRY(add_content(r, n, out, inv_val(g, out)->offset, value_size(g, out), at));
        r->of[out] = (uint32_t)r->content.n - 1;
    }
    content *c = &r->content.at[r->of[out]];
    if (last > c->last) c->last = last;
    return INV_OK;
}

/* Values in host memory may be copied there and back, but no kernel may see them. */
static inv_status keep_apart(const inv_graph *g, const inv_node *n)
{
    const bool copies = n->op->flags & INV_OP_TRANSFER;
    const bool from = copies && on_host(g, n->in[0]), to = copies && on_host(g, n->out[0]);
    if (copies && from == to)
        return inv_node_fail(g, n, INV_E_INTERNAL, "the plan has it copy '%s' within one memory",
                             inv_val(g, n->in[0])->name);
    for (uint32_t k = 0; k < n->nin + n->nout && !copies; k++) {
        const inv_id v = k < n->nin ? n->in[k] : n->out[k - n->nin];
        if (on_host(g, v))
            return inv_node_fail(g, n, INV_E_INTERNAL, "the plan gives it '%s', which is in host memory",
                                 inv_val(g, v)->name);
    }
    return INV_OK;
}

/* Each operand must be there when it is read, and no parameter is read after its update. */
static inv_status check_reads(verifier *r, const inv_node *n)
{
    const inv_graph *g = r->g;
    INV_TRY(keep_apart(g, n));
    for (uint32_t k = 0; k < n->nin; k++) {
        if (n->in[k] == INV_NONE) continue;
        const char *name = inv_val(g, n->in[k])->name;
        const inv_id whole = inv_val(g, n->in[k])->whole;
        const bool changed = r->changed[n->in[k]] || (whole != INV_NONE && r->changed[whole] & 1);
        if (changed && !(n->op->flags & INV_OP_AFTER_UPDATE))
            return inv_node_fail(g, n, INV_E_INTERNAL, "the plan has it read '%s' after its update", name);
        if (is_node_value(g, n->in[k]) && r->of[n->in[k]] == UINT32_MAX) {
            r->lost = n->in[k];
            return inv_node_fail(g, n, INV_E_INTERNAL, "the plan has it read '%s' before anything writes it", name);
        }
    }
    for (uint32_t k = 0; k < n->nin && k < 32; k++) {
        if (!(n->op->writes >> k & 1) || n->in[k] == INV_NONE) continue;
        const inv_id whole = inv_val(g, n->in[k])->whole;
        r->changed[n->in[k]] |= 1;
        if (whole != INV_NONE) r->changed[whole] |= 2;
    }
    return INV_OK;
}

static inv_status note_contents(verifier *r)
{
    const inv_graph *g = r->g;
    for (uint32_t i = 0; i < g->order.n; i++) {
        const inv_node *n = inv_nod(g, g->order.at[i]);
        INV_TRY(check_reads(r, n));
        for (uint32_t k = 0; k < n->nout; k++)
            if (n->out[k] != INV_NONE) INV_TRY(write_output(r, n, k, i));
        r->work[i] = n->ws_nbytes ? (uint32_t)r->content.n : UINT32_MAX;
        const size_t wanted = n->op->workspace ? n->op->workspace(g, n) : 0;
        if (n->ws_nbytes < wanted)
            return inv_node_fail(g, n, INV_E_INTERNAL, "the plan gives it a workspace of %zu bytes of %zu",
                                 n->ws_nbytes, wanted);
        if (!n->ws_nbytes) continue;
        INV_TRY(add_content(r, n, INV_NONE, n->ws_offset, n->ws_nbytes, i));
        r->content.at[r->work[i]].needed = inv_round64(wanted);
    }
    for (size_t v = 0; v < g->value.n; v++)
        if (g->value.at[v].keep && is_node_value(g, (inv_id)v) && r->of[v] == UINT32_MAX)
            return inv_fail(g->ctx, INV_E_INTERNAL, "the plan never writes '%s', which is read after the step",
                            g->value.at[v].name);
    return INV_OK;
}

/* --- bytes in use --- */

static int by_offset(const void *a, const void *b)
{
    const size_t x = *(const size_t *)a, y = *(const size_t *)b;
    return x < y ? -1 : x > y;
}

static inv_status make_slots(verifier *r)
{
    size_t n = 0, *begins = INV_ARENA_NEW(&r->scratch, size_t, r->content.n + 1);
    if (!begins) return INV_E_NOMEM;
    for (size_t i = 0; i < r->content.n; i++) begins[i] = r->content.at[i].from;
    qsort(begins, r->content.n, sizeof *begins, by_offset);
    for (size_t i = 0; i < r->content.n; i++)
        if (i == 0 || begins[i] != begins[n - 1]) begins[n++] = begins[i];
    for (r->slots = 1; r->slots < n;) r->slots *= 2;
    r->held = INV_ARENA_NEW(&r->scratch, uint32_t, 2 * (size_t)r->slots);
    for (size_t i = 0; i < r->content.n; i++) {
        const size_t *at = bsearch(&r->content.at[i].from, begins, n, sizeof *begins, by_offset);
        r->content.at[i].slot = (uint32_t)(at - begins);
    }
    return r->held ? INV_OK : INV_E_NOMEM;
}

/* The nearest live content at slot `from` or beyond it, upwards or downwards; NULL: there is none. */
static const content *held_beside(const verifier *r, uint32_t from, bool up)
{
    uint32_t at = from + r->slots;
    if (!r->held[at]) {
        while (at > 1 && ((at & 1) == up || !r->held[at ^ 1])) at /= 2;
        if (at <= 1) return NULL;
        at ^= 1;
        while (at < r->slots) at = 2 * at + (r->held[2 * at + !up] ? !up : up);
    }
    return &r->content.at[r->held[at] - 1];
}

static void mark_held(verifier *r, content *c, bool held)
{
    c->held = held;
    if (!on_host(r->g, c->value)) r->live = held ? r->live + c->needed : r->live - c->needed;
    if (r->live > r->most) r->most = r->live;
    if (c->to == c->from) return;
    uint32_t at = c->slot + r->slots;
    r->held[at] = held ? (uint32_t)(c - r->content.at) + 1 : 0;
    for (at /= 2; at; at /= 2) r->held[at] = held ? r->held[at] + 1 : r->held[at] - 1;
}

static inv_status hold_content(verifier *r, const inv_node *n, uint32_t index)
{
    content *c = &r->content.at[index];
    const content *below = c->from < c->to ? held_beside(r, c->slot, false) : NULL,
                  *above = c->from < c->to ? held_beside(r, c->slot, true) : NULL;
    const content *other = below && below->to > c->from ? below : above && above->from < c->to ? above : NULL;
    if (other) {
        r->lost = other->value;
        return inv_node_fail(r->g, n, INV_E_INTERNAL,
                             "the plan has it write %s to bytes %zu to %zu, where %s is still read (bytes %zu to %zu)",
                             content_name(r, c), c->from, c->to, content_name(r, other), other->from, other->to);
    }
    mark_held(r, c, true);
    return INV_OK;
}

/* Ends the operand that the output is written in place of. The operator must allow it, the bytes must be the same, and
 * this must be its last read, by this operand alone. */
static void give_way(verifier *r, const inv_node *n, uint32_t o, uint32_t at)
{
    const inv_graph *g = r->g;
    const inv_id out = n->out[o];
    const uint32_t bits = inv_node_overwrites(g, n, o);
    for (uint32_t k = 0; k < n->nin && k < 32; k++) {
        if (!(bits >> k & 1) || !is_node_value(g, n->in[k])) continue;
        content *c = &r->content.at[r->of[n->in[k]]];
        bool alone = c->held && c->last == at && inv_val(g, n->in[k])->offset == inv_val(g, out)->offset &&
                     c->to - c->from == inv_round64(value_size(g, out)) &&
                     value_size(g, n->in[k]) == value_size(g, out);
        for (uint32_t j = 0; j < n->nin; j++)
            alone =
                alone && (!is_node_value(g, n->in[j]) || n->in[j] == n->in[k] || r->of[n->in[j]] != r->of[n->in[k]]);
        if (alone) {
            mark_held(r, c, false);
            return;
        }
    }
}

static inv_status verify_node(verifier *r, uint32_t i)
{
    const inv_graph *g = r->g;
    const inv_node *n = inv_nod(g, g->order.at[i]);
    for (uint32_t k = 0; k < n->nout; k++) {
        if (n->out[k] == INV_NONE || shows(g, n, k)) continue;
        give_way(r, n, k, i);
        INV_TRY(hold_content(r, n, r->of[n->out[k]]));
    }
    if (r->work[i] != UINT32_MAX) INV_TRY(hold_content(r, n, r->work[i]));
    for (uint32_t k = 0; k < n->nin + n->nout + 1; k++) {
        const inv_id v = k < n->nin ? n->in[k] : k < n->nin + n->nout ? n->out[k - n->nin] : INV_NONE;
        const uint32_t c = k == n->nin + n->nout ? r->work[i] : is_node_value(g, v) ? r->of[v] : UINT32_MAX;
        if (c != UINT32_MAX && r->content.at[c].held && r->content.at[c].last == i)
            mark_held(r, &r->content.at[c], false);
    }
    return INV_OK;
}

static inv_status prepare_verifier(verifier *r)
{
    const size_t nvalue = r->g->value.n + 1, norder = r->g->order.n + 1;
    r->of = INV_ARENA_NEW(&r->scratch, uint32_t, nvalue);
    r->read = INV_ARENA_NEW(&r->scratch, uint32_t, nvalue);
    r->changed = INV_ARENA_NEW(&r->scratch, uint8_t, nvalue);
    r->work = INV_ARENA_NEW(&r->scratch, uint32_t, norder);
    if (r->scratch.failed) return INV_E_NOMEM;
    memset(r->of, 0xff, nvalue * sizeof *r->of);
    memset(r->read, 0xff, nvalue * sizeof *r->read);
    note_reads(r);
    INV_TRY(note_contents(r));
    return make_slots(r);
}

static inv_status verify_order(verifier *r, const inv_plan *plan)
{
    INV_TRY(prepare_verifier(r));
    for (uint32_t i = 0; i < r->g->order.n; i++) INV_TRY(verify_node(r, i));
    if (r->most > plan->load)
        return inv_fail(r->g->ctx, INV_E_INTERNAL, "the plan says that at most %zu bytes live at once; %zu do",
                        plan->load, r->most);
    return INV_OK;
}

inv_status inv_plan_verify(const inv_graph *g, const inv_plan *plan, inv_id *lost)
{
    verifier r = {.g = g, .lost = INV_NONE};
    inv_arena_init(&r.scratch, g->ctx);
    inv_status s = verify_order(&r, plan);
    inv_arena_fini(&r.scratch);
    if (lost) *lost = r.lost;
    return s;
}
