/* SPDX-License-Identifier: Apache-2.0
 * Convolution between conv.c (operators) and conv_cpu.c (kernels). */
#ifndef INV_OPS_CONV_H
#define INV_OPS_CONV_H

#include "core/op.h"
#include "ops/window.h"

typedef struct inv_conv {
    inv_window w;
    int64_t batch, group, cg, mg; /* channels per group of x and of y */
    bool direct;                  /* 1x1, stride 1, no pads: x itself is the column matrix */
    bool depthwise;               /* one channel of x per group: loops without a column matrix */
} inv_conv;

/* From the shapes of x, the filter and the node's attributes. NULL, or what is wrong. */
const char *inv__conv_of(const inv_node *n, const inv_shape *x, const inv_shape *filter, inv_conv *c);

size_t inv__conv_workspace(const inv_conv *c, inv_dtype t);
size_t inv__conv_grad_x_workspace(const inv_conv *c, inv_dtype t);
size_t inv__conv_grad_w_workspace(const inv_conv *c, inv_dtype t);

/* `ws`, `ws_nbytes`: scratch memory of the size that the workspace function gave. */
void inv__conv_f32(const inv_conv *c, const float *x, const float *f, const float *bias, float *y, void *ws,
                   size_t ws_nbytes);
void inv__conv_f64(const inv_conv *c, const double *x, const double *f, const double *bias, double *y, void *ws,
                   size_t ws_nbytes);
void inv__conv_grad_x_f32(const inv_conv *c, const float *gy, const float *f, float *gx, void *ws, size_t ws_nbytes);
void inv__conv_grad_x_f64(const inv_conv *c, const double *gy, const double *f, double *gx, void *ws, size_t ws_nbytes);
void inv__conv_grad_w_f32(const inv_conv *c, const float *x, const float *gy, float *gf, void *ws, size_t ws_nbytes);
void inv__conv_grad_w_f64(const inv_conv *c, const double *x, const double *gy, double *gf, void *ws, size_t ws_nbytes);

#endif
