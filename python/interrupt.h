/* SPDX-License-Identifier: Apache-2.0
 * Ctrl-C in calls that take long: while one is at work in the main thread, the signal also sets the word that the
 * library looks at (inv_context_options.stop). The interpreter's own handler has its turn as ever. */
#ifndef INVONNX_PYTHON_INTERRUPT_H
#define INVONNX_PYTHON_INTERRUPT_H

#include <signal.h>
#include <string.h>

static volatile int invonnx_stop;
static struct sigaction invonnx_former;

static void invonnx_interrupted(int number)
{
    invonnx_stop = 1;
    invonnx_former.sa_handler(number);
}

/* Returns whether it watches: not where the signal is left to the system, ignored, or taken in another way. It still
 * watches where Ctrl-C has come between a call and its invonnx_unwatch. */
static int invonnx_watch(void)
{
    struct sigaction now, ours;
    if (sigaction(SIGINT, NULL, &now) != 0 || now.sa_flags & SA_SIGINFO || now.sa_handler == SIG_DFL ||
        now.sa_handler == SIG_IGN)
        return 0;
    invonnx_stop = 0;
    if (now.sa_handler == invonnx_interrupted) return 1;
    invonnx_former = ours = now;
    ours.sa_handler = invonnx_interrupted;
    return sigaction(SIGINT, &ours, NULL) == 0;
}

static void invonnx_unwatch(void)
{
    (void)sigaction(SIGINT, &invonnx_former, NULL);
    invonnx_stop = 0;
}

/* The interpreter ends: calls of threads that it leaves behind are to end, too. */
static void invonnx_end(int now) { invonnx_stop = now; }

#endif
