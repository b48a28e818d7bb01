/* SPDX-License-Identifier: Apache-2.0
 * Joins element-wise nodes that read one another to one that works through pieces (ops/elementwise/fused.c): what only
 * they read is never written to memory, and leaves the plan; on a device it is one launch. A node takes in the groups
 * that give its operands, which then run where it stands. That must not cost memory: a group comes later only if what
 * it reads is there until then anyway, or is no more than what it leaves and nobody else reads, or if there is room for
 * it below the peak. Where a group stands right before the node, all that either reads is there already, and what is
 * written takes the place of what is read (column `overwrites`). Clones, inverses and gradients are nodes like others
 * here; nodes of different phases stay apart, and so do those of guards, which are counted by themselves.
 * requires: order, recovered.
 * gives: the order with such nodes in it; the nodes that they stand for are dead. */
#include <stdlib.h>

#include "core/graph/node.h"
#include "core/graph/text.h"
#include "passes/schedule/schedule.h"

/* Nodes that become one, in order. */
typedef struct group {
    uint32_t n, pos[INV_FUSED_STEPS];
} group;

typedef struct fuser {
    inv_graph *g;
    size_t *live; /* per position: bytes that are live there; NULL: only neighbours are joined */
    size_t most;  /* of these */
    inv_arena scratch;
    inv_ids old;     /* the order as it was */
    uint32_t *at;    /* per value: position of the node that gives it; UINT32_MAX: none does */
    uint32_t *first; /* per value: its readers are reader[first[v]] to reader[first[v + 1] - 1], positions */
    uint32_t *reader;
    group **of;        /* per position: the group that the node is in; NULL: it is not element-wise */
    uint32_t *written; /* per position: how many nodes before it change what persists */
} fuser;

static inv_node *node_at(const fuser *f, uint32_t pos) { return inv_nod(f->g, f->old.at[pos]); }
static bool is_view(const fuser *f, uint32_t pos) { return node_at(f, pos)->op->flags & INV_OP_VIEW; }
static const inv_value *result(const fuser *f, uint32_t pos) { return inv_val(f->g, node_at(f, pos)->out[0]); }

/* --- what may be joined --- */

/* Of operands of type t, but for codes. */
static bool has_pieces(const inv_graph *g, const inv_node *n, inv_dtype t)
{
    if (!n->op->piece || n->nout != 1 || n->out[0] == INV_NONE || n->nin == 0 || n->nin > 3) return false;
    if (n->phase == INV_COMMIT || (t != INV_F32 && t != INV_F64)) return false;
    if (g->gpu && n->op->piece->opcode == INV_NO_OPCODE) return false;
    for (uint32_t k = 0; k < n->nin; k++)
        if (n->in[k] == INV_NONE || (inv_val(g, n->in[k])->dtype != t && !(n->op->codes >> k & 1))) return false;
    return true;
}

static bool list_readers(fuser *f)
{
    const inv_graph *g = f->g;
    const uint32_t n = (uint32_t)f->old.n;
    f->at = INV_ARENA_NEW(&f->scratch, uint32_t, g->value.n + 1);
    f->first = INV_ARENA_NEW(&f->scratch, uint32_t, g->value.n + 2);
    f->written = INV_ARENA_NEW(&f->scratch, uint32_t, n + 1);
    f->of = INV_ARENA_NEW(&f->scratch, group *, n + 1);
    if (f->scratch.failed) return false;
    for (size_t v = 0; v <= g->value.n; v++) f->at[v] = UINT32_MAX;
    uint32_t reads = 0;
    for (uint32_t i = 0; i < n; i++) {
        const inv_node *x = node_at(f, i);
        f->written[i + 1] = f->written[i] + (x->op->writes != 0);
        for (uint32_t k = 0; k < x->nout; k++)
            if (x->out[k] != INV_NONE) f->at[x->out[k]] = i;
        for (uint32_t k = 0; k < x->nin; k++)
            if (x->in[k] != INV_NONE) f->first[x->in[k] + 2]++, reads++;
    }
    for (size_t v = 2; v < g->value.n + 2; v++) f->first[v] += f->first[v - 1];
    f->reader = INV_ARENA_NEW(&f->scratch, uint32_t, reads + 1);
    if (!f->reader) return false;
    for (uint32_t i = 0; i < n; i++) {
        const inv_node *x = node_at(f, i);
        for (uint32_t k = 0; k < x->nin; k++)
            if (x->in[k] != INV_NONE) f->reader[f->first[x->in[k] + 1]++] = i;
    }
    return true;
}

