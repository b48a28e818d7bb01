/* SPDX-License-Identifier: Apache-2.0
 * ScatterND and GatherND: parts of a tensor by tuples of indices; ScatterElements and GatherElements, the same for
 * single elements by one index each (attribute `axis` of the canonical operators). Of tuples that name the same part
 * the last one wins (reduction none), or they are joined in their order; host and device agree. Sources: the ONNX
 * operator specifications. */
#include "ops/base/emit.h"
#include "ops/base/families.h"
#include "ops/base/rows.h"
#include "ops/base/strided_copy.h"
#include "ops/move/scatter_gpu.h"

#define COLUMNS 64 /* that a thread joins at a time */

/* data: the tensor that indices point into. NULL, or what is wrong. */
static const char *places_of(const inv_shape *data, const inv_shape *index, int64_t batch_dims, inv_places *p)
{
    memset(p, 0, sizeof *p);
    if (index->rank < 1) return "indices need at least one axis";
    const int64_t q = index->dim[index->rank - 1];
    if (batch_dims < 0 || batch_dims >= index->rank) return "batch_dims is out of range";
    if (q < 0 || batch_dims + q > data->rank) return "a tuple of indices is longer than data has axes";
    const int b = (int)batch_dims;
    for (int i = 0; i < b; i++)
        if (data->dim[i] != index->dim[i]) return "data and indices differ in a batch axis";
    p->q = (int)q;
    for (int i = 0; i < p->q; i++) p->dim[i] = data->dim[b + i];
    p->count = inv_prod(index, 0, index->rank - 1);
    p->batch_tuples = inv_prod(index, b, index->rank - 1);
    p->batch_parts = inv_prod(data, b, b + p->q);
    p->parts = inv_prod(data, 0, b) * p->batch_parts;
    p->block = inv_prod(data, b + p->q, data->rank);
    if (p->count >= UINT32_MAX || p->parts >= UINT32_MAX) return "more than 4294967294 tuples or parts";
    return NULL;
}

/* An index for each element of what is gathered: the place of that element, but for `axis`. */
static const char *elements_of(const inv_shape *data, const inv_shape *index, int64_t axis, inv_places *p)
{
    int64_t stride[INV_MAX_RANK];
    memset(p, 0, sizeof *p);
    if (index->rank != data->rank || data->rank < 1) return "data and indices must have the same rank, 1 or more";
    if (axis < 0 || axis >= data->rank) return "axis is out of range";
    inv_strides(data, stride);
    for (int i = 0; i < data->rank; i++) {
        const bool joins = p->rank > 0 && i != axis && i != axis + 1 && index->dim[i] == data->dim[i];
        if (i != axis && index->dim[i] > data->dim[i]) return "indices have more elements than data along an axis";
        if (!joins) p->shape[p->rank++] = 1;
        p->shape[p->rank - 1] *= index->dim[i];
        p->stride[p->rank - 1] = i == axis ? 0 : stride[i];
    }
    p->dim[0] = data->dim[axis];
    p->along = stride[axis] > 0 ? stride[axis] : 1;
    p->q = 1;
    p->block = 1;
    p->count = inv_shape_nelem(index);
    p->parts = inv_shape_nelem(data);
    if (p->count >= UINT32_MAX || p->parts >= UINT32_MAX) return "more than 4294967294 indices or elements";
    return NULL;
}

/* A part per tuple. */
static bool parts_shape(const inv_shape *data, const inv_shape *index, int from, inv_shape *out)
{
    *out = inv_shape_scalar();
    if (index->rank - 1 + data->rank - from > INV_MAX_RANK) return false;
    for (int i = 0; i < index->rank - 1; i++) out->dim[out->rank++] = index->dim[i];
    for (int i = from; i < data->rank; i++) out->dim[out->rank++] = data->dim[i];
    return true;
}

