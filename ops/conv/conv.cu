/* SPDX-License-Identifier: Apache-2.0
 * Convolution on the device: columns of images and back, depthwise convolution. Neighbouring threads have neighbouring
 * positions, or, with channels last, channels. Every result is summed by one thread (one block) in a fixed order. */
#include "ops/conv/conv_gpu.h"
#include "ops/gpu/device.cuh"
#include "ops/gpu/loop.h"

/* a / b, a becoming the remainder. */
INV_DEVICE int64_t divide(int64_t *a, int64_t b)
{
    const int64_t q = inv_quotient(*a, b);
    *a -= q * b;
    return q;
}

/* The first input element, per axis, that output position p reads; in the pad it lies outside. */
INV_DEVICE void window_start(const inv_window *w, int64_t p, int64_t at[3])
{
    int64_t oz = divide(&p, w->out[1] * w->out[2]), oy = divide(&p, w->out[2]);
    at[0] = oz * w->stride[0] - w->pad[0];
    at[1] = oy * w->stride[1] - w->pad[1];
    at[2] = p * w->stride[2] - w->pad[2];
}

/* The output row or column that reads input coordinate x through kernel coordinate k; -1: none. */
INV_DEVICE int64_t reader(const inv_window *w, int axis, int64_t x, int64_t k)
{
    int64_t at = x + w->pad[axis] - k * w->dil[axis];
    if (at < 0) return -1;
    if (w->stride[axis] > 1) {
        int64_t q = divide(&at, w->stride[axis]);
        if (at != 0) return -1;
        at = q;
    }
    return at < w->out[axis] ? at : -1;
}

INV_DEVICE bool inside(const inv_window *w, int axis, int64_t x) { return x >= 0 && x < w->in[axis]; }

/* Of number i among images, channels and n positions each: `p` the position. */
INV_DEVICE void one_of(const inv_columns &c, int64_t i, int64_t n, int64_t *image, int64_t *channel, int64_t *p)
{
    int64_t inner = i, outer = divide(&inner, c.last ? c.channels : n);
    *image = divide(&outer, c.last ? n : c.channels);
    *channel = c.last ? inner : outer;
    *p = c.last ? outer : inner;
}

/* The channel of an image; its neighbouring positions are image_step elements apart. */
INV_DEVICE int64_t image_at(const inv_columns &c, int64_t image, int64_t channel)
{
    return (c.first + image) * c.channels * c.w.invol + channel * (c.last ? 1 : c.w.invol);
}
INV_DEVICE int64_t image_step(const inv_columns &c) { return c.last ? c.channels : 1; }

template <class T> INV_KERNEL im2col(inv_columns c, const T *x, T *col)
{
    const inv_window *w = &c.w;
    const int64_t step = image_step(c);
    INV_EACH(i, c.images * c.channels * c.np)
    {
        int64_t p, at[3], image, channel;
        one_of(c, i, c.np, &image, &channel, &p);
        const T *src = x + image_at(c, image, channel);
        T *dst = col + image * c.step + channel * w->kvol * c.ld + p * c.at;
        window_start(w, c.p0 + p, at);
        for (int64_t kz = 0; kz < w->k[0]; kz++) {
            int64_t z = at[0] + kz * w->dil[0];
            for (int64_t ky = 0; ky < w->k[1]; ky++) {
                int64_t y = at[1] + ky * w->dil[1], row = (z * w->in[1] + y) * w->in[2];
                bool in = inside(w, 0, z) && inside(w, 1, y);
                for (int64_t kx = 0; kx < w->k[2]; kx++, dst += c.ld) {
                    int64_t xx = at[2] + kx * w->dil[2];
                    *dst = in && inside(w, 2, xx) ? src[(row + xx) * step] : (T)0;
                }
            }
        }
    }
}

template <class T> INV_KERNEL col2im(inv_columns c, const T *col, inv_onto onto, T *gx)
{
    const inv_window *w = &c.w;
    const int64_t step = image_step(c);
    INV_EACH(i, c.images * c.channels * c.n)
    {
        int64_t x, image, channel;
        one_of(c, i, c.n, &image, &channel, &x);
        T *out = gx + image_at(c, image, channel) + (c.lo + x) * step;
        const T *src = col + image * c.step + channel * w->kvol * c.ld;
        T sum = 0;
        x += c.lo;
        int64_t z = divide(&x, w->in[1] * w->in[2]), y = divide(&x, w->in[2]);
        for (int64_t kz = 0; kz < w->k[0]; kz++) {
            int64_t oz = reader(w, 0, z, kz);
            if (oz < 0) continue;
            for (int64_t ky = 0; ky < w->k[1]; ky++) {
                int64_t oy = reader(w, 1, y, ky);
                if (oy < 0) continue;
                for (int64_t kx = 0; kx < w->k[2]; kx++) {
                    int64_t ox = reader(w, 2, x, kx), p = (oz * w->out[1] + oy) * w->out[2] + ox - c.p0;
                    if (ox >= 0 && p >= 0 && p < c.np)
                        sum += src[((kz * w->k[1] + ky) * w->k[2] + kx) * c.ld + p * c.at];
                }
            }
        }
        inv_put_onto(onto, out, sum);
    }
}

