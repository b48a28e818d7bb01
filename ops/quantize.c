/* SPDX-License-Identifier: Apache-2.0
 * DequantizeLinear, so that weights which an exporter has stored as integers can be read, and their scales trained:
 *
 *     y = (x - zero_point) scale        lowered to Cast, Sub, Mul; scale and zero_point of one axis become views
 *
 * Sources: ONNX DequantizeLinear-10, -13, -19, -21. Blocks within an axis (block_size) are refused. */
#include "ops/builtin.h"
#include "ops/util.h"

/* Operand i, in the graph's type and of a shape that broadcasts along `axis`. */
static inv_status along_axis(inv_graph *g, const inv_node *n, uint32_t i, int64_t axis, inv_id *out)
{
    const inv_shape *x = inv__in_shape(g, n, 0), *s = inv__in_shape(g, n, i);
    int64_t dim[INV_MAX_RANK];
    *out = n->in[i];
    if (inv__in_dtype(g, n, i) != g->real)
        *out = inv_emit1(g, "Cast", INV_IN(*out), INV_ATTRS(inv_attr_of_int("to", g->real)));
    if (inv_shape_nelem(s) == 1 && s->rank <= 1) {
        if (s->rank == 1 && x->rank == 0)
            *out = inv_emit1(g, "View", INV_IN(*out), INV_ATTRS(inv_attr_of_ints("shape", 0, dim)));
        return inv__done(g);
    }
    if (axis < 0) axis += x->rank;
    if (s->rank != 1 || axis < 0 || axis >= x->rank || s->dim[0] != x->dim[axis])
        return inv_node_fail(g, n, INV_E_SHAPE, "input %u must be one number, or one per entry of the axis", i);
    for (int d = 0; d < x->rank; d++) dim[d] = d == axis ? s->dim[0] : 1;
    *out = inv_emit1(g, "View", INV_IN(*out), INV_ATTRS(inv_attr_of_ints("shape", (size_t)x->rank, dim)));
    return inv__done(g);
}

static inv_status dequantize_lower(inv_graph *g, const inv_node *n, inv_id *out)
{
    int64_t axis = inv_attr_int(n, "axis", 1);
    inv_id scale, zero;
    INV_TRY(inv__need(g, n, 2));
    if (inv_attr_int(n, "block_size", 0) != 0)
        return inv_node_fail(g, n, INV_E_UNSUPPORTED_OP, "block_size is not supported");
    INV_TRY(along_axis(g, n, 1, axis, &scale));
    inv_id x = inv_emit1(g, "Cast", INV_IN(n->in[0]), INV_ATTRS(inv_attr_of_int("to", g->real)));
    if (inv__has_in(n, 2)) {
        INV_TRY(along_axis(g, n, 2, axis, &zero));
        x = inv_emit1(g, "Sub", INV_IN(x, zero), INV_NOATTR);
    }
    out[0] = inv_emit1(g, "Mul", INV_IN(x, scale), INV_NOATTR);
    return inv__done(g);
}

static const inv_op_def dequantize = {
    .size = sizeof dequantize, .domain = "", .name = "DequantizeLinear", .since = 10,
    .in = "x x_scale x_zero_point?", .out = "y", .infer = inv__infer_lowered, .lower = dequantize_lower,
    .cases = (const char *const[]){"y = DequantizeLinear<axis = 1>(int8[2,3,2] x, float[3] s, int8[3] z)",
                                   "y = DequantizeLinear<axis = -2>(uint8[2,3] x, float[2] s)",
                                   "y = DequantizeLinear(int32[2,3] x, float s)", NULL},
    .doc = "y = (x - zero_point) scale"};

const inv_op_def *const inv_ops_quantize[] = {&dequantize, NULL};
