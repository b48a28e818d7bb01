/* SPDX-License-Identifier: Apache-2.0
 * Integer tensors: elements of any type as int64, and the arithmetic of shapes and indices. Host and device. */
#ifndef INV_OPS_GPU_INTEGERS_H
#define INV_OPS_GPU_INTEGERS_H

#include "ops/gpu/device_code.h"
#include "ops/gpu/gpu.h"

/* Element i of an integer or bool tensor. */
INV_HD int64_t inv_int_at(const void *p, inv_dtype t, int64_t i)
{
    switch (t) {
    case INV_I64: return ((const int64_t *)p)[i];
    case INV_U64: return (int64_t)((const uint64_t *)p)[i];
    case INV_I32: return ((const int32_t *)p)[i];
    case INV_U32: return ((const uint32_t *)p)[i];
    case INV_I16: return ((const int16_t *)p)[i];
    case INV_U16: return ((const uint16_t *)p)[i];
    case INV_I8: return ((const int8_t *)p)[i];
    default: return ((const uint8_t *)p)[i];
    }
}

INV_HD void inv_int_put(void *p, inv_dtype t, int64_t i, int64_t v)
{
    switch (t) {
    case INV_I64:
    case INV_U64: ((int64_t *)p)[i] = v; break;
    case INV_I32:
    case INV_U32: ((uint32_t *)p)[i] = (uint32_t)v; break;
    case INV_I16:
    case INV_U16: ((uint16_t *)p)[i] = (uint16_t)v; break;
    case INV_BOOL: ((uint8_t *)p)[i] = v != 0; break;
    default: ((uint8_t *)p)[i] = (uint8_t)v; break;
    }
}

/* Integer arithmetic; false: division by zero. Wraps around, as integers of ONNX do. */
#define INTEGER2(name, value)                            \
    INV_HD bool name(int64_t a, int64_t b, int64_t *out) \
    {                                                    \
        *out = value;                                    \
        return true;                                     \
    }
/* clang-format off */
INTEGER2(inv_int_add, (int64_t)((uint64_t)a + (uint64_t)b))
INTEGER2(inv_int_sub, (int64_t)((uint64_t)a - (uint64_t)b))
INTEGER2(inv_int_mul, (int64_t)((uint64_t)a * (uint64_t)b))
INTEGER2(inv_int_max, a > b ? a : b)
INTEGER2(inv_int_min, a < b ? a : b)
/* clang-format on */
INV_HD bool inv_int_div(int64_t a, int64_t b, int64_t *out)
{
    *out = 0;
    if (b != 0) *out = b == -1 ? (int64_t)(0 - (uint64_t)a) : a / b;
    return b != 0;
}
INV_HD bool inv_int_fmod(int64_t a, int64_t b, int64_t *out)
{
    *out = b == 0 || b == -1 ? 0 : a % b;
    return b != 0;
}
INV_HD bool inv_int_pymod(int64_t a, int64_t b, int64_t *out)
{
    bool fine = inv_int_fmod(a, b, out);
    if (*out != 0 && (*out < 0) != (b < 0)) *out += b;
    return fine;
}
INV_HD bool inv_int_pow(int64_t a, int64_t b, int64_t *out)
{
    uint64_t r = 1, base = (uint64_t)a;
    *out = a == 1 ? 1 : a == -1 ? (b % 2 ? -1 : 1) : 0;
    if (b < 0) return true;
    for (; b; b >>= 1, base *= base) {
        if (b & 1) r *= base;
    }
    *out = (int64_t)r;
    return true;
}
/* clang-format off */
INTEGER2(inv_int_and, a & b)
INTEGER2(inv_int_or, a | b)
INTEGER2(inv_int_xor, a ^ b)
/* By more bits than there are, or by a negative number: only what comes in from the end is left. */
INTEGER2(inv_int_shl, b < 0 || b > 63 ? 0 : (int64_t)((uint64_t)a << b))
INTEGER2(inv_int_shr, b < 0 || b > 63 ? (a < 0 ? -1 : 0) : a >> b)
INTEGER2(inv_int_shr_logical, b < 0 || b > 63 ? 0 : (int64_t)((uint64_t)a >> b))
/* clang-format on */
/* The same for 64 bits without a sign: numbers of narrower types keep their value as int64. */
INV_HD bool inv_uint_div(int64_t a, int64_t b, int64_t *out)
{
    *out = b != 0 ? (int64_t)((uint64_t)a / (uint64_t)b) : 0;
    return b != 0;
}
INV_HD bool inv_uint_mod(int64_t a, int64_t b, int64_t *out)
{
    *out = b != 0 ? (int64_t)((uint64_t)a % (uint64_t)b) : 0;
    return b != 0;
}
INV_HD bool inv_uint_pow(int64_t a, int64_t b, int64_t *out)
{
    uint64_t r = 1, base = (uint64_t)a;
    for (uint64_t e = (uint64_t)b; e; e >>= 1, base *= base) {
        if (e & 1) r *= base;
    }
    *out = (int64_t)r;
    return true;
}
INTEGER2(inv_uint_max, (uint64_t)a > (uint64_t)b ? a : b)
INTEGER2(inv_uint_min, (uint64_t)a < (uint64_t)b ? a : b)
#undef INTEGER2
#define UNSIGNED2_OPS(X) X(div, div) X(fmod, mod) X(pymod, mod) X(pow, pow) X(max, max) X(min, min)
#define INTEGER2_OPS(X) \
    X(add) X(sub) X(mul) X(div) X(pow) X(max) X(min) X(fmod) X(pymod) X(and) X(or) X(xor) X(shl) X(shr) X(shr_logical)

/* Functions of one integer that exporters use. */
typedef enum inv_int1 { INV_INT_NEG, INV_INT_ABS, INV_INT_SIGN, INV_INT_RELU } inv_int1;
INV_HD int64_t inv_int1_apply(inv_int1 f, inv_dtype t, int64_t x)
{
    if (t == INV_U64 && f != INV_INT_NEG) return f == INV_INT_SIGN ? x != 0 : x;
    switch (f) {
    case INV_INT_NEG: return (int64_t)(0 - (uint64_t)x);
    case INV_INT_ABS: return x < 0 ? (int64_t)(0 - (uint64_t)x) : x;
    case INV_INT_SIGN: return x > 0 ? 1 : x < 0 ? -1 : 0;
    default: return x < 0 ? 0 : x;
    }
}

#endif
