/* SPDX-License-Identifier: Apache-2.0
 * Simplifies updates in place. Exporters write `y[:, :4] = u` as ScatterND with constant indices, some with a
 * Transpose before and after it, and ScatterElements with indices that are the same for all rows. Where the indices are
 * a list of places for one axis, each once, and span all others in order, it is
 *     Concat(u, what is behind) or Concat(what is in front of them, u)     with a slice of the tensor,
 * if the places are side by side and begin or end it, and else
 *     Permute(Concat(what is not overwritten, u))             with pieces that are gathered.
 * What is written piece by piece is such a Permute of a Concat already: then only what is overwritten leaves it, so
 * that in the end each part is there once, and nothing of the tensor that all began with. The transposes move out,
 * where they meet others and cancel. With the reductions add and mul, u is joined to what stands at the places first.
 * So is what an Add, Sub, Mul or Div joins to a part of a tensor only: elsewhere its operand has zeros, or ones.
 */
#include <string.h>

#include "passes/canonical/canonical.h"

/* Where a tensor is overwritten: at these places of one axis, and everywhere along the others. */
typedef struct places {
    int axis;
    int64_t size[INV_MAX_RANK]; /* extents of what is written */
    const int64_t *list;        /* of size[axis]; each place once */
    const char *joins;          /* Add, Mul: what is written is joined to what stands there; NULL: it replaces it */
} places;

static bool in_order(const int64_t *list, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        if (list[i] != list[0] + i) return false;
    return true;
}

/* The places along each axis that tuples of k indices name, if these are all combinations of them, in order. */
static bool lists_of(const int64_t *index, size_t n, size_t k, const inv_shape *x, const int64_t *size, int64_t **list)
{
    int64_t count = 1, inner[INV_MAX_RANK];
    for (size_t d = k; d-- > 0;) {
        inner[d] = count;
        if (size[d] < 1 || size[d] > x->dim[d]) return false;
        count *= size[d]; /* of entries of x, so it does not overflow */
    }
    if (n != (size_t)count * k) return false;
    for (size_t d = 0; d < k; d++)
        for (int64_t i = 0; i < count; i++) {
            int64_t at = index[(size_t)i * k + d], *same = &list[d][i / inner[d] % size[d]];
            if (at < 0) at += x->dim[d];
            if (at < 0 || at >= x->dim[d]) return false;
            if (i % inner[d] == 0 && i < inner[d] * size[d]) *same = at;
            if (*same != at) return false;
        }
    return true;
}

/* How many places along each axis the tuples name: as their own extents say, or as a box from the first to the last. */
static void sizes_of(const int64_t *index, size_t n, size_t k, const inv_shape *is, const inv_shape *x, int64_t *size)
{
    for (size_t d = 0; d < k; d++) {
        const int64_t first = index[d], last = index[n - k + d];
        size[d] = (last < 0 ? last + x->dim[d] : last) - (first < 0 ? first + x->dim[d] : first) + 1;
        if ((size_t)is->rank == k + 1) size[d] = is->dim[d];
    }
}

/* Of single elements: indices of the extents of what is written, the same for all lines along the axis. */
static bool list_of_elements(const int64_t *index, const inv_shape *is, const inv_shape *x, int axis, int64_t *list)
{
    int64_t inner = 1;
    for (int d = 0; d < is->rank; d++)
        if (d != axis && is->dim[d] != x->dim[d]) return false;
    for (int d = axis + 1; d < is->rank; d++) inner *= is->dim[d];
    for (int64_t i = 0; i < inv_shape_nelem(is); i++) {
        int64_t at = index[i], j = i / inner % is->dim[axis];
        if (at < 0) at += x->dim[axis];
        if (at < 0 || at >= x->dim[axis]) return false;
        if (i < is->dim[axis] * inner && i % inner == 0) list[j] = at;
        if (list[j] != at) return false;
    }
    return true;
}

