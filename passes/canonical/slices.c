/* SPDX-License-Identifier: Apache-2.0
 * Pieces of a value along one axis, which are SliceRange, Gather at constant places, and SplitSizes:
 *     pieces that take each entry of x once    -> SplitSizes(x), or of a Permute of x
 *     pieces of such a part of x               -> pieces of the part, whoever else reads x
 *     SplitSizes(Concat(xs)), parts as joined  -> xs
 *     a piece inside of one part of a Concat   -> that of the part;  of a Permute of one also across parts -> Concat
 * The latter two not where some of the parts are outputs of the model: a multi-scale architecture has its name from
 * that. requires, gives: as simplify.c, which asks about each node. */
#include <stdlib.h>

#include "passes/canonical/canonical.h"

/* The entries that one node takes of its input along one axis: at even distances, or those of a list. */
typedef struct piece {
    inv_id node;
    const int64_t *index; /* NULL: start, start + step, ... */
    int64_t start, step, size, least;
} piece;

static int64_t constant_entry(const piece *p, int64_t i) { return p->index ? p->index[i] : p->start + i * p->step; }
static bool contiguous(const piece *p) { return !p->index && p->step == 1; }

/* The distance of each entry from the one before; 0: it is not one number. */
static int64_t distance(const int64_t *list, int64_t n)
{
    const int64_t step = n < 2 ? 1 : list[1] - list[0];
    for (int64_t i = 1; i < n; i++)
        if (list[i] - list[i - 1] != step) return 0;
    return step;
}

static bool piece_of_slice(const inv_graph *g, const inv_node *n, int *axis, piece *p)
{
    size_t k = 0, ks = 0;
    const int64_t *starts = inv_attr_ints(n, "starts", &k), *steps = inv_attr_ints(n, "steps", &ks);
    const inv_shape *x = &inv_val(g, n->in[0])->shape, *y = &inv_val(g, n->out[0])->shape;
    if (!starts || !steps || (int)k != x->rank || ks != k) return false;
    *axis = -1;
    for (int d = 0; d < x->rank; d++) {
        if (x->dim[d] == y->dim[d] && (steps[d] == 1 || y->dim[d] < 2)) continue;
        if (*axis >= 0) return false;
        *axis = d;
        p->index = NULL;
        p->start = starts[d];
        p->size = y->dim[d];
        p->step = p->size < 2 ? 1 : steps[d];
        p->least = p->step < 0 ? p->start + (p->size - 1) * p->step : p->start;
    }
    return *axis >= 0;
}

static bool piece_of_gather(const inv_graph *g, const inv_node *n, inv_arena *scratch, int *axis, piece *p)
{
    const inv_shape *x = &inv_val(g, n->in[0])->shape, *index = &inv_val(g, n->in[1])->shape;
    *axis = inv_simplify_axis(g, n);
    int64_t extent = x->dim[*axis];
    if (index->rank != 1 || index->dim[0] < 1 || index->dim[0] > extent || !inv_const_known(g, n->in[1])) return false;
    size_t k = 0;
    int64_t *list = INV_ARENA_NEW(scratch, int64_t, (size_t)index->dim[0]);
    if (!list || !inv_const_ints(g, n->in[1], (size_t)index->dim[0], list, &k)) return false;
    *p = (piece){.index = list, .size = (int64_t)k, .least = extent};
    for (size_t i = 0; i < k; i++) {
        if (list[i] < 0) list[i] += extent;
        if (list[i] < p->least) p->least = list[i];
    }
    p->start = list[0];
    if ((p->step = distance(list, p->size)) != 0) p->index = NULL;
    return true;
}

static bool piece_of(const inv_graph *g, inv_id id, inv_arena *scratch, int *axis, piece *p)
{
    const inv_node *n = inv_nod(g, id);
    if (inv_op_is(n, "SliceRange") ? !piece_of_slice(g, n, axis, p)
                                   : !inv_op_is(n, "Gather") || !piece_of_gather(g, n, scratch, axis, p))
        return false;
    p->node = id;
    return true;
}

inv_id inv_simplify_range(inv_graph *g, inv_id x, int axis, int64_t start, int64_t step, int64_t n)
{
    const inv_shape s = inv_val(g, x)->shape;
    int64_t starts[INV_MAX_RANK] = {0}, steps[INV_MAX_RANK], sizes[INV_MAX_RANK];
    for (int d = 0; d < s.rank; d++) {
        steps[d] = d == axis ? step : 1;
        sizes[d] = d == axis ? n : s.dim[d];
    }
    starts[axis] = start;
    const size_t rank = (size_t)s.rank;
    if (start == 0 && step == 1 && n == s.dim[axis]) return x;
    return inv_emit1(g, "SliceRange", INV_IN(x),
                     INV_ATTRS(inv_attr_of_ints("starts", rank, starts), inv_attr_of_ints("steps", rank, steps),
                               inv_attr_of_ints("sizes", rank, sizes)));
}

