/* SPDX-License-Identifier: Apache-2.0
 * Predicted times: every operator has a kind of work and a finite time, more of the same takes longer, sessions predict
 * by the table they are given; measured rates, and the file they are kept in. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "core/graph/model.h"
#include "core/program/cost.h"
#include "counting.h"
#include "executor/executor.h"
#include "executor/rates/costs.h"
#include "passes/front/front.h"
#include "passes/schedule/schedule.h"
#include "with_context.h"

#define assert_near(a, b, off) assert_true(fabs((a) - (b)) <= (off))

/* Different numbers in every place. */
static inv_cost_table sample(inv_dtype real)
{
    inv_cost_table t = {.real = real, .bandwidth = 3e10, .cache = 1 << 20};
    for (int w = 0; w < INV_WORKS; w++) {
        t.rate[w] = 1e9 * (w + 1);
        t.fixed[w] = 1e-7 * (w + 1);
    }
    t.rate[INV_WORK_STREAM] = 5e10;
    return t;
}

/* --- times --- */

/* Every node that the cases of all rows become, in both types, forward and lowered. */
static void test_every_case(void **state)
{
    (void)state;
    const inv_cost_table t = sample(INV_F32);
    size_t seen[INV_WORKS] = {0}, nodes = 0;
    for (size_t i = 0; i < inv_registry_nops(ctx->registry); i++) {
        const inv_op_def *d = inv_registry_op_at(ctx->registry, i);
        for (size_t k = 0; d->cases && d->cases[k]; k++) {
            inv_graph *g;
            if (inv_case_parse(ctx, d->cases[k], d->until, INV_F32, &g) != INV_OK) fail_msg("%s", d->cases[k]);
            if (inv_graph_sort(g) != INV_OK || inv_pass_lower(g) != INV_OK) { /* refusals are cases, too */
                inv_graph_destroy(g);
                continue;
            }
            for (size_t j = 0; j < g->order.n; j++, nodes++) {
                const inv_node *n = inv_nod(g, g->order.at[j]);
                const inv_work w = inv_node_work(g, n);
                const double seconds = inv_node_seconds(&t, g, n);
                assert_in_range(w, 0, INV_WORKS - 1);
                seen[w]++;
                if (n->op->flags & INV_OP_VIEW) assert_true(seconds == 0);
                else if (!isfinite(seconds) || !(seconds > 0)) fail_msg("%s: %g", d->cases[k], seconds);
                assert_true(inv_node_cost(&t, g, n) == seconds);
                assert_true(inv_node_cost(NULL, g, n) == inv_node_flops(g, n));
            }
            inv_graph_destroy(g);
        }
    }
    assert_true(nodes > 500);
    for (int w = 0; w < INV_WORKS; w++)
        if (!seen[w]) fail_msg("no case is of the kind %s", inv_work_name((inv_work)w));
}

/* Seconds of the only node of a case. */
static double seconds_of(const inv_cost_table *t, const char *text, inv_work *w)
{
    inv_graph *g;
    assert_int_equal(inv_case_parse(ctx, text, 0, INV_F32, &g), INV_OK);
    assert_int_equal(inv_pass_lower(g), INV_OK);
    const inv_node *n = inv_nod(g, g->order.at[g->order.n - 1]);
    const double s = inv_node_seconds(t, g, n);
    *w = inv_node_work(g, n);
    inv_graph_destroy(g);
    return s;
}

