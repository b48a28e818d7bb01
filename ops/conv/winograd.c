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

#include "ops/base/parallel.h"
#include "ops/linear/gemm.h"

#define POINTS 16         /* of a tile */
#define MOST_CHANNELS 128 /* of x and y together */
#define MOST_ACROSS 256   /* tiles in a row */
#define BAND_BYTES (512 * 1024)
#define SHARES 4 /* of the images, each with a sum of its own of the filter's gradient */
#define WIDTH (2 * MOST_ACROSS + 2)
#define APART 16 /* floats between the matrices of two points, lest their elements meet in the same sets of a cache */

/* A convolution from `in` channels to `out`, tiles in bands of whole rows. */
typedef struct plan {
    int64_t in, out, h, w, oh, ow, pad_y, pad_x; /* h, w: of what is read; oh, ow: of what is written */
    int64_t across, down, rows, bands;           /* tiles; rows of them in a band, bands of an image */
    int64_t tiles, band;                         /* tiles of a band, floats that a band takes */
} plan;

bool inv__winograd_serves(const inv_conv *c, inv_dtype t)
{
    const inv_window *w = &c->w;
    bool fits = t == INV_F32 && c->group == 1 && c->cg >= 16 && c->mg >= 16 && c->cg + c->mg <= MOST_CHANNELS &&
                w->sd == 2 && w->out[1] >= 1 && w->in[1] >= 1 && c->batch >= 1;
    for (int i = 1; i < 3; i++)
        fits = fits && w->k[i] == 3 && w->stride[i] == 1 && w->dil[i] == 1 && w->pad[i] >= 0 && w->pad[i] <= 2 &&
               w->pad_end[i] >= 0 && w->pad_end[i] <= 2;
    return fits && w->out[2] >= 1 && w->in[2] >= 1 && w->out[2] <= 2 * MOST_ACROSS && w->in[2] <= 2 * MOST_ACROSS;
}

static plan winograd_plan(const inv_conv *c, bool to_x)
{
    const inv_window *w = &c->w;
    plan p = {.in = c->cg,
              .out = c->mg,
              .h = w->in[1],
              .w = w->in[2],
              .oh = w->out[1],
              .ow = w->out[2],
              .pad_y = w->pad[1],
              .pad_x = w->pad[2]};
    if (to_x)
        p = (plan){.in = c->mg,
                   .out = c->cg,
                   .h = w->out[1],
                   .w = w->out[2],
                   .oh = w->in[1],
                   .ow = w->in[2],
                   .pad_y = 2 - w->pad[1],
                   .pad_x = 2 - w->pad[2]};
    p.across = (p.ow + 1) / 2;
    p.down = (p.oh + 1) / 2;
    const int64_t row = POINTS * (p.in + p.out) * p.across;
    p.rows = inv__min64(inv__max64(BAND_BYTES / (row * (int64_t)sizeof(float)), 1), p.down);
    p.bands = (p.down + p.rows - 1) / p.rows;
    p.tiles = p.rows * p.across;
    p.band = row * p.rows + 2 * POINTS * APART;
    return p;
}

/* Floats from one point's matrix to the next one's. */
static int64_t step_of(int64_t channels, int64_t tiles) { return channels * tiles + APART; }

/* What all threads share: the transformed filter, or the sums of its gradient. */
static int64_t shared_floats(const inv_conv *c, bool grad_w) { return POINTS * c->cg * c->mg * (grad_w ? SHARES : 1); }

size_t inv__winograd_workspace(const inv_conv *c, bool grad_w)
{
    const plan p = winograd_plan(c, false), q = winograd_plan(c, true);
    const int64_t tasks = grad_w ? SHARES : c->batch * inv__max64(p.bands, q.bands);
    const int64_t lanes = inv__min64(inv__threads(), tasks);
    return (size_t)(shared_floats(c, grad_w) + lanes * inv__max64(p.band, q.band)) * sizeof(float);
}

