/* SPDX-License-Identifier: Apache-2.0
 * Channels last: networks as they are, and with the values around their convolutions turned, give the same results and
 * gradients. Fails if a node gets an operand in the wrong order, if an attribute is not turned with its operands, or
 * if nothing is turned though every convolution would gain by it; which ones do is the processor's. On the host this
 * needs oneDNN. On a device, whose kernels are those compiled for the host here, they are those for matrix units; these
 * compute without rounding, so that nothing but the order of sums differs. */
#include "interp.h"
#include "ops/conv/conv.h"
#include "ops/gpu/gpu.h"
#include "passes/schedule/schedule.h"
#include "with_context.h"

static bool is_built(void)
{
    inv_conv c = {.batch = 1, .group = 16, .cg = 1, .mg = 1};
    c.w = (inv_window){.sd = 2,
                       .in = {1, 8, 8},
                       .out = {1, 6, 6},
                       .k = {1, 3, 3},
                       .stride = {1, 1, 1},
                       .dil = {1, 1, 1},
                       .invol = 64,
                       .outvol = 36,
                       .kvol = 9};
    c.depthwise = true;
    return inv_dnnl_serves(&c, INV_CONV_FORWARD, INV_F32);
}

static size_t count_last(const inv_graph *g)
{
    size_t n = 0;
    for (size_t i = 0; i < g->order.n; i++) {
        const inv_node *node = inv_nod(g, g->order.at[i]);
        n += inv_attr_int(node, "channels_last", 0) != 0;
    }
    return n;
}

/* Would every convolution, forward and backward, be served with its channels last? */
static bool all_gain(const inv_graph *g)
{
    double gain;
    for (size_t i = 0; i < g->order.n; i++) {
        const inv_node *n = inv_nod(g, g->order.at[i]);
        if (strncmp(n->op->name, "Conv", 4) != 0) continue;
        if (!n->op->channels_last || !n->op->channels_last(g, n, &gain) || gain <= 0) return false;
    }
    return true;
}

/* The case with gradients, run; turned or not. `gpu`: on a device, where all are to be turned. */
static void run_case(const char *text, bool turn, const inv_gpu *gpu, interp *it, inv_id *grad)
{
    inv_graph *g;
    inv_id seed[64];
    uint64_t state = 11;
    assert_int_equal(interp_parse(ctx, text, INV_F32, &g), INV_OK);
    g->gpu = gpu != NULL;
    if (gpu) g->precision = INV_PRECISION_TF32;
    g->fold = true;
    inv_status s = inv_pass_lower(g);
    g->fold = false;
    if (s == INV_OK) s = interp_grad(g, grad, seed);
    for (size_t i = 0; i < g->inputs.n; i++)
        if (grad[i] != INV_NONE) inv_val(g, grad[i])->keep = true;
    if (s == INV_OK) s = inv_graph_prune(g);
    const bool must = s == INV_OK && turn && (gpu || all_gain(g));
    if (s == INV_OK && turn) s = inv_pass_layout(g);
    if (s == INV_OK) s = inv_graph_check(g, true);
    if (s != INV_OK) fail_msg("%s: %s", text, inv_context_message(ctx));
    if (must && count_last(g) < 3) fail_msg("nothing was turned: %s", text);
    interp_init(it, g);
    it->gpu = gpu;
    for (size_t i = 0; i < g->inputs.n; i++) interp_fill(it, g->inputs.at[i], &state);
    for (size_t i = 0; i < g->outputs.n; i++)
        if (seed[i] != INV_NONE) interp_fill(it, seed[i], &state);
    if (interp_run(it) != INV_OK) fail_msg("cannot be run: %s", text);
}

static void compare(interp *a, inv_id x, interp *b, inv_id y, const char *text)
{
    const int64_t n = inv_shape_nelem(&inv_val(a->g, x)->shape);
    double most = 0, far = 0;
    assert_true(inv_shape_equal(&inv_val(a->g, x)->shape, &inv_val(b->g, y)->shape));
    for (int64_t k = 0; k < n; k++) {
        most = fmax(most, fabs(interp_get(a, x, k)));
        far = fmax(far, fabs(interp_get(a, x, k) - interp_get(b, y, k)));
    }
    if (!(far <= 2e-5 * most)) fail_msg("%s: apart by %g of %g: %s", inv_val(a->g, x)->name, far, most, text);
}

