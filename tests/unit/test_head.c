/* SPDX-License-Identifier: Apache-2.0
 * The last product and the loss in parts (passes/autodiff/head_parts.c): loss and gradients are those of the whole, for
 * every kind of target and weight; modes and devices give equal bits; logits are never there as a whole. Fails if a
 * part is left out or counted twice, if the mean is not that of all rows, or if what somebody else reads is split. */
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
#include "graph_text.h"

enum { BATCH = 2, LENGTH = 150, WORDS = 4000, WIDTH = 6, MOST = 3 * WORDS * WIDTH };

/* An embedding that is the last product's matrix, too, turned. */
static const char tied[] =
    "g(int64[2,150] x) => (y) {\n"
    "param float[4000,6] table\nparam float[6,6] w\nparam float[4000] b\n"
    "e = Gather(table, x)\na = MatMul(e, w)\nh = Tanh(a)\nt = Transpose<perm = [1,0]>(table)\np = MatMul(h, t)\n"
    "y = Add(p, b)\n}\n";
/* One that is not, with an adapter, and a cap on logits. */
static const char capped[] =
    "g(int64[2,150] x) => (y) {\n"
    "param float[4000,6] table\nparam float[6,6] w\nparam float[6,4000] last\n"
    "param float[6,2] A\nparam float[2,4000] B\n"
    "e = Gather(table, x)\na = MatMul(e, w)\nh = Tanh(a)\np = MatMul(h, last)\nr = MatMul(h, A)\nq = MatMul(r, B)\n"
    "s = Add(p, q)\nc = Tanh(s)\nd = Constant<value_float = 5.0>()\ny = Mul(c, d)\n}\n";
/* Its logits are read by another output's way, so they stay. */
static const char read_twice[] =
    "g(int64[2,150] x) => (z, y) {\n"
    "param float[4000,6] table\nparam float[6,6] w\nparam float[6,4000] last\n"
    "e = Gather(table, x)\na = MatMul(e, w)\nh = Tanh(a)\ny = MatMul(h, last)\nz = Softmax(y)\n}\n";

static int64_t ids[BATCH * LENGTH], labels[BATCH * LENGTH];
static float soft[BATCH * LENGTH * WORDS];
static double class_weights[WORDS];

typedef struct run {
    inv_model model;
    inv_session *s;
    inv_array x, y;
    inv_result result;
} run;

static const int64_t rows[2] = {BATCH, LENGTH}, distributions[3] = {BATCH, LENGTH, WORDS};

static void need(inv_status s)
{
    if (s != INV_OK) fail_msg("%s", inv_context_message(ctx));
}

static void begin(run *r, const char *text, inv_session_options o, bool is_soft)
{
    static const char *const out[] = {"y"};
    for (int i = 0; i < BATCH * LENGTH; i++) {
        ids[i] = i * 37 % WORDS;
        labels[i] = i * 101 % 7 ? i * 53 % WORDS : 7;
    }
    for (int k = 0; k < WORDS; k++) class_weights[k] = 0.5 + k % 5;
    for (size_t i = 0; is_soft && i < sizeof soft / sizeof *soft; i++)
        soft[i] = i % WORDS == i / WORDS * 13 % WORDS ? 0.75f : i % WORDS == (i / WORDS * 13 + 1) % WORDS ? 0.25f : 0;
    *r = (run){.model = {.ctx = ctx, .path = "text", .graph = parse(text)}};
    r->x = (inv_array){.name = "x", .dtype = INV_I64, .rank = 2, .dims = rows, .data = ids};
    r->y = (inv_array){.name = "target", .dtype = INV_I64, .rank = 2, .dims = rows, .data = labels};
    if (is_soft) r->y = (inv_array){.name = "target", .dtype = INV_F32, .rank = 3, .dims = distributions, .data = soft};
    o.size = sizeof o;
    o.purpose = INV_FOR_TRAIN;
    o.inputs = &r->x;
    o.ninputs = 1;
    o.target = &r->y;
    o.loss = INV_LOSS_CROSS_ENTROPY;
    o.class_axis = 2;
    o.loss_outputs = out;
    o.nloss_outputs = 1;
    need(inv_session_create(&r->model, &o, &r->s));
}

static void end(run *r)
{
    inv_session_destroy(r->s);
    inv_graph_destroy(r->model.graph);
}

