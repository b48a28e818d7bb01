/* SPDX-License-Identifier: Apache-2.0
 * Pooling on the device. Outputs get one thread each, those of large windows a block each. Gradients are gathered: one
 * thread per input element visits the windows that cover it, in rising order, as the host adds them up. */
#include "ops/gpu/device.cuh"
#include "ops/gpu/loop.h"
#include "ops/image/pool_gpu.h"

#include "ops/reduce/argmax_device.inc"

#define LARGE 256             /* elements of a window that are worth a block */
#define MOST_BLOCKS (1 << 20) /* of kernels with one block per output */

/* Part of a window that lies inside the input. */
struct visit {
    int64_t lo[3], hi[3]; /* kernel elements */
    int64_t base[3];      /* input position of kernel element 0 */
};

INV_DEVICE void window_at(const inv_window &w, const int64_t o[3], visit *v)
{
    for (int i = 0; i < 3; i++) {
        int64_t b = o[i] * w.stride[i] - w.pad[i],
                last = b >= w.in[i] ? 0 : inv__quotient(w.in[i] - 1 - b, w.dil[i]) + 1;
        v->base[i] = b;
        v->lo[i] = b < 0 ? inv__quotient(-b + w.dil[i] - 1, w.dil[i]) : 0;
        v->hi[i] = last < w.k[i] ? last : w.k[i];
    }
}

/* Position p of a volume of these extents. */
INV_DEVICE void position(const int64_t extent[3], int64_t p, int64_t at[3])
{
    int64_t q = inv__quotient(p, extent[2]), z = inv__quotient(q, extent[1]);
    at[2] = p - q * extent[2];
    at[1] = q - z * extent[1];
    at[0] = z;
}

INV_DEVICE int64_t element(const inv_window &w, const visit &v, int64_t kz, int64_t ky, int64_t kx)
{
    int64_t z = v.base[0] + kz * w.dil[0], y = v.base[1] + ky * w.dil[1], x = v.base[2] + kx * w.dil[2];
    return (z * w.in[1] + y) * w.in[2] + x;
}

/* f(input element, kernel element) over the window, in rising order; by one thread. */
template <class F> INV_DEVICE void each_alone(const inv_window &w, const visit &v, F f)
{
    for (int64_t kz = v.lo[0]; kz < v.hi[0]; kz++) {
        for (int64_t ky = v.lo[1]; ky < v.hi[1]; ky++) {
            int64_t i = element(w, v, kz, ky, v.lo[2]), tap = (kz * w.k[1] + ky) * w.k[2];
            for (int64_t kx = v.lo[2]; kx < v.hi[2]; kx++, i += w.dil[2]) f(i, tap + kx);
        }
    }
}

/* This thread's share of a block that visits one window. */
template <class F> INV_DEVICE void each_together(const inv_window &w, const visit &v, F f)
{
    int64_t n[3] = {v.hi[0] - v.lo[0], v.hi[1] - v.lo[1], v.hi[2] - v.lo[2]};
    if (n[0] <= 0 || n[1] <= 0 || n[2] <= 0) return;
    for (int64_t t = threadIdx.x; t < n[0] * n[1] * n[2]; t += blockDim.x) {
        int64_t at[3];
        position(n, t, at);
        int64_t kz = v.lo[0] + at[0], ky = v.lo[1] + at[1], kx = v.lo[2] + at[2];
        f(element(w, v, kz, ky, kx), (kz * w.k[1] + ky) * w.k[2] + kx);
    }
}

/* What a window's sum is divided by. */
INV_DEVICE int64_t count_of(const inv_window &w, const visit &v, inv_pool_divide by)
{
    int64_t n = 1;
    if (by == INV_POOL_SUM) return 1;
    for (int i = 0; i < 3; i++) {
        int64_t fit = (w.in[i] + w.pad_end[i] - v.base[i] + w.dil[i] - 1) / w.dil[i];
        n *= by == INV_POOL_INSIDE ? v.hi[i] - v.lo[i] : fit < w.k[i] ? fit : w.k[i];
    }
    return n > 0 ? n : 1;
}

/* --- forward --- */

/* The window of output i, and the channel of x that it lies in. */
template <class T> INV_DEVICE const T *window_of(const inv_window &w, int64_t i, const T *x, visit *v)
{
    int64_t q = inv__quotient(i, w.outvol), o[3];
    position(w.out, i - q * w.outvol, o);
    window_at(w, o, v);
    return x + q * w.invol;
}

/* The first maximum to y, its kernel element to tap (-1: none); either may be NULL. */
template <class T, class I> INV_DEVICE void put_best(inv_best<T> best, int64_t i, T *y, I *tap)
{
    if (y) y[i] = best.at < 0 ? -(T)INFINITY : best.v;
    if (tap) tap[i] = (I)best.at;
}

