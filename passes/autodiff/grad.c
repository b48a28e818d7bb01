/* SPDX-License-Identifier: Apache-2.0
 * Reverse mode: every operator's row emits its gradient as nodes of the same graph, so liveness says what backward
 * needs and nobody keeps a list of saved tensors. Missing gradients are all named at once
 * (gradient_way.c).
 * The operator Gradient is lowered by the same means.
 * requires: plan->loss, or gradients that are fed.  gives: backward nodes; plan->grad, plan->input_grad;
 * g->forward_end. */
#include <string.h>

#include "core/graph/node.h"
#include "core/weights/module_names.h"
#include "core/weights/trained.h"
#include "passes/autodiff/autodiff.h"

enum { MOST_WAITING = 64, MOST_WITH = 16 }; /* nodes that are looked at; those that move with one of them */

/* A node that belongs to another one, beside which it is put. */
typedef struct beside {
    inv_id node, of;
    bool behind; /* else before it */
} beside;

typedef struct reverse {
    inv_graph *g;
    inv_arena scratch;
    bool *wanted;   /* per value: leads from something trained to here */
    inv_id *grad;   /* per value: gradient so far */
    inv_id *reader; /* per value: the last node of backward that has been emitted and reads it; INV_NONE */
    bool *done;     /* per value: its gradient is complete, and what gives it has been reversed */
    size_t nvalue, forward, added; /* added: nodes of forward that gradients have asked for */
    INV_VEC(beside) beside;
} reverse;

static bool trains_initializer(const inv_value *v)
{
    return v->role == INV_ROLE_PARAM && !v->state && v->untrained == INV_TRAINED && !inv_value_fixed(v);
}

/* A glob that fits no initializer is a mistake worth an error. */
static inv_status check_globs(inv_graph *g, const char *option, const char *const *globs, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        bool used = false;
        inv_near near = inv_near_to(globs[i]);
        if (!strcmp(option, "tied") && strchr(globs[i], '=')) continue; /* passes/front/join_copies.c has looked */
        for (size_t k = 0; k < g->inits.n && !used; k++) {
            used = inv_param_fits(globs[i], inv_val(g, g->inits.at[k]));
            inv_param_look(&near, inv_val(g, g->inits.at[k]));
        }
        INV_CHECK(used, g->ctx, INV_E_ARG, "%s %s: the model has no initializer of that name" INV_NEAR_FORMAT,
                  inv_option(g->ctx, option), globs[i], INV_NEAR_ARGS(near));
    }
    return INV_OK;
}

/* Running statistics are state, whatever path they lie on. */
static void mark_state(inv_graph *g)
{
    for (size_t i = 0; i < g->order.n; i++) {
        const inv_node *n = inv_nod(g, g->order.at[i]);
        if (inv_attr_int(n, "training", 0)) continue;
        for (uint32_t k = 0; n->op->state >> k && k < n->nin; k++) {
            if (!(n->op->state >> k & 1)) continue;
            inv_value *v = inv_val(g, n->in[k]);
            if (v->role != INV_ROLE_PARAM) continue;
            v->state = true;
            v->untrained = INV_UNTRAINED_STATISTIC;
        }
    }
}

static void mark_wanted(reverse *r, const inv_request *rq)
{
    inv_graph *g = r->g;
    for (size_t v = 0; v < r->nvalue; v++) {
        inv_value *val = inv_val(g, (inv_id)v);
        val->trainable = trains_initializer(val);
        r->wanted[v] = val->trainable;
    }
    for (size_t i = 0; i < g->order.n; i++) {
        const inv_node *n = inv_nod(g, g->order.at[i]);
        bool wanted = n->op->flags & INV_OP_SOURCE && rq->options->input_grads;
        if (!(n->op->flags & INV_OP_NO_GRAD))
            for (uint32_t k = 0; k < n->nin; k++) wanted = wanted || (n->in[k] != INV_NONE && r->wanted[n->in[k]]);
        for (uint32_t k = 0; k < n->nout; k++)
            if (n->out[k] != INV_NONE)
                r->wanted[n->out[k]] = wanted && inv_dtype_is_float(inv_val(g, n->out[k])->dtype);
    }
}