static size_t count(const run *r, const char *op)
{
    const inv_graph *g = r->s->program->plan[INV_PLAN_MAIN].g;
    size_t n = 0;
    for (size_t i = 0; i < g->order.n; i++) n += inv_op_is(inv_nod(g, g->order.at[i]), op);
    return n;
}

static size_t get(run *r, inv_what what, const char *name, double *to)
{
    const void *data;
    inv_dtype dt;
    int rank;
    int64_t dims[8], n = 1;
    need(inv_session_get(r->s, what, name, &data, &dt, &rank, dims));
    for (int d = 0; d < rank; d++) n *= dims[d];
    assert_true(n <= MOST);
    assert_true(inv_convert(to, INV_F64, data, dt, (size_t)n));
    return (size_t)n;
}

static void compare(run *a, run *b, const char *what, double most)
{
    static double x[MOST], y[MOST];
    for (const inv_graph *g = a->model.graph; g; g = NULL)
        for (size_t i = 0; i < g->inits.n; i++) {
            const char *name = inv_val(g, g->inits.at[i])->name;
            const size_t n = get(a, INV_GET_GRAD, name, x);
            assert_int_equal(get(b, INV_GET_GRAD, name, y), n);
            double sum = 0, off = 0;
            for (size_t k = 0; k < n; k++) {
                sum += y[k] * y[k];
                off += (x[k] - y[k]) * (x[k] - y[k]);
            }
            if (!(sum > 0 && off <= most * most * sum))
                fail_msg("%s, %s: off by %g of %g", what, name, sqrt(off), sqrt(sum));
        }
}

typedef struct kind {
    const char *name, *text;
    bool ignores, weighted, is_soft;
    double smooth;
} kind;

static inv_session_options options_of(const kind *k)
{
    inv_session_options o = {.memory = INV_MEMORY_STORE, .label_smoothing = k->smooth};
    o.ignores = k->ignores;
    o.ignore_index = 7;
    o.class_weights = k->weighted ? class_weights : NULL;
    o.nclass_weights = k->weighted ? WORDS : 0;
    return o;
}

static const kind kinds[] = {{.name = "labels", .text = tied},
                             {.name = "ignored", .text = tied, .ignores = true},
                             {.name = "weighted", .text = tied, .weighted = true},
                             {.name = "all", .text = tied, .ignores = true, .weighted = true, .smooth = 0.1},
                             {.name = "smooth", .text = capped, .smooth = 0.2},
                             {.name = "soft", .text = capped, .is_soft = true}};
enum { KINDS = sizeof kinds / sizeof *kinds };

/* Sessions that are asked for gradients compute logits as a whole: they are an output. */
static void parts_give_what_the_whole_gives(void **state)
{
    (void)state;
    for (int i = 0; i < KINDS; i++) {
        inv_session_options o = options_of(&kinds[i]);
        run part, whole;
        o.float64 = true;
        begin(&whole, kinds[i].text, o, kinds[i].is_soft);
        o.optimizer = INV_OPT_SGD;
        o.accumulate = true;
        begin(&part, kinds[i].text, o, kinds[i].is_soft);
        assert_int_equal(count(&whole, "CrossEntropyGrad"), 1);
        assert_int_equal(count(&part, "CrossEntropyGrad"), 2);
        need(inv_session_grad(whole.s, &whole.x, 1, &whole.y, &whole.result));
        need(inv_session_accumulate(part.s, &part.x, 1, &part.y, &part.result));
        if (!(fabs(part.result.loss - whole.result.loss) <= 1e-12 * whole.result.loss))
            fail_msg("%s: %.17g and %.17g", kinds[i].name, part.result.loss, whole.result.loss);
        if (!(fabs(part.result.weight - whole.result.weight) <= 1e-9))
            fail_msg("%s: counts %g and %g", kinds[i].name, part.result.weight, whole.result.weight);
        compare(&part, &whole, kinds[i].name, 1e-11);
        end(&part);
        end(&whole);
    }
}

/* Three steps; the loss of the last one. */
static double steps(const kind *k, inv_session_options o, double *table)
{
    run r;
    begin(&r, k->text, o, k->is_soft);
    for (int i = 0; i < 3; i++) need(inv_session_step(r.s, &r.x, 1, &r.y, 1e-3, &r.result));
    (void)get(&r, INV_GET_PARAM, "table", table);
    end(&r);
    return r.result.loss;
}

