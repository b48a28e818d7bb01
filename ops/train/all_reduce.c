/* SPDX-License-Identifier: Apache-2.0
 * What ranks that train together exchange as part of the graph (passes/autodiff/reduce_gradients.c emits it,
 * core/program/exchange.h carries it): their weights, means of gradients, batch statistics. A mean is two nodes, since
 * it is on its way while others run: AllReduce packs gradients into a bucket and lets it go, AllReduceEnd waits and has
 * the gradients in it. What must stay as it is meanwhile is an operand of the second, so the plan counts it. A process
 * by itself (step->world NULL) is one rank of one. */
#include <stdio.h>
#include <string.h>

#include "core/graph/node.h"
#include "ops/base/families.h"
#include "ops/base/parallel.h"
#include "ops/base/util.h"
#include "ops/gpu/copy_gpu.h"
#include "ops/train/all_reduce_gpu.h"
#include "ops/train/exchanges.h"
#include "ops/train/optim.h"
#include "ops/train/optim_gpu.h"

enum { ALIGNED = 64 }; /* bytes: gradients begin there in a bucket, so that they need not be copied out of it */

static bool together(const inv_call *c) { return c->gpu->ranks != NULL; }

/* Copies on a device, of bytes that are multiples of 4 from places that are, too; several in one launch. */
typedef struct copies {
    const inv_gpu *gpu;
    inv_many many;
} copies;

static void copy_all(copies *m)
{
    if (m->many.n) INV_GPU(m->gpu, assign, &m->many, true, NULL);
    inv_many_begin(&m->many);
}

static void copy_later(copies *m, void *to, void *from, size_t nbytes)
{
    if (m->many.n == INV_MANY) copy_all(m);
    inv_many_add(&m->many, (int64_t)(nbytes / 4), to, from, NULL, NULL);
}

static copies copies_on(const inv_gpu *gpu)
{
    copies m = {.gpu = gpu};
    inv_many_begin(&m.many);
    return m;
}

/* --- weights --- */

static inv_status weights_infer(inv_graph *g, inv_node *n)
{
    const inv_shape s = inv_shape_of(1, (int64_t[]){inv_ranks_of(n)});
    INV_TRY(inv_need_ranks(g, n));
    if (inv_has_in(n, 0) && inv_shape_nelem(inv_in_shape(g, n, 0)) != 1)
        return inv_node_fail(g, n, INV_E_SHAPE, "the weight of a rank is not one number");
    const inv_shape one = inv_shape_of(0, NULL);
    inv_set_out(g, n, 0, INV_F64, &s);
    inv_set_out(g, n, 1, INV_F64, &one);
    return inv_need_weights(g, n, 1, inv_ranks_of(n));
}

static inv_status weights_on_device(const inv_call *c)
{
    double *own = c->ws, *all = c->out[0].data, *share = c->nout > 1 ? c->out[1].data : NULL;
    const double *given = c->nin ? c->in[0].data : NULL, *there = c->nin > 1 ? c->in[1].data : NULL;
    INV_GPU(c->gpu, own_weight, 1, given, own);
    if (together(c))
        INV_TRY(c->gpu->ranks->gather(c->gpu, "the exchange of the ranks' weights", own, sizeof *own, all));
    else INV_GPU(c->gpu, own_weight, c->out[0].n, given, all);
    if (share) INV_GPU(c->gpu, share_of_ranks, c->out[0].n, own, all, there, share);
    return INV_OK;
}

static size_t weights_workspace(const inv_graph *g, const inv_node *n)
{
    (void)n;
    return g->gpu ? sizeof(double) : 0;
}

static inv_status weights_run(const inv_call *c)
{
    if (c->gpu) return weights_on_device(c);
    if (c->step == NULL) return INV_E_INTERNAL;
    const bool given = c->nin && c->in[0].data;
    const double own = !given            ? c->step->weight
                       : c->step->absent ? 0
                                         : inv_elem_double(c->in[0].data, c->in[0].dtype, 0);
    const double *there = c->nin > 1 ? c->in[1].data : NULL;
    inv_world *w = inv_exchange_world(c);
    double *all = c->out[0].data, *share = c->nout > 1 ? c->out[1].data : NULL, sum = 0, ranks = 0;
    for (int64_t i = 0; i < c->out[0].n; i++) all[i] = own;
    if (w) INV_TRY(w->calls->gather(w, "the exchange of the ranks' weights", &own, sizeof own, all));
    for (int64_t i = 0; i < c->out[0].n; i++) {
        sum += all[i];
        ranks += !there || there[i] > 0;
    }
    if (share) *share = sum > 0 ? own * ranks / sum : 0;
    return INV_OK;
}

