/* SPDX-License-Identifier: Apache-2.0
 * Spellings: two ways to write one thing give the same canonical graph, and it computes the same values and gradients;
 * what only looks like it stays apart. */
#include "counting.h"
#include "interp.h"
#include "passes/canonical/canonical.h"

#include "graph_text.h"

enum { MAX_IN = 4, MAX_RESULTS = 4096 };

/* A graph of inputs, parameters and statements that give y. */
typedef struct pair {
    const char *what, *inputs, *params, *one, *other;
} pair;

#define X "float[2,4,6] x"
#define IMAGE "float[2,3,4,6] x"
#define QKV "float[2,2,4,6] q, float[2,2,5,6] k, float[2,2,5,3] v"
#define SELF "float[2,2,3,6] q, float[2,2,3,6] k, float[2,2,3,6] v"
#define CHANNEL_PARAMS                                                                       \
    "param float[3] g; param float[3] b; param float[3] m; param float[3] v = {0.5, 1, 2}; " \
    "param float[3,1,1] g3; param float[3,1,1] b3; param float[3,1,1] m3; param float[3,1,1] v3 = {0.5, 1, 2}; "
#define HALVES_OF(first, second) first second "e = Exp(a); y = Concat<axis = 2>(e, b)"
#define ERF(root, one, half)                                                                 \
    "d = Div(x, float {" root "}); e = Erf(d); a = Add(e, float {" one "}); m = Mul(x, a); " \
    "y = Mul(m, float {" half "}) "

static inv_graph *graph_of(const pair *p, const char *body)
{
    inv_str s;
    inv_str_init(&s, ctx);
    inv_str_add(&s, "<opset_import: [\"\" : 24]>\ng(%s) => (y%s) { %s %s }", p->inputs,
                strstr(body, "# also") ? ", also" : "", p->params, body);
    inv_graph *g = parse(s.s);
    inv_str_fini(&s);
    return g;
}

/* The canonical graph in text form: names by order of appearance, so that only structure is left. */
static char *canonical(const pair *p, const char *body)
{
    inv_graph *g = graph_of(p, body);
    inv_session_options o = {.size = sizeof o, .purpose = INV_FOR_RUN};
    inv_request rq = {.options = &o, .purpose = INV_FOR_EVAL};
    inv_plan plan = {0};
    g->real = INV_F32;
    if (inv_compile_front(g, &rq, &plan) != INV_OK) fail_msg("%s\n%s: %s", inv_context_message(ctx), p->what, body);
    uint32_t next = 0;
    for (size_t i = 0; i < g->order.n; i++) {
        inv_node *n = inv_nod(g, g->order.at[i]);
        n->name = "";
        for (uint32_t k = 0; k < n->nin + n->nout; k++) {
            inv_id v = k < n->nin ? n->in[k] : n->out[k - n->nin];
            if (v == INV_NONE || inv_val(g, v)->role == INV_ROLE_PARAM || inv_val(g, v)->name[0] == '%') continue;
            inv_val(g, v)->name = inv_arena_printf(&g->arena, "%%%u", next++);
        }
    }
    inv_str out;
    inv_str_init(&out, ctx);
    assert_int_equal(inv_graph_print(g, &out), INV_OK);
    char *text = malloc(out.n + 1);
    assert_non_null(text);
    memcpy(text, out.s, out.n + 1);
    inv_str_fini(&out);
    inv_graph_destroy(g);
    return text;
}

