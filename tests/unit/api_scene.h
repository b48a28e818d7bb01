/* SPDX-License-Identifier: Apache-2.0
 * For the walk through the API: slots, which are the places of a call whose values are replaced one after the other,
 * what the calls are made of, and the structs that they take, with a slot for each field. Included once. */
#ifndef INVONNX_API_SCENE_H
#define INVONNX_API_SCENE_H

#include <ctype.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "core/base/mem.h"
#include "invonnx/invonnx.h"

#define MODEL INV_TEST_DATA "/models/nice_dynbatch_ts17/model.onnx"
#define CLASSES INV_TEST_DATA "/models/plain_lenet_ts17/model.onnx"
enum { ROWS = 4, WIDTH = 8, MOST = 128, LONG = 70000 };

/* --- slots: the places of a call whose values are replaced --- */

typedef enum slot_kind {
    OBJECT,  /* NULL: INV_E_ARG, without a message where there is no context */
    WANTED,  /* NULL: INV_E_ARG, named */
    MAY,     /* may be NULL */
    TEXT,    /* a string that is wanted: NULL is named, and so is a wrong one, by its value or by the parameter */
    TEXT_OR, /* the same, but NULL is something */
    INTEGER,
    COUNT,  /* of a list, which may not be larger than the list is: 0 */
    SIZE,   /* of a struct */
    CHOICE, /* an enumeration: what there is not is named */
    REAL
} slot_kind;

static struct {
    size_t n, target; /* slots so far; the one to be replaced, from 1 on, 0: none */
    int trial;
    const char *name[MOST];
    slot_kind kind[MOST];
} at;

static char long_text[LONG + 1];
static const char *const texts[] = {NULL, "", "there is no such thing", "\xff\xfe\xc0", long_text};
static const int64_t integers[] = {0, -1, 1, INT32_MAX, INT32_MIN, INT64_MAX, INT64_MIN, (int64_t)1 << 40};
static const double reals[] = {(double)NAN, (double)INFINITY, -(double)INFINITY, -1, 0, 1e308, 5e-324};

static int trials(slot_kind kind)
{
    switch (kind) {
    case OBJECT:
    case WANTED:
    case COUNT:
    case MAY: return 1;
    case TEXT:
    case TEXT_OR: return (int)(sizeof texts / sizeof *texts);
    case INTEGER:
    case SIZE: return (int)(sizeof integers / sizeof *integers);
    case CHOICE: return 3;
    case REAL: return (int)(sizeof reals / sizeof *reals);
    }
    return 0;
}

/* Whether this slot is the one. */
static bool replaced(slot_kind kind, const char *name)
{
    assert_in_range(at.n, 0, MOST - 1);
    at.name[at.n] = name;
    at.kind[at.n] = kind;
    return ++at.n == at.target;
}

static void *pointer(slot_kind kind, const char *name, const void *good)
{
    return replaced(kind, name) ? NULL : (void *)(uintptr_t)good;
}

static const char *text(slot_kind kind, const char *name, const char *good)
{
    return replaced(kind, name) ? texts[at.trial] : good;
}

static int64_t integer(slot_kind kind, const char *name, int64_t good)
{
    static const int choices[] = {-1, 99, INT32_MIN};
    if (!replaced(kind, name)) return good;
    if (kind == COUNT) return 0;
    return kind == CHOICE ? choices[at.trial] : integers[at.trial];
}

static double real(const char *name, double good) { return replaced(REAL, name) ? reals[at.trial] : good; }

#define O(name, good) pointer(OBJECT, #name, good)
#define W(name, good) pointer(WANTED, #name, good)
#define M(name, good) pointer(MAY, #name, good)
#define T(name, good) text(TEXT, #name, good)
#define TN(name, good) text(TEXT_OR, #name, good)
#define N(name, good) integer(INTEGER, #name, (int64_t)(good))
#define K(name, good) ((size_t)integer(COUNT, #name, (int64_t)(good)))
#define Z(name, good) ((size_t)integer(SIZE, #name, (int64_t)(good)))
#define C(type, name, good) ((type)integer(CHOICE, #name, (int64_t)(good)))
#define R(name, good) real(#name, good)

/* --- what is called --- */