static bool reached(const reverse *r, const inv_node *n)
{
    for (uint32_t k = 0; k < n->nout; k++)
        if (n->out[k] != INV_NONE && r->grad[n->out[k]] != INV_NONE) return true;
    return false;
}

static bool wants_any(const reverse *r, const inv_node *n)
{
    for (uint32_t k = 0; k < n->nin; k++)
        if (n->in[k] != INV_NONE && r->wanted[n->in[k]]) return true;
    return false;
}

/* --- sums of gradients --- */

static size_t size_of(const inv_graph *g, inv_id v)
{
    size_t nbytes = 0;
    return inv_shape_nbytes(&inv_val(g, v)->shape, inv_val(g, v)->dtype, &nbytes) ? nbytes : SIZE_MAX;
}

/* Whether the gradient d of v is given by an operator that can add onto another one, and by then has been used for
 * nothing else. *at: its node's position in the order. */
static bool can_add(const reverse *r, inv_id v, inv_id d, size_t *at)
{
    const inv_graph *g = r->g;
    const inv_id def = inv_val(g, d)->def;
    if (g->phase != INV_BACKWARD || def == INV_NONE) return false;
    const inv_node *n = inv_nod(g, def);
    const uint32_t slot = n->op->onto;
    if (!slot || n->phase != INV_BACKWARD || (slot < n->nin && n->in[slot] != INV_NONE)) return false;
    for (size_t i = 0; i < r->nvalue; i++)
        if (i != v && r->grad[i] == d && !r->done[i]) return false;
    for (size_t i = g->order.n; i-- > 0;) {
        *at = i;
        if (g->order.at[i] == def) return true;
        if (inv_ids_have(inv_nod(g, g->order.at[i])->in, inv_nod(g, g->order.at[i])->nin, d)) return false;
    }
    return false;
}

/* A gradient that some node is still to be made from. */
static bool is_pending(const reverse *r, inv_id d)
{
    for (size_t i = 0; i < r->nvalue; i++)
        if (r->grad[i] == d && !r->done[i] && inv_val(r->g, (inv_id)i)->role != INV_ROLE_PARAM) return true;
    return false;
}

static bool reads_any_of(const inv_node *n, const inv_node *of)
{
    for (uint32_t k = 0; k < of->nout; k++)
        if (of->out[k] != INV_NONE && inv_ids_have(n->in, n->nin, of->out[k])) return true;
    return false;
}

static bool gives_pending(const reverse *r, const inv_node *n)
{
    bool any = false;
    for (uint32_t k = 0; k < n->nout && !any; k++) any = n->out[k] != INV_NONE && is_pending(r, n->out[k]);
    return any;
}

/* Whether nothing behind position `at` needs what its node gives but nodes that move: what gives no more than the
 * gradient of a weight moves with them, if it is a few nodes. */
static bool is_free(const reverse *r, size_t at, bool *moves)
{
    const inv_graph *g = r->g;
    const inv_node *moved[MOST_WITH] = {inv_nod(g, g->order.at[at])};
    size_t n = 1;
    if (gives_pending(r, moved[0])) return false;
    for (size_t i = at + 1; i < g->order.n; i++) {
        const inv_node *reader = inv_nod(g, g->order.at[i]);
        bool reads = false;
        for (size_t k = 0; k < n && !reads && !moves[i]; k++) reads = reads_any_of(reader, moved[k]);
        if (!reads) continue;
        if (n == MOST_WITH || gives_pending(r, reader)) return false;
        moves[i] = true;
        moved[n++] = reader;
    }
    return true;
}

/* Bytes of gradients that what moves starts from. */
static inv_status waiting_bytes(reverse *r, const bool *moves, size_t from, size_t *sum)
{
    const inv_graph *g = r->g;
    inv_ids seen = {0};
    *sum = 0;
    for (size_t i = g->order.n; i-- > from;) {
        const inv_node *n = inv_nod(g, g->order.at[i]);
        for (uint32_t k = 0; k < n->nin && moves[i]; k++) {
            const inv_id v = n->in[k];
            if (v == INV_NONE || v < r->nvalue || inv_val(g, v)->role != INV_ROLE_NODE) continue;
            bool own = inv_ids_have(seen.at, seen.n, v);
            for (size_t j = from; j < i && !own; j++)
                own = moves[j] && inv_ids_have(inv_nod(g, g->order.at[j])->out, inv_nod(g, g->order.at[j])->nout, v);
            if (own) continue;
            *sum += size_of(g, v);
            if (!inv_vec_push(&r->scratch, &seen, v)) return INV_E_NOMEM;
        }
    }
    return INV_OK;
}

