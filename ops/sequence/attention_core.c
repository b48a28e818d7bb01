/* SPDX-License-Identifier: Apache-2.0
 * Attention of heads without a matrix of all scores: tiles of them are computed with a running maximum and sum per row,
 * and computed again in backward from these two (Rabe and Staats 2021; Dao, Fu, Ermon, Rudra, Re 2022), which stay
 * apart: beside a maximum of -1e9, where all of a row is masked, the logarithm of the sum would be rounded away.
 * Which rows and columns share a tile is fixed, so results do not depend on the number of threads. */
#include "ops/base/float_math.h"
#include "ops/base/parallel.h"
#include "ops/base/util.h"
#include "ops/linear/gemm.h"
#include "ops/sequence/attention.h"
#include "ops/sequence/attention_gpu.h"

#define ROWS 120    /* of a tile, or less: */
#define ROW_PANEL 6 /* a multiple of this, with AVX2 (ops/linear/gemm_own.c) */
#define COLS 256
#define LEAST_WORK 1e5         /* multiplications that are worth threads */
#define FAR ((int64_t)1 << 48) /* no limit of a band */
#define V(f) FN(inv_##f)

typedef struct tile {
    int64_t i0, m, j0, c; /* rows i0.., columns j0.. */
} tile;

/* Columns of a tile, counted from j0, that row i0 + i sees: first..last-1. */
static int64_t within(const tile *t, int64_t j) { return inv_max64(0, inv_min64(t->c, j - t->j0)); }
static int64_t band_first(const inv_attention *a, const tile *t, int64_t i) { return within(t, t->i0 + i + a->from); }
static int64_t band_last(const inv_attention *a, const tile *t, int64_t i) { return within(t, t->i0 + i + a->to + 1); }

/* Whether any row of the tile sees any of its columns. */
static bool in_band(const inv_attention *a, const tile *t)
{
    return t->i0 + a->from < t->j0 + t->c && t->i0 + t->m - 1 + a->to >= t->j0;
}

/* At most as many columns from j0 on as any of the rows up to i0 + m sees: there is nothing behind them. */
static int64_t columns_of(const inv_attention *a, int64_t i0, int64_t m, int64_t j0)
{
    return inv_min64(COLS, inv_min64(a->cols, i0 + m + a->to) - j0);
}

/* Of a head, in as few blocks of about one size as ROWS allows. */
static int64_t block_rows(const inv_attention *a)
{
    const int64_t blocks = inv_max64((a->rows + ROWS - 1) / ROWS, 1), unit = blocks * ROW_PANEL;
    return inv_min64((a->rows + unit - 1) / unit * ROW_PANEL, a->rows);
}

static int lanes_of(int64_t tasks) { return (int)inv_max64(inv_min64(inv_threads(), tasks), 1); }
static int64_t grad_tiles(const inv_attention *a) { return a->cap != 0 ? 3 : 2; }

static double work_of(const inv_attention *a)
{
    return (double)a->heads * (double)a->rows * (double)a->cols * (double)(a->d + a->dv);
}

#define INV_BOTH "ops/sequence/attention_kernels.inc"
#include "ops/base/both_reals.inc"

