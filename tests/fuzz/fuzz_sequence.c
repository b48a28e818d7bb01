/* SPDX-License-Identifier: Apache-2.0
 * Property: whatever is called of a session in any order, its parameters, the optimizer's states, averages and the
 * number of the step are those of a training of a few lines of float64; and a call that fails has changed nothing. The
 * input is OPTION_BYTES of options, and CALL_BYTES for each call: which one, two that say how, and its trouble. */
#include "tests/fuzz/sequence_run.h"

#include <math.h>

enum { OPTION_BYTES = 9, CALL_BYTES = 4, MOST_CALLS = 60 };

static inv_memory memory_of(uint8_t byte) { return (inv_memory)(byte % 4); }

static run_sizes sizes_of(uint8_t a, uint8_t b)
{
    run_sizes s = {.rows = 1 + a % TWIN_ROWS, .tail = b % TWIN_ROWS, .eval = b / 4 % TWIN_ROWS};
    if (s.eval) s.eval_tail = b / 16 % TWIN_ROWS;
    return s;
}

static run_way way_of(const uint8_t *o)
{
    static const char *const devices[] = {"cpu", "checked", "sim", "checked"};
    return (run_way){.sizes = sizes_of(o[0], o[1]),
                     .memory = memory_of(o[2]),
                     .device = devices[o[2] / 4 % 4],
                     .early = o[2] & 16,
                     .ahead = o[2] & 32};
}

static void choose(run *r, const uint8_t *o)
{
    static const inv_optimizer optimizers[] = {INV_OPT_SGD, INV_OPT_MOMENTUM, INV_OPT_ADAM, INV_OPT_ADAMW};
    twin *t = &r->twin;
    r->way = way_of(o);
    *t = (twin){.optimizer = optimizers[o[3] % 4],
                .nesterov = o[3] % 4 == 1 && (o[3] & 4),
                .accumulates = o[3] & 8,
                .average = o[3] & 16,
                .average_decay = o[3] & 32 ? 0.75 : 0,
                .average_from = o[4] % 3,
                .average_every = 1 + o[4] / 4 % 2,
                .grouped = o[4] & 16 ? o[4] / 32 % TWIN_PARAMS : -1,
                .factor = 0.5};
    t->numbers = inv_optimizer_defaults(t->optimizer);
    for (int p = 0; p < TWIN_PARAMS; p++) t->begins[p] = o[5 + p] & 1 ? o[5 + p] / 2 % 4 : 0;
    t->begins[o[8] % TWIN_PARAMS] = 0; /* something is trained from the first step on */
    twin_begin(t, run_weights(), 0);
    run_note(r, " optimizer %d%s%s%s, averages %d (%g, from %d, every %d), stages %d %d %d, group %d",
             (int)t->optimizer, t->nesterov ? " nesterov" : "", t->accumulates ? ", accumulates" : "",
             r->way.early ? ", early" : "", t->average, t->average_decay, (int)t->average_from, (int)t->average_every,
             (int)t->begins[0], (int)t->begins[1], (int)t->begins[2], t->grouped);
}

static bool begun(const run *r) { return r->twin.rows > 0; }

/* --- batches --- */

static bool is_planned(const run_sizes *s, int64_t rows) { return rows == s->rows || (s->tail && rows == s->tail); }

static int64_t some_rows(const run_sizes *s, uint8_t a)
{
    if (a % 8 == 7) return 1 + a / 8 % TWIN_ROWS;
    return a % 8 > 4 && s->tail ? s->tail : s->rows;
}

static void read_gradients(run *r)
{
    for (int p = 0; p < TWIN_PARAMS; p++) {
        if (!twin_trains(&r->twin, p)) continue;
        const double *g = run_get(r, INV_GET_GRAD, twin_params[p].name, twin_params[p].n);
        for (int i = 0; i < twin_params[p].n; i++)
            run_close_to(r, g[i], r->twin.sum[twin_params[p].at + i] / r->twin.rows, "an accumulated gradient");
    }
}

/* What a call that trains with this batch has come to. */
static void trained(run *r, const twin_batch *b, bool went, const inv_result *result)
{
    twin *t = &r->twin;
    if (!went) {
        run_look_at_stage(r);
        return;
    }
    if (!begun(r)) twin_enter(t);
    run_close_to(r, result->loss, twin_loss(t, b, NULL), "the loss");
    run_close_to(r, result->weight, (double)b->rows, "the weight");
    twin_accumulate(t, b);
}