static void test_larger_takes_longer(void **state)
{
    (void)state;
    static const struct {
        const char *small, *large;
        inv_work work;
    } rows[] = {
        {"y = Add(float[8,64] a, float[8,64] b)", "y = Add(float[16,64] a, float[16,64] b)", INV_WORK_STREAM},
        {"y = Tanh(float[64] x)", "y = Tanh(float[640] x)", INV_WORK_MATH},
        {"y = MatMulT(float[8,16] a, float[16,8] b)", "y = MatMulT(float[8,64] a, float[64,8] b)", INV_WORK_MATRIX},
        {"y = ConvN(float[1,8,9,9] x, float[8,8,3,3] w)", "y = ConvN(float[2,8,9,9] x, float[8,8,3,3] w)",
         INV_WORK_CONV},
        {"y = ConvN(float[1,8,9,9] x, float[8,8,1,1] w)", "y = ConvN(float[2,8,9,9] x, float[8,8,1,1] w)",
         INV_WORK_CONV_POINT},
        {"y = ConvN<group = 8>(float[1,8,9,9] x, float[8,1,3,3] w)",
         "y = ConvN<group = 8>(float[2,8,9,9] x, float[8,1,3,3] w)", INV_WORK_CONV_DEPTH},
        {"y = ReduceSumAxes<axes = [0], keepdims = 0>(float[8,64] x)",
         "y = ReduceSumAxes<axes = [0], keepdims = 0>(float[80,64] x)", INV_WORK_SUM},
        {"y = ai.invonnx.ir.Transpose<perm = [1,0]>(float[4,8] x)",
         "y = ai.invonnx.ir.Transpose<perm = [1,0]>(float[8,8] x)", INV_WORK_MOVE},
    };
    const inv_cost_table t = sample(INV_F32);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        inv_work a, b;
        const double small = seconds_of(&t, rows[i].small, &a), large = seconds_of(&t, rows[i].large, &b);
        if (a != rows[i].work || b != a) fail_msg("%s: %s", rows[i].small, inv_work_name(a));
        if (!(large > small)) fail_msg("%s: %g, %s: %g", rows[i].small, small, rows[i].large, large);
    }
}

/* fixed + max(amount / rate, bytes / bandwidth), by hand. */
static void test_the_form(void **state)
{
    (void)state;
    inv_cost_table t = sample(INV_F32);
    inv_work w;
    double s = seconds_of(&t, "y = MatMulT(float[32,64] a, float[64,16] b)", &w);
    assert_near(s, t.fixed[w] + 2.0 * 32 * 64 * 16 / t.rate[w], 1e-12);
    t.rate[INV_WORK_MATRIX] = 1e15; /* now the bytes decide, and beyond the cache those of memory */
    const double bytes = 4.0 * (32 * 64 + 64 * 16 + 32 * 16);
    s = seconds_of(&t, "y = MatMulT(float[32,64] a, float[64,16] b)", &w);
    assert_near(s, t.fixed[w] + bytes / t.rate[INV_WORK_STREAM], 1e-12);
    t.cache = 1000;
    s = seconds_of(&t, "y = MatMulT(float[32,64] a, float[64,16] b)", &w);
    assert_near(s, t.fixed[w] + 1000 / t.rate[INV_WORK_STREAM] + (bytes - 1000) / t.bandwidth, 1e-12);
    /* of a table from which rows are picked, what is picked */
    const double few = seconds_of(&t, "y = Gather(float[100000,8] x, int64[4] i)", &w);
    assert_int_equal(w, INV_WORK_MOVE);
    assert_true(few < t.fixed[w] + 1e-6);
}

/* --- sessions --- */

static void test_session_predicts(void **state)
{
    (void)state;
    inv_graph *g;
    assert_int_equal(inv_case_parse(ctx, "a = Tanh(float[8,64] x)\ny = Tanh(a)\nl = ReduceSumSquare<keepdims = 0>(y)",
                                    0, INV_F32, &g),
                     INV_OK);
    inv_model model = {.ctx = ctx, .path = "case", .graph = g};
    const int64_t dims[] = {8, 64};
    const inv_array x = {.name = "x", .dtype = INV_F32, .rank = 2, .dims = dims};
    inv_cost_table t = sample(INV_F32), of_64 = sample(INV_F64);
    inv_session_options o = {.size = sizeof o,
                             .purpose = INV_FOR_TRAIN,
                             .inputs = &x,
                             .ninputs = 1,
                             .loss = INV_LOSS_OUTPUT,
                             .input_grads = true,
                             .plan_only = true,
                             .costs = &of_64};
    inv_session *s;
    assert_int_equal(inv_session_create(&model, &o, &s), INV_E_ARG); /* rates of another type of arithmetic */
    o.costs = &t;
    assert_int_equal(inv_session_create(&model, &o, &s), INV_OK);
    const inv_plan *p = &s->program->plan[INV_PLAN_MAIN];
    const double plain = p->store_seconds;
    double sum = 0;
    for (size_t i = 0; i < p->g->order.n; i++) sum += p->seconds[i];
    assert_true(sum > 0 && plain > 0);
    assert_near(sum / plain, 1 + p->overhead, 1e-12);    /* one number for one thing */
    assert_ptr_not_equal(s->program->options.costs, &t); /* a copy */
    char *json;
    assert_int_equal(inv_session_report(s, &json), INV_OK);
    assert_non_null(strstr(json, "\"cost\": \"time\""));
    inv_free(ctx, json);
    inv_session_destroy(s);
    o.memory = INV_MEMORY_STORE; /* what is stored all the same */
    assert_int_equal(inv_session_create(&model, &o, &s), INV_OK);
    p = &s->program->plan[INV_PLAN_MAIN];
    sum = 0;
    for (size_t i = 0; i < p->g->order.n; i++) sum += p->seconds[i];
    assert_near(p->store_seconds, sum, 1e-15);
    assert_near(sum, plain, 0.2 * plain); /* nodes are joined alike, nearly */
    inv_session_destroy(s);
    inv_graph_destroy(g);
}

