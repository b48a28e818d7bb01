/* SPDX-License-Identifier: Apache-2.0
 * Memory over one step as a picture, drawn from the library's reports. */
#ifndef INVONNX_PICTURES_PICTURE_H
#define INVONNX_PICTURES_PICTURE_H

#include <jansson.h>
#include <stdbool.h>
#include <stdio.h>

enum { PIC_PANELS = 3, PIC_WIDTH = 960 };
/** What a picture of memory shows: one panel per report, the titles above them; of the last one, what is not NULL. */
typedef struct pic_memory {
    const char *heading;
    const json_t *reports[PIC_PANELS];
    const char *titles[PIC_PANELS];
    size_t n;
    const json_t *curve;       /* overhead against peak: list of peak_bytes, overhead, bound; the report's is marked */
    const json_t *explanation; /* pages only: what each block does */
} pic_memory;
/** Draws it: an SVG file, or an HTML page around it. @return false: out of memory */
bool pic_put_memory(FILE *f, const pic_memory *drawn, bool page);

/* picture_plan.c: the curve as part of an svg element, from y on, of the class `mem`; and the table of blocks */
int pic_curve_height(const json_t *curve);
void pic_put_curve(FILE *f, const pic_memory *drawn, double y);
void pic_put_block_plans(FILE *f, const json_t *explanation);

#endif
