/* SPDX-License-Identifier: Apache-2.0
 * Losses, dropout, feeds, optimizers, guard: against values by hand, published random numbers, known errors. */
#include "ops_run.h"

#include "ops/gpu/philox.h"

/* --- losses --- */

static void labels_and_counts(void **state)
{
    ops_env e;
    (void)state;
    ops_begin(&e);
    const double x[12] = {1, 2, 3, 0, 1000, -1000, 0, 0, 5, 5, 1, 0}; /* [2,3,2] */
    const int64_t label[4] = {1, 0, 1, 2};
    double want = 0;
    for (int i = 0; i < 4; i++) {
        double top = -INFINITY, sum = 0, v[3];
        for (int k = 0; k < 3; k++) top = fmax(top, v[k] = x[i / 2 * 6 + k * 2 + i % 2]);
        for (int k = 0; k < 3; k++) sum += exp(v[k] - top);
        want += (top + log(sum) - v[label[i]]) / 4;
    }
    for (int real = 0; real < 2; real++) {
        ops_load(&e, "l = CrossEntropyMean<axis = 1>(float[2,3,2] x, int64[2,2] t)", real ? "double" : "float", 0);
        inv_id logits = e.g->inputs.at[0], t = e.g->inputs.at[1];
        for (int i = 0; i < 12; i++) ops_set(&e, logits, i, x[i]);
        for (int i = 0; i < 4; i++) ops_set(&e, t, i, (double)label[i]);
        inv_id count = inv_emit1(e.g, "CorrectCount", INV_IN(logits, t), INV_ATTRS(inv_attr_of_int("axis", 1)));
        ops_run(&e, 0);
        assert_true(fabs(ops_get(&e, e.g->outputs.at[0], 0) - want) < 1e-9 * want);
        assert_int_equal(ops_get(&e, count, 1), 4);
        ops_set(&e, t, 2, 3); /* no such class */
        ops_run(&e, 0);
        assert_true(isnan(ops_get(&e, e.g->outputs.at[0], 0)));
        ops_load(&e, "l = CrossEntropyMean<axis = 1>(float[2,3,2] x, int64[2,2] t)", "double", 0);
        for (int i = 0; i < 4; i++) ops_set(&e, e.g->inputs.at[1], i, (double)(i % 3));
        assert_int_equal(ops_check_grad(&e, 1e-7), 1);
    }
    ops_load(&e, "c = CorrectCount<axis = 1>(float[3,3] x, int64[3] t)", "float", 0);
    for (int i = 0; i < 9; i++) ops_set(&e, e.g->inputs.at[0], i, (double[]){1, 2, 0, 5, 5, 1, 0, 0, 7}[i]);
    for (int i = 0; i < 3; i++) ops_set(&e, e.g->inputs.at[1], i, (double[]){1, 1, 2}[i]);
    ops_run(&e, 0);
    assert_int_equal(ops_get(&e, e.g->outputs.at[0], 0), 2); /* a tie counts for its first class */
    assert_int_equal(ops_get(&e, e.g->outputs.at[0], 1), 3);
    ops_load(&e, "l = NllMean(, float[2,2] z)", "double", 0);
    for (int i = 0; i < 4; i++) ops_set(&e, e.g->inputs.at[0], i, i);
    ops_run(&e, 0);
    assert_true(fabs(ops_get(&e, e.g->outputs.at[0], 0) - (14.0 / 4 + 1.8378770664093455)) < 1e-12);
    ops_end(&e);
}

/* --- training --- */

