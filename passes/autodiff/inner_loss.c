/* SPDX-License-Identifier: Apache-2.0
 * A loss that the model computes: what it is divided by, so that micro-batches, ranks and batches of an evaluation come
 * to what one batch of all their rows gives. Means over rows need nothing; for means over labels that count,
 * plan->total is how many these are; sums are added up (plan->sums). What cannot be told is said. O(nodes). */
#include <math.h>
#include <string.h>

#include "core/exchange.h"
#include "core/node.h"
#include "core/options.h"
#include "core/trained.h"
#include "passes/autodiff/autodiff.h"

typedef enum divisor { ROWS, COUNT, NOTHING, UNKNOWN } divisor;

typedef struct finding {
    divisor by;
    inv_id total; /* COUNT: a value; NOTHING: what is summed */
    inv_id node;  /* UNKNOWN: the last that was looked at */
    bool summed;  /* NOTHING: the sum goes over rows */
} finding;

/* What a value is computed from. */
typedef struct origin {
    bool fed, trained;
} origin;

static origin origin_of(const inv_graph *g, inv_id v)
{
    origin o = {0};
    inv_arena scratch;
    inv_ids open = {0};
    inv__arena_init(&scratch, g->ctx);
    bool *seen = INV_ARENA_NEW(&scratch, bool, g->value.n + 1);
    bool ok = seen && inv_vec_push(&scratch, &open, v);
    while (ok && open.n) {
        const inv_value *x = inv_val(g, open.at[--open.n]);
        const inv_node *n = x->def == INV_NONE ? NULL : inv_nod(g, x->def);
        if (x->role == INV_ROLE_PARAM && inv_dtype_is_float(x->dtype) && x->untrained == INV_TRAINED) o.trained = true;
        if (n && n->op && (n->op->flags & INV_OP_SOURCE)) o.fed = true;
        for (uint32_t k = 0; n && k < n->nin && ok; k++) {
            if (n->in[k] == INV_NONE || seen[n->in[k]]) continue;
            seen[n->in[k]] = true;
            ok = inv_vec_push(&scratch, &open, n->in[k]);
        }
    }
    inv__arena_fini(&scratch);
    return ok ? o : (origin){true, true};
}

static bool is_constant(const inv_graph *g, inv_id v)
{
    const origin o = origin_of(g, v);
    return !o.fed && !o.trained;
}

static bool is_one_number(const inv_graph *g, inv_id v) { return inv_shape_nelem(&inv_val(g, v)->shape) == 1; }

static finding found(divisor by, inv_id total, inv_id node) { return (finding){by, total, node, false}; }

static bool is_over_rows(const inv_node *n)
{
    const inv_attr *axes = inv_attr_find(n, "axes");
    bool rows = false;
    for (size_t i = 0; axes && i < axes->n; i++) rows = rows || axes->ints[i] == 0;
    return rows;
}

static bool is_reduction(const inv_node *n)
{
    return inv_op_is(n, "ReduceSumAxes") || inv_op_is(n, "ReduceMeanAxes") || inv_op_is(n, "ReduceMaxAxes");
}

/* Whether something that v is computed from was reduced over the rows before: then each row's part hangs on all. */
static bool hangs_on_all_rows(const inv_graph *g, inv_id v)
{
    inv_arena scratch;
    inv_ids open = {0};
    bool found_one = false;
    inv__arena_init(&scratch, g->ctx);
    bool *seen = INV_ARENA_NEW(&scratch, bool, g->value.n + 1);
    bool ok = seen && inv_vec_push(&scratch, &open, v);
    while (ok && open.n && !found_one) {
        const inv_id def = inv_val(g, open.at[--open.n])->def;
        const inv_node *n = def == INV_NONE ? NULL : inv_nod(g, def);
        found_one = n && is_reduction(n) && is_over_rows(n) && origin_of(g, n->in[0]).fed;
        for (uint32_t k = 0; n && k < n->nin && ok; k++) {
            if (n->in[k] == INV_NONE || seen[n->in[k]]) continue;
            seen[n->in[k]] = true;
            ok = inv_vec_push(&scratch, &open, n->in[k]);
        }
    }
    inv__arena_fini(&scratch);
    return !ok || found_one;
}

/* What a batch has one of: nothing that is left of a sum within rows. Of one row, shapes do not tell. */
static bool is_of_batch(const inv_graph *g, inv_id v)
{
    for (;;) {
        const inv_node *n = inv_val(g, v)->def == INV_NONE ? NULL : inv_nod(g, inv_val(g, v)->def);
        if (!n || n->nin < 1 || !is_one_number(g, v)) return true;
        if (inv_op_is(n, "ReduceSumAxes")) return is_over_rows(n);
        if (n->nin > 1 && !is_constant(g, n->in[1])) return true;
        v = n->in[0];
    }
}