/* Which nodes wait with the one at position `at`: those before it that give what it starts from, as far as that takes
 * no more bytes meanwhile. `moves`: per position. */
static inv_status find_waiting(reverse *r, size_t at, bool *moves)
{
    const inv_graph *g = r->g;
    const size_t n = g->order.n;
    size_t least = size_of(g, inv_nod(g, g->order.at[at])->out[0]), now;
    bool *more = INV_ARENA_NEW(&r->scratch, bool, n + 1);
    if (!more) return INV_E_NOMEM;
    for (size_t p = at + 1, tried = 0; p-- > r->forward && tried < MOST_WAITING; tried++) {
        bool gives = p == at;
        for (size_t i = p + 1; i <= at && !gives; i++)
            gives = moves[i] && reads_any_of(inv_nod(g, g->order.at[i]), inv_nod(g, g->order.at[p]));
        if (!gives) continue;
        memcpy(more, moves, n * sizeof *more);
        more[p] = true;
        if (p < at && !is_free(r, p, more)) return INV_OK;
        INV_TRY(waiting_bytes(r, more, p, &now));
        if (now > least) return INV_OK;
        least = now;
        memcpy(moves, more, n * sizeof *moves);
    }
    return INV_OK;
}

/* The node at position `at` adds onto `to`; it and others move to the end. moves: NULL: no others. */
static inv_status add_gradient_onto(reverse *r, size_t at, inv_id to, bool *moves)
{
    inv_graph *g = r->g;
    inv_node *n = inv_nod(g, g->order.at[at]);
    const uint32_t slot = n->op->onto;
    inv_id *in = INV_ARENA_NEW(&g->arena, inv_id, slot + 1), *last = INV_ARENA_NEW(&r->scratch, inv_id, g->order.n);
    if (!in || !last) return INV_E_NOMEM;
    for (uint32_t k = 0; k < slot; k++) in[k] = k < n->nin ? n->in[k] : INV_NONE;
    in[slot] = to;
    n->in = in;
    n->nin = slot + 1;
    size_t kept = r->forward, moved = 0;
    const inv_id id = g->order.at[at];
    for (size_t i = r->forward; i < g->order.n; i++) {
        if (i == at) continue;
        if (moves && moves[i]) last[moved++] = g->order.at[i];
        else g->order.at[kept++] = g->order.at[i];
    }
    memcpy(g->order.at + kept, last, moved * sizeof *last);
    g->order.at[kept + moved] = id;
    return INV_OK;
}

/* Another gradient d of v; alone: of no other value. The sum is made in place by the operator that gives one of the
 * two, if it can: the earlier one waits for that, so that its result is not alive meanwhile. */
static inv_status accumulate(reverse *r, inv_id v, inv_id d, bool alone)
{
    inv_graph *g = r->g;
    const inv_id sum = r->grad[v];
    size_t at;
    if (d == INV_NONE) return g->failed;
    r->grad[v] = d;
    if (sum == INV_NONE) return g->failed;
    if (sum != d && can_add(r, v, sum, &at)) {
        bool *moves = INV_ARENA_NEW(&r->scratch, bool, g->order.n + 1);
        if (!moves) return INV_E_NOMEM;
        INV_TRY(find_waiting(r, at, moves));
        if (moves[at]) r->grad[v] = sum;
        if (moves[at]) return add_gradient_onto(r, at, d, moves);
    }
    if (alone && sum != d && can_add(r, v, d, &at)) return add_gradient_onto(r, at, sum, NULL);
    r->grad[v] = inv_emit1(g, "Add", INV_IN(sum, d), INV_NOATTR);
    return g->failed;
}

static bool is_alone(const inv_id *grad, uint32_t n, uint32_t k)
{
    for (uint32_t j = 0; j < n; j++)
        if (j != k && grad[j] == grad[k]) return false;
    return true;
}

