/* SPDX-License-Identifier: Apache-2.0
 * Conformance of every registered inverse rule, from its own `cases`. Then what gains must be, and what must
 * not be found: singular and shrinking maps, lost inputs, residuals without a split. */
#include "rule_test.h"

static size_t gradients(inv_session *s, feeds *f, inv_result *r, double **out)
{
    static const inv_what kinds[] = {INV_GET_GRAD, INV_GET_INPUT_GRAD};
    size_t n = 0;
    *out = NULL;
    for (int twice = 0; twice < 2; twice++)
        if (inv_session_grad(s, f->in, f->n, &f->target, r) != INV_OK) fail_msg("%s", inv_context_message(ctx));
    for (int k = 0; k < 2; k++)
        for (size_t i = 0; inv_session_name(s, kinds[k], i); i++) {
            const void *data;
            inv_dtype dt;
            int rank;
            int64_t dims[INV_MAX_RANK], ne = 1;
            assert_int_equal(inv_session_get(s, kinds[k], inv_session_name(s, kinds[k], i), &data, &dt, &rank, dims),
                             INV_OK);
            for (int d = 0; d < rank; d++) ne *= dims[d];
            *out = realloc(*out, (n + (size_t)ne) * sizeof **out);
            for (int64_t e = 0; e < ne; e++) (*out)[n++] = inv_elem_double(data, dt, (size_t)e);
        }
    return n;
}

/* --- the rules --- */

static const inv_block *block_of(const inv_graph *g, const char *rule)
{
    for (size_t i = 0; i < g->matches->block.n; i++)
        if (strcmp(g->matches->block.at[i].rule->name, rule) == 0) return &g->matches->block.at[i];
    return NULL;
}

static const char *refusal_of(const inv_graph *g, const char *kind, const char *words)
{
    for (size_t i = 0; i < g->matches->refusal.n; i++)
        if (strcmp(g->matches->refusal.at[i].kind, kind) == 0 && strstr(g->matches->refusal.at[i].why.reason, words))
            return g->matches->refusal.at[i].why.reason;
    return NULL;
}

/* The suite of `invonnx selftest`, which is the library's own. */
static void suite(const char *plugin)
{
    char *json;
    if (inv_selftest(ctx, plugin, &json) != INV_OK) fail_msg("%s", inv_context_message(ctx));
    if (!strstr(json, "\"failures\": []")) fail_msg("%s", strstr(json, "\"failures\""));
    assert_null(strstr(json, "\"checks\": 0,"));
    inv_free(ctx, json);
}

static void test_cases_of_every_rule(void **state)
{
    (void)state;
    suite(NULL);
}

/* The gain of the rule's only edge in a case. */
static double gain_in(const char *rule, const char *text)
{
    feeds f;
    double gain = 0;
    inv_model m = {.ctx = ctx, .path = "text", .graph = parse(text)};
    make_feeds(&m, &f);
    inv_session *s = session(&m, INV_MEMORY_INVERT, &f, true);
    const inv_matches *found = s->program->plan[INV_PLAN_MAIN].base->matches;
    for (size_t i = 0; i < found->edge.n; i++)
        if (strcmp(found->edge.at[i].rule->name, rule) == 0) gain = found->edge.at[i].gain;
    inv_session_destroy(s);
    drop_feeds(&f);
    inv_graph_destroy(m.graph);
    return gain;
}

static void test_gains(void **state)
{
    (void)state;
#define GAIN(rule, statements, want)                                                                   \
    assert_float_equal(gain_in(rule, "g(float[4,2] in) => (y) { x = Sin(in); " statements " }"), want, \
                       1e-5f * (float)(want))
    GAIN("leaky_relu", "y = LeakyRelu<alpha = 0.125>(x)", 8);
    GAIN("leaky_relu", "y = LeakyRelu<alpha = 4.0>(x)", 1);
    GAIN("prelu", "param float[2] s = {0.5, 2}; y = PRelu(x, s)", 2);
    GAIN("scale", "param float[2] s = {-0.25, 2}; y = Mul(x, s)", 4);
    GAIN("linear_square", "param float[2,2] W = {0.5, 0, 0, 8}; y = MatMul(x, W)", 2);
    GAIN("linear_tall", "param float[2,3] W = {0, 0.25, 0, 3, 0, 0}; y = MatMul(x, W)", 4);
    /* between 1/e and e, between 1/e and 1/e^2, from 1 on: what is expected, or else the bound */
    GAIN("mul_bounded", "t = Tanh(x); s = Exp(t); y = Mul(x, s)", 1);
    GAIN("mul_bounded", "t = Sigmoid(x); u = Add(t, float[] {1}); v = Neg(u); s = Exp(v); y = Mul(x, s)", exp(1.5));
    GAIN("mul_bounded", "h = Add(in, in); t = Exp(h); s = Add(t, float[] {1}); y = Mul(x, s)", 1);
    GAIN("invertible_conv1x1",
         "k = Reshape(x, int64[4] {4, 2, 1, 1}); param float[2,2,1,1] W = {0.5, 0, 0, 8}; "
         "y = Conv(k, W)",
         2);
    assert_true(isinf(gain_in("tanh", "g(float[4,2] in) => (y) { y = Tanh(in) }")));
#undef GAIN
}

