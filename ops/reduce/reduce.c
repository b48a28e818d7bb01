/* SPDX-License-Identifier: Apache-2.0
 * Reductions: ReduceSumAxes, ReduceMeanAxes, ReduceMaxAxes, ReduceMinAxes, ReduceProdAxes <axes, keepdims>,
 * SumTo<shape>, and the ONNX operators that lower to them. Sources: the ONNX operator specifications. */
#include <float.h>

#include "core/edits/onnx_body.h"
#include "ops/base/bounds.h"
#include "ops/base/families.h"
#include "ops/base/parallel.h"
#include "ops/base/rows.h"
#include "ops/base/util.h"
#include "ops/elementwise/bits.h"
#include "ops/reduce/reduce_gpu.h"

#define REDUCE_CHUNK 4096 /* of the reduced index space, per partial result */
#define REDUCE_WIDTH 512  /* neighbouring results computed together, at most */
#define REDUCE_LEAST 64   /* and at least; between, a part for each thread */
#define REDUCE_LANES 8
#define FOLD_BLOCKS 768 /* of threads: about what fills a large device */
#define FOLD_LEAST 16   /* elements per thread, below which shares do not pay */

typedef enum reduce_kind { REDUCE_SUM, REDUCE_MEAN, REDUCE_MAX, REDUCE_MIN, REDUCE_PROD } reduce_kind;

typedef struct reduce_plan {
    inv_loop kept, reduced; /* operand 0: the input */
    int64_t n;              /* input elements per result */
    int64_t chunks, width, blocks;
} reduce_plan;

static double reduce_start(reduce_kind kind)
{
    return kind == REDUCE_MAX ? -HUGE_VAL : kind == REDUCE_MIN ? HUGE_VAL : kind == REDUCE_PROD ? 1 : 0;
}

static double reduce_two(reduce_kind kind, double a, double v)
{
    if (kind == REDUCE_MAX) return v > a || v != v ? v : a;
    if (kind == REDUCE_MIN) return v < a || v != v ? v : a;
    return kind == REDUCE_PROD ? a * v : a + v;
}

#define INV_BOTH "ops/reduce/reduce_kernels.inc"
#include "ops/base/both_reals.inc"

static reduce_plan reduction_plan(const inv_shape *in, const bool *gone)
{
    reduce_plan p = {0};
    inv_shape kept = *in, reduced = *in;
    int64_t stride[1][INV_MAX_RANK];
    inv_strides(in, stride[0]);
    for (int i = 0; i < in->rank; i++) *(gone[i] ? &kept.dim[i] : &reduced.dim[i]) = 1;
    inv_loop_strided(&p.kept, &kept, 1, (const int64_t(*)[INV_MAX_RANK])stride);
    inv_loop_strided(&p.reduced, &reduced, 1, (const int64_t(*)[INV_MAX_RANK])stride);
    p.n = inv_shape_nelem(&reduced);
    p.chunks = p.n > REDUCE_CHUNK ? (p.n + REDUCE_CHUNK - 1) / REDUCE_CHUNK : 1;
    const int64_t share = (p.kept.inner + inv_all_threads() - 1) / inv_all_threads();
    p.width = p.kept.step[0] == 1 ? inv_max64(REDUCE_LEAST, inv_min64(share, REDUCE_WIDTH)) : 1;
    p.blocks = (p.kept.inner + p.width - 1) / p.width;
    return p;
}

static void mark_all(int rank, bool *gone)
{
    for (int i = 0; i < rank; i++) gone[i] = true;
}

/* Axes of the canonical forms: attribute `axes`, each in 0..rank-1. */
static void axes_gone(const inv_node *n, bool *gone)
{
    size_t count;
    const int64_t *axes = inv_attr_ints(n, "axes", &count);
    for (size_t i = 0; i < count; i++) gone[axes[i]] = true;
}

/* Axes that SumTo<shape> adds up. */
static void sum_to_gone(const inv_shape *in, const inv_shape *to, bool *gone)
{
    for (int i = 0; i < in->rank; i++) {
        int j = i - (in->rank - to->rank);
        gone[i] = j < 0 || (to->dim[j] == 1 && in->dim[i] != 1);
    }
}

