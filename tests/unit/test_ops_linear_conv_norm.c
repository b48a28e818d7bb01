/* SPDX-License-Identifier: Apache-2.0
 * Products, convolution, pooling, normalisation (and, of losses, training and guard, what their cases give): gradients
 * against differences, kernels against naive loops, float32 against float64, one thread against several. */
#include "ops_run.h"

#include <float.h>

#ifdef _OPENMP
#include <omp.h>
#endif

#include "ops/base/families.h"
#include "ops/linear/linear_solve.h"

/* clang-format off */
static const inv_op_def *const *const families[] = {
    inv_ops_matmul, inv_ops_conv, inv_ops_conv_transpose, inv_ops_pool, inv_ops_norm, inv_ops_layernorm,
    inv_ops_groupnorm, inv_ops_normalize, inv_ops_attention, inv_ops_loss, inv_ops_class_loss, inv_ops_optim_onnx,
    inv_ops_train, inv_ops_guard, inv_ops_resize, inv_ops_det, inv_ops_scatter};
/* clang-format on */
#define NFAMILY (sizeof families / sizeof *families)

static void threads(int n)
{
#ifdef _OPENMP
    omp_set_num_threads(n);
#else
    (void)n;
#endif
}

/* --- from the rows --- */

static void every_case_is_differentiated(void **state)
{
    ops_env e;
    (void)state;
    ops_begin(&e);
    int checked = 0;
    for (size_t f = 0; f < NFAMILY; f++) {
        for (const inv_op_def *const *row = families[f]; *row; row++) {
            if (!(*row)->cases || (!(*row)->grad && !(*row)->lower)) continue;
            for (const char *const *c = (*row)->cases; *c; c++) {
                ops_seed = 0x9e3779b97f4a7c15; /* so that what a case is fed does not depend on the cases before it */
                ops_load(&e, *c, "double", (*row)->until);
                if (ops_n(&e, e.g->outputs.at[0]) == 0) continue;
                checked += ops_check_grad(&e, 2e-7);
            }
        }
    }
    assert_true(checked > 60);
    ops_end(&e);
}

static void float_agrees_with_double(void **state)
{
    ops_env e;
    (void)state;
    ops_begin(&e);
    for (size_t f = 0; f < NFAMILY; f++) {
        for (const inv_op_def *const *row = families[f]; *row; row++) {
            for (const char *const *c = (*row)->cases; c && *c; c++) {
                double want[4096], top = 0;
                uint64_t seed = ops_seed;
                ops_load(&e, *c, "float", (*row)->until);
                ops_run(&e, 0);
                int64_t n = ops_n(&e, e.g->outputs.at[0]);
                assert_true(n < 4096);
                for (int64_t i = 0; i < n; i++) want[i] = ops_get(&e, e.g->outputs.at[0], i);
                ops_seed = seed;
                ops_load(&e, *c, "double", (*row)->until);
                ops_run(&e, 0);
                assert_int_equal(n, ops_n(&e, e.g->outputs.at[0]));
                for (int64_t i = 0; i < n; i++) top = isnan(want[i]) ? top : fmax(top, fabs(want[i]));
                for (int64_t i = 0; i < n; i++) {
                    double got = ops_get(&e, e.g->outputs.at[0], i);
                    if (isnan(got) && isnan(want[i])) continue;
                    if (!(fabs(got - want[i]) <= 2e-5 * (1 + top)))
                        fail_msg("%s: element %lld: %g %g", *c, (long long)i, got, want[i]);
                }
            }
        }
    }
    ops_end(&e);
}

/* --- products --- */