/* What the shapes of q, k, v and the mask (NULL: none) say. NULL, or what is wrong. */
static const char *attention_of(const inv_node *n, const inv_shape *q, const inv_shape *k, const inv_shape *v,
                                const inv_shape *mask, inv_attention *a)
{
    size_t nband = 0;
    const int64_t *band = inv_attr_ints(n, "band", &nband);
    const int r = q->rank;
    memset(a, 0, sizeof *a);
    if (r < 3 || k->rank != r || v->rank != r) return "q, k and v need three axes or more, all the same number";
    a->tk = inv_attr_int(n, "transK", 0) != 0;
    a->scale = inv_attr_float(n, "scale", 1), a->cap = inv_attr_float(n, "softcap", 0);
    a->from = nband == 2 ? band[0] : -FAR, a->to = nband == 2 ? band[1] : FAR;
    a->rows = q->dim[r - 2], a->d = q->dim[r - 1], a->dv = v->dim[r - 1], a->cols = v->dim[r - 2];
    for (int i = 0; i < r - 2; i++) {
        if (k->dim[i] != v->dim[i]) return "k and v differ in axes before the last two";
        if (i < r - 3 && q->dim[i] != k->dim[i]) return "q and k differ in axes before the heads";
    }
    const int64_t heads = q->dim[r - 3], shared = k->dim[r - 3];
    if (shared == 0 ? heads != 0 : heads % shared != 0)
        return "the number of heads of q is not a multiple of the "
               "heads of k";
    if (k->dim[r - 1] != (a->tk ? a->cols : a->d) || k->dim[r - 2] != (a->tk ? a->d : a->cols))
        return "k has neither the size of q nor the length of v where it should";
    a->heads = inv_prod(q, 0, r - 2);
    a->group = shared ? heads / shared : 1;
    if (!mask) return NULL;
    inv_shape scores = *q, both;
    int64_t stride[INV_MAX_RANK];
    scores.dim[r - 1] = a->cols;
    if (!inv_shape_broadcast(mask, &scores, &both) || !inv_shape_equal(&both, &scores))
        return "the mask does not broadcast to the scores";
    inv_broadcast_strides(mask, &scores, stride);
    a->nlead = r - 2;
    for (int i = 0; i < r - 2; i++) a->lead[i] = scores.dim[i], a->lead_stride[i] = stride[i];
    a->row_stride = stride[r - 2], a->col_stride = stride[r - 1];
    return NULL;
}

/* Inputs of the gradient begin with gy. */
static bool attention_is_grad(const inv_node *n) { return n->op == &inv_op_attention_grad; }
static uint32_t mask_input(const inv_node *n) { return attention_is_grad(n) ? 6 : 3; }

static const char *of_node(const inv_graph *g, const inv_node *n, inv_attention *a)
{
    const uint32_t first = attention_is_grad(n) ? 1 : 0, m = mask_input(n);
    return attention_of(n, inv_in_shape(g, n, first), inv_in_shape(g, n, first + 1), inv_in_shape(g, n, first + 2),
                        inv_has_in(n, m) ? inv_in_shape(g, n, m) : NULL, a);
}

static inv_shape replaced(const inv_shape *s, int64_t last)
{
    inv_shape r = *s;
    r.dim[r.rank - 1] = last;
    return r;
}

/* What forward and gradient ask of their operands; the shapes of o and stats. */
static inv_status infer_operands(inv_graph *g, inv_node *n, inv_attention *a, inv_shape *o, inv_shape *stats)
{
    INV_TRY(inv_need_reals(g, n, n->nin));
    const char *why = of_node(g, n, a);
    if (why) return inv_node_fail(g, n, INV_E_SHAPE, "%s", why);
    const inv_shape *q = inv_in_shape(g, n, attention_is_grad(n) ? 1 : 0);
    *o = replaced(q, a->dv), *stats = replaced(q, 2);
    return INV_OK;
}

static inv_status attention_infer(inv_graph *g, inv_node *n)
{
    inv_attention a;
    inv_shape o, stats;
    INV_TRY(infer_operands(g, n, &a, &o, &stats));
    inv_set_out(g, n, 0, inv_in_dtype(g, n, 0), &o);
    inv_set_out(g, n, 1, inv_in_dtype(g, n, 0), &stats);
    return INV_OK;
}

