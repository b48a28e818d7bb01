/* SPDX-License-Identifier: Apache-2.0
 * Offsets for live intervals, the dynamic storage allocation problem, which is NP-complete: boxes of given sizes and
 * intervals go into the smallest arena. No arena is smaller than the most bytes that are live at once (the load). This
 * comes to it, or within a few percent where plans are tight, in two ways:
 *   first fit by falling size (Pisarchyk and Lee, arXiv 2001.03288), and by size times some powers of length, in
 *   O(n log n) list operations each; and of large boxes by when they begin, then of the others by size. On the steps of
 *   deep networks the best is the load already, or next to it: values of one size alternate there, and gradients pile
 *   up on top of them.
 *   descents, from the ground up: each box stands on those placed before it, and one of those that leave no room for a
 *   whole other box below comes next, by preferences that are drawn anew for each descent. One that finds a time at
 *   which the bytes still to come do not fit any more ends there, and the boxes of that time are preferred later. (That
 *   packings can be built so, and that bound, are from Moffitt, MiniMalloc, ASPLOS 2023; where that turns back, this
 *   begins anew, which on the steps of networks finds more in the same time.) Only the largest boxes are packed so;
 *   first fit puts the others into the gaps.
 * The result is deterministic, and the work bounded.
 * requires: boxes.
 * gives: their offsets, and the size of the arena. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/chance.h"
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

/* The boxes of a descent that are not placed yet, densely, so that a look at all of them takes few instructions. Bytes
 * are counted in units of INV_PLACE_ALIGN, or more in arenas beyond 2^31 of them. */
typedef struct skyline {
    uint32_t n;
    uint32_t *low;            /* the lowest place above the boxes that are placed */
    uint32_t *size;           /* units */
    uint32_t *from, *to, *id; /* leaves; index in placer.box */
    float *rank;              /* smaller ones are preferred */
    uint32_t *coming;         /* per leaf: units of the boxes that are not placed yet */
} skyline;

typedef struct ranked_box {
    double rank; /* larger ones come first */
    inv_box *box;
} ranked_box;

