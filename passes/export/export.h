/* SPDX-License-Identifier: Apache-2.0
 * The model as others run it: with blocks as functions, inverted, with its log-determinant. */
#ifndef INV_PASSES_EXPORT_EXPORT_H
#define INV_PASSES_EXPORT_EXPORT_H

#include "core/program/program.h"

/* rewrite.c: what inv_context.rewrite and inverses point to */
struct inv_rewriting;
inv_status inv_rewrite_blocks(inv_context *ctx, const inv_graph *source, const inv_session_options *options,
                              struct inv_rewriting **out);
inv_status inv_rewrite_inverses(inv_context *ctx, const inv_graph *source, const inv_session_options *options,
                                struct inv_rewriting **out);

/* reverse_batch.c: what inv_context.reverse points to */
inv_status inv_reverse_model(inv_context *ctx, const inv_graph *source, const inv_session_options *shapes,
                             const inv_reverse_options *options, bool in_memory, struct inv_rewriting **out);

/* opened_functions.c, what inv_context.open points to: functions and blocks are opened up in the model's own graph, for
 * who changes what is inside (core/edits/edited.h). What cannot be stays, inv_function.shut. */
inv_status inv_functions_open(inv_graph *g);

/* add_likelihood.c: with INV_LOGDET_RULES, unless the model has an output of that name: its log-determinant, in a graph
 * of the program's own */
inv_status inv_pass_likelihood(inv_program *p);
/* What inv_context.volumes points to. */
inv_status inv_volumes_by_rules(inv_context *ctx, const inv_graph *source, const inv_session_options *o, bool compared,
                                inv_volumes *out);

#endif
