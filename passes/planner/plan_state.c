/* SPDX-License-Identifier: Apache-2.0
 * The plan state of local search. Time is a linked list of events, with labels that grow along it so that two events
 * compare in O(1) (the order-maintenance problem; Dietz and Sleator 1987). Each value has the list of its accesses, who
 * gives and who reads it, in order of time; its live intervals follow from that list.
 * A change marks the values whose accesses it alters. Their lists are read anew from the end: this tells which
 * rematerialisations are read at all, and those that gain or lose their last reader mark their operands in turn. Then
 * the intervals of all marked values are made anew, and bytes are added to or taken from the events between an old end
 * and its new one. So a change costs at most as many visits as events lie there, besides the lists that are read
 * anew, and not as many as the plan has.
 * requires: inv_problem.
 * gives: bytes and cost of plans (tests/unit/test_plan_state.c holds them to a plain count). */
#include <string.h>

#include "passes/planner/plan_state.h"
#include "passes/planner/problem.h"

#define NONE UINT32_MAX

/* A change since the last commit: a rematerialisation was inserted, or removed from before the event `before`. */
typedef struct undo_item {
    uint32_t remat, before; /* INV_NO_EVENT: it was inserted */
} undo_item;
typedef INV_VEC(uint32_t) id_list;

typedef struct inv_plan_state_private {
    uint32_t *free, nfree, most; /* free events */
    INV_VEC(undo_item) undo;
    id_list unread;         /* rematerialisations that were not read at some time since the last commit */
    id_list dirty, touched; /* values whose accesses have to be read anew; whose intervals have to be made anew */
    id_list ends;           /* events at which an interval ends now, or ended before */
    id_list unused;         /* free intervals */
} inv_plan_state_private;

static void push_id(inv_plan_state *ps, id_list *l, uint32_t x) { (void)inv_vec_push(ps->a, l, x); }

static int64_t counted_bytes(const inv_plan_state *ps, uint32_t v)
{
    const inv_pb_value *value = &ps->p->value[v];
    return ps->activations && value->data ? 0 : (int64_t)value->nbytes;
}

/* --- accesses --- */

/* Returns the place of an access in the list. An event reads before it gives. */
static uint32_t access_position(const inv_plan_state *ps, const inv_plan_value *v, inv_plan_access x)
{
    const uint64_t label = ps->event[x.event].label + (x.target != NONE);
    uint32_t lo = 0, hi = (uint32_t)v->access.n;
    if (hi && ps->event[v->access.at[hi - 1].event].label < label) return hi; /* always, while a plan is loaded */
    while (lo < hi) {
        const uint32_t mid = lo + (hi - lo) / 2;
        if (ps->event[v->access.at[mid].event].label < label) lo = mid + 1;
        else hi = mid;
    }
    return lo;
}

static void mark_dirty(inv_plan_state *ps, uint32_t v)
{
    inv_plan_value *value = &ps->value[v];
    if (!value->touched) push_id(ps, &ps->priv->touched, v);
    if (!value->dirty) push_id(ps, &ps->priv->dirty, v);
    value->touched = value->dirty = true;
}

static void add_access(inv_plan_state *ps, uint32_t v, inv_plan_access x)
{
    inv_plan_value *value = &ps->value[v];
    const uint32_t at = access_position(ps, value, x);
    if (!inv_vec_push(ps->a, &value->access, x)) return;
    memmove(value->access.at + at + 1, value->access.at + at, (value->access.n - 1 - at) * sizeof x);
    value->access.at[at] = x;
    mark_dirty(ps, v);
}

static void drop_access(inv_plan_state *ps, uint32_t v, inv_plan_access x)
{
    inv_plan_value *value = &ps->value[v];
    for (size_t i = 0; i < value->access.n; i++) {
        if (value->access.at[i].event != x.event || value->access.at[i].target != x.target) continue;
        value->access.n--;
        memmove(value->access.at + i, value->access.at + i + 1, (value->access.n - i) * sizeof x);
        break;
    }
    mark_dirty(ps, v);
}

