/* SPDX-License-Identifier: Apache-2.0
 * Matches rules of one operator at each node: local inverses, which become edges and, where the rule has a name, blocks
 * of one node; and refusals, of those that almost match and of rules that refuse.
 * requires: inv_matcher.  gives: edges, blocks and refusals. Time: nodes times rules. */
#include <string.h>

#include "passes/match/match.h"

inv_status inv_report_refusal(inv_matcher *m, const inv_inverse_def *rule, inv_id node, inv_id value,
                              const inv_why *why)
{
    inv_refusal r = {inv_rule_kind(rule), node, rule, value, *why, false};
    return inv_vec_push(&m->g->arena, &m->out->refusal, r) ? INV_OK : INV_E_NOMEM;
}

/* What rules of one operator come to at one node. */
typedef struct outcome {
    inv_id taken;               /* the value that one of them frees, if it names a block */
    bool refused;               /* one of them is, and more than its conditions on shapes is in the way */
    inv_refusal near_miss;      /* of the rule with fewest conditions that fail */
    INV_VEC(inv_refusal) asked; /* of rules that are asked for, which are told whatever the others come to */
} outcome;

static inv_status refuse(inv_matcher *m, const inv_rule *rule, inv_id node, inv_id value, const inv_why *why,
                         outcome *out)
{
    out->refused = true;
    return inv_report_refusal(m, rule->def, node, value, why);
}

/* Tells of a rule whose conditions do not hold. A rule whose kind is "" names nothing that a user would look for, so
 * its reasons are only shown where the inverse direction stops there. Each of those that are asked for is told.
 */
static inv_status miss(inv_matcher *m, const inv_rule *rule, inv_id node, inv_id value, inv_verdict verdict,
                       inv_why *why, outcome *out)
{
    const bool has_kind = *inv_rule_kind(rule->def) != 0;
    INV_TRY(inv_diagnose_owner(m, rule, why));
    const inv_refusal r = {inv_rule_kind(rule->def), node, rule->def, value, *why, false};
    if (has_kind && rule->asked && !rule->def->refuse)
        return inv_vec_push(&m->scratch, &out->asked, r) ? INV_OK : INV_E_NOMEM;
    if (has_kind && verdict == INV_REFUSED) return refuse(m, rule, node, value, why, out);
    if (!has_kind && why->reason && !inv_vec_push(&m->g->arena, &m->out->overruled, r)) return INV_E_NOMEM;
    if (!has_kind || rule->def->refuse) return INV_OK;
    if (why->missed > 0 && why->missed < out->near_miss.why.missed) out->near_miss = r;
    return INV_OK;
}

/* Tries one rule of one operator at one node. */
static inv_status match_local(inv_matcher *m, const inv_rule *rule, inv_id node, outcome *out)
{
    const inv_pattern_stmt *s = &rule->match.at[0];
    for (int swap = 0; swap < 2; swap++) {
        inv_binding b = m->pattern;
        const inv_node *n = inv_nod(m->g, node);
        if (!inv_pattern_bind(m->g, m->active, s, n, swap, &b)) continue;
        int freed = inv_binding_find(&b, rule->def->frees);
        if (freed < 0 || b.at[freed].n == 0 || !m->active[b.at[freed].id[0]]) continue;
        bool has_kind = *inv_rule_kind(rule->def) != 0, made;
        inv_verdict verdict;
        inv_why why;
        inv_node copy = *n;
        const inv_id value = b.at[freed].id[0];
        INV_TRY(inv_rule_when(m, rule, &b, &copy, &verdict, &why));
        if (verdict != INV_HOLDS) {
            INV_TRY(miss(m, rule, node, value, verdict, &why, out));
            continue;
        }
        why = (inv_why){.reason = rule->def->refuse, .remedy = rule->def->remedy};
        if (why.reason) return refuse(m, rule, node, value, &why, out);
        INV_TRY(inv_edges_add(m, rule, &b, node, &made, &why));
        if (!made && !has_kind) return INV_OK;
        if (!made) return refuse(m, rule, node, value, &why, out);
        if (has_kind) {
            inv_block block;
            INV_TRY(inv_block_make(m, rule, &b, &node, 1, NULL, 0, &block));
            if (!inv_vec_push(&m->g->arena, &m->out->block, block)) return INV_E_NOMEM;
            out->taken = value;
            return INV_OK;
        }
    }
    return INV_OK;
}

inv_status inv_report_once(inv_matcher *m, size_t from, inv_id taken)
{
    inv_refusal *r = m->out->refusal.at;
    size_t n = from;
    for (size_t i = from; i < m->out->refusal.n; i++) {
        bool reported = r[i].value == taken;
        for (size_t k = from; k < n && !reported; k++)
            reported = r[k].value == r[i].value && strcmp(r[k].why.reason, r[i].why.reason) == 0;
        if (reported && !inv_vec_push(&m->g->arena, &m->out->overruled, r[i])) return INV_E_NOMEM;
        if (!reported) r[n++] = r[i];
    }
    m->out->refusal.n = n;
    return INV_OK;
}

inv_status inv_match_locals(inv_matcher *m, inv_id node)
{
    outcome out = {.taken = INV_NONE, .near_miss.why.missed = UINT32_MAX};
    const inv_refusal *near = &out.near_miss;
    const size_t before = m->out->refusal.n;
    for (size_t r = 0; r < m->nrule && out.taken == INV_NONE; r++)
        if (m->rule[r].match.n == 1) INV_TRY(match_local(m, &m->rule[r], node, &out));
    INV_TRY(inv_report_once(m, before, out.taken));
    if (out.taken == INV_NONE && near->rule && !out.refused)
        INV_TRY(inv_report_refusal(m, near->rule, node, near->value, &near->why));
    const size_t first = m->out->refusal.n;
    for (size_t i = 0; i < out.asked.n; i++)
        if (!inv_vec_push(&m->g->arena, &m->out->refusal, out.asked.at[i])) return INV_E_NOMEM;
    return inv_report_once(m, first, INV_NONE);
}
