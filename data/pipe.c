/* SPDX-License-Identifier: Apache-2.0
 * A .npy array from a pipe: the header, then rows, each read once and in order. The header says how many there are; no
 * more than a buffer and the batches that are prepared is ever in memory. */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "data/source.h"

enum { BUFFER = 1 << 16, LONGEST_HEADER = 1 << 16, MILLISECONDS = 100, PATIENCE = 5000 };

typedef struct pipe_end {
    int fd;
    char *name;
    unsigned char *buffer;
    size_t from, to; /* bytes of the buffer that have not been taken */
    size_t part;
    int64_t taken; /* rows */
} pipe_end;

static bool stdin_is_read; /* by the one source that may */

/* Waits until there is something, or somebody wants to end. false: it is over, or failed */
static bool fill_buffer(const data_source *s, pipe_end *p, FILE *why)
{
    p->from = p->to = 0;
    for (;;) {
        struct pollfd wait = {.fd = p->fd, .events = POLLIN};
        const int ready = poll(&wait, 1, MILLISECONDS);
        if (atomic_load(&s->stop)) return fputs("no longer wanted", why), false;
        if (ready == 0 || (ready < 0 && errno == EINTR)) continue;
        const ssize_t n = ready < 0 ? -1 : read(p->fd, p->buffer, BUFFER);
        if (n < 0 && (errno == EINTR || errno == EAGAIN)) continue;
        if (n < 0) fputs(strerror(errno), why);
        if (n > 0) p->to = (size_t)n;
        return n > 0;
    }
}

/* *got: bytes that came before the pipe was at its end. */
static bool take_bytes(const data_source *s, pipe_end *p, void *out, size_t nbytes, size_t *got, FILE *why)
{
    for (*got = 0; *got < nbytes;) {
        if (p->from == p->to && !fill_buffer(s, p, why)) return false;
        const size_t left = nbytes - *got, n = p->to - p->from < left ? p->to - p->from : left;
        memcpy((char *)out + *got, p->buffer + p->from, n);
        p->from += n;
        *got += n;
    }
    return true;
}

static bool pipe_fill(const data_source *s, const data_draw *draw, int64_t row, void *const out[DATA_FIELDS], FILE *why)
{
    pipe_end *p = s->state;
    size_t got;
    (void)draw;
    if (!out[p->part] || row != p->taken)
        return fprintf(why, "%s: row %lld was asked for after %lld rows; a pipe is read in order", p->name,
                       (long long)row, (long long)p->taken),
               false;
    char reason[256] = "";
    FILE *f = fmemopen(reason, sizeof reason, "w");
    const bool ok = f && take_bytes(s, p, out[p->part], s->field[p->part].nbytes, &got, f);
    if (f) fclose(f);
    if (ok) return p->taken++, true;
    fprintf(why, "%s: %s%sit ended after %lld of %lld rows", p->name, reason, *reason ? "; " : "", (long long)p->taken,
            (long long)s->nrows);
    return false;
}

static const char *pipe_place(const data_source *s, int64_t row, int64_t *number, const char **unit)
{
    *number = row;
    *unit = "row";
    return ((const pipe_end *)s->state)->name;
}

static void pipe_close(data_source *s)
{
    pipe_end *p = s->state;
    if (!p) return;
    if (p->fd == STDIN_FILENO) stdin_is_read = false;
    if (p->fd > STDIN_FILENO) close(p->fd);
    free(p->name);
    free(p->buffer);
    free(p);
}

static const data_calls calls = {pipe_fill, pipe_place, NULL, pipe_close};

/* A named pipe may be opened by nobody else, now or ever: some seconds are left for that. Reads give nothing as long as
 * there is no writer, and fail for want of data once there is one. */
static bool await_writer(pipe_end *p, const data_request *q, FILE *why)
{
    const struct timespec pause = {.tv_nsec = 1000000L * MILLISECONDS};
    for (int waited = 0; waited < PATIENCE; waited += MILLISECONDS) {
        const ssize_t n = read(p->fd, p->buffer, BUFFER);
        if (n > 0) p->to = (size_t)n;
        if (n > 0 || (n < 0 && errno == EAGAIN)) return fcntl(p->fd, F_SETFL, fcntl(p->fd, F_GETFL) & ~O_NONBLOCK) == 0;
        if (n < 0 && errno != EINTR) return fputs(strerror(errno), why), false;
        if (waited == 1000) q->note("waiting for somebody to write to %s", p->name);
        nanosleep(&pause, NULL);
    }
    fprintf(why, "a pipe that nobody opened for writing within %d s. Start its writer first", PATIENCE / 1000);
    return false;
}

static bool open_end(pipe_end *p, const data_request *q, const char *path, FILE *why)
{
    if (strcmp(path, "-") == 0) {
        if (stdin_is_read) return fputs("standard input can be read for one option only", why), false;
        if (isatty(STDIN_FILENO)) return fputs("standard input is a terminal; pipe a .npy array into it", why), false;
        stdin_is_read = true;
        p->fd = STDIN_FILENO;
        return true;
    }
    p->fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (p->fd < 0) return fputs(strerror(errno), why), false;
    return await_writer(p, q, why);
}

static bool take_header(const data_source *s, pipe_end *p, npy_array *a, FILE *why)
{
    unsigned char *head = malloc(LONGEST_HEADER + 12);
    size_t got, length = 0;
    if (!head) return fputs("out of memory", why), false;
    bool ok = take_bytes(s, p, head, 10, &got, why);
    size_t at = 10;
    if (ok) length = (size_t)head[8] | (size_t)head[9] << 8;
    if (ok && head[6] > 1) {
        ok = take_bytes(s, p, head + 10, 2, &got, why);
        length |= (size_t)head[10] << 16 | (size_t)head[11] << 24;
        at = 12;
    }
    if (!ok) fputs("it ended within the header of an array", why);
    if (ok && memcmp(head, "\x93NUMPY", 6) != 0) ok = (fputs("its data are not a .npy array", why), false);
    if (ok && length > LONGEST_HEADER) ok = (fputs("the header is too long", why), false);
    if (ok && !take_bytes(s, p, head + at, length, &got, why))
        ok = (fputs("it ended within the header of an array", why), false);
    ok = ok && npy_parse_header(head, at + length, a, &at, why);
    free(head);
    return ok;
}

bool data_open_pipe(const data_request *q, char *const *paths, size_t npaths, data_source *out, FILE *why)
{
    pipe_end *p = calloc(1, sizeof *p);
    out->calls = &calls;
    out->state = p;
    if (!p) return fputs("out of memory", why), false;
    p->fd = -1;
    p->name = strdup(strcmp(paths[0], "-") == 0 ? "standard input" : paths[0]);
    p->buffer = malloc(BUFFER);
    p->part = q->target ? DATA_TARGET : DATA_INPUT;
    if (!p->name || !p->buffer) return fputs("out of memory", why), false;
    if (npaths > 1) return fputs("the pattern names several pipes; name one", why), false;
    npy_array a = {0};
    if (!open_end(p, q, paths[0], why) || !take_header(out, p, &a, why)) return false;
    if (a.rank == 0 || a.dims[0] == 0) return fputs("the array has no rows", why), false;
    data_field *f = &out->field[p->part];
    f->dtype = a.dtype;
    f->rank = a.rank - 1;
    memcpy(f->dims, a.dims + 1, (size_t)f->rank * sizeof *f->dims);
    data_field_size(f);
    out->nrows = a.dims[0];
    out->stream = true;
    return true;
}
