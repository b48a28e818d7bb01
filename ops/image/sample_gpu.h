/* SPDX-License-Identifier: Apache-2.0
 * Sampling between the pixels of an image: what host and device share. A point's value is a sum over taps, the product
 * of one list of taps per axis; a list also says how its weights change with the point's coordinate. */
#ifndef INV_OPS_IMAGE_SAMPLE_GPU_H
#define INV_OPS_IMAGE_SAMPLE_GPU_H

#include <math.h>

#include "ops/gpu/group_gpu.h"

#define INV_SAMPLE_AXES 3
#define INV_SAMPLE_CHANNELS 8 /* that one thread takes, with the same taps */

typedef enum inv_sample_mode { INV_SAMPLE_NEAREST, INV_SAMPLE_LINEAR, INV_SAMPLE_CUBIC } inv_sample_mode;
typedef enum inv_sample_padding { INV_SAMPLE_ZEROS, INV_SAMPLE_BORDER, INV_SAMPLE_REFLECTION } inv_sample_padding;
/* Coordinates from -1 to 1 between the pixels' outer edges, or their centres; the last axis comes first. Or in pixels,
 * from the centre of the first, the first axis first. */
typedef enum inv_sample_unit { INV_SAMPLE_EDGES, INV_SAMPLE_CENTERS, INV_SAMPLE_PIXELS } inv_sample_unit;

/* x[n, channels, len[0..2]] at points[n, points, axes] -> [n, channels, points]; absent axes have extent 1. */
typedef struct inv_sample {
    inv_sample_mode mode;
    inv_sample_padding padding;
    inv_sample_unit unit;
    int axes;
    int64_t n, channels, points, pixels, len[INV_SAMPLE_AXES];
} inv_sample;

typedef struct inv_sample_taps {
    int n;
    int64_t at[4]; /* -1: outside, counts as 0 */
    double w[4], dw[4];
} inv_sample_taps;

/* Back and forth between the borders; *turn: -1 where it runs backwards. */
INV_HD double inv_sample_reflect(double x, double low, double high, double *turn)
{
    const double range = high - low, outside = x < low ? low - x : x - high;
    *turn = 1;
    if (x >= low && x <= high) return x;
    if (!(range > 0)) {
        *turn = 0;
        return low;
    }
    const double times = floor(outside / range), rest = outside - times * range;
    const bool even = times == 2 * floor(times / 2), from_low = (x < low) == even;
    *turn = even ? -1 : 1;
    return from_low ? low + rest : high - rest;
}

INV_HD int64_t inv_sample_pixel(const inv_sample *s, int64_t i, int64_t len, double low, double high)
{
    double turn;
    if (i >= 0 && i < len) return i;
    if (s->padding == INV_SAMPLE_ZEROS) return -1;
    if (s->padding == INV_SAMPLE_BORDER) return i < 0 ? 0 : len - 1;
    i = (int64_t)inv_sample_reflect((double)i, low, high, &turn);
    return i < 0 ? 0 : i < len ? i : len - 1;
}

/* Keys' kernel of a = -0.75 for the tap at distance d = 1 + f, f, 1 - f, 2 - f, and how it changes with f. */
INV_HD void inv_sample_cubic(double f, double *w, double *dw)
{
    const double a = -0.75, d[4] = {1 + f, f, 1 - f, 2 - f};
    for (int k = 0; k < 4; k++) {
        const bool far = k == 0 || k == 3;
        const double x = d[k];
        w[k] = far ? ((a * x - 5 * a) * x + 8 * a) * x - 4 * a : ((a + 2) * x - (a + 3)) * x * x + 1;
        dw[k] = far ? (3 * a * x - 10 * a) * x + 8 * a : (3 * (a + 2) * x - 2 * (a + 3)) * x;
        if (k > 1) dw[k] = -dw[k];
    }
}

