/* SPDX-License-Identifier: Apache-2.0
 * Targets that name classes, and other targets that the loss takes. */
#ifndef INVONNX_CLI_LABELS_H
#define INVONNX_CLI_LABELS_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "cli/job/data.h"

/** The output that the loss is taken of, if it is clear from the declaration; else NULL. */
const cli_port *cli_loss_port(const cli_job *job);
/** Classes of that output, which `labels` with their axes are of, if its declaration and they tell; else -1. */
int64_t cli_classes(const cli_job *job, const npy_array *labels);
/** Whether an entry of the target does not count: --ignore-index, and of values NaN. */
bool cli_is_missing(const cli_options *o, double target);
/** Finds the first entry that the loss does not take: a label that is not in [0, classes), soft targets that are no
 *  shares, targets of bce outside of 0...1. @param why what it is, and why it is wrong */
bool cli_bad_target(const cli_job *job, const npy_array *t, int64_t classes, size_t *at, FILE *why);
/** Says if labels are the tokens at the same places, as where they are not shifted yet. */
void cli_tell_copied(const cli_data *data);
/** Entries of values that are missing. */
int64_t cli_count_missing(const cli_job *job, const npy_array *t);
/** Looks at all of a target; says how much of it is missing. @param from where it is mapped, NULL: in `t` itself.
 *  @return CLI_OK, or what was said */
int cli_check_target(cli_job *job, const npy_array *t, const char *path, const data_source *from);

#endif
