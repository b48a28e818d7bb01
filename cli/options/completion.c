/* SPDX-License-Identifier: Apache-2.0
 * Completion for bash, zsh and fish, from the rows of commands and options: what each option takes is found once, by
 * its closed list or by how its argument is called, and said in the words of each shell. */
#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#include "cli/options/manual.h"
#include "cli/options/option_rows.h"

enum { TAKES_NOTHING, TAKES_WORDS, TAKES_FILES, TAKES_FOLDERS, TAKES_OTHER, NTAKES };

/* The words of "none|imagenet|MEAN/DEV" that stand for themselves, with `between` between them; none of those in
 * "GLOB=store|recompute", which come behind something. @return how many */
static int put_words(FILE *f, const char *text, const char *between)
{
    int words = 0;
    if (strchr(text, '=')) return 0;
    while (strchr(text, '|') || words) {
        const size_t n = strcspn(text, "|");
        bool plain = n > 0;
        for (size_t i = 0; i < n; i++) plain = plain && !isupper((unsigned char)text[i]) && !strchr("=:%", text[i]);
        if (plain) {
            if (f) fprintf(f, "%s%.*s", words ? between : "", (int)n, text);
            words++;
        }
        if (!text[n]) break;
        text += n + 1;
    }
    return words;
}

static int takes(const cli_row *r)
{
    if (r->choices) return TAKES_WORDS;
    if (!r->argument) return TAKES_NOTHING;
    if (put_words(NULL, r->argument, "")) return TAKES_WORDS;
    if (strstr(r->argument, "FILE") || strstr(r->argument, ".onnx")) return TAKES_FILES;
    return strstr(r->argument, "DIR") ? TAKES_FOLDERS : TAKES_OTHER;
}

static void put_row_words(FILE *f, const cli_row *r, const char *between)
{
    for (const cli_choice *c = r->choices; c && c->word; c++)
        fprintf(f, "%s%s", c == r->choices ? "" : between, c->word);
    if (!r->choices) put_words(f, r->argument, between);
}

/* The first clause, in single quotes; `quote`: how a quote is written within these, `marked`: what has a backslash. */
static void put_clause(FILE *f, const char *text, const char *quote, const char *marked)
{
    for (; *text && *text != ';' && *text != ':' && !(text[0] == '.' && text[1] == ' ') && strncmp(text, " (", 2) != 0;
         text++) {
        if (*text == '\'') {
            fputs(quote, f);
        } else {
            if (strchr(marked, *text)) fputc('\\', f);
            fputc(*text, f);
        }
    }
}

/* The arguments of a command, also those that may be left out. */
static const char *words_of(const cli_command *c) { return c->args + (*c->args == '['); }

/* Those of the first argument, "merge|extract|show". */
static void put_first_words(FILE *f, const char *args)
{
    char *first = strndup(args, strcspn(args, " "));
    if (first) put_words(f, first, " ");
    free(first);
}

static void put_command_names(FILE *f)
{
    for (int i = 0; i < CLI_NCOMMANDS; i++) fprintf(f, "%s ", cli_commands[i].name);
    fputs("help", f);
}

/* --- bash --- */

/* "--feed|--data|-o": all options that take the same, of whatever command. */
static void put_bash_case(FILE *f, int what)
{
    const char *between = "    ";
    for (int i = 0; i < CLI_NROWS; i++) {
        const cli_row *r = &cli_rows[i];
        if (!r->on || takes(r) != what) continue;
        if (what == TAKES_WORDS) {
            fprintf(f, "    --%s) words='", r->name);
            put_row_words(f, r, " ");
            fputs("' ;;\n", f);
            continue;
        }
        fprintf(f, "%s--%s", between, r->name);
        if (r->letter) fprintf(f, " | -%c", r->letter);
        between = " | ";
    }
    if (what == TAKES_FILES) fputs(") kind=files ;;\n", f);
    if (what == TAKES_FOLDERS) fputs(") kind=folders ;;\n", f);
    if (what == TAKES_OTHER) fputs(") return ;;\n", f);
}

