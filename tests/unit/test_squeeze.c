/* SPDX-License-Identifier: Apache-2.0
 * Squeezing alone, from plans of one price for all bytes, on chains of many equal blocks. Fails if some blocks keep
 * what others have learnt to do without, if what is gained is less than a search gains by a tenth, if a limit of cost
 * or of errors is exceeded, also where errors are too large from the beginning, or if the peak is not that of a replay
 * from the beginning. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "core/base/mem.h"
#include "passes/planner/plan_state.h"
#include "planner_chain.h"
#include "planner_replay.h"
#include "with_context.h"

/* What squeezing comes to. */
typedef struct squeezed {
    size_t peak;
    double cost;
} squeezed;

/* Of this plan, allocated in `a`; `fine`: whether its errors are allowed, before and after. */
static squeezed squeeze_plan(inv_arena *a, const inv_problem *p, const inv_goal *goal, inv_remats *plan, bool fine)
{
    inv_plan_state ps;
    inv_error_estimate *errors;
    replay r;
    assert_int_equal(inv_plan_state_init(&ps, a, p, false, 4 * p->nvalue), INV_OK);
    assert_int_equal(inv_error_estimate_new(&ps, &errors), INV_OK);
    assert_int_equal(inv_plan_state_load(&ps, plan), INV_OK);
    assert_int_equal(inv_error_estimate_load(errors), fine);
    const size_t before = (size_t)inv_plan_state_peak(&ps, INT64_MAX);
    assert_int_equal(inv_plan_squeeze(&ps, errors, goal, 0), INV_OK);
    assert_int_equal(inv_plan_state_list(&ps, a, plan), INV_OK);
    const squeezed got = {(size_t)inv_plan_state_peak(&ps, INT64_MAX), ps.cost};
    print_message("%zu bytes squeezed to %zu, +%.1f %%\n", before, got.peak, 100 * got.cost / p->cost);
    assert_int_equal(replay_plan(a, p, plan, &r), INV_OK);
    assert_int_equal(r.score.peak, got.peak);
    assert_int_equal(inv_error_estimate_load(errors), fine);
    return got;
}

static squeezed squeeze(const inv_problem *p, const inv_goal *goal, double at_turn)
{
    double *price = calloc(p->nstep, sizeof *price), work = 0;
    const inv_prices prices = {.step = price, .invert = true};
    inv_remats plan = {0};
    inv_arena a;
    inv_arena_init(&a, ctx);
    assert_non_null(price);
    price[p->forward] = at_turn;
    assert_int_equal(inv_plan_greedy(&a, p, &prices, &plan, &work), INV_OK);
    free(price);
    const squeezed got = squeeze_plan(&a, p, goal, &plan, true);
    inv_arena_fini(&a);
    return got;
}

static size_t smallest_found(const inv_problem *p)
{
    const inv_goal goal = {.limit = INFINITY};
    inv_score score;
    inv_remats plan;
    inv_arena a;
    inv_arena_init(&a, ctx);
    assert_int_equal(inv_plan_search(ctx, &a, p, &goal, &plan, &score), INV_OK);
    inv_arena_fini(&a);
    return score.peak;
}

/* Four stages of 16 blocks: whatever is learnt about one is done to all. */
static void equal_blocks(void **state)
{
    (void)state;
    const inv_goal goal = {.limit = INFINITY};
    chain c;
    assert_true(chain_make(&c, 64, 4));
    const size_t peak = squeeze(&c.p, &goal, 1e-4).peak, found = smallest_found(&c.p);
    print_message("search: %zu\n", found);
    assert_true(peak <= found + found / 10);
    chain_free(&c);
}

/* The limit of cost holds, and what it allows is used. */
static void within_cost(void **state)
{
    (void)state;
    chain c;
    assert_true(chain_make(&c, 64, 4));
    size_t before = SIZE_MAX;
    for (int k = 1; k <= 4; k *= 2) {
        const inv_goal goal = {.limit = c.p.cost * k / 16};
        const squeezed got = squeeze(&c.p, &goal, 1e-4);
        assert_true(got.cost <= goal.limit);
        assert_true(got.peak < before);
        before = got.peak;
    }
    chain_free(&c);
}

/* A large value and one of medium size that could be solved for from a small one, but for the error of that. */
enum { LARGE = 6400, MEDIUM = 640, SMALL = 64, BETWEEN = 9600 };
static const uint32_t all[] = {0, 1, 2}, *const large = all, *const medium = all + 1, *const small = all + 2;
static const uint32_t inverses[] = {0, 1};
static inv_pb_value value[] = {{.nbytes = LARGE, .def = 0, .first = 0, .n = 1, .sensitivity = 1},
                               {.nbytes = MEDIUM, .def = 0, .first = 1, .n = 1, .sensitivity = 1},
                               {.nbytes = SMALL, .def = 1}};
static inv_pb_step step[] = {{.cost = 1},
                             {.read = all, .nread = 2, .cost = 1},
                             {.read = small, .nread = 1},
                             {.at = BETWEEN, .act_at = BETWEEN},
                             {.read = all, .nread = 3}};

static inv_problem two_inverses(inv_pb_edge *edge, double error_of_large, double error_of_medium)
{
    edge[0] = edge[1] = (inv_pb_edge){.source = small, .nsource = 1, .ntarget = 1, .cost = 1, .inverse = true};
    edge[0].target = large;
    edge[0].added_error = error_of_large;
    edge[1].target = medium;
    edge[1].added_error = error_of_medium;
    return (inv_problem){.value = value,
                         .edge = edge,
                         .step = step,
                         .edge_of = inverses,
                         .nvalue = 3,
                         .nedge = 2,
                         .nstep = 5,
                         .forward = 2,
                         .cost = 2,
                         .max_drift = 1};
}

static void within_errors(void **state)
{
    (void)state;
    const inv_goal goal = {.limit = INFINITY};
    inv_pb_edge edge[2];
    const inv_problem fine = two_inverses(edge, 0.5, 0.5);
    assert_int_equal(squeeze(&fine, &goal, 0).peak, SMALL + BETWEEN);
    const inv_problem coarse = two_inverses(edge, 2, 0.5);
    assert_int_equal(squeeze(&coarse, &goal, 0).peak, LARGE + SMALL + BETWEEN);
}

/* A plan that inverts with too large an error already, which says nothing about what else may be inverted. */
static void errors_too_large(void **state)
{
    (void)state;
    enum { LAST = 4, OF_MEDIUM = 1 };
    const inv_goal goal = {.limit = INFINITY};
    inv_pb_edge edge[2];
    const inv_problem p = two_inverses(edge, 2, 2);
    inv_remats plan = {0};
    inv_arena a;
    inv_arena_init(&a, ctx);
    assert_true(inv_vec_push(&a, &plan, ((inv_remat){LAST, OF_MEDIUM, 1})));
    assert_int_equal(squeeze_plan(&a, &p, &goal, &plan, false).peak, LARGE + SMALL + BETWEEN);
    assert_int_equal(plan.n, 1);
    inv_arena_fini(&a);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(equal_blocks), cmocka_unit_test(within_cost),
                                       cmocka_unit_test(within_errors), cmocka_unit_test(errors_too_large)};
    return cmocka_run_group_tests(tests, setup, teardown);
}
