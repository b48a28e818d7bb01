/* SPDX-License-Identifier: Apache-2.0
 * What the operator families share: looking at a node's operands, the usual infer functions, axes and shapes as
 * attributes, strides, broadcasting loops, flops, kinds of work. */
#ifndef INV_OPS_BASE_UTIL_H
#define INV_OPS_BASE_UTIL_H

#include <math.h>
#include <string.h>

#include "core/graph/op.h"
#include "ops/gpu/gpu.h"
#include "ops/gpu/loop.h"

#define INV_IR "ai.invonnx.ir"
/* Elements from which on a loop is worth threads: waking a team costs some ten microseconds of each of its processors.
 * STREAM: where an element takes a fraction of a nanosecond. */
#define INV_OMP_MIN 65536
#define INV_OMP_STREAM (4 * INV_OMP_MIN)

/* --- operands of a node --- */
static inline bool inv_has_in(const inv_node *n, uint32_t i) { return i < n->nin && n->in[i] != INV_NONE; }
static inline bool inv_has_out(const inv_node *n, uint32_t i) { return i < n->nout && n->out[i] != INV_NONE; }
static inline const inv_shape *inv_in_shape(const inv_graph *g, const inv_node *n, uint32_t i)
{
    return &inv_val(g, n->in[i])->shape;
}
static inline inv_dtype inv_in_dtype(const inv_graph *g, const inv_node *n, uint32_t i)
{
    return inv_val(g, n->in[i])->dtype;
}
static inline const inv_shape *inv_shape_of_value(const inv_graph *g, inv_id v) { return &inv_val(g, v)->shape; }

/* Sets type and shape of output i; nothing if that output is not wanted. */
static inline void inv_set_out(inv_graph *g, const inv_node *n, uint32_t i, inv_dtype t, const inv_shape *s)
{
    if (!inv_has_out(n, i)) return;
    inv_value *v = inv_val(g, n->out[i]);
    v->dtype = t;
    v->shape = *s;
}

/* What kernels over REAL take. */
static inline bool inv_is_real(inv_dtype t) { return t == INV_F32 || t == INV_F64; }

/* Input i is of such a type. */
static inline inv_status inv_need_real(const inv_graph *g, const inv_node *n, uint32_t i)
{
    inv_dtype t = inv_in_dtype(g, n, i);
    if (inv_is_real(t)) return INV_OK;
    return inv_node_fail(g, n, INV_E_UNSUPPORTED_TYPE, "input %u is %s; it must be float or double", i,
                         inv_dtype_name(t));
}

/* Inputs 0..nin-1 are all of one type. */
static inline inv_status inv_need_same_type(const inv_graph *g, const inv_node *n, uint32_t nin)
{
    for (uint32_t i = 1; i < nin; i++) {
        if (inv_has_in(n, i) && inv_in_dtype(g, n, i) != inv_in_dtype(g, n, 0))
            return inv_node_fail(g, n, INV_E_UNSUPPORTED_TYPE, "inputs 0 and %u are %s and %s; they must be equal", i,
                                 inv_dtype_name(inv_in_dtype(g, n, 0)), inv_dtype_name(inv_in_dtype(g, n, i)));
    }
    return INV_OK;
}

/* Input i, where it is there, is a number of type double for each of `n_of` ranks or batches. */
static inline inv_status inv_need_weights(const inv_graph *g, const inv_node *n, uint32_t i, int64_t n_of)
{
    if (!inv_has_in(n, i)) return INV_OK;
    if (inv_in_dtype(g, n, i) == INV_F64 && inv_shape_nelem(inv_in_shape(g, n, i)) == n_of) return INV_OK;
    return inv_node_fail(g, n, INV_E_SHAPE, "input %u is not %lld numbers of type double", i, (long long)n_of);
}

/* Those are of one type, which is real. */
static inline inv_status inv_need_reals(const inv_graph *g, const inv_node *n, uint32_t nin)
{
    INV_TRY(inv_need_real(g, n, 0));
    return inv_need_same_type(g, n, nin);
}