static const double rates[] = {0.05, 0.1, 0.02, 0};

/* The batch that was named is fed, or another one. */
static const run_feed *fed(run *r, const uint8_t *a, twin_batch *b, run_feed *own)
{
    run_feed *named = &r->named[r->next_named];
    const bool takes = r->names && (a[0] & 32);
    if (takes) *b = r->named_batch;
    if (takes) r->names = false;
    else run_batch(b, some_rows(&r->way.sizes, a[0]), a[1]);
    if (takes) return named;
    run_feed_of(own, b, a[1]);
    return own;
}

static void step(run *r, const uint8_t *a)
{
    twin_batch b;
    run_feed own;
    inv_result result;
    const double lr = rates[a[0] / 64];
    const run_feed *f = fed(r, a, &b, &own);
    run_note(r, " step(%d rows, lr %g)", (int)b.rows, lr);
    const bool may = is_planned(&r->way.sizes, b.rows) && !begun(r) && !r->twin.reads_averages;
    run_trouble(r, r->way.device, a[2]);
    const inv_status st = inv_session_step(r->s, &f->input, 1, &f->target, lr, &result);
    const bool went = run_went(r, st, may);
    trained(r, &b, went, &result);
    if (went) twin_update(&r->twin, lr);
}

static void accumulate(run *r, const uint8_t *a)
{
    twin_batch b;
    run_feed own;
    inv_result result;
    const run_feed *f = fed(r, a, &b, &own);
    run_note(r, " accumulate(%d rows)", (int)b.rows);
    const bool may = is_planned(&r->way.sizes, b.rows) && r->twin.accumulates && !r->twin.reads_averages;
    if (!r->way.early) run_trouble(r, r->way.device, a[2]); /* as in refuse_batch */
    const inv_status st = inv_session_accumulate(r->s, &f->input, 1, &f->target, &result);
    const bool went = run_went(r, st, may);
    trained(r, &b, went, &result);
    if (went) read_gradients(r);
}

static void update(run *r, const uint8_t *a)
{
    inv_result result;
    const double lr = rates[a[0] / 64];
    run_note(r, " update(lr %g)", lr);
    run_trouble(r, r->way.device, a[2]);
    const inv_status st = inv_session_update(r->s, lr, &result);
    if (run_went(r, st, begun(r) && !r->twin.reads_averages)) twin_update(&r->twin, lr);
    else if (!begun(r)) run_look_at_stage(r);
}

static void next(run *r, const uint8_t *a)
{
    const int at = (r->next_named + 1) % RUN_NAMED;
    run_batch(&r->named_batch, some_rows(&r->way.sizes, a[0]), a[1]);
    run_feed_of(&r->named[at], &r->named_batch, a[1]);
    run_note(r, " next(%d rows)", (int)r->named_batch.rows);
    r->next_named = at;
    run_trouble(r, r->way.device, a[2]);
    const inv_status st = inv_session_next(r->s, &r->named[at].input, 1, &r->named[at].target);
    r->names = run_went(r, st, st == INV_OK || is_planned(&r->way.sizes, r->named_batch.rows));
}

static void evaluate(run *r, const uint8_t *a)
{
    const run_sizes *s = &r->way.sizes;
    twin_batch b;
    run_feed f;
    inv_result result;
    double outputs[TWIN_ROWS * TWIN_OUT];
    const int64_t rows = a[0] % 8 == 7 || !s->eval  ? 1 + a[0] / 8 % TWIN_ROWS
                         : a[0] & 1 && s->eval_tail ? s->eval_tail
                                                    : s->eval;
    run_batch(&b, rows, a[1]);
    run_feed_of(&f, &b, a[1]);
    run_note(r, " evaluate(%d rows)", (int)rows);
    run_trouble(r, r->way.device, a[2]);
    const inv_status st = inv_session_eval(r->s, &f.input, 1, &f.target, &result);
    if (!run_went(r, st, s->eval && (rows == s->eval || rows == s->eval_tail))) return;
    run_close_to(r, result.loss, twin_loss(&r->twin, &b, outputs), "the loss of an evaluation");
    const double *y = run_get(r, INV_GET_OUTPUT, "y", rows * TWIN_OUT);
    for (int i = 0; i < rows * TWIN_OUT; i++) run_close_to(r, y[i], outputs[i], "an output");
}

