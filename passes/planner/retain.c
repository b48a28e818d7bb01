/* SPDX-License-Identifier: Apache-2.0
 * Retains values instead of rematerialising them, in what a plan leaves of its budget. A rematerialised live interval
 * is merged with the one before it, if the bytes allow the value to be kept over the gap; what was only computed for
 * the rematerialisation goes with it. Those that save most cost per byte come first, of equal ones the shortest gaps.
 * A change is made on trial: it is written to a journal, and undone if the peak over its events exceeds the budget. A
 * segment tree of bytes over events (add to a range, ask for the most in a range, both in O(log n)) tells the peak.
 * Some rounds are made, since one change may make room for another.
 * requires: inv_problem, a plan.
 * gives: a plan of less cost or the same one; its peak is more than the budget only at events where it was before. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "passes/planner/problem.h"

#define NONE UINT32_MAX
enum { ROUNDS = 4 };

/* Segment tree of bytes over events; node 1 is the root. */
typedef struct peak_tree {
    int64_t *most, *lazy; /* most: in the node's range; lazy: added to all of the range, not handed down */
    uint32_t n;
} peak_tree;

typedef enum change_kind { BYTES, TO, NUSE, INPLACE, DROPPED, WANT, MERGED, CHILD } change_kind;
/* A field that a change has overwritten, and its old content, so that the change can be undone. */
typedef struct journal_entry {
    uint8_t kind;
    uint32_t at, old, hi;
    int64_t delta;
} journal_entry;

/* A list entry: this event reads the interval. */
typedef struct use_link {
    uint32_t event, next;
} use_link;

/* The ties of an interval of the replay to others, and to its readers. */
typedef struct interval_links {
    uint32_t prev;        /* the value's interval before this one */
    uint32_t uses;        /* its readers, a list in retainer.link */
    uint32_t merged_into; /* the interval that it was merged into */
    uint32_t child, next; /* the first of those merged into it; the next one merged into the same */
} interval_links;

/* An interval that may be merged with the one before it. */
typedef struct candidate {
    uint32_t interval, length; /* length: of the gap, in events */
    double worth;              /* cost saved per byte */
} candidate;

/* The plan as a replay, and how each change of it can be undone. */
typedef struct retainer {
    inv_arena *a;
    const inv_problem *p;
    inv_remats *plan;
    inv_replay r;
    peak_tree bytes;
    interval_links *links; /* per interval */
    uint32_t *remat_at;    /* per event: which rematerialisation it is; NONE: a step */
    uint32_t *event_of;    /* per rematerialisation */
    uint32_t *step_at;     /* per event: the step that it is or comes before */
    uint32_t *source_of;   /* per rematerialisation: index of its sources' intervals in `source` */
    INV_VEC(uint32_t) source;
    INV_VEC(use_link) link;
    uint32_t *inplace;      /* per event: the interval in place of which it writes; NONE */
    bool *removed;          /* per rematerialisation: it is taken out */
    double saved, inverted; /* by the change that is tried: cost saved; by all: bytes that inverses rebuild */
    bool dry_run;           /* changes only tell what they save; bytes are left alone */
    INV_VEC(journal_entry) journal;
} retainer;

/* --- bytes --- */

static void peak_tree_add(peak_tree *t, uint32_t node, uint32_t lo, uint32_t hi, uint32_t from, uint32_t to,
                          int64_t delta)
{
    if (to < lo || hi < from) return;
    if (from <= lo && hi <= to) {
        t->most[node] += delta;
        t->lazy[node] += delta;
        return;
    }
    uint32_t mid = lo + (hi - lo) / 2;
    peak_tree_add(t, 2 * node, lo, mid, from, to, delta);
    peak_tree_add(t, 2 * node + 1, mid + 1, hi, from, to, delta);
    int64_t left = t->most[2 * node], right = t->most[2 * node + 1];
    t->most[node] = t->lazy[node] + (left > right ? left : right);
}

