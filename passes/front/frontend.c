/* SPDX-License-Identifier: Apache-2.0
 * The first half of the passes, in order: from a copy of the imported graph to canonical forward nodes and what was
 * matched in them. */
#include "core/program/pass.h"
#include "passes/autodiff/autodiff.h"
#include "passes/canonical/canonical.h"
#include "passes/front/front.h"
#include "passes/match/match.h"

/* Names of the outputs are the model's, whatever values come to stand for them. */
static inv_status note_output_names(inv_graph *g, inv_plan *plan)
{
    for (size_t i = 0; i < g->outputs.n; i++) {
        inv_result_slot slot = {inv_val(g, g->outputs.at[i])->name, INV_NONE};
        if (!inv_vec_push(&g->arena, &plan->output, slot)) return INV_E_NOMEM;
    }
    return INV_OK;
}

/* Outputs are read out after a call, except in training steps, which only report the loss. */
static void mark_kept_outputs(inv_graph *g, inv_plan *plan, bool keep)
{
    for (size_t i = 0; i < g->outputs.n; i++) {
        plan->output.at[i].value = g->outputs.at[i];
        inv_val(g, g->outputs.at[i])->keep = keep;
    }
}

inv_status inv_compile_front(inv_graph *g, const inv_request *rq, inv_plan *plan)
{
    INV_TRY(note_output_names(g, plan));
    INV_TRY(inv_pass_done(rq, g, INV_LEFT_IMPORTED, "import"));
    INV_PASS(rq, g, INV_LEFT_IMPORTED, "inline", inv_pass_inline(g, false));
    INV_PASS(rq, g, INV_LEFT_IMPORTED, "sort", inv_graph_sort(g));
    INV_PASS(rq, g, INV_LEFT_IMPORTED, "reach", inv_pass_reach(g, rq, plan));
    INV_TRY(inv_pass_types(g));
    INV_PASS(rq, g, INV_LEFT_IMPORTED, "bind", inv_pass_bind(g, rq, plan));
    INV_PASS(rq, g, INV_LEFT_IMPORTED, "real", inv_pass_real(g));
    INV_PASS(rq, g, INV_LEFT_CANONICAL, "lower", inv_pass_lower(g));
    /* outputs whose type the file does not tell */
    INV_PASS(rq, g, INV_LEFT_CANONICAL, "reach", inv_pass_reach(g, rq, plan));
    INV_TRY(inv_reach_tensors(g));
    if (g->small) INV_PASS(rq, g, INV_LEFT_CANONICAL, "small_weights", inv_pass_small_weights(g));
    INV_PASS(rq, g, INV_LEFT_CANONICAL, "simplify", inv_pass_simplify(g));
    INV_PASS(rq, g, INV_LEFT_CANONICAL, "spelling", inv_pass_spelling(g));
    INV_TRY(inv_graph_drop_constants(g));
    mark_kept_outputs(g, plan, !rq->optimize);
    /* evaluation recovers nothing */
    if (rq->purpose != INV_FOR_EVAL) INV_PASS(rq, g, INV_LEFT_MATCHED, "match", inv_pass_match(g));
    return INV_OK;
}
