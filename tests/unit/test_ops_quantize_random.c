/* SPDX-License-Identifier: Apache-2.0
 * Quantized training (what passes gradients and what does not), exact products of integers; random numbers: their
 * functions against libm's, their distributions, and what they depend on; what `invonnx ops` says of rows; gradients
 * where a function has no derivative; condition numbers of what is very large or small. */
#include "interp.h"
#include "ops/linear/linear_solve.h"
#include "ops/signal/random.h"
#include "passes/pipeline.h"
#include "with_context.h"

static void load(interp *it, const char *text, inv_dtype real)
{
    inv_graph *g;
    if (interp_parse(ctx, text, real, &g) != INV_OK || inv_pass_lower(g) != INV_OK)
        fail_msg("%s: %s", text, inv_context_message(ctx));
    interp_init(it, g);
}

static void run(interp *it)
{
    if (interp_run(it) != INV_OK) fail_msg("%s", inv_context_message(ctx));
}

static int count(const inv_graph *g, const char *op)
{
    int n = 0;
    for (size_t i = 0; i < g->order.n; i++) n += strcmp(inv_nod(g, g->order.at[i])->op_type, op) == 0;
    return n;
}

/* --- ties, bounds, zeros --- */

/* clang-format off */
/* x, and gradients of y where those of y are 1, 2, 3, ... (docs/numerics.md). */
static const struct {
    const char *text;
    int nx;
    double x[8], want[8];
} kinks[] = {
    {"y = Relu(float[4] x)", 4, {-1, 0, 1, 2}, {0, 0, 3, 4}},
    {"y = LeakyRelu<alpha = 0.5>(float[3] x)", 3, {-1, 0, 1}, {0.5, 1, 3}},
    {"y = LeakyRelu<alpha = -0.5>(float[3] x)", 3, {-1, 0, 1}, {-0.5, -1, 3}},
    {"y = ThresholdedRelu<alpha = 2.0>(float[4] x)", 4, {1, 2, 3, -4}, {0, 0, 3, 0}},
    {"y = Abs(float[3] x)", 3, {-2, 0, 3}, {-1, 0, 3}},
    {"y = Clip<min = -1.0, max = 2.0>(float[5] x)", 5, {-2, -1, 0, 2, 3}, {0, 0, 3, 0, 0}},
    {"y = Saturate<min = -1.0, max = 2.0>(float[5] x)", 5, {-2, -1, 0, 2, 3}, {0, 2, 3, 4, 0}},
    {"y = HardSigmoid<alpha = 0.5, beta = 0.5>(float[5] x)", 5, {-2, -1, 0, 1, 2}, {0, 0, 1.5, 0, 0}},
    {"y = Shrink<lambd = 1.0>(float[5] x)", 5, {-2, -1, 0, 1, 2}, {1, 0, 0, 0, 5}},
    {"y = ai.invonnx.ir.Max(float[3] x, float[3]{1,1,1})", 3, {0, 1, 2}, {0, 1, 3}},
    {"y = ai.invonnx.ir.Min(float[3] x, float[3]{1,1,1})", 3, {0, 1, 2}, {1, 1, 0}},
    {"y = ReduceMax<axes = [1], keepdims = 0>(float[2,4] x)", 8, {1, 3, 3, 2, 5, 5, 5, 5},
     {0, 0.5, 0.5, 0, 0.5, 0.5, 0.5, 0.5}},
    {"y = ReduceMin<axes = [0]>(float[4,2] x)", 8, {1, 3, 3, 2, 1, 5, 5, 2}, {0.5, 0, 0, 1, 0.5, 0, 0, 1}},
    {"y = ReduceProd<axes = [1]>(float[4,2] x)", 8, {3, 5, 0, 7, 0, 0, 2, 0}, {5, 3, 14, 0, 0, 0, 0, 8}},
    {"y = ReduceProd(float[4] x)", 4, {2, 0, -3, 4}, {0, -24, 0, 0}},
    /* what does not get through is 0, be it infinite */
    {"r = Relu(float[3] x)\ny = Sqrt(r)", 3, {-1, 0, 4}, {0, 0, 0.75}},
    {"z = Constant<value_floats = [0.0, 0.0, 0.0]>()\nk = Greater(float[3] x, z)\nr = Where(k, x, z)\n"
     "y = Sqrt(r)", 3, {-1, 0, 4}, {0, 0, 0.75}},
};
/* clang-format on */

