/* SPDX-License-Identifier: Apache-2.0
 * Plans that get better while steps are made: what steps take corrects wrong rates, and that changes the plan; a bad
 * plan is replaced by the thread that searches, and the weights come out
 * as without that; the search ends when the session does, and runs out of memory without harm. */
#include <math.h>
#include <omp.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "core/graph/model.h"
#include "core/program/cost.h"
#include "counting.h"
#include "executor/executor.h"
#include "executor/run/node_times.h"
#include "executor/session/improve.h"
#include "graph_text.h"
#include "passes/front/front.h"

#define assert_near(a, b, off) assert_true(fabs((a) - (b)) <= (off))

enum { BLOCKS = 12, TEXT = 4096, ROWS = 64, WIDTH = 32 };

/* Products and activations by turns: which of them is computed again hangs on what each takes. */
static inv_graph *model_of(void)
{
    char s[TEXT];
    size_t n = 0;
#define ADD(...) n += (size_t)snprintf(s + n, sizeof s - n, __VA_ARGS__)
    ADD("g(float[%d,%d] x) => (y) {\n", ROWS, WIDTH);
    for (int i = 0; i < BLOCKS; i++) ADD("param float[%d,%d] a%d\n", WIDTH, WIDTH, i);
    ADD("w0 = Tanh(x)\n");
    for (int i = 0; i < BLOCKS; i++)
        ADD("p%d = MatMul(w%d, a%d)\nq%d = Gelu(p%d)\nr%d = Add(w%d, q%d)\nw%d = Tanh(r%d)\n", i, i, i, i, i, i, i, i,
            i + 1, i);
    ADD("y = Mul(w%d, w%d)\n}\n", BLOCKS, BLOCKS);
#undef ADD
    assert_true(n < sizeof s);
    return parse(s);
}

static inv_cost_table rates(void)
{
    inv_cost_table t = {.real = INV_F32, .bandwidth = 2e10, .cache = 1 << 20};
    for (int w = 0; w < INV_WORKS; w++) {
        t.rate[w] = 3e9;
        t.fixed[w] = 1e-7;
    }
    t.rate[INV_WORK_STREAM] = 2e11;
    t.rate[INV_WORK_MATRIX] = 6.5e10; /* a product takes longer than two activations, but not three times as long */
    return t;
}

typedef struct run {
    inv_model model;
    inv_session *session;
    float x[ROWS * WIDTH], target[ROWS * WIDTH];
} run;

typedef struct setting {
    inv_memory memory;
    const inv_cost_table *costs;
    const char *plan;
    bool improve;
    int threads;
    size_t budget;
    int64_t effort;
    uint64_t frozen; /* steps in which a0 is */
} setting;

static const int64_t dims[2] = {ROWS, WIDTH};

static void step(run *r)
{
    const inv_array x = {.name = "x", .dtype = INV_F32, .rank = 2, .dims = dims, .data = r->x},
                    target = {.name = "target", .dtype = INV_F32, .rank = 2, .dims = dims, .data = r->target};
    inv_result result;
    if (inv_session_step(r->session, &x, 1, &target, 1e-3, &result) != INV_OK) fail_msg("%s", inv_context_message(ctx));
}

static run *begin(const setting *c)
{
    run *r = calloc(1, sizeof *r);
    assert_non_null(r);
    r->model = (inv_model){.ctx = ctx, .path = "text", .graph = model_of()};
    for (int i = 0; i < ROWS * WIDTH; i++) {
        r->x[i] = (float)(i * 37 % 101) / 101 - 0.5f;
        r->target[i] = (float)(i * 53 % 97) / 97 - 0.5f;
    }
    const inv_array x = {.name = "x", .dtype = INV_F32, .rank = 2, .dims = dims},
                    target = {.name = "target", .dtype = INV_F32, .rank = 2, .dims = dims};
    const char *y = "y";
    const inv_stage stage = {"a0", c->frozen};
    const inv_session_options o = {.size = sizeof o,
                                   .purpose = INV_FOR_TRAIN,
                                   .optimizer = INV_OPT_MOMENTUM,
                                   .momentum = 0.9,
                                   .inputs = &x,
                                   .ninputs = 1,
                                   .target = &target,
                                   .loss = INV_LOSS_MSE,
                                   .loss_outputs = &y,
                                   .nloss_outputs = 1,
                                   .memory = c->memory,
                                   .budget = c->budget,
                                   .effort = c->effort,
                                   .costs = c->costs,
                                   .plan = c->plan,
                                   .threads = c->threads,
                                   .improve = c->improve,
                                   .stages = &stage,
                                   .nstages = c->frozen > 0,
                                   .cost_cache = ""};
    if (inv_session_create(&r->model, &o, &r->session) != INV_OK) fail_msg("%s", inv_context_message(ctx));
    return r;
}

