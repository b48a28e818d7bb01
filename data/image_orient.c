/* SPDX-License-Identifier: Apache-2.0
 * Which way up a picture is, as a camera notes it in EXIF, and the picture turned so. Source: CIPA DC-008 (Exif 2.32),
 * sections 4.6.2 and 4.6.4. The bytes may be of anybody's making: each is read only after its place has been compared
 * with the length. */
#include <stdlib.h>
#include <string.h>

#include "data/image.h"

enum { UPRIGHT = 1, ENTRY = 12 /* bytes of an entry of a directory */ };

/* A number of `n` bytes, the most significant one first or last. */
static uint32_t exif_number(const unsigned char *p, int n, bool large_first)
{
    uint32_t x = 0;
    for (int i = 0; i < n; i++) x = x << 8 | p[large_first ? i : n - 1 - i];
    return x;
}

int image_exif_orientation(const unsigned char *exif, size_t n)
{
    enum { HEAD = 6, TIFF_HEAD = 8, TAG = 0x0112, SHORT = 3, LONG = 4 };
    int found = UPRIGHT;
    if (n < HEAD + TIFF_HEAD || memcmp(exif, "Exif\0\0", HEAD) != 0) return UPRIGHT;
    const unsigned char *tiff = exif + HEAD;
    const size_t size = n - HEAD;
    const bool large_first = memcmp(tiff, "MM\0*", 4) == 0;
    if (!large_first && memcmp(tiff, "II*\0", 4) != 0) return UPRIGHT;
    const size_t directory = exif_number(tiff + 4, 4, large_first);
    if (directory > size - 2) return UPRIGHT;
    const size_t entries = exif_number(tiff + directory, 2, large_first);
    for (size_t i = 0, at = directory + 2; i < entries && size - at >= ENTRY; i++, at += ENTRY) {
        const unsigned char *entry = tiff + at;
        const uint32_t type = exif_number(entry + 2, 2, large_first), count = exif_number(entry + 4, 4, large_first);
        if (exif_number(entry, 2, large_first) != TAG || count != 1 || (type != SHORT && type != LONG)) continue;
        const uint32_t value = exif_number(entry + 8, type == SHORT ? 2 : 4, large_first);
        found = value >= 1 && value <= 8 ? (int)value : UPRIGHT;
    }
    return found;
}

bool image_turn_upright(image *m, int orientation)
{
    /* Where a pixel of the upright picture is in the file: its row and column are exchanged, then the column is counted
     * from the right, and the row from the bottom. */
    static const struct {
        bool swapped, from_right, from_bottom;
    } how[] = {
        [2] = {false, true, false}, [3] = {false, true, true}, [4] = {false, false, true}, [5] = {true, false, false},
        [6] = {true, false, true},  [7] = {true, true, true},  [8] = {true, true, false}};
    if (orientation <= UPRIGHT || orientation > 8) return true;
    const int64_t width = how[orientation].swapped ? m->height : m->width;
    const int64_t height = how[orientation].swapped ? m->width : m->height;
    unsigned char *rgb = malloc((size_t)(width * height) * 3), *out = rgb;
    if (!rgb) return false;
    for (int64_t y = 0; y < height; y++) {
        for (int64_t x = 0; x < width; x++, out += 3) {
            int64_t column = how[orientation].swapped ? y : x, row = how[orientation].swapped ? x : y;
            if (how[orientation].from_right) column = m->width - 1 - column;
            if (how[orientation].from_bottom) row = m->height - 1 - row;
            memcpy(out, m->rgb + 3 * (row * m->width + column), 3);
        }
    }
    free(m->rgb);
    *m = (image){width, height, rgb};
    return true;
}
