/* SPDX-License-Identifier: Apache-2.0
 * Offsets for live intervals, the dynamic storage allocation problem, which is NP-complete: boxes of given sizes and
 * intervals go into the smallest arena. No arena is smaller than the most bytes that are live at once (the load). This
 * comes to it, or within a few percent where plans are tight, in three ways:
 *   first fit by falling size (Pisarchyk and Lee, arXiv 2001.03288), and by size times some powers of length, in
 *   O(n log n) list operations each; and of large boxes by when they begin, then of the others by size. On the steps of
 *   deep networks the best is the load already, or next to it: values of one size alternate there, and gradients pile
 *   up on top of them.
 *   climbs, from the best orders of first fit: a box that ends too high goes ahead of one that is live at the same
 *   time, which is undone if more bytes are too high then than were some moves ago. (Joslin and Clements, "Squeaky
 *   wheel" optimization, JAIR 10, 1999, move what is in trouble ahead, too, but all of it at once, and never back. To
 *   accept late is from Burke and Bykov, EJOR 258, 2017.) A step has many tight times that have little to do with one
 *   another; these are mended one by one. Only larger boxes take part, and what leaves no room for the others that are
 *   live at the same time is too high: gradients that pile up in backward need their place above large values.
 *   descents, from the ground up: each box stands on those placed before it, and one of those that leave no room for a
 *   whole other box below comes next, by preferences that are drawn anew for each descent. One that finds a time at
 *   which the bytes still to come do not fit any more ends there, and the boxes of that time are preferred later. (That
 *   packings can be built so, and that bound, are from Moffitt, MiniMalloc, ASPLOS 2023; where that turns back, this
 *   begins anew, which on the steps of networks finds more in the same time.) Only the largest boxes are packed so;
 *   first fit puts the others into the gaps.
 * Of very many boxes, some 2,000 operators and more, a few orders of first fit are all: the rest takes long there and
 * has never won. The result is deterministic, and the work bounded.
 * requires: boxes.
 * gives: their offsets, and the size of the arena. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/chance.h"
#include "passes/schedule/placer.h"

static double drawn(placer *p) { return inv_chance(&p->dice); }

/* For the rest beside large boxes: by size, by area, by length. */
static const double rest_powers[] = {0, 1, 100};

/* Counts the bytes per leaf, and one more, of the boxes that are no larger than box `first`. */
static void count_live(const placer *p, size_t first, size_t *live)
{
    memset(live, 0, (p->tree.leaves + (size_t)1) * sizeof *live);
    for (size_t i = first; i < p->n; i++) {
        live[p->from[i]] += p->box[i].nbytes; /* beginnings less ends, modulo 2^64 */
        live[p->to[i] + 1] -= p->box[i].nbytes;
    }
    for (uint32_t t = 1; t <= p->tree.leaves; t++) live[t] += live[t - 1];
}

/* --- climbs --- */

/* Parts of the load: smaller boxes take no part in a climb. The first climbs are with few boxes, for which moves are
 * quick, and each step of them with more. */
enum { FEW_PARTS = 32, STEPS = 5, MOST_PARTS = FEW_PARTS << (STEPS - 1) };
enum { BEST = 2 }; /* of the orders, from which a climb of each step begins */

/* Chooses the boxes that take part, and sets their caps: what is aimed at, less the bytes of the others that are live
 * at the same time. Those have room on top then, as gradients have that pile up while large values alternate below. */
static void choose_boxes(placer *p, size_t parts)
{
    climb *c = &p->climb;
    for (c->n = 0; c->n < p->n && p->box[c->n].nbytes >= p->load / parts;) c->n++;
    count_live(p, c->n, c->others);
    for (size_t i = 0; i < c->n; i++) {
        size_t most = 0;
        for (uint32_t t = p->from[i]; t <= p->to[i]; t++) most = c->others[t] > most ? c->others[t] : most;
        c->cap[i] = c->aim - most;
        p->visits += p->to[i] - p->from[i];
    }
}

/* Places the boxes that take part in their order. */
static inv_status fit_order(placer *p, double most, double *above)
{
    const climb *c = &p->climb;
    memcpy(p->order, c->order, p->n * sizeof *p->order);
    return inv_fit_boxes(p, c->n, 0, c->cap, most, above);
}

