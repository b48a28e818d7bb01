/* SPDX-License-Identifier: Apache-2.0
 * core/graph/registry.c: operator lookup by opset, inverse rules and what is refused of them. */
#include "core_test.h"

#include <stdio.h>

static void operators_are_found_by_opset(void **state)
{
    (void)state;
    counting c = {0};
    inv_context *ctx = test_context(&c);
    assert_int_equal(toy_registry(ctx), INV_OK);
    const inv_registry *r = ctx->registry;
    assert_int_equal(inv_registry_op(r, "", "Add", 13)->since, 7);
    assert_int_equal(inv_registry_op(r, "ai.onnx", "Add", 7)->since, 7);
    assert_int_equal(inv_registry_op(r, "", "Add", 6)->since, 1);
    assert_int_equal(inv_registry_op(r, "", "Add", 0)->since, 7);
    assert_null(inv_registry_op(r, "", "Relu", 5)); /* before its first form */
    assert_null(inv_registry_op(r, "my", "Add", 13));
    assert_null(inv_registry_op(r, "ai.invonnx.ir", "Add", 0));
    assert_string_equal(inv_registry_op(r, "", "View", 13)->domain, "ai.invonnx.ir");
    assert_null(inv_registry_op(r, "", "Nope", 13));
    assert_null(inv_registry_op(NULL, "", "Add", 13));
    assert_int_equal(inv_registry_nops(r), sizeof toy_ops / sizeof *toy_ops);
    assert_null(inv_registry_op_at(r, inv_registry_nops(r)));
    test_context_end(ctx, &c);
}

static void gaps_between_opsets_are_gaps(void **state)
{
    (void)state;
    counting c = {0};
    inv_context *ctx = test_context(&c);
    assert_int_equal(inv_registry_create(ctx, &ctx->registry), INV_OK);
    inv_op_def old = toy_ops[0];
    old.since = 3;
    old.until = 5;
    assert_int_equal(inv_registry_add_op(ctx->registry, &old), INV_OK);
    assert_null(inv_registry_op(ctx->registry, "", "Add", 6));
    assert_non_null(inv_registry_op(ctx->registry, "", "Add", 5));
    assert_int_equal(inv_registry_add_op(ctx->registry, &old), INV_E_EXISTS);
    inv_op_def bad = toy_ops[0];
    bad.infer = NULL;
    assert_int_equal(inv_registry_add_op(ctx->registry, &bad), INV_E_ARG);
    bad = toy_ops[0];
    bad.size--;
    assert_int_equal(inv_registry_add_op(ctx->registry, &bad), INV_E_ABI);
    test_context_end(ctx, &c);
}

static void slots_of_rows(void **state)
{
    (void)state;
    bool optional, variadic;
    assert_true(inv_op_slot("X W B?", 2, &optional, &variadic) && optional && !variadic);
    assert_true(inv_op_slot("X W B?", 1, &optional, &variadic) && !optional);
    assert_false(inv_op_slot("X W B?", 3, &optional, &variadic));
    assert_true(inv_op_slot("xs*", 0, &optional, &variadic) && !optional && variadic);
    assert_true(inv_op_slot("xs*", 9, &optional, &variadic) && optional && variadic);
    assert_false(inv_op_slot("", 0, &optional, &variadic));
}

static const inv_inverse_def good = {.size = sizeof(inv_inverse_def),
                                     .name = "good",
                                     .match = "y = Relu(x)",
                                     .solve = "x = Relu(y)",
                                     .frees = "x",
                                     .cases = (const char *const[]){"y = Relu(float[2] x)", NULL}};

static void rules_are_sorted_and_unique(void **state)
{
    (void)state;
    counting c = {0};
    inv_context *ctx = test_context(&c);
    assert_int_equal(inv_registry_create(ctx, &ctx->registry), INV_OK);
    const int32_t priority[] = {0, 5, -3, 5, 0};
    char name[16];
    for (int i = 0; i < 5; i++) {
        inv_inverse_def d = good;
        snprintf(name, sizeof name, "r%d", i); /* the same buffer: the registry keeps copies */
        d.name = name;
        d.priority = priority[i];
        assert_int_equal(inv_registry_add_inverse(ctx->registry, &d), INV_OK);
        assert_int_equal(inv_registry_add_inverse(ctx->registry, &d), INV_E_EXISTS);
    }
    const char *want[] = {"r1", "r3", "r0", "r4", "r2"};
    assert_int_equal(inv_registry_ninverses(ctx->registry), 5);
    for (size_t i = 0; i < 5; i++) {
        assert_string_equal(inv_registry_inverse_at(ctx->registry, i)->name, want[i]);
        assert_string_equal(inv_registry_inverse_at(ctx->registry, i)->cases[0], good.cases[0]);
        assert_null(inv_registry_inverse_at(ctx->registry, i)->cases[1]);
    }
    test_context_end(ctx, &c);
}

