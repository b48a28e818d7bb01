/* SPDX-License-Identifier: Apache-2.0
 * Element-wise, logic, shape, movement and reduction operators: every case of their rows is lowered, run in float and
 * double, run again in place, and its gradient compared with central differences in double. Then values against
 * hand-made ones. */
#include "interp.h"
#include "ops/base/families.h"
#include "with_context.h"

#define CHECK_OK(call, what)                                                                              \
    do {                                                                                                  \
        inv_status check_ = (call);                                                                       \
        if (check_ != INV_OK) fail_msg("%s: status %d, %s", what, (int)check_, inv_context_message(ctx)); \
    } while (0)

static inv_graph *lowered_at(int opset, const char *text, inv_dtype real)
{
    inv_graph *g = NULL;
    CHECK_OK(inv_case_parse(ctx, text, opset, real, &g), text);
    CHECK_OK(inv_pass_lower(g), text);
    return g;
}

static inv_graph *lowered(const char *text, inv_dtype real) { return lowered_at(0, text, real); }

static double weighted(interp *it, const inv_id *seed)
{
    double sum = 0;
    for (size_t i = 0; i < it->g->outputs.n; i++) {
        const inv_id y = it->g->outputs.at[i];
        for (int64_t k = 0; seed[i] != INV_NONE && k < inv_shape_nelem(&inv_val(it->g, y)->shape); k++)
            sum += interp_get(it, y, k) * interp_get(it, seed[i], k);
    }
    return sum;
}

static void check_differences(interp *it, const char *text, const inv_id *grad, const inv_id *seed)
{
    for (size_t i = 0; i < it->g->inputs.n; i++) {
        const inv_id x = it->g->inputs.at[i];
        const int64_t n = inv_shape_nelem(&inv_val(it->g, x)->shape);
        if (!inv_dtype_is_float(inv_val(it->g, x)->dtype)) continue;
        for (int64_t k = 0; k<n; k += n> 256 ? 1 + n / 64 : 1) { /* of long inputs about 64 elements */
            const double at = interp_get(it, x, k), h = 1e-6;
            const double have = grad[i] == INV_NONE ? 0 : interp_get(it, grad[i], k);
            double side[2];
            for (int j = 0; j < 2; j++) {
                interp_put(it, x, k, j ? at + h : at - h);
                CHECK_OK(interp_run(it), text);
                side[j] = weighted(it, seed);
            }
            interp_put(it, x, k, at);
            CHECK_OK(interp_run(it), text);
            const double want = (side[1] - side[0]) / (2 * h);
            if (!(fabs(have - want) <= 1e-6 * (1 + fabs(want))))
                fail_msg("%s: input %zu, element %lld: gradient %g, differences say %g", text, i, (long long)k, have,
                         want);
        }
    }
}

/* Every operator that may work in place gives the same bytes when it does. */
static void check_inplace(interp *it, const char *text)
{
    for (size_t i = 0; i < it->g->order.n; i++) {
        const inv_node *n = inv_nod(it->g, it->g->order.at[i]);
        for (uint32_t k = 0; k < n->nin && n->op->run != NULL; k++) {
            if (!(n->op->inplace >> k & 1)) continue;
            const uint32_t to = n->op->inplace_out;
            if (to >= n->nout || n->out[to] == INV_NONE) continue;
            inv_tensor in[64] = {{0}}, out[64] = {{0}}, want = interp_tensor(it, n->out[to]);
            for (uint32_t j = 0; j < n->nin; j++) in[j] = interp_tensor(it, n->in[j]);
            if (!inv_shape_equal(&in[k].shape, &want.shape) || in[k].dtype != want.dtype || want.n == 0) continue;
            const size_t nbytes = (size_t)want.n * inv_dtype_size(want.dtype);
            void *copy = malloc(nbytes);
            assert_non_null(copy);
            memcpy(copy, in[k].data, nbytes);
            for (uint32_t j = 0; j < n->nout; j++) out[j] = interp_tensor(it, n->out[j]);
            in[k].data = out[to].data = copy;
            inv_call c = {.node = n, .in = in, .out = out, .nin = n->nin, .nout = n->nout, .step = &it->step};
            c.ws_nbytes = n->op->workspace ? n->op->workspace(it->g, n) : 0;
            c.ws = c.ws_nbytes ? aligned_alloc(64, (c.ws_nbytes + 63) / 64 * 64) : NULL;
            CHECK_OK(n->op->run(&c), text);
            free(c.ws);
            if (memcmp(copy, want.data, nbytes) != 0)
                fail_msg("%s: %s differs in place of input %u", text, n->op_type, k);
            free(copy);
        }
    }
}

