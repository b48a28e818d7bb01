/* SPDX-License-Identifier: Apache-2.0
 * Matrix products. ONNX MatMul and Gemm lower to MatMulT, Mul and Add; MatMulT multiplies the last two axes (each
 * operand transposed or not) and broadcasts the axes before them; the result is added onto a sum, if one is given.
 * LinearSolve, its inverse, is in linear_solve.c. */
#include "core/edits/onnx_body.h"
#include "ops/base/emit.h"
#include "ops/base/families.h"
#include "ops/base/parallel.h"
#include "ops/base/rows.h"
#include "ops/base/strided_copy.h"
#include "ops/gpu/parts_gpu.h"
#include "ops/linear/gemm.h"
#include "ops/linear/linear_solve.h"
#include "ops/linear/product.h"

static inv_shape without_matrix(const inv_shape *s) { return inv_shape_of(s->rank - 2, s->dim); }

const char *inv_product_of(bool ta, bool tb, const inv_shape *a, const inv_shape *b, inv_product *p)
{
    p->ta = ta;
    p->tb = tb;
    if (a->rank < 2 || b->rank < 2) return "both operands need two axes or more";
    int ra = a->rank, rb = b->rank;
    p->m = a->dim[p->ta ? ra - 1 : ra - 2];
    p->k = a->dim[p->ta ? ra - 2 : ra - 1];
    p->n = b->dim[p->tb ? rb - 2 : rb - 1];
    p->lda = a->dim[ra - 1];
    p->ldb = b->dim[rb - 1];
    if (p->k != b->dim[p->tb ? rb - 1 : rb - 2]) return "the inner extents differ (columns of a, rows of b)";
    p->lead[0] = without_matrix(a);
    p->lead[1] = without_matrix(b);
    if (!inv_shape_broadcast(&p->lead[0], &p->lead[1], &p->lead[2]))
        return "the axes before the last two do not broadcast";
    if (p->lead[2].rank + 2 > INV_MAX_RANK) return "too many axes";
    p->out = p->lead[2];
    p->out.dim[p->out.rank++] = p->m;
    p->out.dim[p->out.rank++] = p->n;
    p->batch = inv_shape_nelem(&p->lead[2]);
    if (rb == 2 && !p->ta) { /* the rows of all batches are one matrix */
        p->m *= p->batch;
        p->batch = 1;
        p->lead[0] = p->lead[1] = p->lead[2] = inv_shape_scalar();
    }
    return NULL;
}

static const char *product_of(const inv_node *n, const inv_shape *a, const inv_shape *b, inv_product *p)
{
    return inv_product_of(inv_attr_int(n, "transA", 0) != 0, inv_attr_int(n, "transB", 0) != 0, a, b, p);
}

inv_status inv_product_fail(const inv_graph *g, const inv_node *n, const inv_shape *a, const inv_shape *b,
                            const inv_product *p, const char *why)
{
    if (a->rank >= 2 && b->rank >= 2) {
        const int64_t rows = b->dim[b->rank - (p->tb ? 1 : 2)];
        if (p->k != rows) inv_note_misfit(g, 1, p->k, rows);
        else inv_note_shapes(g, 2, &p->lead[0], &p->lead[1], true);
    }
    return inv_node_fail(g, n, INV_E_SHAPE, "%s", why);
}

static inv_status matmult_infer(inv_graph *g, inv_node *n)
{
    inv_product p;
    INV_TRY(inv_need_reals(g, n, 2));
    const inv_shape *a = inv_in_shape(g, n, 0), *b = inv_in_shape(g, n, 1);
    const char *why = product_of(n, a, b, &p);
    if (why) return inv_product_fail(g, n, a, b, &p, why);
    inv_set_out(g, n, 0, inv_in_dtype(g, n, 0), &p.out);
    return inv_has_in(n, 2) ? inv_need_sum(g, n, 2) : INV_OK;
}

