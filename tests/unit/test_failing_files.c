/* SPDX-License-Identifier: Apache-2.0
 * Every call of the API that opens a file, with each of its system calls failing in turn (failing_sweep.h). */
#define _GNU_SOURCE /* RTLD_NEXT, O_TMPFILE */

#include "failing_sweep.h"

#include "executor/rates/costs.h"

#define MODELS INV_TEST_DATA "/models/"
enum { ROWS = 6, WIDTH = 8 };
static const int64_t extents[] = {ROWS, WIDTH};
static float numbers[ROWS * WIDTH];
static const inv_array in = {.name = "x", .dtype = INV_F32, .rank = 2, .dims = extents, .data = numbers};

static void need(attempt *a, inv_status s)
{
    if (s != INV_OK) fail_msg("%s", inv_context_message(a->ctx));
}

static void load(attempt *a) { need(a, inv_model_load(a->ctx, in_folder("net.onnx"), &a->model)); }

static void load_outside(attempt *a) { need(a, inv_model_load(a->ctx, in_folder("apart/model.onnx"), &a->model)); }

static void load_outward(attempt *a)
{
    need(a, inv_model_load(a->ctx, in_folder("lenet.onnx"), &a->model));
    need(a, inv_model_set_layout(a->model, INV_LAYOUT_EXTERNAL));
}

static void train(attempt *a)
{
    inv_result r;
    const inv_session_options o = {.size = sizeof o,
                                   .purpose = INV_FOR_TRAIN,
                                   .inputs = &in,
                                   .ninputs = 1,
                                   .target = &in,
                                   .loss = INV_LOSS_MSE,
                                   .optimizer = INV_OPT_SGD,
                                   .memory = INV_MEMORY_STORE,
                                   .threads = 1};
    load(a);
    need(a, inv_session_create(a->model, &o, &a->session));
    need(a, inv_session_step(a->session, &in, 1, &in, 0.1, &r));
}

static void adapt(attempt *a)
{
    const char *all = "*";
    const inv_lora lora = {.size = sizeof lora, .targets = &all, .ntargets = 1, .rank = 1, .alpha = 1};
    load(a);
    need(a, inv_model_add_lora(a->model, &lora, NULL));
}

static inv_status load_file(attempt *a) { return inv_model_load(a->ctx, in_folder("net.onnx"), &a->other); }
static inv_status load_apart(attempt *a) { return inv_model_load(a->ctx, in_folder("apart/model.onnx"), &a->other); }
static inv_status load_linked(attempt *a) { return inv_model_load(a->ctx, in_folder("linked/model.onnx"), &a->other); }
static inv_status load_rules(attempt *a) { return inv_context_load_plugin(a->ctx, in_folder("mine.rules")); }
static inv_status load_pairs(attempt *a) { return inv_context_load_plugin(a->ctx, in_folder("pairs.onnx")); }
static inv_status load_object(attempt *a) { return inv_context_load_plugin(a->ctx, in_folder("mine.so")); }
static inv_status save(attempt *a) { return inv_model_save(a->model, a->session, in_folder("out")); }
static inv_status save_over(attempt *a)
{
    const inv_status s = inv_model_save(a->model, NULL, in_folder("net.onnx"));
    return s == INV_E_IO && strstr(inv_context_message(a->ctx), "is a file that the model is loaded from") ? INV_OK
           : s == INV_OK ? INV_E_INTERNAL
                         : s;
}
static inv_status rewrite(attempt *a)
{
    const inv_session_options o = {.size = sizeof o, .inputs = &in, .ninputs = 1};
    return inv_model_rewrite(a->model, &o, in_folder("out"), NULL);
}
static inv_status write_inverse(attempt *a)
{
    const inv_session_options o = {.size = sizeof o, .inputs = &in, .ninputs = 1};
    return inv_model_write_inverse(a->model, &o, NULL, in_folder("out"), NULL);
}
static inv_status reverse(attempt *a)
{
    const inv_session_options o = {.size = sizeof o, .inputs = &in, .ninputs = 1};
    return inv_model_reverse(a->model, &o, NULL, &a->other);
}
static inv_status save_adapters(attempt *a) { return inv_model_save_adapters(a->model, NULL, in_folder("out")); }
static inv_status load_adapters(attempt *a) { return inv_model_load_adapters(a->model, in_folder("adapters"), NULL); }
static inv_status see_adapters(attempt *a) { return inv_adapters_inspect(a->ctx, in_folder("adapters"), &a->json); }
static inv_status save_state(attempt *a) { return inv_session_save_state(a->session, in_folder("out"), "note"); }
static inv_status load_state(attempt *a)
{
    const inv_status s = inv_session_load_state(a->session, in_folder("state"), &a->json);
    if (s == INV_OK) assert_string_equal(a->json, "note");
    return s;
}
static inv_status read_state(attempt *a)
{
    const inv_status s = inv_state_read(a->ctx, in_folder("state"), &a->json, NULL);
    if (s == INV_OK) assert_string_equal(a->json, "note");
    return s;
}
static inv_status see_state(attempt *a) { return inv_state_inspect(a->ctx, in_folder("state"), &a->json); }

static inv_status look_for_rates(attempt *a)
{
    const inv_calibrate_options o = {.size = sizeof o, .cache = in_folder("rates"), .kept = true};
    inv_cost_table *t;
    const inv_status s = inv_calibrate(a->ctx, &o, &t);
    inv_free(a->ctx, t);
    return s;
}

