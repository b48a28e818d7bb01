/* SPDX-License-Identifier: Apache-2.0
 * Weights in bfloat16: gradients are those of the same numbers in float32, in
 * products, tables and convolutions; updates are right in the mean; modes, accumulation and a saved state give equal
 * bits. Fails if a copy in float32 persists, or if what cannot be had together is not refused. */
#include "updates_run.h"

#include "ops/train/rounding.h"

enum { MOST_ELEMENTS = 6 * 1024 };

/* w is read by a product, v turned by another; the bias is small and stays as it is. */
static const char wide[] =
    "g(float[4,6] x) => (y) {\n"
    "param float[6,1024] w\nparam float[1024] b\nparam float[6,1024] v\n"
    "a = MatMul(x, w)\nc = Add(a, b)\nd = Tanh(c)\nt = Transpose<perm = [1,0]>(v)\ny = MatMul(d, t)\n"
    "}\n";
static run begin_small(const char *model, inv_optimizer optimizer, inv_dtype weights, inv_memory memory,
                       bool accumulate)
{
    inv_session_options o = of(optimizer);
    model_text = model;
    o.weights = weights;
    o.memory = memory;
    o.accumulate = accumulate;
    o.seed = 7;
    run r = begin(o, ROWS, accumulate ? 1 : 0);
    model_text = text;
    return r;
}

/* A parameter, whatever it is kept in; its type. */
static inv_dtype numbers_of(run *r, const char *name, float *to, size_t *n)
{
    const void *data;
    inv_dtype dt;
    int rank;
    int64_t dims[8];
    *n = 1;
    need(inv_session_get(r->s, INV_GET_PARAM, name, &data, &dt, &rank, dims));
    for (int d = 0; d < rank; d++) *n *= (size_t)dims[d];
    assert_true(inv_convert(to, INV_F32, data, dt, *n));
    return dt;
}

/* Gives b's parameters the numbers of a's. */
static void copy_weights(run *a, run *b)
{
    static float data[MOST_ELEMENTS];
    for (const char *const *name = (const char *const[]){"w", "b", "v", NULL}; *name; name++) {
        size_t n;
        (void)numbers_of(a, *name, data, &n);
        need(inv_session_set(b->s, INV_GET_PARAM, *name, INV_F32, data, n));
    }
}

static void gradients_are_those_of_the_numbers(void **state)
{
    static float small[MOST_ELEMENTS], exact[MOST_ELEMENTS];
    static const inv_memory memories[] = {INV_MEMORY_STORE, INV_MEMORY_RECOMPUTE, INV_MEMORY_AUTO};
    (void)state;
    for (int m = 0; m < 3; m++) {
        run a = begin_small(wide, INV_OPT_SGD, INV_BF16, memories[m], true);
        run b = begin_small(wide, INV_OPT_SGD, INV_DT_NONE, INV_MEMORY_STORE, true);
        size_t n;
        assert_int_equal(numbers_of(&a, "w", small, &n), INV_BF16);
        assert_int_equal(numbers_of(&a, "b", small, &n), INV_F32);
        copy_weights(&a, &b);
        (void)add_rows(&a, 0, ROWS);
        (void)add_rows(&b, 0, ROWS);
        for (const char *const *name = (const char *const[]){"w", "b", "v", NULL}; *name; name++) {
            n = get(&a, INV_GET_GRAD, *name, small);
            assert_int_equal(get(&b, INV_GET_GRAD, *name, exact), n);
            close_to(small, exact, n, 1e-6);
        }
        end(&a);
        end(&b);
    }
}

static void rounding_is_right_in_the_mean(void **state)
{
    (void)state;
    enum { N = 100000 };
    for (float x = 3; x > 1e-3f; x *= -0.37f) {
        double sum = 0;
        for (uint32_t i = 0; i < N; i++) sum += (double)inv_from_bf16(inv_to_bf16(x, inv_mix32(i))) / N;
        assert_true(fabs(sum - (double)x) < 1e-4 * fabs((double)x));
    }
    assert_true(isinf(inv_from_bf16(inv_to_bf16(INFINITY, 0xffff))) && isnan(inv_from_bf16(inv_to_bf16(NAN, 3))));
    assert_true(inv_from_bf16(inv_to_bf16(-1.5f, 0xffff)) == -1.5f);
}

