/* SPDX-License-Identifier: Apache-2.0
 * Dropout on the device. One thread per Philox block of four elements; seed, step, micro-step and first sample are
 * read when the kernel runs. */
#include "ops/gpu/device.cuh"
#include "ops/gpu/philox.h"
#include "ops/train/dropout_gpu.h"

/* Calls f(element, kept) for the four elements, or fewer at a sample's end, of task i. */
template <class F> INV_DEVICE void each_of_four(const inv_drop &d, const inv_gpu_step &s, int64_t i, F f)
{
    const int64_t quads = (d.each + 3) / 4, sample = i / quads, quad = i - sample * quads;
    const inv_draw_place p = inv_draw_place_of(s.micro, s.first_sample, s.batch, d.rows);
    const uint64_t key = inv_mix64(inv_mix64(inv_mix64(s.seed, s.step), p.micro), d.key);
    const uint64_t row = p.first + (uint64_t)sample;
    const uint32_t keys[2] = {(uint32_t)key, (uint32_t)(key >> 32)};
    const uint32_t counter[4] = {(uint32_t)row, (uint32_t)(row >> 32), (uint32_t)quad,
                                 (uint32_t)((uint64_t)quad >> 32)};
    uint32_t word[4];
    inv_philox(counter, keys, word);
    for (int j = 0; j < 4; j++) {
        if (quad * 4 + j < d.each) f(sample * d.each + quad * 4 + j, word[j] >= d.below);
    }
}

template <class T> INV_KERNEL drop(inv_drop d, const inv_gpu_step *s, const T *x, T *y)
{
    const T scale = (T)d.scale;
    INV_EACH(i, d.rows * ((d.each + 3) / 4))
    {
        each_of_four(d, *s, i, [&](int64_t e, bool kept) { y[e] = kept ? x[e] * scale : 0; });
    }
}

INV_KERNEL keep(inv_drop d, const inv_gpu_step *s, uint8_t *mask)
{
    INV_EACH(i, d.rows * ((d.each + 3) / 4))
    {
        each_of_four(d, *s, i, [&](int64_t e, bool kept) { mask[e] = kept; });
    }
}

extern "C" void INV_GPU_NAME(dropout)(const inv_gpu *gpu, inv_dtype t, const inv_drop *d, const void *x, void *y)
{
    int64_t blocks = inv_blocks(d->rows * ((d->each + 3) / 4));
    INV_REAL_AS(t, T, inv_start(gpu, drop<T>, blocks, INV_THREADS, *d, gpu->step, (const T *)x, (T *)y));
}

extern "C" void INV_GPU_NAME(dropout_keep)(const inv_gpu *gpu, const inv_drop *d, uint8_t *mask)
{
    inv_start(gpu, keep, inv_blocks(d->rows * ((d->each + 3) / 4)), INV_THREADS, *d, gpu->step, mask);
}
