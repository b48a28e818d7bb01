/* SPDX-License-Identifier: Apache-2.0
 * What happens only when a model is fed and trained: Feed, dropout; the optimizers are in optim.c.
 *
 * Dropout keeps element e of sample s if a Philox word is at least ratio * 2^32. Counter: global sample index (s counts
 * from step->first_sample along axis 0) and e / 4; key: seed, step, micro-step and the `key` attribute, a hash of the
 * name of the original output. So a mask is the same in every memory mode and for every split of the batch, and the
 * gradient is the operator itself applied to gy. */
#include "ops/base/families.h"
#include "ops/base/parallel.h"
#include "ops/base/rows.h"
#include "ops/base/util.h"
#include "ops/gpu/philox.h"
#include "ops/train/dropout_gpu.h"
#include "ops/train/optim.h"

typedef struct drop {
    uint32_t key[2];
    uint64_t below; /* words below it are dropped */
    double scale;
    uint64_t first; /* row that the key has for the first sample */
} drop;

static void drop_words(const drop *d, uint64_t row, int64_t e, uint32_t word[4])
{
    uint64_t quad = (uint64_t)e / 4;
    uint32_t counter[4] = {(uint32_t)row, (uint32_t)(row >> 32), (uint32_t)quad, (uint32_t)(quad >> 32)};
    inv_philox(counter, d->key, word);
}

#define INV_BOTH "ops/train/dropout_kernels.inc"
#include "ops/base/both_reals.inc"

#define DROP_SHARE 4096 /* elements per task */

/* --- Feed --- */

static inv_status feed_infer(inv_graph *g, inv_node *n)
{
    inv_shape s = inv_attr_shape(n, "shape");
    int64_t t = inv_attr_int(n, "dtype", INV_F32);
    if (!inv_shape_is_static(&s)) return inv_node_fail(g, n, INV_E_SHAPE, "attribute `shape` is not a static shape");
    if (t <= 0 || t > INV_BF16 || inv_dtype_size((inv_dtype)t) == 0)
        return inv_node_fail(g, n, INV_E_UNSUPPORTED_TYPE, "inputs of type %lld cannot be fed", (long long)t);
    inv_set_out(g, n, 0, (inv_dtype)t, &s);
    return INV_OK;
}

static inv_status feed_run(const inv_call *c)
{
    if (c->step == NULL || c->step->feed == NULL) return INV_E_INTERNAL;
    const inv_feed *f = &c->step->feed[inv_attr_int(c->node, "slot", 0)];
    inv_tensor *out = &c->out[0];
    int64_t rows = out->shape.rank > 0 ? out->shape.dim[0] : 1;
    if (out->n == 0) return INV_OK;
    if (f->data == NULL) return memset(out->data, 0, (size_t)out->n * inv_dtype_size(out->dtype)), INV_OK;
    size_t each = (size_t)(out->n / rows), from = inv_dtype_size(f->dtype), to = inv_dtype_size(out->dtype);
    bool ok = true;
#pragma omp parallel for schedule(static) reduction(&& : ok) if (out->n > INV_OMP_MIN)
    for (int64_t r = 0; r < rows; r++) {
        const char *src = (const char *)f->data + (size_t)(f->rows ? f->rows[r] : r) * each * from;
        char *dst = (char *)out->data + (size_t)r * each * to;
        ok = inv_convert(dst, out->dtype, src, f->dtype, each) && ok;
    }
    return ok ? INV_OK : INV_E_UNSUPPORTED_TYPE;
}

/* --- dropout --- */

/* What the node alone says. */
static inv_drop drop_of_node(const inv_call *c, int64_t rows, int64_t each)
{
    double ratio = inv_attr_float(c->node, "ratio", 0.5);
    return (inv_drop){.key = (uint64_t)inv_attr_int(c->node, "key", 0),
                      .below = ratio >= 1 ? (uint64_t)1 << 32 : (uint64_t)(ratio * 4294967296.0),
                      .scale = ratio >= 1 ? 0 : 1 / (1 - ratio),
                      .rows = rows,
                      .each = each};
}

static bool drop_of(const inv_call *c, int64_t rows, drop *d)
{
    const inv_drop k = drop_of_node(c, 0, 0);
    const inv_step *s = c->step;
    if (s == NULL) return false;
    const inv_draw_place p = inv_draw_place_of(s->micro, s->first_sample, s->batch, rows);
    uint64_t key = inv_mix64(inv_mix64(inv_mix64(s->seed, s->step), p.micro), k.key);
    d->first = p.first;
    d->key[0] = (uint32_t)key;
    d->key[1] = (uint32_t)(key >> 32);
    d->below = k.below;
    d->scale = k.scale;
    return true;
}

