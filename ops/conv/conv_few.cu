/* SPDX-License-Identifier: Apache-2.0
 * Convolution of few channels by 3x3 filters with stride 1, and its gradients. Libraries have tiles of 32 channels and
 * more, of which such a convolution leaves most empty. Every result is summed by one thread, or by the threads of a
 * block and then by blocks, in a fixed order. */
#include "ops/conv/conv_gpu.h"
#include "ops/gpu/device.cuh"

enum { TAPS = 9, STRIP = 4 };

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

/* Of the filter's gradient: the tile of cs channels of x from c0 and ms of y from m0 on; and a piece of an image, LONG
 * columns of ROWS rows of y. */
typedef struct inv_few_piece {
    int c0, m0, cs, ms, y, x;
    int64_t image;
} inv_few_piece;

template <class T> struct alignas(2 * sizeof(T)) inv_few_pair {
    T v[2];
};

/* How a piece lies in shared memory: xs[channel][ROWS + 2][COLS], zeros around the image; gs[row][column][channel].
 * XS modulo 32 is even and no multiple of four, so 16 channels are in 16 banks; COLS is odd for the stores. */
template <int LONG> struct inv_few_room {
    enum {
        ROWS = 64 / LONG,
        COLS = LONG + 3,
        XS = (ROWS + 2) * COLS + (LONG == 32 ? 2 : 0),
        LANES = LONG < 16 ? 16 : 32
    };
};

/* By `size` threads, of which this is the t-th: neighbours take neighbouring columns of a channel's rows. */
template <class T, int LONG>
INV_DEVICE void few_load(const inv_conv &c, const inv_few_piece &at, int t, int size, int step, const T *x, const T *gy,
                         T *xs, T *gs)
{
    typedef inv_few_room<LONG> in;
    const int ih = (int)c.w.in[1], iw = (int)c.w.in[2], oh = (int)c.w.out[1], ow = (int)c.w.out[2];
    const int lane = t % in::LANES, y = at.y - (int)c.w.pad[1], left = at.x - (int)c.w.pad[2];
    const T *image = x + (at.image * c.cg + at.c0) * ih * iw, *gradient = gy + (at.image * c.mg + at.m0) * oh * ow;
    for (int k = t / in::LANES; k < at.cs; k += size / in::LANES) {
        INV_ROLLED
        for (int p = lane; p < LONG + 2; p += in::LANES) {
            const bool column = left + p >= 0 && left + p < iw;
            const int from = (k * ih + y) * iw + left + p;
            INV_UNROLL
            for (int r = 0; r < in::ROWS + 2; r++) {
                const T v = column && y + r >= 0 && y + r < ih ? image[from + r * iw] : (T)0;
                xs[k * in::XS + r * in::COLS + p] = v;
            }
        }
    }
    for (int m = t / in::LANES; m < (at.ms + 1) / 2 * 2 && lane < LONG; m += size / in::LANES) {
        const bool column = m < at.ms && at.x + lane < ow;
        const int from = (m * oh + at.y) * ow + at.x + lane;
        INV_UNROLL
        for (int r = 0; r < in::ROWS; r++)
            gs[(r * LONG + lane) * step + m] = column && at.y + r < oh ? gradient[from + r * ow] : (T)0;
    }
}

/* sum[i][tap] over LONG places of a row, i being one of two channels of y. */
template <class T, int LONG> INV_DEVICE void few_along(const T *xc, const T *g, int step, T sum[2][TAPS])
{
    enum { COLS = inv_few_room<LONG>::COLS, AT_ONCE = 8 };
    T v[3][3];
    INV_UNROLL
    for (int ky = 0; ky < 3; ky++) {
        v[ky][1] = xc[ky * COLS];
        v[ky][2] = xc[ky * COLS + 1];
    }
    INV_ROLLED
    for (int begin = 0; begin < LONG; begin += AT_ONCE) {
        INV_UNROLL
        for (int p = begin; p < begin + AT_ONCE; p++) {
            const inv_few_pair<T> y = *(const inv_few_pair<T> *)(g + p * step);
            INV_UNROLL
            for (int ky = 0; ky < 3; ky++) {
                v[ky][0] = v[ky][1];
                v[ky][1] = v[ky][2];
                v[ky][2] = xc[ky * COLS + p + 2];
                INV_UNROLL
                for (int kx = 0; kx < 3; kx++) {
                    sum[0][ky * 3 + kx] = inv_fma(y.v[0], v[ky][kx], sum[0][ky * 3 + kx]);
                    sum[1][ky * 3 + kx] = inv_fma(y.v[1], v[ky][kx], sum[1][ky * 3 + kx]);
                }
            }
        }
    }
}

