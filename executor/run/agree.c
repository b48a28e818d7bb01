/* SPDX-License-Identifier: Apache-2.0
 * Sessions of ranks that train together: what they must have alike, and what they decide as one. Gradients are not
 * spoken of here, they are nodes of the plan (ops/train/all_reduce.c). */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "core/program/cost.h"
#include "core/program/options.h"
#include "executor/run/agree.h"

/* Of a rank, of what any of the gatherings of a step has. */
enum { ROOM = sizeof((inv_session *)0)->bad_node };

inv_world *inv_ranks_world(const inv_session *s)
{
    inv_world *w = s->program->options.world;
    return inv_world_several(w) ? w : NULL;
}

inv_status inv_ranks_check(inv_context *ctx, const inv_session_options *o)
{
    if (!inv_world_several(o->world)) return INV_OK;
    INV_CHECK(o->purpose == INV_FOR_TRAIN && o->optimizer != INV_OPT_NONE, ctx, INV_E_ARG,
              "ranks share steps of training with an optimizer, and this session makes none");
    INV_CHECK(!o->world->imagined || o->plan_only, ctx, INV_E_ARG,
              "these ranks are not there: sessions with them are for planning only");
    INV_CHECK(!o->early_update, ctx, INV_E_ARG,
              "{early_update} cannot be used with several ranks: gradients are complete only after all ranks have "
              "added theirs");
    return INV_OK;
}

inv_status inv_ranks_rates(inv_session *s, inv_session_options *o)
{
    const int n = inv_world_several(o->world) ? o->world->on_host : 0;
    if (!o->costs || n < 2) return INV_OK;
    void *room = inv_arena_alloc(&s->lasting, inv_cost_table_nbytes(o->costs));
    if (!room) return INV_E_NOMEM;
    inv_cost_table *t = inv_cost_table_copy(o->costs, room);
    const long processors = sysconf(_SC_NPROCESSORS_ONLN);
    t->company = n;
    if (processors > 0) t->crowd = fmax((double)n * s->threads / (double)processors, 1);
    o->costs = t;
    return INV_OK;
}

/* --- one plan --- */

static uint64_t mixed(uint64_t h, const void *data, size_t n)
{
    const unsigned char *p = data;
    for (; n >= 8; n -= 8, p += 8) {
        uint64_t word;
        memcpy(&word, p, sizeof word);
        h = (h ^ word) * 0x9e3779b97f4a7c15u;
        h ^= h >> 29;
    }
    for (; n; n--) h = (h ^ *p++) * 0x100000001b3u;
    return h;
}

/* Nodes, shapes and places of all that a plan has. */
static inv_status plan_hash(const inv_graph *g, uint64_t *h)
{
    inv_str text;
    inv_str_init(&text, g->ctx);
    inv_status st = inv_graph_print(g, &text);
    if (st == INV_OK && text.failed) st = INV_E_NOMEM;
    if (st == INV_OK) *h = mixed(*h, text.s, text.n);
    inv_str_fini(&text);
    for (size_t i = 0; i < g->order.n && st == INV_OK; i++) {
        const inv_node *n = inv_nod(g, g->order.at[i]);
        *h = mixed(*h, &n->ws_offset, sizeof n->ws_offset);
        for (uint32_t k = 0; k < n->nout; k++)
            if (n->out[k] != INV_NONE) *h = mixed(*h, &inv_val(g, n->out[k])->offset, sizeof(size_t));
    }
    return st;
}

/* What a plan exchanges with other ranks, in order: the plans of batches of different sizes must have it alike. */
static uint64_t exchange_hash(const inv_graph *g)
{
    uint64_t h = 1;
    for (size_t i = 0; i < g->order.n; i++) {
        const inv_node *n = inv_nod(g, g->order.at[i]);
        if (!(n->op->flags & INV_OP_EXCHANGES)) continue;
        h = mixed(h, n->op->name, strlen(n->op->name));
        for (uint32_t k = 0; k < n->nout; k++) {
            const int64_t nelem = n->out[k] == INV_NONE ? 0 : inv_shape_nelem(&inv_val(g, n->out[k])->shape);
            h = mixed(h, &nelem, sizeof nelem);
        }
    }
    return h;
}

enum { OF_PLAN, OF_EXCHANGE, OF_WEIGHTS, HASHES };
static const char *const hashed[HASHES] = {"another plan", "gradients in another order", "other weights"};