/* A rematerialisation that has found a reader begins to count, and one that has lost its last reader ceases to. Its
 * own reads count only as long as it does. */
static void set_remat_active(inv_plan_state *ps, uint32_t r, bool on)
{
    const inv_pb_edge *e = &ps->p->edge[ps->event[r].edge];
    const inv_pb_step *s = &ps->p->step[inv_plan_state_step(ps, r)];
    const int64_t extra = (int64_t)((ps->activations ? s->act_before : s->before) + e->scratch), sign = on ? 1 : -1;
    if (on) inv_plan_bytes_set_active(ps, r, true);
    inv_plan_bytes_add(ps, r, sign * extra);
    if (!on) inv_plan_bytes_set_active(ps, r, false);
    if (e->side) inv_plan_bytes_add_over(ps, ps->p->value[e->target[0]].def, r, sign * (int64_t)e->side);
    ps->cost += on ? e->cost : -e->cost;
    for (uint32_t i = 0; i < e->nsource; i++) mark_dirty(ps, e->source[i]);
    push_id(ps, &ps->priv->ends, r);
    if (!on) push_id(ps, &ps->priv->unread, r);
}

static void set_want(inv_plan_state *ps, uint32_t r, uint32_t target, bool on)
{
    inv_plan_event *ev = &ps->event[r];
    const inv_pb_edge *e = &ps->p->edge[ev->edge];
    const uint32_t old = ev->want;
    ev->want = on ? old | 1u << target : old & ~(1u << target);
    if (ev->want == old) return;
    if (e->inverse && !e->moves) {
        inv_plan_value *v = &ps->value[e->target[target]];
        const double nbytes = (double)ps->p->value[e->target[target]].nbytes;
        if (on && !v->inverted++) ps->inverted += nbytes;
        if (!on && !--v->inverted) ps->inverted -= nbytes;
    }
    if (!old != !ev->want) set_remat_active(ps, r, on);
}

/* Finds out which rematerialisations of v are read, from its last access to its first. */
static void update_wanted(inv_plan_state *ps, uint32_t v)
{
    const inv_plan_value *value = &ps->value[v];
    bool read = false;
    for (size_t i = value->access.n; i-- > 0;) {
        const inv_plan_access x = value->access.at[i];
        if (x.target == NONE) {
            read |= ps->event[x.event].active;
            continue;
        }
        if (x.event >= ps->p->nstep) set_want(ps, x.event, x.target, read);
        read = false;
    }
    ps->work += (double)value->access.n / 4;
}

/* --- live intervals --- */

static uint32_t new_interval(inv_plan_state *ps, uint32_t v, uint32_t from, uint32_t to)
{
    id_list *unused = &ps->priv->unused;
    const inv_plan_interval x = {v, from, to, ps->value[v].interval};
    uint32_t at = (uint32_t)ps->interval.n;
    if (unused->n) ps->interval.at[at = unused->at[--unused->n]] = x;
    else (void)inv_vec_push(ps->a, &ps->interval, x);
    if (!ps->a->failed) ps->value[v].interval = at;
    return at;
}

/* Makes an interval of v: takes one with the same beginning from the list `old` and moves its end, or a new one. */
static void set_interval(inv_plan_state *ps, uint32_t v, uint32_t from, uint32_t to, uint32_t *old)
{
    const int64_t nbytes = counted_bytes(ps, v);
    for (uint32_t *at = old; *at != NONE; at = &ps->interval.at[*at].next) {
        inv_plan_interval *s = &ps->interval.at[*at];
        if (s->from != from) continue;
        if (s->to != to) {
            if (nbytes) inv_plan_bytes_move_end(ps, s->to, to, nbytes);
            push_id(ps, &ps->priv->ends, s->to);
            push_id(ps, &ps->priv->ends, to);
            s->to = to;
        }
        const uint32_t k = *at;
        *at = s->next;
        s->next = ps->value[v].interval;
        ps->value[v].interval = k;
        return;
    }
    if (nbytes) inv_plan_bytes_add_over(ps, from, to, nbytes);
    (void)new_interval(ps, v, from, to);
    push_id(ps, &ps->priv->ends, to);
}

