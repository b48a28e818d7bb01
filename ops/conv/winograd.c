/* SPDX-License-Identifier: Apache-2.0
 * Convolution by 3x3 filters in float32 with 16 multiplications per 2x2 outputs, not 36 (Winograd 1980; Lavin and Gray,
 * CVPR 2016: F(2x2, 3x3)). With
 *
 *     B' = 1  0 -1  0      A' = 1  1  1  0      G =  1    0    0
 *          0  1  1  0           0  1 -1 -1          1/2  1/2  1/2
 *          0 -1  1  0                               1/2 -1/2  1/2
 *          0  1  0 -1                                0    0    1
 *
 * a 4x4 tile d of x and a filter g give the 2x2 tile A' [(G g G') (B' d B)] A of y, products by element; over channels
 * these are 16 products of matrices. The gradient to x is a convolution by the filter turned round; that to the filter
 * is the transposed map, G' [(A t A') (B' d B)] G with tiles t of y's gradient, summed over all tiles. Worth it while
 * channels are few: with many, a product of large matrices outweighs making the column matrix for it. */
#include "ops/conv/winograd.h"

#include <string.h>

#include "ops/conv/winograd_tiles.h"

#define MOST_CHANNELS 128       /* of x and y together, */
#define MOST_CHANNELS_AVX2 512  /* where oneDNN has no vectors of AVX-512 */
#define MOST_ACROSS 256         /* tiles in a row */
#define BAND_BYTES (160 * 1024) /* at least; more where the filter has more */
#define GRAD_BAND_BYTES (320 * 1024)
#define BAND_BYTES_LAST (512 * 1024) /* at most, where channels come last */
#define EVEN_BANDS 4                 /* a multiple of this, so that threads have about as much each */
#define SHARES 4                     /* of the rows of tiles, each with a sum of its own of the filter's gradient */
#define FILTERS 2 /* times x and y: the most that a transformed filter takes where channels come last */
#define AHEAD 2   /* channels from what is read to what is asked for */
#define WIDTH (2 * (MOST_ACROSS + INV_TILE_LANES))

/* Rows of tiles are taken and given in rising order, whole vectors each, so what a row's last vector has too much the
 * next one's first overwrites; behind the last row there is a gap (INV_APART). */
#define EVEN(a, b) __builtin_shufflevector(a, b, 0, 2, 4, 6, 8, 10, 12, 14)
#define ODD(a, b) __builtin_shufflevector(a, b, 1, 3, 5, 7, 9, 11, 13, 15)
#define FIRST_OF(even, odd) __builtin_shufflevector(even, odd, 0, 8, 1, 9, 2, 10, 3, 11)
#define LAST_OF(even, odd) __builtin_shufflevector(even, odd, 4, 12, 5, 13, 6, 14, 7, 15)

/* With channels last those of a tile are whole vectors and panels of columns. Large filters of small images are left
 * out: they would take most of the memory. */
static bool serves_channels(const inv_conv *c)
{
    const inv_window *w = &c->w;
    const int64_t pixels = c->batch * (w->in[1] * w->in[2] * c->cg + w->out[1] * w->out[2] * c->mg);
    const inv_gemm_own *own = inv_gemm_own_find(true);
    const int64_t all = c->cg + c->mg;
    if (c->last)
        return own && c->cg % INV_TILE_COLUMNS == 0 && c->mg % INV_TILE_COLUMNS == 0 && all <= INV_MOST_CHANNELS_LAST &&
               INV_POINTS * c->cg * c->mg <= FILTERS * pixels;
    return all <= (own && own == inv_gemm_own_find(false) ? MOST_CHANNELS_AVX2 : MOST_CHANNELS);
}

bool inv_winograd_serves(const inv_conv *c, inv_dtype t)
{
    const inv_window *w = &c->w;
    bool fits = t == INV_F32 && c->group == 1 && c->cg >= 16 && c->mg >= 16 && serves_channels(c) && w->sd == 2 &&
                w->out[1] >= 1 && w->in[1] >= 1 && c->batch >= 1;
    for (int i = 1; i < 3; i++)
        fits = fits && w->k[i] == 3 && w->stride[i] == 1 && w->dil[i] == 1 && w->pad[i] >= 0 && w->pad[i] <= 2 &&
               w->pad_end[i] >= 0 && w->pad_end[i] <= 2;
    return fits && w->out[2] >= 1 && w->in[2] >= 1 && w->out[2] <= 2 * MOST_ACROSS && w->in[2] <= 2 * MOST_ACROSS;
}

