/* SPDX-License-Identifier: Apache-2.0
 * Early updates beside guards: guards decide before backward begins. Steps are those of late updates, bit for bit, with
 * fewer gradients at once, and a step that a guard refuses leaves all that persists as it was: weights, states of the
 * optimizer, averages, accumulated gradients. Fails if an update does not wait for the guards, or if what they have
 * compared is not what backward has. */
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

enum { ROWS = 64, WIDTH = 16, BLOCKS = 3 };

static const inv_optimizer optimizers[] = {INV_OPT_SGD,  INV_OPT_MOMENTUM, INV_OPT_ADAM, INV_OPT_ADAMW,
                                           INV_OPT_LION, INV_OPT_RMSPROP,  INV_OPT_LAMB, INV_OPT_ADAFACTOR,
                                           INV_OPT_MUON, INV_OPT_ADAMW8};
static const char *const devices[] = {"cpu", "checked", "sim"};
#define EACH(i, list) for (size_t i = 0; i < sizeof list / sizeof *list; i++)
/* All optimizers on the host, some on each other device. */
#define HERE(d, k) ((d) == 0 || (k) % 5 == (d))

/* Couplings whose branches have a kink, so that guards compare signs, too. */
static void couplings(char *text, size_t most)
{
    size_t n = 0;
#define ADD(...) n += (size_t)snprintf(text + n, most - n, __VA_ARGS__)
    ADD("g(float[64,16] x) => (y) {\nparam float[16,16] stem\n");
    for (int i = 0; i < BLOCKS; i++) ADD("param float[8,8] a%d\nparam float[8,8] b%d\n", i, i);
    ADD("s = MatMul(x, stem)\nu0, v0 = Split<axis = 1, num_outputs = 2>(s)\n");
    for (int i = 0; i < BLOCKS; i++)
        ADD("f%d = MatMul(v%d, a%d)\ng%d = Tanh(f%d)\nu%d = Add(u%d, g%d)\n"
            "h%d = MatMul(u%d, b%d)\nk%d = Relu(h%d)\nv%d = Add(v%d, k%d)\n",
            i, i, i, i, i, i + 1, i, i, i, i + 1, i, i, i, i + 1, i, i);
    ADD("y = Concat<axis = 1>(u%d, v%d)\n}\n", BLOCKS, BLOCKS);
#undef ADD
    assert_true(n < most);
}

typedef struct run {
    inv_graph *g;
    inv_model model;
    inv_session *s;
    float x[ROWS * WIDTH], y[ROWS * WIDTH];
    int64_t dims[2];
    inv_array in, target;
} run;

static char *plans[2]; /* of modes invert and recompute, searched for once */

