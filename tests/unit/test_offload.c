/* SPDX-License-Identifier: Apache-2.0
 * Values in host memory meanwhile (passes/recover/recover.c, executor/run/transfer.c), on device `sim`. Training with
 * every value offloaded gives the bits of training with all stored: on full and smaller batches, in first and recorded
 * steps, in turns with other modes. The waits between the queues are there for something. The verifier sees what is in
 * the wrong memory. The planner offloads where that is cheaper than computing again, and never where there is one
 * memory.
 * */
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
#include "executor/device/sim.h"
#include "executor/executor.h"
#include "params.h"
#include "passes/schedule/schedule.h"
#include "with_context.h"

#define MODELS INV_TEST_DATA "/models/"
#define SMALL MODELS "nice_split_uneven_ts17/model.onnx"
enum { MOST = 8192 };

/* Dropout (masks of the step), convolutions, couplings. */
static const char *const models[] = {MODELS "hz_dropout_train_ts17/model.onnx", MODELS "plain_lenet_ts17/model.onnx",
                                     SMALL};
static const inv_mode_rule all = {"*", INV_MEMORY_OFFLOAD};

typedef struct job {
    const char *model;
    bool offload;
    inv_memory memory;
    inv_optimizer optimizer;
    inv_guard guard;
} job;

typedef struct fixture {
    inv_model *model;
    inv_session *session;
    inv_array in[2], target[2]; /* whole, smaller */
    int64_t dims[4][INV_MAX_RANK];
    float *data[2];
} fixture;

static void check(inv_status s)
{
    if (s != INV_OK) fail_msg("%s", inv_context_message(ctx));
}

static void make_arrays(fixture *f, int i, inv_array *x, const inv_value *v, int64_t rows)
{
    inv_shape s = v->shape;
    s.dim[0] = rows;
    const size_t n = (size_t)inv_shape_nelem(&s);
    f->data[i] = malloc(n * sizeof(float));
    assert_non_null(f->data[i]);
    for (size_t k = 0; k < n; k++) f->data[i][k] = (float)sin(0.7 * (double)k + i);
    for (int k = 0; k < 2; k++) {
        memcpy(f->dims[2 * i + k], s.dim, sizeof s.dim);
        f->dims[2 * i + k][0] -= k;
        x[k] = (inv_array){v->name, INV_F32, s.rank, f->dims[2 * i + k], f->data[i], NULL};
    }
}

static void begin(fixture *f, const job *j)
{
    memset(f, 0, sizeof *f);
    check(inv_model_load(ctx, j->model, &f->model));
    const inv_graph *g = f->model->graph;
    const inv_value *in = inv_val(g, g->inputs.at[0]), *out = inv_val(g, g->outputs.at[0]);
    const int64_t rows = in->shape.dim[0] < 2 ? 4 : in->shape.dim[0];
    make_arrays(f, 0, f->in, in, rows);
    make_arrays(f, 1, f->target, out, rows);
    const inv_session_options o = {.size = sizeof o,
                                   .purpose = INV_FOR_TRAIN,
                                   .loss = INV_LOSS_MSE,
                                   .inputs = f->in,
                                   .ninputs = 1,
                                   .target = f->target,
                                   .loss_outputs = &out->name,
                                   .nloss_outputs = 1,
                                   .memory = j->memory,
                                   .guard = j->guard,
                                   .modes = &all,
                                   .nmodes = j->offload,
                                   .device = "sim",
                                   .optimizer = j->optimizer,
                                   .tail_batch = j->optimizer ? rows - 1 : 0,
                                   .eval_batch = j->optimizer ? rows : 0,
                                   .momentum = 0.9,
                                   .beta1 = 0.9,
                                   .beta2 = 0.999,
                                   .epsilon = 1e-8};
    check(inv_session_create(f->model, &o, &f->session));
}

static void end(fixture *f)
{
    inv_session_destroy(f->session);
    inv_model_destroy(f->model);
    free(f->data[0]);
    free(f->data[1]);
}

static const inv_plan *plan_of(const fixture *f) { return &f->session->program->plan[INV_PLAN_MAIN]; }

static size_t count(const fixture *f, inv_choice c)
{
    size_t n = 0;
    for (size_t i = 0; i < plan_of(f)->choice.n; i++) n += plan_of(f)->choice.at[i].choice == c;
    return n;
}