static bool reads_of(const inv_graph *g, const inv_node *n, inv_id of)
{
    for (uint32_t k = 0; k < n->nin; k++)
        if (n->in[k] != INV_NONE && inv_val(g, n->in[k])->def == of) return true;
    return false;
}

/* The node of backward that reads the one value of forward that n is computed from. INV_NONE: nothing in backward does,
 * there are several, or n must see what forward gave. */
static inv_id reader_of_source(const reverse *r, const inv_node *n)
{
    inv_id reader = INV_NONE;
    uint32_t sources = 0;
    for (uint32_t k = 0; k < n->nin; k++) {
        if (n->in[k] == INV_NONE || inv_val(r->g, n->in[k])->role != INV_ROLE_NODE) continue;
        reader = n->in[k] < r->nvalue ? r->reader[n->in[k]] : INV_NONE;
        sources++;
    }
    return sources == 1 && !(n->op->flags & INV_OP_NO_CLONE) ? reader : INV_NONE;
}

/* Notes what nodes from position `from` on read, and takes those out of the order that were emitted for forward: they
 * go beside the node at position `at`, or move to backward, where another node reads the same value. */
static inv_status settle_gradients(reverse *r, size_t from, size_t at)
{
    inv_graph *g = r->g;
    const inv_id node = g->order.at[at];
    bool behind = false;
    size_t kept = from, early = 0;
    for (size_t i = from; i < g->order.n && g->phase == INV_BACKWARD; i++)
        early += inv_nod(g, g->order.at[i])->phase == INV_FORWARD;
    for (size_t i = from; i < g->order.n; i++) {
        const inv_id id = g->order.at[i];
        inv_node *n = inv_nod(g, id);
        if (g->phase == INV_BACKWARD && n->phase == INV_FORWARD) {
            const inv_id reader = early == 1 ? reader_of_source(r, n) : INV_NONE;
            behind = behind || reads_of(g, n, node);
            const beside b = {id, reader == INV_NONE ? node : reader, reader != INV_NONE || behind};
            if (reader != INV_NONE) n->phase = INV_BACKWARD;
            else r->added++;
            if (!inv_vec_push(&r->scratch, &r->beside, b)) return INV_E_NOMEM;
            continue;
        }
        for (uint32_t k = 0; k < n->nin; k++)
            if (n->in[k] < r->nvalue) r->reader[n->in[k]] = id;
        g->order.at[kept++] = id;
    }
    g->order.n = kept;
    return INV_OK;
}

/* Puts them beside the nodes that they belong to: before these, so that a result may overwrite what both read, unless
 * they read the result. */
static inv_status place_beside(reverse *r)
{
    inv_graph *g = r->g;
    const inv_ids old = g->order;
    if (r->beside.n == 0) return INV_OK;
    /* lists per node, in the order in which they were emitted; 0 ends them */
    size_t *first = INV_ARENA_NEW(&r->scratch, size_t, g->node.n);
    size_t *next = INV_ARENA_NEW(&r->scratch, size_t, r->beside.n);
    if (!first || !next) return INV_E_NOMEM;
    for (size_t k = r->beside.n; k-- > 0;) {
        next[k] = first[r->beside.at[k].of];
        first[r->beside.at[k].of] = k + 1;
    }
    memset(&g->order, 0, sizeof g->order);
    for (size_t i = 0; i < old.n; i++) {
        const inv_id id = old.at[i];
        bool ok = true;
        for (size_t k = first[id]; k && ok; k = next[k - 1])
            if (!r->beside.at[k - 1].behind) ok = inv_vec_push(&g->arena, &g->order, r->beside.at[k - 1].node);
        ok = ok && inv_vec_push(&g->arena, &g->order, id);
        for (size_t k = first[id]; k && ok; k = next[k - 1])
            if (r->beside.at[k - 1].behind) ok = inv_vec_push(&g->arena, &g->order, r->beside.at[k - 1].node);
        if (!ok) return INV_E_NOMEM;
    }
    return INV_OK;
}

