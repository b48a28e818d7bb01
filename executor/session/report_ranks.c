/* SPDX-License-Identifier: Apache-2.0
 * What ranks exchange in a step, and what a step of theirs takes: predicted from what nodes take by themselves and from
 * latency and bandwidth, by walking through the plan with a clock for this rank and one for the network.
 * A message may keep the rank from computing for a share of its time, as on one machine, where processors move bytes.
 * Assumed: messages are on their way one after the other, at full speed while nodes run, all ranks run at one speed.
 * Where a run has seen how long messages take beside nodes, and what of it the rank moved itself, that counts. */
#include "executor/session/report_ranks.h"
#include "core/program/cost.h"
#include "core/program/exchange.h"

static const char *const shard_names[] = {
    [INV_SHARD_NONE] = "none", [INV_SHARD_OPTIMIZER] = "optimizer", [INV_SHARD_GRADIENTS] = "gradients"};

/* The walk through one plan. */
typedef struct exchange {
    const inv_world *w;
    double slower, moved;   /* messages beside nodes over those by themselves; what of these the rank moves */
    double gradients, sent; /* bytes: in buckets of gradients; that a rank sends */
    double messages;        /* seconds of all buckets one after the other */
    int buckets;
    double now, network; /* seconds since the step began: of this rank, till when the network is taken */
    double waited;       /* in which this rank did nothing else */
} exchange;

/* The halves of a bucket that the node lets go; 0: none. */
static unsigned halves_of(const inv_node *n)
{
    return inv_op_is(n, "AllReduce")        ? INV_BOTH_HALVES
           : inv_op_is(n, "ReduceScatter")  ? INV_SCATTER
           : inv_op_is(n, "AllGatherParts") ? INV_SPREAD
                                            : 0;
}

/* A short message from each to all, by doubling. */
static double short_message(const inv_world *w)
{
    int rounds = 0;
    while (1 << rounds < w->size) rounds++;
    return rounds * w->latency;
}

static void wait_till(exchange *x, double then)
{
    if (then <= x->now) return;
    x->waited += then - x->now;
    x->now = then;
}

static void let_go(exchange *x, const inv_node *n, double bucket, double *there)
{
    const unsigned halves = halves_of(n);
    const double alone = inv_world_seconds(x->w, bucket, (inv_halves)halves), seconds = x->slower * alone;
    x->messages += seconds;
    x->sent += (halves == INV_BOTH_HALVES ? 2 : 1) * bucket / x->w->size * (x->w->size - 1);
    x->gradients += halves & INV_SCATTER ? bucket : 0;
    x->buckets += halves & INV_SCATTER ? 1 : 0;
    x->network = (x->network > x->now ? x->network : x->now) + seconds;
    *there = x->network;
    wait_till(x, x->now + x->moved * alone);
}

/* `there`: per value, when it is there. */
static void walk(exchange *x, const inv_plan *p, double *there)
{
    const inv_graph *g = p->g;
    for (size_t i = 0; i < g->order.n; i++) {
        const inv_node *n = inv_nod(g, g->order.at[i]);
        x->now += p->seconds ? p->seconds[i] : 0;
        if (halves_of(n)) {
            let_go(x, n, (double)inv_value_nbytes(inv_val(g, n->out[0])), &there[n->out[0]]);
        } else if (inv_op_is(n, "AllReduceEnd") || inv_op_is(n, "ReduceScatterEnd") ||
                   inv_op_is(n, "AllGatherPartsEnd")) {
            wait_till(x, there[n->in[0]]);
        } else if (inv_op_is(n, "RankWeights") || inv_op_is(n, "AllGather")) {
            wait_till(x, x->now + short_message(x->w));
        }
    }
}

/* The plan, and so many short messages beside it. */
static bool walk_plan(exchange *x, const inv_session *s, const inv_plan *p, int messages)
{
    double *there = p->g ? inv_alloc(s->ctx, (p->g->value.n + 1) * sizeof *there) : NULL;
    if (!there) return false;
    walk(x, p, there);
    inv_dealloc(s->ctx, there);
    wait_till(x, x->now + messages * short_message(x->w));
    return true;
}

static exchange begin_walk(const inv_session *s)
{
    const inv_session_options *o = &s->program->options;
    const inv_cost_table *t = o->costs;
    const double seen = t ? inv_correction_of(t, inv_noted_as(t, INV_UNDER_WAY)) : 0;
    if (!(seen > 0)) return (exchange){.w = o->world, .slower = 1, .moved = o->world->busy};
    return (exchange){.w = o->world, .slower = seen, .moved = inv_correction_of(t, inv_noted_as(t, INV_MOVED))};
}

double inv_exchange_seconds(const inv_session *s)
{
    exchange x = {.w = s->program->options.world, .slower = 1};
    return inv_world_several(x.w) && walk_plan(&x, s, &s->program->plan[INV_PLAN_MAIN], 0) ? x.messages : 0;
}

/* How many batches a step accumulates is the caller's: what each takes, and the update behind them. */
static json_t *accumulated(const exchange *batch, const exchange *update)
{
    return json_pack("{s:f, s:f, s:f, s:f}", "batch_seconds", batch->now, "batch_exposed_seconds", batch->waited,
                     "update_seconds", update->now, "update_exposed_seconds", update->waited);
}

json_t *inv_report_ranks(const inv_session *s)
{
    enum { OPENED_AND_JUDGED = 2, JUDGED = 1, ASKED = 1 /* by the caller, whether to go on */ };
    const inv_session_options *o = &s->program->options;
    if (!inv_world_several(o->world)) return json_pack("{s:n}", "ranks");
    exchange x = begin_walk(s), batch = x;
    const inv_plan *p = &s->program->plan[o->accumulate ? INV_PLAN_UPDATE : INV_PLAN_MAIN];
    if (!walk_plan(&x, s, p, (o->accumulate ? JUDGED : OPENED_AND_JUDGED) + ASKED)) return NULL;
    if (o->accumulate && !walk_plan(&batch, s, &s->program->plan[INV_PLAN_MAIN], OPENED_AND_JUDGED)) return NULL;
    const bool timed = p->seconds && !o->accumulate;
    return json_pack("{s:{s:i, s:i, s:i, s:s, s:i, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o}}", "ranks",
                     "size", x.w->size, "rank", x.w->rank, "on_host", x.w->on_host, "shard", shard_names[o->shard],
                     "buckets", x.buckets, "gradient_bytes", json_real(x.gradients), "sent_bytes", json_real(x.sent),
                     "latency_seconds", json_real(x.w->latency), "bytes_per_second", json_real(x.w->bytes_per_second),
                     "busy_share", json_real(x.w->busy), "predicted_seconds", json_real(x.messages), "step_seconds",
                     timed ? json_real(x.now) : json_null(), "exposed_seconds",
                     timed ? json_real(x.waited) : json_null(), "accumulated",
                     p->seconds && o->accumulate ? accumulated(&batch, &x) : json_null(), "under_way_seconds",
                     json_real(x.w->under_way), "waited_seconds", json_real(x.w->waited));
}
