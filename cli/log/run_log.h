/* SPDX-License-Identifier: Apache-2.0
 * What happens in a run, record by record, and the files that it is written to while the run goes: JSON lines, CSV,
 * event files of TensorBoard, a page with curves. */
#ifndef INVONNX_CLI_RUN_LOG_H
#define INVONNX_CLI_RUN_LOG_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "cli/metrics/score.h"

/** What a record measures beside its metrics, in the order in which files list it. */
enum { CLI_LOSS, CLI_LR, CLI_GRAD_NORM, CLI_MEMORY, CLI_DRIFT, CLI_FALLBACKS, CLI_NSCALARS };
extern const char *const cli_scalar_name[CLI_NSCALARS];

/** One step of training, or one pass over the rows that are held out. */
typedef struct cli_record {
    bool validation;
    int64_t step, epoch; /* steps done, the first one being 1; epoch from 1 on */
    int64_t samples;     /* rows trained on since the beginning */
    double seconds;      /* since the beginning, without the time between an interrupted run and the one resumed */
    double value[CLI_NSCALARS]; /* NaN: not measured. CLI_MEMORY is measured by the log */
    const cli_metric *metrics;
    size_t nmetrics;
    const json_t *confusion;   /* rows of counts by label, columns by prediction; NULL: none */
    const json_t *class_names; /* of its rows, in front; NULL: they have none */
} cli_record;

/** A record of this kind with nothing measured. */
cli_record cli_record_of(bool validation);

/** What is known of a run before its first step. */
typedef struct cli_run_facts {
    json_t *about;             /* names and texts, for the head of a page (cli_run_about) */
    const cli_metric *metrics; /* what validation has, by name; borrowed */
    size_t nmetrics;
    int64_t total;  /* steps */
    int64_t after;  /* the run goes on behind this step: what files have of later ones is dropped. -1: a new run */
    bool validated; /* ... and the validation behind that step is not done again: the files keep it */
} cli_run_facts;

typedef struct cli_log cli_log;

/** What is trained, on what, how, and in how much memory, as names and texts. NULL: out of memory. */
json_t *cli_run_about(const cli_job *job, const json_t *report, int64_t rows, int64_t held_out, int64_t batch);

/** The files that options name; each can be written, and no other run writes it. *log: NULL if there are none.
 *  @return CLI_OK, or what was said */
int cli_log_create(const cli_options *o, cli_log **log);
/** Before the first step. Empties the files, or brings them to the state after step `facts->after`.
 *  @return CLI_OK, or what was said: a file that is to be continued is none of a run */
int cli_log_begin(cli_log *log, const cli_run_facts *facts);
/** Notes a record; of training every `--log-every`th step. Written to the files at most once a second. A file that
 *  cannot be written any more is warned of once, and one process goes on without it; of several ranks cli_log_trouble
 *  tells of it. Nothing if `log` is NULL. */
void cli_log_record(cli_log *log, const cli_record *record);
/** Writes what is in memory: a run that goes on behind a checkpoint counts on what was logged before it. */
void cli_log_flush(cli_log *log);
/** Which file cannot be written any more, and why; caller frees. NULL: none, or it has been asked for. */
char *cli_log_trouble(cli_log *log);
/** Writes what is left, and frees the log. @return CLI_OK, or what was said: of a file that cannot be written */
int cli_log_end(cli_log *log);

/* --- between the files of the log --- */

/** A file that grows at its end. What is added waits in memory until it is flushed. */
typedef struct cli_growing {
    char *text;
    int fd; /* -1: not open */
    size_t n, room;
    int64_t flushed; /* bytes of the file */
    bool failed;     /* out of memory */
} cli_growing;
/** Opens the file, of which the first `kept` bytes stay; what is behind is cut off. @return false: errno says why */
bool cli_growing_open(cli_growing *g, const char *path, int64_t kept);
void cli_growing_add(cli_growing *g, const void *bytes, size_t n);
void cli_growing_print(cli_growing *g, const char *format, ...) CLI_PRINTF(2, 3);
/** @return false: errno says why; the file ends where it ended before */
bool cli_growing_flush(cli_growing *g);
void cli_growing_close(cli_growing *g);

/** A kind of file: a row of the table in run_log.c. */
typedef struct cli_sink cli_sink;
typedef struct cli_sink_kind {
    /* @return CLI_OK, or what was said */
    int (*begin)(cli_sink *sink, const cli_run_facts *facts);
    void (*record)(cli_sink *sink, const cli_record *record);
    /* NULL: cli_growing_flush of `file`. @return false: it cannot be written, errno says why */
    bool (*flush)(cli_sink *sink, bool validated, bool end);
    void (*close)(cli_sink *sink); /* NULL: there is no `state` */
} cli_sink_kind;

struct cli_sink {
    const cli_sink_kind *kind;
    const cli_options *o;
    const char *option;
    char *path; /* what is written, links followed; of TensorBoard a folder */
    cli_growing file;
    const cli_run_facts *facts;
    void *state; /* of the kind */
    bool open;   /* begun, and nothing has gone wrong since */
};

extern const cli_sink_kind cli_sink_lines, cli_sink_csv, cli_sink_events, cli_sink_page;

#endif