void cli_put_bash(FILE *f, int command)
{
    (void)command;
    fputs("# SPDX-License-Identifier: Apache-2.0\n# Completion of invonnx for bash.\n_invonnx() {\n"
          "    local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD - 1]} words='' kind='' filter=''\n"
          "    COMPREPLY=()\n"
          "    if [ \"$COMP_CWORD\" -eq 1 ] || { [ \"$COMP_CWORD\" -eq 2 ] && [ \"$prev\" = help ]; }; then\n"
          "        mapfile -t COMPREPLY < <(compgen -W '",
          f);
    put_command_names(f);
    fputs(" --help --version' -- \"$cur\")\n        return\n    fi\n"
          "    # --option=value and NAME=FILE are three words to bash.\n"
          "    if [ \"$cur\" = = ]; then\n        cur='' kind=files\n"
          "    elif [ \"$prev\" = = ]; then\n        prev=${COMP_WORDS[COMP_CWORD - 2]} kind=files\n    fi\n"
          "    case $prev in\n",
          f);
    for (int what = TAKES_WORDS; what < NTAKES; what++) put_bash_case(f, what);
    fputs("    *)\n        case ${COMP_WORDS[1]} in\n", f);
    for (int i = 0; i < CLI_NCOMMANDS; i++) {
        const cli_row *rows[CLI_NROWS + 2];
        const char *args = words_of(&cli_commands[i]);
        const size_t n = cli_rows_of(i, rows);
        fprintf(f, "        %s) words='", cli_commands[i].name);
        for (size_t k = 0; k < n; k++)
            if (rows[k]->kind != CLI_ROW_GROUP) fprintf(f, " --%s", rows[k]->name);
        fputc('\'', f);
        if (put_words(NULL, args, "")) {
            fputs(" && [[ $COMP_CWORD -eq 2 && $cur != -* ]] && kind=words words='", f);
            put_first_words(f, args);
            fputc('\'', f);
        }
        fputs(" ;;\n", f);
    }
    fputs("        esac\n"
          "        if [[ $kind != words && $cur != -* ]]; then\n"
          "            [ \"$kind\" = files ] || filter='!*.onnx*'\n            kind=files words=''\n        fi\n"
          "        ;;\n    esac\n"
          "    if [ -n \"$words\" ]; then\n        mapfile -t COMPREPLY < <(compgen -W \"$words\" -- \"$cur\")\n"
          "    elif [ \"$kind\" = folders ]; then\n        compopt -o filenames\n"
          "        mapfile -t COMPREPLY < <(compgen -d -- \"$cur\")\n"
          "    elif [ \"$kind\" = files ]; then\n        compopt -o filenames\n"
          "        mapfile -t COMPREPLY < <(compgen -f ${filter:+-X \"$filter\"} -- \"$cur\"\n"
          "            [ -z \"$filter\" ] || compgen -d -- \"$cur\")\n"
          "    fi\n}\ncomplete -F _invonnx invonnx\n",
          f);
}

/* --- zsh --- */

static void put_zsh_option(FILE *f, const cli_row *r)
{
    static const char *const actions[NTAKES] = {
        [TAKES_FILES] = "_invonnx_files", [TAKES_FOLDERS] = "_files -/", [TAKES_OTHER] = " "};
    const int what = takes(r);
    const char *equals = what ? "=" : "";
    fputs("            ", f);
    if (r->letter) fprintf(f, "'(-%c --%s)'{-%c,--%s%s}'[", r->letter, r->name, r->letter, r->name, equals);
    else fprintf(f, "'%s--%s%s[", r->kind == CLI_ROW_LIST ? "*" : "", r->name, equals);
    put_clause(f, r->help, "'\\''", "[]:");
    fputc(']', f);
    if (what == TAKES_WORDS) {
        fprintf(f, ":%s:(", r->name);
        put_row_words(f, r, " ");
        fputc(')', f);
    } else if (what) {
        fprintf(f, ":%s:%s", r->name, actions[what]);
    }
    fputs("' \\\n", f);
}