/* The groups' sums of a tile, joined in their order: room[group][2][tap][size]. */
template <class T>
INV_DEVICE void few_join(const inv_conv &c, const inv_few_piece &at, int groups, int size, const T *room, T *out)
{
    const int t = (int)threadIdx.x, channel = t % at.cs, pair = t / at.cs * 2;
    if (t >= at.cs * ((at.ms + 1) / 2)) return;
    for (int k = 0; k < 2 * TAPS; k++) {
        const int m = pair + k / TAPS;
        T joined = 0;
        for (int g = 0; g < groups; g++) joined += room[(g * 2 * TAPS + k) * size + t];
        if (m < at.ms) out[((at.m0 + m) * c.cg + at.c0 + channel) * TAPS + k % TAPS] = joined;
    }
}

/* Pieces of images, a group of threads each: a thread has the filters of two channels of y and one of x, and goes along
 * the rows with the nine numbers of x around each place. A block has as many groups as have a thread and room. */
template <class T, int LONG>
INV_KERNEL INV_BOUNDS(sizeof(T) == 4 ? 384 : 256, 2)
    few_filter(inv_conv c, int64_t parts, const T *x, const T *gy, T *out)
{
    enum { N = INV_FEW_TILE, ROOM = 48 * 1024 / (int)sizeof(T), ROWS = inv_few_room<LONG>::ROWS };
    INV_SHARED(inv_few_pair<T>, pairs_of_room, [ROOM / 2]);
    T *room = (T *)pairs_of_room, sum[2][TAPS];
    const int cg = (int)c.cg, mg = (int)c.mg, across = (cg + N - 1) / N, tiles = across * ((mg + N - 1) / N);
    const int tile = (int)(blockIdx.x % (unsigned)tiles), c0 = tile % across * N, m0 = tile / across * N;
    inv_few_piece at = {c0, m0, cg - c0 < N ? cg - c0 : N, mg - m0 < N ? mg - m0 : N, 0, 0, 0};
    const int pairs = (at.ms + 1) / 2, step = (pairs | 1) * 2, used = at.cs * pairs, size = (used + 31) / 32 * 32;
    const int each = at.cs * inv_few_room<LONG>::XS + ROWS * LONG * step;
    const int most = (int)blockDim.x / size, groups = most < ROOM / each ? most : ROOM / each;
    const int group = (int)threadIdx.x / size, t = (int)threadIdx.x % size;
    const unsigned chunks = (unsigned)((c.w.out[2] + LONG - 1) / LONG),
                   bands = (unsigned)((c.w.out[1] + ROWS - 1) / ROWS);
    const unsigned all = (unsigned)c.batch * bands * chunks, part = blockIdx.x / (unsigned)tiles;
    T *xs = room + group * each, *gs = xs + at.cs * inv_few_room<LONG>::XS;
    const T *xc = xs + t % at.cs * inv_few_room<LONG>::XS, *g = gs + t / at.cs * 2;
    INV_UNROLL
    for (int k = 0; k < TAPS; k++) sum[0][k] = sum[1][k] = 0;
    for (unsigned begin = part * (unsigned)groups; begin < all; begin += (unsigned)parts * (unsigned)groups) {
        const unsigned item = begin + (unsigned)group, line = item / chunks, image = line / bands;
        const bool has = group < groups && item < all;
        at.image = image;
        at.y = (int)(line - image * bands) * ROWS;
        at.x = (int)(item - line * chunks) * LONG;
        if (has) few_load<T, LONG>(c, at, t, size, step, x, gy, xs, gs);
        __syncthreads();
        const int left = (int)c.w.out[1] - at.y, rows = has && t < used ? (left < ROWS ? left : ROWS) : 0;
        for (int r = 0; r < rows; r++)
            few_along<T, LONG>(xc + r * inv_few_room<LONG>::COLS, g + r * LONG * step, step, sum);
        __syncthreads();
    }
    INV_UNROLL
    for (int k = 0; k < 2 * TAPS; k++) {
        if (group < groups) room[(group * 2 * TAPS + k) * size + t] = sum[k / TAPS][k % TAPS];
    }
    __syncthreads();
    few_join<T>(c, at, groups, size, room, out + (int64_t)part * mg * cg * TAPS);
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
    const int threads = sizeof(T) == 4 ? 384 : 256;
    if (c->w.out[2] > 16) inv_start_sync(gpu, few_filter<T, 32>, tiles * parts, threads, *c, parts, x, gy, out);
    else if (c->w.out[2] > 8) inv_start_sync(gpu, few_filter<T, 16>, tiles * parts, threads, *c, parts, x, gy, out);
    else inv_start_sync(gpu, few_filter<T, 8>, tiles * parts, threads, *c, parts, x, gy, out);
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
