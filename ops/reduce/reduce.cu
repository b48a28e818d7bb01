/* SPDX-License-Identifier: Apache-2.0
 * Reductions on the device. Everything is accumulated in double, in an order that the shape fixes. */
#include "ops/gpu/device.cuh"
#include "ops/reduce/reduce_gpu.h"

#include "ops/reduce/reduce_device.inc"

/* One share: out[result * parts + share]. */
template <int KIND, class X, class Y>
INV_KERNEL fold_kernel(inv_fold f, const X *x, double scale, Y *out)
{
    fold_place p = fold_begin(f);
    double acc = fold_start<KIND>();
    while (p.k < p.mine) {
        int64_t at[FOLD_TAKE];
        X v[FOLD_TAKE];
        fold_take(f, p, at);
        fold_load(x, at, (X)fold_start<KIND>(), v);
        for (int u = 0; u < FOLD_TAKE; u++) acc = fold_two<KIND>(acc, (double)v[u]);
    }
    acc = fold_join<KIND>(f, p, acc);
    if (p.lane == 0 && p.out < f.nout) out[p.out * f.parts + p.part] = (Y)(acc * scale);
}

/* The fold of nout rows of `parts` shares. */
static inv_fold fold_shares(const inv_fold *f)
{
    inv_fold s = {};
    s.kept.rank = s.gone.rank = 1;
    s.nout = s.kept.inner = f->nout;
    s.n = s.part = s.kept.step = s.gone.inner = f->parts;
    s.gone.step = 1;
    s.parts = s.depth = 1;
    while (s.depth < INV_FOLD_THREADS && s.depth * 4 <= f->parts) s.depth *= 2;
    inv_fold_steps(&s);
    return s;
}

/* JOIN puts together what KIND has made. */
template <int KIND, int JOIN, class X, class Y>
static void fold(const inv_gpu *gpu, const inv_fold *f, double scale, const X *x, double *ws, Y *out)
{
    if (f->parts == 1) {
        fold_launch(gpu, fold_kernel<KIND, X, Y>, f, x, scale, out);
        return;
    }
    const inv_fold shares = fold_shares(f);
    fold_launch(gpu, fold_kernel<KIND, X, double>, f, x, 1.0, ws);
    fold_launch(gpu, fold_kernel<JOIN, double, Y>, &shares, (const double *)ws, scale, out);
}

template <class X>
static void reduce(const inv_gpu *gpu, const inv_fold *f, inv_fold_kind kind, double scale, const void *x, double *ws,
                   void *out)
{
    const X *in = (const X *)x;
    if (kind == INV_FOLD_MAX)
        fold<INV_FOLD_MAX, INV_FOLD_MAX>(gpu, f, scale, in, ws, (X *)out);
    else if (kind == INV_FOLD_MIN)
        fold<INV_FOLD_MIN, INV_FOLD_MIN>(gpu, f, scale, in, ws, (X *)out);
    else if (kind == INV_FOLD_PROD)
        fold<INV_FOLD_PROD, INV_FOLD_PROD>(gpu, f, scale, in, ws, (X *)out);
    else
        fold<INV_FOLD_SUM, INV_FOLD_SUM>(gpu, f, scale, in, ws, (X *)out);
}

extern "C" void INV_GPU_NAME(reduce)(const inv_gpu *gpu, const inv_fold *f, inv_fold_kind kind, inv_dtype t,
                                     double scale, const void *x, double *ws, void *out)
{
    INV_REAL_AS(t, T, reduce<T>(gpu, f, kind, scale, x, ws, out));
}