#define INTS(name, list) name " = Constant<value_ints = [" list "]>()\n"
#define DEPTH_OF(y, n, x, w) y " = Conv<group = " n ", pads = [1,1,1,1]>(" x ", " w ")\n"
#define DEPTH(y, x, w) DEPTH_OF(y, "16", x, w)

/* clang-format off */
static const char *const networks[] = {
    /* batch norm, pooling, squeeze and excitation, joins */
    DEPTH("a", "float[2,16,9,8] x", "float[16,1,3,3] v")
    "b, m, s = BatchNormalization<training_mode = 1>(a, float[16] scale, float[16] bias, float[16] mean, "
    "float[16] var)\n"
    "r = Relu(b)\np = MaxPool<kernel_shape = [3,3], strides = [2,1], pads = [1,1,1,1]>(r)\n"
    "q = GlobalAveragePool(p)\nc = Conv(q, float[4,16,1,1] w1)\nd = Conv(c, float[16,4,1,1] w2)\ne = Sigmoid(d)\n"
    "t = Mul(p, e)\nu = Concat<axis = 1>(t, p)\nk, l = Split<axis = -3, num_outputs = 2>(u)\nn = Sub(k, l)\n"
    "o = AveragePool<kernel_shape = [2,2]>(n)\nf = Flatten(o)\ny = MatMul(f, float[448,5] W)",
    /* operands of fewer axes, reductions, pads and slices, a value that is an output as well */
    DEPTH("a", "float[2,16,7,6] x", "float[16,1,3,3] v")
    "b = Mul(a, float[16,1,1] gain)\nc = Add(b, float[1,16,7,6] place)\nd = PRelu(c, float[16,1,1] slope)\n"
    INTS("p", "0, 0, 1, 0, 0, 0, 0, 2") "e = Pad(d, p)\n"
    INTS("s", "1, 0") INTS("t", "8, 5") INTS("ax", "2, 3") "f = Slice(e, s, t, ax)\n"
    DEPTH("h", "f", "float[16,1,3,3] w") INTS("sp", "2, 3")
    "i = ReduceMean<keepdims = 0>(h, sp)\nj = ReduceMean<keepdims = 1>(h, sp)\nk = Sub(h, j)\nl = Abs(k)\n"
    INTS("one", "1") "m = ReduceSum(l, one)\nz = Greater(k, j)\ny = Where(z, k, f)",
    /* around a normalisation of the channels, as in ConvNeXt; strides, dilations, a residual */
    DEPTH("a", "float[2,16,8,8] x", "float[16,1,3,3] v")
    "t = Transpose<perm = [0,2,3,1]>(a)\nn = LayerNormalization(t, float[16] scale, float[16] bias)\n"
    "u = MatMul(n, float[16,32] W1)\ng = Gelu(u)\nw = MatMul(g, float[32,16] W2)\nb = Transpose<perm = [0,3,1,2]>(w)\n"
    "c = Add(x, b)\nd = Conv<strides = [2,2], pads = [1,1,1,1], group = 2>(c, float[32,8,3,3] k, float[32] kb)\n"
    "e = Conv<dilations = [2,1], pads = [2,0,2,0]>(d, float[16,32,3,1] l)\n"
    DEPTH("y", "e", "float[16,1,3,3] q"),
    /* up again; one axis of space; three */
    DEPTH("a", "float[1,16,5,4] x", "float[16,1,3,3] v")
    "b = ConvTranspose<strides = [2,2]>(a, float[16,16,2,2] w, float[16] wb)\n"
    DEPTH("c", "b", "float[16,1,3,3] v2") "f = Constant<value_floats = [1.0, 1.0, 2.0, 1.0]>()\n"
    "d = Resize<mode = \"nearest\">(c, , f)\n" DEPTH("e", "d", "float[16,1,3,3] v3") "y = Clip<max = 1.0>(e)",
    "a = Conv<group = 24, pads = [2,2]>(float[2,24,40] x, float[24,1,5] v)\nb = Tanh(a)\n"
    "y = Conv<group = 24>(b, float[24,1,3] w, float[24] wb)",
    "a = Conv<group = 20, pads = [1,1,1,1,1,1]>(float[1,20,4,5,6] x, float[20,1,3,3,3] v)\nb = Tanh(a)\n"
    "y = Conv<group = 20>(b, float[20,1,2,2,2] w, float[20] wb)",
    /* extremes, and what is kept of comparisons, packed along the axis that leaves the fewest bits over */
    DEPTH("a", "float[2,16,9,9] x", "float[16,1,3,3] v")
    INTS("one", "1") INTS("sp", "2, 3")
    "b = ReduceMax<keepdims = 1>(a, one)\nc = ReduceMin<keepdims = 0>(a, sp)\nd = Unsqueeze(c, sp)\ne = Sub(a, b)\n"
    "f = Max(e, d)\nh = Min(f, float[1,16,1,1] m)\ni = Shrink<lambd = 0.2>(h)\nj = Relu(i)\nk = Add(j, a)\n"
    DEPTH("y", "k", "float[16,1,3,3] w"),
    "a = Conv<group = 20, pads = [1,1,1,1]>(float[1,20,8,3] x, float[20,1,3,3] v)\nb = Abs(a)\n"
    "y = Conv<group = 20, pads = [1,1,1,1]>(b, float[20,1,3,3] w)",
    /* a value between convolutions of one axis of space that is broadcast in those of two and of three */
    "a = Conv<group = 32, pads = [1,1]>(float[1,32,40] x, float[32,1,3] v)\nb = Sin(a)\n"
    "c = Conv<group = 32, pads = [1,1]>(b, float[32,1,3] v2)\n"
    DEPTH_OF("d", "32", "float[2,32,32,40] x2", "float[32,1,3,3] w") "e = Add(d, b)\nf = Abs(e)\n"
    DEPTH_OF("h", "32", "f", "float[32,1,3,3] w2") "i = ReduceSum<keepdims = 0>(h)\nj = Mul(c, i)\ny = Max(j, c)",
    "a = Conv<group = 32, pads = [1,1]>(float[1,32,16] x, float[32,1,3] v)\nb = Relu(a)\n"
    "c = Conv<group = 32, pads = [1,1]>(b, float[32,1,3] v2)\n"
    "d = Conv<group = 16, pads = [1,1,1,1,1,1]>(float[1,16,4,32,16] x2, float[16,1,3,3,3] w)\ne = Mul(b, d)\n"
    "f = Conv<group = 16, pads = [1,1,1,1,1,1]>(e, float[16,1,3,3,3] w2)\n"
    "i = ReduceSum<keepdims = 0>(f)\ny = Mul(c, i)",
    /* single numbers of fewer axes */
    DEPTH("a", "float[2,16,8,9] x", "float[16,1,3,3] v")
    "q = Softplus(float[1,1,1] gain)\nb = Mul(a, q)\nc = Min(b, float[1] least)\ne = Exp(float[1,1] f)\nd = Add(c, e)\n"
    DEPTH("h", "d", "float[16,1,3,3] w") "i = Abs(float[1,1,1] g)\ny = Max(h, i)",
    /* large kernels: the filter's gradient by a loop of our own */
    "a = Conv<group = 24, pads = [3,3,3,3]>(float[2,24,9,10] x, float[24,1,7,7] v)\nb = Tanh(a)\n"
    "y = Conv<group = 24, strides = [2,1], pads = [1,0,2,1]>(b, float[24,1,5,5] w)",
};

