/* SPDX-License-Identifier: Apache-2.0
 * From a picture of any size to what a model takes. Resizing weighs the pixels around a place by a triangle, which is
 * two pixels wide where the picture grows, and two steps wide where it shrinks; along y first, then along x, and only
 * for what is inside of the crop. Source: the usual definition of bilinear resampling with antialias. */
#include "data/image.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* The pixels that one resized pixel is made of. */
typedef struct taps {
    int64_t first, n;
    float *weight;
} taps;

/* For `n` pixels from `offset` on, of `size` that `extent` pixels are resized to. NULL: no memory */
static taps *make_taps(int64_t extent, int64_t size, int64_t offset, int64_t n)
{
    const double step = (double)extent / (double)size, reach = step > 1 ? step : 1;
    const int64_t most = (int64_t)ceil(2 * reach) + 2;
    taps *t = malloc((size_t)n * (sizeof *t + (size_t)most * sizeof(float)));
    if (!t) return NULL;
    float *weight = (float *)(void *)(t + n);
    for (int64_t i = 0; i < n; i++, weight += most) {
        const double centre = ((double)(offset + i) + 0.5) * step;
        int64_t first = (int64_t)floor(centre - reach + 0.5), last = (int64_t)floor(centre + reach + 0.5);
        if (first < 0) first = 0;
        if (last > extent) last = extent;
        double sum = 0;
        for (int64_t k = first; k < last; k++) sum += fmax(0, 1 - fabs(((double)k + 0.5 - centre) / reach));
        for (int64_t k = first; k < last; k++)
            weight[k - first] = (float)(fmax(0, 1 - fabs(((double)k + 0.5 - centre) / reach)) / sum);
        t[i] = (taps){first, last - first, weight};
    }
    return t;
}

/* `n` bytes of several rows, weighed. */
static void fit_down(const unsigned char *first, size_t pitch, const taps *t, size_t n, float *restrict out)
{
    memset(out, 0, n * sizeof *out);
    for (int64_t k = 0; k < t->n; k++) {
        const unsigned char *restrict row = first + (size_t)k * pitch;
        const float w = t->weight[k];
        for (size_t i = 0; i < n; i++) out[i] += w * (float)row[i];
    }
}

/* A row of the crop, from one that begins with pixel `first`. */
static void fit_across(const float *row, int64_t first, const taps *across, int64_t width, float *out)
{
    for (int64_t x = 0; x < width; x++) {
        const taps *t = &across[x];
        float sum[3] = {0, 0, 0};
        const float *p = row + 3 * (t->first - first);
        for (int64_t k = 0; k < t->n; k++, p += 3)
            for (int c = 0; c < 3; c++) sum[c] += t->weight[k] * p[c];
        memcpy(out + 3 * x, sum, sizeof sum);
    }
}

/* The crop as floating-point bytes, [height, width, 3]; NULL: no memory. */
static float *fit_crop(const image *m, const image_form *f, const taps *across, const taps *down)
{
    const int64_t first = across[0].first, last = across[f->width - 1].first + across[f->width - 1].n;
    const size_t n = (size_t)(last - first) * 3, pitch = (size_t)m->width * 3;
    float *row = malloc(n * sizeof *row), *crop = malloc((size_t)(f->height * f->width) * 3 * sizeof *crop);
    const bool ok = row && crop;
    for (int64_t y = 0; ok && y < f->height; y++) {
        fit_down(m->rgb + (size_t)down[y].first * pitch + (size_t)first * 3, pitch, &down[y], n, row);
        fit_across(row, first, across, f->width, crop + y * f->width * 3);
    }
    free(row);
    if (ok) return crop;
    free(crop);
    return NULL;
}

static void put_pixels(const image_form *f, const float *crop, bool flip, void *out)
{
    const int64_t pixels = f->width * f->height;
    for (int64_t y = 0; y < f->height; y++) {
        for (int64_t x = 0; x < f->width; x++) {
            const float *p = crop + 3 * (y * f->width + (flip ? f->width - 1 - x : x));
            for (int c = 0; c < f->channels; c++) {
                const float v = f->channels == 1 ? 0.299f * p[0] + 0.587f * p[1] + 0.114f * p[2] : p[c];
                const int64_t at = y * f->width + x, i = f->channels_last ? at * f->channels + c : c * pixels + at;
                if (f->dtype == INV_U8)
                    ((unsigned char *)out)[i] = (unsigned char)(v < 0 ? 0 : v > 255 ? 255 : lrintf(v));
                else ((float *)out)[i] = (v / 255 - f->mean[c]) / f->deviation[c];
            }
        }
    }
}

/* Extents after the resize. */
static void resized_extents(const image *m, const image_form *f, int64_t *width, int64_t *height)
{
    *width = m->width;
    *height = m->height;
    if (f->resize > 0) {
        const bool wide = m->width > m->height;
        *width = wide ? f->resize * m->width / m->height : f->resize;
        *height = wide ? f->resize : f->resize * m->height / m->width;
    } else if (m->width != f->width || m->height != f->height) {
        const double x = (double)f->width / (double)m->width, y = (double)f->height / (double)m->height;
        *width = x >= y ? f->width : (int64_t)lround((double)m->width * y);
        *height = x >= y ? (int64_t)lround((double)m->height * x) : f->height;
        if (*width < f->width) *width = f->width;
        if (*height < f->height) *height = f->height;
    }
}

/* `place` below 0: the middle. */
static int64_t crop_offset(int64_t spare, double place)
{
    const double at = place < 0 ? nearbyint((double)spare / 2) : floor(place * (double)(spare + 1));
    return at > (double)spare ? spare : (int64_t)at;
}

bool image_fit(const image *m, const image_form *form, const image_choice *choice, bool centre, void *out, FILE *why)
{
    int64_t width, height;
    resized_extents(m, form, &width, &height);
    const int64_t spare_x = width - form->width, spare_y = height - form->height;
    if (spare_x < 0 || spare_y < 0) {
        fprintf(why, "resized to %lld x %lld (width x height), it is smaller than the model's %lld x %lld",
                (long long)width, (long long)height, (long long)form->width, (long long)form->height);
        return false;
    }
    const int64_t left = crop_offset(spare_x, centre ? -1 : choice->left);
    const int64_t top = crop_offset(spare_y, centre ? -1 : choice->top);
    taps *across = make_taps(m->width, width, left, form->width);
    taps *down = make_taps(m->height, height, top, form->height);
    float *crop = across && down ? fit_crop(m, form, across, down) : NULL;
    if (crop) put_pixels(form, crop, choice->flip, out);
    else fputs("out of memory", why);
    free(across);
    free(down);
    free(crop);
    return crop != NULL;
}