typedef struct scene {
    inv_context *ctx;
    inv_model *model, *other;
    inv_session *session;
    inv_world *world;
    char *json, *more;
    inv_cost_table *costs;
} scene;

static float x[ROWS * WIDTH];
static const int64_t extents[] = {ROWS, WIDTH};
static const inv_array in = {.name = "x", .dtype = INV_F32, .rank = 2, .dims = extents, .data = x},
                       out_gradient = {.name = "y", .dtype = INV_F32, .rank = 2, .dims = extents, .data = x};

static void need(scene *s, inv_status st)
{
    if (st != INV_OK) fail_msg("%s", inv_context_message(s->ctx));
}

static inv_session_options usual(void)
{
    return (inv_session_options){.size = sizeof(inv_session_options),
                                 .purpose = INV_FOR_TRAIN,
                                 .inputs = &in,
                                 .ninputs = 1,
                                 .target = &in,
                                 .loss = INV_LOSS_MSE,
                                 .memory = INV_MEMORY_STORE,
                                 .threads = 1,
                                 .eval_batch = ROWS,
                                 .optimizer = INV_OPT_ADAM,
                                 .beta1 = 0.9,
                                 .beta2 = 0.999,
                                 .epsilon = 1e-8};
}

static void bare(scene *s) { (void)s; }
static void load(scene *s) { need(s, inv_model_load(s->ctx, MODEL, &s->model)); }
static void load_classes(scene *s) { need(s, inv_model_load(s->ctx, CLASSES, &s->model)); }
static void open_with(scene *s, const inv_session_options *o)
{
    load(s);
    need(s, inv_session_create(s->model, o, &s->session));
}
static void train(scene *s)
{
    inv_result r;
    const inv_session_options o = usual();
    open_with(s, &o);
    need(s, inv_session_step(s->session, &in, 1, &in, 0.1, &r));
}
static void accumulate(scene *s)
{
    inv_result r;
    inv_session_options o = usual();
    o.accumulate = o.average = true;
    open_with(s, &o);
    need(s, inv_session_accumulate(s->session, &in, 1, &in, &r));
}
static void groups(scene *s)
{
    const inv_param_group group = {.glob = "*", .lr = 1, .weight_decay = -1};
    inv_session_options o = usual();
    o.groups = &group;
    o.ngroups = 1;
    o.average = true;
    open_with(s, &o);
}
static void differentiate(scene *s)
{
    inv_session_options o = usual();
    o.optimizer = INV_OPT_NONE;
    open_with(s, &o);
}
static void outside(scene *s)
{
    inv_result r;
    inv_session_options o = usual();
    o.optimizer = INV_OPT_NONE;
    o.loss = INV_LOSS_OUTSIDE;
    o.target = NULL;
    o.eval_batch = 0;
    open_with(s, &o);
    need(s, inv_session_forward(s->session, &in, 1, &r));
}
static void scoped(scene *s)
{
    const inv_modes change = {.size = sizeof change};
    train(s);
    need(s, inv_session_push_modes(s->session, &change));
}
static void adapt(scene *s)
{
    const char *all = "*";
    const inv_lora lora = {.size = sizeof lora, .targets = &all, .ntargets = 1, .rank = 1, .alpha = 1};
    load(s);
    need(s, inv_model_add_lora(s->model, &lora, NULL));
}
static void imagine(scene *s) { need(s, inv_world_imagine(s->ctx, 2, 1, 1e-6, 1e9, 0, &s->world)); }

/* --- structs --- */

static inv_status create(scene *s)
{
    inv_context *made = NULL;
    const inv_allocator none = {.alloc = NULL};
    const inv_context_options o = {.size = Z(size, sizeof o), .allocator = at.n + 1 == at.target ? &none : NULL};
    (void)W(allocator, NULL); /* one without functions */
    (void)s;
    const inv_status st = inv_context_create(M(options, &o), O(out, &made));
    inv_context_destroy(made);
    return st;
}

static inv_status rate(void)
{
    const inv_schedule sc = {.size = sizeof sc,
                             .kind = (inv_schedule_kind)N(kind, INV_SCHEDULE_WSD),
                             .lr = R(lr, 1),
                             .min_lr = R(min_lr, 0),
                             .warmup = (uint64_t)N(warmup, 3),
                             .total = (uint64_t)N(total, 10),
                             .power = R(power, 1),
                             .every = (uint64_t)N(every, 1),
                             .factor = R(factor, 1),
                             .decay = (uint64_t)N(decay, 2)};
    (void)inv_lr_at(M(schedule, &sc), (uint64_t)N(step, 5));
    return INV_OK;
}

