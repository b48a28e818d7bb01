/* SPDX-License-Identifier: Apache-2.0
 * The text form (docs/text-form.md): what is printed reads back to the same text; errors name the line; and
 * parse, copy, sort and print survive the failure of every single allocation. */
#include "core_test.h"

#include <stdio.h>

static inv_status reprint(inv_context *ctx, const char *text, inv_str *out)
{
    inv_graph *g = NULL, *copy = NULL;
    inv_status s = inv_graph_parse(ctx, text, &g);
    if (s == INV_OK) s = inv_graph_copy(g, &copy);
    if (s == INV_OK) s = inv_graph_sort(copy);
    if (s == INV_OK) s = inv_graph_prune(copy);
    if (s == INV_OK) s = inv_graph_check(copy, false);
    if (s == INV_OK) s = inv_graph_print(copy, out);
    inv_graph_destroy(copy);
    inv_graph_destroy(g);
    return s;
}

/* In the printer's own spelling: comes back as it is. */
static const char *const same[] = {
    "g (float[2,3] x) => (y) {\n  float[2,3] y = Relu(x)\n}\n",
    "\"\" () => () {\n}\n",
    "<opset_import: [\"\" : 13, \"my.domain\" : 2]>\ng (float[N,4] t, int64[] i, double[...] d, bool[?,\"3\"] b) => "
    "(t) {\n}\n",
    "g (float[2] x) => (z) {\n  param trainable float[3,5] W\n  param state float[3] running\n  param int64[2] shape = "
    "{1, -2}\n"
    "  const int64[2] s = {1, 2}\n  const float[3] f = {0.1, 1e-07, inf}\n  const float[100] big = {...}\n"
    "  const double[] d = {0.1}\n  const float16[] h = {0.33325195}\n  const bool[2] q = {1, 0}\n  optim float[3,5] m\n"
    "  z = Any(W, running, shape, s, f, big, d, h, q, m, x)\n}\n",
    "g (float[2] x) => (z) {\n  [\"/a/b c\"] a, \"\", \"q \\\"r\\n\" = my.domain.Split<axis = -1, f = 0.1f, d = 0.1, e "
    "= 1.0, "
    "l = [1, 2], r = [0.5, 1e+20], n = [], t = [\"a\", \"b,]\"], s = \"x\\\\y\", k = sizes(xs), w = bare, * , v = "
    "@float:alpha, "
    "u = int64[2] {3, 4}>(x, \"\")\n  z = Join(a, \"q \\\"r\\n\")\n}\n",
    "g (float[2] x) => (\"float\", 12, \"a...\") {\n  \"float\" = Relu(x)\n  12 = Relu(x)\n  \"a...\" = Relu(x)\n}\n",
    "g (float[2] x) => (y) {\n  param float[2] W\n  y = Relu(x)\n  # backward\n  d = Relu(y)\n  # commit\n  Assign(W, "
    "d)\n}\n",
};

static void printed_text_reads_back(void **state)
{
    (void)state;
    counting c = {0};
    inv_context *ctx = test_context(&c);
    assert_int_equal(toy_registry(ctx), INV_OK);
    for (size_t i = 0; i < sizeof same / sizeof *same; i++) {
        inv_str out;
        char want[2048];
        snprintf(want, sizeof want, "%s", same[i]);
        char *odd = strstr(want, "* ,"); /* a space the printer does not write */
        if (odd) memmove(odd + 1, odd + 2, strlen(odd + 2) + 1);
        inv_str_init(&out, ctx);
        if (reprint(ctx, same[i], &out) != INV_OK) fail_msg("%zu: %s", i, inv_context_message(ctx));
        assert_string_equal(out.s, want);
        inv_str_fini(&out);
    }
    test_context_end(ctx, &c);
}

static void plans_are_annotated(void **state)
{
    (void)state;
    counting c = {0};
    inv_context *ctx = test_context(&c);
    inv_graph *g;
    inv_str out;
    inv_str_init(&out, ctx);
    assert_int_equal(inv_graph_parse(ctx, "g (float[2] x) => (y) { y = Relu(x); [c] z = Relu(x); w = Neg(y) }", &g),
                     INV_OK);
    inv_nod(g, 1)->clone_of = 0;
    inv_nod(g, 2)->solves = 1;
    g->arena_nbytes = 256;
    inv_val(g, inv_graph_find(g, "z"))->offset = 64;
    assert_int_equal(inv_graph_print(g, &out), INV_OK);
    assert_non_null(strstr(out.s, "[c] z = Relu(x)  # clone of y  # at 64\n"));
    assert_non_null(strstr(out.s, "w = Neg(y)  # solves c  # at 0\n"));
    inv_graph_destroy(g);
    inv_str_fini(&out);
    test_context_end(ctx, &c);
}