static void where_there_is_no_derivative(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof kinks / sizeof *kinks; i++) {
        interp it;
        inv_id grad[4], seed[4];
        inv_graph *g;
        if (interp_parse(ctx, kinks[i].text, INV_F32, &g) != INV_OK)
            fail_msg("%s: %s", kinks[i].text, inv_context_message(ctx));
        g->fold = true;
        inv_status done = inv_pass_lower(g);
        g->fold = false;
        if (done == INV_OK) done = interp_grad(g, grad, seed);
        if (done != INV_OK) fail_msg("%s: %s", kinks[i].text, inv_context_message(ctx));
        interp_init(&it, g);
        for (int k = 0; k < kinks[i].nx; k++) interp_put(&it, g->inputs.at[0], k, kinks[i].x[k]);
        for (int k = 0; k < inv_shape_nelem(&inv_val(g, seed[0])->shape); k++) interp_put(&it, seed[0], k, k + 1);
        run(&it);
        for (int k = 0; k < kinks[i].nx; k++)
            if (!(fabs(interp_get(&it, grad[0], k) - kinks[i].want[k]) < 1e-6))
                fail_msg("%s: gradient %d is %g, not %g", kinks[i].text, k, interp_get(&it, grad[0], k),
                         kinks[i].want[k]);
        interp_fini(&it);
    }
}

/* --- quantization --- */

/* int8, scale 0.5, zero point 3: q = round(x / 0.5) + 3 in [-128, 127]. */
static void fake_quantization(void **state)
{
    static const double x[] = {0.25, 0.75, -0.6, 61.9, 62.1, 62.3, -65.5, -65.8, 1000};
    interp it;
    inv_id grad[4], seed[4];
    double want_scale = 0;
    (void)state;
    inv_graph *g;
    assert_int_equal(interp_parse(ctx, "q = QuantizeLinear(float[9] x, float s, int8 z)\ny = DequantizeLinear(q, s, z)",
                                  INV_F64, &g),
                     INV_OK);
    assert_int_equal(inv_pass_lower(g), INV_OK);
    assert_int_equal(count(g, "Cast"), 2); /* of the zero points alone */
    assert_int_equal(interp_grad(g, grad, seed), INV_OK);
    interp_init(&it, g);
    for (int i = 0; i < 9; i++) {
        interp_put(&it, g->inputs.at[0], i, x[i]);
        interp_put(&it, seed[0], i, i + 1);
    }
    interp_put(&it, g->inputs.at[1], 0, 0.5);
    interp_put(&it, g->inputs.at[2], 0, 3);
    run(&it);
    for (int i = 0; i < 9; i++) {
        const double free = rint(x[i] / 0.5) + 3, q = fmin(fmax(free, -128), 127);
        const bool in = free == q;
        assert_true(interp_get(&it, g->outputs.at[0], i) == (q - 3) * 0.5);
        assert_true(interp_get(&it, grad[0], i) == (in ? i + 1 : 0));
        want_scale += (i + 1) * (in ? rint(x[i] / 0.5) - x[i] / 0.5 : q - 3);
    }
    assert_true(interp_get(&it, g->outputs.at[0], 3) == 62); /* 127 itself is in range */
    assert_true(interp_get(&it, grad[0], 3) == 4);
    assert_true(interp_get(&it, grad[0], 5) == 0);
    assert_true(fabs(interp_get(&it, grad[1], 0) - want_scale) < 1e-9);
    interp_fini(&it);
}