static inv_fold_axes axes_of(const inv_loop *l)
{
    inv_fold_axes a = {.rank = l->rank, .inner = l->inner, .step = l->step[0]};
    memcpy(a.dim, l->dim, sizeof a.dim);
    memcpy(a.stride, l->stride[0], sizeof a.stride);
    return a;
}

void inv_fold_share(inv_fold *f, int64_t groups)
{
    const int64_t least = (int64_t)FOLD_LEAST * f->depth;
    if (groups <= 0 || groups >= FOLD_BLOCKS || f->n <= least) return;
    const int64_t want = (FOLD_BLOCKS + groups - 1) / groups, can = (f->n + least - 1) / least;
    const int64_t parts = want < can ? want : can;
    f->part = ((f->n + parts - 1) / parts + f->depth - 1) / f->depth * f->depth;
    f->parts = (int)((f->n + f->part - 1) / f->part);
}

/* Neighbouring threads should read neighbouring elements (32 of them fill the lines of a cache), and there should be
 * enough of them: more per result first, then shares of results. */
inv_fold inv_fold_of(const inv_shape *in, const bool *gone)
{
    const reduce_plan p = reduction_plan(in, gone);
    inv_fold f = {.kept = axes_of(&p.kept), .gone = axes_of(&p.reduced), .n = p.n, .parts = 1, .part = p.n, .depth = 1};
    f.nout = p.kept.rows * p.kept.inner;
    f.columns = p.kept.step[0] == 1;
    int most = INV_FOLD_THREADS;
    for (int w = 1; f.columns && w < 32 && w < p.kept.inner; w *= 2) most /= 2;
    while (f.depth < most && f.depth < f.n) {
        const bool few = f.nout * f.depth < (int64_t)FOLD_BLOCKS * INV_FOLD_THREADS && f.depth * 8 <= f.n;
        if (!few && (f.columns || f.depth >= 32)) break;
        f.depth *= 2;
    }
    inv_fold_steps(&f);
    inv_fold_share(&f, (f.nout + f.width - 1) / f.width);
    return f;
}

/* --- kernels --- */
static int64_t int_two(reduce_kind kind, inv_dtype t, int64_t a, int64_t v)
{
    const bool less = t == INV_U64 ? (uint64_t)v < (uint64_t)a : v < a;
    if (kind == REDUCE_MAX) return less ? a : v;
    if (kind == REDUCE_MIN) return less ? v : a;
    return (int64_t)(kind == REDUCE_PROD ? (uint64_t)a * (uint64_t)v : (uint64_t)a + (uint64_t)v);
}

/* Integers: for shape arithmetic, so plainly. */
static inv_status reduce_ints(const inv_call *c, const reduce_plan *p, reduce_kind kind)
{
    const inv_tensor *x = &c->in[0];
    for (int64_t k = 0; k < c->out[0].n; k++) {
        int64_t at[INV_LOOP_OPS], in[INV_LOOP_OPS], acc = kind == REDUCE_PROD ? 1 : 0;
        inv_loop_row(&p->kept, k / p->kept.inner, at);
        for (int64_t r = 0; r < p->n; r++) {
            inv_loop_row(&p->reduced, r / p->reduced.inner, in);
            const int64_t i =
                at[0] + k % p->kept.inner * p->kept.step[0] + in[0] + r % p->reduced.inner * p->reduced.step[0];
            const int64_t v = inv_elem_int(x->data, x->dtype, (size_t)i);
            acc = r == 0 && kind != REDUCE_SUM && kind != REDUCE_MEAN ? v : int_two(kind, x->dtype, acc, v);
        }
        if (kind == REDUCE_MEAN && p->n > 0)
            acc = x->dtype == INV_U64 ? (int64_t)((uint64_t)acc / (uint64_t)p->n) : acc / p->n;
        inv_put_int(c->out[0].data, c->out[0].dtype, k, acc);
    }
    return INV_OK;
}