static inv_joining joining(const inv_node *n)
{
    static const char *const names[] = {"none", "add", "mul", "max", "min"};
    const char *how = inv_op_is(n, "GatherNDGrad") ? "add" : inv_attr_string(n, "reduction", "none");
    for (int i = 0; i < 5; i++)
        if (strcmp(how, names[i]) == 0) return (inv_joining)i;
    return (inv_joining)-1;
}

/* Of the rows here: operand 0 is data, except that GatherNDGrad has its shape as an attribute. */
static inv_shape data_shape(const inv_node *n, const inv_shape *first)
{
    return inv_op_is(n, "GatherNDGrad") ? inv_attr_shape(n, "shape") : *first;
}

static const char *scatter_geometry(const inv_node *n, const inv_shape *first, const inv_shape *index, inv_places *p)
{
    const inv_shape data = data_shape(n, first);
    const inv_attr *axis = inv_attr_find(n, "axis");
    if (axis) return elements_of(&data, index, axis->i, p);
    return places_of(&data, index, inv_attr_int(n, "batch_dims", 0), p);
}

static inv_status places_infer(inv_graph *g, inv_node *n)
{
    inv_places p;
    inv_shape parts;
    const bool scatter = inv_op_is(n, "ScatterNDN"), back = inv_op_is(n, "GatherNDGrad");
    const inv_dtype t = inv_in_dtype(g, n, 0);
    if (joining(n) > INV_JOIN_MIN)
        return inv_node_fail(g, n, INV_E_GRAPH, "reduction must be none, add, mul, max or min");
    if (joining(n) != INV_JOIN_LAST && t != INV_I32 && t != INV_I64) INV_TRY(inv_need_real(g, n, 0));
    if (back) INV_TRY(inv_infer_attr_shape(g, n));
    if (inv_dtype_size(t) == 0 || inv_in_dtype(g, n, 1) != INV_I64)
        return inv_node_fail(g, n, INV_E_UNSUPPORTED_TYPE, "indices must be int64, data of a type of fixed size");
    const inv_shape data = data_shape(n, inv_in_shape(g, n, 0)), *index = inv_in_shape(g, n, 1);
    const char *why = scatter_geometry(n, inv_in_shape(g, n, 0), index, &p);
    if (why) return inv_node_fail(g, n, INV_E_SHAPE, "%s", why);
    if (p.along) parts = *index;
    else if (!parts_shape(&data, index, (int)inv_attr_int(n, "batch_dims", 0) + p.q, &parts))
        return inv_node_fail(g, n, INV_E_SHAPE, "rank above %d", INV_MAX_RANK);
    INV_TRY(inv_need_size(g, n, &parts));
    if ((back && !inv_shape_equal(&parts, inv_in_shape(g, n, 0))) ||
        (scatter && inv_has_in(n, 2) && !inv_shape_equal(&parts, inv_in_shape(g, n, 2))))
        return inv_node_fail(g, n, INV_E_SHAPE,
                             "updates must have the shape of indices without its last axis, and then the axes of "
                             "data that indices do not reach");
    if (scatter && inv_has_in(n, 2) && inv_in_dtype(g, n, 2) != t)
        return inv_node_fail(g, n, INV_E_UNSUPPORTED_TYPE, "updates must be of the type of data");
    if (!back) inv_set_out(g, n, 0, t, scatter ? &data : &parts);
    return INV_OK;
}

/* The host joins and scatters in the order of the tuples and needs no scratch memory for that. */
static size_t places_workspace(const inv_graph *g, const inv_node *n)
{
    inv_places p;
    if (scatter_geometry(n, inv_in_shape(g, n, 0), inv_in_shape(g, n, 1), &p)) return 0;
    if (!g->gpu) return inv_op_is(n, "ScatterNDGrad") ? inv_places_workspace(&p) : 0;
    if (joining(n) != INV_JOIN_LAST) return inv_join_workspace(&p);
    return inv_op_is(n, "GatherNDN") ? 0 : inv_places_workspace(&p);
}

