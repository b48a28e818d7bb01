/* SPDX-License-Identifier: Apache-2.0
 * What is written over what in a training step: inverses over what they start from, sums of gradients, bits in place of
 * values. Fails if something is alive beside what could have taken its bytes, or if that changes a gradient. */
#include "recover_run.h"

/* Couplings with convolutions, on [64,4,8,8]. */
static char *image_couplings(int blocks)
{
    size_t cap = 2048 + (size_t)blocks * 1024;
    char *s = malloc(cap);
    size_t n = 0;
#define ADD(...) n += (size_t)snprintf(s + n, cap - n, __VA_ARGS__)
    ADD("g(float[64,3,8,8] x) => (y) {\nparam float[8,3,3,3] stem\nparam float[8,8] head\n");
    for (int i = 0; i < 2 * blocks; i++)
        ADD("param float[4,4,3,3] a%d\nparam float[4,4,3,3] b%d\nparam float[4] c%d\n", i, i, i);
    ADD("z = Conv<pads = [1,1,1,1]>(x, stem)\nu0, u1 = Split<axis = 1, num_outputs = 2>(z)\n");
    for (int i = 0; i < 2 * blocks; i++)
        ADD("p%d = Conv<pads = [1,1,1,1]>(u%d, a%d)\nq%d = Relu(p%d)\n"
            "r%d = Conv<pads = [1,1,1,1]>(q%d, b%d, c%d)\nu%d = Add(u%d, r%d)\n",
            i, i + 1, i, i, i, i, i, i, i, i + 2, i, i);
    ADD("w = Concat<axis = 1>(u%d, u%d)\nt = Tanh(w)\nk = GlobalAveragePool(t)\nf = Flatten(k)\n"
        "y = MatMul(f, head)\n}\n",
        2 * blocks, 2 * blocks + 1);
#undef ADD
    return s;
}

/* Alive within a coupling: both halves and their gradients, two values of the branch, and less than another half in
 * masks, scratch memory and the model's input. The branch's result is nowhere. */
static void test_halves_are_solved_in_place(void **state)
{
    (void)state;
    enum { HALF = 64 * 4 * 8 * 8 * 4, INPUT = 64 * 3 * 8 * 8 * 4 };
    static const char *const device[] = {"cpu", "checked", "sim"};
    char *text = image_couplings(4);
    inv_graph *g = parse(text);
    outcome store = run(g, INV_MEMORY_STORE, "checked", NULL);
    for (int k = 0; k < 3; k++) {
        outcome o = run(g, INV_MEMORY_INVERT, device[k], NULL);
        assert_true(o.njoined > 0); /* how many is the search's: smaller peaks may take fewer */
        if (k < 2 && o.activation_peak > 6 * HALF + INPUT + HALF / 2) /* kernels of a device take more scratch memory */
            fail_msg("%s: %zu bytes", device[k], o.activation_peak);
        assert_true(distance(&store, &o) < 1e-4);
        const inv_session_options saved = {.size = sizeof saved, .plan = o.plan};
        outcome again = run(g, INV_MEMORY_INVERT, device[k], &saved);
        assert_int_equal(again.njoined, o.njoined);
        assert_int_equal(again.activation_peak, o.activation_peak);
        forget(&o);
        forget(&again);
    }
    forget(&store);
    inv_graph_destroy(g);
    free(text);
}

/* A shortcut that doubles the channels beside a branch: x has two gradients. */
static const char shortcut[] =
    "g(float[64,3,8,8] x) => (y) {\nparam float[4,3,3,3] stem\nparam float[8,4,3,3] a\nparam float[8,8,3,3] b\n"
    "param float[8,4,1,1] s\nparam float[8,8] head\nz = Conv<pads = [1,1,1,1]>(x, stem)\nu = Tanh(z)\n"
    "p = Conv<pads = [1,1,1,1], strides = [2,2]>(u, a)\nq = Tanh(p)\nr = Conv<pads = [1,1,1,1]>(q, b)\n"
    "c = Conv<strides = [2,2]>(u, s)\nv = Add(r, c)\nt = Tanh(v)\nk = GlobalAveragePool(t)\nf = Flatten(k)\n"
    "y = MatMul(f, head)\n}\n";

/* The gradient of the shortcut is made when the branch's is there, and onto that; the two are the derivative. */
static void test_gradients_are_added_in_place(void **state)
{
    (void)state;
    inv_graph *g = parse(shortcut);
    outcome o = run(g, INV_MEMORY_STORE, "checked", NULL);
    assert_int_equal(o.nonto, 1);
    assert_int_equal(o.nadd, 0);
    const inv_session_options f64 = {.size = sizeof f64, .float64 = true};
    double slope = 0, loss[2];
    size_t k = 0;
    for (int side = 0; side < 2; side++, k = 0) {
        for (size_t i = 0; i < g->inits.n; i++) {
            float *w = (float *)(uintptr_t)inv_val(g, g->inits.at[i])->data.bytes;
            for (int64_t j = 0; j < inv_shape_nelem(&inv_val(g, g->inits.at[i])->shape); j++, k++) {
                const double d = cos((double)k) * 0x1p-12; /* first up, then down by twice as much */
                if (side == 0) slope += d * o.grad[k];
                w[j] += (float)(side ? -2 * d : d);
            }
        }
        assert_int_equal(k, o.ngrad);
        outcome at = run(g, INV_MEMORY_STORE, "cpu", &f64);
        loss[side] = at.loss;
        forget(&at);
    }
    assert_true(fabs((loss[0] - loss[1]) / 2 - slope) < 1e-3 * fabs(slope));
    forget(&o);
    inv_graph_destroy(g);
}

/* A convolution reads the first ReLU's output in backward: its bits are taken right behind that reader, and nothing
 * reads it later. Nothing but its gradient asks for the second one's, which is kept as bits. */
static void test_bits_behind_the_reader(void **state)
{
    (void)state;
    inv_graph *g = parse("g(float[64,3,8,8] x) => (y) {\nparam float[8,3,3,3] a\nparam float[8,8,3,3] b\n"
                         "p = Conv<pads = [1,1,1,1]>(x, a)\nq = Relu(p)\nr = Conv<pads = [1,1,1,1]>(q, b)\n"
                         "t = Relu(r)\nk = GlobalAveragePool(t)\ny = Flatten(k)\n}\n");
    outcome o = run(g, INV_MEMORY_STORE, "checked", NULL);
    assert_int_equal(o.nbits, 2);
    assert_int_equal(o.nbits_behind, 1);
    forget(&o);
    inv_graph_destroy(g);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_halves_are_solved_in_place),
        cmocka_unit_test(test_gradients_are_added_in_place),
        cmocka_unit_test(test_bits_behind_the_reader),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