static inv_status attention_grad_infer(inv_graph *g, inv_node *n)
{
    inv_attention a;
    inv_shape o, stats;
    INV_TRY(infer_operands(g, n, &a, &o, &stats));
    const inv_shape s = replaced(inv_in_shape(g, n, 1), a.cols);
    if (!inv_shape_equal(inv_in_shape(g, n, 0), &o) || !inv_shape_equal(inv_in_shape(g, n, 4), &o))
        return inv_node_fail(g, n, INV_E_SHAPE, "gy and o must have the extents of q with the last axis of v");
    if (!inv_shape_equal(inv_in_shape(g, n, 5), &stats))
        return inv_node_fail(g, n, INV_E_SHAPE, "stats must have the extents of q with a last axis of 2");
    for (uint32_t i = 0; i < 3; i++) inv_set_out(g, n, i, inv_in_dtype(g, n, 0), inv_in_shape(g, n, 1 + i));
    inv_set_out(g, n, 3, inv_in_dtype(g, n, 0), &s);
    return INV_OK;
}

static const char *of_call(const inv_call *c, inv_attention *a)
{
    const uint32_t first = attention_is_grad(c->node) ? 1 : 0, m = mask_input(c->node);
    const inv_tensor *in = c->in + first, *mask = m < c->nin && c->in[m].data ? &c->in[m] : NULL;
    const char *why = attention_of(c->node, &in[0].shape, &in[1].shape, &in[2].shape, mask ? &mask->shape : NULL, a);
    a->dtype = in[0].dtype;
    a->q = in[0].data, a->k = in[1].data, a->v = in[2].data, a->mask = mask ? mask->data : NULL;
    return why;
}

/* NULL: not wanted. */
static void *output(const inv_call *c, uint32_t i) { return i < c->nout ? c->out[i].data : NULL; }

static inv_status attention_run(const inv_call *c)
{
    inv_attention a;
    if (of_call(c, &a)) return INV_E_SHAPE;
    void *o = output(c, 0), *stats = output(c, 1);
    if (a.heads == 0 || a.rows == 0) return INV_OK;
    if (c->gpu) INV_GPU(c->gpu, attention, &a, o, stats);
    else INV_REAL(a.dtype, attention, &a, c->ws, o, stats);
    return INV_OK;
}

static inv_status attention_grad_run(const inv_call *c)
{
    inv_attention a;
    if (of_call(c, &a)) return INV_E_SHAPE;
    const inv_attention_grad g = {.gy = c->in[0].data,
                                  .o = c->in[4].data,
                                  .stats = c->in[5].data,
                                  .dq = output(c, 0),
                                  .dk = output(c, 1),
                                  .dv = output(c, 2),
                                  .ds = output(c, 3)};
    if (a.heads == 0) return INV_OK;
    if (c->gpu) INV_GPU(c->gpu, attention_grad, &a, &g, c->ws);
    else INV_REAL(a.dtype, attention_grad, &a, &g, c->ws);
    return INV_OK;
}

static size_t attention_workspace(const inv_graph *g, const inv_node *n)
{
    inv_attention a;
    const size_t size = inv_dtype_size(inv_in_dtype(g, n, 0));
    if (of_node(g, n, &a)) return 0;
    if (g->gpu) return attention_is_grad(n) ? (size_t)(a.heads * a.rows) * size : 0;
    const int64_t tasks = attention_is_grad(n) ? a.heads / a.group : a.heads * ((a.rows + ROWS - 1) / ROWS);
    const int64_t tiles = attention_is_grad(n) ? grad_tiles(&a) : 1;
    return (size_t)(lanes_of(tasks) * block_rows(&a) * inv_min64(COLS, a.cols) * tiles) * size;
}

static double attention_flops(const inv_graph *g, const inv_node *n)
{
    inv_attention a;
    if (of_node(g, n, &a)) return 0;
    const double scores = (double)a.heads * (double)a.rows * (double)a.cols;
    return attention_is_grad(n) ? scores * (6.0 * (double)a.d + 4.0 * (double)a.dv + 8) : 2 * work_of(&a) + 5 * scores;
}

