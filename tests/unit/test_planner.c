/* SPDX-License-Identifier: Apache-2.0
 * The planner on problems without a graph: random ones of few values against the exact oracle, with all that a problem
 * may say of values and edges; chains against the bound. Fails if plans are dearer than the oracle's in more than 5 %
 * of the problems or by more than 3 %, if one is missed that the oracle finds, at the smallest budget too, if the bound
 * is none, if what is to be kept is derived, or if what is rebuilt is too far off.
 * INVONNX_PLANNER_GRAPHS, _VALUES, _SEED and _EFFORT (0: the planner's own) ask for more, or larger ones, than the
 * suite has time for. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "planner_chain.h"
#include "planner_oracle.h"
#include "planner_replay.h"
#include "with_context.h"

enum { MOST_EDGES = 96, MOST_STEPS = 64, MOST_IDS = 1024 };

typedef struct random_problem {
    inv_problem p;
    inv_pb_value value[ORACLE_MOST];
    inv_pb_edge edge[MOST_EDGES];
    inv_pb_step step[MOST_STEPS];
    uint32_t ids[MOST_IDS], nids, edge_of[MOST_EDGES];
    uint64_t dice;
} random_problem;

static uint32_t roll(random_problem *r, uint32_t n)
{
    r->dice ^= r->dice << 13, r->dice ^= r->dice >> 7, r->dice ^= r->dice << 17;
    return (uint32_t)(r->dice >> 33) % n;
}

static const uint32_t *list_of(random_problem *r, const uint32_t *ids, uint32_t n)
{
    uint32_t *at = r->ids + r->nids;
    if (n) memcpy(at, ids, n * sizeof *at);
    r->nids += n;
    assert_true(r->nids <= MOST_IDS);
    return at;
}

static inv_pb_edge *add_edge(random_problem *r, const uint32_t *source, uint32_t nsource, const uint32_t *target,
                             uint32_t ntarget, double cost, bool inverse)
{
    inv_pb_edge *e = &r->edge[r->p.nedge];
    assert_true(r->p.nedge < MOST_EDGES);
    *e = (inv_pb_edge){.source = list_of(r, source, nsource),
                       .target = list_of(r, target, ntarget),
                       .nsource = nsource,
                       .ntarget = ntarget,
                       .id = r->p.nedge,
                       .cost = cost,
                       .inverse = inverse};
    r->p.nedge++;
    return e;
}

/* Operators of one or two operands and one or two results; some can be solved for an operand. */
static void forward(random_problem *r, uint32_t nvalue)
{
    inv_problem *p = &r->p;
    r->value[p->nvalue++] = (inv_pb_value){.nbytes = 64 * (1 + roll(r, 8)), .def = 0};
    r->step[p->nstep++] = (inv_pb_step){0};
    while (p->nvalue < nvalue) {
        const uint32_t t = p->nstep++, nin = p->nvalue > 1 && roll(r, 2) ? 2 : 1, nout = roll(r, 6) ? 1 : 2;
        uint32_t in[2], out[2];
        in[0] = roll(r, 3) ? p->nvalue - 1 : roll(r, p->nvalue);
        do in[1] = roll(r, p->nvalue);
        while (nin == 2 && in[1] == in[0]);
        for (uint32_t k = 0; k < nout && p->nvalue + k < nvalue; k++) out[k] = p->nvalue + k;
        const uint32_t made = nout < nvalue - p->nvalue ? nout : nvalue - p->nvalue;
        for (uint32_t k = 0; k < made; k++) {
            const bool same = roll(r, 2);
            const size_t nbytes = same ? r->value[in[0]].nbytes : 64 * (1 + roll(r, 8));
            r->value[p->nvalue++] = (inv_pb_value){.nbytes = nbytes, .def = t};
        }
        r->step[t] = (inv_pb_step){.read = list_of(r, in, nin), .nread = nin, .at = roll(r, 4) ? 0 : 64};
        inv_pb_edge *e = add_edge(r, in, nin, out, made, 1 + roll(r, 20), false);
        e->scratch = roll(r, 5) ? 0 : 64;
        if (roll(r, 2) && r->value[in[0]].nbytes == r->value[out[0]].nbytes) r->step[t].overwrites = e->overwrites = 1;
        for (uint32_t k = 0; k < nin; k++) {
            if (roll(r, 3)) continue;
            uint32_t from[3] = {out[0], in[1 - k], 0}, n = nin;
            if (made == 2) from[n++] = out[1];
            if (nin == 1 && made == 2) from[1] = out[1], n = 2;
            e = add_edge(r, from, n, &in[k], 1, 1 + roll(r, 20), true);
            if (roll(r, 2) && r->value[in[k]].nbytes == r->value[out[0]].nbytes) e->overwrites = 1;
        }
    }
    p->forward = p->nstep;
}

