/* SPDX-License-Identifier: Apache-2.0
 * Updates: each optimizer by its formula, groups, clipping, gradients accumulated over micro-batches, averages of
 * weights. Fails if a mean over micro-batches is not that of the rows, or if what cannot be had together is not
 * refused. */
#include "updates_run.h"

/* --- accumulation --- */

/* Three rows and one are the four of one batch, in any order, with early additions, too. */
static void micro_batches_are_the_batch(void **state)
{
    (void)state;
    for (int d = 0; d < NDEVICES; d++)
        for (int early = 0; early < 2; early++)
            for (int k = 0; k < NOPTIMIZERS; k++) {
                float whole[MOST], parts[MOST];
                inv_session_options o = of(optimizers[k]);
                o.device = devices[d];
                o.weight_decay = 0.01;
                run a = begin(o, ROWS, 0);
                o.accumulate = true;
                o.early_update = early;
                run b = begin(o, 3, 1);
                inv_result result;
                for (int i = 0; i < 3; i++) {
                    const double lr = optimizers[k] == INV_OPT_LION ? 1e-3 : 0.01;
                    (void)step_once(&a, lr);
                    const inv_result first = add_rows(&b, i % 2, 3), last = add_rows(&b, i % 2 ? 0 : 3, 1);
                    assert_true(first.weight == 3 && last.weight == 1);
                    need(inv_session_update(b.s, lr, &result));
                    assert_int_equal(inv_session_steps(b.s), i + 1);
                }
                const size_t n = weights(&a, whole);
                assert_int_equal(weights(&b, parts), n);
                close_to(whole, parts, n, 2e-5);
                end(&a);
                end(&b);
            }
}

static void gradients_can_be_read_and_changed(void **state)
{
    (void)state;
    for (int d = 0; d < NDEVICES; d++) {
        float g[MOST], g2[MOST], was[MOST], is[MOST];
        inv_session_options o = of(INV_OPT_SGD);
        o.device = devices[d];
        o.accumulate = true;
        o.grad_norm = true;
        run r = begin(o, ROWS, 0);
        inv_result result;
        assert_int_equal(inv_session_update(r.s, 0.1, &result), INV_E_ARG); /* nothing is there */
        (void)add_rows(&r, 0, ROWS);
        size_t n = get(&r, INV_GET_GRAD, "w", g);
        for (size_t i = 0; i < n; i++) g[i] = 2 * g[i] + 1;
        need(inv_session_set(r.s, INV_GET_GRAD, "w", INV_F32, g, n));
        (void)get(&r, INV_GET_GRAD, "w", g2);
        close_to(g, g2, n, 0);
        (void)get(&r, INV_GET_PARAM, "w", was);
        double squares = 0;
        for (const char *const *name = (const char *const[]){"w", "b", "v", NULL}; *name; name++) {
            const size_t m = get(&r, INV_GET_GRAD, *name, is);
            for (size_t i = 0; i < m; i++) squares += (double)is[i] * (double)is[i];
        }
        need(inv_session_update(r.s, 0.1, &result));
        assert_true(fabs(result.grad_norm - sqrt(squares)) < 1e-6 * result.grad_norm);
        (void)get(&r, INV_GET_PARAM, "w", is);
        for (size_t i = 0; i < n; i++) assert_true(fabs((double)(was[i] - is[i]) - 0.1 * (double)g[i]) < 1e-6);
        assert_int_equal(inv_session_set(r.s, INV_GET_GRAD, "nobody", INV_F32, g, n), INV_E_ARG);
        assert_int_equal(inv_session_set(r.s, INV_GET_GRAD, "w", INV_F32, g, n - 1), INV_E_SHAPE);
        end(&r);
    }
}

/* --- clipping and groups --- */

static void gradients_are_clipped(void **state)
{
    (void)state;
    for (int d = 0; d < NDEVICES; d++)
        for (int acc = 0; acc < 2; acc++) {
            float was[MOST], plain[MOST], clipped[MOST], cut[MOST];
            inv_session_options o = of(INV_OPT_SGD);
            o.device = devices[d];
            o.accumulate = acc;
            o.grad_norm = true;
            run r = begin(o, ROWS, 0);
            const size_t n = weights(&r, was);
            const inv_result first = step_once(&r, 1);
            (void)weights(&r, plain);
            end(&r);
            assert_true(first.grad_norm > 0);
            o.clip_norm = first.grad_norm / 2;
            r = begin(o, ROWS, 0);
            const inv_result second = step_once(&r, 1);
            (void)weights(&r, clipped);
            end(&r);
            assert_true(second.grad_norm == first.grad_norm);
            o.clip_norm = 0;
            o.clip_value = 1e-3;
            r = begin(o, ROWS, 0);
            (void)step_once(&r, 1);
            (void)weights(&r, cut);
            end(&r);
            for (size_t i = 0; i < n; i++) {
                const double g = (double)was[i] - (double)plain[i];
                assert_true(fabs((double)was[i] - (double)clipped[i] - g / 2) < 1e-6);
                assert_true(fabs((double)was[i] - (double)cut[i] - fmax(-1e-3, fmin(1e-3, g))) < 1e-6);
            }
        }
}

