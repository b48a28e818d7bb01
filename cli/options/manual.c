/* SPDX-License-Identifier: Apache-2.0
 * Manual pages and the reference of the documents, from the rows of commands and options. The build asks for them:
 * `invonnx --write-pages FOLDER`. */
#include "cli/options/manual.h"

#include <stdlib.h>
#include <string.h>

#include "cli/files/write_files.h"
#include "cli/options/option_rows.h"

static const char *const environment[][2] = {
    {"INVONNX_COST", "Default of --cost: `time` or `flops`."},
    {"NO_COLOR", "If set, terminal output has no colors."},
    {"COLUMNS", "Width of the progress line, if the terminal does not report one."},
    {"XDG_CACHE_HOME", "Folder for caches (default ~/.cache). invonnx/ in it has the speeds of this machine."},
    {"TMPDIR", "Folder for rows from a pipe, and for weights that cannot be saved elsewhere (default /tmp)."},
    {"INVONNX_NO_CUDNN", "If set, convolutions on a GPU do not use cuDNN."},
    {"OPENBLAS_CORETYPE, OMP_WAIT_POLICY", "Settings of OpenBLAS and OpenMP. If unset, the program chooses the fastest "
                                           "for this machine."},
};
static const char *const statuses[][2] = {
    {"0", "Done."},
    {"1", "The model or the data does not work. The message names the node, the cause and a fix."},
    {"2", "Wrong usage."},
    {"129, 130, 143", "`train`: a hang-up, Ctrl-C or SIGTERM ended it after the step; the weights are saved."},
};
enum { NENVIRONMENT = sizeof environment / sizeof *environment, NSTATUSES = sizeof statuses / sizeof *statuses };

/* --- roff --- */

/* Text of a line: what is between backquotes is bold, and nothing of it is a request. */
static void put_roff(FILE *f, const char *text)
{
    bool bold = false;
    if (*text == '.' || *text == '\'') fputs("\\&", f);
    for (; *text; text++) {
        switch (*text) {
        case '\\': fputs("\\e", f); break;
        case '-': fputs("\\-", f); break;
        case '\'': fputs("\\(aq", f); break;
        case '^': fputs("\\(ha", f); break;
        case '~': fputs("\\(ti", f); break;
        case '`': fputs((bold = !bold) ? "\\fB" : "\\fR", f); break;
        default: fputc(*text, f);
        }
    }
}

static void put_roff_line(FILE *f, const char *text)
{
    put_roff(f, text);
    fputc('\n', f);
}

/* As it is typed, in lines that fit. */
static void put_roff_example(FILE *f, const char *example)
{
    char *text = NULL;
    size_t n = 0;
    FILE *lines = open_memstream(&text, &n);
    if (!lines) return;
    cli_put_lines(lines, example, 7, 11, " \\"); /* behind the margin of a page */
    fclose(lines);
    if (text) put_roff(f, text);
    free(text);
}

static void put_roff_table(FILE *f, const char *title, const char *const (*rows)[2], size_t n)
{
    fprintf(f, ".SH %s\n", title);
    for (size_t i = 0; i < n; i++) {
        fputs(".TP\n.B ", f);
        put_roff_line(f, rows[i][0]);
        put_roff_line(f, rows[i][1]);
    }
}

static void put_roff_option(FILE *f, const cli_row *r)
{
    fputs(".TP\n", f);
    if (r->letter) fprintf(f, "\\fB\\-%c\\fR, ", r->letter);
    fputs("\\fB\\-\\-", f);
    put_roff(f, r->name);
    fputs("\\fR", f);
    char *argument = cli_row_argument_text(r);
    if (argument && *argument) {
        fputs(" \\fI", f);
        put_roff(f, argument);
        fputs("\\fR", f);
    }
    free(argument);
    fputc('\n', f);
    put_roff_line(f, r->help);
}

static void put_roff_title(FILE *f, const char *name, const char *line)
{
    fputs(".\\\" SPDX-License-Identifier: Apache-2.0\n.TH \"", f);
    put_roff(f, name);
    fprintf(f, "\" 1 \"\" \"invonnx %s\" \"User Commands\"\n.nh\n.ad l\n.SH NAME\n", inv_version());
    put_roff(f, name);
    fputs(" \\- ", f);
    put_roff_line(f, line);
    fputs(".SH SYNOPSIS\n", f);
}

static void put_main_page(FILE *f, int command)
{
    (void)command;
    put_roff_title(f, "invonnx", "trains imported ONNX models in little memory");
    fputs(".B invonnx\n.I COMMAND\n\\&...\n.br\n.B invonnx help\n.I COMMAND\n.SH DESCRIPTION\n", f);
    put_roff_line(f,
                  "invonnx trains a network from an ONNX file. It finds by algebra which activations can be computed "
                  "from later ones. A training step frees these in forward and reconstructs them in backward.");
    put_roff_line(f,
                  "The peak of memory is known before the first step. Every reconstructed value is checked. The result "
                  "is the same file with other weights.");
    fputs(".SH COMMANDS\n", f);
    for (int i = 0; i < CLI_NCOMMANDS; i++) {
        fprintf(f, ".TP\n\\fBinvonnx\\-%s\\fR(1)\n", cli_commands[i].name);
        put_roff_line(f, cli_commands[i].line);
    }
    put_roff_table(f, "EXIT STATUS", statuses, NSTATUSES);
    put_roff_table(f, "ENVIRONMENT", environment, NENVIRONMENT);
    fputs(".SH FILES\n.TP\n.I /usr/share/doc/invonnx/docs\n", f);
    put_roff_line(f, "The pages that messages name (docs/...), if a package installed the program.");
    fputs(".SH EXAMPLES\n.nf\n", f);
    static const int shown[] = {CLI_CMD_inspect, CLI_CMD_plan, CLI_CMD_train};
    for (size_t i = 0; i < sizeof shown / sizeof *shown; i++) put_roff_example(f, cli_commands[shown[i]].example);
    fputs(".fi\n", f);
}

