/* SPDX-License-Identifier: Apache-2.0
 * A table's text, one line at a time (see the header). Line ends are LF or CR LF; a byte order mark is passed over. */
#include "data/table_lines.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

static bool put_char(table_lines *t, char c)
{
    if (t->length == t->room) {
        const size_t room = 2 * t->room + 256;
        char *grown = realloc(t->text, room);
        if (!grown) return false;
        t->text = grown;
        t->room = room;
    }
    t->text[t->length++] = c;
    return true;
}

static bool begin_cell(table_lines *t)
{
    if (t->ncells == t->cells_room) {
        const size_t room = 2 * t->cells_room + 64;
        size_t *grown = realloc(t->cell, room * sizeof *grown);
        if (!grown) return false;
        t->cell = grown;
        t->cells_room = room;
    }
    t->cell[t->ncells++] = t->length;
    return true;
}

static int next_char(table_lines *t)
{
    const int c = getc_unlocked(t->f);
    t->nbytes += c != EOF;
    t->zero = t->zero || c == 0;
    return c;
}

enum { NOT_CLOSED = -2, NO_MEMORY = -3 }; /* beside characters and EOF */

/* The rest of a quoted cell, in which two quotes stand for one. What follows it is returned. */
static int read_quoted(table_lines *t)
{
    for (;;) {
        int c = next_char(t);
        if (c == EOF) return NOT_CLOSED;
        if (c == '"') {
            c = next_char(t);
            if (c != '"') return c;
        }
        t->next += c == '\n';
        if (!put_char(t, (char)c)) return NO_MEMORY;
    }
}

/* One line, empty or not. */
static int read_line(table_lines *t, FILE *why)
{
    t->length = t->ncells = 0;
    t->line = t->next;
    int c = next_char(t);
    if (t->line == 1 && c == 0xef) { /* a byte order mark */
        for (int k = 0; k < 3; k++) c = next_char(t);
    }
    if (c == EOF && !ferror(t->f)) return 0;
    bool ok = begin_cell(t), fresh = true; /* the cell has nothing but blanks yet */
    while (ok && c != EOF && c != '\n') {
        if (c == '"' && fresh) {
            c = read_quoted(t);
            fresh = false;
            if (c == NOT_CLOSED && !ferror(t->f))
                return fprintf(why, "line %lld: a quote is not closed", (long long)t->line), -1;
            ok = c != NO_MEMORY && c != NOT_CLOSED;
            continue;
        }
        ok = c == t->separator ? put_char(t, 0) && begin_cell(t) : put_char(t, (char)c);
        fresh = c == t->separator || (fresh && c == ' ');
        c = next_char(t);
    }
    t->next++;
    if (ferror(t->f)) return fprintf(why, "line %lld: %s", (long long)t->line, strerror(errno)), -1;
    if (t->zero)
        return fprintf(why, "line %lld: has a byte 0; if the table is UTF-16, save it as UTF-8", (long long)t->line),
               -1;
    if (ok && t->length && t->text[t->length - 1] == '\r') t->length--;
    if (!ok || !put_char(t, 0)) return fputs("out of memory", why), -1;
    return 1;
}

int table_next_line(table_lines *t, FILE *why)
{
    if (t->next == 0) t->next = 1;
    for (;;) {
        const int got = read_line(t, why);
        if (got != 1 || t->ncells > 1 || *table_cell(t, 0)) return got;
    }
}

char *table_cell(const table_lines *t, size_t i)
{
    char *text = t->text + t->cell[i];
    size_t n = strlen(text);
    while (n && (text[n - 1] == ' ' || text[n - 1] == '\t')) text[--n] = 0;
    return text + strspn(text, " \t");
}

void table_lines_fini(table_lines *t)
{
    if (t->f) fclose(t->f);
    free(t->text);
    free(t->cell);
    *t = (table_lines){0};
}
