/* SPDX-License-Identifier: Apache-2.0
 * Text for terminals, files and pipes. */
#ifndef INVONNX_CLI_TERMINAL_H
#define INVONNX_CLI_TERMINAL_H

#include <stdbool.h>
#include <stdio.h>

/** Text with control characters written as \u001b, and in lines that fit the terminal, if it is one; `column`: where
 * the text begins. Messages go through it, and after cli_plain_stdout all of stdout, in lines that fit if `wrapped`. */
void cli_put_plain(FILE *f, const char *text, size_t n, size_t column);
void cli_plain_stdout(bool wrapped);
/** How wide a terminal is; 0: it is none. */
size_t cli_columns(int fd);
/** Whether colours go to a descriptor: a terminal that is not dumb, and NO_COLOR is not set. */
bool cli_has_colours(int fd);
/** A line on stdout, bold where there are colours. */
void cli_heading(const char *text);

#endif
