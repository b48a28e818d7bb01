/* SPDX-License-Identifier: Apache-2.0
 * Pictures: a file decoded to 8-bit RGB, and that brought to the extents and numbers that a model takes. */
#ifndef INVONNX_DATA_IMAGE_H
#define INVONNX_DATA_IMAGE_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "invonnx/invonnx.h"

typedef struct image {
    int64_t width, height;
    unsigned char *rgb; /* [height, width, 3] */
} image;

/** Whether a file's name ends as those of pictures do. */
bool image_has_suffix(const char *name);
/** Decodes a JPEG or PNG file, told apart by its first bytes. Grey is spread to RGB, transparency left out, 16 bits cut
 *  to 8, and JPEG turned upright as its EXIF says. @param why the reason on failure, without the path, no newline */
bool image_read(const char *path, image *out, FILE *why);
void image_fini(image *m);

/** Tag 0x0112 of the first directory of an APP1 segment's `n` bytes, "Exif" and so on: 1 to 8; 1, upright, where there
 *  is none or the bytes are damaged. */
int image_exif_orientation(const unsigned char *exif, size_t n);
/** Turns and mirrors a picture that was stored with this orientation. @return false: no memory */
bool image_turn_upright(image *m, int orientation);

/** What a model takes of a picture. */
typedef struct image_form {
    int64_t width, height;
    int channels;       /* 1: luma of ITU-R BT.601; 3: RGB */
    bool channels_last; /* [H, W, C], not [C, H, W] */
    inv_dtype dtype;    /* INV_U8: bytes; INV_F32: (byte / 255 - mean) / deviation */
    int64_t resize;     /* short side before the crop; 0: the least that covers width and height */
    float mean[3], deviation[3];
} image_form;

/** Where the crop lies, of what there is room for, each from 0 to 1; and whether left and right change places. */
typedef struct image_choice {
    double left, top;
    bool flip;
} image_choice;

/** Resizes (bilinear; smaller with antialias: the triangle is as wide as the step), cuts out, and writes
 *  channels * width * height numbers to `out`. `centre`: the crop is in the middle, whatever `choice` says of it.
 *  @param why on failure: the picture is too small after the resize, or no memory */
bool image_fit(const image *m, const image_form *form, const image_choice *choice, bool centre, void *out, FILE *why);

#endif
