/* SPDX-License-Identifier: Apache-2.0
 * Progress: on a terminal a line that is rewritten and erased, elsewhere plain lines, sparse. */
#ifndef INVONNX_CLI_PROGRESS_BAR_H
#define INVONNX_CLI_PROGRESS_BAR_H

#include <stdbool.h>
#include <stdint.h>

/** What -q changes, and whether stderr is a terminal, is found out once. */
void cli_progress_init(bool quiet);
/** Erases the line, so that others can be written. Messages do it by themselves. */
void cli_progress_clear(void);

/** Of training. */
typedef struct cli_progress {
    int64_t total, epochs;
    double started, last_bar, last_line, last_share;
} cli_progress;
void cli_progress_start(cli_progress *p, int64_t total, int64_t epochs);
/** After a step: `done` of `total` steps, `samples` rows since the start. */
void cli_progress_step(cli_progress *p, int64_t epoch, int64_t done, int64_t samples, double loss);

/** Of anything else that may take longer than a second; shown only once it does. `share`: from 0 to 1. */
void cli_busy(const char *stage, double share);
/** From now on cli_busy's shares are those of part `part` of `parts` of the work `stage`; parts 0: no longer. */
void cli_busy_part(const char *stage, int part, int parts);

#endif
