/* SPDX-License-Identifier: Apache-2.0
 * Liveness and offsets. Values that share bytes are one buffer: views and parts of a value, and outputs that are
 * written in place of an input that nobody reads later. One pass over the order finds the last read of each value,
 * another makes the buffers; their live intervals are placed in the arena by place.c. Nothing is allocated in a step.
 * requires: order.
 * gives: buffer and offset of every transient value; plan->live and the peaks. */
#include "core/program/cost.h"
#include "passes/schedule/place.h"
#include "passes/schedule/schedule.h"

typedef inv_buffer buffer;

/* How an arena is planned: what may take more memory, and does without where it would. */
typedef struct manner {
    bool parts;  /* what is a run of another value's bytes is not copied, but keeps all of these live */
    size_t held; /* the bytes of the first so many offloaded values are not reused while they are being copied */
    bool beside; /* nodes may run beside others */
} manner;

/* One attempt at a plan of the arena. */
typedef struct memplanner {
    inv_graph *g;
    inv_arena scratch;
    manner how;
    bool apart;     /* backward writes nothing in place of a value of forward */
    uint32_t *last; /* per value: position of its last read */
    uint32_t *of;   /* per value: index of its buffer */
    size_t *at;     /* per value: offset in its buffer */
    uint32_t *busy; /* per position: up to which one the node there may still run, beside others */
    inv_buffers buf;
    inv_live *live; /* the graph's, which all attempts write over */
} memplanner;

static bool is_transient(const inv_value *v) { return v->role == INV_ROLE_NODE; }