/* Floats from one channel's tiles to the next one's: whole vectors, of which the last ones may be anything. */
static int64_t line_of(int64_t tiles) { return (tiles + INV_TILE_COLUMNS - 1) / INV_TILE_COLUMNS * INV_TILE_COLUMNS; }

static inv_tiles winograd_plan(const inv_conv *c, char kind)
{
    const inv_window *w = &c->w;
    const bool to_x = kind == 'x';
    const int64_t *read = to_x ? w->out : w->in, *written = to_x ? w->in : w->out;
    inv_tiles p = {.last = c->last,
                   .in = to_x ? c->mg : c->cg,
                   .out = to_x ? c->cg : c->mg,
                   .h = read[1],
                   .w = read[2],
                   .oh = written[1],
                   .ow = written[2],
                   .pad_y = to_x ? 2 - w->pad[1] : w->pad[1],
                   .pad_x = to_x ? 2 - w->pad[2] : w->pad[2]};
    p.across = (p.ow + 1) / 2;
    p.down = (p.oh + 1) / 2;
    p.all = c->batch * p.down;
    const int64_t filter = INV_POINTS * p.in * p.out * (int64_t)sizeof(float);
    const int64_t least = kind == 'w' ? GRAD_BAND_BYTES : BAND_BYTES;
    const int64_t nbytes = inv_max64(least, p.last ? inv_min64(filter, BAND_BYTES_LAST) : filter);
    const int64_t row = INV_POINTS * (p.in + p.out) * p.across * (int64_t)sizeof(float);
    p.rows = inv_min64(inv_max64(nbytes / row, 1), p.all);
    p.bands = (p.all + p.rows - 1) / p.rows;
    p.bands = inv_min64((p.bands + EVEN_BANDS - 1) / EVEN_BANDS * EVEN_BANDS, p.all);
    p.rows = (p.all + p.bands - 1) / p.bands;
    p.bands = (p.all + p.rows - 1) / p.rows;
    const int64_t line = line_of(p.rows * p.across);
    p.band = INV_POINTS * (inv_step_of(p.in, line) + inv_step_of(p.out, line));
    return p;
}

/* Scratch memory of so many threads: the transformed filter and their bands; or their bands, their sums and the one to
 * which these are added. */
static int64_t floats_of(const inv_tiles *p, bool grad_w, int64_t lanes)
{
    return INV_POINTS * p->in * p->out * (grad_w ? inv_min64(lanes + 1, SHARES) : 1) + lanes * p->band;
}

static int64_t most_lanes(const inv_tiles *p, bool grad_w)
{
    return inv_min64(inv_threads(), grad_w ? SHARES : p->bands);
}

size_t inv_winograd_workspace(const inv_conv *c, bool grad_w, bool quick)
{
    const inv_tiles p = winograd_plan(c, grad_w ? 'w' : 'y'), q = winograd_plan(c, grad_w ? 'w' : 'x');
    const int64_t floats =
        c->last
            ? inv_max64(inv_tiles_last_room(&p, grad_w, quick), inv_tiles_last_room(&q, grad_w, quick))
            : inv_max64(floats_of(&p, grad_w, most_lanes(&p, grad_w)), floats_of(&q, grad_w, most_lanes(&q, grad_w)));
    return (size_t)floats * sizeof(float);
}

static int winograd_lanes(const inv_tiles *p, bool grad_w, size_t ws_nbytes)
{
    int64_t lanes = most_lanes(p, grad_w);
    while (lanes > 1 && floats_of(p, grad_w, lanes) > (int64_t)(ws_nbytes / sizeof(float))) lanes--;
    return (int)lanes;
}

/* G f G' of n filters, `step` floats apart; for the gradient to x of those turned round: 16 runs of n numbers, `count`
 * apart. */
