/* SPDX-License-Identifier: Apache-2.0
 * Gradients of ranks that train together become means over all of them, in buckets: several gradients are one message.
 * A bucket is let go behind the node that completes the last of its gradients, and waited for when the one behind the
 * next is about to be let go, so that two are on their way beside backward and the plan counts the bytes of so many.
 * Gradients are bucketed in the order in which they are complete; all ranks have the same order, which
 * inv_ranks_agree looks at.
 *
 * Where gradients are shared out (shard gradients), a rank gets its part of each, and buckets are gone behind their
 * end.
 *
 * How large: what a message costs beside its bytes is to be little of it. Of a network with latency l and bandwidth b a
 * bucket of SHARE l b bytes for each rank takes 1 / SHARE more than its bytes do.
 * requires: plan->grad.  gives: plan->grad, whose values are means; plan->weights. O(nodes). */
#include <stdlib.h>
#include <string.h>

#include "core/program/exchange.h"
#include "passes/autodiff/autodiff.h"

enum { SHARE = 8, LEAST = 64 << 10, IN_FLIGHT = 2 };

typedef struct arrived {
    size_t at, slot; /* position behind which it is there; place in plan->grad */
} arrived;

typedef struct bucket {
    size_t first, n;   /* in the order of arrival */
    inv_id begin, end; /* nodes */
} bucket;

typedef struct reducer {
    inv_graph *g;
    inv_plan *plan;
    const inv_session_options *options;
    int64_t ranks;
    arrived *list;
    INV_VEC(bucket) bucket;
    inv_arena scratch;
} reducer;

size_t inv_bucket_nbytes(const inv_world *w)
{
    const double wanted = SHARE * w->latency * w->bytes_per_second * w->size;
    size_t nbytes = LEAST;
    while ((double)nbytes < wanted && nbytes < (size_t)1 << 30)
        nbytes *= 2; /* so that measuring again gives the same */
    return nbytes;
}

static int by_arrival(const void *a, const void *b)
{
    const arrived *x = a, *y = b;
    if (x->at != y->at) return x->at < y->at ? -1 : 1;
    return (x->slot > y->slot) - (x->slot < y->slot);
}

static inv_status find_arrivals(reducer *r)
{
    const inv_graph *g = r->g;
    size_t *at = INV_ARENA_NEW(&r->scratch, size_t, g->value.n + 1);
    r->list = INV_ARENA_NEW(&r->scratch, arrived, r->plan->grad.n + 1);
    if (r->scratch.failed) return INV_E_NOMEM;
    for (size_t i = 0; i < g->order.n; i++) {
        const inv_node *n = inv_nod(g, g->order.at[i]);
        for (uint32_t k = 0; k < n->nout; k++)
            if (n->out[k] != INV_NONE) at[n->out[k]] = i;
    }
    for (size_t i = 0; i < r->plan->grad.n; i++) r->list[i] = (arrived){at[r->plan->grad.at[i].value], i};
    qsort(r->list, r->plan->grad.n, sizeof *r->list, by_arrival);
    return INV_OK;
}

static const inv_value *gradient(const reducer *r, size_t i)
{
    return inv_val(r->g, r->plan->grad.at[r->list[i].slot].value);
}

static inv_status fill_buckets(reducer *r, size_t most)
{
    size_t nbytes = 0;
    for (size_t i = 0; i < r->plan->grad.n; i++) {
        const inv_value *v = gradient(r, i);
        size_t more = 0;
        if (!inv_shape_nbytes(&v->shape, v->dtype, &more)) return INV_E_SHAPE;
        bucket *last = r->bucket.n ? &r->bucket.at[r->bucket.n - 1] : NULL;
        if (last && nbytes + more <= most && v->dtype == gradient(r, last->first)->dtype) {
            last->n++;
            nbytes += more;
            continue;
        }
        if (!inv_vec_push(&r->scratch, &r->bucket, ((bucket){.first = i, .n = 1}))) return INV_E_NOMEM;
        nbytes = more;
    }
    return INV_OK;
}

/* Begin and end of one whose ranks all have the means. */
static void emit_whole(reducer *r, bucket *b, const inv_id *in, int64_t *extents)
{
    inv_graph *g = r->g;
    size_t count = 0;
    for (size_t i = 0; i < b->n; i++) {
        const inv_shape *s = &gradient(r, b->first + i)->shape;
        extents[count++] = s->rank;
        for (int d = 0; d < s->rank; d++) extents[count++] = s->dim[d];
    }
    b->begin = inv_emit(g, "AllReduce", 2, (uint32_t)b->n + 1, in, INV_ATTRS(inv_attr_of_int("ranks", r->ranks)));
    if (g->failed) return;
    const inv_id *out = inv_nod(g, b->begin)->out;
    b->end = inv_emit(g, "AllReduceEnd", (uint32_t)b->n, INV_IN(out[0], out[1], in[0]),
                      INV_ATTRS(inv_attr_of_ints("extents", count, extents)));
}

/* ... and of one whose ranks have a part each. */
static void emit_parts(reducer *r, bucket *b, const inv_id *in, int64_t *length)
{
    inv_graph *g = r->g;
    for (size_t i = 0; i < b->n; i++) {
        const char *name = r->plan->grad.at[r->list[b->first + i].slot].name;
        length[i] = inv_shard_length(g, r->options, inv_graph_find(g, name));
    }
    const inv_attr attr[] = {inv_attr_of_int("ranks", r->ranks), inv_attr_of_ints("lengths", b->n, length)};
    b->begin = inv_emit(g, "ReduceScatter", 2, (uint32_t)b->n + 1, in, 2, attr);
    if (g->failed) return;
    const inv_id *out = inv_nod(g, b->begin)->out;
    b->end = inv_emit(g, "ReduceScatterEnd", (uint32_t)b->n, INV_IN(out[0], out[1], in[0]), 2, attr);
}

