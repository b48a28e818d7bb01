/* SPDX-License-Identifier: Apache-2.0
 * ScatterND and GatherND: parts of a tensor by tuples of indices. Of tuples that name the same part the last one wins
 * (reduction none), or they are added in their order; host and device agree. Sources: the ONNX operator
 * specifications. */
#include "ops/builtin.h"
#include "ops/copy.h"
#include "ops/scatter_gpu.h"

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
    p->count = inv__prod(index, 0, index->rank - 1);
    p->batch_tuples = inv__prod(index, b, index->rank - 1);
    p->batch_parts = inv__prod(data, b, b + p->q);
    p->parts = inv__prod(data, 0, b) * p->batch_parts;
    p->block = inv__prod(data, b + p->q, data->rank);
    if (p->count >= UINT32_MAX || p->parts >= UINT32_MAX) return "more than 4294967294 tuples or parts";
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

static bool is_op(const inv_node *n, const char *name) { return strcmp(n->op_type, name) == 0; }
static bool adds(const inv_node *n)
{
    return is_op(n, "GatherNDGrad") || strcmp(inv_attr_string(n, "reduction", "none"), "add") == 0;
}

/* Of the rows here: operand 0 is data, except that GatherNDGrad has its shape as an attribute. */
static inv_shape data_shape(const inv_node *n, const inv_shape *first)
{
    return is_op(n, "GatherNDGrad") ? inv__attr_shape(n, "shape") : *first;
}

static const char *geometry(const inv_node *n, const inv_shape *first, const inv_shape *index, inv_places *p)
{
    const inv_shape data = data_shape(n, first);
    return places_of(&data, index, inv_attr_int(n, "batch_dims", 0), p);
}

static inv_status places_infer(inv_graph *g, inv_node *n)
{
    inv_places p;
    inv_shape parts;
    INV_TRY(inv__need(g, n, 2));
    const bool scatter = is_op(n, "ScatterNDN"), back = is_op(n, "GatherNDGrad");
    const inv_dtype t = inv__in_dtype(g, n, 0);
    if (adds(n)) INV_TRY(inv__need_real(g, n, 0));
    if (back) INV_TRY(inv__infer_attr_shape(g, n));
    if (inv_dtype_size(t) == 0 || inv__in_dtype(g, n, 1) != INV_I64)
        return inv_node_fail(g, n, INV_E_UNSUPPORTED_TYPE, "indices must be int64, data of a type of fixed size");
    const inv_shape data = data_shape(n, inv__in_shape(g, n, 0)), *index = inv__in_shape(g, n, 1);
    const char *why = geometry(n, inv__in_shape(g, n, 0), index, &p);
    if (why) return inv_node_fail(g, n, INV_E_SHAPE, "%s", why);
    if (!parts_shape(&data, index, (int)inv_attr_int(n, "batch_dims", 0) + p.q, &parts))
        return inv_node_fail(g, n, INV_E_SHAPE, "rank above %d", INV_MAX_RANK);
    INV_TRY(inv__need_size(g, n, &parts));
    if ((back && !inv_shape_equal(&parts, inv__in_shape(g, n, 0))) ||
        (scatter && inv__has_in(n, 2) && !inv_shape_equal(&parts, inv__in_shape(g, n, 2))))
        return inv_node_fail(g, n, INV_E_SHAPE, "updates must have the shape of indices, without its last axis, and of "
                                                "the axes of data that indices do not reach");
    if (scatter && inv__has_in(n, 2) && inv__in_dtype(g, n, 2) != t)
        return inv_node_fail(g, n, INV_E_UNSUPPORTED_TYPE, "updates must be of the type of data");
    if (!back) inv__set_out(g, n, 0, t, scatter ? &data : &parts);
    return INV_OK;
}

/* Tables: of the last tuple of each part, or of the first and how many there are. The host adds and scatters in the
 * order of the tuples and needs none for that. */
