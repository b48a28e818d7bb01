/* SPDX-License-Identifier: Apache-2.0
 * Arrays for the model, as `--feed` and `--target` give them. */
#ifndef INVONNX_CLI_FEED_H
#define INVONNX_CLI_FEED_H

#include <stdbool.h>
#include <stdio.h>

#include "cli/job/job.h"

/** `--feed` into job->feeds and job->arrays. Everything wrong is listed at once. */
int cli_feed(cli_job *job);
/** Shapes without data, from the model, `--batch` and `--dim`; from files where `--feed` gives some. */
int cli_shapes(cli_job *job);
/** `--target` into job->target, if the loss takes one. `required`: it has to be there. */
int cli_target(cli_job *job, bool required);
bool cli_loss_takes_target(int loss);
/** For the files of `list` (NAME=FILE or FILE): which input each belongs to. Complaints go to `why`. */
bool cli_assign(const cli_job *job, const cli_list *list, const char *option, const char **file_of_input, FILE *why);
/** True if the array can be the input; else complains. `rows`: dimension 0 counts rows and may be any number. */
bool cli_fits(const cli_port *port, const npy_array *a, bool rows, FILE *why);
/** Says that integers are fed to a floating-point input, and how they are taken. */
void cli_note_integers(const cli_port *port, const npy_array *a, const char *path);
inv_array cli_array_of(const char *name, const npy_array *a);

#endif
