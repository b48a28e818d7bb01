/* SPDX-License-Identifier: Apache-2.0
 * What a plan is said to cost is what its nodes cost: those of the compiled step against those of the step that stores
 * everything, guards among them; and what the search reckons with is the same. Fails if a node that recovery puts in
 * is paid by nobody, if the bound is none, or if what was to be kept is given again. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <jansson.h>

#include "core/graph/model.h"
#include "executor/executor.h"
#include "graph_text.h"
#include "passes/recover/recover.h"
#include "passes/schedule/schedule.h"

enum { BLOCKS = 3, TEXT = 8192 };

/* Affine couplings: inverses that are exact and not, nodes of several results, values that can be had in many ways. The
 * inverse of the normalisation saves something in forward. */
static inv_graph *model_of(void)
{
    char s[TEXT];
    size_t n = 0;
#define ADD(...) n += (size_t)snprintf(s + n, sizeof s - n, __VA_ARGS__)
    ADD("g(float[64,8] x) => (y) {\nparam float[8,64] stem\nparam float[64,8] last\n");
    ADD("param float[64] shift\nparam float[64] scale = {");
    for (int i = 0; i < 64; i++) ADD("%s%d", i ? ", " : "", 1 + i % 3);
    ADD("}\n");
    for (int i = 0; i < BLOCKS; i++) ADD("param float[32,32] a%d\nparam float[32,64] b%d\n", i, i);
    ADD("t = MatMul(x, stem)\nw0 = LayerNormalization(t, scale, shift)\n");
    for (int i = 0; i < BLOCKS; i++) {
        ADD("u%d, v%d = Split<axis = 1, num_outputs = 2>(w%d)\np%d = MatMul(v%d, a%d)\nq%d = Tanh(p%d)\n", i, i, i, i,
            i, i, i, i);
        ADD("r%d = MatMul(q%d, b%d)\nk%d, h%d = Split<axis = 1, num_outputs = 2>(r%d)\nl%d = Tanh(k%d)\n", i, i, i, i,
            i, i, i, i);
        ADD("s%d = Exp(l%d)\nm%d = Mul(u%d, s%d)\nn%d = Add(m%d, h%d)\nw%d = Concat<axis = 1>(v%d, n%d)\n", i, i, i, i,
            i, i, i, i, i + 1, i, i);
    }
    ADD("z = MatMul(w%d, last)\ny = Mul(z, z)\n}\n", BLOCKS);
#undef ADD
    assert_true(n < sizeof s);
    return parse(s);
}

/* Nodes take a while each, so that few of many operands and many of few differ. */
static inv_cost_table rates(void)
{
    inv_cost_table t = {.real = INV_F32, .bandwidth = 2e10, .cache = 1 << 20};
    for (int w = 0; w < INV_WORKS; w++) {
        t.rate[w] = 3e9 * (1 + w % 4);
        t.fixed[w] = 2e-8 * (1 + w % 3);
    }
    return t;
}

typedef struct job {
    inv_graph *g;
    inv_memory memory;
    inv_guard guard;
    const char *device;
    const inv_cost_table *costs;
    size_t budget;
    const char *keep, *invert; /* names; NULL */
} job;

static inv_session *session_of(const job *j)
{
    static inv_model model; /* the session holds it */
    model = (inv_model){.ctx = ctx, .path = "text", .graph = j->g};
    static const int64_t dims[2] = {64, 8};
    const inv_array x = {.name = "x", .dtype = INV_F32, .rank = 2, .dims = dims},
                    target = {.name = "target", .dtype = INV_F32, .rank = 2, .dims = dims};
    const char *y = "y";
    const inv_mode_rule mode = {j->invert, INV_MEMORY_INVERT};
    const inv_session_options o = {.size = sizeof o,
                                   .purpose = INV_FOR_TRAIN,
                                   .inputs = &x,
                                   .ninputs = 1,
                                   .target = &target,
                                   .loss = INV_LOSS_MSE,
                                   .loss_outputs = &y,
                                   .nloss_outputs = 1,
                                   .plan_only = true,
                                   .memory = j->memory,
                                   .guard = j->guard,
                                   .device = j->device,
                                   .costs = j->costs,
                                   .budget = j->budget,
                                   .max_drift = 1e-2,
                                   .keep = &j->keep,
                                   .nkeep = j->keep != NULL,
                                   .modes = &mode,
                                   .nmodes = j->invert != NULL};
    inv_session *s = NULL;
    if (inv_session_create(&model, &o, &s) != INV_OK) fail_msg("%s", inv_context_message(ctx));
    return s;
}

static json_t *report_of(inv_session *s)
{
    char *text = NULL;
    assert_int_equal(inv_session_report(s, &text), INV_OK);
    json_t *report = json_loads(text, 0, NULL);
    assert_non_null(report);
    inv_free(ctx, text);
    return report;
}

static double number(const json_t *o, const char *key) { return json_number_value(json_object_get(o, key)); }

