/* SPDX-License-Identifier: Apache-2.0
 * Moments in 8 bits, for the host and the device: codes of blocks that each have a scale of their own, as Dettmers et
 * al. 2022 (arXiv 2110.02861) have them. A code is a small floating-point number, times the scale: 3 bits of mantissa,
 * and 4 bits of exponent beside a sign for first moments, 5 for second ones, which spread over more orders of magnitude
 * and are never negative. The largest value of a block gets the largest code.
 *
 * A moment changes by a thousandth of itself in a step, a code by an eighth of it at most, so values are rounded by
 * chance (rounding.h). */
#ifndef INV_OPS_TRAIN_ADAM8_H
#define INV_OPS_TRAIN_ADAM8_H

#include "ops/train/rounding.h"

enum {
    INV_BLOCK8 = 256,     /* elements that share a scale */
    INV_LEAST8 = 4096,    /* parameters of fewer elements keep their moments in the type of the parameter */
    INV_BIAS_FIRST = 112, /* float32's exponent field less a code's, of first and of second moments */
    INV_BIAS_SECOND = 96,
    INV_MOST_FIRST = 127, /* the largest code */
    INV_MOST_SECOND = 255
};
#define INV_TOP8 1.875f /* what the largest code stands for: all bits of the mantissa, exponent 0 */

/* Codes below 8 are multiples of an eighth of the least number that has a leading 1. */
INV_HD float inv_decode8(uint32_t code, uint32_t bias)
{
    const float small = (float)code * inv_float_of_bits((bias - 2) << 23);
    const float other = inv_float_of_bits((code + (bias << 3)) << 20);
    return code < 8 ? small : other;
}

/* x >= 0, about INV_TOP8 at most; chance: 20 random bits. */
INV_HD uint32_t inv_encode8(float x, uint32_t bias, uint32_t most, uint32_t chance)
{
    const float low = x < inv_float_of_bits((bias + 1) << 23) ? x : 0;
    const uint32_t small = (uint32_t)(low * inv_float_of_bits((256 - bias) << 23) + (float)chance * 0x1p-20f);
    const uint32_t other = ((inv_bits_of_float(x) + chance) >> 20) - (bias << 3);
    const uint32_t code = low > 0 || !(x > 0) ? small : other;
    return code < most ? code : most;
}

/* First moments have a sign. */
INV_HD float inv_decode_first(uint8_t code, float scale)
{
    const float x = inv_decode8(code & INV_MOST_FIRST, INV_BIAS_FIRST) * scale;
    return code > INV_MOST_FIRST ? -x : x;
}

INV_HD float inv_decode_second(uint8_t code, float scale) { return inv_decode8(code, INV_BIAS_SECOND) * scale; }

/* What values are multiplied by before they become codes: 0 where all of the block is 0, or next to it. */
INV_HD float inv_over8(float scale) { return scale > 1e-37f ? 1 / scale : 0; }

/* over: inv_over8 of the block's scale; chance: random bits. */
INV_HD uint8_t inv_encode_first(float m, float over, uint32_t chance)
{
    const uint32_t code = inv_encode8((m < 0 ? -m : m) * over, INV_BIAS_FIRST, INV_MOST_FIRST, chance & 0xfffff);
    return (uint8_t)(m < 0 ? code + INV_MOST_FIRST + 1 : code);
}

/* A second moment above 0 never becomes 0: the step is divided by its root. */
INV_HD uint8_t inv_encode_second(float v, float over, uint32_t chance)
{
    const uint32_t code = inv_encode8(v * over, INV_BIAS_SECOND, INV_MOST_SECOND, chance & 0xfffff);
    return (uint8_t)(code == 0 && v > 0 ? 1 : code);
}

#endif
