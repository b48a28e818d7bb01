/* SPDX-License-Identifier: Apache-2.0
 * What layout's parts share: images with channels last, "turned", and the operators that can do with them
 * (channels_last_ops.c). */
#ifndef INV_PASSES_SCHEDULE_CHANNELS_LAST_H
#define INV_PASSES_SCHEDULE_CHANNELS_LAST_H

/* Axis i of the turned value is axis inv_layout_axis(r, i) of the value. */
static inline int inv_layout_axis(int rank, int i) { return i < 1 ? 0 : i + 1 < rank ? i + 1 : 1; }
static inline int inv_layout_axis_back(int rank, int i) { return i < 1 ? 0 : i == 1 ? rank - 1 : i - 1; }
inv_shape inv_layout_turn(const inv_shape *s);
inv_shape inv_layout_padded(const inv_shape *s, int rank); /* by axes of one in front */
bool inv_layout_is_still(const inv_shape *s);              /* no element moves when a value of that shape is turned */

/* Slots of n that hold images, as masks; false: n cannot be turned. */
bool inv_layout_slots(const inv_graph *g, const inv_node *n, int *rank, uint32_t *in, uint32_t *out);
#define INV_LAYOUT_ALL 0xffffffffu /* slots */
static inline bool inv_layout_bit(uint32_t mask, uint32_t i)
{
    return mask == INV_LAYOUT_ALL || (i < 32 && mask >> i & 1);
}
/* Whether v, in a slot for an image of that rank, is one; also of fewer axes, to be broadcast, but no single number. */
bool inv_layout_is_image(const inv_graph *g, inv_id v, bool slot, int rank);
bool inv_layout_turn_attrs(inv_graph *g, inv_node *n, int rank); /* false: out of memory */
static inline int inv_layout_rank(const inv_graph *g, inv_id v)
{
    return v == INV_NONE ? -1 : inv_val(g, v)->shape.rank;
}

#endif
