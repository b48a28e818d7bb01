/* SPDX-License-Identifier: Apache-2.0
 * The log-determinant that the rules of plugins state, beside that of the Jacobian by central differences, once, for
 * the first row of the first batch, in float64. The library's own rules are tested where they are made; what a plugin
 * says of itself is not believed. */
#include <math.h>
#include <string.h>

#include "executor/executor.h"
#include "ops/linear/linear_solve.h"

/* Two runs of the model for each number of a row, and a matrix of that many rows. */
enum { MOST_NUMBERS = 2048 };

typedef struct jacobian {
    inv_context *ctx;
    const inv_program *p;
    const inv_session_options *given;
    inv_arena a;
    inv_array *in;   /* the batch: every row is the first one of what is given */
    double **moved;  /* per input that the flow transforms: its numbers, and those of one row more, which stays */
    int64_t *each;   /* per input: its numbers in a row */
    int64_t rows, n; /* rows of the batch; numbers of a row */
    double *column;  /* [n, n]: by what each number moves the outputs */
    double by_rules;
} jacobian;

static bool is_transformed(const inv_program *p, const char *name)
{
    for (size_t i = 0; i < p->volumes.nderived; i++)
        if (strcmp(p->volumes.derived[i], name) == 0) return true;
    return false;
}

/* Numbers of x in the first row of what is given, for all rows and one more. */
static double *spread_first(jacobian *j, const inv_array *x, int64_t each)
{
    double *to = INV_ARENA_NEW(&j->a, double, (size_t)(each * (j->rows + 1)));
    const size_t from = (size_t)(each * (x->rows ? x->rows[0] : 0));
    for (int64_t k = 0; to && k < each * (j->rows + 1); k++)
        to[k] = inv_elem_double(x->data, x->dtype, from + (size_t)(k % each));
    return to;
}

static inv_status make_batch(jacobian *j)
{
    const size_t nin = j->given->ninputs;
    j->in = INV_ARENA_NEW(&j->a, inv_array, nin + 1);
    j->moved = INV_ARENA_NEW(&j->a, double *, nin + 1);
    j->each = INV_ARENA_NEW(&j->a, int64_t, nin + 1);
    if (!j->in || !j->moved || !j->each) return INV_E_NOMEM;
    for (size_t i = 0; i < nin; i++)
        if (is_transformed(j->p, j->given->inputs[i].name)) j->rows = j->given->inputs[i].dims[0];
    int64_t *first = INV_ARENA_NEW(&j->a, int64_t, (size_t)j->rows + 1);
    if (!first) return INV_E_NOMEM;
    for (size_t i = 0; i < nin; i++) {
        const inv_array *x = &j->given->inputs[i];
        j->in[i] = *x;
        if (x->rank < 1 || x->dims[0] != j->rows || j->rows < 1) continue;
        for (int64_t k = 0; k < j->rows; k++) first[k] = x->rows ? x->rows[0] : 0;
        j->in[i].rows = first;
        if (!is_transformed(j->p, x->name)) continue;
        j->each[i] = 1;
        for (int d = 1; d < x->rank; d++) j->each[i] *= x->dims[d];
        j->n += j->each[i];
        if (j->n > MOST_NUMBERS) return INV_OK;
        if (!(j->moved[i] = spread_first(j, x, j->each[i]))) return INV_E_NOMEM;
        j->in[i].dtype = INV_F64;
        j->in[i].data = j->moved[i];
        j->in[i].rows = NULL;
    }
    return INV_OK;
}

/* Number k of a row. */
static double *number(jacobian *j, int64_t row, int64_t k)
{
    size_t i = 0;
    for (; !j->moved[i] || k >= j->each[i]; i++) k -= j->moved[i] ? j->each[i] : 0;
    return &j->moved[i][row * j->each[i] + k];
}

static double step_of(double x) { return 1e-6 * (1 + fabs(x)); }

