/* SPDX-License-Identifier: Apache-2.0
 * Regions of an image, averaged or the largest over bins: what host and device share. Each bin is sampled at points of
 * a grid, between pixels; a sample's weights are a product of one factor per axis, so for the gradient there is a table
 * per region and axis of how much each pixel counts in each bin. */
#ifndef INV_OPS_IMAGE_ROI_GPU_H
#define INV_OPS_IMAGE_ROI_GPU_H

#include <math.h>

#include "core/base/shape.h"
#include "ops/gpu/device_code.h"
#include "ops/gpu/gpu.h"

/* x[n, channels, len[0], len[1]], regions -> [regions, channels, bins[0], bins[1]]. */
typedef struct inv_roi {
    int64_t n, channels, regions, len[2], bins[2], samples; /* per bin and axis; 0: one per pixel */
    double scale;
    bool half_pixel, most;
} inv_roi;

/* Along one axis. */
typedef struct inv_roi_axis {
    double start, bin;
    int64_t samples;
} inv_roi_axis;

INV_HD inv_roi_axis inv_roi_axis_of(const inv_roi *r, int axis, double from, double to)
{
    const double shift = r->half_pixel ? 0.5 : 0;
    inv_roi_axis a;
    a.start = from * r->scale - shift;
    double size = to * r->scale - shift - a.start;
    if (!r->half_pixel && size < 1) size = 1;
    a.bin = size / (double)r->bins[axis];
    a.samples = r->samples > 0 ? r->samples : (int64_t)ceil(a.bin < 1e9 ? a.bin : 1e9);
    return a;
}

/* The two pixels that sample i of a bin lies between and the weight of the second; false: outside of the image. */
INV_HD bool inv_roi_sample(const inv_roi_axis *a, int64_t len, int64_t bin, int64_t i, int64_t *low, int64_t *high,
                           double *w)
{
    double at = a->start + (double)bin * a->bin + ((double)i + 0.5) * a->bin / (double)a->samples;
    if (!(at >= -1 && at <= (double)len)) return false;
    if (at < 0) at = 0;
    *low = (int64_t)at;
    *high = *low + 1;
    if (*low >= len - 1) *low = *high = len - 1;
    *w = *low == *high ? 0 : at - (double)*low;
    return true;
}

/* How much a pixel counts in a bin, along one axis, with the bin's samples averaged. */
INV_HD double inv_roi_weight(const inv_roi_axis *a, int64_t len, int64_t bin, int64_t pixel)
{
    double sum = 0, w;
    int64_t low, high;
    for (int64_t i = 0; i < a->samples; i++) {
        if (!inv_roi_sample(a, len, bin, i, &low, &high, &w)) continue;
        sum += (low == pixel ? 1 - w : 0) + (high == pixel ? w : 0);
    }
    return a->samples > 0 ? sum / (double)a->samples : 0;
}

static inline int64_t inv_roi_table(const inv_roi *r, int axis) { return r->regions * r->bins[axis] * r->len[axis]; }

#ifdef __cplusplus
extern "C" {
#endif
/* float32 or float64; batch: int64, the image of each region. ws: both tables, double. */
INV_LAUNCHER(roi, const struct inv_node *node, const inv_roi *r, inv_dtype t, const void *x, const void *rois,
             const int64_t *batch, void *y);
INV_LAUNCHER(roi_grad, const inv_roi *r, inv_dtype t, const void *gy, const void *rois, const int64_t *batch, void *gx,
             void *ws);
#ifdef __cplusplus
}
#endif

#endif