static void modes_give_equal_bits(void **state)
{
    static double first[MOST], other[MOST];
    (void)state;
    for (int i = 0; i < KINDS; i++) {
        inv_session_options o = options_of(&kinds[i]);
        o.optimizer = INV_OPT_ADAMW;
        o.beta1 = 0.9;
        o.beta2 = 0.999;
        o.epsilon = 1e-8;
        const double loss = steps(&kinds[i], o, first);
        for (int m = 0; m < 3; m++) {
            o.memory = m == 1 ? INV_MEMORY_RECOMPUTE : m == 2 ? INV_MEMORY_AUTO : INV_MEMORY_STORE;
            o.early_update = m != 1;
            o.device = m == 0 ? "checked" : "cpu";
            assert_true(steps(&kinds[i], o, other) == loss);
            assert_memory_equal(first, other, sizeof first);
        }
    }
}

static void devices_have_it_too(void **state)
{
    static double host[MOST], device[MOST];
    (void)state;
    for (int i = 3; i < 5; i++) { /* every operand of the loss; every operator of the head */
        inv_session_options o = options_of(&kinds[i]);
        o.optimizer = INV_OPT_SGD;
        const double loss = steps(&kinds[i], o, host);
        o.device = "sim";
        assert_true(fabs(steps(&kinds[i], o, device) - loss) < 1e-4 * loss);
        for (int k = 0; k < WORDS * WIDTH; k++) assert_true(fabs(device[k] - host[k]) < 1e-5);
    }
}

static void small_weights_are_split_too(void **state)
{
    (void)state;
    static double exact[MOST], small[MOST];
    inv_session_options o = options_of(&kinds[1]);
    run a, b;
    o.optimizer = INV_OPT_SGD;
    o.accumulate = true;
    o.weights = INV_BF16;
    begin(&a, tied, o, false);
    o.weights = INV_DT_NONE;
    begin(&b, tied, o, false);
    assert_int_equal(count(&a, "CrossEntropyGrad"), 2);
    for (int k = 0; k < 2; k++) {
        static float numbers[MOST];
        const char *name = k ? "w" : "table";
        const size_t n = get(&a, INV_GET_PARAM, name, small);
        for (size_t i = 0; i < n; i++) numbers[i] = (float)small[i];
        need(inv_session_set(b.s, INV_GET_PARAM, name, INV_F32, numbers, n));
    }
    need(inv_session_accumulate(a.s, &a.x, 1, &a.y, &a.result));
    need(inv_session_accumulate(b.s, &b.x, 1, &b.y, &b.result));
    const size_t n = get(&a, INV_GET_GRAD, "table", small);
    assert_int_equal(get(&b, INV_GET_GRAD, "table", exact), n);
    for (size_t i = 0; i < n; i++) assert_true(fabs(small[i] - exact[i]) < 1e-6);
    end(&a);
    end(&b);
}

static void one_part_of_the_logits_is_there(void **state)
{
    (void)state;
    const size_t logits = BATCH * LENGTH * WORDS * sizeof(float);
    inv_session_options o = options_of(&kinds[0]);
    run part, whole;
    o.optimizer = INV_OPT_SGD;
    o.early_update = true;
    begin(&part, tied, o, false);
    begin(&whole, read_twice, o, false);
    assert_int_equal(count(&whole, "CrossEntropyGrad"), 1);
    assert_true(whole.s->program->plan[INV_PLAN_MAIN].transient > logits);
    assert_true(part.s->program->plan[INV_PLAN_MAIN].transient < logits * 3 / 4);
    end(&part);
    end(&whole);
}

/* The logits are none of what such a session can be asked for; what was asked to be kept is. */
static void what_is_kept_is_whole(void **state)
{
    (void)state;
    static const char *const keep[] = {"y"};
    inv_session_options o = options_of(&kinds[0]);
    run r;
    o.optimizer = INV_OPT_SGD;
    begin(&r, tied, o, false);
    assert_null(inv_session_name(r.s, INV_GET_OUTPUT, 0));
    end(&r);
    o.keep = keep;
    o.nkeep = 1;
    begin(&r, tied, o, false);
    assert_int_equal(count(&r, "CrossEntropyGrad"), 1);
    end(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(parts_give_what_the_whole_gives),
                                       cmocka_unit_test(modes_give_equal_bits),
                                       cmocka_unit_test(devices_have_it_too),
                                       cmocka_unit_test(small_weights_are_split_too),
                                       cmocka_unit_test(one_part_of_the_logits_is_there),
                                       cmocka_unit_test(what_is_kept_is_whole)};
    return cmocka_run_group_tests(tests, setup, teardown);
}
