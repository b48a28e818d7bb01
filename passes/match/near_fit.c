/* SPDX-License-Identifier: Apache-2.0
 * Says why a rule that a conformance suite tries has found nothing in its case: the first of its statements for which
 * there is no node, or the condition that fails where all of them have one; and the nodes as rules see them, as
 * operators have been lowered and simplified by then. Statements are tried in the order of the text at every node, so
 * that those before the first one that does not fit are sure to fit together.
 * requires: a finished match of the rule.  gives: inv_matches.overruled. Time: at most FIT_BUDGET nodes are looked at.
 */
#include <string.h>

#include "core/graph/text.h"
#include "passes/match/match.h"

enum { FIT_BUDGET = 200000 };

typedef struct near_fit {
    inv_matcher *m;
    const inv_rule *rule;
    int left;        /* nodes that may still be looked at */
    size_t furthest; /* statements from there on have never fitted */
    inv_verdict verdict;
    inv_why why; /* where all fit: of the conditions, at the first such place */
} near_fit;

static bool is_told(const inv_matches *out, const inv_inverse_def *rule)
{
    bool told = false;
    for (size_t i = 0; i < out->edge.n && !told; i++) told = out->edge.at[i].rule == rule;
    for (size_t i = 0; i < out->block.n && !told; i++) told = out->block.at[i].rule == rule;
    for (size_t i = 0; i < out->refusal.n && !told; i++) told = out->refusal.at[i].rule == rule;
    for (size_t i = 0; i < out->overruled.n && !told; i++) told = out->overruled.at[i].rule == rule;
    return told;
}

static bool is_taken(const near_fit *f, uint32_t n, inv_id node)
{
    bool taken = false;
    for (uint32_t i = 0; i < n && !taken; i++) taken = f->m->pattern_node[i] == node;
    return taken;
}

static inv_status judge_fit(near_fit *f, const inv_binding *b, uint32_t n)
{
    inv_id last = f->m->pattern_node[0];
    for (uint32_t i = 1; i < n; i++)
        if (f->m->pos[f->m->pattern_node[i]] > f->m->pos[last]) last = f->m->pattern_node[i];
    const inv_node copy = *inv_nod(f->m->g, last);
    return inv_rule_when(f->m, f->rule, b, &copy, &f->verdict, &f->why);
}

/* Fits the statements from `at` on, where n nodes are bound. *all: there is a place for all of them. */
static inv_status fit_from(near_fit *f, size_t at, const inv_binding *bound, uint32_t n, bool *all)
{
    inv_matcher *m = f->m;
    while (at < f->rule->match.n && inv_stmt_is_region(f->rule->match.at[at].s)) at++;
    if (at > f->furthest) f->furthest = at;
    *all = at == f->rule->match.n;
    if (*all) return judge_fit(f, bound, n);
    for (size_t i = 0; i < m->norder && !*all && f->left-- > 0; i++) {
        const inv_id node = m->g->order.at[i];
        if (is_taken(f, n, node)) continue;
        for (int swap = 0; swap < 2 && !*all; swap++) {
            inv_binding b = *bound;
            if (!inv_pattern_bind(m->g, m->active, &f->rule->match.at[at], inv_nod(m->g, node), swap, &b)) continue;
            m->pattern_node[n] = node;
            INV_TRY(fit_from(f, at + 1, &b, n + 1, all));
        }
    }
    return INV_OK;
}

static void print_operands(inv_str *s, const char *const *name, const inv_term *term, uint32_t n)
{
    for (uint32_t k = 0; k < n; k++) inv_str_add(s, "%s%s", k ? ", " : "", term ? term[k].text : name[k]);
}

static void print_reason(const near_fit *f, bool regions, inv_str *s)
{
    const inv_matcher *m = f->m;
    inv_str_add(s, "no node of the case fits it: ");
    if (f->furthest < f->rule->match.n) {
        const inv_pattern_stmt *p = &f->rule->match.at[f->furthest];
        inv_str_add(s, "the first statement that does not fit is '");
        print_operands(s, p->s->out, NULL, p->s->nout);
        inv_str_add(s, " = %s%s%s(", p->s->domain, *p->s->domain ? "." : "", p->s->op);
        print_operands(s, NULL, p->in, p->s->nin);
        inv_str_add(s, ")'");
    } else if (regions) {
        inv_str_add(s, "all its operators do, but not its regions or conditions");
    } else if (f->verdict != INV_HOLDS) {
        inv_str_add(s, "all its statements do, but %s", f->why.reason ? f->why.reason : "a condition does not hold");
    } else {
        inv_str_add(s, "all its statements do, but what it starts from or frees depends on no input of the model");
    }
    inv_str_add(s, ". When rules are tried, operators have been lowered and simplified to:\n");
    for (size_t i = 0; i < m->norder; i++) inv_print_node(s, m->g, inv_nod(m->g, m->g->order.at[i]));
}

inv_status inv_near_fit(inv_matcher *m, const inv_rule *rule)
{
    near_fit f = {.m = m, .rule = rule, .left = FIT_BUDGET};
    bool all, regions = false;
    inv_str s;
    if (is_told(m->out, rule->def)) return INV_OK;
    for (size_t i = 0; i < rule->match.n; i++) regions = regions || inv_stmt_is_region(rule->match.at[i].s);
    INV_TRY(fit_from(&f, 0, &m->pattern, 0, &all));
    inv_str_init(&s, m->g->ctx);
    print_reason(&f, regions, &s);
    const inv_why why = {.reason = s.failed ? NULL : inv_arena_strdup(&m->g->arena, s.s)};
    inv_str_fini(&s);
    const inv_refusal r = {rule->def->name, INV_NONE, rule->def, INV_NONE, why, false};
    return why.reason && inv_vec_push(&m->g->arena, &m->out->overruled, r) ? INV_OK : INV_E_NOMEM;
}
