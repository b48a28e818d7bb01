/* SPDX-License-Identifier: Apache-2.0
 * The lines of a file of options: NAME VALUE, NAME = VALUE, or NAME alone. */
#ifndef INVONNX_CLI_OPTIONS_FILE_H
#define INVONNX_CLI_OPTIONS_FILE_H

#include <stdbool.h>
#include <stdio.h>

typedef struct cli_setting {
    char *name, *value; /* in the text that is read; value NULL: the line has a name alone */
    int line;           /* from 1 on; 0 before the first call */
} cli_setting;

/** The next line that is neither empty nor a comment. `text`, which the call moves on, is changed in place.
 *  @param wrong what is wrong with this line; NULL: nothing
 *  @return false: there is none */
bool cli_setting_next(char **text, cli_setting *s, const char **wrong);
/** Writes a line, without its end, that is read as these two; value NULL: the name alone. */
void cli_setting_put(FILE *f, const char *name, const char *value);

#endif
