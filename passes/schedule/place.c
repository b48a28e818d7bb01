/* SPDX-License-Identifier: Apache-2.0
 * Offsets for live intervals, the dynamic storage allocation problem, which is NP-complete: boxes of given sizes and
 * intervals go into the smallest arena. No arena is smaller than the most bytes that are live at once (the load). This
 * comes to it, or within half a percent as a rule, in two ways:
 *   first fit by falling size (Pisarchyk and Lee, arXiv 2001.03288), in O(n log n) list operations; on the steps of
 *   deep networks that is the load already, or next to it.
 *   canonical search (Moffitt, MiniMalloc, ASPLOS 2023): any packing can be pushed down until each box stands on
 *   another or on the ground, and then be built by rising offsets, each box as low as those before allow. Only such
 *   sequences are tried, depth first. A descent turns back where the bytes still to come at some time do not fit any
 *   more, and the search begins anew with other preferences, in favour of boxes that were in the way. Of many boxes
 *   only the largest are packed so, which leaves time to turn back; first fit puts the others into the gaps.
 * The result is deterministic, and the work bounded.
 * requires: boxes.
 * gives: their offsets, and the size of the arena. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "passes/schedule/place.h"

/* Bytes of the arena. */
typedef struct range {
    size_t from, to; /* bytes; `to` is the first behind it */
} range;
typedef INV_VEC(range) ranges; /* sorted, with gaps in between */

/* A segment tree over the times at which some box begins: node 1 is the root, 2i and 2i + 1 are below i. A live
 * interval is the union of the times of a few nodes. */
typedef struct tree {
    uint32_t leaves;
    ranges *across; /* per node: bytes taken by boxes whose interval has this node among its few */
    ranges *inside; /* per node: bytes taken by boxes whose interval has this node, or one below it, among its few */
} tree;

/* One decision of a descent. */
typedef struct level {
    uint32_t box, rank; /* the box placed at this level, and which candidate it is, in the order of preference */
    size_t undo;
} level;

/* What placing a box has raised: the lowest offset that another had before. */
typedef struct raised {
    uint32_t box;
    size_t low;
} raised;

/* The boxes, and the state of both ways to place them. */
typedef struct placer {
    inv_arena scratch;
    inv_box *box;              /* sorted, the largest first */
    size_t n, big, load, best; /* big: how many of these the canonical search packs; load, best: bytes */
    uint32_t *from, *to;       /* per box: its first and last leaf */
    size_t *offset;            /* per box: its offset in the best packing so far */
    tree tree;
    /* canonical search */
    size_t *coming;        /* per leaf: bytes of the boxes that are not placed yet */
    size_t *low;           /* per box: the lowest offset above the boxes that are placed */
    double *rank, *blame;  /* per box: smaller ones are preferred; how often it was in the way */
    uint32_t *next, *prev; /* list of the boxes that are not placed; `big` is its head */
    inv_box **order;       /* the order in which first fit takes them */
    level *level;
    INV_VEC(raised) undo;
    size_t cap;
    uint64_t steps;
} placer;

enum { MOST_NODES = 96 }; /* of an interval, with those beside it on the way to the root: three per level of the tree */

/* --- first fit --- */

static size_t first_ending(const ranges *r, size_t behind)
{
    size_t lo = 0, hi = r->n;
    while (lo < hi) {
        size_t mid = lo + (hi - lo) / 2;
        if (r->at[mid].to < behind) lo = mid + 1;
        else hi = mid;
    }
    return lo;
}

/* The lowest offset from `at` on where `size` bytes are free. */
static size_t first_free(const ranges *r, size_t at, size_t size)
{
    for (size_t i = first_ending(r, at + 1); i < r->n && r->at[i].from < at + size; i++) at = r->at[i].to;
    return at;
}