/* --- ScatterNDN, GatherNDGrad --- */
#define JOIN_AS(T, expr)                                       \
    do {                                                       \
        T *to = (T *)out->data + (at * p->block + first);      \
        const T *from = (const T *)u + (i * p->block + first); \
        for (int64_t j = 0; j < count; j++) {                  \
            const T a = to[j], b = from[j];                    \
            to[j] = (T)(expr);                                 \
        }                                                      \
    } while (0)
#define JOIN_REAL(T)                                               \
    switch (how) {                                                 \
    case INV_JOIN_MUL: JOIN_AS(T, a *b); break;                    \
    case INV_JOIN_MAX: JOIN_AS(T, b > a || b != b ? b : a); break; \
    case INV_JOIN_MIN: JOIN_AS(T, b < a || b != b ? b : a); break; \
    default: JOIN_AS(T, a + b);                                    \
    }
#define JOIN_INT(T, U)                                   \
    switch (how) {                                       \
    case INV_JOIN_MUL: JOIN_AS(T, (U)a *(U)b); break;    \
    case INV_JOIN_MAX: JOIN_AS(T, b > a ? b : a); break; \
    case INV_JOIN_MIN: JOIN_AS(T, b < a ? b : a); break; \
    default: JOIN_AS(T, (U)a + (U)b);                    \
    }
static void join_part(const inv_places *p, const inv_tensor *out, inv_joining how, const void *u, int64_t i, int64_t at,
                      int64_t first, int64_t count)
{
    switch (out->dtype) {
    case INV_F64: JOIN_REAL(double) break;
    case INV_F32: JOIN_REAL(float) break;
    case INV_I64: JOIN_INT(int64_t, uint64_t) break;
    default: JOIN_INT(int32_t, uint32_t)
    }
}

/* Threads share the columns, so that the order is the same however many there are. */
static void join_parts(const inv_places *p, const inv_tensor *out, const int64_t *index, const void *u, inv_joining how)
{
    const int64_t pieces = (p->block + COLUMNS - 1) / COLUMNS;
#pragma omp parallel for schedule(static) if (p->count * p->block > INV_OMP_MIN && pieces > 1)
    for (int64_t piece = 0; piece < pieces; piece++) {
        const int64_t first = piece * COLUMNS, left = p->block - first;
        for (int64_t i = 0; i < p->count; i++)
            join_part(p, out, how, u, i, inv_file_place(p, index, i), first, left < COLUMNS ? left : COLUMNS);
    }
}

/* The first index of tuple i that is outside of its axis. */
static inv_status place_outside(const inv_call *c, const inv_places *p, const int64_t *index, int64_t i)
{
    const int64_t *at = p->along ? &index[i] : &index[i * p->q];
    int a = 0;
    while (!p->along && a < p->q - 1 && at[a] >= -p->dim[a] && at[a] < p->dim[a]) a++;
    return inv_index_outside(c, at[a], p->dim[a]);
}

static inv_status put_parts(const inv_call *c, const inv_places *p, const int64_t *index, const char *u,
                            inv_joining how)
{
    const inv_tensor *out = &c->out[0];
    const size_t nbytes = (size_t)p->block * inv_dtype_size(out->dtype);
    for (int64_t i = 0; i < p->count; i++) {
        const int64_t at = inv_file_place(p, index, i);
        if (at < 0) return place_outside(c, p, index, i);
        char *to = (char *)out->data + (size_t)at * nbytes;
        if (how != INV_JOIN_LAST) continue;
        if (u) memcpy(to, u + (size_t)i * nbytes, nbytes);
        else memset(to, 0, nbytes);
    }
    if (how != INV_JOIN_LAST) join_parts(p, out, index, u, how);
    return INV_OK;
}

