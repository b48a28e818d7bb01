/* SPDX-License-Identifier: Apache-2.0
 * Sums and products along an axis on the device: first what each piece of a line amounts to, then a thread per piece
 * goes along it, from what all before it amount to. Neighbouring threads take neighbouring lines. */
#include "ops/reduce/cumulate_gpu.h"
#include "ops/gpu/device.cuh"

#include "ops/reduce/cumulate_types.inc"

#define ON_TYPE(T, A, suffix)                                                                                         \
    INV_DEVICE A part_of(const inv_cumulate *c, const T *x, int64_t line, int64_t from, int64_t to)                   \
    {                                                                                                                 \
        return cumulate_part_##suffix(c, x, line, from, to);                                                          \
    }                                                                                                                 \
    INV_DEVICE void go_along(const inv_cumulate *c, const T *x, T *y, int64_t line, A v, int64_t from, int64_t to)    \
    {                                                                                                                 \
        cumulate_line_##suffix(c, x, y, line, v, from, to);                                                           \
    }
ON_TYPE(float, double, f32)
ON_TYPE(double, double, f64)
ON_TYPE(int32_t, int64_t, i32)
ON_TYPE(int64_t, int64_t, i64)
INV_DEVICE double join(const inv_cumulate *c, double a, double b) { return inv_cumulate_f(c, a, b); }
INV_DEVICE int64_t join(const inv_cumulate *c, int64_t a, int64_t b) { return inv_cumulate_i(c, a, b); }
INV_DEVICE void difference(const inv_cumulate *c, const float *y, float *x, int64_t line, int64_t p)
{
    cumulate_difference_f32(c, y, x, line, p);
}
INV_DEVICE void difference(const inv_cumulate *c, const double *y, double *x, int64_t line, int64_t p)
{
    cumulate_difference_f64(c, y, x, line, p);
}
INV_DEVICE void product_back(const inv_cumulate *c, const float *gy, const float *x, float *dx, int64_t line)
{
    cumulate_product_back_f32(c, gy, x, dx, line);
}
INV_DEVICE void product_back(const inv_cumulate *c, const double *gy, const double *x, double *dx, int64_t line)
{
    cumulate_product_back_f64(c, gy, x, dx, line);
}

template <class T, class A> INV_KERNEL parts_kernel(inv_cumulate c, const T *x, A *part)
{
    const int64_t lines = c.rows * c.inner;
    INV_EACH(e, lines * c.parts)
    {
        const int64_t k = e / lines, from = k * c.part, end = from + c.part < c.d ? from + c.part : c.d;
        part[e] = part_of(&c, x, e - k * lines, from, end);
    }
}

template <class T, class A> INV_KERNEL lines_kernel(inv_cumulate c, const T *x, T *y, const A *part)
{
    const int64_t lines = c.rows * c.inner;
    INV_EACH(e, lines * c.parts)
    {
        const int64_t k = e / lines, from = k * c.part, end = from + c.part < c.d ? from + c.part : c.d;
        A before = (A)c.product;
        for (int64_t b = 0; b < k; b++) before = join(&c, before, part[b * lines + (e - k * lines)]);
        go_along(&c, x, y, e - k * lines, before, from, end);
    }
}

template <class T> INV_KERNEL product_grad_kernel(inv_cumulate c, const T *gy, const T *x, T *dx)
{
    INV_EACH(line, c.rows * c.inner) product_back(&c, gy, x, dx, line);
}

template <class T> INV_KERNEL differences_kernel(inv_cumulate c, const T *y, T *x)
{
    const int64_t lines = c.rows * c.inner;
    INV_EACH(e, lines * c.d)
    {
        const int64_t p = e / lines;
        difference(&c, y, x, e - p * lines, p);
    }
}

template <class T, class A>
static void cumulate_as(const inv_gpu *gpu, const inv_cumulate *c, const void *x, void *y, void *ws)
{
    const int64_t n = c->rows * c->inner * c->parts;
    if (c->parts > 1) inv_start(gpu, parts_kernel<T, A>, inv_blocks(n), INV_THREADS, *c, (const T *)x, (A *)ws);
    inv_start(gpu, lines_kernel<T, A>, inv_blocks(n), INV_THREADS, *c, (const T *)x, (T *)y, (const A *)ws);
}

extern "C" void INV_GPU_NAME(cumulate)(const inv_gpu *gpu, const inv_cumulate *c, inv_dtype t, const void *x, void *y,
                                       void *ws)
{
    if (t == INV_F32) cumulate_as<float, double>(gpu, c, x, y, ws);
    else if (t == INV_F64) cumulate_as<double, double>(gpu, c, x, y, ws);
    else if (t == INV_I64 || t == INV_U64) cumulate_as<int64_t, int64_t>(gpu, c, x, y, ws);
    else cumulate_as<int32_t, int64_t>(gpu, c, x, y, ws);
}

template <class T>
static void product_grad_as(const inv_gpu *gpu, const inv_cumulate *c, const void *gy, const void *x, void *dx)
{
    inv_start(gpu, product_grad_kernel<T>, inv_blocks(c->rows * c->inner), INV_THREADS, *c, (const T *)gy,
              (const T *)x, (T *)dx);
}

extern "C" void INV_GPU_NAME(cumulate_product_grad)(const inv_gpu *gpu, const inv_cumulate *c, inv_dtype t,
                                                    const void *gy, const void *x, void *dx)
{
    INV_REAL_AS(t, T, product_grad_as<T>(gpu, c, gy, x, dx));
}

template <class T> static void differences_as(const inv_gpu *gpu, const inv_cumulate *c, const void *y, void *x)
{
    inv_start(gpu, differences_kernel<T>, inv_blocks(c->rows * c->inner * c->d), INV_THREADS, *c, (const T *)y,
              (T *)x);
}

extern "C" void INV_GPU_NAME(cumulate_differences)(const inv_gpu *gpu, const inv_cumulate *c, inv_dtype t,
                                                   const void *y, void *x)
{
    INV_REAL_AS(t, T, differences_as<T>(gpu, c, y, x));
}
