/* SPDX-License-Identifier: Apache-2.0
 * Updates as soon as gradients are complete, and states of a training that are saved and gone on from, for each
 * optimizer; also of a filter, beside which tensors of other shapes may persist. Fails if early updates are others, if
 * a resumed training has other bits than one that did not stop, or if a state that does not fit is taken. */
#include "updates_run.h"

/* A parameter of more axes, whose states may have other shapes. */
static const char filter_text[] = "g(float[4,6] x) => (y) {\n"
                                  "param float[5,1,2,2] w\nparam float[5] b\nparam float[10,6] v\n"
                                  "a = View<shape = [4,1,2,3]>(x)\nc = Conv(a, w, b)\nd = Tanh(c)\n"
                                  "e = View<shape = [4,10]>(d)\ny = MatMul(e, v)\n}\n";
static const char *const texts[] = {text, filter_text};

/* An update as soon as its gradient is complete is the same update. Where the loss is not finite there is none. */
static void early_updates_are_the_same(void **state)
{
    (void)state;
    for (int d = 0; d < 2 * NDEVICES; d++) {
        model_text = texts[d / NDEVICES];
        for (int k = 0; k < NOPTIMIZERS; k++) {
            float late[MOST], early[MOST];
            inv_session_options o = of(optimizers[k]);
            o.device = devices[d % NDEVICES];
            o.weight_decay = 0.01;
            o.decay_all = o.average = true;
            o.average_decay = 0.9;
            run a = begin(o, ROWS, 0);
            o.early_update = true;
            run b = begin(o, ROWS, 0);
            for (int i = 0; i < 3; i++) {
                (void)step_once(&a, 0.01);
                (void)step_once(&b, 0.01);
            }
            const size_t n = weights(&a, late);
            (void)weights(&b, early);
            close_to(late, early, n, 1e-6);
            const float was = data_x[0];
            inv_result result;
            data_x[0] = NAN;
            feed_rows(&b, 0, ROWS);
            assert_int_equal(inv_session_step(b.s, &b.x, 1, &b.y, 0.01, &result), INV_E_NUMERIC);
            data_x[0] = was;
            (void)weights(&b, late);
            assert_memory_equal(late, early, n * sizeof *late);
            end(&a);
            end(&b);
        }
    }
    model_text = text;
}

static const char *state_path(void)
{
    static char path[64];
    snprintf(path, sizeof path, "test_updates.%ld.safetensors", (long)getpid());
    return path;
}

static void resumed_bits_are_equal(void **state)
{
    (void)state;
    static const inv_memory memories[] = {INV_MEMORY_STORE, INV_MEMORY_AUTO, INV_MEMORY_RECOMPUTE};
    for (int d = 0; d < 2 * NDEVICES; d++) {
        model_text = texts[d / NDEVICES];
        for (int k = 0; k < NOPTIMIZERS; k++)
            for (int m = 0; m < 3; m++) {
                float straight[MOST], resumed[MOST];
                inv_session_options o = of(optimizers[k]);
                const inv_param_group group = {"v", 0.5, -1, INV_OPT_NONE};
                char *note = NULL, *plan = NULL;
                o.device = devices[d % NDEVICES];
                o.memory = memories[m];
                o.average = k % 2;
                o.average_decay = 0.9;
                o.groups = &group;
                o.ngroups = 1;
                run a = begin(o, ROWS, 0);
                for (int i = 0; i < 3; i++) (void)step_once(&a, 0.01);
                need(inv_session_set_group_lr(a.s, 0, 0.25));
                need(inv_session_save_state(a.s, state_path(), "here"));
                for (int i = 0; i < 3; i++) (void)step_once(&a, 0.01);
                const size_t n = weights(&a, straight);
                need(inv_state_read(ctx, state_path(), NULL, &plan));
                o.plan = plan;
                run b = begin(o, ROWS, 0);
                need(inv_session_load_state(b.s, state_path(), &note));
                assert_string_equal(note, "here");
                assert_int_equal(inv_session_steps(b.s), 3);
                for (int i = 0; i < 3; i++) (void)step_once(&b, 0.01);
                (void)weights(&b, resumed);
                assert_memory_equal(straight, resumed, n * sizeof *straight);
                inv_free(ctx, note);
                inv_free(ctx, plan);
                end(&a);
                end(&b);
            }
    }
    model_text = text;
    (void)unlink(state_path());
}

