/* SPDX-License-Identifier: Apache-2.0
 * Signals that end a run, and the one that wants a checkpoint. */
#ifndef INVONNX_CLI_SIGNALS_H
#define INVONNX_CLI_SIGNALS_H

#include <stdbool.h>

/** From now on the first interrupt ends the run after its step. */
void cli_train_signals(void);
/** From now on SIGUSR1 wants a checkpoint, after the first step at the earliest. */
void cli_train_checkpoint_signal(void);
/** Whether it does, and has not been asked since. */
bool cli_train_checkpoint_wanted(void);
/** The signal that has told this process to end its run, which it may not have heeded yet; 0: none has. */
int cli_train_interrupted(void);
/** Ends the program as the signal would, and leaves no lock file. A signal handler. */
void cli_end_by_signal(int number);
/** What is to be done before that, by what a signal handler may call. */
void cli_before_signal(void (*leaving)(void));

#endif
