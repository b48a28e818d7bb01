/* SPDX-License-Identifier: Apache-2.0
 * Applies peepholes to canonical operators, so that one meaning has one form whatever the exporter wrote. The graph is
 * swept in execution order until a sweep changes nothing; a sweep looks at each node and its operands:
 *   the same node twice                      -> once
 *   View/Transpose/Permute that change nothing, View of View, Transpose of Transpose, Permute of Permute
 *   slices and gathers along one axis that take each entry of x once -> SplitSizes(x), or of a Permute of x
 *   SplitSizes(Concat(xs)), parts as joined  -> xs;  SliceRange inside one part of a Concat -> of that part
 *     (but not where some of the parts are outputs of the model: a multi-scale architecture has its name from that)
 *   ScatterNDN at constant places of one axis -> Concat with pieces of what is overwritten: overwrite.c
 *   GatherNDN at constant places of the first axis -> Gather
 *   Gather at constant places of a Transpose, Concat of Transposes alike -> the Transpose comes last
 *   MatMulT of a Transpose of the last two axes -> transA / transB
 *   MatMulT, Gather and SliceRange of an Unpack -> what reads it packed: unpack.c
 *   MaxPoolN of a Relu or a clip that nobody else reads -> that of the MaxPoolN
 * requires, gives: canonical forward graph. */
#include <string.h>

#include "passes/canonical/canonical.h"

typedef struct simplifier {
    inv_graph *g;
    size_t fresh; /* values from `fresh` on were made by this sweep */
    bool changed;
} simplifier;

/* `from` is replaced by `to`, which takes over the name if it is new itself; else the name of `from` is given up. */
static void replace_by(simplifier *s, inv_id from, inv_id to)
{
    if (from == INV_NONE || from == to) return;
    if (to >= s->fresh && from < s->fresh) inv_graph_swap_names(s->g, from, to);
    inv_val(s->g, from)->same = to;
    s->changed = true;
}

/* The same places, as two constants. */
static bool same_places(const inv_graph *g, inv_id a, inv_id b)
{
    if (a == INV_NONE || b == INV_NONE || !inv_const_known(g, a) || !inv_const_known(g, b)) return false;
    const inv_value *x = inv_val(g, a), *y = inv_val(g, b);
    return x->data.dtype == y->data.dtype && x->data.nbytes == y->data.nbytes && x->data.bytes && y->data.bytes &&
           inv_shape_equal(&x->shape, &y->shape) && memcmp(x->data.bytes, y->data.bytes, x->data.nbytes) == 0;
}

static bool find_same_node(const inv_graph *g, const inv_node *a, const inv_node *b)
{
    if (a->op != b->op || a->nin != b->nin || a->nout != b->nout || a->nattr != b->nattr) return false;
    /* Twins of INV_OP_UPDATE read the same statistic, but each is to update it, one after the other:
     * passes/autodiff/optimizer_update.c. */
    if (a->op->flags & (INV_OP_RANDOM | INV_OP_SOURCE | INV_OP_STEP | INV_OP_UPDATE) || a->op->writes) return false;
    for (uint32_t i = 0; i < a->nin; i++)
        if (a->in[i] != b->in[i] && !(i == 1 && inv_op_is(a, "Gather") && same_places(g, a->in[i], b->in[i])))
            return false;
    for (uint32_t i = 0; i < a->nattr; i++)
        if (!inv_attr_same(&a->attr[i], &b->attr[i])) return false;
    for (uint32_t i = 0; i < a->nout; i++)
        if ((a->out[i] == INV_NONE) != (b->out[i] == INV_NONE)) return false;
    return true;
}

static bool identity_perm(const int64_t *p, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (p[i] != (int64_t)i) return false;
    return true;
}

/* Only axes of extent 1 change places with others. */
static bool keeps_order(const inv_shape *x, const int64_t *perm)
{
    int64_t last = -1;
    bool kept = true;
    for (int d = 0; d < x->rank; d++) {
        kept = kept && (x->dim[perm[d]] == 1 || perm[d] > last);
        if (x->dim[perm[d]] != 1) last = perm[d];
    }
    return kept;
}

/* The node's output must have its input's rank. */
static int axis_attr(const inv_graph *g, const inv_node *n)
{
    int64_t axis = inv_attr_int(n, "axis", 0);
    return (int)(axis < 0 ? axis + inv_val(g, n->in[0])->shape.rank : axis);
}

