/* SPDX-License-Identifier: Apache-2.0
 * Compiles the texts of inverse rules into patterns, once per compile, and judges the conditions of a rule where its
 * pattern was found. Conditions are the rows of core/rules/condition.inc; each names its judge, so this file has no
 * case for any of them. They are judged in the order of the text. One that fails does not end that, as all that fail
 * are reported together, unless it is a value that refuses; but once one has failed, values are not looked at any more,
 * as that may compute a whole expression of parameters. So rules have conditions on shapes in front. requires: rules
 * that were checked when they were registered (core/rules/rule.c); for conditions, a pattern that is bound. gives:
 * inv_rule; inv_verdict and inv_why. Time: the lengths of the texts, and what the judges take. */
#include <string.h>

#include "passes/match/match.h"

/* Reads a text of a rule; *names grows by the names that it may bind, some of them counted more than once. `solves`:
 * solve or saves, whose statements run one after the other and may have numbers among their operands. */
static inv_status compile_rule_text(inv_context *ctx, inv_arena *a, const char *text, bool solves, inv_pattern *out,
                                    uint32_t *names)
{
    inv_stmts list = {0};
    if (text) INV_TRY(inv_text_formulas(ctx, a, text, &list));
    if (solves) INV_TRY(inv_stmts_sort(a, &list));
    for (size_t i = 0; i < list.n; i++) *names += list.at[i].nin + list.at[i].nout;
    return inv_pattern_compile(a, &list, solves, out);
}

inv_status inv_rules_compile(inv_context *ctx, inv_arena *a, inv_rule **rules, size_t *n, inv_rule_sizes *most)
{
    const inv_inverse_def *first = inv_registry_favoured(ctx->registry);
    *n = inv_registry_ninverses(ctx->registry);
    *rules = INV_ARENA_NEW(a, inv_rule, *n ? *n : 1);
    *most = (inv_rule_sizes){0};
    if (!*rules) return INV_E_NOMEM;
    for (size_t i = 0, at = first ? 1 : 0; i < *n; i++) {
        const inv_inverse_def *def = inv_registry_inverse_at(ctx->registry, i);
        inv_rule *r = &(*rules)[def == first ? 0 : at++];
        r->def = def;
        r->plugin = inv_registry_inverse_plugin(ctx->registry, i);
        r->exact = def->exactness == INV_EXACT && !r->plugin;
        r->asked = r->plugin && def != first;
        uint32_t names = 0;
        INV_TRY(compile_rule_text(ctx, a, def->match, false, &r->match, &names));
        INV_TRY(compile_rule_text(ctx, a, def->solve, true, &r->solve, &names));
        INV_TRY(compile_rule_text(ctx, a, def->saves, true, &r->saves, &names));
        if (names > most->names) most->names = names;
        if (r->match.n > most->stmts) most->stmts = (uint32_t)r->match.n;
    }
    return INV_OK;
}

/* --- conditions --- */

#define CONDITION(name, ...) bool inv_judge_##name(const inv_question *q, inv_finding *f);
#include "core/rules/condition.inc"

/* By inv_condition.id. */
static const inv_condition_row conditions[] = {
#define CONDITION(name, args, relations, values, identifies, remedy, computed) \
    {inv_judge_##name, args, values, identifies, remedy, computed},
#include "core/rules/condition.inc"
};

inv_status inv_rule_when(inv_matcher *m, const inv_rule *rule, const inv_binding *b, const inv_node *node,
                         inv_verdict *verdict, inv_why *why)
{
    const char *p = rule->def->when ? rule->def->when : "";
    inv_condition c;
    *verdict = INV_HOLDS;
    *why = (inv_why){0};
    while (*verdict != INV_REFUSED && inv_condition_next(&p, INV_IN_WHEN, &c) > 0) {
        const inv_condition_row *row = &conditions[c.id];
        inv_question q = {.m = m, .c = &c, .row = row, .b = b, .node = node};
        inv_finding f = {0};
        bool all_bound = true;
        for (int k = 0; k < 2; k++) {
            q.v[k] = inv_binding_get(b, c.arg[k]);
            q.x[k] = q.v[k] == INV_NONE ? NULL : inv_val(m->g, q.v[k]);
            all_bound = all_bound && (q.x[k] || k >= c.nargs || row->args[k] != 'v');
        }
        if (row->values && *verdict == INV_UNFIT) continue;
        const bool holds = all_bound && row->judge(&q, &f);
        INV_TRY(f.status);
        if (holds) continue;
        *verdict = row->values && f.reason ? INV_REFUSED : INV_UNFIT;
        INV_TRY(inv_diagnose_condition(&q, rule, &f, why));
    }
    return INV_OK;
}
