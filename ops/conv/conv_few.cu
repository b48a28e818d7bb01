/* SPDX-License-Identifier: Apache-2.0
 * Convolution of few channels by 3x3 filters with stride 1, and its gradients. Libraries have tiles of 32 channels and
 * more, of which such a convolution leaves most empty. Every result is summed by one thread, or by the threads of a
 * block and then by blocks, in a fixed order. */
#include "ops/conv/conv_gpu.h"
#include "ops/gpu/device.cuh"

enum { TAPS = 9, STRIP = 4, PAIRS = 128 };

/* The part of the filter that a block needs: [ins][tap][OUTS], zeros behind the last channel. For the gradient by x it
 * is turned around, ins being the channels of y. */
template <class T, int OUTS> INV_DEVICE void few_taps(T *taps, const T *filter, bool grad, int ins, int outs, int first)
{
    for (int i = (int)threadIdx.x; i < ins * TAPS * OUTS; i += (int)blockDim.x) {
        const int o = first + i % OUTS, tap = i / OUTS % TAPS, from = i / (OUTS * TAPS);
        const int at = grad ? (from * outs + o) * TAPS + TAPS - 1 - tap : (o * ins + from) * TAPS + tap;
        taps[i] = o < outs ? filter[at] : (T)0;
    }
}

/* sum[o][p] += f[o] v[kx + p] for the three kx of a row of the filter. */
template <class T, int OUTS> INV_DEVICE void few_row(const inv_four<T> *taps, const T v[STRIP + 2], T sum[OUTS][STRIP])
{
    INV_UNROLL
    for (int kx = 0; kx < 3; kx++) {
        INV_UNROLL
        for (int o = 0; o < OUTS; o += 4) {
            const inv_four<T> f = taps[kx * (OUTS / 4) + o / 4];
            INV_UNROLL
            for (int q = 0; q < 4; q++) {
                INV_UNROLL
                for (int p = 0; p < STRIP; p++) sum[o + q][p] = inv_fma(f.v[q], v[kx + p], sum[o + q][p]);
            }
        }
    }
}

/* By a thread: a strip of four neighbours of up to OUTS channels. The gradient by x is the convolution of gy with the
 * filter turned around. in: [batch][ins][height][width]. */
template <class T, int OUTS>
INV_KERNEL INV_BOUNDS(128, sizeof(T) == 4 ? 3 : 2)
    few(inv_conv c, bool grad, inv_onto onto, const T *in, const T *filter, T *out)
{
    enum { MOST = INV_FEW_CHANNELS * 4 / (int)sizeof(T) };
    INV_SHARED(inv_four<T>, taps, [MOST * TAPS * OUTS / 4]);
    const inv_window *w = &c.w;
    const int64_t ih = grad ? w->out[1] : w->in[1], iw = grad ? w->out[2] : w->in[2];
    const int64_t oh = grad ? w->in[1] : w->out[1], ow = grad ? w->in[2] : w->out[2];
    const int pad_y = (int)(grad ? 2 - w->pad[1] : w->pad[1]), pad_x = (int)(grad ? 2 - w->pad[2] : w->pad[2]);
    const int ins = (int)(grad ? c.mg : c.cg), outs = (int)(grad ? c.cg : c.mg), tiles = (outs + OUTS - 1) / OUTS;
    const int first = (int)(blockIdx.x % (unsigned)tiles) * OUTS;
    few_taps<T, OUTS>((T *)taps, filter, grad, ins, outs, first);
    __syncthreads();
    const int64_t strips = (ow + STRIP - 1) / STRIP, block = blockIdx.x / (unsigned)tiles;
    const int64_t at = block * blockDim.x + threadIdx.x, row = at / strips, image = row / oh, y = row - image * oh;
    const int64_t x = (at - row * strips) * STRIP;
    if (image >= c.batch) return;
    T sum[OUTS][STRIP];
    INV_UNROLL
    for (int o = 0; o < OUTS; o++) {
        INV_UNROLL
        for (int p = 0; p < STRIP; p++) sum[o][p] = 0;
    }
    INV_ROLLED
    for (int i = 0; i < ins; i++) {
        INV_ROLLED
        for (int ky = 0; ky < 3; ky++) {
            const int64_t yy = y - pad_y + ky;
            T v[STRIP + 2];
            if (yy < 0 || yy >= ih) continue;
            const T *from = in + ((image * ins + i) * ih + yy) * iw;
            INV_UNROLL
            for (int u = 0; u < STRIP + 2; u++) {
                const int64_t xx = x - pad_x + u;
                v[u] = xx >= 0 && xx < iw ? from[xx] : (T)0;
            }
            few_row<T, OUTS>(taps + (i * TAPS + ky * 3) * (OUTS / 4), v, sum);
        }
    }
    INV_UNROLL
    for (int o = 0; o < OUTS; o++) {
        T *to = out + ((image * outs + first + o) * oh + y) * ow + x;
        INV_UNROLL
        for (int p = 0; p < STRIP; p++) {
            if (first + o < outs && x + p < ow) inv_put_onto(onto, to + p, sum[o][p]);
        }
    }
}

