/* SPDX-License-Identifier: Apache-2.0
 * The inverse direction in memory: it undoes the model, its gradients are those of finite differences with every linear
 * map solved by the parameters themselves, it is trained in the modes store and invert with the same result and less
 * memory in the latter, and saving writes the model in its own direction. Every failing allocation is told. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "core/graph/model.h"
#include "executor/executor.h"
#include "onnx_build.h"

#define MODELS INV_TEST_DATA "/models/"
#define GLOW MODELS "glow_ts17/model.onnx"
#define REALNVP MODELS "realnvp_ts17/model.onnx"
#define NICE MODELS "nice_split_uneven_ts17/model.onnx"

enum { PORTS = 4 };

typedef struct fixture {
    long live, countdown; /* allocations; those that succeed, below 0: all */
    bool refused;         /* one has failed */
    inv_allocator allocator;
    inv_context *ctx;
    inv_model *model, *reversed;
    inv_session *session;
    inv_array in[PORTS], target;
    size_t nin;
    double *data[PORTS + 1];
} fixture;

static void *counted_alloc(void *opaque, size_t nbytes)
{
    fixture *f = opaque;
    f->refused |= f->countdown == 0;
    if (f->countdown == 0) return NULL;
    if (f->countdown > 0) f->countdown--;
    void *p = malloc(nbytes);
    f->live += p != NULL;
    return p;
}

static void counted_free(void *opaque, void *p)
{
    fixture *f = opaque;
    f->live -= p != NULL;
    free(p);
}

static void check(const fixture *f, inv_status s)
{
    if (s != INV_OK) fail_msg("%s", inv_context_message(f->ctx));
}

static void begin(fixture *f, const char *path)
{
    memset(f, 0, sizeof *f);
    f->countdown = -1;
    f->allocator = (inv_allocator){counted_alloc, counted_free, f};
    inv_context_options c = {.size = sizeof c, .allocator = &f->allocator};
    assert_int_equal(inv_context_create(&c, &f->ctx), INV_OK);
    check(f, inv_model_load(f->ctx, path, &f->model));
}

static void drop_session(fixture *f)
{
    inv_session_destroy(f->session);
    f->session = NULL;
    for (int i = 0; i <= PORTS; i++) free(f->data[i]);
    memset(f->data, 0, sizeof f->data);
}

static void end(fixture *f)
{
    drop_session(f);
    inv_model_destroy(f->reversed);
    inv_model_destroy(f->model);
    inv_context_destroy(f->ctx);
    assert_int_equal(f->live, 0);
}

static double *make(inv_array *a, const char *name, const inv_shape *s, double phase)
{
    const size_t n = (size_t)inv_shape_nelem(s);
    double *data = malloc(n * sizeof *data);
    assert_non_null(data);
    for (size_t k = 0; k < n; k++) data[k] = sin(0.7 * (double)k + phase);
    *a = (inv_array){.name = name, .dtype = INV_F64, .rank = s->rank, .dims = s->dim, .data = data};
    return data;
}

/* Trains towards a fixed target of the first output, in float64. */
static void train(fixture *f, inv_memory memory, inv_optimizer optimizer)
{
    const inv_graph *g = f->reversed->graph;
    f->nin = g->inputs.n;
    assert_true(f->nin <= PORTS);
    for (size_t i = 0; i < f->nin; i++) {
        const inv_value *v = inv_val(g, g->inputs.at[i]);
        f->data[i] = make(&f->in[i], v->name, &v->shape, (double)i);
    }
    const inv_value *out = inv_val(g, g->outputs.at[0]);
    const inv_value *like = inv_val(f->model->graph, f->model->graph->inputs.at[0]);
    f->data[PORTS] = make(&f->target, "target", &like->shape, 2);
    inv_session_options o = {.size = sizeof o,
                             .purpose = INV_FOR_TRAIN,
                             .loss = INV_LOSS_MSE,
                             .inputs = f->in,
                             .ninputs = f->nin,
                             .target = &f->target,
                             .loss_outputs = &out->name,
                             .nloss_outputs = 1,
                             .memory = memory,
                             .float64 = true,
                             .optimizer = optimizer,
                             .eval_batch = f->in[0].dims[0]};
    check(f, inv_session_create(f->reversed, &o, &f->session));
}