/* --- the file --- */

typedef struct folder {
    char path[64];
    const char *file;
    char key[INV_COST_KEY];
    inv_arena arena;
} folder;

static void open_folder(folder *f)
{
    strcpy(f->path, "invonnx-cost-XXXXXX");
    assert_non_null(mkdtemp(f->path));
    inv_arena_init(&f->arena, ctx);
    strcpy(f->key, "a \"processor\"; 3 threads");
    char deep[96];
    (void)snprintf(deep, sizeof deep, "%s/x/y", f->path); /* made when it is needed */
    f->file = inv_costs_path(&f->arena, deep, f->key);
    assert_non_null(f->file);
}

static void close_folder(folder *f)
{
    char command[128];
    (void)snprintf(command, sizeof command, "rm -rf '%s'", f->path);
    assert_int_equal(system(command), 0);
    inv_arena_fini(&f->arena);
}

static void test_round_trip(void **state)
{
    (void)state;
    folder f;
    open_folder(&f);
    const inv_cost_table t = sample(INV_F64);
    inv_cost_table back;
    assert_false(inv_costs_read(&f.arena, f.file, f.key, &back));
    inv_costs_write(&f.arena, f.file, f.key, &t);
    assert_true(inv_costs_read(&f.arena, f.file, f.key, &back));
    assert_int_equal(back.real, t.real);
    assert_true(back.bandwidth == t.bandwidth && back.cache == t.cache);
    for (int w = 0; w < INV_WORKS; w++) assert_true(back.rate[w] == t.rate[w] && back.fixed[w] == t.fixed[w]);
    assert_false(inv_costs_read(&f.arena, f.file, "another processor; 3 threads", &back));
    char other[INV_COST_KEY];
    inv_costs_key(1, INV_F32, f.key);
    inv_costs_key(2, INV_F32, other);
    assert_true(!f.key[0] || strcmp(f.key, other) != 0);
    close_folder(&f);
}

/* The file cut off anywhere, or with a number that cannot be a rate, is none. */
static void test_damaged(void **state)
{
    (void)state;
    folder f;
    open_folder(&f);
    const inv_cost_table t = sample(INV_F32);
    inv_cost_table back;
    char text[8192];
    inv_costs_write(&f.arena, f.file, f.key, &t);
    FILE *in = fopen(f.file, "r");
    assert_non_null(in);
    const size_t n = fread(text, 1, sizeof text - 1, in);
    (void)fclose(in);
    assert_true(n > 100 && n < sizeof text - 1);
    text[n] = 0;
    for (size_t cut = 0; cut < n; cut += 7) {
        assert_int_equal(truncate(f.file, (off_t)cut), 0);
        assert_false(inv_costs_read(&f.arena, f.file, f.key, &back));
        FILE *out = fopen(f.file, "w");
        assert_true(out && fwrite(text, 1, n, out) == n && fclose(out) == 0);
    }
    assert_true(inv_costs_read(&f.arena, f.file, f.key, &back));
    inv_cost_table bad = t;
    bad.rate[INV_WORK_CONV] = 0;
    inv_costs_write(&f.arena, f.file, f.key, &bad);
    assert_false(inv_costs_read(&f.arena, f.file, f.key, &back));
    assert_int_equal(unlink(f.file), 0);
    assert_int_equal(mkfifo(f.file, 0600), 0); /* nobody writes into it: not to be waited for */
    assert_false(inv_costs_read(&f.arena, f.file, f.key, &back));
    close_folder(&f);
}