/* Residual of LinearSolve, and NaN for a singular matrix. */
static void linear_solve_solves(void **state)
{
    ops_env e;
    (void)state;
    ops_begin(&e);
    static const char *const cases[] = {
        "x = LinearSolve(float[150,7] y, float[7,7] W)", "x = LinearSolve<transB = 1>(float[3,50,7] y, float[7,7] W)",
        "x = LinearSolve(float[150,9] y, float[7,9] W)", "x = LinearSolve<transB = 1>(float[150,9] y, float[9,7] W)"};
    for (int i = 0; i < 4; i++) {
        ops_load(&e, cases[i], "double", 0);
        inv_id y = e.g->inputs.at[0], w = e.g->inputs.at[1], x = e.g->outputs.at[0];
        bool tb = i & 1;
        int64_t k = 7, n = inv_shape_of_value(e.g, y)->dim[inv_shape_of_value(e.g, y)->rank - 1];
        for (int64_t r = 0; r < 150; r++) { /* y = u op(W) with known u */
            double u[7];
            for (int64_t p = 0; p < k; p++) u[p] = cos((double)(r * k + p));
            for (int64_t j = 0; j < n; j++) {
                double sum = 0;
                for (int64_t p = 0; p < k; p++) sum += u[p] * ops_get(&e, w, tb ? j * k + p : p * n + j);
                ops_set(&e, y, r * n + j, sum);
            }
        }
        ops_run(&e, 0);
        for (int64_t p = 0; p < 150 * k; p++) assert_true(fabs(ops_get(&e, x, p) - cos((double)p)) < 1e-9);
        for (int64_t p = 0; p < ops_n(&e, w); p++) ops_set(&e, w, p, 1); /* rank 1 */
        ops_run(&e, 0);
        for (int64_t p = 0; p < 150 * k; p++) assert_true(isnan(ops_get(&e, x, p)));
    }
    ops_end(&e);
}

/* Each block of the filter, as a matrix, times its inverse's transpose is the unit matrix of the shorter side; NaN in
 * the block that is singular. */
static void filter_inverse_inverts(void **state)
{
    ops_env e;
    (void)state;
    ops_begin(&e);
    static const struct {
        const char *text;
        int64_t groups, m, k;
    } cases[] = {{"p = FilterInverse(float[5,5] w)", 1, 5, 5},
                 {"p = FilterInverse<group = 2>(float[14,1,3,2] w)", 2, 7, 6},
                 {"p = FilterInverse<group = 2>(float[8,2,3] w)", 2, 4, 6}};
    for (int i = 0; i < 3; i++) {
        const int64_t m = cases[i].m, k = cases[i].k;
        ops_load(&e, cases[i].text, "double", 0);
        inv_id w = e.g->inputs.at[0], p = e.g->outputs.at[0];
        for (int64_t j = 0; j < ops_n(&e, w); j++) ops_set(&e, w, j, sin((double)(j * j + 1)));
        ops_run(&e, 0);
        for (int64_t at = 0; at < cases[i].groups * m * k; at += m * k)
            for (int64_t r = 0; r < (m < k ? m : k); r++)
                for (int64_t c = 0; c < (m < k ? m : k); c++) {
                    double sum = 0;
                    for (int64_t j = 0; j < (m < k ? k : m); j++)
                        sum += m < k ? ops_get(&e, w, at + r * k + j) * ops_get(&e, p, at + c * k + j)
                                     : ops_get(&e, w, at + j * k + r) * ops_get(&e, p, at + j * k + c);
                    assert_true(fabs(sum - (r == c)) < 1e-9);
                }
        for (int64_t j = 0; j < m * k; j++) ops_set(&e, w, j, 1);
        ops_run(&e, 0);
        for (int64_t j = 0; j < ops_n(&e, p); j++) assert_int_equal(isnan(ops_get(&e, p, j)) != 0, j < m * k);
    }
    ops_end(&e);
}

static void condition_numbers(void **state)
{
    inv_context *ctx;
    double cond, norm;
    (void)state;
    assert_int_equal(inv_context_create(NULL, &ctx), INV_OK);
    unsigned char raw[1 + 6 * sizeof(float)]; /* unaligned: singular values 4, 0.5 */
    const float m[6] = {0, 4, 0, 0, 0, 0.5f}, zero[6] = {0}, bad[6] = {(float)NAN};
    memcpy(raw + 1, m, sizeof m);
    inv_data w = {INV_F32, inv_shape_of(2, (int64_t[]){2, 3}), raw + 1, sizeof m};
    assert_int_equal(inv_linear_condition(ctx, &w, false, &cond, &norm), INV_OK);
    assert_true(fabs(cond - 8) < 1e-12 && fabs(norm - 2) < 1e-12);
    w.bytes = zero;
    assert_int_equal(inv_linear_condition(ctx, &w, true, &cond, &norm), INV_OK);
    assert_true(isinf(cond) && isinf(norm));
    w.bytes = bad;
    assert_int_equal(inv_linear_condition(ctx, &w, true, &cond, &norm), INV_OK);
    assert_true(isinf(cond) && isinf(norm));
    w.shape.rank = 1;
    assert_int_equal(inv_linear_condition(ctx, &w, true, &cond, &norm), INV_E_SHAPE);
    inv_context_destroy(ctx);
}

