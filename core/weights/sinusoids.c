/* SPDX-License-Identifier: Apache-2.0
 * Tables of waves, known by their values: of Fourier transforms and of sinusoidal positions (Vaswani et al. 2017). */
#include <math.h>

#include "core/weights/trained.h"

static double elem(const inv_data *d, size_t at) { return inv_elem_double(d->bytes, d->dtype, at); }

double inv_wave_rounding(const inv_data *d) { return inv_dtype_size(d->dtype) < sizeof(float) ? 0.02 : 0.001; }

/* The extents that are not 1, of two at most. @return how many, 0 if there are more or values are missing */
static size_t extents_of(const inv_value *x, size_t extent[2])
{
    size_t n = 0;
    extent[0] = extent[1] = 1;
    for (int i = 0; i < x->shape.rank; i++) {
        if (x->shape.dim[i] == 1) continue;
        if (n == 2) return 0;
        extent[n++] = (size_t)x->shape.dim[i];
    }
    return inv_data_count(&x->data) == extent[0] * extent[1] ? n : 0;
}

enum { MANY = 16, BREAKS = 4 }; /* frequencies that make a series, and places where another one may begin */

/* One sample of waves of evenly spaced frequencies: the sum of both neighbours is the same multiple of each, 2 cos a,
 * whatever window they were multiplied with. @return false if it is not so; *of is 2 if nothing but zeros is there */
static bool is_of_waves(const inv_data *d, size_t at, size_t stride, size_t n, double *of)
{
    const double off = inv_wave_rounding(d);
    double most = 0, near = 0;
    size_t top = 1, breaks = 0;
    *of = 2;
    for (size_t k = 0; k < n; k++) {
        const double x = fabs(elem(d, at + k * stride));
        if (x > most) most = x;
        if (x > near && k >= 1 && k <= n / 4) near = x, top = k;
    }
    if (near * 4 < most || most == 0) return most == 0;
    for (size_t k = 0; k < n - 1; k++) { /* first the one that the multiple is read from */
        const size_t i = (k == 0 ? top : k) * stride;
        const double x = elem(d, at + i);
        const double sum = elem(d, at + i - stride) + elem(d, at + i + stride);
        if (k == 0) *of = sum / x;
        if (fabs(*of) > 2 + off || (fabs(sum - *of * x) > off * most && ++breaks > BREAKS)) return false;
    }
    return true;
}

static bool is_transform(const inv_data *d, size_t stride, size_t n, size_t step, size_t samples)
{
    double low = 2, high = -2;
    if (n < MANY || samples < MANY) return false;
    for (size_t j = 0; j < samples; j++) {
        double of;
        if (!is_of_waves(d, j * step, stride, n, &of)) return false;
        low = fmin(low, of);
        high = fmax(high, of);
    }
    return high - low > 1; /* what is smooth only has neighbours whose sum is about twice as large */
}

bool inv_holds_fourier(const inv_value *x, uint32_t roles)
{
    size_t extent[2];
    if ((roles & INV_USE_ROLES) != 1u << INV_USE_WEIGHT || extents_of(x, extent) < 2) return false;
    return is_transform(&x->data, extent[1], extent[0], 1, extent[1]) ||
           is_transform(&x->data, 1, extent[1], extent[1], extent[0]);
}

/* Whether one feature of n positions is a wave: the sum of both neighbours is the same multiple of each, 2 cos of the
 * frequency, found by least squares. Position `padding` is no part of it. */
static bool is_wave(const inv_data *d, size_t at, size_t stride, size_t n, size_t padding, double *of)
{
    double top = 0, both = 0, own = 0;
    for (size_t p = 1; p + 1 < n; p++) {
        if (p + 1 >= padding && p <= padding + 1) continue;
        const double x = elem(d, at + p * stride);
        own += x * x;
        both += x * (elem(d, at + (p - 1) * stride) + elem(d, at + (p + 1) * stride));
        top = fmax(top, fabs(x));
    }
    if (own <= 0 || top > 1 + inv_wave_rounding(d)) return false;
    *of = both / own;
    for (size_t p = 1; p + 1 < n; p++) {
        if (p + 1 >= padding && p <= padding + 1) continue;
        const double sum = elem(d, at + (p - 1) * stride) + elem(d, at + (p + 1) * stride);
        if (fabs(sum - *of * elem(d, at + p * stride)) > inv_wave_rounding(d) * top) return false;
    }
    return fabs(*of) <= 2 + inv_wave_rounding(d);
}

/* The row of zeros, which tables have for padding; none: one that is far behind the last. */
static size_t padding_of(const inv_data *d, size_t rows, size_t columns)
{
    for (size_t row = 0; row < rows; row++) {
        size_t k = 0;
        while (k < columns && elem(d, row * columns + k) == 0) k++;
        if (k == columns) return row;
    }
    return 2 * rows;
}

/* Rows are positions, columns features, of frequencies from 1 down. */
static bool is_position_table(const inv_data *d, size_t rows, size_t columns)
{
    enum { FEWEST_ROWS = 8, FEWEST_COLUMNS = 4, SEEN = 256 }; /* further rows are left in the file */
    const double spread = 0.5; /* from 2 cos 1 to 2; of what is only smooth all are near 2 */
    double low = 2, high = -2;
    if (rows < FEWEST_ROWS || columns < FEWEST_COLUMNS) return false;
    if (rows > SEEN) rows = SEEN;
    const size_t padding = padding_of(d, rows, columns);
    for (size_t k = 0; k < columns; k++) {
        double of;
        if (!is_wave(d, k, columns, rows, padding, &of)) return false;
        low = fmin(low, of);
        high = fmax(high, of);
    }
    return high - low > spread;
}

/* Positive, and none smaller, or none larger, than the one before. */
static bool is_series(const inv_data *d, size_t n)
{
    enum { FEW = 4 }; /* of fewer, which may be in order by chance, one is 1: there series begin */
    bool up = true, down = true;
    if (n < FEW && elem(d, 0) != 1 && elem(d, n - 1) != 1) return false;
    for (size_t i = 0; i < n; i++) {
        if (!(elem(d, i) > 0)) return false;
        up = up && (i == 0 || elem(d, i) >= elem(d, i - 1));
        down = down && (i == 0 || elem(d, i) <= elem(d, i - 1));
    }
    return up != down;
}

bool inv_holds_positions(const inv_value *x, uint32_t roles)
{
    const uint32_t both = 1u << INV_USE_SINE | 1u << INV_USE_COSINE, role = roles & INV_USE_ROLES;
    const uint32_t table = 1u << INV_USE_TABLE | 1u << INV_USE_OPERAND;
    size_t extent[2];
    const size_t n = extents_of(x, extent);
    if (n == 1 && (roles & both) == both) return is_series(&x->data, extent[0]);
    return n == 2 && role && !(role & ~table) && is_position_table(&x->data, extent[0], extent[1]);
}