/* None through `stats`, which nothing but this reads. */
static inv_status attention_grad(inv_grad *b)
{
    inv_graph *g = b->g;
    const inv_id gy = inv_GO(b, 0);
    const inv_node *n = inv_nod(g, b->node);
    const inv_id mask = inv_has_in(n, 3) ? n->in[3] : INV_NONE;
    if (gy == INV_NONE) return INV_OK;
    const inv_id grad =
        inv_emit(g, "AttentionGrad", 4,
                 INV_IN(gy, inv_I(b, 0), inv_I(b, 1), inv_I(b, 2), inv_O(b, 0), inv_O(b, 1), mask), n->nattr, n->attr);
    INV_TRY(inv_take_grads(b, grad, 4));
    if (mask != INV_NONE && inv_wants(b, 3)) inv_grad_set(b, 3, inv_emit_sum_to(g, inv_nod(g, grad)->out[3], mask));
    return inv_grad_done(b);
}

/* clang-format off */
const inv_op_def inv_op_attention_core = {
    .size = sizeof inv_op_attention_core, .domain = INV_IR, .name = "AttentionCore", .since = 1, .in = "q k v mask?",
    .out = "o stats", .infer = attention_infer, .grad = attention_grad, .run = attention_run,
    .work = inv_work_matrix,
    .workspace = attention_workspace, .flops = attention_flops,
    .cases = (const char *const[]){
        "o, stats = AttentionCore<scale = 0.5>(float[2,3,4,5] q, float[2,3,6,5] k, float[2,3,6,2] v)",
        "o, stats = AttentionCore<scale = 0.7>(float[2,4,5,3] q, float[2,2,4,3] k, float[2,2,4,2] v, float[1,4] mask)",
        "o, stats = AttentionCore<transK = 1, softcap = 0.8>(float[2,3,4] q, float[2,4,5] k, float[2,5,3] v, "
        "float[3,5] mask)",
        "o, stats = AttentionCore<band = [-100000, 0]>(float[1,3,4] q, float[1,3,4] k, float[1,3,4] v)",
        "o, stats = AttentionCore<band = [-1, 1], transK = 1>(float[4,2,6,3] q, float[4,1,3,5] k, float[4,1,5,2] v, "
        "float[4,1,1,5] mask)",
        "o, stats = AttentionCore<scale = 0.5, band = [-40, 210]>(float[1,70,3] q, float[1,300,3] k, float[1,300,2] v)",
        "o, stats = AttentionCore(float[2,2,3,4] q, float[2,2,0,4] k, float[2,2,0,3] v)",
        "o, stats = AttentionCore(float[2,0,3,4] q, float[2,0,5,4] k, float[2,0,5,3] v)",
        "o, stats = AttentionCore<band = [2, 9]>(float[1,3,4] q, float[1,3,4] k, float[1,3,4] v)", NULL},
    .doc = "softmax(cap tanh(scale q k' / cap) + mask) v per head, and per row maximum and sum; band: visible "
           "columns i + band[0] to i + band[1]"};

const inv_op_def inv_op_attention_grad = {
    .size = sizeof inv_op_attention_grad, .domain = INV_IR, .name = "AttentionGrad", .since = 1,
    .in = "gy q k v o stats mask?", .out = "dq dk dv dscores", .infer = attention_grad_infer,
    .run = attention_grad_run, .work = inv_work_matrix, .workspace = attention_workspace,
    .flops = attention_flops,
    .cases = (const char *const[]){
        "dq, dk, dv, ds = AttentionGrad<scale = 0.5, softcap = 2.0, band = [-3, 1]>(float[2,4,5,3] gy, "
        "float[2,4,5,6] q, float[2,2,7,6] k, float[2,2,7,3] v, float[2,4,5,3] o, float[2,4,5,2] scale_stats, "
        "float[5,7] mask)",
        "dq, dk, dv, ds = AttentionGrad<band = [-1, 1], transK = 1>(float[4,2,6,2] gy, float[4,2,6,3] q, "
        "float[4,1,3,5] k, float[4,1,5,2] v, float[4,2,6,2] o, float[4,2,6,2] scale_stats, "
        "float[4,1,6,1] mask)", NULL},
    .doc = "gradient of AttentionCore, scores computed again a tile at a time; dscores: of the mask, to be summed"};
/* clang-format on */
