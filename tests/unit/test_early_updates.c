/* SPDX-License-Identifier: Apache-2.0
 * Early updates: the weights of steps with and without them are equal bit for bit, in less memory; what is not finite
 * stops them; and where guards check, these decide first, or updates wait for them. Fails if a weight is updated before
 * it has been read for the last time, or before a guard has passed, if an update waits for other gradients, or if one
 * is made from a gradient that is not finite. */
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
#include "with_context.h"

enum { ROWS = 2, WIDTH = 16, MOST = 9 * 1024 };

/* A tied weight w0, a running statistic, and a square root whose gradient is infinite where x is 0. */
static const char deep[] =
    "g(float[2,16] x) => (y) {\n"
    "param float[16,16] w0\nparam float[16,16] w1\nparam float[16,16] w2\nparam float[16,16] w3\n"
    "param float[16,16] w4\n"
    "param float[16] scale\nparam float[16] bias\nparam float[16] mean\nparam float[16] var\n"
    "a = MatMul(x, w0)\nb = Tanh(a)\nc = MatMul(b, w1)\nd = Tanh(c)\ne = MatMul(d, w0)\nf = Tanh(e)\n"
    "n, rm, rv = BatchNormalization<training_mode = 1>(f, scale, bias, mean, var)\n"
    "h = MatMul(n, w2)\ni = Tanh(h)\nj = MatMul(i, w3)\nk = Tanh(j)\ny = MatMul(k, w4)\n}\n";
static const char rooted[] = "g(float[2,16] x) => (y) {\n"
                             "param float[16,16] first\nparam float[16,16] then\nparam float[16,16] last\n"
                             "a = Mul(x, x)\nb = MatMul(a, first)\no = Cos(b)\nc = Sub(float[] {1}, o)\nd = Sqrt(c)\n"
                             "e = Tanh(d)\nf = MatMul(e, then)\nh = Tanh(f)\n"
                             "y = MatMul(h, last)\n}\n";

/* The one gradient is gone before the other comes. */
static const char thin[] =
    "g(float[2,16] x) => (y) {\n"
    "param float[16,16] w0\nparam float[16,16] w1\n"
    "a = MatMul(x, w0)\nb = Tanh(a)\nc = Exp(b)\nd = Tanh(c)\ne = Exp(d)\nf = Tanh(e)\nh = Exp(f)\ni = Tanh(h)\n"
    "j = MatMul(i, w1)\nk = Tanh(j)\nl = Exp(k)\nm = Tanh(l)\nn = Exp(m)\ny = Tanh(n)\n}\n";
/* Images are channels-last inside, so that gradients of `scale` and `shift` take their shapes in the commit part. */
static const char imaged[] =
    "g(float[2,16] x) => (y) {\n"
    "param float[8,1,3,3] first\nparam float[1,8,1,1] scale\nparam float[1,8,1,1] shift\nparam float[1,8,3,3] last\n"
    "a = Reshape(x, int64[4] {2,1,4,4})\nb = Conv<pads = [1,1,1,1]>(a, first)\nc = Exp(scale)\nd = Mul(b, c)\n"
    "e = Add(d, shift)\nf = Conv<pads = [1,1,1,1]>(e, last)\ny = Reshape(f, int64[2] {2,16})\n}\n";

static inv_graph *parse(const char *text)
{
    inv_graph *g = NULL;
    uint64_t h = 88172645463325252u;
    if (inv_graph_parse(ctx, text, &g) != INV_OK) fail_msg("%s", inv_context_message(ctx));
    for (size_t i = 0; i < g->inits.n; i++) {
        inv_value *v = inv_val(g, g->inits.at[i]);
        const size_t ne = (size_t)inv_shape_nelem(&v->shape);
        float *data = inv_arena_alloc(&g->arena, ne * sizeof *data);
        assert_non_null(data);
        for (size_t k = 0; k < ne; k++) {
            h ^= h << 13, h ^= h >> 7, h ^= h << 17;
            data[k] = (float)((double)(h >> 11) * 0x1p-53) * 0.5f;
        }
        v->data = (inv_data){INV_F32, v->shape, data, ne * sizeof *data};
    }
    return g;
}

typedef struct trained {
    inv_status status;
    size_t gradients; /* bytes of them, most at once */
    size_t peak;      /* bytes of all but what outlasts the step */
    double overhead, bound;
    size_t guarded; /* values */
    bool early;
    int fallbacks;
    float weight[MOST]; /* all parameters, one after the other */
    size_t n;
    float was[MOST];
} trained;

