/* SPDX-License-Identifier: Apache-2.0
 * What a convolution is, and its device kernels (conv.cu), which conv_gpu.c starts. */
#ifndef INV_OPS_CONV_CONV_GPU_H
#define INV_OPS_CONV_CONV_GPU_H

#include "ops/base/window.h"
#include "ops/gpu/gpu.h"

typedef struct inv_conv {
    inv_window w;
    int64_t batch, group, cg, mg; /* channels per group of x and of y */
    bool direct;                  /* 1x1, stride 1, no pads: x itself is the column matrix */
    bool depthwise;               /* one channel of x per group: loops without a column matrix */
} inv_conv;

/* Some images and output positions of x as a matrix: a row per (channel, kernel element), a column per position. */
typedef struct inv_columns {
    inv_window w;
    int64_t channels;      /* of an image of x, all groups */
    int64_t first, images; /* of the batch */
    int64_t p0, np;        /* output positions */
    int64_t ld, step;      /* elements between rows, and between images, of the column matrix */
    int64_t lo, n;         /* part of every channel of x that col2im writes */
} inv_columns;

#ifdef __cplusplus
extern "C" {
#endif
INV_LAUNCHER(conv_im2col, const inv_columns *c, inv_dtype t, const void *x, void *col);
/* Sums for every element of x the columns that read it, in the order of the kernel's elements. */
INV_LAUNCHER(conv_col2im, const inv_columns *c, inv_dtype t, const void *col, bool add, void *gx);
/* out[channel][image][position] from gy[image][channel][position], for the images and positions of c. */
INV_LAUNCHER(conv_turn, const inv_columns *c, inv_dtype t, int64_t channels, const void *gy, void *out);
INV_LAUNCHER(conv_bias, const inv_conv *c, inv_dtype t, const void *bias, void *y);
/* One channel of x per group; first and second as in inv_gpu.conv. For GRAD_W the images are shared out to `parts`
 * blocks per element of the filter, and `ws` holds a double for each. */
INV_LAUNCHER(conv_depthwise, inv_conv_part part, const inv_conv *c, inv_dtype t, const void *first, const void *second,
             void *out, int64_t parts, double *ws);
#ifdef __cplusplus
}
#endif

#endif