/* Steps of a hundredth of what bfloat16 can tell apart add up. */
static void small_steps_add_up(void **state)
{
    static float before[MOST_ELEMENTS], after[MOST_ELEMENTS], gradient[MOST_ELEMENTS];
    static const inv_optimizer kinds[] = {INV_OPT_SGD, INV_OPT_MOMENTUM, INV_OPT_ADAM, INV_OPT_ADAMW8, INV_OPT_LION};
    (void)state;
    for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++) {
        run a = begin_small(wide, kinds[k], INV_BF16, INV_MEMORY_STORE, false);
        run b = begin_small(wide, kinds[k], INV_DT_NONE, INV_MEMORY_STORE, false);
        size_t n;
        copy_weights(&a, &b);
        (void)numbers_of(&a, "w", before, &n);
        for (int i = 0; i < 50; i++) {
            (void)step_once(&a, 1e-5);
            (void)step_once(&b, 1e-5);
        }
        (void)numbers_of(&a, "w", after, &n);
        (void)numbers_of(&b, "w", gradient, &n);
        double moved = 0, exact = 0;
        for (size_t i = 0; i < n; i++) { /* along the way that the exact ones went */
            const double way = (double)gradient[i] - (double)before[i];
            moved += ((double)after[i] - (double)before[i]) * way;
            exact += way * way;
        }
        if (!(moved > 0.8 * exact && moved < 1.2 * exact)) fail_msg("optimizer %zu: %g and %g", k, moved, exact);
        end(&a);
        end(&b);
    }
}

static void a_saved_state_goes_on_with_equal_bits(void **state)
{
    static float whole[MOST_ELEMENTS], resumed[MOST_ELEMENTS];
    char path[] = "/tmp/small_XXXXXX";
    (void)state;
    const int fd = mkstemp(path);
    assert_true(fd >= 0);
    close(fd);
    run a = begin_small(wide, INV_OPT_ADAMW8, INV_BF16, INV_MEMORY_AUTO, false);
    run b = begin_small(wide, INV_OPT_ADAMW8, INV_BF16, INV_MEMORY_AUTO, false);
    for (int i = 0; i < 3; i++) (void)step_once(&a, 1e-3);
    need(inv_session_save_state(a.s, path, NULL));
    need(inv_session_load_state(b.s, path, NULL));
    size_t n;
    for (int i = 0; i < 3; i++) {
        (void)step_once(&a, 1e-3);
        (void)step_once(&b, 1e-3);
    }
    (void)numbers_of(&a, "v", whole, &n);
    (void)numbers_of(&b, "v", resumed, &n);
    assert_memory_equal(whole, resumed, n * sizeof *whole);
    unlink(path);
    end(&a);
    end(&b);
}

static void weights_take_half(void **state)
{
    (void)state;
    run r = begin_small(wide, INV_OPT_SGD, INV_BF16, INV_MEMORY_STORE, false);
    size_t n = 0;
    for (size_t i = 0; i < r.s->program->storage.n; i++)
        if (r.s->program->storage.at[i].kind == INV_STORAGE_PARAM) n += r.s->program->storage.at[i].nbytes;
    assert_int_equal(n, 2 * 2 * MOST_ELEMENTS + 4 * 1024);
    end(&r);
}

static void what_excludes_it_is_said(void **state)
{
    (void)state;
    static const inv_optimizer whole[] = {INV_OPT_LAMB, INV_OPT_ADAFACTOR, INV_OPT_MUON};
    run r;
    model_text = wide;
    for (int k = 0; k < 3; k++) {
        inv_session_options o = of(whole[k]);
        o.weights = INV_BF16;
        assert_int_equal(try_begin(&r, o, ROWS, 0), INV_E_ARG);
        assert_non_null(strstr(inv_context_message(ctx), "bfloat16"));
        end(&r);
    }
    inv_session_options o = of(INV_OPT_SGD);
    o.weights = INV_F16;
    assert_int_equal(try_begin(&r, o, ROWS, 0), INV_E_ARG);
    end(&r);
    o.weights = INV_BF16;
    o.average = true;
    assert_int_equal(try_begin(&r, o, ROWS, 0), INV_E_ARG);
    end(&r);
    o.average = false;
    o.device = "sim";
    assert_int_equal(try_begin(&r, o, ROWS, 0), INV_E_UNSUPPORTED_OP);
    assert_non_null(strstr(inv_context_message(ctx), "kernels of the host"));
    end(&r);
    model_text = text;
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(gradients_are_those_of_the_numbers),
                                       cmocka_unit_test(rounding_is_right_in_the_mean),
                                       cmocka_unit_test(small_steps_add_up),
                                       cmocka_unit_test(a_saved_state_goes_on_with_equal_bits),
                                       cmocka_unit_test(weights_take_half),
                                       cmocka_unit_test(what_excludes_it_is_said)};
    return cmocka_run_group_tests(tests, setup, teardown);
}
