/* SPDX-License-Identifier: Apache-2.0
 * Ranks that are not there, to be planned for. */
#ifndef INVONNX_CLI_PLAN_RANKS_H
#define INVONNX_CLI_PLAN_RANKS_H

#include <jansson.h>

#include "cli/job/job.h"

/** As many as --ranks says, into job->world. @return CLI_OK, or what was said */
int cli_imagine_ranks(cli_job *job);
/** Plans a step, into job->session, and reports it. Of several ranks without --shard: for each of what ranks may share;
 *  the one that is recommended stays, all are in the report (`ranks`: `choices`). @return CLI_OK, or what was said */
int cli_plan_ranks(cli_job *job, json_t **report);
/** For people; of a report without ranks nothing. */
void cli_show_ranks(const json_t *report);

#endif