static void bad_rules_are_refused(void **state)
{
    (void)state;
    counting c = {0};
    inv_context *ctx = test_context(&c);
    assert_int_equal(inv_registry_create(ctx, &ctx->registry), INV_OK);
    inv_inverse_def d[8];
    for (int i = 0; i < 8; i++) d[i] = good;
    const inv_status want[] = {INV_E_ABI,   INV_E_ABI,   INV_E_ARG, INV_E_ARG,
                               INV_E_PARSE, INV_E_PARSE, INV_E_ARG, INV_E_PARSE};
    d[0].size = 8;
    d[1].size++;
    d[2].name = "";
    d[3].match = NULL;
    d[4].match = "y = Relu(x";
    d[5].solve = "x = ";
    d[6].frees = NULL;
    d[7].match = " # nothing";
    for (int i = 0; i < 8; i++) assert_int_equal(inv_registry_add_inverse(ctx->registry, &d[i]), want[i]);
    assert_int_equal(inv_registry_ninverses(ctx->registry), 0);
    assert_int_equal(inv_registry_add_inverse(ctx->registry, &d[4]), INV_E_PARSE);
    assert_non_null(strstr(inv_context_message(ctx), "'good', match: ')' expected"));
    inv_inverse_def shorter = good; /* made for an older header: what it lacks reads as zero */
    shorter.size = offsetof(inv_inverse_def, when);
    shorter.when = "garbage";
    assert_int_equal(inv_registry_add_inverse(ctx->registry, &shorter), INV_OK);
    assert_null(inv_registry_inverse_at(ctx->registry, 0)->when);
    test_context_end(ctx, &c);
}

static void conditions_and_gains_are_a_closed_list(void **state)
{
    (void)state;
    static const struct {
        const char *when, *gain;
        bool fine;
    } text[] = {
        {"same_shape(x, y); cond(W) < 1e5;\n attr(k, 0.5) == 1", "max_inv(W)", true},
        {"", "unbounded", true},
        {"away_from_zero(W, 1e-3); attr(k) > -1; recoverable(x)", "inv_attr(alpha, 0.01)", true},
        {"permutation(k)", NULL, false},               /* no such condition */
        {"same_shape(x, y) positive(W)", NULL, false}, /* no ';' */
        {"same_shape(x)", NULL, false},
        {"same_shape(x, y, W)", NULL, false},
        {"cond(W)", NULL, false},
        {"cond(W) > 3", NULL, false},
        {"cond(W) < many", NULL, false},
        {"cond(W) < 1,5", NULL, false},
        {"attr(k) = 1", NULL, false},
        {"attr(k) == ", NULL, false},
        {"away_from_zero(W)", NULL, false},
        {"away_from_zero(W, x)", NULL, false},
        {"positive(W", NULL, false},
        {"positive", NULL, false},
        {"positive(s)", NULL, false}, /* no such value */
        {"max_inv(W)", NULL, false},
        {NULL, "max_inv(s)", false},
        {NULL, "max_inv", false},
        {NULL, "inv_norm(W); max_inv(W)", false},
        {NULL, "2", false},
        {NULL, "bounded", false},
    };
    counting c = {0};
    inv_context *ctx = test_context(&c);
    assert_int_equal(inv_registry_create(ctx, &ctx->registry), INV_OK);
    for (size_t i = 0; i < sizeof text / sizeof *text; i++) {
        char name[16];
        snprintf(name, sizeof name, "r%zu", i);
        inv_inverse_def d = good;
        d.name = name;
        d.match = "y = MatMul(x, param(W))";
        d.when = text[i].when;
        d.gain = text[i].gain;
        inv_status s = inv_registry_add_inverse(ctx->registry, &d);
        if (s != (text[i].fine ? INV_OK : INV_E_PARSE)) fail_msg("%zu: %s", i, inv_context_message(ctx));
    }
    test_context_end(ctx, &c);
}