static void integer_products_are_exact(void **state)
{
    interp it;
    (void)state;
    load(&it, "y = MatMulInteger(uint8[2,5000] a, int8[5000,1] b)", INV_F32);
    int64_t want = 0;
    for (int i = 0; i < 5000; i++) {
        ((uint8_t *)interp_data(&it, it.g->inputs.at[0]))[i] = 255;
        ((uint8_t *)interp_data(&it, it.g->inputs.at[0]))[5000 + i] = 0;
        ((int8_t *)interp_data(&it, it.g->inputs.at[1]))[i] = (int8_t)(i % 2 ? 127 : 126);
        want += 255 * (i % 2 ? 127 : 126);
    }
    run(&it);
    assert_int_equal(((int32_t *)interp_data(&it, it.g->outputs.at[0]))[0], want);
    assert_int_equal(((int32_t *)interp_data(&it, it.g->outputs.at[0]))[1], 0);
    interp_fini(&it);
}

/* --- random numbers --- */

static void functions_of_random_numbers(void **state)
{
    (void)state;
    for (uint64_t i = 0; i < 200000; i++) {
        const uint32_t w = (uint32_t)(i * 2654435761u);
        const double u = ((double)w + 0.5) * 0x1p-32, turn = inv_random_unit(w);
        double c, s;
        assert_true(fabs(inv_random_log(u) - log(u)) <= 4e-16 * (1 + fabs(log(u))));
        assert_true(fabs(inv_random_log(1 / u) + log(u)) <= 4e-16 * (1 + fabs(log(u))));
        inv_random_turn(turn, &c, &s);
        assert_true(fabs(c - cos(2 * acos(-1) * turn)) < 1e-15 && fabs(s - sin(2 * acos(-1) * turn)) < 1e-15);
    }
}

enum { MANY = 40 * 5003 };

/* Mean, variance, and share below the mean plus one deviation. */
static void moments(const char *text, double mean, double deviation, double share)
{
    interp it;
    double sum = 0, squares = 0, below = 0;
    load(&it, text, INV_F32);
    run(&it);
    for (int i = 0; i < MANY; i++) {
        const double v = interp_get(&it, it.g->outputs.at[0], i);
        sum += v;
        squares += (v - mean) * (v - mean);
        below += v < mean + deviation;
    }
    assert_true(fabs(sum / MANY - mean) < 5 * deviation / sqrt(MANY));
    assert_true(fabs(squares / MANY / (deviation * deviation) - 1) < 0.02);
    assert_true(fabs(below / MANY - share) < 0.005);
    interp_fini(&it);
}

static void distributions(void **state)
{
    interp it;
    int of[3] = {0};
    (void)state;
    moments("y = RandomNormal<shape = [40,5003], mean = 1.5, scale = 2.0>()", 1.5, 2, 0.841345);
    moments("y = RandomUniform<shape = [40,5003], low = -1.0, high = 3.0>()", 1, 4 / sqrt(12), 0.788675);
    load(&it, "y = Bernoulli(float[40,5003] p)", INV_F32);
    double ones = 0;
    for (int i = 0; i < MANY; i++) interp_put(&it, it.g->inputs.at[0], i, 0.3);
    run(&it);
    for (int i = 0; i < MANY; i++) ones += interp_get(&it, it.g->outputs.at[0], i);
    assert_true(fabs(ones / MANY - 0.3) < 0.005);
    interp_fini(&it);
    load(&it, "y = Multinomial<sample_size = 50000>(float[2,3] x)", INV_F32);
    for (int i = 0; i < 6; i++) interp_put(&it, it.g->inputs.at[0], i, log((double[]){1, 3, 4}[i % 3]) + 7);
    run(&it);
    for (int i = 0; i < 100000; i++) {
        const int k = ((int32_t *)interp_data(&it, it.g->outputs.at[0]))[i];
        assert_true(k >= 0 && k < 3);
        of[k]++;
    }
    assert_true(abs(of[0] - 12500) < 600 && abs(of[1] - 37500) < 900 && abs(of[2] - 50000) < 900);
    interp_fini(&it);
}