static double step(fixture *f, bool small)
{
    inv_result r;
    check(inv_session_step(f->session, &f->in[small], 1, &f->target[small], 0.01, &r));
    assert_true(r.drift == 0);
    return r.loss;
}

static size_t train(fixture *f, double *out)
{
    size_t n = 0;
    inv_result r;
    for (int i = 0; i < 6; i++) out[n++] = step(f, i == 3);
    check(inv_session_eval(f->session, f->in, 1, f->target, &r));
    out[n++] = r.loss;
    return add_params(f->session, out, n, MOST);
}

static void bits_of_store(void **state)
{
    (void)state;
    static const inv_optimizer optimizers[] = {INV_OPT_SGD, INV_OPT_MOMENTUM, INV_OPT_ADAM, INV_OPT_ADAMW};
    static double store[MOST], got[MOST];
    for (size_t m = 0; m < sizeof models / sizeof *models; m++) {
        fixture f;
        job j = {.model = models[m], .memory = INV_MEMORY_STORE, .optimizer = optimizers[m]};
        begin(&f, &j);
        const size_t n = train(&f, store);
        assert_int_equal(f.session->program->host, 0);
        end(&f);
        j.offload = true;
        for (int k = 0; k < (m == 2 ? 3 : 1); k++) { /* how else values may be had does not matter: all is asked for */
            j.memory = (const inv_memory[]){INV_MEMORY_AUTO, INV_MEMORY_RECOMPUTE, INV_MEMORY_INVERT}[k];
            j.guard = k == 2 ? INV_GUARD_FULL : INV_GUARD_ON;
            inv_sim_faults_next = (inv_sim_faults){.seed = 4 * m + (size_t)k};
            begin(&f, &j);
            assert_true(count(&f, INV_OFFLOADED) > 1);
            assert_int_equal(count(&f, INV_RECOMPUTED) + count(&f, INV_INVERTED), 0);
            assert_true(f.session->program->host > 0);
            assert_int_equal(plan_of(&f)->guarded.n > 0, k == 2);
            assert_int_equal(train(&f, got), n);
            if (memcmp(got, store, n * sizeof *got) != 0) fail_msg("%s, memory %d", models[m], (int)j.memory);
            assert_non_null(f.session->run[INV_PLAN_MAIN].graph); /* else nothing was replayed */
            end(&f);
        }
    }
    inv_sim_faults_next = (inv_sim_faults){0};
}

/* All in host memory for some steps, then computed again, then kept. */
static void in_turns(void **state)
{
    (void)state;
    static const inv_memory memories[] = {INV_MEMORY_AUTO, INV_MEMORY_RECOMPUTE, INV_MEMORY_STORE};
    static double store[MOST], got[MOST];
    fixture a, b;
    const job j = {.model = SMALL, .memory = INV_MEMORY_STORE, .optimizer = INV_OPT_ADAM};
    begin(&a, &j);
    begin(&b, &j);
    for (int i = 0; i < 9; i++) {
        const inv_modes modes = {.size = sizeof modes,
                                 .memory = &memories[i / 2 % 3],
                                 .replace = true,
                                 .rules = &all,
                                 .nrules = i / 2 % 3 == 0};
        if (i % 2 == 0) check(inv_session_set_modes(b.session, &modes));
        assert_int_equal(count(&b, INV_OFFLOADED) > 0, i / 2 % 3 == 0);
        assert_int_equal(b.session->program->host > 0, i / 2 % 3 == 0);
        assert_true(step(&a, i % 3 == 2) == step(&b, i % 3 == 2));
    }
    const size_t n = add_params(a.session, store, 0, MOST);
    assert_int_equal(add_params(b.session, got, 0, MOST), n);
    assert_memory_equal(got, store, n * sizeof *got);
    end(&a);
    end(&b);
}

static void frees_memory(void **state)
{
    (void)state;
    fixture f;
    job j = {.model = MODELS "revnet8_ts17/model.onnx", .memory = INV_MEMORY_STORE};
    begin(&f, &j);
    const size_t peak = f.session->program->transient;
    end(&f);
    j = (job){.model = j.model, .offload = true};
    begin(&f, &j);
    assert_true(f.session->program->transient < peak / 2);
    assert_true(f.session->program->host > peak / 2);
    assert_int_equal(f.session->device->peak(f.session->self),
                     f.session->program->persistent + f.session->program->control + f.session->program->transient);
    end(&f);
}

