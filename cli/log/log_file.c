/* SPDX-License-Identifier: Apache-2.0
 * A file that grows at its end, by whole records: a write that fails half way is taken back. */
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cli/log/run_log.h"

const char *const cli_scalar_name[CLI_NSCALARS] = {
    [CLI_LOSS] = "loss",           [CLI_LR] = "lr",       [CLI_GRAD_NORM] = "grad_norm",
    [CLI_MEMORY] = "memory_bytes", [CLI_DRIFT] = "drift", [CLI_FALLBACKS] = "fallbacks"};

bool cli_growing_open(cli_growing *g, const char *path, int64_t kept)
{
    g->fd = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
    g->flushed = kept;
    return g->fd >= 0 && ftruncate(g->fd, (off_t)kept) == 0;
}

static bool grow_text(cli_growing *g, size_t more)
{
    if (g->room - g->n >= more) return true;
    const size_t room = 2 * g->room + more + 4096;
    char *grown = realloc(g->text, room);
    if (!grown) {
        g->failed = true;
        return false;
    }
    g->text = grown;
    g->room = room;
    return true;
}

void cli_growing_add(cli_growing *g, const void *bytes, size_t n)
{
    if (g->failed || !grow_text(g, n)) return;
    memcpy(g->text + g->n, bytes, n);
    g->n += n;
}

void cli_growing_print(cli_growing *g, const char *format, ...)
{
    enum { USUAL = 256 };
    va_list args, again;
    if (g->failed || !grow_text(g, USUAL)) return;
    va_start(args, format);
    va_copy(again, args);
    const int n = vsnprintf(g->text + g->n, USUAL, format, args);
    if (n >= USUAL && grow_text(g, (size_t)n + 1)) (void)vsnprintf(g->text + g->n, (size_t)n + 1, format, again);
    va_end(again);
    va_end(args);
    if (n < 0) g->failed = true;
    if (!g->failed) g->n += (size_t)n;
}

/* A file that somebody has removed, or its folder, takes all that is written and shows nobody. */
static bool is_there(const cli_growing *g)
{
    struct stat st;
    if (fstat(g->fd, &st) == 0 && st.st_nlink > 0) return true;
    errno = ENOENT;
    return false;
}

bool cli_growing_flush(cli_growing *g)
{
    if (g->failed) errno = ENOMEM;
    if (g->failed || g->fd < 0 || (g->n > 0 && !is_there(g))) return false;
    size_t done = 0;
    while (done < g->n) {
        const ssize_t n = write(g->fd, g->text + done, g->n - done);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) break;
        done += (size_t)n;
    }
    if (done < g->n) {
        const int error = errno;
        (void)!ftruncate(g->fd, (off_t)g->flushed);
        errno = error;
        return false;
    }
    g->flushed += (int64_t)g->n;
    g->n = 0;
    return true;
}

void cli_growing_close(cli_growing *g)
{
    if (g->fd >= 0) close(g->fd);
    free(g->text);
    *g = (cli_growing){.fd = -1};
}
