/* SPDX-License-Identifier: Apache-2.0
 * Resizing on the device: the tables first, a thread per entry, then a thread per element. */
#include "ops/gpu/device.cuh"
#include "ops/image/resize_gpu.h"

#define INV_BOTH "ops/image/resize_kernels.inc"
#include "ops/base/both_reals.inc"

INV_KERNEL taps_kernel(inv_resize r, inv_tap *tap)
{
    INV_EACH(e, r.taps)
    {
        int64_t o;
        const int a = inv_resize_axis(&r, r.tap, e, &o);
        tap[e] = inv_resize_tap(&r, a, o);
    }
}

INV_KERNEL ranges_kernel(inv_resize r, const inv_tap *tap, inv_range *range)
{
    INV_EACH(e, r.ranges)
    {
        int64_t i;
        const int a = inv_resize_axis(&r, r.range, e, &i);
        range[e] = inv_resize_range(&r, tap, a, i);
    }
}

INV_DEVICE void part(const inv_resize *r, const inv_tap *tap, const float *x, float *y, int64_t row, int64_t o)
{
    resize_part_f32(r, tap, x, y, row, o, o + 1);
}
INV_DEVICE void part(const inv_resize *r, const inv_tap *tap, const double *x, double *y, int64_t row, int64_t o)
{
    resize_part_f64(r, tap, x, y, row, o, o + 1);
}
INV_DEVICE void grad_part(const inv_resize *r, const inv_tap *tap, const inv_range *range, const float *gy, float *gx,
                          int64_t row, int64_t i)
{
    resize_grad_part_f32(r, tap, range, gy, gx, row, i, i + 1);
}
INV_DEVICE void grad_part(const inv_resize *r, const inv_tap *tap, const inv_range *range, const double *gy,
                          double *gx, int64_t row, int64_t i)
{
    resize_grad_part_f64(r, tap, range, gy, gx, row, i, i + 1);
}

template <class T> INV_KERNEL resize_kernel(inv_resize r, int64_t n, const inv_tap *tap, const T *x, T *y)
{
    const int64_t inner = r.out[r.rank - 1];
    INV_EACH(e, n)
    {
        const int64_t row = e / inner;
        part(&r, tap, x, y, row, e - row * inner);
    }
}

template <class T>
INV_KERNEL grad_kernel(inv_resize r, int64_t n, const inv_tap *tap, const inv_range *range, const T *gy, T *gx)
{
    const int64_t inner = r.in[r.rank - 1];
    INV_EACH(e, n)
    {
        const int64_t row = e / inner;
        grad_part(&r, tap, range, gy, gx, row, e - row * inner);
    }
}

static int64_t elements(int rank, const int64_t *dim)
{
    int64_t n = 1;
    for (int a = 0; a < rank; a++) n *= dim[a];
    return n;
}

template <class T> static void start(const inv_gpu *gpu, const inv_resize *r, const T *x, T *y, void *ws)
{
    const int64_t n = elements(r->rank, r->out);
    inv_tap *tap = (inv_tap *)ws;
    inv_start(gpu, taps_kernel, inv_blocks(r->taps), INV_THREADS, *r, tap);
    inv_start(gpu, resize_kernel<T>, inv_blocks(n), INV_THREADS, *r, n, (const inv_tap *)tap, x, y);
}

template <class T> static void start_grad(const inv_gpu *gpu, const inv_resize *r, const T *gy, T *gx, void *ws)
{
    const int64_t n = elements(r->rank, r->in);
    inv_tap *tap = (inv_tap *)ws;
    inv_range *range = (inv_range *)(void *)(tap + r->taps);
    inv_start(gpu, taps_kernel, inv_blocks(r->taps), INV_THREADS, *r, tap);
    inv_start(gpu, ranges_kernel, inv_blocks(r->ranges), INV_THREADS, *r, (const inv_tap *)tap, range);
    inv_start(gpu, grad_kernel<T>, inv_blocks(n), INV_THREADS, *r, n, (const inv_tap *)tap, (const inv_range *)range,
              gy, gx);
}

extern "C" void INV_GPU_NAME(resize)(const inv_gpu *gpu, const inv_resize *r, inv_dtype t, const void *x, void *y,
                                     void *ws)
{
    INV_REAL_AS(t, T, start(gpu, r, (const T *)x, (T *)y, ws));
}

extern "C" void INV_GPU_NAME(resize_grad)(const inv_gpu *gpu, const inv_resize *r, inv_dtype t, const void *gy,
                                          void *gx, void *ws)
{
    INV_REAL_AS(t, T, start_grad(gpu, r, (const T *)gy, (T *)gx, ws));
}