static void check_gradient(const char *text, int opset)
{
    interp it;
    inv_id grad[16], seed[16];
    uint64_t state = 7;
    inv_graph *g = lowered_at(opset, text, INV_F64);
    inv_status s = interp_grad(g, grad, seed);
    if (s == INV_E_UNSUPPORTED_OP) { /* derivative operators have no second derivative */
        inv_graph_destroy(g);
        return;
    }
    CHECK_OK(s, text);
    interp_init(&it, g);
    for (size_t i = 0; i < g->inputs.n; i++) interp_fill(&it, g->inputs.at[i], &state);
    for (size_t i = 0; i < g->outputs.n; i++) {
        if (seed[i] != INV_NONE) interp_fill(&it, seed[i], &state);
    }
    CHECK_OK(interp_run(&it), text);
    check_inplace(&it, text);
    check_differences(&it, text, grad, seed);
    interp_fini(&it);
}

static void check_run(const char *text, int opset)
{
    interp f32, f64;
    uint64_t a = 7, b = 7;
    interp_init(&f32, lowered_at(opset, text, INV_F32));
    interp_init(&f64, lowered_at(opset, text, INV_F64));
    for (size_t i = 0; i < f32.g->inputs.n; i++) {
        interp_fill(&f32, f32.g->inputs.at[i], &a);
        interp_fill(&f64, f64.g->inputs.at[i], &b);
    }
    CHECK_OK(interp_run(&f32), text);
    CHECK_OK(interp_run(&f64), text);
    for (size_t i = 0; i < f32.g->outputs.n; i++) {
        const inv_id y = f32.g->outputs.at[i], z = f64.g->outputs.at[i];
        assert_true(inv_shape_equal(&inv_val(f32.g, y)->shape, &inv_val(f64.g, z)->shape));
        if (strcmp(inv_dtype_name(inv_val(f32.g, y)->dtype), "undefined") == 0) fail_msg("%s: no type", text);
        const int64_t nelem = inv_shape_nelem(&inv_val(f32.g, y)->shape);
        double most = 0; /* where terms cancel, it is them that the rounding is relative to */
        for (int64_t k = 0; k < nelem; k++)
            if (isfinite(interp_get(&f64, z, k))) most = fmax(most, fabs(interp_get(&f64, z, k)));
        for (int64_t k = 0; k < nelem; k++) {
            const double u = interp_get(&f32, y, k), v = interp_get(&f64, z, k);
            if (!(fabs(u - v) <= 2e-5 * (1 + fabs(v)) + 1e-6 * most)) fail_msg("%s: float %g, double %g", text, u, v);
        }
    }
    check_inplace(&f32, text);
    check_inplace(&f64, text);
    interp_fini(&f32);
    interp_fini(&f64);
}

