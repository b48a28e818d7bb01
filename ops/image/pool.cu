/* SPDX-License-Identifier: Apache-2.0
 * Pooling on the device. A thread owns a column of a plane, a position on the last axis and a lane, and some rows of
 * it, so neighbouring threads have neighbouring elements in either order of axes, and what a column knows is computed
 * once. Outputs of large windows have a block each. Gradients are gathered: of each input element the windows that
 * cover it are visited in rising order, as the host adds them up. Positions are 32 bits wide (inv_pool_fits), offsets
 * of rows 64. */
#include "ops/gpu/device.cuh"
#include "ops/gpu/loop.h"
#include "ops/image/pool_gpu.h"

#include "ops/reduce/argmax_device.inc"

#define LARGE 256             /* elements of a window that are worth a block */
#define MOST_BLOCKS (1 << 20) /* of kernels with one block per output */
#define ROWS 8                /* of a thread */

typedef struct window {
    int in[3], out[3], k[3], stride[3], dil[3], pad[3], pad_end[3], lanes;
    int64_t in_row, out_row, in_plane, out_plane; /* elements, with lanes */
} window;

/* One axis of a window: the kernel elements lo..hi-1 lie inside the input, kernel element 0 at position base. */
typedef struct span {
    int base, lo, hi;
} span;

/* What a thread has: column `at` of its row, that is lane `lane` of position x, and rows first..last-1 of slice z. */
typedef struct column {
    int64_t plane;
    int at, x, lane, z, first, last;
} column;

INV_DEVICE int quotient(int n, int by) { return by == 1 ? n : (int)((unsigned)n / (unsigned)by); }

INV_DEVICE int groups_of(int rows) { return (rows + ROWS - 1) / ROWS; }

INV_DEVICE column column_at(const int extent[3], int lanes, int64_t i)
{
    const int64_t row = (int64_t)extent[2] * lanes, g = inv_quotient(i, row);
    const int64_t slice = inv_quotient(g, groups_of(extent[1]));
    column c;
    c.plane = inv_quotient(slice, extent[0]);
    c.at = (int)(i - g * row);
    c.x = quotient(c.at, lanes);
    c.lane = c.at - c.x * lanes;
    c.z = (int)(slice - c.plane * extent[0]);
    c.first = (int)(g - slice * groups_of(extent[1])) * ROWS;
    c.last = c.first + ROWS < extent[1] ? c.first + ROWS : extent[1];
    return c;
}

/* Of the window with number o on axis i. */
INV_DEVICE span span_of(const window &w, int i, int o)
{
    const int b = o * w.stride[i] - w.pad[i], last = b >= w.in[i] ? 0 : quotient(w.in[i] - 1 - b, w.dil[i]) + 1;
    return {b, b < 0 ? quotient(-b + w.dil[i] - 1, w.dil[i]) : 0, last < w.k[i] ? last : w.k[i]};
}

INV_DEVICE int64_t row_of(const window &w, const span v[3], int kz, int ky)
{
    return ((int64_t)(v[0].base + kz * w.dil[0]) * w.in[1] + v[1].base + ky * w.dil[1]) * w.in_row;
}

/* f(offset in the plane, kernel element) over the window, in rising order; by one thread. */
template <class F> INV_DEVICE void each_alone(const window &w, const span v[3], F f)
{
    const int step = w.dil[2] * w.lanes, from = (v[2].base + v[2].lo * w.dil[2]) * w.lanes;
    for (int kz = v[0].lo; kz < v[0].hi; kz++) {
        for (int ky = v[1].lo; ky < v[1].hi; ky++) {
            int64_t at = row_of(w, v, kz, ky) + from;
            const int tap = (kz * w.k[1] + ky) * w.k[2];
            for (int kx = v[2].lo; kx < v[2].hi; kx++, at += step) f(at, tap + kx);
        }
    }
}

