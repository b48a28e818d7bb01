/* SPDX-License-Identifier: Apache-2.0
 * What callers give is looked at before it is used: options of every kind, sizes, arrays, learning rates. Fails if a
 * value that nobody can mean is taken, if a message does not name the field, if a struct may end within a field, if a
 * forked child hangs, or if messages speak of the command line's options to whoever has none. */
#include <math.h>
#include <omp.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "invonnx/invonnx.h"

#define MODEL INV_TEST_DATA "/models/nice_dynbatch_ts17/model.onnx"
enum { ROWS = 4, WIDTH = 8 };

static inv_context *ctx;
static inv_model *model;
static float x[ROWS * WIDTH], y[ROWS * WIDTH];
static const int64_t dims[] = {ROWS, WIDTH};
static const inv_array in = {.name = "x", .dtype = INV_F32, .rank = 2, .dims = dims, .data = x},
                       target = {.dtype = INV_F32, .rank = 2, .dims = dims, .data = y};

static inv_session_options usual(void)
{
    return (inv_session_options){.size = sizeof(inv_session_options),
                                 .purpose = INV_FOR_TRAIN,
                                 .inputs = &in,
                                 .ninputs = 1,
                                 .target = &target,
                                 .loss = INV_LOSS_MSE,
                                 .optimizer = INV_OPT_ADAM,
                                 .beta1 = 0.9,
                                 .beta2 = 0.999,
                                 .epsilon = 1e-8,
                                 .momentum = 0.9};
}

static int set_up(void **state)
{
    (void)state;
    for (int i = 0; i < ROWS * WIDTH; i++) {
        x[i] = (float)sin(i);
        y[i] = (float)cos(i);
    }
    return inv_context_create(NULL, &ctx) != INV_OK || inv_model_load(ctx, MODEL, &model) != INV_OK;
}

static int tear_down(void **state)
{
    (void)state;
    inv_model_destroy(model);
    inv_context_destroy(ctx);
    return 0;
}

static void says(const char *words)
{
    if (!strstr(inv_context_message(ctx), words)) fail_msg("'%s' is not in: %s", words, inv_context_message(ctx));
}

/* By all that takes options, with the field's name. */
static void refused(const inv_session_options *o, inv_status code, const char *words)
{
    inv_session *s;
    char *json = NULL;
    inv_model *reverse = NULL;
    assert_int_equal(inv_session_options_check(ctx, o), code);
    says(words);
    assert_int_equal(inv_session_create(model, o, &s), code);
    assert_null(s);
    says(words);
    assert_int_equal(inv_model_check(model, o, &json), code);
    says(words);
    assert_int_equal(inv_model_rewrite(model, o, "never.onnx", &json), code);
    says(words);
    assert_int_equal(inv_model_reverse(model, o, NULL, &reverse), code);
    says(words);
}

static inv_session *open_session(const inv_session_options *o)
{
    inv_session *s;
    if (inv_session_create(model, o, &s) != INV_OK) fail_msg("%s", inv_context_message(ctx));
    return s;
}

