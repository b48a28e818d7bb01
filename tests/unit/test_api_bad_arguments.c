/* SPDX-License-Identifier: Apache-2.0
 * All functions of the API, with each of their parameters, and each field of the structs that they take, missing, wrong
 * or extreme in turn. A failure is a status with a message, which names the parameter or the field where that alone is
 * wrong, and never an option of the command line; what is missing is never taken. A function that api/invonnx.map
 * exports and that is not called here fails the test, and so does a parameter of it that is not named here. */
#include "api_scene.h"

/* Each function with slots for all of its parameters. */
#define RESULT (&(inv_result){0})
#define CALLS(X)                                                                                                      \
    X(inv_adapters_inspect, bare, inv_adapters_inspect(O(ctx, s->ctx), T(path, "walk.adapters"), W(json, &s->json)))  \
    X(inv_context_details, bare, (inv_context_details(M(ctx, s->ctx)), INV_OK))                                       \
    X(inv_context_message, bare, (inv_context_message(M(ctx, s->ctx)), INV_OK))                                       \
    X(inv_context_load_plugin, bare, inv_context_load_plugin(O(ctx, s->ctx), T(path, "walk.rules")))                  \
    X(inv_free, bare, (inv_free(M(ctx, s->ctx), M(p, NULL)), INV_OK))                                                 \
    X(inv_model_adapters, adapt, inv_model_adapters(O(model, s->model), W(json, &s->json)))                           \
    X(inv_model_free_adapters, adapt, inv_model_free_adapters(O(model, s->model)))                                    \
    X(inv_model_merge_adapters, adapt, inv_model_merge_adapters(O(model, s->model), M(json, &s->json)))               \
    X(inv_model_save_adapters, adapt,                                                                                 \
      inv_model_save_adapters(O(model, s->model), M(session, NULL), T(path, "walk.out")))                             \
    X(inv_model_load_adapters, adapt,                                                                                 \
      inv_model_load_adapters(O(model, s->model), T(path, "walk.adapters"), M(json, &s->json)))                       \
    X(inv_model_destroy, bare, (inv_model_destroy(M(model, NULL)), INV_OK))                                           \
    X(inv_context_destroy, bare, (inv_context_destroy(M(ctx, NULL)), INV_OK))                                         \
    X(inv_session_destroy, bare, (inv_session_destroy(M(session, NULL)), INV_OK))                                     \
    X(inv_model_file, load,                                                                                           \
      (inv_model_file(M(model, s->model), (size_t)N(i, 0), M(path, &(const char *){0}), M(nbytes, &(size_t){0})),     \
       INV_OK))                                                                                                       \
    X(inv_model_inspect, load, inv_model_inspect(O(model, s->model), W(json, &s->json)))                              \
    X(inv_model_load, bare, inv_model_load(O(ctx, s->ctx), T(path, MODEL), W(out, &s->other)))                        \
    X(inv_model_load_with, bare,                                                                                      \
      inv_model_load_with(O(ctx, s->ctx), T(path, MODEL), W(names, &(const char *){TN(names, "m")}), K(nnames, 1),    \
                          W(out, &s->other)))                                                                         \
    X(inv_model_metadata, load, (inv_model_metadata(M(model, s->model), TN(key, "a")), INV_OK))                       \
    X(inv_model_set_metadata, load, inv_model_set_metadata(O(model, s->model), T(key, "a"), TN(value, "b")))          \
    X(inv_model_set_form, load, inv_model_set_form(O(model, s->model), C(inv_form, form, INV_FORM_DEFAULT)))          \
    X(inv_model_set_layout, load, inv_model_set_layout(O(model, s->model), C(inv_layout, layout, INV_LAYOUT_KEEP)))   \
    X(inv_model_save, load, inv_model_save(O(model, s->model), M(session, s->session), T(path, "walk.out")))          \
    X(inv_name_distance, bare, (inv_name_distance(TN(glob, "a*"), TN(name, "b")), INV_OK))                            \
    X(inv_process_bytes, bare, (inv_process_bytes(), INV_OK))                                                         \
    X(inv_version, bare, (inv_version(), INV_OK))                                                                     \
    X(inv_status_text, bare, inv_status_text((inv_status)N(s, 0)) ? INV_OK : INV_E_INTERNAL)                          \
    X(inv_optimizer_defaults, bare, (inv_optimizer_defaults((inv_optimizer)N(optimizer, 1)), INV_OK))                 \
    X(inv_registry_report, bare, inv_registry_report(O(ctx, s->ctx), T(what, "rules"), W(json, &s->json)))            \
    X(inv_session_end_views, train, (inv_session_end_views(M(session, s->session)), INV_OK))                          \
    X(inv_session_explain, train, inv_session_explain(O(session, s->session), W(json, &s->json)))                     \
    X(inv_session_report, train, inv_session_report(O(session, s->session), W(json, &s->json)))                       \
    X(inv_session_plan, train, inv_session_plan(O(session, s->session), W(json, &s->json)))                           \
    X(inv_session_step, train,                                                                                        \
      inv_session_step(O(session, s->session), W(inputs, &in), K(ninputs, 1), W(target, &in), R(lr, 0.1),             \
                       W(result, RESULT)))                                                                            \
    X(inv_session_eval, train,                                                                                        \
      inv_session_eval(O(session, s->session), W(inputs, &in), K(ninputs, 1), W(target, &in), W(result, RESULT)))     \
    X(inv_session_accumulate, accumulate,                                                                             \
      inv_session_accumulate(O(session, s->session), W(inputs, &in), K(ninputs, 1), W(target, &in),                   \
                             W(result, RESULT)))                                                                      \
    X(inv_session_update, accumulate, inv_session_update(O(session, s->session), R(lr, 0.1), W(result, RESULT)))      \
    X(inv_session_grad, differentiate,                                                                                \
      inv_session_grad(O(session, s->session), W(inputs, &in), K(ninputs, 1), W(target, &in), W(result, RESULT)))     \
    X(inv_session_forward, outside,                                                                                   \
      inv_session_forward(O(session, s->session), W(inputs, &in), K(ninputs, 1), W(result, RESULT)))                  \
    X(inv_session_backward, outside,                                                                                  \
      inv_session_backward(O(session, s->session), W(gradients, &out_gradient), K(ngradients, 1), W(result, RESULT))) \
    X(inv_session_next, train,                                                                                        \
      inv_session_next(O(session, s->session), M(inputs, &in), K(ninputs, 1), M(target, &in)))                        \
    X(inv_session_get, train,                                                                                         \
      inv_session_get(O(session, s->session), C(inv_what, what, INV_GET_PARAM), T(name, "m.0.0.weight"),              \
                      W(data, &(const void *){0}), W(dtype, &(inv_dtype){0}), W(rank, &(int){0}),                     \
                      W(dims, (int64_t[8]){0})))                                                                      \
    X(inv_session_view, train,                                                                                        \
      inv_session_view(O(session, s->session), C(inv_what, what, INV_GET_PARAM), T(name, "m.0.0.weight"),             \
                       W(view, &(inv_view){0})))                                                                      \
    X(inv_session_set, train,                                                                                         \
      inv_session_set(O(session, s->session), C(inv_what, what, INV_GET_PARAM), T(name, "m.0.0.bias"),                \
                      C(inv_dtype, dtype, INV_F32), W(data, x), (size_t)N(n, 16)))                                    \
    X(inv_session_set_param, train,                                                                                   \
      inv_session_set_param(O(session, s->session), T(name, "m.0.0.bias"), C(inv_dtype, dtype, INV_F32), W(data, x),  \
                            (size_t)N(n, 16)))                                                                        \
    X(inv_session_name, train,                                                                                        \
      (inv_session_name(M(session, s->session), (inv_what)N(what, INV_GET_GRAD), (size_t)N(i, 0)), INV_OK))           \
    X(inv_session_set_group_lr, groups,                                                                               \
      inv_session_set_group_lr(O(session, s->session), (size_t)N(group, 0), R(factor, 2)))                            \
    X(inv_session_set_step, train,                                                                                    \
      (inv_session_set_step(M(session, s->session), (uint64_t)N(step, 1), (uint64_t)N(micro, 0)), INV_OK))            \
    X(inv_session_steps, train, (inv_session_steps(M(session, s->session)), INV_OK))                                  \
    X(inv_session_use_average, groups, inv_session_use_average(O(session, s->session), N(average, 1) != 0))           \
    X(inv_session_pop_modes, scoped, inv_session_pop_modes(O(session, s->session)))                                   \
    X(inv_session_save_state, train,                                                                                  \
      inv_session_save_state(O(session, s->session), T(path, "walk.out"), TN(note, "note")))                          \
    X(inv_session_load_state, train,                                                                                  \
      inv_session_load_state(O(session, s->session), T(path, "walk.state"), M(note, &s->json)))                       \
    X(inv_state_read, bare,                                                                                           \
      inv_state_read(O(ctx, s->ctx), T(path, "walk.state"), M(note, &s->json), M(plan, &s->more)))                    \
    X(inv_state_inspect, bare, inv_state_inspect(O(ctx, s->ctx), T(path, "walk.state"), W(json, &s->json)))           \
    X(inv_world_launched, bare, (inv_world_launched(M(rank, &(int){0}), M(size, &(int){0})), INV_OK))                 \
    X(inv_world_apart, bare, (inv_world_apart(M(rank, &(int){0}), M(size, &(int){0})), INV_OK))                       \
    X(inv_world_rank, imagine, (inv_world_rank(M(world, s->world)), INV_OK))                                          \
    X(inv_world_size, imagine, (inv_world_size(M(world, s->world)), INV_OK))                                          \
    X(inv_world_close, bare, (inv_world_close(M(world, NULL)), INV_OK))                                               \
    X(inv_world_first, bare, (inv_world_first(M(world, NULL), R(seconds, 1)), INV_OK))                                \
    X(inv_world_end_all, bare, (inv_world_end_all(M(world, NULL), (int)N(status, 1)), INV_OK))                        \
    X(inv_world_gather, bare,                                                                                         \
      inv_world_gather(M(world, NULL), O(what, "it"), O(mine, x), K(nbytes, 4), O(all, (char[4]){0})))                \
    X(inv_world_imagine, bare,                                                                                        \
      inv_world_imagine(O(ctx, s->ctx), (int)N(size, 2), (int)N(on_host, 1), R(latency, 1e-6),                        \
                        R(bytes_per_second, 1e9), R(busy, 0), W(out, &s->world)))                                     \
    X(inv_context_create, bare, create(s))                                                                            \
    X(inv_lr_at, bare, rate())                                                                                        \
    X(inv_calibrate, bare, calibrate(s))                                                                              \
    X(inv_model_add_lora, load, add_lora(s))                                                                          \
    X(inv_model_set_head, load_classes, set_head(s))                                                                  \
    X(inv_model_find_extents, load, find(s))                                                                          \
    X(inv_model_check, load, check(s))                                                                                \
    X(inv_model_rewrite, load, rewrite(s))                                                                            \
    X(inv_model_reverse, load, reverse(s))                                                                            \
    X(inv_model_write_inverse, load, write_inverse(s))                                                                \
    X(inv_session_create, load, create_session(s))                                                                    \
    X(inv_session_options_check, bare, check_options(s))                                                              \
    X(inv_session_resize, train, resize(s))                                                                           \
    X(inv_session_set_modes, train, set_modes(s, inv_session_set_modes))                                              \
    X(inv_session_push_modes, train, set_modes(s, inv_session_push_modes))                                            \
    X(inv_session_try_budget, train, try_budget(s))

