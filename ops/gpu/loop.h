/* SPDX-License-Identifier: Apache-2.0
 * Loops over an output that operands broadcast to (stride 0 along broadcast axes). Neighbouring axes that all operands
 * walk alike are merged, axes of extent 1 are dropped. The last axis (extent `inner`, strides step[k]) is the caller's
 * inner loop; inv_loop_row gives the operands' offsets for row r of `rows`. Read by C and by device code. */
#ifndef INV_OPS_GPU_LOOP_H
#define INV_OPS_GPU_LOOP_H

#include "core/base/shape.h"
#include "ops/gpu/device_code.h"

#define INV_LOOP_OPS 4
typedef struct inv_loop {
    int rank, nop; /* operands from nop on have strides 0: device code then keeps offsets in registers */
    int64_t rows, inner;
    int64_t dim[INV_MAX_RANK];
    int64_t stride[INV_LOOP_OPS][INV_MAX_RANK];
    int64_t step[INV_LOOP_OPS];
} inv_loop;

/* i / by, of numbers that are not negative; in 32 bits where they suffice, which is several times faster on a device.
 */
INV_HD int64_t inv_quotient(int64_t i, int64_t by)
{
    return ((uint64_t)(i | by) >> 32) == 0 ? (int64_t)((uint32_t)i / (uint32_t)by) : i / by;
}

INV_HD void inv_loop_row(const inv_loop *l, int64_t row, int64_t offset[INV_LOOP_OPS])
{
    for (int k = 0; k < INV_LOOP_OPS; k++) offset[k] = 0;
    for (int i = l->rank - 2; i > 0; i--) {
        int64_t q = inv_quotient(row, l->dim[i]), at = row - q * l->dim[i];
        row = q;
        for (int k = 0; k < INV_LOOP_OPS; k++) offset[k] += at * l->stride[k][i];
    }
    for (int k = 0; k < INV_LOOP_OPS; k++) offset[k] += row * l->stride[k][0]; /* row is 0 where there is one axis */
}

/* Offsets of element i of the output. */
INV_HD void inv_loop_at(const inv_loop *l, int64_t i, int64_t offset[INV_LOOP_OPS])
{
    int64_t row = l->rows == 1 ? 0 : inv_quotient(i, l->inner), j = i - row * l->inner;
    inv_loop_row(l, row, offset);
    for (int k = 0; k < INV_LOOP_OPS; k++) offset[k] += j * l->step[k];
}

#endif