/* In the opposite order, each gradient from operands, from the result, or from both. */
static void backward(random_problem *r)
{
    inv_problem *p = &r->p;
    for (uint32_t t = p->forward; t-- > 1;) {
        uint32_t read[4], n = 0, out = UINT32_MAX;
        inv_pb_step s = {.at = 64 * roll(r, 6), .before = 64 * roll(r, 4)};
        for (uint32_t v = 0; v < p->nvalue; v++)
            if (r->value[v].def == t) out = v;
        for (uint32_t k = 0; k < r->step[t].nread; k++)
            if (roll(r, 2)) read[n++] = r->step[t].read[k];
        if (roll(r, 2)) read[n++] = out;
        if (n && roll(r, 2)) s.overwrites = 1;
        s.read = list_of(r, read, n);
        s.nread = n;
        if (s.overwrites && s.at < r->value[read[0]].nbytes) s.at = r->value[read[0]].nbytes;
        s.cost = 1 + t * 7 % 40;
        r->step[p->nstep++] = s;
    }
}

/* Copies in host memory, of every third value or so. */
static void offload(random_problem *r)
{
    for (uint32_t v = 0; v < r->p.nvalue; v++)
        if (roll(r, 3) == 0) add_edge(r, NULL, 0, &v, 1, 1 + roll(r, 15), false)->offload = true;
}

/* Two inverses keep something for themselves. */
static void sides(random_problem *r)
{
    for (uint32_t i = 0, n = 0; i < r->p.nedge && n < 2; i++)
        if (r->edge[i].inverse && roll(r, 2)) r->edge[i].side = 64 * (1 + roll(r, 3)), n++;
}

/* Values that are kept, or derived, whatever it costs; the caller's; and hints. */
static void marks(random_problem *r)
{
    for (uint32_t v = 0; v < r->p.nvalue; v++) {
        inv_pb_value *x = &r->value[v];
        x->pinned = roll(r, 8) == 0;
        x->no_store = !x->pinned && roll(r, 6) == 0;
        x->data = v == 0 || roll(r, 16) == 0;
        x->splittable = roll(r, 4) == 0;
    }
    uint32_t n = 0;
    for (uint32_t i = 0; i < r->p.nedge; i++) {
        inv_pb_edge e = r->edge[i];
        uint32_t target[2], left = 0;
        for (uint32_t k = 0; k < e.ntarget; k++)
            if (!r->value[e.target[k]].pinned) target[left++] = e.target[k];
        if (left < e.ntarget) e.target = list_of(r, target, left);
        e.ntarget = left;
        if (left) r->edge[n++] = e;
    }
    r->p.nedge = n;
}

/* Inverses that are exact and not, values that must be exact, one that the guard has refused. */
static void errors(random_problem *r)
{
    r->p.max_drift = 1 + roll(r, 2);
    r->value[roll(r, r->p.nvalue)].rejected = roll(r, 2);
    for (uint32_t v = 0; v < r->p.nvalue; v++) r->value[v].sensitivity = roll(r, 8) ? 1 : INFINITY;
    for (uint32_t i = 0; i < r->p.nedge; i++) {
        if (!r->edge[i].inverse) continue;
        r->edge[i].error_gain = roll(r, 4) ? 1 : 2;
        r->edge[i].added_error = roll(r, 5) > 0;
    }
}

typedef enum feature { PLAIN, HOST, SIDES, MARKS, ERRORS } feature;

