/* SPDX-License-Identifier: Apache-2.0
 * Words for a budget that cannot be met: before any search, where a lower bound exceeds it already; after the search,
 * how much the smallest plan needs, and what is alive where it needs most. (budget_remedies.c says what would help.) */
#include "core/graph/node.h"
#include "passes/planner/problem.h"
#include "passes/recover/recover.h"

void inv_tell_hopeless(const inv_program *program, size_t persistent, size_t least)
{
    char budget[32], rest[32], step[32], all[32];
    const char *given = inv_bytes_text((size_t)program->options.budget, budget);
    if (least)
        inv_log(program->ctx,
                "a budget of %s cannot be met: parameters, constants and optimizer state take %s, a step %s or "
                "more: together at least %s",
                given, inv_bytes_text(persistent, rest), inv_bytes_text(least, step),
                inv_bytes_text(persistent + least, all));
    else
        inv_log(program->ctx, "a budget of %s cannot be met: parameters and optimizer state alone take %s", given,
                inv_bytes_text(persistent, rest));
}

/* Lists what is alive where the plan needs most, the largest first: "x (5 bytes), y (3 bytes) and 7 more". */
static inv_status largest_alive(const inv_plan *p, inv_arena *scratch, inv_str *text)
{
    enum { NAMED = 4 };
    inv_ids alive = {0};
    char size[32];
    INV_TRY(inv_plan_alive(p, p->peak_at, scratch, &alive));
    for (size_t k = 0; k < alive.n && k < NAMED; k++) {
        size_t largest = k, most = 0;
        for (size_t i = k; i < alive.n; i++) {
            const size_t nbytes = inv_value_nbytes(inv_val(p->g, alive.at[i]));
            if (nbytes < most || (nbytes == most && alive.at[i] >= alive.at[largest])) continue;
            largest = i;
            most = nbytes;
        }
        const inv_id v = alive.at[largest];
        alive.at[largest] = alive.at[k];
        inv_str_add(text, "%s%s (%s)", k ? ", " : "", inv_val(p->g, v)->name,
                    inv_bytes_text(inv_value_nbytes(inv_val(p->g, v)), size));
    }
    if (alive.n > NAMED) inv_str_add(text, " and %zu more", alive.n - NAMED);
    return INV_OK;
}

inv_status inv_note_shortfall(inv_program *program, const inv_plan *p)
{
    const size_t rest = program->persistent, needed = inv_program_bytes(program);
    const unsigned long long budget = program->options.budget;
    char given[32], wanted[32];
    inv_arena scratch;
    inv_str alive;
    inv_arena_init(&scratch, program->ctx);
    inv_str_init(&alive, program->ctx);
    const inv_status st = largest_alive(p, &scratch, &alive);
    const inv_node *n = inv_nod(p->g, p->g->order.at[p->peak_at]);
    if (st == INV_OK)
        program->shortfall_text = inv_arena_printf(
            &program->arena,
            "%s is too little, %s is enough. The budget of %llu bytes cannot be met: the %s needs %zu (%zu of them "
            "parameters, constants and optimizer state). The peak is at %s (%s); alive there: %s",
            inv_bytes_text((size_t)budget, given), inv_bytes_text(needed, wanted), budget, p->called, needed, rest,
            inv_node_label(n), inv_node_kind(n), alive.s ? alive.s : "");
    inv_str_fini(&alive);
    inv_arena_fini(&scratch);
    if (st == INV_OK && !program->shortfall_text) return INV_E_NOMEM;
    program->shortfall = needed;
    program->shortfall_rest = rest;
    return st;
}
