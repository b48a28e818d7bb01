/* SPDX-License-Identifier: Apache-2.0
 * The drawing of an explanation. */
#ifndef INVONNX_CLI_EXPLAIN_DRAW_H
#define INVONNX_CLI_EXPLAIN_DRAW_H

#include <jansson.h>
#include <stdio.h>

/** The drawing alone, an svg element; `kinds`: the number of each kind of block.
 *  @return CLI_OK, or what was said */
int cli_explain_draw(FILE *f, const json_t *explanation, const json_t *kinds);
enum { CLI_COLOURS = 8 /* css classes k0 to k7, by the number of the kind */ };

#endif