/* --- what must not be found --- */

#define HEAD "g(float[4,6] in) => (z) { param float[6,5] B; param float[3,3] A; param float[6,6] F; x = Sin(in); "
#define TAIL " z = MatMul(y, B) }"
#define HALVES HEAD "x1, x2 = Split<axis = 1, num_outputs = 2>(x); "
#define THIRDS HEAD "param float[2,2] C; x1, x2, x3 = Split<axis = 1, num_outputs = 3>(x); "
#define IMAGES                                                                                                         \
    "g(float[4,3,2,2] in) => (z) { param float[2,5] B; param float[3] b; param float[3] m; param float[3] v = {1, 1, " \
    "1}; "                                                                                                             \
    "param float[3] s = {1, 0, 1}; x = Sin(in); "

static const struct refused {
    const char *rule;          /* must not be found */
    const char *kind, *reason; /* must be said; NULL: nothing */
    const char *text;
} refused[] = {
    {"leaky_relu", NULL, NULL, HEAD "y = LeakyRelu<alpha = 0.0>(x);" TAIL},
    {"leaky_relu", NULL, NULL, HEAD "y = LeakyRelu<alpha = -0.1>(x);" TAIL},
    {"prelu", "prelu_positive_slope", "'s' is -0.25 in entry 2, which is not above zero",
     HEAD "param float[6] s = {1, 1, -0.25, 1, 1, 1}; y = PRelu(x, s);" TAIL},
    {"linear_square", "linear_square", "condition number",
     "g(float[4,3] in) => (z) { param float[3,3] W = {1, 2, 3, 4, 5, 6, 7, 8, 9}; x = Sin(in); z = MatMul(x, W) }"},
    {"linear_square", "linear_square", "condition number",
     "g(float[4,2] in) => (z) { param float[2,2] W = {0, 0, 0, 0}; x = Sin(in); z = MatMul(x, W) }"},
    {"linear_tall", "linear_tall", "condition number",
     "g(float[4,2] in) => (z) { param float[2,3] W = {1, 2, 3, 2, 4, 6}; x = Sin(in); z = MatMul(x, W) }"},
    {"scale", "scale", "'s' comes as near to zero as 0",
     HEAD "param float[6] s = {1, 0, 1, 1, 1, 1}; y = Mul(x, s);" TAIL},
    {"scale", NULL, NULL, HEAD "r = Tanh(x); y = Mul(x, r);" TAIL}, /* no parameter */
    {"batchnorm", "batchnorm", "'s' comes as near to zero as 0",
     IMAGES "y = BatchNormalization<training_mode = 1>(x, s, b, m, v);" TAIL},
    {"batchnorm_eval", "batchnorm_eval", "'s' comes as near to zero as 0",
     IMAGES "y = BatchNormalization(x, s, b, m, v);" TAIL},
    {"add_left", NULL, NULL,
     "g(float[4,1] in, float[4,6] big) => (z, b) { param float[6,5] B; a = Tanh(in); b = Tanh(big); "
     "y = Add(a, b);" TAIL}, /* a is broadcast: b can be freed, a cannot */
    {"permute", NULL, NULL, HEAD "const int64[6] p = {0, 1, 2, 3, 4, 4}; y = Gather<axis = 1>(x, p);" TAIL},
    /* x + f(x): neither operand is known without the other */
    {"additive_coupling", "additive_coupling", "reads the value that would be freed",
     HEAD "f = MatMul(x, F); t = Tanh(f); y = Add(x, t);" TAIL},
    {"additive_coupling", "additive_coupling", "both operands come from the same value",
     HEAD "k = MatMul(x, F); f = Mul(x, x); t = Tanh(f); y = Add(k, t);" TAIL},
    /* the branch of x1 reads both halves */
    {"additive_coupling", "additive_coupling", "",
     HALVES "p = Mul(x1, x2); f = MatMul(p, A); t = Tanh(f); y1 = Add(x1, t); "
            "y = Concat<axis = 1>(y1, x2);" TAIL},
    /* three streams: each is computed from what the other two were; one does not leave as it is */
    {"additive_coupling_streams", "additive_coupling", "",
     THIRDS "f = MatMul(x2, C); h = MatMul(x3, C); p = Mul(f, h); t = Tanh(p); y1 = Add(x1, t); u = Tanh(h); "
            "y2 = Add(x2, u); k = MatMul(x2, C); v = Tanh(k); y3 = Add(x3, v); y = Concat<axis = 1>(y1, y2, y3);" TAIL},
    {"additive_coupling_streams", "additive_coupling", "",
     THIRDS "p = Mul(x2, x3); t = Tanh(p); y1 = Add(x1, t); y3 = Relu(x3); y = Concat<axis = 1>(y1, x2, y3);" TAIL},
    /* the branch reads the first stream too */
    {"additive_coupling_streams", "additive_coupling", "reads the value that would be freed",
     THIRDS "p = Mul(x2, x3); q = Mul(p, x1); t = Tanh(q); y1 = Add(x1, t); y = Concat<axis = 1>(y1, x2, x3);" TAIL},
    /* nothing is left of what was there before */
    {"momentum_residual", "momentum_residual", "'g' comes as near to zero as 0",
     HALVES "param float[3] g = {0.5, 0, 0.5}; a = Mul(x1, g); f = MatMul(x2, A); t = Tanh(f); w = Add(a, t); "
            "y2 = Add(x2, w); y = Concat<axis = 1>(w, y2);" TAIL},
    /* a scale that may be zero: clipped there, or of any sign; one that is below zero somewhere */
    {"affine_coupling", "affine_coupling", "given by Relu, may be as small as 0",
     HALVES "p = MatMul(x2, A); s = Relu(p); h = MatMul(x2, A); m = Mul(x1, s); y1 = Add(m, h); "
            "y = Concat<axis = 1>(y1, x2);" TAIL},
    {"affine_coupling", "affine_coupling", "given by MatMul, may be zero or negative",
     HALVES "s = MatMul(x2, A); r = MatMul(x2, A); h = Tanh(r); m = Mul(x1, s); y1 = Add(m, h); "
            "y = Concat<axis = 1>(y1, x2);" TAIL},
    {"affine_coupling", "affine_coupling", "given by Add, may be as small as -0.5",
     HALVES "p = MatMul(x2, A); l = Tanh(p); s = Add(l, float[] {0.5}); h = Relu(p); m = Mul(x1, s); "
            "y1 = Add(m, h); y = Concat<axis = 1>(y1, x2);" TAIL},
    {"affine_coupling_shifted", "additive_coupling", "",
     HALVES "p = MatMul(x2, A); h = Relu(p); a = Add(x1, h); l = Tanh(a); s = Exp(l); y1 = Mul(a, s); "
            "y2 = Relu(x2); y = Concat<axis = 1>(y1, y2);" TAIL}, /* the scale is not of the other half */
    {"mul_bounded", NULL, NULL, HALVES "p = Relu(x2); y1 = Mul(x1, p); y = Concat<axis = 1>(y1, x2);" TAIL},
    /* one number per row is no half of anything */
    {"additive_coupling", "additive_coupling", "one number per row",
     "g(float[4] a, float[4,6] in) => (z, w) { param float[6,6] F; x = LeakyRelu<alpha = 0.9>(in); "
     "s = ReduceSum<keepdims = 0>(x, int64[1] {1}); z = Add(a, s); w = MatMul(x, F) }"},
    /* the mean is taken off: the value itself is gone, though it is known from elsewhere */
    {"subtractive_coupling", "additive_coupling", "both operands come from the same value",
     "g(float[4,6] in) => (z, w) { x = LeakyRelu<alpha = 0.9>(in); w = LeakyRelu<alpha = 0.8>(x); "
     "m = ReduceMean<axes = [1]>(x); z = Sub(x, m) }"},
    /* numbers per feature, not per channel; a channel's scale is zero */
    {"actnorm", NULL, NULL,
     "g(float[4,3,6] in) => (z) { param float[6,5] B; param float[6] b; param float[6] s = {1, 2, 3, 4, 5, 6}; "
     "x = Sin(in); a = Add(x, b); y = Mul(a, s);" TAIL},
    {"actnorm", "actnorm", "'q' comes as near to zero as 0",
     IMAGES "const int64[3] k = {3, 1, 1}; q = Reshape(s, k); c = Reshape(b, k); a = Add(x, c); y = Mul(a, q);" TAIL},
    {"invertible_conv1x1", NULL, NULL,
     "g(float[4,2,3,3] in) => (z) { param float[2,2,1,1] W = {1, 0, 0, 1}; x = Sin(in); "
     "z = Conv<strides = [2, 2], pads = [1, 1, 1, 1]>(x, W) }"}, /* of the same shape, but of other places */
    {"invertible_conv1x1", "invertible_conv1x1", "condition number",
     "g(float[4,2,3,3] in) => (z) { param float[2,2,1,1] W = {1, 2, 2, 4}; x = Sin(in); z = Conv(x, W) }"},
    /* too short, along another direction than it measures, of another value */
    {"householder", "householder", "done twice",
     "g(float[4,3] in) => (z) { param float[3,1] u = {1, 0, 0}; param float[1,3] v = {1, 0, 0}; x = Sin(in); "
     "d = MatMul(x, u); o = MatMul(d, v); z = Sub(x, o) }"},
    {"householder_outer", "householder", "not at right angles",
     "g(float[4,3] in) => (z) { param float[3,1] u = {1, 0, 0}; param float[1,3] v = {2, 1, 0}; x = Sin(in); "
     "d = MatMul(x, u); o = Mul(d, v); z = Sub(x, o) }"},
    {"householder_outer", NULL, NULL, /* a column: every row of x takes another multiple */
     "g(float[4,3,3] in) => (z) { param float[3,1] u = {1, 2, 2}; "
     "param float[3,1] v = {0.2222222, 0.4444444, 0.4444444}; x = Sin(in); d = MatMul(x, u); "
     "o = Mul(d, v); z = Sub(x, o) }"},
    {"householder", NULL, NULL,
     "g(float[4,3] in) => (z) { param float[3,1] u = {1, 0, 0}; param float[1,3] v = {2, 0, 0}; x = Sin(in); "
     "k = Sin(x); d = MatMul(k, u); o = MatMul(d, v); z = Sub(x, o) }"},
    {"squeeze", NULL, NULL,
     "g(float[2,3,4,4] in) => (z) { param float[2,5] B; const int64[6] k = {2, 3, 2, 2, 2, 2}; "
     "const int64[4] q = {2, 12, 2, 2}; x = Sin(in); v = Reshape(x, k); "
     "t = Transpose<perm = [0, 1, 2, 4, 3, 5]>(v); y = Reshape(t, q);" TAIL}, /* places become channels */
    /* x2 leaves through a Relu only */
    {"additive_coupling", "additive_coupling", "does not leave the block",
     HALVES "f = MatMul(x2, A); t = Tanh(f); y1 = Add(x1, t); y2 = Relu(x2); y = Concat<axis = 1>(y1, y2);" TAIL},
};

