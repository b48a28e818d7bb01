/* SPDX-License-Identifier: Apache-2.0
 * Steps in two calls, with the loss outside: gradients are those of a session that has the loss itself, in every memory
 * mode, also where a guard refuses; what is in the wrong order or missing is refused. Views of a session's memory; and
 * the caller's wish to stop. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "core/graph/model.h"
#include "executor/executor.h"

#define MODELS INV_TEST_DATA "/models/"
#define REVNET MODELS "revnet8_ts17/model.onnx"
#define DROPOUT MODELS "hz_dropout_train_ts17/model.onnx"

typedef struct fixture {
    int stop;
    inv_context *ctx;
    inv_model *model;
    inv_session *session;
    inv_array in, out; /* the output's gradient, or the target */
    int64_t dims[2][INV_MAX_RANK];
    float *data[2];
    size_t n; /* elements of the output */
} fixture;

static void check(const fixture *f, inv_status s)
{
    if (s != INV_OK) fail_msg("%s", inv_context_message(f->ctx));
}

static size_t make_array(fixture *f, int i, inv_array *x, const inv_value *v)
{
    inv_shape s = v->shape;
    if (s.dim[0] < 2) s.dim[0] = 4;
    const size_t n = (size_t)inv_shape_nelem(&s);
    memcpy(f->dims[i], s.dim, sizeof s.dim);
    f->data[i] = malloc(n * sizeof(float));
    for (size_t k = 0; k < n; k++) f->data[i][k] = (float)sin(0.7 * (double)k + i);
    *x = (inv_array){.name = v->name, .dtype = INV_F32, .rank = s.rank, .dims = f->dims[i], .data = f->data[i]};
    return n;
}

static inv_session_options options(const fixture *f, inv_loss loss, inv_memory memory, const char *device)
{
    return (inv_session_options){.size = sizeof(inv_session_options),
                                 .purpose = INV_FOR_TRAIN,
                                 .loss = loss,
                                 .inputs = &f->in,
                                 .ninputs = 1,
                                 .target = loss == INV_LOSS_OUTSIDE ? NULL : &f->out,
                                 .loss_outputs = &f->out.name,
                                 .nloss_outputs = 1,
                                 .memory = memory,
                                 .device = device,
                                 .input_grads = true};
}

static void load(fixture *f, const char *path)
{
    memset(f, 0, sizeof *f);
    const inv_context_options c = {.size = sizeof c, .stop = &f->stop};
    assert_int_equal(inv_context_create(&c, &f->ctx), INV_OK);
    check(f, inv_model_load(f->ctx, path, &f->model));
    const inv_graph *g = f->model->graph;
    (void)make_array(f, 0, &f->in, inv_val(g, g->inputs.at[0]));
    f->n = make_array(f, 1, &f->out, inv_val(g, g->outputs.at[0]));
}

static void begin(fixture *f, const char *path, inv_loss loss, inv_memory memory, const char *device)
{
    load(f, path);
    const inv_session_options o = options(f, loss, memory, device);
    check(f, inv_session_create(f->model, &o, &f->session));
}

static void end(fixture *f)
{
    inv_session_destroy(f->session);
    inv_model_destroy(f->model);
    inv_context_destroy(f->ctx);
    free(f->data[0]);
    free(f->data[1]);
}

static const float *get(const fixture *f, inv_what what, const char *name, size_t *n)
{
    const void *data;
    inv_dtype dtype;
    int rank;
    int64_t dims[INV_MAX_RANK];
    check(f, inv_session_get(f->session, what, name, &data, &dtype, &rank, dims));
    *n = 1;
    for (int d = 0; d < rank; d++) *n *= (size_t)dims[d];
    return data;
}

/* The output's gradient of the mean of squares of what it differs from the data of `out` by. */
static inv_result step(fixture *f)
{
    inv_result r;
    size_t n;
    check(f, inv_session_forward(f->session, &f->in, 1, &r));
    const float *y = get(f, INV_GET_OUTPUT, f->out.name, &n);
    assert_int_equal(n, f->n);
    float *gradient = malloc(n * sizeof *gradient);
    for (size_t i = 0; i < n; i++) gradient[i] = (float)(2 * ((double)y[i] - (double)f->data[1][i]) / (double)n);
    inv_array a = f->out;
    a.data = gradient;
    check(f, inv_session_backward(f->session, &a, 1, &r));
    free(gradient);
    return r;
}