static bool in_group(const group *a, uint32_t pos)
{
    for (uint32_t i = 0; i < a->n; i++)
        if (a->pos[i] == pos) return true;
    return false;
}

/* The position of the last reader of v, or of a view of it; where the group stands, if it is read after the step. */
static uint32_t last_read(const fuser *f, inv_id v)
{
    uint32_t last = 0;
    if (inv_val(f->g, v)->keep) return UINT32_MAX;
    for (uint32_t i = f->first[v]; i < f->first[v + 1]; i++) {
        const uint32_t pos = f->reader[i];
        uint32_t until = is_view(f, pos) ? last_read(f, node_at(f, pos)->out[0]) : pos;
        if (until < pos) until = pos;
        if (until > last) last = until;
    }
    return last;
}

/* Whether v is needed by others than the two groups before `until`. Views are made where they are read. */
static bool needed_before(const fuser *f, inv_id v, uint32_t until, const group *a, const group *b)
{
    for (uint32_t i = f->first[v]; i < f->first[v + 1]; i++) {
        const uint32_t pos = f->reader[i];
        if (in_group(a, pos) || in_group(b, pos)) continue;
        if (is_view(f, pos)) {
            /* the view of a result comes behind the group, so no member may read it */
            if (needed_before(f, node_at(f, pos)->out[0], until + 1, &(group){0}, &(group){0})) return true;
        } else if (pos < until) {
            return true;
        }
    }
    return false;
}

/* Whether the result at `pos` is there for others than the two groups, as an output of the model is. */
static bool read_outside(const fuser *f, uint32_t pos, const group *a, const group *b)
{
    const inv_id v = node_at(f, pos)->out[0];
    bool outside = inv_val(f->g, v)->keep || inv_val(f->g, v)->is_output || f->first[v] == f->first[v + 1];
    for (uint32_t i = f->first[v]; i < f->first[v + 1] && !outside; i++)
        outside = !in_group(a, f->reader[i]) && !in_group(b, f->reader[i]);
    return outside;
}

/* Whether nothing runs between the group `a` and the last node of `b` but nodes of the two. */
static bool adjacent(const fuser *f, const group *a, const group *b)
{
    for (uint32_t pos = a->pos[a->n - 1] + 1; pos < b->pos[b->n - 1]; pos++)
        if (!in_group(b, pos) && !is_view(f, pos)) return false;
    return true;
}

/* Whether `a` may run as late as `b` does. What it reads is there for longer then, `more` bytes. That is no more than
 * what it leaves and nobody else reads, or there is room for it all the time: less than the plan's most bytes are live.
 * That room is taken. */
static bool may_wait(const fuser *f, const group *a, const group *b)
{
    const uint32_t from = a->pos[a->n - 1], until = b->pos[b->n - 1];
    size_t more = 0, less = 0;
    bool leaves = false;
    for (uint32_t i = 0; i < a->n; i++) {
        const inv_node *n = node_at(f, a->pos[i]);
        if (read_outside(f, a->pos[i], a, a)) less += inv_round64(inv_value_nbytes(result(f, a->pos[i])));
        leaves = leaves || read_outside(f, a->pos[i], a, b);
        for (uint32_t k = 0; k < n->nin; k++) {
            const inv_value *v = inv_val(f->g, n->in[k]);
            if (v->role == INV_ROLE_NODE && !in_group(a, f->at[n->in[k]]) && last_read(f, n->in[k]) < until)
                more += inv_round64(inv_value_nbytes(v));
        }
    }
    if (more == 0 || (!leaves && more <= less)) return true;
    for (uint32_t pos = from; pos <= until; pos++)
        if (f->live[pos] + more > f->most) return false;
    for (uint32_t pos = from; pos <= until; pos++) f->live[pos] += more;
    return true;
}

/* The nodes of two groups, in order. */
static group both_of(const group *a, const group *b)
{
    group both = {0};
    for (uint32_t i = 0, k = 0; i < a->n || k < b->n;)
        both.pos[both.n++] = k == b->n || (i < a->n && a->pos[i] < b->pos[k]) ? a->pos[i++] : b->pos[k++];
    return both;
}