/* *all: everything is overwritten as it stands. */
static bool find_places(const inv_graph *g, const inv_node *n, inv_arena *scratch, places *p, bool *all)
{
    const inv_shape *x = &inv_val(g, n->in[0])->shape, *is = &inv_val(g, n->in[1])->shape;
    const int64_t nindex = inv_shape_nelem(is);
    const inv_attr *axis = inv_attr_find(n, "axis");
    const size_t k = axis ? 1 : is->rank > 0 ? (size_t)is->dim[is->rank - 1] : 0;
    int64_t *list[INV_MAX_RANK], *index = INV_ARENA_NEW(scratch, int64_t, (size_t)nindex + 1);
    size_t got = 0;
    if (k < 1 || k > (size_t)x->rank || nindex < 1 || !index) return false;
    if (!inv_const_ints(g, n->in[1], (size_t)nindex, index, &got) || got != (size_t)nindex) return false;
    for (int d = 0; d < x->rank; d++) {
        p->size[d] = x->dim[d];
        list[d] = INV_ARENA_NEW(scratch, int64_t, (size_t)x->dim[d] + 1);
        if (!list[d]) return false;
        for (int64_t i = 0; i < x->dim[d]; i++) list[d][i] = i;
    }
    *all = true;
    if (axis) {
        const int d = (int)(axis->i < 0 ? axis->i + x->rank : axis->i);
        if (is->rank != x->rank || is->dim[d] > x->dim[d] || !list_of_elements(index, is, x, d, list[d])) return false;
        p->size[d] = is->dim[d];
    } else {
        sizes_of(index, got, k, is, x, p->size);
        if (!lists_of(index, got, k, x, p->size, list)) return false;
    }
    for (int d = 0; d < x->rank; d++) {
        if (p->size[d] == x->dim[d] && list[d][0] == 0 && in_order(list[d], p->size[d])) continue;
        if (!*all) return false; /* a part of a second axis */
        *all = false;
        p->axis = d;
        p->list = list[d];
    }
    bool *seen = *all ? NULL : INV_ARENA_NEW(scratch, bool, (size_t)x->dim[p->axis]);
    for (int64_t i = 0; !*all && i < p->size[p->axis]; i++) {
        if (!seen || seen[p->list[i]]) return false;
        seen[p->list[i]] = true;
    }
    return true;
}

static inv_id transposed(inv_graph *g, inv_id v, int rank, const int64_t *perm)
{
    return inv_emit1(g, "Transpose", INV_IN(v), INV_ATTRS(inv_attr_of_ints("perm", (size_t)rank, perm)));
}

/* Emits x with `u` in place of what stands at `start` along `axis`. */
static inv_id overwrite_range(inv_graph *g, inv_id x, inv_id u, int axis, int64_t start)
{
    const int64_t extent = inv_val(g, x)->shape.dim[axis], end = start + inv_val(g, u)->shape.dim[axis];
    inv_id part[3];
    uint32_t n = 0;
    if (start > 0) part[n++] = inv_simplify_range(g, x, axis, 0, 1, start);
    part[n++] = u;
    if (end < extent) part[n++] = inv_simplify_range(g, x, axis, end, 1, extent - end);
    return g->failed ? INV_NONE : inv_emit1(g, "Concat", n, part, INV_ATTRS(inv_attr_of_int("axis", axis)));
}

/* Parts of which a tensor consists along an axis: entry e is entry at[e] of part of[e]. */
typedef struct parts {
    inv_id *v;
    uint32_t n;
    uint32_t *of;
    int64_t *at;
} parts;

