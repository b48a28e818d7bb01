/* SPDX-License-Identifier: Apache-2.0
 * Positions in the order of the part that each one names, on the device: a stable sort by counting digits, so whatever
 * is added up along it (ops/gpu/group.cuh) is added in one order, without atomics on floats, in time linear in their
 * number. Gradients of gathering, and scattering with a reduction, are made of this. */
#ifndef INV_OPS_GPU_GROUP_GPU_H
#define INV_OPS_GPU_GROUP_GPU_H

#include "ops/gpu/device_code.h"
#include "ops/gpu/gpu.h"

#define INV_GROUP_CHUNK 32 /* positions that one thread adds up */
#define INV_GROUP_TILE 256 /* positions that are counted together */

/* `key` and `at` of sorted positions: key[p] rises; at[p] rises among equal ones. Keys are written to `unsorted` first:
 * 0..parts-1, or `parts` for a position that is to be left out. */
typedef struct inv_groups {
    int64_t n, parts;
    uint32_t *key, *at, *unsorted;
    uint32_t *spare_key, *spare_at, *table, *sums;
    void *partial; /* 8 bytes for each chunk and lane */
} inv_groups;

static inline int inv_group_passes(int64_t parts)
{
    int passes = 1;
    while (passes < 4 && parts >> (8 * passes)) passes++;
    return passes;
}

INV_HD int64_t inv_group_chunks(int64_t n) { return (n + INV_GROUP_CHUNK - 1) / INV_GROUP_CHUNK; }

/* About the square root of the table's length: scanned in two steps of as many entries. */
static inline int64_t inv_group_stride(int64_t entries)
{
    int64_t s = 1;
    while (s * s < entries) s *= 2;
    return s;
}

static inline int64_t inv_group_entries(int64_t n) { return (n + INV_GROUP_TILE - 1) / INV_GROUP_TILE * 256; }

/* `lanes`: results per part. */
static inline size_t inv_group_workspace(int64_t n, int64_t lanes)
{
    const int64_t entries = inv_group_entries(n);
    return (size_t)(inv_group_chunks(n) * lanes) * sizeof(double) +
           (size_t)(4 * n + entries + inv_group_stride(entries)) * sizeof(uint32_t);
}

/* Lays them out in scratch memory of that size. */
static inline void inv_groups_of(inv_groups *g, int64_t n, int64_t parts, int64_t lanes, void *ws)
{
    uint32_t *p = (uint32_t *)(void *)((double *)ws + inv_group_chunks(n) * lanes);
    g->n = n;
    g->parts = parts;
    g->partial = ws;
    g->key = p;
    g->at = p + n;
    g->spare_key = p + 2 * n;
    g->spare_at = p + 3 * n;
    g->table = p + 4 * n;
    g->sums = g->table + inv_group_entries(n);
    g->unsorted = inv_group_passes(parts) % 2 ? g->spare_key : g->key;
}

#ifdef __cplusplus
extern "C" {
#endif
/* From `unsorted` to `key` and `at`. */
INV_LAUNCHER(group, const inv_groups *g);
#ifdef __cplusplus
}
#endif

#endif