static void end(run *r)
{
    inv_session_destroy(r->session);
    inv_graph_destroy(r->model.graph);
    free(r);
}

/* Whatever the search finds is taken, and it goes on, until it has ended. */
static void steps_until_done(run *r, int n)
{
    for (int i = 0; i < n; i++) {
        step(r);
        inv_improve_await(r->session);
    }
}

/* All weights, one after the other; the caller frees them. */
static float *weights(run *r, size_t *n)
{
    float *all = calloc((size_t)BLOCKS * WIDTH * WIDTH, sizeof *all);
    assert_non_null(all);
    *n = 0;
    for (int i = 0; i < BLOCKS; i++) {
        char name[16];
        const void *data;
        inv_dtype dtype;
        int rank;
        int64_t shape[8];
        (void)snprintf(name, sizeof name, "a%d", i);
        assert_int_equal(inv_session_get(r->session, INV_GET_PARAM, name, &data, &dtype, &rank, shape), INV_OK);
        memcpy(all + *n, data, (size_t)WIDTH * WIDTH * sizeof *all);
        *n += (size_t)WIDTH * WIDTH;
    }
    return all;
}

/* --- corrections --- */

/* The times of the plan's nodes by a table, as if steps had taken them; all of a step takes `beside` times as long. */
static void pretend(inv_watch *w, const inv_plan *p, const inv_cost_table *t, double beside)
{
    inv_ready *node = calloc(p->g->order.n + 1, sizeof *node);
    assert_non_null(node);
    assert_int_equal(inv_watch_begin(w, ctx, p->g->order.n, false), INV_OK);
    w->clock = 0;
    inv_step_times took = {0};
    for (int slow = 0; !inv_watch_note(w, node, &took); slow = !slow) { /* every second step was disturbed */
        took = (inv_step_times){.under_way = slow ? 3 : 2, .moved = slow ? 2 : 1};
        for (size_t i = 0; i < p->g->order.n; i++) {
            node[i].last = inv_node_seconds(t, p->g, inv_nod(p->g, p->g->order.at[i])) * (slow ? 5 : 1);
            took.whole += node[i].last;
        }
        took.whole *= beside;
    }
    free(node);
}

/* Cost of a plan's nodes by another table. */
static double cost_by(const inv_plan *p, const inv_cost_table *t)
{
    double sum = 0;
    for (size_t i = 0; i < p->g->order.n; i++) sum += inv_node_seconds(t, p->g, inv_nod(p->g, p->g->order.at[i]));
    return sum;
}

/* Between the smallest peak and that of storing all. */
static size_t budget_of(const setting *c)
{
    inv_trial least = {.size = sizeof least};
    setting store = *c;
    store.memory = INV_MEMORY_STORE;
    run *r = begin(c), *most = begin(&store);
    assert_int_equal(inv_session_try_budget(r->session, 0, &least), INV_OK);
    const size_t budget = least.peak + (inv_program_bytes(most->session->program) - least.peak) / 4;
    end(most);
    end(r);
    return budget;
}

