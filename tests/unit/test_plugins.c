/* SPDX-License-Identifier: Apache-2.0
 * Plugins: every rule file of inverses/, built a second time as a shared object and loaded through that door into an
 * empty registry, passes the suite; `invonnx rules` read back is the same registry; and what is refused, with which
 * words, leaving nothing behind. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "core/graph/op.h"

static inv_context *context(bool rules)
{
    inv_context *ctx;
    const inv_context_options o = {.size = sizeof o, .no_rules = !rules};
    assert_int_equal(inv_context_create(&o, &ctx), INV_OK);
    assert_true(rules == (inv_registry_ninverses(ctx->registry) > 0));
    return ctx;
}

static void load(inv_context *ctx, const char *path)
{
    if (inv_context_load_plugin(ctx, path) != INV_OK) fail_msg("%s", inv_context_message(ctx));
}

static const char *write_text(const char *path, const char *text, size_t n)
{
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(text, 1, n, f), n);
    assert_int_equal(fclose(f), 0);
    return path;
}

static void suite(inv_context *ctx, const char *plugin)
{
    char *json;
    if (inv_selftest(ctx, plugin, &json) != INV_OK) fail_msg("%s", inv_context_message(ctx));
    if (!strstr(json, "\"failures\": []")) fail_msg("%s: %s", plugin, strstr(json, "\"failures\""));
    assert_null(strstr(json, "\"checks\": 0,"));
    inv_free(ctx, json);
}

/* All rules as text, in the registry's order. */
static void print_all(const inv_context *ctx, inv_str *out)
{
    for (size_t i = 0; i < inv_registry_ninverses(ctx->registry); i++) {
        inv_rule_print(inv_registry_inverse_at(ctx->registry, i), out);
        inv_str_add(out, "\n");
    }
    assert_false(out->failed);
}

/* INV_RULE_PLUGINS: the shared objects, separated by colons. */
static void rule_files_as_shared_objects(void **state)
{
    (void)state;
    inv_context *ctx = context(false), *built_in = context(true);
    char list[] = INV_RULE_PLUGINS, *path[64];
    size_t n = 0;
    for (char *p = strtok(list, ":"); p; p = strtok(NULL, ":")) path[n++] = p;
    assert_true(n >= 5);
    for (size_t i = n; i-- > 0;) load(ctx, path[i]);
    assert_int_equal(inv_registry_ninverses(ctx->registry), inv_registry_ninverses(built_in->registry));
    for (size_t i = 0; i < n; i++) suite(ctx, path[i]);
    /* and each rule is the built-in one */
    for (size_t i = 0; i < inv_registry_ninverses(ctx->registry); i++) {
        inv_str a, b;
        size_t k = 0;
        const inv_inverse_def *d = inv_registry_inverse_at(ctx->registry, i), *e;
        while ((e = inv_registry_inverse_at(built_in->registry, k)) && strcmp(d->name, e->name) != 0) k++;
        assert_non_null(e);
        assert_non_null(inv_registry_inverse_plugin(ctx->registry, i));
        inv_str_init(&a, ctx);
        inv_str_init(&b, ctx);
        inv_rule_print(d, &a);
        inv_rule_print(e, &b);
        assert_string_equal(a.s, b.s);
        inv_str_fini(&a);
        inv_str_fini(&b);
    }
    inv_context_destroy(built_in);
    inv_context_destroy(ctx);
}

static void what_is_printed_is_read(void **state)
{
    (void)state;
    inv_context *built_in = context(true), *ctx = context(false);
    inv_str all, again;
    inv_str_init(&all, built_in);
    inv_str_init(&again, ctx);
    print_all(built_in, &all);
    load(ctx, write_text("all.rules", all.s, all.n));
    assert_int_equal(inv_registry_ninverses(ctx->registry), inv_registry_ninverses(built_in->registry));
    print_all(ctx, &again);
    assert_string_equal(all.s, again.s);
    for (size_t i = 0; i < inv_registry_ninverses(ctx->registry); i++) { /* texts, not only how they are printed */
        const inv_inverse_def *a = inv_registry_inverse_at(built_in->registry, i);
        const inv_inverse_def *b = inv_registry_inverse_at(ctx->registry, i);
        for (const inv_rule_field *f = inv_rule_fields; f->name; f++) {
            const char *x = inv_rule_text(a, f), *y = inv_rule_text(b, f);
            assert_true(!x == !y);
            if (x) assert_string_equal(x, y);
        }
        assert_int_equal(a->priority, b->priority);
        assert_int_equal(a->exactness, b->exactness);
        for (size_t k = 0; a->cases[k]; k++) assert_string_equal(a->cases[k], b->cases[k]);
    }
    inv_str_fini(&all);
    inv_str_fini(&again);
    inv_context_destroy(built_in);
    inv_context_destroy(ctx);
}

