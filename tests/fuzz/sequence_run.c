/* SPDX-License-Identifier: Apache-2.0
 * A session and its twin (sequence_run.h). */
#include "tests/fuzz/sequence_run.h"

#include <math.h>
#include <stdarg.h>

#include "tests/unit/onnx_build.h"

void run_note(run *r, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    const int n = vsnprintf(r->log + r->said, RUN_LOG - r->said, format, args);
    va_end(args);
    if (n > 0 && (size_t)n < RUN_LOG - r->said) r->said += (size_t)n;
}

_Noreturn void run_differs(const run *r, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    (void)vfprintf(stderr, format, args);
    va_end(args);
    (void)fprintf(stderr, "\nmessage: %s\ncalls:%s\n", inv_context_message(r->f->ctx), r->log);
    abort();
}

/* --- files --- */

static void remove_folder(void) { (void)dir_teardown(NULL); }

const char *run_path(const char *name) { return in_dir(name); }

uint8_t *run_read(const char *name, size_t *n) { return read_file(in_dir(name), n); }

void run_write(const char *name, const uint8_t *data, size_t n) { write_file(in_dir(name), data, n); }

double *run_weights(void)
{
    static double w[TWIN_ALL];
    for (int i = 0; i < TWIN_ALL; i++) w[i] = 0.8 * sin(1.7 * i * i + 0.4); /* of full rank */
    return w;
}

void run_write_model(void)
{
    const int64_t in[] = {-1, TWIN_IN}, out[] = {-1, TWIN_OUT};
    pb g = {0}, leaky;
    if (*test_dir) return;
    if (dir_setup(NULL) != 0 || atexit(remove_folder) != 0) abort();
    leaky = node("", "LeakyRelu", "", "a", "h");
    pb_msg(&leaky, 5, attr_float("alpha", (float)TWIN_SLOPE));
    pb_msg(&g, 1, node("", "MatMul", "", "x w0", "a"));
    pb_msg(&g, 1, leaky);
    pb_msg(&g, 1, node("", "Gemm", "", "h w1 b1", "y"));
    pb_str(&g, 2, "g");
    for (int p = 0; p < TWIN_PARAMS; p++) {
        const twin_param *k = &twin_params[p];
        pb_msg(&g, 5, tensor_raw(k->name, INV_F64, k->rank, k->dims, run_weights() + k->at, (size_t)k->n * 8));
    }
    pb_msg(&g, 11, value_info("x", INV_F64, 2, in));
    pb_msg(&g, 12, value_info("y", INV_F64, 2, out));
    (void)save(model_of(g), "model.onnx");
}

/* --- what is fed --- */

/* Multiples of 1/64 from -2 on, which float32 has, too. */
static double number(uint32_t *state)
{
    *state = *state * 1664525u + 1013904223u;
    return (double)(*state >> 24) / 64 - 2;
}

void run_batch(twin_batch *b, int64_t rows, uint8_t key)
{
    uint32_t state = key * 2654435761u;
    b->rows = rows;
    for (int i = 0; i < TWIN_ROWS * TWIN_IN; i++) b->x[i] = number(&state);
    for (int i = 0; i < TWIN_ROWS * TWIN_OUT; i++) b->y[i] = number(&state);
}

void run_feed_of(run_feed *f, const twin_batch *b, uint8_t form)
{
    const bool turned = form & 1, narrow = form & 2;
    *f = (run_feed){.x_dims = {b->rows, TWIN_IN}, .y_dims = {b->rows, TWIN_OUT}};
    memcpy(f->y, b->y, sizeof f->y);
    for (int64_t i = 0; i < b->rows; i++) {
        const int64_t to = turned ? b->rows - 1 - i : i;
        f->rows[i] = to;
        for (int k = 0; k < TWIN_IN; k++) f->x[to * TWIN_IN + k] = b->x[i * TWIN_IN + k];
        for (int k = 0; k < TWIN_IN; k++) f->narrow[to * TWIN_IN + k] = (float)b->x[i * TWIN_IN + k];
    }
    f->input = (inv_array){"x",       narrow ? INV_F32 : INV_F64,        2,
                           f->x_dims, narrow ? (void *)f->narrow : f->x, turned ? f->rows : NULL};
    f->target = (inv_array){"target", INV_F64, 2, f->y_dims, f->y, NULL};
}

/* --- calls that may fail --- */