static void wrong_rates_are_put_right(void **state)
{
    (void)state;
    const inv_cost_table right = rates();
    inv_cost_table wrong = right;
    wrong.rate[INV_WORK_MATH] /= 3;
    wrong.fixed[INV_WORK_MATH] *= 3;
    setting c = {.memory = INV_MEMORY_RECOMPUTE, .costs = &wrong, .threads = 1};
    c.budget = budget_of(&c);
    run *r = begin(&c);
    const inv_plan *p = &r->session->program->plan[INV_PLAN_MAIN];
    inv_watch w = {0};
    inv_correction *list;
    size_t n;
    inv_arena a;
    inv_arena_init(&a, ctx);
    pretend(&w, p, &right, 1);
    inv_step_times exchange;
    const double *seconds = inv_watch_seconds(&w, &a, &exchange);
    assert_non_null(seconds);
    assert_int_equal(inv_watch_corrections(p, seconds, &wrong, &a, &list, &n), INV_OK);
    inv_cost_table corrected = wrong;
    corrected.nseen = inv_corrections_sort(list, n);
    corrected.seen = list;
    assert_true(inv_cost_table_sound(&corrected));
    assert_near(inv_correction_of(&corrected, inv_work_likeness(INV_WORK_MATH)), 1.0 / 3, 1e-5);
    assert_near(inv_correction_of(&corrected, inv_work_likeness(INV_WORK_MATRIX)), 1, 1e-5);
    for (size_t i = 0; i < p->base->order.n; i++) { /* nodes that the plan has not, too: by their operator */
        const inv_node *x = inv_nod(p->base, p->base->order.at[i]);
        const double is = inv_node_seconds(&corrected, p->base, x), ought = inv_node_seconds(&right, p->base, x);
        if (fabs(is - ought) > 1e-5 * ought) fail_msg("%s: %g, not %g", x->op->name, is, ought);
    }
    setting again = c;
    again.costs = &corrected;
    run *better = begin(&again);
    const inv_plan *q = &better->session->program->plan[INV_PLAN_MAIN];
    char *before, *after;
    assert_int_equal(inv_session_plan(r->session, &before), INV_OK);
    assert_int_equal(inv_session_plan(better->session, &after), INV_OK);
    assert_string_not_equal(before, after);
    assert_true(cost_by(q, &right) < cost_by(p, &right));
    inv_free(ctx, before);
    inv_free(ctx, after);
    inv_watch_end(&w);
    inv_arena_fini(&a);
    end(better);
    end(r);
}

static inv_graph *lowered(const char *text)
{
    inv_graph *g;
    assert_int_equal(inv_case_parse(ctx, text, 0, INV_F32, &g), INV_OK);
    assert_int_equal(inv_pass_lower(g), INV_OK);
    return g;
}

/* What was not seen takes what its operator was seen to take, an operator that was not seen what others of its kind of
 * work were, and a kind that was not seen what all were. */
static void what_was_not_seen(void **state)
{
    (void)state;
    inv_cost_table t = rates();
    inv_graph *g = lowered("y = Tanh(float[64] x)"), *h = lowered("y = Tanh(float[65] x)");
    const inv_node *a = inv_nod(g, g->order.at[0]), *b = inv_nod(h, h->order.at[0]);
    assert_true(inv_node_likeness(g, a) != inv_node_likeness(h, b));
    assert_true(inv_op_likeness(a->op) == inv_op_likeness(b->op));
    inv_correction list[] = {{INV_ALL_NODES, 2},
                             {inv_op_likeness(a->op), 3},
                             {inv_node_likeness(g, a), 5},
                             {INV_ALL_NODES, 7}}; /* of equal ones the first */
    t.seen = list;
    t.nseen = inv_corrections_sort(list, 4);
    assert_int_equal(t.nseen, 3);
    assert_near(inv_node_seconds(&t, g, a) / inv_node_rated_seconds(&t, g, a), 5, 1e-9);
    assert_near(inv_node_seconds(&t, h, b) / inv_node_rated_seconds(&t, h, b), 3, 1e-9);
    /* three processes side by side, of which nothing was seen but that they slow each other down; then something was */
    t.company = 3;
    t.crowd = 1.5;
    assert_near(inv_node_seconds(&t, g, a) / inv_node_rated_seconds(&t, g, a), 1.5 * 5, 1e-9);
    inv_correction among[] = {{inv_noted_as(&t, INV_ALL_NODES), 11}, list[0], list[1], list[2]};
    t.seen = among;
    t.nseen = inv_corrections_sort(among, 4);
    assert_int_equal(t.nseen, 4);
    assert_near(inv_node_seconds(&t, g, a) / inv_node_rated_seconds(&t, g, a), 11, 1e-9);
    t.company = 2; /* of two it was not */
    assert_near(inv_node_seconds(&t, h, b) / inv_node_rated_seconds(&t, h, b), 1.5 * 3, 1e-9);
    t.company = 0;
    t.crowd = 0;
    inv_correction kinds[] = {{INV_ALL_NODES, 2}, {inv_work_likeness(inv_node_work(h, b)), 13}};
    t.seen = kinds;
    t.nseen = inv_corrections_sort(kinds, 2);
    assert_near(inv_node_seconds(&t, h, b) / inv_node_rated_seconds(&t, h, b), 13, 1e-9);
    kinds[0] = (inv_correction){INV_ALL_NODES, 2};
    t.nseen = 1;
    assert_near(inv_node_seconds(&t, h, b) / inv_node_rated_seconds(&t, h, b), 2, 1e-9);
    inv_graph_destroy(g);
    inv_graph_destroy(h);
}