/* clang-format off */
static const pair same[] = {
    /* --- signs, constants, powers --- */
    {"subtraction", X ", float[2,4,6] u", "", "y = Sub(x, u)", "n = Neg(u); y = Add(n, x)"},
    {"sum", X ", float[2,4,6] u", "", "y = Add(x, u)", "n = Neg(u); y = Sub(x, n)"},
    {"negation", X, "", "y = Neg(x)", "y = Mul(x, float {-1})"},
    {"negation by difference", X, "", "y = Neg(x)", "y = Sub(float {0}, x)"},
    {"nothing", X, "", "y = Exp(x)",
     "a = Mul(x, float {1}); b = Add(a, float[1] {0}); c = Identity(b); d = Cast<to = 1>(c); e = Exp(d); r = Neg(e); "
     "y = Neg(r)"},
    {"reciprocal", X, "", "y = Reciprocal(x)", "y = Div(float {1}, x)"},
    {"reciprocal by power", X, "", "y = Reciprocal(x)", "y = Pow(x, float {-1})"},
    {"division", X ", float[6] u", "", "y = Div(x, u)", "r = Reciprocal(u); y = Mul(r, x)"},
    {"exact division", X, "", "y = Mul(x, float {0.125})", "y = Div(x, float {8})"},
    {"shift", X, "", "y = Add(x, float {-0.3f})", "y = Sub(x, float {0.3f})"},
    {"square", X, "", "y = Mul(x, x)", "y = Pow(x, float {2})"},
    {"square, exponent an initializer", X, "param float[] two = {2}; ", "y = Mul(x, x)", "y = Pow(x, two)"},
    {"square root", X, "", "y = Sqrt(x)", "y = Pow(x, float {0.5})"},
    {"reciprocal square root", X, "", "s = Sqrt(x); y = Reciprocal(s)", "y = Pow(x, float {-0.5})"},
    {"cube", X, "", "y = Pow(x, float {3})", "q = Mul(x, x); y = Mul(x, q)"},
    {"sum of many", X ", float[2,4,6] u", "", "y = Sum(x, u, x)", "a = Add(x, u); y = Add(a, x)"},
    {"mean of many", X ", float[2,4,6] u", "", "y = Mean(x, u)", "a = Add(x, u); y = Div(a, float {2})"},

    /* --- piecewise linear --- */
    {"Relu by Max", X, "", "y = Relu(x)", "y = Max(float {0}, x)"},
    {"Relu by Clip", X, "", "y = Relu(x)", "y = Clip(x, float {0})"},
    {"Relu by Where", X, "", "y = Relu(x)", "c = Greater(x, float {0}); y = Where(c, x, float {0})"},
    {"Relu by Where, turned", X, "", "y = Relu(x)", "c = Less(x, float {0}); y = Where(c, float {0}, x)"},
    {"LeakyRelu by Max", X, "", "y = LeakyRelu<alpha = 0.1f>(x)", "s = Mul(x, float {0.1}); y = Max(s, x)"},
    {"LeakyRelu by Where", X, "", "y = LeakyRelu<alpha = 0.1f>(x)",
     "s = Mul(float {0.1}, x); c = GreaterOrEqual(x, float {0}); y = Where(c, x, s)"},
    {"LeakyRelu by two", X, "", "y = LeakyRelu<alpha = 0.1f>(x)",
     "r = Relu(x); n = Neg(x); m = Relu(n); s = Mul(m, float {0.1}); y = Sub(r, s)"},
    {"PRelu", X, "param float[6] a; ", "y = PRelu(x, a)",
     "r = Relu(x); m = Min(x, float {0}); s = Mul(a, m); y = Add(s, r)"},
    {"PRelu by a sign", X, "param float[6] a; ",
     "w = Mul(a, float {-2}); q = Exp(w); p = PRelu(x, q); u = Exp(a); y = Mul(p, u)",
     "s = Sign(x); k = Mul(a, s); e = Exp(k); y = Mul(x, e)"},
    {"PRelu by a sign, both slopes", X, "param float[6] a; param float[6] h; ",
     "w = Mul(h, float {2}); q = Exp(w); p = PRelu(x, q); u = Exp(a); y = Mul(p, u)",
     "s = Sign(x); d = Sub(float {1}, s); k = Mul(h, d); l = Add(a, k); e = Exp(l); y = Mul(x, e)"},
    {"Elu by Where", X, "", "y = Elu<alpha = 1.0>(x)",
     "e = Exp(x); m = Sub(e, float {1}); c = Greater(x, float {0}); y = Where(c, x, m)"},
    {"ThresholdedRelu", X, "", "y = ThresholdedRelu<alpha = 0.5>(x)",
     "c = Greater(x, float {0.5}); y = Where(c, x, float {0})"},
    {"Clip by Max and Min", X, "", "y = Clip(x, float {-1}, float {2})",
     "t = Max(x, float {-1}); y = Min(t, float {2})"},
    {"Relu6", X, "", "y = Clip(x, float {0}, float {6})", "t = Relu(x); y = Min(float {6}, t)"},
    {"HardSigmoid", X, "", "y = HardSigmoid<alpha = 0.16666667f, beta = 0.5>(x)",
     "a = Add(x, float {3}); c = Clip(a, float {0}, float {6}); y = Div(c, float {6})"},
    {"HardSwish", X, "", "y = HardSwish(x)",
     "a = Add(x, float {3}); c = Clip(a, float {0}, float {6}); m = Mul(x, c); y = Div(m, float {6})"},
    {"HardSwish by HardSigmoid", X, "", "y = HardSwish(x)",
     "h = HardSigmoid<alpha = 0.16666667f, beta = 0.5>(x); y = Mul(h, x)"},

    /* --- smooth --- */
    {"Sigmoid", X, "", "y = Sigmoid(x)", "n = Neg(x); e = Exp(n); a = Add(float {1}, e); y = Div(float {1}, a)"},
    {"Sigmoid by Tanh", X, "", "y = Sigmoid(x)",
     "h = Div(x, float {2}); t = Tanh(h); a = Add(t, float {1}); y = Mul(a, float {0.5})"},
    {"Tanh by Sigmoid", X, "", "y = Tanh(x)",
     "h = Mul(x, float {2}); s = Sigmoid(h); d = Mul(s, float {2}); y = Sub(d, float {1})"},
    {"Softplus", X, "", "y = Softplus(x)", "e = Exp(x); a = Add(e, float {1}); y = Log(a)"},
    {"Softsign", X, "", "y = Softsign(x)", "b = Abs(x); a = Add(float {1}, b); y = Div(x, a)"},
    {"Softsign to a bound", X, "const float[] c = {5}; ", "d = Div(x, c); s = Softsign(d); y = Mul(s, c)",
     "d = Div(x, c); b = Abs(d); a = Add(b, float {1}); y = Div(x, a)"},
    {"Softsign to a bound, by a factor", X, "const float[] c = {5}; ", "d = Mul(x, c); s = Softsign(d); y = Div(s, c)",
     "d = Mul(x, c); b = Abs(d); a = Add(float {1}, b); y = Div(x, a)"},
    {"Softsign beside what its logarithm reads", X, "const float[] one = {1}; ",
     "b = Abs(x); a = Add(b, one); y = Softsign(x); also = Log(a) # also\n",
     "b = Abs(x); a = Add(b, one); y = Div(x, a); also = Log(a) # also\n"},
    {"Swish", X, "", "y = Swish(x)", "s = Sigmoid(x); y = Mul(x, s)"},
    {"Swish by Exp", X, "", "y = Swish(x)", "n = Neg(x); e = Exp(n); a = Add(e, float {1}); y = Div(x, a)"},
    {"Swish with a factor", X, "", "y = Swish<alpha = 1.702f>(x)",
     "k = Mul(x, float {1.702}); s = Sigmoid(k); y = Mul(x, s)"},
    {"Mish", X, "", "y = Mish(x)", "e = Exp(x); a = Add(e, float {1}); p = Log(a); t = Tanh(p); y = Mul(x, t)"},
    {"GELU", X, "", "y = Gelu(x)",
     "d = Div(x, float {1.4142135}); e = Erf(d); a = Add(e, float {1}); m = Mul(x, a); y = Mul(m, float {0.5})"},
    {"GELU, half first", X, "", "y = Gelu(x)",
     "h = Mul(float {0.5}, x); d = Mul(x, float {0.70710678}); e = Erf(d); a = Add(float {1}, e); y = Mul(h, a)"},
    {"GELU, half of the bracket", X, "", "y = Gelu(x)",
     "d = Div(x, float {1.4142135}); e = Erf(d); a = Add(e, float {1}); h = Div(a, float {2}); y = Mul(x, h)"},
    {"GELU, half of each", X, "", "y = Gelu(x)",
     "d = Div(x, float {1.4142135}); e = Erf(d); h = Mul(e, float {0.5}); a = Add(h, float {0.5}); y = Mul(a, x)"},
    {"GELU, constants are initializers", X,
     "param float[] root = {1.4142135}; param float[] one = {1}; param float[] half = {0.5}; ", "y = Gelu(x)",
     "d = Div(x, root); e = Erf(d); a = Add(e, one); m = Mul(x, a); y = Mul(m, half)"},
    {"GELU by Tanh", X, "", "y = Gelu<approximate = \"tanh\">(x)",
     "c = Pow(x, float {3}); k = Mul(c, float {0.044715}); s = Add(x, k); u = Mul(s, float {0.7978845608}); "
     "t = Tanh(u); a = Add(t, float {1}); h = Mul(x, float {0.5}); y = Mul(h, a)"},
    {"GELU by Tanh, cube by products", X, "", "y = Gelu<approximate = \"tanh\">(x)",
     "q = Mul(x, x); c = Mul(q, x); k = Mul(c, float {0.044715}); s = Add(x, k); u = Mul(s, float {0.7978845608}); "
     "t = Tanh(u); a = Add(t, float {1}); m = Mul(x, a); y = Mul(m, float {0.5})"},
    {"GELU by Tanh, factored", X, "", "y = Gelu<approximate = \"tanh\">(x)",
     "w = Mul(float {0.044715}, x); k = Mul(w, x); b = Add(float {1}, k); v = Mul(x, float {0.7978845608}); "
     "u = Mul(v, b); t = Tanh(u); a = Add(float {1}, t); h = Mul(x, float {0.5}); y = Mul(h, a)"},

    /* --- reductions, softmax --- */
    {"mean by sum", X, "", "y = ReduceMean<keepdims = 0>(x, int64[1] {-1})",
     "s = ReduceSum<keepdims = 0>(x, int64[1] {2}); y = Div(s, float {6})"},
    {"reduction and Unsqueeze", X, "", "y = ReduceMax(x, int64[1] {1})",
     "r = ReduceMax<keepdims = 0>(x, int64[1] {1}); y = Unsqueeze(r, int64[1] {1})"},
    {"pooling and Flatten", IMAGE, "", "y = ReduceMean<keepdims = 0>(x, int64[2] {2, 3})",
     "p = GlobalAveragePool(x); y = Flatten(p)"},
    {"Softmax", X, "", "y = Softmax(x)",
     "m = ReduceMax(x, int64[1] {-1}); d = Sub(x, m); e = Exp(d); s = ReduceSum(e, int64[1] {-1}); y = Div(e, s)"},
    {"Softmax by reciprocal", X, "", "y = Softmax<axis = 1>(x)",
     "m = ReduceMax(x, int64[1] {1}); d = Sub(x, m); e = Exp(d); s = ReduceSum(e, int64[1] {1}); r = Reciprocal(s); "
     "y = Mul(e, r)"},
    {"Softmax without the maximum", X, "", "y = Softmax<axis = 1>(x)",
     "e = Exp(x); s = ReduceSum(e, int64[1] {1}); y = Div(e, s)"},
    {"Softmax, axis from the back", X, "", "y = Softmax<axis = -2>(x)", "y = Softmax<axis = 1>(x)"},
    {"LogSoftmax", X, "", "y = LogSoftmax(x)", "s = Softmax(x); y = Log(s)"},
    {"ln of a sigmoid", X, "", "n = Neg(x); p = Softplus(n); y = Neg(p)", "s = Sigmoid(x); y = Log(s)"},
    {"ln of a quotient", X, "", "n = Neg(x); p = Softplus(n); y = Neg(p)",
     "n = Neg(x); e = Exp(n); a = Add(e, float {1}); r = Div(float {1}, a); y = Log(r)"},
    {"ln of a sum of powers", X, "", "y = ReduceLogSumExp<axes = [1]>(x)",
     "e = Exp(x); s = ReduceSum<axes = [1]>(e); y = Log(s)"},
    {"ln of a sum of powers by the largest", X, "", "y = ReduceLogSumExp<axes = [1]>(x)",
     "m = ReduceMax<axes = [1]>(x); d = Sub(x, m); e = Exp(d); s = ReduceSum<axes = [1]>(e); l = Log(s); "
     "y = Add(l, m)"},
    {"LogSoftmax by ReduceLogSumExp", X, "", "y = LogSoftmax<axis = 1>(x)",
     "l = ReduceLogSumExp(x, int64[1] {1}); y = Sub(x, l)"},
    {"LogSoftmax by primitives", X, "", "y = LogSoftmax(x)",
     "m = ReduceMax(x, int64[1] {2}); d = Sub(x, m); e = Exp(d); s = ReduceSum(e, int64[1] {2}); l = Log(s); "
     "y = Sub(d, l)"},

    /* --- normalisations --- */
    {"LayerNorm without scale", X, "const float[6] one = {1, 1, 1, 1, 1, 1}; ",
     "y = LayerNormalization<epsilon = 0.001f>(x, one)",
     "m = ReduceMean(x, int64[1] {-1}); d = Sub(x, m); q = Pow(d, float {2}); v = ReduceMean(q, int64[1] {-1}); "
     "e = Add(v, float {0.001}); s = Sqrt(e); y = Div(d, s)"},
    {"LayerNorm", X, "param float[6] g; param float[6] b; ", "y = LayerNormalization<epsilon = 0.001f>(x, g, b)",
     "m = ReduceMean(x, int64[1] {-1}); d = Sub(x, m); q = Pow(d, float {2}); v = ReduceMean(q, int64[1] {-1}); "
     "e = Add(v, float {0.001}); s = Sqrt(e); n = Div(d, s); w = Mul(n, g); y = Add(w, b)"},
    {"LayerNorm, difference twice, reciprocal", X, "param float[6] g; param float[6] b; ",
     "y = LayerNormalization<epsilon = 0.001f>(x, g, b)",
     "m = ReduceMean(x, int64[1] {-1}); d = Sub(x, m); d2 = Sub(x, m); q = Mul(d2, d2); "
     "v = ReduceMean(q, int64[1] {-1}); e = Add(float {0.001}, v); r = Pow(e, float {-0.5}); n = Mul(r, d); "
     "w = Mul(g, n); y = Add(b, w)"},
    {"LayerNorm over two axes", X, "param float[4,6] g; param float[4,6] b; ",
     "y = LayerNormalization<axis = 1, epsilon = 0.001f>(x, g, b)",
     "m = ReduceMean(x, int64[2] {1, 2}); d = Sub(x, m); q = Mul(d, d); v = ReduceMean(q, int64[2] {-2, -1}); "
     "e = Add(v, float {0.001}); s = Sqrt(e); n = Div(d, s); w = Mul(n, g); y = Add(w, b)"},
    {"RMSNorm", X, "param float[6] g; ",
     "q = Mul(x, x); v = ReduceMean(q, int64[1] {-1}); e = Add(v, float {0.001}); s = Sqrt(e); "
     "n = Div(x, s); y = Mul(n, g)",
     "q = Pow(x, float {2}); v = ReduceMean(q, int64[1] {2}); e = Add(v, float {0.001}); r = Pow(e, float {-0.5}); "
     "n = Mul(r, x); y = Mul(g, n)"},
    {"batch norm, running statistics", IMAGE, CHANNEL_PARAMS,
     "y = BatchNormalization<epsilon = 0.001f>(x, g, b, m, v)",
     "c = Reshape(m, int64[3] {3, 1, 1}); d = Sub(x, c); w = Reshape(v, int64[3] {3, 1, 1}); "
     "e = Add(w, float {0.001}); s = Sqrt(e); n = Div(d, s); h = Reshape(g, int64[3] {3, 1, 1}); k = Mul(n, h); "
     "t = Reshape(b, int64[3] {3, 1, 1}); y = Add(k, t)"},
    {"batch norm, statistics by channel and folded", IMAGE, CHANNEL_PARAMS,
     "d = Sub(x, m3); e = Add(v3, float {0.001}); s = Sqrt(e); n = Div(d, s); k = Mul(n, g3); y = Add(k, b3)",
     "e = Add(v3, float {0.001}); s = Sqrt(e); r = Reciprocal(s); k = Mul(r, g3); f = Mul(x, k); h = Mul(m3, k); "
     "c = Sub(b3, h); y = Add(f, c)"},
    {"batch norm, statistics of the batch", IMAGE, CHANNEL_PARAMS,
     "c, w = BatchStats(x); y = BatchNormApply<epsilon = 0.001f, training = 1>(x, g, b, c, w)",
     "c = ReduceMean(x, int64[3] {0, 2, 3}); d = Sub(x, c); q = Mul(d, d); w = ReduceMean(q, int64[3] {0, 2, 3}); "
     "e = Add(w, float {0.001}); s = Sqrt(e); n = Div(d, s); h = Reshape(g, int64[3] {3, 1, 1}); k = Mul(n, h); "
     "t = Reshape(b, int64[3] {3, 1, 1}); y = Add(k, t)"},

    /* --- contractions --- */
    {"Gemm and MatMul", "float[4,6] x", "param float[6,5] A; param float[5] c; ", "y = Gemm(x, A, c)",
     "m = MatMul(x, A); y = Add(m, c)"},
    {"Gemm with a transposed weight", "float[4,6] x", "param float[5,6] A; param float[5] c; ",
     "y = Gemm<transB = 1>(x, A, c)", "t = Transpose(A); m = MatMul(x, t); y = Add(m, c)"},

    /* --- movement --- */
    {"Flatten and Reshape", X, "", "y = Flatten(x)", "y = Reshape(x, int64[2] {0, -1})"},
    {"Squeeze and Reshape", "float[2,1,6] x", "", "y = Squeeze(x, int64[1] {1})", "y = Reshape(x, int64[2] {2, 6})"},
    {"nothing moved", X, "", "y = Exp(x)",
     "a = Reshape(x, int64[3] {2, 4, 6}); b = Expand(a, int64[2] {4, 6}); c = Transpose<perm = [0, 1, 2]>(b); "
     "d = Dropout(c, float {0}); y = Exp(d)"},
    {"transposed twice", X, "", "y = Transpose<perm = [2, 0, 1]>(x)",
     "t = Transpose<perm = [0, 2, 1]>(x); y = Transpose<perm = [1, 0, 2]>(t)"},
    {"reshaped twice", X, "", "y = Reshape(x, int64[2] {8, 6})",
     "t = Reshape(x, int64[1] {48}); u = Unsqueeze(t, int64[1] {0}); y = Reshape(u, int64[2] {8, 6})"},
    {"space to depth", IMAGE, "", "y = SpaceToDepth<blocksize = 2>(x)",
     "r = Reshape(x, int64[6] {2, 3, 2, 2, 3, 2}); t = Transpose<perm = [0, 3, 5, 1, 2, 4]>(r); "
     "y = Reshape(t, int64[4] {2, 12, 2, 3})"},
    {"depth to space", "float[2,12,2,3] x", "", "y = DepthToSpace<blocksize = 2, mode = \"CRD\">(x)",
     "r = Reshape(x, int64[6] {2, 3, 2, 2, 2, 3}); t = Transpose<perm = [0, 1, 4, 2, 5, 3]>(r); "
     "y = Reshape(t, int64[4] {2, 3, 4, 6})"},
    {"split by slices", X, "", "a, b = Split<axis = 2>(x, int64[2] {3, 3}); e = Exp(a); y = Concat<axis = 2>(e, b)",
     HALVES_OF("a = Slice(x, int64[1] {0}, int64[1] {3}, int64[1] {2}); ",
               "b = Slice(x, int64[1] {3}, int64[1] {9223372036854775807}, int64[1] {-1}); ")},
    {"split by indices", X, "", "a, b = Split<axis = 2, num_outputs = 2>(x); e = Exp(a); y = Concat<axis = 2>(e, b)",
     HALVES_OF("a = Gather<axis = 2>(x, int64[3] {0, 1, 2}); ", "b = Gather<axis = -1>(x, int64[3] {3, 4, 5}); ")},
    {"split as a sequence", X, "", "a, b = Split<axis = 2, num_outputs = 2>(x); e = Exp(a); y = Concat<axis = 2>(e, b)",
     "q = SplitToSequence<axis = -1>(x, int64 {3}); a = SequenceAt(q, int64 {0}); b = SequenceAt(q, int64 {-1}); "
     "e = Exp(a); y = Concat<axis = 2>(e, b)"},
    {"chunks by computed extents", X, "",
     "a, b = Split<axis = 2>(x, int64[2] {3, 3}); e = Exp(a); y = Concat<axis = 2>(e, b)",
     "s = Shape(x); n = Gather<axis = 0>(s, int64[1] {2}); n1 = Add(n, int64[1] {1}); h = Div(n1, int64[1] {2}); "
     "f = Mul(h, int64[1] {2}); a = Slice(x, int64[1] {0}, h, int64[1] {2}); b = Slice(x, h, f, int64[1] {2}); "
     "e = Exp(a); y = Concat<axis = -1>(e, b)"},
    {"permuted by GatherND between transposes", X, "", "y = Gather<axis = 1>(x, int64[4] {2, 0, 3, 1})",
     "t = Transpose<perm = [1, 0, 2]>(x); g = GatherND(t, int64[4,1] {2, 0, 3, 1}); "
     "y = Transpose<perm = [1, 0, 2]>(g)"},
    {"parts taken out and squeezed", X, "",
     "a, b = Split<axis = 0, num_outputs = 2>(x); u = Squeeze(a, int64[1] {0}); v = Squeeze(b, int64[1] {0}); "
     "y = Mul(u, v)",
     "u = Gather<axis = 0>(x, int64 {0}); v = Gather<axis = 0>(x, int64 {1}); y = Mul(u, v)"},
    {"half written over", X, "",
     "a, b = Split<axis = 2, num_outputs = 2>(x); u = Add(b, a); y = Concat<axis = 2>(a, u)",
     "a, b = Split<axis = 2, num_outputs = 2>(x); u = Add(b, a); t = Transpose<perm = [2, 0, 1]>(x); "
     "w = Transpose<perm = [2, 0, 1]>(u); o = ScatterND(t, int64[3,1] {3, 4, 5}, w); "
     "y = Transpose<perm = [1, 2, 0]>(o)"},
    {"channels scaled", IMAGE, "param float[3] g; ",
     "w = Reshape(g, int64[4] {1, 3, 1, 1}); y = Mul(x, w)",
     "u = Unsqueeze(g, int64[1] {1}); v = Unsqueeze(u, int64[2] {0, 3}); y = Mul(v, x)"},
    {"bias of zeros", IMAGE, "param float[5,3,3,3] w; ", "y = Conv(x, w)",
     "z = Expand(float {0}, int64[1] {5}); b = CastLike(z, w); y = Conv(x, w, b)"},
    {"attention", QKV, "const float[] h = {0.5}; ",
     "y = Attention<scale = 0.25>(q, k, v)",
     "t = Transpose<perm = [0, 1, 3, 2]>(k); r = Mul(t, h); s = Mul(h, q); c = MatMul(s, r); "
     "p = Softmax(c); y = MatMul(p, v)"},
    {"attention, scores divided", QKV, "", "y = Attention<scale = 0.5>(q, k, v)",
     "t = Transpose<perm = [0, 1, 3, 2]>(k); c = MatMul(q, t); d = Div(c, float {2}); p = Softmax(d); "
     "y = MatMul(p, v)"},
    {"attention, queries multiplied, a mask", QKV ", float[2,1,1,5] m", "",
     "y = Attention<scale = 0.3f>(q, k, v, m)",
     "t = Transpose<perm = [0, 1, 3, 2]>(k); u = Mul(q, float {0.3f}); c = MatMul(u, t); d = Add(c, m); "
     "p = Softmax(d); y = MatMul(p, v)"},
    {"attention, softcap and a mask by replacement", QKV ", bool[5] m", "const float n = {-inf}; ",
     "y = Attention<scale = 0.5, softcap = 2.0>(q, k, v, m)",
     "t = Transpose<perm = [0, 1, 3, 2]>(k); c = MatMul(q, t); a = Mul(c, float {0.25}); b = Tanh(a); "
     "d = Mul(b, float {2}); w = Where(m, d, n); p = Softmax(w); y = MatMul(p, v)"},
    {"attention, causal by an added constant", SELF, "const float[3,3] m = {0, -inf, -inf, 0, 0, -inf, 0, 0, 0}; ",
     "y = Attention<is_causal = 1, scale = 1.0>(q, k, v)",
     "t = Transpose<perm = [0, 1, 3, 2]>(k); c = MatMul(q, t); d = Add(c, m); p = Softmax(d); y = MatMul(p, v)"},
    {"attention, causal by a finite replacement", SELF, "const bool[1,1,3,3] m = {0, 1, 1, 0, 0, 1, 0, 0, 0}; ",
     "y = Attention<is_causal = 1, scale = 1.0>(q, k, v)",
     "t = Transpose<perm = [0, 1, 3, 2]>(k); c = MatMul(q, t); d = Where(m, float {-3e38}, c); p = Softmax(d); "
     "y = MatMul(p, v)"},
    {"attention, two masks that leave out", QKV ", float[2,1,1,5] u",
     "const bool[5] m = {1, 0, 1, 1, 1}; const float n = {-inf}; ",
     "z = Where(m, float {0}, n); a = Add(z, u); y = Attention<scale = 1.0>(q, k, v, a)",
     "t = Transpose<perm = [0, 1, 3, 2]>(k); c = MatMul(q, t); d = Where(m, c, n); e = Add(d, u); p = Softmax(e); "
     "y = MatMul(p, v)"},
    {"attention, heads apart and shared", "float[2,3,8] q, float[2,5,4] k, float[2,5,4] v", "",
     "y = Attention<q_num_heads = 4, kv_num_heads = 2, scale = 0.25>(q, k, v)",
     "q4 = Reshape(q, int64[4] {2, 3, 4, 2}); qt = Transpose<perm = [0, 2, 1, 3]>(q4); "
     "k4 = Reshape(k, int64[4] {2, 5, 2, 2}); kt = Transpose<perm = [0, 2, 1, 3]>(k4); "
     "k5 = Reshape(kt, int64[5] {2, 2, 1, 5, 2}); kw = Expand(k5, int64[5] {2, 2, 2, 5, 2}); "
     "kk = Reshape(kw, int64[4] {2, 4, 5, 2}); t = Transpose<perm = [0, 1, 3, 2]>(kk); "
     "v4 = Reshape(v, int64[4] {2, 5, 2, 2}); vt = Transpose<perm = [0, 2, 1, 3]>(v4); "
     "v5 = Reshape(vt, int64[5] {2, 2, 1, 5, 2}); vw = Expand(v5, int64[5] {2, 2, 2, 5, 2}); "
     "vv = Reshape(vw, int64[4] {2, 4, 5, 2}); c = MatMul(qt, t); d = Mul(c, float {0.25}); p = Softmax(d); "
     "o = MatMul(p, vv); ot = Transpose<perm = [0, 2, 1, 3]>(o); y = Reshape(ot, int64[3] {2, 3, 8})"},
    {"attention, keys scaled before they are rearranged", "float[2,2,4,6] q, float[2,5,2,6] k, float[2,2,5,3] v", "",
     "r = Transpose<perm = [0, 2, 1, 3]>(k); y = Attention<scale = 0.5>(q, r, v)",
     "u = Mul(k, float {0.5}); t = Transpose<perm = [0, 2, 3, 1]>(u); c = MatMul(q, t); p = Softmax(c); "
     "y = MatMul(p, v)"},
    {"reversed by indices and by a slice", X, "", "y = Gather<axis = 1>(x, int64[4] {3, 2, 1, 0})",
     "y = Slice(x, int64[1] {-1}, int64[1] {-9223372036854775807}, int64[1] {1}, int64[1] {-1})"},
};