static void make(random_problem *r, uint64_t seed, uint32_t most, feature has)
{
    *r = (random_problem){.dice = seed * 0x9e3779b97f4a7c15u + 1};
    const uint32_t nvalue = 6 + roll(r, most - 5);
    inv_problem *p = &r->p;
    p->value = r->value;
    p->edge = r->edge;
    p->step = r->step;
    p->max_drift = 1;
    for (int i = 0; i < 8; i++) (void)roll(r, 2);
    forward(r, nvalue);
    backward(r);
    if (has == HOST) offload(r);
    if (has == SIDES) sides(r);
    if (has == MARKS) marks(r);
    if (has == ERRORS) errors(r);
    uint32_t n = 0;
    for (uint32_t v = 0; v < p->nvalue; v++) {
        r->value[v].first = n;
        for (uint32_t i = 0; i < p->nedge; i++)
            for (uint32_t k = 0; k < r->edge[i].ntarget; k++)
                if (r->edge[i].target[k] == v) r->edge_of[n++] = i;
        r->value[v].n = n - r->value[v].first;
    }
    p->edge_of = r->edge_of;
    for (uint32_t i = 0; i < p->nedge; i++)
        if (!r->edge[i].inverse && !r->edge[i].offload) p->cost += 3 * r->edge[i].cost;
}

static uint32_t asked(const char *name, uint32_t usual)
{
    const char *s = getenv(name);
    return s ? (uint32_t)strtoul(s, NULL, 10) : usual;
}

typedef struct tally {
    uint32_t solved, equal, missed;
    double worst;
} tally;

static double effort(void) { return asked("INVONNX_PLANNER_EFFORT", 1000000); }

static uint32_t fetched, ahead; /* rematerialisations from host memory; of these, earlier than their readers want */

/* No byte more than the plan or the budget has, the same cost, and each value there when it is read. */
static void fetch_ahead(inv_arena *a, const inv_problem *p, size_t budget, inv_remats *plan, const inv_score *before)
{
    inv_remats was = {0};
    replay r;
    for (size_t k = 0; k < plan->n; k++) assert_true(inv_vec_push(a, &was, plan->at[k]));
    size_t peak = before->peak;
    assert_int_equal(inv_plan_prefetch(a, p, budget, plan, &peak), INV_OK);
    assert_int_equal(plan->n, was.n);
    for (size_t k = 0; k < plan->n; k++) {
        if (k) assert_true(plan->at[k].step >= plan->at[k - 1].step);
        fetched += p->edge[plan->at[k].edge].offload;
        ahead += p->edge[plan->at[k].edge].offload && memcmp(&plan->at[k], &was.at[k], sizeof was.at[k]) != 0;
    }
    assert_int_equal(replay_plan(a, p, plan, &r), INV_OK);
    assert_int_equal(r.score.peak, peak);
    assert_true(peak <= before->peak || peak <= budget);
    assert_true(fabs(r.score.cost - before->cost) <= 1e-9 * p->cost);
    assert_int_equal(replay_prune(a, p, plan), INV_OK);
    assert_int_equal(plan->n, was.n);
}

/* Nothing that is pinned is derived, and whatever is rebuilt comes close enough (greedy.c, edge_fits; here once more).
 * */
static void obeys(const inv_problem *p, const inv_remats *plan)
{
    double err[ORACLE_MOST] = {0};
    bool rejection_read = false;
    if (p->nvalue > ORACLE_MOST) return; /* a chain */
    for (size_t k = 0; k < plan->n; k++) {
        const inv_pb_edge *e = &p->edge[plan->at[k].edge];
        double worst = 0;
        for (uint32_t i = 0; i < e->nsource && !rejection_read; i++)
            if (p->value[e->source[i]].rejected) rejection_read = true;
        for (uint32_t v = 0; rejection_read && v < p->nvalue; v++)
            if (err[v] > 0) err[v] = p->max_drift;
        for (uint32_t i = 0; i < e->nsource; i++) worst = fmax(worst, err[e->source[i]]);
        if (e->inverse) worst = e->error_gain * worst + e->added_error;
        assert_true(worst <= p->max_drift);
        for (uint32_t i = 0; i < e->ntarget; i++) {
            const inv_pb_value *v = &p->value[e->target[i]];
            if (!(plan->at[k].want >> i & 1)) continue;
            assert_false(v->pinned);
            assert_true(!e->inverse || worst <= 0 || v->sensitivity <= 0 || worst * v->sensitivity <= p->max_drift);
            err[e->target[i]] = worst;
        }
    }
}

/* Of the best plan found; what it comes to is replayed. */
static inv_score plan_of(const inv_problem *p, size_t budget)
{
    inv_arena a;
    inv_remats plan;
    inv_score score;
    replay counted;
    const inv_goal goal = {.budget = budget, .limit = INFINITY, .effort = effort()};
    inv_arena_init(&a, ctx);
    assert_int_equal(inv_plan_search(ctx, &a, p, &goal, &plan, &score), INV_OK);
    assert_int_equal(replay_plan(&a, p, &plan, &counted), INV_OK);
    assert_int_equal(score.peak, counted.score.peak);
    assert_true(fabs(score.cost - counted.score.cost) <= 1e-9 * p->cost);
    obeys(p, &plan);
    fetch_ahead(&a, p, budget, &plan, &counted.score);
    inv_arena_fini(&a);
    return score;
}

