/* SPDX-License-Identifier: Apache-2.0
 * Sessions on device `sim`: what the executor does with queues. Training there equals training on the host, whatever
 * the order in which queues take turns; recorded steps take their numbers from the step they run in; failures are
 * errors that end the session, never a hang or a wrong number; memory is what was planned. */
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
#include "executor/device/sim.h"
#include "executor/executor.h"
#include "params.h"

#define MODELS INV_TEST_DATA "/models/"
#define MOST 4096

typedef struct job {
    const char *model;
    const char *device;
    inv_memory memory;
    inv_optimizer optimizer;
    bool float64;
    double max_drift;
    uint64_t budget;
    bool ahead, accumulate, invert; /* the last: single values, whatever the mode */
} job;

typedef struct fixture {
    size_t made, fail_at; /* allocations; the one that fails, 0: none */
    inv_allocator allocator;
    inv_context *ctx;
    inv_model *model;
    inv_session *session;
    inv_array in, target, tail_in, tail_target;
    int64_t dims[4][INV_MAX_RANK];
    float *data[2];
} fixture;

static void *counted_alloc(void *opaque, size_t nbytes)
{
    fixture *f = opaque;
    return ++f->made == f->fail_at ? NULL : malloc(nbytes);
}

static void counted_free(void *opaque, void *p)
{
    (void)opaque;
    free(p);
}

static void make_array(fixture *f, int i, inv_array *x, inv_array *tail, const char *name, const inv_value *v)
{
    inv_shape s = v->shape;
    if (s.dim[0] < 2) s.dim[0] = 4;
    size_t n = (size_t)inv_shape_nelem(&s);
    memcpy(f->dims[i], s.dim, sizeof s.dim);
    memcpy(f->dims[i + 2], s.dim, sizeof s.dim);
    f->dims[i + 2][0] = s.dim[0] - 1;
    f->data[i] = malloc(n * sizeof(float));
    for (size_t k = 0; k < n; k++) f->data[i][k] = (float)sin(0.7 * (double)k + i);
    *x = (inv_array){.name = name, .dtype = INV_F32, .rank = s.rank, .dims = f->dims[i], .data = f->data[i]};
    *tail = *x;
    tail->dims = f->dims[i + 2];
}

static inv_status begin(fixture *f, const job *j)
{
    memset(f, 0, sizeof *f);
    f->allocator = (inv_allocator){counted_alloc, counted_free, f};
    inv_context_options c = {.size = sizeof c, .allocator = &f->allocator};
    assert_int_equal(inv_context_create(&c, &f->ctx), INV_OK);
    if (inv_model_load(f->ctx, j->model, &f->model) != INV_OK) fail_msg("%s", inv_context_message(f->ctx));
    const inv_graph *g = f->model->graph;
    const inv_value *in = inv_val(g, g->inputs.at[0]), *out = inv_val(g, g->outputs.at[0]);
    make_array(f, 0, &f->in, &f->tail_in, in->name, in);
    make_array(f, 1, &f->target, &f->tail_target, "target", out);
    f->dims[1][0] = f->dims[0][0];
    f->dims[3][0] = f->dims[2][0];
    static const inv_mode_rule all = {"*", INV_MEMORY_INVERT};
    inv_session_options o = {.size = sizeof o,
                             .purpose = INV_FOR_TRAIN,
                             .loss = INV_LOSS_MSE,
                             .inputs = &f->in,
                             .ninputs = 1,
                             .target = &f->target,
                             .loss_outputs = &out->name,
                             .nloss_outputs = 1,
                             .memory = j->memory,
                             .device = j->device,
                             .float64 = j->float64,
                             .max_drift = j->max_drift,
                             .budget = j->budget,
                             .send_ahead = j->ahead,
                             .accumulate = j->accumulate,
                             .modes = &all,
                             .nmodes = j->invert,
                             .optimizer = j->optimizer,
                             .tail_batch = j->optimizer ? f->dims[2][0] : 0,
                             .eval_batch = j->optimizer ? f->dims[0][0] : 0,
                             .momentum = j->optimizer == INV_OPT_SGD ? 0 : 0.9,
                             .beta1 = 0.9,
                             .beta2 = 0.999,
                             .epsilon = 1e-8};
    return inv_session_create(f->model, &o, &f->session);
}

static void end(fixture *f)
{
    inv_session_destroy(f->session);
    inv_model_destroy(f->model);
    inv_context_destroy(f->ctx);
    free(f->data[0]);
    free(f->data[1]);
}

