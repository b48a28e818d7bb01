/* SPDX-License-Identifier: Apache-2.0
 * First fit for place.c: each box goes to the lowest offset at which it meets none of those before it. What is taken, a
 * segment tree over time tells. O(log n) list operations for a box.
 * requires: placer.
 * gives: offsets; the best packing so far. */
#include <stdlib.h>
#include <string.h>

#include "passes/schedule/placer.h"

static range *range_at(const ranges *r, size_t i) { return &r->at[i < r->cut ? i : i + (r->cap - r->n)]; }

/* The first of ranges lo to hi - 1 that ends at `behind` or behind it; hi: none does. */
static size_t first_ending(const ranges *r, size_t lo, size_t hi, size_t behind)
{
    while (lo < hi) {
        size_t mid = lo + (hi - lo) / 2;
        if (range_at(r, mid)->to < behind) lo = mid + 1;
        else hi = mid;
    }
    return lo;
}

/* What first fit knows of a list while it looks for the place of one box. */
typedef struct look {
    const ranges *list;
    size_t next, until; /* the first range that ends behind the place so far, and where that begins */
} look;

/* The lowest offset from `at` on where `size` bytes are free in the list; that never decreases. */
static size_t first_free(look *l, size_t at, size_t size)
{
    const ranges *r = l->list;
    size_t lo = l->next, step = 1;
    if (at + size <= l->until) return at;
    while (lo + step < r->n && range_at(r, lo + step)->to <= at) {
        lo += step;
        step *= 2;
    }
    lo = first_ending(r, lo, lo + step < r->n ? lo + step : r->n, at + 1);
    for (; lo < r->n && range_at(r, lo)->from < at + size; lo++) at = range_at(r, lo)->to;
    l->next = lo;
    l->until = lo < r->n ? range_at(r, lo)->from : SIZE_MAX;
    return at;
}

static void empty(ranges *r) { r->n = r->cut = 0; }

/* Moves the free room to where range i is. */
static void move_cut(ranges *r, size_t i)
{
    const size_t room = r->cap - r->n;
    if (i < r->cut) memmove(r->at + i + room, r->at + i, (r->cut - i) * sizeof *r->at);
    else memmove(r->at + r->cut, r->at + r->cut + room, (i - r->cut) * sizeof *r->at);
    r->cut = i;
}

/* Doubles the array; most lists, those near the leaves, never have more than FEW. */
static bool make_room(inv_arena *a, ranges *r)
{
    enum { FEW = 2 };
    const size_t cap = r->cap ? 2 * r->cap : FEW;
    range *at = INV_ARENA_NEW(a, range, cap);
    if (!at) return false;
    for (size_t i = 0; i < r->n; i++) at[i] = *range_at(r, i);
    *r = (ranges){at, r->n, r->n, cap};
    return true;
}

static bool take_range(inv_arena *a, ranges *r, range x)
{
    const size_t first = first_ending(r, 0, r->n, x.from);
    size_t end = first;
    for (; end < r->n && range_at(r, end)->from <= x.to; end++) {
        if (range_at(r, end)->from < x.from) x.from = range_at(r, end)->from;
        if (range_at(r, end)->to > x.to) x.to = range_at(r, end)->to;
    }
    if (end == first) {
        if (r->n == r->cap && !make_room(a, r)) return false;
        move_cut(r, first);
        r->n++;
    } else if (end - first > 1) {
        move_cut(r, end);
        r->n -= end - first - 1;
    } else {
        *range_at(r, first) = x;
        return true;
    }
    r->cut = first + 1;
    r->at[first] = x;
    return true;
}

/* Lists the few nodes whose union is leaves from..to. */
static size_t nodes_of(const tree *t, uint32_t from, uint32_t to, uint32_t *node)
{
    size_t n = 0;
    for (uint32_t a = from + t->leaves, b = to + t->leaves + 1; a < b; a /= 2, b /= 2) {
        if (a & 1) node[n++] = a++;
        if (b & 1) node[n++] = --b;
    }
    return n;
}

static size_t add_look(look *to, const ranges *list)
{
    if (list->n) *to = (look){list, 0, 0};
    return list->n > 0;
}

/* Lists what is taken at some time of the leaves: at the nodes and below, and on the way from them to the root. */
static size_t neighbours(const tree *t, uint32_t from, uint32_t to, const uint32_t *node, size_t nnode, look *list)
{
    size_t n = 0;
    for (size_t k = 0; k < nnode; k++) n += add_look(&list[n], &t->inside[node[k]]);
    for (uint32_t a = from + t->leaves, b = to + t->leaves; a; a /= 2, b /= 2) {
        n += add_look(&list[n], &t->across[a]);
        if (b != a) n += add_look(&list[n], &t->across[b]);
    }
    return n;
}

/* Notes what is taken at the node or below, if a box that is still to be placed will look there. Long boxes do, which
 * are few or come first, so that the lists near the root stay short. */
static bool take_inside(placer *p, uint32_t node, range x)
{
    return !p->tree.wanted[node] || take_range(&p->scratch, &p->tree.inside[node], x);
}

static bool occupy_nodes(placer *p, const uint32_t *node, size_t nnode, range x)
{
    uint32_t above[MOST_NODES];
    size_t n = 0;
    bool ok = true;
    p->tree.box++;
    for (size_t k = 0; k < nnode && ok; k++) {
        ok = take_range(&p->scratch, &p->tree.across[node[k]], x) && take_inside(p, node[k], x);
        for (uint32_t a = node[k] / 2; a && p->tree.above[a] != p->tree.box; a /= 2) {
            p->tree.above[a] = p->tree.box;
            above[n++] = a;
        }
    }
    for (size_t k = 0; k < n && ok; k++) ok = take_inside(p, above[k], x);
    return ok;
}