static void peak_tree_build(peak_tree *t, uint32_t node, uint32_t lo, uint32_t hi, const size_t *nbytes)
{
    t->most[node] = (int64_t)nbytes[lo];
    if (lo == hi) return;
    const uint32_t mid = lo + (hi - lo) / 2;
    peak_tree_build(t, 2 * node, lo, mid, nbytes);
    peak_tree_build(t, 2 * node + 1, mid + 1, hi, nbytes);
    t->most[node] = t->most[2 * node] > t->most[2 * node + 1] ? t->most[2 * node] : t->most[2 * node + 1];
}

static int64_t peak_tree_most(const peak_tree *t, uint32_t node, uint32_t lo, uint32_t hi, uint32_t from, uint32_t to)
{
    if (to < lo || hi < from) return INT64_MIN / 4;
    if (from <= lo && hi <= to) return t->most[node];
    uint32_t mid = lo + (hi - lo) / 2;
    int64_t left = peak_tree_most(t, 2 * node, lo, mid, from, to),
            right = peak_tree_most(t, 2 * node + 1, mid + 1, hi, from, to);
    return t->lazy[node] + (left > right ? left : right);
}

static int64_t interval_bytes(const retainer *x, uint32_t interval)
{
    return (int64_t)x->p->value[x->r.interval.at[interval].value].nbytes;
}

/* --- changes, each with a journal entry --- */

static bool journal_note(retainer *x, change_kind k, uint32_t at, uint32_t old, uint32_t hi, int64_t delta)
{
    journal_entry e = {(uint8_t)k, at, old, hi, delta};
    return inv_vec_push(x->a, &x->journal, e);
}

static bool add_range_bytes(retainer *x, uint32_t from, uint32_t to, int64_t delta)
{
    if (from > to || delta == 0 || x->dry_run) return true;
    peak_tree_add(&x->bytes, 1, 0, x->bytes.n - 1, from, to, delta);
    return journal_note(x, BYTES, from, 0, to, delta);
}

static void undo_journal(retainer *x)
{
    while (x->journal.n) {
        const journal_entry *e = &x->journal.at[--x->journal.n];
        switch (e->kind) {
        case BYTES: peak_tree_add(&x->bytes, 1, 0, x->bytes.n - 1, e->at, e->hi, -e->delta); break;
        case TO: x->r.interval.at[e->at].to = e->old; break;
        case NUSE: x->r.interval.at[e->at].nuse = e->old; break;
        case INPLACE: x->inplace[e->at] = e->old; break;
        case DROPPED: x->removed[e->at] = false; break;
        case WANT: x->plan->at[e->at].want = e->old; break;
        case MERGED: x->links[e->at].merged_into = NONE; break;
        case CHILD: x->links[e->at].child = e->old; break;
        }
    }
}

/* Returns true if the event may write in place of the interval, provided that this ends there. */
static bool may_overwrite_interval(const retainer *x, uint32_t interval, uint32_t event)
{
    const uint32_t k = x->remat_at[event], v = x->r.interval.at[interval].value;
    const inv_pb_step *s = &x->p->step[x->step_at[event]];
    const inv_pb_edge *e = k == NONE ? NULL : &x->p->edge[x->plan->at[k].edge];
    const uint32_t *list = e ? e->source : s->read, n = e ? e->nsource : s->nread,
                   bits = e ? e->overwrites : s->overwrites;
    for (uint32_t i = 0; i < n && i < 32; i++)
        if (bits >> i & 1 && list[i] == v) return true;
    return false;
}

static bool set_event_inplace(retainer *x, uint32_t event, uint32_t interval)
{
    const uint32_t old = x->inplace[event];
    if (old != NONE && !add_range_bytes(x, event, event, interval_bytes(x, old))) return false;
    if (interval != NONE && !add_range_bytes(x, event, event, -interval_bytes(x, interval))) return false;
    x->inplace[event] = interval;
    return journal_note(x, INPLACE, event, old, 0, 0);
}

static bool set_interval_end(retainer *x, uint32_t i, uint32_t to)
{
    inv_live_interval *s = &x->r.interval.at[i];
    const uint32_t old = s->to;
    if (old == to) return true;
    if (x->inplace[old] == i && !set_event_inplace(x, old, NONE)) return false;
    if (to > old ? !add_range_bytes(x, old + 1, to, interval_bytes(x, i))
                 : !add_range_bytes(x, to + 1, old, -interval_bytes(x, i)))
        return false;
    s->to = to;
    if (!journal_note(x, TO, i, old, 0, 0)) return false;
    return x->inplace[to] != NONE || to == s->from || !may_overwrite_interval(x, i, to) || set_event_inplace(x, to, i);
}