/* `also` in a comment: the value of that name is an output as well. */
static const pair apart[] = {
    {"GELU with another root", X, "", ERF("1.4", "1", "0.5"), "GeluErf"},
    {"GELU with another term", X, "", ERF("1.4142135", "2", "0.5"), "GeluErf"},
    {"GELU with another factor", X, "", ERF("1.4142135", "1", "0.25"), "GeluErf"},
    {"GELU of two values", X ", float[2,4,6] u", "",
     "d = Div(u, float {1.4142135}); e = Erf(d); a = Add(e, float {1}); m = Mul(x, a); y = Mul(m, float {0.5})",
     "GeluErf"},
    {"GELU whose inside is an output", X, "",
     "d = Div(x, float {1.4142135}); also = Erf(d); a = Add(also, float {1}); m = Mul(x, a); "
     "y = Mul(m, float {0.5}) # also\n",
     "GeluErf"},
    {"GELU whose inside is read elsewhere", X, "",
     "d = Div(x, float {1.4142135}); e = Erf(d); a = Add(e, float {1}); m = Mul(x, a); h = Mul(m, float {0.5}); "
     "y = Add(h, a)", "GeluErf"},
    {"GELU with a constant that broadcasts it", "float[4,6] x", "",
     "d = Div(x, float {1.4142135}); e = Erf(d); a = Add(e, float {1}); m = Mul(x, a); "
     "y = Mul(m, float[2,1,1] {0.5, 0.5})", "GeluErf"},
    {"GELU whose factor is trained", X, "param float[1] half = {0.5}; ",
     "d = Div(x, float {1.4142135}); e = Erf(d); a = Add(e, float {1}); m = Mul(x, a); y = Mul(m, half)", "GeluErf"},
    {"attention whose probabilities are an output", SELF, "",
     "t = Transpose<perm = [0, 1, 3, 2]>(k); c = MatMul(q, t); also = Softmax(c); y = MatMul(also, v) # also\n",
     "AttentionCore"},
    {"attention with probabilities changed", SELF, "",
     "t = Transpose<perm = [0, 1, 3, 2]>(k); c = MatMul(q, t); p = Softmax(c); u = Mul(p, p); y = MatMul(u, v)",
     "AttentionCore"},
    {"attention, mask times scale", SELF ", float[3] m", "",
     "t = Transpose<perm = [0, 1, 3, 2]>(k); c = MatMul(q, t); a = Add(c, m); d = Mul(a, float {0.5}); "
     "p = Softmax(d); y = MatMul(p, v)", "AttentionCore"},
    {"attention, softmax over queries", SELF, "",
     "t = Transpose<perm = [0, 1, 3, 2]>(k); c = MatMul(q, t); p = Softmax<axis = 2>(c); y = MatMul(p, v)",
     "AttentionCore"},
    {"attention, finite replacement of whole rows", SELF, "const bool[1,1,3,1] m = {0, 1, 0}; ",
     "t = Transpose<perm = [0, 1, 3, 2]>(k); c = MatMul(q, t); d = Where(m, float {-3e38}, c); p = Softmax(d); "
     "y = MatMul(p, v)", "AttentionCore"},
    {"attention, two finite replacements, together of a whole row", SELF,
     "const bool[1,1,3,3] m = {1, 0, 0, 1, 1, 0, 1, 1, 1}; const bool[3] u = {0, 1, 1}; ",
     "t = Transpose<perm = [0, 1, 3, 2]>(k); c = MatMul(q, t); d = Where(m, c, float {-1e9}); "
     "e = Where(u, d, float {-1e9}); p = Softmax(e); y = MatMul(p, v)", "AttentionCore"},
    {"attention, a finite replacement, then a mask", SELF ", float[3] u",
     "const bool[1,1,3,3] m = {1, 0, 0, 1, 1, 0, 1, 1, 1}; ",
     "t = Transpose<perm = [0, 1, 3, 2]>(k); c = MatMul(q, t); d = Where(m, c, float {-1e9}); e = Add(d, u); "
     "p = Softmax(e); y = MatMul(p, v)", "AttentionCore"},
    {"attention, a mask, then a finite replacement", SELF ", float[3] u",
     "const bool[1,1,3,3] m = {1, 0, 0, 1, 1, 0, 1, 1, 1}; ",
     "t = Transpose<perm = [0, 1, 3, 2]>(k); c = MatMul(q, t); d = Add(c, u); e = Where(m, d, float {-1e9}); "
     "p = Softmax(e); y = MatMul(p, v)", "AttentionCore"},
    {"swish of another value", X ", float[2,4,6] u", "", "s = Sigmoid(u); y = Mul(x, s)", "Swish"},
    {"slope above 1", X, "", "s = Mul(x, float {2}); y = Max(x, s)", "LeakyRelu"},
    {"softmax over two axes", X, "", "e = Exp(x); s = ReduceSum(e, int64[2] {1, 2}); y = Div(e, s)", "Softmax"},
    {"maximum along another axis", X, "",
     "m = ReduceMax(x, int64[1] {1}); d = Sub(x, m); e = Exp(d); s = ReduceSum(e, int64[1] {2}); y = Div(e, m)",
     "Softmax"},
    {"layer norm over an axis that is not last", X, "",
     "m = ReduceMean(x, int64[1] {1}); d = Sub(x, m); q = Mul(d, d); v = ReduceMean(q, int64[1] {1}); "
     "e = Add(v, float {0.001}); s = Sqrt(e); y = Div(d, s)", "LayerNorm"},
    {"layer norm with statistics over different axes", X, "",
     "m = ReduceMean(x, int64[1] {2}); d = Sub(x, m); q = Mul(d, d); v = ReduceMean(q, int64[1] {1}); "
     "e = Add(v, float {0.001}); s = Sqrt(e); y = Div(d, s)", "LayerNorm"},
    {"layer norm with a scale across rows", "float[5,5] x", "param float[5,1] g; ",
     "m = ReduceMean(x, int64[1] {1}); d = Sub(x, m); q = Mul(d, d); v = ReduceMean(q, int64[1] {1}); "
     "e = Add(v, float {0.001}); s = Sqrt(e); n = Div(d, s); y = Mul(n, g)",
     "(\"%0\", g"},
    {"batch norm with statistics of another axis", "float[2,4,4,6] x", "param float[4,1] m; param float[4,1] v; ",
     "d = Sub(x, m); e = Add(v, float {0.001}); s = Sqrt(e); y = Div(d, s)", "BatchNorm"},
    {"batch norm with statistics from elsewhere", IMAGE ", float[3,1,1] m, float[3,1,1] v", "",
     "d = Sub(x, m); e = Add(v, float {0.001}); s = Sqrt(e); y = Div(d, s)", "BatchNorm"},
    {"mean by another count", X, "", "s = ReduceSum(x, int64[1] {2}); y = Div(s, float {5})", "ReduceMean"},
    {"inexact division", X, "", "y = Div(x, float {3})", "Mul"},
    {"whole numbers", "int64[2,3] x", "", "y = Div(x, int64 {4})", "Mul"},
    {"power of two values", X ", float[2,4,6] u", "", "q = Mul(x, u); y = Mul(q, x)", "Pow"},
};
/* clang-format on */

