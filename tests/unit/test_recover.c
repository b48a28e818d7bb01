/* SPDX-License-Identifier: Apache-2.0
 * Recovery on graphs written as text: how often a branch is evaluated, how the peak depends on depth, and that values
 * with other readers come through. Fails if a clone is made twice, if a freed value is still read (device `checked`),
 * or if a mode changes the gradients. */
#include "recover_run.h"

/* y = couplings(x), each half 4 of 8 features, F and G = linear, tanh, linear. */
static char *couplings(int blocks, const char *tail)
{
    size_t cap = 1024 + (size_t)blocks * 1024;
    char *s = malloc(cap);
    size_t n = 0;
#define ADD(...) n += (size_t)snprintf(s + n, cap - n, __VA_ARGS__)
    ADD("g(float[64,8] x) => (y) {\n");
    for (int i = 0; i < 2 * blocks; i++) ADD("param float[4,32] a%d\nparam float[32,4] b%d\n", i, i);
    ADD("param float[8,8] stem\nz = MatMul(x, stem)\nu0, v0 = Split<axis = 1, num_outputs = 2>(z)\n");
    for (int i = 0; i < blocks; i++) {
        ADD("p%d = MatMul(v%d, a%d)\nq%d = Tanh(p%d)\nr%d = MatMul(q%d, b%d)\nu%d = Add(u%d, r%d)\n", i, i, 2 * i, i, i,
            i, i, 2 * i, i + 1, i, i);
        ADD("l%d = MatMul(u%d, a%d)\nm%d = Tanh(l%d)\nn%d = MatMul(m%d, b%d)\nv%d = Add(v%d, n%d)\n", i, i + 1,
            2 * i + 1, i, i, i, i, 2 * i + 1, i + 1, i, i);
    }
    ADD("w = Concat<axis = 1>(u%d, v%d)\n%s\n}\n", blocks, blocks, tail);
#undef ADD
    return s;
}

/* Every mode on device `checked` gives the gradients of store. */
static void modes_agree(const char *text)
{
    static const inv_memory modes[] = {INV_MEMORY_RECOMPUTE, INV_MEMORY_INVERT, INV_MEMORY_AUTO};
    inv_graph *g = parse(text);
    outcome store = run(g, INV_MEMORY_STORE, "checked", NULL);
    for (int m = 0; m < 3; m++) {
        outcome o = run(g, modes[m], "checked", NULL);
        assert_int_equal(o.fallbacks, 0);
        if (m == 0) assert_memory_equal(o.grad, store.grad, store.ngrad * sizeof *store.grad);
        assert_true(distance(&store, &o) < 1e-4);
        forget(&o);
    }
    forget(&store);
    inv_graph_destroy(g);
}

/* Rows of p: two halves, a slice and a copy cut across; what stands in p is not written again. */
static void test_parts_of_values(void **state)
{
    (void)state;
    modes_agree("g(float[64,8] x) => (y) {\nparam float[8,8] v\nparam float[8,8] w\n"
                "m = MatMul(x, v)\np = Tanh(m)\na, b = Split<axis = 0, num_outputs = 2>(p)\n"
                "e = Sigmoid(a)\nf = MatMul(b, w)\ni = Concat<axis = 0>(f, e)\n"
                "c, d = Split<axis = 1, num_outputs = 2>(p)\nh = Concat<axis = 1>(d, c)\ny = Add(h, i)\n}\n");
}

static void test_branches_run_twice(void **state)
{
    (void)state;
    char *text = couplings(16, "y = Mul(w, w)");
    inv_graph *g = parse(text);
    outcome o = run(g, INV_MEMORY_INVERT, "cpu", NULL);
    assert_true(o.nclone <= 32); /* 32 branches, each Tanh cloned at most once */
    assert_true(o.nclone >= 28);
    assert_true(o.ninverse >= 28 && o.ninverse <= 32);
    assert_true(o.flops <= o.store_flops * (4.0 / 3) * 1.01);
    forget(&o);
    inv_graph_destroy(g);
    free(text);
}