/* A batch that is not taken. */
static void refuse_batch(run *r, const uint8_t *a)
{
    twin_batch b;
    run_feed f;
    inv_result result;
    run_batch(&b, r->way.sizes.rows, a[1]);
    run_feed_of(&f, &b, 0);
    const int what = a[0] % 8;
    const bool none = what == 0;
    if (what == 1) f.x[0] = NAN;
    if (what == 2) f.y[0] = INFINITY;
    if (what == 3) f.x_dims[1]--;
    if (what == 4) f.x_dims[0] = f.y_dims[0] = 0;
    if (what == 5) f.input.name = "z";
    if (what == 6) f.input.data = NULL;
    if (what == 7) f.y_dims[0]++;
    run_note(r, " refused %s(%d)", a[0] & 8 ? "accumulate" : "step", what);
    /* With early updates the step may begin anew: a stop does not tell whether gradients have been added by then. */
    if (!r->way.early || !(a[0] & 8)) run_trouble(r, r->way.device, a[2]);
    const inv_array *target = none ? NULL : &f.target;
    const inv_status st = a[0] & 8 ? inv_session_accumulate(r->s, &f.input, 1, target, &result)
                                   : inv_session_step(r->s, &f.input, 1, target, 0.1, &result);
    (void)run_went(r, st, false);
    run_look_at_stage(r);
    /* Gradients that have been added before the batch was found to be bad. */
    if (r->way.early && (a[0] & 8) && st == INV_E_NUMERIC) twin_set_step(&r->twin, r->twin.steps, 0);
}

/* --- settings --- */

static void modes(run *r, const uint8_t *a)
{
    static const char *const globs[] = {"h", "a", "*", "no such value"};
    const inv_memory memory = memory_of(a[1]);
    const inv_mode_rule rule = {globs[a[1] / 4 % 4], memory_of(a[1] / 16)};
    const inv_modes m = {.size = a[0] & 16 && a[1] > 250 ? 1 : sizeof m,
                         .memory = a[0] & 4 ? &memory : NULL,
                         .replace = a[0] & 8,
                         .rules = &rule,
                         .nrules = a[0] / 32 % 2};
    const int what = a[0] % 4;
    bool may = what == 3 ? r->scopes > 0 : m.size == sizeof m;
    if (what != 3 && m.nrules && a[1] / 4 % 4 == 3) may = false;
    run_note(r, " %s_modes(%d)", what == 3 ? "pop" : what == 2 ? "push" : "set", (int)memory);
    run_trouble(r, r->way.device, a[2]);
    const inv_status st = what == 3   ? inv_session_pop_modes(r->s)
                          : what == 2 ? inv_session_push_modes(r->s, &m)
                                      : inv_session_set_modes(r->s, &m);
    if (!run_went(r, st, may)) return;
    r->plain = false;
    r->scopes += what == 2 ? 1 : what == 3 ? -1 : 0;
}

static void resize(run *r, const uint8_t *a)
{
    twin_batch b;
    run_feed f;
    run_sizes to = sizes_of(a[0], a[1]);
    const bool keeps = a[0] & 4, wrong = a[0] / 8 % 8 == 7;
    if (keeps) to.rows = r->way.sizes.rows;
    run_batch(&b, to.rows, 0);
    run_feed_of(&f, &b, 0);
    inv_session_sizes sizes = {.size = sizeof sizes,
                               .inputs = keeps ? NULL : &f.input,
                               .ninputs = keeps ? 0 : 1,
                               .target = keeps ? NULL : &f.target,
                               .tail_batch = to.tail,
                               .eval_batch = to.eval,
                               .eval_tail = to.eval_tail};
    if (wrong && a[0] & 64) sizes.tail_batch = -1;
    else if (wrong && keeps) sizes.plan = "{}";
    else if (wrong) f.x_dims[1]++;
    run_note(r, " resize(%d, %d, %d, %d%s)", (int)to.rows, (int)to.tail, (int)to.eval, (int)to.eval_tail,
             wrong ? ", refused" : "");
    run_trouble(r, r->way.device, a[2]);
    const inv_status st = inv_session_resize(r->s, &sizes);
    if (!run_went(r, st, !wrong)) return;
    r->way.sizes = to;
    r->names = false;
}

static void average(run *r, const uint8_t *a)
{
    const bool on = a[0] % 4 != 0;
    run_note(r, " use_average(%d)", on);
    run_trouble(r, r->way.device, a[2]);
    const inv_status st = inv_session_use_average(r->s, on);
    if (run_went(r, st, r->twin.average)) twin_read_averages(&r->twin, on);
}