INV_SIMD void inv_take_filters(int64_t n, const float *f, int64_t step, bool to_x, int64_t count, float *u)
{
    const int64_t at = to_x ? 8 : 0, to = to_x ? -1 : 1;
    _Pragma("omp simd") for (int64_t i = 0; i < n; i++)
    {
        const float *g = f + i * step + at;
        float t[4][3];
        for (int j = 0; j < 3; j++) {
            const float g0 = g[j * to], g1 = g[(3 + j) * to], g2 = g[(6 + j) * to];
            t[0][j] = g0;
            t[1][j] = 0.5f * ((g0 + g2) + g1);
            t[2][j] = 0.5f * ((g0 + g2) - g1);
            t[3][j] = g2;
        }
        for (int k = 0; k < 4; k++) {
            u[4 * k * count + i] = t[k][0];
            u[(4 * k + 1) * count + i] = 0.5f * ((t[k][0] + t[k][2]) + t[k][1]);
            u[(4 * k + 2) * count + i] = 0.5f * ((t[k][0] + t[k][2]) - t[k][1]);
            u[(4 * k + 3) * count + i] = t[k][2];
        }
    }
}

/* Of each pair of channels: 16 matrices as products want them, [out, in]. `packed`: scratch memory for one of them. */
static void take_filter(const inv_tiles *p, const float *f, bool to_x, float *u, float *packed, int lanes)
{
    const int64_t count = p->in * p->out;
#pragma omp parallel for schedule(static) num_threads(lanes) if (lanes > 1)
    for (int64_t i = 0; i < p->out; i++)
        inv_take_filters(p->in, f + 9 * (to_x ? i : i * p->in), to_x ? 9 * p->out : 9, to_x, count, u + i * p->in);
    const inv_gemm_own *own = inv_gemm_own_find(true);
    for (int64_t k = 0; k < INV_POINTS && own; k++) {
        own->pack(p->out, p->in, u + k * count, p->in, packed);
        memcpy(u + k * count, packed, (size_t)count * sizeof(float));
    }
}

INV_INLINE void take_points(const float *t, int64_t across, int64_t step, float *v)
{
    for (int64_t i = 0; i < across; i += INV_TILE_LANES) {
        const float *at = t + 2 * i;
        const inv_floats a = INV_FROM(at), b = INV_FROM(at + INV_TILE_LANES), c = INV_FROM(at + 2),
                         d = INV_FROM(at + INV_TILE_LANES + 2);
        const inv_floats t0 = EVEN(a, b), t1 = ODD(a, b), t2 = EVEN(c, d), t3 = ODD(c, d);
        INV_AT(v + i) = t0 - t2;
        INV_AT(v + step + i) = t1 + t2;
        INV_AT(v + 2 * step + i) = t2 - t1;
        INV_AT(v + 3 * step + i) = t1 - t3;
    }
}

/* B' d B for the tiles of one row of one channel, from the four rows of the image that they cover: 16 runs of `across`
 * numbers, `step` apart. */
INV_SIMD static void take_row(const float *const row[4], int64_t width, int64_t pad, int64_t across, int64_t step,
                              float *v)
{
    float t[4][WIDTH];
    const float *d0 = row[0], *d1 = row[1], *d2 = row[2], *d3 = row[3];
    for (int k = 0; k < 4; k++) { /* both pads: at most two in front, three behind what is read */
        t[k][0] = t[k][1] = 0;
        INV_AT(t[k] + pad + width) = (inv_floats){0};
    }
    _Pragma("omp simd") for (int64_t i = 0; i < width; i++)
    {
        const float a = d1[i], b = d2[i];
        t[0][pad + i] = d0[i] - b;
        t[1][pad + i] = a + b;
        t[2][pad + i] = b - a;
        t[3][pad + i] = a - d3[i];
    }
    for (int k = 0; k < 4; k++) take_points(t[k], across, step, v + 4 * k * step);
}

/* `count` rows of a channel's plane from row y on, as far as they are there. */
static void ask_for(const float *plane, int64_t y, int64_t count, int64_t h, int64_t w)
{
    const int64_t from = inv_max64(y, 0), end = inv_min64(y + count, h);
    inv_ask_for(plane + from * w, (end - from) * w * (int64_t)sizeof(float));
}

