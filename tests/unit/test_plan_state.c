/* SPDX-License-Identifier: Apache-2.0
 * A plan state under random changes comes to what a replay of its rematerialisations from the beginning comes to: bytes
 * at every moment, arithmetic, what is inverted and kept, errors. Fails if one of these is off, if a change that is
 * taken back leaves a trace, or if annealing lets errors of what is rebuilt add up beyond the limit. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "core/base/chance.h"
#include "core/base/mem.h"
#include "passes/planner/plan_state.h"
#include "planner_chain.h"
#include "planner_replay.h"
#include "with_context.h"

enum { MOST = 400, CHANGES = 500, FEW_CHANGES = 60, DRIFTING = 4 };

typedef struct table {
    inv_arena a;
    chain c;
    inv_plan_state state;
    inv_error_estimate *estimate;
    uint64_t dice;
} table;

static uint32_t roll(table *x, uint32_t n) { return (uint32_t)(inv_chance(&x->dice) * n); }

/* Couplings or residual blocks, made uneven. */
static void set_table(table *x, uint32_t blocks, uint32_t stages, bool activations)
{
    *x = (table){.dice = blocks * 0x9e3779b97f4a7c15u + stages + 1};
    inv_arena_init(&x->a, ctx);
    assert_true(chain_make(&x->c, blocks, stages));
    inv_problem *p = &x->c.p;
    for (uint32_t i = 0; i < p->nedge; i++) {
        inv_pb_edge *e = &p->edge[i];
        e->scratch = 64 * roll(x, 3);
        e->side = e->inverse && roll(x, 3) == 0 ? 64 : 0;
        if (e->inverse) e->error_gain = 1 + 0.25 * roll(x, 3), e->added_error = 1e-7;
    }
    for (uint32_t v = 0; v < p->nvalue; v++) {
        p->value[v].no_store = roll(x, 5) == 0;
        p->value[v].data = roll(x, 8) == 0;
        p->value[v].sensitivity = 1 + roll(x, 3);
    }
    p->max_drift = INFINITY;
    for (uint32_t t = 0; t < p->nstep; t++) p->step[t].act_at = p->step[t].at / 2;
    const inv_remats none = {0};
    assert_int_equal(inv_plan_state_init(&x->state, &x->a, p, activations, MOST), INV_OK);
    assert_int_equal(inv_error_estimate_new(&x->state, &x->estimate), INV_OK);
    assert_int_equal(inv_plan_state_load(&x->state, &none), INV_OK);
    inv_plan_state_set_budget(&x->state, 5 * CHAIN_STREAM);
    assert_true(inv_error_estimate_load(x->estimate));
}

static void clear_table(table *x)
{
    inv_arena_fini(&x->a);
    chain_free(&x->c);
}

/* A step of backward or a rematerialisation, and one of the values that it reads. */
static uint32_t some_reader(table *x, uint32_t *v)
{
    const inv_problem *p = &x->c.p;
    for (;;) {
        const uint32_t back = p->nstep - p->forward, k = roll(x, back + x->state.nremat);
        const uint32_t at = k < back ? p->forward + k : x->state.remat[k - back];
        const inv_pb_edge *e = at < p->nstep ? NULL : &p->edge[x->state.event[at].edge];
        const uint32_t n = e ? e->nsource : p->step[at].nread;
        if (n == 0) continue;
        *v = (e ? e->source : p->step[at].read)[roll(x, n)];
        if (p->value[*v].n) return at;
    }
}

static void change(table *x)
{
    inv_plan_state *ps = &x->state;
    if (ps->nremat && roll(x, 5) == 0) {
        inv_plan_state_remove(ps, ps->remat[roll(x, ps->nremat)]);
        return;
    }
    uint32_t v;
    const uint32_t at = some_reader(x, &v), id = x->c.p.edge_of[x->c.p.value[v].first + roll(x, x->c.p.value[v].n)];
    assert_true(inv_plan_state_insert(ps, at, id) != INV_NO_EVENT);
}