/* What x is joined of, if it is; else x itself. With room for one more. */
static bool find_parts(const inv_graph *g, inv_id x, int axis, inv_arena *scratch, parts *p)
{
    const int64_t extent = inv_val(g, x)->shape.dim[axis];
    const inv_node *permute = inv_def_node(g, x), *concat = permute;
    size_t n = 0;
    const int64_t *perm = NULL;
    if (permute && inv_op_is(permute, "Permute") && inv_attr_int(permute, "axis", 0) == axis) {
        perm = inv_attr_ints(permute, "indices", &n);
        concat = inv_def_node(g, permute->in[0]);
    }
    const bool joined = concat && inv_op_is(concat, "Concat") && inv_attr_int(concat, "axis", 0) == axis;
    p->n = joined ? concat->nin : 1;
    p->v = INV_ARENA_NEW(scratch, inv_id, p->n + 1);
    p->of = INV_ARENA_NEW(scratch, uint32_t, (size_t)extent + 1);
    p->at = INV_ARENA_NEW(scratch, int64_t, (size_t)extent + 1);
    uint32_t *of = INV_ARENA_NEW(scratch, uint32_t, (size_t)extent + 1);
    int64_t *at = INV_ARENA_NEW(scratch, int64_t, (size_t)extent + 1), e = 0;
    if (!p->v || !p->of || !p->at || !of || !at) return false;
    for (uint32_t k = 0; k < p->n; k++) {
        p->v[k] = joined ? concat->in[k] : x;
        for (int64_t i = 0; i < inv_val(g, p->v[k])->shape.dim[axis]; i++, e++) of[e] = k, at[e] = i;
    }
    for (e = 0; e < extent; e++) {
        p->of[e] = of[joined && perm ? perm[e] : e];
        p->at[e] = at[joined && perm ? perm[e] : e];
    }
    return true;
}

/* The parts that are left, by their first entries. *n: so many; with room for all. */
static void order_parts(const parts *p, int64_t extent, bool *seen, uint32_t *order, uint32_t *n)
{
    *n = 0;
    for (int64_t e = 0; e < extent; e++) {
        if (seen[p->of[e]]) continue;
        seen[p->of[e]] = true;
        order[(*n)++] = p->of[e];
    }
}

/* Emits x with `u` at a list of places, however they lie. */
static inv_id overwrite_list(inv_graph *g, inv_id x, inv_id u, int axis, const int64_t *list, inv_arena *scratch)
{
    const int64_t extent = inv_val(g, x)->shape.dim[axis], written = inv_val(g, u)->shape.dim[axis];
    int64_t *entry = INV_ARENA_NEW(scratch, int64_t, (size_t)extent + 1),
            *back = INV_ARENA_NEW(scratch, int64_t, (size_t)extent + 1), *moved = NULL, at = 0;
    parts p;
    uint32_t n = 0;
    if (!entry || !back || !find_parts(g, x, axis, scratch, &p)) return INV_NONE;
    moved = INV_ARENA_NEW(scratch, int64_t, (size_t)extent + 1);
    inv_id *part = INV_ARENA_NEW(scratch, inv_id, p.n + 2);
    uint32_t *order = INV_ARENA_NEW(scratch, uint32_t, p.n + 1), left;
    bool *seen = INV_ARENA_NEW(scratch, bool, p.n + 1);
    if (!moved || !part || !order || !seen) return INV_NONE;
    for (int64_t i = 0; i < written; i++) p.of[list[i]] = p.n, p.at[list[i]] = i;
    p.v[p.n] = u;
    order_parts(&p, extent, seen, order, &left);
    for (uint32_t r = 0; r < left; r++) { /* the others are overwritten */
        const uint32_t k = order[r];
        int64_t most = inv_val(g, p.v[k])->shape.dim[axis], count = 0;
        for (int64_t i = 0; i < most; i++) moved[i] = -1;
        for (int64_t e = 0; e < extent; e++)
            if (p.of[e] == k) moved[p.at[e]] = e;
        for (int64_t i = 0; i < most; i++) { /* in the order that the part has */
            if (moved[i] < 0) continue;
            back[moved[i]] = at++;
            entry[count++] = i;
        }
        part[n] = inv_simplify_entries(g, p.v[k], axis, entry, count);
        if (part[n++] == INV_NONE) return INV_NONE;
    }
    const inv_id all = n == 1 ? part[0] : inv_emit1(g, "Concat", n, part, INV_ATTRS(inv_attr_of_int("axis", axis)));
    return all == INV_NONE
               ? INV_NONE
               : inv_emit1(g, "Permute", INV_IN(all),
                           INV_ATTRS(inv_attr_of_int("axis", axis), inv_attr_of_ints("indices", (size_t)extent, back)));
}