/* `rows` rows of tiles from r0 on, all channels: v[point][channel][tile]. */
static void take_band(const inv_tiles *p, const float *x, int64_t r0, int64_t rows, float *v)
{
    static const float none[2 * MOST_ACROSS];
    const int64_t line = line_of(rows * p->across);
    for (int64_t c = 0; c < p->in; c++) {
        for (int64_t r = 0; r < rows; r++) {
            const float *row[4], *plane = x + (inv_image_of(p, r0 + r) * p->in + c) * p->h * p->w;
            const int64_t top = inv_top_of(p, r0 + r) - p->pad_y;
            if (c + AHEAD < p->in) ask_for(plane + AHEAD * p->h * p->w, r ? top + 2 : top, r ? 2 : 4, p->h, p->w);
            for (int k = 0; k < 4; k++) row[k] = top + k < 0 || top + k >= p->h ? none : plane + (top + k) * p->w;
            take_row(row, p->w, p->pad_x, p->across, inv_step_of(p->in, line), v + c * line + r * p->across);
        }
    }
}

/* A' m A for the tiles of one row of one channel: two rows of y, whole vectors of them. */
INV_SIMD static void give_row(const float *m, int64_t step, int64_t across, float bias, float *y0, float *y1)
{
    for (int64_t i = 0; i < across; i += INV_TILE_LANES) {
        inv_floats s[2][4];
        for (int j = 0; j < 4; j++) {
            const inv_floats m0 = INV_FROM(m + j * step + i), m1 = INV_FROM(m + (4 + j) * step + i);
            const inv_floats m2 = INV_FROM(m + (8 + j) * step + i), m3 = INV_FROM(m + (12 + j) * step + i);
            s[0][j] = (m0 + m1) + m2;
            s[1][j] = (m1 - m2) - m3;
        }
        float *y[2] = {y0 + 2 * i, y1 + 2 * i};
        for (int k = 0; k < 2; k++) {
            const inv_floats even = ((s[k][0] + s[k][1]) + s[k][2]) + bias,
                             odd = ((s[k][1] - s[k][2]) - s[k][3]) + bias;
            INV_AT(y[k]) = FIRST_OF(even, odd);
            INV_AT(y[k] + INV_TILE_LANES) = LAST_OF(even, odd);
        }
    }
}

static void give_band(const inv_tiles *p, const float *m, int64_t r0, int64_t rows, const float *bias, float *y)
{
    const int64_t line = line_of(rows * p->across), step = inv_step_of(p->out, line);
    const bool whole = p->ow % (2 * INV_TILE_LANES) == 0;
    const size_t nbytes = (size_t)p->ow * sizeof(float);
    for (int64_t c = 0; c < p->out; c++) {
        for (int64_t r = 0; r < rows; r++) {
            const int64_t top = inv_top_of(p, r0 + r);
            const bool both = top + 1 < p->oh;
            const float *from = m + c * line + r * p->across, b = bias ? bias[c] : 0;
            float two[2][WIDTH], *plane = y + (inv_image_of(p, r0 + r) * p->out + c) * p->oh * p->ow;
            float *at = plane + top * p->ow;
            if (c + AHEAD < p->out) ask_for(plane + AHEAD * p->oh * p->ow, top, 2, p->oh, p->ow);
            if (whole) {
                give_row(from, step, p->across, b, at, both ? at + p->ow : two[1]);
                continue;
            }
            give_row(from, step, p->across, b, two[0], two[1]);
            memcpy(at, two[0], nbytes);
            if (both) memcpy(at + p->ow, two[1], nbytes);
        }
    }
}

