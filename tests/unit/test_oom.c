/* SPDX-License-Identifier: Apache-2.0
 * Out of memory anywhere: the n-th allocation fails, for n = 1, 2, 3, ..., while a context is made, models are loaded,
 * sessions are compiled and a step is planned again. Every attempt must say so, and leave nothing behind; a session
 * goes on. What jansson allocates, for reports, is not swept. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

#include "core/graph/model.h"
#include "core/program/program.h"
#include "counting.h"
#include "executor/executor.h"

#define NICE INV_TEST_DATA "/models/nice_split_uneven_ts17/model.onnx"
#define EXTERNAL INV_TEST_DATA "/models/nice_external_data/model.onnx"
#define LENET INV_TEST_DATA "/models/plain_lenet_ts17/model.onnx"
#define RESIDUAL INV_TEST_DATA "/models/hz_residual_around_coupling_ts17/model.onnx"

/* --- what is attempted --- */

typedef struct attempt {
    failing_memory c;
    inv_allocator allocator;
    inv_context *ctx;
    inv_model *model;
    inv_session *session;
    inv_array in, target;
    int64_t dims[2][INV_MAX_RANK];
    float *data[2];
} attempt;

static void close_all(attempt *a)
{
    inv_session_destroy(a->session);
    inv_model_destroy(a->model);
    inv_context_destroy(a->ctx);
    a->session = NULL;
    a->model = NULL;
    a->ctx = NULL;
}

static inv_status make_context(attempt *a)
{
    a->allocator = (inv_allocator){counted_alloc, counted_free, &a->c};
    inv_context_options o = {.size = sizeof o, .allocator = &a->allocator};
    return inv_context_create(&o, &a->ctx);
}

static void shape_array(attempt *a, int i, inv_array *x, const char *name, const inv_shape *s)
{
    size_t n = (size_t)inv_shape_nelem(s);
    for (int d = 0; d < s->rank; d++) a->dims[i][d] = s->dim[d];
    free(a->data[i]);
    a->data[i] = malloc(n * sizeof(float));
    for (size_t k = 0; k < n; k++) a->data[i][k] = (float)sin(0.7 * (double)k + i);
    *x = (inv_array){.name = name, .dtype = INV_F32, .rank = s->rank, .dims = a->dims[i], .data = a->data[i]};
}

/* Everything up to what is swept succeeds. */
static void ready_model(attempt *a, const char *path)
{
    assert_int_equal(make_context(a), INV_OK);
    assert_int_equal(inv_model_load(a->ctx, path, &a->model), INV_OK);
    const inv_graph *g = a->model->graph;
    const inv_value *in = inv_val(g, g->inputs.at[0]), *out = inv_val(g, g->outputs.at[0]);
    shape_array(a, 0, &a->in, in->name, &in->shape);
    shape_array(a, 1, &a->target, "target", &out->shape);
}

static inv_status make_session(attempt *a, inv_memory memory, bool plan_only, bool staged)
{
    const char *first = inv_val(a->model->graph, a->model->graph->outputs.at[0])->name;
    inv_session_options o = {.size = sizeof o,
                             .purpose = INV_FOR_TRAIN,
                             .loss = INV_LOSS_MSE,
                             .inputs = &a->in,
                             .ninputs = 1,
                             .target = &a->target,
                             .loss_outputs = &first,
                             .nloss_outputs = 1,
                             .memory = memory,
                             .plan_only = plan_only,
                             .optimizer = INV_OPT_ADAM,
                             .beta1 = 0.9,
                             .beta2 = 0.999,
                             .epsilon = 1e-8};
    const inv_stage later = {"*.0.weight", 1};
    o.stages = &later;
    o.nstages = staged;
    return inv_session_create(a->model, &o, &a->session);
}

typedef struct sweep {
    const char *what, *path;
    inv_memory memory;
    bool plan_only, step, check;
    bool adapt;  /* a new head and adapters, which are taken out, put back and merged */
    bool stage;  /* the first step of a stage */
    bool plugin; /* what is loaded is one */
    bool load;   /* of a state, in which guards have rejected something */
} sweep;

static inv_status before(attempt *a, const sweep *w)
{
    if (!w->path) return INV_OK;
    ready_model(a, w->path);
    if (w->stage) {
        inv_result r;
        assert_int_equal(make_session(a, w->memory, false, true), INV_OK);
        assert_int_equal(inv_session_step(a->session, &a->in, 1, &a->target, 1e-3, &r), INV_OK);
    }
    if (w->step) {
        assert_int_equal(make_session(a, w->memory, false, false), INV_OK);
        a->session->program->max_drift = 1e-9; /* planned for more: the guard will refuse */
    }
    if (w->load) {
        static char name[1 << 18]; /* its copies take memory of their own */
        inv_result r;
        memset(name, 'x', sizeof name - 1);
        assert_int_equal(inv_session_step(a->session, &a->in, 1, &a->target, 1e-3, &r), INV_OK);
        assert_true(r.fallbacks > 0);
        for (int i = 0; i < 3; i++) assert_int_equal(inv_program_reject(a->session->program, name, true), INV_OK);
        assert_int_equal(inv_session_save_state(a->session, "oom.state", NULL), INV_OK);
        inv_session_set_step(a->session, 7, 0);
    }
    return INV_OK;
}