/* By the report, of all that runs. */
static double added(const json_t *report, bool time)
{
    double sum = 0;
    size_t i;
    const json_t *row;
    if (!time) return (number(report, "flops") + number(report, "guard_flops")) / number(report, "store_flops") - 1;
    json_array_foreach(json_object_get(report, "timeline"), i, row) sum += number(row, "predicted_seconds");
    return sum / number(report, "store_predicted_seconds") - 1;
}

typedef struct outlay {
    double overhead;
    size_t guards, saved, peak; /* values guarded; nodes that save; bytes */
} outlay;

static outlay check(const job *j)
{
    outlay out = {0};
    inv_session *s = session_of(j);
    json_t *report = report_of(s), *plan = json_object_get(report, "plan");
    const inv_plan *p = &s->program->plan[INV_PLAN_MAIN];
    out.overhead = number(plan, "overhead");
    out.guards = p->guarded.n;
    out.peak = s->program->persistent + s->program->transient;
    for (size_t i = 0; i < p->g->forward_end; i++)
        out.saved +=
            p->g->order.at[i] >= p->base->node.n && strcmp(inv_nod(p->g, p->g->order.at[i])->op->name, "GuardSum") != 0;
    const double sum = added(report, j->costs != NULL);
    if (fabs(out.overhead - sum) > 1e-9)
        fail_msg("memory %d, guard %d, %s: plan +%.9g, its nodes +%.9g", j->memory, j->guard,
                 j->costs ? "time" : "flops", out.overhead, sum);
    assert_true(number(plan, "bound") <= out.overhead + 1e-12);
    json_decref(report);
    inv_session_destroy(s);
    return out;
}

static void a_plan_costs_what_its_nodes_do(void **state)
{
    (void)state;
    static const inv_memory memories[] = {INV_MEMORY_STORE, INV_MEMORY_RECOMPUTE, INV_MEMORY_AUTO, INV_MEMORY_INVERT};
    static const inv_guard guards[] = {INV_GUARD_OFF, INV_GUARD_ON, INV_GUARD_FULL};
    const inv_cost_table t = rates();
    job j = {.g = model_of()};
    for (int time = 0; time < 2; time++)
        for (int m = 0; m < 4; m++) {
            outlay o[3];
            for (int k = 0; k < 3; k++) {
                j.memory = memories[m];
                j.guard = guards[k];
                j.costs = time ? &t : NULL;
                j.invert = m == 3 ? "t" : NULL;
                o[k] = check(&j);
                assert_true(o[k].guards == 0 || k > 0);
            }
            assert_int_equal(o[2].guards > 0, m > 0);
            if (m < 2) assert_int_equal(o[1].guards, 0);
            assert_int_equal(o[0].saved > 0, m == 3);
            if (m == 3) assert_true(o[0].overhead < o[1].overhead && o[1].overhead < o[2].overhead);
        }
    inv_graph_destroy(j.g);
}

static void budgets_too(void **state)
{
    (void)state;
    const inv_cost_table t = rates();
    job j = {.g = model_of(), .guard = INV_GUARD_ON, .costs = &t};
    j.memory = INV_MEMORY_STORE;
    const size_t most = check(&j).peak;
    j.memory = INV_MEMORY_AUTO;
    const size_t least = check(&j).peak;
    double last = INFINITY;
    for (int k = 0; k < 5; k++) {
        j.budget = least + (most - least) / 4 * (size_t)k;
        const outlay o = check(&j);
        assert_true(o.peak <= j.budget);
        assert_true(o.overhead <= last + 0.02);
        last = o.overhead;
    }
    inv_graph_destroy(j.g);
}

/* What rematerialisations cost in the problem is what the nodes cost that inv_recover makes of them, but for the
 * fingerprints' own bytes, and for what is not wanted of nodes of several results: no bound counts that. */