/* Taps along an axis for a coordinate. */
INV_HD inv_sample_taps inv_sample_axis(const inv_sample *s, int64_t len, double at)
{
    inv_sample_taps t;
    const bool centers = s->unit == INV_SAMPLE_CENTERS;
    const double last = (double)len - 1, low = centers ? 0 : -0.5, high = centers ? last : (double)len - 0.5;
    double slope = 1, turn = 1, x = at;
    if (s->unit == INV_SAMPLE_EDGES) {
        slope = (double)len / 2;
        x = ((at + 1) * (double)len - 1) / 2;
    } else if (centers) {
        slope = last / 2;
        x = (at + 1) / 2 * last;
    }
    /* Far outside and NaN: nothing is sampled, or the border. */
    if (!(x > -1e9)) x = -1e9;
    if (x > 1e9) x = 1e9;
    if (s->mode == INV_SAMPLE_NEAREST) x = rint(x);
    /* Pixels repeated beyond the border are the same for a point that is held there, unless four of them count. */
    if (s->padding == INV_SAMPLE_BORDER && s->mode != INV_SAMPLE_CUBIC && (x < low || x > high)) {
        x = x < low ? 0 : last;
        turn = 0;
    } else if (s->padding == INV_SAMPLE_REFLECTION) {
        x = inv_sample_reflect(x, low, high, &turn);
    }
    const double first = floor(x), f = x - first;
    t.n = s->mode == INV_SAMPLE_NEAREST ? 1 : s->mode == INV_SAMPLE_LINEAR ? 2 : 4;
    const int64_t from = (int64_t)first - (s->mode == INV_SAMPLE_CUBIC ? 1 : 0);
    if (s->mode == INV_SAMPLE_CUBIC) {
        inv_sample_cubic(f, t.w, t.dw);
    } else {
        t.w[0] = s->mode == INV_SAMPLE_LINEAR ? 1 - f : 1;
        t.w[1] = f;
        t.dw[0] = s->mode == INV_SAMPLE_LINEAR ? -1 : 0;
        t.dw[1] = 1;
    }
    for (int k = 0; k < t.n; k++) {
        t.at[k] = inv_sample_pixel(s, from + k, len, low, high);
        t.dw[k] *= slope * turn;
    }
    return t;
}

/* Which number of a point belongs to an axis. */
INV_HD int inv_sample_number(const inv_sample *s, int axis)
{
    return s->unit == INV_SAMPLE_PIXELS ? axis : s->axes - 1 - axis;
}

/* Taps of all axes for one point; those that are absent have one tap. */
INV_HD void inv_sample_taps_at(const inv_sample *s, const double *point, inv_sample_taps t[INV_SAMPLE_AXES])
{
    for (int a = 0; a < INV_SAMPLE_AXES; a++) {
        if (a < s->axes) {
            t[a] = inv_sample_axis(s, s->len[a], point[inv_sample_number(s, a)]);
        } else {
            t[a].n = 1;
            t[a].at[0] = 0;
            t[a].w[0] = 1;
            t[a].dw[0] = 0;
        }
    }
}

/* Taps of a point, and the tap number k of them: its pixel (-1: outside) and weight. `by`: weights' change along that
 * axis instead. */
INV_HD int inv_sample_count(const inv_sample *s)
{
    const int each = s->mode == INV_SAMPLE_NEAREST ? 1 : s->mode == INV_SAMPLE_LINEAR ? 2 : 4;
    int n = 1;
    for (int a = 0; a < s->axes; a++) n *= each;
    return n;
}

INV_HD int64_t inv_sample_tap(const inv_sample *s, const inv_sample_taps *t, int k, int by, double *w)
{
    const int c = k % t[2].n, b = k / t[2].n % t[1].n, a = k / t[2].n / t[1].n;
    *w = (by == 0 ? t[0].dw[a] : t[0].w[a]) * (by == 1 ? t[1].dw[b] : t[1].w[b]) * (by == 2 ? t[2].dw[c] : t[2].w[c]);
    if (t[0].at[a] < 0 || t[1].at[b] < 0 || t[2].at[c] < 0) return -1;
    return (t[0].at[a] * s->len[1] + t[1].at[b]) * s->len[2] + t[2].at[c];
}

/* Scratch memory of sample_grad_x: a weight for each tap, and what sorting takes. */
static inline size_t inv_sample_workspace(const inv_sample *s)
{
    const int64_t taps = s->n * s->points * inv_sample_count(s);
    return (size_t)taps * sizeof(double) + inv_group_workspace(taps, s->channels);
}

#ifdef __cplusplus
extern "C" {
#endif
/* float32 or float64. gx: zeros before. */
INV_LAUNCHER(sample, const inv_sample *s, inv_dtype t, const void *x, const void *points, void *y);
INV_LAUNCHER(sample_grad_x, const inv_sample *s, inv_dtype t, const void *gy, const void *points, void *gx, void *ws);
INV_LAUNCHER(sample_grad_points, const inv_sample *s, inv_dtype t, const void *gy, const void *x, const void *points,
             void *gpoints);
#ifdef __cplusplus
}
#endif

#endif
