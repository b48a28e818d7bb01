/* SPDX-License-Identifier: Apache-2.0
 * Adam with moments of 8 bits: what codes stand for, that they are right in the mean, that a training follows AdamW's,
 * is the same on all devices and goes on with equal bits from a saved state. Fails if a second moment becomes 0, or if
 * moments that change little stay what they are. */
#include "updates_run.h"

#include "ops/train/adam8.h"

/* 6 x 1,024 and 1,024 x 6 are large enough for codes, the bias is not. */
static const char wide[] = "g(float[4,6] x) => (y) {\n"
                           "param float[6,1024] w\nparam float[1024] b\nparam float[1024,6] v\n"
                           "a = MatMul(x, w)\nc = Add(a, b)\nd = Tanh(c)\ny = MatMul(d, v)\n}\n";
enum { WIDE = 6 * 1024 };

static void codes_are_near_what_they_stand_for(void **state)
{
    (void)state;
    for (uint32_t code = 0; code <= INV_MOST_SECOND; code++) {
        const float x = inv_decode_second((uint8_t)code, 1);
        assert_int_equal(inv_encode_second(x, 1, 0), code);
        assert_int_equal(inv_encode_second(x, 1, 0xfffff), code < INV_MOST_SECOND ? code : INV_MOST_SECOND);
        if (code > 0) assert_true(x > inv_decode_second((uint8_t)(code - 1), 1));
    }
    assert_true(inv_decode_second(INV_MOST_SECOND, 1) == INV_TOP8 && inv_decode_first(INV_MOST_FIRST, 1) == INV_TOP8);
    for (uint32_t code = 0; code < 256; code++) /* there is a negative zero, which nothing becomes */
        if (code != INV_MOST_FIRST + 1)
            assert_int_equal(inv_encode_first(inv_decode_first((uint8_t)code, 2), 0.5f, 0), code);
    for (float x = INV_TOP8; x > 0x1p-30f; x *= 0.77f) {
        const float near = inv_decode_second(inv_encode_second(x, 1, 0x3a5c7), 1);
        assert_true(fabsf(near - x) <= x / 8);
        const float signed_near = inv_decode_first(inv_encode_first(-x, 1, 0x3a5c7), 1);
        assert_true(fabsf(signed_near + x) <= fmaxf(x / 8, 0x1p-17f));
    }
}

static void codes_are_right_in_the_mean(void **state)
{
    (void)state;
    enum { N = 200000 };
    for (float x = 1.8f; x > 1e-4f; x *= 0.31f) {
        double first = 0, second = 0;
        for (uint32_t i = 0; i < N; i++) {
            const uint32_t chance = inv_mix32(i);
            first += (double)inv_decode_first(inv_encode_first(-x, 1, chance), 1) / N;
            second += (double)inv_decode_second(inv_encode_second(x, 1, inv_mix32(chance)), 1) / N;
        }
        assert_true(fabs(first + (double)x) < 1e-3 * (double)x);
        assert_true(fabs(second - (double)x) < 1e-3 * (double)x);
    }
}

static void a_second_moment_never_becomes_zero(void **state)
{
    (void)state;
    for (float x = 1; x > 0; x /= 3) assert_true(inv_encode_second(x, 1, 0) > 0);
    assert_int_equal(inv_encode_second(0, 1, 0xfffff), 0);
    assert_int_equal(inv_encode_first(0, 1, 0xfffff), 0);
    assert_true(inv_over8(0) == 0.0f && inv_over8(4) == 0.25f);
}

static run begin_wide(inv_optimizer optimizer, const char *device)
{
    inv_session_options o = of(optimizer);
    model_text = wide;
    o.device = device;
    o.weight_decay = 0.01;
    o.seed = 7;
    run r = begin(o, ROWS, 0);
    model_text = text;
    return r;
}

static void training_follows_adamw(void **state)
{
    (void)state;
    run a = begin_wide(INV_OPT_ADAMW, "cpu"), b = begin_wide(INV_OPT_ADAMW8, "cpu");
    double first = 0;
    for (int i = 0; i < 200; i++) {
        const double exact = step_once(&a, 1e-4).loss, got = step_once(&b, 1e-4).loss;
        if (i == 0) first = exact;
        if (!(fabs(got - exact) < 0.02 * fmax(exact, 0.01 * first)))
            fail_msg("step %d: a loss of %g, adamw's is %g", i, got, exact);
    }
    end(&a);
    end(&b);
}

static void devices_agree(void **state)
{
    static float on[NDEVICES][WIDE];
    (void)state;
    for (int d = 0; d < NDEVICES; d++) {
        run r = begin_wide(INV_OPT_ADAMW8, devices[d]);
        for (int i = 0; i < 3; i++) (void)step_once(&r, 1e-3);
        (void)get(&r, INV_GET_PARAM, "w", on[d]);
        end(&r);
    }
    /* A rounding of the last bit can lead to another code, an eighth of a moment away: a part of a step. */
    for (int d = 1; d < NDEVICES; d++) close_to(on[0], on[d], WIDE, 5e-4);
}

static void a_saved_state_goes_on_with_equal_bits(void **state)
{
    static float whole[WIDE], resumed[WIDE];
    char path[] = "/tmp/adam8_XXXXXX";
    (void)state;
    const int fd = mkstemp(path);
    assert_true(fd >= 0);
    close(fd);
    run a = begin_wide(INV_OPT_ADAMW8, "cpu"), b = begin_wide(INV_OPT_ADAMW8, "cpu");
    for (int i = 0; i < 3; i++) (void)step_once(&a, 1e-3);
    need(inv_session_save_state(a.s, path, NULL));
    need(inv_session_load_state(b.s, path, NULL));
    for (int i = 0; i < 3; i++) {
        (void)step_once(&a, 1e-3);
        (void)step_once(&b, 1e-3);
    }
    (void)get(&a, INV_GET_PARAM, "w", whole);
    (void)get(&b, INV_GET_PARAM, "w", resumed);
    assert_memory_equal(whole, resumed, sizeof whole);
    unlink(path);
    end(&a);
    end(&b);
}

static size_t state_bytes(inv_optimizer optimizer)
{
    run r = begin_wide(optimizer, "cpu");
    size_t n = 0;
    for (size_t i = 0; i < r.s->program->storage.n; i++)
        if (r.s->program->storage.at[i].kind == INV_STORAGE_OPTIM) n += r.s->program->storage.at[i].nbytes;
    end(&r);
    return n;
}

static void states_take_a_quarter(void **state)
{
    (void)state;
    enum { BIAS = 1024, CODES = 2 * WIDE };
    assert_int_equal(state_bytes(INV_OPT_ADAMW), 2 * sizeof(float) * (CODES + BIAS));
    assert_int_equal(state_bytes(INV_OPT_ADAMW8),
                     2 * (CODES + sizeof(float) * CODES / INV_BLOCK8 + sizeof(float) * BIAS));
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(codes_are_near_what_they_stand_for),
                                       cmocka_unit_test(codes_are_right_in_the_mean),
                                       cmocka_unit_test(a_second_moment_never_becomes_zero),
                                       cmocka_unit_test(training_follows_adamw),
                                       cmocka_unit_test(devices_agree),
                                       cmocka_unit_test(a_saved_state_goes_on_with_equal_bits),
                                       cmocka_unit_test(states_take_a_quarter)};
    return cmocka_run_group_tests(tests, setup, teardown);
}
