/* SPDX-License-Identifier: Apache-2.0
 * Convolution with the channels last: which kernel serves it. Filters of 3x3 go by tiles (winograd.c), and the gradient
 * to the filter of a depthwise convolution is a loop of our own, since the library's is slow for large kernels. */
#include <string.h>

#include "ops/base/parallel.h"
#include "ops/conv/winograd.h"

#define WIDE 16    /* channels of one task */
#define MOST_K 128 /* elements of a kernel */

static bool is_own(const inv_conv *c, inv_conv_part part)
{
    return part == INV_CONV_GRAD_W && c->group > 1 && c->cg == 1 && c->mg == 1 && c->w.kvol > 9 && c->w.kvol <= MOST_K;
}

/* Columns of the output whose input, through kernel column kx, lies inside: lo..hi - 1. */
static void columns_inside(const inv_window *w, int64_t kx, int64_t *lo, int64_t *hi)
{
    const int64_t off = w->pad[2] - kx * w->dil[2], s = w->stride[2];
    *lo = inv_min64(off > 0 ? (off + s - 1) / s : 0, w->out[2]);
    *hi = w->in[2] - 1 + off < 0 ? 0 : inv_min64((w->in[2] - 1 + off) / s + 1, w->out[2]);
}

/* Sum over n positions of x * g for `width` channels; x moves by `step` elements, g by `channels`. */
INV_SIMD static void row_products(const float *x, int64_t step, const float *g, int64_t channels, int64_t n, float *sum)
{
    float a[WIDE] = {0}, b[WIDE] = {0};
    int64_t i = 0;
    for (; i + 2 <= n; i += 2, x += 2 * step, g += 2 * channels) {
        for (int j = 0; j < WIDE; j++) a[j] += x[j] * g[j];
        for (int j = 0; j < WIDE; j++) b[j] += x[step + j] * g[channels + j];
    }
    for (int j = 0; j < WIDE && i < n; j++) a[j] += x[j] * g[j];
    for (int j = 0; j < WIDE; j++) sum[j] = a[j] + b[j];
}

static void few_products(const float *x, int64_t step, const float *g, int64_t channels, int64_t n, int width,
                         float *sum)
{
    for (int j = 0; j < width; j++) {
        sum[j] = 0;
        for (int64_t i = 0; i < n; i++) sum[j] += x[i * step + j] * g[i * channels + j];
    }
}

/* Channels c0..c0 + width: rows of the output one after the other, each with every row of the kernel. */
static void filter_gradient(const inv_conv *c, const float *x, const float *gy, int64_t c0, int width, float *gf)
{
    const inv_window *w = &c->w;
    const int64_t channels = c->group, rows = c->batch * w->out[0] * w->out[1];
    double total[MOST_K][WIDE] = {{0}};
    for (int64_t r = 0; r < rows; r++) {
        const int64_t oy = r % w->out[1], oz = r / w->out[1] % w->out[0], n = r / (w->out[1] * w->out[0]);
        for (int64_t k = 0; k < w->kvol; k++) {
            const int64_t kx = k % w->k[2], ky = k / w->k[2] % w->k[1], kz = k / w->k[2] / w->k[1];
            const int64_t iy = oy * w->stride[1] - w->pad[1] + ky * w->dil[1];
            const int64_t iz = oz * w->stride[0] - w->pad[0] + kz * w->dil[0];
            int64_t lo, hi;
            if (iy < 0 || iy >= w->in[1] || iz < 0 || iz >= w->in[0]) continue;
            columns_inside(w, kx, &lo, &hi);
            if (hi <= lo) continue;
            const int64_t ix = lo * w->stride[2] - w->pad[2] + kx * w->dil[2];
            const float *xr = x + (((n * w->in[0] + iz) * w->in[1] + iy) * w->in[2] + ix) * channels + c0;
            const float *gr = gy + (r * w->out[2] + lo) * channels + c0;
            float sum[WIDE];
            if (width == WIDE) row_products(xr, w->stride[2] * channels, gr, channels, hi - lo, sum);
            else few_products(xr, w->stride[2] * channels, gr, channels, hi - lo, width, sum);
            for (int j = 0; j < width; j++) total[k][j] += (double)sum[j];
        }
    }
    for (int j = 0; j < width; j++)
        for (int64_t k = 0; k < w->kvol; k++) gf[(c0 + j) * w->kvol + k] = (float)total[k][j];
}

size_t inv_conv_last_workspace(const inv_conv *c, inv_conv_part part, bool bias, bool quick)
{
    if (inv_winograd_serves(c, INV_F32)) return inv_winograd_workspace(c, part == INV_CONV_GRAD_W, quick);
    return is_own(c, part) ? 0 : inv_dnnl_workspace(c, part, bias);
}

static void by_tiles(const inv_conv *c, inv_conv_part part, const inv_conv_data *d, void *ws, size_t ws_nbytes)
{
    if (part == INV_CONV_GRAD_W) inv_winograd_grad_w(c, d->x, d->y, d->f, ws, ws_nbytes);
    else if (part == INV_CONV_GRAD_X) inv_winograd_grad_x(c, d->y, d->f, d->x, ws, ws_nbytes);
    else inv_winograd(c, d->x, d->f, d->bias, d->y, ws, ws_nbytes);
}

inv_status inv_conv_last(const inv_conv *c, inv_conv_part part, const inv_conv_data *d, void *ws, size_t ws_nbytes)
{
    if (inv_winograd_serves(c, INV_F32)) {
        by_tiles(c, part, d, ws, ws_nbytes);
        return INV_OK;
    }
    if (!is_own(c, part)) return inv_dnnl_conv(c, part, d, ws);
    const int64_t tasks = (c->group + WIDE - 1) / WIDE;
#pragma omp parallel for schedule(static)
    for (int64_t t = 0; t < tasks; t++) {
        const int64_t c0 = t * WIDE;
        filter_gradient(c, d->x, d->y, c0, (int)inv_min64(WIDE, c->group - c0), d->f);
    }
    return INV_OK;
}