static inv_status run_gpu(const inv_call *c, const bool *gone, reduce_kind kind, double scale)
{
    static const inv_fold_kind fold[] = {[REDUCE_SUM] = INV_FOLD_SUM,
                                         [REDUCE_MEAN] = INV_FOLD_SUM,
                                         [REDUCE_MAX] = INV_FOLD_MAX,
                                         [REDUCE_MIN] = INV_FOLD_MIN,
                                         [REDUCE_PROD] = INV_FOLD_PROD};
    const inv_fold f = inv_fold_of(&c->in[0].shape, gone);
    INV_GPU(c->gpu, reduce, &f, fold[kind], c->in[0].dtype, scale, c->in[0].data, c->ws, c->out[0].data);
    return INV_OK;
}

static inv_status run_reduction(const inv_call *c, const bool *gone, reduce_kind kind)
{
    const reduce_plan p = reduction_plan(&c->in[0].shape, gone);
    const double scale = kind == REDUCE_MEAN ? 1.0 / (double)p.n : 1.0;
    if (c->out[0].data == NULL || c->out[0].n == 0) return INV_OK;
    if (c->gpu) return run_gpu(c, gone, kind, scale);
    if (!inv_is_real(c->in[0].dtype)) return reduce_ints(c, &p, kind);
    INV_REAL(c->in[0].dtype, reduce, c, &p, kind, scale);
    return INV_OK;
}

static inv_status run_axes(const inv_call *c, reduce_kind kind)
{
    bool gone[INV_MAX_RANK] = {false};
    axes_gone(c->node, gone);
    return run_reduction(c, gone, kind);
}
static inv_status sum_run(const inv_call *c) { return run_axes(c, REDUCE_SUM); }
static inv_status mean_run(const inv_call *c) { return run_axes(c, REDUCE_MEAN); }
static inv_status max_run(const inv_call *c) { return run_axes(c, REDUCE_MAX); }
static inv_status min_run(const inv_call *c) { return run_axes(c, REDUCE_MIN); }
static inv_status prod_run(const inv_call *c) { return run_axes(c, REDUCE_PROD); }
static inv_status sum_to_run(const inv_call *c)
{
    bool gone[INV_MAX_RANK] = {false};
    sum_to_gone(&c->in[0].shape, &c->out[0].shape, gone);
    return run_reduction(c, gone, REDUCE_SUM);
}

static size_t partials(const inv_graph *g, const inv_shape *in, const bool *gone, const inv_shape *out)
{
    const int64_t shares = g->gpu ? inv_fold_of(in, gone).parts : reduction_plan(in, gone).chunks;
    return shares > 1 ? (size_t)inv_shape_nelem(out) * (size_t)shares * sizeof(double) : 0;
}

static size_t axes_workspace(const inv_graph *g, const inv_node *n)
{
    bool gone[INV_MAX_RANK] = {false};
    axes_gone(n, gone);
    return inv_has_out(n, 0) ? partials(g, inv_in_shape(g, n, 0), gone, inv_shape_of_value(g, n->out[0])) : 0;
}

static size_t sum_to_workspace(const inv_graph *g, const inv_node *n)
{
    bool gone[INV_MAX_RANK] = {false};
    const inv_shape to = inv_attr_shape(n, "shape");
    sum_to_gone(inv_in_shape(g, n, 0), &to, gone);
    return partials(g, inv_in_shape(g, n, 0), gone, &to);
}

/* --- infer --- */
static inv_status check_axes(const inv_graph *g, const inv_node *n, const inv_shape *s)
{
    size_t count;
    const int64_t *axes = inv_attr_ints(n, "axes", &count);
    for (size_t i = 0; i < count; i++) {
        if (axes[i] < 0 || axes[i] >= s->rank)
            return inv_node_fail(g, n, INV_E_SHAPE, "axis %lld is outside rank %d", (long long)axes[i], s->rank);
    }
    return INV_OK;
}