static void test_same(void **state)
{
    (void)state;
    size_t wrong = 0;
    for (size_t i = 0; i < sizeof same / sizeof *same; i++) {
        char *one = canonical(&same[i], same[i].one), *other = canonical(&same[i], same[i].other);
        if (strcmp(one, other) != 0) {
            fprintf(stderr, "%s\n--- %s\n%s--- %s\n%s\n", same[i].what, same[i].one, one, same[i].other, other);
            wrong++;
        }
        free(one);
        free(other);
    }
    assert_in_range(sizeof same / sizeof *same, 40, 1000);
    if (wrong) fail_msg("%zu of %zu pairs differ", wrong, sizeof same / sizeof *same);
}

/* First output and gradients of the inputs, one after another; *n numbers. */
static double *results(const pair *p, const char *body, bool respelled, size_t *n)
{
    interp it;
    inv_graph *g = graph_of(p, body);
    inv_id grad[MAX_IN], seed[MAX_IN];
    uint64_t state = 7;
    assert_int_equal(inv_pass_lower(g), INV_OK);
    if (respelled) assert_int_equal(inv_pass_spelling(g), INV_OK);
    if (interp_grad(g, grad, seed) != INV_OK) fail_msg("%s\n%s", inv_context_message(ctx), p->what);
    interp_init(&it, g);
    for (size_t i = 0; i < g->inputs.n; i++) interp_fill(&it, g->inputs.at[i], &state);
    for (size_t i = 0; i < g->outputs.n; i++) interp_fill(&it, seed[i], &state);
    assert_int_equal(interp_run(&it), INV_OK);
    double *all = malloc(MAX_RESULTS * sizeof *all);
    assert_non_null(all);
    *n = 0;
    for (size_t i = 0; i <= g->inputs.n; i++) {
        inv_id v = i == 0 ? g->outputs.at[0] : grad[i - 1];
        for (int64_t k = 0; v != INV_NONE && k < inv_shape_nelem(&inv_val(g, v)->shape); k++) {
            assert_true(*n < MAX_RESULTS);
            all[(*n)++] = interp_get(&it, v, k);
        }
    }
    interp_fini(&it);
    return all;
}

