/* SPDX-License-Identifier: Apache-2.0
 * Transcendental functions for loops that the compiler turns into vector code: no branches, no calls, no tables. Errors
 * are below 3 units in the last place. NaN goes through. For float64 they are libm's.
 *
 * e^x = 2^n e^r with n the integer nearest to x / ln 2 and r = x - n ln 2, |r| <= ln 2 / 2, in two steps: the first
 * part of ln 2 (355/512) has 9 bits, so its multiples by n are exact. e^r is its Taylor series up to r^7, whose first
 * term left out is below a tenth of a unit in the last place. The polynomials of erf are near-minimax fits of our own
 * (iteratively reweighted least squares in 40 digits), with errors of 1.2e-9 and 1.1e-9 before rounding. */
#ifndef INV_OPS_BASE_FLOAT_MATH_H
#define INV_OPS_BASE_FLOAT_MATH_H

#include <math.h>
#include <stdint.h>
#include <string.h>

#include "ops/gpu/device_code.h"

INV_HD float inv_float_of_bits(uint32_t bits)
{
    float f;
    memcpy(&f, &bits, sizeof f);
    return f;
}

INV_HD uint32_t inv_bits_of_float(float f)
{
    uint32_t bits;
    memcpy(&bits, &f, sizeof bits);
    return bits;
}

static inline float inv_two_to(int32_t n) { return inv_float_of_bits((uint32_t)(n + 127) << 23); }

/* n, and e^r - 1. Adding 1.5 * 2^23 rounds to an integer, which then lies in the low bits. */
static inline float inv_reduced_expm1(float x, int32_t *n)
{
    const float shifted = x * 1.44269504f + 12582912.0f, k = shifted - 12582912.0f;
    const float r = (x - k * 0.693359375f) + k * 2.12194440e-4f;
    float p = 1.0f / 5040;
    p = p * r + 1.0f / 720;
    p = p * r + 1.0f / 120;
    p = p * r + 1.0f / 24;
    p = p * r + 1.0f / 6;
    p = p * r + 0.5f;
    *n = (int32_t)(inv_bits_of_float(shifted) - 0x4B400000u);
    return r + r * r * p;
}

static inline float inv_exp_f32(float x)
{
    int32_t n;
    x = x > 89 ? 89 : x;
    x = x < -104 ? -104 : x;
    const float p = inv_reduced_expm1(x, &n);
    return (p + 1) * inv_two_to(n >> 1) * inv_two_to(n - (n >> 1));
}

static inline float inv_expm1_f32(float x)
{
    int32_t n;
    x = x > 89 ? 89 : x;
    x = x < -20 ? -20 : x;
    const float p = inv_reduced_expm1(x, &n), half = inv_two_to(n - 1);
    return (half * p + (half - 0.5f)) * 2;
}

static inline float inv_with_sign_of(float y, float x)
{
    return inv_float_of_bits(inv_bits_of_float(y) | (inv_bits_of_float(x) & 0x80000000u));
}

/* tanh |x| = (e^(2|x|) - 1) / (e^(2|x|) + 1); from 9.1 on it is 1. */
static inline float inv_tanh_f32(float x)
{
    const float a = fabsf(x), e = inv_expm1_f32(2 * (a > 9.1f ? 9.1f : a));
    return inv_with_sign_of(e / (e + 2), x);
}

/* erf x = x P(x^2) below 1, 1 - e^-Q(|x|) above, Q being the logarithm of 1 / erfc; from 4 on it is 1. What must wait
 * for Q is the longest chain of operations, so Q is summed up by pairs; e^-Q is not so small that two factors of two
 * would be needed. */
static inline float inv_erf_f32(float x)
{
    const float a = fabsf(x), t = a > 4 ? 4 : a, u = x * x, w = t * t;
    float p = 7.853871177e-5f;
    p = p * u - 0.0008010194827f;
    p = p * u + 0.005188327668f;
    p = p * u - 0.02685381189f;
    p = p * u + 0.1128358515f;
    p = p * u - 0.3761262582f;
    p = p * u + 1.128379166f;
    const float q = ((0.0003542238256f + 1.127037927f * t) + (0.6382292892f + 0.1030341297f * t) * w) +
                    ((-0.02180371593f + 0.00293919271f * t) + -0.0001855301723f * w) * (w * w);
    int32_t n;
    const float e = inv_reduced_expm1(-q, &n);
    const float large = inv_with_sign_of(1 - (e + 1) * inv_two_to(n), x);
    return a < 1 ? x * p : large;
}

/* e^x for x <= 0 in float64 by the same method, up to r^13; ln 2 in parts of 33 and 53 bits. Not below e^-708. */
static inline double inv_exp_down(double x)
{
    static const double c[] = {1.0 / 479001600, 1.0 / 39916800, 1.0 / 3628800, 1.0 / 362880, 1.0 / 40320, 1.0 / 5040,
                               1.0 / 720,       1.0 / 120,      1.0 / 24,      1.0 / 6,      0.5};
    x = x < -708 ? -708 : x;
    const double shifted = x * 1.4426950408889634 + 6755399441055744.0, k = shifted - 6755399441055744.0;
    const double r = (x - k * 6.93147180369123816490e-01) - k * 1.90821492927058770002e-10;
    double p = 1.0 / 6227020800, two;
    uint64_t bits;
    for (int i = 0; i < 11; i++) p = p * r + c[i];
    memcpy(&bits, &shifted, sizeof bits);
    bits = (bits + 1023) << 52;
    memcpy(&two, &bits, sizeof two);
    return (1 + (r + r * r * p)) * two;
}

static inline double inv_exp_f64(double x) { return exp(x); }
static inline double inv_expm1_f64(double x) { return expm1(x); }
static inline double inv_tanh_f64(double x) { return tanh(x); }
static inline double inv_erf_f64(double x) { return erf(x); }

#endif