static inv_shape reduced_shape(const inv_shape *in, const bool *gone, bool keepdims)
{
    inv_shape s = inv_shape_scalar();
    for (int i = 0; i < in->rank; i++) {
        if (!gone[i] || keepdims) s.dim[s.rank++] = gone[i] ? 1 : in->dim[i];
    }
    return s;
}

static inv_status axes_infer(inv_graph *g, inv_node *n)
{
    bool gone[INV_MAX_RANK] = {false};
    const inv_shape in = *inv_in_shape(g, n, 0);
    INV_TRY(check_axes(g, n, &in));
    if (inv_dtype_size(inv_in_dtype(g, n, 0)) == 0) return inv_need_real(g, n, 0);
    axes_gone(n, gone);
    const inv_shape s = reduced_shape(&in, gone, inv_attr_int(n, "keepdims", 1) != 0);
    inv_set_out(g, n, 0, inv_in_dtype(g, n, 0), &s);
    return INV_OK;
}

static inv_status sum_to_infer(inv_graph *g, inv_node *n)
{
    inv_shape s, to;
    INV_TRY(inv_infer_attr_shape(g, n));
    to = inv_attr_shape(n, "shape");
    if (!inv_shape_broadcast(inv_in_shape(g, n, 0), &to, &s) || !inv_shape_equal(&s, inv_in_shape(g, n, 0))) {
        char text[INV_SHAPE_TEXT];
        return inv_node_fail(g, n, INV_E_SHAPE, "%s does not broadcast to the input", inv_shape_text(&to, text));
    }
    return INV_OK;
}

/* --- gradients --- */

/* v, of the node's reduced shape, with the reduced axes as extents of 1. */
static inv_id kept_view(inv_grad *b, inv_id v)
{
    bool gone[INV_MAX_RANK] = {false};
    const inv_node *n = inv_nod(b->g, b->node);
    axes_gone(n, gone);
    const inv_shape s = reduced_shape(inv_in_shape(b->g, n, 0), gone, true);
    return inv_emit_view(b->g, v, &s);
}

static inv_status sum_grad(inv_grad *b)
{
    const inv_shape in = *inv_shape_of_value(b->g, inv_I(b, 0));
    inv_grad_set(b, 0, inv_emit_broadcast(b->g, kept_view(b, inv_GO(b, 0)), &in));
    return inv_grad_done(b);
}

static inv_status mean_grad(inv_grad *b)
{
    const inv_shape in = *inv_shape_of_value(b->g, inv_I(b, 0));
    const inv_value *y = inv_val(b->g, inv_O(b, 0));
    const int64_t results = inv_shape_nelem(&y->shape);
    const double each = results ? (double)results / (double)inv_shape_nelem(&in) : 0;
    inv_id k = inv_graph_const_real(b->g, y->dtype, each);
    inv_id v = inv_emit1(b->g, "Mul", INV_IN(inv_GO(b, 0), k), INV_NOATTR);
    inv_grad_set(b, 0, inv_emit_broadcast(b->g, kept_view(b, v), &in));
    return inv_grad_done(b);
}

/* v, of the shape of the node's input, reduced over its axes, which stay as extents of 1. */
static inv_id reduce_alike(inv_grad *b, const char *op, inv_id v)
{
    const inv_attr *axes = inv_attr_find(inv_nod(b->g, b->node), "axes"), keep = inv_attr_of_int("keepdims", 1);
    const inv_attr attr[2] = {keep, axes ? *axes : keep};
    return inv_emit1(b->g, op, INV_IN(v), axes ? 2 : 1, attr);
}

static inv_status reduce_extreme_grad(inv_grad *b)
{
    inv_graph *g = b->g;
    static const double equal[4] = {0, 1};
    const uint8_t phase = g->phase;
    g->phase = INV_FORWARD;
    const inv_id y = kept_view(b, inv_O(b, 0));
    g->phase = phase;
    const inv_bits m = inv_emit_equal_bits(g, inv_I(b, 0), y);
    const inv_id ones = inv_emit_select(g, inv_graph_const_real(g, g->real, 1), &m, equal);
    const inv_id ties = reduce_alike(b, "ReduceSumAxes", ones);
    const inv_id share = inv_emit1(g, "Div", INV_IN(kept_view(b, inv_GO(b, 0)), ties), INV_NOATTR);
    inv_grad_set(b, 0, inv_emit_select(g, share, &m, equal));
    return inv_grad_done(b);
}