static void cases(void **state)
{
    static const inv_op_def *const *const families[] = {
        inv_ops_elementwise,  inv_ops_arith,          inv_ops_logic,     inv_ops_shape,      inv_ops_move,
        inv_ops_slice,        inv_ops_gather,         inv_ops_reduce,    inv_ops_topk,       inv_ops_cumulate,
        inv_ops_index,        inv_ops_dynamic,        inv_ops_sample,    inv_ops_roi,        inv_ops_ml,
        inv_ops_quantize,     inv_ops_random,         inv_ops_signal,    inv_ops_recurrent,  inv_ops_einsum,
        inv_ops_sequence,     inv_ops_bits,           inv_ops_packed,    inv_ops_ms_fused,   inv_ops_ms_norm,
        inv_ops_ms_attention, inv_ops_ms_group_query, inv_ops_ms_packed, inv_ops_ms_qlinear, inv_ops_ms_lstm};
    (void)state;
    for (size_t f = 0; f < sizeof families / sizeof *families; f++) {
        for (const inv_op_def *const *row = families[f]; *row; row++) {
            int count = 0;
            for (const char *const *text = (*row)->cases; *text; text++, count++) {
                if (strcmp((*row)->name, "SequenceOf") == 0) continue;
                check_run(*text, (*row)->until);
                if ((*row)->flags & (INV_OP_NO_GRAD | INV_OP_STRAIGHT)) continue;
                check_gradient(*text, (*row)->until);
            }
            if (strcmp((*row)->name, "SequenceOf") != 0 && count < 2) fail_msg("%s has too few cases", (*row)->name);
            assert_non_null((*row)->doc);
        }
    }
}

/* Inputs count 1, 2, 3, ... over all inputs; the outputs' elements follow. */
static void expect(const char *text, size_t n, const double *want)
{
    interp it;
    double next = 1;
    size_t at = 0;
    interp_init(&it, lowered(text, INV_F32));
    for (size_t i = 0; i < it.g->inputs.n; i++) {
        for (int64_t k = 0; k < inv_shape_nelem(&inv_val(it.g, it.g->inputs.at[i])->shape); k++)
            interp_put(&it, it.g->inputs.at[i], k, next++);
    }
    CHECK_OK(interp_run(&it), text);
    for (size_t i = 0; i < it.g->outputs.n; i++) {
        const inv_id y = it.g->outputs.at[i];
        for (int64_t k = 0; k < inv_shape_nelem(&inv_val(it.g, y)->shape); k++, at++) {
            if (at >= n) fail_msg("%s: more than %zu elements", text, n);
            const double have = interp_get(&it, y, k);
            if (fabs(have - want[at]) > 1e-6) fail_msg("%s: element %zu is %g, wanted %g", text, at, have, want[at]);
        }
    }
    if (at != n) fail_msg("%s: %zu elements, wanted %zu", text, at, n);
    interp_fini(&it);
}
#define EXPECT(text, ...) expect(text, sizeof((double[]){__VA_ARGS__}) / sizeof(double), (const double[]){__VA_ARGS__})
#define INTS(name, list) name " = Constant<value_ints = [" list "]>()\n"

