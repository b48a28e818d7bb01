/* SPDX-License-Identifier: Apache-2.0
 * Places for the boxes and lines of a drawn graph. */
#ifndef INVONNX_CLI_GRAPH_LAYOUT_H
#define INVONNX_CLI_GRAPH_LAYOUT_H

#include <stdbool.h>
#include <stddef.h>

/** Boxes in layers: `layer`, `x` (the middle) and `width` of each, edges from lower to higher numbers. Dummies that
 *  long edges bend around are boxes behind the given ones. */
typedef struct cli_box {
    size_t layer;
    double x, width;
} cli_box;
typedef struct cli_line {
    size_t from, to;
    size_t first, bends; /* boxes that it runs through: dummies `first` and on */
} cli_line;
typedef struct cli_layout {
    cli_box *box;
    cli_line *line;
    size_t nbox, nline; /* as given; their widths too */
    size_t nall, nlayer;
    double width;
} cli_layout;
/** Fills in all but what is given. false: out of memory. box is reallocated */
bool cli_layout_find(cli_layout *l);

#endif
