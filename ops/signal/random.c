/* SPDX-License-Identifier: Apache-2.0
 * Random numbers, a function of counters (ops/signal/random.h): of the key (a hash of the output's name), the session's
 * seed, step and micro-step, and the position in the tensor. So a part that runs again in backward sees the same
 * numbers. Where the shape is that of another tensor, axis 0 counts global samples, and a split of the batch changes
 * nothing. With the attribute `seed`, that takes the place of the name and of the session's seed, so two nodes of one
 * seed give the same numbers. RandomUniform, RandomNormal and their -Like forms lower to RandomDraw, Bernoulli to
 * RandomDraw and Less, Multinomial to Categorical. Sources: ONNX RandomUniform-1, -22 and so on. The numbers are not
 * those of other runtimes. */
#include "ops/signal/random.h"
#include "ops/base/emit.h"
#include "ops/base/families.h"
#include "ops/base/rows.h"

static inv_random random_of(const inv_call *c, bool samples, const inv_shape *s)
{
    const int64_t n = inv_shape_nelem(s), rows = samples && s->rank > 0 ? s->dim[0] : 1;
    return (inv_random){.key = (uint64_t)inv_attr_int(c->node, "key", 0),
                        .seeded = inv_attr_int(c->node, "seeded", 0) != 0,
                        .samples = samples,
                        .draw = inv_attr_int(c->node, "normal", 0) ? INV_DRAW_NORMAL : INV_DRAW_UNIFORM,
                        .a = inv_attr_float(c->node, "a", 0),
                        .b = inv_attr_float(c->node, "b", 1),
                        .rows = rows,
                        .each = rows > 0 ? n / rows : 0};
}

static inv_draw_place place_of(const inv_random *r, const inv_step *s)
{
    const inv_draw_place alike = {s->micro, 0};
    return r->samples ? inv_draw_place_of(s->micro, s->first_sample, s->batch, r->rows) : alike;
}

/* --- RandomDraw<shape, normal, a, b, key, seeded, samples>() --- */
static inv_status draw_infer(inv_graph *g, inv_node *n)
{
    const inv_shape s = inv_attr_shape(n, "shape");
    if (!inv_shape_is_static(&s)) return inv_node_fail(g, n, INV_E_SHAPE, "attribute `shape` is not a static shape");
    INV_TRY(inv_need_size(g, n, &s));
    inv_set_out(g, n, 0, g->real == INV_F64 ? INV_F64 : INV_F32, &s);
    return INV_OK;
}

static inv_status draw_run(const inv_call *c)
{
    const inv_tensor *y = &c->out[0];
    const inv_random r = random_of(c, inv_attr_int(c->node, "samples", 0) != 0, &y->shape);
    const int64_t quads = (r.each + 3) / 4;
    if (c->gpu) {
        INV_GPU(c->gpu, random, y->dtype, &r, y->data);
        return INV_OK;
    }
    const inv_step *s = c->step;
    if (s == NULL) return INV_E_INTERNAL;
    const inv_draw_place from = place_of(&r, s);
#pragma omp parallel for schedule(static) if (y->n > INV_OMP_MIN)
    for (int64_t i = 0; i < r.rows * quads; i++) {
        const int64_t row = i / quads, quad = i % quads;
        uint32_t word[4];
        double v[4];
        inv_random_words(&r, s->seed, s->step, from.micro, from.first + (uint64_t)row, (uint64_t)quad, word);
        inv_random_four(&r, word, v);
        for (int64_t j = 0; j < 4 && quad * 4 + j < r.each; j++) {
            const int64_t at = row * r.each + quad * 4 + j;
            inv_put_real(y->data, y->dtype, at, v[j]);
        }
    }
    return INV_OK;
}

/* --- Categorical<count, key, seeded>(x): count numbers per row of x --- */
static inv_status categorical_infer(inv_graph *g, inv_node *n)
{
    INV_TRY(inv_need_real(g, n, 0));
    inv_shape s = *inv_in_shape(g, n, 0);
    const int64_t count = inv_attr_int(n, "count", 1);
    if (s.rank != 2 || s.dim[1] < 1 || count < 0)
        return inv_node_fail(g, n, INV_E_SHAPE, "a matrix [batch, classes] is wanted, with classes above 0");
    s.dim[1] = count;
    INV_TRY(inv_need_size(g, n, &s));
    inv_set_out(g, n, 0, INV_I64, &s);
    return INV_OK;
}

