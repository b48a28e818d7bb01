/* SPDX-License-Identifier: Apache-2.0
 * Where ranks share the work of an update (passes/autodiff/shard_update.c): each has a part of every gradient and
 * parameter, the elements from rank * length on, of one length on all; behind a parameter's last element there are
 * zeros. ReduceScatter gives a rank its part of the means of gradients, OwnPart its part of a parameter, and
 * AllGatherParts puts updated parts back into the parameters of all. The first and the last are two nodes each, since
 * they are on their way while others run.
 *
 *     bucket = [ parts of rank 0: g0 g1 ... | parts of rank 1: g0 g1 ... | ... ]     a chunk per rank
 */
#include <string.h>

#include "ops/base/families.h"
#include "ops/train/exchanges.h"

enum { ALIGNED = 64, /* bytes: chunks begin there */ MOST_WRITTEN = 31 /* the column `writes` has so many bits */ };

/* Lengths of parts by attribute `lengths`, one for each of `count` tensors; NULL: the node has others. */
static const int64_t *lengths_of(const inv_node *n, size_t count)
{
    size_t given;
    const int64_t *length = inv_attr_ints(n, "lengths", &given);
    for (size_t i = 0; i < given && length; i++)
        if (length[i] < 0) return NULL;
    return given == count ? length : NULL;
}

static inv_status no_lengths(inv_graph *g, const inv_node *n)
{
    return inv_node_fail(g, n, INV_E_GRAPH, "attribute `lengths` does not say how long each part is");
}

/* A part takes all of its elements, in whole, of every rank. */
static inv_status need_length(inv_graph *g, const inv_node *n, uint32_t i, int64_t length)
{
    const int64_t nelem = inv_shape_nelem(inv_in_shape(g, n, i));
    if (length * inv_ranks_of(n) >= nelem) return INV_OK;
    return inv_node_fail(g, n, INV_E_SHAPE, "input %u has %lld elements, and %lld parts have %lld each", i,
                         (long long)nelem, (long long)inv_ranks_of(n), (long long)length);
}

static size_t round_up(size_t nbytes) { return (nbytes + ALIGNED - 1) / ALIGNED * ALIGNED; }

/* --- means of gradients --- */

static inv_status scatter_infer(inv_graph *g, inv_node *n)
{
    INV_TRY(inv_need_bucket(g, n));
    const int64_t *length = lengths_of(n, n->nin - 1);
    if (!length) return no_lengths(g, n);
    const inv_dtype t = inv_in_dtype(g, n, 1);
    size_t chunk = 0;
    for (uint32_t i = 1; i < n->nin; i++) {
        INV_TRY(need_length(g, n, i, length[i - 1]));
        chunk += (size_t)length[i - 1] * inv_dtype_size(t);
    }
    const inv_shape s = inv_shape_of(1, (int64_t[]){(int64_t)(round_up(chunk) / inv_dtype_size(t)) * inv_ranks_of(n)});
    inv_set_out(g, n, 0, t, &s);
    inv_set_out(g, n, 1, t, &s);
    return INV_OK;
}

/* The part of tensor x, of so many elements, that rank `of` has, and zeros behind it, go to `to`. */
static void take_part(unsigned char *to, const inv_tensor *x, int64_t length, int64_t of)
{
    const size_t size = inv_dtype_size(x->dtype);
    const size_t nbytes = (size_t)inv_part_count(x->n, length, of) * size, whole = (size_t)length * size;
    if (nbytes) memcpy(to, (const unsigned char *)x->data + (size_t)(of * length) * size, nbytes);
    if (nbytes < whole) memset(to + nbytes, 0, whole - nbytes);
}

static inv_status scatter_run(const inv_call *c)
{
    const int64_t ranks = inv_ranks_of(c->node), *length = lengths_of(c->node, c->nin - 1);
    const size_t size = inv_dtype_size(c->out[0].dtype), chunk = (size_t)(c->out[0].n / ranks) * size;
    for (int64_t r = 0; r < ranks; r++) {
        unsigned char *at = (unsigned char *)c->out[0].data + (size_t)r * chunk, *const end = at + chunk;
        for (uint32_t i = 1; i < c->nin; i++) {
            take_part(at, &c->in[i], length[i - 1], r);
            at += (size_t)length[i - 1] * size;
        }
        memset(at, 0, (size_t)(end - at));
    }
    inv_world *w = inv_exchange_world(c);
    if (!w) return INV_OK;
    const inv_reduction r = {.what = inv_exchange_called(c),
                             .halves = INV_SCATTER,
                             .bucket = c->out[0].data,
                             .parts = c->out[1].data,
                             .chunk_nbytes = chunk,
                             .weight = c->in[0].data,
                             .dtype = c->out[0].dtype,
                             .fold = inv_fold_ranks};
    return w->calls->reduce(w, &r);
}