/* The table of fields has every text of the struct, so that all of them are printed and read. */
static void every_field_is_a_field(void **state)
{
    (void)state;
    for (size_t at = offsetof(inv_inverse_def, kind); at < sizeof(inv_inverse_def); at += sizeof(const char *)) {
        bool known = at == offsetof(inv_inverse_def, cases) || at == offsetof(inv_inverse_def, priority) ||
                     at == offsetof(inv_inverse_def, exactness);
        for (const inv_rule_field *f = inv_rule_fields; f->name; f++) known = known || f->offset == at;
        if (!known) fail_msg("the text at byte %zu of inv_inverse_def is not among the fields", at);
    }
    static const char text[] = "rule all\n    kind       k\n    priority   3\n    match      y = Neg(x)\n"
                               "    solve      x = Sub(s, y)\n    frees      x\n    when       same_shape(x, y)\n"
                               "    gain       times(2)\n    logdet     0\n    remedy     r\n"
                               "    saves      s = Sub(x, x)\n"
                               "    doc        d\n             | e\n    exactness  exact\n"
                               "    case       g(float[2] a) => (b) { b = Neg(a) }\n";
    inv_context *ctx = context(false);
    inv_str out;
    inv_str_init(&out, ctx);
    load(ctx, write_text("layout.rules", text, sizeof text - 1));
    inv_rule_print(inv_registry_inverse_at(ctx->registry, 0), &out);
    assert_string_equal(out.s, text);
    inv_str_fini(&out);
    inv_context_destroy(ctx);
}

