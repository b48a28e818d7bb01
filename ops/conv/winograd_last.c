/* SPDX-License-Identifier: Apache-2.0
 * Tiles of winograd.c with channels last: [point][tile][channel], of each tile whole vectors.
 *
 * Scratch memory holds the filter, transformed, and some tiles at a time; for the filter's gradient sums for each pair
 * of channels, and tiles. Where there is little of it the channels are cut into blocks, and tiles are made anew for
 * each; and threads work on the same tiles, where otherwise each has some of its own. Each number comes of the same
 * chain of operations in any case: a product's element is one chain over the channels whatever matrix it is in, and a
 * gradient is summed up CHUNK tiles at a time. */
#include "ops/conv/winograd_tiles.h"

#include "ops/linear/gemm.h"

#define BLOCK 32 /* channels of y, at least, that are computed at a time */
#define TILES 24 /* likewise */
#define GRAD_BLOCK 64
#define GRAD_BAND (512 * 1024) /* floats of tiles at a time, for many threads, which wait for each other then */
#define CHUNK 64               /* tiles of a product for the filter's gradient */

/* How much is computed at a time. */
typedef struct cut {
    int64_t in, out, tiles; /* channels and tiles of a block; in: of the filter's gradient */
    int lanes;              /* threads */
    bool apart;             /* each has tiles of its own */
} cut;

/* Half of the channels, whole panels of columns. */
static int64_t half_of(int64_t channels)
{
    return (channels / 2 + INV_TILE_COLUMNS - 1) / INV_TILE_COLUMNS * INV_TILE_COLUMNS;
}

/* --- transforms --- */

/* The `size` by `size` pixels from (y, x) on of an image; where there is none, `none`. */
static void pixels(const float *image, int64_t h, int64_t w, int64_t channels, int64_t y, int64_t x, int size,
                   const float *none, const float **at)
{
    for (int64_t i = y; i < y + size; i++)
        for (int64_t j = x; j < x + size; j++)
            *at++ = i < 0 || i >= h || j < 0 || j >= w ? none : image + (i * w + j) * channels;
}

/* B' d B */
INV_SIMD static void take_tile(const float *const d[16], int64_t channels, int64_t step, float *v)
{
    for (int64_t c = 0; c < channels; c += INV_TILE_LANES) {
        inv_floats t[4][4];
        for (int j = 0; j < 4; j++) {
            const inv_floats d0 = INV_FROM(d[j] + c), d1 = INV_FROM(d[4 + j] + c), d2 = INV_FROM(d[8 + j] + c),
                             d3 = INV_FROM(d[12 + j] + c);
            t[0][j] = d0 - d2;
            t[1][j] = d1 + d2;
            t[2][j] = d2 - d1;
            t[3][j] = d1 - d3;
        }
        for (int k = 0; k < 4; k++) {
            float *at = v + 4 * k * step + c;
            INV_AT(at) = t[k][0] - t[k][2];
            INV_AT(at + step) = t[k][1] + t[k][2];
            INV_AT(at + 2 * step) = t[k][2] - t[k][1];
            INV_AT(at + 3 * step) = t[k][1] - t[k][3];
        }
    }
}

/* A t A' */
INV_SIMD static void spread_tile(const float *const g[4], int64_t channels, int64_t step, float *z)
{
    for (int64_t c = 0; c < channels; c += INV_TILE_LANES) {
        const inv_floats a0 = INV_FROM(g[0] + c), a1 = INV_FROM(g[1] + c), b0 = INV_FROM(g[2] + c),
                         b1 = INV_FROM(g[3] + c);
        const inv_floats t[4][2] = {{a0, a1}, {a0 + b0, a1 + b1}, {a0 - b0, a1 - b1}, {-b0, -b1}};
        for (int k = 0; k < 4; k++) {
            float *at = z + 4 * k * step + c;
            INV_AT(at) = t[k][0];
            INV_AT(at + step) = t[k][0] + t[k][1];
            INV_AT(at + 2 * step) = t[k][0] - t[k][1];
            INV_AT(at + 3 * step) = -t[k][1];
        }
    }
}

