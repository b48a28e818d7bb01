/* SPDX-License-Identifier: Apache-2.0
 * Rows of a parameter that are held (core/weights/held.h) and that an update has moved are put back. */
#include <string.h>

#include "ops/base/emit.h"
#include "ops/train/optim.h"

static inv_status hold_infer(inv_graph *g, inv_node *n)
{
    size_t rows;
    const int64_t *row = inv_attr_ints(n, "rows", &rows);
    const inv_shape *w = inv_in_shape(g, n, 0), *values = inv_in_shape(g, n, 1);
    INV_TRY(inv_need_same_type(g, n, 2));
    if (w->rank < 1 || values->rank != 2 || values->dim[0] != (int64_t)rows ||
        values->dim[1] * w->dim[0] != inv_shape_nelem(w))
        return inv_node_fail(g, n, INV_E_SHAPE, "the values are not rows of the parameter");
    for (size_t i = 0; i < rows; i++)
        if (row[i] < 0 || row[i] >= w->dim[0])
            return inv_node_fail(g, n, INV_E_SHAPE, "there is no row %lld", (long long)row[i]);
    return INV_OK;
}

static inv_status hold_run(const inv_call *c)
{
    size_t rows;
    const int64_t *row = inv_attr_ints(c->node, "rows", &rows);
    const size_t nbytes = rows ? (size_t)c->in[1].n / rows * inv_dtype_size(c->in[1].dtype) : 0;
    for (size_t i = 0; i < rows; i++)
        memcpy((char *)c->in[0].data + (size_t)row[i] * nbytes, (const char *)c->in[1].data + i * nbytes, nbytes);
    return INV_OK;
}

/* clang-format off */
const inv_op_def inv_op_hold_rows = {
    .size = sizeof inv_op_hold_rows, .domain = INV_IR, .name = "HoldRows", .since = 1, .in = "w values", .out = "",
    .flags = INV_OP_NO_GRAD | INV_OP_AFTER_UPDATE | INV_OP_HOST_ONLY, .writes = 1, .infer = hold_infer, .run = hold_run,
    .flops = inv_flops_none, .doc = "these rows of w = values"};
/* clang-format on */