static size_t read_weights(inv_session *s, const inv_graph *g, float *to)
{
    size_t n = 0;
    for (size_t i = 0; i < g->inits.n; i++) {
        const void *data;
        inv_dtype dt;
        int rank;
        int64_t dims[8], ne = 1;
        const char *name = inv_val(g, g->inits.at[i])->name;
        assert_int_equal(inv_session_get(s, INV_GET_PARAM, name, &data, &dt, &rank, dims), INV_OK);
        for (int d = 0; d < rank; d++) ne *= dims[d];
        assert_true(n + (size_t)ne <= MOST);
        memcpy(to + n, data, (size_t)ne * sizeof *to);
        n += (size_t)ne;
    }
    return n;
}

static double refused_from; /* drift from which on guards refuse what was planned for more; 0: as planned */

/* Steps on one batch, in which element 0 of x is `odd` from the second step on. */
static trained train(const char *text, inv_session_options o, int steps, float odd)
{
    trained t = {0};
    inv_graph *g = parse(text);
    inv_model model = {.ctx = ctx, .path = "text", .graph = g};
    const int64_t dims[2] = {ROWS, WIDTH};
    float x[ROWS * WIDTH], y[ROWS * WIDTH];
    for (int i = 0; i < ROWS * WIDTH; i++) {
        x[i] = (float)sin(i * 0.7) + 1.5f;
        y[i] = (float)cos(i * 0.3);
    }
    const inv_array in = {.name = "x", .dtype = INV_F32, .rank = 2, .dims = dims, .data = x},
                    target = {.name = "target", .dtype = INV_F32, .rank = 2, .dims = dims, .data = y};
    const char *out = "y";
    inv_session *s = NULL;
    inv_result r;
    o.size = sizeof o;
    o.purpose = INV_FOR_TRAIN;
    o.inputs = &in;
    o.ninputs = 1;
    o.target = &target;
    o.loss = INV_LOSS_MSE;
    o.loss_outputs = &out;
    o.nloss_outputs = 1;
    t.status = inv_session_create(&model, &o, &s);
    if (s && refused_from > 0) s->program->max_drift = refused_from;
    for (int i = 0; i < steps && t.status == INV_OK; i++) {
        (void)read_weights(s, g, t.was);
        if (i > 0)
            for (int k = 0; k < (isnan(odd) ? 1 : WIDTH); k++) x[k] = odd;
        t.status = inv_session_step(s, &in, 1, &target, 0.01, &r);
    }
    if (s) {
        const inv_plan *p = &s->program->plan[INV_PLAN_MAIN];
        for (size_t i = 0; i < p->g->order.n; i++)
            if (p->live[i].bytes[INV_MEM_GRAD] > t.gradients) t.gradients = p->live[i].bytes[INV_MEM_GRAD];
        t.peak = p->transient;
        t.overhead = p->overhead;
        t.bound = p->bound;
        t.guarded = p->guarded.n;
        t.early = p->g->early;
        t.fallbacks = s->fallbacks;
        t.n = read_weights(s, g, t.weight);
    }
    inv_session_destroy(s);
    inv_graph_destroy(g);
    return t;
}

static void steps_are_the_same(void **state)
{
    (void)state;
    static const char *const devices[] = {"cpu", "checked", "sim"};
    for (size_t d = 0; d < 3; d++)
        for (int opt = INV_OPT_SGD; opt <= INV_OPT_ADAMW; opt++)
            for (int m = INV_MEMORY_STORE; m <= INV_MEMORY_RECOMPUTE; m++) {
                inv_session_options o = {.device = devices[d],
                                         .optimizer = (inv_optimizer)opt,
                                         .momentum = 0.9,
                                         .beta1 = 0.9,
                                         .beta2 = 0.999,
                                         .epsilon = 1e-8,
                                         .weight_decay = 0.01,
                                         .memory = (inv_memory)m};
                const trained late = train(deep, o, 3, 0.5f);
                o.early_update = true;
                const trained early = train(deep, o, 3, 0.5f);
                if (late.status != INV_OK || early.status != INV_OK) fail_msg("%s", inv_context_message(ctx));
                assert_int_equal(late.n, early.n);
                assert_memory_equal(late.weight, early.weight, late.n * sizeof *late.weight);
                assert_memory_not_equal(early.was, early.weight, early.n * sizeof *early.weight);
                /* the tied weight's first part waits for the second; of the others one at a time */
                assert_true(late.gradients >= 5 * sizeof(float) * WIDTH * WIDTH);
                assert_true(early.gradients <= 3 * sizeof(float) * WIDTH * WIDTH);
            }
}

static void gradients_in_another_shape_move_too(void **state)
{
    (void)state;
    inv_session_options o = {.device = "cpu", .optimizer = INV_OPT_SGD, .memory = INV_MEMORY_STORE};
    const trained late = train(imaged, o, 3, 0.5f);
    o.early_update = true;
    const trained early = train(imaged, o, 3, 0.5f);
    if (late.status != INV_OK || early.status != INV_OK) fail_msg("%s", inv_context_message(ctx));
    assert_memory_equal(late.weight, early.weight, late.n * sizeof *late.weight);
    assert_true(early.gradients < late.gradients);
}