/* Finds what stands for the output of a View, Transpose or Permute; INV_NONE: nothing does. */
static inv_id fold_rearrangement(simplifier *s, const inv_node *n)
{
    inv_graph *g = s->g;
    const inv_value *x = inv_val(g, n->in[0]), *y = inv_val(g, n->out[0]);
    const inv_node *d = inv_def_node(g, n->in[0]);
    if (inv_op_is(n, "View")) {
        if (inv_shape_equal(&x->shape, &y->shape)) return n->in[0];
        if (d && inv_op_is(d, "View")) {
            inv_shape shape = y->shape;
            return inv_emit1(g, "View", INV_IN(d->in[0]),
                             INV_ATTRS(inv_attr_of_ints("shape", (size_t)shape.rank, shape.dim)));
        }
    }
    size_t np = 0, nd = 0;
    if (inv_op_is(n, "Transpose")) {
        const int64_t *p = inv_attr_ints(n, "perm", &np);
        if (p && identity_perm(p, np)) return n->in[0];
        if (p && keeps_order(&x->shape, p)) {
            const inv_shape shape = y->shape;
            return inv_emit1(g, "View", INV_IN(n->in[0]),
                             INV_ATTRS(inv_attr_of_ints("shape", (size_t)shape.rank, shape.dim)));
        }
        const int64_t *q = d && inv_op_is(d, "Transpose") ? inv_attr_ints(d, "perm", &nd) : NULL;
        if (p && q && np == nd && np <= INV_MAX_RANK) {
            int64_t both[INV_MAX_RANK];
            for (size_t i = 0; i < np; i++) both[i] = q[p[i]];
            return inv_emit1(g, "Transpose", INV_IN(d->in[0]), INV_ATTRS(inv_attr_of_ints("perm", np, both)));
        }
    }
    if (inv_op_is(n, "Permute")) {
        const int64_t *p = inv_attr_ints(n, "indices", &np);
        if (p && identity_perm(p, np)) return n->in[0];
        const int64_t *q = d && inv_op_is(d, "Permute") ? inv_attr_ints(d, "indices", &nd) : NULL;
        if (p && q && np == nd && axis_attr(g, n) == axis_attr(g, d)) {
            int64_t *both = INV_ARENA_NEW(&g->arena, int64_t, np);
            for (size_t i = 0; both && i < np; i++) both[i] = q[p[i]];
            return both ? inv_emit1(g, "Permute", INV_IN(d->in[0]),
                                    INV_ATTRS(inv_attr_of_int("axis", axis_attr(g, n)),
                                              inv_attr_of_ints("indices", np, both)))
                        : INV_NONE;
        }
    }
    return INV_NONE;
}

static bool swaps_last_two(const inv_graph *g, const inv_node *n)
{
    if (!n || !inv_op_is(n, "Transpose")) return false;
    size_t k = 0;
    const int64_t *p = inv_attr_ints(n, "perm", &k);
    if (!p || k < 2 || (int)k != inv_val(g, n->in[0])->shape.rank) return false;
    return identity_perm(p, k - 2) && p[k - 2] == (int64_t)k - 1 && p[k - 1] == (int64_t)k - 2;
}

static inv_id absorb_transpose(simplifier *s, const inv_node *n)
{
    inv_graph *g = s->g;
    const inv_node *a = inv_def_node(g, n->in[0]), *b = inv_def_node(g, n->in[1]);
    bool ta = swaps_last_two(g, a), tb = swaps_last_two(g, b);
    if (!ta && !tb) return INV_NONE;
    inv_id in[2] = {ta ? a->in[0] : n->in[0], tb ? b->in[0] : n->in[1]};
    return inv_emit1(g, "MatMulT", 2, in,
                     INV_ATTRS(inv_attr_of_int("transA", inv_attr_int(n, "transA", 0) ^ (int64_t)ta),
                               inv_attr_of_int("transB", inv_attr_int(n, "transB", 0) ^ (int64_t)tb)));
}

/* The entries that one node takes of its input along one axis: at even distances, or those of a list. */
typedef struct piece {
    inv_id node;
    const int64_t *index; /* NULL: start, start + step, ... */
    int64_t start, step, size, least;
} piece;

