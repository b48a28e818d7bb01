/* SPDX-License-Identifier: Apache-2.0
 * What oneDNN serves besides convolution, beside our kernels in float64: operators in float32, of shapes that fill
 * vectors and of others; and convolutions beside plain loops. Fails if a result is off, if a shape that should be
 * served is not, or if one is that must not be, where the library understands something else by it or writes beyond
 * its scratch memory. Does nothing in a build without oneDNN. */
#include "ops/conv/conv.h"
#include "ops/onednn/dnnl.h"
#include "ops_run.h"

static bool is_built(void)
{
    const inv_dnnl_op o = inv_dnnl_op_of(INV_DNNL_LAYER_NORM, 4, 16);
    return inv_dnnl_has(&o);
}

/* The operands of `from`; bytes are those of the second output of `taps`. */
static void give(ops_env *e, const ops_env *from, const ops_env *taps)
{
    for (size_t i = 0; i < e->g->inputs.n; i++) {
        const inv_id v = e->g->inputs.at[i];
        const bool is_tap = inv_val(e->g, v)->dtype == INV_U8;
        for (int64_t k = 0; k < ops_n(e, v) && !is_tap; k++) ops_set(e, v, k, ops_get(from, v, k));
        if (is_tap) memcpy(e->data[v], taps->data[taps->g->outputs.at[1]], ops_nbytes(e, v));
    }
}

/* The case in float32 and in float64; every result is compared. taps: the case of MaxPoolN whose second output it
 * reads, or NULL. */
static void compare(const char *text, const char *taps)
{
    ops_env a, b, t;
    ops_begin(&a);
    ops_begin(&b);
    ops_begin(&t);
    if (taps) ops_load(&t, taps, "float", 0);
    if (taps) ops_run(&t, 0);
    ops_load(&a, text, "float", 0);
    ops_load(&b, text, "double", 0);
    give(&a, &a, &t);
    give(&b, &a, &t);
    ops_run(&a, 0);
    ops_run(&b, 0);
    for (size_t i = 0; i < a.g->outputs.n; i++) {
        const inv_id v = a.g->outputs.at[i];
        double most = 0;
        for (int64_t k = 0; k < ops_n(&b, v); k++) most = fmax(most, fabs(ops_get(&b, v, k)));
        assert_true(most > 0);
        for (int64_t k = 0; k < ops_n(&b, v); k++)
            if (!(fabs(ops_get(&a, v, k) - ops_get(&b, v, k)) <= 4e-6 * most))
                fail_msg("%s: output %zu, element %lld: %g, in float64 %g", text, i, (long long)k, ops_get(&a, v, k),
                         ops_get(&b, v, k));
    }
    ops_end(&a);
    ops_end(&b);
    ops_end(&t);
}

#define LAST "channels_last = 1, "
#define SQUARE LAST "kernel_shape = [3,3], strides = [2,2], pads = [1,1,1,1]"

static const char *const cases[] = {
    "y = LayerNormApply<axis = -1, epsilon = 0.001>(float[5,7,96] x, float[96] scale, float[96] bias)",
    "y = LayerNormApply<axis = 1, epsilon = 0.001>(float[40,7,5] x, float[7,5] scale)",
    "y = LayerNormApply<axis = -1>(float[3,1100] x, float[1100] scale, float[1100] bias)",
    "dx, ds, db = LayerNormGrad<axis = -1, epsilon = 0.001>(float[200,96] x, float[200,96] gy, float[96] scale)",
    "dx, ds, db = LayerNormGrad<axis = 1, epsilon = 0.001>(float[70,7,5] x, float[70,7,5] gy, float[7,5] scale)",
    "dx, ds, db = LayerNormGrad(float[1,33] x, float[1,33] gy, float[33] scale)",
    "y = AveragePoolN<" LAST "kernel_shape = [2,2], strides = [2,2]>(float[2,8,6,48] x)",
    "y = AveragePoolN<" SQUARE ">(float[2,9,7,20] x)",
    "y = AveragePoolN<" SQUARE ", count_include_pad = 1>(float[2,9,7,20] x)",
    "y = AveragePoolN<" SQUARE ", count_include_pad = 1, ceil_mode = 1>(float[2,8,6,32] x)",
    "y = AveragePoolN<" SQUARE ", ceil_mode = 1>(float[2,8,6,32] x)",
    "y = AveragePoolN<" LAST "kernel_shape = [3], strides = [2], pads = [1,0]>(float[3,11,24] x)",
    "y = AveragePoolN<" LAST "kernel_shape = [2,3,2], pads = [0,1,1,0,1,0]>(float[2,4,5,6,17] x)",
    "g = AveragePoolGrad<" SQUARE ", shape = [2,9,7,20]>(float[2,5,4,20] gy)",
    "g = AveragePoolGrad<" SQUARE ", count_include_pad = 1, shape = [2,9,7,32]>(float[2,5,4,32] gy)",
    "g = AveragePoolGrad<" LAST "kernel_shape = [2,3,2], shape = [2,4,5,6,16]>(float[2,3,3,5,16] gy)",
    NULL};