/* Goes on from the order that was placed. */
static void keep_move(placer *p, double sum)
{
    climb *c = &p->climb;
    c->sum = sum;
    for (size_t i = 0; i < c->n; i++) c->above[i] = inv_bytes_above(&p->box[i], c->cap[i]);
    if (sum >= c->least) return;
    c->least = sum;
    c->vain = 0;
    memcpy(c->kept, c->order, p->n * sizeof *c->kept);
}

/* Makes the k-th order's boxes that take part in climbs the first, and the others follow by size. */
static inv_status begin_climb(placer *p, size_t k)
{
    climb *c = &p->climb;
    size_t n = 0;
    double sum;
    inv_order_start(p, k);
    for (size_t i = 0; i < p->n; i++)
        if ((size_t)(p->order[i].box - p->box) < c->n) c->order[n++] = p->order[i];
    for (; n < p->n; n++) c->order[n] = (ranked_box){0, &p->box[n]};
    INV_TRY(fit_order(p, INFINITY, &sum));
    c->least = INFINITY;
    for (size_t i = 0; i < LATE; i++) c->past[i] = sum;
    keep_move(p, sum);
    return INV_OK;
}

static int starts_by_sum(const void *a, const void *b)
{
    const start *x = a, *y = b;
    if (x->sum < y->sum || x->sum > y->sum) return x->sum < y->sum ? -1 : 1;
    return x->order < y->order ? -1 : 1;
}

static inv_status begin_next_climb(placer *p)
{
    climb *c = &p->climb;
    const size_t k = c->nstart++;
    choose_boxes(p, (size_t)FEW_PARTS << k / BEST);
    return begin_climb(p, c->start[k % BEST].order);
}

/* Sorts the orders to begin with by how many bytes they leave above the caps. */
static inv_status prepare_climbs(placer *p, size_t aim)
{
    climb *c = &p->climb;
    c->aim = aim - (aim - p->load) / 3; /* a little below: the other boxes leave gaps */
    c->order = INV_ARENA_NEW(&p->scratch, ranked_box, p->n + 1);
    c->kept = INV_ARENA_NEW(&p->scratch, ranked_box, p->n + 1);
    c->others = INV_ARENA_NEW(&p->scratch, size_t, p->tree.leaves + 1);
    c->cap = INV_ARENA_NEW(&p->scratch, size_t, p->n + 1);
    c->above = INV_ARENA_NEW(&p->scratch, size_t, p->n + 1);
    if (p->scratch.failed) return INV_E_NOMEM;
    choose_boxes(p, MOST_PARTS);
    for (size_t k = 0; k < STARTS; k++) {
        INV_TRY(begin_climb(p, k));
        c->start[k] = (start){c->sum, k};
    }
    qsort(c->start, STARTS, sizeof *c->start, starts_by_sum);
    return begin_next_climb(p);
}

/* Draws a box that is above its cap, by bytes, and one before it that is live at the same time. False: there is none.
 */
static bool draw_move(placer *p, size_t *from, size_t *to)
{
    const climb *c = &p->climb;
    double sum = 0;
    size_t n = 0;
    for (size_t i = 0; i < c->n; i++) {
        const double above = (double)c->above[c->order[i].box - p->box];
        sum += above;
        if (above > 0 && drawn(p) * sum < above) *from = i;
    }
    if (!(sum > 0)) return false;
    const size_t box = (size_t)(c->order[*from].box - p->box);
    for (size_t i = 0; i < *from; i++) {
        const size_t other = (size_t)(c->order[i].box - p->box);
        if (p->from[other] <= p->to[box] && p->to[other] >= p->from[box] && drawn(p) * (double)++n < 1) *to = i;
    }
    p->visits += 2 * c->n;
    return n > 0;
}

/* Moves one box ahead, and back again if more bytes are above the caps then than are now, and than were LATE moves ago:
 * some knots take two moves, the first of which is none for the better. */
static inv_status try_move(placer *p)
{
    climb *c = &p->climb;
    size_t from = 0, to = 0;
    double above, *past = &c->past[c->moves++ % LATE];
    c->vain++;
    if (!draw_move(p, &from, &to)) return INV_OK;
    const ranked_box moved = c->order[from];
    const double most = fmax(c->sum, *past);
    memmove(&c->order[to + 1], &c->order[to], (from - to) * sizeof moved);
    c->order[to] = moved;
    INV_TRY(fit_order(p, most, &above));
    if (above <= most) {
        keep_move(p, above);
    } else {
        memmove(&c->order[to], &c->order[to + 1], (from - to) * sizeof moved);
        c->order[from] = moved;
    }
    *past = c->sum;
    return INV_OK;
}