static inv_status last_reads(memplanner *p)
{
    inv_graph *g = p->g;
    p->last = INV_ARENA_NEW(&p->scratch, uint32_t, g->value.n + 1);
    p->of = INV_ARENA_NEW(&p->scratch, uint32_t, g->value.n + 1);
    p->at = INV_ARENA_NEW(&p->scratch, size_t, g->value.n + 1);
    if (p->scratch.failed) return INV_E_NOMEM;
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

static bool offloads(const inv_graph *g, const inv_node *n)
{
    return n->op->flags & INV_OP_TRANSFER && inv_val(g, n->out[0])->mem == INV_MEM_HOST;
}

/* Keeps offloaded values live while their copy is on its way: whatever took their bytes would have to wait for it. */
static void hold_offloaded(memplanner *p)
{
    const inv_graph *g = p->g;
    size_t held = 0;
    for (size_t i = 0; i < g->forward_end && held < p->how.held; i++) {
        const inv_node *n = inv_nod(g, g->order.at[i]);
        size_t nbytes = 0;
        if (!offloads(g, n) || !inv_shape_nbytes(&inv_val(g, n->in[0])->shape, inv_val(g, n->in[0])->dtype, &nbytes))
            continue;
        const double takes = inv_offload_cost(NULL, (double)nbytes);
        double meanwhile = 0;
        uint32_t *last = &p->last[n->in[0]];
        held++;
        for (size_t k = i + 1; k < g->forward_end && meanwhile < takes; k++) {
            meanwhile += inv_node_flops(g, inv_nod(g, g->order.at[k]));
            if (k > *last) *last = (uint32_t)k;
        }
    }
}

/* The transient value whose bytes v is a view of, v itself if it is none; INV_NONE: it is not transient. */
static inv_id viewed(const inv_graph *g, inv_id v)
{
    while (v != INV_NONE && is_transient(inv_val(g, v))) {
        const inv_node *n = inv_nod(g, inv_val(g, v)->def);
        if (!(n->op->flags & INV_OP_VIEW) || !is_transient(inv_val(g, n->in[0]))) return v;
        v = n->in[0];
    }
    return INV_NONE;
}

/* What is to be kept at position k for a node that still runs: scratch memory, and operands that nobody reads later.
 * One that is read there for the last time counts, too, as the result might be written in its place. */
static size_t kept_for(const memplanner *p, const inv_node *n, size_t k)
{
    size_t sum = n->op->workspace ? inv_round64(n->op->workspace(p->g, n)) : 0;
    for (uint32_t i = 0; i < n->nin; i++) {
        const inv_id v = viewed(p->g, n->in[i]);
        if (v != INV_NONE && p->last[n->in[i]] <= k) sum += inv_round64(inv_value_nbytes(inv_val(p->g, v)));
    }
    return sum;
}

/* Lets products of backward run beside the nodes that follow, where there are bytes to spare: up to the load of the
 * plan without, which is in `plan`. */
static inv_status let_run_beside(memplanner *p, const inv_plan *plan)
{
    enum { MOST = 6 }; /* nodes: that take about as long, or what comes then waits anyway */
    const inv_graph *g = p->g;
    size_t *room = INV_ARENA_NEW(&p->scratch, size_t, g->order.n + 1);
    p->busy = INV_ARENA_NEW(&p->scratch, uint32_t, g->order.n + 1);
    if (!room || !p->busy) return INV_E_NOMEM;
    for (size_t i = 0; i < g->order.n; i++) {
        const size_t all = inv_live_total(&plan->live[i]);
        room[i] = plan->load > all ? plan->load - all : 0;
    }
    for (size_t i = g->forward_end; i < g->commit_begin; i++) {
        const inv_node *n = inv_nod(g, g->order.at[i]);
        if (!inv_may_run_beside(g, n)) continue;
        size_t end = i;
        while (end + 1 < g->commit_begin && end < i + MOST && kept_for(p, n, end + 1) <= room[end + 1]) end++;
        for (size_t k = i + 1; k <= end; k++) room[k] -= kept_for(p, n, k);
        p->busy[i] = (uint32_t)end;
        for (uint32_t k = 0; k < n->nin; k++)
            if (viewed(g, n->in[k]) != INV_NONE && p->last[n->in[k]] < end) p->last[n->in[k]] = (uint32_t)end;
    }
    return INV_OK;
}

/* Whether output k stands in the bytes of input 0, *offset bytes from their beginning. */
static bool stands_in_input(const memplanner *p, const inv_node *n, uint32_t k, size_t *offset)
{
    *offset = 0;
    if (n->nin == 0 || n->in[0] == INV_NONE || !is_transient(inv_val(p->g, n->in[0]))) return false;
    if (n->op->flags & INV_OP_VIEW) return k == 0;
    return p->how.parts && n->op->part && n->op->part(p->g, n, k, offset) && *offset % INV_PLACE_ALIGN == 0;
}

/* A buffer is live until the last read of any value in it. */
static void extend_over_views(memplanner *p)
{
    inv_graph *g = p->g;
    for (size_t i = g->order.n; i-- > 0;) {
        const inv_node *n = inv_nod(g, g->order.at[i]);
        for (uint32_t k = 0; k < n->nout; k++) {
            size_t offset;
            if (n->out[k] == INV_NONE || !stands_in_input(p, n, k, &offset)) continue;
            if (p->last[n->out[k]] > p->last[n->in[0]]) p->last[n->in[0]] = p->last[n->out[k]];
        }
    }
}

/* Whether another value that the node reads is in the same buffer, or one of the first `nout` results: the kernel would
 * read what it has written, or write twice. */
static bool aliased(const memplanner *p, const inv_node *n, uint32_t k, uint32_t nout)
{
    for (uint32_t j = 0; j < nout; j++)
        if (n->out[j] != INV_NONE && p->of[n->out[j]] == p->of[n->in[k]]) return true;
    for (uint32_t j = 0; j < n->nin; j++)
        if (n->in[j] != INV_NONE && n->in[j] != n->in[k] && p->of[n->in[j]] == p->of[n->in[k]]) return true;
    return false;
}

uint32_t inv_node_inplace(const inv_graph *g, const inv_node *n, uint32_t o)
{
    const inv_value *out = inv_val(g, n->out[o]);
    uint32_t bits = inv_node_overwrites(g, n, o);
    for (uint32_t k = 0; k < n->nin && k < 32; k++) {
        const inv_value *v = n->in[k] == INV_NONE ? NULL : inv_val(g, n->in[k]);
        const bool same = v && v->dtype == out->dtype && inv_value_nbytes(v) == inv_value_nbytes(out);
        /* a part of a gradient becomes the sum */
        if (!same || !(v->mem == out->mem || (v->mem == INV_MEM_ACT && out->mem == INV_MEM_GRAD))) bits &= ~(1u << k);
    }
    return bits;
}

/* The input in place of which the output may be written; INV_NONE: there is none. */
static inv_id overwritten_input(const memplanner *p, const inv_node *n, uint32_t o, uint32_t at, size_t nbytes)
{
    const uint32_t bits = inv_node_inplace(p->g, n, o);
    for (uint32_t k = 0; k < n->nin && k < 32; k++) {
        if (!(bits >> k & 1) || p->of[n->in[k]] == UINT32_MAX || aliased(p, n, k, o)) continue;
        const buffer *b = &p->buf.at[p->of[n->in[k]]];
        if (p->apart && at >= p->g->forward_end && b->from < p->g->forward_end) continue;
        if (b->to == at && b->nbytes == nbytes) return n->in[k];
    }
    return INV_NONE;
}

static inv_status buffer_output(memplanner *p, const inv_node *n, uint32_t k, uint32_t at)
{
    inv_graph *g = p->g;
    inv_id out = n->out[k];
    inv_value *v = inv_val(g, out);
    size_t nbytes = 0, offset = 0;
    if (!inv_shape_nbytes(&v->shape, v->dtype, &nbytes))
        return inv_node_fail(g, n, INV_E_SHAPE, "its output is too large to address");
    inv_id shared = INV_NONE;
    if (stands_in_input(p, n, k, &offset)) shared = n->in[0];
    else shared = overwritten_input(p, n, k, at, nbytes);
    if (shared != INV_NONE) {
        p->of[out] = p->of[shared];
        p->at[out] = p->at[shared] + offset;
        buffer *b = &p->buf.at[p->of[shared]];
        if (p->last[out] > b->to) b->to = p->last[out];
        if (v->mem != INV_MEM_ACT) b->mem = v->mem;
        v->buffer = inv_val(g, shared)->buffer;
        return INV_OK;
    }
    buffer b = {nbytes, at, p->last[out], v->mem, out};
    p->of[out] = (uint32_t)p->buf.n;
    v->buffer = out;
    return inv_vec_push(&p->scratch, &p->buf, b) ? INV_OK : INV_E_NOMEM;
}

static inv_status list_buffers(memplanner *p)
{
    inv_graph *g = p->g;
    for (size_t i = 0; i < g->order.n; i++) {
        const inv_node *n = inv_nod(g, g->order.at[i]);
        for (uint32_t k = 0; k < n->nout; k++)
            if (n->out[k] != INV_NONE) INV_TRY(buffer_output(p, n, k, (uint32_t)i));
        size_t ws = n->op->workspace ? n->op->workspace(g, n) : 0;
        inv_nod(g, g->order.at[i])->ws_nbytes = ws;
        if (!ws) continue;
        const uint32_t to = p->busy && p->busy[i] ? p->busy[i] : (uint32_t)i;
        buffer b = {ws, (uint32_t)i, to, INV_MEM_ACT, INV_NONE};
        if (!inv_vec_push(&p->scratch, &p->buf, b)) return INV_E_NOMEM;
    }
    return INV_OK;
}

/* --- peaks --- */

static inv_status measure_peaks(memplanner *p, inv_plan *plan)
{
    inv_graph *g = p->g;
    size_t n = g->order.n + 1;
    if (!p->live) p->live = INV_ARENA_NEW(&g->arena, inv_live, n);
    else memset(p->live, 0, n * sizeof *p->live);
    plan->live = p->live;
    int64_t *delta = INV_ARENA_NEW(&p->scratch, int64_t, (n + 1) * INV_MEM_CLASSES);
    if (!plan->live || !delta) return INV_E_NOMEM;
    for (size_t i = 0; i < p->buf.n; i++) {
        const buffer *b = &p->buf.at[i];
        size_t size = inv_round64(b->nbytes);
        if (b->value == INV_NONE) {
            for (uint32_t at = b->from; at <= b->to; at++) plan->live[at].workspace += size;
            continue;
        }
        delta[b->from * INV_MEM_CLASSES + b->mem] += (int64_t)size;
        if (b->to + 1u <= n) delta[(b->to + 1u) * INV_MEM_CLASSES + b->mem] -= (int64_t)size;
    }
    int64_t now[INV_MEM_CLASSES] = {0};
    plan->activation_peak = plan->workspace_peak = plan->load = 0;
    plan->peak_at = plan->activation_peak_at = 0;
    for (size_t i = 0; i < n; i++) {
        size_t all = plan->live[i].workspace;
        for (int c = 0; c < INV_MEM_CLASSES; c++) {
            now[c] += delta[i * INV_MEM_CLASSES + (size_t)c];
            plan->live[i].bytes[c] = (size_t)now[c];
            if (c != INV_MEM_HOST) all += (size_t)now[c];
        }
        size_t act = plan->live[i].bytes[INV_MEM_ACT] + plan->live[i].workspace;
        if (act > plan->activation_peak) {
            plan->activation_peak = act;
            plan->activation_peak_at = i;
        }
        if (plan->live[i].workspace > plan->workspace_peak) plan->workspace_peak = plan->live[i].workspace;
        if (all > plan->load) {
            plan->load = all;
            plan->peak_at = i;
        }
    }
    return INV_OK;
}

/* --- offsets --- */

/* Places the buffers of host memory, or all others. */
static inv_status place_arena(memplanner *p, bool host, unsigned effort, size_t enough, size_t *offset, size_t *nbytes)
{
    inv_box *box = INV_ARENA_NEW(&p->scratch, inv_box, p->buf.n + 1);
    size_t n = 0;
    if (!box) return INV_E_NOMEM;
    for (size_t i = 0; i < p->buf.n; i++) {
        const buffer *b = &p->buf.at[i];
        if ((b->mem == INV_MEM_HOST) != host) continue;
        /* where it was placed before, if it was */
        const size_t offset_before =
            b->value != INV_NONE ? inv_val(p->g, b->value)->offset : inv_nod(p->g, p->g->order.at[b->from])->ws_offset;
        box[n++] = (inv_box){inv_round64(b->nbytes), offset_before, b->from, b->to};
    }
    INV_TRY(inv_place(p->g->ctx, box, n, effort, enough, nbytes));
    for (size_t i = 0, k = 0; i < p->buf.n; i++)
        if ((p->buf.at[i].mem == INV_MEM_HOST) == host) offset[i] = box[k++].offset;
    return INV_OK;
}

/* `effort`: 0: they are not placed; else as `enough` in inv_place. */
static inv_status place_buffers(memplanner *p, inv_plan *plan, unsigned effort, size_t enough)
{
    inv_graph *g = p->g;
    if (!effort) return INV_OK;
    size_t *offset = INV_ARENA_NEW(&p->scratch, size_t, p->buf.n + 1);
    if (!offset) return INV_E_NOMEM;
    INV_TRY(place_arena(p, false, effort, enough, offset, &plan->transient));
    INV_TRY(place_arena(p, true, effort, 0, offset, &plan->host));
    for (size_t v = 0; v < g->value.n; v++)
        if (p->of[v] != UINT32_MAX) g->value.at[v].offset = offset[p->of[v]] + p->at[v];
    for (size_t i = 0; i < p->buf.n; i++)
        if (p->buf.at[i].value == INV_NONE) inv_nod(g, g->order.at[p->buf.at[i].from])->ws_offset = offset[i];
    g->arena_nbytes = plan->transient;
    g->host_nbytes = plan->host;
    return inv_widen_workspaces(g, &p->buf, offset);
}

/* Plans anew, in that manner. */
static inv_status plan_buffers(memplanner *p, inv_plan *plan, manner how)
{
    if (how.beside) INV_TRY(plan_buffers(p, plan, (manner){.parts = how.parts, .held = how.held}));
    inv_arena_fini(&p->scratch);
    *p = (memplanner){.g = p->g, .how = how, .live = p->live};
    inv_arena_init(&p->scratch, p->g->ctx);
    INV_TRY(last_reads(p));
    hold_offloaded(p);
    if (how.beside) INV_TRY(let_run_beside(p, plan));
    extend_over_views(p);
    INV_TRY(list_buffers(p));
    return measure_peaks(p, plan);
}

inv_status inv_buffers_apart(inv_graph *g, inv_arena *a, inv_buffers *out, uint32_t **of)
{
    memplanner p = {.g = g, .apart = true};
    inv_arena_init(&p.scratch, g->ctx);
    inv_status s = last_reads(&p);
    if (s == INV_OK) extend_over_views(&p);
    if (s == INV_OK) s = list_buffers(&p);
    memset(out, 0, sizeof *out);
    *of = INV_ARENA_NEW(a, uint32_t, g->value.n + 1);
    if (s == INV_OK && !*of) s = INV_E_NOMEM;
    if (s == INV_OK) memcpy(*of, p.of, g->value.n * sizeof **of);
    for (size_t i = 0; s == INV_OK && i < p.buf.n; i++)
        if (!inv_vec_push(a, out, p.buf.at[i])) s = INV_E_NOMEM;
    inv_arena_fini(&p.scratch);
    return s;
}

/* --- manners --- */

/* Plans in another manner, which becomes the one so far if it takes no more than that: plan->load bytes. */
static inv_status try_manner(memplanner *p, inv_plan *plan, manner *how, manner other)
{
    const size_t load = plan->load;
    INV_TRY(plan_buffers(p, plan, other));
    if (plan->load <= load) *how = other;
    else plan->load = load;
    return INV_OK;
}

static bool has_parts(const inv_graph *g)
{
    bool any = false;
    for (size_t i = 0; i < g->order.n && !any; i++) {
        const inv_node *n = inv_nod(g, g->order.at[i]);
        size_t offset;
        for (uint32_t k = 0; k < n->nout && n->op->part && !any; k++)
            any = n->out[k] != INV_NONE && n->op->part(g, n, k, &offset);
    }
    return any;
}

/* Chooses the manner, and plans in it. Of offloaded values the first are held first, since forward has memory to spare
 * before its end; nodes run beside others on a GPU. */
static inv_status plan_in_best(memplanner *p, inv_plan *plan, bool places, manner *how)
{
    const inv_graph *g = p->g;
    size_t held = 0;
    for (size_t i = 0; i < g->forward_end; i++) held += offloads(g, inv_nod(g, g->order.at[i]));
    *how = (manner){0};
    INV_TRY(plan_buffers(p, plan, *how));
    if (has_parts(g)) INV_TRY(try_manner(p, plan, how, (manner){.parts = true}));
    for (; held && !how->held; held /= 2)
        INV_TRY(try_manner(p, plan, how, (manner){.parts = how->parts, .held = held}));
    if (places && g->gpu && !g->early) INV_TRY(try_manner(p, plan, how, (manner){how->parts, how->held, true}));
    const bool in_it = p->how.parts == how->parts && p->how.held == how->held && p->how.beside == how->beside;
    return in_it ? INV_OK : plan_buffers(p, plan, *how);
}

static void forget_places(memplanner *p)
{
    for (size_t v = 0; v < p->g->value.n; v++)
        if (p->of[v] != UINT32_MAX) p->g->value.at[v].offset = 0;
    for (size_t i = 0; i < p->buf.n; i++)
        if (p->buf.at[i].value == INV_NONE) inv_nod(p->g, p->g->order.at[p->buf.at[i].from])->ws_offset = 0;
}

/* Buffers may fit together better where nothing is held and nothing runs beside; if they do not, it stays as it was. */
static inv_status plan_arena(memplanner *p, inv_plan *plan, unsigned effort, size_t enough)
{
    manner how;
    INV_TRY(plan_in_best(p, plan, effort > 0, &how));
    INV_TRY(place_buffers(p, plan, effort, enough));
    const size_t fair = plan->load + plan->load / 200, first = plan->transient;
    if (!effort || (!how.held && !how.beside) || first <= fair || first <= enough) return INV_OK;
    INV_TRY(plan_buffers(p, plan, (manner){.parts = how.parts}));
    INV_TRY(place_buffers(p, plan, effort, enough));
    if (plan->transient <= first) return INV_OK;
    forget_places(p);
    INV_TRY(plan_buffers(p, plan, how));
    return place_buffers(p, plan, effort, enough);
}

inv_status inv_pass_memplan(inv_graph *g, inv_plan *plan, unsigned effort, size_t enough)
{
    memplanner p = {.g = g};
    inv_arena_init(&p.scratch, g->ctx);
    inv_arena_tidy(&g->arena); /* behind what made the graph */
    inv_status s = inv_advance_updates(g);
    if (s == INV_OK) s = plan_arena(&p, plan, effort, enough);
    inv_arena_fini(&p.scratch);
    return s;
}