static void test_refused(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
        const struct refused *c = &refused[i];
        feeds f;
        inv_model m = {.ctx = ctx, .path = "text", .graph = parse(c->text)};
        make_feeds(&m, &f);
        inv_session *s = session(&m, INV_MEMORY_INVERT, &f, false);
        const inv_graph *g = s->program->plan[INV_PLAN_MAIN].base;
        if (block_of(g, c->rule)) fail_msg("%s was found in\n%s", c->rule, c->text);
        for (size_t e = 0; e < g->matches->edge.n; e++) {
            const inv_edge *edge = &g->matches->edge.at[e];
            bool left = strcmp(c->rule, "add_left") == 0 && inv_val(g, edge->frees)->shape.dim[1] == 6;
            if (strcmp(edge->rule->name, c->rule) == 0 && !left) fail_msg("%s has an edge in\n%s", c->rule, c->text);
        }
        if (c->kind && !refusal_of(g, c->kind, c->reason)) {
            for (size_t k = 0; k < g->matches->refusal.n; k++)
                print_error("%s: %s\n", g->matches->refusal.at[k].kind, g->matches->refusal.at[k].why.reason);
            fail_msg("%s: \"%s\" is not said of\n%s", c->kind, c->reason, c->text);
        }
        double *grad;
        inv_result r;
        (void)gradients(s, &f, &r, &grad);
        free(grad);
        inv_session_destroy(s);
        drop_feeds(&f);
        inv_graph_destroy(m.graph);
    }
}