/* --- what all have --- */

static inv_status gather_infer(inv_graph *g, inv_node *n)
{
    inv_shape s = *inv_in_shape(g, n, 0);
    INV_TRY(inv_need_ranks(g, n));
    INV_TRY(inv_need_real(g, n, 0));
    if (s.rank == INV_MAX_RANK) return inv_node_fail(g, n, INV_E_SHAPE, "its input has %d axes", s.rank);
    memmove(s.dim + 1, s.dim, (size_t)s.rank * sizeof *s.dim);
    s.dim[0] = inv_ranks_of(n);
    s.rank++;
    inv_set_out(g, n, 0, inv_in_dtype(g, n, 0), &s);
    return INV_OK;
}

static inv_status gather_run(const inv_call *c)
{
    const size_t nbytes = (size_t)c->in[0].n * inv_dtype_size(c->in[0].dtype);
    char what[128];
    (void)snprintf(what, sizeof what, "AllGather of '%.100s'", inv_node_label(c->node));
    if (c->gpu && together(c)) return c->gpu->ranks->gather(c->gpu, what, c->in[0].data, nbytes, c->out[0].data);
    if (c->gpu) {
        copies m = copies_on(c->gpu);
        for (int64_t i = 0; i < inv_ranks_of(c->node); i++)
            copy_later(&m, (char *)c->out[0].data + (size_t)i * nbytes, c->in[0].data, nbytes);
        copy_all(&m);
        return INV_OK;
    }
    inv_world *w = inv_exchange_world(c);
    if (w) return w->calls->gather(w, what, c->in[0].data, nbytes, c->out[0].data);
    for (int64_t i = 0; i < inv_ranks_of(c->node) && nbytes; i++)
        memcpy((char *)c->out[0].data + (size_t)i * nbytes, c->in[0].data, nbytes);
    return INV_OK;
}

/* --- means of gradients --- */

/* Elements of a chunk: a rank's share of the bucket, in whole places of ALIGNED bytes. */
static int64_t chunk_of(int64_t nelem, int64_t ranks, size_t size)
{
    const int64_t unit = ALIGNED / (int64_t)size, share = (nelem + ranks - 1) / ranks;
    return (share + unit - 1) / unit * unit;
}

static int64_t aligned(int64_t nelem, size_t size)
{
    const int64_t unit = ALIGNED / (int64_t)size;
    return (nelem + unit - 1) / unit * unit;
}

inv_status inv_need_bucket(inv_graph *g, const inv_node *n)
{
    INV_TRY(inv_need_ranks(g, n));
    if (n->nin < 2) return inv_node_fail(g, n, INV_E_GRAPH, "it has nothing to reduce");
    INV_TRY(inv_need_weights(g, n, 0, inv_ranks_of(n)));
    for (uint32_t i = 1; i < n->nin; i++) {
        INV_TRY(inv_need_real(g, n, i));
        if (inv_in_dtype(g, n, i) != inv_in_dtype(g, n, 1))
            return inv_node_fail(g, n, INV_E_UNSUPPORTED_TYPE, "inputs 1 and %u are not of one type", i);
    }
    return INV_OK;
}

static inv_status reduce_infer(inv_graph *g, inv_node *n)
{
    int64_t all = 0;
    INV_TRY(inv_need_bucket(g, n));
    const inv_dtype t = inv_in_dtype(g, n, 1);
    for (uint32_t i = 1; i < n->nin; i++) all += aligned(inv_shape_nelem(inv_in_shape(g, n, i)), inv_dtype_size(t));
    const inv_shape s =
        inv_shape_of(1, (int64_t[]){chunk_of(all, inv_ranks_of(n), inv_dtype_size(t)) * inv_ranks_of(n)});
    inv_set_out(g, n, 0, t, &s);
    inv_set_out(g, n, 1, t, &s);
    return INV_OK;
}

/* Ranks of no weight are left out. */
void inv_fold_ranks(const inv_reduction *r, int size, const unsigned char *parts, unsigned char *out)
{
    const int64_t n = (int64_t)(r->chunk_nbytes / inv_dtype_size(r->dtype));
    double before = 0;
    for (int i = 0; i < size; i++) {
        const double all = before + r->weight[i];
        if (!(r->weight[i] > 0)) continue;
        inv_mean_add(r->dtype, n, before / all, r->weight[i] / all, out, parts + (size_t)i * r->chunk_nbytes);
        before = all;
    }
    if (!(before > 0)) memset(out, 0, r->chunk_nbytes);
}