static double bound_of(const inv_problem *p, size_t budget)
{
    inv_arena a;
    double bound = NAN;
    inv_arena_init(&a, ctx);
    assert_int_equal(inv_plan_bound(&a, p, budget, &bound), INV_OK);
    inv_arena_fini(&a);
    return bound;
}

/* The oracle's, within the budget, of plans that keep as few no_store values as any does. INFINITY: there is none. */
static double cost_of(const inv_problem *p, size_t budget, uint32_t *kept)
{
    const double least = floor(oracle_cost(p, SIZE_MAX / 4) / ORACLE_KEPT), cost = oracle_cost(p, budget);
    *kept = (uint32_t)least;
    return floor(cost / ORACLE_KEPT) > least ? INFINITY : cost - least * ORACLE_KEPT;
}

static void compare(const random_problem *r, size_t budget, double cost, uint32_t kept, uint64_t seed, tally *y)
{
    const inv_score score = plan_of(&r->p, budget);
    const double bound = bound_of(&r->p, budget);
    const unsigned long long number = seed;
    if (bound > cost + 1e-9) fail_msg("problem %llu: bound %g, oracle %g", number, bound, cost);
    y->solved++;
    if (score.kept_no_store > kept) {
        y->missed++;
        print_message("problem %llu: %u values kept that need not be, %u have to\n", number, score.kept_no_store, kept);
        return;
    }
    assert_int_equal(score.kept_no_store, kept); /* else the oracle is wrong, or the replay */
    if (score.peak > budget) {
        y->missed++;
        print_message("problem %llu: none within %zu bytes (oracle: %g), best %zu\n", number, budget, cost, score.peak);
        return;
    }
    assert_true(score.cost >= cost - 1e-9); /* else the oracle is wrong, or the replay */
    const double worse = (score.cost - cost) / (r->p.cost + cost);
    y->equal += worse < 1e-9;
    if (worse > y->worst) y->worst = worse;
    if (worse > 1e-9) print_message("problem %llu: %g, oracle %g of %g\n", number, score.cost, cost, r->p.cost);
}

static void judge(const tally *y, const char *what)
{
    print_message("%s: %u of %u equal, %u missed, worst %.2f %%\n", what, y->equal, y->solved, y->missed,
                  100 * y->worst);
    assert_true(y->solved > 0);
    assert_int_equal(y->missed, 0);
    assert_true(y->solved - y->equal <= fmax(1, 0.05 * y->solved));
}

static size_t store_all(const inv_problem *p) { return plan_of(p, SIZE_MAX / 4).peak; }

/* Whether plans would cost less, or others fit, if the feature were not. */
static bool matters(random_problem *r, feature has, size_t budget, double cost)
{
    inv_pb_edge edge[MOST_EDGES];
    inv_pb_value value[ORACLE_MOST];
    memcpy(edge, r->edge, sizeof edge);
    memcpy(value, r->value, sizeof value);
    for (uint32_t i = 0; i < r->p.nedge; i++) {
        if (has == ERRORS) r->edge[i].added_error = 0;
        if (has == SIDES) r->edge[i].side = 0;
    }
    for (uint32_t v = 0; v < r->p.nvalue; v++) r->value[v].no_store = false;
    const double without = oracle_cost(&r->p, budget);
    memcpy(r->edge, edge, sizeof edge);
    memcpy(r->value, value, sizeof value);
    return without < cost;
}

static void some_budgets(uint32_t graphs, feature has, const char *what)
{
    const uint32_t most = has == ERRORS ? 9 : asked("INVONNX_PLANNER_VALUES", 12);
    tally y = {0};
    uint32_t mattered = 0;
    random_problem *r = malloc(sizeof *r);
    assert_non_null(r);
    for (uint64_t seed = asked("INVONNX_PLANNER_SEED", 1); y.solved < graphs; seed++) {
        make(r, seed, most, has);
        /* between everything kept and what cannot be */
        const size_t peak = store_all(&r->p), budget = peak - peak * (5 + roll(r, 60)) / 100 / 64 * 64 - 64;
        uint32_t kept;
        const double cost = cost_of(&r->p, budget, &kept);
        if (isfinite(cost)) compare(r, budget, cost, kept, seed, &y);
        if (has > HOST && isfinite(cost)) mattered += matters(r, has, budget, cost);
    }
    free(r);
    judge(&y, what);
    assert_true(y.worst <= 0.03);
    if (has > HOST) print_message("%u plans differ by it\n", mattered);
    assert_true(has <= HOST || mattered > 0);
}

