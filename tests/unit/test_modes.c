/* SPDX-License-Identifier: Apache-2.0
 * Modes that change between steps. A session whose modes were changed before every step has the losses, parameters and
 * optimizer state of one that was left alone, bit for bit; a change that is refused, or runs out of memory, leaves the
 * session as it was; scopes restore. */
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

#define MODELS INV_TEST_DATA "/models/"
#define NICE MODELS "nice_split_uneven_ts17/model.onnx"
#define REVNET MODELS "revnet8_ts17/model.onnx"
#define DROPOUT MODELS "hz_dropout_train_ts17/model.onnx"

typedef struct fixture {
    size_t made, live, fail_at; /* allocations; the one that fails, 0: none */
    inv_allocator allocator;
    inv_context *ctx;
    inv_model *model;
    inv_session *session;
    inv_array in, target;
    int64_t dims[2][INV_MAX_RANK];
    float *data[2];
} fixture;

static void *counted_alloc(void *opaque, size_t nbytes)
{
    fixture *f = opaque;
    if (++f->made == f->fail_at) return NULL;
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

static void make_array(fixture *f, int i, inv_array *x, const char *name, const inv_value *v)
{
    inv_shape s = v->shape;
    if (s.dim[0] < 2) s.dim[0] = 4;
    size_t n = (size_t)inv_shape_nelem(&s);
    memcpy(f->dims[i], s.dim, sizeof s.dim);
    f->data[i] = malloc(n * sizeof(float));
    for (size_t k = 0; k < n; k++) f->data[i][k] = (float)sin(0.7 * (double)k + i);
    *x = (inv_array){.name = name, .dtype = INV_F32, .rank = s.rank, .dims = f->dims[i], .data = f->data[i]};
}

static void begin_with(fixture *f, const char *path, const char *device, inv_memory memory, uint64_t budget,
                       inv_optimizer optimizer)
{
    memset(f, 0, sizeof *f);
    f->allocator = (inv_allocator){counted_alloc, counted_free, f};
    inv_context_options c = {.size = sizeof c, .allocator = &f->allocator};
    assert_int_equal(inv_context_create(&c, &f->ctx), INV_OK);
    check(f, inv_model_load(f->ctx, path, &f->model));
    const inv_graph *g = f->model->graph;
    const inv_value *in = inv_val(g, g->inputs.at[0]), *out = inv_val(g, g->outputs.at[0]);
    make_array(f, 0, &f->in, in->name, in);
    make_array(f, 1, &f->target, "target", out);
    inv_session_options o = {.size = sizeof o,
                             .purpose = INV_FOR_TRAIN,
                             .loss = INV_LOSS_MSE,
                             .inputs = &f->in,
                             .ninputs = 1,
                             .target = &f->target,
                             .loss_outputs = &out->name,
                             .nloss_outputs = 1,
                             .memory = memory,
                             .device = device,
                             .budget = budget,
                             .optimizer = optimizer,
                             .beta1 = 0.9,
                             .beta2 = 0.999,
                             .epsilon = 1e-8};
    check(f, inv_session_create(f->model, &o, &f->session));
}

static void begin(fixture *f, const char *path, const char *device, inv_memory memory, uint64_t budget)
{
    begin_with(f, path, device, memory, budget, INV_OPT_ADAM);
}

static void end(fixture *f)
{
    inv_session_destroy(f->session);
    inv_model_destroy(f->model);
    inv_context_destroy(f->ctx);
    free(f->data[0]);
    free(f->data[1]);
    assert_int_equal(f->live, 0);
}

static double step(fixture *f)
{
    inv_result r;
    check(f, inv_session_step(f->session, &f->in, 1, &f->target, 1e-2, &r));
    return r.loss;
}

static inv_status memory(fixture *f, inv_memory m)
{
    const inv_modes modes = {.size = sizeof modes, .memory = &m};
    return inv_session_set_modes(f->session, &modes);
}

/* Parameters, running statistics and optimizer state of `a` are those of `b`. */
static void same_state(fixture *a, fixture *b)
{
    size_t compared = 0;
    for (size_t i = 0; i < a->session->program->storage.n; i++) {
        const inv_storage *h = &a->session->program->storage.at[i], *k = NULL;
        if (h->kind == INV_STORAGE_CONST) continue;
        for (size_t j = 0; j < b->session->program->storage.n && !k; j++) {
            k = &b->session->program->storage.at[j];
            if (k->kind != h->kind || strcmp(k->name, h->name) != 0) k = NULL;
        }
        assert_non_null(k);
        const void *x, *y;
        check(a, inv_session_fetch(a->session, a->session->persistent + h->offset, h->dtype, &h->shape, &x));
        check(b, inv_session_fetch(b->session, b->session->persistent + k->offset, k->dtype, &k->shape, &y));
        if (memcmp(x, y, h->nbytes) != 0) fail_msg("'%s' differs", h->name);
        compared++;
    }
    assert_true(compared > 8);
}

static size_t count(const fixture *f, inv_choice c)
{
    const inv_plan *p = &f->session->program->plan[INV_PLAN_MAIN];
    size_t n = 0;
    for (size_t i = 0; i < p->choice.n; i++) n += p->choice.at[i].choice == c && !p->choice.at[i].moved;
    return n;
}

static size_t peak(const fixture *f)
{
    const inv_program *p = f->session->program;
    return p->persistent + p->control + p->transient;
}

/* Other modes before every step, in scopes and out of them. */
static void turn(fixture *f, int i)
{
    static const inv_memory store = INV_MEMORY_STORE, recompute = INV_MEMORY_RECOMPUTE;
    const inv_modes scope = {.size = sizeof scope, .memory = i & 1 ? &store : &recompute};
    if (i % 5 == 4) check(f, inv_session_push_modes(f->session, &scope));
    else check(f, memory(f, i & 1 ? recompute : store));
    if (i % 5 == 0 && i) check(f, inv_session_pop_modes(f->session));
}

static void toggled_equals_left_alone(void **state)
{
    (void)state;
    static const char *const devices[] = {"cpu", "checked", "sim"};
    static const char *const models[] = {DROPOUT, REVNET, NICE};
    for (size_t k = 0; k < 3; k++) {
        fixture a, b;
        begin(&a, models[k], devices[k], INV_MEMORY_STORE, 0);
        begin(&b, models[k], devices[k], INV_MEMORY_RECOMPUTE, 0);
        size_t least = peak(&b), most = 0;
        for (int i = 0; i < 7; i++) {
            turn(&b, i);
            if (peak(&b) > most) most = peak(&b);
            double x = step(&a), y = step(&b);
            if (memcmp(&x, &y, sizeof x) != 0) fail_msg("%s, step %d: %.17g and %.17g", models[k], i, x, y);
        }
        if (k == 1) assert_true(most > least); /* the modes were others */
        same_state(&a, &b);
        assert_int_equal(inv_session_steps(b.session), 7);
        end(&a);
        end(&b);
    }
}

/* Going to inverses and back: nothing that persists moves by a bit, and the memory goes back too. */
static void state_stays(void **state)
{
    (void)state;
    fixture a, b;
    begin(&a, REVNET, "cpu", INV_MEMORY_STORE, 0);
    begin(&b, REVNET, "cpu", INV_MEMORY_STORE, 0);
    size_t before = peak(&a), allocated = a.session->transient_nbytes;
    step(&a);
    step(&b);
    check(&a, memory(&a, INV_MEMORY_INVERT));
    same_state(&a, &b);
    assert_true(count(&a, INV_INVERTED) > 0);
    assert_true(peak(&a) < before);
    assert_true(a.session->transient_nbytes < allocated);
    const void *data;
    inv_dtype dt;
    int rank;
    int64_t dims[INV_MAX_RANK];
    assert_int_equal(inv_session_get(a.session, INV_GET_OUTPUT, "y", &data, &dt, &rank, dims), INV_E_ARG);
    assert_non_null(strstr(inv_context_message(a.ctx), "since the modes were changed"));
    check(&a, memory(&a, INV_MEMORY_STORE));
    same_state(&a, &b);
    assert_int_equal(a.session->transient_nbytes, allocated);
    assert_true(step(&a) == step(&b));
    same_state(&a, &b);
    end(&a);
    end(&b);
}

static void scopes_restore(void **state)
{
    (void)state;
    static const inv_memory store = INV_MEMORY_STORE, invert = INV_MEMORY_INVERT;
    const inv_mode_rule first = {"block:/blocks.0/Add_2", INV_MEMORY_STORE},
                        all[] = {{"*", INV_MEMORY_RECOMPUTE}, {"block:additive_block_fg", INV_MEMORY_AUTO}};
    fixture f;
    begin(&f, REVNET, "cpu", INV_MEMORY_INVERT, 0);
    size_t inverted = count(&f, INV_INVERTED), bytes = peak(&f);
    assert_true(inverted > 4);
    assert_int_equal(inv_session_pop_modes(f.session), INV_E_ARG); /* none is open */
    check(&f, inv_session_push_modes(f.session, &(inv_modes){.size = sizeof(inv_modes), .rules = &first, .nrules = 1}));
    size_t fewer = count(&f, INV_INVERTED);
    assert_true(fewer < inverted && fewer > 0);
    check(&f, inv_session_push_modes(f.session, &(inv_modes){.size = sizeof(inv_modes), .rules = all, .nrules = 1}));
    assert_int_equal(count(&f, INV_INVERTED), 0);
    /* of two rules the last one counts: the blocks may be inverted after all */
    check(&f, inv_session_set_modes(f.session, &(inv_modes){.size = sizeof(inv_modes), .rules = all, .nrules = 2}));
    assert_true(count(&f, INV_INVERTED) > 4);
    check(&f, inv_session_push_modes(f.session, &(inv_modes){.size = sizeof(inv_modes), .memory = &store}));
    assert_int_equal(count(&f, INV_INVERTED), 0);
    step(&f);
    check(&f, inv_session_push_modes(f.session,
                                     &(inv_modes){.size = sizeof(inv_modes), .memory = &invert, .replace = true}));
    assert_int_equal(count(&f, INV_INVERTED), inverted);
    check(&f, inv_session_pop_modes(f.session));
    check(&f, inv_session_pop_modes(f.session));
    check(&f, inv_session_pop_modes(f.session)); /* with what was set inside */
    assert_int_equal(count(&f, INV_INVERTED), fewer);
    check(&f, inv_session_pop_modes(f.session));
    assert_int_equal(count(&f, INV_INVERTED), inverted);
    assert_int_equal(peak(&f), bytes);
    assert_int_equal(inv_session_pop_modes(f.session), INV_E_ARG);
    end(&f);
}

/* Of a block that is to be stored nothing is derived; of the others it is as before. */
static void blocks_by_name(void **state)
{
    (void)state;
    const inv_mode_rule rule = {"block:/blocks.3/Add_2", INV_MEMORY_STORE};
    fixture f;
    begin(&f, REVNET, "cpu", INV_MEMORY_INVERT, 0);
    check(&f, inv_session_set_modes(f.session, &(inv_modes){.size = sizeof(inv_modes), .rules = &rule, .nrules = 1}));
    const inv_plan *p = &f.session->program->plan[INV_PLAN_MAIN];
    size_t stored = 0, derived = 0;
    for (size_t i = 0; i < p->choice.n; i++) {
        const bool within = strncmp(inv_val(p->base, p->choice.at[i].value)->name, "/blocks.3/", 10) == 0;
        if (within && p->choice.at[i].choice == INV_STORED) stored++;
        if (within && p->choice.at[i].choice != INV_STORED)
            fail_msg("'%s' is not stored", inv_val(p->base, p->choice.at[i].value)->name);
        derived += !within && p->choice.at[i].choice == INV_INVERTED;
    }
    assert_true(stored > 4 && derived > 4);
    end(&f);
}

static void refused_changes_nothing(void **state)
{
    (void)state;
    const inv_mode_rule bad[] = {{"*", INV_MEMORY_STORE}, {"no_such_value", INV_MEMORY_STORE}},
                        block = {"block:no_such_block", INV_MEMORY_INVERT};
    const inv_memory none = (inv_memory)9;
    fixture a, b;
    begin(&a, NICE, "cpu", INV_MEMORY_RECOMPUTE, 0);
    begin(&b, NICE, "cpu", INV_MEMORY_RECOMPUTE, 0);
    step(&a);
    step(&b);
    size_t bytes = peak(&a), stored = count(&a, INV_STORED);
    assert_int_equal(
        inv_session_set_modes(a.session, &(inv_modes){.size = sizeof(inv_modes), .rules = bad, .nrules = 2}),
        INV_E_ARG);
    assert_non_null(strstr(inv_context_message(a.ctx), "no_such_value"));
    assert_int_equal(
        inv_session_push_modes(a.session, &(inv_modes){.size = sizeof(inv_modes), .rules = &block, .nrules = 1}),
        INV_E_ARG);
    assert_non_null(strstr(inv_context_message(a.ctx), "no_such_block"));
    assert_int_equal(inv_session_set_modes(a.session, &(inv_modes){.size = sizeof(inv_modes), .memory = &none}),
                     INV_E_ARG);
    assert_int_equal(inv_session_set_modes(a.session, &(inv_modes){.size = 3}), INV_E_ABI);
    assert_int_equal(inv_session_pop_modes(a.session), INV_E_ARG); /* the push did not open one */
    assert_int_equal(peak(&a), bytes);
    assert_int_equal(count(&a, INV_STORED), stored);
    assert_true(step(&a) == step(&b));
    same_state(&a, &b);
    end(&a);
    end(&b);
}

static void budget_refuses(void **state)
{
    (void)state;
    fixture a, b;
    begin(&a, REVNET, "cpu", INV_MEMORY_STORE, 0);
    size_t all = peak(&a);
    end(&a);
    begin(&a, REVNET, "cpu", INV_MEMORY_AUTO, all - all / 8);
    begin(&b, REVNET, "cpu", INV_MEMORY_AUTO, all - all / 8);
    assert_true(step(&a) == step(&b));
    assert_int_equal(memory(&a, INV_MEMORY_STORE), INV_E_NOMEM);
    assert_non_null(strstr(inv_context_message(a.ctx), "budget"));
    assert_true(step(&a) == step(&b));
    check(&a, memory(&a, INV_MEMORY_RECOMPUTE));
    assert_true(peak(&a) <= all - all / 8);
    step(&a);
    end(&a);
    end(&b);
}

/* To inverses in a scope. The n-th allocation fails, 0: none; how many there were. */
static size_t push_failing(fixture *f, size_t n)
{
    const inv_memory m = INV_MEMORY_INVERT;
    const inv_modes scope = {.size = sizeof scope, .memory = &m};
    const size_t before = f->made;
    f->fail_at = n ? before + n : 0;
    inv_status s = inv_session_push_modes(f->session, &scope);
    const bool failed = n && f->made >= f->fail_at;
    f->fail_at = 0;
    if (!failed) check(f, s);
    else if (s != INV_E_NOMEM) fail_msg("allocation %zu: status %d", n, (int)s);
    return failed ? 0 : f->made - before;
}

/* The n-th allocation of the change fails: the session goes on with the bits that it would have had. All of the first,
 * and of the last, where the arena moves. */
static void out_of_memory(void **state)
{
    (void)state;
    enum { DENSE = 40 };
    static const char *const devices[] = {"cpu", "sim"};
    for (size_t d = 0; d < 2; d++) {
        fixture a, b;
        begin(&a, NICE, devices[d], INV_MEMORY_STORE, 0);
        begin(&b, NICE, devices[d], INV_MEMORY_STORE, 0);
        step(&a);
        size_t total = push_failing(&a, 0), failed = 0;
        end(&a);
        begin(&a, NICE, devices[d], INV_MEMORY_STORE, 0);
        for (size_t n = 1;; n += n < DENSE || n + DENSE > total ? 1 : 17) {
            assert_true(step(&a) == step(&b));
            if (push_failing(&a, n)) break;
            failed++;
        }
        assert_true(failed > DENSE + DENSE / 2);
        same_state(&a, &b);
        check(&a, inv_session_pop_modes(a.session));
        assert_int_equal(inv_session_pop_modes(a.session), INV_E_ARG); /* of all, one was opened */
        assert_true(step(&a) == step(&b));
        same_state(&a, &b);
        end(&a);
        end(&b);
    }
}

static double grad(fixture *f)
{
    inv_result r;
    check(f, inv_session_grad(f->session, &f->in, 1, &f->target, &r));
    return r.loss;
}

/* A loop of the caller's own has the masks that training has at the same step, others at every step and micro-step, and
 * the same ones when the step is set back, whatever the memory mode. With a learning rate of 0 only masks change. */
static void masks_of_a_loop(void **state)
{
    (void)state;
    static const inv_memory modes[] = {INV_MEMORY_STORE, INV_MEMORY_RECOMPUTE};
    double seen[2][5];
    for (int m = 0; m < 2; m++) {
        fixture own, trained;
        begin_with(&own, DROPOUT, "cpu", modes[m], 0, INV_OPT_NONE);
        begin_with(&trained, DROPOUT, "cpu", modes[m], 0, INV_OPT_SGD);
        for (int i = 0; i < 4; i++) {
            inv_result r;
            seen[m][i] = grad(&own);
            check(&trained, inv_session_step(trained.session, &trained.in, 1, &trained.target, 0, &r));
            assert_true(seen[m][i] == r.loss);
            for (int k = 0; k < i; k++) assert_true(seen[m][k] != seen[m][i]);
        }
        assert_int_equal(inv_session_steps(own.session), 4);
        inv_session_set_step(own.session, 1, 0);
        assert_true(grad(&own) == seen[m][1]);
        assert_true(grad(&own) == seen[m][2]); /* and on from there */
        inv_session_set_step(own.session, 1, 1);
        seen[m][4] = grad(&own);
        for (int k = 0; k < 4; k++) assert_true(seen[m][k] != seen[m][4]);
        assert_true(grad(&own) == seen[m][2]);
        inv_session_set_step(trained.session, 3, 0);
        inv_result r;
        check(&trained, inv_session_step(trained.session, &trained.in, 1, &trained.target, 0, &r));
        assert_true(r.loss == seen[m][3]);
        end(&own);
        end(&trained);
    }
    assert_memory_equal(seen[0], seen[1], sizeof seen[0]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(toggled_equals_left_alone),
        cmocka_unit_test(state_stays),
        cmocka_unit_test(scopes_restore),
        cmocka_unit_test(blocks_by_name),
        cmocka_unit_test(refused_changes_nothing),
        cmocka_unit_test(budget_refuses),
        cmocka_unit_test(out_of_memory),
        cmocka_unit_test(masks_of_a_loop),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