static void the_search_reckons_with_the_same(void **state)
{
    (void)state;
    static const inv_guard guards[] = {INV_GUARD_OFF, INV_GUARD_ON, INV_GUARD_FULL};
    const inv_cost_table t = rates();
    job j = {.g = model_of(), .memory = INV_MEMORY_STORE};
    inv_session *s = session_of(&j);
    inv_plan *p = &s->program->plan[INV_PLAN_MAIN];
    inv_value_policy *none = calloc(p->base->value.n + 1, sizeof *none);
    assert_non_null(none);
    size_t partly = 0;
    for (int k = 0; k < 6; k++) {
        inv_arena a;
        inv_recovery r;
        inv_remats plan;
        inv_score score;
        inv_plan made = *p;
        double cost = 0, spare = 0, bound;
        const inv_policy policy = {.recompute = true,
                                   .invert = true,
                                   .feed_again = true,
                                   .guard = guards[k % 3],
                                   .max_drift = 1e-2,
                                   .value = none};
        const inv_goal goal = {.limit = INFINITY, .effort = 1e6};
        inv_arena_init(&a, ctx);
        assert_int_equal(inv_recovery_init(&r, p->base, &policy, k < 3 ? &t : NULL, &a), INV_OK);
        assert_int_equal(inv_plan_search(ctx, &a, &r.p, &goal, &plan, &score), INV_OK);
        assert_int_equal(inv_recover(&r, &plan, &made, &made.g), INV_OK);
        for (size_t i = 0; i < made.g->order.n; i++)
            if (made.g->order.at[i] >= p->base->node.n)
                cost += inv_node_cost(r.costs, made.g, inv_nod(made.g, made.g->order.at[i]));
        for (size_t i = 0; i < plan.n; i++) {
            const inv_pb_edge *e = &r.p.edge[plan.at[i].edge];
            const bool all = plan.at[i].want == (1u << e->ntarget) - 1;
            if (!all) spare += e->max_saving;
            partly += !all && e->max_saving > 0;
        }
        assert_true(plan.n > 10);
        assert_true(cost <= score.cost * (1 + 1e-3));
        assert_true(cost >= (score.cost - spare) * (1 - 1e-12));
        assert_int_equal(inv_plan_bound(&a, &r.p, score.peak, &bound), INV_OK);
        assert_true(bound <= cost);
        inv_graph_destroy(made.g);
        inv_arena_fini(&a);
    }
    assert_true(partly > 0);
    free(none);
    inv_session_destroy(s);
    inv_graph_destroy(j.g);
}

/* What is added to `a` is taken away again for less than the product takes that gave it, but not with the guard. */
static void a_guard_may_tip_the_balance(void **state)
{
    (void)state;
    static const char text[] =
        "g(float[64,8] x) => (y) {\nparam float[8,64] w\nparam float[64] b\nparam float[64,8] v\na = MatMul(x, w)\n"
        "c = Mul(a, a)\nd = Add(a, b)\ne = Mul(d, d)\nf = Tanh(e)\nh = Mul(c, f)\ny = MatMul(h, v)\n}\n";
    job j = {.g = parse(text), .memory = INV_MEMORY_STORE};
    const size_t most = check(&j).peak;
    size_t inverted[2] = {0}, recomputed[2] = {0};
    j.memory = INV_MEMORY_AUTO;
    j.keep = "d";
    j.budget = most - 64 * 64 * sizeof(float) / 2;
    for (int on = 0; on < 2; on++) {
        j.guard = on ? INV_GUARD_ON : INV_GUARD_OFF;
        inv_session *s = session_of(&j);
        const inv_plan *p = &s->program->plan[INV_PLAN_MAIN];
        for (size_t i = 0; i < p->choice.n; i++) {
            inverted[on] += p->choice.at[i].choice == INV_INVERTED;
            recomputed[on] += p->choice.at[i].choice == INV_RECOMPUTED;
        }
        inv_session_destroy(s);
    }
    assert_true(inverted[0] > 0);
    assert_int_equal(inverted[1], 0);
    assert_true(recomputed[1] > recomputed[0]);
    inv_graph_destroy(j.g);
}

/* What is to be kept is not given again with another result of the node that gave it, which may start from what was
 * rebuilt. */
static void what_is_kept_is_not_given_again(void **state)
{
    (void)state;
    job j = {.g = model_of(), .memory = INV_MEMORY_STORE};
    inv_session *s = session_of(&j);
    inv_plan *p = &s->program->plan[INV_PLAN_MAIN];
    inv_value_policy *value = calloc(p->base->value.n + 1, sizeof *value);
    assert_non_null(value);
    const inv_id u = inv_graph_find(p->base, "u0"), v = inv_graph_find(p->base, "v0");
    assert_true(u != INV_NONE && v != INV_NONE);
    value[u].keep = true;
    const inv_policy policy = {.recompute = true, .invert = true, .value = value, .max_drift = 1e-2};
    inv_arena a;
    inv_recovery r;
    inv_arena_init(&a, ctx);
    assert_int_equal(inv_recovery_init(&r, p->base, &policy, NULL, &a), INV_OK);
    assert_true(r.p.value[r.number[u]].pinned);
    assert_int_equal(r.p.value[r.number[u]].n, 0);
    size_t halves = 0; /* edges of the node that gives both */
    for (uint32_t i = 0; i < r.p.nedge; i++)
        halves += !r.p.edge[i].inverse && r.p.edge[i].id == inv_val(p->base, v)->def && r.p.edge[i].ntarget == 1;
    assert_int_equal(halves, 1);
    assert_int_equal(inv_val(p->base, u)->def, inv_val(p->base, v)->def);
    inv_arena_fini(&a);
    free(value);
    inv_session_destroy(s);
    inv_graph_destroy(j.g);
}

int main(void)
{
    /* The search compares plans of single nodes. */
    if (setenv("INVONNX_NO_FUSE", "1", 1) != 0) return 1;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_plan_costs_what_its_nodes_do),   cmocka_unit_test(budgets_too),
        cmocka_unit_test(the_search_reckons_with_the_same), cmocka_unit_test(a_guard_may_tip_the_balance),
        cmocka_unit_test(what_is_kept_is_not_given_again),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
