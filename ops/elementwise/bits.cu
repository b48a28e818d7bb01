/* SPDX-License-Identifier: Apache-2.0
 * Packed comparisons on the device. A thread makes or reads N neighbouring bytes of a mask: four where rows are made of
 * such, whose elements then lie side by side in eight rows, or else one. All that it reads is on the way at once. */
#include "ops/elementwise/bits_gpu.h"
#include "ops/gpu/device.cuh"

#define ROWS 8 /* elements of a byte at most */

template <int N> struct alignas(N) bytes_of {
    uint8_t v[N];
};
template <class T, int N> struct row_of {
    T v[N];
};
template <class T> struct row_of<T, 4> : inv_four<T> {
};
template <class T> struct factors_of {
    T v[4];
};

/* The same row of N neighbouring bytes: neighbours, or one element for all of them. */
template <int N, class T> INV_DEVICE row_of<T, N> load_row(const T *p, bool one)
{
    row_of<T, N> row;
    if (one && N > 1)
        for (int c = 0; c < N; c++) row.v[c] = *p;
    else row = *(const row_of<T, N> *)p;
    return row;
}

/* Whether the elements of one byte lie side by side and can be loaded four at a time. */
template <class T> INV_DEVICE bool in_fours(const inv_bits_walk &w, int many, int operand, const T *p)
{
    return sizeof(T) >= 4 && many == w.per && w.along[operand] == 1 && ((uintptr_t)p & 15) == 0;
}

/* The rows that there are. */
template <int N, class T>
INV_DEVICE void load_rows(const inv_bits_walk &w, int operand, const T *p, int many, row_of<T, N> v[ROWS])
{
    const bool fours = N == 1 && in_fours(w, many, operand, p), one = w.l.step[operand] == 0;
    const int64_t along = w.along[operand];
    INV_UNROLL
    for (int k = 0; k < ROWS; k++)
        if (k < many && !fours) v[k] = load_row<N>(p + k * along, one);
    INV_UNROLL
    for (int k = 0; k < ROWS; k += 4) {
        if (k >= many || !fours) continue;
        const inv_four<T> four = inv_four_load(p + k);
        for (int u = 0; u < 4; u++) v[k + u].v[0] = four.v[u];
    }
}

template <class T> INV_DEVICE void store_row(T *p, const row_of<T, 1> &row) { *p = row.v[0]; }
template <class T> INV_DEVICE void store_row(T *p, const row_of<T, 4> &row)
{
    inv_four_put(p, (const inv_four<T> &)row);
}

template <int N, class T>
INV_DEVICE void store_rows(const inv_bits_walk &w, int operand, T *p, int many, const row_of<T, N> v[ROWS])
{
    const bool fours = N == 1 && in_fours(w, many, operand, (const T *)p);
    const int64_t along = w.along[operand];
    INV_UNROLL
    for (int k = 0; k < ROWS; k++)
        if (k < many && !fours) store_row(p + k * along, v[k]);
    INV_UNROLL
    for (int k = 0; k < ROWS; k += 4) {
        if (k >= many || !fours) continue;
        inv_four<T> four;
        for (int u = 0; u < 4; u++) four.v[u] = v[k + u].v[0];
        inv_four_store(p + k, four);
    }
}

/* An operand that is one number along the axis is read once. */
template <class T, int N>
INV_KERNEL compare_kernel(inv_bits_walk w, uint8_t *mask, const T *x, const T *low, const T *high)
{
    INV_EACH(i, w.l.rows * w.l.inner)
    {
        int64_t at[INV_LOOP_OPS];
        row_of<T, N> v[ROWS] = {}, lo = {}, hi = {};
        bytes_of<N> byte = {};
        inv_loop_at(&w.l, i, at);
        const int many = inv_bits_in(&w, at[3]);
        load_rows<N>(w, 0, x + at[0], many, v);
        INV_UNROLL
        for (int k = 0; k < ROWS; k++) {
            if (k >= many) continue;
            if (k == 0 || w.along[1] != 0) lo = load_row<N>(low + at[1] + k * w.along[1], w.l.step[1] == 0);
            if (k == 0 || w.along[2] != 0) hi = load_row<N>(high + at[2] + k * w.along[2], w.l.step[2] == 0);
            for (int c = 0; c < N; c++) {
                const T e = v[k].v[c];
                const int code = inv_bits_code(w.bits, e < lo.v[c], e >= lo.v[c] && e <= hi.v[c], e > hi.v[c]);
                byte.v[c] = (uint8_t)(byte.v[c] | code << k * w.bits);
            }
        }
        ((bytes_of<N> *)mask)[i] = byte;
    }
}

