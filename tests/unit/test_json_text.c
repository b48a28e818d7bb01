/* SPDX-License-Identifier: Apache-2.0
 * executor/run/json_text.c: the text is the one that Jansson writes of a tree, and what cannot be written fails all
 * of it.
 */
#include "core_test.h"
#include "executor/run/json_text.h"

static void put_row(inv_json *w, const char *name, int64_t n)
{
    inv_json_open(w, NULL, '{');
    inv_json_string(w, "name", name);
    inv_json_integer(w, "bytes", n);
    inv_json_tree(w, "share", json_real((double)n / 3));
    inv_json_close(w, '}');
}

static void text_is_that_of_a_tree(void **state)
{
    (void)state;
    static const char *const names[] = {"", "w", "a \"b\"\\c", "line\nbreak\t\x01\x7f",
                                        "gr\xc3\xb6\xc3\x9f"
                                        "e"};
    enum { NAMES = sizeof names / sizeof *names };
    static const int64_t numbers[NAMES] = {0, -1, INT64_MAX, INT64_MIN, 10};
    counting c = {0};
    inv_context *ctx = test_context(&c);
    inv_json w;
    char *text;
    json_t *rows = json_array();
    inv_json_begin(&w, ctx);
    inv_json_open(&w, NULL, '{');
    inv_json_fields(&w, json_pack("{s:s, s:n, s:[{s:i}, []]}", "first", "one", "nothing", "nested", "a", 1));
    inv_json_open(&w, "rows", '[');
    for (size_t i = 0; i < NAMES; i++) {
        put_row(&w, names[i], numbers[i]);
        (void)json_array_append_new(rows, json_pack("{s:s, s:I, s:f}", "name", names[i], "bytes",
                                                    (json_int_t)numbers[i], "share", (double)numbers[i] / 3));
    }
    inv_json_close(&w, ']');
    inv_json_open(&w, "none", '[');
    inv_json_close(&w, ']');
    inv_json_string(&w, "absent", NULL);
    inv_json_close(&w, '}');
    assert_int_equal(inv_json_take(&w, &text), INV_OK);
    json_t *tree = json_pack("{s:s, s:n, s:[{s:i}, []], s:o, s:[], s:n}", "first", "one", "nothing", "nested", "a", 1,
                             "rows", rows, "none", "absent");
    char *wanted = json_dumps(tree, JSON_INDENT(1) | JSON_REAL_PRECISION(17));
    assert_string_equal(text, wanted);
    free(wanted);
    json_decref(tree);
    inv_dealloc(ctx, text);
    test_context_end(ctx, &c);
}

static void bad_text_fails(void **state)
{
    (void)state;
    counting c = {0};
    inv_context *ctx = test_context(&c);
    inv_json w;
    char *text;
    assert_true(inv_json_is_text("gr\xc3\xb6\xc3\x9f"
                                 "er"));
    assert_false(inv_json_is_text("gr\xf6sser"));
    for (int bad = 0; bad < 3; bad++) {
        inv_json_begin(&w, ctx);
        inv_json_open(&w, NULL, '{');
        if (bad == 0) inv_json_string(&w, "name", "gr\xf6sser");
        if (bad == 1) inv_json_tree(&w, "tree", NULL);
        if (bad == 2) inv_json_fields(&w, NULL);
        inv_json_close(&w, '}');
        assert_int_equal(inv_json_take(&w, &text), INV_E_NOMEM);
        assert_null(text);
    }
    test_context_end(ctx, &c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(text_is_that_of_a_tree), cmocka_unit_test(bad_text_fails)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
