/* SPDX-License-Identifier: Apache-2.0
 * Ranks that share states and gradients train to the bits that they train to without: optimizers, groups, clipping,
 * averages, micro-batches, weights in bfloat16, guards that refuse, and states that are saved by some and read by
 * others. Ranks are threads here. Fails if a bit differs, if a rank keeps more than its part, or if what computes with
 * whole tensors is not refused by name. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "core/graph/model.h"
#include "executor/executor.h"
#include "rank_model.h"

enum { ROWS = 2, IN = 7, OUT = 5, STEPS = 3, WEIGHTS = 4, ROOM = 24576 };

/* Of 8 bits and in bfloat16 are w and v; b has fewer elements than some worlds have ranks. */
static const char text[] = "g(float[2,7] x) => (y) {\n"
                           "param float[7,601] w\nparam float[601] c\nparam float[601,8] v\nparam float[8,5] u\n"
                           "a = MatMul(x, w)\nd = Add(a, c)\ne = Tanh(d)\nf = MatMul(e, v)\ny = MatMul(f, u)\n}\n";
static const char *const names[WEIGHTS] = {"w", "c", "v", "u"};

typedef struct work {
    inv_session_options options;
    int steps, micro;        /* micro-batches of a step; 0: it is not accumulated */
    const char *load, *save; /* states before and after the steps; NULL */
    double huge;             /* added to rank 1's rows in step 1 */
} work;

typedef struct rank {
    thread_world world;
    const work *w;
    inv_status st;
    char message[RANK_MESSAGE];
    unsigned char weights[WEIGHTS][ROOM];
    size_t nbytes[WEIGHTS], states; /* states: bytes of the optimizer's that persist */
    double norm;
    int bad_rank; /* of the newest step */
    char bad[100];
} rank;

/* Rows of a micro-batch, counted over all ranks. */
static void make_rows(int number, double huge, float *x, float *y)
{
    for (int i = 0; i < ROWS * IN; i++) x[i] = (float)(sin(number * 31 + i * 0.7) + huge);
    for (int i = 0; i < ROWS * OUT; i++) y[i] = (float)cos(number * 17 + i * 0.3);
}

static inv_status make_step(rank *r, inv_session *s, int step)
{
    float x[ROWS * IN], y[ROWS * OUT];
    const int64_t in[] = {ROWS, IN}, out[] = {ROWS, OUT};
    const inv_array a = {.name = "x", .dtype = INV_F32, .rank = 2, .dims = in, .data = x},
                    b = {.name = "target", .dtype = INV_F32, .rank = 2, .dims = out, .data = y};
    const double huge = step == 1 && r->world.base.rank == 1 ? r->w->huge : 0;
    inv_result result;
    for (int m = 0; m < (r->w->micro ? r->w->micro : 1); m++) {
        make_rows((step * 8 + m) * MOST_RANKS + r->world.base.rank, huge, x, y);
        const inv_status st =
            r->w->micro ? inv_session_accumulate(s, &a, 1, &b, &result) : inv_session_step(s, &a, 1, &b, 0.01, &result);
        r->bad_rank = result.bad_rank;
        if (st == INV_E_NUMERIC) snprintf(r->bad, sizeof r->bad, "%s", result.bad_node);
        INV_TRY(st);
    }
    if (r->w->micro) INV_TRY(inv_session_update(s, 0.01, &result));
    r->norm = result.grad_norm;
    return INV_OK;
}

static inv_status read_weights(rank *r, inv_session *s)
{
    for (int i = 0; i < WEIGHTS; i++) {
        const void *data;
        inv_dtype dt;
        int axes;
        int64_t dims[8];
        INV_TRY(inv_session_get(s, INV_GET_PARAM, names[i], &data, &dt, &axes, dims));
        r->nbytes[i] = inv_dtype_size(dt);
        for (int d = 0; d < axes; d++) r->nbytes[i] *= (size_t)dims[d];
        memcpy(r->weights[i], data, r->nbytes[i]);
    }
    for (size_t i = 0; i < s->program->storage.n; i++)
        if (s->program->storage.at[i].kind == INV_STORAGE_OPTIM) r->states += s->program->storage.at[i].nbytes;
    return INV_OK;
}

