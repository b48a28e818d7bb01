/* SPDX-License-Identifier: Apache-2.0
 * What --help shows, made from the rows of commands and options. */
#include <stdlib.h>
#include <string.h>

#include "cli/options/manual.h"
#include "cli/options/option_rows.h"
#include "cli/say/terminal.h"

enum { COLUMN = 28 /* where descriptions begin */ };

/* With its value. */
static size_t option_length(const char *text)
{
    const char *next = strstr(text, " -");
    return next ? (size_t)(next - text) : strlen(text);
}

void cli_put_lines(FILE *f, const char *text, size_t at, size_t indent, const char *end)
{
    bool begins = true;
    while (*text) {
        const size_t n = strcspn(text, " ");
        size_t whole = n;
        if (*end) whole = *text == '-' ? option_length(text) : 0; /* an option and its value stay together */
        if (!begins && at + 1 + whole + strlen(end) >= 80) {
            fprintf(f, "%s\n%*s", end, (int)indent, "");
            at = indent;
            begins = true;
        }
        fprintf(f, "%s%.*s", begins ? "" : " ", (int)n, text);
        at += n + !begins;
        begins = false;
        text += n;
        text += strspn(text, " ");
    }
    fputc('\n', f);
}

static void put_wrapped(const char *text, size_t at, size_t indent) { cli_put_lines(stdout, text, at, indent, ""); }

static void put_described(const char *left, const char *text)
{
    size_t at = 2 + strlen(left);
    printf("  %s", left);
    if (at + 2 > COLUMN) putchar('\n');
    printf("%*s", at + 2 > COLUMN ? COLUMN : (int)(COLUMN - at), "");
    put_wrapped(text, COLUMN, COLUMN);
}

/* Closed lists may be longer than a line: their words are then the beginning of the description. */
static void put_option(const cli_row *r)
{
    char left[80], letter[8] = "", *argument = cli_row_argument_text(r), *text = NULL;
    size_t n = 0;
    const bool shown = argument && strlen(argument) < 48;
    if (r->letter) (void)snprintf(letter, sizeof letter, "-%c, ", r->letter);
    (void)snprintf(left, sizeof left, "%s--%s%s%s", letter, r->name, argument && *argument ? " " : "",
                   shown ? argument : "KIND");
    FILE *f = open_memstream(&text, &n);
    if (f) {
        for (const cli_choice *c = shown ? NULL : r->choices; c && c->word; c++)
            fprintf(f, "%s%s", c->word, c[1].word ? ", " : ": ");
        fputs(r->help, f);
        fclose(f);
        put_described(left, text ? text : r->help);
    }
    free(argument);
    free(text);
}

static void help_on_all(void)
{
    printf("invonnx %s: trains imported ONNX models in little memory\n\nusage: invonnx COMMAND ...\n\n", inv_version());
    cli_heading("Commands");
    for (int i = 0; i < CLI_NCOMMANDS; i++) {
        printf("  %-11s", cli_commands[i].name);
        put_wrapped(cli_commands[i].line, 13, 13);
    }
    printf("\n`invonnx help COMMAND` lists the options; `man invonnx-COMMAND` says more.\n"
           "--json prints one JSON object on stdout.\n"
           "Exit status: 0 done, 1 the model or the data does not work, 2 wrong usage.\n");
    printf("Messages name pages (docs/...). They are in the source tree, and in\n"
           "share/doc/invonnx of an install.\n");
}

void cli_help(int command)
{
    const cli_row *rows[CLI_NROWS + 2];
    const cli_command *c = &cli_commands[command < 0 ? 0 : command];
    char usage[128];
    if (command < 0) {
        help_on_all();
        return;
    }
    (void)snprintf(usage, sizeof usage, "usage: invonnx %s %s%s[options]", c->name, c->args, *c->args ? " " : "");
    put_wrapped(usage, 0, 15);
    putchar('\n');
    put_wrapped(c->line, 0, 0);
    const size_t n = cli_rows_of(command, rows);
    for (size_t i = 0; i < n; i++) {
        if (rows[i]->kind != CLI_ROW_GROUP) put_option(rows[i]);
        else putchar('\n'), cli_heading(rows[i]->help);
    }
    char *remark = cli_rows_remark(rows, n);
    putchar('\n');
    if (remark) put_wrapped(remark, 0, 0);
    free(remark);
    putchar('\n');
    cli_heading("Example");
    printf("  ");
    cli_put_lines(stdout, c->example, 2, 6, " \\");
}