static void put_command_page(FILE *f, int command)
{
    const cli_command *c = &cli_commands[command];
    const cli_row *rows[CLI_NROWS + 2];
    char name[64];
    (void)snprintf(name, sizeof name, "invonnx-%s", c->name);
    put_roff_title(f, name, c->line);
    fprintf(f, "\\fBinvonnx %s\\fR ", c->name);
    put_roff(f, c->args);
    fputs(*c->args ? " " : "", f);
    fputs("[\\fIoptions\\fR]\n.SH DESCRIPTION\n", f);
    put_roff_line(f, c->about);
    fputs(".SH OPTIONS\n", f);
    const size_t n = cli_rows_of(command, rows);
    char *remark = cli_rows_remark(rows, n);
    put_roff_line(f, remark ? remark : "");
    free(remark);
    for (size_t i = 0; i < n; i++) {
        if (rows[i]->kind == CLI_ROW_GROUP) fprintf(f, ".SS %s\n", rows[i]->help);
        else put_roff_option(f, rows[i]);
    }
    fputs(".SH EXAMPLE\n.nf\n", f);
    put_roff_example(f, c->example);
    fputs(".fi\n", f);
    put_roff_table(f, "EXIT STATUS", statuses, command == CLI_CMD_train ? NSTATUSES : NSTATUSES - 1);
    fputs(".SH SEE ALSO\n.BR invonnx (1)\n", f);
}

/* --- the reference of the documents, in Markdown --- */

/* What HTML would take for its own is written so that it does not. */
static void put_markdown(FILE *f, const char *text)
{
    bool code = false;
    for (; *text; text++) {
        if (*text == '`') code = !code;
        if (!code && strchr("*_<|", *text)) fputc('\\', f);
        fputc(*text, f);
    }
}

static void put_markdown_table(FILE *f, const char *title, const char *const (*rows)[2], size_t n)
{
    fprintf(f, "\n## %s\n\n| | |\n| --- | --- |\n", title);
    for (size_t i = 0; i < n; i++) {
        fprintf(f, "| `%s` | ", rows[i][0]);
        put_markdown(f, rows[i][1]);
        fputs(" |\n", f);
    }
}

static void put_markdown_option(FILE *f, const cli_row *r)
{
    char *argument = cli_row_argument_text(r);
    fputs("- ", f);
    if (r->letter) fprintf(f, "`-%c`, ", r->letter);
    fprintf(f, "`--%s%s%s`: ", r->name, argument && *argument ? " " : "", argument ? argument : "");
    free(argument);
    put_markdown(f, r->help);
    fputc('\n', f);
}

static void put_reference(FILE *f, int command)
{
    (void)command;
    const cli_row *rows[CLI_NROWS + 2];
    fputs("# The command line\n\nWritten by `invonnx --write-pages`; do not edit. "
          "`invonnx help COMMAND` and `man invonnx-COMMAND` say the same.\n\n",
          f);
    for (int i = 0; i < CLI_NCOMMANDS; i++) {
        const cli_command *c = &cli_commands[i];
        fprintf(f, "## %s\n\n`invonnx %s%s%s`: ", c->name, c->name, *c->args ? " " : "", c->args);
        put_markdown(f, c->line);
        fputs(".\n\n", f);
        put_markdown(f, c->about);
        fprintf(f, "\n\n    %s\n", c->example);
        const size_t n = cli_rows_of(i, rows);
        char *remark = cli_rows_remark(rows, n);
        fprintf(f, "\n%s\n", remark ? remark : "");
        free(remark);
        for (size_t k = 0; k < n; k++) {
            if (rows[k]->kind == CLI_ROW_GROUP) fprintf(f, "\n%s:\n\n", rows[k]->help);
            else put_markdown_option(f, rows[k]);
        }
        fputc('\n', f);
    }
    put_markdown_table(f, "Exit status", statuses, NSTATUSES);
    put_markdown_table(f, "Environment", environment, NENVIRONMENT);
}

static int write_page(const char *folder, const char *name, void (*put)(FILE *, int), int command)
{
    cli_file file;
    char *path = malloc(strlen(folder) + strlen(name) + 2);
    if (!path) return cli_fail("out of memory");
    sprintf(path, "%s/%s", folder, name);
    int status = cli_file_open(&file, path);
    free(path);
    if (status != CLI_OK) return status;
    put(file.f, command);
    return cli_file_close(&file, true);
}

int cli_write_pages(const char *folder)
{
    static const struct {
        const char *name;
        void (*put)(FILE *, int);
    } pages[] = {{"invonnx.1", put_main_page},
                 {"cli.md", put_reference},
                 {"invonnx.bash", cli_put_bash},
                 {"_invonnx", cli_put_zsh},
                 {"invonnx.fish", cli_put_fish}};
    bool made;
    int status = cli_make_dir(folder, &made);
    for (size_t i = 0; i < sizeof pages / sizeof *pages && status == CLI_OK; i++)
        status = write_page(folder, pages[i].name, pages[i].put, -1);
    for (int i = 0; i < CLI_NCOMMANDS && status == CLI_OK; i++) {
        char name[64];
        (void)snprintf(name, sizeof name, "invonnx-%s.1", cli_commands[i].name);
        status = write_page(folder, name, put_command_page, i);
    }
    return status;
}