/* --- rules of several nodes --- */

/* With a region, and both operators solved in one step: cheaper by an edge, so recovery takes it. */
static void test_rule_with_region(void **state)
{
    (void)state;
    const char *text = HALVES "p = MatMul(x2, A); l = Tanh(p); s = Exp(l); t = Relu(p); m = Mul(x1, s); "
                              "y1 = Add(m, t); y = Concat<axis = 1>(y1, x2);" TAIL;
    FILE *file = fopen("one_step.rules", "w");
    assert_non_null(file);
    fprintf(file,
            "rule scaled_in_one_step\n  kind \"\"\n  priority -1\n  match s, t = region(x2); m = Mul(x1, s); "
            "y1 = Add(m, t)\n  solve d = Sub(y1, t); x1 = Div(d, s)\n  frees x1\n  when same_shape(x1, y1); "
            "recoverable(x2); positive(s)\n  gain max_inv(s)\n  case %s\n",
            text);
    assert_int_equal(fclose(file), 0);
    if (inv_context_load_plugin(ctx, "one_step.rules") != INV_OK) fail_msg("%s", inv_context_message(ctx));
    suite("one_step.rules");
    feeds f;
    inv_model m = {.ctx = ctx, .path = "text", .graph = parse(text)};
    make_feeds(&m, &f);
    inv_session *s = session(&m, INV_MEMORY_INVERT, &f, false);
    const inv_plan *p = &s->program->plan[INV_PLAN_MAIN];
    size_t edges = 0; /* the plan may take two local inverses, which cost the same */
    for (size_t i = 0; i < p->base->matches->edge.n; i++)
        edges += strcmp(p->base->matches->edge.at[i].rule->name, "scaled_in_one_step") == 0;
    assert_int_equal(edges, 1);
    assert_non_null(block_of(p->base, "affine_coupling")); /* the name is that of the higher priority */
    inv_session_destroy(s);
    drop_feeds(&f);
    assert_int_equal(remove("one_step.rules"), 0);
    inv_graph_destroy(m.graph);
}