static uint32_t merged_interval(const retainer *x, uint32_t i)
{
    while (x->links[i].merged_into != NONE) i = x->links[i].merged_into;
    return i;
}

/* Returns the last event that reads the interval or one merged into it; `least` if none is later. */
static uint32_t last_live_use(const retainer *x, uint32_t i, uint32_t least)
{
    for (uint32_t l = x->links[i].uses; l != NONE; l = x->link.at[l].next) {
        const uint32_t event = x->link.at[l].event, k = x->remat_at[event];
        if (event > least && (k == NONE || !x->removed[k])) least = event;
    }
    for (uint32_t c = x->links[i].child; c != NONE; c = x->links[c].next) least = last_live_use(x, c, least);
    return least;
}

static bool drop_remat(retainer *x, uint32_t k);

static bool drop_read(retainer *x, uint32_t i)
{
    inv_live_interval *s = &x->r.interval.at[i];
    if (!journal_note(x, NUSE, i, s->nuse, 0, 0)) return false;
    s->nuse--;
    if (!set_interval_end(x, i, last_live_use(x, i, s->from))) return false;
    if (s->nuse || s->remat == INV_NO_REMAT) return true;
    inv_remat *m = &x->plan->at[s->remat];
    const inv_pb_edge *e = &x->p->edge[m->edge];
    uint32_t want = m->want;
    for (uint32_t t = 0; t < e->ntarget; t++)
        if (e->target[t] == s->value) want &= ~(1u << t);
    if (!journal_note(x, WANT, s->remat, m->want, 0, 0)) return false;
    m->want = want;
    if (!add_range_bytes(x, s->from, s->to, -interval_bytes(x, i))) return false;
    return want || drop_remat(x, s->remat);
}

/* Takes out a rematerialisation, and its reads. Its event has no bytes any more: so many are taken off it in the tree
 * that it is never the peak. The bytes inverted are an estimate, for which only the first target counts, whether or not
 * another inverse gives it, too; the caller scores the plan anew. Errors are not estimated anew: a reader of the value
 * now reads what an earlier reader has read. Where that has a larger error than the value given again had, it is left
 * to the guards. */
static bool drop_remat(retainer *x, uint32_t k)
{
    const inv_pb_edge *e = &x->p->edge[x->plan->at[k].edge];
    const uint32_t event = x->event_of[k];
    x->removed[k] = true;
    x->saved += e->cost;
    if (e->inverse && !e->moves) x->inverted -= (double)x->p->value[e->target[0]].nbytes;
    if (!journal_note(x, DROPPED, k, 0, 0, 0) || !add_range_bytes(x, event, event, -(INT64_MAX / 4)) ||
        !add_range_bytes(x, x->r.event_of_step[x->p->value[e->target[0]].def], event, -(int64_t)e->side))
        return false;
    for (uint32_t i = 0; i < e->nsource; i++)
        if (!drop_read(x, merged_interval(x, x->source.at[x->source_of[k] + i]))) return false;
    return true;
}

/* Merges the interval with the one before it, which is kept for its readers. */
static bool merge_interval(retainer *x, uint32_t j)
{
    inv_live_interval *s = &x->r.interval.at[j];
    const uint32_t i = merged_interval(x, x->links[j].prev), k = s->remat;
    inv_remat *m = &x->plan->at[k];
    const inv_pb_edge *e = &x->p->edge[m->edge];
    if (x->inplace[s->to] == j && !set_event_inplace(x, s->to, NONE)) return false;
    if (!add_range_bytes(x, s->from, s->to, -interval_bytes(x, j))) return false;
    if (!journal_note(x, MERGED, j, 0, 0, 0) || !journal_note(x, CHILD, i, x->links[i].child, 0, 0) ||
        !journal_note(x, NUSE, i, x->r.interval.at[i].nuse, 0, 0) || !journal_note(x, WANT, k, m->want, 0, 0))
        return false;
    x->links[j].merged_into = i;
    x->links[j].next = x->links[i].child;
    x->links[i].child = j;
    x->r.interval.at[i].nuse += s->nuse;
    for (uint32_t t = 0; t < e->ntarget; t++)
        if (e->target[t] == s->value) m->want &= ~(1u << t);
    if (s->to > x->r.interval.at[i].to && !set_interval_end(x, i, s->to)) return false;
    return m->want || drop_remat(x, k);
}