/* This thread's share of a block that visits one window, of images without lanes. */
template <class F> INV_DEVICE void each_together(const window &w, const span v[3], F f)
{
    const int rows = v[1].hi - v[1].lo, columns = v[2].hi - v[2].lo;
    if (v[0].hi <= v[0].lo || rows <= 0 || columns <= 0) return;
    for (int64_t t = threadIdx.x; t < (int64_t)(v[0].hi - v[0].lo) * rows * columns; t += blockDim.x) {
        const int64_t row = inv_quotient(t, columns), slice = inv_quotient(row, rows);
        const int kz = v[0].lo + (int)slice, ky = v[1].lo + (int)(row - slice * rows),
                  kx = v[2].lo + (int)(t - row * columns);
        f(row_of(w, v, kz, ky) + v[2].base + kx * w.dil[2], ((int64_t)kz * w.k[1] + ky) * w.k[2] + kx);
    }
}

/* What a window's sum is divided by. */
INV_DEVICE int64_t count_of(const window &w, const span v[3], inv_pool_divide by)
{
    int64_t n = 1;
    if (by == INV_POOL_SUM) return 1;
    for (int i = 0; i < 3; i++) {
        const int reach = w.in[i] + w.pad_end[i] - v[i].base + w.dil[i] - 1,
                  fit = reach > 0 ? quotient(reach, w.dil[i]) : 0;
        n *= by == INV_POOL_INSIDE ? v[i].hi - v[i].lo : fit < w.k[i] ? fit : w.k[i];
    }
    return n > 0 ? n : 1;
}

/* --- forward --- */

/* f(output's offset, its window, the lane of the plane of x) for the outputs of this thread. */
template <class T, class F> INV_DEVICE void each_output(const window &w, int64_t i, const T *x, F f)
{
    const column c = column_at(w.out, w.lanes, i);
    const T *lane = x + c.plane * w.in_plane + c.lane;
    span v[3] = {span_of(w, 0, c.z), {}, span_of(w, 2, c.x)};
    int64_t to = c.plane * w.out_plane + ((int64_t)c.z * w.out[1] + c.first) * w.out_row + c.at;
    for (int y = c.first; y < c.last; y++, to += w.out_row) {
        v[1] = span_of(w, 1, y);
        f(to, v, lane);
    }
}

/* The window of output i of images without lanes; gives the plane of x. */
template <class T> INV_DEVICE const T *window_of(const window &w, int64_t i, const T *x, span v[3])
{
    const int64_t row = inv_quotient(i, w.out[2]), slice = inv_quotient(row, w.out[1]),
                  plane = inv_quotient(slice, w.out[0]);
    v[0] = span_of(w, 0, (int)(slice - plane * w.out[0]));
    v[1] = span_of(w, 1, (int)(row - slice * w.out[1]));
    v[2] = span_of(w, 2, (int)(i - row * w.out[2]));
    return x + plane * w.in_plane;
}

/* The first maximum to y, its kernel element to tap (-1: none); either may be NULL. */
template <class T, class I> INV_DEVICE void put_best(T v, int64_t k, int64_t i, T *y, I *tap)
{
    if (y) y[i] = k < 0 ? -(T)INFINITY : v;
    if (tap) tap[i] = (I)k;
}

/* In rising order the first maximum is what nothing later exceeds; a NaN is the largest. */
template <class T, class I> INV_KERNEL max_alone(window w, int64_t n, const T *x, T *y, I *tap)
{
    INV_EACH(i, n)
    each_output(w, i, x, [&](int64_t to, const span v[3], const T *lane) {
        T best = 0;
        int at = -1;
        each_alone(w, v, [&](int64_t j, int k) {
            const T e = lane[j];
            const bool next = at < 0 || e > best || (e != e && best == best);
            best = next ? e : best;
            at = next ? k : at;
        });
        put_best(best, at, to, y, tap);
    });
}

