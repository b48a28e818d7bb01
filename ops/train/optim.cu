/* SPDX-License-Identifier: Apache-2.0
 * Optimizer updates on the device; every element is computed as on the host (optim_rules.inc). */
#include "ops/gpu/many.cuh"
#include "ops/train/adam8.h"
#include "ops/train/optim_gpu.h"

#define INV_BOTH "ops/train/optim_rules.inc"
#include "ops/base/both_reals.inc"

/* The rules by the type of their operands. */
#define RULES(T, x)                                                                                            \
    INV_DEVICE x(update_numbers) numbers_of(const inv_update *u, const inv_update_rates *r, const T *)         \
    {                                                                                                          \
        return x(update_numbers_of)(u, r);                                                                     \
    }                                                                                                          \
    INV_DEVICE void apply(const inv_update &u, const x(update_numbers) & k, T * w, T g, T * first, T * second) \
    {                                                                                                          \
        switch (u.kind) {                                                                                      \
        case INV_UPDATE_SGD: x(sgd_rule)(k, w, g); break;                                                      \
        case INV_UPDATE_MOMENTUM: x(momentum_rule)(k, w, g, first); break;                                     \
        case INV_UPDATE_RMSPROP: x(rmsprop_rule)(k, w, g, first); break;                                       \
        case INV_UPDATE_LION: x(lion_rule)(k, w, g, first); break;                                             \
        case INV_UPDATE_ADAM: x(adam_rule)(k, w, g, first, second); break;                                     \
        case INV_UPDATE_ADAM8: break; /* update8 */                                                            \
        }                                                                                                      \
    }                                                                                                          \
    INV_DEVICE void apply8(const x(update_numbers) & k, T * w, T g, T * m, T * v) { x(adam_rule)(k, w, g, m, v); }
#define F32(x) x##_f32
#define F64(x) x##_f64
RULES(float, F32)
RULES(double, F64)

/* The numbers of the step are computed once per block: Adam's powers take longer than an element. */
template <class T>
INV_KERNEL update_kernel(inv_many m, const inv_gpu_step *s, inv_update u, const double *bad, const double *norm)
{
    if (s->refused || (bad && *bad > 0)) return; /* all threads alike */
    INV_SHARED(inv_update_rates, rates, );
    if (threadIdx.x == 0) rates = inv_update_rates_of(&u, inv_group_lr(s->lr, s->group_lr, u.group), s->step, norm);
    __syncthreads();
    const inv_piece_of_many piece = inv_many_piece(m);
    T *w = (T *)m.at[piece.at].p[0], *first = (T *)m.at[piece.at].p[2], *second = (T *)m.at[piece.at].p[3];
    const T *g = (const T *)m.at[piece.at].p[1];
    const auto k = numbers_of(&u, &rates, w);
    INV_EACH_OF_MANY(i, piece) apply(u, k, w + i, g[i], first + i, second + i);
}

/* As update_kernel; a block of threads takes the blocks of moments of its piece, a thread an element. */
template <class T>
INV_KERNEL update8_kernel(inv_many many, const inv_gpu_step *s, inv_update u, const double *bad, const double *norm)
{
    if (s->refused || (bad && *bad > 0)) return;
    INV_SHARED(inv_update_rates, rates, );
    if (threadIdx.x == 0) rates = inv_update_rates_of(&u, inv_group_lr(s->lr, s->group_lr, u.group), s->step, norm);
    __syncthreads();
    const inv_piece_of_many piece = inv_many_piece(many);
    T *w = (T *)many.at[piece.at].p[0];
    const T *g = (const T *)many.at[piece.at].p[1];
    uint8_t *first = (uint8_t *)many.at[piece.at].p[2], *second = (uint8_t *)many.at[piece.at].p[3];
    float *first_scale = (float *)many.at[piece.at + 1].p[0], *second_scale = (float *)many.at[piece.at + 1].p[1];
    auto k = numbers_of(&u, &rates, w);
    const uint32_t salt = inv_rounding_salt(s->seed, s->step);
    for (int64_t at = piece.first; at < piece.end; at += INV_BLOCK8) { /* all threads alike */
        const int64_t i = at + threadIdx.x, b = at / INV_BLOCK8;
        T m = 0, v = 0;
        if (i < piece.end) {
            m = inv_decode_first(first[i], first_scale[b]);
            v = inv_decode_second(second[i], second_scale[b]);
            apply8(k, w + i, g[i], &m, &v);
        }
        const float mf = (float)m, vf = (float)v;
        const float m_scale = inv_block_max(mf < 0 ? -mf : mf) / INV_TOP8, v_scale = inv_block_max(vf) / INV_TOP8;
        if (i < piece.end) {
            const uint32_t chance = inv_mix32(salt + (uint32_t)i);
            first[i] = inv_encode_first(mf, inv_over8(m_scale), chance);
            second[i] = inv_encode_second(vf, inv_over8(v_scale), inv_mix32(chance));
        }
        if (threadIdx.x == 0) { /* inv_block_max has let all threads read the old ones */
            first_scale[b] = m_scale;
            second_scale[b] = v_scale;
        }
    }
}