/* Bytes, arithmetic and the rest, against a replay. */
static void compare(table *x)
{
    const inv_plan_state *ps = &x->state;
    inv_arena a;
    inv_remats list = {0};
    replay r;
    inv_arena_init(&a, ctx);
    assert_int_equal(inv_plan_state_list(ps, &a, &list), INV_OK);
    const size_t n = list.n;
    assert_int_equal(replay_prune(&a, &x->c.p, &list), INV_OK);
    assert_int_equal(list.n, n); /* a commit leaves nothing that nobody reads */
    assert_int_equal(replay_plan(&a, &x->c.p, &list, &r), INV_OK);
    int64_t excess = 0;
    uint32_t event = 0, at = 0;
    for (; at != INV_NO_EVENT; at = ps->event[at].next, event++) {
        const int64_t live = (int64_t)(ps->activations ? r.act[event] : r.live[event]);
        assert_int_equal(inv_plan_state_live(ps, at), live);
        excess += live > ps->budget ? live - ps->budget : 0;
        assert_int_equal(ps->event[at].over_budget != INV_NO_EVENT, live > ps->budget);
    }
    assert_int_equal(event, r.nevent);
    for (uint32_t v = 0; v < x->c.p.nvalue; v++) assert_int_equal(inv_plan_state_kept_until(ps, v), r.kept_until[v]);
    assert_int_equal(ps->excess, excess);
    assert_true(fabs(ps->cost - r.score.cost) < 1e-6 * (1 + r.score.cost));
    assert_true(fabs(ps->inverted - r.score.inverted) < 1);
    assert_int_equal(ps->kept_no_store, r.score.kept_no_store);
    inv_arena_fini(&a);
}

static double errors(const inv_plan_state *ps)
{
    double sum = 0;
    for (uint32_t i = 0; i < ps->nremat; i++)
        if (ps->event[ps->remat[i]].active) sum += ps->event[ps->remat[i]].err;
    return sum;
}

static void change_often(uint32_t blocks, uint32_t stages, bool activations, int changes)
{
    table x;
    set_table(&x, blocks, stages, activations);
    uint32_t most = 0;
    for (int i = 0; i < changes; i++) {
        const int64_t excess = x.state.excess;
        const double cost = x.state.cost, err = errors(&x.state);
        for (uint32_t n = 1 + roll(&x, 4); n > 0; n--) change(&x);
        if (roll(&x, 3) == 0 || x.state.nremat > MOST / 2) {
            inv_plan_state_undo(&x.state);
            assert_int_equal(x.state.excess, excess);
            assert_true(fabs(x.state.cost - cost) < 1e-6 * (1 + cost));
            assert_true(fabs(errors(&x.state) - err) <= 1e-9 * err);
        } else {
            assert_true(inv_error_estimate_update(x.estimate));
            inv_plan_state_commit(&x.state);
            const double followed = errors(&x.state);
            assert_true(inv_error_estimate_load(x.estimate));
            assert_true(fabs(errors(&x.state) - followed) <= 1e-9 * followed);
        }
        compare(&x);
        if (x.state.nremat > most) most = x.state.nremat;
    }
    assert_false(x.a.failed);
    assert_true(most >= 10);
    clear_table(&x);
}

static void couplings(void **state)
{
    (void)state;
    change_often(6, 0, false, CHANGES);
    change_often(24, 0, true, CHANGES);
}

static void residual(void **state)
{
    (void)state;
    change_often(8, 2, false, CHANGES);
    change_often(9, 3, true, CHANGES);
}

/* So many steps that blocks are larger. */
static void many_steps(void **state)
{
    (void)state;
    table small, large;
    enum { FEW = 8, MANY = 1400 };
    set_table(&small, FEW, 0, false);
    set_table(&large, MANY, 0, false);
    assert_true(large.state.block_bits > small.state.block_bits);
    clear_table(&small);
    clear_table(&large);
    change_often(MANY, 0, false, FEW_CHANGES);
}