static void oracle(void **state)
{
    (void)state;
    some_budgets(asked("INVONNX_PLANNER_GRAPHS", 48), PLAIN, "some budget");
}

static void features(void **state)
{
    (void)state;
    const uint32_t graphs = asked("INVONNX_PLANNER_GRAPHS", 48) / 2;
    some_budgets(graphs, SIDES, "edges that keep something");
    some_budgets(graphs, MARKS, "values kept or derived whatever it costs");
    some_budgets(graphs, ERRORS, "errors that add up");
}

static void host_memory(void **state)
{
    (void)state;
    fetched = ahead = 0;
    some_budgets(asked("INVONNX_PLANNER_GRAPHS", 48) / 2, HOST, "some budget, with copies in host memory");
    print_message("%u fetched, %u of them ahead\n", fetched, ahead);
    assert_true(ahead > 0 && ahead < fetched);
}

/* The smallest budget that the oracle can do with, as one that is given, and as what is asked for. */
static void smallest(void **state)
{
    (void)state;
    const uint32_t graphs = asked("INVONNX_PLANNER_GRAPHS", 48) / 4, most = asked("INVONNX_PLANNER_VALUES", 12);
    const uint64_t first = asked("INVONNX_PLANNER_SEED", 1);
    tally given = {0}, sought = {0};
    random_problem *r = malloc(sizeof *r);
    assert_non_null(r);
    for (uint64_t seed = first; seed < first + graphs; seed++) {
        make(r, seed, most, PLAIN);
        size_t low = 0, high = store_all(&r->p) / 64; /* all sizes are multiples of 64 */
        double cost = 0;
        while (high - low > 1) {
            const size_t mid = low + (high - low) / 2;
            const double at_mid = oracle_cost(&r->p, 64 * mid);
            if (isfinite(at_mid)) cost = at_mid;
            if (isfinite(at_mid)) high = mid;
            else low = mid;
        }
        compare(r, 64 * high, cost, 0, seed, &given);
        const size_t peak = plan_of(&r->p, 0).peak;
        assert_true(peak >= 64 * high);
        sought.solved++;
        sought.equal += peak == 64 * high;
    }
    free(r);
    judge(&given, "smallest budget");
    judge(&sought, "no budget");
}

/* From budgets that cost little down to where all is derived, the plan is hardly dearer than any could be. */
static void couplings(void **state)
{
    (void)state;
    chain c;
    assert_true(chain_make(&c, 128, 0));
    const size_t all = store_all(&c.p);
    for (size_t i = 0; i < 4; i++) {
        const size_t budget = all / 100 * (const size_t[]){80, 40, 20, 5}[i];
        const inv_score score = plan_of(&c.p, budget);
        const double bound = bound_of(&c.p, budget), gap = (score.cost - bound) / (c.p.cost + score.cost);
        print_message("%zu MiB: plan +%.2f %%, gap %.2f %%\n", budget >> 20, 100 * score.cost / c.p.cost, 100 * gap);
        assert_true(score.peak <= budget);
        assert_true(gap >= -1e-9);
        assert_true(gap <= 0.005);
        if (i) assert_true(bound > 0); /* something must be derived */
    }
    chain_free(&c);
}

/* Without inverses, memory is that of checkpoints: far below one for each block. */
static void residual(void **state)
{
    (void)state;
    chain c;
    assert_true(chain_make(&c, 128, 4));
    const size_t all = store_all(&c.p), least = plan_of(&c.p, 0).peak;
    const inv_score tenth = plan_of(&c.p, all / 10);
    print_message("%zu of %zu MiB; a tenth: plan +%.2f %%\n", least >> 20, all >> 20, 100 * tenth.cost / c.p.cost);
    assert_true(least <= all / 10);
    assert_true(tenth.peak <= all / 10);
    assert_true(tenth.cost <= 0.3 * c.p.cost);
    assert_true(bound_of(&c.p, all / 10) > 0);
    assert_true(bound_of(&c.p, all / 10) <= tenth.cost);
    chain_free(&c);
}