template <class T> INV_KERNEL turn(inv_columns c, int64_t channels, const T *gy, T *out)
{
    INV_EACH(i, c.images * channels * c.np)
    {
        int64_t p = i, q = divide(&p, c.np), image = q, channel = divide(&image, c.images);
        out[i] = gy[((c.first + image) * channels + channel) * c.w.outvol + c.p0 + p];
    }
}

template <class T>
INV_KERNEL turn_filter(int64_t n, int64_t extent_x, int64_t extent_y, const T *from, inv_onto onto, T *to)
{
    INV_EACH(i, n)
    {
        int64_t x = i, y = divide(&x, extent_x), m = divide(&y, extent_y);
        inv_put_onto(onto, to + i, from[(m * extent_x + x) * extent_y + y]);
    }
}

template <class T> INV_KERNEL add_bias(int64_t n, int64_t channels, int64_t outvol, const T *bias, bool minus, T *y)
{
    INV_EACH(i, n)
    {
        int64_t p = i, channel = divide(&p, outvol);
        divide(&channel, channels);
        y[i] += minus ? -bias[channel] : bias[channel];
    }
}

template <class T> INV_KERNEL depth_forward(inv_conv c, const T *x, const T *f, T *y)
{
    const inv_window *w = &c.w;
    INV_EACH(i, c.batch * c.group * c.mg * w->outvol)
    {
        int64_t p = i, at[3], plane = divide(&p, w->outvol), from = plane / c.mg, channel = plane;
        divide(&channel, c.group * c.mg);
        const T *src = x + from * w->invol, *filter = f + channel * w->kvol;
        T sum = 0;
        window_start(w, p, at);
        for (int64_t kz = 0; kz < w->k[0]; kz++) {
            int64_t z = at[0] + kz * w->dil[0];
            for (int64_t ky = 0; ky < w->k[1]; ky++, filter += w->k[2]) {
                int64_t yy = at[1] + ky * w->dil[1], row = (z * w->in[1] + yy) * w->in[2];
                if (!inside(w, 0, z) || !inside(w, 1, yy)) continue;
                for (int64_t kx = 0; kx < w->k[2]; kx++) {
                    int64_t xx = at[2] + kx * w->dil[2];
                    if (inside(w, 2, xx)) sum += filter[kx] * src[row + xx];
                }
            }
        }
        y[i] = sum;
    }
}

template <class T> INV_KERNEL depth_grad_x(inv_conv c, const T *gy, const T *f, T *gx)
{
    const inv_window *w = &c.w;
    INV_EACH(i, c.batch * c.group * w->invol)
    {
        int64_t x = i, plane = divide(&x, w->invol), group = plane;
        int64_t z = divide(&x, w->in[1] * w->in[2]), y = divide(&x, w->in[2]);
        divide(&group, c.group);
        T sum = 0;
        for (int64_t m = 0; m < c.mg; m++) {
            const T *filter = f + (group * c.mg + m) * w->kvol, *src = gy + (plane * c.mg + m) * w->outvol;
            for (int64_t kz = 0; kz < w->k[0]; kz++) {
                int64_t oz = reader(w, 0, z, kz);
                for (int64_t ky = 0; ky < w->k[1]; ky++, filter += w->k[2]) {
                    int64_t oy = oz < 0 ? -1 : reader(w, 1, y, ky);
                    for (int64_t kx = 0; kx < w->k[2] && oy >= 0; kx++) {
                        int64_t ox = reader(w, 2, x, kx);
                        if (ox >= 0) sum += filter[kx] * src[(oz * w->out[1] + oy) * w->out[2] + ox];
                    }
                }
            }
        }
        gx[i] = sum;
    }
}