static inv_status train(thread_world *world, inv_context *ctx, inv_model *model)
{
    rank *r = (rank *)(void *)world;
    static const char *const outputs[] = {"y"};
    const int64_t in[] = {ROWS, IN}, out[] = {ROWS, OUT};
    const inv_array x = {.name = "x", .dtype = INV_F32, .rank = 2, .dims = in},
                    y = {.name = "target", .dtype = INV_F32, .rank = 2, .dims = out};
    inv_session_options o = r->w->options;
    inv_session *s = NULL;
    o.size = sizeof o;
    o.purpose = INV_FOR_TRAIN;
    o.inputs = &x;
    o.ninputs = 1;
    o.target = &y;
    o.loss = INV_LOSS_MSE;
    o.loss_outputs = outputs;
    o.nloss_outputs = 1;
    o.threads = 1;
    o.accumulate = r->w->micro > 0;
    o.world = r->world.base.size > 1 ? &r->world.base : NULL;
    r->world.base.ctx = ctx;
    inv_status st = inv_session_create(model, &o, &s);
    if (st == INV_OK && r->w->load) st = inv_session_load_state(s, r->w->load, NULL);
    for (int i = 0; i < r->w->steps && st == INV_OK; i++) st = make_step(r, s, (int)inv_session_steps(s));
    if (st == INV_E_NUMERIC && r->w->huge > 0) st = INV_OK; /* what is left is looked at */
    if (st == INV_OK && r->w->save && (r->world.base.rank == 0 || o.shard))
        st = inv_session_save_state(s, r->w->save, NULL);
    if (st == INV_OK) st = read_weights(r, s);
    inv_session_destroy(s);
    return st;
}

static void *run_rank(void *of)
{
    rank *r = of;
    r->st = run_on_model(&r->world, text, 0, 0.3, train, r->message);
    return NULL;
}

static void run_all(rank *all, int n, const work *w)
{
    for (int r = 0; r < n; r++) all[r] = (rank){.w = w};
    run_threads(n, all, sizeof *all, run_rank);
}

static void trained(rank *all, int n, const work *w)
{
    run_all(all, n, w);
    for (int r = 0; r < n; r++)
        if (all[r].st != INV_OK && all[r].message[0]) fail_msg("rank %d of %d: %s", r, n, all[r].message);
    for (int r = 1; r < n; r++)
        for (int i = 0; i < WEIGHTS; i++) assert_memory_equal(all[r].weights[i], all[0].weights[i], all[0].nbytes[i]);
}

static rank plain[MOST_RANKS], shared[MOST_RANKS];

static void assert_same(const rank *a, const rank *b, const char *what)
{
    for (int i = 0; i < WEIGHTS; i++)
        if (a->nbytes[i] != b->nbytes[i] || memcmp(a->weights[i], b->weights[i], a->nbytes[i]) != 0)
            fail_msg("%s: '%s' has other bits", what, names[i]);
}

static work with(inv_optimizer optimizer)
{
    const inv_optimizer_numbers n = inv_optimizer_defaults(optimizer);
    return (work){.steps = STEPS,
                  .options = {.optimizer = optimizer,
                              .momentum = n.momentum,
                              .beta1 = n.beta1,
                              .beta2 = n.beta2,
                              .epsilon = n.epsilon,
                              .weight_decay = 0.1,
                              .seed = 5,
                              .memory = INV_MEMORY_STORE}};
}

/* The same bits with nothing, states, and gradients shared. */
static void compare(work w, int n, const char *what)
{
    trained(plain, n, &w);
    for (int shard = INV_SHARD_OPTIMIZER; shard <= INV_SHARD_GRADIENTS; shard++) {
        w.options.shard = (inv_shard)shard;
        trained(shared, n, &w);
        assert_same(plain, shared, what);
        if (!w.options.average && plain[0].states) /* 256 elements at most behind each of the eight */
            assert_true(shared[0].states <= plain[0].states / (size_t)n + 8 * 2 * 256);
    }
}

static void optimizers(void **state)
{
    static const struct {
        inv_optimizer optimizer;
        int ranks;
        const char *name;
    } rows[] = {{INV_OPT_SGD, 2, "sgd"},     {INV_OPT_MOMENTUM, 3, "momentum"}, {INV_OPT_ADAM, 4, "adam"},
                {INV_OPT_ADAMW, 3, "adamw"}, {INV_OPT_ADAMW8, 2, "adamw8"},     {INV_OPT_ADAMW8, 3, "adamw8"},
                {INV_OPT_LION, 2, "lion"},   {INV_OPT_RMSPROP, 4, "rmsprop"}};
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        compare(with(rows[i].optimizer), rows[i].ranks, rows[i].name);
}

static void what_goes_with_it(void **state)
{
    const inv_param_group groups[] = {{"v", 0.5, 0.2, INV_OPT_SGD}, {"c", 2, -1, INV_OPT_NONE}};
    (void)state;
    work w = with(INV_OPT_ADAM);
    w.micro = 2;
    compare(w, 3, "micro-batches");
    w = with(INV_OPT_ADAMW);
    w.options.weights = INV_BF16;
    compare(w, 3, "bfloat16");
    w.options.optimizer = INV_OPT_ADAMW8;
    compare(w, 2, "bfloat16 and 8 bits");
    w = with(INV_OPT_ADAMW);
    w.options.groups = groups;
    w.options.ngroups = 2;
    compare(w, 3, "groups");
    w = with(INV_OPT_MOMENTUM);
    w.options.average = true;
    w.options.average_decay = 0.9;
    w.options.nesterov = true;
    w.options.clip_value = 0.01;
    compare(w, 2, "averages and clipped values");
}

