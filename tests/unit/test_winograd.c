/* SPDX-License-Identifier: Apache-2.0
 * Convolutions by tiles beside those by column matrices: several bands, which reach over images, odd extents, uneven
 * pads, filters that are large enough for fewer sums, and channels last. */
#include "ops_run.h"

#ifdef _OPENMP
#include <omp.h>
#endif

#include "ops/conv/conv.h"
#include "ops/conv/winograd.h"

typedef struct image {
    int64_t batch, in, out, h, w, pad[2], pad_end[2];
} image;

static inv_conv conv_of(const image *m)
{
    inv_conv c = {.batch = m->batch, .group = 1, .cg = m->in, .mg = m->out};
    c.w.sd = 2;
    c.w.kvol = 9;
    c.w.invol = m->h * m->w;
    for (int i = 0; i < 3; i++) {
        c.w.stride[i] = c.w.dil[i] = 1;
        c.w.in[i] = i == 0 ? 1 : i == 1 ? m->h : m->w;
        c.w.k[i] = i == 0 ? 1 : 3;
        if (i > 0) c.w.pad[i] = m->pad[i - 1], c.w.pad_end[i] = m->pad_end[i - 1];
        c.w.out[i] = i == 0 ? 1 : c.w.in[i] + c.w.pad[i] + c.w.pad_end[i] - 2;
    }
    c.w.outvol = c.w.out[1] * c.w.out[2];
    return c;
}

static float *numbers(int64_t n)
{
    float *x = test_malloc((size_t)n * sizeof(float));
    for (int64_t i = 0; i < n; i++) x[i] = (float)ops_random();
    return x;
}

static void same(int64_t n, const float *got, const float *want)
{
    double largest = 0, off = 0;
    for (int64_t i = 0; i < n; i++) {
        largest = fmax(largest, fabs((double)want[i]));
        off = fmax(off, fabs((double)got[i] - (double)want[i]));
    }
    assert_true(off <= 1e-5 * largest);
}

static void compare(const image *m)
{
    const inv_conv c = conv_of(m);
    const int64_t nx = m->batch * m->in * c.w.invol, ny = m->batch * m->out * c.w.outvol, nf = 9 * m->in * m->out;
    float *x = numbers(nx), *f = numbers(nf), *bias = numbers(m->out), *gy = numbers(ny);
    float *got = numbers(nx + ny + nf), *want = numbers(nx + ny + nf);
    const size_t sizes[] = {inv_winograd_workspace(&c, false, true), inv_winograd_workspace(&c, true, true),
                            inv_conv_workspace(&c, INV_F32), inv_conv_grad_x_workspace(&c, INV_F32),
                            inv_conv_grad_w_workspace(&c, INV_F32)};
    void *ws[5];
    for (int i = 0; i < 5; i++) ws[i] = test_malloc(sizes[i] + 1);
    assert_true(inv_winograd_serves(&c, INV_F32));
    inv_winograd(&c, x, f, bias, got, ws[0], sizes[0]);
    inv_winograd_grad_x(&c, gy, f, got + ny, ws[0], sizes[0]);
    inv_winograd_grad_w(&c, x, gy, got + ny + nx, ws[1], sizes[1]);
    inv_conv_f32(&c, x, f, bias, want, ws[2], sizes[2]);
    inv_conv_grad_x_f32(&c, gy, f, want + ny, ws[3], sizes[3]);
    inv_conv_grad_w_f32(&c, x, gy, want + ny + nx, ws[4], sizes[4]);
    same(ny, got, want);
    same(nx, got + ny, want + ny);
    same(nf, got + ny + nx, want + ny + nx);
    for (int i = 0; i < 5; i++) test_free(ws[i]);
    float *all[] = {x, f, bias, gy, got, want};
    for (int i = 0; i < 6; i++) test_free(all[i]);
}

/* Images of `channels` planes of `pixels` numbers with their channels last. */
static float *turned(const float *x, int64_t batch, int64_t channels, int64_t pixels)
{
    float *y = test_malloc((size_t)(batch * channels * pixels) * sizeof(float));
    for (int64_t n = 0; n < batch; n++)
        for (int64_t c = 0; c < channels; c++)
            for (int64_t i = 0; i < pixels; i++)
                y[(n * pixels + i) * channels + c] = x[(n * channels + c) * pixels + i];
    return y;
}