static double loss_of(fixture *f)
{
    inv_result r;
    check(f, inv_session_eval(f->session, f->in, f->nin, &f->target, &r));
    return r.loss;
}

static const double *tensor(fixture *f, inv_what what, const char *name, size_t *n)
{
    const void *data;
    inv_dtype dtype;
    int rank;
    int64_t dims[8];
    check(f, inv_session_get(f->session, what, name, &data, &dtype, &rank, dims));
    assert_int_equal(dtype, INV_F64);
    *n = 1;
    for (int d = 0; d < rank; d++) *n *= (size_t)dims[d];
    return data;
}

typedef struct entry {
    char name[200];
    size_t at;
    double gradient;
} entry;

static double moved(fixture *f, const entry *x, double by)
{
    size_t n;
    const double *is = tensor(f, INV_GET_PARAM, x->name, &n);
    double *w = malloc(n * sizeof *w);
    assert_non_null(w);
    memcpy(w, is, n * sizeof *w);
    w[x->at] += by;
    check(f, inv_session_set_param(f->session, x->name, INV_F64, w, n));
    free(w);
    return loss_of(f);
}

/* Two entries in the middle of every trained parameter. */
static size_t check_gradients(fixture *f)
{
    enum { MOST = 200 };
    static entry list[MOST];
    inv_result r;
    size_t count = 0;
    check(f, inv_session_grad(f->session, f->in, f->nin, &f->target, &r));
    assert_int_equal(r.fallbacks, 0);
    const char *name;
    for (size_t i = 0; (name = inv_session_name(f->session, INV_GET_GRAD, i)) != NULL; i++) {
        size_t n, first = count;
        snprintf(list[first].name, sizeof list[first].name, "%s", name);
        const double *grad = tensor(f, INV_GET_GRAD, list[first].name, &n);
        for (size_t e = n / 2; e < n && e < n / 2 + 2 && count < MOST; e++, count++) {
            if (count > first) list[count] = list[first];
            list[count].at = e;
            list[count].gradient = grad[e];
        }
    }
    for (size_t i = 0; i < count; i++) {
        const double h = 1e-6, above = moved(f, &list[i], h), below = moved(f, &list[i], -2 * h);
        const double want = (above - below) / (2 * h), got = list[i].gradient;
        (void)moved(f, &list[i], h);
        if (fabs(got - want) > 1e-6 * (1 + fabs(want)))
            fail_msg("%s[%zu]: %g, finite differences %g", list[i].name, list[i].at, got, want);
    }
    return count;
}

static void test_gradients(void **state)
{
    (void)state;
    const char *const paths[] = {GLOW, REALNVP, NICE};
    for (size_t i = 0; i < sizeof paths / sizeof *paths; i++) {
        fixture f;
        size_t peak[2];
        const inv_memory modes[2] = {INV_MEMORY_STORE, INV_MEMORY_INVERT};
        begin(&f, paths[i]);
        check(&f, inv_model_reverse(f.model, NULL, NULL, &f.reversed));
        for (int m = 0; m < 2; m++) {
            train(&f, modes[m], INV_OPT_NONE);
            assert_true(check_gradients(&f) > 10);
            peak[m] = f.session->program->plan[INV_PLAN_MAIN].activation_peak;
            drop_session(&f);
        }
        if (peak[1] >= peak[0]) fail_msg("%s: %zu bytes in invert, %zu in store", paths[i], peak[1], peak[0]);
        print_message("%s: activation peak %zu bytes in store, %zu in invert\n", paths[i], peak[0], peak[1]);
        end(&f);
    }
}