static int winograd_lanes(const plan *p, int64_t tasks, int64_t shared, size_t ws_nbytes)
{
    const int64_t room = ((int64_t)(ws_nbytes / sizeof(float)) - shared) / p->band;
    return (int)inv__max64(inv__min64(inv__min64(inv__threads(), tasks), room), 1);
}

/* u = G f G' per pair of channels: 16 matrices [out, in]. For the gradient to x, f turned round. */
static void take_filter(const plan *p, const float *f, bool to_x, float *u)
{
    const int64_t count = p->in * p->out;
    for (int64_t i = 0; i < count; i++) {
        const float *g = f + 9 * (to_x ? i % p->in * p->out + i / p->in : i);
        float t[4][3];
        for (int j = 0; j < 3; j++) {
            const float g0 = to_x ? g[8 - j] : g[j], g1 = to_x ? g[5 - j] : g[3 + j], g2 = to_x ? g[2 - j] : g[6 + j];
            t[0][j] = g0;
            t[1][j] = 0.5f * ((g0 + g2) + g1);
            t[2][j] = 0.5f * ((g0 + g2) - g1);
            t[3][j] = g2;
        }
        for (int k = 0; k < 4; k++) {
            float *at = u + 4 * k * count + i;
            at[0] = t[k][0];
            at[count] = 0.5f * ((t[k][0] + t[k][2]) + t[k][1]);
            at[2 * count] = 0.5f * ((t[k][0] + t[k][2]) - t[k][1]);
            at[3 * count] = t[k][2];
        }
    }
}

INV_INLINE void take_points(const float *t, int64_t across, int64_t step, float *v)
{
    float *v0 = v, *v1 = v0 + step, *v2 = v1 + step, *v3 = v2 + step;
    _Pragma("omp simd") for (int64_t i = 0; i < across; i++)
    {
        const float t0 = t[2 * i], t1 = t[2 * i + 1], t2 = t[2 * i + 2], t3 = t[2 * i + 3];
        v0[i] = t0 - t2;
        v1[i] = t1 + t2;
        v2[i] = t2 - t1;
        v3[i] = t1 - t3;
    }
}

/* B' d B for the tiles of one row of one channel, from the four rows of the image that they cover: 16 runs of `across`
 * numbers, `step` apart. */