static void compare_last(const image *m)
{
    inv_conv c = conv_of(m);
    const int64_t nx = m->batch * m->in * c.w.invol, ny = m->batch * m->out * c.w.outvol, nf = 9 * m->in * m->out;
    float *x = numbers(nx), *f = numbers(nf), *bias = numbers(m->out), *gy = numbers(ny);
    float *got = numbers(nx + ny + nf), *want = numbers(nx + ny + nf);
    float *x_last = turned(x, m->batch, m->in, c.w.invol), *gy_last = turned(gy, m->batch, m->out, c.w.outvol);
    const size_t sizes[] = {inv_conv_workspace(&c, INV_F32), inv_conv_grad_x_workspace(&c, INV_F32),
                            inv_conv_grad_w_workspace(&c, INV_F32)};
    for (int i = 0; i < 3; i++) {
        void *ws = test_malloc(sizes[i] + 1);
        if (i == 0) inv_conv_f32(&c, x, f, bias, want, ws, sizes[i]);
        else if (i == 1) inv_conv_grad_x_f32(&c, gy, f, want + ny, ws, sizes[i]);
        else inv_conv_grad_w_f32(&c, x, gy, want + ny + nx, ws, sizes[i]);
        test_free(ws);
    }
    c.last = true;
    assert_true(inv_winograd_serves(&c, INV_F32));
    for (int i = 0; i < 3; i++) {
        const size_t nbytes = inv_winograd_workspace(&c, i == 2, true);
        void *ws = test_malloc(nbytes);
        if (i == 0) inv_winograd(&c, x_last, f, bias, got, ws, nbytes);
        else if (i == 1) inv_winograd_grad_x(&c, gy_last, f, got + ny, ws, nbytes);
        else inv_winograd_grad_w(&c, x_last, gy_last, got + ny + nx, ws, nbytes);
        test_free(ws);
    }
    float *y_last = turned(want, m->batch, m->out, c.w.outvol),
          *gx_last = turned(want + ny, m->batch, m->in, c.w.invol);
    same(ny, got, y_last);
    same(nx, got + ny, gx_last);
    same(nf, got + ny + nx, want + ny + nx);
    float *all[] = {x, f, bias, gy, got, want, x_last, gy_last, y_last, gx_last};
    for (int i = 0; i < 10; i++) test_free(all[i]);
}

static void tiles_give_what_column_matrices_give(void **state)
{
    static const image images[] = {
        {3, 16, 19, 5, 33, {1, 1}, {1, 1}}, {5, 17, 16, 7, 66, {0, 2}, {2, 1}}, {2, 32, 32, 32, 32, {1, 1}, {1, 1}},
        {1, 16, 16, 3, 1, {1, 1}, {1, 1}},  {2, 23, 31, 1, 16, {1, 1}, {1, 1}}, {2, 64, 64, 9, 9, {2, 2}, {2, 2}},
    };
    (void)state;
    for (size_t i = 0; i < sizeof images / sizeof *images; i++) compare(&images[i]);
}

/* On processors whose products of packed matrices are our own. */
static void large_filters_too(void **state)
{
    static const image large = {3, 130, 129, 5, 6, {1, 1}, {1, 1}};
    const inv_conv c = conv_of(&large);
    (void)state;
    if (!inv_winograd_serves(&c, INV_F32)) skip();
    compare(&large);
}

