/* SPDX-License-Identifier: Apache-2.0
 * Pooling on the device: `planes` images of w->invol elements to w->outvol, float32 or float64. Channels last, an
 * element is a row of `lanes` numbers, else one. */
#ifndef INV_OPS_IMAGE_POOL_GPU_H
#define INV_OPS_IMAGE_POOL_GPU_H

#include "ops/base/window.h"
#include "ops/gpu/device_code.h"
#include "ops/gpu/gpu.h"

/* Which element of its window a maximum is: in one byte if windows are that small, else int32. */
#define INV_POOL_BYTE 255 /* elements of a window; as a number: none */
INV_HD bool inv_pool_byte(const inv_window *w) { return w->kvol <= INV_POOL_BYTE; }

/* Whether 32 bits hold the positions on every axis, with pads, and in a row of elements. */
static inline bool inv_pool_fits(const inv_window *w, int64_t lanes)
{
    const int64_t most = INT32_MAX / 4;
    for (int i = 0; i < 3; i++) {
        if (w->in[i] > most || w->out[i] > most || w->stride[i] > most || w->dil[i] > most || w->k[i] > most ||
            w->pad[i] > most || w->pad_end[i] > most || w->k[i] * w->dil[i] > most || w->out[i] * w->stride[i] > most)
            return false;
    }
    return lanes <= most && w->in[2] * lanes <= most && w->out[2] * lanes <= most;
}

/* -1: none, the window lies in the pad. */
INV_HD int64_t inv_pool_tap(const inv_window *w, const void *taps, int64_t i)
{
    if (!inv_pool_byte(w)) return ((const int32_t *)taps)[i];
    const int64_t tap = ((const uint8_t *)taps)[i];
    return tap == INV_POOL_BYTE ? -1 : tap;
}

/* The place in its plane of kernel element `tap` of window p, row-major, or with the first axis running fastest; -1 if
 * it is none. */
INV_HD int64_t inv_pool_position(const inv_window *w, int64_t p, int64_t tap, bool first_fastest)
{
    const int64_t row = p / w->out[2], tap_row = tap / w->k[2];
    const int64_t o[3] = {row / w->out[1], row % w->out[1], p % w->out[2]};
    const int64_t k[3] = {tap_row / w->k[1], tap_row % w->k[1], tap % w->k[2]};
    int64_t at[3];
    if (tap < 0 || tap >= w->kvol) return -1;
    for (int i = 0; i < 3; i++) {
        at[i] = o[i] * w->stride[i] - w->pad[i] + k[i] * w->dil[i];
        if (at[i] < 0 || at[i] >= w->in[i]) return -1;
    }
    if (first_fastest) return (at[2] * w->in[1] + at[1]) * w->in[0] + at[0];
    return (at[0] * w->in[1] + at[1]) * w->in[2] + at[2];
}

/* What a window's sum is divided by: its elements inside the input, or inside the padded input; or it stays a sum. */
typedef enum inv_pool_divide { INV_POOL_INSIDE, INV_POOL_PADDED, INV_POOL_SUM } inv_pool_divide;

#ifdef __cplusplus
extern "C" {
#endif
/* taps may be NULL. */
INV_LAUNCHER(max_pool, inv_dtype t, const inv_window *w, int64_t planes, int64_t lanes, const void *x, void *y,
             void *taps);
INV_LAUNCHER(max_pool_grad, inv_dtype t, const inv_window *w, int64_t planes, int64_t lanes, const void *taps,
             const void *gy, void *gx);
/* Elements of the whole input by number. */
INV_LAUNCHER(pool_indices, const inv_window *w, int64_t planes, bool first_fastest, const void *taps, int64_t *index);
INV_LAUNCHER(average_pool, inv_dtype t, const inv_window *w, int64_t planes, int64_t lanes, inv_pool_divide by,
             const void *x, void *y);
INV_LAUNCHER(average_pool_grad, inv_dtype t, const inv_window *w, int64_t planes, int64_t lanes, inv_pool_divide by,
             const void *gy, void *gx);
#ifdef __cplusplus
}
#endif

#endif