/* Factors are chosen by comparisons: an index into them would put them into local memory. */
template <class T, int N>
INV_KERNEL select_kernel(inv_bits_walk w, factors_of<T> f, T *y, const T *gy, const uint8_t *mask)
{
    const int part = w.bits == 1 ? 1 : 3;
    INV_EACH(i, w.l.rows * w.l.inner)
    {
        int64_t at[INV_LOOP_OPS];
        row_of<T, N> v[ROWS] = {};
        inv_loop_at(&w.l, i, at);
        const int many = inv_bits_in(&w, at[2]);
        const bytes_of<N> byte = ((const bytes_of<N> *)mask)[i];
        load_rows<N>(w, 0, gy + at[0], many, v);
        INV_UNROLL
        for (int k = 0; k < ROWS; k++) {
            for (int c = 0; c < N; c++) {
                const int code = byte.v[c] >> k * w.bits & part;
                const T one = code == 0 ? f.v[0] : code == 1 ? f.v[1] : code == 2 ? f.v[2] : f.v[3];
                v[k].v[c] = one == (T)0 ? (T)0 : one * v[k].v[c];
            }
        }
        store_rows<N>(w, 1, y + at[1], many, v);
    }
}

/* The walk over four bytes at a time, where that can be. in: the operands, and NULL for the place on the axis. */
static bool fours_of(const inv_bits_walk *w, inv_dtype t, const void *mask, const void *const *in, inv_bits_walk *quads)
{
    *quads = *w;
    bool wide = t != INV_BOOL && inv_fours_of(&w->l, mask, in, &quads->l);
    for (int k = 0; k < w->l.nop; k++) wide = wide && (quads->l.step[k] == 0 || w->along[k] % 4 == 0);
    return wide;
}

template <class T, int N>
static void compare(const inv_gpu *gpu, const inv_bits_walk *w, uint8_t *mask, const void *const *in)
{
    inv_start(gpu, compare_kernel<T, N>, inv_blocks(w->l.rows * w->l.inner), INV_THREADS, *w, mask, (const T *)in[0],
              (const T *)in[1], (const T *)in[2]);
}

extern "C" void INV_GPU_NAME(compare_bits)(const inv_gpu *gpu, inv_dtype t, const inv_bits_walk *w, uint8_t *mask,
                                           const void *x, const void *low, const void *high)
{
    const void *const in[] = {x, low, high, NULL};
    inv_bits_walk quads;
    if (fours_of(w, t, mask, in, &quads)) INV_REAL_AS(t, T, compare<T, 4>(gpu, &quads, mask, in));
    else if (t == INV_BOOL) compare<uint8_t, 1>(gpu, w, mask, in);
    else INV_REAL_AS(t, T, compare<T, 1>(gpu, w, mask, in));
}

template <class T, int N>
static void choose(const inv_gpu *gpu, const inv_bits_walk *w, const inv_bits_factors *f, void *y, const void *gy,
                   const uint8_t *mask)
{
    const factors_of<T> of = {{(T)f->of[0], (T)f->of[1], (T)f->of[2], (T)f->of[3]}};
    inv_start(gpu, select_kernel<T, N>, inv_blocks(w->l.rows * w->l.inner), INV_THREADS, *w, of, (T *)y, (const T *)gy,
              mask);
}

extern "C" void INV_GPU_NAME(select_bits)(const inv_gpu *gpu, inv_dtype t, const inv_bits_walk *w,
                                          const inv_bits_factors *f, void *y, const void *gy, const uint8_t *mask)
{
    const void *const in[] = {gy, y, NULL};
    inv_bits_walk quads;
    if (fours_of(w, t, mask, in, &quads)) INV_REAL_AS(t, T, choose<T, 4>(gpu, &quads, f, y, gy, mask));
    else INV_REAL_AS(t, T, choose<T, 1>(gpu, w, f, y, gy, mask));
}
