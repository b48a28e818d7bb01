/* SPDX-License-Identifier: Apache-2.0
 * Convolution on the CPU: image to columns and a matrix product (Chellapilla, Puri, Simard 2006), in tiles that keep
 * the column matrix within the cache and the scratch memory small whatever the image size. */
#include <string.h>

#include "ops/base/parallel.h"
#include "ops/conv/conv.h"
#include "ops/linear/gemm.h"

#define TILE_BYTES (512 * 1024)
#define LEAST_WORK 5e5 /* multiplications that are worth threads */
#define TILE_LEAST 32  /* positions; fewer starve the matrix product */

/* Output positions per tile. */
static int64_t tile_of(const inv_conv *c, int64_t rows, size_t size)
{
    if (c->direct || c->w.outvol == 0) return inv_max64(c->w.outvol, 1);
    int64_t fit = TILE_BYTES / (inv_max64(rows, 1) * (int64_t)size);
    int64_t parts = (c->w.outvol + inv_max64(fit, TILE_LEAST) - 1) / inv_max64(fit, TILE_LEAST);
    return (c->w.outvol + parts - 1) / parts;
}

/* Threads that run tasks, each with a column matrix of `elems`; 1: the matrix product may use all of them. */
static int lanes_of(const inv_conv *c, int64_t tasks, int64_t elems, size_t size, size_t ws_nbytes)
{
    double work = (double)c->batch * (double)(c->group * c->mg * c->cg) * (double)(c->w.outvol * c->w.kvol);
    int64_t lanes = work < LEAST_WORK ? 1 : inv_min64(inv_threads(), tasks);
    size_t each = (size_t)elems * size;
    if (!c->direct && !c->depthwise && each > 0) lanes = inv_min64(lanes, (int64_t)(ws_nbytes / each));
    return (int)inv_max64(lanes, 1);
}

/* Channels of x and of y per task of the filter's gradient: a fixed split into about four. */
static void split_filter(const inv_conv *c, int64_t *cstep, int64_t *mstep)
{
    *cstep = c->cg;
    *mstep = c->mg;
    if (c->group >= 4) return;
    if (c->cg >= 16) *cstep = (c->cg + 3) / 4;
    else if (c->mg >= 16) *mstep = (c->mg + 3) / 4;
}

static size_t scratch(const inv_conv *c, int64_t tasks, int64_t rows, size_t size)
{
    if (c->direct || c->depthwise) return 0;
    int64_t lanes = inv_min64(inv_threads(), inv_max64(tasks, 1));
    return (size_t)lanes * (size_t)rows * (size_t)tile_of(c, rows, size) * size;
}

size_t inv_conv_workspace(const inv_conv *c, inv_dtype t)
{
    size_t size = inv_dtype_size(t);
    int64_t rows = c->cg * c->w.kvol, tile = tile_of(c, rows, size);
    return scratch(c, c->batch * c->group * ((c->w.outvol + tile - 1) / tile), rows, size);
}

size_t inv_conv_grad_x_workspace(const inv_conv *c, inv_dtype t)
{
    return scratch(c, c->batch * c->group, c->cg * c->w.kvol, inv_dtype_size(t));
}

size_t inv_conv_grad_w_workspace(const inv_conv *c, inv_dtype t)
{
    int64_t cstep, mstep;
    split_filter(c, &cstep, &mstep);
    if (cstep == 0 || mstep == 0) return 0;
    int64_t tasks = c->group * ((c->cg + cstep - 1) / cstep) * ((c->mg + mstep - 1) / mstep);
    return scratch(c, tasks, cstep * c->w.kvol, inv_dtype_size(t));
}

#define INV_BOTH "ops/conv/conv_kernels.inc"
#include "ops/base/both_reals.inc"
