/* SPDX-License-Identifier: Apache-2.0
 * Numbers that are fed: labels and targets are such as the loss takes, lengths such as the model takes. Checked before
 * a step, because a kernel cannot report. */
#include <math.h>

#include "executor/executor.h"

/* Where row r of a batch begins, and which row of the data it is. */
static int64_t row_of(const inv_array *a, int64_t r) { return a->rows ? a->rows[r] : r; }

static int64_t rows_of(const inv_array *a, int64_t *per_row)
{
    *per_row = 1;
    for (int d = 1; d < a->rank; d++) *per_row *= a->dims[d];
    return a->rank ? a->dims[0] : 1;
}

/* Integer labels within the classes. */
static inv_status check_labels(inv_session *s, int64_t classes, const inv_array *target)
{
    const inv_session_options *o = &s->program->options;
    int64_t per_row;
    const int64_t nrows = rows_of(target, &per_row);
    for (int64_t r = 0; r < nrows; r++)
        for (int64_t k = 0; k < per_row; k++) {
            const int64_t row = row_of(target, r);
            const int64_t label = inv_elem_int(target->data, target->dtype, (size_t)(row * per_row + k));
            if (o->ignores && label == o->ignore_index) continue;
            INV_CHECK(label >= 0 && label < classes, s->ctx, INV_E_ARG,
                      "target row %lld holds label %lld, the output has classes 0 to %lld", (long long)row,
                      (long long)label, (long long)classes - 1);
        }
    return INV_OK;
}

/* Soft targets: a share for each of `classes` classes, which are `inner` elements apart. Entries that are not finite
 * are for the loss to tell. */
static inv_status check_shares(inv_session *s, int64_t classes, int64_t inner, const inv_array *target)
{
    const double room = 1e-3 + 1e-4 * sqrt((double)classes); /* as rounding to 16 bits comes to */
    int64_t per_row;
    const int64_t nrows = rows_of(target, &per_row);
    for (int64_t r = 0; r < nrows; r++)
        for (int64_t k = 0; k < per_row / classes; k++) {
            const int64_t row = row_of(target, r), first = row * per_row + k / inner * classes * inner + k % inner;
            double sum = 0;
            for (int64_t c = 0; c < classes; c++) {
                const double v = inv_elem_double(target->data, target->dtype, (size_t)(first + c * inner));
                INV_CHECK(!(v < 0), s->ctx, INV_E_ARG,
                          "target row %lld holds %.6g for class %lld: soft targets are shares from 0 to 1",
                          (long long)row, v, (long long)c);
                sum += v;
            }
            INV_CHECK(!(fabs(sum - 1) > room), s->ctx, INV_E_ARG,
                      "target row %lld has shares that come to %.6g: soft targets come to 1 over the classes; divide "
                      "them by their sum, or take {loss} bce, if a row may be of several classes",
                      (long long)row, sum);
        }
    return INV_OK;
}

/* Probabilities, each by itself. */
static inv_status check_probabilities(inv_session *s, const inv_array *target)
{
    const inv_session_options *o = &s->program->options;
    int64_t per_row;
    const int64_t nrows = rows_of(target, &per_row);
    for (int64_t r = 0; r < nrows; r++)
        for (int64_t k = 0; k < per_row; k++) {
            const int64_t row = row_of(target, r);
            const double v = inv_elem_double(target->data, target->dtype, (size_t)(row * per_row + k));
            if (o->ignores && v == (double)o->ignore_index) continue;
            INV_CHECK(!(v < 0 || v > 1), s->ctx, INV_E_ARG,
                      "target row %lld holds %.6g: targets of loss bce are from 0 to 1%s", (long long)row, v,
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

inv_status inv_check_lengths(inv_session *s, const inv_lengths *span, const inv_array *a)
{
    if (!span || !a->data) return INV_OK;
    int64_t per_row;
    const int64_t nrows = rows_of(a, &per_row);
    for (int64_t r = 0; r < nrows; r++)
        for (int64_t k = 0; k < per_row; k++) {
            const int64_t row = row_of(a, r), v = inv_elem_int(a->data, a->dtype, (size_t)(row * per_row + k));
            INV_CHECK(v >= span->least && v <= span->most, s->ctx, INV_E_ARG,
                      "input '%s', row %lld holds %lld: node %s takes lengths from %lld to %lld", a->name,
                      (long long)row, (long long)v, span->by, (long long)span->least, (long long)span->most);
        }
    return INV_OK;
}