/* What is noted of so many processes is noted of no other number of them, nor as anything else. */
static void companies_are_apart(void **state)
{
    (void)state;
    enum { WHATS = 40, COMPANIES = 8 };
    uint64_t as[COMPANIES * WHATS];
    size_t n = 0;
    for (int company = 1; company <= COMPANIES; company++)
        for (uint64_t what = 0; what < WHATS; what++) {
            const inv_cost_table t = {.company = company};
            as[n] = inv_noted_as(&t, what);
            for (size_t i = 0; i < n; i++) assert_true(as[i] != as[n]);
            n++;
        }
}

/* What a step takes beside its nodes is shared out among them; steps that were disturbed do not count. */
static void steps_take_more_than_their_nodes(void **state)
{
    (void)state;
    const inv_cost_table t = rates();
    run *r = begin(&(setting){.memory = INV_MEMORY_STORE, .costs = &t, .threads = 1});
    const inv_plan *p = &r->session->program->plan[INV_PLAN_MAIN];
    inv_watch w = {0};
    inv_step_times exchange;
    inv_arena a;
    double all = 0;
    inv_arena_init(&a, ctx);
    pretend(&w, p, &t, 1.25);
    const double *seconds = inv_watch_seconds(&w, &a, &exchange);
    assert_non_null(seconds);
    for (size_t i = 0; i < p->g->order.n; i++) {
        const double alone = inv_node_seconds(&t, p->g, inv_nod(p->g, p->g->order.at[i]));
        assert_near(seconds[i], 1.25 * alone, 1e-5 * alone);
        all += seconds[i];
    }
    assert_near(all, 1.25 * inv_plan_cost(p), 1e-5 * all);
    assert_near(exchange.under_way, 2, 0);
    assert_near(exchange.moved, 1, 0);
    inv_watch_end(&w);
    inv_arena_fini(&a);
    end(r);
}

/* After some steps the prediction is what they took, whatever the rates were. */
static void steps_correct_the_session(void **state)
{
    (void)state;
    inv_cost_table t = rates();
    t.rate[INV_WORK_STREAM] = 2e11;
    t.rate[INV_WORK_MATRIX] = 1e14;
    run *r = begin(&(setting){.memory = INV_MEMORY_STORE, .costs = &t, .improve = true, .threads = 1});
    const inv_plan *p = &r->session->program->plan[INV_PLAN_MAIN];
    const double before = inv_plan_cost(p);
    for (int i = 0; i < INV_WATCHED_MOST + 1; i++) step(r);
    const double took = inv_improve_seconds(r->session), after = inv_plan_cost(p);
    assert_true(took > 0);
    assert_true(fabs(after - before) > 1e-12);
    assert_near(inv_improve_rated(r->session), before, 1e-12);
    if (fabs(after - took) > 0.02 * took) fail_msg("predicted %g, took %g", after, took);
    char *json;
    assert_int_equal(inv_session_report(r->session, &json), INV_OK);
    assert_non_null(strstr(json, "\"timed_seconds\""));
    inv_free(ctx, json);
    end(r);
}

