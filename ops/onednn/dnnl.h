/* SPDX-License-Identifier: Apache-2.0
 * Operators besides convolution that oneDNN serves, in float32 (dnnl.c; convolution: conv.h). */
#ifndef INV_OPS_ONEDNN_DNNL_H
#define INV_OPS_ONEDNN_DNNL_H

#include "ops/base/window.h"

/* With the operands, inputs first, of inv_dnnl_run. Images have their channels last. */
typedef enum inv_dnnl_kind {
    INV_DNNL_MAX_POOL_GRAD,     /* gy tap gx */
    INV_DNNL_AVERAGE_POOL,      /* x y */
    INV_DNNL_AVERAGE_POOL_GRAD, /* gy gx */
    INV_DNNL_LAYER_NORM,        /* x scale bias y; bias may be NULL */
    INV_DNNL_LAYER_NORM_GRAD    /* x gy scale mean var dx dscale dbias; mean, var: one per row */
} inv_dnnl_kind;

enum { INV_DNNL_OPERANDS = 8 };

/* Compared byte by byte: begin with inv_dnnl_op_of. */
typedef struct inv_dnnl_op {
    int kind, threads;
    int padded; /* averages: elements of the pad count */
    int bias;
    float eps;
    int64_t rows, lanes; /* pooling: images, channels; else the matrix that is normalised by rows */
    inv_window w;
} inv_dnnl_op;

inv_dnnl_op inv_dnnl_op_of(inv_dnnl_kind kind, int64_t rows, int64_t lanes);
bool inv_dnnl_has(const inv_dnnl_op *o); /* false in a build without oneDNN */
size_t inv_dnnl_op_workspace(const inv_dnnl_op *o);
inv_status inv_dnnl_run(const inv_dnnl_op *o, void *const *data, void *ws);
const char *inv_dnnl_version(void); /* library and version; static */

#endif
