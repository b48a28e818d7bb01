/* SPDX-License-Identifier: Apache-2.0
 * Simplifies updates in place. Exporters write `y[:, :4] = u` as ScatterND with constant indices, some with a
 * Transpose before and after it. Where the indices are a box, in order, that spans all axes but one, it is
 *     Concat(what is in front of the box, u, what is behind)     with the pieces of one SplitSizes of the tensor.
 * The transposes move out, where they meet others and cancel. */
#include <string.h>

#include "passes/canonical/canonical.h"

enum { MOST_INDICES = 1 << 20 };

typedef struct box {
    int64_t start[INV_MAX_RANK], size[INV_MAX_RANK];
    int depth; /* axes that the indices name; the others are whole */
} box;

/* Reads the indices as a box of x, row by row as its elements lie. */
static bool box_of(const int64_t *index, size_t n, const inv_shape *x, box *b)
{
    size_t k = (size_t)b->depth;
    int64_t count = 1;
    if (n == 0 || n % k != 0) return false;
    for (size_t d = 0; d < k; d++) {
        int64_t first = index[d], last = index[n - k + d], extent = x->dim[d];
        if (first < -extent || first >= extent || last < -extent || last >= extent) return false;
        b->start[d] = first < 0 ? first + extent : first;
        b->size[d] = (last < 0 ? last + extent : last) - b->start[d] + 1;
        if (b->size[d] < 1) return false;
        count *= b->size[d];
        if (count > MOST_INDICES) return false;
    }
    if ((size_t)count != n / k) return false;
    for (int64_t i = 0; i < count; i++) {
        int64_t rest = i;
        for (size_t d = k; d-- > 0; rest /= b->size[d]) {
            int64_t at = index[(size_t)i * k + d];
            if ((at < 0 ? at + x->dim[d] : at) != b->start[d] + rest % b->size[d]) return false;
        }
    }
    for (int d = b->depth; d < x->rank; d++) {
        b->start[d] = 0;
        b->size[d] = x->dim[d];
    }
    return true;
}

static inv_id transposed(inv_graph *g, inv_id v, int rank, const int64_t *perm)
{
    return inv_emit1(g, "Transpose", INV_IN(v), INV_ATTRS(inv_attr_of_ints("perm", (size_t)rank, perm)));
}

/* Emits x with `u` in place of what stands at `start` along `axis`. */
static inv_id find_overwritten(inv_graph *g, inv_id x, inv_id u, int axis, int64_t start)
{
    int64_t extent = inv_val(g, x)->shape.dim[axis], size = inv_val(g, u)->shape.dim[axis], sizes[3];
    inv_id part[3];
    uint32_t n = 0, at = 0;
    if (start > 0) sizes[n++] = start;
    at = n;
    sizes[n++] = size;
    if (start + size < extent) sizes[n++] = extent - start - size;
    inv_id split = inv_emit(g, "SplitSizes", n, INV_IN(x),
                            INV_ATTRS(inv_attr_of_int("axis", axis), inv_attr_of_ints("sizes", n, sizes)));
    if (split == INV_NONE) return INV_NONE;
    for (uint32_t i = 0; i < n; i++) part[i] = i == at ? u : inv_nod(g, split)->out[i];
    return inv_emit1(g, "Concat", n, part, INV_ATTRS(inv_attr_of_int("axis", axis)));
}

inv_id inv_simplify_overwrite(inv_graph *g, const inv_node *n, inv_arena *scratch)
{
    if (strcmp(inv_attr_string(n, "reduction", "none"), "none") != 0 || !inv_const_known(g, n->in[1])) return INV_NONE;
    if (inv_attr_find(n, "axis")) return INV_NONE; /* single elements */
    inv_id x = n->in[0], u = n->in[2];
    inv_shape whole = inv_val(g, x)->shape, is = inv_val(g, n->in[1])->shape;
    int64_t nindex = inv_shape_nelem(&is);
    box b = {.depth = is.rank > 0 ? (int)is.dim[is.rank - 1] : 0};
    if (b.depth < 1 || b.depth > whole.rank || nindex < 1 || nindex > MOST_INDICES) return INV_NONE;
    int64_t *index = INV_ARENA_NEW(scratch, int64_t, (size_t)nindex);
    size_t got = 0;
    if (!index || !inv_const_ints(g, n->in[1], (size_t)nindex, index, &got) || got != (size_t)nindex ||
        !box_of(index, got, &whole, &b))
        return INV_NONE;
    int axis = -1;
    for (int d = 0; d < whole.rank; d++) {
        if (b.size[d] == whole.dim[d]) continue;
        if (axis >= 0) return INV_NONE;
        axis = d;
    }
    inv_shape us = inv_val(g, u)->shape;
    bool same = us.rank == whole.rank && memcmp(us.dim, b.size, (size_t)us.rank * sizeof *us.dim) == 0;
    if (!same) u = inv_emit1(g, "View", INV_IN(u), INV_ATTRS(inv_attr_of_ints("shape", (size_t)whole.rank, b.size)));
    if (u == INV_NONE || axis < 0) return u; /* all of x is overwritten */
    const inv_node *t = inv_def_node(g, x);
    size_t np = 0;
    const int64_t *p = t && inv_op_is(t, "Transpose") ? inv_attr_ints(t, "perm", &np) : NULL;
    if (!p || (int)np != whole.rank) return find_overwritten(g, x, u, axis, b.start[axis]);
    int64_t perm[INV_MAX_RANK], back[INV_MAX_RANK];
    for (int d = 0; d < whole.rank; d++) {
        perm[d] = p[d];
        back[p[d]] = d;
    }
    x = t->in[0];
    u = transposed(g, u, whole.rank, back);
    if (u == INV_NONE) return INV_NONE;
    inv_id y = find_overwritten(g, x, u, (int)perm[axis], b.start[axis]);
    return y == INV_NONE ? INV_NONE : transposed(g, y, whole.rank, perm);
}