static pb attr_ints(const char *name, int64_t first, int64_t second)
{
    pb a = {0};
    pb_str(&a, 1, name);
    pb_int(&a, 8, first);
    pb_int(&a, 8, second);
    pb_int(&a, 20, 7);
    return a;
}

/* Patches of an image into channels by one filter, out of the channels of two groups into so many each by another. */
static const char *filters(int64_t each)
{
    const int64_t x[] = {3, 1, 4, 4}, z[] = {3, 2 * each, 2, 4}, w[] = {4, 1, 2, 2}, k[] = {4, each, 1, 2}, b[] = {4};
    float entries[2][16], bias[4] = {0.5f, -1, 0.25f, 2};
    for (int i = 0; i < 16; i++) {
        entries[0][i] = (i % 5 ? 0.f : 1.5f) + 0.4f * sinf((float)i);
        entries[1][i] = (i % 4 == i / 4 % 2 ? 1.5f : 0.f) + 0.4f * cosf((float)i);
    }
    pb g = {0}, conv = node("", "Conv", "patches", "x W b", "h"), back = node("", "ConvTranspose", "out", "r K", "z");
    pb_msg(&conv, 5, attr_ints("strides", 2, 2));
    pb_msg(&back, 5, attr_ints("strides", 1, 2));
    pb_msg(&back, 5, attr_int("group", 2));
    pb_msg(&g, 1, conv);
    pb_msg(&g, 1, node("", "LeakyRelu", "leaky", "h", "r"));
    pb_msg(&g, 1, back);
    pb_str(&g, 2, "g");
    pb_msg(&g, 5, tensor_raw("W", 1, 4, w, entries[0], sizeof entries[0]));
    pb_msg(&g, 5, tensor_raw("K", 1, 4, k, entries[1], (size_t)each * 8 * sizeof(float)));
    pb_msg(&g, 5, tensor_raw("b", 1, 1, b, bias, sizeof bias));
    pb_msg(&g, 11, value_info("x", 1, 4, x));
    pb_msg(&g, 12, value_info("z", 1, 4, z));
    return save(model_of(g), "filters.onnx");
}

/* In both memory modes the gradients of filters that are solved with. */
static void test_filters(void **state)
{
    (void)state;
    fixture f;
    begin(&f, filters(2));
    check(&f, inv_model_reverse(f.model, NULL, NULL, &f.reversed));
    size_t solved = 0;
    for (size_t i = 0; i < f.reversed->graph->order.n; i++)
        solved += strcmp(inv_nod(f.reversed->graph, f.reversed->graph->order.at[i])->op_type, "FilterInverse") == 0;
    assert_int_equal(solved, 2);
    for (int m = 0; m < 2; m++) {
        train(&f, m ? INV_MEMORY_INVERT : INV_MEMORY_STORE, INV_OPT_NONE);
        assert_int_equal(check_gradients(&f), 6);
        drop_session(&f);
    }
    end(&f);
}

/* The log-determinants of the rows, to be freed. */
static double *logdets(fixture *f, inv_model *inverse)
{
    double *data, *out;
    inv_array z;
    inv_result r;
    size_t n;
    const inv_value *in = inv_val(inverse->graph, inverse->graph->inputs.at[0]);
    data = make(&z, in->name, &in->shape, 0);
    const inv_session_options o = {.size = sizeof o, .inputs = &z, .ninputs = 1, .float64 = true};
    check(f, inv_session_create(inverse, &o, &f->session));
    check(f, inv_session_eval(f->session, &z, 1, NULL, &r));
    const double *got = tensor(f, INV_GET_OUTPUT, "ld", &n);
    assert_int_equal(n, 3);
    out = malloc(n * sizeof *out);
    assert_non_null(out);
    memcpy(out, got, n * sizeof *out);
    free(data);
    drop_session(f);
    return out;
}