inv_id inv_simplify_entries(inv_graph *g, inv_id x, int axis, const int64_t *entry, int64_t n)
{
    const int64_t step = distance(entry, n);
    if (step) return inv_simplify_range(g, x, axis, entry[0], step, n);
    const inv_shape s = inv_shape_of(1, &n);
    const inv_id index = inv_graph_const(g, INV_I64, &s, entry);
    return index == INV_NONE ? INV_NONE
                             : inv_emit1(g, "Gather", INV_IN(x, index), INV_ATTRS(inv_attr_of_int("axis", axis)));
}

/* --- together they are all of x --- */

/* Pieces of one value along one axis, in order of their least entry. */
typedef struct cover {
    piece *part;
    size_t n;
    inv_id first; /* of them in execution order */
} cover;

static int by_least(const void *a, const void *b)
{
    const piece *p = a, *q = b;
    return p->least != q->least ? (p->least < q->least ? -1 : 1) : (p->node > q->node) - (p->node < q->node);
}

static bool collect_cover(const inv_simplifier *s, inv_id x, int axis, cover *c)
{
    const uint32_t from = x < s->fresh ? s->uses.start[x] : 0, end = x < s->fresh ? s->uses.start[x + 1] : 0;
    *c = (cover){.part = INV_ARENA_NEW(s->scratch, piece, end - from + 1), .first = INV_NONE};
    for (uint32_t u = from; c->part && u < end; u++) {
        const inv_id id = s->uses.node[u];
        piece p;
        int ax;
        if (inv_nod(s->g, id)->in[0] != x || !piece_of(s->g, id, s->scratch, &ax, &p) || ax != axis) continue;
        if (c->n == 0) c->first = id;
        c->part[c->n++] = p;
    }
    if (c->n) qsort(c->part, c->n, sizeof *c->part, by_least);
    return c->n > 0;
}

static bool tiles(const cover *c, int64_t extent)
{
    int64_t sum = 0;
    for (size_t i = 0; i < c->n; sum += c->part[i++].size)
        if (!contiguous(&c->part[i]) || c->part[i].start != sum) return false;
    return sum == extent;
}

/* Whether the piece takes entries that none before has, each once; then they are marked. */
static bool takes_free(const piece *p, int64_t extent, bool *taken)
{
    int64_t k = 0;
    for (int64_t e; k < p->size && (e = constant_entry(p, k)) >= 0 && e < extent && !taken[e]; k++) taken[e] = true;
    const bool all = k == p->size;
    while (!all && k-- > 0) taken[constant_entry(p, k)] = false;
    return all;
}

/* Keeps the pieces that take each entry of 0 .. extent - 1 once, the largest first: those that overlap them are pieces
 * of parts, or of x still. false: there are none. */
static bool choose_cover(cover *c, int64_t extent, inv_arena *scratch)
{
    int64_t sum = 0, most = extent;
    size_t n = 0;
    if (tiles(c, extent)) return true;
    for (size_t i = 0; i < c->n; i++) sum += c->part[i].size;
    if (sum < extent) return false;
    bool *taken = INV_ARENA_NEW(scratch, bool, (size_t)extent), *keep = INV_ARENA_NEW(scratch, bool, c->n);
    if (!taken || !keep) return false;
    for (int64_t less = 1; most > 0; most = less) {
        less = 0;
        for (size_t i = 0; i < c->n; i++) {
            const int64_t size = c->part[i].size;
            if (size == most) keep[i] = takes_free(&c->part[i], extent, taken);
            if (size < most && size > less) less = size;
        }
    }
    sum = 0;
    for (size_t i = 0; i < c->n; i++) {
        if (!keep[i]) continue;
        sum += c->part[i].size;
        c->part[n++] = c->part[i];
    }
    c->n = n;
    return sum == extent;
}