/* Where both are numbers: negative ones have no square root, and what overflows is not asked about. */
static void test_values(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof same / sizeof *same; i++) {
        size_t n, m, seen = 0;
        double *plain = results(&same[i], same[i].other, false, &n);
        double *brief = results(&same[i], same[i].other, true, &m);
        assert_int_equal(n, m);
        for (size_t k = 0; k < n; k++) {
            if (!isfinite(plain[k])) continue;
            seen++;
            if (!(fabs(plain[k] - brief[k]) <= 2e-5 * (1 + fabs(plain[k]))))
                fail_msg("%s: number %zu of %zu is %.9g, was %.9g", same[i].what, k, n, brief[k], plain[k]);
        }
        assert_true(seen > 0);
        free(plain);
        free(brief);
    }
}

static void test_apart(void **state)
{
    (void)state;
    size_t wrong = 0;
    for (size_t i = 0; i < sizeof apart / sizeof *apart; i++) {
        char *text = canonical(&apart[i], apart[i].one);
        /* `other` names the operator that must not come out. */
        if (strstr(text, apart[i].other)) {
            fprintf(stderr, "%s became %s\n%s\n", apart[i].what, apart[i].other, text);
            wrong++;
        }
        free(text);
    }
    if (wrong) fail_msg("%zu of %zu were taken for something else", wrong, sizeof apart / sizeof *apart);
}

