/* SPDX-License-Identifier: Apache-2.0
 * How far training is: one line that is rewritten on a terminal, plain lines now and then elsewhere. On stderr. */
#include "cli.h"

#include <unistd.h>

void cli_progress_start(cli_progress *p, int64_t total, int64_t epochs, double peak)
{
    double now = cli_now();
    *p = (cli_progress){.terminal = isatty(STDERR_FILENO) != 0,
                        .total = total,
                        .epochs = epochs,
                        .started = now,
                        .last_line = now,
                        .peak = peak};
}

static void print_eta(double seconds)
{
    int64_t s = (int64_t)(seconds + 0.5);
    if (s >= 3600)
        fprintf(stderr, "%lld:%02lld:%02lld", (long long)(s / 3600), (long long)(s / 60 % 60), (long long)(s % 60));
    else
        fprintf(stderr, "%lld:%02lld", (long long)(s / 60), (long long)(s % 60));
}

static void print_bar(double share)
{
    enum { CELLS = 20 };
    char bar[CELLS + 1];
    for (int i = 0; i < CELLS; i++) bar[i] = i < (int)(share * CELLS) ? '=' : i == (int)(share * CELLS) ? '>' : ' ';
    bar[CELLS] = 0;
    fprintf(stderr, "[%s] ", bar);
}

void cli_progress_step(cli_progress *p, int64_t epoch, int64_t done, int64_t samples, double loss)
{
    double now = cli_now(), share = (double)done / (double)p->total;
    bool due = p->terminal ? now - p->last_line >= 0.1 || done == p->total
                           : now - p->last_line >= 1 && (share - p->last_percent >= 0.1 || now - p->last_line >= 10);
    if (!due) return;
    p->last_line = now;
    p->last_percent = share;
    double spent = now - p->started;
    if (p->terminal) {
        fputs("\r\033[K", stderr);
        print_bar(share);
    }
    fprintf(stderr, "epoch %lld/%lld  step %lld/%lld  loss %.4f  %.4g samples/s  ETA ", (long long)epoch,
            (long long)p->epochs, (long long)done, (long long)p->total, cli_unsigned_nan(loss),
            spent > 0 ? (double)samples / spent : 0);
    print_eta(spent * (double)(p->total - done) / (double)done);
    fprintf(stderr, "  peak %s%s", cli_bytes(p->peak), p->terminal ? "" : "\n");
    p->shown = p->terminal;
    fflush(stderr);
}

void cli_progress_clear(cli_progress *p)
{
    if (p->shown) fputs("\r\033[K", stderr);
    p->shown = false;
}