void run_trouble(run *r, const char *device, uint8_t trouble)
{
    enum { STOPS = 208, FAILS = 220 };
    const size_t k = trouble < FAILS ? 0 : (size_t)(trouble - FAILS);
    r->troubled = trouble >= STOPS && (trouble < FAILS || strcmp(device, "sim") != 0);
    if (!r->troubled) return;
    r->f->stop = trouble < FAILS;
    r->f->fails = trouble < FAILS ? 0 : 1 + k * k * k / 16;
    if (r->f->stop) run_note(r, " [stopped]");
    else run_note(r, " [allocation %zu fails]", r->f->fails);
}

bool run_went(run *r, inv_status st, bool may)
{
    r->f->fails = 0;
    r->f->stop = 0;
    if (!fuzz_ok(r->f, st)) run_note(r, " (status %d: %.60s)", (int)st, inv_context_message(r->f->ctx));
    if (st == INV_E_INTERNAL) run_differs(r, "an internal error");
    if (st == INV_OK && !may) run_differs(r, "the call was not refused");
    if (st == INV_OK) return true;
    if (may && !(r->troubled && (st == INV_E_NOMEM || st == INV_E_STOPPED))) run_differs(r, "status %d", (int)st);
    return false;
}

/* --- sessions --- */

static size_t stages_of(const twin *t, inv_stage *stages)
{
    size_t n = 0;
    for (int p = 0; p < TWIN_PARAMS; p++)
        if (t->begins[p]) stages[n++] = (inv_stage){twin_params[p].name, t->begins[p]};
    return n;
}

inv_session *run_session(run *r, const run_way *way, uint64_t step, const char *plan)
{
    const twin *t = &r->twin;
    twin_batch batch;
    run_feed feed;
    inv_stage stages[TWIN_PARAMS];
    inv_session *s = NULL;
    const inv_param_group group = {twin_params[t->grouped < 0 ? 0 : t->grouped].name, 0.5, -1, INV_OPT_NONE};
    run_batch(&batch, way->sizes.rows, 0);
    run_feed_of(&feed, &batch, 0);
    const inv_session_options o = {.size = sizeof o,
                                   .purpose = INV_FOR_TRAIN,
                                   .loss = INV_LOSS_MSE,
                                   .inputs = &feed.input,
                                   .ninputs = 1,
                                   .target = &feed.target,
                                   .memory = way->memory,
                                   .device = way->device,
                                   .float64 = true,
                                   .threads = 1,
                                   .early_update = way->early,
                                   .send_ahead = way->ahead,
                                   .tail_batch = way->sizes.tail,
                                   .eval_batch = way->sizes.eval,
                                   .eval_tail = way->sizes.eval_tail,
                                   .optimizer = t->optimizer,
                                   .momentum = t->numbers.momentum,
                                   .beta1 = t->numbers.beta1,
                                   .beta2 = t->numbers.beta2,
                                   .epsilon = t->numbers.epsilon,
                                   .weight_decay = t->numbers.weight_decay,
                                   .nesterov = t->nesterov,
                                   .accumulate = t->accumulates,
                                   .average = t->average,
                                   .average_decay = t->average_decay,
                                   .average_from = t->average_from,
                                   .average_every = t->average_every,
                                   .groups = &group,
                                   .ngroups = t->grouped >= 0,
                                   .stages = stages,
                                   .nstages = stages_of(t, stages),
                                   .first_step = step,
                                   .plan = plan};
    run_note(r, " session(%s, memory %d, %d, %d, %d, %d rows, step %d)", way->device, (int)way->memory,
             (int)o.inputs->dims[0], (int)o.tail_batch, (int)o.eval_batch, (int)o.eval_tail, (int)step);
    const inv_status st = inv_session_create(r->model, &o, &s);
    return run_went(r, st, true) ? s : NULL;
}

/* --- whether both agree --- */

void run_close_to(const run *r, double is, double wanted, const char *what)
{
    if (!(fabs(is - wanted) <= 1e-9 * fabs(wanted) + 1e-11)) run_differs(r, "%s is %.17g, not %.17g", what, is, wanted);
}