/* Bytes at the turn from forward to backward, where errors forbid more than `clean` inverses in a row. */
static size_t at_turn(uint32_t blocks, double clean)
{
    chain c;
    assert_true(chain_make(&c, blocks, 0));
    for (uint32_t i = 0; i < c.p.nedge; i++) {
        c.p.edge[i].error_gain = 1;
        c.p.edge[i].added_error = c.p.edge[i].inverse && c.p.edge[i].nsource == 2;
    }
    c.p.max_drift = clean;
    c.p.value[0].nbytes = c.p.value[1].nbytes = 64; /* small, as an image is beside what is made of it */
    double *price = calloc(c.p.nstep, sizeof *price), work = 0;
    assert_non_null(price);
    for (uint32_t t = c.p.forward; t < c.p.nstep; t++) price[t] = t == c.p.forward ? 1e-2 : 1e-5;
    const inv_prices prices = {.step = price, .invert = true};
    inv_remats plan = {0};
    replay r;
    inv_arena a;
    inv_arena_init(&a, ctx);
    assert_int_equal(inv_plan_greedy(&a, &c.p, &prices, &plan, &work), INV_OK);
    assert_int_equal(inv_plan_prune(&a, &c.p, &plan), INV_OK);
    assert_int_equal(replay_plan(&a, &c.p, &plan, &r), INV_OK);
    const size_t nbytes = r.live[r.event_of_step[c.p.forward]];
    print_message("%u blocks: %zu KiB at the turn\n", blocks, nbytes >> 10);
    inv_arena_fini(&a);
    free(price);
    chain_free(&c);
    return nbytes;
}

/* Inverses add errors up, and after so many blocks a state is not clean enough to go on from. If bytes are dear it is
 * computed from the input again, block by block, and not kept. */
static void deep(void **state)
{
    (void)state;
    assert_in_range(at_turn(96, 80), 0, at_turn(64, 80) + 128); /* the input, too */
}

/* Many low prices of a large recurrent network come to the same plan, which keeps all: the scan goes on behind them. */
static void recurrent(void **state)
{
    (void)state;
    chain c;
    assert_true(chain_make_recurrent(&c, 256));
    c.p.edge[0].cost *= 1e-6; /* so low are the first prices */
    const inv_goal goal = {.limit = c.p.cost / 3, .effort = effort(), .balanced = true};
    inv_arena a;
    inv_remats plan;
    inv_score score;
    inv_arena_init(&a, ctx);
    assert_int_equal(inv_plan_search(ctx, &a, &c.p, &goal, &plan, &score), INV_OK);
    inv_arena_fini(&a);
    print_message("%.3f of all bytes\n", (double)score.peak / (double)store_all(&c.p));
    assert_true(score.peak < store_all(&c.p) / 6);
    chain_free(&c);
}

/* The greedy pass makes few visits a step at any price: a look at all that a value could be derived from, for each
 * value that can only be kept, would make as many as there are steps. */
static void few_visits(const inv_problem *p)
{
    double *price = calloc(p->nstep, sizeof *price);
    assert_non_null(price);
    for (double turn = 1e-4; turn < 1; turn *= 10) {
        const inv_prices prices = {.step = price, .invert = true};
        inv_remats remats = {0};
        inv_arena a;
        double work = 0;
        price[p->forward] = turn;
        inv_arena_init(&a, ctx);
        assert_int_equal(inv_plan_greedy(&a, p, &prices, &remats, &work), INV_OK);
        inv_arena_fini(&a);
        print_message("price %g: %.1f visits a step\n", turn, work / p->nstep);
        assert_true(work < 25 * p->nstep);
    }
    free(price);
}

static void visits(void **state)
{
    (void)state;
    chain c;
    assert_true(chain_make(&c, 1024, 0));
    few_visits(&c.p);
    chain_free(&c);
    assert_true(chain_make_recurrent(&c, 512));
    few_visits(&c.p);
    chain_free(&c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(oracle),   cmocka_unit_test(features),  cmocka_unit_test(host_memory),
        cmocka_unit_test(smallest), cmocka_unit_test(couplings), cmocka_unit_test(residual),
        cmocka_unit_test(deep),     cmocka_unit_test(recurrent), cmocka_unit_test(visits),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
