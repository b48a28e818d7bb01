/* SPDX-License-Identifier: Apache-2.0
 * The gradient that ranks join is that of the loss that they join: finite differences in float64, with rows and labels
 * that count unequally on them, and batch statistics of each or of all. Ranks are threads here, of which one may have
 * no rows: the zeros that stand for them give NaN in this model. Fails if a rank's part is weighted otherwise in one of
 * the two, if what a rank without rows computes counts, or if the way through the statistics of all ranks is not
 * derived. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "rank_model.h"

/* ROWS: of a whole batch; the last ranks have a row less in the steps that are made here. */
enum { ROWS = 3, IN = 4, OUT = 3, TRAINED = 4, MOST = 16 };
static const char text[] =
    "<opset_import: [\"\" : 17]>\ng(float[N,4] x) => (y) {\n"
    "param float[4,4] w\nparam float[4] scale\nparam float[4] bias\nparam float[4] mean\nparam float[4] var\n"
    "param float[4,3] u\n"
    "p = Abs(x)\nl = Log(p)\na = MatMul(l, w)\n"
    "n, m, v = BatchNormalization<training_mode = 1>(a, scale, bias, mean, var)\nt = Tanh(n)\n"
    "y = MatMul(t, u)\n}\n";
static const char *const names[TRAINED] = {"w", "scale", "bias", "u"};

typedef struct rank {
    thread_world world;
    bool sync_bn, labels; /* labels: of classes, with weights, and some are ignored; else numbers */
    int few, none;        /* the first rank that has a row less, and that has none */
    inv_status st;
    char message[RANK_MESSAGE];
    double found[TRAINED][MOST], derived[TRAINED][MOST];
    int n[TRAINED];
} rank;

/* A step on the rows of this rank. *loss: of all ranks. */
static inv_status step(const rank *r, inv_session *s, double lr, double *loss)
{
    const int me = r->world.base.rank;
    const int64_t rows = me < r->few ? ROWS : me < r->none ? ROWS - 1 : 0, in[] = {rows, IN}, out[] = {rows, OUT};
    double x[ROWS * IN], y[ROWS * OUT];
    int64_t label[ROWS];
    for (int i = 0; i < rows * IN; i++) x[i] = sin(me * 31 + i * 0.7 + 1);
    for (int i = 0; i < rows * OUT; i++) y[i] = cos(me * 17 + i * 0.3);
    for (int i = 0; i < rows; i++) label[i] = i == 1 && me == 0 ? -100 : (me + i) % OUT;
    const inv_array a = {.name = "x", .dtype = INV_F64, .rank = 2, .dims = in, .data = x},
                    b = {.name = "target",
                         .dtype = r->labels ? INV_I64 : INV_F64,
                         .rank = r->labels ? 1 : 2,
                         .dims = out,
                         .data = r->labels ? (const void *)label : y};
    inv_result result;
    INV_TRY(inv_session_step(s, &a, 1, &b, lr, &result));
    *loss = result.loss;
    return INV_OK;
}

static inv_status read_weights(inv_session *s, const char *name, double *to, int *n)
{
    const void *data;
    inv_dtype dt;
    int axes;
    int64_t dims[8];
    INV_TRY(inv_session_get(s, INV_GET_PARAM, name, &data, &dt, &axes, dims));
    *n = 1;
    for (int d = 0; d < axes; d++) *n *= (int)dims[d];
    if (dt != INV_F64 || *n > MOST) return INV_E_INTERNAL;
    memcpy(to, data, (size_t)*n * sizeof *to);
    return INV_OK;
}

/* By differences of the loss: lr 0 leaves the weights alone. */
static inv_status find_gradient(rank *r, inv_session *s, const char *name, double *found)
{
    const double h = 1e-5;
    double w[MOST], loss[2];
    int n;
    INV_TRY(read_weights(s, name, w, &n));
    for (int i = 0; i < n; i++) {
        const double was = w[i];
        for (int side = 0; side < 2; side++) {
            w[i] = was + (side ? h : -h);
            INV_TRY(inv_session_set_param(s, name, INV_F64, w, (size_t)n));
            INV_TRY(step(r, s, 0, &loss[side]));
        }
        w[i] = was;
        found[i] = (loss[1] - loss[0]) / (2 * h);
    }
    return inv_session_set_param(s, name, INV_F64, w, (size_t)n);
}

