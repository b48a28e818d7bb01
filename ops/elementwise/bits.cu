/* SPDX-License-Identifier: Apache-2.0
 * Packed comparisons on the device: a thread per byte. */
#include "ops/elementwise/bits_gpu.h"
#include "ops/gpu/device.cuh"

/* Whether a byte's eight elements lie side by side and can be loaded four at a time. */
template <class T> INV_DEVICE bool in_fours(const inv_bits_walk &w, int many, int operand, const T *p)
{
    return sizeof(T) >= 4 && many == 8 && w.along[operand] == 1 && ((uintptr_t)p & 15) == 0;
}

template <class T> INV_KERNEL compare_kernel(inv_bits_walk w, uint8_t *mask, const T *x, const T *low, const T *high)
{
    INV_EACH(i, w.l.rows * w.l.inner)
    {
        int64_t at[INV_LOOP_OPS];
        int byte = 0;
        inv__loop_at(&w.l, i, at);
        const int many = inv__bits_in(&w, at[3]);
        if (in_fours(w, many, 0, x + at[0]) && w.along[1] == 0 && w.along[2] == 0) {
            const inv_four<T> v[2] = {inv_four_load(x + at[0]), inv_four_load(x + at[0] + 4)};
            const T lo = low[at[1]], hi = high[at[2]];
            INV_UNROLL
            for (int k = 0; k < 8; k++) byte |= (v[k / 4].v[k % 4] >= lo && v[k / 4].v[k % 4] <= hi) << k;
            mask[i] = (uint8_t)byte;
            continue;
        }
        for (int k = 0; k < many; k++) {
            const T v = x[at[0] + k * w.along[0]], lo = low[at[1] + k * w.along[1]], hi = high[at[2] + k * w.along[2]];
            byte |= inv__bits_code(w.bits, v < lo, v >= lo && v <= hi, v > hi) << (k * w.bits);
        }
        mask[i] = (uint8_t)byte;
    }
}

/* Eight elements have one bit each. */
template <class T> INV_KERNEL select_kernel(inv_bits_walk w, inv_bits_factors f, T *y, const T *gy, const uint8_t *mask)
{
    const int part = w.bits == 1 ? 1 : 3;
    /* chosen by comparisons: an index into them would put them into local memory */
    const T outside = (T)f.of[0], inside = (T)f.of[1], above = (T)f.of[2], none = (T)f.of[3];
    INV_EACH(i, w.l.rows * w.l.inner)
    {
        int64_t at[INV_LOOP_OPS];
        inv__loop_at(&w.l, i, at);
        const int many = inv__bits_in(&w, at[2]), byte = mask[i];
        const T *from = gy + at[0];
        T *to = y + at[1];
        if (in_fours(w, many, 0, from) && in_fours(w, many, 1, (const T *)to)) {
            inv_four<T> v[2] = {inv_four_load(from), inv_four_load(from + 4)};
            INV_UNROLL
            for (int k = 0; k < 8; k++) {
                const T one = byte >> k & 1 ? inside : outside;
                v[k / 4].v[k % 4] = one == (T)0 ? (T)0 : one * v[k / 4].v[k % 4];
            }
            inv_four_store(to, v[0]);
            inv_four_store(to + 4, v[1]);
            continue;
        }
        for (int k = 0; k < many; k++) {
            const int code = byte >> (k * w.bits) & part;
            const T one = code == 0 ? outside : code == 1 ? inside : code == 2 ? above : none;
            to[k * w.along[1]] = one == (T)0 ? (T)0 : one * from[k * w.along[0]];
        }
    }
}

template <class T>
static void compare(const inv_gpu *gpu, const inv_bits_walk *w, uint8_t *mask, const void *x, const void *low,
                    const void *high)
{
    inv_start(gpu, compare_kernel<T>, inv_blocks(w->l.rows * w->l.inner), INV_THREADS, *w, mask, (const T *)x,
              (const T *)low, (const T *)high);
}

extern "C" void INV_GPU_NAME(compare_bits)(const inv_gpu *gpu, inv_dtype t, const inv_bits_walk *w, uint8_t *mask,
                                           const void *x, const void *low, const void *high)
{
    (t == INV_F64 ? compare<double> : t == INV_F32 ? compare<float> : compare<uint8_t>)(gpu, w, mask, x, low, high);
}

template <class T>
static void choose(const inv_gpu *gpu, const inv_bits_walk *w, const inv_bits_factors *f, void *y, const void *gy,
                   const uint8_t *mask)
{
    inv_start(gpu, select_kernel<T>, inv_blocks(w->l.rows * w->l.inner), INV_THREADS, *w, *f, (T *)y, (const T *)gy,
              mask);
}

extern "C" void INV_GPU_NAME(select_bits)(const inv_gpu *gpu, inv_dtype t, const inv_bits_walk *w,
                                          const inv_bits_factors *f, void *y, const void *gy, const uint8_t *mask)
{
    INV_REAL_AS(t, T, choose<T>(gpu, w, f, y, gy, mask));
}