/* A t A' for the tiles of one row of one channel, from the two rows of the gradient that they cover. */
INV_SIMD static void spread_row(const float *g0, const float *g1, int64_t across, int64_t step, float *z)
{
    for (int64_t i = 0; i < across; i += INV_TILE_LANES) {
        const inv_floats p0 = INV_FROM(g0 + 2 * i), q0 = INV_FROM(g0 + 2 * i + INV_TILE_LANES),
                         p1 = INV_FROM(g1 + 2 * i);
        const inv_floats q1 = INV_FROM(g1 + 2 * i + INV_TILE_LANES);
        const inv_floats a0 = EVEN(p0, q0), a1 = ODD(p0, q0), b0 = EVEN(p1, q1), b1 = ODD(p1, q1);
        const inv_floats t[4][2] = {{a0, a1}, {a0 + b0, a1 + b1}, {a0 - b0, a1 - b1}, {-b0, -b1}};
        for (int k = 0; k < 4; k++) {
            INV_AT(z + 4 * k * step + i) = t[k][0];
            INV_AT(z + (4 * k + 1) * step + i) = t[k][0] + t[k][1];
            INV_AT(z + (4 * k + 2) * step + i) = t[k][0] - t[k][1];
            INV_AT(z + (4 * k + 3) * step + i) = -t[k][1];
        }
    }
}

static void spread_band(const inv_tiles *p, const float *gy, int64_t r0, int64_t rows, float *z)
{
    const int64_t line = line_of(rows * p->across);
    const size_t nbytes = (size_t)p->ow * sizeof(float);
    for (int64_t c = 0; c < p->out; c++) {
        for (int64_t r = 0; r < rows; r++) {
            float two[2][WIDTH];
            const int64_t top = inv_top_of(p, r0 + r);
            const float *plane = gy + (inv_image_of(p, r0 + r) * p->out + c) * p->oh * p->ow, *at = plane + top * p->ow;
            if (c + AHEAD < p->out) ask_for(plane + AHEAD * p->oh * p->ow, top, 2, p->oh, p->ow);
            two[0][2 * p->across - 1] = two[1][2 * p->across - 1] = 0;
            memcpy(two[0], at, nbytes);
            if (top + 1 < p->oh) memcpy(two[1], at + p->ow, nbytes);
            else memset(two[1], 0, nbytes);
            spread_row(two[0], two[1], p->across, inv_step_of(p->out, line), z + c * line + r * p->across);
        }
    }
}

/* --- the operators --- */

static void convolve(const inv_tiles *p, const float *x, const float *u, const float *bias, float *y, float *ws,
                     int lanes)
{
    const inv_gemm_own *own = inv_gemm_own_find(true);
#pragma omp parallel for schedule(static) num_threads(lanes) if (lanes > 1)
    for (int64_t t = 0; t < p->bands; t++) {
        const int64_t r0 = t * p->rows, rows = inv_min64(p->rows, p->all - r0), tiles = rows * p->across;
        const int64_t line = line_of(tiles), from = inv_step_of(p->in, line), to = inv_step_of(p->out, line);
        float *v = ws + inv_thread() * p->band, *m = v + INV_POINTS * from;
        take_band(p, x, r0, rows, v);
        for (int64_t k = 0; k < INV_POINTS; k++) {
            const float *uk = u + k * p->in * p->out, *vk = v + k * from;
            if (own) own->by_packed(p->out, line, p->in, uk, vk, line, m + k * to, line);
            else inv_gemm_f32(false, false, p->out, tiles, p->in, uk, p->in, vk, line, false, m + k * to, line);
        }
        give_band(p, m, r0, rows, bias, y);
    }
}

static void by_tiles(const inv_conv *c, char kind, const float *x, const float *f, const float *bias, float *y,
                     float *ws, size_t ws_nbytes)
{
    const inv_tiles p = winograd_plan(c, kind);
    if (c->last) {
        inv_tiles_last(&p, kind == 'x', x, f, bias, y, ws, (int64_t)(ws_nbytes / sizeof(float)));
        return;
    }
    const int64_t shared = INV_POINTS * p.in * p.out;
    const int lanes = winograd_lanes(&p, false, ws_nbytes);
    take_filter(&p, f, kind == 'x', ws, ws + shared, lanes);
    convolve(&p, x, ws, bias, y, ws + shared, lanes);
}

void inv_winograd(const inv_conv *c, const float *x, const float *f, const float *bias, float *y, void *ws,
                  size_t ws_nbytes)
{
    by_tiles(c, 'y', x, f, bias, y, ws, ws_nbytes);
}

void inv_winograd_grad_x(const inv_conv *c, const float *gy, const float *f, float *gx, void *ws, size_t ws_nbytes)
{
    by_tiles(c, 'x', gy, f, NULL, gx, ws, ws_nbytes);
}