static void test_peak_does_not_grow(void **state)
{
    (void)state;
    size_t peak[3];
    const int depth[3] = {4, 16, 64};
    for (int i = 0; i < 3; i++) {
        char *text = couplings(depth[i] / 2, "y = Mul(w, w)");
        inv_graph *g = parse(text);
        outcome o = run(g, INV_MEMORY_INVERT, "cpu", NULL);
        peak[i] = o.activation_peak;
        assert_true(o.flops <= o.store_flops * (4.0 / 3) * 1.01);
        forget(&o);
        inv_graph_destroy(g);
        free(text);
    }
    assert_true(fabs((double)peak[1] - (double)peak[2]) <= 0.01 * (double)peak[2]);
    assert_true((double)peak[0] <= 1.01 * (double)peak[2]);
}

/* Affine couplings with scales between 1/e and e, the state shuffled after each as `how` says. */
static char *shuffled(int blocks, const char *how)
{
    size_t cap = 1024 + (size_t)blocks * 1024;
    char *s = malloc(cap);
    size_t n = 0;
#define ADD(...) n += (size_t)snprintf(s + n, cap - n, __VA_ARGS__)
    ADD("g(float[64,8] x) => (y) {\n");
    for (int i = 0; i < blocks; i++) ADD("param float[4,32] a%d\nparam float[32,8] b%d\n", i, i);
    ADD("param float[8,8] stem\nw0 = MatMul(x, stem)\n");
    for (int i = 0; i < blocks; i++) {
        ADD(how, i, i, i, i);
        ADD("p%d = MatMul(v%d, a%d)\nq%d = Tanh(p%d)\nr%d = MatMul(q%d, b%d)\n", i, i, i, i, i, i, i, i);
        ADD("k%d, h%d = Split<axis = 1, num_outputs = 2>(r%d)\nl%d = Tanh(k%d)\ns%d = Exp(l%d)\n", i, i, i, i, i, i, i);
        ADD("m%d = Mul(u%d, s%d)\nn%d = Add(m%d, h%d)\nw%d = Concat<axis = 1>(n%d, v%d)\n", i, i, i, i, i, i, i + 1, i,
            i);
    }
    ADD("y = Mul(w%d, w%d)\n}\n", blocks, blocks);
#undef ADD
    return s;
}

/* The state can be put together from what is taken of it, so that depth costs nothing: a permutation as two gathers,
 * and every other entry; nor do expected gains add up to a refusal. */
static void test_shuffled_state(void **state)
{
    (void)state;
    static const char *const forms[] = {
        "u%d = Gather<axis = 1>(w%d, int64[4] {6, 1, 0, 3})\nv%d = Gather<axis = 1>(w%d, int64[4] {5, 2, 7, 4})\n",
        "u%d = Slice(w%d, int64[1] {0}, int64[1] {8}, int64[1] {1}, int64[1] {2})\n"
        "v%d = Slice(w%d, int64[1] {1}, int64[1] {8}, int64[1] {1}, int64[1] {2})\n",
    };
    for (size_t i = 0; i < sizeof forms / sizeof *forms; i++) {
        size_t peak[2];
        char *text = shuffled(3, forms[i]);
        modes_agree(text);
        free(text);
        for (int deep = 0; deep < 2; deep++) {
            text = shuffled(deep ? 32 : 8, forms[i]);
            inv_graph *g = parse(text);
            outcome o = run(g, INV_MEMORY_INVERT, "cpu", NULL);
            assert_int_equal(o.fallbacks, 0);
            peak[deep] = o.activation_peak;
            forget(&o);
            inv_graph_destroy(g);
            free(text);
        }
        assert_true(fabs((double)peak[1] - (double)peak[0]) <= 0.01 * (double)peak[0]);
    }
}

static void test_values_with_other_readers(void **state)
{
    (void)state;
    char *text = couplings(3, "y = Add(w, z)"); /* x + f(x) around the blocks */
    modes_agree(text);
    free(text);
    text = couplings(3, "k = Reshape<allowzero = 0>(z, sh)\nkk = Reshape(k, sh2)\ny = Mul(w, kk)"); /* a view of it */
    char *full = malloc(strlen(text) + 128);
    sprintf(full, "%s", text);
    char *brace = strchr(full, '{');
    char *rest = strdup(brace + 1);
    sprintf(brace + 1, "\nconst int64[3] sh = {64, 2, 4}\nconst int64[2] sh2 = {64, 8}\n%s", rest);
    modes_agree(full);
    free(rest);
    free(full);
    free(text);
}

