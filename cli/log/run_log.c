/* SPDX-License-Identifier: Apache-2.0
 * The log of a run: which files it has, and when they are written. */
#include "cli/log/run_log.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cli/files/lock.h"
#include "cli/files/write_files.h"
#include "cli/job/output_model.h"
#include "cli/job/ranks.h"
#include "cli/say/rank.h"

struct cli_log {
    cli_sink *sink;
    size_t n;
    cli_run_facts facts;
    int64_t every;
    double flushed; /* when the files were last written */
    char *trouble;  /* which file cannot be written any more, and why; NULL */
    bool asked;     /* for that, which is then said: of other files no more is */
    double memory, measured;
};

cli_record cli_record_of(bool validation)
{
    cli_record r = {.validation = validation};
    for (int i = 0; i < CLI_NSCALARS; i++) r.value[i] = (double)NAN;
    return r;
}

static bool ends_with(const char *s, const char *suffix)
{
    const size_t n = strlen(s), m = strlen(suffix);
    return n >= m && strcasecmp(s + n - m, suffix) == 0;
}

static int add_file(cli_log *log, const cli_options *o, const cli_sink_kind *kind, const char *option,
                    const char *given)
{
    cli_sink *s = &log->sink[log->n];
    *s = (cli_sink){.kind = kind, .o = o, .option = option, .file = {.fd = -1}, .facts = &log->facts};
    const int status = cli_file_check(o, option, given, &s->path);
    if (s->path) log->n++;
    return status;
}

static int add_folder(cli_log *log, const cli_options *o, const cli_sink_kind *kind, const char *option,
                      const char *given)
{
    cli_sink *s = &log->sink[log->n];
    bool made;
    *s = (cli_sink){.kind = kind, .o = o, .option = option, .file = {.fd = -1}, .facts = &log->facts};
    if (cli_make_dir(given, &made) != CLI_OK) return CLI_FAILED;
    if (access(given, W_OK | X_OK) != 0)
        return cli_fail("%s %s: no file can be made in it: %s", option, given, strerror(errno));
    if (!(s->path = strdup(given))) return cli_fail("out of memory");
    log->n++;
    return cli_lock(option, given, given);
}

static void free_log(cli_log *log)
{
    for (size_t i = 0; i < log->n; i++) {
        cli_sink *s = &log->sink[i];
        if (s->kind->close) s->kind->close(s);
        cli_growing_close(&s->file);
        free(s->path);
    }
    json_decref(log->facts.about);
    free(log->trouble);
    free(log->sink);
    free(log);
}

/* Of several processes the first writes it; with %r, the number of the process, in its name each writes its own. */
static int add_log(cli_log *log, const cli_options *o, const char *path)
{
    const char *number = cli_ranks() > 1 ? strstr(path, "%r") : NULL;
    const cli_sink_kind *kind = ends_with(path, ".csv") ? &cli_sink_csv : &cli_sink_lines;
    char *own = NULL;
    size_t n;
    if (!number) return cli_rank() == 0 ? add_file(log, o, kind, "--log", path) : CLI_OK;
    FILE *f = open_memstream(&own, &n);
    if (f) fprintf(f, "%.*s%d%s", (int)(number - path), path, cli_rank(), number + 2);
    if (f) fclose(f);
    const int status = own ? add_file(log, o, kind, "--log", own) : cli_fail("out of memory");
    free(own);
    return status;
}

int cli_log_create(const cli_options *o, cli_log **out)
{
    *out = NULL;
    const size_t n = cli_log_wanted(o);
    if (n == 0) return CLI_OK;
    if (o->html && ends_with(o->html, ".svg"))
        return cli_usage(o, "--html %s: `train` writes a page; name a file that ends in .html", o->html);
    cli_log *log = calloc(1, sizeof *log);
    if (log) log->sink = calloc(n, sizeof *log->sink);
    if (!log || !log->sink) {
        free(log);
        return cli_fail("out of memory");
    }
    log->every = o->log_every;
    int status = CLI_OK;
    for (size_t i = 0; i < o->log.n && status == CLI_OK; i++) status = add_log(log, o, o->log.item[i]);
    if (status == CLI_OK && o->tensorboard && cli_rank() == 0)
        status = add_folder(log, o, &cli_sink_events, "--tensorboard", o->tensorboard);
    if (status == CLI_OK && o->html && cli_rank() == 0) status = add_file(log, o, &cli_sink_page, "--html", o->html);
    if (status == CLI_OK) *out = log;
    else free_log(log);
    return status;
}

int cli_log_begin(cli_log *log, const cli_run_facts *facts)
{
    int status = CLI_OK;
    if (!log) return CLI_OK;
    log->facts = *facts;
    json_incref(log->facts.about);
    for (size_t i = 0; i < log->n && status == CLI_OK; i++) {
        status = log->sink[i].kind->begin(&log->sink[i], facts);
        log->sink[i].open = status == CLI_OK;
    }
    log->flushed = cli_now();
    return status;
}

static bool flush_sink(cli_sink *s, bool validated, bool end)
{
    errno = 0;
    return s->kind->flush ? s->kind->flush(s, validated, end) : cli_growing_flush(&s->file);
}

static void flush_all(cli_log *log, double now, bool validated, bool end)
{
    for (size_t i = 0; i < log->n; i++) {
        cli_sink *s = &log->sink[i];
        if (!s->open || flush_sink(s, validated, end)) continue;
        s->open = false;
        if (!log->asked)
            cli_ranks_trouble(&log->trouble, "; training continues without it", "%s %s: cannot be written: %s",
                              s->option, s->path, strerror(errno ? errno : EIO));
    }
    log->flushed = now;
}

void cli_log_record(cli_log *log, const cli_record *record)
{
    if (!log || (!record->validation && record->step % log->every != 0)) return;
    const double now = cli_now();
    cli_record r = *record;
    if (log->measured == 0 || now - log->measured >= 1) { /* it takes longer than all else here */
        log->memory = (double)inv_process_bytes();
        log->measured = now;
    }
    if (log->memory > 0) r.value[CLI_MEMORY] = log->memory;
    for (size_t i = 0; i < log->n; i++)
        if (log->sink[i].open) log->sink[i].kind->record(&log->sink[i], &r);
    if (r.validation || now - log->flushed >= 1) flush_all(log, now, r.validation, false);
}

void cli_log_flush(cli_log *log)
{
    if (log) flush_all(log, cli_now(), false, false);
}

char *cli_log_trouble(cli_log *log)
{
    char *trouble = log ? log->trouble : NULL;
    if (trouble) log->asked = true;
    if (trouble) log->trouble = NULL;
    return trouble;
}

int cli_log_end(cli_log *log)
{
    if (!log) return CLI_OK;
    flush_all(log, cli_now(), false, true);
    const int status = log->trouble ? cli_fail("%s", log->trouble) : CLI_OK;
    free_log(log);
    return status;
}