/* The product of the others. p: of all that are not 0. Without a zero it is p / x; a zero's is p if it is the only one;
 * all other elements beside a zero have none: it is where the number of zeros is that of the element itself. */
static inv_status prod_grad(inv_grad *b)
{
    inv_graph *g = b->g;
    const inv_id x = inv_I(b, 0), gy = kept_view(b, inv_GO(b, 0));
    const inv_id none = inv_graph_const_real(g, g->real, 0), one = inv_graph_const_real(g, g->real, 1);
    const inv_id is_zero = inv_emit1(g, "Equal", INV_IN(x, none), INV_NOATTR);
    const inv_id rest = inv_emit1(g, "Where", INV_IN(is_zero, one, x), INV_NOATTR);
    const inv_id count = inv_emit1(g, "Where", INV_IN(is_zero, one, none), INV_NOATTR);
    const inv_id counts = inv_emit1(g, "Equal", INV_IN(count, reduce_alike(b, "ReduceSumAxes", count)), INV_NOATTR);
    const inv_id p = inv_emit1(g, "Mul", INV_IN(gy, reduce_alike(b, "ReduceProdAxes", rest)), INV_NOATTR);
    const inv_id others = inv_emit1(g, "Div", INV_IN(p, rest), INV_NOATTR);
    inv_grad_set(b, 0, inv_emit1(g, "Where", INV_IN(counts, others, none), INV_NOATTR));
    return inv_grad_done(b);
}

static inv_status sum_to_grad(inv_grad *b)
{
    const inv_shape in = *inv_shape_of_value(b->g, inv_I(b, 0));
    inv_grad_set(b, 0, inv_emit_broadcast(b->g, inv_GO(b, 0), &in));
    return inv_grad_done(b);
}

/* --- lowerings --- */
/* The axes of an ONNX reduction: attribute or input 1; none means all, unless noop_with_empty_axes. */
static inv_status onnx_axes(const inv_graph *g, const inv_node *n, bool *gone)
{
    int64_t axes[INV_MAX_RANK * 2];
    size_t count;
    bool given;
    INV_TRY(inv_ints_of(g, n, "axes", 1, axes, &count, &given));
    const int rank = inv_in_shape(g, n, 0)->rank;
    if (count == 0 && inv_attr_int(n, "noop_with_empty_axes", 0) == 0) mark_all(rank, gone);
    for (size_t i = 0; i < count; i++) {
        int a;
        INV_TRY(inv_axis(g, n, axes[i], rank, &a));
        gone[a] = true;
    }
    return INV_OK;
}

static inv_id emit_reduce(inv_graph *g, const char *op, inv_id v, const bool *gone, bool keepdims)
{
    int64_t axes[INV_MAX_RANK];
    size_t count = 0;
    if (v == INV_NONE) return INV_NONE;
    const inv_shape in = *inv_shape_of_value(g, v), s = reduced_shape(&in, gone, keepdims);
    for (int i = 0; i < in.rank; i++) {
        if (gone[i]) axes[count++] = i;
    }
    if (inv_shape_nelem(&s) == inv_shape_nelem(&in) && inv_shape_nelem(&in) > 0) return inv_emit_view(g, v, &s);
    return inv_emit1(g, op, INV_IN(v),
                     INV_ATTRS(inv_attr_of_ints("axes", count, axes), inv_attr_of_int("keepdims", keepdims)));
}

static inv_id unary(inv_graph *g, const char *op, inv_id v) { return inv_emit1(g, op, INV_IN(v), INV_NOATTR); }
static inv_id square(inv_graph *g, inv_id v) { return inv_emit1(g, "Mul", INV_IN(v, v), INV_NOATTR); }