static void values(void **state)
{
    (void)state;
    EXPECT(INTS("s", "9") INTS("e", "-100") INTS("a", "0") INTS("t", "-2") "y = Slice(float[5] x, s, e, a, t)", 5, 3,
           1);
    EXPECT(INTS("s", "-3") INTS("e", "9223372036854775807") "y = Slice(float[5] x, s, e)", 3, 4, 5);
    EXPECT(INTS("s", "4") INTS("e", "-6") INTS("a", "0") INTS("t", "-1") "y = Slice(float[5] x, s, e, a, t)", 5, 4, 3,
           2, 1);
    EXPECT("y = Transpose(float[2,3] x)", 1, 4, 2, 5, 3, 6);
    EXPECT("a, b, c = Split<axis = 1, num_outputs = 3>(float[2,4] x)", 1, 2, 5, 6, 3, 4, 7, 8);
    EXPECT("y = Concat<axis = 1>(float[2,2] a, float[2,1] b)", 1, 2, 5, 3, 4, 6);
    EXPECT(INTS("i", "1, -3") "y = Gather<axis = 1>(float[2,3] x, i)", 2, 1, 5, 4);
    EXPECT(INTS("r", "2, 2") "y = Tile(float[1,2] x, r)", 1, 2, 1, 2, 1, 2, 1, 2);
    EXPECT(INTS("p", "0, 1, 0, -1") "v = Constant<value_float = 9.0>()\ny = Pad(float[2,2] x, p, v)", 9, 1, 9, 3);
    EXPECT(INTS("p", "2, 1") "y = Pad<mode = \"reflect\">(float[3] x, p)", 3, 2, 1, 2, 3, 2);
    EXPECT(INTS("p", "2, 1") "y = Pad<mode = \"wrap\">(float[3] x, p)", 2, 3, 1, 2, 3, 1);
    EXPECT("y = DepthToSpace<blocksize = 2>(float[1,4,1,2] x)", 1, 3, 2, 4, 5, 7, 6, 8);
    EXPECT("y = SpaceToDepth<blocksize = 2>(float[1,1,2,4] x)", 1, 3, 2, 4, 5, 7, 6, 8);
    EXPECT("y = ReduceMean<axes = [0]>(float[2,3] x)", 2.5, 3.5, 4.5);
    EXPECT("y = ReduceL2(float[2] x)", sqrt(5));
    EXPECT("y = Div(int64[4] a, int64[1] b)", 0, 0, 0, 0);
    EXPECT("s = Neg(int64[3] a)\nt = Constant<value_int = 2>()\ny = Mod(s, t)", 1, 0, 1);
    EXPECT("s = Neg(int64[3] a)\nt = Constant<value_int = 2>()\ny = Mod<fmod = 1>(s, t)", -1, 0, -1);
    EXPECT("s = Neg(int64[3] a)\nt = Constant<value_int = 2>()\ny = Div(s, t)", 0, -1, -1);
    EXPECT("y = PRelu(float[2] x, float[2] s)", 1, 2);
    EXPECT("t = Neg(float[3] x)\ny = Elu<alpha = 2.0>(t)", 2 * expm1(-1), 2 * expm1(-2), 2 * expm1(-3));
    EXPECT("y = Gelu(float[1] x)", 0.5 * (1 + erf(1 / sqrt(2))));
    EXPECT("y = Softplus(float[1] x)", log(1 + exp(1)));
    EXPECT("y = SumTo<shape = [2,1]>(float[2,2,2] x)", 14, 22);
    EXPECT("s = Shape(float[2,3] x)\ny = ReduceProd(s)", 6);
}