/* The gradient goes where MaxPoolN says that the largest element was. */
static const char *const largest[][2] = {
    {"g = MaxPoolGrad<" SQUARE ", shape = [2,9,7,20]>(float[2,5,4,20] gy, uint8[2,5,4,20] tap)",
     "y, tap = MaxPoolN<" SQUARE ">(float[2,9,7,20] x)"},
    {"g = MaxPoolGrad<" SQUARE ", ceil_mode = 1, shape = [2,8,6,48]>(float[2,5,4,48] gy, uint8[2,5,4,48] tap)",
     "y, tap = MaxPoolN<" SQUARE ", ceil_mode = 1>(float[2,8,6,48] x)"},
    {"g = MaxPoolGrad<" LAST "kernel_shape = [2,2,2], strides = [1,2,2], shape = [1,3,4,6,16]>"
     "(float[1,2,2,3,16] gy, uint8[1,2,2,3,16] tap)",
     "y, tap = MaxPoolN<" LAST "kernel_shape = [2,2,2], strides = [1,2,2]>(float[1,3,4,6,16] x)"},
    {"g = MaxPoolGrad<" LAST "kernel_shape = [3], dilations = [2], shape = [2,12,16]>"
     "(float[2,8,16] gy, uint8[2,8,16] tap)",
     "y, tap = MaxPoolN<" LAST "kernel_shape = [3], dilations = [2]>(float[2,12,16] x)"}};

static void test_rows(void **state)
{
    (void)state;
    if (!is_built()) skip();
    for (int i = 0; cases[i]; i++) compare(cases[i], NULL);
    for (size_t i = 0; i < sizeof largest / sizeof *largest; i++) compare(largest[i][0], largest[i][1]);
}

/* Squares along two axes of 42 and 44, every second one, with one element of pad in front. */
static bool has_pool(inv_dnnl_kind kind, bool padded, int64_t k, int64_t dil, int64_t pad_end)
{
    inv_dnnl_op o = inv_dnnl_op_of(kind, 2, 32);
    inv_window *w = &o.w;
    o.padded = padded;
    w->sd = 2;
    w->kvol = k * k;
    w->invol = w->outvol = 1;
    for (int i = 0; i < 3; i++) {
        const bool used = i > 0;
        w->in[i] = used ? 40 + 2 * i : 1;
        w->k[i] = used ? k : 1;
        w->stride[i] = used ? 2 : 1;
        w->dil[i] = used ? dil : 1;
        w->pad[i] = used ? 1 : 0;
        w->pad_end[i] = used ? pad_end : 0;
        w->out[i] = used ? (w->in[i] + 2 - dil * (k - 1) - 1) / 2 + 1 : 1;
        w->invol *= w->in[i];
        w->outvol *= w->out[i];
    }
    return inv_dnnl_has(&o);
}

/* The library has code of its own for fewer shapes where vectors are shorter. */
static bool has_avx2(void)
{
#ifdef __x86_64__
    return __builtin_cpu_supports("avx2") && !getenv("ONEDNN_MAX_CPU_ISA");
#else
    return false;
#endif
}

