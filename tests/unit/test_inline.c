/* SPDX-License-Identifier: Apache-2.0
 * Model-local functions and inspect: fails if an expanded call computes something else than the function says, loses
 * its origin, if a bad one is not refused by name, or if inspect leaves something out. */
#define _XOPEN_SOURCE 700
#include "load_model.h"

/* --- functions --- */

static pb function(const char *domain, const char *name, const char *in, const char *out)
{
    pb f = {0};
    pb_str(&f, 1, name);
    words(&f, 4, in);
    words(&f, 5, out);
    pb_msg(&f, 9, opset("", 17));
    pb_msg(&f, 9, opset("my", 1));
    pb_str(&f, 10, domain);
    return f;
}

/* outer(a, b) = { t = inner<slope = @alpha>(a), s = Clip(t, b) }; inner(x) = LeakyRelu<alpha = @slope>(x) with slope's
 * default 0.25. Called as y = outer<alpha = 0.5>(x, w), z = outer(y), u = inner(y), and v, v2 = same(x) = x, x. */
static pb function_model(void)
{
    pb n = node("", "LeakyRelu", "leak", "x", "r"), inner = function("my", "inner", "x", "r");
    pb_msg(&n, 5, attr_ref("alpha", "slope", 1));
    pb_msg(&inner, 7, n);
    pb_str(&inner, 6, "unused");
    pb_msg(&inner, 11, attr_float("slope", 0.25f));
    pb outer = function("my", "outer", "a b", "s");
    n = node("my", "inner", "call_inner", "a", "t");
    pb_msg(&n, 5, attr_ref("slope", "alpha", 1));
    pb_msg(&outer, 7, n);
    pb_msg(&outer, 7, node("", "Clip", "", "t b", "s"));
    pb same = function("my", "same", "p", "p p");
    const int64_t d[] = {2, 3};
    pb g = {0};
    n = node("my", "outer", "first", "x w", "y");
    pb_msg(&n, 5, attr_float("alpha", 0.5f));
    pb_msg(&g, 1, n);
    pb_msg(&g, 1, node("my", "outer", "second", "y", "z"));
    pb_msg(&g, 1, node("my", "inner", "", "y", "u"));
    pb_msg(&g, 1, node("my", "same", "both", "x", "v v2"));
    pb_msg(&g, 5, w3());
    pb_msg(&g, 11, value_info("x", 1, 2, d));
    for (const char *const *o = (const char *const[]){"z", "u", "v", "v2", NULL}; *o; o++)
        pb_msg(&g, 12, value_info(*o, 1, 2, d));
    pb m = model_of(g);
    pb_msg(&m, 8, opset("my", 1));
    pb_msg(&m, 25, outer);
    pb_msg(&m, 25, inner);
    pb_msg(&m, 25, same);
    return m;
}

static void test_functions(void **state)
{
    (void)state;
    inv_context *ctx = context(NULL);
    inv_model *m = load(ctx, save(function_model(), "m.onnx"));
    assert_int_equal(m->graph->function.n, 3);
    assert_int_equal(m->graph->order.n, 4);
    inv_graph *g;
    assert_int_equal(inv_graph_copy(m->graph, &g), INV_OK);
    if (inv_pass_inline(g, false) != INV_OK) fail_msg("%s", inv_context_message(ctx));
    if (inv_graph_check(g, false) != INV_OK) fail_msg("%s", inv_context_message(ctx));
    assert_int_equal(g->order.n, 7);
    static const struct {
        const char *name, *op, *out;
        double alpha;
        unsigned norigin;
    } want[] = {{"first/call_inner/leak", "LeakyRelu", "first/t", 0.5, 3},
                {"first/Clip_1", "Clip", "y", 0, 2},
                {"second/call_inner/leak", "LeakyRelu", "second/t", 0.25, 3},
                {"second/Clip_1", "Clip", "z", 0, 2},
                {"u/leak", "LeakyRelu", "u", 0.25, 2},
                {"both/result_0", "Identity", "v", 0, 2},
                {"both/result_1", "Identity", "v2", 0, 2}};
    for (size_t i = 0; i < 7; i++) {
        const inv_node *n = inv_nod(g, g->order.at[i]);
        assert_string_equal(n->name, want[i].name);
        assert_string_equal(n->op_type, want[i].op);
        assert_string_equal(inv_val(g, n->out[0])->name, want[i].out);
        assert_true(inv_attr_float(n, "alpha", 0) == want[i].alpha);
        assert_int_equal(n->norigin, want[i].norigin);
        assert_string_equal(n->origin[0], n->name);
    }
    const inv_node *leak = inv_nod(g, g->order.at[0]), *clip = inv_nod(g, g->order.at[3]);
    assert_string_equal(leak->origin[1], "my::outer");
    assert_string_equal(leak->origin[2], "my::inner");
    assert_true(clip->in[1] == INV_NONE);
    inv_graph_destroy(g);
    inv_model_destroy(m);
    inv_context_destroy(ctx);
}