static void put_zsh_command(FILE *f, int command)
{
    const char *args = words_of(&cli_commands[command]);
    const cli_row *rows[CLI_NROWS + 2];
    const size_t n = cli_rows_of(command, rows);
    fprintf(f, "    %s)\n        _arguments \\\n", cli_commands[command].name);
    for (size_t k = 0; k < n; k++)
        if (rows[k]->kind != CLI_ROW_GROUP) put_zsh_option(f, rows[k]);
    if (!strncmp(args, "MODEL", 5)) fputs("            '1:model:_files -g \"*.onnx\"'\n        ;;\n", f);
    else if (*args) {
        fputs("            '1:what:(", f);
        put_first_words(f, args);
        fputs(")' '2:file:_files'\n        ;;\n", f);
    } else fputs("            '*::'\n        ;;\n", f);
}

void cli_put_zsh(FILE *f, int command)
{
    (void)command;
    fputs("#compdef invonnx\n# SPDX-License-Identifier: Apache-2.0\n# Completion of invonnx for zsh.\n"
          "_invonnx_files() {\n    compset -P '*='\n    _files\n}\n"
          "_invonnx() {\n    local -a commands=(\n",
          f);
    for (int i = 0; i < CLI_NCOMMANDS; i++) {
        fprintf(f, "        '%s:", cli_commands[i].name);
        put_clause(f, cli_commands[i].line, "'\\''", "");
        fputs("'\n", f);
    }
    fputs("        'help:the options of a command'\n    )\n"
          "    if ((CURRENT == 2)) || { ((CURRENT == 3)) && [[ $words[2] == help ]]; }; then\n"
          "        _describe command commands\n        return\n    fi\n"
          "    shift words\n    ((CURRENT--))\n    case $words[1] in\n",
          f);
    for (int i = 0; i < CLI_NCOMMANDS; i++) put_zsh_command(f, i);
    fputs("    esac\n}\n_invonnx \"$@\"\n", f);
}

/* --- fish --- */

static void put_fish_option(FILE *f, int command, const cli_row *r)
{
    static const char *const takers[NTAKES] = {"", " -x -a '", " -r -F", " -x -a '(__fish_complete_directories)'",
                                               " -x"};
    const int what = takes(r);
    fprintf(f, "complete -c invonnx -n '__fish_seen_subcommand_from %s' -l %s", cli_commands[command].name, r->name);
    if (r->letter) fprintf(f, " -s %c", r->letter);
    fputs(takers[what], f);
    if (what == TAKES_WORDS) {
        put_row_words(f, r, " ");
        fputc('\'', f);
    }
    fputs(" -d '", f);
    put_clause(f, r->help, "\\'", "\\");
    fputs("'\n", f);
}

void cli_put_fish(FILE *f, int command)
{
    (void)command;
    fputs("# SPDX-License-Identifier: Apache-2.0\n# Completion of invonnx for fish.\ncomplete -c invonnx -f\n", f);
    for (int i = 0; i < CLI_NCOMMANDS; i++) {
        const cli_command *c = &cli_commands[i];
        const char *args = words_of(c);
        const cli_row *rows[CLI_NROWS + 2];
        const size_t n = cli_rows_of(i, rows);
        fprintf(f, "complete -c invonnx -n __fish_use_subcommand -a %s -d '", c->name);
        put_clause(f, c->line, "\\'", "\\");
        fputs("'\n", f);
        if (put_words(NULL, args, "")) {
            fprintf(f, "complete -c invonnx -n '__fish_seen_subcommand_from %s; and not __fish_seen_subcommand_from ",
                    c->name);
            put_first_words(f, args);
            fputs("' -a '", f);
            put_first_words(f, args);
            fputs("'\ncomplete -c invonnx -n '__fish_seen_subcommand_from ", f);
            put_first_words(f, args);
            fputs("' -F\n", f);
        } else if (*args) {
            fprintf(f, "complete -c invonnx -n '__fish_seen_subcommand_from %s' -F\n", c->name);
        }
        for (size_t k = 0; k < n; k++)
            if (rows[k]->kind != CLI_ROW_GROUP) put_fish_option(f, i, rows[k]);
    }
    fputs("complete -c invonnx -n __fish_use_subcommand -a help -d 'the options of a command'\n"
          "complete -c invonnx -n '__fish_seen_subcommand_from help' -a '",
          f);
    for (int i = 0; i < CLI_NCOMMANDS; i++) fprintf(f, "%s%s", i ? " " : "", cli_commands[i].name);
    fputs("'\n", f);
}
