/* SPDX-License-Identifier: Apache-2.0
 * A plan under change. Time is a list of spots, steps and rematerialisations, with labels that grow along it, so that
 * two can be compared at once. Each value knows who gives and who reads it, in order; from when to when it is there
 * follows from that. A change marks the values whose list it alters; their lists are read anew, which may leave other
 * rematerialisations without readers or give them some; then the bytes of what is there longer or shorter are changed
 * between its old and its new end, and nowhere else. requires: inv_problem.  gives: what replay.c gives for the same
 * rematerialisations (test_draft.c holds both to each other). */
#include <string.h>

#include "passes/planner/plan_state.h"
#include "passes/planner/problem.h"

#define NONE UINT32_MAX

enum undo_kind { INSERTED, REMOVED, PICKED };
typedef struct undo_item {
    enum undo_kind kind;
    uint32_t what, before; /* a spot, and for REMOVED the one behind it; a choice and its edge */
} undo_item;
typedef INV_VEC(uint32_t) id_list;

typedef struct inv_draft_own {
    uint32_t *free, nfree, most; /* slots of spots */
    uint32_t *reader;            /* per choice: the step that reads it */
    int64_t *end;                /* per spot, while loading: bytes that end there */
    bool loading;
    INV_VEC(undo_item) undo;
    id_list fallen;         /* rematerialisations that nobody read at some time since the last commit */
    id_list dirty, touched; /* values whose readers may have changed; whose stays may have */
    id_list ends;           /* spots at which some stay ended or ends */
    id_list unused;         /* stays */
} inv_draft_own;

static void push(inv_draft *d, id_list *l, uint32_t x)
{
    if (!inv_vec_push(d->a, l, x)) d->failed = true;
}

static int64_t bytes_of(const inv_draft *d, uint32_t v)
{
    const inv_pb_value *value = &d->p->value[v];
    return d->activations && value->data ? 0 : (int64_t)value->nbytes;
}

/* The step before which it is rematerialised, or itself. */
static uint32_t step_of(const inv_draft *d, uint32_t spot) { return (uint32_t)((d->spot[spot].label - 1) >> 32); }

/* --- bytes --- */

static void set_hot(inv_draft *d, uint32_t at, bool on)
{
    inv_spot *s = &d->spot[at];
    if (on == (s->hot != NONE)) return;
    if (on) {
        s->hot = d->nhot;
        d->hot[d->nhot++] = at;
    } else {
        const uint32_t last = d->hot[--d->nhot];
        d->hot[s->hot] = last;
        d->spot[last].hot = s->hot;
        s->hot = NONE;
    }
}

static int64_t over(const inv_draft *d, int64_t live) { return live > d->budget ? live - d->budget : 0; }

static void raise(inv_draft *d, uint32_t at, int64_t by)
{
    inv_spot *s = &d->spot[at];
    const int64_t old = s->live;
    s->live += by;
    if (!s->counts || (old <= d->budget && s->live <= d->budget)) return;
    d->excess += over(d, s->live) - over(d, old);
    set_hot(d, at, s->live > d->budget);
}

static void let_count(inv_draft *d, uint32_t at, bool on)
{
    inv_spot *s = &d->spot[at];
    s->counts = on;
    d->excess += on ? over(d, s->live) : -over(d, s->live);
    set_hot(d, at, on && s->live > d->budget);
}

/* Bytes that are there from one spot to another, both included. While a plan is loaded, where they begin and end is
 * noted, for one pass over all. */
static void cover(inv_draft *d, uint32_t from, uint32_t to, int64_t by)
{
    uint32_t at = from;
    if (d->own->loading) {
        d->spot[from].across += by;
        d->own->end[to] += by;
        return;
    }
    for (uint32_t n = 1;; n++, at = d->spot[at].next) {
        raise(d, at, by);
        if (at == to) {
            d->work += n / 4.0;
            return;
        }
        d->spot[at].across += by;
    }
}

/* They last until `to` instead of `old`. */
static void move_end(inv_draft *d, uint32_t old, uint32_t to, int64_t by)
{
    const bool later = d->spot[to].label > d->spot[old].label;
    const uint32_t from = later ? old : to, upto = later ? to : old;
    if (!later) by = -by;
    d->spot[from].across += by;
    cover(d, d->spot[from].next, upto, by);
}

