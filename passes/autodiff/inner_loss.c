/* SPDX-License-Identifier: Apache-2.0
 * A loss that the model computes: what it is divided by, so that micro-batches, ranks and batches of an evaluation come
 * to what one batch of all their rows gives. Means over rows need nothing; for means over labels that count,
 * plan->total is how many these are; sums are added up. Nodes say by what (plan->divisor), and what
 * executor/session/row_probe.c has measured decides between sums and means, and whether counts add up: shapes are
 * numbers here, and nothing is left of a mean over one row. What cannot be told is said. */
#include <math.h>
#include <string.h>

#include "core/graph/node.h"
#include "core/program/exchange.h"
#include "core/program/options.h"
#include "core/weights/trained.h"
#include "passes/autodiff/autodiff.h"

typedef struct finding {
    inv_divisor by;
    inv_id total;  /* COUNT: a value; NOTHING: what is summed */
    inv_id node;   /* UNKNOWN: the last that was looked at */
    bool summed;   /* NOTHING: the sum goes over rows */
    double factor; /* of constants on the way, which may be made of the number of rows */
} finding;

static bool is_given(inv_graph *g, inv_id v)
{
    const inv_node *n = inv_def_node(g, v);
    return n && n->op && (n->op->flags & INV_OP_SOURCE);
}

/* What is fed and may have rows: a single number that is fed is the same for all of them. */
static bool is_source(inv_graph *g, inv_id v) { return is_given(g, v) && inv_val(g, v)->shape.rank > 0; }
static bool is_given_number(inv_graph *g, inv_id v) { return is_given(g, v) && inv_val(g, v)->shape.rank == 0; }

static bool is_weight(inv_graph *g, inv_id v)
{
    const inv_value *x = inv_val(g, v);
    return g->train && x->role == INV_ROLE_PARAM && inv_dtype_is_float(x->dtype) && x->untrained == INV_TRAINED;
}

static bool is_fed(inv_graph *g, inv_id v) { return inv_graph_comes_of(g, v, is_source); }

/* Whether weights have gradients by v. A count of what comparisons hold for has none. */
static bool is_trained(inv_graph *g, inv_id v)
{
    for (const inv_node *n = inv_def_node(g, v); n; n = inv_def_node(g, v)) {
        if (inv_op_is(n, "Cast") && inv_val(g, n->in[0])->dtype == INV_BOOL) return false;
        if (n->nin == 0 || n->nin > 2 || (n->nin == 2 && inv_graph_comes_of(g, n->in[1], is_weight))) break;
        v = n->in[0];
    }
    return inv_graph_comes_of(g, v, is_weight);
}

static bool is_one_number(const inv_graph *g, inv_id v) { return inv_shape_nelem(&inv_val(g, v)->shape) == 1; }

static finding found(inv_divisor by, inv_id total, inv_id node) { return (finding){by, total, node, false, 1}; }

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

static bool is_of_all_rows(inv_graph *g, inv_id v)
{
    const inv_node *n = inv_def_node(g, v);
    return n && is_reduction(n) && is_over_rows(n) && is_fed(g, n->in[0]);
}

/* What a batch has one of: nothing that is left of a sum within rows. Of one row, shapes do not tell. */
static bool is_of_batch(inv_graph *g, inv_id v)
{
    for (;;) {
        const inv_node *n = inv_def_node(g, v);
        if (!n || n->nin < 1 || !is_one_number(g, v)) return true;
        if (inv_op_is(n, "ReduceSumAxes")) return is_over_rows(n);
        if (n->nin > 1 && is_fed(g, n->in[1])) return true;
        v = n->in[0];
    }
}

/* The operand that n gives as it is or times what all rows have alike; INV_NONE: it does more. */
static inv_id scaled_by(inv_graph *g, const inv_node *n, double *factor)
{
    if (inv_op_is(n, "View") || inv_op_is(n, "Cast") || inv_op_is(n, "Neg")) return n->in[0];
    const bool times = inv_op_is(n, "Mul");
    if (!times && !inv_op_is(n, "Div")) return INV_NONE;
    const int k = times && !is_fed(g, n->in[0]) ? 0 : 1;
    if (is_fed(g, n->in[k])) return INV_NONE;
    const inv_data *d = &inv_val(g, n->in[k])->data;
    const double c = d->bytes ? fabs(inv_elem_double(d->bytes, d->dtype, 0)) : 0;
    if (c > 0) *factor *= times ? c : 1 / c;
    else if (inv_graph_comes_of(g, n->in[k], is_given_number)) *factor = NAN; /* may be the number of rows */
    return n->in[1 - k];
}