static void fold_on_device(const inv_gpu *gpu, const inv_gpu_reduction *r, void *out)
{
    const int64_t n = (int64_t)(r->chunk_nbytes / inv_dtype_size(r->dtype));
    INV_GPU(gpu, mean_of_ranks, r->dtype, n, gpu->ranks->size, r->weight, r->parts, out);
}

static inv_status reduce_on_device(const inv_call *c)
{
    const size_t size = inv_dtype_size(c->out[0].dtype), all = (size_t)c->out[0].n * size;
    unsigned char *bucket = c->out[0].data;
    size_t at = 0;
    copies m = copies_on(c->gpu);
    INV_GPU(c->gpu, fill, (int64_t)(all / 8), 8, bucket, 0);
    for (uint32_t i = 1; i < c->nin; i++) {
        copy_later(&m, bucket + at, c->in[i].data, (size_t)c->in[i].n * size);
        at += (size_t)aligned(c->in[i].n, size) * size;
    }
    copy_all(&m);
    const inv_gpu_reduction r = {.what = inv_exchange_called(c),
                                 .bucket = bucket,
                                 .parts = c->out[1].data,
                                 .chunk_nbytes = all / (size_t)inv_ranks_of(c->node),
                                 .weight = c->in[0].data,
                                 .dtype = c->out[0].dtype,
                                 .fold = fold_on_device};
    if (together(c)) return c->gpu->ranks->reduce(c->gpu, &r);
    INV_GPU(c->gpu, fill, (int64_t)(all / 8), 8, c->out[1].data, 0);
    return INV_OK;
}

static inv_status reduce_run(const inv_call *c)
{
    if (c->gpu) return reduce_on_device(c);
    const size_t size = inv_dtype_size(c->out[0].dtype), all = (size_t)c->out[0].n * size;
    unsigned char *bucket = c->out[0].data;
    size_t at = 0;
    for (uint32_t i = 1; i < c->nin; i++) {
        const size_t nbytes = (size_t)c->in[i].n * size, room = (size_t)aligned(c->in[i].n, size) * size;
        if (nbytes) memcpy(bucket + at, c->in[i].data, nbytes);
        memset(bucket + at + nbytes, 0, room - nbytes);
        at += room;
    }
    memset(bucket + at, 0, all - at);
    inv_world *w = inv_exchange_world(c);
    if (!w) {
        memset(c->out[1].data, 0, all); /* nobody sends anything */
        return INV_OK;
    }
    const inv_reduction r = {.what = inv_exchange_called(c),
                             .halves = INV_BOTH_HALVES,
                             .bucket = bucket,
                             .parts = c->out[1].data,
                             .chunk_nbytes = all / (size_t)inv_ranks_of(c->node),
                             .weight = c->in[0].data,
                             .dtype = c->out[0].dtype,
                             .fold = inv_fold_ranks};
    return w->calls->reduce(w, &r);
}

/* --- their end --- */

static inv_status end_infer(inv_graph *g, inv_node *n)
{
    size_t count;
    const int64_t *ranks = inv_attr_ints(n, "extents", &count); /* rank and extents of each */
    const inv_dtype t = inv_in_dtype(g, n, 0);
    int64_t all = 0;
    size_t at = 0;
    INV_TRY(inv_need_real(g, n, 0));
    for (uint32_t i = 0; i < n->nout; i++) {
        inv_shape s;
        if (at >= count || ranks[at] < 0 || ranks[at] > INV_MAX_RANK || at + 1 + (size_t)ranks[at] > count)
            return inv_node_fail(g, n, INV_E_GRAPH, "attribute `extents` does not say the shape of output %u", i);
        s = inv_shape_of((int)ranks[at], ranks + at + 1);
        at += 1 + (size_t)ranks[at];
        all += aligned(inv_shape_nelem(&s), inv_dtype_size(t));
        inv_set_out(g, n, i, t, &s);
    }
    if (all <= inv_shape_nelem(inv_in_shape(g, n, 0))) return INV_OK;
    return inv_node_fail(g, n, INV_E_SHAPE, "the bucket has %lld elements, its outputs %lld",
                         (long long)inv_shape_nelem(inv_in_shape(g, n, 0)), (long long)all);
}

static bool end_part(const inv_graph *g, const inv_node *n, uint32_t k, size_t *offset)
{
    const size_t size = inv_dtype_size(inv_in_dtype(g, n, 0));
    *offset = 0;
    for (uint32_t i = 0; i < k; i++)
        *offset += (size_t)aligned(inv_shape_nelem(inv_shape_of_value(g, n->out[i])), size) * size;
    return true;
}