static void set_step(run *r, const uint8_t *a)
{
    const uint64_t micro = a[0] / 16 % 4 == 3, now = r->twin.steps;
    const uint64_t to = micro && begun(r) ? now : a[0] % 4 == 0 ? now : a[0] % 4 == 1 ? now + 1 : a[1] % 6;
    run_note(r, " set_step(%d, %d)", (int)to, (int)micro);
    inv_session_set_step(r->s, to, micro);
    twin_set_step(&r->twin, to, micro);
}

static void set_rate(run *r, const uint8_t *a)
{
    static const double factors[] = {0.5, 1, 2, 0, 0.25, 1.5, -1, NAN};
    const double factor = factors[a[0] % 8];
    const size_t group = a[0] / 8 % 4 == 3;
    run_note(r, " set_group_lr(%zu, %g)", group, factor);
    run_trouble(r, r->way.device, a[2]);
    const inv_status st = inv_session_set_group_lr(r->s, group, factor);
    if (run_went(r, st, r->twin.grouped >= 0 && !group && factor >= 0)) r->twin.factor = factor;
}

/* --- what persists --- */

/* Where the twin has what is read as a parameter. */
static double *weights_of(twin *t, int p)
{
    return (t->swapped && twin_trains(t, p) ? t->averages : t->w) + twin_params[p].at;
}

static void set(run *r, const uint8_t *a)
{
    twin *t = &r->twin;
    const int p = a[0] % TWIN_PARAMS, what = a[0] / 4 % 4;
    const twin_param *k = &twin_params[p];
    const bool gradient = what == 1, average = what == 2 && t->average && a[1] & 1,
               moment = what == 2 && !average && t->optimizer == INV_OPT_MOMENTUM;
    double values[TWIN_ALL];
    char name[32];
    if ((gradient && t->accumulates && !begun(r)) || ((gradient || average || moment) && !twin_trains(t, p))) return;
    for (int i = 0; i < k->n; i++) values[i] = 0.9 * sin(a[1] + 2.1 * i * i + 0.3);
    (void)snprintf(name, sizeof name, moment ? "%s/velocity" : average ? "%s/average" : "%s", k->name);
    const size_t n = (size_t)k->n + (what == 3 && a[1] > 128);
    run_note(r, " set(%s%s, %zu)", gradient ? "gradient of " : "", name, n);
    run_trouble(r, r->way.device, a[2]);
    const inv_status st = inv_session_set(r->s,
                                          gradient            ? INV_GET_GRAD
                                          : moment || average ? INV_GET_OPTIM
                                                              : INV_GET_PARAM,
                                          name, INV_F64, values, n);
    if (!run_went(r, st, n == (size_t)k->n && (!gradient || t->accumulates))) return;
    if (average) twin_begin_averages(t);
    double *to = gradient ? t->sum + k->at : moment ? t->m + k->at : average ? t->averages + k->at : weights_of(t, p);
    for (int i = 0; i < k->n; i++) to[i] = gradient ? values[i] * t->rows : values[i];
}

static void end_views(run *r)
{
    run_note(r, " end_views()");
    inv_session_end_views(r->s);
    for (int i = 0; i < RUN_VIEWS; i++)
        if (!r->view[i].persists) r->view[i].data = NULL;
}

/* Of a parameter, through which it may be set, or of an output, where there is one. */
static void view(run *r, const uint8_t *a)
{
    const int p = a[0] % TWIN_PARAMS;
    const bool output = a[0] & 16, host = strcmp(r->way.device, "sim") != 0;
    const char *name = output ? "y" : twin_params[p].name;
    double *w = weights_of(&r->twin, p);
    inv_view v;
    if (a[0] & 64) {
        end_views(r);
        return;
    }
    run_note(r, " view(%s)", name);
    run_trouble(r, r->way.device, a[2]);
    const inv_status st = inv_session_view(r->s, output ? INV_GET_OUTPUT : INV_GET_PARAM, name, &v);
    if (!run_went(r, st, host && !(output && st == INV_E_ARG))) return;
    r->view[a[1] % RUN_VIEWS] = v;
    if (output) return;
    run_close_to(r, *(double *)v.data, *w, "a view");
    if (!v.persists || !(a[0] & 8)) return;
    *(double *)v.data += 0.125;
    *w += 0.125;
}