static inv_status drop_infer(inv_graph *g, inv_node *n)
{
    double ratio = inv_attr_float(n, "ratio", 0.5);
    INV_TRY(inv_need_real(g, n, 0));
    if (!(ratio >= 0 && ratio <= 1)) return inv_node_fail(g, n, INV_E_ARG, "the ratio %g is not within [0, 1]", ratio);
    inv_set_out(g, n, 0, strcmp(n->op_type, "DropoutKeep") == 0 ? INV_BOOL : inv_in_dtype(g, n, 0),
                inv_in_shape(g, n, 0));
    return INV_OK;
}

/* Samples and shares of one: task t is share t % shares of sample t / shares. */
static int64_t samples_of(const inv_tensor *x, int64_t *each, int64_t *shares)
{
    int64_t rows = x->shape.rank > 0 ? x->shape.dim[0] : 1;
    *each = rows > 0 ? x->n / rows : 0;
    *shares = (*each + DROP_SHARE - 1) / DROP_SHARE;
    return rows;
}

static inv_status drop_run(const inv_call *c)
{
    drop d;
    int64_t each, shares, rows = samples_of(&c->in[0], &each, &shares);
    if (c->gpu) {
        const inv_drop k = drop_of_node(c, rows, each);
        INV_GPU(c->gpu, dropout, c->in[0].dtype, &k, c->in[0].data, c->out[0].data);
        return INV_OK;
    }
    if (!drop_of(c, rows, &d)) return INV_E_INTERNAL;
#pragma omp parallel for schedule(static) if (c->in[0].n > INV_OMP_MIN)
    for (int64_t t = 0; t < rows * shares; t++) {
        int64_t r = t / shares, e0 = t % shares * DROP_SHARE, e1 = inv_min64(e0 + DROP_SHARE, each);
        uint64_t row = d.first + (uint64_t)r;
        const void *x = inv_elem_at(&c->in[0], r * each);
        INV_REAL(c->in[0].dtype, drop_range, &d, row, e0, e1, x, inv_elem_at(&c->out[0], r * each));
    }
    return INV_OK;
}

static inv_status keep_run(const inv_call *c)
{
    drop d;
    int64_t each, shares, rows = samples_of(&c->in[0], &each, &shares);
    uint8_t *out = c->out[0].data;
    if (c->gpu) {
        const inv_drop k = drop_of_node(c, rows, each);
        INV_GPU(c->gpu, dropout_keep, &k, out);
        return INV_OK;
    }
    if (!drop_of(c, rows, &d)) return INV_E_INTERNAL;
    for (int64_t i = 0; i < rows * each; i++) {
        uint32_t word[4];
        drop_words(&d, d.first + (uint64_t)(i / each), i % each, word);
        out[i] = word[i % each % 4] >= d.below;
    }
    return INV_OK;
}

static inv_id emit_drop(inv_graph *g, const char *op, inv_id x, double ratio, int64_t key)
{
    return inv_emit1(g, op, INV_IN(x), INV_ATTRS(inv_attr_of_float("ratio", ratio), inv_attr_of_int("key", key)));
}

static inv_status drop_grad(inv_grad *b)
{
    inv_graph *g = b->g;
    if (inv_GO(b, 0) == INV_NONE || !inv_wants(b, 0)) return INV_OK;
    const inv_node *n = inv_nod(g, b->node);
    inv_grad_set(b, 0,
                 emit_drop(g, "DropoutMask", inv_GO(b, 0), inv_attr_float(n, "ratio", 0.5), inv_attr_int(n, "key", 0)));
    return inv_grad_done(b);
}

/* Element 0 of a constant operand, `dflt` if it is omitted. */
static inv_status constant_or(const inv_graph *g, const inv_node *n, uint32_t i, double dflt, double *out)
{
    *out = dflt;
    if (!inv_has_in(n, i)) return INV_OK;
    const inv_data *d = &inv_val(g, n->in[i])->data;
    bool known = inv_val(g, n->in[i])->role == INV_ROLE_CONST || inv_val(g, n->in[i])->role == INV_ROLE_PARAM;
    if (!known || d->bytes == NULL)
        return inv_node_fail_varying(g, n, n->in[i], i == 1 ? "ratio" : "training_mode", NULL);
    if (d->nbytes < inv_dtype_size(d->dtype) || d->nbytes == 0)
        return inv_node_fail(g, n, INV_E_SHAPE, "input %u must be a scalar", i);
    *out = d->dtype == INV_BOOL ? (double)(*(const uint8_t *)d->bytes != 0) : inv_elem_double(d->bytes, d->dtype, 0);
    return INV_OK;
}