static double matmult_flops(const inv_graph *g, const inv_node *n)
{
    inv_product p;
    if (product_of(n, inv_in_shape(g, n, 0), inv_in_shape(g, n, 1), &p)) return 0;
    return 2.0 * (double)p.batch * (double)p.m * (double)p.n * (double)p.k;
}

/* Of the batch's i-th matrices. */
static void one_product(const inv_call *c, const inv_product *p, const int64_t stride[3][INV_MAX_RANK], int64_t i)
{
    int64_t offset[INV_LOOP_OPS] = {0};
    inv_product_offsets(p, stride, i, offset);
    const void *a = inv_elem_at(&c->in[0], offset[0]), *b = inv_elem_at(&c->in[1], offset[1]);
    void *y = inv_elem_at(&c->out[0], offset[2]);
    INV_REAL(c->in[0].dtype, inv_gemm, p->ta, p->tb, p->m, p->n, p->k, a, p->lda, b, p->ldb, inv_has_sum(c, 2), y,
             p->n);
}

void inv_product_strides(const inv_shape *a, const inv_shape *b, const inv_product *p, int64_t stride[3][INV_MAX_RANK])
{
    int64_t size[3];
    size[0] = a->dim[a->rank - 2] * p->lda;
    size[1] = b->dim[b->rank - 2] * p->ldb;
    size[2] = p->m * p->n;
    for (int i = 0; i < 3; i++) {
        inv_broadcast_strides(&p->lead[i], &p->lead[2], stride[i]);
        for (int d = 0; d < p->lead[2].rank; d++) stride[i][d] *= size[i];
    }
}

void inv_product_offsets(const inv_product *p, const int64_t (*stride)[INV_MAX_RANK], int64_t i, int64_t offset[3])
{
    for (int o = 0; o < 3; o++) offset[o] = 0;
    for (int d = p->lead[2].rank - 1; d >= 0; d--) {
        const int64_t at = i % p->lead[2].dim[d];
        i /= p->lead[2].dim[d];
        for (int o = 0; o < 3; o++) offset[o] += at * stride[o][d];
    }
}

/* The longest axis becomes the last: one call does all its products. */
static void longest_inside(inv_loop *l)
{
    int at = 0, last = l->rank - 1;
    if (l->rank < 2) return;
    for (int i = 1; i < l->rank; i++) {
        if (l->dim[i] > l->dim[at]) at = i;
    }
    int64_t dim = l->dim[at];
    l->dim[at] = l->dim[last];
    l->dim[last] = dim;
    l->inner = dim;
    for (int k = 0; k < l->nop; k++) {
        l->step[k] = l->stride[k][at];
        l->stride[k][at] = l->stride[k][last];
        l->stride[k][last] = l->step[k];
    }
    l->rows = 1;
    for (int i = 0; i < last; i++) l->rows *= l->dim[i];
}

static inv_status matmult_on_device(const inv_call *c)
{
    inv_product p;
    inv_loop l;
    if (product_of(c->node, &c->in[0].shape, &c->in[1].shape, &p)) return INV_E_SHAPE;
    int64_t stride[3][INV_MAX_RANK] = {{0}}, at[INV_LOOP_OPS];
    inv_product_strides(&c->in[0].shape, &c->in[1].shape, &p, stride);
    inv_loop_strided(&l, &p.lead[2], 3, (const int64_t(*)[INV_MAX_RANK])stride);
    longest_inside(&l);
    if (p.batch == 0 || p.m == 0 || p.n == 0) return INV_OK;
    for (int64_t r = 0; r < l.rows; r++) {
        inv_loop_row(&l, r, at);
        inv_gemm g = {.dtype = c->in[0].dtype,
                      .ta = p.ta,
                      .tb = p.tb,
                      .onto = inv_has_sum(c, 2) ? INV_ADDED_TO : INV_INSTEAD,
                      .m = p.m,
                      .n = p.n,
                      .k = p.k,
                      .lda = p.lda,
                      .ldb = p.ldb,
                      .ldc = p.n,
                      .batch = l.inner,
                      .step_a = l.step[0],
                      .step_b = l.step[1],
                      .step_c = l.step[2],
                      .a = inv_elem_at(&c->in[0], at[0]),
                      .b = inv_elem_at(&c->in[1], at[1]),
                      .c = inv_elem_at(&c->out[0], at[2])};
        INV_TRY(inv_gpu_gemm(c->gpu, &g, c->ws, c->ws_nbytes));
    }
    return INV_OK;
}