/* And those that are not. */
static const char *const excused[][2] = {
    {"inv_selftest", "runs for minutes; its arguments are below"},
    {"inv_world_open", "joins processes: tests/cli/test_ranks.py; its arguments are below"},
};

/* --- the walk --- */

typedef struct row {
    const char *name;
    void (*ready)(scene *);
    inv_status (*call)(scene *);
} row;

#define CALL(name, before, ...) \
    static inv_status call_##name(scene *s) { return (void)s, __VA_ARGS__; }
CALLS(CALL)
#define ROW(name, before, ...) {#name, before, call_##name},
static const row rows[] = {CALLS(ROW)};
enum { NROWS = sizeof rows / sizeof *rows };

static void check_refused(const row *r, const scene *s, inv_status st, slot_kind kind, const char *name)
{
    const char *message = inv_context_message(s->ctx);
    char what[200];
    snprintf(what, sizeof what, "%s with %s wrong (%d)", r->name, name, at.trial);
    if (kind == OBJECT) {
        if (st != INV_E_ARG) fail_msg("%s: status %d", what, (int)st);
        return;
    }
    if (strcmp(r->name, "inv_context_create") == 0) return; /* whose message would be its own */
    if (!*message || strstr(message, "stale")) fail_msg("%s: status %d without a message", what, (int)st);
    const char *brace = strchr(message, '{'); /* of a field that was not spelled */
    if (strstr(message, "--") || (brace && isalpha((unsigned char)brace[1]))) fail_msg("%s: %s", what, message);
    if (kind == MAY) return; /* some models want it */
    const bool by_value = (kind == TEXT || kind == TEXT_OR) && at.trial > 0;
    const bool extreme = kind == INTEGER && (st == INV_E_NOMEM || st == INV_E_SHAPE);
    if (!by_value && !extreme && kind != SIZE && kind != COUNT && !strstr(message, name))
        fail_msg("%s: %s", what, message);
}