static inv_status scatter_run(const inv_call *c)
{
    inv_places p;
    const inv_tensor *out = &c->out[0];
    const bool back = inv_op_is(c->node, "GatherNDGrad");
    const inv_joining how = joining(c->node);
    const size_t esize = inv_dtype_size(out->dtype), nbytes = (size_t)out->n * esize;
    const void *u = back ? c->in[0].data : c->nin > 2 ? c->in[2].data : NULL;
    if (scatter_geometry(c->node, &c->in[0].shape, &c->in[1].shape, &p)) return INV_E_SHAPE;
    if (out->n == 0) return INV_OK;
    if (back && c->gpu) {
        INV_GPU(c->gpu, fill, out->n, esize, out->data, 0);
    } else if (back) {
        memset(out->data, 0, nbytes);
    } else if (out->data != c->in[0].data) {
        const int64_t one = 1;
        const inv_shape flat = inv_shape_of(1, &out->n);
        INV_TRY(inv_copy_strided(c, out->data, &one, c->in[0].data, &one, &flat, esize));
    }
    if (p.count == 0 || p.block == 0 || (how != INV_JOIN_LAST && u == NULL)) return INV_OK;
    if (!c->gpu) return put_parts(c, &p, c->in[1].data, u, how);
    if (c->ws == NULL || c->ws_nbytes < (how == INV_JOIN_LAST ? inv_places_workspace(&p) : inv_join_workspace(&p)))
        return INV_E_INTERNAL;
    if (how == INV_JOIN_LAST) INV_GPU(c->gpu, scatter, &p, esize, out->data, c->in[1].data, u, c->ws);
    else INV_GPU(c->gpu, scatter_join, &p, how, out->dtype, out->data, c->in[1].data, u, c->ws);
    return INV_OK;
}

/* What the operators of one node have in common: its axis or batch_dims, and `last` if given. */
static inv_id same_places(inv_graph *g, const inv_node *n, const char *op, uint32_t nin, const inv_id *in,
                          const inv_attr *last)
{
    inv_attr attr[3];
    uint32_t count = 0;
    const inv_attr *axis = inv_attr_find(n, "axis"), *batch = inv_attr_find(n, "batch_dims");
    if (axis) attr[count++] = inv_attr_of_int("axis", axis->i);
    if (batch) attr[count++] = inv_attr_of_int("batch_dims", batch->i);
    if (last) attr[count++] = *last;
    return inv_emit1(g, op, nin, in, count, attr);
}
static inv_id gathered(inv_graph *g, const inv_node *n, inv_id v)
{
    return same_places(g, n, "GatherNDN", INV_IN(v, n->in[1]), NULL);
}
static inv_id joined_by(inv_graph *g, const inv_node *n, const char *how, inv_id data, inv_id u)
{
    const inv_attr attr = inv_attr_of_string("reduction", how);
    return same_places(g, n, "ScatterNDN", INV_IN(data, n->in[1], u), &attr);
}
/* 1 where a = b, of the type of a. */
static inv_id as_equal(inv_graph *g, inv_id a, inv_id b)
{
    if (a == INV_NONE) return INV_NONE;
    const inv_dtype t = inv_val(g, a)->dtype;
    return inv_emit1(g, "Cast", INV_IN(inv_emit_pair(g, "Equal", a, b)), INV_ATTRS(inv_attr_of_int("to", t)));
}

/* max, min: all that equal the result share the gradient. */
static void extreme_grad(inv_grad *b, const inv_node *n)
{
    inv_graph *g = b->g;
    const inv_id y = inv_O(b, 0), data = as_equal(g, n->in[0], y), u = as_equal(g, n->in[2], gathered(g, n, y));
    const inv_id share = inv_emit_pair(g, "Div", inv_GO(b, 0), joined_by(g, n, "add", data, u));
    if (inv_wants(b, 0)) inv_grad_set(b, 0, inv_emit_pair(g, "Mul", share, data));
    if (inv_wants(b, 2)) inv_grad_set(b, 2, inv_emit_pair(g, "Mul", gathered(g, n, share), u));
}

/* mul: the product of all others. With updates of 0 left out (p) and counted, that of an update is p / u if none is 0,
 * p for the only one that is 0, else 0. */
