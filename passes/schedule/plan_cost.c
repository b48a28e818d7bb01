/* SPDX-License-Identifier: Apache-2.0
 * The cost of nodes, by which plans are compared: seconds by measured rates (core/program/cost.h) where there are some,
 * else flops. */
#include "core/program/cost.h"

#include "passes/schedule/schedule.h"

/* What a byte costs without rates, in flops, that goes to host memory and comes back: those of the time that one way
 * takes, as if the other were hidden behind what runs meanwhile. By data sheets, float32 arithmetic over the bandwidth
 * of PCI Express is 500 to 2000 flops per byte on GPUs in use. */
#define FLOPS_PER_BYTE 1000

double inv_offload_cost(const inv_cost_table *t, double nbytes)
{
    return t ? inv_copy_seconds(t, nbytes) : FLOPS_PER_BYTE * nbytes;
}

/* The cost of a copy, all of which is counted on the way back. */
static double transfer_cost(const inv_graph *g, const inv_node *n)
{
    const inv_value *v = inv_val(g, n->out[0]);
    return v->mem == INV_MEM_HOST ? 0 : inv_offload_cost(NULL, (double)inv_value_nbytes(v));
}

double inv_node_cost(const inv_cost_table *t, const inv_graph *g, const inv_node *n)
{
    if (t) return inv_node_seconds(t, g, n);
    return n->op->flags & INV_OP_TRANSFER ? transfer_cost(g, n) : inv_node_flops(g, n);
}
