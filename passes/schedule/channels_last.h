/* SPDX-License-Identifier: Apache-2.0
 * What the two parts of the layout pass share. A value is turned if its axes stand in channels-last order, as in
 * [N,H,W,C]; channels_last_ops.c asks operators' rows which operands may be. */
#ifndef INV_PASSES_SCHEDULE_CHANNELS_LAST_H
#define INV_PASSES_SCHEDULE_CHANNELS_LAST_H

/* Axis i of the turned value is axis inv_layout_axis(rank, i) of the plain one. */
static inline int inv_layout_axis(int rank, int i) { return i < 1 ? 0 : i + 1 < rank ? i + 1 : 1; }
static inline int inv_layout_axis_back(int rank, int i) { return i < 1 ? 0 : i == 1 ? rank - 1 : i - 1; }
inv_shape inv_layout_turn(const inv_shape *s);
inv_shape inv_layout_padded(const inv_shape *s, int rank); /* with axes of extent 1 in front, up to that rank */
bool inv_layout_is_still(const inv_shape *s);              /* turning a value of that shape moves no element */

/* Which operands and outputs of n hold images, as bit masks. False: n cannot be turned. */
bool inv_layout_slots(const inv_graph *g, const inv_node *n, int *rank, uint32_t *in, uint32_t *out);
static inline bool inv_layout_bit(uint32_t mask, uint32_t i)
{
    return mask == INV_ALL_SLOTS || (i < 32 && mask >> i & 1);
}
/* Whether v, in a slot for an image of that rank, is one. One of fewer axes that is broadcast is, too, but no
 * number. */
bool inv_layout_is_image(const inv_graph *g, inv_id v, bool slot, int rank);
bool inv_layout_turn_attrs(inv_graph *g, inv_node *n, int rank); /* false: out of memory */
static inline int inv_layout_rank(const inv_graph *g, inv_id v)
{
    return v == INV_NONE ? -1 : inv_val(g, v)->shape.rank;
}

#endif
