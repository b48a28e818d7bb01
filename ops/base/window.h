/* SPDX-License-Identifier: Apache-2.0
 * Sliding windows of convolution and pooling in one, two or three dimensions. Fewer than three are filled up in front
 * with axes of extent 1, so that kernels know one case only. The geometry is read by C and by device code. */
#ifndef INV_OPS_BASE_WINDOW_H
#define INV_OPS_BASE_WINDOW_H

#include <stdint.h>

#ifndef __cplusplus
#include "core/graph/op.h"
#endif

typedef struct inv_window {
    int sd; /* spatial axes of the operator */
    int64_t in[3], out[3], k[3], stride[3], dil[3];
    int64_t pad[3], pad_end[3];
    int64_t invol, outvol, kvol;
    int tight; /* the axis, from 1, on which the kernel is larger than the padded input; 0: none was found */
} inv_window;

#ifndef __cplusplus
/* Reads strides, dilations, pads (or auto_pad) and, if `ceil` may be, ceil_mode; computes the output's extents.
 * `in` and `k` have `sd` entries. NULL, or what is wrong. */
const char *inv_window_of(const inv_node *n, int sd, const int64_t *in, const int64_t *k, bool ceil_mode,
                          inv_window *w);

/* Notes the axis that is too short, if that was what was wrong (inv_note_misfit). */
void inv_window_note(const inv_graph *g, const inv_window *w);

/* Explicit attributes of a window for canonical operators; `buf` holds their numbers. */
typedef struct inv_window_attrs {
    int64_t strides[3], pads[6], dilations[3], kernel[3];
    inv_attr attr[4]; /* strides, pads, dilations, kernel_shape */
} inv_window_attrs;
void inv_window_attrs_of(const inv_window *w, inv_window_attrs *a);
#endif

#endif