static void values_by_index(void **state)
{
    (void)state;
    EXPECT("y = ScatterElements<reduction = \"max\">(float[2] x, int64[3]{1,1,0}, float[3] u)", 5, 4);
    EXPECT("y = ScatterElements(float[2] x, int64[3]{1,-1,0}, float[3] u)", 5, 4);
    EXPECT("y = ScatterND<reduction = \"mul\">(float[2] x, int64[3,1]{1,1,0}, float[3] u)", 5, 24);
    EXPECT("y = GatherElements<axis = 1>(float[2,3] x, int64[2,2]{2,0,-2,1})", 3, 1, 5, 5);
    EXPECT("v, i = TopKN<axis = 0, k = 3, largest = 0>(float[5] x)", 1, 2, 3, 0, 1, 2);
    EXPECT("s = Sign(float[4] x)\nv, i = TopKN<axis = 0, k = 2>(s)", 1, 1, 0, 1);
    EXPECT("s = Sign(float[4] x)\nv, i = TopKN<axis = 0, k = 2, last = 1>(s)", 1, 1, 3, 2);
    EXPECT("k = Neg(float[3] x)\ny = ArgMin<keepdims = 0>(k)", 2);
    EXPECT("l = Neg(float[3] x)\nm = Sqrt(l)\nc = Concat<axis = 0>(x, m)\ny = ArgMax<keepdims = 0>(c)", 3);
    EXPECT(INTS("a", "0") "y = CumSum<exclusive = 1, reverse = 1>(float[4] x, a)", 9, 7, 4, 0);
    EXPECT(INTS("a", "0") "y = CumProd(float[4] x, a)", 1, 2, 6, 24);
    EXPECT("y = CumSumInverse<axis = 0, reverse = 1>(float[3] x)", -1, -1, 3);
    EXPECT(INTS("d", "3") "y = OneHot(int64[3]{0,-1,3}, d, float[2] v)", 2, 1, 1, 1, 1, 2, 1, 1, 1);
    EXPECT(INTS("l", "2, 3") "y = ReverseSequence<time_axis = 1, batch_axis = 0>(float[2,3] x, l)", 2, 1, 3, 6, 5, 4);
    EXPECT("y = TensorScatter<mode = \"circular\">(float[1,3,1] x, float[1,2,1] u, int64[1]{2})", 5, 2, 4);
    EXPECT(INTS("s", "2") "y = CenterCropPad(float[5] x, s)", 2, 3);
    EXPECT(INTS("s", "4") "y = CenterCropPad(float[1] x, s)", 0, 1, 0, 0);
    EXPECT(INTS("i", "3") INTS("b", "2") "y = Col2Im(float[1,2,2] x, i, b)", 1, 5, 4);
    /* numbers of 64 bits without a sign, above half of their range */
#define UNSIGNED "a = Cast<to = 13>(int64[4]{0,-1,5,7})\nb = Cast<to = 13>(int64[4]{1,2,3,-1})\n"
    EXPECT(UNSIGNED "y = Div(a, b)", 0, 0x1p63, 1, 0);
    EXPECT(UNSIGNED "y = Mod(a, b)", 0, 1, 2, 7);
    EXPECT(UNSIGNED "y = Min(a, b)", 0, 2, 3, 7);
    EXPECT(UNSIGNED "y = Max(a, b)", 1, 0x1p64, 5, 0x1p64);
    EXPECT(UNSIGNED "y = Less(a, b)", 1, 0, 0, 1);
    EXPECT(UNSIGNED "y = Pow(a, b)", 0, 1, 125, 0x1.b6db6db6db6dbp62); /* 1/7 modulo 2^64 */
    EXPECT(UNSIGNED "y = ReduceMax<keepdims = 0>(a)", 0x1p64);
    EXPECT(UNSIGNED "y = ReduceMin<keepdims = 0>(b)", 1);
    EXPECT(UNSIGNED "y = Sign(a)", 0, 1, 1, 1);
    EXPECT(UNSIGNED "y = Abs(a)", 0, 0x1p64, 5, 7);
    EXPECT(UNSIGNED "y = Clip(a, uint64{1}, uint64{6})", 1, 6, 5, 6);
#undef UNSIGNED
    EXPECT("y = Clip<min = 0.5, max = -0.5>(float[3]{-1,0,1})", -0.5, -0.5, -0.5);
    EXPECT("y = BitShift<direction = \"LEFT\">(uint8[3]{16,4,1}, uint8[3]{1,2,8})", 32, 16, 0);
    EXPECT("y = BitwiseNot(int8[2]{5,-1})", -6, 0);
    EXPECT("y, i, v, c = Unique<sorted = 0>(int64[6]{2,1,1,3,4,3})", 2, 1, 3, 4, 0, 1, 3, 4, 0, 1, 1, 2, 3, 2, 1, 2, 2,
           1);
    EXPECT("y = NonZero(int64[2,2]{0,5,7,0})", 0, 1, 1, 0);
    EXPECT("y = Compress<axis = 1>(float[2,3] x, bool[3]{0,1,1})", 2, 3, 5, 6);
    EXPECT("c = Constant<value_floats = [0.0, 0.0]>()\np = Reshape(c, int64[4]{1,1,1,2})\n"
           "y = GridSample(float[1,1,2,2] x, p)",
           2.5);
    EXPECT("c = Constant<value_floats = [0.0, 0.0, 2.0, 2.0]>()\nr = Reshape(c, int64[2]{1,4})\n"
           "y = RoiAlign(float[1,1,2,2] x, r, int64[1]{0})",
           2.5);
}

