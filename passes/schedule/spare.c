/* SPDX-License-Identifier: Apache-2.0
 * Scratch memory beyond the least. Plans count the least with which a node can be computed (column `workspace`), so
 * that a choice of speed never makes one larger. Where the arena has more room at a node's step, between the buffers
 * that are alive there, the node gets it, up to what makes it the quickest (column `quick`): as libraries choose an
 * algorithm by a limit on its workspace, but that the bits are the same. The limit is of the step, not of the model, so
 * a plan with little memory has slow nodes at its peak alone. What is reported as needed stays the least.
 * requires: offsets.
 * gives: ws_offset and ws_nbytes of such nodes. */
#include <string.h>

#include "core/base/mem.h"
#include "passes/schedule/schedule.h"

/* The buffers that are alive, of which some may have ended: the first `sorted` of them by offset, and then those that
 * came since somebody looked. */
typedef struct sweep {
    const inv_buffer *buf;
    const size_t *offset;
    uint32_t *at;
    size_t sorted, n;
} sweep;

static size_t end_of(const sweep *s, uint32_t b) { return s->offset[b] + inv_round64(s->buf[b].nbytes); }

static void drop_ended(sweep *s, uint32_t position)
{
    size_t n = 0, sorted = 0;
    for (size_t i = 0; i < s->n; i++) {
        if (s->buf[s->at[i]].to < position) continue;
        sorted += i < s->sorted;
        s->at[n++] = s->at[i];
    }
    s->sorted = sorted;
    s->n = n;
}

/* Puts the first of those that came since in its place. */
static void sort_in(sweep *s)
{
    const uint32_t b = s->at[s->sorted];
    size_t lo = 0, hi = s->sorted;
    while (lo < hi) {
        const size_t mid = lo + (hi - lo) / 2;
        if (s->offset[s->at[mid]] < s->offset[b]) lo = mid + 1;
        else hi = mid;
    }
    memmove(s->at + lo + 1, s->at + lo, (s->sorted - lo) * sizeof *s->at);
    s->at[lo] = b;
    s->sorted++;
}

/* The first gap of `wanted` bytes between buffers that are alive, or the largest. */
static void widen(const sweep *s, inv_node *n, size_t wanted, size_t arena)
{
    size_t from = 0, least = inv_round64(n->ws_nbytes);
    for (size_t i = 0; i <= s->n && least < wanted; i++) {
        const size_t to = i < s->n ? s->offset[s->at[i]] : arena;
        if (to > from && to - from > least) {
            least = to - from;
            n->ws_offset = from;
            n->ws_nbytes = least < wanted ? least : wanted;
        }
        if (i < s->n && end_of(s, s->at[i]) > from) from = end_of(s, s->at[i]);
    }
}

inv_status inv_widen_workspaces(inv_graph *g, const inv_buffers *buf, const size_t *offset)
{
    inv_arena scratch;
    inv_arena_init(&scratch, g->ctx);
    sweep s = {buf->at, offset, INV_ARENA_NEW(&scratch, uint32_t, buf->n + 1), 0, 0};
    size_t lately = 0; /* how many were alive when last somebody looked */
    for (uint32_t i = 0; i < buf->n && s.at; i++) {
        const inv_buffer *b = &buf->at[i];
        inv_node *n = b->value == INV_NONE ? inv_nod(g, g->order.at[b->from]) : NULL;
        if (s.n > 2 * lately + 64) {
            drop_ended(&s, b->from);
            lately = s.n;
        }
        if (n && n->op->quick && b->to == b->from) {
            const size_t wanted = n->op->quick(g, n);
            if (wanted <= n->ws_nbytes) continue;
            drop_ended(&s, b->from);
            lately = s.n;
            while (s.sorted < s.n) sort_in(&s);
            widen(&s, n, wanted, g->arena_nbytes);
        } else if (b->mem != INV_MEM_HOST && b->nbytes) {
            s.at[s.n++] = i;
        }
    }
    inv_arena_fini(&scratch);
    return s.at ? INV_OK : INV_E_NOMEM;
}
