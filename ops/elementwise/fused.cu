/* SPDX-License-Identifier: Apache-2.0
 * Joint element-wise nodes on the device. A thread takes 16 bytes of neighbouring elements at a time through all steps.
 * Values that come between are in shared memory, where each thread has its own column: a place is chosen by the step,
 * which registers cannot be. All operands are on the way at once. What is done is alike in all threads, so no warp
 * goes two ways. Every step is computed as the kernel of its operator does, without contraction, so the bits are those
 * of single nodes. */
#include "ops/elementwise/fused_gpu.h"
#include "ops/gpu/device.cuh"

#define THREADS 64 /* 16 KiB of shared memory: registers bound how many blocks there are at once */
#define AT_ONCE 4  /* operands that are loaded before any is stored */

template <class T> struct alignas(16) group {
    static const int N = 16 / sizeof(T);
    T v[N];
};
template <class T> struct reals {
    T of[INV_FUSED_STEPS][4];
};

#define INV_SCALAR INV_DEVICE
#define INV_BOTH "ops/elementwise/fused_device.inc"
#include "ops/base/both_reals.inc"

/* Where operand k has element e of the result. */
INV_DEVICE int64_t place_of(const inv_fused_call &c, int k, int64_t e)
{
    int64_t at = 0;
    INV_ROLLED
    for (int i = c.rank - 1; i > 0; i--) {
        const int64_t q = inv_quotient(e, c.dim[i]);
        at += (e - q * c.dim[i]) * c.in[k].stride[i];
        e = q;
    }
    return at + e * c.in[k].stride[0];
}

/* The group from element e on, of which `many` are there. */
template <class T> INV_DEVICE group<T> load(const inv_fused_call &c, int k, int64_t e, int many)
{
    const T *p = (const T *)c.in[k].data;
    const inv_fused_load how = c.in[k].load;
    group<T> v = {};
    if (how == INV_LOAD_WHOLE && many == group<T>::N) return *(const group<T> *)(p + e);
    if (how == INV_LOAD_ROW || how == INV_LOAD_ROW_ONE) p += place_of(c, k, e);
    if (how == INV_LOAD_ROW) return *(const group<T> *)p;
    const bool one = how == INV_LOAD_ROW_ONE || how == INV_LOAD_ONE;
    if (one) v.v[0] = *p;
    INV_UNROLL
    for (int u = 0; u < group<T>::N; u++) {
        if (one) v.v[u] = v.v[0];
        else if (u < many) v.v[u] = p[how == INV_LOAD_WHOLE ? e + u : place_of(c, k, e + u)];
    }
    return v;
}

/* By name where that matters, as in inv_four_put. */
INV_DEVICE void put(float *p, const group<float> &v) { inv_four_put(p, (const inv_four<float> &)v); }
INV_DEVICE void put(double *p, const group<double> &v) { *(group<double> *)p = v; }

template <class T> INV_DEVICE void store(const inv_fused_call &c, void *to, int64_t e, int many, const group<T> &v)
{
    T *p = (T *)to + e;
    if (c.wide && many == group<T>::N) return put(p, v);
    INV_UNROLL
    for (int u = 0; u < group<T>::N; u++)
        if (u < many) p[u] = v.v[u];
}

template <class T> INV_KERNEL fused_kernel(inv_fused_call c, reals<T> real)
{
    INV_SHARED(group<T>, at, [INV_FUSED_PLACES][THREADS]);
    const int t = (int)threadIdx.x, N = group<T>::N;
    INV_EACH(i, (c.n + N - 1) / N)
    {
        const int64_t e = i * N;
        const int many = c.n - e < N ? (int)(c.n - e) : N;
        INV_ROLLED
        for (int k = 0; k < c.nin; k += AT_ONCE) {
            group<T> v[AT_ONCE];
            INV_UNROLL
            for (int u = 0; u < AT_ONCE; u++)
                if (k + u < c.nin) v[u] = load<T>(c, k + u, e, many);
            INV_UNROLL
            for (int u = 0; u < AT_ONCE; u++)
                if (k + u < c.nin) at[k + u][t] = v[u];
        }
        INV_ROLLED
        for (int s = 0; s < c.nstep; s++) {
            group<T> to = at[c.step[s].in[0]][t], second = to, third = to;
            if (c.step[s].nin > 1) second = at[c.step[s].in[1]][t];
            if (c.step[s].nin > 2) third = at[c.step[s].in[2]][t];
            apply(c.step[s].opcode, real.of[s], to, second, third);
            at[c.step[s].place][t] = to;
            if (c.step[s].out) store(c, c.step[s].out, e, many, to);
        }
    }
}

/* How operand k is loaded. The launcher knows what the type asks of addresses. */
static inv_fused_load load_of(const inv_fused_call *c, int k, int n)
{
    const int64_t *stride = c->in[k].stride, last = c->rank - 1, step = stride[last];
    const bool aligned = inv_four_aligned(c->in[k].data);
    bool one = true, whole = aligned, rows = c->dim[last] % n == 0 && (step == 0 || aligned);
    int64_t across = 1;
    for (int i = (int)last; i >= 0; i--) {
        one = one && stride[i] == 0;
        whole = whole && stride[i] == across;
        rows = rows && (step == 0 || i == last || stride[i] % n == 0);
        across *= c->dim[i];
    }
    if (one || whole) return one ? INV_LOAD_ONE : INV_LOAD_WHOLE;
    return !rows ? INV_LOAD_EACH : step == 0 ? INV_LOAD_ROW_ONE : INV_LOAD_ROW;
}

template <class T> static void start(const inv_gpu *gpu, const inv_fused_call *call)
{
    const int64_t groups = (call->n + group<T>::N - 1) / group<T>::N, blocks = (groups + THREADS - 1) / THREADS;
    inv_fused_call c = *call;
    reals<T> real = {};
    c.wide = true;
    for (int k = 0; k < c.nin; k++) c.in[k].load = load_of(&c, k, group<T>::N);
    for (int s = 0; s < c.nstep; s++) {
        for (int k = 0; k < 4; k++) real.of[s][k] = (T)c.real[s][k];
        c.wide = c.wide && inv_four_aligned(c.step[s].out);
    }
    inv_start(gpu, fused_kernel<T>, blocks < 8192 ? blocks : 8192, THREADS, c, real);
}

extern "C" void INV_GPU_NAME(fused)(const inv_gpu *gpu, inv_dtype t, const inv_fused_call *call)
{
    INV_REAL_AS(t, T, start<T>(gpu, call));
}
