/* SPDX-License-Identifier: Apache-2.0
 * Recurrent cells: what kernels of the host and of the device work on. Products with the recurrent weights are matrix
 * products outside of them; a cell does the rest of a step, element by element. */
#ifndef INV_OPS_SEQUENCE_RECURRENT_GPU_H
#define INV_OPS_SEQUENCE_RECURRENT_GPU_H

#include "ops/gpu/gpu.h"

/* GRU: the reset gate works on the state; GRU_LINEAR: on the product of state and weights. */
enum { INV_CELL_RNN, INV_CELL_GRU, INV_CELL_GRU_LINEAR, INV_CELL_LSTM };

enum {
    INV_ACT_SIGMOID,
    INV_ACT_TANH,
    INV_ACT_RELU,
    INV_ACT_LEAKY_RELU,
    INV_ACT_THRESHOLDED_RELU,
    INV_ACT_ELU,
    INV_ACT_HARD_SIGMOID,
    INV_ACT_SOFTSIGN,
    INV_ACT_SOFTPLUS,
    INV_ACT_SCALED_TANH,
    INV_ACT_AFFINE
};

typedef struct inv_recurrent {
    inv_dtype dtype;
    int cell, gates, act[3]; /* f, g, h of ONNX */
    double arg[3][2];        /* alpha and beta of each */
    double clip;             /* of what activations read; 0: none */
    bool reverse, coupled;   /* coupled: the forget gate is what the input gate leaves */
    int64_t steps, batch, hidden;
} inv_recurrent;

enum {
    INV_CELL_STEP,      /* hy, cy, y from x, z, h, c */
    INV_CELL_RESET,     /* GRU: hy = reset gate times h; z becomes the first two gates */
    INV_CELL_GRAD,      /* z: gradients of what gates y have read; dh, dc become what goes past the products */
    INV_CELL_GRAD_RESET /* GRU: the reset gate's part of that, from drh, the gradient of its product with h */
};

/* One step: [batch, hidden], x, y and z [batch, gates * hidden]; p, rb vectors. What a cell does not have is NULL. y
 * may be x, and in backward z. */
typedef struct inv_cell {
    int part;
    int64_t t;
    const int64_t *lens; /* a sample takes part in steps below its length; its state stays as it is in others */
    const void *x, *h, *c, *p, *rb, *gy, *gc, *drh;
    void *y, *z, *hy, *cy, *dh, *dc;
    /* GRU: the reset state, for the weights; GRU_LINEAR: the product that the reset gate works on, to its gradient */
    void *rec;
} inv_cell;

#ifdef __cplusplus
extern "C" {
#endif
INV_LAUNCHER(cell, const inv_recurrent *r, const inv_cell *s);
/* out[j], j < n: sum over rows of a[row * lda + j], times b[row * ldb + j] if b is not NULL; plus out[j] if `add` */
INV_LAUNCHER(column_sums, inv_dtype t, int64_t rows, int64_t n, const void *a, int64_t lda, const void *b, int64_t ldb,
             bool add, void *out);
#ifdef __cplusplus
}
#endif

#endif
