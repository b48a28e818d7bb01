/* SPDX-License-Identifier: Apache-2.0
 * Several processes that are one run of `train`. In a process by itself all of it does nothing. */
#ifndef INVONNX_CLI_RANKS_H
#define INVONNX_CLI_RANKS_H

#include <stddef.h>
#include <stdint.h>

#include "cli/job/job.h"

/** Refuses commands that are one process. @return CLI_OK, or what was said */
int cli_ranks_check(const cli_options *o);
/** Joins the others, into job->world. @return CLI_OK, or what was said */
int cli_ranks_join(cli_job *job);
/** Leaves them, before the context goes; not after a failure. */
void cli_ranks_leave(cli_job *job, int status);
/** What cannot be written: one process says so, with what `then` adds, and goes on, since what it has is lost if it
 *  ends. Of several ranks all end by one message, so it is noted in *trouble, if nothing is yet; the caller frees it.
 */
void cli_ranks_trouble(char **trouble, const char *then, const char *format, ...) CLI_PRINTF(3, 4);

/** inv_world_gather; caller frees `all`. @return CLI_OK, or what was said */
int cli_ranks_gather(const cli_job *job, const char *what, const void *mine, size_t nbytes, void **all);
/** Each of n numbers becomes the sum over the ranks, in their order. */
int cli_ranks_add(const cli_job *job, const char *what, double *x, size_t n);
/** The number becomes the largest of the ranks'. */
int cli_ranks_most(const cli_job *job, const char *what, int64_t *x);
/** x becomes that of rank 0. */
int cli_ranks_follow(const cli_job *job, const char *what, void *x, size_t nbytes);
/** Refuses numbers that are not the same on all ranks, by their names. @return CLI_OK, or what was said */
int cli_ranks_same(const cli_job *job, const char *const *names, const double *x, size_t n);
/** Refuses options that are not the same on all ranks, but for paths. @return CLI_OK, or what was said */
int cli_ranks_same_options(const cli_job *job);

#endif