static bool take_range(inv_arena *a, ranges *r, range x)
{
    const size_t first = first_ending(r, x.from);
    size_t end = first;
    for (; end < r->n && r->at[end].from <= x.to; end++) {
        if (r->at[end].from < x.from) x.from = r->at[end].from;
        if (r->at[end].to > x.to) x.to = r->at[end].to;
    }
    if (end == first) {
        if (!inv_vec_push(a, r, x)) return false;
        end = first + 1;
        memmove(r->at + end, r->at + first, (r->n - end) * sizeof *r->at);
    } else {
        memmove(r->at + first + 1, r->at + end, (r->n - end) * sizeof *r->at);
        r->n -= end - first - 1;
    }
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

/* Lists what is taken at some time of the leaves: at the nodes and below, and on the way from them to the root. */
static size_t neighbours(const tree *t, uint32_t from, uint32_t to, const uint32_t *node, size_t nnode,
                         const ranges **list)
{
    size_t n = 0;
    for (size_t k = 0; k < nnode; k++)
        if (t->inside[node[k]].n) list[n++] = &t->inside[node[k]];
    for (uint32_t a = from + t->leaves, b = to + t->leaves; a; a /= 2, b /= 2) {
        if (t->across[a].n) list[n++] = &t->across[a];
        if (b != a && t->across[b].n) list[n++] = &t->across[b];
    }
    return n;
}

static bool occupy_nodes(placer *p, const uint32_t *node, size_t nnode, range x)
{
    uint32_t above[MOST_NODES];
    size_t n = 0;
    bool ok = true;
    for (size_t k = 0; k < nnode && ok; k++) {
        ok = take_range(&p->scratch, &p->tree.across[node[k]], x) &&
             take_range(&p->scratch, &p->tree.inside[node[k]], x);
        for (uint32_t a = node[k] / 2; a; a /= 2) {
            size_t seen = 0;
            while (seen < n && above[seen] != a) seen++;
            if (seen < n) break;
            above[n++] = a;
        }
    }
    for (size_t k = 0; k < n && ok; k++) ok = take_range(&p->scratch, &p->tree.inside[above[k]], x);
    return ok;
}

static void remember_packing(placer *p, size_t need)
{
    p->best = need;
    for (size_t i = 0; i < p->n; i++) p->offset[i] = p->box[i].offset;
}

/* Places boxes in this order; the first `fixed` have their offsets already. */
static inv_status first_fit(placer *p, inv_box *const *order, size_t fixed)
{
    size_t need = 0;
    for (uint32_t i = 0; i < 2 * p->tree.leaves; i++) p->tree.across[i].n = p->tree.inside[i].n = 0;
    for (size_t i = 0; i < p->n; i++) {
        inv_box *b = order[i];
        const uint32_t from = p->from[b - p->box], to = p->to[b - p->box];
        uint32_t node[MOST_NODES];
        const ranges *list[2 * MOST_NODES];
        const size_t nnode = nodes_of(&p->tree, from, to, node),
                     nlist = neighbours(&p->tree, from, to, node, nnode, list);
        size_t at = i < fixed ? b->offset : 0;
        for (size_t k = 0, fine = i < fixed ? nlist : 0; fine < nlist; k = (k + 1) % nlist) {
            const size_t free = first_free(list[k], at, b->nbytes);
            fine = free == at ? fine + 1 : 1;
            at = free;
        }
        b->offset = at;
        if (at + b->nbytes > need) need = at + b->nbytes;
        if (need >= p->best) return INV_OK;
        if (!occupy_nodes(p, node, nnode, (range){at, at + b->nbytes})) return INV_E_NOMEM;
    }
    remember_packing(p, need);
    return INV_OK;
}

static int boxes_by_size(const void *a, const void *b)
{
    const inv_box *x = *(inv_box *const *)a, *y = *(inv_box *const *)b;
    if (x->nbytes != y->nbytes) return x->nbytes < y->nbytes ? 1 : -1;
    const uint32_t lx = x->to - x->from, ly = y->to - y->from;
    if (lx != ly) return lx < ly ? 1 : -1;
    return x < y ? -1 : x > y;
}
static int boxes_by_area(const void *a, const void *b)
{
    const inv_box *x = *(inv_box *const *)a, *y = *(inv_box *const *)b;
    const double ax = (double)x->nbytes * (x->to - x->from + 1.0), ay = (double)y->nbytes * (y->to - y->from + 1.0);
    if (ax < ay || ax > ay) return ax < ay ? 1 : -1;
    return boxes_by_size(a, b);
}
static int boxes_by_length(const void *a, const void *b)
{
    const inv_box *x = *(inv_box *const *)a, *y = *(inv_box *const *)b;
    const uint32_t lx = x->to - x->from, ly = y->to - y->from;
    if (lx != ly) return lx < ly ? 1 : -1;
    return boxes_by_size(a, b);
}

/* --- canonical search --- */

/* Whether a is preferred to b at a level: the lower one, and of two at one height the one of smaller rank. */
static bool box_before(const placer *p, uint32_t a, uint32_t b)
{
    if (p->low[a] != p->low[b]) return p->low[a] < p->low[b];
    if (p->rank[a] < p->rank[b] || p->rank[a] > p->rank[b]) return p->rank[a] < p->rank[b];
    return a < b;
}

/* The candidate of this level's rank; UINT32_MAX: there is none. A box is none if it would stand lower than the one
 * placed last, or leave room below it for a whole other box. */
static uint32_t candidate_box(placer *p, size_t depth)
{
    const level *l = &p->level[depth];
    const size_t last = depth ? p->box[l[-1].box].offset : 0;
    const uint32_t end = (uint32_t)p->big;
    size_t roof = SIZE_MAX;
    uint32_t pick = end, former = end;
    for (uint32_t r = 0; r <= l->rank && (r == 0 || pick != end); r++, former = pick) {
        pick = end;
        for (uint32_t i = p->next[end]; i != end; i = p->next[i]) {
            const size_t top = p->low[i] + p->box[i].nbytes;
            p->steps++;
            if (top > p->cap) {
                p->blame[i] += 8;
                return UINT32_MAX;
            }
            if (top < roof) roof = top;
            if (p->low[i] < last || (former != end && !box_before(p, former, i))) continue;
            if (pick == end || box_before(p, i, pick)) pick = i;
        }
        if (pick != end && p->low[pick] >= roof) pick = end;
    }
    return pick == end ? UINT32_MAX : pick;
}

static void take_back_box(placer *p, size_t depth)
{
    const uint32_t i = p->level[depth].box;
    p->next[p->prev[i]] = p->prev[p->next[i]] =
        i; /* the one taken out last goes back first, so its neighbours are the same again */
    for (uint32_t s = p->from[i]; s <= p->to[i]; s++) p->coming[s] += p->box[i].nbytes;
    while (p->undo.n > p->level[depth].undo) {
        p->undo.n--;
        p->low[p->undo.at[p->undo.n].box] = p->undo.at[p->undo.n].low;
    }
}

/* Places a box. *fits is false if the boxes still to come at some time do not fit above it. */
static inv_status place_box(placer *p, size_t depth, uint32_t i, bool *fits)
{
    const size_t top = p->low[i] + p->box[i].nbytes;
    uint32_t full = UINT32_MAX;
    p->level[depth].box = i;
    p->level[depth].undo = p->undo.n;
    p->box[i].offset = p->low[i];
    p->next[p->prev[i]] = p->next[i];
    p->prev[p->next[i]] = p->prev[i];
    for (uint32_t s = p->from[i]; s <= p->to[i]; s++) {
        p->coming[s] -= p->box[i].nbytes;
        if (top + p->coming[s] > p->cap && full == UINT32_MAX) full = s;
    }
    p->steps += p->to[i] - p->from[i];
    for (uint32_t k = p->next[p->big]; k != p->big; k = p->next[k]) {
        p->steps++;
        if (full != UINT32_MAX) {
            if (p->from[k] <= full && full <= p->to[k]) p->blame[k] += 1;
        } else if (p->low[k] < top && p->from[k] <= p->to[i] && p->from[i] <= p->to[k]) {
            const raised r = {k, p->low[k]};
            if (!inv_vec_push(&p->scratch, &p->undo, r)) return INV_E_NOMEM;
            p->low[k] = top;
        }
    }
    *fits = full == UINT32_MAX;
    if (!*fits) take_back_box(p, depth);
    return INV_OK;
}

typedef enum outcome { PACKED, IMPOSSIBLE, GIVEN_UP } outcome;

static inv_status descend(placer *p, uint64_t limit, outcome *out)
{
    const uint64_t until = p->steps + limit;
    for (uint32_t i = 0; i <= p->big; i++) {
        p->next[i] = i == p->big ? 0 : i + 1;
        p->prev[i] = i ? i - 1 : (uint32_t)p->big;
    }
    memset(p->low, 0, p->big * sizeof *p->low);
    memset(p->coming, 0, p->tree.leaves * sizeof *p->coming);
    for (size_t i = 0; i < p->big; i++)
        for (uint32_t s = p->from[i]; s <= p->to[i]; s++) p->coming[s] += p->box[i].nbytes;
    p->undo.n = 0;
    p->level[0].rank = 0;
    size_t depth = 0;
    for (*out = PACKED; depth < p->big;) {
        *out = GIVEN_UP;
        if (p->steps > until) return INV_OK;
        const uint32_t i = candidate_box(p, depth);
        bool fits = false;
        if (i != UINT32_MAX) {
            INV_TRY(place_box(p, depth, i, &fits));
        } else {
            *out = IMPOSSIBLE;
            if (depth == 0) return INV_OK;
            take_back_box(p, --depth);
        }
        if (fits) p->level[++depth].rank = 0;
        else p->level[depth].rank++;
    }
    *out = PACKED;
    return INV_OK;
}

static double drawn(uint64_t *seed)
{
    *seed = *seed * 6364136223846793005u + 1442695040888963407u;
    return (double)(*seed >> 40) / (double)(1u << 24);
}

/* Sets the preferences of a descent: a product of powers of size and length, random after the first few, and blame. */
static void draw_preferences(placer *p, uint32_t trial)
{
    static const double fixed[][2] = {{0, 1}, {1, 0}, {1, 1}, {2, 1}};
    enum { FIXED = sizeof fixed / sizeof *fixed };
    uint64_t seed = trial;
    double size = 1.5 * drawn(&seed), length = 1.5 * drawn(&seed), most = 1;
    if (trial < FIXED) {
        size = fixed[trial][0];
        length = fixed[trial][1];
    }
    for (size_t i = 0; i < p->big; i++) most = fmax(most, p->blame[i]);
    for (size_t i = 0; i < p->big; i++) {
        const inv_box *b = &p->box[i];
        p->rank[i] = -size * log((double)b->nbytes) - length * log(p->to[i] - p->from[i] + 1.0);
        if (trial < FIXED) continue;
        p->rank[i] -= log(0.75 + 0.5 * drawn(&seed));
        if (trial & 1) p->rank[i] -= log(1 + 3 * p->blame[i] / most);
        p->blame[i] *= 0.8;
    }
}

/* Packs the big boxes into `cap` bytes and puts the others into the gaps, until all take at most `aim` or the steps are
 * used up. *impossible: there is no packing into `cap`. */
static inv_status search_packing(placer *p, size_t cap, size_t aim, uint64_t steps, bool *impossible)
{
    const uint64_t straight = (uint64_t)p->big * p->big,
                   until = p->steps + steps; /* the steps of a descent that never turns back */
    outcome found = GIVEN_UP;
    p->cap = cap;
    memset(p->blame, 0, p->big * sizeof *p->blame);
    for (uint32_t trial = 0; p->best > aim && found != IMPOSSIBLE && p->steps + straight <= until; trial++) {
        const uint64_t left = until - p->steps, longer = 2 * straight * (1 + trial / 128);
        draw_preferences(p, trial);
        INV_TRY(descend(p, longer < left ? longer : left, &found));
        if (found == PACKED) INV_TRY(first_fit(p, p->order, p->big));
        if (found == PACKED) p->steps += 16 * (uint64_t)p->n;
    }
    *impossible = found == IMPOSSIBLE;
    return INV_OK;
}

/* --- both --- */

static int boxes_by_begin(const void *a, const void *b)
{
    const uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return x < y ? -1 : x > y;
}

/* Makes the tree: two intervals meet if and only if they meet where one of them begins. */
static void index_leaves(placer *p, uint32_t *begins)
{
    size_t n = 0;
    for (size_t i = 0; i < p->n; i++) begins[i] = p->box[i].from;
    qsort(begins, p->n, sizeof *begins, boxes_by_begin);
    for (size_t i = 0; i < p->n; i++)
        if (i == 0 || begins[i] != begins[n - 1]) begins[n++] = begins[i];
    for (size_t i = 0; i < p->n; i++)
        for (int end = 0; end < 2; end++) {
            const uint32_t at = end ? p->box[i].to : p->box[i].from;
            size_t lo = 0, hi = n;
            while (lo < hi) {
                size_t mid = lo + (hi - lo) / 2;
                if (begins[mid] <= at) lo = mid + 1;
                else hi = mid;
            }
            (end ? p->to : p->from)[i] = (uint32_t)lo - 1;
        }
    p->tree.leaves = 1;
    while (p->tree.leaves < n) p->tree.leaves *= 2;
}

static void measure_load(placer *p)
{
    size_t live = 0;
    for (size_t i = 0; i < p->n; i++) {
        p->coming[p->from[i]] += p->box[i].nbytes; /* beginnings less ends, modulo 2^64 */
        p->coming[p->to[i] + 1] -= p->box[i].nbytes;
    }
    for (uint32_t s = 0; s < p->tree.leaves; s++) {
        live += p->coming[s];
        if (live > p->load) p->load = live;
    }
}

static inv_status prepare_placer(placer *p, uint32_t **begins)
{
    const size_t n = p->n + 1;
    *begins = INV_ARENA_NEW(&p->scratch, uint32_t, n);
    p->from = INV_ARENA_NEW(&p->scratch, uint32_t, n);
    p->to = INV_ARENA_NEW(&p->scratch, uint32_t, n);
    p->offset = INV_ARENA_NEW(&p->scratch, size_t, n);
    p->low = INV_ARENA_NEW(&p->scratch, size_t, n);
    p->order = INV_ARENA_NEW(&p->scratch, inv_box *, n);
    p->rank = INV_ARENA_NEW(&p->scratch, double, n);
    p->blame = INV_ARENA_NEW(&p->scratch, double, n);
    p->next = INV_ARENA_NEW(&p->scratch, uint32_t, n);
    p->prev = INV_ARENA_NEW(&p->scratch, uint32_t, n);
    p->level = INV_ARENA_NEW(&p->scratch, level, n);
    if (p->scratch.failed) return INV_E_NOMEM;
    for (size_t i = 0; i < p->n; i++) p->order[i] = &p->box[i];
    index_leaves(p, *begins);
    p->coming = INV_ARENA_NEW(&p->scratch, size_t, p->tree.leaves + 1);
    p->tree.across = INV_ARENA_NEW(&p->scratch, ranges, 2 * (size_t)p->tree.leaves);
    p->tree.inside = INV_ARENA_NEW(&p->scratch, ranges, 2 * (size_t)p->tree.leaves);
    if (p->scratch.failed) return INV_E_NOMEM;
    measure_load(p);
    return INV_OK;
}

/* Tries to pack all within `aim` bytes. The largest boxes alone are packed sooner, but often leave gaps too small for
 * the others; so they come first, then more and more of the others with them. */
static inv_status pack(placer *p, size_t aim, uint64_t steps, bool *impossible)
{
    enum { LEAST = 64, MOST = 512, MANY = 5000 }; /* MANY: beyond, first fit is near the load, and is left to it */
    for (size_t part = LEAST; p->best > aim && part <= MOST && p->n < MANY; part += part / 2) {
        p->big = 0;
        while (p->big < p->n && p->box[p->big].nbytes >= p->load / part) p->big++;
        const size_t cap = aim - p->load / 1600;
        if (p->big < p->n && cap >= p->load) INV_TRY(search_packing(p, cap, aim, steps / 8, impossible));
    }
    p->big = p->n;
    *impossible = false;
    return p->best > aim ? search_packing(p, aim, aim, steps, impossible) : INV_OK;
}

/* Tries caps between one that has failed and the best so far. */
static inv_status narrow_cap(placer *p, size_t failed, uint64_t steps)
{
    bool impossible;
    for (int k = 0; k < 4 && p->best - failed > INV_PLACE_ALIGN; k++) {
        const size_t cap = failed + (p->best - failed) / 2;
        INV_TRY(pack(p, cap, steps, &impossible));
        if (p->best > cap) failed = cap;
    }
    return INV_OK;
}

static inv_status pack_boxes(placer *p)
{
    static int (*const orders[])(const void *, const void *) = {boxes_by_size, boxes_by_area, boxes_by_length};
    enum { DESCENTS = 800, MOST = 300000000 }; /* MOST: half a second */
    const uint64_t square = (uint64_t)p->n * p->n, steps = square < MOST / DESCENTS ? square * DESCENTS : MOST;
    uint32_t *begins;
    bool impossible = true;
    INV_TRY(prepare_placer(p, &begins));
    const size_t near = p->load + p->load / 200;
    for (size_t k = 0; k < sizeof orders / sizeof *orders && p->best > near; k++) {
        qsort(p->order, p->n, sizeof *p->order, orders[k]);
        INV_TRY(first_fit(p, p->order, 0));
    }
    for (size_t i = 0; i < p->n; i++) p->order[i] = &p->box[i];
    p->big = p->n;
    size_t failed = near;
    for (size_t cap = near; p->best > cap && impossible && p->steps < steps; cap += INV_PLACE_ALIGN)
        INV_TRY(pack(p, failed = cap, steps / 2, &impossible));
    if (p->best > near) INV_TRY(narrow_cap(p, failed, steps / 8));
    if (p->best > p->load) INV_TRY(search_packing(p, p->load, p->load, steps / 8, &impossible));
    if (p->best > p->load) INV_TRY(narrow_cap(p, p->load, steps / 16));
    return INV_OK;
}

inv_status inv_place(inv_context *ctx, inv_box *box, size_t n, size_t *need)
{
    placer p = {.box = box, .best = SIZE_MAX};
    /* a box without bytes may stand anywhere */
    inv__arena_init(&p.scratch, ctx);
    inv_box **sorted = INV_ARENA_NEW(&p.scratch, inv_box *, n + 1);
    p.box = INV_ARENA_NEW(&p.scratch, inv_box, n + 1);
    inv_status s = sorted && p.box ? INV_OK : INV_E_NOMEM;
    for (size_t i = 0; i < n && s == INV_OK; i++) {
        box[i].offset = 0;
        if (box[i].nbytes) sorted[p.n++] = &box[i];
    }
    if (p.n) qsort(sorted, p.n, sizeof *sorted, boxes_by_size);
    for (size_t k = 0; k < p.n; k++) p.box[k] = *sorted[k];
    *need = 0;
    if (s == INV_OK && p.n) s = pack_boxes(&p);
    for (size_t k = 0; k < p.n && s == INV_OK; k++) sorted[k]->offset = p.offset[k];
    if (s == INV_OK && p.n) *need = p.best;
    inv__arena_fini(&p.scratch);
    return s;
}