static void philox_known_answers(void **state)
{
    (void)state;
    uint32_t out[4];
    inv_philox((uint32_t[4]){0}, (uint32_t[2]){0}, out);
    assert_memory_equal(out, ((uint32_t[]){0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}), sizeof out);
    inv_philox((uint32_t[4]){~0u, ~0u, ~0u, ~0u}, (uint32_t[2]){~0u, ~0u}, out);
    assert_memory_equal(out, ((uint32_t[]){0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}), sizeof out);
    inv_philox((uint32_t[4]){0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, (uint32_t[2]){0xa4093822, 0x299f31d0},
               out);
    assert_memory_equal(out, ((uint32_t[]){0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}), sizeof out);
}

/* A mask depends on the global sample only, differs by step and key, and drops as often as it says. */
static void dropout_masks(void **state)
{
    ops_env e;
    (void)state;
    ops_begin(&e);
    static float whole[40 * 5003], part[40 * 5003];
    ops_load(&e, "y = DropoutMask<ratio = 0.25, key = 7>(float[40,5003] x)", "float", 0);
    inv_id x = e.g->inputs.at[0], y = e.g->outputs.at[0];
    int64_t kept = 0;
    for (int64_t i = 0; i < ops_n(&e, x); i++) ops_set(&e, x, i, 1);
    ops_run(&e, 0);
    memcpy(whole, e.data[y], sizeof whole);
    for (int64_t i = 0; i < 40 * 5003; i++) {
        assert_true(whole[i] == 0 || fabsf(whole[i] - 4.0f / 3) < 1e-6f);
        kept += whole[i] > 0;
    }
    assert_true(fabs((double)kept / (40 * 5003) - 0.75) < 0.005);
    e.step.first_sample = 30;
    ops_run(&e, 0);
    memcpy(part, e.data[y], sizeof part);
    assert_memory_equal(part, whole + 30 * 5003, 10 * 5003 * sizeof(float));
    e.step.step++;
    ops_run(&e, 0);
    assert_memory_not_equal(part, e.data[y], sizeof part);
    ops_load(&e, "m = DropoutKeep<ratio = 0.25, key = 7>(float[40,5003] x)", "float", 0);
    e.step.step--;
    e.step.first_sample = 0;
    ops_run(&e, 0);
    for (int64_t i = 0; i < 40 * 5003; i++) assert_true((ops_get(&e, e.g->outputs.at[0], i) > 0) == (whole[i] > 0));
    ops_end(&e);
}

static void dropout_lowers_by_mode(void **state)
{
    ops_env e;
    (void)state;
    ops_begin(&e);
    static const struct {
        const char *text;
        int opset;
        bool eval, off, mask;
    } cases[] = {
        {"y = Dropout<ratio = 0.3>(float[2,3] x)", 11, false, false, true},
        {"y = Dropout<ratio = 0.3>(float[2,3] x)", 11, true, false, false},
        {"y = Dropout<ratio = 0.3>(float[2,3] x)", 11, false, true, false},
        {"y = Dropout<ratio = 0.0>(float[2,3] x)", 7, false, false, false},
        {"y = Dropout(float[2,3] x)", 13, false, false, false},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        ops_clear(&e);
        ops_parse_case(&e, cases[i].text, "float");
        e.g->eval = cases[i].eval;
        e.g->train = !cases[i].eval;
        e.g->no_dropout = cases[i].off;
        ops_expect_ok(&e, ops_lower(&e, cases[i].opset));
        assert_int_equal(e.g->order.n, cases[i].mask ? 1 : 0);
        assert_true((e.g->outputs.at[0] == e.g->inputs.at[0]) == !cases[i].mask);
    }
    ops_clear(&e);
    ops_expect_ok(&e, inv_graph_parse(e.ctx,
                                      "g (float[2,3] x) => (y, m) { const float[] r = {0.5} const bool[] t = {1} "
                                      "y, m = Dropout(x, r, t) }",
                                      &e.g));
    ops_expect_ok(&e, ops_lower(&e, 13));
    assert_int_equal(e.g->order.n, 2);
    assert_true(inv_attr_float(inv_nod(e.g, e.g->order.at[0]), "ratio", 0) == 0.5);
    ops_end(&e);
}

static void optimizers_by_hand(void **state)
{
    ops_env e;
    (void)state;
    ops_begin(&e);
    inv_shape s = inv_shape_of(1, (int64_t[]){1});
    static const char *const op[] = {"SgdUpdate", "MomentumUpdate", "AdamUpdate", "AdamUpdate"};
    for (int k = 0; k < 4; k++) {
        for (int real = 0; real < 2; real++) {
            inv_id v[4];
            static const char *const name[] = {"w", "g", "m", "v"};
            ops_clear(&e);
            ops_expect_ok(&e, inv_graph_create(e.ctx, "", &e.g));
            for (int i = 0; i < 4; i++) {
                v[i] = inv_graph_value(e.g, name[i], INV_ROLE_INPUT, real ? INV_F64 : INV_F32, &s);
                ops_set((ops_alloc(&e, v[i]), &e), v[i], 0, i == 0 ? 2 : i == 1 ? 0.5 : 0);
            }
            inv_attr attr[] = {inv_attr_of_float("weight_decay", 0.1), inv_attr_of_int("decoupled", k == 3)};
            uint32_t nin = k < 2 ? (uint32_t)k + 2 : 4, nattr = k < 2 ? 1 : 2;
            ops_expect_ok(&e, inv_emit(e.g, op[k], 0, nin, v, nattr, attr) == INV_NONE ? INV_E_INTERNAL : INV_OK);
            double w = 2, m = 0, q = 0, lr = e.step.lr;
            for (int t = 1; t <= 3; t++) {
                double g = 0.5 + (k == 3 ? 0 : 0.1 * w);
                e.step.step = (uint64_t)t - 1;
                ops_run(&e, 0);
                if (k == 0) w -= lr * g;
                if (k == 1) w -= lr * (m = 0.9 * m + g);
                if (k >= 2) {
                    m = 0.9 * m + 0.1 * g;
                    q = 0.999 * q + 0.001 * g * g;
                    w = w * (k == 3 ? 1 - lr * 0.1 : 1) -
                        lr * (m / (1 - pow(0.9, t))) / (sqrt(q / (1 - pow(0.999, t))) + 1e-8);
                }
                assert_true(fabs(ops_get(&e, v[0], 0) - w) < (real ? 1e-12 : 1e-5));
            }
        }
    }
    ops_end(&e);
}

static void feeds_pick_and_convert_rows(void **state)
{
    ops_env e;
    (void)state;
    ops_begin(&e);
    ops_load(&e, "x = Feed<slot = 1, shape = [3,2], dtype = 1>()", "float", 0);
    unsigned char raw[1 + 8 * sizeof(double)];
    for (int i = 0; i < 8; i++) memcpy(raw + 1 + (size_t)i * sizeof(double), &(double){i}, sizeof(double));
    const int64_t rows[3] = {3, 0, 3};
    inv_feed feed[2] = {{0}, {raw + 1, INV_F64, rows}};
    e.step.feed = feed;
    ops_run(&e, 0);
    for (int i = 0; i < 6; i++) assert_true(ops_get(&e, e.g->outputs.at[0], i) == ((double[]){6, 7, 0, 1, 6, 7})[i]);
    ops_end(&e);
}

/* --- guard --- */

static void guard_measures_the_error(void **state)
{
    ops_env e;
    (void)state;
    ops_begin(&e);
    for (int real = 0; real < 2; real++) {
        ops_load(&e, "fp = GuardSum<key = 5>(float[3,7001] v)", real ? "double" : "float", 0);
        inv_id v = e.g->inputs.at[0], fp = e.g->outputs.at[0];
        int64_t n = ops_n(&e, v);
        double norm = 0, ratio = 0;
        for (int64_t i = 0; i < n; i++) norm += pow(ops_get(&e, v, i), 2);
        inv_id check = inv_emit(e.g, "GuardCheck", 0, INV_IN(v, fp),
                                INV_ATTRS(inv_attr_of_int("key", 5), inv_attr_of_int("slot", 2)));
        ops_run(&e, 0);
        assert_true(e.drift[2] == 0);
        assert_true(fabs(ops_get(&e, fp, 4) - norm) < 1e-9 * norm);
        for (int t = 0; t < 64; t++) { /* one bad channel; the estimate is right on average */
            double err = 0;
            for (int64_t i = 0; i < n; i += 100) {
                double old = ops_get(&e, v, i);
                ops_set(&e, v, i, old + 1e-2 * ops_random());
                err += pow(ops_get(&e, v, i) - old, 2);
            }
            ops_run(&e, 1);
            assert_int_equal(ops_call(&e, check), INV_OK);
            ratio += pow(e.drift[2] / sqrt(err / norm), 2) / 64;
            ops_run(&e, 0);
        }
        assert_true(ratio > 0.6 && ratio < 1.5);
        double old = ops_get(&e, v, 77);
        ops_set(&e, v, 77, INFINITY);
        ops_run(&e, 1);
        assert_true(isinf(e.drift[2]));
        ops_run(&e, 0);
        assert_true(ops_get(&e, fp, 5) == 1 && isfinite(ops_get(&e, fp, 0)));
        assert_true(e.drift[2] == 0);
        ops_set(&e, v, 77, old);
    }
    ops_end(&e);
}

/* A sample sees an error that is everywhere at its size, and nothing of one that is in none of its pieces. */
static void guard_samples(void **state)
{
    ops_env e;
    (void)state;
    ops_begin(&e);
    ops_load(&e, "p, one = GuardPick<every = 4>(float[64,1000] v)", "float", 0);
    const inv_id v = e.g->inputs.at[0], p = e.g->outputs.at[0], one = e.g->outputs.at[1];
    const inv_id fp =
        inv_emit1(e.g, "GuardSum", INV_IN(v), INV_ATTRS(inv_attr_of_int("key", 5), inv_attr_of_int("every", 4)));
    const inv_id check =
        inv_emit(e.g, "GuardCheck", 0, INV_IN(v, fp),
                 INV_ATTRS(inv_attr_of_int("key", 5), inv_attr_of_int("every", 4), inv_attr_of_int("slot", 2)));
    ops_run(&e, 0);
    assert_int_equal(ops_n(&e, p), 64000 / 4 / 64 * 64);
    const int64_t n = ops_n(&e, v), m = ops_n(&e, p);
    for (int64_t i = 0; i < m; i++) assert_true(ops_get(&e, one, i) == 1);
    for (int64_t run = 0; run < m / 64; run++) { /* a piece of each, whole */
        int64_t found = 0;
        for (int64_t piece = 0; piece < 4; piece++) {
            int64_t equal = 0;
            for (int64_t i = 0; i < 64; i++)
                equal += ops_get(&e, p, run * 64 + i) == ops_get(&e, v, (run * 4 + piece) * 64 + i);
            found += equal == 64;
        }
        assert_true(found >= 1);
    }
    for (int64_t i = 0; i < n; i++) ops_set(&e, v, i, ops_get(&e, v, i) * (i % 2 ? 1.01 : 0.99));
    assert_int_equal(ops_call(&e, check), INV_OK);
    assert_true(e.drift[2] > 0.003 && e.drift[2] < 0.03);
    ops_end(&e);
}

/* Of bits the drift is the root of how many change for each that is set. */
static void guard_counts_bits(void **state)
{
    ops_env e;
    (void)state;
    ops_begin(&e);
    ops_load(&e, "fp = GuardSum<key = 5>(uint8[3,1001] v)", "float", 0);
    const inv_id v = e.g->inputs.at[0], fp = e.g->outputs.at[0];
    const inv_id check =
        inv_emit(e.g, "GuardCheck", 0, INV_IN(v, fp), INV_ATTRS(inv_attr_of_int("key", 5), inv_attr_of_int("slot", 2)));
    const int64_t n = ops_n(&e, v);
    double set = 0, square = 0;
    for (int64_t i = 0; i < n; i++) {
        ops_set(&e, v, i, (double)(i * 37 % 256));
        for (int64_t b = i * 37 % 256; b; b /= 2) set += (double)(b % 2);
    }
    ops_run(&e, 0);
    assert_true(ops_get(&e, fp, 4) == set);
    assert_int_equal(ops_call(&e, check), INV_OK);
    assert_true(e.drift[2] == 0);
    for (int64_t i = 0; i < n; i++) { /* one at a time */
        const double old = ops_get(&e, v, i);
        ops_set(&e, v, i, (double)((int)old ^ 1 << i % 8));
        assert_int_equal(ops_call(&e, check), INV_OK);
        square += e.drift[2] * e.drift[2] * set / (double)n;
        assert_true(e.drift[2] > 0);
        ops_set(&e, v, i, old);
    }
    assert_true(fabs(square - 1) < 1e-9); /* a single one is seen as it is */
    ops_end(&e);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(labels_and_counts),
                                       cmocka_unit_test(philox_known_answers),
                                       cmocka_unit_test(dropout_masks),
                                       cmocka_unit_test(dropout_lowers_by_mode),
                                       cmocka_unit_test(optimizers_by_hand),
                                       cmocka_unit_test(feeds_pick_and_convert_rows),
                                       cmocka_unit_test(guard_measures_the_error),
                                       cmocka_unit_test(guard_samples),
                                       cmocka_unit_test(guard_counts_bits)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
