/* SPDX-License-Identifier: Apache-2.0
 * Matrix products with a quantized constant. A tile of the constant is expanded into scratch memory, multiplied as
 * MatMulT does it, and forgotten; so the constant is never there as a whole in floating point. Tiles are a function of
 * shapes, and each element of the result is summed up by one thread in rising order of tiles: bits do not depend on the
 * number of threads. */
#include "ops/base/emit.h"
#include "ops/base/families.h"
#include "ops/base/parallel.h"
#include "ops/linear/gemm.h"
#include "ops/linear/packed.h"
#include "ops/linear/product.h"

/* Extents of a tile, along the axis that the result has and the one that is summed over: up to 1 MiB in float32, which
 * second caches hold, and products long enough to be worth OpenBLAS's own copies of their operands. */
enum { LEAST_OUT = 128, MOST_OUT = 256, TILE_SUM = 1024, PANEL = 16 };

typedef struct packed_product {
    inv_product p;
    bool left, rows_out; /* the constant is op(w) x; its rows are those of the result, not those summed over */
    int64_t out, ntile, nmatrix, matrix; /* extent that the result has of op(w), its tiles; matrices, elements of one */
    int64_t tile_out, tile_sum;
} packed_product;

/* NULL or what is wrong. `w`: the constant's shape. */
static const char *packed_product_of(const inv_node *n, const inv_shape *x, const inv_shape *w, packed_product *q)
{
    const bool trans = inv_attr_int(n, "trans", 0) != 0;
    q->left = inv_attr_int(n, "left", 0) != 0;
    const char *why = q->left ? inv_product_of(trans, false, w, x, &q->p) : inv_product_of(false, trans, x, w, &q->p);
    if (why) return why;
    q->rows_out = q->left != trans;
    q->out = q->left ? q->p.m : q->p.n;
    const int64_t share = (q->out / INV_MAX_LANES + PANEL - 1) / PANEL * PANEL; /* some for every thread */
    q->tile_out = inv_min64(q->out, inv_max64(LEAST_OUT, inv_min64(share, MOST_OUT)));
    q->ntile = q->tile_out ? (q->out + q->tile_out - 1) / q->tile_out : 0;
    q->nmatrix = inv_prod(w, 0, w->rank - 2);
    q->matrix = w->dim[w->rank - 2] * w->dim[w->rank - 1];
    q->tile_sum = inv_min64(q->p.k, TILE_SUM);
    return NULL;
}

static inv_status matmul_packed_infer(inv_graph *g, inv_node *n)
{
    packed_product q;
    inv_shape w;
    INV_TRY(inv_need_real(g, n, 0));
    INV_TRY(inv_packed_infer(g, n, 1, &w));
    const inv_shape *x = inv_in_shape(g, n, 0);
    const char *why = packed_product_of(n, x, &w, &q);
    if (why) return inv_product_fail(g, n, q.left ? &w : x, q.left ? x : &w, &q.p, why);
    inv_set_out(g, n, 0, inv_in_dtype(g, n, 0), &q.p.out);
    return INV_OK;
}

static bool product_at(const inv_graph *g, const inv_node *n, packed_product *q)
{
    const inv_shape w = inv_attr_shape(n, "shape");
    return !packed_product_of(n, inv_in_shape(g, n, 0), &w, q);
}

static double matmul_packed_flops(const inv_graph *g, const inv_node *n)
{
    packed_product q;
    if (!product_at(g, n, &q)) return 0;
    return 2.0 * (double)q.p.batch * (double)q.p.m * (double)q.p.n * (double)q.p.k +
           2.0 * (double)q.nmatrix * (double)q.matrix;
}

/* Bytes of a thread's tile. */
static size_t tile_nbytes(const packed_product *q, inv_dtype t)
{
    return inv_round64((size_t)(q->tile_out * q->tile_sum) * inv_dtype_size(t));
}

static size_t matmul_packed_workspace(const inv_graph *g, const inv_node *n)
{
    packed_product q;
    if (!product_at(g, n, &q)) return 0;
    return (size_t)inv_min64(inv_threads(), q.nmatrix * q.ntile) * tile_nbytes(&q, inv_in_dtype(g, n, 0));
}

#define INV_BOTH "ops/linear/packed_matmul_kernels.inc"
#include "ops/base/both_reals.inc"

static inv_status matmul_packed_run(const inv_call *c)
{
    packed_product q;
    inv_packed w;
    inv_packed_of(c, 1, &w);
    if (packed_product_of(c->node, &c->in[0].shape, &w.shape, &q)) return INV_E_SHAPE;
    if (c->out[0].n == 0) return INV_OK;
    INV_REAL(c->in[0].dtype, multiply, c, &q, &w);
    return INV_OK;
}