/* Too large to be taken apart at once: orthogonal columns of lengths 1 .. 8 times 64, as rows and as columns. */
static void condition_in_parts(void **state)
{
    enum { N = 64 * 64 * 256, K = 8 };
    static float m[(size_t)N * K];
    inv_context *ctx;
    (void)state;
    assert_int_equal(inv_context_create(NULL, &ctx), INV_OK);
    for (int wide = 0; wide < 2; wide++) {
        double cond, norm, unit = sqrt(N / K);
        memset(m, 0, sizeof m);
        for (size_t i = 0; i < N; i++) {
            size_t j = i % K;
            m[wide ? j * N + i : i * K + j] = (float)(j + 1);
        }
        inv_data w = {INV_F32, inv_shape_of(2, (int64_t[]){wide ? K : N, wide ? N : K}), m, sizeof m};
        assert_int_equal(inv_linear_condition(ctx, &w, false, &cond, &norm), INV_OK);
        assert_true(cond > 7.5 && cond < 8.001);
        assert_true(norm * unit > 0.95 && norm * unit < 1.001);
        m[(size_t)N * K - 1] = NAN;
        assert_int_equal(inv_linear_condition(ctx, &w, false, &cond, &norm), INV_OK);
        assert_true(isinf(cond) && isinf(norm));
    }
    inv_context_destroy(ctx);
}

/* --- convolution and pooling --- */

typedef struct naive {
    int64_t in[2], k[2], stride[2], pad[2], dil[2], out[2];
} naive;

static void conv_matches_naive_loops(void **state)
{
    ops_env e;
    (void)state;
    ops_begin(&e);
    static const struct {
        const char *text;
        int64_t group;
        naive g;
    } cases[] = {
        {"y = ConvN<strides = [2,1], pads = [1,2,0,1], dilations = [1,2]>(float[3,4,9,8] x, float[6,4,3,2] w, float[6] "
         "b)",
         1,
         {{9, 8}, {3, 2}, {2, 1}, {1, 2}, {1, 2}, {4, 9}}},
        {"y = ConvN<group = 3, pads = [1,1,1,1]>(float[2,6,7,5] x, float[9,2,3,3] w, float[9] b)",
         3,
         {{7, 5}, {3, 3}, {1, 1}, {1, 1}, {1, 1}, {7, 5}}},
        {"y = ConvN(float[2,6,7,5] x, float[9,6,1,1] w, float[9] b)",
         1,
         {{7, 5}, {1, 1}, {1, 1}, {0, 0}, {1, 1}, {7, 5}}},
        {"y = ConvN<pads = [2,2,2,2]>(float[1,64,70,70] x, float[2,64,5,5] w, float[2] b)",
         1,
         {{70, 70}, {5, 5}, {1, 1}, {2, 2}, {1, 1}, {70, 70}}}, /* several tiles */
    };
    for (size_t t = 0; t < sizeof cases / sizeof *cases; t++) {
        for (int real = 0; real < 2; real++) {
            ops_load(&e, cases[t].text, real ? "double" : "float", 0);
            ops_run(&e, 0);
            const naive *g = &cases[t].g;
            inv_id x = e.g->inputs.at[0], w = e.g->inputs.at[1], b = e.g->inputs.at[2], y = e.g->outputs.at[0];
            const inv_shape *sy = inv_shape_of_value(e.g, y), *sw = inv_shape_of_value(e.g, w);
            assert_true(sy->dim[2] == g->out[0] && sy->dim[3] == g->out[1]);
            int64_t mg = sw->dim[0] / cases[t].group, cg = sw->dim[1], channels = cg * cases[t].group, at = 0;
            for (int64_t i = 0; i < sy->dim[0]; i++)
                for (int64_t m = 0; m < sy->dim[1]; m++)
                    for (int64_t r = 0; r < g->out[0]; r++)
                        for (int64_t s = 0; s < g->out[1]; s++, at++) {
                            double sum = ops_get(&e, b, m);
                            for (int64_t c = 0; c < cg; c++)
                                for (int64_t p = 0; p < g->k[0] * g->k[1]; p++) {
                                    int64_t u = r * g->stride[0] - g->pad[0] + p / g->k[1] * g->dil[0];
                                    int64_t v = s * g->stride[1] - g->pad[1] + p % g->k[1] * g->dil[1];
                                    if (u < 0 || v < 0 || u >= g->in[0] || v >= g->in[1]) continue;
                                    sum += ops_get(&e, w, (m * cg + c) * g->k[0] * g->k[1] + p) *
                                           ops_get(&e, x,
                                                   ((i * channels + m / mg * cg + c) * g->in[0] + u) * g->in[1] + v);
                                }
                            assert_true(fabs(ops_get(&e, y, at) - sum) < (real ? 1e-11 : 2e-4));
                        }
        }
    }
    ops_end(&e);
}

