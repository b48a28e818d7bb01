/* SPDX-License-Identifier: Apache-2.0
 * How a matrix product of two tensors runs: which matrices of theirs are multiplied (matmul.c). */
#ifndef INV_OPS_LINEAR_PRODUCT_H
#define INV_OPS_LINEAR_PRODUCT_H

#include "ops/base/util.h"

/* `batch` products, operand offsets by the loop over batch axes. */
typedef struct inv_product {
    bool ta, tb;
    int64_t m, n, k, lda, ldb, batch;
    inv_shape out;
    inv_shape lead[3]; /* batch axes of a, b, y */
} inv_product;

/* The product op(a) op(b) of shapes a and b. NULL, or what is wrong. */
const char *inv_product_of(bool ta, bool tb, const inv_shape *a, const inv_shape *b, inv_product *p);
/* The reason that it gave, said of the node. */
inv_status inv_product_fail(const inv_graph *g, const inv_node *n, const inv_shape *a, const inv_shape *b,
                            const inv_product *p, const char *why);
/* Elements between matrices that are neighbours along the batch axes of the result, per operand and result. */
void inv_product_strides(const inv_shape *a, const inv_shape *b, const inv_product *p, int64_t stride[3][INV_MAX_RANK]);
/* Where the matrices of product i of the batch begin in a, b and y. */
void inv_product_offsets(const inv_product *p, const int64_t (*stride)[INV_MAX_RANK], int64_t i, int64_t offset[3]);

/* The gradient of w in op(x) op(w), before it is summed over batch axes that w does not have; rank: of w. Emits nodes.
 * INV_NONE: g->failed. */
inv_id inv_product_weight_grad(inv_graph *g, inv_id x, inv_id gy, int rank, bool ta, bool tb);

#endif