/* Gradients of `a` are those of `b` but for a relative error. */
static void same_gradients(const fixture *a, const fixture *b, double limit)
{
    const inv_what kinds[] = {INV_GET_GRAD, INV_GET_INPUT_GRAD};
    size_t compared = 0, n, m;
    for (size_t k = 0; k < 2; k++)
        for (size_t i = 0;; i++, compared++) {
            const char *name = inv_session_name(b->session, kinds[k], i);
            if (!name) break;
            const float *x = get(a, kinds[k], name, &n), *y = get(b, kinds[k], name, &m);
            double sum = 0, off = 0;
            assert_int_equal(n, m);
            for (size_t j = 0; j < n; j++) sum += (double)y[j] * y[j], off += pow((double)x[j] - y[j], 2);
            if (!(sqrt(off) <= limit * sqrt(sum))) fail_msg("gradient of '%s' is off by %g", name, sqrt(off / sum));
        }
    assert_true(compared > 1);
}

static void test_gradients(void **state)
{
    const char *const models[] = {REVNET, DROPOUT};
    const inv_memory modes[] = {INV_MEMORY_STORE, INV_MEMORY_RECOMPUTE, INV_MEMORY_INVERT, INV_MEMORY_AUTO};
    (void)state;
    for (size_t m = 0; m < 2; m++)
        for (size_t k = 0; k < 4; k++) {
            fixture whole, halves;
            inv_result r;
            begin(&whole, models[m], INV_LOSS_MSE, INV_MEMORY_STORE, "cpu");
            begin(&halves, models[m], INV_LOSS_OUTSIDE, modes[k], "checked");
            for (int i = 0; i < 2; i++) { /* the second time with other random numbers */
                check(&whole, inv_session_grad(whole.session, &whole.in, 1, &whole.out, &r));
                (void)step(&halves);
                same_gradients(&halves, &whole, modes[k] == INV_MEMORY_STORE ? 1e-6 : 1e-4);
            }
            assert_int_equal(inv_session_steps(halves.session), 2);
            end(&whole);
            end(&halves);
        }
}

/* All is run again, from the inputs and gradients that were given, with the masks that forward had. */
static void test_refused_by_guard(void **state)
{
    fixture stored, inverted;
    (void)state;
    begin(&stored, REVNET, INV_LOSS_OUTSIDE, INV_MEMORY_STORE, "cpu");
    begin(&inverted, REVNET, INV_LOSS_OUTSIDE, INV_MEMORY_INVERT, "cpu");
    inverted.session->program->max_drift = 1e-9; /* less than it was planned for */
    inv_session_set_step(stored.session, 5, 3);
    inv_session_set_step(inverted.session, 5, 3);
    (void)step(&stored);
    assert_true(step(&inverted).fallbacks > 0);
    same_gradients(&inverted, &stored, 1e-6);
    assert_int_equal(step(&inverted).fallbacks, 0);
    end(&stored);
    end(&inverted);
}

