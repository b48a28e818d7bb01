/* SPDX-License-Identifier: Apache-2.0
 * Nothing that is read is overwritten. */
#ifndef INVONNX_CLI_FILES_H
#define INVONNX_CLI_FILES_H

#include "cli/job/job.h"

/** `path`, which `option` `given` makes the command write, is none of the files that the command reads.
 *  @return CLI_OK, or what was said */
int cli_check_write(const cli_job *job, const char *option, const char *given, const char *path);
/** The same for all files that options name, and that they are different files. cli_open calls it; what --dump writes
 *  is known only with the session. */
int cli_check_writes(const cli_job *job);

#endif