static inv_status matmul_packed_grad(inv_grad *b)
{
    inv_graph *g = b->g;
    const inv_node n = *inv_nod(g, b->node);
    const bool trans = inv_attr_int(&n, "trans", 0) != 0;
    if (inv_wants(b, 1)) { /* a parameter that is kept in a small type */
        const inv_id x = n.in[0], gy = inv_GO(b, 0);
        const inv_id gw = !inv_attr_int(&n, "left", 0)
                              ? inv_product_weight_grad(g, x, gy, inv_shape_of_value(g, n.in[1])->rank, false, trans)
                          : trans ? inv_emit_product(g, false, x, true, gy)
                                  : inv_emit_product(g, false, gy, true, x);
        if (gw != INV_NONE) inv_grad_set(b, 1, inv_emit_sum_to(g, gw, n.in[1]));
    }
    if (!inv_wants(b, 0)) return inv_grad_done(b);
    inv_id in[4] = {inv_GO(b, 0), n.in[1], n.in[2], n.nin > 3 ? n.in[3] : INV_NONE};
    inv_attr *attr = INV_ARENA_NEW(&g->arena, inv_attr, n.nattr + 1);
    if (!attr) return INV_E_NOMEM;
    uint32_t count = 0;
    for (uint32_t i = 0; i < n.nattr; i++)
        if (strcmp(n.attr[i].name, "trans") != 0) attr[count++] = n.attr[i];
    attr[count++] = inv_attr_of_int("trans", !trans);
    const inv_id gx = inv_emit1(g, "MatMulPacked", 4, in, count, attr);
    if (gx != INV_NONE) inv_grad_set(b, 0, inv_emit_sum_to(g, gx, n.in[0]));
    return inv_grad_done(b);
}

/* clang-format off */
#define BYTES20 "{1,18,35,52,69,86,103,120,137,154,171,188,205,222,239,255,7,90,40,200}"
#define SCALES "{0.1,0.2,0.3,-0.4,0.5,0.15,0.25,0.35,-0.1,0.05}"
extern const inv_op_def inv_op_matmul_packed;
const inv_op_def inv_op_matmul_packed = {
    .size = sizeof inv_op_matmul_packed, .domain = INV_IR, .name = "MatMulPacked", .since = 1, .in = "x w scale zero?",
    .out = "y", .flags = INV_OP_HOST_ONLY | INV_OP_UNPACKS, .infer = matmul_packed_infer, .grad = matmul_packed_grad,
    .run = matmul_packed_run, .workspace = matmul_packed_workspace, .flops = matmul_packed_flops,
    .work = inv_work_matrix,
    .cases = (const char *const[]){
        "y = MatMulPacked<type = 22, shape = [5,7], width = 8, axis = 1, block = 4, scale_shape = [5,2], trans = 1>("
            "float[3,7] x, uint8[20]" BYTES20 ", float[5,2]" SCALES ")",
        "y = MatMulPacked<type = 22, shape = [5,7], width = 7, axis = 1, block = 4, scale_shape = [5,2]>("
            "float[2,3,5] x, uint8[20]" BYTES20 ", float[5,2]" SCALES ")",
        "y = MatMulPacked<type = 2, shape = [4,5], width = 5, axis = 1, block = 1, scale_shape = [1,5], "
            "zero_shape = [1,5], left = 1>(float[5,3] x, uint8[20]" BYTES20 ", float[5]{0.1,0.2,0.3,-0.4,0.5}, "
            "uint8[5]{100,120,130,0,255})",
        "y = MatMulPacked<type = 3, shape = [4,5], width = 5, axis = 0, block = 1, scale_shape = [4,1], left = 1, "
            "trans = 1>(float[2,1,4,3] x, uint8[20]" BYTES20 ", float[4]{0.1,0.2,0.3,-0.4})",
        "y = MatMulPacked<type = 21, shape = [2,4,5], width = 5, axis = 2, block = 2, scale_shape = [2,4,3], "
            "zero_shape = [1,1,1], zero_type = 21, trans = 1>(float[3,2,6,5] x, uint8[20]" BYTES20 ", float[2,4,3]"
            "{0.1,0.2,0.3,-0.4,0.5,0.15,0.25,0.35,-0.1,0.05,0.1,0.2,0.3,-0.4,0.5,0.15,0.25,0.35,-0.1,0.05,1,1,1,1}, "
            "uint8[1]{7})",
        "y = MatMulPacked<type = 16, shape = [3,2], width = 2, axis = 1, block = 2, scale_shape = [1,1], trans = 1>("
            "float[2,2] x, uint8[12]{0,63,128,191,32,64,205,60,16,192,255,62}, float[1]{1})", NULL},
    .doc = "x op(W) or, with left = 1, op(W) x of a quantized constant W = (w - zero) scale, a tile of it at a time"};
/* clang-format on */