static void check(const fixture *f, inv_status s)
{
    if (s != INV_OK) fail_msg("%s", inv_context_message(f->ctx));
}

/* Six steps with another learning rate each, the fourth on the smaller batch, then an evaluation; all results in
 * `out`: losses, then every parameter. */
static size_t train(fixture *f, double *out)
{
    size_t n = 0;
    inv_result r;
    for (int i = 0; i < 6; i++) {
        bool tail = i == 3;
        check(f, inv_session_step(f->session, tail ? &f->tail_in : &f->in, 1, tail ? &f->tail_target : &f->target,
                                  0.01 / (i + 1), &r));
        out[n++] = r.loss;
    }
    check(f, inv_session_eval(f->session, &f->in, 1, &f->target, &r));
    out[n++] = r.loss;
    return add_params(f->session, out, n, MOST);
}

static double distance(const double *a, const double *b, size_t n)
{
    double sum = 0, of = 0;
    for (size_t i = 0; i < n; i++) {
        sum += (a[i] - b[i]) * (a[i] - b[i]);
        of += b[i] * b[i];
    }
    return sqrt(sum / of);
}

static double report_number(fixture *f, const char *key)
{
    char *text;
    check(f, inv_session_report(f->session, &text));
    json_t *root = json_loads(text, 0, NULL);
    double v = json_number_value(json_object_get(root, key));
    json_decref(root);
    inv_free(f->ctx, text);
    return v;
}

/* Dropout (masks of the step), batch norm (running statistics), couplings, convolutions. */
static const char *const models[] = {MODELS "hz_dropout_train_ts17/model.onnx", MODELS "revnet8_ts17/model.onnx",
                                     MODELS "nice_split_uneven_ts17/model.onnx", MODELS "plain_lenet_ts17/model.onnx"};

static void equals_host(void **state)
{
    (void)state;
    static const inv_memory memories[] = {INV_MEMORY_INVERT, INV_MEMORY_STORE, INV_MEMORY_RECOMPUTE};
    static const inv_optimizer optimizers[] = {INV_OPT_SGD, INV_OPT_MOMENTUM, INV_OPT_ADAM, INV_OPT_ADAMW};
    static double host[MOST], sim[MOST];
    int turn = 0;
    for (size_t m = 0; m < sizeof models / sizeof *models; m++)
        for (size_t k = 0; k < (m == 2 ? 3 : 1); k++, turn++) { /* all modes for the small model */
            fixture f;
            job j = {.model = models[m],
                     .device = "checked",
                     .memory = memories[k],
                     .optimizer = optimizers[turn % 4],
                     .float64 = true};
            check(&f, begin(&f, &j));
            size_t n = train(&f, host);
            end(&f);
            j.device = "sim";
            inv_sim_faults_next = (inv_sim_faults){.seed = (uint64_t)turn};
            check(&f, begin(&f, &j));
            assert_int_equal(train(&f, sim), n);
            double d = distance(sim, host, n);
            if (!(d < 1e-7)) fail_msg("%s, memory %d: %g from the host's", models[m], (int)memories[k], d);
            assert_true(f.session->run[INV_PLAN_MAIN].graph != NULL); /* else nothing was replayed */
            assert_true(report_number(&f, "planned_peak_bytes") == report_number(&f, "peak_bytes"));
            end(&f);
        }
}

/* The wait between the queues is what makes fed data arrive in time: without it the losses must change or fail. */
static void waits_matter(void **state)
{
    (void)state;
    int wrong = 0;
    for (uint64_t seed = 0; seed < 8; seed++) {
        fixture f;
        inv_result r;
        double right;
        job j = {.model = models[2], .device = "sim", .memory = INV_MEMORY_STORE};
        inv_sim_faults_next = (inv_sim_faults){.seed = seed};
        check(&f, begin(&f, &j));
        check(&f, inv_session_grad(f.session, &f.in, 1, &f.target, &r));
        right = r.loss;
        end(&f);
        inv_sim_faults_next = (inv_sim_faults){.seed = seed, .drop_waits = true};
        check(&f, begin(&f, &j));
        inv_status s = inv_session_grad(f.session, &f.in, 1, &f.target, &r);
        wrong += s != INV_OK || r.loss != right;
        end(&f);
    }
    inv_sim_faults_next = (inv_sim_faults){0};
    assert_true(wrong > 0);
}