static void test_value_that_is_an_output(void **state)
{
    (void)state;
    char *text = couplings(3, "y = Mul(w, w)");
    char *full = malloc(strlen(text) + 64), *at = strstr(text, "=> (y)");
    sprintf(full, "%.*s=> (y, u1, v2)%s", (int)(at - text), text, at + strlen("=> (y)"));
    modes_agree(full);
    free(full);
    free(text);
}

static void test_block_used_twice(void **state)
{
    (void)state;
    modes_agree(
        "g(float[64,8] x) => (y) {\n"
        "param float[4,4] a\nparam float[4,4] b\nparam float[8,8] stem\nz = MatMul(x, stem)\n"
        "u0, v0 = Split<axis = 1, num_outputs = 2>(z)\n"
        "p0 = MatMul(v0, a)\nq0 = Tanh(p0)\nu1 = Add(u0, q0)\nl0 = MatMul(u1, b)\nm0 = Tanh(l0)\nv1 = Add(v0, m0)\n"
        "p1 = MatMul(v1, a)\nq1 = Tanh(p1)\nu2 = Add(u1, q1)\nl1 = MatMul(u2, b)\nm1 = Tanh(l1)\nv2 = Add(v1, m1)\n"
        "w = Concat<axis = 1>(u2, v2)\ny = Mul(w, w)\n}\n");
}

static void test_dropout_in_a_coupling(void **state)
{
    (void)state;
    modes_agree("g(float[64,8] x) => (y) {\n"
                "param float[4,4] a\nparam float[4,4] b\nparam float[8,8] stem\nz = MatMul(x, stem)\n"
                "const float[] half = {0.5}\nconst bool[] yes = {1}\n"
                "u0, v0 = Split<axis = 1, num_outputs = 2>(z)\n"
                "p0 = MatMul(v0, a)\nq0 = Dropout(p0, half, yes)\nu1 = Add(u0, q0)\n"
                "l0 = MatMul(u1, b)\nm0 = Dropout(l0, half, yes)\nv1 = Add(v0, m0)\n"
                "w = Concat<axis = 1>(u1, v1)\ny = Mul(w, w)\n}\n");
}

/* Zeros of a Relu come back as 1e-8 of either sign when they are rebuilt with rounding, and its gradient tells the
 * branch by them: through a linear map, and through exact inverses of what was rebuilt (Neg, Split). */
static void test_relu_outputs_are_not_rounded(void **state)
{
    (void)state;
    static const char *const texts[] = {
        "g(float[64,8] x) => (y) {\nparam float[8,6] s\nparam float[6,9] a\nparam float[9,8] b\n"
        "z = MatMul(x, s)\nr = Relu(z)\np = MatMul(r, a)\nq = Sin(p)\ny = MatMul(q, b)\n}\n",
        "g(float[64,8] x) => (y) {\nparam float[8,6] s\nparam float[3,9] a\nparam float[3,9] c\nparam float[9,8] b\n"
        "z = MatMul(x, s)\nr = Relu(z)\nm = Neg(r)\nu, v = Split<axis = 1, num_outputs = 2>(m)\n"
        "p = MatMul(u, a)\nk = MatMul(v, c)\nl = Sin(k)\nq = Mul(p, l)\ny = MatMul(q, b)\n}\n",
        "g(float[64,8] x) => (y) {\nparam float[8,6] s\nparam float[6,9] a\nparam float[9,8] b\n"
        "z = MatMul(x, s)\nr = LeakyRelu<alpha = 1e-8>(z)\np = MatMul(r, a)\nq = Sin(p)\ny = MatMul(q, b)\n}\n",
    };
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) modes_agree(texts[i]);
}

/* Where the largest of a row is, is not looked for by equality in what is rebuilt with rounding: branches of couplings
 * that read the extremes of the half that is solved for. */
