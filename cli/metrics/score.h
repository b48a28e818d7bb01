/* SPDX-License-Identifier: Apache-2.0
 * What validation finds out. */
#ifndef INVONNX_CLI_SCORE_H
#define INVONNX_CLI_SCORE_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "cli/job/data.h"

/** A number by its name: what validation finds out beside the loss. */
typedef struct cli_metric {
    const char *name;
    double value; /* NaN: the rows do not tell */
    bool falls;   /* less of it is better */
} cli_metric;

typedef struct cli_score {
    double loss; /* mean over rows, or over the labels that count */
    int64_t rows, correct;
    int64_t samples;
    const cli_metric *metrics; /* borrowed from the job, until data are scored again */
    size_t nmetrics;
    const json_t *confusion;   /* rows of counts per class; NULL: not asked for */
    const json_t *class_names; /* of its rows, in front; NULL: they have none */
} cli_score;

/** Loss and correct rows over the first `nrows` rows of the order, `batch` at a time. `stop`: NULL, or ends it early.
 */
int cli_score_data(cli_job *job, cli_data *data, int64_t batch, int64_t nrows, bool (*stop)(void), cli_score *score);
/** Adds loss and metrics to a JSON object, with `prefix` before the names. */
void cli_score_json(json_t *object, const char *prefix, const cli_score *score);
/** Counts per class, and what rows of it were taken for. */
void cli_show_confusion(const cli_score *score);

#endif
