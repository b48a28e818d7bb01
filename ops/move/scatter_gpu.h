/* SPDX-License-Identifier: Apache-2.0
 * Parts of a tensor by tuples of indices on the device (scatter.cu), and what host and device share. */
#ifndef INV_OPS_MOVE_SCATTER_GPU_H
#define INV_OPS_MOVE_SCATTER_GPU_H

#include "core/base/shape.h"
#include "ops/gpu/device_code.h"
#include "ops/gpu/group_gpu.h"

/* What is done with parts that are named more than once. */
typedef enum inv_joining { INV_JOIN_LAST, INV_JOIN_ADD, INV_JOIN_MUL, INV_JOIN_MAX, INV_JOIN_MIN } inv_joining;

/* Tuple i of `count` names a part (`block` elements) of data: among the parts of its batch, by one index per axis. Or,
 * with `along`, index i names the element of data at its own place, but for one axis. */
typedef struct inv_places {
    int64_t count, block;
    int64_t batch_tuples, batch_parts; /* per batch; all of them if there are no batches */
    int64_t parts;                     /* of data, all batches */
    int q;                             /* indices in a tuple */
    int64_t dim[INV_MAX_RANK];         /* extents of the axes they are of */
    int64_t along;                     /* elements between neighbours along the axis of dim[0]; 0: tuples */
    int rank;                          /* of the indices, and the strides of data, that of the axis 0 */
    int64_t shape[INV_MAX_RANK], stride[INV_MAX_RANK];
} inv_places;

/* The part that tuple i of int64 indices names, or -1 where one is outside. Negative ones count from the end. */
INV_HD int64_t inv_file_place(const inv_places *p, const int64_t *index, int64_t i)
{
    int64_t at = 0;
    if (p->along) {
        const int64_t k = index[i] < 0 ? index[i] + p->dim[0] : index[i];
        if (k < 0 || k >= p->dim[0]) return -1;
        for (int a = p->rank - 1; a > 0; a--) {
            const int64_t q = i / p->shape[a];
            at += (i - q * p->shape[a]) * p->stride[a];
            i = q;
        }
        return at + i * p->stride[0] + k * p->along;
    }
    for (int a = 0; a < p->q; a++) {
        int64_t k = index[i * p->q + a];
        if (k < 0) k += p->dim[a];
        if (k < 0 || k >= p->dim[a]) return -1;
        at = at * p->dim[a] + k;
    }
    return i / p->batch_tuples * p->batch_parts + at;
}

/* Scratch memory of scatter and gather_last: an entry per part of data; and of scatter_join. */
static inline size_t inv_places_workspace(const inv_places *p) { return (size_t)p->parts * sizeof(uint32_t); }
static inline size_t inv_join_workspace(const inv_places *p) { return inv_group_workspace(p->count, p->block); }

#ifdef __cplusplus
extern "C" {
#endif
/* y's parts from u; elements of 1, 2, 4, 8 or 16 bytes. Of tuples that name the same part the last one counts. u NULL:
 * zeros. */
INV_LAUNCHER(scatter, const inv_places *p, size_t esize, void *y, const int64_t *index, const void *u, uint32_t *ws);
/* u's parts are joined to y's. float32, float64, int32 or int64. */
INV_LAUNCHER(scatter_join, const inv_places *p, inv_joining how, inv_dtype t, void *y, const int64_t *index,
             const void *u, void *ws);
/* y's parts are those of x. ws given: zeros for all but the last tuple of a part. Bytes of ones where an index is
 * outside: NaN, or -1. */
INV_LAUNCHER(gather_places, const inv_places *p, size_t esize, void *y, const void *x, const int64_t *index,
             uint32_t *ws);
#ifdef __cplusplus
}
#endif

#endif