/* Makes the live intervals of v from its accesses, and drops the bytes of those that are gone. */
static void rebuild_intervals(inv_plan_state *ps, uint32_t v)
{
    inv_plan_value *value = &ps->value[v];
    const uint32_t def = ps->p->value[v].def;
    uint32_t old = value->interval, last = NONE;
    bool kept = false;
    value->touched = false;
    value->interval = NONE;
    for (size_t i = value->access.n; i-- > 0;) {
        const inv_plan_access x = value->access.at[i];
        if (x.target == NONE) {
            if (last == NONE && ps->event[x.event].active) last = x.event;
            continue;
        }
        if (x.event == def) kept = ps->p->value[v].no_store && last != NONE && last >= ps->p->forward;
        if (x.event == def || last != NONE) set_interval(ps, v, x.event, last == NONE ? x.event : last, &old);
        last = NONE;
    }
    ps->kept_no_store += (uint32_t)kept - (uint32_t)value->kept_no_store;
    value->kept_no_store = kept;
    for (uint32_t next; old != NONE; old = next) {
        inv_plan_interval *s = &ps->interval.at[old];
        next = s->next;
        if (counted_bytes(ps, v)) inv_plan_bytes_add_over(ps, s->from, s->to, -counted_bytes(ps, v));
        push_id(ps, &ps->priv->ends, s->to);
        s->value = NONE;
        push_id(ps, &ps->priv->unused, old);
    }
}

static bool interval_ends_at(const inv_plan_state *ps, uint32_t v, uint32_t event)
{
    for (uint32_t s = ps->value[v].interval; s != NONE; s = ps->interval.at[s].next)
        if (ps->interval.at[s].to == event) return true;
    return false;
}

/* Chooses the operand in place of which the event writes: the first that may be, and whose interval ends there. */
static void update_inplace(inv_plan_state *ps, uint32_t at)
{
    inv_plan_event *ev = &ps->event[at];
    uint32_t n;
    const uint32_t *list = inv_plan_state_operands(ps, at, &n);
    const uint32_t overwrites = at < ps->p->nstep ? ps->p->step[at].overwrites : ps->p->edge[ev->edge].overwrites,
                   bits = ev->active ? overwrites : 0;
    uint32_t found = NONE;
    for (uint32_t i = 0; found == NONE && i < n && i < 32 && bits >> i; i++)
        if (bits >> i & 1 && interval_ends_at(ps, list[i], at)) found = list[i];
    if (found == ev->inplace) return;
    if (ev->inplace != NONE) inv_plan_bytes_add(ps, at, counted_bytes(ps, ev->inplace));
    if (found != NONE) inv_plan_bytes_add(ps, at, -counted_bytes(ps, found));
    ev->inplace = found;
}

static void propagate_changes(inv_plan_state *ps)
{
    inv_plan_state_private *o = ps->priv;
    while (o->dirty.n && !ps->a->failed) {
        const uint32_t v = o->dirty.at[--o->dirty.n];
        ps->value[v].dirty = false;
        update_wanted(ps, v);
    }
    for (size_t i = 0; i < o->touched.n && !ps->a->failed; i++) {
        rebuild_intervals(ps, o->touched.at[i]);
        (void)inv_vec_push(ps->a, &ps->changed, o->touched.at[i]);
    }
    if (ps->loading) inv_plan_bytes_sum(ps);
    for (size_t i = 0; i < o->ends.n && !ps->a->failed; i++) update_inplace(ps, o->ends.at[i]);
    o->touched.n = o->ends.n = 0;
}

/* --- time --- */