/* A' m A */
INV_SIMD static void give_tile(const float *m, int64_t step, int64_t channels, const float *bias, float *const y[4])
{
    for (int64_t c = 0; c < channels; c += INV_TILE_LANES) {
        inv_floats s[2][4];
        const inv_floats b = bias ? INV_FROM(bias + c) : (inv_floats){0};
        for (int j = 0; j < 4; j++) {
            const inv_floats m0 = INV_FROM(m + j * step + c), m1 = INV_FROM(m + (4 + j) * step + c);
            const inv_floats m2 = INV_FROM(m + (8 + j) * step + c), m3 = INV_FROM(m + (12 + j) * step + c);
            s[0][j] = (m0 + m1) + m2;
            s[1][j] = (m1 - m2) - m3;
        }
        for (int k = 0; k < 2; k++) {
            INV_AT(y[2 * k] + c) = ((s[k][0] + s[k][1]) + s[k][2]) + b;
            INV_AT(y[2 * k + 1] + c) = ((s[k][1] - s[k][2]) - s[k][3]) + b;
        }
    }
}

/* Of tile t of all: channels [c, c + n) of x, of y's gradient, or of y; `step` floats from one point to the next. */
static void take(const inv_tiles *p, const float *x, int64_t t, int64_t c, int64_t n, int64_t step, float *v)
{
    static const float none[INV_MOST_CHANNELS_LAST];
    const float *d[16];
    const int64_t r = t / p->across, y = inv_top_of(p, r) - p->pad_y, at = 2 * (t % p->across) - p->pad_x;
    pixels(x + inv_image_of(p, r) * p->in * p->h * p->w + c, p->h, p->w, p->in, y, at, 4, none, d);
    take_tile(d, n, step, v);
}

static void spread(const inv_tiles *p, const float *gy, int64_t t, int64_t c, int64_t n, int64_t step, float *z)
{
    static const float none[INV_MOST_CHANNELS_LAST];
    const float *g[4];
    const int64_t r = t / p->across;
    pixels(gy + inv_image_of(p, r) * p->out * p->oh * p->ow + c, p->oh, p->ow, p->out, inv_top_of(p, r),
           2 * (t % p->across), 2, none, g);
    spread_tile(g, n, step, z);
}

static void give(const inv_tiles *p, const float *m, int64_t t, int64_t c, int64_t n, int64_t step, const float *bias,
                 float *y)
{
    float none[INV_MOST_CHANNELS_LAST], *to[4];
    const int64_t r = t / p->across, top = inv_top_of(p, r), left = 2 * (t % p->across);
    float *image = y + inv_image_of(p, r) * p->out * p->oh * p->ow + c;
    for (int k = 0; k < 4; k++) {
        const int64_t oy = top + k / 2, ox = left + k % 2;
        to[k] = oy < p->oh && ox < p->ow ? image + (oy * p->ow + ox) * p->out : none;
    }
    give_tile(m, step, n, bias ? bias + c : NULL, to);
}

/* --- y, and the gradient to x --- */

static int64_t packed_room(const inv_tiles *p, int64_t tiles) { return tiles * p->in + INV_PACKED_MORE; }

/* Floats of scratch memory: the filter's block, tiles of x and y, and what each thread packs. */
static int64_t convolve_room(const inv_tiles *p, const cut *k)
{
    const int64_t each = INV_POINTS * (inv_step_of(p->in, k->tiles) + inv_step_of(k->out, k->tiles));
    return INV_POINTS * p->in * k->out + (k->apart ? k->lanes : 1) * each + k->lanes * packed_room(p, k->tiles);
}

static cut convolve_cut(const inv_tiles *p, int64_t room)
{
    const int64_t all = p->all * p->across;
    cut k = {.out = p->out, .tiles = p->rows * p->across, .apart = true};
    k.lanes = (int)inv_min64(inv_threads(), p->bands);
    if (convolve_room(p, &k) <= room) return k;
    k.apart = false;
    k.lanes = (int)inv_min64(inv_threads(), INV_POINTS);
    k.tiles = inv_min64(TILES, k.tiles);
    while (convolve_room(p, &k) > room) {
        if (k.out > BLOCK) k.out = half_of(k.out);
        else if (room && k.lanes > 1) k.lanes--;
        else break;
    }
    const int64_t more = (room - convolve_room(p, &k)) / (INV_POINTS * (p->in + k.out) + k.lanes * p->in);
    k.tiles = inv_min64(k.tiles + inv_max64(more, 0), all);
    return k;
}

