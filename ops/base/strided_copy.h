/* SPDX-License-Identifier: Apache-2.0
 * Copying between strided arrays of any element type: what all movement operators are made of. */
#ifndef INV_OPS_BASE_STRIDED_COPY_H
#define INV_OPS_BASE_STRIDED_COPY_H

#include "ops/base/util.h"
#include "ops/gpu/copy_gpu.h"

/* One row of n elements; steps in elements. */
static inline void inv_copy_row(char *dst, int64_t sd, const char *src, int64_t ss, int64_t n, size_t esize)
{
    if (sd == 1 && ss == 1) {
        memcpy(dst, src, (size_t)n * esize);
        return;
    }
#define INV_COPY_AS(T)                                         \
    do {                                                       \
        T *d = (T *)(void *)dst;                               \
        const T *s = (const T *)(const void *)src;             \
        for (int64_t i = 0; i < n; i++) d[i * sd] = s[i * ss]; \
    } while (0)
    switch (esize) {
    case 8: INV_COPY_AS(uint64_t); break;
    case 4: INV_COPY_AS(uint32_t); break;
    case 2: INV_COPY_AS(uint16_t); break;
    case 1: INV_COPY_AS(uint8_t); break;
    default:
        for (int64_t i = 0; i < n; i++) memcpy(dst + i * sd * (int64_t)esize, src + i * ss * (int64_t)esize, esize);
    }
#undef INV_COPY_AS
}

/* Operand 0 walks with strides sd, operand 1 with ss. */
static inline void inv_copy_loop(inv_loop *l, const int64_t *sd, const int64_t *ss, const inv_shape *shape)
{
    int64_t stride[INV_LOOP_OPS][INV_MAX_RANK] = {{0}};
    for (int i = 0; i < shape->rank; i++) {
        stride[0][i] = sd[i];
        stride[1][i] = ss[i];
    }
    inv_loop_strided(l, shape, 2, (const int64_t(*)[INV_MAX_RANK])stride);
}

/* dst[i . sd] = src[i . ss] for every index i of `shape`, where the call runs; the base pointers are at index 0. */
static inline inv_status inv_copy_strided(const inv_call *c, void *dst, const int64_t *sd, const void *src,
                                          const int64_t *ss, const inv_shape *shape, size_t esize)
{
    inv_loop l;
    if (inv_shape_nelem(shape) == 0) return INV_OK;
    inv_copy_loop(&l, sd, ss, shape);
    if (c->gpu) {
        if (esize == 0 || esize > 16) return INV_E_UNSUPPORTED_TYPE;
        INV_GPU(c->gpu, copy, &l, esize, dst, src);
        return INV_OK;
    }
    const int64_t e = (int64_t)esize;
#pragma omp parallel for schedule(static) if (l.rows * l.inner > INV_OMP_MIN)
    for (int64_t r = 0; r < l.rows; r++) {
        int64_t at[INV_LOOP_OPS];
        inv_loop_row(&l, r, at);
        inv_copy_row((char *)dst + at[0] * e, l.step[0], (const char *)src + at[1] * e, l.step[1], l.inner, esize);
    }
    return INV_OK;
}

/* Rows of nbytes each that lie dst_row and src_row bytes apart, on the device. */
static inline void inv_copy_rows_gpu(const inv_gpu *gpu, void *dst, size_t dst_row, const void *src, size_t src_row,
                                     size_t nbytes, int64_t rows)
{
    const int64_t dim[2] = {rows, (int64_t)nbytes}, sd[2] = {(int64_t)dst_row, 1}, ss[2] = {(int64_t)src_row, 1};
    const inv_shape shape = inv_shape_of(2, dim);
    inv_loop l;
    if (rows == 0 || nbytes == 0) return;
    inv_copy_loop(&l, sd, ss, &shape);
    INV_GPU(gpu, copy, &l, 1, dst, src);
}

/* --- results that are added onto an operand of their shape, input i, if it is given --- */

static inline inv_status inv_need_sum(const inv_graph *g, const inv_node *n, uint32_t i)
{
    const inv_value *y = inv_val(g, n->out[0]), *sum = inv_val(g, n->in[i]);
    if (sum->dtype == y->dtype && inv_shape_equal(&sum->shape, &y->shape)) return INV_OK;
    return inv_node_fail(g, n, INV_E_SHAPE, "input %u, which the result is added to, is not like it", i);
}

static inline bool inv_has_sum(const inv_call *c, uint32_t i) { return i < c->nin && c->in[i].data; }

/* Output 0 becomes that operand, unless it is in its place. */
static inline inv_status inv_begin_sum(const inv_call *c, uint32_t i)
{
    int64_t stride[INV_MAX_RANK];
    if (!inv_has_sum(c, i) || c->in[i].data == c->out[0].data) return INV_OK;
    inv_strides(&c->out[0].shape, stride);
    return inv_copy_strided(c, c->out[0].data, stride, c->in[i].data, stride, &c->out[0].shape,
                            inv_dtype_size(c->out[0].dtype));
}

#endif
