/* SPDX-License-Identifier: Apache-2.0
 * Chance for searches: the same in every run. */
#ifndef INV_CORE_CHANCE_H
#define INV_CORE_CHANCE_H

#include <stdint.h>

/* A state to begin with. */
#define INV_DICE UINT64_C(88172645463325252)

/* Draws a number from [0, 1) (xorshift64, Marsaglia 2003). */
static inline double inv_chance(uint64_t *dice)
{
    *dice ^= *dice << 13, *dice ^= *dice >> 7, *dice ^= *dice << 17;
    return (double)(*dice >> 11) * 0x1p-53;
}

#endif
