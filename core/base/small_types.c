/* SPDX-License-Identifier: Apache-2.0
 * Element types of 8 bits and fewer, as files hold them: packed, the first element in the low bits. Sources: the ONNX
 * specification's pages on float8, 4-bit and 2-bit types; OCP 8-bit floating point and microscaling formats. */
#include <math.h>

#include "core/base/shape.h"

typedef struct format {
    uint8_t bits, mantissa;
    int8_t bias;
    bool is_float, is_signed, unsigned_zero; /* unsigned_zero: the pattern of -0 is NaN */
} format;

static const format formats[] = {
    {8, 3, 7, true, true, false},    /* float8e4m3fn */
    {8, 3, 8, true, true, true},     /* float8e4m3fnuz */
    {8, 2, 15, true, true, false},   /* float8e5m2 */
    {8, 2, 16, true, true, true},    /* float8e5m2fnuz */
    {4, 0, 0, false, false, false},  /* uint4 */
    {4, 0, 0, false, true, false},   /* int4 */
    {4, 1, 1, true, true, false},    /* float4e2m1 */
    {8, 0, 127, true, false, false}, /* float8e8m0 */
    {2, 0, 0, false, false, false},  /* uint2 */
    {2, 0, 0, false, true, false},   /* int2 */
    {6, 3, 1, true, true, false},    /* float6e2m3 */
    {6, 2, 3, true, true, false},    /* float6e3m2 */
};

static const format *format_of(inv_dtype t)
{
    const int64_t k = (int64_t)t - INV_F8E4M3FN;
    return k >= 0 && k < (int64_t)(sizeof formats / sizeof *formats) ? &formats[k] : NULL;
}

unsigned inv_dtype_bits(inv_dtype t)
{
    const format *f = format_of(t);
    return f ? f->bits : 0;
}

inv_dtype inv_dtype_carrier(inv_dtype t, inv_dtype real)
{
    const format *f = format_of(t);
    if (!f) return inv_dtype_is_float(t) ? real : t;
    return f->is_float ? real : f->is_signed ? INV_I8 : INV_U8;
}

/* Patterns that are no numbers: those that IEEE 754 would have (e5m2), all ones (e4m3fn, e8m0), -0 (the uz kinds). */
static bool is_special(const format *f, inv_dtype t, unsigned v, double *out)
{
    const unsigned magnitude = v & 0x7f;
    *out = NAN;
    if (f->unsigned_zero) return v == 0x80;
    if ((int)t == INV_F8E4M3FN) return magnitude == 0x7f;
    if ((int)t == INV_F8E8M0) return v == 0xff;
    if ((int)t != INV_F8E5M2 || magnitude < 0x7c) return false;
    if (magnitude == 0x7c) *out = v & 0x80 ? -INFINITY : INFINITY;
    return true;
}

double inv_small_elem(const void *data, inv_dtype t, size_t i)
{
    const format *f = format_of(t);
    if (!f) return 0;
    const uint8_t *at = (const uint8_t *)data + i / 8 * f->bits + i % 8 * f->bits / 8;
    const unsigned shift = i % 8 * f->bits % 8,
                   above = shift + f->bits > 8 ? at[1] : 0; /* 6 bits may lie in two bytes */
    const unsigned v = (*at | above << 8) >> shift & ((1u << f->bits) - 1);
    const unsigned sign = 1u << (f->bits - 1);
    double special;
    if (!f->is_float) return f->is_signed && v & sign ? (double)v - (double)(2 * sign) : (double)v;
    if (is_special(f, t, v, &special)) return special;
    if (!f->is_signed) return ldexp(1, (int)v - f->bias);
    const int exponent = (int)((v & (sign - 1)) >> f->mantissa), one = 1 << f->mantissa;
    const int fraction = (int)v & (one - 1);
    const double x =
        exponent ? ldexp(fraction + one, exponent - f->bias - f->mantissa) : ldexp(fraction, 1 - f->bias - f->mantissa);
    return v & sign ? -x : x;
}
