/* SPDX-License-Identifier: Apache-2.0
 * What operators mean for channels_last.c: which take their images in either order of axes, which operands are images,
 * and what becomes of the attributes when a node is turned. */
#include <string.h>

#include "ops/base/util.h"
#include "passes/schedule/channels_last.h"

#define ALL INV_LAYOUT_ALL

/* What an attribute holds that turning changes: an axis, axes, a number per axis, the last axis; or a flag to be
 * set. */
typedef enum about { AXIS, AXES, PER_AXIS, LAST_AXIS, MARK } about;

/* Operators that are not element-wise and take either order. in, out: masks of the slots that hold images. */
static const struct knowing {
    const char *op;
    uint32_t in, out;
    struct {
        const char *name;
        about what;
    } attr[3];
} knowing[] = {
    {"ConvN", 9, 1, {{"channels_last", MARK}}},
    {"ConvGradX", 5, 1, {{"channels_last", MARK}, {"shape", PER_AXIS}}},
    {"ConvGradW", 3, 0, {{"channels_last", MARK}}},
    {"BatchStats", 1, 0, {{"axis", LAST_AXIS}}},
    {"BatchNormApply", 1, 1, {{"axis", LAST_AXIS}}},
    {"BatchNormInverse", 1, 1, {{"axis", LAST_AXIS}}},
    {"BatchNormGrad", 3, 1, {{"axis", LAST_AXIS}}},
    {"MaxPoolN", 1, ALL, {{"channels_last", MARK}}},
    {"MaxPoolGrad", ALL, 1, {{"channels_last", MARK}, {"shape", PER_AXIS}}},
    {"AveragePoolN", 1, 1, {{"channels_last", MARK}}},
    {"AveragePoolGrad", 1, 1, {{"channels_last", MARK}, {"shape", PER_AXIS}}},
    {"Concat", ALL, 1, {{"axis", AXIS}}},
    {"SplitSizes", 1, ALL, {{"axis", AXIS}}},
    {"Permute", 1, 1, {{"axis", AXIS}}},
    {"ReduceSumAxes", 1, 1, {{"axes", AXES}}},
    {"ReduceMeanAxes", 1, 1, {{"axes", AXES}}},
    {"ReduceMaxAxes", 1, 1, {{"axes", AXES}}},
    {"ReduceMinAxes", 1, 1, {{"axes", AXES}}},
    {"ReduceProdAxes", 1, 1, {{"axes", AXES}}},
    {"SumTo", 1, 1, {{"shape", PER_AXIS}}},
    {"BroadcastTo", 1, 1, {{"shape", PER_AXIS}}},
    {"SliceRange", 1, 1, {{"starts", PER_AXIS}, {"steps", PER_AXIS}, {"sizes", PER_AXIS}}},
    {"SliceRangeGrad", 1, 1, {{"shape", PER_AXIS}, {"starts", PER_AXIS}, {"steps", PER_AXIS}}},
    {"PadRange", 1, 1, {{"shape", PER_AXIS}, {"starts", PER_AXIS}}},
    {"CompareBits", ALL, 1, {{"axis", AXIS}}},
    {"EqualBits", ALL, 1, {{"axis", AXIS}}},
    {"SelectBits", ALL, 1, {{"axis", AXIS}, {"shape", PER_AXIS}}},
    {"ResizeN", 1, 1, {{"shape", PER_AXIS}}},
    {"ResizeGrad", 1, 1, {{"shape", PER_AXIS}}},
};

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

static const struct knowing *knowing_of(const inv_node *n)
{
    for (size_t i = 0; i < sizeof knowing / sizeof *knowing; i++)
        if (strcmp(knowing[i].op, n->op->name) == 0 && strcmp(n->domain, INV_IR) == 0) return &knowing[i];
    return NULL;
}

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

/* Whether the node has a list of a number per axis that the table does not know. */
static bool has_more_axes(const inv_node *n)
{
    return inv_attr_find(n, "scales") || inv_attr_find(n, "roi_begin") || inv_attr_find(n, "roi_end");
}

bool inv_layout_slots(const inv_graph *g, const inv_node *n, int *rank, uint32_t *in, uint32_t *out)
{
    const struct knowing *k = knowing_of(n);
    const bool each = (n->op->flags & INV_OP_ELEMENTWISE) != 0;
    *in = each ? ALL : k ? k->in : 0;
    *out = each ? ALL : k ? k->out : 0;
    *rank = image_rank(g, n);
    if ((!each && !k) || *rank == 0 || !keeps_order(g, n) || has_more_axes(n)) return false;
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

static bool turn_ints(inv_graph *g, inv_attr *a, about what, int rank)
{
    int64_t *v = INV_ARENA_NEW(&g->arena, int64_t, INV_MAX_RANK);
    size_t n = 0;
    if (!v) return false;
    if (what == PER_AXIS) { /* of fewer axes: the shape of something that is broadcast; a single number stays one */
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
    const struct knowing *k = n->op->flags & INV_OP_ELEMENTWISE ? NULL : knowing_of(n);
    inv_attr *attr = INV_ARENA_NEW(&g->arena, inv_attr, n->nattr + 3);
    if (!attr) return false;
    if (n->nattr) memcpy(attr, n->attr, n->nattr * sizeof *attr);
    n->attr = attr;
    for (int i = 0; k && i < 3 && k->attr[i].name; i++) {
        const char *name = k->attr[i].name;
        const about what = k->attr[i].what;
        inv_attr *a = NULL;
        for (uint32_t j = 0; j < n->nattr; j++)
            if (strcmp(attr[j].name, name) == 0) a = &attr[j];
        if (what == MARK || what == LAST_AXIS)
            *(a ? a : &attr[n->nattr++]) = inv_attr_of_int(name, what == MARK ? 1 : rank - 1);
        else if (a && what == AXIS) a->i = inv_layout_axis_back(rank, (int)(a->i < 0 ? a->i + rank : a->i));
        else if (a && !turn_ints(g, a, what, rank)) return false;
    }
    return true;
}