static int64_t constant_entry(const piece *p, int64_t i) { return p->index ? p->index[i] : p->start + i * p->step; }
static bool contiguous(const piece *p) { return !p->index && p->step == 1; }

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
    *axis = axis_attr(g, n);
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

/* Pieces of one value along one axis, in order of their least entry; more than MAX_PARTS stay as they are. */
enum { MAX_PARTS = 64, MAX_LISTED = 1 << 16 };
typedef struct cover {
    piece part[MAX_PARTS];
    size_t n;
    inv_id first; /* of them in execution order */
} cover;

/* `nodes`: all nodes, their inputs resolved. */
static void collect_cover(const inv_graph *g, const inv_ids *nodes, inv_id x, int axis, inv_arena *scratch, cover *c)
{
    c->n = 0;
    for (size_t i = 0; i < nodes->n && c->n < MAX_PARTS; i++) {
        const inv_node *m = inv_nod(g, nodes->at[i]);
        piece p;
        int ax;
        if (m->nin == 0 || m->in[0] != x || !piece_of(g, nodes->at[i], scratch, &ax, &p) || ax != axis) continue;
        if (c->n == 0) c->first = nodes->at[i];
        size_t j = c->n++;
        for (; j > 0 && c->part[j - 1].least > p.least; j--) c->part[j] = c->part[j - 1];
        c->part[j] = p;
    }
}

/* The entries of all parts, one after the other, if each of 0 .. extent - 1 is among them once; else NULL. */
static const int64_t *entries_once(const cover *c, int64_t extent, inv_arena *scratch)
{
    int64_t *all = INV_ARENA_NEW(scratch, int64_t, (size_t)extent), at = 0;
    bool *seen = INV_ARENA_NEW(scratch, bool, (size_t)extent);
    if (!all || !seen) return NULL;
    for (size_t i = 0; i < c->n; i++) {
        for (int64_t k = 0; k < c->part[i].size; k++) {
            int64_t e = constant_entry(&c->part[i], k);
            if (e < 0 || e >= extent || seen[e]) return NULL;
            seen[e] = true;
            all[at++] = e;
        }
    }
    return all;
}

/* Pieces that partition their input become one SplitSizes; of a Permute of it, unless they are ranges side by side. */
static inv_status pieces_to_split(simplifier *s, inv_arena *scratch, const inv_ids *nodes, inv_id id, bool *done)
{
    inv_graph *g = s->g;
    int axis;
    piece p;
    cover c;
    *done = false;
    if (!piece_of(g, id, scratch, &axis, &p)) return INV_OK;
    inv_id x = inv_nod(g, id)->in[0];
    int64_t sizes[MAX_PARTS], extent = inv_val(g, x)->shape.dim[axis], sum = 0;
    bool tiles = true;
    collect_cover(g, nodes, x, axis, scratch, &c);
    /* Later pieces may have come to read x in this sweep only. The readers of earlier ones are in the order already,
     * and the split has to stand before them: the next sweep does it. */
    if (c.n && c.first != id) return INV_OK;
    for (size_t i = 0; i < c.n; i++) {
        tiles = tiles && contiguous(&c.part[i]) && c.part[i].start == sum;
        sum += sizes[i] = c.part[i].size;
    }
    if (sum != extent) return INV_OK;
    if (!tiles) {
        const int64_t *all = extent <= MAX_LISTED ? entries_once(&c, extent, scratch) : NULL;
        if (!all) return INV_OK;
        x = inv_emit1(g, "Permute", INV_IN(x),
                      INV_ATTRS(inv_attr_of_int("axis", axis), inv_attr_of_ints("indices", (size_t)extent, all)));
        if (x == INV_NONE) return g->failed;
    }
    *done = true;
    if (c.n == 1) {
        replace_by(s, inv_nod(g, c.part[0].node)->out[0], x);
        return INV_OK;
    }
    inv_id split = inv_emit(g, "SplitSizes", (uint32_t)c.n, INV_IN(x),
                            INV_ATTRS(inv_attr_of_int("axis", axis), inv_attr_of_ints("sizes", c.n, sizes)));
    if (split == INV_NONE) return g->failed;
    for (size_t i = 0; i < c.n; i++) replace_by(s, inv_nod(g, c.part[i].node)->out[0], inv_nod(g, split)->out[i]);
    return INV_OK;
}