/* Block (part, element of the filter): the sum over the images of that part. */
template <class T> INV_KERNEL depth_grad_w(inv_conv c, const T *x, const T *gy, int64_t parts, double *out)
{
    const inv_window *w = &c.w;
    int64_t channels = c.group * c.mg, k = blockIdx.x, channel = divide(&k, w->kvol), part = divide(&channel, channels);
    int64_t i0 = part * c.batch / parts, i1 = (part + 1) * c.batch / parts;
    int64_t kz = k, kx, ky;
    kz = divide(&k, w->k[1] * w->k[2]);
    ky = divide(&k, w->k[2]);
    kx = k;
    double sum = 0;
    for (int64_t i = threadIdx.x; i < (i1 - i0) * w->outvol; i += blockDim.x) {
        int64_t p = i, at[3], image = i0 + divide(&p, w->outvol);
        const T *src = x + (image * c.group + channel / c.mg) * w->invol;
        T g = gy[(image * channels + channel) * w->outvol + p];
        window_start(w, p, at);
        int64_t z = at[0] + kz * w->dil[0], y = at[1] + ky * w->dil[1], xx = at[2] + kx * w->dil[2];
        if (inside(w, 0, z) && inside(w, 1, y) && inside(w, 2, xx))
            sum += (double)g * (double)src[(z * w->in[1] + y) * w->in[2] + xx];
    }
    sum = inv_block_sum(sum);
    if (threadIdx.x == 0) out[blockIdx.x] = sum;
}

template <class T>
static void depthwise(const inv_gpu *gpu, inv_conv_part part, const inv_conv *c, const T *first, const T *second,
                      T *out, int64_t parts, double *ws)
{
    int64_t filter = c->group * c->mg * c->w.kvol, y = c->batch * c->group * c->mg * c->w.outvol;
    int64_t x = c->batch * c->group * c->w.invol;
    if (part == INV_CONV_FORWARD) inv_start(gpu, depth_forward<T>, inv_blocks(y), INV_THREADS, *c, first, second, out);
    if (part == INV_CONV_GRAD_X) inv_start(gpu, depth_grad_x<T>, inv_blocks(x), INV_THREADS, *c, first, second, out);
    if (part != INV_CONV_GRAD_W) return;
    inv_start_sync(gpu, depth_grad_w<T>, filter * parts, INV_SYNC_THREADS, *c, first, second, parts, ws);
}

extern "C" void INV_GPU_NAME(conv_im2col)(const inv_gpu *gpu, const inv_columns *c, inv_dtype t, const void *x,
                                          void *col)
{
    int64_t blocks = inv_blocks(c->images * c->channels * c->np);
    INV_REAL_AS(t, T, inv_start(gpu, im2col<T>, blocks, INV_THREADS, *c, (const T *)x, (T *)col));
}

extern "C" void INV_GPU_NAME(conv_col2im)(const inv_gpu *gpu, const inv_columns *c, inv_dtype t, const void *col,
                                          inv_onto onto, void *gx)
{
    int64_t blocks = inv_blocks(c->images * c->channels * c->n);
    INV_REAL_AS(t, T, inv_start(gpu, col2im<T>, blocks, INV_THREADS, *c, (const T *)col, onto, (T *)gx));
}

extern "C" void INV_GPU_NAME(conv_turn)(const inv_gpu *gpu, const inv_columns *c, inv_dtype t, int64_t channels,
                                        const void *gy, void *out)
{
    int64_t blocks = inv_blocks(c->images * channels * c->np);
    INV_REAL_AS(t, T, inv_start(gpu, turn<T>, blocks, INV_THREADS, *c, channels, (const T *)gy, (T *)out));
}

extern "C" void INV_GPU_NAME(conv_turn_filter)(const inv_gpu *gpu, inv_dtype t, int64_t m, int64_t x, int64_t y,
                                               const void *from, inv_onto onto, void *to)
{
    const int64_t n = m * x * y;
    INV_REAL_AS(t, T,
                inv_start(gpu, turn_filter<T>, inv_blocks(n), INV_THREADS, n, x, y, (const T *)from, onto, (T *)to));
}

extern "C" void INV_GPU_NAME(conv_bias)(const inv_gpu *gpu, const inv_conv *c, inv_dtype t, const void *bias,
                                        bool minus, void *y)
{
    int64_t channels = c->group * c->mg, n = c->batch * channels * c->w.outvol;
    int64_t outvol = c->last ? 1 : c->w.outvol; /* neighbours of one channel */
    int64_t blocks = inv_blocks(n);
    INV_REAL_AS(t, T,
                inv_start(gpu, add_bias<T>, blocks, INV_THREADS, n, channels, outvol, (const T *)bias, minus, (T *)y));
}

extern "C" void INV_GPU_NAME(conv_depthwise)(const inv_gpu *gpu, inv_conv_part part, const inv_conv *c, inv_dtype t,
                                             const void *first, const void *second, void *out, int64_t parts,
                                             double *ws)
{
    INV_REAL_AS(t, T, depthwise(gpu, part, c, (const T *)first, (const T *)second, (T *)out, parts, ws));
}