static inv_status hash_storage(inv_session *s, const inv_storage *of, uint64_t *h)
{
    const void *at = inv_storage_address(s, of);
    if (!s->device->host && !of->in_place) INV_TRY(inv_session_fetch(s, at, of->dtype, &of->shape, &at));
    *h = mixed(*h, at, of->nbytes);
    return INV_OK;
}

static inv_status hash_session(inv_session *s, uint64_t h[HASHES])
{
    const inv_program *p = s->program;
    memset(h, 0, HASHES * sizeof *h);
    for (int k = 0; k < INV_PLAN_KINDS; k++) {
        const inv_graph *g = p->plan[k].g;
        if (!g || k == INV_PLAN_TAIL) continue; /* the last batch may have fewer rows on some */
        INV_TRY(plan_hash(g, &h[OF_PLAN]));
        const uint64_t e = exchange_hash(g);
        h[OF_EXCHANGE] = mixed(h[OF_EXCHANGE], &e, sizeof e);
    }
    for (size_t i = 0; i < p->storage.n; i++) {
        const inv_storage *of = &p->storage.at[i];
        if (of->kind != INV_STORAGE_CONST && of->kind != INV_STORAGE_GRAD && !of->shared)
            INV_TRY(hash_storage(s, of, &h[OF_WEIGHTS]));
    }
    return INV_OK;
}

inv_status inv_ranks_agree(inv_session *s)
{
    inv_world *w = inv_ranks_world(s);
    uint64_t mine[HASHES];
    if (!w || !s->self) return INV_OK;
    const inv_plan *plan = s->program->plan;
    INV_CHECK(!plan[INV_PLAN_TAIL].g || exchange_hash(plan[INV_PLAN_TAIL].g) == exchange_hash(plan[INV_PLAN_MAIN].g),
              s->ctx, INV_E_RANKS,
              "the plan of the last, smaller batch orders gradients differently, so ranks with different plans "
              "cannot exchange them. Leave the last rows out");
    if (s->device->join) INV_TRY(s->device->join(s->self, w));
    INV_TRY(hash_session(s, mine));
    if (!s->gathered) s->gathered = inv_arena_alloc(&s->lasting, (size_t)w->size * ROOM);
    uint64_t *all = s->gathered;
    if (!all) return INV_E_NOMEM;
    w->ctx = s->ctx;
    inv_status st = inv_world_gather(w, "the comparison of their plans", mine, sizeof mine, all);
    for (int r = 1; r < w->size && st == INV_OK; r++)
        for (int k = 0; k < HASHES && st == INV_OK; k++)
            if (all[r * HASHES + k] != all[k])
                st = inv_fail(s->ctx, INV_E_RANKS,
                              "rank %d has %s than rank 0. All ranks need the same model, options, build and kind of "
                              "processor",
                              r, hashed[k]);
    return st;
}

/* --- one step --- */

typedef struct opening {
    uint64_t step, micro;
    int64_t rows;
} opening;

inv_status inv_ranks_begin(inv_session *s, int64_t rows)
{
    inv_world *w = inv_ranks_world(s);
    s->step.world = w;
    s->step.batch = rows;
    s->step.absent = w && rows == 0;
    s->step.micro = s->micro;
    s->fed = (uint64_t)rows;
    s->step.first_sample = inv_samples_before(s);
    if (!w) return INV_OK;
    const opening mine = {s->steps, s->micro, rows};
    const opening *all = s->gathered;
    w->ctx = s->ctx;
    w->step = s->steps;
    inv_status st = inv_world_gather(w, "the begin of the step", &mine, sizeof mine, s->gathered);
    s->there = 0;
    s->step.micro = s->micro * (uint64_t)w->size + (uint64_t)w->rank;
    s->fed = 0;
    for (int r = 0; r < w->size && st == INV_OK; r++) s->fed += (uint64_t)all[r].rows;
    s->step.first_sample = inv_samples_before(s);
    for (int r = 0; r < w->size && st == INV_OK; r++) {
        if (r < w->rank) s->step.first_sample += (uint64_t)all[r].rows;
        s->there += all[r].rows > 0;
        if (all[r].step != all[0].step || all[r].micro != all[0].micro)
            st = inv_fail(s->ctx, INV_E_RANKS,
                          "rank %d is at step %" PRIu64 ", batch %" PRIu64 " of it, and rank 0 at step %" PRIu64
                          ", batch %" PRIu64,
                          r, all[r].step, all[r].micro, all[0].step, all[0].micro);
    }
    if (st == INV_OK && !s->there) st = inv_fail(s->ctx, INV_E_SHAPE, "no rank was fed any rows of this batch");
    return st;
}

