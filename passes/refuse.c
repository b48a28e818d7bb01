/* SPDX-License-Identifier: Apache-2.0
 * Budgets that cannot be met: what is said of it, at once where that is clear before any search, and what would help,
 * each with what a step takes then at least. */
#include <stdlib.h>
#include <string.h>

#include "core/node.h"
#include "passes/recover.h"

size_t inv_problem_floor(const inv_problem *p)
{
    size_t most = 0;
    for (uint32_t t = 0; t < p->nstep; t++) {
        const inv_pb_step *s = &p->step[t];
        size_t sum = s->at, taken = 0;
        for (uint32_t i = 0; i < s->nread; i++) {
            const size_t nbytes = p->value[s->read[i]].nbytes;
            sum += nbytes;
            if (i < 32 && s->overwrites >> i & 1 && nbytes > taken) taken = nbytes;
        }
        if (sum - taken > most) most = sum - taken;
    }
    return most;
}

void inv_refuse_at_once(const inv_program *program, size_t persistent, size_t least)
{
    char budget[32], rest[32], step[32], all[32];
    const char *given = inv__bytes_text((size_t)program->options.budget, budget);
    if (least)
        inv__log(program->ctx,
                 "a budget of %s cannot be met: parameters, constants and optimizer state take %s, a step %s or more "
                 "besides: at least %s together", given, inv__bytes_text(persistent, rest),
                 inv__bytes_text(least, step), inv__bytes_text(persistent + least, all));
    else
        inv__log(program->ctx, "a budget of %s cannot be met: parameters and optimizer state alone take %s", given,
                 inv__bytes_text(persistent, rest));
}

void inv_refuse_before(inv_program *p)
{
    p->surely = 0;
    for (size_t i = 0; p->untrained && i < p->source->inits.n; i++) {
        const inv_value *v = inv_val(p->source, p->source->inits.at[i]);
        size_t nbytes;
        if (p->untrained[p->source->inits.at[i]] == INV_TRAINED && inv_shape_nbytes(&v->shape, v->dtype, &nbytes))
            p->surely += nbytes * (1 + inv_optimizer_states(&p->options));
    }
    if (p->options.budget && p->surely >= p->options.budget) inv_refuse_at_once(p, p->surely, 0);
}

static int by_bytes(const void *a, const void *b)
{
    const size_t *x = a, *y = b;
    return x[0] != y[0] ? (x[0] < y[0] ? 1 : -1) : x[1] < y[1] ? -1 : x[1] > y[1];
}

/* "x (5 bytes), y (3 bytes) and 7 more": what is alive where the plan needs most, the largest first. */
static inv_status largest_alive(const inv_plan *p, inv_arena *scratch, inv_str *text)
{
    enum { NAMED = 4 };
    inv_ids alive = {0};
    char size[32];
    INV_TRY(inv_plan_alive(p, p->peak_at, scratch, &alive));
    size_t(*sizes)[2] = inv__arena_array(scratch, alive.n + 1, sizeof *sizes);
    if (!sizes) return INV_E_NOMEM;
    for (size_t i = 0; i < alive.n; i++) {
        const inv_value *v = inv_val(p->g, alive.at[i]);
        (void)inv_shape_nbytes(&v->shape, v->dtype, &sizes[i][0]);
        sizes[i][1] = alive.at[i];
    }
    qsort(sizes, alive.n, sizeof *sizes, by_bytes);
    for (size_t i = 0; i < alive.n && i < NAMED; i++)
        inv__str_add(text, "%s%s (%s)", i ? ", " : "", inv_val(p->g, (inv_id)sizes[i][1])->name,
                     inv__bytes_text(sizes[i][0], size));
    if (alive.n > NAMED) inv__str_add(text, " and %zu more", alive.n - NAMED);
    return INV_OK;
}