static void expect_output(ops_env *e, const char *text, int64_t opset, int n, const double *x, int m, const double *y)
{
    ops_load(e, text, "float", opset);
    for (int i = 0; i < n; i++) ops_set(e, e->g->inputs.at[0], i, x[i]);
    ops_run(e, 0);
    assert_int_equal(ops_n(e, e->g->outputs.at[0]), m);
    for (int i = 0; i < m; i++) {
        double got = ops_get(e, e->g->outputs.at[0], i);
        if (!(fabs(got - y[i]) < 1e-6)) fail_msg("%s: element %d is %g, not %g", text, i, got, y[i]);
    }
}
/* clang-format off */
#define ARRAY(...) (int)(sizeof((double[]){__VA_ARGS__}) / sizeof(double)), (const double[]){__VA_ARGS__}
/* clang-format on */

static void pooling_by_hand(void **state)
{
    ops_env e;
    (void)state;
    ops_begin(&e);
    expect_output(&e, "y = MaxPool<kernel_shape = [2], strides = [2]>(float[1,1,5] x)", 13, ARRAY(1, 3, 2, -4, 9),
                  ARRAY(3, 2));
    expect_output(&e, "y = MaxPool<kernel_shape = [2], strides = [2], ceil_mode = 1>(float[1,1,5] x)", 13,
                  ARRAY(1, 3, 2, -4, 9), ARRAY(3, 2, 9));
    /* A window that would begin in the trailing pad does not count. */
    expect_output(&e, "y = MaxPool<kernel_shape = [1], strides = [2], pads = [0,1], ceil_mode = 1>(float[1,1,4] x)", 13,
                  ARRAY(1, 3, 2, -4), ARRAY(1, 2));
    expect_output(&e, "y = MaxPool<kernel_shape = [3], pads = [1,1]>(float[1,1,3] x)", 13, ARRAY(-5, -3, -7),
                  ARRAY(-3, -3, -3));
    expect_output(&e, "y = AveragePool<kernel_shape = [3], pads = [1,1]>(float[1,1,3] x)", 13, ARRAY(3, 6, 9),
                  ARRAY(4.5, 6, 7.5));
    expect_output(&e, "y = AveragePool<kernel_shape = [3], pads = [1,1], count_include_pad = 1>(float[1,1,3] x)", 13,
                  ARRAY(3, 6, 9), ARRAY(3, 6, 5));
    /* ceil_mode: the last window reaches over the padded end, by which it is cut */
    expect_output(
        &e, "y = AveragePool<kernel_shape = [2], strides = [2], count_include_pad = 1, ceil_mode = 1>(float[1,1,3] x)",
        13, ARRAY(3, 6, 9), ARRAY(4.5, 9));
    expect_output(&e, "y = AveragePool<kernel_shape = [2], auto_pad = \"SAME_LOWER\">(float[1,1,3] x)", 13,
                  ARRAY(3, 6, 9), ARRAY(3, 4.5, 7.5));
    expect_output(&e, "y = GlobalMaxPool(float[1,2,2,1] x)", 13, ARRAY(3, 6, 9, -1), ARRAY(6, 9));
    expect_output(&e, "y = Softmax(float[2,1,2] x)", 11, ARRAY(0, 0, 0, 0), ARRAY(.5, .5, .5, .5));
    expect_output(&e, "y = Softmax(float[1,2,2] x)", 11, ARRAY(0, 0, 0, 0), ARRAY(.25, .25, .25, .25));
    expect_output(&e, "y = LogSoftmax<axis = 0>(float[2,2] x)", 13, ARRAY(0, 1e4, 0, 0),
                  ARRAY(-0.6931471806, 0, -0.6931471806, -1e4));
    ops_end(&e);
}