/* Of the pairs of channels from output o on: 16 matrices [in, out]. */
static void take_filter(const inv_tiles *p, const float *f, bool to_x, int64_t o, int64_t n, float *u, int lanes)
{
#pragma omp parallel for schedule(static) num_threads(lanes) if (lanes > 1)
    for (int64_t i = 0; i < p->in; i++) {
        if (to_x) inv_take_filters(n, f + 9 * (i * p->out + o), 9, true, p->in * n, u + i * n);
        else inv_take_filters(n, f + 9 * (o * p->in + i), 9 * p->in, false, p->in * n, u + i * n);
    }
}

/* One point's product. */
static void multiply(const inv_tiles *p, int64_t tiles, int64_t n, const float *v, const float *u, float *packed,
                     float *m)
{
    const inv_gemm_own *own = inv_gemm_own_find(true);
    own->pack(tiles, p->in, v, p->in, packed);
    own->by_packed(tiles, n, p->in, packed, u, n, m, n);
}

/* Each thread some bands. */
static void convolve_apart(const inv_tiles *p, const cut *by, const float *x, const float *u, const float *bias,
                           float *y, float *ws)
{
    const int64_t all = p->all * p->across, each = convolve_room(p, by) - INV_POINTS * p->in * p->out;
#pragma omp parallel for schedule(static) num_threads(by->lanes) if (by->lanes > 1)
    for (int64_t b = 0; b < p->bands; b++) {
        const int64_t t0 = b * by->tiles, tiles = inv_min64(by->tiles, all - t0);
        const int64_t from = inv_step_of(p->in, tiles), to = inv_step_of(p->out, tiles);
        float *v = ws + inv_thread() * (each / by->lanes), *m = v + INV_POINTS * from, *packed = m + INV_POINTS * to;
        for (int64_t i = 0; i < tiles; i++) take(p, x, t0 + i, 0, p->in, from, v + i * p->in);
        for (int64_t k = 0; k < INV_POINTS; k++)
            multiply(p, tiles, p->out, v + k * from, u + k * p->in * p->out, packed, m + k * to);
        for (int64_t i = 0; i < tiles; i++) give(p, m + i * p->out, t0 + i, 0, p->out, to, bias, y);
    }
}

/* Channels [o, o + n) of y: all threads have one band, of which each makes some tiles, and then some points' products.
 */
static void convolve_together(const inv_tiles *p, const cut *by, int64_t o, int64_t n, const float *x, const float *u,
                              const float *bias, float *y, float *v)
{
    const int64_t all = p->all * p->across;
    for (int64_t t0 = 0; t0 < all; t0 += by->tiles) {
        const int64_t tiles = inv_min64(by->tiles, all - t0), from = inv_step_of(p->in, tiles),
                      to = inv_step_of(n, tiles);
        float *m = v + INV_POINTS * from, *packed = m + INV_POINTS * to;
#pragma omp parallel num_threads(by->lanes) if (by->lanes > 1)
        {
#pragma omp for schedule(static)
            for (int64_t i = 0; i < tiles; i++) take(p, x, t0 + i, 0, p->in, from, v + i * p->in);
#pragma omp for schedule(static)
            for (int64_t k = 0; k < INV_POINTS; k++)
                multiply(p, tiles, n, v + k * from, u + k * p->in * n, packed + inv_thread() * packed_room(p, tiles),
                         m + k * to);
#pragma omp for schedule(static)
            for (int64_t i = 0; i < tiles; i++) give(p, m + i * n, t0 + i, o, n, to, bias, y);
        }
    }
}

void inv_tiles_last(const inv_tiles *p, bool to_x, const float *x, const float *f, const float *bias, float *y,
                    float *ws, int64_t room)
{
    const cut k = convolve_cut(p, room);
    for (int64_t o = 0; o < p->out; o += k.out) {
        const int64_t n = inv_min64(k.out, p->out - o);
        float *tiles = ws + INV_POINTS * p->in * n;
        take_filter(p, f, to_x, o, n, ws, k.lanes);
        if (k.apart) convolve_apart(p, &k, x, ws, bias, y, tiles);
        else convolve_together(p, &k, o, n, x, ws, bias, y, tiles);
    }
}