/* --- the thread --- */

/* The plan of fewest bytes, which computes nearly all again. */
static char *bad_plan(const inv_cost_table *t)
{
    inv_trial trial = {.size = sizeof trial};
    char *plan;
    setting c = {.memory = INV_MEMORY_RECOMPUTE, .costs = t, .threads = 1};
    run *r = begin(&c);
    assert_int_equal(inv_session_try_budget(r->session, 0, &trial), INV_OK);
    end(r);
    c.budget = trial.peak;
    r = begin(&c);
    assert_int_equal(inv_session_plan(r->session, &plan), INV_OK);
    end(r);
    return plan;
}

enum { FEW = 4, STEPS = INV_WATCHED_MOST + 4 };

static void a_bad_plan_is_replaced(void **state)
{
    (void)state;
    const inv_cost_table t = rates();
    char *plan = bad_plan(&t);
    setting c = {.memory = INV_MEMORY_RECOMPUTE, .plan = plan, .threads = 2}; /* by arithmetic: the same everywhere */
    size_t n;
    run *r = begin(&c);
    const double goal = inv_program_goal(r->session->program);
    steps_until_done(r, FEW);
    assert_true(inv_program_goal(r->session->program) >= goal); /* nobody has asked for it */
    float *plain = weights(r, &n);
    end(r);
    c.improve = true;
    r = begin(&c);
    steps_until_done(r, FEW);
    assert_true(inv_improve_taken(r->session) >= 1);
    assert_true(inv_program_goal(r->session->program) < 0.99 * goal);
    float *improved = weights(r, &n);
    assert_memory_equal(plain, improved, n * sizeof *plain);
    end(r);
    c.threads = 1; /* there is no thread, and nothing says that the plan is wrong */
    r = begin(&c);
    steps_until_done(r, FEW);
    assert_int_equal(inv_improve_taken(r->session), 0);
    end(r);
    free(plain);
    free(improved);
    inv_free(ctx, plan);
}

/* With rates that are wrong, too, and whatever the search makes of what the steps take. */
static void weights_stay_the_same(void **state)
{
    (void)state;
    static const inv_memory memories[] = {INV_MEMORY_STORE, INV_MEMORY_RECOMPUTE};
    inv_cost_table t = rates();
    t.rate[INV_WORK_MATH] = 1e13;
    t.rate[INV_WORK_STREAM] = 2e11;
    t.rate[INV_WORK_MATRIX] = 1e7;
    for (size_t k = 0; k < 4; k++) {
        setting c = {.memory = memories[k / 2], .costs = &t, .threads = 1 + (int)(k % 2)};
        size_t n;
        run *r = begin(&c);
        steps_until_done(r, STEPS);
        float *plain = weights(r, &n);
        end(r);
        c.improve = true;
        r = begin(&c);
        steps_until_done(r, STEPS);
        assert_true(inv_improve_seconds(r->session) > 0);
        float *improved = weights(r, &n);
        assert_memory_equal(plain, improved, n * sizeof *plain);
        end(r);
        free(plain);
        free(improved);
    }
}

/* At any moment the session may end, or be planned again for another reason, though the search would go on for very
 * long. */
static void the_search_ends_with_what_it_is_for(void **state)
{
    (void)state;
    const inv_cost_table t = rates();
    char *plan = bad_plan(&t);
    const inv_memory modes[] = {INV_MEMORY_STORE, INV_MEMORY_RECOMPUTE};
    for (int k = 0; k < 8; k++) {
        run *r = begin(&(setting){.memory = INV_MEMORY_RECOMPUTE,
                                  .plan = plan,
                                  .threads = 2,
                                  .improve = true,
                                  .effort = k % 2 || k == 6 ? 1 : 1000});
        for (int i = 0; i < k / 2; i++) step(r);
        if (k == 6) { /* what else plans, and what reads the plan */
            inv_trial trial = {.size = sizeof trial};
            char *json;
            assert_int_equal(inv_session_try_budget(r->session, 0, &trial), INV_OK);
            assert_int_equal(inv_session_report(r->session, &json), INV_OK);
            inv_free(ctx, json);
        }
        for (int i = 0; i < 4 && k % 2; i++) {
            const inv_modes change = {.size = sizeof change, .memory = &modes[i % 2]};
            assert_int_equal(inv_session_set_modes(r->session, &change), INV_OK);
            step(r);
        }
        end(r);
    }
    inv_free(ctx, plan);
}