inv_status inv_refuse_plan(inv_program *program, const inv_plan *p, size_t need, const char *what, inv_arena *scratch)
{
    const size_t rest = program->persistent;
    const unsigned long long budget = program->options.budget;
    char given[32], wanted[32];
    inv_str alive;
    inv__str_init(&alive, program->ctx);
    const inv_status st = largest_alive(p, scratch, &alive);
    const inv_node *n = inv_nod(p->g, p->g->order.at[p->peak_at]);
    if (st == INV_OK)
        program->refusal = inv__arena_printf(
            &program->arena,
            "%s are not enough, %s are: the budget of %llu bytes cannot be met: the %s needs %zu (%zu of them "
            "parameters, constants and optimizer state). Most is needed while %s (%s) runs; alive then: %s",
            inv__bytes_text((size_t)budget, given), inv__bytes_text(rest + need, wanted), budget, what, rest + need,
            rest, inv_node_label(n), inv_node_kind(n), alive.s ? alive.s : "");
    inv__str_fini(&alive);
    if (st == INV_OK && !program->refusal) return INV_E_NOMEM;
    program->refused = rest + need;
    return st;
}

/* --- what would help --- */

typedef struct remedy {
    const char *option, *value; /* of inv_session_options, as JSON */
    bool early, sgd;
    inv_session_options options;
} remedy;

/* The changes that apply, the best first: what costs nothing, what changes the training, what changes its batch. */
static size_t list_remedies(const inv_program *p, remedy *list)
{
    const inv_session_options *o = &p->options;
    size_t n = 0;
    if (o->optimizer != INV_OPT_NONE && !o->early_update)
        list[n++] = (remedy){"early_update", "true", true, false, *o};
    if (o->optimizer != INV_OPT_NONE && o->optimizer != INV_OPT_SGD)
        list[n++] = (remedy){"optimizer", "\"sgd\"", false, true, *o};
    if (n == 2) list[n++] = (remedy){"early_update, optimizer", "\"true, sgd\"", true, true, *o};
    for (size_t i = 0; i < n; i++) {
        list[i].options.early_update |= list[i].early;
        if (list[i].sgd) list[i].options.optimizer = INV_OPT_SGD;
    }
    return n;
}

inv_status inv_refuse(inv_program *p)
{
    enum { MOST = 3 };
    remedy list[MOST];
    const size_t n = list_remedies(p, list), needed = p->refused;
    inv_str text, said;
    const char *message = p->refusal;
    inv__str_init(&text, p->ctx);
    inv__str_init(&said, p->ctx);
    inv__str_add(&text, "{\"budget_bytes\": %llu, \"needed_bytes\": %zu, \"persistent_bytes\": %zu, \"remedies\": [",
                 (unsigned long long)p->options.budget, needed, p->persistent);
    for (size_t i = 0; i < n; i++) {
        char size[32];
        size_t least;
        /* what cannot be planned is no remedy */
        if (inv_program_floor(p, &list[i].options, &least) != INV_OK || least >= needed) continue;
        inv__str_add(&text, "{\"option\": \"%s\", \"value\": %s, \"least_bytes\": %zu}, ", list[i].option,
                     list[i].value, least);
        if (list[i].early) inv__str_add(&said, "%s", inv__option(p->ctx, "early_update"));
        if (list[i].early && list[i].sgd) inv__str_add(&said, " with ");
        if (list[i].sgd) inv__str_add(&said, "%s sgd", inv__option(p->ctx, "optimizer"));
        inv__str_add(&said, " (%s at least), ", inv__bytes_text(least, size));
    }
    inv__str_add(&text, "{\"option\": \"batch\"}]}");
    const inv_status st = inv__fail(p->ctx, INV_E_NOMEM, "%s. What would help%s: %sa smaller batch", message,
                                    n ? ", in this order" : "", said.s ? said.s : "");
    if (text.s) inv__fail_details(p->ctx, text.s);
    inv__str_fini(&text);
    inv__str_fini(&said);
    return st;
}
