/* SPDX-License-Identifier: Apache-2.0
 * Lines of a table as text, RFC 4180: cells between commas, or tabs, in quotes where they hold such or line ends. */
#ifndef INVONNX_DATA_TABLE_LINES_H
#define INVONNX_DATA_TABLE_LINES_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

typedef struct table_lines {
    FILE *f;
    char separator;
    int64_t line, next; /* numbers, from 1: of the line that was read, and of that behind it */
    int64_t nbytes;     /* read so far */
    bool zero;          /* one of them was 0, as no text has it but of two bytes a character */
    char *text;         /* the cells of the line, each ended by 0 */
    size_t length, room;
    size_t *cell; /* where each begins */
    size_t ncells, cells_room;
} table_lines;

/** Reads the next line that is not empty. @param why set on failure: a quote that is not closed, a byte 0, no memory
 *  @return 1: there is one; 0: the file is at its end; -1: it failed */
int table_next_line(table_lines *t, FILE *why);
/** Cell i without blanks around it. */
char *table_cell(const table_lines *t, size_t i);
void table_lines_fini(table_lines *t);

#endif
