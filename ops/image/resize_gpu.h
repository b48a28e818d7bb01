/* SPDX-License-Identifier: Apache-2.0
 * Resizing: what host and device share. Along every axis a table says which two input elements an output element lies
 * between (a tap), and for the gradient which output elements an input element reaches (a range). Coordinates rise
 * with the output's index, so ranges are found by bisection and the gradient is a gather, summed in one order. */
#ifndef INV_OPS_IMAGE_RESIZE_GPU_H
#define INV_OPS_IMAGE_RESIZE_GPU_H

#include <math.h>

#include "core/base/shape.h"
#include "ops/gpu/device_code.h"
#include "ops/gpu/gpu.h"

#define INV_RESIZE_AXES 3 /* that may be resized with mode linear */

enum { /* coordinate_transformation_mode; the names are in resize.c, in this order */
       INV_HALF_PIXEL,
       INV_HALF_PIXEL_SYMMETRIC,
       INV_PYTORCH_HALF_PIXEL,
       INV_ALIGN_CORNERS,
       INV_ASYMMETRIC,
       INV_TF_HALF_PIXEL_FOR_NN,
       INV_TF_CROP_AND_RESIZE
};
enum { INV_ROUND_PREFER_FLOOR, INV_ROUND_PREFER_CEIL, INV_NEAREST_FLOOR, INV_NEAREST_CEIL }; /* nearest_mode */

typedef struct inv_tap {
    int32_t low, high; /* input elements, equal if one is enough; -1: outside, for tf_crop_and_resize */
    double w;          /* weight of `high` */
} inv_tap;
typedef struct inv_range {
    int32_t first, last; /* output elements; none if first > last */
} inv_range;

typedef struct inv_resize {
    int rank; /* of x and y; neighbouring axes that stay as they are count as one */
    int coordinate, nearest;
    bool linear;
    bool same[INV_MAX_RANK]; /* stays as it is: no tables */
    int64_t in[INV_MAX_RANK], out[INV_MAX_RANK];
    int64_t tap[INV_MAX_RANK], range[INV_MAX_RANK]; /* where an axis begins in the tables */
    int64_t taps, ranges;
    bool exact[INV_MAX_RANK]; /* scale is out / in: multiplied first, so that whole coordinates come out whole */
    double scale[INV_MAX_RANK];
    double begin[INV_MAX_RANK], end[INV_MAX_RANK]; /* region of interest */
    double outside;
} inv_resize;

/* Scratch memory: taps, then, for the gradient, ranges. */
static inline size_t inv_resize_workspace(const inv_resize *r, bool gradient)
{
    return (size_t)r->taps * sizeof(inv_tap) + (gradient ? (size_t)r->ranges * sizeof(inv_range) : 0);
}

/* Place in the input of output element o along axis a, but for an offset: (o + shift) / scale. Runtimes compute it in
 * float32, and so do we where a neighbour is chosen by it: the quotient of a whole number and a rounded scale is whole
 * again there. */
INV_HD double inv_resize_quotient(const inv_resize *r, int a, double o)
{
    return r->linear ? o / r->scale[a] : (double)((float)o / (float)r->scale[a]);
}

/* Place in the input of output element o along axis a. */
INV_HD double inv_resize_at(const inv_resize *r, int a, int64_t o)
{
    const double x = (double)o, in = (double)r->in[a], out = (double)r->out[a];
    const double corner = r->exact[a] ? x * in / out : inv_resize_quotient(r, a, x);
    const double centre = r->exact[a] ? (x + 0.5) * in / out : inv_resize_quotient(r, a, x + 0.5);
    switch (r->coordinate) {
    case INV_HALF_PIXEL: return centre - 0.5;
    case INV_HALF_PIXEL_SYMMETRIC: return r->exact[a] ? centre - 0.5 : (in - out / r->scale[a]) / 2 + centre - 0.5;
    case INV_PYTORCH_HALF_PIXEL: return r->out[a] > 1 ? centre - 0.5 : 0;
    case INV_ALIGN_CORNERS: return r->out[a] > 1 ? x * (in - 1) / (out - 1) : 0;
    case INV_ASYMMETRIC: return corner;
    case INV_TF_HALF_PIXEL_FOR_NN: return centre;
    default:
        if (r->out[a] <= 1) return 0.5 * (r->begin[a] + r->end[a]) * (in - 1);
        return r->begin[a] * (in - 1) + x * (r->end[a] - r->begin[a]) * (in - 1) / (out - 1);
    }
}

INV_HD inv_tap inv_resize_tap(const inv_resize *r, int a, int64_t o)
{
    const double most = (double)(r->in[a] - 1), at = inv_resize_at(r, a, o), down = floor(at), half = down + 0.5;
    inv_tap t = {-1, -1, 0};
    if (r->coordinate == INV_TF_CROP_AND_RESIZE && !(at >= 0 && at <= most)) return t;
    if (r->linear) {
        const double in = at < 0 ? 0 : at > most ? most : at, low = floor(in);
        t.low = (int32_t)low;
        t.w = in - low;
        t.high = t.w > 0 ? t.low + 1 : t.low;
        return t;
    }
    double v = down; /* nearest_mode floor */
    if (r->nearest == INV_NEAREST_CEIL) v = ceil(at);
    if (r->nearest == INV_ROUND_PREFER_FLOOR) v = at > half ? down + 1 : down;
    if (r->nearest == INV_ROUND_PREFER_CEIL) v = at < half ? down : down + 1;
    t.low = t.high = (int32_t)(v < 0 ? 0 : v > most ? most : v);
    return t;
}

/* The first output element o of axis a whose tap reaches i (`above`: lies wholly above i), or out. Elements outside
 * count by the side they lie on. */
INV_HD int64_t inv_resize_first(const inv_resize *r, const inv_tap *tap, int a, int64_t i, bool above)
{
    int64_t lo = 0, hi = r->out[a];
    while (lo < hi) {
        const int64_t mid = lo + (hi - lo) / 2;
        const inv_tap t = tap[r->tap[a] + mid];
        const bool up = t.low < 0 ? inv_resize_at(r, a, mid) >= 0 : above ? t.low > i : t.high >= i;
        if (up) hi = mid;
        else lo = mid + 1;
    }
    return lo;
}

INV_HD inv_range inv_resize_range(const inv_resize *r, const inv_tap *tap, int a, int64_t i)
{
    const int64_t first = inv_resize_first(r, tap, a, i, false), end = inv_resize_first(r, tap, a, i, true);
    const inv_range range = {(int32_t)first, (int32_t)end - 1};
    return range;
}

/* Axis of entry e of a table whose axes begin at start[]; *at: index along the axis. */
INV_HD int inv_resize_axis(const inv_resize *r, const int64_t *start, int64_t e, int64_t *at)
{
    int axis = 0;
    for (int a = 0; a < r->rank; a++)
        if (!r->same[a] && start[a] <= e) axis = a;
    *at = e - start[axis];
    return axis;
}

#ifdef __cplusplus
extern "C" {
#endif
/* ws: inv_resize_workspace. */
INV_LAUNCHER(resize, const inv_resize *r, inv_dtype t, const void *x, void *y, void *ws);
INV_LAUNCHER(resize_grad, const inv_resize *r, inv_dtype t, const void *gy, void *gx, void *ws);
#ifdef __cplusplus
}
#endif

#endif