/* What gradients leave free early is room for the plan, and for the bound: no plan costs less than it. */
static void budgets_know_of_them(void **state)
{
    (void)state;
    const inv_session_options o = {
        .device = "cpu", .optimizer = INV_OPT_SGD, .memory = INV_MEMORY_RECOMPUTE, .early_update = true};
    inv_session_options store = o;
    store.memory = INV_MEMORY_STORE;
    const size_t most = train(thin, store, 0, 0.5f).peak;
    const size_t weights = train(thin, o, 0, 0.5f).n * sizeof(float);
    size_t met = 0, dear = 0;
    for (size_t peak = most; peak > most / 2; peak -= 64) {
        inv_session_options within = o;
        within.budget = weights + peak;
        const trained t = train(thin, within, 0, 0.5f);
        if (t.status == INV_E_NOMEM) break;
        assert_int_equal(t.status, INV_OK);
        assert_true(t.bound <= t.overhead + 1e-12);
        if (3 * peak > 2 * most) assert_true(t.overhead < 0.03); /* 0.3 if the first gradient stayed for the other */
        met++;
        dear += t.bound > 0;
    }
    assert_true(met > 1 && dear > 0);
}

static void a_loss_that_is_not_finite_changes_nothing(void **state)
{
    (void)state;
    for (int d = 0; d < 2; d++) {
        const inv_session_options o = {.device = d ? "sim" : "cpu",
                                       .optimizer = INV_OPT_ADAM,
                                       .beta1 = 0.9,
                                       .beta2 = 0.999,
                                       .epsilon = 1e-8,
                                       .memory = INV_MEMORY_STORE,
                                       .early_update = true};
        const trained t = train(deep, o, 2, NAN);
        assert_int_equal(t.status, INV_E_NUMERIC);
        assert_non_null(strstr(inv_context_message(ctx), "the loss is not finite"));
        assert_memory_equal(t.was, t.weight, t.n * sizeof *t.weight);
    }
}

/* Of zeros the root is 0 and has an infinite slope: what comes before it in the model, and so after it in backward,
 * has no gradient. It is found where one gradient has taken the place of another behind its update, which is left out.
 */
static void a_gradient_that_is_not_finite_stops_updates(void **state)
{
    (void)state;
    static const char *const devices[] = {"cpu", "checked", "sim"};
    const size_t each = (size_t)WIDTH * WIDTH;
    for (int early = 0; early < 2; early++)
        for (int d = 0; d < 3; d++) {
            const inv_session_options o = {
                .device = devices[d], .optimizer = INV_OPT_SGD, .memory = INV_MEMORY_STORE, .early_update = early};
            const trained t = train(rooted, o, 2, 0);
            assert_int_equal(t.status, INV_E_NUMERIC);
            assert_non_null(strstr(inv_context_message(ctx), "the loss is finite, but its gradients are not"));
            assert_int_equal(t.n, 3 * each);
            assert_memory_equal(t.was, t.weight, each * sizeof *t.weight);
            for (size_t w = each; w < t.n; w += each)
                assert_int_equal(memcmp(t.was + w, t.weight + w, each * sizeof *t.weight) != 0, early);
            for (size_t i = 0; i < t.n; i++) assert_true(isfinite(t.weight[i]));
        }
}

static void they_want_an_optimizer(void **state)
{
    (void)state;
    const inv_session_options o = {.device = "cpu", .early_update = true};
    assert_int_equal(train(deep, o, 0, 0).status, INV_E_ARG);
    assert_non_null(strstr(inv_context_message(ctx), "no optimizer"));
}