/* A child of fork() does not have the thread, and does not wait for it. */
static void a_child_does_not_have_the_search(void **state)
{
    (void)state;
    const inv_cost_table t = rates();
    char *plan = bad_plan(&t);
    int status;
    run *r =
        begin(&(setting){.memory = INV_MEMORY_RECOMPUTE, .plan = plan, .threads = 2, .improve = true, .effort = 1000});
    for (int i = 0; i < FEW; i++) step(r);
    const pid_t child = fork();
    if (child == 0) {
        alarm(20);
        inv_session_destroy(r->session);
        _exit(0);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    step(r);
    end(r);
    inv_free(ctx, plan);
}

/* A stage brings another program, in the midst of a search and while steps are timed. What reads the former one then is
 * found by AddressSanitizer. */
static void a_stage_begins_meanwhile(void **state)
{
    (void)state;
    const inv_cost_table t = rates();
    float *first = NULL;
    size_t n;
    for (int k = 0; k < 3; k++) {
        run *r = begin(&(setting){.memory = INV_MEMORY_RECOMPUTE,
                                  .costs = k == 2 ? &t : NULL,
                                  .threads = 2,
                                  .improve = k > 0,
                                  .effort = k == 1 ? 1000 : 1,
                                  .frozen = 2});
        for (int i = 0; i < FEW; i++) step(r);
        float *trained = weights(r, &n);
        if (k == 0) first = trained;
        else assert_memory_equal(first, trained, n * sizeof *first);
        end(r);
        if (k > 0) free(trained);
    }
    free(first);
}

/* The n-th allocation fails, for every n: there is no plan then, and nothing else has happened. */
static void the_search_runs_out_of_memory(void **state)
{
    (void)state;
    run *r = begin(&(setting){.memory = INV_MEMORY_RECOMPUTE, .threads = 1});
    const inv_program *p = r->session->program;
    failing_memory c = {0};
    const inv_allocator allocator = {counted_alloc, counted_free, &c};
    const inv_context_options options = {.size = sizeof options, .allocator = &allocator};
    bool done = false;
    for (size_t n = 1; !done; n += 1 + n / 16) {
        inv_context *own;
        inv_program *twin;
        c = (failing_memory){0};
        assert_int_equal(inv_context_init(&options, &own), INV_OK);
        own->registry = ctx->registry;
        c.made = 0;
        c.fail_at = n;
        inv_status s = p->twin(p, own, &twin);
        if (s == INV_OK) {
            s = twin->replan(twin);
            done = s == INV_OK && c.made < n;
            if (done) assert_true(inv_program_goal(twin) > 0);
            twin->destroy(twin);
        }
        if (!done && s != INV_E_NOMEM && c.made >= n && s != INV_OK) fail_msg("%zu: %s", n, inv_context_message(own));
        inv_context_fini(own);
        assert_int_equal(c.live, 0);
    }
    step(r);
    end(r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(wrong_rates_are_put_right),
        cmocka_unit_test(what_was_not_seen),
        cmocka_unit_test(companies_are_apart),
        cmocka_unit_test(steps_take_more_than_their_nodes),
        cmocka_unit_test(steps_correct_the_session),
        cmocka_unit_test(a_bad_plan_is_replaced),
        cmocka_unit_test(weights_stay_the_same),
        cmocka_unit_test(the_search_ends_with_what_it_is_for),
        cmocka_unit_test(a_child_does_not_have_the_search),
        cmocka_unit_test(a_stage_begins_meanwhile),
        cmocka_unit_test(the_search_runs_out_of_memory),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
