/* SPDX-License-Identifier: Apache-2.0
 * Convolution between conv.c (operators), conv_cpu.c (kernels) and conv_gpu.c (the device). */
#ifndef INV_OPS_CONV_CONV_H
#define INV_OPS_CONV_CONV_H

#include "core/graph/op.h"
#include "ops/base/window.h"
#include "ops/conv/conv_gpu.h"

size_t inv_conv_workspace(const inv_conv *c, inv_dtype t);
size_t inv_conv_grad_x_workspace(const inv_conv *c, inv_dtype t);
size_t inv_conv_grad_w_workspace(const inv_conv *c, inv_dtype t);

/* `ws`, `ws_nbytes`: scratch memory of the size that the workspace function gave. */
void inv_conv_f32(const inv_conv *c, const float *x, const float *f, const float *bias, float *y, void *ws,
                  size_t ws_nbytes);
void inv_conv_f64(const inv_conv *c, const double *x, const double *f, const double *bias, double *y, void *ws,
                  size_t ws_nbytes);
void inv_conv_grad_x_f32(const inv_conv *c, const float *gy, const float *f, float *gx, void *ws, size_t ws_nbytes);
void inv_conv_grad_x_f64(const inv_conv *c, const double *gy, const double *f, double *gx, void *ws, size_t ws_nbytes);
void inv_conv_grad_w_f32(const inv_conv *c, const float *x, const float *gy, float *gf, void *ws, size_t ws_nbytes);
void inv_conv_grad_w_f64(const inv_conv *c, const double *x, const double *gy, double *gf, void *ws, size_t ws_nbytes);

/* Channels last (attribute `channels_last` of the operators): x, y and their gradients are [N,spatial...,C], the filter
 * is as ever. float32, by oneDNN (conv_dnnl.c), by tiles (winograd.c); the depthwise filter's gradient by a loop
 * (conv_channels_last.c). */
typedef struct inv_conv_data {
    void *x, *f, *bias, *y; /* or their gradients; the part says which one is written */
} inv_conv_data;
size_t inv_conv_last_workspace(const inv_conv *c, inv_conv_part part, bool bias, bool quick);
inv_status inv_conv_last(const inv_conv *c, inv_conv_part part, const inv_conv_data *d, void *ws, size_t ws_nbytes);
bool inv_dnnl_serves(const inv_conv *c, inv_conv_part part, inv_dtype t); /* false in a build without oneDNN */
size_t inv_dnnl_workspace(const inv_conv *c, inv_conv_part part, bool bias);
inv_status inv_dnnl_conv(const inv_conv *c, inv_conv_part part, const inv_conv_data *d, void *ws);

/* The same on a device. `onto`: what becomes of what is in the result's place; where inv_conv_gpu_adds says no, it is
 * overwritten. */
size_t inv_conv_gpu_workspace(const inv_conv *c, inv_conv_part part, inv_dtype t, inv_precision precision);
inv_status inv_conv_gpu(const inv_call *call, const inv_conv *c, inv_conv_part part, inv_onto onto);
bool inv_conv_gpu_adds(const inv_conv *c);
/* Whether the channels may come last, and the elements that the library then does not move to that order and back. */
bool inv_conv_gpu_turns(const inv_conv *c, inv_conv_part part, inv_dtype t, inv_precision precision, double *gain);

#endif