/* Groups have rates, decays and optimizers of their own; the last that fits counts. */
static void groups_differ(void **state)
{
    (void)state;
    for (int d = 0; d < NDEVICES; d++) {
        float was[MOST], plain[MOST], is[MOST];
        inv_session_options o = of(INV_OPT_SGD);
        o.device = devices[d];
        run r = begin(o, ROWS, 0);
        const size_t n = weights(&r, was), nw = (size_t)WIDTH * WIDTH, nb = WIDTH;
        (void)step_once(&r, 0.1);
        (void)weights(&r, plain);
        end(&r);
        const inv_param_group groups[] = {{"*", 2, -1, INV_OPT_NONE}, {"v", 0.5, 0.3, INV_OPT_NONE}, {"b", 0, -1, 0}};
        o.groups = groups;
        o.ngroups = 3;
        r = begin(o, ROWS, 0);
        need(inv_session_set_group_lr(r.s, 0, 3));
        assert_int_equal(inv_session_set_group_lr(r.s, 3, 1), INV_E_ARG);
        (void)step_once(&r, 0.1);
        (void)weights(&r, is);
        end(&r);
        for (size_t i = 0; i < n; i++) {
            const double g = ((double)was[i] - (double)plain[i]) / 0.1;
            const double wanted = i < nw ? 0.3 * g : i < nw + nb ? 0 : 0.05 * (g + 0.3 * (double)was[i]);
            assert_true(fabs((double)was[i] - (double)is[i] - wanted) < 1e-6);
        }
    }
}

/* An optimizer that is a group's alone is used with its own numbers, not with those of the session's. */
static void groups_have_their_optimizers_numbers(void **state)
{
    (void)state;
    for (int k = 0; k < NOPTIMIZERS; k++) {
        float alone[MOST], grouped[MOST];
        const inv_param_group all = {"*", 1, -1, optimizers[k]};
        inv_session_options o = of(INV_OPT_SGD);
        run a = begin(of(optimizers[k]), ROWS, 0);
        o.groups = &all;
        o.ngroups = 1;
        run b = begin(o, ROWS, 0);
        for (int i = 0; i < 3; i++) {
            (void)step_once(&a, 0.01);
            (void)step_once(&b, 0.01);
        }
        const size_t n = weights(&a, alone);
        assert_int_equal(weights(&b, grouped), n);
        assert_memory_equal(alone, grouped, n * sizeof *alone);
        end(&a);
        end(&b);
    }
}

/* Decoupled decay leaves vectors alone, unless it is told otherwise. */
static void biases_do_not_decay(void **state)
{
    (void)state;
    for (int all = 0; all < 2; all++) {
        float was[MOST], is[MOST];
        inv_session_options o = of(INV_OPT_ADAMW);
        o.weight_decay = 0.5;
        o.decay_all = all;
        o.clip_value = 1e-30; /* so small that epsilon leaves nothing of it */
        o.epsilon = 1;
        run r = begin(o, ROWS, 0);
        const size_t n = weights(&r, was), nw = (size_t)WIDTH * WIDTH;
        (void)step_once(&r, 0.1);
        (void)weights(&r, is);
        for (size_t i = 0; i < n; i++) {
            const bool vector = i >= nw && i < nw + WIDTH;
            assert_true(fabs((double)is[i] - (double)was[i] * (vector && !all ? 1 : 0.95)) < 1e-6);
        }
        end(&r);
    }
}