static inv_status scatter_end_infer(inv_graph *g, inv_node *n)
{
    const int64_t *length = lengths_of(n, n->nout);
    int64_t all = 0;
    INV_TRY(inv_need_ranks(g, n));
    INV_TRY(inv_need_real(g, n, 0));
    if (!length) return no_lengths(g, n);
    for (uint32_t i = 0; i < n->nout; i++) {
        const inv_shape s = inv_shape_of(1, &length[i]);
        inv_set_out(g, n, i, inv_in_dtype(g, n, 0), &s);
        all += length[i];
    }
    const int64_t bucket = inv_shape_nelem(inv_in_shape(g, n, 0));
    if (all * inv_ranks_of(n) <= bucket) return INV_OK;
    return inv_node_fail(g, n, INV_E_SHAPE, "the bucket has %lld elements, its outputs %lld of each rank",
                         (long long)bucket, (long long)all);
}

/* Parts are copied, so that the bucket, which is many times as large, can go. */
static inv_status scatter_end_run(const inv_call *c)
{
    const size_t size = inv_dtype_size(c->in[0].dtype);
    const unsigned char *at = c->in[0].data;
    inv_world *w = inv_exchange_world(c);
    if (w) INV_TRY(w->calls->reduced(w, c->in[0].data));
    at += (size_t)inv_exchange_rank(c) * (size_t)(c->in[0].n / inv_ranks_of(c->node)) * size;
    for (uint32_t i = 0; i < c->nout; i++) {
        const size_t nbytes = (size_t)c->out[i].n * size;
        if (c->out[i].data && nbytes) memcpy(c->out[i].data, at, nbytes);
        at += nbytes;
    }
    return INV_OK;
}

/* --- parameters --- */

static inv_status own_infer(inv_graph *g, inv_node *n)
{
    const int64_t *length = lengths_of(n, 1);
    INV_TRY(inv_need_ranks(g, n));
    if (!length) return no_lengths(g, n);
    const inv_shape s = inv_shape_of(1, length);
    inv_set_out(g, n, 0, inv_in_dtype(g, n, 0), &s);
    return need_length(g, n, 0, *length);
}

static inv_status own_run(const inv_call *c)
{
    take_part(c->out[0].data, &c->in[0], c->out[0].n, inv_exchange_rank(c));
    return INV_OK;
}

static inv_status gather_infer(inv_graph *g, inv_node *n)
{
    size_t chunk = 0;
    INV_TRY(inv_need_ranks(g, n));
    for (uint32_t i = 0; i < n->nin; i++) chunk += inv_value_nbytes(inv_val(g, n->in[i]));
    const inv_shape s = inv_shape_of(1, (int64_t[]){(int64_t)round_up(chunk) * inv_ranks_of(n)});
    inv_set_out(g, n, 0, INV_U8, &s);
    return INV_OK;
}

static inv_status gather_run(const inv_call *c)
{
    const size_t chunk = (size_t)(c->out[0].n / inv_ranks_of(c->node));
    unsigned char *at = (unsigned char *)c->out[0].data + (size_t)inv_exchange_rank(c) * chunk, *const end = at + chunk;
    for (uint32_t i = 0; i < c->nin; i++) {
        const size_t nbytes = (size_t)c->in[i].n * inv_dtype_size(c->in[i].dtype);
        if (nbytes) memcpy(at, c->in[i].data, nbytes);
        at += nbytes;
    }
    memset(at, 0, (size_t)(end - at));
    inv_world *w = inv_exchange_world(c);
    const inv_reduction r = {
        .what = inv_exchange_called(c), .halves = INV_SPREAD, .bucket = c->out[0].data, .chunk_nbytes = chunk};
    return w ? w->calls->reduce(w, &r) : INV_OK;
}

static inv_status gather_end_infer(inv_graph *g, inv_node *n)
{
    const int64_t *length = lengths_of(n, n->nin - 1);
    size_t chunk = 0;
    INV_TRY(inv_need_ranks(g, n));
    if (!length) return no_lengths(g, n);
    if (n->nin > MOST_WRITTEN + 1) return inv_node_fail(g, n, INV_E_GRAPH, "it writes %u parameters", n->nin - 1);
    for (uint32_t i = 1; i < n->nin; i++) {
        INV_TRY(need_length(g, n, i, length[i - 1]));
        chunk += (size_t)length[i - 1] * inv_dtype_size(inv_in_dtype(g, n, i));
    }
    if (inv_in_dtype(g, n, 0) == INV_U8 &&
        (int64_t)round_up(chunk) * inv_ranks_of(n) == inv_shape_nelem(inv_in_shape(g, n, 0)))
        return INV_OK;
    return inv_node_fail(g, n, INV_E_SHAPE, "its first input has not the parts of %zu bytes of each rank", chunk);
}