/* --- waits --- */

static double *gradient(const job *j, inv_status *s, size_t *n)
{
    static double out[MOST];
    fixture f;
    inv_result r;
    begin(&f, j);
    *s = inv_session_grad(f.session, f.in, 1, f.target, &r);
    *n = 0;
    out[(*n)++] = r.loss;
    const char *name;
    for (size_t i = 0; *s == INV_OK && (name = inv_session_name(f.session, INV_GET_GRAD, i)); i++) {
        const void *data;
        inv_dtype t;
        int rank;
        int64_t dims[INV_MAX_RANK], ne = 1;
        check(inv_session_get(f.session, INV_GET_GRAD, name, &data, &t, &rank, dims));
        for (int d = 0; d < rank; d++) ne *= dims[d];
        for (int64_t k = 0; k < ne && *n < MOST; k++) out[(*n)++] = inv_elem_double(data, t, (size_t)k);
    }
    end(&f);
    return out;
}

/* Without the waits for one event, in some order of the queues a gradient comes out wrong, or what watches memory says
 * so. Not for every one: copies stand in one queue, so that a wait for the next may be one for this, too, and bytes may
 * happen to be free. But most of those by which a copy waits for what it copies, or its reader for it, stand alone. */
static void each_wait_matters(void **state)
{
    (void)state;
    enum { READY, COPIED, RELEASED, EVENTS, SEEDS = 20 }; /* as transfer.c numbers them */
    static double right[MOST];
    const job j = {.model = SMALL, .offload = true};
    static struct {
        bool out, feed;
    } is[256];
    size_t missed[2][EVENTS] = {{0}}, of[2][EVENTS] = {{0}}, n, m, ntransfer;
    fixture f;
    inv_status s;
    begin(&f, &j);
    const inv_runnable *r = &f.session->run[INV_PLAN_MAIN];
    ntransfer = r->ntransfer;
    assert_true(ntransfer < 256);
    for (size_t i = 0; i < ntransfer; i++) {
        is[i].out = r->transfer[i].out;
        is[i].feed = (r->node[r->transfer[i].at].node->op->flags & INV_OP_SOURCE) != 0;
    }
    end(&f);
    memcpy(right, gradient(&j, &s, &n), sizeof right);
    assert_int_equal(s, INV_OK);
    for (size_t e = 0; e < EVENTS * ntransfer; e++) {
        if (is[e / EVENTS].feed || (!is[e / EVENTS].out && e % EVENTS == RELEASED)) continue;
        bool seen = false;
        for (uint64_t seed = 0; seed < SEEDS && !seen; seed++) {
            inv_sim_faults_next = (inv_sim_faults){.seed = seed, .drop_event = e + 2}; /* event 0 is that of ahead.c */
            const double *got = gradient(&j, &s, &m);
            seen = s != INV_OK || memcmp(got, right, n * sizeof *got) != 0;
        }
        of[is[e / EVENTS].out][e % EVENTS]++;
        missed[is[e / EVENTS].out][e % EVENTS] += !seen;
    }
    inv_sim_faults_next = (inv_sim_faults){0};
    for (int out = 0; out < 2; out++)
        for (int e = 0; e < EVENTS; e++)
            print_message("%s, event %d: %zu of %zu seen\n", out ? "out" : "in", e, of[out][e] - missed[out][e],
                          of[out][e]);
    assert_true(of[0][COPIED] > 3 && 2 * missed[0][COPIED] <= of[0][COPIED]);
    assert_true(of[1][READY] > 3 && 2 * missed[1][READY] <= of[1][READY]);
    const size_t room = of[0][READY] + of[1][COPIED] + of[1][RELEASED]; /* that bytes are free */
    assert_true(missed[0][READY] + missed[1][COPIED] + missed[1][RELEASED] <= room - room / 4);
}