static void draw(const char *text, inv_step step, double out[24])
{
    interp it;
    load(&it, text, INV_F32);
    it.step = step;
    if (it.g->inputs.n) memset(interp_data(&it, it.g->inputs.at[0]), 0, 24 * sizeof(float));
    run(&it);
    for (int i = 0; i < 24; i++) out[i] = interp_get(&it, it.g->outputs.at[0], i);
    interp_fini(&it);
}

static bool alike(const char *text, inv_step step, const char *other, inv_step then)
{
    double a[24], b[24];
    draw(text, step, a);
    draw(other, then, b);
    return memcmp(a, b, sizeof a) == 0;
}

static void what_random_numbers_depend_on(void **state)
{
    static const char plain[] = "y = RandomNormalLike(float[8,3] x)", other[] = "z = RandomNormalLike(float[8,3] x)",
                      seeded[] = "y = RandomNormalLike<seed = 2.0>(float[8,3] x)",
                      again[] = "z = RandomNormalLike<seed = 2.0>(float[8,3] x)",
                      third[] = "y = RandomNormalLike<seed = 3.0>(float[8,3] x)",
                      fixed[] = "y = RandomNormal<shape = [8,3]>()";
    const inv_step step = {.seed = 1, .step = 2}, next = {.seed = 1, .step = 3}, strange = {.seed = 9, .step = 2},
                   later = {.seed = 1, .step = 2, .first_sample = 4};
    double a[24], b[24];
    (void)state;
    assert_true(alike(plain, step, plain, step));
    assert_false(alike(plain, step, plain, next));
    assert_false(alike(plain, step, plain, strange));
    assert_false(alike(plain, step, other, step));
    assert_true(alike(seeded, step, again, strange)); /* neither name nor session */
    assert_false(alike(seeded, step, seeded, next));
    assert_false(alike(seeded, step, third, step));
    assert_true(alike(fixed, step, fixed, later));
    draw(plain, step, a);
    draw(plain, later, b); /* samples 4 to 7 are the same ones */
    assert_memory_equal(a + 12, b, 12 * sizeof *a);
}

/* --- what rows support, seen in their cases --- */

#define BIT(t) ((uint32_t)1 << (t))
#define FLOATS (BIT(INV_F32) | BIT(INV_F64))
#define INTEGERS                                                                                            \
    (BIT(INV_I8) | BIT(INV_I16) | BIT(INV_I32) | BIT(INV_I64) | BIT(INV_U8) | BIT(INV_U16) | BIT(INV_U32) | \
     BIT(INV_U64))
#define ANY (FLOATS | INTEGERS | BIT(INV_BOOL))

