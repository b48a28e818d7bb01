/* SPDX-License-Identifier: Apache-2.0
 * Convolution with few multiplications (winograd.c), for the shapes that it serves. Arguments as in conv.h. */
#ifndef INV_OPS_CONV_WINOGRAD_H
#define INV_OPS_CONV_WINOGRAD_H

#include "ops/conv/conv.h"

bool inv_winograd_serves(const inv_conv *c, inv_dtype t);
/* Bytes: the least, or those with which it is the quickest. The bits are the same for any between. */
size_t inv_winograd_workspace(const inv_conv *c, bool grad_w, bool quick);
void inv_winograd(const inv_conv *c, const float *x, const float *f, const float *bias, float *y, void *ws,
                  size_t ws_nbytes);
void inv_winograd_grad_x(const inv_conv *c, const float *gy, const float *f, float *gx, void *ws, size_t ws_nbytes);
void inv_winograd_grad_w(const inv_conv *c, const float *x, const float *gy, float *gf, void *ws, size_t ws_nbytes);

#endif