/* Indices count through the whole input, along columns of a plane if asked to; of equal elements the first one is
 * meant, and unpooling brings each back to its place. */
static void pool_indices_by_hand(void **state)
{
    static const char *const
        rows = "y, i = MaxPool<kernel_shape = [2,2], strides = [2,2]>(float[1,2,2,4] x)",
        *const columns = "y, i = MaxPool<kernel_shape = [2,2], strides = [2,2], storage_order = 1>(float[1,2,2,4] x)";
    static const double x[16] = {1, 5, 2, 2, 5, 0, 2, 2, 0, 0, 0, 7, 0, 3, 0, 7};
    static const double want[2][4] = {{1, 2, 13, 11}, {2, 4, 11, 14}};
    ops_env e;
    (void)state;
    ops_begin(&e);
    for (int k = 0; k < 2; k++) {
        ops_load(&e, k ? columns : rows, "float", 13);
        for (int i = 0; i < 16; i++) ops_set(&e, e.g->inputs.at[0], i, x[i]);
        ops_run(&e, 0);
        for (int i = 0; i < 4; i++) assert_true(ops_get(&e, e.g->outputs.at[1], i) == want[k][i]);
    }
    ops_load(&e, "y = MaxUnpool<kernel_shape = [2,2], strides = [2,2]>(float[1,2,1,2] x, int64[1,2,1,2] i)", "float",
             13);
    for (int i = 0; i < 4; i++) {
        ops_set(&e, e.g->inputs.at[0], i, i + 1);
        ops_set(&e, e.g->inputs.at[1], i, want[0][i]);
    }
    ops_run(&e, 0);
    assert_int_equal(ops_n(&e, e.g->outputs.at[0]), 16);
    for (int i = 0; i < 16; i++) {
        double there = 0;
        for (int k = 0; k < 4; k++) there += want[0][k] == i ? k + 1 : 0;
        assert_true(ops_get(&e, e.g->outputs.at[0], i) == there);
    }
    ops_end(&e);
}

/* --- attention --- */

/* Equal scores, also far below zero, where numbers are farther apart than the logarithm of a row's sum: every column
 * has the same share of a row, in the gradient as in the result. The last row sees nothing: it has no share at all. */
static void attention_where_all_is_masked(void **state)
{
    static const double mask[] = {0, -1e4, -1e9, -FLT_MAX};
    enum { ROWS = 8, COLS = 8, D = 4 };
    ops_env e;
    inv_id grad[OPS_MAX];
    (void)state;
    ops_begin(&e);
    for (size_t i = 0; i < 2 * sizeof mask / sizeof *mask; i++) {
        const double tol = i % 2 ? 1e-13 : 2e-6;
        ops_load(&e, "y = Attention<scale = 0>(float[1,2,8,4] q, float[1,2,8,4] k, float[1,2,8,4] v, float[8,8] m)",
                 i % 2 ? "double" : "float", 23);
        inv_graph *g = e.g;
        const inv_id y = g->outputs.at[0], v = g->inputs.at[2], m = g->inputs.at[3];
        const inv_shape s = *inv_shape_of_value(g, y);
        for (int64_t k = 0; k < ROWS * COLS; k++) ops_set(&e, m, k, k / COLS < ROWS - 1 ? mask[i / 2] : -INFINITY);
        const inv_id seed = inv_graph_value(g, "seed", INV_ROLE_INPUT, g->real, &s);
        ops_alloc(&e, seed);
        for (int64_t k = 0; k < 2 * ROWS * D; k++) ops_set(&e, seed, k, 1);
        ops_reverse(&e, seed, grad);
        ops_run(&e, 0);
        for (int64_t k = 0; k < 2 * ROWS * D; k++) {
            const double share = (ROWS - 1.0) / COLS;
            double mean = 0;
            for (int64_t c = 0; c < COLS; c++) mean += ops_get(&e, v, (k / (ROWS * D) * COLS + c) * D + k % D) / COLS;
            if (!(fabs(ops_get(&e, grad[v], k) - share) < tol))
                fail_msg("mask %g: dv[%d] is %.9g, not %g", mask[i / 2], (int)k, ops_get(&e, grad[v], k), share);
            assert_true(fabs(ops_get(&e, y, k) - (k / D % ROWS < ROWS - 1 ? mean : 0)) < tol);
        }
        for (int64_t k = 0; k < ROWS * COLS; k++) { /* a share of what the column has more than the mean */
            double more = 0;
            for (int64_t h = 0; h < 2 && k / COLS < ROWS - 1; h++)
                for (int64_t d = 0; d < D; d++)
                    more += ops_get(&e, v, (h * COLS + k % COLS) * D + d) - ops_get(&e, y, h * ROWS * D + d);
            assert_true(fabs(ops_get(&e, grad[m], k) - more / COLS) < 4 * tol);
        }
    }
    ops_end(&e);
}