/* A session that could not be planned again goes on as it was: the same step is refused again, and planned again. */
static void goes_on(attempt *a)
{
    inv_result r;
    char *json;
    const void *data;
    inv_dtype dt;
    int rank;
    int64_t dims[INV_MAX_RANK];
    size_t fail_at = a->c.fail_at;
    a->c.fail_at = 0;
    assert_int_equal(inv_session_steps(a->session), 0);
    assert_int_equal(inv_session_report(a->session, &json), INV_OK);
    inv_free(a->ctx, json);
    assert_int_equal(inv_session_get(a->session, INV_GET_PARAM, inv_session_name(a->session, INV_GET_PARAM, 0), &data,
                                     &dt, &rank, dims),
                     INV_OK);
    assert_int_equal(inv_session_step(a->session, &a->in, 1, &a->target, 1e-3, &r), INV_OK);
    assert_true(r.fallbacks > 0);
    a->c.fail_at = fail_at;
}

static inv_status check_model(attempt *a)
{
    const char *first = inv_val(a->model->graph, a->model->graph->outputs.at[0])->name;
    const inv_session_options o = {.size = sizeof o,
                                   .loss = INV_LOSS_MSE,
                                   .inputs = &a->in,
                                   .ninputs = 1,
                                   .target = &a->target,
                                   .loss_outputs = &first,
                                   .nloss_outputs = 1};
    char *json;
    inv_status s = inv_model_check(a->model, &o, &json);
    inv_free(a->ctx, json);
    return s;
}

static inv_status adapt_model(attempt *a)
{
    const char *all = "*";
    const inv_head head = {.size = sizeof head, .classes = 3};
    const inv_lora lora = {.size = sizeof lora, .targets = &all, .ntargets = 1, .rank = 1, .alpha = 1};
    INV_TRY(inv_model_set_head(a->model, &head, NULL));
    INV_TRY(inv_model_add_lora(a->model, &lora, NULL));
    INV_TRY(inv_model_save_adapters(a->model, NULL, "oom.onnx_adapter"));
    INV_TRY(inv_model_load_adapters(a->model, "oom.onnx_adapter", NULL));
    INV_TRY(inv_model_save(a->model, NULL, "oom.onnx"));
    INV_TRY(inv_model_merge_adapters(a->model, NULL));
    return inv_model_save(a->model, NULL, "oom.onnx");
}

/* A stage that could not begin begins with the next step. */
static inv_status begin_stage(attempt *a)
{
    inv_result r;
    const inv_status s = inv_session_step(a->session, &a->in, 1, &a->target, 1e-3, &r);
    const size_t fail_at = a->c.fail_at;
    a->c.fail_at = 0;
    if (s != INV_OK) assert_int_equal(inv_session_step(a->session, &a->in, 1, &a->target, 1e-3, &r), INV_OK);
    assert_int_equal(inv_session_steps(a->session), 2);
    a->c.fail_at = fail_at;
    return s;
}

/* A state that could not be loaded has changed nothing. */
static inv_status load(attempt *a)
{
    const inv_program *p = a->session->program;
    const size_t rejected = p->checkpoint.n;
    const inv_status s = inv_session_load_state(a->session, "oom.state", NULL);
    assert_true(rejected > 0);
    assert_int_equal(p->checkpoint.n, rejected);
    assert_int_equal(inv_session_steps(a->session), s == INV_OK ? 1 : 7);
    return s;
}

static inv_status swept(attempt *a, const sweep *w)
{
    inv_result r;
    if (w->adapt) return adapt_model(a);
    if (w->stage) return begin_stage(a);
    if (w->load) return load(a);
    if (!w->path) return make_context(a);
    if (w->check) return check_model(a);
    if (!w->step) return make_session(a, w->memory, w->plan_only, false);
    inv_status s = inv_session_step(a->session, &a->in, 1, &a->target, 1e-3, &r);
    if (s == INV_OK) assert_true(r.fallbacks > 0); /* the point of the sweep */
    else goes_on(a);
    return s;
}

static const char *rules_file(void)
{
    FILE *f = fopen("oom.rules", "w");
    assert_non_null(f);
    fputs("rule mine\n    kind       mine\n    match      y = Relu(x)\n    solve      x = Abs(y)\n    frees      x\n"
          "    doc        a rule\n",
          f);
    assert_int_equal(fclose(f), 0);
    return "oom.rules";
}

