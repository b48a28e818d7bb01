/* SPDX-License-Identifier: Apache-2.0
 * Liveness and offsets. A buffer is a set of values that share bytes: views of one value, and outputs written over an
 * input that nobody reads later. The arena's transient part is what the placement needs; nothing allocates in a step.
 * Placement: greedy first fit (by size: Pisarchyk and Lee, arXiv 2001.03288) from four orders, each improved by moving
 * what touches the top.
 * requires: order.  gives: buffer and offset of every transient value; plan->live and peaks. */
#include <stdlib.h>
#include <string.h>

#include "passes/pass.h"

enum { ALIGN = 64 };

typedef struct buffer {
    size_t nbytes, offset;
    uint32_t from, to; /* positions, inclusive */
    uint8_t mem;
    inv_id value;      /* first value; INV_NONE: workspace of the node at `from` */
} buffer;

typedef struct planner {
    inv_graph *g;
    inv_arena scratch;
    uint32_t *last;    /* per value: position of the last read */
    uint32_t *of;      /* per value: buffer index */
    INV_VEC(buffer) buf;
} planner;

static size_t align_up(size_t n) { return (n + ALIGN - 1) / ALIGN * ALIGN; }

static bool transient(const inv_value *v) { return v->role == INV_ROLE_NODE; }

static inv_status last_reads(planner *p)
{
    inv_graph *g = p->g;
    p->last = INV_ARENA_NEW(&p->scratch, uint32_t, g->value.n + 1);
    p->of = INV_ARENA_NEW(&p->scratch, uint32_t, g->value.n + 1);
    if (!p->last || !p->of) return INV_E_NOMEM;
    for (size_t v = 0; v < g->value.n; v++) p->of[v] = UINT32_MAX;
    for (size_t i = 0; i < g->order.n; i++) {
        const inv_node *n = inv_nod(g, g->order.at[i]);
        for (uint32_t k = 0; k < n->nout; k++)
            if (n->out[k] != INV_NONE) p->last[n->out[k]] = (uint32_t)i;
        for (uint32_t k = 0; k < n->nin; k++)
            if (n->in[k] != INV_NONE) p->last[n->in[k]] = (uint32_t)i;
    }
    for (size_t v = 0; v < g->value.n; v++)
        if (g->value.at[v].keep) p->last[v] = (uint32_t)g->order.n;
    return INV_OK;
}

/* Views are read where their source is: a buffer ends with the last read of any value in it. */
static void extend_over_views(planner *p)
{
    inv_graph *g = p->g;
    for (size_t i = g->order.n; i-- > 0;) {
        const inv_node *n = inv_nod(g, g->order.at[i]);
        if (!(n->op->flags & INV_OP_VIEW) || n->out[0] == INV_NONE) continue;
        if (p->last[n->out[0]] > p->last[n->in[0]]) p->last[n->in[0]] = p->last[n->out[0]];
    }
}

/* Another operand in the same buffer has another shape, so the kernel would read what it has overwritten. */
static bool aliased(const planner *p, const inv_node *n, uint32_t k)
{
    for (uint32_t j = 0; j < n->nin; j++)
        if (n->in[j] != INV_NONE && n->in[j] != n->in[k] && p->of[n->in[j]] == p->of[n->in[k]]) return true;
    return false;
}

/* The input whose bytes output `out` may take over, or INV_NONE. */
static inv_id overwritten(const planner *p, const inv_node *n, inv_id out, uint32_t at, size_t nbytes)
{
    const inv_graph *g = p->g;
    for (uint32_t k = 0; k < n->nin && k < 32; k++) {
        if (!(n->op->inplace >> k & 1) || n->in[k] == INV_NONE) continue;
        const inv_value *v = inv_val(g, n->in[k]);
        if (!transient(v) || p->of[n->in[k]] == UINT32_MAX || v->dtype != inv_val(g, out)->dtype) continue;
        if (v->mem != inv_val(g, out)->mem || aliased(p, n, k)) continue;
        const buffer *b = &p->buf.at[p->of[n->in[k]]];
        size_t used = 0;
        if (b->to == at && inv_shape_nbytes(&v->shape, v->dtype, &used) && used == nbytes && b->nbytes == nbytes)
            return n->in[k];
    }
    return INV_NONE;
}

static inv_status place_output(planner *p, const inv_node *n, uint32_t k, uint32_t at)
{
    inv_graph *g = p->g;
    inv_id out = n->out[k];
    inv_value *v = inv_val(g, out);
    size_t nbytes = 0;
    if (!inv_shape_nbytes(&v->shape, v->dtype, &nbytes))
        return inv_node_fail(g, n, INV_E_SHAPE, "its output is too large to address");
    inv_id shared = INV_NONE;
    if (k == 0 && n->op->flags & INV_OP_VIEW && transient(inv_val(g, n->in[0]))) shared = n->in[0];
    else if (k == n->op->inplace_out) shared = overwritten(p, n, out, at, nbytes);
    if (shared != INV_NONE) {
        p->of[out] = p->of[shared];
        buffer *b = &p->buf.at[p->of[shared]];
        if (p->last[out] > b->to) b->to = p->last[out];
        if (v->mem != INV_MEM_ACT) b->mem = v->mem;
        v->buffer = inv_val(g, shared)->buffer;
        return INV_OK;
    }
    buffer b = {nbytes, 0, at, p->last[out], v->mem, out};
    p->of[out] = (uint32_t)p->buf.n;
    v->buffer = out;
    return inv_vec_push(&p->scratch, &p->buf, b) ? INV_OK : INV_E_NOMEM;
}

