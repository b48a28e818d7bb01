/* SPDX-License-Identifier: Apache-2.0
 * Updates that ranks share (ZeRO, Rajbhandari et al. 2020, arXiv 1910.02054): each rank has an equal part of every
 * parameter's states, updates that part of the parameter, and gives it to all. Parts are by parameter, so states have
 * the names that they always have, whatever goes together in a message.
 *
 *     w  --OwnPart--> part --.
 *     gradient's part ------[update]--> part --AllGatherParts--> room --AllGatherPartsEnd--> w
 *     states' parts --------'
 *
 * Updated parts go in buckets, as gradients do, each while the next one is being updated.
 * requires: the commit part is being emitted.  gives: its nodes. */
#include <string.h>

#include "core/program/exchange.h"
#include "passes/autodiff/autodiff.h"
#include "passes/autodiff/optimizer_whole_tensor.h"

bool inv_shards(const inv_session_options *o) { return o->shard != INV_SHARD_NONE && inv_world_several(o->world); }

inv_id inv_shard_part(inv_graph *g, const inv_session_options *o, inv_id v, int64_t length)
{
    return inv_emit1(g, "OwnPart", INV_IN(v),
                     INV_ATTRS(inv_attr_of_int("ranks", o->world->size), inv_attr_of_ints("lengths", 1, &length)));
}

inv_status inv_shard_state(inv_graph *g, inv_id state, int64_t length)
{
    if (inv_val(g, state)->shared) return INV_OK;
    inv_shape *whole = INV_ARENA_NEW(&g->arena, inv_shape, 1);
    if (!whole) return INV_E_NOMEM;
    inv_value *v = inv_val(g, state);
    *whole = v->shape;
    v->shared = whole;
    v->shape = inv_shape_of(1, &length);
    return INV_OK;
}

/* What was begun is waited for. */
static inv_status end_gathering(inv_sharing *s)
{
    inv_graph *g = s->g;
    if (s->room == INV_NONE) return INV_OK;
    inv_id in[INV_SHARED_AT_ONCE + 1] = {s->room};
    for (uint32_t i = 0; i < s->nsent; i++) in[i + 1] = s->sent[i];
    (void)inv_emit(
        g, "AllGatherPartsEnd", 0, s->nsent + 1, in,
        INV_ATTRS(inv_attr_of_int("ranks", s->o->world->size), inv_attr_of_ints("lengths", s->nsent, s->sent_length)));
    s->room = INV_NONE;
    return g->failed;
}

/* What was updated since the last one goes; the one before it has to be there then. */
static inv_status begin_gathering(inv_sharing *s)
{
    if (s->n == 0) return INV_OK;
    const inv_id room =
        inv_emit1(s->g, "AllGatherParts", s->n, s->part, INV_ATTRS(inv_attr_of_int("ranks", s->o->world->size)));
    if (s->g->failed) return s->g->failed;
    inv_val(s->g, room)->mem = INV_MEM_OPTIM;
    INV_TRY(end_gathering(s));
    s->room = room;
    s->nsent = s->n;
    memcpy(s->sent, s->w, s->n * sizeof *s->w);
    memcpy(s->sent_length, s->length, s->n * sizeof *s->length);
    s->n = 0;
    s->nbytes = 0;
    return INV_OK;
}

inv_status inv_sharing_add(inv_sharing *s, inv_id w, inv_id part)
{
    const int64_t length = inv_shape_nelem(&inv_val(s->g, part)->shape);
    const size_t nbytes = inv_value_nbytes(inv_val(s->g, part)) * (size_t)s->o->world->size;
    if (s->n == INV_SHARED_AT_ONCE || (s->n && s->nbytes + nbytes > inv_bucket_nbytes(s->o->world)))
        INV_TRY(begin_gathering(s));
    s->w[s->n] = w;
    s->part[s->n] = part;
    s->length[s->n++] = length;
    s->nbytes += nbytes;
    return INV_OK;
}

inv_status inv_sharing_end(inv_sharing *s)
{
    INV_TRY(begin_gathering(s));
    return end_gathering(s);
}