/* The boxes, and the state of both ways to place them. */
typedef struct placer {
    inv_arena scratch;
    inv_box *box;         /* sorted, the largest first */
    size_t n, load, best; /* load, best: bytes */
    uint32_t *from, *to;  /* per box: its first and last leaf */
    size_t *offset;       /* per box: its offset in the best packing so far */
    ranked_box *order;    /* in which first fit takes them */
    tree tree;
    skyline sky;
    size_t unit;                           /* bytes */
    double *log_size, *log_length, *blame; /* per box: logarithms of bytes and leaves; how often it was in the way */
    uint64_t slice;                        /* the most visits from one part of the boxes to the next */
    uint64_t dice, visits; /* visits: looks at a box or leaf in descents, and about as long ones in first fit */
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

/* Places boxes in their order; the first `fixed` have their offsets already. */
static inv_status first_fit(placer *p, size_t fixed)
{
    size_t need = 0;
    for (uint32_t i = 0; i < 2 * p->tree.leaves; i++) p->tree.across[i].n = p->tree.inside[i].n = 0;
    for (size_t i = 0; i < p->n; i++) {
        inv_box *b = p->order[i].box;
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

static int boxes_by_rank(const void *a, const void *b)
{
    const ranked_box *x = a, *y = b;
    if (x->rank < y->rank || x->rank > y->rank) return x->rank < y->rank ? 1 : -1;
    return boxes_by_size(&x->box, &y->box);
}

static double drawn(placer *p) { return inv_chance(&p->dice); }

/* Orders boxes for first fit by size times a power of length, and some noise; the `fixed` largest stay first. */
static void order_boxes(placer *p, size_t fixed, double power, double noise)
{
    for (size_t i = 0; i < p->n; i++) {
        const double rank = p->log_size[i] + power * p->log_length[i];
        p->order[i] = (ranked_box){noise > 0 ? rank + noise * drawn(p) : rank, &p->box[i]};
    }
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
/* For the rest beside large boxes: by size, by area, by length. */
static const double rest_powers[] = {0, 1, 100};

/* --- descents --- */

/* Blames the boxes that take part in the time `leaf`. */
static void blame_leaf(placer *p, uint32_t leaf)
{
    const skyline *s = &p->sky;
    for (uint32_t k = 0; k < s->n; k++)
        if (s->from[k] <= leaf && leaf <= s->to[k]) p->blame[s->id[k]] += 1;
}

/* Begins a descent with the `big` largest boxes. */
static void fill_skyline(placer *p, uint32_t big)
{
    skyline *s = &p->sky;
    s->n = big;
    memset(s->low, 0, big * sizeof *s->low);
    memset(s->coming, 0, p->tree.leaves * sizeof *s->coming);
    for (uint32_t i = 0; i < big; i++) {
        s->size[i] = (uint32_t)((p->box[i].nbytes + p->unit - 1) / p->unit);
        s->from[i] = p->from[i];
        s->to[i] = p->to[i];
        s->id[i] = i;
        for (uint32_t t = s->from[i]; t <= s->to[i]; t++) s->coming[t] += s->size[i];
    }
}

/* The box that is placed next: of those that would leave no room below for a whole other box, the one of least rank, to
 * which its height adds up to `slope`. UINT32_MAX: some box does not fit any more. */
static uint32_t next_box(placer *p, uint32_t cap, float slope)
{
    const skyline *s = &p->sky;
    const float per_unit = slope / (float)cap;
    uint32_t roof = UINT32_MAX, highest = 0, pick = 0;
    float least = INFINITY;
    for (uint32_t k = 0; k < s->n; k++) {
        const uint32_t top = s->low[k] + s->size[k];
        roof = top < roof ? top : roof;
        highest = top > highest ? top : highest;
    }
    if (highest > cap) {
        for (uint32_t k = 0; k < s->n; k++)
            if (s->low[k] + s->size[k] > cap) p->blame[s->id[k]] += 8;
        return UINT32_MAX;
    }
    for (uint32_t k = 0; k < s->n; k++) {
        const float key = (float)s->low[k] * per_unit + s->rank[k];
        if (s->low[k] >= roof || key >= least) continue;
        least = key;
        pick = k;
    }
    return pick;
}

/* Places box k of the skyline, and raises those that are live at the same time. */
static void place_box(placer *p, uint32_t k)
{
    skyline *s = &p->sky;
    const uint32_t from = s->from[k], to = s->to[k], size = s->size[k], top = s->low[k] + size, last = --s->n;
    p->box[s->id[k]].offset = (size_t)s->low[k] * p->unit;
    for (uint32_t t = from; t <= to; t++) s->coming[t] -= size;
    s->low[k] = s->low[last];
    s->size[k] = s->size[last];
    s->from[k] = s->from[last];
    s->to[k] = s->to[last];
    s->id[k] = s->id[last];
    s->rank[k] = s->rank[last];
    for (uint32_t i = 0; i < last; i++) {
        const uint32_t least = ((s->from[i] <= to) & (s->to[i] >= from)) ? top : 0;
        s->low[i] = s->low[i] > least ? s->low[i] : least;
    }
}

/* Returns true if all boxes of the skyline went into `cap` units. */
static bool descend(placer *p, uint32_t cap, float slope)
{
    skyline *s = &p->sky;
    while (s->n) {
        const uint32_t k = next_box(p, cap, slope);
        p->visits += 3 * s->n;
        if (k == UINT32_MAX) return false;
        uint32_t most = 0, full = s->from[k];
        for (uint32_t t = s->from[k]; t <= s->to[k]; t++) most = s->coming[t] > most ? s->coming[t] : most;
        p->visits += 2 * (s->to[k] - s->from[k]);
        if (s->low[k] + most > cap) {
            while (s->coming[full] < most) full++;
            blame_leaf(p, full);
            return false;
        }
        place_box(p, k);
    }
    return true;
}

/* Sets the preferences of a descent: a product of random powers of size and length, and of blame every other time. */
static void draw_preferences(placer *p, uint32_t big, bool blame)
{
    const double size = 1.5 * drawn(p), length = 1.5 * drawn(p);
    double most = 1;
    for (uint32_t i = 0; i < big; i++) most = fmax(most, p->blame[i]);
    for (uint32_t i = 0; i < big; i++) {
        double rank = -size * p->log_size[i] - length * p->log_length[i] + 0.5 * drawn(p);
        if (blame) rank -= log(1 + 3 * p->blame[i] / most);
        p->blame[i] *= 0.8;
        p->sky.rank[i] = (float)rank;
    }
}

/* How many of the largest boxes are packed by descents: those of at least one part in 16 of the load, in 32, and so on,
 * in turn. The largest alone are packed sooner, but may leave gaps too small for the others. */
static uint32_t boxes_of_part(const placer *p, uint32_t turn)
{
    enum { FIRST = 16, PARTS = 8 };
    const size_t least = p->load / ((size_t)FIRST << turn % PARTS);
    size_t big = 0;
    while (big < p->n && p->box[big].nbytes >= least) big++;
    return (uint32_t)big;
}

/* Packs the boxes into less than the best so far, until all take at most `aim` bytes or so many visits are made. */
static inv_status search_packing(placer *p, size_t aim, uint64_t visits)
{
    enum { TRIALS = 40 }; /* descents into one cap */
    const uint64_t until = p->visits + visits;
    for (uint32_t turn = 0; p->best > aim && p->visits < until; turn++) {
        const uint32_t big = boxes_of_part(p, turn);
        const size_t spare = big < p->n ? p->load / 1600 : 0; /* room for the small boxes */
        const double share = 0.5 + 0.5 * drawn(p);
        size_t cap = p->load + (size_t)(share * (double)(p->best - p->load));
        cap = cap > p->load + spare + p->unit ? cap - spare - p->unit : p->load;
        const uint64_t enough = p->visits + p->slice;
        bool packed = big == 0;
        for (uint32_t trial = 0; trial < TRIALS && !packed && p->visits < enough; trial++) {
            draw_preferences(p, big, trial & 1);
            fill_skyline(p, big);
            packed = descend(p, (uint32_t)(cap / p->unit), (float)(40 * drawn(p)));
            p->visits += 16 * (uint64_t)big;
        }
        if (!packed) continue;
        order_boxes(p, big, rest_powers[turn % (sizeof rest_powers / sizeof *rest_powers)], 0);
        INV_TRY(first_fit(p, big));
        p->visits += 1000 * (uint64_t)(p->n - big) + p->n;
    }
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

static inv_status measure_load(placer *p)
{
    size_t *delta = INV_ARENA_NEW(&p->scratch, size_t, p->tree.leaves + 1), live = 0;
    if (!delta) return INV_E_NOMEM;
    for (size_t i = 0; i < p->n; i++) {
        delta[p->from[i]] += p->box[i].nbytes; /* beginnings less ends, modulo 2^64 */
        delta[p->to[i] + 1] -= p->box[i].nbytes;
    }
    for (uint32_t s = 0; s < p->tree.leaves; s++) {
        live += delta[s];
        if (live > p->load) p->load = live;
    }
    return INV_OK;
}

static inv_status prepare_tree(placer *p)
{
    const size_t n = p->n + 1;
    uint32_t *begins = INV_ARENA_NEW(&p->scratch, uint32_t, n);
    p->from = INV_ARENA_NEW(&p->scratch, uint32_t, n);
    p->to = INV_ARENA_NEW(&p->scratch, uint32_t, n);
    p->offset = INV_ARENA_NEW(&p->scratch, size_t, n);
    p->order = INV_ARENA_NEW(&p->scratch, ranked_box, n);
    p->log_size = INV_ARENA_NEW(&p->scratch, double, n);
    p->log_length = INV_ARENA_NEW(&p->scratch, double, n);
    if (p->scratch.failed) return INV_E_NOMEM;
    index_leaves(p, begins);
    for (size_t i = 0; i < p->n; i++) {
        p->log_size[i] = log((double)p->box[i].nbytes);
        p->log_length[i] = log(p->to[i] - p->from[i] + 1.0);
    }
    p->tree.across = INV_ARENA_NEW(&p->scratch, ranges, 2 * (size_t)p->tree.leaves);
    p->tree.inside = INV_ARENA_NEW(&p->scratch, ranges, 2 * (size_t)p->tree.leaves);
    return p->scratch.failed ? INV_E_NOMEM : measure_load(p);
}

static inv_status prepare_descents(placer *p)
{
    const size_t n = p->n + 1;
    skyline *s = &p->sky;
    uint32_t **list[] = {&s->low, &s->size, &s->from, &s->to, &s->id};
    for (size_t k = 0; k < sizeof list / sizeof *list; k++) *list[k] = INV_ARENA_NEW(&p->scratch, uint32_t, n);
    s->rank = INV_ARENA_NEW(&p->scratch, float, n);
    s->coming = INV_ARENA_NEW(&p->scratch, uint32_t, p->tree.leaves);
    p->blame = INV_ARENA_NEW(&p->scratch, double, n);
    if (p->scratch.failed) return INV_E_NOMEM;
    p->unit = INV_PLACE_ALIGN;
    while (p->best / p->unit > UINT32_MAX / 2) p->unit *= 2;
    return INV_OK;
}

static inv_status pack_boxes(placer *p, unsigned effort)
{
    enum {
        DESCENTS = 700,
        MOST = 20000000,
        USUAL = 2000,
        MANY = 4000,
        FEWEST_PARTS = 8,
        MOST_PARTS = 64
    }; /* MOST: a sixtieth of a second */
    const uint64_t square = (uint64_t)p->n * p->n, most = MOST * (1 + (uint64_t)(p->n < MANY ? p->n : MANY) / USUAL);
    const uint64_t usual = square < most / DESCENTS ? square * DESCENTS : most, visits = effort * usual;
    INV_TRY(prepare_tree(p));
    const size_t near = p->load + p->load / 200;
    for (size_t k = 0; k < POWERS && p->best > near; k++) {
        order_boxes(p, 0, powers[k], 0);
        INV_TRY(first_fit(p, 0));
    }
    for (size_t parts = FEWEST_PARTS; parts <= MOST_PARTS && p->best > near; parts *= 2) {
        order_by_begin(p, parts);
        INV_TRY(first_fit(p, 0));
    }
    if (p->best == p->load) return INV_OK;
    INV_TRY(prepare_descents(p));
    p->slice = usual + usual / 2;
    INV_TRY(search_packing(p, near, visits));
    return p->best > near ? INV_OK : search_packing(p, p->load, visits / 8);
}

inv_status inv_place(inv_context *ctx, inv_box *box, size_t n, unsigned effort, size_t *need)
{
    placer p = {.box = box, .best = SIZE_MAX, .dice = INV_DICE};
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
    if (s == INV_OK && p.n) s = pack_boxes(&p, effort);
    for (size_t k = 0; k < p.n && s == INV_OK; k++) sorted[k]->offset = p.offset[k];
    if (s == INV_OK && p.n) *need = p.best;
    inv__arena_fini(&p.scratch);
    return s;
}