/* What tells of a session leaves it as it is. */
static void look(run *r, const uint8_t *a)
{
    char *text = NULL;
    inv_trial trial = {.size = sizeof trial};
    run_note(r, " look(%d)", a[0] % 5);
    run_trouble(r, r->way.device, a[2]);
    const inv_status st = a[0] % 5 == 0   ? inv_session_report(r->s, &text)
                          : a[0] % 5 == 1 ? inv_session_plan(r->s, &text)
                          : a[0] % 5 == 2 ? inv_session_explain(r->s, &text)
                          : a[0] % 5 == 3 ? inv_session_try_budget(r->s, 0, &trial)
                                          : inv_session_options_check(r->f->ctx, &(inv_session_options){.size = 1});
    (void)run_went(r, st, a[0] % 5 != 4);
    inv_free(r->f->ctx, text);
}

static void wrong(run *r, const uint8_t *a)
{
    twin_batch b;
    run_feed f;
    inv_result result;
    const void *data;
    inv_dtype dtype;
    int rank;
    int64_t dims[8];
    run_batch(&b, r->way.sizes.rows, a[1]);
    run_feed_of(&f, &b, 0);
    inv_status st = INV_OK;
    run_note(r, " wrong(%d)", a[0] % 8);
    run_trouble(r, r->way.device, a[2]);
    switch (a[0] % 8) {
    case 0: st = inv_session_step(r->s, &f.input, 1, &f.target, NAN, &result); break;
    case 1: st = inv_session_step(r->s, &f.input, 1, &f.target, 0.1, NULL); break;
    case 2: st = inv_session_grad(r->s, &f.input, 1, &f.target, &result); break;
    case 3: st = inv_session_forward(r->s, &f.input, 1, &result); break;
    case 4: st = inv_session_backward(r->s, &f.target, 1, &result); break;
    case 5: st = inv_session_update(r->s, -1, &result); break;
    case 6: st = inv_session_get(r->s, INV_GET_PARAM, "w2", &data, &dtype, &rank, dims); break;
    default: st = inv_session_set(r->s, INV_GET_PARAM, "w0", INV_F64, NULL, TWIN_W1); break;
    }
    (void)run_went(r, st, false);
}

/* --- files --- */

static bool between(const run *r) { return !begun(r) && !r->twin.reads_averages; }

static const char *slot_name(int i)
{
    static const char *const names[RUN_SLOTS] = {"state0", "state1", "state2"};
    return names[i];
}

static void save_state(run *r, const uint8_t *a)
{
    const int i = a[0] % RUN_SLOTS;
    const bool nowhere = a[0] >= 240;
    run_note(r, " save_state(%s)", nowhere ? "nowhere" : slot_name(i));
    run_trouble(r, r->way.device, a[2]);
    const inv_status st =
        inv_session_save_state(r->s, run_path(nowhere ? "nowhere/state" : slot_name(i)), slot_name(i));
    if (!run_went(r, st, between(r) && !nowhere)) {
        run_look_at_stage(r);
        return;
    }
    twin_enter(&r->twin);
    r->slot[i] = (run_slot){.used = true, .plain = r->plain, .way = r->way, .twin = r->twin};
}

/* The options of a training stay. */
static void go_to(run *r, const run_slot *slot)
{
    r->twin = slot->twin;
    twin_begin_averages(&r->twin);
}

static void load_state(run *r, const uint8_t *a)
{
    const int i = a[0] % RUN_SLOTS;
    char *note = NULL;
    if (!r->slot[i].used) (void)unlink(run_path(slot_name(i)));
    run_note(r, " load_state(%s)", slot_name(i));
    run_trouble(r, r->way.device, a[2]);
    const inv_status st = inv_session_load_state(r->s, run_path(slot_name(i)), &note);
    if (!run_went(r, st, r->slot[i].used && between(r))) {
        if (note) run_differs(r, "a note of a state that was refused");
        run_look_at_stage(r);
        return;
    }
    if (!note || strcmp(note, slot_name(i)) != 0) run_differs(r, "the note is '%s'", note ? note : "");
    inv_free(r->f->ctx, note);
    go_to(r, &r->slot[i]);
}

/* A state of which a bit is another one, or the end is missing. */
static void load_damaged(run *r, const uint8_t *a)
{
    const int i = a[0] % RUN_SLOTS;
    size_t n = 0;
    uint8_t *bytes = r->slot[i].used ? run_read(slot_name(i), &n) : calloc(1, 1);
    if (!bytes) abort();
    const size_t at = n * a[1] / 256;
    const bool cut = a[0] & 128;
    if (!cut) bytes[at] ^= (uint8_t)(1 << a[0] / 16 % 8);
    run_write("damaged", bytes, cut ? at : n);
    free(bytes);
    run_note(r, " load_state(%s, damaged at %zu)", slot_name(i), at);
    run_trouble(r, r->way.device, a[2]);
    const inv_status st = inv_session_load_state(r->s, run_path("damaged"), NULL);
    (void)run_went(r, st, false);
}