static void test_served(void **state)
{
    (void)state;
    if (!is_built()) skip();
    inv_dnnl_op o = inv_dnnl_op_of(INV_DNNL_LAYER_NORM_GRAD, 4, 16);
    o.bias = 1;
    assert_true(inv_dnnl_has(&o) || !has_avx2());
    o = inv_dnnl_op_of(INV_DNNL_LAYER_NORM, 0, 16);
    assert_false(inv_dnnl_has(&o));
    assert_true(has_pool(INV_DNNL_MAX_POOL_GRAD, false, 3, 1, 1) || !has_avx2());
    assert_true(has_pool(INV_DNNL_AVERAGE_POOL, false, 3, 1, 1) || !has_avx2());
    assert_true(has_pool(INV_DNNL_AVERAGE_POOL_GRAD, true, 3, 1, 1) || !has_avx2());
    assert_false(has_pool(INV_DNNL_AVERAGE_POOL, false, 3, 2, 1));
    assert_false(has_pool(INV_DNNL_AVERAGE_POOL, false, 9, 1, 1)); /* a sum of 81 elements in float32 */
    assert_false(has_pool(INV_DNNL_AVERAGE_POOL, true, 4, 1, 0));  /* the last window reaches beyond the pad */
}

/* Averages and normalised rows have a NaN wherever one goes in. */
static void test_nan(void **state)
{
    (void)state;
    if (!is_built()) skip();
    ops_env e;
    ops_begin(&e);
    ops_load(&e, "y = LayerNormApply(float[6,96] x, float[96] scale, float[96] bias)", "float", 0);
    ops_set(&e, e.g->inputs.at[0], 2 * 96 + 5, NAN);
    ops_set(&e, e.g->inputs.at[0], 4 * 96 + 7, INFINITY);
    ops_run(&e, 0);
    for (int64_t k = 0; k < 6 * 96; k++)
        assert_int_equal(isnan(ops_get(&e, e.g->outputs.at[0], k)) != 0, k / 96 == 2 || k / 96 == 4);
    ops_load(&e, "y = AveragePoolN<" LAST "kernel_shape = [2,2], strides = [2,2]>(float[1,4,4,16] x)", "float", 0);
    ops_set(&e, e.g->inputs.at[0], (4 * 2 + 3) * 16 + 5, NAN);
    ops_run(&e, 0);
    for (int64_t k = 0; k < 4 * 16; k++)
        assert_int_equal(isnan(ops_get(&e, e.g->outputs.at[0], k)) != 0, k == 3 * 16 + 5);
    ops_end(&e);
}

/* --- convolutions --- */

enum { BATCH = 32, SIDE = 8, BEHIND = 1 << 16 };

/* Channels last, a square image and filter, as much pad as keeps the extent. */
static inv_conv square(int64_t from, int64_t to, int64_t k, int64_t stride)
{
    const int64_t out = (SIDE - 1) / stride + 1, p = k / 2;
    inv_conv c = {.batch = BATCH, .group = 1, .cg = from, .mg = to};
    c.w = (inv_window){.sd = 2,
                       .in = {1, SIDE, SIDE},
                       .out = {1, out, out},
                       .k = {1, k, k},
                       .stride = {1, stride, stride},
                       .dil = {1, 1, 1},
                       .pad = {0, p, p},
                       .pad_end = {0, p, p},
                       .invol = SIDE * SIDE,
                       .outvol = out * out,
                       .kvol = k * k};
    return c;
}