#define REFUSED(field, value)                \
    do {                                     \
        inv_session_options o_ = usual();    \
        o_.field = (value);                  \
        refused(&o_, INV_E_ARG, #field " "); \
    } while (0)

static void test_numbers(void **state)
{
    (void)state;
    REFUSED(loss, (inv_loss)99);
    REFUSED(loss, (inv_loss)-1);
    REFUSED(purpose, (inv_purpose)3);
    REFUSED(memory, (inv_memory)5);
    REFUSED(guard, (inv_guard)3);
    REFUSED(optimizer, (inv_optimizer)(INV_OPT_ADAMW8 + 1));
    const double bad[] = {(double)NAN, (double)INFINITY, -1};
    for (int i = 0; i < 3; i++) {
        REFUSED(max_drift, bad[i]);
        REFUSED(huber_delta, bad[i]);
        REFUSED(momentum, bad[i]);
        REFUSED(beta1, bad[i]);
        REFUSED(beta2, bad[i]);
        REFUSED(epsilon, bad[i]);
        REFUSED(weight_decay, bad[i]);
        REFUSED(clip_norm, bad[i]);
        REFUSED(clip_value, bad[i]);
        REFUSED(average_decay, bad[i]);
        REFUSED(label_smoothing, bad[i]);
    }
    REFUSED(beta1, 1);
    REFUSED(beta2, 1);
    REFUSED(tail_batch, -1);
    REFUSED(eval_batch, -2);
    REFUSED(eval_tail, INT64_MIN);
    REFUSED(class_axis, 9);
    REFUSED(threads, -1);
    REFUSED(threads, 100000);
    REFUSED(logdet, "z");
    inv_session_options o = usual(); /* what no optimizer reads is nobody's business */
    o.optimizer = INV_OPT_NONE;
    o.beta1 = (double)NAN;
    assert_int_equal(inv_session_options_check(ctx, &o), INV_OK);
}

static void test_lists(void **state)
{
    (void)state;
    const char *const names[] = {"*", NULL};
#define MISSING(field)                                                   \
    do {                                                                 \
        inv_session_options o_ = usual();                                \
        o_.n##field = 1;                                                 \
        refused(&o_, INV_E_ARG, #field " is NULL, but its number is 1"); \
    } while (0)
    MISSING(keep);
    MISSING(train_only);
    MISSING(class_weights);
    MISSING(modes);
    MISSING(stages);
#define LIST(field)                                         \
    do {                                                    \
        inv_session_options o_ = usual();                   \
        o_.field = names;                                   \
        o_.n##field = 2;                                    \
        refused(&o_, INV_E_ARG, "entry 2 of 2 of " #field); \
    } while (0)
    LIST(keep);
    LIST(train_only);
    LIST(freeze);
    LIST(tied);
    LIST(constant_inputs);
    LIST(loss_outputs);
    const inv_mode_rule rules[] = {{"*", INV_MEMORY_STORE}, {NULL, INV_MEMORY_STORE}, {"a", (inv_memory)7}};
    inv_session_options o = usual();
    o.modes = rules;
    o.nmodes = 2;
    refused(&o, INV_E_ARG, "entry 2 of 2 of modes has no glob");
    o.modes = rules + 2;
    o.nmodes = 1;
    refused(&o, INV_E_ARG, "entry 1 of 1 of modes, 'a', has mode 7");
    const inv_stage stages[] = {{"*", 1}, {NULL, 2}};
    o = usual();
    o.stages = stages;
    o.nstages = 2;
    refused(&o, INV_E_ARG, "entry 2 of 2 of stages has no glob");
    inv_session_options good = usual();
    inv_session *s = open_session(&good);
    inv_modes change = {.size = sizeof change, .nrules = 1};
    assert_int_equal(inv_session_set_modes(s, &change), INV_E_ARG);
    change.rules = rules + 2;
    assert_int_equal(inv_session_set_modes(s, &change), INV_E_ARG);
    says("mode 7");
    inv_session_destroy(s);
}

static void test_sizes(void **state)
{
    (void)state;
    inv_session_options o = usual();
    size_t refusals = 0;
    for (o.size = 0; o.size < sizeof o + 8; o.size++) {
        const inv_status s = inv_session_options_check(ctx, &o);
        assert_true(s == INV_OK || s == INV_E_ABI || s == INV_E_ARG); /* ARG: half of a list's pair may be missing */
        refusals += s == INV_E_ABI;
    }
    assert_true(refusals > sizeof o / 2);
    o.size = offsetof(inv_session_options, beta1) + 4;
    refused(&o, INV_E_ABI, "end within the field beta1");
    o.size = sizeof o + 8;
    refused(&o, INV_E_ABI, "knows at most");
    o.size = offsetof(inv_session_options, seed); /* an older version's */
    inv_session *s = open_session(&o);
    inv_session_destroy(s);
    inv_context_options co = {.size = sizeof co};
    inv_context *other;
    for (co.size = 0; co.size < sizeof co + 8; co.size++) {
        const inv_status made = inv_context_create(&co, &other);
        if (made == INV_OK) inv_context_destroy(other);
        else assert_int_equal(made, INV_E_ABI);
    }
    const char *const none[] = {NULL};
    inv_reverse_options ro = {.size = sizeof ro, .given = none, .ngiven = 1};
    inv_session_options shapes = usual();
    inv_model *reverse;
    assert_int_equal(inv_model_reverse(model, &shapes, &ro, &reverse), INV_E_ARG);
    says("given");
    ro.size = 12;
    assert_int_equal(inv_model_reverse(model, &shapes, &ro, &reverse), INV_E_ABI);
}

static void test_arrays(void **state)
{
    (void)state;
    const int64_t negative[] = {-1, WIDTH}, rows[] = {0, 1, -2, 3};
    const struct {
        inv_array a;
        inv_status code;
        const char *words;
    } bad[] = {
        {{.name = "x", .dtype = INV_F32, .rank = 2, .data = x}, INV_E_ARG, "dims"},
        {{.dtype = INV_F32, .rank = 2, .dims = dims, .data = x}, INV_E_ARG, "name"},
        {{.name = "x", .dtype = INV_F32, .rank = -1, .dims = dims, .data = x}, INV_E_SHAPE, "rank"},
        {{.name = "x", .dtype = INV_F32, .rank = 99, .dims = dims, .data = x}, INV_E_SHAPE, "rank"},
        {{.name = "x", .dtype = INV_F32, .rank = 2, .dims = negative, .data = x}, INV_E_SHAPE, "extent"},
        {{.name = "x", .dtype = (inv_dtype)77, .rank = 2, .dims = dims, .data = x}, INV_E_UNSUPPORTED_TYPE, "77"},
        {{.name = "x", .dtype = INV_F32, .rank = 2, .dims = dims, .data = x, .rows = rows}, INV_E_ARG, "row"}};
    inv_session_options o = usual();
    inv_session *s = open_session(&o);
    inv_result r;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        inv_session_options with = usual();
        with.inputs = &bad[i].a;
        refused(&with, bad[i].code, bad[i].words);
        assert_int_equal(inv_session_step(s, &bad[i].a, 1, &target, 0.1, &r), bad[i].code);
        says(bad[i].words);
        if (!bad[i].a.name) continue; /* a target needs none */
        assert_int_equal(inv_session_step(s, &in, 1, &bad[i].a, 0.1, &r), bad[i].code);
    }
    assert_int_equal(inv_session_step(s, NULL, 1, &target, 0.1, &r), INV_E_ARG);
    assert_int_equal(inv_session_step(s, &in, 1, &target, 0.1, NULL), INV_E_ARG);
    assert_int_equal(inv_session_steps(s), 0);
    inv_session_destroy(s);
}

static float first_weight(inv_session *s)
{
    const void *data;
    inv_dtype type;
    int rank;
    int64_t extent[8];
    if (inv_session_get(s, INV_GET_PARAM, "m.0.0.weight", &data, &type, &rank, extent) != INV_OK)
        fail_msg("%s", inv_context_message(ctx));
    return *(const float *)data;
}

static bool yes_or_no(void *opaque) { return *(bool *)opaque; }

static void test_steps(void **state)
{
    (void)state;
    bool may = false;
    inv_session_options o = usual();
    o.may_commit = yes_or_no;
    o.may_commit_opaque = &may;
    inv_session *s = open_session(&o);
    inv_result r;
    const float before = first_weight(s);
    const double bad[] = {(double)NAN, (double)INFINITY, -0.1};
    for (int i = 0; i < 3; i++) {
        assert_int_equal(inv_session_step(s, &in, 1, &target, bad[i], &r), INV_E_ARG);
        says("lr is");
    }
    assert_int_equal(inv_session_step(s, &in, 1, &target, 0.1, &r), INV_E_ARG); /* dropped */
    says("may_commit");
    assert_true(first_weight(s) == before && inv_session_steps(s) == 0);
    may = true;
    assert_int_equal(inv_session_step(s, &in, 1, &target, 0.1, &r), INV_OK);
    assert_true(first_weight(s) != before && inv_session_steps(s) == 1);

    float w[1] = {0};
    assert_int_equal(inv_session_set_param(s, "m.0.0.weigth", INV_F32, w, 1), INV_E_ARG);
    says("there is no initializer 'm.0.0.weigth'; did you mean 'm.0.0.weight'?");
    assert_int_equal(inv_session_set_param(s, "quite another", INV_F32, w, 1), INV_E_ARG);
    assert_null(strstr(inv_context_message(ctx), "did you mean"));
    assert_int_equal(inv_session_set_param(s, NULL, INV_F32, w, 1), INV_E_ARG);
    size_t held = 0;
    for (const char *name; (name = inv_session_name(s, INV_GET_HELD, held)); held++)
        assert_non_null(strstr(name, "m."));
    assert_int_equal(held, 16);

    x[9] = (float)NAN; /* and nodes are called as in the file, with its operators */
    assert_int_equal(inv_session_step(s, &in, 1, &target, 0.1, &r), INV_E_NUMERIC);
    says("x (the data fed)");
    x[9] = 0;
    y[3] = (float)NAN;
    assert_int_equal(inv_session_step(s, &in, 1, &target, 0.1, &r), INV_E_NUMERIC);
    says("the target (the data fed)");
    y[3] = 0;
    float large[64];
    for (int i = 0; i < 64; i++) large[i] = 3e38f;
    for (int i = 0; i < ROWS * WIDTH; i++) x[i] = 2;
    assert_int_equal(inv_session_set_param(s, "m.0.0.weight", INV_F32, large, 64), INV_OK);
    assert_int_equal(inv_session_step(s, &in, 1, &target, 0.1, &r), INV_E_NUMERIC);
    says("(Gemm)");
    inv_session_destroy(s);
}

static const char *dashed(const char *field) { return strcmp(field, "loss_outputs") == 0 ? "--loss-output" : NULL; }

/* One message, in the words of whoever reads it; braces in names stay. */
/* inputs with open extents: the same checks, and lists for what is found. */
static void test_extents(void **state)
{
    (void)state;
    const int64_t open[] = {-1, WIDTH};
    int64_t found[] = {0, 0};
    int64_t *lists[] = {found}, *none[] = {NULL};
    inv_array a = in;
    a.dims = open;
    a.data = NULL;
    inv_session_options o = {.size = sizeof o, .inputs = &a, .ninputs = 1};
#define FOUND(code, words, to)                                              \
    do {                                                                    \
        assert_int_equal(inv_model_find_extents(model, &o, 3, to), (code)); \
        if ((code) != INV_OK) says(words);                                  \
    } while (0)
    FOUND(INV_OK, "", lists);
    assert_int_equal(found[0], 3);
    assert_int_equal(found[1], WIDTH);
    FOUND(INV_E_ARG, "dims is NULL", NULL);
    FOUND(INV_E_ARG, "no list for input 'x'", none);
    assert_int_equal(inv_model_find_extents(model, NULL, 3, lists), INV_E_ARG);
    assert_int_equal(inv_model_find_extents(model, &o, INT64_MAX, lists), INV_OK);
    a.dims = NULL;
    FOUND(INV_E_ARG, "its dims are NULL", lists);
    a.dims = open;
    a.name = NULL;
    FOUND(INV_E_ARG, "has no name", lists);
    a.name = "z";
    FOUND(INV_OK, "", lists); /* a session will say it */
    a.name = "x";
    a.rank = -3;
    FOUND(INV_E_SHAPE, "has rank -3", lists);
    a.rank = 2;
    o.size = 3;
    FOUND(INV_E_ABI, "3 bytes", lists);
#undef FOUND
}

static void test_words(void **state)
{
    (void)state;
    const char *const names[] = {"y", "z"};
    inv_session_options o = usual();
    o.loss_outputs = names;
    o.nloss_outputs = 2;
    assert_int_equal(inv_session_options_check(ctx, &o), INV_E_ARG);
    says("loss_outputs names 2 outputs");
    const inv_context_options co = {.size = sizeof co, .option_name = dashed};
    inv_context *other;
    assert_int_equal(inv_context_create(&co, &other), INV_OK);
    assert_int_equal(inv_session_options_check(other, &o), INV_E_ARG);
    assert_non_null(strstr(inv_context_message(other), "--loss-output names 2 outputs"));
    o.nloss_outputs = 0;
    o.beta1 = 2;
    assert_int_equal(inv_session_options_check(other, &o), INV_E_ARG);
    assert_non_null(strstr(inv_context_message(other), "beta1 is 2"));
    inv_context_destroy(other);
    const char *const braces[] = {"{keep}"};
    o = usual();
    o.keep = braces;
    o.nkeep = 1;
    inv_session *s;
    assert_int_equal(inv_session_create(model, &o, &s), INV_E_ARG);
    says("keep {keep}: ");
    assert_null(strstr(inv_context_message(ctx), "--"));
}

/* What a saved plan was made with is said by fields. */
static void test_words_of_plans(void **state)
{
    (void)state;
    const char *const frozen[] = {"m.0.*"};
    inv_session *s;
    char *plan;
    inv_session_options o = usual();
    o.memory = INV_MEMORY_RECOMPUTE;
    o.freeze = frozen;
    o.nfreeze = 1;
    assert_int_equal(inv_session_create(model, &o, &s), INV_OK);
    assert_int_equal(inv_session_plan(s, &plan), INV_OK);
    inv_session_destroy(s);
    char *forward = strstr(plan, "\"forward\": ");
    assert_non_null(forward);
    forward[strlen("\"forward\": ")] = '7'; /* of another model */
    char *sum = strstr(plan, "\"checksum\": ");
    assert_non_null(sum);
    memcpy(sum + strlen("\"checksum\": "), "\"edited\"          ", 18); /* as long as what was there */
    o.nfreeze = 0;
    o.plan = plan;
    assert_int_equal(inv_session_create(model, &o, &s), INV_E_ARG);
    says("It was made with freeze 'm.0.*' (here none)");
    assert_null(strstr(inv_context_message(ctx), "--"));
    inv_free(ctx, plan);
}

/* In a child of its own, which ends by itself if the library waits for threads that are not there. */
static int in_child(inv_session *s, int threads)
{
    inv_result r;
    int status;
    pid_t child = fork();
    if (child == 0) {
        alarm(20);
        if (threads) omp_set_num_threads(threads); /* clang's runtime forgets the number in a child */
        const inv_status got = inv_session_step(s, &in, 1, &target, 0.1, &r);
        _exit(got == INV_OK ? 10 : got == INV_E_ARG && strstr(inv_context_message(ctx), "fork()") ? 11 : 12);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

static void test_fork(void **state)
{
    (void)state;
    inv_session_options o = usual();
    inv_result r;
    o.threads = 2;
    inv_session *s = open_session(&o);
    for (int i = 0; i < ROWS * WIDTH; i++) x[i] = (float)sin(i);
    assert_int_equal(inv_session_step(s, &in, 1, &target, 0.1, &r), INV_OK);
    assert_int_equal(in_child(s, 0), 11);
    assert_int_equal(inv_session_step(s, &in, 1, &target, 0.1, &r), INV_OK); /* the parent goes on */
    omp_set_num_threads(1);                                                  /* nobody is waited for */
    assert_int_equal(in_child(s, 1), 10);
    inv_session_destroy(s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_numbers), cmocka_unit_test(test_lists),          cmocka_unit_test(test_sizes),
        cmocka_unit_test(test_arrays),  cmocka_unit_test(test_steps),          cmocka_unit_test(test_words),
        cmocka_unit_test(test_extents), cmocka_unit_test(test_words_of_plans), cmocka_unit_test(test_fork)};
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