static size_t places_workspace(const inv_graph *g, const inv_node *n)
{
    inv_places p;
    const bool last = is_op(n, "ScatterNDGrad");
    if (geometry(n, inv__in_shape(g, n, 0), inv__in_shape(g, n, 1), &p)) return 0;
    if (!g->gpu) return last ? inv__places_workspace(&p, 1) : 0;
    return adds(n) ? inv__places_workspace(&p, 2) : is_op(n, "GatherNDN") ? 0 : inv__places_workspace(&p, 1);
}

/* --- ScatterNDN, GatherNDGrad --- */
static inv_status put_parts(const inv_places *p, const inv_tensor *out, const int64_t *index, const char *u, bool add)
{
    const size_t nbytes = (size_t)p->block * inv_dtype_size(out->dtype);
    for (int64_t i = 0; i < p->count; i++) {
        const int64_t at = inv__place(p, index, i);
        if (at < 0) return INV_E_NUMERIC;
        char *to = (char *)out->data + (size_t)at * nbytes;
        const void *from = u ? u + (size_t)i * nbytes : NULL;
        if (add && out->dtype == INV_F64) {
            for (int64_t j = 0; j < p->block; j++) ((double *)(void *)to)[j] += ((const double *)from)[j];
        } else if (add) {
            for (int64_t j = 0; j < p->block; j++) ((float *)(void *)to)[j] += ((const float *)from)[j];
        } else if (from) {
            memcpy(to, from, nbytes);
        } else {
            memset(to, 0, nbytes);
        }
    }
    return INV_OK;
}

static inv_status scatter_run(const inv_call *c)
{
    inv_places p;
    const inv_tensor *out = &c->out[0];
    const bool back = is_op(c->node, "GatherNDGrad"), add = adds(c->node);
    const size_t esize = inv_dtype_size(out->dtype), nbytes = (size_t)out->n * esize;
    const void *u = back ? c->in[0].data : c->nin > 2 ? c->in[2].data : NULL;
    if (geometry(c->node, &c->in[0].shape, &c->in[1].shape, &p)) return INV_E_SHAPE;
    if (out->n == 0) return INV_OK;
    if (back && c->gpu) {
        INV_GPU(c->gpu, fill)(c->gpu, out->n, esize, out->data, 0);
    } else if (back) {
        memset(out->data, 0, nbytes);
    } else if (out->data != c->in[0].data) {
        const int64_t one = 1;
        const inv_shape flat = inv_shape_of(1, &out->n);
        INV_TRY(inv__copy_strided(c, out->data, &one, c->in[0].data, &one, &flat, esize));
    }
    if (p.count == 0 || (add && u == NULL)) return INV_OK;
    if (!c->gpu) return put_parts(&p, out, c->in[1].data, u, add);
    if (c->ws == NULL || c->ws_nbytes < inv__places_workspace(&p, add ? 2 : 1)) return INV_E_INTERNAL;
    if (add) INV_GPU(c->gpu, scatter_add)(c->gpu, &p, out->dtype, out->data, c->in[1].data, u, c->ws);
    else INV_GPU(c->gpu, scatter)(c->gpu, &p, esize, out->data, c->in[1].data, u, c->ws);
    return INV_OK;
}

static inv_status scatter_grad(inv_grad *b)
{
    const inv_node n = *inv_nod(b->g, b->node);
    const inv_id gy = inv_GO(b, 0);
    if (gy == INV_NONE) return INV_OK;
    const bool add = adds(&n), updates = inv__has_in(&n, 2);
    if (inv_wants(b, 0))
        inv_grad_set(b, 0, add ? gy : inv_emit1(b->g, "ScatterNDN", INV_IN(gy, n.in[1]), INV_NOATTR));
    if (updates && inv_wants(b, 2))
        inv_grad_set(b, 2, inv_emit1(b->g, add ? "GatherNDN" : "ScatterNDGrad", INV_IN(gy, n.in[1]), INV_NOATTR));
    return inv__grad_done(b);
}