static inv_status categorical_run(const inv_call *c)
{
    const inv_tensor *x = &c->in[0];
    const inv_random r = random_of(c, true, &c->out[0].shape);
    const int64_t classes = x->shape.dim[1];
    int64_t *out = c->out[0].data;
    if (c->gpu) {
        INV_GPU(c->gpu, categorical, x->dtype, &r, classes, out, x->data);
        return INV_OK;
    }
    const inv_step *s = c->step;
    if (s == NULL) return INV_E_INTERNAL;
    const inv_draw_place from = place_of(&r, s);
#pragma omp parallel for schedule(static) if (c->out[0].n * classes > INV_OMP_MIN)
    for (int64_t i = 0; i < c->out[0].n; i++) {
        const int64_t row = i / r.each;
        out[i] = inv_random_category(&r, s->seed, s->step, from.micro, from.first + (uint64_t)row, i % r.each, classes,
                                     x->dtype, x->data, row * classes);
    }
    return INV_OK;
}

/* --- lowerings --- */

/* Attributes `key` and `seeded`. */
static void key_of(const inv_graph *g, const inv_node *n, inv_attr attr[2])
{
    const inv_attr *seed = inv_attr_find(n, "seed");
    const char *name = inv_has_out(n, 0) ? inv_val(g, n->out[0])->name : n->name;
    uint64_t key = name ? inv_hash(name, strlen(name), 0) : 0;
    if (seed) key = inv_hash(&seed->f, sizeof seed->f, 0);
    attr[0] = inv_attr_of_int("key", (int64_t)(key >> 1));
    attr[1] = inv_attr_of_int("seeded", seed != NULL);
}

static inv_id emit_draw(inv_graph *g, const inv_node *n, const inv_shape *s, bool samples, bool normal, double a,
                        double b)
{
    inv_attr attr[7] = {inv_attr_of_shape("shape", s), inv_attr_of_int("normal", normal), inv_attr_of_float("a", a),
                        inv_attr_of_float("b", b), inv_attr_of_int("samples", samples)};
    key_of(g, n, attr + 5);
    return inv_emit1(g, "RandomDraw", 0, NULL, 7, attr);
}

static inv_status draw_lower(inv_graph *g, const inv_node *n, bool normal, bool like, inv_id *out)
{
    const double a = inv_attr_float(n, normal ? "mean" : "low", 0), b = inv_attr_float(n, normal ? "scale" : "high", 1);
    const inv_dtype t = (inv_dtype)inv_attr_int(n, "dtype", INV_F32);
    const inv_shape s = like ? *inv_in_shape(g, n, 0) : inv_attr_shape(n, "shape");
    if (!inv_dtype_is_float(t))
        return inv_node_fail(g, n, INV_E_UNSUPPORTED_TYPE, "dtype %s; a floating-point type is wanted",
                             inv_dtype_name(t));
    out[0] = emit_draw(g, n, &s, like, normal, a, b);
    return inv_done(g);
}
static inv_status uniform_lower(inv_graph *g, const inv_node *n, inv_id *out) { return draw_lower(g, n, 0, 0, out); }
static inv_status normal_lower(inv_graph *g, const inv_node *n, inv_id *out) { return draw_lower(g, n, 1, 0, out); }
static inv_status uniform_like_lower(inv_graph *g, const inv_node *n, inv_id *out)
{
    return draw_lower(g, n, false, true, out);
}
static inv_status normal_like_lower(inv_graph *g, const inv_node *n, inv_id *out)
{
    return draw_lower(g, n, true, true, out);
}

static inv_id cast(inv_graph *g, inv_id v, inv_dtype t)
{
    if (inv_dtype_is_float(t)) t = g->real;
    return inv_cast(g, v, t);
}

static inv_status bernoulli_lower(inv_graph *g, const inv_node *n, inv_id *out)
{
    INV_TRY(inv_need_real(g, n, 0));
    const inv_shape s = *inv_in_shape(g, n, 0);
    const inv_dtype t = (inv_dtype)inv_attr_int(n, "dtype", inv_in_dtype(g, n, 0));
    if (inv_dtype_size(t) == 0)
        return inv_node_fail(g, n, INV_E_UNSUPPORTED_TYPE, "dtype %s is not supported", inv_dtype_name(t));
    const inv_id u = cast(g, emit_draw(g, n, &s, true, false, 0, 1), inv_in_dtype(g, n, 0));
    out[0] = cast(g, inv_emit1(g, "Less", INV_IN(u, n->in[0]), INV_NOATTR), t);
    return inv_done(g);
}

