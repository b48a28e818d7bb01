/* SPDX-License-Identifier: Apache-2.0
 * Small element types: what their bit patterns mean, and rounding to them, which is held to the patterns. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "core/graph/ir.h"
#include "with_context.h"

static double pattern(inv_dtype t, unsigned v)
{
    const uint8_t byte = (uint8_t)v;
    return inv_small_elem(&byte, t, 0);
}

/* Largest and smallest numbers, infinities and NaN of each type, from its definition. */
static void test_patterns(void **state)
{
    (void)state;
    static const struct {
        int t;
        unsigned v;
        double x;
    } some[] = {
        {INV_F8E4M3FN, 0x7e, 448},
        {INV_F8E4M3FN, 0x01, 0x1p-9},
        {INV_F8E4M3FN, 0xc0, -2},
        {INV_F8E4M3FN, 0x80, 0},
        {INV_F8E4M3FN, 0x7f, NAN},
        {INV_F8E4M3FN, 0xff, NAN},
        {INV_F8E4M3FNUZ, 0x7f, 240},
        {INV_F8E4M3FNUZ, 0x01, 0x1p-10},
        {INV_F8E4M3FNUZ, 0x80, NAN},
        {INV_F8E5M2, 0x7b, 57344},
        {INV_F8E5M2, 0x01, 0x1p-16},
        {INV_F8E5M2, 0x7c, INFINITY},
        {INV_F8E5M2, 0xfc, -INFINITY},
        {INV_F8E5M2, 0x7d, NAN},
        {INV_F8E5M2FNUZ, 0x7f, 57344},
        {INV_F8E5M2FNUZ, 0x01, 0x1p-17},
        {INV_F8E5M2FNUZ, 0x80, NAN},
        {INV_F4E2M1, 0x7, 6},
        {INV_F4E2M1, 0x1, 0.5},
        {INV_F4E2M1, 0xa, -1},
        {INV_F8E8M0, 0x7f, 1},
        {INV_F8E8M0, 0x00, 0x1p-127},
        {INV_F8E8M0, 0xff, NAN},
        {INV_U4, 0xf, 15},
        {INV_I4, 0x8, -8},
        {INV_I4, 0x7, 7},
        {INV_U2, 0x3, 3},
        {INV_I2, 0x2, -2},
    };
    for (size_t i = 0; i < sizeof some / sizeof *some; i++) {
        const double x = pattern((inv_dtype)some[i].t, some[i].v);
        if (isnan(some[i].x) ? !isnan(x) : x != some[i].x)
            fail_msg("%s 0x%02x is %g, not %g", inv_dtype_name((inv_dtype)some[i].t), some[i].v, x, some[i].x);
    }
    const uint8_t packed[2] = {0x21, 0x43}, quarter[1] = {0xe4};
    for (size_t i = 0; i < 4; i++) {
        assert_true(inv_small_elem(packed, (inv_dtype)INV_U4, i) == (double)(i + 1));
        assert_true(inv_small_elem(quarter, (inv_dtype)INV_U2, i) == (double)i);
    }
    float four[4];
    assert_true(inv_convert(four, INV_F32, packed, (inv_dtype)INV_U4, 4));
    assert_true(four[0] == 1 && four[3] == 4);
    assert_false(inv_convert(four, (inv_dtype)INV_U4, packed, INV_F32, 4));
}

/* RoundSmall of x, by folding. */
static double rounded(int t, double x, int saturate, inv_dtype real)
{
    inv_graph *g = NULL;
    assert_int_equal(inv_graph_create(ctx, "g", &g), INV_OK);
    g->fold = true;
    g->real = real;
    inv_id v = inv_emit1(g, "RoundSmall", INV_IN(inv_graph_const_real(g, real, x)),
                         INV_ATTRS(inv_attr_of_float("format", t), inv_attr_of_float("saturate", saturate)));
    if (v == INV_NONE) fail_msg("%s", inv_context_message(ctx));
    const double y = inv_elem_double(inv_val(g, v)->data.bytes, real, 0);
    inv_graph_destroy(g);
    return y;
}

/* Every number of the type rounds to itself, and what lies between two to the nearer one, a middle to the even. */
static void check_rounding(int t, inv_dtype real)
{
    const unsigned patterns = (1u << inv_dtype_bits((inv_dtype)t)) / 2; /* not negative, rising */
    for (unsigned v = 0; v + 1 < patterns; v++) {
        const double a = pattern((inv_dtype)t, v), b = pattern((inv_dtype)t, v + 1), middle = (a + b) / 2;
        if (!isfinite(a)) continue;
        const double even = v % 2 == 0 ? a : b;
        assert_true(rounded(t, a, 0, real) == a);
        assert_true(rounded(t, -a, 1, real) == -a);
        if (!isfinite(b)) continue;
        assert_true(rounded(t, middle, 1, real) == even);
        assert_true(rounded(t, middle - (b - a) / 64, 1, real) == a);
        assert_true(rounded(t, middle + (b - a) / 64, 1, real) == b);
        assert_true(rounded(t, -middle - (b - a) / 64, 1, real) == -b);
    }
}

static void test_rounding(void **state)
{
    (void)state;
    static const int types[] = {INV_F8E4M3FN, INV_F8E4M3FNUZ, INV_F8E5M2, INV_F8E5M2FNUZ, INV_F4E2M1};
    for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
        check_rounding(types[i], INV_F32);
        check_rounding(types[i], INV_F64);
    }
    static const double beyond[] = {1e6, INFINITY, 3e38};
    for (size_t i = 0; i < 3; i++) {
        const double x = beyond[i];
        assert_true(rounded(INV_F8E4M3FN, x, 1, INV_F32) == 448);
        assert_true(isnan(rounded(INV_F8E4M3FN, x, 0, INV_F32)));
        assert_true(rounded(INV_F8E4M3FNUZ, -x, 1, INV_F32) == -240);
        assert_true(rounded(INV_F8E5M2, x, 1, INV_F32) == 57344);
        assert_true(rounded(INV_F8E5M2, -x, 0, INV_F32) == -INFINITY);
        assert_true(isnan(rounded(INV_F8E5M2FNUZ, x, 0, INV_F32)));
        assert_true(rounded(INV_F4E2M1, -x, 0, INV_F32) == -6);
    }
    assert_true(rounded(INV_F8E4M3FN, 463.9, 0, INV_F32) == 448); /* the nearest is still the largest */
    assert_true(isnan(rounded(INV_F8E5M2, NAN, 1, INV_F32)));
    assert_true(rounded(INV_F8E8M0, 1.1, 1, INV_F32) == 2);
    assert_true(rounded(INV_F8E8M0, 1.9, 2, INV_F32) == 1);
    assert_true(rounded(INV_F8E8M0, 1.4, 3, INV_F32) == 1);
    assert_true(rounded(INV_F8E8M0, 1.5, 3, INV_F32) == 2);
    assert_true(rounded(INV_F8E8M0, 0, 1, INV_F64) == 0x1p-127);
    assert_true(rounded(INV_F8E8M0, INFINITY, 1, INV_F32) == 0x1p127);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_patterns), cmocka_unit_test(test_rounding)};
    return cmocka_run_group_tests(tests, setup, teardown);
}