/* What stands for a piece of x all of whose entries are in one part that an earlier SplitSizes of x, or of a Permute of
 * it, has given: that part, or what is gathered of it. INV_NONE: none. */
static inv_id part_at_hand(inv_graph *g, inv_arena *scratch, const inv_ids *nodes, inv_id id)
{
    piece p;
    int axis;
    if (!piece_of(g, id, scratch, &axis, &p)) return INV_NONE;
    const inv_id x = inv_nod(g, id)->in[0];
    int64_t *local = INV_ARENA_NEW(scratch, int64_t, (size_t)p.size + 1);
    for (size_t i = 0; local && i < nodes->n && nodes->at[i] != id; i++) {
        const inv_node *m = inv_nod(g, nodes->at[i]);
        if (!inv_op_is(m, "SplitSizes") || axis_attr(g, m) != axis) continue;
        const inv_node *d = inv_def_node(g, m->in[0]);
        size_t np = 0, k = 0;
        const int64_t *perm = NULL, *sizes = inv_attr_ints(m, "sizes", &k);
        if (m->in[0] != x && d && inv_op_is(d, "Permute") && d->in[0] == x && axis_attr(g, d) == axis)
            perm = inv_attr_ints(d, "indices", &np);
        if (m->in[0] != x && !perm) continue;
        for (int64_t at = 0, j = 0; j < (int64_t)k; at += sizes[j++]) {
            const inv_id part = m->out[j] == INV_NONE ? INV_NONE : inv_graph_stands(g, m->out[j]);
            bool whole = p.size == sizes[j];
            int64_t found = 0;
            for (int64_t e = 0; e < p.size && found == e; e++)
                for (int64_t f = 0; f < sizes[j] && found == e; f++)
                    if (constant_entry(&p, e) == (perm ? perm[at + f] : at + f)) local[found++] = f;
            for (int64_t e = 0; e < found; e++) whole = whole && local[e] == e;
            if (part == INV_NONE || found < p.size) continue;
            const inv_shape s = inv_shape_of(1, &p.size);
            const inv_id index = whole ? INV_NONE : inv_graph_const(g, INV_I64, &s, local);
            return whole ? part : inv_emit1(g, "Gather", INV_IN(part, index), INV_ATTRS(inv_attr_of_int("axis", axis)));
        }
    }
    return INV_NONE;
}

static bool leaves_graph(const inv_graph *g, inv_id v) { return v != INV_NONE && inv_val(g, v)->is_output; }

/* Slices along one axis that meet at the joints of a Concat, some of them outputs of the model, some not. */
static bool scales_part(const inv_graph *g, const inv_ids *nodes, const inv_node *concat, int axis, inv_arena *scratch)
{
    cover c;
    size_t out = 0;
    collect_cover(g, nodes, concat->out[0], axis, scratch, &c);
    if (c.n != concat->nin) return false;
    int64_t at = 0;
    for (size_t i = 0; i < c.n; i++) {
        const piece *p = &c.part[i];
        if (!contiguous(p) || p->start != at || p->size != inv_val(g, concat->in[i])->shape.dim[axis]) return false;
        at += p->size;
        out += leaves_graph(g, inv_nod(g, p->node)->out[0]);
    }
    return out > 0 && out < c.n;
}

/* Pieces that take each entry of a Concat once, some of them across a joint: they become a SplitSizes of it. */
static bool cover_across(const inv_graph *g, const inv_ids *nodes, const inv_node *concat, int axis, inv_arena *scratch)
{
    cover c;
    const int64_t extent = inv_val(g, concat->out[0])->shape.dim[axis];
    int64_t sum = 0, across = 0;
    collect_cover(g, nodes, concat->out[0], axis, scratch, &c);
    for (size_t i = 0; i < c.n; i++) {
        int64_t end = 0, part = -1;
        sum += c.part[i].size;
        for (uint32_t k = 0; k < concat->nin; k++) {
            const int64_t from = end;
            end += inv_val(g, concat->in[k])->shape.dim[axis];
            for (int64_t e = 0; e < c.part[i].size; e++) {
                const int64_t at = constant_entry(&c.part[i], e);
                if (at < from || at >= end) continue;
                across += part >= 0 && part != k;
                part = k;
            }
        }
    }
    return across > 0 && sum == extent && extent <= MAX_LISTED && entries_once(&c, extent, scratch);
}