static inv_status write_rates(attempt *a)
{
    inv_cost_table t = {.real = INV_F32, .bandwidth = 1e10, .cache = 1 << 20};
    inv_arena arena;
    for (int i = 0; i < INV_WORKS; i++) t.rate[i] = 1e9;
    inv_arena_init(&arena, a->ctx);
    inv_costs_write(&arena, in_folder("out"), "key", &t);
    inv_arena_fini(&arena);
    return INV_OK;
}

static inv_status process_bytes(attempt *a)
{
    (void)a;
    (void)inv_process_bytes();
    return INV_OK;
}

static void test_models(void **state)
{
    (void)state;
    SWEEP("load", nothing, load_file, .file = "net.onnx");
    SWEEP("load, external data", nothing, load_apart, .file = "apart/");
    SWEEP("load, external data behind a link", nothing, load_linked, .file = "linked/");
    SWEEP("reverse", load, reverse, .file = "net.onnx");
}

static void test_plugins(void **state)
{
    (void)state;
    SWEEP("rules", nothing, load_rules, .file = "mine.rules");
    SWEEP("pairs", nothing, load_pairs, .file = "pairs.onnx");
    SWEEP("object", nothing, load_object, .file = "mine.so", .no_rules = true);
}

static void test_writing(void **state)
{
    (void)state;
    SWEEP("save", load, save, .file = "out", .out = {"out"});
    SWEEP("save, external data", load_outside, save, .file = "out", .out = {"out", "out.data"});
    SWEEP("save, all outside", load_outward, save, .file = "out", .out = {"out", "out.data"});
    SWEEP("save after training", train, save, .file = "out", .out = {"out"});
    SWEEP("save over the model's file", load, save_over, .file = "net.onnx");
    SWEEP("rewrite", load, rewrite, .file = "out", .out = {"out"});
    SWEEP("write the inverse", load, write_inverse, .file = "out", .out = {"out"});
}

static void test_adapters(void **state)
{
    (void)state;
    SWEEP("save adapters", adapt, save_adapters, .file = "out", .out = {"out"});
    SWEEP("load adapters", adapt, load_adapters, .file = "adapters", .spent = true);
    SWEEP("inspect adapters", nothing, see_adapters, .file = "adapters");
}

static void test_states(void **state)
{
    (void)state;
    SWEEP("save a state", train, save_state, .file = "out", .out = {"out"});
    SWEEP("load a state", train, load_state, .file = "state", .spent = true);
    SWEEP("read a state", nothing, read_state, .file = "state");
    SWEEP("inspect a state", nothing, see_state, .file = "state");
}

static void test_what_goes_on(void **state)
{
    (void)state;
    SWEEP("rates", nothing, look_for_rates, .file = "rates", .silent = true);
    SWEEP("rates that are kept", nothing, write_rates, .file = "rates", .out = {"out"}, .silent = true);
    SWEEP("bytes of the process", nothing, process_bytes, .file = "", .silent = true);
}

/* --- the files --- */

static void make_models(void)
{
    static const char rules[] =
        "rule mine\n    kind       mine\n    match      y = Relu(x)\n    solve      x = Abs(y)\n"
        "    frees      x\n    doc        a rule\n";
    copy_file(MODELS "nice_dynbatch_ts17/model.onnx", "net.onnx");
    copy_file(MODELS "plain_lenet_ts17/model.onnx", "lenet.onnx");
    mkdir(in_folder("apart"), 0700);
    copy_file(MODELS "nice_external_data/model.onnx", "apart/model.onnx");
    copy_file(MODELS "nice_external_data/weights.bin", "apart/weights.bin");
    mkdir(in_folder("linked"), 0700);
    assert_int_equal(symlink("../apart/model.onnx", in_folder("linked/model.onnx")), 0);
    assert_int_equal(symlink("../apart/weights.bin", in_folder("linked/weights.bin")), 0);
    write_file("mine.rules", rules, sizeof rules - 1);
    copy_file(INV_RULE_PLUGIN, "mine.so");
    copy_file(INV_TEST_DATA "/pair.onnx", "pairs.onnx");
}

static void make_written(void)
{
    attempt a;
    inv_cost_table *rates;
    const inv_calibrate_options co = {.size = sizeof co, .cache = in_folder("rates")};
    open_attempt(&a, &(work){.ready = train});
    need(&a, inv_session_save_state(a.session, in_folder("state"), "note"));
    need(&a, inv_calibrate(a.ctx, &co, &rates));
    inv_free(a.ctx, rates);
    close_attempt(&a);
    open_attempt(&a, &(work){.ready = adapt});
    need(&a, inv_model_save_adapters(a.model, NULL, in_folder("adapters")));
    close_attempt(&a);
}

static int make_files(void **state)
{
    (void)state;
    if (make_folder()) return -1;
    for (int i = 0; i < ROWS * WIDTH; i++) numbers[i] = (float)(i % 7) / 7;
    make_models();
    make_written();
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_models),   cmocka_unit_test(test_plugins), cmocka_unit_test(test_writing),
        cmocka_unit_test(test_adapters), cmocka_unit_test(test_states),  cmocka_unit_test(test_what_goes_on),
    };
    return cmocka_run_group_tests(tests, make_files, drop_files);
}