/* The result is small enough to have a size in bytes. */
static inline inv_status inv_need_size(const inv_graph *g, const inv_node *n, const inv_shape *s)
{
    size_t nbytes;
    if (inv_shape_nbytes(s, INV_F64, &nbytes)) return INV_OK;
    return inv_node_fail(g, n, INV_E_SHAPE, "the result is larger than memory can be");
}

/* What a kernel returns that has found an index outside of its axis. */
static inline inv_status inv_index_outside(const inv_call *c, int64_t index, int64_t extent)
{
    if (c->outside) *c->outside = (inv_outside){index, extent};
    return INV_E_NUMERIC;
}

/* --- infer functions --- */
/* Output 0 like input 0. */
static inline inv_status inv_infer_same(inv_graph *g, inv_node *n)
{
    inv_set_out(g, n, 0, inv_in_dtype(g, n, 0), inv_in_shape(g, n, 0));
    return INV_OK;
}

static inline bool inv_is_stored(const inv_graph *g, inv_id v)
{
    return inv_val(g, v)->role == INV_ROLE_CONST || inv_val(g, v)->role == INV_ROLE_PARAM;
}

/* While sizes are looked for (inv_graph.once_from): the first axis, from the last, that has one entry in what is
 * computed and several in what is stored, such as positions; what came out of a size that is too small looks so. */
static inline bool inv_repeats(const inv_graph *g, inv_id source, int check, const inv_shape *a, const inv_shape *b,
                               bool b_is_stored)
{
    for (int i = 1; i <= a->rank && i <= b->rank; i++) {
        const int64_t got = a->dim[a->rank - i], wanted = b->dim[b->rank - i];
        const int64_t computed = b_is_stored ? got : wanted, stored = b_is_stored ? wanted : got;
        if (computed == stored || stored == 1) continue;
        if (computed == 1) g->ctx->misfit = (inv_misfit){check + i - 1, got, wanted, true, source};
        return computed == 1;
    }
    return false;
}

/* The shape that all given inputs broadcast to. */
static inline inv_status inv_broadcast_all(const inv_graph *g, const inv_node *n, inv_shape *out)
{
    *out = *inv_in_shape(g, n, 0);
    const bool once = g->fold && g->once_from && g->lowered >= g->once_from &&
                      !(g->once_but && inv_ids_have(g->once_but->at, g->once_but->n, n->source));
    bool constant = inv_is_stored(g, n->in[0]);
    for (uint32_t i = 1; i < n->nin; i++) {
        inv_shape s;
        if (n->in[i] == INV_NONE) continue;
        const inv_shape *is = inv_in_shape(g, n, i);
        const int check = 1 + (int)i * INV_MAX_RANK;
        const bool stored = inv_is_stored(g, n->in[i]);
        if (once && stored != constant && inv_repeats(g, n->source, check, out, is, stored))
            return inv_node_fail(g, n, INV_E_SHAPE, "a computed value would be repeated to the shape of a stored one");
        constant = constant && stored;
        if (!inv_shape_broadcast(out, is, &s)) {
            inv_note_shapes(g, check, out, is, true);
            return inv_node_fail(g, n, INV_E_SHAPE,
                                 "the shapes do not broadcast; from the right, extents must be equal or 1");
        }
        *out = s;
    }
    return inv_need_size(g, n, out);
}

/* Output 0: type of input 0, shape of all inputs broadcast together. */
static inline inv_status inv_infer_broadcast(inv_graph *g, inv_node *n)
{
    inv_shape s;
    INV_TRY(inv_broadcast_all(g, n, &s));
    INV_TRY(inv_need_same_type(g, n, n->nin));
    inv_set_out(g, n, 0, inv_in_dtype(g, n, 0), &s);
    return INV_OK;
}

/* --- axes and shapes --- */
/* -rank..rank-1 to 0..rank-1. */
static inline inv_status inv_axis(const inv_graph *g, const inv_node *n, int64_t axis, int rank, int *out)
{
    *out = 0;
    if (axis < -rank || axis >= rank)
        return inv_node_fail(g, n, INV_E_SHAPE, "axis %lld is outside rank %d", (long long)axis, rank);
    *out = (int)(axis < 0 ? axis + rank : axis);
    return INV_OK;
}