/* --- the gradient to the filter --- */

static int64_t grad_room(const cut *k)
{
    return INV_POINTS * (k->in * k->out + inv_step_of(k->in, k->tiles) + inv_step_of(k->out, k->tiles));
}

static cut grad_cut(const inv_tiles *p, int64_t room)
{
    const int64_t all = p->all * p->across;
    cut k = {.in = p->in, .out = p->out, .tiles = inv_min64(CHUNK, all)};
    k.lanes = (int)inv_min64(inv_threads(), INV_POINTS);
    while (grad_room(&k) > room && (k.in > GRAD_BLOCK || k.out > GRAD_BLOCK)) {
        if (k.out >= k.in) k.out = half_of(k.out);
        else k.in = half_of(k.in);
    }
    const int64_t chunk = CHUNK * INV_POINTS * (k.in + k.out), more = (room - grad_room(&k)) / chunk;
    const int64_t most = inv_min64(GRAD_BAND / chunk, k.lanes / 2); /* a CHUNK fills the caches of two */
    k.tiles = inv_min64(CHUNK * inv_max64(inv_min64(1 + more, most), 1), all);
    return k;
}

/* c = a' b, [tiles, out] by [tiles, in], or added to it. */
static void multiply_turned(int64_t out, int64_t in, int64_t tiles, const float *a, const float *b, bool add, float *c)
{
    const inv_gemm_own *own = inv_gemm_own_find(true);
    if (!own->product(true, false, out, in, tiles, a, out, b, in, add, c, in))
        inv_gemm_f32(true, false, out, in, tiles, a, out, b, in, add, c, in);
}

/* The sums for `in` channels of x from i on and `out` of y from o on. All threads make tiles, and then each some
 * points' products of them. */
static void sum_block(const inv_tiles *p, const cut *by, int64_t i, int64_t in, int64_t o, int64_t out, const float *x,
                      const float *gy, float *sums, float *v)
{
    const int64_t all = p->all * p->across;
    for (int64_t t0 = 0; t0 < all; t0 += by->tiles) {
        const int64_t tiles = inv_min64(by->tiles, all - t0), from = inv_step_of(in, tiles),
                      to = inv_step_of(out, tiles);
        float *z = v + INV_POINTS * from;
#pragma omp parallel num_threads(by->lanes) if (by->lanes > 1)
        {
#pragma omp for schedule(static)
            for (int64_t t = 0; t < tiles; t++) {
                take(p, x, t0 + t, i, in, from, v + t * in);
                spread(p, gy, t0 + t, o, out, to, z + t * out);
            }
#pragma omp for schedule(static)
            for (int64_t k = 0; k < INV_POINTS; k++)
                for (int64_t t = 0; t < tiles; t += CHUNK)
                    multiply_turned(out, in, inv_min64(CHUNK, tiles - t), z + k * to + t * out, v + k * from + t * in,
                                    t0 + t > 0, sums + k * in * out);
        }
    }
}

void inv_tiles_last_grad_w(const inv_tiles *p, const float *x, const float *gy, float *gf, float *ws, int64_t room)
{
    const cut k = grad_cut(p, room);
    for (int64_t o = 0; o < p->out; o += k.out)
        for (int64_t i = 0; i < p->in; i += k.in) {
            const int64_t out = inv_min64(k.out, p->out - o), in = inv_min64(k.in, p->in - i);
            sum_block(p, &k, i, in, o, out, x, gy, ws, ws + INV_POINTS * in * out);
#pragma omp parallel for schedule(static) num_threads(k.lanes) if (k.lanes > 1)
            for (int64_t r = 0; r < out; r++)
                inv_give_filters(in, in * out, ws + r * in, gf + 9 * ((o + r) * p->in + i));
        }
}

int64_t inv_tiles_last_room(const inv_tiles *p, bool grad_w, bool quick)
{
    const int64_t much = INT64_MAX / 2;
    const cut most = grad_w ? grad_cut(p, much) : convolve_cut(p, much);
    const cut least = grad_w ? grad_cut(p, 0) : convolve_cut(p, 0);
    const int64_t best = grad_w ? grad_room(&most) : convolve_room(p, &most);
    return quick ? best : inv_min64(grad_w ? grad_room(&least) : convolve_room(p, &least), best);
}
