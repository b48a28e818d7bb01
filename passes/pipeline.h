/* SPDX-License-Identifier: Apache-2.0
 * What compiles: the passes one after the other, and the program around its plans. */
#ifndef INV_PASSES_PIPELINE_H
#define INV_PASSES_PIPELINE_H

#include "core/program/program.h"

/* compile.c. `former`: the program that this one takes the place of, for other sizes or another stage; what its guards
 * have rejected and what was measured of its loss hold for this one. NULL: none */
inv_status inv_compile(const inv_model *model, const inv_session_options *options, const inv_program *former,
                       inv_program **out);

/* operator_support.c: what inv_context.support points to */
inv_status inv_support_of(inv_context *ctx, const inv_op_def *row, inv_support *out);
/* compile.c: an estimate of the least bytes that session and step take with other options */
inv_status inv_program_floor(const inv_program *p, const inv_session_options *options, size_t *nbytes);
/* budget_remedies.c: before anything is built, sets program->surely, a lower bound of what persists, and logs that the
 * budget cannot be met if it is no more than that */
void inv_bound_persistent(inv_program *p);
/* budget_remedies.c: fails with what was noted of the budget, and what would help */
inv_status inv_refuse_budget(inv_program *p);

/* plan_program.c: what plan k is compiled for; false: there is none */
bool inv_request_for(const inv_program *p, int k, inv_request *rq);
/* Makes the plans from the graphs before recovery in `plan`, those for training only unless `anew`, and counts what
 * they take. If the budget has no room for them, that is noted in program->shortfall. */
inv_status inv_plan_program(inv_program *p, inv_plan *plan, bool anew);

/* pipeline.c: the graph before recovery; rows of it are `rq`'s */
inv_status inv_plan_base(inv_program *p, const inv_request *rq, inv_plan *plan);
/* The plan from it, and where its persistent values live */
inv_status inv_plan_build(inv_program *p, const inv_request *rq, inv_plan *plan);
/* Remarks on plans that have been made: early updates that wait, and batch normalization that cannot be trained. */
void inv_tell_early(const inv_program *p);
inv_status inv_tell_norms(const inv_program *p);

#endif