static void product_grad(inv_grad *b, const inv_node *n)
{
    inv_graph *g = b->g;
    const inv_id u = n->in[2], x = n->in[0], gy = inv_GO(b, 0);
    const inv_dtype t = inv_val(g, u)->dtype;
    const inv_id zero = inv_graph_const_real(g, t, 0), one = inv_graph_const_real(g, t, 1);
    if (inv_wants(b, 0)) {
        const inv_shape s = *inv_shape_of_value(g, x);
        const inv_id ones = inv_emit1(g, "BroadcastTo", INV_IN(one), INV_ATTRS(inv_attr_of_shape("shape", &s)));
        inv_grad_set(b, 0, inv_emit_pair(g, "Mul", gy, joined_by(g, n, "mul", ones, u)));
    }
    if (inv_wants(b, 2)) {
        const inv_id is_zero = as_equal(g, u, zero), other = inv_emit_pair(g, "Add", u, is_zero);
        const inv_id none = inv_emit_pair(g, "Mul", x, zero);
        const inv_id zeros = gathered(g, n, joined_by(g, n, "add", none, is_zero));
        const inv_id p = inv_emit_pair(g, "Div", gathered(g, n, joined_by(g, n, "mul", x, other)), other);
        const inv_id rest = inv_emit_pair(g, "Mul", p, as_equal(g, zeros, is_zero));
        inv_grad_set(b, 2, inv_emit_pair(g, "Mul", gathered(g, n, gy), rest));
    }
}

static inv_status scatter_grad(inv_grad *b)
{
    inv_graph *g = b->g;
    const inv_node n = *inv_nod(g, b->node);
    const inv_id gy = inv_GO(b, 0);
    const inv_joining how = joining(&n);
    const bool updates = inv_has_in(&n, 2);
    if (how > INV_JOIN_ADD && updates) {
        (how == INV_JOIN_MUL ? product_grad : extreme_grad)(b, &n);
        return inv_grad_done(b);
    }
    if (inv_wants(b, 0))
        inv_grad_set(b, 0, how != INV_JOIN_LAST ? gy : same_places(g, &n, "ScatterNDN", INV_IN(gy, n.in[1]), NULL));
    if (updates && inv_wants(b, 2)) {
        const char *op = how != INV_JOIN_LAST ? "GatherNDN" : "ScatterNDGrad";
        inv_grad_set(b, 2, same_places(g, &n, op, INV_IN(gy, n.in[1]), NULL));
    }
    return inv_grad_done(b);
}

/* --- GatherNDN, ScatterNDGrad --- */
static inv_status gather_run(const inv_call *c)
{
    inv_places p;
    const bool only_last = inv_op_is(c->node, "ScatterNDGrad");
    const size_t esize = inv_dtype_size(c->out[0].dtype);
    if (scatter_geometry(c->node, &c->in[0].shape, &c->in[1].shape, &p)) return INV_E_SHAPE;
    if (c->out[0].n == 0) return INV_OK;
    if (only_last && c->ws_nbytes < inv_places_workspace(&p)) return INV_E_INTERNAL;
    if (c->gpu) {
        INV_GPU(c->gpu, gather_places, &p, esize, c->out[0].data, c->in[0].data, c->in[1].data,
                only_last ? c->ws : NULL);
        return INV_OK;
    }
    const int64_t *index = c->in[1].data;
    const size_t nbytes = (size_t)p.block * esize;
    uint32_t *last = c->ws;
    for (int64_t i = 0; i < p.count; i++) {
        const int64_t at = inv_file_place(&p, index, i);
        if (at < 0) return place_outside(c, &p, index, i);
        if (only_last) last[at] = (uint32_t)i; /* only entries that are named are read below */
    }
    char *y = c->out[0].data;
    const char *x = c->in[0].data;
#pragma omp parallel for schedule(static) if (c->out[0].n > INV_OMP_MIN)
    for (int64_t i = 0; i < p.count; i++) {
        const int64_t at = inv_file_place(&p, index, i);
        if (only_last && last[at] != (uint32_t)i) memset(y + (size_t)i * nbytes, 0, nbytes);
        else memcpy(y + (size_t)i * nbytes, x + (size_t)at * nbytes, nbytes);
    }
    return INV_OK;
}

