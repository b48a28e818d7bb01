/* SPDX-License-Identifier: Apache-2.0
 * Comparisons, logic, tests of single numbers, Where and Cast on the device. Types are template parameters where they
 * are read; what is the same for all threads (the function, the type to store) is a switch inside the kernel. */
#include "ops/gpu/device.cuh"
#include "ops/elementwise/logic_gpu.h"

/* --- elements that are not of a type of the language --- */
struct half_bits {
    uint16_t bits;
};
struct bfloat_bits {
    uint16_t bits;
};
struct truth {
    uint8_t byte;
};

/* A 16-bit float with `mbits` bits of mantissa. */
INV_DEVICE double small_to_double(uint16_t h, int mbits)
{
    const int ebits = 15 - mbits, bias = (1 << (ebits - 1)) - 1;
    const int m = h & ((1 << mbits) - 1), e = (h >> mbits) & ((1 << ebits) - 1);
    double v;
    if (e == (1 << ebits) - 1)
        v = m ? (double)NAN : (double)INFINITY;
    else if (e == 0)
        v = ldexp((double)m, 1 - bias - mbits);
    else
        v = ldexp((double)(m + (1 << mbits)), e - bias - mbits);
    return h & 0x8000u ? -v : v;
}

/* Rounds to nearest even, straight from double so that nothing is rounded twice. */
INV_DEVICE uint16_t double_to_small(double v, int mbits)
{
    const int ebits = 15 - mbits, bias = (1 << (ebits - 1)) - 1, inf = ((1 << ebits) - 1) << mbits;
    if (v != v) return (uint16_t)(inf | (1 << (mbits - 1)));
    int e = 0, bits;
    const double a = fabs(v), m = frexp(a, &e);
    if (a == (double)INFINITY || e > bias + 1)
        bits = inf;
    else if (a == 0.0 || e - 1 < 1 - bias)
        bits = (int)rint(ldexp(a, bias - 1 + mbits));
    else
        bits = ((e - 1 + bias) << mbits) + (int)rint(ldexp(m, mbits + 1)) - (1 << mbits);
    if (bits > inf) bits = inf;
    return (uint16_t)(bits | (copysign(1.0, v) < 0 ? 0x8000 : 0));
}

template <class T> INV_DEVICE T number(T v) { return v; }
INV_DEVICE double number(half_bits v) { return small_to_double(v.bits, 10); }
INV_DEVICE double number(bfloat_bits v) { return small_to_double(v.bits, 7); }
INV_DEVICE int64_t number(truth v) { return v.byte != 0; }

/* Toward 0; what does not fit becomes the nearest that does, NaN 0. */
template <class T> INV_DEVICE int64_t whole(T v) { return (int64_t)v; }
INV_DEVICE int64_t whole(double v)
{
    if (v != v) return 0;
    if (v >= 9223372036854775808.0) return INT64_MAX;
    if (v < -9223372036854775808.0) return INT64_MIN;
    return (int64_t)v;
}
INV_DEVICE int64_t whole(float v) { return whole((double)v); }

/* --- kernels --- */
template <class T> INV_DEVICE bool holds(inv_compare f, T a, T b)
{
    switch (f) {
    case INV_COMPARE_equal: return a == b;
    case INV_COMPARE_less: return a < b;
    case INV_COMPARE_less_or_equal: return a <= b;
    case INV_COMPARE_greater: return a > b;
    case INV_COMPARE_greater_or_equal: return a >= b;
    case INV_COMPARE_and: return a != 0 && b != 0;
    case INV_COMPARE_or: return a != 0 || b != 0;
    default: return (a != 0) != (b != 0);
    }
}

template <class T> INV_KERNEL compare_kernel(inv_compare f, inv_loop l, uint8_t *out, const T *a, const T *b)
{
    INV_EACH(i, l.rows * l.inner)
    {
        int64_t at[INV_LOOP_OPS];
        inv_loop_at(&l, i, at);
        out[i] = holds(f, a[at[0]], b[at[1]]);
    }
}

template <class T> INV_KERNEL flag_kernel(inv_flag f, int64_t n, uint8_t *out, const T *x)
{
    INV_EACH(i, n)
    {
        const auto v = number(x[i]);
        const double d = (double)v;
        switch (f) {
        case INV_FLAG_NOT: out[i] = whole(v) == 0; break;
        case INV_FLAG_NAN: out[i] = d != d; break;
        case INV_FLAG_PLUS_INF: out[i] = d == (double)INFINITY; break;
        case INV_FLAG_MINUS_INF: out[i] = d == -(double)INFINITY; break;
        default: out[i] = fabs(d) == (double)INFINITY;
        }
    }
}