/* What nobody can mean. */
static bool must_fail(slot_kind kind, const char *name)
{
    return kind == OBJECT || kind == WANTED || kind == CHOICE ||
           (kind == TEXT && (at.trial == 0 || (at.trial == 1 && strcmp(name, "path") == 0)));
}

/* One call with slot `target` replaced; 0: with none. */
static void call_once(const row *r, size_t target)
{
    scene s = {0};
    at.n = at.target = 0;
    assert_int_equal(inv_context_create(NULL, &s.ctx), INV_OK);
    r->ready(&s);
    (void)inv_fail(s.ctx, INV_E_ARG, "stale");
    at.n = 0;
    at.target = target;
    const inv_status st = r->call(&s);
    if (!target && st != INV_OK) fail_msg("%s: %s", r->name, inv_context_message(s.ctx));
    if (target) {
        const slot_kind kind = at.kind[target - 1];
        if (st != INV_OK) check_refused(r, &s, st, kind, at.name[target - 1]);
        else if (must_fail(kind, at.name[target - 1]))
            fail_msg("%s takes %s (%d)", r->name, at.name[target - 1], at.trial);
    }
    inv_free(s.ctx, s.json);
    inv_free(s.ctx, s.more);
    inv_session_destroy(s.session);
    inv_model_destroy(s.model);
    inv_model_destroy(s.other);
    inv_world_close(s.world);
    inv_context_destroy(s.ctx);
    (void)remove("walk.out");
    (void)remove("there is no such thing");
    (void)remove("\xff\xfe\xc0");
}

