/* SPDX-License-Identifier: Apache-2.0
 * Pieces of reports (report.c) that other reports use. */
#ifndef INV_EXECUTOR_REPORT_H
#define INV_EXECUTOR_REPORT_H

#include <jansson.h>

#include "executor/executor.h"

/* A matched block: kind, name, rule, nodes, inputs, outputs. */
json_t *inv_report_block(const inv_graph *g, const inv_block *b);
json_t *inv_report_refusals(const inv_graph *g);
json_t *inv_report_number(double x); /* null if it is not finite */
/* The text of `root`, which goes with it; owned by the context, so that inv_free can free it. */
inv_status inv_report_text(inv_context *ctx, json_t *root, char **out);

#endif