/* A reduction long enough for several chunks and threads, against plain sums; the same for any layout of axes. */
static void long_reductions(void **state)
{
    static const char *const texts[] = {"y = SumTo<shape = [1]>(float[40000] x)",
                                        "y = SumTo<shape = [1,5]>(float[20000,5] x)",
                                        "y = ReduceMeanAxes<axes = [0,2], keepdims = 0>(float[30,7,300] x)",
                                        "y = ReduceMaxAxes<axes = [1], keepdims = 1>(float[3,9000] x)",
                                        "y = BroadcastTo<shape = [300,200]>(float[200] x)",
                                        "y = Add(float[20000,3] a, float[3] b)",
                                        "y = Mul(float[50000] a, float b)"};
    (void)state;
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) check_run(texts[i], 0);
    interp it;
    double want = 0;
    interp_init(&it, lowered(texts[0], INV_F64));
    for (int64_t k = 0; k < 40000; k++) {
        interp_put(&it, it.g->inputs.at[0], k, (double)k * 0.25);
        want += (double)k * 0.25;
    }
    CHECK_OK(interp_run(&it), texts[0]);
    assert_true(fabs(interp_get(&it, it.g->outputs.at[0], 0) - want) < 1e-6);
    interp_fini(&it);
}

/* What shape arithmetic makes is a constant after lowering. */
static void folding(void **state)
{
    static const char *const text =
        "s = Shape(float[2,3,4] x)\n" INTS("i", "0") "b = Gather(s, i)\n" INTS("m", "-1") "t = Concat<axis = 0>(b, m)\n"
                                                                                          "y = Reshape(x, t)";
    int64_t ints[4];
    size_t n;
    (void)state;
    inv_graph *g = lowered(text, INV_F32);
    assert_int_equal(g->order.n, 1);
    assert_string_equal(inv_nod(g, g->order.at[0])->op_type, "View");
    inv_graph_destroy(g);
    g = lowered("a = Constant<value_int = 2>()\nb = Constant<value_int = 9>()\nc = Constant<value_int = 3>()\n"
                "r = Range(a, b, c)\nf = Cast<to = 1>(r)\nk = Cast<to = 7>(f)\ne = Equal(k, a)\ny = Where(e, b, k)",
                INV_F32);
    assert_int_equal(g->order.n, 0);
    assert_true(inv_const_ints(g, g->outputs.at[0], 4, ints, &n));
    assert_int_equal(n, 3);
    assert_true(ints[0] == 9 && ints[1] == 5 && ints[2] == 8);
    inv_graph_destroy(g);
}

static void inverses(void **state)
{
    static const char *const texts[] = {"y = LeakyRelu<alpha = 0.1>(float[6] x)\nz = LeakyReluInverse<alpha = 0.1>(y)",
                                        "y = Elu<alpha = 0.5>(float[6] x)\nz = EluInverse<alpha = 0.5>(y)",
                                        "y = Tanh(float[6] x)\nz = TanhInverse(y)",
                                        "y = Sigmoid(float[6] x)\nz = SigmoidInverse(y)",
                                        "y = Softplus(float[6] x)\nz = SoftplusInverse(y)",
                                        "y = Selu(float[6] x)\nz = SeluInverse(y)",
                                        "y = Celu<alpha = 0.7>(float[6] x)\nz = CeluInverse<alpha = 0.7>(y)",
                                        "y = Softsign(float[6] x)\nz = SoftsignInverse(y)",
                                        "y = Exp(float[6] x)\nz = ExpInverse(y)",
                                        "y = Asinh(float[6] x)\nz = AsinhInverse(y)"};
    (void)state;
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        interp it;
        uint64_t random = 3;
        interp_init(&it, lowered(texts[i], INV_F64));
        interp_fill(&it, it.g->inputs.at[0], &random);
        CHECK_OK(interp_run(&it), texts[i]);
        for (int64_t k = 0; k < 6; k++) {
            const double x = interp_get(&it, it.g->inputs.at[0], k), z = interp_get(&it, it.g->outputs.at[0], k);
            if (fabs(x - z) > 1e-12) fail_msg("%s: %g comes back as %g", texts[i], x, z);
        }
        interp_fini(&it);
    }
}