static void begin(run *r, inv_session_options o)
{
    char text[4096];
    uint64_t h = 88172645463325252u;
    couplings(text, sizeof text);
    if (inv_graph_parse(ctx, text, &r->g) != INV_OK) fail_msg("%s", inv_context_message(ctx));
    for (size_t i = 0; i < r->g->inits.n; i++) {
        inv_value *v = inv_val(r->g, r->g->inits.at[i]);
        const size_t ne = (size_t)inv_shape_nelem(&v->shape);
        float *data = inv_arena_alloc(&r->g->arena, ne * sizeof *data);
        assert_non_null(data);
        for (size_t k = 0; k < ne; k++) {
            h ^= h << 13, h ^= h >> 7, h ^= h << 17;
            data[k] = (float)((double)(h >> 11) * 0x1p-53) - 0.5f;
        }
        v->data = (inv_data){INV_F32, v->shape, data, ne * sizeof *data};
    }
    for (int i = 0; i < ROWS * WIDTH; i++) r->x[i] = (float)(i * 37 % 101) / 101 - 0.5f, r->y[i] = (float)(i % 7) / 7;
    r->dims[0] = ROWS, r->dims[1] = WIDTH;
    r->in = (inv_array){.name = "x", .dtype = INV_F32, .rank = 2, .dims = r->dims, .data = r->x};
    r->target = (inv_array){.name = "target", .dtype = INV_F32, .rank = 2, .dims = r->dims, .data = r->y};
    r->model = (inv_model){.ctx = ctx, .path = "text", .graph = r->g};
    const char *out = "y";
    const inv_optimizer_numbers numbers = inv_optimizer_defaults(o.optimizer);
    o.size = sizeof o;
    o.purpose = INV_FOR_TRAIN;
    o.threads = 1;
    o.momentum = numbers.momentum, o.beta1 = numbers.beta1, o.beta2 = numbers.beta2, o.epsilon = numbers.epsilon;
    o.weight_decay = 0.01;
    o.inputs = &r->in;
    o.ninputs = 1;
    o.target = &r->target;
    o.loss = INV_LOSS_MSE;
    o.loss_outputs = &out;
    o.nloss_outputs = 1;
    r->s = NULL;
    char **plan = &plans[o.memory == INV_MEMORY_RECOMPUTE];
    o.plan = *plan;
    if (inv_session_create(&r->model, &o, &r->s) != INV_OK) fail_msg("%s", inv_context_message(ctx));
    if (!*plan) assert_int_equal(inv_session_plan(r->s, plan), INV_OK);
}

static void end(run *r)
{
    inv_session_destroy(r->s);
    inv_graph_destroy(r->g);
}

/* One step, or one micro-batch of it. */
static inv_status go(run *r, inv_result *result)
{
    r->x[0] += 0.125f; /* another batch */
    return r->s->program->options.accumulate ? inv_session_accumulate(r->s, &r->in, 1, &r->target, result)
                                             : inv_session_step(r->s, &r->in, 1, &r->target, 0.01, result);
}

/* A copy of all that persists. */
static unsigned char *persistent(const run *r)
{
    unsigned char *all = malloc(r->s->persistent_nbytes + 1);
    assert_non_null(all);
    assert_int_equal(r->s->device->download(r->s->self, all, r->s->persistent, r->s->persistent_nbytes), INV_OK);
    return all;
}

static size_t most_gradients(const inv_plan *p)
{
    size_t most = 0;
    for (size_t i = 0; i < p->g->order.n; i++)
        if (p->live[i].bytes[INV_MEM_GRAD] > most) most = p->live[i].bytes[INV_MEM_GRAD];
    return most;
}

/* Weights and states, which have another order. */
static void same_contents(const run *a, const run *b)
{
    unsigned char *x = persistent(a), *y = persistent(b);
    const inv_program *p = a->s->program, *q = b->s->program;
    for (size_t i = 0; i < p->storage.n; i++) {
        const inv_storage *s = &p->storage.at[i], *t = NULL;
        if (s->kind == INV_STORAGE_CONST) continue;
        for (size_t k = 0; k < q->storage.n; k++)
            if (q->storage.at[k].name && strcmp(q->storage.at[k].name, s->name) == 0) t = &q->storage.at[k];
        assert_true(t && t->nbytes == s->nbytes);
        assert_memory_equal(x + s->offset, y + t->offset, s->nbytes);
    }
    free(x);
    free(y);
}

/* With the same plan, so that the same values are rebuilt. */
static void steps_are_those_of_late_updates(void **state)
{
    (void)state;
    run late, early;
    inv_result a, b;
    EACH(d, devices) EACH(k, optimizers) for (int full = 0; full < 2; full++)
    {
        if (!HERE(d, k) || (full && k > 2)) continue;
        inv_session_options o = {.device = devices[d],
                                 .optimizer = optimizers[k],
                                 .memory = full ? INV_MEMORY_RECOMPUTE : INV_MEMORY_INVERT,
                                 .guard = full ? INV_GUARD_FULL : INV_GUARD_ON};
        begin(&late, o);
        o.early_update = true;
        begin(&early, o);
        const inv_plan *p = &late.s->program->plan[INV_PLAN_MAIN], *q = &early.s->program->plan[INV_PLAN_MAIN];
        assert_true(q->g->early && q->guarded.n == p->guarded.n && q->guarded.n > BLOCKS / 2);
        assert_true(most_gradients(q) < most_gradients(p) / 2);
        for (int i = 0; i < 3; i++) {
            assert_int_equal(go(&late, &a), INV_OK);
            assert_int_equal(go(&early, &b), INV_OK);
            assert_true(a.loss == b.loss && a.drift == b.drift && b.fallbacks == 0);
        }
        same_contents(&late, &early);
        end(&late);
        end(&early);
    }
}