/* Whole vectors of channels only, and more of them. */
static void channels_last(void **state)
{
    static const image images[] = {
        {3, 16, 48, 5, 33, {1, 1}, {1, 1}}, {5, 32, 16, 7, 66, {0, 2}, {2, 1}}, {2, 32, 32, 32, 32, {1, 1}, {1, 1}},
        {44, 16, 16, 3, 1, {1, 1}, {1, 1}}, {4, 64, 64, 9, 9, {2, 2}, {2, 2}},  {22, 128, 128, 5, 5, {1, 1}, {1, 1}},
    };
    static const image small = {9, 256, 256, 2, 3, {1, 1}, {1, 1}}; /* beside its filters */
    inv_conv c = conv_of(&images[0]);
    (void)state;
    c.last = true;
    if (!inv_winograd_serves(&c, INV_F32)) skip();
    for (size_t i = 0; i < sizeof images / sizeof *images; i++) compare_last(&images[i]);
    c.cg = 24;
    assert_false(inv_winograd_serves(&c, INV_F32));
    c = conv_of(&small);
    c.last = true;
    assert_false(inv_winograd_serves(&c, INV_F32));
}

static void set_threads(int n)
{
#ifdef _OPENMP
    omp_set_num_threads(n);
#else
    (void)n;
#endif
}

enum { SIXTHS = 6 };

static int threads_now(void)
{
#ifdef _OPENMP
    return omp_get_max_threads();
#else
    return 1;
#endif
}

/* So many sixths of the way from the least scratch memory to what is the quickest. */
static size_t room_of(const inv_conv *c, bool grad_w, size_t sixths)
{
    const size_t least = inv_winograd_workspace(c, grad_w, false), most = inv_winograd_workspace(c, grad_w, true);
    assert_true(least <= most);
    return least + (most - least) * sixths / SIXTHS;
}

/* y, x's and the filter's gradient, with scratch memory for `planned` threads, by `running` ones. */
static void all_parts(const inv_conv *c, const float *x, const float *f, const float *gy, int planned, int running,
                      size_t sixths, float *const out[3])
{
    set_threads(planned);
    const size_t sizes[] = {room_of(c, false, sixths), room_of(c, true, sixths)};
    void *ws[] = {test_malloc(sizes[0]), test_malloc(sizes[1])};
    set_threads(running);
    inv_winograd(c, x, f, NULL, out[0], ws[0], sizes[0]);
    inv_winograd_grad_x(c, gy, f, out[1], ws[0], sizes[0]);
    inv_winograd_grad_w(c, x, gy, out[2], ws[1], sizes[1]);
    test_free(ws[0]);
    test_free(ws[1]);
}

static void compare_threads(const inv_conv *c)
{
    static const int threads[][2] = {{1, 1}, {2, 2}, {8, 8}, {1, 8}, {8, 1}, {3, 2}};
    const int64_t sizes[] = {c->batch * c->mg * c->w.outvol, c->batch * c->cg * c->w.invol, 9 * c->cg * c->mg};
    float *x = numbers(sizes[1]), *f = numbers(sizes[2]), *gy = numbers(sizes[0]), *first[3], *out[3];
    for (int k = 0; k < 3; k++) first[k] = numbers(sizes[k]), out[k] = numbers(sizes[k]);
    for (size_t i = 0; i < sizeof threads / sizeof *threads; i++)
        for (size_t sixths = 0; sixths <= SIXTHS; sixths++) {
            const bool later = i || sixths;
            all_parts(c, x, f, gy, threads[i][0], threads[i][1], sixths, later ? out : first);
            for (int k = 0; k < 3 && later; k++)
                assert_memory_equal(out[k], first[k], (size_t)sizes[k] * sizeof(float));
        }
    for (int k = 0; k < 3; k++) test_free(first[k]), test_free(out[k]);
    test_free(x);
    test_free(f);
    test_free(gy);
}

/* Whatever number of them it was planned for, and however much scratch memory there is. */
static void any_number_of_threads_and_room_give_the_same_bits(void **state)
{
    static const image images[] = {{3, 32, 48, 35, 33, {1, 1}, {1, 1}},
                                   {5, 16, 32, 7, 66, {0, 2}, {2, 1}},
                                   {1, 16, 16, 1, 1, {1, 1}, {1, 1}},
                                   {6, 112, 208, 12, 11, {1, 1}, {1, 1}}};
    (void)state;
    const int before = threads_now();
    for (size_t i = 0; i < 2 * (sizeof images / sizeof *images); i++) {
        inv_conv c = conv_of(&images[i / 2]);
        c.last = i % 2;
        if (inv_winograd_serves(&c, INV_F32)) compare_threads(&c);
    }
    set_threads(before);
}

