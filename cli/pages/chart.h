/* SPDX-License-Identifier: Apache-2.0
 * Curves as SVG: numbers over steps, or over anything that grows. Long ones are kept and drawn as a bounded number of
 * stretches, each with the smallest and the largest of its numbers, so that no peak is lost. */
#ifndef INVONNX_CLI_CHART_H
#define INVONNX_CLI_CHART_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

/** The numbers between two places on the x axis. */
typedef struct cli_span {
    double first, last, low, high, sum;
    int64_t n;
} cli_span;

typedef struct cli_series {
    cli_span *at;
    size_t n, room;
    double width; /* on the x axis, of a span; 0: each number has its own */
} cli_series;

/** Adds a number; `x` must not be smaller than the last one. Numbers that are not finite are left out. With a `width`
 *  spans are joined in twos when there are too many. @return false: out of memory */
bool cli_series_add(cli_series *s, double x, double y);
void cli_series_fini(cli_series *s);

/** One line of a chart. */
typedef struct cli_chart_line {
    const char *label;
    const cli_series *series;
} cli_chart_line;

enum { CLI_CHART_LINES = 2 };
typedef struct cli_chart {
    const char *title, *x_name;
    cli_chart_line line[CLI_CHART_LINES];
    size_t nline;
    bool log_x;
    bool bytes;      /* numbers are bytes, from 0 on */
    double from, to; /* ends of the x axis; both 0: those of the numbers */
    double mark;     /* a place on the x axis to be marked; NaN: none */
    const char *mark_label;
} cli_chart;

/** The style of charts, which stands once in a page, or in an SVG file of one chart. */
void cli_put_chart_style(FILE *f);
/** An svg element. `style`: with the style inside, as a file of its own needs it. Nothing if there are no numbers. */
void cli_put_chart(FILE *f, const cli_chart *chart, bool style);

/** A picture of the loss over the learning rate, which grows, in a file .svg or .html (lr_picture.c).
 *  @param suggested a rate to be marked; NaN: none
 *  @return CLI_OK, or what was said */
int cli_lr_picture(const char *path, const double *rate, const double *loss, size_t n, double suggested);

/** Whether a picture of this name is an SVG file; else it is a page. */
bool cli_is_svg(const char *path);

#endif