static inv_status gather_end_run(const inv_call *c)
{
    const int64_t ranks = inv_ranks_of(c->node), *length = lengths_of(c->node, c->nin - 1);
    const size_t chunk = (size_t)(c->in[0].n / ranks);
    inv_world *w = inv_exchange_world(c);
    if (w) INV_TRY(w->calls->reduced(w, c->in[0].data));
    for (int64_t r = 0; r < (w ? ranks : 1); r++) { /* a process by itself has nothing of others */
        const unsigned char *at = (const unsigned char *)c->in[0].data + (size_t)r * chunk;
        for (uint32_t i = 1; i < c->nin; i++) {
            const size_t size = inv_dtype_size(c->in[i].dtype);
            const size_t nbytes = (size_t)inv_part_count(c->in[i].n, length[i - 1], r) * size;
            if (nbytes) memcpy((unsigned char *)c->in[i].data + (size_t)(r * length[i - 1]) * size, at, nbytes);
            at += (size_t)length[i - 1] * size;
        }
    }
    return INV_OK;
}

/* clang-format off */
static const inv_op_def reduce_scatter = {
    .size = sizeof reduce_scatter, .domain = INV_IR, .name = "ReduceScatter", .since = 1, .in = "weights g*",
    .out = "bucket parts", .flags = INV_EXCHANGE_FLAGS | INV_OP_HOST_ONLY, .infer = scatter_infer, .run = scatter_run,
    .flops = inv_flops_none, .work = inv_work_move,
    .cases = (const char *const[]){
        "w = RankWeights<ranks = 1>()\nb, p = ReduceScatter<ranks = 1, lengths = [5]>(w, float[5] x)\n"
        "y = ReduceScatterEnd<ranks = 1, lengths = [5]>(b, p, w)",
        "w = RankWeights<ranks = 3>(double o)\n"
        "b, p = ReduceScatter<ranks = 3, lengths = [2, 1, 6]>(w, float[2,3] x, float u, float[17] v)\n"
        "y, r, s = ReduceScatterEnd<ranks = 3, lengths = [2, 1, 6]>(b, p, w)", NULL},
    .doc = "starts the mean of each g over `ranks` ranks, which get a part each; until its end it owns `bucket` and "
           "`parts`"};

static const inv_op_def reduce_scatter_end = {
    .size = sizeof reduce_scatter_end, .domain = INV_IR, .name = "ReduceScatterEnd", .since = 1,
    .in = "bucket parts weights", .out = "part*", .flags = INV_EXCHANGE_FLAGS | INV_OP_HOST_ONLY | INV_OP_VARIADIC_OUT,
    .infer = scatter_end_infer, .run = scatter_end_run, .flops = inv_flops_none, .work = inv_work_move,
    .cases = (const char *const[]){
        "w = RankWeights<ranks = 2>()\nb, p = ReduceScatter<ranks = 2, lengths = [2]>(w, float[3] x)\n"
        "y = ReduceScatterEnd<ranks = 2, lengths = [2]>(b, p, w)", NULL},
    .doc = "waits for ReduceScatter; `lengths`: elements of this rank's part of each mean"};

static const inv_op_def own_part = {
    .size = sizeof own_part, .domain = INV_IR, .name = "OwnPart", .since = 1, .in = "w", .out = "part",
    .flags = INV_OP_RANDOM | INV_OP_NO_GRAD | INV_OP_NO_CLONE | INV_OP_HOST_ONLY | INV_OP_EXCHANGES,
    .infer = own_infer, .run = own_run, .flops = inv_flops_none, .work = inv_work_stream,
    .cases = (const char *const[]){"p = OwnPart<ranks = 3, lengths = [4]>(float[2,5] w)",
                                   "p = OwnPart<ranks = 1, lengths = [3]>(float[3] w)", NULL},
    .doc = "the elements of w from `lengths` times this rank's number on, `lengths` of them, zeros after the last"};

static const inv_op_def gather_parts = {
    .size = sizeof gather_parts, .domain = INV_IR, .name = "AllGatherParts", .since = 1, .in = "part*", .out = "all",
    .flags = INV_EXCHANGE_FLAGS | INV_OP_HOST_ONLY | INV_OP_AFTER_UPDATE, .infer = gather_infer, .run = gather_run,
    .flops = inv_flops_none, .work = inv_work_move,
    .cases = (const char *const[]){"a = AllGatherParts<ranks = 2>(float[3] x, float[2] y)",
                                   "a = AllGatherParts<ranks = 1>(float[3] x)", NULL},
    .doc = "begins to give the parts of each of `ranks` ranks to all; until its end `all` belongs to it"};

static const inv_op_def gather_parts_end = {
    .size = sizeof gather_parts_end, .domain = INV_IR, .name = "AllGatherPartsEnd", .since = 1, .in = "all w*",
    .out = "", .flags = INV_EXCHANGE_FLAGS | INV_OP_HOST_ONLY, .writes = 0xfffffffeu, .infer = gather_end_infer,
    .run = gather_end_run, .flops = inv_flops_none, .work = inv_work_move,
    .doc = "waits for AllGatherParts; each w gets its parts, of `lengths` elements"};
/* clang-format on */

const inv_op_def *const inv_ops_reduce_scatter[] = {&reduce_scatter, &reduce_scatter_end, &own_part,
                                                    &gather_parts,   &gather_parts_end,   NULL};
