/* SPDX-License-Identifier: Apache-2.0
 * Batch normalization of ranks that train together by the statistics of the rows of all, and gradients through these:
 * what each rank finds of its rows becomes what all have (ops/norm/batchnorm.c). A rank's rows then act on the others'
 * losses, so backward starts on each from its part of the loss of all, times the number of ranks that have rows, and
 * the gradients of parameters are plain means over these. requires: plan->loss.  gives: plan->seed, plan->weights.
 * Statistics stay the values that they were, so matches hold. O(nodes). */
#include <string.h>

#include "core/program/exchange.h"
#include "core/program/pass.h"
#include "passes/autodiff/autodiff.h"

typedef struct syncing {
    inv_graph *g;
    inv_attr ranks;
    inv_id there; /* per rank: 1 if it has rows of the batch, else 0 */
    size_t found;
} syncing;

/* The node keeps its place and its outputs, and joins what all ranks have in place of computing. */
static inv_status join_statistics(syncing *s, inv_id id)
{
    inv_graph *g = s->g;
    const inv_node of = *inv_nod(g, id);
    const inv_attr to = inv_attr_of_int("to", inv_val(g, of.out[0])->dtype);
    inv_emit_for(g, &of);
    inv_id *in = INV_ARENA_NEW(&g->arena, inv_id, 2);
    inv_attr *attr = INV_ARENA_NEW(&g->arena, inv_attr, 1);
    if (!in || !attr) return INV_E_NOMEM;
    const inv_id moments = inv_emit1(g, "BatchMoments", 1, of.in, of.nattr, of.attr);
    in[0] = inv_emit1(g, "AllGather", INV_IN(moments), 1, &s->ranks);
    in[1] = s->there;
    if (g->failed) return g->failed;
    *attr = to;
    inv_node *n = inv_nod(g, id);
    n->op = inv_registry_op(g->ctx->registry, "", "JoinMoments", 0);
    n->op_type = n->op->name;
    n->in = in;
    n->nin = 2;
    n->attr = attr;
    n->nattr = 1;
    s->found++;
    return INV_OK;
}

/* What it normalizes by is of all ranks. */
static inv_status tell_count(syncing *s, inv_id id)
{
    inv_graph *g = s->g;
    const inv_id join = inv_val(g, inv_nod(g, id)->in[3])->def, count = inv_node_want(g, join, 2);
    inv_node *n = inv_nod(g, id);
    inv_id *in = INV_ARENA_NEW(&g->arena, inv_id, 7);
    inv_attr *attr = INV_ARENA_NEW(&g->arena, inv_attr, n->nattr + 1);
    if (count == INV_NONE || !in || !attr) return INV_E_NOMEM;
    memcpy(in, n->in, 5 * sizeof *in);
    in[5] = count;
    in[6] = s->there;
    if (n->nattr) memcpy(attr, n->attr, n->nattr * sizeof *attr);
    attr[n->nattr] = s->ranks;
    n->in = in;
    n->nin = 7;
    n->attr = attr;
    n->nattr++;
    return INV_OK;
}

/* BatchStats of what is computed with; the same node in inverses' templates is of rows, and of no order. */
static inv_status sync_statistics(syncing *s)
{
    inv_graph *g = s->g;
    const inv_ids old = g->order;
    const double one = 1;
    const inv_shape scalar = inv_shape_of(0, NULL);
    memset(&g->order, 0, sizeof g->order);
    inv_emit_for(g, NULL);
    const inv_id own = inv_graph_const(g, INV_F64, &scalar, &one);
    s->there = inv_emit1(g, "RankWeights", INV_IN(own), 1, &s->ranks);
    if (g->failed) return g->failed;
    for (size_t i = 0; i < old.n; i++) {
        const inv_id id = old.at[i];
        if (inv_op_is(inv_nod(g, id), "BatchStats")) INV_TRY(join_statistics(s, id));
        if (!inv_vec_push(&g->arena, &g->order, id)) return INV_E_NOMEM;
        const inv_node *n = inv_nod(g, id);
        if (inv_op_is(n, "BatchNormApply") && inv_op_is(inv_def_node(g, n->in[3]), "JoinMoments"))
            INV_TRY(tell_count(s, id));
    }
    return INV_OK;
}

/* This rank's part of the loss of all, of the loss's type and shape. */
static inv_status start_from_part(syncing *s, inv_plan *plan)
{
    inv_graph *g = s->g;
    const inv_value loss = *inv_val(g, plan->loss);
    inv_emit_for(g, NULL);
    const inv_id weights = inv_emit(g, "RankWeights", 2, INV_IN(plan->total, s->there), 1, &s->ranks);
    if (g->failed) return g->failed;
    inv_id seed = inv_nod(g, weights)->out[1];
    if (loss.dtype != INV_F64) seed = inv_emit1(g, "Cast", INV_IN(seed), INV_ATTRS(inv_attr_of_int("to", loss.dtype)));
    if (loss.shape.rank > 0)
        seed = inv_emit1(g, "View", INV_IN(seed),
                         INV_ATTRS(inv_attr_of_ints("shape", (size_t)loss.shape.rank, loss.shape.dim)));
    plan->seed = seed;
    plan->weights = s->there;
    return g->failed;
}

inv_status inv_pass_sync_norms(inv_graph *g, const inv_request *rq, inv_plan *plan)
{
    const inv_session_options *o = rq->options;
    plan->seed = INV_NONE;
    if (!o->sync_bn || !inv_world_several(o->world) || rq->purpose != INV_FOR_TRAIN || !rq->optimize) return INV_OK;
    syncing s = {.g = g, .ranks = inv_attr_of_int("ranks", o->world->size)};
    g->phase = INV_FORWARD;
    INV_TRY(sync_statistics(&s));
    INV_CHECK(s.found, g->ctx, INV_E_ARG,
              "{sync_bn}: the model has no batch normalization that trains, so nothing uses statistics of the batch. "
              "{train_bn} trains those exported in evaluation mode");
    return start_from_part(&s, plan);
}