static inv_status matmult_run(const inv_call *c)
{
    INV_TRY(inv_begin_sum(c, 2));
    if (c->gpu) return matmult_on_device(c);
    inv_product p;
    if (product_of(c->node, &c->in[0].shape, &c->in[1].shape, &p)) return INV_E_SHAPE;
    int64_t stride[3][INV_MAX_RANK] = {{0}};
    inv_product_strides(&c->in[0].shape, &c->in[1].shape, &p, stride);
    const int64_t(*const strides)[INV_MAX_RANK] = (const int64_t(*)[INV_MAX_RANK])stride;
    if (p.batch >= 2 * inv_threads() && (double)p.batch * (double)p.m * (double)p.n * (double)p.k > 1e5) {
#pragma omp parallel for schedule(static)
        for (int64_t i = 0; i < p.batch; i++) one_product(c, &p, strides, i);
    } else { /* in no region, not even one of a single thread: for one within OpenMP makes new threads every time */
        for (int64_t i = 0; i < p.batch; i++) one_product(c, &p, strides, i);
    }
    return INV_OK;
}

static size_t matmult_workspace(const inv_graph *g, const inv_node *n)
{
    inv_product p;
    if (!g->gpu || product_of(n, inv_in_shape(g, n, 0), inv_in_shape(g, n, 1), &p)) return 0;
    return inv_gpu_gemm_workspace(p.m * p.batch, p.n, p.k, inv_in_dtype(g, n, 0));
}

/* v as a matrix of all its rows. */
static inv_id emit_rows(inv_graph *g, inv_id v)
{
    if (v == INV_NONE) return v;
    const inv_shape *s = inv_shape_of_value(g, v);
    int64_t d[2] = {inv_prod(s, 0, s->rank - 1), s->dim[s->rank - 1]};
    inv_shape flat = inv_shape_of(2, d);
    return inv_emit_view(g, v, &flat);
}

inv_id inv_product_weight_grad(inv_graph *g, inv_id x, inv_id gy, int rank, bool ta, bool tb)
{
    if (!ta && rank == 2) { /* one product over all rows, not one per batch and a sum */
        x = emit_rows(g, x);
        gy = emit_rows(g, gy);
    }
    if (x == INV_NONE || gy == INV_NONE) return INV_NONE;
    return tb ? inv_emit_product(g, true, gy, ta, x) : inv_emit_product(g, !ta, x, false, gy);
}

static inv_status matmult_grad(inv_grad *b)
{
    inv_graph *g = b->g;
    const inv_node *n = inv_nod(g, b->node);
    bool ta = inv_attr_int(n, "transA", 0) != 0, tb = inv_attr_int(n, "transB", 0) != 0;
    inv_id x = inv_I(b, 0), w = inv_I(b, 1), gy = inv_GO(b, 0);
    if (inv_has_in(n, 2) && inv_wants(b, 2)) inv_grad_set(b, 2, gy);
    if (inv_wants(b, 1)) { /* the weights first: x may have to be rebuilt for them, and then gx is not alive yet */
        const inv_id gw = inv_product_weight_grad(g, x, gy, inv_shape_of_value(g, w)->rank, ta, tb);
        if (gw != INV_NONE) inv_grad_set(b, 1, inv_emit_sum_to(g, gw, w));
    }
    if (inv_wants(b, 0)) {
        inv_id gx = ta ? inv_emit_product(g, tb, w, true, gy) : inv_emit_product(g, false, gy, !tb, w);
        if (gx != INV_NONE) inv_grad_set(b, 0, inv_emit_sum_to(g, gx, x));
    }
    return inv_grad_done(b);
}