/* Filters that neither kernels of our own nor single products serve. */
static const char *const device_networks[] = {
    /* as in a ResNet: uneven channels, pooling, 1x1 filters with and without strides, a residual */
    "a = Conv<strides = [2,2], pads = [3,3,3,3]>(float[2,3,18,17] x, float[16,3,7,7] v)\n"
    "b, m, s = BatchNormalization<training_mode = 1>(a, float[16] scale, float[16] bias, float[16] mean, "
    "float[16] var)\n"
    "r = Relu(b)\np = MaxPool<kernel_shape = [3,3], strides = [2,1], pads = [1,1,1,1]>(r)\n"
    "c = Conv(p, float[8,16,1,1] w1, float[8] b1)\nd = Relu(c)\n"
    "e = Conv<strides = [1,2], pads = [2,2,2,2]>(d, float[8,8,5,5] w2, float[8] b2)\n"
    "f = Conv(e, float[24,8,1,1] w3)\nh = Conv<strides = [1,2]>(p, float[24,16,1,1] w4)\n"
    "i = Add(f, h)\nj = Relu(i)\nk = GlobalAveragePool(j)\nl = Flatten(k)\ny = MatMul(l, float[24,5] W)",
    /* groups, up again, joins and parts, averages, bits along uneven axes */
    "a = Conv<pads = [2,2,2,2], group = 2>(float[2,8,7,6] x, float[12,4,5,5] v, float[12] vb)\n"
    "b = ConvTranspose<strides = [2,2], group = 3>(a, float[12,5,3,2] w, float[15] wb)\nr = Abs(b)\n"
    "u = Concat<axis = 1>(r, b)\nk, l = Split<axis = -3, num_outputs = 2>(u)\nn = Mul(k, l)\n"
    "h = PRelu(n, float[15,1,1] slope)\n"
    "o = AveragePool<kernel_shape = [2,3], strides = [2,1], pads = [1,0,1,2], count_include_pad = 1>(h)\n"
    "c = Conv<dilations = [2,1], pads = [2,0,2,0], group = 15>(o, float[15,1,3,1] w2)\nd = Clip<max = 1.0>(c)\n"
    "y = Conv(d, float[4,15,2,2] w3)",
    /* reductions, pads and slices, what is broadcast, a value that is an output as well */
    "a = Conv<pads = [2,2,2,2]>(float[2,16,7,6] x, float[16,16,5,5] v)\n"
    "b = Mul(a, float[16,1,1] gain)\nc = Add(b, float[1,16,7,6] place)\n"
    INTS("p", "0, 0, 1, 0, 0, 0, 0, 2") "e = Pad(c, p)\n"
    INTS("s", "1, 0") INTS("t", "8, 5") INTS("ax", "2, 3") "f = Slice(e, s, t, ax)\n"
    "h = Conv<pads = [2,2,2,2]>(f, float[16,16,5,5] w)\n" INTS("sp", "2, 3") INTS("one", "1")
    "i = ReduceMean<keepdims = 0>(h, sp)\nj = ReduceMax<keepdims = 1>(h, one)\nk = Sub(h, j)\nl = Abs(k)\n"
    "m = ReduceSum(l, sp)\nz = Greater(k, j)\ny = Where(z, k, f)",
    /* one axis of space; three */
    "a = Conv<pads = [2,2]>(float[2,24,40] x, float[8,24,5] v)\nb = MaxPool<kernel_shape = [3], strides = [2]>(a)\n"
    "c = AveragePool<kernel_shape = [2]>(b)\ny = Conv<group = 2>(c, float[24,4,3] w, float[24] wb)",
    "a = Conv<pads = [1,1,1,1,1,1]>(float[1,3,4,5,6] x, float[20,3,3,3,3] v)\nb = Tanh(a)\n"
    "c = Conv(b, float[8,20,2,2,2] w, float[8] wb)\nd = MaxPool<kernel_shape = [2,2,2]>(c)\n"
    "y = Conv(d, float[4,8,2,1,2] q)",
    /* columns of some images, and of parts of an image, at a time */
    "a = Conv<pads = [5,5,5,5]>(float[5,2,24,24] x, float[3,2,11,11] v)\nb = Tanh(a)\n"
    "y = Conv<pads = [7,7,7,7]>(b, float[2,3,15,15] w)",
};
/* clang-format on */