/* A tile of the filter's gradient: channels of x from c0 and of y from m0 on; and a piece of an image's row. */
typedef struct inv_few_piece {
    int c0, m0;
    int64_t image, y, x;
} inv_few_piece;

/* The gradient and what it is multiplied by, zeros around it: gs[channel][LONG + 1], xs[channel][3][LONG + 3]. */
template <class T, int LONG>
INV_DEVICE void few_load(const inv_conv &c, const inv_few_piece &at, const T *x, const T *gy, T *xs, T *gs)
{
    enum { N = INV_FEW_TILE, XS = 3 * (LONG + 3), GS = LONG + 1 };
    const inv_window *w = &c.w;
    for (int i = (int)threadIdx.x % PAIRS; i < N * GS; i += PAIRS) {
        const int64_t m = at.m0 + i / GS, p = i % GS;
        const bool in = p < LONG && m < c.mg && at.x + p < w->out[2];
        gs[i] = in ? gy[((at.image * c.mg + m) * w->out[1] + at.y) * w->out[2] + at.x + p] : (T)0;
    }
    for (int i = (int)threadIdx.x % PAIRS; i < N * XS; i += PAIRS) {
        const int64_t k = at.c0 + i / XS, yy = at.y - w->pad[1] + i % XS / (LONG + 3);
        const int64_t xx = at.x - w->pad[2] + i % XS % (LONG + 3);
        const bool in = k < c.cg && yy >= 0 && yy < w->in[1] && xx >= 0 && xx < w->in[2];
        xs[i] = in ? x[((at.image * c.cg + k) * w->in[1] + yy) * w->in[2] + xx] : (T)0;
    }
}

/* sum[i][tap] over LONG places of the row, i being one of two channels of y. */
template <class T, int LONG> INV_DEVICE void few_along(const T *xc, const T *g, T sum[2][TAPS])
{
    T v[3][3];
    INV_UNROLL
    for (int ky = 0; ky < 3; ky++) {
        v[ky][1] = xc[ky * (LONG + 3)];
        v[ky][2] = xc[ky * (LONG + 3) + 1];
    }
    for (int p = 0; p < LONG; p++) {
        const T a = g[p], b = g[LONG + 1 + p];
        INV_UNROLL
        for (int ky = 0; ky < 3; ky++) {
            v[ky][0] = v[ky][1];
            v[ky][1] = v[ky][2];
            v[ky][2] = xc[ky * (LONG + 3) + p + 2];
            INV_UNROLL
            for (int kx = 0; kx < 3; kx++) {
                sum[0][ky * 3 + kx] = inv_fma(a, v[ky][kx], sum[0][ky * 3 + kx]);
                sum[1][ky * 3 + kx] = inv_fma(b, v[ky][kx], sum[1][ky * 3 + kx]);
            }
        }
    }
}

/* Pieces of rows, a group of threads each: a thread has the filters of two channels of y and one of x, and goes along
 * the piece with the nine numbers of x around each place. Then the groups' sums are joined. */
