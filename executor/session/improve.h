/* SPDX-License-Identifier: Apache-2.0
 * Better plans while steps are made (session option `improve`). */
#ifndef INV_EXECUTOR_IMPROVE_H
#define INV_EXECUTOR_IMPROVE_H

#include "executor/executor.h"

/* When a session has been made, and not before its arena is there. Does nothing where there is nothing to improve. */
inv_status inv_improve_open(inv_session *s);
void inv_improve_close(inv_session *s);
/* Between two steps: corrects the rates when enough steps have been timed, takes a better plan that was found, and goes
 * on searching. What goes wrong ends that, and nothing else. */
void inv_improve_between(inv_session *s);
/* After a step of plan `kind`. */
void inv_improve_note(inv_session *s, int kind);
/* Before the session is planned again for another reason: the search is ended, and begins anew from what comes of it.
 */
void inv_improve_halt(inv_session *s);
/* After that. */
void inv_improve_renew(inv_session *s);
/* Waits for the search that is going on; what it has found is taken before the next step. For tests. */
void inv_improve_await(inv_session *s);
/* Bytes that the search may take besides the session's. */
size_t inv_improve_bytes(const inv_session *s);
/* Mean seconds of the steps that were timed; 0: none were. */
double inv_improve_seconds(const inv_session *s);
/* What had been predicted for them. */
double inv_improve_rated(const inv_session *s);
int inv_improve_taken(const inv_session *s); /* plans */

#endif