/* In memory by the determinants of the groups, in the file by the sum of their logarithms. */
static void test_filter_logdets(void **state)
{
    (void)state;
    fixture f;
    inv_model *written;
    const inv_reverse_options o = {.size = sizeof o, .with_logdet = "ld"};
    begin(&f, filters(1));
    check(&f, inv_model_reverse(f.model, NULL, &o, &f.reversed));
    check(&f, inv_model_write_inverse(f.model, NULL, &o, "filters_inverse.onnx", NULL));
    check(&f, inv_model_load(f.ctx, "filters_inverse.onnx", &written));
    double *here = logdets(&f, f.reversed), *there = logdets(&f, written);
    for (int i = 0; i < 3; i++) assert_true(fabs(here[i]) > 1 && fabs(here[i] - there[i]) < 1e-10 * fabs(here[i]));
    free(here);
    free(there);
    inv_model_destroy(written);
    remove("filters_inverse.onnx");
    end(&f);
}

/* Forward and reversed give the input again, and log-determinants that add up to nothing. */
static void test_round_trip(void **state)
{
    (void)state;
    fixture f;
    const inv_reverse_options own = {.size = sizeof own, .logdet = "logdet", .with_logdet = "ld"},
                              rules = {.size = sizeof rules, .with_logdet = "ld"};
    for (int k = 0; k < 2; k++) {
        begin(&f, GLOW);
        check(&f, inv_model_reverse(f.model, NULL, k ? &own : &rules, &f.reversed));
        const inv_value *x = inv_val(f.model->graph, f.model->graph->inputs.at[0]);
        inv_array in, z[2];
        double *data = make(&in, x->name, &x->shape, 1), *out[3];
        inv_session *forward, *back;
        size_t n[3], nx;
        const inv_session_options fo = {.size = sizeof fo, .inputs = &in, .ninputs = 1, .float64 = true};
        check(&f, inv_session_create(f.model, &fo, &forward));
        inv_result r;
        check(&f, inv_session_eval(forward, &in, 1, NULL, &r));
        f.session = forward;
        const char *const names[] = {"z0", "z1", "logdet"};
        for (int i = 0; i < 3; i++) {
            const double *got = tensor(&f, INV_GET_OUTPUT, names[i], &n[i]);
            out[i] = malloc(n[i] * sizeof(double));
            memcpy(out[i], got, n[i] * sizeof(double));
        }
        for (int i = 0; i < 2; i++) {
            const inv_value *v = inv_val(f.reversed->graph, f.reversed->graph->inputs.at[i]);
            assert_string_equal(v->name, names[i]);
            z[i] = (inv_array){
                .name = v->name, .dtype = INV_F64, .rank = v->shape.rank, .dims = v->shape.dim, .data = out[i]};
        }
        const inv_session_options bo = {.size = sizeof bo, .inputs = z, .ninputs = 2, .float64 = true};
        check(&f, inv_session_create(f.reversed, &bo, &back));
        check(&f, inv_session_eval(back, z, 2, NULL, &r));
        f.session = back;
        const double *again = tensor(&f, INV_GET_OUTPUT, x->name, &nx);
        for (size_t i = 0; i < nx; i++) assert_true(fabs(again[i] - data[i]) < 1e-12);
        const double *logdet = tensor(&f, INV_GET_OUTPUT, "ld", &nx);
        assert_int_equal(nx, n[2]);
        for (size_t i = 0; i < nx; i++) assert_true(fabs(logdet[i] + out[2][i]) < 1e-10 * fabs(out[2][i]));
        inv_session_destroy(forward);
        free(data);
        for (int i = 0; i < 3; i++) free(out[i]);
        end(&f);
    }
}