/* --- who reads what --- */

/* Where an access at that spot belongs: what a rematerialisation reads before what it gives. */
static uint32_t place_of(const inv_draft *d, const inv_draft_value *v, inv_access x)
{
    const uint64_t label = d->spot[x.spot].label + (x.target != NONE);
    uint32_t lo = 0, hi = (uint32_t)v->access.n;
    while (lo < hi) {
        const uint32_t mid = lo + (hi - lo) / 2;
        if (d->spot[v->access.at[mid].spot].label < label) lo = mid + 1;
        else hi = mid;
    }
    return lo;
}

static void mark_dirty(inv_draft *d, uint32_t v)
{
    inv_draft_value *value = &d->value[v];
    if (!value->touched) push(d, &d->own->touched, v);
    if (!value->dirty) push(d, &d->own->dirty, v);
    value->touched = value->dirty = true;
}

static void add_access(inv_draft *d, uint32_t v, inv_access x)
{
    inv_draft_value *value = &d->value[v];
    if (d->p->value[v].def == INV_NEVER) return;
    const uint32_t at = place_of(d, value, x);
    if (!inv_vec_push(d->a, &value->access, x)) {
        d->failed = true;
        return;
    }
    memmove(value->access.at + at + 1, value->access.at + at, (value->access.n - 1 - at) * sizeof x);
    value->access.at[at] = x;
    mark_dirty(d, v);
}

static void drop_access(inv_draft *d, uint32_t v, inv_access x)
{
    inv_draft_value *value = &d->value[v];
    for (size_t i = 0; i < value->access.n; i++) {
        if (value->access.at[i].spot != x.spot || value->access.at[i].target != x.target) continue;
        value->access.n--;
        memmove(value->access.at + i, value->access.at + i + 1, (value->access.n - i) * sizeof x);
        break;
    }
    mark_dirty(d, v);
}

/* A rematerialisation that is read costs; one that is not reads nothing either. */
static void flip(inv_draft *d, uint32_t f, bool on)
{
    const inv_pb_edge *e = &d->p->edge[d->spot[f].edge];
    const inv_pb_step *s = &d->p->step[step_of(d, f)];
    const int64_t own = (int64_t)((d->activations ? s->act_before : s->before) + e->scratch), sign = on ? 1 : -1;
    if (on) let_count(d, f, true);
    raise(d, f, sign * own);
    if (!on) let_count(d, f, false);
    if (e->side) cover(d, d->p->value[e->target[0]].def, f, sign * (int64_t)e->side);
    d->cost += on ? e->cost : -e->cost;
    for (uint32_t i = 0; i < e->nsource; i++) mark_dirty(d, e->source[i]);
    push(d, &d->own->ends, f);
    if (!on) push(d, &d->own->fallen, f);
}

static void set_want(inv_draft *d, uint32_t f, uint32_t target, bool on)
{
    inv_spot *s = &d->spot[f];
    const inv_pb_edge *e = &d->p->edge[s->edge];
    const uint32_t old = s->want;
    s->want = on ? old | 1u << target : old & ~(1u << target);
    if (s->want == old) return;
    if (e->inverse && !e->moves) {
        inv_draft_value *v = &d->value[e->target[target]];
        const double nbytes = (double)d->p->value[e->target[target]].nbytes;
        if (on && !v->inverted++) d->inverted += nbytes;
        if (!on && !--v->inverted) d->inverted -= nbytes;
    }
    if (!old != !s->want) flip(d, f, on);
}

static void read_anew(inv_draft *d, uint32_t v)
{
    const inv_draft_value *value = &d->value[v];
    bool read = false;
    for (size_t i = value->access.n; i-- > 0;) {
        const inv_access x = value->access.at[i];
        if (x.target == NONE) {
            read |= d->spot[x.spot].counts;
            continue;
        }
        if (x.spot >= d->p->nstep) set_want(d, x.spot, x.target, read);
        read = false;
    }
    d->work += (double)value->access.n / 4;
}

/* --- from when to when --- */