#define LOWER(id, ...)                                                         \
    static inv_status id##_lower(inv_graph *g, const inv_node *n, inv_id *out) \
    {                                                                          \
        bool gone[INV_MAX_RANK] = {false};                                     \
        INV_TRY(onnx_axes(g, n, gone));                                        \
        const bool keep = inv_attr_int(n, "keepdims", 1) != 0;                 \
        const inv_id x = n->in[0];                                             \
        out[0] = __VA_ARGS__;                                                  \
        return inv_done(g);                                                    \
    }
LOWER(reduce_sum, emit_reduce(g, "ReduceSumAxes", x, gone, keep))
LOWER(reduce_mean, emit_reduce(g, "ReduceMeanAxes", x, gone, keep))
LOWER(reduce_max, emit_reduce(g, "ReduceMaxAxes", x, gone, keep))
LOWER(reduce_min, emit_reduce(g, "ReduceMinAxes", x, gone, keep))
LOWER(reduce_prod, emit_reduce(g, "ReduceProdAxes", x, gone, keep))
LOWER(reduce_sum_square, emit_reduce(g, "ReduceSumAxes", square(g, x), gone, keep))
LOWER(reduce_l1, emit_reduce(g, "ReduceSumAxes", unary(g, "Abs", x), gone, keep))
LOWER(reduce_l2, unary(g, "Sqrt", emit_reduce(g, "ReduceSumAxes", square(g, x), gone, keep)))
LOWER(reduce_log_sum, unary(g, "Log", emit_reduce(g, "ReduceSumAxes", x, gone, keep)))

/* m + ln sum e^(x - m), m the largest x; the result does not depend on m, so no gradient goes through it. m is made
 * finite, as infinity less infinity is no number. `op`: how the powers are put together. */
static inv_id log_sum_exp(inv_graph *g, const char *op, inv_id x, const bool *gone, bool keep)
{
    const double most = g->real == INV_F64 ? DBL_MAX : FLT_MAX;
    inv_id m = inv_emit1(g, "ClipRange", INV_IN(emit_reduce(g, "ReduceMaxAxes", x, gone, true)),
                         INV_ATTRS(inv_attr_of_float("min", -most), inv_attr_of_float("max", most)));
    m = unary(g, "Detach", m);
    inv_id e = unary(g, "Exp", inv_emit1(g, "Sub", INV_IN(x, m), INV_NOATTR));
    inv_id sum = unary(g, "Log", emit_reduce(g, op, e, gone, keep));
    if (sum == INV_NONE || m == INV_NONE) return INV_NONE;
    const inv_shape s = *inv_shape_of_value(g, sum);
    return inv_emit1(g, "Add", INV_IN(sum, inv_emit_view(g, m, &s)), INV_NOATTR);
}
LOWER(reduce_log_sum_exp, log_sum_exp(g, "ReduceSumAxes", x, gone, keep))
LOWER(reduce_log_mean_exp, log_sum_exp(g, "ReduceMeanAxes", x, gone, keep))

static inv_status global_average_pool_lower(inv_graph *g, const inv_node *n, inv_id *out)
{
    bool gone[INV_MAX_RANK] = {false};
    const int rank = inv_in_shape(g, n, 0)->rank;
    if (rank < 3) return inv_node_fail(g, n, INV_E_SHAPE, "rank 3 or more is wanted: batch, channels, space");
    mark_all(rank, gone);
    gone[0] = gone[1] = false;
    out[0] = emit_reduce(g, "ReduceMeanAxes", n->in[0], gone, true);
    return inv_done(g);
}

/* Of terms of one sign. */
static inv_bounds sum_bounds(const inv_bounding *q)
{
    const inv_bounds x = q->operand(q, 0);
    return (inv_bounds){x.lo >= 0 ? x.lo : -HUGE_VAL, x.hi <= 0 ? x.hi : HUGE_VAL, x.lo >= 0 && x.above};
}

/* --- rows --- */

