/* SPDX-License-Identifier: Apache-2.0
 * What winograd.c and winograd_last.c share: how images are cut into tiles, and filters as tiles want them. */
#ifndef INV_OPS_CONV_WINOGRAD_TILES_H
#define INV_OPS_CONV_WINOGRAD_TILES_H

#include "ops/base/parallel.h"
#include "ops/conv/conv.h"
#include "ops/linear/gemm_own.h"

#define INV_POINTS 16 /* of a tile */
#define INV_APART \
    16 /* floats between the matrices of two points, lest their elements meet in the same sets of a cache */
#define INV_TILE_LANES 8           /* floats of a vector */
#define INV_MOST_CHANNELS_LAST 512 /* of x and y together, where they come last */

typedef float inv_floats
    __attribute__((vector_size(INV_TILE_LANES * sizeof(float)), aligned(sizeof(float)), may_alias));
#define INV_AT(p) (*(inv_floats *)(p))
#define INV_FROM(p) (*(const inv_floats *)(p))

/* A convolution from `in` channels to `out`, by tiles of 2x2 outputs. */
typedef struct inv_tiles {
    bool last;                                   /* channels come last */
    int64_t in, out, h, w, oh, ow, pad_y, pad_x; /* h, w: of what is read; oh, ow: of what is written */
    int64_t across, down, all;                   /* tiles in a row; rows of them in an image, in all images */
    int64_t rows, bands, band; /* rows of tiles are cut into bands: their rows, and floats that one takes */
} inv_tiles;

/* Floats from one point's matrix to the next one's. */
static inline int64_t inv_step_of(int64_t channels, int64_t tiles) { return channels * tiles + INV_APART; }

/* A row of tiles: the image that it is in, and its place there. */
static inline int64_t inv_image_of(const inv_tiles *p, int64_t row) { return row / p->down; }
static inline int64_t inv_top_of(const inv_tiles *p, int64_t row) { return 2 * (row % p->down); }

/* G f G' of n filters, `step` floats apart; for the gradient to x of those turned round: 16 runs of n numbers, `count`
 * apart. */
void inv_take_filters(int64_t n, const float *f, int64_t step, bool to_x, int64_t count, float *u);
/* G' s G for n pairs of channels of `count`. */
void inv_give_filters(int64_t n, int64_t count, const float *s, float *gf);

/* Channels last. Scratch memory is `room` floats; as many as are best, or the least with which it can be done: channels
 * are cut into blocks then, for each of which tiles are made anew, and threads wait for each other more often. The bits
 * are the same for any room between. */
int64_t inv_tiles_last_room(const inv_tiles *p, bool grad_w, bool quick);
void inv_tiles_last(const inv_tiles *p, bool to_x, const float *x, const float *f, const float *bias, float *y,
                    float *ws, int64_t room);
void inv_tiles_last_grad_w(const inv_tiles *p, const float *x, const float *gy, float *gf, float *ws, int64_t room);

#endif