static uint32_t new_stay(inv_draft *d, uint32_t v, uint32_t from, uint32_t to)
{
    id_list *unused = &d->own->unused;
    const inv_stay x = {v, from, to, d->value[v].stay};
    uint32_t at = (uint32_t)d->stay.n;
    if (unused->n) d->stay.at[at = unused->at[--unused->n]] = x;
    else if (!inv_vec_push(d->a, &d->stay, x)) d->failed = true;
    if (!d->failed) d->value[v].stay = at;
    return at;
}

/* Among `old`, which it leaves; else a new one. */
static void stays(inv_draft *d, uint32_t v, uint32_t from, uint32_t to, uint32_t *old)
{
    const int64_t nbytes = bytes_of(d, v);
    for (uint32_t *at = old; *at != NONE; at = &d->stay.at[*at].next) {
        inv_stay *s = &d->stay.at[*at];
        if (s->from != from) continue;
        if (s->to != to) {
            if (nbytes) move_end(d, s->to, to, nbytes);
            push(d, &d->own->ends, s->to);
            push(d, &d->own->ends, to);
            s->to = to;
        }
        const uint32_t k = *at;
        *at = s->next;
        s->next = d->value[v].stay;
        d->value[v].stay = k;
        return;
    }
    if (nbytes) cover(d, from, to, nbytes);
    (void)new_stay(d, v, from, to);
    push(d, &d->own->ends, to);
}

/* The value's stays as its readers say. */
static void settle(inv_draft *d, uint32_t v)
{
    inv_draft_value *value = &d->value[v];
    const uint32_t def = d->p->value[v].def;
    uint32_t old = value->stay, last = NONE;
    bool kept = false;
    value->touched = false;
    value->stay = NONE;
    for (size_t i = value->access.n; i-- > 0;) {
        const inv_access x = value->access.at[i];
        if (x.target == NONE) {
            if (last == NONE && d->spot[x.spot].counts) last = x.spot;
            continue;
        }
        if (x.spot == def) kept = d->p->value[v].shunned && last != NONE && last >= d->p->forward;
        if (x.spot == def || last != NONE) stays(d, v, x.spot, last == NONE ? x.spot : last, &old);
        last = NONE;
    }
    d->kept += (uint32_t)kept - (uint32_t)value->kept;
    value->kept = kept;
    for (uint32_t next; old != NONE; old = next) {
        inv_stay *s = &d->stay.at[old];
        next = s->next;
        if (bytes_of(d, v)) cover(d, s->from, s->to, -bytes_of(d, v));
        push(d, &d->own->ends, s->to);
        s->value = NONE;
        push(d, &d->own->unused, old);
    }
}

static bool ends_at(const inv_draft *d, uint32_t v, uint32_t spot)
{
    for (uint32_t s = d->value[v].stay; s != NONE; s = d->stay.at[s].next)
        if (d->stay.at[s].to == spot) return true;
    return false;
}

/* What is written there takes over the bytes of the first value that may be taken and ends there. */
static void take_over(inv_draft *d, uint32_t at)
{
    inv_spot *s = &d->spot[at];
    const inv_pb_edge *e = at < d->p->nstep ? NULL : &d->p->edge[s->edge];
    const inv_pb_step *t = e ? NULL : &d->p->step[at];
    const uint32_t *list = e ? e->source : t->read, n = e ? e->nsource : t->nread;
    const uint32_t bits = !s->counts ? 0 : e ? e->overwrites : t->overwrites;
    uint32_t found = NONE;
    for (uint32_t i = 0; found == NONE && i < n && i < 32 && bits >> i; i++)
        if (bits >> i & 1 && ends_at(d, list[i], at)) found = list[i];
    if (found == s->taken) return;
    if (s->taken != NONE) raise(d, at, bytes_of(d, s->taken));
    if (found != NONE) raise(d, at, -bytes_of(d, found));
    s->taken = found;
}

/* Bytes from what begins and ends. */
static void add_up(inv_draft *d)
{
    int64_t sum = 0;
    for (uint32_t at = 0; at != NONE; at = d->spot[at].next) {
        inv_spot *s = &d->spot[at];
        s->live += sum += s->across;
        s->across = sum -= d->own->end[at];
        d->own->end[at] = 0;
    }
    d->own->loading = false;
}