static void test_extremes_are_not_looked_for_again(void **state)
{
    enum { BLOCKS = 6, CAP = 8192 };
    (void)state;
    char text[CAP];
    size_t n = 0;
#define ADD(...) n += (size_t)snprintf(text + n, CAP - n, __VA_ARGS__)
    ADD("g(float[64,8] x) => (y) {\nparam float[8,8] stem\n");
    for (int i = 0; i < BLOCKS; i++) ADD("param float[4,32] a%d\nparam float[32,4] b%d\n", i, i);
    ADD("z = MatMul(x, stem)\nu0, v0 = Split<axis = 1, num_outputs = 2>(z)\n");
    for (int i = 0; i < BLOCKS; i++) {
        ADD("m%d = Reduce%s<axes = [1], keepdims = 1>(v%d)\np%d = MatMul(v%d, a%d)\nq%d = Tanh(p%d)\n", i,
            i % 2 ? "Max" : "Min", i, i, i, i, i, i);
        ADD("k%d = Mul(q%d, m%d)\nr%d = MatMul(k%d, b%d)\nv%d = Add(u%d, r%d)\nu%d = Identity(v%d)\n", i, i, i, i, i, i,
            i + 1, i, i, i + 1, i);
    }
    ADD("w = Concat<axis = 1>(u%d, v%d)\ny = Mul(w, w)\n}\n", BLOCKS, BLOCKS);
#undef ADD
    inv_graph *g = parse(text);
    static const char *const extremes[BLOCKS] = {"m0", "m1", "m2", "m3", "m4", "m5"};
    const inv_session_options kept = {.size = sizeof kept, .keep = extremes, .nkeep = BLOCKS};
    outcome store = run(g, INV_MEMORY_STORE, "checked", NULL);
    for (int keep = 0; keep < 2; keep++) {
        outcome o = run(g, INV_MEMORY_INVERT, "checked", keep ? &kept : NULL);
        assert_true(o.ninverse >= BLOCKS / 2);
        assert_true(distance(&store, &o) < 1e-4);
        forget(&o);
    }
    forget(&store);
    inv_graph_destroy(g);
}

/* Gradients that are not finite are not committed, and the node is named. */
static void test_gradients_that_are_not_finite(void **state)
{
    (void)state;
    inv_graph *g = parse("g(float[64,8] x) => (y) {\nparam float[8,8] s\nz = MatMul(x, s)\nc = Cos(z)\n"
                         "r = Sub(float[] {1}, c)\n"
                         "y = Sqrt(r)\n}\n");
    inv_model model = {.ctx = ctx, .path = "text", .graph = g};
    float x[64 * 8] = {0}, t[64 * 8] = {0};
    for (int i = 8; i < 64 * 8; i++) x[i] = (float)sin(i); /* a row of zeros, where the root has no derivative */
    int64_t dims[2] = {64, 8};
    inv_array in = {.name = "x", .dtype = INV_F32, .rank = 2, .dims = dims, .data = x}, target = in;
    target.data = t;
    inv_session_options opt = {.size = sizeof opt,
                               .purpose = INV_FOR_TRAIN,
                               .inputs = &in,
                               .ninputs = 1,
                               .target = &target,
                               .loss = INV_LOSS_MSE,
                               .optimizer = INV_OPT_SGD};
    inv_session *s = NULL;
    inv_result r;
    assert_int_equal(inv_session_create(&model, &opt, &s), INV_OK);
    assert_int_equal(inv_session_step(s, &in, 1, &target, 0.1, &r), INV_E_NUMERIC);
    assert_true(isfinite(r.loss));
    assert_non_null(strstr(inv_context_message(ctx), "gradients are not"));
    assert_non_null(strstr(r.bad_node, "Sqrt"));
    assert_int_equal(inv_session_steps(s), 0);
    inv_session_destroy(s);
    inv_graph_destroy(g);
}

/* Branches that magnify: the guard refuses, values are kept, the step comes out right, and no more is allocated than
 * planned. */
static void test_fallback_keeps_the_promise(void **state)
{
    (void)state;
    char *text = couplings(8, "y = Mul(w, w)");
    inv_graph *g = parse(text);
    for (size_t i = 0; i < g->inits.n; i++) {
        const inv_data *d = &inv_val(g, g->inits.at[i])->data;
        float *w = NULL;
        memcpy(&w, &d->bytes, sizeof w);
        for (size_t k = 0; k < d->nbytes / sizeof *w; k++) w[k] *= 8;
    }
    inv_session_options opt = {.size = sizeof opt, .max_drift = 1e-1};
    outcome store = run(g, INV_MEMORY_STORE, "cpu", NULL), unguarded = run(g, INV_MEMORY_INVERT, "cpu", &opt);
    assert_true(unguarded.drift > 1e-4 && unguarded.fallbacks == 0);
    opt.max_drift = unguarded.drift / 4;
    outcome guarded = run(g, INV_MEMORY_INVERT, "checked", &opt);
    const inv_guarded_row loosest = {.kind = INV_GUARD_DERIVED}; /* there are no signs here */
    assert_true(guarded.fallbacks > 0 && guarded.drift <= inv_guard_limit(&loosest, opt.max_drift));
    assert_true(guarded.fallbacks <= 2); /* what stands beside a refused value is kept with it */
    assert_true(guarded.allocated <= guarded.planned);
    assert_true(distance(&store, &guarded) < distance(&store, &unguarded));
    forget(&store);
    forget(&unguarded);
    forget(&guarded);
    inv_graph_destroy(g);
    free(text);
}