/* Gives the rematerialisations before a step labels at equal distances, when there is no label left between two. */
static void relabel_step(inv_plan_state *ps, uint32_t step)
{
    uint32_t n = 0;
    const uint64_t end = ps->event[step].label;
    for (uint32_t at = ps->event[step].prev; at >= ps->p->nstep && at != NONE; at = ps->event[at].prev) n++;
    uint64_t label = end;
    for (uint32_t at = ps->event[step].prev; at >= ps->p->nstep && at != NONE; at = ps->event[at].prev)
        ps->event[at].label = label -= ((uint64_t)1 << 32) / (n + 1);
}

static void link_remat(inv_plan_state *ps, uint32_t r, uint32_t before)
{
    inv_plan_event *ev = &ps->event[r], *next = &ps->event[before], *prev = &ps->event[next->prev];
    if (next->label - prev->label < 4) relabel_step(ps, inv_plan_state_step(ps, before));
    ev->label = prev->label + (next->label - prev->label) / 2;
    ev->prev = next->prev;
    ev->next = before;
    prev->next = next->prev = r;
    inv_plan_bytes_begin(ps, r, ev->prev);
    ev->want = 0;
    ev->inplace = ev->over_budget = NONE;
    ev->active = false;
    ev->place = ps->nremat;
    ps->remat[ps->nremat++] = r;
    const inv_pb_edge *e = &ps->p->edge[ev->edge];
    for (uint32_t i = 0; i < e->nsource; i++) add_access(ps, e->source[i], (inv_plan_access){r, NONE});
    for (uint32_t i = 0; i < e->ntarget; i++) add_access(ps, e->target[i], (inv_plan_access){r, i});
    push_id(ps, &ps->priv->unread, r);
}

static void unlink_remat(inv_plan_state *ps, uint32_t r)
{
    inv_plan_event *ev = &ps->event[r];
    const inv_pb_edge *e = &ps->p->edge[ev->edge];
    for (uint32_t i = 0; i < e->ntarget; i++) {
        set_want(ps, r, i, false);
        drop_access(ps, e->target[i], (inv_plan_access){r, i});
    }
    for (uint32_t i = 0; i < e->nsource; i++) drop_access(ps, e->source[i], (inv_plan_access){r, NONE});
    propagate_changes(ps);
    ps->event[ev->prev].next = ev->next;
    ps->event[ev->next].prev = ev->prev;
    const uint32_t last = ps->remat[--ps->nremat];
    ps->remat[ev->place] = last;
    ps->event[last].place = ev->place;
    ev->place = NONE;
}

static void push_undo(inv_plan_state *ps, uint32_t remat, uint32_t before)
{
    const undo_item x = {remat, before};
    (void)inv_vec_push(ps->a, &ps->priv->undo, x);
}

uint32_t inv_plan_state_insert(inv_plan_state *ps, uint32_t before, uint32_t edge)
{
    inv_plan_state_private *o = ps->priv;
    if (!o->nfree || ps->a->failed) return NONE;
    const uint32_t r = o->free[--o->nfree];
    ps->event[r].edge = edge;
    ps->event[r].err = 0;
    link_remat(ps, r, before);
    propagate_changes(ps);
    push_undo(ps, r, NONE);
    return r;
}

void inv_plan_state_remove(inv_plan_state *ps, uint32_t remat)
{
    if (ps->a->failed) return;
    unlink_remat(ps, remat);
    push_undo(ps, remat, ps->event[remat].next);
}

bool inv_plan_state_hoist(inv_plan_state *ps, uint32_t remat, uint32_t i)
{
    const uint32_t edge = ps->event[remat].edge;
    uint32_t behind = NONE;
    for (uint32_t s = ps->value[ps->p->edge[edge].source[i]].interval; s != NONE; s = ps->interval.at[s].next) {
        const uint32_t to = ps->interval.at[s].to;
        if (to < ps->p->forward || ps->event[to].label >= ps->event[remat].label) continue;
        if (behind == NONE || ps->event[to].label > ps->event[behind].label) behind = to;
    }
    if (behind == NONE || inv_plan_state_insert(ps, ps->event[behind].next, edge) == NONE) return false;
    inv_plan_state_remove(ps, remat);
    return true;
}

