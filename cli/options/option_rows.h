/* SPDX-License-Identifier: Apache-2.0
 * The rows of option_rows.inc as data, for what reads the command line and what describes it. */
#ifndef INVONNX_CLI_OPTION_ROWS_H
#define INVONNX_CLI_OPTION_ROWS_H

#include <stddef.h>
#include <stdio.h>

#include "cli/options/command_line.h"

enum {
    CLI_ROW_FLAG,
    CLI_ROW_TEXT,
    CLI_ROW_LIST,
    CLI_ROW_INT,
    CLI_ROW_SIZE,
    CLI_ROW_REAL,
    CLI_ROW_CHOICE,
    CLI_ROW_GROUP
};

/** What an option needs to have an effect: the rows of option_needs.inc. */
typedef enum cli_need {
    CLI_NEED_nothing,
#define NEED(name, met, text) CLI_NEED_##name,
#include "option_needs.inc"
#undef NEED
} cli_need;
/** NULL if it is there; else what it is, as text (option_needs.c). @param value what the option was given, NULL of a
 *  flag */
const char *cli_need_missing(const cli_options *o, cli_need need, const char *value);

typedef struct cli_row {
    int kind;
    size_t offset;    /* of the field in cli_options */
    const char *name; /* without dashes */
    char letter;
    unsigned on;   /* bit per command; none of a group */
    cli_need need; /* what it has an effect with */
    const char *argument;
    const cli_choice *choices;
    double least;
    const char *help; /* title, of a group */
} cli_row;

enum {
    CLI_NROWS = 0
#define GROUP(title) +1
#define FLAG(field, name, letter, on, help) +1
#define TEXT(field, name, letter, on, arg, help) +1
#define LIST(field, name, letter, on, arg, help) +1
#define INT(field, name, letter, on, arg, value, least, help) +1
#define SIZE(field, name, letter, on, arg, help) +1
#define REAL(field, name, letter, on, arg, value, least, help) +1
#define CHOICE(field, name, letter, on, words, value, help) +1
#include "option_rows.inc"
};
extern const cli_row cli_rows[CLI_NROWS];

void cli_set_defaults(cli_options *o);
/** "sgd|momentum|..." or "FILE", as the option takes it; nothing of a flag. */
void cli_row_argument(FILE *f, const cli_row *r);
/** The same; the caller frees it. NULL: out of memory. */
char *cli_row_argument_text(const cli_row *r);
/** The options of a command as descriptions of it have them, those used most first, with the groups that they are in
 *  before them. @param out room for 2 + CLI_NROWS. @return how many */
size_t cli_rows_of(int command, const cli_row **out);
/** What holds of several of these: "May be repeated: --data, ...". The caller frees it. NULL: out of memory. */
char *cli_rows_remark(const cli_row *const *rows, size_t n);

#endif