/* Rank 1: a row on the left, a column on the right, the extra axis dropped from the result. */
static inv_status matmul_lower(inv_graph *g, const inv_node *n, inv_id *out)
{
    inv_id a = n->in[0], b = n->in[1], wanted = n->out[0];
    inv_shape sa = *inv_shape_of_value(g, a), sb = *inv_shape_of_value(g, b);
    if (sa.rank == 0 || sb.rank == 0) return inv_node_fail(g, n, INV_E_SHAPE, "operands need one axis or more");
    bool row = sa.rank == 1, col = sb.rank == 1;
    if (row) sa = inv_shape_of(2, (int64_t[]){1, sa.dim[0]});
    if (col) sb = inv_shape_of(2, (int64_t[]){sb.dim[0], 1});
    inv_product p;
    const char *why = product_of(n, &sa, &sb, &p);
    if (why) return inv_product_fail(g, n, &sa, &sb, &p, why);
    a = inv_emit_view(g, a, &sa);
    b = inv_emit_view(g, b, &sb);
    if (a == INV_NONE || b == INV_NONE || wanted == INV_NONE) return inv_done(g);
    inv_id y = inv_emit_product(g, false, a, false, b);
    if (row && !col) p.out.dim[p.out.rank - 2] = p.out.dim[p.out.rank - 1];
    p.out.rank -= (int)row + (int)col;
    out[0] = row || col ? inv_emit_view(g, y, &p.out) : y;
    return inv_done(g);
}

static inv_status gemm_lower(inv_graph *g, const inv_node *n, inv_id *out)
{
    double alpha = inv_attr_float(n, "alpha", 1), beta = inv_attr_float(n, "beta", 1);
    bool ta = inv_attr_int(n, "transA", 0) != 0, tb = inv_attr_int(n, "transB", 0) != 0;
    inv_dtype t = inv_in_dtype(g, n, 0);
    inv_id c = inv_has_in(n, 2) ? n->in[2] : INV_NONE;
    inv_product p;
    inv_shape both;
    const inv_shape *sa = inv_in_shape(g, n, 0), *sb = inv_in_shape(g, n, 1);
    if (sa->rank != 2 || sb->rank != 2) return inv_node_fail(g, n, INV_E_SHAPE, "A and B must be matrices");
    const char *why = product_of(n, sa, sb, &p);
    if (why) return inv_product_fail(g, n, sa, sb, &p, why);
    if (c != INV_NONE &&
        (!inv_shape_broadcast(inv_shape_of_value(g, c), &p.out, &both) || !inv_shape_equal(&both, &p.out))) {
        inv_note_shapes(g, 2, &p.out, inv_shape_of_value(g, c), true);
        return inv_node_fail(g, n, INV_E_SHAPE, "C does not broadcast to the result [%lld,%lld]",
                             (long long)p.out.dim[0], (long long)p.out.dim[1]);
    }
    inv_id y = inv_emit_product(g, ta, n->in[0], tb, n->in[1]);
    if (alpha != 1 && y != INV_NONE) y = inv_emit1(g, "Mul", INV_IN(y, inv_graph_const_real(g, t, alpha)), INV_NOATTR);
    if (c != INV_NONE && beta != 0 && y != INV_NONE) {
        if (beta != 1) c = inv_emit1(g, "Mul", INV_IN(c, inv_graph_const_real(g, t, beta)), INV_NOATTR);
        if (c != INV_NONE) y = inv_emit1(g, "Add", INV_IN(y, c), INV_NOATTR);
    }
    out[0] = y;
    return inv_done(g);
}