const double *run_get(run *r, inv_what what, const char *name, int64_t n)
{
    const void *data;
    inv_dtype dtype;
    int rank;
    int64_t dims[8], nelem = 1;
    if (inv_session_get(r->s, what, name, &data, &dtype, &rank, dims) != INV_OK) run_differs(r, "no '%s'", name);
    for (int d = 0; d < rank; d++) nelem *= dims[d];
    if (dtype != INV_F64 || nelem != n) run_differs(r, "'%s' has another type or size", name);
    return data;
}

static bool has_state(const run *r, const char *name)
{
    const char *k;
    for (size_t i = 0; (k = inv_session_name(r->s, INV_GET_OPTIM, i)); i++)
        if (!strcmp(k, name)) return true;
    return false;
}

typedef enum state_kind { VELOCITY, MOMENT1, MOMENT2, AVERAGE, STATES } state_kind;

static const char *state_name(int p, state_kind kind)
{
    static const char *const names[STATES] = {"velocity", "moment1", "moment2", "average"};
    static char name[32];
    (void)snprintf(name, sizeof name, "%s/%s", twin_params[p].name, names[kind]);
    return name;
}

static bool keeps(const twin *t, state_kind kind)
{
    switch (kind) {
    case VELOCITY: return t->optimizer == INV_OPT_MOMENTUM;
    case MOMENT1:
    case MOMENT2: return t->optimizer == INV_OPT_ADAM || t->optimizer == INV_OPT_ADAMW;
    case AVERAGE:
    case STATES: break;
    }
    return t->average;
}

static double state_of(const twin *t, int p, state_kind kind, int i)
{
    if (kind == AVERAGE) return twin_average(t, p, i);
    return (kind == MOMENT2 ? t->v : t->m)[twin_params[p].at + i];
}

static void agree_states(run *r, int p)
{
    for (state_kind kind = VELOCITY; kind < STATES; kind++) {
        const char *name = state_name(p, kind);
        const bool is = has_state(r, name), wanted = keeps(&r->twin, kind) && twin_trains(&r->twin, p);
        if (is != wanted) run_differs(r, "there is %s '%s'", is ? "a" : "no", name);
        if (!is) continue;
        const double *data = run_get(r, INV_GET_OPTIM, name, twin_params[p].n);
        for (int i = 0; i < twin_params[p].n; i++) run_close_to(r, data[i], state_of(&r->twin, p, kind, i), name);
    }
}

void run_look_at_stage(run *r)
{
    twin other = r->twin;
    bool all = true;
    twin_enter(&other);
    for (int p = 0; p < TWIN_PARAMS; p++)
        for (state_kind kind = VELOCITY; kind < STATES; kind++)
            if (keeps(&other, kind) && has_state(r, state_name(p, kind)) != twin_trains(&other, p)) all = false;
    if (all) r->twin = other;
}

static void agree_params(run *r)
{
    for (int p = 0; p < TWIN_PARAMS; p++) {
        const twin_param *k = &twin_params[p];
        const double *w = run_get(r, INV_GET_PARAM, k->name, k->n);
        for (int i = 0; i < k->n; i++) run_close_to(r, w[i], twin_weight(&r->twin, p, i), k->name);
    }
}

/* The memory of views is there, whatever is in it. */
static void look_at_views(const run *r)
{
    for (int i = 0; i < RUN_VIEWS; i++)
        if (r->view[i].data) (void)*(const volatile double *)r->view[i].data;
}

void run_agree(run *r)
{
    look_at_views(r);
    if (inv_session_steps(r->s) != r->twin.steps)
        run_differs(r, "the next step is %llu, not %llu", (unsigned long long)inv_session_steps(r->s),
                    (unsigned long long)r->twin.steps);
    agree_params(r);
    for (int p = 0; p < TWIN_PARAMS; p++) agree_states(r, p);
}

void run_agree_file(run *r, const char *name)
{
    inv_session *const own = r->s;
    inv_model *m;
    twin_batch batch;
    run_feed feed;
    if (!fuzz_ok(r->f, inv_model_load(r->f->ctx, in_dir(name), &m))) run_differs(r, "the saved model is not one");
    run_batch(&batch, 1, 0);
    run_feed_of(&feed, &batch, 0);
    const inv_session_options o = {.size = sizeof o, .inputs = &feed.input, .ninputs = 1, .float64 = true};
    if (!fuzz_ok(r->f, inv_session_create(m, &o, &r->s))) run_differs(r, "the saved model does not run");
    agree_params(r);
    inv_session_destroy(r->s);
    inv_model_destroy(m);
    r->s = own;
}