static inv_id overwrite(inv_graph *g, inv_id x, inv_id u, int axis, const places *p, inv_arena *scratch)
{
    const int64_t n = p->size[p->axis];
    if (p->joins) {
        const inv_id old = inv_simplify_entries(g, x, axis, p->list, n);
        u = old == INV_NONE ? INV_NONE : inv_emit1(g, p->joins, INV_IN(old, u), INV_NOATTR);
        if (u == INV_NONE) return INV_NONE;
    }
    const inv_node *d = inv_def_node(g, x);
    /* what is in front and what is behind would be two parts: what reads both of them would meet a Concat */
    const bool range = in_order(p->list, n) && (p->list[0] == 0 || p->list[0] + n == inv_val(g, x)->shape.dim[axis]) &&
                       !(d && (inv_op_is(d, "Permute") || inv_op_is(d, "Concat")));
    return range ? overwrite_range(g, x, u, axis, p->list[0]) : overwrite_list(g, x, u, axis, p->list, scratch);
}

inv_id inv_simplify_overwrite(inv_graph *g, const inv_node *n, inv_arena *scratch)
{
    const char *reduction = inv_attr_string(n, "reduction", "none");
    const bool added = strcmp(reduction, "add") == 0, multiplied = strcmp(reduction, "mul") == 0;
    inv_id x = n->in[0], u = n->in[2];
    if ((!added && !multiplied && strcmp(reduction, "none") != 0) || !inv_const_known(g, n->in[1])) return INV_NONE;
    const inv_shape whole = inv_val(g, x)->shape;
    places w = {.joins = added ? "Add" : multiplied ? "Mul" : NULL};
    bool all;
    if (!find_places(g, n, scratch, &w, &all)) return INV_NONE;
    const inv_shape us = inv_val(g, u)->shape;
    bool same = us.rank == whole.rank && memcmp(us.dim, w.size, (size_t)us.rank * sizeof *us.dim) == 0;
    if (!same) u = inv_emit1(g, "View", INV_IN(u), INV_ATTRS(inv_attr_of_ints("shape", (size_t)whole.rank, w.size)));
    if (u == INV_NONE || (all && !w.joins)) return u; /* all of x is overwritten */
    if (all) return inv_emit1(g, w.joins, INV_IN(x, u), INV_NOATTR);
    const inv_node *t = inv_def_node(g, x);
    size_t np = 0;
    const int64_t *p = t && inv_op_is(t, "Transpose") ? inv_attr_ints(t, "perm", &np) : NULL;
    if (!p || (int)np != whole.rank) return overwrite(g, x, u, w.axis, &w, scratch);
    int64_t perm[INV_MAX_RANK], back[INV_MAX_RANK];
    for (int d = 0; d < whole.rank; d++) {
        perm[d] = p[d];
        back[p[d]] = d;
    }
    x = t->in[0];
    u = transposed(g, u, whole.rank, back);
    if (u == INV_NONE) return INV_NONE;
    inv_id y = overwrite(g, x, u, (int)perm[w.axis], &w, scratch);
    return y == INV_NONE ? INV_NONE : transposed(g, y, whole.rank, perm);
}

/* --- joined to a part only --- */

/* A constant of nothing but `number`, or pieces of one. */
static bool is_all(const inv_graph *g, inv_id v, double number)
{
    for (const inv_node *d = inv_def_node(g, v); d && (inv_op_is(d, "SliceRange") || inv_op_is(d, "Gather"));
         d = inv_def_node(g, v))
        v = d->in[0];
    const inv_value *x = inv_val(g, v);
    const int64_t n = inv_shape_nelem(&x->shape);
    if (x->role != INV_ROLE_CONST || !x->data.bytes) return false;
    for (int64_t i = 0; i < n; i++)
        if (inv_elem_double(x->data.bytes, x->data.dtype, (size_t)i) != number) return false;
    return true;
}