/* The n-th kernel fails, in eager and in recorded steps: an error that names the node, and a session that has ended. */
static void failing_kernels(void **state)
{
    (void)state;
    bool all = false;
    for (size_t n = 1; !all; n += n < 20 ? 1 : 37) {
        fixture f;
        inv_result r;
        inv_status s = INV_OK;
        job j = {.model = models[2], .device = "sim", .memory = INV_MEMORY_INVERT, .optimizer = INV_OPT_SGD};
        inv_sim_faults_next = (inv_sim_faults){.fail_run = n};
        check(&f, begin(&f, &j));
        for (int i = 0; i < 4 && s == INV_OK; i++) s = inv_session_step(f.session, &f.in, 1, &f.target, 0.01, &r);
        if (s == INV_OK) { /* perhaps in the last commit, which is not waited for */
            all = inv_session_step(f.session, &f.in, 1, &f.target, 0.01, &r) == INV_OK;
        } else {
            assert_int_equal(s, INV_E_DEVICE);
            assert_non_null(strstr(inv_context_message(f.ctx), "node '"));
            assert_int_equal(inv_session_step(f.session, &f.in, 1, &f.target, 0.01, &r), INV_E_ARG);
            assert_non_null(strstr(inv_context_message(f.ctx), "device has failed"));
            assert_int_equal(inv_model_save(f.model, f.session, "lost.onnx"), INV_E_ARG);
        }
        end(&f);
    }
    inv_sim_faults_next = (inv_sim_faults){0};
}

/* The n-th allocation of a step fails, and the step is tried again: it is right then, or the session has ended; and
 * when it is destroyed nothing that is still queued is read (the sanitizers would see it). */
static void failing_allocations(void **state)
{
    (void)state;
    double right[4];
    int ended = 0, repeated = 0;
    for (size_t n = 0, total = 1; n <= total; n++)
        for (int at = 0; at < (n ? 3 : 1); at++) { /* the eager step, the recorded one, a replayed one */
            fixture f;
            inv_result r;
            job j = {.model = models[2], .device = "sim", .memory = INV_MEMORY_INVERT, .optimizer = INV_OPT_SGD};
            check(&f, begin(&f, &j));
            for (int i = 0; i < 4; i++) {
                size_t before = f.made;
                f.fail_at = n && i == at ? before + n : 0;
                inv_status s = inv_session_step(f.session, &f.in, 1, &f.target, 0.1, &r);
                if (!n && f.made - before > total) total = f.made - before;
                if (s != INV_OK) {
                    assert_int_equal(s, INV_E_NOMEM);
                    f.fail_at = 0;
                    repeated++;
                    s = inv_session_step(f.session, &f.in, 1, &f.target, 0.1, &r);
                }
                if (s != INV_OK) {
                    assert_non_null(strstr(inv_context_message(f.ctx), "this session has ended"));
                    ended++;
                    break;
                }
                if (!n) right[i] = r.loss;
                else assert_true(r.loss == right[i]);
            }
            end(&f);
        }
    assert_true(repeated > ended);
}

static void too_little_memory(void **state)
{
    (void)state;
    fixture f;
    inv_result r;
    job j = {.model = models[2], .device = "sim", .memory = INV_MEMORY_INVERT, .optimizer = INV_OPT_SGD};
    check(&f, begin(&f, &j));
    size_t peak = (size_t)report_number(&f, "planned_peak_bytes");
    end(&f);
    inv_sim_faults_next = (inv_sim_faults){.memory = peak};
    check(&f, begin(&f, &j));
    check(&f, inv_session_step(f.session, &f.in, 1, &f.target, 0.01, &r));
    end(&f);
    inv_sim_faults_next = (inv_sim_faults){.memory = peak - 1};
    assert_int_equal(begin(&f, &j), INV_E_NOMEM);
    assert_non_null(strstr(inv_context_message(f.ctx), "budget"));
    end(&f);
    inv_sim_faults_next = (inv_sim_faults){0};
}

/* A step that goes wrong, queued node by node, recorded and replayed: it says so, and the update that stands behind it
 * in the queue has changed nothing. */