/* --- normalisation --- */

static void batch_norm_is_inverted(void **state)
{
    ops_env e;
    (void)state;
    ops_begin(&e);
    for (int real = 0; real < 2; real++) {
        ops_load(&e, "mean, var = BatchStats(float[5,3,4,4] x)", real ? "double" : "float", 0);
        inv_graph *g = e.g;
        inv_id x = g->inputs.at[0], mean = g->outputs.at[0], var = g->outputs.at[1];
        inv_shape c = inv_shape_of(1, (int64_t[]){3});
        inv_id scale = inv_graph_value(g, "scale", INV_ROLE_INPUT, g->real, &c);
        inv_id bias = inv_graph_value(g, "bias", INV_ROLE_INPUT, g->real, &c);
        for (int64_t i = 0; i < ops_n(&e, x); i++) ops_set(&e, x, i, 3 + ops_random());
        ops_fill(&e, scale);
        ops_fill(&e, bias);
        inv_id y = inv_emit1(g, "BatchNormApply", INV_IN(x, scale, bias, mean, var),
                             INV_ATTRS(inv_attr_of_int("training", 1)));
        inv_id z = inv_emit1(g, "BatchNormInverse", INV_IN(y, scale, bias, mean, var), INV_NOATTR);
        ops_run(&e, 0);
        for (int64_t k = 0; k < 3; k++) {
            double m = 0, v = 0;
            for (int64_t i = 0; i < 80; i++) m += ops_get(&e, x, (i / 16 * 3 + k) * 16 + i % 16) / 80;
            for (int64_t i = 0; i < 80; i++) v += pow(ops_get(&e, x, (i / 16 * 3 + k) * 16 + i % 16) - m, 2) / 80;
            assert_true(fabs(ops_get(&e, mean, k) - m) < (real ? 1e-13 : 1e-6));
            assert_true(fabs(ops_get(&e, var, k) - v) < (real ? 1e-13 : 1e-6));
        }
        for (int64_t i = 0; i < ops_n(&e, x); i++) { /* in float64, rounded once */
            int64_t k = i / 16 % 3;
            double factor = ops_get(&e, scale, k) / sqrt(ops_get(&e, var, k) + 1e-5);
            double want = (ops_get(&e, x, i) - ops_get(&e, mean, k)) * factor + ops_get(&e, bias, k);
            assert_true(fabs(ops_get(&e, y, i) - want) <= fabs(want) * (real ? 1e-14 : 0x1.00001p-24));
        }
        for (int64_t i = 0; i < ops_n(&e, x); i++)
            assert_true(fabs(ops_get(&e, z, i) - ops_get(&e, x, i)) < (real ? 1e-13 : 2e-6));
    }
    ops_end(&e);
}