/* --- GatherNDN, ScatterNDGrad --- */
static inv_status gather_run(const inv_call *c)
{
    inv_places p;
    const bool only_last = is_op(c->node, "ScatterNDGrad");
    const size_t esize = inv_dtype_size(c->out[0].dtype);
    if (geometry(c->node, &c->in[0].shape, &c->in[1].shape, &p)) return INV_E_SHAPE;
    if (c->out[0].n == 0) return INV_OK;
    if (only_last && c->ws_nbytes < inv__places_workspace(&p, 1)) return INV_E_INTERNAL;
    if (c->gpu) {
        INV_GPU(c->gpu, gather_places)
        (c->gpu, &p, esize, c->out[0].data, c->in[0].data, c->in[1].data, only_last ? c->ws : NULL);
        return INV_OK;
    }
    const int64_t *index = c->in[1].data;
    const size_t nbytes = (size_t)p.block * esize;
    uint32_t *last = c->ws;
    for (int64_t i = 0; i < p.count; i++) {
        const int64_t at = inv__place(&p, index, i);
        if (at < 0) return INV_E_NUMERIC;
        if (only_last) last[at] = (uint32_t)i; /* only entries that are named are read below */
    }
    char *y = c->out[0].data;
    const char *x = c->in[0].data;
#pragma omp parallel for schedule(static) if (c->out[0].n > INV_OMP_MIN)
    for (int64_t i = 0; i < p.count; i++) {
        const int64_t at = inv__place(&p, index, i);
        if (only_last && last[at] != (uint32_t)i) memset(y + (size_t)i * nbytes, 0, nbytes);
        else memcpy(y + (size_t)i * nbytes, x + (size_t)at * nbytes, nbytes);
    }
    return INV_OK;
}

static inv_status gather_grad(inv_grad *b)
{
    const inv_node n = *inv_nod(b->g, b->node);
    if (inv_GO(b, 0) == INV_NONE || !inv_wants(b, 0)) return INV_OK;
    const inv_shape s = *inv__in_shape(b->g, &n, 0);
    inv_grad_set(b, 0, inv_emit1(b->g, "GatherNDGrad", INV_IN(inv_GO(b, 0), n.in[1]),
                                 INV_ATTRS(inv_attr_of_int("batch_dims", inv_attr_int(&n, "batch_dims", 0)),
                                           inv__attr_of_shape("shape", &s))));
    return inv__grad_done(b);
}

/* --- ONNX --- */
static inv_status onnx_scatter_lower(inv_graph *g, const inv_node *n, inv_id *out)
{
    const char *how = inv_attr_string(n, "reduction", "none");
    INV_TRY(inv__need(g, n, 3));
    if (strcmp(how, "none") != 0 && strcmp(how, "add") != 0)
        return inv_node_fail(g, n, INV_E_UNSUPPORTED_OP, "reduction = %s is not supported; none and add are", how);
    out[0] = inv_emit1(g, "ScatterNDN", 3, n->in, INV_ATTRS(inv_attr_of_string("reduction", how)));
    return inv__done(g);
}

static inv_status onnx_gather_lower(inv_graph *g, const inv_node *n, inv_id *out)
{
    INV_TRY(inv__need(g, n, 2));
    out[0] = inv_emit1(g, "GatherNDN", 2, n->in,
                       INV_ATTRS(inv_attr_of_int("batch_dims", inv_attr_int(n, "batch_dims", 0))));
    return inv__done(g);
}

/* --- rows --- */
static const char *const scatter_cases[] = {
    "y = ScatterNDN(float[4,3] x,int64[3,1]{2,-4,2},float[3,3] u)",
    "y = ScatterNDN(float[4,3,2] x,int64[2,2,2]{0,1,3,2,1,0,3,-1},float[2,2,2] u)",
    "y = ScatterNDN(float[4,5] x,int64[3,2]{0,1,3,2,0,1},float[3] u)",
    "y = ScatterNDN(float[4,3] x,int64[2,1]{1,3})",
    "y = ScatterNDN<reduction = \"add\">(float[4,3] x,int64[4,1]{2,0,2,-2},float[4,3] u)",
    "y = ScatterNDN(bool[4,3] x,int64[2,1]{1,0},bool[2,3] u)",
    "y = ScatterNDN(float[4,3] x,int64[0,1]{},float[0,3] u)", NULL};