void inv_plan_state_undo(inv_plan_state *ps)
{
    inv_plan_state_private *o = ps->priv;
    while (o->undo.n && !ps->a->failed) {
        const undo_item x = o->undo.at[--o->undo.n];
        if (x.before != NONE) {
            link_remat(ps, x.remat, x.before);
            propagate_changes(ps);
        } else {
            unlink_remat(ps, x.remat);
            o->free[o->nfree++] = x.remat;
        }
    }
    o->unread.n = ps->changed.n = 0;
}

void inv_plan_state_commit(inv_plan_state *ps)
{
    inv_plan_state_private *o = ps->priv;
    for (size_t i = 0; i < o->undo.n; i++)
        if (o->undo.at[i].before != NONE) o->free[o->nfree++] = o->undo.at[i].remat;
    o->undo.n = 0;
    for (size_t i = 0; i < o->unread.n && !ps->a->failed; i++) {
        const uint32_t r = o->unread.at[i];
        if (ps->event[r].place == NONE || ps->event[r].active) continue;
        unlink_remat(ps, r);
        o->free[o->nfree++] = r;
    }
    o->unread.n = ps->changed.n = 0;
}

/* --- queries --- */

bool inv_plan_state_is_live(const inv_plan_state *ps, uint32_t v, uint32_t event)
{
    const uint64_t label = ps->event[event].label;
    for (uint32_t s = ps->value[v].interval; s != NONE; s = ps->interval.at[s].next)
        if (ps->event[ps->interval.at[s].from].label < label && label <= ps->event[ps->interval.at[s].to].label)
            return true;
    return false;
}

uint32_t inv_plan_state_next_reader(const inv_plan_state *ps, uint32_t v, uint32_t event)
{
    const inv_plan_value *value = &ps->value[v];
    for (size_t i = 0; i < value->access.n; i++)
        if (value->access.at[i].target == NONE && ps->event[value->access.at[i].event].label > ps->event[event].label)
            return value->access.at[i].event;
    return NONE;
}

uint32_t inv_plan_state_access_index(const inv_plan_state *ps, uint32_t v, uint32_t event)
{
    return access_position(ps, &ps->value[v], (inv_plan_access){event, NONE});
}

uint32_t inv_plan_state_steps_since(const inv_plan_state *ps, uint32_t v, uint32_t event)
{
    const uint32_t at = inv_plan_state_access_index(ps, v, event);
    return at ? inv_plan_state_step(ps, event) - inv_plan_state_step(ps, ps->value[v].access.at[at - 1].event) : 0;
}

uint32_t inv_plan_state_kept_until(const inv_plan_state *ps, uint32_t v)
{
    for (uint32_t s = ps->value[v].interval; s != NONE; s = ps->interval.at[s].next) {
        const uint32_t step = inv_plan_state_step(ps, ps->interval.at[s].to);
        if (ps->interval.at[s].from == ps->p->value[v].def) return step >= ps->p->forward ? step : UINT32_MAX;
    }
    return UINT32_MAX;
}

/* --- from and to a list of rematerialisations --- */

inv_status inv_plan_state_init(inv_plan_state *ps, inv_arena *a, const inv_problem *p, bool activations, uint32_t most)
{
    *ps = (inv_plan_state){.a = a, .p = p, .activations = activations, .nevent = p->nstep + most + 1};
    ps->priv = INV_ARENA_NEW(a, inv_plan_state_private, 1);
    ps->event = INV_ARENA_NEW(a, inv_plan_event, ps->nevent);
    ps->value = INV_ARENA_NEW(a, inv_plan_value, p->nvalue + 1);
    ps->remat = INV_ARENA_NEW(a, uint32_t, most + 1);
    ps->over_budget = INV_ARENA_NEW(a, uint32_t, ps->nevent);
    if (a->failed) return INV_E_NOMEM;
    ps->priv->most = most;
    ps->priv->free = INV_ARENA_NEW(a, uint32_t, most + 1);
    ps->end = INV_ARENA_NEW(a, int64_t, ps->nevent);
    ps->block_bits = inv_plan_bytes_block_bits(p);
    ps->nblock = (p->nstep >> ps->block_bits) + 1;
    ps->block = INV_ARENA_NEW(a, inv_plan_block, ps->nblock);
    return a->failed ? INV_E_NOMEM : INV_OK;
}

