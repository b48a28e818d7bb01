/* SPDX-License-Identifier: Apache-2.0
 * Copies to host memory and back, of values that backward reads and device memory is not kept for. Recovery emits them
 * (passes/recover/recover.c) for devices whose memory is apart from the host's; the executor queues them
 * (executor/run/transfer.c).
 */
#include "ops/base/families.h"
#include "ops/base/util.h"

static inv_status offload_infer(inv_graph *g, inv_node *n)
{
    INV_TRY(inv_infer_same(g, n));
    if (inv_has_out(n, 0)) inv_val(g, n->out[0])->mem = INV_MEM_HOST;
    return INV_OK;
}

/* clang-format off */
static const inv_op_def offload = {
    .size = sizeof offload, .domain = INV_IR, .name = "Offload", .since = 1, .in = "x", .out = "copy",
    .flags = INV_OP_TRANSFER | INV_OP_NO_GRAD, .infer = offload_infer, .flops = inv_flops_none,
    .doc = "x, copied to host memory while later steps run"};

static const inv_op_def fetch = {
    .size = sizeof fetch, .domain = INV_IR, .name = "Fetch", .since = 1, .in = "copy", .out = "x",
    .flags = INV_OP_TRANSFER | INV_OP_NO_GRAD, .infer = inv_infer_same, .flops = inv_flops_none,
    .doc = "the copy that Offload made, back in device memory: the same bits"};
/* clang-format on */

const inv_op_def *const inv_ops_offload[] = {&offload, &fetch, NULL};