/* Where y, a Pad along one axis that begins or ends with what is padded, is not `number`. */
static bool places_in_pad(const inv_graph *g, const inv_node *d, double number, inv_arena *scratch, places *w)
{
    const inv_shape *from = &inv_val(g, d->in[0])->shape, *to = &inv_val(g, d->out[0])->shape;
    size_t n;
    const int64_t *start = inv_attr_ints(d, "starts", &n);
    if (inv_attr_float(d, "value", 0) != number) return false;
    w->axis = -1;
    for (int k = 0; k < to->rank; k++) {
        w->size[k] = from->dim[k];
        if (from->dim[k] == to->dim[k]) continue;
        if (w->axis >= 0 || (start[k] && start[k] + from->dim[k] != to->dim[k])) return false;
        w->axis = k;
    }
    if (w->axis < 0 || from->dim[w->axis] < 1) return false;
    int64_t *list = INV_ARENA_NEW(scratch, int64_t, (size_t)from->dim[w->axis]);
    for (int64_t i = 0; list && i < from->dim[w->axis]; i++) list[i] = start[w->axis] + i;
    w->list = list;
    return list;
}

/* Where y, which is joined of parts, has others than constants of nothing but `number`. */
static bool places_in_parts(const inv_graph *g, const inv_node *d, double number, inv_arena *scratch, places *w)
{
    const inv_shape *s = &inv_val(g, d->out[0])->shape;
    const int axis = inv_simplify_axis(g, d);
    const int64_t extent = s->dim[axis];
    int64_t *list = INV_ARENA_NEW(scratch, int64_t, (size_t)extent + 1), n = 0;
    parts p;
    if (!list || !find_parts(g, d->out[0], axis, scratch, &p) || p.n < 2) return false;
    bool *still = INV_ARENA_NEW(scratch, bool, p.n);
    for (uint32_t k = 0; still && k < p.n; k++) still[k] = is_all(g, p.v[k], number);
    for (int64_t e = 0; still && e < extent; e++)
        if (!still[p.of[e]]) list[n++] = e;
    w->axis = axis;
    w->list = list;
    memcpy(w->size, s->dim, sizeof w->size);
    w->size[axis] = n;
    return still && n > 0 && n < extent;
}

/* Emits x joined to y, which leaves a part of x as it is; INV_NONE: it does not. */
static inv_id join_part(inv_graph *g, const inv_node *n, inv_id x, inv_id y, double neutral, inv_arena *scratch)
{
    places w = {.joins = n->op->name};
    const inv_node *t = inv_def_node(g, y);
    int64_t perm[INV_MAX_RANK];
    size_t rank = 0;
    const int64_t *p = t && inv_op_is(t, "Transpose") ? inv_attr_ints(t, "perm", &rank) : NULL;
    if (p) memcpy(perm, p, rank * sizeof *p);
    if (p) y = t->in[0];
    const inv_node *d = inv_def_node(g, y);
    const bool pads = d && inv_op_is(d, "PadRange"), joins = d && (inv_op_is(d, "Concat") || inv_op_is(d, "Permute"));
    if (!(pads && places_in_pad(g, d, neutral, scratch, &w)) && !(joins && places_in_parts(g, d, neutral, scratch, &w)))
        return INV_NONE;
    inv_id u = pads ? d->in[0] : inv_simplify_entries(g, y, w.axis, w.list, w.size[w.axis]);
    if (u != INV_NONE && p) {
        const int64_t count = w.size[w.axis];
        int axis = 0;
        while (perm[axis] != w.axis) axis++;
        u = transposed(g, u, (int)rank, perm);
        w.axis = axis;
        w.size[axis] = count;
    }
    return u == INV_NONE ? INV_NONE : overwrite(g, x, u, w.axis, &w, scratch);
}

inv_id inv_simplify_join(inv_graph *g, const inv_node *n, inv_arena *scratch)
{
    const bool turns = inv_op_is(n, "Add") || inv_op_is(n, "Mul"), adds = inv_op_is(n, "Add") || inv_op_is(n, "Sub");
    if (!inv_shape_equal(&inv_val(g, n->in[0])->shape, &inv_val(g, n->in[1])->shape)) return INV_NONE;
    const inv_id y = join_part(g, n, n->in[0], n->in[1], !adds, scratch);
    return y != INV_NONE || !turns || g->failed ? y : join_part(g, n, n->in[1], n->in[0], !adds, scratch);
}
