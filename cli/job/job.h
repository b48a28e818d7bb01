/* SPDX-License-Identifier: Apache-2.0
 * What every command works on: the context, the model and its declared inputs and outputs, the session. */
#ifndef INVONNX_CLI_JOB_H
#define INVONNX_CLI_JOB_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "cli/options/command_line.h"
#include "data/npy.h"

/** An input or output of the model as the file declares it. */
typedef struct cli_port {
    const char *name, *label; /* owned by the job's inspection; label: for messages */
    inv_dtype dtype;
    int rank;                   /* -1: not declared */
    int64_t dims[NPY_MAX_RANK]; /* -1: symbolic or unknown */
    const char *symbol[NPY_MAX_RANK];
} cli_port;

typedef struct cli_metrics cli_metrics;

typedef struct cli_job {
    const cli_options *o;
    const char *path;
    inv_context *ctx;
    inv_model *model;
    inv_session *session;
    json_t *inspection, *shown; /* as it is, and for listings */
    json_t *head;               /* of --head: what has become of the head; NULL: it has been said, or there is none */
    cli_port *inputs, *outputs;
    size_t ninputs, noutputs;
    npy_array *feeds;  /* one per input */
    inv_array *arrays; /* one per input, what the library is given */
    npy_array target_file;
    inv_array target;
    bool has_target;
    bool missing;         /* entries of the target may be missing */
    inv_world *world;     /* ranks that train together; NULL: this process is alone */
    int shard;            /* what they share (inv_shard) */
    cli_metrics *metrics; /* what evaluation computes beside the loss; NULL: nothing (metrics.h) */
} cli_job;

/** A context with the plugins that options name; NULL after saying why not. */
inv_context *cli_context(const cli_options *o);
/** Context, model, and what the file declares. On failure everything is said; call cli_close all the same. */
int cli_open(cli_job *job, const cli_options *o);
void cli_close(cli_job *job);
/** Says what --head has done, once: when all options have been looked at, and are right. */
void cli_say_head(cli_job *job);
/** Says what the library complains of. @return CLI_FAILED */
int cli_library_failed(const cli_job *job, inv_status status);
/** Dimension 0 of the first input as the file fixes it; -1 if it does not. */
int64_t cli_fixed_batch(const cli_job *job);

/** A report of the library as JSON; frees the text. NULL after saying why. */
json_t *cli_parse_report(const cli_job *job, char *text);
/** The session's report; NULL after saying why. Caller's reference. */
json_t *cli_report(const cli_job *job);
/** What the session can explain; likewise. */
json_t *cli_explanation(const cli_job *job);
/** Prints the session's report as it is: that of a large graph is not read and written again. */
int cli_print_report(const cli_job *job);

#endif