template <class T, class I> INV_KERNEL max_together(window w, int64_t n, const T *x, T *y, I *tap)
{
    for (int64_t i = blockIdx.x; i < n; i += gridDim.x) {
        span v[3];
        const T *plane = window_of(w, i, x, v);
        inv_best<T> best = {0, -1};
        each_together(w, v, [&](int64_t j, int64_t k) { inv_best_take(best, plane[j], k); });
        best = inv_block_best(best);
        if (threadIdx.x == 0) put_best(best.v, best.at, i, y, tap);
    }
}

template <class T> INV_KERNEL average_alone(window w, int64_t n, inv_pool_divide by, const T *x, T *y)
{
    INV_EACH(i, n)
    each_output(w, i, x, [&](int64_t to, const span v[3], const T *lane) {
        double sum = 0;
        each_alone(w, v, [&](int64_t j, int) { sum += (double)lane[j]; });
        y[to] = (T)(sum / (double)count_of(w, v, by));
    });
}

template <class T> INV_KERNEL average_together(window w, int64_t n, inv_pool_divide by, const T *x, T *y)
{
    for (int64_t i = blockIdx.x; i < n; i += gridDim.x) {
        span v[3];
        const T *plane = window_of(w, i, x, v);
        double sum = 0;
        each_together(w, v, [&](int64_t j, int64_t) { sum += (double)plane[j]; });
        sum = inv_block_sum(sum);
        if (threadIdx.x == 0) y[i] = (T)(sum / (double)count_of(w, v, by));
    }
}

/* --- gradients --- */

/* The windows lo..hi along an axis that may cover padded position s; s - o * stride must still be a multiple of the
 * dilation. */
typedef struct cover {
    int s, lo, hi;
} cover;

INV_DEVICE cover cover_of(const window &w, int i, int at)
{
    const int s = at + w.pad[i], first = s - (w.k[i] - 1) * w.dil[i], last = quotient(s, w.stride[i]);
    return {s, first <= 0 ? 0 : quotient(first + w.stride[i] - 1, w.stride[i]), last < w.out[i] ? last : w.out[i] - 1};
}

/* The same of the next position, without a division: both ends move by one at most. */
INV_DEVICE void cover_next(const window &w, int i, cover *c)
{
    c->s++;
    if (c->lo * w.stride[i] < c->s - (w.k[i] - 1) * w.dil[i]) c->lo++;
    if (c->hi + 1 < w.out[i] && (c->hi + 1) * w.stride[i] <= c->s) c->hi++;
}

/* The kernel element by which window o covers it, -1: by none. */
INV_DEVICE int covering(const window &w, int i, const cover &c, int o)
{
    const int d = c.s - o * w.stride[i], k = quotient(d, w.dil[i]);
    return k * w.dil[i] == d ? k : -1;
}

/* f(window's place, its offset in the plane, kernel element) for the windows over an input position, in rising order.
 */
template <class F> INV_DEVICE void each_window(const window &w, const cover c[3], F f)
{
    int o[3];
    for (o[0] = c[0].lo; o[0] <= c[0].hi; o[0]++) {
        const int kz = covering(w, 0, c[0], o[0]);
        for (o[1] = c[1].lo; o[1] <= c[1].hi && kz >= 0; o[1]++) {
            const int ky = covering(w, 1, c[1], o[1]);
            int64_t at = ((int64_t)o[0] * w.out[1] + o[1]) * w.out_row + c[2].lo * w.lanes;
            for (o[2] = c[2].lo; o[2] <= c[2].hi && ky >= 0; o[2]++, at += w.lanes) {
                const int kx = covering(w, 2, c[2], o[2]);
                if (kx >= 0) f(o, at, (kz * w.k[1] + ky) * w.k[2] + kx);
            }
        }
    }
}

/* f(input's offset, the windows over it, offset of the plane of outputs with the lane) for the inputs of this thread.
 */
