/* SPDX-License-Identifier: Apache-2.0
 * What is written of the program for others: manual pages, the reference of the documents, completions of shells. */
#ifndef INVONNX_CLI_MANUAL_H
#define INVONNX_CLI_MANUAL_H

#include <stdio.h>

/** Words, in lines of less than 80 columns, all but the last with `end`, if that is not "":
 *  then the text is a command, whose options stay with their values. It begins in column `at`, further lines
 *  after `indent` (help.c). */
void cli_put_lines(FILE *f, const char *text, size_t at, size_t indent, const char *end);

/* Completions, of all commands in one file (completion.c); the number is not read. */
void cli_put_bash(FILE *f, int command);
void cli_put_zsh(FILE *f, int command);
void cli_put_fish(FILE *f, int command);

/** What `--help` shows; of all commands if `command` is -1 (help.c). */
void cli_help(int command);
/** Writes manual pages, completions of shells and the reference of the documents into a folder, all from the rows of
 *  commands and options (manual.c, completion.c). @return CLI_OK, or what was said */
int cli_write_pages(const char *folder);

#endif
