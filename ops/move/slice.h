/* SPDX-License-Identifier: Apache-2.0
 * What pad.c and slice.c share. */
#ifndef INV_OPS_MOVE_SLICE_H
#define INV_OPS_MOVE_SLICE_H

#include "core/graph/op.h"

/* SliceRange, or v itself where that is all of it. One entry per axis. */
inv_id inv_emit_slice(inv_graph *g, inv_id v, const int64_t *starts, const int64_t *steps, const int64_t *sizes);

extern const inv_op_def inv_op_pad; /* listed by slice.c */

#endif