/* The norm is that of all ranks' parts; the last digit may be another where gradients are shared. */
static void norms(void **state)
{
    (void)state;
    work w = with(INV_OPT_SGD);
    w.options.clip_norm = 0.05;
    w.options.weight_decay = 0;
    trained(plain, 3, &w);
    assert_true(plain[0].norm > 0.05);
    for (int shard = INV_SHARD_OPTIMIZER; shard <= INV_SHARD_GRADIENTS; shard++) {
        w.options.shard = (inv_shard)shard;
        trained(shared, 3, &w);
        for (int r = 0; r < 3; r++) assert_true(fabs(shared[r].norm / plain[0].norm - 1) < 1e-6);
        if (shard == INV_SHARD_OPTIMIZER) assert_same(plain, shared, "clipped norm");
        for (int i = 0; i < WEIGHTS; i++)
            for (size_t k = 0; k < plain[0].nbytes[i]; k += sizeof(float)) {
                float a, b;
                memcpy(&a, plain[0].weights[i] + k, sizeof a);
                memcpy(&b, shared[0].weights[i] + k, sizeof b);
                assert_true(fabsf(a - b) <= 1e-6f * (1 + fabsf(a)));
            }
    }
}

/* What is not finite on one rank: no rank has moved anything. */
static void refused_by_all(void **state)
{
    (void)state;
    work w = with(INV_OPT_SGD);
    w.steps = 1;
    trained(plain, 3, &w);
    w.steps = 2;
    w.huge = INFINITY;
    for (int shard = INV_SHARD_OPTIMIZER; shard <= INV_SHARD_GRADIENTS; shard++) {
        w.options.shard = (inv_shard)shard;
        trained(shared, 3, &w);
        assert_same(plain, shared, "a step that was refused");
        for (int r = 0; r < 3; r++) { /* all know whose it was */
            assert_int_equal(shared[r].bad_rank, 1);
            assert_string_equal(shared[r].bad, "x (the data fed)");
        }
    }
}

/* Saved by some, read by others: as if they had not stopped. Each number of ranks is given the same rows of its own, so
 * what is compared is the state itself: read by one rank, and saved again, it is the same file. */
static void states(void **state)
{
    static const struct {
        int from, to;
        inv_shard was, is;
    } rows[] = {{3, 2, INV_SHARD_GRADIENTS, INV_SHARD_OPTIMIZER},
                {4, 1, INV_SHARD_OPTIMIZER, INV_SHARD_NONE},
                {1, 4, INV_SHARD_NONE, INV_SHARD_GRADIENTS},
                {2, 3, INV_SHARD_NONE, INV_SHARD_OPTIMIZER}};
    char first[] = "/tmp/invonnx-shard-XXXXXX", again[] = "/tmp/invonnx-shard-XXXXXX";
    (void)state;
    close(mkstemp(first));
    close(mkstemp(again));
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        static unsigned char a[1 << 18], b[1 << 18];
        work w = with(i % 2 ? INV_OPT_ADAMW8 : INV_OPT_ADAMW);
        w.options.average = i == 0;
        w.options.average_decay = 0.5;
        w.save = first;
        w.options.shard = rows[i].was;
        trained(plain, rows[i].from, &w);
        w.load = first;
        w.save = again;
        w.steps = 0;
        w.options.shard = rows[i].is;
        trained(shared, rows[i].to, &w);
        assert_same(plain, shared, "read again");
        FILE *f = fopen(first, "rb"), *g = fopen(again, "rb");
        assert_true(f && g);
        const size_t n = fread(a, 1, sizeof a, f), m = fread(b, 1, sizeof b, g);
        fclose(f);
        fclose(g);
        const unsigned char *x = memchr(a, '}', n), *y = memchr(b, '}', m);
        assert_true(x && y && n == m && n < sizeof a);
        assert_memory_equal(a, b, n);
    }
    unlink(first);
    unlink(again);
}

static void refused(void **state)
{
    static const inv_optimizer whole[] = {INV_OPT_LAMB, INV_OPT_ADAFACTOR, INV_OPT_MUON};
    (void)state;
    for (size_t i = 0; i < 3; i++) {
        work w = with(whole[i]);
        w.options.shard = INV_SHARD_OPTIMIZER;
        run_all(shared, 2, &w);
        assert_int_equal(shared[0].st, INV_E_ARG);
        assert_non_null(strstr(shared[0].message, "needs the whole tensor"));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(optimizers), cmocka_unit_test(what_goes_with_it),
        cmocka_unit_test(norms),      cmocka_unit_test(refused_by_all),
        cmocka_unit_test(states),     cmocka_unit_test(refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
