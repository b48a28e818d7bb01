/* SPDX-License-Identifier: Apache-2.0
 * Control flow: fails if a body loses what it reads from outside, if analysis of the graph does not see these reads, if
 * what is put in place has other names or origins than promised, or if a bad body or a failing allocation gets through.
 * What unrolled models compute is held to onnxruntime in tests/cli/test_control.py. */
#define _XOPEN_SOURCE 700
#include "load_model.h"

static const int64_t d[] = {2, 3};

static pb attr_graph(const char *name, pb graph)
{
    pb a = {0};
    pb_str(&a, 1, name);
    pb_msg(&a, 6, graph);
    pb_int(&a, 20, 5);
    return a;
}

static pb constant(const char *out, int dtype, const void *data, size_t n)
{
    pb c = node("", "Constant", "", "", out), a = {0};
    pb_str(&a, 1, "value");
    pb_msg(&a, 5, tensor_raw(NULL, dtype, 0, NULL, data, n));
    pb_int(&a, 20, 4);
    pb_msg(&c, 5, a);
    return c;
}

static pb graph_of(const char *name, pb first, pb second, const char *out)
{
    pb g = {0};
    pb_msg(&g, 1, first);
    if (second.n) pb_msg(&g, 1, second);
    pb_str(&g, 2, name);
    pb_msg(&g, 12, value_info(out, 1, 2, d));
    return g;
}

/* (i, c, v) -> (c, v2): v2 = If(c) { r = v + w } else { s = v + k }, k an initializer of the branch. */
static pb loop_body(void)
{
    static const float k[] = {1, 1, 1};
    pb choose = node("", "If", "choose", "c", "v2");
    pb other = graph_of("no", node("", "Add", "", "v k", "s"), (pb){0}, "s"), g;
    pb_msg(&other, 5, tensor_raw("k", 1, 1, (const int64_t[]){3}, k, sizeof k));
    pb_msg(&choose, 5, attr_graph("then_branch", graph_of("yes", node("", "Add", "add", "v w", "r"), (pb){0}, "r")));
    pb_msg(&choose, 5, attr_graph("else_branch", other));
    g = (pb){0};
    pb_msg(&g, 1, node("", "Identity", "", "c", "c2"));
    pb_msg(&g, 1, choose);
    pb_str(&g, 2, "body");
    pb_msg(&g, 11, value_info("i", 7, 0, NULL));
    pb_msg(&g, 11, value_info("c", 9, 0, NULL));
    pb_msg(&g, 11, value_info("v", 1, 2, d));
    pb_msg(&g, 12, value_info("c2", 9, 0, NULL));
    pb_msg(&g, 12, value_info("v2", 1, 2, d));
    return g;
}

/* y = Loop(2, true, x); late, which only the body reads, is computed after it in the file's order. */
static pb loop_model(void)
{
    static const int64_t two = 2;
    static const uint8_t yes = 1;
    pb loop = node("", "Loop", "walk", "n yes x", "y"), g = {0};
    pb_msg(&loop, 5, attr_graph("body", loop_body()));
    pb_msg(&g, 1, constant("n", 7, &two, sizeof two));
    pb_msg(&g, 1, constant("yes", 9, &yes, sizeof yes));
    pb_msg(&g, 1, loop);
    pb_msg(&g, 1, node("", "Relu", "late", "w0", "w"));
    pb_str(&g, 2, "g");
    pb_msg(&g, 5, tensor_raw("w0", 1, 1, (const int64_t[]){3}, (const float[]){1, 2, 3}, 12));
    pb_msg(&g, 11, value_info("x", 1, 2, d));
    pb_msg(&g, 12, value_info("y", 1, 2, d));
    return model_of(g);
}

static const inv_node *named(const inv_graph *g, const char *name)
{
    for (size_t i = 0; i < g->order.n; i++)
        if (!strcmp(inv_nod(g, g->order.at[i])->name, name)) return inv_nod(g, g->order.at[i]);
    fail_msg("no node '%s'", name);
    return NULL;
}

static void test_import(void **state)
{
    (void)state;
    inv_context *ctx = context(NULL);
    inv_model *m = load(ctx, save(loop_model(), "m.onnx"));
    const inv_graph *g = m->graph;
    const inv_node *loop = named(g, "walk");
    assert_int_equal(g->body.n, 1);
    assert_int_equal(inv_node_listed(loop), 3);
    assert_int_equal(loop->nin, 4);
    assert_string_equal(inv_val(g, loop->in[3])->name, "w");
    assert_ptr_equal(inv_nod(g, g->order.at[g->order.n - 1]), loop); /* after what its body reads */
    const inv_attr *a = inv_attr_find(loop, "body");
    assert_int_equal(a->kind, INV_ATTR_GRAPH);
    assert_int_equal(a->ncaptured, 1);
    assert_int_equal(a->graph->inputs.n, 4);
    assert_string_equal(inv_val(a->graph, a->graph->inputs.at[3])->name, "w");
    /* What is captured two levels deep goes through the level between. */
    const inv_node *choose = named(a->graph, "choose");
    assert_int_equal(inv_node_listed(choose), 1);
    assert_int_equal(choose->nin, 4); /* v and w, then v */
    assert_int_equal(inv_attr_find(choose, "else_branch")->captured, 3);
    assert_int_equal(inv_val(inv_attr_find(choose, "else_branch")->graph, 0)->role, INV_ROLE_PARAM);
    /* Uses, and numbers of the file's nodes. */
    inv_arena scratch;
    inv_uses uses;
    inv_arena_init(&scratch, ctx);
    assert_int_equal(inv_graph_uses(g, &scratch, &uses), INV_OK);
    inv_id w = inv_graph_find(g, "w");
    assert_int_equal(uses.start[w + 1] - uses.start[w], 1);
    assert_int_equal(uses.slot[uses.start[w]], 3);
    inv_arena_fini(&scratch);
    assert_int_equal(loop->source, 2);
    assert_int_equal(named(g, "late")->source, 3);
    inv_model_destroy(m);
    inv_context_destroy(ctx);
}