static void wrong_steps_change_nothing(void **state)
{
    (void)state;
    static double before[MOST], after[MOST];
    for (int at = 0; at < 3; at++) {
        fixture f;
        inv_result r;
        job j = {
            .model = models[at == 1 ? 1 : 2], .device = "sim", .memory = INV_MEMORY_INVERT, .optimizer = INV_OPT_ADAM};
        inv_sim_faults_next = (inv_sim_faults){.seed = (uint64_t)at};
        check(&f, begin(&f, &j));
        for (int i = 0; i < at; i++) check(&f, inv_session_step(f.session, &f.in, 1, &f.target, 0.1, &r));
        const size_t n = add_params(f.session, before, 0, MOST);
        const float whole = f.data[0][0];
        f.data[0][0] = NAN;
        assert_int_equal(inv_session_step(f.session, &f.in, 1, &f.target, 0.1, &r), INV_E_NUMERIC);
        f.data[0][0] = whole;
        assert_int_equal(add_params(f.session, after, 0, MOST), n);
        assert_memory_equal(before, after, n * sizeof *before);
        check(&f, inv_session_step(f.session, &f.in, 1, &f.target, 0.1, &r));
        (void)add_params(f.session, after, 0, MOST);
        assert_memory_not_equal(before, after, n * sizeof *before);
        end(&f);
    }
}

/* A guard that refuses: planned again on the device, within its memory, and the step is right. */
static void planned_again(void **state)
{
    (void)state;
    static double host[MOST], sim[MOST];
    fixture f;
    inv_result r;
    job j = {.model = models[2], .device = "cpu", .memory = INV_MEMORY_STORE, .optimizer = INV_OPT_SGD};
    check(&f, begin(&f, &j));
    size_t n = train(&f, host);
    end(&f);
    j.device = "sim";
    j.memory = INV_MEMORY_INVERT;
    check(&f, begin(&f, &j));
    check(&f, inv_session_step(f.session, &f.in, 1, &f.target, 0, &r)); /* so that there are graphs to forget */
    check(&f, inv_session_step(f.session, &f.in, 1, &f.target, 0, &r));
    assert_true(r.drift > 0);
    f.session->program->max_drift = r.drift / 2;
    assert_int_equal(train(&f, sim), n);
    assert_true(f.session->fallbacks > 0);
    assert_true(distance(sim, host, n) < 1e-4);
    end(&f);
}

/* The choice of plan holds to the budget on every device, and the session allocates what the plan says. */
static void budgets(void **state)
{
    (void)state;
    double previous = 0;
    fixture f;
    job j = {.model = models[1], .device = "sim", .memory = INV_MEMORY_STORE};
    check(&f, begin(&f, &j));
    double store = report_number(&f, "planned_peak_bytes");
    end(&f);
    j.memory = INV_MEMORY_AUTO;
    check(&f, begin(&f, &j));
    double least = report_number(&f, "planned_peak_bytes");
    end(&f);
    for (int i = 3; i >= 0; i--) {
        j.budget = (uint64_t)(least + (store - least) * i / 3);
        check(&f, begin(&f, &j));
        assert_true(report_number(&f, "planned_peak_bytes") <= (double)j.budget);
        assert_true(report_number(&f, "peak_bytes") == report_number(&f, "planned_peak_bytes"));
        assert_true(report_number(&f, "flops") >= previous); /* less memory is never cheaper */
        previous = report_number(&f, "flops");
        end(&f);
    }
    j.budget = 65536;
    assert_int_equal(begin(&f, &j), INV_E_NOMEM);
    assert_non_null(strstr(inv_context_message(f.ctx), "smallest plan found needs"));
    end(&f);
}

/* Batches of rows of their own, of which each goes to one step: 0 is fed first, as 1 is named, and so on. */
enum { AHEAD_STEPS = 7, AHEAD_TAIL = 3 };
typedef struct ahead {
    float *data[AHEAD_STEPS];
    inv_array in[AHEAD_STEPS], target[AHEAD_STEPS];
} ahead;

static void make_ahead(const fixture *f, ahead *a)
{
    const inv_array *tensors[] = {&f->in, &f->target};
    size_t n[2] = {1, 1};
    for (int i = 0; i < 2; i++)
        for (int d = 0; d < tensors[i]->rank; d++) n[i] *= (size_t)tensors[i]->dims[d];
    for (int k = 0; k < AHEAD_STEPS; k++) {
        float *x = a->data[k] = malloc((n[0] + n[1]) * sizeof *x);
        for (size_t i = 0; i < n[0] + n[1]; i++) x[i] = (float)sin(0.7 * (double)i + 3 * k);
        a->in[k] = k == AHEAD_TAIL ? f->tail_in : f->in;
        a->target[k] = k == AHEAD_TAIL ? f->tail_target : f->target;
        a->in[k].data = x;
        a->target[k].data = x + n[0];
    }
}