/* Solve texts that ask for axes, lists and permutations that the values do not have: rules that do not apply. */
static void hostile_solve_texts(void **state)
{
    (void)state;
#define RESIZED                                                                                               \
    "g(float[2,4] a) => (z) { x = Sin(a); y = Resize<mode = \"linear\">(x, float[0] {}, float[2] {1, 1.3}); " \
    "z = Sin(y) }"
#define GATHERED "g(float[2,3,4] x, int64[2] i) => (z) { y = Gather<axis = 2>(x, i); z = Sin(y) }"
#define NEGATED "g(float[4] a) => (z) { x = Sin(a); y = Neg(x); z = Sin(y) }"
#define SLOPED(axis) \
    "g(float[2,4] a) => (z) { x = Sin(a); y = LeakyRelu<alpha = 0.9, axis = " axis ", groups = 0>(x); z = Sin(y) }"
#define CONVOLVED "g(float[1,1,4,4] a) => (z) { param float[1,1,1,1] W = {2}; x = Sin(a); y = Conv(x, W); z = Sin(y) }"
#define NO "cannot be applied here"
    static const struct {
        const char *match, *solve, *frees, *text, *says;
    } rules[] = {
        {"y = ResizeN(x)", "x = Transpose<perm = invert(scales)>(y)", "x", RESIZED, NO},
        {"y = ResizeN(x)", "x = Transpose<perm = ones(scales)>(y)", "x", RESIZED, NO},
        {"y = Gather(xs...)", "xs... = SplitSizes<axis = axis, sizes = sizes(xs)>(y)", "xs...", GATHERED, NO},
        {"y = Gather(x, i)", "x = View<shape = rows(i)>(y)", "x", GATHERED, NO},
        {"y = Neg(x)", "x = Transpose<perm = swap(y)>(y)", "x", NEGATED, NO},
        {"y = Neg(x)", "x = View<shape = sizes(x)>(y)", "x", NEGATED, NO},
        {"y = Neg(x)", "x = View<shape = invert(y.nothing)>(y)", "x", NEGATED, NO},
        {"y = ConvN(x, param(W))", "x = Transpose<perm = invert(strides)>(y)", "x", CONVOLVED, NO},
        {"y = ConvN(x, param(W))", "x = Transpose<perm = group>(y)", "x", CONVOLVED, NO},
        {"y = Neg(x)", "x, r = SplitSizes<axis = 8000, sizes = [2, 2]>(y)", "x", NEGATED, NO},
        {"y = Neg(x)", "x = Concat<axis = -8000>(y, y)", "x", NEGATED, NO},
        {"y = Neg(x)", "x = Transpose<perm = [-1000000]>(y)", "x", NEGATED, NO},
        {"y = Neg(x)", "x = ReduceSumAxes<axes = [7000]>(y)", "x", NEGATED, NO},
        {"y = Neg(x)", "x = SliceRange<starts = [0], steps = [1], sizes = [1]>(y)", "x", NEGATED,
         "gives float[1] for 'x', which is float[4]"},
        {"y = Neg(x)", "b = Less(y, y); x = Cast<to = 7>(b)", "x", NEGATED,
         "gives int64[4] for 'x', which is float[4]"},
        {"y = Neg(x)", "x = View<shape = rows(x)>(y)", "x", NEGATED, "gives float[1,1,4] for 'x', which is float[4]"},
        {"y = LeakyRelu(x)", "x = View<shape = rows(x)>(y)", "x", SLOPED("1000000"), NO},
        {"y = LeakyRelu(x)", "x = View<shape = rows(x)>(y)", "x", SLOPED("-5"), NO},
        {"ys... = LeakyRelu(x)", "x = View<shape = sizes(ys)>(ys...)", "x", SLOPED("100"), NO},
        {"y = Neg(x)", "x = Mul(y, count(y, 4))", "x", NEGATED, NO},
        {"y = Neg(x)", "x = Mul(y, count(y, -2))", "x", NEGATED, NO},
        {"y = LeakyRelu(x)", "x = Mul(y, count(y, alpha))", "x", SLOPED("1"), NO},
        {"y = Neg(x)", "x = Mul(y, float[2,4] {1, 2, 3, 4, 5, 6, 7, 8})", "x", NEGATED, "gives float[2,4] for 'x'"},
        {"y = Neg(x)", "x = Mul(y, int64[] {-1})", "x", NEGATED, NO},
    };
    for (size_t i = 0; i < sizeof rules / sizeof *rules; i++) {
        char text[1024], *json;
        inv_context *ctx = context(true);
        const int n =
            snprintf(text, sizeof text, "rule mine\n  priority 900\n  match %s\n  solve %s\n  frees %s\n  case %s\n",
                     rules[i].match, rules[i].solve, rules[i].frees, rules[i].text);
        load(ctx, write_text("hostile.rules", text, (size_t)n));
        assert_int_equal(inv_selftest(ctx, "hostile.rules", &json), INV_OK);
        if (!strstr(json, "its solve text ") || !strstr(json, rules[i].says)) fail_msg("%s: %s", rules[i].solve, json);
        inv_free(ctx, json);
        inv_context_destroy(ctx);
    }
}

/* Cases of a size that nobody can hold, and of one that overflows. */
static void huge_cases(void **state)
{
    (void)state;
    static const char *const texts[] = {
        "g(float[4611686018427387904,4] a) => (z) { x = Sin(a); y = Neg(x); z = Sin(y) }",
        "g(float[1000000000] a) => (z) { x = Sin(a); y = Neg(x); z = Sin(y) }",
        "g(float[4,6] a) => (z) { param float[6,4611686018427387904,4] B; x = Sin(a); y = Neg(x); z = MatMul(y, B) }",
    };
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        char text[512], *json;
        inv_context *ctx = context(true);
        const int n = snprintf(text, sizeof text,
                               "rule mine\n  priority 900\n  match y = Neg(x)\n  solve x = Neg(y)\n  frees x\n"
                               "  case %s\n",
                               texts[i]);
        load(ctx, write_text("huge.rules", text, (size_t)n));
        assert_int_equal(inv_selftest(ctx, "huge.rules", &json), INV_OK);
        if (!strstr(json, "has more elements than a case may have")) fail_msg("%s: %s", texts[i], json);
        inv_free(ctx, json);
        inv_context_destroy(ctx);
    }
}

