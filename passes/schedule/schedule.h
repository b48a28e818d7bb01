/* SPDX-License-Identifier: Apache-2.0
 * Order, layout, offsets and predicted time of a graph's nodes. */
#ifndef INV_PASSES_SCHEDULE_SCHEDULE_H
#define INV_PASSES_SCHEDULE_SCHEDULE_H

#include "core/cost.h"
#include "core/program.h"

/* channels_last.c: channels last where convolutions gain by it */
inv_status inv_pass_layout(inv_graph *g);
/* order.c: forward, backward, commit; feeds sink to their first reader */
inv_status inv_pass_order(inv_graph *g);
/* With early updates, after recovery: they move to where they can be made, into the compute part; with guards (not
 * g->early any more), the counts that they read. */
inv_status inv_advance_updates(inv_graph *g);
/* memplan.c: liveness, peaks and offsets */
inv_status inv_pass_memplan(inv_graph *g, inv_plan *plan);
/* Bytes that values share from one position to another, inclusive. */
typedef struct inv_buffer {
    size_t nbytes;
    uint32_t from, to;
    uint8_t mem;
    inv_id value; /* first value; INV_NONE: workspace of the node at `from` */
} inv_buffer;
typedef INV_VEC(inv_buffer) inv_buffers;
/* The buffers if no forward value is written over behind forward; of: per value, UINT32_MAX: none. */
inv_status inv_buffers_apart(inv_graph *g, inv_arena *a, inv_buffers *out, uint32_t **of);
/* verify_plan.c: INV_E_INTERNAL if the order does not read what it has written, or values get into each other's bytes
 * */
inv_status inv_plan_verify(const inv_graph *g, const inv_plan *plan);
/* plan_cost.c: what plans are compared by: predicted seconds of one node, or without a table its arithmetic */
double inv_node_cost(const inv_cost_table *t, const inv_graph *g, const inv_node *n);
/* The same of so many bytes that go to host memory and back while other nodes run. */
double inv_offload_cost(const inv_cost_table *t, double nbytes);
/* Predicted times of the plan's nodes, and of the step with everything stored. requires: plan->g, plan->base */
inv_status inv_plan_predict(inv_plan *plan, const inv_cost_table *t);

#endif
