/* SPDX-License-Identifier: Apache-2.0
 * Counter-based random numbers: Philox 4x32-10 (Salmon, Moraes, Dror, Shaw: Parallel random numbers: as easy as 1, 2,
 * 3, SC 2011). The same key and counter give the same four words anywhere, so masks are computed again, not stored. */
#ifndef INV_OPS_GPU_PHILOX_H
#define INV_OPS_GPU_PHILOX_H

#include <stdint.h>

#include "ops/gpu/device_code.h"

INV_HD void inv_philox(const uint32_t counter[4], const uint32_t key[2], uint32_t out[4])
{
    uint32_t c0 = counter[0], c1 = counter[1], c2 = counter[2], c3 = counter[3], k0 = key[0], k1 = key[1];
    for (int round = 0; round < 10; round++) {
        uint64_t p0 = (uint64_t)0xD2511F53u * c0, p1 = (uint64_t)0xCD9E8D57u * c2;
        uint32_t n0 = (uint32_t)(p1 >> 32) ^ c1 ^ k0, n2 = (uint32_t)(p0 >> 32) ^ c3 ^ k1;
        c0 = n0;
        c1 = (uint32_t)p1;
        c2 = n2;
        c3 = (uint32_t)p0;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    out[0] = c0;
    out[1] = c1;
    out[2] = c2;
    out[3] = c3;
}

/* Mixes one more number into a 64-bit key (the finaliser of splitmix64; Steele, Lea, Flood 2014). */
INV_HD uint64_t inv_mix64(uint64_t h, uint64_t v)
{
    h += 0x9E3779B97F4A7C15u + v;
    h = (h ^ (h >> 30)) * 0xBF58476D1CE4E5B9u;
    h = (h ^ (h >> 27)) * 0x94D049BB133111EBu;
    return h ^ (h >> 31);
}

/* Where numbers of a tensor's first row are drawn: by which batch of the step they are keyed, and in which row of what
 * that key draws. Where axis 0 counts the samples of the batch, one or more rows each, a sample has the same numbers
 * however the rows of a step are split into batches and over ranks. */
typedef struct inv_draw_place {
    uint64_t micro, first;
} inv_draw_place;
INV_HD inv_draw_place inv_draw_place_of(uint64_t micro, uint64_t first_sample, int64_t batch, int64_t rows)
{
    inv_draw_place p = {micro, first_sample};
    if (batch > 0 && rows % batch == 0) {
        p.micro = 0;
        p.first = first_sample * (uint64_t)(rows / batch);
    }
    return p;
}

#endif
