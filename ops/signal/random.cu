/* SPDX-License-Identifier: Apache-2.0
 * Random numbers on the device. Seed, step, micro-step and first sample are read when the kernel runs. */
#include "ops/gpu/device.cuh"
#include "ops/signal/random.h"

INV_DEVICE inv_draw_place place_of(const inv_random &r, const inv_gpu_step &s)
{
    const inv_draw_place alike = {s.micro, 0};
    return r.samples ? inv_draw_place_of(s.micro, s.first_sample, s.batch, r.rows) : alike;
}

template <class T> INV_KERNEL draw(inv_random r, const inv_gpu_step *s, T *out)
{
    const int64_t quads = (r.each + 3) / 4;
    const inv_draw_place from = place_of(r, *s);
    INV_EACH(i, r.rows * quads)
    {
        const int64_t row = i / quads, quad = i - row * quads;
        uint32_t word[4];
        double v[4];
        inv_random_words(&r, s->seed, s->step, from.micro, from.first + (uint64_t)row, (uint64_t)quad, word);
        inv_random_four(&r, word, v);
        for (int j = 0; j < 4 && quad * 4 + j < r.each; j++) out[row * r.each + quad * 4 + j] = (T)v[j];
    }
}

/* One thread per number. */
INV_KERNEL categories(inv_random r, const inv_gpu_step *s, int64_t classes, inv_dtype t, int64_t *out, const void *x)
{
    const inv_draw_place from = place_of(r, *s);
    INV_EACH(i, r.rows * r.each)
    {
        const int64_t row = i / r.each;
        out[i] = inv_random_category(&r, s->seed, s->step, from.micro, from.first + (uint64_t)row, i - row * r.each,
                                      classes, t, x, row * classes);
    }
}

extern "C" void INV_GPU_NAME(random)(const inv_gpu *gpu, inv_dtype t, const inv_random *r, void *out)
{
    const int64_t blocks = inv_blocks(r->rows * ((r->each + 3) / 4));
    INV_REAL_AS(t, T, inv_start(gpu, draw<T>, blocks, INV_THREADS, *r, gpu->step, (T *)out));
}

extern "C" void INV_GPU_NAME(categorical)(const inv_gpu *gpu, inv_dtype t, const inv_random *r, int64_t classes,
                                          int64_t *out, const void *x)
{
    inv_start(gpu, categories, inv_blocks(r->rows * r->each), INV_THREADS, *r, gpu->step, classes, t, out, x);
}
