/* SPDX-License-Identifier: Apache-2.0
 * The sort of ops/gpu/group_gpu.h: digit by digit (8 bits) from the lowest. Positions of a tile are counted by digit;
 * sums over all smaller digits, and over earlier tiles of the same one, say where a tile's positions go. */
#include "ops/gpu/group_gpu.h"

#include "ops/gpu/copy_gpu.h"
#include "ops/gpu/device.cuh"

INV_DEVICE int64_t digit_of(uint32_t key, int shift) { return (key >> shift) & 255; }

INV_KERNEL count_kernel(int64_t n, int64_t tiles, int shift, const uint32_t *key, uint32_t *table)
{
    INV_EACH(i, n) atomicAdd(&table[digit_of(key[i], shift) * tiles + i / INV_GROUP_TILE], 1u);
}

INV_KERNEL sums_kernel(int64_t n, int64_t stride, const uint32_t *table, uint32_t *sums)
{
    INV_EACH(c, (n + stride - 1) / stride)
    {
        uint32_t sum = 0;
        for (int64_t i = c * stride; i < n && i < (c + 1) * stride; i++) sum += table[i];
        sums[c] = sum;
    }
}

INV_KERNEL scan_kernel(int64_t n, int64_t stride, uint32_t *table, const uint32_t *sums)
{
    INV_EACH(c, (n + stride - 1) / stride)
    {
        uint32_t before = 0;
        for (int64_t b = 0; b < c; b++) before += sums[b];
        for (int64_t i = c * stride; i < n && i < (c + 1) * stride; i++) {
            const uint32_t here = table[i];
            table[i] = before;
            before += here;
        }
    }
}

/* at NULL: positions are 0, 1, 2, ... */
INV_KERNEL move_kernel(int64_t n, int64_t tiles, int shift, const uint32_t *key, const uint32_t *at,
                       const uint32_t *table, uint32_t *to_key, uint32_t *to_at)
{
    INV_EACH(i, n)
    {
        const int64_t tile = i / INV_GROUP_TILE, digit = digit_of(key[i], shift);
        uint32_t to = table[digit * tiles + tile];
        for (int64_t j = tile * INV_GROUP_TILE; j < i; j++) to += digit_of(key[j], shift) == digit;
        to_key[to] = key[i];
        to_at[to] = at ? at[i] : (uint32_t)i;
    }
}

extern "C" void INV_GPU_NAME(group)(const inv_gpu *gpu, const inv_groups *g)
{
    const int64_t tiles = (g->n + INV_GROUP_TILE - 1) / INV_GROUP_TILE, entries = tiles * 256,
                  stride = inv_group_stride(entries);
    const int passes = inv_group_passes(g->parts);
    for (int pass = 0; pass < passes && g->n > 0; pass++) {
        const bool back = (passes - pass) % 2 != 0; /* the last one ends in key and at */
        const uint32_t *key = back ? g->spare_key : g->key, *at = pass == 0 ? NULL : back ? g->spare_at : g->at;
        uint32_t *to_key = back ? g->key : g->spare_key, *to_at = back ? g->at : g->spare_at;
        const int shift = 8 * pass;
        INV_GPU_NAME(fill)(gpu, entries, sizeof *g->table, g->table, 0);
        inv_start(gpu, count_kernel, inv_blocks(g->n), INV_THREADS, g->n, tiles, shift, key, g->table);
        inv_start(gpu, sums_kernel, inv_blocks(stride), INV_THREADS, entries, stride, (const uint32_t *)g->table,
                  g->sums);
        inv_start(gpu, scan_kernel, inv_blocks(stride), INV_THREADS, entries, stride, g->table,
                  (const uint32_t *)g->sums);
        inv_start(gpu, move_kernel, inv_blocks(g->n), INV_THREADS, g->n, tiles, shift, key, at,
                  (const uint32_t *)g->table, to_key, to_at);
    }
}