/* G' s G for n pairs of channels of `count`. */
INV_SIMD void inv_give_filters(int64_t n, int64_t count, const float *s, float *gf)
{
    for (int64_t i = 0; i < n; i++, s++, gf += 9) {
        float t[3][4];
        for (int j = 0; j < 4; j++) {
            const float s0 = s[j * count], s1 = s[(4 + j) * count], s2 = s[(8 + j) * count], s3 = s[(12 + j) * count];
            t[0][j] = s0 + 0.5f * (s1 + s2);
            t[1][j] = 0.5f * (s1 - s2);
            t[2][j] = 0.5f * (s1 + s2) + s3;
        }
        for (int k = 0; k < 3; k++) {
            gf[3 * k] = t[k][0] + 0.5f * (t[k][1] + t[k][2]);
            gf[3 * k + 1] = 0.5f * (t[k][1] - t[k][2]);
            gf[3 * k + 2] = 0.5f * (t[k][1] + t[k][2]) + t[k][3];
        }
    }
}

INV_SIMD static void add_shares(int64_t n, int64_t shares, int64_t step, float *sums)
{
    for (int64_t k = 1; k < shares; k++)
        for (int64_t i = 0; i < n; i++) sums[i] += sums[k * step + i];
}

static void sum_share(const inv_tiles *p, const float *x, const float *gy, int64_t share, float *s, float *v)
{
    const int64_t count = p->in * p->out, end = (share + 1) * p->all / SHARES;
    memset(s, 0, (size_t)(INV_POINTS * count) * sizeof(float));
    for (int64_t r0 = share * p->all / SHARES; r0 < end; r0 += p->rows) {
        const int64_t rows = inv_min64(p->rows, end - r0), tiles = rows * p->across, line = line_of(tiles);
        const int64_t from = inv_step_of(p->in, line), to = inv_step_of(p->out, line);
        float *z = v + INV_POINTS * from;
        take_band(p, x, r0, rows, v);
        spread_band(p, gy, r0, rows, z);
        for (int64_t k = 0; k < INV_POINTS; k++)
            inv_gemm_f32(false, true, p->out, p->in, tiles, z + k * to, line, v + k * from, line, true, s + k * count,
                         p->in);
    }
}

/* As many shares at a time as there are threads. The first ones' sums stand where they are added up, in rising order
 * whatever the number of threads. */
static void sum_by_shares(const inv_tiles *p, const float *x, const float *gy, float *sums, float *ws, int lanes)
{
    const int64_t count = p->in * p->out;
    for (int64_t first = 0; first < SHARES; first += lanes) {
        const int64_t last = inv_min64(first + lanes, SHARES), behind = first > 0;
#pragma omp parallel for schedule(static) num_threads(lanes) if (lanes > 1)
        for (int64_t share = first; share < last; share++)
            sum_share(p, x, gy, share, sums + (share - first + behind) * INV_POINTS * count,
                      ws + inv_thread() * p->band);
#pragma omp parallel for schedule(static) num_threads(lanes) if (lanes > 1)
        for (int64_t k = 0; k < INV_POINTS; k++)
            add_shares(count, last - first + behind, INV_POINTS * count, sums + k * count);
    }
}

void inv_winograd_grad_w(const inv_conv *c, const float *x, const float *gy, float *gf, void *ws, size_t ws_nbytes)
{
    const inv_tiles p = winograd_plan(c, 'w');
    const int64_t count = c->cg * c->mg;
    if (c->last) {
        inv_tiles_last_grad_w(&p, x, gy, gf, ws, (int64_t)(ws_nbytes / sizeof(float)));
        return;
    }
    const int lanes = winograd_lanes(&p, true, ws_nbytes);
    float *sums = ws;
    sum_by_shares(&p, x, gy, sums, sums + INV_POINTS * count * inv_min64(lanes + 1, SHARES), lanes);
#pragma omp parallel for schedule(static) num_threads(lanes) if (lanes > 1)
    for (int64_t i = 0; i < c->mg; i++) inv_give_filters(c->cg, count, sums + i * c->cg, gf + 9 * i * c->cg);
}