/* Large filters are transformed by blocks, and threads share tiles, so this hardly grows with either. */
static void little_scratch_memory_is_enough(void **state)
{
    static const int64_t channels[] = {64, 128, 256};
    const int before = threads_now();
    (void)state;
    for (size_t i = 0; i < sizeof channels / sizeof *channels; i++) {
        const image m = {8, channels[i], channels[i], 16, 16, {1, 1}, {1, 1}};
        inv_conv c = conv_of(&m);
        c.last = true;
        if (!inv_winograd_serves(&c, INV_F32)) skip();
        for (int threads = 1; threads <= 8; threads *= 2) {
            set_threads(threads);
            for (int grad_w = 0; grad_w < 2; grad_w++)
                assert_true(inv_winograd_workspace(&c, grad_w, false) <= (1 << 20) + (size_t)threads * (24 << 10));
        }
    }
    set_threads(before);
}

/* NaN comes out where column matrices have it, and nowhere else, however tiles lie to it. */
static void nan_spreads_no_further(void **state)
{
    static const image odd = {2, 16, 32, 7, 9, {1, 0}, {1, 2}};
    inv_conv c = conv_of(&odd);
    const int64_t nx = odd.batch * odd.in * c.w.invol, ny = odd.batch * odd.out * c.w.outvol;
    const size_t plain = inv_conv_workspace(&c, INV_F32);
    float *x = numbers(nx), *f = numbers(9 * odd.in * odd.out), *want = numbers(ny), *got = numbers(ny);
    void *plain_ws = test_malloc(plain + 1);
    (void)state;
    for (int i = 0; i < 8; i++) {
        const int64_t at = i * (nx - 1) / 7;
        const float before = x[at];
        x[at] = NAN;
        c.last = false;
        inv_conv_f32(&c, x, f, NULL, want, plain_ws, plain);
        for (int last = 0; last < 2; last++) {
            c.last = last;
            if (!inv_winograd_serves(&c, INV_F32)) continue;
            float *xs = last ? turned(x, odd.batch, odd.in, c.w.invol) : x;
            float *ys = last ? turned(want, odd.batch, odd.out, c.w.outvol) : want;
            const size_t nbytes = inv_winograd_workspace(&c, false, true);
            void *ws = test_malloc(nbytes);
            inv_winograd(&c, xs, f, NULL, got, ws, nbytes);
            for (int64_t k = 0; k < ny; k++) assert_int_equal(isnan(got[k]) != 0, isnan(ys[k]) != 0);
            test_free(ws);
            if (last) test_free(xs), test_free(ys);
        }
        x[at] = before;
    }
    test_free(plain_ws);
    float *all[] = {x, f, want, got};
    for (int i = 0; i < 4; i++) test_free(all[i]);
}

static void what_is_not_for_tiles(void **state)
{
    static const image square = {2, 32, 32, 8, 8, {1, 1}, {1, 1}};
    const inv_conv c = conv_of(&square);
    inv_conv other[8];
    (void)state;
    for (int i = 0; i < 8; i++) other[i] = c;
    other[0].w.stride[1] = other[1].w.stride[2] = other[2].w.dil[1] = other[3].w.dil[2] = 2;
    other[4].w.pad[1] = -1;
    other[5].w.pad_end[2] = 3;
    other[6].batch = 0;
    other[7].group = 2;
    assert_true(inv_winograd_serves(&c, INV_F32));
    assert_false(inv_winograd_serves(&c, INV_F64));
    for (int i = 0; i < 8; i++) assert_false(inv_winograd_serves(&other[i], INV_F32));
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(tiles_give_what_column_matrices_give),
                                       cmocka_unit_test(any_number_of_threads_and_room_give_the_same_bits),
                                       cmocka_unit_test(what_is_not_for_tiles),
                                       cmocka_unit_test(nan_spreads_no_further),
                                       cmocka_unit_test(large_filters_too),
                                       cmocka_unit_test(little_scratch_memory_is_enough),
                                       cmocka_unit_test(channels_last)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