/* Lines may go on, empty texts are kept, and comments and blank lines are nothing. */
static void layout_of_texts(void **state)
{
    (void)state;
    static const char text[] =
        "# two rules\n\n  rule one\r\n\tmatch d = Neg(x)   ;y = Neg(d)\n\tkind \"\"\n doc first\n | second\n |  third\n"
        "rule two\n  match\n  | d = Neg(x)\n  | y = Neg(d)\n  frees x\n  priority -7\n";
    static const char marked[] = "\xef\xbb\xbfrule three\n  match y = Neg(x)\n  frees x\n  priority -8\n";
    inv_context *ctx = context(false);
    load(ctx, write_text("layout.rules", text, sizeof text - 1));
    load(ctx, write_text("marked.txt", marked, sizeof marked - 1));
    load(ctx, write_text("marked.rules", "\xef\xbb\xbf# four\nrule four\nmatch y=Neg(x)\nfrees x\npriority -9\n", 55));
    assert_string_equal(inv_registry_inverse_at(ctx->registry, 2)->name, "three");
    const inv_inverse_def *one = inv_registry_inverse_at(ctx->registry, 0);
    const inv_inverse_def *two = inv_registry_inverse_at(ctx->registry, 1);
    assert_string_equal(one->name, "one");
    assert_string_equal(one->kind, "");
    assert_string_equal(one->doc, "first\nsecond\n third");
    assert_null(one->frees);
    assert_string_equal(two->match, "\nd = Neg(x)\ny = Neg(d)");
    assert_int_equal(two->priority, -7);
    inv_context_destroy(ctx);
}

/* As many rules as a text has room for: by falling priority, then as they stand; the last one's name is found to be
 * taken, by itself or by another file, and a file that fails leaves no name behind. */
static void many_rules(void **state)
{
    (void)state;
    enum { MANY = 20000, PRIORITIES = 7 };
    inv_context *ctx = context(true);
    const size_t before = inv_registry_ninverses(ctx->registry);
    inv_str text;
    inv_str_init(&text, ctx);
    for (int i = 0; i < MANY; i++)
        inv_str_add(&text, "rule r%d\nmatch y=Neg(x)\nfrees x\npriority %d\n", i, i % PRIORITIES - 20);
    const size_t whole = text.n;
    inv_str_add(&text, "rule r%d\nmatch y=Neg(x)\nfrees x\n", MANY - 1);
    assert_false(text.failed);
    write_text("many.rules", text.s, text.n);
    assert_int_equal(inv_context_load_plugin(ctx, "many.rules"), INV_E_EXISTS);
    assert_non_null(strstr(inv_context_message(ctx), "line 80001: inverse rule 'r19999' is already registered, by"));
    assert_int_equal(inv_registry_ninverses(ctx->registry), before);
    load(ctx, write_text("many.rules", text.s, whole));
    assert_int_equal(inv_registry_ninverses(ctx->registry), before + MANY);
    int last = -1;
    for (size_t i = 0; i < before + MANY; i++) {
        const inv_inverse_def *d = inv_registry_inverse_at(ctx->registry, i);
        const int nth = atoi(d->name + 1), next = last + PRIORITIES;
        assert_true(i == 0 || d->priority <= inv_registry_inverse_at(ctx->registry, i - 1)->priority);
        if (!inv_registry_inverse_plugin(ctx->registry, i)) continue;
        assert_int_equal(nth, next < MANY ? next : last % PRIORITIES - 1);
        last = nth;
    }
    assert_int_equal(last % PRIORITIES, 0);
    load(ctx, write_text("other.rules", "rule other\nmatch y=Neg(x)\nfrees x\npriority -999\n", 48));
    assert_string_equal(inv_registry_inverse_at(ctx->registry, before + MANY)->name, "other");
    write_text("one.rules", "rule r777\nmatch y=Neg(x)\nfrees x\n", 33);
    assert_int_equal(inv_context_load_plugin(ctx, "one.rules"), INV_E_EXISTS);
    assert_non_null(strstr(inv_context_message(ctx), "'r777' is already registered, by many.rules"));
    inv_str_fini(&text);
    inv_context_destroy(ctx);
}