static inv_status gather_grad(inv_grad *b)
{
    const inv_node n = *inv_nod(b->g, b->node);
    if (inv_GO(b, 0) == INV_NONE || !inv_wants(b, 0)) return INV_OK;
    const inv_shape s = *inv_in_shape(b->g, &n, 0);
    const inv_attr shape = inv_attr_of_shape("shape", &s);
    inv_grad_set(b, 0, same_places(b->g, &n, "GatherNDGrad", INV_IN(inv_GO(b, 0), n.in[1]), &shape));
    return inv_grad_done(b);
}

/* Linear, so its gradient is the gathering. */
static inv_status gather_back_grad(inv_grad *b)
{
    const inv_node n = *inv_nod(b->g, b->node);
    if (inv_wants(b, 0)) inv_grad_set(b, 0, gathered(b->g, &n, inv_GO(b, 0)));
    return inv_grad_done(b);
}

/* --- ONNX --- */
static inv_id wide(inv_graph *g, inv_id index)
{
    if (inv_val(g, index)->dtype == INV_I64) return index;
    return inv_emit1(g, "Cast", INV_IN(index), INV_ATTRS(inv_attr_of_int("to", INV_I64)));
}

static inv_status scatter_lower(inv_graph *g, const inv_node *n, const int64_t *axis, inv_id *out)
{
    const char *how = inv_attr_string(n, "reduction", "none");
    inv_attr attr[2] = {inv_attr_of_string("reduction", how)};
    if (axis) attr[1] = inv_attr_of_int("axis", *axis);
    out[0] = inv_emit1(g, "ScatterNDN", INV_IN(n->in[0], wide(g, n->in[1]), n->in[2]), axis ? 2 : 1, attr);
    return inv_done(g);
}

static inv_status onnx_scatter_lower(inv_graph *g, const inv_node *n, inv_id *out)
{
    return scatter_lower(g, n, NULL, out);
}

static inv_status elements_axis(const inv_graph *g, const inv_node *n, int64_t *axis)
{
    int a;
    INV_TRY(inv_axis(g, n, inv_attr_int(n, "axis", 0), inv_in_shape(g, n, 0)->rank, &a));
    *axis = a;
    return INV_OK;
}

static inv_status scatter_elements_lower(inv_graph *g, const inv_node *n, inv_id *out)
{
    int64_t axis;
    INV_TRY(elements_axis(g, n, &axis));
    return scatter_lower(g, n, &axis, out);
}

static inv_status gather_elements_lower(inv_graph *g, const inv_node *n, inv_id *out)
{
    int64_t axis;
    INV_TRY(elements_axis(g, n, &axis));
    out[0] = inv_emit1(g, "GatherNDN", INV_IN(n->in[0], wide(g, n->in[1])), INV_ATTRS(inv_attr_of_int("axis", axis)));
    return inv_done(g);
}

static inv_status onnx_gather_lower(inv_graph *g, const inv_node *n, inv_id *out)
{
    out[0] =
        inv_emit1(g, "GatherNDN", 2, n->in, INV_ATTRS(inv_attr_of_int("batch_dims", inv_attr_int(n, "batch_dims", 0))));
    return inv_done(g);
}

