/* SPDX-License-Identifier: Apache-2.0
 * Random numbers of ops/signal/random.c, of four words of Philox each; host and device give the same bits. log, sin and
 * cos are computed here with additions, multiplications and divisions of float64 alone, since libraries differ. */
#ifndef INV_OPS_SIGNAL_RANDOM_H
#define INV_OPS_SIGNAL_RANDOM_H

#include <math.h>
#include <string.h>

#include "ops/gpu/gpu.h"
#include "ops/gpu/philox.h"

typedef enum inv_draw { INV_DRAW_UNIFORM, INV_DRAW_NORMAL } inv_draw;

/* What does not change from step to step. */
typedef struct inv_random {
    uint64_t key; /* a hash of the output's name, or of the attribute `seed` */
    bool seeded;  /* the step's seed does not count */
    bool samples; /* axis 0 are samples of the batch: numbered from the step's first one */
    inv_draw draw;
    double a, b; /* low and high, mean and scale */
    int64_t rows, each;
} inv_random;

INV_HD void inv_random_words(const inv_random *r, uint64_t seed, uint64_t step, uint64_t micro, uint64_t row,
                             uint64_t quad, uint32_t word[4])
{
    const uint64_t key = inv_mix64(inv_mix64(inv_mix64(r->seeded ? 0 : seed, step), micro), r->key);
    const uint32_t keys[2] = {(uint32_t)key, (uint32_t)(key >> 32)};
    const uint32_t counter[4] = {(uint32_t)row, (uint32_t)(row >> 32), (uint32_t)quad, (uint32_t)(quad >> 32)};
    inv_philox(counter, keys, word);
}

/* 24 bits in [0, 1): the same number in float32 and float64. */
INV_HD double inv_random_unit(uint32_t word) { return (double)(word >> 8) * 0x1p-24; }

/* Natural logarithm of a positive normal number x = 2^e m, m in [sqrt 1/2, sqrt 2]: ln m = 2 artanh((m - 1) / (m + 1)),
 * whose argument is below 0.172, so eleven terms of the series are exact to float64. */
INV_HD double inv_random_log(double x)
{
    uint64_t bits;
    memcpy(&bits, &x, sizeof bits);
    int e = (int)(bits >> 52) - 1023;
    bits = (bits & 0xFFFFFFFFFFFFFu) | 0x3FF0000000000000u;
    memcpy(&x, &bits, sizeof x);
    if (x > 1.4142135623730951) {
        x = x * 0.5;
        e++;
    }
    const double t = (x - 1) / (x + 1), s = t * t;
    double sum = 0;
    for (int k = 21; k >= 1; k -= 2) sum = sum * s + 1.0 / k;
    return e * 0.6931471805599453 + 2 * (t * sum);
}

/* cos and sin of 2 pi u, 0 <= u < 1: quarter turns apart, |angle| <= pi / 4, and Taylor series up to the 17th power. */
INV_HD void inv_random_turn(double u, double *c, double *s)
{
    const int quarter = (int)(u * 4 + 0.5);
    const double x = (u - quarter * 0.25) * 6.283185307179586, q = x * x;
    double cosine = 1, sine = 1;
    for (int k = 16; k >= 2; k -= 2) cosine = 1 - cosine * q / (k * (k - 1));
    for (int k = 17; k >= 3; k -= 2) sine = 1 - sine * q / (k * (k - 1));
    sine = sine * x;
    *c = quarter == 1 ? -sine : quarter == 2 ? -cosine : quarter == 3 ? sine : cosine;
    *s = quarter == 1 ? cosine : quarter == 2 ? -sine : quarter == 3 ? -cosine : sine;
}

/* Four numbers of the distribution; normal ones by Box and Muller (1958). */
INV_HD void inv_random_four(const inv_random *r, const uint32_t word[4], double out[4])
{
    for (int i = 0; i < 4; i += 2) {
        if (r->draw == INV_DRAW_UNIFORM) {
            out[i] = r->a + (r->b - r->a) * inv_random_unit(word[i]);
            out[i + 1] = r->a + (r->b - r->a) * inv_random_unit(word[i + 1]);
            continue;
        }
        double c, s;
        const double radius = sqrt(-2 * inv_random_log(((double)word[i] + 0.5) * 0x1p-32));
        inv_random_turn(inv_random_unit(word[i + 1]), &c, &s);
        out[i] = r->a + r->b * (radius * c);
        out[i + 1] = r->a + r->b * (radius * s);
    }
}

/* Number `e` of a row: class k with probability softmax(x)_k, by the largest x_k - log(-log u_k) (Gumbel 1954). */
INV_HD int64_t inv_random_category(const inv_random *r, uint64_t seed, uint64_t step, uint64_t micro, uint64_t row,
                                   int64_t e, int64_t classes, inv_dtype t, const void *x, int64_t from)
{
    int64_t best = 0;
    double top = 0;
    uint32_t word[4] = {0, 0, 0, 0};
    for (int64_t k = 0; k < classes; k++) {
        if (k % 4 == 0) inv_random_words(r, seed, step, micro, row, (uint64_t)(e * ((classes + 3) / 4) + k / 4), word);
        const double u = ((double)word[k % 4] + 0.5) * 0x1p-32;
        const double v = (t == INV_F64 ? ((const double *)x)[from + k] : (double)((const float *)x)[from + k]) -
                         inv_random_log(-inv_random_log(u));
        if (k == 0 || v > top) {
            top = v;
            best = k;
        }
    }
    return best;
}

#ifdef __cplusplus
extern "C" {
#endif
/* rows * each numbers; float32 or float64. */
INV_LAUNCHER(random, inv_dtype t, const inv_random *r, void *out);
/* each numbers of 0 .. classes - 1 for each of `rows` rows of unnormalized log-probabilities. */
INV_LAUNCHER(categorical, inv_dtype t, const inv_random *r, int64_t classes, int64_t *out, const void *x);
#ifdef __cplusplus
}
#endif

#endif