#define RULE "rule mine\n  frees x\n"
/* clang-format off */
static const struct refused {
    const char *text, *says;
    inv_status code;
} refused[] = {
    {"hello world\n", "that is a shared object, a text", INV_E_PARSE},
    {"\xff\xfe\x01 binary", "that is a shared object, a text", INV_E_PARSE},
    {"", "it is empty", INV_E_PARSE},
    {"# nothing\n", "it holds no rule", INV_E_PARSE},
    {"rule mine\n  match y = Neg(x\n", "line 2: inverse rule 'mine', match: ')' expected", INV_E_PARSE},
    {"rule a\n match y = Neg(x)\n frees x\n" RULE "  match y = Neg(x)\n  solve x = Neg(\n",
     "line 7: inverse rule 'mine', solve",
     INV_E_PARSE},
    {RULE "  match y = Neg(x)\n  when tiny(x)\n",
     "line 4: inverse rule 'mine', when: 'tiny(x)' is not one of same_shape(a, b), same_type(a, b), ", INV_E_PARSE},
    {RULE "  match y = Mul(x, param(c))\n  when c == 2\n",
     ", away_from_zero(a, C), odd(a), number(a) == C, ", INV_E_PARSE},
    {RULE "  match y = Neg(x)\n  logdet log_abs(x, w)\n",
     "line 4: inverse rule 'mine', logdet: match names no value 'w'", INV_E_PARSE},
    {RULE "  match y = Tanh(x)\n  logdet log_det(x)\n",
     "line 4: inverse rule 'mine', logdet: log_det is of a parameter, and match has no param(x)", INV_E_PARSE},
    {RULE "  match y = Tan(x)\n  logdet log_deriv\n",
     "line 4: inverse rule 'mine', logdet: log_deriv is not known of Tan", INV_E_PARSE},
    {RULE "  match a = Exp(x); y = Tanh(a)\n  logdet log_deriv\n",
     "line 4: inverse rule 'mine', logdet: log_deriv is for a match of one operator, this one has 2", INV_E_PARSE},
    {RULE "  match y = Neg(x)\n  gain 2\n",
     "line 4: inverse rule 'mine', gain: '2' is not one of max_inv(a), ", INV_E_PARSE},
    {RULE "  match y = Neg(x)\n  case g(float[2] x) => (y) { y = Neg(x }\n",
     "line 4: inverse rule 'mine', case 1: line 1",
     INV_E_PARSE},
    {RULE "  match y = Neg(x)\n  match y = Neg(x)\n", "line 4: rule 'mine': a second 'match'", INV_E_PARSE},
    {RULE "  macht y = Neg(x)\n",
     "line 3: rule 'mine': there is no field 'macht'; there are: kind, match", INV_E_PARSE},
    {RULE "  match y = Neg(z)\n", "line 2: inverse rule 'mine', frees: match names no value 'x'", INV_E_PARSE},
    {"rule mine\n  match y = Neg(x)\n", "line 1: inverse rule 'mine': frees is required", INV_E_ARG},
    {"rule mine\n  match y = Neg(x)\n  refuse no\n", "'mine': frees is required", INV_E_ARG},
    {"rule mine\n  match d = Neg(x); y = Neg(d)\n  refuse no\n", "'mine': frees is required", INV_E_ARG},
    {"rule mine\n  match d = Neg(x); y = Neg(d)\n  solve x = Neg(y)\n", "'mine': frees is required", INV_E_ARG},
    {RULE "  match y = Neg(x)\n  solve x = Feed<slot = 99, shape = shape(x), dtype = 1>()\n",
     "inverse rule 'mine', solve: 'Feed' is no canonical operator", INV_E_UNSUPPORTED_OP},
    {RULE "  match y = Neg(x)\n  solve x = SequenceOf(y)\n", "'SequenceOf' is no canon", INV_E_UNSUPPORTED_OP},
    {RULE "  match y = Neg(x)\n  solve x = Assign(y, y)\n", "'Assign' is no canonical", INV_E_UNSUPPORTED_OP},
    {RULE "  match y = Neg(x)\n  solve x = Gemm(y, y)\n", "'Gemm' is no canonical", INV_E_UNSUPPORTED_OP},
    {RULE "  match y = Neg(x)\n  saves s = Feed()\n  solve x = Sub(s, y)\n", "saves: 'Feed' is no canonical",
     INV_E_UNSUPPORTED_OP},
    {RULE "  match y = Neg(x)\n  solve q = Exp(y); q = Log(q); x = Neg(q)\n", "solve: 'q' exists already",
     INV_E_PARSE},
    {RULE "  match y = Neg(x)\n  solve y = Exp(y); x = Neg(y)\n", "solve: 'y' exists already", INV_E_PARSE},
    {RULE "  match y = Neg(x)\n  solve x = Neg(y); x = Neg(y)\n", "solve: 'x' exists already", INV_E_PARSE},
    {RULE "  match y = Neg(x)\n  solve \"\", x = SplitSizes<axis = 0, sizes = [0, 4]>(y)\n",
     "an output of SplitSizes has no name", INV_E_PARSE},
    {RULE "  match y = Nag(x)\n", "match: there is no operator 'Nag'", INV_E_UNSUPPORTED_OP},
    {RULE "  match y = Neg|Nag(x)\n", "match: there is no operator 'Nag'", INV_E_UNSUPPORTED_OP},
    {RULE "  match y = my.Neg(x)\n", "match: there is no operator 'Neg' of domain my", INV_E_UNSUPPORTED_OP},
    {RULE "  match y = Neg(x)\n  solve x = Nag(y)\n", "solve: there is no operator 'Nag'", INV_E_UNSUPPORTED_OP},
    {RULE "  match y = Neg(x)\n  priority high\n",
     "line 4: rule 'mine': priority is a whole number, not 'high'", INV_E_PARSE},
    {RULE "  match y = Neg(x)\n  exactness ex\n", "line 4: rule 'mine': exactness is exact or bounded", INV_E_PARSE},
    {RULE, "line 1: inverse rule 'mine': match is required", INV_E_ARG},
    {"rule\n", "line 1: one name expected after 'rule'", INV_E_PARSE},
    {"rule a b\n", "line 1: one name expected after 'rule'", INV_E_PARSE},
    {"rule a\n | more\n", "line 2: '|' is not followed by text", INV_E_PARSE},
    {"# first\nrule scale\n match y = Neg(x)\n", "line 2: inverse rule 'scale' is already registered, by the library",
     INV_E_EXISTS},
    {RULE " match y = Neg(x)\n" RULE " match y = Neg(x)\n",
     "line 4: inverse rule 'mine' is already registered, by refused.rules",
     INV_E_EXISTS},
    {RULE "  match y = Neg(x)\n  doc a \033[31m\n", "line 4: a byte that is no text", INV_E_PARSE},
    {RULE "  match t = region()\n", "region without an input", INV_E_PARSE},
    {RULE "  match y = LeakyRelu<alpha = 0.2>(x)\n", "match: LeakyRelu cannot have attributes there", INV_E_PARSE},
    {RULE "  match Neg(x)\n", "Neg without a name for what it gives", INV_E_PARSE},
    {RULE "  match a, b, c, d, e = region(x)\n", "at most 4 exits", INV_E_PARSE},
    {RULE "  match y = Neg(\"param(\")\n", "'param(' is no name of a value", INV_E_PARSE},
    {RULE "  match y = Add(x, float[2] {1, 2})\n", "the inputs of Add cannot be types or numbers", INV_E_PARSE},
    {RULE "  match y = Gemm(x, param(W))\n",
     "match: 'Gemm' is lowered to other operators before rules are tried, so it never matches: depending on its "
     "inputs, it becomes MatMulT",
     INV_E_UNSUPPORTED_OP},
    {RULE "  match y = Sum|Gemm(x, z)\n", "match: 'Sum' is lowered", INV_E_UNSUPPORTED_OP},
    {RULE "  match y = Pow(x, 3)\n", "match: the inputs of Pow cannot be types or numbers. Write param(c)",
     INV_E_PARSE},
    {RULE "  match y = Neg(x)\n  solve x = Mul(y, float[2] c)\n",
     "solve: an input of Mul cannot be a type without numbers or with a name", INV_E_PARSE},
    {RULE "  match y = Neg(x)\n  solve x = Mul(y, float[2] {1})\n", "solve: 1 numbers given for", INV_E_PARSE},
    {RULE "  match y = Neg(x)\n  solve x = Mul(y, float[] {1/0})\n", "number of this type expected", INV_E_PARSE},
    {RULE "  match y = Neg(x)\n  solve x = Mul(y, size(y))\n", "solve: 'size(y)' is no operand", INV_E_PARSE},
    {RULE "  match y = Neg(x)\n  solve x = Mul(y, count(z))\n", "solve: Mul reads 'z', which nothing gives",
     INV_E_PARSE},
    {RULE "  match y = Neg(x)\n  solve 2 = Neg(y); x = Mul(2, y)\n", "an output of Neg has no name", INV_E_PARSE},
};
/* clang-format on */