/* Which of the names, the list ending with NULL, this one is; -1: none. */
static inline int inv_index_of(const char *const *names, const char *name)
{
    for (int i = 0; names[i]; i++)
        if (strcmp(names[i], name) == 0) return i;
    return -1;
}

static inline inv_attr inv_attr_of_shape(const char *name, const inv_shape *s)
{
    return inv_attr_of_ints(name, (size_t)s->rank, s->dim);
}

/* A shape kept as an attribute (absent or empty: scalar). */
static inline inv_shape inv_attr_shape(const inv_node *n, const char *name)
{
    size_t count;
    const int64_t *d = inv_attr_ints(n, name, &count);
    if (count > INV_MAX_RANK) return inv_shape_unknown();
    return count ? inv_shape_of((int)count, d) : inv_shape_scalar();
}

/* Output 0: the type of input 0, the shape in attribute `shape`. */
static inline inv_status inv_infer_attr_shape(inv_graph *g, inv_node *n)
{
    inv_shape s = inv_attr_shape(n, "shape");
    if (!inv_shape_is_static(&s)) return inv_node_fail(g, n, INV_E_SHAPE, "attribute `shape` is not a static shape");
    INV_TRY(inv_need_size(g, n, &s));
    inv_set_out(g, n, 0, inv_in_dtype(g, n, 0), &s);
    return INV_OK;
}

/* A list of integers that the opset gives as an attribute or as an input (constant). *given: either was there. */
static inline inv_status inv_ints_of(const inv_graph *g, const inv_node *n, const char *attr, uint32_t input,
                                     int64_t out[INV_MAX_RANK * 2], size_t *count, bool *given)
{
    const inv_attr *a = inv_attr_find(n, attr);
    *count = 0;
    *given = true;
    if (inv_has_in(n, input)) {
        if (inv_const_ints(g, n->in[input], INV_MAX_RANK * 2, out, count) && *count <= INV_MAX_RANK * 2) return INV_OK;
        INV_TRY(inv_node_need_const(g, n, n->in[input], attr));
        return inv_node_fail(g, n, INV_E_SHAPE, "input %u (%s) is longer than any tensor has axes", input, attr);
    }
    if (a == NULL) {
        *given = false;
        return INV_OK;
    }
    const int64_t *v = inv_attr_ints(n, attr, count);
    if (*count > INV_MAX_RANK * 2) return inv_node_fail(g, n, INV_E_SHAPE, "attribute %s is too long", attr);
    for (size_t i = 0; i < *count; i++) out[i] = v[i];
    return INV_OK;
}

/* Elements between neighbours along each axis, row-major. */
static inline void inv_strides(const inv_shape *s, int64_t stride[INV_MAX_RANK])
{
    int64_t k = 1;
    for (int i = s->rank - 1; i >= 0; i--) {
        stride[i] = k;
        k *= s->dim[i];
    }
}

/* Product of dim[from..to-1]. */
static inline int64_t inv_prod(const inv_shape *s, int from, int to)
{
    int64_t k = 1;
    for (int i = from; i < to; i++) k *= s->dim[i];
    return k;
}

/* --- making loops (ops/gpu/loop.h) --- */
/* The axes of `out` without those of extent 1, neighbours that all operands walk alike as one: their number, their
 * extents, and the operands' strides along them in place of those along the axes of `out`. */
static inline int inv_merge_axes(const inv_shape *out, int nop, int64_t (*stride)[INV_MAX_RANK],
                                 int64_t dim[INV_MAX_RANK])
{
    int rank = 0;
    for (int i = 0; i < out->rank; i++) {
        if (out->dim[i] == 1) continue;
        bool merge = rank > 0;
        for (int k = 0; k < nop && merge; k++) merge = stride[k][rank - 1] == stride[k][i] * out->dim[i];
        const int at = merge ? rank - 1 : rank++;
        dim[at] = merge ? dim[at] * out->dim[i] : out->dim[i];
        for (int k = 0; k < nop; k++) stride[k][at] = stride[k][i];
    }
    for (int k = 0; k < nop; k++)
        for (int i = rank; i < INV_MAX_RANK; i++) stride[k][i] = 0;
    return rank;
}