static inv_status dropout_lower(inv_graph *g, const inv_node *n, inv_id *out)
{
    double ratio = inv_attr_float(n, "ratio", 0.5), training = g->train; /* before 12 the file does not say */
    if (n->op != NULL && n->op->since >= 12) {
        INV_TRY(constant_or(g, n, 1, 0.5, &ratio));
        INV_TRY(constant_or(g, n, 2, 0, &training));
    }
    if (!(ratio >= 0 && ratio <= 1)) return inv_node_fail(g, n, INV_E_ARG, "the ratio %g is not within [0, 1]", ratio);
    bool on = ratio > 0 && training != 0 && !g->eval && !g->no_dropout, mask = inv_has_out(n, 1);
    const char *name = inv_has_out(n, 0) ? inv_val(g, n->out[0])->name : n->name;
    int64_t key = name ? (int64_t)(inv_hash(name, strlen(name), 0) >> 1) : 0;
    inv_id x = n->in[0];
    out[0] = on ? emit_drop(g, "DropoutMask", x, ratio, key) : x;
    if (mask) out[1] = emit_drop(g, "DropoutKeep", x, on ? ratio : 0, key);
    return inv_done(g);
}

/* clang-format off */
static const inv_op_def feed = {
    .size = sizeof feed, .domain = INV_IR, .name = "Feed", .since = 1, .in = "", .out = "x",
    .flags = INV_OP_SOURCE | INV_OP_HOST_ONLY | INV_OP_NO_GRAD, .infer = feed_infer, .run = feed_run,
    .flops = inv_flops_none,
    .doc = "the caller's array number `slot`, its rows picked and converted to `dtype` and `shape`"};

static const inv_op_def dropout_mask = {
    .size = sizeof dropout_mask, .domain = INV_IR, .name = "DropoutMask", .since = 1, .in = "x", .out = "y",
    .flags = INV_OP_RANDOM, .inplace = 1, .infer = drop_infer, .grad = drop_grad, .run = drop_run,
    .work = inv_work_math,
    .cases = (const char *const[]){"y = DropoutMask<ratio = 0.25, key = 7>(float[3,10] x)",
                                  "y = DropoutMask<ratio = 0.5, key = 8>(float[0,3] x)", NULL},
    .doc = "x mask / (1 - ratio); the mask is a function of seed, step, key, global sample and element (Philox)"};

static const inv_op_def dropout_keep = {
    .size = sizeof dropout_keep, .domain = INV_IR, .name = "DropoutKeep", .since = 1, .in = "x", .out = "mask",
    .flags = INV_OP_RANDOM | INV_OP_NO_GRAD, .infer = drop_infer, .run = keep_run,
    .cases = (const char *const[]){"k = DropoutKeep<ratio = 0.25, key = 7>(float[3,10] x)", NULL},
    .doc = "the mask of DropoutMask with the same attributes, as bool"};
/* clang-format on */

INV_LOWERED_BY(dropout_lower, 11, 0, dropout_7, "Dropout", 7, "data", "output mask?",
               "lowers to DropoutMask with ratio an attribute; the identity but when training",
               "y = Dropout<ratio = 0.3>(float[2,3] x)")

INV_LOWERED_BY(dropout_lower, 0, 0, dropout_12, "Dropout", 12, "data ratio? training_mode?", "output mask?",
               "lowers to DropoutMask if training_mode is true and ratio > 0 (constants), else to the identity",
               "y = Dropout(float[2,3] x, float{0.3}, bool{true})", "y = Dropout(float[2,3] x, float{0.3})")

/* clang-format off */
const inv_op_def *const inv_ops_train[] = {&feed, &dropout_mask, &dropout_keep, &dropout_7_row, &dropout_12_row,
                                           &inv_op_sgd, &inv_op_momentum, &inv_op_rmsprop, &inv_op_lion,
                                           &inv_op_adam, &inv_op_adam8, &inv_op_accumulate,
                                           &inv_op_average, &inv_op_assign,
                                           &inv_op_step_number, &inv_op_hold_rows,
                                           NULL};
/* clang-format on */