static void refusals(void **state)
{
    (void)state;
    inv_context *ctx = context(true);
    size_t rules = inv_registry_ninverses(ctx->registry), ops = inv_registry_nops(ctx->registry);
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
        const char *name = i < 3 ? "refused.txt" : "refused.rules";
        write_text(name, refused[i].text, strlen(refused[i].text));
        inv_status s = inv_context_load_plugin(ctx, name);
        if (s != refused[i].code || !strstr(inv_context_message(ctx), refused[i].says))
            fail_msg("%zu: %d, %s", i, (int)s, inv_context_message(ctx));
        assert_non_null(strstr(inv_context_message(ctx), name));
        assert_int_equal(inv_registry_ninverses(ctx->registry), rules);
        assert_int_equal(inv_registry_nops(ctx->registry), ops);
    }
    static char deep[1 << 20]; /* parentheses without end: refused early, not read to the end */
    memset(deep, '(', sizeof deep);
    memcpy(deep, "rule deep\n match y = Neg(x", 26);
    assert_int_equal(inv_context_load_plugin(ctx, write_text("deep.rules", deep, sizeof deep)), INV_E_PARSE);
    assert_int_equal(inv_context_load_plugin(ctx, "absent.rules"), INV_E_IO);
    assert_int_equal(inv_context_load_plugin(ctx, "/"), INV_E_IO);
    assert_int_equal(inv_context_load_plugin(ctx, ""), INV_E_ARG);
    inv_context_destroy(ctx);
}