static inv_status reverse_node(reverse *r, size_t at)
{
    inv_graph *g = r->g;
    const inv_id id = g->order.at[at];
    const size_t from = g->order.n;
    inv_node n = *inv_nod(g, id);
    for (uint32_t k = 0; k < n.nout; k++)
        if (n.out[k] != INV_NONE) r->done[n.out[k]] = true;
    if (n.op->flags & INV_OP_NO_GRAD || n.phase != INV_FORWARD || !reached(r, &n) || !wants_any(r, &n)) return INV_OK;
    inv_id *out_grad = INV_ARENA_NEW(&r->scratch, inv_id, n.nout + 1),
           *in_grad = INV_ARENA_NEW(&r->scratch, inv_id, n.nin + 1);
    bool *wanted = INV_ARENA_NEW(&r->scratch, bool, n.nin + 1);
    if (!out_grad || !in_grad || !wanted) return INV_E_NOMEM;
    for (uint32_t k = 0; k < n.nout; k++) out_grad[k] = n.out[k] == INV_NONE ? INV_NONE : r->grad[n.out[k]];
    for (uint32_t k = 0; k < n.nin; k++) {
        in_grad[k] = INV_NONE;
        wanted[k] = n.in[k] != INV_NONE && r->wanted[n.in[k]];
    }
    inv_emit_for(g, &n);
    inv_grad b = {g, id, out_grad, in_grad, wanted};
    INV_TRY(n.op->grad(&b));
    INV_TRY(g->failed ? g->failed : settle_gradients(r, from, at));
    for (uint32_t k = 0; k < n.nin; k++)
        if (wanted[k]) INV_TRY(accumulate(r, n.in[k], in_grad[k], is_alone(in_grad, n.nin, k)));
    return INV_OK;
}

/* Gradients of what nothing reaches are zero. */
static inv_status grad_or_zero(reverse *r, inv_id v, inv_id *out)
{
    inv_graph *g = r->g;
    *out = r->grad[v];
    if (*out == INV_NONE) {
        inv_shape shape = inv_val(g, v)->shape;
        inv_id zero = inv_graph_const_real(g, g->real, 0);
        *out = inv_emit1(g, "BroadcastTo", INV_IN(zero),
                         INV_ATTRS(inv_attr_of_ints("shape", (size_t)shape.rank, shape.dim)));
    }
    return g->failed;
}

static inv_status collect_gradients(reverse *r, const inv_request *rq, inv_plan *plan)
{
    inv_graph *g = r->g;
    bool keep = !rq->optimize;
    for (size_t i = 0; i < g->inits.n; i++) {
        inv_id v = g->inits.at[i];
        if (!inv_val(g, v)->trainable) continue;
        inv_id d = r->grad[v];
        if (d == INV_NONE && (rq->options->ntrain_only == 0 || rq->optimize)) {
            inv_val(g, v)->trainable = false;
            inv_val(g, v)->untrained = INV_UNTRAINED_UNREACHED;
            continue;
        }
        INV_TRY(grad_or_zero(r, v, &d));
        inv_val(g, d)->mem = INV_MEM_GRAD;
        inv_val(g, d)->keep = keep;
        inv_result_slot slot = {inv_val(g, v)->name, d};
        if (!inv_vec_push(&g->arena, &plan->grad, slot)) return INV_E_NOMEM;
    }
    for (size_t i = 0; i < plan->feed.n && rq->options->input_grads; i++) {
        inv_id v = plan->feed.at[i].value, d;
        if (plan->feed.at[i].is_target || plan->feed.at[i].gradient_of != INV_NONE ||
            !inv_dtype_is_float(inv_val(g, v)->dtype))
            continue;
        INV_TRY(grad_or_zero(r, v, &d));
        inv_val(g, d)->keep = true;
        inv_result_slot slot = {plan->feed.at[i].name, d};
        if (!inv_vec_push(&g->arena, &plan->input_grad, slot)) return INV_E_NOMEM;
    }
    return INV_OK;
}

static inv_status begin_reverse(reverse *r)
{
    r->nvalue = r->g->value.n;
    r->forward = r->g->order.n;
    r->done = INV_ARENA_NEW(&r->scratch, bool, r->nvalue);
    r->wanted = INV_ARENA_NEW(&r->scratch, bool, r->nvalue);
    r->grad = INV_ARENA_NEW(&r->scratch, inv_id, r->nvalue);
    r->reader = INV_ARENA_NEW(&r->scratch, inv_id, r->nvalue);
    if (!r->wanted || !r->grad || !r->reader || !r->done) return INV_E_NOMEM;
    for (size_t v = 0; v < r->nvalue; v++) r->grad[v] = r->reader[v] = INV_NONE;
    return INV_OK;
}