/* Evaluation lowers to fixed statistics, training writes the ONNX running statistics. */
static void batch_norm_lowers_by_mode(void **state)
{
    ops_env e;
    (void)state;
    ops_begin(&e);
    const char *text = "y, m, v = BatchNormalization<momentum = 0.75>(float[4,2,3] x, float[2] scale, float[2] bias, "
                       "float[2] mean, float[2] var)";
    ops_load(&e, text, "double", 9); /* more outputs: training */
    assert_int_equal(e.g->order.n, 4);
    ops_run(&e, 0);
    inv_id mean = e.g->inputs.at[3];
    double m = 0;
    for (int64_t i = 0; i < 12; i++) m += ops_get(&e, e.g->inputs.at[0], i / 3 * 6 + i % 3) / 12;
    assert_true(fabs(ops_get(&e, e.g->outputs.at[1], 0) - (0.75 * ops_get(&e, mean, 0) + 0.25 * m)) < 1e-14);
    for (int eval = 0; eval < 2; eval++) { /* statistics that the model keeps; training_mode is 0 */
        ops_clear(&e);
        ops_parse_case(&e, text, "double");
        e.g->eval = eval;
        for (int i = 3; i < 5; i++) inv_val(e.g, e.g->inputs.at[i])->role = INV_ROLE_PARAM;
        ops_expect_ok(&e, ops_lower(&e, eval ? 9 : 15));
        assert_int_equal(e.g->order.n, 1);
    }
    ops_load(&e, text, "double", 15); /* those that are fed have gradients */
    assert_true(ops_check_grad(&e, 2e-7) == 5);
    ops_end(&e);
}

/* --- the same bits, whatever the number of threads and the place of the buffers --- */

static void bits_do_not_depend_on_threads(void **state)
{
    ops_env e;
    (void)state;
    ops_begin(&e);
    static const char *const cases[] = {
        "mean, var = BatchStats(float[8,6,33,31] x)",
        "mean, var = BatchStats<axis = 3>(float[16,30,10,20] x)",
        "dx, ds, db = BatchNormGrad<training = 1, axis = 3>(float[16,30,10,20] x, float[16,30,10,20] gy, float[20] "
        "scale, float[20] mean, float[20] var)",
        "dx, ds, db = BatchNormGrad<training = 1>(float[64,300] x, float[64,300] gy, float[300] scale, float[300] "
        "mean, float[300] var)",
        "fp = GuardSum<key = 1>(float[50021] x)",
        "l = CrossEntropyMean<axis = 1>(float[2000,10] x, float[2000,10] t)",
        "l = MseMean(float[30011] x, float[30011] t)",
        "y = ConvN<pads = [1,1,1,1]>(float[5,16,19,17] x, float[24,16,3,3] w, float[24] b)",
        "gx = ConvGradX<pads = [1,1,1,1], shape = [5,16,19,17]>(float[5,24,19,17] gy, float[24,16,3,3] w)",
        "gw = ConvGradW<pads = [1,1,1,1], shape = [24,16,3,3]>(float[5,16,19,17] x, float[5,24,19,17] gy)",
        "y = MatMulT(float[70,80] a, float[80,90] b)",
        "y = MatMulT(float[12,30,40] a, float[12,40,20] b)",
        "y = Softmax(float[300,70] x)",
        "o, stats = AttentionCore<band = [-900, 20]>(float[2,4,150,16] q, float[2,2,300,16] k, float[2,2,300,8] v)",
        "dq, dk, dv = AttentionGrad<scale = 0.1>(float[2,4,150,8] gy, float[2,4,150,16] q, float[2,2,300,16] k, "
        "float[2,2,300,8] v, float[2,4,150,8] o, float[2,4,150,2] scale_stats)",
        "hs, cs, gates = Recurrent<cell = \"LSTM\">(float[9,64,400] xw, float[400,100] r, float[64,100] h, "
        "float[64,100] c)",
        "dxw, dr, dh = RecurrentGrad<cell = \"GRU\">(float[9,64,300] gates, float[300,100] r, float[64,100] h, , , , , "
        "float[9,64,100] hs, , float[9,64,100] gh)"};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        for (int real = 0; real < 2; real++) {
            size_t nbytes[3] = {0};
            void *kept[3] = {0};
            ops_load(&e, cases[i], real ? "double" : "float", 0);
            for (int t = 1; t <= 3; t++) {
                threads(t);
                ops_run(&e, 0);
                for (size_t k = 0; k < e.g->outputs.n; k++) {
                    inv_id y = e.g->outputs.at[k];
                    nbytes[k] = ops_nbytes(&e, y);
                    if (t == 1) {
                        kept[k] = malloc(nbytes[k]);
                        memcpy(kept[k], e.data[y], nbytes[k]);
                    } else if (memcmp(kept[k], e.data[y], nbytes[k]) != 0) {
                        fail_msg("%s (%s): %d threads give other bits", cases[i], real ? "double" : "float", t);
                    }
                }
            }
            for (int k = 0; k < 3; k++) free(kept[k]);
        }
    }
    threads(2);
    ops_end(&e);
}