/* Whether a joint node takes so many operands, and on a device so many values at once. */
static bool has_room(const fuser *f, const group *a)
{
    inv_id seen[INV_FUSED_IN];
    uint32_t n = 0;
    uint8_t place[INV_FUSED_STEPS];
    inv_fused steps = {.nstep = a->n};
    for (uint32_t i = 0; i < a->n; i++) {
        const inv_node *x = node_at(f, a->pos[i]);
        steps.step[i].nin = x->nin;
        for (uint32_t k = 0; k < x->nin; k++) {
            const uint32_t from = f->at[x->in[k]];
            uint32_t v = 0;
            if (from != UINT32_MAX && in_group(a, from)) {
                while (a->pos[v] != from) v++;
                v += INV_FUSED_IN;
            } else {
                while (v < n && seen[v] != x->in[k]) v++;
                if (v == INV_FUSED_IN) return false;
                if (v == n) seen[n++] = x->in[k];
            }
            steps.step[i].in[k] = (uint8_t)v;
        }
    }
    return !f->g->gpu || inv_fused_places(&steps, n, place) <= INV_FUSED_PLACES;
}

/* Whether nothing else keeps nodes of the two positions apart: phases, guards, and what is written between them. */
static bool run_alike(const fuser *f, uint32_t from, uint32_t to)
{
    const inv_node *x = node_at(f, from), *y = node_at(f, to);
    return x->phase == y->phase && x->guards == y->guards && f->written[to] == f->written[from];
}

static bool may_run_later(const fuser *f, const group *a, const group *b)
{
    return adjacent(f, a, b) || (f->live && may_wait(f, a, b));
}

static bool may_join(const fuser *f, const group *a, const group *b)
{
    const uint32_t from = a->pos[a->n - 1], to = b->pos[b->n - 1];
    const inv_value *xv = result(f, from), *yv = result(f, to);
    if (a == b || a->n + b->n > INV_FUSED_STEPS || !run_alike(f, a->pos[0], to)) return false;
    if (xv->dtype != yv->dtype || !inv_shape_equal(&xv->shape, &yv->shape)) return false;
    const group both = both_of(a, b);
    if (!has_room(f, &both)) return false;
    for (uint32_t i = 0; i < a->n; i++)
        if (needed_before(f, node_at(f, a->pos[i])->out[0], to, a, b)) return false;
    return may_run_later(f, a, b);
}

/* The group `a` becomes part of `b`; both are in order. */
static void join(fuser *f, const group *a, group *b)
{
    *b = both_of(a, b);
    for (uint32_t i = 0; i < b->n; i++) f->of[b->pos[i]] = b;
}

/* The node at `pos` and, if it reads bits, that which gives them: nobody else may read these. */
static bool begin_group(const fuser *f, uint32_t pos, group *out)
{
    const inv_node *n = node_at(f, pos);
    *out = (group){1, {pos}};
    if (!n->op->piece || n->nout != 1 || n->out[0] == INV_NONE) return false;
    const inv_value *y = result(f, pos);
    if (!has_pieces(f->g, n, y->dtype)) return false;
    for (uint32_t k = 0; k < n->nin; k++) {
        if (!(n->op->codes >> k & 1)) continue;
        const uint32_t from = f->at[n->in[k]];
        if (from == UINT32_MAX) return false;
        const inv_node *c = node_at(f, from);
        const group giver = {1, {from}};
        inv_shape s = inv_val(f->g, c->in[0])->shape;
        if (!(c->op->flags & INV_OP_COMPARES) || !has_pieces(f->g, c, y->dtype)) return false;
        if (!run_alike(f, from, pos) || read_outside(f, from, &giver, out)) return false;
        for (uint32_t i = 1; i < c->nin; i++) {
            const inv_shape so_far = s;
            if (!inv_shape_broadcast(&so_far, &inv_val(f->g, c->in[i])->shape, &s)) return false;
        }
        if (!inv_shape_equal(&s, &y->shape) || inv_attr_int(c, "axis", 0) != inv_attr_int(n, "axis", 0)) return false;
        if (!may_run_later(f, &giver, out)) return false;
        *out = (group){2, {from, pos}};
    }
    return true;
}