/* Pieces that partition their input become one SplitSizes; of a Permute of it, unless they are ranges side by side. */
static inv_status pieces_to_split(inv_simplifier *s, inv_id id, bool *done)
{
    inv_graph *g = s->g;
    int axis;
    piece p;
    cover c;
    if (!piece_of(g, id, s->scratch, &axis, &p)) return INV_OK;
    inv_id x = inv_nod(g, id)->in[0];
    const int64_t extent = inv_val(g, x)->shape.dim[axis];
    /* The split has to stand before all of them. */
    if (!collect_cover(s, x, axis, &c) || c.first != id || !choose_cover(&c, extent, s->scratch)) return INV_OK;
    int64_t *sizes = INV_ARENA_NEW(s->scratch, int64_t, c.n), at = 0;
    if (!sizes) return INV_E_NOMEM;
    for (size_t i = 0; i < c.n; i++) sizes[i] = c.part[i].size;
    if (!tiles(&c, extent)) {
        int64_t *all = INV_ARENA_NEW(s->scratch, int64_t, (size_t)extent);
        if (!all) return INV_E_NOMEM;
        for (size_t i = 0; i < c.n; i++)
            for (int64_t k = 0; k < c.part[i].size; k++) all[at++] = constant_entry(&c.part[i], k);
        x = inv_emit1(g, "Permute", INV_IN(x),
                      INV_ATTRS(inv_attr_of_int("axis", axis), inv_attr_of_ints("indices", (size_t)extent, all)));
        if (x == INV_NONE) return g->failed;
    }
    for (size_t i = 0; i < c.n; i++) *done = *done || c.part[i].node == id; /* or else it is a piece of one of them */
    if (c.n == 1) {
        inv_simplify_replace(s, inv_nod(g, c.part[0].node)->out[0], x);
        return INV_OK;
    }
    inv_id split = inv_emit(g, "SplitSizes", (uint32_t)c.n, INV_IN(x),
                            INV_ATTRS(inv_attr_of_int("axis", axis), inv_attr_of_ints("sizes", c.n, sizes)));
    if (split == INV_NONE) return g->failed;
    for (size_t i = 0; i < c.n; i++)
        inv_simplify_replace(s, inv_nod(g, c.part[i].node)->out[0], inv_nod(g, split)->out[i]);
    return INV_OK;
}

/* What stands for the piece p of x if all of its entries are in one part that m gives, which splits x or, if perm is
 * not NULL, a Permute of it: that part, or a piece of it. INV_NONE: they are not. */
static inv_id part_holding(inv_simplifier *s, const inv_node *m, const int64_t *perm, int axis, const piece *p)
{
    inv_graph *g = s->g;
    size_t k = 0;
    const int64_t *sizes = inv_attr_ints(m, "sizes", &k), extent = inv_val(g, m->in[0])->shape.dim[axis];
    int64_t *place = INV_ARENA_NEW(s->scratch, int64_t, (size_t)extent + 1),
            *local = INV_ARENA_NEW(s->scratch, int64_t, (size_t)p->size + 1), at = 0;
    size_t j = 0;
    if (!place || !local) return INV_NONE;
    for (int64_t i = 0; i < extent; i++) place[perm ? perm[i] : i] = i;
    for (int64_t e = 0; e < p->size; e++) {
        const int64_t entry = constant_entry(p, e);
        if (entry < 0 || entry >= extent) return INV_NONE;
        while (e == 0 && j + 1 < k && place[entry] >= at + sizes[j]) at += sizes[j++];
        local[e] = place[entry] - at;
        if (local[e] < 0 || local[e] >= sizes[j]) return INV_NONE;
    }
    const inv_id part = m->out[j] == INV_NONE ? INV_NONE : inv_graph_stands(g, m->out[j]);
    return part == INV_NONE ? INV_NONE : inv_simplify_entries(g, part, axis, local, p->size);
}

/* The same of an earlier SplitSizes of what the Permute gives. */
static inv_id part_of_permuted(inv_simplifier *s, const inv_node *permute, int axis, inv_id id, const piece *p)
{
    const inv_graph *g = s->g;
    size_t n = 0;
    const int64_t *perm = inv_attr_ints(permute, "indices", &n);
    const inv_id y = permute->out[0];
    inv_id to = INV_NONE;
    for (uint32_t u = s->uses.start[y]; to == INV_NONE && !g->failed && u < s->uses.start[y + 1]; u++) {
        const inv_node *m = inv_nod(g, s->uses.node[u]);
        if (inv_op_is(m, "SplitSizes") && m->in[0] == y && inv_simplify_axis(g, m) == axis &&
            s->place[s->uses.node[u]] < s->place[id])
            to = part_holding(s, m, perm, axis, p);
    }
    return to;
}

/* What stands for a piece of x whose entries an earlier SplitSizes of x, or of a Permute of it, has in one part.
 * INV_NONE: none. */