/* INV_BAD_PLUGINS: the folder of the shared objects made from plugin_bad.c, one per way to be bad. */
static void bad_shared_objects(void **state)
{
    (void)state;
    static const struct {
        const char *name, *says;
        inv_status code;
    } bad[] = {
        {"no_init", "does not export inv_plugin_init", INV_E_ABI},
        {"no_abi", "does not export inv_plugin_abi", INV_E_ABI},
        {"other_abi", "built for ABI number 4711, this library has ", INV_E_ABI},
        {"clash", "inverse rule 'scale' is already registered, by the library", INV_E_EXISTS},
        {"fails", "its inv_plugin_init has failed: the licence server is on fire", INV_E_IO},
        {"silent", "its inv_plugin_init has failed: it says nothing more than 'numbers out of bounds'", INV_E_NUMERIC},
        {"ignores", "inverse rule 'good' is already registered, by ", INV_E_EXISTS},
        {"larger", "inverse rule of ", INV_E_ABI},
        {"op_domain", "operator 'ai.onnx.mine.Lost': it must have a domain of its own", INV_E_ARG},
        {"op_grad", "operator 'com.example.Lost', grad: 'Gemm' is no canonical operator", INV_E_UNSUPPORTED_OP},
        {"op_grad_name", "grad: 'd_q' is no gradient d_NAME of an input, and nothing reads it", INV_E_PARSE},
        {"op_grad_draws", "is no canonical operator", INV_E_UNSUPPORTED_OP},
        {"op_grad_twice", "operator 'com.example.Lost', grad: 't' is there already", INV_E_PARSE},
        {"op_grad_input", "operator 'com.example.Lost', grad: 'x' is there already", INV_E_PARSE},
        {"op_blank_in", "operator 'com.example.Lost': the name '?' of an operand is not one word", INV_E_ARG},
        {"op_blank_domain", "operator 'com. example.Lost': domain and name must be words", INV_E_ARG},
        {"op_blank_name", "operator 'com.example.?': domain and name must be words", INV_E_ARG},
        {"op_same_name", "operator 'com.example.Lost': two operands are called 'x'", INV_E_ARG},
        {"unresolved", "it cannot be loaded: ", INV_E_IO},
    };
    inv_context *ctx = context(true);
    size_t rules = inv_registry_ninverses(ctx->registry);
    char path[4096];
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        snprintf(path, sizeof path, "%s/plugin_bad_%s.so", INV_BAD_PLUGINS, bad[i].name);
        inv_status s = inv_context_load_plugin(ctx, path);
        if (s != bad[i].code || !strstr(inv_context_message(ctx), bad[i].says))
            fail_msg("%s: %d, %s", bad[i].name, (int)s, inv_context_message(ctx));
        assert_non_null(strstr(inv_context_message(ctx), path));
        assert_int_equal(inv_registry_ninverses(ctx->registry), rules);
    }
    char bytes[8192]; /* of one that would be taken; the dynamic linker dies of what has been cut off */
    FILE *f = fopen(INV_BAD_PLUGINS "/plugin_bad_op_workspace.so", "rb");
    assert_non_null(f);
    const size_t n = fread(bytes, 1, sizeof bytes, f);
    assert_int_equal(fclose(f), 0);
    for (size_t k = n; k > 32; k /= 2) {
        assert_int_equal(inv_context_load_plugin(ctx, write_text("cut.so", bytes, k)), INV_E_IO);
        assert_non_null(strstr(inv_context_message(ctx), "a truncated shared object"));
    }
    load(ctx, write_text("quoted.rules", "rule quoted\nkind \"a kind\"\nmatch y=Neg(x)\nfrees x\npriority -999\n", 63));
    const inv_inverse_def *quoted = inv_registry_inverse_at(ctx->registry, rules); /* behind all others */
    assert_string_equal(quoted->kind, "a kind");
    inv_context_destroy(ctx);
}

