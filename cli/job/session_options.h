/* SPDX-License-Identifier: Apache-2.0
 * Session options from the command line. */
#ifndef INVONNX_CLI_SESSION_OPTIONS_H
#define INVONNX_CLI_SESSION_OPTIONS_H

#include <stdbool.h>
#include <stdint.h>

#include "cli/job/job.h"

/** Session options from the command line, `job->arrays` and `job->target`; the lists inside live in `hold`. */
typedef struct cli_hold {
    inv_mode_rule *modes;
    char **globs;
    double *weights;
    char *plan;
    inv_param_group *groups;
    char **group_texts; /* their globs; NULL behind them */
    inv_context *ctx;   /* of `costs` */
    inv_cost_table *costs;
} cli_hold;
int cli_session_options(const cli_job *job, inv_purpose purpose, inv_session_options *so, cli_hold *hold);
void cli_hold_fini(cli_hold *hold);
/** Whether --average is a mean of several weights after so many steps. */
bool cli_average_of_several(const cli_options *o, int64_t step);
/** Refuses --average where it is none at the end. @return CLI_OK, or what was said */
int cli_average_check(const cli_options *o, int64_t total);
/** Session options, and the session that they make, for commands that change nothing in between. */
int cli_start(cli_job *job, inv_purpose purpose, bool plan_only);
/** `--dump-passes`: makes its folder, and has what is compiled with these options written there (dump_passes.c). */
int cli_dump_passes(const cli_options *o, inv_session_options *so);

#endif
