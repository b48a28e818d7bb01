/* SPDX-License-Identifier: Apache-2.0
 * Names in a model are whatever its author wrote, codes that rule a terminal among them. What goes to stdout, and every
 * message, passes through here: control characters come out as \u001b, which in JSON is the same text. */
#define _GNU_SOURCE
#include "cli.h"

#include <string.h>
#include <unistd.h>

/* Text may come in pieces that end within a character. */
typedef struct plain {
    FILE *f;
    unsigned char held[2]; /* bytes of which the next one tells whether they are a control character */
    int nheld;
    int follow; /* bytes of this character that are still to come */
} plain;

static void release(plain *p)
{
    fwrite(p->held, 1, (size_t)p->nheld, p->f);
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
        fprintf(p->f, "\\u%04x", p->nheld == 1 ? c : 0x2000u | (c & 0x3fu));
        p->nheld = p->follow = 0;
    } else if (p->nheld == 1 && p->held[0] == 0xe2 && c == 0x80) {
        p->held[p->nheld++] = c;
        p->follow--;
    } else if (more && p->follow > 0) {
        release(p);
        putc(c, p->f);
        p->follow--;
    } else {
        release(p);
        p->follow = c >= 0xf0 ? 3 : c >= 0xe0 ? 2 : c >= 0xc0 ? 1 : 0;
        if ((c < 0x20 && c != '\n') || c == 0x7f || more) fprintf(p->f, "\\u%04x", c);
        else if (c == 0xc2 || c == 0xe2) p->held[p->nheld++] = c;
        else putc(c, p->f);
    }
}

void cli_put_plain(FILE *f, const char *text, size_t n)
{
    plain p = {.f = f};
    for (size_t i = 0; i < n; i++) put_char(&p, (unsigned char)text[i]);
    release(&p);
}

static ssize_t plain_write(void *cookie, const char *text, size_t n)
{
    plain *p = cookie;
    cli_progress_clear();
    for (size_t i = 0; i < n; i++) put_char(p, (unsigned char)text[i]);
    return fflush(p->f) == 0 && !ferror(p->f) ? (ssize_t)n : 0;
}

void cli_plain_stdout(void)
{
    static plain p;
    p.f = stdout;
    FILE *f = fopencookie(&p, "w", (cookie_io_functions_t){.write = plain_write});
    if (!f) return;
    if (isatty(STDOUT_FILENO)) setvbuf(f, NULL, _IOLBF, BUFSIZ);
    stdout = f;
}