static double seconds(void) { return (double)clock() / CLOCKS_PER_SEC; }

/* Fails the n-th allocation for every n up to `dense`, then at a stride that keeps to the time given, until one attempt
 * needs fewer. `load` is a file that is loaded in the swept part. */
static void run_sweep(const sweep *w, const char *load, double time_limit)
{
    enum { DENSE = 150 };
    double begin = seconds();
    size_t stride = 1, tried = 0, total = 0;
    for (size_t n = 0;; n += n && n < total ? stride : 1) { /* n = 0: how many there are */
        attempt a = {0};
        inv_status s;
        if (load) assert_int_equal(make_context(&a), INV_OK);
        else assert_int_equal(before(&a, w), INV_OK);
        size_t base = a.c.made;
        a.c.fail_at = n ? base + n : 0;
        s = !load       ? swept(&a, w)
            : w->plugin ? inv_context_load_plugin(a.ctx, load)
                        : inv_model_load(a.ctx, load, &a.model);
        size_t made = a.c.made - base;
        a.c.fail_at = 0;
        if (n == 0) {
            total = made;
            assert_int_equal(s, INV_OK);
        } else if (n <= made && s != INV_E_NOMEM) {
            fail_msg("%s: allocation %zu of %zu fails, status %d (%s)", w->what, n, total, (int)s,
                     a.ctx ? inv_context_message(a.ctx) : "");
        } else if (n > made) {
            assert_int_equal(s, INV_OK);
        }
        close_all(&a);
        free(a.data[0]);
        free(a.data[1]);
        if (a.c.live) fail_msg("%s: allocation %zu of %zu fails, %zu blocks are left", w->what, n, total, a.c.live);
        if (n > total) break;
        tried++;
        if (tried > DENSE) { /* the rest in the time that is left */
            double each = (seconds() - begin) / (double)tried, left = begin + time_limit - seconds();
            double more = left > 0 ? left / each : 1;
            stride = (size_t)((double)(total - (n < total ? n : total)) / more) + 1;
        }
    }
}

static void test_context(void **state)
{
    (void)state;
    run_sweep(&(sweep){.what = "context"}, NULL, 1);
}

static void test_load(void **state)
{
    (void)state;
    run_sweep(&(sweep){.what = "load"}, NICE, 1);
    run_sweep(&(sweep){.what = "load, external data"}, EXTERNAL, 1);
}

static void test_plugins(void **state)
{
    (void)state;
    run_sweep(&(sweep){.what = "pair", .plugin = true}, INV_TEST_DATA "/pair.onnx", 2);
    run_sweep(&(sweep){.what = "rules", .plugin = true}, rules_file(), 1);
    (void)remove("oom.rules");
}

static void test_session(void **state)
{
    (void)state;
    run_sweep(&(sweep){.what = "store", .path = NICE, .memory = INV_MEMORY_STORE}, NULL, 0.7);
    run_sweep(&(sweep){.what = "store, plan only", .path = RESIDUAL, .memory = INV_MEMORY_STORE, .plan_only = true},
              NULL, 0.7);
    run_sweep(&(sweep){.what = "invert", .path = NICE, .memory = INV_MEMORY_INVERT}, NULL, 1.5);
    run_sweep(&(sweep){.what = "invert, plan only", .path = RESIDUAL, .memory = INV_MEMORY_INVERT, .plan_only = true},
              NULL, 1.5);
}

static void test_check(void **state)
{
    (void)state;
    run_sweep(&(sweep){.what = "check", .path = NICE, .check = true}, NULL, 6);
}

static void test_step_that_plans_again(void **state)
{
    (void)state;
    run_sweep(&(sweep){.what = "step", .path = NICE, .memory = INV_MEMORY_INVERT, .step = true}, NULL, 2);
}

static void test_state(void **state)
{
    (void)state;
    run_sweep(&(sweep){.what = "state", .path = NICE, .memory = INV_MEMORY_INVERT, .step = true, .load = true}, NULL,
              1);
    (void)remove("oom.state");
}

static void test_adapted(void **state)
{
    (void)state;
    run_sweep(&(sweep){.what = "head and adapters", .path = LENET, .adapt = true}, NULL, 2);
    run_sweep(&(sweep){.what = "stage", .path = NICE, .memory = INV_MEMORY_STORE, .stage = true}, NULL, 2);
    (void)remove("oom.onnx");
    (void)remove("oom.onnx_adapter");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_context), cmocka_unit_test(test_load),
        cmocka_unit_test(test_session), cmocka_unit_test(test_step_that_plans_again),
        cmocka_unit_test(test_check),   cmocka_unit_test(test_adapted),
        cmocka_unit_test(test_state),   cmocka_unit_test(test_plugins),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