/* Its axes are an input or an attribute. */
static bool raise_reduced(const inv_raising *b, const char *op, int64_t since)
{
    size_t n;
    const int64_t *axes = inv_attr_ints(b->n, "axes", &n);
    const bool keep = inv_attr_int(b->n, "keepdims", 1) != 0;
    return inv_onnx_reduced(b->r, b->out[0], op, since, b->in[0], n, axes, keep) != NULL;
}

static bool raise_sum(const inv_raising *b) { return raise_reduced(b, "ReduceSum", INV_ONNX_INPUTS_OF_REDUCE_SUM); }
static bool raise_mean(const inv_raising *b) { return raise_reduced(b, "ReduceMean", INV_ONNX_INPUTS_OF_REDUCE_MEAN); }

/* clang-format off */
#define AXES_ROW(id, op, gradient, ...)                                                                             \
    INV_CASE_LIST(id, "y = " op "<axes = [1], keepdims = 1>(float[2,3] x)",                                         \
          "y = " op "<axes = [0,2], keepdims = 0>(float[2,3,4] x)",                                                 \
          "y = " op "<axes = [0], keepdims = 0>(float[1] x)", "y = " op "<axes = [1], keepdims = 1>(float[0,3] x)", \
          "p = Exp(float[2100] x)\ny = " op "<axes = [0], keepdims = 1>(p)")                                         \
    static const inv_op_def id##_row = {.size = sizeof(inv_op_def),                                                 \
                                        .domain = INV_IR,                                                           \
                                        .name = op,                                                                 \
                                        .since = 1,                                                                 \
                                        .in = "x",                                                                  \
                                        .out = "y",                                                                 \
                                        .flags = INV_OP_DEVICE_REAL,                                                \
                                        .infer = axes_infer,                                                        \
                                        .grad = gradient,                                                           \
                                        .run = id##_run, .work = inv_work_sum,                                     \
                                        .images = INV_IMAGES(1, 1, {"axes", INV_AXES}),                             \
                                        .workspace = axes_workspace,                                                \
                                        .flops = inv_flops_in,                                                     \
                                        .cases = id##_cases,                                                        \
                                        .doc = __VA_ARGS__};
/* clang-format on */
AXES_ROW(sum, "ReduceSumAxes", sum_grad, "sum over axes", .bounds = sum_bounds, .raise = raise_sum)
AXES_ROW(mean, "ReduceMeanAxes", mean_grad, "mean over axes", .bounds = inv_bounds_first, .raise = raise_mean)
AXES_ROW(max, "ReduceMaxAxes", reduce_extreme_grad, "largest over axes; ties share the gradient",
         .bounds = inv_bounds_first)
AXES_ROW(min, "ReduceMinAxes", reduce_extreme_grad, "smallest over axes; ties share the gradient",
         .bounds = inv_bounds_first)
AXES_ROW(prod, "ReduceProdAxes", prod_grad, "product over axes; its gradient is right with zeros too")

INV_CASE_LIST(sum_to, "y = SumTo<shape = [3]>(float[2,3] x)", "y = SumTo<shape = [2,1]>(float[4,2,3] x)",
              "y = SumTo<shape = [1,3,1,1]>(float[2,3,4,5] x)", "y = SumTo<shape = [1]>(float[1,1] x)",
              "y = SumTo<shape = [1,3]>(float[0,3] x)", "y = SumTo<shape = [1,3,1,2,1]>(float[2,3,4,2,5] x)",
              "y = SumTo<shape = [2]>(float[2100,2] x)", "y = SumTo<shape = [1300]>(float[9,1300] x)")
/* clang-format off */
static const inv_op_def sum_to_row = {.size = sizeof(inv_op_def),
                                      .domain = INV_IR,
                                      .name = "SumTo",
                                      .images = INV_IMAGES(1, 1, {"shape", INV_PER_AXIS}),
                                      .since = 1,
                                      .in = "x",
                                      .out = "y",
                                      .flags = INV_OP_DEVICE_REAL,
                                      .infer = sum_to_infer,
                                      .grad = sum_to_grad,
                                      .run = sum_to_run, .work = inv_work_sum,
                                      .workspace = sum_to_workspace,
                                      .flops = inv_flops_in,
                                      .cases = sum_to_cases,
                                      .doc = "sum down to a shape that broadcasts to the shape of x"};
