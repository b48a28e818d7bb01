/* SPDX-License-Identifier: Apache-2.0
 * Joint nodes on a device (ops/elementwise/fused.c): one kernel, an interpreter of what the steps say. */
#ifndef INV_OPS_ELEMENTWISE_FUSED_GPU_H
#define INV_OPS_ELEMENTWISE_FUSED_GPU_H

#include "core/graph/joint.h"
#include "ops/elementwise/arith_gpu.h"

typedef enum inv_opcode {
#define INV_OPCODE(f, expr) INV_OPCODE_##f,
#include "ops/elementwise/opcodes.inc"
#undef INV_OPCODE
} inv_opcode;

/* How a thread gets a group of neighbouring elements of an operand: as such, or the same number for all of them, at
 * the group's own place or where its row has it; or each by itself. */
typedef enum inv_fused_load {
    INV_LOAD_EACH,
    INV_LOAD_WHOLE,
    INV_LOAD_ROW,
    INV_LOAD_ROW_ONE,
    INV_LOAD_ONE
} inv_fused_load;

/* What the kernel interprets. Values are in places, of which each thread has INV_FUSED_PLACES: inputs in the first
 * ones, then results in those that are free. */
typedef struct inv_fused_call {
    int64_t n; /* elements of every result */
    int64_t dim[INV_MAX_RANK];
    int rank, nin, nstep;
    bool wide; /* outputs lie so that groups can be stored as such */
    struct {
        const void *data;
        int64_t stride[INV_MAX_RANK];
        inv_fused_load load; /* the launcher's */
    } in[INV_FUSED_IN];
    struct {
        uint8_t opcode, nin, in[3], place;
        void *out; /* NULL: nobody wants it */
    } step[INV_FUSED_STEPS];
    double real[INV_FUSED_STEPS][4];
} inv_fused_call;

#ifdef __cplusplus
extern "C" {
#endif
/* Of float32 or float64. Outputs may be inputs of as many elements that no later step reads. */
INV_LAUNCHER(fused, inv_dtype t, const inv_fused_call *call);
#ifdef __cplusplus
}
#endif

#endif