/* Where there are bytes to spare, every copy has nodes to run beside: what was offloaded is held, and fetched ahead. */
static void time_to_copy(void **state)
{
    (void)state;
    fixture f;
    const job j = {.model = models[1], .offload = true};
    size_t n[2] = {0}, beside[2] = {0};
    begin(&f, &j);
    const inv_runnable *r = &f.session->run[INV_PLAN_MAIN];
    for (size_t i = 0; i < r->ntransfer; i++) {
        const inv_transfer *t = &r->transfer[i];
        if (r->node[t->at].node->op->flags & INV_OP_SOURCE) continue;
        n[t->out]++;
        beside[t->out] += t->until > (t->out ? t->at : t->from) + 3; /* nodes, the copy itself among them */
    }
    print_message("beside two nodes and more: %zu of %zu to the host, %zu of %zu back\n", beside[1], n[1], beside[0],
                  n[0]);
    assert_true(n[1] > 5 && n[0] > 5);
    assert_int_equal(beside[1], n[1]);
    assert_int_equal(beside[0], n[0]);
    end(&f);
}

/* --- the verifier --- */

static bool refused(const fixture *f, const char *says)
{
    const inv_status s = inv_plan_verify(plan_of(f)->g, plan_of(f), NULL);
    if (s == INV_OK) return false;
    if (!strstr(inv_context_message(ctx), says)) fail_msg("%s", inv_context_message(ctx));
    return true;
}

static void wrong_memory_is_seen(void **state)
{
    (void)state;
    fixture f;
    const job j = {.model = SMALL, .offload = true};
    begin(&f, &j);
    inv_graph *g = plan_of(&f)->g;
    size_t copies = 0, readers = 0;
    assert_false(refused(&f, ""));
    inv_value *host[2] = {NULL, NULL}; /* the first two are there at once: none has come back yet */
    for (size_t i = 0; i < g->order.n; i++) {
        inv_node *n = inv_nod(g, g->order.at[i]);
        if (!(n->op->flags & INV_OP_TRANSFER)) {
            for (uint32_t k = 0; k < n->nin && host[0]; k++) { /* a kernel that is given what is on the host */
                const inv_id was = n->in[k];
                if (was == INV_NONE) continue;
                n->in[k] = (inv_id)(host[0] - g->value.at);
                assert_true(refused(&f, "which is in host memory"));
                n->in[k] = was;
                readers++;
            }
            continue;
        }
        inv_value *to = inv_val(g, n->out[0]);
        if (to->mem == INV_MEM_HOST) host[host[0] != NULL] = host[1] ? host[1] : to;
        const uint8_t mem = to->mem;
        to->mem = mem == INV_MEM_HOST ? INV_MEM_ACT : INV_MEM_HOST;
        assert_true(refused(&f, "within one memory"));
        to->mem = mem;
        copies++;
    }
    assert_true(copies > 4 && readers > 4 && host[1]);
    const size_t offset = host[1]->offset;
    host[1]->offset = host[0]->offset; /* two copies on the same bytes */
    assert_true(refused(&f, "is still read"));
    host[1]->offset = g->host_nbytes;
    assert_true(refused(&f, "of an arena of"));
    host[1]->offset = offset;
    assert_false(refused(&f, ""));
    end(&f);
}

/* --- the planner --- */

/* Only the shift is trained, so backward goes through all activations and makes no gradients as large as they.
 * A product with 4096 terms takes more time than its result on the way to the host. */
#define LAYER(x, w, y) "m" y " = MatMul(" x ", " w ")\n" y " = Tanh(m" y ")\n"
static const char deep[] =
    "g(float[64,4096] x) => (y) {\nparam float[4096] u\nparam float[4096,4096] v\n"
    "s = Add(x, u)\n" LAYER("s", "v", "a") LAYER("a", "v", "b") LAYER("b", "v", "c") LAYER("c", "v", "d")
        LAYER("d", "v", "e") LAYER("e", "v", "f") LAYER("f", "v", "y") "}\n";

typedef struct outcome {
    inv_status status;
    size_t peak, store, host, of[INV_CHOICES];
    double overhead;
} outcome;

