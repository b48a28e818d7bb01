/* SPDX-License-Identifier: Apache-2.0
 * Numbers that are fed: labels and targets are such as the loss takes, lengths such as the model takes. Checked before
 * a step, because a kernel cannot report. */
#include <math.h>

#include "executor/executor.h"

/* The elements of a batch, one after another. */
typedef struct element {
    const inv_array *of;
    int64_t nrows, per_row;
    int64_t r, k; /* element k of row r of the batch */
    int64_t row;  /* which row of the data that is */
    size_t at;    /* where the element is in the data */
} element;

static element elements_of(const inv_array *a)
{
    element e = {.of = a, .nrows = a->rank ? a->dims[0] : 1, .per_row = 1, .k = -1};
    for (int d = 1; d < a->rank; d++) e.per_row *= a->dims[d];
    return e;
}

static bool next(element *e)
{
    if (++e->k == e->per_row) e->k = 0, e->r++;
    if (e->r >= e->nrows || !e->per_row) return false;
    e->row = e->of->rows ? e->of->rows[e->r] : e->r;
    e->at = (size_t)(e->row * e->per_row + e->k);
    return true;
}

static int64_t whole_at(const element *e) { return inv_elem_int(e->of->data, e->of->dtype, e->at); }
static double real_at(const element *e) { return inv_elem_double(e->of->data, e->of->dtype, e->at); }

/* Integer labels within the classes. */
static inv_status check_labels(inv_session *s, int64_t classes, const inv_array *target)
{
    const inv_session_options *o = &s->program->options;
    for (element e = elements_of(target); next(&e);) {
        const int64_t label = whole_at(&e);
        if (o->ignores && label == o->ignore_index) continue;
        INV_CHECK(label >= 0 && label < classes, s->ctx, INV_E_ARG,
                  "target row %lld holds label %lld, the output has classes 0 to %lld", (long long)e.row,
                  (long long)label, (long long)classes - 1);
    }
    return INV_OK;
}

/* Soft targets: a share for each of `classes` classes, which are `inner` elements apart. Entries that are not finite
 * are for the loss to tell. */
static inv_status check_shares(inv_session *s, int64_t classes, int64_t inner, const inv_array *target)
{
    const double room = 1e-3 + 1e-4 * sqrt((double)classes); /* as rounding to 16 bits comes to */
    for (element e = elements_of(target); next(&e);) {
        double sum = 0;
        if (e.k / inner % classes) continue; /* of class 0: the others lie behind it */
        for (int64_t c = 0; c < classes; c++, e.at += (size_t)inner) {
            const double v = real_at(&e);
            INV_CHECK(!(v < 0), s->ctx, INV_E_ARG,
                      "target row %lld holds %.6g for class %lld: soft targets are shares from 0 to 1",
                      (long long)e.row, v, (long long)c);
            sum += v;
        }
        INV_CHECK(!(fabs(sum - 1) > room), s->ctx, INV_E_ARG,
                  "target row %lld has shares that sum to %.6g; soft targets sum to 1 over the classes. Divide them "
                  "by their sum, or use {loss} bce if rows may have several classes",
                  (long long)e.row, sum);
    }
    return INV_OK;
}

/* Probabilities, each by itself. */
static inv_status check_probabilities(inv_session *s, const inv_array *target)
{
    const inv_session_options *o = &s->program->options;
    for (element e = elements_of(target); next(&e);) {
        const double v = real_at(&e);
        if (o->ignores && v == (double)o->ignore_index) continue;
        INV_CHECK(!(v < 0 || v > 1), s->ctx, INV_E_ARG,
                  "target row %lld holds %.6g: targets of loss bce are from 0 to 1%s", (long long)e.row, v,
                  v > 1 ? "; divide them by the largest, or take another loss" : "");
    }
    return INV_OK;
}