template <class T, class I> INV_KERNEL max_alone(inv_window w, int64_t n, const T *x, T *y, I *tap)
{
    INV_EACH(i, n)
    {
        visit v;
        const T *xq = window_of(w, i, x, &v);
        inv_best<T> best = {0, -1};
        each_alone(w, v, [&](int64_t j, int64_t k) { inv_best_take(best, xq[j], k); });
        put_best(best, i, y, tap);
    }
}

template <class T, class I> INV_KERNEL max_together(inv_window w, int64_t n, const T *x, T *y, I *tap)
{
    for (int64_t i = blockIdx.x; i < n; i += gridDim.x) {
        visit v;
        const T *xq = window_of(w, i, x, &v);
        inv_best<T> best = {0, -1};
        each_together(w, v, [&](int64_t j, int64_t k) { inv_best_take(best, xq[j], k); });
        best = inv_block_best(best);
        if (threadIdx.x == 0) put_best(best, i, y, tap);
    }
}

template <class T> INV_KERNEL average_alone(inv_window w, int64_t n, inv_pool_divide by, const T *x, T *y)
{
    INV_EACH(i, n)
    {
        visit v;
        const T *xq = window_of(w, i, x, &v);
        double sum = 0;
        each_alone(w, v, [&](int64_t j, int64_t) { sum += (double)xq[j]; });
        y[i] = (T)(sum / (double)count_of(w, v, by));
    }
}

template <class T> INV_KERNEL average_together(inv_window w, int64_t n, inv_pool_divide by, const T *x, T *y)
{
    for (int64_t i = blockIdx.x; i < n; i += gridDim.x) {
        visit v;
        const T *xq = window_of(w, i, x, &v);
        double sum = 0;
        each_together(w, v, [&](int64_t j, int64_t) { sum += (double)xq[j]; });
        sum = inv_block_sum(sum);
        if (threadIdx.x == 0) y[i] = (T)(sum / (double)count_of(w, v, by));
    }
}

/* --- gradients --- */

/* The windows o = lo..hi along axis i that may cover input position s - pad; s - o * stride must still be a multiple
 * of the dilation. */
INV_DEVICE void windows_over(const inv_window &w, int i, int64_t s, int64_t *lo, int64_t *hi)
{
    int64_t first = s - (w.k[i] - 1) * w.dil[i], last = inv__quotient(s, w.stride[i]);
    *lo = first <= 0 ? 0 : inv__quotient(first + w.stride[i] - 1, w.stride[i]);
    *hi = last < w.out[i] ? last : w.out[i] - 1;
}

/* f(window's position, its number, kernel element) for the windows over an input position, in rising order. */
template <class F> INV_DEVICE void each_window(const inv_window &w, const int64_t at[3], F f)
{
    int64_t s[3], lo[3], hi[3], o[3];
    for (int i = 0; i < 3; i++) {
        s[i] = at[i] + w.pad[i];
        windows_over(w, i, s[i], &lo[i], &hi[i]);
    }
    for (o[0] = lo[0]; o[0] <= hi[0]; o[0]++) {
        int64_t dz = s[0] - o[0] * w.stride[0], kz = inv__quotient(dz, w.dil[0]);
        if (kz * w.dil[0] != dz) continue;
        for (o[1] = lo[1]; o[1] <= hi[1]; o[1]++) {
            int64_t dy = s[1] - o[1] * w.stride[1], ky = inv__quotient(dy, w.dil[1]);
            if (ky * w.dil[1] != dy) continue;
            for (o[2] = lo[2]; o[2] <= hi[2]; o[2]++) {
                int64_t dx = s[2] - o[2] * w.stride[2], kx = inv__quotient(dx, w.dil[2]);
                if (kx * w.dil[2] != dx) continue;
                f(o, (o[0] * w.out[1] + o[1]) * w.out[2] + o[2], (kz * w.k[1] + ky) * w.k[2] + kx);
            }
        }
    }
}

template <class T, class I> INV_KERNEL max_gather(inv_window w, int64_t n, const I *tap, const T *gy, T *gx)
{
    INV_EACH(i, n)
    {
        int64_t q = inv__quotient(i, w.invol), at[3];
        const I *tq = tap + q * w.outvol;
        const T *gq = gy + q * w.outvol;
        T sum = 0;
        position(w.in, i - q * w.invol, at);
        each_window(w, at, [&](const int64_t *, int64_t p, int64_t k) {
            if (tq[p] == (I)k) sum += gq[p];
        });
        gx[i] = sum;
    }
}