/* A sum over all of v: of what has been divided by one number of the batch, it is a mean over that. */
static finding look_at_sum(const inv_graph *g, inv_id v, inv_id node)
{
    finding f = {NOTHING, INV_NONE, node,
                 inv_op_is(inv_nod(g, node), "ReduceSumAxes") && is_over_rows(inv_nod(g, node))};
    for (;;) {
        const inv_node *n = inv_val(g, v)->def == INV_NONE ? NULL : inv_nod(g, inv_val(g, v)->def);
        if (!n) break;
        if (inv_op_is(n, "ReduceMeanAxes") && is_over_rows(n)) return found(ROWS, INV_NONE, node);
        if (inv_op_is(n, "ReduceSumAxes") && is_over_rows(n)) f.summed = true;
        if (inv_op_is(n, "Div") && !is_constant(g, n->in[1])) {
            inv_id d = n->in[1];
            while (inv_val(g, d)->def != INV_NONE && inv_op_is(inv_nod(g, inv_val(g, d)->def), "BroadcastTo"))
                d = inv_nod(g, inv_val(g, d)->def)->in[0];
            if (!is_one_number(g, d) || !is_of_batch(g, d)) break; /* a number per row */
            return origin_of(g, d).trained ? found(UNKNOWN, INV_NONE, node) : found(COUNT, d, node);
        }
        if (inv_op_is(n, "View") || inv_op_is(n, "Cast") || inv_op_is(n, "Neg") || inv_op_is(n, "Div") ||
            inv_op_is(n, "ReduceSumAxes") || inv_op_is(n, "ReduceMeanAxes") ||
            (inv_op_is(n, "Mul") && is_constant(g, n->in[1])))
            v = n->in[0];
        else if (inv_op_is(n, "Mul") && is_constant(g, n->in[0])) v = n->in[1];
        else break;
    }
    f.total = v;
    return f;
}

static finding look_at(inv_graph *g, inv_id v);

/* A sum of two losses is divided by what both are; what hangs on weights alone is in every mean alike. */
static finding look_at_both(inv_graph *g, const inv_node *n, inv_id node)
{
    const inv_id in[2] = {n->in[0], n->in[1]};
    finding f[2];
    for (int i = 0; i < 2; i++) {
        const bool fed = origin_of(g, in[i]).fed;
        if (!fed) {
            f[0] = look_at(g, in[1 - i]);
            return f[0].by == NOTHING ? found(UNKNOWN, INV_NONE, node) : f[0];
        }
    }
    for (int i = 0; i < 2; i++) f[i] = look_at(g, in[i]);
    return f[0].by == f[1].by && f[0].total == f[1].total ? f[0] : found(UNKNOWN, INV_NONE, node);
}

static finding look_at_classes(inv_graph *g, inv_id node)
{
    const inv_node *n = inv_nod(g, node);
    if (inv_attr_int(n, "sum", 0)) return (finding){NOTHING, n->in[0], node, true};
    const bool weighted = n->nin > 2 && n->in[2] != INV_NONE;
    const bool labels = inv_val(g, n->in[1])->dtype == INV_I64;
    if (!labels || (!weighted && !inv_attr_find(n, "ignore_index"))) return found(ROWS, INV_NONE, node);
    return found(COUNT, inv_node_want(g, node, 1), node);
}

static finding look_at(inv_graph *g, inv_id v)
{
    for (;;) {
        const inv_id node = inv_val(g, v)->def;
        if (node == INV_NONE) return found(UNKNOWN, INV_NONE, node);
        const inv_node *n = inv_nod(g, node);
        if (inv_op_is(n, "CrossEntropyMean")) return look_at_classes(g, node);
        if (inv_op_is(n, "ReduceMeanAxes") && is_one_number(g, v)) {
            const finding f = look_at_sum(g, n->in[0], node);
            if (f.by == NOTHING && f.summed) return f;
            return f.by != COUNT ? found(ROWS, INV_NONE, node) : found(UNKNOWN, INV_NONE, node);
        }
        if (inv_op_is(n, "ReduceSumAxes")) return look_at_sum(g, n->in[0], node);
        if (inv_op_is(n, "Add") || inv_op_is(n, "Sub")) return look_at_both(g, n, node);
        if (inv_op_is(n, "View") || inv_op_is(n, "Cast") || inv_op_is(n, "Neg") ||
            ((inv_op_is(n, "Mul") || inv_op_is(n, "Div")) && is_constant(g, n->in[1])))
            v = n->in[0];
        else if (inv_op_is(n, "Mul") && is_constant(g, n->in[0])) v = n->in[1];
        else if (inv_op_is(n, "Div") && !origin_of(g, n->in[1]).trained) {
            if (is_one_number(g, n->in[1]) && !is_of_batch(g, n->in[1])) return found(ROWS, INV_NONE, node);
            const finding f = look_at(g, n->in[0]);
            return f.by == NOTHING ? found(COUNT, n->in[1], node) : found(UNKNOWN, INV_NONE, node);
        } else {
            return found(UNKNOWN, INV_NONE, node);
        }
    }
}