/* A step in the inverse direction; what is written is the model, with other weights. */
static void test_saving(void **state)
{
    (void)state;
    fixture f;
    begin(&f, GLOW);
    check(&f, inv_model_reverse(f.model, NULL, NULL, &f.reversed));
    train(&f, INV_MEMORY_INVERT, INV_OPT_SGD);
    inv_result r;
    const double before = loss_of(&f);
    for (int i = 0; i < 5; i++) check(&f, inv_session_step(f.session, f.in, f.nin, &f.target, 1e-3, &r));
    const double after = loss_of(&f);
    assert_true(after < before);
    check(&f, inv_model_save(f.reversed, f.session, "reverse_saved.onnx"));
    drop_session(&f);
    inv_model_destroy(f.reversed);
    inv_model_destroy(f.model);
    f.reversed = f.model = NULL;
    check(&f, inv_model_load(f.ctx, "reverse_saved.onnx", &f.model));
    assert_string_equal(inv_val(f.model->graph, f.model->graph->inputs.at[0])->name, "x");
    check(&f, inv_model_reverse(f.model, NULL, NULL, &f.reversed));
    train(&f, INV_MEMORY_STORE, INV_OPT_SGD);
    assert_true(fabs(loss_of(&f) - after) < 1e-5 * after); /* weights were rounded to float32 */
    assert_int_equal(inv_model_rewrite(f.reversed, NULL, "never.onnx", NULL), INV_E_ARG);
    remove("reverse_saved.onnx");
    end(&f);
}

static void test_refusals(void **state)
{
    (void)state;
    static const char *const x[] = {"x"}, *const c[] = {"c"};
    static const struct {
        const char *path;
        inv_reverse_options o;
        inv_status code;
        const char *words;
    } rows[] = {
        {MODELS "plain_lenet_ts17/model.onnx", {0}, INV_E_NOT_INVERTIBLE, "gives fewer features than it takes"},
        {MODELS "hz_plain_residual_ts17/model.onnx", {0}, INV_E_NOT_INVERTIBLE, "the branch reads the value"},
        {MODELS "linear_tall_ts13/model.onnx", {.with_logdet = "ld"}, INV_E_NOT_INVERTIBLE, "no bijection"},
        {GLOW, {.logdet = "none"}, INV_E_ARG, "it has 'z0', 'z1', 'logdet'"},
        {GLOW, {.with_logdet = "z0"}, INV_E_ARG, "has that name"},
        {GLOW, {.given = x, .ngiven = 1}, INV_E_ARG, "all inputs of the model are given"},
        {GLOW, {.given = c, .ngiven = 1}, INV_E_ARG, "no input 'c'; it has 'x'"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        fixture f;
        inv_reverse_options o = rows[i].o;
        o.size = sizeof o;
        begin(&f, rows[i].path);
        assert_int_equal(inv_model_reverse(f.model, NULL, &o, &f.reversed), rows[i].code);
        if (!strstr(inv_context_message(f.ctx), rows[i].words)) fail_msg("%s", inv_context_message(f.ctx));
        assert_null(f.reversed);
        end(&f);
    }
}

/* Every n-th allocation fails, in turn, and ever larger steps. */
static void test_no_memory(void **state)
{
    (void)state;
    const inv_reverse_options o = {.size = sizeof o, .with_logdet = "ld"};
    bool done = false;
    for (long n = 0; !done; n += 1 + n / 4) {
        fixture f;
        begin(&f, NICE);
        f.countdown = n;
        inv_status s = inv_model_reverse(f.model, NULL, &o, &f.reversed);
        done = !f.refused;
        assert_int_equal(s, done ? INV_OK : INV_E_NOMEM);
        f.countdown = n;
        f.refused = false;
        s = inv_model_write_inverse(f.model, NULL, &o, "reverse_memory.onnx", NULL);
        if (f.refused && s != INV_E_NOMEM) fail_msg("allocation %ld: status %d", n, (int)s);
        f.countdown = -1;
        end(&f);
    }
    remove("reverse_memory.onnx");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_gradients),  cmocka_unit_test(test_filters), cmocka_unit_test(test_filter_logdets),
        cmocka_unit_test(test_round_trip), cmocka_unit_test(test_saving),  cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_no_memory),
    };
    return cmocka_run_group_tests(tests, dir_setup, dir_teardown);
}