static bool find_groups(fuser *f)
{
    for (uint32_t pos = 0; pos < f->old.n; pos++) {
        group begun;
        if (!begin_group(f, pos, &begun)) continue;
        group *mine = INV_ARENA_NEW(&f->scratch, group, 1);
        if (!mine) return false;
        *mine = begun;
        for (uint32_t i = 0; i < begun.n; i++) f->of[begun.pos[i]] = mine;
        for (uint32_t i = begun.n; i-- > 0;) {
            const inv_node *n = node_at(f, begun.pos[i]);
            for (uint32_t k = n->nin; k-- > 0;) {
                const uint32_t from = f->at[n->in[k]];
                if (from != UINT32_MAX && f->of[from] && may_join(f, f->of[from], mine)) join(f, f->of[from], mine);
            }
        }
    }
    return true;
}

/* --- the new nodes --- */

/* A group as a node under way. */
typedef struct making {
    const group *of;
    inv_id in[INV_FUSED_IN], out[INV_FUSED_STEPS];
    uint32_t nin, nout;
    inv_str steps;
} making;

/* Operand v in words. */
static void say_operand(fuser *f, making *m, inv_id v)
{
    const uint32_t from = f->at[v];
    if (from != UINT32_MAX && in_group(m->of, from)) {
        for (uint32_t k = 0; k < m->nout; k++)
            if (m->out[k] == v) {
                inv_str_add(&m->steps, "y%u", (unsigned)k);
                return;
            }
        for (uint32_t i = 0; i < m->of->n; i++)
            if (m->of->pos[i] == from) inv_str_add(&m->steps, "t%u", (unsigned)i);
        return;
    }
    uint32_t k = 0;
    while (k < m->nin && m->in[k] != v) k++;
    if (k == m->nin) m->in[m->nin++] = v;
    inv_str_add(&m->steps, "x%u", (unsigned)k);
}

static void say_step(fuser *f, making *m, uint32_t i)
{
    const inv_node *n = node_at(f, m->of->pos[i]);
    const bool out = read_outside(f, m->of->pos[i], m->of, m->of);
    inv_str_add(&m->steps, "%s%s%u = ", i ? "  " : "", out ? "y" : "t", (unsigned)(out ? m->nout : i));
    inv_print_op(&m->steps, f->g, n);
    for (uint32_t k = 0; k < n->nin; k++) {
        inv_str_add(&m->steps, "%s", k ? ", " : "(");
        say_operand(f, m, n->in[k]);
    }
    inv_str_add(&m->steps, ")");
    if (out) m->out[m->nout++] = n->out[0];
}

/* Where the nodes come from in the model, each once. */
static inv_status join_origins(fuser *f, const group *a, inv_node *n)
{
    uint32_t most = 0;
    for (uint32_t i = 0; i < a->n; i++) most += node_at(f, a->pos[i])->norigin;
    const char **list = INV_ARENA_NEW(&f->g->arena, const char *, most + 1);
    if (!list) return INV_E_NOMEM;
    n->norigin = 0;
    for (uint32_t i = a->n; i-- > 0;) { /* the last one's first: it is called by that */
        const inv_node *x = node_at(f, a->pos[i]);
        for (uint32_t k = 0; k < x->norigin; k++) {
            bool known = false;
            for (uint32_t j = 0; j < n->norigin && !known; j++) known = strcmp(list[j], x->origin[k]) == 0;
            if (!known) list[n->norigin++] = x->origin[k];
        }
    }
    n->origin = list;
    return INV_OK;
}

static inv_status make_node(fuser *f, const group *a, inv_id *made)
{
    inv_graph *g = f->g;
    making m = {.of = a};
    const uint32_t last = a->pos[a->n - 1];
    const inv_shape shape = result(f, last)->shape;
    inv_str_init(&m.steps, g->ctx);
    for (uint32_t i = 0; i < a->n; i++) say_step(f, &m, i);
    const inv_attr attr[] = {inv_attr_of_ints("shape", (size_t)shape.rank, shape.dim),
                             inv_attr_of_string("steps", m.steps.s ? m.steps.s : "")};
    for (uint32_t k = 0; k < m.nout; k++) inv_val(g, m.out[k])->def = INV_NONE;
    *made = m.steps.failed ? INV_NONE
                           : inv_graph_node(g, "ai.invonnx.ir", "Fused", NULL, m.nin, m.in, m.nout, m.out, 2, attr);
    inv_str_fini(&m.steps);
    if (*made == INV_NONE) return g->failed ? g->failed : INV_E_NOMEM;
    inv_node *n = inv_nod(g, *made);
    n->phase = node_at(f, last)->phase;
    n->guards = node_at(f, last)->guards;
    n->origin_type = node_at(f, last)->origin_type;
    INV_TRY(join_origins(f, a, n));
    return inv_node_infer(g, *made);
}