static void errors_name_the_line(void **state)
{
    (void)state;
    static const struct {
        const char *text, *part;
    } bad[] = {
        {"", "name of the graph expected"},
        {"g (float[2] x) => (y) {\n y = Relu(x\n}", "line 3: ')' expected, found '}'"},
        {"g (float[2] x) => (y) {", "'}' expected"},
        {"g (float[2] x) => (y) {}", "output 'y' is computed by nothing"},
        {"g (float[2] x) => (y) { y = Relu(q) }", "value 'q' is read, but nothing defines it"},
        {"g (float[2] x) => (y) { y = Relu(x) y = Relu(x) }", "defined twice"},
        {"g (float[2] x, float[2] x) => () { }", "'x' is declared after its first use, or twice"},
        {"g () => () { const float[2] c = {1} }", "1 numbers given for float[2]"},
        {"g () => () { const float[2] c = {1, two} }", "number of this type expected, found 'two'"},
        {"g () => () { const float[1,2,3,4,5,6,7,8,9] c }", "more than 8 dimensions"},
        {"g () => () { const float[-1] c }", "dimension of 0 or more"},
        {"g () => () { y = A<a = [1, \"b\"]>() }", "list of one kind"},
        {"g () => () { y = A<a = f(>() }", "')' expected"},
        {"g () => () { y = A<a 1>() }", "'=' expected"},
        {"g () => () { y = \"A }", "string without end"},
        {"g () => () { } x", "end of the text expected"},
        {"<ir_version: 3> g () => () { }", "opset_import expected"},
        {"<opset_import: [\"\" x]> g () => () { }", "version expected"},
        {"g () => () { y = A(x y) }", "')' expected, found 'y'"},
        {"g () => () { y = A<a = @nope:b>() }", "@kind:name expected"},
        {"g () => () { y = A<a = 99999999999999999999>(), }", "name"},
    };
    counting c = {0};
    inv_context *ctx = test_context(&c);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        inv_graph *g;
        inv_status s = inv_graph_parse(ctx, bad[i].text, &g);
        assert_null(g);
        if (s == INV_OK || !strstr(inv_context_message(ctx), bad[i].part))
            fail_msg("%zu: '%s' is not in '%s'", i, bad[i].part, inv_context_message(ctx));
    }
    test_context_end(ctx, &c);
}

static void statements_of_rules(void **state)
{
    (void)state;
    counting c = {0};
    inv_context *ctx = test_context(&c);
    inv_arena a;
    inv_stmts st;
    inv_arena_init(&a, ctx);
    const char *text = "t = region(x2)  y1 = Add|Sum(x1, t) # why\n"
                       "xs... = Split<*, axis = axis, sizes = sizes(xs), perm = invert(perm)>(y); my.Check(y)\n"
                       "y = LeakyRelu<alpha = 0.1>(float[2,N] x, int64[2] {3, 4}, float s = {2.5},)";
    if (inv_text_stmts(ctx, &a, text, &st) != INV_OK) fail_msg("%s", inv_context_message(ctx));
    assert_int_equal(st.n, 5);
    assert_string_equal(st.at[1].op, "Add|Sum");
    assert_string_equal(st.at[1].in[1], "t");
    const inv_stmt *s = &st.at[2];
    assert_string_equal(s->out[0], "xs...");
    assert_string_equal(s->attr[0].name, "*");
    assert_int_equal(s->attr[1].kind, INV_ATTR_OTHER);
    assert_string_equal(s->attr[1].s, "axis");
    assert_string_equal(s->attr[2].s, "sizes(xs)");
    assert_string_equal(s->attr[3].s, "invert(perm)");
    assert_string_equal(st.at[3].domain, "my");
    assert_string_equal(st.at[3].op, "Check");
    assert_int_equal(st.at[3].nout, 0);
    s = &st.at[4];
    assert_int_equal(s->nin, 4);
    assert_true(s->attr[0].f == 0.1);
    assert_int_equal(s->in_type[0].dtype, INV_F32);
    assert_int_equal(s->in_type[0].shape.dim[1], -1);
    assert_null(s->in_type[0].bytes);
    assert_string_equal(s->in[1], "");
    assert_int_equal(inv_elem_int(s->in_type[1].bytes, INV_I64, 1), 4);
    assert_true(inv_elem_double(s->in_type[2].bytes, INV_F32, 0) == 2.5);
    assert_int_equal(s->in_type[2].shape.rank, 0);
    assert_string_equal(s->in[3], "");
    assert_int_equal(inv_text_stmts(ctx, &a, "", &st), INV_OK);
    assert_int_equal(st.n, 0);
    inv_arena_fini(&a);
    test_context_end(ctx, &c);
}

static void every_allocation_may_fail(void **state)
{
    (void)state;
    char *text = calloc(1, 300000);
    size_t n = (size_t)sprintf(text, "g (float[2] x) => (v199) {\n");
    for (int i = 199; i > 0; i--) /* backwards, so that sorting has work to do */
        n += (size_t)sprintf(text + n, "float[2] v%d = Add<a = [1, 2], s = \"t\", f = 0.5>(v%d, x)\n", i, i - 1);
    sprintf(text + n, "v0 = Relu(x) }");
    bool done = false;
    long fails = 0;
    for (long k = 1; !done; k++) {
        counting c = {0};
        inv_context *ctx = test_context(&c);
        inv_str out;
        c.calls = 0;
        c.fail_at = k;
        inv_str_init(&out, ctx);
        inv_status s = toy_registry(ctx);
        if (s == INV_OK) s = reprint(ctx, text, &out);
        done = c.calls < k;
        assert_int_equal(s, done ? INV_OK : INV_E_NOMEM);
        fails += !done;
        inv_str_fini(&out);
        test_context_end(ctx, &c);
    }
    assert_true(fails > 20);
    free(text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(printed_text_reads_back),   cmocka_unit_test(plans_are_annotated),
        cmocka_unit_test(errors_name_the_line),      cmocka_unit_test(statements_of_rules),
        cmocka_unit_test(every_allocation_may_fail),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