static inv_id part_at_hand(inv_simplifier *s, inv_id id)
{
    const inv_graph *g = s->g;
    piece p;
    int axis;
    if (!piece_of(g, id, s->scratch, &axis, &p)) return INV_NONE;
    const inv_id x = inv_nod(g, id)->in[0];
    inv_id to = INV_NONE;
    for (uint32_t u = x < s->fresh ? s->uses.start[x] : 0; x < s->fresh && u < s->uses.start[x + 1]; u++) {
        const inv_node *m = inv_nod(g, s->uses.node[u]);
        if (m->in[0] != x || s->place[s->uses.node[u]] >= s->place[id] || inv_simplify_axis(g, m) != axis) continue;
        if (inv_op_is(m, "SplitSizes")) to = part_holding(s, m, NULL, axis, &p);
        else if (inv_op_is(m, "Permute")) to = part_of_permuted(s, m, axis, id, &p);
        if (to != INV_NONE || g->failed) return to;
    }
    return INV_NONE;
}

/* --- of what is joined --- */

static bool leaves_graph(const inv_graph *g, inv_id v) { return v != INV_NONE && inv_val(g, v)->is_output; }

/* A Concat of parts along an axis, or that with its entries along it permuted, or its axes turned. */
typedef struct joined {
    const inv_node *concat;
    int axis;                   /* of the Concat */
    const int64_t *perm, *turn; /* NULL: none */
} joined;

static bool find_joined(const inv_graph *g, inv_id x, int axis, joined *j)
{
    const inv_node *d = inv_def_node(g, x);
    *j = (joined){.axis = axis};
    for (size_t n = 0; d && !inv_op_is(d, "Concat"); d = inv_def_node(g, d->in[0])) {
        if (!j->perm && inv_op_is(d, "Permute") && inv_simplify_axis(g, d) == j->axis) {
            j->perm = inv_attr_ints(d, "indices", &n);
        } else if (!j->turn && inv_op_is(d, "Transpose") && (j->turn = inv_attr_ints(d, "perm", &n)) != NULL) {
            j->axis = (int)j->turn[j->axis];
        } else {
            return false;
        }
    }
    j->concat = d;
    return d && inv_simplify_axis(g, d) == j->axis;
}

/* A piece of the Concat as the axes lie in x. */
static inv_id turned(inv_graph *g, const joined *j, inv_id v)
{
    if (v == INV_NONE || !j->turn) return v;
    const size_t rank = (size_t)inv_val(g, v)->shape.rank;
    return inv_emit1(g, "Transpose", INV_IN(v), INV_ATTRS(inv_attr_of_ints("perm", rank, j->turn)));
}

/* Which part entry e is in. *e: as its entry. */
static uint32_t part_of(const inv_graph *g, const joined *j, int64_t *e)
{
    if (j->perm) *e = j->perm[*e];
    for (uint32_t k = 0; k + 1 < j->concat->nin; k++) {
        const int64_t n = inv_val(g, j->concat->in[k])->shape.dim[j->axis];
        if (*e < n) return k;
        *e -= n;
    }
    return j->concat->nin - 1;
}

/* Slices along one axis that meet at the joints of a Concat, some of them outputs of the model, some not. */
static bool scales_part(const inv_simplifier *s, inv_id x, const joined *j)
{
    const inv_graph *g = s->g;
    cover c;
    size_t out = 0;
    if (j->perm || j->turn) return false;
    if (!collect_cover(s, x, j->axis, &c) || c.n != j->concat->nin) return false;
    int64_t at = 0;
    for (size_t i = 0; i < c.n; i++) {
        const piece *p = &c.part[i];
        if (!contiguous(p) || p->start != at || p->size != inv_val(g, j->concat->in[i])->shape.dim[j->axis])
            return false;
        at += p->size;
        out += leaves_graph(g, inv_nod(g, p->node)->out[0]);
    }
    return out > 0 && out < c.n;
}

static bool crosses(const inv_graph *g, const joined *j, const piece *p)
{
    int64_t e = constant_entry(p, 0);
    const uint32_t k = part_of(g, j, &e);
    const bool ends = !p->index && !j->perm; /* the first and the last entry tell of those between */
    for (int64_t i = ends ? p->size - 1 : 1; i < p->size; i++) {
        e = constant_entry(p, i);
        if (part_of(g, j, &e) != k) return true;
    }
    return false;
}