/* --- the new order --- */

static bool emit_node(fuser *f, inv_id id, bool *emitted)
{
    const inv_node *n = inv_nod(f->g, id);
    for (uint32_t k = 0; k < n->nout; k++)
        if (n->out[k] != INV_NONE) emitted[n->out[k]] = true;
    return inv_vec_push(&f->g->arena, &f->g->order, id);
}

/* A view of what a group gives later waits for that. */
static bool must_wait(const fuser *f, uint32_t pos, const bool *emitted)
{
    const inv_node *n = node_at(f, pos);
    return is_view(f, pos) && n->in[0] != INV_NONE && f->at[n->in[0]] != UINT32_MAX && !emitted[n->in[0]];
}

static inv_status rebuild_order(fuser *f)
{
    inv_graph *g = f->g;
    const size_t forward_end = g->forward_end, commit_begin = g->commit_begin;
    bool *emitted = INV_ARENA_NEW(&f->scratch, bool, g->value.n + 1);
    inv_ids waiting = {0};
    if (!emitted) return INV_E_NOMEM;
    memset(&g->order, 0, sizeof g->order);
    for (uint32_t pos = 0; pos < f->old.n; pos++) {
        const group *a = f->of[pos];
        inv_id id = f->old.at[pos];
        bool ok = true;
        if (pos == forward_end) g->forward_end = g->order.n;
        if (pos == commit_begin) g->commit_begin = g->order.n;
        if (a && a->n > 1 && a->pos[a->n - 1] != pos) continue;
        if (must_wait(f, pos, emitted)) {
            if (!inv_vec_push(&f->scratch, &waiting, (inv_id)pos)) return INV_E_NOMEM;
            continue;
        }
        if (a && a->n > 1) INV_TRY(make_node(f, a, &id));
        ok = emit_node(f, id, emitted);
        for (size_t i = 0; i < waiting.n && ok; i++) {
            if (waiting.at[i] == INV_NONE || must_wait(f, waiting.at[i], emitted)) continue;
            ok = emit_node(f, f->old.at[waiting.at[i]], emitted);
            waiting.at[i] = INV_NONE;
        }
        if (!ok) return INV_E_NOMEM;
    }
    if (forward_end >= f->old.n) g->forward_end = g->order.n;
    if (commit_begin >= f->old.n) g->commit_begin = g->order.n;
    return INV_OK;
}

static bool note_live(fuser *f, const inv_plan *plan)
{
    if (!plan) return true;
    f->most = plan->load;
    f->live = INV_ARENA_NEW(&f->scratch, size_t, f->old.n + 1);
    for (size_t i = 0; f->live && i < f->old.n; i++) f->live[i] = inv_live_total(&plan->live[i]);
    return f->live != NULL;
}

inv_status inv_pass_fuse(inv_graph *g, const inv_plan *plan, size_t *groups)
{
    fuser f = {.g = g, .old = g->order};
    *groups = 0;
    inv_arena_init(&f.scratch, g->ctx);
    inv_status s = note_live(&f, plan) && list_readers(&f) && find_groups(&f) ? INV_OK : INV_E_NOMEM;
    for (uint32_t pos = 0; s == INV_OK && pos < f.old.n; pos++)
        *groups += f.of[pos] && f.of[pos]->n > 1 && f.of[pos]->pos[f.of[pos]->n - 1] == pos;
    if (s == INV_OK && *groups) s = rebuild_order(&f);
    inv_arena_fini(&f.scratch);
    return s;
}

/* --- within the bytes of a plan --- */

/* A plan with the places of its buffers, to go back to: all that fusing and planning the arena change. */
typedef struct placed {
    inv_plan plan;
    inv_ids order;
    size_t forward_end, commit_begin, nvalue, nnode;
    struct value_place {
        inv_id def, buffer;
        size_t offset;
    } * value;
    struct node_place {
        size_t ws_offset, ws_nbytes;
    } * node;
} placed;