/* Climbs from the best orders on, one after the other, for so many visits. */
static inv_status climb_on(placer *p, size_t aim, uint64_t visits)
{
    enum { VAIN = 60 }; /* moves */
    climb *c = &p->climb;
    const uint64_t until = p->visits + visits;
    bool more = true;
    while (more && p->best > aim && !c->done) {
        INV_TRY(try_move(p));
        more = p->visits < until;
        const bool ends = c->vain > VAIN || c->least <= 0;
        if (more && !ends) continue;
        memcpy(p->order, c->kept, p->n * sizeof *p->order);
        INV_TRY(inv_first_fit(p, 0));
        if (ends && c->nstart == STEPS * BEST) c->done = true;
        else if (ends) INV_TRY(begin_next_climb(p));
    }
    return INV_OK;
}

/* --- descents --- */

/* Blames the boxes that take part in the time `leaf`. */
static void blame_leaf(placer *p, int32_t leaf)
{
    const skyline *s = &p->sky;
    for (int32_t k = 0; k < s->n; k++)
        if (s->from[k] <= leaf && leaf <= s->to[k]) p->blame[s->id[k]] += 1;
}

/* Begins a descent with the `big` largest boxes. */
static void fill_skyline(placer *p, int32_t big)
{
    skyline *s = &p->sky;
    s->n = big;
    memset(s->low, 0, (size_t)big * sizeof *s->low);
    memset(s->coming, 0, p->tree.leaves * sizeof *s->coming);
    for (int32_t i = 0; i < big; i++) {
        s->size[i] = (int32_t)((p->box[i].nbytes + p->unit - 1) / p->unit);
        s->from[i] = (int32_t)p->from[i];
        s->to[i] = (int32_t)p->to[i];
        s->id[i] = i;
        for (int32_t t = s->from[i]; t <= s->to[i]; t++) s->coming[t] += s->size[i];
    }
}

/* An integer that compares with others as the number does with theirs: compilers find the least of several at once of
 * integers, and not of floats, whose sums and comparisons they keep in order. */
static int32_t as_ordered(float x)
{
    int32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits ^ (bits >> 31 & INT32_MAX);
}

/* The box that is placed next: of those that would leave no room below for a whole other box, the one of least rank, to
 * which its height adds up to `slope`. NONE: some box does not fit any more. */
enum { NONE = -1 };
static int32_t next_box(placer *p, int32_t cap, float slope)
{
    const skyline *s = &p->sky;
    const float per_unit = slope / (float)cap;
    const int32_t n = s->n;
    int32_t roof = INT32_MAX, highest = 0, pick = 0, least = INT32_MAX;
    for (int32_t k = 0; k < n; k++) {
        const int32_t top = s->low[k] + s->size[k];
        roof = top < roof ? top : roof;
        highest = top > highest ? top : highest;
    }
    if (highest > cap) {
        for (int32_t k = 0; k < n; k++)
            if (s->low[k] + s->size[k] > cap) p->blame[s->id[k]] += 8;
        return NONE;
    }
    for (int32_t k = 0; k < n; k++) s->key[k] = as_ordered((float)s->low[k] * per_unit + s->rank[k]);
    for (int32_t k = 0; k < n; k++) {
        const int32_t bar = INT32_MAX ^ -(s->low[k] < roof); /* the largest integer for those that come later */
        const int32_t key = s->key[k] > bar ? s->key[k] : bar;
        least = key < least ? key : least;
    }
    while (s->key[pick] != least || s->low[pick] >= roof) pick++;
    return pick;
}

