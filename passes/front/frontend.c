/* SPDX-License-Identifier: Apache-2.0
 * The first half of the passes, in order: from a copy of the imported graph to canonical forward nodes and what was
 * matched in them. */
#include "passes/autodiff/autodiff.h"
#include "passes/canonical/canonical.h"
#include "passes/front/front.h"
#include "passes/match/match.h"

/* Names of the outputs are the model's, whatever values come to stand for them. */
static inv_status note_outputs(inv_graph *g, inv_plan *plan)
{
    for (size_t i = 0; i < g->outputs.n; i++) {
        inv_result_slot slot = {inv_val(g, g->outputs.at[i])->name, INV_NONE};
        if (!inv_vec_push(&g->arena, &plan->output, slot)) return INV_E_NOMEM;
    }
    return INV_OK;
}

/* Outputs are read out after a call, except in training steps, which only report the loss. */
static void keep_outputs(inv_graph *g, inv_plan *plan, bool keep)
{
    for (size_t i = 0; i < g->outputs.n; i++) {
        plan->output.at[i].value = g->outputs.at[i];
        inv_val(g, g->outputs.at[i])->keep = keep;
    }
}

/* One pass and the checker after it. */
#define PASS(call, canonical)                   \
    do {                                        \
        INV_TRY(call);                          \
        INV_TRY(inv_graph_check(g, canonical)); \
    } while (0)

inv_status inv_compile_front(inv_graph *g, const inv_request *rq, inv_plan *plan)
{
    INV_TRY(note_outputs(g, plan));
    INV_TRY(inv_graph_check(g, false));
    PASS(inv_pass_inline(g, false), false);
    PASS(inv_graph_sort(g), false);
    PASS(inv_pass_reach(g, rq, plan), false);
    INV_TRY(inv_pass_types(g));
    PASS(inv_pass_bind(g, rq, plan), false);
    PASS(inv_pass_real(g), false);
    PASS(inv_pass_lower(g), true);
    PASS(inv_pass_reach(g, rq, plan), true); /* outputs whose type the file does not tell */
    INV_TRY(inv_reach_tensors(g));
    PASS(inv_pass_simplify(g), true);
    PASS(inv_pass_spelling(g), true);
    keep_outputs(g, plan, !rq->optimize);
    if (rq->purpose != INV_FOR_EVAL) PASS(inv_pass_match(g), true); /* evaluation recovers nothing */
    return INV_OK;
}