static inv_status buffers(planner *p)
{
    inv_graph *g = p->g;
    for (size_t i = 0; i < g->order.n; i++) {
        const inv_node *n = inv_nod(g, g->order.at[i]);
        for (uint32_t k = 0; k < n->nout; k++)
            if (n->out[k] != INV_NONE) INV_TRY(place_output(p, n, k, (uint32_t)i));
        size_t ws = n->op->workspace ? n->op->workspace(g, n) : 0;
        inv_nod(g, g->order.at[i])->ws_nbytes = ws;
        if (!ws) continue;
        buffer b = {ws, 0, (uint32_t)i, (uint32_t)i, INV_MEM_ACT, INV_NONE};
        if (!inv_vec_push(&p->scratch, &p->buf, b)) return INV_E_NOMEM;
    }
    return INV_OK;
}

/* --- peaks --- */

static inv_status measure(planner *p, inv_plan *plan)
{
    inv_graph *g = p->g;
    size_t n = g->order.n + 1;
    plan->live = INV_ARENA_NEW(&g->arena, inv_live, n);
    int64_t *delta = INV_ARENA_NEW(&p->scratch, int64_t, (n + 1) * INV_MEM_CLASSES);
    if (!plan->live || !delta) return INV_E_NOMEM;
    for (size_t i = 0; i < p->buf.n; i++) {
        const buffer *b = &p->buf.at[i];
        size_t size = align_up(b->nbytes);
        if (b->value == INV_NONE) {
            plan->live[b->from].workspace = size;
            continue;
        }
        delta[b->from * INV_MEM_CLASSES + b->mem] += (int64_t)size;
        if (b->to + 1u <= n) delta[(b->to + 1u) * INV_MEM_CLASSES + b->mem] -= (int64_t)size;
    }
    int64_t now[INV_MEM_CLASSES] = {0};
    plan->activation_peak = plan->workspace_peak = plan->load = plan->peak_at = 0;
    for (size_t i = 0; i < n; i++) {
        size_t all = plan->live[i].workspace;
        for (int c = 0; c < INV_MEM_CLASSES; c++) {
            now[c] += delta[i * INV_MEM_CLASSES + (size_t)c];
            plan->live[i].bytes[c] = (size_t)now[c];
            all += (size_t)now[c];
        }
        size_t act = plan->live[i].bytes[INV_MEM_ACT] + plan->live[i].workspace;
        if (act > plan->activation_peak) {
            plan->activation_peak = act;
            plan->peak_at = i;
        }
        if (plan->live[i].workspace > plan->workspace_peak) plan->workspace_peak = plan->live[i].workspace;
        if (all > plan->load) plan->load = all;
    }
    return INV_OK;
}

/* --- offsets --- */

static int by_size(const void *a, const void *b)
{
    const buffer *x = *(buffer *const *)a, *y = *(buffer *const *)b;
    if (x->nbytes != y->nbytes) return x->nbytes < y->nbytes ? 1 : -1;
    uint32_t lx = x->to - x->from, ly = y->to - y->from;
    if (lx != ly) return lx < ly ? 1 : -1;
    return x->from < y->from ? -1 : x->from > y->from;
}
static int by_area(const void *a, const void *b)
{
    const buffer *x = *(buffer *const *)a, *y = *(buffer *const *)b;
    double ax = (double)x->nbytes * (x->to - x->from + 1), ay = (double)y->nbytes * (y->to - y->from + 1);
    if (ax < ay || ax > ay) return ax < ay ? 1 : -1;
    return by_size(a, b);
}
static int by_start(const void *a, const void *b)
{
    const buffer *x = *(buffer *const *)a, *y = *(buffer *const *)b;
    if (x->from != y->from) return x->from < y->from ? -1 : 1;
    return by_size(a, b);
}
static int by_length(const void *a, const void *b)
{
    const buffer *x = *(buffer *const *)a, *y = *(buffer *const *)b;
    uint32_t lx = x->to - x->from, ly = y->to - y->from;
    if (lx != ly) return lx < ly ? 1 : -1;
    return by_size(a, b);
}