/* Places box k of the skyline, and raises those that are live at the same time. */
static void place_box(placer *p, int32_t k)
{
    skyline *s = &p->sky;
    const int32_t from = s->from[k], to = s->to[k], size = s->size[k], top = s->low[k] + size, last = --s->n;
    p->box[s->id[k]].offset = (size_t)s->low[k] * p->unit;
    for (int32_t t = from; t <= to; t++) s->coming[t] -= size;
    s->low[k] = s->low[last];
    s->size[k] = s->size[last];
    s->from[k] = s->from[last];
    s->to[k] = s->to[last];
    s->id[k] = s->id[last];
    s->rank[k] = s->rank[last];
    for (int32_t i = 0; i < last; i++) {
        const int32_t least = ((s->from[i] <= to) & (s->to[i] >= from)) ? top : 0;
        s->low[i] = s->low[i] > least ? s->low[i] : least;
    }
}

/* Returns true if all boxes of the skyline went into `cap` units. */
static bool descend(placer *p, int32_t cap, float slope)
{
    skyline *s = &p->sky;
    while (s->n) {
        const int32_t k = next_box(p, cap, slope);
        p->visits += 3 * (uint64_t)s->n;
        if (k == NONE) return false;
        int32_t most = 0, full = s->from[k];
        for (int32_t t = s->from[k]; t <= s->to[k]; t++) most = s->coming[t] > most ? s->coming[t] : most;
        p->visits += 2 * (uint64_t)(s->to[k] - s->from[k]);
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
 * in turn. The largest alone are packed sooner, but may leave gaps too small for the others. No more than one descent
 * has time for, which looks at all that are left for each. */
static uint32_t boxes_of_part(const placer *p, uint32_t turn)
{
    enum { FIRST = 16, PARTS = 8 };
    const size_t least = p->load / ((size_t)FIRST << turn % PARTS);
    size_t big = 0;
    while (big < p->n && p->box[big].nbytes >= least && (uint64_t)big * big < p->slice) big++;
    return (uint32_t)big;
}

/* Packs the boxes into less than the best so far, until all take at most `aim` bytes or so many visits are made. */
static inv_status search_packing(placer *p, size_t aim, uint64_t visits)
{
    enum { TRIALS = 40 }; /* descents into one cap */
    const uint64_t until = p->visits + visits;
    for (; p->best > aim && p->visits < until; p->turn++) {
        const uint32_t turn = p->turn, big = boxes_of_part(p, turn);
        const size_t spare = big < p->n ? p->load / 1600 : 0; /* room for the small boxes */
        const double share = 0.5 + 0.5 * drawn(p);
        size_t cap = p->load + (size_t)(share * (double)(p->best - p->load));
        cap = cap > p->load + spare + p->unit ? cap - spare - p->unit : p->load;
        const uint64_t enough = p->visits + p->slice;
        bool packed = big == 0;
        for (uint32_t trial = 0; trial < TRIALS && !packed && p->visits < enough; trial++) {
            draw_preferences(p, big, trial & 1);
            fill_skyline(p, (int32_t)big);
            packed = descend(p, (int32_t)(cap / p->unit), (float)(40 * drawn(p)));
            p->visits += 16 * (uint64_t)big;
        }
        if (!packed) continue;
        inv_order_boxes(p, big, rest_powers[turn % (sizeof rest_powers / sizeof *rest_powers)]);
        INV_TRY(inv_first_fit(p, big));
    }
    return INV_OK;
}

/* --- all ways --- */

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
    size_t *live = INV_ARENA_NEW(&p->scratch, size_t, p->tree.leaves + 1);
    if (!live) return INV_E_NOMEM;
    count_live(p, 0, live);
    for (uint32_t t = 0; t < p->tree.leaves; t++)
        if (live[t] > p->load) p->load = live[t];
    return INV_OK;
}

static inv_status prepare_tree(placer *p)
{
    const size_t n = p->n + 1;
    uint32_t *begins = INV_ARENA_NEW(&p->scratch, uint32_t, n);
    p->from = INV_ARENA_NEW(&p->scratch, uint32_t, n);
    p->to = INV_ARENA_NEW(&p->scratch, uint32_t, n);
    p->offset = INV_ARENA_NEW(&p->scratch, size_t, n);
    p->cap = INV_ARENA_NEW(&p->scratch, size_t, n);
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
    p->tree.wanted = INV_ARENA_NEW(&p->scratch, uint32_t, 2 * (size_t)p->tree.leaves);
    p->tree.above = INV_ARENA_NEW(&p->scratch, uint32_t, 2 * (size_t)p->tree.leaves);
    return p->scratch.failed ? INV_E_NOMEM : measure_load(p);
}

static inv_status prepare_descents(placer *p)
{
    const size_t n = p->n + 1;
    skyline *s = &p->sky;
    int32_t **list[] = {&s->low, &s->size, &s->from, &s->to, &s->id, &s->key};
    for (size_t k = 0; k < sizeof list / sizeof *list; k++) *list[k] = INV_ARENA_NEW(&p->scratch, int32_t, n);
    s->rank = INV_ARENA_NEW(&p->scratch, float, n);
    s->coming = INV_ARENA_NEW(&p->scratch, int32_t, p->tree.leaves);
    p->blame = INV_ARENA_NEW(&p->scratch, double, n);
    if (p->scratch.failed) return INV_E_NOMEM;
    p->unit = INV_PLACE_ALIGN;
    while (p->best / p->unit > INT32_MAX / 4) p->unit *= 2;
    return INV_OK;
}

static inv_status pack_boxes(placer *p, unsigned effort, size_t enough)
{
    enum { DESCENTS = 700, MOST = 20000000, USUAL = 2000, MANY = 4000, FEW = 8000 }; /* MOST: a sixtieth of a second */
    enum { PARTS = 12, VAIN = 6 }; /* of an effort, each with a climb and descents; in vain, in a row, at most */
    const uint64_t square = (uint64_t)p->n * p->n, most = MOST * (1 + (uint64_t)(p->n < MANY ? p->n : MANY) / USUAL);
    const uint64_t usual = square < most / DESCENTS ? square * DESCENTS : most;
    INV_TRY(prepare_tree(p));
    /* what is aimed at hangs on the boxes alone, so that `enough` changes nothing but where this ends */
    const size_t fair = p->load + p->load / 200, near = fair > enough ? fair : enough;
    const bool many = p->n >= FEW; /* the first orders alone: one more try takes as long as a pass over the graph */
    bool placed = false;           /* before; else the order by offsets is one by size, the first of the others */
    for (size_t i = 0; i < p->n; i++) placed |= p->box[i].offset > 0;
    inv_order_as_placed(p);
    INV_TRY(inv_first_fit(p, 0));
    for (size_t k = !placed; k < (many ? FIRST_STARTS : STARTS) && p->best > near; k++) {
        inv_order_start(p, k);
        INV_TRY(inv_first_fit(p, 0));
    }
    if (many || p->best == p->load || p->best <= enough) return INV_OK;
    INV_TRY(prepare_descents(p));
    p->slice = usual + usual / 2;
    if (p->best > near) INV_TRY(prepare_climbs(p, fair));
    const uint64_t last = p->visits + effort * PARTS * usual;
    for (uint64_t vain = 0; p->visits < last && vain < effort * VAIN && p->best > near;) {
        const size_t before = p->best;
        INV_TRY(climb_on(p, near, usual / 2));
        INV_TRY(search_packing(p, near, usual / 2));
        vain = p->best < before ? 0 : vain + 1;
    }
    return p->best > near || p->best <= enough ? INV_OK : search_packing(p, p->load, effort * usual / 8);
}

inv_status inv_place(inv_context *ctx, inv_box *box, size_t n, unsigned effort, size_t enough, size_t *need)
{
    placer p = {.best = SIZE_MAX, .dice = INV_DICE};
    inv_arena_init(&p.scratch, ctx);
    inv_box **sorted = INV_ARENA_NEW(&p.scratch, inv_box *, n + 1);
    p.box = INV_ARENA_NEW(&p.scratch, inv_box, n + 1);
    inv_status s = sorted && p.box ? INV_OK : INV_E_NOMEM;
    for (size_t i = 0; i < n && s == INV_OK; i++) {
        if (box[i].nbytes) sorted[p.n++] = &box[i];
        else box[i].offset = 0; /* a box without bytes may stand anywhere */
    }
    if (p.n) qsort(sorted, p.n, sizeof *sorted, inv_boxes_by_size);
    for (size_t k = 0; k < p.n; k++) p.box[k] = *sorted[k];
    *need = 0;
    if (s == INV_OK && p.n) s = pack_boxes(&p, effort, enough);
    for (size_t k = 0; k < p.n && s == INV_OK; k++) sorted[k]->offset = p.offset[k];
    if (s == INV_OK && p.n) *need = p.best;
    inv_arena_fini(&p.scratch);
    return s;
}