static void support_is_what_cases_show(void **state)
{
    static const struct {
        const char *name;
        uint32_t types[2];
        inv_support_grad gradient;
        bool inverse;
        const char *runs; /* among others */
    } want[] = {
        {"Relu", {ANY}, INV_GRAD_YES, false, "Relu"},
        {"Tanh", {FLOATS}, INV_GRAD_YES, true, "Tanh"},
        {"MatMul", {FLOATS, FLOATS}, INV_GRAD_YES, true, "MatMulT"},
        {"DequantizeLinear",
         {BIT(INV_U8) | BIT(INV_I8) | BIT(INV_U16) | BIT(INV_I16) | BIT(INV_I32) | FLOATS, FLOATS},
         INV_GRAD_YES,
         false,
         "Mul"},
        {"Where", {BIT(INV_BOOL), ANY}, INV_GRAD_YES, false, "Where"},
        {"Reshape", {ANY, 0}, INV_GRAD_YES, true, "View"},
        {"Shape", {ANY}, INV_GRAD_NONE, false, NULL},
        {"Floor", {FLOATS}, INV_GRAD_NONE, false, "Floor"},
        {"LeakyReluGrad", {FLOATS, FLOATS}, INV_GRAD_MISSING, false, "LeakyReluGrad"},
        {"ConvInteger", {BIT(INV_U8) | BIT(INV_I8), BIT(INV_U8) | BIT(INV_I8)}, INV_GRAD_NONE, false, "ConvN"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof want / sizeof *want; i++) {
        inv_support have;
        const inv_op_def *row = inv_registry_op(ctx->registry, "", want[i].name, 0);
        assert_non_null(row);
        assert_int_equal(inv_support_of(ctx, row, &have), INV_OK);
        bool runs = !want[i].runs && have.nto == 0;
        for (uint32_t k = 0; k < have.nto && want[i].runs; k++) runs = runs || !strcmp(have.to[k]->name, want[i].runs);
        if (!runs || have.gradient != want[i].gradient || have.inverse != want[i].inverse || !have.cpu || !have.cuda ||
            have.types[0] != want[i].types[0] || have.types[1] != want[i].types[1])
            fail_msg("%s: gradient %d, inverse %d, types %x %x", want[i].name, (int)have.gradient, (int)have.inverse,
                     (unsigned)have.types[0], (unsigned)have.types[1]);
    }
}

/* A kernel or a gradient that a row lacks is seen. */
static void want_of_kernels_shows(void **state)
{
    inv_support have;
    (void)state;
    inv_op_def row = *inv_registry_op(ctx->registry, "", "Relu", 0);
    row.flags |= INV_OP_HOST_ONLY;
    row.grad = NULL;
    assert_int_equal(inv_support_of(ctx, &row, &have), INV_OK);
    assert_true(have.cpu && !have.cuda && have.gradient == INV_GRAD_MISSING);
    row.run = NULL;
    row.flags |= INV_OP_NO_GRAD;
    assert_int_equal(inv_support_of(ctx, &row, &have), INV_OK);
    assert_true(!have.cpu && have.gradient == INV_GRAD_NONE);
}

/* Products of columns square what they tell: a triangle of ones, of condition 4 / pi N and norm of its inverse near 2,
 * scaled from where squares are no numbers any more to where they are 0, below and above the size up to which all
 * singular values are computed. Fails if a product that is not a number passes for a condition. */
static void condition_of_extremes(void **state)
{
    static const struct {
        int n;
        bool told; /* at any scale */
    } rows[] = {{60, true}, {100, true}, {256, true}, {260, false}};
    static double m[260 * 260];
    (void)state;
    for (size_t r = 0; r < sizeof rows / sizeof *rows; r++)
        for (int power = -290; power <= 290; power += 10) {
            const int n = rows[r].n;
            const double scale = pow(10, power), want = 4 / 3.14159265 * n;
            double cond, norm;
            for (int i = 0; i < n * n; i++) m[i] = i / n <= i % n ? scale : 0;
            inv_data w = {INV_F64, inv_shape_of(2, (int64_t[]){n, n}), m, sizeof(double) * (size_t)(n * n)};
            assert_int_equal(inv_linear_condition(ctx, &w, false, &cond, &norm), INV_OK);
            if (!rows[r].told && abs(power) > 135 && isinf(cond) && isinf(norm)) continue;
            if (!(fabs(cond / want - 1) < 0.05 && norm * scale > 1.9 && norm * scale < 2.001))
                fail_msg("%d columns of 1e%d: condition %g, not %g; norm %g", n, power, cond, want, norm);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(fake_quantization),
                                       cmocka_unit_test(condition_of_extremes),
                                       cmocka_unit_test(where_there_is_no_derivative),
                                       cmocka_unit_test(integer_products_are_exact),
                                       cmocka_unit_test(functions_of_random_numbers),
                                       cmocka_unit_test(distributions),
                                       cmocka_unit_test(what_random_numbers_depend_on),
                                       cmocka_unit_test(support_is_what_cases_show),
                                       cmocka_unit_test(want_of_kernels_shows)};
    return cmocka_run_group_tests(tests, setup, teardown);
}
