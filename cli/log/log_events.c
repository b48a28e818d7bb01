/* SPDX-License-Identifier: Apache-2.0
 * Event files of TensorBoard (`--tensorboard DIR`): records of TFRecord, each an Event of
 * tensorflow/core/util/event.proto with a Summary of scalars (framework/summary.proto), of which the few fields that
 * are needed are encoded here. A run that is resumed begins another file, whose session log says from which step on
 * older events do not count. */
#include <dirent.h>
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "cli/log/run_log.h"

/* --- TFRecord: length, checksum of the length, bytes, checksum of the bytes; checksums by CRC-32C, rotated --- */

static uint32_t crc_table[256];

static void fill_crc_table(void)
{
    for (uint32_t i = 0; i < 256; i++) {
        uint32_t c = i;
        for (int k = 0; k < 8; k++) c = c & 1 ? 0x82f63b78u ^ c >> 1 : c >> 1; /* Castagnoli, reflected */
        crc_table[i] = c;
    }
}

static uint32_t masked_crc(const void *bytes, size_t n)
{
    uint32_t c = ~0u;
    for (const unsigned char *p = bytes; n > 0; n--, p++) c = crc_table[(c ^ *p) & 255] ^ c >> 8;
    c = ~c;
    return (c >> 15 | c << 17) + 0xa282ead8u;
}

static void store_little_endian(unsigned char *p, uint64_t v, size_t n)
{
    for (size_t i = 0; i < n; i++) p[i] = (unsigned char)(v >> 8 * i);
}

static void add_framed(cli_growing *out, const cli_growing *event)
{
    unsigned char head[12], tail[4];
    store_little_endian(head, event->n, 8);
    store_little_endian(head + 8, masked_crc(head, 8), 4);
    store_little_endian(tail, masked_crc(event->text, event->n), 4);
    cli_growing_add(out, head, sizeof head);
    cli_growing_add(out, event->text, event->n);
    cli_growing_add(out, tail, sizeof tail);
    out->failed = out->failed || event->failed;
}

/* --- protocol buffers --- */

enum { VARINT = 0, FIXED64 = 1, BYTES = 2, FIXED32 = 5 };

static void put_varint(cli_growing *g, uint64_t v)
{
    unsigned char bytes[10];
    size_t n = 0;
    for (; v > 127; v >>= 7) bytes[n++] = (unsigned char)(v | 128);
    bytes[n++] = (unsigned char)v;
    cli_growing_add(g, bytes, n);
}

static void put_field(cli_growing *g, unsigned number, unsigned kind) { put_varint(g, number << 3 | kind); }

static void put_fixed(cli_growing *g, unsigned number, unsigned kind, uint64_t bits, size_t nbytes)
{
    unsigned char bytes[8];
    store_little_endian(bytes, bits, nbytes);
    put_field(g, number, kind);
    cli_growing_add(g, bytes, nbytes);
}

static void put_double(cli_growing *g, unsigned number, double x)
{
    uint64_t bits;
    memcpy(&bits, &x, sizeof bits);
    put_fixed(g, number, FIXED64, bits, sizeof bits);
}

static void put_float(cli_growing *g, unsigned number, double x)
{
    const float narrow = (float)x;
    uint32_t bits;
    memcpy(&bits, &narrow, sizeof bits);
    put_fixed(g, number, FIXED32, bits, sizeof bits);
}

static void put_text(cli_growing *g, unsigned number, const char *text)
{
    const size_t n = strlen(text);
    put_field(g, number, BYTES);
    put_varint(g, n);
    cli_growing_add(g, text, n);
}

/* --- events --- */

/* Numbers of fields. */
enum { EVENT_TIME = 1, EVENT_STEP = 2, EVENT_VERSION = 3, EVENT_SUMMARY = 5, EVENT_SESSION = 7 };
enum { SUMMARY_VALUE = 1, VALUE_TAG = 1, VALUE_SIMPLE = 2, SESSION_STATUS = 1, SESSION_START = 1 };

/* One event in the making, and its summary, whose length stands in front of it. */
typedef struct events {
    cli_growing event, summary;
} events;