/* --- the search --- */

static bool is_removable(const retainer *x, uint32_t j)
{
    const inv_live_interval *s = &x->r.interval.at[j];
    if (x->p->value[s->value].no_store) return false;
    return s->remat != INV_NO_REMAT && x->links[j].prev != NONE && x->links[j].merged_into == NONE &&
           !x->removed[s->remat] && s->nuse;
}

static int by_worth(const void *a, const void *b)
{
    const candidate *x = a, *y = b;
    if (x->worth < y->worth || x->worth > y->worth) return x->worth < y->worth ? 1 : -1;
    if (x->length != y->length) return x->length > y->length ? 1 : -1;
    return x->interval < y->interval ? 1 : -1;
}

static bool list_removals(retainer *x, candidate **list, size_t *n)
{
    *n = 0;
    *list = INV_ARENA_NEW(x->a, candidate, x->r.interval.n + 1);
    if (!*list) return false;
    x->dry_run = true;
    for (uint32_t j = 0; j < x->r.interval.n; j++) {
        if (!is_removable(x, j)) continue;
        const inv_live_interval *before = &x->r.interval.at[merged_interval(x, x->links[j].prev)];
        const double inverted = x->inverted;
        x->saved = 0;
        if (!merge_interval(x, j)) return false;
        const double saved = x->saved;
        undo_journal(x);
        x->inverted = inverted;
        uint32_t from = before->to;
        if (!(saved > 0)) continue;
        candidate c = {j, x->r.interval.at[j].from > from ? x->r.interval.at[j].from - from : 0,
                       saved / (double)(interval_bytes(x, j) + 1)};
        (*list)[(*n)++] = c;
    }
    x->dry_run = false;
    qsort(*list, *n, sizeof **list, by_worth);
    return true;
}

static bool try_removals(retainer *x, int64_t budget, double floor, bool *any)
{
    candidate *list;
    size_t n;
    if (!list_removals(x, &list, &n)) return false;
    for (size_t c = 0; c < n; c++) {
        const uint32_t j = list[c].interval;
        if (!is_removable(x, j)) continue;
        const uint32_t from = x->r.interval.at[merged_interval(x, x->links[j].prev)].to, to = x->r.interval.at[j].to;
        const double inverted = x->inverted;
        x->saved = 0;
        if (!merge_interval(x, j)) return false;
        if (x->saved > 0 && x->inverted >= floor &&
            peak_tree_most(&x->bytes, 1, 0, x->bytes.n - 1, from, to > from ? to : from) <= budget) {
            x->journal.n = 0;
            *any = true;
            continue;
        }
        undo_journal(x);
        x->inverted = inverted;
    }
    return true;
}

/* --- set-up --- */

static bool note_interval_use(retainer *x, uint32_t interval, uint32_t event)
{
    use_link l = {event, x->links[interval].uses};
    x->links[interval].uses = (uint32_t)x->link.n;
    return inv_vec_push(x->a, &x->link, l);
}

/* Notes the reads of the edge that was picked. */
static bool note_alternative_use(retainer *x, const uint32_t *now, uint32_t interval, uint32_t event)
{
    const inv_pb_edge *e = &x->p->edge[x->plan->at[x->r.interval.at[interval].remat].edge];
    for (uint32_t i = 0; i < e->nsource; i++)
        if (!note_interval_use(x, now[e->source[i]], event)) return false;
    return true;
}