static inv_status multinomial_lower(inv_graph *g, const inv_node *n, inv_id *out)
{
    const inv_dtype t = (inv_dtype)inv_attr_int(n, "dtype", INV_I32);
    inv_attr attr[3] = {inv_attr_of_int("count", inv_attr_int(n, "sample_size", 1))};
    if (t != INV_I32 && t != INV_I64)
        return inv_node_fail(g, n, INV_E_UNSUPPORTED_TYPE, "dtype %s; int32 or int64 is wanted", inv_dtype_name(t));
    key_of(g, n, attr + 1);
    out[0] = cast(g, inv_emit1(g, "Categorical", INV_IN(n->in[0]), 3, attr), t);
    return inv_done(g);
}

/* --- rows --- */
INV_CASE_LIST(draw, "y = RandomDraw<shape = [3,10], a = -2.0, b = 3.0, key = 7>()",
              "y = RandomDraw<shape = [5,7,3], normal = 1, a = 0.5, b = 2.0, key = 8, samples = 1>()",
              "y = RandomDraw<shape = [5], normal = 1, key = 9, seeded = 1>()",
              "y = RandomDraw<shape = [0,3], samples = 1>()", "y = RandomDraw()")
INV_CASE_LIST(categorical, "y = Categorical<count = 5, key = 7>(float[3,6] x)",
              "y = Categorical<key = 8, seeded = 1>(float[1,1] x)", "y = Categorical<count = 2, key = 7>(float[0,3] x)")
/* clang-format off */
static const inv_op_def draw_row = {
    .size = sizeof(inv_op_def), .domain = INV_IR, .name = "RandomDraw", .since = 1, .in = "", .out = "y",
    .flags = INV_OP_RANDOM | INV_OP_NO_GRAD, .infer = draw_infer, .run = draw_run,
    .work = inv_work_math,
    .flops = inv_flops_out, .cases = draw_cases,
    .doc = "uniform in [a, b), or normal of mean a and deviation b; a function of seed, step, key, position (Philox)"};
static const inv_op_def categorical_row = {
    .size = sizeof(inv_op_def), .domain = INV_IR, .name = "Categorical", .since = 1, .in = "x", .out = "y",
    .flags = INV_OP_RANDOM | INV_OP_NO_GRAD, .infer = categorical_infer, .run = categorical_run, .work = inv_work_math,
    .flops = inv_flops_in, .cases = categorical_cases,
    .doc = "`count` classes per row, drawn with probabilities softmax(row); int64"};

/* clang-format on */
INV_LOWERED(uniform, "RandomUniform", 1, "", "y", "uniform in [low, high). ONNX RandomUniform-1",
            "y = RandomUniform<shape = [2,3], low = -1.0, high = 2.0>()",
            "y = RandomUniform<shape = [1], seed = 3.0>()")
INV_LOWERED(normal, "RandomNormal", 1, "", "y", "normal of given mean and scale. ONNX RandomNormal-1",
            "y = RandomNormal<shape = [2,3], mean = 1.0, scale = 2.0>()", "y = RandomNormal<shape = [1], seed = 3.0>()")
INV_LOWERED(uniform_like, "RandomUniformLike", 1, "input", "y",
            "uniform in [low, high), of the shape of another tensor. ONNX RandomUniformLike-1",
            "y = RandomUniformLike(float[2,3] x)", "y = RandomUniformLike<dtype = 1, seed = 3.0>(int64[1] x)")
INV_LOWERED(normal_like, "RandomNormalLike", 1, "input", "y",
            "normal, of the shape of another tensor. ONNX RandomNormalLike-1",
            "y = RandomNormalLike<scale = 3.0>(float[2,3] x)", "y = RandomNormalLike<dtype = 1>(int64[1] x)")
/* clang-format off */
INV_LOWERED(bernoulli, "Bernoulli", 15, "input", "y", "1 with the given probability, else 0. ONNX Bernoulli-15",
        "y = Bernoulli(float[2,3] x)", "y = Bernoulli<dtype = 9, seed = 3.0>(float[1] x)")
/* clang-format on */
INV_LOWERED(multinomial, "Multinomial", 7, "input", "y",
            "classes drawn by unnormalized log-probabilities. ONNX Multinomial-7",
            "y = Multinomial<sample_size = 3>(float[2,4] x)", "y = Multinomial<dtype = 7, seed = 3.0>(float[1,2] x)")

/* clang-format off */
const inv_op_def *const inv_ops_random[] = {&draw_row,         &categorical_row, &uniform_row,   &normal_row,
                                            &uniform_like_row, &normal_like_row, &bernoulli_row, &multinomial_row,
                                            NULL};
/* clang-format on */