template <class F> INV_DEVICE void each_input(const window &w, int64_t i, F f)
{
    const column c = column_at(w.in, w.lanes, i);
    cover over[3] = {cover_of(w, 0, c.z), cover_of(w, 1, c.first), cover_of(w, 2, c.x)};
    int64_t to = c.plane * w.in_plane + ((int64_t)c.z * w.in[1] + c.first) * w.in_row + c.at;
    for (int y = c.first; y < c.last; y++, to += w.in_row) {
        f(to, over, c.plane * w.out_plane + c.lane);
        cover_next(w, 1, &over[1]);
    }
}

template <class T, class I> INV_KERNEL max_gather(window w, int64_t n, const I *tap, const T *gy, T *gx)
{
    INV_EACH(i, n)
    each_input(w, i, [&](int64_t to, const cover over[3], int64_t plane) {
        const I *tq = tap + plane;
        const T *gq = gy + plane;
        T sum = 0;
        each_window(w, over, [&](const int *, int64_t p, int k) {
            const I best = tq[p];
            const T g = gq[p]; /* on the way beside the other */
            sum += best == (I)k ? g : (T)0;
        });
        gx[to] = sum;
    });
}

template <class T> INV_KERNEL average_gather(window w, int64_t n, inv_pool_divide by, const T *gy, T *gx)
{
    INV_EACH(i, n)
    each_input(w, i, [&](int64_t to, const cover over[3], int64_t plane) {
        const T *gq = gy + plane;
        T sum = 0;
        each_window(w, over, [&](const int o[3], int64_t p, int) {
            const span v[3] = {span_of(w, 0, o[0]), span_of(w, 1, o[1]), span_of(w, 2, o[2])};
            sum += gq[p] / (T)count_of(w, v, by);
        });
        gx[to] = sum;
    });
}

INV_KERNEL indices_of(inv_window w, int64_t n, bool first_fastest, const void *taps, int64_t *index)
{
    INV_EACH(i, n)
    {
        const int64_t q = i / w.outvol,
                      at = inv_pool_position(&w, i - q * w.outvol, inv_pool_tap(&w, taps, i), first_fastest);
        index[i] = at < 0 ? -1 : q * w.invol + at;
    }
}

/* --- starting them --- */

static window narrow(const inv_window *of, int64_t lanes)
{
    window w;
    for (int i = 0; i < 3; i++) {
        w.in[i] = (int)of->in[i];
        w.out[i] = (int)of->out[i];
        w.k[i] = (int)of->k[i];
        w.stride[i] = (int)of->stride[i];
        w.dil[i] = (int)of->dil[i];
        w.pad[i] = (int)of->pad[i];
        w.pad_end[i] = (int)of->pad_end[i];
    }
    w.lanes = (int)lanes;
    w.in_row = of->in[2] * lanes;
    w.out_row = of->out[2] * lanes;
    w.in_plane = of->invol * lanes;
    w.out_plane = of->outvol * lanes;
    return w;
}

/* Threads for planes of these extents. */
static int64_t columns_of(const int64_t extent[3], int64_t planes, int64_t lanes)
{
    return planes * extent[0] * ((extent[1] + ROWS - 1) / ROWS) * extent[2] * lanes;
}

static bool together(const inv_window *w, int64_t lanes) { return w->kvol >= LARGE && lanes == 1; }

static int64_t one_block_each(int64_t n) { return n < MOST_BLOCKS ? n : MOST_BLOCKS; }

template <class T, class I>
static void start_max(const inv_gpu *gpu, const inv_window *w, int64_t planes, int64_t lanes, const T *x, T *y, I *tap)
{
    const int64_t outputs = planes * w->outvol, n = columns_of(w->out, planes, lanes);
    if (together(w, lanes))
        inv_start_sync(gpu, max_together<T, I>, one_block_each(outputs), INV_SYNC_THREADS, narrow(w, 1), outputs, x, y,
                       tap);
    else inv_start(gpu, max_alone<T, I>, inv_blocks(n), INV_THREADS, narrow(w, lanes), n, x, y, tap);
}