static void settle_all(inv_draft *d)
{
    inv_draft_own *o = d->own;
    while (o->dirty.n && !d->failed) {
        const uint32_t v = o->dirty.at[--o->dirty.n];
        d->value[v].dirty = false;
        read_anew(d, v);
    }
    for (size_t i = 0; i < o->touched.n && !d->failed; i++) {
        settle(d, o->touched.at[i]);
        if (!inv_vec_push(d->a, &d->changed, o->touched.at[i])) d->failed = true;
    }
    if (o->loading) add_up(d);
    for (size_t i = 0; i < o->ends.n && !d->failed; i++) take_over(d, o->ends.at[i]);
    o->touched.n = o->ends.n = 0;
}

/* --- time --- */

/* The rematerialisations before a step get labels at equal distances. */
static void label_anew(inv_draft *d, uint32_t step)
{
    uint32_t n = 0;
    const uint64_t end = d->spot[step].label;
    for (uint32_t at = d->spot[step].prev; at >= d->p->nstep && at != NONE; at = d->spot[at].prev) n++;
    uint64_t label = end;
    for (uint32_t at = d->spot[step].prev; at >= d->p->nstep && at != NONE; at = d->spot[at].prev)
        d->spot[at].label = label -= ((uint64_t)1 << 32) / (n + 1);
}

static void link_spot(inv_draft *d, uint32_t f, uint32_t before)
{
    inv_spot *s = &d->spot[f], *next = &d->spot[before], *prev = &d->spot[next->prev];
    if (next->label - prev->label < 4) label_anew(d, step_of(d, before));
    s->label = prev->label + (next->label - prev->label) / 2;
    s->prev = next->prev;
    s->next = before;
    prev->next = next->prev = f;
    s->live = s->across = prev->across;
    s->want = 0;
    s->taken = s->hot = NONE;
    s->counts = false;
    s->place = d->nremat;
    d->remat[d->nremat++] = f;
    const inv_pb_edge *e = &d->p->edge[s->edge];
    for (uint32_t i = 0; i < e->nsource; i++) add_access(d, e->source[i], (inv_access){f, NONE});
    for (uint32_t i = 0; i < e->ntarget; i++) add_access(d, e->target[i], (inv_access){f, i});
    push(d, &d->own->fallen, f);
}

static void unlink_spot(inv_draft *d, uint32_t f)
{
    inv_spot *s = &d->spot[f];
    const inv_pb_edge *e = &d->p->edge[s->edge];
    for (uint32_t i = 0; i < e->ntarget; i++) {
        set_want(d, f, i, false);
        drop_access(d, e->target[i], (inv_access){f, i});
    }
    for (uint32_t i = 0; i < e->nsource; i++) drop_access(d, e->source[i], (inv_access){f, NONE});
    settle_all(d);
    d->spot[s->prev].next = s->next;
    d->spot[s->next].prev = s->prev;
    const uint32_t last = d->remat[--d->nremat];
    d->remat[s->place] = last;
    d->spot[last].place = s->place;
    s->place = NONE;
}

static void note(inv_draft *d, enum undo_kind kind, uint32_t what, uint32_t before)
{
    const undo_item x = {kind, what, before};
    if (!inv_vec_push(d->a, &d->own->undo, x)) d->failed = true;
}

uint32_t inv_draft_insert(inv_draft *d, uint32_t before, uint32_t edge)
{
    inv_draft_own *o = d->own;
    if (!o->nfree || d->failed) return NONE;
    const uint32_t f = o->free[--o->nfree];
    d->spot[f].edge = edge;
    d->spot[f].err = 0;
    link_spot(d, f, before);
    settle_all(d);
    note(d, INSERTED, f, 0);
    return f;
}

void inv_draft_remove(inv_draft *d, uint32_t remat)
{
    if (d->failed) return;
    unlink_spot(d, remat);
    note(d, REMOVED, remat, d->spot[remat].next);
}