/* sum: what the part gives, added up one product after the other; size: the same of what is added, without signs. */
static void convolve(const inv_conv *c, inv_conv_part part, const inv_conv_data *d, double *sum, double *size)
{
    const inv_window *w = &c->w;
    const float *x = d->x, *f = d->f, *y = d->y;
    const int64_t k = w->k[1], side = w->out[1], n = c->batch * w->outvol * w->kvol;
    for (int64_t i = 0; i < n; i++) {
        const int64_t q = i % w->kvol, o = i / w->kvol, image = o / w->outvol;
        const int64_t iy = o / side % side * w->stride[1] - w->pad[1] + q / k;
        const int64_t ix = o % side * w->stride[2] - w->pad[2] + q % k;
        if (iy < 0 || iy >= SIDE || ix < 0 || ix >= SIDE) continue;
        for (int64_t m = 0; m < c->mg; m++)
            for (int64_t a = 0; a < c->cg; a++) {
                const int64_t at_x = ((image * SIDE + iy) * SIDE + ix) * c->cg + a, at_y = o * c->mg + m;
                const int64_t at_f = (m * c->cg + a) * w->kvol + q;
                const int64_t to = part == INV_CONV_FORWARD ? at_y : part == INV_CONV_GRAD_X ? at_x : at_f;
                const double product = part == INV_CONV_FORWARD  ? (double)x[at_x] * f[at_f]
                                       : part == INV_CONV_GRAD_X ? (double)y[at_y] * f[at_f]
                                                                 : (double)x[at_x] * y[at_y];
                sum[to] += product;
                size[to] += fabs(product);
            }
    }
}

static float *waves(size_t n, double step)
{
    float *p = malloc(n * sizeof *p);
    for (size_t i = 0; i < n; i++) p[i] = (float)sin((double)i * step);
    return p;
}

/* Is the part served? If so it is what loops give, but for the rounding of what is added up, whose order is the
 * processor's; and it leaves alone what lies behind its scratch memory. */
static bool holds(const inv_conv *c, inv_conv_part part)
{
    if (!inv_dnnl_serves(c, part, INV_F32)) return false;
    const size_t nx = (size_t)(c->batch * c->cg * c->w.invol), ny = (size_t)(c->batch * c->mg * c->w.outvol);
    const size_t nf = (size_t)(c->cg * c->mg * c->w.kvol), scratch = inv_dnnl_workspace(c, part, false);
    const size_t n = part == INV_CONV_FORWARD ? ny : part == INV_CONV_GRAD_X ? nx : nf;
    const inv_conv_data d = {.x = waves(nx, 0.7), .f = waves(nf, 1.1), .y = waves(ny, 0.3)};
    const float *got = part == INV_CONV_FORWARD ? d.y : part == INV_CONV_GRAD_X ? d.x : d.f;
    double *sum = calloc(n, sizeof *sum), *size = calloc(n, sizeof *size);
    unsigned char *ws = aligned_alloc(64, inv_round64(scratch) + BEHIND);
    memset(ws, 0xa5, inv_round64(scratch) + BEHIND);
    convolve(c, part, &d, sum, size);
    assert_int_equal(inv_dnnl_conv(c, part, &d, ws), INV_OK);
    for (size_t i = 0; i < n; i++)
        if (!(fabs(got[i] - sum[i]) <= 1e-5 * size[i]))
            fail_msg("part %d of %lld to %lld channels: %g, by loops %g", (int)part, (long long)c->cg, (long long)c->mg,
                     got[i], sum[i]);
    for (size_t i = 0; i < BEHIND; i++)
        if (ws[scratch + i] != 0xa5)
            fail_msg("part %d of %lld to %lld channels writes behind its memory", (int)part, (long long)c->cg,
                     (long long)c->mg);
    free(d.x);
    free(d.f);
    free(d.y);
    free(sum);
    free(size);
    free(ws);
    return true;
}

static void test_convolutions(void **state)
{
    (void)state;
    static const int64_t channels[] = {3, 4, 7, 8, 12, 16, 20};
    enum { N = sizeof channels / sizeof *channels };
    int served = 0;
    if (!is_built()) skip();
    for (int i = 0; i < N; i++)
        for (int k = 1; k <= 3; k += 2)
            for (int stride = 1; stride <= 2; stride++)
                for (int part = 0; part < 3; part++) {
                    const inv_conv wide = square(channels[i], 16, k, stride);
                    const inv_conv narrow = square(channels[i], 4, k, stride);
                    served += holds(&wide, (inv_conv_part)part);
                    served += holds(&narrow, (inv_conv_part)part);
                }
#ifdef __x86_64__ /* for others Debian's oneDNN has none that is quicker than ours */
    assert_true(served > 0);
#endif
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_rows), cmocka_unit_test(test_served),
                                       cmocka_unit_test(test_nan), cmocka_unit_test(test_convolutions)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