/* Chains of inverses: an error beyond the limit is refused, and leaves errors as they were. */
static void limit(void **state)
{
    (void)state;
    table x;
    set_table(&x, 24, 0, false);
    uint32_t refused = 0, inplace = 0;
    x.c.p.max_drift = 1e-6;
    for (int i = 0; i < 4 * CHANGES; i++) {
        const double err = errors(&x.state);
        change(&x);
        if (x.state.nremat < MOST / 2 && inv_error_estimate_update(x.estimate)) {
            inv_plan_state_commit(&x.state);
            inplace++;
        } else {
            refused += x.state.nremat < MOST / 2;
            inv_plan_state_undo(&x.state);
            assert_true(fabs(errors(&x.state) - err) <= 1e-9 * err);
        }
    }
    assert_true(inv_error_estimate_load(x.estimate));
    assert_true(inplace > 100 && refused > 10);
    clear_table(&x);
}

/* A chain in the bytes of one value: each is had from the next, nearly for nothing and with an error, or dearly and
 * without. */
typedef struct drifting {
    inv_problem p;
    inv_pb_value value[DRIFTING];
    inv_pb_edge edge[2 * DRIFTING];
    inv_pb_step step[2 * DRIFTING];
    uint32_t id[DRIFTING], edge_of[2 * DRIFTING];
} drifting;

static void make_drifting(drifting *d, double max_drift)
{
    *d = (drifting){.p = {.value = d->value,
                          .edge = d->edge,
                          .step = d->step,
                          .edge_of = d->edge_of,
                          .nvalue = DRIFTING,
                          .nstep = 2 * DRIFTING,
                          .forward = DRIFTING,
                          .cost = 1000,
                          .max_drift = max_drift}};
    for (uint32_t v = 0; v < DRIFTING; v++) {
        d->id[v] = v;
        d->value[v] = (inv_pb_value){.nbytes = 64, .def = v, .sensitivity = 1};
        if (v) d->step[v] = (inv_pb_step){.read = &d->id[v - 1], .nread = 1, .overwrites = 1};
        d->step[2 * DRIFTING - 1 - v] = (inv_pb_step){.read = &d->id[v], .nread = 1};
        if (v + 1 == DRIFTING) continue;
        d->value[v].first = d->p.nedge;
        d->value[v].n = 2;
        for (uint32_t exact = 0; exact < 2; exact++) {
            d->edge_of[d->p.nedge] = d->p.nedge;
            d->edge[d->p.nedge++] = (inv_pb_edge){.source = &d->id[v + 1],
                                                  .nsource = 1,
                                                  .target = &d->id[v],
                                                  .ntarget = 1,
                                                  .overwrites = 1,
                                                  .cost = exact ? 50 : 1,
                                                  .inverse = true,
                                                  .error_gain = 1,
                                                  .added_error = exact ? 0 : 0.4};
        }
    }
}

/* All exact at first; then as the annealer makes it. */
static double annealed(const drifting *d)
{
    inv_arena a;
    inv_remats plan = {0};
    replay counted;
    const inv_goal goal = {.budget = 64, .limit = INFINITY};
    uint64_t dice = 1;
    inv_arena_init(&a, ctx);
    for (uint32_t v = DRIFTING - 1; v-- > 0;) {
        const inv_remat f = {2 * DRIFTING - 1 - v, 2 * v + 1, 1};
        assert_true(inv_vec_push(&a, &plan, f));
    }
    assert_int_equal(inv_plan_anneal(&a, &d->p, &goal, 1e6, &dice, &plan), INV_OK);
    assert_int_equal(replay_prune(&a, &d->p, &plan), INV_OK);
    assert_int_equal(replay_plan(&a, &d->p, &plan, &counted), INV_OK);
    assert_int_equal(counted.score.peak, 64);
    inv_arena_fini(&a);
    return counted.score.cost;
}

/* Errors add up along a chain of inversions: as many as the limit allows are of the cheap kind, and none that starts
 * from what the guard has refused. */
static void drift(void **state)
{
    (void)state;
    drifting d;
    make_drifting(&d, 2);
    assert_true(annealed(&d) == 3);
    make_drifting(&d, 1);
    assert_true(annealed(&d) == 52);
    make_drifting(&d, 0.3);
    assert_true(annealed(&d) == 150);
    make_drifting(&d, 2);
    d.value[1].rejected = true;
    assert_true(annealed(&d) == 52);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(couplings), cmocka_unit_test(residual), cmocka_unit_test(many_steps),
        cmocka_unit_test(limit),     cmocka_unit_test(drift),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
