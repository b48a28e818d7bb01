/* SPDX-License-Identifier: Apache-2.0
 * What operators mean for channels_last.c: which take their images in either order of axes, which operands are images,
 * and what becomes of the attributes when a node is turned. Operators say so in their rows (column `images`). */
#include <string.h>

#include "ops/base/util.h"
#include "passes/schedule/channels_last.h"

/* --- axes --- */

inv_shape inv_layout_turn(const inv_shape *s)
{
    inv_shape t = *s;
    for (int i = 0; i < s->rank; i++) t.dim[i] = s->dim[inv_layout_axis(s->rank, i)];
    return t;
}

inv_shape inv_layout_padded(const inv_shape *s, int rank)
{
    inv_shape t = inv_shape_of(rank, (int64_t[INV_MAX_RANK]){1, 1, 1, 1, 1, 1, 1, 1});
    for (int i = 0; i < s->rank; i++) t.dim[rank - s->rank + i] = s->dim[i];
    return t;
}

bool inv_layout_is_still(const inv_shape *s)
{
    int64_t space = 1;
    for (int i = 2; i < s->rank; i++) space *= s->dim[i];
    return s->dim[1] == 1 || space == 1;
}

/* --- which operands are turned with a node --- */

/* The rank of the node's images; 0: it has none that could be turned. */
static int image_rank(const inv_graph *g, const inv_node *n)
{
    const int read = n->nin ? inv_layout_rank(g, n->in[0]) : 0, made = n->nout ? inv_layout_rank(g, n->out[0]) : -1;
    const int rank = made >= 0 && made >= read ? made : read;
    return rank >= 3 && rank <= 5 ? rank : 0;
}

bool inv_layout_is_image(const inv_graph *g, inv_id v, bool slot, int rank)
{
    if (v == INV_NONE || !slot) return false;
    const inv_shape *s = &inv_val(g, v)->shape;
    return s->rank == rank || inv_shape_nelem(s) != 1;
}

/* An operand of fewer axes takes part only if turning it moves nothing. */
static bool shape_fits_image(const inv_graph *g, inv_id v, bool slot, int rank)
{
    if (!inv_layout_is_image(g, v, slot, rank) || inv_layout_rank(g, v) == rank) return true;
    const inv_shape p = inv_layout_padded(&inv_val(g, v)->shape, rank);
    return inv_layout_rank(g, v) < rank && inv_layout_is_still(&p);
}

/* A reduction takes part if the axes that it leaves are in the same sequence in either order. */
static bool keeps_order(const inv_graph *g, const inv_node *n)
{
    size_t count;
    const int64_t *axes = inv_attr_ints(n, "axes", &count);
    if (!axes || inv_attr_int(n, "keepdims", 1)) return true;
    bool gone[INV_MAX_RANK] = {false};
    const int rank = inv_layout_rank(g, n->in[0]);
    for (size_t i = 0; i < count; i++) gone[axes[i] < 0 ? axes[i] + rank : axes[i]] = true;
    bool space = false;
    for (int i = 2; i < rank; i++) space = space || !gone[i];
    return gone[1] || !space;
}

/* Whether the node has a list of a number per axis that rows do not name. */
static bool has_more_axes(const inv_node *n)
{
    return inv_attr_find(n, "scales") || inv_attr_find(n, "roi_begin") || inv_attr_find(n, "roi_end");
}

/* Whether it is written for images that have their channels last. */
static bool is_last_already(const inv_node *n)
{
    const inv_images *images = &n->op->images;
    for (int i = 0; i < 3 && images->attr[i].name; i++) {
        const inv_axes holds = images->attr[i].holds;
        if (holds == INV_MARK && inv_attr_int(n, images->attr[i].name, 0)) return true;
        if (holds == INV_LAST_AXIS && inv_attr_int(n, images->attr[i].name, 1) != 1) return true;
    }
    return false;
}

bool inv_layout_slots(const inv_graph *g, const inv_node *n, int *rank, uint32_t *in, uint32_t *out)
{
    const bool each = (n->op->flags & INV_OP_ELEMENTWISE) != 0;
    *in = each ? INV_ALL_SLOTS : n->op->images.in;
    *out = each ? INV_ALL_SLOTS : n->op->images.out;
    *rank = image_rank(g, n);
    if (*in == 0 || *rank == 0 || !keeps_order(g, n) || has_more_axes(n) || is_last_already(n)) return false;
    for (uint32_t i = 0; i < n->nin; i++)
        if (!shape_fits_image(g, n->in[i], inv_layout_bit(*in, i), *rank)) return false;
    const bool dropped = n->nout && n->out[0] != INV_NONE && inv_layout_rank(g, n->out[0]) < *rank &&
                         inv_attr_find(n, "keepdims") && !inv_attr_int(n, "keepdims", 1);
    if (dropped) *out = 0;
    for (uint32_t i = 0; i < n->nout; i++)
        if (!shape_fits_image(g, n->out[i], inv_layout_bit(*out, i), *rank)) return false;
    return true;
}

/* --- attributes --- */

static bool turn_ints(inv_graph *g, inv_attr *a, inv_axes holds, int rank)
{
    int64_t *v = INV_ARENA_NEW(&g->arena, int64_t, INV_MAX_RANK);
    size_t n = 0;
    if (!v) return false;
    if (holds ==
        INV_PER_AXIS) { /* of fewer axes: the shape of something that is broadcast; a single number stays one */
        const inv_shape given = inv_shape_of((int)a->n, a->ints), all = inv_layout_padded(&given, rank);
        const inv_shape t = inv_layout_turn(&all);
        if (given.rank < rank && inv_shape_nelem(&given) == 1) return true;
        for (; n < (size_t)rank; n++) v[n] = t.dim[n];
    } else {
        bool on[INV_MAX_RANK] = {false};
        for (size_t i = 0; i < a->n; i++)
            on[inv_layout_axis_back(rank, (int)(a->ints[i] < 0 ? a->ints[i] + rank : a->ints[i]))] = true;
        for (int i = 0; i < rank; i++)
            if (on[i]) v[n++] = i;
    }
    *a = inv_attr_of_ints(a->name, n, v);
    return true;
}

bool inv_layout_turn_attrs(inv_graph *g, inv_node *n, int rank)
{
    const inv_images *images = &n->op->images;
    inv_attr *attr = INV_ARENA_NEW(&g->arena, inv_attr, n->nattr + 3);
    if (!attr) return false;
    if (n->nattr) memcpy(attr, n->attr, n->nattr * sizeof *attr);
    n->attr = attr;
    for (int i = 0; i < 3 && images->attr[i].name; i++) {
        const char *name = images->attr[i].name;
        const inv_axes holds = images->attr[i].holds;
        inv_attr *a = NULL;
        for (uint32_t j = 0; j < n->nattr; j++)
            if (strcmp(attr[j].name, name) == 0) a = &attr[j];
        if (holds == INV_MARK || holds == INV_LAST_AXIS)
            *(a ? a : &attr[n->nattr++]) = inv_attr_of_int(name, holds == INV_MARK ? 1 : rank - 1);
        else if (a && holds == INV_AXIS) a->i = inv_layout_axis_back(rank, (int)(a->i < 0 ? a->i + rank : a->i));
        else if (a && !turn_ints(g, a, holds, rank)) return false;
    }
    return true;
}