static outcome plan_deep(const char *device, inv_memory memory, uint64_t budget, const inv_mode_rule *mode)
{
    static const int64_t dims[2] = {64, 4096};
    static const char *const trained = "u";
    outcome got = {0};
    inv_graph *g;
    check(inv_graph_parse(ctx, deep, &g));
    inv_model model = {.ctx = ctx, .path = "text", .graph = g};
    inv_session *s;
    const inv_array in = {.name = "x", .dtype = INV_F32, .rank = 2, .dims = dims},
                    target = {.name = "target", .dtype = INV_F32, .rank = 2, .dims = dims};
    const inv_session_options o = {.size = sizeof o,
                                   .purpose = INV_FOR_TRAIN,
                                   .inputs = &in,
                                   .ninputs = 1,
                                   .target = &target,
                                   .loss = INV_LOSS_MSE,
                                   .train_only = &trained,
                                   .ntrain_only = 1,
                                   .memory = memory,
                                   .device = device,
                                   .budget = budget,
                                   .plan_only = true,
                                   .modes = mode,
                                   .nmodes = mode != NULL};
    got.status = inv_session_create(&model, &o, &s);
    if (got.status == INV_OK) {
        const inv_program *p = s->program;
        const inv_plan *plan = &p->plan[INV_PLAN_MAIN];
        got.peak = p->persistent + p->control + p->transient;
        got.host = p->host;
        got.overhead = plan->overhead;
        for (size_t i = 0; i < plan->choice.n; i++) got.of[plan->choice.at[i].choice]++;
        inv_session_destroy(s);
    }
    inv_graph_destroy(g);
    return got;
}

static void chosen_where_cheaper(void **state)
{
    (void)state;
    const outcome store = plan_deep("sim", INV_MEMORY_STORE, 0, NULL);
    const uint64_t budget = store.peak - (3 << 20); /* three activations less */
    const outcome sim = plan_deep("sim", INV_MEMORY_AUTO, budget, NULL),
                  cpu = plan_deep("cpu", INV_MEMORY_AUTO, budget, NULL),
                  again = plan_deep("sim", INV_MEMORY_RECOMPUTE, budget, NULL);
    print_message("within %zu bytes of %zu: +%.1f %% offloaded, +%.1f %% computed again\n", (size_t)budget, store.peak,
                  100 * sim.overhead, 100 * again.overhead);
    assert_int_equal(store.host, 0);
    assert_true(sim.peak <= budget && again.peak <= budget);
    assert_true(sim.of[INV_OFFLOADED] > 0 && sim.host >= 2 << 20);
    assert_true(sim.overhead < again.overhead);
    assert_int_equal(cpu.of[INV_OFFLOADED] + again.of[INV_OFFLOADED], 0);
    assert_int_equal(cpu.host + again.host, 0);
    /* without a budget what counts is the product of memory and time */
    const outcome freely = plan_deep("sim", INV_MEMORY_AUTO, 0, NULL);
    assert_true((double)freely.peak * (1 + freely.overhead) <= 1.02 * (double)sim.peak * (1 + sim.overhead));
}

static void refused_by_name(void **state)
{
    (void)state;
    static const char *const devices[] = {NULL, "cpu", "checked"};
    const inv_mode_rule rule = {"b", INV_MEMORY_OFFLOAD};
    for (size_t i = 0; i < 3; i++) {
        assert_int_equal(plan_deep(devices[i], INV_MEMORY_AUTO, 0, &rule).status, INV_E_ARG);
        assert_non_null(strstr(inv_context_message(ctx), "b=offload: device "));
        assert_non_null(strstr(inv_context_message(ctx), i == 2 ? "device checked" : "device cpu"));
    }
    assert_int_equal(plan_deep("sim", INV_MEMORY_OFFLOAD, 0, NULL).status, INV_E_ARG);
    assert_non_null(strstr(inv_context_message(ctx), "modes, with '*'"));
    const outcome one = plan_deep("cuda", INV_MEMORY_AUTO, 0, &rule); /* plans need no device */
    assert_int_equal(one.status, INV_OK);
    assert_true(one.of[INV_OFFLOADED] > 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bits_of_store),        cmocka_unit_test(in_turns),
        cmocka_unit_test(frees_memory),         cmocka_unit_test(each_wait_matters),
        cmocka_unit_test(time_to_copy),         cmocka_unit_test(wrong_memory_is_seen),
        cmocka_unit_test(chosen_where_cheaper), cmocka_unit_test(refused_by_name),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