/* --- repetitions --- */

/* A batch norm repeated on one input is computed once, but updates its statistics twice. */
static void test_repeated_batchnorm(void **state)
{
    (void)state;
    const char *text = "g(float[8,3] in) => (z) { param float[3] s = {1, 1, 1}; param float[3] b; "
                       "param float[3] m = {1, 2, 3}; param float[3] v = {1, 1, 1}; "
                       "y, m1, v1 = BatchNormalization<training_mode = 1, momentum = 0.5>(in, s, b, m, v); "
                       "w, m2, v2 = BatchNormalization<training_mode = 1, momentum = 0.5>(in, s, b, m, v); "
                       "z = Add(y, w) }";
    feeds f;
    inv_model m = {.ctx = ctx, .path = "text", .graph = parse(text)};
    make_feeds(&m, &f);
    inv_session *s = session(&m, INV_MEMORY_STORE, &f, false);
    double *grad;
    inv_result r;
    (void)gradients(s, &f, &r, &grad);
    const void *data;
    inv_dtype dt;
    int rank;
    int64_t dims[INV_MAX_RANK];
    if (inv_session_get(s, INV_GET_STATE, "m", &data, &dt, &rank, dims) != INV_OK)
        fail_msg("%s", inv_context_message(ctx));
    for (size_t c = 0; c < 3; c++) {
        double mean = 0;
        for (size_t i = 0; i < 8; i++) mean += (double)f.data[0][3 * i + c] / 8;
        assert_true(fabs(inv_elem_double(data, dt, c) - (0.25 * (double)(c + 1) + 0.75 * mean)) < 1e-5);
    }
    free(grad);
    inv_session_destroy(s);
    drop_feeds(&f);
    inv_graph_destroy(m.graph);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_cases_of_every_rule),
        cmocka_unit_test(test_gains),
        cmocka_unit_test(test_refused),
        cmocka_unit_test(test_repeated_batchnorm),
        cmocka_unit_test(test_rule_with_region), /* last: it adds a rule */
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