static bool note_placed(const inv_plan *plan, inv_arena *a, placed *out)
{
    const inv_graph *g = plan->g;
    *out = (placed){*plan, g->order, g->forward_end, g->commit_begin, g->value.n, g->node.n, NULL, NULL};
    out->value = INV_ARENA_NEW(a, struct value_place, g->value.n + 1);
    out->node = INV_ARENA_NEW(a, struct node_place, g->node.n + 1);
    if (!out->value || !out->node) return false;
    for (size_t i = 0; i < g->value.n; i++) {
        const inv_value *v = &g->value.at[i];
        out->value[i] = (struct value_place){v->def, v->buffer, v->offset};
    }
    for (size_t i = 0; i < g->node.n; i++)
        out->node[i] = (struct node_place){g->node.at[i].ws_offset, g->node.at[i].ws_nbytes};
    return true;
}

static void place_again(const placed *as, inv_plan *plan)
{
    inv_graph *g = plan->g;
    *plan = as->plan;
    g->order = as->order;
    g->forward_end = as->forward_end;
    g->commit_begin = as->commit_begin;
    g->arena_nbytes = plan->transient;
    g->host_nbytes = plan->host;
    for (size_t i = 0; i < as->nvalue; i++) {
        inv_value *v = &g->value.at[i];
        v->def = as->value[i].def;
        v->buffer = as->value[i].buffer;
        v->offset = as->value[i].offset;
    }
    for (size_t i = 0; i < as->nnode; i++) {
        g->node.at[i].ws_offset = as->node[i].ws_offset;
        g->node.at[i].ws_nbytes = as->node[i].ws_nbytes;
    }
}

/* What is reported, too: of a plan with bytes between its buffers more could be alive in as large an arena. */
static bool no_more_lives(const inv_plan *plan, const inv_plan *than)
{
    return plan->load <= than->load && plan->activation_peak <= than->activation_peak;
}

/* How nodes are joined: also such as are not neighbours, neighbours only, or not at all. */
typedef enum joining { FAR, NEAR, APART, JOININGS } joining;

/* Joins nodes like that, and places the buffers. *able: false if nothing comes of it, or if more is alive then. */
static inv_status join_nodes(inv_plan *plan, const placed *before, joining how, const inv_fit *fit, bool *able)
{
    size_t groups;
    *able = true;
    if (how != APART) {
        INV_TRY(inv_pass_fuse(plan->g, how == FAR ? plan : NULL, &groups));
        *able = groups > 0;
        if (*able) INV_TRY(inv_pass_memplan(plan->g, plan, 0, 0));
        *able = *able && no_more_lives(plan, &before->plan);
    }
    return *able ? inv_pass_memplan(plan->g, plan, fit->effort, fit->measured ? fit->enough : 0) : INV_OK;
}

/* Takes the first way to join nodes that needs no more bytes than are enough, or else the one that needs the fewest. Of
 * a plan that has offsets already these are enough, and they stay if no way needs as few. */
static inv_status fuse_within(inv_plan *plan, const inv_fit *fit, inv_arena *a, size_t *nbytes)
{
    placed before;
    const size_t had = plan->transient, enough = had ? had : fit->enough;
    joining best = JOININGS;
    *nbytes = had ? had : SIZE_MAX;
    if (!note_placed(plan, a, &before)) return INV_E_NOMEM;
    for (joining how = getenv("INVONNX_NO_FUSE") ? APART : FAR; how < JOININGS; how++) {
        bool able;
        INV_TRY(join_nodes(plan, &before, how, fit, &able));
        const size_t takes = fit->effort ? plan->transient : plan->load;
        if (able && (takes <= enough || takes < *nbytes)) *nbytes = takes, best = how;
        if (able && takes <= enough && !fit->measured) return INV_OK;
        place_again(&before, plan);
        if (able && takes <= enough) return INV_OK;
    }
    bool able;
    return best < JOININGS && !fit->measured ? join_nodes(plan, &before, best, fit, &able) : INV_OK;
}

inv_status inv_fuse_plan(inv_plan *plan, const inv_fit *fit, size_t *nbytes)
{
    inv_arena scratch;
    inv_arena_init(&scratch, plan->g->ctx);
    const inv_status st = fuse_within(plan, fit, &scratch, nbytes);
    inv_arena_fini(&scratch);
    return st;
}