/* A kernel that fails: its own words, and whose it is; and numbers that no plan can be made of. */
static void failing_callbacks(void **state)
{
    (void)state;
    static const char *const costs[][2] = {
        {INV_BAD_PLUGINS "/plugin_bad_op_workspace.so", "op_workspace.so' asks for 18446744073709551615 bytes"},
        {INV_BAD_PLUGINS "/plugin_bad_op_flops.so", "op_flops.so' gives -inf"}};
    for (size_t i = 0; i < sizeof costs / sizeof *costs; i++) {
        inv_context *wrong = context(true);
        char *text;
        load(wrong, costs[i][0]);
        assert_int_equal(inv_selftest(wrong, costs[i][0], &text), INV_OK);
        if (!strstr(text, costs[i][1]) || !strstr(text, "(com.example.Lost)")) fail_msg("%s", text);
        inv_free(wrong, text);
        inv_context_destroy(wrong);
    }
    inv_context *ctx = context(true);
    const char *path = INV_BAD_PLUGINS "/plugin_bad_op_kernel.so";
    char *json;
    load(ctx, path);
    assert_int_equal(inv_selftest(ctx, path, &json), INV_OK);
    assert_non_null(strstr(json, "(com.example.Lost): cpu of plugin '" INV_BAD_PLUGINS
                                 "/plugin_bad_op_kernel.so' has failed: the table is lost"));
    inv_free(ctx, json);
    path = INV_BAD_PLUGINS "/plugin_bad_op_grad_type.so";
    inv_context *other = context(true);
    load(other, path);
    assert_int_equal(inv_selftest(other, path, &json), INV_OK);
    if (!strstr(json, "'d_x' is of type bool, the input of type ")) fail_msg("%s", json);
    inv_free(other, json);
    inv_context_destroy(other);
    inv_context_destroy(ctx);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rule_files_as_shared_objects),
        cmocka_unit_test(what_is_printed_is_read),
        cmocka_unit_test(every_field_is_a_field),
        cmocka_unit_test(hostile_solve_texts),
        cmocka_unit_test(huge_cases),
        cmocka_unit_test(layout_of_texts),
        cmocka_unit_test(many_rules),
        cmocka_unit_test(refusals),
        cmocka_unit_test(bad_shared_objects),
        cmocka_unit_test(failing_callbacks),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
