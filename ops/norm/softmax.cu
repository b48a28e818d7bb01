/* SPDX-License-Identifier: Apache-2.0
 * Softmax on the device. A row is read again for each pass, which the cache serves, and exponentials computed again,
 * so a result may overwrite an operand: every element is read, then written, by one thread. Sums are in double. */
#include "ops/gpu/device.cuh"
#include "ops/norm/softmax_gpu.h"

#define INV_ROW_THREADS INV_SYNC_THREADS

INV_DEVICE float exp_of(float v) { return expf(v); }
INV_DEVICE double exp_of(double v) { return exp(v); }

template <class X> INV_DEVICE X row_max(X v, int h)
{
    if (h > 32) return inv_block_max(v);
    for (int lane = h / 2; lane > 0; lane /= 2) {
        X other = __shfl_xor_sync(0xffffffffu, v, lane);
        v = other > v || other != other ? other : v;
    }
    return v;
}

/* Where this thread's row begins, and its `len`: 0 for threads past the last row. */
INV_DEVICE int64_t row_begin(int h, int64_t rows, int64_t inner, int64_t &len)
{
    const int64_t row = (int64_t)blockIdx.x * (INV_ROW_THREADS / h) + (int)threadIdx.x / h;
    const int64_t outer = row / inner, at = outer * len * inner + (row - outer * inner);
    if (row >= rows) len = 0;
    return row < rows ? at : 0;
}

template <class X>
INV_KERNEL softmax_kernel(int h, bool log_form, int64_t rows, int64_t len, int64_t inner, const X *x, X *y)
{
    const int64_t at = row_begin(h, rows, inner, len);
    const int first = (int)threadIdx.x % h;
    X top = (X)-HUGE_VAL;
    double sum = 0;
    for (int64_t i = first; i < len; i += h) {
        const X v = x[at + i * inner];
        top = v > top || v != v ? v : top;
    }
    top = row_max(top, h);
    for (int64_t i = first; i < len; i += h) sum += (double)exp_of(x[at + i * inner] - top);
    sum = inv_row_sum(sum, h);
    const X shift = log_form ? (X)log(sum) : (X)0, factor = (X)(1 / sum);
    for (int64_t i = first; i < len; i += h) {
        const X v = x[at + i * inner] - top;
        y[at + i * inner] = log_form ? v - shift : exp_of(v) * factor;
    }
}

/* softmax: y (gy - sum gy y);  log-softmax: gy - exp(y) sum gy */
template <class X>
INV_KERNEL softmax_grad_kernel(int h, bool log_form, int64_t rows, int64_t len, int64_t inner, const X *gy, const X *y,
                               X *gx)
{
    const int64_t at = row_begin(h, rows, inner, len);
    const int first = (int)threadIdx.x % h;
    double sum = 0;
    for (int64_t i = first; i < len; i += h) {
        const double g = (double)gy[at + i * inner];
        sum += log_form ? g : g * (double)y[at + i * inner];
    }
    const X s = (X)inv_row_sum(sum, h);
    for (int64_t i = first; i < len; i += h) {
        const X g = gy[at + i * inner], v = y[at + i * inner];
        gx[at + i * inner] = log_form ? g - exp_of(v) * s : v * (g - s);
    }
}

/* Threads per row. Where rows lie side by side and are many, one each reads whole lines of the cache. */
static int row_threads(int64_t rows, int64_t len, int64_t inner)
{
    if (len <= 8 || (inner >= 8 && rows >= 16384)) return 1;
    return len <= 64 ? 8 : len <= 1024 ? 32 : INV_ROW_THREADS;
}

template <class X>
static void softmax(const inv_gpu *gpu, bool log_form, int64_t outer, int64_t len, int64_t inner, const void *gy,
                    const void *v, void *y)
{
    const int64_t rows = outer * inner;
    const int h = row_threads(rows, len, inner);
    const int64_t per = INV_ROW_THREADS / h, blocks = (rows + per - 1) / per;
    if (gy)
        inv_start_sync(gpu, softmax_grad_kernel<X>, blocks, INV_ROW_THREADS, h, log_form, rows, len, inner,
                       (const X *)gy, (const X *)v, (X *)y);
    else
        inv_start_sync(gpu, softmax_kernel<X>, blocks, INV_ROW_THREADS, h, log_form, rows, len, inner, (const X *)v,
                       (X *)y);
}

extern "C" void INV_GPU_NAME(softmax)(const inv_gpu *gpu, inv_dtype t, bool log_form, int64_t outer, int64_t len,
                                      int64_t inner, const void *gy, const void *v, void *y)
{
    INV_REAL_AS(t, T, softmax<T>(gpu, log_form, outer, len, inner, gy, v, y));
}