/* clang-format off */
/* --- rows --- */
static const char *const scatter_cases[] = {
    "y = ScatterNDN(float[4,3] x,int64[3,1]{2,-4,2},float[3,3] u)",
    "y = ScatterNDN(float[4,3,2] x,int64[2,2,2]{0,1,3,2,1,0,3,-1},float[2,2,2] u)",
    "y = ScatterNDN(float[4,5] x,int64[3,2]{0,1,3,2,0,1},float[3] u)",
    "y = ScatterNDN(float[4,3] x,int64[2,1]{1,3})",
    "y = ScatterNDN<reduction = \"add\">(float[4,3] x,int64[4,1]{2,0,2,-2},float[4,3] u)",
    "y = ScatterNDN(bool[4,3] x,int64[2,1]{1,0},bool[2,3] u)",
    "y = ScatterNDN(float[4,3] x,int64[0,1]{},float[0,3] u)",
    "y = ScatterNDN<reduction = \"mul\">(float[4,3] x,int64[4,1]{2,0,2,-2},float[4,3] u)",
    "y = ScatterNDN<reduction = \"max\">(float[4,2] x,int64[4,1]{2,0,2,-2},float[4,2] u)",
    "y = ScatterNDN<reduction = \"min\">(float[4,2] x,int64[4,1]{2,0,2,-2},float[4,2] u)",
    "y = ScatterNDN<reduction = \"mul\">(int64[4,2] x,int64[3,1]{2,0,2},int64[3,2] u)",
    "y = ScatterNDN<reduction = \"max\">(int32[4,2] x,int64[3,1]{2,0,2},int32[3,2] u)",
    "y = ScatterNDN<reduction = \"add\">(float[2,3] x,int64[300,1] i,float[300,3] u)",
    "y = ScatterNDN<axis = 1>(float[2,4] x,int64[2,3]{1,-1,1,0,2,3},float[2,3] u)",
    "y = ScatterNDN<axis = 0, reduction = \"add\">(float[3,4,2] x,int64[2,3,2]{0,1,2,0,1,2,0,0,-1,-1,1,1},"
    "float[2,3,2] u)",
    "y = ScatterNDN<axis = 1, reduction = \"mul\">(float[2,4] x,int64[2,3]{1,-3,1,0,2,3},float[2,3] u)",
    "y = ScatterNDN<axis = 2>(int8[2,1,3] x,int64[1,1,2]{0,-1},int8[1,1,2] u)",
    "y = ScatterNDN<axis = 0>(float[3] x,int64[0]{},float[0] u)", NULL};
static const inv_op_def scatter_row = {
    .size = sizeof(inv_op_def), .domain = INV_IR, .name = "ScatterNDN", .since = 1, .in = "data indices updates?",
    .out = "y", .inplace = 1, .infer = places_infer, .grad = scatter_grad, .run = scatter_run,
    .work = inv_work_move,
    .workspace = places_workspace, .flops = inv_flops_none, .cases = scatter_cases,
    .doc = "data (absent: zeros) with parts at indices replaced by updates (the last counts), or combined: add, mul, "
           "max, min. axis: one index per element"};

static const char *const scatter_grad_cases[] = {"gu = ScatterNDGrad(float[4,3] gy,int64[3,1]{2,0,2})",
                                                 "gu = ScatterNDGrad<axis = 0>(float[4,2] gy,int64[3,2]{2,0,2,1,0,0})",
                                                 NULL};
static const inv_op_def scatter_grad_row = {
    .size = sizeof(inv_op_def), .domain = INV_IR, .name = "ScatterNDGrad", .since = 1, .in = "gy indices", .out = "gu",
    .infer = places_infer, .run = gather_run, .work = inv_work_move, .workspace = places_workspace,
    .flops = inv_flops_none, .cases = scatter_grad_cases,
    .doc = "gradient of ScatterNDN to its updates: the parts of gy, 0 for those that a later one replaced"};

static const char *const gather_cases[] = {
    "y = GatherNDN(float[4,3] x,int64[3,1]{2,-4,2})",
    "y = GatherNDN(float[4,3,2] x,int64[2,2,2]{0,1,3,2,1,0,3,-1})",
    "y = GatherNDN<batch_dims = 1>(float[2,3,4] x,int64[2,3,1]{0,2,2,1,-1,0})",
    "y = GatherNDN(bool[4,4] x,int64[2,1]{3,0})",
    "y = GatherNDN<axis = 1>(float[2,4] x,int64[2,3]{1,-1,1,0,2,3})",
    "y = GatherNDN<axis = 0>(float[3,4,2] x,int64[2,3,2]{0,1,2,0,1,2,0,0,-1,-1,1,1})",
    "y = GatherNDN<axis = 1>(float[2,3,4] x,int64[2,5,4] i)",
    "y = GatherNDN<axis = 0>(float[1] x,int64[1]{-1})", "y = GatherNDN<axis = 0>(float[3] x,int64[0]{})", NULL};
