/* SPDX-License-Identifier: Apache-2.0
 * Pieces of reports (report.c) that other reports use. */
#ifndef INV_EXECUTOR_REPORT_H
#define INV_EXECUTOR_REPORT_H

#include <jansson.h>

#include "executor/executor.h"
#include "executor/run/json_text.h"

/* explain.c. A matched block: kind, name, rule, nodes, inputs, outputs, frees, gain, bound. */
json_t *inv_report_block(const inv_graph *g, const inv_block *b);
/* The list `blocks`, each with `usable`: whether the gain by itself keeps within max_drift. */
void inv_report_blocks(inv_json *w, const inv_program *pr, const inv_graph *g);
void inv_report_refused(inv_json *w, const inv_program *pr, const inv_graph *g); /* the list `refusals` */
json_t *inv_report_refusals(const inv_program *pr, const inv_graph *g);          /* the same; NULL: out of memory */
json_t *inv_report_counts(const inv_plan *p); /* of what backward reads: how many values it gets in which way */
/* How it gets each of them, and why what is stored is: the list `choices`. */
void inv_report_choices(inv_json *w, const inv_plan *p);
/* report_globs.c: what globs of parameters leave out of modules that they fit, or take along. */
json_t *inv_report_globs(const inv_graph *g, const inv_session_options *o);
json_t *inv_report_words(const inv_context *ctx, const char *text); /* our own, {field} of options in it */

#endif