/* Lists who reads which interval, as the replay has them. */
static bool list_interval_uses(retainer *x)
{
    const inv_problem *p = x->p;
    uint32_t *now = INV_ARENA_NEW(x->a, uint32_t, p->nvalue + 1), begun = 0;
    if (!now) return false;
    for (uint32_t v = 0; v < p->nvalue; v++) now[v] = NONE;
    for (uint32_t event = 0; event < x->r.nevent; event++) {
        const uint32_t k = x->remat_at[event];
        const inv_pb_step *s = &p->step[x->step_at[event]];
        const inv_pb_edge *e = k == NONE ? NULL : &p->edge[x->plan->at[k].edge];
        const uint32_t *list = e ? e->source : s->read, n = e ? e->nsource : s->nread;
        if (e) x->source_of[k] = (uint32_t)x->source.n;
        for (uint32_t i = 0; i < n; i++) {
            if (e && !inv_vec_push(x->a, &x->source, now[list[i]])) return false;
            if (!note_interval_use(x, now[list[i]], event)) return false;
            if (!e && p->value[list[i]].def == INV_NEVER && !note_alternative_use(x, now, now[list[i]], event))
                return false;
            inv_live_interval *st = &x->r.interval.at[now[list[i]]];
            if (x->inplace[event] == NONE && st->to == event && st->from != event &&
                may_overwrite_interval(x, now[list[i]], event))
                x->inplace[event] = now[list[i]];
        }
        for (; begun < x->r.interval.n && x->r.interval.at[begun].from == event; begun++) {
            x->links[begun].prev = now[x->r.interval.at[begun].value];
            now[x->r.interval.at[begun].value] = begun;
        }
    }
    return true;
}

static bool set_up_retain(retainer *x, bool activations)
{
    const size_t ne = x->r.nevent, ns = x->r.interval.n, nf = x->plan->n;
    x->bytes.n = (uint32_t)ne;
    x->bytes.most = INV_ARENA_NEW(x->a, int64_t, 4 * ne + 4);
    x->bytes.lazy = INV_ARENA_NEW(x->a, int64_t, 4 * ne + 4);
    x->links = INV_ARENA_NEW(x->a, interval_links, ns + 1);
    x->remat_at = INV_ARENA_NEW(x->a, uint32_t, ne + 1);
    x->step_at = INV_ARENA_NEW(x->a, uint32_t, ne + 1);
    x->inplace = INV_ARENA_NEW(x->a, uint32_t, ne + 1);
    x->event_of = INV_ARENA_NEW(x->a, uint32_t, nf + 1);
    x->source_of = INV_ARENA_NEW(x->a, uint32_t, nf + 1);
    x->removed = INV_ARENA_NEW(x->a, bool, nf + 1);
    if (x->a->failed) return false;
    for (size_t i = 0; i < ns; i++) x->links[i] = (interval_links){NONE, NONE, NONE, NONE, NONE};
    for (uint32_t t = 0, k = 0, event = 0; t < x->p->nstep; t++) {
        for (; t >= x->p->forward && k < nf && x->plan->at[k].step == t; k++, event++) {
            x->remat_at[event] = k;
            x->event_of[k] = event;
            x->step_at[event] = t;
        }
        x->remat_at[event] = NONE;
        x->step_at[event++] = t;
    }
    for (uint32_t e = 0; e < ne; e++) x->inplace[e] = NONE;
    peak_tree_build(&x->bytes, 1, 0, (uint32_t)ne - 1, activations ? x->r.act : x->r.live);
    return list_interval_uses(x);
}

inv_status inv_plan_retain(inv_arena *a, const inv_problem *p, size_t budget, bool activations, double floor,
                           inv_remats *plan)
{
    retainer x = {.a = a, .p = p, .plan = plan};
    if (plan->n == 0) return INV_OK;
    INV_TRY(inv_plan_replay(a, p, plan, &x.r));
    x.inverted = x.r.score.inverted;
    if (!set_up_retain(&x, activations)) return INV_E_NOMEM;
    bool any = true;
    for (int round = 0; round < ROUNDS && any; round++) {
        any = false;
        if (!try_removals(&x, (int64_t)budget, floor, &any)) return INV_E_NOMEM;
    }
    size_t n = 0;
    for (size_t k = 0; k < plan->n; k++)
        if (!x.removed[k] && plan->at[k].want) plan->at[n++] = plan->at[k];
    plan->n = n;
    return inv_plan_prune(a, p, plan);
}
