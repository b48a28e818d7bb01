/* SPDX-License-Identifier: Apache-2.0
 * How far work is: on a terminal one line of stderr, no longer than the terminal is wide, that is rewritten and erased;
 * elsewhere plain lines now and then. */
#include "cli/say/progress_bar.h"

#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli/say/messages.h"
#include "cli/say/terminal.h"

enum { LONGEST = 160, PLAIN = 100 /* columns of a plain line */, LEAST_CELLS = 5, MOST_CELLS = 20 };

static struct {
    bool quiet, terminal; /* is stderr one? */
    bool shown;           /* a line is there to be erased */
    double since;         /* when something was last shown, or the program began */
    char stage[64];       /* of cli_busy that has had its first plain line */
    const char *whole;    /* parts of what, if not NULL */
    int part, parts;
} live;

void cli_progress_init(bool quiet)
{
    live.quiet = quiet;
    live.terminal = isatty(STDERR_FILENO) != 0;
    live.since = cli_now();
}

/* Asked for with every line, since terminals change their size. */
static size_t columns(void)
{
    const size_t n = cli_columns(STDERR_FILENO);
    return !n ? 80 : n > LONGEST ? LONGEST : n;
}

void cli_progress_clear(void)
{
    live.since = cli_now();
    if (!live.shown) return;
    fputs("\r\033[K", stderr);
    fflush(stderr);
    live.shown = false;
}

/* The last column stays free: some terminals begin a new line when it is written. */
static void put_line(const char *text)
{
    fflush(stdout);
    fprintf(stderr, "\r%.*s\033[K", (int)columns() - 1, text);
    fflush(stderr);
    live.shown = true;
}

/* Behind what is in the text, if there is room for it. */
static void append_text(char *text, size_t room, const char *format, ...) CLI_PRINTF(3, 4);
static void append_text(char *text, size_t room, const char *format, ...)
{
    char more[LONGEST];
    const size_t n = strlen(text);
    va_list args;
    va_start(args, format);
    const int m = vsnprintf(more, sizeof more, format, args);
    va_end(args);
    if (m > 0 && (size_t)m < sizeof more && n + (size_t)m < room) memcpy(text + n, more, (size_t)m + 1);
}

/* "[====>     ] " before the text, as long as there is room for. */
static void add_bar(char *text, size_t room, double share)
{
    const size_t n = strlen(text), frame = 3;
    if (n + frame + LEAST_CELLS >= room) return;
    size_t cells = room - 1 - n - frame;
    if (cells > MOST_CELLS) cells = MOST_CELLS;
    const size_t full = (size_t)(share * (double)cells);
    memmove(text + cells + frame, text, n + 1);
    for (size_t i = 0; i < cells; i++) text[i + 1] = i < full ? '=' : i == full ? '>' : ' ';
    text[0] = '[';
    text[cells + 1] = ']';
    text[cells + 2] = ' ';
}

/* --- training --- */

void cli_progress_start(cli_progress *p, int64_t total, int64_t epochs)
{
    double now = cli_now();
    *p = (cli_progress){.total = total, .epochs = epochs, .started = now, .last_line = now};
}

static void add_time_left(char *text, size_t room, double seconds)
{
    int64_t s = (int64_t)(seconds + 0.5);
    if (s >= 3600)
        append_text(text, room, "  %lld:%02lld:%02lld left", (long long)(s / 3600), (long long)(s / 60 % 60),
                    (long long)(s % 60));
    else append_text(text, room, "  %lld:%02lld left", (long long)(s / 60), (long long)(s % 60));
}

void cli_progress_step(cli_progress *p, int64_t epoch, int64_t done, int64_t samples, double loss)
{
    const double now = cli_now(), share = (double)done / (double)p->total, spent = now - p->started;
    const bool apart = live.terminal && !isatty(cli_run_fd()); /* the run's lines go to a file all the same */
    const bool bar = live.terminal && !live.quiet && (now - p->last_bar >= 0.1 || done == p->total);
    const bool line = (!live.terminal || apart) && !live.quiet && now - p->last_line >= 1 &&
                      (share - p->last_share >= 0.1 || now - p->last_line >= 10);
    char text[LONGEST + 1] = "";
    if (!bar && !line) return;
    const size_t room = line ? PLAIN : columns();
    append_text(text, room, "epoch %lld/%lld  step %lld/%lld", (long long)epoch, (long long)p->epochs, (long long)done,
                (long long)p->total);
    append_text(text, room, "  loss %.5g", cli_unsigned_nan(loss));
    add_time_left(text, room, spent * (double)(p->total - done) / (double)done);
    append_text(text, room, "  %.4g rows/s", spent > 0 ? (double)samples / spent : 0);
    if (line) {
        cli_say("%s", text);
        p->last_line = now;
        p->last_share = share;
    }
    if (!bar) return;
    if (!line) add_bar(text, room, share);
    put_line(text);
    p->last_bar = now;
}

/* --- anything else --- */

void cli_busy_part(const char *stage, int part, int parts)
{
    live.whole = parts ? stage : NULL;
    live.part = part;
    live.parts = parts;
    if (parts) cli_busy(stage, 0);
}

void cli_busy(const char *stage, double share)
{
    const double now = cli_now();
    if (live.whole && stage != live.whole) {
        share = (live.part + share) / live.parts;
        stage = live.whole;
    } else if (live.whole) {
        share = (double)live.part / live.parts;
    }
    const bool same = strcmp(live.stage, stage) == 0;
    const double wait = live.terminal ? (live.shown ? 0.1 : 1) : same ? 10 : 1;
    if (live.quiet || now - live.since < wait) return;
    char text[LONGEST + 1] = "";
    snprintf(live.stage, sizeof live.stage, "%s", stage);
    append_text(text, columns(), "%s: %.0f %%", stage, 100 * share);
    if (live.terminal) {
        add_bar(text, columns(), share);
        put_line(text);
    } else {
        cli_note("%s", text);
    }
    live.since = now;
}