static void new_rules_by_hand(void **state)
{
    (void)state;
    for (int d = 0; d < NDEVICES; d++)
        for (int k = 0; k < 3; k++) {
            static const inv_optimizer kind[] = {INV_OPT_LION, INV_OPT_RMSPROP, INV_OPT_MOMENTUM};
            float w[MOST], g[MOST];
            double x[MOST], m[MOST] = {0};
            inv_session_options o = of(kind[k]);
            o.device = devices[d];
            o.weight_decay = 0.1;
            o.accumulate = o.nesterov = o.decay_all = true;
            run r = begin(o, ROWS, 0);
            const size_t n = get(&r, INV_GET_PARAM, "v", w);
            for (size_t i = 0; i < n; i++) x[i] = (double)w[i];
            for (int t = 0; t < 3; t++) {
                inv_result result;
                (void)add_rows(&r, 0, ROWS);
                (void)get(&r, INV_GET_GRAD, "v", g);
                for (size_t i = 0; i < n; i++) {
                    const double l2 = (double)g[i] + 0.1 * x[i];
                    if (k == 0) {
                        const double c = 0.9 * m[i] + 0.1 * (double)g[i];
                        m[i] = 0.99 * m[i] + 0.01 * (double)g[i];
                        x[i] -= 0.01 * ((c > 0) - (c < 0) + 0.1 * x[i]);
                    } else if (k == 1) {
                        m[i] = 0.99 * m[i] + 0.01 * l2 * l2;
                        x[i] -= 0.01 * l2 / (sqrt(m[i]) + 1e-8);
                    } else {
                        m[i] = 0.9 * m[i] + l2;
                        x[i] -= 0.01 * (l2 + 0.9 * m[i]);
                    }
                }
                need(inv_session_update(r.s, 0.01, &result));
            }
            (void)get(&r, INV_GET_PARAM, "v", w);
            for (size_t i = 0; i < n; i++) assert_true(fabs((double)w[i] - x[i]) < 2e-5);
            end(&r);
        }
}

/* --- curves --- */

/* Losses of 100 steps on one batch in float64, beside PyTorch 2.15: torch.optim with learning rate 0.01 and weight
 * decay 0.01, clip_grad_norm_(0.05) with Adam, clip_grad_value_(0.02) with momentum. */
static const int at[5] = {0, 1, 9, 49, 99};
static const struct {
    inv_optimizer optimizer;
    bool nesterov;
    double clip_norm, clip_value, loss[5];
} torch[] = {{INV_OPT_SGD,
              false,
              0,
              0,
              {0.6034195736646136, 0.602153187753374, 0.5927400141014488, 0.5586713852348922, 0.5309433113592389}},
             {INV_OPT_MOMENTUM,
              false,
              0,
              0,
              {0.6034195736646136, 0.602153187753374, 0.5670901251158805, 0.3727555017316861, 0.04740965968821364}},
             {INV_OPT_MOMENTUM,
              true,
              0,
              0,
              {0.6034195736646136, 0.6010227094742294, 0.5629890707956472, 0.357492508468164, 0.04643117131826696}},
             {INV_OPT_ADAM,
              false,
              0,
              0,
              {0.6034195736646136, 0.5813029461058635, 0.46684325521437514, 0.025480094621556138, 0.02392812977797927}},
             {INV_OPT_ADAMW,
              false,
              0,
              0,
              {0.6034195736646136, 0.5812745226197968, 0.4637736639500351, 0.02566936507223297, 0.022800514618803103}},
             {INV_OPT_RMSPROP,
              false,
              0,
              0,
              {0.6034195736646136, 0.576329152324221, 0.04144529273538127, 0.023973132473515776, 0.023784970849686813}},
             {INV_OPT_ADAM,
              false,
              0.05,
              0,
              {0.6034195736646136, 0.5841932743166568, 0.4822726675838241, 0.03296760853974889, 0.02408177275906363}},
             {INV_OPT_MOMENTUM,
              false,
              0,
              0.02,
              {0.6034195736646136, 0.602928515988073, 0.5872866220065501, 0.4751828639518218, 0.29679721614867755}}};

static void curves_are_those_of_torch(void **state)
{
    (void)state;
    for (size_t k = 0; k < sizeof torch / sizeof *torch; k++)
        for (int acc = 0; acc < 2; acc++) {
            inv_session_options o = of(torch[k].optimizer);
            o.float64 = o.decay_all = true;
            o.nesterov = torch[k].nesterov;
            o.clip_norm = torch[k].clip_norm;
            o.clip_value = torch[k].clip_value;
            o.weight_decay = 0.01;
            o.accumulate = acc;
            run r = begin(o, acc ? 3 : ROWS, acc);
            for (int i = 0, point = 0; i < 100; i++) {
                inv_result result;
                double loss;
                if (acc) {
                    loss = 0.75 * add_rows(&r, 0, 3).loss;
                    loss += 0.25 * add_rows(&r, 3, 1).loss;
                    need(inv_session_update(r.s, 0.01, &result));
                } else {
                    loss = step_once(&r, 0.01).loss;
                }
                if (i != at[point]) continue;
                const double wanted = torch[k].loss[point++];
                if (!(fabs(loss - wanted) <= 1e-9 * wanted))
                    fail_msg("curve %zu, step %d: %.17g and %.17g", k, i, loss, wanted);
            }
            end(&r);
        }
}

/* --- averages --- */