/* What happens beside the steps. */
enum { AHEAD_EVAL = 1, AHEAD_WRONG = 2, AHEAD_NONE = 4, AHEAD_REFUSED = 8, AHEAD_DROPPED = 16 };

static inv_status train_ahead(fixture *f, const job *j, unsigned how, double *out, size_t *n)
{
    ahead a;
    inv_result r;
    inv_status s = INV_OK;
    *n = 0;
    make_ahead(f, &a);
    for (int k = 0; k < AHEAD_STEPS && s == INV_OK; k++) {
        const int next = how & AHEAD_WRONG && k % 2 ? 0 : k + 1;
        if (how & AHEAD_NONE && k == 4) check(f, inv_session_next(f->session, NULL, 0, NULL));
        else if (next < AHEAD_STEPS) check(f, inv_session_next(f->session, &a.in[next], 1, &a.target[next]));
        if (how & AHEAD_REFUSED && k == 4) f->session->program->max_drift = 1e-18;
        if (how & AHEAD_DROPPED && k == 4) {
            const float whole = a.data[k][0];
            a.data[4][0] = NAN;
            check(f, inv_session_next(f->session, NULL, 0, NULL)); /* as 4 is not what it was */
            assert_int_equal(inv_session_step(f->session, &a.in[k], 1, &a.target[k], 0.01, &r), INV_E_NUMERIC);
            a.data[4][0] = whole;
        }
        s = j->accumulate ? inv_session_accumulate(f->session, &a.in[k], 1, &a.target[k], &r)
                          : inv_session_step(f->session, &a.in[k], 1, &a.target[k], 0.01, &r);
        out[(*n)++] = r.loss;
        if (s == INV_OK && j->accumulate && k % 2) s = inv_session_update(f->session, 0.01, &r);
        if (s == INV_OK && j->ahead && !how && k + 1 < AHEAD_STEPS)
            assert_int_equal(f->session->landed.kind, k + 1 == AHEAD_TAIL ? INV_PLAN_TAIL : INV_PLAN_MAIN);
        if (s == INV_OK && how & AHEAD_EVAL) s = inv_session_eval(f->session, &f->in, 1, &f->target, &r);
        if (how & AHEAD_EVAL) out[(*n)++] = r.loss;
    }
    if (s == INV_OK) *n = add_params(f->session, out, *n, MOST);
    for (int k = 0; k < AHEAD_STEPS; k++) free(a.data[k]);
    return s;
}

/* The bits are those of batches that are sent when their step begins, whatever comes between, and the bytes are the
 * plan's. */
static void sent_ahead(void **state)
{
    (void)state;
    static double plain[MOST], sent[MOST];
    static const unsigned hows[] = {0, AHEAD_EVAL, AHEAD_WRONG, AHEAD_NONE | AHEAD_EVAL, AHEAD_REFUSED, AHEAD_DROPPED};
    for (uint64_t seed = 0; seed < 12; seed++) {
        fixture f;
        size_t n, same;
        const unsigned how = hows[seed % 6];
        const bool refused = how == AHEAD_REFUSED;
        job j = {.model = models[2 - (seed < 2)],
                 .device = "sim",
                 .invert = refused,
                 .optimizer = INV_OPT_ADAM,
                 .accumulate = seed >= 6 && !(how & (AHEAD_REFUSED | AHEAD_DROPPED))};
        inv_sim_faults_next = (inv_sim_faults){.seed = seed};
        check(&f, begin(&f, &j));
        check(&f, train_ahead(&f, &j, how, plain, &n));
        const double bytes = report_number(&f, "planned_peak_bytes");
        const int fallbacks = f.session->fallbacks;
        end(&f);
        j.ahead = true;
        check(&f, begin(&f, &j));
        check(&f, train_ahead(&f, &j, how, sent, &same));
        assert_int_equal(same, n);
        assert_memory_equal(sent, plain, n * sizeof *sent);
        assert_int_equal(f.session->fallbacks, fallbacks);
        assert_true(!refused || fallbacks > 0);
        const inv_program *p = f.session->program;
        assert_true(report_number(&f, "planned_peak_bytes") == report_number(&f, "peak_bytes"));
        assert_true(report_number(&f, "planned_peak_bytes") == bytes + (double)p->landing);
        assert_true(p->landing == inv_plan_feed_at(&p->plan[INV_PLAN_MAIN], p->plan[INV_PLAN_MAIN].feed.n));
        end(&f);
    }
    inv_sim_faults_next = (inv_sim_faults){0};
}