#define LONG32 "a123456789b123456789c123456789_1"
#define LONG LONG32 LONG32 LONG32 LONG32

static void solve_texts_read_what_is_there(void **state)
{
    (void)state;
    static const struct {
        const char *match, *solve, *frees, *says; /* NULL: fine */
    } text[] = {
        {"d = Neg(x); y = Sub(x, d)", "u = Neg(y); x = Sub(y, u)", "x", NULL},
        {"d = Neg(x); y = Sub(x, d)", "x = Sub(y, d)", "x", NULL},
        {"d = Neg(x); y = Sub(x, d)", "x = Sub(y, x)", "x", "reads 'x', which is what"},
        {"d = Neg(x); y = Sub(x, d)", "x = Sub(y, u); u = Neg(y)", "x", NULL}, /* in any order */
        {"d = Neg(x); y = Sub(x, d)", "x = Sub(y, u); u = Neg(v)", "x", "reads 'v', which nothing"},
        {"d = Neg(x); y = Sub(x, d)", "x = Sub(y, u); u = Neg(v); v = Neg(u)", "x", "reads 'u', which nothing"},
        {"d = Neg(x); y = Sub(z, v)", "x = Sub(y, u); u = Neg(v)", "x", "that gives 'y' shares no value"},
        {"t = region(x)", "x = Neg(t)", "x", "no operator"},
        {"y = Neg(d); y = Exp(x)", "x = Neg(y)", "x", "'y' is given by two statements"},
        {"d = Neg(x); y = Exp(d)", "d = Log(y); x = Neg(d)", "x", "'d' exists already. Give each intermediate value"},
        {"d = Neg(x); y = Sub(x, " LONG "d)", "x = Sub(y, d)", "x", "more than 127 bytes"},
        {"d = Neg(x); y = Sub(x, d)", "w = Neg(y)", "w", "match names no value 'w'"},
        {"a = Neg(x); b = Neg(a); c = Neg(b); d = Neg(c); e = Neg(d); f = Neg(e); g = Neg(f); h = Neg(g); y = Neg(h)",
         "i = Neg(y); j = Neg(i); k = Neg(j); l = Neg(k); m = Neg(l); n = Neg(m); o = Neg(n); x = Neg(o)", "x", NULL},
    };
    counting c = {0};
    inv_context *ctx = test_context(&c);
    assert_int_equal(inv_registry_create(ctx, &ctx->registry), INV_OK);
    for (size_t i = 0; i < sizeof text / sizeof *text; i++) {
        char name[16];
        snprintf(name, sizeof name, "r%zu", i);
        inv_inverse_def d = good;
        d.name = name;
        d.match = text[i].match;
        d.solve = text[i].solve;
        d.frees = text[i].frees;
        inv_status s = inv_registry_add_inverse(ctx->registry, &d);
        assert_int_equal(s, text[i].says ? INV_E_PARSE : INV_OK);
        if (text[i].says && !strstr(inv_context_message(ctx), text[i].says))
            fail_msg("%zu: %s", i, inv_context_message(ctx));
    }
    test_context_end(ctx, &c);
}

static void every_allocation_may_fail(void **state)
{
    (void)state;
    bool done = false;
    for (long k = 1; !done; k++) {
        counting c = {0};
        inv_context *ctx = test_context(&c);
        c.calls = 0;
        c.fail_at = k;
        inv_status s = toy_registry(ctx);
        for (int i = 0; i < 40 && s == INV_OK; i++) {
            char name[16];
            inv_inverse_def d = good;
            snprintf(name, sizeof name, "r%d", i);
            d.name = name;
            d.when = "same_shape(x, y)";
            s = inv_registry_add_inverse(ctx->registry, &d);
        }
        done = c.calls < k;
        assert_int_equal(s, done ? INV_OK : INV_E_NOMEM);
        test_context_end(ctx, &c);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(operators_are_found_by_opset),
        cmocka_unit_test(gaps_between_opsets_are_gaps),
        cmocka_unit_test(slots_of_rows),
        cmocka_unit_test(rules_are_sorted_and_unique),
        cmocka_unit_test(bad_rules_are_refused),
        cmocka_unit_test(conditions_and_gains_are_a_closed_list),
        cmocka_unit_test(solve_texts_read_what_is_there),
        cmocka_unit_test(every_allocation_may_fail),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