template <class T>
static void start_average(const inv_gpu *gpu, const inv_window *w, int64_t planes, int64_t lanes, inv_pool_divide by,
                          const T *x, T *y)
{
    const int64_t outputs = planes * w->outvol, n = columns_of(w->out, planes, lanes);
    if (together(w, lanes))
        inv_start_sync(gpu, average_together<T>, one_block_each(outputs), INV_SYNC_THREADS, narrow(w, 1), outputs, by,
                       x, y);
    else inv_start(gpu, average_alone<T>, inv_blocks(n), INV_THREADS, narrow(w, lanes), n, by, x, y);
}

template <class T>
static void start_either_max(const inv_gpu *gpu, const inv_window *w, int64_t planes, int64_t lanes, const void *x,
                             void *y, void *taps)
{
    if (inv_pool_byte(w)) start_max(gpu, w, planes, lanes, (const T *)x, (T *)y, (uint8_t *)taps);
    else start_max(gpu, w, planes, lanes, (const T *)x, (T *)y, (int32_t *)taps);
}

template <class T>
static void start_max_grad(const inv_gpu *gpu, const inv_window *w, int64_t planes, int64_t lanes, const void *taps,
                           const void *gy, void *gx)
{
    const int64_t n = columns_of(w->in, planes, lanes);
    if (inv_pool_byte(w))
        inv_start(gpu, max_gather<T, uint8_t>, inv_blocks(n), INV_THREADS, narrow(w, lanes), n, (const uint8_t *)taps,
                  (const T *)gy, (T *)gx);
    else
        inv_start(gpu, max_gather<T, int32_t>, inv_blocks(n), INV_THREADS, narrow(w, lanes), n, (const int32_t *)taps,
                  (const T *)gy, (T *)gx);
}

extern "C" void INV_GPU_NAME(max_pool)(const inv_gpu *gpu, inv_dtype t, const inv_window *w, int64_t planes,
                                       int64_t lanes, const void *x, void *y, void *taps)
{
    INV_REAL_AS(t, T, start_either_max<T>(gpu, w, planes, lanes, x, y, taps));
}

extern "C" void INV_GPU_NAME(max_pool_grad)(const inv_gpu *gpu, inv_dtype t, const inv_window *w, int64_t planes,
                                            int64_t lanes, const void *taps, const void *gy, void *gx)
{
    INV_REAL_AS(t, T, start_max_grad<T>(gpu, w, planes, lanes, taps, gy, gx));
}

extern "C" void INV_GPU_NAME(pool_indices)(const inv_gpu *gpu, const inv_window *w, int64_t planes, bool first_fastest,
                                           const void *taps, int64_t *index)
{
    const int64_t n = planes * w->outvol;
    inv_start(gpu, indices_of, inv_blocks(n), INV_THREADS, *w, n, first_fastest, taps, index);
}

extern "C" void INV_GPU_NAME(average_pool)(const inv_gpu *gpu, inv_dtype t, const inv_window *w, int64_t planes,
                                           int64_t lanes, inv_pool_divide by, const void *x, void *y)
{
    INV_REAL_AS(t, T, start_average(gpu, w, planes, lanes, by, (const T *)x, (T *)y));
}

extern "C" void INV_GPU_NAME(average_pool_grad)(const inv_gpu *gpu, inv_dtype t, const inv_window *w, int64_t planes,
                                                int64_t lanes, inv_pool_divide by, const void *gy, void *gx)
{
    const int64_t n = columns_of(w->in, planes, lanes);
    INV_REAL_AS(
        t, T,
        inv_start(gpu, average_gather<T>, inv_blocks(n), INV_THREADS, narrow(w, lanes), n, by, (const T *)gy, (T *)gx));
}