static inv_status through_concat(simplifier *s, inv_arena *scratch, const inv_ids *nodes, inv_id id, bool *done)
{
    inv_graph *g = s->g;
    const inv_node *n = inv_nod(g, id);
    const inv_node *c = inv_def_node(g, n->in[0]);
    *done = false;
    if (!c || !inv_op_is(c, "Concat")) return INV_OK;
    int64_t axis = inv_attr_int(c, "axis", 0);
    int rank = inv_val(g, c->out[0])->shape.rank;
    if (axis < 0) axis += rank;
    if (inv_op_is(n, "SplitSizes")) {
        size_t k = 0;
        const int64_t *sizes = inv_attr_ints(n, "sizes", &k);
        if (inv_attr_int(n, "axis", 0) != axis || k != c->nin) return INV_OK;
        size_t out = 0;
        for (size_t i = 0; i < k; i++) {
            if (inv_val(g, c->in[i])->shape.dim[axis] != sizes[i]) return INV_OK;
            out += leaves_graph(g, n->out[i]);
        }
        if (out > 0 && out < k) return INV_OK;
        for (size_t i = 0; i < k; i++) replace_by(s, n->out[i], c->in[i]);
        *done = true;
        return INV_OK;
    }
    int ax;
    piece p;
    int64_t at = 0;
    if (!piece_of(g, id, scratch, &ax, &p) || ax != axis || !contiguous(&p) || scales_part(g, nodes, c, ax, scratch) ||
        cover_across(g, nodes, c, ax, scratch))
        return INV_OK;
    for (uint32_t i = 0; i < c->nin; i++) {
        inv_id part_id = c->in[i];
        inv_shape part = inv_val(g, part_id)->shape;
        int64_t extent = part.dim[axis];
        if (p.start >= at && p.start + p.size <= at + extent) {
            inv_id to = part_id, out = n->out[0];
            if (p.size != extent) {
                int64_t starts[INV_MAX_RANK] = {0}, steps[INV_MAX_RANK], sizes[INV_MAX_RANK];
                for (int d = 0; d < rank; d++) {
                    steps[d] = 1;
                    sizes[d] = part.dim[d];
                }
                starts[axis] = p.start - at;
                sizes[axis] = p.size;
                to = inv_emit1(g, "SliceRange", INV_IN(part_id),
                               INV_ATTRS(inv_attr_of_ints("starts", (size_t)rank, starts),
                                         inv_attr_of_ints("steps", (size_t)rank, steps),
                                         inv_attr_of_ints("sizes", (size_t)rank, sizes)));
                if (to == INV_NONE) return g->failed;
            }
            replace_by(s, out, to);
            *done = true;
            return INV_OK;
        }
        at += extent;
    }
    return INV_OK;
}

/* An earlier equal node among the users of the same first input; linear in those already listed. */
static inv_id earlier_twin(const inv_graph *g, const inv_node *n, const inv_id *last_user, const inv_id *prev_user)
{
    if (n->nin == 0 || n->in[0] == INV_NONE) return INV_NONE;
    for (inv_id u = last_user[n->in[0]]; u != INV_NONE; u = prev_user[u])
        if (find_same_node(g, inv_nod(g, u), n)) return u;
    return INV_NONE;
}

/* Every window of a pooling has elements of the input. */
static bool windows_reach_in(const inv_node *n)
{
    size_t npad, nkernel, ndil;
    const int64_t *pad = inv_attr_ints(n, "pads", &npad), *kernel = inv_attr_ints(n, "kernel_shape", &nkernel),
                  *dil = inv_attr_ints(n, "dilations", &ndil);
    for (size_t i = 0; i < npad; i++)
        if (pad[i] && (nkernel == 0 || pad[i] >= kernel[i % nkernel] || (ndil && dil[i % ndil] != 1))) return false;
    return true;
}

/* MaxPoolN(f(x)) = f(MaxPoolN(x)) where f never falls. The activation is of the smaller tensor then, and nothing of the
 * larger one is left for backward to read. Only for what is strict or flat: where it is flat no gradient comes through
 * either way, elsewhere the same element is the largest. INV_NONE: not so, or somebody else reads f(x). */