/* First fit in the given order; the bytes needed. `placed` stays sorted by offset. */
static size_t first_fit(buffer **order, size_t n, buffer **placed)
{
    size_t need = 0;
    for (size_t i = 0; i < n; i++) {
        buffer *b = order[i];
        size_t at = 0, size = align_up(b->nbytes);
        for (size_t j = 0; j < i && placed[j]->offset < at + size; j++) {
            if (placed[j]->from > b->to || b->from > placed[j]->to) continue;
            size_t end = placed[j]->offset + align_up(placed[j]->nbytes);
            if (end > at) at = end;
        }
        b->offset = at;
        if (at + size > need) need = at + size;
        size_t lo = 0, hi = i;
        while (lo < hi) {
            size_t mid = lo + (hi - lo) / 2;
            if (placed[mid]->offset < at) lo = mid + 1;
            else hi = mid;
        }
        memmove(placed + lo + 1, placed + lo, (i - lo) * sizeof *placed);
        placed[lo] = b;
    }
    return need;
}

typedef struct placement {
    buffer **order, **trial, **placed;
    size_t n, need;
    size_t *offset; /* per buffer: best so far */
} placement;

static void remember(const planner *p, placement *s, size_t need)
{
    s->need = need;
    for (size_t i = 0; i < s->n; i++) s->offset[i] = p->buf.at[i].offset;
}

/* Buffers that touch the top are placed earlier, as long as that does no harm. Deterministic; bounded work. */
static void improve(const planner *p, placement *s, size_t bound)
{
    double work = (double)s->n * (double)s->n + 1;
    size_t tries = work > 2e7 ? 8 : work > 2e5 ? (size_t)(1.6e8 / work) : 800;
    for (size_t t = 0; t < tries && s->need > bound; t++) {
        size_t top = s->n, seen = 0;
        for (size_t i = 0; i < s->n; i++) {
            const buffer *b = s->order[i];
            size_t end = s->offset[b - p->buf.at] + align_up(b->nbytes);
            if (end == s->need && (top == s->n || seen++ == t % 3)) top = i;
        }
        if (top == s->n || top == 0) return;
        size_t anywhere = (size_t)((uint64_t)(t + 1) * 0x9e3779b97f4a7c15u >> 33) % top;
        size_t to = t % 4 == 0 ? 0 : t % 4 == 1 ? top / 2 : anywhere;
        memcpy(s->trial, s->order, s->n * sizeof *s->order);
        memmove(s->trial + to + 1, s->trial + to, (top - to) * sizeof *s->order);
        s->trial[to] = s->order[top];
        size_t need = first_fit(s->trial, s->n, s->placed);
        if (need > s->need) continue;
        memcpy(s->order, s->trial, s->n * sizeof *s->order);
        remember(p, s, need);
    }
}

static inv_status place(planner *p, inv_plan *plan)
{
    inv_graph *g = p->g;
    size_t n = p->buf.n;
    placement s = {INV_ARENA_NEW(&p->scratch, buffer *, n + 1), INV_ARENA_NEW(&p->scratch, buffer *, n + 1),
                   INV_ARENA_NEW(&p->scratch, buffer *, n + 1), n, SIZE_MAX, INV_ARENA_NEW(&p->scratch, size_t, n + 1)};
    if (!s.order || !s.trial || !s.placed || !s.offset) return INV_E_NOMEM;
    int (*const orders[])(const void *, const void *) = {by_size, by_length, by_area, by_start};
    size_t best = SIZE_MAX, *offset = INV_ARENA_NEW(&p->scratch, size_t, n + 1);
    if (!offset) return INV_E_NOMEM;
    for (size_t o = 0; o < sizeof orders / sizeof *orders && best > plan->load; o++) {
        for (size_t i = 0; i < n; i++) s.order[i] = &p->buf.at[i];
        qsort(s.order, n, sizeof *s.order, orders[o]);
        remember(p, &s, first_fit(s.order, n, s.placed));
        improve(p, &s, plan->load);
        if (s.need >= best) continue;
        best = s.need;
        memcpy(offset, s.offset, n * sizeof *offset);
    }
    s.need = best;
    s.offset = offset;
    plan->transient = s.need;
    for (size_t v = 0; v < g->value.n; v++)
        if (p->of[v] != UINT32_MAX) g->value.at[v].offset = s.offset[p->of[v]];
    for (size_t i = 0; i < n; i++)
        if (p->buf.at[i].value == INV_NONE) inv_nod(g, g->order.at[p->buf.at[i].from])->ws_offset = s.offset[i];
    g->arena_nbytes = plan->transient;
    return INV_OK;
}

static inv_status run(planner *p, inv_plan *plan, bool offsets)
{
    INV_TRY(last_reads(p));
    extend_over_views(p);
    INV_TRY(buffers(p));
    INV_TRY(measure(p, plan));
    return offsets ? place(p, plan) : INV_OK;
}

static inv_status plan_memory(inv_graph *g, inv_plan *plan, bool offsets)
{
    planner p = {.g = g};
    inv__arena_init(&p.scratch, g->ctx);
    inv_status s = run(&p, plan, offsets);
    inv__arena_fini(&p.scratch);
    return s;
}

inv_status inv_pass_liveness(inv_graph *g, inv_plan *plan) { return plan_memory(g, plan, false); }

inv_status inv_pass_memplan(inv_graph *g, inv_plan *plan) { return plan_memory(g, plan, true); }