/* What backward starts from: plan->seed or one, for the loss; or what the caller gives, for each output. */
static inv_status begin_gradients(reverse *r, const inv_plan *plan)
{
    inv_graph *g = r->g;
    for (size_t i = 0; i < plan->feed.n; i++) {
        const inv_feed_slot *slot = &plan->feed.at[i];
        if (slot->gradient_of != INV_NONE) INV_TRY(accumulate(r, slot->gradient_of, slot->value, true));
    }
    if (plan->loss == INV_NONE) return g->failed;
    if (plan->seed != INV_NONE) {
        r->grad[plan->loss] = plan->seed;
        return g->failed;
    }
    r->grad[plan->loss] = inv_graph_const_real(g, inv_val(g, plan->loss)->dtype, 1);
    if (inv_val(g, plan->loss)->shape.rank > 0 && r->grad[plan->loss] != INV_NONE) {
        inv_shape shape = inv_val(g, plan->loss)->shape;
        r->grad[plan->loss] = inv_emit1(g, "View", INV_IN(r->grad[plan->loss]),
                                        INV_ATTRS(inv_attr_of_ints("shape", (size_t)shape.rank, shape.dim)));
    }
    return g->failed;
}

static inv_status run_reverse(reverse *r, const inv_request *rq, inv_plan *plan)
{
    inv_graph *g = r->g;
    const size_t forward = g->order.n;
    INV_TRY(begin_reverse(r));
    mark_wanted(r, rq);
    inv_ids from = {0};
    bool ok = plan->loss == INV_NONE || inv_vec_push(&r->scratch, &from, plan->loss);
    for (size_t i = 0; i < plan->feed.n && ok; i++)
        if (plan->feed.at[i].gradient_of != INV_NONE)
            ok = inv_vec_push(&r->scratch, &from, plan->feed.at[i].gradient_of);
    INV_TRY(ok ? inv_check_way(g, &r->scratch, r->wanted, &from) : INV_E_NOMEM);
    g->phase = INV_BACKWARD;
    INV_TRY(begin_gradients(r, plan));
    for (size_t i = forward; i-- > 0;) INV_TRY(reverse_node(r, i));
    INV_TRY(place_beside(r));
    INV_TRY(collect_gradients(r, rq, plan));
    g->forward_end = forward + r->added;
    return INV_OK;
}

inv_status inv_pass_grad(inv_graph *g, const inv_request *rq, inv_plan *plan)
{
    INV_TRY(check_globs(g, "train_only", rq->options->train_only, rq->options->ntrain_only));
    INV_TRY(check_globs(g, "freeze", rq->options->freeze, rq->options->nfreeze));
    INV_TRY(check_globs(g, "tied", rq->options->tied, rq->options->ntied));
    for (size_t i = 0; i < rq->options->ngroups; i++)
        INV_TRY(check_globs(g, "groups", &rq->options->groups[i].glob, 1));
    mark_state(g);
    g->forward_end = g->order.n;
    if (rq->purpose != INV_FOR_TRAIN) return INV_OK;
    INV_CHECK(plan->loss != INV_NONE || rq->options->loss == INV_LOSS_OUTSIDE, g->ctx, INV_E_ARG,
              "training needs a loss ({loss})");
    reverse r = {.g = g};
    inv_arena_init(&r.scratch, g->ctx);
    inv_status s = run_reverse(&r, rq, plan);
    inv_arena_fini(&r.scratch);
    inv_emit_for(g, NULL);
    INV_TRY(s);
    return plan->grad.n == 0 && !rq->options->input_grads ? inv_untrained_all(g) : INV_OK;
}

/* --- the operator Gradient --- */

bool inv_is_gradient(const inv_node *n)
{
    return strcmp(n->op_type, "Gradient") == 0 && strcmp(n->domain, "ai.onnx.preview.training") == 0;
}