static void test_order_of_calls(void **state)
{
    fixture f, whole;
    inv_result r;
    (void)state;
    begin(&f, REVNET, INV_LOSS_OUTSIDE, INV_MEMORY_AUTO, "cpu");
    assert_int_equal(inv_session_backward(f.session, &f.out, 1, &r), INV_E_ARG);
    assert_int_equal(inv_session_grad(f.session, &f.in, 1, NULL, &r), INV_E_ARG);
    check(&f, inv_session_forward(f.session, &f.in, 1, &r));
    assert_int_equal(inv_session_backward(f.session, NULL, 0, &r), INV_E_ARG);
    inv_array wrong = f.out;
    wrong.rank = 1;
    assert_int_equal(inv_session_backward(f.session, &wrong, 1, &r), INV_E_SHAPE);
    check(&f, inv_session_backward(f.session, &f.out, 1, &r));
    assert_int_equal(inv_session_backward(f.session, &f.out, 1, &r), INV_E_ARG);
    check(&f, inv_session_forward(f.session, &f.in, 1, &r));
    inv_session_set_step(f.session, 7, 0);
    assert_int_equal(inv_session_backward(f.session, &f.out, 1, &r), INV_E_ARG);
    inv_session_options o = options(&f, INV_LOSS_OUTSIDE, INV_MEMORY_AUTO, "sim");
    inv_session *other;
    check(&f, inv_session_create(f.model, &o, &other));
    assert_int_equal(inv_session_forward(other, &f.in, 1, &r), INV_E_UNSUPPORTED_OP);
    inv_session_destroy(other);
    o.optimizer = INV_OPT_SGD;
    assert_int_equal(inv_session_create(f.model, &o, &other), INV_E_ARG);
    begin(&whole, REVNET, INV_LOSS_MSE, INV_MEMORY_AUTO, "cpu");
    assert_int_equal(inv_session_forward(whole.session, &whole.in, 1, &r), INV_E_ARG);
    end(&whole);
    end(&f);
}

static void test_views(void **state)
{
    fixture f;
    inv_view w, g;
    size_t n;
    (void)state;
    begin(&f, REVNET, INV_LOSS_OUTSIDE, INV_MEMORY_AUTO, "cpu");
    const char *name = inv_session_name(f.session, INV_GET_HELD, 0);
    assert_int_equal(inv_session_view(f.session, INV_GET_GRAD, name, &g), INV_E_ARG);
    assert_int_equal(inv_session_view(f.session, INV_GET_PARAM, "no such", &w), INV_E_ARG);
    check(&f, inv_session_view(f.session, INV_GET_PARAM, name, &w));
    assert_true(w.persists && w.dtype == INV_F32);
    *(float *)w.data = 0.25f;
    assert_true(get(&f, INV_GET_PARAM, name, &n)[0] == 0.25f);
    (void)step(&f);
    name = inv_session_name(f.session, INV_GET_GRAD, 0);
    check(&f, inv_session_view(f.session, INV_GET_GRAD, name, &g));
    assert_false(g.persists);
    const float first = *(const float *)g.data;
    assert_true(get(&f, INV_GET_GRAD, name, &n)[0] == first);
    /* What was planned for goes, what is looked at stays. */
    inv_memory mode = INV_MEMORY_STORE;
    const inv_modes modes = {.size = sizeof modes, .memory = &mode};
    check(&f, inv_session_set_modes(f.session, &modes));
    assert_true(*(const float *)g.data == first);
    inv_session_end_views(f.session);
    assert_true(*(const float *)w.data == get(&f, INV_GET_PARAM, inv_session_name(f.session, INV_GET_HELD, 0), &n)[0]);
    end(&f);
}

static void test_stop(void **state)
{
    fixture f;
    inv_result r;
    inv_session *other;
    size_t n;
    (void)state;
    load(&f, REVNET);
    inv_session_options o = options(&f, INV_LOSS_MSE, INV_MEMORY_AUTO, "cpu");
    o.optimizer = INV_OPT_SGD;
    check(&f, inv_session_create(f.model, &o, &f.session));
    const char *name = inv_session_name(f.session, INV_GET_HELD, 0);
    const float before = get(&f, INV_GET_PARAM, name, &n)[0];
    f.stop = 1;
    assert_int_equal(inv_session_step(f.session, &f.in, 1, &f.out, 1, &r), INV_E_STOPPED);
    assert_int_equal(inv_session_create(f.model, &o, &other), INV_E_STOPPED);
    assert_true(get(&f, INV_GET_PARAM, name, &n)[0] == before);
    assert_int_equal(inv_session_steps(f.session), 0);
    f.stop = 0;
    check(&f, inv_session_step(f.session, &f.in, 1, &f.out, 1, &r));
    assert_int_equal(inv_session_steps(f.session), 1);
    end(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_gradients), cmocka_unit_test(test_refused_by_guard),
                                       cmocka_unit_test(test_order_of_calls), cmocka_unit_test(test_views),
                                       cmocka_unit_test(test_stop)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