static void save(run *r, const uint8_t *a)
{
    run_note(r, " save()");
    run_trouble(r, r->way.device, a[2]);
    const inv_status st = inv_model_save(r->model, r->s, run_path("saved.onnx"));
    if (run_went(r, st, true)) run_agree_file(r, "saved.onnx");
}

/* --- other sessions --- */

static void take(run *r, inv_session *s, const run_way *way)
{
    inv_session_destroy(r->s);
    r->s = s;
    r->way = *way;
    r->scopes = 0;
    r->plain = true;
    r->names = false;
    memset(r->view, 0, sizeof r->view);
}

static bool same_way(const run_way *a, const run_way *b)
{
    return !memcmp(&a->sizes, &b->sizes, sizeof a->sizes) && a->memory == b->memory && a->device == b->device &&
           a->early == b->early;
}

/* Another session goes on from a state, and takes the place of this one. */
static void go_on(run *r, const uint8_t *a)
{
    const run_slot *slot = &r->slot[a[0] % RUN_SLOTS];
    const run_way way = a[0] & 4 ? slot->way : way_of((const uint8_t[]){a[1], a[0], a[1] ^ a[0]});
    const bool planned = a[0] & 8 && slot->plain && same_way(&way, &slot->way), early = a[0] & 16;
    char *plan = NULL;
    if (!slot->used) return;
    run_note(r, " go_on(%s%s%s)", slot_name(a[0] % RUN_SLOTS), planned ? ", its plan" : "", early ? ", its step" : "");
    run_trouble(r, way.device, planned ? 0 : a[2]);
    const char *path = run_path(slot_name(a[0] % RUN_SLOTS));
    if (planned && !run_went(r, inv_state_read(r->f->ctx, path, NULL, &plan), true)) return;
    inv_session *s = run_session(r, &way, early || planned ? slot->twin.steps : 0, plan);
    inv_free(r->f->ctx, plan);
    if (!s) return;
    run_trouble(r, way.device, a[2] ^ a[1]);
    if (!run_went(r, inv_session_load_state(s, path, NULL), true)) {
        inv_session_destroy(s);
        return;
    }
    take(r, s, &way);
    go_to(r, slot);
}

static void begin_anew(run *r, const uint8_t *a)
{
    const run_way way = way_of((const uint8_t[]){a[1], a[0], a[1] ^ a[0]});
    run_note(r, " begin_anew()");
    run_trouble(r, way.device, a[2]);
    inv_session *s = run_session(r, &way, 0, NULL);
    if (!s) return;
    take(r, s, &way);
    r->twin.factor = 0.5;
    twin_begin(&r->twin, run_weights(), 0);
}

/* --- sequences --- */

static void (*const calls[])(run *, const uint8_t *) = {
    step,     step,       step,       step,       accumulate, accumulate,   accumulate, update,       update,
    next,     evaluate,   evaluate,   modes,      modes,      resize,       resize,     average,      average,
    set_step, set_rate,   set,        set,        view,       look,         wrong,      refuse_batch, refuse_batch,
    save,     save_state, save_state, load_state, load_state, load_damaged, go_on,      begin_anew};

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static run r;
    if (size < OPTION_BYTES) return 0;
    run_write_model();
    memset(&r, 0, sizeof r);
    r.f = fuzz_open();
    r.plain = true;
    choose(&r, data);
    if (!fuzz_ok(r.f, inv_model_load(r.f->ctx, run_path("model.onnx"), &r.model))) abort();
    r.s = run_session(&r, &r.way, 0, NULL);
    if (!r.s) abort();
    const uint8_t *at = data + OPTION_BYTES;
    for (int i = 0; i < MOST_CALLS && data + size - at >= CALL_BYTES; i++, at += CALL_BYTES) {
        run_note(&r, "\n  %d.", i + 1);
        calls[at[0] % (sizeof calls / sizeof *calls)](&r, at + 1);
        run_agree(&r);
    }
    if (getenv("INVONNX_CALLS")) (void)puts(r.log); /* else only where something is wrong */
    inv_session_destroy(r.s);
    inv_model_destroy(r.model);
    fuzz_close(r.f);
    return 0;
}