/* The step that reads the choice reads other values. */
static void set_pick(inv_draft *d, uint32_t choice, uint32_t edge)
{
    const inv_access x = {d->own->reader[choice], NONE};
    const inv_pb_edge *old = &d->p->edge[d->pick[choice]], *new = &d->p->edge[edge];
    for (uint32_t i = 0; i < old->nsource; i++) drop_access(d, old->source[i], x);
    for (uint32_t i = 0; i < new->nsource; i++) add_access(d, new->source[i], x);
    d->pick[choice] = edge;
    settle_all(d);
}

void inv_draft_pick(inv_draft *d, uint32_t choice, uint32_t edge)
{
    if (d->failed) return;
    note(d, PICKED, choice, d->pick[choice]);
    set_pick(d, choice, edge);
}

void inv_draft_undo(inv_draft *d)
{
    inv_draft_own *o = d->own;
    while (o->undo.n && !d->failed) {
        const undo_item x = o->undo.at[--o->undo.n];
        if (x.kind == PICKED) {
            set_pick(d, x.what, x.before);
        } else if (x.kind == REMOVED) {
            link_spot(d, x.what, x.before);
            settle_all(d);
        } else {
            unlink_spot(d, x.what);
            o->free[o->nfree++] = x.what;
        }
    }
    o->fallen.n = d->changed.n = 0;
}

void inv_draft_commit(inv_draft *d)
{
    inv_draft_own *o = d->own;
    for (size_t i = 0; i < o->undo.n; i++)
        if (o->undo.at[i].kind == REMOVED) o->free[o->nfree++] = o->undo.at[i].what;
    o->undo.n = 0;
    for (size_t i = 0; i < o->fallen.n && !d->failed; i++) {
        const uint32_t f = o->fallen.at[i];
        if (d->spot[f].place == NONE || d->spot[f].counts) continue;
        unlink_spot(d, f);
        o->free[o->nfree++] = f;
    }
    o->fallen.n = d->changed.n = 0;
}

/* --- questions --- */

bool inv_draft_there(const inv_draft *d, uint32_t v, uint32_t spot)
{
    const uint64_t label = d->spot[spot].label;
    for (uint32_t s = d->value[v].stay; s != NONE; s = d->stay.at[s].next)
        if (d->spot[d->stay.at[s].from].label < label && label <= d->spot[d->stay.at[s].to].label) return true;
    return false;
}

uint32_t inv_draft_reader(const inv_draft *d, uint32_t v, uint32_t spot)
{
    const inv_draft_value *value = &d->value[v];
    for (size_t i = 0; i < value->access.n; i++)
        if (value->access.at[i].target == NONE && d->spot[value->access.at[i].spot].label > d->spot[spot].label)
            return value->access.at[i].spot;
    return NONE;
}

uint32_t inv_draft_access(const inv_draft *d, uint32_t v, uint32_t spot)
{
    return place_of(d, &d->value[v], (inv_access){spot, NONE});
}

uint32_t inv_draft_steps_since(const inv_draft *d, uint32_t v, uint32_t spot)
{
    const uint32_t at = inv_draft_access(d, v, spot);
    return at ? step_of(d, spot) - step_of(d, d->value[v].access.at[at - 1].spot) : 0;
}

/* --- from and to a list of rematerialisations --- */

void inv_draft_set_budget(inv_draft *d, int64_t budget)
{
    d->budget = budget;
    d->excess = 0;
    for (uint32_t at = 0; at != NONE; at = d->spot[at].next)
        if (d->spot[at].counts) let_count(d, at, true);
}

inv_status inv_draft_init(inv_draft *d, inv_arena *a, const inv_problem *p, bool activations, uint32_t most)
{
    *d = (inv_draft){.a = a, .p = p, .activations = activations, .nspot = p->nstep + most + 1};
    d->own = INV_ARENA_NEW(a, inv_draft_own, 1);
    d->pick = INV_ARENA_NEW(a, uint32_t, p->nvalue + 1);
    d->spot = INV_ARENA_NEW(a, inv_spot, d->nspot);
    d->value = INV_ARENA_NEW(a, inv_draft_value, p->nvalue + 1);
    d->remat = INV_ARENA_NEW(a, uint32_t, most + 1);
    d->hot = INV_ARENA_NEW(a, uint32_t, d->nspot);
    if (!d->own || !d->pick || !d->spot || !d->value || !d->remat || !d->hot) return INV_E_NOMEM;
    d->own->most = most;
    d->own->free = INV_ARENA_NEW(a, uint32_t, most + 1);
    d->own->reader = INV_ARENA_NEW(a, uint32_t, p->nvalue + 1);
    d->own->end = INV_ARENA_NEW(a, int64_t, d->nspot);
    return d->own->free && d->own->reader && d->own->end ? INV_OK : INV_E_NOMEM;
}