/* Every name that a session lists can be read: also of an initializer that nothing reads at run time, and of those
 * gradients only that an optimizer leaves. */
static void test_names_can_be_read(void **state)
{
    (void)state;
    static const char text[] = "g(float[2,3] x) => (y, z) { "
                               "param float[3,3] W; param float[4] unused; param float half; "
                               "h = Mul(x, half); z = MatMul(h, W); s = Mul(z, z); y = ReduceSum<keepdims = 0>(s) }";
    inv_graph *g = parse(text);
    inv_model model = {.ctx = ctx, .path = "text", .graph = g};
    const float data[6] = {1, 2, 3, 4, 5, 6};
    const int64_t dims[2] = {2, 3};
    const inv_array in = {.name = "x", .dtype = INV_F32, .rank = 2, .dims = dims, .data = data};
    for (int k = 0; k < 3; k++) { /* gradients, an optimizer, a plan only */
        const inv_session_options opt = {.size = sizeof opt,
                                         .purpose = INV_FOR_TRAIN,
                                         .inputs = &in,
                                         .ninputs = 1,
                                         .loss = INV_LOSS_OUTPUT,
                                         .loss_outputs = (const char *const[]){"y"},
                                         .nloss_outputs = 1,
                                         .plan_only = k == 2,
                                         .device = k == 1 ? "sim" : "cpu",
                                         .optimizer = k == 1 ? INV_OPT_SGD : INV_OPT_NONE};
        inv_session *s = NULL;
        inv_result res;
        size_t read[5] = {0};
        if (inv_session_create(&model, &opt, &s) != INV_OK) fail_msg("%s", inv_context_message(ctx));
        if (k == 0) assert_int_equal(inv_session_grad(s, &in, 1, NULL, &res), INV_OK);
        if (k == 1) assert_int_equal(inv_session_step(s, &in, 1, NULL, 0.1, &res), INV_OK);
        for (int what = INV_GET_OUTPUT; what <= INV_GET_STATE; what++)
            for (const char *name; (name = inv_session_name(s, (inv_what)what, read[what])); read[what]++) {
                const void *got;
                inv_dtype dt;
                int rank;
                int64_t d[8];
                if (inv_session_get(s, (inv_what)what, name, &got, &dt, &rank, d) != INV_OK)
                    fail_msg("%s: %s", name, inv_context_message(ctx));
                if (strcmp(name, "unused") == 0) {
                    assert_true(rank == 1 && d[0] == 4 && dt == INV_F32);
                    assert_memory_equal(got, inv_val(g, g->inits.at[1])->data.bytes, 16);
                }
            }
        assert_int_equal(read[INV_GET_PARAM], k < 2 ? 3 : 0);
        assert_int_equal(read[INV_GET_GRAD], k == 0 ? 1 : 0);
        assert_int_equal(read[INV_GET_OUTPUT], 2 - k); /* an optimizer lets go what it need not keep */
        inv_session_destroy(s);
    }
    inv_graph_destroy(g);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_parts_of_values),
        cmocka_unit_test(test_branches_run_twice),
        cmocka_unit_test(test_peak_does_not_grow),
        cmocka_unit_test(test_values_with_other_readers),
        cmocka_unit_test(test_value_that_is_an_output),
        cmocka_unit_test(test_block_used_twice),
        cmocka_unit_test(test_dropout_in_a_coupling),
        cmocka_unit_test(test_relu_outputs_are_not_rounded),
        cmocka_unit_test(test_extremes_are_not_looked_for_again),
        cmocka_unit_test(test_gradients_that_are_not_finite),
        cmocka_unit_test(test_fallback_keeps_the_promise),
        cmocka_unit_test(test_shuffled_state),
        cmocka_unit_test(test_names_can_be_read),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