/* Adds `times` the outputs of the first `n` rows to the columns from `at` on; *count: how many numbers a row has. */
static inv_status add_outputs(jacobian *j, inv_session *s, int64_t at, int64_t n, double times, int64_t *count)
{
    const inv_session_options *o = &j->p->options;
    *count = 0;
    for (size_t i = 0; i < o->nloss_outputs; i++) {
        const void *data;
        inv_dtype t;
        int rank;
        int64_t dims[INV_MAX_RANK], each = 1;
        INV_TRY(inv_session_get(s, INV_GET_OUTPUT, o->loss_outputs[i], &data, &t, &rank, dims));
        for (int d = 1; d < rank; d++) each *= dims[d];
        for (int64_t r = 0; r < n && *count + each <= j->n; r++)
            for (int64_t k = 0; k < each; k++)
                j->column[(at + r) * j->n + *count + k] += times * inv_elem_double(data, t, (size_t)(r * each + k)) /
                                                           (2 * step_of(*number(j, j->rows, at + r)));
        *count += each;
    }
    return INV_OK;
}

static inv_status run_once(jacobian *j, inv_session *s)
{
    inv_result r;
    return inv_session_eval(s, j->in, j->given->ninputs, NULL, &r);
}

static inv_status measure(jacobian *j, inv_session *s, double *out)
{
    const void *data;
    inv_dtype t;
    int rank;
    int64_t dims[INV_MAX_RANK], count = j->n;
    INV_TRY(run_once(j, s));
    INV_TRY(inv_session_get(s, INV_GET_OUTPUT, j->p->options.logdet, &data, &t, &rank, dims));
    j->by_rules = inv_elem_double(data, t, 0);
    if (!(j->column = INV_ARENA_NEW(&j->a, double, (size_t)(j->n * j->n) + 1))) return INV_E_NOMEM;
    for (int64_t at = 0; at < j->n && count == j->n; at += j->rows) {
        const int64_t n = j->n - at < j->rows ? j->n - at : j->rows;
        for (int sign = 1; sign >= -1; sign -= 2) {
            for (int64_t r = 0; r < n; r++) *number(j, r, at + r) += sign * step_of(*number(j, j->rows, at + r));
            INV_TRY(run_once(j, s));
            for (int64_t r = 0; r < n; r++) *number(j, r, at + r) = *number(j, j->rows, at + r);
            INV_TRY(add_outputs(j, s, at, n, sign, &count));
        }
    }
    const int64_t square[2] = {j->n, j->n};
    const inv_data matrix = {INV_F64, inv_shape_of(2, square), j->column, (size_t)(j->n * j->n) * sizeof *j->column};
    *out = NAN;
    return count == j->n ? inv_linear_logdet(j->ctx, &matrix, out) : INV_OK;
}

static inv_status judge(jacobian *j, double measured)
{
    const double most = fmax(1, fmax(fabs(measured), fabs(j->by_rules)));
    if (fabs(measured - j->by_rules) <= 1e-4 * most) return INV_OK;
    return inv_fail(
        j->ctx, INV_E_ARG,
        "the log-determinant of the first row is %.6g by the rules, but %.6g by differences of the outputs: rule "
        "'%s' of plugin '%s', or of another plugin, is wrong. Run `invonnx rules test`, or accept it ({trust_logdet})",
        j->by_rules, measured, j->p->volumes.stranger, j->p->volumes.stranger_plugin);
}

static inv_status check(jacobian *j)
{
    const inv_volumes *v = &j->p->volumes;
    inv_model model = {.ctx = j->ctx, .path = "the model", .graph = j->p->likelihood};
    inv_session_options o = inv_forward_options(&j->p->options);
    inv_session *s;
    double measured;
    INV_TRY(make_batch(j));
    INV_CHECK(
        j->n > 0 && j->n <= MOST_NUMBERS, j->ctx, INV_E_ARG,
        "the log-determinant uses rule '%s' of plugin '%s'. It can be checked only for rows of up to %d numbers, and "
        "these have more. To accept it unchecked: {trust_logdet}",
        v->stranger, v->stranger_plugin, MOST_NUMBERS);
    o.inputs = j->in;
    o.ninputs = j->given->ninputs;
    o.float64 = true;
    INV_TRY(inv_session_create(&model, &o, &s));
    inv_status st = measure(j, s, &measured);
    inv_session_destroy(s);
    return st == INV_OK ? judge(j, measured) : st;
}

inv_status inv_check_volumes(inv_context *ctx, const inv_program *p, const inv_session_options *given)
{
    jacobian j = {.ctx = ctx, .p = p, .given = given};
    inv_arena_init(&j.a, ctx);
    const inv_status st = check(&j);
    inv_arena_fini(&j.a);
    return st;
}