/* y = keep y + add x for each tensor's y and x; where keep is 0, y is not read. */
template <class T> INV_DEVICE void mix(const inv_many &m, double keep, double add)
{
    const inv_piece_of_many piece = inv_many_piece(m);
    T *y = (T *)m.at[piece.at].p[0];
    const T *x = (const T *)m.at[piece.at].p[1];
    const T a = (T)keep, b = (T)add;
    INV_EACH_OF_MANY(i, piece) y[i] = keep == 0 ? b * x[i] : a * y[i] + b * x[i];
}

template <class T> INV_KERNEL accumulate_kernel(inv_many m, const inv_gpu_step *s, const double *bad, int64_t whole)
{
    const bool nothing = s->kept > 0 && !(s->added > 0); /* as on the host */
    if (s->refused || (bad && *bad > 0) || nothing) return;
    mix<T>(m, inv_accumulated(s->kept, whole != 0), inv_accumulated(s->added, whole != 0));
}

template <class T>
INV_KERNEL average_kernel(inv_many m, const inv_gpu_step *s, double decay, uint64_t from, uint64_t every)
{
    const double keep = inv_average_keep(decay, from, every, s->step);
    if (!s->refused && keep != 1) mix<T>(m, keep, 1 - keep);
}

template <class W> INV_KERNEL assign_kernel(inv_many m, const inv_gpu_step *s, const double *bad)
{
    if (s->refused || (bad && *bad > 0)) return;
    const inv_piece_of_many piece = inv_many_piece(m);
    W *to = (W *)m.at[piece.at].p[0];
    const W *from = (const W *)m.at[piece.at].p[1];
    INV_EACH_OF_MANY(i, piece) to[i] = from[i];
}

extern "C" void INV_GPU_NAME(update)(const inv_gpu *gpu, inv_dtype t, const inv_many *m, const inv_update *u,
                                     const double *bad, const double *norm)
{
    INV_REAL_AS(t, T, inv_start_sync(gpu, update_kernel<T>, m->blocks, INV_THREADS, *m, gpu->step, *u, bad, norm));
}

extern "C" void INV_GPU_NAME(update8)(const inv_gpu *gpu, inv_dtype t, const inv_many *m, const inv_update *u,
                                      const double *bad, const double *norm)
{
    INV_REAL_AS(t, T, inv_start_sync(gpu, update8_kernel<T>, m->blocks, INV_BLOCK8, *m, gpu->step, *u, bad, norm));
}

extern "C" void INV_GPU_NAME(accumulate)(const inv_gpu *gpu, inv_dtype t, const inv_many *m, const double *bad,
                                         bool whole)
{
    INV_REAL_AS(t, T, inv_start(gpu, accumulate_kernel<T>, m->blocks, INV_THREADS, *m, gpu->step, bad, (int64_t)whole));
}

extern "C" void INV_GPU_NAME(assign)(const inv_gpu *gpu, const inv_many *m, bool words, const double *bad)
{
    if (words) inv_start(gpu, assign_kernel<uint32_t>, m->blocks, INV_THREADS, *m, gpu->step, bad);
    else inv_start(gpu, assign_kernel<uint8_t>, m->blocks, INV_THREADS, *m, gpu->step, bad);
}

extern "C" void INV_GPU_NAME(average)(const inv_gpu *gpu, inv_dtype t, const inv_many *m, double decay, uint64_t from,
                                      uint64_t every)
{
    INV_REAL_AS(t, T, inv_start(gpu, average_kernel<T>, m->blocks, INV_THREADS, *m, gpu->step, decay, from, every));
}
