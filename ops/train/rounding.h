/* SPDX-License-Identifier: Apache-2.0
 * Rounding up or down by chance, right in the mean, for the host and the device: what changes by less than a type can
 * tell would stay what it is if it were rounded to the nearest. The chance hangs on the seed, the step and the element
 * only, so a run that is resumed draws the same. */
#ifndef INV_OPS_TRAIN_ROUNDING_H
#define INV_OPS_TRAIN_ROUNDING_H

#include "ops/base/float_math.h"
#include "ops/gpu/gpu.h"

/* Mixes the bits of x: two multiplications between shifts, with the constants of Wellons' lowbias32. */
INV_HD uint32_t inv_mix32(uint32_t x)
{
    x = (x ^ x >> 16) * 0x7feb352du;
    x = (x ^ x >> 15) * 0x846ca68bu;
    return x ^ x >> 16;
}

/* What makes the chances of one step differ from those of others. */
INV_HD uint32_t inv_rounding_salt(uint64_t seed, uint64_t step)
{
    return inv_mix32((uint32_t)seed ^ inv_mix32((uint32_t)(seed >> 32) ^ inv_mix32((uint32_t)step)));
}

INV_HD float inv_from_bf16(uint16_t w) { return inv_float_of_bits((uint32_t)w << 16); }

/* Infinities and what is no number stay that. chance: random bits, of which 16 count. */
INV_HD uint16_t inv_to_bf16(float x, uint32_t chance)
{
    const uint32_t bits = inv_bits_of_float(x);
    const bool finite = (bits & 0x7f800000u) != 0x7f800000u;
    return (uint16_t)((finite ? bits + (chance & 0xffffu) : bits) >> 16);
}

#endif