static inv_status calibrate(scene *s)
{
    const inv_calibrate_options o = {.size = Z(size, sizeof o),
                                     .threads = (int)N(threads, 1),
                                     .cache = TN(cache, ""),
                                     .device = TN(device, "cpu"),
                                     .kept = true};
    const inv_status st = inv_calibrate(O(ctx, s->ctx), M(options, &o), W(out, &s->costs));
    inv_free(s->ctx, s->costs);
    return st;
}

static inv_status add_lora(scene *s)
{
    const char *target = T(targets, "*");
    const inv_lora o = {.size = Z(size, sizeof o),
                        .targets = W(targets, &target),
                        .ntargets = K(targets, 1),
                        .rank = N(rank, 1),
                        .alpha = R(alpha, 1),
                        .dropout = R(dropout, 0),
                        .seed = (uint64_t)N(seed, 1)};
    return inv_model_add_lora(O(model, s->model), W(lora, &o), M(json, &s->json));
}

static inv_status set_head(scene *s)
{
    const inv_head o = {.size = Z(size, sizeof o),
                        .classes = N(classes, WIDTH),
                        .node = TN(node, NULL),
                        .output = TN(output, NULL),
                        .seed = (uint64_t)N(seed, 1)};
    return inv_model_set_head(O(model, s->model), W(head, &o), M(json, &s->json));
}

/* Every field that is looked at by itself. */
static inv_session_options session_options(void)
{
    static const char *star[1];
    static inv_mode_rule rule;
    static inv_param_group group;
    static inv_stage stage;
    static inv_array array, goal;
    inv_session_options o = usual();
    star[0] = T(keep, "*");
    rule = (inv_mode_rule){T(modes, "*"), C(inv_memory, mode, INV_MEMORY_STORE)};
    group = (inv_param_group){T(groups, "*"), R(groups, 1), R(groups, 0), C(inv_optimizer, groups, INV_OPT_NONE)};
    stage = (inv_stage){T(stages, "*"), (uint64_t)N(later, 0)};
    array = (inv_array){.name = T(input, "x"),
                        .dtype = C(inv_dtype, type, INV_F32),
                        .rank = (int)N(input, 2),
                        .dims = W(dims, extents),
                        .data = M(data, x)};
    goal = (inv_array){
        .dtype = C(inv_dtype, target, INV_F32), .rank = (int)N(target, 2), .dims = W(target, extents), .data = x};
    o.size = Z(size, sizeof o);
    o.purpose = C(inv_purpose, purpose, INV_FOR_TRAIN);
    o.inputs = W(inputs, &array);
    o.target = M(target, &goal);
    o.tail_batch = N(tail_batch, 0);
    o.eval_batch = N(eval_batch, ROWS);
    o.eval_tail = N(eval_tail, 0);
    o.loss = C(inv_loss, loss, INV_LOSS_MSE);
    o.class_axis = (int)N(class_axis, 0);
    o.memory = C(inv_memory, memory, INV_MEMORY_STORE);
    o.keep = W(keep, star);
    o.nkeep = 1;
    o.modes = W(modes, &rule);
    o.nmodes = 1;
    o.device = TN(device, "cpu");
    o.guard = C(inv_guard, guard, INV_GUARD_ON);
    o.max_drift = R(max_drift, 0);
    o.optimizer = C(inv_optimizer, optimizer, INV_OPT_ADAM);
    o.momentum = R(momentum, 0);
    o.beta1 = R(beta1, 0.9);
    o.beta2 = R(beta2, 0.9);
    o.epsilon = R(epsilon, 1e-8);
    o.weight_decay = R(weight_decay, 0);
    o.threads = (int)N(threads, 1);
    o.budget = (uint64_t)N(budget, 0);
    o.huber_delta = R(huber_delta, 0);
    o.plan = TN(plan, NULL);
    o.groups = W(groups, &group);
    o.ngroups = 1;
    o.clip_norm = R(clip_norm, 0);
    o.average_decay = R(average_decay, 0);
    o.label_smoothing = R(label_smoothing, 0);
    o.effort = N(effort, 1);
    o.weights = C(inv_dtype, weights, INV_DT_NONE);
    o.cost_cache = TN(cost_cache, NULL);
    o.stages = W(stages, &stage);
    o.nstages = 1;
    o.precision = C(inv_precision, precision, INV_PRECISION_FULL);
    o.shard = C(inv_shard, shard, INV_SHARD_NONE);
    return o;
}