static void other_states_are_refused(void **state)
{
    (void)state;
    run a = begin(of(INV_OPT_ADAM), ROWS, 0), b = begin(of(INV_OPT_SGD), ROWS, 0),
        c = begin(of(INV_OPT_MOMENTUM), ROWS, 0);
    (void)step_once(&a, 0.01);
    need(inv_session_save_state(a.s, state_path(), NULL));
    assert_int_equal(inv_session_load_state(b.s, state_path(), NULL), INV_E_ARG);
    assert_int_equal(inv_session_load_state(c.s, state_path(), NULL), INV_E_ARG);
    assert_non_null(strstr(inv_context_message(ctx), "velocity"));
    assert_int_equal(inv_session_load_state(a.s, "nowhere/at/all", NULL), INV_E_IO);
    (void)step_once(&b, 0.01); /* still whole */
    FILE *f = fopen(state_path(), "r");
    assert_non_null(f);
    fseek(f, 0, SEEK_END);
    long n = ftell(f) - 1;
    fclose(f);
    for (; n >= 0; n = n > 64 ? n / 2 : n - 7) {
        assert_int_equal(truncate(state_path(), n), 0);
        assert_int_equal(inv_session_load_state(a.s, state_path(), NULL), INV_E_PARSE);
    }
    (void)step_once(&a, 0.01);
    end(&a);
    end(&b);
    end(&c);
    (void)unlink(state_path());
}

/* A weight of more than a MiB, which is read where the model's file is mapped while it is frozen. */
static const char wide_text[] = "g(float[4,6] x) => (y) {\nparam float[6,50000] w\nparam float[50000,6] v\n"
                                "a = MatMul(x, w)\nd = Tanh(a)\ny = MatMul(d, v)\n}\n";

static float one_of_w(const run *r)
{
    const void *data;
    inv_dtype dtype;
    int rank;
    int64_t dims[8];
    need(inv_session_get(r->s, INV_GET_PARAM, "w", &data, &dtype, &rank, dims));
    return *(const float *)data;
}

/* A parameter that was trained and is frozen again stays as it is, and a state has it, however large it is. */
static void what_is_frozen_again_stays(void **state)
{
    (void)state;
    for (int k = 0; k < 2; k++) {
        const inv_stage later = {"w", 1};
        inv_session_options o = of(INV_OPT_ADAM);
        inv_result result;
        o.stages = &later;
        o.nstages = 1;
        model_text = k ? text : wide_text;
        run a = begin(o, ROWS, 0), b = begin(o, ROWS, 0);
        (void)step_once(&a, 0.01);
        const float first = one_of_w(&a);
        (void)step_once(&a, 0.01);
        const float trained = one_of_w(&a);
        assert_true(trained != first && one_of_w(&b) == first);
        inv_session_set_step(a.s, 0, 0);
        (void)step_once(&a, 0.01);
        assert_true(one_of_w(&a) == trained);
        inv_session_set_step(a.s, 0, 0);
        need(inv_session_save_state(a.s, state_path(), NULL));
        need(inv_session_load_state(b.s, state_path(), NULL));
        assert_true(one_of_w(&b) == trained);
        feed_rows(&b, 0, ROWS);
        need(inv_session_step(b.s, &b.x, 1, &b.y, 0.01, &result)); /* still whole */
        end(&a);
        end(&b);
    }
    model_text = text;
    (void)unlink(state_path());
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(early_updates_are_the_same), cmocka_unit_test(resumed_bits_are_equal),
        cmocka_unit_test(other_states_are_refused), cmocka_unit_test(what_is_frozen_again_stays)};
    return cmocka_run_group_tests(tests, setup, teardown);
}