/* --- refusals --- */

static void refusals_say_what_is_wrong(void **state)
{
    ops_env e;
    (void)state;
    ops_begin(&e);
    static const struct {
        const char *text, *words;
        int64_t opset;
        inv_status code;
    } cases[] = {
        {"y = MatMul(float[2,3] a, float[4,5] b)", "inner extents", 13, INV_E_SHAPE},
        {"y = Gemm(float[2,3] a, float[3,5] b, float[4] c)", "broadcast", 13, INV_E_SHAPE},
        {"y = Conv(float[2,3,5,5] x, float[4,2,3,3] w)", "channels", 13, INV_E_SHAPE},
        {"y = Conv(float[2,3,2,2] x, float[4,3,3,3] w)", "larger than", 13, INV_E_SHAPE},
        {"y = Conv<kernel_shape = [2,3]>(float[2,3,5,5] x, float[4,3,3,3] w)", "kernel_shape", 13, INV_E_SHAPE},
        {"y = Conv<strides = [0,1]>(float[2,3,5,5] x, float[4,3,3,3] w)", "positive", 13, INV_E_SHAPE},
        {"y = MaxUnpool<kernel_shape = [2]>(float[1,1,5] x, int64[1,1,4] i)", "indices", 13, INV_E_SHAPE},
        {"x = LinearSolve(float[5,3] y, float[4,3] W)", "not determined", 0, INV_E_SHAPE},
        {"l = CrossEntropyMean<axis = 1>(float[4,5] x, int64[5] t)", "int64[4]", 0, INV_E_SHAPE},
        {"l = MseMean(float[4,5] x, float[4] t)", "one shape", 0, INV_E_SHAPE},
        {"y = BatchNormalization(float[4,3] x, float[3] s, float[2] b, float[3] m, float[3] v)", "per channel", 15,
         INV_E_SHAPE},
        {"y = Dropout<ratio = 1.5>(float[4,3] x)", "within", 11, INV_E_ARG},
        {"y = Softmax<axis = 3>(float[4,3] x)", "axis 3", 13, INV_E_SHAPE},
        {"y = Einsum<equation = \"i,i\">(float[5] x, )", "is required but missing", 13, INV_E_GRAPH},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        ops_clear(&e);
        ops_parse_case(&e, cases[i].text, "float");
        inv_status s = ops_lower(&e, cases[i].opset);
        if (s != cases[i].code || !strstr(inv_context_message(e.ctx), cases[i].words))
            fail_msg("%s: %d, %s", cases[i].text, (int)s, inv_context_message(e.ctx));
    }
    ops_end(&e);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(every_case_is_differentiated),
                                       cmocka_unit_test(float_agrees_with_double),
                                       cmocka_unit_test(linear_solve_solves),
                                       cmocka_unit_test(filter_inverse_inverts),
                                       cmocka_unit_test(condition_numbers),
                                       cmocka_unit_test(condition_in_parts),
                                       cmocka_unit_test(conv_matches_naive_loops),
                                       cmocka_unit_test(pooling_by_hand),
                                       cmocka_unit_test(pool_indices_by_hand),
                                       cmocka_unit_test(attention_where_all_is_masked),
                                       cmocka_unit_test(batch_norm_is_inverted),
                                       cmocka_unit_test(batch_norm_lowers_by_mode),
                                       cmocka_unit_test(bits_do_not_depend_on_threads),
                                       cmocka_unit_test(refusals_say_what_is_wrong)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