/* From explicit strides per operand (in elements; negative and 0 allowed), one per axis of `out`. */
static inline void inv_loop_strided(inv_loop *l, const inv_shape *out, int nop, const int64_t (*stride)[INV_MAX_RANK])
{
    memset(l, 0, sizeof *l);
    l->nop = nop;
    memcpy(l->stride, stride, (size_t)nop * sizeof *stride);
    l->rank = inv_merge_axes(out, nop, l->stride, l->dim);
    l->rows = 1;
    l->inner = l->rank ? l->dim[l->rank - 1] : 1;
    for (int i = 0; i + 1 < l->rank; i++) l->rows *= l->dim[i];
    for (int k = 0; k < nop; k++) l->step[k] = l->rank ? l->stride[k][l->rank - 1] : 0;
}

static inline void inv_broadcast_strides(const inv_shape *s, const inv_shape *out, int64_t stride[INV_MAX_RANK])
{
    int64_t own[INV_MAX_RANK] = {0};
    inv_strides(s, own);
    for (int i = 0; i < out->rank; i++) {
        int j = i - (out->rank - s->rank);
        stride[i] = j < 0 || s->dim[j] == 1 ? 0 : own[j];
    }
}

/* Operands shape[0..nop-1], all of which broadcast to `out`. */
static inline void inv_loop_init(inv_loop *l, const inv_shape *out, int nop, const inv_shape *const *shape)
{
    int64_t stride[INV_LOOP_OPS][INV_MAX_RANK] = {{0}};
    for (int k = 0; k < nop; k++) inv_broadcast_strides(shape[k], out, stride[k]);
    inv_loop_strided(l, out, nop, (const int64_t(*)[INV_MAX_RANK])stride);
}

/* --- single elements --- */
/* Where element i lies. */
static inline void *inv_elem_at(const inv_tensor *t, int64_t i)
{
    return (char *)t->data + i * (int64_t)inv_dtype_size(t->dtype);
}

/* Element i of float or double. */
static inline void inv_put_real(void *data, inv_dtype t, int64_t i, double v)
{
    INV_REAL_AS(t, T, ((T *)data)[i] = (T)v);
}

static inline void inv_put_int(void *data, inv_dtype t, int64_t i, int64_t v)
{
    switch (t) {
    case INV_I64: ((int64_t *)data)[i] = v; break;
    case INV_U64: ((uint64_t *)data)[i] = (uint64_t)v; break;
    case INV_I32: ((int32_t *)data)[i] = (int32_t)v; break;
    case INV_U32: ((uint32_t *)data)[i] = (uint32_t)v; break;
    case INV_I16: ((int16_t *)data)[i] = (int16_t)v; break;
    case INV_U16: ((uint16_t *)data)[i] = (uint16_t)v; break;
    case INV_I8: ((int8_t *)data)[i] = (int8_t)v; break;
    case INV_U8: ((uint8_t *)data)[i] = (uint8_t)v; break;
    case INV_BOOL: ((uint8_t *)data)[i] = v != 0; break;
    case INV_F32: ((float *)data)[i] = (float)v; break;
    case INV_F64: ((double *)data)[i] = (double)v; break;
    default: break;
    }
}

/* --- emitting --- */
/* v with another shape of as many elements; v itself when the shape is the same. */
static inline inv_id inv_emit_view(inv_graph *g, inv_id v, const inv_shape *s)
{
    if (v == INV_NONE || inv_shape_equal(inv_shape_of_value(g, v), s)) return v;
    return inv_emit1(g, "View", INV_IN(v), INV_ATTRS(inv_attr_of_shape("shape", s)));
}

/* v repeated to a shape that it broadcasts to; v itself when the shape is the same. */
static inline inv_id inv_emit_broadcast(inv_graph *g, inv_id v, const inv_shape *s)
{
    if (v == INV_NONE || inv_shape_equal(inv_shape_of_value(g, v), s)) return v;
    return inv_emit1(g, "BroadcastTo", INV_IN(v), INV_ATTRS(inv_attr_of_shape("shape", s)));
}