/* Without the wait for what is sent ahead, losses change or the step fails. */
static void the_wait_for_it_matters(void **state)
{
    (void)state;
    static double right[MOST], out[MOST];
    int wrong = 0;
    for (uint64_t seed = 0; seed < 8; seed++) {
        fixture f;
        size_t n, same;
        job j = {
            .model = models[2], .device = "sim", .memory = INV_MEMORY_AUTO, .optimizer = INV_OPT_SGD, .ahead = true};
        for (size_t drop = 0; drop < 2; drop++) {
            inv_sim_faults_next = (inv_sim_faults){.seed = seed, .drop_event = drop};
            check(&f, begin(&f, &j));
            const inv_status s = train_ahead(&f, &j, 0, drop ? out : right, drop ? &same : &n);
            assert_true(s == INV_OK || drop);
            wrong += drop && (s != INV_OK || memcmp(right, out, n * sizeof *out) != 0);
            end(&f);
        }
    }
    inv_sim_faults_next = (inv_sim_faults){0};
    assert_true(wrong > 0);
}

/* A budget that has no room for it leaves it out; so does the mode that asks for the fewest bytes. */
static void no_bytes_for_it(void **state)
{
    (void)state;
    static double out[MOST];
    fixture f;
    size_t n;
    job j = {.model = models[2], .device = "sim", .memory = INV_MEMORY_STORE, .optimizer = INV_OPT_SGD, .ahead = true};
    check(&f, begin(&f, &j));
    const size_t whole = (size_t)report_number(&f, "planned_peak_bytes"), landing = f.session->program->landing;
    assert_true(landing > 0);
    end(&f);
    for (int more = 0; more < 2; more++) {
        j.budget = whole - 1 + (size_t)more;
        check(&f, begin(&f, &j));
        assert_true(f.session->program->landing == (more ? landing : 0));
        assert_true(report_number(&f, "planned_peak_bytes") == (double)(more ? whole : whole - landing));
        check(&f, train_ahead(&f, &j, AHEAD_EVAL, out, &n));
        end(&f);
    }
    j.budget = 0;
    j.memory = INV_MEMORY_INVERT;
    check(&f, begin(&f, &j));
    assert_true(f.session->program->landing == 0);
    end(&f);
}

static void plan_for_budget(fixture *f, uint64_t budget)
{
    inv_program *p = f->session->program;
    const inv_program former = *p;
    p->options.budget = budget;
    p->transient = p->control = p->host = 0;
    check(f, inv_session_plan_again(f->session, &former));
}

/* A name does not outlive its plan: where there were no bytes for the batch meanwhile, its arrays are others by now. */
static void names_end_with_the_plan(void **state)
{
    (void)state;
    fixture f;
    inv_result r;
    job j = {.model = models[2], .device = "sim", .memory = INV_MEMORY_STORE, .optimizer = INV_OPT_SGD, .ahead = true};
    check(&f, begin(&f, &j));
    check(&f, inv_session_next(f.session, &f.tail_in, 1, &f.tail_target));
    plan_for_budget(&f, (uint64_t)report_number(&f, "planned_peak_bytes") - 1);
    assert_true(f.session->program->landing == 0);
    check(&f, inv_session_step(f.session, &f.in, 1, &f.target, 0.01, &r));
    plan_for_budget(&f, 0);
    assert_true(f.session->program->landing > 0);
    check(&f, inv_session_step(f.session, &f.in, 1, &f.target, 0.01, &r));
    assert_int_equal(f.session->landed.kind, -1);
    end(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(equals_host),       cmocka_unit_test(waits_matter),
        cmocka_unit_test(failing_kernels),   cmocka_unit_test(failing_allocations),
        cmocka_unit_test(too_little_memory), cmocka_unit_test(planned_again),
        cmocka_unit_test(budgets),           cmocka_unit_test(wrong_steps_change_nothing),
        cmocka_unit_test(sent_ahead),        cmocka_unit_test(the_wait_for_it_matters),
        cmocka_unit_test(no_bytes_for_it),   cmocka_unit_test(names_end_with_the_plan),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
