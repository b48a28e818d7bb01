/* SPDX-License-Identifier: Apache-2.0
 * Rows of data, for `train` and `eval`. */
#ifndef INVONNX_CLI_DATA_H
#define INVONNX_CLI_DATA_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "cli/job/job.h"
#include "data/loader.h"

/** One argument of --data, or the target's. */
typedef struct cli_data_part {
    data_source source;
    const char *path;
    bool whole; /* not made of rows; every step gets all of it */
    void *copy; /* ... aligned, where the file has it otherwise */
    size_t fed; /* place among the sources that give rows */
} cli_data_part;

/** What the model's file says of the data that it was trained on (trained_on.c). */
typedef struct cli_trained_on {
    bool pictures;
    int64_t resize;        /* 0: what just covers the model's extents */
    const char *normalize; /* the model's */
    char **classes;        /* NULL: they have no names */
    int64_t nclasses;
} cli_trained_on;

typedef struct cli_data {
    cli_job *job;
    cli_trained_on trained;
    size_t ninputs;
    cli_data_part *input; /* per input, then the target's own, if it has one */
    size_t target_from;   /* the part that has the target */
    bool has_target;
    bool stacked;  /* rows are entries: what a step gets has all axes but the first */
    bool borrowed; /* the sources are another's, as of rows that were split off */
    int64_t nrows;
    const data_source *known; /* names of classes that labels are to count by; NULL: the data's own */
    bool told_missing;        /* it has been said that some of the target is missing */
    int64_t classes;          /* of the output that labels are of; -1: not known */
    bool augment;             /* rows are to be trained on */
    data_order order;         /* which row is where in an epoch */
    uint64_t epoch;
    data_loader *loader;
    data_source **fed;
    bool (*wanted)[DATA_FIELDS];
    size_t nfed;
    const data_batch *batch; /* the present batch, and what is given to the library of it */
    inv_array *arrays;
    inv_array target_array;
    int64_t (*dims)[NPY_MAX_RANK]; /* per input, then of the target: the batch's extents */
    bool ahead;                    /* cli_data_ahead is to find something */
    inv_array *next;               /* the same of the batch behind it: inputs, then the target */
    int64_t (*next_dims)[NPY_MAX_RANK];
} cli_data;

/** Opens what the options name. `like`: NULL, or data whose classes are known by name, which labels then count by.
 *  @return CLI_OK, or what was said; cli_data_close in any case */
int cli_data_open(cli_job *job, cli_data *data, const cli_list *files, const char *target, const char *what,
                  const cli_data *like);
/** Reads what the file says into data->trained, which belongs to data that is not borrowed. */
void cli_trained_on_read(cli_data *data);
void cli_trained_on_close(cli_data *data);
/** Says what of it is taken, and which options say otherwise. */
void cli_trained_on_tell(const cli_data *data);
/** Models that are written from now on say it of these data. @return CLI_OK, or what was said */
int cli_trained_on_write(const cli_data *data);
/** The names of the classes in the order of their labels, null for one that is not UTF-8; caller's reference. NULL:
 * they have none. */
json_t *cli_data_class_names(const cli_data *data);
/** Adds them to a report, if there are any. */
void cli_data_classes_json(json_t *report, const cli_data *data);
/** Refuses more epochs than rows come, and rows again that came before. @return CLI_OK, or what was said */
int cli_data_check_epochs(const cli_data *data, int64_t epochs, bool resumed);
/** An array of a source with the axis that counts rows, as a file would hold it. */
npy_array cli_source_shape(const data_source *s, int field);
/** Threads that the step has, which is what else is worth having for what computes. */
int cli_data_threads(const cli_options *o);
/** Splits a share of the rows off, by the seed: `held` has them from now on, as long as `data` is open. Before
 *  cli_data_reserve. @return CLI_OK, or what was said */
int cli_data_split(cli_data *data, double share, cli_data *held);
/** How long the steps have waited for data, and reading for the steps. */
void cli_data_say_waits(const cli_data *data);
/** Room for batches of at most `batch` rows, and the threads that prepare them. */
int cli_data_reserve(cli_data *data, int64_t batch);
void cli_data_close(cli_data *data);
/** From now on batches are of this epoch, from 1 on. Order and what is drawn are functions of seed, epoch and place. */
void cli_data_epoch(cli_data *data, uint64_t epoch);
/** Rows [start, start + n) of the epoch's order as arrays and target_array, valid until the next call; n 0: of a rank
 *  that has none. Any place may be asked for, so a run goes on at (epoch, start) without the rows before it.
 *  @return CLI_OK, or what was said */
int cli_data_batch(cli_data *data, int64_t start, int64_t n);
/** Of data with `ahead`: the arrays of what is to be asked for behind the present batch, inputs and then the target,
 * which stay where they are till then; NULL: they are not at hand. What is wrong with them cli_data_batch says. */
const inv_array *cli_data_ahead(cli_data *data, uint64_t epoch, int64_t start, int64_t n);
/** Creates the session. Inputs that go whole into every step may decide shapes and branches: where they do, they are
 *  constants of the session. */
inv_status cli_data_session(cli_job *job, const cli_data *data, inv_session_options *so);
/** Writes which rows of the files the present batch has, and which of them hold NaN or inf. @return whether any do */
bool cli_data_blame(const cli_data *data, FILE *f);
/** Compares int64_t, for qsort: the smaller comes first. */
int cli_by_number(const void *a, const void *b);
/** Rows of a batch: `--batch`, else as the model fixes it, else 32, never more than there are; of stacked files 1. */
int64_t cli_batch_rows(const cli_job *job, int64_t nrows);

#endif