/* Its gradients are the means from now on. */
static inv_status emit_bucket(reducer *r, bucket *b)
{
    inv_graph *g = r->g;
    inv_id *in = INV_ARENA_NEW(&r->scratch, inv_id, b->n + 1);
    int64_t *numbers = INV_ARENA_NEW(&r->scratch, int64_t, b->n * (1 + INV_MAX_RANK) + 1);
    if (r->scratch.failed) return INV_E_NOMEM;
    in[0] = r->plan->weights;
    for (size_t i = 0; i < b->n; i++) in[1 + i] = r->plan->grad.at[r->list[b->first + i].slot].value;
    if (r->options->shard == INV_SHARD_GRADIENTS) emit_parts(r, b, in, numbers);
    else emit_whole(r, b, in, numbers);
    if (g->failed) return g->failed;
    inv_node *begin = inv_nod(g, b->begin);
    begin->name =
        inv_arena_printf(&g->arena, "%s of '%s'%s", begin->op_type, r->plan->grad.at[r->list[b->first].slot].name,
                         b->n > 1 ? " and other gradients" : "");
    const inv_id *out = begin->out;
    for (size_t i = 0; i < b->n; i++) {
        const inv_id mean = inv_nod(g, b->end)->out[i];
        inv_val(g, mean)->mem = INV_MEM_GRAD;
        r->plan->grad.at[r->list[b->first + i].slot].value = mean;
    }
    inv_val(g, out[0])->mem = inv_val(g, out[1])->mem = INV_MEM_GRAD;
    return INV_OK;
}

/* The nodes that were emitted behind `old` go to their places. */
static inv_status place_nodes(reducer *r, const inv_ids *old)
{
    inv_graph *g = r->g;
    size_t next = 0;
    bool ok = true;
    memset(&g->order, 0, sizeof g->order);
    const inv_id weights = r->plan->seed == INV_NONE ? inv_val(g, r->plan->weights)->def : INV_NONE; /* there already */
    const size_t after = r->plan->total == INV_NONE ? SIZE_MAX : inv_val(g, r->plan->total)->def;
    if (weights != INV_NONE && after == SIZE_MAX) ok = inv_vec_push(&g->arena, &g->order, weights);
    for (size_t i = 0; i <= old->n && ok; i++) {
        if (i < old->n) ok = inv_vec_push(&g->arena, &g->order, old->at[i]);
        if (weights != INV_NONE && i < old->n && old->at[i] == after)
            ok = ok && inv_vec_push(&g->arena, &g->order, weights);
        for (; next < r->bucket.n && ok; next++) {
            const bucket *b = &r->bucket.at[next];
            if (i < old->n && r->list[b->first + b->n - 1].at > i) break;
            if (next >= IN_FLIGHT) ok = inv_vec_push(&g->arena, &g->order, r->bucket.at[next - IN_FLIGHT].end);
            ok = ok && inv_vec_push(&g->arena, &g->order, b->begin);
        }
    }
    for (size_t k = r->bucket.n > IN_FLIGHT ? r->bucket.n - IN_FLIGHT : 0; k < r->bucket.n && ok; k++)
        ok = inv_vec_push(&g->arena, &g->order, r->bucket.at[k].end);
    return ok ? INV_OK : INV_E_NOMEM;
}

inv_status inv_rank_weights(inv_graph *g, int64_t ranks, inv_plan *plan)
{
    const inv_attr attr = inv_attr_of_int("ranks", ranks);
    if (plan->weights == INV_NONE)
        plan->weights = inv_emit1(g, "RankWeights", plan->total == INV_NONE ? 0 : 1, &plan->total, 1, &attr);
    return g->failed;
}

static inv_status reduce(reducer *r, const inv_world *w)
{
    inv_graph *g = r->g;
    const inv_ids old = g->order;
    INV_TRY(find_arrivals(r));
    INV_TRY(fill_buckets(r, inv_bucket_nbytes(w)));
    g->phase = INV_BACKWARD;
    INV_TRY(inv_rank_weights(g, r->ranks, r->plan));
    for (size_t i = 0; i < r->bucket.n; i++) INV_TRY(emit_bucket(r, &r->bucket.at[i]));
    inv_ids before = {.at = INV_ARENA_NEW(&r->scratch, inv_id, old.n + 1), .n = old.n};
    if (!before.at) return INV_E_NOMEM;
    if (old.n) memcpy(before.at, g->order.at, old.n * sizeof *before.at);
    return place_nodes(r, &before);
}

inv_status inv_pass_reduce_gradients(inv_graph *g, const inv_request *rq, inv_plan *plan)
{
    const inv_world *w = rq->options->world;
    if (!inv_world_several(w) || !rq->optimize || rq->accumulate || plan->grad.n == 0) return INV_OK;
    reducer r = {.g = g, .plan = plan, .options = rq->options, .ranks = w->size};
    inv_arena_init(&r.scratch, g->ctx);
    const inv_status s = reduce(&r, w);
    inv_arena_fini(&r.scratch);
    return s;
}