/* --- what there is --- */

static char headers[1 << 17];

static void read_text(const char *path, char *out, size_t room)
{
    FILE *f = fopen(path, "r");
    assert_non_null(f);
    out[fread(out, 1, room - 1, f)] = 0;
    fclose(f);
}

static bool is_slot(const char *name, size_t n)
{
    for (size_t i = 0; i < at.n; i++)
        if (strlen(at.name[i]) == n && memcmp(at.name[i], name, n) == 0) return true;
    return false;
}

/* Each parameter of the declaration has a slot in the call that was made last. */
static void check_parameters(const row *r)
{
    char opened[80];
    snprintf(opened, sizeof opened, " %s(", r->name);
    const char *p = strstr(headers, opened);
    if (!p) snprintf(opened, sizeof opened, "*%s(", r->name);
    if (!p) p = strstr(headers, opened);
    if (!p) fail_msg("%s is not declared", r->name);
    for (p += strlen(opened); p[-1] != ')'; p++) {
        const char *end = p + strcspn(p, ",)"), *last = end;
        while (last > p && !(isalnum((unsigned char)last[-1]) || last[-1] == '_')) last--;
        const char *first = last;
        while (first > p && (isalnum((unsigned char)first[-1]) || first[-1] == '_')) first--;
        const size_t n = (size_t)(last - first);
        if (!is_slot(first, n) && !(n == 4 && memcmp(first, "void", 4) == 0))
            fail_msg("%s: its parameter %.*s is not walked", r->name, (int)n, first);
        p = end;
    }
}