static void compare_case(const char *text, const inv_gpu *gpu)
{
    interp plain, last;
    inv_id g[64], h[64];
    run_case(text, false, gpu, &plain, g);
    run_case(text, true, gpu, &last, h);
    for (size_t k = 0; k < plain.g->outputs.n; k++)
        compare(&plain, plain.g->outputs.at[k], &last, last.g->outputs.at[k], text);
    for (size_t k = 0; k < plain.g->inputs.n; k++) {
        assert_int_equal(g[k] == INV_NONE, h[k] == INV_NONE);
        if (g[k] == INV_NONE) continue;
        assert_true(
            inv_shape_equal(inv_shape_of_value(last.g, h[k]), inv_shape_of_value(last.g, last.g->inputs.at[k])));
        compare(&plain, g[k], &last, h[k], text);
    }
    interp_fini(&plain);
    interp_fini(&last);
}

static void test_turned(void **state)
{
    (void)state;
    if (!is_built()) skip();
    for (size_t i = 0; i < sizeof networks / sizeof *networks; i++) compare_case(networks[i], NULL);
}

static void test_turned_on_device(void **state)
{
    (void)state;
    inv_gpu_step step = {.batch = 2};
    uint64_t fault = 0;
    unsigned turn = 0;
    inv_gpu gpu = {.step = &step, .fault = &fault, .turn = &turn};
    inv_gpu_emulate(&gpu);
    for (size_t i = 0; i < sizeof device_networks / sizeof *device_networks; i++)
        compare_case(device_networks[i], &gpu);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_turned), cmocka_unit_test(test_turned_on_device)};
    return cmocka_run_group_tests(tests, setup, teardown);
}