template <class T> INV_KERNEL average_gather(inv_window w, int64_t n, inv_pool_divide by, const T *gy, T *gx)
{
    INV_EACH(i, n)
    {
        int64_t q = inv__quotient(i, w.invol), at[3];
        const T *gq = gy + q * w.outvol;
        T sum = 0;
        position(w.in, i - q * w.invol, at);
        each_window(w, at, [&](const int64_t *o, int64_t p, int64_t) {
            visit v;
            window_at(w, o, &v);
            sum += gq[p] / (T)count_of(w, v, by);
        });
        gx[i] = sum;
    }
}

INV_KERNEL indices_of(inv_window w, int64_t n, bool first_fastest, const void *taps, int64_t *index)
{
    INV_EACH(i, n)
    {
        const int64_t q = i / w.outvol,
                      at = inv__pool_position(&w, i - q * w.outvol, inv__pool_tap(&w, taps, i), first_fastest);
        index[i] = at < 0 ? -1 : q * w.invol + at;
    }
}

/* --- starting them --- */

static int64_t one_block_each(int64_t n) { return n < MOST_BLOCKS ? n : MOST_BLOCKS; }

template <class T, class I>
static void start_max(const inv_gpu *gpu, const inv_window *w, int64_t planes, const T *x, T *y, I *tap)
{
    int64_t n = planes * w->outvol;
    if (w->kvol >= LARGE)
        inv_start_sync(gpu, max_together<T, I>, one_block_each(n), INV_SYNC_THREADS, *w, n, x, y, tap);
    else inv_start(gpu, max_alone<T, I>, inv_blocks(n), INV_THREADS, *w, n, x, y, tap);
}

template <class T>
static void start_average(const inv_gpu *gpu, const inv_window *w, int64_t planes, inv_pool_divide by, const T *x, T *y)
{
    int64_t n = planes * w->outvol;
    if (w->kvol >= LARGE)
        inv_start_sync(gpu, average_together<T>, one_block_each(n), INV_SYNC_THREADS, *w, n, by, x, y);
    else inv_start(gpu, average_alone<T>, inv_blocks(n), INV_THREADS, *w, n, by, x, y);
}

template <class T>
static void start_either_max(const inv_gpu *gpu, const inv_window *w, int64_t planes, const void *x, void *y,
                             void *taps)
{
    if (inv__pool_byte(w)) start_max(gpu, w, planes, (const T *)x, (T *)y, (uint8_t *)taps);
    else start_max(gpu, w, planes, (const T *)x, (T *)y, (int32_t *)taps);
}

template <class T>
static void start_max_grad(const inv_gpu *gpu, const inv_window *w, int64_t planes, const void *taps, const void *gy,
                           void *gx)
{
    const int64_t n = planes * w->invol;
    if (inv__pool_byte(w))
        inv_start(gpu, max_gather<T, uint8_t>, inv_blocks(n), INV_THREADS, *w, n, (const uint8_t *)taps, (const T *)gy,
                  (T *)gx);
    else
        inv_start(gpu, max_gather<T, int32_t>, inv_blocks(n), INV_THREADS, *w, n, (const int32_t *)taps, (const T *)gy,
                  (T *)gx);
}

extern "C" void INV_GPU_NAME(max_pool)(const inv_gpu *gpu, inv_dtype t, const inv_window *w, int64_t planes,
                                       const void *x, void *y, void *taps)
{
    INV_REAL_AS(t, T, start_either_max<T>(gpu, w, planes, x, y, taps));
}

extern "C" void INV_GPU_NAME(max_pool_grad)(const inv_gpu *gpu, inv_dtype t, const inv_window *w, int64_t planes,
                                            const void *taps, const void *gy, void *gx)
{
    INV_REAL_AS(t, T, start_max_grad<T>(gpu, w, planes, taps, gy, gx));
}

extern "C" void INV_GPU_NAME(pool_indices)(const inv_gpu *gpu, const inv_window *w, int64_t planes, bool first_fastest,
                                           const void *taps, int64_t *index)
{
    const int64_t n = planes * w->outvol;
    inv_start(gpu, indices_of, inv_blocks(n), INV_THREADS, *w, n, first_fastest, taps, index);
}

extern "C" void INV_GPU_NAME(average_pool)(const inv_gpu *gpu, inv_dtype t, const inv_window *w, int64_t planes,
                                           inv_pool_divide by, const void *x, void *y)
{
    INV_REAL_AS(t, T, start_average(gpu, w, planes, by, (const T *)x, (T *)y));
}

extern "C" void INV_GPU_NAME(average_pool_grad)(const inv_gpu *gpu, inv_dtype t, const inv_window *w, int64_t planes,
                                                inv_pool_divide by, const void *gy, void *gx)
{
    int64_t n = planes * w->invol;
    INV_REAL_AS(t, T, inv_start(gpu, average_gather<T>, inv_blocks(n), INV_THREADS, *w, n, by, (const T *)gy, (T *)gx));
}
