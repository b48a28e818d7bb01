/* SPDX-License-Identifier: Apache-2.0
 * Signals: those that end a run of `train` after its step, and those that end the program without leaving lock files.
 */
#include "cli/say/signals.h"

#include <signal.h>
#include <stddef.h>

static volatile sig_atomic_t interrupted; /* by the signal of this number; 0: not */
static volatile sig_atomic_t wanted;      /* a checkpoint is, by SIGUSR1 */
static void (*leave)(void);               /* NULL: there is nothing to be left in order */

void cli_before_signal(void (*leaving)(void)) { leave = leaving; }

void cli_end_by_signal(int number)
{
    if (leave) leave();
    signal(number, SIG_DFL);
    raise(number);
}

static void on_signal(int number)
{
    interrupted = number;
    signal(SIGINT, cli_end_by_signal); /* the second one kills */
    signal(SIGTERM, cli_end_by_signal);
    /* not SIGHUP: shell and terminal may both send one */
}

static void on_user_signal(int number)
{
    (void)number;
    wanted = 1;
}

void cli_train_signals(void)
{
    struct sigaction action = {.sa_handler = on_signal, .sa_flags = SA_RESTART};
    sigemptyset(&action.sa_mask);
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
    struct sigaction hangup;
    if (sigaction(SIGHUP, NULL, &hangup) == 0 && hangup.sa_handler != SIG_IGN) /* nohup stays in force */
        sigaction(SIGHUP, &action, NULL);
}

void cli_train_checkpoint_signal(void)
{
    struct sigaction action = {.sa_handler = on_user_signal, .sa_flags = SA_RESTART};
    sigemptyset(&action.sa_mask);
    sigaction(SIGUSR1, &action, NULL);
}

int cli_train_interrupted(void) { return (int)interrupted; }

bool cli_train_checkpoint_wanted(void)
{
    const bool now = wanted != 0;
    wanted = 0;
    return now;
}
