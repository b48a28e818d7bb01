/* SPDX-License-Identifier: Apache-2.0
 * The order of a graph's nodes, the layout of its images, offsets in the arena, predicted time; and the check of it
 * all. */
#ifndef INV_PASSES_SCHEDULE_SCHEDULE_H
#define INV_PASSES_SCHEDULE_SCHEDULE_H

#include "core/program/cost.h"
#include "core/program/program.h"

/* channels_last.c: gives images channels last where convolutions gain by it */
inv_status inv_pass_layout(inv_graph *g);
/* order.c: orders forward, backward, commit; each feed stands before its first reader */
inv_status inv_pass_order(inv_graph *g);
/* order.c, after recovery: moves early updates into the compute part, to where they can be made; if g->early is off, as
 * where guards do not decide ahead, only the counts of non-finite entries that updates read. */
inv_status inv_advance_updates(inv_graph *g);
/* fuse.c: joins element-wise nodes: of a plan with its bytes also such as are not neighbours; NULL: only neighbours.
 * *groups: how many nodes have come of that */
inv_status inv_pass_fuse(inv_graph *g, const inv_plan *plan, size_t *groups);
/* How a plan is fitted into bytes. */
typedef struct inv_fit {
    unsigned effort; /* as in inv_place; 0: nothing is placed, and the bytes that live at once count */
    size_t enough;   /* bytes; 0: as few as can be */
    bool measured;   /* it is found out what that takes, or that it is enough, and the plan stays as it was */
} inv_fit;
/* fuse.c: places the plan's buffers, its element-wise nodes joined in the first way that takes no more than enough, or
 * else in the one that takes the fewest bytes. A plan with offsets takes no more than before. *nbytes: what it takes.
 * The plan of a graph hangs on `enough` only in that, so one that was measured to fit does. */
inv_status inv_fuse_plan(inv_plan *plan, const inv_fit *fit, size_t *nbytes);
/* memplan.c: liveness, peaks and, unless the effort is 0, offsets; `effort` and `enough` as in inv_place */
inv_status inv_pass_memplan(inv_graph *g, inv_plan *plan, unsigned effort, size_t enough);
/* Bytes that one or several values share, live from one position of the order to another, both included. */
typedef struct inv_buffer {
    size_t nbytes;
    uint32_t from, to;
    uint8_t mem;
    inv_id value; /* the first value in it; INV_NONE: the workspace of the node at `from` */
} inv_buffer;
typedef INV_VEC(inv_buffer) inv_buffers;
/* The buffers for the case that backward writes nothing in place of a value of forward. *of: per value, its buffer;
 * UINT32_MAX: it has none. */
inv_status inv_buffers_apart(inv_graph *g, inv_arena *a, inv_buffers *out, uint32_t **of);
/* spare.c: gives nodes that are quicker with more scratch memory what is free at their step, in an arena of
 * g->arena_nbytes with the buffers at these offsets */
inv_status inv_widen_workspaces(inv_graph *g, const inv_buffers *buf, const size_t *offset);
/* memplan.c: the inputs in place of which output o may be written if nobody reads them later, as bits */
uint32_t inv_node_inplace(const inv_graph *g, const inv_node *n, uint32_t o);
/* persistent_storage.c: where what the graph's nodes read and do not compute lives, in storage of the program's.
 * LASTING: all but constants, which come behind what lasts of all plans. So that part is the same for all batches. */
typedef enum inv_assign { INV_ASSIGN_ALL, INV_ASSIGN_LASTING } inv_assign;
inv_status inv_assign_storage(inv_program *p, inv_graph *g, inv_assign which);
/* persistent_storage.c: the bytes by which that would let program->persistent grow */
inv_status inv_storage_growth(const inv_program *p, inv_graph *g, size_t *nbytes);
/* verify_plan.c: INV_E_INTERNAL if a node reads what is not there, or two live values share a byte. *lost (NULL: nobody
 * asks): the value that is not there, or is overwritten; INV_NONE: none is */
inv_status inv_plan_verify(const inv_graph *g, const inv_plan *plan, inv_id *lost);
/* plan_cost.c: the cost by which plans are compared: predicted seconds of a node, or its flops if `t` is NULL */
double inv_node_cost(const inv_cost_table *t, const inv_graph *g, const inv_node *n);
/* The cost, in the same unit, of bytes that go to host memory and come back while other nodes run. */
double inv_offload_cost(const inv_cost_table *t, double nbytes);

#endif