/* Resets the state to the steps alone, without accesses. */
static void clear_plan_state(inv_plan_state *ps)
{
    const inv_problem *p = ps->p;
    inv_plan_state_private *o = ps->priv;
    ps->budget = INT64_MAX / 4;
    ps->loading = true;
    memset(ps->block, 0, ps->nblock * sizeof *ps->block);
    ps->cost = ps->inverted = 0;
    ps->excess = 0;
    ps->changed.n = 0;
    ps->kept_no_store = ps->nremat = ps->nover = o->nfree = 0;
    ps->interval.n = o->undo.n = o->unread.n = o->unused.n = 0;
    for (uint32_t v = 0; v < p->nvalue; v++) {
        inv_plan_value *value = &ps->value[v];
        value->access.n = 0;
        value->interval = NONE;
        value->inverted = 0;
        value->kept_no_store = false;
    }
    for (uint32_t i = o->most; i-- > 0;) {
        ps->event[p->nstep + i].place = NONE;
        o->free[o->nfree++] = p->nstep + i;
    }
    for (uint32_t t = 0; t < p->nstep; t++)
        ps->event[t] = (inv_plan_event){.label = (uint64_t)(t + 1) << 32,
                                        .prev = t ? t - 1 : NONE,
                                        .next = t + 1 < p->nstep ? t + 1 : NONE,
                                        .inplace = NONE,
                                        .place = NONE,
                                        .over_budget = NONE,
                                        .live = (int64_t)(ps->activations ? p->step[t].act_at : p->step[t].at),
                                        .active = true};
}

inv_status inv_plan_state_load(inv_plan_state *ps, const inv_remats *plan)
{
    const inv_problem *p = ps->p;
    clear_plan_state(ps);
    size_t k = 0;
    for (uint32_t t = 0, v = 0; t < p->nstep && !ps->a->failed; t++) {
        const inv_pb_step *s = &p->step[t];
        for (; k < plan->n && plan->at[k].step == t; k++) {
            const uint32_t at = ps->priv->free[--ps->priv->nfree];
            ps->event[at].edge = plan->at[k].edge;
            link_remat(ps, at, t);
        }
        for (; v < p->nvalue && p->value[v].def == t; v++) add_access(ps, v, (inv_plan_access){t, 0});
        for (uint32_t i = 0; i < s->nread; i++) add_access(ps, s->read[i], (inv_plan_access){t, NONE});
    }
    propagate_changes(ps);
    inv_plan_state_commit(ps);
    return ps->a->failed ? INV_E_NOMEM : INV_OK;
}

inv_status inv_plan_state_list(const inv_plan_state *ps, inv_arena *a, inv_remats *plan)
{
    const inv_problem *p = ps->p;
    plan->n = 0;
    for (uint32_t at = p->forward ? p->forward - 1 : 0; at != NONE; at = ps->event[at].next) {
        const inv_remat r = {inv_plan_state_step(ps, at), ps->event[at].edge, ps->event[at].want};
        if (at >= p->nstep && !inv_vec_push(a, plan, r)) return INV_E_NOMEM;
    }
    return INV_OK;
}

inv_status inv_plan_copy(inv_arena *a, const inv_remats *plan, inv_remats *to)
{
    to->n = 0;
    for (size_t k = 0; k < plan->n; k++)
        if (!inv_vec_push(a, to, plan->at[k])) return INV_E_NOMEM;
    return INV_OK;
}

inv_status inv_plan_prune(inv_arena *a, const inv_problem *p, inv_remats *plan)
{
    inv_plan_state ps;
    INV_TRY(inv_plan_state_init(&ps, a, p, false, (uint32_t)plan->n));
    INV_TRY(inv_plan_state_load(&ps, plan));
    return inv_plan_state_list(&ps, a, plan);
}
