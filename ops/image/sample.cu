/* SPDX-License-Identifier: Apache-2.0
 * Sampling on the device: a thread per point and some of its channels. For the gradient to the image, taps are sorted
 * by the pixel that they name (ops/gpu/group.cuh). */
#include "ops/image/sample_gpu.h"

#include "ops/gpu/group.cuh"

#define INV_BOTH "ops/image/sample_kernels.inc"
#include "ops/base/both_reals.inc"

#define ON_TYPE(T, suffix)                                                                                            \
    INV_DEVICE void place_of(const inv_sample *s, const T *points, int64_t n, int64_t p, inv_sample_taps *t)          \
    {                                                                                                                 \
        sample_place_##suffix(s, points, n, p, t);                                                                    \
    }                                                                                                                 \
    INV_DEVICE void point_of(const inv_sample *s, const inv_sample_taps *t, const T *x, T *y, int64_t n, int64_t p,   \
                             int64_t c, int64_t end)                                                                  \
    {                                                                                                                 \
        sample_point_##suffix(s, t, x, y, n, p, c, end);                                                              \
    }                                                                                                                 \
    INV_DEVICE void back_of(const inv_sample *s, const inv_sample_taps *t, const T *gy, const T *x, T *gp, int64_t n, \
                            int64_t p)                                                                                \
    {                                                                                                                 \
        sample_back_##suffix(s, t, gy, x, gp, n, p);                                                                  \
    }
ON_TYPE(float, f32)
ON_TYPE(double, f64)

template <class T> INV_KERNEL sample_kernel(inv_sample s, const T *x, const T *points, T *y)
{
    const int64_t pieces = (s.channels + INV_SAMPLE_CHANNELS - 1) / INV_SAMPLE_CHANNELS;
    INV_EACH(e, s.n * pieces * s.points)
    {
        const int64_t q = e / s.points, p = e - q * s.points, n = q / pieces,
                      c = (q - n * pieces) * INV_SAMPLE_CHANNELS,
                      end = c + INV_SAMPLE_CHANNELS < s.channels ? c + INV_SAMPLE_CHANNELS : s.channels;
        inv_sample_taps t[INV_SAMPLE_AXES];
        place_of(&s, points, n, p, t);
        point_of(&s, t, x, y, n, p, c, end);
    }
}

template <class T> INV_KERNEL points_kernel(inv_sample s, const T *gy, const T *x, const T *points, T *gp)
{
    INV_EACH(e, s.n * s.points)
    {
        const int64_t n = e / s.points;
        inv_sample_taps t[INV_SAMPLE_AXES];
        place_of(&s, points, n, e - n * s.points, t);
        back_of(&s, t, gy, x, gp, n, e - n * s.points);
    }
}

template <class T> INV_KERNEL taps_kernel(inv_sample s, int count, const T *points, uint32_t *key, double *weight)
{
    INV_EACH(e, s.n * s.points)
    {
        const int64_t n = e / s.points;
        inv_sample_taps t[INV_SAMPLE_AXES];
        place_of(&s, points, n, e - n * s.points, t);
        for (int k = 0; k < count; k++) {
            const int64_t at = inv_sample_tap(&s, t, k, -1, &weight[e * count + k]);
            key[e * count + k] = (uint32_t)(at < 0 ? s.n * s.pixels : n * s.pixels + at);
        }
    }
}

/* Position `at` is a tap of a point, a part is a pixel, a lane a channel. */
template <class T> struct tapped {
    typedef double acc;
    inv_sample s;
    int count;
    const double *weight;
    const T *gy;
    T *gx;
    INV_GROUP_MEMBER acc get(uint32_t at, int64_t lane) const
    {
        const int64_t e = at / (uint32_t)count, n = e / s.points;
        return weight[at] * (acc)gy[(n * s.channels + lane) * s.points + (e - n * s.points)];
    }
    INV_GROUP_MEMBER acc join(acc a, acc b) const { return a + b; }
    INV_GROUP_MEMBER void put(uint32_t part, int64_t lane, acc v)
    {
        const int64_t n = part / s.pixels;
        T *to = &gx[(n * s.channels + lane) * s.pixels + (part - n * s.pixels)];
        *to = (T)((acc)*to + v);
    }
};

template <class T>
static void sample_as(const inv_gpu *gpu, const inv_sample *s, const void *x, const void *points, void *y)
{
    const int64_t pieces = (s->channels + INV_SAMPLE_CHANNELS - 1) / INV_SAMPLE_CHANNELS;
    inv_start(gpu, sample_kernel<T>, inv_blocks(s->n * pieces * s->points), INV_THREADS, *s, (const T *)x,
              (const T *)points, (T *)y);
}

extern "C" void INV_GPU_NAME(sample)(const inv_gpu *gpu, const inv_sample *s, inv_dtype t, const void *x,
                                     const void *points, void *y)
{
    INV_REAL_AS(t, T, sample_as<T>(gpu, s, x, points, y));
}

template <class T>
static void grad_x_as(const inv_gpu *gpu, const inv_sample *s, const void *gy, const void *points, void *gx, void *ws)
{
    inv_groups groups;
    const int count = inv_sample_count(s);
    const int64_t taps = s->n * s->points * count;
    double *weight = (double *)ws;
    inv_groups_of(&groups, taps, s->n * s->pixels, s->channels, weight + taps);
    inv_start(gpu, taps_kernel<T>, inv_blocks(s->n * s->points), INV_THREADS, *s, count, (const T *)points,
              groups.unsorted, weight);
    INV_GPU_NAME(group)(gpu, &groups);
    inv_group_join(gpu, &groups, s->channels, tapped<T>{*s, count, weight, (const T *)gy, (T *)gx});
}

extern "C" void INV_GPU_NAME(sample_grad_x)(const inv_gpu *gpu, const inv_sample *s, inv_dtype t, const void *gy,
                                            const void *points, void *gx, void *ws)
{
    INV_REAL_AS(t, T, grad_x_as<T>(gpu, s, gy, points, gx, ws));
}

template <class T>
static void points_as(const inv_gpu *gpu, const inv_sample *s, const void *gy, const void *x, const void *points,
                      void *gp)
{
    inv_start(gpu, points_kernel<T>, inv_blocks(s->n * s->points), INV_THREADS, *s, (const T *)gy, (const T *)x,
              (const T *)points, (T *)gp);
}

extern "C" void INV_GPU_NAME(sample_grad_points)(const inv_gpu *gpu, const inv_sample *s, inv_dtype t, const void *gy,
                                                 const void *x, const void *points, void *gp)
{
    INV_REAL_AS(t, T, points_as<T>(gpu, s, gy, x, points, gp));
}
