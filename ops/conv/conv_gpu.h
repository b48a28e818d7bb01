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
    bool last;                    /* x, y and their gradients have their channels last; the filter is as ever */
} inv_conv;

/* Some images and output positions of x as a matrix: a row per (channel, kernel element), a column per position. With
 * channels last it is the transpose of that which is stored. */
typedef struct inv_columns {
    inv_window w;
    bool last;             /* x has its channels last */
    int64_t channels;      /* of an image of x, all groups */
    int64_t first, images; /* of the batch */
    int64_t p0, np;        /* output positions */
    int64_t ld, at, step;  /* elements between rows, columns, and images, of the column matrix */
    int64_t lo, n;         /* part of every channel of x that col2im writes */
} inv_columns;

#ifdef __cplusplus
extern "C" {
#endif
INV_LAUNCHER(conv_im2col, const inv_columns *c, inv_dtype t, const void *x, void *col);
/* Sums for every element of x the columns that read it, in the order of the kernel's elements. */
INV_LAUNCHER(conv_col2im, const inv_columns *c, inv_dtype t, const void *col, inv_onto onto, void *gx);
/* out[channel][image][position] from gy[image][channel][position], for the images and positions of c. */
INV_LAUNCHER(conv_turn, const inv_columns *c, inv_dtype t, int64_t channels, const void *gy, void *out);
/* to[m][y][x] from from[m][x][y]: a filter into the order of a library's kernels for channels last, and back. */
INV_LAUNCHER(conv_turn_filter, inv_dtype t, int64_t m, int64_t x, int64_t y, const void *from, inv_onto onto, void *to);
/* y plus a bias per channel, or less it. */
INV_LAUNCHER(conv_bias, const inv_conv *c, inv_dtype t, const void *bias, bool minus, void *y);
/* One channel of x per group; first and second as in inv_gpu.conv. For GRAD_W the images are shared out to `parts`
 * blocks per element of the filter, and the sums are left in `ws`, doubles. */
INV_LAUNCHER(conv_depthwise, inv_conv_part part, const inv_conv *c, inv_dtype t, const void *first, const void *second,
             void *out, int64_t parts, double *ws);
/* conv_few.cu: 3x3 filters, stride 1, at most INV_FEW_CHANNELS on either side (of float64 half of that), one group.
 * FORWARD: x, filter -> y; GRAD_X: gy, filter -> gx. */
INV_LAUNCHER(few_channels, inv_conv_part part, const inv_conv *c, inv_dtype t, inv_onto onto, const void *in,
             const void *filter, void *out);
/* out[part] from x and gy: the filter's gradient by the images and rows of that part. */
INV_LAUNCHER(few_channels_filter, const inv_conv *c, inv_dtype t, int64_t parts, const void *x, const void *gy,
             void *out);
#ifdef __cplusplus
}
#endif

enum {
    INV_MANY_CHANNELS = 32, /* for which large Winograd tiles of a library are worth it */
    INV_FEW_CHANNELS = 64,  /* what shared memory has room for */
    INV_FEW_TILE = 16,      /* channels of a tile */
    INV_FEW_BLOCKS = 264    /* two for each multiprocessor of a large device */
};
/* A block owns a tile of 16 x 16 channels; pieces of the images, of 64 places, are shared out to so many blocks of each
 * tile. */
static inline int64_t inv_few_channels_parts(const inv_conv *c)
{
    const int64_t tiles = (c->cg + INV_FEW_TILE - 1) / INV_FEW_TILE * ((c->mg + INV_FEW_TILE - 1) / INV_FEW_TILE);
    const int64_t pieces = c->batch * ((c->w.out[1] * c->w.out[2] + 63) / 64);
    const int64_t parts = INV_FEW_BLOCKS / tiles < pieces ? INV_FEW_BLOCKS / tiles : pieces;
    return parts < 1 ? 1 : parts;
}

#endif