static void begin_event(cli_growing *g, int64_t step)
{
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    g->n = 0;
    put_double(g, EVENT_TIME, (double)t.tv_sec + 1e-9 * (double)t.tv_nsec);
    put_field(g, EVENT_STEP, VARINT);
    put_varint(g, (uint64_t)step);
}

static void put_scalar(cli_growing *summary, const char *split, const char *name, double x)
{
    char tag[64];
    (void)snprintf(tag, sizeof tag, "%s/%s", split, name);
    const size_t n = strlen(tag) + 7; /* two bytes before the tag, five for the number */
    put_field(summary, SUMMARY_VALUE, BYTES);
    put_varint(summary, n);
    put_text(summary, VALUE_TAG, tag);
    put_float(summary, VALUE_SIMPLE, x);
}

static void record_event(cli_sink *s, const cli_record *r)
{
    events *e = s->state;
    const char *split = r->validation ? "val" : "train";
    e->summary.n = 0;
    for (int i = 0; i < CLI_NSCALARS; i++)
        if (i == CLI_LOSS || !isnan(r->value[i])) put_scalar(&e->summary, split, cli_scalar_name[i], r->value[i]);
    for (size_t i = 0; i < r->nmetrics; i++) put_scalar(&e->summary, split, r->metrics[i].name, r->metrics[i].value);
    begin_event(&e->event, r->step);
    put_field(&e->event, EVENT_SUMMARY, BYTES);
    put_varint(&e->event, e->summary.n);
    cli_growing_add(&e->event, e->summary.text, e->summary.n);
    e->event.failed = e->event.failed || e->summary.failed;
    add_framed(&s->file, &e->event);
}

/* Files are read in the order of their names, which begin with the time: a file of this second, of a run that was ended
 * at once, must come before ours. *others: whether there are any. */
static long long time_behind_others(const char *folder, bool *others)
{
    long long now = (long long)time(NULL);
    const struct dirent *entry;
    DIR *d = opendir(folder);
    *others = false;
    while (d && (entry = readdir(d))) {
        static const char start[] = "events.out.tfevents.";
        if (strncmp(entry->d_name, start, sizeof start - 1) != 0) continue;
        const long long at = strtoll(entry->d_name + sizeof start - 1, NULL, 10);
        *others = true;
        if (at >= now) now = at + 1;
    }
    if (d) closedir(d);
    return now;
}

static char *name_event_file(const cli_sink *s, bool *others)
{
    char host[256] = "host";
    if (gethostname(host, sizeof host - 1) != 0) strcpy(host, "host");
    host[sizeof host - 1] = 0;
    const long long at = time_behind_others(s->path, others);
    char *path = malloc(strlen(s->path) + strlen(host) + 96);
    if (path) sprintf(path, "%s/events.out.tfevents.%010lld.%s.%ld.invonnx", s->path, at, host, (long)getpid());
    return path;
}

static int begin_events(cli_sink *s, const cli_run_facts *facts)
{
    bool others = false;
    events *e = s->state = calloc(1, sizeof *e);
    char *path = e ? name_event_file(s, &others) : NULL;
    if (!path) return cli_fail("out of memory");
    e->event.fd = e->summary.fd = -1;
    fill_crc_table();
    int status = CLI_OK;
    if (!cli_growing_open(&s->file, path, 0)) status = cli_fail("%s: cannot be written: %s", path, strerror(errno));
    free(path);
    if (others && facts->after < 0)
        cli_note("--tensorboard %s: has event files of another run, which TensorBoard will no longer show. To see "
                 "both, name one folder per run",
                 s->path);
    begin_event(&e->event, 0);
    put_text(&e->event, EVENT_VERSION, "brain.Event:2");
    add_framed(&s->file, &e->event);
    begin_event(&e->event, facts->after < 0 ? 0 : facts->after + 1);
    put_field(&e->event, EVENT_SESSION, BYTES);
    put_varint(&e->event, 2);
    put_field(&e->event, SESSION_STATUS, VARINT);
    put_varint(&e->event, SESSION_START);
    add_framed(&s->file, &e->event);
    return status;
}

static void close_events(cli_sink *s)
{
    events *e = s->state;
    if (!e) return;
    cli_growing_close(&e->event);
    cli_growing_close(&e->summary);
    free(e);
}

const cli_sink_kind cli_sink_events = {begin_events, record_event, NULL, close_events};