static void walk(void **state)
{
    const row *r = *state;
    call_once(r, 0);
    check_parameters(r);
    const size_t n = at.n;
    for (size_t i = 1; i <= n; i++) {
        const int most = trials(at.kind[i - 1]);
        for (at.trial = 0; at.trial < most; at.trial++) call_once(r, i);
    }
}

static void test_all_are_walked(void **state)
{
    static char map[1 << 14];
    size_t n = 0;
    (void)state;
    read_text(INV_SOURCE_DIR "/api/invonnx.map", map, sizeof map);
    for (char *p = strstr(map, "global:"); (p = strstr(p, "inv_")); n++) {
        char *name = p;
        p += strcspn(p, ";");
        *p++ = 0;
        bool found = false;
        for (size_t i = 0; i < NROWS; i++) found = found || strcmp(rows[i].name, name) == 0;
        for (size_t i = 0; i < sizeof excused / sizeof *excused; i++) found = found || strcmp(excused[i][0], name) == 0;
        if (!found) fail_msg("%s is not walked", name);
    }
    assert_int_equal(n, NROWS + sizeof excused / sizeof *excused);
}

static void test_arguments_of_the_others(void **state)
{
    (void)state;
    scene s = {0};
    bare(&s);
    assert_int_equal(inv_context_create(NULL, &s.ctx), INV_OK);
    assert_int_equal(inv_selftest(NULL, NULL, &s.json), INV_E_ARG);
    assert_int_equal(inv_selftest(s.ctx, NULL, NULL), INV_E_ARG);
    assert_non_null(strstr(inv_context_message(s.ctx), "json"));
    assert_int_equal(inv_selftest(s.ctx, "no such plugin", &s.json), INV_E_ARG);
    assert_non_null(strstr(inv_context_message(s.ctx), "no such plugin"));
    assert_int_equal(inv_world_open(NULL, 1, &s.world), INV_E_ARG);
    assert_int_equal(inv_world_open(s.ctx, 1, NULL), INV_E_ARG);
    assert_non_null(strstr(inv_context_message(s.ctx), "out"));
    for (int i = 0; i < 5; i++) {
        assert_int_equal(inv_world_open(s.ctx, reals[i], &s.world), INV_E_ARG);
        assert_non_null(strstr(inv_context_message(s.ctx), "timeout"));
    }
    inv_context_destroy(s.ctx);
}

/* --- averages --- */

static float first_of(scene *s, inv_what what, const char *name)
{
    const void *data;
    inv_dtype type;
    int rank;
    int64_t dims[8];
    need(s, inv_session_get(s->session, what, name, &data, &type, &rank, dims));
    return *(const float *)data;
}