/* Pieces that take each entry of a Concat once, some of them across a joint: they become a SplitSizes of it. */
static bool cover_across(const inv_simplifier *s, inv_id x, int axis, const joined *j)
{
    cover c;
    if (!collect_cover(s, x, axis, &c) || !choose_cover(&c, inv_val(s->g, x)->shape.dim[axis], s->scratch))
        return false;
    for (size_t i = 0; i < c.n; i++)
        if (crosses(s->g, j, &c.part[i])) return true;
    return false;
}

/* A piece of joined parts, as a piece of each part that it takes of, joined; INV_NONE: it comes back to a part. */
static inv_id joined_pieces(inv_graph *g, inv_arena *scratch, const joined *j, const piece *p)
{
    const inv_node concat = *j->concat;
    int64_t *entry = INV_ARENA_NEW(scratch, int64_t, (size_t)p->size + 1);
    uint32_t *of = INV_ARENA_NEW(scratch, uint32_t, (size_t)p->size + 1), n = 0;
    bool *taken = INV_ARENA_NEW(scratch, bool, concat.nin + 1);
    inv_id *part = INV_ARENA_NEW(scratch, inv_id, concat.nin + 1);
    if (!entry || !of || !taken || !part) return INV_NONE;
    for (int64_t i = 0; i < p->size; i++) {
        entry[i] = constant_entry(p, i);
        of[i] = part_of(g, j, &entry[i]);
        if (i > 0 && of[i] == of[i - 1]) continue;
        if (taken[of[i]]) return INV_NONE;
        taken[of[i]] = true;
    }
    for (int64_t i = 0, end; i < p->size; i = end) {
        for (end = i + 1; end < p->size && of[end] == of[i];) end++;
        part[n] = inv_simplify_entries(g, concat.in[of[i]], j->axis, entry + i, end - i);
        if (part[n++] == INV_NONE) return INV_NONE;
    }
    return n == 1 ? part[0] : inv_emit1(g, "Concat", n, part, INV_ATTRS(inv_attr_of_int("axis", j->axis)));
}

/* What stands for a piece of joined parts; INV_NONE: nothing does. */
static inv_id piece_of_parts(inv_simplifier *s, inv_id id)
{
    inv_graph *g = s->g;
    const inv_id x = inv_nod(g, id)->in[0];
    int axis;
    piece p;
    joined j;
    if (!piece_of(g, id, s->scratch, &axis, &p) || !find_joined(g, x, axis, &j)) return INV_NONE;
    if (!j.perm && crosses(g, &j, &p)) return INV_NONE;
    if (scales_part(s, x, &j) || cover_across(s, x, axis, &j)) return INV_NONE;
    if (p.index || j.perm) return turned(g, &j, joined_pieces(g, s->scratch, &j, &p));
    int64_t start = p.start;
    const inv_id part = j.concat->in[part_of(g, &j, &start)];
    return turned(g, &j, inv_simplify_range(g, part, j.axis, start, p.step, p.size));
}

/* What a piece becomes hangs on the other pieces of its operand. Of one that has just come there they are not known: it
 * waits for the next sweep. */
inv_status inv_simplify_piece(inv_simplifier *s, inv_id id, bool *done)
{
    if (s->moved) return INV_OK;
    inv_id to = piece_of_parts(s, id);
    if (to == INV_NONE && !s->g->failed) to = part_at_hand(s, id);
    if (s->g->failed) return s->g->failed;
    *done = to != INV_NONE;
    if (!*done) return pieces_to_split(s, id, done);
    inv_simplify_replace(s, inv_nod(s->g, id)->out[0], to);
    return INV_OK;
}

void inv_simplify_split(inv_simplifier *s, inv_id id, bool *done)
{
    inv_graph *g = s->g;
    const inv_node *n = inv_nod(g, id);
    joined j;
    size_t k = 0, out = 0;
    const int64_t *sizes = inv_attr_ints(n, "sizes", &k);
    if (!find_joined(g, n->in[0], inv_simplify_axis(g, n), &j) || j.perm || k != j.concat->nin) return;
    for (size_t i = 0; i < k; i++) {
        if (inv_val(g, j.concat->in[i])->shape.dim[j.axis] != sizes[i]) return;
        out += leaves_graph(g, n->out[i]);
    }
    if (out > 0 && out < k) return;
    const inv_id *whole = n->out, *part = j.concat->in; /* emitting moves the nodes */
    for (size_t i = 0; i < k; i++) {
        const inv_id to = turned(g, &j, part[i]);
        if (to == INV_NONE) return; /* g->failed */
        inv_simplify_replace(s, whole[i], to);
    }
    *done = true;
}
