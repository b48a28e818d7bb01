/* SPDX-License-Identifier: Apache-2.0
 * What evaluation says beside the loss (`--metric`): computed from the outputs of each batch, of which only counts and
 * sums are kept; for AUC a score per row and class. */
#ifndef INVONNX_CLI_METRICS_H
#define INVONNX_CLI_METRICS_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "cli/metrics/score.h"

typedef struct cli_metric_kind cli_metric_kind;

/** A metric that was asked for. */
typedef struct cli_asked {
    const cli_metric_kind *kind;
    char name[24];
    int64_t k, hits; /* of topK */
} cli_asked;

/** Rows of a class: that are of it and were taken for it, that were taken for it, that are of it. With binary cross
 *  entropy a class is a label that rows have or have not. */
typedef struct cli_class_counts {
    int64_t hit, predicted, actual;
} cli_class_counts;

/** Of one element of all rows in which it is not missing: how many these are, mean and squared deviations of the
 *  targets, squared errors. */
typedef struct cli_value_sums {
    double n, mean, deviations, squares;
} cli_value_sums;

/** What `job->metrics` is. */
struct cli_metrics {
    cli_asked *asked;
    size_t n;
    bool binary;                               /* binary cross entropy: classes are labels that rows have or have not */
    bool counts, places, pairs, values, ranks; /* what is gathered; none of it: outputs are not read */
    char *output;                              /* that the loss is taken of; NULL: not known yet */

    /* of all rows so far */
    int64_t rows;          /* that count */
    int64_t correct, told; /* binary: labels that were right, of those that are not missing */
    int64_t elements;      /* of a row, in all outputs that the loss is taken of */
    int64_t nclass;
    cli_class_counts *of_class;
    int64_t *pair; /* [class][taken for] */
    cli_value_sums *of_element;
    double absolute; /* sum of errors without their sign */

    double *logits; /* room for one row's, twice */
    double
        *score; /* [row][column]: logarithm of a probability, of two classes that of the second alone; binary: logit */
    int32_t *label; /* of each row its class; binary: [row][column], 1 or 0; -1: missing */
    size_t nscored, room, columns;

    cli_metric *value; /* those that are numbers, after cli_metrics_finish */
    size_t nvalue;
    json_t *confusion, *class_names;
};

/** Makes job->metrics: what options ask for, and of integer labels accuracy. job->target has to be known.
 *  @return CLI_OK, or what was said: a metric that there is not, or not with this loss or target */
int cli_metrics_create(cli_job *job);
void cli_metrics_destroy(cli_metrics *m);
/** Adds the newest evaluation, of a batch with this target (metric_counts.c). @return CLI_OK, or what was said */
int cli_metrics_add(cli_job *job, const inv_array *target);
/** Room for what is counted of so many classes, or elements of a row (metric_counts.c). @return CLI_OK, or what was
 * said */
int cli_metrics_room(cli_metrics *m, int64_t nclass, int64_t elements);
/** What ranks have counted, each of its part, becomes what all have (metric_ranks.c). @return CLI_OK, or what was said
 */
int cli_metrics_join(cli_job *job);
/** Computes the values from what was added, as part of `score`. `data`: whose classes may have names. */
void cli_metrics_finish(cli_metrics *m, const cli_data *data, cli_score *score);
/** Forgets all rows. */
void cli_metrics_reset(cli_metrics *m);
/** Area under the receiver operating characteristic; of several classes the mean over those that have rows in and out
 *  of them, each against the rest (metric_auc.c). NaN: none has. */
double cli_auc(const cli_metrics *m);

#endif
