/* SPDX-License-Identifier: Apache-2.0
 * Which of several processes this is, and which of them speaks. */
#ifndef INVONNX_CLI_RANK_H
#define INVONNX_CLI_RANK_H

#include <stdbool.h>

#include "invonnx/invonnx.h"

/** Asks the launcher's environment, before anything is said. */
void cli_ranks_find(void);
/** The number of this process, 0 of a process by itself, and how many there are. */
int cli_rank(void);
int cli_ranks(void);
/** The others are joined, by this; NULL: they are left. */
void cli_ranks_joined(inv_world *world);
/** At the end of the program after a failure: ends the others, too. */
void cli_ranks_end(int status);
/** What fails now is known to all ranks. */
void cli_ranks_known(void);
/** Before a failure is said: whether this rank says it. Of several that fail one does, and ends the run of all. */
bool cli_ranks_turn(void);

#endif
