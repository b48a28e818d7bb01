/* SPDX-License-Identifier: Apache-2.0
 * What the command line said: the command, its options, and questions about them. */
#ifndef INVONNX_CLI_COMMAND_LINE_H
#define INVONNX_CLI_COMMAND_LINE_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "cli/say/messages.h"

enum {
#define COMMAND(name, args, line, about, first, example) CLI_CMD_##name,
#include "cli/options/commands.inc"
#undef COMMAND
    CLI_NCOMMANDS
};

typedef struct cli_list {
    char **item;
    size_t n;
} cli_list;

typedef struct cli_choice {
    const char *word; /* NULL ends the list */
    int value;
} cli_choice;

extern const cli_choice cli_losses[], cli_optimizers[], cli_schedules[], cli_weights[], cli_memories[], cli_modes[],
    cli_guards[], cli_precisions[], cli_shards[], cli_layouts[], cli_costs[], cli_windows[], cli_tokens[];
enum { CLI_WINDOWS_RANDOM, CLI_WINDOWS_SEQUENTIAL };
enum { CLI_COST_DEFAULT, CLI_COST_TIME, CLI_COST_FLOPS };
enum { CLI_SHARD_OPEN = -1 }; /* --shard was not given */

/** An option as it was given. */
typedef struct cli_given {
    int row;          /* of option_rows.inc */
    const char *name; /* without dashes */
    char *text;       /* NULL: it takes none */
    const char *file; /* file of options that has it; NULL: the command line */
    int line;         /* of that file */
} cli_given;

/** What the command line said. Fields named in option_rows.inc; `argument` are the words that are no options. */
typedef struct cli_options {
    int command;
    cli_list argument;
    cli_given *said; /* all of them in order, those of files first; their texts are those of the fields */
    size_t nsaid;
#define GROUP(title)
#define FLAG(field, name, letter, on, help) bool field;
#define TEXT(field, name, letter, on, arg, help) char *field;
#define LIST(field, name, letter, on, arg, help) cli_list field;
#define INT(field, name, letter, on, arg, value, least, help) int64_t field;
#define SIZE(field, name, letter, on, arg, help) int64_t field;
#define REAL(field, name, letter, on, arg, value, least, help) double field;
#define CHOICE(field, name, letter, on, words, value, help) int field;
#include "cli/options/option_rows.inc"
} cli_options;

typedef struct cli_command {
    const char *name, *args, *line;
    const char *about; /* a paragraph or two, for its page */
    const char *first; /* names of the options that are used most, ten at most */
    const char *example;
} cli_command;
extern const cli_command cli_commands[CLI_NCOMMANDS];

/** Reads `argv` (without program and command name), and the files of options that it names.
 *  @return CLI_OK, or what was said on stderr; cli_options_fini in any case */
int cli_options_read(cli_options *o, int command, int argc, char **argv);
/** Refuses what has no effect in this run (option_needs.inc). @return CLI_OK, or what was said */
int cli_options_check(const cli_options *o);
/** Writes MODEL and options as --options reads them, with `between` between them, "\n" in a file. */
void cli_options_put(const cli_options *o, FILE *f, const char *between);
void cli_options_fini(cli_options *o);
/** A failure of wrong usage, with a hint to the help; `o`: of which command, NULL: of none. @return CLI_USAGE */
int cli_usage(const cli_options *o, const char *format, ...) CLI_PRINTF(2, 3);

/** Whether --device is one of the host. */
bool cli_on_host(const cli_options *o);
/** How many files of a log options name. */
size_t cli_log_wanted(const cli_options *o);
/** The option by which a field of the library's options is given, "--train-only"; NULL: by none. */
const char *cli_option_name(const char *field);
/** Of the commands that take a step, these call an option of `train` that they have not "--drop-last of `train`". */
void cli_option_names_for(int command);
const char *cli_choice_word(const cli_choice *choices, int value);

#endif