/* Steps alone, and what they read and give. */
static void clear(inv_draft *d)
{
    const inv_problem *p = d->p;
    inv_draft_own *o = d->own;
    d->budget = INT64_MAX / 4;
    o->loading = true;
    d->cost = d->inverted = 0;
    d->excess = 0;
    d->changed.n = 0;
    d->kept = d->nremat = d->nhot = o->nfree = 0;
    d->stay.n = o->undo.n = o->fallen.n = o->unused.n = 0;
    for (uint32_t v = 0; v < p->nvalue; v++) {
        inv_draft_value *value = &d->value[v];
        value->access.n = 0;
        value->stay = NONE;
        value->inverted = 0;
        value->kept = false;
    }
    for (uint32_t i = o->most; i-- > 0;) {
        d->spot[p->nstep + i].place = NONE;
        o->free[o->nfree++] = p->nstep + i;
    }
    for (uint32_t t = 0, v = 0; t < p->nstep; t++) {
        const inv_pb_step *s = &p->step[t];
        d->spot[t] = (inv_spot){.label = (uint64_t)(t + 1) << 32,
                                .prev = t ? t - 1 : NONE,
                                .next = t + 1 < p->nstep ? t + 1 : NONE,
                                .taken = NONE,
                                .place = NONE,
                                .hot = NONE,
                                .live = (int64_t)(d->activations ? s->act_at : s->at),
                                .counts = true};
        for (; v < p->nvalue && p->value[v].def == t; v++) add_access(d, v, (inv_access){t, 0});
        for (uint32_t i = 0; i < s->nread; i++) {
            o->reader[s->read[i]] = t;
            add_access(d, s->read[i], (inv_access){t, NONE});
        }
    }
}

inv_status inv_draft_load(inv_draft *d, const inv_remats *plan)
{
    const inv_problem *p = d->p;
    clear(d);
    for (size_t k = 0; k < plan->n && !d->failed; k++) {
        const inv_remat *f = &plan->at[k];
        const inv_pb_edge *e = &p->edge[f->edge];
        if (p->value[e->target[0]].def != INV_NEVER) {
            const uint32_t at = d->own->free[--d->own->nfree];
            d->spot[at].edge = f->edge;
            link_spot(d, at, f->step);
            continue;
        }
        d->pick[e->target[0]] = f->edge;
        for (uint32_t i = 0; i < e->nsource; i++) add_access(d, e->source[i], (inv_access){f->step, NONE});
    }
    for (uint32_t v = 0; v < p->nvalue; v++) mark_dirty(d, v);
    settle_all(d);
    inv_draft_commit(d);
    return d->failed ? INV_E_NOMEM : INV_OK;
}

inv_status inv_draft_list(const inv_draft *d, inv_arena *a, inv_remats *plan)
{
    const inv_problem *p = d->p;
    plan->n = 0;
    for (uint32_t at = p->forward ? p->forward - 1 : 0; at != NONE; at = d->spot[at].next) {
        const inv_pb_step *s = at < p->nstep ? &p->step[at] : NULL;
        const inv_remat f = {step_of(d, at), d->spot[at].edge, d->spot[at].want};
        if (!s && !inv_vec_push(a, plan, f)) return INV_E_NOMEM;
        for (uint32_t i = 0; s && at >= p->forward && i < s->nread; i++) {
            const inv_remat c = {at, d->pick[s->read[i]], 1};
            if (p->value[s->read[i]].def == INV_NEVER && !inv_vec_push(a, plan, c)) return INV_E_NOMEM;
        }
    }
    return INV_OK;
}
