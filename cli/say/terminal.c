/* SPDX-License-Identifier: Apache-2.0
 * Names in a model are whatever its author wrote, codes that rule a terminal among them. What goes to stdout, and every
 * message, passes through here: control characters come out as \u001b, which in JSON is the same text, and lines fit a
 * terminal. */
#define _GNU_SOURCE
#include "cli/say/terminal.h"

#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "cli/say/progress_bar.h"

enum { HANGS = 4, WORD = 256 };

/* Text may come in pieces that end within a character. On a terminal lines that are longer than it is wide are broken
 * at blanks, and go on a little to the right of where they began: in files and pipes a line is a line. */
typedef struct plain {
    FILE *f;
    size_t width;           /* of the terminal; 0: it is none */
    size_t column, begins;  /* where the next word would stand, and where the line began */
    size_t blanks, columns; /* before the word, and of it */
    char word[WORD];
    size_t nword;
    unsigned char held[2]; /* bytes of which the next one tells whether they are a control character */
    int nheld;
    int follow; /* bytes of this character that are still to come */
} plain;

static void put_word(plain *p)
{
    if (!p->nword) return;
    if (!p->column) p->begins = p->blanks;
    if (p->column > p->begins + HANGS && p->column + p->blanks + p->columns >= p->width) {
        p->column = 0;
        p->blanks = (p->begins < p->width / 2 ? p->begins : 0) + HANGS;
        putc('\n', p->f);
    }
    fprintf(p->f, "%*s", (int)p->blanks, "");
    fwrite(p->word, 1, p->nword, p->f);
    p->column += p->blanks + p->columns;
    p->blanks = p->columns = p->nword = 0;
}

static void put_byte(plain *p, unsigned char c)
{
    if (!p->width) {
        putc(c, p->f);
    } else if (c == '\n') {
        put_word(p);
        putc(c, p->f);
        p->column = p->blanks = 0;
    } else if (c == ' ') {
        put_word(p);
        p->blanks++;
    } else {
        if (p->nword == WORD) put_word(p);
        p->word[p->nword++] = (char)c;
        p->columns += c < 0x80 || c >= 0xc0;
    }
}

static void put_escaped(plain *p, unsigned c)
{
    char code[8];
    (void)snprintf(code, sizeof code, "\\u%04x", c & 0xffffu);
    for (const char *s = code; *s; s++) put_byte(p, (unsigned char)*s);
}

static void release(plain *p)
{
    for (int i = 0; i < p->nheld; i++) put_byte(p, p->held[i]);
    p->nheld = 0;
}

/* U+0080 to U+009f, and what turns the direction of writing: U+200e, U+200f, U+202a to U+202e. */
static bool is_held_control(const plain *p, unsigned char c)
{
    if (p->nheld == 1) return p->held[0] == 0xc2 && c >= 0x80 && c <= 0x9f;
    return (c >= 0xaa && c <= 0xae) || c == 0x8e || c == 0x8f;
}

static void put_char(plain *p, unsigned char c)
{
    bool more = c >= 0x80 && c < 0xc0;
    if (p->nheld && is_held_control(p, c)) {
        put_escaped(p, p->nheld == 1 ? c : 0x2000u | (c & 0x3fu));
        p->nheld = p->follow = 0;
    } else if (p->nheld == 1 && p->held[0] == 0xe2 && c == 0x80) {
        p->held[p->nheld++] = c;
        p->follow--;
    } else if (more && p->follow > 0) {
        release(p);
        put_byte(p, c);
        p->follow--;
    } else {
        release(p);
        p->follow = c >= 0xf0 ? 3 : c >= 0xe0 ? 2 : c >= 0xc0 ? 1 : 0;
        if ((c < 0x20 && c != '\n') || c == 0x7f || more) put_escaped(p, c);
        else if (c == 0xc2 || c == 0xe2) p->held[p->nheld++] = c;
        else put_byte(p, c);
    }
}

void cli_put_plain(FILE *f, const char *text, size_t n, size_t column)
{
    plain p = {.f = f, .column = column, .width = cli_columns(fileno(f))};
    for (size_t i = 0; i < n; i++) put_char(&p, (unsigned char)text[i]);
    release(&p);
    put_word(&p);
}

/* How many bytes from here on mean what they are, whatever came before: printable ASCII and line ends. */
static size_t count_plain(const char *text, size_t n)
{
    size_t i = 0;
    while (i < n && ((text[i] >= ' ' && text[i] <= '~') || text[i] == '\n')) i++;
    return i;
}

static ssize_t plain_write(void *cookie, const char *text, size_t n)
{
    plain *p = cookie;
    cli_progress_clear();
    for (size_t i = 0; i < n; i++) {
        const size_t as_it_is = p->width ? 0 : count_plain(text + i, n - i);
        if (as_it_is) {
            release(p);
            p->follow = 0;
            fwrite(text + i, 1, as_it_is, p->f);
            i += as_it_is;
        }
        if (i < n) put_char(p, (unsigned char)text[i]);
    }
    put_word(p);
    return fflush(p->f) == 0 && !ferror(p->f) ? (ssize_t)n : 0;
}

static plain out; /* what stdout goes through */

size_t cli_columns(int fd)
{
    struct winsize size;
    const char *text = getenv("COLUMNS");
    long n = 0;
    if (!isatty(fd)) return 0;
    if (ioctl(fd, TIOCGWINSZ, &size) == 0) n = size.ws_col;
    if (n <= 0 && text) n = strtol(text, NULL, 10);
    return n <= 0 ? 80 : (size_t)n;
}

void cli_plain_stdout(bool wrapped)
{
    out.f = stdout;
    out.width = wrapped ? cli_columns(STDOUT_FILENO) : 0;
    FILE *f = fopencookie(&out, "w", (cookie_io_functions_t){.write = plain_write});
    if (!f) return;
    if (isatty(STDOUT_FILENO)) setvbuf(f, NULL, _IOLBF, BUFSIZ);
    stdout = f;
}

bool cli_has_colours(int fd)
{
    const char *no = getenv("NO_COLOR"), *kind = getenv("TERM"); /* as no-color.org has it */
    return isatty(fd) && !(no && *no) && kind && *kind && strcmp(kind, "dumb") != 0;
}

/* Around the filter, which would show the codes. */
static void put_code(const char *code)
{
    fflush(stdout);
    fputs(code, out.f);
}

void cli_heading(const char *text)
{
    const bool bold = out.f && cli_has_colours(STDOUT_FILENO);
    if (bold) put_code("\033[1m");
    fputs(text, stdout);
    if (bold) put_code("\033[0m");
    putchar('\n');
}
#include "cli/say/terminal.h"

#include "cli/say/progress_bar.h"
