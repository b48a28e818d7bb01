/* SPDX-License-Identifier: Apache-2.0
 * What nodes take in time, by rates that were measured on the machine (api/calibrate.c), or of a GPU by
 * general ones (executor/rates/gpu_rates.c). A node is
 *
 *     fixed + max(amount / rate, bytes / bandwidth)
 *
 * with the amount and the rate of its kind of work (inv_work), and all bytes of its operands and results; where
 * elements are only moved, as many as the results have, twice. Beyond what the processor's cache holds, bytes come at
 * the pace of the memory.
 *
 * What steps were seen to take (executor/run/node_times.c) corrects that, by a factor: that of the same operator with
 * the same attributes and shapes; else that of the operator; else that of its kind of work, for operators that only
 * another plan has, as guards; else that of all nodes together. Processes that share a machine's processors and memory
 * slow each other down, so what was seen of them goes by their number, and holds for as many. */
#ifndef INV_CORE_COST_H
#define INV_CORE_COST_H

#include "core/graph/op.h"

/* Nodes that are `what` take `by` times what the rates say. */
typedef struct inv_correction {
    uint64_t what; /* inv_node_likeness, inv_op_likeness, inv_work_likeness, or INV_ALL_NODES */
    double by;
} inv_correction;
#define INV_ALL_NODES 0
/* Of several ranks: the time that a reduction is on its way while nodes run, over what the network's latency and
 * bandwidth say; and that in which the rank's own processor moves it. */
#define INV_UNDER_WAY 1
#define INV_MOVED 2
#define INV_FIRST_WORK 16 /* of inv_work_likeness, one for each kind of work */

enum { INV_MOST_CORRECTIONS = 4096 };

struct inv_cost_table {
    inv_dtype real;             /* of the arithmetic that was measured: INV_F32 or INV_F64 */
    double rate[INV_WORKS];     /* amount per second */
    double fixed[INV_WORKS];    /* seconds per node */
    double bandwidth;           /* bytes per second, of memory */
    double cache;               /* bytes */
    double copy;                /* bytes per second of what goes to host memory and comes back; 0: not measured */
    const inv_correction *seen; /* sorted by `what`; none are equal */
    size_t nseen;
    int company;  /* processes that compute side by side on the machine; 0: this one alone */
    double crowd; /* what nodes take longer there, where that was not seen; 0: nothing */
};

/* One name per kind of work; never NULL. */
const char *inv_work_name(inv_work w);
/* What the row of a canonical node says that it does. */
inv_work inv_node_work(const inv_graph *g, const inv_node *n);
/* By what its kind of work is measured: bytes, elements or flops. 0 if it is of no extent, or runs no kernel. */
double inv_node_amount(const inv_graph *g, const inv_node *n);
/* Whether a device may compute the node beside those that follow it: a product or convolution of backward that writes
 * nothing but its results. */
bool inv_may_run_beside(const inv_graph *g, const inv_node *n);
/* Predicted seconds of a canonical node with static shapes; 0 where no kernel runs. */
double inv_node_seconds(const inv_cost_table *t, const inv_graph *g, const inv_node *n);
/* The same by the rates alone, uncorrected. */
double inv_node_rated_seconds(const inv_cost_table *t, const inv_graph *g, const inv_node *n);
/* By the roofline: its arithmetic at the pace of products, or its operands' and results' bytes at those of cache and
 * memory. A node is quicker where it touches less than it names: few rows, blocks that are masked, what a cache has. */
double inv_node_least_seconds(const inv_cost_table *t, const inv_graph *g, const inv_node *n);
/* Equal of nodes that do the same: of one operator, with the same attributes, types and shapes. */
uint64_t inv_node_likeness(const inv_graph *g, const inv_node *n);
uint64_t inv_op_likeness(const inv_op_def *op);
uint64_t inv_work_likeness(inv_work w);
/* `what` as it is noted in this company. */
uint64_t inv_noted_as(const inv_cost_table *t, uint64_t what);
/* The factor for what is `what`; 0: none is known. */
double inv_correction_of(const inv_cost_table *t, uint64_t what);
/* Sorts them; of equal ones the first stays, and at most INV_MOST_CORRECTIONS do, the first ones. @return how many */
size_t inv_corrections_sort(inv_correction *list, size_t n);
/* A copy that is one piece of memory of so many bytes. */
size_t inv_cost_table_nbytes(const inv_cost_table *t);
inv_cost_table *inv_cost_table_copy(const inv_cost_table *t, void *room);
/* Of so many bytes that go from a device's memory to the host's and come back. */
double inv_copy_seconds(const inv_cost_table *t, double nbytes);
/* Whether every number can be divided by, so that every node gets a finite time. */
bool inv_cost_table_sound(const inv_cost_table *t);

/* Arithmetic of one node: op->flops, else the elements of its largest operand. */
double inv_node_flops(const inv_graph *g, const inv_node *n);

#endif
