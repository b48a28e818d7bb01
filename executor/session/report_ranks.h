/* SPDX-License-Identifier: Apache-2.0
 * What ranks exchange in a step (report_ranks.c). */
#ifndef INV_EXECUTOR_REPORT_RANKS_H
#define INV_EXECUTOR_REPORT_RANKS_H

#include "executor/executor.h"
#include "executor/run/json_text.h"

/* As `ranks` of a report; null of a session that trains alone. */
json_t *inv_report_ranks(const inv_session *s);
double inv_exchange_seconds(const inv_session *s); /* of it, by latency and bandwidth alone */

#endif