static inv_status no_plan(inv_program *p)
{
    for (int k = 0; k < INV_PLAN_KINDS; k++) p->plan[k].g = NULL;
    return INV_E_NOMEM;
}

/* One guard of the plan refuses whatever it sees. */
static void have_one_refuse(const run *r, size_t slot)
{
    inv_graph *g = r->s->program->plan[INV_PLAN_MAIN].g;
    for (size_t i = 0; i < g->order.n; i++) {
        const inv_node *n = inv_nod(g, g->order.at[i]);
        if (strcmp(n->op->name, "GuardCheck") != 0 || inv_attr_int(n, "slot", -1) != (int64_t)slot) continue;
        for (uint32_t k = 0; k < n->nattr; k++)
            if (strcmp(n->attr[k].name, "limit") == 0) ((inv_attr *)(uintptr_t)&n->attr[k])->f = -1;
    }
}

/* Where planning again fails as well, what the refused step leaves is to be seen. */
static void a_refused_step_changes_nothing(void **state)
{
    (void)state;
    run r;
    inv_result result;
    EACH(d, devices) EACH(k, optimizers) for (int how = 0; how < 4; how++)
    {
        const bool whole = optimizers[k] == INV_OPT_LAMB || optimizers[k] == INV_OPT_ADAFACTOR ||
                           optimizers[k] == INV_OPT_MUON; /* no form for weights in bfloat16, nor has the device sim */
        if (!HERE(d, k) || (how == 3 && (whole || d == 2))) continue;
        begin(&r, (inv_session_options){.device = devices[d],
                                        .optimizer = optimizers[k],
                                        .memory = INV_MEMORY_INVERT,
                                        .early_update = true,
                                        .accumulate = how == 1,
                                        .average = how == 2,
                                        .weights = how == 3 ? INV_BF16 : 0});
        const size_t guards = r.s->program->plan[INV_PLAN_MAIN].guarded.n;
        unsigned char *first = persistent(&r);
        assert_int_equal(go(&r, &result), INV_OK);
        unsigned char *was = persistent(&r);
        assert_memory_not_equal(first, was, r.s->persistent_nbytes);
        have_one_refuse(&r, (k + (size_t)how) % 3 == 0 ? guards - 1 : k % guards);
        r.s->program->max_drift = 0;
        inv_status (*const replan)(inv_program * p) = r.s->program->replan;
        r.s->program->replan = no_plan;
        assert_int_equal(go(&r, &result), INV_E_NOMEM);
        unsigned char *is = persistent(&r);
        assert_memory_equal(was, is, r.s->persistent_nbytes);
        free(first), free(is);
        if (how == 0) { /* what is refused is kept: the step is made */
            r.s->program->replan = replan;
            assert_int_equal(go(&r, &result), INV_OK);
            assert_true(result.fallbacks > 0);
            is = persistent(&r);
            assert_memory_not_equal(was, is, r.s->persistent_nbytes);
            free(is);
        }
        free(was);
        end(&r);
    }
}

static int finish(void **state)
{
    for (int i = 0; i < 2; i++) inv_free(ctx, plans[i]);
    return teardown(state);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(steps_are_those_of_late_updates),
        cmocka_unit_test(a_refused_step_changes_nothing),
    };
    return cmocka_run_group_tests(tests, setup, finish);
}