template <class T, int LONG>
INV_KERNEL INV_BOUNDS(PAIRS *(sizeof(T) == 4 ? 3 : 2), 2)
    few_filter(inv_conv c, int64_t parts, const T *x, const T *gy, T *out)
{
    enum { N = INV_FEW_TILE, GROUPS = sizeof(T) == 4 ? 3 : 2, XS = 3 * (LONG + 3), GS = LONG + 1, EACH = 2 * TAPS };
    INV_SHARED(T, room, [GROUPS * (N * (XS + GS) > PAIRS * EACH ? N * (XS + GS) : PAIRS * EACH)]);
    const int cg = (int)c.cg, mg = (int)c.mg, across = (cg + N - 1) / N, tiles = across * ((mg + N - 1) / N);
    const int tile = (int)(blockIdx.x % (unsigned)tiles);
    const int64_t part = blockIdx.x / (unsigned)tiles, oh = c.w.out[1];
    const int group = (int)threadIdx.x / PAIRS, t = (int)threadIdx.x % PAIRS, channel = t % N, pair = t / N * 2;
    const int64_t chunks = (c.w.out[2] + LONG - 1) / LONG, all = c.batch * oh * chunks;
    T *xs = room + group * N * (XS + GS), *gs = xs + N * XS, sum[2][TAPS];
    inv_few_piece at = {tile % across * N, tile / across * N, 0, 0, 0};
    INV_UNROLL
    for (int k = 0; k < TAPS; k++) sum[0][k] = sum[1][k] = 0;
    for (int64_t begin = part * GROUPS; begin < all; begin += parts * GROUPS) {
        const int64_t item = begin + group, row = item / chunks;
        at.image = row / oh;
        at.y = row - at.image * oh;
        at.x = (item - row * chunks) * LONG;
        if (item < all) few_load<T, LONG>(c, at, x, gy, xs, gs);
        __syncthreads();
        if (item < all) few_along<T, LONG>(xs + channel * XS, gs + pair * GS, sum);
        __syncthreads();
    }
    INV_UNROLL
    for (int k = 0; k < EACH; k++) room[(group * EACH + k) * PAIRS + t] = sum[k / TAPS][k % TAPS];
    __syncthreads();
    if (group > 0 || at.c0 + channel >= cg) return;
    for (int k = 0; k < EACH; k++) {
        const int64_t m = at.m0 + pair + k / TAPS;
        T joined = 0;
        for (int g = 0; g < GROUPS; g++) joined += room[(g * EACH + k) * PAIRS + t];
        if (m < mg) out[((part * mg + m) * cg + at.c0 + channel) * TAPS + k % TAPS] = joined;
    }
}

template <class T>
static void start_few(const inv_gpu *gpu, bool grad, const inv_conv *c, inv_onto onto, const T *in, const T *f, T *out)
{
    const int64_t outs = grad ? c->cg : c->mg, oh = grad ? c->w.in[1] : c->w.out[1],
                  ow = grad ? c->w.in[2] : c->w.out[2];
    const int64_t tiles = (outs + 15) / 16, each = (outs + tiles - 1) / tiles;
    const int64_t blocks = (c->batch * oh * ((ow + STRIP - 1) / STRIP) + 127) / 128 * tiles;
    if (each > 12) inv_start_sync(gpu, few<T, 16>, blocks, 128, *c, grad, onto, in, f, out);
    else if (each > 8) inv_start_sync(gpu, few<T, 12>, blocks, 128, *c, grad, onto, in, f, out);
    else if (each > 4) inv_start_sync(gpu, few<T, 8>, blocks, 128, *c, grad, onto, in, f, out);
    else inv_start_sync(gpu, few<T, 4>, blocks, 128, *c, grad, onto, in, f, out);
}

template <class T>
static void start_few_filter(const inv_gpu *gpu, const inv_conv *c, int64_t parts, const T *x, const T *gy, T *out)
{
    const int64_t tiles = (c->cg + INV_FEW_TILE - 1) / INV_FEW_TILE * ((c->mg + INV_FEW_TILE - 1) / INV_FEW_TILE);
    const int threads = PAIRS * (sizeof(T) == 4 ? 3 : 2);
    if (c->w.out[2] > 16) inv_start_sync(gpu, few_filter<T, 32>, tiles * parts, threads, *c, parts, x, gy, out);
    else inv_start_sync(gpu, few_filter<T, 16>, tiles * parts, threads, *c, parts, x, gy, out);
}

extern "C" void INV_GPU_NAME(few_channels)(const inv_gpu *gpu, inv_conv_part part, const inv_conv *c, inv_dtype t,
                                           inv_onto onto, const void *in, const void *filter, void *out)
{
    INV_REAL_AS(t, T, start_few(gpu, part == INV_CONV_GRAD_X, c, onto, (const T *)in, (const T *)filter, (T *)out));
}

extern "C" void INV_GPU_NAME(few_channels_filter)(const inv_gpu *gpu, const inv_conv *c, inv_dtype t, int64_t parts,
                                                  const void *x, const void *gy, void *out)
{
    INV_REAL_AS(t, T, start_few_filter(gpu, c, parts, (const T *)x, (const T *)gy, (T *)out));
}