/* Couplings of many rows and few weights. A root's slope is infinite where x is 0. */
static void wide(char *text, size_t most, int blocks)
{
    size_t n = 0;
#define ADD(...) n += (size_t)snprintf(text + n, most - n, __VA_ARGS__)
    ADD("g(float[2,16] x) => (y) {\nparam float[16,16] stem\nparam float[16,16] root\n");
    for (int i = 0; i < blocks; i++)
        ADD("param float[8,32] a%d\nparam float[32,8] b%d\nparam float[8,32] c%d\nparam float[32,8] d%d\n", i, i, i, i);
    ADD("q = MatMul(x, root)\np = Cos(q)\nr = Sub(float[] {1}, p)\nt = Sqrt(r)\n"
        "o = Tile(t, int64[2] {256, 1})\ns = MatMul(o, stem)\n"
        "u0, v0 = Split<axis = 1, num_outputs = 2>(s)\n");
    for (int i = 0; i < blocks; i++)
        ADD("f%d = MatMul(v%d, a%d)\ng%d = Tanh(f%d)\nj%d = MatMul(g%d, b%d)\nu%d = Add(u%d, j%d)\n"
            "h%d = MatMul(u%d, c%d)\nk%d = Tanh(h%d)\nl%d = MatMul(k%d, d%d)\nv%d = Add(v%d, l%d)\n",
            i, i, i, i, i, i, i, i, i + 1, i, i, i, i + 1, i, i, i, i, i, i, i + 1, i, i);
    ADD("w = Concat<axis = 1>(u%d, v%d)\nz = Mul(w, float[] {0.01})\ne = Reshape(z, int64[3] {256, 2, 16})\n"
        "y = ReduceMean<keepdims = 0>(e, int64[1] {0})\n}\n",
        blocks, blocks);
#undef ADD
    assert_true(n < most);
}

/* A mode of a single value: what such ask for may cost more than 4/3 of a plain step, which guards of so small a
 * network do. */
static const inv_mode_rule stored[] = {{"q", INV_MEMORY_STORE}};

/* Mode auto: where values are many and gradients few, it inverts and waits for the guards rather than have them check
 * ahead; where weights are, it updates early. */
static void auto_has_either(void **state)
{
    (void)state;
    char text[8192];
    inv_session_options o = {
        .device = "cpu", .optimizer = INV_OPT_SGD, .early_update = true, .modes = stored, .nmodes = 1};
    wide(text, sizeof text, 5);
    const trained inverted = train(text, o, 3, 0.5f);
    if (inverted.status != INV_OK) fail_msg("%s", inv_context_message(ctx));
    assert_true(inverted.guarded > 0 && !inverted.early);
    assert_true(inverted.bound <= inverted.overhead + 1e-12);
    o.guard = INV_GUARD_OFF;
    const trained both = train(text, o, 1, 0.5f);
    assert_true(both.guarded == 0 && both.early && both.peak <= inverted.peak);
    o.guard = INV_GUARD_ON;
    o.nmodes = 0;
    const trained early = train(deep, o, 3, 0.5f);
    o.nmodes = 1;
    assert_true(early.guarded == 0 && early.early);
    o.early_update = false;
    const trained late = train(text, o, 3, 0.5f);
    if (late.status != INV_OK) fail_msg("%s", inv_context_message(ctx));
    assert_memory_equal(inverted.weight, late.weight, late.n * sizeof *late.weight);
    assert_memory_not_equal(late.was, late.weight, late.n * sizeof *late.weight);
    assert_true(inverted.peak <= late.peak + late.peak / 50);
}

/* A step that a guard has refused is run again with the weights that it began with; one whose gradients are not finite
 * changes none. */
static void guards_come_first(void **state)
{
    (void)state;
    static const char *const devices[] = {"cpu", "checked", "sim"};
    char text[8192];
    wide(text, sizeof text, 5);
    for (int d = 0; d < 3; d++) {
        inv_session_options o = {
            .device = devices[d], .optimizer = INV_OPT_SGD, .early_update = true, .modes = stored, .nmodes = 1};
        refused_from = 1e-9;
        const trained t = train(text, o, 2, 0.5f);
        refused_from = 0;
        if (t.status != INV_OK) fail_msg("%s", inv_context_message(ctx));
        assert_true(t.fallbacks > 0);
        inv_session_options plain = o;
        plain.memory = INV_MEMORY_STORE;
        plain.early_update = false;
        const trained store = train(text, plain, 2, 0.5f);
        double off = 0, moved = 0;
        for (size_t i = 0; i < t.n; i++) {
            off = fmax(off, fabs(t.weight[i] - store.weight[i]));
            moved = fmax(moved, fabs(store.weight[i] - store.was[i]));
        }
        assert_true(moved > 0 && off <= 1e-3 * moved);
        const trained bad = train(text, o, 2, 0);
        assert_int_equal(bad.status, INV_E_NUMERIC);
        assert_non_null(strstr(inv_context_message(ctx), "the loss is finite, but its gradients are not"));
        assert_true(bad.guarded > 0);
        assert_memory_equal(bad.was, bad.weight, bad.n * sizeof *bad.weight);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(steps_are_the_same),
        cmocka_unit_test(gradients_in_another_shape_move_too),
        cmocka_unit_test(budgets_know_of_them),
        cmocka_unit_test(a_loss_that_is_not_finite_changes_nothing),
        cmocka_unit_test(a_gradient_that_is_not_finite_stops_updates),
        cmocka_unit_test(they_want_an_optimizer),
        cmocka_unit_test(auto_has_either),
        cmocka_unit_test(guards_come_first),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
