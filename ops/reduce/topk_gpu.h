/* SPDX-License-Identifier: Apache-2.0
 * The k first of a line of numbers: what host and device share. */
#ifndef INV_OPS_REDUCE_TOPK_GPU_H
#define INV_OPS_REDUCE_TOPK_GPU_H

#include <string.h>

#include "ops/gpu/integers.h"

/* x[rows, d, inner] -> [rows, k, inner], by falling (largest) or rising number; of equal ones the first or last. */
typedef struct inv_topk {
    int64_t rows, d, inner, k;
    inv_dtype t;
    bool largest, last;
} inv_topk;

/* Numbers as unsigned integers of the same size in the same order; equal numbers are equal, NaN is above all. */
INV_HD uint64_t inv_order_f32(float v)
{
    uint32_t bits;
    if (v != v) return UINT32_MAX;
    v = v == 0 ? 0 : v; /* -0 too */
    memcpy(&bits, &v, sizeof bits);
    return bits >> 31 ? (uint32_t)~bits : bits | 0x80000000u;
}
INV_HD uint64_t inv_order_f64(double v)
{
    uint64_t bits;
    if (v != v) return UINT64_MAX;
    v = v == 0 ? 0 : v;
    memcpy(&bits, &v, sizeof bits);
    return bits >> 63 ? ~bits : bits | (uint64_t)1 << 63;
}

/* The smaller, the earlier in the result. */
INV_HD uint64_t inv_topk_key(const inv_topk *p, const void *x, int64_t i)
{
    uint64_t key;
    const bool wide = p->t != INV_F32;
    if (p->t == INV_F32) key = inv_order_f32(((const float *)x)[i]);
    else if (p->t == INV_F64) key = inv_order_f64(((const double *)x)[i]);
    else key = (uint64_t)inv_int_at(x, p->t, i) ^ (p->t == INV_U64 ? 0 : (uint64_t)1 << 63);
    if (p->largest) key = ~key;
    return wide ? key : key & UINT32_MAX;
}

/* Whether element i of a line comes before element j. */
INV_HD bool inv_topk_before(const inv_topk *p, uint64_t key_i, int64_t i, uint64_t key_j, int64_t j)
{
    if (key_i != key_j) return key_i < key_j;
    return p->last ? i > j : i < j;
}

#ifdef __cplusplus
extern "C" {
#endif
/* ws: rows k inner int64. */
INV_LAUNCHER(topk, const inv_topk *p, const void *x, void *values, int64_t *indices, int64_t *ws);
#ifdef __cplusplus
}
#endif

#endif