/* Whether what looks like a sum may be a mean: shapes are numbers by now, so that a factor may be made of the number of
 * rows, and nothing is left of a mean over one row. */
static bool may_be_mean(const inv_graph *g, const finding *f, inv_id loss, int64_t rows)
{
    if (f->total == INV_NONE || (rows == 1 && !f->summed) || hangs_on_all_rows(g, f->total)) return true;
    for (inv_id v = loss; v != f->total && rows > 1 && inv_val(g, v)->def != INV_NONE;) {
        const inv_node *n = inv_nod(g, inv_val(g, v)->def);
        const uint32_t factor = inv_op_is(n, "Mul") && is_constant(g, n->in[0]) ? 0 : 1;
        const bool scaled = inv_op_is(n, "Mul") || inv_op_is(n, "Div");
        const inv_value *k = scaled ? inv_val(g, n->in[factor]) : NULL;
        const double c = k && k->data.bytes ? fabs(inv_elem_double(k->data.bytes, k->data.dtype, 0)) : 0;
        const double times = c / (double)rows, part = c > 0 ? 1 / (c * (double)rows) : 0;
        if (scaled && (fabs(times - round(times)) < 1e-6 * times || fabs(part - round(part)) < 1e-6 * part))
            return true;
        v = n->in[scaled ? 1 - factor : 0];
    }
    return false;
}

/* As one number of float64. */
static inv_id as_total(inv_graph *g, inv_id v)
{
    const inv_shape scalar = inv_shape_of(0, NULL);
    if (inv_val(g, v)->shape.rank > 0)
        v = inv_emit1(g, "View", INV_IN(v), INV_ATTRS(inv_attr_of_ints("shape", 0, scalar.dim)));
    if (v != INV_NONE && inv_val(g, v)->dtype != INV_F64)
        v = inv_emit1(g, "Cast", INV_IN(v), INV_ATTRS(inv_attr_of_int("to", INV_F64)));
    return v;
}

static void tell(const inv_graph *g, const inv_request *rq, const finding *f, const char *output, const char *what)
{
    const inv_session_options *o = rq->options;
    const bool several = inv_world_several(o->world);
    if (rq->batch || rq->purpose != INV_FOR_TRAIN || !rq->optimize || !(rq->accumulate || several)) return;
    inv__log(g->ctx,
             "the loss '%s' is made inside of the model, by node '%s': %s. So a step of several micro-batches "
             "({accumulate}) or ranks may differ from that of one batch of all their rows",
             output, f->node == INV_NONE ? output : inv_node_called(g, inv_nod(g, f->node)), what);
}

inv_status inv_inner_loss(inv_graph *g, const inv_request *rq, inv_plan *plan, const char *output)
{
    const inv_session_options *o = rq->options;
    const bool several = inv_world_several(o->world);
    finding f = look_at(g, plan->loss);
    if (g->failed) return g->failed;
    const int64_t rows = rq->batch ? rq->batch : inv__arrays_rows(o->inputs, o->ninputs, o->target, 1);
    if (f.by == NOTHING && may_be_mean(g, &f, plan->loss, rows)) f.by = UNKNOWN;
    if (f.by == UNKNOWN)
        tell(g, rq, &f, output, "what it is divided by is not to be told, and micro-batches count by their rows");
    if (f.by == NOTHING && several)
        tell(g, rq, &f, output, "it is a sum, and of the sums of ranks the mean over their rows is taken");
    if (f.by == COUNT && rq->accumulate && o->early_update) {
        tell(g, rq, &f, output,
             "what its labels count is known too late for {early_update}, so micro-batches count by "
             "their rows");
        return INV_OK;
    }
    plan->sums = f.by == NOTHING && !several;
    if (f.by == COUNT) plan->total = as_total(g, f.total);
    return g->failed;
}