static void remember_packing(placer *p)
{
    p->best = 0;
    for (size_t i = 0; i < p->n; i++) {
        const size_t to = (p->offset[i] = p->box[i].offset) + p->box[i].nbytes;
        p->best = to > p->best ? to : p->best;
    }
}

size_t inv_bytes_above(const inv_box *b, size_t cap)
{
    const size_t to = b->offset + b->nbytes;
    return to <= cap ? 0 : to - cap < b->nbytes ? to - cap : b->nbytes;
}

inv_status inv_fit_boxes(placer *p, size_t n, size_t fixed, const size_t *cap, double most, double *above)
{
    uint32_t node[MOST_NODES];
    for (uint32_t i = 0; i < 2 * p->tree.leaves; i++) {
        empty(&p->tree.across[i]);
        empty(&p->tree.inside[i]);
        p->tree.wanted[i] = 0;
    }
    for (size_t i = 0; i < n; i++) {
        const size_t at = (size_t)(p->order[i].box - p->box);
        for (size_t k = nodes_of(&p->tree, p->from[at], p->to[at], node); k-- > 0;) p->tree.wanted[node[k]]++;
    }
    *above = 0;
    for (size_t i = 0; i < n && *above <= most; i++) {
        inv_box *b = p->order[i].box;
        const uint32_t from = p->from[b - p->box], to = p->to[b - p->box];
        look list[2 * MOST_NODES];
        const size_t nnode = nodes_of(&p->tree, from, to, node),
                     nlist = neighbours(&p->tree, from, to, node, nnode, list);
        size_t at = i < fixed ? b->offset : 0;
        for (size_t k = 0, fine = i < fixed ? nlist : 0; fine < nlist; k = (k + 1) % nlist) {
            const size_t free = first_free(&list[k], at, b->nbytes);
            fine = free == at ? fine + 1 : 1;
            p->visits += VISITS_PER_LIST;
            at = free;
        }
        b->offset = at;
        *above += (double)inv_bytes_above(b, cap[b - p->box]);
        p->visits += VISITS_PER_LIST * nnode;
        for (size_t k = 0; k < nnode; k++) p->tree.wanted[node[k]]--;
        if (!occupy_nodes(p, node, nnode, (range){at, at + b->nbytes})) return INV_E_NOMEM;
    }
    return INV_OK;
}

inv_status inv_first_fit(placer *p, size_t fixed)
{
    double above;
    for (size_t i = 0; i < p->n; i++) p->cap[i] = p->best - 1;
    INV_TRY(inv_fit_boxes(p, p->n, fixed, p->cap, 0, &above));
    if (above <= 0) remember_packing(p);
    return INV_OK;
}

int inv_boxes_by_size(const void *a, const void *b)
{
    const inv_box *x = *(inv_box *const *)a, *y = *(inv_box *const *)b;
    if (x->nbytes != y->nbytes) return x->nbytes < y->nbytes ? 1 : -1;
    const uint32_t lx = x->to - x->from, ly = y->to - y->from;
    if (lx != ly) return lx < ly ? 1 : -1;
    return x < y ? -1 : x > y;
}

static int boxes_by_rank(const void *a, const void *b)
{
    const ranked_box *x = a, *y = b;
    if (x->rank < y->rank || x->rank > y->rank) return x->rank < y->rank ? 1 : -1;
    return inv_boxes_by_size(&x->box, &y->box);
}

void inv_order_boxes(placer *p, size_t fixed, double power)
{
    for (size_t i = 0; i < p->n; i++) p->order[i] = (ranked_box){p->log_size[i] + power * p->log_length[i], &p->box[i]};
    qsort(p->order + fixed, p->n - fixed, sizeof *p->order, boxes_by_rank);
}

/* Orders boxes for first fit: those of at least one part in `parts` of the load by when they begin, which wastes
 * nothing among boxes of one size, and then the others by size. */
static void order_by_begin(placer *p, size_t parts)
{
    static const double FIRST = 1e9; /* more than any leaf's number */
    const size_t least = p->load / parts;
    for (size_t i = 0; i < p->n; i++) {
        const bool big = p->box[i].nbytes >= least;
        p->order[i] = (ranked_box){big ? FIRST - p->from[i] : p->log_size[i] - FIRST, &p->box[i]};
    }
    qsort(p->order, p->n, sizeof *p->order, boxes_by_rank);
}

/* The powers that have been seen to be worth a try on the steps of networks, the best first. */
static const double powers[] = {0, 0.15, 0.2, 0.25, 0.1, 0.3, 0.4, 0.6};
enum { POWERS = sizeof powers / sizeof *powers };
enum {
    FEWEST_PARTS = 8
}; /* of the load, of which a box by begin has one at least; twice as many from one order to the next */

void inv_order_as_placed(placer *p)
{
    for (size_t i = 0; i < p->n; i++) p->order[i] = (ranked_box){-(double)p->box[i].offset, &p->box[i]};
    qsort(p->order, p->n, sizeof *p->order, boxes_by_rank);
}

void inv_order_start(placer *p, size_t k)
{
    if (k < POWERS) inv_order_boxes(p, 0, powers[k]);
    else order_by_begin(p, (size_t)FEWEST_PARTS << (k - POWERS));
}