/* clang-format on */
INV_CASE_LIST(detach, "y = Detach(float[2,3] x)", "y = Detach(float[1] x)")
/* clang-format off */
static const inv_op_def detach_row = {
    .size = sizeof(inv_op_def), .domain = INV_IR, .name = "Detach", .since = 1, .in = "x", .out = "y",
    .flags = INV_OP_VIEW | INV_OP_NO_GRAD, .infer = inv_infer_same, .flops = inv_flops_none, .cases = detach_cases,
    .doc = "x; no gradient goes through"};

/* clang-format on */
#define ONNX_ROW(id, op, text)                                                                                \
    INV_LOWERED(id, op, 1, "x axes?", "y", text ". ONNX " op "-1, -11, -13, -18", "y = " op "(float[2,3] x)", \
                "y = " op "<axes = [-1], keepdims = 0>(float[2,3] x)",                                        \
                "a = Constant<value_ints = [0]>()\ny = " op "(float[2,3,4] x, a)", "y = " op "(float[1] x)")
ONNX_ROW(reduce_sum, "ReduceSum", "sum over axes")
ONNX_ROW(reduce_mean, "ReduceMean", "mean over axes")
ONNX_ROW(reduce_max, "ReduceMax", "largest over axes")
ONNX_ROW(reduce_min, "ReduceMin", "smallest over axes")
ONNX_ROW(reduce_prod, "ReduceProd", "product over axes")
ONNX_ROW(reduce_sum_square, "ReduceSumSquare", "sum of x^2")
ONNX_ROW(reduce_l1, "ReduceL1", "sum of |x|")
ONNX_ROW(reduce_l2, "ReduceL2", "square root of the sum of x^2")
ONNX_ROW(reduce_log_sum_exp, "ReduceLogSumExp", "ln of the sum of e^x, by the largest x")
INV_LOWERED(reduce_log_sum, "ReduceLogSum", 1, "x axes?", "y", "ln of the sum. ONNX ReduceLogSum-1, -11, -13, -18",
            "p = Exp(float[2,3] x)\ny = ReduceLogSum(p)",
            "p = Exp(float[1] x)\ny = ReduceLogSum<axes = [0], keepdims = 0>(p)")
INV_LOWERED(global_average_pool, "GlobalAveragePool", 1, "x", "y", "mean over space. ONNX GlobalAveragePool-1",
            "y = GlobalAveragePool(float[2,3,4,5] x)", "y = GlobalAveragePool(float[1,2,1] x)")

/* clang-format off */
static const char *const reduce_log_mean_exp_cases[] = {
    "y = ReduceLogMeanExp<axes = [1]>(float[2,3] x)", "y = ReduceLogMeanExp<axes = [0], keepdims = 0>(float[3,2] x)",
    NULL};
static const inv_op_def reduce_log_mean_exp_row = {
    .size = sizeof(inv_op_def), .domain = INV_IR, .name = "ReduceLogMeanExp", .since = 1, .in = "x", .out = "y",
    .lower = reduce_log_mean_exp_lower, .cases = reduce_log_mean_exp_cases,
    .doc = "ln of the mean of e^x, by the largest x"};

const inv_op_def *const inv_ops_reduce[] = {
    &sum_row,        &mean_row,       &max_row,        &min_row,         &prod_row,          &sum_to_row,
    &detach_row,   &reduce_sum_row, &reduce_mean_row, &reduce_max_row,    &reduce_min_row,
    &reduce_prod_row, &reduce_sum_square_row, &reduce_l1_row, &reduce_l2_row, &reduce_log_sum_exp_row,
    &reduce_log_mean_exp_row, &reduce_log_sum_row, &global_average_pool_row, NULL};
/* clang-format on */