#define WEIGHT "m.0.0.bias"
/* While an average has the weight's place, it is found and set there, and the weight stays as it was. */
static void test_averages(void **state)
{
    (void)state;
    scene s = {0};
    inv_result r;
    const float low[16] = {-3};
    assert_int_equal(inv_context_create(NULL, &s.ctx), INV_OK);
    groups(&s);
    need(&s, inv_session_set(s.session, INV_GET_PARAM, WEIGHT, INV_F32, low, 16));
    assert_true(first_of(&s, INV_GET_OPTIM, WEIGHT "/average") == -3); /* nothing is averaged: it is the weight */
    inv_view view;
    const float other[16] = {-2};
    need(&s, inv_session_view(s.session, INV_GET_OPTIM, WEIGHT "/average", &view)); /* looking changes nothing */
    assert_int_equal(inv_session_set(s.session, INV_GET_OPTIM, WEIGHT "/average", INV_F32, other, 15), INV_E_SHAPE);
    need(&s, inv_session_set(s.session, INV_GET_PARAM, WEIGHT, INV_F32, other, 16));
    assert_true(first_of(&s, INV_GET_OPTIM, WEIGHT "/average") == -2);
    need(&s, inv_session_set(s.session, INV_GET_PARAM, WEIGHT, INV_F32, low, 16));
    need(&s, inv_session_use_average(s.session, true));
    assert_true(first_of(&s, INV_GET_PARAM, WEIGHT) == -3);
    need(&s, inv_session_use_average(s.session, false));
    inv_session_set_step(s.session, 40, 0); /* what the first step averages with is the weight, too */
    for (int i = 0; i < 3; i++) need(&s, inv_session_step(s.session, &in, 1, &in, 0.1, &r));
    const float weight = first_of(&s, INV_GET_PARAM, WEIGHT), average = first_of(&s, INV_GET_OPTIM, WEIGHT "/average");
    assert_true(weight != average);
    need(&s, inv_session_use_average(s.session, true));
    assert_true(first_of(&s, INV_GET_OPTIM, WEIGHT "/average") == average);
    assert_true(first_of(&s, INV_GET_PARAM, WEIGHT) == average);
    need(&s, inv_session_set(s.session, INV_GET_OPTIM, WEIGHT "/average", INV_F32, low, 16));
    assert_true(first_of(&s, INV_GET_PARAM, WEIGHT) == -3);
    need(&s, inv_session_use_average(s.session, false));
    assert_true(first_of(&s, INV_GET_PARAM, WEIGHT) == weight);
    assert_true(first_of(&s, INV_GET_OPTIM, WEIGHT "/average") == -3);
    inv_session_destroy(s.session);
    inv_model_destroy(s.model);
    inv_context_destroy(s.ctx);
}

static int make_files(void **state)
{
    (void)state;
    scene s = {0};
    memset(long_text, 'x', LONG);
    for (int i = 0; i < ROWS * WIDTH; i++) x[i] = (float)sin(i);
    FILE *f = fopen("walk.rules", "w");
    if (!f) return -1;
    fputs("rule mine\n    kind       mine\n    match      y = Relu(x)\n    solve      x = Abs(y)\n    frees      x\n"
          "    doc        a rule\n",
          f);
    fclose(f);
    if (inv_context_create(NULL, &s.ctx) != INV_OK) return -1;
    train(&s);
    need(&s, inv_session_save_state(s.session, "walk.state", "note"));
    inv_session_destroy(s.session);
    inv_model_destroy(s.model);
    adapt(&s);
    need(&s, inv_model_save_adapters(s.model, NULL, "walk.adapters"));
    inv_model_destroy(s.model);
    inv_context_destroy(s.ctx);
    const char *const parts[] = {"invonnx", "session", "world"};
    for (size_t i = 0, n = 0; i < 3; i++, n = strlen(headers)) {
        char path[300];
        snprintf(path, sizeof path, "%s/include/invonnx/%s.h", INV_SOURCE_DIR, parts[i]);
        read_text(path, headers + n, sizeof headers - n);
    }
    return 0;
}

static int drop_files(void **state)
{
    (void)state;
    return remove("walk.rules") | remove("walk.state") | remove("walk.adapters");
}

int main(void)
{
    struct CMUnitTest tests[NROWS + 3] = {cmocka_unit_test(test_all_are_walked),
                                          cmocka_unit_test(test_arguments_of_the_others),
                                          cmocka_unit_test(test_averages)};
    for (size_t i = 0; i < NROWS; i++)
        tests[3 + i] = (struct CMUnitTest){rows[i].name, walk, NULL, NULL, (void *)(uintptr_t)&rows[i]};
    return cmocka_run_group_tests(tests, make_files, drop_files);
}