static inv_id pool_before(simplifier *s, const inv_ids *nodes, const inv_node *n)
{
    inv_graph *g = s->g;
    const inv_node *d = inv_def_node(g, n->in[0]);
    uint32_t uses = 0;
    if (!d || n->nout != 1 || (!inv_op_is(d, "Relu") && !inv_op_is(d, "ClipRange"))) return INV_NONE;
    if (inv_val(g, n->in[0])->is_output || !windows_reach_in(n)) return INV_NONE;
    for (size_t i = 0; i < nodes->n; i++) {
        const inv_node *user = inv_nod(g, nodes->at[i]);
        for (uint32_t k = 0; k < user->nin; k++)
            uses += user->in[k] != INV_NONE && inv_graph_stands(g, user->in[k]) == n->in[0];
    }
    if (uses != 1) return INV_NONE;
    const inv_node f = *d; /* emitting moves the array */
    const inv_id y = inv_emit1(g, "MaxPoolN", INV_IN(f.in[0]), n->nattr, n->attr);
    inv_emit_for(g, &f);
    const inv_id to = inv_emit1(g, f.op->name, INV_IN(y), f.nattr, f.attr);
    inv_emit_for(g, n);
    return to;
}

/* Gather at constant places of a Transpose, and Concat of several alike: the Transpose of that. */
static inv_id transpose_last(simplifier *s, const inv_node *n)
{
    inv_graph *g = s->g;
    const int axis = axis_attr(g, n);
    const bool gather = inv_op_is(n, "Gather");
    int64_t perm[INV_MAX_RANK];
    inv_id *in = INV_ARENA_NEW(&g->arena, inv_id, n->nin + 1);
    if (!in) return INV_NONE;
    if (gather && (inv_val(g, n->in[1])->shape.rank != 1 || !inv_const_known(g, n->in[1]))) return INV_NONE;
    for (uint32_t k = 0; k < (gather ? 1 : n->nin); k++) {
        const inv_node *t = n->in[k] == INV_NONE ? NULL : inv_def_node(g, n->in[k]);
        size_t np = 0;
        const int64_t *p = t && inv_op_is(t, "Transpose") ? inv_attr_ints(t, "perm", &np) : NULL;
        if (!p || np > INV_MAX_RANK || (k > 0 && memcmp(p, perm, np * sizeof *p) != 0)) return INV_NONE;
        memcpy(perm, p, np * sizeof *p);
        in[k] = t->in[0];
    }
    if (gather) in[1] = n->in[1];
    const size_t rank = (size_t)inv_val(g, n->out[0])->shape.rank;
    const inv_id y = inv_emit1(g, n->op->name, n->nin, in, INV_ATTRS(inv_attr_of_int("axis", perm[axis])));
    return y == INV_NONE ? INV_NONE
                         : inv_emit1(g, "Transpose", INV_IN(y), INV_ATTRS(inv_attr_of_ints("perm", rank, perm)));
}

/* GatherNDN at constant places of the first axis is a Gather. */
static inv_id gather_first(simplifier *s, const inv_node *n)
{
    inv_graph *g = s->g;
    const inv_value *index = inv_val(g, n->in[1]);
    if (inv_attr_int(n, "batch_dims", 0) != 0 || index->shape.rank != 2 || index->shape.dim[1] != 1 ||
        !inv_const_known(g, n->in[1]) || index->data.dtype != INV_I64 || !index->data.bytes)
        return INV_NONE;
    const inv_shape list = inv_shape_of(1, index->shape.dim);
    const inv_id places = inv_graph_const(g, INV_I64, &list, index->data.bytes);
    return places == INV_NONE ? INV_NONE
                              : inv_emit1(g, "Gather", INV_IN(n->in[0], places), INV_ATTRS(inv_attr_of_int("axis", 0)));
}