inv_status inv_check_target(inv_session *s, const inv_plan *plan, const inv_array *target)
{
    const inv_loss loss = s->program->options.loss;
    if (!target || !target->data) return INV_OK;
    if (loss == INV_LOSS_BCE) return check_probabilities(s, target);
    if (loss != INV_LOSS_CROSS_ENTROPY || plan->classes < 1) return INV_OK;
    return inv_dtype_is_float(target->dtype) ? check_shares(s, plan->classes, plan->inner, target)
                                             : check_labels(s, plan->classes, target);
}

inv_status inv_check_kind(inv_session *s, const inv_plan *plan, const inv_feed_slot *slot, const inv_array *a)
{
    const inv_dtype wanted = inv_val(plan->g, slot->value)->dtype;
    const bool real = inv_dtype_is_float(wanted), classes = s->program->options.loss == INV_LOSS_CROSS_ENTROPY;
    if (!a->data || real == inv_dtype_is_float(a->dtype) || (real && !(slot->is_target && classes))) return INV_OK;
    return inv_fail(s->ctx, INV_E_SHAPE, "%s%s%s wants elements of type %s, got %s%s", slot->is_target ? "" : "input '",
                    slot->is_target ? "target" : slot->name, slot->is_target ? "" : "'", inv_dtype_name(wanted),
                    inv_dtype_name(a->dtype),
                    !slot->is_target ? ""
                    : real           ? ": this session was made for soft targets; labels want one of their own"
                                     : ": this session was made for labels; soft targets want one of their own");
}

inv_status inv_check_lengths(inv_session *s, const inv_lengths *span, const inv_array *a)
{
    if (!span || !a->data) return INV_OK;
    for (element e = elements_of(a); next(&e);) {
        const int64_t v = whole_at(&e);
        INV_CHECK(v >= span->least && v <= span->most, s->ctx, INV_E_ARG,
                  "input '%s', row %lld holds %lld: node %s takes lengths from %lld to %lld", a->name, (long long)e.row,
                  (long long)v, span->by, (long long)span->least, (long long)span->most);
    }
    return INV_OK;
}

const inv_array *inv_array_named(const inv_array *a, size_t n, const char *name)
{
    for (size_t i = 0; i < n; i++)
        if (a[i].name && strcmp(a[i].name, name) == 0) return &a[i];
    return NULL;
}

static bool same_values(const inv_array *kept, const inv_array *a)
{
    bool same = a->rank == kept->rank && inv_dtype_is_float(a->dtype) == inv_dtype_is_float(kept->dtype);
    size_t n = 1, each = 1;
    for (int d = 0; same && d < a->rank; d++) {
        same = a->dims[d] == kept->dims[d];
        n *= (size_t)kept->dims[d];
        if (d > 0) each *= (size_t)kept->dims[d];
    }
    for (size_t i = 0; same && i < n; i++) {
        const size_t at = a->rows && a->rank ? (size_t)a->rows[i / each] * each + i % each : i;
        if (inv_dtype_is_float(a->dtype)) {
            double x = inv_elem_double(kept->data, kept->dtype, i), y = inv_elem_double(a->data, a->dtype, at);
            same = x == y || (isnan(x) && isnan(y));
        } else {
            same = inv_elem_int(kept->data, kept->dtype, i) == inv_elem_int(a->data, a->dtype, at);
        }
    }
    return same;
}

inv_status inv_check_constants(inv_session *s, const inv_array *inputs, size_t n)
{
    const inv_session_options *o = &s->program->options;
    for (size_t i = 0; i < o->ninputs; i++) {
        const inv_array *a = o->inputs[i].data ? inv_array_named(inputs, n, o->inputs[i].name) : NULL;
        INV_CHECK(!a || !a->data || same_values(&o->inputs[i], a), s->ctx, INV_E_ARG,
                  "input '%s' is a constant of this session, which was planned for its first values. Make another "
                  "session for other values",
                  o->inputs[i].name);
    }
    return INV_OK;
}
