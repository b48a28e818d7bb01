/* SPDX-License-Identifier: Apache-2.0
 * How long the planner takes, and how far its plans are from the bound, on chains of any length
 * (tests/unit/planner_chain.h).
 *
 *     bench_planner BLOCKS STAGES PERCENT...
 *
 * Four operators a block; STAGES 0: couplings, else residual blocks in as many stages. PERCENT: budgets, of the bytes
 * with everything kept; 0: the smallest peak. Prints a line of a Markdown table for each: plan and bound relative to a
 * step's arithmetic without recomputation, their difference relative to that of the step as planned, CPU seconds. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "planner_chain.h"

static double seconds(void) { return (double)clock() / CLOCKS_PER_SEC; }

static inv_status plan(inv_context *ctx, const inv_problem *p, size_t budget, inv_score *score)
{
    inv_arena a;
    inv_remats remats;
    const inv_goal goal = {
        .budget = budget, .limit = INFINITY, .effort = 3e6}; /* what policy.c asks for in large problems */
    inv_arena_init(&a, ctx);
    const inv_status st = inv_plan_search(ctx, &a, p, &goal, &remats, score);
    inv_arena_fini(&a);
    return st;
}

static inv_status row(inv_context *ctx, const inv_problem *p, const char *percent, size_t all)
{
    inv_arena a;
    inv_score s;
    double bound;
    const size_t budget = (size_t)(strtod(percent, NULL) / 100 * (double)all);
    const double began = seconds();
    inv_status st = plan(ctx, p, budget, &s);
    const double planned = seconds();
    inv_arena_init(&a, ctx);
    if (st == INV_OK) st = inv_plan_bound(&a, p, budget ? budget : s.peak, &bound);
    inv_arena_fini(&a);
    if (st != INV_OK) return st;
    printf("| %u | %s | %.2f%s | +%.2f | +%.2f | %.3f | %.2f | %.2f |\n", p->forward - 1, budget ? percent : "smallest",
           100 * (double)s.peak / (double)all, budget && s.peak > budget ? " (over)" : "", 100 * s.cost / p->cost,
           100 * bound / p->cost, 100 * (s.cost - bound) / (p->cost + s.cost), planned - began, seconds() - planned);
    return INV_OK;
}

int main(int argc, char **argv)
{
    if (argc < 4) {
        fprintf(stderr, "usage: bench_planner BLOCKS STAGES PERCENT...\n");
        return 2;
    }
    inv_context *ctx = NULL;
    inv_score all;
    chain c;
    if (inv_context_create(NULL, &ctx) != INV_OK) return 1;
    if (!chain_make(&c, (uint32_t)strtoul(argv[1], NULL, 10), (uint32_t)strtoul(argv[2], NULL, 10))) return 1;
    printf("| operators | budget %% | peak %% | plan %% | bound %% | gap %% | plan s | bound s |\n");
    printf("|---:|---:|---:|---:|---:|---:|---:|---:|\n");
    inv_status st = plan(ctx, &c.p, SIZE_MAX / 4, &all);
    for (int i = 3; i < argc && st == INV_OK; i++) st = row(ctx, &c.p, argv[i], all.peak);
    chain_free(&c);
    inv_context_destroy(ctx);
    return st == INV_OK ? 0 : 1;
}
