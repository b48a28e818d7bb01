/* SPDX-License-Identifier: Apache-2.0
 * Regions of an image on the device: a thread per bin; for the gradient one per entry of the tables, then per pixel. */
#include "ops/gpu/device.cuh"
#include "ops/image/roi_gpu.h"

#define INV_BOTH "ops/image/roi_kernels.inc"
#include "ops/base/both_reals.inc"

#define ON_TYPE(T, suffix)                                                                                            \
    INV_DEVICE T bin_of(const inv_roi *r, const T *rois, const T *plane, int64_t region, int64_t i, int64_t j)        \
    {                                                                                                                 \
        const inv_roi_axis v = roi_axis_of_##suffix(r, rois, region, 0);                                              \
        const inv_roi_axis h = roi_axis_of_##suffix(r, rois, region, 1);                                              \
        return roi_bin_##suffix(r, plane, &v, &h, i, j);                                                              \
    }                                                                                                                 \
    INV_DEVICE double entry_of(const inv_roi *r, const T *rois, int axis, int64_t e)                                  \
    {                                                                                                                 \
        return roi_entry_##suffix(r, rois, axis, e);                                                                  \
    }                                                                                                                 \
    INV_DEVICE T pixel_of(const inv_roi *r, const double *down, const double *across, const T *gy,                    \
                          const int64_t *batch, int64_t e)                                                            \
    {                                                                                                                 \
        return roi_pixel_##suffix(r, down, across, gy, batch, e);                                                     \
    }
ON_TYPE(float, f32)
ON_TYPE(double, f64)

template <class T>
INV_KERNEL bins_kernel(inv_roi r, inv_fault fault, const T *x, const T *rois, const int64_t *batch, T *y)
{
    INV_EACH(e, r.regions * r.channels * r.bins[0] * r.bins[1])
    {
        const int64_t q = e / r.bins[1], u = q / r.bins[0], region = u / r.channels, c = u - region * r.channels;
        if (batch[region] < 0 || batch[region] >= r.n) {
            inv_report(fault);
            continue;
        }
        const T *plane = x + (batch[region] * r.channels + c) * r.len[0] * r.len[1];
        y[e] = bin_of(&r, rois, plane, region, q - u * r.bins[0], e - q * r.bins[1]);
    }
}

template <class T> INV_KERNEL table_kernel(inv_roi r, int axis, int64_t n, const T *rois, double *table)
{
    INV_EACH(e, n) table[e] = entry_of(&r, rois, axis, e);
}

template <class T>
INV_KERNEL pixels_kernel(inv_roi r, const double *down, const double *across, const T *gy, const int64_t *batch, T *gx)
{
    INV_EACH(e, r.n * r.channels * r.len[0] * r.len[1]) gx[e] = pixel_of(&r, down, across, gy, batch, e);
}

template <class T>
static void roi_as(const inv_gpu *gpu, const struct inv_node *node, const inv_roi *r, const void *x, const void *rois,
                   const int64_t *batch, void *y)
{
    inv_start(gpu, bins_kernel<T>, inv_blocks(r->regions * r->channels * r->bins[0] * r->bins[1]), INV_THREADS, *r,
              inv_fault_of(gpu, node), (const T *)x, (const T *)rois, batch, (T *)y);
}

extern "C" void INV_GPU_NAME(roi)(const inv_gpu *gpu, const struct inv_node *node, const inv_roi *r, inv_dtype t,
                                  const void *x, const void *rois, const int64_t *batch, void *y)
{
    INV_REAL_AS(t, T, roi_as<T>(gpu, node, r, x, rois, batch, y));
}

template <class T>
static void grad_as(const inv_gpu *gpu, const inv_roi *r, const void *gy, const void *rois, const int64_t *batch,
                    void *gx, void *ws)
{
    const int64_t n[2] = {inv_roi_table(r, 0), inv_roi_table(r, 1)};
    double *table[2] = {(double *)ws, (double *)ws + n[0]};
    for (int axis = 0; axis < 2; axis++)
        inv_start(gpu, table_kernel<T>, inv_blocks(n[axis]), INV_THREADS, *r, axis, n[axis], (const T *)rois,
                  table[axis]);
    inv_start(gpu, pixels_kernel<T>, inv_blocks(r->n * r->channels * r->len[0] * r->len[1]), INV_THREADS, *r,
              (const double *)table[0], (const double *)table[1], (const T *)gy, batch, (T *)gx);
}

extern "C" void INV_GPU_NAME(roi_grad)(const inv_gpu *gpu, const inv_roi *r, inv_dtype t, const void *gy,
                                       const void *rois, const int64_t *batch, void *gx, void *ws)
{
    INV_REAL_AS(t, T, grad_as<T>(gpu, r, gy, rois, batch, gx, ws));
}