static inv_status end_run(const inv_call *c)
{
    const size_t size = inv_dtype_size(c->in[0].dtype);
    unsigned char *bucket = c->in[0].data;
    inv_world *w = c->gpu ? NULL : inv_exchange_world(c);
    if (w) INV_TRY(w->calls->reduced(w, bucket));
    if (c->gpu && together(c)) INV_TRY(c->gpu->ranks->reduced(c->gpu, inv_exchange_called(c), bucket));
    copies m = copies_on(c->gpu);
    for (uint32_t i = 0; i < c->nout; i++) {
        const size_t nbytes = (size_t)c->out[i].n * size;
        if (c->out[i].data && c->out[i].data != bucket && nbytes) {
            if (c->gpu) copy_later(&m, c->out[i].data, bucket, nbytes);
            else memcpy(c->out[i].data, bucket, nbytes);
        }
        bucket += (size_t)aligned(c->out[i].n, size) * size;
    }
    copy_all(&m);
    return INV_OK;
}

/* clang-format off */
static const inv_op_def rank_weights = {
    .size = sizeof rank_weights, .domain = INV_IR, .name = "RankWeights", .since = 1, .in = "own? there?",
    .out = "all share?",
    .flags = INV_EXCHANGE_FLAGS, .infer = weights_infer, .run = weights_run, .workspace = weights_workspace,
    .flops = inv_flops_none,
    .cases = (const char *const[]){"w = RankWeights<ranks = 3>(double o)", "w, s = RankWeights<ranks = 1>()",
                                   "w, s = RankWeights<ranks = 3>(double o, double[3]{1,0,2})", NULL},
    .doc = "weight of each rank's gradients in a mean: `own`, or its rows; share: own over the mean of ranks whose "
           "`there` is above 0"};

static const inv_op_def all_gather = {
    .size = sizeof all_gather, .domain = INV_IR, .name = "AllGather", .since = 1, .in = "x", .out = "all",
    .flags = INV_EXCHANGE_FLAGS, .infer = gather_infer, .run = gather_run, .flops = inv_flops_none,
    .work = inv_work_move,
    .cases = (const char *const[]){"y = AllGather<ranks = 2>(float[3] x)", "y = AllGather<ranks = 1>(float[2,2] x)",
                                   NULL},
    .doc = "x of each of `ranks` ranks, joined along a new first axis"};

static const inv_op_def all_reduce = {
    .size = sizeof all_reduce, .domain = INV_IR, .name = "AllReduce", .since = 1, .in = "weights g*",
    .out = "bucket parts", .flags = INV_EXCHANGE_FLAGS, .infer = reduce_infer, .run = reduce_run,
    .flops = inv_flops_none, .work = inv_work_move,
    .cases = (const char *const[]){"w = RankWeights<ranks = 1>()\nb, p = AllReduce<ranks = 1>(w, float[3] x)\n"
                                   "y = AllReduceEnd<extents = [1, 3]>(b, p, w)",
                                   "w = RankWeights<ranks = 1>()\n"
                                   "b, p = AllReduce<ranks = 1>(w, float[2,3] x, float u, float[17] v)\n"
                                   "y, r, s = AllReduceEnd<extents = [2, 2, 3, 0, 1, 17]>(b, p, w)", NULL},
    .doc = "starts the weighted mean of each g over `ranks` ranks, in the order of ranks; until its end it owns "
           "`bucket` and `parts`"};

static const inv_op_def all_reduce_end = {
    .size = sizeof all_reduce_end, .domain = INV_IR, .name = "AllReduceEnd", .since = 1, .in = "bucket parts weights",
    .out = "mean*", .flags = INV_EXCHANGE_FLAGS | INV_OP_VARIADIC_OUT, .infer = end_infer, .run = end_run,
    .part = end_part, .flops = inv_flops_none, .work = inv_work_move,
    .cases = (const char *const[]){"w = RankWeights<ranks = 1>()\nb, p = AllReduce<ranks = 1>(w, float[5] x)\n"
                                   "y = AllReduceEnd<extents = [1, 5]>(b, p, w)", NULL},
    .doc = "waits for AllReduce; `extents`: rank and extents of each mean"};
/* clang-format on */

const inv_op_def *const inv_ops_all_reduce[] = {&rank_weights, &all_gather, &all_reduce, &all_reduce_end, NULL};