static const inv_op_def scatter_row = {
    .size = sizeof(inv_op_def), .domain = INV_IR, .name = "ScatterNDN", .since = 1, .in = "data indices updates?",
    .out = "y", .inplace = 1, .infer = places_infer, .grad = scatter_grad, .cpu = scatter_run, .cuda = scatter_run,
    .workspace = places_workspace, .flops = inv__flops_none, .cases = scatter_cases,
    .doc = "data with the parts that indices name replaced by updates (absent: zeros; the last one counts) or, "
           "reduction add, increased by them"};

static const char *const scatter_grad_cases[] = {"gu = ScatterNDGrad(float[4,3] gy,int64[3,1]{2,0,2})", NULL};
static const inv_op_def scatter_grad_row = {
    .size = sizeof(inv_op_def), .domain = INV_IR, .name = "ScatterNDGrad", .since = 1, .in = "gy indices", .out = "gu",
    .infer = places_infer, .cpu = gather_run, .cuda = gather_run, .workspace = places_workspace,
    .flops = inv__flops_none, .cases = scatter_grad_cases,
    .doc = "gradient of ScatterNDN to its updates: the parts of gy, 0 for those that a later one replaced"};

static const char *const gather_cases[] = {
    "y = GatherNDN(float[4,3] x,int64[3,1]{2,-4,2})",
    "y = GatherNDN(float[4,3,2] x,int64[2,2,2]{0,1,3,2,1,0,3,-1})",
    "y = GatherNDN<batch_dims = 1>(float[2,3,4] x,int64[2,3,1]{0,2,2,1,-1,0})",
    "y = GatherNDN(bool[4,4] x,int64[2,1]{3,0})", NULL};
static const inv_op_def gather_row = {
    .size = sizeof(inv_op_def), .domain = INV_IR, .name = "GatherNDN", .since = 1, .in = "data indices", .out = "y",
    .infer = places_infer, .grad = gather_grad, .cpu = gather_run, .cuda = gather_run, .workspace = places_workspace,
    .flops = inv__flops_none, .cases = gather_cases, .doc = "the parts of data that tuples of indices name"};

static const char *const gather_grad_cases[] = {
    "d = GatherNDGrad<shape = [4,3]>(float[3,3] gy,int64[3,1]{2,0,2})",
    "d = GatherNDGrad<shape = [2,3], batch_dims = 1>(float[2,2] gy,int64[2,2,1]{1,1,0,2})", NULL};
static const inv_op_def gather_grad_row = {
    .size = sizeof(inv_op_def), .domain = INV_IR, .name = "GatherNDGrad", .since = 1, .in = "gy indices", .out = "d",
    .infer = places_infer, .cpu = scatter_run, .cuda = scatter_run, .workspace = places_workspace,
    .flops = inv__flops_in, .cases = gather_grad_cases, .doc = "gy added up at the indices, 0 elsewhere"};

static const char *const onnx_scatter_cases[] = {
    "y = ScatterND(float[4,3] x,int64[2,1]{2,0},float[2,3] u)",
    "y = ScatterND<reduction = \"add\">(float[4] x,int64[3,1]{2,0,2},float[3] u)", NULL};
static const inv_op_def onnx_scatter_row = {
    .size = sizeof(inv_op_def), .domain = "", .name = "ScatterND", .since = 11, .in = "data indices updates",
    .out = "output", .infer = inv__infer_lowered, .lower = onnx_scatter_lower, .cases = onnx_scatter_cases,
    .doc = "to ScatterNDN, with reduction none or add. ONNX ScatterND-11, -13, -16, -18"};

static const char *const onnx_gather_cases[] = {
    "y = GatherND<batch_dims = 1>(float[2,3,4] x,int64[2,1]{2,0})", NULL};
static const inv_op_def onnx_gather_row = {
    .size = sizeof(inv_op_def), .domain = "", .name = "GatherND", .since = 11, .in = "data indices", .out = "output",
    .infer = inv__infer_lowered, .lower = onnx_gather_lower, .cases = onnx_gather_cases,
    .doc = "to GatherNDN. ONNX GatherND-11, -12, -13"};

const inv_op_def *const inv_ops_scatter[] = {&scatter_row,     &scatter_grad_row, &gather_row,     &gather_grad_row,
                                             &onnx_scatter_row, &onnx_gather_row,  NULL};