static inv_status simplify_node(simplifier *s, inv_arena *scratch, const inv_ids *old, inv_id id, bool *done)
{
    inv_graph *g = s->g;
    inv_node n = *inv_nod(g, id);
    inv_id to = inv_simplify_unpack(g, &n);
    *done = false;
    if (to == INV_NONE && (inv_op_is(&n, "Concat") || inv_op_is(&n, "Gather"))) to = transpose_last(s, &n);
    if (to != INV_NONE)
        ;
    else if (inv_op_is(&n, "View") || inv_op_is(&n, "Transpose") || inv_op_is(&n, "Permute"))
        to = fold_rearrangement(s, &n);
    else if (inv_op_is(&n, "MatMulT")) to = absorb_transpose(s, &n);
    else if (inv_op_is(&n, "MaxPoolN")) to = pool_before(s, old, &n);
    else if (inv_op_is(&n, "ScatterNDN")) to = inv_simplify_overwrite(g, &n, scratch);
    else if (inv_op_is(&n, "GatherNDN")) to = gather_first(s, &n);
    else if (inv_op_is(&n, "SplitSizes")) return through_concat(s, scratch, old, id, done);
    else if (inv_op_is(&n, "SliceRange") || inv_op_is(&n, "Gather")) {
        INV_TRY(through_concat(s, scratch, old, id, done));
        if (!*done && (to = part_at_hand(g, scratch, old, id)) != INV_NONE) {
            replace_by(s, n.out[0], to);
            *done = true;
        }
        return *done ? INV_OK : pieces_to_split(s, scratch, old, id, done);
    }
    if (g->failed) return g->failed;
    if (to != INV_NONE && inv_op_is(&n, "GatherNDN")) { /* what reads it meets the Transpose in this sweep */
        const inv_node gather = *inv_def_node(g, to);
        const inv_id last = transpose_last(s, &gather);
        to = last == INV_NONE ? to : last;
        if (g->failed) return g->failed;
    }
    if (to != INV_NONE) {
        replace_by(s, n.out[0], to);
        *done = true;
    }
    return INV_OK;
}

static inv_status simplify_sweep(simplifier *s, inv_arena *scratch)
{
    inv_graph *g = s->g;
    inv_ids old = g->order;
    size_t nvalue = g->value.n + 4 * old.n + 64, nnode = g->node.n + 4 * old.n + 64;
    inv_id *last_user = INV_ARENA_NEW(scratch, inv_id, nvalue), *prev_user = INV_ARENA_NEW(scratch, inv_id, nnode);
    if (!last_user || !prev_user) return INV_E_NOMEM;
    s->fresh = g->value.n;
    for (size_t v = 0; v < nvalue; v++) last_user[v] = INV_NONE;
    memset(&g->order, 0, sizeof g->order);
    for (size_t i = 0; i < old.n; i++) {
        inv_node *n = inv_nod(g, old.at[i]);
        for (uint32_t k = 0; k < n->nin; k++) n->in[k] = inv_graph_stands(g, n->in[k]);
        inv_emit_for(g, n);
        bool replaced = n->nout > 0 && n->out[0] != INV_NONE && inv_graph_stands(g, n->out[0]) != n->out[0];
        if (replaced) continue; /* a piece that became part of a split */
        bool done = false;
        INV_TRY(simplify_node(s, scratch, &old, old.at[i], &done));
        n = inv_nod(g, old.at[i]);
        inv_id twin = done ? INV_NONE : earlier_twin(g, n, last_user, prev_user);
        if (twin != INV_NONE) {
            for (uint32_t k = 0; k < n->nout; k++) replace_by(s, n->out[k], inv_nod(g, twin)->out[k]);
            continue;
        }
        if (done) continue;
        if (!inv_vec_push(&g->arena, &g->order, old.at[i])) return INV_E_NOMEM;
        if (n->nin && n->in[0] != INV_NONE && n->in[0] < nvalue && old.at[i] < nnode) {
            prev_user[old.at[i]] = last_user[n->in[0]];
            last_user[n->in[0]] = old.at[i];
        }
    }
    inv_graph_stand_outputs(g);
    return inv_graph_prune(g);
}

inv_status inv_pass_simplify(inv_graph *g)
{
    g->phase = INV_FORWARD;
    for (int round = 0; round < 16; round++) {
        inv_arena scratch;
        inv__arena_init(&scratch, g->ctx);
        simplifier s = {.g = g};
        inv_status st = simplify_sweep(&s, &scratch);
        inv__arena_fini(&scratch);
        INV_TRY(st);
        if (!s.changed) break;
    }
    inv_emit_for(g, NULL);
    return g->failed;
}