inv_status inv_ranks_judge(inv_session *s, inv_verdict *v)
{
    inv_world *w = inv_ranks_world(s);
    if (!w) return INV_OK;
    const inv_verdict *all = s->gathered;
    const inv_status st = inv_world_gather(w, "the end of the step", v, sizeof *v, s->gathered);
    double sum = 0;
    *v = (inv_verdict){0};
    for (int r = 0; r < w->size && st == INV_OK; r++) {
        if (all[r].weight > 0) sum += all[r].loss * all[r].weight;
        v->weight += all[r].weight;
        v->bad += all[r].bad;
        v->drift = fmax(v->drift, all[r].drift);
        v->refused = v->refused || all[r].refused;
    }
    v->loss = sum / v->weight;
    return st;
}

/* The first rank that has found what is wrong says what. */
inv_status inv_ranks_share_bad(inv_session *s, bool found, int *rank)
{
    inv_world *w = inv_ranks_world(s);
    char mine[ROOM] = "";
    const char *all = s->gathered;
    *rank = w ? -1 : 0;
    if (!w) return INV_OK;
    if (found) memcpy(mine, s->bad_node, ROOM);
    const inv_status st = inv_world_gather(w, "the search for non-finite values", mine, ROOM, s->gathered);
    for (int r = 0; r < w->size && st == INV_OK && *rank < 0; r++) {
        if (!all[(size_t)r * ROOM]) continue;
        memcpy(s->bad_node, all + (size_t)r * ROOM, ROOM);
        *rank = r;
    }
    return st;
}

/* --- one verdict --- */

static bool has_checkpoint(const inv_program *p, const char *name)
{
    for (size_t i = 0; i < p->checkpoint.n; i++)
        if (strcmp(p->checkpoint.at[i].name, name) == 0) return true;
    return false;
}

/* Adds what a text says: "d" or "r" and a name, each ended by a zero; an empty one ends it. */
static inv_status add_checkpoints(inv_program *p, const char *text, const char *end)
{
    for (; text < end && *text; text += strlen(text) + 1) {
        if (has_checkpoint(p, text + 1)) continue;
        INV_TRY(inv_program_reject(p, text + 1, *text == 'd'));
    }
    return INV_OK;
}

static inv_status join_checkpoints(inv_session *s, inv_world *w, size_t before, inv_str *mine)
{
    inv_program *p = s->program;
    for (size_t i = before; i < p->checkpoint.n; i++) {
        const inv_checkpoint *c = &p->checkpoint.at[i];
        inv_str_add(mine, "%c%s", c->derived ? 'd' : 'r', c->name);
        inv_str_add(mine, "%c", 0);
    }
    INV_CHECK(!mine->failed, s->ctx, INV_E_NOMEM, "out of memory while ranks compared the values that guards refuse");
    uint64_t length = mine->n, most = 1;
    uint64_t *lengths = inv_alloc(s->ctx, (size_t)w->size * sizeof length);
    if (!lengths) return INV_E_NOMEM;
    inv_status st = inv_world_gather(w, "the length of the values that guards refuse", &length, sizeof length, lengths);
    for (int r = 0; r < w->size && st == INV_OK; r++)
        if (lengths[r] > most) most = lengths[r];
    char *own = inv_alloc(s->ctx, most), *all = inv_alloc(s->ctx, most * (size_t)w->size);
    if (st == INV_OK && (!own || !all)) st = INV_E_NOMEM;
    if (st == INV_OK && mine->n) memcpy(own, mine->s, mine->n);
    if (st == INV_OK) st = inv_world_gather(w, "the values that guards refuse", own, most, all);
    if (st == INV_OK) p->checkpoint.n = before;
    for (int r = 0; r < w->size && st == INV_OK; r++)
        st = add_checkpoints(p, all + (size_t)r * most, all + (size_t)r * most + lengths[r]);
    inv_dealloc(s->ctx, lengths);
    inv_dealloc(s->ctx, own);
    inv_dealloc(s->ctx, all);
    return st;
}

inv_status inv_ranks_join_checkpoints(inv_session *s, size_t before)
{
    inv_world *w = inv_ranks_world(s);
    inv_str mine;
    if (!w) return INV_OK;
    inv_str_init(&mine, s->ctx);
    const inv_status st = join_checkpoints(s, w, before, &mine);
    inv_str_fini(&mine);
    return st;
}
