/* SPDX-License-Identifier: Apache-2.0
 * Packed comparisons on the device: a thread per byte. */
#include "ops/elementwise/bits_gpu.h"
#include "ops/gpu/device.cuh"

template <class T> INV_KERNEL compare_kernel(inv_bits_walk w, uint8_t *mask, const T *x, const T *low, const T *high)
{
    INV_EACH(i, w.l.rows * w.l.inner)
    {
        int64_t at[INV_LOOP_OPS];
        int byte = 0;
        inv__loop_at(&w.l, i, at);
        const int many = inv__bits_in(&w, at[3]);
        for (int k = 0; k < many; k++) {
            const T v = x[at[0] + k * w.along[0]], lo = low[at[1] + k * w.along[1]], hi = high[at[2] + k * w.along[2]];
            byte |= inv__bits_code(w.bits, v < lo, v >= lo && v <= hi, v > hi) << (k * w.bits);
        }
        mask[i] = (uint8_t)byte;
    }
}

template <class T> INV_KERNEL select_kernel(inv_bits_walk w, inv_bits_factors f, T *y, const T *gy, const uint8_t *mask)
{
    const int part = w.bits == 1 ? 1 : 3;
    INV_EACH(i, w.l.rows * w.l.inner)
    {
        int64_t at[INV_LOOP_OPS];
        inv__loop_at(&w.l, i, at);
        const int many = inv__bits_in(&w, at[2]);
        const T *from = gy + at[0];
        T *to = y + at[1];
        if (many == 8 && w.along[0] == 1 && w.along[1] == 1 && (((uintptr_t)from | (uintptr_t)to) & 15) == 0) {
            const int byte = mask[i]; /* many is 8 of one bit each only */
            INV_UNROLL
            for (int k = 0; k < 8; k += 4) {
                inv_four<T> v = inv_four_load(from + k);
                INV_UNROLL
                for (int q = 0; q < 4; q++) {
                    const T one = (T)f.of[byte >> (k + q) & 1];
                    v.v[q] = one == (T)0 ? (T)0 : one * v.v[q];
                }
                inv_four_store(to + k, v);
            }
            continue;
        }
        for (int k = 0; k < many; k++) {
            const T one = (T)f.of[mask[i] >> (k * w.bits) & part];
            y[at[1] + k * w.along[1]] = one == (T)0 ? (T)0 : one * gy[at[0] + k * w.along[0]];
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