/* Globs of a kind each: none fits. */
static inv_status create_session(scene *s)
{
    inv_session_options o = session_options();
    const char *none = at.target && at.target == at.n + 1 ? texts[at.trial] : "m.*";
    (void)T(train_only, none);
    o.train_only = &none;
    o.ntrain_only = 1;
    o.logdet = NULL;
    return inv_session_create(O(model, s->model), W(options, &o), W(out, &s->session));
}

static inv_status check_options(scene *s)
{
    const inv_session_options o = session_options();
    return inv_session_options_check(O(ctx, s->ctx), W(options, &o));
}

static inv_session_options shapes_of(void)
{
    return (inv_session_options){.size = Z(size, sizeof(inv_session_options)), .inputs = &in, .ninputs = K(ninputs, 1)};
}

static inv_status find(scene *s)
{
    int64_t found[2], *lists[] = {found};
    const inv_session_options o = {.size = sizeof o, .inputs = &in, .ninputs = 1};
    return inv_model_find_extents(O(model, s->model), W(options, &o), N(batch, 3), W(dims, lists));
}

/* The options of a training session, whatever they say of updates. */
static inv_status check(scene *s)
{
    inv_session_options o = usual();
    o.size = Z(size, sizeof o);
    o.accumulate = o.average = o.early_update = o.improve = o.send_ahead = o.grad_norm = true;
    o.clip_value = 1;
    o.tail_batch = ROWS - 1;
    return inv_model_check(O(model, s->model), W(options, &o), W(json, &s->json));
}

static inv_status rewrite(scene *s)
{
    const inv_session_options o = shapes_of();
    return inv_model_rewrite(O(model, s->model), M(options, &o), T(path, "walk.out"), M(json, &s->json));
}

static inv_reverse_options direction(void)
{
    static const char *given[1];
    given[0] = NULL;
    return (inv_reverse_options){
        .size = Z(size, sizeof(inv_reverse_options)), .given = given, .logdet = TN(logdet, NULL)};
}

static inv_status reverse(scene *s)
{
    const inv_session_options o = shapes_of();
    const inv_reverse_options d = direction();
    return inv_model_reverse(O(model, s->model), M(shapes, &o), M(options, &d), W(out, &s->other));
}

static inv_status write_inverse(scene *s)
{
    const inv_session_options o = shapes_of();
    const inv_reverse_options d = direction();
    return inv_model_write_inverse(O(model, s->model), M(shapes, &o), M(options, &d), T(path, "walk.out"),
                                   M(json, &s->json));
}

static inv_status resize(scene *s)
{
    const inv_session_sizes o = {.size = Z(size, sizeof o),
                                 .inputs = M(inputs, &in),
                                 .ninputs = 1,
                                 .target = M(target, &in),
                                 .tail_batch = N(tail_batch, 0),
                                 .eval_batch = N(eval_batch, ROWS),
                                 .eval_tail = N(eval_tail, 0),
                                 .plan = TN(plan, NULL)};
    return inv_session_resize(O(session, s->session), W(sizes, &o));
}

static inv_status set_modes(scene *s, inv_status (*set)(inv_session *, const inv_modes *))
{
    const inv_mode_rule rule = {T(modes, "*"), C(inv_memory, mode, INV_MEMORY_STORE)};
    const inv_memory memory = C(inv_memory, memory, INV_MEMORY_STORE);
    const inv_modes o = {
        .size = Z(size, sizeof o), .memory = M(memory, &memory), .rules = W(modes, &rule), .nrules = 1};
    return set(O(session, s->session), W(modes, &o));
}

static inv_status try_budget(scene *s)
{
    inv_trial trial = {.size = Z(size, sizeof trial)};
    return inv_session_try_budget(O(session, s->session), (uint64_t)N(budget, 0), W(trial, &trial));
}

#endif