static const inv_op_def gather_row = {
    .size = sizeof(inv_op_def), .domain = INV_IR, .name = "GatherNDN", .since = 1, .in = "data indices", .out = "y",
    .infer = places_infer, .grad = gather_grad, .run = gather_run,
    .work = inv_work_move, .workspace = places_workspace,
    .flops = inv_flops_none, .cases = gather_cases,
    .doc = "the parts of data that tuples of indices name; with axis: an element for each index along it"};

static const char *const gather_grad_cases[] = {
    "d = GatherNDGrad<shape = [4,3]>(float[3,3] gy,int64[3,1]{2,0,2})",
    "d = GatherNDGrad<shape = [2,3], batch_dims = 1>(float[2,2] gy,int64[2,2,1]{1,1,0,2})",
    "d = GatherNDGrad<shape = [2,3], axis = 1>(float[2,2] gy,int64[2,2]{1,1,0,2})", NULL};
static const inv_op_def gather_grad_row = {
    .size = sizeof(inv_op_def), .domain = INV_IR, .name = "GatherNDGrad", .since = 1, .in = "gy indices", .out = "d",
    .infer = places_infer, .grad = gather_back_grad, .run = scatter_run, .work = inv_work_move,
    .workspace = places_workspace,
    .flops = inv_flops_in, .cases = gather_grad_cases, .doc = "gy added up at the indices, 0 elsewhere"};
/* clang-format on */

INV_LOWERED(onnx_scatter, "ScatterND", 11, "data indices updates", "output",
            "to ScatterNDN. ONNX ScatterND-11, -13, -16, -18",
            "y = ScatterND(float[4,3] x,int64[2,1]{2,0},float[2,3] u)",
            "y = ScatterND<reduction = \"add\">(float[4] x,int64[3,1]{2,0,2},float[3] u)")

INV_LOWERED(onnx_gather, "GatherND", 11, "data indices", "output", "to GatherNDN. ONNX GatherND-11, -12, -13",
            "y = GatherND<batch_dims = 1>(float[2,3,4] x,int64[2,1]{2,0})")

/* clang-format off */
#define SCATTER_ELEMENTS(id, op, opset, text)                                                                         \
    static const char *const id##_cases[] = {                                                                         \
        "y = " op "<axis = -1>(float[2,4] x,int64[2,3]{1,-1,1,0,2,3},float[2,3] u)",                                  \
        "y = " op "(float[3,2] x,int32[1,2]{2,0},float[1,2] u)", NULL};                                               \
    static const inv_op_def id##_row = {                                                                              \
        .size = sizeof(inv_op_def), .domain = "", .name = op, .since = opset, .in = "data indices updates",           \
        .out = "output", .lower = scatter_elements_lower, .cases = id##_cases,           \
        .doc = text};
/* clang-format on */
SCATTER_ELEMENTS(scatter_elements, "ScatterElements", 11, "to ScatterNDN. ONNX ScatterElements-11, -13, -16, -18")
SCATTER_ELEMENTS(old_scatter, "Scatter", 9, "to ScatterNDN. ONNX Scatter-9, -11")

INV_LOWERED(gather_elements, "GatherElements", 11, "data indices", "output",
            "to GatherNDN. ONNX GatherElements-11, -13",
            "y = GatherElements<axis = -2>(float[2,3,4] x,int64[2,1,4]{1,0,2,-1,0,0,1,2})",
            "y = GatherElements(float[3,2] x,int32[2,2]{2,0,1,1})")

/* clang-format off */
const inv_op_def *const inv_ops_scatter[] = {
    &scatter_row,      &scatter_grad_row, &gather_row,           &gather_grad_row, &onnx_scatter_row,
    &onnx_gather_row,  &old_scatter_row,  &scatter_elements_row, &gather_elements_row, NULL};
/* clang-format on */