/* --- out of memory: said, and nothing is left behind --- */

static void test_allocations(void **state)
{
    (void)state;
    static const pair p = {
        "all kinds of results", X, "param float[6] g; param float[6] b; ", NULL,
        "d = Div(x, float {1.4142135}); e = Erf(d); a = Add(e, float {1}); h = Mul(x, a); u = Mul(h, float {0.5}); "
        "m = ReduceMean(u, int64[1] {-1}); c = Sub(u, m); q = Mul(c, c); v = ReduceMean(q, int64[1] {-1}); "
        "f = Add(v, float {0.001}); s = Sqrt(f); n = Div(c, s); w = Mul(n, g); o = Add(w, b); k = Exp(o); "
        "r = ReduceSum(k, int64[1] {1}); y = Div(k, r)"};
    inv_context *usual = ctx;
    for (bool done = false; !done;) {
        static failing_memory c;
        const size_t fail_at = c.fail_at + 1;
        const inv_allocator allocator = {counted_alloc, counted_free, &c};
        const inv_context_options o = {.size = sizeof o, .allocator = &allocator};
        c = (failing_memory){0};
        assert_int_equal(inv_context_create(&o, &ctx), INV_OK);
        inv_graph *g = graph_of(&p, p.other);
        assert_int_equal(inv_pass_lower(g), INV_OK);
        c.made = 0;
        c.fail_at = fail_at;
        inv_status st = inv_pass_spelling(g);
        done = c.made < fail_at;
        assert_int_equal(st, done ? INV_OK : INV_E_NOMEM);
        inv_graph_destroy(g);
        inv_context_destroy(ctx);
        assert_int_equal(c.live, 0);
    }
    ctx = usual;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_same),
        cmocka_unit_test(test_values),
        cmocka_unit_test(test_apart),
        cmocka_unit_test(test_allocations),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