template <class T>
INV_KERNEL where_kernel(inv_loop l, T *out, const uint8_t *cond, const T *a, const T *b)
{
    INV_EACH(i, l.rows * l.inner)
    {
        int64_t at[INV_LOOP_OPS];
        inv_loop_at(&l, i, at);
        out[i] = cond[at[0]] ? a[at[1]] : b[at[2]];
    }
}

/* Integers wrap to the width of the target, as a cast in C does. */
template <class T> INV_DEVICE void store(void *out, inv_dtype to, int64_t i, T v)
{
    switch (to) {
    case INV_F64: ((double *)out)[i] = (double)v; break;
    case INV_F32: ((float *)out)[i] = (float)v; break;
    case INV_F16: ((uint16_t *)out)[i] = double_to_small((double)v, 10); break;
    case INV_BF16: ((uint16_t *)out)[i] = double_to_small((double)v, 7); break;
    case INV_BOOL: ((uint8_t *)out)[i] = v != 0; break;
    case INV_I64:
    case INV_U64: ((int64_t *)out)[i] = whole(v); break;
    case INV_I32:
    case INV_U32: ((uint32_t *)out)[i] = (uint32_t)whole(v); break;
    case INV_I16:
    case INV_U16: ((uint16_t *)out)[i] = (uint16_t)whole(v); break;
    default: ((uint8_t *)out)[i] = (uint8_t)whole(v);
    }
}

template <class T> INV_KERNEL cast_kernel(int64_t n, inv_dtype to, void *out, const T *x)
{
    INV_EACH(i, n) store(out, to, i, number(x[i]));
}

/* --- launchers --- */
#define INTEGERS(AS)                                                                                                  \
    case INV_I64: AS(int64_t); break;                                                                                 \
    case INV_I32: AS(int32_t); break;                                                                                 \
    case INV_I16: AS(int16_t); break;                                                                                 \
    case INV_I8: AS(int8_t); break;                                                                                   \
    case INV_U64: AS(uint64_t); break;                                                                                \
    case INV_U32: AS(uint32_t); break;                                                                                \
    case INV_U16: AS(uint16_t); break;                                                                                \
    case INV_U8: AS(uint8_t); break;
#define NUMBERS(AS)                                                                                                   \
    INTEGERS(AS)                                                                                                      \
    case INV_F64: AS(double); break;                                                                                  \
    case INV_F32: AS(float); break;                                                                                   \
    case INV_F16: AS(half_bits); break;                                                                               \
    case INV_BF16: AS(bfloat_bits); break;                                                                            \
    case INV_BOOL: AS(truth); break;

extern "C" void INV_GPU_NAME(compare)(const inv_gpu *gpu, inv_compare f, inv_dtype t, const inv_loop *l, uint8_t *out,
                                      const void *a, const void *b)
{
    const int64_t blocks = inv_blocks(l->rows * l->inner);
#define AS(T) inv_start(gpu, compare_kernel<T>, blocks, INV_THREADS, f, *l, out, (const T *)a, (const T *)b)
    switch (t) {
        INTEGERS(AS)
    case INV_BOOL: AS(uint8_t); break;
    case INV_F64: AS(double); break;
    case INV_F32: AS(float); break;
    default: break;
    }
#undef AS
}

extern "C" void INV_GPU_NAME(flag)(const inv_gpu *gpu, inv_flag f, inv_dtype t, int64_t n, uint8_t *out, const void *x)
{
#define AS(T) inv_start(gpu, flag_kernel<T>, inv_blocks(n), INV_THREADS, f, n, out, (const T *)x)
    switch (t) {
        NUMBERS(AS)
    default: break;
    }
#undef AS
}

extern "C" void INV_GPU_NAME(where)(const inv_gpu *gpu, size_t esize, const inv_loop *l, void *out,
                                    const uint8_t *cond, const void *a, const void *b)
{
    const int64_t blocks = inv_blocks(l->rows * l->inner);
#define AS(T) inv_start(gpu, where_kernel<T>, blocks, INV_THREADS, *l, (T *)out, cond, (const T *)a, (const T *)b)
    switch (esize) {
    case 8: AS(uint64_t); break;
    case 4: AS(uint32_t); break;
    case 2: AS(uint16_t); break;
    default: AS(uint8_t);
    }
#undef AS
}

extern "C" void INV_GPU_NAME(cast)(const inv_gpu *gpu, int64_t n, inv_dtype to, void *out, inv_dtype from,
                                   const void *x)
{
#define AS(T) inv_start(gpu, cast_kernel<T>, inv_blocks(n), INV_THREADS, n, to, out, (const T *)x)
    switch (from) {
        NUMBERS(AS)
    default: break;
    }
#undef AS
}