static inv_status front(inv_model *m, inv_graph **out)
{
    inv_session_options o = {.size = sizeof o, .purpose = INV_FOR_EVAL};
    inv_request rq = {.options = &o, .purpose = INV_FOR_EVAL};
    inv_plan plan = {0};
    INV_TRY(inv_graph_copy(m->graph, out));
    return inv_compile_front(*out, &rq, &plan);
}

static void test_names(void **state)
{
    (void)state;
    static const struct {
        const char *origin, *out;
    } want[] = {{"x", "x"}, {"late", "w"}, {"walk/0/choose/add", "walk/0/v2"}, {"walk/1/choose/add", "y"}};
    inv_context *ctx = context(NULL);
    inv_model *m = load(ctx, save(loop_model(), "m.onnx"));
    inv_graph *g;
    if (front(m, &g) != INV_OK) fail_msg("%s", inv_context_message(ctx));
    assert_int_equal(g->order.n, 4);
    for (size_t i = 0; i < 4; i++) {
        const inv_node *n = inv_nod(g, g->order.at[i]);
        assert_string_equal(n->origin[0], want[i].origin);
        assert_string_equal(inv_val(g, n->out[0])->name, want[i].out);
        if (i >= 2) assert_int_equal(n->source, 2);
    }
    inv_graph_destroy(g);
    inv_model_destroy(m);
    inv_context_destroy(ctx);
}

static pb if_model(pb graph)
{
    static const uint8_t yes = 1;
    pb n = node("", "If", "choose", "yes", "y"), g = {0};
    pb_msg(&n, 5, graph);
    pb_msg(&g, 1, constant("yes", 9, &yes, 1));
    pb_msg(&g, 1, n);
    pb_msg(&g, 11, value_info("x", 1, 2, d));
    pb_msg(&g, 12, value_info("y", 1, 2, d));
    return model_of(g);
}

static void test_bad_bodies(void **state)
{
    (void)state;
    pb none = {0}, g;
    REFUSED(if_model(attr_graph("then_branch", graph_of("t", node("", "Add", "sum", "x lost", "r"), (pb){0}, "r"))),
            INV_E_GRAPH, "node 'sum' (Add) in attribute 'then_branch' of node 'choose' (If)", "reads 'lost'");
    REFUSED(if_model(attr_graph("then_branch", graph_of("t", node("", "Relu", "", "x", "r"), (pb){0}, "never"))),
            INV_E_GRAPH, "'never' is never produced in attribute 'then_branch'");
    pb_str(&none, 1, "then_branch");
    pb_int(&none, 20, 5);
    REFUSED(if_model(none), INV_E_PARSE, "attribute 'then_branch' is a graph, but has none");
    /* What is wrong with the arity is known only when it is unrolled. */
    static const struct {
        const char *attribute, *text;
    } late[] = {{"then_branch", "branches have no inputs"},
                {"else_branch", "no graph of its own as attribute 'then_branch'"}};
    for (size_t i = 0; i < 2; i++) {
        inv_context *ctx = context(NULL);
        inv_graph *front_g;
        g = graph_of("t", node("", "Relu", "", "p", "r"), (pb){0}, "r");
        pb_msg(&g, 11, value_info("p", 1, 2, d));
        inv_model *m = load(ctx, save(if_model(attr_graph(late[i].attribute, g)), "m.onnx"));
        assert_int_equal(front(m, &front_g), INV_E_GRAPH);
        assert_has(inv_context_message(ctx), "node 'choose' (If)");
        assert_has(inv_context_message(ctx), late[i].text);
        inv_graph_destroy(front_g);
        inv_model_destroy(m);
        inv_context_destroy(ctx);
    }
}

static void test_allocations(void **state)
{
    (void)state;
    const char *path = save(loop_model(), "m.onnx");
    sweep(path);
    for (long n = 0;; n++) {
        failing f = {.countdown = -1};
        inv_context *ctx = context(&f);
        inv_model *m = load(ctx, path);
        inv_graph *g = NULL;
        long before = f.live;
        f.countdown = n;
        inv_status s = front(m, &g);
        bool done = f.countdown != 0;
        f.countdown = -1;
        if (s != INV_OK) assert_int_equal(s, INV_E_NOMEM);
        if (done) assert_int_equal(s, INV_OK);
        inv_graph_destroy(g);
        assert_in_range(f.live, before, before + 1); /* + 1: the message */
        inv_model_destroy(m);
        inv_context_destroy(ctx);
        assert_int_equal(f.live, 0);
        if (done) break;
    }
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, dir_setup, dir_teardown)
int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(test_import),
        TEST(test_names),
        TEST(test_bad_bodies),
        TEST(test_allocations),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