static void inline_refused(pb model, const char *part)
{
    inv_context *ctx = context(NULL);
    inv_model *m = load(ctx, save(model, "m.onnx"));
    inv_graph *g;
    assert_int_equal(inv_graph_copy(m->graph, &g), INV_OK);
    assert_int_equal(inv_pass_inline(g, false), INV_E_GRAPH);
    assert_has(inv_context_message(ctx), part);
    inv_graph_destroy(g);
    inv_model_destroy(m);
    inv_context_destroy(ctx);
}

static pb call_f0(void)
{
    pb g = small_graph(w3());
    pb_msg(&g, 1, node("my", "f0", "call", "h", "q"));
    pb m = model_of(g);
    pb_msg(&m, 8, opset("my", 1));
    return m;
}

static void test_bad_functions(void **state)
{
    (void)state;
    pb m = call_f0();
    for (int i = 0; i < 3; i++) {
        char name[16], next[16];
        snprintf(name, sizeof name, "f%d", i);
        snprintf(next, sizeof next, "f%d", i < 2 ? i + 1 : 1);
        pb f = function("my", name, "a", "b");
        pb_msg(&f, 7, node("my", next, "", "a", "b"));
        pb_msg(&m, 25, f);
    }
    inline_refused(m, "'f1' calls 'f2' calls 'f1'");
    m = call_f0();
    for (int i = 0; i < 40; i++) { /* 2^40 nodes */
        char name[16], next[16];
        snprintf(name, sizeof name, "f%d", i);
        snprintf(next, sizeof next, "f%d", i + 1);
        pb f = function("my", name, "a", "c");
        pb_msg(&f, 7, node("my", next, "", "a", "b"));
        pb_msg(&f, 7, node("my", next, "", "b", "c"));
        pb_msg(&m, 25, f);
    }
    inline_refused(m, "expand to");
    m = call_f0();
    pb_msg(&m, 25, function("my", "f0", "", ""));
    inline_refused(m, "'call' calls function my::f0 with 1 inputs and 1 outputs");
    m = call_f0();
    pb f = function("my", "f0", "a a", "b");
    pb_msg(&f, 7, node("", "Relu", "r", "zz", "c"));
    pb_msg(&m, 25, f);
    pb_msg(&m, 25, function("my", "f0", "", ""));
    REFUSED(m, INV_E_GRAPH, "two inputs 'a'", "node 'r' (Relu) in function 'my::f0' reads 'zz'", "output 'b'",
            "defined twice");
}

/* --- inspect --- */

static void test_inspect(void **state)
{
    (void)state;
    inv_context *ctx = context(NULL);
    inv_model *m = load(ctx, save(function_model(), "m.onnx"));
    char *json;
    assert_int_equal(inv_model_inspect(m, &json), INV_OK);
    assert_has(json, "\"my::outer\": 2");
    assert_has(json, "\"LeakyRelu\": 1");
    assert_has(json, "\"evidence\": \"operand\""); /* w is the least of a Clip, inside of a function */
    inv_free(ctx, json);
    inv_model_destroy(m);
    const int64_t d[] = {-1, 3};
    static const float v[] = {1, 1, 1};
    pb g = {0}, bad_name = node("", "No\xffSuch", "n\xfe", "b", "y");
    pb_msg(&g, 1, node("", "Identity", "", "mean", "mean2"));
    pb_msg(&g, 1, node("", "BatchNormalization", "bn", "x w w mean2 w", "b"));
    pb_msg(&g, 1, bad_name);
    pb_msg(&g, 5, w3());
    pb_msg(&g, 5, tensor_raw("mean", 1, 1, (const int64_t[]){3}, v, sizeof v));
    pb_msg(&g, 11, value_info("x", 1, 2, d));
    pb_msg(&g, 12, value_info("y", 1, 2, d));
    m = load(ctx, save(model_of(g), "m.onnx"));
    assert_int_equal(inv_model_inspect(m, &json), INV_OK);
    assert_has(json, "running statistic");
    assert_has(json, "merged_initializer");
    assert_has(json, "batch_norm_eval");
    assert_has(json, "No?Such");
    assert_has(json, "\"N\"");
    inv_free(ctx, json);
    inv_model_destroy(m);
    inv_context_destroy(ctx);
}

static void test_allocations(void **state)
{
    (void)state;
    sweep(save(function_model(), "m.onnx"));
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, dir_setup, dir_teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {TEST(test_functions), TEST(test_bad_functions), TEST(test_inspect),
                                       TEST(test_allocations)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
