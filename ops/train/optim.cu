/* SPDX-License-Identifier: Apache-2.0
 * Optimizer updates on the device; every element is computed as on the host. */
#include "ops/gpu/device.cuh"
#include "ops/train/optim_gpu.h"

INV_DEVICE float root_of(float v) { return sqrtf(v); }
INV_DEVICE double root_of(double v) { return sqrt(v); }

template <class T>
INV_KERNEL sgd_kernel(int64_t n, const inv_gpu_step *s, double decay, const double *bad, T *w, const T *g)
{
    if (bad && *bad > 0) return;
    const T r = (T)s->lr, d = (T)decay;
    INV_EACH(i, n) w[i] -= r * (g[i] + d * w[i]);
}

template <class T>
INV_KERNEL momentum_kernel(int64_t n, const inv_gpu_step *s, double decay, double momentum, const double *bad, T *w,
                           const T *g, T *v)
{
    if (bad && *bad > 0) return;
    const T r = (T)s->lr, d = (T)decay, m = (T)momentum;
    INV_EACH(i, n)
    {
        T vi = m * v[i] + (g[i] + d * w[i]);
        v[i] = vi;
        w[i] -= r * vi;
    }
}

/* The bias correction is computed once per block: its powers take longer than an element. */
template <class T>
INV_KERNEL adam_kernel(int64_t n, const inv_gpu_step *s, inv_adam k, const double *bad, T *w, const T *g, T *m, T *v)
{
    if (bad && *bad > 0) return; /* all threads alike */
    INV_SHARED double shared_rate, shared_root;
    if (threadIdx.x == 0) {
        double t = (double)(s->step + 1);
        shared_rate = s->lr / (1 - pow(k.beta1, t));
        shared_root = 1 / sqrt(1 - pow(k.beta2, t));
    }
    __syncthreads();
    const T b1 = (T)k.beta1, b2 = (T)k.beta2, c1 = (T)(1 - k.beta1), c2 = (T)(1 - k.beta2);
    const T rate = (T)shared_rate, root = (T)shared_root, eps = (T)k.epsilon;
    const T l2 = k.decoupled ? 0 : (T)k.decay, kept = k.decoupled ? (T)(1 - s->lr * k.decay) : 1;
    INV_EACH(i, n)
    {
        T gi = g[i] + l2 * w[i], mi = b1 * m[i] + c1 * gi, vi = b2 * v[i] + c2 * gi * gi;
        m[i] = mi;
        v[i] = vi;
        w[i] = w[i] * kept - rate * mi / (root_of(vi) * root + eps);
    }
}

extern "C" void INV_GPU_NAME(sgd)(const inv_gpu *gpu, inv_dtype t, int64_t n, double decay, const double *bad,
                                  void *w, const void *g)
{
    INV_REAL_AS(t, T, inv_start(gpu, sgd_kernel<T>, inv_blocks(n), INV_THREADS, n, gpu->step, decay, bad, (T *)w,
                (const T *)g));
}

extern "C" void INV_GPU_NAME(momentum)(const inv_gpu *gpu, inv_dtype t, int64_t n, double decay, double momentum,
                                       const double *bad, void *w, const void *g, void *v)
{
    INV_REAL_AS(t, T, inv_start(gpu, momentum_kernel<T>, inv_blocks(n), INV_THREADS, n, gpu->step, decay, momentum,
                bad, (T *)w, (const T *)g, (T *)v));
}

extern "C" void INV_GPU_NAME(adam)(const inv_gpu *gpu, inv_dtype t, int64_t n, const inv_adam *k, const double *bad,
                                   void *w, const void *g, void *m, void *v)
{
    INV_REAL_AS(t, T, inv_start_sync(gpu, adam_kernel<T>, inv_blocks(n), INV_THREADS, n, gpu->step, *k, bad, (T *)w,
                (const T *)g, (T *)m, (T *)v));
}
