/* SPDX-License-Identifier: Apache-2.0
 * Tables of a report on stdout. */
#ifndef INVONNX_CLI_SHOW_H
#define INVONNX_CLI_SHOW_H

#include <jansson.h>
#include <stdbool.h>
#include <stdio.h>

const char *cli_overhead(const json_t *report); /* "plan +x %, bound +y %, gap z %"; valid until the next call */
void cli_show_peaks(const json_t *report);
/** One line if the mode saves nothing against storing all values. */
void cli_show_saving(const json_t *report);
void cli_show_choices(const json_t *report);
/** Largest drift and fallbacks; `each`: of every value too. */
void cli_show_drift(const json_t *report, bool each);
/* Which operators and which nodes take longest; nothing if nodes were not timed. */
void cli_show_profile(const json_t *report);
/** The names of an array, joined by ", ", at most `limit` of them. */
void cli_show_names(FILE *f, const json_t *names, size_t limit);

#endif
