/* SPDX-License-Identifier: Apache-2.0
 * core/base/shape.c: types, shapes, conversions. */
#include "core_test.h"

#include <math.h>

static inv_shape shape(int rank, int64_t a, int64_t b, int64_t c) { return inv_shape_of(rank, (int64_t[]){a, b, c}); }

static void types_have_names(void **state)
{
    (void)state;
    for (int t = INV_F32; t <= INV_BF16; t++) {
        inv_dtype back;
        assert_true(inv_dtype_parse(inv_dtype_name((inv_dtype)t), &back));
        assert_int_equal(back, t);
    }
    inv_dtype none;
    assert_false(inv_dtype_parse("flaot", &none));
    assert_int_equal(inv_dtype_size(INV_STRING), 0);
    assert_int_equal(inv_dtype_size((inv_dtype)77), 0);
    assert_string_equal(inv_dtype_name((inv_dtype)77), "unknown");
    assert_true(inv_dtype_is_float(INV_BF16));
    assert_false(inv_dtype_is_float(INV_I64));
}

static void sizes_do_not_overflow(void **state)
{
    (void)state;
    size_t n;
    inv_shape s = shape(3, 2, 3, 4), zero = shape(2, 0, INT64_MAX, 0), huge = shape(3, INT64_MAX, 2, 1),
              big = shape(2, (int64_t)1 << 61, 1, 0), open = shape(2, 2, -1, 0), unknown = inv_shape_unknown(),
              scalar = inv_shape_scalar();
    assert_true(inv_shape_nbytes(&s, INV_F64, &n));
    assert_int_equal(n, 192);
    assert_true(inv_shape_nbytes(&zero, INV_F32, &n));
    assert_int_equal(n, 0);
    assert_false(inv_shape_nbytes(&huge, INV_U8, &n));
    assert_true(inv_shape_nelem(&huge) == INT64_MAX);
    assert_false(inv_shape_nbytes(&big, INV_F64, &n));
    assert_false(inv_shape_nbytes(&open, INV_F32, &n));
    assert_false(inv_shape_nbytes(&unknown, INV_F32, &n));
    assert_true(inv_shape_nbytes(&scalar, INV_F32, &n));
    assert_int_equal(n, 4);
    assert_false(inv_shape_is_static(&open));
    assert_int_equal(inv_shape_of(INV_MAX_RANK + 1, (int64_t[9]){0}).rank, -1);
}

static void broadcasting(void **state)
{
    (void)state;
    inv_shape out, a = shape(3, 2, 1, 4), b = shape(2, 3, 1, 0), c = shape(1, 5, 0, 0), s = inv_shape_scalar(),
                   open = shape(1, -1, 0, 0), u = inv_shape_unknown();
    assert_true(inv_shape_broadcast(&a, &b, &out));
    inv_shape want = shape(3, 2, 3, 4);
    assert_true(inv_shape_equal(&out, &want));
    assert_false(inv_shape_broadcast(&a, &c, &out));
    assert_true(inv_shape_broadcast(&s, &a, &out) && inv_shape_equal(&out, &a));
    assert_true(inv_shape_broadcast(&open, &c, &out) && inv_shape_equal(&out, &c));
    assert_true(inv_shape_broadcast(&u, &a, &out));
    assert_int_equal(out.rank, -1);
}

static void texts(void **state)
{
    (void)state;
    char buf[INV_SHAPE_TEXT];
    inv_shape s = shape(3, 2, 3, -1), u = inv_shape_unknown(), z = inv_shape_scalar(), big = {.rank = 8};
    assert_string_equal(inv_shape_text(&s, buf), "[2,3,?]");
    assert_string_equal(inv_shape_text(&u, buf), "[...]");
    assert_string_equal(inv_shape_text(&z, buf), "[]");
    for (int i = 0; i < 8; i++) big.dim[i] = INT64_MAX;
    assert_true(strlen(inv_shape_text(&big, buf)) < INV_SHAPE_TEXT);
    assert_non_null(strstr(buf, ",...]"));
}

static void half_floats(void **state)
{
    (void)state;
    /* every finite value of 16 bits survives double and back */
    for (unsigned h = 0; h < 65536; h++) {
        uint16_t in = (uint16_t)h, out;
        const inv_dtype t[] = {INV_F16, INV_BF16};
        for (int k = 0; k < 2; k++) {
            double v = inv_elem_double(&in, t[k], 0);
            assert_true(inv_convert(&out, t[k], &v, INV_F64, 1));
            if (isnan(v)) assert_true(isnan(inv_elem_double(&out, t[k], 0)));
            else assert_int_equal(in, out);
        }
    }
    const struct {
        double v;
        uint16_t f16;
    } known[] = {{1, 0x3c00},
                 {65504, 0x7bff},
                 {65519.99, 0x7bff},
                 {65520, 0x7c00},
                 {-2, 0xc000},
                 {0x1p-24, 1},
                 {0x1p-25, 0},
                 {0x1.8p-24, 2},
                 {0x1p-14, 0x0400},
                 {1 + 0x1p-11, 0x3c00}, /* half to even */
                 {1 + 0x1.8p-10, 0x3c02},
                 {1 + 0x1p-11 + 0x1p-40, 0x3c01},
                 {2 - 0x1p-12, 0x4000},
                 {1e300, 0x7c00}};
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        uint16_t h;
        assert_true(inv_convert(&h, INV_F16, &known[i].v, INV_F64, 1));
        assert_int_equal(h, known[i].f16);
    }
}

static void conversions(void **state)
{
    (void)state;
    unsigned char raw[1 + 4 * 8];
    double d[4] = {1.9, -1.9, 1e30, (double)NAN};
    int64_t i[4];
    memcpy(raw + 1, d, sizeof d); /* unaligned, as in a file */
    assert_true(inv_convert(i, INV_I64, raw + 1, INV_F64, 4));
    assert_true(i[0] == 1 && i[1] == -1 && i[2] == INT64_MAX && i[3] == 0);
    int64_t big = ((int64_t)1 << 40) + 3;
    int32_t w;
    float f;
    assert_true(inv_convert(&w, INV_I32, &big, INV_I64, 1));
    assert_int_equal(w, 3);
    /* by way of double this would round twice, to 2^60 + 2^37 */
    int64_t twice = ((int64_t)1 << 60) + ((int64_t)1 << 36) + 1;
    assert_true(inv_convert(&f, INV_F32, &twice, INV_I64, 1));
    assert_true(f == (float)twice);
    uint64_t u = UINT64_MAX;
    assert_true(inv_convert(&f, INV_F32, &u, INV_U64, 1));
    assert_true(f == 0x1p64f);
    unsigned char b;
    f = 0.25f;
    assert_true(inv_convert(&b, INV_BOOL, &f, INV_F32, 1));
    assert_int_equal(b, 1);
    uint8_t pixel = 200;
    assert_true(inv_convert(&f, INV_F32, &pixel, INV_U8, 1));
    assert_true(f == 200.0f);
    assert_false(inv_convert(&f, INV_F32, d, INV_C64, 1));
    assert_false(inv_convert(&f, INV_STRING, d, INV_F64, 1));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(types_have_names), cmocka_unit_test(sizes_do_not_overflow),
        cmocka_unit_test(broadcasting),     cmocka_unit_test(texts),
        cmocka_unit_test(half_floats),      cmocka_unit_test(conversions),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
