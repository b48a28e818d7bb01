/* SPDX-License-Identifier: Apache-2.0
 * Files of options (--options): a line per option, read into settings and written from what was given. */
#include "cli/options/options_file.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

/* --- reading --- */

static bool is_blank(char c) { return c == ' ' || c == '\t' || c == '\r' || c == '\v' || c == '\f'; }

static char *skip_blanks(char *p)
{
    while (is_blank(*p)) p++;
    return p;
}

/* In place: what stands between the quotes. In double quotes \ takes the next character as it is, but for \n. NULL: the
 * closing quote is missing. *rest: behind it. */
static char *unquote(char *p, char **rest)
{
    const char quote = *p++;
    char *out = p, *start = p;
    for (; *p && *p != quote; p++) {
        if (quote == '"' && *p == '\\' && p[1]) {
            p++;
            *out++ = (char)(*p == 'n' ? '\n' : *p);
        } else {
            *out++ = *p;
        }
    }
    if (*p != quote) return NULL;
    *rest = p + 1;
    *out = 0;
    return start;
}

/* A value without quotes: up to the line's end or a '#' behind a blank. */
static char *plain_value(char *p)
{
    char *end = p;
    while (*end && !(*end == '#' && end > p && is_blank(end[-1]))) end++;
    while (end > p && is_blank(end[-1])) end--;
    *end = 0;
    return p;
}

/* @return what is wrong with the line; NULL: nothing */
static const char *read_line(char *p, cli_setting *s)
{
    char *end = p + strcspn(p, "= \t\r\v\f");
    char *value = skip_blanks(end);
    const bool equals = *value == '=';
    if (equals) value = skip_blanks(value + 1);
    if (end == p) return "wants NAME VALUE, NAME = VALUE or NAME";
    *end = 0;
    s->name = p;
    s->value = NULL;
    if (*value == '"' || *value == '\'') {
        char *rest;
        s->value = unquote(value, &rest);
        if (!s->value) return "the closing quote is missing";
        rest = skip_blanks(rest);
        return *rest && *rest != '#' ? "text follows the closing quote" : NULL;
    }
    if (*value && *value != '#') s->value = plain_value(value);
    return equals && !s->value ? "no value follows '='; write an empty one as \"\"" : NULL;
}

bool cli_setting_next(char **text, cli_setting *s, const char **wrong)
{
    *wrong = NULL;
    while (**text) {
        char *line = *text, *end = line + strcspn(line, "\n");
        *text = *end ? end + 1 : end;
        *end = 0;
        s->line++;
        line = skip_blanks(line);
        if (!*line || *line == '#') continue;
        *wrong = read_line(line, s);
        return true;
    }
    return false;
}

/* --- writing --- */

static bool wants_quotes(const char *value)
{
    const size_t n = strlen(value);
    return n == 0 || strchr("\"'=#", value[0]) || is_blank(value[0]) || is_blank(value[n - 1]) || strpbrk(value, "\n#");
}

void cli_setting_put(FILE *f, const char *name, const char *value)
{
    fputs(name, f);
    if (value) fputc(' ', f);
    if (value && !wants_quotes(value)) {
        fputs(value, f);
    } else if (value) {
        fputc('"', f);
        for (; *value; value++) {
            if (*value == '"' || *value == '\\' || *value == '\n') fputc('\\', f);
            fputc(*value == '\n' ? 'n' : *value, f);
        }
        fputc('"', f);
    }
}