static inv_status compare(rank *r, inv_session *s)
{
    double before[TRAINED][MOST], loss;
    for (int k = 0; k < TRAINED; k++) INV_TRY(find_gradient(r, s, names[k], r->found[k]));
    for (int k = 0; k < TRAINED; k++) INV_TRY(read_weights(s, names[k], before[k], &r->n[k]));
    INV_TRY(step(r, s, 1, &loss));
    for (int k = 0; k < TRAINED; k++) {
        double after[MOST];
        INV_TRY(read_weights(s, names[k], after, &r->n[k]));
        for (int i = 0; i < r->n[k]; i++) r->derived[k][i] = before[k][i] - after[i];
    }
    return INV_OK;
}

static inv_status make_session(rank *r, inv_context *ctx, inv_model *model, inv_session **s)
{
    static const char *const outputs[] = {"y"};
    static const double weights[OUT] = {1, 2, 0.5};
    const int64_t in[] = {ROWS, IN}, out[] = {ROWS, OUT};
    const inv_array x = {.name = "x", .dtype = INV_F64, .rank = 2, .dims = in},
                    y = {.name = "target",
                         .dtype = r->labels ? INV_I64 : INV_F64,
                         .rank = r->labels ? 1 : 2,
                         .dims = out};
    const inv_session_options o = {.size = sizeof o,
                                   .purpose = INV_FOR_TRAIN,
                                   .optimizer = INV_OPT_SGD,
                                   .inputs = &x,
                                   .ninputs = 1,
                                   .target = &y,
                                   .loss = r->labels ? INV_LOSS_CROSS_ENTROPY : INV_LOSS_MSE,
                                   .ignores = r->labels,
                                   .ignore_index = -100,
                                   .class_weights = r->labels ? weights : NULL,
                                   .nclass_weights = r->labels ? OUT : 0,
                                   .loss_outputs = outputs,
                                   .nloss_outputs = 1,
                                   .tail_batch = r->world.base.rank < r->few ? 0 : ROWS - 1,
                                   .float64 = true,
                                   .sync_bn = r->sync_bn,
                                   .threads = 1,
                                   .world = &r->world.base};
    r->world.base.ctx = ctx;
    return inv_session_create(model, &o, s);
}

static inv_status check(thread_world *world, inv_context *ctx, inv_model *model)
{
    rank *r = (rank *)(void *)world;
    inv_session *s = NULL;
    inv_status st = make_session(r, ctx, model, &s);
    if (st == INV_OK) st = compare(r, s);
    inv_session_destroy(s);
    return st;
}

static void *run_rank(void *of)
{
    rank *r = of;
    r->st = run_on_model(&r->world, text, 0.7, 0.6, check, r->message);
    return NULL;
}

static void hold(int ranks, int none, bool sync_bn, bool labels)
{
    static rank all[MOST_RANKS];
    for (int r = 0; r < ranks; r++) all[r] = (rank){.sync_bn = sync_bn, .labels = labels, .few = 1, .none = none};
    run_threads(ranks, all, sizeof *all, run_rank);
    for (int r = 0; r < ranks; r++)
        if (all[r].st != INV_OK && all[r].message[0]) fail_msg("rank %d of %d: %s", r, ranks, all[r].message);
    double most = 0;
    for (int r = 0; r < ranks; r++)
        for (int k = 0; k < TRAINED; k++) {
            assert_memory_equal(all[r].derived[k], all[0].derived[k], sizeof all[0].derived[k]);
            for (int i = 0; i < all[r].n[k]; i++) {
                const double a = all[r].derived[k][i], b = all[r].found[k][i];
                most = fmax(most, fabs(a));
                if (!(fabs(a - b) <= 1e-8 + 1e-6 * fabs(b)))
                    fail_msg("%d ranks, %d with rows%s%s, '%s'[%d]: %.12g derived, %.12g by differences", ranks, none,
                             sync_bn ? ", statistics of all" : "", labels ? ", labels" : "", names[k], i, a, b);
            }
        }
    assert_true(most > 0.01);
}

static void numbers(void **state)
{
    (void)state;
    for (int ranks = 2; ranks <= 3; ranks++)
        for (int sync = 0; sync < 2; sync++) hold(ranks, ranks, sync, false);
}

static void labels(void **state)
{
    (void)state;
    for (int ranks = 2; ranks <= 3; ranks++)
        for (int sync = 0; sync < 2; sync++) hold(ranks, ranks, sync, true);
}

static void without_rows(void **state)
{
    (void)state;
    for (int with = 1; with <= 2; with++)
        for (int how = 0; how < 4; how++) hold(3, with, how & 1, how & 2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(numbers), cmocka_unit_test(labels),
                                       cmocka_unit_test(without_rows)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