static bool matmul_raise(const inv_raising *b)
{
    const char *x = b->in[0], *y = b->in[1];
    if (inv_attr_int(b->n, "transA", 0)) x = inv_onnx_transposed(b->r, x, inv_raising_shape(b, 0)->rank);
    if (inv_attr_int(b->n, "transB", 0)) y = inv_onnx_transposed(b->r, y, inv_raising_shape(b, 1)->rank);
    if (!inv_has_in(b->n, 2)) return inv_onnx_node(b->r, b->out[0], "MatMul", INV_NAMES(x, y), INV_NOATTR) != NULL;
    const char *product = inv_onnx_node(b->r, inv_onnx_fresh(b->r), "MatMul", INV_NAMES(x, y), INV_NOATTR);
    return inv_onnx_node(b->r, b->out[0], "Add", INV_NAMES(b->in[2], product), INV_NOATTR) != NULL;
}

/* clang-format off */
static const inv_op_def matmult = {
    .size = sizeof matmult, .domain = INV_IR, .name = "MatMulT", .since = 1, .in = "a b sum?",
    .out = "y", .inplace = 1 << 2, .infer = matmult_infer, .grad = matmult_grad, .run = matmult_run,
    .raise = matmul_raise,
    .workspace = matmult_workspace, .flops = matmult_flops,
    .work = inv_work_matrix,
    .cases = (const char *const[]){
        "y = MatMulT(float[3,4] a, float[4,5] b)",
        "y = MatMulT<transA = 1>(float[4,3] a, float[4,5] b)",
        "y = MatMulT<transB = 1>(float[2,3,4] a, float[5,4] b)",
        "y = MatMulT<transA = 1, transB = 1>(float[2,4,3] a, float[5,4] b)",
        "y = MatMulT(float[2,1,3,4] a, float[3,4,2] b)",
        "y = MatMulT<transA = 1>(float[8195,2] a, float[8195,3] b)",
        "y = MatMulT<transB = 1>(float[2,8195] a, float[3,8195] b, float[2,3] sum)",
        "y = MatMulT<transA = 1, transB = 1>(float[2,4,3] a, float[2,5,4] b)",
        "y = MatMulT(float[3,0] a, float[0,5] b)",
        "y = MatMulT(float[2,1,3,2,4] a, float[5,1,4,3] b)",
        "y = MatMulT<transA = 1>(float[3,2,4,2] a, float[3,1,4,5] b)",
        "y = MatMulT<transA = 1>(float[2,0,3] a, float[2,0,5] b)",
        "y = MatMulT(float[0,3,4] a, float[0,4,5] b)",
        "y = MatMulT<transA = 1>(float[4,3] a, float[4,5] b, float[3,5] sum)",
        "y = MatMulT(float[3,0] a, float[0,5] b, float[3,5] sum)",
        "y = MatMulT(float[2,1,3,4] a, float[3,4,2] b, float[2,3,3,2] sum)", NULL},
    .doc = "y = op(a) op(b) over the last two axes, the others broadcast; transA and transB transpose the last two; "
           "added to sum"};
/* clang-format on */

INV_LOWERED_FLAGS(matmul, "MatMul", 1, "A B", "Y", INV_OP_PRODUCT, "matrix product as numpy.matmul; lowers to MatMulT",
                  "y = MatMul(float[3,4] a, float[4,5] b)", "y = MatMul(float[2,3,4] a, float[4,5] b)",
                  "y = MatMul(float[4] a, float[4,5] b)", "y = MatMul(float[2,3,4] a, float[4] b)",
                  "y = MatMul(float[4] a, float[4] b)")

INV_LOWERED_FLAGS(gemm, "Gemm", 7, "A B C?", "Y", INV_OP_PRODUCT,
                  "alpha op(A) op(B) + beta C; lowers to MatMulT, Mul, Add",
                  "y = Gemm<transB = 1>(float[3,4] a, float[5,4] b, float[5] c)",
                  "y = Gemm<alpha = 0.5, beta = 2.0, transA = 1>(float[4,3] a, float[4,5] b, float[3,1] c)",
                  "y = Gemm(float[3,4] a, float[4,5] b)")

/* clang-format off */
const inv_op_def *const inv_ops_matmul[] = {&matmult, &matmul_row, &gemm_row, &inv_op_linear_solve,
                                            &inv_op_filter_inverse, NULL};
/* clang-format on */