/* Wrong uses are named, none crashes. */
static void refusals(void **state)
{
    static const char *const texts[] = {"y = Add(float[2] a, float[3] b)",
                                        "y = Add(float[2] a, int64[2] b)",
                                        INTS("s", "5") "y = Reshape(float[2,3] x, s)",
                                        INTS("s", "-1, -1") "y = Reshape(float[2,3] x, s)",
                                        "y = Transpose<perm = [0,0]>(float[2,3] x)",
                                        "y = Squeeze<axes = [0]>(float[2] x)",
                                        "y = Concat<axis = 0>(float[2,3] a, float[2,2] b)",
                                        "a, b = Split(float[3,2] x)",
                                        INTS("i", "7") "y = Gather(float[2] x, i)",
                                        "y = Reshape(float[6] x, int64[2] s)",
                                        "y = Relu(bool[2] x)\nz = Sigmoid(y)",
                                        "y = ReduceSum<axes = [3]>(float[2,2] x)",
                                        INTS("s", "0") INTS("e", "1") INTS("a", "0")
                                            INTS("t", "0") "y = Slice(float[2] x, s, e, a, t)",
                                        "y = SequenceAt(float[2] x, int64 i)",
                                        "y = Flatten<axis = 4>(float[2,3] x)",
                                        "y = Gelu<approximate = \"none such\">(float[2] x)"};
    (void)state;
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        inv_graph *g = NULL;
        CHECK_OK(interp_parse(ctx, texts[i], INV_F32, &g), texts[i]);
        if (inv_pass_lower(g) == INV_OK) fail_msg("%s: was not refused", texts[i]);
        assert_true(strlen(inv_context_message(ctx)) > 20);
        inv_graph_destroy(g);
    }
}

/* --- every allocation of parsing, lowering and differentiating fails once: no crash, nothing is left behind --- */
typedef struct failing {
    long calls, fail_at, live;
} failing;

static void *failing_alloc(void *opaque, size_t nbytes)
{
    failing *f = opaque;
    if (++f->calls == f->fail_at) return NULL;
    void *p = malloc(nbytes ? nbytes : 1);
    f->live += p != NULL;
    return p;
}

static void failing_free(void *opaque, void *p)
{
    ((failing *)opaque)->live -= p != NULL;
    free(p);
}

static bool build(inv_context *c, const char *text)
{
    inv_id grad[16], seed[16];
    inv_graph *g = NULL;
    inv_status s = interp_parse(c, text, INV_F32, &g);
    if (s == INV_OK) s = inv_pass_lower(g);
    if (s == INV_OK) s = interp_grad(g, grad, seed);
    inv_graph_destroy(g);
    return s == INV_OK || s == INV_E_UNSUPPORTED_OP;
}

static void out_of_memory(void **state)
{
    static const inv_op_def *const *const families[] = {
        inv_ops_shape,    inv_ops_slice,    inv_ops_gather,  inv_ops_reduce, inv_ops_topk,
        inv_ops_cumulate, inv_ops_index,    inv_ops_dynamic, inv_ops_sample, inv_ops_roi,
        inv_ops_scatter,  inv_ops_quantize, inv_ops_random,  inv_ops_signal, inv_ops_bits};
    failing f = {0};
    const inv_allocator allocator = {failing_alloc, failing_free, &f};
    const inv_context_options options = {.size = sizeof options, .allocator = &allocator};
    inv_context *c = NULL;
    (void)state;
    assert_int_equal(inv_context_create(&options, &c), INV_OK);
    for (size_t k = 0; k < sizeof families / sizeof *families; k++) {
        for (const inv_op_def *const *row = families[k]; *row; row++) {
            bool done = false;
            for (long n = 1; !done; n++) {
                f.calls = 0;
                f.fail_at = n;
                done = build(c, (*row)->cases[0]) && f.calls < n;
                assert_true(n < 10000);
            }
            f.fail_at = 0;
        }
    }
    inv_context_destroy(c);
    assert_int_equal(f.live, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(cases),           cmocka_unit_test(values),
                                       cmocka_unit_test(values_by_index), cmocka_unit_test(long_reductions),
                                       cmocka_unit_test(folding),         cmocka_unit_test(inverses),
                                       cmocka_unit_test(refusals),        cmocka_unit_test(out_of_memory)};
    return cmocka_run_group_tests(tests, setup, teardown);
}