/* Inputs first..first+count-1 of the node must be the very values that the attribute names: then what has been computed
 * from them is what is differentiated. */
static inv_status named_inputs(const inv_graph *g, const inv_node *n, const char *attr, uint32_t first, size_t *count)
{
    const inv_attr *names = inv_attr_find(n, attr);
    *count = names ? names->n : 0;
    for (size_t i = 0; i < *count; i++) {
        const inv_id v = inv_graph_find(g, names->strings[i]);
        if (first + i >= n->nin || v == INV_NONE || inv_graph_stands(g, v) != n->in[first + i])
            return inv_node_fail(g, n, INV_E_UNSUPPORTED_OP,
                                 "input %zu must be '%s', as attribute %s says; other points are not supported",
                                 first + i, names->strings[i], attr);
        if (inv_val(g, n->in[first + i])->role == INV_ROLE_CONST)
            return inv_node_fail(g, n, INV_E_UNSUPPORTED_OP, "'%s' is a constant here", names->strings[i]);
    }
    return INV_OK;
}

/* wanted: what depends on the first `nx` inputs, but not by way of the others. */
static void mark_between(reverse *r, const inv_node *gradient, size_t nx)
{
    const inv_graph *g = r->g;
    for (size_t i = 0; i < nx; i++) r->wanted[gradient->in[i]] = true;
    for (size_t i = 0; i < g->order.n; i++) {
        const inv_node *n = inv_nod(g, g->order.at[i]);
        const bool wanted = !(n->op->flags & INV_OP_NO_GRAD) && wants_any(r, n);
        for (uint32_t k = 0; k < n->nout; k++) {
            if (n->out[k] == INV_NONE || !wanted || !inv_dtype_is_float(inv_val(g, n->out[k])->dtype)) continue;
            bool held = false;
            for (size_t z = nx; z < gradient->nin; z++) held = held || gradient->in[z] == n->out[k];
            r->wanted[n->out[k]] = !held;
        }
    }
}

static inv_status between(reverse *r, const inv_node *n, inv_id y, size_t nx, inv_id *out)
{
    inv_graph *g = r->g;
    const size_t forward = g->order.n;
    INV_TRY(begin_reverse(r));
    mark_between(r, n, nx);
    INV_TRY(inv_check_way(g, &r->scratch, r->wanted, &(inv_ids){.at = &y, .n = 1}));
    const inv_shape shape = inv_val(g, y)->shape;
    const inv_id one = inv_graph_const_real(g, inv_val(g, y)->dtype, 1);
    r->grad[y] =
        inv_emit1(g, "BroadcastTo", INV_IN(one), INV_ATTRS(inv_attr_of_ints("shape", (size_t)shape.rank, shape.dim)));
    if (g->failed) return g->failed;
    for (size_t i = forward; i-- > 0;) INV_TRY(reverse_node(r, i));
    for (size_t i = 0; i < nx && i < n->nout; i++) INV_TRY(grad_or_zero(r, n->in[i], &out[i]));
    return INV_OK;
}

inv_status inv_lower_gradient(inv_graph *g, const inv_node *node, inv_id *out)
{
    const inv_node n = *node; /* emitting moves the array */
    size_t nx, nz;
    const inv_id y = inv_graph_find(g, inv_attr_string(&n, "y", ""));
    INV_TRY(named_inputs(g, &n, "xs", 0, &nx));
    INV_TRY(named_inputs(g, &n, "zs", (uint32_t)nx, &nz));
    for (uint32_t i = 0; i < n.nout; i++) out[i] = INV_NONE;
    if (y == INV_NONE || nx == 0 || n.nin != nx + nz || n.nout > nx)
        return inv_node_fail(g, &n, INV_E_GRAPH, "attribute y must name a value, xs and zs all inputs");
    const inv_id at = inv_graph_stands(g, y);
    if (!inv_dtype_is_float(inv_val(g, at)->dtype))
        return inv_node_fail(g, &n, INV_E_UNSUPPORTED_TYPE, "y is not floating point");
    reverse r = {.g = g};
    inv_arena_init(&r.scratch, g->ctx);
    inv_status s = between(&r, &n, at, nx, out);
    inv_arena_fini(&r.scratch);
    return s;
}