INV_SIMD static void take_row(const float *const row[4], int64_t width, int64_t pad, int64_t across, int64_t step,
                              float *v)
{
    float t[4][WIDTH];
    const float *d0 = row[0], *d1 = row[1], *d2 = row[2], *d3 = row[3];
    const int64_t all = 2 * across + 2;
    for (int k = 0; k < 4; k++) {
        for (int64_t i = 0; i < pad; i++) t[k][i] = 0;
        for (int64_t i = pad + width; i < all; i++) t[k][i] = 0;
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

/* Rows r0.. of the tiles of an image, all channels: v[point][channel][tile]. */
static void take_band(const plan *p, const float *x, int64_t r0, int64_t rows, float *v)
{
    static const float none[2 * MOST_ACROSS];
    const int64_t tiles = rows * p->across;
    for (int64_t c = 0; c < p->in; c++) {
        for (int64_t r = 0; r < rows; r++) {
            const float *row[4];
            for (int k = 0; k < 4; k++) {
                const int64_t y = 2 * (r0 + r) - p->pad_y + k;
                row[k] = y < 0 || y >= p->h ? none : x + (c * p->h + y) * p->w;
            }
            take_row(row, p->w, p->pad_x, p->across, step_of(p->in, tiles), v + c * tiles + r * p->across);
        }
    }
}

/* A' m A for the tiles of one row of one channel: two rows of y. */
INV_SIMD static void give_row(const float *m, int64_t step, int64_t across, float bias, float *y0, float *y1)
{
    _Pragma("omp simd") for (int64_t i = 0; i < across; i++)
    {
        float s[2][4];
        for (int j = 0; j < 4; j++) {
            const float m0 = m[j * step + i], m1 = m[(4 + j) * step + i];
            const float m2 = m[(8 + j) * step + i], m3 = m[(12 + j) * step + i];
            s[0][j] = (m0 + m1) + m2;
            s[1][j] = (m1 - m2) - m3;
        }
        y0[2 * i] = ((s[0][0] + s[0][1]) + s[0][2]) + bias;
        y0[2 * i + 1] = ((s[0][1] - s[0][2]) - s[0][3]) + bias;
        y1[2 * i] = ((s[1][0] + s[1][1]) + s[1][2]) + bias;
        y1[2 * i + 1] = ((s[1][1] - s[1][2]) - s[1][3]) + bias;
    }
}

static void give_band(const plan *p, const float *m, int64_t r0, int64_t rows, const float *bias, float *y)
{
    const int64_t tiles = rows * p->across;
    const size_t nbytes = (size_t)p->ow * sizeof(float);
    for (int64_t c = 0; c < p->out; c++) {
        for (int64_t r = 0; r < rows; r++) {
            float two[2][WIDTH], *at = y + (c * p->oh + 2 * (r0 + r)) * p->ow;
            give_row(m + c * tiles + r * p->across, step_of(p->out, tiles), p->across, bias ? bias[c] : 0, two[0],
                     two[1]);
            memcpy(at, two[0], nbytes);
            if (2 * (r0 + r) + 1 < p->oh) memcpy(at + p->ow, two[1], nbytes);
        }
    }
}

/* A t A' for the tiles of one row of one channel, from the two rows of the gradient that they cover. */
INV_SIMD static void spread_row(const float *g0, const float *g1, int64_t across, int64_t step, float *z)
{
    _Pragma("omp simd") for (int64_t i = 0; i < across; i++)
    {
        const float a0 = g0[2 * i], a1 = g0[2 * i + 1], b0 = g1[2 * i], b1 = g1[2 * i + 1];
        const float t[4][2] = {{a0, a1}, {a0 + b0, a1 + b1}, {a0 - b0, a1 - b1}, {-b0, -b1}};
        for (int k = 0; k < 4; k++) {
            z[4 * k * step + i] = t[k][0];
            z[(4 * k + 1) * step + i] = t[k][0] + t[k][1];
            z[(4 * k + 2) * step + i] = t[k][0] - t[k][1];
            z[(4 * k + 3) * step + i] = -t[k][1];
        }
    }
}

static void spread_band(const plan *p, const float *gy, int64_t r0, int64_t rows, float *z)
{
    const int64_t tiles = rows * p->across;
    const size_t nbytes = (size_t)p->ow * sizeof(float);
    for (int64_t c = 0; c < p->out; c++) {
        for (int64_t r = 0; r < rows; r++) {
            float two[2][WIDTH];
            const float *at = gy + (c * p->oh + 2 * (r0 + r)) * p->ow;
            two[0][2 * p->across - 1] = two[1][2 * p->across - 1] = 0;
            memcpy(two[0], at, nbytes);
            if (2 * (r0 + r) + 1 < p->oh) memcpy(two[1], at + p->ow, nbytes);
            else memset(two[1], 0, nbytes);
            spread_row(two[0], two[1], p->across, step_of(p->out, tiles), z + c * tiles + r * p->across);
        }
    }
}

static void convolve(const plan *p, int64_t batch, const float *x, const float *u, const float *bias, float *y,
                     float *ws, int lanes)
{
    const int64_t tasks = batch * p->bands;
#pragma omp parallel for schedule(static) num_threads(lanes) if (lanes > 1)
    for (int64_t t = 0; t < tasks; t++) {
        const int64_t image = t / p->bands, r0 = t % p->bands * p->rows, rows = inv__min64(p->rows, p->down - r0);
        const int64_t tiles = rows * p->across, from = step_of(p->in, tiles), to = step_of(p->out, tiles);
        float *v = ws + inv__thread() * p->band, *m = v + POINTS * from;
        take_band(p, x + image * p->in * p->h * p->w, r0, rows, v);
        for (int64_t k = 0; k < POINTS; k++)
            inv__gemm_f32(false, false, p->out, tiles, p->in, u + k * p->in * p->out, p->in, v + k * from, tiles, false,
                          m + k * to, tiles);
        give_band(p, m, r0, rows, bias, y + image * p->out * p->oh * p->ow);
    }
}

void inv__winograd(const inv_conv *c, const float *x, const float *f, const float *bias, float *y, void *ws,
                   size_t ws_nbytes)
{
    const plan p = winograd_plan(c, false);
    const int64_t shared = shared_floats(c, false);
    take_filter(&p, f, false, ws);
    convolve(&p, c->batch, x, ws, bias, y, (float *)ws + shared,
             winograd_lanes(&p, c->batch * p.bands, shared, ws_nbytes));
}

void inv__winograd_grad_x(const inv_conv *c, const float *gy, const float *f, float *gx, void *ws, size_t ws_nbytes)
{
    const plan p = winograd_plan(c, true);
    const int64_t shared = shared_floats(c, false);
    take_filter(&p, f, true, ws);
    convolve(&p, c->batch, gy, ws, NULL, gx, (float *)ws + shared,
             winograd_lanes(&p, c->batch * p.bands, shared, ws_nbytes));
}

/* gf = G' s G per pair of channels, s being the sum of the shares. */
static void give_filter(int64_t count, float *sums, float *gf)
{
    for (int64_t i = 0; i < POINTS * count; i++) {
        for (int64_t k = 1; k < SHARES; k++) sums[i] += sums[k * POINTS * count + i];
    }
    for (int64_t i = 0; i < count; i++) {
        float t[3][4], *out = gf + 9 * i;
        for (int j = 0; j < 4; j++) {
            const float s0 = sums[j * count + i], s1 = sums[(4 + j) * count + i], s2 = sums[(8 + j) * count + i],
                        s3 = sums[(12 + j) * count + i];
            t[0][j] = s0 + 0.5f * (s1 + s2);
            t[1][j] = 0.5f * (s1 - s2);
            t[2][j] = 0.5f * (s1 + s2) + s3;
        }
        for (int k = 0; k < 3; k++) {
            out[3 * k] = t[k][0] + 0.5f * (t[k][1] + t[k][2]);
            out[3 * k + 1] = 0.5f * (t[k][1] - t[k][2]);
            out[3 * k + 2] = 0.5f * (t[k][1] + t[k][2]) + t[k][3];
        }
    }
}

void inv__winograd_grad_w(const inv_conv *c, const float *x, const float *gy, float *gf, void *ws, size_t ws_nbytes)
{
    const plan p = winograd_plan(c, false);
    const int64_t shared = shared_floats(c, true), count = c->cg * c->mg;
    const int lanes = winograd_lanes(&p, SHARES, shared, ws_nbytes);
    float *sums = ws;
    memset(sums, 0, (size_t)shared * sizeof(float));
#pragma omp parallel for schedule(static) num_threads(lanes) if (lanes > 1)
    for (int64_t share = 0; share < SHARES; share++) {
        float *s = sums + share * POINTS * count;
        for (int64_t t = share * c->batch / SHARES * p.bands; t < (share + 1) * c->batch / SHARES * p.bands; t++) {
            const int64_t image = t / p.bands, r0 = t % p.bands * p.rows, rows = inv__min64(p.rows, p.down - r0);
            const int64_t tiles = rows * p.across, from = step_of(p.in, tiles), to = step_of(p.out, tiles);
            float *v = sums + shared + inv__thread() * p.band, *z = v + POINTS * from;
            take_band(&p, x + image * p.in * p.h * p.w, r0, rows, v);
            spread_band(&p, gy + image * p.out * p.oh * p.ow, r0, rows, z);
            for (int64_t k = 0; k < POINTS; k++)
                inv__gemm_f32(false, true, p.out, p.in, tiles, z + k * to, tiles, v + k * from, tiles, true,
                              s + k * count, p.in);
        }
    }
    give_filter(count, sums, gf);
}