static void test_unwritable(void **state)
{
    (void)state;
    folder f;
    open_folder(&f);
    const inv_cost_table t = sample(INV_F32);
    inv_cost_table back;
    char blocked[96];
    (void)snprintf(blocked, sizeof blocked, "%s/x", f.path); /* a file where a folder would have to be, for root too */
    FILE *out = fopen(blocked, "w");
    assert_true(out && fclose(out) == 0);
    inv_costs_write(&f.arena, f.file, f.key, &t);
    assert_false(inv_costs_read(&f.arena, f.file, f.key, &back));
    assert_null(inv_costs_path(&f.arena, "", f.key));
    assert_null(inv_costs_path(&f.arena, f.path, "")); /* a processor that is not known */
    close_folder(&f);
}

static void test_default_folder(void **state)
{
    (void)state;
    inv_arena a;
    inv_arena_init(&a, ctx);
    const char *home = getenv("HOME"), *xdg = getenv("XDG_CACHE_HOME");
    char *old_home = home ? strdup(home) : NULL, *old_xdg = xdg ? strdup(xdg) : NULL;
    (void)unsetenv("HOME");
    (void)unsetenv("XDG_CACHE_HOME");
    assert_null(inv_costs_path(&a, NULL, "k"));
    (void)setenv("HOME", "/h", 1);
    assert_memory_equal(inv_costs_path(&a, NULL, "k"), "/h/.cache/invonnx/costs-", 24);
    (void)setenv("XDG_CACHE_HOME", "/c", 1);
    assert_memory_equal(inv_costs_path(&a, NULL, "k"), "/c/invonnx/costs-", 17);
    (void)setenv("XDG_CACHE_HOME", "c", 1); /* relative: as if it were not set */
    assert_memory_equal(inv_costs_path(&a, NULL, "k"), "/h/.cache/invonnx/costs-", 24);
    if (old_home) (void)setenv("HOME", old_home, 1);
    else (void)unsetenv("HOME");
    if (old_xdg) (void)setenv("XDG_CACHE_HOME", old_xdg, 1);
    else (void)unsetenv("XDG_CACHE_HOME");
    free(old_home);
    free(old_xdg);
    inv_arena_fini(&a);
}

/* --- measuring --- */

/* Measured once; then what the file says, which was changed meanwhile; then measured again. */
static void test_calibrate(void **state)
{
    (void)state;
    folder f;
    open_folder(&f);
    inv_cost_table *t, planted;
    inv_calibrate_options o = {.size = sizeof o, .threads = -4, .cache = f.path};
    assert_int_equal(inv_calibrate(ctx, &o, &t), INV_E_ARG);
    o.threads = 5000;
    assert_int_equal(inv_calibrate(ctx, &o, &t), INV_E_ARG);
    o.threads = 1;
    assert_int_equal(inv_calibrate(ctx, &o, &t), INV_OK);
    assert_true(inv_cost_table_sound(t));
    assert_true(t->rate[INV_WORK_MATRIX] > t->rate[INV_WORK_SCALAR] / 100);
    planted = *t;
    inv_free(ctx, t);
    char key[INV_COST_KEY];
    inv_costs_key(1, INV_F32, key);
    const char *file = inv_costs_path(&f.arena, f.path, key);
    if (file) {
        planted.bandwidth = 12345;
        inv_costs_write(&f.arena, file, key, &planted);
        assert_int_equal(inv_calibrate(ctx, &o, &t), INV_OK);
        assert_true(t->bandwidth == 12345);
        inv_free(ctx, t);
        o.kept = true;
        assert_int_equal(inv_calibrate(ctx, &o, &t), INV_OK);
        assert_true(t->bandwidth == 12345);
        inv_free(ctx, t);
        o.kept = false;
        o.again = true;
        assert_int_equal(inv_calibrate(ctx, &o, &t), INV_OK);
        assert_true(t->bandwidth > 1e6);
        inv_free(ctx, t);
    }
    o = (inv_calibrate_options){.size = sizeof o, .cache = "", .kept = true}; /* nothing is there, nothing measured */
    assert_int_equal(inv_calibrate(ctx, &o, &t), INV_OK);
    assert_null(t);
    o.size = sizeof o + 1;
    assert_int_equal(inv_calibrate(ctx, &o, &t), INV_E_ABI);
    assert_null(t);
    close_folder(&f);
}

/* Rates of a GPU are there without one, are kept nowhere, and say that small nodes are all alike and large ones are
 * not, and that what goes to host memory and comes back takes longer than computing it element by element. */