static void averages_follow(void **state)
{
    (void)state;
    for (int d = 0; d < NDEVICES; d++)
        for (int ema = 0; ema < 2; ema++) {
            float w[MOST], is[MOST];
            double mean[MOST] = {0};
            inv_session_options o = of(INV_OPT_SGD);
            o.device = devices[d];
            o.average = true;
            o.average_decay = ema ? 0.7 : 0;
            o.average_from = ema ? 0 : 1;
            o.average_every = 2;
            run r = begin(o, ROWS, 0);
            size_t n = 0, count = 0;
            for (uint64_t t = 0; t < 6; t++) {
                (void)step_once(&r, 0.1);
                n = get(&r, INV_GET_PARAM, "w", w);
                const bool counts = ema || (t >= 1 && (t - 1) % 2 == 0);
                for (size_t i = 0; i < n; i++) {
                    if (t <= o.average_from) mean[i] = (double)w[i];
                    else if (ema) mean[i] = 0.7 * mean[i] + 0.3 * (double)w[i];
                    else if (counts) mean[i] += ((double)w[i] - mean[i]) / (double)(count + 1);
                }
                count += counts;
            }
            inv_result result;
            need(inv_session_use_average(r.s, true));
            (void)get(&r, INV_GET_PARAM, "w", is);
            for (size_t i = 0; i < n; i++) assert_true(fabs((double)is[i] - mean[i]) < 1e-6);
            assert_int_equal(inv_session_step(r.s, &r.x, 1, &r.y, 0.1, &result), INV_E_ARG);
            need(inv_session_use_average(r.s, false));
            (void)get(&r, INV_GET_PARAM, "w", is);
            assert_memory_equal(is, w, n * sizeof *w);
            (void)step_once(&r, 0.1);
            (void)get(&r, INV_GET_PARAM, "w", w);
            need(inv_session_use_average(r.s, true));
            inv_session_set_step(r.s, 0, 0); /* whatever the number of the step, weights get their place back */
            need(inv_session_use_average(r.s, false));
            (void)get(&r, INV_GET_PARAM, "w", is);
            assert_memory_equal(is, w, n * sizeof *w);
            end(&r);
        }
}

/* --- options --- */

static void refused(inv_session_options o, const char *words)
{
    run r;
    assert_int_equal(try_begin(&r, o, ROWS, 0), INV_E_ARG);
    if (!strstr(inv_context_message(ctx), words)) fail_msg("'%s' is not in: %s", words, inv_context_message(ctx));
    end(&r);
}

static void what_excludes_each_other_is_said(void **state)
{
    (void)state;
    inv_session_options o = of(INV_OPT_ADAM);
    o.clip_norm = o.clip_value = 1;
    refused(o, "clip_norm and clip_value");
    o.clip_value = 0;
    o.early_update = true;
    refused(o, "clip_norm");
    o = of(INV_OPT_NONE);
    o.accumulate = true;
    refused(o, "optimizer");
    o = of(INV_OPT_SGD);
    const inv_param_group lost = {"nobody", 1, -1, INV_OPT_NONE};
    o.groups = &lost;
    o.ngroups = 1;
    refused(o, "nobody");
    /* one that fits nothing but what is frozen; of what fits something else, too, that is left as it is */
    static const char *const frozen[] = {"w", "b"};
    const inv_param_group group_of_frozen = {"w", 1, -1, INV_OPT_NONE}, group_of_all = {"?", 1, -1, INV_OPT_NONE};
    o.groups = &group_of_frozen;
    o.freeze = frozen;
    o.nfreeze = 2;
    for (int how = 0; how < 3; how++) {
        o.accumulate = how == 1;
        o.early_update = how == 2;
        refused(o, "no matching parameter is trained; 'w' is not trained: frozen");
    }
    o.early_update = false;
    o.groups = &group_of_all;
    run mixed = begin(o, ROWS, 0);
    end(&mixed);
    o.nfreeze = 0;
    o.ngroups = 0;
    run r = begin(o, ROWS, 0);
    inv_result result;
    assert_int_equal(inv_session_update(r.s, 0.1, &result), INV_E_ARG);
    assert_non_null(strstr(inv_context_message(ctx), "made without accumulate"));
    assert_int_equal(inv_session_get(r.s, INV_GET_PARAM, "w", NULL, NULL, NULL, NULL), INV_E_ARG);
    end(&r);
    assert_true(isnan(inv_lr_at(NULL, 0)));
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(micro_batches_are_the_batch),
                                       cmocka_unit_test(gradients_can_be_read_and_changed),
                                       cmocka_unit_test(gradients_are_clipped),
                                       cmocka_unit_test(groups_differ),
                                       cmocka_unit_test(groups_have_their_optimizers_numbers),
                                       cmocka_unit_test(biases_do_not_decay),
                                       cmocka_unit_test(new_rules_by_hand),
                                       cmocka_unit_test(curves_are_those_of_torch),
                                       cmocka_unit_test(averages_follow),
                                       cmocka_unit_test(what_excludes_each_other_is_said)};
    return cmocka_run_group_tests(tests, setup, teardown);
}
