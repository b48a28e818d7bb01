/* SPDX-License-Identifier: Apache-2.0
 * The trained model's file. */
#ifndef INVONNX_CLI_OUTPUT_MODEL_H
#define INVONNX_CLI_OUTPUT_MODEL_H

#include <jansson.h>

#include "cli/job/job.h"

/** Whether `-o` can be written; `path`: what to write, caller frees.
 *  @return CLI_OK, or what was said */
int cli_out_check(const cli_options *o, char **path);
/* The same for a path that another option names. */
int cli_file_check(const cli_options *o, const char *option, const char *given, char **path);
/** Saves the session's weights to `path`; if that fails, once beside it or in TMPDIR. @return CLI_OK or CLI_FAILED */
int cli_out_save(const cli_job *job, const char *path);
/* The files that a written model is read from, its own first; says which of them belong to the model that was read. */
json_t *cli_out_files(const cli_job *job, const char *path);
/** Saves weights that are not to go to `path`, after what was said went wrong: beside it, else in TMPDIR; as a model,
 *  or where the one that was loaded is no longer there, as arrays. Says where; `which`: a clause about them. */
void cli_out_rescue(const cli_job *job, const char *path, const char *which);

#endif