static void test_rates_of_a_gpu(void **state)
{
    (void)state;
    folder f;
    open_folder(&f);
    static const char *const wrong[] = {"sim", "checked", "cudas", "gpu"};
    inv_cost_table *t, *wide;
    inv_calibrate_options o = {.size = sizeof o, .cache = f.path, .device = "cuda:1"};
    assert_int_equal(inv_calibrate(ctx, &o, &t), INV_OK);
    o.float64 = true;
    assert_int_equal(inv_calibrate(ctx, &o, &wide), INV_OK);
    assert_true(inv_cost_table_sound(t) && inv_cost_table_sound(wide));
    assert_true(t->real == INV_F32 && wide->real == INV_F64);
    assert_true(wide->rate[INV_WORK_MATRIX] < t->rate[INV_WORK_MATRIX]);
    assert_int_equal(rmdir(f.path), 0); /* nothing is in it */
    assert_int_equal(mkdir(f.path, 0700), 0);
    inv_work w;
    const double small = seconds_of(t, "y = Relu(float[4,16] x)", &w),
                 other = seconds_of(t, "y = Exp(float[2,8] x)", &w);
    const double large = seconds_of(t, "y = Relu(float[4096,4096] x)", &w);
    assert_true(small < 1.01 * other && other < 1.01 * small && large > 10 * small);
    assert_true(inv_copy_seconds(t, 4.0 * 4096 * 4096) > 10 * large);
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        inv_cost_table *none;
        o.device = wrong[i];
        assert_int_equal(inv_calibrate(ctx, &o, &none), INV_E_ARG);
        assert_non_null(strstr(inv_context_message(ctx), wrong[i]));
        assert_null(none);
    }
    inv_free(ctx, t);
    inv_free(ctx, wide);
    close_folder(&f);
}

typedef struct told {
    size_t calls;
    double last;
    bool back, other; /* whether a share was less than the one before; whether anything else was told of */
} told;

static void on_progress(void *opaque, const char *stage, double share)
{
    told *t = opaque;
    t->calls++;
    t->back = t->back || share < t->last;
    t->other = t->other || strcmp(stage, "measuring what operators take") != 0;
    t->last = share;
}

/* One piece of work to those who wait for it, though plans are searched for in it. */
static void test_progress(void **state)
{
    (void)state;
    told t = {0};
    const inv_context_options options = {.size = sizeof options, .progress = on_progress, .progress_opaque = &t};
    const inv_calibrate_options o = {.size = sizeof o, .threads = 2, .cache = ""};
    inv_context *own;
    inv_cost_table *table;
    assert_int_equal(inv_context_create(&options, &own), INV_OK);
    assert_int_equal(inv_calibrate(own, &o, &table), INV_OK);
    assert_true(t.calls > 20 && t.last > 0.8);
    assert_false(t.back || t.other);
    inv_free(own, table);
    inv_context_destroy(own);
}

/* Allocations that fail on the way; each attempt measures what comes before, so not every one is tried. */
static void test_out_of_memory(void **state)
{
    (void)state;
    failing_memory c = {0};
    const inv_allocator allocator = {counted_alloc, counted_free, &c};
    const inv_context_options options = {.size = sizeof options, .allocator = &allocator};
    const inv_calibrate_options o = {.size = sizeof o, .threads = 1, .cache = ""};
    inv_context *own;
    inv_cost_table *t;
    assert_int_equal(inv_context_create(&options, &own), INV_OK);
    const size_t before = c.live;
    for (size_t n = 1; n < 4000; n += 1 + n / 2) {
        c.made = 0;
        c.fail_at = n;
        const inv_status s = inv_calibrate(own, &o, &t);
        if (s == INV_OK) { /* it takes fewer */
            inv_free(own, t);
            break;
        }
        if (s != INV_E_NOMEM) fail_msg("allocation %zu: %s", n, inv_context_message(own));
        assert_null(t);
        assert_int_equal(c.live, before);
    }
    inv_context_destroy(own);
    assert_int_equal(c.live, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_case),     cmocka_unit_test(test_larger_takes_longer),
        cmocka_unit_test(test_the_form),       cmocka_unit_test(test_session_predicts),
        cmocka_unit_test(test_round_trip),     cmocka_unit_test(test_damaged),
        cmocka_unit_test(test_unwritable),     cmocka_unit_test(test_default_folder),
        cmocka_unit_test(test_rates_of_a_gpu), cmocka_unit_test(test_calibrate),
        cmocka_unit_test(test_out_of_memory),  cmocka_unit_test(test_progress),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