/* A sum over all of v: of what has been divided by one number of the batch, it is a mean over that. */
static finding look_at_sum(inv_graph *g, inv_id v, inv_id node)
{
    finding f = found(INV_BY_NOTHING, INV_NONE, node);
    f.summed = inv_op_is(inv_nod(g, node), "ReduceSumAxes") && is_over_rows(inv_nod(g, node));
    for (;;) {
        const inv_node *n = inv_def_node(g, v);
        if (!n) break;
        if (inv_op_is(n, "ReduceMeanAxes") && is_over_rows(n)) return found(INV_BY_ROWS, INV_NONE, node);
        if (inv_op_is(n, "ReduceSumAxes") && is_over_rows(n)) f.summed = true;
        if (inv_op_is(n, "Div") && is_fed(g, n->in[1])) {
            inv_id d = n->in[1];
            while (inv_val(g, d)->def != INV_NONE && inv_op_is(inv_nod(g, inv_val(g, d)->def), "BroadcastTo"))
                d = inv_nod(g, inv_val(g, d)->def)->in[0];
            if (!is_one_number(g, d) || !is_of_batch(g, d)) break; /* a number per row */
            return is_trained(g, d) ? found(INV_BY_UNKNOWN, INV_NONE, node) : found(INV_BY_COUNT, d, node);
        }
        const bool part = inv_op_is(n, "ReduceSumAxes") || inv_op_is(n, "ReduceMeanAxes");
        const inv_id next = part ? n->in[0] : scaled_by(g, n, &f.factor);
        if (next == INV_NONE) break;
        v = next;
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
    for (int i = 0; i < 2; i++)
        if (!is_fed(g, in[i])) {
            f[0] = look_at(g, in[1 - i]);
            return f[0].by == INV_BY_NOTHING || f[0].by == INV_BY_UNREAD ? found(INV_BY_UNKNOWN, INV_NONE, node) : f[0];
        }
    for (int i = 0; i < 2; i++) f[i] = look_at(g, in[i]);
    if (f[0].by == INV_BY_NOTHING && f[1].by == INV_BY_NOTHING) {
        for (int i = 0; i < 2; i++)
            if (f[i].total != INV_NONE && inv_graph_comes_of(g, f[i].total, is_of_all_rows))
                return found(INV_BY_UNKNOWN, INV_NONE, node);
        return (finding){INV_BY_NOTHING, INV_NONE, node, f[0].summed && f[1].summed,
                         f[0].factor == 1 ? f[1].factor : f[0].factor};
    }
    return f[0].by == f[1].by && f[0].total == f[1].total ? f[0] : found(INV_BY_UNKNOWN, INV_NONE, node);
}

static finding look_at_classes(inv_graph *g, inv_id node)
{
    const inv_node *n = inv_nod(g, node);
    if (inv_attr_int(n, "sum", 0)) {
        finding f = found(INV_BY_NOTHING, n->in[0], node);
        f.summed = true;
        return f;
    }
    const bool weighted = n->nin > 2 && n->in[2] != INV_NONE;
    const bool labels = inv_val(g, n->in[1])->dtype == INV_I64;
    if (!labels || (!weighted && !inv_attr_find(n, "ignore_index"))) return found(INV_BY_ROWS, INV_NONE, node);
    return found(INV_BY_COUNT, inv_node_want(g, node, 1), node);
}

static finding look_at_mean(inv_graph *g, inv_id v, inv_id node)
{
    const finding f = look_at_sum(g, v, node);
    if (f.by == INV_BY_NOTHING && f.summed) return f;
    return found(f.by != INV_BY_COUNT ? INV_BY_ROWS : INV_BY_UNKNOWN, INV_NONE, node);
}

static finding look_at_quotient(inv_graph *g, const inv_node *n, inv_id node)
{
    const inv_id by = n->in[1];
    if (is_one_number(g, by) && !is_of_batch(g, by)) return found(INV_BY_ROWS, INV_NONE, node);
    const finding f = look_at(g, n->in[0]);
    return f.by == INV_BY_NOTHING ? found(INV_BY_COUNT, by, node) : found(INV_BY_UNKNOWN, INV_NONE, node);
}

static finding look_at(inv_graph *g, inv_id v)
{
    double factor = 1;
    for (;;) {
        const inv_id node = inv_val(g, v)->def;
        if (node == INV_NONE) return found(INV_BY_UNKNOWN, INV_NONE, node);
        const inv_node *n = inv_nod(g, node);
        const inv_id next = scaled_by(g, n, &factor);
        if (next != INV_NONE) {
            v = next;
            continue;
        }
        finding f = found(INV_BY_UNKNOWN, INV_NONE, node);
        if (inv_op_is(n, "CrossEntropyMean")) f = look_at_classes(g, node);
        else if (inv_op_is(n, "ReduceMeanAxes") && is_one_number(g, v)) f = look_at_mean(g, n->in[0], node);
        else if (inv_op_is(n, "ReduceSumAxes")) f = look_at_sum(g, n->in[0], node);
        else if (inv_op_is(n, "Add") || inv_op_is(n, "Sub")) f = look_at_both(g, n, node);
        else if (inv_op_is(n, "Div") && !is_trained(g, n->in[1])) f = look_at_quotient(g, n, node);
        else if (inv_op_is(n, "MatMulT")) f.by = INV_BY_UNREAD;
        f.factor *= factor;
        return f;
    }
}

/* --- what labels count --- */

/* The operand of a bound below or a choice by which a count of nothing is not divided by; INV_NONE: n is neither. */
static inv_id unbounded(inv_graph *g, const inv_node *n)
{
    if (inv_op_is(n, "ClipRange")) return n->in[0];
    if (inv_op_is(n, "Max")) return !is_fed(g, n->in[0]) ? n->in[1] : !is_fed(g, n->in[1]) ? n->in[0] : INV_NONE;
    if (inv_op_is(n, "Where")) return !is_fed(g, n->in[1]) ? n->in[2] : !is_fed(g, n->in[2]) ? n->in[1] : INV_NONE;
    return INV_NONE;
}

/* The count of which `total` is what is divided by: of nothing it is 0, where that may be 1. */
static inv_id count_of(inv_graph *g, inv_id total)
{
    for (inv_id v = total;;) {
        const inv_node *n = inv_def_node(g, v);
        if (!n) return total;
        if (inv_op_is(n, "View") || inv_op_is(n, "Cast") || inv_op_is(n, "BroadcastTo")) {
            v = n->in[0];
            continue;
        }
        const inv_id within = unbounded(g, n);
        return within == INV_NONE ? total : within;
    }
}

/* Whether the totals of parts of a batch add up to that of all, as far as nodes say. Of one row, nothing is left of a
 * sum over rows. */
static bool adds_up(inv_graph *g, inv_id v, int64_t rows)
{
    for (double factor = 1, least = 1e-3;;) {
        const inv_value *x = inv_val(g, v);
        const inv_node *n = inv_def_node(g, v);
        if (!n) return false;
        if (inv_op_is(n, "ReduceSumAxes") && is_over_rows(n)) return true;
        if (inv_op_is(n, "CrossEntropyMean")) return true;
        if (rows == 1 && (x->dtype == INV_BOOL || is_source(g, v) || inv_op_is(n, "ReduceSumAxes"))) return true;
        if (inv_op_is(n, "Add") && is_fed(g, n->in[0]) && is_fed(g, n->in[1])) {
            if (!adds_up(g, n->in[0], rows)) return false;
            v = n->in[1];
            continue;
        }
        inv_id next = inv_op_is(n, "BroadcastTo") ? n->in[0] : scaled_by(g, n, &factor);
        if (inv_op_is(n, "Add")) { /* something small, against division by zero */
            const int k = is_fed(g, n->in[0]);
            const inv_data *d = &inv_val(g, n->in[k])->data;
            if (d->bytes && fabs(inv_elem_double(d->bytes, d->dtype, 0)) <= least) next = n->in[1 - k];
        }
        if (next == INV_NONE) return false;
        v = next;
    }
}

/* Of one row, what the loss is divided by, where that was found to be a count for several; INV_NONE: it is not found.
 */
static inv_id divided_by(inv_graph *g, inv_id v)
{
    for (double factor = 1;;) {
        const inv_node *n = inv_def_node(g, v);
        if (!n) return INV_NONE;
        if (inv_op_is(n, "Div") && is_one_number(g, n->in[1]) && is_fed(g, n->in[1])) return n->in[1];
        inv_id next = scaled_by(g, n, &factor);
        if (inv_op_is(n, "Add") || inv_op_is(n, "Sub")) next = n->in[!is_fed(g, n->in[0])];
        if (inv_op_is(n, "ReduceSumAxes")) next = n->in[0];
        if (next == INV_NONE) return INV_NONE;
        v = next;
    }
}

/* Whether what looks like a sum and was not measured may be a mean. */
static bool may_be_mean(const finding *f, int64_t rows)
{
    const double share = 1 / (f->factor * (double)rows), whole = f->factor * (double)rows;
    if (isnan(f->factor)) return true;
    const bool by_rows =
        f->factor != 1 && (fabs(share - round(share)) < 1e-6 * share || fabs(whole - round(whole)) < 1e-6 * whole);
    return rows == 1 || by_rows;
}

/* By what nodes say and what was measured; the former alone does not tell a sum from a mean in every case. */
static inv_divisor settle(const finding *f, inv_divisor measured, int64_t rows)
{
    if (measured != INV_BY_UNMEASURED)
        return measured == INV_BY_COUNT && f->by != INV_BY_COUNT ? INV_BY_UNKNOWN : measured;
    if (f->by == INV_BY_ROWS && rows > 1 && fabs(f->factor - (double)rows) < 1e-6) return INV_BY_ROWS_OR_NOTHING;
    if (f->by != INV_BY_NOTHING) return f->by;
    return may_be_mean(f, rows) ? INV_BY_ROWS_OR_NOTHING : INV_BY_NOTHING;
}

/* As one number of float64. Where the model bounds it, a part of a batch that counts nothing is as good as absent. */
static inv_id as_total(inv_graph *g, inv_id total)
{
    const inv_shape scalar = inv_shape_of(0, NULL);
    const double nearly_nothing = 1e-30;
    inv_id v = count_of(g, total);
    const bool bounded = v != total;
    if (inv_val(g, v)->shape.rank > 0)
        v = inv_emit1(g, "View", INV_IN(v), INV_ATTRS(inv_attr_of_ints("shape", 0, scalar.dim)));
    if (v != INV_NONE && inv_val(g, v)->dtype != INV_F64)
        v = inv_emit1(g, "Cast", INV_IN(v), INV_ATTRS(inv_attr_of_int("to", INV_F64)));
    if (bounded && v != INV_NONE)
        v = inv_emit1(g, "Max", INV_IN(v, inv_graph_const_real(g, INV_F64, nearly_nothing)), INV_NOATTR);
    return v;
}

static void tell(const inv_graph *g, const inv_request *rq, const finding *f, const char *output, const char *what)
{
    const inv_session_options *o = rq->options;
    const bool several = inv_world_several(o->world);
    if (rq->batch || rq->purpose != INV_FOR_TRAIN || !rq->optimize || !(rq->accumulate || several)) return;
    inv_log(g->ctx,
            "the loss '%s' is computed inside the model, by node '%s': %s. So a step of several micro-batches "
            "({accumulate}) or ranks may differ from one batch of all rows",
            output, f->node == INV_NONE ? output : inv_node_called(g, inv_nod(g, f->node)), what);
}

inv_status inv_inner_loss(inv_graph *g, const inv_request *rq, inv_plan *plan, const char *output)
{
    const inv_session_options *o = rq->options;
    const bool several = inv_world_several(o->world);
    finding f = look_at(g, plan->loss);
    if (f.by == INV_BY_NOTHING && f.total != INV_NONE && inv_graph_comes_of(g, f.total, is_of_all_rows))
        f.by = INV_BY_UNKNOWN;
    const int64_t rows = rq->batch ? rq->batch : inv_arrays_rows(o->inputs, o->ninputs, o->target, 1);
    if (plan->divisor == INV_BY_COUNT && f.by != INV_BY_COUNT) {
        const inv_id total = divided_by(g, plan->loss);
        if (total != INV_NONE) f = found(INV_BY_COUNT, total, f.node);
    } else if (f.by == INV_BY_COUNT && plan->divisor != INV_BY_COUNT && !adds_up(g, count_of(g, f.total), rows)) {
        f.by = INV_BY_UNKNOWN;
    }
    if (g->failed) return g->failed;
    f.by = settle(&f, plan->divisor, rows);
    if ((f.by == INV_BY_ROWS_OR_NOTHING || f.by == INV_BY_UNREAD) && rq->purpose == INV_FOR_TRAIN)
        f.by = INV_BY_UNKNOWN;
    plan->divisor = f.by;
    if (f.by == INV_BY_UNKNOWN)
        tell(g, rq, &f, output, "its divisor is not known, so micro-batches are weighted by their rows");
    if (f.by == INV_BY_NOTHING && several) {
        tell(g, rq, &f, output, "it is a sum, and the sums of ranks are averaged by their rows");
        plan->divisor = INV_BY_ROWS;
    }
    if (f.by == INV_BY_COUNT && rq->accumulate && o->early_update) {
        tell(g, rq, &f, output,
             "the weight of its labels is known too late for {early_update}, so micro-batches are weighted by their "
             "rows");
        return INV_OK;
    }
    if (f.by == INV_BY_COUNT) plan->total = as_total(g, f.total);
    return g->failed;
}