/* Zeros of that shape. */
static inline inv_id inv_emit_zeros(inv_graph *g, inv_dtype t, const inv_shape *s)
{
    const inv_id zero = inv_graph_const_real(g, t, 0);
    return zero == INV_NONE ? zero
                            : inv_emit1(g, "BroadcastTo", INV_IN(zero), INV_ATTRS(inv_attr_of_shape("shape", s)));
}

/* emit.c: `count` entries of v along an axis, from `start` on; v itself when these are all. */
inv_id inv_emit_part(inv_graph *g, inv_id v, int axis, int64_t start, int64_t count);

/* v with its axes permuted; v itself for the identity. */
static inline inv_id inv_emit_transpose(inv_graph *g, inv_id v, int rank, const int64_t *perm)
{
    bool same = true;
    for (int i = 0; i < rank; i++) same = same && perm[i] == i;
    if (v == INV_NONE || same) return v;
    return inv_emit1(g, "Transpose", INV_IN(v), INV_ATTRS(inv_attr_of_ints("perm", (size_t)rank, perm)));
}

/* Of what failed, for want of memory where the builder has not noted why. */
static inline inv_status inv_failed(const inv_graph *g) { return g->failed != INV_OK ? g->failed : INV_E_NOMEM; }

/* What lower and grad functions end with: the sticky status of the builder. */
static inline inv_status inv_done(const inv_graph *g) { return g->failed; }
static inline inv_status inv_grad_done(const inv_grad *b) { return b->g->failed; }

/* Output i of a node is not computed at all. */
static inline void inv_drop_out(inv_graph *g, inv_id node, uint32_t i)
{
    inv_id *out = &inv_nod(g, node)->out[i];
    inv_val(g, *out)->def = INV_NONE;
    *out = INV_NONE;
}

/* The gradients of inputs 0 to count-1 are the outputs of `node`; those that nobody wants are not computed. */
static inline inv_status inv_take_grads(inv_grad *b, inv_id node, uint32_t count)
{
    for (uint32_t i = 0; i < count && node != INV_NONE; i++) {
        if (inv_has_in(inv_nod(b->g, b->node), i) && inv_wants(b, i)) inv_grad_set(b, i, inv_nod(b->g, node)->out[i]);
        else inv_drop_out(b->g, node, i);
    }
    return inv_grad_done(b);
}

/* --- flops --- */
static inline double inv_flops_none(const inv_graph *g, const inv_node *n)
{
    (void)g;
    (void)n;
    return 0;
}
/* One per element of output 0. */
static inline double inv_flops_out(const inv_graph *g, const inv_node *n)
{
    return inv_has_out(n, 0) ? (double)inv_shape_nelem(inv_shape_of_value(g, n->out[0])) : 0;
}
/* One per element of input 0. */
static inline double inv_flops_in(const inv_graph *g, const inv_node *n)
{
    return inv_has_in(n, 0) ? (double)inv_shape_nelem(inv_in_shape(g, n, 0)) : 0;
}

/* arith.c: in[0] + in[1], or in[0] - in[1]. */
inv_status inv_add_or_sub(const inv_call *c, bool minus);

/* --- the column `work` of rows that always do the same --- */
#define INV_WORK_OF(name, NAME)                                                   \
    static inline inv_work inv_work_##name(const inv_graph *g, const inv_node *n) \
    {                                                                             \
        (void)g;                                                                  \
        (void)n;                                                                  \
        return INV_WORK_##NAME;                                                   \
    }
INV_WORK_OF(stream, STREAM)
INV_WORK_OF(move, MOVE)
INV_WORK_OF(sum, SUM)
INV_WORK_OF(apply, APPLY)
INV_WORK_OF(math, MATH)
INV_WORK_OF(scalar, SCALAR)
INV_WORK_OF(matrix, MATRIX)
#undef INV_WORK_OF

/* emit.c: Sum `v` down to the shape of `like` (undoes broadcasting); v itself when shapes agree. */
inv_id inv_emit_sum_to(inv_graph *g, inv_id v, inv_id like);

#endif
